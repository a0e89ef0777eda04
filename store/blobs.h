/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs of a namespace: bytes of any length under a key or a name (docs/blobs.md). Apart from pages in everything: a share of
 * the budget of their own, memory of their own, an order of eviction of their own.
 *
 * Memory is cut into units of BLOBS_UNIT bytes. A blob takes as many as its length needs, from anywhere, chained: the share can
 * be used up to its last unit, whatever came and went.
 *
 *   state    in the map   in the order   units       who moves it on
 *   FREE     -            -              0           blob_write_begin, _step -> FILLING
 *   FILLING  -            -              reserved    its write is whole -> READY;  it is given up -> FREE
 *   READY    yes          while nobody   all         eviction, removal, replacement, reset -> FREE, or with readers -> DYING
 *                         reads it
 *   DYING    -            -              all         the last reader goes -> FREE
 *
 * Any thread; one lock (LOCK_BLOBS) guards all of it but the bytes, which are copied without it: those of a FILLING one are its
 * writer's, those of a READY or DYING one with readers stay as they are. Nothing blocks. Calls that run in steps copy at most
 * BLOBS_STEP_BYTES, or evict BLOBS_STEP_EVICT, between two turns of others.
 */
#ifndef PREFIXFS_STORE_BLOBS_H
#define PREFIXFS_STORE_BLOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"
#include "store/base/why.h"

#define BLOBS_UNIT 4096u
#define BLOBS_MAX_NAME 255u
#define BLOBS_SESSION_TRANSFERS 16u /* reads and writes in pieces that a session may have under way: EDQUOT */
#define BLOBS_TRANSFERS 256u        /* a namespace: EDQUOT too */
#define BLOBS_SESSION_LOCKS 256u    /* EDQUOT */
#define BLOBS_LOCKS 4096u           /* likewise */
#define BLOBS_STEP_BYTES (1u << 20)
#define BLOBS_STEP_EVICT 64u
#define BLOBS_LARGEST_PART 2u /* the largest blob, and all writes under way together, have one part in so many of the share */

struct blobs;
struct budget;

struct blobs_config {
	const char *space;          /* name of the namespace, for sentences; outlives the blobs */
	uint64_t bytes;             /* the share: whole units of it are used */
	uint32_t count;             /* blobs at most, those being written or read out included */
	struct budget *budget;      /* the host's, which promises the share; NULL: none */
	uint64_t transfer_ttl_ns;   /* a read or write in pieces that was left alone for so long is given up */
	void (*changed)(void *context); /* somebody who waits may look again. Without a lock. May be NULL */
	void (*hungry)(void *context);  /* others hold what the share was promised: under the lock, ask and return. May be NULL */
	void *context;
};
/* ENOSPC when the share and others' promises exceed the budget; ENOMEM. */
int blobs_new(const struct blobs_config *config, struct blobs **ret, struct why *why);
void blobs_free(struct blobs **blobs); /* NULL is let pass; no call may be under way */

/* ---- names ----------------------------------------------------------------------------------------------------- */

struct blob_name {
	struct key key;
	uint32_t bytes; /* of the text; 0 = it has a key only */
	char text[BLOBS_MAX_NAME + 1];
};
/* 1 to BLOBS_MAX_NAME bytes without a NUL; the key is their BLAKE2b-256. EINVAL. */
int blob_name_set(struct blob_name *name, const char *text, uint32_t bytes, struct why *why);

struct blob_info {
	struct blob_name name;
	uint64_t length, version; /* a version is never used again within one daemon */
	uint64_t uses;            /* reads of it */
	int64_t created_s, used_s;
	uint32_t kind;            /* as its writer said */
};
/* Counts as no use. ENOENT. */
int blobs_find(struct blobs *blobs, const struct key *key, struct blob_info *ret);
/* The first one at or after *cursor, a place that it keeps while others come and go, 0 at first; *cursor goes on behind it.
 * 1, or 0 at the end. */
int blobs_next(struct blobs *blobs, uint32_t *cursor, struct blob_info *ret);
/* Readers of it finish. ENOENT. */
int blobs_remove(struct blobs *blobs, const struct key *key, struct why *why);
/* Is found as @to from now on, in place of what was found there. ENOENT. */
int blobs_rename(struct blobs *blobs, const struct key *key, const struct blob_name *to, struct why *why);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

#define BLOB_WRITE_EXCLUSIVE 1u /* only where there is none: EEXIST */
#define BLOB_WRITE_ABORT 2u     /* gives the write up: nothing of it was seen */

