/* SPDX-License-Identifier: Apache-2.0
 *
 * Records: how they begin, are closed, published or abandoned, get shorter, and go.
 */
#include "index/internal.h"

/* Blocks much larger than their record are cut: not at every page, so that trimming costs a constant a page. */
#define BLOCK_SLACK 4u

/* ---- numbers and blocks ---------------------------------------------------------------------------------------- */

uint32_t record_take_number(struct index *index)
{
	uint32_t number = index->record_free;

	if (number != INDEX_NONE) {
		uint32_t next = index->records[number].next;

		index->record_free = next;
		if (next != INDEX_NONE) { /* the one after this one is cold: its lines come while this one is filled */
			__builtin_prefetch(&index->records[next], 1);
			__builtin_prefetch(record_table(index, next), 1);
			__builtin_prefetch((char *)record_table(index, next) + 64, 1);
		}
	} else if (index->record_top < index->tables->record_capacity) {
		number = index->record_top++;
	} else {
		return INDEX_NONE;
	}
	if (index->record_top > index->tables->header->records_high)
		__atomic_store_n(&index->tables->header->records_high, index->record_top, __ATOMIC_RELEASE);

	struct record *r = &index->records[number];

	*r = (struct record){
		.parent = INDEX_NONE,
		.child = INDEX_NONE,
		.next = INDEX_NONE,
		.prev = INDEX_NONE,
		.block = ARENA_NONE,
		.policy_slot = INDEX_NONE,
		.row_slot = INDEX_NONE,
		.generation = record_table(index, number)->reuse,
		.era = index->era,
	};
	old_record_begins(index, number);
	index->records_used++;
	return number;
}

void record_give_back_number(struct index *index, uint32_t number)
{
	struct record *r = &index->records[number];

	index->records_used--;
	r->state = RECORD_FREE;
	r->flags = 0;
	record_table(index, number)->reuse = ++r->generation;
	r->next = index->record_free;
	index->record_free = number;
}

/* A loop and no memset(), which costs more than the block of a short record. */
static uint32_t *words_fill(uint32_t *to, uint32_t n, uint32_t value)
{
	__asm__("" : "+r"(value)); /* the compiler would make it a memset() */
	for (uint32_t i = 0; i < n; i++)
		to[i] = value;
	return to + n;
}

bool record_make_block(struct index *index, struct record *r, uint32_t capacity)
{
	uint32_t *words;

	r->block = arena_alloc(&index->arena, block_words(index, capacity));
	if (r->block == ARENA_NONE)
		return false;
	r->capacity = (uint16_t)capacity;
	words = arena_at(&index->arena, r->block);
	words = words_fill(words, capacity * index->page_columns, WORD_NONE);
	words = words_fill(words, capacity ? capacity : 1, index->tick);
	words_fill(words, index->row_columns, WORD_NONE);
	return true;
}

/* Cuts the block down to the pages that there are, at least one. */
static void block_fit(struct index *index, struct record *r)
{
	uint32_t capacity = r->pages ? r->pages : 1;
	uint32_t *uses = block_uses(index, r);
	uint32_t *row = block_row(index, r);
	uint32_t before = block_words(index, r->capacity);

	assert(capacity <= r->capacity);
	r->capacity = (uint16_t)capacity;
	memmove(block_uses(index, r), uses, capacity * sizeof(uint32_t));
	memmove(block_row(index, r), row, index->row_columns * sizeof(uint32_t));
	arena_shrink(&index->arena, r->block, before, block_words(index, capacity));
}

/* ---- beginning ------------------------------------------------------------------------------------------------- */

