/* SPDX-License-Identifier: Apache-2.0
 *
 * The index against a plain model, over random operations.
 *
 * The model is a list of values by entry number, over a fixed random tree of keys. It does what a store would do with
 * the index: plans that add values, commit in two halves, abort; readers that pin and touch; evictions, whose choice it
 * does not predict but judges. Values move between slots and places all the time. Every few steps all keys are compared, all invariants are walked, and an index rebuilt
 * from a copy of the tables must describe itself like the live one.
 *
 *	test_index_model [seed [steps]]
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "tests/unit/index_world.h"

#define NODES 220u
#define VALUES 900u
#define RECORDS 300u
#define GROUPS 24u
#define PLAN_VALUES 256u
#define READERS 8u

struct node {
	struct key key;
	uint32_t parent; /* INDEX_NONE = root */
	uint64_t consumed;
	bool partial; /* inside a page: rows only */
};

struct value {
	bool there, committed, hidden; /* hidden: a reset came since */
	uint32_t node, column;
	bool row;
	uint32_t group;
};

struct plan {
	uint32_t group;           /* 0 = unused */
	uint32_t chain[12], left; /* keys to come, last first */
	uint32_t open, end, classes;
	bool whole, row, filled, committed, stale;
	uint32_t entries[PLAN_VALUES], n, settled;
	uint32_t records[PLAN_VALUES], records_n, published;
	uint32_t pins[PLAN_VALUES], pins_n;
};

struct reader {
	uint32_t pins[64], n;
};

struct model {
	struct world w;
	uint64_t seed;
	uint32_t n_values, page_room, busy; /* n_values: slots and places */
	struct node nodes[NODES];
	struct value values[VALUES];
	struct plan plans[GROUPS];
	struct reader readers[READERS];
	uint32_t quarantined[VALUES], quarantined_n;
	struct index_sink sink;
	uint32_t last_freed[VALUES], last_freed_n;
	uint64_t evicted, rows_evicted, removed, emptied, commits, aborts, rebuilds, wholes, hollows, held, resets, retired, moved, by_key[3], olds, halves;
};

static uint32_t rnd(struct model *m, uint32_t n)
{
	return roll_to(&m->seed, n);
}

static void freed(void *context, uint32_t entry)
{
	struct model *m = context;

	assert_true(m->values[entry].there);
	m->values[entry].there = false;
	m->last_freed[m->last_freed_n++] = entry;
	world_freed(&m->w, entry);
}

static void grow_tree(struct model *m)
{
	for (uint32_t i = 0; i < NODES; i++) {
		struct node *n = &m->nodes[i];

		n->key = key_of(m->seed + i);
		n->parent = i < 3 ? INDEX_NONE : rnd(m, 3) ? i - 1 : rnd(m, i);
		while (n->parent != INDEX_NONE && m->nodes[n->parent].partial && rnd(m, 4))
			n->parent = rnd(m, i);
		n->partial = i >= 3 && m->w.layout->row_columns && rnd(m, 12) == 0;
		n->consumed = n->parent == INDEX_NONE ? 0 : m->nodes[n->parent].consumed;
		n->consumed += n->partial ? 5 : 16;
	}
}

/* ---- what the model expects ------------------------------------------------------------------------------------ */

static const struct value *find_value(const struct model *m, uint32_t node, bool row, uint32_t column)
{
	for (uint32_t e = 0; e < m->n_values; e++) {
		const struct value *v = &m->values[e];

		if (v->there && !v->hidden && v->node == node && v->row == row && v->column == column)
			return v;
	}
	return NULL;
}

static bool node_has(const struct model *m, uint32_t node, bool row, bool committed)
{
	for (uint32_t e = 0; e < m->n_values; e++) {
		const struct value *v = &m->values[e];

		if (v->there && !v->hidden && v->node == node && v->row == row && (!committed || v->committed))
			return true;
	}
	return false;
}

static bool node_complete(const struct model *m, uint32_t node, uint32_t mask, bool row)
{
	const struct layout *l = m->w.layout;
	bool any = !row && node_has(m, node, false, true);

	for (uint32_t c = 0; c < l->classes; c++) {
		if (!(mask >> c & 1) || layout_is_row(l, c) != row ||
			(!row && !layout_has_value(l, c, m->nodes[node].consumed)))
			continue;
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			const struct value *v = find_value(m, node, row, layout_column(l, c, s));

			if (!v || !v->committed)
				return false;
			any = true;
		}
	}
	return any;
}

/* Bit c: page class c is complete at @node, or has no value there. */
static uint32_t node_classes(const struct model *m, uint32_t node)
{
	const struct layout *l = m->w.layout;
	uint32_t classes = 0;

	for (uint32_t c = 0; c < l->classes; c++)
		if (!layout_is_row(l, c) && (node_complete(m, node, 1u << c, false) || !layout_has_value(l, c, m->nodes[node].consumed)))
			classes |= 1u << c;
	return classes;
}

