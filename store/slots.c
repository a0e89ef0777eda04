/* SPDX-License-Identifier: Apache-2.0
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
#include "store/slots.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"
#include "store/base/memory.h"

#define LEVELS 64u
#define MEMBERS LEVELS     /* one bit array more: all ready grants of the pair */
#define NO_LEVEL 0xffu     /* of a grant without a free slot */
#define RUN_WORDS 2u       /* words that a give looks at on either side of its own */
#define SEARCH_WORDS 1024u /* words of bits that a search begins no further grant after */
#define SLOTS_MAGIC 0x534c4f54u

/* grant_entry.used. A grant that was being populated when its process died is no grant to the next one. */
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
	uint64_t slots, free; /* of ready grants */
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
	struct grant *grants; /* [grant_capacity] */
	uint32_t *run_bound;  /* [grant_capacity] */
	uint16_t *grant_of;   /* [entry_limit / TABLES_GRANT_ENTRIES] 1 + id, 0 = none */
	uint32_t *by_offset;  /* [grant_count] ids */
	uint32_t *by_entry;   /* [grant_count] ids */
	struct pair *pair;    /* [pairs] */
	uint64_t *bits;       /* [pairs][LEVELS + 1][words] */
};

static uint64_t align_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* ---- sizes --------------------------------------------------------------------------------------------------- */

/* Slots of one grant: as many as fit the share of the budget that one grant may have; of a big value as few as waste
 * under a sixteenth. The grant is the least multiple of the unit that holds them. */
static uint32_t slots_per_grant(uint64_t slot_bytes, uint64_t budget_bytes, uint32_t pairs)
{
	uint64_t n = 1;

	if (slot_bytes > SLOTS_GRANT_MAX)
		return 1;
	if (slot_bytes > SLOTS_BIG_VALUE) {
		for (;; n++) {
			uint64_t total = align_up(n * slot_bytes, SLOTS_GRANT_UNIT);

			if ((total - n * slot_bytes) * 16 < total)
				return (uint32_t)n;
		}
	}
	uint64_t most = budget_bytes / (8ull * pairs);

	if (most > SLOTS_GRANT_MAX)
		most = SLOTS_GRANT_MAX;
	n = most / SLOTS_GRANT_UNIT * SLOTS_GRANT_UNIT / slot_bytes;
	n = n ? n : 1;
	return (uint32_t)(align_up(n * slot_bytes, SLOTS_GRANT_UNIT) / slot_bytes); /* a unit that is begun is used up */
}

static void pair_init(struct slots *s, uint32_t number, uint32_t class_index, uint32_t share)
{
	const struct share *sh = &s->config.layout->class[class_index].share[share];
	struct pair *p = &s->pair[number];

	p->class_index = class_index;
	p->share = share;
	p->slot_bytes = sh->slot_bytes;
	p->payload_bytes = sh->payload_bytes;
	p->grant_slots = slots_per_grant(sh->slot_bytes, s->config.budget_bytes, s->pairs);
	p->grant_bytes = align_up(p->grant_slots * p->slot_bytes, SLOTS_GRANT_UNIT);
	p->bits = s->bits + (size_t)number * (LEVELS + 1) * s->words;
}

static struct pair *pair_at(const struct slots *s, uint32_t class_index, uint32_t share)
{
	assert(class_index < s->config.layout->classes);
	assert(share < s->config.layout->class[class_index].shares);
	return &s->pair[s->first_pair[class_index] + share];
}

uint64_t slots_grant_bytes(const struct slots *s, uint32_t class_index, uint32_t share)
{
	return pair_at(s, class_index, share)->grant_bytes;
}

uint64_t slots_capacity(const struct slots *s, uint32_t class_index, uint32_t share, uint64_t budget)
{
	const struct pair *p = pair_at(s, class_index, share);
	uint64_t bytes = budget < s->config.segment_bytes ? budget : s->config.segment_bytes;
	uint64_t grants = bytes / p->grant_bytes;
	uint64_t by_entries = s->config.entry_limit / align_up(p->grant_slots, TABLES_GRANT_ENTRIES);

	if (grants > by_entries)
		grants = by_entries;
	if (grants > s->grant_capacity)
		grants = s->grant_capacity;
	return grants * p->grant_slots;
}

/* ---- making and freeing -------------------------------------------------------------------------------------- */

static size_t bits_bytes(const struct slots *s)
{
	return (size_t)s->pairs * (LEVELS + 1) * s->words * sizeof(uint64_t);
}

static size_t blocks_bytes(const struct slots *s)
{
	return (size_t)s->config.entry_limit / TABLES_GRANT_ENTRIES * sizeof(uint16_t);
}

