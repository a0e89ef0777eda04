/* SPDX-License-Identifier: Apache-2.0
 *
 * The index from its tables alone, after a process that may have been killed between any two stores.
 *
 *   1. groups and records that are intact; records get blocks as long as they say they are
 *   2. values and hollow entries go to their places; what is torn, stale or contradicts its record becomes free, and
 *      so does the higher number of a value that was being moved
 *   3. what was not committed leaves the places: its entries are quarantined, for their clients may still be writing;
 *      everything left is settled and its records are LIVE
 *   4. broken WHOLE rings go
 *   5. the map, where twins that were being joined meet; then links, then reviews as in life
 *   6. groups that were still prepared are LOST
 *
 * Each step leaves tables that another rebuild reads the same way.
 */
#include "index/internal.h"

#include <errno.h>
#include <stdatomic.h>

/* ---- 1. groups and records ------------------------------------------------------------------------------------- */

static void groups_load(struct tables *tables)
{
	for (uint32_t g = 0; g < tables->group_capacity; g++) {
		uint32_t state = tables_group_state(tables, g);

		if (state == GROUP_FREE)
			continue;
		if (!tables_group_intact(tables, g) || state > GROUP_LOST)
			atomic_store_explicit(&tables->groups[g].state, GROUP_FREE, memory_order_release);
	}
}

static void groups_lose(struct tables *tables)
{
	for (uint32_t g = 0; g < tables->group_capacity; g++)
		if (tables_group_state(tables, g) == GROUP_PREPARED)
			atomic_store_explicit(&tables->groups[g].state, GROUP_LOST, memory_order_release);
}

static bool group_committed(const struct tables *tables, uint32_t group)
{
	return group == 0 || (group <= tables->group_capacity && tables_committed(tables, group));
}

static bool record_usable(const struct index *index, uint32_t number)
{
	const struct record_entry *t = record_table(index, number);

	return t->flags & RECORD_USED && t->generation == index->era && t->pages < INDEX_PAGE_ROW &&
	       tables_record_intact(index->tables, number);
}

static int records_load(struct index *index, struct why *why)
{
	struct tables *tables = index->tables;
	uint32_t top = tables->header->records_high;

	if (top > tables->record_capacity)
		top = tables->record_capacity;
	while (top && !record_usable(index, top - 1)) {
		if (tables->records[top - 1].flags)
			tables->records[top - 1].flags = 0;
		top--;
	}
	index->record_top = 0;
	for (uint32_t n = 0; n < top; n++) {
		uint32_t number = record_take_number(index);
		struct record *r = &index->records[number];
		struct record_entry *t = record_table(index, number);

		assert(number == n);
		if (!record_usable(index, n)) {
			if (t->flags)
				__atomic_store_n(&t->flags, 0, __ATOMIC_RELEASE);
			continue;
		}
		if (!record_make_block(index, r, t->pages))
			return why_set(why, ENOMEM, "no room for the %u pages of record %u", t->pages, n);

		uint32_t use = (int32_t)(t->last_use_s - index->now_s) > 0 ? index->now_s : t->last_use_s;

		r->state = RECORD_FILLING;
		r->pages = (uint16_t)t->pages;
		r->flags = (uint8_t)((t->flags & RECORD_ROOT ? RECORD_FLAG_ROOT : 0) |
				     (t->flags & RECORD_WHOLE ? RECORD_FLAG_WHOLE : 0) |
				     (t->flags & RECORD_PINNED ? RECORD_FLAG_HELD : 0));
		index->held_units += t->flags & RECORD_PINNED ? t->held_units : 0;
		index->held += !!(t->flags & RECORD_PINNED);
		for (uint32_t i = 0; i < (r->pages ? r->pages : 1u); i++)
			block_uses(index, r)[i] = use;
		index->zero_page_records += record_is_zero(r);
	}
	for (uint32_t n = top; n-- > 0;)
		if (index->records[n].state == RECORD_FREE)
			record_give_back_number(index, n);
	return 0;
}

/* ---- 2. entries ------------------------------------------------------------------------------------------------ */

