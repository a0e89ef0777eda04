/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes because somebody says so, by key.
 */
#include "index/internal.h"

#include <errno.h>

/* Values of @class_mask at a place: their entries to @entries. False: one of them, or the record, is busy. */
static bool gather_place(const struct index *index, const struct record *r, uint32_t page, uint32_t class_mask,
	uint32_t *entries, uint32_t *n)
{
	const struct layout *l = index->layout;
	uint32_t words_n, before = *n;
	const uint32_t *words = place_words(index, r, page, &words_n);

	for (uint32_t c = 0; c < l->classes; c++) {
		if (!(class_mask >> c & 1) || layout_is_row(l, c) != (page == INDEX_PAGE_ROW))
			continue;
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			uint32_t word = words[layout_column(l, c, s)];

			if (!word_is_value(word))
				continue;
			if (word & WORD_PREPARED)
				return false;
			entries[(*n)++] = word & WORD_ENTRY;
		}
	}
	return *n == before || (r->state == RECORD_LIVE && !r->pins && !(r->flags & RECORD_FLAG_HELD));
}

static bool in_ring(const struct index *index, uint32_t entry)
{
	return index->records[index->tables->entries[entry].record].flags & RECORD_FLAG_WHOLE;
}

enum index_removal index_remove(struct index *index, const struct key *key, uint64_t hash, uint32_t class_mask,
	const struct index_sink *sink, uint32_t *ret_values)
{
	uint32_t entries[LAYOUT_MAX_CLASSES * LAYOUT_MAX_SHARES], n = 0;
	uint32_t anchor = keymap_find(&index->map, hash, key, fits_page, index);
	uint32_t row = row_owner(index, key);

	lock_assert_held(index->guard);
	*ret_values = 0;
	if (anchor != INDEX_NONE) {
		const struct entry *e = &index->tables->entries[anchor];

		if (!gather_place(index, &index->records[e->record], e->page, class_mask, entries, &n))
			return INDEX_BUSY;
	}
	if (row != INDEX_NONE && !gather_place(index, &index->records[row], INDEX_PAGE_ROW, class_mask, entries, &n))
		return INDEX_BUSY;
	if (!n)
		return INDEX_ABSENT;
	/* A page and the row at its end may be of two rings: one that went has freed its entries, and is not brought back
	 * when the other one has to stay. */
	for (uint32_t i = 0; i < n; i++) {
		uint32_t values = 0;

		if (index->tables->entries[entries[i]].state != ENTRY_VALUE || !in_ring(index, entries[i]))
			continue;
		if (!whole_drop(index, index->tables->entries[entries[i]].record, sink, &values))
			return INDEX_BUSY;
		*ret_values += values;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (index->tables->entries[entries[i]].state != ENTRY_VALUE)
			continue;
		index_value_drop(index, entries[i], false, sink);
		++*ret_values;
	}
	return INDEX_REMOVED;
}

int index_drop_row(struct index *index, uint32_t record, const struct index_sink *sink, struct why *why)
{
	struct record *r = &index->records[record];
	uint32_t entries[LAYOUT_MAX_CLASSES * LAYOUT_MAX_SHARES], n = 0;

	lock_assert_held(index->guard);
	assert(index_record_visible(index, record));
	for (uint32_t i = 0; i < index->row_columns; i++)
		if (word_committed(index, block_row(index, r)[i]))
			entries[n++] = block_row(index, r)[i] & WORD_ENTRY;
	if (!n)
		return why_set(why, ENODATA, "the record has no row");
	if (r->state != RECORD_LIVE || r->unsettled)
		return why_set(why, EBUSY, "the record is still being filled (%u values)", r->unsettled);
	if (r->pins)
		return why_set(why, EBUSY, "the record is in use by %u plans, handles or readers", r->pins);
	if (r->flags & RECORD_FLAG_HELD)
		return why_set(why, EBUSY, "the record is pinned by an operator");
	if (r->flags & RECORD_FLAG_WHOLE)
		return why_set(why, EBUSY, "the record belongs to a WHOLE group, which leaves as a whole");
	for (uint32_t i = 0; i < n; i++)
		index_value_drop(index, entries[i], false, sink);
	return 0;
}
