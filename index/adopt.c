/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that come back from disk as they were: at once, by the million, in any order.
 *
 * A record is adopted in one stay: names first, each looked up and made in one visit to its bucket, so that a key that is
 * known already is found before anybody can see the record, and what was made is taken back. Then the record is sealed,
 * then it is linked. What costs more than its own lines waits for the settling: orders, where every later child would take
 * its parent out again, and the uses of what it hangs off.
 *
 *   being adopted    names in the map; unused in the tables     a rebuild frees its entries
 *   adopted          LIVE, linked, in no order
 *   settled          trimmed, in the orders                     as any other
 */
#include "index/internal.h"

static uint32_t value_entry(const struct index *index, const struct index_adoption *a, uint32_t page, uint32_t column)
{
	if (page == INDEX_PAGE_ROW)
		return a->entries[(size_t)a->pages * index->page_columns + column];
	return a->entries[(size_t)page * index->page_columns + column];
}

static const struct key *adoption_endpoint(const struct index_adoption *a)
{
	return a->pages ? &a->keys[a->pages - 1] : a->endpoint;
}

static bool adoption_has_row(const struct index *index, const struct index_adoption *a)
{
	for (uint32_t i = 0; i < index->row_columns; i++)
		if (value_entry(index, a, INDEX_PAGE_ROW, i) != INDEX_NONE)
			return true;
	return false;
}

/* ---- fetching ahead -------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE void prefetch_key(const struct index *index, const struct key *key)
{
	prefetch_bucket(&index->map, keymap_hash(&index->map, key));
	if (index->orphans.count)
		prefetch_bucket(&index->orphans, keymap_hash(&index->orphans, key));
}

static ALWAYS_INLINE void prefetch_pages(const struct index *index, const struct index_adoption *a, uint32_t first, uint32_t n)
{
	const uint32_t *entries = a->entries + (size_t)first * index->page_columns;

	for (uint32_t i = 0; i < n; i++)
		prefetch_key(index, &a->keys[first + i]);
	for (uint32_t i = 0; i < n * index->page_columns; i++)
		if (entries[i] != INDEX_NONE)
			__builtin_prefetch(&index->tables->entries[entries[i]], 1);
}

void index_adopt_prefetch(const struct index *index, const struct key *parent, const struct key *keys, uint32_t pages)
{
	uint32_t n = pages < INDEX_STEP_KEYS ? pages : INDEX_STEP_KEYS;

	lock_assert_held(index->guard);
	for (uint32_t i = 0; i < n; i++)
		prefetch_key(index, &keys[i]);
	if (parent)
		prefetch_key(index, parent);
}

/* The entry that the parent's key probably has; INDEX_NONE. Its line is fetched. */
static ALWAYS_INLINE uint32_t prefetch_parent(const struct index *index, const struct index_adoption *a)
{
	if (!a->parent)
		return INDEX_NONE;

	uint32_t entry = bucket_likely(&index->map, keymap_hash(&index->map, a->parent));

	if (entry != INDEX_NONE)
		__builtin_prefetch(&index->tables->entries[entry]);
	return entry;
}

/* What probably waits for the pages of @a. */
static ALWAYS_INLINE void prefetch_orphans(const struct index *index, const struct index_adoption *a)
{
	const struct keymap *map = &index->orphans;

	for (uint32_t i = 0; i < a->pages && i < INDEX_STEP_KEYS && map->count; i++) {
		uint32_t orphan = bucket_likely(map, keymap_hash(map, &a->keys[i]));

		if (orphan == INDEX_NONE)
			continue;
		prefetch_record(index, orphan);
		__builtin_prefetch(&index->tables->records[orphan].parent_key);
	}
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

/* Values of a place with its name, which nobody has. False: somebody has it. */
static bool adopt_place(struct index *index, struct record *r, const struct index_adoption *a, uint32_t page,
	const struct key *key)
{
	uint32_t n, number = record_number(index, r), anchor = INDEX_NONE;
	uint32_t *words = place_words(index, r, page, &n);
	const struct layout *l = index->layout;
	uint64_t hash = place_hash(index, key, page);
	bool row = page == INDEX_PAGE_ROW;

	if (keymap_find(&index->map, hash, key, row ? fits_row : fits_page, index) != INDEX_NONE)
		return false;
	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares && layout_is_row(l, c) == row; s++) {
			uint32_t column = layout_column(l, c, s);
			uint32_t entry = value_entry(index, a, page, column);

			if (entry == INDEX_NONE)
				continue;
			place_mark(index, entry);
			entry_fill(index, entry, key, number, page, c, s, 0);
			words[column] = entry;
			anchor = anchor == INDEX_NONE ? entry : anchor;
		}
	index->counters.pages += !row && anchor != INDEX_NONE;
	if (anchor == INDEX_NONE) {
		anchor = hollow_make(index, number, page, key);
		if (anchor == INDEX_NONE)
			return true;
		words[0] = anchor | WORD_HOLLOW;
	}
	bool there = keymap_insert(&index->map, hash, anchor);

	assert(there); /* names_fit */
	return true;
}

