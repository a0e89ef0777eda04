/* SPDX-License-Identifier: Apache-2.0
 *
 * Tickets: three ranks and a scheduler come to each gate in every order, and one of them dies, cancels, is late, fails or is
 * interrupted at every step. All are told the same, whoever comes when; nobody waits for good; nothing is left.
 *
 * Then the same through GET_START, GET_TRANSFER and GET_CONFIRM of real sessions.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>

#include "store/get_private.h"
#include "store/host_private.h"
#include "store/ticket.h"

#define MIB (1ull << 20)
#define RANKS 3u
#define ALL 4u /* and the scheduler */
#define FULL 640u
#define HALF 320u
#define FAR UINT64_MAX

/* Where something happens to the victim. */
enum point { BEFORE_START, AFTER_START, AT_RANGE_0, AFTER_RANGE_0, AT_RANGE_1, AFTER_RANGE_1, AT_CONFIRM, AFTER_ALL, POINTS };
enum fault { NONE, DIES, CANCELS, IS_LATE, READ_FAILS, COPY_FAILED, INTERRUPTED, FAULTS };

static const uint8_t orders_3[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
static uint8_t orders_4[24][4];

struct actor {
	struct session *session;
	struct ticket_seat seat;
	struct ticket_confirm confirm;
	bool here;    /* has had a seat */
	bool using;   /* its GET_TRANSFER is under way */
	bool stopped; /* does nothing any more */
	bool told;
	uint64_t range[2];
	bool ranged[2];
	uint64_t restored;
	bool confirmed;
};

struct trial {
	struct fixture *f;
	struct tickets *tickets;
	uint32_t record;
	uint8_t id[16];
	struct actor actor[ALL];
	enum fault fault;
	enum point point;
	uint32_t victim;
	bool fired; /* it has happened */
	bool ended; /* somebody was told so by GET_START */
	uint64_t deadline_ns;
};

static struct session *sessions[ALL];

static void make_orders(void)
{
	uint32_t n = 0;

	for (uint8_t a = 0; a < 4; a++)
		for (uint8_t b = 0; b < 4; b++)
			for (uint8_t c = 0; c < 4; c++)
				if (a != b && a != c && b != c)
					memcpy(orders_4[n++], (uint8_t[]){ a, b, c, (uint8_t)(6 - a - b - c) }, 4);
	assert_int_equal(n, 24);
}

static void take(struct trial *r)
{
	lock_take(&r->f->space->lock);
}

static void drop(struct trial *r)
{
	lock_drop(&r->f->space->lock);
}

/* ---- what happens to a victim ------------------------------------------------------------------------------------ */

/* Under the lock: its GET_TRANSFER is over, with an answer or given up. */
static void transfer_over(struct trial *r, struct actor *a, bool took)
{
	if (!a->using)
		return;
	a->using = false;
	if (took)
		ticket_took(r->tickets, &a->seat);
	else
		ticket_withdraw(r->tickets, &a->seat);
	ticket_idle(r->tickets, &a->seat);
}

/* Its handle ends without a report, as by GET_CANCEL or handle_ttl. */
static void cancel(struct trial *r, struct actor *a)
{
	take(r);
	transfer_over(r, a, false);
	ticket_leave(r->tickets, &a->seat, false);
	drop(r);
	tickets_drain(r->tickets);
	a->stopped = true;
}

static void die(struct trial *r, struct actor *a)
{
	if (a->confirm.waiting)
		ticket_confirm_undo(&a->confirm);
	cancel(r, a);
	tickets_session_ends(r->tickets, a->session);
}

/* True: the step goes on. */
static bool meets_fault(struct trial *r, uint32_t who, enum point point)
{
	struct actor *a = &r->actor[who];

	if (a->stopped || who != r->victim || point != r->point)
		return !a->stopped;
	switch (r->fault) {
	case DIES:
		die(r, a);
		break;
	case CANCELS:
		cancel(r, a);
		break;
	case IS_LATE:
		a->stopped = true;
		break;
	default:
		return true;
	}
	r->fired = true;
	return !a->stopped;
}

/* ---- the gates ---------------------------------------------------------------------------------------------------- */

static struct ticket_question question(void)
{
	return (struct ticket_question){ .keys_sum = { 5, 6 }, .keys = 10, .class_mask = 1 };
}

static struct found *new_found(struct trial *r)
{
	struct found *found = found_begin(NULL, 10);

	assert_non_null(found);
	found->class_mask = 1;
	bit_set(&found->restorable, HALF / FIXTURE_PAGE - 1); /* every fifth page ends a value of each class */
	bit_set(&found->restorable, FULL / FIXTURE_PAGE - 1);
	found->runs = malloc(sizeof(*found->runs));
	found->runs[0] = (struct run){ .record = r->record, .end = 10 };
	found->run_capacity = found->run_count = 1;
	space_pin(r->f->space, r->record);
	return found;
}

static enum ticket_part come(struct trial *r, struct actor *a)
{
	struct ticket_question q = question();
	enum ticket_part part = TICKET_WAITS;
	struct why why = WHY_INIT;

	assert_int_equal(ticket_come(r->tickets, r->id, &q, a->session, &a->seat, &part, &why), 0);
	a->here = part == TICKET_LEADS || part == TICKET_JOINS;
	return part;
}

/* Others ask while the first one looks up: they wait, and other questions are refused. */
static void others_ask(struct trial *r, uint32_t leader)
{
	for (uint32_t i = 0; i < ALL; i++) {
		struct ticket_question q = question();
		struct why why = WHY_INIT;
		enum ticket_part part;

		if (i == leader) {
			assert_int_equal(ticket_come(r->tickets, r->id, &q, r->actor[i].session, &(struct ticket_seat){ 0 }, &part, &why),
					 -EEXIST);
			continue;
		}
		assert_int_equal(come(r, &r->actor[i]), TICKET_WAITS);
		q.limit = 64;
		assert_int_equal(ticket_come(r->tickets, r->id, &q, r->actor[i].session, &(struct ticket_seat){ 0 }, &part, &why), -EINVAL);
		assert_non_null(strstr(why.text, "limit"));
	}
}

static void start(struct trial *r, uint32_t who)
{
	struct actor *a = &r->actor[who];

	if (!meets_fault(r, who, BEFORE_START))
		return;
	take(r);
	switch (come(r, a)) {
	case TICKET_LEADS:
		others_ask(r, who);
		ticket_decided(r->tickets, &a->seat, new_found(r));
		break;
	case TICKET_JOINS:
		assert_int_equal(ticket_found(&a->seat)->keys, 10);
		break;
	case TICKET_ENDED:
		r->ended = true;
		a->stopped = true;
		break;
	case TICKET_WAITS:
		fail_msg("nobody is looking up");
	}
	if (a->here)
		ticket_idle(r->tickets, &a->seat);
	drop(r);
	if (!a->stopped)
		meets_fault(r, who, AFTER_START);
}

/* Under the lock: begins a GET_TRANSFER, if the ticket has no outcome. */
static bool transfer_begins(struct trial *r, struct actor *a)
{
	if (!a->using)
		a->using = ticket_use(r->tickets, &a->seat);
	return a->using;
}

/* Under the lock: what the rank asks, and that another range is refused meanwhile. */
static int ask_range(struct trial *r, struct actor *a, const struct ticket_range *range, uint64_t could, uint64_t *ret)
{
	struct ticket_range other = *range;
	struct why why = WHY_INIT;
	int e = ticket_deliver(r->tickets, &a->seat, range, could, r->deadline_ns, ret, &why);

	if (e)
		assert_int_equal(e, STEP_WAIT);
	if (e == STEP_WAIT) {
		other.to--;
		assert_int_equal(ticket_deliver(r->tickets, &a->seat, &other, could, FAR, ret, &why), -EINVAL);
		assert_non_null(strstr(why.text, "ticket: to"));
	}
	return e;
}

static void deliver(struct trial *r, uint32_t who, uint32_t n)
{
	struct ticket_range range = { FULL, n ? HALF : 0, n ? FULL : HALF, 0 };
	struct actor *a = &r->actor[who];
	bool victim = who == r->victim && r->point == (n ? AT_RANGE_1 : AT_RANGE_0);
	uint64_t could = victim && r->fault == READ_FAILS ? range.from : range.to, all = range.from;
	int e = 0;

	if (a->stopped || a->ranged[n])
		return;
	r->fired |= victim && r->fault == READ_FAILS;
	take(r);
	if ((!n || a->range[0] == HALF) && transfer_begins(r, a)) {
		e = ask_range(r, a, &range, could, &all);
		if (e == STEP_WAIT && victim && r->fault == INTERRUPTED) {
			transfer_over(r, a, false);
			assert_true(transfer_begins(r, a));
			e = ask_range(r, a, &range, could, &all);
		}
		if (!e)
			assert_int_equal(ask_range(r, a, &range, 0, &(uint64_t){ 0 }), 0); /* once it is decided it stays so */
		if (!e)
			transfer_over(r, a, true);
	}
	drop(r);
	tickets_drain(r->tickets);
	if (!e) {
		a->ranged[n] = true;
		a->range[n] = n && a->range[0] < HALF ? a->range[0] : all;
	}
	if (victim && r->fault == DIES)
		meets_fault(r, who, r->point);
	else if (!e)
		meets_fault(r, who, n ? AFTER_RANGE_1 : AFTER_RANGE_0);
}

static void confirm(struct trial *r, uint32_t who)
{
	struct actor *a = &r->actor[who];
	bool victim = who == r->victim && r->point == AT_CONFIRM;
	struct why why = WHY_INIT;
	int e;

	if (a->stopped || a->confirmed)
		return;
	a->confirm.session = a->session;
	memcpy(a->confirm.ticket, r->id, sizeof(r->id));
	a->confirm.failed = victim && r->fault == COPY_FAILED;
	r->fired |= a->confirm.failed;
	a->confirm.deadline_ns = r->deadline_ns;
	e = ticket_confirm_step(&a->confirm, &why);
	if (e == STEP_WAIT && victim && r->fault == INTERRUPTED) {
		ticket_confirm_undo(&a->confirm);
		e = ticket_confirm_step(&a->confirm, &why);
	}
	if (e == STEP_WAIT) {
		if (victim && r->fault == DIES)
			meets_fault(r, who, AT_CONFIRM);
		return;
	}
	assert_int_equal(e, 0);
	a->confirmed = true;
	a->restored = a->confirm.restored;
}

/* ---- one run --------------------------------------------------------------------------------------------------------- */

/* Everybody in @order, and again until nothing waits: the second time nobody who is stopped is waited for any longer. */
static void gate(struct trial *r, const uint8_t *order, uint32_t n, void (*step)(struct trial *, uint32_t, uint32_t), uint32_t argument)
{
	for (uint32_t turn = 0; turn < 3; turn++) {
		r->deadline_ns = turn < 2 ? FAR : 0;
		for (uint32_t i = 0; i < n; i++)
			step(r, order[i], argument);
	}
	r->deadline_ns = FAR;
}

static void confirm_step(struct trial *r, uint32_t who, uint32_t unused)
{
	(void)unused;
	confirm(r, who);
}

static void leave_all(struct trial *r)
{
	for (uint32_t i = 0; i < ALL; i++) {
		struct actor *a = &r->actor[i];

		if (a->confirm.waiting)
			ticket_confirm_undo(&a->confirm);
		take(r);
		transfer_over(r, a, false);
		ticket_leave(r->tickets, &a->seat, false);
		drop(r);
	}
	tickets_drain(r->tickets);
}

static uint64_t expected(const struct trial *r)
{
	if (r->ended)
		return 0;
	if (r->victim == RANKS || !r->fired || r->point == AFTER_ALL)
		return FULL;
	return r->fault == READ_FAILS && r->point == AT_RANGE_1 ? HALF : 0;
}

static void check(const struct trial *r)
{
	uint64_t want = expected(r);

	for (uint32_t n = 0; n < 2; n++) { /* all that were told of a range before anything failed were told the same */
		uint64_t told = UINT64_MAX;

		for (uint32_t i = 0; i < RANKS; i++)
			if (r->actor[i].ranged[n]) {
				assert_true(told == UINT64_MAX || told == r->actor[i].range[n]);
				told = r->actor[i].range[n];
			}
	}
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct actor *a = &r->actor[i];

		if (!a->stopped && a->here)
			assert_true(a->confirmed);
		if (a->confirmed)
			assert_int_equal(a->restored, want);
	}
}

