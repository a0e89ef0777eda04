/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of which some shares are committed and others are not: nobody can use them, and they hold slots.
 */
#include "index/internal.h"

/* Classes that have values at @page. */
static uint32_t classes_at(const struct index *index, uint32_t page)
{
	return page == INDEX_PAGE_ROW ? index->gates.states : index->gates.dense | index->gates.windows;
}

static bool class_half(const struct index *index, const uint32_t *words, const struct value_class *class)
{
	uint32_t committed = 0;

	for (uint32_t s = 0; s < class->shares; s++)
		committed += word_committed(index, words[class->first_column + s]);
	return committed && committed < class->shares;
}

uint32_t index_half(const struct index *index, uint32_t record, uint16_t page)
{
	const struct record *r = &index->records[record];
	uint32_t half = 0, n;

	lock_assert_held(index->guard);
	if (r->state == RECORD_FREE || r->state == RECORD_GOING || (page != INDEX_PAGE_ROW && page >= r->pages))
		return 0;

	const uint32_t *words = place_words(index, r, page, &n);

	for (uint32_t mask = classes_at(index, page); mask; mask &= mask - 1)
		if (class_half(index, words, &index->layout->class[__builtin_ctz(mask)]))
			half |= mask & -mask;
	return half;
}

bool index_value_half(const struct index *index, uint32_t entry)
{
	const struct entry *e = &index->tables->entries[entry];
	const struct value_class *class = &index->layout->class[e->class_index];
	uint32_t n;

	return class->shares > 1 && class_half(index, place_words(index, &index->records[e->record], e->page, &n), class);
}

/* Adds what is committed of @class to @entries. False: a share of it is being written. */
static bool gather(const uint32_t *words, const struct value_class *class, uint32_t *entries, uint32_t *n)
{
	uint32_t before = *n;

	for (uint32_t s = 0; s < class->shares; s++) {
		uint32_t word = words[class->first_column + s];

		if (!word_is_value(word))
			continue;
		if (word & WORD_PREPARED) {
			*n = before;
			return false;
		}
		entries[(*n)++] = word & WORD_ENTRY;
	}
	return true;
}

enum index_removal index_drop_half(
	struct index *index, uint32_t record, uint16_t page, const struct index_sink *sink, uint32_t *ret_values)
{
	uint32_t entries[LAYOUT_MAX_CLASSES * LAYOUT_MAX_SHARES], n = 0, words_n;
	uint32_t half = index_half(index, record, page);
	struct record *r = &index->records[record];
	bool all = true;

	*ret_values = 0;
	if (!half)
		return INDEX_ABSENT;
	if (r->state != RECORD_LIVE || r->pins || r->flags & RECORD_FLAG_HELD)
		return INDEX_BUSY;
	index->why = INDEX_WHY_LOST;
	if (r->flags & RECORD_FLAG_WHOLE)
		return whole_drop(index, record, sink, ret_values) ? INDEX_REMOVED : INDEX_BUSY;
	for (uint32_t mask = half; mask; mask &= mask - 1)
		all &= gather(place_words(index, r, page, &words_n), &index->layout->class[__builtin_ctz(mask)], entries, &n);
	for (uint32_t i = 0; i < n; i++)
		value_drop(index, entries[i], false, INDEX_WHY_LOST, sink);
	*ret_values = n;
	return all ? INDEX_REMOVED : INDEX_BUSY;
}
