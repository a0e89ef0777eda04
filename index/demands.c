/* SPDX-License-Identifier: Apache-2.0
 *
 * A map over a table. Those that are OPEN stand in a list, the one that was asked for longest ago first.
 */
#include "index/demands.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "index/keymap.h"
#include "store/base/memory.h"

#define NONE KEYMAP_NONE

enum demand_state { DEMAND_FREE, DEMAND_OPEN, DEMAND_TAKING, DEMAND_KEPT };

struct demand {
	struct key key;
	uint64_t hash;
	uint64_t consumed;
	uint32_t next, prev; /* of the OPEN ones; next: of the free ones */
	uint8_t state;       /* enum demand_state */
};
_Static_assert(sizeof(struct demand) <= 64, "one cache line");

struct demands {
	struct lock *guard;
	struct keymap map;
	struct demand *at;    /* [DEMANDS_MAX] */
	uint32_t top;         /* never used from here on */
	uint32_t free;        /* list */
	uint32_t first, last; /* OPEN: asked for longest ago, and last */
	struct demands_counters counters;
};

#define TABLE_BYTES (DEMANDS_MAX * sizeof(struct demand))

static void forget_all(struct demands *d)
{
	d->top = 0;
	d->free = d->first = d->last = NONE;
	d->counters.open = d->counters.taking = d->counters.kept_now = 0;
}

int demands_new(struct lock *guard, struct demands **ret, struct why *why)
{
	struct demands *d = calloc(1, sizeof(*d));

	if (d)
		d->at = memory_reserve(TABLE_BYTES, false);
	if (!d || !d->at || keymap_init(&d->map, DEMANDS_MAX, &d->at[0].key, sizeof(d->at[0]))) {
		demands_free(&d);
		return why_set(why, ENOMEM, "no memory for the demands of a namespace");
	}
	d->guard = guard;
	forget_all(d);
	*ret = d;
	return 0;
}

void demands_free(struct demands **demandsp)
{
	struct demands *d = *demandsp;

	*demandsp = NULL;
	if (!d)
		return;
	keymap_deinit(&d->map);
	memory_release(&d->at, TABLE_BYTES);
	free(d);
}

bool demands_any(const struct demands *d)
{
	lock_assert_held(d->guard);
	return d->map.count > 0;
}

static uint32_t find(const struct demands *d, const struct key *key, uint64_t hash)
{
	return d->map.count ? keymap_find(&d->map, hash, key, NULL, NULL) : NONE;
}

/* ---- the OPEN ones --------------------------------------------------------------------------------------------- */

static void list_append(struct demands *d, uint32_t n)
{
	d->at[n].prev = d->last;
	d->at[n].next = NONE;
	if (d->last == NONE)
		d->first = n;
	else
		d->at[d->last].next = n;
	d->last = n;
	d->counters.open++;
}

static void list_remove(struct demands *d, uint32_t n)
{
	struct demand *demand = &d->at[n];

	assert(demand->state == DEMAND_OPEN && d->counters.open > 0);
	if (demand->prev == NONE)
		d->first = demand->next;
	else
		d->at[demand->prev].next = demand->next;
	if (demand->next == NONE)
		d->last = demand->prev;
	else
		d->at[demand->next].prev = demand->prev;
	d->counters.open--;
}

/* It leaves the state that it is in, and has none for a moment. */
static void leave_state(struct demands *d, uint32_t n)
{
	if (d->at[n].state == DEMAND_OPEN)
		list_remove(d, n);
	else if (d->at[n].state == DEMAND_TAKING)
		d->counters.taking--;
	else
		d->counters.kept_now--;
}

static void forget(struct demands *d, uint32_t n)
{
	leave_state(d, n);
	keymap_remove(&d->map, d->at[n].hash, n);
	d->at[n].state = DEMAND_FREE;
	d->at[n].next = d->free;
	d->free = n;
}

/* A place for a new one; NONE: all are being taken or kept. */
static uint32_t take_place(struct demands *d)
{
	uint32_t n;

	if (d->free == NONE && d->top < DEMANDS_MAX)
		return d->top++;
	if (d->free == NONE && d->first != NONE) {
		d->counters.demands_dropped++;
		forget(d, d->first);
	}
	n = d->free;
	if (n != NONE)
		d->free = d->at[n].next;
	return n;
}

/* ---- what becomes of one --------------------------------------------------------------------------------------- */

void demands_record(struct demands *d, const struct key *key, uint64_t hash, uint64_t consumed)
{
	lock_assert_held(d->guard);
	uint32_t n = find(d, key, hash);

	if (n != NONE) {
		d->counters.demands_repeated++;
		if (d->at[n].state == DEMAND_OPEN) {
			list_remove(d, n);
			list_append(d, n);
		}
		return;
	}
	d->counters.demands_recorded++;
	n = take_place(d);
	if (n == NONE) {
		d->counters.demands_dropped++;
		return;
	}
	d->at[n] = (struct demand){ .key = *key, .hash = hash, .consumed = consumed, .state = DEMAND_OPEN };
	list_append(d, n);
	bool there = keymap_insert(&d->map, hash, n);

	assert(there);
}

bool demands_has(const struct demands *d, const struct key *key, uint64_t hash)
{
	lock_assert_held(d->guard);
	return find(d, key, hash) != NONE;
}

void demands_taking(struct demands *d, const struct key *key, uint64_t hash)
{
	lock_assert_held(d->guard);
	uint32_t n = find(d, key, hash);

	if (n == NONE || d->at[n].state != DEMAND_OPEN)
		return;
	leave_state(d, n);
	d->at[n].state = DEMAND_TAKING;
	d->counters.taking++;
	d->counters.demands_acted++;
}

void demands_kept(struct demands *d, const struct key *key, uint64_t hash)
{
	lock_assert_held(d->guard);
	uint32_t n = find(d, key, hash);

	if (n == NONE || d->at[n].state == DEMAND_KEPT)
		return;
	leave_state(d, n);
	d->at[n].state = DEMAND_KEPT;
	d->counters.kept_now++;
	d->counters.demands_kept++;
}

void demands_gone(struct demands *d, const struct key *key, uint64_t hash, bool empty)
{
	lock_assert_held(d->guard);
	uint32_t n = find(d, key, hash);

	if (n == NONE)
		return;
	if (d->at[n].state == DEMAND_KEPT)
		d->counters.demands_evicted++;
	else if (d->at[n].state == DEMAND_TAKING && empty)
		d->counters.demands_dropped++;
	else
		return;
	forget(d, n);
}

void demands_reset(struct demands *d)
{
	lock_assert_held(d->guard);
	d->counters.demands_dropped += d->counters.open + d->counters.taking;
	d->counters.demands_evicted += d->counters.kept_now;
	for (uint32_t n = 0; n < d->top; n++)
		if (d->at[n].state != DEMAND_FREE)
			keymap_remove(&d->map, d->at[n].hash, n);
	forget_all(d);
}

const struct demands_counters *demands_counters(const struct demands *d)
{
	lock_assert_held(d->guard);
	return &d->counters;
}
