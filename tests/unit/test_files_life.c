/* SPDX-License-Identifier: Apache-2.0
 *
 * What a successor would read of record files in the tables, at each moment of their lives (index/files.h): after a write and not before it,
 * while a trim is under way and after it, when a value of a file goes, when the record goes, after a reset. And that no file gets a name
 * that a trim still owes.
 */
#include "tests/unit/tiering_world.h"

static struct world world;
static struct world *const w = &world;

static void begin(void)
{
	static const struct world_options o = {
		.classes = CLASS_KV "," CLASS_STATE, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 256 * MIB,
	};

	world_open(w, &o);
}

/* The row of the record whose last page is @page. Under the lock. */
static const struct file_row *row_of(uint64_t chain, uint32_t page)
{
	uint32_t record = world_record(w, chain, page);

	assert_int_not_equal(record, INDEX_NONE);
	return files_get(&w->f.space->tables, record);
}

static uint32_t clean_bits(void)
{
	uint32_t n = 0;

	for (uint32_t slot = 0; slot < w->t->place_first; slot++)
		n += tiering_is_clean(w->t, slot);
	return n;
}

static void remove_page(uint64_t chain, uint32_t page, uint32_t mask)
{
	struct index_sink sink = space_sink(w->f.space);
	struct key key = fixture_key(chain, page);
	uint32_t values;
	uint64_t hash;

	index_prefetch(w->f.space->index, &key, 1, &hash);
	assert_int_equal(index_remove(w->f.space->index, &key, hash, mask, &sink, &values), INDEX_REMOVED);
}

static void test_written(void **state)
{
	struct key endpoint = fixture_key(1, 7);
	const struct file_row *row;

	(void)state;
	begin();
	assert_true(world_put(w, 1, 0, 8, 0));
	world_lock(w);
	assert_null(row_of(1, 7));
	assert_int_equal(clean_bits(), 0);
	world_unlock(w);
	gate_set(true, 0);
	world_lock(w);
	w->t->draining = 1;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, gate_waiting());
	world_lock(w);
	assert_null(row_of(1, 7)); /* it is under way */
	w->t->draining = 0;
	world_unlock(w);
	gate_set(false, 0);
	world_await(w, row_of(1, 7) && !world_busy(w));
	world_lock(w);
	row = row_of(1, 7);
	assert_memory_equal(&row->endpoint, &endpoint, sizeof(endpoint));
	assert_int_equal(row->pages, 8);
	assert_int_equal(row->file_pages, 8);
	assert_int_equal(row->flags, 0);
	assert_int_equal(row->id, w->t->files[world_record(w, 1, 7)].id);
	assert_int_equal(clean_bits(), 8);
	world_unlock(w);
	assert_true(world_put_row(w, 1, 7)); /* it joins: the file lacks it */
	world_drain(w);
	world_lock(w);
	assert_int_equal(row_of(1, 7)->flags, FILES_ROW);
	assert_int_equal(clean_bits(), 9);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