static void run_once(struct fixture *f, uint32_t record, const uint32_t order[4], enum fault fault, enum point point, uint32_t victim)
{
	static uint64_t serial;
	struct trial r = { .f = f, .tickets = f->space->tickets, .record = record, .fault = fault, .point = point, .victim = victim,
			 .deadline_ns = FAR };

	serial++;
	memcpy(r.id, &serial, sizeof(serial));
	for (uint32_t i = 0; i < ALL; i++)
		r.actor[i].session = sessions[i];
	for (uint32_t i = 0; i < ALL; i++)
		start(&r, orders_4[order[0]][i]);
	gate(&r, orders_3[order[1]], RANKS, deliver, 0);
	gate(&r, orders_3[order[2]], RANKS, deliver, 1);
	gate(&r, orders_3[order[3]], RANKS, confirm_step, 0);
	if (point == AFTER_ALL)
		meets_fault(&r, victim, AFTER_ALL);
	check(&r);
	leave_all(&r);
}

static bool makes_sense(enum fault fault, enum point point, uint32_t victim)
{
	if (victim == RANKS) /* the scheduler has the first gate alone */
		return (fault == DIES || fault == CANCELS) && (point == BEFORE_START || point == AFTER_START || point == AFTER_ALL);
	if (fault == NONE)
		return point == BEFORE_START && victim == 0;
	if (fault == INTERRUPTED)
		return point == AT_RANGE_0 || point == AT_RANGE_1 || point == AT_CONFIRM;
	if (fault == READ_FAILS)
		return point == AT_RANGE_0 || point == AT_RANGE_1;
	if (fault == COPY_FAILED)
		return point == AT_CONFIRM;
	if (fault == CANCELS || fault == IS_LATE)
		return point != AT_RANGE_0 && point != AT_RANGE_1 && point != AT_CONFIRM;
	return true;
}

