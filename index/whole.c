/* SPDX-License-Identifier: Apache-2.0
 *
 * WHOLE groups: their records form a ring through the tables and leave together or not at all.
 */
#include "index/internal.h"

#define MARK UINT16_MAX /* in record.selected, which a member of a ring has no other use for */

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

static void ring_mark(struct index *index, uint32_t record, uint16_t mark)
{
	uint32_t m = record;

	do {
		index->records[m].selected = mark;
		m = ring_next(index, m);
	} while (m != record);
}

static bool is_member(const struct record *r)
{
	return r->flags & RECORD_FLAG_WHOLE && r->selected == MARK;
}

static bool member_can_go(const struct index *index, const struct record *r)
{
	if (r->state != RECORD_LIVE || r->pins || r->unsettled || r->flags & RECORD_FLAG_HELD)
		return false;
	for (uint32_t c = r->child; c != INDEX_NONE; c = index->records[c].next)
		if (!is_member(&index->records[c]))
			return false;
	return true;
}

bool whole_can_go(struct index *index, uint32_t record)
{
	bool can = true;
	uint32_t m = record;

	/* Idleness first: a ring is walked as a whole only when all of it is LIVE. */
	do {
		can = index->records[m].state == RECORD_LIVE && !index->records[m].pins;
		m = ring_next(index, m);
	} while (can && m != record);
	if (!can)
		return false;
	ring_mark(index, record, MARK);
	do {
		can = member_can_go(index, &index->records[m]);
		m = ring_next(index, m);
	} while (can && m != record);
	ring_mark(index, record, 0);
	return can;
}

uint32_t whole_drop(struct index *index, uint32_t record, const struct index_sink *sink)
{
	uint32_t values = 0, members = 0;
	uint32_t m = record;

	ring_mark(index, record, MARK);
	do { /* cut them out of the tree, keeping parents outside the ring in `prev` */
		struct record *r = &index->records[m];
		bool outside = r->parent != INDEX_NONE && !is_member(&index->records[r->parent]);
		uint32_t parent = link_cut(index, m);

		values += index->row_columns ? place_count_values(index, r, INDEX_PAGE_ROW) : 0;
		for (uint32_t page = 0; page < r->pages; page++)
			values += place_count_values(index, r, page);
		candidate_withdraw(index, m);
		__atomic_store_n(&record_table(index, m)->flags, 0, __ATOMIC_RELEASE);
		r->prev = outside ? parent : INDEX_NONE;
		members++;
		m = ring_next(index, m);
	} while (m != record);
	ring_mark(index, record, 0);
	for (uint32_t i = 0; i < members; i++) {
		struct record *r = &index->records[m];
		uint32_t parent = r->prev;

		r->flags &= (uint8_t)~(RECORD_FLAG_WHOLE | RECORD_FLAG_HELD);
		r->prev = INDEX_NONE;
		record_free(index, m, sink);
		r->parent = parent;
		m = ring_next(index, m);
	}
	for (uint32_t i = 0; i < members; i++) {
		record_review(index, index->records[m].parent, sink);
		m = ring_next(index, m);
	}
	return values;
}
