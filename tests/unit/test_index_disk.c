/* SPDX-License-Identifier: Apache-2.0
 *
 * What the disk tier needs of the index: values that move, losses that are told, records that come back.
 *
 *	test_index_disk [seed]
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "tests/unit/index_world.h"

#define LAYOUT_ONE LAYOUT_HEAD CLASS_KV "," CLASS_STATE1 "]}" /* a column for pages, one for rows */

#define SLOTS 600u
#define PLACES 200u
#define HOLLOW 64u
#define RECORDS 128u
#define GROUPS 8u

static uint64_t given_seed;
static struct world w;

static void freed(void *context, uint32_t entry)
{
	(void)context;
	world_freed(&w, entry);
}

static const struct index_sink sink = {freed, NULL};

static void begin(const char *layout)
{
	world_init_places(&w, layout, RECORDS, GROUPS, SLOTS, PLACES, HOLLOW, MAP_PRIVATE);
}

static void check(void)
{
	index_check(w.index);
	world_check_losses(&w);
}

static void end(void)
{
	check();
	world_deinit(&w);
}

/* ---- putting ---------------------------------------------------------------------------------------------------- */

/* Keys [first, first + pages) after @parent (0 = root), key 0 being none, every page with all its values; @row: one at the end. */
struct record_of {
	uint64_t first;
	uint32_t pages;
	uint64_t parent;
	uint64_t start;
	bool row;
	uint32_t flags, ring;
};

static uint32_t group_of(uint32_t number)
{
	world_group(&w, number);
	return number;
}

static void add(uint32_t record, uint16_t page, uint64_t number, uint32_t group, bool row)
{
	struct key key = key_of(number);

	for (uint32_t c = 0; c < w.layout->classes; c++)
		for (uint32_t s = 0; s < w.layout->class[c].shares && layout_is_row(w.layout, c) == row; s++)
			index_value_add(w.index, record, page, &key, c, s, world_entry(&w), group);
}

static void settle_all(uint32_t group)
{
	for (uint32_t e = 0; e < SLOTS; e++)
		if (w.tables.entries[e].state == ENTRY_VALUE && w.tables.entries[e].group == group)
			index_settle(w.index, e);
}

/* Filled with the first group, which is open then. */
static uint32_t fill(const struct record_of *of)
{
	struct key parent = key_of(of->parent), endpoint = key_of(of->first);
	struct index_run run = {
		.parent_key = of->parent ? &parent : NULL,
		.endpoint = of->pages ? NULL : &endpoint,
		.consumed = of->start,
		.max_pages = of->pages,
		.group = group_of(1),
		.flags = of->flags,
		.whole_ring = of->flags & RECORD_WHOLE ? of->ring : INDEX_NONE,
	};
	uint32_t record = index_record_new(w.index, &run);

	assert_int_not_equal(record, INDEX_NONE);
	for (uint32_t i = 0; i < of->pages; i++) {
		struct key key = key_of(of->first + i);
		uint64_t hash;
		uint16_t page;

		index_prefetch(w.index, &key, 1, &hash);
		page = index_page_add(w.index, record, &key, hash, 0, 0, world_entry(&w), 1);
		for (uint32_t s = 1; s < w.layout->class[0].shares; s++)
			index_value_add(w.index, record, page, &key, 0, s, world_entry(&w), 1);
	}
	if (of->row)
		add(record, INDEX_PAGE_ROW, of->first + (of->pages ? of->pages - 1 : 0), 1, true);
	assert_true(index_record_close(w.index, record));
	return record;
}

static void publish(uint32_t record)
{
	tables_group_publish(&w.tables, 0);
	settle_all(1);
	index_record_publish(w.index, record, &sink);
	world_group_end(&w, 1);
	world_check_losses(&w); /* it is known from here on */
}

static uint32_t put(struct record_of of)
{
	uint32_t record = fill(&of);

	publish(record);
	return record;
}

