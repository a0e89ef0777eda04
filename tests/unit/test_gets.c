/* SPDX-License-Identifier: Apache-2.0
 *
 * What GET_START answers where classes differ: the worked examples of docs/ranks-and-classes.md, and rows that are put where it wants them.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>

#include "store/host_private.h"
#include "store/manage.h"

#define MIB (1ull << 20)
#define CLASS_WINDOW(sink) "{\"name\":\"swa\",\"kind\":\"window\",\"sink\":" #sink ",\"last\":2,\"planes\":[{\"name\":\"w\",\"bytes\":2000}]}"

static struct put_result result;

/* Puts one page of a chain, of these classes. */
static void put_page(struct session *s, uint64_t plan, uint32_t page, uint32_t mask)
{
	assert_int_equal(put_chain(s, plan, 1, page, 1, mask, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, plan, 1);
}

/* A row at the end of page @page - 1, or at @consumed within the next one. */
static int put_row(struct session *s, uint64_t plan, uint32_t page, uint64_t consumed, uint32_t mask, uint32_t flags)
{
	struct key key = consumed % FIXTURE_PAGE ? fixture_key(100 + consumed, page) : fixture_key(1, page - 1);
	struct put_group group = {
		.consumed = consumed,
		.keys = 1,
		.class_mask = mask,
		.flags = PUT_ROW_ONLY | flags,
	};

	if (page)
		group.parent = fixture_key(1, consumed % FIXTURE_PAGE ? page - 1 : page - 2);
	assert_int_equal(put_run(s, plan, &group, 1, &key, 1, mask, &result), 0);
	if (result.status[0] == PUT_OK)
		commit_all(s, plan, 1);
	return (int)result.status[0];
}

static uint64_t restorable_words[4]; /* of the last one */
#define restorable_bits restorable_words[0]

static void get(struct session *s, uint64_t handle, uint32_t pages, uint64_t have, struct get_start *call)
{
	struct why why = WHY_INIT;

	memset(restorable_words, 0, sizeof(restorable_words));
	call->restorable = restorable_words;
	if (get_chain(s, handle, 1, pages, have, call, &why))
		fail_msg("get: %s", why.text);
}

static void cancel(struct session *s, uint64_t handle)
{
	struct why why = WHY_INIT;

	assert_int_equal(get_cancel(s, handle, &why), 0);
}

static struct session *begin(struct fixture *f, const char *classes)
{
	fixture_open(f, classes, 1, 64 * MIB, 32 * MIB, NULL);
	return fixture_session(f, 0);
}

static void end(struct fixture *f, struct session *s)
{
	assert_at_base(f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(f);
}

/* gpt-oss: six pages, of the window those of pages 0, 3 and 4. */
static void windows(void **state)
{
	struct get_transfer transfer = { 0 };
	struct get_start call = { 0 };
	uint64_t offsets[16];
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s = begin(&f, CLASS_KV "," CLASS_WINDOW(0));

	(void)state;
	for (uint32_t i = 0; i < 6; i++)
		put_page(s, 1 + i, i, i == 0 || i == 3 || i == 4 ? 3 : 1);
	get(s, 20, 6, 0, &call);
	assert_int_equal(restorable_bits, 1 | 1 << 4);
	assert_int_equal(call.raw_prefix_hit_len, 384);
	assert_int_equal(call.transferable_len, 320);
	assert_int_equal(call.dense_len, 384);
	assert_int_equal(call.would_len, 320);
	assert_int_equal(call.bytes, 5 * 4096 + 2 * 2000);
	memset(offsets, 7, sizeof(offsets));
	assert_int_equal(transfer_run(s, 20, 21, 320, 0, 320, offsets, 10, &transfer, &why), 0);
	assert_int_equal(transfer.delivered_len, 320);
	assert_int_equal(transfer.values, 7);
	for (uint32_t i = 0; i < 5; i++) {
		assert_true(offsets[i] < PUT_ANSWER_NONE - 15);
		assert_int_equal(offsets[5 + i] == PUT_ANSWER_NONE, i < 3); /* what 320 does not need is not delivered */
	}
	assert_int_equal(get_release(s, 21, &why), 0);

	call = (struct get_start){ 0 };
	get(s, 22, 6, 256, &call);
	assert_int_equal(restorable_bits, 1 << 4);
	assert_int_equal(call.transferable_len, 320);
	assert_int_equal(call.bytes, 4096 + 2000);
	cancel(s, 22);
	end(&f, s);
}

/* Of a sink every value is needed, whatever comes behind it. */
static void sinks(void **state)
{
	struct get_start call = { 0 };
	struct fixture f;
	struct session *s = begin(&f, CLASS_KV "," CLASS_WINDOW(1));

	(void)state;
	for (uint32_t i = 0; i < 6; i++)
		put_page(s, 1 + i, i, i == 3 || i == 4 ? 3 : 1);
	get(s, 20, 6, 0, &call);
	assert_int_equal(restorable_bits, 0);
	assert_int_equal(call.raw_prefix_hit_len, 0);
	assert_int_equal(call.dense_len, 0);
	assert_false(call.handle_live);
	put_page(s, 10, 0, 2);
	call = (struct get_start){ 0 };
	get(s, 21, 6, 0, &call);
	assert_int_equal(restorable_bits, 1 | 1 << 4);
	assert_int_equal(call.transferable_len, 320);
	cancel(s, 21);
	end(&f, s);
}

/* Windows alone: a page that lacks its value is a miss, and yet the search goes on. */
static void windows_alone(void **state)
{
	struct get_transfer transfer = { 0 };
	struct get_start call = { 0 };
	uint64_t offsets[6];
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s = begin(&f, CLASS_WINDOW(0));

	(void)state;
	assert_int_equal(put_chain(s, 1, 1, 0, 6, 1, 0, &result), 0);
	commit_all(s, 1, 1);
	get(s, 20, 6, 0, &call);
	assert_int_equal(restorable_bits, 63);
	assert_int_equal(call.transferable_len, 384);
	assert_int_equal(call.bytes, 2 * 2000);
	assert_int_equal(transfer_run(s, 20, 21, 384, 0, 384, offsets, 6, &transfer, &why), 0);
	assert_int_equal(transfer.values, 2);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(offsets[i] == PUT_ANSWER_NONE, i < 4);
	assert_int_equal(get_release(s, 21, &why), 0);

	/* of pages 1 and 2 the names alone are left */
	struct key keys[2] = { fixture_key(1, 1), fixture_key(1, 2) };
	struct removal removal = { .session = s, .keys = keys, .key_count = 2 };

	assert_int_equal(removal_begin(&removal, &why), STEP_MORE);
	assert_int_equal(removal_step(&removal, &why), 0);
	assert_int_equal(removal.removed, 2);
	call = (struct get_start){ 0 };
	get(s, 22, 6, 0, &call);
	assert_int_equal(restorable_bits, 1 | 1 << 4 | 1 << 5);
	assert_int_equal(call.raw_prefix_hit_len, 64);
	assert_int_equal(call.first_miss_index, 1);
	assert_int_equal(call.transferable_len, 384);
	transfer = (struct get_transfer){ 0 };
	assert_int_equal(transfer_run(s, 22, 23, 384, 0, 192, offsets, 6, &transfer, &why), 0);
	assert_int_equal(transfer.values, 0);
	assert_int_equal(transfer.delivered_len, 192);
	transfer = (struct get_transfer){ 0 };
	assert_int_equal(transfer_run(s, 22, 24, 384, 192, 384, offsets, 6, &transfer, &why), 0);
	assert_int_equal(transfer.values, 2);
	assert_int_equal(get_release(s, 23, &why), 0);
	assert_int_equal(get_release(s, 24, &why), 0);
	end(&f, s);
}

/* Dense reaches 384, windows allow 64 and 320, rows stand at 64 and 256. */
static void the_fixpoint_and_its_demand(void **state)
{
	uint64_t wanted[8] = { 0 };
	struct get_start call = { .wanted = wanted, .wanted_capacity = 8 };
	struct fixture f;
	struct session *s = begin(&f, CLASS_KV "," CLASS_WINDOW(0) "," CLASS_STATE);

	(void)state;
	for (uint32_t i = 0; i < 6; i++)
		put_page(s, 1 + i, i, i == 0 || i == 3 || i == 4 ? 3 : 1);
	assert_int_equal(put_row(s, 10, 1, 64, 4, 0), PUT_OK);
	assert_int_equal(put_row(s, 11, 4, 256, 4, PUT_RUNG), PUT_OK);
	get(s, 20, 6, 0, &call);
	assert_int_equal(restorable_bits, 1);
	assert_int_equal(call.transferable_len, 64);
	assert_int_equal(call.would_len, 320);
	assert_int_equal(call.dense_len, 384);
	assert_int_equal(call.demand, 320);
	assert_int_equal(call.wanted_count, 1);
	assert_int_equal(wanted[0], 320);
	cancel(s, 20);
	struct stats stats = fixture_report(&f).stats;
	assert_int_equal(stats.requests, 1);
	assert_int_equal(stats.dense_hit_tokens, 384);
	assert_int_equal(stats.hit_tokens, 64);
	assert_int_equal(stats.lost_to_checkpoint_tokens, 256);
	assert_int_equal(stats.lost_unrecoverable_tokens, 64);
	assert_int_equal(stats.rows_wanted, 1);
	assert_int_equal(stats.rows_put, 2);
	assert_int_equal(fixture_report(&f).demands.open, 1);

	assert_int_equal(put_row(s, 12, 5, 320, 4, 0), PUT_OK); /* it is acted on */
	assert_int_equal(fixture_report(&f).demands.demands_acted, 1);
	assert_int_equal(fixture_report(&f).demands.kept_now, 1);
	call = (struct get_start){ .wanted = wanted, .wanted_capacity = 8 };
	get(s, 21, 6, 0, &call);
	assert_int_equal(call.transferable_len, 320);
	assert_int_equal(call.demand, 0);
	assert_int_equal(call.wanted_count, 0);
	cancel(s, 21);
	end(&f, s);
}

/* Four requests share 15 pages of 64 and part of the next: 0, 0, 960 and 960 tokens are restored. */
static void four_requests(void **state)
{
	static const uint64_t restored[4] = { 0, 0, 960, 960 };
	uint64_t wanted[8];
	struct fixture f;
	struct session *s = begin(&f, CLASS_KV "," CLASS_STATE);

	(void)state;
	for (uint64_t r = 0; r < 4; r++) {
		struct get_start call = { .wanted = wanted, .wanted_capacity = 8 };
		struct why why = WHY_INIT;
		struct key keys[16];

		for (uint32_t i = 0; i < 16; i++)
			keys[i] = fixture_key(i < 15 ? 1 : 10 + r, i);
		call.session = s;
		call.handle = 20 + r;
		call.keys = keys;
		call.key_count = 16;
		assert_int_equal(get_start_begin(&call, &why), 0);
		assert_int_equal(get_start_step(&call, &why), 0);
		assert_int_equal(call.transferable_len, restored[r]);
		assert_int_equal(call.demand, r == 1 ? 960 : 0);
		assert_int_equal(call.wanted_count, r == 1);
		if (call.handle_live)
			cancel(s, 20 + r);
		struct put_group groups[2] = {
			{ .consumed = 960, .keys = 15, .class_mask = r == 1 ? 3 : 1, .flags = PUT_ROOT },
			{ .parent = keys[14], .consumed = 1024, .keys = 1, .class_mask = 1 },
		};
		assert_int_equal(put_run(s, 40 + r, groups, 2, keys, 16, 3, &result), 0);
		commit_all(s, 40 + r, 2);
	}
	struct stats stats = fixture_report(&f).stats;
	assert_int_equal(stats.dense_hit_tokens, 3 * 960);
	assert_int_equal(stats.hit_tokens, 2 * 960);
	assert_int_equal(stats.lost_to_checkpoint_tokens, 960);
	assert_int_equal(stats.lost_unrecoverable_tokens, 0);
	end(&f, s);
}

static void wanted_boundaries_of_the_grid(void **state)
{
	uint64_t wanted[4] = { 0 };
	struct get_start call = { .wanted = wanted, .wanted_capacity = 4, .prompt_len = 40000, .room = 64 };
	struct fixture f;
	struct session *s = begin(&f, CLASS_KV "," CLASS_STATE);

	(void)state;
	get(s, 20, 130, 0, &call); /* nothing is there, and 130 pages end at 8,320 */
	assert_int_equal(call.wanted_count, 4);
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(wanted[i], (i + 1) * 8192);
	assert_int_equal(put_chain(s, 1, 1, 0, 128, 3, 0, &result), 0); /* its row stands at 8,192 */
	commit_all(s, 1, 1);
	call = (struct get_start){ .wanted = wanted, .wanted_capacity = 2, .prompt_len = 32768 + 64, .room = 64 };
	get(s, 21, 130, 0, &call);
	assert_int_equal(call.transferable_len, 8192);
	assert_int_equal(call.wanted_count, 3);
	assert_int_equal(wanted[0], 16384);
	assert_int_equal(wanted[1], 24576);
	cancel(s, 21);
	call = (struct get_start){ .wanted = wanted, .wanted_capacity = 2, .class_mask = 1 };
	get(s, 22, 130, 0, &call);
	assert_int_equal(call.wanted_count, 0); /* no state is asked for */
	cancel(s, 22);
	end(&f, s);
}

static void rows_need_their_page(void **state)
{
	struct fixture f;
	struct session *s = begin(&f, CLASS_KV "," CLASS_STATE);
	struct key keys[2] = { fixture_key(1, 0), fixture_key(1, 0) };
	struct put_group groups[2] = {
		{ .consumed = 64, .keys = 1, .class_mask = 1, .flags = PUT_ROOT },
		{ .consumed = 64, .keys = 1, .class_mask = 2, .flags = PUT_ROW_ONLY | PUT_ROOT },
	};
	struct why why = WHY_INIT;

	(void)state;
	assert_int_equal(put_row(s, 1, 1, 64, 2, PUT_ROOT), PUT_NOPAGES);
	assert_true(result.answers[0] == PUT_ANSWER_NONE);
	assert_int_equal(result.groups_ok, 0);
	assert_int_equal(fixture_report(&f).stats.put_noroom, 0);
	assert_int_equal(put_row(s, 2, 1, 100, 2, 0), PUT_OK); /* within a page its parent may come later */

	assert_int_equal(put_run(s, 3, groups, 2, keys, 2, 3, &result), 0); /* the same plan is writing it */
	assert_int_equal(result.status[0], PUT_OK);
	assert_int_equal(result.status[1], PUT_OK);
	assert_int_equal(end_run(s, 3, false, 0, 2, (uint32_t[2]){ 0 }, NULL, &why), 0);

	assert_int_equal(put_run(s, 4, &groups[1], 1, keys, 1, 2, &result), 0); /* it was given up */
	assert_int_equal(result.status[0], PUT_NOPAGES);
	groups[0].flags |= PUT_RUNG;
	assert_int_equal(put_run(s, 5, groups, 1, keys, 1, 1, &result), -EINVAL);
	assert_non_null(strstr(result.why.text, "RUNG takes a row"));
	end(&f, s);
}

/* Page 1, of @in_flight pages, is given up while a row stands at its end and, if @within, one within the page behind it; and comes anew amid a
 * longer record. */
static void give_up_and_put_anew(struct session *s, uint32_t in_flight, bool within)
{
	struct why why = WHY_INIT;

	put_page(s, 1, 0, 1);
	assert_int_equal(put_chain(s, 2, 1, 1, in_flight, 1, 0, &result), 0);
	assert_int_equal(put_row(s, 3, 2, 128, 2, 0), PUT_OK);
	if (within)
		assert_int_equal(put_row(s, 4, 2, 148, 2, 0), PUT_OK);
	assert_int_equal(end_run(s, 2, false, 0, 1, (uint32_t[1]){ 0 }, NULL, &why), 0);
	assert_int_equal(put_chain(s, 5, 1, 1, 3, 1, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, 5, 1);
}

static void rows_are_found_when_their_page_came_anew(void **state)
{
	(void)state;
	for (uint32_t in_flight = 1; in_flight <= 2; in_flight++) /* the row stood with it, or apart */
		for (uint32_t within = 0; within < 2; within++) {
			struct get_candidate candidates[4];
			struct get_start call = { .candidates = candidates, .candidates_capacity = 4 };
			struct fixture f;
			struct session *s = begin(&f, CLASS_KV "," CLASS_STATE);

			give_up_and_put_anew(s, in_flight, within);
			get(s, 20, 4, 0, &call);
			assert_int_equal(call.transferable_len, 128);
			assert_int_equal(call.dense_len, 256);
			assert_int_equal(call.candidate_count, within);
			if (within)
				assert_int_equal(candidates[0].consumed, 148);
			cancel(s, 20);
			end(&f, s);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(windows),
		cmocka_unit_test(sinks),
		cmocka_unit_test(windows_alone),
		cmocka_unit_test(the_fixpoint_and_its_demand),
		cmocka_unit_test(four_requests),
		cmocka_unit_test(wanted_boundaries_of_the_grid),
		cmocka_unit_test(rows_need_their_page),
		cmocka_unit_test(rows_are_found_when_their_page_came_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
