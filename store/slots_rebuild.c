/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots after a death: which grants of the tables can be believed, whose slots rest, what is taken; and the proof that all of it agrees.
 */
#include "store/slots_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "index/seats.h"
#include "store/base/cleanup.h"
#include "index/seats.h"
#include "store/base/memory.h"

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
	bool ready = e->used == GRANT_READY;
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
	r = slots_adopt_grant(s, id, &cut, at_offset, at_entry);
	if (r)
		return why_set(why, ENOMEM, "no memory for the %u slots of grant %u", cut.slots, id);
	struct grant *g = &s->grants[id];

	for (uint32_t i = 0; i < g->slots && ready; i++)
		if (s->config.tables->entries[g->first_entry + i].state != ENTRY_FREE) {
			g->free[i / 64] &= ~(1ull << i % 64);
			g->free_count--;
		}
	if (ready)
		slots_open_grant(s, id);
	return 0;
}

static void drop_grant(struct slots *s, uint32_t id)
{
	s->config.tables->grants[id].used = GRANT_UNUSED;
	tables_seal_grant(s->config.tables, id);
}

/* Of which nobody was told: no slot of it was ever given out. */
static bool untouched(const struct slots *s, const struct grant_entry *e)
{
	for (uint32_t n = e->first_entry; n < e->first_entry + e->slots; n++)
		if (s->config.tables->entries[n].state != ENTRY_FREE || s->config.tables->users[n])
			return false;
	return true;
}

/* A byte or an entry that two grants have is the lower one's: @taken are sorted as s->by_offset and s->by_entry are. */
static bool judge_grant(struct slots *s, uint32_t id, struct why *why)
{
	struct grant_entry *e = &s->config.tables->grants[id];
	uint32_t at_offset = 0, at_entry = 0;

	if (id >= s->grant_capacity || e->used > GRANT_READY || !tables_grant_intact(s->config.tables, id) ||
		check_grant_entry(s, id, why) || (e->used == GRANT_POPULATING && !untouched(s, e)))
		return false;
	struct grant cut = {.offset = e->offset, .length = e->length, .first_entry = e->first_entry, .slots = e->slots};

	if (find_places(s, id, &cut, &at_offset, &at_entry, why))
		return false;
	s->grants[id] = cut;
	slots_sorted_insert(s->by_offset, s->grant_count, at_offset, id);
	slots_sorted_insert(s->by_entry, s->grant_count, at_entry, id);
	s->grant_count++;
	return true;
}

/* Entries [@from, @to) are of no grant: the next one that is cut there finds them unused. */
static void clean_entries(struct tables *tables, uint32_t from, uint32_t to)
{
	for (uint32_t n = from; n < to; n++) {
		if (tables->entries[n].state != ENTRY_FREE)
			tables_entry_set_state(tables, n, ENTRY_FREE);
		seats_clear(tables, n);
	}
}

/* After a grant was dropped, of which nobody knows what it was: this fills holes of the file, which is rare. */
static void clean_gaps(struct slots *s)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < s->grant_count; i++) {
		const struct grant *g = &s->grants[s->by_entry[i]];

		clean_entries(s->config.tables, at, g->first_entry);
		clean_entries(s->config.tables, g->first_entry + g->slots, grant_entry_end(g));
		at = grant_entry_end(g);
	}
	clean_entries(s->config.tables, at, s->config.entry_limit);
}

uint32_t slots_judge(struct slots *s)
{
	struct why why = WHY_INIT;
	uint32_t torn = 0;

	lock_assert_held(s->config.guard);
	assert(s->grant_limit == 0);
	for (uint32_t id = 0; id < s->config.tables->grant_capacity; id++) {
		if (s->config.tables->grants[id].used == GRANT_UNUSED || judge_grant(s, id, &why))
			continue;
		drop_grant(s, id);
		torn++;
	}
	if (torn)
		clean_gaps(s);
	for (uint32_t i = 0; i < s->grant_count; i++)
		s->grants[s->by_offset[i]] = (struct grant){0};
	s->grant_count = 0;
	return torn;
}

uint64_t slots_rest(struct slots *s, bool read_into)
{
	struct tables *tables = s->config.tables;
	uint64_t resting = 0;

	lock_assert_held(s->config.guard);
	for (uint32_t id = 0; id < tables->grant_capacity; id++) {
		const struct grant_entry *g = &tables->grants[id];

		for (uint32_t n = g->first_entry; g->used == GRANT_READY && n < g->first_entry + g->slots; n++) {
			uint8_t state = tables->entries[n].state;

			if (state == ENTRY_FREE && tables->users[n])
				tables_entry_set_state(tables, n, ENTRY_QUARANTINED);
			else if (state == ENTRY_QUARANTINED && !tables->users[n] && !read_into)
				tables_entry_set_state(tables, n, ENTRY_FREE);
			resting += tables->entries[n].state == ENTRY_QUARANTINED;
		}
	}
	return resting;
}

