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

/* May it be written now? What is half there has to become whole or to go first, unless there is no time for that. Twins have one name: neither is written before they have joined. A file that still has the name is another's
 * to be renamed. */
bool spill_writable(struct tiering *t, uint32_t record)
{
	struct index *index = t->space->index;
	const struct record *r = index_record(index, record);
	struct key endpoint;
	uint64_t consumed;
	uint32_t home;

	if (r->state != RECORD_LIVE || !index_record_current(index, record) || tiering_file(t, record)->job ||
	    tiering_file(t, record)->flags & (TIERING_TRIM | TIERING_ROW_LOST) ||
	    (t->space->fills && !t->draining && fills_has(t->space->fills, record)) || r->pages > RECORD_FILE_MAX_PAGES || (!r->pages && !(r->flags & RECORD_FLAG_ROW)))
		return false;
	index_record_name(index, record, &consumed, &endpoint);
	home = t->space->layout->row_columns ? index_row_home(index, &endpoint) : INDEX_NONE;
	return index_find_endpoint(index, &endpoint) == record && (home == INDEX_NONE || home == record) &&
	       !tiering_name_owed(t, consumed, &endpoint);
}

bool spill_name_owed(struct tiering *t, uint64_t consumed, const struct key *endpoint)
{
	for (const struct spill *s = t->writing->first; s; s = s->next) {
		const struct record_file *f = &t->files[s->record];

		if (f->job == &s->write.job && f->flags & TIERING_TRIM_LATER && tiering_file_consumed(t, s->record) == consumed &&
		    !memcmp(&f->endpoint, endpoint, sizeof(*endpoint)))
			return true;
	}
	return false;
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

/* When the time is short: the record used last, or what it stands on and is dirty, root first. */
static uint32_t newest(struct tiering *t)
{
	struct spill_order *order = &t->writing->order;

	for (uint32_t looks = INDEX_STEP_KEYS; order->at < order->count && looks; looks--) {
		struct tiering_name name = order->of[order->at].name;
		uint32_t best = INDEX_NONE, at = name.record;

		if (!spill_alive(t, name) || !has_dirty(t, at)) {
			order->at++;
			continue;
		}
		for (uint32_t i = 0; i < INDEX_STEP_KEYS && at != INDEX_NONE; i++) {
			if (has_dirty(t, at) && choosable(t, at))
				best = at;
			at = index_record(t->space->index, at)->parent;
		}
		if (best != INDEX_NONE)
			return best;
		order->at++; /* it is being written, or cannot be now */
	}
	return INDEX_NONE;
}

static int by_use(const void *a, const void *b)
{
	int32_t later = (int32_t)(((const struct spill_use *)b)->tick - ((const struct spill_use *)a)->tick);

	return later < 0 ? -1 : later > 0;
}

/* Under the lock: some more of the dirty records. False: that was the last one. */
static bool order_some(struct tiering *t, struct spill_order *order, uint32_t *at)
{
	struct index *index = t->space->index;
	uint32_t limit = index_record_limit(index), end = limit - *at < INDEX_STEP_KEYS ? limit : *at + INDEX_STEP_KEYS;

	for (; *at < end && order->count < order->most; ++*at)
		if (index_record(index, *at)->state == RECORD_LIVE && index_record_current(index, *at) && has_dirty(t, *at))
			order->of[order->count++] = (struct spill_use){ index_record_last_use(index, *at), spill_name(t, *at) };
	return *at < limit && order->count < order->most;
}

void spill_order(struct tiering *t)
{
	struct spill_order *order = &t->writing->order;
	struct spill_order next = { 0 };
	uint32_t at = 0;
	bool more;

	lock_take(&t->space->lock);
	more = t->drain_newest && order->at == order->count && policy_lru.count(t->dirty);
	next.most = policy_lru.count(t->dirty) + INDEX_STEP_KEYS;
	lock_drop(&t->space->lock);
	if (!more)
		return;
	next.of = calloc(next.most, sizeof(*next.of));
	while (next.of && more) {
		lock_take(&t->space->lock);
		more = order_some(t, &next, &at);
		lock_drop(&t->space->lock);
	}
	if (next.count)
		qsort(next.of, next.count, sizeof(*next.of), by_use);
	free(order->of);
	*order = next;
}

uint32_t spill_choose(struct tiering *t)
{
	uint32_t record = asked(t);

	if (record != INDEX_NONE)
		return record;
	return t->drain_newest && t->writing->order.at < t->writing->order.count ? newest(t) : coldest(t);
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
