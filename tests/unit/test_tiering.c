/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory over disk: what is written and when, what leaves memory, what leaves the disk, and what becomes of files when records
 * change under them.
 */
#include "store/victim.h"
#include "tests/unit/tiering_world.h"

static struct world world;
static struct world *const w = &world;

static const struct world_options plain = { .classes = CLASS_KV, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 256 * MIB };
static const struct world_options hybrid = {
	.classes = CLASS_KV "," CLASS_STATE, .memory = 24 * MIB, .floor = 24 * MIB, .disk = 256 * MIB,
};

static uint64_t free_slots(void)
{
	return fixture_report(&w->f).slots_free;
}

/* Nothing is copied before memory is short; then the coldest goes first, and only as much as is needed. */
static void test_floor(void **state)
{
	uint64_t floor;
	uint32_t chain = 0;

	(void)state;
	world_open(w, &plain);
	world_lock(w);
	floor = spill_floor(w->t);
	world_unlock(w);
	assert_true(floor >= 64 * 4096 && floor <= 8 * MIB);
	while (free_slots() * 4096 >= floor + 64 * 4096) {
		assert_true(world_put(w, chain++, 0, 64, 0));
		assert_int_equal(fixture_report(&w->f).stats.files_written, 0);
	}
	assert_true(world_put(w, chain++, 0, 64, 0));
	assert_true(world_put(w, chain++, 0, 64, 0));
	mover_ask(w->f.host);
	world_await(w, w->spilled_events > 0);
	world_check_idle(w);
	world_lock(w);
	assert_true(w->spilled_events < chain / 2);
	for (uint32_t i = 0; i < w->spilled_events; i++) { /* two workers end them in whatever order */
		struct key key = fixture_key(i, 63);
		bool found = false;

		for (uint32_t at = 0; at < w->spilled_events; at++)
			found |= !memcmp(&w->spilled[at], &key, sizeof(key));
		assert_true(found);
	}
	world_unlock(w);
	world_close(w);
}

/* Puts go on far beyond memory: nothing is lost, all is in memory or on disk. */
static void test_beyond_memory(void **state)
{
	const uint32_t chains = 200;

	(void)state;
	world_open(w, &plain);
	for (uint32_t chain = 0; chain < chains; chain++) {
		uint32_t before;

		for (;;) {
			world_lock(w);
			before = w->room_events;
			world_unlock(w);
			if (world_put(w, chain, 0, 64, 0))
				break;
			world_await(w, w->room_events > before || w->t->clean_bytes > w->t->held_clean_bytes + 64 * 4096);
		}
	}
	world_drain(w);
	world_check_idle(w);
	world_lock(w);
	for (uint32_t chain = 0; chain < chains; chain++) {
		uint32_t record = world_record(w, chain, 63);

		assert_int_not_equal(record, INDEX_NONE);
		assert_int_equal(index_record(w->f.space->index, record)->pages, 64);
	}
	assert_true(w->t->places_used > 0);
	assert_int_equal(w->t->disk_files, chains);
	assert_int_equal(w->t->dirty_bytes, 0);
	assert_int_equal(w->t->places_used + w->t->clean_bytes / 4096, chains * 64);
	world_unlock(w);
	assert_int_equal(fixture_report(&w->f).stats.values_evicted, 0);
	world_close(w);
}

/* With the disk held up memory fills: NOROOM, and `room` is told when a write has ended. At most so many are under way. */
static void test_noroom(void **state)
{
	uint32_t chain = 0, told;

	(void)state;
	world_open(w, &plain);
	gate_set(true, 0);
	while (world_put(w, chain, 0, 64, 0))
		chain++;
	world_lock(w);
	told = w->room_events; /* before it is refused: a word about that may come at once */
	world_unlock(w);
	assert_int_equal(put_chain(w->s, ++w->plan, chain, 0, 64, 1, 0, &w->r), 0);
	assert_int_equal(w->r.groups_ok, 0);
	assert_int_equal(w->r.status[0], PUT_NOROOM);
	world_lock(w);
	assert_true(w->t->writes <= SPILL_WRITES_MOST && w->t->writing_bytes <= SPILL_BYTES_MOST);
	assert_int_equal(w->t->clean_bytes, 0);
	world_unlock(w);
	world_await(w, w->t->writes > 0);
	gate_set(false, 0);
	world_await(w, w->room_events > told);
	world_await(w, w->t->clean_bytes >= 64 * 4096);
	assert_true(world_put(w, chain, 0, 64, 0));
	world_check_idle(w);
	world_close(w);
}

