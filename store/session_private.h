/* SPDX-License-Identifier: Apache-2.0
 *
 * What a session is made of. Private to store/.
 *
 * A holding (put plan, get plan, handle) is in its session's table from its start to its end. A request that works on one
 * marks it busy under the session lock and then owns it without a lock; others get EBUSY meanwhile. The session's end
 * waits until no request is inside (session_enter .. session_leave) and then owns all of them.
 */
#ifndef PREFIXFS_STORE_SESSION_PRIVATE_H
#define PREFIXFS_STORE_SESSION_PRIVATE_H

#include <stdatomic.h>

#include "index/index.h"
#include "store/base/lock.h"
#include "store/put.h"
#include "store/session.h"
#include "store/slots.h"
#include "store/space.h"
#include "store/vec.h"

#define SESSION_MAX_HOLDINGS 4096u /* as PFS_MAX_PLANS */
#define SESSION_BUCKETS 1024u
#define SESSION_ENDED 1024u        /* as PFS_ENDED_PLANS */
#define SESSION_MAX_PINS (1u << 19)  /* records pinned at once: the sum over all sessions fits a record's count */
#define SESSION_PREPARED_PART 2u     /* a session may hold 1/2 of the host's memory prepared, and one value more */
#define SESSION_SPARES 64u         /* ended holdings of each kind kept for reuse, with their arrays */

enum holding_kind { HOLDING_PUT, HOLDING_GET, HOLDING_HANDLE, HOLDING_KINDS };

struct holding {
	struct holding *next; /* (session lock) in its bucket, its spares or the unacknowledged */
	uint64_t id;
	uint64_t born_ns;
	uint64_t used_ns;     /* (session lock) end of the last request that worked on it */
	enum holding_kind kind;
	bool busy;            /* (session lock) a request works on it */
	uint32_t values;      /* for sessions/<id>: what it had when a request last left it (session_unclaim) */
	uint32_t sized;       /* values that `bytes` is the size of */
	uint64_t bytes;
};

struct ended { /* an ended plan or handle: what a later request for it is answered */
	uint64_t id;     /* 0 = empty */
	uint16_t next;   /* place + 1 in the same bucket, 0 = last */
	uint8_t kind;    /* enum holding_kind */
	uint8_t outcome; /* enum put_status of a put plan */
};

struct import { /* a place in a session's table: (session lock), but for what its user looks at: id, fd, bytes */
	uint64_t id;             /* 0 = free */
	int fd;                  /* -1 = it has not come */
	uint32_t users;          /* requests that write there */
	uint64_t bytes;          /* length when it came */
	uint64_t written;        /* payload bytes delivered there */
	uint8_t token[16];       /* until it comes */
	uint64_t token_until_ns;
};

enum session_state { SESSION_NEW, SESSION_OFFERED, SESSION_ATTACHED, SESSION_GONE };

struct session {
	struct host *host;
	struct space *space; /* referenced */
	uint64_t number;
	uint32_t slot; /* in host->sessions */
	_Atomic uint32_t refs;
	pid_t pid;
	uid_t uid;
	gid_t gid;
	bool read_only;
	int64_t opened_s;

	/* set by session_attach before ATTACHED, constant afterwards */
	uint8_t client_id[16];
	uint32_t rank, node;
	uint16_t share[LAYOUT_MAX_CLASSES];
	int buffer_fd;
	void *buffer;
	uint64_t buffer_bytes;
	uint64_t handle, process; /* for its seat */

	_Atomic bool ended;         /* set once; steps look at it */

	struct lock lock;           /* LOCK_SESSION */
	enum session_state state;   /* (lock) */
	uint32_t inside;            /* (lock) requests between enter and leave */
	bool torn_down;             /* (lock) */
	bool was_attached;          /* (lock) when it ended */
	bool process_gone;          /* (lock) its pidfd was readable, and its guard's */
	uint32_t guard;             /* (lock) pid of the guard process while it lives, 0 = none */
	int guard_fd;               /* (lock) its pidfd until the token is shown, -1 = none */
	uint8_t token[16];          /* (lock) valid while OFFERED */
	uint64_t token_until_ns;    /* (lock) */
	struct holding *bucket[SESSION_BUCKETS]; /* (lock) */
	uint32_t count[HOLDING_KINDS]; /* (lock) */
	struct holding *spare[HOLDING_KINDS];   /* (lock) */
	uint32_t spares[HOLDING_KINDS];         /* (lock) */
	struct put_plan *unacked;   /* (lock) ended put plans, newest first */
	uint64_t acked_seq;         /* (lock) */
	struct ended ended_ring[SESSION_ENDED];    /* (lock) the last ones, overwritten in order */
	uint16_t ended_bucket[SESSION_BUCKETS];    /* (lock) place + 1 of the newest, 0 = none */
	uint32_t ended_next;        /* (lock) */
	uint64_t error_seq;         /* (lock) */
	uint32_t error_op;          /* (lock) */
	uint64_t error_ns;          /* (lock) when */
	struct why error;           /* (lock) */

