/* SPDX-License-Identifier: Apache-2.0
 *
 * Emptying a place of the store's: values go because of where they lie, not because they are the coldest of all. What
 * is cold goes as it would have gone in its time, leaf first; what is warm goes alone, so that a shared prompt that lies
 * among cold values costs one put and not its whole tree.
 */
#include "index/internal.h"

uint32_t index_clock(const struct index *index)
{
	lock_assert_held(index->guard);
	return index->tick;
}

/* Apart from who hangs off it. The links of a hidden one are dead: index_retire lets it go. */
static bool busy(const struct index *index, const struct record *r)
{
	return record_hidden(index, r) || r->state != RECORD_LIVE || r->pins || r->unsettled || r->flags & RECORD_FLAG_HELD;
}

static uint32_t age_of(const struct index *index, const struct record *r, uint32_t page)
{
	uint32_t use = page == INDEX_PAGE_ROW ? record_last_use(index, r) : block_uses(index, r)[page];
	uint32_t age = index->tick - use;

	return age < INDEX_TICK_SPAN ? age : INDEX_TICK_SPAN;
}

bool index_value_age(struct index *index, uint32_t entry, uint32_t *age)
{
	const struct entry *e = &index->tables->entries[entry];

	lock_assert_held(index->guard);
	if (e->state != ENTRY_VALUE || busy(index, &index->records[e->record]))
		return false;
	*age = age_of(index, &index->records[e->record], e->page);
	return true;
}

/* ---- one value ----------------------------------------------------------------------------------------------- */

/* A child of @r that hangs off page @page or a later one: INDEX_NONE: there is none. False: it was not found within
 * *looks. */
static bool child_behind(const struct index *index, const struct record *r, uint32_t page, uint32_t *looks, uint32_t *ret)
{
	uint32_t c = r->child;

	*ret = INDEX_NONE;
	if (!r->children || (!record_is_zero(r) && page > r->deepest))
		return true;
	if (!record_is_zero(r))
		while (c != INDEX_NONE && index->records[c].parent_page < page) {
			if (*looks == 0)
				return false;
			--*looks;
			c = index->records[c].next;
		}
	*ret = c;
	return true;
}

/* The record whose last page goes before page @page of @record can: one that nothing hangs off. False: something on the
 * way to it is busy, WHOLE or far. */
static bool find_leaf(struct index *index, uint32_t record, uint32_t page, uint32_t *steps, uint32_t *ret)
{
	uint32_t looks = INDEX_EMPTY_DEPTH, before = looks, child;
	bool found = true;

	*ret = record;
	while ((found = child_behind(index, &index->records[*ret], page, &looks, &child)) && child != INDEX_NONE) {
		const struct record *c = &index->records[child];

		found = looks && !busy(index, c) && !(c->flags & RECORD_FLAG_WHOLE);
		if (!found)
			break;
		looks--;
		*ret = child;
		page = 0;
	}
	*steps -= before - looks < *steps ? before - looks : *steps;
	return found;
}

/* Does something that an operator holds hang off page @page of @record or a later one, or may it? Beyond INDEX_EMPTY_DEPTH
 * records it may. */
static bool held_behind(const struct index *index, uint32_t record, uint32_t page, uint32_t *steps)
{
	const struct record *r = &index->records[record];
	uint32_t at = r->child, looks = index->held ? INDEX_EMPTY_DEPTH : 0;
	bool held = false;

	if (!looks || (!record_is_zero(r) && page > r->deepest))
		return false;
	while (at != INDEX_NONE && !held) {
		const struct record *c = &index->records[at];
		bool behind = c->parent != record || record_is_zero(r) || c->parent_page >= page;

		held = !looks || (behind && c->flags & RECORD_FLAG_HELD);
		if (held)
			break;
		looks--;
		*steps -= *steps > 0;
		if (behind && c->child != INDEX_NONE) {
			at = c->child;
			continue;
		}
		while (index->records[at].next == INDEX_NONE && at != record)
			at = index->records[at].parent;
		at = at == record ? INDEX_NONE : index->records[at].next;
	}
	return held;
}

bool index_value_kept(struct index *index, uint32_t entry, uint32_t *steps)
{
	const struct entry *e = &index->tables->entries[entry];
	const struct record *r = &index->records[e->record];

	lock_assert_held(index->guard);
	assert(e->state == ENTRY_VALUE && !busy(index, r));
	if (e->page == INDEX_PAGE_ROW && !record_is_zero(r))
		return false;
	return held_behind(index, e->record, e->page == INDEX_PAGE_ROW ? 0 : e->page, steps);
}

/* The value of @entry, all shares of it: without one the others are of no use. Returns how many. */
static uint32_t value_alone(struct index *index, uint32_t entry, const struct index_sink *sink)
{
	const struct entry *e = &index->tables->entries[entry];
	const struct value_class *class = &index->layout->class[e->class_index];
	uint32_t entries[LAYOUT_MAX_SHARES], values = 0, n;
	const uint32_t *words = place_words(index, &index->records[e->record], e->page, &n) + class->first_column;

	for (uint32_t s = 0; s < class->shares; s++)
		if (word_is_value(words[s]))
			entries[values++] = words[s] & WORD_ENTRY;
	for (uint32_t i = 0; i < values; i++)
		value_drop(index, entries[i], false, INDEX_WHY_ROOM, sink);
	victim_gone(index, values);
	return values;
}

/* One step towards @entry's going; false: it cannot go. */
static bool evict_step(struct index *index, uint32_t entry, uint32_t old, uint32_t *steps, const struct index_sink *sink)
{
	const struct entry *e = &index->tables->entries[entry];
	uint32_t record = e->record, leaf, values;
	struct record *r = &index->records[record];
	bool row = e->page == INDEX_PAGE_ROW;

	if (r->flags & RECORD_FLAG_WHOLE) {
		if (!whole_drop(index, record, sink, &values))
			return false;
		*steps -= values < *steps ? values : *steps;
		victim_gone(index, values);
		return true;
	}
	if (row && !(record_is_zero(r) && r->children)) {
		--*steps;
		victim_gone(index, record_drop_row(index, record, sink));
		return true;
	}
	if (age_of(index, r, e->page) < old || !find_leaf(index, record, row ? 0 : e->page, steps, &leaf)) {
		if (held_behind(index, record, row ? 0 : e->page, steps))
			return false;
		values = value_alone(index, entry, sink);
		*steps -= values < *steps ? values : *steps;
		return true;
	}
	if (*steps == 0)
		return true; /* it was found and is found again */
	--*steps;
	victim_gone(index, record_drop_last(index, leaf, sink));
	return true;
}

int index_evict_value(struct index *index, uint32_t entry, uint32_t old, uint32_t *steps, const struct index_sink *sink)
{
	const struct entry *e = &index->tables->entries[entry];

	lock_assert_held(index->guard);
	index->why = INDEX_WHY_ROOM;
	_Static_assert(INDEX_EMPTY_DEPTH + 1 < INDEX_STEP_KEYS, "one stay gets to the deepest leaf and lets a page go");
	while (e->state == ENTRY_VALUE) {
		if (busy(index, &index->records[e->record]))
			return INDEX_E_BUSY;
		if (*steps == 0)
			return INDEX_E_MORE;
		if (!evict_step(index, entry, old, steps, sink))
			return INDEX_E_BUSY;
	}
	return e->state == ENTRY_QUARANTINED ? INDEX_E_BUSY : 0;
}