static bool pool_entry(const struct index *index, uint32_t entry)
{
	return entry - index->hollow_first < index->hollow_count;
}

/* The words of the place that @e says it is in, or NULL. */
static uint32_t *entry_place(const struct index *index, const struct entry *e)
{
	uint32_t n;

	if (e->record >= index->record_top)
		return NULL;
	const struct record *r = &index->records[e->record];

	if (r->state == RECORD_FREE || (e->page == INDEX_PAGE_ROW ? !index->row_columns : e->page >= r->pages))
		return NULL;
	uint32_t any = place_any(index, r, e->page);

	if (any != WORD_NONE && !key_equal(&index->tables->entries[any & WORD_ENTRY].key, &e->key))
		return NULL;
	if (e->page == INDEX_PAGE_ROW && record_is_zero(r) &&
		!key_equal(&record_table(index, e->record)->endpoint, &e->key))
		return NULL;
	return place_words(index, r, e->page, &n);
}

static bool load_value(struct index *index, uint32_t entry)
{
	const struct entry *e = &index->tables->entries[entry];
	const struct layout *l = index->layout;

	if (!tables_entry_intact(index->tables, entry) || pool_entry(index, entry) || e->class_index >= l->classes ||
		e->share >= l->class[e->class_index].shares ||
		layout_is_row(l, e->class_index) != (e->page == INDEX_PAGE_ROW))
		return false;

	uint32_t *words = entry_place(index, e);

	if (!words)
		return false;
	uint32_t *word = &words[layout_column(l, e->class_index, e->share)];

	if (*word != WORD_NONE) { /* it was being moved: the lower number stays, whichever comes first */
		if (*word & WORD_HOLLOW || (*word & WORD_ENTRY) < entry)
			return false;
		tables_entry_set_state(index->tables, *word & WORD_ENTRY, ENTRY_FREE);
	}
	*word = entry | (group_committed(index->tables, e->group) ? 0 : WORD_PREPARED);
	return true;
}

static bool load_hollow(struct index *index, uint32_t entry)
{
	const struct entry *e = &index->tables->entries[entry];

	if (!tables_entry_intact(index->tables, entry) || !pool_entry(index, entry))
		return false;

	uint32_t *words = entry_place(index, e);

	if (!words || place_any(index, &index->records[e->record], e->page) != WORD_NONE)
		return false;
	words[0] = entry | WORD_HOLLOW;
	index->counters.hollow_pages++;
	return true;
}

/* Entries of grants, and places that were ever used: to look at the others would fill the holes of a sparse file. */
static void for_values(struct index *index, void (*act)(struct index *index, uint32_t entry))
{
	struct tables *tables = index->tables;

	for (uint32_t g = 0; g < tables->grant_capacity; g++) {
		const struct grant_entry *grant = &tables->grants[g];

		if (!grant->used || !tables_grant_intact(tables, g) || grant->first_entry > tables->entry_capacity ||
			grant->slots > tables->entry_capacity - grant->first_entry)
			continue;
		for (uint32_t n = grant->first_entry; n < grant->first_entry + grant->slots; n++)
			act(index, n);
	}
	for (uint32_t n = index->place_first; is_place(index, n) && n < tables->header->places_high; n++)
		act(index, n);
}

static void load_entry(struct index *index, uint32_t n)
{
	struct tables *tables = index->tables;
	const struct entry *e = &tables->entries[n];

	if (e->state == ENTRY_FREE || e->state == ENTRY_QUARANTINED ||
		(e->state == ENTRY_VALUE && load_value(index, n)))
		return;
	bool written = e->state == ENTRY_VALUE && tables_entry_intact(tables, n) && !group_committed(tables, e->group);

	tables_entry_set_state(tables, n, written ? ENTRY_QUARANTINED : ENTRY_FREE);
}

