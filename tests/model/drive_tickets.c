/* SPDX-License-Identifier: Apache-2.0
 *
 * Tickets of gets: each rank's steps, in the model's order. A rank whose read is to have failed speaks to the ticket itself; the
 * others go by GET_TRANSFER, whose call is kept where it waits.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/ticket.h"
#include "tests/model/drive.h"

/* The ticket that ranks are at, and what each has open under it. */
static struct {
	bool on;
	uint8_t id[16];
	struct rank_seat {
		bool live, used, moving; /* a handle; the ticket is in use by a call of drive_ranks' own; a real one waits */
		struct handle *handle;
		uint64_t number, boundary, from, could;
		struct get_transfer call;
		uint64_t offsets[PATH_MAX_PAGES * LAYOUT_MAX_CLASSES];
	} seat[WORLD_MAX + 1];
} joint;

/* Of the model's rank, or of the session without one. */
static uint32_t seat_of(const json_t *who)
{
	return json_is_null(who) ? w.world : (uint32_t)json_integer_value(who);
}

static void joint_begins(void)
{
	if (joint.on)
		return;
	joint.on = true;
	memset(&joint.seat, 0, sizeof(joint.seat));
	digest_128(&w.tickets, sizeof(w.tickets), joint.id);
	w.tickets++;
}

/* The store says so many tokens, or that it waits. */
static void told(const char *what, uint32_t seat, bool waits, uint64_t is, const json_t *expected)
{
	if (waits == json_is_null(expected) && (waits || is == (uint64_t)json_integer_value(expected)))
		return;
	char *should = text_of(expected);

	if (waits)
		differs("ticket, %s of seat %u: the model says %s, the store waits", what, seat, should);
	else
		differs("ticket, %s of seat %u: the model says %s, the store %llu", what, seat, should, (unsigned long long)is);
	free(should);
}

static void do_start(const json_t *given, uint32_t i, const json_t *expected)
{
	struct rank_seat *seat = &joint.seat[i];
	uint64_t have = number(given, "have") / w.page * w.page;
	struct why why = WHY_INIT;
	struct question q;
	int r = ask(&q, given, joint.id, w.session[i], &why);
	uint64_t length = q.call.transferable_len / w.page * w.page;

	if (r) {
		differs("ticket, start of seat %u: %s", i, why.text);
		return;
	}
	*seat = (struct rank_seat){ .live = q.call.handle_live, .handle = q.call.h, .number = q.call.handle, .boundary = length, .from = have };
	if (json_integer_value(expected) || length > have) /* what has ended is 0 there, and `have` here */
		told("start", i, false, length, expected);
	if (seat->live && i < w.world && !w.over && ask(&q, given, joint.id, w.session[i], &why) != -EEXIST)
		differs("ticket, start of seat %u once more: it is no EEXIST", i);
}

static void seat_idle(struct rank_seat *seat)
{
	if (!seat->used)
		return;
	lock_take(&w.space->lock);
	ticket_idle(w.space->tickets, &seat->handle->seat);
	lock_drop(&w.space->lock);
	tickets_drain(w.space->tickets);
	seat->used = false;
}

/* The rank can deliver less than the range: its read has failed. Such a rank speaks to the ticket itself. */
static int deliver_less(struct rank_seat *seat, uint64_t to, uint64_t could, uint64_t *ret, struct why *why)
{
	const struct ticket_range range = { .boundary = seat->boundary, .from = seat->from, .to = to };
	struct tickets *tickets = w.space->tickets;
	const struct ticket_seat *at_ = &seat->handle->seat;
	int r = 0;

	lock_take(&w.space->lock);
	if (!seat->used) {
		seat->used = ticket_use(tickets, at_) != NULL;
		seat->could = could;
	}
	*ret = seat->from;
	if (seat->used)
		r = ticket_deliver(tickets, at_, &range, seat->could, clock_now_ns() + 3600000000000ull, ret, why);
	if (seat->used && !r)
		ticket_took(tickets, at_);
	lock_drop(&w.space->lock);
	if (r != STEP_WAIT)
		seat_idle(seat);
	return r;
}

