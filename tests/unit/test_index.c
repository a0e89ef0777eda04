/* SPDX-License-Identifier: Apache-2.0
 *
 * The index, one situation a test, with the values that must come out.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/index_world.h"

enum {
	GROUP = 1
};

static struct world w;
static uint32_t sunk[1024], sunk_n;

static void freed(void *context, uint32_t entry)
{
	(void)context;
	sunk[sunk_n++] = entry;
	world_freed(&w, entry);
}

static const struct index_sink sink = {freed, NULL};

static uint32_t gone_n;
static uint64_t gone_consumed;
static struct key gone_key;

static void gone(void *context, uint64_t consumed, const struct key *endpoint)
{
	(void)context;
	gone_n++;
	gone_consumed = consumed;
	gone_key = *endpoint;
}

static void start(const char *layout, uint32_t hollow)
{
	world_init(&w, layout, 200, 8, 600, hollow, MAP_PRIVATE);
	w.index->gone = gone;
	sunk_n = gone_n = 0;
}

static void end(void)
{
	index_check(w.index);
	world_deinit(&w);
}

static struct key key_at(uint32_t number)
{
	return key_of(number);
}

/* A run of keys [first, first + n) in a plan of its own; parent = key first - 1 unless @root. All page columns. */
struct put {
	uint32_t record, group;
	uint32_t entries[64], n;
};

static void add_columns(struct put *p, uint32_t record, uint16_t page, uint32_t number)
{
	const struct layout *l = w.layout;
	struct key key = key_at(number);
	uint64_t consumed = page == INDEX_PAGE_ROW ? 0 : index_consumed(w.index, record, page);

	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			if (layout_is_row(l, c) != (page == INDEX_PAGE_ROW) ||
				(page != INDEX_PAGE_ROW && !layout_has_value(l, c, consumed)))
				continue;
			if (index_value(w.index, record, page, layout_column(l, c, s), NULL) != INDEX_NONE)
				continue;
			p->entries[p->n] = world_entry(&w);
			index_value_add(w.index, record, page, &key, c, s, p->entries[p->n], p->group);
			p->n++;
		}
}

/* A page at the end of an open record with its value of class 0, which every page has. */
static uint16_t add_page(struct put *p, uint32_t record, uint32_t number)
{
	struct key key = key_at(number);
	uint64_t hash;

	index_prefetch(w.index, &key, 1, &hash);
	p->entries[p->n] = world_entry(&w);
	return index_page_add(w.index, record, &key, hash, 0, 0, p->entries[p->n++], p->group);
}

static void begin(struct put *p, uint32_t group, uint32_t first, uint32_t n, uint32_t parent, uint64_t consumed,
	uint32_t flags, uint32_t ring)
{
	struct key before = key_at(parent);
	struct index_run run = {
		.parent_key = parent ? &before : NULL,
		.consumed = consumed,
		.max_pages = n,
		.group = group,
		.flags = flags,
		.whole_ring = ring,
	};

	memset(p, 0, sizeof(*p));
	p->group = group;
	world_group(&w, group);
	p->record = index_record_new(w.index, &run);
	assert_int_not_equal(p->record, INDEX_NONE);
	for (uint32_t i = 0; i < n; i++)
		add_columns(p, p->record, add_page(p, p->record, first + i), first + i);
	assert_true(index_record_close(w.index, p->record));
}

static void commit(struct put *p)
{
	tables_group_publish(&w.tables, p->group - 1);
	for (uint32_t i = 0; i < p->n; i++)
		index_settle(w.index, p->entries[i]);
	index_record_publish(w.index, p->record, &sink);
}

static void drop_all(struct put *p)
{
	for (uint32_t i = p->n; i-- > 0;)
		index_value_drop(w.index, p->entries[i], false, &sink);
	index_record_abandon(w.index, p->record, &sink);
}

/* Keys first .. first + n - 1 after key @parent (0: a root), which ends at @consumed; committed. */
static uint32_t put(uint32_t first, uint32_t n, uint32_t parent, uint64_t consumed)
{
	struct put p;

	index_tick(w.index);
	begin(&p, GROUP, first, n, parent, consumed, 0, INDEX_NONE);
	commit(&p);
	return p.record;
}

