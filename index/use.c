/* SPDX-License-Identifier: Apache-2.0
 *
 * Holding and using: pins, and the logical clock of recency.
 *
 * A use of a page is a use of all pages before it, so ticks never rise along a record and a touch may stop at the first
 * page that has the tick, or a younger one, already: requests come to their keys in another order than they began. Ticks wrap; one record per tick is visited in turn and a tick older than
 * INDEX_TICK_SPAN is made that old, so that any two that exist compare rightly.
 */
#include "index/internal.h"

#include "store/base/clock.h"

uint32_t record_last_use(const struct index *index, const struct record *r)
{
	return block_uses(index, r)[r->pages ? r->pages - 1u : 0];
}

void record_use(struct index *index, struct record *r, uint32_t page, uint32_t tick)
{
	uint32_t *use = block_uses(index, r);

	for (uint32_t i = page + 1; i-- > 0 && (int32_t)(tick - use[i]) > 0;)
		use[i] = tick;
}

static void sweep_one(struct index *index)
{
	if (index->sweep >= index->record_top)
		index->sweep = 0;
	if (index->sweep >= index->record_top)
		return;

	uint32_t number = index->sweep++;
	struct record *r = &index->records[number];

	if (r->state == RECORD_FREE || r->block == ARENA_NONE || record_hidden(index, r))
		return;

	uint32_t *use = block_uses(index, r);
	uint32_t oldest = index->tick - INDEX_TICK_SPAN;
	uint32_t n = r->pages ? r->pages : 1;

	if ((int32_t)(use[n - 1] - oldest) >= 0)
		return;
	bool ordered = r->policy_slot != INDEX_NONE || r->row_slot != INDEX_NONE ||
	               (index->olds && index->old_slot[number] != INDEX_NONE);

	candidate_withdraw(index, number);
	for (uint32_t i = n; i-- > 0 && (int32_t)(use[i] - oldest) < 0;)
		use[i] = oldest;
	if (ordered)
		candidate_consider(index, number);
}

uint32_t index_tick(struct index *index)
{
	lock_assert_held(index->guard);
	index->tick++;
	uint32_t now_s = clock_wall_coarse_s();

	if (now_s != index->now_s)
		__atomic_store_n(&index->tables->header->clock, (uint64_t)index->tick << 32 | now_s, __ATOMIC_RELAXED);
	index->now_s = now_s;
	sweep_one(index);
	return index->tick;
}

void index_touch(struct index *index, uint32_t record, uint16_t page, uint32_t tick)
{
	struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	assert(r->state != RECORD_FREE);
	if (r->flags & RECORD_FLAG_SELECTED)
		victim_restore(index, r);
	if (r->block == ARENA_NONE)
		return;
	if (page >= r->pages) /* the row, or a page that has gone meanwhile */
		page = (uint16_t)(r->pages ? r->pages - 1 : 0);
	record_use(index, r, page, tick);
	record_table(index, record)->last_use_s = index->now_s;
}

void index_count_hit(struct index *index, uint32_t record)
{
	lock_assert_held(index->guard);
	record_table(index, record)->hits++;
}

void index_pin(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	assert(r->state != RECORD_FREE && r->pins != UINT32_MAX);
	r->pins++;
}

void index_unpin(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	assert(r->state != RECORD_FREE && r->pins > 0);
	if (--r->pins)
		return;
	if (record_hidden(index, r))
		hidden_review(index, record);
	else if (r->flags & RECORD_FLAG_SELECTED)
		victim_resolve(index, record, sink);
	else if (r->pages && (r->policy_slot != INDEX_NONE || r->tail_children))
		candidate_consider(index, record); /* the usual case: nothing can be trimmed or joined */
	else
		record_review(index, record, sink);
}

void index_prefetch_records(const struct index *index, const uint32_t *records, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		__builtin_prefetch(&index->records[records[i]], 1);
}

void index_prefetch_uses(const struct index *index, const struct index_hit *hits, uint32_t n)
{
	lock_assert_held(index->guard);
	for (uint32_t i = 0; i < n; i++)
		if (hits[i].record != INDEX_NONE)
			__builtin_prefetch(block_uses(index, &index->records[hits[i].record]) + hits[i].page, 1);
}
