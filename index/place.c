/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands at a page or at a row: values, one of which is the key's anchor in the map, or one hollow entry, or
 * nothing. A page in the middle of a record with nothing at all has lost its name: nobody finds it, and the same key
 * put again begins another record.
 */
#include "index/internal.h"

static void tell_row_gone(struct index *index, const struct record *r, const struct key *key)
{
	if (index->row_gone && !index->rebuilding && !record_hidden(index, r))
		index->row_gone(index->row_gone_context, key, keymap_hash(&index->map, key), !place_has_value(index, r, INDEX_PAGE_ROW));
}

void place_take(struct index *index, struct record *r, uint32_t page, uint32_t *word, enum entry_state state,
	uint32_t hollow, const struct index_sink *sink)
{
	uint32_t entry = *word & WORD_ENTRY;
	const struct entry *e = &index->tables->entries[entry];
	uint64_t hash = place_hash(index, &e->key, page);
	uint32_t n;
	uint32_t *words = place_words(index, r, page, &n);
	bool settled = !(*word & WORD_PREPARED);

	assert(word_is_value(*word) && e->state == ENTRY_VALUE && e->page == page);
	*word = WORD_NONE;
	if (!settled) {
		assert(r->unsettled > 0);
		r->unsettled--;
	} else if (page != INDEX_PAGE_ROW) {
		bool others = false;

		for (uint32_t i = 0; i < n; i++)
			others |= word_is_value(words[i]) && !(words[i] & WORD_PREPARED);
		index->counters.pages -= !others;
	}
	if (hollow != INDEX_NONE)
		words[0] = hollow | WORD_HOLLOW;

	uint32_t *anchor = keymap_place(&index->map, hash, entry);

	if (anchor) {
		uint32_t other = place_any(index, r, page);

		if (other != WORD_NONE)
			*anchor = other & WORD_ENTRY;
		else
			keymap_remove(&index->map, hash, entry);
	}
	if (page == INDEX_PAGE_ROW)
		tell_row_gone(index, r, &e->key);
	tables_entry_set_state(index->tables, entry, state);
	if (state == ENTRY_FREE && sink && sink->freed)
		sink->freed(sink->context, entry);
}

uint32_t place_empty(struct index *index, struct record *r, uint32_t page, const struct index_sink *sink)
{
	uint32_t n, values = 0;
	uint32_t *words = place_words(index, r, page, &n);

	for (uint32_t i = 0; i < n; i++) {
		if (words[i] == WORD_NONE)
			continue;
		if (!(words[i] & WORD_HOLLOW)) {
			place_take(index, r, page, &words[i], ENTRY_FREE, INDEX_NONE, sink);
			values++;
			continue;
		}
		uint32_t entry = words[i] & WORD_ENTRY;

		keymap_remove(&index->map, place_hash(index, &index->tables->entries[entry].key, page), entry);
		words[i] = WORD_NONE;
		hollow_free(index, entry);
	}
	return values;
}

uint32_t place_count_values(const struct index *index, const struct record *r, uint32_t page)
{
	uint32_t n, values = 0;
	const uint32_t *words = place_words(index, r, page, &n);

	for (uint32_t i = 0; i < n; i++)
		values += word_is_value(words[i]);
	return values;
}

/* ---- hollow entries -------------------------------------------------------------------------------------------- */

void hollow_pool_init(struct index *index)
{
	index->hollow_top = index->hollow_first;
	index->hollow_list = INDEX_NONE;
}

uint32_t hollow_make(struct index *index, uint32_t record, uint32_t page, const struct key *key)
{
	uint32_t number = index->hollow_list;
	struct tables *tables = index->tables;

	if (number != INDEX_NONE)
		index->hollow_list = tables->entries[number].record;
	else if (index->hollow_top < index->hollow_first + index->hollow_count)
		number = index->hollow_top++;
	else
		return INDEX_NONE;

	struct entry *e = &tables->entries[number];

	tables_unseal(&e->check);
	e->key = *key;
	e->record = record;
	e->page = (uint16_t)page;
	e->class_index = 0;
	e->share = 0;
	e->group = 0;
	e->state = ENTRY_HOLLOW;
	tables_seal_entry(e, number);
	index->counters.hollow_pages++;
	return number;
}

void hollow_free(struct index *index, uint32_t entry)
{
	assert(index->tables->entries[entry].state == ENTRY_HOLLOW);
	tables_entry_set_state(index->tables, entry, ENTRY_FREE);
	index->tables->entries[entry].record = index->hollow_list;
	index->hollow_list = entry;
	index->counters.hollow_pages--;
}