static void compare_hit(struct model *m, uint32_t node, uint32_t mask, bool rows, const struct index_hit *hit)
{
	uint32_t pages = m->w.layout->dense_mask | m->w.layout->window_mask;
	uint32_t row = index_find_row(m->w.index, &m->nodes[node].key, mask);

	assert_int_equal(hit->present, node_has(m, node, false, true));
	assert_int_equal(hit->complete, node_complete(m, node, mask, false));
	assert_int_equal(hit->classes & pages, hit->record == INDEX_NONE || !pages ? 0 :
		m->w.layout->page_columns == 1 && !hit->present ? 0 : node_classes(m, node));
	if (node_has(m, node, false, false))
		assert_int_not_equal(hit->record, INDEX_NONE);
	if (hit->record != INDEX_NONE)
		assert_int_equal(index_consumed(m->w.index, hit->record, hit->page), m->nodes[node].consumed);
	if (hit->entry != INDEX_NONE) {
		assert_int_equal(m->values[hit->entry].node, node);
		assert_false(m->values[hit->entry].hidden);
	}
	assert_int_equal(row != INDEX_NONE, node_complete(m, node, mask, true));
	if (rows && (hit->record != INDEX_NONE || row == INDEX_NONE || !index_record(m->w.index, row)->pages))
		assert_int_equal(hit->row, row);
	else if (!rows)
		assert_int_equal(hit->row, INDEX_NONE);
}

static void compare_all(struct model *m)
{
	uint32_t mask = 1 + rnd(m, (1u << m->w.layout->classes) - 1);
	bool rows = rnd(m, 2);

	for (uint32_t first = 0; first < NODES; first += INDEX_STEP_KEYS) {
		struct key keys[INDEX_STEP_KEYS];
		struct index_hit hits[INDEX_STEP_KEYS];
		uint64_t hashes[INDEX_STEP_KEYS];
		uint32_t n = NODES - first < INDEX_STEP_KEYS ? NODES - first : INDEX_STEP_KEYS;

		for (uint32_t i = 0; i < n; i++)
			keys[i] = m->nodes[first + i].key;
		index_prefetch(m->w.index, keys, n, hashes);
		index_prefetch_rows(m->w.index, hashes, n);
		index_lookup_hashed(m->w.index, keys, hashes, n, mask, rows, hits);
		for (uint32_t i = 0; i < n; i++)
			compare_hit(m, first + i, mask, rows, &hits[i]);
	}
	for (uint32_t e = 0; e < m->n_values; e++) {
		const struct value *v = &m->values[e];
		const struct entry *t = &m->w.tables.entries[e];
		bool committed;

		if (!v->there)
			continue;
		assert_int_equal(index_value(m->w.index, t->record, t->page, v->column, &committed), e);
		assert_int_equal(committed, v->committed);
	}
}

/* Takes the lines on pins and rings out of a description. */
static void strip(char *text)
{
	char *to = text;

	for (char *line = text, *next; *line; line = next) {
		next = strchr(line, '\n') + 1;
		if (!strncmp(line, "pinned", 6) || !strncmp(line, "whole", 5))
			continue;
		memmove(to, line, (size_t)(next - line));
		to += next - line;
	}
	*to = 0;
}

static void compare_rebuilt(struct model *m)
{
	struct twin_world t;
	char *live = describe(m->w.index);

	world_rebuild(&m->w, &t, true);
	index_check(t.index);
	char *rebuilt = describe(t.index);

	if (m->w.layout->row_columns) { /* twins that are busy here have met there */
		strip(live);
		strip(rebuilt);
	}
	if (strcmp(live, rebuilt)) {
		FILE *f = fopen("live.txt", "w");
		FILE *g = fopen("rebuilt.txt", "w");
		fputs(live, f);
		fputs(rebuilt, g);
		fclose(f);
		fclose(g);
		fail_msg("the rebuilt index differs: diff live.txt rebuilt.txt");
	}
	free(live);
	free(rebuilt);
	twin_deinit(&t, &m->w, true);
	m->rebuilds++;
}

/* ---- plans ----------------------------------------------------------------------------------------------------- */

static void note_value(struct model *m, struct plan *p, uint32_t entry, bool row, uint32_t node, uint32_t c, uint32_t s)
{
	m->values[entry] = (struct value){true, false, false, node, layout_column(m->w.layout, c, s), row, p->group};
	p->entries[p->n++] = entry;
}

static void add_value(struct model *m, struct plan *p, uint32_t record, uint16_t page, uint32_t node, uint32_t c, uint32_t s)
{
	uint32_t entry = world_entry(&m->w);

	assert_int_not_equal(entry, INDEX_NONE);
	index_value_add(m->w.index, record, page, &m->nodes[node].key, c, s, entry, p->group);
	note_value(m, p, entry, page == INDEX_PAGE_ROW, node, c, s);
}

/* A page at the end of the open record with its first value. */
static uint16_t add_page(struct model *m, struct plan *p, uint32_t node, uint32_t c, uint32_t s)
{
	const struct key *key = &m->nodes[node].key;
	uint64_t hash;
	uint32_t entry = world_entry(&m->w);
	uint16_t page;

	assert_int_not_equal(entry, INDEX_NONE);
	index_prefetch(m->w.index, key, 1, &hash);
	page = index_page_add(m->w.index, p->open, key, hash, c, s, entry, p->group);
	note_value(m, p, entry, false, node, c, s);
	return page;
}

static void pin(struct model *m, struct plan *p, uint32_t record)
{
	index_pin(m->w.index, record);
	p->pins[p->pins_n++] = record;
}

static bool brings(const struct model *m, uint32_t node, uint32_t classes, uint32_t c, uint32_t s)
{
	return classes >> (c + s) & 1 && layout_has_value(m->w.layout, c, m->nodes[node].consumed);
}

/* The first value of @node's page that the plan brings; of one that brings none (a page without a value must not be) the
 * first there can be. */
