/* SPDX-License-Identifier: Apache-2.0
 *
 * Every invariant that can be seen from outside one call, walked in full. For tests: slow.
 */
#include "index/internal.h"

#include <stdlib.h>

#define MUST(condition, record) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "index: %s:%d: record %u: not so: %s\n", __FILE__, __LINE__, (record), \
				#condition); \
			abort(); \
		} \
	} while (0)

struct totals {
	uint64_t names, units;
	struct index_counters count;
	uint32_t in_pages, in_rows, in_lost, in_olds, zero, hidden;
	uint64_t held_units;
	uint32_t held;
};

/* Words, entries, anchors of one place. */
static void check_place(
	const struct index *index, uint32_t record, uint32_t page, struct totals *t, uint32_t *unsettled)
{
	const struct record *r = &index->records[record];
	const struct tables *tables = index->tables;
	uint32_t n, anchors = 0, words_used = 0;
	const uint32_t *words = place_words(index, r, page, &n);
	const struct key *key = NULL;
	bool settled = false;

	for (uint32_t i = 0; i < n; i++) {
		if (words[i] == WORD_NONE)
			continue;
		uint32_t entry = words[i] & WORD_ENTRY;

		MUST(entry < tables->entry_capacity, record);
		const struct entry *e = &tables->entries[entry];

		MUST(tables_entry_intact(tables, entry), record);
		MUST(e->record == record && e->page == page, record);
		MUST(!key || key_equal(key, &e->key), record);
		key = &e->key;
		words_used++;
		if (words[i] & WORD_HOLLOW) {
			MUST(i == 0 && e->state == ENTRY_HOLLOW, record);
			MUST(entry - index->hollow_first < index->hollow_count, record);
			MUST(page != INDEX_PAGE_ROW || record_is_zero(r), record);
			t->count.hollow_pages++;
		} else {
			MUST(e->state == ENTRY_VALUE, record);
			MUST(layout_column(index->layout, e->class_index, e->share) == i, record);
			MUST((e->group != 0) == !!(words[i] & WORD_PREPARED), record);
			MUST(!e->group || tables_group_state(tables, e->group - 1) != GROUP_FREE, record);
			*unsettled += !!(words[i] & WORD_PREPARED);
			settled |= !(words[i] & WORD_PREPARED);
		}
		anchors += keymap_place(&index->map, place_hash(index, &e->key, page), entry) != NULL;
	}
	if (!words_used)
		return;
	MUST(anchors == 1, record);
	MUST(!(words[0] != WORD_NONE && words[0] & WORD_HOLLOW) || words_used == 1, record);
	t->names++;
	t->count.pages += settled && page != INDEX_PAGE_ROW;
	if (record_hidden(index, r)) /* another may stand there now */
		return;
	if (page == INDEX_PAGE_ROW)
		MUST(row_owner(index, key) == record, record);
	else
		MUST(tables->entries[anchor_page(index, key)].record == record, record);
}

static void check_children(const struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];
	uint32_t children = 0, tail = 0, before = INDEX_NONE;

	for (uint32_t c = r->child; c != INDEX_NONE; c = index->records[c].next) {
		const struct record *child = &index->records[c];

		MUST(child->state != RECORD_FREE && child->parent == record && child->prev == before, c);
		if (record_is_zero(r)) {
			MUST(child->parent_page == INDEX_PAGE_ROW, c);
		} else {
			MUST(child->parent_page < r->pages && child->parent_page <= r->deepest, c);
			tail += child->parent_page + 1u == r->pages;
		}
		before = c;
		children++;
	}
	MUST(r->children == children, record);
	if (record_is_zero(r))
		tail = children;
	MUST(r->tail_children == tail, record);
}

/* Is it linked as well as it could be? */
static void check_link(const struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];
	const struct record_entry *t = record_table(index, record);

	if (r->flags & RECORD_FLAG_ORPHAN) {
		MUST(r->parent == INDEX_NONE && !(r->flags & RECORD_FLAG_ROOT), record);
		uint32_t entry = anchor_page(index, &t->parent_key);

		if (entry != INDEX_NONE && !record_is_zero(r)) {
			const struct entry *e = &index->tables->entries[entry];

			MUST(index_consumed(index, e->record, e->page) != t->start, record);
		}
		return;
	}
	if (r->parent == INDEX_NONE) {
		MUST(r->flags & RECORD_FLAG_ROOT, record);
		return;
	}
	uint64_t at = index_consumed(index, r->parent, r->parent_page);

	MUST(record_is_zero(r) ? at <= t->start : at == t->start, record);
	MUST(r->parent != record, record);
}

