/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of sessions that is registered: it stays mapped as long, over deaths of the daemon and over what engines get wrong.
 */
#include <sched.h>

#include "kernels/attach.h"
#include "tests/unit/gpu_lazy.h"
/* Behind those that have a `d` of their own. */
#include "tests/unit/client_world.h"

#define RANGES 4u
#define MAX_PLACES 64u

/* ---- a driver that remembers -------------------------------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;                /* guards all of it */
	uint64_t at[MAX_PLACES], bytes[MAX_PLACES];
	unsigned count;                      /* places that are registered */
	unsigned registers, unregisters;     /* calls */
	unsigned fail_register, fail_unregister; /* the n-th from now on fails, 0: none */
	bool foreign;                        /* somebody else has registered it all */
	void (*at_register)(void);           /* done once, when the next one was registered, or is about to fail */
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_mapped(uint64_t at, uint64_t bytes)
{
	return !msync((void *)(uintptr_t)at, bytes, MS_ASYNC);
}

static int driver_register(struct backend *b, uint64_t address, uint64_t bytes, bool read_only, bool *foreign)
{
	void (*meanwhile)(void) = NULL;
	bool fails;

	pthread_mutex_lock(&driver.lock);
	driver.registers++;
	fails = driver.fail_register > 0 && --driver.fail_register == 0;
	if (!driver.fail_register) {
		meanwhile = driver.at_register;
		driver.at_register = NULL;
	}
	for (unsigned i = 0; i < driver.count; i++)
		assert(address + bytes <= driver.at[i] || address >= driver.at[i] + driver.bytes[i]);
	assert(driver.count < MAX_PLACES && is_mapped(address, bytes));
	if (!fails && !driver.foreign) {
		driver.at[driver.count] = address;
		driver.bytes[driver.count++] = bytes;
	}
	pthread_mutex_unlock(&driver.lock);
	if (meanwhile)
		meanwhile();
	*foreign = driver.foreign;
	return fails ? gpu_say(EIO, "the driver was made to fail") : 0;
}

static int driver_unregister(struct backend *b, uint64_t address)
{
	unsigned i = 0;
	bool fails;

	pthread_mutex_lock(&driver.lock);
	driver.unregisters++;
	while (i < driver.count && driver.at[i] != address)
		i++;
	assert(i < driver.count && is_mapped(address, driver.bytes[i]));
	driver.count--;
	driver.at[i] = driver.at[driver.count];
	driver.bytes[i] = driver.bytes[driver.count];
	fails = driver.fail_unregister > 0 && --driver.fail_unregister == 0;
	pthread_mutex_unlock(&driver.lock);
	return fails ? gpu_say(EIO, "the driver was made to fail") : 0;
}

static struct backend_ops driver_ops;

static int driver_open(const struct backend_needs *needs, struct backend **ret)
{
	int r = lazy_open(needs, ret);

	if (!r)
		(*ret)->ops = &driver_ops;
	return r;
}

static struct pfs_gpu *open_device(uint32_t threads)
{
	struct pfs_gpu_options o;
	struct pfs_gpu *gpu;

	driver.registers = driver.unregisters = 0;
	driver_ops = backend_lazy;
	driver_ops.open = driver_open;
	driver_ops.host_register = driver_register;
	driver_ops.host_unregister = driver_unregister;
	pfs_gpu_options_init(&o);
	o.register_threads = threads;
	assert_int_equal(gpu_open_with(&driver_ops, &o, &gpu), 0);
	return gpu;
}

static uint64_t registered(struct pfs_gpu *gpu)
{
	struct pfs_gpu_info info;
	uint64_t bytes = 0;

	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, driver.count);
	for (unsigned i = 0; i < driver.count; i++)
		bytes += driver.bytes[i];
	assert_int_equal(info.registered_bytes, bytes);
	return bytes;
}

static int attach_it(struct pfs_gpu *gpu, struct pfs_session *s)
{
	return pfs_gpu_attach(gpu, s, NULL, NULL);
}

/* A copy of one value, at @value, that is held up until `recorded`. */
static bool recorded;

