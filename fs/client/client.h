/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside libprefixfs: sessions, their connections, and calls.
 *
 * A session lives from pfs_open to pfs_close. A connection is one open of ctl with what the daemon handed out for it:
 * the segment, the call buffer. When the daemon is gone the session makes a new one; the old one stays mapped for the
 * plans and key areas that refer to it:
 *
 *   CURRENT  session->current == conn   new calls go there
 *   LOST     conn->lost                 a call found it gone; what refers to it can only be ended, here alone. It stays the
 *                                       session's current one until the next takes its place
 *   RETIRED  refs == key_areas          ctl is closed and the segment let go of; key areas have the call buffer still
 *   freed    with the last reference
 *
 * One lock guards all of it, but mappings (mapping.h), and is never held during a system call that may wait.
 */
#ifndef PREFIXFS_CLIENT_CLIENT_H
#define PREFIXFS_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "fs/client/areas.h"
#include "fs/client/mapping.h"
#include "fs/client/prefixfs.h"

#define LIKE_PRINTF(n) __attribute__((format(printf, n, (n) + 1)))

/* ---- sentences: of the calling thread --------------------------------------------------------------------------- */

int say(int error, const char *format, ...) LIKE_PRINTF(2); /* returns -error */
void say_text(const char *text);

/* away.c */
/* Why opening @ctl failed with @error, which is returned negative; -EHOSTDOWN: its mount is fallen, and will not be served by itself. */
int say_open(const char *ctl, int error);

/* ---- connections ------------------------------------------------------------------------------------------------ */

struct conn {
	struct conn *next; /* (lock) of the session's list */
	unsigned refs;     /* (lock) */
	unsigned key_areas; /* (lock) references that need the call buffer alone */
	bool lost;         /* (lock) */
	bool unpinned;     /* (lock) lost, and the daemon lives: what its plans held may be another's */
	int ctl;           /* -1: closed */
	struct pfs_segment *mapping; /* NULL: let go of */
	uint8_t *segment;  /* the mapping's address */
	uint8_t *buffer;
	uint64_t segment_bytes, segment_page_bytes, buffer_bytes;
	uint64_t generation, number;
	uint64_t serial; /* counts the session's connections from 1 */
	char socket_path[sizeof(((struct pfs_attach *)0)->socket_path)];
	uint32_t world, page_tokens, classes, state_mask;
	uint32_t share[PFS_MAX_CLASSES];
	uint32_t guard_left_out; /* pid of a guard that was gone when this one was made, else 0 */
	uint64_t value_bytes[PFS_MAX_CLASSES]; /* without padding; 0: not told */
	uint8_t fingerprint[16];
	_Atomic uint32_t first_sizes;    /* bit nr: its daemon was built before the struct of operation nr grew */
	struct areas areas;              /* (lock) */
	_Atomic uint64_t ranges_version; /* written under ranges_lock: acknowledged up to here */
	struct acks acked;               /* (ranges_lock) on this connection */
};

/* A request under way, on its caller's stack. */
struct call {
	struct call *next, *prev;
	uint64_t seq;
};

/* A memory file of the engine's. */
struct imported {
	uint64_t id;   /* 0 = free; of the daemon's import too */
	int fd;        /* a copy */
	uint64_t conn; /* serial of the connection whose daemon has it, 0 = none */
};

#define PLAN_SLOTS PFS_MAX_PLANS

struct plan;

struct pfs_session {
	pthread_mutex_t lock;
	pthread_cond_t changed;       /* an area was given back, or attaching anew came to its end */
	struct conn *current;         /* (lock) never NULL once the session is open; lost: to be replaced */
	struct conn *conns;           /* (lock) all of them */
	struct pfs_segment *mappings; /* (mappings, mapping.h) all of them */
	bool attaching;               /* (lock) */
	bool met;                     /* a ctl was opened once; written by who attaches */
	unsigned waiters;             /* (lock) of `changed` */
	uint64_t lost_ms;             /* (lock) when the current connection was found lost */
	uint64_t tried_ms;            /* (lock) when attaching anew was tried last, after a whole deadline in vain; 0 = not yet */
	uint64_t reattached;          /* (lock) */
	uint64_t remapped;            /* (lock) */
	uint64_t seq;                 /* (lock) last one given out */
	struct call *oldest, *newest; /* (lock) requests under way, by seq */

	struct plan *plans[PLAN_SLOTS];              /* (lock) made when first needed, kept for reuse */
	uint32_t free_slots[PLAN_SLOTS], free_count; /* (lock) */
	uint64_t plan_counter;                       /* (lock) */
	uint64_t tag;                                /* begins every plan id of this session */

	pthread_mutex_t ranges_lock; /* taken before `lock`; one thread at a time brings ranges up to date */
	uint64_t listed;             /* (ranges_lock) number of the mapping whose ranges pfs_segments told last, 0 = of none */
	pthread_mutex_t imports_lock; /* taken before `lock`; one thread at a time brings or drops one */
	struct imported imports[PFS_MAX_IMPORTS]; /* (imports_lock) */
	uint64_t import_counter;      /* (imports_lock) */
	_Atomic uint64_t serials;     /* of connections */
	_Atomic uint64_t interval;    /* of the ladder, as GET_START said last */
	int poll_fd;                 /* epoll that watches the current connection's ctl and `retry_fd` */
	int retry_fd;                /* timer: readable when it is time to try again */
	char *ctl_path, *socket_dir;
	struct pfs_options options;  /* constant, but for guard_pid: the one's who attaches, 0 once it was gone */
	uint8_t client_id[16];
};

uint64_t now_ms(void);

