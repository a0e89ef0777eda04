/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_START: the answer for each value of a key, and of a group's row: EXISTS, INFLIGHT, DUPLICATE or a fresh slot, for which room is made.
 *
 * The plan pins what its groups name as each begins. What later groups of the chunk name was looked up already, so before
 * anything is evicted it is pinned too, until the stay ends (chunk_hold).
 */
#include "store/put_start_private.h"

#include <assert.h>

#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/seating.h"
#include "store/ticket.h"

/* Has a key like number @i of the chunk been seen? It is now. */
static bool seen_before(struct chunk *k, uint32_t i)
{
	uint64_t *word = &k->seen[k->hashes[i] / 64 % 16];
	uint64_t bit = 1ull << k->hashes[i] % 64;
	bool before = *word & bit;

	*word |= bit;
	return before;
}

/* ---- room ---------------------------------------------------------------------------------------------------- */

/* Under the lock, before room is made: pins what keys that no group has come to yet were found at. */
static void chunk_hold(struct chunk *k)
{
	if (!k->known || k->holds)
		return;
	k->holds = true;
	for (uint32_t i = k->pinned_to; i < k->count; i++) {
		uint32_t record = k->hits[i].record;

		if (record == INDEX_NONE || (k->held && k->hold[k->held - 1] == record) ||
		    index_record(k->space->index, record)->state != RECORD_LIVE)
			continue;
		space_pin(k->space, record);
		k->hold[k->held++] = record;
	}
}

/* Under the lock, at the end of the stay: hits are not to be used any more. */
void put_let_go(struct chunk *k)
{
	while (k->held)
		space_unpin(k->space, k->hold[--k->held]);
}

static bool chunk_room(struct chunk *k, const struct put_class *class, uint32_t want)
{
	chunk_hold(k); /* before the first victim goes */
	return room_make(k->call->session, class->number, class->share, want);
}

/* Under the lock: a slot where the @run keys of the group that are left (0: it is for the row) find room together, or
 * anywhere. If there is none, room is made for all keys of the chunk that have no place yet. */
static uint32_t take_elsewhere(struct chunk *k, struct put_class *class, uint32_t run)
{
	uint32_t want = run && k->unknown ? k->unknown : 1;
	struct slots *slots = k->space->slots;
	struct slots_filter filter = session_filter(k->call->session);

	if (!slots_free_count(slots, class->number, class->share, filter) && !chunk_room(k, class, want))
		return SLOTS_NONE;
	slots_seek(slots, &class->cursor, class->number, class->share, run ? run : 1, filter);
	return slots_take(slots, &class->cursor, filter);
}

/* Under the lock: a slot for one value, neighbouring the group's last one where that is possible; SLOTS_NONE: there is no
 * room. */
static inline uint32_t take_slot(struct chunk *k, struct put_class *class)
{
	struct put_start *call = k->call;
	struct plan_group *open = &k->plan->group[call->group];
	uint32_t run = call->groups[call->group].keys - call->in_group;
	uint32_t entry = SLOTS_NONE;

	if (call->session->prepared_bytes >= call->prepared_limit)
		return SLOTS_NONE;
	if (call->put.ticket && !call->put.first)
		entry = ticket_put_take(&call->put, class->number, class->share, session_filter(call->session));
	if (entry != SLOTS_NONE)
		class->cursor.offset = slots_offset(k->space->slots, entry);
	/* a longer group looks for a run of its own once; a single value goes where the last one went */
	if (entry == SLOTS_NONE && class->cursor.grant != SLOTS_NONE && (run <= 1 || open->sought >> class->number & 1))
		entry = slots_take(k->space->slots, &class->cursor, session_filter(call->session));
	if (entry == SLOTS_NONE) {
		open->sought |= (uint16_t)(1u << class->number);
		entry = take_elsewhere(k, class, run);
		if (entry == SLOTS_NONE)
			return SLOTS_NONE;
	}
	slot_tell(k->space, entry, call->session->seat);
	killpoint(KILLPOINT_PUT_WORD);
	vec32_push(&k->plan->values, entry);
	call->session->prepared_bytes += class->slot_bytes;
	k->new_values++;
	return entry;
}

/* Under the lock: the first rank of a ticket has answered for a value at (record, page): room for the other shares of it that are missing
 * is kept for their ranks. False: there is none. */
static bool keep_others(struct chunk *k, const struct put_class *class, uint32_t record, uint16_t page)
{
	struct put_start *call = k->call;

	if (!call->put.ticket || !call->put.first)
		return true;
	for (uint32_t s = 0; s < k->layout->class[class->number].shares; s++) {
		if (s == class->share ||
		    index_value(k->space->index, record, page, layout_column(k->layout, class->number, s), NULL) != INDEX_NONE)
			continue;
		chunk_hold(k); /* before the first victim goes */
		if (!ticket_put_keep(&call->put, call->session, class->number, s))
			return false;
	}
	return true;
}

