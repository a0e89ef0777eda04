/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_START: names and slots for what a session is about to write.
 *
 * A call's keys are worked on in chunks of INDEX_STEP_KEYS, across its groups. Of each chunk the map lines are fetched
 * without the lock; then, in one short stay under it, the keys are looked up, what exists is pinned (so that making
 * room cannot evict it), and key by key each wanted value is answered: EXISTS, INFLIGHT, DUPLICATE or a fresh slot.
 * A group that gets no room, or whose row lacks its page, is undone whole and the chunk is begun again behind it.
 *
 * The plan pins what its groups name as each begins. What later groups of the chunk name was looked up already, so before
 * anything is evicted it is pinned too, until the stay ends (chunk_hold).
 */
#include "store/put_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/seating.h"
#include "store/ticket.h"

enum { CHUNK_DONE, CHUNK_NOROOM, CHUNK_NOPAGES };

/* One stay under the lock. */
struct chunk {
	struct put_start *call;
	struct space *space;
	struct put_plan *plan;
	const struct layout *layout;
	uint32_t from, count;      /* keys of the call */
	uint32_t new_values;
	uint32_t unknown;          /* keys that have no place yet: how many slots are made free at a time */
	uint32_t pinned_to;        /* keys before this one are pinned by the plan */
	uint32_t held;             /* records pinned for the stay */
	bool known, holds;         /* some key has a place; what has one is held */
	bool nopages;              /* the group that is refused lacks the page that its row is to stand at */
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];
	struct index_hit hits[INDEX_STEP_KEYS];
	uint32_t hold[INDEX_STEP_KEYS];
	uint64_t seen[16];         /* bits, by hash: a key was named in this chunk, so look again before naming another */
};

/* Has a key like number @i of the chunk been seen? It is now. */
static bool seen_before(struct chunk *k, uint32_t i)
{
	uint64_t *word = &k->seen[k->hashes[i] / 64 % 16];
	uint64_t bit = 1ull << k->hashes[i] % 64;
	bool before = *word & bit;

	*word |= bit;
	return before;
}

/* ---- checks -------------------------------------------------------------------------------------------------- */

static uint32_t row_mask(const struct layout *layout)
{
	uint32_t mask = 0;

	for (uint32_t c = 0; c < layout->classes; c++)
		mask |= (uint32_t)layout_is_row(layout, c) << c;
	return mask;
}

uint64_t put_answer_count(const struct layout *layout, uint32_t class_mask, uint32_t keys, uint32_t groups)
{
	uint64_t n = 0;

	if (!class_mask || class_mask >> layout->classes)
		return UINT64_MAX;
	for (uint32_t c = 0; c < layout->classes; c++)
		if (class_mask >> c & 1)
			n += layout_is_row(layout, c) ? groups : keys;
	return n;
}

static int check_group(const struct put_start *call, const struct layout *layout, uint32_t rows, uint32_t i, struct why *why)
{
	const struct put_group *g = &call->groups[i];
	uint64_t tokens = (uint64_t)g->keys * layout->page_tokens;

	if (!g->keys)
		return why_set(why, EINVAL, "group %u: it has no key", i);
	if (g->flags & ~(PUT_ROOT | PUT_WHOLE | PUT_ROW_ONLY | PUT_RUNG))
		return why_set(why, EINVAL, "group %u: unknown flags 0x%x", i, g->flags);
	if (g->reserved)
		return why_set(why, EINVAL, "group %u: reserved is %u, not 0", i, g->reserved);
	if (!g->class_mask || g->class_mask & ~call->class_mask)
		return why_set(why, EINVAL, "group %u: class mask 0x%x is empty or no part of the call's 0x%x", i, g->class_mask,
			       call->class_mask);
	if (g->flags & PUT_RUNG && !(g->class_mask & rows))
		return why_set(why, EINVAL, "group %u: flags 0x%x: RUNG takes a row; class mask 0x%x has no state class", i, g->flags,
			       g->class_mask);
	if (g->flags & PUT_ROW_ONLY) {
		if (g->keys != 1 || g->class_mask & ~rows)
			return why_set(why, EINVAL, "group %u: ROW_ONLY takes one key and state classes only; it has %u keys and "
				       "class mask 0x%x", i, g->keys, g->class_mask);
		if (!g->consumed)
			return why_set(why, EINVAL, "group %u: its endpoint is at 0 tokens", i);
		return 0;
	}
	if (!(g->class_mask & ~rows))
		return why_set(why, EINVAL, "group %u: class mask 0x%x has state classes alone; that needs ROW_ONLY", i,
			       g->class_mask);
	if (!layout_is_page_end(layout, g->consumed))
		return why_set(why, EINVAL, "group %u: it ends at %llu tokens, within a page of %u", i,
			       (unsigned long long)g->consumed, layout->page_tokens);
	if (g->consumed < tokens || (g->flags & PUT_ROOT && g->consumed != tokens))
		return why_set(why, EINVAL, "group %u: it ends at %llu tokens and has %u pages of %u", i,
			       (unsigned long long)g->consumed, g->keys, layout->page_tokens);
	if (!(g->flags & PUT_ROOT) && g->consumed == tokens)
		return why_set(why, EINVAL, "group %u: it begins at 0 tokens but is not a ROOT", i);
	return 0;
}

