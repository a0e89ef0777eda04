/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing behind: which record is next.
 */
#include <stdlib.h>
#include <string.h>

#include "store/spill_private.h"

#define SPILL_TRIES 64u         /* records passed over in one look */

/* ---- choosing ------------------------------------------------------------------------------------------------------------ */

bool spill_alive(const struct tiering *t, struct tiering_name name)
{
	const struct record *r = index_record(t->space->index, name.record);

	return r->generation == name.generation && r->state == RECORD_LIVE && index_record_current(t->space->index, name.record);
}

struct tiering_name spill_name(const struct tiering *t, uint32_t record)
{
	return (struct tiering_name){ record, index_record(t->space->index, record)->generation };
}

/* May it be written now? Twins have one name: neither is written before they have joined. */
bool spill_writable(struct tiering *t, uint32_t record)
{
	struct index *index = t->space->index;
	const struct record *r = index_record(index, record);
	struct key endpoint;
	uint64_t consumed;
	uint32_t home;

	if (r->state != RECORD_LIVE || !index_record_current(index, record) || tiering_file(t, record)->writing ||
	    r->pages > RECORD_FILE_MAX_PAGES || (!r->pages && !(r->flags & RECORD_FLAG_ROW)))
		return false;
	index_record_name(index, record, &consumed, &endpoint);
	home = t->space->layout->row_columns ? index_row_home(index, &endpoint) : INDEX_NONE;
	return index_find_endpoint(index, &endpoint) == record && (home == INDEX_NONE || home == record);
}

/* Of a WHOLE group, all that are written with it too? */
static bool choosable(struct tiering *t, uint32_t record)
{
	const struct tables *tables = &t->space->tables;
	uint32_t m = record, n = 0;

	if (!spill_writable(t, record) || !(index_record(t->space->index, record)->flags & RECORD_FLAG_WHOLE))
		return spill_writable(t, record);
	while ((m = tables->records[m].whole_next) != record && n++ < SPILL_RING_MOST)
		if (!spill_writable(t, m))
			return false;
	return true;
}

static bool has_dirty(struct tiering *t, uint32_t record)
{
	const struct record_file *f = tiering_file(t, record);

	return f->dirty || f->flags & TIERING_STALE;
}

/* The coldest dirty record that can be written, taken from the order. */
static uint32_t coldest(struct tiering *t)
{
	uint32_t passed[SPILL_TRIES], n = 0, record = INDEX_NONE;

	while (n < SPILL_TRIES && (record = policy_lru.pop(t->dirty)) != INDEX_NONE && !choosable(t, record))
		passed[n++] = record;
	if (n == SPILL_TRIES)
		record = INDEX_NONE;
	for (uint32_t i = 0; i < n; i++)
		tiering_consider(t, passed[i]);
	return record;
}

static uint32_t asked(struct tiering *t)
{
	while (t->asked_count) {
		struct tiering_name name = t->asked[t->asked_first];

		t->asked_first = (t->asked_first + 1) % TIERING_ASKED;
		t->asked_count--;
		if (spill_alive(t, name) && has_dirty(t, name.record) && choosable(t, name.record))
			return name.record;
	}
	return INDEX_NONE;
}

/* When the time is short: the record used last, or what it stands on and is dirty, root first. A piece of the records at a
 * time is looked at, newest numbers of the order first; exact enough for what is given up when the time is over. */
static uint32_t newest(struct tiering *t)
{
	struct index *index = t->space->index;
	uint32_t passed[INDEX_STEP_KEYS * 4], n = 0, best = INDEX_NONE, at;

	while (n < INDEX_STEP_KEYS * 4 && (at = policy_lru.pop(t->dirty)) != INDEX_NONE)
		passed[n++] = at;
	for (uint32_t i = 0; i < n; i++)
		if (choosable(t, passed[i]))
			best = passed[i]; /* they come coldest first */
	for (uint32_t i = 0; i < n; i++)
		if (passed[i] != best)
			tiering_consider(t, passed[i]);
	if (best == INDEX_NONE)
		return best;
	at = best;
	for (uint32_t i = 0; i < INDEX_STEP_KEYS && at != INDEX_NONE; i++) {
		if (has_dirty(t, at) && choosable(t, at))
			best = at;
		at = index_record(index, at)->parent;
	}
	return best;
}

uint32_t spill_choose(struct tiering *t)
{
	uint32_t record = asked(t);

	if (record != INDEX_NONE)
		return record;
	return t->drain_newest ? newest(t) : coldest(t);
}

/* ---- WHOLE groups ---------------------------------------------------------------------------------------------------------- */

struct spill_ring *spill_ring_new(struct tiering *t, uint32_t record)
{
	const struct tables *tables = &t->space->tables;
	struct spill_ring *ring;
	uint32_t m = record, n = 0;

	do {
		if (n++ == SPILL_RING_MOST)
			return NULL;
		m = tables->records[m].whole_next;
	} while (m != record);
	ring = calloc(1, sizeof(*ring) + n * sizeof(ring->members[0]));
	if (!ring)
		return NULL;
	ring->members = (struct tiering_name *)(ring + 1);
	ring->id = catalogue_next_id(t->catalogue);
	do {
		ring->members[ring->count++] = spill_name(t, m);
		m = tables->records[m].whole_next;
	} while (m != record);
	return ring;
}

uint32_t spill_ring_next(struct tiering *t, struct spill_ring *ring)
{
	struct tiering_name name;

	if (ring->failed || ring->at == ring->count)
		return INDEX_NONE;
	name = ring->members[ring->at];
	if (spill_alive(t, name) && spill_writable(t, name.record)) {
		ring->at++;
		return name.record;
	}
	ring->failed = true;
	return INDEX_NONE;
}