/* ---- one value, one key --------------------------------------------------------------------------------------- */

/* The same answer for @keys keys from @first on, of all page classes. */
void put_answer_keys(struct put_start *call, uint32_t first, uint32_t keys, uint64_t answer)
{
	for (uint32_t c = 0; c < call->page_classes; c++)
		for (uint32_t i = 0; i < keys; i++)
			call->class[c].answers[first + i] = answer;
}

static bool wait_push(struct put_plan *plan, const struct key *key)
{
	if (plan->wait_count == plan->wait_capacity) {
		uint32_t capacity = plan->wait_capacity ? 2 * plan->wait_capacity : 64;
		struct key *waits = realloc(plan->waits, (size_t)capacity * sizeof(*waits));

		if (!waits)
			return false;
		plan->waits = waits;
		plan->wait_capacity = capacity;
	}
	plan->waits[plan->wait_count++] = *key;
	return true;
}

/* Does the group want a value of @class on the page that ends at @consumed? */
static inline bool wants(const struct chunk *k, const struct put_group *g, const struct put_class *class, uint64_t consumed)
{
	uint32_t bit = 1u << class->number;

	return g->class_mask & bit && (k->call->always & bit || layout_has_value(k->layout, class->number, consumed));
}

static bool wants_any(const struct chunk *k, const struct put_group *g, uint64_t consumed)
{
	if (g->class_mask & k->call->always)
		return true;
	for (uint32_t c = 0; c < k->call->page_classes; c++)
		if (wants(k, g, &k->call->class[c], consumed))
			return true;
	return false;
}

/* Under the lock: the answer for one value of @key at (record, page), which is known. PUT_ANSWER_NONE: there is no room for
 * it. */
static uint64_t put_value(struct chunk *k, const struct put_group *g, struct put_class *class, uint32_t record, uint16_t page,
			  const struct key *key)
{
	struct space *space = k->space;
	struct put_plan *plan = k->plan;
	uint32_t column = layout_column(k->layout, class->number, class->share);
	bool committed;
	uint32_t entry = index_value(space->index, record, page, column, &committed);

	if (entry != INDEX_NONE && committed) {
		space->stats.put_exists++;
		return keep_others(k, class, record, page) ? PUT_ANSWER_EXISTS : PUT_ANSWER_NONE;
	}
	if (entry != INDEX_NONE) {
		uint32_t other = space->tables.entries[entry].group;

		if (space->group_owner[other - 1] == plan->serial) {
			space->stats.put_duplicate++;
			return PUT_ANSWER_DUPLICATE;
		}
		space->stats.put_inflight++;
		if (!keep_others(k, class, record, page) || (g->flags & PUT_WHOLE && !wait_push(plan, key)))
			return PUT_ANSWER_NONE;
		return PUT_ANSWER_INFLIGHT;
	}
	entry = take_slot(k, class);
	if (entry == SLOTS_NONE)
		return PUT_ANSWER_NONE;
	index_value_add(space->index, record, page, key, class->number, class->share, entry,
			plan->group[k->call->group].group);
	if (k->call->put.ticket)
		ticket_put_begun(&k->call->put, record, page);
	return keep_others(k, class, record, page) ? class->cursor.offset : PUT_ANSWER_NONE;
}

void put_run_close(struct chunk *k)
{
	struct put_start *call = k->call;

	if (call->run == INDEX_NONE)
		return;
	if (!index_record_close(k->space->index, call->run)) {
		assert(k->plan->records.count && k->plan->records.at[k->plan->records.count - 1] == call->run);
		k->plan->records.count--;
	}
	call->run = INDEX_NONE;
}

/* Under the lock: a record for the rest of the group, from number @in_group on, whose page ends at @consumed. False: the
 * tables are full. */
static bool open_run(struct chunk *k, const struct put_group *g, uint32_t in_group, uint64_t consumed)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	uint32_t left = g->keys - in_group;
	bool root = in_group == 0 && g->flags & PUT_ROOT;
	struct index_run run = {
		.parent_key = root ? NULL : &call->previous,
		.consumed = consumed - k->layout->page_tokens,
		.max_pages = left > PUT_RECORD_PAGES ? PUT_RECORD_PAGES : left,
		.group = plan->group[call->group].group,
		.flags = g->flags & PUT_WHOLE ? RECORD_WHOLE : 0,
		.whole_ring = plan->records.count > GROUP_FROM(plan, call->group, records) ?
				      plan->records.at[plan->records.count - 1] : INDEX_NONE,
		.parent_record = call->last_record,
		.parent_page = call->last_page,
	};

	call->run = index_record_new(k->space->index, &run);
	if (call->run == INDEX_NONE)
		return false;
	call->run_pages = 0;
	vec32_push(&plan->records, call->run);
	return true;
}