/* A held slot stays where it is, and is owed when its value goes. */
static void test_holds(void **state)
{
	uint32_t record, slot, free, record2;

	(void)state;
	world_open(w, &plain);
	assert_true(world_put(w, 1, 0, 8, 0));
	assert_true(world_put(w, 2, 0, 8, 0));
	world_drain(w);
	world_lock(w);
	record = world_record(w, 1, 7);
	slot = index_value(w->f.space->index, record, 7, 0, NULL);
	assert_true(tiering_is_clean(w->t, slot));
	tiering_hold(w->t, slot);
	assert_int_equal(w->t->held_clean_bytes, 4096);
	free = slots_free_count(w->f.space->slots, 0, 0, (struct slots_filter){ NULL });
	assert_int_equal(demote_make_room(w->t, 0, 0, free + 100, (struct slots_filter){ NULL }), free + 15);
	assert_int_equal(index_value(w->f.space->index, record, 7, 0, NULL), slot);
	assert_false(demote_value(w->t, slot));
	assert_int_equal(w->t->places_used, 15);
	/* It goes: the slot is owed. */
	struct index_sink sink = space_sink(w->f.space);

	assert_int_equal(index_evict_record(w->f.space->index, record, &sink, NULL), 0);
	assert_int_equal(w->f.space->stats.slots_owed, 1);
	assert_int_equal(w->f.space->tables.entries[slot].state, ENTRY_QUARANTINED);
	tiering_unhold(w->t, slot);
	assert_int_equal(w->f.space->stats.slots_owed, 0);
	record2 = world_record(w, 2, 7);
	assert_int_not_equal(record2, INDEX_NONE);
	world_unlock(w);
	world_check_idle(w);
	world_lock(w);
	assert_int_equal(w->t->disk_files, 1);
	world_unlock(w);
	world_close(w);
}

