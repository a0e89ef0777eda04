/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that the mount has read from disk and checked, kept a moment: a reader of a file comes in small steps, and each value is read
 * once for all of them. Private to store/.
 *
 * A *chunk* is what one read brought. A value is known by its place, whose bytes never change while the place is a value's; what ends a
 * place (tiering_place_give) takes it out of its chunk, and a place is in one chunk at most. So what viewed_find answers is the value that
 * the index has at that place now, whatever was read meanwhile.
 *
 *   READING   a reader has it, who ends it with viewed_keep or viewed_drop; others that want its values wait for that
 *   KEPT      has bytes; goes when it was not looked at for VIEWED_NS, for newer ones, and with the tier
 *
 * All of it under the space lock. Its bytes may be read without, by who has a use (viewed_use): they do not change and stay until the use
 * ends. Bytes kept: VIEWED_BYTES for the whole host, VIEWED_CHUNKS chunks for a namespace; what is more is not kept.
 */
#ifndef PREFIXFS_STORE_VIEWED_H
#define PREFIXFS_STORE_VIEWED_H

#include "store/tiering.h"

#define VIEWED_BYTES (64ull << 20)
#define VIEWED_CHUNKS 16u
#define VIEWED_VALUES 64u
#define VIEWED_NS 2000000000ull

struct viewed_chunk {
	char *memory; /* NULL: it is being read */
	uint64_t bytes;
	uint64_t used_ns; /* when it was looked at last */
	struct viewed_chunk *next; /* of the spent ones */
	uint32_t uses;
	uint32_t count;
	uint32_t place[VIEWED_VALUES]; /* INDEX_NONE: not there, or gone */
	uint64_t from[VIEWED_VALUES];  /* offset in memory */
};

struct viewed {
	struct viewed_chunk *chunk[VIEWED_CHUNKS]; /* NULL: none */
	struct viewed_chunk *spent; /* out of it, to be freed without the lock */
	uint64_t *is;           /* bitmap [places]: it is in a chunk */
	struct lock_cond ended; /* told when a chunk is not READING any more */
};

int viewed_new(struct tiering *t, struct why *why); /* 0, or -ENOMEM */
void viewed_free(struct tiering *t);                /* nobody has a chunk */

static inline bool viewed_is(const struct tiering *t, uint32_t place)
{
	return t->viewed->is[(place - t->place_first) / 64] >> (place - t->place_first) % 64 & 1;
}

/* The chunk that @place is in, or is to be in (memory is NULL); *from: where. NULL: none. */
struct viewed_chunk *viewed_find(struct tiering *t, uint32_t place, uint64_t *from);
void viewed_use(struct viewed_chunk *chunk);
void viewed_unuse(struct viewed_chunk *chunk);
/* Waits for the end of a chunk that is READING: drops the lock, which is the only one held, meanwhile. False: @until_ns has passed. */
bool viewed_wait(struct tiering *t, uint64_t until_ns);

/* A chunk of its own for a read of @count values, at most VIEWED_VALUES, which lie at @place one after another. NULL: the read goes
 * without: all are in use, or there is no memory. */
struct viewed_chunk *viewed_begin(struct tiering *t, const uint32_t *place, uint32_t count);
/* The value @i of a chunk that is READING is not to be kept: it was not read well. */
void viewed_bad(struct tiering *t, struct viewed_chunk *chunk, uint32_t i);
/* It is KEPT, with @memory (from malloc or its like), which is the chunk's from now on. False: there is no room: it is dropped, and
 * the memory is the caller's. */
bool viewed_keep(struct tiering *t, struct viewed_chunk *chunk, char *memory, uint64_t bytes);
void viewed_drop(struct tiering *t, struct viewed_chunk *chunk); /* READING: nothing came of it */

void viewed_gone(struct tiering *t, uint32_t place); /* viewed_is: it ends */
/* What was not looked at for VIEWED_NS goes. Without the lock. */
void viewed_trim(struct tiering *t, uint64_t now_ns);
/* Frees what has gone: whoever began a chunk calls it afterwards. Without the lock. */
void viewed_free_spent(struct tiering *t);
uint64_t viewed_bytes(const struct tiering *t);

#endif
