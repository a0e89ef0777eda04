/* SPDX-License-Identifier: Apache-2.0
 *
 * Who hangs off whom.
 *
 * A record hangs off the page that its parent key names, if that page ends exactly where the record starts; a zero-page
 * record hangs off the page with its own endpoint key if there is one, else off its parent key's, which must end before
 * it. Positions so rise from parent to child, and no keys that a client may choose can tie a knot: a record whose
 * parent key names a place at another position waits with the orphans, as for an unknown key.
 */
#include "index/internal.h"

static bool tail_of(const struct record *parent, uint32_t page)
{
	return page == INDEX_PAGE_ROW || page + 1u == parent->pages;
}

/* The place of @key that a child may hang off: a page, a zero-page record, or the endpoint of a record whose last page
 * has lost its name while the row kept it. */
static bool place_of_key(const struct index *index, const struct key *key, uint32_t *ret_record, uint32_t *ret_page)
{
	uint32_t entry = anchor_page(index, key);

	if (entry != INDEX_NONE) {
		*ret_record = index->tables->entries[entry].record;
		*ret_page = index->tables->entries[entry].page;
		return true;
	}
	uint32_t owner = row_owner(index, key);

	if (owner == INDEX_NONE || index->records[owner].state == RECORD_OPEN)
		return false;
	*ret_record = owner;
	*ret_page = record_is_zero(&index->records[owner]) ? INDEX_PAGE_ROW : index->records[owner].pages - 1u;
	return true;
}

static bool link_target(const struct index *index, uint32_t record, uint32_t *ret_record, uint32_t *ret_page)
{
	const struct record *r = &index->records[record];
	const struct record_entry *t = record_table(index, record);
	uint32_t parent, page;

	if (record_is_zero(r)) {
		uint32_t entry = anchor_page(index, &t->endpoint);

		if (entry != INDEX_NONE) {
			const struct entry *e = &index->tables->entries[entry];

			if (e->record != record && place_consumed(index, e->record, e->page) == t->start) {
				*ret_record = e->record;
				*ret_page = e->page;
				return true;
			}
		}
	}
	if (r->flags & RECORD_FLAG_ROOT || !place_of_key(index, &t->parent_key, &parent, &page) || parent == record)
		return false;

	uint64_t consumed = place_consumed(index, parent, page);

	if (record_is_zero(r) ? consumed >= t->start : consumed != t->start)
		return false;
	*ret_record = parent;
	*ret_page = page;
	return true;
}

static inline void attach(struct index *index, uint32_t record, uint32_t parent, uint32_t page)
{
	struct record *r = &index->records[record];
	struct record *p = &index->records[parent];

	r->parent = parent;
	r->parent_page = (uint16_t)page;
	r->prev = INDEX_NONE;
	r->next = p->child;
	if (p->child != INDEX_NONE)
		index->records[p->child].prev = record;
	p->child = record;
	p->children++;
	p->tail_children += tail_of(p, page);
	if (page != INDEX_PAGE_ROW && page > p->deepest)
		p->deepest = (uint16_t)page;
	candidate_recheck(index, parent);
}

/* A list has orphans of one generation. */
static bool fits_orphan(const void *context, uint32_t ref)
{
	const struct index *index = context;

	return !index->hidden || !record_hidden(index, &index->records[ref]);
}

static uint32_t orphan_head(const struct index *index, const struct key *key)
{
	if (!index->orphans.count)
		return INDEX_NONE;
	return keymap_find(&index->orphans, keymap_hash(&index->orphans, key), key, fits_orphan, index);
}

static void orphan_insert(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];
	const struct key *key = &record_table(index, record)->parent_key;
	uint32_t head = orphan_head(index, key);

	r->flags |= RECORD_FLAG_ORPHAN;
	r->parent = INDEX_NONE;
	r->next = r->prev = INDEX_NONE;
	index->counters.orphans++;
	if (head == INDEX_NONE) {
		bool there = keymap_insert(&index->orphans, keymap_hash(&index->orphans, key), record);

		assert(there);
		return;
	}
	/* behind the head, which the map knows */
	struct record *h = &index->records[head];

	r->prev = head;
	r->next = h->next;
	if (h->next != INDEX_NONE)
		index->records[h->next].prev = record;
	h->next = record;
}

void link_orphan_remove(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];

	r->flags &= (uint8_t)~RECORD_FLAG_ORPHAN;
	index->counters.orphans--;
	if (r->next != INDEX_NONE)
		index->records[r->next].prev = r->prev;
	if (r->prev != INDEX_NONE) {
		index->records[r->prev].next = r->next;
	} else {
		uint64_t hash = keymap_hash(&index->orphans, &record_table(index, record)->parent_key);

		if (r->next == INDEX_NONE)
			keymap_remove(&index->orphans, hash, record);
		else
			*keymap_place(&index->orphans, hash, record) = r->next;
	}
	r->next = r->prev = INDEX_NONE;
}