static struct pfs_gpu_op *copy_of(struct pfs_gpu *gpu, const void *value)
{
	static uint8_t page[VALUE] __attribute__((aligned(16)));
	struct pfs_gpu_plane plane = {.base = (uintptr_t)page, .stride = VALUE, .bytes = VALUE};
	struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = 1};
	uint64_t address = (uintptr_t)value;
	uint32_t id = 0;
	struct pfs_gpu_copy copy = {.pool = &pool, .values = &address, .pages = &id, .count = 1, .after = &recorded};
	struct pfs_gpu_op *op;

	__atomic_store_n(&recorded, false, __ATOMIC_RELEASE);
	assert_int_equal(pfs_gpu_scatter(gpu, &copy, &op), 0);
	return op;
}

static void end_copy(struct pfs_gpu_op *op)
{
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	assert_int_equal(pfs_gpu_wait(op, 0), 0);
	pfs_gpu_end(&op);
}

/* ---- deaths ----------------------------------------------------------------------------------------------------------------------------- */

static void other_memory_is_registered_and_what_was_there_given_up(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	uint64_t first = (uintptr_t)info_of(s).segment;

	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_int_equal(d.acknowledged, RANGES);
	die(false);
	assert_int_equal(probe(s), 0); /* nothing uses the old one: but it is registered */
	assert_true(is_mapped(first, SEGMENT_BYTES));
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_true((uintptr_t)info_of(s).segment != first && driver.at[0] != first);
	assert_int_equal(driver.registers, 2 * RANGES);
	assert_int_equal(driver.unregisters, RANGES);
	assert_false(is_mapped(first, SEGMENT_BYTES));
	assert_int_equal(d.acknowledged, 2 * RANGES);
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	assert_int_equal(registered(gpu), 0);
	pfs_close(&s);
	pfs_gpu_close(&gpu);
}

static void what_plans_and_copies_use_stays_registered(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	uint64_t first = (uintptr_t)info_of(s).segment;
	struct pfs_transfer_result plan;
	struct pfs_gpu_op *op;

	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(fetch(s, look_up(s), &plan), 0);
	op = copy_of(gpu, plan.segment + plan.offsets[0][1]);
	die(false);
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(registered(gpu), 2 * SEGMENT_BYTES);
	assert_int_equal(pfs_release(s, &plan.plan, 1, NULL), 0); /* too early, and the copy goes on */
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(registered(gpu), 2 * SEGMENT_BYTES);
	assert_true(is_mapped(first, SEGMENT_BYTES));
	end_copy(op);
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_false(is_mapped(first, SEGMENT_BYTES));
	assert_int_equal(fetch(s, look_up(s), &plan), 0);
	die(false);
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(registered(gpu), 2 * SEGMENT_BYTES); /* a plan that nobody copies yet */
	end_copy(copy_of(gpu, plan.segment + plan.offsets[0][1]));
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	assert_int_equal(registered(gpu), 0);
	pfs_close(&s);
	pfs_gpu_close(&gpu);
}

static void a_reset_registers_nothing_anew(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	struct pfs_gpu_op *op;

	assert_int_equal(attach_it(gpu, s), 0);
	op = copy_of(gpu, info_of(s).segment);
	d.resets++;
	die(true);
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(info_of(s).generation, 1);
	assert_int_equal(driver.registers, RANGES);
	assert_int_equal(driver.unregisters, 0);
	end_copy(op);
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	pfs_close(&s);
	pfs_gpu_close(&gpu);
}

static void die_with_other_memory(void)
{
	die(false);
}

static void memory_that_changes_while_it_is_registered(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);

	driver.at_register = die_with_other_memory;
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(info_of(s).remapped, 1);
	assert_int_equal(d.acknowledged, RANGES); /* of the second one alone */
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_true(driver.at[0] - (uintptr_t)info_of(s).segment < SEGMENT_BYTES);
	d.deadly = PFS_IOC_SEGMENTS; /* between the session's mapping and its ranges */
	d.deaths = 1;
	d.error = ENOTCONN;
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(info_of(s).remapped, 2);
	assert_int_equal(d.acknowledged, 2 * RANGES);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_true(driver.at[0] - (uintptr_t)info_of(s).segment < SEGMENT_BYTES);
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	pfs_close(&s);
	pfs_gpu_close(&gpu);
}

/* ---- what engines get wrong --------------------------------------------------------------------------------------------------------- */

