/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_TRANSFER, GET_CANCEL and RELEASE: from a handle to readable offsets, and back.
 */
#include "store/get_private.h"

#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/seating.h"

/* ---- giving holds and pins back ----------------------------------------------------------------------------------- */

void plan_unhold(struct session *s, struct vec32 *slots)
{
	uint32_t i = 0;

	while (i < slots->count) {
		uint32_t end = slots->count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : slots->count;

		seating_prefetch(s->space, &slots->at[i], end - i);
		lock_take(&s->space->lock);
		slots_unhold(s->space, &slots->at[i], end - i);
		lock_drop(&s->space->lock);
		i = end;
	}
	slots->count = 0;
}

uint32_t handle_release_behind(struct session *s, struct handle *h, uint32_t key)
{
	struct found *f = h->own;
	struct space *space = s->space;
	uint32_t released = 0, left;

	do {
		left = INDEX_STEP_KEYS;
		lock_take(&space->lock);
		for (; f->run_count > h->run_at && f->runs[f->run_count - 1].first >= key && left; left--) {
			const struct run *run = &f->runs[--f->run_count];

			released += run->end - run->first;
			session_unpin(s, run->record);
		}
		for (; f->row_count && f->rows[f->row_count - 1].key >= key && left; left--)
			session_unpin(s, f->rows[--f->row_count].record);
		space_room(space);
		lock_drop(&space->lock);
	} while (!left);
	space_retire(space);
	if (f->run_count > h->run_at && f->runs[f->run_count - 1].end > key) {
		released += f->runs[f->run_count - 1].end - key;
		f->runs[f->run_count - 1].end = key;
	}
	return released;
}

void handle_release_candidates(struct session *s, struct handle *h)
{
	struct found *f = h->own;

	if (!f->candidates)
		return;
	lock_take(&s->space->lock); /* FOUND_CANDIDATES at most */
	while (f->candidates)
		session_unpin(s, f->candidate[--f->candidates].row.record);
	space_room(s->space);
	lock_drop(&s->space->lock);
	space_retire(s->space);
}

void handle_release_all(struct session *s, struct handle *h)
{
	if (handle_has_own(h)) {
		handle_release_candidates(s, h);
		handle_release_behind(s, h, 0);
	}
	if (s->space->tiering)
		handle_tiers_end(s, h);
}

void handle_retire(struct session *s, struct handle *h)
{
	lock_take(&s->space->lock);
	s->space->stats.handles--;
	lock_drop(&s->space->lock);
	if (!session_reuse(s, &h->holding))
		handle_destroy(&h->holding);
}

void handle_end(struct session *s, struct holding *holding)
{
	struct handle *h = (struct handle *)holding;

	handle_release_all(s, h);
	handle_leave(s, h, false);
	handle_retire(s, h);
}

void handle_destroy(struct holding *holding)
{
	struct handle *h = (struct handle *)holding;

	found_free(h->own);
	vec32_free(&h->entries);
	vec32_free(&h->row_slots);
	vec32_free(&h->kept);
	free(h->ahead);
	free(h);
}

void get_plan_end(struct session *s, struct holding *holding)
{
	struct get_plan *plan = (struct get_plan *)holding;
	struct space *space = s->space;
	uint32_t i = 0;

	plan_unhold(s, &plan->slots);
	while (i < plan->pins.count) {
		uint32_t end = plan->pins.count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : plan->pins.count;

		index_prefetch_records(space->index, &plan->pins.at[i], end - i);
		lock_take(&space->lock);
		for (; i < end; i++)
			session_unpin(s, plan->pins.at[i]);
		space_room(space);
		lock_drop(&space->lock);
	}
	space_retire(space);
	lock_take(&space->lock);
	space->stats.get_plans--;
	lock_drop(&space->lock);
	if (!session_reuse(s, holding))
		get_plan_destroy(holding);
}

void get_plan_destroy(struct holding *holding)
{
	struct get_plan *plan = (struct get_plan *)holding;

	vec32_free(&plan->pins);
	vec32_free(&plan->slots);
	free(plan->wanted);
	free(plan);
}

