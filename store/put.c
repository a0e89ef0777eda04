/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_START: names and slots for what a session is about to write.
 *
 * A call's keys are worked on in chunks of INDEX_STEP_KEYS, across its groups. Of each chunk the map lines are fetched
 * without the lock; then, in one short stay under it, the keys are looked up, what exists is pinned (so that making
 * room cannot evict it), and key by key each wanted value is answered: EXISTS, INFLIGHT, DUPLICATE or a fresh slot.
 * A group that gets no room is undone whole and the chunk is begun again behind it.
 */
#include "store/put_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store/host_private.h"

enum { CHUNK_DONE, CHUNK_NOROOM };

/* One stay under the lock. */
struct chunk {
	struct put_start *call;
	struct space *space;
	struct put_plan *plan;
	const struct layout *layout;
	uint32_t from, count;      /* keys of the call */
	struct key keys[INDEX_STEP_KEYS];
	struct index_hit hits[INDEX_STEP_KEYS];
	bool seen[256];            /* by fold(): a new key was named in this chunk, so look again before naming another */
};

/* A byte that differs for most pairs of keys, however they are made. */
static uint32_t fold(const struct key *key)
{
	uint64_t word = key->words[0] ^ key->words[1] ^ key->words[2] ^ key->words[3];

	return (uint32_t)((word * 0x9e3779b97f4a7c15ull) >> 56);
}

/* ---- checks -------------------------------------------------------------------------------------------------- */

