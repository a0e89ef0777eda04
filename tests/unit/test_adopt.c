/* SPDX-License-Identifier: Apache-2.0
 *
 * Adoption of a namespace by the next serving process: what is refused, what is restored, what is kept for whom, and that all of it is
 * given back.
 */
#include "tests/unit/adopt_world.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "index/internal.h"
#include "store/manage.h"
#include "store/seating.h"

#define MIB (1ull << 20)
#define KV 1u
#define STATE 2u
#define MEMORY (64 * MIB)

static struct put_result result;

/* Puts, writes and commits pages of a chain. */
static void store_pages(struct fixture *f, struct session *s, uint64_t plan, uint64_t chain, uint32_t from, uint32_t pages)
{
	assert_int_equal(put_chain(s, plan, chain, from, pages, KV, 0, &result), 0);
	for (uint32_t i = 0; i < pages; i++)
		write_value(f, result.answers[i], chain, from + i);
	commit_all(s, plan, 1);
}

/* Gets @pages pages of a chain and looks at their bytes. The get plan @plan stays open. */
static void get_pages(struct fixture *f, struct session *s, uint64_t plan, uint64_t chain, uint32_t pages, uint64_t *offsets)
{
	struct get_start get = { 0 };
	struct get_transfer transfer = { 0 };
	struct why why = WHY_INIT;
	uint64_t to = (uint64_t)pages * FIXTURE_PAGE;

	assert_int_equal(get_chain(s, plan + 1000000, chain, pages, 0, &get, &why), 0);
	assert_int_equal(get.transferable_len, to);
	assert_int_equal(transfer_run(s, plan + 1000000, plan, to, 0, to, offsets, pages, &transfer, &why), 0);
	assert_int_equal(transfer.delivered_len, to);
	for (uint32_t i = 0; i < pages; i++)
		assert_value(f, offsets[i], chain, i);
}

static bool found(struct session *s, uint64_t handle, uint64_t chain, uint32_t pages)
{
	struct get_start get = { 0 };
	struct why why = WHY_INIT;

	assert_int_equal(get_chain(s, handle, chain, pages, 0, &get, &why), 0);
	if (get.handle_live)
		assert_int_equal(get_cancel(s, handle, &why), 0);
	return get.all_hit;
}

static bool among(uint64_t offset, const uint64_t *offsets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (offsets[i] == offset)
			return true;
	return false;
}

/* Everything under way has ended, and nothing is kept. */
static void assert_nothing_kept(struct heir *heir, uint32_t sessions)
{
	assert_false(remnants_any(heir->f.space));
	assert_null(heir->f.space->outcomes);
	assert_at_base(&heir->f, sessions);
	struct space_report r = fixture_report(&heir->f);

	assert_int_equal(r.stats.slots_owed, 0);
	assert_int_equal(r.stats.groups_open, 0);
}

/* Puts other chains until there is no room: no slot of @kept is among those that were given. */
static void fill_beside(struct heir *heir, struct session *s, uint64_t plan, const uint64_t *kept, uint32_t count)
{
	uint64_t given = 0;

	for (uint32_t i = 0; i < 40; i++) {
		assert_int_equal(put_chain(s, plan + i, 5000 + plan + i, 0, 512, KV, 0, &result), 0);
		for (uint32_t k = 0; k < 512; k++) {
			if (result.answers[k] >= PUT_ANSWER_DUPLICATE)
				continue;
			assert_false(among(result.answers[k], kept, count));
			given++;
		}
		if (result.status[0] == PUT_OK)
			commit_all(s, plan + i, 1);
		fixture_await_prewarm(&heir->f);
	}
	assert_true(given > 4096);
}

/* ---- what is restored -------------------------------------------------------------------------------------------- */