void link_find(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];
	uint32_t parent, page;
	bool ordered = r->policy_slot != INDEX_NONE;

	assert(r->parent == INDEX_NONE && !(r->flags & RECORD_FLAG_ORPHAN));
	assert(!record_hidden(index, r));
	if (link_target(index, record, &parent, &page)) {
		attach(index, record, parent, page);
	} else if (!(r->flags & RECORD_FLAG_ROOT)) {
		if (ordered)
			candidate_withdraw(index, record);
		orphan_insert(index, record);
		if (ordered)
			candidate_consider(index, record);
	}
}

/* Does @page of @parent stand at the parent key of @record, and end where it starts? A key stands at one page only. */
static bool stands_before(const struct index *index, uint32_t record, uint32_t parent, uint32_t page)
{
	const struct record_entry *t = record_table(index, record);

	if (parent >= index->record_top || page >= index->records[parent].pages)
		return false;

	const struct record *p = &index->records[parent];
	uint32_t word = p->state == RECORD_FREE || record_hidden(index, p) ? WORD_NONE : place_any(index, p, page);

	return word != WORD_NONE && key_equal(&index->tables->entries[word & WORD_ENTRY].key, &t->parent_key) &&
	       place_consumed(index, parent, page) == t->start;
}

void link_new(struct index *index, uint32_t record, uint32_t parent, uint32_t page)
{
	const struct record *r = &index->records[record];

	if (!record_is_zero(r) && !(r->flags & RECORD_FLAG_ROOT) && stands_before(index, record, parent, page))
		attach(index, record, parent, page);
	else
		link_find(index, record);
}

uint32_t link_cut(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];
	uint32_t parent = r->parent;

	assert(!record_hidden(index, r));
	if (r->flags & RECORD_FLAG_ORPHAN) {
		bool ordered = r->policy_slot != INDEX_NONE;

		if (ordered)
			candidate_withdraw(index, record);
		link_orphan_remove(index, record);
		if (ordered)
			candidate_consider(index, record);
		return INDEX_NONE;
	}
	if (parent == INDEX_NONE)
		return INDEX_NONE;

	struct record *p = &index->records[parent];

	if (r->prev != INDEX_NONE)
		index->records[r->prev].next = r->next;
	else
		p->child = r->next;
	if (r->next != INDEX_NONE)
		index->records[r->next].prev = r->prev;
	p->children--;
	old_child_gone(index, parent, r->parent_page);
	/* While a record is open its tail moves on and is counted when it closes. */
	if (tail_of(p, r->parent_page) && p->tail_children)
		p->tail_children--;
	r->parent = r->next = r->prev = INDEX_NONE;
	return parent;
}

void link_adopt_any(struct index *index, uint32_t record, uint32_t page, const struct key *key)
{
	uint32_t parent, at;

	for (uint32_t o = orphan_head(index, key), next; o != INDEX_NONE; o = next) {
		next = index->records[o].next;
		if (!link_target(index, o, &parent, &at))
			continue;
		link_cut(index, o);
		attach(index, o, parent, at);
		index->mends++;
	}
	if (page == INDEX_PAGE_ROW || !index->zero_page_records)
		return;

	uint32_t zero = row_owner(index, key);

	if (zero == INDEX_NONE || zero == record || !record_is_zero(&index->records[zero]))
		return;
	if (!link_target(index, zero, &parent, &at) ||
		(index->records[zero].parent == parent && index->records[zero].parent_page == at))
		return;
	uint32_t before = link_cut(index, zero);

	attach(index, zero, parent, at);
	if (before != INDEX_NONE)
		candidate_consider(index, before);
}

void link_disown(struct index *index, uint32_t record, uint32_t page)
{
	if (record_hidden(index, &index->records[record]))
		return;
	for (uint32_t c = index->records[record].child, next; c != INDEX_NONE; c = next) {
		next = index->records[c].next;
		if (page != INDEX_NONE && index->records[c].parent_page != page)
			continue;
		link_cut(index, c);
		link_find(index, c);
		index->breaks++;
	}
}

void link_move_children(struct index *index, uint32_t from, uint32_t to, uint32_t to_page)
{
	uint32_t c;

	while ((c = index->records[from].child) != INDEX_NONE) {
		link_cut(index, c);
		attach(index, c, to, to_page);
	}
}

void link_recount(struct index *index, struct record *r)
{
	if (record_hidden(index, r))
		return;
	if (record_is_zero(r) || !r->children) {
		r->tail_children = r->children;
		r->deepest = 0;
		return;
	}
	r->tail_children = 0;
	if (!r->pages || r->deepest + 1u < r->pages)
		return;

	uint32_t deepest = 0;

	for (uint32_t c = r->child; c != INDEX_NONE; c = index->records[c].next) {
		uint32_t page = index->records[c].parent_page;

		r->tail_children += page + 1u == r->pages;
		if (page > deepest)
			deepest = page;
	}
	r->deepest = (uint16_t)deepest;
}
