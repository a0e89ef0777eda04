/* SPDX-License-Identifier: Apache-2.0
 *
 * Old values of windows: which go, in what order, and what one can resume from afterwards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/index_world.h"

#define CLASS_KV1 "{\"name\":\"kv\",\"kind\":\"dense\",\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"k\",\"bytes\":64}]}"
#define CLASS_SWA "{\"name\":\"swa\",\"kind\":\"window\",\"sink\":4,\"last\":2,\"planes\":[{\"name\":\"k\",\"bytes\":64}]}"
#define LAYOUT_SWA LAYOUT_HEAD CLASS_KV1 "," CLASS_SWA "]}"
#define SWA 1u
#define TOKENS 16u

static struct world w;
static bool gone[400]; /* of keys: their window's value, as it was freed */
static uint32_t gone_n;

static void freed(void *context, uint32_t entry)
{
	const struct entry *e = &w.tables.entries[entry];

	(void)context;
	for (uint32_t n = 0; n < 400; n++) {
		struct key key = key_of(n);

		if (e->class_index == SWA && key_equal(&key, &e->key)) {
			gone_n += !gone[n];
			gone[n] = true;
		}
	}
	world_freed(&w, entry);
}

static const struct index_sink sink = {freed, NULL};

static void settle(uint32_t entry)
{
	tables_group_publish(&w.tables, 0);
	index_settle(w.index, entry);
}

static void add(uint32_t record, uint16_t page, uint32_t number, uint32_t c, uint32_t s)
{
	struct key key = key_of(number);
	uint32_t entry = world_entry(&w);

	world_group(&w, 1);
	index_value_add(w.index, record, page, &key, c, s, entry, 1);
	settle(entry);
}

/* Keys first..first+n-1 behind key @parent (0: a root) as one record. */
static uint32_t put(uint32_t first, uint32_t n, uint32_t parent, uint32_t pages_before)
{
	struct key before = key_of(parent);
	struct index_run run = {
		.parent_key = parent ? &before : NULL,
		.consumed = (uint64_t)pages_before * TOKENS,
		.max_pages = n,
		.group = 1,
		.whole_ring = INDEX_NONE,
	};

	world_group(&w, 1);
	uint32_t record = index_record_new(w.index, &run);

	for (uint32_t i = 0; i < n; i++) {
		struct key key = key_of(first + i);
		uint32_t entry = world_entry(&w);
		uint64_t hash;
		uint16_t page;

		world_group(&w, 1);
		index_prefetch(w.index, &key, 1, &hash);
		page = index_page_add(w.index, record, &key, hash, 0, 0, entry, 1);
		settle(entry);
		add(record, page, first + i, SWA, 0);
		add(record, page, first + i, SWA, 1);
	}
	assert_true(index_record_close(w.index, record));
	index_record_publish(w.index, record, &sink);
	return record;
}

static int evict_old(void)
{
	int r = INDEX_E_MORE;

	while (r == INDEX_E_MORE)
		r = index_evict_old(w.index, SWA, NULL, NULL, &sink);
	index_check(w.index);
	return r;
}

static uint32_t evict_all(void)
{
	uint32_t n = 0;

	while (evict_old() == 0)
		n++;
	return n;
}

static int resumable(uint32_t record)
{
	struct index_walk walk;
	int r = INDEX_E_MORE;

	index_walk_begin(&walk, record, 0);
	while (r == INDEX_E_MORE) {
		uint32_t budget = 3; /* few, so that it stops everywhere */

		r = index_record_restorable(w.index, &walk, &budget);
	}
	return r;
}

static int begin(void **state)
{
	(void)state;
	world_init(&w, LAYOUT_SWA, 400, 8, 1200, 64, MAP_PRIVATE);
	memset(gone, 0, sizeof(gone));
	gone_n = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	index_check(w.index);
	world_deinit(&w);
	return 0;
}

/* The example of docs/ranks-and-classes.md: 100 pages, window(4, 2), a child at page 40. */
static void test_example(void **state)
{
	uint32_t record = put(1, 100, 0, 0);
	uint32_t child = put(201, 2, 40, 40);

	(void)state;
	assert_int_equal(resumable(record), 1);
	assert_int_equal(resumable(child), 1);
	assert_int_equal(evict_old(), 0); /* all shares of one, from the beginning */
	assert_int_equal(gone_n, 1);
	assert_true(gone[5]);
	assert_int_equal(evict_all(), 91);
	for (uint32_t n = 1; n <= 100; n++)
		assert_int_equal(gone[n], !(n <= 4 || (n >= 39 && n <= 40) || n >= 99));
	assert_int_equal(index_counters(w.index)->victims_freed, 92 * 2);
	assert_int_equal(index_counters(w.index)->pages, 102); /* dense values are there */
	assert_int_equal(resumable(record), 1);
	assert_int_equal(resumable(child), 1);
	/* What the child kept is old when it has gone. */
	assert_int_equal(index_evict_record(w.index, child, &sink, NULL), 0);
	assert_int_equal(evict_all(), 2);
	assert_true(gone[39] && gone[40]);
	assert_int_equal(resumable(record), 1);
	/* One that comes again is old again. */
	add(record, 49, 50, SWA, 0);
	add(record, 49, 50, SWA, 1);
	gone[50] = false;
	assert_int_equal(evict_all(), 1);
	assert_true(gone[50]);
	/* Without the sink's first value nothing behind can be resumed from. */
	index_value_drop(w.index, index_value(w.index, record, 0, 1, NULL), false, &sink);
	assert_int_equal(resumable(record), 0);
}