/* Tails first: the coldest record loses its last pages. */
static void test_tails_first(void **state)
{
	uint32_t cold, free, first, last;

	(void)state;
	world_open(w, &plain);
	assert_true(world_put(w, 1, 0, 32, 0));
	assert_true(world_put(w, 2, 0, 32, 0));
	world_drain(w);
	world_lock(w);
	free = slots_free_count(w->f.space->slots, 0, 0, (struct slots_filter){ NULL });
	assert_int_equal(demote_make_room(w->t, 0, 0, free + 10, (struct slots_filter){ NULL }), free + 10);
	cold = world_record(w, 1, 31);
	first = index_value(w->f.space->index, cold, 21, 0, NULL);
	last = index_value(w->f.space->index, cold, 22, 0, NULL);
	assert_false(tiering_is_place(w->t, first));
	assert_true(tiering_is_place(w->t, last));
	assert_int_equal(w->t->places_used, 10);
	assert_int_equal(w->demoted_events, 1);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* The file follows the record: shorter in one step however many pages went, gone with it. */
static void test_file_follows(void **state)
{
	struct index_sink sink;
	uint32_t record;
	uint64_t bytes;

	(void)state;
	world_open(w, &plain);
	sink = space_sink(w->f.space);
	assert_true(world_put(w, 1, 0, 32, 0));
	world_drain(w);
	struct disk_report before, after;

	disk_report(w->f.host->disk, &before);
	world_lock(w);
	bytes = w->t->disk_bytes;
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(index_evict_page(w->f.space->index, NULL, NULL, &sink), 0);
	assert_true(w->t->trims != INDEX_NONE);
	assert_false(tiering_flush(w->t));
	world_unlock(w);
	world_idle(w);
	disk_report(w->f.host->disk, &after);
	assert_int_equal(after.trims - before.trims, 1);
	world_check_idle(w);
	world_lock(w);
	assert_true(w->t->disk_bytes < bytes);
	record = world_record(w, 1, 21);
	assert_int_not_equal(record, INDEX_NONE);
	assert_int_equal(tiering_file(w->t, record)->pages, 22);
	assert_int_equal(tiering_file(w->t, record)->file_pages, 32);
	assert_int_equal(index_evict_record(w->f.space->index, record, &sink, NULL), 0);
	world_unlock(w);
	world_check_idle(w);
	world_lock(w);
	assert_int_equal(w->t->disk_files, 0);
	world_unlock(w);
	world_close(w);
}

enum blow { BLOW_EVICT, BLOW_TRIM, BLOW_REMOVE, BLOW_RESET };

/* What happens to a record whose write is under way: the write is not seen. */
static void strike(enum blow blow)
{
	struct index_sink sink;
	uint32_t record, files, others;

	world_open(w, &plain);
	sink = space_sink(w->f.space);
	gate_set(true, 0);
	assert_true(world_put(w, 1, 0, 16, 0));
	world_lock(w);
	w->t->draining++;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, gate_waiting() == 1);
	world_lock(w);
	w->t->draining--;
	record = world_record(w, 1, 15);
	assert_non_null(tiering_file(w->t, record)->writing);
	if (blow == BLOW_EVICT)
		assert_int_equal(index_evict_record(w->f.space->index, record, &sink, NULL), 0);
	else if (blow == BLOW_TRIM)
		assert_int_equal(index_evict_page(w->f.space->index, NULL, NULL, &sink), 0);
	else if (blow == BLOW_REMOVE)
		index_value_drop(w->f.space->index, index_value(w->f.space->index, record, 3, 0, NULL), false, &sink);
	world_unlock(w);
	if (blow == BLOW_RESET) {
		struct reset reset = { .session = w->s };
		struct why why = WHY_INIT;
		int r = reset_begin(&reset, &why);

		assert_int_equal(r, STEP_MORE);
		while (r == STEP_MORE)
			r = reset_step(&reset, &why);
		assert_int_equal(r, 0);
	}
	world_lock(w);
	assert_true(w->f.space->stats.slots_owed > 0 || blow == BLOW_RESET);
	world_unlock(w);
	gate_set(false, 0);
	world_idle(w);
	world_files(w, &files, &others);
	assert_int_equal(files, 0);
	assert_int_equal(others, 0);
	world_check_idle(w);
	if (blow == BLOW_TRIM || blow == BLOW_REMOVE) { /* what is left is written */
		world_drain(w);
		world_check_idle(w);
		world_files(w, &files, &others);
		assert_int_equal(files, 1);
	}
	world_close(w);
}

static void test_cancelled(void **state)
{
	(void)state;
	strike(BLOW_EVICT);
	strike(BLOW_TRIM);
	strike(BLOW_REMOVE);
	strike(BLOW_RESET);
}

/* A reset lets all files go, and what comes after it is written beside. */
static void test_reset(void **state)
{
	struct reset reset;
	struct why why = WHY_INIT;
	uint32_t files, others;
	int r;

	(void)state;
	world_open(w, &plain);
	for (uint32_t chain = 0; chain < 20; chain++)
		assert_true(world_put(w, chain, 0, 16, 0));
	world_drain(w);
	world_lock(w);
	demote_make_room(w->t, 0, 0, UINT32_MAX, (struct slots_filter){ NULL });
	assert_int_equal(w->t->places_used, 64);
	world_unlock(w);
	reset = (struct reset){ .session = w->s };
	r = reset_begin(&reset, &why);
	while (r == STEP_MORE)
		r = reset_step(&reset, &why);
	assert_int_equal(r, 0);
	assert_true(world_put(w, 3, 0, 16, 0));
	world_drain(w);
	world_check_idle(w);
	world_files(w, &files, &others);
	assert_int_equal(files, 1);
	world_close(w);
}

