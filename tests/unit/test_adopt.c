/* SPDX-License-Identifier: Apache-2.0
 *
 * Adoption of a namespace by the next serving process: what is restored, what is kept for whom, and that all of it is given back.
 */
#include "tests/unit/adopt_pages.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "index/internal.h"
#include "store/manage.h"
#include "store/seating.h"

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

static bool among(uint64_t offset, const uint64_t *offsets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (offsets[i] == offset)
			return true;
	return false;
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

/* The page's put was open at the death, the row at its end was not: the row hangs of the page's name still when that comes anew. */
static void a_row_is_found_when_its_page_came_anew(void **state)
{
	struct put_group row = { .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = STATE, .flags = PUT_ROW_ONLY | PUT_ROOT };
	struct key key = fixture_key(3, 0);
	struct get_start get = { 0 };
	struct fixture f;
	struct heir heir;
	struct session *s, *t;
	struct why why = WHY_INIT;

	(void)state;
	world_open(&f, CLASS_KV "," CLASS_STATE, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	assert_int_equal(put_chain(s, 1, 3, 0, 1, KV, 0, &result), 0);
	assert_int_equal(put_run(s, 2, &row, 1, &key, 1, STATE, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, 2, 1);
	world_inherit(&heir, &f);
	t = world_session(&heir.f, 2, 6, 60);
	store_pages(&heir.f, t, 3, 3, 0, 1);
	assert_int_equal(get_chain(t, 4, 3, 1, 0, &get, &why), 0);
	assert_int_equal(get.dense_len, FIXTURE_PAGE);
	assert_int_equal(get.transferable_len, FIXTURE_PAGE);
	assert_int_equal(get_cancel(t, 4, &why), 0);
	world_session_end(&t);
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

static void a_get_plan_keeps_its_slots_until_it_is_settled(void **state)
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

/* Its process is a child of this one. */
static int watched_child(pid_t *pid)
{
	*pid = fork();
	assert_true(*pid >= 0);
	if (*pid == 0)
		for (;;)
			pause();
	int pidfd = (int)syscall(SYS_pidfd_open, *pid, 0);

	assert_true(pidfd >= 0);
	return pidfd;
}

static void end_child(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_process_that_ends_is_settled(void **state)
{
	struct fixture f;
	struct heir heir;
	struct session *a, *b, *t;
	struct adopt_session given[3], watch[4];
	struct why why = WHY_INIT;
	pid_t first, second, third;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	a = world_session(&f, 1, 5, 50);
	b = world_session(&f, 2, 6, 51);
	assert_int_equal(put_chain(a, 1, 7, 0, 10, KV, 0, &result), 0);
	assert_int_equal(put_chain(b, 1, 8, 0, 20, KV, 0, &result), 0);
	given[0] = (struct adopt_session){ session_number(a), watched_child(&first), -1 };
	given[1] = (struct adopt_session){ session_number(b), watched_child(&second), -1 };
	given[2] = (struct adopt_session){ 4711, watched_child(&third), -1 }; /* that no seat names */
	struct adoption adoption = world_adoption(&f, NULL);

	adoption.sessions = given;
	adoption.session_count = 3;
	end_child(second); /* gone already when its namespace is adopted */
	world_adopt(&heir, &adoption, MEMORY);
	assert_int_equal(heir.error, 0);
	assert_int_equal(heir.report.kept_slots, 30);
	assert_int_equal(fcntl(given[2].pidfd, F_GETFD), -1);
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 10);
	assert_int_equal(remnants_watch(heir.f.space, watch, 4), 1);
	assert_int_equal(watch[0].number, session_number(a));
	assert_int_equal(remnants_watch(heir.f.space, watch + 1, 3), 0);
	assert_true(host_process_awaited(heir.f.host, session_number(a)));
	assert_false(host_process_awaited(heir.f.host, session_number(b)));

	struct pollfd p = { .fd = watch[0].pidfd, .events = POLLIN };

	assert_int_equal(poll(&p, 1, 0), 0);
	t = world_session(&heir.f, 1, 9, 52); /* what a forked child would try */
	assert_int_equal(remnants_settle(t, session_number(a), &why), -EACCES);
	end_child(first);
	assert_int_equal(poll(&p, 1, 10000), 1);
	host_process_gone(heir.f.host, session_number(a));
	close(watch[0].pidfd);
	assert_nothing_kept(&heir, 1);
	assert_false(host_process_awaited(heir.f.host, session_number(a)));
	end_child(third);
	world_session_end(&t);
	world_session_end(&a);
	world_session_end(&b);
	fixture_close(&heir.f);
	fixture_close(&f);
}

/* A client's guard goes on writing after it: what is kept for them is free with the second end, whichever that is. */
static void a_guard_is_waited_for_too(void **state)
{
	struct adopt_session given[3], watch[4];
	struct session *s[3];
	struct fixture f;
	struct heir heir;
	pid_t client[3], guard[3];

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	for (uint32_t i = 0; i < 3; i++) {
		s[i] = world_session(&f, (uint8_t)(i + 1), 5 + i, 50 + i);
		assert_int_equal(put_chain(s[i], 1, 7 + i, 0, 10 * (i + 1), KV, 0, &result), 0);
		given[i] = (struct adopt_session){ session_number(s[i]), watched_child(&client[i]), watched_child(&guard[i]) };
	}
	struct adoption adoption = world_adoption(&f, NULL);

	adoption.sessions = given;
	adoption.session_count = 3;
	end_child(client[0]);
	end_child(guard[1]);
	end_child(client[2]);
	end_child(guard[2]);
	world_adopt(&heir, &adoption, MEMORY);
	assert_int_equal(heir.error, 0);
	assert_int_equal(heir.report.kept_slots, 60);
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 30);
	assert_int_equal(remnants_watch(heir.f.space, watch, 4), 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(watch[i].number, session_number(s[i]));
		assert_int_equal(watch[i].pidfd, given[i].pidfd);
		assert_int_equal(watch[i].guard_fd, given[i].guard_fd);
		assert_true(host_process_awaited(heir.f.host, watch[i].number));
	}
	assert_false(host_process_awaited(heir.f.host, session_number(s[2])));
	host_client_gone(heir.f.host, session_number(s[0]));
	host_guard_gone(heir.f.host, session_number(s[1]));
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 30);
	host_process_gone(heir.f.host, session_number(s[0]));
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 20);
	host_process_gone(heir.f.host, session_number(s[1]));
	assert_nothing_kept(&heir, 0);
	end_child(guard[0]);
	end_child(client[1]);
	for (uint32_t i = 0; i < 3; i++)
		world_session_end(&s[i]);
	for (uint32_t i = 0; i < 2; i++)
		adopt_session_end(&watch[i]);
	fixture_close(&heir.f);
	fixture_close(&f);
}

static void the_close_of_the_old_file_lets_values_go(void **state)
{
	uint64_t read[64], written[5];
	struct fixture f;
	struct heir heir;
	struct session *s;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 7, 0, 64);
	get_pages(&f, s, 2, 7, 64, read);
	assert_int_equal(put_chain(s, 3, 8, 0, 5, KV, 0, &result), 0);
	memcpy(written, result.answers, sizeof(written));
	world_inherit(&heir, &f);
	assert_int_equal(heir.report.kept_slots, 69);
	remnants_handle_released(heir.f.host, 49);
	struct remnant_info info;

	assert_int_equal(remnants_list(heir.f.space, &info, 1), 1);
	assert_int_equal(info.slots, 69);
	remnants_handle_released(heir.f.host, 50);
	assert_int_equal(remnants_list(heir.f.space, &info, 1), 1);
	assert_int_equal(info.slots, 5); /* of the put: its process may still write there */
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 5);
	host_process_gone(heir.f.host, session_number(s));
	assert_nothing_kept(&heir, 0);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