static void check_table(const struct index *index, uint32_t record)
{
	const struct record *r = &index->records[record];
	const struct record_entry *t = record_table(index, record);

	MUST(tables_record_intact(index->tables, record) && t->flags & RECORD_USED, record);
	MUST(t->pages == r->pages && t->reuse == r->generation, record);
	if (r->pages || record_is_zero(r) || r->state == RECORD_OPEN) /* else all of it went: it is named as before */
		MUST(t->consumed == t->start + (uint64_t)r->pages * index->layout->page_tokens, record);
	MUST((r->state == RECORD_LIVE) == (t->group == 0), record);
	MUST(!(t->flags & RECORD_ROOT) == !(r->flags & RECORD_FLAG_ROOT), record);
	MUST(!(t->flags & RECORD_WHOLE) == !(r->flags & RECORD_FLAG_WHOLE), record);
	MUST(!(t->flags & RECORD_PINNED) == !(r->flags & RECORD_FLAG_HELD), record);
	if (r->pages && r->state != RECORD_OPEN) {
		uint32_t word = place_any(index, r, r->pages - 1u);

		if (word != WORD_NONE)
			MUST(key_equal(&index->tables->entries[word & WORD_ENTRY].key, &t->endpoint), record);
	}
	if (r->state == RECORD_LIVE && r->flags & RECORD_FLAG_WHOLE)
		MUST(t->whole_next < index->record_top && index->records[t->whole_next].flags & RECORD_FLAG_WHOLE,
			record);
}

static void check_order(const struct index *index, uint32_t record, struct totals *t)
{
	const struct record *r = &index->records[record];
	bool zero = record_is_zero(r);
	bool leaf = zero || r->flags & RECORD_FLAG_WHOLE ? !r->children : !r->tail_children;
	bool idle = r->state == RECORD_LIVE && !r->pins && !r->unsettled && !(r->flags & RECORD_FLAG_HELD);

	if (r->policy_slot != INDEX_NONE) {
		MUST(r->state == RECORD_LIVE && leaf && !(r->flags & RECORD_FLAG_HELD), record);
		t->in_lost += !!(r->flags & RECORD_FLAG_ORPHAN);
		t->in_pages += !(r->flags & RECORD_FLAG_ORPHAN);
	} else {
		MUST(!(idle && leaf) || index->adopting, record);
	}
	if (r->row_slot != INDEX_NONE) {
		MUST(r->flags & RECORD_FLAG_ROW, record);
		t->in_rows++;
	} else if (index->row_columns && !(r->flags & RECORD_FLAG_WHOLE) && place_has_value(index, r, INDEX_PAGE_ROW)) {
		MUST(!idle || (zero && r->children) || index->adopting, record);
	}
	if (index->olds && index->old_slot[record] != INDEX_NONE) {
		MUST(r->state == RECORD_LIVE && !(r->flags & (RECORD_FLAG_HELD | RECORD_FLAG_WHOLE)), record);
		t->in_olds++;
	} else if (index->olds) {
		MUST(!(idle && old_candidate(index, r)) || index->adopting, record);
	}
	if (r->flags & RECORD_FLAG_SELECTED) {
		MUST(r->pins > 0 && r->state == RECORD_LIVE, record);
		t->count.victims_pending += r->selected;
	}
}

/* What still has to be right of a record that a reset hid; its places are checked as all are. */
static void check_hidden(const struct index *index, uint32_t record, struct totals *t)
{
	const struct record *r = &index->records[record];
	bool used = record_table(index, record)->flags & RECORD_USED;

	t->hidden++;
	if (r->flags & RECORD_FLAG_SELECTED)
		t->count.victims_pending += r->selected;
	MUST(used == (r->state != RECORD_GOING), record);
	MUST(record_table(index, record)->generation == r->era, record);
	if (r->state == RECORD_GOING) {
		MUST(!r->pins && !r->unsettled && !(r->flags & (RECORD_FLAG_ORPHAN | RECORD_FLAG_HELD)), record);
	} else if (!r->pins && !r->unsettled && r->state != RECORD_OPEN) { /* the walk has yet to come by */
		MUST(record >= index->retire_at && record < index->retire_end, record);
	}
}

