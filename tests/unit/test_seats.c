/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats and words: what they say, and what a successor reads of them after every single store.
 *
 *	test_seats [seed [operations]]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "index/seats.h"
#include "store/base/clock.h"
#include "tests/unit/index_world.h"
#include "tests/unit/stores_step.h"

#define SLOTS 128u

static const uint8_t some_id[16] = {1, 2, 3};

static struct tables tables;
static size_t bytes;

static void start(void)
{
	static const uint8_t identity[32] = {1}, fingerprint[16] = {2};
	struct tables_config config = {.grants = 1, .records = 1, .groups = 1, .entries = 128, .slots = SLOTS,
		.identity = identity, .fingerprint = fingerprint};
	void *memory;

	bytes = tables_bytes(&config);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	tables_format(&tables, memory, &config);
}

static void end(void)
{
	munmap(tables.header, bytes);
}

/* ---- one situation a test -------------------------------------------------------------------------------------- */

static void test_a_life(void **state)
{
	(void)state;
	start();
	assert_int_equal(seats_state(&tables, 0), SEAT_FREE);
	assert_int_equal(seats_take(&tables, some_id, 7, 8, 9), 0);
	assert_int_equal(seats_state(&tables, 0), SEAT_TAKEN);
	assert_memory_equal(tables.seats[0].client_id, some_id, 16);
	assert_int_equal(tables.seats[0].session, 7);
	assert_int_equal(tables.seats[0].handle, 8);
	assert_int_equal(tables.seats[0].process, 9);
	assert_int_equal(seats_take(&tables, some_id, 10, 0, 0), 1);
	seats_use(&tables, 5, 0);
	seats_use(&tables, 5, 1);
	seats_use(&tables, 6, 0);
	assert_int_equal(tables.users[5], 3);
	assert_int_equal(tables.users[6], 1);
	seats_leave(&tables, 0);
	assert_int_equal(seats_state(&tables, 0), SEAT_LEAVING);
	assert_int_equal(seats_take(&tables, some_id, 11, 0, 0), 2); /* not the one that is being left */
	seats_sweep(&tables, 0, 0, 6);
	assert_int_equal(tables.users[5], 2);
	assert_int_equal(tables.users[6], 1);
	seats_sweep(&tables, 0, 6, SLOTS - 6);
	assert_int_equal(tables.users[6], 0);
	seats_free(&tables, 0);
	assert_int_equal(seats_take(&tables, some_id, 12, 0, 0), 0);
	assert_int_equal(tables.seats[0].session, 12);
	seats_clear(&tables, 5);
	assert_int_equal(tables.users[5], 0);
	end();
}

static void test_the_crowd(void **state)
{
	(void)state;
	start();
	for (uint32_t i = 0; i < SEATS_CROWD; i++)
		assert_int_equal(seats_take(&tables, some_id, i + 1, 0, 0), i);
	assert_int_equal(seats_state(&tables, SEATS_CROWD), SEAT_FREE);
	assert_int_equal(seats_take(&tables, some_id, 100, 1, 2), SEATS_CROWD);
	assert_int_equal(seats_take(&tables, some_id, 101, 1, 2), SEATS_CROWD);
	assert_int_equal(seats_state(&tables, SEATS_CROWD), SEAT_TAKEN);
	assert_int_equal(tables.seats[SEATS_CROWD].session, 0);
	seats_use(&tables, 3, SEATS_CROWD);
	assert_true(tables.users[3] == 1ull << 63);
	seats_leave(&tables, SEATS_CROWD);
	assert_int_equal(seats_take(&tables, some_id, 102, 1, 2), SEATS_NONE);
	seats_sweep(&tables, SEATS_CROWD, 0, SLOTS);
	seats_free(&tables, SEATS_CROWD);
	assert_int_equal(seats_take(&tables, some_id, 102, 1, 2), SEATS_CROWD);
	end();
}