static void open_world(struct fixture *f, uint32_t *record)
{
	struct put_result *put = calloc(1, sizeof(*put));
	struct index_hit hit;
	struct key key = fixture_key(1, 0);

	fixture_open(f, CLASS_KV, RANKS, 64 * MIB, 32 * MIB, NULL);
	for (uint32_t i = 0; i < ALL; i++)
		sessions[i] = fixture_session(f, i < RANKS ? i : SESSION_RANK_NONE);
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_int_equal(put_chain(sessions[i], 1, 1, 0, 10, 1, 0, put), 0);
		commit_all(sessions[i], 1, 1);
	}
	lock_take(&f->space->lock);
	index_lookup(f->space->index, &key, 1, ~0u, &hit);
	lock_drop(&f->space->lock);
	assert_true(hit.complete);
	*record = hit.record;
	free(put);
}

static void close_world(struct fixture *f)
{
	lock_take(&f->space->lock);
	tickets_check(f->space->tickets);
	assert_int_equal(f->space->stats.tickets, 0);
	assert_int_equal(f->space->stats.ticket_pins, 0);
	assert_int_equal(atomic_load(&f->space->waiters), 0);
	lock_drop(&f->space->lock);
	assert_at_base(f, ALL);
	for (uint32_t i = 0; i < ALL; i++) {
		session_release(sessions[i]);
		session_unref(&sessions[i]);
	}
	fixture_close(f);
}