static void first_brought(const struct model *m, uint32_t node, uint32_t classes, uint32_t *ret_c, uint32_t *ret_s)
{
	const struct layout *l = m->w.layout;

	*ret_c = *ret_s = 0;
	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares && !layout_is_row(l, c); s++)
			if (brings(m, node, classes, c, s)) {
				*ret_c = c;
				*ret_s = s;
				return;
			}
}

/* Values of @node's page that the plan brings; pins what exists. */
static void fill_page(struct model *m, struct plan *p, uint32_t record, uint16_t page, uint32_t node, uint32_t classes)
{
	const struct layout *l = m->w.layout;
	bool pinned = false;

	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares && !layout_is_row(l, c); s++) {
			if (!brings(m, node, classes, c, s))
				continue;
			if (index_value(m->w.index, record, page, layout_column(l, c, s), NULL) == INDEX_NONE)
				add_value(m, p, record, page, node, c, s);
			else if (!pinned && record != p->open)
				pin(m, p, record), pinned = true;
		}
}

static uint32_t open_record(struct model *m, struct plan *p, uint32_t node, uint32_t pages, bool whole)
{
	const struct node *n = &m->nodes[node];
	struct index_run run = {
		.parent_key = n->parent == INDEX_NONE ? NULL : &m->nodes[n->parent].key,
		.endpoint = pages ? NULL : &n->key,
		.consumed = pages ? n->consumed - 16 : n->consumed,
		.max_pages = pages,
		.group = p->group,
		.flags = whole ? RECORD_WHOLE : 0,
		.whole_ring = p->records_n ? p->records[p->records_n - 1] : INDEX_NONE,
		.parent_record = rnd(m, 8) ? rnd(m, m->w.tables.record_capacity) : INDEX_NONE,
		.parent_page = (uint16_t)rnd(m, 4),
	};
	struct index_hit parent;

	if (n->parent != INDEX_NONE && rnd(m, 2)) {
		index_lookup(m->w.index, &m->nodes[n->parent].key, 1, ~0u, &parent);
		run.parent_record = parent.record;
		run.parent_page = parent.page;
	}
	if (n->parent != INDEX_NONE && pages)
		run.consumed = m->nodes[n->parent].consumed;
	uint32_t record = index_record_new(m->w.index, &run);

	if (record != INDEX_NONE)
		p->records[p->records_n++] = record;
	return record;
}

static void close_record(struct model *m, struct plan *p, uint32_t record)
{
	if (record == INDEX_NONE || index_record_close(m->w.index, record))
		return;
	for (uint32_t i = 0; i < p->records_n; i++)
		if (p->records[i] == record) {
			memmove(&p->records[i], &p->records[i + 1], (p->records_n - i - 1) * sizeof(uint32_t));
			p->records_n--;
			return;
		}
	fail();
}

static void fill_row(struct model *m, struct plan *p, uint32_t node, uint32_t classes, bool whole)
{
	const struct layout *l = m->w.layout;
	uint32_t home = index_row_home(m->w.index, &m->nodes[node].key);
	uint32_t made = INDEX_NONE;

	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares && layout_is_row(l, c); s++) {
			if (!(classes >> (c + s) & 1))
				continue;
			if (home == INDEX_NONE)
				home = made = open_record(m, p, node, 0, whole);
			if (home == INDEX_NONE)
				return;
			if (made == INDEX_NONE)
				pin(m, p, home);
			if (index_value(m->w.index, home, INDEX_PAGE_ROW, layout_column(l, c, s), NULL) == INDEX_NONE)
				add_value(m, p, home, INDEX_PAGE_ROW, node, c, s);
		}
	close_record(m, p, made);
}

static void put_start(struct model *m, struct plan *p)
{
	uint32_t node = rnd(m, NODES), want = rnd(m, 12), room = m->page_room * 12 + m->w.layout->row_columns;

	if (m->w.free_count < room * (m->busy + 1))
		return;
	memset(p, 0, sizeof(*p));
	p->group = (uint32_t)(p - m->plans) + 1;
	p->open = INDEX_NONE;
	p->end = node;
	p->classes = rnd(m, 2) ? 255 : 1 + rnd(m, 255);
	p->whole = rnd(m, 3) == 0;
	p->row = m->w.layout->row_columns && rnd(m, 2);
	for (; p->left < want && node != INDEX_NONE && !m->nodes[node].partial; node = m->nodes[node].parent)
		p->chain[p->left++] = node;
	m->busy++;
	world_group(&m->w, p->group);
}

static void put_key(struct model *m, struct plan *p, uint32_t node)
{
	struct index_hit hit;

	index_lookup(m->w.index, &m->nodes[node].key, 1, ~0u, &hit);
	if (hit.record != INDEX_NONE) {
		close_record(m, p, p->open);
		p->open = INDEX_NONE;
		fill_page(m, p, hit.record, hit.page, node, p->classes);
		return;
	}
	if (p->open == INDEX_NONE)
		p->open = open_record(m, p, node, p->left + 1, p->whole);
	if (p->open == INDEX_NONE) {
		p->left = 0;
		return;
	}
	uint32_t c, s;

	first_brought(m, node, p->classes, &c, &s);
	fill_page(m, p, p->open, add_page(m, p, node, c, s), node, p->classes);
}

/* Some keys; others get their turn between two calls. */
static void put_more(struct model *m, struct plan *p)
{
	for (uint32_t steps = 1 + rnd(m, 6); steps && p->left; steps--) {
		p->left--;
		put_key(m, p, p->chain[p->left]);
		if (rnd(m, 24) == 0)
			p->left = 0; /* the rest gets no room */
	}
	if (p->left)
		return;
	close_record(m, p, p->open);
	p->open = INDEX_NONE;
	if (p->row)
		fill_row(m, p, p->end, p->classes, p->whole);
	p->filled = true;
	m->wholes += p->whole && p->records_n > 1;
}

