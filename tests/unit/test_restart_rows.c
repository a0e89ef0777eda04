/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue's rows through a thread of their own: what catalogue_load gives, in its order, whoever is faster.
 */
#include "store/base/lock.h"
#include "store/restart_private.h"
#include "tests/unit/catalogue_world.h"

#define ROWS 20000u /* several batches */

struct seen {
	struct world_loaded loaded;
	uint64_t expect_ahead[ROWS_AHEAD]; /* ids that were shown ahead, by place; 0 = none */
	uint64_t shown;
	bool wrong;
};

static bool take(void *context, const struct catalogue_row *row, const struct catalogue_row *ahead)
{
	struct seen *s = context;
	uint64_t *place = &s->expect_ahead[s->loaded.rows % ROWS_AHEAD];

	s->wrong |= *place && *place != row->id;
	*place = ahead ? ahead->id : 0;
	s->shown += ahead != NULL;
	return world_take(&s->loaded, row);
}

static void fill(struct world *w, unsigned rows)
{
	world_open(w);
	assert_int_equal(world_load(w), 0);
	for (unsigned i = 1; i <= rows; i++) {
		assert_true(world_add(w, catalogue_next_id(w->catalogue)));
		if (i % 4096 == 0)
			world_flush(w);
	}
	world_close(w);
	world_open(w);
}

static int each(struct world *w, struct seen *s)
{
	struct rows *rows = NULL;
	int r = rows_begin(w->catalogue, &rows, &w->why);

	if (r)
		fail_msg("%s", w->why.text);
	r = rows_each(rows, take, s, &w->why);
	rows_end(&rows);
	assert_null(rows);
	return r;
}

static void test_all_rows_in_order(void **state)
{
	struct world *w = *state;
	struct seen s = {0};

	fill(w, ROWS);
	assert_int_equal(each(w, &s), 0);
	assert_false(s.loaded.wrong);
	assert_false(s.wrong);
	assert_int_equal(s.loaded.rows, ROWS);
	assert_int_equal(s.loaded.newest, ROWS);
	assert_int_equal(s.loaded.oldest, 1);
	assert_true(s.shown > ROWS / 2); /* not over the end of a batch */
	/* Changes may be queued from here on. */
	assert_true(world_add(w, catalogue_next_id(w->catalogue)));
	world_flush(w);
	assert_int_equal(world_report(w).rows, ROWS + 1);
}

static void test_no_rows(void **state)
{
	struct world *w = *state;
	struct seen s = {0};

	fill(w, 0);
	assert_int_equal(each(w, &s), 0);
	assert_int_equal(s.loaded.rows, 0);
}

static void test_who_stops_gets_no_more(void **state)
{
	struct world *w = *state;
	struct seen s = {.loaded.stop_after = 777};

	fill(w, ROWS);
	assert_int_equal(each(w, &s), 0);
	assert_int_equal(s.loaded.rows, 777);
	assert_false(s.loaded.wrong);
}

static void test_ended_before_a_row_was_asked_for(void **state)
{
	struct world *w = *state;
	struct rows *rows = NULL;

	fill(w, ROWS);
	assert_int_equal(rows_begin(w->catalogue, &rows, &w->why), 0);
	rows_end(&rows);
	assert_true(world_add(w, catalogue_next_id(w->catalogue)));
	world_flush(w);
	assert_int_equal(world_report(w).dropped, 0);
}

enum {
	PAGES = 60000,
	LARGE = 100
};

static uint64_t oldest;

static bool compare(void *context, const struct catalogue_row *row, const struct catalogue_row *ahead)
{
	(void)ahead;
	assert_int_equal(row->id, oldest - 1);
	assert_int_equal(row->pages, PAGES);
	assert_memory_equal(row->keys, context, PAGES * sizeof(struct key));
	oldest = row->id;
	return true;
}

/* More than may wait, in rows larger than a batch. */
static void test_large_rows(void **state)
{
	struct world *w = *state;
	struct key *keys = malloc(PAGES * sizeof(*keys));
	struct world_row want;
	struct rows *rows = NULL;

	assert_true((uint64_t)PAGES * sizeof(*keys) * LARGE > 2 * ROWS_AHEAD_BYTES);
	for (unsigned i = 0; i < PAGES; i++)
		world_key(&keys[i], 1, i);
	world_open(w);
	for (uint64_t i = 1; i <= LARGE; i++) {
		world_make_row(&want, i);
		want.row.keys = keys;
		want.row.pages = want.row.file_pages = PAGES;
		assert_true(catalogue_add(w->catalogue, &want.row));
		if (i % 16 == 0)
			world_flush(w);
	}
	world_close(w);
	world_open(w);
	oldest = LARGE + 1;

	assert_int_equal(rows_begin(w->catalogue, &rows, &w->why), 0);
	assert_int_equal(rows_each(rows, compare, keys, &w->why), 0);
	rows_end(&rows);
	assert_int_equal(oldest, 1);
	free(keys);
}

static void test_a_damaged_catalogue_is_told(void **state)
{
	struct world *w = *state;
	struct seen s = {0};
	FILE *f;

	fill(w, ROWS);
	world_close(w);
	f = fopen(w->path, "r+b");
	assert_non_null(f);
	for (long at = 100 * 8192; at < 140 * 8192; at += 512) {
		assert_int_equal(fseek(f, at, SEEK_SET), 0);
		assert_int_equal(fwrite("garbage garbage", 1, 15, f), 15);
	}
	fclose(f);
	world_open(w);
	assert_int_equal(each(w, &s), -EBADMSG);
	assert_true(s.loaded.rows < ROWS);
	assert_non_null(strstr(w->why.text, w->path));
	assert_true(world_has(w, ".damaged"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_all_rows_in_order, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_no_rows, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_who_stops_gets_no_more, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_ended_before_a_row_was_asked_for, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_large_rows, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_a_damaged_catalogue_is_told, world_setup, world_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