static void all_orders(struct fixture *f, uint32_t record, enum fault fault, enum point point, uint32_t victim)
{
	uint32_t o[4];

	for (o[0] = 0; o[0] < 24; o[0]++)
		for (o[1] = 0; o[1] < 6; o[1]++)
			for (o[2] = 0; o[2] < 6; o[2]++)
				for (o[3] = 0; o[3] < 6; o[3]++)
					if (o[2] == o[1] || o[2] == (o[1] + 3) % 6 || o[3] == o[1])
						run_once(f, record, o, fault, point, victim);
	lock_take(&f->space->lock);
	tickets_check(f->space->tickets);
	assert_int_equal(f->space->stats.tickets, 0);
	assert_int_equal(f->space->stats.waiting, 0);
	lock_drop(&f->space->lock);
}

static void every_order_and_every_fault(void **state)
{
	struct fixture f;
	uint32_t record;

	(void)state;
	make_orders();
	open_world(&f, &record);
	for (enum fault fault = NONE; fault < FAULTS; fault++)
		for (enum point point = 0; point < POINTS; point++)
			for (uint32_t victim = 0; victim < ALL; victim++)
				if (makes_sense(fault, point, victim))
					all_orders(&f, record, fault, point, victim);
	assert_true(fixture_report(&f).stats.tickets_restored > 10000);
	assert_true(fixture_report(&f).stats.tickets_failed > 10000);
	assert_true(fixture_report(&f).stats.tickets_late > 10000);
	close_world(&f);
}

/* ---- through sessions -------------------------------------------------------------------------------------------------- */

#define PAGES 130u
#define END ((uint64_t)PAGES * FIXTURE_PAGE)

static struct put_result put[2];
static uint64_t offsets[2][2 * PAGES + 2];

/* Two ranks whose shares of a chain are committed, with a row at its end. */
static void open_two(struct fixture *f, struct session **s)
{
	fixture_open(f, CLASS_KV "," CLASS_STATE, 2, 64 * MIB, 32 * MIB, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		s[i] = fixture_session(f, i);
		assert_int_equal(put_chain(s[i], 1, 1, 0, PAGES, 3, 0, &put[i]), 0);
		commit_all(s[i], 1, 1);
	}
	assert_memory_not_equal(put[0].answers, put[1].answers, sizeof(uint64_t));
}