static void a_slot_of_two_waits_for_both_and_a_second_death_changes_nothing(void **state)
{
	uint64_t a_reads[8], b_reads[8];
	struct fixture f;
	struct heir heir, second;
	struct session *a, *b;
	struct why why = WHY_INIT;
	struct remnant_info info[3];
	struct eviction all;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	a = world_session(&f, 1, 5, 50);
	b = world_session(&f, 2, 6, 51);
	store_pages(&f, a, 1, 7, 0, 8);
	get_pages(&f, a, 2, 7, 8, a_reads);
	get_pages(&f, b, 2, 7, 8, b_reads);
	world_inherit(&heir, &f);
	assert_int_equal(remnants_list(heir.f.space, info, 3), 2);
	assert_int_equal(info[0].slots + info[1].slots, 16);
	assert_int_equal(heir.report.kept_slots, 8);

	struct session *t = world_session(&heir.f, 3, 7, 52);

	all = (struct eviction){ .session = t, .goal_bytes = EVICTION_ALL };
	assert_int_equal(eviction_begin(&all, &why), STEP_MORE);
	while (eviction_step(&all, &why) == STEP_MORE)
		;
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 8);
	host_process_gone(heir.f.host, session_number(a));
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 8);
	world_session_end(&t);

	world_inherit(&second, &heir.f); /* it dies with one settled, and the values gone */
	assert_int_equal(second.report.kept_slots, 8);
	assert_int_equal(second.report.values, 0);
	assert_int_equal(remnants_list(second.f.space, info, 3), 1);
	assert_int_equal(info[0].session, session_number(b));
	assert_int_equal(fixture_report(&second.f).stats.slots_owed, 8);
	host_process_gone(second.f.host, session_number(b));
	assert_nothing_kept(&second, 0);
	host_process_gone(heir.f.host, session_number(b));
	assert_nothing_kept(&heir, 0);
	world_session_end(&a);
	world_session_end(&b);
	fixture_close(&second.f);
	fixture_close(&heir.f);
	fixture_close(&f);
}

