/* SPDX-License-Identifier: Apache-2.0
 *
 * Put tickets: the first rank gets room for all or for none, and the others find theirs.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>

#include "store/fills.h"
#include "store/host_private.h"
#include "store/ticket.h"

#define MIB (1ull << 20)
#define PAGES 100u
#define CLASS_BIG "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":65536}]}"
#define CLASS_ONE_SHARE "{\"name\":\"kv\",\"kind\":\"dense\",\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"k\",\"bytes\":4096}]}"

#define UNEVEN(name) "{\"name\":\"" name "\",\"kind\":\"dense\",\"share_planes\":[[{\"name\":\"k\",\"bytes\":4096}]," \
	"[{\"name\":\"k\",\"bytes\":61440}]]}"
#define CLASS_UNEVEN UNEVEN("kv")
#define CLASS_UNEVEN_TOO UNEVEN("ix")

static struct put_result result[2];

/* A PUT_START of @groups groups under a ticket, of pages and their row, each of a chain of its own, stepped to its end. */
static int put_groups(struct session *s, uint64_t plan, uint8_t ticket, uint64_t chain, uint32_t groups, uint32_t pages, uint32_t mask,
		      uint64_t deadline_ns, struct put_result *r)
{
	static struct key keys[8192];
	struct put_group group[2];
	struct put_start call = {
		.session = s,
		.plan = plan,
		.groups = group,
		.group_count = groups,
		.keys = keys,
		.key_count = groups * pages,
		.class_mask = mask,
		.ticket = { ticket },
		.deadline_ns = deadline_ns,
		.answers = r->answers,
		.status = r->status,
	};

	for (uint32_t g = 0; g < groups; g++)
		group[g] = (struct put_group){
			.consumed = (uint64_t)pages * FIXTURE_PAGE,
			.keys = pages,
			.class_mask = mask,
			.flags = PUT_ROOT,
		};
	for (uint32_t i = 0; i < groups * pages; i++)
		keys[i] = fixture_key(chain + i / pages, i % pages);
	r->why = (struct why)WHY_INIT;
	r->error = put_start_begin(&call, &r->why);
	while (!r->error && (r->error = put_start_step(&call, &r->why)) == STEP_MORE)
		r->error = 0;
	r->new_values = call.new_values;
	r->groups_ok = call.groups_ok;
	return r->error;
}

static int put_under(struct session *s, uint64_t plan, uint8_t ticket, uint64_t chain, uint32_t pages, uint32_t mask, uint64_t deadline_ns,
		     struct put_result *r)
{
	return put_groups(s, plan, ticket, chain, 1, pages, mask, deadline_ns, r);
}

static void open_two(struct fixture *f, const char *classes, uint64_t memory, struct session **s)
{
	fixture_open(f, classes, 2, memory, memory / 2, NULL);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_session(f, i);
}

static void close_two(struct fixture *f, struct session **s)
{
	struct space_report r = fixture_report(f);

	assert_int_equal(r.stats.ticket_slots, 0);
	assert_int_equal(r.stats.ticket_pins, 0);
	assert_at_base(f, (uint32_t)(s[0] != NULL) + (s[1] != NULL));
	for (uint32_t i = 0; i < 2; i++)
		if (s[i]) {
			session_release(s[i]);
			session_unref(&s[i]);
		}
	fixture_close(f);
}

static void check(struct fixture *f)
{
	lock_take(&f->space->lock);
	index_check(f->space->index);
	slots_check(f->space->slots);
	lock_drop(&f->space->lock);
}