static int check_config(const struct slots_config *c, struct why *why)
{
	if (c->entry_limit == 0 || c->entry_limit % TABLES_GRANT_ENTRIES || c->entry_limit > c->tables->entry_capacity)
		return why_set(why, EINVAL, "entries for grants: %u is no multiple of %u up to %u", c->entry_limit,
			TABLES_GRANT_ENTRIES, c->tables->entry_capacity);
	if (c->segment_bytes == 0 || c->segment_bytes % SLOTS_GRANT_UNIT)
		return why_set(why, EINVAL, "segment length %llu is no multiple of %llu",
			(unsigned long long)c->segment_bytes, SLOTS_GRANT_UNIT);
	if (c->tables->grant_capacity == 0)
		return why_set(why, EINVAL, "the tables have no room for a grant");
	return 0;
}

int slots_new(const struct slots_config *config, struct slots **ret, struct why *why)
{
	int r = check_config(config, why);

	if (r)
		return r;
	struct slots *s = calloc(1, sizeof(*s));

	if (!s)
		return why_set(why, ENOMEM, "no memory for the slots");
	s->magic = SLOTS_MAGIC;
	s->config = *config;
	s->version = 1;
	s->grant_capacity = min_u32(config->tables->grant_capacity, SLOTS_MAX_GRANTS);
	s->words = (s->grant_capacity + 63) / 64;
	for (uint32_t c = 0; c < config->layout->classes; c++) {
		s->first_pair[c] = s->pairs;
		s->pairs += config->layout->class[c].shares;
	}
	s->grants = memory_reserve(s->grant_capacity * sizeof(*s->grants), false);
	s->run_bound = memory_reserve(s->grant_capacity * sizeof(*s->run_bound), false);
	s->by_offset = memory_reserve(s->grant_capacity * sizeof(*s->by_offset), false);
	s->by_entry = memory_reserve(s->grant_capacity * sizeof(*s->by_entry), false);
	s->grant_of = memory_reserve(blocks_bytes(s), false);
	s->bits = memory_reserve(bits_bytes(s), false);
	s->pair = calloc(s->pairs, sizeof(*s->pair));
	if (!s->grants || !s->run_bound || !s->by_offset || !s->by_entry || !s->grant_of || !s->bits || !s->pair) {
		slots_free(&s);
		return why_set(why, ENOMEM, "no memory for the slots of %u grants", config->tables->grant_capacity);
	}
	for (uint32_t c = 0; c < config->layout->classes; c++)
		for (uint32_t i = 0; i < config->layout->class[c].shares; i++)
			pair_init(s, s->first_pair[c] + i, c, i);
	*ret = s;
	return 0;
}

void slots_free(struct slots **slots)
{
	struct slots *s = *slots;

	*slots = NULL;
	if (!s)
		return;
	assert(s->magic == SLOTS_MAGIC);
	s->magic = 0;
	for (uint32_t id = 0; id < s->grant_limit; id++)
		free(s->grants[id].free);
	memory_release(&s->grants, s->grant_capacity * sizeof(*s->grants));
	memory_release(&s->run_bound, s->grant_capacity * sizeof(*s->run_bound));
	memory_release(&s->by_offset, s->grant_capacity * sizeof(*s->by_offset));
	memory_release(&s->by_entry, s->grant_capacity * sizeof(*s->by_entry));
	memory_release(&s->grant_of, blocks_bytes(s));
	memory_release(&s->bits, bits_bytes(s));
	free(s->pair);
	free(s);
}

/* ---- order of grants ----------------------------------------------------------------------------------------- */

static uint64_t *level_bits(const struct slots *s, const struct pair *p, uint32_t level)
{
	return p->bits + (size_t)level * s->words;
}

static void level_remove(const struct slots *s, struct pair *p, struct grant *g, uint32_t id)
{
	if (g->level == NO_LEVEL)
		return;
	level_bits(s, p, g->level)[id / 64] &= ~(1ull << id % 64);
	if (--p->level_grants[g->level] == 0)
		p->levels &= ~(1ull << g->level);
	g->level = NO_LEVEL;
	g->level_min = g->level_max = 0;
}

/* Moves a ready grant to the level of its free count. */
static void level_place(const struct slots *s, struct pair *p, struct grant *g, uint32_t id)
{
	level_remove(s, p, g, id);
	if (g->free_count == 0)
		return;
	uint32_t level = (uint32_t)((uint64_t)(g->free_count - 1) * LEVELS / g->slots);

	g->level = (uint8_t)level;
	g->level_min = (uint32_t)(((uint64_t)level * g->slots + LEVELS - 1) / LEVELS) + 1;
	g->level_max = (uint32_t)(((uint64_t)(level + 1) * g->slots + LEVELS - 1) / LEVELS);
	level_bits(s, p, level)[id / 64] |= 1ull << id % 64;
	if (p->level_grants[level]++ == 0)
		p->levels |= 1ull << level;
}

static void level_update(const struct slots *s, struct pair *p, struct grant *g, uint32_t id)
{
	if (__builtin_expect(g->free_count < g->level_min || g->free_count > g->level_max, 0))
		level_place(s, p, g, id);
}

static uint64_t filter_word(struct slots_filter filter, uint32_t word)
{
	return filter.acknowledged ? filter.acknowledged[word] : ~0ull;
}