/* ---- GET_TRANSFER ------------------------------------------------------------------------------------------------- */

/* The boundary is a candidate's, within the page behind the last. */
static int check_candidate(struct get_transfer *call, const struct handle *h, struct why *why)
{
	const struct found *f = h->found;

	if (call->candidate > f->candidates)
		return why_set(why, EINVAL, "candidate: %u; handle %llu has %u", call->candidate, (unsigned long long)call->handle,
			       f->candidates);
	if (call->boundary != f->candidate[call->candidate - 1].consumed)
		return why_set(why, EINVAL, "boundary: %llu tokens; candidate %u stands at %llu", (unsigned long long)call->boundary,
			       call->candidate, (unsigned long long)f->candidate[call->candidate - 1].consumed);
	call->last = f->candidate[call->candidate - 1].row.key;
	return 0;
}

static int check_boundary(struct get_transfer *call, const struct handle *h, struct why *why)
{
	const struct found *f = h->found;
	uint32_t page = call->session->space->layout->page_tokens;
	uint64_t end = f->start + (uint64_t)f->keys * page;

	if (call->boundary <= f->start || call->boundary > end || (call->boundary - f->start) % page ||
	    !bit_get(&f->grouped, (uint32_t)((call->boundary - f->start) / page) - 1))
		return why_set(why, EINVAL, "boundary: %llu tokens is no restorable boundary of handle %llu on a group boundary",
			       (unsigned long long)call->boundary, (unsigned long long)call->handle);
	call->last = (uint32_t)((call->boundary - f->start) / page) - 1;
	return 0;
}

static int check_range(struct get_transfer *call, struct handle *h, struct why *why)
{
	const struct found *f = h->found;
	uint32_t page = call->session->space->layout->page_tokens;
	int r;

	if (h->boundary != INDEX_NONE && h->candidate != call->candidate)
		return why_set(why, EINVAL, "candidate: %u; the handle's first transfer named %u", call->candidate, h->candidate);
	r = call->candidate ? check_candidate(call, h, why) : check_boundary(call, h, why);
	if (r)
		return r;
	if (h->boundary != INDEX_NONE && h->boundary != call->last)
		return why_set(why, EINVAL, "boundary: %llu tokens; the handle's first transfer named %llu",
			       (unsigned long long)call->boundary,
			       (unsigned long long)(f->start + (uint64_t)(h->boundary + 1) * page));
	if (call->from < f->start || (call->from - f->start) % page || (call->from - f->start) / page < h->next)
		return why_set(why, EINVAL, "from: %llu tokens is within a page or before %llu, where this range may begin",
			       (unsigned long long)call->from, (unsigned long long)(f->start + (uint64_t)h->next * page));
	if (call->to <= call->from || call->to > call->boundary || ((call->to - f->start) % page && call->to != call->boundary))
		return why_set(why, EINVAL, "to: %llu tokens is within a page, or not behind %llu, or over the boundary %llu",
			       (unsigned long long)call->to, (unsigned long long)call->from,
			       (unsigned long long)call->boundary);
	call->first = (uint32_t)((call->from - f->start) / page);
	call->end = call->to == call->boundary ? call->last + 1 : (uint32_t)((call->to - f->start) / page);
	if (call->first >= call->end)
		return why_set(why, EINVAL, "from: %llu tokens; the row at %llu is delivered with the page before it", (unsigned long long)call->from,
			       (unsigned long long)call->boundary);
	h->candidate = call->candidate;
	return 0;
}

uint64_t transfer_position(const struct get_transfer *call, uint32_t key)
{
	if (key == call->last + 1 && call->asked_to == call->boundary)
		return call->boundary;
	return call->h->found->start + (uint64_t)key * call->session->space->layout->page_tokens;
}

uint32_t transfer_restorable(const struct get_transfer *call, uint32_t key)
{
	while (key > call->first && !bit_get(&call->h->found->restorable, key - 1))
		key--;
	return key;
}