static void others_find_their_room(void **state)
{
	struct session *s[2];
	struct fixture f;
	uint64_t free;

	(void)state;
	open_two(&f, CLASS_KV "," CLASS_STATE, 64 * MIB, s);
	free = fixture_report(&f).slots_free;
	assert_int_equal(put_under(s[0], 1, 9, 1, PAGES, 3, 0, &result[0]), 0);
	assert_int_equal(result[0].new_values, PAGES + 1);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, PAGES + 1);
	assert_int_equal(fixture_report(&f).slots_free, free - 2 * (PAGES + 1));
	check(&f);
	assert_int_equal(put_under(s[0], 2, 9, 1, PAGES, 3, 0, &result[1]), -EEXIST);
	assert_non_null(strstr(result[1].why.text, "rank 0"));
	assert_int_equal(put_under(s[1], 2, 9, 1, PAGES - 1, 3, 0, &result[1]), -EINVAL);
	assert_int_equal(put_under(s[1], 3, 9, 1, PAGES, 3, 0, &result[1]), 0);
	assert_int_equal(result[1].new_values, PAGES + 1);
	assert_int_equal(result[1].status[0], PUT_OK);
	assert_int_equal(fixture_report(&f).slots_free, free - 2 * (PAGES + 1));
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	check(&f);
	commit_all(s[1], 3, 1); /* in any order */
	commit_all(s[0], 1, 1);
	assert_int_equal(fixture_report(&f).stats.put_tickets, 1);
	assert_int_equal(fixture_report(&f).stats.put_tickets_short, 0);

	struct get_start get = { 0 };
	struct why why = WHY_INIT;

	assert_int_equal(get_chain(s[0], 1, 1, PAGES, 0, &get, &why), 0);
	assert_int_equal(get.transferable_len, PAGES * FIXTURE_PAGE);
	assert_int_equal(get_cancel(s[0], 1, &why), 0);

	/* what is there already needs no room */
	assert_int_equal(put_under(s[1], 4, 8, 1, PAGES, 3, 0, &result[1]), 0);
	assert_int_equal(result[1].new_values, 0);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	assert_int_equal(fixture_report(&f).stats.ticket_pins, 1);
	assert_int_equal(put_under(s[0], 4, 8, 1, PAGES, 3, 0, &result[0]), 0);
	assert_int_equal(fixture_report(&f).stats.ticket_pins, 0);
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 4, 1);
	close_two(&f, s);
}

/* Of two shares one has room and the other has not: none gets any. */
static void room_for_all_or_for_none(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, CLASS_BIG, 16 * MIB, s);
	assert_int_equal(put_under(s[1], 1, 0, 7, 60, 1, 0, &result[1]), 0); /* open, so that nothing of it can go */
	assert_int_equal(result[1].status[0], PUT_OK);
	assert_int_equal(put_under(s[0], 1, 9, 1, 110, 1, 0, &result[0]), 0);
	assert_int_equal(result[0].status[0], PUT_NOROOM);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	assert_int_equal(put_under(s[1], 2, 9, 1, 110, 1, 0, &result[1]), 0);
	assert_int_equal(result[1].status[0], PUT_NOROOM);
	assert_int_equal(result[1].new_values, 0);
	assert_int_equal(end_run(s[1], 1, false, 0, 1, (uint32_t[1]){ 0 }, NULL, &(struct why){ 0 }), 0);
	close_two(&f, s);
}

/* 256 slots of 64 KiB. Half of them for each rank is what can be had, all of it; one more can never be: that is said at once, and nothing goes
 * for it. */
static void all_of_memory_and_no_more(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_BIG, 2, 16 * MIB, 16 * MIB, NULL);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_session(&f, i);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(put_under(s[i], 1, 9, 1, 128, 1, 0, &result[i]), 0);
		assert_int_equal(result[i].status[0], PUT_OK);
		assert_int_equal(result[i].new_values, 128);
	}
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 1, 1);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(put_under(s[i], 2, 8, 2, 129, 1, 0, &result[i]), 0);
		assert_int_equal(result[i].status[0], PUT_TOOBIG);
	}
	assert_int_equal(fixture_report(&f).stats.put_toobig, 1); /* the other was told so */
	assert_int_equal(fixture_report(&f).pages, 128);
	/* two groups, each of which fits: one now, the other later */
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(put_groups(s[i], 4, 7, 3, 2, 100, 1, 0, &result[i]), 0);
		assert_int_equal(result[i].status[0], PUT_OK);
		assert_int_equal(result[i].status[1], PUT_NOROOM);
	}
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 4, 1);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(put_under(s[i], 5, 6, 4, 100, 1, 0, &result[i]), 0);
		assert_int_equal(result[i].status[0], PUT_OK);
	}
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 5, 1);
	/* without a ticket it is a rank's own, to which others may come later */
	assert_int_equal(put_under(s[0], 3, 0, 2, 129, 1, 0, &result[0]), 0);
	assert_int_equal(result[0].status[0], PUT_NOROOM);
	close_two(&f, s);
}

