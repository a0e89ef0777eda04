/* SPDX-License-Identifier: Apache-2.0
 *
 * From which records one can resume: whose chain is whole up to its root.
 *
 * A walk goes from a record to its parent, and so on. What it finds out about each record on its way is noted in the
 * index's memo, so that the next record of the same chain costs a step and not the chain again:
 *
 *   pages    that many first pages of the record have what they need, whatever comes behind them
 *   broken   the first one that has not
 *   before   the chain before the record:
 *            UNKNOWN -> PENDING   a walk has gone on to the parent
 *            PENDING -> GOOD      the walk came to a root, or to a record whose chain is GOOD
 *            PENDING -> BAD       it came to a page that lacks something, an orphan, or a gap
 *            PENDING -> UNKNOWN   the walk was given up
 *
 * Good news stays true until a committed value is dropped by itself or children lose their parent: index->breaks counts
 * both, and another count empties the memo. Bad news may turn good when a value is settled or an orphan finds its parent:
 * index->mends counts both. It is believed while nothing mends, and by walks of one `batch`, so that a listing beside puts
 * does not walk a broken chain again for each of its records. Whatever else changes a record (shorter, gone, its number used
 * again) changes its generation, which the memo names.
 *
 * What the windows of a boundary need is another thing for each boundary, and a few pages: a walk looks at them first, without the memo.
 *
 * One walk has the memo at a time. One that comes while another lies between two stays under the lock does without.
 */
#include "index/internal.h"

#include <stdlib.h>

#define MEMO_PLACES 65536u /* of a longer chain, walking from far behind costs what is beyond them */
#define MAX_RESTARTS 4u    /* after as many changes under its feet a walk goes on with what it has seen */
#define NOT_BROKEN 0xffffu

enum memo_before { BEFORE_UNKNOWN, BEFORE_PENDING, BEFORE_GOOD, BEFORE_BAD };

struct memo_place {
	uint32_t record, generation;
	uint32_t next;    /* of the walk's list, INDEX_NONE = last */
	uint32_t batch;   /* in which `broken` and BAD are believed, */
	uint32_t mends;   /* or while this many were mended (low bits) */
	uint16_t pages, broken;
	uint8_t before;   /* enum memo_before */
	bool listed;      /* stands in the walk's list, whatever it is about by now */
	uint16_t epoch;   /* others are empty */
};

struct index_memo {
	uint64_t breaks;               /* index->breaks that it is true for */
	const struct index_walk *user; /* NULL = nobody */
	uint32_t list;                 /* places that are or were PENDING */
	uint16_t epoch;                /* from 1 on */
	uint32_t touched;              /* places ever used are below */
	struct memo_place at[MEMO_PLACES];
};

struct index_memo *resume_memo_new(void)
{
	struct index_memo *memo = calloc(1, sizeof(*memo)); /* untouched until it is used */

	if (memo) {
		memo->epoch = 1;
		memo->list = INDEX_NONE;
	}
	return memo;
}

static void memo_empty(struct index_memo *memo, uint64_t breaks)
{
	memo->breaks = breaks;
	memo->list = INDEX_NONE;
	if (++memo->epoch == 0) {
		memset(memo->at, 0, sizeof(memo->at));
		memo->epoch = 1;
	}
}

size_t resume_memo_bytes(const struct index_memo *memo)
{
	return memo->touched * sizeof(memo->at[0]);
}

static struct memo_place *memo_find(const struct index *index, const struct index_walk *walk)
{
	struct index_memo *memo = index->memo;
	struct memo_place *m = &memo->at[walk->at % MEMO_PLACES];
	uint32_t generation = walk->at_generation, mends = (uint32_t)index->mends;

	if (memo->touched <= walk->at % MEMO_PLACES)
		memo->touched = walk->at % MEMO_PLACES + 1;
	if (m->epoch != memo->epoch)
		*m = (struct memo_place){.record = INDEX_NONE, .next = INDEX_NONE, .epoch = memo->epoch};
	if (m->record != walk->at || m->generation != generation) {
		m->record = walk->at;
		m->generation = generation;
		m->pages = 0;
		m->broken = NOT_BROKEN;
		m->before = BEFORE_UNKNOWN;
	}
	if (m->mends != mends && (!walk->batch || m->batch != walk->batch)) { /* bad news of another time */
		m->broken = NOT_BROKEN;
		if (m->before == BEFORE_BAD)
			m->before = BEFORE_UNKNOWN;
		m->batch = walk->batch;
		m->mends = mends;
	} else if (walk->batch) {
		m->batch = walk->batch;
	}
	return m;
}

static void memo_wait(struct index_memo *memo, struct memo_place *m)
{
	m->before = BEFORE_PENDING;
	if (m->listed)
		return;
	m->listed = true;
	m->next = memo->list;
	memo->list = (uint32_t)(m - memo->at);
}