static void a_session_closed_without_detaching_leaves_its_memory_mapped(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false), *name = s;
	uint64_t first = (uintptr_t)info_of(s).segment;

	assert_int_equal(attach_it(gpu, s), 0);
	pfs_close(&s);
	assert_true(is_mapped(first, SEGMENT_BYTES));
	die(false);
	s = session_open(false);
	assert_true((uintptr_t)info_of(s).segment != first);
	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(driver.registers, 2 * RANGES);
	if (s != name) /* else it was taken back already, for the same name's sake */
		assert_int_equal(pfs_gpu_detach(gpu, name), 0);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_false(is_mapped(first, SEGMENT_BYTES));
	name = s;
	pfs_close(&s);
	assert_int_equal(pfs_gpu_detach(gpu, name), 0);
	assert_int_equal(pfs_gpu_detach(gpu, name), -ENOENT);
	assert_int_equal(registered(gpu), 0);
	pfs_gpu_close(&gpu);
}

static void a_device_closed_with_sessions_lets_their_memory_go(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *one = session_open(false), *two = session_open(false);
	uint64_t first = (uintptr_t)info_of(one).segment, second = (uintptr_t)info_of(two).segment;

	assert_int_equal(attach_it(gpu, one), 0);
	assert_int_equal(attach_it(gpu, two), 0);
	assert_int_equal(registered(gpu), 2 * SEGMENT_BYTES); /* the same memory, by either mapping */
	pfs_close(&one);
	pfs_gpu_close(&gpu);
	assert_int_equal(driver.count, 0);
	assert_false(is_mapped(first, SEGMENT_BYTES));
	assert_true(is_mapped(second, SEGMENT_BYTES));
	pfs_close(&two);
	assert_false(is_mapped(second, SEGMENT_BYTES));
}

static void detaching_under_a_copy_takes_nothing_back(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	uint8_t *segment = info_of(s).segment;
	struct pfs_gpu_op *op;

	assert_int_equal(attach_it(gpu, s), 0);
	op = copy_of(gpu, segment + SEGMENT_BYTES - VALUE); /* in the last range */
	assert_int_equal(pfs_gpu_detach(gpu, s), -EBUSY);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	assert_int_equal(driver.unregisters, 0);
	assert_int_equal(attach_it(gpu, s), 0); /* it is attached as before */
	assert_int_equal(driver.registers, RANGES);
	end_copy(op);
	end_copy(copy_of(gpu, segment));
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	assert_int_equal(registered(gpu), 0);
	assert_int_equal(driver.unregisters, RANGES);
	pfs_close(&s);
	assert_false(is_mapped((uintptr_t)segment, SEGMENT_BYTES));
	pfs_gpu_close(&gpu);
}

static void a_driver_that_fails_once_loses_nothing_else(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	uint8_t *segment = info_of(s).segment;

	assert_int_equal(attach_it(gpu, s), 0);
	driver.fail_unregister = 2;
	assert_int_equal(pfs_gpu_detach(gpu, s), -EIO);
	assert_string_equal(gpu_said(), "the driver was made to fail");
	assert_int_equal(driver.unregisters, RANGES);
	assert_int_equal(registered(gpu), 0);
	assert_int_equal(pfs_gpu_detach(gpu, s), -ENOENT);
	pfs_close(&s);
	assert_false(is_mapped((uintptr_t)segment, SEGMENT_BYTES));
	pfs_gpu_close(&gpu);
}

static struct pfs_gpu *device;
static struct pfs_gpu_op *early;
static uint8_t *early_value;

static void copy_early(void)
{
	early = copy_of(device, early_value);
}

/* An attaching that fails takes back what it made; what is copied by then it still has. */
static void what_is_copied_before_an_attaching_fails_stays_mapped(void **state)
{
	struct pfs_session *s = session_open(false), *name = s;
	uint64_t first = (uintptr_t)info_of(s).segment;

	device = open_device(1);
	early_value = info_of(s).segment;
	driver.fail_register = 3;
	driver.at_register = copy_early;
	assert_int_equal(attach_it(device, s), -EIO);
	assert_string_equal(gpu_said(), "the driver was made to fail");
	assert_int_equal(d.acknowledged, 0);
	assert_int_equal(registered(device), SEGMENT_BYTES / RANGES);
	assert_int_equal(driver.at[0], first);
	pfs_close(&s);
	assert_int_equal(pfs_gpu_detach(device, name), -EBUSY);
	assert_true(is_mapped(first, SEGMENT_BYTES));
	end_copy(early);
	assert_int_equal(pfs_gpu_detach(device, name), 0);
	assert_int_equal(registered(device), 0);
	assert_false(is_mapped(first, SEGMENT_BYTES));
	pfs_gpu_close(&device);
}