/* A WHOLE group: clean together. */
static void test_whole(void **state)
{
	uint32_t record[3], n = 0;

	(void)state;
	world_open(w, &plain);
	/* Three records of one group: its keys lie around pages that are there already. */
	assert_true(world_put(w, 1, 0, 4, 0));
	struct key keys[12];
	struct put_group group = { .consumed = 12 * FIXTURE_PAGE, .keys = 12, .class_mask = 1, .flags = PUT_ROOT | PUT_WHOLE };

	for (uint32_t i = 0; i < 12; i++)
		keys[i] = fixture_key(1, i);
	assert_int_equal(put_run(w->s, ++w->plan, &group, 1, keys, 12, 1, &w->r), 0);
	assert_int_equal(w->r.groups_ok, 1);
	commit_all(w->s, w->plan, 1);
	assert_true(world_put(w, 2, 0, 4, 0));
	gate_set(true, 0);
	world_lock(w);
	w->t->draining++;
	record[n++] = world_record(w, 1, 3);
	record[n++] = world_record(w, 1, 11);
	assert_int_not_equal(record[1], INDEX_NONE);
	assert_true(index_record(w->f.space->index, record[1])->flags & RECORD_FLAG_WHOLE);
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, gate_waiting() == 1);
	world_await(w, w->t->writes == 3); /* the group under way holds up nobody */
	gate_set(false, 0);
	world_await(w, w->t->dirty_bytes == 0);
	world_lock(w);
	w->t->draining--;
	assert_int_equal(tiering_file(w->t, record[1])->clean, 8);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* No room on the disk: what is dirty stays, and is tried again later and later. */
static void test_no_space(void **state)
{
	uint64_t pause;

	(void)state;
	world_open(w, &plain);
	gate_set(false, -ENOSPC);
	assert_true(world_put(w, 1, 0, 16, 0));
	world_lock(w);
	w->t->draining++;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, w->t->error == ENOSPC && !w->t->writes);
	world_lock(w);
	pause = w->t->retry_pause_ns;
	assert_true(pause >= 100000000 && !w->t->closed);
	assert_int_equal(w->t->failures, 0);
	assert_int_equal(w->t->dirty_bytes, 16 * 4096);
	world_unlock(w);
	world_await(w, w->t->retry_pause_ns > pause);
	gate_set(false, 0);
	world_await(w, w->t->dirty_bytes == 0);
	world_lock(w);
	assert_int_equal(w->t->error, 0);
	w->t->draining--;
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* Writes under way at the same time fail together: that is one failure, and the disk is tried again soon. */
static void test_failures_at_once(void **state)
{
	(void)state;
	world_open(w, &plain);
	for (unsigned i = 0; i < 20; i++)
		tiering_result(w->t, -ENOSPC, false);
	world_lock(w);
	assert_in_range(w->t->retry_pause_ns, 100000000, 1600000000); /* 30 s, if each of them made it longer */
	assert_int_equal(w->t->error, ENOSPC);
	world_unlock(w);
	tiering_result(w->t, 0, false);
	world_lock(w);
	assert_int_equal(w->t->retry_pause_ns, 0);
	world_unlock(w);
	world_close(w);
}

