/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats in life: which seat a session has, and the uses of slots that the words are about (index/seats.h).
 *
 *   put   slot_tell, then the entry      -> committed, aborted, given up: slot_let_go
 *                                        -> its session ended, its process lives: slot_rests, the word stays -> slot_rested
 *   get   slots_tell, then the offset    -> released: slots_unhold
 *         (held by the disk tier already: seats_use, then the offset)
 *   disk  a hold alone: nobody was told
 *
 * space.holds counts all of them; the last hold that goes makes the word 0. A slot that rests has no hold: its word says whom it waits for.
 *
 * A seat is left when its session has ended and none of its slots rests; its bits, where another session's use kept them, are then taken
 * out in the background, and it is free. The crowd's seat is never left here.
 *
 * All under the space lock but for what says otherwise; nothing blocks or allocates.
 */
#ifndef PREFIXFS_STORE_SEATING_H
#define PREFIXFS_STORE_SEATING_H

#include <assert.h>

#include "index/seats.h"
#include "store/space.h"

/* The session's seat, taken if it has none. EAGAIN: the crowd's is wanted, and is being settled. */
int session_sit(struct session *session, struct why *why);
/* The session has ended and uses no slot any more but those that rest. */
void session_stands_up(struct session *session);

/* The address of @slot, which was free, is about to be told to the session of @seat, which holds it from now on. Nothing is read: a put
 * takes slots whose lines are not there. */
static inline void slot_tell(struct space *space, uint32_t slot, uint32_t seat)
{
	space->holds[slot] = 1;
	__atomic_store_n(&space->tables.users[slot], 1ull << seat, __ATOMIC_RELEASE);
}

/* A hold goes; true: it was the last one. Before the slot's entry changes. */
static inline bool slot_let_go(struct space *space, uint32_t slot)
{
	assert(space->holds[slot] > 0);
	if (--space->holds[slot])
		return false;
	seats_clear(&space->tables, slot);
	return true;
}

/* The same for @count slots that may be in use, in any order; quickest where they are neighbours. */
void slots_tell(struct space *space, const uint32_t *slots, uint32_t count, uint32_t seat);
/* Holds of a get plan go; what was only waiting for that follows, with a disk tier what it has to do with the slots too. */
void slots_unhold(struct space *space, const uint32_t *slots, uint32_t count);
/* The value of @slot has gone: the slot is free, or owed until it is not held any more. Its entry is ENTRY_FREE. */
void slot_leaves(struct space *space, uint32_t slot);

/* A put's hold goes, and the slot rests: nobody knows who still writes there. Before its entry becomes ENTRY_QUARANTINED. */
void slot_rests(struct session *session, uint32_t slot);
/* It is free again. */
void slot_rested(struct space *space, uint32_t slot, uint32_t seat);

/* Without the lock, about once a second: takes bits of left seats out of the words, SEATS_SWEEP in a stay, a bounded number of stays. */
void seating_sweep(struct space *space);
/* Without the lock: memory of words and holds of @count slots is present. */
void seating_make_present(struct space *space, uint32_t first, uint32_t count);

/* Without the lock: fetches what a stay will write for @count slots. Places are passed over. */
static inline void seating_prefetch(const struct space *space, const uint32_t *slots, uint32_t count)
{
	uint32_t line = UINT32_MAX;

	for (uint32_t i = 0; i < count; i++) {
		if (slots[i] / 8 == line || slots[i] >= space->tables.slot_capacity)
			continue;
		line = slots[i] / 8;
		__builtin_prefetch(&space->tables.users[slots[i]], 1);
		__builtin_prefetch(&space->holds[slots[i]], 1);
	}
}

#endif