	struct import imports[SESSION_MAX_IMPORTS]; /* (lock) */

	struct session *next_attached;                /* (space lock) */
	uint64_t acknowledged[SLOTS_MAX_GRANTS / 64]; /* (space lock) bit g: grant g may be given out to us */
	uint32_t seat;                                /* (space lock) in its space, SEATS_NONE before the first put or transfer */
	uint64_t prepared_bytes;                      /* (space lock) slots of its open put plans */
	uint32_t pins;                                /* (space lock) held by its plans and handles */
	uint64_t acknowledged_version;                /* (space lock) slots_version up to which every grant of its shares is acknowledged, */
	uint64_t judged_version;                      /* (space lock) and at which that was judged last */
};

struct session *session_ref(struct session *session);
/* Under the space lock: has the session acknowledged every ready grant of its shares? A look at all grants for each version of them. */
bool session_has_all(struct session *session);
/* It has acknowledged some. Takes the space lock. */
void session_acknowledged_all(struct session *session);

/* ---- holdings: all take the session lock themselves ---------------------------------------------------------- */

/* Enters @holding, whose id and kind are set, busy. EEXIST, EALREADY, EDQUOT with their sentences. */
int session_hold(struct session *session, struct holding *holding, struct why *why);
/* Finds one and marks it busy. ENOENT, EALREADY (*outcome is set when not NULL), EBUSY, EINVAL when @id is of another
 * kind of plan. */
int session_claim(struct session *session, enum holding_kind kind, uint64_t id, struct holding **ret, uint8_t *outcome,
		  struct why *why);
void session_unclaim(struct session *session, struct holding *holding); /* no longer busy */
/* Takes a busy one out of the table and remembers its outcome. It is the caller's. */
void session_drop(struct session *session, struct holding *holding, uint8_t outcome);
/* Takes a busy one out of the table as if it had never been there. It is the caller's. */
void session_forget(struct session *session, struct holding *holding);
/* A spare of a kind, or NULL: the caller makes one. session_reuse gives one back, or false: the caller frees it. */
struct holding *session_spare(struct session *session, enum holding_kind kind);
bool session_reuse(struct session *session, struct holding *holding);

/* Under the space lock: pins and unpins for a plan or handle of the session. */
static inline void session_pin(struct session *session, uint32_t record)
{
	session->pins++;
	space_pin(session->space, record);
}

static inline void session_unpin(struct session *session, uint32_t record)
{
	session->pins--;
	space_unpin(session->space, record);
}

static inline struct slots_filter session_filter(const struct session *session)
{
	return (struct slots_filter){ session->acknowledged };
}

/* ---- what the kinds of holding do at the session's end ------------------------------------------------------- */

/* Each ends a holding that was taken out of the table; no other request can reach it. */
void put_plan_end(struct session *session, struct holding *holding, bool process_gone);
void put_plan_destroy(struct holding *holding); /* frees its memory */
void put_plans_acknowledge(struct session *session, struct put_plan *list);
/* Ends groups that have been pending too long. */
void put_plan_expire(struct session *session, struct holding *holding);
bool put_plan_pending(const struct holding *holding, uint64_t now_ns, uint64_t ttl_ns);
void handle_end(struct session *session, struct holding *holding);
void handle_destroy(struct holding *holding);
/* Slots kept after ENXIO: is their time over? They are given back. */
bool handle_kept_over(const struct holding *holding, uint64_t now_ns);
void handle_kept_end(struct session *session, struct holding *holding);
void get_plan_end(struct session *session, struct holding *holding);
void get_plan_destroy(struct holding *holding);
struct put_plan **put_plan_next(struct put_plan *plan);
uint64_t put_plan_end_seq(const struct put_plan *plan);

#endif
