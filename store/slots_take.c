/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots: the order of grants, the search for neighbouring free ones, taking and giving.
 */
#include "store/slots_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"
#include "store/base/memory.h"

/* ---- order of grants ----------------------------------------------------------------------------------------- */

void slots_level_remove(const struct slots *s, struct pair *p, struct grant *g, uint32_t id)
{
	if (g->level == NO_LEVEL)
		return;
	level_bits(s, p, g->level)[id / 64] &= ~(1ull << id % 64);
	if (--p->level_grants[g->level] == 0)
		p->levels &= ~(1ull << g->level);
	g->level = NO_LEVEL;
	g->level_min = g->level_max = 0;
}

void slots_level_place(const struct slots *s, struct pair *p, struct grant *g, uint32_t id)
{
	slots_level_remove(s, p, g, id);
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
		slots_level_place(s, p, g, id);
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

/* First free slot at or after @from, SLOTS_NONE if none. */
static uint32_t grant_next_free(const struct grant *g, uint32_t from)
{
	if (from >= g->slots)
		return SLOTS_NONE;
	uint32_t w = from / 64;
	uint64_t bits = g->free[w] >> from % 64;

	if (__builtin_expect(bits != 0, 1))
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

uint32_t slots_find_run(const struct grant *g, uint32_t count, uint32_t *ret_longest)
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
					*ret_slot = slots_find_run(&s->grants[id], count, &s->run_bound[id]);
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
	cursor->pair = (uint32_t)(p - s->pair);
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
	struct pair *p = &s->pair[cursor->pair];
	uint32_t id = cursor->grant;
	struct grant *g = &s->grants[id];
	uint32_t slot = SLOTS_NONE;

	lock_assert_held(s->config.guard);
	/* The grant may have gone, or be another's, since the cursor was set. */
	if (id < s->grant_limit && g->ready && !g->closed && g->pair == cursor->pair && filter_allows(filter, id))
		slot = grant_next_free(g, cursor->next);
	if (__builtin_expect(slot == SLOTS_NONE, 0)) {
		if (!seek_any(s, cursor, p, filter))
			return SLOTS_NONE;
		id = cursor->grant;
		g = &s->grants[id];
		slot = cursor->next;
	}
	g->free[slot / 64] &= ~(1ull << slot % 64);
	p->free--;
	if (--g->free_count == 0)
		s->run_bound[id] = 0;
	level_update(s, p, g, id);
	cursor->next = slot + 1;
	cursor->offset = g->offset + slot * g->slot_bytes;
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

void slots_keep(struct slots *s, uint32_t entry, bool kept)
{
	lock_assert_held(s->config.guard);
	assert(s->config.tables->entries[entry].state == ENTRY_FREE);
	s->kept += kept ? 1 : (uint64_t)-1;
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
	if (slot / 64 < g->first_word)
		g->first_word = slot / 64;
	if (__builtin_expect(g->closed, 0)) {
		p->slots--;
	} else {
		p->free++;
		level_update(s, p, g, id);
	}
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

void slots_offsets(const struct slots *s, const uint32_t *entries, uint32_t step, uint32_t count, uint64_t none, uint64_t *ret)
{
	const struct grant *g = NULL;
	uint32_t first = 0, slots = 0;

	lock_assert_held(s->config.guard);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t entry = entries[(size_t)i * step];

		if (entry == SLOTS_NONE) {
			ret[i] = none;
			continue;
		}
		if (entry - first >= slots) {
			g = &s->grants[grant_id(s, entry)];
			first = g->first_entry;
			slots = g->slots;
		}
		ret[i] = g->offset + (entry - first) * g->slot_bytes;
	}
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

bool slots_next(const struct slots *s, uint32_t from, uint32_t most, uint32_t *ret_first, uint32_t *ret_count)
{
	uint32_t low = 0, high = s->grant_count;

	lock_assert_held(s->config.guard);
	while (low < high) { /* the first grant that ends behind @from */
		uint32_t middle = (low + high) / 2;
		const struct grant *g = &s->grants[s->by_entry[middle]];

		if (g->first_entry + g->slots > from)
			high = middle;
		else
			low = middle + 1;
	}
	if (low == s->grant_count)
		return false;
	const struct grant *g = &s->grants[s->by_entry[low]];

	*ret_first = max_u32(from, g->first_entry);
	*ret_count = min_u32(most, g->first_entry + g->slots - *ret_first);
	return true;
}

void slots_usage(const struct slots *s, uint32_t class_index, uint32_t share, struct slots_usage *ret)
{
	const struct pair *p = pair_at(s, class_index, share);

	lock_assert_held(s->config.guard);
	*ret = (struct slots_usage){
		.slots = p->slots,
		.free = p->free,
		.grants = p->open_grants,
		.payload_bytes = (p->slots - p->free) * p->payload_bytes,
		.slot_bytes = (p->slots - p->free) * p->slot_bytes,
	};
}
