/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_START under a ticket: who comes first looks up, for all; who comes later has the same question, and is answered the same.
 *
 * The keys are summed up before anything else, and read again by the look-up.
 */
#include "store/get_private.h"

#include <errno.h>
#include <string.h>

#include "index/mix.h"
#include "store/base/clock.h"

static const uint64_t odd[2] = { 0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full };

/* ---- the question ----------------------------------------------------------------------------------------------------- */

/* At most PUT_STEP_KEYS keys. */
static void sum_keys(struct get_start *call)
{
	uint32_t end = call->key_count - call->key > PUT_STEP_KEYS ? call->key + PUT_STEP_KEYS : call->key_count;
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];

	while (call->key < end) {
		uint32_t n = end - call->key > INDEX_STEP_KEYS ? INDEX_STEP_KEYS : end - call->key;

		memcpy(keys, &call->keys[call->key], n * sizeof(keys[0]));
		__asm__ __volatile__("" : : "r"(keys) : "memory");
		index_prefetch(call->session->space->index, keys, n, hashes);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t j = 0; j < 2; j++)
				call->keys_sum[j] = mix_64(call->keys_sum[j] ^ hashes[i], odd[j]) + odd[1 - j];
		call->key += n;
	}
}

static struct ticket_question question_of(const struct get_start *call)
{
	struct ticket_question q = {
		.keys_sum = { call->keys_sum[0], call->keys_sum[1] },
		.start = call->start,
		.have = call->have,
		.limit = call->limit,
		.prompt_len = call->prompt_len,
		.keys = call->key_count,
		.groups = call->groups ? call->group_count : 0,
		.class_mask = call->class_mask ? call->class_mask : (1u << call->session->space->layout->classes) - 1,
		.room = call->room,
	};

	for (uint32_t i = 0; i < q.groups; i++)
		q.groups_sum = mix_64(q.groups_sum ^ call->groups[i], odd[0]) + odd[1];
	return q;
}

/* ---- joining ----------------------------------------------------------------------------------------------------------- */

/* Under the lock: values of this session's share, from where the last stay ended; one stay. */
static void find_entries(struct get_start *call, uint32_t *run)
{
	struct space *space = call->session->space;
	struct handle *h = call->h;
	const struct found *f = h->found;
	uint32_t end = f->reach - call->key >= INDEX_STEP_KEYS ? call->key + INDEX_STEP_KEYS : f->reach + 1;

	for (; call->key < end; call->key++) {
		const struct run *at = handle_run(h, call->key, run);

		for (uint32_t c = 0; c < f->columns; c++) {
			uint32_t column = layout_column(space->layout, f->class_of[c], call->session->share[f->class_of[c]]);

			vec32_push(&h->entries, !at ? INDEX_NONE :
						      index_value(space->index, at->record, (uint16_t)(at->page + call->key - at->first),
								  column, NULL));
		}
	}
}

/* Its own part of what was found; then the answer. */
static int join(struct get_start *call, struct why *why)
{
	struct space *space = call->session->space;
	const struct found *f = call->h->found;
	uint32_t stop = call->key + PUT_STEP_KEYS, run = 0;

	while (f->reach != INDEX_NONE && call->key <= f->reach && call->key < stop) {
		if (atomic_load(&call->session->ended)) {
			get_start_undo(call);
			return why_set(why, ESHUTDOWN, "the session has ended");
		}
		if (!vec32_reserve(&call->h->entries, INDEX_STEP_KEYS * (f->columns + 1))) {
			get_start_undo(call);
			return why_set(why, ENOMEM, "no memory for a handle over %u keys", call->key_count);
		}
		lock_take(&space->lock);
		find_entries(call, &run);
		lock_drop(&space->lock);
	}
	if (f->reach != INDEX_NONE && call->key <= f->reach)
		return STEP_MORE;
	get_start_answer(call);
	return 0;
}

