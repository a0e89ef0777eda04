/* SPDX-License-Identifier: Apache-2.0
 *
 * Transfers over memory and disk against one another, against puts, eviction, the mount's reads and what pushes values out of memory.
 * Every byte that is delivered is compared. Random; prints its seed.
 */
#include "tests/unit/tier_world.h"

#include <errno.h>

#define CHAINS 12u
#define PAGES 160u /* of each: together twice the memory */
#define ROUNDS 60u
#define GETTERS 3u

static struct tier_world world;
static _Atomic bool over;
static _Atomic unsigned delivered, shortened;

struct worker {
	pthread_t thread;
	uint64_t seed;
	unsigned number;
};

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* One chain in windows, some of them given up. */
static void get_one(struct session *s, struct worker *x, uint64_t *id, uint64_t *offsets)
{
	uint64_t chain = 1 + next(&x->seed) % CHAINS, handle = ++*id;
	uint32_t at = 0, end;
	struct get_start start;

	world_get(s, handle, chain, PAGES, &start);
	if (!start.handle_live)
		return;
	end = (uint32_t)(start.transferable_len / FIXTURE_PAGE);
	while (at < end) {
		uint32_t to = at + 1 + (uint32_t)(next(&x->seed) % (end - at));
		struct get_transfer call;
		struct why why = WHY_INIT;
		uint64_t plan = ++*id;
		int r;

		transfer_of(&call, s, handle, plan, end, at, to, offsets, PAGES + 1);
		r = transfer_start(&call, &why);
		if (r == STEP_WAIT && next(&x->seed) % 8 == 0) {
			get_transfer_undo(&call);
			break;
		}
		r = transfer_end(&call, r, &why);
		if (r)
			fail_msg("transfer: %s", why.text);
		to = (uint32_t)(call.delivered_len / FIXTURE_PAGE);
		for (uint32_t i = at; i < to; i++)
			world_check(&world, offsets[i - at], WORLD_VALUE, chain, i);
		if (call.handle_ended && to == end)
			world_check(&world, offsets[to - at], 10000, chain, WORLD_ROW);
		atomic_fetch_add(&delivered, to - at);
		atomic_fetch_add(&shortened, call.delivered_len < call.boundary);
		get_release(s, plan, NULL);
		at = to;
		if (call.handle_ended)
			return;
		if (next(&x->seed) % 8 == 0)
			break;
	}
	get_cancel(s, handle, NULL);
}

static void *getter(void *context)
{
	static _Thread_local uint64_t offsets[PAGES + 1];
	struct worker *x = context;
	struct session *s = fixture_session(&world.f, 0);
	uint64_t id = 0;

	for (unsigned i = 0; i < ROUNDS; i++)
		get_one(s, x, &id, offsets);
	session_release(s);
	session_unref(&s);
	return NULL;
}

/* What is clean leaves memory, as if others wanted it. */
static void *pusher(void *context)
{
	struct worker *x = context;
	uint64_t values = 0;

	while (!atomic_load(&over)) {
		lock_take(&world.f.space->lock);
		demote_some(world.f.space->tiering, next(&x->seed) % (64 * WORLD_VALUE), &values);
		lock_drop(&world.f.space->lock);
		sched_yield();
	}
	return NULL;
}

static void *reader(void *context)
{
	struct worker *x = context;
	char bytes[3 * WORLD_VALUE], row[12288];

	while (!atomic_load(&over)) {
		uint64_t chain = 1 + next(&x->seed) % CHAINS;
		struct key endpoint = fixture_key(chain, PAGES - 1);
		uint32_t page = (uint32_t)(next(&x->seed) % (PAGES - 3));
		struct record_info info;

		if (space_record_find(world.f.space, &endpoint, false, &info))
			continue;
		ssize_t n = space_record_read(world.f.space, info.number, info.generation, false, (uint64_t)page * WORLD_VALUE, bytes,
					      sizeof(bytes));

		if (n == (ssize_t)sizeof(bytes))
			for (uint32_t i = 0; i < 3; i++)
				if (!world_is(bytes + i * WORLD_VALUE, WORLD_VALUE, chain, page + i))
					fail_msg("chain %llu, page %u: other bytes", (unsigned long long)chain, page + i);
		n = space_record_read(world.f.space, info.number, info.generation, true, 0, row, sizeof(row));
		if (n == (ssize_t)sizeof(row) && !world_is(row, 10000, chain, WORLD_ROW))
			fail_msg("chain %llu, row: other bytes", (unsigned long long)chain);
	}
	return NULL;
}

/* A record goes now and then, and comes again. */
static void *putter(void *context)
{
	struct worker *x = context;
	struct session *s = fixture_session(&world.f, 0);
	uint64_t plan = 1;

	while (!atomic_load(&over)) {
		uint64_t chain = 1 + next(&x->seed) % CHAINS;
		struct eviction call = { .session = s, .goal_bytes = EVICTION_ALL };
		struct key endpoint = fixture_key(chain, PAGES - 1);
		struct why why = WHY_INIT;

		assert_int_equal(session_enter(s, 0, &why), 0);
		assert_int_equal(eviction_begin(&call, &why), STEP_MORE);
		if (!eviction_record(&call, PAGES * FIXTURE_PAGE, &endpoint, &why)) {
			session_leave(s);
			world_put(&world, s, plan++, chain, 0, PAGES, true);
		} else {
			session_leave(s);
		}
		sched_yield();
	}
	session_release(s);
	session_unref(&s);
	return NULL;
}

static void against_one_another(void **state)
{
	uint64_t seed = clock_now_ns() | 1;
	struct worker worker[GETTERS + 3];
	void *(*others[3])(void *) = { pusher, reader, putter };

	print_message("seed %llu\n", (unsigned long long)seed);
	world_open(&world, WORLD_KV "," CLASS_STATE, 16ull << 20);
	struct session *s = fixture_session(&world.f, 0);

	for (uint32_t chain = 1; chain <= CHAINS; chain++)
		world_put(&world, s, chain, chain, 0, PAGES, true);
	for (unsigned i = 0; i < GETTERS + 3; i++) {
		worker[i] = (struct worker){ .seed = seed + i * 7919, .number = i };
		pthread_create(&worker[i].thread, NULL, i < GETTERS ? getter : others[i - GETTERS], &worker[i]);
	}
	for (unsigned i = 0; i < GETTERS; i++)
		pthread_join(worker[i].thread, NULL);
	atomic_store(&over, true);
	for (unsigned i = GETTERS; i < GETTERS + 3; i++)
		pthread_join(worker[i].thread, NULL);
	assert_true(atomic_load(&delivered) > 0);
	assert_int_equal(atomic_load(&world.corrupt), 0);
	print_message("%u pages, %u windows cut\n", atomic_load(&delivered), atomic_load(&shortened));
	world_to_disk(&world);
	world_at_base(&world, 1);
	session_release(s);
	session_unref(&s);
	world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(against_one_another) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
