/* SPDX-License-Identifier: Apache-2.0
 *
 * Demands: each way of each, their sum after every call, what makes place when there is none.
 *
 *	test_demands [seed]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "index/demands.h"
#include "store/base/clock.h"

static struct lock guard;
static struct demands *demands;
static uint64_t seed;

static struct key key_of(uint64_t number)
{
	return (struct key){.words = {number, number * 3, number * 5, number * 7}};
}

/* A few buckets for many keys. */
static uint64_t hash_of(uint64_t number)
{
	return (number % 37) * 0x9e3779b97f4a7c15ull;
}

#define CALL(what, number, ...)                                                              \
	do {                                                                                 \
		struct key key = key_of(number);                                             \
		demands_##what(demands, &key, hash_of(number) __VA_OPT__(, ) __VA_ARGS__);   \
		check_sum();                                                                 \
	} while (0)

static void check_sum(void)
{
	const struct demands_counters *c = demands_counters(demands);

	assert_int_equal(c->demands_recorded, c->open + c->taking + c->kept_now + c->demands_dropped + c->demands_evicted);
	assert_int_equal(c->demands_kept, c->kept_now + c->demands_evicted);
	assert_int_equal(demands_any(demands), c->open + c->taking + c->kept_now > 0);
}

static bool has(uint64_t number)
{
	struct key key = key_of(number);

	return demands_has(demands, &key, hash_of(number));
}

static int begin(void **state)
{
	struct why why = WHY_INIT;

	(void)state;
	lock_init(&guard, LOCK_SPACE);
	lock_take(&guard);
	return demands_new(&guard, &demands, &why);
}

static int end(void **state)
{
	(void)state;
	demands_free(&demands);
	lock_drop(&guard);
	lock_destroy(&guard);
	return demands != NULL;
}

static void test_life(void **state)
{
	const struct demands_counters *c = demands_counters(demands);

	(void)state;
	assert_false(demands_any(demands));
	CALL(taking, 1); /* nobody asked for it */
	CALL(kept, 1);
	CALL(gone, 1, true);
	assert_int_equal(c->demands_recorded, 0);
	CALL(record, 1, 64);
	CALL(record, 1, 64);
	assert_true(has(1) && !has(2));
	assert_int_equal(c->demands_recorded, 1);
	assert_int_equal(c->demands_repeated, 1);
	CALL(gone, 1, true); /* of somebody else's: it stands */
	assert_int_equal(c->open, 1);
	CALL(taking, 1);
	CALL(taking, 1); /* a value of another share */
	assert_int_equal(c->demands_acted, 1);
	assert_int_equal(c->taking, 1);
	CALL(gone, 1, false); /* others are being put */
	assert_int_equal(c->taking, 1);
	CALL(kept, 1);
	CALL(kept, 1);
	CALL(taking, 1);
	CALL(record, 1, 64);
	assert_int_equal(c->demands_kept, 1);
	assert_int_equal(c->kept_now, 1);
	assert_int_equal(c->demands_repeated, 2);
	CALL(gone, 1, false); /* not complete any more */
	assert_int_equal(c->demands_evicted, 1);
	assert_false(has(1));
	CALL(record, 1, 64);
	CALL(taking, 1);
	CALL(gone, 1, true);
	assert_int_equal(c->demands_dropped, 1);
	CALL(record, 2, 64);
	CALL(kept, 2); /* its row was being put when it was asked for */
	assert_int_equal(c->demands_acted, 2);
	assert_int_equal(c->demands_kept, 2);
	CALL(record, 3, 64);
	CALL(record, 4, 64);
	CALL(taking, 4);
	demands_reset(demands);
	check_sum();
	assert_int_equal(c->demands_dropped, 3);
	assert_int_equal(c->demands_evicted, 2);
	assert_false(demands_any(demands) || has(2) || has(3) || has(4));
	CALL(record, 3, 64);
	assert_true(has(3));
}

static void test_full(void **state)
{
	const struct demands_counters *c = demands_counters(demands);

	(void)state;
	for (uint64_t n = 0; n < DEMANDS_MAX; n++)
		CALL(record, n, 64);
	CALL(record, 0, 64); /* asked for again: 1 is the oldest now */
	CALL(record, DEMANDS_MAX, 64);
	assert_true(has(0) && !has(1) && has(DEMANDS_MAX));
	assert_int_equal(c->demands_dropped, 1);
	CALL(taking, 2);
	CALL(record, DEMANDS_MAX + 1, 64);
	assert_true(has(2) && !has(3));
	/* Without an open one a new one is not remembered. */
	for (uint64_t n = 0; n < DEMANDS_MAX + 2; n++)
		CALL(taking, n);
	assert_int_equal(c->open, 0);
	assert_int_equal(c->taking, DEMANDS_MAX);
	CALL(record, 9999, 64);
	assert_false(has(9999));
	assert_int_equal(c->demands_dropped, 3);
	CALL(gone, 2, true);
	CALL(record, 9999, 64);
	assert_true(has(9999));
}

/* Against states in an array. */
static void test_random(void **state)
{
	enum { KEYS = 200, GONE = 0, OPEN, TAKING, KEPT };
	uint8_t is[KEYS] = {0};

	(void)state;
	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	for (unsigned i = 0; i < 200000; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		uint32_t n = (uint32_t)(seed >> 33) % KEYS;
		bool empty = seed & 1;

		switch (seed >> 20 & 3) {
		case 0:
			CALL(record, n, 64);
			is[n] = is[n] ? is[n] : OPEN;
			break;
		case 1:
			CALL(taking, n);
			is[n] = is[n] == OPEN ? TAKING : is[n];
			break;
		case 2:
			CALL(kept, n);
			is[n] = is[n] ? KEPT : GONE;
			break;
		case 3:
			CALL(gone, n, empty);
			is[n] = is[n] == KEPT || (is[n] == TAKING && empty) ? GONE : is[n];
			break;
		}
		assert_int_equal(has(n), is[n] != GONE);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_life, begin, end),
		cmocka_unit_test_setup_teardown(test_full, begin, end),
		cmocka_unit_test_setup_teardown(test_random, begin, end),
	};

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u + 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