/* A disk that fails is closed: places go, memory evicts as it does without one. */
static void test_closed(void **state)
{
	uint32_t free;

	(void)state;
	world_open(w, &plain);
	for (uint32_t chain = 0; chain < 10; chain++)
		assert_true(world_put(w, chain, 0, 16, 0));
	world_drain(w);
	world_lock(w);
	free = slots_free_count(w->f.space->slots, 0, 0, (struct slots_filter){ NULL });
	demote_make_room(w->t, 0, 0, free + 40, (struct slots_filter){ NULL });
	assert_int_equal(w->t->places_used, 40);
	world_unlock(w);
	gate_set(false, -EIO);
	assert_true(world_put(w, 50, 0, 16, 0));
	world_lock(w);
	w->t->failures = 7;
	w->t->failing_since_ns = clock_now_ns() - 11000000000ull;
	w->t->draining++;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, w->t->closed && !w->t->places_used && !atomic_load(&w->t->jobs));
	world_lock(w);
	w->t->draining--;
	assert_int_not_equal(world_record(w, 50, 15), INDEX_NONE);
	assert_non_null(strstr(w->t->error_text, "closed"));
	world_unlock(w);
	for (uint32_t chain = 100; chain < 200; chain++) /* more than memory holds */
		assert_true(world_put(w, chain, 0, 64, 0));
	assert_true(fixture_report(&w->f).stats.values_evicted > 0);
	world_lock(w);
	assert_int_equal(w->t->places_used, 0);
	index_check(w->f.space->index);
	world_unlock(w);
	world_close(w);
}

/* Over the limit leaves go, coldest first, pinned ones not. */
static void test_limit(void **state)
{
	struct world_options o = plain;
	uint32_t pinned;

	(void)state;
	o.disk = 4 * MIB;
	world_open(w, &o);
	assert_true(world_put(w, 0, 0, 64, 0));
	world_lock(w);
	pinned = world_record(w, 0, 63);
	space_pin(w->f.space, pinned);
	world_unlock(w);
	for (uint32_t chain = 1; chain < 30; chain++)
		assert_true(world_put(w, chain, 0, 64, 0));
	world_drain(w);
	world_await(w, !world_busy(w) && w->t->disk_bytes <= 4 * MIB);
	world_check_idle(w);
	world_lock(w);
	assert_true(w->t->disk_bytes > 3 * MIB);
	assert_int_not_equal(world_record(w, 0, 63), INDEX_NONE);
	assert_int_equal(world_record(w, 1, 63), INDEX_NONE);
	assert_int_not_equal(world_record(w, 29, 63), INDEX_NONE);
	space_unpin(w->f.space, pinned);
	world_unlock(w);
	world_close(w);
}

static void test_expiry(void **state)
{
	struct world_options o = plain;
	uint32_t record;

	(void)state;
	o.expire_s = 3600;
	world_open(w, &o);
	assert_true(world_put(w, 1, 0, 8, 0));
	assert_true(world_put(w, 1, 8, 8, 0));
	assert_true(world_put(w, 2, 0, 8, 0));
	world_drain(w);
	world_lock(w);
	for (uint32_t end = 7; end < 16; end += 8) {
		record = world_record(w, 1, end);
		assert_int_not_equal(record, INDEX_NONE);
		w->f.space->tables.records[record].last_use_s -= 4000;
	}
	w->t->expire_at_s = 0;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, world_record(w, 1, 7) == INDEX_NONE && world_record(w, 1, 15) == INDEX_NONE);
	world_check_idle(w);
	world_lock(w);
	assert_int_not_equal(world_record(w, 2, 7), INDEX_NONE);
	assert_int_equal(w->f.space->stats.values_expired, 16);
	assert_int_equal(w->t->disk_files, 1);
	world_unlock(w);
	world_close(w);
}

/* A row goes when the only child has one, but not one that was resumed from. */
static void test_rows(void **state)
{
	uint32_t parent;

	(void)state;
	world_open(w, &hybrid);
	for (uint64_t chain = 1; chain < 3; chain++) {
		assert_true(world_put(w, chain, 0, 4, 0));
		assert_true(world_put_row(w, chain, 3));
		world_lock(w);
		parent = world_record(w, chain, 3);
		w->f.space->tables.records[parent].hits = chain == 2;
		world_unlock(w);
		assert_true(world_put(w, chain, 4, 4, 0));
		assert_true(world_put_row(w, chain, 7));
		mover_ask(w->f.host);
		world_idle(w);
		world_lock(w);
		assert_int_equal(!!(index_record(w->f.space->index, world_record(w, chain, 3))->flags & RECORD_FLAG_ROW), chain == 2);
		assert_true(index_record(w->f.space->index, world_record(w, chain, 7))->flags & RECORD_FLAG_ROW);
		world_unlock(w);
	}
	assert_int_equal(fixture_report(&w->f).stats.rows_superseded, 1);
	world_drain(w);
	world_check_idle(w);
	world_close(w);
}