static uint32_t begin_row(
	struct put *p, uint32_t group, uint32_t number, uint32_t parent, uint64_t consumed, uint32_t flags)
{
	struct key key = key_at(number), before = key_at(parent);
	struct index_run run = {
		.parent_key = parent ? &before : NULL,
		.endpoint = &key,
		.consumed = consumed,
		.group = group,
		.flags = flags,
		.whole_ring = INDEX_NONE,
	};

	memset(p, 0, sizeof(*p));
	p->group = group;
	world_group(&w, group);
	p->record = index_record_new(w.index, &run);
	add_columns(p, p->record, INDEX_PAGE_ROW, number);
	assert_true(index_record_close(w.index, p->record));
	return p->record;
}

static struct index_hit look(uint32_t number)
{
	struct key key = key_at(number);
	struct index_hit hit;

	index_lookup(w.index, &key, 1, ~0u, &hit);
	return hit;
}

static uint32_t endpoint(uint32_t number)
{
	struct key key = key_at(number);

	return index_find_endpoint(w.index, &key);
}

static uint32_t row(uint32_t number)
{
	struct key key = key_at(number);

	return index_find_row(w.index, &key, ~0u);
}

static uint32_t entry_of(uint32_t number)
{
	struct index_hit hit = look(number);

	return index_value(w.index, hit.record, hit.page, 0, NULL);
}

/* ---- tests ----------------------------------------------------------------------------------------------------- */

static void test_life(void **state)
{
	struct put p;

	(void)state;
	start(LAYOUT_PLAIN, 0);
	assert_int_equal(look(1).record, INDEX_NONE);
	begin(&p, GROUP, 1, 3, 0, 0, 0, INDEX_NONE);
	assert_int_equal(look(2).record, p.record);
	assert_int_equal(look(2).page, 1);
	assert_false(look(2).present);
	assert_int_equal(look(2).entry, INDEX_NONE);
	assert_false(index_record_visible(w.index, p.record));
	assert_int_equal(endpoint(3), p.record);
	tables_group_publish(&w.tables, 0); /* all at once, before anything is settled */
	assert_true(look(2).complete && look(2).present);
	assert_int_equal(look(2).entry, p.entries[1]);
	assert_true(index_record_visible(w.index, p.record));
	assert_int_equal(index_counters(w.index)->pages, 0);
	for (uint32_t i = 0; i < 3; i++)
		index_settle(w.index, p.entries[i]);
	index_record_publish(w.index, p.record, &sink);
	assert_int_equal(index_counters(w.index)->pages, 3);
	assert_int_equal(index_counters(w.index)->records, 1);
	assert_int_equal(index_consumed(w.index, p.record, 1), 32);
	assert_int_equal(index_consumed(w.index, p.record, INDEX_PAGE_ROW), 48);
	assert_int_equal(endpoint(2), INDEX_NONE);
	end();
}

static void test_abort(void **state)
{
	struct put p, child;
	uint32_t generation;

	(void)state;
	start(LAYOUT_PLAIN, 0);
	begin(&p, 1, 1, 3, 0, 0, 0, INDEX_NONE);
	begin(&child, 2, 10, 2, 3, 48, 0, INDEX_NONE);
	commit(&child);
	assert_int_equal(index_record(w.index, child.record)->parent, p.record);
	generation = index_record(w.index, p.record)->generation;
	drop_all(&p);
	assert_int_equal(sunk_n, 3);
	assert_int_equal(sunk[0], p.entries[2]);
	assert_int_equal(look(1).record, INDEX_NONE);
	assert_int_equal(index_record(w.index, p.record)->generation, generation + 1);
	assert_int_equal(index_counters(w.index)->orphans, 1);
	assert_true(look(11).complete);
	index_check(w.index);
	/* The parent comes: the orphan is linked. */
	uint32_t parent = put(1, 3, 0, 0);

	assert_int_equal(index_counters(w.index)->orphans, 0);
	assert_int_equal(index_record(w.index, child.record)->parent, parent);
	assert_int_equal(index_record(w.index, child.record)->parent_page, 2);
	end();
}