static void entries_load(struct index *index)
{
	struct tables *tables = index->tables;
	uint32_t pool_end = index->hollow_first + index->hollow_count;

	for_values(index, load_entry);
	index->hollow_top = index->hollow_first;
	for (uint32_t n = index->hollow_first; n < pool_end; n++) {
		if (tables->entries[n].state == ENTRY_FREE)
			continue;
		if (tables->entries[n].state == ENTRY_HOLLOW && load_hollow(index, n)) {
			for (; index->hollow_top < n; index->hollow_top++) {
				if (tables->entries[index->hollow_top].state == ENTRY_HOLLOW)
					continue;
				tables->entries[index->hollow_top].record = index->hollow_list;
				index->hollow_list = index->hollow_top;
			}
			index->hollow_top = n + 1;
			continue;
		}
		tables_entry_set_state(tables, n, ENTRY_FREE);
	}
}

/* ---- 3. what was not committed --------------------------------------------------------------------------------- */

/* Quarantines the prepared values of a place. True: a value is left. */
static bool place_settle(struct index *index, uint32_t record, uint32_t page, bool keep_name)
{
	struct record *r = &index->records[record];
	struct tables *tables = index->tables;
	uint32_t n, lost = INDEX_NONE;
	uint32_t *words = place_words(index, r, page, &n);
	bool left = false;

	for (uint32_t i = 0; i < n; i++) {
		if (!word_is_value(words[i]))
			continue;
		if (words[i] & WORD_PREPARED) {
			lost = words[i] & WORD_ENTRY;
			words[i] = WORD_NONE;
		} else {
			__atomic_store_n(&tables->entries[words[i]].group, 0, __ATOMIC_RELEASE);
			left = true;
		}
	}
	if (lost == INDEX_NONE)
		return left;
	if (!left && keep_name && place_any(index, r, page) == WORD_NONE) {
		uint32_t hollow = hollow_make(index, record, page, &tables->entries[lost].key);

		if (hollow != INDEX_NONE)
			words[0] = hollow | WORD_HOLLOW;
	}
	return left;
}

/* After the names are safe: entries that no place refers to any more, by a second look at the prepared ones. */
static void quarantine_entry(struct index *index, uint32_t n)
{
	const struct entry *e = &index->tables->entries[n];

	if (e->state == ENTRY_VALUE && e->group)
		tables_entry_set_state(index->tables, n, ENTRY_QUARANTINED);
}

static void records_settle(struct index *index)
{
	for (uint32_t n = 0; n < index->record_top; n++) {
		struct record *r = &index->records[n];
		struct record_entry *t = record_table(index, n);

		if (r->state == RECORD_FREE)
			continue;
		bool committed = group_committed(index->tables, t->group);

		for (uint32_t page = 0; page < r->pages; page++)
			index->counters.pages += place_settle(index, n, page, committed);
		if (index->row_columns) {
			place_settle(index, n, INDEX_PAGE_ROW, committed && record_is_zero(r));
			if (place_any(index, r, INDEX_PAGE_ROW) != WORD_NONE)
				r->flags |= RECORD_FLAG_ROW;
		}
		if (!committed && r->flags & RECORD_FLAG_WHOLE) {
			r->flags &= (uint8_t)~RECORD_FLAG_WHOLE;
			__atomic_store_n(&t->flags, t->flags & ~(uint32_t)RECORD_WHOLE, __ATOMIC_RELEASE);
		}
	}
	for_values(index, quarantine_entry);
	for (uint32_t n = 0; n < index->record_top; n++)
		if (index->records[n].state != RECORD_FREE)
			record_make_live(index, &index->records[n]);
}

/* ---- 4. rings -------------------------------------------------------------------------------------------------- */

/* While the tree is not there yet its fields serve: `next` leads to a ring's representative, `prev` from that to the
 * member seen last, `children` counts who names a member as next, `selected` marks representatives of broken rings. */

static uint32_t ring_of(struct index *index, uint32_t m)
{
	while (index->records[m].next != INDEX_NONE) {
		uint32_t up = index->records[m].next;

		if (index->records[up].next != INDEX_NONE)
			index->records[m].next = index->records[up].next;
		m = up;
	}
	return m;
}

static bool ring_member(const struct index *index, uint32_t n)
{
	return n < index->record_top && index->records[n].state == RECORD_LIVE &&
	       index->records[n].flags & RECORD_FLAG_WHOLE;
}

