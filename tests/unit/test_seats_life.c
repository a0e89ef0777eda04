/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats and words while sessions put and get, through store/, without a mount.
 */
#include "tests/unit/tier_world.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/process.h"
#include "store/manage.h"
#include "store/seating.h"

#define MIB (1ull << 20)
#define KV 1u
#define PAGES 100u

static struct put_result result;

/* ---- looking ------------------------------------------------------------------------------------------------------------ */

static uint32_t entry_of(struct fixture *f, uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct index_hit hit;
	bool committed;
	uint32_t entry;

	lock_take(&f->space->lock);
	index_lookup(f->space->index, &key, 1, ~0u, &hit);
	entry = index_value(f->space->index, hit.record, hit.page, 0, &committed);
	lock_drop(&f->space->lock);
	return entry;
}

static void slots_of(struct fixture *f, uint64_t chain, uint32_t slots[PAGES])
{
	for (uint32_t i = 0; i < PAGES; i++) {
		slots[i] = entry_of(f, chain, i);
		assert_true(slots[i] < f->space->tables.slot_capacity);
	}
}

/* All slots have this word and so many holds; and everything else is as it is to be. */
static void assert_words(struct fixture *f, const uint32_t slots[PAGES], uint64_t word, uint32_t holds)
{
	lock_take(&f->space->lock);
	for (uint32_t i = 0; i < PAGES; i++) {
		assert_int_equal(f->space->tables.users[slots[i]], word);
		assert_int_equal(f->space->holds[slots[i]], holds);
	}
	index_check(f->space->index);
	slots_check(f->space->slots);
	lock_drop(&f->space->lock);
}

static void assert_entries(struct fixture *f, const uint32_t slots[PAGES], enum entry_state state)
{
	lock_take(&f->space->lock);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(f->space->tables.entries[slots[i]].state, state);
	lock_drop(&f->space->lock);
}

static enum seat_state seat(struct fixture *f, uint32_t number)
{
	enum seat_state state;

	lock_take(&f->space->lock);
	state = seats_state(&f->space->tables, number);
	lock_drop(&f->space->lock);
	return state;
}

static uint32_t seat_of(struct fixture *f, const struct session *s)
{
	uint32_t number;

	lock_take(&f->space->lock);
	number = s->seat;
	lock_drop(&f->space->lock);
	return number;
}

/* ---- doing -------------------------------------------------------------------------------------------------------------- */