static void unpin_all(struct model *m, struct plan *p)
{
	while (p->pins_n)
		index_unpin(m->w.index, p->pins[--p->pins_n], &m->sink);
	world_group_end(&m->w, p->group);
	p->group = 0;
	m->busy--;
}

static void go_on(struct model *m, struct plan *p)
{
	if (!p->committed) {
		tables_group_publish(&m->w.tables, p->group - 1);
		for (uint32_t i = 0; i < p->n; i++)
			m->values[p->entries[i]].committed = true;
		p->committed = true;
		m->commits++;
		if (rnd(m, 3) == 0)
			return;
	}
	uint32_t until = rnd(m, 3) ? p->n : p->settled + (p->n - p->settled) / 2;

	while (p->settled < until) /* a removed value has been dropped meanwhile */
		if (m->w.tables.entries[p->entries[p->settled++]].group == p->group)
			index_settle(m->w.index, p->entries[p->settled - 1]);
	if (p->settled < p->n)
		return;
	until = rnd(m, 3) ? p->records_n : p->published + (p->records_n - p->published) / 2;
	while (p->published < until)
		index_record_publish(m->w.index, p->records[p->published++], &m->sink);
	if (p->published == p->records_n)
		unpin_all(m, p);
}

static void abort_plan(struct model *m, struct plan *p)
{
	bool quarantine = rnd(m, 3) == 0;
	bool backwards = rnd(m, 2);

	if (rnd(m, 2))
		__atomic_store_n((uint32_t *)&m->w.tables.groups[p->group - 1].state, GROUP_LOST, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < p->n; i++) {
		uint32_t entry = p->entries[backwards ? p->n - 1 - i : i];

		index_value_drop(m->w.index, entry, quarantine, &m->sink);
		if (quarantine) {
			assert_int_equal(m->w.tables.entries[entry].state, ENTRY_QUARANTINED);
			m->values[entry].there = false;
			m->quarantined[m->quarantined_n++] = entry;
		}
	}
	for (uint32_t i = 0; i < p->records_n; i++)
		index_record_abandon(m->w.index, p->records[i], &m->sink);
	unpin_all(m, p);
	m->aborts++;
}

static void end_quarantine(struct model *m)
{
	while (m->quarantined_n) {
		uint32_t entry = m->quarantined[--m->quarantined_n];

		tables_entry_set_state(&m->w.tables, entry, ENTRY_FREE);
		world_freed(&m->w, entry);
	}
}

/* ---- readers, evictions ---------------------------------------------------------------------------------------- */

static void get(struct model *m)
{
	struct reader *r = &m->readers[rnd(m, READERS)];
	struct key keys[32];
	struct index_hit hits[32];
	uint32_t n = 0, chain[32], node = rnd(m, NODES);

	if (r->n) {
		for (uint32_t i = 0; i < r->n; i++)
			index_unpin(m->w.index, r->pins[i], &m->sink);
		r->n = 0;
		return;
	}
	for (; n < 32 && node != INDEX_NONE; node = m->nodes[node].parent)
		chain[n++] = node;
	for (uint32_t i = 0; i < n; i++)
		keys[i] = m->nodes[chain[n - 1 - i]].key;
	index_lookup(m->w.index, keys, n, ~0u, hits);
	uint32_t tick = index_tick(m->w.index);
	bool touch = rnd(m, 2);

	for (uint32_t i = 0; i < n; i++)
		if (hits[i].record != INDEX_NONE) {
			index_pin(m->w.index, hits[i].record);
			if (touch)
				index_touch(m->w.index, hits[i].record, hits[i].page, tick);
			r->pins[r->n++] = hits[i].record;
		}
}

static bool refuse_odd(void *context, uint32_t entry)
{
	(void)context;
	return entry % 2 == 0;
}

static bool pinned(const struct model *m, uint32_t record)
{
	return m->w.index->records[record].pins > 0;
}

/* What an eviction freed was committed and had nothing behind it. (A page that lost its name and was put again stands in
 * two records: what follows it in the old one does not hang off the new one.) */
static void judge(struct model *m, bool row_only)
{
	for (uint32_t i = 0; i < m->last_freed_n; i++) {
		uint32_t entry = m->last_freed[i];
		const struct value *v = &m->values[entry];

		assert_true(v->committed && !v->hidden);
		if (row_only)
			assert_true(v->row);
		if (row_only || v->row)
			continue;
		const struct entry *e = &m->w.tables.entries[entry];

		for (uint32_t n = 0; n < NODES; n++) {
			struct index_hit hit;

			if (m->nodes[n].parent != v->node || !node_has(m, n, false, false))
				continue;
			index_lookup(m->w.index, &m->nodes[n].key, 1, ~0u, &hit);
			assert_true(hit.record != e->record || hit.page == 0);
			assert_true(hit.page || index_record(m->w.index, hit.record)->parent != e->record ||
				    index_record(m->w.index, hit.record)->parent_page != e->page);
		}
	}
}