uint32_t index_record_new(struct index *index, const struct index_run *run)
{
	static const struct key no_key;

	lock_assert_held(index->guard);
	assert(run->max_pages < INDEX_PAGE_ROW && (run->max_pages > 0 || run->endpoint));
	assert(run->max_pages > 0 || index->row_columns > 0);

	uint32_t number = record_take_number(index);

	if (number == INDEX_NONE)
		return INDEX_NONE;

	struct record *r = &index->records[number];
	struct record_entry *t = record_table(index, number);

	if (!record_make_block(index, r, run->max_pages)) {
		record_give_back_number(index, number);
		return INDEX_NONE;
	}
	r->state = RECORD_OPEN;
	r->pins = 1;
	r->flags = (uint8_t)((run->parent_key ? 0 : RECORD_FLAG_ROOT) |
			     (run->flags & RECORD_WHOLE ? RECORD_FLAG_WHOLE : 0));

	tables_unseal(&t->check);
	t->parent_key = run->parent_key ? *run->parent_key : no_key;
	t->endpoint = run->max_pages ? no_key : *run->endpoint;
	t->consumed = t->start = run->consumed;
	t->pages = 0;
	t->flags = RECORD_USED | (run->parent_key ? 0 : RECORD_ROOT) | (run->flags & RECORD_WHOLE);
	t->group = run->group;
	t->whole_next = TABLES_NONE;
	t->created_s = t->last_use_s = index->now_s;
	t->hits = 0;
	t->generation = index->era;
	t->held_units = 0;
	tables_seal_record(t, number);

	if (run->flags & RECORD_WHOLE)
		whole_insert(index, number, run->whole_ring);
	zero_page_record_comes(index, r);
	link_new(index, number, run->parent_record, run->parent_page);
	return number;
}

/* ---- length ---------------------------------------------------------------------------------------------------- */

void record_copy_endpoint(struct index *index, struct record *r)
{
	struct record_entry *t = record_table(index, record_number(index, r));

	t->consumed = t->start + (uint64_t)r->pages * index->layout->page_tokens;
	if (!r->pages)
		return;

	uint32_t word = place_any(index, r, r->pages - 1u);

	if (word == WORD_NONE && r->flags & RECORD_FLAG_ROW)
		word = place_any(index, r, INDEX_PAGE_ROW);
	if (word != WORD_NONE)
		t->endpoint = index->tables->entries[word & WORD_ENTRY].key;
}

/* Whoever has its name cached is told before the name changes. */
void record_name_goes(struct index *index, struct record *r)
{
	const struct record_entry *t = record_table(index, record_number(index, r));

	if (!(r->flags & RECORD_FLAG_KNOWN))
		return;
	r->flags &= (uint8_t)~RECORD_FLAG_KNOWN;
	if (index->gone)
		index->gone(index->gone_context, t->consumed, &t->endpoint);
}

void record_set_length(struct index *index, struct record *r, uint32_t pages)
{
	if (pages != r->pages) {
		loss_begin(index, r);
		record_name_goes(index, r);
		/* Under another name it is another record: who has the old one open hears that it is gone. */
		r->generation += r->state == RECORD_LIVE;
		record_table(index, record_number(index, r))->reuse = r->generation;
	}
	r->pages = (uint16_t)pages;
	__atomic_store_n(&record_table(index, record_number(index, r))->pages, pages, __ATOMIC_RELEASE);
	record_copy_endpoint(index, r);
	link_recount(index, r);
	candidate_recheck(index, record_number(index, r)); /* its last page may have children now */
}

/* Lets go what stands at the end and is of no use to anyone. */
static void record_trim(struct index *index, struct record *r)
{
	if (record_hidden(index, r))
		return;
	if (record_is_zero(r)) {
		if (r->flags & RECORD_FLAG_ROW && !r->children && !place_has_value(index, r, INDEX_PAGE_ROW)) {
			loss_begin(index, r);
			place_empty(index, r, INDEX_PAGE_ROW, NULL);
			r->flags &= (uint8_t)~RECORD_FLAG_ROW;
		}
		return;
	}
	while (r->pages && !(r->flags & RECORD_FLAG_ROW) && !r->tail_children &&
		!place_has_value(index, r, r->pages - 1u)) {
		place_empty(index, r, r->pages - 1u, NULL);
		record_set_length(index, r, r->pages - 1u);
	}
	if (r->capacity > BLOCK_SLACK && r->pages * 2u <= r->capacity)
		block_fit(index, r);
}