static int check_offsets(struct get_transfer *call, const struct handle *h, struct why *why)
{
	const struct found *f = h->found;
	const struct layout *layout = call->session->space->layout;
	uint32_t mask = call->class_mask ? call->class_mask : f->class_mask;
	uint64_t need = 0;

	if (mask & ~f->class_mask)
		return why_set(why, EINVAL, "class mask 0x%x: the handle asked for 0x%x", mask, f->class_mask);
	for (uint32_t c = 0; c < layout->classes; c++)
		if (mask >> c & 1)
			need += layout_is_row(layout, c) ? call->to == call->boundary : call->end - call->first;
	if (need > call->offsets_capacity && !call->into)
		return why_set(why, ENOSPC, "offsets: %llu are needed, there is room for %u", (unsigned long long)need,
			       call->offsets_capacity);
	call->class_mask = mask;
	return 0;
}

static struct get_plan *plan_new(struct session *s, uint64_t id)
{
	struct holding *spare = session_spare(s, HOLDING_GET);
	struct get_plan *plan = spare ? (struct get_plan *)spare : calloc(1, sizeof(*plan));

	if (!plan)
		return NULL;
	plan->holding = (struct holding){ .id = id, .kind = HOLDING_GET };
	plan->pins.count = plan->slots.count = 0;
	return plan;
}

/* False: no memory. */
static bool reserve(const struct get_transfer *call, const struct handle *h, struct get_plan *plan)
{
	const struct found *f = h->found;
	uint64_t need = (uint64_t)(call->end - call->first) * f->columns + LAYOUT_MAX_CLASSES;

	return need <= UINT32_MAX / 2 && vec32_reserve(&plan->slots, (uint32_t)need);
}

static int begin_plan(struct get_transfer *call, struct handle *h, struct why *why)
{
	const struct found *f = h->found;
	struct session *s = call->session;
	struct get_plan *plan = plan_new(s, call->plan);
	int r;

	if (!plan || !vec32_reserve(&plan->pins, f->run_count - h->run_at + 2) ||
	    (!call->into && !(s->space->tiering ? transfer_tiers_reserve(call, h, plan) : reserve(call, h, plan)))) {
		if (plan)
			get_plan_destroy(&plan->holding);
		return why_set(why, ENOMEM, "no memory for a plan of %u pages", call->end - call->first);
	}
	r = call->into ? 0 : session_hold(s, &plan->holding, why);
	if (!r) {
		lock_take(&s->space->lock);
		r = call->into ? 0 : session_sit(s, why);
		if (!r && !handle_has_own(h) && s->pins > SESSION_MAX_PINS - INDEX_STEP_KEYS)
			r = why_set(why, EDQUOT, "the session holds %u pins, the most that it may", SESSION_MAX_PINS);
		s->space->stats.get_plans += !r;
		lock_drop(&s->space->lock);
		if (r)
			session_forget(s, &plan->holding);
	}
	if (r) {
		if (!session_reuse(s, &plan->holding))
			get_plan_destroy(&plan->holding);
		return r;
	}
	call->p = plan;
	return 0;
}

/* The ticket has its outcome, or the rank has reported: nothing is delivered, and the handle ends. */
static void begin_over(struct get_transfer *call, struct handle *h)
{
	session_drop(call->session, &h->holding, 0);
	handle_end(call->session, &h->holding);
	call->over = call->handle_ended = true;
	call->delivered_len = call->from;
	call->values = 0;
}

/* Marks what its ticket found as looked at; false: there is nothing any more. */
static bool begin_shared(struct session *s, struct handle *h)
{
	bool alive = true;

	if (!h->seat.ticket)
		return true;
	lock_take(&s->space->lock);
	alive = ticket_use(s->space->tickets, &h->seat);
	lock_drop(&s->space->lock);
	return alive;
}