/* The ticket has its outcome already: a miss. */
static void answer_ended(struct get_start *call)
{
	size_t bytes = ((size_t)call->key_count + 63) / 64 * sizeof(uint64_t);

	get_start_stop_waiting(call);
	if (call->hits)
		memset(call->hits, 0, bytes);
	if (call->restorable)
		memset(call->restorable, 0, bytes);
	call->raw_prefix_hit_len = call->dense_len = call->would_len = call->demand = 0;
	call->transferable_len = call->have > call->start ? call->have : call->start;
	call->prefix_hit_groups = call->first_miss_index = call->first_miss_group_index = 0;
	call->hit_count = call->missing_count = call->candidate_count = call->wanted_count = 0;
	call->all_hit = call->handle_live = false;
	call->bytes = call->disk_bytes = call->disk_us = 0;
	session_drop(call->session, &call->h->holding, 0);
	handle_retire(call->session, call->h);
}

/* ---- coming ------------------------------------------------------------------------------------------------------------- */

/* The caller's look-up is that of all. */
static int lead(struct get_start *call, struct why *why)
{
	call->leads = true;
	call->key = 0;
	if (get_start_own(call))
		return GET_LEADS;
	get_start_undo(call);
	return why_set(why, ENOMEM, "no memory for a handle over %u keys", call->key_count);
}

static int wait_for_leader(struct get_start *call, struct why *why)
{
	if (clock_now_ns() < call->deadline_ns)
		return STEP_WAIT;
	get_start_undo(call);
	return why_set(why, EAGAIN, "ticket: the look-up of whoever came first has not ended by the deadline");
}

static int come(struct get_start *call, struct why *why)
{
	struct space *space = call->session->space;
	struct ticket_question question = question_of(call);
	struct handle *h = call->h;
	enum ticket_part part;
	int r;

	do {
		lock_take(&space->lock);
		r = ticket_come(space->tickets, call->ticket, &question, call->session, &h->seat, &part, why);
		if (!r && part == TICKET_LEADS && !h->own)
			h->own = tickets_spare(space->tickets);
		lock_drop(&space->lock);
	} while (!r && part == TICKET_WAITS && get_start_wait(call));
	if (r) {
		get_start_undo(call);
		return r;
	}
	switch (part) {
	case TICKET_LEADS:
		return lead(call, why);
	case TICKET_WAITS:
		return wait_for_leader(call, why);
	case TICKET_ENDED:
		answer_ended(call);
		return 0;
	case TICKET_JOINS:
		break;
	}
	handle_begin(h, ticket_found(&h->seat));
	call->key = h->found->first;
	return join(call, why);
}

int get_ticket_step(struct get_start *call, struct why *why)
{
	if (call->h->found)
		return join(call, why);
	if (atomic_load(&call->session->ended)) {
		get_start_undo(call);
		return why_set(why, ESHUTDOWN, "the session has ended");
	}
	if (call->key < call->key_count)
		sum_keys(call);
	return call->key < call->key_count ? STEP_MORE : come(call, why);
}

void get_ticket_decide(struct get_start *call)
{
	struct session *s = call->session;
	struct handle *h = call->h;

	lock_take(&s->space->lock);
	s->pins -= found_pins(h->own);
	ticket_decided(s->space->tickets, &h->seat, h->own);
	lock_drop(&s->space->lock);
	h->own = NULL;
}

void get_ticket_undo(struct get_start *call)
{
	struct space *space = call->session->space;
	struct handle *h = call->h;

	if (!h->seat.ticket)
		return;
	lock_take(&space->lock);
	if (call->leads) {
		ticket_undecided(space->tickets, &h->seat);
	} else {
		ticket_idle(space->tickets, &h->seat);
		ticket_leave(space->tickets, &h->seat, false);
	}
	lock_drop(&space->lock);
	tickets_drain(space->tickets);
}

/* ---- the handle's place -------------------------------------------------------------------------------------------------- */

void handle_idle(struct session *s, struct handle *h)
{
	if (!h->seat.ticket)
		return;
	lock_take(&s->space->lock);
	ticket_idle(s->space->tickets, &h->seat);
	lock_drop(&s->space->lock);
	tickets_drain(s->space->tickets);
}

void handle_leave(struct session *s, struct handle *h, bool keep)
{
	if (!h->seat.ticket)
		return;
	lock_take(&s->space->lock);
	ticket_leave(s->space->tickets, &h->seat, keep);
	lock_drop(&s->space->lock);
	tickets_drain(s->space->tickets);
}
