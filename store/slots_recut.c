/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants that change hands: closed while they are emptied, then cut for another (class, share), or withdrawn.
 */
#include "store/slots_private.h"

#include <errno.h>
#include <stdlib.h>

static struct grant *ready_at(const struct slots *s, uint32_t id)
{
	lock_assert_held(s->config.guard);
	assert(id < s->grant_limit && s->grants[id].length && s->grants[id].ready);
	return &s->grants[id];
}

void slots_grant_close(struct slots *s, uint32_t id)
{
	struct grant *g = ready_at(s, id);
	struct pair *p = &s->pair[g->pair];

	assert(!g->closed);
	slots_level_remove(s, p, g, id);
	level_bits(s, p, MEMBERS)[id / 64] &= ~(1ull << id % 64);
	p->slots -= g->free_count;
	p->free -= g->free_count;
	p->open_grants--;
	g->closed = true;
}

void slots_grant_reopen(struct slots *s, uint32_t id)
{
	struct grant *g = ready_at(s, id);
	struct pair *p = &s->pair[g->pair];

	assert(g->closed);
	g->closed = false;
	p->slots += g->free_count;
	p->free += g->free_count;
	p->open_grants++;
	level_bits(s, p, MEMBERS)[id / 64] |= 1ull << id % 64;
	slots_level_place(s, p, g, id);
	p->run_bound = max_u32(p->run_bound, s->run_bound[id]);
}

/* Entries for @count slots in place of the grant's own, which are all free. */
static bool move_entries(struct slots *s, uint32_t id, uint32_t count)
{
	struct grant *g = &s->grants[id];
	uint32_t first = g->first_entry, at, back = 0;

	slots_sorted_remove(s->by_entry, s->grant_count, id);
	s->grant_count--;
	bool found = slots_find_entries(s, count, &first, &at);

	if (!found) {
		while (back < s->grant_count && s->grants[s->by_entry[back]].first_entry < g->first_entry)
			back++;
		at = back;
	}
	slots_sorted_insert(s->by_entry, s->grant_count, at, id);
	s->grant_count++;
	if (!found)
		return false;
	for (uint32_t e = g->first_entry; e < grant_entry_end(g); e += TABLES_GRANT_ENTRIES)
		s->grant_of[e / TABLES_GRANT_ENTRIES] = 0;
	g->first_entry = first;
	return true;
}

int slots_grant_recut(struct slots *s, uint32_t id, uint32_t class_index, uint32_t share)
{
	struct grant *g = ready_at(s, id);
	struct grant_entry *e = &s->config.tables->grants[id];
	const struct pair *p = pair_at(s, class_index, share);

	assert(g->closed && g->free_count == g->slots && g->length >= p->slot_bytes);
	uint32_t count = (uint32_t)(g->length / p->slot_bytes);
	uint64_t *bits = slots_free_bitmap(count);

	if (!bits)
		return -ENOMEM;
	if (!move_entries(s, id, (uint32_t)align_up(count, TABLES_GRANT_ENTRIES))) {
		free(bits);
		return SLOTS_E_FULL;
	}
	/* Whoever finds the tables between these two stores finds no such grant; it was empty. */
	e->used = GRANT_UNUSED;
	tables_seal_grant(s->config.tables, id);
	free(g->free);
	g->free = bits;
	g->slot_bytes = p->slot_bytes;
	g->slots = g->free_count = count;
	g->first_word = 0;
	g->pair = (uint16_t)(p - s->pair);
	g->level = NO_LEVEL;
	g->level_min = g->level_max = 0;
	g->ready = g->closed = false;
	s->run_bound[id] = 0;
	for (uint32_t n = g->first_entry; n < grant_entry_end(g); n += TABLES_GRANT_ENTRIES)
		s->grant_of[n / TABLES_GRANT_ENTRIES] = (uint16_t)(id + 1);
	e->generation++;
	e->slot_bytes = g->slot_bytes;
	e->first_entry = g->first_entry;
	e->slots = count;
	e->class_index = (uint16_t)class_index;
	e->share = (uint16_t)share;
	e->used = GRANT_POPULATING;
	tables_seal_grant(s->config.tables, id);
	s->version++;
	return 0;
}

void slots_grant_withdraw(struct slots *s, uint32_t id)
{
	struct grant *g = ready_at(s, id);

	assert(g->closed && g->free_count == g->slots);
	s->config.tables->grants[id].used = GRANT_POPULATING; /* of no worth to a successor */
	tables_seal_grant(s->config.tables, id);
	g->ready = g->closed = false;
	s->version++;
}

bool slots_is_free(const struct slots *s, uint32_t id, uint32_t number)
{
	lock_assert_held(s->config.guard);
	assert(id < s->grant_limit && number < s->grants[id].slots);
	return s->grants[id].free[number / 64] >> number % 64 & 1;
}
