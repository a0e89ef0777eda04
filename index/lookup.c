/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking keys up.
 *
 * The hot path is memory latency: a key costs its bucket, its anchor's entry and, where a page has several values, its
 * record and block. The batch goes through each of these stages as a whole, each stage asking for the lines that the
 * next one reads, so that up to INDEX_STEP_KEYS misses overlap.
 */
#include "index/internal.h"

void index_prefetch(const struct index *index, const struct key *keys, uint32_t n, uint64_t *hashes)
{
	const struct keymap *map = &index->map;

	for (uint32_t i = 0; i < n; i++) {
		hashes[i] = keymap_hash(map, &keys[i]);
		__builtin_prefetch(&map->buckets[keymap_home(map, hashes[i])]);
	}
}

void index_prefetch_rows(const struct index *index, const uint64_t *hashes, uint32_t n)
{
	if (!rows_elsewhere(index)) /* else they are not looked for in the map */
		return;
	for (uint32_t i = 0; i < n; i++)
		__builtin_prefetch(&index->map.buckets[keymap_home(&index->map, row_hash(hashes[i]))]);
}

/* A page has one value and it is the anchor: its entry says everything. */
static void hit_single(const struct index *index, uint32_t entry, bool wanted, struct index_hit *hit)
{
	const struct entry *e = &index->tables->entries[entry];

	hit->present = e->state == ENTRY_VALUE && tables_committed(index->tables, e->group);
	hit->complete = hit->present;
	hit->classes = hit->present ? UINT16_MAX : 0;
	hit->entry = hit->present && wanted ? entry : INDEX_NONE;
}

/* Which page classes are complete, class by class; whether any value is committed. */
static uint32_t classes_complete(const struct index *index, const uint32_t *words, uint64_t consumed, bool *ret_present)
{
	const struct layout *l = index->layout;
	uint32_t complete = 0;

	*ret_present = false;
	for (uint32_t mask = l->dense_mask | l->window_mask; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask), committed = 0;
		const uint32_t *word = words + l->class[c].first_column;

		for (uint32_t s = 0; s < l->class[c].shares; s++)
			committed += word_committed(index, word[s]);
		*ret_present |= committed > 0;
		if (committed == l->class[c].shares || !layout_has_value(l, c, consumed))
			complete |= 1u << c;
	}
	return complete;
}

static void hit_columns(const struct index *index, uint32_t class_mask, struct index_hit *hit)
{
	const uint32_t *words = block_values(index, &index->records[hit->record], hit->page);
	uint32_t any = 0;

	for (uint32_t i = 0; i < index->page_columns; i++)
		any |= words[i];
	if (!(any & (WORD_PREPARED | WORD_HOLLOW))) { /* WORD_NONE has both: there is a value in every column, all of them settled */
		hit->present = hit->complete = true;
		hit->classes = UINT16_MAX;
		return;
	}
	hit->classes = (uint16_t)classes_complete(
		index, words, index_consumed(index, hit->record, hit->page), &hit->present);
	hit->complete = hit->present && !(class_mask & ~(uint32_t)hit->classes);
}

/* Are the wanted states at the row of @record complete? */
static bool row_complete(const struct index *index, uint32_t record, uint32_t states)
{
	const uint32_t *row = block_row(index, &index->records[record]);

	for (uint32_t mask = states; mask; mask &= mask - 1) {
		const struct value_class *class = &index->layout->class[__builtin_ctz(mask)];

		for (uint32_t s = 0; s < class->shares; s++)
			if (!word_committed(index, row[class->first_column + s]))
				return false;
	}
	return states != 0;
}

/* Has the record whose last page this is a row of its own? Then no other one has one there. */
static bool has_own_row(const struct index *index, const struct index_hit *hit)
{
	const struct record *r = &index->records[hit->record];

	return hit->page + 1u == r->pages && r->flags & RECORD_FLAG_ROW;
}

/* Rows mostly stand where the page at their key ends its record. What is left is looked for in the map: rows of records without pages, and those
 * whose page has lost its name. */
static void hit_rows(const struct index *index, const struct key *keys, const uint64_t *hashes, uint32_t n, uint32_t states,
	struct index_hit *hits)
{
	const struct keymap *map = &index->map;
	bool others = rows_elsewhere(index);
	uint64_t perhaps = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (hits[i].record != INDEX_NONE && has_own_row(index, &hits[i])) {
			if (row_complete(index, hits[i].record, states))
				hits[i].row = hits[i].record;
		} else if (others) {
			uint32_t entry = bucket_likely(map, row_hash(hashes[i]));

			if (entry != KEYMAP_NONE)
				__builtin_prefetch(&index->tables->entries[entry]);
			if (entry != KEYMAP_NONE || map->buckets[keymap_home(map, row_hash(hashes[i]))].passed_on)
				perhaps |= 1ull << i;
		}
	}
	for (; perhaps; perhaps &= perhaps - 1) {
		uint32_t i = (uint32_t)__builtin_ctzll(perhaps);
		uint32_t entry = keymap_find(map, row_hash(hashes[i]), &keys[i], fits_row, index);

		if (entry != INDEX_NONE && row_complete(index, index->tables->entries[entry].record, states))
			hits[i].row = index->tables->entries[entry].record;
	}
}

void index_lookup(struct index *index, const struct key *keys, uint32_t n, uint32_t class_mask, struct index_hit *hits)
{
	uint64_t hashes[INDEX_STEP_KEYS];

	assert(n <= INDEX_STEP_KEYS);
	index_prefetch(index, keys, n, hashes);
	index_lookup_hashed(index, keys, hashes, n, class_mask, false, hits);
}

