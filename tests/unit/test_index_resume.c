/* SPDX-License-Identifier: Apache-2.0
 *
 * From which records one can resume.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/index_world.h"

#define TOKENS 16u

static struct world w;
static uint64_t steps; /* that the walks took */

static void freed(void *context, uint32_t entry)
{
	(void)context;
	world_freed(&w, entry);
}

static const struct index_sink sink = {freed, NULL};

static void add(uint32_t record, uint32_t page, uint32_t number, uint32_t class_index, uint32_t share)
{
	struct key key = key_of(number);
	uint32_t entry = world_entry(&w);

	index_value_add(w.index, record, (uint16_t)page, &key, class_index, share, entry, 1);
	tables_group_publish(&w.tables, 0);
	index_settle(w.index, entry);
}

/* The values of a place, but for those of class @without. */
static void fill(uint32_t record, uint32_t page, uint32_t number, uint32_t without)
{
	for (uint32_t c = 0; c < w.layout->classes; c++)
		for (uint32_t s = 0; s < w.layout->class[c].shares && c != without; s++)
			if (layout_is_row(w.layout, c) == (page == INDEX_PAGE_ROW) &&
				(page == INDEX_PAGE_ROW ||
					layout_has_value(w.layout, c, index_consumed(w.index, record, (uint16_t)page))))
				add(record, page, number, c, s);
}

/* The next page of an open record, which ends at @consumed, with its values, but for those of class @without. */
static void add_page(uint32_t record, uint32_t number, uint64_t consumed, uint32_t without)
{
	struct key key = key_of(number);
	uint32_t page = INDEX_NONE;
	uint64_t hash;

	index_prefetch(w.index, &key, 1, &hash);
	for (uint32_t c = 0; c < w.layout->classes; c++)
		for (uint32_t s = 0; s < w.layout->class[c].shares && c != without; s++) {
			if (layout_is_row(w.layout, c) || !layout_has_value(w.layout, c, consumed))
				continue;
			if (page != INDEX_NONE) {
				add(record, page, number, c, s);
				continue;
			}
			uint32_t entry = world_entry(&w);

			page = index_page_add(w.index, record, &key, hash, c, s, entry, 1);
			tables_group_publish(&w.tables, 0);
			index_settle(w.index, entry);
		}
	assert_int_not_equal(page, INDEX_NONE);
}

/* Keys first..first+n-1 behind key @parent (0: a root), as one record; without the values of class @without at key @at. */
static uint32_t put(uint32_t first, uint32_t n, uint32_t parent, uint64_t start, uint32_t without, uint32_t at)
{
	struct key before = key_of(parent);
	struct index_run run = {
		.parent_key = parent ? &before : NULL,
		.consumed = start,
		.max_pages = n,
		.group = 1,
		.whole_ring = INDEX_NONE,
	};

	world_group(&w, 1);
	uint32_t record = index_record_new(w.index, &run);
	for (uint32_t i = 0; i < n; i++) {
		world_group(&w, 1);
		add_page(record, first + i, start + (i + 1ull) * w.layout->page_tokens, first + i == at ? without : INDEX_NONE);
	}
	assert_true(index_record_close(w.index, record));
	index_record_publish(w.index, record, &sink);
	return record;
}

/* A zero-page record whose row ends at @consumed. */
static uint32_t put_row(uint32_t number, uint32_t parent, uint64_t consumed)
{
	struct key key = key_of(number), before = key_of(parent);
	struct index_run run = {
		.parent_key = parent ? &before : NULL,
		.endpoint = &key,
		.consumed = consumed,
		.group = 1,
		.whole_ring = INDEX_NONE,
	};

	world_group(&w, 1);
	uint32_t record = index_record_new(w.index, &run);
	fill(record, INDEX_PAGE_ROW, number, INDEX_NONE);
	assert_true(index_record_close(w.index, record));
	index_record_publish(w.index, record, &sink);
	return record;
}

static int ask(uint32_t record, uint32_t batch)
{
	struct index_walk walk;
	int r = INDEX_E_MORE;

	index_walk_begin(&walk, record, batch);
	while (r == INDEX_E_MORE) {
		uint32_t budget = INDEX_STEP_KEYS;

		r = index_record_restorable(w.index, &walk, &budget);
		steps += INDEX_STEP_KEYS - budget;
	}
	return r;
}