static void values_records_and_pins_are_what_they_were(void **state)
{
	struct fixture f;
	struct heir heir;
	struct session *s, *t;
	struct record_info before, after;
	struct why why = WHY_INIT;
	struct key end = fixture_key(7, 99), tail = fixture_key(7, 139);
	uint64_t offsets[140], created_s;
	struct space_report a, b;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 7, 0, 100);
	store_pages(&f, s, 2, 7, 100, 40); /* a record that hangs off it */
	store_pages(&f, s, 3, 8, 0, 10);
	assert_true(found(s, 9, 7, 140));
	assert_true(found(s, 10, 7, 140));
	assert_int_equal(space_record_find(f.space, &end, false, &before), 0);
	assert_int_equal(space_record_pin(f.space, before.number, before.generation, &why), 0);
	created_s = space_created_s(f.space);
	assert_int_equal(space_record_find(f.space, &end, false, &before), 0);
	a = fixture_report(&f);
	world_inherit(&heir, &f);

	assert_int_equal(heir.report.values, 150);
	assert_int_equal(heir.report.pages, 150);
	assert_int_equal(heir.report.records, 3);
	assert_int_equal(heir.report.torn_entries + heir.report.torn_records + heir.report.torn_groups + heir.report.torn_grants +
		heir.report.torn_seats, 0);
	assert_int_equal(heir.report.kept_slots, 0);
	b = fixture_report(&heir.f);
	assert_int_equal(b.granted_bytes, a.granted_bytes);
	assert_int_equal(b.slots, a.slots);
	assert_int_equal(b.slots_free, a.slots_free);
	assert_int_equal(b.records, 3);
	assert_int_equal(b.pages, 150);
	assert_int_equal(b.pinned_bytes, a.pinned_bytes);
	assert_true(b.pinned_bytes >= 100 * 4096);
	assert_int_equal(b.generation, 1);
	assert_int_equal(b.floor_bytes, 32 * MIB);
	assert_int_equal(space_serial(heir.f.space), space_serial(f.space));
	assert_int_equal(space_created_s(heir.f.space), created_s);

	assert_int_equal(space_record_find(heir.f.space, &end, false, &after), 0);
	assert_int_equal(after.number, before.number);
	assert_int_equal(after.generation, before.generation);
	assert_int_equal(after.pinned, true);
	assert_int_equal(after.hits, before.hits);
	assert_int_equal(after.hits, 2);
	assert_int_equal(after.pages, 100);
	assert_int_equal(after.children, 1);
	assert_int_equal(after.created_s, before.created_s);
	assert_int_equal(space_record_find(heir.f.space, &tail, false, &after), 0);
	assert_true(after.parent_visible);
	assert_memory_equal(&after.parent_endpoint, &end, sizeof(end));
	assert_int_equal(after.parent_consumed, 100 * FIXTURE_PAGE);

	/* the session is a remnant that holds nothing; its process is unknown here, so its client settles it */
	t = world_session(&heir.f, 1, 5, 51);
	get_pages(&heir.f, t, 1, 7, 140, offsets);
	assert_int_equal(get_release(t, 1, &why), 0);
	assert_int_equal(remnants_settle(t, session_number(s), &why), 0);
	assert_nothing_kept(&heir, 1);
	assert_true(session_number(t) > session_number(s));
	world_session_end(&t);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

