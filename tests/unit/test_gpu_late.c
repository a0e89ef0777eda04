/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans that are given back later (kernels/moves.h): their copies were not done in time, or the daemon could not be asked. Each once, and not
 * before its copies have ended. The daemon is a counter here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/attach.h"
#include "kernels/moves.h"
#include "tests/unit/gpu_lazy.h"

#define PLAN 4711u
#define VALUES 8u
#define ROUNDS 300

static struct dice d;

static struct {
	_Atomic uint32_t released, aborted; /* calls that were answered */
	_Atomic uint32_t refusals;          /* calls that are still to be refused */
	_Atomic int refusal;
	_Atomic bool under_way;             /* the copies: what is given back meanwhile is an error */
	_Atomic uint32_t early;
} tier;

static struct pfs_session *const session = (struct pfs_session *)&tier; /* nobody looks into it */

static int answer(_Atomic uint32_t *counter)
{
	tier.early += tier.under_way;
	if (tier.refusals > 0) {
		tier.refusals--;
		return tier.refusal;
	}
	(*counter)++;
	return 0;
}

int __wrap_pfs_release(struct pfs_session *s, const uint64_t *plans, uint32_t count, int32_t *status);
int __wrap_pfs_put_abort(struct pfs_session *s, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status, struct pfs_put_outcome *ret);

int __wrap_pfs_release(struct pfs_session *s, const uint64_t *plans, uint32_t count, int32_t *status)
{
	if (s != session || count != 1 || *plans != PLAN || status)
		abort();
	return answer(&tier.released);
}

int __wrap_pfs_put_abort(struct pfs_session *s, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status, struct pfs_put_outcome *ret)
{
	if (s != session || plan != PLAN || first || count || status || ret)
		abort();
	return answer(&tier.aborted);
}

static struct fixture {
	struct world w;
	struct pfs_gpu *gpu;
	uint32_t pages[VALUES];
	uint64_t offsets[VALUES];
	struct pfs_gpu_pages of_class;
	bool reached; /* what copies wait for; atomic */
} f;

static void begin(void)
{
	struct pfs_gpu_options o;

	pfs_gpu_options_init(&o);
	f = (struct fixture){.w = {.pool = {.page_limit = VALUES, .pages_per_value = 1}, .slots = VALUES}};
	world_planes(&f.w, LAYOUT_LAYER_FIRST, 2, 16, 2, 64, &d);
	world_make(&f.w, &d);
	tier.released = tier.aborted = tier.refusals = tier.early = 0;
	tier.under_way = false;
	assert_int_equal(gpu_open_with(&backend_lazy, &o, &f.gpu), 0);
	assert_int_equal(pfs_gpu_register(f.gpu, f.w.segment, f.w.segment_bytes, 1), 0);
	for (uint32_t i = 0; i < VALUES; i++) {
		f.pages[i] = i;
		f.offsets[i] = i * f.w.slot_bytes;
	}
	f.of_class = (struct pfs_gpu_pages){&f.w.pool, f.pages};
}

static void end(void)
{
	pfs_gpu_close(&f.gpu);
	assert_int_equal(tier.early, 0);
	assert_int_equal(lazy.registered, 0);
	world_free(&f.w);
}

/* Copies of one plan, which wait for f.reached. */
static void start(struct moves *m, bool get)
{
	__atomic_store_n(&f.reached, false, __ATOMIC_RELEASE);
	tier.under_way = true;
	assert_int_equal(moves_init(m, f.gpu, session, get), 0);
	m->plan = PLAN;
	assert_int_equal(moves_start(m, &f.of_class, f.w.segment, f.offsets, VALUES, &f.reached, 0), 0);
}

static void reach(void)
{
	tier.under_way = false; /* before the copies go on */
	__atomic_store_n(&f.reached, true, __ATOMIC_RELEASE);
}

/* ---- the caller is held up behind one of its unlocks ---- */

static _Thread_local uint32_t unlocks_left; /* until then; 0: never */

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

static bool any_plan_left(void)
{
	bool any;

	pthread_mutex_lock(&f.gpu->lock);
	any = f.gpu->aftermaths != NULL;
	__real_pthread_mutex_unlock(&f.gpu->lock);
	return any;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	int r = __real_pthread_mutex_unlock(mutex);

	if (unlocks_left && --unlocks_left == 0) {
		uint64_t until = work_now() + 100000000;

		reach();
		while (any_plan_left() && work_now() < until)
			sched_yield();
	}
	return r;
}

/* Wherever in moves_end the caller is held up until the plan was given back: it was left to others, and is not touched any more. */
static void a_plan_that_was_left_is_not_touched(void **state)
{
	struct moves m;

	for (uint32_t unlocks = 1; unlocks < 8; unlocks++) {
		begin();
		start(&m, unlocks % 2);
		assert_int_equal(moves_wait(&m, work_now() + 1000000, 0), -ETIMEDOUT);
		unlocks_left = unlocks;
		assert_int_equal(moves_end(&m, true), 0);
		unlocks_left = 0;
		reach();
		assert_int_equal(aftermaths_wait(f.gpu, session), 0);
		assert_int_equal(tier.released + tier.aborted, 1);
		end();
	}
}

static void *reach_main(void *context)
{
	for (uint64_t spins = (uintptr_t)context; spins > 0; spins--)
		sched_yield();
	reach();
	return NULL;
}

