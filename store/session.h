/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: one open of ctl, what it holds, and what happens to that when it ends.
 *
 *   NEW       opened                                   session_new
 *   OFFERED   ATTACH answered, token not yet shown     session_attach
 *   ATTACHED  the token came over the socket           session_welcome
 *   ENDED     released, or its process is gone         session_release, host_client_gone, host_process_gone
 *
 * At the end open handles and get plans are released; open put plans are lost: their slots go to quarantine if the process
 * still lives (it may still be writing) and are freed by host_process_gone. Requests hold a reference; the end waits for
 * the last one that runs.
 *
 * A session may have a guard: a further process that writes for its client, and may do so after that one's end. The session ends with its
 * client (host_client_gone), the quarantine with both.
 */
#ifndef PREFIXFS_STORE_SESSION_H
#define PREFIXFS_STORE_SESSION_H

#include "store/host.h"

#define SESSION_RANK_NONE 0xffffffffu

/* Opens a session on @space. EMFILE over HOST_MAX_SESSIONS. Referenced for the caller; the opener's fields are display. */
int session_new(struct host *host, struct space *space, pid_t pid, uid_t uid, gid_t gid, bool read_only,
		struct session **ret, struct why *why);
struct session *session_get(struct host *host, uint64_t number); /* referenced, or NULL */
void session_unref(struct session **session);
uint64_t session_number(const struct session *session);
struct space *session_space(const struct session *session); /* the session's reference */
struct host *session_host(const struct session *session);
bool session_ended(const struct session *session); /* released, or its process is gone */

struct session_attach {
	uint8_t client_id[16];
	uint32_t rank, node;
	uint64_t handle;            /* the kernel's, of its ctl */
	uint64_t call_buffer_bytes; /* in: wanted, within the ABI's limits; out: given */
	uint32_t guard;             /* pid of its guard, 0 = none */
	int guard_fd;               /* its pidfd, taken over on success where there is a guard */
	uint8_t token[16];          /* out */
};
/* EISCONN when it was attached already; EINVAL for a rank outside the world; ENOMEM. A second ATTACH before the token
 * was shown makes a new token. */
int session_attach(struct session *session, struct session_attach *attach, struct why *why);
/* Has the space's floor been populated? For ATTACH with WAIT_PREWARM. */
bool session_prewarmed(const struct session *session);

/* The peer of the socket shows @token: uid and gid must be allowed what the session's open was allowed (owner, group or
 * other bits of the namespace). @groups: the peer's further groups. @process tells its process from any other that lives (0: not known). On success the session is ATTACHED; *segment_fd and
 * *buffer_fd are borrowed until the session ends, *ret is referenced: keep it until both were sent. EACCES, ENOENT
 * (unknown, used or expired token). */
int session_welcome(struct host *host, const uint8_t token[16], pid_t pid, uint64_t process, uid_t uid, gid_t gid,
		    const gid_t *groups, int group_count, struct session **ret, int *segment_fd, int *buffer_fd, struct why *why);

/* The descriptor was released. What it holds ends. Drops no reference. */
void session_release(struct session *session);
/* The pidfd of the guard that ATTACH named becomes the caller's; -1: there is none, or it was taken. *pid is its pid. */
int session_take_guard(struct session *session, pid_t *pid);
/* The guard of session @number is gone while its client lives: it does not count any more. */
void host_guard_gone(struct host *host, uint64_t number);
/* The process that attached session @number is gone, its guard is not: the session ends if it had not, its quarantine stays. */
void host_client_gone(struct host *host, uint64_t number);
/* That process is gone, and its guard, if there is one: the session ends if it had not, its quarantine is freed. */
void host_process_gone(struct host *host, uint64_t number);
/* Does anything wait for their end? False: the session has ended and nothing of it is in quarantine. */
bool host_process_awaited(struct host *host, uint64_t number);
/* Cancels handles older than handle_ttl and put groups pending longer than fill_ttl, drops expired tokens, lets go what
 * resets left. About once a second. */
void host_maintain(struct host *host);

/* ---- around each request ------------------------------------------------------------------------------------- */