static void test_parent_at_another_place(void **state)
{
	(void)state;
	start(LAYOUT_PLAIN, 0);
	put(1, 3, 0, 0);
	/* Says that it follows key 2, but not where key 2 ends; and one that names its own page. */
	uint32_t liar = put(10, 1, 2, 16), knot = put(21, 2, 22, 32);

	assert_int_equal(index_record(w.index, liar)->parent, INDEX_NONE);
	assert_int_equal(index_record(w.index, knot)->parent, INDEX_NONE);
	assert_int_equal(index_counters(w.index)->orphans, 2);
	end();
}

static void test_lru(void **state)
{
	(void)state;
	start(LAYOUT_PLAIN, 0);
	uint32_t a = put(1, 3, 0, 0), b = put(11, 3, 0, 0), c = put(21, 2, 3, 48);

	/* a is the coldest but has a child; so c, used before b, goes first */
	index_touch(w.index, c, 1, index_tick(w.index));
	index_touch(w.index, b, 0, index_tick(w.index)); /* its first page only: the last one stays cold */
	uint32_t entries[8] = {entry_of(13), entry_of(12), entry_of(22), entry_of(21), entry_of(3), entry_of(2),
		entry_of(1), entry_of(11)};
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
		index_check(w.index);
		if (i == 3) /* c is gone; a, now a leaf, is colder than b's first page */
			assert_int_equal(index_record(w.index, a)->children, 0);
	}
	assert_int_equal(sunk_n, 8);
	assert_memory_equal(sunk, entries, sizeof(entries));
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING);
	assert_int_equal(index_counters(w.index)->victims_freed, 8);
	end();
}

/* A request that began earlier comes to its keys later: what it touches was used by a younger one meanwhile. */
static void test_an_older_tick_takes_nothing_back(void **state)
{
	(void)state;
	start(LAYOUT_PLAIN, 0);
	uint32_t a = put(1, 4, 0, 0), b = put(11, 1, 0, 0), older = index_tick(w.index);

	index_touch(w.index, a, 2, index_tick(w.index));
	index_touch(w.index, b, 0, index_tick(w.index));
	index_touch(w.index, a, 1, older); /* two of the three pages that are in use */
	index_check(w.index);
	index_touch(w.index, a, 3, older);
	index_check(w.index);
	/* Page 4 is of the older tick, page 3 of the younger one, b of the youngest. */
	uint32_t entries[3] = {entry_of(4), entry_of(3), entry_of(2)};
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_memory_equal(sunk, entries, sizeof(entries));
	end();
}

static bool refuse(void *context, uint32_t entry)
{
	return entry != *(uint32_t *)context;
}

static void test_accept(void **state)
{
	(void)state;
	start(LAYOUT_PLAIN, 0);
	put(1, 1, 0, 0);
	put(11, 1, 0, 0);
	uint32_t cold = entry_of(1), warm = entry_of(11);

	assert_int_equal(index_evict_page(w.index, refuse, &cold, &sink), 0);
	assert_int_equal(sunk[0], warm);
	assert_int_equal(index_evict_page(w.index, refuse, &cold, &sink), INDEX_E_NOTHING);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk[1], cold);
	end();
}

static void test_busy(void **state)
{
	const struct index_counters *c;

	(void)state;
	start(LAYOUT_PLAIN, 0);
	uint32_t a = put(1, 2, 0, 0), b = put(11, 2, 0, 0), d = put(21, 2, 0, 0);

	c = index_counters(w.index);
	index_pin(w.index, a);
	index_pin(w.index, b);
	index_pin(w.index, d);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING);
	assert_int_equal(c->victims_pending, 1); /* one a call */
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING);
	assert_int_equal(c->victims_pending, 2);
	index_check(w.index);
	index_touch(w.index, b, 1, index_tick(w.index)); /* used again */
	assert_int_equal(c->victims_restored, 1);
	index_unpin(w.index, b, &sink);
	assert_int_equal(sunk_n, 0);
	index_unpin(w.index, a, &sink); /* owed: goes */
	assert_int_equal(sunk_n, 1);
	assert_int_equal(look(2).record, INDEX_NONE);
	assert_int_equal(look(1).record, a);
	assert_int_equal(c->victims_freed, 1);
	assert_int_equal(c->victims_pending, 0);
	index_unpin(w.index, d, &sink);
	end();
}

