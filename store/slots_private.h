/* SPDX-License-Identifier: Apache-2.0
 *
 * What grants and slots are kept in. Private to store/slots*.c; all of it under the guard.
 *
 * How the order "fullest, lowest first" is kept: every (class, share) has LEVELS bit arrays over grant ids, one for each
 * sixty-fourth of fullness, so a take or give moves a bit only when it crosses a level, and the best grant that a session
 * may use is the lowest bit of the first level that the session's own bit array leaves over.
 *
 * How failing searches for neighbours are not repeated: run_bound[id] is never less than the longest free run of the
 * grant, and pair.run_bound never less than any of its grants'. A search that fails lowers them to what it saw, a grant
 * that fills up has 0, and a give raises them to the run it made. One search looks at SEARCH_WORDS of bits (10 us) before
 * it gives up: the next one finds the bounds lower and comes further.
 */
#ifndef PREFIXFS_STORE_SLOTS_PRIVATE_H
#define PREFIXFS_STORE_SLOTS_PRIVATE_H

#include <assert.h>

#include "store/slots.h"

#define LEVELS 64u
#define MEMBERS LEVELS     /* one bit array more: all ready grants of the pair that are not closed */
#define NO_LEVEL 0xffu     /* of a grant without a free slot */
#define RUN_WORDS 2u       /* words that a give looks at on either side of its own */
#define SEARCH_WORDS 1024u /* words of bits that a search begins no further grant after */
#define SLOTS_MAGIC 0x534c4f54u

/* grant_entry.used. A grant that was being populated when its process died is so again for the next one. */
enum {
	GRANT_UNUSED,
	GRANT_POPULATING,
	GRANT_READY
};

/* All under the guard. */
struct grant {
	uint64_t *free; /* bit = slot is free */
	uint64_t offset;
	uint64_t slot_bytes;
	uint32_t first_entry;
	uint32_t slots;
	uint32_t free_count;
	uint32_t level_min, level_max; /* free counts of its level */
	uint32_t first_word;           /* no free bit in the words before */
	uint16_t pair;
	uint8_t level;
	bool ready;
	bool closed; /* ready, but in no order and not counted as free */
	uint32_t node;
	uint64_t length; /* 0 = no grant */
};

/* One (class, share). */
struct pair {
	uint64_t slot_bytes, payload_bytes; /* of one value; constant */
	uint64_t grant_bytes;               /* constant */
	uint32_t grant_slots;               /* constant */
	uint32_t class_index, share;        /* constant */
	uint32_t run_bound;
	uint64_t slots, free; /* of ready grants; of closed ones the taken slots alone */
	uint32_t open_grants; /* ready and not closed */
	uint64_t levels;      /* bit l = level_grants[l] > 0 */
	uint32_t level_grants[LEVELS];
	uint64_t *bits; /* [LEVELS + 1][words] */
};

struct slots {
	uint32_t magic;
	struct slots_config config;
	uint32_t grant_capacity, words; /* constant */
	uint32_t pairs;                 /* constant */
	uint32_t first_pair[LAYOUT_MAX_CLASSES];
	uint32_t grant_limit; /* 1 + highest id ever used */
	uint32_t grant_count;
	uint64_t version, granted_bytes;
	uint64_t kept;        /* slots taken and used by nobody */
	struct grant *grants; /* [grant_capacity] */
	uint32_t *run_bound;  /* [grant_capacity] */
	uint16_t *grant_of;   /* [entry_limit / TABLES_GRANT_ENTRIES] 1 + id, 0 = none */
	uint32_t *by_offset;  /* [grant_count] ids */
	uint32_t *by_entry;   /* [grant_count] ids */
	struct pair *pair;    /* [pairs] */
	uint64_t *bits;       /* [pairs][LEVELS + 1][words] */
};

static inline uint64_t align_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline struct pair *pair_at(const struct slots *s, uint32_t class_index, uint32_t share)
{
	assert(class_index < s->config.layout->classes);
	assert(share < s->config.layout->class[class_index].shares);
	return &s->pair[s->first_pair[class_index] + share];
}

static inline uint64_t *level_bits(const struct slots *s, const struct pair *p, uint32_t level)
{
	return p->bits + (size_t)level * s->words;
}

static inline uint32_t grant_words(const struct grant *g)
{
	return (g->slots + 63) / 64;
}

static inline uint32_t grant_entry_end(const struct grant *g)
{
	return g->first_entry + (uint32_t)align_up(g->slots, TABLES_GRANT_ENTRIES);
}

/* ---- slots.c -------------------------------------------------------------------------------------------------- */

/* Enters a grant, all of whose slots are free, into everything but the order and the tables. */
int slots_adopt_grant(struct slots *s, uint32_t id, const struct grant *cut, uint32_t at_offset, uint32_t at_entry);
/* The grant enters the order. */
void slots_open_grant(struct slots *s, uint32_t id);
/* The lowest gap of @count entries between the grants; false: none. *ret_at is its place in by_entry. */
bool slots_find_entries(const struct slots *s, uint32_t count, uint32_t *ret_first, uint32_t *ret_at);
void slots_sorted_insert(uint32_t *ids, uint32_t count, uint32_t at, uint32_t id);
void slots_sorted_remove(uint32_t *ids, uint32_t count, uint32_t id);
/* A bitmap of @slots free ones, NULL without memory. */
uint64_t *slots_free_bitmap(uint32_t slots);

/* ---- slots_take.c --------------------------------------------------------------------------------------------- */

void slots_level_remove(const struct slots *s, struct pair *p, struct grant *g, uint32_t id);
/* Moves a ready grant to the level of its free count. */
void slots_level_place(const struct slots *s, struct pair *p, struct grant *g, uint32_t id);
/* Start of the lowest run of at least @count free slots; SLOTS_NONE and the longest run's length if there is none. */
uint32_t slots_find_run(const struct grant *g, uint32_t count, uint32_t *ret_longest);

#endif
