/* SPDX-License-Identifier: Apache-2.0
 *
 * What the blobs of a namespace are made of. Private to store/blobs*.c.
 */
#ifndef PREFIXFS_STORE_BLOBS_PRIVATE_H
#define PREFIXFS_STORE_BLOBS_PRIVATE_H

#include "store/base/lock.h"
#include "store/blobs.h"

#define BLOBS_NONE 0xffffffffu
#define BLOBS_LOCK_BUCKETS 1024u

enum blob_state { BLOB_FREE, BLOB_FILLING, BLOB_READY, BLOB_DYING };

struct blob {
	struct blob_info info;
	uint64_t reset_number; /* blobs.reset_number when it was begun */
	enum blob_state state;
	uint32_t units;        /* that it is charged for */
	uint32_t taken;        /* of them, those in its chain: all, once it is READY */
	uint32_t first, last;  /* unit; BLOBS_NONE = none */
	uint32_t readers;
	uint32_t chain;        /* in its bucket, or of the free ones */
	uint32_t hotter, colder; /* in the order, while `ordered` */
	bool ordered;
};

/* A read or write in pieces. */
struct transfer {
	uint64_t session; /* 0 = free */
	uint64_t id, used_ns;
	bool writes, busy; /* busy: a request works on it */
	uint32_t entry;    /* BLOBS_NONE: a write that has no room yet */
	uint64_t position; /* of a write: bytes that are there; of a read: where @unit begins */
	uint32_t unit;
	struct key key;    /* as it was asked for */
	uint64_t length;   /* of a write */
};

struct flight { /* a lock */
	struct key key;
	uint64_t session; /* 0 = free */
	uint64_t until_ns;
	uint32_t chain;
};

struct blobs {
	struct blobs_config config;
	uint64_t seed;        /* of the map */
	uint32_t unit_limit;  /* of the share */
	uint32_t bucket_mask;
	unsigned char *memory; /* [unit_limit] units: touched as they are used */

	struct lock lock;      /* LOCK_BLOBS, over all below */
	struct blob *blob;     /* [config.count] */
	uint32_t *bucket;      /* [bucket_mask + 1] 1 + blob, 0 = none */
	uint32_t *next_unit;   /* [unit_limit] */
	uint32_t free_blob;    /* list through `chain`; of those that were used before */
	uint32_t blob_high;    /* from here on none was ever used */
	uint32_t free_unit, free_units; /* list through next_unit, and its length */
	uint32_t unit_high;    /* from here on none was ever used */
	uint32_t granted_units; /* taken from the budget */
	uint32_t charged;      /* of all blobs */
	uint32_t ordered_units; /* of those in the order: what eviction could free */
	uint32_t filling_units; /* of FILLING ones */
	uint32_t blobs, found; /* not FREE; READY */
	uint32_t hottest, coldest;
	uint64_t version, reset_number;
	struct transfer transfer[BLOBS_TRANSFERS];
	uint32_t transfers;
	struct flight *flight; /* [BLOBS_LOCKS] */
	uint32_t lock_bucket[BLOBS_LOCK_BUCKETS]; /* 1 + flight, 0 = none */
	uint32_t locks;
	uint32_t waiting;      /* calls that wait for a lock */
	bool asked;            /* one gave up waiting: it may be polling */
	struct blobs_report counts; /* the counters of it */
};

static inline struct blob *blob_at(struct blobs *b, uint32_t number)
{
	return &b->blob[number];
}

static inline uint32_t blob_number(const struct blobs *b, const struct blob *blob)
{
	return (uint32_t)(blob - b->blob);
}

/* All under the lock. */
struct blob *blob_look(struct blobs *b, const struct key *key); /* READY and of now, or NULL */
void blob_enter(struct blobs *b, struct blob *blob);  /* FILLING, all there -> READY, the hottest */
void blob_leave(struct blobs *b, struct blob *blob);  /* READY -> FREE or DYING */
void blob_give_up(struct blobs *b, struct blob *blob); /* FILLING -> FREE */
void blob_name_change(struct blobs *b, struct blob *blob, const struct blob_name *to); /* READY; nobody has @to */
void blob_hold(struct blobs *b, struct blob *blob);   /* one reader more */
void blob_unhold(struct blobs *b, struct blob *blob); /* one less: the hottest, or FREE */
/* Room for another one of @units: lets cold ones go, BLOBS_STEP_EVICT at most. *ret is FILLING then, with @units charged.
 * STEP_MORE: again; ENOSPC. */
int blob_room(struct blobs *b, uint32_t units, struct blob **ret, struct why *why);
uint32_t blob_take_unit(struct blobs *b, struct blob *blob); /* of those that it is charged for, to its chain's end */
/* Somebody waits, or polls, and the lock is to be dropped: true, once, to call blobs_tell then. */
bool blobs_news(struct blobs *b);
void blobs_tell(struct blobs *b); /* without the lock */

/* blobs_write.c, blobs_lock.c; under the lock. */
struct transfer *transfer_find(struct blobs *b, uint64_t session, uint64_t id);
/* A free one, entered and busy: EDQUOT. */
int transfer_new(struct blobs *b, uint64_t session, uint64_t id, bool writes, struct transfer **ret, struct why *why);
void transfer_end(struct blobs *b, struct transfer *transfer); /* with what it holds */
void flight_end(struct blobs *b, struct flight *flight);
struct flight *flight_find(struct blobs *b, const struct key *key);
void flights_end(struct blobs *b, uint64_t session);   /* UINT64_MAX: of all */
void flights_expire(struct blobs *b, uint64_t now_ns);

#endif
