/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs of a rate and its reference, when the host is quiet, when it is not for a while, and when it never is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tools/bench_gpu.h"

/* References one after the other, the last one again and again. */
struct script {
	const double *list;
	uint32_t count, at, asked;
};

static int next(void *context, double *gbps)
{
	struct script *s = context;

	*gbps = s->list[s->at < s->count - 1 ? s->at++ : s->at];
	s->asked++;
	return 0;
}

static int half_of_now(void *context, double *gbps)
{
	const struct script *s = context;

	*gbps = s->list[s->at ? s->at - 1 : 0] / 2;
	return 0;
}

static int broken(void *context, double *gbps)
{
	return 1;
}

static struct bench_paired run(struct script *s, double *best)
{
	struct bench_paired got;

	assert_int_equal(bench_pairs(best, next, s, half_of_now, s, &got), 0);
	return got;
}

static void quiet(void **state)
{
	const double list[] = {50, 51, 50};
	struct script s = {list, 3, 0, 0};
	double best = 0;
	struct bench_paired got = run(&s, &best);

	assert_int_equal(got.disturbed, 0);
	assert_int_equal(s.asked, BENCH_GPU_TURNS + 1); /* one reference ends a pair and begins the next */
	assert_true(got.ratio > 0.48 && got.ratio < 0.52);
	assert_true(best > 50.9 && best < 51.1);
}

static void disturbed_for_a_while(void **state)
{
	const double list[] = {50, 50, 40, 40, 50, 50};
	struct script s = {list, 6, 0, 0};
	double best = 0;
	struct bench_paired got = run(&s, &best);

	assert_int_equal(got.disturbed, 3); /* into it, in it, out of it */
	assert_true(got.reference > 49.9);
}

/* Evenly slow, but the run has seen better: told, and bounded. */
static void never_quiet(void **state)
{
	const double list[] = {42, 42};
	struct script s = {list, 2, 0, 0};
	double best = 55;
	struct bench_paired got = run(&s, &best);

	assert_int_equal(got.disturbed, BENCH_GPU_TURNS);
	assert_int_equal(s.asked, 2 * BENCH_GPU_TURNS + 1);
	assert_true(got.ratio > 0.49 && got.ratio < 0.51);
}

static void failures(void **state)
{
	const double list[] = {50, 50};
	struct script s = {list, 2, 0, 0};
	struct bench_paired got;
	double best = 0;

	assert_int_equal(bench_pairs(&best, broken, NULL, next, &s, &got), 1);
	assert_int_equal(bench_pairs(&best, next, &s, broken, NULL, &got), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quiet),
		cmocka_unit_test(disturbed_for_a_while),
		cmocka_unit_test(never_quiet),
		cmocka_unit_test(failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
