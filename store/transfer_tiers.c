/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_TRANSFER over memory and disk: values are held where they are in memory, and read back where they are not.
 *
 *   wanting     page by page, each with all its values or not at all; the row, held by the handle from then on, with the first
 *   awaiting    from the first page on, as long as reads are under way
 *   delivering  the pages that are there without a gap; their holds pass to the plan
 *
 * Who got no slot for a page wants nothing more, and delivers what it has. Who has not even one page holds nothing while it waits, so
 * two transfers are never in each other's way for good.
 */
#include "store/get_private.h"

#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/seating.h"

#define KEPT_NS 1000000000ull /* slots after ENXIO */
#define SOFT_TRIES 4u         /* reads that failed for want of memory or descriptors, of one call */

/* ---- what a handle and a plan have of the disk tier ------------------------------------------------------------------ */

void handle_detach(struct session *s, struct handle *h, uint32_t key)
{
	while (h->ahead_at < h->ahead_count && h->ahead[h->ahead_at].key < key) {
		uint32_t end = h->ahead_count - h->ahead_at > INDEX_STEP_KEYS ? h->ahead_at + INDEX_STEP_KEYS : h->ahead_count;

		lock_take(&s->space->lock);
		for (; h->ahead_at < end && h->ahead[h->ahead_at].key < key; h->ahead_at++)
			load_detach(s->space->tiering, h->ahead[h->ahead_at].name);
		lock_drop(&s->space->lock);
	}
}

bool handle_kept_over(const struct holding *holding, uint64_t now_ns)
{
	const struct handle *h = (const struct handle *)holding;

	return h->kept.count && now_ns > h->kept_until_ns;
}

void handle_kept_end(struct session *s, struct holding *holding)
{
	plan_unhold(s, &((struct handle *)holding)->kept);
}

void handle_tiers_end(struct session *s, struct handle *h)
{
	handle_detach(s, h, UINT32_MAX);
	plan_unhold(s, &h->row_slots);
	plan_unhold(s, &h->kept);
	h->row_held = false;
}

/* ---- begin -------------------------------------------------------------------------------------------------------------- */

bool transfer_tiers_reserve(struct get_transfer *call, const struct handle *h, struct get_plan *plan)
{
	const struct found *f = h->found;
	uint64_t need = (uint64_t)(call->end - call->first) * f->columns + LAYOUT_MAX_CLASSES;
	struct wanted *wanted;

	if (need > UINT32_MAX / 2 || !vec32_reserve(&plan->slots, (uint32_t)need + LAYOUT_MAX_CLASSES) ||
	    !vec32_reserve(&((struct handle *)h)->row_slots, LAYOUT_MAX_CLASSES))
		return false;
	if (need <= plan->wanted_capacity)
		return true;
	wanted = realloc(plan->wanted, need * sizeof(*wanted));
	if (!wanted)
		return false;
	plan->wanted = wanted;
	plan->wanted_capacity = (uint32_t)need;
	return true;
}

static void start_over(struct get_transfer *call)
{
	call->key = call->settled = call->first;
	call->run = call->h->run_at;
	call->stopped = call->failed = false;
}

static struct wanted *row_wanted(const struct get_transfer *call)
{
	return &call->p->wanted[(size_t)(call->asked_end - call->first) * call->h->found->columns];
}

static struct wanted *page_wanted(const struct get_transfer *call, uint32_t key)
{
	return &call->p->wanted[(size_t)(key - call->first) * call->h->found->columns];
}