static void an_attaching_that_fails_holds_nothing(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	uint64_t first = (uintptr_t)info_of(s).segment;

	driver.fail_register = RANGES;
	assert_int_equal(attach_it(gpu, s), -EIO);
	assert_int_equal(registered(gpu), 0);
	assert_int_equal(pfs_gpu_detach(gpu, s), -ENOENT);
	pfs_close(&s);
	assert_false(is_mapped(first, SEGMENT_BYTES));
	pfs_gpu_close(&gpu);
}

/* A range that the driver is given in two pieces. */
static void a_range_of_several_pieces_goes_whole_or_not_at_all(void **state)
{
	uint64_t tail_bytes = 2 << 20, bytes = PFS_GPU_REGISTER_BYTES + tail_bytes;
	uint8_t *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *tail;
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_gpu_op *op;

	assert_true(memory != MAP_FAILED);
	tail = memory + PFS_GPU_REGISTER_BYTES;
	assert_int_equal(pfs_gpu_register(gpu, memory, bytes, 3), 0);
	assert_int_equal(mprotect(tail, tail_bytes, PROT_READ | PROT_WRITE), 0);
	op = copy_of(gpu, tail);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, bytes, 3), -EBUSY);
	assert_int_equal(registered(gpu), bytes);
	end_copy(op);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, bytes, 4), -ESTALE);
	assert_int_equal(pfs_gpu_register(gpu, tail, tail_bytes, 4), 0); /* anew, by itself */
	assert_int_equal(pfs_gpu_unregister(gpu, memory, bytes, 3), -ESTALE);
	assert_int_equal(registered(gpu), bytes);
	assert_int_equal(pfs_gpu_unregister(gpu, tail, tail_bytes, 4), 0);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, bytes, 3), -ENOENT);
	assert_int_equal(registered(gpu), PFS_GPU_REGISTER_BYTES);
	assert_int_equal(pfs_gpu_register(gpu, tail, 4096, 3), 0);
	assert_int_equal(pfs_gpu_register(gpu, memory, bytes, 3), -EINVAL); /* the tail overlaps: the rest is not held once more */
	assert_int_equal(pfs_gpu_unregister(gpu, memory, PFS_GPU_REGISTER_BYTES, 3), 0);
	assert_int_equal(registered(gpu), 4096);
	assert_int_equal(pfs_gpu_unregister(gpu, tail, 4096, 3), 0);
	assert_int_equal(driver.registers, driver.unregisters);
	munmap(memory, bytes);
	pfs_gpu_close(&gpu);
}

static void what_the_engine_registers_anew_is_its_own(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	uint8_t *segment = info_of(s).segment;

	assert_int_equal(attach_it(gpu, s), 0);
	assert_int_equal(pfs_gpu_register(gpu, segment, SEGMENT_BYTES / RANGES, UINT64_MAX), 0);
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	assert_int_equal(registered(gpu), SEGMENT_BYTES / RANGES);
	assert_int_equal(pfs_gpu_unregister(gpu, segment, SEGMENT_BYTES / RANGES, UINT64_MAX), 0);
	pfs_close(&s);
	pfs_gpu_close(&gpu);
}

/* ---- several threads ---------------------------------------------------------------------------------------------------------------- */

struct attacher {
	struct pfs_gpu *gpu;
	struct pfs_session *session;
};

static void *attach_and_detach(void *context)
{
	const struct attacher *a = context;

	for (unsigned i = 0; i < 50; i++) {
		int r;

		if (attach_it(a->gpu, a->session))
			abort();
		r = pfs_gpu_detach(a->gpu, a->session);
		if (r && r != -ENOENT) /* another thread has detached it */
			abort();
	}
	return NULL;
}

/* One session by two threads, and another one of the namespace; the driver asserts that nothing is registered twice, or not mapped. */
static void attached_and_detached_by_several_threads(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *one = session_open(false), *two = session_open(false);
	struct attacher attachers[3] = {{gpu, one}, {gpu, one}, {gpu, two}};
	pthread_t threads[3];

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, attach_and_detach, &attachers[i]), 0);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(registered(gpu), 0);
	assert_int_equal(driver.registers, driver.unregisters);
	pfs_close(&one);
	pfs_close(&two);
	pfs_gpu_close(&gpu);
}

