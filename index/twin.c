/* SPDX-License-Identifier: Apache-2.0
 *
 * Twins: a zero-page record and a record whose last page has the same key. One endpoint has one record, so the
 * zero-page one joins the other as soon as both are LIVE and nobody holds it: row, children, an operator's pin, its
 * place in a WHOLE ring and its recency go over. Until then it hangs off that page as a child, and as a row has one
 * home only (index_row_home), the other one has no row.
 */
#include "index/internal.h"

static bool can_join(const struct index *index, const struct record *z)
{
	if (z->state != RECORD_LIVE || !record_is_zero(z) || z->pins || z->unsettled || z->parent == INDEX_NONE ||
		z->parent_page == INDEX_PAGE_ROW)
		return false;

	const struct record *p = &index->records[z->parent];

	return p->state == RECORD_LIVE && z->parent_page + 1u == p->pages &&
	       index_consumed(index, z->parent, z->parent_page) == record_table(index, record_number(index, z))->start;
}

void twin_take_reason(struct index *index, uint32_t zero, uint32_t record)
{
	uint32_t reason = record_table(index, zero)->flags & (RECORD_RUNG | RECORD_DEMANDED);
	struct record_entry *t = record_table(index, record);

	if (reason)
		__atomic_store_n(&t->flags, t->flags | reason, __ATOMIC_RELEASE);
}

bool twin_join(struct index *index, uint32_t zero)
{
	struct record *z = &index->records[zero];

	if (!can_join(index, z))
		return false;

	uint32_t record = z->parent;
	struct record *r = &index->records[record];
	uint32_t *from = block_row(index, z), *to = block_row(index, r);
	uint32_t tick = record_last_use(index, z);
	bool moved = place_has_value(index, z, INDEX_PAGE_ROW);

	assert(!(r->flags & RECORD_FLAG_ROW));
	if (!moved) {
		place_empty(index, z, INDEX_PAGE_ROW, NULL); /* a hollow row */
	} else {
		for (uint32_t i = 0; i < index->row_columns; i++) {
			if (from[i] == WORD_NONE)
				continue;
			__atomic_store_n(
				&index->tables->entries[from[i] & WORD_ENTRY].record, record, __ATOMIC_RELEASE);
			to[i] = from[i];
			from[i] = WORD_NONE;
		}
		r->flags |= RECORD_FLAG_ROW;
		twin_take_reason(index, zero, record);
	}
	if (z->flags & RECORD_FLAG_HELD)
		index_hold(index, record, true);
	if (z->flags & RECORD_FLAG_WHOLE)
		whole_take_over(index, zero, record);
	if ((int32_t)(tick - record_last_use(index, r)) > 0)
		record_use(index, r, r->pages - 1u, tick);
	link_move_children(index, zero, record, r->pages - 1u);
	if (moved)
		lost_joined(index, r, zero);
	record_free_joined(index, zero, NULL);
	candidate_consider(index, record);
	return true;
}

void twin_join_at(struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];

	if (!index->zero_page_records || r->state != RECORD_LIVE || !r->pages)
		return;

	uint32_t word = place_any(index, r, r->pages - 1u);

	if (word == WORD_NONE)
		return;
	uint32_t zero = row_owner(index, &index->tables->entries[word & WORD_ENTRY].key);

	if (zero != INDEX_NONE && zero != record && index->records[zero].parent == record)
		twin_join(index, zero);
}