/* 63 have seats of their own, three share the last one. */
static void the_crowd_waits_for_all_of_its_processes(void **state)
{
	struct adopt_session given[66], watch[66];
	struct session *s[66], *t;
	struct fixture f;
	struct heir heir;
	struct remnant_info info[SEATS + 1];
	pid_t pid[3];

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	for (uint32_t i = 0; i < 66; i++) {
		s[i] = world_session(&f, (uint8_t)(i + 1), 100 + i, 200 + i);
		assert_int_equal(put_chain(s[i], 1, 100 + i, 0, 2, KV, 0, &result), 0);
	}
	for (uint32_t i = 0; i < 3; i++)
		given[i] = (struct adopt_session){ session_number(s[63 + i]), watched_child(&pid[i]), -1 };
	struct adoption adoption = world_adoption(&f, NULL);

	adoption.sessions = given;
	adoption.session_count = 3;
	world_adopt(&heir, &adoption, MEMORY);
	assert_int_equal(heir.error, 0);
	assert_int_equal(heir.report.kept_slots, 132);
	assert_int_equal(remnants_list(heir.f.space, info, SEATS + 1), 64);
	assert_true(info[63].crowd && info[63].slots == 6 && info[63].watched);
	for (uint32_t i = 0; i < 63; i++)
		host_process_gone(heir.f.host, session_number(s[i]));
	assert_int_equal(remnants_watch(heir.f.space, watch, 66), 3);
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 6);
	host_process_gone(heir.f.host, session_number(s[63]));
	host_process_gone(heir.f.host, session_number(s[65]));
	assert_int_equal(fixture_report(&heir.f).stats.slots_owed, 6);
	assert_int_equal(heir.report.groups_lost, 66);
	assert_non_null(heir.f.space->outcomes);
	t = world_session(&heir.f, 1, 100, 300); /* and seats are to be had meanwhile */
	assert_int_equal(put_chain(t, 1, 900, 0, 2, KV, 0, &result), 0);
	commit_all(t, 1, 1);
	host_process_gone(heir.f.host, session_number(s[64]));
	assert_nothing_kept(&heir, 1);
	for (uint32_t i = 0; i < 3; i++) {
		close(watch[i].pidfd);
		end_child(pid[i]);
	}
	world_session_end(&t);
	for (uint32_t i = 0; i < 66; i++)
		world_session_end(&s[i]);
	fixture_close(&heir.f);
	fixture_close(&f);
}

/* ---- outcomes ------------------------------------------------------------------------------------------------------------ */

/* Three groups of one key each; @committed of them are, and their answer was not acknowledged. */
static void put_three(struct session *s, uint64_t plan, uint64_t chain, uint32_t committed)
{
	struct put_group groups[3];
	struct key keys[3];
	uint32_t status[3];
	struct put_end end = { .session = s, .plan = plan, .seq = 1000, .commit = true, .group_count = committed, .status = status };
	struct why why = WHY_INIT;

	for (uint32_t i = 0; i < 3; i++) {
		groups[i] = (struct put_group){ .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = KV, .flags = PUT_ROOT };
		keys[i] = fixture_key(chain + i, 0);
	}
	assert_int_equal(put_run(s, plan, groups, 3, keys, 3, KV, &result), 0);
	if (!committed)
		return;
	assert_int_equal(put_end_begin(&end, &why), 0);
	assert_int_equal(put_end_step(&end, &why), 0);
}

static int ask(struct session *s, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status, uint32_t *outcome)
{
	struct put_end end = { .session = s, .plan = plan, .commit = true, .first_group = first, .group_count = count, .status = status };
	struct why why = WHY_INIT;
	int r = put_end_begin(&end, &why);

	*outcome = end.outcome;
	return r;
}