/* Is the value of @entry old, by the words of docs/ranks-and-classes.md? */
static bool is_old(const struct model *m, uint32_t entry)
{
	const struct entry *e = &m->w.tables.entries[entry];
	const struct value_class *class = &m->w.layout->class[e->class_index];
	const struct record *r = &m->w.index->records[e->record];
	uint64_t every = (uint64_t)class->every_pages * 16, start = m->w.tables.records[e->record].start;

	if (!m->values[entry].there || m->values[entry].hidden || class->kind != VALUE_WINDOW || r->state != RECORD_LIVE || r->pins ||
		r->unsettled || r->flags & (RECORD_FLAG_HELD | RECORD_FLAG_WHOLE) || r->children > 64)
		return false;
	uint64_t value = (start + (e->page + 1ull) * 16) / every, last = (start + r->pages * 16ull) / every;
	bool kept = value <= class->sink || value + class->last > last;

	for (uint32_t c = r->child; c != INDEX_NONE; c = m->w.index->records[c].next) {
		last = (start + (m->w.index->records[c].parent_page + 1ull) * 16) / every;
		kept |= value <= last && value + class->last > last;
	}
	return !kept;
}

/* What goes was old, all shares of it; and when nothing does nothing is. */
static void evict_olds(struct model *m)
{
	bool (*accept)(void *, uint32_t) = rnd(m, 4) ? NULL : refuse_odd, old[VALUES], any = false;
	uint32_t c = rnd(m, m->w.layout->classes), calls = 0;
	int r;

	if (!(m->w.layout->window_mask >> c & 1))
		return;
	for (uint32_t e = 0; e < m->n_values; e++) {
		old[e] = is_old(m, e) && m->w.tables.entries[e].class_index == c;
		any |= old[e];
	}
	m->last_freed_n = 0;
	do
		r = index_evict_old(m->w.index, c, accept, m, &m->sink);
	while (r == INDEX_E_MORE && ++calls < 1000);
	assert_true(calls < 1000);
	assert_int_equal(r == 0, m->last_freed_n > 0);
	for (uint32_t i = 0; i < m->last_freed_n; i++) {
		const struct value *v = &m->values[m->last_freed[i]];

		assert_true(old[m->last_freed[i]] && v->committed);
		assert_int_equal(v->node, m->values[m->last_freed[0]].node);
		for (uint32_t s = 0; s < m->w.layout->class[c].shares; s++)
			assert_null(find_value(m, v->node, false, layout_column(m->w.layout, c, s)));
	}
	if (!accept)
		assert_int_equal(r == 0, any);
	m->olds += m->last_freed_n;
}

/* What is half there goes, unless somebody writes it or holds the record; nothing else does. */
static void drop_half(struct model *m)
{
	uint32_t entry = rnd(m, m->n_values), values, halves = 0, left = 0;
	const struct entry *e = &m->w.tables.entries[entry];
	const struct layout *l = m->w.layout;

	if (!m->values[entry].there || m->values[entry].hidden || e->state != ENTRY_VALUE)
		return;
	uint32_t record = e->record, node = m->values[entry].node;
	uint16_t page = e->page;
	const struct record *r = index_record(m->w.index, record);
	bool busy = r->state != RECORD_LIVE || r->pins || r->flags & RECORD_FLAG_HELD, whole = r->flags & RECORD_FLAG_WHOLE;

	for (uint32_t c = 0; c < l->classes; c++) {
		uint32_t committed = 0, there = 0;

		if (layout_is_row(l, c) != (page == INDEX_PAGE_ROW))
			continue;
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			const struct value *v = find_value(m, node, page == INDEX_PAGE_ROW, layout_column(l, c, s));

			committed += v && v->committed;
			there += v && (!v->committed || m->w.tables.entries[v - m->values].group) ? 100 : v != NULL;
		}
		if (!committed || committed == l->class[c].shares)
			continue;
		halves |= 1u << c;
		left |= (uint32_t)(busy || there >= 100) << c;
	}
	assert_int_equal(index_half(m->w.index, record, page), halves);
	m->last_freed_n = 0;
	enum index_removal got = index_drop_half(m->w.index, record, page, &m->sink, &values);

	assert_int_equal(values, m->last_freed_n);
	m->halves += values;
	if (whole && halves && !busy) {
		assert_true(got == INDEX_REMOVED || (got == INDEX_BUSY && !values));
		return;
	}
	assert_int_equal(got, !halves ? INDEX_ABSENT : left ? INDEX_BUSY : INDEX_REMOVED);
	for (uint32_t i = 0; i < m->last_freed_n; i++) {
		const struct value *v = &m->values[m->last_freed[i]];
		uint32_t c = m->w.tables.entries[m->last_freed[i]].class_index;

		assert_true(v->node == node && (halves & ~left) >> c & 1);
	}
}

static void evict(struct model *m)
{
	bool (*accept)(void *, uint32_t) = rnd(m, 4) ? NULL : refuse_odd;
	uint32_t steps = 1 + rnd(m, 6);

	while (steps--) {
		m->last_freed_n = 0;
		if (m->w.layout->row_columns && rnd(m, 5) == 0) {
			int r = index_evict_row(m->w.index, accept, m, &m->sink);

			assert_true(r == 0 || m->last_freed_n == 0);
			judge(m, true);
			m->rows_evicted += m->last_freed_n;
		} else {
			int r = index_evict_page(m->w.index, accept, m, &m->sink);

			assert_true(r == 0 || m->last_freed_n == 0);
			judge(m, false);
			m->evicted += m->last_freed_n;
		}
	}
}