/* Returns how many pages have their names: fewer than all when one is known, and one more than all with the row. */
static uint32_t adopt_names(struct index *index, struct record *r, const struct index_adoption *a)
{
	for (uint32_t page = 0; page < a->pages; page++) {
		if (page % INDEX_STEP_KEYS == 0)
			prefetch_pages(index, a, page,
				a->pages - page < INDEX_STEP_KEYS ? a->pages - page : INDEX_STEP_KEYS);
		if (!adopt_place(index, r, a, page, &a->keys[page]))
			return page;
	}
	if (adoption_has_row(index, a)) {
		if (!adopt_place(index, r, a, INDEX_PAGE_ROW, adoption_endpoint(a)))
			return a->pages;
		r->flags |= RECORD_FLAG_ROW;
	}
	return a->pages + 1;
}

static bool names_fit(const struct index *index, const struct index_adoption *a)
{
	return (uint64_t)index->map.count + a->pages + 1 <= index->map.max_count;
}

/* ---- the record ------------------------------------------------------------------------------------------------- */

static uint32_t tick_of(const struct index *index, uint32_t tick)
{
	uint32_t age = index->tick - tick;

	if ((int32_t)age < 0)
		return index->tick;
	return age < INDEX_TICK_SPAN ? tick : index->tick - INDEX_TICK_SPAN;
}

/* A number with a block that nobody knows; INDEX_NONE: there is none. */
static uint32_t adopt_begin(struct index *index, const struct index_adoption *a)
{
	uint32_t number = names_fit(index, a) ? record_take_number(index) : INDEX_NONE;
	uint32_t tick = tick_of(index, a->tick);

	if (number == INDEX_NONE)
		return INDEX_NONE;

	struct record *r = &index->records[number];

	if (!record_make_block(index, r, a->pages)) {
		record_give_back_number(index, number);
		return INDEX_NONE;
	}
	r->state = RECORD_LIVE;
	r->pages = (uint16_t)a->pages;
	r->flags = (uint8_t)((a->parent ? 0 : RECORD_FLAG_ROOT) | (a->flags & RECORD_WHOLE ? RECORD_FLAG_WHOLE : 0));
	for (uint32_t i = 0; i < (a->pages ? a->pages : 1u); i++)
		block_uses(index, r)[i] = tick;
	return number;
}

/* The names of the first @pages pages are taken back, and the number. */
static void adopt_undo(struct index *index, uint32_t number, uint32_t pages)
{
	struct record *r = &index->records[number];

	while (pages-- > 0)
		place_empty(index, r, pages, NULL);
	arena_free(&index->arena, r->block, block_words(index, r->capacity));
	r->block = ARENA_NONE;
	record_give_back_number(index, number);
}

static void adopt_seal(struct index *index, uint32_t number, const struct index_adoption *a)
{
	static const struct key no_key;
	struct record_entry *t = record_table(index, number);

	tables_unseal(&t->check);
	t->parent_key = a->parent ? *a->parent : no_key;
	t->endpoint = *adoption_endpoint(a);
	t->start = a->start;
	t->consumed = a->start + (uint64_t)a->pages * index->layout->page_tokens;
	t->pages = a->pages;
	t->flags = RECORD_USED | (a->parent ? 0 : RECORD_ROOT) | (a->flags & RECORD_WHOLE);
	t->group = 0;
	t->whole_next = TABLES_NONE;
	t->created_s = a->created_s;
	t->last_use_s = a->last_use_s;
	t->hits = 0;
	t->generation = index->era;
	t->held_units = 0;
	tables_seal_record(t, number);
	if (a->flags & RECORD_WHOLE)
		whole_insert(index, number, a->whole_ring);
}

static void adopt_links(struct index *index, uint32_t number, const struct index_adoption *a)
{
	const struct record *r = &index->records[number];

	link_find(index, number);
	for (uint32_t page = 0; page < a->pages; page++)
		if (place_any(index, r, page) != WORD_NONE)
			link_adopt(index, number, page, &a->keys[page]);
	if (!a->pages && r->flags & RECORD_FLAG_ROW)
		link_adopt(index, number, INDEX_PAGE_ROW, a->endpoint);
}