static int move(struct rank_seat *seat, struct session *session, uint64_t to, uint64_t *ret, struct why *why)
{
	struct get_transfer *call = &seat->call;
	int r = session_enter(session, 0, why);

	if (!seat->moving) {
		*call = (struct get_transfer){
			.session = session,
			.handle = seat->number,
			.plan = ++w.handle,
			.boundary = seat->boundary,
			.from = seat->from,
			.to = to,
			.deadline_ns = clock_now_ns() + 3600000000000ull,
			.offsets = seat->offsets,
			.offsets_capacity = PATH_MAX_PAGES * LAYOUT_MAX_CLASSES,
		};
		r = get_transfer_begin(call, why);
	}
	while (!r && (r = get_transfer_step(call, why)) == STEP_MORE)
		r = 0;
	session_leave(session);
	seat->moving = r == STEP_WAIT;
	*ret = r ? seat->from : call->delivered_len;
	if (!r) {
		seat->live = !call->handle_ended;
		r = get_release(session, call->plan, why);
		r = r == -ENOENT || r == -EALREADY ? 0 : r; /* nothing was delivered */
	}
	return r;
}

/* The handle of a rank whose transfers are over; its report is to come. */
static void seat_over(struct rank_seat *seat, struct session *session)
{
	struct why why = WHY_INIT;

	if (!seat->live)
		return;
	lock_take(&w.space->lock);
	ticket_leave(w.space->tickets, &seat->handle->seat, true);
	lock_drop(&w.space->lock);
	get_cancel(session, seat->number, &why);
	seat->live = false;
}

static void do_transfer(const json_t *arguments, uint32_t i, const json_t *expected)
{
	struct rank_seat *seat = &joint.seat[i];
	uint64_t to = at(arguments, 4), could = at(arguments, 5), is = seat->from;
	struct why why = WHY_INIT;
	int r = 0;

	if (seat->used || (seat->live && !seat->moving && could < to))
		r = deliver_less(seat, to, could, &is, &why);
	else if (seat->live)
		r = move(seat, w.session[i], to, &is, &why);
	if (r && r != STEP_WAIT) {
		differs("ticket, transfer of rank %u: %s", i, why.text);
		return;
	}
	if (r || json_is_null(expected) || json_integer_value(expected) || is > seat->from) /* nothing is 0 there, and `from` here */
		told("transfer", i, r == STEP_WAIT, is, expected);
	if (r == STEP_WAIT)
		return;
	seat->from = is;
	if (to == seat->boundary || !json_integer_value(expected))
		seat_over(seat, w.session[i]);
}

static void do_confirm(const json_t *arguments, uint32_t i, const json_t *expected)
{
	struct ticket_confirm call = {
		.session = w.session[i],
		.failed = !json_is_true(json_array_get(arguments, 3)),
		.deadline_ns = clock_now_ns() + 3600000000000ull,
	};
	struct why why = WHY_INIT;
	int r;

	memcpy(call.ticket, joint.id, sizeof(call.ticket));
	r = ticket_confirm_step(&call, &why);
	if (r == STEP_WAIT)
		ticket_confirm_undo(&call); /* the report stands */
	else if (r)
		differs("ticket, confirm of rank %u: %s", i, why.text);
	if (r == 0 || r == STEP_WAIT)
		told("confirm", i, r == STEP_WAIT, call.restored, expected);
}

/* Cancels what it has, or, where there is nothing to cancel any more, ends as its session would. */
static void do_leave(uint32_t i)
{
	struct rank_seat *seat = &joint.seat[i];
	struct why why = WHY_INIT;

	seat_idle(seat);
	if (seat->moving)
		get_transfer_undo(&seat->call);
	if (seat->live)
		get_cancel(w.session[i], seat->number, &why);
	else
		tickets_session_ends(w.space->tickets, w.session[i]);
	seat->live = seat->moving = false;
}

/* Nobody is left. */
void joint_ends(void)
{
	struct tickets_report report;

	if (!joint.on)
		return;
	for (uint32_t i = 0; i <= w.world; i++)
		do_leave(i);
	tickets_run(w.space->tickets, clock_now_ns() + (HANDLE_TTL_S + 1) * 1000000000ull);
	joint.on = false;
	lock_take(&w.space->lock);
	tickets_report(w.space->tickets, &report);
	tickets_check(w.space->tickets);
	lock_drop(&w.space->lock);
	if (report.live || report.pins || report.kept_slots)
		differs("after a ticket: %llu live, %llu pins, %llu slots kept", (unsigned long long)report.live,
			(unsigned long long)report.pins, (unsigned long long)report.kept_slots);
}

void do_ticket(const json_t *arguments, const json_t *expected)
{
	const char *what = json_string_value(need(json_array_get(arguments, 2)));
	uint32_t i = seat_of(json_array_get(arguments, 1));

	joint_begins();
	if (!strcmp(what, "start"))
		do_start(json_array_get(arguments, 0), i, expected);
	else if (!strcmp(what, "transfer"))
		do_transfer(arguments, i, expected);
	else if (!strcmp(what, "confirm"))
		do_confirm(arguments, i, expected);
	else if (!strcmp(what, "leave"))
		do_leave(i);
}