static uint32_t mask_of(const struct layout *layout, bool rows)
{
	uint32_t mask = 0;

	for (uint32_t c = 0; c < layout->classes; c++)
		if (layout_is_row(layout, c) == rows)
			mask |= 1u << c;
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

static int check_group(const struct put_start *call, const struct layout *layout, uint32_t i, struct why *why)
{
	const struct put_group *g = &call->groups[i];
	uint32_t rows = mask_of(layout, true);
	uint64_t tokens = (uint64_t)g->keys * layout->page_tokens;

	if (!g->keys)
		return why_set(why, EINVAL, "group %u: it has no key", i);
	if (g->flags & ~(PUT_ROOT | PUT_WHOLE | PUT_ROW_ONLY))
		return why_set(why, EINVAL, "group %u: unknown flags 0x%x", i, g->flags);
	if (g->reserved)
		return why_set(why, EINVAL, "group %u: reserved is %u, not 0", i, g->reserved);
	if (!g->class_mask || g->class_mask & ~call->class_mask)
		return why_set(why, EINVAL, "group %u: class mask 0x%x is empty or no part of the call's 0x%x", i, g->class_mask,
			       call->class_mask);
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
	if (g->consumed % layout->page_tokens)
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
		int r = check_group(call, s->space->layout, i, why);

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
	plan->serial = ++space->plan_serial;
	space->stats.put_calls++;
	space->stats.put_plans++;
	index_tick(space->index);
	lock_drop(&space->lock);
	call->p = plan;
	call->new_values = call->groups_ok = 0;
	call->group = call->key = call->in_group = 0;
	call->run = INDEX_NONE;
	for (uint32_t c = 0; c < LAYOUT_MAX_CLASSES; c++)
		call->cursor[c].grant = SLOTS_NONE;
	return 0;
}

/* ---- room ---------------------------------------------------------------------------------------------------- */

struct acceptance {
	struct space *space;
	struct slots_filter filter;
};

static bool in_acknowledged(void *context, uint32_t entry)
{
	const struct acceptance *a = context;
	uint32_t grant = slots_grant_of(a->space->slots, entry);

	return a->filter.acknowledged[grant / 64] >> (grant % 64) & 1;
}

/* Under the lock: makes up to @want slots of (class, share) free, at least one: by letting victims go, unless there are
 * free slots that the session has yet to acknowledge, or the budget has room for another grant. */
static bool make_room(struct chunk *k, uint32_t class_index, uint32_t share, uint32_t want)
{
	struct space *space = k->space;
	struct session *s = k->call->session;
	struct slots_filter filter = session_filter(s), any = { NULL };
	struct acceptance a = { space, filter };
	struct index_sink sink = space_sink(space);
	uint32_t free = slots_free_count(space->slots, class_index, share, filter);
	bool row = layout_is_row(k->layout, class_index);

	if (!free && slots_free_count(space->slots, class_index, share, any))
		return false;
	if (!free && space_grow(space, class_index, share, s->node)) {
		free = slots_free_count(space->slots, class_index, share, filter);
		if (!free)
			return false;
	}
	while (free < want) {
		uint32_t before = free;
		int r = row ? index_evict_row(space->index, in_acknowledged, &a, &sink) :
			      index_evict_page(space->index, in_acknowledged, &a, &sink);

		if (r)
			break;
		free = slots_free_count(space->slots, class_index, share, filter);
		space->stats.values_evicted += free > before ? free - before : 0;
	}
	return free > 0;
}

/* Under the lock: a slot for one value, neighbouring the group's last one where that is possible. @want: slots to make free
 * if there is none; the group's keys that are left say how long a run is looked for. */
static uint32_t take_slot(struct chunk *k, uint32_t class_index, uint32_t share, uint32_t want)
{
	struct plan_group *open = &k->plan->group[k->call->group];
	uint32_t run = k->call->groups[k->call->group].keys - k->call->in_group;
	struct put_start *call = k->call;
	struct slots_cursor *cursor = &call->cursor[class_index];
	struct slots_filter filter = session_filter(call->session);
	uint32_t entry = SLOTS_NONE;

	/* a longer group looks for a run of its own once; a single value goes where the last one went */
	if (cursor->grant != SLOTS_NONE && (run <= 1 || open->sought >> class_index & 1))
		entry = slots_take(k->space->slots, cursor, filter);
	if (entry != SLOTS_NONE)
		return entry;
	open->sought |= (uint16_t)(1u << class_index);
	if (!slots_free_count(k->space->slots, class_index, share, filter) && !make_room(k, class_index, share, want))
		return SLOTS_NONE;
	slots_seek(k->space->slots, cursor, class_index, share, run ? run : 1, filter);
	return slots_take(k->space->slots, cursor, filter);
}

/* ---- one value, one key --------------------------------------------------------------------------------------- */

static void answer_all(struct put_start *call, uint32_t group, uint32_t first, uint32_t keys, uint64_t answer)
{
	const struct layout *layout = call->session->space->layout;
	uint64_t *at = call->answers;

	for (uint32_t c = 0; c < layout->classes; c++) {
		if (!(call->class_mask >> c & 1))
			continue;
		if (layout_is_row(layout, c)) {
			at[group] = answer;
			at += call->group_count;
			continue;
		}
		for (uint32_t i = 0; i < keys; i++)
			at[first + i] = answer;
		at += call->key_count;
	}
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

/* Under the lock: the answer for one value of @key at (record, page). @fresh: the page has none yet. PUT_ANSWER_NONE: there is no room for it. */
static uint64_t put_value(struct chunk *k, const struct put_group *g, uint32_t class_index, uint32_t record, uint16_t page,
			  bool fresh, const struct key *key, uint32_t want)
{
	struct space *space = k->space;
	struct put_plan *plan = k->plan;
	uint32_t share = k->call->session->share[class_index];
	uint32_t group = plan->group[k->call->group].group, entry = INDEX_NONE;
	bool committed;

	if (!fresh)
		entry = index_value(space->index, record, page, layout_column(k->layout, class_index, share), &committed);
	if (entry != INDEX_NONE && committed) {
		space->stats.put_exists++;
		return PUT_ANSWER_EXISTS;
	}
	if (entry != INDEX_NONE) {
		uint32_t other = space->tables.entries[entry].group;

		if (space->group_owner[other - 1] == plan->serial) {
			space->stats.put_duplicate++;
			return PUT_ANSWER_DUPLICATE;
		}
		space->stats.put_inflight++;
		if (g->flags & PUT_WHOLE && !wait_push(plan, key))
			return PUT_ANSWER_NONE;
		return PUT_ANSWER_INFLIGHT;
	}
	if (k->call->session->prepared_bytes >= space->host->config.memory_bytes / SESSION_PREPARED_PART)
		return PUT_ANSWER_NONE;
	entry = take_slot(k, class_index, share, want);
	if (entry == SLOTS_NONE)
		return PUT_ANSWER_NONE;
	index_value_add(space->index, record, page, key, class_index, share, entry, group);
	vec32_push(&plan->values, entry);
	space->stats.put_new++;
	space->stats.slots_prepared++;
	k->call->session->prepared_bytes += k->layout->class[class_index].share[share].slot_bytes;
	k->call->new_values++;
	return slots_offset(space->slots, entry);
}

static void close_run(struct chunk *k)
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

/* Under the lock: the page for an unknown key, in the open run or in a new record. */
static bool new_page(struct chunk *k, const struct put_group *g, uint32_t in_group, const struct key *key, uint32_t *record,
		     uint16_t *page)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	uint32_t left = g->keys - in_group;

	if (call->run != INDEX_NONE && call->run_pages == PUT_RECORD_PAGES)
		close_run(k);
	if (call->run == INDEX_NONE) {
		bool root = in_group == 0 && g->flags & PUT_ROOT;
		struct index_run run = {
			.parent_key = root ? NULL : in_group ? &call->previous : &g->parent,
			.consumed = g->consumed - (uint64_t)left * k->layout->page_tokens,
			.max_pages = left > PUT_RECORD_PAGES ? PUT_RECORD_PAGES : left,
			.group = plan->group[call->group].group,
			.flags = g->flags & PUT_WHOLE ? RECORD_WHOLE : 0,
			.whole_ring = plan->records.count > GROUP_FROM(plan, call->group, records) ?
					      plan->records.at[plan->records.count - 1] : INDEX_NONE,
		};

		call->run = index_record_new(k->space->index, &run);
		if (call->run == INDEX_NONE)
			return false;
		call->run_pages = 0;
		vec32_push(&plan->records, call->run);
	}
	*record = call->run;
	*page = index_page_append(k->space->index, call->run);
	call->run_pages++;
	return true;
}

/* Is any value of the group's classes stored at @consumed tokens? */
static bool page_has_values(const struct layout *layout, uint32_t class_mask, uint64_t consumed)
{
	for (uint32_t c = 0; c < layout->classes; c++)
		if (class_mask >> c & 1 && !layout_is_row(layout, c) && layout_has_value(layout, c, consumed))
			return true;
	return false;
}

/* Under the lock: all answers for key @i of the chunk, which is number @in_group of its group. */
static int put_key(struct chunk *k, const struct put_group *g, uint32_t i, uint32_t in_group, uint32_t want)
{
	struct put_start *call = k->call;
	const struct layout *layout = k->layout;
	const struct key *key = &k->keys[i];
	struct index_hit *hit = &k->hits[i];
	uint64_t consumed = g->consumed - (uint64_t)(g->keys - 1 - in_group) * layout->page_tokens;
	uint64_t *at = call->answers;
	bool *seen = &k->seen[fold(key)];
	bool fresh = false;

	if (hit->record == INDEX_NONE && *seen)
		index_lookup(k->space->index, key, 1, g->class_mask, hit); /* perhaps it stands earlier in this chunk */
	if (hit->record == INDEX_NONE) {
		if (!page_has_values(layout, g->class_mask, consumed)) {
			close_run(k); /* a page without values has no name: what follows hangs off an unknown parent */
			hit->record = INDEX_NONE;
		} else if (!new_page(k, g, in_group, key, &hit->record, &hit->page)) {
			return CHUNK_NOROOM;
		}
		fresh = hit->record != INDEX_NONE;
		*seen = true;
	} else if (hit->record != call->run) {
		close_run(k);
	}
	for (uint32_t c = 0; c < layout->classes; c++) {
		uint64_t answer = PUT_ANSWER_NONE;

		if (!(call->class_mask >> c & 1) || layout_is_row(layout, c)) {
			at += call->class_mask >> c & 1 ? call->group_count : 0;
			continue;
		}
		if (g->class_mask >> c & 1 && hit->record != INDEX_NONE && layout_has_value(layout, c, consumed)) {
			answer = put_value(k, g, c, hit->record, hit->page, fresh, key, want);
			if (answer == PUT_ANSWER_NONE)
				return CHUNK_NOROOM;
		}
		at[call->key + i] = answer;
		at += call->key_count;
	}
	call->previous = *key;
	return CHUNK_DONE;
}

/* ---- groups ---------------------------------------------------------------------------------------------------- */

/* Can the group's new values ever lie in memory together? */
static bool group_fits(const struct chunk *k, const struct put_group *g)
{
	if (g->flags & PUT_WHOLE && g->keys > PUT_RECORD_PAGES)
		return false;
	for (uint32_t c = 0; c < k->layout->classes; c++) {
		uint32_t every = k->layout->class[c].every_pages;
		uint64_t need = layout_is_row(k->layout, c) ? 1 : every == 1 ? g->keys : g->keys / every;

		if (g->class_mask >> c & 1 && need > k->space->capacity[c][k->call->session->share[c]])
			return false;
	}
	return true;
}

static void group_open(struct chunk *k, const struct put_group *g)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	struct plan_group *group = &plan->group[call->group];

	*group = (struct plan_group){
		.values = plan->values.count,
		.pins = plan->pins.count,
		.records = plan->records.count,
		.waits = plan->wait_count,
		.status = PUT_OK,
	};
	plan->groups = call->group + 1;
	if (!group_fits(k, g)) {
		group->status = PUT_TOOBIG;
		k->space->stats.put_toobig++;
		return;
	}
	group->group = space_group_new(k->space, call->session->client_id, call->plan, call->group, plan->serial);
	if (!group->group) {
		group->status = PUT_NOROOM;
		k->space->stats.put_noroom++;
		space_refused(k->space, call->session->number);
		return;
	}
	plan->open++;
	call->previous = g->parent;
}