static void evict_named(struct model *m)
{
	struct why why = WHY_INIT;
	uint32_t limit = index_record_limit(m->w.index), cursor = limit ? rnd(m, limit) : 0;
	uint32_t record = index_next_record(m->w.index, &cursor);

	if (record == INDEX_NONE)
		return;
	const struct record *r = index_record(m->w.index, record);
	bool whole = r->flags & RECORD_FLAG_WHOLE, busy = pinned(m, record) || r->state != RECORD_LIVE || r->unsettled,
	     children = r->children;
	bool held = r->flags & RECORD_FLAG_HELD;
	m->last_freed_n = 0;
	int error = index_evict_record(m->w.index, record, &m->sink, &why);

	if (busy || held)
		assert_int_equal(error, -EBUSY);
	else if (!whole)
		assert_int_equal(error, children ? -ENOTEMPTY : 0);
	assert_true(error == 0 || why.error == -error);
	if (!error)
		judge(m, false);
}

static void remove_value(struct model *m)
{
	uint32_t entry = rnd(m, m->n_values);
	const struct value *v = &m->values[entry];

	if (!v->there || v->hidden || !v->committed || m->w.tables.entries[entry].group)
		return;
	index_value_drop(m->w.index, entry, false, &m->sink);
	assert_false(v->there);
	m->removed++;
}

/* Values on pages of held records and on those that they descend from. */
static void kept_values(const struct model *m, bool *kept)
{
	memset(kept, 0, VALUES * sizeof(*kept));
	for (uint32_t h = 0; h < index_record_limit(m->w.index); h++) {
		uint32_t record = h, page = INDEX_PAGE_ROW;
		const struct record *r = index_record(m->w.index, h);

		if (r->state != RECORD_LIVE || !(r->flags & RECORD_FLAG_HELD) || !index_record_current(m->w.index, h))
			continue;
		for (; record != INDEX_NONE; page = r->parent_page, record = r->parent) {
			r = index_record(m->w.index, record);
			for (uint32_t e = 0; e < m->n_values; e++) {
				const struct entry *t = &m->w.tables.entries[e];

				kept[e] |= m->values[e].there && t->state == ENTRY_VALUE && t->record == record &&
					   (t->page == INDEX_PAGE_ROW ? page == INDEX_PAGE_ROW : t->page <= page);
			}
		}
	}
}

/* As the store does when it empties a place. */
static void empty_place(struct model *m)
{
	static const uint32_t olds[] = {0, 3, 40, INDEX_TICK_SPAN + 1};
	uint32_t entry = rnd(m, m->n_values), old = olds[rnd(m, 4)], steps, age, stays = 0;
	bool there = m->values[entry].there && m->w.tables.entries[entry].state == ENTRY_VALUE;
	bool can = index_value_age(m->w.index, entry, &age);
	int r;

	if (!there && m->w.tables.entries[entry].state != ENTRY_FREE)
		return; /* quarantined */
	bool busy = there && !can;
	bool kept[VALUES];

	kept_values(m, kept);
	m->w.told_whys = 0;
	m->last_freed_n = 0;
	do {
		steps = INDEX_STEP_KEYS;
		r = index_evict_value(m->w.index, entry, old, &steps, &m->sink);
		assert_true(steps <= INDEX_STEP_KEYS);
		assert_true(r != INDEX_E_MORE || steps == 0);
		assert_true(++stays <= NODES);
	} while (r == INDEX_E_MORE);
	for (uint32_t i = 0; i < m->last_freed_n; i++)
		assert_true(m->values[m->last_freed[i]].committed);
	if (!there) {
		assert_int_equal(r, 0);
		assert_int_equal(m->last_freed_n, 0);
	} else if (busy) {
		assert_int_equal(r, INDEX_E_BUSY);
		assert_int_equal(m->last_freed_n, 0);
	} else if (r == 0) {
		assert_false(m->values[entry].there);
	} else { /* of a ring: something of it or behind it is in use; else something that is held may hang off it */
		assert_int_equal(r, INDEX_E_BUSY);
		assert_true(m->values[entry].there);
	}
	for (uint32_t e = 0; e < m->n_values; e++)
		assert_true(!kept[e] || m->values[e].there);
	assert_int_equal(m->w.told_whys & ~(1u << INDEX_WHY_ROOM), 0);
	m->emptied += m->last_freed_n;
}

/* A settled value, whatever its record is about: to a place, or back while that leaves the plans their room. */
static void move_value(struct model *m)
{
	uint32_t from = rnd(m, m->n_values), room = m->page_room * 12 + m->w.layout->row_columns;
	const struct entry *e = &m->w.tables.entries[from];

	if (!m->values[from].there || e->state != ENTRY_VALUE || e->group)
		return;
	if (from >= m->w.first_place && m->w.free_count <= room * m->busy)
		return;
	uint32_t record = e->record, page = e->page, to = world_move(&m->w, from);

	if (to == INDEX_NONE)
		return;
	m->values[to] = m->values[from];
	m->values[from].there = false;
	e = &m->w.tables.entries[to];
	assert_int_equal(e->record, record);
	assert_int_equal(e->page, page);
	assert_int_equal(m->w.tables.entries[from].state, ENTRY_FREE);
	m->moved++;
}

static void coldest(struct model *m)
{
	uint32_t age, n = m->last_freed_n;

	for (uint32_t row = 0; row <= (m->w.layout->row_columns > 0); row++)
		if (index_coldest_age(m->w.index, row, &age))
			assert_true(age <= INDEX_TICK_SPAN);
	assert_int_equal(m->last_freed_n, n); /* looking lets nothing go */
}