static void rows_and_the_generation_are_what_they_were(void **state)
{
	struct put_group group = { .consumed = 4 * FIXTURE_PAGE, .keys = 4, .class_mask = KV | STATE, .flags = PUT_ROOT };
	struct key keys[4];
	struct fixture f;
	struct heir heir;
	struct session *s;
	struct record_info info;
	struct reset reset;
	struct why why = WHY_INIT;

	(void)state;
	world_open(&f, CLASS_KV "," CLASS_STATE, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 3, 0, 6);
	reset = (struct reset){ .session = s };
	assert_int_equal(reset_begin(&reset, &why), STEP_MORE); /* its records are hidden, and still there */
	for (uint32_t i = 0; i < 4; i++)
		keys[i] = fixture_key(4, i);
	assert_int_equal(put_run(s, 2, &group, 1, keys, 4, KV | STATE, &result), 0);
	commit_all(s, 2, 1);
	world_inherit(&heir, &f);
	assert_int_equal(space_generation(heir.f.space), 2);
	assert_int_equal(fixture_report(&heir.f).generation, 2);
	assert_int_equal(fixture_report(&heir.f).hidden_records, 0); /* gone, with their slots */
	assert_int_equal(heir.report.values, 5);
	assert_int_equal(heir.report.records, 1);
	assert_int_equal(space_record_find(heir.f.space, &keys[3], false, &info), 0);
	assert_int_equal(info.row_values, 1);
	assert_int_equal(info.pages, 4);
	assert_int_equal(info.absent, 0);
	while (reset_step(&reset, &why) == STEP_MORE)
		;
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

/* Ticks are what they were in seconds, in the order of seconds. */
static void order_and_ages_are_kept_to_the_second(void **state)
{
	static const uint32_t age_s[6] = { 30, 5, 90, 0, 60, 1 };
	uint32_t last_s, tick[6], order[6];
	struct fixture f;
	struct heir heir;
	struct session *s;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	for (uint32_t i = 0; i < 6; i++)
		store_pages(&f, s, i + 1, 10 + i, 0, 2);
	struct tables *tables = &f.space->tables;

	last_s = (uint32_t)tables->header->created_s + 1000; /* it lived that long, at 500 ticks a second */
	for (uint32_t n = 0; n < tables->header->records_high; n++)
		for (uint32_t i = 0; i < 6; i++)
			if (tables->records[n].endpoint.words[1] == 10 + i)
				tables->records[n].last_use_s = last_s - age_s[i];
	struct adoption a = world_adoption(&f, NULL);
	struct tables_header *header = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, a.tables_fd, 0);

	header->clock = (uint64_t)500000 << 32 | last_s;
	munmap(header, 4096);
	world_adopt(&heir, &a, MEMORY);
	assert_int_equal(heir.error, 0);
	lock_take(&heir.f.space->lock);
	struct index *index = heir.f.space->index;

	for (uint32_t i = 0; i < 6; i++) {
		struct key end = fixture_key(10 + i, 1);
		uint32_t record = index_find_endpoint(index, &end);

		tick[i] = index_record_last_use(index, record);
		assert_int_equal(tick[i], 500000 - age_s[i] * 500);
	}
	assert_int_equal(index_clock(index), 500001);
	uint32_t coldest;

	assert_true(index_coldest_age(index, false, &coldest));
	assert_int_equal(coldest, 500001 - tick[2]);
	for (uint32_t i = 0; i < 6; i++) { /* two pages each */
		struct index_sink sink = space_sink(heir.f.space);

		order[i] = INDEX_NONE;
		for (uint32_t n = 0; n < 2; n++)
			assert_int_equal(index_evict_page(index, NULL, NULL, &sink), 0);
		for (uint32_t k = 0; k < 6; k++) {
			struct key end = fixture_key(10 + k, 0);
			struct index_hit hit;
			bool known = false;

			index_lookup(index, &end, 1, ~0u, &hit);
			for (uint32_t p = 0; p < i; p++)
				known |= order[p] == k;
			if (hit.record == INDEX_NONE && !known)
				order[i] = k;
		}
	}
	lock_drop(&heir.f.space->lock);
	const uint32_t wanted[6] = { 2, 4, 0, 1, 5, 3 };

	assert_memory_equal(order, wanted, sizeof(wanted));
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

static void whole_groups_are_whole_or_not_there(void **state)
{
	struct fixture f;
	struct heir heir;
	struct session *s, *t;
	struct record_info info;
	struct key end = fixture_key(7, 9);
	struct why why = WHY_INIT;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	assert_int_equal(put_chain(s, 1, 7, 0, 10, KV, PUT_WHOLE, &result), 0);
	commit_all(s, 1, 1);
	assert_int_equal(put_chain(s, 2, 8, 0, 10, KV, PUT_WHOLE, &result), 0);
	world_inherit(&heir, &f);
	assert_int_equal(space_record_find(heir.f.space, &end, false, &info), 0);
	assert_true(info.whole);
	assert_int_equal(heir.report.kept_slots, 10);
	assert_int_equal(heir.report.values, 10);
	t = world_session(&heir.f, 2, 6, 51);
	assert_true(found(t, 1, 7, 10));
	assert_false(found(t, 2, 8, 1));
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 10);
	assert_int_equal(remnants_process_gone(heir.f.host, session_number(s)), true);
	assert_int_equal(remnants_process_gone(heir.f.host, session_number(s)), false);
	assert_nothing_kept(&heir, 1);
	(void)why;
	world_session_end(&t);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

/* ---- what is kept ---------------------------------------------------------------------------------------------------- */

static void slots_of_an_open_put_are_not_given_before_it_is_settled(void **state)
{
	uint64_t kept[64];
	struct fixture f;
	struct heir heir;
	struct session *s, *t, *other, *child;
	struct why why = WHY_INIT;
	struct remnant_info info[2];

	(void)state;
	world_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 7, 0, 10);
	assert_int_equal(put_chain(s, 2, 8, 0, 64, KV, 0, &result), 0);
	memcpy(kept, result.answers, sizeof(kept));
	world_inherit(&heir, &f);
	assert_int_equal(heir.report.kept_slots, 64);
	assert_int_equal(heir.report.groups_lost, 1);
	assert_int_equal(remnants_list(heir.f.space, info, 2), 1);
	assert_int_equal(info[0].session, session_number(s));
	assert_int_equal(info[0].slots, 64);
	assert_int_equal(info[0].client_id[0], 1);
	assert_false(info[0].watched);
	assert_false(info[0].crowd);

	other = world_session(&heir.f, 2, 5, 52);
	child = world_session(&heir.f, 1, 6, 53);
	t = world_session(&heir.f, 1, 5, 54);
	fill_beside(&heir, t, 100, kept, 64);
	assert_int_equal(remnants_settle(other, session_number(s), &why), -EACCES);
	assert_non_null(strstr(why.text, "was another client's"));
	assert_int_equal(remnants_settle(child, session_number(s), &why), -EACCES);
	assert_non_null(strstr(why.text, "of another process"));
	assert_int_equal(remnants_settle(t, session_number(s) + 1, &why), -ENOENT);
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 64);
	assert_int_equal(remnants_settle(t, session_number(s), &why), 0);
	assert_int_equal(remnants_settle(t, session_number(s), &why), -ENOENT);
	assert_int_equal(remnants_list(heir.f.space, info, 2), 0);
	world_session_end(&child);
	world_session_end(&other);
	assert_nothing_kept(&heir, 1);
	world_session_end(&t);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