void transfer_tiers_begin(struct get_transfer *call)
{
	call->asked_end = call->end;
	call->waiting = call->wants_room = false;
	call->soft = 0;
	for (uint32_t i = 0; i < LAYOUT_MAX_CLASSES; i++)
		row_wanted(call)[i] = (struct wanted){ .entry = INDEX_NONE };
	start_over(call);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------ */

/* Under the lock, in the stay that found that there is something to wait for. */
static void announce(struct get_transfer *call, bool room)
{
	struct space *space = call->session->space;

	if (!call->waiting) {
		call->waiting = true;
		call->waited_since_ns = clock_now_ns();
		atomic_fetch_add(&space->waiters, 1);
		space->stats.waiting++;
	}
	if (room && !call->wants_room) {
		call->wants_room = true;
		space->tiering->room_waiters++;
	}
}

static void stop_waiting(struct get_transfer *call)
{
	struct space *space = call->session->space;

	if (!call->waiting)
		return;
	atomic_fetch_sub(&space->waiters, 1);
	lock_take(&space->lock);
	space->stats.waiting--;
	space->stats.join_wait_us += (clock_now_ns() - call->waited_since_ns) / 1000;
	space->tiering->room_waiters -= call->wants_room;
	lock_drop(&space->lock);
	call->waiting = call->wants_room = false;
}

/* ---- letting go ----------------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void let_go(struct tiering *t, struct wanted *w)
{
	if (w->name.number)
		load_detach(t, w->name);
	else if (w->entry != INDEX_NONE)
		tiering_unhold(t, w->entry);
	*w = (struct wanted){ .entry = INDEX_NONE };
}

/* Under the lock. */
static void rows_let_go(struct get_transfer *call)
{
	for (uint32_t i = 0; i < LAYOUT_MAX_CLASSES; i++)
		let_go(call->session->space->tiering, &row_wanted(call)[i]);
}

/* Nothing is wanted from @key on any more. */
static void cut(struct get_transfer *call, uint32_t key)
{
	struct space *space = call->session->space;
	uint32_t step = INDEX_STEP_KEYS / (call->h->found->columns ? call->h->found->columns : 1);

	while (call->key > key) {
		uint32_t begin = call->key - key > step ? call->key - step : key;

		lock_take(&space->lock);
		while (call->key > begin) {
			struct wanted *w = page_wanted(call, --call->key);

			for (uint32_t c = 0; c < call->h->found->columns; c++)
				let_go(space->tiering, &w[c]);
		}
		lock_drop(&space->lock);
	}
	call->stopped = true;
}

/* All of it, the row too. */
static void cut_all(struct get_transfer *call)
{
	struct space *space = call->session->space;

	cut(call, call->first);
	lock_take(&space->lock);
	rows_let_go(call);
	lock_drop(&space->lock);
}

/* ---- wanting -------------------------------------------------------------------------------------------------------------- */

static bool row_class(const struct get_transfer *call, uint32_t class_index)
{
	return call->h->found->class_mask >> class_index & 1 && layout_is_row(call->session->space->layout, class_index);
}

/* The record whose row this call has to get hold of, with all state classes of the handle; INDEX_NONE: none. */
static uint32_t row_record(const struct get_transfer *call)
{
	const struct row_pin *row = call->h->row_held ? NULL : handle_row(call->h, call->last);
	bool asked = false;

	for (uint32_t c = 0; c < call->session->space->layout->classes; c++)
		asked |= call->class_mask >> c & 1 && row_class(call, c);
	return row && asked ? row->record : INDEX_NONE;
}

struct reads { /* of one key */
	bool led, joined;
};

/* Under the lock. HERE stands for HERE and COMING. */
static enum load_state want_value(struct get_transfer *call, uint32_t record, uint32_t page, uint32_t class_index, struct wanted *w,
				  struct reads *reads)
{
	struct session *s = call->session;
	bool joined = false;
	enum load_state state = load_want(s->space->tiering, record, page,
					  layout_column(s->space->layout, class_index, s->share[class_index]), true, session_filter(s),
					  &w->name, &w->entry, &joined);

	if (state != LOAD_COMING)
		w->name.number = 0;
	if (state != LOAD_HERE)
		w->entry = INDEX_NONE;
	reads->led |= state == LOAD_COMING && !joined;
	reads->joined |= joined;
	s->space->stats.reads_avoided += joined;
	return state == LOAD_COMING ? LOAD_HERE : state;
}

static enum load_state want_rows(struct get_transfer *call)
{
	uint32_t record = row_record(call), i = 0;
	struct reads reads = { false, false };

	for (uint32_t c = 0; c < call->session->space->layout->classes && record != INDEX_NONE; c++) {
		enum load_state state;

		if (!row_class(call, c))
			continue;
		state = want_value(call, record, INDEX_PAGE_ROW, c, &row_wanted(call)[i++], &reads);
		if (state != LOAD_HERE)
			return state;
	}
	return LOAD_HERE;
}

/* Was a read of it begun by the handle's GET_START? Then it is counted already. */
static bool read_ahead(const struct handle *h, uint32_t key)
{
	return h->ahead_at < h->ahead_count && key >= h->ahead[h->ahead_at].key && key <= h->ahead[h->ahead_count - 1].key;
}

static enum load_state want_page(struct get_transfer *call)
{
	const struct handle *h = call->h;
	const struct found *f = h->found;
	struct stats *stats = &call->session->space->stats;
	struct wanted *w = page_wanted(call, call->key);
	struct reads reads = { false, false };
	const struct run *run = handle_run(h, call->key, &call->run);

	for (uint32_t c = 0; c < f->columns; c++)
		w[c] = (struct wanted){ .entry = INDEX_NONE };
	for (uint32_t c = 0; c < f->columns; c++) {
		enum load_state state;

		if (!(call->class_mask >> f->class_of[c] & 1) || !handle_delivers(h, c, call->key, call->boundary))
			continue;
		state = want_value(call, run->record, run->page + call->key - run->first, f->class_of[c], &w[c], &reads);
		if (state == LOAD_HERE)
			continue;
		for (uint32_t i = 0; i < c; i++)
			let_go(call->session->space->tiering, &w[i]);
		return state;
	}
	stats->keys_led += reads.led && !read_ahead(h, call->key);
	stats->keys_joined += reads.joined && !reads.led && !read_ahead(h, call->key);
	return LOAD_HERE;
}

/* One stay under the lock. */
static void want_some(struct get_transfer *call)
{
	struct space *space = call->session->space;
	uint32_t pages = INDEX_STEP_KEYS / (call->h->found->columns ? call->h->found->columns : 1), end = call->key + (pages ? pages : 1);
	enum load_state state = LOAD_HERE;

	lock_take(&space->lock);
	if (call->key == call->first)
		state = want_rows(call);
	for (; state == LOAD_HERE && call->key < call->end && call->key < end; call->key += state == LOAD_HERE)
		state = want_page(call);
	if (state != LOAD_HERE && call->key == call->first)
		rows_let_go(call);
	if (state == LOAD_NONE && call->key == call->first)
		announce(call, true);
	call->stopped = state != LOAD_HERE;
	call->failed = state == LOAD_FAILED;
	load_submit(space->tiering);
	lock_drop(&space->lock);
}

/* ---- awaiting ------------------------------------------------------------------------------------------------------------- */

/* Under the lock: all @n of them are there, or the first other state. */
static enum load_state settle(struct tiering *t, struct wanted *w, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		enum load_state state;

		if (!w[i].name.number)
			continue;
		state = load_ask(t, w[i].name, &w[i].entry);
		if (state == LOAD_COMING)
			return state;
		w[i].name.number = 0;
		if (state != LOAD_HERE)
			return state;
	}
	return LOAD_HERE;
}

