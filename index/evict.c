/* SPDX-License-Identifier: Apache-2.0
 *
 * What leaves.
 *
 * A record is in an order (pages or orphans; rows; those with old values, olds.c) from when it could first go until it gets a child or is handed out.
 * Pins and new values do not take it out, they come and go too often: whoever is handed out and has values of groups
 * under way is left out, and comes back when the last of them is settled (candidate_consider). A pinned record that is
 * handed out is selected: its last page is owed, and goes with its last pin unless it is used before. One call selects
 * at most one, or a single request among many busy records would later cost each of them a page.
 *
 * A WHOLE ring that cannot go counts as used now: it stays in the order, since what holds it up may be any member.
 */
#include "index/internal.h"

#include <errno.h>

static uint32_t view_page_use(void *context, uint32_t record)
{
	const struct index *index = context;
	const struct record *r = &index->records[record];

	return r->flags & RECORD_FLAG_WHOLE ? whole_last_use(index, record) : record_last_use(index, r);
}

static uint32_t *view_page_slot(void *context, uint32_t record)
{
	return &((struct index *)context)->records[record].policy_slot;
}

static uint32_t view_row_use(void *context, uint32_t record)
{
	const struct index *index = context;

	return record_last_use(index, &index->records[record]);
}

static uint32_t *view_row_slot(void *context, uint32_t record)
{
	return &((struct index *)context)->records[record].row_slot;
}

void policy_views(struct index *index, struct policy_view views[2])
{
	views[0] = (struct policy_view){index, view_page_use, view_page_slot};
	views[1] = (struct policy_view){index, view_row_use, view_row_slot};
}

/* ---- who may be asked to go ------------------------------------------------------------------------------------ */

static bool record_is_leaf(const struct record *r)
{
	return record_is_zero(r) || r->flags & RECORD_FLAG_WHOLE ? r->children == 0 : r->tail_children == 0;
}

/* Apart from pins. */
static bool page_candidate(const struct record *r)
{
	return r->state == RECORD_LIVE && !r->unsettled && !(r->flags & RECORD_FLAG_HELD) &&
	       (r->pages || r->flags & RECORD_FLAG_ROW) && record_is_leaf(r);
}

static bool row_candidate(const struct record *r)
{
	return r->state == RECORD_LIVE && !r->unsettled && r->flags & RECORD_FLAG_ROW &&
	       !(r->flags & (RECORD_FLAG_HELD | RECORD_FLAG_WHOLE)) && !(record_is_zero(r) && r->children);
}

static struct policy *page_order(const struct index *index, const struct record *r)
{
	return r->flags & RECORD_FLAG_ORPHAN ? index->lost : index->pages;
}

static void enter(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	if (r->policy_slot == INDEX_NONE && page_candidate(r))
		policy_lru.insert(page_order(index, r), record);
	if (index->row_columns && r->row_slot == INDEX_NONE && row_candidate(r))
		policy_lru.insert(index->rows, record);
	if (index->olds && index->old_slot[record] == INDEX_NONE && old_candidate(index, r))
		policy_lru.insert(index->olds, record);
}

void candidate_consider(struct index *index, uint32_t record)
{
	if (!index->records[record].pins && !record_hidden(index, &index->records[record]))
		enter(index, record);
}

void candidate_withdraw(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	if (record_hidden(index, r)) /* the orders were emptied */
		return;
	if (r->policy_slot != INDEX_NONE)
		policy_lru.remove(page_order(index, r), record);
	if (r->row_slot != INDEX_NONE)
		policy_lru.remove(index->rows, record);
	if (index->olds && index->old_slot[record] != INDEX_NONE)
		policy_lru.remove(index->olds, record);
}

void candidate_recheck(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	if (record_hidden(index, r))
		return;
	if (r->policy_slot != INDEX_NONE && !page_candidate(r))
		policy_lru.remove(page_order(index, r), record);
	if (r->row_slot != INDEX_NONE && !row_candidate(r))
		policy_lru.remove(index->rows, record);
}