static void record_leave_whole(struct index *index, struct record *r)
{
	struct record_entry *t = record_table(index, record_number(index, r));

	r->flags &= (uint8_t)~RECORD_FLAG_WHOLE;
	__atomic_store_n(&t->flags, t->flags & ~(uint32_t)RECORD_WHOLE, __ATOMIC_RELEASE);
	t->whole_next = TABLES_NONE;
}

bool index_record_close(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	assert(r->state == RECORD_OPEN);
	r->state = RECORD_FILLING;
	link_recount(index, r);
	if (r->pages && r->pages == r->capacity && place_has_value(index, r, r->pages - 1u))
		return true; /* as long as it was to be; its endpoint has been kept page by page */
	record_trim(index, r);
	if (r->pages || r->flags & RECORD_FLAG_ROW) {
		if (r->pages < r->capacity)
			block_fit(index, r);
		record_copy_endpoint(index, r);
		return true;
	}
	if (r->flags & RECORD_FLAG_WHOLE) { /* the group goes on without it */
		if (!record_hidden(index, r)) /* else nobody walks the ring any more */
			whole_remove(index, record);
		record_leave_whole(index, r);
	}
	r->pins--;
	record_review(index, record, NULL);
	return false;
}

/* ---- the end of its group -------------------------------------------------------------------------------------- */

void record_make_live(struct index *index, struct record *r)
{
	assert(r->state == RECORD_FILLING);
	__atomic_store_n(&record_table(index, record_number(index, r))->group, 0, __ATOMIC_RELEASE);
	r->state = RECORD_LIVE;
	r->flags &= (uint8_t)~RECORD_FLAG_ADOPTED;
	index->counters.records++;
}

void index_record_publish(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	assert(r->pins > 0);
	record_make_live(index, r);
	if (index->news)
		news_stored(index, r);
	r->pins--;
	/* The usual case: nothing can be trimmed or joined. */
	if (!record_hidden(index, r) && r->pages && r->pages == r->capacity && !index->zero_page_records &&
		place_has_value(index, r, r->pages - 1u))
		candidate_consider(index, record);
	else
		record_review(index, record, sink);
}

/* Any value of @record, preferring committed ones; INDEX_NONE = none. */
static uint32_t record_any_value(const struct index *index, const struct record *r, bool *ret_committed)
{
	const uint32_t *words = arena_at(&index->arena, r->block);
	uint32_t values = (uint32_t)r->pages * index->page_columns;
	uint32_t found = INDEX_NONE;

	*ret_committed = false;
	for (uint32_t i = 0; i < values + index->row_columns && !*ret_committed; i++) {
		uint32_t word = i < values ? words[i] : block_row(index, r)[i - values];

		if (!word_is_value(word))
			continue;
		found = word & WORD_ENTRY;
		*ret_committed = word_committed(index, word);
	}
	return found;
}

void index_record_abandon(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];
	struct record_entry *t = record_table(index, record);
	bool committed;

	lock_assert_held(index->guard);
	if (r->flags & RECORD_FLAG_WHOLE) /* as all others of the group do: nobody walks this ring any more */
		record_leave_whole(index, r);
	if (r->state == RECORD_OPEN && !index_record_close(index, record))
		return;
	assert(r->state == RECORD_FILLING && r->pins > 0);
	r->pins--;
	uint32_t left = record_any_value(index, r, &committed);

	index->why = INDEX_WHY_LOST;
	if (committed) {
		record_make_live(index, r);
		news_stored(index, r);
	} else if (left != INDEX_NONE) {
		r->flags |= RECORD_FLAG_ADOPTED;
		__atomic_store_n(&t->group, index->tables->entries[left].group, __ATOMIC_RELEASE);
	}
	record_review(index, record, sink);
}

/* ---- leaving --------------------------------------------------------------------------------------------------- */