static void late_plans_are_given_back_once(void **state)
{
	struct moves m;

	for (int get = 0; get < 2; get++) {
		begin();
		start(&m, get);
		assert_int_equal(moves_wait(&m, work_now() + 1000000, 0), -ETIMEDOUT);
		assert_int_equal(moves_end(&m, true), 0);
		assert_int_equal(pfs_gpu_settle(f.gpu, session, 1), -ETIMEDOUT);
		assert_int_equal(tier.released + tier.aborted, 0);
		reach();
		assert_int_equal(pfs_gpu_settle(f.gpu, session, 0), 0);
		assert_int_equal(aftermaths_wait(f.gpu, session), 0);
		assert_int_equal(tier.released, get);
		assert_int_equal(tier.aborted, !get);
		end();
	}
}

/* The copies end while the caller leaves the plan to them. */
static void copies_end_while_their_plan_is_left(void **state)
{
	struct moves m;

	begin();
	for (unsigned i = 0; i < ROUNDS; i++) {
		pthread_t thread;

		start(&m, i % 2);
		assert_int_equal(pthread_create(&thread, NULL, reach_main, (void *)(uintptr_t)dice(&d, 20)), 0);
		moves_wait(&m, work_now() + dice(&d, 20) * 1000, 0);
		assert_int_equal(moves_end(&m, true), 0);
		pthread_join(thread, NULL);
		assert_int_equal(aftermaths_wait(f.gpu, session), 0);
		assert_int_equal(tier.released + tier.aborted, i + 1);
	}
	end();
}

/* A daemon that cannot be asked is asked again, also where the caller was in time; what else it says is its last word. */
static void a_plan_is_given_back_until_the_daemon_was_asked(void **state)
{
	static const int refusals[] = {-EBUSY, -ENOBUFS};
	struct moves m;

	for (unsigned turn = 0; turn < 8; turn++) {
		bool get = turn % 2, late = turn / 2 % 2;

		begin();
		tier.refusal = refusals[turn / 4];
		tier.refusals = 3;
		start(&m, get);
		if (!late)
			reach();
		assert_int_equal(moves_wait(&m, work_now() + (late ? 1000000 : 60000000000), 0), late ? -ETIMEDOUT : 0);
		assert_int_equal(moves_end(&m, true), 0);
		reach();
		assert_int_equal(aftermaths_wait(f.gpu, session), 0);
		assert_int_equal(tier.refusals, 0);
		assert_int_equal(tier.released, get);
		assert_int_equal(tier.aborted, !get);
		end();
	}
	begin();
	tier.refusal = -ENOENT;
	tier.refusals = 2;
	start(&m, true);
	reach();
	assert_int_equal(moves_wait(&m, work_now() + 60000000000, 0), 0);
	assert_int_equal(moves_end(&m, true), -ENOENT);
	assert_int_equal(aftermaths_wait(f.gpu, session), 0);
	assert_int_equal(tier.refusals, 1);
	end();
}

/* Where nobody can tell any more what the device does, plans are the daemon's, who waits for the process's end. */
static int cannot_tell(struct backend *b, struct gpu_event *event)
{
	lazy_event_finish(b, event);
	return gpu_say(ECANCELED, "the driver has ended");
}

static void what_cannot_be_asked_keeps_its_plans(void **state)
{
	struct backend_ops ops = backend_lazy;
	struct moves m;

	ops.event_finish = cannot_tell;
	begin();
	f.gpu->backend->ops = &ops;
	for (uint32_t i = 0; i < 2; i++) {
		int r = moves_init(&m, f.gpu, session, i);

		assert_int_equal(r, 0);
		m.plan = PLAN;
		f.reached = true;
		r = moves_start(&m, &f.of_class, f.w.segment, f.offsets, VALUES, &f.reached, 0);
		assert_int_equal(r, i ? -EIO : 0); /* lost by then */
		assert_int_equal(moves_wait(&m, work_now() + 60000000000, r), -EIO);
		assert_non_null(strstr(gpu_said(), "the driver has ended"));
		assert_int_equal(moves_end(&m, true), 0);
	}
	assert_int_equal(aftermaths_wait(f.gpu, session), 0);
	end();
	assert_int_equal(tier.released + tier.aborted, 0);
}

/* Closing the device does not wait for a daemon that takes nothing back. */
static void a_device_is_closed_over_a_daemon_that_cannot_be_asked(void **state)
{
	struct moves m[3];

	begin();
	tier.refusal = -EBUSY;
	tier.refusals = UINT32_MAX;
	for (uint32_t i = 0; i < 3; i++)
		start(&m[i], i % 2);
	reach();
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(moves_wait(&m[i], work_now() + 60000000000, 0), 0);
		assert_int_equal(moves_end(&m[i], true), 0);
	}
	end();
	assert_int_equal(tier.released + tier.aborted, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_plans_are_given_back_once),
		cmocka_unit_test(a_plan_that_was_left_is_not_touched),
		cmocka_unit_test(copies_end_while_their_plan_is_left),
		cmocka_unit_test(a_plan_is_given_back_until_the_daemon_was_asked),
		cmocka_unit_test(what_cannot_be_asked_keeps_its_plans),
		cmocka_unit_test(a_device_is_closed_over_a_daemon_that_cannot_be_asked),
	};
	const char *seed = getenv("SEED");

	d.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("SEED=%llu\n", (unsigned long long)d.state);
	lazy.dice.state = d.state ^ 0x9e3779b97f4a7c15ull;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