int get_transfer_begin(struct get_transfer *call, struct why *why)
{
	struct session *s = call->session;
	struct holding *holding;
	struct handle *h;
	int r;

	call->over = call->gate_waiting = call->decided = false;
	call->bytes = 0;
	if (s->rank == SESSION_RANK_NONE)
		return why_set(why, EPERM, "the session has no rank, hence no share to read");
	if (!call->plan && !call->into)
		return why_set(why, EINVAL, "plan: the id is 0");
	r = session_claim(s, HOLDING_HANDLE, call->handle, &holding, NULL, why);
	if (r)
		return r;
	h = (struct handle *)holding;
	if (!begin_shared(s, h)) {
		begin_over(call, h);
		return 0;
	}
	r = check_range(call, h, why);
	r = r ? r : check_offsets(call, h, why);
	r = r ? r : begin_plan(call, h, why);
	if (r) {
		handle_idle(s, h);
		session_unclaim(s, holding);
		return r;
	}
	call->h = h;
	call->key = call->first;
	call->good = call->end;
	call->asked_to = call->to;
	call->values = 0;
	call->spent = false;
	if (s->space->tiering && !call->into)
		transfer_tiers_begin(call);
	return 0;
}

uint32_t transfer_offsets_of(const struct get_transfer *call, uint32_t class_index)
{
	const struct layout *layout = call->session->space->layout;
	uint32_t at = 0;

	for (uint32_t c = 0; c < class_index; c++)
		if (call->class_mask >> c & 1)
			at += layout_is_row(layout, c) ? call->to == call->boundary : call->end - call->first;
	return at;
}

/* Where the handle's entries of @key begin: one a column. */
static const uint32_t *entries_of(const struct handle *h, uint32_t key)
{
	const struct found *f = h->found;

	return &h->entries.at[(size_t)(key - f->first) * f->columns];
}

/* Under the lock: has the session acknowledged the range of @entry? */
static bool acknowledged(const struct session *s, uint32_t entry, uint32_t *ret_grant)
{
	*ret_grant = slots_grant_of(s->space->slots, entry);
	return s->acknowledged[*ret_grant / 64] >> (*ret_grant % 64) & 1;
}

/* Under the lock: the session is told of the plan's slots from number @from on. */
static void hold(struct get_transfer *call, uint32_t from)
{
	const struct vec32 *slots = &call->p->slots;

	slots_tell(call->session->space, &slots->at[from], slots->count - from, call->session->seat);
}

static void count(struct get_transfer *call, uint32_t class_index, uint32_t values)
{
	const struct session *s = call->session;

	call->values += values;
	call->bytes += values * s->space->layout->class[class_index].share[s->share[class_index]].payload_bytes;
}

/* Under the lock: values of keys [key, end) in one class, for hold. False: one lies in a range that the session has not
 * acknowledged. */
static bool gather(struct get_transfer *call, uint32_t column, uint32_t end, uint32_t *ret_grant)
{
	const struct session *s = call->session;
	const struct handle *h = call->h;
	const struct found *f = h->found;
	bool all = session_has_all(call->session), window = f->gates.windows >> f->class_of[column] & 1;
	const uint32_t *at = &entries_of(h, call->key)[column];
	uint32_t from = call->p->slots.count, columns = f->columns;

	for (uint32_t key = call->key; key < end; key++, at += columns) {
		uint32_t entry = *at;

		if (entry == INDEX_NONE || (window && !handle_delivers(h, column, key, call->boundary)))
			continue;
		if (!all && !acknowledged(s, entry, ret_grant))
			return false;
		vec32_push(&call->p->slots, entry);
	}
	count(call, f->class_of[column], call->p->slots.count - from);
	return true;
}

/* Under the lock: offsets of keys [key, end) in one class. */
static void write_offsets(struct get_transfer *call, uint32_t column, uint32_t end)
{
	const struct handle *h = call->h;
	const struct found *f = h->found;
	uint64_t *to = call->offsets + transfer_offsets_of(call, f->class_of[column]) - call->first;
	const struct slots *slots = call->session->space->slots;

	if (!(f->gates.windows >> f->class_of[column] & 1)) {
		slots_offsets(slots, &entries_of(h, call->key)[column], f->columns, end - call->key, PUT_ANSWER_NONE, &to[call->key]);
		return;
	}
	for (uint32_t key = call->key; key < end; key++)
		to[key] = handle_delivers(h, column, key, call->boundary) ? slots_offset(slots, entries_of(h, key)[column]) : PUT_ANSWER_NONE;
}