static void put(struct session *s, uint64_t plan, uint64_t chain)
{
	assert_int_equal(put_chain(s, plan, chain, 0, PAGES, KV, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	assert_int_equal(result.new_values, PAGES);
}

static void stored(struct session *s, uint64_t plan, uint64_t chain)
{
	put(s, plan, chain);
	commit_all(s, plan, 1);
}

/* A get plan over the whole chain; its number is that of the handle. */
static void get(struct session *s, uint64_t plan, uint64_t chain)
{
	struct get_transfer transfer = { .deadline_ns = clock_now_ns() + WORLD_NS };
	struct get_start start = { 0 };
	static uint64_t offsets[PAGES];
	struct why why = WHY_INIT;
	int r;

	assert_int_equal(get_chain(s, plan, chain, PAGES, 0, &start, &why), 0);
	assert_int_equal(start.all_hit, true);
	while ((r = transfer_run(s, plan, plan, PAGES * FIXTURE_PAGE, 0, PAGES * FIXTURE_PAGE, offsets, PAGES, &transfer, &why)) ==
	       STEP_WAIT)
		fail_msg("a transfer that waits");
	if (r)
		fail_msg("transfer: %s", why.text);
	assert_int_equal(transfer.values, PAGES);
}

static void release(struct session *s, uint64_t plan)
{
	struct why why = WHY_INIT;

	assert_int_equal(get_release(s, plan, &why), 0);
}

static void end(struct fixture *f, struct session **s, bool process_too)
{
	uint64_t number = session_number(*s);

	session_release(*s);
	session_unref(s);
	if (process_too)
		host_process_gone(f->host, number);
}

/* ---- without a disk ------------------------------------------------------------------------------------------------------ */

static void a_put_has_a_seat_and_its_slots_have_its_bit(void **state)
{
	struct session *a, *b;
	uint32_t slots[PAGES], others[PAGES], status[1];
	struct why why = WHY_INIT;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	assert_int_equal(seat_of(&f, a), SEATS_NONE);
	assert_int_equal(seat(&f, 0), SEAT_FREE);
	put(b, 1, 1);
	put(a, 1, 2);
	assert_int_equal(seat_of(&f, b), 0);
	assert_int_equal(seat_of(&f, a), 1);
	assert_int_equal(seat(&f, 0), SEAT_TAKEN);
	assert_int_equal(seat(&f, 2), SEAT_FREE);
	assert_int_equal(f.space->tables.seats[0].session, session_number(b));
	assert_int_equal(f.space->tables.seats[0].process, 1);
	assert_int_equal(f.space->tables.seats[1].session, session_number(a));
	assert_memory_equal(f.space->tables.seats[1].client_id, a->client_id, 16);
	slots_of(&f, 1, slots);
	slots_of(&f, 2, others);
	assert_words(&f, slots, 1, 1);
	assert_words(&f, others, 2, 1);
	lock_take(&f.space->lock);
	for (uint32_t i = 0; i < PAGES; i++) { /* the group that an entry names says whose it is */
		uint32_t group = f.space->tables.entries[others[i]].group;

		assert_int_equal(f.space->tables.groups[group - 1].session, session_number(a));
		assert_true(tables_group_intact(&f.space->tables, group - 1));
	}
	lock_drop(&f.space->lock);
	commit_all(b, 1, 1);
	assert_words(&f, slots, 0, 0);
	assert_words(&f, others, 2, 1);
	assert_entries(&f, slots, ENTRY_VALUE);
	assert_int_equal(end_run(a, 1, false, 0, 1, status, NULL, &why), 0);
	assert_words(&f, others, 0, 0);
	assert_entries(&f, others, ENTRY_FREE);
	assert_at_base(&f, 2);
	end(&f, &a, true);
	end(&f, &b, true);
	fixture_close(&f);
}

static void a_seat_comes_with_the_first_transfer(void **state)
{
	struct get_start start = { 0 };
	struct why why = WHY_INIT;
	struct session *a, *b;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	stored(a, 1, 1);
	assert_int_equal(get_chain(b, 7, 1, PAGES, 0, &start, &why), 0);
	assert_int_equal(seat_of(&f, b), SEATS_NONE);
	assert_int_equal(get_cancel(b, 7, &why), 0);
	assert_int_equal(seat_of(&f, b), SEATS_NONE);
	get(b, 8, 1);
	assert_int_equal(seat_of(&f, b), 1);
	get(b, 9, 1);
	assert_int_equal(seat_of(&f, b), 1); /* the same */
	end(&f, &a, false);
	end(&f, &b, false);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void the_word_is_zero_with_the_last_reader(void **state)
{
	struct session *a, *b;
	uint32_t slots[PAGES];
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	stored(a, 1, 1);
	slots_of(&f, 1, slots);
	for (uint64_t order = 0; order < 2; order++) {
		struct session *first = order ? a : b, *last = order ? b : a;
		uint64_t plan = 10 + 10 * order;

		get(a, plan, 1);
		assert_words(&f, slots, 1, 1);
		get(b, plan, 1);
		assert_words(&f, slots, 3, 2);
		get(b, plan + 1, 1);
		assert_words(&f, slots, 3, 3);
		release(b, plan + 1);
		assert_words(&f, slots, 3, 2);
		release(first, plan);
		assert_words(&f, slots, 3, 1); /* whose bit it was that is not needed any more is not known */
		release(last, plan);
		assert_words(&f, slots, 0, 0);
	}
	end(&f, &a, true);
	end(&f, &b, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

/* A group's word has committed it, and its values are not settled yet. */
static void a_reader_may_come_before_the_commit_is_over(void **state)
{
	struct session *a, *b;
	uint32_t slots[PAGES];
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	for (uint64_t order = 0; order < 2; order++) {
		put(a, 1 + order, 1 + order);
		slots_of(&f, 1 + order, slots);
		lock_take(&f.space->lock);
		tables_group_publish(&f.space->tables, f.space->tables.entries[slots[0]].group - 1);
		lock_drop(&f.space->lock);
		get(b, 1 + order, 1 + order);
		assert_words(&f, slots, 3, 2);
		if (order)
			release(b, 1 + order);
		else
			commit_all(a, 1 + order, 1);
		assert_words(&f, slots, 3, 1);
		if (order)
			commit_all(a, 1 + order, 1);
		else
			release(b, 1 + order);
		assert_words(&f, slots, 0, 0);
	}
	end(&f, &a, true);
	end(&f, &b, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void the_seat_stays_while_slots_rest(void **state)
{
	struct session *a, *b;
	uint32_t slots[PAGES];
	struct fixture f;
	uint64_t number;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	number = session_number(a);
	put(a, 1, 1);
	slots_of(&f, 1, slots);
	end(&f, &a, false);
	assert_words(&f, slots, 1, 0);
	assert_entries(&f, slots, ENTRY_QUARANTINED);
	assert_int_equal(fixture_report(&f).stats.slots_quarantined, PAGES);
	assert_int_equal(seat(&f, 0), SEAT_TAKEN);
	host_maintain(f.host);
	assert_words(&f, slots, 1, 0);
	assert_int_equal(seat(&f, 0), SEAT_TAKEN);
	b = fixture_session(&f, 0);
	stored(b, 1, 2);
	assert_int_equal(seat_of(&f, b), 1);
	host_process_gone(f.host, number);
	assert_words(&f, slots, 0, 0);
	assert_entries(&f, slots, ENTRY_FREE);
	assert_int_equal(seat(&f, 0), SEAT_LEAVING);
	host_maintain(f.host);
	assert_int_equal(seat(&f, 0), SEAT_FREE);
	assert_int_equal(seat(&f, 1), SEAT_TAKEN);
	end(&f, &b, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void nothing_rests_when_the_process_is_gone(void **state)
{
	uint32_t slots[PAGES];
	struct session *a;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	put(a, 1, 1);
	slots_of(&f, 1, slots);
	host_process_gone(f.host, session_number(a));
	assert_words(&f, slots, 0, 0);
	assert_entries(&f, slots, ENTRY_FREE);
	assert_int_equal(seat(&f, 0), SEAT_LEAVING);
	session_unref(&a);
	host_maintain(f.host);
	assert_int_equal(seat(&f, 0), SEAT_FREE);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void bits_of_a_left_seat_are_swept(void **state)
{
	struct session *a, *b, *c;
	uint32_t slots[PAGES];
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	stored(a, 1, 1);
	slots_of(&f, 1, slots);
	get(a, 2, 1);
	get(b, 2, 1);
	end(&f, &a, false);
	assert_words(&f, slots, 3, 1);
	assert_int_equal(seat(&f, 0), SEAT_LEAVING);
	c = fixture_session(&f, 0);
	get(c, 2, 1);
	assert_int_equal(seat_of(&f, c), 2); /* not one that is being left */
	assert_words(&f, slots, 7, 2);
	host_maintain(f.host);
	assert_words(&f, slots, 6, 2);
	assert_int_equal(seat(&f, 0), SEAT_FREE);
	a = fixture_session(&f, 0);
	get(a, 2, 1);
	assert_int_equal(seat_of(&f, a), 0);
	assert_words(&f, slots, 7, 3);
	end(&f, &a, false);
	end(&f, &b, false);
	end(&f, &c, false);
	assert_words(&f, slots, 0, 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(seat(&f, i), SEAT_LEAVING);
	host_maintain(f.host);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(seat(&f, i), SEAT_FREE);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void a_reset_leaves_what_is_read(void **state)
{
	struct reset reset = { 0 };
	struct why why = WHY_INIT;
	uint32_t slots[PAGES];
	struct session *a;
	struct fixture f;
	int r;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	stored(a, 1, 1);
	slots_of(&f, 1, slots);
	get(a, 2, 1);
	reset.session = a;
	r = reset_begin(&reset, &why);
	while (r == STEP_MORE)
		r = reset_step(&reset, &why);
	assert_int_equal(r, 0);
	assert_int_equal(reset.held, 1);
	assert_words(&f, slots, 1, 1);
	assert_entries(&f, slots, ENTRY_VALUE);
	release(a, 2);
	assert_words(&f, slots, 0, 0);
	assert_entries(&f, slots, ENTRY_FREE);
	end(&f, &a, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void what_is_read_is_not_evicted(void **state)
{
	struct eviction eviction = { .goal_bytes = EVICTION_ALL };
	struct why why = WHY_INIT;
	uint32_t slots[PAGES];
	struct session *a;
	struct fixture f;
	int r;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	stored(a, 1, 1);
	slots_of(&f, 1, slots);
	get(a, 2, 1);
	for (uint32_t time = 0; time < 2; time++) {
		eviction = (struct eviction){ .session = a, .goal_bytes = EVICTION_ALL };
		r = eviction_begin(&eviction, &why);
		while (r == STEP_MORE)
			r = eviction_step(&eviction, &why);
		assert_int_equal(r, 0);
		assert_int_equal(eviction.values, time ? PAGES : 0);
		assert_words(&f, slots, time ? 0 : 1, time ? 0 : 1);
		assert_entries(&f, slots, time ? ENTRY_FREE : ENTRY_VALUE);
		if (!time)
			release(a, 2);
	}
	end(&f, &a, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

/* As it will be for what a session of before reads: no pin keeps the value. */
static void a_value_that_goes_leaves_its_slot_to_its_reader(struct fixture *f, struct session *a)
{
	uint32_t slots[PAGES];

	slots_of(f, 1, slots);
	get(a, 20, 1);
	lock_take(&f->space->lock);
	for (uint32_t i = PAGES; i--;) {
		struct index_sink sink = space_sink(f->space);

		index_value_drop(f->space->index, slots[i], false, &sink);
	}
	lock_drop(&f->space->lock);
	assert_entries(f, slots, ENTRY_QUARANTINED);
	assert_words(f, slots, 1, 1);
	assert_int_equal(fixture_report(f).stats.slots_owed, PAGES);
	release(a, 20);
	assert_entries(f, slots, ENTRY_FREE);
	assert_words(f, slots, 0, 0);
	assert_int_equal(fixture_report(f).stats.slots_owed, 0);
}

static void a_value_may_go_before_its_reader(void **state)
{
	struct session *a;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	stored(a, 1, 1);
	a_value_that_goes_leaves_its_slot_to_its_reader(&f, a);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	end(&f, &a, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void a_refused_transfer_tells_nobody(void **state)
{
	struct get_transfer transfer = { 0 };
	struct get_start start = { 0 };
	uint64_t offsets[PAGES];
	struct why why = WHY_INIT;
	uint32_t slots[PAGES];
	struct session *a;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	stored(a, 1, 1);
	slots_of(&f, 1, slots);
	assert_int_equal(get_chain(a, 1, 1, PAGES, 0, &start, &why), 0);
	lock_take(&f.space->lock);
	memset(a->acknowledged, 0, sizeof(a->acknowledged));
	a->acknowledged_version = 0;
	lock_drop(&f.space->lock);
	assert_int_equal(transfer_run(a, 1, 2, PAGES * FIXTURE_PAGE, 0, PAGES * FIXTURE_PAGE, offsets, PAGES, &transfer, &why), -ENXIO);
	assert_words(&f, slots, 0, 0);
	assert_int_equal(get_cancel(a, 1, &why), 0);
	end(&f, &a, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void a_row_has_its_word_too(void **state)
{
	struct get_transfer transfer = { 0 };
	struct get_start start = { 0 };
	struct record_info info;
	uint64_t offsets[11];
	struct why why = WHY_INIT;
	struct session *a;
	struct fixture f;
	struct key key = fixture_key(1, 9);
	struct index_hit hit;
	uint32_t row;
	bool committed;

	fixture_open(&f, CLASS_KV "," CLASS_STATE, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	assert_int_equal(put_chain(a, 1, 1, 0, 10, 3, 0, &result), 0);
	lock_take(&f.space->lock);
	index_lookup(f.space->index, &key, 1, ~0u, &hit);
	row = index_value(f.space->index, hit.record, INDEX_PAGE_ROW, layout_column(f.space->layout, 1, 0), &committed);
	assert_int_equal(f.space->tables.users[row], 1);
	lock_drop(&f.space->lock);
	commit_all(a, 1, 1);
	assert_int_equal(f.space->tables.users[row], 0);
	assert_int_equal(get_chain(a, 1, 1, 10, 0, &start, &why), 0);
	assert_int_equal(transfer_run(a, 1, 2, 10 * FIXTURE_PAGE, 0, 10 * FIXTURE_PAGE, offsets, 11, &transfer, &why), 0);
	assert_int_equal(transfer.values, 11);
	assert_int_equal(f.space->tables.users[row], 1);
	assert_int_equal(f.space->holds[row], 1);
	assert_int_equal(space_record_find(f.space, &key, false, &info), 0);
	assert_int_equal(space_record_drop_row(f.space, info.number, info.generation, &why), -EBUSY);
	assert_int_equal(f.space->tables.users[row], 1);
	release(a, 2);
	assert_int_equal(f.space->tables.users[row], 0);
	assert_int_equal(f.space->holds[row], 0);
	assert_int_equal(space_record_drop_row(f.space, info.number, info.generation, &why), 0);
	assert_int_equal(f.space->tables.entries[row].state, ENTRY_FREE);
	end(&f, &a, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

/* ---- many ---------------------------------------------------------------------------------------------------------------- */

static void the_crowd_shares_the_last_seat(void **state)
{
	struct session *s[SEATS + 2];
	uint32_t slots[PAGES];
	struct fixture f;
	uint64_t number;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	for (uint32_t i = 0; i < SEATS + 2; i++) {
		s[i] = fixture_session(&f, 0);
		if (!i) {
			stored(s[0], 1, 1);
			slots_of(&f, 1, slots);
		}
		get(s[i], 2, 1);
		assert_int_equal(seat_of(&f, s[i]), i < SEATS_CROWD ? i : SEATS_CROWD);
	}
	assert_words(&f, slots, UINT64_MAX, SEATS + 2);
	assert_int_equal(f.space->tables.seats[SEATS_CROWD].session, 0);
	end(&f, &s[SEATS + 1], true);
	end(&f, &s[SEATS], true);
	end(&f, &s[5], true);
	host_maintain(f.host);
	assert_words(&f, slots, UINT64_MAX & ~(1ull << 5), SEATS - 1);
	s[5] = fixture_session(&f, 0);
	put(s[5], 1, 2);
	assert_int_equal(seat_of(&f, s[5]), 5);
	for (uint32_t i = 0; i < SEATS; i++)
		if (i != 5)
			release(s[i], 2);
	assert_words(&f, slots, 0, 0);
	/* one of the crowd goes and leaves slots that rest */
	put(s[SEATS_CROWD], 1, 3);
	slots_of(&f, 3, slots);
	assert_words(&f, slots, 1ull << SEATS_CROWD, 1);
	number = session_number(s[SEATS_CROWD]);
	end(&f, &s[SEATS_CROWD], false);
	assert_words(&f, slots, 1ull << SEATS_CROWD, 0);
	host_process_gone(f.host, number);
	assert_words(&f, slots, 0, 0);
	for (uint32_t i = 0; i < SEATS_CROWD; i++)
		end(&f, &s[i], true);
	host_maintain(f.host);
	for (uint32_t i = 0; i < SEATS_CROWD; i++)
		assert_int_equal(seat(&f, i), SEAT_FREE);
	assert_int_equal(seat(&f, SEATS_CROWD), SEAT_TAKEN); /* an adoption alone settles it */
	assert_at_base(&f, 0);
	fixture_close(&f);
}

static void no_seat_is_an_error_that_leaves_nothing(void **state)
{
	struct get_transfer transfer = { 0 };
	struct get_start start = { 0 };
	uint64_t offsets[PAGES];
	struct why why = WHY_INIT;
	struct session *a;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 32 * MIB, NULL);
	a = fixture_session(&f, 0);
	stored(a, 1, 1);
	end(&f, &a, true);
	host_maintain(f.host);
	lock_take(&f.space->lock);
	for (uint32_t i = 0; i < SEATS; i++)
		seats_take(&f.space->tables, (const uint8_t[16]){ 1 }, i + 1, 0, 0);
	seats_leave(&f.space->tables, SEATS_CROWD);
	lock_drop(&f.space->lock);
	a = fixture_session(&f, 0);
	assert_int_equal(put_chain(a, 1, 2, 0, PAGES, KV, 0, &result), -EAGAIN);
	assert_non_null(strstr(result.why.text, "namespace test: the 63 seats"));
	assert_int_equal(get_chain(a, 1, 1, PAGES, 0, &start, &why), 0);
	assert_int_equal(transfer_run(a, 1, 2, PAGES * FIXTURE_PAGE, 0, PAGES * FIXTURE_PAGE, offsets, PAGES, &transfer, &why), -EAGAIN);
	lock_take(&f.space->lock);
	seats_free(&f.space->tables, SEATS_CROWD);
	lock_drop(&f.space->lock);
	put(a, 1, 2); /* the same ids are good */
	assert_int_equal(seat_of(&f, a), SEATS_CROWD);
	assert_int_equal(transfer_run(a, 1, 2, PAGES * FIXTURE_PAGE, 0, PAGES * FIXTURE_PAGE, offsets, PAGES, &transfer, &why), 0);
	end(&f, &a, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

/* More words than a stay, in several grants. */
static void all_words_are_swept(void **state)
{
	enum { CHAINS = 120 };
	static uint32_t slots[CHAINS][PAGES];
	struct session *a, *b;
	struct fixture f;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 64 * MIB, NULL);
	a = fixture_session(&f, 0);
	b = fixture_session(&f, 0);
	for (uint64_t c = 0; c < CHAINS; c++) {
		stored(a, c + 1, c + 1);
		slots_of(&f, c + 1, slots[c]);
		get(a, CHAINS + c + 1, c + 1);
		get(b, CHAINS + c + 1, c + 1);
	}
	end(&f, &a, true);
	host_maintain(f.host);
	for (uint32_t c = 0; c < CHAINS; c++)
		assert_words(&f, slots[c], 2, 1);
	assert_int_equal(seat(&f, 0), SEAT_FREE);
	end(&f, &b, true);
	assert_at_base(&f, 0);
	fixture_close(&f);
}

/* ---- with a disk ----------------------------------------------------------------------------------------------------------- */

static void a_value_read_back_is_told_when_it_is_there(void **state)
{
	struct session *a, *b;
	uint32_t slots[PAGES];
	struct tier_world w;
	uint64_t values = 0;

	world_open(&w, CLASS_KV, 64 * MIB);
	a = fixture_session(&w.f, 0);
	b = fixture_session(&w.f, 0);
	world_put(&w, a, 1, 1, 0, PAGES, false);
	slots_of(&w.f, 1, slots);
	assert_words(&w.f, slots, 0, 0);
	get(a, 2, 1);
	get(b, 2, 1);
	assert_words(&w.f, slots, 3, 2);
	release(a, 2);
	release(b, 2);
	assert_words(&w.f, slots, 0, 0);
	world_to_disk(&w);
	assert_words(&w.f, slots, 0, 0);
	assert_true(entry_of(&w.f, 1, 0) >= w.f.space->tables.slot_capacity);

	struct get_transfer transfer = { .session = a, .handle = 3, .plan = 3, .boundary = PAGES * FIXTURE_PAGE,
					 .to = PAGES * FIXTURE_PAGE, .offsets_capacity = PAGES,
					 .deadline_ns = clock_now_ns() + WORLD_NS };
	static uint64_t offsets[PAGES];
	struct get_start start = { 0 };
	struct why why = WHY_INIT;
	int r;

	transfer.offsets = offsets;
	assert_int_equal(get_chain(a, 3, 1, PAGES, 0, &start, &why), 0);
	assert_int_equal(session_enter(a, 0, &why), 0);
	r = get_transfer_begin(&transfer, &why);
	while (!r && ((r = get_transfer_step(&transfer, &why)) == STEP_MORE || r == STEP_WAIT)) {
		sched_yield();
		r = 0;
	}
	session_leave(a);
	assert_int_equal(r, 0);
	assert_int_equal(transfer.values, PAGES);
	slots_of(&w.f, 1, slots);
	assert_words(&w.f, slots, 1, 1);
	lock_take(&w.f.space->lock);
	demote_some(w.f.space->tiering, UINT64_MAX, &values);
	lock_drop(&w.f.space->lock);
	assert_int_equal(values, 0); /* held */
	release(a, 3);
	assert_words(&w.f, slots, 0, 0);
	a_value_that_goes_leaves_its_slot_to_its_reader(&w.f, a);
	end(&w.f, &a, true);
	end(&w.f, &b, true);
	assert_at_base(&w.f, 0);
	world_close(&w);
}

/* ---- processes ------------------------------------------------------------------------------------------------------------- */

static void a_process_has_one_number(void **state)
{
	int own = (int)syscall(SYS_pidfd_open, getpid(), 0), again = (int)syscall(SYS_pidfd_open, getpid(), 0), other;
	pid_t child = fork();

	if (!child) {
		pause();
		_exit(0);
	}
	other = (int)syscall(SYS_pidfd_open, child, 0);
	assert_true(own >= 0 && again >= 0 && other >= 0);
	assert_int_not_equal(process_number(own, getpid()), 0);
	assert_int_equal(process_number(own, getpid()), process_number(again, getpid()));
	assert_int_not_equal(process_number(own, getpid()), process_number(other, child));
	assert_int_equal(process_number(-1, 77), 77);
	assert_int_equal(process_number(-1, 0), 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(own);
	close(again);
	close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_put_has_a_seat_and_its_slots_have_its_bit),
		cmocka_unit_test(a_seat_comes_with_the_first_transfer),
		cmocka_unit_test(the_word_is_zero_with_the_last_reader),
		cmocka_unit_test(a_reader_may_come_before_the_commit_is_over),
		cmocka_unit_test(the_seat_stays_while_slots_rest),
		cmocka_unit_test(nothing_rests_when_the_process_is_gone),
		cmocka_unit_test(bits_of_a_left_seat_are_swept),
		cmocka_unit_test(a_reset_leaves_what_is_read),
		cmocka_unit_test(what_is_read_is_not_evicted),
		cmocka_unit_test(a_value_may_go_before_its_reader),
		cmocka_unit_test(a_refused_transfer_tells_nobody),
		cmocka_unit_test(a_row_has_its_word_too),
		cmocka_unit_test(the_crowd_shares_the_last_seat),
		cmocka_unit_test(no_seat_is_an_error_that_leaves_nothing),
		cmocka_unit_test(all_words_are_swept),
		cmocka_unit_test(a_value_read_back_is_told_when_it_is_there),
		cmocka_unit_test(a_process_has_one_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