/* One stay under the lock. HERE: nothing is to be waited for in it. */
static enum load_state settle_some(struct get_transfer *call)
{
	struct space *space = call->session->space;
	uint32_t columns = call->h->found->columns, pages = INDEX_STEP_KEYS / (columns ? columns : 1), end;
	enum load_state state;

	end = call->key - call->settled > pages ? call->settled + (pages ? pages : 1) : call->key;
	lock_take(&space->lock);
	state = settle(space->tiering, row_wanted(call), LAYOUT_MAX_CLASSES);
	if (state == LOAD_NONE || state == LOAD_FAILED)
		call->settled = call->first;
	for (; state == LOAD_HERE && call->settled < end; call->settled += state == LOAD_HERE)
		state = settle(space->tiering, page_wanted(call, call->settled), columns);
	if (state == LOAD_COMING)
		announce(call, false);
	lock_drop(&space->lock);
	return state;
}

/* HERE: all that is wanted; else what came of the first page that is not there, or of the row. */
static enum load_state await(struct get_transfer *call)
{
	enum load_state state;

	do
		state = settle_some(call);
	while (state == LOAD_HERE && call->settled < call->key);
	return state;
}

/* Is the row there, if this call has to get it? */
static bool rows_here(const struct get_transfer *call)
{
	uint32_t i = 0;

	for (uint32_t c = 0; c < call->session->space->layout->classes && row_record(call) != INDEX_NONE; c++)
		if (row_class(call, c) && row_wanted(call)[i++].entry == INDEX_NONE)
			return false;
	return true;
}