/* One share is fifteen times the other: 136 pages of it are half of memory, which is what a session may have open. */
static void a_share_of_more_than_half(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_UNEVEN, 2, 16 * MIB, 16 * MIB, NULL);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_session(&f, i);
	assert_int_equal(put_under(s[0], 1, 9, 1, 150, 1, 0, &result[0]), 0);
	assert_int_equal(result[0].status[0], PUT_TOOBIG);
	assert_int_equal(put_under(s[0], 2, 8, 1, 60, 1, 0, &result[0]), 0);
	assert_int_equal(result[0].status[0], PUT_OK);
	assert_int_equal(put_under(s[1], 2, 8, 1, 60, 1, 0, &result[1]), 0);
	assert_int_equal(result[1].new_values, 60);
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 2, 1);
	close_two(&f, s);
}

/* Two classes, of each of which rank 1's share alone would do. */
static void classes_of_a_rank_add_up(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_UNEVEN "," CLASS_UNEVEN_TOO, 2, 16 * MIB, 16 * MIB, NULL);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_session(&f, i);
	assert_int_equal(put_under(s[0], 1, 9, 1, 70, 3, 0, &result[0]), 0); /* 70 x 120 KiB = 8,400 KiB */
	assert_int_equal(result[0].status[0], PUT_TOOBIG);
	assert_int_equal(put_under(s[0], 2, 8, 1, 20, 3, 0, &result[0]), 0);
	assert_int_equal(result[0].status[0], PUT_OK);
	assert_int_equal(put_under(s[1], 2, 8, 1, 20, 3, 0, &result[1]), 0);
	assert_int_equal(result[1].new_values, 40);
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 2, 1);
	close_two(&f, s);
}

static void late_ranks_get_none(void **state)
{
	struct session *s[2];
	struct fixture f;
	uint64_t free;

	(void)state;
	open_two(&f, CLASS_KV, 64 * MIB, s);
	free = fixture_report(&f).slots_free;
	assert_int_equal(put_under(s[0], 1, 9, 1, PAGES, 1, clock_now_ns() + 500000000, &result[0]), 0);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 400000000);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, PAGES);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 600000000);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	assert_int_equal(fixture_report(&f).slots_free, free - PAGES);
	assert_int_equal(fixture_report(&f).stats.put_tickets_short, 1);
	assert_int_equal(put_under(s[1], 1, 9, 1, PAGES, 1, 0, &result[1]), 0);
	assert_int_equal(result[1].status[0], PUT_NOROOM);
	commit_all(s[0], 1, 1);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 61000000000ull); /* forgotten: it is another one */
	assert_int_equal(put_under(s[1], 2, 9, 1, PAGES, 1, 0, &result[1]), 0);
	assert_int_equal(result[1].status[0], PUT_OK);
	assert_int_equal(result[1].new_values, PAGES);
	assert_int_equal(put_under(s[0], 2, 9, 1, PAGES, 1, 0, &result[0]), 0);
	assert_int_equal(result[0].new_values, 0);
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 2, 1);
	close_two(&f, s);
}

static uint64_t abandoned(struct fixture *f)
{
	return fixture_report(f).stats.values_abandoned;
}