static bool filter_allows(struct slots_filter filter, uint32_t id)
{
	return filter_word(filter, id / 64) >> id % 64 & 1;
}

/* ---- free runs in one grant ---------------------------------------------------------------------------------- */

static uint32_t grant_words(const struct grant *g)
{
	return (g->slots + 63) / 64;
}

/* First free slot at or after @from, SLOTS_NONE if none. */
static uint32_t grant_next_free(const struct grant *g, uint32_t from)
{
	if (from >= g->slots)
		return SLOTS_NONE;
	uint32_t w = from / 64;
	uint64_t bits = g->free[w] >> from % 64;

	if (bits)
		return from + (uint32_t)__builtin_ctzll(bits);
	for (uint32_t n = grant_words(g), i = max_u32(w + 1, g->first_word); i < n; i++)
		if (g->free[i])
			return i * 64 + (uint32_t)__builtin_ctzll(g->free[i]);
	return SLOTS_NONE;
}

static uint32_t grant_first_free(struct grant *g)
{
	assert(g->free_count > 0);
	while (g->free[g->first_word] == 0)
		g->first_word++;
	return g->first_word * 64 + (uint32_t)__builtin_ctzll(g->free[g->first_word]);
}

/* Bits of @word where @count ones in a row begin, 1 <= @count <= 64. */
static uint64_t run_starts(uint64_t word, uint32_t count)
{
	for (uint32_t have = 1; have < count && word;) {
		uint32_t step = min_u32(have, count - have);

		word &= word >> step;
		have += step;
	}
	return word;
}

/* Start of the lowest run of at least @count free slots; SLOTS_NONE and the longest run's length if there is none. */
static uint32_t grant_find_run(const struct grant *g, uint32_t count, uint32_t *ret_longest)
{
	uint32_t start = 0, length = 0, longest = 0;

	for (uint32_t w = g->first_word, n = grant_words(g); w < n; w++) {
		uint64_t bits = g->free[w];
		uint32_t low = ~bits ? (uint32_t)__builtin_ctzll(~bits) : 64;

		if (length == 0)
			start = w * 64;
		length += low;
		if (length >= count)
			return start;
		if (low == 64)
			continue;
		longest = max_u32(longest, length);
		uint64_t starts = count <= 64 ? run_starts(bits, count) : 0;

		if (starts)
			return w * 64 + (uint32_t)__builtin_ctzll(starts);
		while (longest < 64 && run_starts(bits, longest + 1))
			longest++;
		length = (uint32_t)__builtin_clzll(~bits);
		start = w * 64 + 64 - length;
	}
	*ret_longest = max_u32(longest, length);
	return SLOTS_NONE;
}

/* At least the length of the free run around free @slot: exact when short, all slots when long. */
static uint32_t grant_run_around(const struct grant *g, uint32_t slot)
{
	uint32_t w = slot / 64, bit = slot % 64;
	uint64_t taken_above = bit == 63 ? 0 : ~g->free[w] >> (bit + 1);
	uint64_t taken_below = bit == 0 ? 0 : ~g->free[w] << (64 - bit);
	uint32_t above = taken_above ? (uint32_t)__builtin_ctzll(taken_above) : 63 - bit;
	uint32_t below = taken_below ? (uint32_t)__builtin_clzll(taken_below) : bit;

	if (above == 63 - bit)
		for (uint32_t i = 1; w + i < grant_words(g); i++) {
			uint64_t taken = ~g->free[w + i];

			if (i > RUN_WORDS)
				return g->slots;
			above += taken ? (uint32_t)__builtin_ctzll(taken) : 64;
			if (taken)
				break;
		}
	if (below == bit)
		for (uint32_t i = 1; i <= w; i++) {
			uint64_t taken = ~g->free[w - i];

			if (i > RUN_WORDS)
				return g->slots;
			below += taken ? (uint32_t)__builtin_clzll(taken) : 64;
			if (taken)
				break;
		}
	return below + 1 + above;
}

/* ---- grants -------------------------------------------------------------------------------------------------- */

static void sorted_insert(uint32_t *ids, uint32_t count, uint32_t at, uint32_t id)
{
	memmove(ids + at + 1, ids + at, (count - at) * sizeof(*ids));
	ids[at] = id;
}

static void sorted_remove(uint32_t *ids, uint32_t count, uint32_t id)
{
	uint32_t at = 0;

	while (at < count && ids[at] != id)
		at++;
	assert(at < count);
	memmove(ids + at, ids + at + 1, (count - at - 1) * sizeof(*ids));
}

static uint32_t grant_entry_end(const struct grant *g)
{
	return g->first_entry + (uint32_t)align_up(g->slots, TABLES_GRANT_ENTRIES);
}