static void memo_settle(struct index_memo *memo, enum memo_before before)
{
	while (memo->list != INDEX_NONE) {
		struct memo_place *m = &memo->at[memo->list];

		memo->list = m->next;
		m->listed = false;
		if (m->before == BEFORE_PENDING)
			m->before = (uint8_t)before;
	}
}

/* ---- a walk ------------------------------------------------------------------------------------------------------ */

void index_walk_begin(struct index_walk *walk, uint32_t record, uint32_t batch)
{
	*walk = (struct index_walk){.record = record, .at = INDEX_NONE, .batch = batch};
}

/* The memo, if this walk has it or can have it. */
static struct index_memo *take_memo(struct index *index, struct index_walk *walk)
{
	struct index_memo *memo = index->memo;

	if (memo->user && memo->user != walk)
		return NULL;
	if (!memo->user && memo->breaks != index->breaks)
		memo_empty(memo, index->breaks);
	memo->user = walk;
	return memo;
}

static int walk_end(struct index_walk *walk, struct index_memo *memo, bool good)
{
	if (memo) {
		memo_settle(memo, good ? BEFORE_GOOD : BEFORE_BAD);
		memo->user = NULL;
	}
	walk->at = INDEX_NONE;
	return good;
}

void index_walk_end(struct index *index, struct index_walk *walk)
{
	lock_assert_held(index->guard);
	if (index->memo->user != walk)
		return;
	memo_settle(index->memo, BEFORE_UNKNOWN);
	index->memo->user = NULL;
}

/* Tokens up to which pages are needed before the record: the last page that could end at or before its start. */
static uint64_t needed_before(const struct index *index, uint32_t record)
{
	uint64_t start = record_table(index, record)->start;

	return index->page_columns ? start - start % index->layout->page_tokens : 0;
}

/* The end of the last page that is needed for @record's endpoint. */
static uint64_t boundary_of(const struct index *index, uint32_t record)
{
	uint64_t consumed = record_table(index, record)->consumed;

	return consumed - consumed % index->layout->page_tokens;
}

/* The record itself, its chain apart: is it there, does a value of each class end at its boundary, is its row whole? */
static bool endpoint_allows(struct index *index, uint32_t record)
{
	uint64_t end;

	if (record >= index->record_top || !index_record_visible(index, record))
		return false;
	end = boundary_of(index, record);
	if (gates_due(&index->gates, end) != (index->gates.dense | index->gates.windows))
		return false;
	return !index->row_columns ||
	       index_find_row(index, &record_table(index, record)->endpoint, ~0u) != INDEX_NONE;
}

/* Tokens that end where the window of @class that @end needs begins. */
static uint64_t window_low(const struct layout *layout, const struct value_class *class, uint64_t end)
{
	uint64_t tokens;

	if (__builtin_mul_overflow((uint64_t)class->every_pages * layout->page_tokens, class->last, &tokens) || tokens > end)
		return 0;
	return end - tokens;
}

static uint64_t windows_low(const struct index *index, uint64_t end)
{
	uint64_t low = end;

	for (uint32_t mask = index->gates.windows; mask; mask &= mask - 1) {
		uint64_t from = window_low(index->layout, &index->layout->class[__builtin_ctz(mask)], end);

		low = from < low ? from : low;
	}
	return low;
}

/* Stands the walk on @record, of which @pages pages are needed. */
static void stand(const struct index *index, struct index_walk *walk, uint32_t record, uint32_t pages)
{
	walk->at = record;
	walk->at_generation = index->records[record].generation;
	walk->page = 0;
	walk->pages = pages;
}

/* First stay, or the world has changed since the last one: from the record that was asked about. */
static bool start_over(struct index *index, struct index_walk *walk, struct index_memo *memo)
{
	if (memo) {
		memo_settle(memo, BEFORE_UNKNOWN);
		if (memo->breaks != index->breaks)
			memo_empty(memo, index->breaks);
	}
	if (!endpoint_allows(index, walk->record))
		return false;
	walk->breaks = index->breaks;
	walk->generation = index->records[walk->record].generation;
	walk->end = boundary_of(index, walk->record);
	walk->low = windows_low(index, walk->end);
	walk->windows = index->gates.windows != 0;
	stand(index, walk, walk->record, index->records[walk->record].pages);
	return true;
}

/* Has something changed between two stays that the walk has seen already, or stands on? */
static bool disturbed(const struct index *index, const struct index_walk *walk)
{
	return index->records[walk->at].generation != walk->at_generation ||
	       index->records[walk->at].state == RECORD_FREE || walk->pages > index->records[walk->at].pages ||
	       (walk->breaks != index->breaks && walk->restarts < MAX_RESTARTS);
}