/* One stay: keys [key, end). Words first, then what tells. */
static bool answer_some(struct get_transfer *call, uint32_t end, uint32_t *ret_grant)
{
	struct space *space = call->session->space;
	const struct handle *h = call->h;
	const struct found *f = h->found;
	uint32_t from = call->p->slots.count;
	bool ok = true;

	seating_prefetch(space, entries_of(h, call->key), (end - call->key) * f->columns);
	lock_take(&space->lock);
	for (uint32_t c = 0; c < f->columns && ok; c++)
		if (call->class_mask >> f->class_of[c] & 1)
			ok = gather(call, c, end, ret_grant);
	hold(call, from);
	killpoint(KILLPOINT_GET_WORD);
	for (uint32_t c = 0; c < f->columns && ok; c++)
		if (call->class_mask >> f->class_of[c] & 1) {
			write_offsets(call, c, end);
			killpoint(KILLPOINT_GET_OFFSETS);
		}
	lock_drop(&space->lock);
	return ok;
}

/* Under the lock: the row at the boundary, whose record is pinned. */
static bool write_row(struct get_transfer *call, uint32_t record, uint32_t *ret_grant)
{
	struct session *s = call->session;
	struct space *space = s->space;
	const struct layout *layout = space->layout;

	for (uint32_t c = 0; c < layout->classes; c++) {
		uint32_t entry;

		if (!(call->class_mask >> c & 1) || !layout_is_row(layout, c))
			continue;
		entry = index_value(space->index, record, INDEX_PAGE_ROW, layout_column(layout, c, s->share[c]), NULL);
		if (!acknowledged(s, entry, ret_grant))
			return false;
		vec32_push(&call->p->slots, entry);
		hold(call, call->p->slots.count - 1);
		call->offsets[transfer_offsets_of(call, c)] = slots_offset(space->slots, entry);
		count(call, c, 1);
	}
	return true;
}

/* ---- the ranks of a ticket ------------------------------------------------------------------------------------------ */

static void gate_stop_waiting(struct get_transfer *call)
{
	struct space *space = call->session->space;

	if (!call->gate_waiting)
		return;
	call->gate_waiting = false;
	atomic_fetch_sub(&space->waiters, 1);
	space->stats.waiting--;
	space->stats.join_wait_us += (clock_now_ns() - call->gate_since_ns) / 1000;
}

static void gate_wait(struct get_transfer *call)
{
	struct space *space = call->session->space;

	if (call->gate_waiting)
		return;
	call->gate_waiting = true;
	call->gate_since_ns = clock_now_ns();
	atomic_fetch_add(&space->waiters, 1);
	space->stats.waiting++;
}

int transfer_gate(struct get_transfer *call, uint32_t *key, struct why *why)
{
	struct session *s = call->session;
	uint32_t page = s->space->layout->page_tokens;
	struct ticket_range range = {
		.boundary = call->boundary,
		.from = call->from,
		.to = call->asked_to,
		.candidate = call->candidate,
	};
	uint64_t all;
	int r;

	if (!call->h->seat.ticket || call->decided)
		return 0;
	lock_take(&s->space->lock);
	r = ticket_deliver(s->space->tickets, &call->h->seat, &range, transfer_position(call, *key), call->deadline_ns, &all, why);
	if (r == STEP_WAIT)
		gate_wait(call);
	else
		gate_stop_waiting(call);
	lock_drop(&s->space->lock);
	if (r)
		return r;
	call->decided = true;
	*key = (uint32_t)((all - call->h->found->start) / page);
	return 0;
}

/* The call is done with what its ticket found. */
static void gate_leave(struct get_transfer *call, bool took)
{
	struct session *s = call->session;
	const struct ticket_seat *seat = &call->h->seat;

	if (!seat->ticket)
		return;
	lock_take(&s->space->lock);
	gate_stop_waiting(call);
	if (took)
		ticket_took(s->space->tickets, seat);
	else
		ticket_withdraw(s->space->tickets, seat);
	lock_drop(&s->space->lock);
	handle_idle(s, call->h);
}