static void close_two(struct fixture *f, struct session **s)
{
	lock_take(&f->space->lock);
	tickets_check(f->space->tickets);
	lock_drop(&f->space->lock);
	assert_int_equal(fixture_report(f).stats.tickets, 0);
	assert_int_equal(fixture_report(f).stats.ticket_pins, 0);
	assert_int_equal(atomic_load(&f->space->waiters), 0);
	assert_at_base(f, (uint32_t)(s[0] != NULL) + (s[1] != NULL));
	for (uint32_t i = 0; i < 2; i++)
		if (s[i]) {
			session_release(s[i]);
			session_unref(&s[i]);
		}
	fixture_close(f);
}

static int start_one(struct session *s, uint64_t handle, uint8_t ticket, uint32_t pages, struct get_start *get, struct why *why)
{
	*why = (struct why)WHY_INIT;
	*get = (struct get_start){ .ticket = { ticket } };
	return get_chain(s, handle, 1, pages, 0, get, why);
}

static int transfer_one(struct session *s, uint32_t rank, uint64_t handle, uint64_t plan, uint64_t from, uint64_t to, uint64_t deadline_ns,
			struct get_transfer *transfer, struct why *why)
{
	*transfer = (struct get_transfer){ .deadline_ns = deadline_ns };
	return transfer_run(s, handle, plan, END, from, to, offsets[rank], PAGES + 1, transfer, why);
}

static int confirm_one(struct session *s, uint8_t ticket, uint64_t deadline_ns, struct ticket_confirm *call, struct why *why)
{
	*call = (struct ticket_confirm){ .session = s, .ticket = { ticket }, .deadline_ns = deadline_ns };
	return ticket_confirm_step(call, why);
}

static void all_ranks_are_answered_alike(void **state)
{
	struct get_transfer transfer[2];
	struct ticket_confirm confirm[2];
	struct get_start get[2], again;
	struct why why = WHY_INIT;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(start_one(s[i], 2, 9, PAGES, &get[i], &why), 0);
		assert_true(get[i].handle_live);
		assert_int_equal(get[i].raw_prefix_hit_len, END);
		assert_int_equal(get[i].transferable_len, END);
		assert_int_equal(get[i].hit_count, PAGES);
		assert_int_equal(get[i].prefix_hit_groups, PAGES);
		assert_int_equal(get[i].bytes, PAGES * 4096 + 10000);
	}
	assert_int_equal(fixture_report(&f).stats.pins, 2); /* its record, and its row's */
	assert_int_equal(fixture_report(&f).stats.ticket_pins, 2);
	assert_int_equal(fixture_report(&f).stats.keys_asked, PAGES);
	assert_int_equal(fixture_report(&f).stats.tickets_joined, 1);
	assert_int_equal(start_one(s[1], 3, 9, PAGES, &again, &why), -EEXIST);
	assert_non_null(strstr(why.text, "rank 1 has come already"));
	assert_int_equal(start_one(s[1], 3, 9, PAGES - 1, &again, &why), -EINVAL);
	assert_non_null(strstr(why.text, "number of keys: it is 129 here and 130"));

	assert_int_equal(transfer_one(s[0], 0, 2, 4, 0, END, FAR, &transfer[0], &why), STEP_WAIT);
	assert_int_equal(get_transfer_step(&transfer[0], &why), STEP_WAIT);
	assert_int_equal(fixture_report(&f).stats.waiting, 1);
	assert_int_equal(transfer_one(s[1], 1, 2, 4, 0, END - FIXTURE_PAGE, FAR, &transfer[1], &why), -EINVAL);
	assert_int_equal(transfer_one(s[1], 1, 2, 4, 0, END, FAR, &transfer[1], &why), 0);
	assert_int_equal(get_transfer_step(&transfer[0], &why), 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(transfer[i].delivered_len, END);
		assert_int_equal(transfer[i].values, PAGES + 1);
		assert_true(transfer[i].handle_ended);
		assert_memory_equal(offsets[i], put[i].answers, (PAGES + 1) * sizeof(uint64_t));
	}
	assert_int_equal(fixture_report(&f).stats.waiting, 0);
	assert_int_equal(fixture_report(&f).stats.pins, 2 + 4);

	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm[0], &why), STEP_WAIT);
	assert_int_equal(confirm_one(s[1], 9, FAR, &confirm[1], &why), 0);
	assert_int_equal(ticket_confirm_step(&confirm[0], &why), 0);
	assert_int_equal(confirm[0].restored, END);
	assert_int_equal(confirm[1].restored, END);
	assert_int_equal(fixture_report(&f).stats.ticket_pins, 0);
	assert_int_equal(fixture_report(&f).stats.tickets_restored, 1);
	assert_int_equal(confirm_one(s[1], 9, 0, &confirm[1], &why), 0); /* asked again */
	assert_int_equal(confirm[1].restored, END);
	assert_int_equal(start_one(s[1], 3, 9, PAGES, &again, &why), 0); /* it has ended */
	assert_int_equal(again.raw_prefix_hit_len, 0);
	assert_false(again.handle_live);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(get_release(s[i], 4, &why), 0);
	close_two(&f, s);
}