static int check_call(const struct put_start *call, struct why *why)
{
	const struct session *s = call->session;
	uint32_t rows = row_mask(s->space->layout);
	uint64_t keys = 0;

	if (s->read_only)
		return why_set(why, EROFS, "the session was opened read-only");
	if (s->rank == SESSION_RANK_NONE)
		return why_set(why, EPERM, "the session has no rank, hence no share to write");
	if (!call->plan)
		return why_set(why, EINVAL, "plan: the id is 0");
	if (!call->group_count || !call->key_count)
		return why_set(why, EINVAL, "an empty batch: %u groups, %u keys", call->group_count, call->key_count);
	if (put_answer_count(s->space->layout, call->class_mask, 1, 1) == UINT64_MAX)
		return why_set(why, EINVAL, "class mask 0x%x: the layout has %u classes", call->class_mask,
			       s->space->layout->classes);
	for (uint32_t i = 0; i < call->group_count; i++) {
		int r = check_group(call, s->space->layout, rows, i, why);

		if (r)
			return r;
		keys += call->groups[i].keys;
	}
	if (keys != call->key_count)
		return why_set(why, EINVAL, "the groups have %llu keys together, the call has %u", (unsigned long long)keys,
			       call->key_count);
	return 0;
}

/* ---- the plan ------------------------------------------------------------------------------------------------ */

static struct put_plan *plan_new(struct session *s, uint64_t id, uint32_t groups)
{
	struct holding *spare = session_spare(s, HOLDING_PUT);
	struct put_plan *plan = spare ? (struct put_plan *)spare : calloc(1, sizeof(*plan));

	if (!plan)
		return NULL;
	if (groups > plan->group_capacity) {
		struct plan_group *group = realloc(plan->group, (size_t)groups * sizeof(*group));

		if (!group) {
			put_plan_destroy(&plan->holding);
			return NULL;
		}
		plan->group = group;
		plan->group_capacity = groups;
	}
	plan->holding = (struct holding){ .id = id, .kind = HOLDING_PUT };
	plan->next_unacked = NULL;
	plan->end_seq = plan->pending_since_ns = 0;
	plan->groups = plan->open = 0;
	plan->values.count = plan->pins.count = plan->records.count = plan->wait_count = 0;
	plan->any_committed = plan->any_lost = false;
	return plan;
}

static bool has_ticket(const struct put_start *call)
{
	static const uint8_t none[sizeof(call->ticket)];

	return memcmp(call->ticket, none, sizeof(none)) != 0;
}

/* Values of number @c of the call's classes in a group of @keys keys, or one fewer than there are. */
static uint64_t values_of(const struct put_start *call, uint32_t c, uint32_t keys)
{
	const struct put_class *class = &call->class[c];

	return c >= call->page_classes ? 1 : class->every_pages == 1 ? keys : keys / class->every_pages;
}

/* Could a session hold the values of @rank prepared, which each class could for itself? */
static bool rank_fits(const struct put_start *call, uint32_t mask, uint32_t keys, uint32_t rank)
{
	const struct layout *layout = call->session->space->layout;
	uint64_t bytes = 0, most = 0; /* one more than the limit is let pass */

	for (uint32_t c = 0; c < call->classes; c++) {
		uint32_t number = call->class[c].number;
		uint64_t slot_bytes = layout->class[number].share[layout->share_of_rank[rank][number]].slot_bytes;

		if (!(mask >> number & 1))
			continue;
		bytes += values_of(call, c, keys) * slot_bytes;
		most = slot_bytes > most ? slot_bytes : most;
	}
	return bytes < call->prepared_limit + most;
}