static void check_record(const struct index *index, uint32_t record, struct totals *t)
{
	const struct record *r = &index->records[record];
	const uint32_t *uses = block_uses(index, r);
	uint32_t unsettled = 0;
	bool row = false;

	t->units += (block_words(index, r->capacity) + ARENA_UNIT_WORDS - 1) / ARENA_UNIT_WORDS;
	t->count.records += r->state == RECORD_LIVE;
	t->count.orphans += !!(r->flags & RECORD_FLAG_ORPHAN);
	t->zero += record_is_zero(r);
	MUST(r->pages <= r->capacity, record);
	for (uint32_t page = 0; page < r->pages; page++) {
		check_place(index, record, page, t, &unsettled);
		if (page && !record_hidden(index, r))
			MUST((int32_t)(uses[page - 1] - uses[page]) >= 0, record);
	}
	if (index->row_columns) {
		check_place(index, record, INDEX_PAGE_ROW, t, &unsettled);
		row = place_any(index, r, INDEX_PAGE_ROW) != WORD_NONE;
	}
	MUST(r->unsettled == unsettled, record);
	if (r->flags & RECORD_FLAG_HELD) {
		t->held_units += record_table(index, record)->held_units;
		t->held++;
	}
	if (record_hidden(index, r)) {
		check_hidden(index, record, t);
		return;
	}
	MUST(row == !!(r->flags & RECORD_FLAG_ROW), record);
	MUST(r->state != RECORD_GOING, record);
	MUST(record_table(index, record)->generation == r->era, record);
	if (r->state != RECORD_OPEN) {
		MUST(r->pages || row || r->pins || index->adopting, record);
		if (r->pages && !row && !r->tail_children && !index->adopting)
			MUST(place_has_value(index, r, r->pages - 1u), record);
		check_children(index, record);
	}
	check_link(index, record);
	check_table(index, record);
	check_order(index, record, t);
	/* twins that could have joined have */
	if (r->state == RECORD_LIVE && record_is_zero(r) && r->parent != INDEX_NONE && !r->pins && !r->unsettled &&
		r->parent_page != INDEX_PAGE_ROW) {
		const struct record *p = &index->records[r->parent];

		MUST(p->state != RECORD_LIVE || p->pages != r->parent_page + 1u ||
				record_table(index, r->parent)->consumed != record_table(index, record)->start,
			record);
	}
}

void index_check(struct index *index)
{
	struct totals t = {0};
	const struct index_counters *c = &index->counters;
	uint32_t unused = 0;

	lock_assert_held(index->guard);
	for (uint32_t n = 0; n < index->record_top; n++) {
		if (index->records[n].state == RECORD_FREE) {
			MUST(!(record_table(index, n)->flags & RECORD_USED), n);
			unused++;
		} else {
			check_record(index, n, &t);
		}
	}
	for (uint32_t n = index->record_free; n != INDEX_NONE; n = index->records[n].next)
		unused--;
	MUST(unused == 0, INDEX_NONE);
	for (uint32_t n = index->going; n != INDEX_NONE; n = index->records[n].next)
		MUST(index->records[n].state == RECORD_GOING, n);
	MUST(t.hidden == index->hidden, INDEX_NONE);
	MUST(t.held_units == index->held_units && t.held == index->held, INDEX_NONE);
	MUST(index->era == (uint32_t)index->tables->header->generation, INDEX_NONE);
	MUST(t.names == index->map.count, INDEX_NONE);
	MUST(t.units == index->arena.used, INDEX_NONE);
	MUST(t.zero == index->zero_page_records, INDEX_NONE);
	MUST(t.in_pages == policy_lru.count(index->pages), INDEX_NONE);
	MUST(t.in_rows == policy_lru.count(index->rows), INDEX_NONE);
	MUST(t.in_lost == policy_lru.count(index->lost), INDEX_NONE);
	MUST(!index->olds || t.in_olds == policy_lru.count(index->olds), INDEX_NONE);
	MUST(t.count.records == c->records, INDEX_NONE);
	MUST(t.count.pages == c->pages, INDEX_NONE);
	MUST(t.count.hollow_pages == c->hollow_pages, INDEX_NONE);
	MUST(t.count.orphans == c->orphans, INDEX_NONE);
	MUST(t.count.victims_pending == c->victims_pending, INDEX_NONE);
	MUST(c->victims_selected == c->victims_freed + c->victims_restored + c->victims_obsolete + c->victims_pending,
		INDEX_NONE);
}