uint32_t record_free_joined(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];
	struct record_entry *t = record_table(index, record);

	assert(!r->pins && r->state != RECORD_FREE && r->state != RECORD_OPEN && !record_hidden(index, r));
	if (r->flags & RECORD_FLAG_SELECTED)
		victim_obsolete(index, r);
	record_name_goes(index, r);
	hold_forget(index, record);
	candidate_withdraw(index, record);
	/* A filling WHOLE record goes because its whole group does: nobody walks that ring any more. */
	if (r->flags & RECORD_FLAG_WHOLE && r->state == RECORD_LIVE)
		whole_remove(index, record);
	__atomic_store_n(&t->flags, 0, __ATOMIC_RELEASE);
	if (index->row_columns)
		place_empty(index, r, INDEX_PAGE_ROW, sink);
	for (uint32_t page = r->pages; page-- > 0;)
		place_empty(index, r, page, sink);
	assert(r->unsettled == 0);
	link_disown(index, record, INDEX_NONE);
	uint32_t parent = link_cut(index, record);

	arena_free(&index->arena, r->block, block_words(index, r->capacity));
	r->block = ARENA_NONE;
	index->counters.records -= r->state == RECORD_LIVE;
	zero_page_record_goes(index, r);
	lost_record(index, r);
	record_give_back_number(index, record);
	return parent;
}

uint32_t record_free(struct index *index, uint32_t record, const struct index_sink *sink)
{
	news_gone(index, &index->records[record]);
	return record_free_joined(index, record, sink);
}

void record_review(struct index *index, uint32_t record, const struct index_sink *sink)
{
	while (record != INDEX_NONE) {
		struct record *r = &index->records[record];

		if (r->state == RECORD_OPEN || r->state == RECORD_FREE)
			return;
		if (record_hidden(index, r)) {
			hidden_review(index, record);
			return;
		}
		record_trim(index, r);
		if (r->pages || r->flags & RECORD_FLAG_ROW) {
			if (r->state != RECORD_LIVE)
				return;
			loss_end(index, r);
			if (record_is_zero(r) && twin_join(index, record))
				return;
			twin_join_at(index, record);
			candidate_consider(index, record);
			return;
		}
		if (r->pins) { /* its holders find nothing in it, and the last one lets it go */
			loss_end(index, r);
			candidate_withdraw(index, record);
			return;
		}
		record = record_free(index, record, sink);
	}
}

/* What was said of a row that is no more. */
static void record_forget_reason(struct index *index, uint32_t record)
{
	struct record_entry *t = record_table(index, record);

	if (t->flags & (RECORD_RUNG | RECORD_DEMANDED))
		__atomic_store_n(&t->flags, t->flags & ~(uint32_t)(RECORD_RUNG | RECORD_DEMANDED), __ATOMIC_RELEASE);
}

void record_row_gone(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	r->flags &= (uint8_t)~RECORD_FLAG_ROW;
	if (record_hidden(index, r))
		return;
	record_forget_reason(index, record);
	if (r->row_slot != INDEX_NONE)
		policy_lru.remove(index->rows, record);
	if (record_is_zero(r))
		link_disown(index, record, INDEX_NONE);
	else if (r->pages && place_any(index, r, r->pages - 1u) == WORD_NONE)
		link_disown(index, record, r->pages - 1u); /* the row was the last to know the endpoint's name */
}

uint32_t record_drop_row(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];
	uint32_t values = place_empty(index, r, INDEX_PAGE_ROW, sink);

	if (values)
		loss_row(index, r);
	record_row_gone(index, record);
	record_review(index, record, sink);
	return values;
}

uint32_t record_drop_last(struct index *index, uint32_t record, const struct index_sink *sink)
{
	struct record *r = &index->records[record];
	uint32_t values = 0;

	if (r->flags & RECORD_FLAG_ROW) {
		values += place_empty(index, r, INDEX_PAGE_ROW, sink);
		if (values)
			loss_row(index, r);
		record_row_gone(index, record);
	}
	if (r->pages) {
		values += place_empty(index, r, r->pages - 1u, sink);
		record_set_length(index, r, r->pages - 1u);
	}
	record_review(index, record, sink);
	return values;
}

void index_record_name(const struct index *index, uint32_t record, uint64_t *consumed, struct key *endpoint)
{
	const struct record_entry *t = record_table(index, record);

	lock_assert_held(index->guard);
	*consumed = t->consumed;
	*endpoint = t->endpoint;
}