/* Could the values of all shares, for which a ticket takes room at once, lie in memory together, and each rank get its own? */
static bool shares_fit(const struct put_start *call, uint32_t mask, uint32_t keys)
{
	const struct space *space = call->session->space;
	uint64_t bytes = 0;

	for (uint32_t c = 0; c < call->classes; c++) {
		uint32_t number = call->class[c].number;
		uint64_t need = values_of(call, c, keys);

		for (uint32_t s = 0; mask >> number & 1 && s < space->layout->class[number].shares; s++) {
			if (need > space->capacity[number][s])
				return false;
			bytes += need * space->layout->class[number].share[s].slot_bytes;
		}
	}
	for (uint32_t rank = 0; rank < space->layout->world; rank++)
		if (!rank_fits(call, mask, keys, rank))
			return false;
	return bytes <= space->host->config.memory_bytes;
}

/* Can the new values of a group of @keys keys ever lie in memory together? */
static bool values_fit(const struct put_start *call, uint32_t mask, uint32_t keys)
{
	for (uint32_t c = 0; c < call->classes; c++)
		if (mask >> call->class[c].number & 1 && values_of(call, c, keys) > call->class[c].capacity)
			return false;
	return !has_ticket(call) || shares_fit(call, mask, keys);
}

/* What is the same for all keys and groups of the call. Answers stand in the order of classes, whatever their kind. */
static void call_classes(struct put_start *call)
{
	const struct space *space = call->session->space;
	const struct layout *layout = space->layout;

	call->row_mask = row_mask(layout);
	call->classes = call->page_classes = call->always = 0;
	call->prepared_limit = space->host->config.memory_bytes / SESSION_PREPARED_PART;
	for (uint32_t rows = 0; rows < 2; rows++) {
		uint64_t *answers = call->answers;

		for (uint32_t c = 0; c < layout->classes; c++) {
			bool row = layout_is_row(layout, c);
			uint32_t share = call->session->share[c];

			if (!(call->class_mask >> c & 1))
				continue;
			if (row == rows)
				call->class[call->classes++] = (struct put_class){
					.number = c,
					.share = share,
					.every_pages = row ? 0 : layout->class[c].every_pages,
					.capacity = space->capacity[c][share],
					.slot_bytes = layout->class[c].share[share].slot_bytes,
					.answers = answers,
					.cursor = { .grant = SLOTS_NONE },
				};
			if (!row && layout->class[c].every_pages == 1)
				call->always |= 1u << c;
			answers += row ? call->group_count : call->key_count;
		}
		if (!rows)
			call->page_classes = call->classes;
	}
	call->fits = values_fit(call, call->class_mask, call->key_count);
}

int put_start_begin(struct put_start *call, struct why *why)
{
	struct session *s = call->session;
	struct space *space = s->space;
	struct put_plan *plan;
	int r = check_call(call, why);

	if (r)
		return r;
	plan = plan_new(s, call->plan, call->group_count);
	if (!plan)
		return why_set(why, ENOMEM, "no memory for a plan of %u groups", call->group_count);
	r = session_hold(s, &plan->holding, why);
	if (r) {
		if (!session_reuse(s, &plan->holding))
			put_plan_destroy(&plan->holding);
		return r;
	}
	lock_take(&space->lock);
	r = session_sit(s, why);
	if (r) {
		lock_drop(&space->lock);
		session_forget(s, &plan->holding);
		if (!session_reuse(s, &plan->holding))
			put_plan_destroy(&plan->holding);
		return r;
	}
	plan->serial = ++space->plan_serial;
	plan->generation = atomic_load(&space->generation);
	space->stats.put_calls++;
	space->stats.put_plans++;
	index_tick(space->index);
	lock_drop(&space->lock);
	call->p = plan;
	call->put = (struct ticket_put){ 0 };
	call->ticketed = has_ticket(call);
	call->ended = false;
	call->summed = 0;
	memset(call->sum, 0, sizeof(call->sum));
	call->new_values = call->groups_ok = 0;
	call->group = call->key = call->in_group = 0;
	call->run = call->last_record = INDEX_NONE;
	call->last_page = 0;
	call_classes(call);
	return 0;
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
static void chunk_let_go(struct chunk *k)
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
static void answer_keys(struct put_start *call, uint32_t first, uint32_t keys, uint64_t answer)
{
	for (uint32_t c = 0; c < call->page_classes; c++)
		for (uint32_t i = 0; i < keys; i++)
			call->class[c].answers[first + i] = answer;
}

static void answer_rows(struct put_start *call, uint64_t answer)
{
	for (uint32_t c = call->page_classes; c < call->classes; c++)
		call->class[c].answers[call->group] = answer;
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

static inline void close_run(struct chunk *k)
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
		close_run(k);
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
		close_run(k);
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
static int put_key(struct chunk *k, const struct put_group *g, uint32_t i, uint32_t in_group)
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
		close_run(k);
		k->unknown--;
		answer_keys(call, call->key + i, 1, PUT_ANSWER_NONE);
	}
	call->previous = k->keys[i];
	call->last_record = hit->record;
	call->last_page = hit->page;
	return r;
}