static void ranges_pass_one_after_another(void **state)
{
	uint64_t ends[4] = { 0, 7 * FIXTURE_PAGE, 100 * FIXTURE_PAGE, END };
	struct get_transfer transfer[2];
	struct ticket_confirm confirm[2];
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(start_one(s[i], 2, 9, PAGES, &get, &why), 0);
	for (uint32_t n = 0; n < 3; n++) {
		uint32_t a = n % 2, b = 1 - a;

		assert_int_equal(transfer_one(s[a], a, 2, 4 + n, ends[n], ends[n + 1], FAR, &transfer[a], &why), STEP_WAIT);
		assert_int_equal(transfer_one(s[b], b, 2, 4 + n, ends[n], ends[n + 1], FAR, &transfer[b], &why), 0);
		assert_int_equal(get_transfer_step(&transfer[a], &why), 0);
		for (uint32_t i = 0; i < 2; i++) {
			assert_int_equal(transfer[i].delivered_len, ends[n + 1]);
			assert_memory_equal(offsets[i], put[i].answers + ends[n] / FIXTURE_PAGE,
					    (ends[n + 1] - ends[n]) / FIXTURE_PAGE * sizeof(uint64_t));
			assert_int_equal(get_release(s[i], 4 + n, &why), 0);
		}
	}
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm[0], &why), STEP_WAIT);
	assert_int_equal(confirm_one(s[1], 9, FAR, &confirm[1], &why), 0);
	assert_int_equal(ticket_confirm_step(&confirm[0], &why), 0);
	assert_int_equal(confirm[0].restored, END);
	close_two(&f, s);
}

/* Where a row is wanted, too, a part is of no use. */
static void a_part_with_a_row_is_nothing(void **state)
{
	struct get_transfer transfer[2];
	struct ticket_confirm confirm[2];
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(start_one(s[i], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(transfer_one(s[0], 0, 2, 4, 0, 64, FAR, &transfer[0], &why), STEP_WAIT);
	assert_int_equal(transfer_one(s[1], 1, 2, 4, 0, 64, FAR, &transfer[1], &why), 0);
	assert_int_equal(get_transfer_step(&transfer[0], &why), 0);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm[0], &why), STEP_WAIT);
	assert_int_equal(confirm_one(s[1], 9, FAR, &confirm[1], &why), 0);
	assert_int_equal(confirm[1].restored, 0);
	assert_int_equal(ticket_confirm_step(&confirm[0], &why), 0);
	assert_int_equal(confirm[0].restored, 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(transfer_one(s[i], i, 2, 5, 64, END, FAR, &transfer[i], &why), 0); /* its handle is over */
		assert_int_equal(transfer[i].delivered_len, 64);
		assert_true(transfer[i].handle_ended);
		assert_int_equal(get_release(s[i], 5, &why), -ENOENT);
		assert_int_equal(get_cancel(s[i], 2, &why), -EALREADY);
		assert_int_equal(get_release(s[i], 4, &why), 0);
	}
	close_two(&f, s);
}

/* Of dense classes alone a part is of use, as far as one ends a value of each. */
static void a_part_ends_at_a_boundary(void **state)
{
	struct get_transfer transfer[2];
	struct ticket_confirm confirm[2];
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV ",{\"name\":\"ix\",\"kind\":\"dense\",\"every\":128,\"planes\":[{\"name\":\"i\",\"bytes\":1000}]}", 2, 64 * MIB,
		     32 * MIB, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		s[i] = fixture_session(&f, i);
		assert_int_equal(put_chain(s[i], 1, 1, 0, 6, 3, 0, &put[i]), 0);
		commit_all(s[i], 1, 1);
	}
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(start_one(s[i], 2, 9, 6, &get, &why), 0);
		assert_int_equal(get.transferable_len, 384);
		transfer[i] = (struct get_transfer){ .deadline_ns = FAR };
	}
	assert_int_equal(transfer_run(s[0], 2, 3, 384, 0, 192, offsets[0], 6, &transfer[0], &why), STEP_WAIT);
	assert_int_equal(transfer_run(s[1], 2, 3, 384, 0, 192, offsets[1], 6, &transfer[1], &why), 0);
	assert_int_equal(get_transfer_step(&transfer[0], &why), 0);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm[0], &why), STEP_WAIT);
	assert_int_equal(confirm_one(s[1], 9, FAR, &confirm[1], &why), 0);
	assert_int_equal(ticket_confirm_step(&confirm[0], &why), 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(confirm[i].restored, 128);
		assert_int_equal(get_cancel(s[i], 2, &why), 0);
		assert_int_equal(get_release(s[i], 3, &why), 0);
	}
	close_two(&f, s);
}