static void test_hollow(void **state)
{
	(void)state;
	for (uint32_t hollow = 0; hollow < 2; hollow++) {
		start(LAYOUT_PLAIN, hollow);
		uint32_t a = put(1, 3, 0, 0), child = put(11, 1, 2, 32);

		index_value_drop(w.index, entry_of(2), false, &sink);
		index_check(w.index);
		assert_int_equal(index_counters(w.index)->hollow_pages, hollow);
		assert_int_equal(look(2).record, hollow ? a : INDEX_NONE);
		assert_false(look(2).present);
		assert_true(look(3).present && look(1).present);
		assert_int_equal(index_record(w.index, child)->parent, hollow ? a : INDEX_NONE);
		if (hollow) { /* put again: the same place */
			struct put p = {.group = 2};

			world_group(&w, 2);
			index_pin(w.index, a);
			add_columns(&p, a, 1, 2);
			index_check(w.index);
			assert_int_equal(index_counters(w.index)->hollow_pages, 0);
			index_value_drop(w.index, p.entries[0], true, &sink); /* and given up: hollow again */
			assert_int_equal(w.tables.entries[p.entries[0]].state, ENTRY_QUARANTINED);
			assert_int_equal(index_counters(w.index)->hollow_pages, 1);
			index_unpin(w.index, a, &sink);
			index_quarantine_end(w.index, p.entries[0]);
		}
		/* the child goes, then the pages behind the hollow one, and the hollow one with them */
		assert_int_equal(index_evict_record(w.index, child, &sink, NULL), 0);
		index_value_drop(w.index, entry_of(3), false, &sink);
		assert_int_equal(index_record(w.index, a)->pages, 1);
		assert_int_equal(index_counters(w.index)->hollow_pages, 0);
		end();
	}
}

static void test_whole(void **state)
{
	struct put p, q;

	(void)state;
	start(LAYOUT_PLAIN, 0);
	begin(&p, 1, 1, 2, 0, 0, RECORD_WHOLE, INDEX_NONE);
	begin(&q, 2, 11, 2, 0, 0, RECORD_WHOLE, p.record);
	commit(&p);
	commit(&q);
	uint32_t child = put(21, 1, 1, 16); /* hangs off the middle of one of them */

	struct why why = WHY_INIT;

	assert_int_equal(index_evict_record(w.index, q.record, &sink, &why), -EBUSY);
	assert_non_null(strstr(why.text, "WHOLE"));
	index_touch(w.index, child, 0, index_tick(w.index));
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0); /* the child first, though it is warmer */
	assert_int_equal(sunk_n, 1);
	index_pin(w.index, p.record);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING);
	index_unpin(w.index, p.record, &sink);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk_n, 5);
	assert_int_equal(index_counters(w.index)->records, 0);
	end();
}

/* Two rings, each with a record that hangs off the other's. */
static void test_rings_hold_each_other(void **state)
{
	struct put a[2], b[2];

	(void)state;
	start(LAYOUT_PLAIN, 0);
	begin(&a[0], 1, 1, 1, 0, 0, RECORD_WHOLE, INDEX_NONE);
	begin(&b[0], 2, 2, 1, 1, 16, RECORD_WHOLE, INDEX_NONE);
	begin(&b[1], 3, 11, 1, 0, 0, RECORD_WHOLE, b[0].record);
	begin(&a[1], 4, 12, 1, 11, 16, RECORD_WHOLE, a[0].record);
	for (unsigned i = 0; i < 2; i++) {
		commit(&a[i]);
		commit(&b[i]);
	}
	index_check(w.index);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk_n, 4);
	end();
}

/* A ring with a record between its members that was there before. */
static void test_ring_around_another(void **state)
{
	struct put a[2];

	(void)state;
	start(LAYOUT_PLAIN, 0);
	begin(&a[0], 1, 1, 1, 0, 0, RECORD_WHOLE, INDEX_NONE);
	uint32_t between;
	{
		struct put p;

		begin(&p, 3, 2, 1, 1, 16, 0, INDEX_NONE);
		commit(&p);
		between = p.record;
	}
	begin(&a[1], 2, 3, 1, 2, 32, RECORD_WHOLE, a[0].record);
	commit(&a[0]);
	commit(&a[1]);
	assert_int_equal(index_record(w.index, a[1].record)->parent, between);
	index_pin(w.index, between);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING);
	index_unpin(w.index, between, &sink);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk_n, 3);
	end();
}

