/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to a namespace by hand: TOUCH, REMOVE, PIN by keys, EVICT, RESET.
 *
 * Like plans they run in steps: begin() checks, step() works on at most PUT_STEP_KEYS keys, INDEX_STEP_KEYS of them in one
 * stay under the space lock, and answers STEP_MORE until it is done; between two steps others have their turn. None
 * waits, and nothing is held between steps, so a call may be left off after any of them. Any thread; one call belongs to
 * one. Arrays marked untrusted lie in the client's call buffer: each element is read once, into memory of our own.
 */
#ifndef PREFIXFS_STORE_MANAGE_H
#define PREFIXFS_STORE_MANAGE_H

#include "store/put.h"

#define MANAGE_PIN_PART 10u /* of a namespace's floor, one part in so many may be pinned */

struct touch {
	struct session *session;
	const struct key *keys; /* untrusted */
	uint32_t key_count;
	/* out */
	uint32_t touched; /* keys that are there */
	/* private */
	uint32_t key, tick;
};
int touch_begin(struct touch *call, struct why *why); /* STEP_MORE, or EINVAL (no keys) */
int touch_step(struct touch *call, struct why *why);  /* 0 or STEP_MORE */

/* Numbers as in the ABI; fs/ asserts that they are equal. */
enum removal_answer { REMOVAL_DONE, REMOVAL_ABSENT, REMOVAL_BUSY };

struct removal {
	struct session *session;
	const struct key *keys; /* untrusted */
	uint32_t key_count;
	uint32_t class_mask;    /* 0 = all */
	uint32_t *answers;      /* untrusted, written only, or NULL */
	/* out */
	uint32_t removed, absent, busy;
	uint64_t values;
	/* private */
	uint32_t key;
};
int removal_begin(struct removal *call, struct why *why); /* STEP_MORE, or EROFS, EINVAL (no keys, unknown classes) */
int removal_step(struct removal *call, struct why *why);  /* 0 or STEP_MORE */

#define PINNING_RELEASE 1u
#define PINNING_ENDPOINTS 2u
enum pinning_answer { PINNING_DONE, PINNING_ABSENT, PINNING_NOROOM };

struct pinning {
	struct session *session;
	const struct key *keys; /* untrusted */
	uint32_t key_count;
	uint32_t flags;         /* PINNING_* */
	uint32_t *answers;      /* untrusted, written only, or NULL */
	/* out */
	uint32_t changed, absent;
	uint64_t pinned_bytes, limit_bytes;
	/* private */
	uint32_t key;
	struct why refused; /* the first one that got no room */
};
int pinning_begin(struct pinning *call, struct why *why); /* STEP_MORE, or EROFS, EINVAL (no keys, unknown flags) */
int pinning_step(struct pinning *call, struct why *why);  /* 0, STEP_MORE, or at the end ENOSPC */

#define EVICTION_ALL UINT64_MAX
#define EVICTION_REFUSALS 16u /* records that are named of those that did not go */

/* What may go. With EVICTION_ALL every record that is idle, whole; else, until @goal_bytes went, the last page of the
 * record that was unused for longest, again and again, as PUT_START makes room: also a record in use may come to owe its
 * last page then. Records that come meanwhile may go, too. */
struct eviction {
	struct session *session;
	uint64_t goal_bytes; /* of slots */
	/* out, after an error too */
	uint64_t values, bytes; /* that went; bytes of their slots */
	uint64_t records;       /* that are gone wholly */
	uint64_t refused;       /* of EVICTION_ALL: in use, pinned, being filled, or others that stay descend from them */
	struct eviction_refusal {
		uint32_t number, generation; /* as in struct record_info */
	} refusal[EVICTION_REFUSALS];        /* the first ones that were met; one may be gone by now */
	uint32_t refusals;
	/* private */
	uint32_t cursor;   /* records below are yet to be looked at */
	uint32_t climb;    /* one to be tried before, or INDEX_NONE */
	uint32_t passes;
	uint64_t at_start; /* of the pass: records */
};
int eviction_begin(struct eviction *call, struct why *why); /* STEP_MORE, or EROFS */
int eviction_step(struct eviction *call, struct why *why);  /* 0 or STEP_MORE */
/* Instead of steps, after eviction_begin: one record by its name, whole. ENOENT, EBUSY, ENOTEMPTY with the sentence. As
 * long under the lock as one record's pages take. */
int eviction_record(struct eviction *call, uint64_t consumed, const struct key *endpoint, struct why *why);

struct reset {
	struct session *session;
	/* out */
	uint64_t generation, values;
	uint32_t held; /* old records that somebody holds */
};
int reset_begin(struct reset *call, struct why *why); /* STEP_MORE: nothing old is found any more; or EROFS */
int reset_step(struct reset *call, struct why *why);  /* 0 or STEP_MORE */

/* May this session have what is dirty written? EROFS, or 0: host_drain does it, and blocks. */
int drain(struct session *session, struct why *why);

#endif