static uint32_t value_of(uint32_t record, uint16_t page, uint32_t column)
{
	uint32_t entry = index_value(w.index, record, page, column, NULL);

	assert_int_not_equal(entry, INDEX_NONE);
	return entry;
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

static void move_there_and_back(uint32_t record, uint16_t page, uint32_t column)
{
	uint32_t from = value_of(record, page, column), place = world_place(&w);
	uint32_t free_before = w.free_count;
	struct key key = w.tables.entries[from].key;
	struct record before = w.index->records[record];

	index_value_move(w.index, from, place);
	assert_int_equal(w.tables.entries[from].state, ENTRY_FREE);
	assert_int_equal(w.free_count, free_before); /* not sunk */
	assert_int_equal(value_of(record, page, column), place);
	assert_true(key_equal(&w.tables.entries[place].key, &key));
	check();
	index_value_move(w.index, place, from);
	assert_int_equal(w.tables.entries[place].state, ENTRY_FREE);
	assert_int_equal(value_of(record, page, column), from);
	assert_memory_equal(&before, &w.index->records[record], sizeof(before));
	check();
	world_freed(&w, place);
}

static void test_move_states(void **state)
{
	(void)state;
	for (unsigned rows = 0; rows < 3; rows++) {
		begin(rows == 2 ? LAYOUT_ROWS : rows ? LAYOUT_ONE : LAYOUT_PLAIN);
		uint32_t a = put((struct record_of){.first = 1, .pages = 4, .row = rows});
		uint32_t columns = w.layout->page_columns;

		for (uint32_t column = 0; column < columns; column++) /* the anchor and what is none */
			move_there_and_back(a, 2, column);
		if (rows)
			move_there_and_back(a, INDEX_PAGE_ROW, 0);
		index_pin(w.index, a);
		move_there_and_back(a, 3, columns - 1);
		assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), INDEX_E_NOTHING); /* it is selected */
		move_there_and_back(a, 3, 0);
		index_touch(w.index, a, 3, index_tick(w.index));
		index_unpin(w.index, a, &sink);
		index_hold(w.index, a, true);
		move_there_and_back(a, 0, 0);

		uint32_t ring = put((struct record_of){.first = 11, .pages = 2, .parent = 4, .start = 64, .flags = RECORD_WHOLE,
			.ring = INDEX_NONE});
		uint32_t other = put((struct record_of){.first = 21, .pages = 2, .parent = 12, .start = 96, .flags = RECORD_WHOLE,
			.ring = ring});

		move_there_and_back(ring, 1, 0);
		move_there_and_back(other, 0, 0);
		struct record_of of = {.first = 31, .pages = 2};
		uint32_t filling = fill(&of);

		tables_group_publish(&w.tables, 0);
		settle_all(1);
		move_there_and_back(filling, 1, 0); /* settled, not published */
		index_record_publish(w.index, filling, &sink);
		world_group_end(&w, 1);

		uint32_t orphan = put((struct record_of){.first = 41, .pages = 80, .parent = 999, .start = 160});

		move_there_and_back(orphan, 79, 0);
		index_pin(w.index, ring);
		index_reset(w.index);
		move_there_and_back(orphan, 3, 0); /* hidden */
		move_there_and_back(ring, 0, 0);   /* hidden and pinned */
		while (index_record(w.index, orphan)->state == RECORD_LIVE)
			index_retire(w.index, &sink, NULL);
		if (index_record(w.index, orphan)->state == RECORD_GOING)
			move_there_and_back(orphan, 0, 0);
		index_unpin(w.index, ring, &sink);
		while (index_retire(w.index, &sink, NULL))
			;
		assert_int_equal(index_hidden(w.index), 0);
		assert_int_equal(w.free_count, SLOTS);
		assert_int_equal(w.free_places_count, PLACES);
		end();
	}
}

/* What is found is where it was moved to, also after a rebuild. */
static void test_move_found(void **state)
{
	(void)state;
	struct twin_world t;
	struct key key = key_of(2);
	struct index_hit hit;

	begin(LAYOUT_ONE);
	uint32_t a = put((struct record_of){.first = 1, .pages = 3, .row = true});

	for (uint16_t page = 0; page < 3; page++)
		world_move(&w, value_of(a, page, 0));
	uint32_t row = world_move(&w, value_of(a, INDEX_PAGE_ROW, 0));

	index_lookup(w.index, &key, 1, ~0u, &hit);
	assert_true(hit.complete);
	assert_int_equal(hit.entry, value_of(a, 1, 0));
	assert_true(hit.entry >= SLOTS);
	key = key_of(3);
	assert_int_equal(index_find_row(w.index, &key, ~0u), a);
	assert_int_equal(w.tables.header->places_high, row + 1);
	assert_int_equal(w.free_count, SLOTS);
	char *live = describe(w.index);

	world_rebuild(&w, &t, true);
	index_check(t.index);
	char *rebuilt = describe(t.index);

	assert_string_equal(live, rebuilt);
	free(live);
	free(rebuilt);
	twin_deinit(&t, &w, true);
	end();
}