static void test_twins(void **state)
{
	struct put z;

	(void)state;
	start(LAYOUT_ROWS, 4);
	uint32_t a = put(1, 3, 0, 0);

	begin_row(&z, 2, 2, 1, 32, 0);
	assert_int_equal(index_record(w.index, z.record)->parent, a);
	assert_int_equal(index_record(w.index, z.record)->parent_page, 1);
	commit(&z);
	index_hold(w.index, z.record, true);
	index_record(w.index, z.record)->flags |= RECORD_FLAG_KNOWN;
	index_record(w.index, a)->flags |= RECORD_FLAG_KNOWN;
	assert_int_equal(row(2), z.record);
	assert_int_equal(endpoint(2), z.record);
	assert_int_equal(endpoint(3), a);
	index_pin(w.index, z.record);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0); /* page 3 goes: twins, but one is held */
	assert_int_equal(gone_n, 1);
	assert_int_equal(gone_consumed, 48);
	assert_int_equal(index_record(w.index, a)->pages, 2);
	assert_int_equal(endpoint(2), a);
	assert_int_equal(row(2), z.record);
	struct key key = key_at(2);

	assert_int_equal(index_row_home(w.index, &key), z.record);
	uint32_t cursor = 0, names = 0;

	for (uint32_t n; (n = index_next_record(w.index, &cursor)) != INDEX_NONE; names++)
		assert_int_equal(n, a); /* one name */
	assert_int_equal(names, 1);
	index_check(w.index);
	index_unpin(w.index, z.record, &sink); /* they join */
	assert_int_equal(gone_n, 2);
	assert_int_equal(row(2), a);
	assert_int_equal(index_record(w.index, z.record)->state, RECORD_FREE);
	assert_true(w.tables.records[a].flags & RECORD_PINNED);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING);
	index_check(w.index);
	index_hold(w.index, a, false);
	sunk_n = 0;
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk_n, 4); /* two shares of the row, two of the page */
	end();
}

