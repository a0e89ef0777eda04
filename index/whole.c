/* SPDX-License-Identifier: Apache-2.0
 *
 * WHOLE groups: their records form a ring through the tables and leave together or not at all.
 */
#include "index/internal.h"

static uint32_t ring_next(const struct index *index, uint32_t record)
{
	return record_table(index, record)->whole_next;
}

static void ring_set_next(struct index *index, uint32_t record, uint32_t next)
{
	__atomic_store_n(&record_table(index, record)->whole_next, next, __ATOMIC_RELEASE);
}

static uint32_t ring_before(const struct index *index, uint32_t record)
{
	uint32_t m = record;

	while (ring_next(index, m) != record)
		m = ring_next(index, m);
	return m;
}

void whole_insert(struct index *index, uint32_t record, uint32_t ring)
{
	if (ring == INDEX_NONE) {
		ring_set_next(index, record, record);
		return;
	}
	assert(index->records[ring].flags & RECORD_FLAG_WHOLE);
	ring_set_next(index, record, ring_next(index, ring));
	ring_set_next(index, ring, record);
}

void whole_remove(struct index *index, uint32_t record)
{
	ring_set_next(index, ring_before(index, record), ring_next(index, record));
}

/* @to stands where @from stood; when it has a ring of its own the two become one. */
void whole_take_over(struct index *index, uint32_t from, uint32_t to)
{
	struct record *f = &index->records[from], *t = &index->records[to];
	uint32_t before = ring_before(index, from);
	uint32_t after = ring_next(index, from);

	f->flags &= (uint8_t)~RECORD_FLAG_WHOLE;
	if (t->flags & RECORD_FLAG_SELECTED) /* rings are never selected */
		victim_obsolete(index, t);
	if (!(t->flags & RECORD_FLAG_WHOLE)) {
		struct record_entry *table = record_table(index, to);

		candidate_withdraw(index, to);
		ring_set_next(index, to, after == from ? to : after);
		__atomic_store_n(&table->flags, table->flags | RECORD_WHOLE, __ATOMIC_RELEASE);
		t->flags |= RECORD_FLAG_WHOLE;
		if (before != from)
			ring_set_next(index, before, to);
		return;
	}
	if (before == from)
		return;

	bool same = false;

	for (uint32_t m = after; m != from && !same; m = ring_next(index, m))
		same = m == to;
	if (same) {
		ring_set_next(index, before, after);
		return;
	}
	/* before -> [to -> ... around to's ring] -> after: a walk from anywhere still meets everyone */
	uint32_t last = ring_before(index, to);

	ring_set_next(index, last, after);
	ring_set_next(index, before, to);
}

uint32_t whole_last_use(const struct index *index, uint32_t record)
{
	uint32_t newest = record_last_use(index, &index->records[record]);

	for (uint32_t m = ring_next(index, record); m != record; m = ring_next(index, m)) {
		const struct record *r = &index->records[m];

		if (r->state != RECORD_LIVE) /* being published: walk no further, its rest may be gone */
			break;
		uint32_t tick = record_last_use(index, r);

		if ((int32_t)(tick - newest) > 0)
			newest = tick;
	}
	return newest;
}

/* ---- going ------------------------------------------------------------------------------------------------------
 *
 * A ring may go when everything that hangs off its members is theirs. If something else does, it usually goes first, in
 * its own time. But rings and records can hold each other up: a member may hang off a record that hangs off another
 * member (keys that existed when the group was put), or two rings off each other. So all descendants are gathered, with
 * the rings that they are in: when none of them could go alone they go together, else the ring waits.
 *
 * Gathered records are marked in `selected` with 1 + the number of their item (a ring or a single record): it is 0 in
 * all that are idle. */

static bool gathered(const struct record *r)
{
	return r->selected && !(r->flags & RECORD_FLAG_SELECTED);
}

static bool idle(const struct record *r)
{
	return r->state == RECORD_LIVE && !r->pins && !r->unsettled && !(r->flags & RECORD_FLAG_HELD);
}

