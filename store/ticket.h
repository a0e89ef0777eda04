/* SPDX-License-Identifier: Apache-2.0
 *
 * Tickets: one answer for all ranks of a request (docs/ranks-and-classes.md, Tickets). P5.
 *
 *   get   DECIDING -> DECIDED -> RESTORED | FAILED        put   OPEN -> ENDED
 *
 * A ticket belongs to its namespace, not to a session. What it decides is decided once, under the space lock, and never changes:
 * the look-up's answer (a struct found, with its pins), the outcome of each range, the end. Who waits is parked as any STEP_WAIT
 * request is and woken by space_committed; nobody is ever told to wait for a rank's reaction, only for its coming, and never past
 * its own deadline.
 *
 * A rank's place is taken by GET_START and given back once: by GET_CONFIRM, by the end of the handle without one, or by the session's
 * end. Giving it back without a report fails the ticket. So what ends a handle - cancel, handle_ttl, the death of its session - ends the
 * wait of the others, by one path. The handle names its place by a struct ticket_seat.
 *
 * Who looks at what was found says so (ticket_use .. ticket_idle), and nobody does once the ticket has its outcome. Then the pins are
 * given back, by tickets_drain; what is remembered is id and outcome, for handle_ttl.
 *
 * Concurrency: everything under the space lock, asserted, but for what says otherwise. Constant time, but for gates, which look at
 * each rank of the world once they are decided. Tickets are pooled: after warm-up nothing is allocated.
 */
#ifndef PREFIXFS_STORE_TICKET_H
#define PREFIXFS_STORE_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include "index/index.h"
#include "store/put.h"
#include "store/session.h"

#define TICKETS_MAX 4096u          /* that have not ended, as PFS_MAX_TICKETS: EDQUOT */
#define TICKETS_REMEMBERED 65536u  /* that have; the oldest are forgotten first */
#define TICKET_PINS (1u << 19)     /* of all tickets of a namespace together: EDQUOT */
#define TICKET_OTHERS 16u          /* sessions without a rank in one: EDQUOT */

struct tickets; /* of a namespace */
struct ticket;
struct found;   /* get_private.h: what a look-up found, and its pins */

enum ticket_state { TICKET_DECIDING, TICKET_DECIDED, TICKET_RESTORED, TICKET_FAILED };

/* What is asked under a ticket, all of which must be the same for all. `keys_sum` is over what the keys hash to (index_prefetch),
 * in order: the hash is secret, the ranks trust each other, and a joiner reads its keys once and looks nothing up. */
struct ticket_question {
	uint64_t keys_sum[2];
	uint64_t groups_sum;
	uint64_t start, have, limit, prompt_len;
	uint32_t keys, groups, class_mask, policy, room;
};

/* Of one handle. */
struct ticket_seat {
	struct ticket *ticket; /* NULL: it has none */
	uint64_t session;      /* number */
	uint32_t rank;         /* SESSION_RANK_NONE: it joined the first gate only */
};

int tickets_new(struct space *space, struct tickets **ret, struct why *why); /* ENOMEM */
void tickets_free(struct tickets **tickets); /* no session is left */

/* ---- gate 1 ---- */

enum ticket_part {
	TICKET_LEADS,  /* the caller looks up, then says ticket_decided or ticket_undecided */
	TICKET_JOINS,  /* ticket_found has the answer; ticket_idle follows */
	TICKET_WAITS,  /* somebody is looking up: STEP_WAIT, then ask again */
	TICKET_ENDED,  /* it has an outcome: 0 tokens, and no handle */
};
/* Takes a seat (not with WAITS and ENDED). EINVAL: another question, the sentence names what differs first; EEXIST: the rank is
 * there, or the session, the sentence names it; EDQUOT. */
int ticket_come(struct tickets *tickets, const uint8_t id[16], const struct ticket_question *question, const struct session *session,
		struct ticket_seat *seat, enum ticket_part *ret, struct why *why);
/* May a look-up have @pins of its own, beside those of all other tickets? */
bool ticket_room(const struct tickets *tickets, uint32_t pins);
/* @found is the ticket's, and so are its pins. ticket_idle follows. */
void ticket_decided(struct tickets *tickets, const struct ticket_seat *seat, struct found *found);
void ticket_undecided(struct tickets *tickets, struct ticket_seat *seat); /* the leader gives up, its seat with it: the next one who asks leads */

/* A request of a handle looks at what was found, which is constant from DECIDED on, until ticket_idle. NULL: there is an outcome, or the
 * rank has reported. */
const struct found *ticket_use(struct tickets *tickets, const struct ticket_seat *seat);
const struct found *ticket_found(const struct ticket_seat *seat); /* between the two, and after ticket_come said JOINS */
struct found *tickets_spare(struct tickets *tickets); /* one of a ticket that has gone, to be filled anew; or NULL */
void ticket_idle(struct tickets *tickets, const struct ticket_seat *seat);

/* ---- gate 2 ---- */

struct ticket_range {
	uint64_t boundary, from, to;
	uint32_t candidate;
};
/* The rank can deliver up to @could (tokens; range.from: nothing). *ret: what all deliver, once that is decided, and then 0;
 * STEP_WAIT: others are missing, ask again with the same range; at @deadline_ns the ticket fails and *ret is range.from, as where one
 * can deliver nothing of the first range. EINVAL: the others have come with another range. What was decided may be asked again until
 * ticket_took; the next range needs all ranks, so a rank is never two behind. Between ticket_use and ticket_idle. */