/* ---- groups ---------------------------------------------------------------------------------------------------- */

static bool group_fits(const struct chunk *k, const struct put_group *g)
{
	if (g->flags & PUT_WHOLE && g->keys > PUT_RECORD_PAGES)
		return false;
	return k->call->fits || values_fit(k->call, g->class_mask, g->keys);
}

/* What the plan has now is the end of the group's part. */
static inline void group_ends_here(const struct put_plan *plan, struct plan_group *group)
{
	group->values = plan->values.count;
	group->pins = plan->pins.count;
	group->records = plan->records.count;
	group->waits = plan->wait_count;
}

static void group_open(struct chunk *k, const struct put_group *g)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	struct plan_group *group = &plan->group[call->group];

	*group = (struct plan_group){ .status = PUT_OK };
	group_ends_here(plan, group);
	plan->groups = call->group + 1;
	if (call->put.ticket && call->put.first)
		ticket_put_begin(&call->put);
	group->status = call->ended ? PUT_NOROOM : call->put.ticket && !call->put.first ? ticket_put_status(&call->put, call->group) : PUT_OK;
	if (group->status != PUT_OK) /* as the first rank was told */
		return;
	if (!group_fits(k, g)) {
		group->status = PUT_TOOBIG;
		k->space->stats.put_toobig++;
		return;
	}
	group->group = space_group_new(k->space, call->session, call->plan, call->group, plan->serial);
	if (!group->group) {
		group->status = PUT_NOROOM;
		k->space->stats.put_noroom++;
		space_refused(k->space, call->session->number);
		return;
	}
	plan->open++;
	killpoint(KILLPOINT_PUT_GROUP);
	call->previous = g->parent;
}

/* Under the lock: the record that the group's row belongs to: one that is there, or a zero-page one; INDEX_NONE: the tables
 * are full. */
static uint32_t group_row_home(struct chunk *k, const struct put_group *g)
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
static int group_row(struct chunk *k, const struct put_group *g)
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
			record = group_row_home(k, g);
			if (record == INDEX_NONE)
				return CHUNK_NOROOM;
			first = !row_begun(k, record);
		}
		answer = put_value(k, g, class, record, INDEX_PAGE_ROW, &call->previous);
		if (answer == PUT_ANSWER_NONE)
			return CHUNK_NOROOM;
		class->answers[call->group] = answer;
	}
	close_run(k);
	if (k->plan->values.count > before)
		row_taken(k, g, record, first);
	return CHUNK_DONE;
}

/* Under the lock: the group's last key was answered. */
static int group_close(struct chunk *k, const struct put_group *g)
{
	struct put_plan *plan = k->plan;
	struct plan_group *group = &plan->group[k->call->group];

	close_run(k);
	if (g->class_mask & k->call->row_mask) {
		int r = group_row(k, g);

		if (r)
			return r;
	}
	group_ends_here(plan, group);
	k->call->groups_ok++;
	return CHUNK_DONE;
}

/* The group is decided, for all ranks where there is a ticket. */
static void group_next(struct put_start *call)
{
	if (call->put.ticket && call->put.first)
		ticket_put_decide(&call->put, call->group, call->p->group[call->group].status);
	call->status[call->group] = call->p->group[call->group].status;
	call->group++;
	call->in_group = 0;
}

/* ---- chunks ----------------------------------------------------------------------------------------------------- */

