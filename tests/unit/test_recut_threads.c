/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants that move while threads put and get in two namespaces and sessions come and go: what is read is what was put, and
 * the budget holds. The thread sanitizer runs this too.
 */
#include "tests/unit/recut_world.h"

#include <pthread.h>
#include <unistd.h>

#define BUDGET (16 * MIB)
#define PHASE_PUTS 1500u /* then the first namespace turns from pages to rows or back */
#define RUN_NS 20000000000ull /* at most; some moves are enough */
#define MOVES 4u

static struct fixture first, second;
static _Atomic bool over;
static _Atomic uint64_t first_puts;

struct worker {
	pthread_t thread;
	struct fixture *f;
	uint32_t number;
	bool leaves; /* attaches anew, now and then */
	uint64_t hits, puts;
};

static void work_once(struct worker *w, struct session *s, uint64_t n)
{
	bool rows = w->f == &first && atomic_load(&first_puts) / PHASE_PUTS % 2;
	uint64_t chain = 1 + (w->number % 2) * 1000 + n * 7 % (w->f == &first ? 60 : 30);

	if (rows) {
		if (load_row(s, 100000 + n * 11 % 700, 1))
			w->hits++;
		else
			w->puts += keep_row(s, 100000 + n * 11 % 700, 1);
		return;
	}
	uint32_t hits = load_pages(s, chain, 24);

	w->hits += hits;
	if (hits < 24)
		w->puts += keep_pages(s, chain, 0, 24);
}

static void *work(void *context)
{
	struct worker *w = context;
	struct session *s = fixture_session(w->f, 0);

	for (uint64_t n = 0; !atomic_load(&over); n++) {
		uint64_t before = w->puts;

		work_once(w, s, n);
		if (w->f == &first)
			atomic_fetch_add(&first_puts, w->puts - before + 1);
		if (n % 8 == 7)
			acknowledge(s);
		if (w->leaves && n % 300 == 299) {
			session_release(s);
			host_process_gone(first.host, session_number(s));
			session_unref(&s);
			s = fixture_session(w->f, 0);
		}
	}
	session_release(s);
	host_process_gone(first.host, session_number(s));
	session_unref(&s);
	return NULL;
}

static void grants_move_under_load(void **state)
{
	struct worker workers[4] = {
		{ .f = &first, .number = 0 }, { .f = &first, .number = 1 },
		{ .f = &second, .number = 2, .leaves = true }, { .f = &second, .number = 3, .leaves = true },
	};
	struct why why = WHY_INIT;
	uint64_t until_ns;

	(void)state;
	fixture_open(&first, CLASS_KV "," CLASS_STATE, 1, BUDGET, 10 * MIB, NULL);
	second = another_space(&first, "second", CLASS_IX, 4 * MIB, &why);
	assert_non_null(second.space);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	for (until_ns = clock_now_ns() + RUN_NS; clock_now_ns() < until_ns; usleep(50000)) {
		struct host_report r;

		host_report(first.host, &r);
		assert_true(r.granted_bytes <= BUDGET);
		check_all(&first);
		check_all(&second);
		if (fixture_report(&first).stats.grants_recut >= MOVES)
			break;
	}
	atomic_store(&over, true);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
		printf("worker %u: %llu hits, %llu puts\n", i, (unsigned long long)workers[i].hits,
		       (unsigned long long)workers[i].puts);
		assert_true(workers[i].puts > 0);
	}
	settle(first.host);
	assert_true(fixture_report(&first).stats.grants_recut > 0);
	printf("%llu grants recut, %llu returned\n", (unsigned long long)fixture_report(&first).stats.grants_recut,
	       (unsigned long long)(fixture_report(&first).stats.grants_returned + fixture_report(&second).stats.grants_returned));
	assert_at_base(&first, 0);
	assert_at_base(&second, 0);
	assert_rebuilt(&first);
	assert_rebuilt(&second);
	space_unref(&second.space);
	fixture_close(&first);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(grants_move_under_load) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
