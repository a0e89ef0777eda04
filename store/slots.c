/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants: how large they are, how they are cut from the segment and the tables, and how they end.
 */
#include "store/slots_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"
#include "store/base/memory.h"

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

uint64_t slots_grant_bytes_of(const struct layout *layout, uint32_t class_index, uint32_t share, uint64_t budget, uint32_t *ret_slots)
{
	uint64_t bytes = layout->class[class_index].share[share].slot_bytes;
	uint32_t pairs = 0;

	for (uint32_t c = 0; c < layout->classes; c++)
		pairs += layout->class[c].shares;
	*ret_slots = slots_per_grant(bytes, budget, pairs);
	return align_up(*ret_slots * bytes, SLOTS_GRANT_UNIT);
}

static void pair_init(struct slots *s, uint32_t number, uint32_t class_index, uint32_t share)
{
	const struct share *sh = &s->config.layout->class[class_index].share[share];
	struct pair *p = &s->pair[number];

	p->class_index = class_index;
	p->share = share;
	p->slot_bytes = sh->slot_bytes;
	p->payload_bytes = sh->payload_bytes;
	p->grant_bytes = slots_grant_bytes_of(s->config.layout, class_index, share, s->config.budget_bytes, &p->grant_slots);
	p->bits = s->bits + (size_t)number * (LEVELS + 1) * s->words;
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

/* ---- grants -------------------------------------------------------------------------------------------------- */

void slots_sorted_insert(uint32_t *ids, uint32_t count, uint32_t at, uint32_t id)
{
	memmove(ids + at + 1, ids + at, (count - at) * sizeof(*ids));
	ids[at] = id;
}

void slots_sorted_remove(uint32_t *ids, uint32_t count, uint32_t id)
{
	uint32_t at = 0;

	while (at < count && ids[at] != id)
		at++;
	assert(at < count);
	memmove(ids + at, ids + at + 1, (count - at - 1) * sizeof(*ids));
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

bool slots_find_entries(const struct slots *s, uint32_t count, uint32_t *ret_first, uint32_t *ret_at)
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

uint64_t *slots_free_bitmap(uint32_t slots)
{
	uint32_t words = (slots + 63) / 64;
	uint64_t *bits = malloc(words * sizeof(*bits));

	if (!bits)
		return NULL;
	memset(bits, 0xff, words * sizeof(*bits));
	if (slots % 64)
		bits[slots / 64] = (1ull << slots % 64) - 1;
	return bits;
}

int slots_adopt_grant(struct slots *s, uint32_t id, const struct grant *cut, uint32_t at_offset, uint32_t at_entry)
{
	struct grant *g = &s->grants[id];

	*g = *cut;
	g->free = slots_free_bitmap(g->slots);
	if (!g->free) {
		*g = (struct grant){0};
		return -ENOMEM;
	}
	g->free_count = g->slots;
	g->level = NO_LEVEL;
	for (uint32_t e = g->first_entry; e < grant_entry_end(g); e += TABLES_GRANT_ENTRIES)
		s->grant_of[e / TABLES_GRANT_ENTRIES] = (uint16_t)(id + 1);
	slots_sorted_insert(s->by_offset, s->grant_count, at_offset, id);
	slots_sorted_insert(s->by_entry, s->grant_count, at_entry, id);
	s->grant_count++;
	s->grant_limit = max_u32(s->grant_limit, id + 1);
	s->granted_bytes += g->length;
	return 0;
}

void slots_open_grant(struct slots *s, uint32_t id)
{
	struct grant *g = &s->grants[id];
	struct pair *p = &s->pair[g->pair];

	g->ready = true;
	p->slots += g->slots;
	p->free += g->free_count;
	p->open_grants++;
	if (slots_find_run(g, g->slots, &s->run_bound[id]) != SLOTS_NONE)
		s->run_bound[id] = g->slots;
	p->run_bound = max_u32(p->run_bound, s->run_bound[id]);
	level_bits(s, p, MEMBERS)[id / 64] |= 1ull << id % 64;
	slots_level_place(s, p, g, id);
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
		!slots_find_entries(s, entries, &cut.first_entry, &at_entry))
		return SLOTS_E_FULL;
	int r = slots_adopt_grant(s, id, &cut, at_offset, at_entry);

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

void slots_grant_renew(struct slots *s, uint32_t id)
{
	lock_assert_held(s->config.guard);
	assert(!grant_at(s, id)->ready);
	s->config.tables->grants[id].generation++;
	tables_seal_grant(s->config.tables, id);
}

void slots_grant_ready(struct slots *s, uint32_t id)
{
	lock_assert_held(s->config.guard);
	assert(!grant_at(s, id)->ready);
	s->config.tables->grants[id].used = GRANT_READY;
	tables_seal_grant(s->config.tables, id);
	slots_open_grant(s, id);
}

void slots_grant_end(struct slots *s, uint32_t id)
{
	lock_assert_held(s->config.guard);
	struct grant *g = grant_at(s, id);

	assert(g->free_count == g->slots);
	s->config.tables->grants[id].used = GRANT_UNUSED;
	tables_seal_grant(s->config.tables, id);
	if (g->ready) {
		if (!g->closed)
			slots_grant_close(s, id);
		s->version++;
	}
	for (uint32_t e = g->first_entry; e < grant_entry_end(g); e += TABLES_GRANT_ENTRIES)
		s->grant_of[e / TABLES_GRANT_ENTRIES] = 0;
	slots_sorted_remove(s->by_offset, s->grant_count, id);
	slots_sorted_remove(s->by_entry, s->grant_count, id);
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
		.closed = g->closed,
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