/* Under the lock: the row of the group at its endpoint, after its pages. */
static int group_row(struct chunk *k, const struct put_group *g)
{
	struct put_start *call = k->call;
	struct put_plan *plan = k->plan;
	uint64_t *at = call->answers;
	uint32_t record = INDEX_NONE;

	for (uint32_t c = 0; c < k->layout->classes; c++) {
		uint64_t answer;

		if (!(call->class_mask >> c & 1))
			continue;
		if (!layout_is_row(k->layout, c)) {
			at += call->key_count;
			continue;
		}
		if (!(g->class_mask >> c & 1)) {
			at[call->group] = PUT_ANSWER_NONE;
			at += call->group_count;
			continue;
		}
		if (record == INDEX_NONE)
			record = index_row_home(k->space->index, &call->previous);
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
				return CHUNK_NOROOM;
			vec32_push(&plan->records, record);
			call->run = record; /* closed when its row has a value */
		} else if (index_record(k->space->index, record)->state == RECORD_LIVE) {
			session_pin(k->call->session, record);
			vec32_push(&plan->pins, record);
		}
		answer = put_value(k, g, c, record, INDEX_PAGE_ROW, false, &call->previous, 1);
		if (answer == PUT_ANSWER_NONE)
			return CHUNK_NOROOM;
		at[call->group] = answer;
		at += call->group_count;
	}
	close_run(k);
	return CHUNK_DONE;
}