/* The lowest gap of @length between the grants; false: none. *ret_at is its place in by_offset. */
static bool find_offset(const struct slots *s, uint64_t length, uint64_t *ret_offset, uint32_t *ret_at)
{
	uint64_t at = 0;
	uint32_t i = 0;

	for (; i < s->grant_count; i++) {
		const struct grant *g = &s->grants[s->by_offset[i]];

		if (g->offset - at >= length)
			break;
		at = g->offset + g->length;
	}
	*ret_offset = at;
	*ret_at = i;
	return i < s->grant_count || s->config.segment_bytes - at >= length;
}

static bool find_entries(const struct slots *s, uint32_t count, uint32_t *ret_first, uint32_t *ret_at)
{
	uint32_t at = 0, i = 0;

	for (; i < s->grant_count; i++) {
		const struct grant *g = &s->grants[s->by_entry[i]];

		if (g->first_entry - at >= count)
			break;
		at = grant_entry_end(g);
	}
	*ret_first = at;
	*ret_at = i;
	return i < s->grant_count || s->config.entry_limit - at >= count;
}

static uint32_t find_id(const struct slots *s)
{
	uint32_t id = 0;

	while (id < s->grant_limit && s->grants[id].length)
		id++;
	return id < s->grant_capacity ? id : SLOTS_NONE;
}

/* Enters a grant, all of whose slots are free, into everything but the order and the tables. */
static int grant_adopt(struct slots *s, uint32_t id, const struct grant *cut, uint32_t at_offset, uint32_t at_entry)
{
	struct grant *g = &s->grants[id];

	*g = *cut;
	g->free = malloc(grant_words(g) * sizeof(*g->free));
	if (!g->free) {
		*g = (struct grant){0};
		return -ENOMEM;
	}
	memset(g->free, 0xff, grant_words(g) * sizeof(*g->free));
	if (g->slots % 64)
		g->free[g->slots / 64] = (1ull << g->slots % 64) - 1;
	g->free_count = g->slots;
	g->level = NO_LEVEL;
	for (uint32_t e = g->first_entry; e < grant_entry_end(g); e += TABLES_GRANT_ENTRIES)
		s->grant_of[e / TABLES_GRANT_ENTRIES] = (uint16_t)(id + 1);
	sorted_insert(s->by_offset, s->grant_count, at_offset, id);
	sorted_insert(s->by_entry, s->grant_count, at_entry, id);
	s->grant_count++;
	s->grant_limit = max_u32(s->grant_limit, id + 1);
	s->granted_bytes += g->length;
	return 0;
}

/* The grant enters the order. */
static void grant_open(struct slots *s, uint32_t id)
{
	struct grant *g = &s->grants[id];
	struct pair *p = &s->pair[g->pair];

	g->ready = true;
	p->slots += g->slots;
	p->free += g->free_count;
	if (grant_find_run(g, g->slots, &s->run_bound[id]) != SLOTS_NONE)
		s->run_bound[id] = g->slots;
	p->run_bound = max_u32(p->run_bound, s->run_bound[id]);
	level_bits(s, p, MEMBERS)[id / 64] |= 1ull << id % 64;
	level_place(s, p, g, id);
	s->version++;
}

static struct grant *grant_at(const struct slots *s, uint32_t id)
{
	assert(id < s->grant_limit && s->grants[id].length);
	return &s->grants[id];
}

int slots_grant_begin(struct slots *s, uint32_t class_index, uint32_t share, uint32_t node, uint32_t *ret_id)
{
	const struct pair *p = pair_at(s, class_index, share);
	struct grant cut = {
		.slot_bytes = p->slot_bytes,
		.slots = p->grant_slots,
		.pair = (uint16_t)(p - s->pair),
		.node = node,
		.length = p->grant_bytes,
	};
	uint32_t entries = (uint32_t)align_up(cut.slots, TABLES_GRANT_ENTRIES);
	uint32_t at_offset = 0, at_entry = 0;

	lock_assert_held(s->config.guard);
	uint32_t id = find_id(s);

	if (id == SLOTS_NONE || !find_offset(s, cut.length, &cut.offset, &at_offset) ||
		!find_entries(s, entries, &cut.first_entry, &at_entry))
		return SLOTS_E_FULL;
	int r = grant_adopt(s, id, &cut, at_offset, at_entry);

	if (r)
		return r;
	struct grant_entry *e = &s->config.tables->grants[id];

	e->generation++;
	e->offset = cut.offset;
	e->length = cut.length;
	e->slot_bytes = cut.slot_bytes;
	e->first_entry = cut.first_entry;
	e->slots = cut.slots;
	e->class_index = (uint16_t)class_index;
	e->share = (uint16_t)share;
	e->node = node;
	e->used = GRANT_POPULATING;
	tables_seal_grant(s->config.tables, id);
	*ret_id = id;
	return 0;
}

void slots_grant_ready(struct slots *s, uint32_t id)
{
	lock_assert_held(s->config.guard);
	assert(!grant_at(s, id)->ready);
	s->config.tables->grants[id].used = GRANT_READY;
	tables_seal_grant(s->config.tables, id);
	grant_open(s, id);
}