/* conn.c */
int conn_open(struct pfs_session *session, uint64_t until_ms, struct conn **ret);
/* Says @hello at the socket, which ATTACH said is at @path, with @fd (-1: none), and waits for the welcome; with two descriptors
 * when @ret_fds is not NULL. */
int conn_show_token(struct pfs_session *session, const char *path, const struct pfs_hello *hello, int fd,
	uint64_t until_ms, int *ret_fds);
void conn_free(struct pfs_session *session, struct conn **conn);
void conn_put(struct pfs_session *session, struct conn **conn);

/* reattach.c */
/* conn_open again and again until the deadline, or the mount is fallen. Without the lock, by the one thread that set `attaching`, or opens. */
int conn_open_again(struct pfs_session *session, uint64_t until_ms, struct conn **ret);
/* The current connection, referenced; attaches anew when it is lost, within the session's deadline. -ENOTCONN: not until then, or
 * a deadline has passed in vain before: then one thread tries once a second, and nobody else waits. */
int conn_get(struct pfs_session *session, struct conn **ret);
/* Runs @call on the current connection, and again on a new one when it ended with an error that says that its connection is
 * gone: a few times at most, and within one deadline; then -ENOTCONN. @call leaves nothing behind when it fails. */
typedef int conn_call(struct pfs_session *session, struct conn *conn, void *context);
int conn_run(struct pfs_session *session, conn_call *call, void *context);
/* A call on it ended with @error, which conn_is_lost. Whoever waits for something of it is woken. */
void conn_mark_lost(struct pfs_session *session, struct conn *conn, int error);
/* Does this errno, negative, of call_run or of opening ctl, say that the connection is gone? */
bool conn_is_lost(int error);

/* The daemon's own ESTALE: the namespace was reset since (PUT_START, PUT_COMMIT, BLOB_PUT), or a range was cut anew (SEGMENTS_ACK). The
 * connection is good. */
#define CHANGED_SINCE EREMCHG

/* call.c */
/* Areas of a connection's call buffer: waits until the session's deadline for room. -ESTALE: the connection was lost meanwhile. */
int area_take(struct pfs_session *session, struct conn *conn, uint64_t bytes, __u64 *ret_offset);
void area_give(struct pfs_session *session, struct conn *conn, uint64_t offset); /* AREA_NONE is allowed */
/* One ioctl: @request begins with struct pfs_call, which is filled in here. Negative errno; the sentence is said. Every error after which
 * the connection is gone is one that conn_is_lost says it of, and no other is: where an errno leaves it open, the daemon is asked. */
int call_run(struct pfs_session *session, struct conn *conn, unsigned long op, struct pfs_call *request, size_t size,
	uint32_t flags, uint32_t deadline_ms);
/* Likewise, for a struct of two versions, the first of @size_1 bytes: a daemon that knows that one alone is asked by it, unless @grown:
 * something of the second is wanted, which is -EOPNOTSUPP then. */
int call_run_grown(struct pfs_session *session, struct conn *conn, unsigned long op, struct pfs_call *request, size_t size, size_t size_1,
	bool grown, uint32_t flags, uint32_t deadline_ms);
/* 0, or a negative errno that conn_is_lost: nobody answers on it any more. Asks, so it may block like a call. */
int call_judge(struct pfs_session *session, struct conn *conn);
/* Keys to the call buffer, unless they lie there: *offset is where, *area what to give back, or AREA_NONE. */
int call_place_keys(struct pfs_session *session, struct conn *conn, const struct pfs_key *keys, uint32_t count,
	__u64 *offset, __u64 *area);

/* ranges.c */
/* Acknowledges what was granted since, if the session does so by itself. */
int ranges_sync(struct pfs_session *session, struct conn *conn, uint64_t version);
/* For a session that does not: acknowledges, on a new connection, those that the engine acknowledged before in the same memory, and that
 * are as they were. It is asked about what is new alone. */
int ranges_repeat(struct pfs_session *session, struct conn *conn);

/* ---- plans and handles ------------------------------------------------------------------------------------------ */

enum plan_kind {
	PLAN_NONE,
	PLAN_PUT,
	PLAN_GET,
	PLAN_HANDLE
};

struct table { /* of one class: the memory behind struct pfs_blob */
	uint64_t *words;
	uint32_t *index;
	uint32_t capacity, count;
	bool built;
};

struct plan {
	uint64_t id;
	enum plan_kind kind;
	unsigned users; /* (lock) calls on it under way */
	bool ended;     /* (lock) its id is void; freed with the last user */
	bool over;      /* the daemon ended it when it answered; our memory of it goes on */
	struct conn *conn;
	__u64 area; /* answers and status of a put; bitmaps of a handle; offsets of a get plan */
	uint64_t status_offset;
	uint32_t class_mask, groups, keys;
	const uint64_t *values[PFS_MAX_CLASSES]; /* in the area */
	uint32_t *group_keys;                    /* of a put: lengths of its groups */
	uint32_t group_capacity;
	struct table tables[PFS_MAX_CLASSES]; /* (lock) */
};

/* import.c */
void imports_free(struct pfs_session *session);

/* plans.c */
/* A new plan with one user. -EDQUOT, -ENOMEM. */
int plan_new(struct pfs_session *session, enum plan_kind kind, struct conn *conn, struct plan **ret);
/* The plan of that id, one user more. @kind PLAN_NONE takes any. -ENOENT, -EINVAL. */
int plan_find(struct pfs_session *session, uint64_t id, enum plan_kind kind, struct plan **ret);
/* The user is done; @ended: nobody finds it any more. */
void plan_leave(struct pfs_session *session, struct plan *plan, bool ended);
/* Is its connection lost? */
bool plan_lost(struct pfs_session *session, struct plan *plan);
void plans_free(struct pfs_session *session);

#endif
