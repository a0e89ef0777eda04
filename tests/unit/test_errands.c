/* SPDX-License-Identifier: Apache-2.0
 *
 * Drains and checks in threads of their own: joined, remembered, stopped. The store's part is made up here (linked with
 * --wrap): a drain goes on while it is told to, a check has so many files.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "fs/calls.h"
#include "fs/errands.h"
#include "store/base/clock.h"

#define SECOND 1000000000ull
#define PATIENCE_NS (10 * SECOND)

static _Atomic bool finish;  /* drains end well */
static _Atomic bool refuse;  /* drains fail */
static _Atomic int drains;   /* begun */
static _Atomic int unwanted; /* that were told to stop */
static _Atomic uint32_t files; /* of a check */

int __wrap_host_drain(struct host *host, struct space *space, enum host_drain how, uint64_t deadline_ns,
	bool (*progress)(void *context, uint64_t done, uint64_t goal), void *context, uint64_t *left, struct why *why);
int __wrap_space_check_step(struct space *space, struct space_check *check, struct why *why);

int __wrap_host_drain(struct host *host, struct space *space, enum host_drain how, uint64_t deadline_ns,
	bool (*progress)(void *context, uint64_t done, uint64_t goal), void *context, uint64_t *left, struct why *why)
{
	uint64_t done = 0;

	atomic_fetch_add(&drains, 1);
	*left = 77;
	if (atomic_load(&refuse))
		return why_set(why, EIO, "the disk tier is closed");
	while (!atomic_load(&finish)) {
		if (!progress(context, ++done, 1000)) {
			atomic_fetch_add(&unwanted, 1);
			return why_set(why, EINTR, "stopped");
		}
		usleep(1000);
	}
	*left = 0;
	return 0;
}

int __wrap_space_check_step(struct space *space, struct space_check *check, struct why *why)
{
	check->files_in_all = atomic_load(&files);
	check->files++;
	check->values += 2;
	return check->files < check->files_in_all;
}

struct world {
	struct fixture f;
	struct fs fs;
	struct errands *errands;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	atomic_store(&finish, false);
	atomic_store(&refuse, false);
	atomic_store(&drains, 0);
	atomic_store(&unwanted, 0);
	fixture_open(&w->f, CLASS_KV, 1, 64ull << 20, 16ull << 20, NULL);
	w->fs.host = w->f.host;
	w->fs.calls = calls_new(&w->fs);
	w->errands = errands_new(&w->fs);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	errands_stop(w->errands);
	errands_free(&w->errands);
	calls_free(&w->fs.calls);
	fixture_close(&w->f);
	free(w);
	return 0;
}

/* The state once it has ended; it is woken by the namespace's change, as a request is. */
static struct errand_state wait_for_end(struct world *w, uint64_t number)
{
	uint64_t until = clock_now_ns() + PATIENCE_NS;
	struct errand_state state;
	struct why why = WHY_INIT;

	do {
		assert_int_equal(errands_look(w->errands, w->f.space, number, 0, &state, &why), 0);
		assert_true(clock_now_ns() < until);
		usleep(500);
	} while (state.running);
	return state;
}

static uint64_t ask(struct world *w, enum errand_kind kind, uint64_t until_ns)
{
	struct why why = WHY_INIT;
	uint64_t number = 0;

	assert_int_equal(errands_ask(w->errands, w->f.space, kind, until_ns, &number, &why), 0);
	assert_true(number > 0);
	return number;
}

static void test_who_asks_joins(void **state)
{
	struct world *w = *state;
	uint64_t far = clock_now_ns() + PATIENCE_NS;
	uint64_t first = ask(w, ERRAND_DRAIN, far);
	uint32_t change = calls_change(w->fs.calls, space_serial(w->f.space));

	assert_int_equal(ask(w, ERRAND_DRAIN, far), first);
	assert_int_equal(ask(w, ERRAND_DRAIN_NEWEST, far), first);
	atomic_store(&files, 3);
	uint64_t check = ask(w, ERRAND_CHECK, far);
	assert_int_not_equal(check, first);
	struct errand_state end = wait_for_end(w, check);
	assert_int_equal(end.why.error, 0);
	assert_int_equal(end.check.files, 3);
	assert_int_equal(end.check.values, 6);
	atomic_store(&finish, true);
	end = wait_for_end(w, first);
	assert_int_equal(end.why.error, 0);
	assert_int_equal(end.left, 0);
	assert_int_equal(end.done, end.goal);
	assert_int_equal(atomic_load(&drains), 1);
	assert_int_not_equal(calls_change(w->fs.calls, space_serial(w->f.space)), change);
	/* The next one is another. */
	assert_true(ask(w, ERRAND_DRAIN, far) > check);
	assert_int_equal(errands_look(w->errands, w->f.space, first, 0, &end, NULL), 0);
}

static void test_failure_is_told(void **state)
{
	struct world *w = *state;

	atomic_store(&refuse, true);
	struct errand_state end = wait_for_end(w, ask(w, ERRAND_DRAIN, clock_now_ns() + PATIENCE_NS));
	assert_int_equal(end.why.error, EIO);
	assert_string_equal(end.why.text, "the disk tier is closed");
	assert_int_equal(end.left, 77);
}

/* Nobody has asked for ERRANDS_IDLE_NS longer than who asked last. */
static void test_ends_when_nobody_wants_it(void **state)
{
	struct world *w = *state;
	struct errand_state end = wait_for_end(w, ask(w, ERRAND_DRAIN, clock_now_ns() - ERRANDS_IDLE_NS));

	assert_int_equal(end.why.error, EINTR);
	assert_int_equal(atomic_load(&unwanted), 1);
}

static void test_places_and_numbers(void **state)
{
	struct world *w = *state;
	struct errand_state end;
	struct why why = WHY_INIT;
	uint64_t first = 0, last = 0, far = clock_now_ns() + PATIENCE_NS;

	atomic_store(&files, 1);
	for (unsigned i = 0; i <= ERRANDS_MAX; i++) {
		last = ask(w, ERRAND_CHECK, far);
		first = first ? first : last;
		wait_for_end(w, last);
	}
	assert_int_equal(last, first + ERRANDS_MAX);
	assert_int_equal(errands_look(w->errands, w->f.space, first, 0, &end, &why), -ENOENT);
	assert_string_equal(why.text, "number 1 is none of this namespace's, or forgotten");
	assert_int_equal(errands_look(w->errands, w->f.space, first + 1, 0, &end, &why), 0);
	assert_int_equal(errands_look(w->errands, w->f.space, 0, 0, &end, &why), -ENOENT);
}

static void test_the_end_stops_all(void **state)
{
	struct world *w = *state;
	struct why why = WHY_INIT;
	uint64_t number = ask(w, ERRAND_DRAIN, clock_now_ns() + PATIENCE_NS), other;

	errands_stop(w->errands);
	struct errand_state end = wait_for_end(w, number);
	assert_int_equal(end.why.error, EINTR);
	assert_int_equal(errands_ask(w->errands, w->f.space, ERRAND_DRAIN, 0, &other, &why), -ENODEV);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_who_asks_joins, setup, teardown),
		cmocka_unit_test_setup_teardown(test_failure_is_told, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ends_when_nobody_wants_it, setup, teardown),
		cmocka_unit_test_setup_teardown(test_places_and_numbers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_end_stops_all, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