static void test_trimmed(void **state)
{
	struct key before = fixture_key(2, 9), after = fixture_key(2, 8);
	const struct file_row *row;

	(void)state;
	begin();
	assert_true(world_put(w, 2, 0, 10, 0));
	world_drain(w);
	world_lock(w);
	remove_page(2, 9, 1);
	tiering_flush(w->t);
	row = row_of(2, 8);
	assert_memory_equal(&row->endpoint, &before, sizeof(before)); /* its job has not ended: that takes the lock */
	assert_int_equal(row->pages, 10);
	remove_page(2, 8, 1);
	remove_page(2, 7, 1);
	while (tiering_flush(w->t))
		;
	assert_int_equal(w->t->trimming_count, 1); /* one at a time */
	assert_true(w->t->files[world_record(w, 2, 6)].flags & TIERING_TRIM_LATER);
	assert_true(tiering_name_owed(w->t, 10 * FIXTURE_PAGE, &before));
	assert_true(tiering_name_owed(w->t, 9 * FIXTURE_PAGE, &after));
	assert_memory_equal(&row_of(2, 6)->endpoint, &before, sizeof(before));
	world_unlock(w);
	world_await(w, !w->t->trimming_count && row_of(2, 6)->pages == 7);
	world_lock(w);
	assert_false(tiering_name_owed(w->t, 10 * FIXTURE_PAGE, &before));
	assert_int_equal(row_of(2, 6)->file_pages, 10);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

static void test_too_much(void **state)
{
	uint64_t id;

	(void)state;
	begin();
	assert_true(world_put(w, 3, 0, 10, 0));
	world_drain(w);
	world_lock(w);
	id = row_of(3, 9)->id;
	remove_page(3, 4, 1); /* from its midst */
	assert_int_equal(row_of(3, 9)->flags, FILES_STALE);
	assert_int_equal(row_of(3, 9)->id, id);
	w->t->draining = 1;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, !row_of(3, 9)->flags && row_of(3, 9)->id > id);
	world_lock(w);
	w->t->draining = 0;
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

static void test_gone(void **state)
{
	struct index_sink sink = { 0 };
	struct reset reset = { 0 };
	struct why why = WHY_INIT;
	uint32_t record, other;

	(void)state;
	begin();
	sink = space_sink(w->f.space);
	assert_true(world_put(w, 4, 0, 6, 0));
	assert_true(world_put(w, 5, 0, 6, 0));
	world_drain(w);
	world_lock(w);
	record = world_record(w, 4, 5);
	assert_non_null(files_get(&w->f.space->tables, record));
	assert_int_equal(index_evict_record(w->f.space->index, record, &sink, NULL), 0);
	assert_null(files_get(&w->f.space->tables, record));
	assert_int_equal(clean_bits(), 6);
	world_unlock(w);
	assert_true(world_put(w, 4, 0, 6, 0)); /* its number again */
	world_lock(w);
	assert_int_equal(world_record(w, 4, 5), record);
	assert_null(row_of(4, 5));
	other = world_record(w, 5, 5);
	world_unlock(w);
	reset.session = w->s;
	assert_int_equal(reset_begin(&reset, &why), STEP_MORE);
	while (reset_step(&reset, &why) == STEP_MORE)
		;
	world_lock(w);
	assert_null(files_get(&w->f.space->tables, other));
	assert_int_equal(clean_bits(), 0);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* A group's files count as to be written anew until all of them are written. */
static void test_whole(void **state)
{
	(void)state;
	begin();
	assert_true(world_put(w, 6, 4, 4, 0));
	assert_true(world_put(w, 6, 0, 12, PUT_WHOLE)); /* two records, around those */
	world_drain(w);
	world_lock(w);
	assert_int_equal(row_of(6, 3)->flags, 0);
	assert_int_equal(row_of(6, 11)->flags, 0);
	assert_int_equal(clean_bits(), 12);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* A value that leaves memory has no bit where it was, and a bit where it comes back to. */
static void test_demoted(void **state)
{
	uint64_t values = 0;

	(void)state;
	begin();
	assert_true(world_put(w, 7, 0, 6, 0));
	world_drain(w);
	world_lock(w);
	assert_int_equal(clean_bits(), 6);
	demote_some(w->t, 2 * 4096, &values);
	assert_int_equal(clean_bits(), 6 - values);
	assert_non_null(row_of(7, 5));
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* What rows cost a record that is written. */
static void test_cost(void **state)
{
	enum { TIMES = 1000000 };
	uint64_t begun_ns, ns;
	uint32_t record;

	(void)state;
	begin();
	assert_true(world_put(w, 8, 0, 4, 0));
	world_drain(w);
	world_lock(w);
	record = world_record(w, 8, 3);
	begun_ns = clock_now_ns();
	for (uint32_t i = 0; i < TIMES; i++)
		tiering_row_set(w->t, record, false);
	ns = (clock_now_ns() - begun_ns) / TIMES;
	world_unlock(w);
	print_message("%llu ns a row\n", (unsigned long long)ns);
	assert_true(ns < 10000);
	world_check_idle(w);
	world_close(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_written),
		cmocka_unit_test(test_trimmed),
		cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_demoted),
		cmocka_unit_test(test_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