static void drop(uint32_t record, uint32_t page, uint32_t column)
{
	index_value_drop(w.index, index_value(w.index, record, (uint16_t)page, column, NULL), false, &sink);
}

static void end(void)
{
	index_check(w.index);
	world_deinit(&w);
}

static void test_pages(void **state)
{
	world_init(&w, LAYOUT_PLAIN, 200, 8, 600, 64, MAP_PRIVATE);
	uint32_t a = put(1, 3, 0, 0, INDEX_NONE, 0);
	uint32_t b = put(4, 2, 3, 3 * TOKENS, INDEX_NONE, 0);
	uint32_t inner = put(10, 1, 2, 2 * TOKENS, INDEX_NONE, 0); /* hangs off a's second page */
	uint32_t orphan = put(20, 2, 19, 5 * TOKENS, INDEX_NONE, 0);

	assert_int_equal(ask(a, 1), 1);
	assert_int_equal(ask(b, 1), 1);
	assert_int_equal(ask(inner, 1), 1);
	assert_int_equal(ask(orphan, 1), 0);
	drop(a, 2, 0); /* a's last page: what hangs off the one before stays */
	assert_int_equal(ask(a, 1), 0);
	assert_int_equal(ask(b, 1), 0);
	assert_int_equal(ask(inner, 1), 1);
	drop(a, 0, 0);
	assert_int_equal(ask(inner, 1), 0);
	world_group(&w, 1);
	add(a, 0, 1, 0, 0); /* it comes back: at once for a look-up, for a listing in its next batch */
	assert_int_equal(ask(inner, 0), 1);
	assert_int_equal(ask(inner, 2), 1);
	put(19, 1, 3, 3 * TOKENS, INDEX_NONE, 0); /* ends at 4 pages, not where the orphan starts */
	assert_int_equal(ask(orphan, 3), 0);
	assert_int_equal(ask(9999, 3), 0);
	end();
}

static void test_orphan_is_adopted(void **state)
{
	world_init(&w, LAYOUT_PLAIN, 200, 8, 600, 64, MAP_PRIVATE);
	uint32_t b = put(4, 2, 3, 3 * TOKENS, INDEX_NONE, 0);

	assert_int_equal(ask(b, 1), 0);
	put(1, 3, 0, 0, INDEX_NONE, 0);
	assert_int_equal(ask(b, 2), 1);
	end();
}

static void test_classes(void **state)
{
	world_init(&w, LAYOUT_MANY, 200, 8, 600, 64, MAP_PRIVATE); /* kv, win every 2 pages, two states */
	uint32_t odd = put(1, 3, 0, 0, INDEX_NONE, 0);
	uint32_t even = put(11, 4, 0, 0, INDEX_NONE, 0);
	uint32_t hole = put(21, 4, 0, 0, 1, 22); /* the window's value at its second page was never put */

	assert_int_equal(ask(even, 1), 0); /* no row yet */
	world_group(&w, 1);
	fill(odd, INDEX_PAGE_ROW, 3, INDEX_NONE);
	fill(even, INDEX_PAGE_ROW, 14, 3);
	fill(hole, INDEX_PAGE_ROW, 24, INDEX_NONE);
	assert_int_equal(ask(odd, 2), 0);  /* no value of the window ends there */
	assert_int_equal(ask(even, 2), 0); /* half a row */
	assert_int_equal(ask(hole, 2), 0);
	world_group(&w, 1);
	add(even, INDEX_PAGE_ROW, 14, 3, 0);
	assert_int_equal(ask(even, 2), 1);
	end();
}

static void test_rows_without_pages(void **state)
{
	world_init(&w, LAYOUT_ROWS, 200, 8, 600, 64, MAP_PRIVATE);
	put(1, 4, 0, 0, INDEX_NONE, 0);
	uint32_t inside = put_row(2, 1, 2 * TOKENS);          /* at the end of a page in the middle of the record */
	uint32_t partial = put_row(50, 4, 4 * TOKENS + 5);    /* inside a page that is not full */
	uint32_t further = put_row(51, 50, 4 * TOKENS + 9);   /* behind it in the same page */
	uint32_t beyond = put_row(52, 51, 5 * TOKENS);        /* the page that ends there is nowhere */
	uint32_t first = put_row(60, 0, 7);                   /* in the first page of a chain */
	uint32_t lost = put_row(61, 0, TOKENS);

	assert_int_equal(ask(inside, 1), 1);
	assert_int_equal(ask(partial, 1), 1);
	assert_int_equal(ask(further, 1), 1);
	assert_int_equal(ask(beyond, 1), 0);
	assert_int_equal(ask(first, 1), 1);
	assert_int_equal(ask(lost, 1), 0);
	end();
}

