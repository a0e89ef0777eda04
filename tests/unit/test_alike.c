/* SPDX-License-Identifier: Apache-2.0
 *
 * Shares that nobody declared to be one and that have the same bytes: one copy in the file, one in memory, and every rank reads its own
 * values right whatever becomes of the file. And WHOLE groups, which leave memory as a whole.
 */
#include "store/load_private.h"
#include "tests/unit/tier_world.h"

#define KV_ROW WORLD_KV ",{\"name\":\"gdn\",\"kind\":\"state\",\"planes\":[{\"name\":\"s\",\"bytes\":10000}]}"
#define MEMORY (64ull << 20)
#define PAGES 8u

static struct tier_world world;
static struct tier_world *const w = &world;
static struct session *rank[2];
static uint64_t handles, offsets[200];

static void sessions_begin(void)
{
	rank[0] = fixture_session(&w->f, 0);
	rank[1] = fixture_session(&w->f, 1);
}

static void sessions_end(void)
{
	world_at_base(w, 2);
	for (int i = 0; i < 2; i++) {
		session_release(rank[i]);
		session_unref(&rank[i]);
	}
}

static void begin(void)
{
	world_folder(w);
	world_start(w, KV_ROW, 2, MEMORY);
	sessions_begin();
}

static void end(void)
{
	sessions_end();
	world_close(w);
}

/* The daemon's end and start. */
static void again(bool catalogue)
{
	char command[160];

	sessions_end();
	fixture_close(&w->f);
	snprintf(command, sizeof(command), "rm -f %s/*/catalogue.sqlite*", w->path);
	if (!catalogue)
		assert_int_equal(system(command), 0);
	world_start(w, KV_ROW, 2, MEMORY);
	sessions_begin();
}

