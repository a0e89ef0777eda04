/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the two halves of the catalogue: catalogue_queue.c has the changes that wait and the thread, catalogue.c the database.
 */
#ifndef PREFIXFS_INDEX_CATALOGUE_PRIVATE_H
#define PREFIXFS_INDEX_CATALOGUE_PRIVATE_H

#include "index/catalogue.h"

enum change_kind { CHANGE_ADD, CHANGE_REMOVE, CHANGE_TRIM, CHANGE_PIN, CHANGE_CLEAR };

/* One change that waits: one allocation, the row's arrays behind it. */
struct change {
	struct change *next;
	uint64_t bytes; /* of the allocation */
	enum change_kind kind;
	/* ADD: all of it. REMOVE: id. TRIM: id, pages, consumed, endpoint, file_bytes, CATALOGUE_ROW. PIN: id, CATALOGUE_PINNED. */
	struct catalogue_row row;
};

/* The database. Not thread-safe: it is used by one thread at a time. All calls block but those that say otherwise. */
struct catalogue_db;

/* Like catalogue_open. */
int catalogue_db_open(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], struct catalogue_db **ret, bool *fresh,
		      bool *behind, struct why *why);
int catalogue_db_load(struct catalogue_db *db, bool (*row)(void *context, const struct catalogue_row *row), void *context,
		      struct why *why);
/* Marks it closed, and behind or not, unless it is damaged: then it is set aside. Leaves NULL. */
void catalogue_db_close(struct catalogue_db **db, bool behind);
void catalogue_db_interrupt(struct catalogue_db *db); /* any thread, at once: the write under way fails */

enum catalogue_db_result {
	CATALOGUE_DB_DONE,    /* committed */
	CATALOGUE_DB_BUSY,    /* somebody else writes: nothing has happened, try again */
	CATALOGUE_DB_JOURNAL, /* the journal is too long: nothing was written but the mark */
	CATALOGUE_DB_FAILED,  /* nothing was written; later it may go */
	CATALOGUE_DB_DAMAGED, /* nothing was written, and nothing will be */
};
/* @first and what follows it, perhaps nothing, in one transaction that also says whether it is behind. @why: unless it is done. */
enum catalogue_db_result catalogue_db_write(struct catalogue_db *db, const struct change *first, bool behind, uint64_t wal_most,
					    struct why *why);

/* As of the last call above; these do not block. */
struct catalogue_db_state {
	uint64_t rows, next_id, wal_bytes, memory_bytes;
	bool behind; /* what the database says */
};
void catalogue_db_state(const struct catalogue_db *db, struct catalogue_db_state *ret);

#endif
