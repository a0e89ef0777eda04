/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to a namespace by hand: TOUCH, REMOVE, PIN by keys, RESET.
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

struct reset {
	struct session *session;
	/* out */
	uint64_t generation, values;
	uint32_t held; /* old records that somebody holds */
};
int reset_begin(struct reset *call, struct why *why); /* STEP_MORE: nothing old is found any more; or EROFS */
int reset_step(struct reset *call, struct why *why);  /* 0 or STEP_MORE */

/* EROFS, or 0: there is no disk tier, so nothing is to be written. */
int drain(struct session *session, struct why *why);

#endif
