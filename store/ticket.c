/* SPDX-License-Identifier: Apache-2.0
 *
 * Get tickets. What has no outcome yet, or pins still, has one of TICKETS_MAX places; all of it is found by id in one hash, and what
 * is only remembered is in a list by the time of its end.
 */
#include "store/ticket.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/get_private.h"
#include "store/host_private.h"

#define BUCKETS 16384u
#define SPARES 64u /* structs found that are kept for reuse */
#define MILLISECOND 1000000ull

enum { DECIDING, DECIDED, RESTORED, FAILED };

struct place { /* of a rank */
	uint64_t session; /* number; 0: it has not come */
	uint64_t could;   /* of the range that it has come to */
	uint32_t range;   /* its next one */
	bool came;        /* to that range's gate */
	bool reported;
};

struct gate {
	struct ticket_range range; /* as the first one that came said */
	uint32_t came;
	uint64_t outcome;
};

struct live {
	struct live *next; /* of the spares */
	struct ticket *ticket;
	struct ticket_question question;
	struct found *found;
	uint32_t number;      /* its place in tickets.live */
	uint32_t users;       /* requests that look at `found` */
	uint64_t wait_ns;     /* until then a GET_CONFIRM waits */
	uint32_t ranks;       /* that have come */
	uint32_t reports;
	uint32_t others;
	uint64_t other[TICKET_OTHERS]; /* numbers of sessions without a rank */
	uint32_t range;       /* the one that is being collected */
	struct gate gate[2];  /* its, and that of the one before */
	uint64_t delivered;   /* end of the last range, for all; 0: none was */
	bool whole;           /* that is the boundary */
	bool draining;        /* in the list */
	struct live *next_draining;
	struct place rank[];  /* [world] */
};

struct ticket {
	struct ticket *next;  /* in its bucket, of the spares */
	struct ticket *later; /* that ended next */
	uint8_t id[16];
	uint8_t state;
	bool listed;          /* can be found */
	uint32_t seats;       /* of handles, which have the address */
	uint64_t used_ns;     /* the last step of it; once it has an outcome: that one */
	uint64_t restored;
	struct live *live;    /* NULL: it has an outcome and no pin */
};

struct tickets {
	struct space *space;
	struct ticket *bucket[BUCKETS];
	struct live *live[TICKETS_MAX];
	uint32_t live_free[TICKETS_MAX]; /* stack of free places */
	uint32_t live_free_count;
	struct live *draining;
	struct ticket *oldest, *newest; /* of those that have an outcome */
	uint32_t remembered;
	struct ticket *spare_tickets;
	struct live *spare_lives;
	struct found *spare_found;
	uint32_t spares;
};

int tickets_new(struct space *space, struct tickets **ret, struct why *why)
{
	struct tickets *t = calloc(1, sizeof(*t));

	if (!t)
		return why_set(why, ENOMEM, "namespace %s: no memory for its tickets", space->name);
	t->space = space;
	for (uint32_t i = TICKETS_MAX; i--;)
		t->live_free[t->live_free_count++] = i;
	*ret = t;
	return 0;
}

