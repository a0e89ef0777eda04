/* SPDX-License-Identifier: Apache-2.0 */
#include "store/seating.h"

#include <errno.h>

#include "store/base/killpoint.h"
#include "store/base/memory.h"
#include "store/session_private.h"
#include "store/tiering.h"

#define SWEEP_STAYS 1024u /* of one space in a second: 4 M words, some milliseconds in all */

/* ---- seats ----------------------------------------------------------------------------------------------------------- */

int session_sit(struct session *s, struct why *why)
{
	struct space *space = s->space;

	lock_assert_held(&space->lock);
	if (s->seat != SEATS_NONE)
		return 0;
	s->seat = seats_take(&space->tables, s->client_id, s->number, s->handle, s->process);
	if (s->seat != SEATS_NONE)
		return 0;
	return why_set(why, EAGAIN, "namespace %s: the %u seats of its sessions are taken, and the one that all others share is being "
		       "settled; try again", space->name, SEATS_CROWD);
}

static void seat_leave(struct space *space, uint32_t seat)
{
	seats_leave(&space->tables, seat);
	space->seats_over &= ~(1ull << seat);
	space->seats_leaving |= 1ull << seat;
}

void session_stands_up(struct session *s)
{
	struct space *space = s->space;
	uint32_t seat = s->seat;

	lock_assert_held(&space->lock);
	s->seat = SEATS_NONE;
	if (seat == SEATS_NONE || seat == SEATS_CROWD)
		return;
	if (space->seat_rests[seat])
		space->seats_over |= 1ull << seat;
	else
		seat_leave(space, seat);
}

/* One stay. False: no seat is being left. */
static bool sweep_some(struct space *space)
{
	uint32_t seat, first, count;

	if (!space->seats_leaving)
		return false;
	seat = (uint32_t)__builtin_ctzll(space->seats_leaving);
	if (slots_next(space->slots, space->sweep_at, SEATS_SWEEP, &first, &count)) {
		seats_sweep(&space->tables, seat, first, count);
		space->sweep_at = first + count;
		return true;
	}
	seats_free(&space->tables, seat);
	space->seats_leaving &= ~(1ull << seat);
	space->sweep_at = 0;
	return true;
}

void seating_sweep(struct space *space)
{
	bool more = true;

	for (uint32_t stays = 0; more && stays < SWEEP_STAYS; stays++) {
		lock_take(&space->lock);
		more = sweep_some(space);
		lock_drop(&space->lock);
	}
}

/* ---- slots ----------------------------------------------------------------------------------------------------------- */

void slot_leaves(struct space *space, uint32_t slot)
{
	if (!space->holds[slot]) {
		slots_give(space->slots, slot);
		return;
	}
	tables_entry_set_state(&space->tables, slot, ENTRY_QUARANTINED);
	space->stats.slots_owed++;
}

/* How many of @slots follow the first one. */
static uint32_t neighbours(const uint32_t *slots, uint32_t count)
{
	uint32_t n = 1;

	while (n < count && slots[n] == slots[0] + n)
		n++;
	return n;
}

void slots_tell(struct space *space, const uint32_t *slots, uint32_t count, uint32_t seat)
{
	uint64_t bit = 1ull << seat;

	lock_assert_held(&space->lock);
	for (uint32_t i = 0, n; i < count; i += n) {
		uint32_t *holds = &space->holds[slots[i]];
		uint64_t *users = &space->tables.users[slots[i]];

		n = neighbours(&slots[i], count - i);
		for (uint32_t k = 0; k < n; k++)
			holds[k]++;
		for (uint32_t k = 0; k < n; k++)
			__atomic_store_n(&users[k], users[k] | bit, __ATOMIC_RELAXED);
	}
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* What was only waiting for the last hold: its value has gone meanwhile. */
static void slot_owed(struct space *space, uint32_t slot)
{
	if (space->tables.entries[slot].state != ENTRY_QUARANTINED)
		return;
	index_quarantine_end(space->index, slot);
	slots_give(space->slots, slot);
	space->stats.slots_owed--;
	space_room(space);
}

void slots_unhold(struct space *space, const uint32_t *slots, uint32_t count)
{
	lock_assert_held(&space->lock);
	if (space->tiering) {
		for (uint32_t i = 0; i < count; i++)
			tiering_unhold(space->tiering, slots[i]);
		return;
	}
	for (uint32_t i = 0, n; i < count; i += n) {
		uint32_t *holds = &space->holds[slots[i]];
		uint64_t *users = &space->tables.users[slots[i]];

		n = neighbours(&slots[i], count - i);
		for (uint32_t k = 0; k < n; k++) {
			assert(holds[k] > 0);
			__atomic_store_n(&users[k], --holds[k] ? users[k] : 0, __ATOMIC_RELEASE);
		}
	}
	killpoint(KILLPOINT_RELEASE_WORD);
	for (uint32_t i = 0; i < count && space->stats.slots_owed; i++)
		if (!space->holds[slots[i]])
			slot_owed(space, slots[i]);
}

void slot_rests(struct session *s, uint32_t slot)
{
	struct space *space = s->space;

	assert(space->holds[slot] == 1 && s->seat != SEATS_NONE);
	space->holds[slot] = 0;
	space->seat_rests[s->seat]++;
	space->stats.slots_quarantined++;
}

void slot_rested(struct space *space, uint32_t slot, uint32_t seat)
{
	lock_assert_held(&space->lock);
	assert(!space->holds[slot] && space->seat_rests[seat] > 0);
	space->stats.slots_quarantined--;
	seats_clear(&space->tables, slot);
	index_quarantine_end(space->index, slot);
	slots_give(space->slots, slot);
	if (!--space->seat_rests[seat] && space->seats_over >> seat & 1)
		seat_leave(space, seat);
}

void seating_make_present(struct space *space, uint32_t first, uint32_t count)
{
	memory_make_present(&space->tables.users[first], (size_t)count * sizeof(space->tables.users[0]));
	memory_make_present(&space->holds[first], (size_t)count * sizeof(space->holds[0]));
}
