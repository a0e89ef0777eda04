/* SPDX-License-Identifier: Apache-2.0
 *
 * What handles and get plans are made of. Private to store/get*.c.
 *
 * Both belong to the request that marked them busy. Their pins are runs: one pin of a record covers the consecutive keys
 * that lie in it. A transfer moves the pins of its range from the handle to the plan; a record that reaches beyond the
 * range gets a second pin.
 */
#ifndef PREFIXFS_STORE_GET_PRIVATE_H
#define PREFIXFS_STORE_GET_PRIVATE_H

#include "store/get.h"
#include "store/session_private.h"
#include "store/space.h"

struct run {
	uint32_t record;
	uint32_t first; /* key */
	uint32_t end;   /* key behind the last */
};

struct row_pin {
	uint32_t key; /* the row stands at the end of this key's page */
	uint32_t record;
};

struct handle {
	struct holding holding;
	uint64_t start;         /* tokens before key 0 */
	uint32_t keys;
	uint32_t first;         /* first key that is required: below it the caller has everything */
	uint32_t intact;        /* keys that hit from 0 on, the not required ones included */
	uint32_t class_mask;
	uint32_t columns;       /* page classes of the mask */
	uint8_t class_of[LAYOUT_MAX_CLASSES]; /* [column] */
	uint32_t boundary;      /* key whose end is the boundary, INDEX_NONE = not chosen */
	uint32_t next;          /* key that the next range may begin at */
	uint32_t run_at;        /* runs before it were moved to plans */
	struct vec32 entries;   /* [key - first][column], INDEX_NONE where `every` has no value */
	struct vec32 hits;      /* bitmap over keys */
	struct vec32 restorable; /* bitmap over keys: the end of its page is restorable */
	struct vec32 grouped;   /* restorable, and on a group boundary */
	struct run *runs;
	uint32_t run_count, run_capacity;
	struct row_pin *rows;
	uint32_t row_count, row_capacity;
};

struct get_plan {
	struct holding holding;
	struct vec32 pins;
};

static inline bool bit_get(const struct vec32 *bits, uint32_t i)
{
	return bits->at[i / 32] >> (i % 32) & 1;
}

static inline void bit_set(struct vec32 *bits, uint32_t i)
{
	bits->at[i / 32] |= 1u << (i % 32);
}

/* Gives the pins of runs [from, run_count) that begin at or behind @key back, and shortens the list; the same for rows.
 * In steps under the lock, which is not held. Returns the keys that were released. */
uint32_t handle_release_behind(struct session *session, struct handle *handle, uint32_t key);
/* Gives every pin back. */
void handle_release_all(struct session *session, struct handle *handle);
/* Ends a handle that was taken out of the table: no pin is left; its memory is kept or freed. */
void handle_retire(struct session *session, struct handle *handle);

#endif
