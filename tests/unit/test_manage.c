/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to a namespace by hand, through store/, without a mount.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>

#include "index/internal.h"
#include "store/manage.h"

#define MIB (1ull << 20)
#define KV 1u
#define STATE 2u
#define BOTH (KV | STATE)

static struct put_result result;
static uint32_t answers[8192];
static struct key keys[8192];

static const struct key *chain_keys(uint64_t chain, uint32_t pages)
{
	for (uint32_t i = 0; i < pages; i++)
		keys[i] = fixture_key(chain, i);
	return keys;
}

static void stored(struct session *s, uint64_t plan, uint64_t chain, uint32_t pages, uint32_t mask, uint32_t flags)
{
	assert_int_equal(put_chain(s, plan, chain, 0, pages, mask, flags, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, plan, 1);
}

static uint32_t hits(struct session *s, uint64_t chain, uint32_t pages)
{
	struct probe call = { .session = s, .keys = chain_keys(chain, pages), .key_count = pages };
	struct why why = WHY_INIT;

	while (probe_step(&call, &why) == STEP_MORE)
		;
	return call.hit_count;
}

static struct removal removed(struct session *s, uint64_t chain, uint32_t pages, uint32_t mask)
{
	struct removal call = {
		.session = s, .keys = chain_keys(chain, pages), .key_count = pages, .class_mask = mask, .answers = answers,
	};
	struct why why = WHY_INIT;
	int r = removal_begin(&call, &why);

	while (r == STEP_MORE)
		r = removal_step(&call, &why);
	assert_int_equal(r, 0);
	return call;
}

static int pinned(struct session *s, uint64_t chain, uint32_t pages, uint32_t flags, struct pinning *call, struct why *why)
{
	int r;

	*call = (struct pinning){
		.session = s, .keys = chain_keys(chain, pages), .key_count = pages, .flags = flags, .answers = answers,
	};
	r = pinning_begin(call, why);
	while (r == STEP_MORE)
		r = pinning_step(call, why);
	return r;
}

static struct reset was_reset(struct session *s)
{
	struct reset call = { .session = s };
	struct why why = WHY_INIT;
	int r = reset_begin(&call, &why);

	while (r == STEP_MORE)
		r = reset_step(&call, &why);
	assert_int_equal(r, 0);
	return call;
}

static void check(struct fixture *f)
{
	lock_take(&f->space->lock);
	index_check(f->space->index);
	slots_check(f->space->slots);
	lock_drop(&f->space->lock);
}

/* The tables alone say the same as the index that lives. */
static void assert_rebuilds_alike(struct fixture *f)
{
	struct space *space = f->space;
	struct lock guard;
	struct tables tables;
	struct why why = WHY_INIT;
	size_t bytes = space->tables.bytes, size;
	char *memory = malloc(bytes), *live = NULL, *again = NULL;
	struct index *index;
	FILE *to;

	assert_non_null(memory);
	lock_init(&guard, LOCK_QUEUE);
	lock_take(&space->lock);
	memcpy(memory, space->tables_memory, bytes);
	to = open_memstream(&live, &size);
	assert_int_equal(index_describe(space->index, to), 0);
	fclose(to);
	lock_take(&guard);
	assert_int_equal(tables_open(&tables, memory, bytes, &why), 0);
	struct index_config config = {
		.layout = space->layout,
		.tables = &tables,
		.guard = &guard,
		.max_pages = tables.record_capacity,
		.hollow_first = space->index->hollow_first,
		.hollow_count = space->index->hollow_count,
	};
	assert_int_equal(index_new(&config, &index, &why), 0);
	assert_int_equal(index_rebuild(index, &why), 0);
	to = open_memstream(&again, &size);
	assert_int_equal(index_describe(index, to), 0);
	fclose(to);
	assert_string_equal(live, again);
	assert_int_equal(index_held_bytes(index), index_held_bytes(space->index));
	assert_int_equal(index_generation(index), index_generation(space->index));
	index_check(index);
	index_free(&index);
	lock_drop(&guard);
	lock_drop(&space->lock);
	lock_destroy(&guard);
	free(memory);
	free(live);
	free(again);
}

/* ---- REMOVE ------------------------------------------------------------------------------------------------------ */

static void remove_is_per_page_and_class_and_idempotent(void **state)
{
	struct fixture f;
	struct removal r;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV "," CLASS_STATE, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	stored(s, 1, 7, 200, BOTH, 0);
	assert_int_equal(hits(s, 7, 200), 200);

	/* the middle goes, its place stays: what follows is found */
	r = removed(s, 7, 100, KV);
	assert_int_equal(r.removed, 100);
	assert_int_equal(r.values, 100);
	assert_int_equal(hits(s, 7, 200), 100);
	assert_int_equal(fixture_report(&f).hollow_pages, 100);
	assert_int_equal(fixture_report(&f).stats.values_removed, 100);
	r = removed(s, 7, 101, KV);
	assert_int_equal(r.removed, 1);
	assert_int_equal(r.absent, 100);
	assert_int_equal(answers[99], REMOVAL_ABSENT);
	assert_int_equal(answers[100], REMOVAL_DONE);
	assert_rebuilds_alike(&f);

	/* the row alone, then all that is left */
	r = removed(s, 7, 200, STATE);
	assert_int_equal(r.removed, 1);
	assert_int_equal(r.absent, 199);
	assert_int_equal(hits(s, 7, 200), 99);
	r = removed(s, 7, 200, 0);
	assert_int_equal(r.removed, 99);
	assert_int_equal(r.busy, 0);
	assert_int_equal(fixture_report(&f).records, 0);
	assert_int_equal(fixture_report(&f).hollow_pages, 0);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	assert_rebuilds_alike(&f);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void what_is_held_or_written_is_busy(void **state)
{
	struct get_start get = { 0 };
	struct why why = WHY_INIT;
	struct removal r;
	struct fixture f;
	struct pinning p;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	stored(s, 1, 1, 10, KV, 0);
	stored(s, 2, 2, 10, KV, 0);
	assert_int_equal(get_chain(s, 1, 1, 10, 0, &get, &why), 0);
	r = removed(s, 1, 10, KV);
	assert_int_equal(r.busy, 10);
	assert_int_equal(r.values, 0);
	assert_int_equal(hits(s, 1, 10), 10);
	r = removed(s, 2, 10, KV); /* for that key only */
	assert_int_equal(r.removed, 10);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	assert_int_equal(pinned(s, 1, 1, 0, &p, &why), 0);
	assert_int_equal(removed(s, 1, 10, KV).busy, 10);
	assert_int_equal(pinned(s, 1, 1, PINNING_RELEASE, &p, &why), 0);
	assert_int_equal(removed(s, 1, 10, KV).removed, 10);

	assert_int_equal(put_chain(s, 3, 3, 0, 10, KV, 0, &result), 0);
	assert_int_equal(removed(s, 3, 10, KV).busy, 10);
	commit_all(s, 3, 1);
	assert_int_equal(removed(s, 3, 10, KV).removed, 10);

	/* a WHOLE group leaves whole, or stays */
	stored(s, 4, 4, 10, KV, PUT_WHOLE);
	r = removed(s, 4, 1, KV);
	assert_int_equal(r.removed, 1);
	assert_int_equal(r.values, 10);
	assert_int_equal(hits(s, 4, 10), 0);
	stored(s, 5, 5, 10, KV, PUT_WHOLE);
	assert_int_equal(put_chain(s, 6, 5, 10, 1, KV, 0, &result), 0);
	commit_all(s, 6, 1);
	r = removed(s, 5, 1, KV);
	assert_int_equal(r.busy, 1);
	assert_int_equal(hits(s, 5, 11), 11);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* ---- PIN, hits, rows --------------------------------------------------------------------------------------------- */

static void pins_are_bounded_and_kept_in_the_tables(void **state)
{
	struct record_info info;
	struct why why = WHY_INIT;
	uint32_t cursor = 0;
	struct fixture f;
	struct pinning p;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV "," CLASS_STATE, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	stored(s, 1, 1, 500, BOTH, 0);
	stored(s, 2, 2, 500, KV, 0);
	assert_int_equal(pinned(s, 1, 3, 0, &p, &why), 0);
	assert_int_equal(p.changed, 1);
	assert_int_equal(p.limit_bytes, 32 * MIB / 10);
	assert_int_equal(p.pinned_bytes, 500 * 4096 + 12288);
	assert_int_equal(fixture_report(&f).pinned_bytes, 500 * 4096 + 12288);
	assert_int_equal(pinned(s, 1, 3, 0, &p, &why), 0);
	assert_int_equal(p.changed, 0);
	assert_rebuilds_alike(&f);

	assert_int_equal(pinned(s, 2, 1, 0, &p, &why), -ENOSPC);
	assert_int_equal(answers[0], PINNING_NOROOM);
	assert_non_null(strstr(why.text, "2060288"));
	assert_non_null(strstr(why.text, "3355443"));
	assert_int_equal(p.changed, 0);
	why = (struct why)WHY_INIT;

	/* by endpoints: the last key alone names the record */
	assert_int_equal(pinned(s, 1, 500, PINNING_RELEASE | PINNING_ENDPOINTS, &p, &why), 0);
	assert_int_equal(p.absent, 499);
	assert_int_equal(p.changed, 1);
	assert_int_equal(p.pinned_bytes, 0);
	assert_int_equal(pinned(s, 9, 1, 0, &p, &why), 0);
	assert_int_equal(answers[0], PINNING_ABSENT);
	assert_rebuilds_alike(&f);

	assert_int_equal(space_record_next(f.space, &cursor, &info), 1);
	assert_int_equal(space_record_pin(f.space, info.number, info.generation + 1, &why), -ENOENT);
	assert_int_equal(space_record_pin(f.space, info.number, info.generation, &why), 0);
	assert_int_equal(space_record_get(f.space, info.number, info.generation, &info), 0);
	assert_true(info.pinned);
	assert_int_equal(space_record_evict(f.space, info.number, info.generation, false, &why), -EBUSY);
	assert_int_equal(space_record_drop_row(f.space, info.number, info.generation, &why), -EBUSY);
	assert_int_equal(space_record_unpin(f.space, info.number, info.generation, &why), 0);
	assert_int_equal(info.row_values, 1);
	assert_int_equal(space_record_drop_row(f.space, info.number, info.generation, &why), 0);
	assert_int_equal(space_record_drop_row(f.space, info.number, info.generation, &why), -ENODATA);
	assert_int_equal(hits(s, 1, 500), 500);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void pinned_records_are_no_victims(void **state)
{
	struct why why = WHY_INIT;
	struct fixture f;
	struct pinning p;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 32 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	stored(s, 1, 1, 100, KV, 0);
	assert_int_equal(pinned(s, 1, 1, 0, &p, &why), 0);
	for (uint64_t n = 2; n < 200; n++)
		stored(s, n, n, 100, KV, 0);
	assert_true(fixture_report(&f).stats.values_evicted > 1000);
	assert_int_equal(hits(s, 1, 100), 100);
	assert_int_equal(hits(s, 2, 100), 0);
	assert_int_equal(pinned(s, 1, 1, PINNING_RELEASE, &p, &why), 0);
	for (uint64_t n = 200; n < 400; n++)
		stored(s, n, n, 100, KV, 0);
	assert_int_equal(hits(s, 1, 100), 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void touch_keeps_and_hits_count_gets(void **state)
{
	struct get_start get = { 0 };
	struct why why = WHY_INIT;
	struct record_info info;
	struct fixture f;
	struct touch t;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 32 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	stored(s, 1, 1, 100, KV, 0);
	for (uint64_t n = 2; n < 200; n++) {
		int r;

		t = (struct touch){ .session = s, .keys = chain_keys(1, 120), .key_count = 120 };
		r = touch_begin(&t, &why);
		while (r == STEP_MORE)
			r = touch_step(&t, &why);
		assert_int_equal(r, 0);
		assert_int_equal(t.touched, 100);
		stored(s, n, n, 100, KV, 0);
	}
	assert_int_equal(hits(s, 1, 100), 100);
	assert_int_equal(hits(s, 2, 100), 0);
	for (uint64_t h = 1; h < 8; h++) { /* chunks of 64 keys: one record counts once */
		assert_int_equal(get_chain(s, h, 1, 100, 0, &get, &why), 0);
		assert_int_equal(get_cancel(s, h, &why), 0);
	}
	struct key end = fixture_key(1, 99);
	assert_int_equal(space_record_find(f.space, &end, false, &info), 0);
	assert_int_equal(info.hits, 7);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* ---- RESET ------------------------------------------------------------------------------------------------------- */

static void after_a_reset_nothing_old_hits_and_what_is_held_stays(void **state)
{
	struct get_transfer transfer = { 0 };
	struct get_start get = { 0 };
	struct why why = WHY_INIT;
	uint64_t before[100], offsets[100];
	struct record_info info;
	struct fixture f;
	struct pinning p;
	struct session *s;
	struct reset r;
	uint32_t cursor = 0;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	stored(s, 1, 1, 100, KV, 0);
	memcpy(before, result.answers, sizeof(before));
	stored(s, 2, 2, 3000, KV, 0);
	assert_int_equal(pinned(s, 2, 1, 0, &p, &why), -ENOSPC); /* too long */
	stored(s, 3, 3, 10, KV, 0);
	assert_int_equal(pinned(s, 3, 1, 0, &p, &why), 0);
	assert_int_equal(get_chain(s, 1, 1, 100, 0, &get, &why), 0);

	r = was_reset(s);
	assert_int_equal(r.generation, 2);
	assert_int_equal(r.values, 3010);
	assert_int_equal(r.held, 1);
	assert_int_equal(space_generation(f.space), 2);
	assert_int_equal(hits(s, 1, 100) + hits(s, 2, 3000) + hits(s, 3, 10), 0);
	assert_int_equal(space_record_next(f.space, &cursor, &info), 0);
	assert_int_equal(fixture_report(&f).pinned_bytes, 0);
	check(&f);
	assert_rebuilds_alike(&f);

	/* the same keys again, beside those that are held */
	stored(s, 4, 1, 100, KV, 0);
	assert_int_equal(hits(s, 1, 100), 100);
	for (int i = 0; i < 100; i++)
		for (int j = 0; j < 100; j++)
			assert_int_not_equal(result.answers[i], before[j]);
	assert_int_equal(transfer_run(s, 1, 7, 100 * FIXTURE_PAGE, 0, 100 * FIXTURE_PAGE, offsets, 100, &transfer, &why), 0);
	assert_memory_equal(offsets, before, sizeof(before));
	assert_rebuilds_alike(&f);
	r = was_reset(s); /* while an older one is still held */
	assert_int_equal(r.generation, 3);
	assert_int_equal(r.values, 100);
	assert_int_equal(r.held, 1);
	assert_int_equal(get_release(s, 7, &why), 0);
	assert_int_equal(fixture_report(&f).hidden_records, 0);
	assert_int_equal(fixture_report(&f).records, 0);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	assert_int_equal(fixture_report(&f).stats.values_reset, 3210);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void an_open_put_is_stale_and_its_slots_rest(void **state)
{
	struct why why = WHY_INIT;
	uint64_t old[10], fresh[10];
	uint32_t status[3], outcome;
	struct put_group groups[2] = {
		{ .consumed = 10 * FIXTURE_PAGE, .keys = 10, .class_mask = KV, .flags = PUT_ROOT },
		{ .consumed = 10 * FIXTURE_PAGE, .keys = 10, .class_mask = KV, .flags = PUT_ROOT },
	};
	struct key two[20];
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	for (uint32_t i = 0; i < 20; i++)
		two[i] = fixture_key(i / 10, i % 10);
	assert_int_equal(put_run(s, 1, groups, 2, two, 20, KV, &result), 0);
	memcpy(old, result.answers, sizeof(old));
	assert_int_equal(end_run(s, 1, true, 0, 1, status, &outcome, &why), 0);
	was_reset(s);
	assert_int_equal(hits(s, 0, 10), 0);

	/* another has the same key, elsewhere: the old slots are not given out */
	assert_int_equal(put_chain(s, 2, 1, 0, 10, KV, 0, &result), 0);
	memcpy(fresh, result.answers, sizeof(fresh));
	assert_int_equal(result.new_values, 10);
	assert_int_equal(fixture_report(&f).stats.slots_prepared, 20);
	commit_all(s, 2, 1);
	assert_int_equal(end_run(s, 1, true, 0, 2, status, &outcome, &why), -ESTALE);
	assert_non_null(strstr(why.text, "generation 2"));
	assert_int_equal(status[0], PUT_COMMITTED); /* that was before */
	assert_int_equal(status[1], PUT_LOST);
	assert_int_equal(outcome, PUT_COMMITTED);
	why = (struct why)WHY_INIT;
	assert_int_equal(end_run(s, 1, true, 0, 2, status, &outcome, &why), -EALREADY);
	assert_int_equal(hits(s, 1, 10), 10);
	assert_int_equal(fixture_report(&f).stats.slots_prepared, 0);

	/* ABORT is no error; a session's end quarantines */
	assert_int_equal(put_chain(s, 3, 5, 0, 10, KV, 0, &result), 0);
	assert_int_equal(put_chain(s, 4, 6, 0, 10, KV, 0, &result), 0);
	was_reset(s);
	assert_int_equal(end_run(s, 3, false, 0, 1, status, &outcome, &why), 0);
	assert_int_equal(outcome, PUT_ABORTED);
	check(&f);
	uint64_t number = session_number(s);

	session_release(s);
	assert_int_equal(fixture_report(&f).stats.slots_quarantined, 10);
	host_process_gone(f.host, number);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	session_unref(&s);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void a_pending_whole_group_is_stale(void **state)
{
	struct why why = WHY_INIT;
	struct session *a, *b;
	uint32_t status[1], outcome;
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	assert_int_equal(put_chain(a, 1, 1, 0, 10, KV, 0, &result), 0);
	assert_int_equal(put_chain(b, 1, 1, 0, 20, KV, PUT_WHOLE, &result), 0);
	assert_int_equal(result.new_values, 10);
	assert_int_equal(end_run(b, 1, true, 0, 1, status, &outcome, &why), 0);
	assert_int_equal(status[0], PUT_PENDING);
	was_reset(a);
	assert_int_equal(end_run(b, 1, true, 0, 1, status, &outcome, &why), -ESTALE);
	assert_int_equal(status[0], PUT_LOST);
	assert_int_equal(outcome, PUT_LOST);
	assert_int_equal(end_run(a, 1, true, 0, 1, status, &outcome, &why), -ESTALE);
	assert_at_base(&f, 2);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	session_release(a);
	session_release(b);
	session_unref(&a);
	session_unref(&b);
	fixture_close(&f);
}

/* A RESET between any two steps of a put: it is ESTALE, or it begins behind it. */
static void a_reset_in_the_middle_of_a_put(void **state)
{
	static uint64_t places[4000];
	static struct key many[4000];
	struct put_group group = { .consumed = 4000 * FIXTURE_PAGE, .keys = 4000, .class_mask = KV, .flags = PUT_ROOT };
	struct why why = WHY_INIT;
	uint32_t status[1];
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	for (uint32_t i = 0; i < 4000; i++)
		many[i] = fixture_key(3, i);
	for (int at = 0; at < 4; at++) {
		struct put_start call = {
			.session = s, .plan = (uint64_t)at + 1, .groups = &group, .group_count = 1, .keys = many, .key_count = 4000,
			.class_mask = KV, .answers = places, .status = status,
		};
		int r;

		why = (struct why)WHY_INIT;
		assert_int_equal(session_enter(s, 0, &why), 0);
		assert_int_equal(put_start_begin(&call, &why), 0);
		for (int i = 0; i < at; i++)
			assert_int_equal(put_start_step(&call, &why), STEP_MORE);
		was_reset(s);
		while ((r = put_start_step(&call, &why)) == STEP_MORE)
			;
		assert_int_equal(r, -ESTALE);
		session_leave(s);
		assert_int_equal(fixture_report(&f).stats.slots_prepared, 0);
		check(&f);
	}
	stored(s, 9, 3, 4000, KV, 0);
	assert_int_equal(hits(s, 3, 4000), 4000);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* A commit that has published is settled to its end; its pages go with the rest. */
static void a_reset_in_the_middle_of_a_commit(void **state)
{
	uint32_t status[1];
	struct put_end call = { .plan = 1, .commit = true, .group_count = 1, .status = status };
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	call.session = s;
	assert_int_equal(put_chain(s, 1, 1, 0, 4000, KV, 0, &result), 0);
	assert_int_equal(session_enter(s, 0, &why), 0);
	assert_int_equal(put_end_begin(&call, &why), 0);
	assert_int_equal(put_end_step(&call, &why), STEP_MORE);
	assert_int_equal(hits(s, 1, 4000), 4000);
	was_reset(s);
	assert_int_equal(hits(s, 1, 4000), 0);
	while (put_end_step(&call, &why) == STEP_MORE)
		;
	session_leave(s);
	assert_int_equal(status[0], PUT_COMMITTED);
	assert_int_equal(hits(s, 1, 4000), 0);
	while (fixture_report(&f).hidden_records)
		host_maintain(f.host);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* What was found before is not joined to what came since. */
static void a_reset_in_the_middle_of_a_get(void **state)
{
	static struct key many[4000];
	struct get_start call = { .handle = 1, .keys = many, .key_count = 4000 };
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s;
	int r;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	call.session = s;
	for (uint32_t i = 0; i < 4000; i++)
		many[i] = fixture_key(1, i);
	stored(s, 1, 1, 4000, KV, 0);
	assert_int_equal(session_enter(s, 0, &why), 0);
	assert_int_equal(get_start_begin(&call, &why), 0);
	assert_int_equal(get_start_step(&call, &why), STEP_MORE);
	was_reset(s);
	stored(s, 2, 1, 4000, KV, 0);
	while ((r = get_start_step(&call, &why)) == STEP_MORE)
		;
	session_leave(s);
	assert_int_equal(r, 0);
	assert_int_equal(call.transferable_len, PUT_STEP_KEYS * FIXTURE_PAGE);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	while (fixture_report(&f).hidden_records)
		host_maintain(f.host);
	assert_int_equal(hits(s, 1, 4000), 4000);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* A full namespace takes new values beside a reset that is not through yet. */
static void old_values_make_room_for_new_ones(void **state)
{
	struct why why = WHY_INIT;
	struct reset call;
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 32 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	for (uint64_t n = 1; n < 100; n++)
		stored(s, n, n, 100, KV, 0);
	call = (struct reset){ .session = s };
	assert_int_equal(reset_begin(&call, &why), STEP_MORE); /* and not a step further */
	for (uint64_t n = 100; n < 170; n++)
		stored(s, n, n, 100, KV, 0);
	for (uint64_t n = 100; n < 170; n++)
		assert_int_equal(hits(s, n, 100), 100);
	while (reset_step(&call, &why) == STEP_MORE)
		;
	assert_int_equal(fixture_report(&f).hidden_records, 0);
	assert_int_equal(fixture_report(&f).records, 70);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void readers_may_not(void **state)
{
	struct removal remove = { 0 };
	struct pinning pin = { 0 };
	struct why why = WHY_INIT;
	struct reset reset = { 0 };
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	assert_int_equal(session_new(f.host, f.space, 1, 0, 0, true, &s, &why), 0);
	remove.session = pin.session = reset.session = s;
	remove.key_count = pin.key_count = 1;
	assert_int_equal(removal_begin(&remove, &why), -EROFS);
	assert_int_equal(pinning_begin(&pin, &why), -EROFS);
	assert_int_equal(reset_begin(&reset, &why), -EROFS);
	assert_int_equal(drain(s, &why), -EROFS);
	assert_int_equal(space_generation(f.space), 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(remove_is_per_page_and_class_and_idempotent),
		cmocka_unit_test(what_is_held_or_written_is_busy),
		cmocka_unit_test(pins_are_bounded_and_kept_in_the_tables),
		cmocka_unit_test(pinned_records_are_no_victims),
		cmocka_unit_test(touch_keeps_and_hits_count_gets),
		cmocka_unit_test(after_a_reset_nothing_old_hits_and_what_is_held_stays),
		cmocka_unit_test(an_open_put_is_stale_and_its_slots_rest),
		cmocka_unit_test(a_pending_whole_group_is_stale),
		cmocka_unit_test(a_reset_in_the_middle_of_a_put),
		cmocka_unit_test(a_reset_in_the_middle_of_a_commit),
		cmocka_unit_test(a_reset_in_the_middle_of_a_get),
		cmocka_unit_test(old_values_make_room_for_new_ones),
		cmocka_unit_test(readers_may_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