/* ---- delivering ----------------------------------------------------------------------------------------------------------- */

/* Under the lock: the answer for one value. False: its range is not acknowledged. */
static bool answer(struct get_transfer *call, uint32_t class_index, uint32_t entry, uint64_t *to, uint32_t *ret_grant)
{
	const struct session *s = call->session;
	const struct slots *slots = s->space->slots;

	*to = PUT_ANSWER_NONE;
	if (entry == INDEX_NONE)
		return true;
	*ret_grant = slots_grant_of(slots, entry);
	if (!(s->acknowledged[*ret_grant / 64] >> (*ret_grant % 64) & 1))
		return false;
	*to = slots_offset(slots, entry);
	call->values++;
	call->bytes += s->space->layout->class[class_index].share[s->share[class_index]].payload_bytes;
	return true;
}

/* Under the lock, before any of their offsets is written: the session is told of @n values. */
static void tell(const struct get_transfer *call, const struct wanted *w, uint32_t n)
{
	const struct session *s = call->session;

	for (uint32_t i = 0; i < n; i++)
		if (w[i].entry != INDEX_NONE)
			seats_use(&s->space->tables, w[i].entry, s->seat);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	killpoint(KILLPOINT_GET_WORD);
}

/* The pages before call->settled; behind them nothing. */
static bool answer_pages(struct get_transfer *call, uint32_t *ret_grant)
{
	struct space *space = call->session->space;
	const struct handle *h = call->h;
	const struct found *f = h->found;
	uint32_t key = call->first;
	bool ok = true;

	while (ok && key < call->settled) {
		uint32_t end = call->settled - key > INDEX_STEP_KEYS ? key + INDEX_STEP_KEYS : call->settled;

		lock_take(&space->lock);
		tell(call, page_wanted(call, key), (end - key) * f->columns);
		for (uint32_t c = 0; c < f->columns && ok; c++) {
			uint64_t *to = call->offsets + transfer_offsets_of(call, f->class_of[c]) - call->first;

			for (uint32_t k = key; k < end && ok && call->class_mask >> f->class_of[c] & 1; k++)
				ok = answer(call, f->class_of[c], page_wanted(call, k)[c].entry, &to[k], ret_grant);
			killpoint(KILLPOINT_GET_OFFSETS);
		}
		lock_drop(&space->lock);
		key = end;
	}
	for (uint32_t c = 0; c < f->columns && ok; c++)
		for (uint32_t k = call->settled; k < call->end && call->class_mask >> f->class_of[c] & 1; k++)
			call->offsets[transfer_offsets_of(call, f->class_of[c]) + k - call->first] = PUT_ANSWER_NONE;
	return ok;
}

/* The row's, when the range ends at the boundary. */
static bool answer_rows(struct get_transfer *call, uint32_t *ret_grant)
{
	struct space *space = call->session->space;
	const struct handle *h = call->h;
	bool all = call->settled == call->end, ok = true;
	uint32_t i = 0;

	if (call->to != call->boundary)
		return true;
	lock_take(&space->lock);
	for (uint32_t c = 0; c < space->layout->classes && ok; c++) {
		uint32_t entry;

		if (!row_class(call, c))
			continue;
		entry = !all ? INDEX_NONE : h->row_held ? h->row_slots.at[i] : row_wanted(call)[i].entry;
		i++;
		if (!(call->class_mask >> c & 1))
			continue;
		tell(call, &(struct wanted){ .entry = entry }, 1);
		ok = answer(call, c, entry, &call->offsets[transfer_offsets_of(call, c)], ret_grant);
	}
	lock_drop(&space->lock);
	return ok;
}

/* The holds of what was wanted pass to the plan, that of the row to the handle. */
static void move_holds(struct get_transfer *call)
{
	struct handle *h = call->h;
	const struct found *f = h->found;
	const struct wanted *row = row_wanted(call);
	uint32_t values = (call->settled - call->first) * f->columns;

	for (uint32_t i = 0; i < values; i++)
		if (call->p->wanted[i].entry != INDEX_NONE)
			vec32_push(&call->p->slots, call->p->wanted[i].entry);
	for (uint32_t i = 0; i < LAYOUT_MAX_CLASSES && row[i].entry != INDEX_NONE; i++) {
		vec32_push(&h->row_slots, row[i].entry);
		h->row_held = true;
	}
}