/* What index_remove must say about the values of @mask at @node; *whole: a ring decides it. */
static enum index_removal removal(const struct model *m, uint32_t node, uint32_t mask, bool *whole)
{
	bool any = false, busy = false;

	*whole = false;
	for (uint32_t e = 0; e < m->n_values; e++) {
		const struct entry *t = &m->w.tables.entries[e];
		const struct value *v = &m->values[e];

		if (!v->there || v->hidden || v->node != node || !(mask >> t->class_index & 1))
			continue;
		const struct record *r = &m->w.index->records[t->record];

		any = true;
		busy |= t->group || r->state != RECORD_LIVE || r->pins || r->flags & RECORD_FLAG_HELD;
		*whole |= r->flags & RECORD_FLAG_WHOLE;
	}
	return !any ? INDEX_ABSENT : busy ? INDEX_BUSY : INDEX_REMOVED;
}

static void remove_key(struct model *m)
{
	uint32_t node = rnd(m, NODES), mask = 1 + rnd(m, (1u << m->w.layout->classes) - 1), values = 0;
	const struct value *some = &m->values[rnd(m, m->n_values)];

	if (some->there) /* else mostly absent ones would be asked for */
		node = some->node;
	const struct key *key = &m->nodes[node].key;
	bool whole, again;
	enum index_removal want = removal(m, node, mask, &whole), got;
	uint64_t hash;

	index_prefetch(m->w.index, key, 1, &hash);
	m->last_freed_n = 0;
	got = index_remove(m->w.index, key, hash, mask, &m->sink, &values);
	assert_int_equal(values, m->last_freed_n);
	assert_true(got == want || (whole && want == INDEX_REMOVED && got == INDEX_BUSY));
	if (got == INDEX_REMOVED)
		assert_int_equal(removal(m, node, mask, &again), INDEX_ABSENT);
	else if (!whole)
		assert_int_equal(values, 0);
	m->by_key[got]++;
}

/* Nothing of what was there is found, and everything that is held or being put stays what it is. */
static void reset(struct model *m)
{
	uint64_t before = index_generation(m->w.index);

	assert_int_equal(index_reset(m->w.index), before + 1);
	world_was_reset(&m->w);
	assert_int_equal(index_generation(m->w.index), before + 1);
	for (uint32_t e = 0; e < m->n_values; e++)
		m->values[e].hidden = true;
	for (uint32_t g = 0; g < GROUPS; g++)
		m->plans[g].stale = true;
	m->resets++;
	compare_all(m);
}

static bool retire(struct model *m)
{
	uint64_t values = 0;
	bool more;

	m->last_freed_n = 0;
	more = index_retire(m->w.index, &m->sink, &values);
	assert_int_equal(values, m->last_freed_n);
	assert_true(values <= INDEX_STEP_KEYS * (m->w.layout->page_columns + m->w.layout->row_columns));
	for (uint32_t i = 0; i < m->last_freed_n; i++)
		assert_true(m->values[m->last_freed[i]].hidden);
	m->retired += values;
	return more;
}

static void hold(struct model *m)
{
	uint32_t record = rnd(m, RECORDS);

	if (record >= index_record_limit(m->w.index) || !index_record_visible(m->w.index, record))
		return;
	bool held = index_record(m->w.index, record)->flags & RECORD_FLAG_HELD;

	uint64_t bytes = index_held_bytes(m->w.index), more = index_hold_bytes(m->w.index, record);

	index_hold(m->w.index, record, !held);
	if (held)
		assert_true(index_held_bytes(m->w.index) < bytes);
	else
		assert_int_equal(index_held_bytes(m->w.index), bytes + more);
	m->held += !held;
}

static void step(struct model *m)
{
	struct plan *p = &m->plans[rnd(m, GROUPS)];

	m->last_freed_n = 0;
	for (uint32_t moves = rnd(m, 4); moves; moves--)
		move_value(m);
	switch (rnd(m, 16)) {
	case 0 ... 7:
		if (p->group && p->stale && !p->committed)
			abort_plan(m, p);
		else if (!p->group)
			put_start(m, p);
		else if (!p->filled)
			put_more(m, p);
		else
			go_on(m, p);
		break;
	case 8:
		if (p->group && !p->committed && rnd(m, 2))
			abort_plan(m, p);
		break;
	case 9 ... 10:
		get(m);
		break;
	case 11 ... 12:
		if (m->w.free_count < m->w.first_place * 3 / 5 || m->w.free_places_count < m->w.places / 4)
			evict(m);
		break;
	case 13:
		if (rnd(m, 3) == 0)
			evict_named(m);
		if (rnd(m, 2))
			evict_olds(m);
		if (rnd(m, 2))
			drop_half(m);
		break;
	case 14:
		if (rnd(m, 2))
			empty_place(m);
		else if (rnd(m, 3))
			remove_value(m);
		else
			remove_key(m);
		coldest(m);
		break;
	case 15:
		if (rnd(m, 96) == 0)
			reset(m);
		if (rnd(m, 2))
			retire(m);
		if (rnd(m, 8) == 0)
			hold(m);
		if (rnd(m, 4) == 0)
			end_quarantine(m);
		break;
	}
	if (m->w.index->counters.hollow_pages > m->hollows)
		m->hollows = m->w.index->counters.hollow_pages;
}