/* A request begins: ENOTCONN before ATTACHED, ESHUTDOWN after the end. Takes @acked_seq into account. */
int session_enter(struct session *session, uint64_t acked_seq, struct why *why);
void session_leave(struct session *session);
/* The call buffer, mapped for the session's life; its client writes there at any time. */
void *session_call_buffer(const struct session *session, uint64_t *bytes);

/* Acknowledged ranges. @accepted counts; ESTALE when one was unknown or of another generation. */
struct session_ack {
	uint32_t id, generation;
};
int session_ack_ranges(struct session *session, const struct session_ack *acks, uint32_t count, uint32_t *accepted,
		       struct why *why);

/* The last failed request: kept for LAST_ERROR and sessions/<id>. */
void session_note_error(struct session *session, uint64_t seq, uint32_t op, const struct why *why);
void session_last_error(struct session *session, uint64_t *seq, uint32_t *op, struct why *ret);

#define SESSION_MAX_IMPORTS 16u /* as PFS_MAX_IMPORTS */

struct session_import {
	uint64_t id, bytes, written;
	bool here; /* its descriptor has come */
	uint32_t users;
};

#define SESSION_SHOWN 64u /* plans and handles that are shown each by itself: the oldest */

struct session_holding {
	const char *kind; /* "put", "get", "handle" */
	uint64_t id;
	uint64_t age_ns;
	bool busy;        /* a request works on it now: values and bytes are not told, 0 */
	uint32_t values;  /* put: given slots and not ended; get: handed out; handle: keys that hit, to be transferred */
	uint64_t bytes;   /* of them: put: of slots; get, handle: without padding. In proportion once some of them ended */
};

#define SESSION_TICKETS 16u /* that are shown */

/* A ticket without an outcome that it has come to, and where it is there. */
struct session_ticket {
	uint8_t id[16];
	enum { SESSION_TICKET_STARTED, SESSION_TICKET_DELIVERS, SESSION_TICKET_CONFIRMS } gate; /* at none; it waits at one for the others */
	uint64_t from, to;    /* DELIVERS: the range */
	uint32_t came, world; /* ranks that have come to the gate; STARTED: to the ticket */
	uint32_t lacks;       /* the lowest one that has not; SESSION_RANK_NONE: all have */
	uint64_t idle_ms;     /* since anybody's last step of it */
};

struct session_info {
	uint64_t number;
	pid_t pid;            /* display only */
	uint32_t guard;       /* pid of its guard process while that lives, 0 = none; likewise */
	uid_t uid;
	gid_t gid;
	uint32_t rank, node;  /* SESSION_RANK_NONE, 0xffffffff = none */
	uint8_t client_id[16];
	bool read_only, attached;
	char space[HOST_MAX_NAME + 1];
	struct space_access access; /* of its namespace */
	uint32_t put_plans, get_plans, handles;
	uint64_t prepared_bytes; /* slots of its open put plans */
	uint64_t buffer_bytes;   /* of its call buffer, 0 before ATTACH */
	uint32_t pins;           /* records held by its plans and handles */
	uint32_t quarantined;    /* slots of its ended puts that wait for its process, and its guard, to be gone */
	uint32_t ranges, acknowledged; /* ready ones; of them, acknowledged */
	int64_t opened_s;
	uint64_t oldest_ms;   /* age of the oldest plan or handle */
	uint32_t shown;       /* of `holding`, oldest first; there are put_plans + get_plans + handles of them */
	struct session_holding holding[SESSION_SHOWN];
	uint32_t imports;     /* of `import` */
	struct session_import import[SESSION_MAX_IMPORTS];
	uint32_t tickets;     /* all; in `ticket` are up to SESSION_TICKETS of them */
	struct session_ticket ticket[SESSION_TICKETS];
	uint64_t error_seq, error_ms; /* request that failed last, how long ago */
	uint32_t error_op;            /* its number in the ABI, 0 = none failed */
	char error[480];
};
uint32_t host_session_list(struct host *host, uint64_t *numbers, uint32_t capacity);
/* A snapshot; -ENOENT. Walks everything that the session holds, in pieces: none of its locks is held for long. */
int session_info(struct host *host, uint64_t number, struct session_info *ret);
/* Of its namespace; -ENOENT. */
int session_access(struct host *host, uint64_t number, struct space_access *ret);

#endif
