/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for the records' arrays: pieces of any number of words out of one reserved stretch.
 *
 * A buddy system with exact pieces: a request takes the least power-of-two run that holds it and gives the rest back at
 * once, and a freed piece is cut into aligned runs that merge with their free neighbours. So a piece wastes less than
 * one unit, and what was cut small becomes whole again. Nothing moves.
 */
#ifndef PREFIXFS_INDEX_ARENA_H
#define PREFIXFS_INDEX_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define ARENA_NONE 0xffffffffu
#define ARENA_ORDERS 28u /* a bit each in a word */
#define ARENA_UNIT_WORDS 2u /* of 4 bytes */

struct arena {
	uint32_t *words;
	uint64_t *free_bits[ARENA_ORDERS]; /* bit i of [k]: units i << k .. are one free run of order k */
	uint32_t free_list[ARENA_ORDERS];  /* first unit of a free run, linked through its two words */
	uint32_t free_orders;              /* bit k: free_list[k] has a run */
	uint32_t units, top;               /* reserved, and handed out at least once */
	uint32_t used;                     /* units in pieces now */
};

/* Room for @units units, at most 2^31. 0 or -ENOMEM. */
int arena_init(struct arena *arena, uint64_t units);
void arena_deinit(struct arena *arena);
size_t arena_memory_bytes(const struct arena *arena);

/* First unit of a piece of @words > 0 words with any content, or ARENA_NONE. */
uint32_t arena_alloc(struct arena *arena, uint32_t words);
void arena_free(struct arena *arena, uint32_t unit, uint32_t words); /* the same number of words */
/* The first @keep words of a piece of @words stay. */
void arena_shrink(struct arena *arena, uint32_t unit, uint32_t words, uint32_t keep);

static inline uint32_t *arena_at(const struct arena *arena, uint32_t unit)
{
	return arena->words + (size_t)unit * ARENA_UNIT_WORDS;
}

#endif