/* A process died between the two stores that matter: both numbers hold the value. @swap: places have the lower numbers, and
 * are met last. */
static void rebuild_double(bool swap)
{
	struct twin_world t;
	uint32_t record, slot, place;
	const uint32_t slots = TABLES_GRANT_ENTRIES * 2;

	begin(LAYOUT_ROWS);
	record = put((struct record_of){.first = 1, .pages = 2});
	if (swap) { /* numbers below `slots` are places for the rebuild, and free */
		w.index_config.place_first = 0;
		w.index_config.place_count = slots;
		w.tables.grants[0].first_entry = slots;
		w.tables.grants[0].slots = SLOTS - slots;
		tables_seal_grant(&w.tables, 0);
		__atomic_store_n(&w.tables.header->places_high, slots, __ATOMIC_RELEASE);
	}
	for (uint16_t page = 0; page < 2; page++)
		for (uint32_t column = 0; column < 2; column++) {
			slot = value_of(record, page, column);
			place = (swap ? slots : SLOTS) + page * 2 + column;
			struct entry *e = &w.tables.entries[place];

			*e = w.tables.entries[slot];
			tables_seal_entry(e, place);
			if (!swap)
				__atomic_store_n(&w.tables.header->places_high, place + 1, __ATOMIC_RELEASE);
		}
	world_rebuild(&w, &t, true);
	index_check(t.index);
	for (uint16_t page = 0; page < 2; page++)
		for (uint32_t column = 0; column < 2; column++) {
			bool committed;

			slot = value_of(record, page, column);
			place = (swap ? slots : SLOTS) + page * 2 + column;
			assert_true(slot < place);
			assert_int_equal(index_value(t.index, record, page, column, &committed), slot);
			assert_true(committed);
			assert_int_equal(t.tables.entries[place].state, ENTRY_FREE);
		}
	twin_deinit(&t, &w, true);
	world_deinit(&w);
}

static void test_rebuild_double(void **state)
{
	(void)state;
	rebuild_double(false);
	rebuild_double(true);
}

/* ---- losses -------------------------------------------------------------------------------------------------------- */

static uint32_t asked;

static void expect_loss(enum index_loss what, uint32_t record, uint32_t other, uint64_t consumed, uint64_t endpoint)
{
	const struct world_loss *l = &w.losses[asked++];
	struct key key = key_of(endpoint);

	assert_true(asked <= w.losses_n);
	assert_int_equal(l->what, what);
	assert_int_equal(l->record, record);
	assert_int_equal(l->other, other);
	assert_int_equal(l->consumed, consumed);
	assert_true(key_equal(&l->endpoint, &key));
}

static void expect_no_more(void)
{
	assert_int_equal(asked, w.losses_n);
	asked = w.losses_n = 0;
	check();
}

static void test_lost_evicted(void **state)
{
	(void)state;
	begin(LAYOUT_ONE);
	uint32_t a = put((struct record_of){.first = 1, .pages = 3, .row = true});

	expect_no_more();
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	expect_loss(INDEX_LOST_ROW, a, INDEX_NONE, 32, 2); /* both are told when it is named as it stays */
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 32, 2);
	expect_no_more();
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 16, 1);
	expect_no_more();
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	expect_loss(INDEX_LOST_RECORD, a, INDEX_NONE, 16, 1);
	expect_no_more();
	a = put((struct record_of){.first = 11, .pages = 2, .row = true});
	assert_int_equal(index_evict_row(w.index, NULL, NULL, &sink), 0);
	expect_loss(INDEX_LOST_ROW, a, INDEX_NONE, 32, 12);
	expect_no_more();
	struct why why = WHY_INIT;

	assert_int_equal(index_evict_record(w.index, a, &sink, &why), 0);
	expect_loss(INDEX_LOST_RECORD, a, INDEX_NONE, 32, 12);
	expect_no_more();
	a = put((struct record_of){.first = 21, .start = 37, .row = true}); /* zero pages */
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	expect_loss(INDEX_LOST_RECORD, a, INDEX_NONE, 37, 21);
	expect_no_more();
	end();
}

static void drop(uint32_t record, uint16_t page, uint32_t column)
{
	index_value_drop(w.index, value_of(record, page, column), false, &sink);
}