void slots_grant_end(struct slots *s, uint32_t id)
{
	lock_assert_held(s->config.guard);
	struct grant *g = grant_at(s, id);
	struct pair *p = &s->pair[g->pair];

	assert(g->free_count == g->slots);
	s->config.tables->grants[id].used = GRANT_UNUSED;
	tables_seal_grant(s->config.tables, id);
	if (g->ready) {
		level_remove(s, p, g, id);
		level_bits(s, p, MEMBERS)[id / 64] &= ~(1ull << id % 64);
		p->slots -= g->slots;
		p->free -= g->free_count;
		s->version++;
	}
	for (uint32_t e = g->first_entry; e < grant_entry_end(g); e += TABLES_GRANT_ENTRIES)
		s->grant_of[e / TABLES_GRANT_ENTRIES] = 0;
	sorted_remove(s->by_offset, s->grant_count, id);
	sorted_remove(s->by_entry, s->grant_count, id);
	s->grant_count--;
	s->granted_bytes -= g->length;
	free(g->free);
	*g = (struct grant){0};
}

uint32_t slots_grant_limit(const struct slots *s)
{
	lock_assert_held(s->config.guard);
	return s->grant_limit;
}

bool slots_grant_get(const struct slots *s, uint32_t id, struct slots_grant *ret)
{
	lock_assert_held(s->config.guard);
	if (id >= s->grant_limit || !s->grants[id].length)
		return false;
	const struct grant *g = &s->grants[id];
	const struct pair *p = &s->pair[g->pair];

	*ret = (struct slots_grant){
		.offset = g->offset,
		.length = g->length,
		.slot_bytes = g->slot_bytes,
		.id = id,
		.generation = s->config.tables->grants[id].generation,
		.class_index = p->class_index,
		.share = p->share,
		.node = g->node,
		.slots = g->slots,
		.free = g->free_count,
		.first_entry = g->first_entry,
		.ready = g->ready,
	};
	return true;
}

uint64_t slots_version(const struct slots *s)
{
	lock_assert_held(s->config.guard);
	return s->version;
}

uint64_t slots_granted_bytes(const struct slots *s)
{
	lock_assert_held(s->config.guard);
	return s->granted_bytes;
}

/* ---- slots --------------------------------------------------------------------------------------------------- */

uint32_t slots_free_count(const struct slots *s, uint32_t class_index, uint32_t share, struct slots_filter filter)
{
	const struct pair *p = pair_at(s, class_index, share);
	uint64_t free_slots = p->free;

	lock_assert_held(s->config.guard);
	if (!filter.acknowledged)
		return (uint32_t)free_slots;
	/* Most sessions have acknowledged most grants: take away what they have not. */
	for (uint32_t w = 0; w * 64 < s->grant_limit; w++)
		for (uint64_t m = level_bits(s, p, MEMBERS)[w] & ~filter.acknowledged[w]; m; m &= m - 1)
			free_slots -= s->grants[w * 64 + (uint32_t)__builtin_ctzll(m)].free_count;
	return (uint32_t)free_slots;
}

/* Fullest, lowest grant with a free slot, SLOTS_NONE if none. */
static uint32_t find_any(const struct slots *s, const struct pair *p, struct slots_filter filter)
{
	uint32_t words = (s->grant_limit + 63) / 64;

	for (uint64_t levels = p->levels; levels; levels &= levels - 1) {
		const uint64_t *bits = level_bits(s, p, (uint32_t)__builtin_ctzll(levels));

		for (uint32_t w = 0; w < words; w++) {
			uint64_t m = bits[w] & filter_word(filter, w);

			if (m)
				return w * 64 + (uint32_t)__builtin_ctzll(m);
		}
	}
	return SLOTS_NONE;
}

/* The same with @count > 1 neighbouring free slots; *ret_slot is the first of them. */
static uint32_t find_run(
	struct slots *s, struct pair *p, uint32_t count, struct slots_filter filter, uint32_t *ret_slot)
{
	uint32_t words = (s->grant_limit + 63) / 64;
	uint32_t bound = 0, searched = 0;

	if (count > p->run_bound)
		return SLOTS_NONE;
	for (uint64_t levels = p->levels; levels; levels &= levels - 1) {
		const uint64_t *bits = level_bits(s, p, (uint32_t)__builtin_ctzll(levels));

		for (uint32_t w = 0; w < words; w++)
			for (uint64_t m = bits[w]; m; m &= m - 1) {
				uint32_t id = w * 64 + (uint32_t)__builtin_ctzll(m);

				if (count <= s->run_bound[id] && filter_allows(filter, id)) {
					if (searched >= SEARCH_WORDS)
						return SLOTS_NONE;
					grant_first_free(&s->grants[id]); /* moves first_word up: nothing before is looked at */
					searched += grant_words(&s->grants[id]) - s->grants[id].first_word;
					*ret_slot = grant_find_run(&s->grants[id], count, &s->run_bound[id]);
					if (*ret_slot != SLOTS_NONE)
						return id;
				}
				bound = max_u32(bound, s->run_bound[id]);
			}
	}
	p->run_bound = bound;
	return SLOTS_NONE;
}

