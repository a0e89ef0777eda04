/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of one record's file that are read into memory of their own: through the checks of every read, without a slot; where
 * the values are does not change. For the mount's files (load_file.c) and for GET_INTO (into.c). Private to store/.
 *
 * The reader has it, but for the time from own_read_give to the end: then the engine has the job. A reader that gives up before that
 * leaves it to the engine's end, which frees it. The reader keeps the record pinned as long as it has it.
 */
#ifndef PREFIXFS_STORE_LOAD_OWN_H
#define PREFIXFS_STORE_LOAD_OWN_H

#include "store/load_private.h"

#define OWN_VALUES 256u /* in stays of at most INDEX_STEP_KEYS */

struct own_read {
	struct disk_read read; /* first; count: of values */
	struct tiering *tiering;
	struct lock lock; /* LOCK_QUEUE: ended, abandoned */
	struct lock_cond cond;
	bool ended, abandoned;
	uint64_t file;   /* its id */
	uint32_t record; /* whose */
	char *memory;    /* 4 KiB-aligned; freed with it */
	uint64_t bytes;  /* of it, that the values take: slots, one after another */
	uint32_t place[OWN_VALUES];
	struct key keys[OWN_VALUES];
	struct disk_read_value values[OWN_VALUES]; /* to: offset in memory until it is given for the first time */
};

struct own_read *own_read_new(struct tiering *tiering); /* NULL: no memory */
void own_read_free(struct own_read *read);

/* Under the space lock: the value at @page, @column, which is at @place; in ascending order. There is room. */
void own_read_add(struct own_read *read, uint32_t place, uint32_t page, uint32_t column, uint64_t slot_bytes);
/* Under the space lock: memory is there. -EIO: @record has no file that is read any more. */
int own_read_give(struct own_read *read, uint32_t record);
/* Without the lock: waits until @until_ns; has it ended? */
bool own_read_wait(struct own_read *read, uint64_t until_ns);
/* Gives up: it is not the caller's any more. */
void own_read_abandon(struct own_read *read);

/* When it has ended: of value @i, 0 or a negative errno; the disk's error, or 0. */
int own_read_error(const struct own_read *read, uint32_t i);
int own_read_disk_error(const struct own_read *read);
/* What could not be read goes, if it is still where it was read from; the file, when it is not to be used any more; and the tier
 * hears of the disk. In stays under the space lock, which is not held. */
void own_read_settle(struct own_read *read);

#endif