static void a_get_plan_keeps_its_slots_until_its_file_is_closed(void **state)
{
	uint64_t kept[64], again[64];
	struct fixture f;
	struct heir heir;
	struct session *s, *t;
	struct why why = WHY_INIT;
	struct eviction all;

	(void)state;
	world_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 7, 0, 64);
	get_pages(&f, s, 2, 7, 64, kept);
	assert_int_equal(put_chain(s, 3, 8, 0, 5, KV, 0, &result), 0);
	world_inherit(&heir, &f);
	assert_int_equal(heir.report.kept_slots, 69);
	t = world_session(&heir.f, 1, 5, 51);
	get_pages(&heir.f, t, 1, 7, 64, again); /* others read there as ever */
	assert_memory_equal(again, kept, sizeof(kept));
	assert_int_equal(get_release(t, 1, &why), 0);
	/* the values go, by hand; the slots wait */
	all = (struct eviction){ .session = t, .goal_bytes = EVICTION_ALL };
	assert_int_equal(eviction_begin(&all, &why), STEP_MORE);
	while (eviction_step(&all, &why) == STEP_MORE)
		;
	assert_false(found(t, 5, 7, 1));
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 69);
	fill_beside(&heir, t, 100, kept, 64);
	for (uint32_t i = 0; i < 64; i++)
		assert_value(&heir.f, kept[i], 7, i);
	assert_int_equal(remnants_settle(t, session_number(s), &why), 0);
	assert_nothing_kept(&heir, 1);
	world_session_end(&t);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_records_and_pins_are_what_they_were),
		cmocka_unit_test(rows_and_the_generation_are_what_they_were),
		cmocka_unit_test(order_and_ages_are_kept_to_the_second),
		cmocka_unit_test(whole_groups_are_whole_or_not_there),
		cmocka_unit_test(slots_of_an_open_put_are_not_given_before_it_is_settled),
		cmocka_unit_test(a_get_plan_keeps_its_slots_until_its_file_is_closed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