static void test_damage(void **state)
{
	(void)state;
	start();
	assert_int_equal(seats_take(&tables, some_id, 7, 8, 9), 0);
	for (unsigned i = 0; i < offsetof(struct seat, unused); i++) {
		bool counts = i <= offsetof(struct seat, state) || i >= offsetof(struct seat, check);

		if (i > offsetof(struct seat, state) && i < offsetof(struct seat, reserved))
			continue; /* the rest of the state */
		((uint8_t *)&tables.seats[0])[i] ^= 0x10;
		assert_int_equal(seats_state(&tables, 0), counts ? SEAT_FREE : SEAT_TAKEN);
		((uint8_t *)&tables.seats[0])[i] ^= 0x10;
	}
	tables.seats[1] = tables.seats[0]; /* at another number */
	assert_int_equal(seats_state(&tables, 1), SEAT_FREE);
	tables.seats[1].state = SEAT_LEAVING;
	assert_int_equal(seats_take(&tables, some_id, 1, 2, 3), 1);
	assert_int_equal(seats_state(&tables, 1), SEAT_TAKEN);
	end();
}

/* ---- every store ----------------------------------------------------------------------------------------------- */

static uint64_t given_seed;
static uint32_t given_steps = 2000;

struct said {
	enum seat_state state[SEATS];
	uint64_t session[SEATS];
	uint64_t users[SLOTS];
};

static void hear(const struct tables *of, struct said *ret)
{
	for (uint32_t n = 0; n < SEATS; n++) {
		ret->state[n] = seats_state(of, n);
		ret->session[n] = ret->state[n] == SEAT_FREE ? 0 : of->seats[n].session;
	}
	memcpy(ret->users, of->users, sizeof(ret->users));
}

/* Each word and each seat is as it was or as it will be, with its session; and no word has the bit of a seat that is free. */
static void judge(const struct said *before, const struct said *after)
{
	for (uint32_t i = 0; i < snapshot_count; i++) {
		struct tables there;
		struct said now;
		struct why why = WHY_INIT;

		assert_int_equal(tables_open(&there, snapshots + i * bytes, bytes, &why), 0);
		hear(&there, &now);
		for (uint32_t n = 0; n < SEATS; n++) {
			bool old = now.state[n] == before->state[n] && now.session[n] == before->session[n];

			assert_true(old || (now.state[n] == after->state[n] && now.session[n] == after->session[n]));
		}
		for (uint32_t s = 0; s < SLOTS; s++)
			for (uint64_t bits = now.users[s]; bits; bits &= bits - 1)
				assert_int_not_equal(now.state[__builtin_ctzll(bits)], SEAT_FREE);
		for (uint32_t s = 0; s < SLOTS; s++)
			assert_true(now.users[s] == before->users[s] || now.users[s] == after->users[s]);
	}
}

static void operate(uint64_t *seed, uint64_t session)
{
	uint32_t number = roll_to(seed, SEATS), slot = roll_to(seed, SLOTS);

	switch (roll_to(seed, 5)) {
	case 0:
		seats_take(&tables, some_id, session, session + 1, session + 2);
		break;
	case 1:
		seats_clear(&tables, slot);
		break;
	case 2:
		if (seats_state(&tables, number) == SEAT_TAKEN)
			seats_leave(&tables, number);
		break;
	case 3:
		if (seats_state(&tables, number) == SEAT_LEAVING) {
			seats_sweep(&tables, number, 0, SLOTS);
			seats_free(&tables, number);
		}
		break;
	default:
		if (seats_state(&tables, number) == SEAT_TAKEN)
			seats_use(&tables, slot, number);
	}
}

static void test_every_store(void **state)
{
	static struct said before, after;
	uint64_t seed = given_seed * 2 + 1, stores = 0;

	(void)state;
	if (!CAN_STEP) /* the sanitizers see the other tests */
		return;
	fprintf(stderr, "seed %llu\n", (unsigned long long)given_seed);
	start();
	step_init(tables.header, bytes);
	for (uint32_t i = 0; i < given_steps; i++) {
		hear(&tables, &before);
		step_begin();
		operate(&seed, i + 1);
		step_end();
		hear(&tables, &after);
		judge(&before, &after);
		stores += snapshot_count;
	}
	assert_true(stores > given_steps / 4);
	fprintf(stderr, "  %llu stores\n", (unsigned long long)stores);
	step_deinit();
	end();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_life),
		cmocka_unit_test(test_the_crowd),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_every_store),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	if (argc > 2)
		given_steps = (uint32_t)strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