/* Of three ranks the third does not come until the deadline: what the others have committed goes then, row and all, and not a minute later. */
static void what_is_half_there_goes_at_the_deadline(void **state)
{
	struct session *s[3];
	struct fixture f;
	uint64_t free;

	(void)state;
	fixture_open(&f, CLASS_KV "," CLASS_STATE, 3, 64 * MIB, 32 * MIB, NULL);
	for (uint32_t i = 0; i < 3; i++)
		s[i] = fixture_session(&f, i);
	free = fixture_report(&f).slots_free;
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(put_under(s[i], 1, 9, 1, PAGES, 3, 0, &result[i]), 0);
		assert_int_equal(result[i].new_values, PAGES + 1);
		commit_all(s[i], 1, 1);
	}
	/* another put of before, of which nobody under the ticket wrote anything */
	assert_int_equal(put_under(s[0], 2, 0, 2, PAGES, 3, 0, &result[0]), 0);
	commit_all(s[0], 2, 1);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 59000000000ull);
	assert_int_equal(abandoned(&f), 0);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 61000000000ull);
	assert_int_equal(abandoned(&f), 2 * (PAGES + 1));
	assert_int_equal(fixture_report(&f).slots_free, free - (PAGES + 1));
	assert_int_equal(fixture_report(&f).records, 1);
	check(&f);
	for (uint32_t i = 0; i < 3; i++) {
		session_release(s[i]);
		session_unref(&s[i]);
	}
	fixture_close(&f);
}

/* The first one has committed, the second one is at it as the deadline passes: nothing of what it writes goes, it commits, and all is there. */
static void who_is_writing_at_the_deadline_goes_on(void **state)
{
	struct session *s[3];
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 3, 64 * MIB, 32 * MIB, NULL);
	for (uint32_t i = 0; i < 3; i++)
		s[i] = fixture_session(&f, i);
	assert_int_equal(put_under(s[0], 1, 9, 1, PAGES, 1, clock_now_ns() + 500000000, &result[0]), 0);
	assert_int_equal(put_under(s[1], 1, 9, 1, PAGES, 1, 0, &result[1]), 0);
	commit_all(s[0], 1, 1);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 600000000);
	assert_int_equal(abandoned(&f), 0);
	commit_all(s[1], 1, 1);
	assert_int_equal(put_under(s[2], 1, 9, 1, PAGES, 1, 0, &result[0]), 0);
	assert_int_equal(result[0].status[0], PUT_NOROOM);
	assert_int_equal(put_under(s[2], 2, 0, 1, PAGES, 1, 0, &result[0]), 0); /* without the ticket it may still */
	assert_int_equal(result[0].new_values, PAGES);
	commit_all(s[2], 2, 1);
	fills_run(f.space->fills, clock_now_ns() + 61000000000ull);
	fills_run(f.space->fills, clock_now_ns() + 122000000000ull);
	assert_int_equal(abandoned(&f), 0);
	assert_at_base(&f, 3);
	for (uint32_t i = 0; i < 3; i++) {
		session_release(s[i]);
		session_unref(&s[i]);
	}
	fixture_close(&f);
}

/* All have come: what one of them then loses is a matter of fill_ttl, for it may put it again. */
static void a_rank_that_came_and_dies(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, CLASS_KV, 64 * MIB, s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(put_under(s[i], 1, 9, 1, PAGES, 1, 0, &result[i]), 0);
	commit_all(s[0], 1, 1);
	host_process_gone(f.host, s[1]->number);
	session_unref(&s[1]);
	put_tickets_run(f.space->put_tickets, clock_now_ns() + 61000000000ull);
	assert_int_equal(abandoned(&f), 0);
	fills_run(f.space->fills, clock_now_ns() + 61000000000ull);
	fills_run(f.space->fills, clock_now_ns() + 122000000000ull);
	assert_int_equal(abandoned(&f), PAGES);
	assert_int_equal(fixture_report(&f).records, 0);
	close_two(&f, s);
}

static void a_death_is_its_own(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, CLASS_KV, 64 * MIB, s);
	assert_int_equal(put_under(s[0], 1, 9, 1, PAGES, 1, 0, &result[0]), 0);
	host_process_gone(f.host, s[0]->number);
	session_unref(&s[0]);
	assert_int_equal(put_under(s[1], 1, 9, 1, PAGES, 1, 0, &result[1]), 0);
	assert_int_equal(result[1].new_values, PAGES);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	commit_all(s[1], 1, 1);
	close_two(&f, s);
}