/* Under the lock: names an unknown key, number @in_group of its group, of which at least one value is wanted, in the open
 * run or in a new record. */
static int put_unknown(struct chunk *k, const struct put_group *g, uint32_t i, uint32_t in_group, uint64_t consumed)
{
	struct put_start *call = k->call;
	struct index *index = k->space->index;
	const struct key *key = &k->keys[i];
	struct index_hit *hit = &k->hits[i];
	uint32_t group = k->plan->group[call->group].group;

	if (call->run != INDEX_NONE && call->run_pages == PUT_RECORD_PAGES)
		put_run_close(k);
	if (call->run == INDEX_NONE && !open_run(k, g, in_group, consumed))
		return CHUNK_NOROOM;
	for (struct put_class *class = call->class; class < &call->class[call->page_classes]; class++) {
		uint32_t entry;

		if (!wants(k, g, class, consumed)) {
			class->answers[call->key + i] = PUT_ANSWER_NONE;
			continue;
		}
		entry = take_slot(k, class);
		if (entry == SLOTS_NONE)
			return CHUNK_NOROOM;
		if (hit->record != INDEX_NONE) {
			index_value_add(index, hit->record, hit->page, key, class->number, class->share, entry, group);
		} else {
			hit->record = call->run;
			hit->page = index_page_add(index, call->run, key, k->hashes[i], class->number, class->share, entry,
						   group);
			call->run_pages++;
			k->unknown--;
		}
		if (call->put.ticket)
			ticket_put_begun(&call->put, hit->record, hit->page);
		if (!keep_others(k, class, hit->record, hit->page))
			return CHUNK_NOROOM;
		class->answers[call->key + i] = class->cursor.offset;
	}
	return CHUNK_DONE;
}

/* Under the lock: all answers for a key that stands somewhere. */
static int put_known(struct chunk *k, const struct put_group *g, uint32_t i, uint64_t consumed)
{
	struct put_start *call = k->call;
	const struct index_hit *hit = &k->hits[i];

	if (hit->record != call->run)
		put_run_close(k);
	for (struct put_class *class = call->class; class < &call->class[call->page_classes]; class++) {
		uint64_t answer = PUT_ANSWER_NONE;

		if (wants(k, g, class, consumed)) {
			answer = put_value(k, g, class, hit->record, hit->page, &k->keys[i]);
			if (answer == PUT_ANSWER_NONE)
				return CHUNK_NOROOM;
		}
		class->answers[call->key + i] = answer;
	}
	return CHUNK_DONE;
}

/* Under the lock: key @i was found at a page without values, which keeps its name only while something hangs off it: a
 * victim, perhaps. So room is made first, for one value of each class, and then the key is looked for again. False: there
 * is no room. */
static bool look_again_with_room(struct chunk *k, const struct put_group *g, uint32_t i, uint64_t consumed)
{
	struct put_start *call = k->call;
	struct slots_filter filter = session_filter(call->session);

	for (struct put_class *class = call->class; class < &call->class[call->page_classes]; class++)
		if (wants(k, g, class, consumed) && !slots_free_count(k->space->slots, class->number, class->share, filter) &&
		    !chunk_room(k, class, 1))
			return false;
	index_lookup_hashed(k->space->index, &k->keys[i], &k->hashes[i], 1, g->class_mask, false, &k->hits[i]);
	k->unknown += k->hits[i].record == INDEX_NONE;
	return true;
}