static void a_put_plan_of_before_says_what_became_of_it(void **state)
{
	struct fixture f;
	struct heir heir;
	struct session *s, *t, *other;
	uint32_t status[4], outcome;
	struct why why = WHY_INIT;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	put_three(s, 10, 100, 3);
	put_three(s, 11, 200, 2);
	put_three(s, 12, 300, 0);
	world_inherit(&heir, &f);
	assert_int_equal(heir.report.groups_committed, 5);
	assert_int_equal(heir.report.groups_lost, 4);
	assert_int_equal(fixture_report(&heir.f).stats.groups_open, 9);
	t = world_session(&heir.f, 1, 5, 51);
	other = world_session(&heir.f, 2, 5, 52);

	assert_int_equal(ask(t, 10, 0, 3, status, &outcome), -EALREADY);
	assert_int_equal(outcome, PUT_COMMITTED);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(status[i], PUT_COMMITTED);
	assert_int_equal(ask(t, 11, 1, 3, status, &outcome), -EALREADY);
	assert_int_equal(outcome, PUT_COMMITTED);
	assert_int_equal(status[0], PUT_COMMITTED);
	assert_int_equal(status[1], PUT_LOST);
	assert_int_equal(status[2], PUT_LOST); /* that had no group */
	assert_int_equal(ask(t, 12, 0, 3, status, &outcome), -EALREADY);
	assert_int_equal(outcome, PUT_LOST);
	assert_int_equal(status[2], PUT_LOST);
	assert_int_equal(ask(t, 13, 0, 1, status, &outcome), -ENOENT);
	assert_int_equal(ask(other, 10, 0, 1, status, &outcome), -ENOENT);
	assert_true(found(t, 1, 101, 1));
	assert_true(found(t, 2, 201, 1));
	assert_false(found(t, 3, 202, 1));
	assert_false(found(t, 4, 300, 1));

	/* a plan of its own with that id comes first; its groups have other numbers */
	put_three(t, 10, 400, 0);
	assert_int_equal(end_run(t, 10, false, 0, 3, status, &outcome, &why), 0);
	assert_int_equal(outcome, PUT_ABORTED);
	assert_int_equal(ask(t, 11, 0, 1, status, &outcome), -EALREADY);
	assert_int_equal(remnants_settle(t, session_number(s), &why), 0);
	assert_int_equal(ask(t, 11, 0, 1, status, &outcome), -ENOENT);
	world_session_end(&other);
	world_session_end(&t);
	assert_nothing_kept(&heir, 0);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

/* ---- grants and the budget ---------------------------------------------------------------------------------------------- */

static void grants_are_as_they_were_and_count_whatever_the_budget_is(void **state)
{
	struct fixture f;
	struct heir heir;
	struct host_report report;
	struct space_range ranges[16], again[16];
	uint32_t total, id, populating = 0;
	uint64_t version;
	struct session *s;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	total = space_ranges(f.space, 0, ranges, 16, &total, &version);
	lock_take(&f.space->lock); /* one is being made present, one is being given back */
	assert_int_equal(slots_grant_begin(f.space->slots, 0, 0, 0, &populating), 0);
	id = total - 1;
	slots_grant_close(f.space->slots, id);
	slots_grant_withdraw(f.space->slots, id);
	lock_drop(&f.space->lock);
	struct adoption a = world_adoption(&f, NULL);

	world_adopt(&heir, &a, 32 * MIB); /* with less than there is */
	assert_int_equal(heir.error, 0);
	uint32_t n = space_ranges(heir.f.space, 0, again, 16, &n, &version);

	assert_int_equal(n, total + 1);
	for (uint32_t i = 0; i < total; i++) {
		assert_int_equal(again[i].offset, ranges[i].offset);
		assert_int_equal(again[i].length, ranges[i].length);
		assert_int_equal(again[i].id, ranges[i].id);
		assert_int_equal(again[i].generation, ranges[i].generation + (i == id));
	}
	assert_int_equal(again[total].id, populating);
	assert_int_equal(again[total].generation, 2);
	host_report(heir.f.host, &report);
	assert_int_equal(report.granted_bytes, 32 * MIB + again[total].length);
	assert_int_equal(report.owed_bytes, again[total].length);
	assert_int_equal(report.free_bytes, 0);
	fixture_close(&heir.f);
	lock_take(&f.space->lock);
	slots_grant_end(f.space->slots, populating);
	slots_grant_ready(f.space->slots, id);
	lock_drop(&f.space->lock);
	world_session_end(&s);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_records_and_pins_are_what_they_were),
		cmocka_unit_test(rows_and_the_generation_are_what_they_were),
		cmocka_unit_test(a_row_is_found_when_its_page_came_anew),
		cmocka_unit_test(order_and_ages_are_kept_to_the_second),
		cmocka_unit_test(whole_groups_are_whole_or_not_there),
		cmocka_unit_test(slots_of_an_open_put_are_not_given_before_it_is_settled),
		cmocka_unit_test(a_get_plan_keeps_its_slots_until_it_is_settled),
		cmocka_unit_test(a_process_that_ends_is_settled),
		cmocka_unit_test(a_guard_is_waited_for_too),
		cmocka_unit_test(the_close_of_the_old_file_lets_values_go),
		cmocka_unit_test(a_slot_of_two_waits_for_both_and_a_second_death_changes_nothing),
		cmocka_unit_test(the_crowd_waits_for_all_of_its_processes),
		cmocka_unit_test(a_put_plan_of_before_says_what_became_of_it),
		cmocka_unit_test(grants_are_as_they_were_and_count_whatever_the_budget_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