/* Puts @cursor at the first free slot of the best grant; false: there is none. */
static bool seek_any(struct slots *s, struct slots_cursor *cursor, const struct pair *p, struct slots_filter filter)
{
	cursor->grant = find_any(s, p, filter);
	if (cursor->grant == SLOTS_NONE)
		return false;
	cursor->next = grant_first_free(&s->grants[cursor->grant]);
	return true;
}

void slots_seek(struct slots *s, struct slots_cursor *cursor, uint32_t class_index, uint32_t share, uint32_t count,
	struct slots_filter filter)
{
	struct pair *p = pair_at(s, class_index, share);

	lock_assert_held(s->config.guard);
	cursor->class_index = class_index;
	cursor->share = share;
	cursor->next = 0;
	if (count > 1) {
		cursor->grant = find_run(s, p, count, filter, &cursor->next);
		if (cursor->grant != SLOTS_NONE)
			return;
	}
	seek_any(s, cursor, p, filter);
}

uint32_t slots_take(struct slots *s, struct slots_cursor *cursor, struct slots_filter filter)
{
	struct pair *p = pair_at(s, cursor->class_index, cursor->share);
	uint32_t id = cursor->grant;
	uint32_t slot = SLOTS_NONE;

	lock_assert_held(s->config.guard);
	/* The grant may have gone, or be another's, since the cursor was set. */
	if (id < s->grant_limit && s->grants[id].ready && &s->pair[s->grants[id].pair] == p &&
		filter_allows(filter, id))
		slot = grant_next_free(&s->grants[id], cursor->next);
	if (__builtin_expect(slot == SLOTS_NONE, 0)) {
		if (!seek_any(s, cursor, p, filter))
			return SLOTS_NONE;
		id = cursor->grant;
		slot = cursor->next;
	}
	struct grant *g = &s->grants[id];

	g->free[slot / 64] &= ~(1ull << slot % 64);
	p->free--;
	if (--g->free_count == 0)
		s->run_bound[id] = 0;
	level_update(s, p, g, id);
	cursor->next = slot + 1;
	return g->first_entry + slot;
}

/* Grant of @entry, which must lie in one. */
static uint32_t grant_id(const struct slots *s, uint32_t entry)
{
	assert(entry < s->config.entry_limit);
	uint32_t id = (uint32_t)s->grant_of[entry / TABLES_GRANT_ENTRIES] - 1;

	assert(id != SLOTS_NONE && entry - s->grants[id].first_entry < s->grants[id].slots);
	return id;
}

void slots_give(struct slots *s, uint32_t entry)
{
	lock_assert_held(s->config.guard);
	uint32_t id = grant_id(s, entry);
	struct grant *g = &s->grants[id];
	struct pair *p = &s->pair[g->pair];
	uint32_t slot = entry - g->first_entry;

	assert(!(g->free[slot / 64] >> slot % 64 & 1));
	assert(s->config.tables->entries[entry].state == ENTRY_FREE);
	g->free[slot / 64] |= 1ull << slot % 64;
	g->free_count++;
	p->free++;
	if (slot / 64 < g->first_word)
		g->first_word = slot / 64;
	level_update(s, p, g, id);
	uint32_t run = grant_run_around(g, slot);

	s->run_bound[id] = max_u32(s->run_bound[id], run);
	p->run_bound = max_u32(p->run_bound, run);
}

uint64_t slots_offset(const struct slots *s, uint32_t entry)
{
	lock_assert_held(s->config.guard);
	const struct grant *g = &s->grants[grant_id(s, entry)];

	return g->offset + (entry - g->first_entry) * g->slot_bytes;
}

uint32_t slots_grant_of(const struct slots *s, uint32_t entry)
{
	lock_assert_held(s->config.guard);
	return grant_id(s, entry);
}

uint64_t slots_slot_bytes(const struct slots *s, uint32_t entry)
{
	lock_assert_held(s->config.guard);
	return s->grants[grant_id(s, entry)].slot_bytes;
}

void slots_usage(const struct slots *s, uint32_t class_index, uint32_t share, struct slots_usage *ret)
{
	const struct pair *p = pair_at(s, class_index, share);

	lock_assert_held(s->config.guard);
	*ret = (struct slots_usage){
		.slots = p->slots,
		.free = p->free,
		.payload_bytes = (p->slots - p->free) * p->payload_bytes,
		.slot_bytes = (p->slots - p->free) * p->slot_bytes,
	};
}

/* ---- building again ------------------------------------------------------------------------------------------ */