/* Under the lock: all answers for key @i of the chunk, which is number @in_group of its group. */
int put_key(struct chunk *k, const struct put_group *g, uint32_t i, uint32_t in_group)
{
	struct put_start *call = k->call;
	struct index_hit *hit = &k->hits[i];
	uint64_t consumed = g->consumed - (uint64_t)(g->keys - 1 - in_group) * k->layout->page_tokens;
	int r = CHUNK_DONE;

	if (hit->record == INDEX_NONE && seen_before(k, i)) { /* perhaps it stands earlier in this chunk */
		index_lookup_hashed(k->space->index, &k->keys[i], &k->hashes[i], 1, g->class_mask, false, hit);
		k->unknown -= hit->record != INDEX_NONE;
	}
	if (hit->record != INDEX_NONE && !hit->present && !index_page_has_value(k->space->index, hit->record, hit->page) &&
	    !look_again_with_room(k, g, i, consumed))
		return CHUNK_NOROOM;
	if (hit->record != INDEX_NONE) {
		r = put_known(k, g, i, consumed);
	} else if (wants_any(k, g, consumed)) {
		r = put_unknown(k, g, i, in_group, consumed);
	} else { /* a page without values has no name: what follows hangs off an unknown parent */
		put_run_close(k);
		k->unknown--;
		put_answer_keys(call, call->key + i, 1, PUT_ANSWER_NONE);
	}
	call->previous = k->keys[i];
	call->last_record = hit->record;
	call->last_page = hit->page;
	return r;
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

/* Under the lock: the record that the group's row belongs to: one that is there, or a zero-page one; INDEX_NONE: the tables
 * are full. */
static uint32_t row_home(struct chunk *k, const struct put_group *g)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	uint32_t record = index_row_home(k->space->index, &call->previous);

	if (record == INDEX_NONE) {
		struct index_run run = {
			.parent_key = g->flags & PUT_ROOT && g->keys == 1 ? NULL : &g->parent,
			.endpoint = &call->previous,
			.consumed = g->consumed,
			.group = plan->group[call->group].group,
			.flags = g->flags & PUT_WHOLE ? RECORD_WHOLE : 0,
			.whole_ring = INDEX_NONE,
		};

		record = index_record_new(k->space->index, &run);
		if (record == INDEX_NONE)
			return INDEX_NONE;
		vec32_push(&plan->records, record);
		call->run = record; /* closed when its row has a value */
	} else if (index_record(k->space->index, record)->state == RECORD_LIVE) {
		session_pin(call->session, record);
		vec32_push(&plan->pins, record);
	}
	return record;
}

/* Under the lock: is the group's row to stand at the end of a page that has no value, and of which nobody is writing one? */
static bool lacks_page(const struct chunk *k, const struct put_group *g)
{
	const struct key *key = &k->call->previous;
	struct index_hit hit;

	if (!(g->flags & PUT_ROW_ONLY) || !layout_is_page_end(k->layout, g->consumed))
		return false;
	index_lookup(k->space->index, key, 1, ~0u, &hit);
	return hit.record == INDEX_NONE || !index_page_has_value(k->space->index, hit.record, hit.page);
}

/* Under the lock: has the row of @record any value? */
static bool row_begun(const struct chunk *k, uint32_t record)
{
	for (uint32_t mask = k->layout->state_mask; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		for (uint32_t s = 0; s < k->layout->class[c].shares; s++)
			if (index_value(k->space->index, record, INDEX_PAGE_ROW, layout_column(k->layout, c, s), NULL) != INDEX_NONE)
				return true;
	}
	return false;
}

/* Under the lock: values of the row at the group's endpoint have got slots. */
static void row_taken(struct chunk *k, const struct put_group *g, uint32_t record, bool first)
{
	const struct key *key = &k->call->previous;
	struct record_entry *t = &k->space->tables.records[record];
	uint64_t hash;

	if (g->flags & PUT_RUNG)
		__atomic_store_n(&t->flags, t->flags | RECORD_RUNG, __ATOMIC_RELEASE);
	k->space->stats.rows_put += first;
	if (!demands_any(k->space->demands))
		return;
	index_prefetch(k->space->index, key, 1, &hash);
	demands_taking(k->space->demands, key, hash);
}

/* Under the lock: the row of the group at its endpoint, after its pages. */
int put_row(struct chunk *k, const struct put_group *g)
{
	struct put_start *call = k->call;
	uint32_t record = INDEX_NONE, before = k->plan->values.count;
	bool first = false;

	if (lacks_page(k, g))
		return CHUNK_NOPAGES;
	for (uint32_t c = call->page_classes; c < call->classes; c++) {
		struct put_class *class = &call->class[c];
		uint64_t answer;

		if (!(g->class_mask >> class->number & 1)) {
			class->answers[call->group] = PUT_ANSWER_NONE;
			continue;
		}
		if (record == INDEX_NONE) {
			record = row_home(k, g);
			if (record == INDEX_NONE)
				return CHUNK_NOROOM;
			first = !row_begun(k, record);
		}
		answer = put_value(k, g, class, record, INDEX_PAGE_ROW, &call->previous);
		if (answer == PUT_ANSWER_NONE)
			return CHUNK_NOROOM;
		class->answers[call->group] = answer;
	}
	put_run_close(k);
	if (k->plan->values.count > before)
		row_taken(k, g, record, first);
	return CHUNK_DONE;
}