/* What another rank has yet to put its share of is not written, what is whole is. */
static void test_half_there(void **state)
{
	static const struct world_options two = {
		.classes = CLASS_KV, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 256 * MIB, .only = true, .world = 2,
	};

	(void)state;
	world_open(w, &two);
	struct session *other = fixture_session(&w->f, 1);

	for (uint64_t chain = 1; chain <= 2; chain++) {
		assert_int_equal(put_chain(w->s, ++w->plan, chain, 0, 4, 1, 0, &w->r), 0);
		commit_all(w->s, w->plan, 1);
	}
	assert_int_equal(put_chain(other, 1, 2, 0, 4, 1, 0, &w->r), 0);
	commit_all(other, 1, 1);
	mover_ask(w->f.host);
	world_await(w, w->t->disk_files == 1 && !w->t->writes);
	world_lock(w);
	assert_int_equal(tiering_file(w->t, world_record(w, 1, 3))->id, 0);
	assert_int_not_equal(tiering_file(w->t, world_record(w, 2, 3))->id, 0);
	world_unlock(w);
	assert_int_equal(put_chain(other, 2, 1, 0, 4, 1, 0, &w->r), 0);
	commit_all(other, 2, 1);
	mover_ask(w->f.host);
	world_await(w, w->t->disk_files == 2 && !w->t->writes);
	/* Who drains has no time for it. */
	assert_int_equal(put_chain(w->s, ++w->plan, 3, 0, 4, 1, 0, &w->r), 0);
	commit_all(w->s, w->plan, 1);
	world_drain(w);
	world_lock(w);
	assert_int_equal(w->t->disk_files, 3);
	world_unlock(w);
	session_release(other);
	session_unref(&other);
	world_close(w);
}

/* A row that joins the record later is dirty, and has its file written anew. */
static void test_row_joins(void **state)
{
	uint32_t record;
	uint64_t id;

	(void)state;
	world_open(w, &hybrid);
	assert_true(world_put(w, 1, 0, 4, 0));
	world_drain(w);
	world_lock(w);
	record = world_record(w, 1, 3);
	id = tiering_file(w->t, record)->id;
	assert_int_not_equal(id, 0);
	demote_make_room(w->t, 0, 0, UINT32_MAX, (struct slots_filter){ NULL });
	assert_int_equal(w->t->places_used, 4); /* the new file has them from the old one */
	world_unlock(w);
	assert_true(world_put_row(w, 1, 3));
	world_lock(w);
	assert_int_equal(world_record(w, 1, 3), record);
	assert_int_equal(tiering_file(w->t, record)->dirty, 1);
	world_unlock(w);
	world_drain(w);
	world_check_idle(w);
	world_lock(w);
	assert_true(tiering_file(w->t, record)->id > id);
	assert_true(tiering_file(w->t, record)->flags & TIERING_FILE_ROW);
	assert_int_equal(tiering_file(w->t, record)->dirty, 0);
	world_unlock(w);
	world_close(w);
}

/* Lets the last page of a chain go, by its key. */
static void remove_page(uint64_t chain, uint64_t page)
{
	struct key key = fixture_key(chain, page);
	struct index_sink sink;
	uint32_t values;
	uint64_t hash;

	index_prefetch(w->f.space->index, &key, 1, &hash);
	world_lock(w);
	sink = space_sink(w->f.space);
	assert_int_equal(index_remove(w->f.space->index, &key, hash, 1, &sink, &values), INDEX_REMOVED);
	assert_int_equal(values, 1);
	world_unlock(w);
}