/* Under the lock: the group's last key was answered. */
static int group_close(struct chunk *k, const struct put_group *g)
{
	struct put_plan *plan = k->plan;
	struct plan_group *group = &plan->group[k->call->group];

	close_run(k);
	if (g->class_mask & mask_of(k->layout, true)) {
		int r = group_row(k, g);

		if (r)
			return r;
	}
	group->values = plan->values.count;
	group->pins = plan->pins.count;
	group->records = plan->records.count;
	group->waits = plan->wait_count;
	k->call->groups_ok++;
	return CHUNK_DONE;
}

static void group_next(struct put_start *call)
{
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
	index_prefetch(k->space->index, k->keys, k->count);
	memset(k->seen, 0, sizeof(k->seen));
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
}

/* Under the lock: works through the chunk. Returns how many keys were done; *noroom: the group of the next one must be
 * undone. */
static uint32_t chunk_work(struct chunk *k, bool *noroom)
{
	struct put_start *call = k->call;
	uint32_t i = 0, unknown = 0, pinned_to = 0;

	index_lookup(k->space->index, k->keys, k->count, ~0u, k->hits);
	for (uint32_t j = 0; j < k->count; j++)
		unknown += k->hits[j].record == INDEX_NONE;
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
		if (pinned_to < end) /* pins of one group stand together in the plan */
			for (pinned_to = i; pinned_to < end; pinned_to++)
				chunk_pin(k, pinned_to);
		for (; i < end; i++) {
			if (g->flags & PUT_ROW_ONLY) {
				call->previous = k->keys[i];
			} else if (put_key(k, g, i, call->in_group, unknown)) {
				*noroom = true;
				return i;
			}
			unknown -= unknown > 0 && k->hits[i].record == call->run && call->run != INDEX_NONE;
			call->in_group++;
		}
		if (call->in_group == g->keys) {
			if (group_close(k, g)) {
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
		k->space->stats.put_noroom++;
		space_refused(k->space, call->session->number);
		lock_drop(&k->space->lock);
		group->values = plan->values.count;
		group->pins = plan->pins.count;
		group->records = plan->records.count;
		group->waits = plan->wait_count;
		call->new_values -= group->values - GROUP_FROM(plan, call->group, values);
		put_group_undo(k->call->session, plan, call->group, PUT_NOROOM, NULL);
	}
	answer_all(call, call->group, first, g->keys, PUT_ANSWER_NONE);
	call->key = first + g->keys;
	group_next(call);
}

static void call_undo(struct put_start *call)
{
	struct put_plan *plan = call->p;
	struct space *space = call->session->space;
	struct chunk k = { .call = call, .space = space, .plan = plan, .layout = space->layout };

	if (call->in_group) { /* the open group */
		lock_take(&space->lock);
		close_run(&k);
		lock_drop(&space->lock);
		plan->group[call->group].values = plan->values.count;
		plan->group[call->group].pins = plan->pins.count;
		plan->group[call->group].records = plan->records.count;
		plan->group[call->group].waits = plan->wait_count;
	}
	for (uint32_t i = 0; i < plan->groups; i++)
		if (plan->group[i].status == PUT_OK)
			put_group_undo(call->session, plan, i, PUT_ABORTED, NULL);
	put_plan_finish(call->session, plan, 0);
}

int put_start_step(struct put_start *call, struct why *why)
{
	struct space *space = call->session->space;
	struct chunk k = { .call = call, .space = space, .plan = call->p, .layout = space->layout };
	uint32_t stop = call->key + PUT_STEP_KEYS;
	bool noroom = false, over;

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
		over = call->session->pins > SESSION_MAX_PINS - 2 * INDEX_STEP_KEYS;
		if (!over)
			call->key += chunk_work(&k, &noroom);
		space_look_ahead(space);
		lock_drop(&space->lock);
		if (over) {
			call_undo(call);
			return why_set(why, EDQUOT, "the session holds %u pins, the most that it may", SESSION_MAX_PINS);
		}
		if (noroom)
			group_refused(&k);
	}
	if (call->group < call->group_count)
		return STEP_MORE;
	if (!call->p->open) {
		put_plan_finish(call->session, call->p, 0);
		return 0;
	}
	session_unclaim(call->session, &call->p->holding);
	return 0;
}