static _Atomic bool over;

static void *attach_through_deaths(void *context)
{
	const struct attacher *a = context;

	for (unsigned i = 0; !over; i++) {
		int r = attach_it(a->gpu, a->session);

		if (r && r != -ESTALE && r != -ENOTCONN) /* one death after another */
			abort();
		r = i % 3 ? 0 : pfs_gpu_detach(a->gpu, a->session);
		if (r && r != -ENOENT)
			abort();
	}
	return NULL;
}

static unsigned deaths_left(unsigned more)
{
	unsigned left;

	pthread_mutex_lock(&one_request);
	left = d.deaths += more;
	pthread_mutex_unlock(&one_request);
	return left;
}

/* What is registered is mapped, the driver asserts, however often the memory is another one. */
static void attached_through_deaths_by_several_threads(void **state)
{
	struct pfs_gpu *gpu = open_device(4);
	struct pfs_session *s = session_open(false);
	struct attacher attacher = {gpu, s};
	pthread_t threads[2];
	int r;

	d.deadly = PFS_IOC_SEGMENTS;
	d.error = ENOTCONN;
	over = false;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, attach_through_deaths, &attacher), 0);
	for (unsigned i = 0; i < 20; i++) {
		deaths_left(1);
		while (deaths_left(0))
			sched_yield();
	}
	over = true;
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	while ((r = attach_it(gpu, s)) == -ENOTCONN) /* a deadline may have passed in vain */
		sched_yield();
	assert_int_equal(r, 0);
	assert_true(info_of(s).remapped >= 1);
	assert_int_equal(registered(gpu), SEGMENT_BYTES);
	for (unsigned i = 0; i < driver.count; i++)
		assert_true(driver.at[i] - (uintptr_t)info_of(s).segment < SEGMENT_BYTES);
	assert_true(s->mappings && !s->mappings->next);
	assert_int_equal(pfs_gpu_detach(gpu, s), 0);
	pfs_close(&s);
	pfs_gpu_close(&gpu);
}

static int begin(void **state)
{
	int r = daemon_start(state);

	d.ranges = RANGES;
	return r;
}

/* What somebody else has registered is used, and stays theirs. */
static void what_others_have_registered_stays_theirs(void **state)
{
	struct pfs_gpu *gpu = open_device(1);
	uint8_t *memory = mmap(NULL, 2 * VALUE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pfs_gpu_info info;
	struct pfs_gpu_op *op;

	driver.foreign = true;
	assert_int_equal(pfs_gpu_register(gpu, memory, VALUE, 1), 0);
	assert_int_equal(pfs_gpu_register(gpu, memory + VALUE, VALUE, 1), 0);
	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, 2);
	op = copy_of(gpu, memory);
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	assert_int_equal(pfs_gpu_wait(op, 0), 0);
	pfs_gpu_end(&op);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, VALUE, 1), 0);
	pfs_gpu_close(&gpu); /* with the other one */
	assert_int_equal(driver.registers, 2);
	assert_int_equal(driver.unregisters, 0);
	driver.foreign = false;
	munmap(memory, 2 * VALUE);
}

#define with_daemon(f) cmocka_unit_test_setup_teardown(f, begin, daemon_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_daemon(other_memory_is_registered_and_what_was_there_given_up),
		with_daemon(what_plans_and_copies_use_stays_registered),
		with_daemon(a_reset_registers_nothing_anew),
		with_daemon(memory_that_changes_while_it_is_registered),
		with_daemon(a_session_closed_without_detaching_leaves_its_memory_mapped),
		with_daemon(a_device_closed_with_sessions_lets_their_memory_go),
		with_daemon(detaching_under_a_copy_takes_nothing_back),
		with_daemon(a_driver_that_fails_once_loses_nothing_else),
		with_daemon(what_is_copied_before_an_attaching_fails_stays_mapped),
		with_daemon(an_attaching_that_fails_holds_nothing),
		with_daemon(a_range_of_several_pieces_goes_whole_or_not_at_all),
		with_daemon(what_the_engine_registers_anew_is_its_own),
		with_daemon(what_others_have_registered_stays_theirs),
		with_daemon(attached_and_detached_by_several_threads),
		with_daemon(attached_through_deaths_by_several_threads),
	};

	lazy.dice.state = 1234567;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