/* A row at a page in the middle, which is the record's last one later: the two become one, with one file. */
static void test_twins(void **state)
{
	uint32_t record, files, others;

	(void)state;
	for (uint32_t how = 0; how < 3; how++) { /* dirty, clean, on disk only */
		world_open(w, &hybrid);
		assert_true(world_put(w, 1, 0, 5, 0));
		assert_true(world_put_row(w, 1, 3));
		if (how)
			world_drain(w);
		world_lock(w);
		if (how == 2) {
			demote_make_room(w->t, 1, 0, UINT32_MAX, (struct slots_filter){ NULL });
			assert_int_equal(w->t->places_used, 1);
		}
		world_unlock(w);
		remove_page(1, 4);
		world_drain(w);
		world_check_idle(w);
		world_lock(w);
		record = world_record(w, 1, 3);
		assert_int_equal(index_record(w->f.space->index, record)->pages, 4);
		assert_int_equal(!!(index_record(w->f.space->index, record)->flags & RECORD_FLAG_ROW), how < 2);
		world_unlock(w);
		world_files(w, &files, &others);
		assert_int_equal(files, 1);
		world_close(w);
	}
}

/* Disk only: written at once, and out of memory when it is not in use. */
static void test_disk_only(void **state)
{
	struct world_options o = plain;

	(void)state;
	o.only = true;
	world_open(w, &o);
	assert_true(world_put(w, 1, 0, 16, 0));
	mover_ask(w->f.host);
	world_await(w, w->t->places_used == 16 && !world_busy(w));
	world_lock(w);
	assert_int_equal(w->t->clean_bytes, 0);
	assert_int_equal(w->t->dirty_bytes, 0);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* So many bytes by hand are bytes of memory. */
static void test_by_hand(void **state)
{
	struct eviction call;
	struct why why = WHY_INIT;
	int r;

	(void)state;
	world_open(w, &plain);
	assert_true(world_put(w, 1, 0, 32, 0));
	world_drain(w);
	call = (struct eviction){ .session = w->s, .goal_bytes = 10 * 4096 };
	r = eviction_begin(&call, &why);
	while (r == STEP_MORE)
		r = eviction_step(&call, &why);
	assert_int_equal(r, 0);
	assert_int_equal(call.bytes, 10 * 4096);
	assert_int_equal(call.values, 10);
	world_lock(w);
	assert_int_equal(w->t->places_used, 10);
	assert_int_not_equal(world_record(w, 1, 31), INDEX_NONE);
	world_unlock(w);
	call = (struct eviction){ .session = w->s, .goal_bytes = EVICTION_ALL };
	r = eviction_begin(&call, &why);
	while (r == STEP_MORE)
		r = eviction_step(&call, &why);
	assert_int_equal(r, 0);
	world_check_idle(w);
	world_lock(w);
	assert_int_equal(w->t->disk_files, 0);
	assert_int_equal(w->t->places_used, 0);
	world_unlock(w);
	world_close(w);
}

/* When the time is short the newest endpoint comes first, and before it what it stands on. */
static void test_newest_first(void **state)
{
	struct key key;

	(void)state;
	world_open(w, &plain);
	gate_set(true, 0);
	for (uint32_t chain = 1; chain < 40; chain++)
		assert_true(world_put(w, chain, 0, 8, 0));
	assert_true(world_put(w, 5, 8, 8, 0));
	world_lock(w);
	w->t->draining++;
	w->t->drain_newest++;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, w->t->writes == SPILL_WRITES_MOST);
	world_lock(w);
	assert_non_null(tiering_file(w->t, world_record(w, 5, 7))->writing);
	assert_non_null(tiering_file(w->t, world_record(w, 5, 15))->writing);
	assert_non_null(tiering_file(w->t, world_record(w, 39, 7))->writing);
	assert_null(tiering_file(w->t, world_record(w, 1, 7))->writing);
	world_unlock(w);
	gate_set(false, 0);
	world_await(w, !w->t->dirty_bytes);
	world_lock(w);
	w->t->draining--;
	w->t->drain_newest--;
	key = fixture_key(1, 7);
	assert_int_equal(w->spilled_events, 40);
	assert_memory_not_equal(&w->spilled[0], &key, sizeof(key));
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

/* A grant is emptied for another size or namespace: what is clean goes on on disk, what is dirty is written first. */
static void test_emptied(void **state)
{
	struct victim victim;
	uint64_t pages;

	(void)state;
	world_open(w, &hybrid);
	for (uint32_t chain = 1; chain < 20; chain++)
		assert_true(world_put(w, chain, 0, 64, 0));
	pages = fixture_report(&w->f).pages;
	/* All grants but those of pages that have some are empty: take one that is not. */
	victim = (struct victim){ .old = 0 };
	world_lock(w);
	for (uint32_t id = 0; id < slots_grant_limit(w->f.space->slots); id++) {
		struct slots_grant g;

		if (slots_grant_get(w->f.space->slots, id, &g) && g.free < g.slots) {
			victim.id = id;
			victim.generation = g.generation;
		}
	}
	world_unlock(w);
	assert_true(victim_close(w->f.space, &victim));
	gate_set(true, 0);
	assert_false(victim_empty(w->f.space, &victim, NULL)); /* dirty */
	world_await(w, w->t->writes > 0);
	gate_set(false, 0);
	world_drain(w);
	assert_true(victim_close(w->f.space, &victim));
	assert_true(victim_empty(w->f.space, &victim, NULL));
	world_check_idle(w);
	assert_int_equal(fixture_report(&w->f).pages, pages);
	assert_int_equal(fixture_report(&w->f).stats.values_evicted, 0);
	world_lock(w);
	assert_true(w->t->places_used > 0);
	slots_grant_reopen(w->f.space->slots, victim.id);
	world_unlock(w);
	world_close(w);
}

/* Values of a size that has enough room are in nobody's way. */
static void test_sizes(void **state)
{
	const struct slots_filter any = { NULL };
	struct world_options o = hybrid;
	uint32_t free, chain;

	(void)state;
	o.classes = CLASS_KV "," CLASS_STATE "," CLASS_IX;
	world_open(w, &o);
	for (chain = 1; chain < 200; chain++) {
		assert_int_equal(put_chain(w->s, ++w->plan, chain, 0, 2, 5, 0, &w->r), 0);
		commit_all(w->s, w->plan, 1);
	}
	assert_true(world_put_row(w, 190, 1));
	world_drain(w);
	world_lock(w);
	free = slots_free_count(w->f.space->slots, 1, 0, any);
	assert_int_equal(demote_make_room(w->t, 1, 0, free + 1, any), free + 1);
	free = slots_free_count(w->f.space->slots, 0, 0, any);
	for (uint32_t i = 0; i < 7; i++) /* all of one, and the other stays */
		demote_make_room(w->t, 0, 0, free + 398, any);
	assert_int_equal(slots_free_count(w->f.space->slots, 0, 0, any), free + 398);
	assert_int_equal(w->t->clean_bytes, 398 * 4096);
	world_unlock(w);
	world_check_idle(w);
	world_close(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_floor),
		cmocka_unit_test(test_beyond_memory),
		cmocka_unit_test(test_noroom),
		cmocka_unit_test(test_holds),
		cmocka_unit_test(test_tails_first),
		cmocka_unit_test(test_file_follows),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_no_space),
		cmocka_unit_test(test_failures_at_once),
		cmocka_unit_test(test_closed),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_expiry),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_half_there),
		cmocka_unit_test(test_row_joins),
		cmocka_unit_test(test_twins),
		cmocka_unit_test(test_disk_only),
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_newest_first),
		cmocka_unit_test(test_emptied),
		cmocka_unit_test(test_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
