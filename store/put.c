/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_START: names and slots for what a session is about to write.
 *
 * A call's keys are worked on in chunks of INDEX_STEP_KEYS, across its groups. Of each chunk the map lines are fetched
 * without the lock; then, in one short stay under it, the keys are looked up, what exists is pinned (so that making
 * room cannot evict it), and key by key each wanted value is answered: EXISTS, INFLIGHT, DUPLICATE or a fresh slot.
 * A group that gets no room, or whose row lacks its page, is undone whole and the chunk is begun again behind it.
 * The answers are put_values.c's.
 */
#include "store/put_start_private.h"

#include <errno.h>
#include <string.h>

#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/seating.h"
#include "store/ticket.h"

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

/* Under the lock: the group's last key was answered. */
static int group_close(struct chunk *k, const struct put_group *g)
{
	struct put_plan *plan = k->plan;
	struct plan_group *group = &plan->group[k->call->group];

	put_run_close(k);
	if (g->class_mask & k->call->row_mask) {
		int r = put_row(k, g);

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

static void answer_rows(struct put_start *call, uint64_t answer)
{
	for (uint32_t c = call->page_classes; c < call->classes; c++)
		call->class[c].answers[call->group] = answer;
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
		put_run_close(k);
		if (!k->nopages) {
			k->space->stats.put_noroom++;
			space_refused(k->space, call->session->number);
		}
		lock_drop(&k->space->lock);
		group_ends_here(plan, group);
		call->new_values -= group->values - GROUP_FROM(plan, call->group, values);
		put_group_undo(k->call->session, plan, call->group, k->nopages ? PUT_NOPAGES : PUT_NOROOM, NULL);
	}
	put_answer_keys(call, first, g->keys, PUT_ANSWER_NONE);
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
		put_run_close(&k);
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
			put_let_go(&k);
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
