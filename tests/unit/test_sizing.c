/* SPDX-License-Identifier: Apache-2.0
 *
 * How many slots a budget is: the examples of docs/ranks-and-classes.md, what holds of every plan, limits.
 *
 *	test_sizing [seed]
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/base/sizing.h"

static uint64_t seed;

static uint64_t roll(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed >> 20) % n;
}

static struct sizing qwen(uint64_t budget)
{
	return (struct sizing){
		.page_tokens = 64,
		.context = 8192,
		.interval = 8192,
		.budget = budget,
		.classes = 2,
		.class = {{.kind = SIZING_DENSE, .every_tokens = 64, .share_bytes = 4194304},
			{.kind = SIZING_STATE, .share_bytes = 153944064}},
	};
}

static void test_example(void **state)
{
	struct sizing s = qwen(1ull << 30), small = qwen(800ull << 20);

	(void)state;
	assert_int_equal(sizing_plan(&s), 0);
	assert_int_equal(s.class[0].request, 128);
	assert_int_equal(s.class[1].request, 2);
	assert_int_equal(s.request_bytes, 844759040);
	assert_int_equal(s.requests, 1);
	assert_int_equal(s.class[0].slots, 182);
	assert_int_equal(s.class[1].slots, 2);
	assert_int_equal(s.left_bytes, 2490368);
	assert_int_equal(sizing_plan(&small), -ENOSPC);
	assert_int_equal(small.short_class, 1);
	assert_int_equal(small.request_bytes, 844759040);
	assert_int_equal(small.requests, 0);
	/* The least budget that would do does. */
	small.budget = small.request_bytes;
	assert_int_equal(sizing_plan(&small), 0);
	assert_int_equal(small.requests, 1);
	assert_int_equal(small.left_bytes, 0);
}

/* States are counted last, whatever their place; a window is no longer than the request; without a ladder there is one row. */
static void test_order(void **state)
{
	struct sizing s = {
		.page_tokens = 16,
		.context = 100,
		.budget = 1000,
		.classes = 3,
		.class = {{.kind = SIZING_STATE, .share_bytes = 900},
			{.kind = SIZING_WINDOW, .every_tokens = 16, .values = 9, .share_bytes = 10},
			{.kind = SIZING_DENSE, .every_tokens = 32, .share_bytes = 40}},
	};

	(void)state;
	assert_int_equal(sizing_plan(&s), -ENOSPC);
	assert_int_equal(s.request_bytes, 70 + 160 + 900);
	assert_int_equal(s.short_class, 0);
	s.budget = 69;
	assert_int_equal(sizing_plan(&s), -ENOSPC);
	assert_int_equal(s.short_class, 1);
	s.budget = 229;
	assert_int_equal(sizing_plan(&s), -ENOSPC);
	assert_int_equal(s.short_class, 2);
	s.budget = 1130 + 79;
	assert_int_equal(sizing_plan(&s), 0);
	assert_int_equal(s.class[0].slots, 1);
	assert_int_equal(s.class[1].slots, 7);
	assert_int_equal(s.class[2].slots, 5);
	assert_int_equal(s.left_bytes, 39);
	s.interval = 50;
	assert_int_equal(sizing_plan(&s), -ENOSPC);
	assert_int_equal(s.class[0].request, 3);
}

/* No slot takes more than there is, and what is left is less than the dense classes' next period. */
static void test_sums(void **state)
{
	(void)state;
	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	for (unsigned i = 0; i < 20000; i++) {
		struct sizing s = {
			.page_tokens = 16,
			.context = 1 + roll(100000),
			.interval = roll(2) * 16 * (1 + roll(1000)),
			.budget = roll(1ull << (20 + roll(20))),
			.classes = 1 + (uint32_t)roll(SIZING_MAX_CLASSES),
		};
		uint64_t used = 0, period = 0;

		for (uint32_t c = 0; c < s.classes; c++)
			s.class[c] = (struct sizing_class){
				.kind = (enum sizing_kind)roll(3),
				.every_tokens = 16ull << roll(3),
				.values = 1 + roll(100),
				.share_bytes = 4096 * (1 + roll(16)),
			};
		int r = sizing_plan(&s);

		assert_int_equal(r, s.requests ? 0 : -ENOSPC);
		assert_int_equal(s.requests, s.budget / s.request_bytes);
		for (uint32_t c = 0; c < s.classes; c++) {
			struct sizing_class *k = &s.class[c];

			used += k->slots * k->share_bytes;
			assert_true(k->slots >= s.requests * k->request);
			if (k->kind == SIZING_DENSE)
				period += 64 / k->every_tokens * k->share_bytes; /* 64: of which all are divisors */
			else
				assert_int_equal(k->slots, s.requests * k->request);
		}
		assert_int_equal(used + s.left_bytes, s.budget);
		assert_true(r || !period || s.left_bytes < period);
		assert_true(!r || s.short_class < s.classes);
	}
}

static void test_overflow(void **state)
{
	struct sizing s = qwen(UINT64_MAX);

	(void)state;
	s.class[0].share_bytes = 1ull << 57;
	assert_int_equal(sizing_plan(&s), -EOVERFLOW);
	s = qwen(1ull << 40);
	s.context = UINT64_MAX;
	assert_int_equal(sizing_plan(&s), -EOVERFLOW);
	/* A period that no budget could have: what is left stays free. */
	s = qwen(1ull << 40);
	s.classes = 3;
	s.class[0].every_tokens = (1ull << 61) - 1;
	s.class[2] = (struct sizing_class){.kind = SIZING_DENSE, .every_tokens = 1ull << 40, .share_bytes = 4096};
	assert_int_equal(sizing_plan(&s), 0);
	assert_int_equal(s.class[2].slots, s.requests);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_example),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_sums),
		cmocka_unit_test(test_overflow),
	};

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u + 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
