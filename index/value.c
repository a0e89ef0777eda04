/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: how they come, are settled, and go.
 */
#include "index/internal.h"

uint32_t *value_word(const struct index *index, uint32_t entry, struct record **ret_record)
{
	const struct entry *e = &index->tables->entries[entry];
	struct record *r = &index->records[e->record];
	uint32_t n, column = layout_column(index->layout, e->class_index, e->share);
	uint32_t *words;

	assert(e->state == ENTRY_VALUE && e->record < index->record_top && r->state != RECORD_FREE);
	assert(e->page == INDEX_PAGE_ROW || e->page < r->pages);
	words = place_words(index, r, e->page, &n);
	assert(column < n && word_is_value(words[column]) && (words[column] & WORD_ENTRY) == entry);
	*ret_record = r;
	return &words[column];
}

/* The place's key is new to the map: @entry is its anchor. @hash is the place's. */
static inline void value_anchor(struct index *index, uint32_t record, uint32_t page, const struct key *key, uint64_t hash,
	uint32_t entry)
{
	bool there = keymap_insert(&index->map, hash, entry);

	assert(there); /* max_pages was too small */
	if (page != INDEX_PAGE_ROW || record_is_zero(&index->records[record]))
		link_adopt(index, record, page, key);
}

/* The place has had no value: its key gets @entry as anchor. */
static void value_first(
	struct index *index, struct record *r, uint32_t page, const struct key *key, uint32_t entry, uint32_t hollow)
{
	uint64_t hash = place_hash(index, key, page);

	if (page == INDEX_PAGE_ROW)
		r->flags |= RECORD_FLAG_ROW;
	if (hollow == INDEX_NONE) {
		value_anchor(index, record_number(index, r), page, key, hash, entry);
		return;
	}
	*keymap_place(&index->map, hash, hollow) = entry;
	hollow_free(index, hollow);
}

void index_value_add(struct index *index, uint32_t record, uint16_t page, const struct key *key, uint32_t class_index,
	uint32_t share, uint32_t entry, uint32_t group)
{
	struct record *r = &index->records[record];
	uint32_t n, column = layout_column(index->layout, class_index, share);

	lock_assert_held(index->guard);
	assert(r->state != RECORD_FREE);
	assert(layout_is_row(index->layout, class_index) == (page == INDEX_PAGE_ROW));
	assert(page == INDEX_PAGE_ROW || page < r->pages);

	uint32_t *words = place_words(index, r, page, &n);
	uint32_t before = place_any(index, r, page);
	uint32_t hollow = INDEX_NONE;

	assert(column < n && !word_is_value(words[column]) && group != 0);
	entry_fill(index, entry, key, record, page, class_index, share, group);
	if (before != WORD_NONE && before & WORD_HOLLOW) {
		hollow = before & WORD_ENTRY;
		words[0] = WORD_NONE;
		before = WORD_NONE;
	}
	words[column] = entry | WORD_PREPARED;
	r->unsettled++;
	if (before == WORD_NONE)
		value_first(index, r, page, key, entry, hollow);
}

uint16_t index_page_add(struct index *index, uint32_t record, const struct key *key, uint64_t hash, uint32_t class_index,
	uint32_t share, uint32_t entry, uint32_t group)
{
	struct record *r = &index->records[record];
	uint32_t column = layout_column(index->layout, class_index, share);

	lock_assert_held(index->guard);
	assert(!layout_is_row(index->layout, class_index) && column < index->page_columns && group != 0);
	uint16_t page = record_append(index, r, key);

	entry_fill(index, entry, key, record, page, class_index, share, group);
	block_values(index, r, page)[column] = entry | WORD_PREPARED;
	r->unsettled++;
	value_anchor(index, record, page, key, hash, entry);
	return page;
}

/* Settled values of the row. */
static uint32_t row_settled(const struct index *index, const struct record *r)
{
	const uint32_t *words = block_row(index, r);
	uint32_t settled = 0;

	for (uint32_t i = 0; i < index->row_columns; i++)
		settled += word_is_value(words[i]) && !(words[i] & WORD_PREPARED);
	return settled;
}