int ticket_deliver(struct tickets *tickets, const struct ticket_seat *seat, const struct ticket_range *range, uint64_t could,
		   uint64_t deadline_ns, uint64_t *ret, struct why *why);
void ticket_took(struct tickets *tickets, const struct ticket_seat *seat); /* the rank has its answer: its next range is another one */
/* The waiting call is given up (EINTR, NONBLOCK): it has not come. Decided already: nothing. */
void ticket_withdraw(struct tickets *tickets, const struct ticket_seat *seat);

/* ---- gate 3 ---- */

struct ticket_confirm {
	struct session *session;
	uint8_t ticket[16];
	bool failed;
	uint64_t deadline_ns; /* clock_now_ns */
	/* out */
	uint64_t restored;
	/* private */
	bool waiting;
	uint64_t waited_since_ns;
};
/* 0, STEP_WAIT or an error; no lock held. Safe to repeat, with any number; the first report stands. EINVAL: a ticket of zeroes; ENOENT,
 * EPERM. After STEP_WAIT it is called again, or ticket_confirm_undo. */
int ticket_confirm_step(struct ticket_confirm *call, struct why *why);
void ticket_confirm_undo(struct ticket_confirm *call); /* the wait is given up; the report stands */

/* ---- the end ---- */

/* The handle ends. A rank that has not reported fails the ticket. @keep: its transfers have come to their end, or nothing was found: the
 * report is still to come, so the place is kept for the session until GET_CONFIRM, its end, or handle_ttl. tickets_drain is next. */
void ticket_leave(struct tickets *tickets, struct ticket_seat *seat, bool keep);
/* No lock held, like the next two. */
void tickets_session_ends(struct tickets *tickets, const struct session *session);
void tickets_drain(struct tickets *tickets); /* gives the pins of what has ended back, 64 in a stay */
/* handle_ttl, forgetting. About once a second. */
void tickets_run(struct tickets *tickets, uint64_t now_ns);

/* ---- put tickets: ticket_put.c ------------------------------------------------------------------------------------------ */

int put_tickets_new(struct space *space, struct put_tickets **ret, struct why *why); /* ENOMEM */
void put_tickets_free(struct put_tickets **tickets); /* no session is left */

enum ticket_put_part {
	TICKET_PUT_FIRST, /* the caller decides; ticket_put_done follows, as after LATER */
	TICKET_PUT_LATER, /* what was decided is ticket_put_status */
	TICKET_PUT_WAITS, /* the first one is at it: ask again */
	TICKET_PUT_ENDED, /* each group is NOROOM */
};
/* EINVAL: other groups, keys or masks (@sum is over them); EEXIST: the rank has come; EDQUOT; ENOMEM. @deadline_ns: of the first one's
 * ticket, clock_now_ns. */
int ticket_put_come(struct put_tickets *tickets, const uint8_t id[16], const uint64_t sum[2], uint32_t groups, const struct session *session,
		    uint64_t deadline_ns, struct ticket_put *ret, enum ticket_put_part *part, struct why *why);

/* The first rank's: */
bool ticket_put_reserve(struct ticket_put *put, uint32_t more); /* for so many keys and groups; false: no memory. No lock */
void ticket_put_begin(struct ticket_put *put);                  /* a group begins */
/* Keeps a slot of (class, share) for whoever comes as one of its ranks, from ranges that an attached session of one has acknowledged, or
 * from any where none is attached. False: there is none, or as many are kept as a plan could hold; ticket_put_undo is next. */
bool ticket_put_keep(struct ticket_put *put, struct session *session, uint32_t class_index, uint32_t share);
void ticket_put_undo(struct ticket_put *put);                   /* what was kept since the group began is free again. No lock held */
void ticket_put_decide(struct ticket_put *put, uint32_t group, uint8_t status);
void ticket_put_pin(struct ticket_put *put, uint32_t record);   /* until it ends */

/* A later rank's: */
uint8_t ticket_put_status(const struct ticket_put *put, uint32_t group);
/* A slot that was kept for it, in a range that @filter allows; SLOTS_NONE: none is left (what exists now was missing then, or the other way
 * round): the general room is asked. */
uint32_t ticket_put_take(struct ticket_put *put, uint32_t class_index, uint32_t share, struct slots_filter filter);

/* Any rank's: a value of it is begun at (record, page). What is half there of these goes at the ticket's deadline. For so many of them room
 * was reserved, without the lock; false: no memory. */
bool ticket_put_reserve_begun(struct ticket_put *put, uint32_t more);
void ticket_put_begun(struct ticket_put *put, uint32_t record, uint16_t page);

/* No lock. This rank's PUT_START is over (@failed: before it had decided all); the last one ends the ticket and gives the rest back. */
void ticket_put_done(struct ticket_put *put, bool failed);
void put_tickets_run(struct put_tickets *tickets, uint64_t now_ns); /* deadlines, forgetting; about once a second, no lock held */

/* ---- telling: the counters are in store/stats.h ---- */

struct tickets_report {
	uint64_t live, remembered, pins, kept_slots; /* 0, but for remembered, when nothing is under way */
};
void tickets_report(const struct tickets *tickets, struct tickets_report *ret);
void tickets_check(const struct tickets *tickets); /* tests: aborts where lists and counts disagree */

#endif
