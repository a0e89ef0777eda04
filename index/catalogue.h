/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue: one row per record file of one namespace, in an sqlite database (WAL) beside the files. For restarts and for
 * operators' SQL; the files are the truth. The one file that knows sqlite is catalogue.c.
 *
 * Writes are handed to a thread of its own, which commits them in batches. The queue is bounded: what does not fit is
 * dropped and the catalogue marks itself behind (meta.behind = 1), and so it does when a write fails or its journal is
 * longer than it may be since somebody reads for long. It is never on the path of a put, a get or a look-up: all calls but
 * open, load, flush and close return at once, and nothing that goes wrong here is an error of anybody else's.
 *
 * *Behind* means that a row may say of its file what is no longer so: changes are missing, any of them. A catalogue that was not
 * closed is behind, since a death loses up to a batch and the queue. What a restart does with it: docs/catalogue.md, "Behind";
 * files without a row and rows without a file are told by names at every restart and are no matter of it.
 *
 * Rows are appended with growing ids and never indexed by their keys. Schema and operators' SQL: docs/catalogue.md. The
 * database's file is not to be opened in this process but through sqlite: closing a descriptor of it drops sqlite's locks.
 */
#ifndef PREFIXFS_INDEX_CATALOGUE_H
#define PREFIXFS_INDEX_CATALOGUE_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"
#include "store/base/why.h"

struct catalogue;

#define CATALOGUE_QUEUE 16384u             /* changes that wait */
#define CATALOGUE_QUEUE_BYTES (64u << 20)  /* their memory */
#define CATALOGUE_WAL_MOST (256u << 20)    /* bytes of journal; over it changes are dropped */

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
	uint32_t pages, file_pages; /* that it has; that it was written with: says where everything lies, `absent` too */
	uint32_t flags, whole_count; /* flags: CATALOGUE_* */
};
/* The first three are RECORD_FILE_ROOT, _WHOLE and _ROW (store/record_file.h). The bits of `absent` for row columns lie where the
 * pages that the file was written with put them; without CATALOGUE_ROW they mean nothing. */
#define CATALOGUE_ROOT 0x1u
#define CATALOGUE_WHOLE 0x2u
#define CATALOGUE_ROW 0x4u
#define CATALOGUE_PINNED 0x100u

/* Opens or makes @path. What is damaged, or of another namespace or version, is renamed to <path>.damaged (an older one goes) and made
 * anew: 0, *fresh is set, as when there was none, and @why has the sentence with EINVAL. *behind: see above; never with *fresh.
 * Negative errno: ENOENT, ENOTDIR, EACCES, EROFS, ENOSPC, EIO, ENOTSUP (a file system without shared locks), EBUSY, ENOMEM, with a
 * sentence. Blocks. */
int catalogue_open(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], struct catalogue **ret,
		   bool *fresh, bool *behind, struct why *why);
/* Calls @row for every row, newest first: in descending order of ids; what it points to is valid during the call. @row returns
 * false to stop. Only before the first change is queued (EBUSY). EIO, ENOMEM; EBADMSG: it is damaged after all, was
 * renamed like above and made anew: it is fresh now, and the rows that @row was given are to be forgotten. Blocks. */
int catalogue_load(struct catalogue *catalogue, bool (*row)(void *context, const struct catalogue_row *row), void *context,
		   struct why *why);
/* The rows with ids below @below of a catalogue that stays as it is (its journal's index may appear beside it): as catalogue_load. Also of
 * one that is open, in any thread: what is committed. While it lasts the journal only grows.
 * ENOENT: there is none; EINVAL: it is damaged, another's or of another version; the errors of catalogue_open. Blocks. */
int catalogue_look(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], uint64_t below,
		   bool (*row)(void *context, const struct catalogue_row *row), void *context, struct why *why);
/* A restart has compared every row with its file and queued what differs: nothing is behind from here on but what is dropped.
 * At once. catalogue_clear says it too. */
void catalogue_mended(struct catalogue *catalogue);
/* Writes what is queued, as long as @patience_ns allows; then a write under way is interrupted and the rest is dropped. Marks it
 * closed, and behind if anything was dropped since it was opened, mended or cleared. NULL is let pass. Leaves NULL. Blocks. */
void catalogue_close(struct catalogue **catalogue, uint64_t patience_ns);

/* For tests, before the first change: other limits than CATALOGUE_QUEUE and CATALOGUE_WAL_MOST. */
void catalogue_limit(struct catalogue *catalogue, uint32_t queue, uint64_t wal_bytes);

uint64_t catalogue_next_id(struct catalogue *catalogue); /* any thread; behind the largest there was when it was opened */
/* None below @least is given out from here on: a predecessor gave out some that the database has not heard of. Any thread. */
void catalogue_ids_from(struct catalogue *catalogue, uint64_t least);
/* Any thread, any lock but a leaf; copies what it is given (one allocation). False: dropped, the catalogue is behind. Who adds
 * many at once flushes every CATALOGUE_QUEUE / 2 or so. A row of an id that is there replaces it. */
bool catalogue_add(struct catalogue *catalogue, const struct catalogue_row *row);
bool catalogue_remove(struct catalogue *catalogue, uint64_t id);
/* It has @pages pages now, no more than before, and ends at @endpoint; without @row, or with fewer pages, its row is gone. */
bool catalogue_trim(struct catalogue *catalogue, uint64_t id, uint32_t pages, uint64_t consumed, const struct key *endpoint, bool row,
		    uint64_t file_bytes);
bool catalogue_pin(struct catalogue *catalogue, uint64_t id, bool pinned);
bool catalogue_clear(struct catalogue *catalogue); /* all rows; what was dropped before is forgotten, it is not behind */
/* It lacks something that it was never told, and nothing but a clear mends that. Any thread, any lock but a leaf; at once. The
 * database says it with the first change or when it is closed, whichever is first, and at once after that. */
void catalogue_behind(struct catalogue *catalogue);
/* Everything queued before is committed; false: @patience_ns is over, or some of it was dropped meanwhile. Blocks; no lock held. */
bool catalogue_flush(struct catalogue *catalogue, uint64_t patience_ns);

struct catalogue_report {
	uint64_t rows, queued, dropped, written; /* rows: committed ones; the others: changes that wait, and since it was opened */
	uint64_t wal_bytes, memory_bytes;        /* as of the last write; queue and sqlite's cache */
	bool behind, failed;                     /* failed: the last write did, and changes are dropped until one succeeds */
	char error[160];                         /* the last one, or empty */
};
/* Any thread, at once. */
void catalogue_report(struct catalogue *catalogue, struct catalogue_report *ret);

#endif