int index_adopt(struct index *index, struct index_adoption *a, uint32_t *ret)
{
	lock_assert_held(index->guard);
	assert(a->pages < INDEX_PAGE_ROW && (a->pages || (a->endpoint && index->row_columns)));
	*ret = INDEX_NONE;

	uint32_t number = adopt_begin(index, a);

	if (number == INDEX_NONE)
		return INDEX_E_FULL;

	struct record *r = &index->records[number];
	uint32_t before = prefetch_parent(index, a);
	uint32_t named = adopt_names(index, r, a);

	prefetch_orphans(index, a);
	if (before != INDEX_NONE)
		prefetch_record(index, index->tables->entries[before].record);
	if (named <= a->pages) {
		adopt_undo(index, number, named);
		a->twice_at = named < a->pages ? named : INDEX_PAGE_ROW;
		return INDEX_E_TWICE;
	}
	index->adopting = true;
	index->counters.records++;
	zero_page_record_comes(index, r);
	index->mends += a->pages;
	adopt_seal(index, number, a);
	*ret = number;
	adopt_links(index, number, a);
	if (a->flags & RECORD_PINNED)
		index_hold(index, number, true);

	uint32_t parent = r->parent;

	if (!record_is_zero(r))
		twin_join_at(index, number);
	else if (twin_join(index, number))
		*ret = parent;
	return 0;
}

/* ---- settling --------------------------------------------------------------------------------------------------- */

static bool settles(const struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];

	return r->state == RECORD_LIVE && !record_hidden(index, r);
}

/* What a record hangs off was used when it was. One step: the record that is to be looked at next, INDEX_NONE: none. */
static uint32_t carry_up(struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];
	uint32_t parent = r->parent;

	if (parent == INDEX_NONE)
		return INDEX_NONE;

	struct record *p = &index->records[parent];
	uint32_t page = r->parent_page == INDEX_PAGE_ROW ? 0 : r->parent_page;
	uint32_t tick = block_uses(index, r)[0], used_s = record_table(index, record)->last_use_s;
	struct record_entry *t = record_table(index, parent);
	bool later = (int32_t)(tick - block_uses(index, p)[page]) > 0, later_s = (int32_t)(used_s - t->last_use_s) > 0;

	if (later)
		record_use(index, p, page, tick);
	if (later_s)
		t->last_use_s = used_s;
	return later || later_s ? parent : INDEX_NONE;
}

#define SETTLE_AHEAD 4u /* records between two stages of fetching what carry_up reads */

/* For records behind @number, each one stage further than the one after it: it; its parent; that one's uses. */
static ALWAYS_INLINE void prefetch_settle(const struct index *index, uint32_t number)
{
	const struct record *r = &index->records[number];

	if (number + 3 * SETTLE_AHEAD >= index->record_top)
		return;
	prefetch_record(index, number + 3 * SETTLE_AHEAD);
	r += 2 * SETTLE_AHEAD;
	if (settles(index, number + 2 * SETTLE_AHEAD)) {
		__builtin_prefetch(block_uses(index, r));
		prefetch_record(index, r->parent);
	}
	r -= SETTLE_AHEAD;
	if (settles(index, number + SETTLE_AHEAD) && r->parent != INDEX_NONE)
		__builtin_prefetch(block_uses(index, &index->records[r->parent]) +
					   (r->parent_page == INDEX_PAGE_ROW ? 0 : r->parent_page), 1);
}

#define SETTLE_USES 0x80000000u /* of a cursor: everything was reviewed, now uses are carried up */

static void settle_one(struct index *index, uint32_t number, bool uses)
{
	if (!settles(index, number))
		return;
	if (uses)
		index->settle_at = number;
	else
		record_review(index, number, NULL);
}

/* Reviews first, which may move children and join twins. Both from the first number on: a catalogue is read newest first, so
 * what a record hangs off is mostly raised once. */
bool index_adopt_settle(struct index *index, uint32_t *cursor)
{
	lock_assert_held(index->guard);
	/* Nobody has heard of these records as stored. */
	void (*news)(void *, enum index_news_kind, enum index_why, uint64_t, const struct key *, uint32_t, uint32_t) =
		index->news;

	if (!index->adopting) /* nothing has come */
		return false;
	index->news = NULL;
	if (*cursor == 0)
		index->settle_at = INDEX_NONE;
	for (uint32_t looked = 0; looked < INDEX_STEP_KEYS; looked++) {
		if (index->settle_at != INDEX_NONE && !settles(index, index->settle_at))
			index->settle_at = INDEX_NONE;
		if (index->settle_at != INDEX_NONE) {
			index->settle_at = carry_up(index, index->settle_at);
			continue;
		}
		uint32_t number = *cursor & ~SETTLE_USES;

		if (number >= index->record_top) {
			if (*cursor & SETTLE_USES) {
				index->adopting = false;
				break;
			}
			*cursor = SETTLE_USES;
			continue;
		}
		++*cursor;
		prefetch_settle(index, number);
		settle_one(index, number, *cursor & SETTLE_USES);
	}
	index->news = news;
	return index->adopting;
}

uint32_t index_record_last_use(const struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];

	lock_assert_held(index->guard);
	assert(r->state != RECORD_FREE && r->block != ARENA_NONE);
	if (r->flags & RECORD_FLAG_WHOLE && r->state == RECORD_LIVE && !record_hidden(index, r))
		return whole_last_use(index, record);
	return record_last_use(index, r);
}