/* ---- pins ------------------------------------------------------------------------------------------------------------- */

/* Under the lock, at most INDEX_STEP_KEYS: the plan has pins of its own, beside the ticket's. False: that was the last. */
static bool pin_some(struct get_transfer *call)
{
	struct handle *h = call->h;
	const struct found *f = h->found;

	for (uint32_t left = INDEX_STEP_KEYS; left; left--) {
		if (h->run_at == f->run_count || f->runs[h->run_at].first >= call->end)
			return false;
		session_pin(call->session, f->runs[h->run_at].record);
		vec32_push(&call->p->pins, f->runs[h->run_at].record);
		if (f->runs[h->run_at].end > call->end)
			return false; /* the next range begins in it */
		h->run_at++;
	}
	return true;
}

static void pin_shared(struct get_transfer *call)
{
	bool more = call->end > call->first;

	while (more) {
		lock_take(&call->session->space->lock);
		more = pin_some(call);
		lock_drop(&call->session->space->lock);
	}
}

/* The pins of the range's records pass from the handle to the plan. Without the lock but for a record that both need. */
static void move_pins(struct get_transfer *call)
{
	struct handle *h = call->h;
	struct found *f = h->own;
	struct get_plan *plan = call->p;

	while (h->run_at < f->run_count && f->runs[h->run_at].first < call->end) {
		struct run *run = &f->runs[h->run_at];

		vec32_push(&plan->pins, run->record);
		if (run->end > call->end) {
			lock_take(&call->session->space->lock);
			session_pin(call->session, run->record);
			lock_drop(&call->session->space->lock);
			run->page += call->end - run->first;
			run->first = call->end;
			return;
		}
		h->run_at++;
	}
}

const struct row_pin *handle_row(const struct handle *h, uint32_t key)
{
	const struct found *f = h->found;

	if (h->candidate)
		return &f->candidate[h->candidate - 1].row;
	for (uint32_t i = f->row_count; i--;)
		if (f->rows[i].key == key)
			return &f->rows[i];
	return NULL;
}

/* The row's pin passes to the plan; the rows before it are no longer wanted. */
static void move_row(struct get_transfer *call)
{
	struct handle *h = call->h;
	struct found *f = h->own;

	if (h->candidate) {
		vec32_push(&call->p->pins, f->candidate[h->candidate - 1].row.record);
		f->candidate[h->candidate - 1] = f->candidate[--f->candidates];
	} else if (f->row_count && f->rows[f->row_count - 1].key == call->last) {
		vec32_push(&call->p->pins, f->rows[--f->row_count].record);
	}
}

static void pin_shared_row(struct get_transfer *call)
{
	const struct row_pin *row = call->to == call->boundary ? handle_row(call->h, call->last) : NULL;

	if (!row)
		return;
	lock_take(&call->session->space->lock);
	session_pin(call->session, row->record);
	lock_drop(&call->session->space->lock);
	vec32_push(&call->p->pins, row->record);
}

int transfer_refuse(struct get_transfer *call, uint32_t grant, struct why *why)
{
	struct session *s = call->session;

	gate_leave(call, false);
	session_forget(s, &call->p->holding);
	get_plan_end(s, &call->p->holding);
	session_unclaim(s, &call->h->holding);
	return why_set(why, ENXIO, "range %u: a value lies there and the session has not acknowledged it", grant);
}

/* The plan has pins for what was delivered. */
static void take_pins(struct get_transfer *call)
{
	struct handle *h = call->h;
	bool own = handle_has_own(h);

	if (h->boundary == INDEX_NONE) {
		h->boundary = call->last;
		if (own && !h->candidate)
			handle_release_candidates(call->session, h);
		if (own)
			handle_release_behind(call->session, h, call->last + 1);
	}
	if (own)
		move_pins(call);
	else
		pin_shared(call);
	if (call->handle_ended && own)
		move_row(call);
	else if (call->handle_ended)
		pin_shared_row(call);
}