/* A record that the map does not know yet goes with all that it has. */
static void discard(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	hold_forget(index, record);
	__atomic_store_n(&record_table(index, record)->flags, 0, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i <= r->pages; i++) {
		uint32_t page = i < r->pages ? i : INDEX_PAGE_ROW;
		uint32_t n;
		const uint32_t *words = place_words(index, r, page, &n);

		if (page != INDEX_PAGE_ROW)
			index->counters.pages -= place_has_value(index, r, page);
		for (uint32_t w = 0; w < n; w++) {
			if (words[w] == WORD_NONE)
				continue;
			if (words[w] & WORD_HOLLOW)
				hollow_free(index, words[w] & WORD_ENTRY);
			else
				tables_entry_set_state(index->tables, words[w], ENTRY_FREE);
		}
	}
	arena_free(&index->arena, r->block, block_words(index, r->capacity));
	index->counters.records--;
	index->zero_page_records -= record_is_zero(r);
	record_give_back_number(index, record);
}

static void rings_load(struct index *index)
{
	for (uint32_t n = 0; n < index->record_top; n++) {
		uint32_t next = record_table(index, n)->whole_next;

		if (!ring_member(index, n) || !ring_member(index, next))
			continue;
		uint32_t a = ring_of(index, n), b = ring_of(index, next);

		if (a != b)
			index->records[a].next = b;
		index->records[next].children++;
	}
	/* Representatives learn whether their ring is broken (2) or only twisted by a join (1). */
	for (uint32_t n = 0; n < index->record_top; n++) {
		if (!ring_member(index, n))
			continue;
		struct record *of = &index->records[ring_of(index, n)];

		if (!ring_member(index, record_table(index, n)->whole_next))
			of->selected = 2;
		else if (index->records[n].children != 1 && of->selected == 0)
			of->selected = 1;
	}
	for (uint32_t n = 0; n < index->record_top; n++) {
		if (!ring_member(index, n))
			continue;
		uint32_t of = ring_of(index, n);

		if (index->records[of].selected != 1)
			continue;
		uint32_t before = index->records[of].prev;

		record_table(index, n)->whole_next = before == INDEX_NONE ? n : record_table(index, before)->whole_next;
		if (before != INDEX_NONE)
			record_table(index, before)->whole_next = n;
		index->records[of].prev = n;
	}
	for (uint32_t n = 0; n < index->record_top; n++) /* flags of all first: a half is never taken for a ring */
		if (ring_member(index, n) && index->records[ring_of(index, n)].selected == 2)
			__atomic_store_n(&record_table(index, n)->flags, 0, __ATOMIC_RELEASE);
	for (uint32_t n = 0; n < index->record_top; n++)
		if (ring_member(index, n) && !record_table(index, n)->flags)
			index->records[n].unsettled = 1; /* to be discarded, once ring_of is not asked any more */
	for (uint32_t n = 0; n < index->record_top; n++) {
		struct record *r = &index->records[n];

		if (!ring_member(index, n))
			continue;
		r->next = r->prev = INDEX_NONE;
		r->children = 0;
		r->selected = 0;
		if (r->unsettled) {
			r->unsettled = 0;
			discard(index, n);
		}
	}
}

/* ---- 5. the map and the tree ----------------------------------------------------------------------------------- */

static void discard_place(struct index *index, struct record *r, uint32_t page)
{
	uint32_t n;
	uint32_t *words = place_words(index, r, page, &n);

	if (page != INDEX_PAGE_ROW)
		index->counters.pages -= place_has_value(index, r, page);
	for (uint32_t i = 0; i < n; i++) {
		if (words[i] == WORD_NONE)
			continue;
		if (words[i] & WORD_HOLLOW)
			hollow_free(index, words[i] & WORD_ENTRY);
		else
			tables_entry_set_state(index->tables, words[i], ENTRY_FREE);
		words[i] = WORD_NONE;
	}
}

