/* SPDX-License-Identifier: Apache-2.0
 *
 * Put and get plans through store/, without a mount: what each answers, what each leaves behind.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "store/host_private.h"

#define MIB (1ull << 20)
#define KV 1u

static struct put_result result;

static void put_then_get_gives_the_same_places(void **state)
{
	struct why why = WHY_INIT;
	struct fixture f;
	struct get_start get = { 0 };
	struct get_transfer transfer = { 0 };
	uint64_t offsets[100], put_offsets[100];
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(put_chain(s, 1, 7, 0, 100, KV, 0, &result), 0);
	assert_int_equal(result.new_values, 100);
	assert_int_equal(result.status[0], PUT_OK);
	memcpy(put_offsets, result.answers, sizeof(put_offsets));
	for (int i = 1; i < 100; i++)
		assert_int_equal(put_offsets[i], put_offsets[i - 1] + 4096); /* neighbours */

	/* nothing is visible before the commit */
	assert_int_equal(get_chain(s, 1, 7, 100, 0, &get, &why), 0);
	assert_int_equal(get.raw_prefix_hit_len, 0);
	assert_int_equal(get.handle_live, false);
	assert_int_equal(get.first_miss_index, 0);

	commit_all(s, 1, 1);
	get = (struct get_start){ 0 };
	assert_int_equal(get_chain(s, 2, 7, 100, 0, &get, &why), 0);
	assert_int_equal(get.raw_prefix_hit_len, 100 * FIXTURE_PAGE);
	assert_int_equal(get.transferable_len, 100 * FIXTURE_PAGE);
	assert_int_equal(get.all_hit, true);
	assert_int_equal(get.prefix_hit_groups, 100);
	assert_int_equal(get.first_miss_index, INDEX_NONE);
	assert_int_equal(get.bytes, 100 * 4096);
	assert_int_equal(transfer_run(s, 2, 3, 100 * FIXTURE_PAGE, 0, 100 * FIXTURE_PAGE, offsets, 100, &transfer, &why), 0);
	assert_int_equal(transfer.delivered_len, 100 * FIXTURE_PAGE);
	assert_int_equal(transfer.handle_ended, true);
	assert_memory_equal(offsets, put_offsets, sizeof(offsets));
	assert_int_equal(get_release(s, 3, &why), 0);
	assert_int_equal(get_release(s, 3, &why), -EALREADY);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void a_second_put_is_answered_exists_and_a_concurrent_one_inflight(void **state)
{
	struct fixture f;
	struct session *a, *b;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	assert_int_equal(put_chain(a, 1, 7, 0, 10, KV, 0, &result), 0);
	assert_int_equal(put_chain(b, 1, 7, 0, 12, KV, 0, &result), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(result.answers[i], PUT_ANSWER_INFLIGHT);
	assert_true(result.answers[10] < PUT_ANSWER_DUPLICATE);
	commit_all(a, 1, 1);
	commit_all(b, 1, 1);
	assert_int_equal(put_chain(b, 2, 7, 0, 12, KV, 0, &result), 0);
	for (int i = 0; i < 12; i++)
		assert_int_equal(result.answers[i], PUT_ANSWER_EXISTS);
	assert_int_equal(fixture_report(&f).stats.pins, 2);
	commit_all(b, 2, 1);
	assert_int_equal(fixture_report(&f).orphans, 0); /* b's pages hang off a's */
	assert_int_equal(fixture_report(&f).records, 2);
	assert_at_base(&f, 2);
	session_release(a);
	session_release(b);
	session_unref(&a);
	session_unref(&b);
	fixture_close(&f);
}

static void a_repeated_key_is_a_duplicate_also_within_a_chunk(void **state)
{
	struct key keys[4] = { fixture_key(1, 0), fixture_key(1, 1), fixture_key(1, 0), fixture_key(1, 1) };
	struct put_group groups[2] = {
		{ .consumed = 2 * FIXTURE_PAGE, .keys = 2, .class_mask = KV, .flags = PUT_ROOT },
		{ .consumed = 2 * FIXTURE_PAGE, .keys = 2, .class_mask = KV, .flags = PUT_ROOT },
	};
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(put_run(s, 1, groups, 2, keys, 4, KV, &result), 0);
	assert_true(result.answers[0] < PUT_ANSWER_DUPLICATE && result.answers[1] < PUT_ANSWER_DUPLICATE);
	assert_int_equal(result.answers[2], PUT_ANSWER_DUPLICATE);
	assert_int_equal(result.answers[3], PUT_ANSWER_DUPLICATE);
	commit_all(s, 1, 2);
	assert_int_equal(fixture_report(&f).records, 1);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void full_memory_evicts_the_coldest_leaves_and_keeps_what_is_held(void **state)
{
	struct why why = WHY_INIT;
	struct get_start get = { 0 };
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL); /* 4,096 values */
	s = fixture_session(&f, 0);
	for (uint64_t chain = 1; chain <= 4; chain++) {
		assert_int_equal(put_chain(s, chain, chain, 0, 1024, KV, 0, &result), 0);
		assert_int_equal(result.new_values, 1024);
		commit_all(s, chain, 1);
	}
	assert_int_equal(fixture_report(&f).slots_free, 0);
	assert_int_equal(get_chain(s, 1, 1, 1024, 0, &get, &why), 0); /* chain 1 is held */
	assert_int_equal(get.all_hit, true);
	assert_int_equal(put_chain(s, 5, 5, 0, 1024, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, 5, 1);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	get = (struct get_start){ 0 };
	assert_int_equal(get_chain(s, 2, 1, 1024, 0, &get, &why), 0);
	assert_int_equal(get.all_hit, true);
	assert_int_equal(get_cancel(s, 2, &why), 0);
	get = (struct get_start){ 0 };
	assert_int_equal(get_chain(s, 3, 2, 1024, 0, &get, &why), 0); /* chain 2 was the coldest */
	assert_int_equal(get.raw_prefix_hit_len, 0);
	assert_int_equal(fixture_report(&f).stats.values_evicted, 1024);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void a_value_that_known_keys_lack_evicts_too(void **state)
{
	const uint32_t kv = 1, ix = 2;
	struct fixture f;
	struct session *s;
	uint64_t plan = 1;

	(void)state;
	fixture_open(&f, CLASS_KV "," CLASS_IX, 1, 16 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(put_chain(s, plan, 100, 0, 64, kv, 0, &result), 0);
	commit_all(s, plan++, 1);
	for (uint64_t chain = 1; fixture_report(&f).stats.values_evicted == 0; chain++) {
		assert_int_equal(put_chain(s, plan, chain, 0, 64, ix, 0, &result), 0);
		assert_int_equal(result.status[0], PUT_OK);
		commit_all(s, plan++, 1);
	}
	assert_int_equal(put_chain(s, plan, 100, 0, 64, ix, 0, &result), 0); /* no key of it is unknown */
	assert_int_equal(result.status[0], PUT_OK);
	assert_int_equal(result.new_values, 64);
	commit_all(s, plan, 1);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* A call's keys are looked up together, across its groups: an early group may not make room by evicting what a later one
 * was found to have. A run that nothing leads to goes first, so it is the one in danger. */
static void making_room_spares_what_later_groups_of_the_call_name(void **state)
{
	struct key keys[20];
	struct put_group groups[2] = {
		{ .consumed = 10 * FIXTURE_PAGE, .keys = 10, .class_mask = KV, .flags = PUT_ROOT },
		{ .parent = fixture_key(1, 9), .consumed = 20 * FIXTURE_PAGE, .keys = 10, .class_mask = KV },
	};
	struct why why = WHY_INIT;
	struct get_start get = { 0 };
	struct fixture f;
	struct session *s;

	(void)state;
	for (uint64_t i = 0; i < 20; i++)
		keys[i] = fixture_key(1, i);
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL); /* 4,096 values */
	s = fixture_session(&f, 0);
	assert_int_equal(put_chain(s, 1, 1, 10, 10, KV, 0, &result), 0);
	commit_all(s, 1, 1);
	for (uint64_t plan = 2; plan < 5; plan++) {
		uint32_t pages = plan < 4 ? 2000 : 4096 - 4000 - 10;

		assert_int_equal(put_chain(s, plan, plan, 0, pages, KV, 0, &result), 0);
		assert_int_equal(result.status[0], PUT_OK);
		commit_all(s, plan, 1);
	}
	assert_int_equal(fixture_report(&f).slots_free, 0);
	assert_int_equal(fixture_report(&f).orphans, 1);
	assert_int_equal(put_run(s, 5, groups, 2, keys, 20, KV, &result), 0);
	assert_int_equal(result.groups_ok, 2);
	assert_int_equal(result.new_values, 10);
	for (int i = 10; i < 20; i++)
		assert_int_equal(result.answers[i], PUT_ANSWER_EXISTS);
	assert_int_equal(fixture_report(&f).stats.pins, 1); /* the plan's own */
	commit_all(s, 5, 2);
	assert_int_equal(fixture_report(&f).orphans, 0);
	assert_int_equal(get_chain(s, 1, 1, 20, 0, &get, &why), 0);
	assert_int_equal(get.raw_prefix_hit_len, 19 * FIXTURE_PAGE); /* asked to go while it was pinned, it owed one page */
	assert_int_equal(get_cancel(s, 1, &why), 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* A page that lost its values keeps its name while something hangs off it. Making room for a new value of it may take just
 * that away. */
static void a_page_that_only_its_child_kept_may_go_while_room_is_made(void **state)
{
	const uint32_t kv = 1, ix = 2;
	struct key keys[2] = { fixture_key(1, 0), fixture_key(1, 1) };
	struct put_group groups[2] = {
		{ .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = ix, .flags = PUT_ROOT },
		{ .parent = fixture_key(1, 0), .consumed = 2 * FIXTURE_PAGE, .keys = 1, .class_mask = ix },
	};
	struct slots_filter any = { NULL };
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *a, *b;
	uint32_t status[1], left;

	(void)state;
	fixture_open(&f, CLASS_KV "," CLASS_IX, 1, 16 * MIB, 16 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	/* a names two pages and gives up, b has values there: one is committed, a record follows, the other is given up */
	assert_int_equal(put_chain(a, 1, 1, 0, 2, kv, 0, &result), 0);
	assert_int_equal(put_run(b, 1, groups, 2, keys, 2, ix, &result), 0);
	assert_int_equal(result.new_values, 2);
	assert_int_equal(end_run(a, 1, false, 0, 1, status, NULL, &why), 0);
	assert_int_equal(end_run(b, 1, true, 0, 1, status, NULL, &why), 0);
	assert_int_equal(put_chain(a, 2, 1, 2, 1, kv, 0, &result), 0);
	commit_all(a, 2, 1);
	assert_int_equal(end_run(b, 1, false, 1, 1, status, NULL, &why), 0);
	assert_int_equal(fixture_report(&f).hollow_pages, 1);
	lock_take(&f.space->lock);
	left = slots_free_count(f.space->slots, 0, 0, any);
	lock_drop(&f.space->lock);
	for (uint64_t chain = 10; left; chain++) {
		uint32_t pages = left < 1000 ? left : 1000;

		assert_int_equal(put_chain(a, chain, chain, 0, pages, kv, 0, &result), 0);
		assert_int_equal(result.new_values, pages);
		commit_all(a, chain, 1);
		left -= pages;
	}
	assert_int_equal(fixture_report(&f).stats.values_evicted, 0);
	assert_int_equal(fixture_report(&f).hollow_pages, 1);
	assert_int_equal(put_chain(a, 3, 1, 1, 1, kv, 0, &result), 0); /* the coldest leaf is what hangs off it */
	assert_int_equal(result.status[0], PUT_OK);
	assert_int_equal(result.new_values, 1);
	assert_int_equal(fixture_report(&f).hollow_pages, 0);
	commit_all(a, 3, 1);
	assert_int_equal(fixture_report(&f).orphans, 0);
	assert_at_base(&f, 2);
	session_release(a);
	session_unref(&a);
	session_release(b);
	session_unref(&b);
	fixture_close(&f);
}

static void a_group_that_finds_no_room_is_undone_whole(void **state)
{
	struct why why = WHY_INIT;
	uint32_t status[1], outcome;
	struct fixture f;
	struct session *s, *other;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	other = fixture_session(&f, 0);
	assert_int_equal(put_chain(s, 1, 1, 0, 2000, KV, 0, &result), 0); /* prepared: nothing may be evicted */
	assert_int_equal(result.status[0], PUT_OK);
	assert_int_equal(put_chain(other, 1, 9, 0, 2000, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	assert_int_equal(put_chain(s, 2, 2, 0, 200, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_NOROOM);
	assert_int_equal(result.new_values, 0);
	for (int i = 0; i < 200; i++)
		assert_int_equal(result.answers[i], PUT_ANSWER_NONE);
	assert_int_equal(end_run(s, 2, true, 0, 1, status, &outcome, &why), -EALREADY);
	assert_int_equal(outcome, PUT_ABORTED);
	assert_int_equal(fixture_report(&f).stats.slots_prepared, 4000);
	assert_int_equal(put_chain(s, 3, 3, 0, 48, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK); /* half of the memory is now prepared by one session */
	assert_int_equal(put_chain(s, 5, 5, 0, 1, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_NOROOM);
	assert_int_equal(put_chain(s, 4, 4, 0, 5000, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_TOOBIG);
	assert_int_equal(end_run(s, 1, false, 0, 1, status, NULL, &why), 0);
	assert_int_equal(status[0], PUT_ABORTED);
	assert_int_equal(end_run(other, 1, false, 0, 1, status, NULL, &why), 0);
	commit_all(s, 3, 1);
	assert_int_equal(fixture_report(&f).slots_free, 4096 - 48);
	assert_at_base(&f, 2);
	session_release(other);
	session_unref(&other);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void slots_of_an_ended_session_rest_until_its_process_is_gone(void **state)
{
	struct fixture f;
	struct session *s;
	uint64_t number;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	number = session_number(s);
	assert_int_equal(put_chain(s, 1, 1, 0, 100, KV, 0, &result), 0);
	session_release(s);
	session_unref(&s);
	assert_int_equal(fixture_report(&f).stats.slots_quarantined, 100);
	assert_int_equal(fixture_report(&f).slots_free, 4096 - 100);
	s = fixture_session(&f, 0);
	for (uint64_t chain = 1; chain <= 4; chain++) { /* the keys are free, the slots are not */
		assert_int_equal(put_chain(s, chain, chain, 0, 1000, KV, PUT_WHOLE, &result), 0);
		assert_int_equal(result.status[0], PUT_OK);
		commit_all(s, chain, 1);
	}
	assert_int_equal(fixture_report(&f).stats.values_evicted, 1000); /* for 4 values: the resting ones were not taken */
	host_process_gone(f.host, number);
	assert_at_base(&f, 1);
	assert_int_equal(fixture_report(&f).slots_free, 1096);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* The guard writes for its client, and goes on after its end. */
static void slots_rest_until_client_and_guard_are_gone(void **state)
{
	struct session_info info;
	struct fixture f;
	struct session *s;
	uint64_t number[2];

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		s = fixture_session(&f, 0);
		number[i] = session_number(s);
		assert_int_equal(put_chain(s, 1, 1 + i, 0, 100, KV, 0, &result), 0);
		if (i) { /* its ctl is closed first */
			session_release(s);
			assert_int_equal(fixture_report(&f).stats.slots_quarantined, 200);
		}
		host_client_gone(f.host, number[i]);
		assert_true(session_ended(s));
		session_unref(&s);
		assert_int_equal(session_info(f.host, number[i], &info), -ENOENT);
		assert_int_equal(fixture_report(&f).stats.slots_quarantined, 100 * (i + 1));
		assert_true(host_process_awaited(f.host, number[i]));
	}
	assert_int_equal(fixture_report(&f).slots_free, 4096 - 200);
	host_process_gone(f.host, number[0]);
	assert_int_equal(fixture_report(&f).stats.slots_quarantined, 100);
	assert_false(host_process_awaited(f.host, number[0]));
	assert_true(host_process_awaited(f.host, number[1]));
	host_process_gone(f.host, number[1]);
	assert_int_equal(fixture_report(&f).slots_free, 4096);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

/* The descriptor that ATTACH brought is taken once; of an earlier ATTACH it is closed. */
static void a_guard_is_shown_until_it_is_gone(void **state)
{
	struct session_attach attach = { .rank = 0, .node = SEGMENT_ANY_NODE, .call_buffer_bytes = 1 << 16, .guard = 7 };
	int before = dup(STDERR_FILENO), segment, buffer;
	struct session_info info;
	struct session *s, *welcome;
	struct why why = WHY_INIT;
	struct fixture f;
	pid_t pid;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	assert_int_equal(session_new(f.host, f.space, 1, 0, 0, false, &s, &why), 0);
	attach.guard_fd = before;
	assert_int_equal(session_attach(s, &attach, &why), 0);
	attach.guard = 8;
	attach.guard_fd = dup(STDERR_FILENO);
	assert_int_equal(session_attach(s, &attach, &why), 0);
	assert_int_equal(fcntl(before, F_GETFD), -1);
	assert_int_equal(session_welcome(f.host, attach.token, 1, 1, 0, 0, NULL, 0, &welcome, &segment, &buffer, &why), 0);
	assert_ptr_equal(welcome, s);
	session_unref(&welcome);
	attach.guard = 9;
	assert_int_equal(session_attach(s, &attach, &why), -EISCONN); /* which takes nothing */
	assert_int_equal(session_take_guard(s, &pid), attach.guard_fd);
	assert_int_equal(pid, 8);
	assert_int_equal(session_take_guard(s, &pid), -1);
	assert_int_equal(close(attach.guard_fd), 0);
	assert_int_equal(session_info(f.host, session_number(s), &info), 0);
	assert_int_equal(info.guard, 8);
	host_guard_gone(f.host, session_number(s));
	assert_int_equal(session_info(f.host, session_number(s), &info), 0);
	assert_int_equal(info.guard, 0);
	assert_true(info.attached);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void a_whole_group_waits_for_another_plans_key(void **state)
{
	struct why why = WHY_INIT;
	uint32_t status[1], outcome;
	struct fixture f;
	struct session *a, *b;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	assert_int_equal(put_chain(a, 1, 1, 0, 10, KV, 0, &result), 0);
	assert_int_equal(put_chain(b, 1, 1, 0, 20, KV, PUT_WHOLE, &result), 0);
	assert_int_equal(end_run(b, 1, true, 0, 1, status, &outcome, &why), 0);
	assert_int_equal(status[0], PUT_PENDING);
	commit_all(a, 1, 1);
	commit_all(b, 1, 1);
	/* and is lost when that one is given up */
	assert_int_equal(put_chain(a, 2, 2, 0, 10, KV, 0, &result), 0);
	assert_int_equal(put_chain(b, 2, 2, 0, 20, KV, PUT_WHOLE, &result), 0);
	assert_int_equal(end_run(a, 2, false, 0, 1, status, NULL, &why), 0);
	assert_int_equal(end_run(b, 2, true, 0, 1, status, &outcome, &why), 0);
	assert_int_equal(status[0], PUT_LOST);
	assert_int_equal(outcome, PUT_LOST);
	assert_int_equal(fixture_report(&f).records, 2);
	assert_at_base(&f, 2);
	session_release(a);
	session_release(b);
	session_unref(&a);
	session_unref(&b);
	fixture_close(&f);
}

static void rows_make_boundaries_restorable(void **state)
{
	struct why why = WHY_INIT;
	struct get_start get = { 0 };
	struct get_transfer transfer = { 0 };
	uint64_t restorable[1] = { 0 }, hits[1], offsets[64], row_at;
	struct key key = fixture_key(1, 4);
	struct put_group group = { .parent = fixture_key(1, 3), .consumed = 5 * FIXTURE_PAGE, .keys = 1, .class_mask = 2,
				   .flags = PUT_ROW_ONLY };
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV "," CLASS_STATE, 1, 64 * MIB, 32 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(put_chain(s, 1, 1, 0, 10, 3, 0, &result), 0); /* 10 pages and a row at their end */
	assert_true(result.answers[10] < PUT_ANSWER_DUPLICATE);
	commit_all(s, 1, 1);
	assert_int_equal(put_chain(s, 2, 1, 10, 10, 1, 0, &result), 0); /* 10 more without one */
	commit_all(s, 2, 1);
	get.restorable = restorable;
	get.hits = hits;
	assert_int_equal(get_chain(s, 1, 1, 20, 0, &get, &why), 0);
	assert_int_equal(get.raw_prefix_hit_len, 20 * FIXTURE_PAGE);
	assert_int_equal(get.transferable_len, 10 * FIXTURE_PAGE);
	assert_int_equal(restorable[0], 1u << 9);
	assert_int_equal(hits[0], (1u << 20) - 1);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	/* a row inside the record makes another boundary: a record without pages */
	assert_int_equal(put_run(s, 3, &group, 1, &key, 1, 2, &result), 0);
	row_at = result.answers[0];
	assert_true(row_at < PUT_ANSWER_DUPLICATE);
	commit_all(s, 3, 1);
	assert_int_equal(fixture_report(&f).records, 3);
	get = (struct get_start){ .limit = 9 * FIXTURE_PAGE, .restorable = restorable };
	assert_int_equal(get_chain(s, 2, 1, 20, 0, &get, &why), 0);
	assert_int_equal(get.transferable_len, 5 * FIXTURE_PAGE);
	assert_int_equal(restorable[0], 1u << 4);
	assert_int_equal(transfer_run(s, 2, 9, 5 * FIXTURE_PAGE, 0, 5 * FIXTURE_PAGE, offsets, 64, &transfer, &why), 0);
	assert_int_equal(transfer.values, 6);
	assert_int_equal(offsets[5], row_at);
	assert_int_equal(get_release(s, 9, &why), 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void windows_of_one_handle_are_released_alone(void **state)
{
	struct why why = WHY_INIT;
	struct get_start get = { 0 };
	struct get_transfer transfer = { 0 };
	uint64_t offsets[64];
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(put_chain(s, 1, 1, 0, 30, KV, 0, &result), 0);
	commit_all(s, 1, 1);
	assert_int_equal(get_chain(s, 1, 1, 30, 4 * FIXTURE_PAGE + 3, &get, &why), 0);
	assert_int_equal(get.bytes, 26 * 4096);
	assert_int_equal(transfer_run(s, 1, 2, 20 * FIXTURE_PAGE, 4 * FIXTURE_PAGE, 12 * FIXTURE_PAGE, offsets, 64, &transfer,
				      &why), 0);
	assert_int_equal(transfer.values, 8);
	assert_int_equal(transfer.handle_ended, false);
	assert_int_equal(transfer_run(s, 1, 3, 21 * FIXTURE_PAGE, 12 * FIXTURE_PAGE, 20 * FIXTURE_PAGE, offsets, 64, &transfer,
				      &why), -EINVAL); /* another boundary */
	assert_int_equal(transfer_run(s, 1, 3, 20 * FIXTURE_PAGE, 8 * FIXTURE_PAGE, 20 * FIXTURE_PAGE, offsets, 64, &transfer,
				      &why), -EINVAL); /* descending */
	assert_int_equal(get_release(s, 2, &why), 0);
	assert_int_equal(transfer_run(s, 1, 3, 20 * FIXTURE_PAGE, 12 * FIXTURE_PAGE, 20 * FIXTURE_PAGE, offsets, 64, &transfer,
				      &why), 0);
	assert_int_equal(transfer.handle_ended, true);
	assert_int_equal(fixture_report(&f).stats.pins, 1);
	assert_int_equal(get_release(s, 3, &why), 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void a_page_is_a_hit_only_when_every_share_is_there(void **state)
{
	static const char two_shares[] = "{\"name\":\"kv\",\"kind\":\"dense\",\"share_of_rank\":[0,1],"
					 "\"planes\":[{\"name\":\"k\",\"bytes\":4096}]}," CLASS_IX;
	struct why why = WHY_INIT;
	struct get_start get = { 0 };
	struct fixture f;
	struct session *a, *b;

	(void)state;
	fixture_open(&f, two_shares, 2, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 1);
	assert_int_equal(put_chain(a, 1, 1, 0, 10, 3, 0, &result), 0);
	assert_int_equal(put_chain(b, 1, 1, 0, 10, 3, 0, &result), 0);
	for (int i = 0; i < 20; i++)
		assert_true(result.answers[i] < PUT_ANSWER_DUPLICATE); /* its own share of both classes */
	commit_all(b, 1, 1);
	assert_int_equal(get_chain(a, 1, 1, 10, 0, &get, &why), 0);
	assert_int_equal(get.raw_prefix_hit_len, 0);
	commit_all(a, 1, 1);
	get = (struct get_start){ 0 };
	assert_int_equal(get_chain(b, 2, 1, 10, 0, &get, &why), 0);
	assert_int_equal(get.all_hit, true);
	assert_int_equal(get_cancel(b, 2, &why), 0);
	assert_int_equal(fixture_report(&f).records, 1);
	assert_at_base(&f, 2);
	session_release(a);
	session_release(b);
	session_unref(&a);
	session_unref(&b);
	fixture_close(&f);
}

static void bad_calls_say_which_argument_and_leave_nothing(void **state)
{
	struct key key = fixture_key(1, 0);
	struct put_group good = { .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = KV, .flags = PUT_ROOT };
	struct {
		struct put_group group;
		uint32_t groups, keys, mask;
		uint64_t plan;
		const char *says;
	} bad[] = {
		{ good, 0, 1, KV, 1, "empty batch" },
		{ good, 1, 0, KV, 1, "empty batch" },
		{ good, 1, 1, 2, 1, "class mask" },
		{ good, 1, 1, 0, 1, "class mask" },
		{ good, 1, 1, KV, 0, "plan: the id is 0" },
		{ good, 1, 2, KV, 1, "the groups have 1 keys together, the call has 2" },
		{ { .consumed = 1, .keys = 1, .class_mask = KV, .flags = PUT_ROOT }, 1, 1, KV, 1, "within a page" },
		{ { .consumed = 2 * FIXTURE_PAGE, .keys = 1, .class_mask = KV, .flags = PUT_ROOT }, 1, 1, KV, 1, "has 1 pages" },
		{ { .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = KV }, 1, 1, KV, 1, "not a ROOT" },
		{ { .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = KV, .flags = 64 }, 1, 1, KV, 1, "unknown flags" },
		{ { .consumed = FIXTURE_PAGE, .keys = 0, .class_mask = KV, .flags = PUT_ROOT }, 1, 1, KV, 1, "it has no key" },
		{ { .consumed = FIXTURE_PAGE, .keys = 1, .class_mask = KV, .flags = PUT_ROW_ONLY }, 1, 1, KV, 1, "ROW_ONLY" },
	};
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int r = put_run(s, bad[i].plan, &bad[i].group, bad[i].groups, &key, bad[i].keys, bad[i].mask, &result);

		assert_int_equal(r, -EINVAL);
		if (!strstr(result.why.text, bad[i].says))
			fail_msg("case %zu: \"%s\" does not say \"%s\"", i, result.why.text, bad[i].says);
	}
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

/* A grant that is cut, and whose population ends with @error. */
static void grant_ends_with(struct space *space, int error)
{
	struct slots_grant grant;
	uint32_t id;

	lock_take(&space->lock);
	assert_int_equal(slots_grant_begin(space->slots, 0, 0, TABLES_NONE, &id), 0);
	assert_true(slots_grant_get(space->slots, id, &grant));
	assert_int_equal(budget_take(&space->host->budget, space->floor_bytes, space->granted_bytes, grant.length), BUDGET_OK);
	space->granted_bytes += grant.length;
	lock_drop(&space->lock);
	space_grant_done(space, id, error, 0);
}

static void grants_are_short_until_one_finds_memory(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 16 * MIB, NULL);
	assert_int_equal(fixture_report(&f).grants_short, 0);
	grant_ends_with(f.space, -ENOMEM);
	grant_ends_with(f.space, -ENOMEM);
	assert_int_equal(fixture_report(&f).grants_short, 2);
	grant_ends_with(f.space, 0);
	assert_int_equal(fixture_report(&f).grants_short, 0);
	assert_int_equal(fixture_report(&f).stats.grants_failed, 2);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_then_get_gives_the_same_places),
		cmocka_unit_test(a_second_put_is_answered_exists_and_a_concurrent_one_inflight),
		cmocka_unit_test(a_repeated_key_is_a_duplicate_also_within_a_chunk),
		cmocka_unit_test(full_memory_evicts_the_coldest_leaves_and_keeps_what_is_held),
		cmocka_unit_test(a_value_that_known_keys_lack_evicts_too),
		cmocka_unit_test(making_room_spares_what_later_groups_of_the_call_name),
		cmocka_unit_test(a_page_that_only_its_child_kept_may_go_while_room_is_made),
		cmocka_unit_test(a_group_that_finds_no_room_is_undone_whole),
		cmocka_unit_test(slots_of_an_ended_session_rest_until_its_process_is_gone),
		cmocka_unit_test(slots_rest_until_client_and_guard_are_gone),
		cmocka_unit_test(a_guard_is_shown_until_it_is_gone),
		cmocka_unit_test(a_whole_group_waits_for_another_plans_key),
		cmocka_unit_test(rows_make_boundaries_restorable),
		cmocka_unit_test(windows_of_one_handle_are_released_alone),
		cmocka_unit_test(a_page_is_a_hit_only_when_every_share_is_there),
		cmocka_unit_test(bad_calls_say_which_argument_and_leave_nothing),
		cmocka_unit_test(grants_are_short_until_one_finds_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
