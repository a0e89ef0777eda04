/* SPDX-License-Identifier: Apache-2.0
 *
 * A new generation: everything is hidden at once and let go piece by piece.
 *
 * A record of an older era is hidden (record_hidden). Nobody finds it: the map's comparison refuses its entries
 * (fits_page, fits_row). Nothing is kept up to date about it any more but what it takes to let it go: its values, names
 * and block, its pins and unsettled values, its place among the orphans. Its links are dead, for a parent's number may be
 * another record by now; it is in no order; its ring is not walked.
 *
 *   hidden, held by pins or by unsettled values   the last of them goes: index_unpin, index_value_drop, index_settle
 *   hidden, idle                                  found by the walk of index_retire, or by the above
 *   GOING   on the list, unused in the tables,    64 pages at a time, from its end
 *           where its name stays what it was
 *   freed
 */
#include "index/internal.h"

#include <assert.h>

uint64_t index_reset(struct index *index)
{
	uint64_t generation = index->tables->header->generation + 1;

	lock_assert_held(index->guard);
	__atomic_store_n(&index->tables->header->generation, generation, __ATOMIC_RELEASE);
	index->era = (uint32_t)generation;
	index->breaks++;
	index->hidden = index->records_used;
	index->retire_at = 0;
	index->retire_end = index->record_top;
	policy_lru.clear(index->pages);
	policy_lru.clear(index->rows);
	policy_lru.clear(index->lost);
	if (index->olds)
		policy_lru.clear(index->olds);
	return generation;
}

void index_begin_at(struct index *index, uint64_t generation)
{
	lock_assert_held(index->guard);
	assert(generation && !index->records_used);
	__atomic_store_n(&index->tables->header->generation, generation, __ATOMIC_RELEASE);
	index->era = (uint32_t)generation;
}

uint64_t index_generation(const struct index *index)
{
	lock_assert_held(index->guard);
	return index->tables->header->generation;
}

bool index_record_current(const struct index *index, uint32_t record)
{
	lock_assert_held(index->guard);
	return !record_hidden(index, &index->records[record]);
}

uint32_t index_hidden(const struct index *index)
{
	lock_assert_held(index->guard);
	return index->hidden;
}

void hidden_review(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	assert(record_hidden(index, r));
	if (r->state == RECORD_GOING || r->state == RECORD_OPEN || r->pins || r->unsettled)
		return;
	if (r->flags & RECORD_FLAG_SELECTED)
		victim_obsolete(index, r);
	record_name_goes(index, r);
	hold_forget(index, record);
	if (r->flags & RECORD_FLAG_ORPHAN)
		link_orphan_remove(index, record);
	/* From here on its entries are nobody's to a successor, as of any record that goes as a whole. */
	__atomic_store_n(&record_table(index, record)->flags, 0, __ATOMIC_RELEASE);
	index->counters.records -= r->state == RECORD_LIVE;
	r->state = RECORD_GOING;
	r->policy_slot = r->row_slot = INDEX_NONE;
	r->next = index->going;
	index->going = record;
}

/* Lets pages of the first one on the list go, and it with the last. Returns what is left of @left. */
static uint32_t going_some(struct index *index, uint32_t left, const struct index_sink *sink, uint64_t *values)
{
	uint32_t record = index->going;
	struct record *r = &index->records[record];

	for (; r->pages && left; left--)
		*values += place_empty(index, r, --r->pages, sink);
	if (!left)
		return 0;
	if (index->row_columns)
		*values += place_empty(index, r, INDEX_PAGE_ROW, sink);
	index->going = r->next;
	zero_page_record_goes(index, r);
	arena_free(&index->arena, r->block, block_words(index, r->capacity));
	r->block = ARENA_NONE;
	index->hidden--;
	lost_record(index, r);
	record_give_back_number(index, record);
	return left - 1;
}

bool index_retire(struct index *index, const struct index_sink *sink, uint64_t *ret_values)
{
	uint64_t values = 0;
	uint32_t left = INDEX_STEP_KEYS;

	lock_assert_held(index->guard);
	while (left) {
		if (index->going != INDEX_NONE) {
			left = going_some(index, left, sink, &values);
			continue;
		}
		if (index->retire_at >= index->retire_end || !index->hidden)
			break;
		struct record *r = &index->records[index->retire_at++];

		left--;
		if (r->state == RECORD_FREE || !record_hidden(index, r))
			continue;
		record_name_goes(index, r); /* at once, whoever holds it */
		hidden_review(index, index->retire_at - 1);
	}
	if (ret_values)
		*ret_values += values;
	return index->going != INDEX_NONE || (index->hidden && index->retire_at < index->retire_end);
}