/* Looks at the pages that are needed here. 1: all have what they need; 0: one has not; INDEX_E_MORE: @budget is used up. */
static int look_at_pages(struct index *index, struct index_walk *walk, struct memo_place *m, uint32_t *budget)
{
	const struct record *r = &index->records[walk->at];
	uint64_t start = record_table(index, walk->at)->start;

	if (m && m->pages > walk->page)
		walk->page = m->pages;
	for (; walk->page < walk->pages; walk->page++) {
		uint64_t consumed = start + (walk->page + 1ull) * index->layout->page_tokens;

		if (!*budget)
			return INDEX_E_MORE;
		--*budget;
		if (!page_complete(index, block_values(index, r, walk->page), gates_needs(&index->gates, consumed), consumed)) {
			if (m)
				m->broken = (uint16_t)walk->page;
			return 0;
		}
		if (m)
			m->pages = (uint16_t)(walk->page + 1);
	}
	return 1;
}

/* Windows of which the boundary needs the value on the page that ends at @consumed, if there is one. */
static uint32_t windows_at(const struct index *index, uint64_t end, uint64_t consumed)
{
	uint32_t at = 0;

	for (uint32_t mask = index->gates.windows; mask; mask &= mask - 1)
		if (consumed > window_low(index->layout, &index->layout->class[__builtin_ctz(mask)], end))
			at |= mask & -mask;
	return at;
}

/* From a record whose pages are complete to its parent. 1: the chain is whole; 0: it is not; INDEX_E_MORE: on the parent. */
static int go_up(struct index *index, struct index_walk *walk)
{
	const struct record *r = &index->records[walk->at];
	uint64_t needed = needed_before(index, walk->at);

	if (r->flags & RECORD_FLAG_ROOT)
		return needed == 0;
	if (r->parent == INDEX_NONE)
		return 0;
	if (place_consumed(index, r->parent, r->parent_page) < needed)
		return 0;
	stand(index, walk, r->parent, r->parent_page == INDEX_PAGE_ROW ? 0 : r->parent_page + 1u);
	return INDEX_E_MORE;
}

/* The pages of one record that lie in a window, from the last one on; then its parent. 1: the windows have all they need; 0: they have not;
 * INDEX_E_MORE: on the parent, or @budget is used up. */
static int look_back(struct index *index, struct index_walk *walk, uint32_t *budget)
{
	const struct record *r = &index->records[walk->at];
	uint64_t start = record_table(index, walk->at)->start;

	--*budget;
	for (; walk->pages; walk->pages--) {
		uint64_t consumed = start + (uint64_t)walk->pages * index->layout->page_tokens;

		if (consumed <= walk->low)
			return 1;
		if (!*budget)
			return INDEX_E_MORE;
		--*budget;
		if (!page_complete(index, block_values(index, r, walk->pages - 1), windows_at(index, walk->end, consumed), consumed))
			return 0;
	}
	return start <= walk->low ? 1 : go_up(index, walk);
}

/* One record of the way: as go_up, but INDEX_E_MORE may also mean that @budget is used up. */
static int step(struct index *index, struct index_walk *walk, struct index_memo *memo, uint32_t *budget)
{
	struct memo_place *m = memo ? memo_find(index, walk) : NULL;
	int r;

	--*budget;
	if (m && (m->before == BEFORE_BAD || m->broken < walk->pages))
		return 0;
	r = look_at_pages(index, walk, m, budget);
	if (r != 1)
		return r;
	if (m && m->before == BEFORE_GOOD)
		return 1;
	if (m)
		memo_wait(memo, m);
	return go_up(index, walk);
}

int index_record_restorable(struct index *index, struct index_walk *walk, uint32_t *budget)
{
	lock_assert_held(index->guard);
	struct index_memo *memo = take_memo(index, walk);
	bool first = walk->at == INDEX_NONE;
	int r = INDEX_E_MORE;

	if (!first && (walk->record >= index->record_top ||
			      index->records[walk->record].generation != walk->generation))
		return walk_end(walk, memo, false);
	if (first || disturbed(index, walk)) {
		if (!first && walk->restarts++ == MAX_RESTARTS)
			return walk_end(walk, memo, false);
		if (!start_over(index, walk, memo))
			return walk_end(walk, memo, false);
	}
	while (r == INDEX_E_MORE && *budget && walk->windows) {
		r = look_back(index, walk, budget);
		if (r != 1)
			continue;
		walk->windows = false;
		stand(index, walk, walk->record, index->records[walk->record].pages);
		r = INDEX_E_MORE;
	}
	while (r == INDEX_E_MORE && *budget)
		r = step(index, walk, memo, budget);
	return r == INDEX_E_MORE ? r : walk_end(walk, memo, r);
}