/* What @r puts has the bytes of @chain + r * @apart. */
static void put(uint32_t r, uint64_t chain, uint64_t apart)
{
	static struct put_result result;
	uint64_t plan = ++w->next_plan;

	assert_int_equal(put_chain(rank[r], plan, chain, 0, PAGES, 3, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	for (uint32_t i = 0; i < PAGES; i++)
		world_write(w, result.answers[i], WORLD_VALUE, chain + r * apart, i);
	world_write(w, result.answers[PAGES], 10000, chain + r * apart, WORLD_ROW);
	commit_all(rank[r], plan, 1);
}

static void write_all(void)
{
	struct why why = WHY_INIT;
	uint64_t left;

	if (host_drain(w->f.host, w->f.space, HOST_DRAIN_FULL, clock_now_ns() + WORLD_NS, NULL, NULL, &left, &why))
		fail_msg("drain: %s", why.text);
}

static uint64_t get(uint32_t r, uint64_t chain, uint64_t bytes_of)
{
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;
	uint64_t handle = ++handles, plan = ++w->next_plan;

	world_get(rank[r], handle, chain, PAGES, &start);
	assert_int_equal(start.transferable_len, PAGES * FIXTURE_PAGE);
	transfer_of(&call, rank[r], handle, plan, PAGES, 0, PAGES, offsets, 200);
	if (transfer_all(&call, &why))
		fail_msg("transfer: %s", why.text);
	assert_int_equal(call.delivered_len, PAGES * FIXTURE_PAGE);
	for (uint32_t i = 0; i < PAGES; i++)
		world_check(w, offsets[i], WORLD_VALUE, bytes_of, i);
	world_check(w, offsets[PAGES], 10000, bytes_of, WORLD_ROW);
	return plan;
}

static void get_and_release(uint32_t r, uint64_t chain, uint64_t bytes_of)
{
	struct why why = WHY_INIT;
	uint64_t plan = get(r, chain, bytes_of);

	assert_int_equal(get_release(rank[r], plan, &why), 0);
}

static struct stats stats(void)
{
	return fixture_report(&w->f).stats;
}

static uint32_t places(void)
{
	uint32_t n;

	lock_take(&w->f.space->lock);
	n = w->f.space->tiering->places_used;
	lock_drop(&w->f.space->lock);
	return n;
}

static uint32_t record_of(uint64_t chain)
{
	struct key key = fixture_key(chain, PAGES - 1);
	uint32_t record;

	lock_take(&w->f.space->lock);
	record = index_find_endpoint(w->f.space->index, &key);
	lock_drop(&w->f.space->lock);
	assert_int_not_equal(record, INDEX_NONE);
	return record;
}

/* ---- P6 -------------------------------------------------------------------------------------------------------------------- */

static void test_collapse(void **state)
{
	unsigned opens;

	(void)state;
	begin();
	put(0, 1, 0);
	put(1, 1, 0);
	write_all();
	assert_int_equal(stats().values_collapsed, PAGES + 1);
	assert_int_equal(stats().bytes_saved, PAGES * WORLD_VALUE + 12288);
	assert_int_equal(places(), PAGES + 1);
	opens = atomic_load(&w->gate->opens);
	get_and_release(1, 1, 1);
	get_and_release(0, 1, 1);
	assert_int_equal(stats().values_copied, PAGES + 1);
	assert_int_equal(stats().values_promoted, 0);
	assert_int_equal(atomic_load(&w->gate->opens), opens); /* nothing was read */
	world_to_disk(w);
	assert_int_equal(places(), 2 * (PAGES + 1));
	get_and_release(1, 1, 1);
	get_and_release(0, 1, 1);
	end();
}

/* A value that somebody holds stays until nobody does. */
static void test_held(void **state)
{
	struct why why = WHY_INIT;
	uint64_t plan;

	(void)state;
	begin();
	put(0, 1, 0);
	put(1, 1, 0);
	plan = get(1, 1, 1);
	write_all();
	assert_int_equal(stats().values_collapsed, 0);
	for (uint32_t i = 0; i < PAGES; i++)
		world_check(w, offsets[i], WORLD_VALUE, 1, i);
	assert_int_equal(get_release(rank[1], plan, &why), 0);
	assert_int_equal(stats().values_collapsed, PAGES + 1);
	get_and_release(1, 1, 1);
	end();
}

/* Other bytes are stored, those of pages apart from those of the row. */
static void test_other(void **state)
{
	(void)state;
	begin();
	put(0, 1, 100);
	put(1, 1, 100);
	write_all();
	assert_int_equal(stats().values_collapsed, 0);
	assert_int_equal(stats().bytes_saved, 0);
	world_to_disk(w);
	get_and_release(0, 1, 1);
	get_and_release(1, 1, 101);
	end();
}

/* With the file nothing is lost that another share's slot has; it is written anew, as it was. */
static void test_lost_file(void **state)
{
	struct tiering *t;
	uint32_t record;
	uint64_t id;

	(void)state;
	begin();
	put(0, 1, 0);
	put(1, 1, 0);
	write_all();
	t = w->f.space->tiering;
	record = record_of(1);
	lock_take(&w->f.space->lock);
	id = tiering_file(t, record)->id;
	lock_drop(&w->f.space->lock);
	load_lose_file(t, record, id);
	assert_int_equal(stats().loads_failed, 0);
	assert_int_equal(places(), PAGES + 1);
	lock_take(&w->f.space->lock);
	assert_int_equal(t->clean_bytes, 0);
	lock_drop(&w->f.space->lock);
	get_and_release(1, 1, 1);
	assert_int_equal(places(), 0);
	write_all();
	assert_int_equal(places(), PAGES + 1); /* once more */
	load_lose_file(t, record, tiering_file(t, record)->id);
	write_all(); /* written from the other share's slots */
	world_to_disk(w);
	get_and_release(1, 1, 1);
	get_and_release(0, 1, 1);
	assert_int_equal(stats().loads_failed, 0);
	end();
}

static void test_restart(void **state)
{
	(void)state;
	for (int catalogue = 0; catalogue < 2; catalogue++) {
		begin();
		put(0, 1, 0);
		put(1, 1, 0);
		put(0, 2, 100);
		put(1, 2, 100);
		write_all();
		again(catalogue);
		assert_int_equal(places(), 4 * (PAGES + 1));
		get_and_release(1, 1, 1);
		get_and_release(0, 1, 1);
		get_and_release(0, 2, 2);
		get_and_release(1, 2, 102);
		assert_int_equal(stats().loads_failed, 0);
		again(catalogue);
		get_and_release(0, 1, 1);
		get_and_release(1, 1, 1); /* copied, not read */
		assert_true(stats().values_copied >= PAGES + 1);
		end();
	}
}

static void write_anew(void)
{
	uint32_t record = record_of(1);
	struct tiering *t = w->f.space->tiering;
	uint64_t written = stats().files_written, deadline_ns = clock_now_ns() + WORLD_NS;

	lock_take(&w->f.space->lock);
	tiering_file(t, record)->flags |= TIERING_STALE;
	tiering_consider(t, record);
	t->draining++;
	lock_drop(&w->f.space->lock);
	mover_ask(w->f.host);
	while (stats().files_written == written || atomic_load(&t->jobs)) {
		assert_true(clock_now_ns() < deadline_ns);
		sched_yield();
	}
	lock_take(&w->f.space->lock);
	t->draining--;
	lock_drop(&w->f.space->lock);
}

/* A file that is written anew from the old one, from memory, from both has aliases as that had. */
static void test_rewritten(void **state)
{
	const uint64_t saved = PAGES * WORLD_VALUE + 12288;
	struct why why = WHY_INIT;
	uint64_t plan;

	(void)state;
	begin();
	put(0, 1, 0);
	put(1, 1, 0);
	world_to_disk(w);
	write_anew();
	assert_int_equal(stats().bytes_saved, 2 * saved);
	get_and_release(0, 1, 1);
	write_anew();
	assert_int_equal(stats().bytes_saved, 3 * saved);
	world_to_disk(w);
	get_and_release(1, 1, 1); /* the alias alone is in memory */
	write_anew();
	assert_int_equal(stats().bytes_saved, 4 * saved);
	again(true);
	write_anew();
	assert_int_equal(stats().bytes_saved, saved);
	plan = get(1, 1, 1);
	get_and_release(0, 1, 1);
	assert_int_equal(get_release(rank[1], plan, &why), 0);
	assert_int_equal(stats().loads_failed, 0);
	assert_int_equal(stats().write_errors, 0);
	end();
}

/* A file of aliases that loses its row and pages has the length that these leave. */
static void test_trim(void **state)
{
	struct tiering *t;
	struct index_sink sink;
	uint32_t record;

	(void)state;
	begin();
	put(0, 1, 0);
	put(1, 1, 0);
	write_all();
	t = w->f.space->tiering;
	record = record_of(1);
	sink = space_sink(w->f.space);
	lock_take(&w->f.space->lock);
	for (int i = 0; i < 2; i++) /* the row goes, or it and the last page; then a page */
		assert_int_equal(index_evict_page(w->f.space->index, NULL, NULL, &sink), 0);
	uint32_t pages = index_record(w->f.space->index, record)->pages;
	while (tiering_flush(t))
		;
	uint64_t bytes = tiering_file(t, record)->bytes;
	struct record_file_plan plan;

	record_file_plan(w->f.space->layout, PAGES, false, tiering_file_alias(t, tiering_file(t, record)), &plan);
	lock_drop(&w->f.space->lock);
	assert_true(pages < PAGES);
	assert_int_equal(plan.page_stride, WORLD_VALUE);
	assert_int_equal(bytes, record_file_length(&plan, pages));
	while (atomic_load(&t->jobs))
		sched_yield();
	lock_take(&w->f.space->lock);
	assert_int_equal(tiering_file(t, record)->bytes, bytes); /* and so it is */
	lock_drop(&w->f.space->lock);
	end();
}

/* ---- WHOLE ----------------------------------------------------------------------------------------------------------------- */

static void test_whole(void **state)
{
	static struct put_result result;
	const struct slots_filter any = { NULL };
	struct key keys[12];
	struct put_group group = { .consumed = 12 * FIXTURE_PAGE, .keys = 12, .class_mask = 1, .flags = PUT_ROOT | PUT_WHOLE };
	struct session *s;
	struct tiering *t;
	uint32_t free, held, record;

	(void)state;
	world_open(w, WORLD_KV, MEMORY);
	s = fixture_session(&w->f, 0);
	t = w->f.space->tiering;
	/* The keys in the middle are there already: the others are two records of a group. */
	for (uint32_t i = 0; i < 12; i++)
		keys[i] = fixture_key(1, i);
	world_put(w, s, ++w->next_plan, 1, 4, 4, false);
	assert_int_equal(put_run(s, ++w->next_plan, &group, 1, keys, 12, 1, &result), 0);
	assert_int_equal(result.groups_ok, 1);
	for (uint32_t i = 0; i < 12; i++)
		if (result.answers[i] < PUT_ANSWER_DUPLICATE)
			world_write(w, result.answers[i], WORLD_VALUE, 1, i);
	commit_all(s, w->next_plan, 1);
	write_all();
	lock_take(&w->f.space->lock);
	record = index_find_endpoint(w->f.space->index, &keys[11]);
	assert_true(ring_is(t, record));
	assert_int_equal(index_record(w->f.space->index, record)->pages, 4);
	assert_int_not_equal(w->f.space->tables.records[record].whole_next, record);
	held = index_value(w->f.space->index, record, 0, 0, NULL);
	tiering_hold(t, held);
	free = slots_free_count(w->f.space->slots, 0, 0, any);
	/* What is not of the group goes, nothing of it does. */
	assert_int_equal(demote_make_room(t, 0, 0, free + 64, any), free + 4);
	assert_false(demote_value(t, index_value(w->f.space->index, record, 1, 0, NULL)));
	tiering_unhold(t, held);
	assert_int_equal(demote_make_room(t, 0, 0, free + 5, any), free + 12);
	assert_int_equal(t->places_used, 12);
	/* One that cannot be read takes all along. */
	load_lose(t, index_value(w->f.space->index, record, 3, 0, NULL));
	assert_int_equal(t->places_used, 4);
	assert_int_equal(index_find_endpoint(w->f.space->index, &keys[11]), INDEX_NONE);
	lock_drop(&w->f.space->lock);
	world_at_base(w, 1);
	session_release(s);
	session_unref(&s);
	world_close(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_collapse),
		cmocka_unit_test(test_held),
		cmocka_unit_test(test_other),
		cmocka_unit_test(test_lost_file),
		cmocka_unit_test(test_restart),
		cmocka_unit_test(test_rewritten),
		cmocka_unit_test(test_trim),
		cmocka_unit_test(test_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