static void a_death_ends_the_wait_of_the_others(void **state)
{
	struct get_transfer transfer;
	struct ticket_confirm confirm;
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(start_one(s[i], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(transfer_one(s[0], 0, 2, 4, 0, END, FAR, &transfer, &why), STEP_WAIT);
	session_release(s[1]);
	session_unref(&s[1]);
	assert_int_equal(get_transfer_step(&transfer, &why), 0);
	assert_int_equal(transfer.delivered_len, 0);
	assert_true(transfer.handle_ended);
	assert_int_equal(get_release(s[0], 4, &why), -ENOENT);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm, &why), 0);
	assert_int_equal(confirm.restored, 0);
	assert_int_equal(fixture_report(&f).stats.tickets_failed, 1);
	close_two(&f, s);
}

/* It has reported, and is gone before the other one has: nothing is restored. */
static void a_death_after_the_report_counts(void **state)
{
	struct ticket_confirm confirm;
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(start_one(s[i], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(confirm_one(s[1], 9, FAR, &confirm, &why), STEP_WAIT);
	ticket_confirm_undo(&confirm);
	assert_int_equal(get_cancel(s[1], 2, &why), 0); /* no harm: it has reported */
	assert_int_equal(fixture_report(&f).stats.tickets_failed, 0);
	session_release(s[1]);
	session_unref(&s[1]);
	assert_int_equal(fixture_report(&f).stats.tickets_failed, 1);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm, &why), 0);
	assert_int_equal(confirm.restored, 0);
	assert_int_equal(get_cancel(s[0], 2, &why), 0);
	close_two(&f, s);
}

