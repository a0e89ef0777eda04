/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reads of values are kept in. Private to store/load*.c; all of it under the space lock.
 *
 *   state    where it is                      goes on by
 *   FREE     the pool                         load_want -> QUEUED
 *   QUEUED   the queue of this stay           load_submit -> GIVEN, or ENDED
 *   GIVEN    a job of the engine              the job's end -> ENDED, or QUEUED when it is read once more. A job of a file, or a copy
 *                                             of a slot that has the same bytes (tiering_alike) and is held by the load
 *   ENDED    nowhere, until the last wanter   load_ask, load_detach -> FREE
 *            has looked at it
 *
 * From QUEUED to its end a load has a place, which knows it (tiering.loads_of), and a slot, which is ENTRY_QUARANTINED. One whose place has
 * gone is an orphan: its place is INDEX_NONE.
 */
#ifndef PREFIXFS_STORE_LOAD_PRIVATE_H
#define PREFIXFS_STORE_LOAD_PRIVATE_H

#include "store/tiering.h"

#define LOADS_MOST 65536u
#define LOAD_TRIES 2u         /* reads of one value that the disk may answer with an error */
#define LOAD_JOB_VALUES 1024u /* of one job */

enum load_step { LOAD_FREE, LOAD_QUEUED, LOAD_GIVEN, LOAD_ENDED };

struct load {
	struct key key;      /* of the value's page */
	struct load_job *job; /* while GIVEN */
	uint32_t generation;
	uint32_t next;       /* in the pool's list, in the queue */
	uint32_t place, slot; /* entries; INDEX_NONE: gone, given back */
	uint32_t from;       /* slot that it is copied from, held; INDEX_NONE: it is read */
	uint32_t record;     /* whose file it is read from */
	uint32_t wanters;
	uint32_t holders;    /* of them, those whose name says hold */
	uint32_t column;
	uint16_t page;
	uint8_t class_index, share;
	uint8_t step;        /* enum load_step */
	uint8_t end;         /* enum load_state, when ENDED */
	uint8_t errors;      /* of the disk */
};

struct loads {
	struct load *at; /* [1 + LOADS_MOST]; number 0 is none */
	uint32_t top;    /* never used from here on */
	uint32_t list;   /* used once, through next; 0 = none */
	uint32_t used;
	uint32_t first, last; /* of the queue; 0 = empty */
	uint64_t bytes;  /* slots that are read into */
};

/* Several values of one file, or of one record from other slots. */
struct load_job {
	struct disk_read read; /* first; values[].context: the load's number */
	struct tiering *tiering;
	uint32_t record;
	uint64_t file; /* id of its file */
	uint32_t wanted; /* loads of it that somebody wants and that have their place */
	struct key *keys;
	struct disk_read_value values[];
};

static inline uint32_t load_number(const struct loads *l, const struct load *load)
{
	return (uint32_t)(load - l->at);
}

/* Does anybody want it, and can it be had? */
static inline bool load_counts(const struct load *load)
{
	return load->wanters && load->place != INDEX_NONE;
}

/* Ends it: its slot is given back unless it is HERE. Without a wanter it is free then. */
void load_end(struct tiering *t, struct load *load, enum load_state end);
void load_queue(struct tiering *t, struct load *load);
void load_let_go(struct tiering *t, struct load *load); /* of what it is copied from */

/* Under the lock: the committed value of @place cannot be read: it goes, and whoever watches is told. */
void load_lose(struct tiering *t, uint32_t place);
/* Is @error one of the disk, which may not come again; or does it say that what is there is not the value? Neither: it says
 * nothing about the value. */
bool load_error_of_disk(int error);
bool load_error_of_value(int error);
/* An error of a read as a whole: is the file not to be used any more? */
bool load_error_of_file(int error);
/* Under the lock: a read has ended. Of one that tells something about the disk its speed is noted. */
void load_note_rate(struct tiering *t, const struct disk_read *read);
/* What of a record is in its file @id alone goes, what is in memory is to be written. In bounded stays; without the lock. */
void load_lose_file(struct tiering *t, uint32_t record, uint64_t id);

#endif