/* ---- the fate of victims --------------------------------------------------------------------------------------- */

void victim_gone(struct index *index, uint32_t values)
{
	index->counters.victims_selected += values;
	index->counters.victims_freed += values;
}

static void victim_select(struct index *index, struct record *r, uint32_t values)
{
	r->flags |= RECORD_FLAG_SELECTED;
	r->selected = (uint16_t)values;
	index->counters.victims_selected += values;
	index->counters.victims_pending += values;
}

static uint32_t victim_unselect(struct index *index, struct record *r)
{
	uint32_t values = r->selected;

	r->flags &= (uint8_t)~RECORD_FLAG_SELECTED;
	r->selected = 0;
	index->counters.victims_pending -= values;
	return values;
}

void victim_restore(struct index *index, struct record *r)
{
	index->counters.victims_restored += victim_unselect(index, r);
}

void victim_obsolete(struct index *index, struct record *r)
{
	index->counters.victims_obsolete += victim_unselect(index, r);
}

void victim_resolve(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];

	if (!page_candidate(r) || r->flags & RECORD_FLAG_WHOLE) {
		victim_obsolete(index, r); /* it has become a parent, pinned by an operator, or empty */
		record_review(index, record, sink);
		return;
	}
	index->why = INDEX_WHY_ROOM;
	uint32_t owed = victim_unselect(index, r);
	uint32_t freed = record_drop_last(index, record, sink);

	index->counters.victims_freed += freed;
	if (freed > owed)
		index->counters.victims_selected += freed - owed;
	else
		index->counters.victims_obsolete += owed - freed;
}

/* ---- evicting -------------------------------------------------------------------------------------------------- */

static uint32_t first_value(const struct index *index, const struct record *r, uint32_t page)
{
	uint32_t word = place_any(index, r, page);

	return word_is_value(word) ? word & WORD_ENTRY : INDEX_NONE;
}

/* The first entry that the step would free, INDEX_NONE when it frees none. */
static uint32_t step_entry(const struct index *index, const struct record *r)
{
	uint32_t entry = r->flags & RECORD_FLAG_ROW ? first_value(index, r, INDEX_PAGE_ROW) : INDEX_NONE;

	return entry == INDEX_NONE && r->pages ? first_value(index, r, r->pages - 1u) : entry;
}

static uint32_t step_values(const struct index *index, const struct record *r)
{
	return (r->flags & RECORD_FLAG_ROW ? place_count_values(index, r, INDEX_PAGE_ROW) : 0) +
	       (r->pages ? place_count_values(index, r, r->pages - 1u) : 0);
}

/* Those that were passed over become candidates again, even pinned ones. */
void candidates_reenter(struct index *index, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		enter(index, index->passed_over[i]);
}

int index_evict_page(struct index *index, bool (*accept)(void *context, uint32_t entry), void *context,
	const struct index_sink *sink)
{
	uint32_t passed = 0;
	bool selected = false;
	int result = INDEX_E_NOTHING;

	lock_assert_held(index->guard);
	index->why = INDEX_WHY_ROOM;
	while (passed < INDEX_MAX_TRIES) {
		uint32_t record = policy_lru.pop(index->lost);

		if (record == INDEX_NONE)
			record = policy_lru.pop(index->pages);
		if (record == INDEX_NONE)
			break;

		struct record *r = &index->records[record];

		if (!page_candidate(r))
			continue;
		uint32_t entry = step_entry(index, r);

		if (accept && entry != INDEX_NONE && !accept(context, entry)) {
			index->passed_over[passed++] = record;
		} else if (r->flags & RECORD_FLAG_WHOLE) {
			uint32_t values;

			if (whole_drop(index, record, sink, &values)) {
				victim_gone(index, values);
				result = 0;
				break;
			}
			record_use(index, r, r->pages ? r->pages - 1u : 0, index->tick);
			index->passed_over[passed++] = record;
		} else if (r->pins) {
			if (selected)
				index->passed_over[passed++] = record;
			else
				victim_select(index, r, step_values(index, r));
			selected = true;
		} else {
			victim_gone(index, record_drop_last(index, record, sink));
			result = 0;
			break;
		}
	}
	candidates_reenter(index, passed);
	return result;
}