/* Without the lock: the chunk's keys, each read once, and the lines that their look-up will touch. */
static bool chunk_fetch(struct chunk *k)
{
	struct put_start *call = k->call;
	uint32_t columns = k->layout->page_columns + k->layout->row_columns;

	k->count = call->key_count - call->key;
	if (k->count > INDEX_STEP_KEYS)
		k->count = INDEX_STEP_KEYS;
	memcpy(k->keys, &call->keys[call->key], k->count * sizeof(k->keys[0]));
	__asm__ __volatile__("" : : "r"(k->keys) : "memory"); /* the copy is what is used from here on */
	index_prefetch(k->space->index, k->keys, k->count, k->hashes);
	memset(k->seen, 0, sizeof(k->seen));
	if (call->put.ticket && (!ticket_put_reserve_begun(&call->put, 2 * INDEX_STEP_KEYS) ||
				 (call->put.first && !ticket_put_reserve(&call->put, 2 * INDEX_STEP_KEYS))))
		return false;
	return vec32_reserve(&k->plan->values, INDEX_STEP_KEYS * (columns + 1)) &&
	       vec32_reserve(&k->plan->pins, 2 * INDEX_STEP_KEYS + 1) &&
	       vec32_reserve(&k->plan->records, 2 * INDEX_STEP_KEYS + 1);
}

/* Under the lock: what was found stays while room is made. */
static void chunk_pin(struct chunk *k, uint32_t i)
{
	struct put_plan *plan = k->plan;
	uint32_t record = k->hits[i].record;

	if (record == INDEX_NONE || index_record(k->space->index, record)->state != RECORD_LIVE)
		return;
	if (plan->pins.count > GROUP_FROM(plan, k->call->group, pins) && plan->pins.at[plan->pins.count - 1] == record)
		return;
	session_pin(k->call->session, record);
	vec32_push(&plan->pins, record);
	if (k->call->put.ticket && k->call->put.first)
		ticket_put_pin(&k->call->put, record);
}

/* Under the lock: where the chunk's keys stand now. */
static void chunk_look(struct chunk *k)
{
	index_lookup_hashed(k->space->index, k->keys, k->hashes, k->count, ~0u, false, k->hits);
	k->unknown = 0;
	for (uint32_t i = 0; i < k->count; i++)
		k->unknown += k->hits[i].record == INDEX_NONE;
	k->known = k->unknown < k->count;
	k->pinned_to = k->held = 0;
	k->holds = false;
}

/* Under the lock: works through the chunk. Returns how many keys were done; *noroom: the group of the next one must be
 * undone. */
static uint32_t chunk_work(struct chunk *k, bool *noroom)
{
	struct put_start *call = k->call;
	uint32_t i = 0;

	*noroom = false;
	while (i < k->count) {
		const struct put_group *g = &call->groups[call->group];
		uint32_t here = g->keys - call->in_group;
		uint32_t end = here > k->count - i ? k->count : i + here;

		if (!call->in_group)
			group_open(k, g);
		if (k->plan->group[call->group].status != PUT_OK) {
			*noroom = true; /* its keys are passed over outside */
			return i;
		}
		if (k->pinned_to < end && k->known) /* pins of one group stand together in the plan */
			for (k->pinned_to = i; k->pinned_to < end; k->pinned_to++)
				chunk_pin(k, k->pinned_to);
		for (; i < end; i++) {
			if (g->flags & PUT_ROW_ONLY) {
				call->previous = k->keys[i];
			} else if (put_key(k, g, i, call->in_group)) {
				*noroom = true;
				return i;
			}
			call->in_group++;
		}
		if (call->in_group == g->keys) {
			int r = group_close(k, g);

			k->nopages = r == CHUNK_NOPAGES;
			if (r) {
				*noroom = true;
				return i;
			}
			group_next(call);
		}
	}
	return i;
}

/* The current group got no room: undone, its keys answered NONE and passed over. */
static void group_refused(struct chunk *k)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	struct plan_group *group = &plan->group[call->group];
	const struct put_group *g = &call->groups[call->group];
	uint32_t first = call->key - call->in_group; /* call->key counts the group's keys that were done */

	if (group->status == PUT_OK) {
		lock_take(&k->space->lock);
		close_run(k);
		if (!k->nopages) {
			k->space->stats.put_noroom++;
			space_refused(k->space, call->session->number);
		}
		lock_drop(&k->space->lock);
		group_ends_here(plan, group);
		call->new_values -= group->values - GROUP_FROM(plan, call->group, values);
		put_group_undo(k->call->session, plan, call->group, k->nopages ? PUT_NOPAGES : PUT_NOROOM, NULL);
	}
	answer_keys(call, first, g->keys, PUT_ANSWER_NONE);
	answer_rows(call, PUT_ANSWER_NONE);
	call->key = first + g->keys;
	if (call->put.ticket && call->put.first)
		ticket_put_undo(&call->put);
	lock_take(&k->space->lock);
	group_next(call);
	lock_drop(&k->space->lock);
}