static int pages_map(struct index *index, uint32_t record, struct why *why)
{
	struct record *r = &index->records[record];

	for (uint32_t page = 0; page < r->pages; page++) {
		uint32_t word = place_any(index, r, page);

		if (word == WORD_NONE)
			continue;
		const struct key *key = &index->tables->entries[word & WORD_ENTRY].key;

		if (anchor_page(index, key) != INDEX_NONE)
			discard_place(index, r, page);
		else if (!keymap_insert(&index->map, keymap_hash(&index->map, key), word & WORD_ENTRY))
			return why_set(why, EINVAL,
				"the tables name more pages than the %u that the index was made for",
				index->map.max_count);
	}
	return 0;
}

/* @zero and @record have rows at the same key: they were being joined. */
static void finish_join(struct index *index, uint32_t zero, uint32_t record)
{
	struct record *z = &index->records[zero], *r = &index->records[record];
	uint32_t *from = block_row(index, z), *to = block_row(index, r);

	for (uint32_t i = 0; i < index->row_columns; i++) {
		if (!word_is_value(from[i]) || to[i] != WORD_NONE)
			continue;
		__atomic_store_n(&index->tables->entries[from[i]].record, record, __ATOMIC_RELEASE);
		to[i] = from[i];
		from[i] = WORD_NONE;
	}
	if (z->flags & RECORD_FLAG_HELD)
		index_hold(index, record, true);
	if (z->flags & RECORD_FLAG_WHOLE)
		whole_take_over(index, zero, record);
	discard(index, zero);
}

static int row_map(struct index *index, uint32_t record, struct why *why)
{
	struct record *r = &index->records[record];
	uint32_t word = place_any(index, r, INDEX_PAGE_ROW);

	if (word == WORD_NONE)
		return 0;
	const struct key *key = &index->tables->entries[word & WORD_ENTRY].key;
	uint32_t owner = row_owner(index, key);

	if (owner == INDEX_NONE) {
		if (!keymap_insert(&index->map, place_hash(index, key, INDEX_PAGE_ROW), word & WORD_ENTRY))
			return why_set(why, EINVAL,
				"the tables name more pages than the %u that the index was made for",
				index->map.max_count);
	} else if (record_is_zero(r) && !record_is_zero(&index->records[owner])) {
		finish_join(index, record, owner);
	} else {
		discard_place(index, r, INDEX_PAGE_ROW);
		r->flags &= (uint8_t)~RECORD_FLAG_ROW;
	}
	return 0;
}

static int names_load(struct index *index, struct why *why)
{
	int error = 0;

	for (uint32_t n = 0; n < index->record_top && !error; n++)
		if (index->records[n].state != RECORD_FREE)
			error = pages_map(index, n, why);
	for (unsigned zero = 0; zero < 2 && index->row_columns; zero++)
		for (uint32_t n = 0; n < index->record_top && !error; n++)
			if (index->records[n].state != RECORD_FREE && record_is_zero(&index->records[n]) == zero)
				error = row_map(index, n, why);
	return error;
}

static void tree_load(struct index *index)
{
	for (uint32_t n = 0; n < index->record_top; n++)
		if (index->records[n].state != RECORD_FREE)
			record_copy_endpoint(index, &index->records[n]);
	for (uint32_t n = 0; n < index->record_top; n++)
		if (index->records[n].state != RECORD_FREE)
			link_find(index, n);
	for (uint32_t n = 0; n < index->record_top; n++)
		record_review(index, n, NULL);
}

static int rebuild(struct index *index, struct why *why)
{
	index->tick = index->now_s + 1;
	groups_load(index->tables);
	int error = records_load(index, why);

	if (error)
		return error;
	entries_load(index);
	records_settle(index);
	rings_load(index);
	error = names_load(index, why);
	if (error)
		return error;
	tree_load(index);
	groups_lose(index->tables);
	return 0;
}

int index_rebuild(struct index *index, struct why *why)
{
	lock_assert_held(index->guard);
	assert(index->record_top == 0 && index->map.count == 0);
	index->rebuilding = true; /* nothing of it is news */
	int error = rebuild(index, why);

	index->rebuilding = false;
	return error;
}