static void gates_have_deadlines(void **state)
{
	struct get_transfer transfer[2];
	struct ticket_confirm confirm;
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(start_one(s[i], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(transfer_one(s[0], 0, 2, 4, 0, END, 1, &transfer[0], &why), 0);
	assert_int_equal(transfer[0].delivered_len, 0);
	assert_int_equal(fixture_report(&f).stats.tickets_late, 1);
	assert_int_equal(transfer_one(s[1], 1, 2, 4, 0, END, FAR, &transfer[1], &why), 0); /* the same is said to whoever comes later */
	assert_int_equal(transfer[1].delivered_len, 0);
	assert_int_equal(confirm_one(s[1], 9, FAR, &confirm, &why), 0);
	assert_int_equal(confirm.restored, 0);

	/* an interrupted transfer has not come; the call may be made again */
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(start_one(s[i], 3, 8, PAGES, &get, &why), 0);
	assert_int_equal(transfer_one(s[0], 0, 3, 5, 0, END, FAR, &transfer[0], &why), STEP_WAIT);
	get_transfer_undo(&transfer[0]);
	assert_int_equal(transfer_one(s[1], 1, 3, 5, 0, END, FAR, &transfer[1], &why), STEP_WAIT);
	assert_int_equal(transfer_one(s[0], 0, 3, 5, 0, END, FAR, &transfer[0], &why), 0);
	assert_int_equal(get_transfer_step(&transfer[1], &why), 0);
	assert_int_equal(transfer[0].delivered_len, END);
	assert_int_equal(transfer[1].delivered_len, END);
	assert_int_equal(confirm_one(s[0], 8, 1, &confirm, &why), 0); /* the other one has not reported by then */
	assert_int_equal(confirm.restored, 0);
	assert_int_equal(confirm_one(s[1], 8, FAR, &confirm, &why), 0);
	assert_int_equal(confirm.restored, 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(get_release(s[i], 5, &why), 0);
	close_two(&f, s);
}

static void confirm_knows_whom_it_asks(void **state)
{
	struct ticket_confirm confirm;
	struct why why = WHY_INIT;
	struct session *s[2], *scheduler;
	struct get_start get;
	struct fixture f;

	(void)state;
	open_two(&f, s);
	scheduler = fixture_session(&f, SESSION_RANK_NONE);
	assert_int_equal(start_one(scheduler, 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(get.transferable_len, END);
	assert_int_equal(confirm_one(scheduler, 9, FAR, &confirm, &why), -EPERM);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm, &why), -EPERM);
	assert_int_equal(confirm_one(s[0], 7, FAR, &confirm, &why), -ENOENT);
	assert_int_equal(confirm_one(s[0], 0, FAR, &confirm, &why), -EINVAL);
	assert_int_equal(start_one(s[0], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(get_cancel(scheduler, 2, &why), 0); /* concerns nobody */
	assert_int_equal(start_one(s[1], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(get.transferable_len, END);
	assert_int_equal(get_cancel(s[1], 2, &why), 0); /* that of a rank does */
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm, &why), 0);
	assert_int_equal(confirm.restored, 0);
	assert_int_equal(get_cancel(s[0], 2, &why), 0);

	assert_int_equal(start_one(scheduler, 3, 8, PAGES, &get, &why), 0); /* nobody else has come when it leaves */
	assert_int_equal(get_cancel(scheduler, 3, &why), 0);
	assert_int_equal(start_one(s[0], 3, 8, PAGES, &get, &why), 0);
	assert_int_equal(get.transferable_len, 0);
	assert_false(get.handle_live);
	session_release(scheduler);
	session_unref(&scheduler);
	close_two(&f, s);
}

static void what_is_left_alone_is_forgotten(void **state)
{
	uint64_t ttl_ns = 61000000000ull;
	struct ticket_confirm confirm;
	struct why why = WHY_INIT;
	struct get_start get;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < TICKETS_MAX; i++) { /* nothing is found, so the handles end, and the places are kept */
		get = (struct get_start){ .ticket = { 1, 0, 0, (uint8_t)i, (uint8_t)(i / 256) } };
		assert_int_equal(get_chain(s[0], 10 + i, 3, 1, 0, &get, &why), 0);
		assert_false(get.handle_live);
	}
	assert_int_equal(fixture_report(&f).stats.tickets, TICKETS_MAX);
	assert_int_equal(start_one(s[0], 2, 9, PAGES, &get, &why), -EDQUOT);
	assert_non_null(strstr(why.text, "4096"));
	tickets_run(f.space->tickets, clock_now_ns() + ttl_ns);
	assert_int_equal(fixture_report(&f).stats.tickets, 0);
	assert_int_equal(start_one(s[0], 2, 9, PAGES, &get, &why), 0);
	assert_int_equal(fixture_report(&f).stats.ticket_pins, 2);
	tickets_run(f.space->tickets, clock_now_ns() + ttl_ns);
	assert_int_equal(fixture_report(&f).stats.ticket_pins, 0);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm, &why), 0);
	assert_int_equal(confirm.restored, 0);
	tickets_run(f.space->tickets, clock_now_ns() + ttl_ns);
	assert_int_equal(confirm_one(s[0], 9, FAR, &confirm, &why), -ENOENT);
	assert_int_equal(get_cancel(s[0], 2, &why), 0);
	close_two(&f, s);
}

/* Its session ends with a look-up under way, or while somebody waits for that. */
static void another_one_leads(void **state)
{
	struct get_start get[2] = { { .ticket = { 9 } }, { .ticket = { 9 } } };
	struct key keys[2] = { fixture_key(1, 0), fixture_key(1, 1) };
	struct why why = WHY_INIT;
	struct session *s[2];
	struct fixture f;

	(void)state;
	open_two(&f, s);
	for (uint32_t i = 0; i < 2; i++) {
		get[i].session = s[i];
		get[i].handle = 2;
		get[i].keys = keys;
		get[i].key_count = 2;
		get[i].deadline_ns = FAR;
		assert_int_equal(get_start_begin(&get[i], &why), 0);
	}
	assert_int_equal(get_ticket_step(&get[0], &why), GET_LEADS);
	assert_int_equal(get_start_step(&get[1], &why), STEP_WAIT);
	assert_int_equal(fixture_report(&f).stats.waiting, 1);
	get_start_undo(&get[0]);
	assert_int_equal(get_start_step(&get[1], &why), 0);
	assert_int_equal(get[1].raw_prefix_hit_len, 2 * FIXTURE_PAGE);
	assert_int_equal(get[1].transferable_len, 0); /* there is no row */
	assert_int_equal(fixture_report(&f).stats.tickets, 1);
	tickets_run(f.space->tickets, clock_now_ns() + 61000000000ull);
	close_two(&f, s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order_and_every_fault),
		cmocka_unit_test(all_ranks_are_answered_alike),
		cmocka_unit_test(ranges_pass_one_after_another),
		cmocka_unit_test(a_part_with_a_row_is_nothing),
		cmocka_unit_test(a_part_ends_at_a_boundary),
		cmocka_unit_test(a_death_ends_the_wait_of_the_others),
		cmocka_unit_test(a_death_after_the_report_counts),
		cmocka_unit_test(gates_have_deadlines),
		cmocka_unit_test(confirm_knows_whom_it_asks),
		cmocka_unit_test(what_is_left_alone_is_forgotten),
		cmocka_unit_test(another_one_leads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
