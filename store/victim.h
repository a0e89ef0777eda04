/* SPDX-License-Identifier: Apache-2.0
 *
 * Which grant is worth least, and emptying it: what recut.c and balance.c have in common. Private to store/.
 *
 * All take the space lock themselves, for at most INDEX_STEP_KEYS looks or evictions at a time. They run in the grower's
 * thread and nowhere else, so that one grant of a host is emptied at a time.
 */
#ifndef PREFIXFS_STORE_VICTIM_H
#define PREFIXFS_STORE_VICTIM_H

#include "store/space.h"

#define VICTIM_REQUEST_PAGES 64u /* one request's worth, which a class keeps: as many pages, or one row */
#define VICTIM_TRIES 4u          /* grants that turn out to be in use, in one look */

struct victim_wish {
	struct space *space;
	bool other;                  /* not of (class_index, share), and no shorter than one of its slots */
	uint32_t class_index, share;
	uint64_t most_bytes;         /* of the grant */
	bool empty_only;
	uint64_t passed[SLOTS_MAX_GRANTS / 64]; /* bit g: grant g was tried */
};

struct victim {
	uint32_t id, generation;
	uint32_t age;  /* batches: three quarters of its slots are older */
	uint32_t old;  /* batches: of its values alone, three quarters are as old */
	uint32_t free; /* slots */
	bool empty;
};

/* The grant of least value (with empty_only the first one): the oldest, of equally old ones that with most free slots, then the lowest id. A grant that its
 * (class, share) needs for one request is none, nor is one of whose values some were seen in use. */
bool victim_find(const struct victim_wish *wish, struct victim *ret);
/* Closes it, if it is still as it was found. */
bool victim_close(struct space *space, const struct victim *victim);
/* Lets everything in a closed grant go; what is younger than its `old` goes alone. False: something is in use, or
 * @stop (under the lock; may be NULL) says so: it is open again, perhaps with less in it. */
bool victim_empty(struct space *space, const struct victim *victim, bool (*stop)(const struct space *space));

#endif
