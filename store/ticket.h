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
 * A place in a ticket (struct ticket_seat, in the handle) is taken by GET_START and given back once: by GET_CONFIRM, by the end of
 * the handle without one, or by the session's end. Giving back a rank's without a report fails the ticket. So what ends a handle -
 * cancel, handle_ttl, the death of its session - ends the wait of the others, by one path.
 *
 * The end of a ticket gives its pins back at once where its last user is, 64 at a time; what is remembered then is its id and
 * outcome, for handle_ttl.
 *
 * Concurrency: everything under the space lock, asserted, but for what says otherwise. Constant time, or 64
 * operations a call. Tickets are pooled: after warm-up nothing is allocated.
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
#define TICKET_PUT_SLOTS 2u        /* kept for ranks to come: at most 1/2 of the slots of a (class, share), else NOROOM */

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
	struct ticket *ticket; /* NULL: it has none, or has given it back */
	uint32_t rank;         /* SESSION_RANK_NONE: it joined the first gate only */
	uint32_t range;        /* the next range of this rank */
	bool came;             /* it has come to that range's gate */
};

int tickets_new(struct space *space, struct tickets **ret, struct why *why); /* ENOMEM */
void tickets_free(struct tickets **tickets); /* no session is left */

/* ---- gate 1 ---- */

enum ticket_part {
	TICKET_LEADS,  /* the caller looks up, then says ticket_decided or ticket_undecided */
	TICKET_JOINS,  /* ticket_found has the answer */
	TICKET_WAITS,  /* somebody is looking up: STEP_WAIT, then ask again */
	TICKET_ENDED,  /* it has an outcome: 0 tokens, and no handle */
};
/* Takes a seat (not with WAITS and ENDED). EINVAL: another question, the sentence names what differs first; EEXIST: the rank is
 * there, the sentence names its session; EDQUOT. */
int ticket_come(struct tickets *tickets, const uint8_t id[16], const struct ticket_question *question, const struct session *session,
		struct ticket_seat *seat, enum ticket_part *ret, struct why *why);
void ticket_decided(struct ticket *ticket, struct found *found); /* @found is the ticket's; its pins too, in the tickets' count */
void ticket_undecided(struct ticket *ticket);                   /* the leader gives up: the next one who asks leads */
/* Constant from DECIDED to the end; valid while the seat is held. */
const struct found *ticket_found(const struct ticket *ticket);

/* ---- gate 2 ---- */

struct ticket_range {
	uint64_t boundary, from, to;
	uint32_t candidate;
};
/* The rank can deliver up to @could (tokens; range.from: nothing). *ret: what all deliver, once that is decided, and then 0;
 * STEP_WAIT: others are missing, ask again with the same range; at @deadline_ns the ticket fails and *ret is range.from. EINVAL:
 * the others have come with another range. A range that was decided stays askable until all ranks have come to the next one: a
 * rank is never two behind. */
int ticket_deliver(struct ticket_seat *seat, const struct ticket_range *range, uint64_t could, uint64_t deadline_ns, uint64_t *ret,
		   struct why *why);
void ticket_withdraw(struct ticket_seat *seat); /* the waiting call is given up (EINTR, NONBLOCK): it has not come. Decided already: nothing */

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
};
/* 0, STEP_WAIT or an error; takes the space lock itself. Safe to repeat, with any number; the first report stands. ENOENT, EPERM. */
int ticket_confirm_step(struct ticket_confirm *call, struct why *why);

/* ---- the end ---- */

/* The handle ends. A rank that has not reported fails the ticket. @keep: its transfers have reached the boundary, or nothing was
 * found: the report is still to come, so the seat passes to the session until GET_CONFIRM, its end, or handle_ttl. */
void ticket_leave(struct ticket_seat *seat, bool keep);
void tickets_session_ends(struct tickets *tickets, const struct session *session);
/* Deadlines of put tickets, handle_ttl of get tickets, forgetting; gives pins and slots back, 64 in a stay. About once a second;
 * no lock held. */
void tickets_run(struct tickets *tickets, uint64_t now_ns);

/* ---- put tickets ---- */

/* A put plan's part: for each group what was said to the first rank, and slots kept for this one. */
struct ticket_put {
	struct ticket *ticket; /* NULL: none */
	bool first;            /* the caller decides room for all */
};
/* EINVAL, EEXIST, EDQUOT as above; @sum over groups and keys. An ended one: every group is NOROOM (*ended). */
int ticket_put_come(struct tickets *tickets, const uint8_t id[16], const uint64_t sum[2], const struct session *session, uint64_t deadline_ns,
		    struct ticket_put *ret, bool *ended, struct why *why);
/* The first rank: keeps a slot of (class, share) for whoever comes as one of its ranks, from ranges that all attached sessions of
 * those ranks have acknowledged, or that any has where none is attached. False: there is none; the group is NOROOM for all, and
 * ticket_put_group_undo is next. */
bool ticket_put_keep(struct ticket_put *put, uint32_t group, uint32_t class_index, uint32_t share);
void ticket_put_group_undo(struct ticket_put *put, uint32_t group);
void ticket_put_group(struct ticket_put *put, uint32_t group, uint8_t status); /* what it was decided to be */
uint8_t ticket_put_status(const struct ticket_put *put, uint32_t group);
/* A later rank: a slot that was kept for it, in a range that @filter allows; SLOTS_NONE: none is left (what exists now was missing
 * then, or the other way round): the general room is asked. */
uint32_t ticket_put_take(struct ticket_put *put, uint32_t class_index, uint32_t share, struct slots_filter filter);
void ticket_put_done(struct ticket_put *put); /* this rank's PUT_START is over; the last one ends the ticket and gives the rest back */

/* ---- telling ---- */

#define TICKETS_COUNTERS(x)                                            \
	x(tickets_decided, "look-ups under a ticket")                   \
	x(tickets_joined, "GET_STARTs answered from one")               \
	x(tickets_restored, "that were restored on all ranks")          \
	x(tickets_failed, "that were not, whoever left")                \
	x(tickets_late, "gates whose deadline passed")                  \
	x(put_tickets, "puts under a ticket")                           \
	x(put_tickets_short, "of them, those that lacked ranks at their deadline")

struct tickets_report {
#define X(name, help) uint64_t name;
	TICKETS_COUNTERS(X)
#undef X
	uint64_t live, remembered, pins, kept_slots; /* transient: 0, but for remembered, after any workload */
};
void tickets_report(const struct tickets *tickets, struct tickets_report *ret);

#endif