void index_lookup_hashed(struct index *index, const struct key *keys, const uint64_t *hashes, uint32_t n,
	uint32_t class_mask, bool rows, struct index_hit *hits)
{
	uint32_t states = rows ? class_mask & index->layout->state_mask : 0;
	const struct keymap *map = &index->map;
	const struct entry *entries = index->tables->entries;
	bool single = index->page_columns == 1;
	uint64_t perhaps = 0; /* bit i: key i may be there */

	lock_assert_held(index->guard);
	assert(n <= INDEX_STEP_KEYS);
	class_mask &= index->layout->dense_mask | index->layout->window_mask;
	for (uint32_t i = 0; i < n; i++) {
		const struct keymap_bucket *bucket = &map->buckets[keymap_home(map, hashes[i])];
		uint32_t match = keymap_match(bucket, keymap_tag(hashes[i]));

		hits[i] = (struct index_hit){.record = INDEX_NONE, .entry = INDEX_NONE, .row = INDEX_NONE};
		/* Mostly the first one with the tag is it, or there is none. */
		if (match)
			__builtin_prefetch(&entries[bucket->ref[__builtin_ctz(match)]]);
		if (match || bucket->passed_on)
			perhaps |= 1ull << i;
	}
	for (; perhaps; perhaps &= perhaps - 1) {
		uint32_t i = (uint32_t)__builtin_ctzll(perhaps);
		uint32_t entry = keymap_find(map, hashes[i], &keys[i], fits_page, index);

		if (entry == INDEX_NONE)
			continue;
		hits[i].record = entries[entry].record;
		hits[i].page = entries[entry].page;
		__builtin_prefetch(&index->records[hits[i].record], 1);
		__builtin_prefetch(&index->tables->records[hits[i].record].start, 1);
		if (single)
			hit_single(index, entry, class_mask != 0, &hits[i]);
	}
	for (uint32_t i = 0; i < n && !single; i++)
		if (hits[i].record != INDEX_NONE)
			__builtin_prefetch(block_values(index, &index->records[hits[i].record], hits[i].page));
	for (uint32_t i = 0; i < n && !single; i++)
		if (hits[i].record != INDEX_NONE)
			hit_columns(index, class_mask, &hits[i]);
	if (states)
		hit_rows(index, keys, hashes, n, states, hits);
}

uint32_t index_find_endpoint(struct index *index, const struct key *key)
{
	lock_assert_held(index->guard);
	uint32_t entry = anchor_page(index, key);

	if (entry != INDEX_NONE) {
		const struct entry *e = &index->tables->entries[entry];
		const struct record *r = &index->records[e->record];

		if (r->state != RECORD_OPEN && e->page + 1u == r->pages)
			return e->record;
	}
	uint32_t owner = row_owner(index, key);

	return owner != INDEX_NONE && index->records[owner].state != RECORD_OPEN ? owner : INDEX_NONE;
}

uint32_t index_find_row(struct index *index, const struct key *key, uint32_t class_mask)
{
	lock_assert_held(index->guard);
	uint32_t owner = row_owner(index, key);

	if (owner == INDEX_NONE)
		return INDEX_NONE;
	return row_complete(index, owner, class_mask & index->layout->state_mask) ? owner : INDEX_NONE;
}

uint32_t index_row_home(struct index *index, const struct key *key)
{
	lock_assert_held(index->guard);
	uint32_t owner = row_owner(
		index, key); /* whoever has a row there already, even if it still waits for its twin */

	if (owner != INDEX_NONE)
		return owner;
	return index_find_endpoint(index, key);
}

uint32_t index_value(const struct index *index, uint32_t record, uint16_t page, uint32_t column, bool *committed)
{
	const struct record *r = &index->records[record];
	uint32_t n;

	if (committed)
		*committed = false;
	if (r->state == RECORD_FREE || (page != INDEX_PAGE_ROW && page >= r->pages))
		return INDEX_NONE;

	uint32_t word = place_words(index, r, page, &n)[column];

	assert(column < n);
	if (!word_is_value(word))
		return INDEX_NONE;
	if (committed)
		*committed = word_committed(index, word);
	return word & WORD_ENTRY;
}

void index_page_values(const struct index *index, uint32_t record, uint16_t page, const uint32_t *columns, uint32_t n,
	uint32_t *entries)
{
	const struct record *r = &index->records[record];
	const uint32_t *words = block_values(index, r, page);

	assert(r->state != RECORD_FREE && page < r->pages);
	for (uint32_t i = 0; i < n; i++) {
		assert(columns[i] < index->page_columns);
		entries[i] = word_is_value(words[columns[i]]) ? words[columns[i]] & WORD_ENTRY : INDEX_NONE;
	}
}

const struct key *index_page_key(const struct index *index, uint32_t record, uint16_t page)
{
	const struct record *r = &index->records[record];
	uint32_t word;

	lock_assert_held(index->guard);
	if (r->state == RECORD_FREE || page >= r->pages)
		return NULL;
	word = place_any(index, r, page);
	return word == WORD_NONE ? NULL : &index->tables->entries[word & WORD_ENTRY].key;
}

bool index_page_has_value(const struct index *index, uint32_t record, uint16_t page)
{
	const struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	return r->state != RECORD_FREE && page < r->pages && place_has_value(index, r, page);
}