static void test_rows(void **state)
{
	struct put z;

	(void)state;
	start(LAYOUT_ROWS, 4);
	uint32_t a = put(1, 2, 0, 0);

	/* Inside a partial page behind key 2; a record hangs off it. */
	begin_row(&z, 2, 100, 2, 37, 0);
	commit(&z);
	assert_int_equal(index_record(w.index, z.record)->parent, a);
	uint32_t child = put(101, 1, 100, 37);

	assert_int_equal(index_record(w.index, child)->parent, z.record);
	assert_int_equal(index_record(w.index, child)->parent_page, INDEX_PAGE_ROW);
	assert_int_equal(index_evict_row(w.index, NULL, NULL, &sink), INDEX_E_NOTHING); /* its child needs its place */
	/* A row at a record's own endpoint lives in that record. */
	struct key key = key_at(101);
	struct put p = {.group = 3};

	assert_int_equal(index_row_home(w.index, &key), child);
	world_group(&w, 3);
	index_pin(w.index, child);
	add_columns(&p, child, INDEX_PAGE_ROW, 101);
	assert_int_equal(row(101), INDEX_NONE);
	tables_group_publish(&w.tables, 2);
	assert_int_equal(row(101), child);
	for (uint32_t i = 0; i < p.n; i++)
		index_settle(w.index, p.entries[i]);
	index_unpin(w.index, child, &sink);
	assert_int_equal(index_evict_row(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk_n, 2);
	assert_int_equal(row(101), INDEX_NONE);
	assert_true(look(101).complete);
	/* The zero-page record's row is removed: its place stays known for the child. */
	index_value_drop(w.index, z.entries[0], false, &sink);
	assert_int_equal(row(100), INDEX_NONE);
	index_value_drop(w.index, z.entries[1], false, &sink);
	assert_int_equal(index_counters(w.index)->hollow_pages, 1);
	index_check(w.index);
	assert_int_equal(index_evict_record(w.index, child, &sink, NULL), 0);
	assert_int_equal(index_record(w.index, z.record)->state, RECORD_FREE);
	assert_int_equal(index_counters(w.index)->hollow_pages, 0);
	end();
}

/* Two ranks, one record: the one that made it gives up, the other's values stay. */
static void test_adopted(void **state)
{
	struct put a = {.group = 1}, b = {.group = 2};
	struct key key = key_at(1);
	struct index_run run = {.max_pages = 1, .group = 1, .whole_ring = INDEX_NONE};

	(void)state;
	start(LAYOUT_ROWS, 4);
	world_group(&w, 1);
	world_group(&w, 2);
	a.record = index_record_new(w.index, &run);
	assert_int_equal(add_page(&a, a.record, 1), 0);
	b.entries[0] = world_entry(&w);
	index_record_close(w.index, a.record);
	index_pin(w.index, a.record);
	index_value_add(w.index, a.record, 0, &key, 0, 1, b.entries[0], 2);
	b.n = 1;
	drop_all(&a);
	assert_int_equal(look(1).record, a.record);
	assert_false(look(1).present);
	assert_false(index_record_visible(w.index, a.record));
	index_check(w.index);
	tables_group_publish(&w.tables, 1);
	assert_true(index_record_visible(w.index, a.record));
	assert_true(look(1).present);
	assert_false(look(1).complete);
	index_settle(w.index, b.entries[0]);
	assert_int_equal(index_record(w.index, a.record)->state, RECORD_LIVE);
	index_unpin(w.index, a.record, &sink);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(sunk[sunk_n - 1], b.entries[0]);
	end();
}

/* A record that all its values have left while somebody held it. */
static void test_emptied_while_held(void **state)
{
	(void)state;
	start(LAYOUT_PLAIN, 0);
	uint32_t a = put(1, 2, 0, 0);

	index_pin(w.index, a);
	index_value_drop(w.index, entry_of(1), false, &sink);
	index_value_drop(w.index, entry_of(2), false, &sink);
	assert_int_equal(index_record(w.index, a)->pages, 0);
	assert_false(index_record_visible(w.index, a));
	assert_int_equal(index_value(w.index, a, 1, 0, NULL), INDEX_NONE);
	index_touch(w.index, a, 1, index_tick(w.index));
	index_check(w.index);
	index_unpin(w.index, a, &sink);
	assert_int_equal(index_record(w.index, a)->state, RECORD_FREE);
	end();
}

static void test_evict_named(void **state)
{
	struct why why = WHY_INIT;
	struct put p;

	(void)state;
	start(LAYOUT_PLAIN, 0);
	uint32_t a = put(1, 2, 0, 0), child = put(11, 1, 1, 16);

	assert_int_equal(index_evict_record(w.index, 150, &sink, &why), -ENOENT);
	assert_int_equal(index_evict_record(w.index, a, &sink, &why), -ENOTEMPTY);
	assert_string_equal(why.text, "the record has 1 child records");
	index_pin(w.index, child);
	assert_int_equal(index_evict_record(w.index, child, &sink, &why), -EBUSY);
	index_unpin(w.index, child, &sink);
	index_hold(w.index, child, true);
	assert_int_equal(index_evict_record(w.index, child, &sink, &why), -EBUSY);
	index_hold(w.index, child, false);
	begin(&p, 2, 31, 1, 0, 0, 0, INDEX_NONE);
	assert_int_equal(index_evict_record(w.index, p.record, &sink, &why), -ENOENT);
	tables_group_publish(&w.tables, 1);
	assert_int_equal(index_evict_record(w.index, p.record, &sink, &why), -EBUSY);
	commit(&p);
	assert_int_equal(index_evict_record(w.index, p.record, &sink, &why), 0);
	assert_int_equal(index_evict_record(w.index, child, &sink, &why), 0);
	assert_int_equal(index_evict_record(w.index, a, &sink, &why), 0);
	assert_int_equal(sunk_n, 4);
	end();
}

static void test_full(void **state)
{
	struct index_run run = {.max_pages = 1, .group = 1, .whole_ring = INDEX_NONE};

	(void)state;
	start(LAYOUT_PLAIN, 0);
	world_group(&w, 1);
	for (uint32_t i = 0; i < 200; i++)
		assert_int_not_equal(index_record_new(w.index, &run), INDEX_NONE);
	assert_int_equal(index_record_new(w.index, &run), INDEX_NONE);
	for (uint32_t i = 0; i < 200; i++)
		assert_false(index_record_close(w.index, i));
	assert_int_not_equal(index_record_new(w.index, &run), INDEX_NONE);
	world_deinit(&w);
}

/* Ticks wrap; what was not used for half the circle is still the coldest. */
static void test_ticks_wrap(void **state)
{
	(void)state;
	start(LAYOUT_PLAIN, 0);
	put(1, 1, 0, 0);
	for (unsigned i = 0; i < 6; i++) {
		w.index->tick += INDEX_TICK_SPAN;
		for (unsigned j = 0; j < 20; j++) /* every record is visited */
			index_tick(w.index);
		index_check(w.index);
		put(11 + i, 1, 0, 0);
	}
	uint32_t coldest = entry_of(1), second = entry_of(11);

	/* Both are far beyond the span and count as equally old; the hot ones do not go before them. */
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_not_equal(sunk[i], entry_of(16));
	assert_true(sunk[0] == coldest || sunk[1] == coldest || sunk[0] == second || sunk[1] == second);
	end();
}

/* What a successor does with values that nobody had committed. */
static void test_rebuild_quarantines(void **state)
{
	struct put p;
	struct twin_world t;

	(void)state;
	start(LAYOUT_PLAIN, 2);
	uint32_t a = put(1, 2, 0, 0);

	index_hold(w.index, a, true);
	begin(&p, 2, 3, 2, 2, 32, 0, INDEX_NONE);
	world_rebuild(&w, &t, true);
	index_check(t.index);
	assert_int_equal(t.tables.entries[p.entries[0]].state, ENTRY_QUARANTINED);
	assert_int_equal(t.tables.entries[p.entries[0]].group, 2);
	assert_int_equal(tables_group_state(&t.tables, 1), GROUP_LOST);
	assert_int_equal(tables_group_state(&t.tables, 0), GROUP_COMMITTED);
	assert_int_equal(index_counters(t.index)->records, 1);
	assert_int_equal(index_counters(t.index)->pages, 2);
	assert_int_equal(
		index_evict_page(t.index, NULL, NULL, &sink), INDEX_E_NOTHING); /* still pinned by the operator */
	index_quarantine_end(t.index, p.entries[0]);
	assert_int_equal(t.tables.entries[p.entries[0]].state, ENTRY_FREE);
	twin_deinit(&t, &w, true);
	drop_all(&p);
	end();
}

/* Whoever comes back to a record's number is told that it is another record, or shorter, after a rebuild too. */
static void test_rebuild_keeps_generations(void **state)
{
	struct twin_world t;

	(void)state;
	start(LAYOUT_PLAIN, 0);
	uint32_t a = put(1, 2, 0, 0), b = put(10, 1, 0, 0);
	uint32_t of_a = index_record(w.index, a)->generation, of_b = index_record(w.index, b)->generation;

	assert_true(b > a);
	assert_int_equal(index_evict_record(w.index, b, &sink, NULL), 0);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(w.tables.records[a].reuse, of_a + 1);
	assert_int_equal(w.tables.records[b].reuse, of_b + 1);
	world_rebuild(&w, &t, true);
	index_check(t.index);
	assert_int_equal(index_record(t.index, a)->generation, of_a + 1);
	assert_int_equal(record_take_number(t.index), b); /* as if it was never used */
	assert_int_equal(index_record(t.index, b)->generation, of_b + 1);
	record_give_back_number(t.index, b);
	twin_deinit(&t, &w, true);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_life),
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_parent_at_another_place),
		cmocka_unit_test(test_lru),
		cmocka_unit_test(test_an_older_tick_takes_nothing_back),
		cmocka_unit_test(test_accept),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_hollow),
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_rings_hold_each_other),
		cmocka_unit_test(test_ring_around_another),
		cmocka_unit_test(test_twins),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_adopted),
		cmocka_unit_test(test_emptied_while_held),
		cmocka_unit_test(test_evict_named),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_ticks_wrap),
		cmocka_unit_test(test_rebuild_quarantines),
		cmocka_unit_test(test_rebuild_keeps_generations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