int index_evict_row(struct index *index, bool (*accept)(void *context, uint32_t entry), void *context,
	const struct index_sink *sink)
{
	uint32_t passed = 0;
	int result = INDEX_E_NOTHING;

	lock_assert_held(index->guard);
	index->why = INDEX_WHY_ROOM;
	while (passed < INDEX_MAX_TRIES) {
		uint32_t record = policy_lru.pop(index->rows);

		if (record == INDEX_NONE)
			break;

		struct record *r = &index->records[record];
		uint32_t entry;

		if (!row_candidate(r) || r->pins || (entry = first_value(index, r, INDEX_PAGE_ROW)) == INDEX_NONE)
			continue;
		if (accept && !accept(context, entry)) {
			index->passed_over[passed++] = record;
			continue;
		}
		victim_gone(index, record_drop_row(index, record, sink));
		result = 0;
		break;
	}
	candidates_reenter(index, passed);
	return result;
}

bool index_coldest_age(struct index *index, bool row, uint32_t *age)
{
	struct policy *order = row ? index->rows : index->pages;
	uint32_t passed = 0, looked = 0;
	bool found = false;

	lock_assert_held(index->guard);
	if (!row && policy_lru.count(index->lost)) { /* they go before anything else */
		*age = INDEX_TICK_SPAN;
		return true;
	}
	while (!found && looked++ < INDEX_STEP_KEYS) {
		uint32_t record = policy_lru.pop(order);

		if (record == INDEX_NONE)
			break;

		const struct record *r = &index->records[record];
		uint32_t use = row ? view_row_use(index, record) : view_page_use(index, record);

		if (row && r->pins) /* comes back with its last pin; until then it may be owed a page */
			continue;
		index->passed_over[passed++] = record;
		found = !r->pins && (row ? row_candidate(r) : page_candidate(r));
		*age = index->tick - use < INDEX_TICK_SPAN ? index->tick - use : INDEX_TICK_SPAN;
	}
	candidates_reenter(index, passed);
	return found;
}

int index_may_evict_record(struct index *index, uint32_t record, struct why *why)
{
	lock_assert_held(index->guard);
	if (record >= index->record_top || !index_record_visible(index, record))
		return why_set(why, ENOENT, "record %u is not there", record);

	struct record *r = &index->records[record];

	if (r->state != RECORD_LIVE || r->unsettled)
		return why_set(why, EBUSY, "the record is still being filled (%u values)", r->unsettled);
	if (r->pins)
		return why_set(why, EBUSY, "the record is in use by %u plans, handles or readers", r->pins);
	if (r->flags & RECORD_FLAG_HELD)
		return why_set(why, EBUSY, "the record is pinned by an operator");
	if (!(r->flags & RECORD_FLAG_WHOLE) && r->children)
		return why_set(why, ENOTEMPTY, "the record has %u child records", r->children);
	return 0;
}

int index_evict_record(struct index *index, uint32_t record, const struct index_sink *sink, struct why *why)
{
	int r = index_may_evict_record(index, record, why);
	uint32_t values;

	if (r)
		return r;
	index->why = INDEX_WHY_HAND;
	if (!(index->records[record].flags & RECORD_FLAG_WHOLE))
		record_review(index, record_free(index, record, sink), sink);
	else if (!whole_drop(index, record, sink, &values))
		return why_set(why, index->records[record].children ? ENOTEMPTY : EBUSY,
			"another record of the same WHOLE group is in use or has children outside the group");
	return 0;
}