static int refuse(struct get_transfer *call, uint32_t grant, struct why *why)
{
	struct handle *h = call->h;
	struct vec32 slots;

	move_holds(call);
	plan_unhold(call->session, &h->kept);
	slots = h->kept;
	h->kept = call->p->slots;
	call->p->slots = slots;
	h->kept_until_ns = clock_now_ns() + KEPT_NS;
	stop_waiting(call);
	return transfer_refuse(call, grant, why);
}

static int deliver(struct get_transfer *call, struct why *why)
{
	struct session *s = call->session;
	struct handle *h = call->h;
	uint32_t grant = 0;

	if (!answer_pages(call, &grant) || !answer_rows(call, &grant))
		return refuse(call, grant, why);
	move_holds(call);
	if (call->settled == call->end && call->to == call->boundary) {
		for (uint32_t i = 0; i < h->row_slots.count; i++)
			vec32_push(&call->p->slots, h->row_slots.at[i]);
		h->row_slots.count = 0;
		h->row_held = false;
	}
	plan_unhold(s, &h->kept);
	handle_detach(s, h, call->settled);
	stop_waiting(call);
	call->end = call->settled;
	call->to = transfer_position(call, call->settled);
	call->spent = call->settled == call->first;
	transfer_finish(call);
	return 0;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------------- */

/* Nothing is there: is that how it stays? Else *ret is what the step says. */
static bool nothing_yet(struct get_transfer *call, enum load_state state, int *ret)
{
	bool soft = state == LOAD_NONE; /* else it waits for room, or the deadline has passed */

	if (call->failed || call->decided)
		return true;
	if (clock_now_ns() >= call->deadline_ns || (soft && ++call->soft > SOFT_TRIES))
		return true;
	start_over(call);
	*ret = soft ? STEP_MORE : STEP_WAIT;
	return false;
}

static int too_late(struct get_transfer *call, enum load_state state, struct why *why)
{
	bool soft = state == LOAD_NONE;

	get_transfer_undo(call);
	return why_set(why, EAGAIN, "from %llu tokens on: no page is in memory yet, %s", (unsigned long long)call->from,
		       soft                  ? "and it cannot be read now" :
		       state == LOAD_COMING ? "and the disk has not answered" :
					       "and there is no room for it");
}

int transfer_tiers_step(struct get_transfer *call, struct why *why)
{
	uint32_t stop = call->key + PUT_STEP_KEYS, good;
	enum load_state state;
	int r;

	if (atomic_load(&call->session->ended)) {
		get_transfer_undo(call);
		return why_set(why, ESHUTDOWN, "the session has ended");
	}
	while (!call->stopped && call->key < call->end) {
		if (call->key >= stop)
			return STEP_MORE;
		want_some(call);
	}
	state = await(call);
	if (state == LOAD_COMING && clock_now_ns() < call->deadline_ns)
		return STEP_WAIT;
	/* what was not wanted any more since a value is gone counts when all before it is there, else the deadline has passed before that */
	call->failed = state == LOAD_FAILED || (state == LOAD_HERE && call->failed);
	cut(call, !rows_here(call) ? call->first : call->failed ? transfer_restorable(call, call->settled) : call->settled);
	call->settled = call->key;
	if (call->settled == call->first) {
		cut_all(call);
		if (!nothing_yet(call, state, &r))
			return r;
	}
	good = call->settled;
	r = transfer_gate(call, &good, why);
	if (r == STEP_WAIT)
		return r;
	if (r) {
		get_transfer_undo(call);
		return r;
	}
	cut(call, good);
	call->settled = call->key;
	if (call->settled == call->first)
		cut_all(call);
	return call->settled > call->first || call->failed || call->decided ? deliver(call, why) : too_late(call, state, why);
}

void transfer_tiers_undo(struct get_transfer *call)
{
	cut_all(call);
	stop_waiting(call);
}