/* A window that reaches back over several records. */
static void test_windows_across_records(void **state)
{
	uint32_t record[4], page = 1;

	(void)state;
	for (uint32_t i = 0; i < 4; i++, page += 3)
		record[i] = put(page, i == 3 ? 1 : 3, page - 1, page - 1);
	assert_int_equal(evict_all(), 1);
	assert_true(gone[7]); /* each record keeps two for its child; 1 to 4 are the sink's */
	assert_int_equal(resumable(record[3]), 1);
	index_value_drop(w.index, index_value(w.index, record[2], 2, 1, NULL), false, &sink); /* key 9, in the window of key 10 */
	assert_int_equal(resumable(record[3]), 0);
	assert_int_equal(resumable(record[1]), 1);
	add(record[2], 2, 9, SWA, 0);
	assert_int_equal(resumable(record[3]), 1);
	assert_int_equal(resumable(record[2]), 1);
}

/* The coldest first; none of one that is pinned or held. */
static void test_order(void **state)
{
	uint32_t a = put(1, 20, 0, 0), b = put(101, 20, 0, 0), c = put(201, 20, 0, 0);

	(void)state;
	index_touch(w.index, a, 19, index_tick(w.index));
	index_touch(w.index, b, 19, index_tick(w.index));
	index_touch(w.index, c, 19, index_tick(w.index));
	index_pin(w.index, a);
	index_hold(w.index, b, true);
	assert_int_equal(evict_all(), 14);
	for (uint32_t n = 5; n <= 18; n++)
		assert_true(gone[200 + n]);
	index_hold(w.index, b, false);
	assert_int_equal(evict_old(), 0);
	assert_true(gone[105]);
	index_unpin(w.index, a, &sink);
	assert_int_equal(evict_old(), 0);
	assert_true(gone[5]);
	index_touch(w.index, a, 19, index_tick(w.index));
	assert_int_equal(evict_old(), 0);
	assert_true(gone[106] && !gone[6]);
	index_reset(w.index);
	assert_int_equal(evict_old(), INDEX_E_NOTHING);
}

static bool only_key_50(void *context, uint32_t entry)
{
	struct key key = key_of(50);

	(void)context;
	return key_equal(&w.tables.entries[entry].key, &key) && w.tables.entries[entry].share == 1;
}

/* What is refused stays, and is asked for again by others; a long record takes several calls. */
static void test_refused(void **state)
{
	uint32_t calls = 1;

	(void)state;
	put(1, 200, 0, 0);
	while (index_evict_old(w.index, SWA, only_key_50, NULL, &sink) == INDEX_E_MORE)
		calls++;
	assert_true(gone[50] && gone_n == 1);
	assert_int_equal(calls, 1);
	calls = 1;
	while (index_evict_old(w.index, SWA, only_key_50, NULL, &sink) == INDEX_E_MORE)
		calls++;
	assert_int_equal(gone_n, 1);
	assert_true(calls >= 4 && calls <= 8);
	assert_int_equal(evict_old(), 0);
	assert_true(gone[5]);
	assert_int_equal(evict_all(), 200 - 6 - 2);
}

static void test_many_children(void **state)
{
	uint32_t record = put(1, 80, 0, 0), child[65];

	(void)state;
	for (uint32_t i = 0; i < 65; i++)
		child[i] = put(100 + i, 1, 10, 10);
	assert_int_equal(evict_all(), 0);
	assert_int_equal(index_evict_record(w.index, child[0], &sink, NULL), 0);
	gone_n = 0;
	assert_int_equal(evict_all(), 80 - 4 - 2 - 2);
	assert_int_equal(resumable(record), 1);
	assert_int_equal(resumable(child[64]), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_example, begin, end),
		cmocka_unit_test_setup_teardown(test_windows_across_records, begin, end),
		cmocka_unit_test_setup_teardown(test_order, begin, end),
		cmocka_unit_test_setup_teardown(test_refused, begin, end),
		cmocka_unit_test_setup_teardown(test_many_children, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