static void call_undo(struct put_start *call)
{
	struct put_plan *plan = call->p;
	struct space *space = call->session->space;
	struct chunk k = { .call = call, .space = space, .plan = plan, .layout = space->layout };

	ticket_put_done(&call->put, true);
	if (call->in_group) { /* the open group */
		lock_take(&space->lock);
		close_run(&k);
		lock_drop(&space->lock);
		group_ends_here(plan, &plan->group[call->group]);
	}
	for (uint32_t i = 0; i < plan->groups; i++)
		if (plan->group[i].status == PUT_OK)
			put_group_undo(call->session, plan, i, PUT_ABORTED, NULL);
	put_plan_finish(call->session, plan, 0);
}

/* What sessions/<id> shows of the plan: once for a call, since counting value by value costs 8 ns each. */
static void note_size(const struct put_start *call, const struct layout *layout)
{
	const struct tables *tables = &call->session->space->tables;
	struct put_plan *plan = call->p;
	uint64_t bytes = 0;

	plan->holding.values = plan->holding.sized = call->new_values;
	if (layout->page_columns + layout->row_columns == 1) {
		plan->holding.bytes = call->new_values * layout->class[0].share[0].slot_bytes;
		return;
	}
	for (uint32_t i = 0; i < plan->groups; i++)
		for (uint32_t v = GROUP_FROM(plan, i, values); v < plan->group[i].values && plan->group[i].status == PUT_OK; v++) {
			const struct entry *e = &tables->entries[plan->values.at[v]];

			bytes += layout->class[e->class_index].share[e->share].slot_bytes;
		}
	plan->holding.bytes = bytes;
}

int put_start_step(struct put_start *call, struct why *why)
{
	struct space *space = call->session->space;
	struct chunk k = { .call = call, .space = space, .plan = call->p, .layout = space->layout };
	uint32_t stop = call->key + PUT_STEP_KEYS;
	bool noroom = false, over, stale;

	if (call->ticketed) {
		int r = atomic_load(&call->session->ended) ? why_set(why, ESHUTDOWN, "the session has ended") : put_ticket_come(call, why);

		if (r < 0)
			call_undo(call);
		if (r)
			return r;
	}
	while (call->group < call->group_count && call->key < stop) {
		if (atomic_load(&call->session->ended)) {
			call_undo(call);
			return why_set(why, ESHUTDOWN, "the session has ended");
		}
		if (!chunk_fetch(&k)) {
			call_undo(call);
			return why_set(why, ENOMEM, "no memory for the plan's %u keys", call->key_count);
		}
		lock_take(&space->lock);
		k.new_values = 0;
		k.nopages = false;
		over = call->session->pins > SESSION_MAX_PINS - 2 * INDEX_STEP_KEYS;
		stale = put_plan_stale(call->p, space);
		if (!over && !stale) {
			chunk_look(&k);
			call->key += chunk_work(&k, &noroom);
			chunk_let_go(&k);
		}
		space->stats.put_new += k.new_values;
		space->stats.slots_prepared += k.new_values;
		call->new_values += k.new_values;
		space_look_ahead(space);
		lock_drop(&space->lock);
		if (stale) {
			call_undo(call);
			return why_set(why, ESTALE, "the namespace was reset, to generation %llu, while the plan began",
				       (unsigned long long)space_generation(space));
		}
		if (over) {
			call_undo(call);
			return why_set(why, EDQUOT, "the session holds %u pins, the most that it may", SESSION_MAX_PINS);
		}
		if (noroom)
			group_refused(&k);
	}
	if (call->group < call->group_count)
		return STEP_MORE;
	ticket_put_done(&call->put, false);
	if (!call->p->open) {
		put_plan_finish(call->session, call->p, 0);
		return 0;
	}
	note_size(call, space->layout);
	session_unclaim(call->session, &call->p->holding);
	return 0;
}
