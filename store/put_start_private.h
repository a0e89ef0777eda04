/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two halves of PUT_START share: its way through keys and groups is put.c, the answer for each value put_values.c. Private to them.
 *
 * All functions are called under the space lock.
 */
#ifndef PREFIXFS_STORE_PUT_START_PRIVATE_H
#define PREFIXFS_STORE_PUT_START_PRIVATE_H

#include "store/put_private.h"

enum { CHUNK_DONE, CHUNK_NOROOM, CHUNK_NOPAGES };

/* One stay under the lock. */
struct chunk {
	struct put_start *call;
	struct space *space;
	struct put_plan *plan;
	const struct layout *layout;
	uint32_t from, count;      /* keys of the call */
	uint32_t new_values;
	uint32_t unknown;          /* keys that have no place yet: how many slots are made free at a time */
	uint32_t pinned_to;        /* keys before this one are pinned by the plan */
	uint32_t held;             /* records pinned for the stay */
	bool known, holds;         /* some key has a place; what has one is held */
	bool nopages;              /* the group that is refused lacks the page that its row is to stand at */
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];
	struct index_hit hits[INDEX_STEP_KEYS];
	uint32_t hold[INDEX_STEP_KEYS];
	uint64_t seen[16];         /* bits, by hash: a key was named in this chunk, so look again before naming another */
};

/* All answers for key @i of the chunk, which is number @in_group of its group. DONE or NOROOM: the group is to be undone. */
int put_key(struct chunk *k, const struct put_group *g, uint32_t i, uint32_t in_group);
/* Likewise for the row of the group at its endpoint, after its pages; or NOPAGES. */
int put_row(struct chunk *k, const struct put_group *g);
/* The record that is being filled gets no more pages. */
void put_run_close(struct chunk *k);
/* The end of the stay: what was pinned for it is not, hits are not to be used any more. */
void put_let_go(struct chunk *k);
/* The same answer for @keys keys from @first on, of all page classes. Needs no lock. */
void put_answer_keys(struct put_start *call, uint32_t first, uint32_t keys, uint64_t answer);

#endif