static void drain(struct model *m)
{
	for (uint32_t g = 0; g < GROUPS; g++)
		while (m->plans[g].group)
			if (!m->plans[g].stale && !m->plans[g].filled && rnd(m, 2))
				put_more(m, &m->plans[g]);
			else if (m->plans[g].committed)
				go_on(m, &m->plans[g]);
			else
				abort_plan(m, &m->plans[g]);
	for (uint32_t r = 0; r < READERS; r++) {
		for (uint32_t i = 0; i < m->readers[r].n; i++)
			index_unpin(m->w.index, m->readers[r].pins[i], &m->sink);
		m->readers[r].n = 0;
	}
	end_quarantine(m);
	index_check(m->w.index);
	while (retire(m))
		;
	assert_int_equal(index_hidden(m->w.index), 0);
	for (uint32_t n = 0; n < index_record_limit(m->w.index); n++)
		if (index_record(m->w.index, n)->flags & RECORD_FLAG_HELD)
			index_hold(m->w.index, n, false);
	assert_int_equal(index_held_bytes(m->w.index), 0);
	do
		m->last_freed_n = 0;
	while (index_evict_page(m->w.index, NULL, NULL, &m->sink) == 0);
	index_check(m->w.index);
	/* Everything went: nothing has leaked. */
	assert_int_equal(m->w.free_count, m->w.first_place);
	assert_int_equal(m->w.free_places_count, m->w.places);
	assert_int_equal(m->w.index->counters.records, 0);
	assert_int_equal(m->w.told_pages, 0);
	assert_int_equal(m->w.index->counters.pages, 0);
	assert_int_equal(m->w.index->counters.hollow_pages, 0);
	assert_int_equal(m->w.index->counters.orphans, 0);
	assert_int_equal(m->w.index->counters.victims_pending, 0);
	assert_int_equal(m->w.index->map.count, 0);
	assert_int_equal(m->w.index->arena.used, 0);
}

static uint64_t given_seed;
static uint32_t given_steps = 20000;

static void run(const char *layout, uint32_t values, uint32_t hollow, uint64_t seed)
{
	struct model *m = calloc(1, sizeof(*m));

	fprintf(stderr, "seed %llu, %u hollow entries\n", (unsigned long long)seed, hollow);
	m->seed = seed * 2 + 1;
	m->n_values = values + values / 4;
	assert_true(m->n_values <= VALUES);
	world_init_places(&m->w, layout, RECORDS, GROUPS, values, values / 4, hollow, MAP_PRIVATE);
	m->page_room = m->w.layout->page_columns;
	m->sink = (struct index_sink){freed, m};
	for (unsigned i = 0; i < 8; i++)
		rnd(m, 2);
	grow_tree(m);
	for (uint32_t s = 0; s < given_steps; s++) {
		step(m);
		world_check_losses(&m->w);
		if (s % 16 == 0) {
			index_check(m->w.index);
			world_check_news(&m->w);
		}
		if (s % 64 == 0)
			compare_all(m);
		if (s % 128 == 0)
			compare_rebuilt(m);
	}
	drain(m);
	fprintf(stderr,
		"  %llu commits, %llu aborts, %llu evicted, %llu rows, %llu removed, %llu emptied, %llu rings, %llu held, hollow up to %llu, "
		"%llu moved, %llu rebuilds, %llu resets, %llu retired, by key %llu removed %llu absent %llu busy, "
		"%llu old, %llu half there\n",
		(unsigned long long)m->commits, (unsigned long long)m->aborts, (unsigned long long)m->evicted,
		(unsigned long long)m->rows_evicted, (unsigned long long)m->removed, (unsigned long long)m->emptied,
		(unsigned long long)m->wholes, (unsigned long long)m->held, (unsigned long long)m->hollows,
		(unsigned long long)m->moved, (unsigned long long)m->rebuilds, (unsigned long long)m->resets, (unsigned long long)m->retired,
		(unsigned long long)m->by_key[INDEX_REMOVED], (unsigned long long)m->by_key[INDEX_ABSENT],
		(unsigned long long)m->by_key[INDEX_BUSY], (unsigned long long)m->olds, (unsigned long long)m->halves);
	world_deinit(&m->w);
	free(m);
}

static void test_plain(void **state)
{
	(void)state;
	run(LAYOUT_PLAIN, 150, 40, given_seed);
	run(LAYOUT_PLAIN, 200, 0, given_seed + 1);
}

static void test_rows(void **state)
{
	(void)state;
	run(LAYOUT_ROWS, 500, 40, given_seed + 2);
	run(LAYOUT_ROWS, 400, 3, given_seed + 3);
}

static void test_many(void **state)
{
	(void)state;
	run(LAYOUT_MANY, 700, 40, given_seed + 4);
	run(LAYOUT_MANY, 500, 0, given_seed + 5);
}

static void test_windows(void **state)
{
	(void)state;
	run(LAYOUT_WINDOWS, 700, 40, given_seed + 6);
	run(LAYOUT_WINDOWS, 500, 0, given_seed + 7);
}

/* Taken up from the tables with its group committed, a record is LIVE with its first settled value: its twin joins it then. */
static void test_a_twin_joins_what_is_half_settled(void **state)
{
	(void)state;
	run(LAYOUT_MANY, 700, 40, 436304964);
}

/* A page with a row loses its name, since there are no hollow entries, and comes anew in another record: the row is found where it was. */
static void test_a_row_is_found_where_its_page_lost_its_name(void **state)
{
	(void)state;
	run(LAYOUT_WINDOWS, 500, 0, 831806373);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_windows),
		cmocka_unit_test(test_a_twin_joins_what_is_half_settled),
		cmocka_unit_test(test_a_row_is_found_where_its_page_lost_its_name),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	if (argc > 2)
		given_steps = (uint32_t)strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