/* A chain of one-page records costs its length, listed in any order; a broken one too. */
static void test_cost(void **state)
{
	enum { N = 5000 };

	world_init(&w, LAYOUT_PLAIN, N + 8, 8, N + 8, 8, MAP_PRIVATE);
	uint32_t record[N];

	for (uint32_t i = 0; i < N; i++)
		record[i] = put(1 + i, 1, i, (uint64_t)i * TOKENS, INDEX_NONE, 0);
	for (int order = 0; order < 2; order++) {
		steps = 0;
		for (uint32_t i = 0; i < N; i++)
			assert_int_equal(ask(record[order ? N - 1 - i : i], 0), 1);
		assert_true(steps < 6 * N);
	}
	drop(record[0], 0, 0);
	for (int order = 0; order < 2; order++) {
		steps = 0;
		for (uint32_t i = 0; i < N; i++)
			assert_int_equal(ask(record[order ? i : N - 1 - i], (uint32_t)order), 0);
		assert_true(steps < 6 * N);
	}
	/* Beside commits elsewhere, which might have mended it, in one batch. */
	steps = 0;
	for (uint32_t i = 0; i < N; i++) {
		w.index->mends++;
		assert_int_equal(ask(record[N - 1 - i], 7), 0);
	}
	assert_true(steps < 6 * N);
	w.index->mends++;
	assert_int_equal(ask(record[N - 1], 8), 0);
	end();
}

/* Between two stays under the lock others come: another walk, a change below, a change above. */
static void test_between_stays(void **state)
{
	enum { N = 1000 };
	struct index_walk walk, other;
	uint32_t record[N], budget = INDEX_STEP_KEYS;

	world_init(&w, LAYOUT_PLAIN, N + 8, 8, N + 8, 8, MAP_PRIVATE);
	for (uint32_t i = 0; i < N; i++)
		record[i] = put(1 + i, 1, i, (uint64_t)i * TOKENS, INDEX_NONE, 0);
	index_walk_begin(&walk, record[N - 1], 1);
	assert_int_equal(index_record_restorable(w.index, &walk, &budget), INDEX_E_MORE);
	assert_int_equal(ask(record[N - 1], 1), 1); /* another one, meanwhile */
	index_walk_begin(&other, record[N / 2], 1);
	budget = 1;
	assert_int_equal(index_record_restorable(w.index, &other, &budget), INDEX_E_MORE);
	index_walk_end(w.index, &other);
	drop(record[N - 1], 0, 0); /* its end has gone */
	budget = INDEX_STEP_KEYS;
	assert_int_equal(index_record_restorable(w.index, &walk, &budget), 0);

	index_walk_begin(&walk, record[N - 2], 2);
	budget = INDEX_STEP_KEYS;
	assert_int_equal(index_record_restorable(w.index, &walk, &budget), INDEX_E_MORE);
	drop(record[N - 10], 0, 0); /* behind the walk, which has seen it whole */
	int r = INDEX_E_MORE;
	while (r == INDEX_E_MORE) {
		budget = INDEX_STEP_KEYS;
		r = index_record_restorable(w.index, &walk, &budget);
	}
	assert_int_equal(r, 0);
	assert_int_equal(ask(record[N - 11], 2), 1);
	index_walk_begin(&walk, record[N - 11], 2);
	budget = 0;
	assert_int_equal(index_record_restorable(w.index, &walk, &budget), INDEX_E_MORE);
	index_walk_end(w.index, &walk); /* given up: the memo is free again */
	assert_int_equal(ask(record[N - 11], 2), 1);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_orphan_is_adopted),
		cmocka_unit_test(test_classes),
		cmocka_unit_test(test_rows_without_pages),
		cmocka_unit_test(test_cost),
		cmocka_unit_test(test_between_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
