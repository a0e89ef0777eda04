/* SPDX-License-Identifier: Apache-2.0
 *
 * What a restart does beside filling the index, each in threads of its own that end with it (restart.c): the listing of the folders,
 * the reading of the catalogue's rows, the first touch of memory. Private to restart*.c.
 */
#ifndef PREFIXFS_STORE_RESTART_PRIVATE_H
#define PREFIXFS_STORE_RESTART_PRIVATE_H

#include "store/tiering.h"

/* ---- restart_list.c: what the folders hold ------------------------------------------------------------------------- */

struct listed {
	struct key endpoint;
	uint64_t consumed;
	uint64_t bytes; /* 0: not asked */
	int64_t mtime_s;
	bool seen; /* the catalogue has it */
};

struct listing {
	struct listed *files;
	uint32_t count;
	uint32_t *table; /* hash of endpoints -> number + 1 */
	uint32_t mask;
	int64_t newest_s; /* time of the file that was written last, where lengths were asked for */
};

#define LISTING_THREADS_MOST 8u

/* All files of @dir by name, @sizes: with their lengths; what writes that a death ended have left goes. Several threads, as many as
 * there are processors. 0, ENOMEM or the errno of a folder, negative, with a sentence. The caller ends it with listing_free in any case.
 * Without a lock; blocks. */
int listing_make(struct disk_dir *dir, bool sizes, struct listing *ret, struct why *why);
struct listed *listing_find(const struct listing *listing, uint64_t consumed, const struct key *endpoint); /* or NULL */
void listing_free(struct listing *listing);

/* ---- restart_rows.c: the catalogue's rows, read ahead ---------------------------------------------------------------- */

struct rows;

#define ROWS_AHEAD_BYTES (64ull << 20) /* of rows that wait */

/* Begins to read the rows of @catalogue in a thread, newest first. 0, or negative with a sentence: ENOMEM, EAGAIN (no thread). */
int rows_begin(struct catalogue *catalogue, struct rows **ret, struct why *why);
#define ROWS_AHEAD 4u /* how much later a row comes that is shown ahead */
/* Calls @row in this thread as catalogue_load does, and returns what it returns; @ahead: a row that comes soon, or NULL. Once. Blocks. */
int rows_each(struct rows *rows, bool (*row)(void *context, const struct catalogue_row *row, const struct catalogue_row *ahead),
	      void *context, struct why *why);
/* Ends the reading, also half way. NULL is let pass; leaves NULL. Blocks for a row's reading. */
void rows_end(struct rows **rows);

/* ---- restart_present.c: memory made present ahead ---------------------------------------------------------------------- */

struct present;

/* Begins to keep memory present for what is adopted next: records, their arrays, places. NULL: there is no thread, and it is
 * touched when it is used, which is no loss but of time. */
struct present *present_begin(struct tiering *t);
/* So many records have been adopted. Without a lock; at once. @present may be NULL. */
void present_moved(struct present *present, uint32_t records);
/* NULL is let pass; leaves NULL. Blocks for a page fault or two. */
void present_end(struct present **present);

#endif