static int check_grant_entry(const struct slots *s, uint32_t id, struct why *why)
{
	const struct grant_entry *e = &s->config.tables->grants[id];
	const struct layout *layout = s->config.layout;

	if (e->class_index >= layout->classes || e->share >= layout->class[e->class_index].shares ||
		e->slot_bytes != layout->class[e->class_index].share[e->share].slot_bytes)
		return why_set(why, EINVAL,
			"grant %u: class %u, share %u with slots of %llu bytes is not in the layout", id,
			e->class_index, e->share, (unsigned long long)e->slot_bytes);
	if (e->length == 0 || e->offset % SLOTS_GRANT_UNIT || e->length % SLOTS_GRANT_UNIT ||
		e->offset > s->config.segment_bytes || e->length > s->config.segment_bytes - e->offset)
		return why_set(why, EINVAL, "grant %u: bytes %llu+%llu are not whole units of the segment's %llu", id,
			(unsigned long long)e->offset, (unsigned long long)e->length,
			(unsigned long long)s->config.segment_bytes);
	if (e->slots == 0 || e->slots > e->length / e->slot_bytes)
		return why_set(why, EINVAL, "grant %u: %u slots of %llu bytes do not fit %llu", id, e->slots,
			(unsigned long long)e->slot_bytes, (unsigned long long)e->length);
	if (e->first_entry % TABLES_GRANT_ENTRIES || e->first_entry >= s->config.entry_limit ||
		align_up(e->slots, TABLES_GRANT_ENTRIES) > s->config.entry_limit - e->first_entry)
		return why_set(why, EINVAL, "grant %u: entries %u+%u are not of the %u for grants", id, e->first_entry,
			e->slots, s->config.entry_limit);
	return 0;
}

/* Places in the sorted arrays, and that no other grant overlaps. */
static int find_places(const struct slots *s, uint32_t id, const struct grant *cut, uint32_t *ret_offset,
	uint32_t *ret_entry, struct why *why)
{
	uint32_t i = 0, j = 0;

	while (i < s->grant_count && s->grants[s->by_offset[i]].offset < cut->offset)
		i++;
	while (j < s->grant_count && s->grants[s->by_entry[j]].first_entry < cut->first_entry)
		j++;
	const struct grant *before = i ? &s->grants[s->by_offset[i - 1]] : NULL;
	const struct grant *after = i < s->grant_count ? &s->grants[s->by_offset[i]] : NULL;

	if ((before && before->offset + before->length > cut->offset) ||
		(after && cut->offset + cut->length > after->offset))
		return why_set(why, EINVAL, "grant %u: its bytes are another grant's too", id);
	before = j ? &s->grants[s->by_entry[j - 1]] : NULL;
	after = j < s->grant_count ? &s->grants[s->by_entry[j]] : NULL;
	if ((before && grant_entry_end(before) > cut->first_entry) ||
		(after && grant_entry_end(cut) > after->first_entry))
		return why_set(why, EINVAL, "grant %u: its entries are another grant's too", id);
	*ret_offset = i;
	*ret_entry = j;
	return 0;
}

static int rebuild_grant(struct slots *s, uint32_t id, struct why *why)
{
	const struct grant_entry *e = &s->config.tables->grants[id];
	int r = check_grant_entry(s, id, why);

	if (r)
		return r;
	struct grant cut = {
		.offset = e->offset,
		.slot_bytes = e->slot_bytes,
		.first_entry = e->first_entry,
		.slots = e->slots,
		.pair = (uint16_t)(s->first_pair[e->class_index] + e->share),
		.node = e->node,
		.length = e->length,
	};
	uint32_t at_offset = 0, at_entry = 0;

	r = find_places(s, id, &cut, &at_offset, &at_entry, why);
	if (r)
		return r;
	r = grant_adopt(s, id, &cut, at_offset, at_entry);
	if (r)
		return why_set(why, ENOMEM, "no memory for the %u slots of grant %u", cut.slots, id);
	struct grant *g = &s->grants[id];

	for (uint32_t i = 0; i < g->slots; i++)
		if (s->config.tables->entries[g->first_entry + i].state != ENTRY_FREE) {
			g->free[i / 64] &= ~(1ull << i % 64);
			g->free_count--;
		}
	grant_open(s, id);
	return 0;
}

int slots_rebuild(struct slots *s, struct why *why)
{
	assert(s->grant_limit == 0);
	for (uint32_t id = 0; id < s->config.tables->grant_capacity; id++) {
		struct grant_entry *e = &s->config.tables->grants[id];

		if (tables_grant_intact(s->config.tables, id) && e->used == GRANT_READY) {
			if (id >= s->grant_capacity)
				return why_set(why, EINVAL, "grant %u: numbers end at %u", id, s->grant_capacity);
			int r = rebuild_grant(s, id, why);

			if (r)
				return r;
		} else if (e->used != GRANT_UNUSED) {
			e->used = GRANT_UNUSED; /* was being cut or ended: no slot of it was in use */
			tables_seal_grant(s->config.tables, id);
		}
	}
	return 0;
}

/* ---- checking ------------------------------------------------------------------------------------------------ */