static void test_lost_removed(void **state)
{
	(void)state;
	begin(LAYOUT_ONE);
	uint32_t a = put((struct record_of){.first = 1, .pages = 4, .row = true});
	uint32_t values, steps = INDEX_STEP_KEYS;
	struct key key = key_of(2);
	uint64_t hash;

	drop(a, 3, 0); /* the row keeps the page's name */
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 64, 4);
	expect_no_more();
	drop(a, 2, 0);
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 64, 4);
	expect_no_more();
	drop(a, INDEX_PAGE_ROW, 0); /* and what it kept goes in one */
	expect_loss(INDEX_LOST_ROW, a, INDEX_NONE, 32, 2);
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 32, 2);
	expect_no_more();
	index_pin(w.index, a);
	index_prefetch(w.index, &key, 1, &hash);
	assert_int_equal(index_remove(w.index, &key, hash, ~0u, &sink, &values), INDEX_BUSY);
	expect_no_more();
	drop(a, 0, 0);
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 32, 2);
	drop(a, 1, 0); /* nothing is left, but it is pinned: told when its number goes, by the name it had */
	expect_no_more();
	assert_int_equal(index_record(w.index, a)->pages, 0);
	index_unpin(w.index, a, &sink);
	expect_loss(INDEX_LOST_RECORD, a, INDEX_NONE, 32, 2);
	expect_no_more();

	a = put((struct record_of){.first = 11, .pages = 2, .row = true});
	uint32_t b = put((struct record_of){.first = 21, .pages = 2, .parent = 12, .start = 32});

	key = key_of(12);
	index_prefetch(w.index, &key, 1, &hash);
	assert_int_equal(index_remove(w.index, &key, hash, 1u << 1, &sink, &values), INDEX_REMOVED);
	expect_loss(INDEX_LOST_ROW, a, INDEX_NONE, 32, 12);
	assert_int_equal(index_remove(w.index, &key, hash, ~0u, &sink, &values), INDEX_REMOVED);
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 32, 12); /* hollow: its child needs it */
	expect_no_more();
	struct why why = WHY_INIT;

	assert_int_equal(index_evict_record(w.index, b, &sink, &why), 0);
	expect_loss(INDEX_LOST_RECORD, b, INDEX_NONE, 64, 22);
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 16, 11); /* nobody needs its end any more */
	expect_no_more();

	a = put((struct record_of){.first = 31, .pages = 3});
	b = put((struct record_of){.first = 41, .pages = 1, .parent = 31, .start = 16});
	index_touch(w.index, a, 2, index_tick(w.index));
	assert_int_equal(index_evict_value(w.index, value_of(a, 0, 0), 2, &steps, &sink), 0); /* emptied: warm, goes alone */
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 48, 33);
	expect_no_more();
	index_tick(w.index);
	steps = INDEX_STEP_KEYS;
	assert_int_equal(index_evict_value(w.index, value_of(a, 1, 0), 0, &steps, &sink), 0); /* cold, with what follows */
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 32, 32);
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 16, 31);
	expect_no_more();
	end();
}

/* Two row columns: the first that goes is a value, the last is the row; what a group takes back is neither. */
static void test_lost_row_columns(void **state)
{
	(void)state;
	struct why why = WHY_INIT;

	begin(LAYOUT_MANY);
	uint32_t a = put((struct record_of){.first = 1, .pages = 1, .row = true});

	assert_int_equal(w.layout->row_columns, 3);
	assert_int_equal(index_drop_row(w.index, a, &sink, &why), 0);
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 16, 1);
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 16, 1);
	expect_loss(INDEX_LOST_ROW, a, INDEX_NONE, 16, 1);
	expect_no_more();
	group_of(2);
	index_pin(w.index, a);
	struct key key = key_of(1);
	uint32_t entry[2] = {world_entry(&w), world_entry(&w)};

	index_value_add(w.index, a, INDEX_PAGE_ROW, &key, 2, 0, entry[0], 2);
	index_value_add(w.index, a, INDEX_PAGE_ROW, &key, 3, 0, entry[1], 2);
	index_value_drop(w.index, entry[0], false, &sink);
	expect_no_more();
	tables_group_publish(&w.tables, 1);
	index_settle(w.index, entry[1]);
	world_group_end(&w, 2);
	world_check_losses(&w);
	group_of(3);
	entry[0] = world_entry(&w);
	index_value_add(w.index, a, INDEX_PAGE_ROW, &key, 2, 0, entry[0], 3);
	index_value_drop(w.index, entry[1], false, &sink); /* the last settled one */
	expect_loss(INDEX_LOST_ROW, a, INDEX_NONE, 16, 1);
	index_value_drop(w.index, entry[0], false, &sink);
	expect_no_more();
	world_group_end(&w, 3);
	index_unpin(w.index, a, &sink);
	end();
}