int slots_rebuild(struct slots *s, struct why *why)
{
	assert(s->grant_limit == 0);
	for (uint32_t id = 0; id < s->config.tables->grant_capacity; id++) {
		struct grant_entry *e = &s->config.tables->grants[id];

		if (tables_grant_intact(s->config.tables, id) && (e->used == GRANT_READY || e->used == GRANT_POPULATING)) {
			if (id >= s->grant_capacity)
				return why_set(why, EINVAL, "grant %u: numbers end at %u", id, s->grant_capacity);
			int r = rebuild_grant(s, id, why);

			if (r)
				return r;
		} else if (e->used != GRANT_UNUSED) {
			drop_grant(s, id); /* was being cut or ended: no slot of it was in use */
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

/* The word of a slot is 0 when nobody uses it, and only then; all of its bits are of seats that somebody had. True: it is kept. */
static bool check_users(const struct slots *s, uint32_t id, uint32_t slot, bool is_free)
{
	const struct entry *e = &s->config.tables->entries[slot];
	uint64_t users = s->config.tables->users[slot];
	uint32_t holds = s->config.holds[slot];

	CHECK(!is_free || (!holds && !users), id);
	CHECK(is_free || e->state != ENTRY_FREE || (!holds && !users), id);
	CHECK(e->state != ENTRY_VALUE || holds || !users, id);
	CHECK(e->state != ENTRY_VALUE || !e->group || (holds && users), id); /* a put's */
	CHECK(!s->config.told || !users == !(holds || e->state == ENTRY_QUARANTINED), id);
	for (; users; users &= users - 1)
		CHECK(seats_state(s->config.tables, (uint32_t)__builtin_ctzll(users)) != SEAT_FREE, id);
	return !is_free && e->state == ENTRY_FREE;
}

/* Counts slots that are kept. */
static void check_grant(const struct slots *s, uint32_t id, uint64_t *kept)
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
		if (s->config.holds)
			*kept += check_users(s, id, g->first_entry + i, is_free);
		length = is_free ? length + 1 : 0;
		longest = max_u32(longest, length);
	}
	for (uint32_t b = g->first_entry; b < grant_entry_end(g); b += TABLES_GRANT_ENTRIES)
		CHECK(s->grant_of[b / TABLES_GRANT_ENTRIES] == id + 1, id);
	CHECK(g->ready || !g->closed, id);
	CHECK((level_bits(s, p, MEMBERS)[id / 64] >> id % 64 & 1) == (g->ready && !g->closed), id);
	for (uint32_t l = 0; l < LEVELS; l++)
		CHECK((level_bits(s, p, l)[id / 64] >> id % 64 & 1) == (g->ready && g->level == l), id);
	CHECK(g->ready || g->free_count == g->slots, id);
	if (!g->ready)
		return;
	if (g->closed) {
		CHECK(g->level == NO_LEVEL && longest <= s->run_bound[id], id);
		return;
	}
	uint32_t level = g->free_count ? (uint32_t)((uint64_t)(g->free_count - 1) * LEVELS / g->slots) : NO_LEVEL;

	CHECK(g->level == level, id);
	CHECK(longest <= s->run_bound[id], id);
	CHECK(longest <= p->run_bound, id);
}

static void check_pair(const struct slots *s, uint32_t number)
{
	const struct pair *p = &s->pair[number];
	uint64_t slots = 0, free_slots = 0;
	uint32_t open = 0;

	for (uint32_t id = 0; id < s->grant_limit; id++) {
		const struct grant *g = &s->grants[id];

		if (!g->ready || g->pair != number)
			continue;
		slots += g->closed ? g->slots - g->free_count : g->slots;
		free_slots += g->closed ? 0 : g->free_count;
		open += !g->closed;
	}
	CHECK(p->slots == slots && p->free == free_slots && p->open_grants == open, SLOTS_NONE);
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
	uint64_t bytes = 0, end = 0, kept = 0;
	uint32_t count = 0, entry_end = 0;

	assert(s->magic == SLOTS_MAGIC);
	for (uint32_t id = 0; id < s->grant_limit; id++)
		if (s->grants[id].length) {
			count++;
			bytes += s->grants[id].length;
			check_grant(s, id, &kept);
		} else {
			CHECK(s->config.tables->grants[id].used == GRANT_UNUSED, id);
		}
	CHECK(count == s->grant_count && bytes == s->granted_bytes && kept == s->kept, SLOTS_NONE);
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
