/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_START under a ticket: its way to it. What the first rank keeps for the others, and what they take, is in store/put_values.c.
 */
#include "store/put_private.h"

#include <string.h>

#include "index/mix.h"
#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/ticket.h"

#define MILLISECOND 1000000ull

static const uint64_t odd[2] = { 0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full };

static void sum_word(struct put_start *call, uint64_t word)
{
	for (uint32_t j = 0; j < 2; j++)
		call->sum[j] = mix_64(call->sum[j] ^ word, odd[j]) + odd[1 - j];
}

/* All of a group but its hints. */
static void sum_groups(struct put_start *call)
{
	sum_word(call, call->class_mask);
	for (uint32_t i = 0; i < call->group_count; i++) {
		const struct put_group *g = &call->groups[i];

		for (uint32_t j = 0; j < 4; j++)
			sum_word(call, g->parent.words[j]);
		sum_word(call, g->consumed);
		sum_word(call, (uint64_t)g->keys << 32 | g->class_mask);
		sum_word(call, g->flags);
	}
}

/* At most PUT_STEP_KEYS keys; they are read again by the look-up. */
static void sum_keys(struct put_start *call)
{
	uint32_t end = call->key_count - call->summed > PUT_STEP_KEYS ? call->summed + PUT_STEP_KEYS : call->key_count;
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];

	while (call->summed < end) {
		uint32_t n = end - call->summed > INDEX_STEP_KEYS ? INDEX_STEP_KEYS : end - call->summed;

		memcpy(keys, &call->keys[call->summed], n * sizeof(keys[0]));
		__asm__ __volatile__("" : : "r"(keys) : "memory");
		index_prefetch(call->session->space->index, keys, n, hashes);
		for (uint32_t i = 0; i < n; i++)
			sum_word(call, hashes[i]);
		call->summed += n;
	}
}

int put_ticket_come(struct put_start *call, struct why *why)
{
	struct space *space = call->session->space;
	uint64_t deadline_ns = call->deadline_ns;
	enum ticket_put_part part;
	int r;

	if (!call->summed)
		sum_groups(call);
	if (call->summed < call->key_count)
		sum_keys(call);
	if (call->summed < call->key_count)
		return STEP_MORE;
	if (!deadline_ns)
		deadline_ns = clock_now_ns() + space->host->config.fill_ttl_ms * MILLISECOND;
	lock_take(&space->lock);
	r = ticket_put_come(space->put_tickets, call->ticket, call->sum, call->group_count, call->session, deadline_ns, &call->put, &part, why);
	lock_drop(&space->lock);
	if (r)
		return r;
	if (part == TICKET_PUT_WAITS)
		return STEP_MORE; /* the first one is under way: others have their turn, and that is one of them */
	call->ended = part == TICKET_PUT_ENDED;
	call->ticketed = false;
	return 0;
}
