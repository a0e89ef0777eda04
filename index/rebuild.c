/* SPDX-License-Identifier: Apache-2.0
 *
 * The index from its tables alone, after a process that may have been killed between any two stores.
 *
 *   1. groups and records that are intact; records get blocks as long as they say they are
 *   2. values and hollow entries go to their places, and committed ones are settled; what is torn, stale or contradicts
 *      its record becomes free, and so does the higher number of a value that was being moved
 *   3. what was not committed leaves the places: its entries are quarantined, for their clients may still be writing;
 *      records are LIVE
 *   4. broken WHOLE rings go
 *   5. the map, where twins that were being joined meet; then links, then reviews as in life
 *   6. groups that were still prepared are LOST
 *
 * Each step leaves tables that another rebuild reads the same way. What it costs is memory that is waited for, so a step
 * reads first what it will need some entries or records later.
 */
#include "index/internal.h"

#include <errno.h>
#include <stdatomic.h>

/* ---- 1. groups and records ------------------------------------------------------------------------------------- */

static void groups_load(struct index *index)
{
	struct tables *tables = index->tables;

	for (uint32_t g = 0; g < tables->group_capacity; g++) {
		uint32_t state = tables_group_state(tables, g);

		if (state == GROUP_FREE)
			continue;
		if (tables_group_intact(tables, g) && state <= GROUP_LOST)
			continue;
		atomic_store_explicit(&tables->groups[g].state, GROUP_FREE, memory_order_release);
		index->rebuilt.torn_groups++;
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

/* The entry of a record that is none any more, or not yet. */
static void record_reject(struct index *index, uint32_t number)
{
	struct record_entry *t = record_table(index, number);

	if (!t->flags)
		return;
	index->rebuilt.torn_records += t->generation == index->era;
	__atomic_store_n(&t->flags, 0, __ATOMIC_RELEASE);
}

/* How the header's clock has ticks for seconds. */
struct ticks {
	uint32_t tick, second; /* now; the predecessor's last */
	uint64_t num, den;     /* ticks for a second: at least one, so that what was used in another second is told apart */
};

static struct ticks ticks_of(const struct index *index)
{
	const struct tables_header *h = index->tables->header;
	uint32_t tick = (uint32_t)(h->clock >> 32), second = (uint32_t)h->clock;
	uint64_t span = second > h->created_s ? second - h->created_s : 0;

	if (!h->clock) /* nothing was ever used */
		return (struct ticks){index->now_s, index->now_s, 1, 1};
	return (struct ticks){tick, second, tick > span && span ? tick : 1, tick > span && span ? span : 1};
}

static uint32_t tick_of(const struct ticks *ticks, uint32_t second)
{
	uint32_t age = (int32_t)(ticks->second - second) > 0 ? ticks->second - second : 0;
	uint64_t back = age * ticks->num / ticks->den; /* 32 bits by 32 bits */

	return ticks->tick - (uint32_t)(back < INDEX_TICK_SPAN ? back : INDEX_TICK_SPAN);
}

static int records_load(struct index *index, struct why *why)
{
	const struct ticks ticks = ticks_of(index);
	struct tables *tables = index->tables;
	uint32_t top = tables->header->records_high;

	if (top > tables->record_capacity)
		top = tables->record_capacity;
	for (; top && !record_usable(index, top - 1); top--)
		record_reject(index, top - 1);
	index->tick = ticks.tick + 1;
	index->record_top = 0;
	for (uint32_t n = 0; n < top; n++) {
		uint32_t number = record_take_number(index);
		struct record *r = &index->records[number];
		struct record_entry *t = record_table(index, number);

		assert(number == n);
		if (!record_usable(index, n)) {
			record_reject(index, n);
			continue;
		}
		if (!record_make_block(index, r, t->pages))
			return why_set(why, ENOMEM, "no room for the %u pages of record %u", t->pages, n);

		uint32_t use = tick_of(&ticks, t->last_use_s);

		r->state = RECORD_FILLING;
		r->pages = (uint16_t)t->pages;
		r->flags = (uint8_t)((t->flags & RECORD_ROOT ? RECORD_FLAG_ROOT : 0) |
				     (t->flags & RECORD_WHOLE ? RECORD_FLAG_WHOLE : 0) |
				     (t->flags & RECORD_PINNED ? RECORD_FLAG_HELD : 0));
		index->held_units += t->flags & RECORD_PINNED ? t->held_units : 0;
		index->held += !!(t->flags & RECORD_PINNED);
		for (uint32_t i = 0; i < (r->pages ? r->pages : 1u); i++)
			block_uses(index, r)[i] = use;
		zero_page_record_comes(index, r);
	}
	for (uint32_t n = top; n-- > 0;)
		if (index->records[n].state == RECORD_FREE)
			record_give_back_number(index, n);
	return 0;
}

/* ---- 2. entries ------------------------------------------------------------------------------------------------ */

#define SEEN_ENTRIES 65536u
#define LOAD_AHEAD 16u /* entries between two stages of fetching what load_value reads */

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

/* Two stages ahead of @entry: the record that an entry is of, then the words of its place. Not beyond @end, where the file has
 * holes. */
static ALWAYS_INLINE void prefetch_place(const struct index *index, uint32_t entry, uint32_t end)
{
	const struct entry *e = &index->tables->entries[entry];

	if (end - entry <= 2 * LOAD_AHEAD)
		return;
	if (e[2 * LOAD_AHEAD].record < index->record_top)
		__builtin_prefetch(&index->records[e[2 * LOAD_AHEAD].record]);
	e += LOAD_AHEAD;
	if (e->record >= index->record_top)
		return;

	const struct record *r = &index->records[e->record];

	if (r->state != RECORD_FREE && e->page < r->pages)
		__builtin_prefetch(block_values(index, r, e->page), 1);
}

/* What is committed is settled at once: to those who find it again it says the same. */
static bool load_value(struct index *index, uint32_t entry)
{
	struct entry *e = &index->tables->entries[entry];
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
	*word = entry;
	if (!group_committed(index->tables, e->group)) {
		*word |= WORD_PREPARED;
		return true;
	}
	if (e->group)
		__atomic_store_n(&e->group, 0, __ATOMIC_RELEASE);
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
static void for_values(struct index *index, void (*act)(struct index *index, uint32_t entry, uint32_t end))
{
	struct tables *tables = index->tables;

	for (uint32_t g = 0; g < tables->grant_capacity; g++) {
		const struct grant_entry *grant = &tables->grants[g];

		if (!grant->used || !tables_grant_intact(tables, g) || grant->first_entry > tables->entry_capacity ||
			grant->slots > tables->entry_capacity - grant->first_entry)
			continue;
		for (uint32_t n = grant->first_entry, end = n + grant->slots; n < end; n++)
			act(index, n, end);
	}
	uint32_t places_end = tables->header->places_high;

	if (places_end > index->place_first + index->place_count)
		places_end = index->place_first + index->place_count;
	for (uint32_t n = index->place_first; n < places_end; n++)
		act(index, n, places_end);
}

static void load_entry(struct index *index, uint32_t n, uint32_t end)
{
	struct tables *tables = index->tables;
	const struct entry *e = &tables->entries[n];

	prefetch_place(index, n, end);
	if (++index->rebuilt.entries % SEEN_ENTRIES == 0 && index->seen)
		index->seen(index->seen_context, index->rebuilt.entries);
	if (e->state == ENTRY_FREE || e->state == ENTRY_QUARANTINED ||
		(e->state == ENTRY_VALUE && load_value(index, n)))
		return;
	bool written = e->state == ENTRY_VALUE && tables_entry_intact(tables, n) && !group_committed(tables, e->group);

	index->rebuilt.torn_entries += !written;
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

/* The prepared values of a place are quarantined, once its name is safe. True: a value is left. */
static bool place_settle(struct index *index, uint32_t record, uint32_t page, bool keep_name)
{
	struct tables *tables = index->tables;
	uint32_t n, lost = INDEX_NONE, hollow = INDEX_NONE;
	uint32_t *words = place_words(index, &index->records[record], page, &n);
	bool left = false;

	for (uint32_t i = 0; i < n; i++) {
		if (!word_is_value(words[i]))
			continue;
		if (words[i] & WORD_PREPARED)
			lost = words[i] & WORD_ENTRY;
		else
			left = true;
	}
	if (lost == INDEX_NONE)
		return left;
	if (!left && keep_name)
		hollow = hollow_make(index, record, page, &tables->entries[lost].key);
	for (uint32_t i = 0; i < n; i++) {
		if (!word_is_value(words[i]) || !(words[i] & WORD_PREPARED))
			continue;
		tables_entry_set_state(tables, words[i] & WORD_ENTRY, ENTRY_QUARANTINED);
		words[i] = WORD_NONE;
	}
	if (hollow != INDEX_NONE)
		words[0] = hollow | WORD_HOLLOW;
	return left;
}

/* Has the record a row of another group's, which is committed? */
static bool row_stands(const struct index *index, const struct record *r)
{
	const uint32_t *words = block_row(index, r);

	for (uint32_t i = 0; i < index->row_columns; i++)
		if (word_is_value(words[i]) && !(words[i] & WORD_PREPARED))
			return true;
	return false;
}

static void records_settle(struct index *index)
{
	for (uint32_t n = 0; n < index->record_top; n++) {
		struct record *r = &index->records[n];
		struct record_entry *t = record_table(index, n);

		if (r->state == RECORD_FREE)
			continue;
		bool committed = group_committed(index->tables, t->group);
		bool named = committed || row_stands(index, r); /* as after an abort: the row stays where it is */

		for (uint32_t page = 0; page < r->pages; page++)
			index->counters.pages += place_settle(index, n, page, named);
		if (index->row_columns) {
			place_settle(index, n, INDEX_PAGE_ROW, committed && record_is_zero(r));
			if (place_any(index, r, INDEX_PAGE_ROW) != WORD_NONE)
				r->flags |= RECORD_FLAG_ROW;
			if (r->pages && place_any(index, r, r->pages - 1u) == WORD_NONE)
				row_apart_note(index, r, r->pages - 1u);
		}
		if (!committed && r->flags & RECORD_FLAG_WHOLE) {
			r->flags &= (uint8_t)~RECORD_FLAG_WHOLE;
			__atomic_store_n(&t->flags, t->flags & ~(uint32_t)RECORD_WHOLE, __ATOMIC_RELEASE);
		}
		record_make_live(index, r);
	}
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
	zero_page_record_goes(index, r);
	record_give_back_number(index, record);
}

static bool has_rings(const struct index *index)
{
	for (uint32_t n = 0; n < index->record_top; n++)
		if (ring_member(index, n))
			return true;
	return false;
}

static void rings_load(struct index *index)
{
	if (!has_rings(index))
		return;
	for (uint32_t n = 0; n < index->record_top; n++) {
		uint32_t next = ring_member(index, n) ? record_table(index, n)->whole_next : INDEX_NONE;

		if (next == INDEX_NONE || !ring_member(index, next))
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

/* Places whose names go to the map together: what each reads comes while the others' is waited for. */
struct names {
	struct name {
		uint32_t record, page, entry;
		uint64_t hash;
	} name[INDEX_STEP_KEYS];
	uint32_t n;
};

static int name_insert(struct index *index, const struct name *name, struct why *why)
{
	if (keymap_insert(&index->map, name->hash, name->entry))
		return 0;
	return why_set(why, EINVAL, "the tables name more pages than the %u that the index was made for", index->map.max_count);
}

static int page_map(struct index *index, const struct name *name, struct why *why)
{
	const struct key *key = &index->tables->entries[name->entry].key;

	if (keymap_find(&index->map, name->hash, key, fits_page, index) == INDEX_NONE)
		return name_insert(index, name, why);
	discard_place(index, &index->records[name->record], name->page);
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
	twin_take_reason(index, zero, record);
	if (z->flags & RECORD_FLAG_HELD)
		index_hold(index, record, true);
	if (z->flags & RECORD_FLAG_WHOLE)
		whole_take_over(index, zero, record);
	discard(index, zero);
}

static int row_map(struct index *index, const struct name *name, struct why *why)
{
	struct record *r = &index->records[name->record];
	uint32_t owner = row_owner(index, &index->tables->entries[name->entry].key);

	if (owner == INDEX_NONE)
		return name_insert(index, name, why);
	if (record_is_zero(r) && !record_is_zero(&index->records[owner])) {
		finish_join(index, name->record, owner);
	} else {
		discard_place(index, r, INDEX_PAGE_ROW);
		r->flags &= (uint8_t)~RECORD_FLAG_ROW;
	}
	return 0;
}

static int names_map(struct index *index, struct names *names, struct why *why)
{
	int error = 0;

	for (uint32_t i = 0; i < names->n; i++) {
		struct name *name = &names->name[i];

		name->hash = place_hash(index, &index->tables->entries[name->entry].key, name->page);
		prefetch_bucket(&index->map, name->hash);
	}
	for (uint32_t i = 0; i < names->n && !error; i++) {
		const struct name *name = &names->name[i];

		error = name->page == INDEX_PAGE_ROW ? row_map(index, name, why) : page_map(index, name, why);
	}
	names->n = 0;
	return error;
}

static int names_add(struct index *index, struct names *names, uint32_t record, uint32_t page, struct why *why)
{
	uint32_t word = place_any(index, &index->records[record], page);

	if (word == WORD_NONE)
		return 0;
	__builtin_prefetch(&index->tables->entries[word & WORD_ENTRY]);
	names->name[names->n++] = (struct name){.record = record, .page = page, .entry = word & WORD_ENTRY};
	return names->n == INDEX_STEP_KEYS ? names_map(index, names, why) : 0;
}

static int pages_load(struct index *index, struct why *why)
{
	struct names names = {.n = 0};
	int error = 0;

	for (uint32_t n = 0; n < index->record_top; n++) {
		uint32_t pages = index->records[n].state != RECORD_FREE ? index->records[n].pages : 0;

		for (uint32_t page = 0; page < pages && !error; page++)
			error = names_add(index, &names, n, page, why);
	}
	return error ? error : names_map(index, &names, why);
}

static int rows_load(struct index *index, bool zero, struct why *why)
{
	struct names names = {.n = 0};
	int error = 0;

	for (uint32_t n = 0; n < index->record_top && !error; n++)
		if (index->records[n].state != RECORD_FREE && record_is_zero(&index->records[n]) == zero)
			error = names_add(index, &names, n, INDEX_PAGE_ROW, why);
	return error ? error : names_map(index, &names, why);
}

static int names_load(struct index *index, struct why *why)
{
	int error = pages_load(index, why);

	for (unsigned zero = 0; zero < 2 && index->row_columns && !error; zero++)
		error = rows_load(index, zero, why);
	return error;
}

/* What is read to link records [first, end): the entries of their last pages, and their parents'. */
static ALWAYS_INLINE void prefetch_links(const struct index *index, uint32_t first, uint32_t end)
{
	uint64_t hash[INDEX_STEP_KEYS];
	uint32_t entry[INDEX_STEP_KEYS];

	for (uint32_t i = 0; i < end - first; i++) {
		const struct record *r = &index->records[first + i];
		uint32_t last = r->state != RECORD_FREE && r->pages ? place_any(index, r, r->pages - 1u) : WORD_NONE;

		hash[i] = keymap_hash(&index->map, &record_table(index, first + i)->parent_key);
		prefetch_bucket(&index->map, hash[i]);
		if (last != WORD_NONE)
			__builtin_prefetch(&index->tables->entries[last & WORD_ENTRY]);
	}
	for (uint32_t i = 0; i < end - first; i++) {
		entry[i] = bucket_likely(&index->map, hash[i]);
		if (entry[i] != INDEX_NONE)
			__builtin_prefetch(&index->tables->entries[entry[i]]);
	}
	for (uint32_t i = 0; i < end - first; i++)
		if (entry[i] != INDEX_NONE)
			prefetch_record(index, index->tables->entries[entry[i]].record);
}

static void links_load(struct index *index)
{
	for (uint32_t n = 0; n < index->record_top; n++) {
		uint32_t left = index->record_top - n;

		if (n % INDEX_STEP_KEYS == 0)
			prefetch_links(index, n, n + (left < INDEX_STEP_KEYS ? left : INDEX_STEP_KEYS));
		if (index->records[n].state == RECORD_FREE)
			continue;
		record_copy_endpoint(index, &index->records[n]);
		link_find(index, n);
	}
}

static void tree_load(struct index *index)
{
	links_load(index);
	for (uint32_t n = 0; n < index->record_top; n++)
		record_review(index, n, NULL);
}

static int rebuild(struct index *index, struct why *why)
{
	groups_load(index);
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

void index_watch_rebuild(struct index *index, void (*seen)(void *context, uint64_t entries), void *context)
{
	index->seen = seen;
	index->seen_context = context;
}

void index_rebuilt(const struct index *index, struct index_rebuilt *ret)
{
	lock_assert_held(index->guard);
	*ret = index->rebuilt;
}
