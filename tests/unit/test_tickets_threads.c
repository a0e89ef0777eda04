/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of one request in threads of their own, request after request, while pages come and go: whatever one of them does, all that were
 * told how far it is restored were told the same, and what was restored are its bytes.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>
#include <pthread.h>

#include "store/host_private.h"
#include "store/ticket.h"

#define MIB (1ull << 20)
#define RANKS 3u
#define PAGES 20u
#define CHAINS 8u
#define REQUESTS 1500u
#define WAIT_NS 50000000ull /* of a gate: ranks leave now and then, and nobody tells */

struct rank {
	struct fixture *f;
	struct session *s;
	uint32_t number;
	uint64_t seed, plan;
	uint32_t confirmed;
};

static _Atomic uint64_t outcome[REQUESTS]; /* 1 + what somebody was told */
static _Atomic uint32_t wrong, restored;

static uint32_t pick(struct rank *r, uint32_t n)
{
	r->seed = r->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(r->seed >> 33) % n;
}

static void told(uint32_t request, uint64_t tokens)
{
	uint64_t none = 0;

	if (!atomic_compare_exchange_strong(&outcome[request], &none, tokens + 1) && none != tokens + 1)
		atomic_fetch_add(&wrong, 1);
}

static void put(struct rank *r, uint32_t chain)
{
	struct put_result *result = calloc(1, sizeof(*result));
	uint64_t plan = ++r->plan;

	if (!put_chain(r->s, plan, chain, 0, PAGES, 1, 0, result) && result->status[0] == PUT_OK)
		commit_all(r->s, plan, 1);
	free(result);
}

/* False: it has no handle. */
static bool start(struct rank *r, uint64_t handle, const uint8_t ticket[16], uint32_t chain, uint64_t *ret)
{
	struct get_start call = { .session = r->s, .handle = handle, .key_count = PAGES, .deadline_ns = clock_now_ns() + WAIT_NS };
	struct key keys[PAGES];
	struct why why = WHY_INIT;
	int e;

	for (uint32_t i = 0; i < PAGES; i++)
		keys[i] = fixture_key(chain, i);
	call.keys = keys;
	memcpy(call.ticket, ticket, 16);
	e = get_start_begin(&call, &why);
	while (!e && ((e = get_start_step(&call, &why)) == STEP_MORE || e == STEP_WAIT)) {
		e = 0;
		sched_yield();
	}
	*ret = call.transferable_len;
	return !e && call.handle_live;
}

/* True: its handle has ended. */
static bool transfer(struct rank *r, uint64_t handle, uint64_t plan, uint64_t boundary)
{
	struct get_transfer call = {
		.session = r->s, .handle = handle, .plan = plan, .boundary = boundary, .to = boundary,
		.offsets_capacity = PAGES, .deadline_ns = clock_now_ns() + WAIT_NS,
	};
	uint64_t offsets[PAGES];
	struct why why = WHY_INIT;
	int e;

	call.offsets = offsets;
	e = get_transfer_begin(&call, &why);
	while (!e && ((e = get_transfer_step(&call, &why)) == STEP_MORE || e == STEP_WAIT)) {
		if (e == STEP_WAIT && !pick(r, 500)) {
			get_transfer_undo(&call);
			return false;
		}
		e = 0;
		sched_yield();
	}
	if (!e && call.delivered_len)
		get_release(r->s, plan, &why);
	return !e && call.handle_ended;
}

static void confirm(struct rank *r, const uint8_t ticket[16], uint32_t request)
{
	struct ticket_confirm call = { .session = r->s, .failed = !pick(r, 40), .deadline_ns = clock_now_ns() + WAIT_NS };
	struct why why = WHY_INIT;
	int e;

	memcpy(call.ticket, ticket, 16);
	while ((e = ticket_confirm_step(&call, &why)) == STEP_WAIT)
		sched_yield();
	if (e)
		return;
	told(request, call.restored);
	atomic_fetch_add(&restored, call.restored > 0);
	r->confirmed++;
}

static void *run_rank(void *argument)
{
	struct rank *r = argument;
	struct why why = WHY_INIT;

	for (uint32_t i = 0; i < REQUESTS; i++) {
		uint8_t ticket[16] = { 1, 0, 0, 0, (uint8_t)i, (uint8_t)(i / 256) };
		uint64_t handle = 1000 + i, boundary;

		if (!pick(r, 20))
			put(r, 1 + pick(r, CHAINS));
		if (!pick(r, 50) || session_enter(r->s, 0, &why))
			continue;
		if (start(r, handle, ticket, 1 + i % CHAINS, &boundary) && (!pick(r, 60) || !transfer(r, handle, ++r->plan, boundary)))
			get_cancel(r->s, handle, &why);
		confirm(r, ticket, i);
		session_leave(r->s);
	}
	return NULL;
}

static void ranks_agree(void **state)
{
	struct rank rank[RANKS];
	pthread_t thread[RANKS];
	uint64_t seed = clock_now_ns();
	struct fixture f;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	fixture_open(&f, CLASS_KV, RANKS, 64 * MIB, 32 * MIB, NULL);
	for (uint32_t i = 0; i < RANKS; i++) {
		rank[i] = (struct rank){ .f = &f, .s = fixture_session(&f, i), .number = i, .seed = seed + i };
		for (uint32_t chain = 1; chain <= CHAINS; chain++)
			put(&rank[i], chain);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &rank[i]), 0);
	for (uint32_t i = 0; i < RANKS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(atomic_load(&wrong), 0);
	printf("%u of %u confirmed as restored\n", atomic_load(&restored), rank[0].confirmed + rank[1].confirmed + rank[2].confirmed);
	assert_true(atomic_load(&restored) > REQUESTS);
	tickets_run(f.space->tickets, clock_now_ns() + 61000000000ull);
	lock_take(&f.space->lock);
	tickets_check(f.space->tickets);
	assert_int_equal(f.space->stats.tickets, 0);
	assert_int_equal(f.space->stats.ticket_pins, 0);
	lock_drop(&f.space->lock);
	assert_at_base(&f, RANKS);
	for (uint32_t i = 0; i < RANKS; i++) {
		session_release(rank[i].s);
		session_unref(&rank[i].s);
	}
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(ranks_agree) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