/* A whole blob, or a piece of it. Pieces follow one another; with the last one it takes its name's place at once. */
struct blob_write {
	struct blobs *blobs;
	uint64_t session; /* who writes */
	uint64_t id;      /* of the write, the client's; 0 = this is the whole of it */
	struct blob_name name;
	const void *from; /* untrusted: read once */
	uint64_t offset, length; /* of the piece's first byte; of the whole */
	uint32_t bytes;          /* of the piece */
	uint32_t flags, kind;
	/* out */
	bool stored;
	uint64_t version;
	/* private */
	uint32_t entry, transfer, done;
};
/* Begin: STEP_MORE or an error; step: STEP_MORE, 0 or an error. After EINVAL a write in pieces is as it was, after another error
 * it has ended. EINVAL; EFBIG: over the largest blob; ENOSPC: readers and writers hold too much of the share, or others too
 * much of the budget; EDQUOT: too many in pieces; EBUSY: two requests on one; ESTALE: the namespace was reset since it
 * began; EEXIST; ENOENT: ABORT of an unknown one. */
int blob_write_begin(struct blob_write *call, struct why *why);
int blob_write_step(struct blob_write *call, struct why *why);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

#define BLOB_READ_END 1u /* of a read in pieces: it is its last one */

struct blob_read {
	struct blobs *blobs;
	uint64_t session;
	uint64_t id;   /* of a read in pieces, all of the same version; 0 = this is all of it */
	struct key key;
	void *to;      /* untrusted, written only */
	uint64_t offset;
	uint32_t capacity, flags;
	/* out */
	struct blob_info info;
	uint32_t bytes; /* read */
	bool ended;     /* a read in pieces: with the piece that reaches the end of the blob */
	/* private */
	uint32_t entry, transfer, unit;
	uint64_t unit_at;
};
/* ENOENT: there is none; EINVAL: @offset is behind its end; EDQUOT, EBUSY as of writes. A capacity of 0 and no id only asks: no
 * use. */
int blob_read_begin(struct blob_read *call, struct why *why);
int blob_read_step(struct blob_read *call, struct why *why);

/* ---- one at a time ----------------------------------------------------------------------------------------------- */

enum blob_lock_answer { BLOB_LOCK_FOUND = 1, BLOB_LOCK_HELD = 2, BLOB_LOCK_RELEASED = 3 };

struct blob_lock {
	struct blobs *blobs;
	uint64_t session;
	struct key key;
	uint64_t hold_ns; /* the lock passes to whoever waits after so long without a renewal */
	uint64_t deadline_ns; /* of the wait */
	/* out */
	enum blob_lock_answer answer;
	struct blob_info info; /* FOUND */
	uint64_t look_ns;      /* after STEP_WAIT: look again then at the latest; of the lock that it waits for */
	/* private */
	bool waiting;
};
/* STEP_MORE, or for release: 0, ENOENT when the session does not hold it (any more). */
int blob_lock_begin(struct blob_lock *call, bool release, struct why *why);
/* FOUND or HELD; STEP_WAIT; ETIMEDOUT; EDQUOT: too many locks. */
int blob_lock_step(struct blob_lock *call, struct why *why);
void blob_lock_end(struct blob_lock *call); /* after the last step, whatever it said, or instead of another */

/* ---- around ------------------------------------------------------------------------------------------------------ */

/* The session's reads and writes in pieces are given up, its locks released. */
void blobs_session_end(struct blobs *blobs, uint64_t session);
/* No blob is found any more that was stored or begun before; locks are released. In pieces: the lock is never held for long. */
void blobs_reset(struct blobs *blobs);
/* Gives up what was left alone, releases locks whose time is over. About once a second. */
void blobs_maintain(struct blobs *blobs, uint64_t now_ns);

#define BLOBS_COUNTERS(x)                                                              \
	x(blob_puts, "blobs stored")                                                  \
	x(blob_bytes_put, "bytes of them")                                            \
	x(blob_hits, "reads of a blob")                                               \
	x(blob_misses, "reads of a blob that was not there")                          \
	x(blob_bytes_given, "bytes of blobs read")                                    \
	x(blobs_evicted, "blobs that went for others' room")                          \
	x(blobs_removed, "blobs removed by hand or replaced")                         \
	x(blob_locks_given, "locks of blobs given")                                   \
	x(blob_locks_found, "requests for a lock that found the blob")                \
	x(blob_locks_lost, "locks of blobs whose holder ended, or was too slow")

struct blobs_report {
#define X(name, help) uint64_t name;
	BLOBS_COUNTERS(X)
#undef X
	uint64_t transfers, locks, waiting; /* under way, held */
	uint64_t blobs, count_limit;        /* found */
	uint64_t bytes, limit_bytes;        /* of units, those being written or read out included */
	uint64_t granted_bytes;             /* taken from the budget; at most the limit */
};
void blobs_report(struct blobs *blobs, struct blobs_report *ret);
/* For tests: asserts that map, order, units and counts agree. Walks everything under the lock. */
void blobs_check(struct blobs *blobs);

#endif