static uint32_t item_next(const struct index *index, uint32_t record)
{
	return index->records[record].flags & RECORD_FLAG_WHOLE ? ring_next(index, record) : record;
}

/* Of a ring that is walked as a whole one member is LIVE: its group is committed and nobody has gone. */
static bool gather_item(struct index *index, uint32_t record)
{
	uint32_t m = record;

	if (index->gathered == INDEX_MAX_GATHER || index->records[record].state != RECORD_LIVE)
		return false;
	index->gather[index->gathered++] = record;
	do {
		if (!idle(&index->records[m]))
			return false;
		index->records[m].selected = (uint16_t)index->gathered;
		m = item_next(index, m);
	} while (m != record);
	return true;
}

/* False: something behind it is busy, or could go alone. */
static bool gather_children(struct index *index, uint32_t item)
{
	uint32_t record = index->gather[item];
	const struct record *first = &index->records[record];
	bool outside = false;
	uint32_t m = record;

	if (!(first->flags & RECORD_FLAG_WHOLE) && !first->tail_children)
		return false;
	do {
		for (uint32_t c = index->records[m].child; c != INDEX_NONE; c = index->records[c].next) {
			if (!gathered(&index->records[c]) && !gather_item(index, c))
				return false;
			outside |= index->records[c].selected != item + 1;
		}
		m = item_next(index, m);
	} while (m != record);
	return outside || item == 0;
}

static void gather_forget(struct index *index)
{
	for (uint32_t i = 0; i < index->gathered; i++) {
		uint32_t m = index->gather[i];

		do {
			struct record *r = &index->records[m];

			if (!(r->flags & RECORD_FLAG_SELECTED))
				r->selected = 0;
			m = item_next(index, m);
		} while (m != index->gather[i]);
	}
}

static bool gather(struct index *index, uint32_t record)
{
	index->gathered = 0;
	if (!gather_item(index, record))
		return false;
	for (uint32_t i = 0; i < index->gathered; i++)
		if (!gather_children(index, i))
			return false;
	return true;
}

/* Cuts a record out of the tree; a parent that stays is kept in `prev`, for a review. Returns the number of values. */
static uint32_t drop_prepare(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];
	bool stays = r->parent != INDEX_NONE && !gathered(&index->records[r->parent]);
	uint32_t parent = link_cut(index, record);
	uint32_t values = index->row_columns ? place_count_values(index, r, INDEX_PAGE_ROW) : 0;

	for (uint32_t page = 0; page < r->pages; page++)
		values += place_count_values(index, r, page);
	candidate_withdraw(index, record);
	__atomic_store_n(&record_table(index, record)->flags, 0, __ATOMIC_RELEASE);
	r->prev = stays ? parent : INDEX_NONE;
	return values;
}

static void drop_finish(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];
	uint32_t parent = r->prev;

	r->flags &= (uint8_t)~RECORD_FLAG_WHOLE;
	r->prev = INDEX_NONE;
	record_free(index, record, sink);
	r->parent = parent;
}

bool whole_drop(struct index *index, uint32_t record, const struct index_sink *sink, uint32_t *ret_values)
{
	uint32_t values = 0;

	if (!gather(index, record)) {
		gather_forget(index);
		return false;
	}
	for (uint32_t i = 0; i < index->gathered; i++) {
		uint32_t m = index->gather[i];

		if (!(index->records[m].flags & RECORD_FLAG_WHOLE))
			ring_set_next(index, m, m);
		do {
			values += drop_prepare(index, m);
			m = ring_next(index, m);
		} while (m != index->gather[i]);
	}
	for (uint32_t i = 0; i < index->gathered; i++) {
		uint32_t m = index->gather[i];

		do {
			drop_finish(index, m, sink);
			m = ring_next(index, m);
		} while (m != index->gather[i]);
	}
	for (uint32_t i = 0; i < index->gathered; i++) {
		uint32_t m = index->gather[i];

		do {
			record_review(index, index->records[m].parent, sink);
			m = ring_next(index, m);
		} while (m != index->gather[i]);
	}
	*ret_values = values;
	return true;
}