static void test_lost_aborted(void **state)
{
	(void)state;
	begin(LAYOUT_ONE);
	struct record_of of = {.first = 1, .pages = 3, .row = true};
	uint32_t a = fill(&of);

	for (uint32_t e = 0; e < SLOTS; e++)
		if (w.tables.entries[e].state == ENTRY_VALUE)
			index_value_drop(w.index, e, false, &sink);
	index_record_abandon(w.index, a, &sink);
	world_group_end(&w, 1);
	expect_no_more();
	assert_int_equal(index_record(w.index, a)->state, RECORD_FREE);
	end();
}

static void test_lost_reset(void **state)
{
	(void)state;
	begin(LAYOUT_ONE);
	uint32_t a = put((struct record_of){.first = 1, .pages = 70, .row = true});
	uint32_t b = put((struct record_of){.first = 101, .pages = 2});
	struct record_of of = {.first = 201, .pages = 2};
	uint32_t c = fill(&of); /* never LIVE */

	index_pin(w.index, b);
	index_reset(w.index);
	expect_no_more();
	drop(b, 1, 0); /* hidden: only its end is told */
	expect_no_more();
	while (index_retire(w.index, &sink, NULL))
		world_check_losses(&w);
	expect_loss(INDEX_LOST_RECORD, a, INDEX_NONE, 70 * 16, 70);
	expect_no_more();
	index_unpin(w.index, b, &sink);
	while (index_retire(w.index, &sink, NULL))
		;
	expect_loss(INDEX_LOST_RECORD, b, INDEX_NONE, 32, 102);
	drop(c, 1, 0);
	drop(c, 0, 0);
	index_record_abandon(w.index, c, &sink);
	world_group_end(&w, 1);
	while (index_retire(w.index, &sink, NULL))
		;
	expect_no_more();
	assert_int_equal(index_hidden(w.index), 0);
	end();
}

static void test_lost_joined(void **state)
{
	(void)state;
	begin(LAYOUT_ONE);
	uint32_t zero = put((struct record_of){.first = 2, .start = 32, .row = true});
	uint32_t row = value_of(zero, INDEX_PAGE_ROW, 0);
	uint32_t a = put((struct record_of){.first = 1, .pages = 2});

	expect_loss(INDEX_JOINED, a, zero, 32, 2);
	expect_loss(INDEX_LOST_RECORD, zero, INDEX_NONE, 32, 2);
	expect_no_more();
	assert_int_equal(value_of(a, INDEX_PAGE_ROW, 0), row);
	end();
}

static void test_lost_whole(void **state)
{
	(void)state;
	begin(LAYOUT_ONE);
	uint32_t a = put((struct record_of){.first = 1, .pages = 3});
	uint32_t b = put((struct record_of){.first = 11, .pages = 2, .parent = 3, .start = 48, .flags = RECORD_WHOLE, .ring = INDEX_NONE});
	uint32_t c = put((struct record_of){.first = 21, .pages = 1, .parent = 12, .start = 80, .row = true, .flags = RECORD_WHOLE,
		.ring = b});

	drop(a, 2, 0);
	expect_loss(INDEX_LOST_VALUE, a, INDEX_NONE, 48, 3);
	expect_no_more();
	assert_int_equal(index_evict_page(w.index, NULL, NULL, &sink), 0);
	assert_int_equal(w.losses_n, 3);
	bool swapped = w.losses[0].record == c; /* either first */

	if (!swapped)
		expect_loss(INDEX_LOST_RECORD, b, INDEX_NONE, 80, 12);
	expect_loss(INDEX_LOST_RECORD, c, INDEX_NONE, 96, 21);
	if (swapped)
		expect_loss(INDEX_LOST_RECORD, b, INDEX_NONE, 80, 12);
	expect_loss(INDEX_LOST_PAGES, a, INDEX_NONE, 32, 2);
	expect_no_more();
	end();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_move_states),
		cmocka_unit_test(test_move_found),
		cmocka_unit_test(test_rebuild_double),
		cmocka_unit_test(test_lost_evicted),
		cmocka_unit_test(test_lost_removed),
		cmocka_unit_test(test_lost_row_columns),
		cmocka_unit_test(test_lost_aborted),
		cmocka_unit_test(test_lost_reset),
		cmocka_unit_test(test_lost_joined),
		cmocka_unit_test(test_lost_whole),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	fprintf(stderr, "seed %llu\n", (unsigned long long)given_seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