static void count_finished(const struct get_transfer *call)
{
	struct space *space = call->session->space;

	lock_take(&space->lock);
	if (call->into) {
		space->stats.values_imported += call->values;
		space->stats.bytes_imported += call->bytes;
	} else {
		space->stats.values_given += call->values;
		space->stats.bytes_given += call->bytes;
	}
	lock_drop(&space->lock);
}

void transfer_finish(struct get_transfer *call)
{
	struct session *s = call->session;
	struct handle *h = call->h;

	call->delivered_len = call->to;
	call->handle_ended = call->to == call->boundary || call->spent;
	take_pins(call);
	h->next = call->end;
	h->holding.values = call->last + 1 - call->end;
	call->p->holding.values = call->p->holding.sized = call->values;
	call->p->holding.bytes = call->bytes;
	count_finished(call);
	gate_leave(call, true);
	if (call->handle_ended) {
		session_drop(s, &h->holding, 0);
		handle_leave(s, h, true);
		handle_end(s, &h->holding);
	} else {
		session_unclaim(s, &h->holding);
	}
	if (!call->into && call->end > call->first) {
		session_unclaim(s, &call->p->holding);
		return;
	}
	if (!call->into) /* nothing was delivered: there is no plan */
		session_forget(s, &call->p->holding);
	get_plan_end(s, &call->p->holding);
}

/* What was told to be delivered is answered. */
static int finish_good(struct get_transfer *call)
{
	call->end = call->good;
	call->to = transfer_position(call, call->good);
	call->spent = call->good == call->first;
	transfer_finish(call);
	return 0;
}

int get_transfer_step(struct get_transfer *call, struct why *why)
{
	struct space *space = call->session->space;
	uint32_t stop = call->key + PUT_STEP_KEYS, grant = 0;
	bool ok = true;
	int r;

	if (call->over)
		return 0;
	if (space->tiering)
		return transfer_tiers_step(call, why);
	if (call->h->seat.ticket && !call->decided && atomic_load(&call->session->ended)) {
		get_transfer_undo(call);
		return why_set(why, ESHUTDOWN, "the session has ended");
	}
	r = transfer_gate(call, &call->good, why); /* all of it is there */
	if (r == STEP_WAIT)
		return r;
	if (r) {
		get_transfer_undo(call);
		return r;
	}
	while (call->key < call->good && call->key < stop && ok) {
		uint32_t end = call->good - call->key > INDEX_STEP_KEYS ? call->key + INDEX_STEP_KEYS : call->good;

		ok = answer_some(call, end, &grant);
		call->key = end;
	}
	if (ok && call->key < call->good)
		return STEP_MORE;
	if (ok && call->good == call->end && call->to == call->boundary && call->h->found->gates.states) {
		const struct row_pin *row = handle_row(call->h, call->last);

		lock_take(&space->lock);
		ok = !row || write_row(call, row->record, &grant);
		lock_drop(&space->lock);
	}
	if (!ok)
		return transfer_refuse(call, grant, why);
	return finish_good(call);
}

void get_transfer_undo(struct get_transfer *call)
{
	struct session *s = call->session;

	if (call->over)
		return;
	if (s->space->tiering && !call->into)
		transfer_tiers_undo(call);
	gate_leave(call, false);
	if (!call->into)
		session_forget(s, &call->p->holding);
	get_plan_end(s, &call->p->holding);
	session_unclaim(s, &call->h->holding);
}

/* ---- GET_CANCEL, RELEASE ------------------------------------------------------------------------------------------ */

int get_cancel(struct session *s, uint64_t handle, struct why *why)
{
	struct holding *holding;
	int r = handle ? session_claim(s, HOLDING_HANDLE, handle, &holding, NULL, why) :
			 why_set(why, EINVAL, "handle: the id is 0");

	if (r)
		return r;
	session_drop(s, holding, 0);
	handle_end(s, holding);
	return 0;
}

int get_release(struct session *s, uint64_t plan, struct why *why)
{
	struct holding *holding;
	int r = session_claim(s, HOLDING_GET, plan, &holding, NULL, why);

	if (r)
		return r;
	session_drop(s, holding, 0);
	get_plan_end(s, holding);
	return 0;
}
