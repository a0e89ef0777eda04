/* SPDX-License-Identifier: Apache-2.0
 *
 * What a put plan is made of. Private to store/put*.c.
 *
 * A plan belongs to the request that marked it busy; nothing here has a lock of its own.
 *
 *   group: OK -> COMMITTED                     PUT_COMMIT
 *          OK -> PENDING -> COMMITTED | LOST   PUT_COMMIT of a WHOLE group that leans on another plan's key
 *          OK | PENDING -> ABORTED             PUT_ABORT
 *          OK | PENDING -> LOST                the session ended, or fill_ttl passed
 *          NOROOM, TOOBIG, NOPAGES             nothing was kept: ended from the start
 */
#ifndef PREFIXFS_STORE_PUT_PRIVATE_H
#define PREFIXFS_STORE_PUT_PRIVATE_H

#include "store/put.h"
#include "store/session_private.h"
#include "store/space.h"

struct plan_group {
	uint32_t group;   /* number in the tables as in entries (1 + number), 0 = has none */
	uint32_t values;  /* end of its values, pins, records and waits in the plan's vectors; they begin where the one */
	uint32_t pins;    /* before ends */
	uint32_t records;
	uint32_t waits;
	uint16_t sought;  /* bit c: a run of neighbouring slots was looked for in class c */
	uint8_t status;   /* enum put_status */
	uint8_t published;
};

struct put_plan {
	struct holding holding;
	struct put_plan *next_unacked;
	uint64_t end_seq;
	uint64_t pending_since_ns; /* 0 = no group is PENDING */
	uint64_t generation;       /* of the space when it began: of an older one nothing can be committed any more */
	uint32_t serial;           /* of the plan in its space: owner of its groups */
	uint32_t groups, open;     /* all; those that have not ended */
	uint32_t group_capacity;
	struct plan_group *group;
	struct vec32 values;  /* entries, in order of groups and keys */
	struct vec32 pins;    /* records pinned because they EXIST */
	struct vec32 records; /* records made here, each with our pin */
	struct key *waits;    /* keys INFLIGHT elsewhere that a WHOLE group leans on */
	uint32_t wait_count, wait_capacity;
	bool any_committed, any_lost;
};

/* Begin of a group's part of a vector. */
#define GROUP_FROM(plan, i, field) ((i) ? (plan)->group[(i)-1].field : 0)

/* put_ticket.c: comes to the call's ticket, after its keys were summed up. 0: the step goes on; STEP_MORE, or an error, which undid nothing. */
int put_ticket_come(struct put_start *call, struct why *why);

/* Ends group @i without commit: values dropped (@quarantine: into @quarantine_to, else freed), records abandoned, pins
 * given back. In steps of INDEX_STEP_KEYS under the lock; the lock is not held. */
void put_group_undo(struct session *session, struct put_plan *plan, uint32_t i, uint8_t status,
		    struct vec32 *quarantine_to);

/* Under the lock: a grant for (class, share) is on its way; or it is wished for, from other namespaces and other sizes. */
bool room_grow(struct space *space, uint32_t class_index, uint32_t share, uint32_t node);
/* Under the lock: makes up to @want slots of (class, share) free, at least one: by letting victims go, unless there are
 * free slots that the session has yet to acknowledge, or the budget has room for another grant. */
bool room_make(struct session *session, uint32_t class_index, uint32_t share, uint32_t want);

/* Has the space been reset since? Only under the lock does the answer stay true. */
static inline bool put_plan_stale(const struct put_plan *plan, const struct space *space)
{
	return plan->generation != atomic_load(&space->generation);
}

/* The plan has no open group: out of the session's table, its groups' numbers kept until @seq is acknowledged. */
void put_plan_finish(struct session *session, struct put_plan *plan, uint64_t seq);
uint8_t put_plan_outcome(const struct put_plan *plan);

#endif