void index_settle(struct index *index, uint32_t entry)
{
	struct record *r;
	struct entry *e = &index->tables->entries[entry];
	uint32_t *word = value_word(index, entry, &r);

	lock_assert_held(index->guard);
	assert(*word & WORD_PREPARED && tables_committed(index->tables, e->group));
	if (e->page != INDEX_PAGE_ROW) {
		uint32_t n;
		const uint32_t *words = place_words(index, r, e->page, &n);
		bool others = false;

		for (uint32_t i = 0; i < n; i++)
			others |= word_is_value(words[i]) && !(words[i] & WORD_PREPARED);
		index->counters.pages += !others;
		index->mends++;
		if (index->gates.windows >> e->class_index & 1)
			old_value_settled(index, record_number(index, r), e->page);
	} else if (r->state == RECORD_LIVE) {
		if (!row_settled(index, r))
			news_row_joined(index, r);
	}
	*word &= ~WORD_PREPARED;
	__atomic_store_n(&e->group, 0, __ATOMIC_RELEASE);
	assert(r->unsettled > 0);
	r->unsettled--;
	if (r->flags & RECORD_FLAG_ADOPTED) {
		record_make_live(index, r);
		news_stored(index, r);
		if (!record_hidden(index, r)) /* its review comes with the last one and without pins; a twin waits no longer */
			twin_join_at(index, record_number(index, r));
	}
	if (!r->unsettled && !r->pins && r->state == RECORD_LIVE)
		record_review(index, record_number(index, r), NULL);
}

/* Has the record a row that another group than @group put, or that stands already? */
static bool row_of_others(const struct index *index, const struct record *r, uint32_t group)
{
	const uint32_t *words = block_row(index, r);

	if (!(r->flags & RECORD_FLAG_ROW))
		return false;
	for (uint32_t i = 0; i < index->row_columns; i++)
		if (word_is_value(words[i]) && index->tables->entries[words[i] & WORD_ENTRY].group != group)
			return true;
	return false;
}

/* Does the place have to keep its name when its last value, of @group while that is prepared, goes? */
static bool name_needed(const struct index *index, const struct record *r, uint32_t page, uint32_t group)
{
	if (record_hidden(index, r))
		return false;
	if (r->state != RECORD_LIVE) /* an abort: children become orphans, but what is another's stays where it is */
		return page != INDEX_PAGE_ROW && r->state == RECORD_FILLING && row_of_others(index, r, group);
	if (page == INDEX_PAGE_ROW)
		return record_is_zero(r) && r->children > 0;
	return page + 1u < r->pages || r->tail_children > 0 || r->flags & RECORD_FLAG_ROW;
}

void value_drop(struct index *index, uint32_t entry, bool quarantine, enum index_why why, const struct index_sink *sink)
{
	struct record *r;
	uint32_t *word = value_word(index, entry, &r);
	const struct entry *e = &index->tables->entries[entry];
	uint32_t record = record_number(index, r);
	uint32_t page = e->page;
	uint32_t hollow = INDEX_NONE;

	bool last = place_count_values(index, r, page) == 1;
	bool committed = !(*word & WORD_PREPARED);

	index->breaks += committed && page != INDEX_PAGE_ROW;
	index->why = committed ? why : INDEX_WHY_LOST;
	if (committed && page == INDEX_PAGE_ROW && row_settled(index, r) == 1)
		loss_row(index, r);
	else if (committed)
		loss_value(index, r);

	bool needed = last && name_needed(index, r, page, e->group);

	if (needed)
		hollow = hollow_make(index, record, page, &e->key);
	place_take(index, r, page, word, quarantine ? ENTRY_QUARANTINED : ENTRY_FREE, hollow, sink);
	if (last && hollow == INDEX_NONE) {
		if (page == INDEX_PAGE_ROW)
			record_row_gone(index, record);
		else
			link_disown(index, record, page);
		if (needed)
			row_apart_note(index, r, page);
	}
	record_review(index, record, sink);
}

void index_value_drop(struct index *index, uint32_t entry, bool quarantine, const struct index_sink *sink)
{
	lock_assert_held(index->guard);
	value_drop(index, entry, quarantine, INDEX_WHY_HAND, sink);
}

void index_quarantine_end(struct index *index, uint32_t entry)
{
	lock_assert_held(index->guard);
	assert(index->tables->entries[entry].state == ENTRY_QUARANTINED);
	tables_entry_set_state(index->tables, entry, ENTRY_FREE);
}