void tickets_free(struct tickets **tickets)
{
	struct tickets *t = *tickets;

	*tickets = NULL;
	if (!t)
		return;
	for (uint32_t i = 0; i < TICKETS_MAX; i++)
		if (t->live[i]) {
			found_free(t->live[i]->found);
			free(t->live[i]);
		}
	for (uint32_t i = 0; i < BUCKETS; i++)
		while (t->bucket[i]) {
			struct ticket *gone = t->bucket[i];

			t->bucket[i] = gone->next;
			free(gone);
		}
	while (t->spare_tickets) {
		struct ticket *gone = t->spare_tickets;

		t->spare_tickets = gone->next;
		free(gone);
	}
	while (t->spare_lives) {
		struct live *gone = t->spare_lives;

		t->spare_lives = gone->next;
		free(gone);
	}
	while (t->spare_found) {
		struct found *gone = t->spare_found;

		t->spare_found = gone->next;
		found_free(gone);
	}
	free(t);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static struct ticket **find(struct tickets *t, const uint8_t id[16])
{
	struct ticket **at;
	uint64_t word;

	memcpy(&word, id, sizeof(word)); /* ids are random */
	at = &t->bucket[word % BUCKETS];
	while (*at && memcmp((*at)->id, id, sizeof((*at)->id)))
		at = &(*at)->next;
	return at;
}

static void ticket_put_back(struct tickets *t, struct ticket *k)
{
	if (k->listed || k->seats || k->live)
		return;
	k->next = t->spare_tickets;
	t->spare_tickets = k;
}

static void unlist(struct tickets *t, struct ticket *k)
{
	struct ticket **at = find(t, k->id);

	assert(*at == k);
	*at = k->next;
	k->listed = false;
}

static void forget_oldest(struct tickets *t)
{
	struct ticket *k = t->oldest;

	t->oldest = k->later;
	if (!t->oldest)
		t->newest = NULL;
	t->remembered--;
	unlist(t, k);
	ticket_put_back(t, k);
}

static struct live *live_new(struct tickets *t)
{
	uint32_t world = t->space->layout->world;
	struct live *live = t->spare_lives;

	if (live)
		t->spare_lives = live->next;
	else
		live = malloc(sizeof(*live) + world * sizeof(live->rank[0]));
	if (live)
		memset(live, 0, sizeof(*live) + world * sizeof(live->rank[0]));
	return live;
}

static int ticket_new(struct tickets *t, const uint8_t id[16], const struct ticket_question *q, struct ticket **ret, struct why *why)
{
	struct ticket **bucket = find(t, id), *k = t->spare_tickets;
	struct live *live;

	if (!t->live_free_count)
		return why_set(why, EDQUOT, "ticket: %u of the namespace have no outcome yet, the most that there may be", TICKETS_MAX);
	live = live_new(t);
	if (live && k)
		t->spare_tickets = k->next;
	else if (live)
		k = malloc(sizeof(*k));
	if (!k || !live) {
		free(live);
		return why_set(why, ENOMEM, "no memory for a ticket");
	}
	*k = (struct ticket){ .state = DECIDING, .listed = true, .live = live };
	memcpy(k->id, id, sizeof(k->id));
	live->ticket = k;
	live->question = *q;
	live->number = t->live_free[--t->live_free_count];
	t->live[live->number] = live;
	*bucket = k;
	t->space->stats.tickets++;
	*ret = k;
	return 0;
}

/* It has no pin and nobody looks at it. */
static void live_end(struct tickets *t, struct live *live)
{
	struct found *found = live->found;

	t->live[live->number] = NULL;
	t->live_free[t->live_free_count++] = live->number;
	live->ticket->live = NULL;
	live->next = t->spare_lives;
	t->spare_lives = live;
	if (found && t->spares < SPARES) {
		found->next = t->spare_found;
		t->spare_found = found;
		t->spares++;
	} else {
		found_free(found);
	}
}

/* ---- the outcome --------------------------------------------------------------------------------------------------- */

/* What has ended and is looked at by nobody gives its pins back. */
static void drain_soon(struct tickets *t, struct live *live)
{
	if (live->ticket->state < RESTORED || live->users || live->draining)
		return;
	live->draining = true;
	live->next_draining = t->draining;
	t->draining = live;
}

static void conclude(struct tickets *t, struct ticket *k, int state, uint64_t restored)
{
	killpoint(KILLPOINT_TICKET_OUTCOME);
	k->state = (uint8_t)state;
	k->restored = restored;
	k->used_ns = clock_now_ns();
	k->later = NULL;
	*(t->newest ? &t->newest->later : &t->oldest) = k;
	t->newest = k;
	t->remembered++;
	t->space->stats.tickets--;
	if (state == RESTORED)
		t->space->stats.tickets_restored++;
	else
		t->space->stats.tickets_failed++;
	if (t->remembered > TICKETS_REMEMBERED)
		forget_oldest(t);
	drain_soon(t, k->live);
	space_committed(t->space);
}

static void fail(struct tickets *t, struct ticket *k)
{
	conclude(t, k, FAILED, 0);
}

/* Under the lock: at most INDEX_STEP_KEYS pins of one that has ended. */
static void unpin_some(struct tickets *t, struct live *live)
{
	struct found *f = live->found;
	uint32_t left = INDEX_STEP_KEYS;

	for (; f && f->run_count && left; left--)
		space_unpin(t->space, f->runs[--f->run_count].record);
	for (; f && f->row_count && left; left--)
		space_unpin(t->space, f->rows[--f->row_count].record);
	for (; f && f->candidates && left; left--)
		space_unpin(t->space, f->candidate[--f->candidates].row.record);
	t->space->stats.ticket_pins -= INDEX_STEP_KEYS - left;
	space_room(t->space);
}

void tickets_drain(struct tickets *t)
{
	bool more = true, unpinned = false;

	while (more) {
		struct live *live;

		lock_take(&t->space->lock);
		live = t->draining;
		if (live) {
			unpin_some(t, live);
			unpinned = true;
			if (!live->found || !found_pins(live->found)) {
				struct ticket *k = live->ticket;

				t->draining = live->next_draining;
				live_end(t, live);
				ticket_put_back(t, k);
			}
		}
		more = t->draining;
		lock_drop(&t->space->lock);
	}
	if (unpinned)
		space_retire(t->space);
}

/* ---- gate 1 ---------------------------------------------------------------------------------------------------------- */

static int differs(const char *what, uint64_t is, uint64_t was, struct why *why)
{
	return why_set(why, EINVAL, "ticket: %s: it is %llu here and %llu for whoever came first", what, (unsigned long long)is,
		       (unsigned long long)was);
}

static int check_question(const struct ticket_question *is, const struct ticket_question *was, struct why *why)
{
	if (is->keys != was->keys)
		return differs("number of keys", is->keys, was->keys, why);
	if (memcmp(is->keys_sum, was->keys_sum, sizeof(is->keys_sum)))
		return why_set(why, EINVAL, "ticket: keys: they are others than those of whoever came first");
	if (is->groups != was->groups)
		return differs("number of groups", is->groups, was->groups, why);
	if (is->groups_sum != was->groups_sum)
		return why_set(why, EINVAL, "ticket: groups: their lengths are others than those of whoever came first");
	if (is->start != was->start)
		return differs("start", is->start, was->start, why);
	if (is->have != was->have)
		return differs("have", is->have, was->have, why);
	if (is->limit != was->limit)
		return differs("limit", is->limit, was->limit, why);
	if (is->class_mask != was->class_mask)
		return differs("class mask", is->class_mask, was->class_mask, why);
	if (is->policy != was->policy)
		return differs("policy", is->policy, was->policy, why);
	if (is->prompt_len != was->prompt_len)
		return differs("prompt_len", is->prompt_len, was->prompt_len, why);
	if (is->room != was->room)
		return differs("room", is->room, was->room, why);
	return 0;
}

static int check_place(const struct live *live, const struct session *s, struct why *why)
{
	if (s->rank != SESSION_RANK_NONE && live->rank[s->rank].session)
		return why_set(why, EEXIST, "ticket: rank %u has come already, in session %llu", s->rank,
			       (unsigned long long)live->rank[s->rank].session);
	for (uint32_t i = 0; s->rank == SESSION_RANK_NONE && i < live->others; i++)
		if (live->other[i] == s->number)
			return why_set(why, EEXIST, "ticket: session %llu has come already", (unsigned long long)s->number);
	if (s->rank == SESSION_RANK_NONE && live->others == TICKET_OTHERS)
		return why_set(why, EDQUOT, "ticket: %u sessions without a rank have come, the most that may", TICKET_OTHERS);
	return 0;
}

static void take_seat(struct ticket *k, const struct session *s, struct ticket_seat *seat)
{
	struct live *live = k->live;

	*seat = (struct ticket_seat){ .ticket = k, .session = s->number, .rank = s->rank };
	if (s->rank == SESSION_RANK_NONE) {
		live->other[live->others++] = s->number;
	} else {
		live->rank[s->rank].session = s->number;
		live->ranks++;
	}
	live->users++;
	k->seats++;
	k->used_ns = clock_now_ns();
}

int ticket_come(struct tickets *t, const uint8_t id[16], const struct ticket_question *question, const struct session *s,
		struct ticket_seat *seat, enum ticket_part *ret, struct why *why)
{
	struct ticket *k = *find(t, id);
	int r;

	lock_assert_held(&t->space->lock);
	if (k && k->state >= RESTORED) {
		*ret = TICKET_ENDED;
		return 0;
	}
	if (!k) {
		r = ticket_new(t, id, question, &k, why);
		if (r)
			return r;
		*ret = TICKET_LEADS;
	} else {
		r = check_question(question, &k->live->question, why);
		r = r ? r : check_place(k->live, s, why);
		if (r)
			return r;
		*ret = k->state == DECIDING ? TICKET_WAITS : TICKET_JOINS;
	}
	if (*ret == TICKET_WAITS)
		return 0;
	take_seat(k, s, seat);
	t->space->stats.tickets_joined += *ret == TICKET_JOINS;
	return 0;
}

bool ticket_room(const struct tickets *t, uint32_t pins)
{
	lock_assert_held(&t->space->lock);
	return t->space->stats.ticket_pins + pins <= TICKET_PINS;
}

void ticket_decided(struct tickets *t, const struct ticket_seat *seat, struct found *found)
{
	struct ticket *k = seat->ticket;

	lock_assert_held(&t->space->lock);
	assert(k->state == DECIDING);
	killpoint(KILLPOINT_TICKET_DECIDED);
	k->state = DECIDED;
	k->live->found = found;
	k->used_ns = clock_now_ns();
	t->space->stats.ticket_pins += found_pins(found);
	t->space->stats.tickets_decided++;
	space_committed(t->space);
}

void ticket_undecided(struct tickets *t, struct ticket_seat *seat)
{
	struct ticket *k = seat->ticket;

	lock_assert_held(&t->space->lock);
	assert(k->state == DECIDING && k->seats == 1);
	seat->ticket = NULL;
	k->seats = 0;
	unlist(t, k);
	live_end(t, k->live);
	ticket_put_back(t, k);
	t->space->stats.tickets--;
	space_committed(t->space);
}

const struct found *ticket_use(struct tickets *t, const struct ticket_seat *seat)
{
	struct ticket *k = seat->ticket;

	lock_assert_held(&t->space->lock);
	if (k->state != DECIDED || k->live->rank[seat->rank].reported)
		return NULL;
	k->live->users++;
	k->used_ns = clock_now_ns();
	return k->live->found;
}

const struct found *ticket_found(const struct ticket_seat *seat)
{
	return seat->ticket->live->found;
}

struct found *tickets_spare(struct tickets *t)
{
	struct found *f = t->spare_found;

	lock_assert_held(&t->space->lock);
	if (f) {
		t->spare_found = f->next;
		t->spares--;
	}
	return f;
}

void ticket_idle(struct tickets *t, const struct ticket_seat *seat)
{
	struct live *live = seat->ticket->live;

	lock_assert_held(&t->space->lock);
	live->users--;
	if (live->ticket->state == DECIDED)
		live->ticket->used_ns = clock_now_ns();
	drain_soon(t, live);
}

/* ---- gate 2 ---------------------------------------------------------------------------------------------------------- */

static int check_range(const struct ticket_range *is, const struct ticket_range *was, struct why *why)
{
	if (is->boundary != was->boundary)
		return differs("boundary", is->boundary, was->boundary, why);
	if (is->from != was->from)
		return differs("from", is->from, was->from, why);
	if (is->to != was->to)
		return differs("to", is->to, was->to, why);
	if (is->candidate != was->candidate)
		return differs("candidate", is->candidate, was->candidate, why);
	return 0;
}

static void come_to(struct live *live, struct place *rank, const struct ticket_range *range, uint64_t could)
{
	struct gate *gate = &live->gate[live->range % 2];

	if (!gate->came)
		gate->range = *range;
	if (!rank->came)
		gate->came++;
	rank->came = true;
	rank->could = could;
}

/* All have come to the range. */
static void decide_range(struct tickets *t, struct live *live)
{
	struct gate *gate = &live->gate[live->range % 2];
	uint64_t least = gate->range.to;

	killpoint(KILLPOINT_TICKET_RANGE);
	for (uint32_t i = 0; i < t->space->layout->world; i++)
		if (live->rank[i].could < least)
			least = live->rank[i].could;
	gate->outcome = least;
	if (least > gate->range.from) {
		live->delivered = least;
		live->whole = least == gate->range.boundary;
	}
	live->range++;
	live->gate[live->range % 2].came = 0;
	space_committed(t->space);
}

int ticket_deliver(struct tickets *t, const struct ticket_seat *seat, const struct ticket_range *range, uint64_t could,
		   uint64_t deadline_ns, uint64_t *ret, struct why *why)
{
	struct ticket *k = seat->ticket;
	struct live *live = k->live;
	struct place *rank = &live->rank[seat->rank];
	struct gate *gate = &live->gate[rank->range % 2];
	int r;

	lock_assert_held(&t->space->lock);
	if (rank->range < live->range || (k->state == DECIDED && gate->came)) {
		r = check_range(range, &gate->range, why);
		if (r)
			return r;
	}
	if (k->state == DECIDED && rank->range == live->range) {
		come_to(live, rank, range, could);
		k->used_ns = clock_now_ns();
		if (live->reports || (could <= range->from && !live->delivered)) {
			fail(t, k);
		} else if (gate->came == t->space->layout->world) {
			decide_range(t, live);
		} else if (k->used_ns >= deadline_ns) {
			t->space->stats.tickets_late++;
			fail(t, k);
		} else {
			return STEP_WAIT;
		}
	}
	rank->came = false;
	*ret = rank->range < live->range ? gate->outcome : range->from;
	return 0;
}

void ticket_took(struct tickets *t, const struct ticket_seat *seat)
{
	struct live *live = seat->ticket->live;
	struct place *rank = &live->rank[seat->rank];

	lock_assert_held(&t->space->lock);
	rank->range += rank->range < live->range;
}

void ticket_withdraw(struct tickets *t, const struct ticket_seat *seat)
{
	struct live *live = seat->ticket->live;
	struct place *rank = &live->rank[seat->rank];

	lock_assert_held(&t->space->lock);
	if (!rank->came)
		return;
	rank->came = false;
	if (rank->range == live->range)
		live->gate[live->range % 2].came--;
}

/* ---- gate 3 ---------------------------------------------------------------------------------------------------------- */

/* Where one can resume with what was delivered: at the boundary; of a part of it, where all is dense, at the deepest one that it reaches. */
static uint64_t restorable(const struct tickets *t, const struct live *live)
{
	const struct layout *layout = t->space->layout;
	const struct found *f = live->found;
	uint32_t key;

	if (live->whole || !live->delivered)
		return live->delivered;
	if (f->class_mask & ~layout->dense_mask)
		return 0;
	key = (uint32_t)((live->delivered - f->start) / layout->page_tokens);
	while (key > f->first && !bit_get(&f->restorable, key - 1))
		key--;
	return key > f->first ? f->start + (uint64_t)key * layout->page_tokens : 0;
}

static void report(struct tickets *t, struct ticket *k, struct place *rank, bool failed)
{
	struct live *live = k->live;

	rank->reported = true;
	live->reports++;
	k->used_ns = clock_now_ns();
	if (failed || live->gate[live->range % 2].came) /* whoever waits there waits for this rank in vain */
		fail(t, k);
	else if (live->reports == t->space->layout->world)
		conclude(t, k, RESTORED, restorable(t, live));
}

static void wait_more(struct tickets *t, struct ticket_confirm *call, struct live *live)
{
	if (live->wait_ns < call->deadline_ns)
		live->wait_ns = call->deadline_ns;
	if (call->waiting)
		return;
	call->waiting = true;
	call->waited_since_ns = clock_now_ns();
	atomic_fetch_add(&t->space->waiters, 1);
	t->space->stats.waiting++;
}

static void wait_no_more(struct tickets *t, struct ticket_confirm *call)
{
	if (!call->waiting)
		return;
	call->waiting = false;
	atomic_fetch_sub(&t->space->waiters, 1);
	t->space->stats.waiting--;
	t->space->stats.join_wait_us += (clock_now_ns() - call->waited_since_ns) / 1000;
}

/* 0 when there is an outcome. */
static int confirm(struct tickets *t, struct ticket_confirm *call, struct ticket *k, struct why *why)
{
	const struct session *s = call->session;

	if (!k)
		return why_set(why, ENOENT, "ticket: the namespace knows no such one, or not any more");
	if (k->state < RESTORED) {
		struct place *rank = &k->live->rank[s->rank];

		if (k->state == DECIDING || rank->session != s->number)
			return why_set(why, EPERM, "ticket: rank %u has not come to it in this session", s->rank);
		if (!rank->reported)
			report(t, k, rank, call->failed);
	}
	if (k->state < RESTORED && clock_now_ns() >= call->deadline_ns) {
		t->space->stats.tickets_late++;
		fail(t, k);
	}
	if (k->state < RESTORED) {
		wait_more(t, call, k->live);
		return STEP_WAIT;
	}
	call->restored = k->restored;
	return 0;
}

int ticket_confirm_step(struct ticket_confirm *call, struct why *why)
{
	static const uint8_t none[16];
	struct tickets *t = call->session->space->tickets;
	struct ticket *k;
	int r;

	call->restored = 0;
	if (!memcmp(call->ticket, none, sizeof(none)))
		return why_set(why, EINVAL, "ticket: it is zero");
	if (call->session->rank == SESSION_RANK_NONE)
		return why_set(why, EPERM, "the session has no rank, hence nothing to confirm");
	lock_take(&t->space->lock);
	k = *find(t, call->ticket);
	r = confirm(t, call, k, why);
	if (r != STEP_WAIT)
		wait_no_more(t, call);
	lock_drop(&t->space->lock);
	if (r != STEP_WAIT)
		tickets_drain(t);
	return r;
}

void ticket_confirm_undo(struct ticket_confirm *call)
{
	struct tickets *t = call->session->space->tickets;

	lock_take(&t->space->lock);
	wait_no_more(t, call);
	lock_drop(&t->space->lock);
}

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

/* A session without a rank is no longer there. */
static void other_leaves(struct tickets *t, struct live *live, uint64_t session)
{
	for (uint32_t i = 0; i < live->others; i++)
		if (live->other[i] == session) {
			live->other[i] = live->other[--live->others];
			if (!live->others && !live->ranks)
				fail(t, live->ticket);
			return;
		}
}

void ticket_leave(struct tickets *t, struct ticket_seat *seat, bool keep)
{
	struct ticket *k = seat->ticket;

	lock_assert_held(&t->space->lock);
	if (!k)
		return;
	seat->ticket = NULL;
	k->seats--;
	if (k->state == DECIDED && !keep) {
		if (seat->rank == SESSION_RANK_NONE)
			other_leaves(t, k->live, seat->session);
		else if (!k->live->rank[seat->rank].reported)
			fail(t, k);
	}
	ticket_put_back(t, k);
}

/* Under the lock. */
static void session_leaves(struct tickets *t, struct live *live, const struct session *s)
{
	if (live->ticket->state != DECIDED)
		return;
	if (s->rank == SESSION_RANK_NONE)
		other_leaves(t, live, s->number);
	else if (live->rank[s->rank].session == s->number)
		fail(t, live->ticket);
}

void tickets_session_ends(struct tickets *t, const struct session *s)
{
	bool any = true;

	for (uint32_t i = 0; i < TICKETS_MAX && any;) {
		uint32_t end = i + INDEX_STEP_KEYS;

		lock_take(&t->space->lock);
		any = t->live_free_count < TICKETS_MAX;
		for (; any && i < end; i++)
			if (t->live[i])
				session_leaves(t, t->live[i], s);
		lock_drop(&t->space->lock);
	}
	tickets_drain(t);
}

static void expire(struct tickets *t, uint64_t now_ns, uint64_t ttl_ns)
{
	bool any = true;

	for (uint32_t i = 0; i < TICKETS_MAX && any;) {
		uint32_t end = i + INDEX_STEP_KEYS;

		lock_take(&t->space->lock);
		any = t->live_free_count < TICKETS_MAX;
		for (; any && i < end; i++) {
			struct live *live = t->live[i];

			if (live && live->ticket->state == DECIDED && !live->users && now_ns > live->wait_ns &&
			    now_ns > live->ticket->used_ns && now_ns - live->ticket->used_ns > ttl_ns)
				fail(t, live->ticket);
		}
		lock_drop(&t->space->lock);
	}
}

static void forget_old(struct tickets *t, uint64_t now_ns, uint64_t ttl_ns)
{
	uint32_t left;

	do {
		lock_take(&t->space->lock);
		for (left = INDEX_STEP_KEYS; left && t->oldest && now_ns > t->oldest->used_ns && now_ns - t->oldest->used_ns > ttl_ns; left--)
			forget_oldest(t);
		lock_drop(&t->space->lock);
	} while (!left);
}

void tickets_run(struct tickets *t, uint64_t now_ns)
{
	uint64_t ttl_ns = t->space->host->config.handle_ttl_ms * MILLISECOND;

	forget_old(t, now_ns, ttl_ns);
	expire(t, now_ns, ttl_ns);
	tickets_drain(t);
}

/* ---- telling ---------------------------------------------------------------------------------------------------------- */

void tickets_report(const struct tickets *t, struct tickets_report *ret)
{
	lock_assert_held(&t->space->lock);
	*ret = (struct tickets_report){
		.live = TICKETS_MAX - t->live_free_count,
		.remembered = t->remembered,
		.pins = t->space->stats.ticket_pins,
		.kept_slots = t->space->stats.ticket_slots,
	};
}

void tickets_check(const struct tickets *t)
{
	uint32_t listed = 0, live = 0, ended = 0, undecided = 0;
	uint64_t pins = 0;

	lock_assert_held(&t->space->lock);
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (const struct ticket *k = t->bucket[i]; k; k = k->next) {
			listed++;
			undecided += k->state < RESTORED;
			if (!k->listed || (k->live && k->live->ticket != k))
				abort();
		}
	for (const struct ticket *k = t->oldest; k; k = k->later)
		ended++;
	for (uint32_t i = 0; i < TICKETS_MAX; i++)
		if (t->live[i]) {
			live++;
			pins += t->live[i]->found ? found_pins(t->live[i]->found) : 0;
		}
	if (listed != undecided + ended || ended != t->remembered || live != TICKETS_MAX - t->live_free_count ||
	    undecided != t->space->stats.tickets || pins != t->space->stats.ticket_pins)
		abort();
}
