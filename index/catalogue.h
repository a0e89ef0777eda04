/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue: one row per record file of one namespace, in an sqlite database (WAL) beside the files. For restarts and for
 * operators' SQL; the files are the truth. The one file that knows sqlite is catalogue.c.
 *
 * Writes are handed to a thread of its own, which commits them in batches. The queue is bounded: what does not fit is
 * dropped and the catalogue marks itself behind (meta.behind = 1), and so it does when a write fails or its journal is
 * longer than it may be since somebody reads for long: a restart then lists the files it does not know. It is never on the
 * path of a put, a get or a look-up: all calls but open, load and close return at once.
 *
 * Rows are appended with growing ids and never indexed by their keys. Schema: docs/on-disk-format.md, "The catalogue".
 */
#ifndef PREFIXFS_INDEX_CATALOGUE_H
#define PREFIXFS_INDEX_CATALOGUE_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"
#include "store/base/why.h"

struct catalogue;

#define CATALOGUE_QUEUE 16384u          /* changes that wait */
#define CATALOGUE_WAL_MOST (256u << 20) /* bytes of journal; over it changes are dropped */

/* One record file. */
struct catalogue_row {
	uint64_t id;         /* given out by catalogue_next_id, growing; never 0 */
	uint64_t nonce;      /* of the file's header */
	uint64_t start, consumed; /* tokens before its first page; at its endpoint */
	uint64_t generation;
	uint64_t file_bytes;
	uint64_t whole_id;
	int64_t created_s, written_s;
	struct key endpoint, parent;
	const struct key *keys; /* [pages] */
	const uint8_t *absent;  /* bitmap over [pages][page columns], then [row columns]: set = not in the file; NULL = none is */
	uint32_t absent_bytes;
	const uint16_t *alias;  /* [page columns + row columns], or NULL = each is stored */
	uint32_t alias_count;
	uint32_t pages, flags, whole_count; /* flags: enum record_file_flags, CATALOGUE_PINNED */
};
#define CATALOGUE_PINNED 0x100u

/* Opens or makes @path. EINVAL: it is damaged, or of another namespace or version: it is renamed to <path>.damaged and made
 * anew, and *ret_fresh is set, as when there was none. Blocks. *behind: it may lack files or have too many. */
int catalogue_open(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], struct catalogue **ret,
		   bool *fresh, bool *behind, struct why *why);
/* Calls @row for every row in order of ids; what it points to is valid during the call. @row returns false to stop. EIO, ENOMEM.
 * Only before the first change is queued. Blocks. */
int catalogue_load(struct catalogue *catalogue, bool (*row)(void *context, const struct catalogue_row *row), void *context,
		   struct why *why);
/* Writes what is queued, as long as @patience_ns allows; marks a catalogue that lacks nothing as not behind. Leaves NULL. */
void catalogue_close(struct catalogue **catalogue, uint64_t patience_ns);

uint64_t catalogue_next_id(struct catalogue *catalogue); /* any thread */
/* Any thread, any lock but a leaf; copies what it is given (one allocation). False: dropped, the catalogue is behind. */
bool catalogue_add(struct catalogue *catalogue, const struct catalogue_row *row);
bool catalogue_remove(struct catalogue *catalogue, uint64_t id);
/* It has @pages pages now and ends at @endpoint; without @row its row is gone. */
bool catalogue_trim(struct catalogue *catalogue, uint64_t id, uint32_t pages, uint64_t consumed, const struct key *endpoint, bool row,
		    uint64_t file_bytes);
bool catalogue_pin(struct catalogue *catalogue, uint64_t id, bool pinned);
bool catalogue_clear(struct catalogue *catalogue); /* all rows */
void catalogue_behind(struct catalogue *catalogue); /* it lacks something that was never told it */
/* Everything queued before is committed, or @patience_ns is over: false. */
bool catalogue_flush(struct catalogue *catalogue, uint64_t patience_ns);

struct catalogue_report {
	uint64_t rows, queued, dropped, written; /* rows: estimated by what was added and removed */
	uint64_t wal_bytes, memory_bytes;
	bool behind, failed;
	char error[160]; /* the last one, or empty */
};
void catalogue_report(struct catalogue *catalogue, struct catalogue_report *ret);

#endif