/* Two ranks with the same bytes: one slot, one writer. */
static void one_share_of_two_ranks(void **state)
{
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, CLASS_ONE_SHARE, 64 * MIB, s);
	assert_int_equal(put_under(s[0], 1, 9, 1, PAGES, 1, 0, &result[0]), 0);
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	assert_int_equal(put_under(s[1], 1, 9, 1, PAGES, 1, 0, &result[1]), 0);
	assert_int_equal(result[1].new_values, 0);
	assert_true(result[1].answers[0] == PUT_ANSWER_INFLIGHT);
	for (uint32_t i = 0; i < 2; i++)
		commit_all(s[i], 1, 1);
	close_two(&f, s);
}

/* Two groups of three ranks: while the second one is at the first group the third one comes and is done. It was the last to come, and the
 * ticket ended under the second one's hands, which was told NOROOM for its other group. */
static void who_is_under_way_keeps_what_was_decided(void **state)
{
	enum { FIRST = 1200, SECOND = 50 };
	static struct key keys[FIRST + SECOND];
	static uint64_t answers[3][FIRST + SECOND];
	struct put_group groups[2] = {
		{ .consumed = FIRST * FIXTURE_PAGE, .keys = FIRST, .class_mask = 1, .flags = PUT_ROOT },
		{ .consumed = (FIRST + SECOND) * FIXTURE_PAGE, .keys = SECOND, .class_mask = 1 },
	};
	struct put_start call[3];
	uint32_t status[3][2];
	struct session *s[3];
	struct why why = WHY_INIT;
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 3, 512 * MIB, 256 * MIB, NULL);
	for (uint32_t i = 0; i < FIRST + SECOND; i++)
		keys[i] = fixture_key(1, i);
	groups[1].parent = keys[FIRST - 1];
	for (uint32_t i = 0; i < 3; i++) {
		s[i] = fixture_session(&f, i);
		call[i] = (struct put_start){
			.session = s[i],
			.plan = 1,
			.groups = groups,
			.group_count = 2,
			.keys = keys,
			.key_count = FIRST + SECOND,
			.class_mask = 1,
			.ticket = { 9 },
			.answers = answers[i],
			.status = status[i],
		};
		assert_int_equal(put_start_begin(&call[i], &why), 0);
	}
	while (put_start_step(&call[0], &why) == STEP_MORE)
		;
	while (!call[1].put.ticket || call[1].key == 0)
		assert_int_equal(put_start_step(&call[1], &why), STEP_MORE);
	assert_int_equal(call[1].group, 0);
	while (put_start_step(&call[2], &why) == STEP_MORE)
		;
	while (put_start_step(&call[1], &why) == STEP_MORE)
		;
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(status[i][0], PUT_OK);
		assert_int_equal(status[i][1], PUT_OK);
		assert_int_equal(call[i].new_values, FIRST + SECOND);
		commit_all(s[i], 1, 2);
	}
	assert_int_equal(fixture_report(&f).stats.ticket_slots, 0);
	assert_at_base(&f, 3);
	for (uint32_t i = 0; i < 3; i++) {
		session_release(s[i]);
		session_unref(&s[i]);
	}
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_find_their_room),
		cmocka_unit_test(room_for_all_or_for_none),
		cmocka_unit_test(all_of_memory_and_no_more),
		cmocka_unit_test(a_share_of_more_than_half),
		cmocka_unit_test(classes_of_a_rank_add_up),
		cmocka_unit_test(late_ranks_get_none),
		cmocka_unit_test(what_is_half_there_goes_at_the_deadline),
		cmocka_unit_test(who_is_writing_at_the_deadline_goes_on),
		cmocka_unit_test(a_rank_that_came_and_dies),
		cmocka_unit_test(a_death_is_its_own),
		cmocka_unit_test(one_share_of_two_ranks),
		cmocka_unit_test(who_is_under_way_keeps_what_was_decided),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