#define CHECK(condition, id) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "slots: broken at grant %u: %s\n", (unsigned)(id), #condition); \
			abort(); \
		} \
	} while (0)

static void check_grant(const struct slots *s, uint32_t id)
{
	const struct grant *g = &s->grants[id];
	const struct pair *p = &s->pair[g->pair];
	const struct grant_entry *e = &s->config.tables->grants[id];
	uint32_t free_count = 0, length = 0, longest = 0;

	CHECK(g->pair < s->pairs, id);
	CHECK(tables_grant_intact(s->config.tables, id), id);
	CHECK(e->used == (g->ready ? GRANT_READY : GRANT_POPULATING), id);
	CHECK(e->offset == g->offset && e->length == g->length && e->slot_bytes == g->slot_bytes, id);
	CHECK(e->first_entry == g->first_entry && e->slots == g->slots, id);
	CHECK(e->class_index == p->class_index && e->share == p->share, id);
	CHECK(g->slot_bytes * g->slots <= g->length, id);
	for (uint32_t i = 0; i < grant_words(g); i++) {
		free_count += (uint32_t)__builtin_popcountll(g->free[i]);
		CHECK(g->free[i] == 0 || i >= g->first_word, id);
	}
	CHECK(g->slots % 64 == 0 || g->free[g->slots / 64] >> g->slots % 64 == 0, id);
	CHECK(free_count == g->free_count, id);
	for (uint32_t i = 0; i < g->slots; i++) {
		bool is_free = g->free[i / 64] >> i % 64 & 1;

		CHECK(!is_free || s->config.tables->entries[g->first_entry + i].state == ENTRY_FREE, id);
		length = is_free ? length + 1 : 0;
		longest = max_u32(longest, length);
	}
	for (uint32_t b = g->first_entry; b < grant_entry_end(g); b += TABLES_GRANT_ENTRIES)
		CHECK(s->grant_of[b / TABLES_GRANT_ENTRIES] == id + 1, id);
	CHECK((level_bits(s, p, MEMBERS)[id / 64] >> id % 64 & 1) == g->ready, id);
	for (uint32_t l = 0; l < LEVELS; l++)
		CHECK((level_bits(s, p, l)[id / 64] >> id % 64 & 1) == (g->ready && g->level == l), id);
	CHECK(g->ready || g->free_count == g->slots, id);
	if (!g->ready)
		return;
	uint32_t level = g->free_count ? (uint32_t)((uint64_t)(g->free_count - 1) * LEVELS / g->slots) : NO_LEVEL;

	CHECK(g->level == level, id);
	CHECK(longest <= s->run_bound[id], id);
	CHECK(longest <= p->run_bound, id);
}

static void check_pair(const struct slots *s, uint32_t number)
{
	const struct pair *p = &s->pair[number];
	uint64_t slots = 0, free_slots = 0;

	for (uint32_t id = 0; id < s->grant_limit; id++)
		if (s->grants[id].ready && s->grants[id].pair == number) {
			slots += s->grants[id].slots;
			free_slots += s->grants[id].free_count;
		}
	CHECK(p->slots == slots && p->free == free_slots, SLOTS_NONE);
	for (uint32_t l = 0; l <= MEMBERS; l++) {
		uint32_t grants = 0;

		for (uint32_t w = 0; w < s->words; w++)
			for (uint64_t m = level_bits(s, p, l)[w]; m; m &= m - 1) {
				uint32_t id = w * 64 + (uint32_t)__builtin_ctzll(m);

				CHECK(id < s->grant_limit && s->grants[id].length && s->grants[id].pair == number, id);
				grants++;
			}
		CHECK(l == MEMBERS || (grants == p->level_grants[l] && (p->levels >> l & 1) == (grants > 0)), l);
	}
}

void slots_check(const struct slots *s)
{
	uint64_t bytes = 0, end = 0;
	uint32_t count = 0, entry_end = 0;

	assert(s->magic == SLOTS_MAGIC);
	for (uint32_t id = 0; id < s->grant_limit; id++)
		if (s->grants[id].length) {
			count++;
			bytes += s->grants[id].length;
			check_grant(s, id);
		} else {
			CHECK(s->config.tables->grants[id].used == GRANT_UNUSED, id);
		}
	CHECK(count == s->grant_count && bytes == s->granted_bytes, SLOTS_NONE);
	for (uint32_t i = 0; i < count; i++) {
		const struct grant *a = &s->grants[s->by_offset[i]];
		const struct grant *b = &s->grants[s->by_entry[i]];

		CHECK(a->length && a->offset >= end, s->by_offset[i]);
		CHECK(b->length && b->first_entry >= entry_end, s->by_entry[i]);
		end = a->offset + a->length;
		entry_end = grant_entry_end(b);
	}
	CHECK(end <= s->config.segment_bytes && entry_end <= s->config.entry_limit, SLOTS_NONE);
	for (uint32_t n = 0; n < s->pairs; n++)
		check_pair(s, n);
}
