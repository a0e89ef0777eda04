/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of writing behind share. Nobody else includes it.
 *
 * A write belongs to its record as long as record_file.writing names it. Whatever takes a committed value from the record, or
 * its name, lets go of that (tiering.c) and cancels the write; so when a write has ended and is still its record's, every
 * slot that it wrote holds the value that it wrote, and what came meanwhile is not among them.
 *
 *   chosen      from the order of dirty records              spill_choose.c
 *   gathered    slots held, in stays of INDEX_STEP_KEYS      spill_gather.c
 *   given       in one stay with the trims before it         spill_give
 *   written     on a worker: the file is the record's        spill_end.c
 *   clean       at once, or with the last of its WHOLE ring
 *
 * Under the space lock unless it says otherwise.
 */
#ifndef PREFIXFS_STORE_SPILL_PRIVATE_H
#define PREFIXFS_STORE_SPILL_PRIVATE_H

#include "store/host_private.h"
#include "store/tiering.h"

#define SPILL_RING_MOST 4096u /* records of a WHOLE group; of a longer one each is written by itself */

struct spill_ring;

struct spill {
	struct disk_write write; /* first */
	struct tiering *t;
	struct spill *next, *prev; /* of the tier's, under the lock */
	struct spill *next_ended;  /* of its ring's */
	struct spill_ring *ring;         /* or NULL */
	struct key *keys;
	uint64_t *values;
	uint32_t *entries;         /* slots that are held */
	uint32_t count, value_count;
	uint32_t record;
	uint64_t old_id;           /* of the file when it was begun; 0 = none */
	uint64_t bytes, begun_ns;
	bool row;
};

/* A WHOLE group that is being written: one after the other. */
struct spill_ring {
	struct tiering_name *members;
	uint32_t count, at;        /* of them, begun */
	uint32_t open;             /* begun and not ended */
	uint64_t id;
	bool failed;
	struct spill *ended;       /* written; their slots are held until all are */
};

/* Dirty records, the one that was used last first. The mover's: no lock. */
struct spill_order {
	struct spill_use {
		uint32_t tick;
		struct tiering_name name;
	} *of;
	uint32_t count, at, most;
};

struct disk_write_list {
	struct spill *first;
	struct spill_ring *ring;  /* of which more is to be begun, and nothing else before that; one at a time */
	struct spill_order order; /* while the newest are written first */
};

/* ---- spill.c ---- */

void spill_note_time(struct tiering *t, uint64_t ns); /* that a write took */

/* ---- spill_choose.c ---- */

struct tiering_name spill_name(const struct tiering *t, uint32_t record);
bool spill_alive(const struct tiering *t, struct tiering_name name);
/* May it be written now? */
bool spill_writable(struct tiering *t, uint32_t record);
/* The next record that is to be written, with all of its ring, taken from the order; INDEX_NONE. */
uint32_t spill_choose(struct tiering *t);
/* Puts the dirty records in order, when the newest are written first and the last order is used up. Without the lock, in bounded
 * stays. */
void spill_order(struct tiering *t);
/* The ring of @record, which was chosen; NULL: it is too long, or there is no memory: each of it is written by itself. */
struct spill_ring *spill_ring_new(struct tiering *t, uint32_t record);
/* The next of the ring, or INDEX_NONE: all are begun, or it has failed. */
uint32_t spill_ring_next(struct tiering *t, struct spill_ring *ring);

/* ---- spill_gather.c ---- */

struct spill *spill_make(struct tiering *t, uint32_t record, uint32_t pages); /* without the lock; NULL: no memory */
void spill_delete(struct spill *s);                                           /* any */
/* It is its record's write from here on, and the tier's. */
void spill_begin(struct tiering *t, struct spill *s);
bool spill_is_its_records(struct tiering *t, const struct spill *s);
/* Holds what is to be written. Without the lock, in bounded stays. False: the record has changed meanwhile. */
bool spill_gather(struct spill *s);

/* ---- spill_end.c ---- */

/* Hands it to the disk, with the trims before it. Without the lock. False: it is not to be written any more. */
bool spill_give(struct spill *s);
void spill_undo(struct spill *s);                /* without the lock: one that was not given */
void spill_ring_give_up(struct tiering *t);      /* without the lock: a ring of which nothing is under way and that cannot go on */
void spill_done(struct disk_job *job);           /* a worker has ended it */

#endif
