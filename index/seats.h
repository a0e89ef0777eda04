/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may be touching a slot's bytes, kept in the persistent tables: 64 seats, one for each session that puts or gets, and one word
 * for each slot, in which bit s says that the session of seat s was given the slot's address.
 *
 *   seat   FREE -> TAKEN (first PUT_START or GET_TRANSFER) -> LEAVING -> FREE
 *   word   0 -> bits are set, before the address is told -> 0, when the slot's last use has ended
 *
 * A word says too much rather than too little: a bit stays while any session uses the slot, also after its own session let go of it. It
 * is 0 whenever nobody uses the slot, exactly. So it says whose end must be waited for, and nothing depends on counting.
 *
 * The word is all that quarantine needs to know after a death. What the slot's entry says and whether its word is 0:
 *
 *   entry        word 0                                  word not 0: not reused until these seats are settled, and in the meantime
 *   FREE         free                                    QUARANTINED
 *   VALUE        a value                                 a value that does not leave the slot (a get plan that is out, a put whose commit
 *                                                        was not answered)
 *   QUARANTINED  free, once no I/O of the predecessor    QUARANTINED
 *                runs (the disk's lock): a read into it
 *
 * In life a seat is left when its session has ended and none of its slots rests in quarantine; the words are swept in the background.
 *
 * Seat SEATS_CROWD is for all sessions that find no other one; only the end of all their processes, and those' guards, settles it.
 *
 * Seats and words are sections of the tables (tables.seats, tables.users).
 *
 * Everything here runs under the space lock, asserted by the caller's guard; nothing blocks or allocates.
 */
#ifndef PREFIXFS_INDEX_SEATS_H
#define PREFIXFS_INDEX_SEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"

#define SEATS 64u
#define SEATS_CROWD 63u
#define SEATS_NONE 0xffffffffu

enum seat_state { SEAT_FREE, SEAT_TAKEN, SEAT_LEAVING };

/* One cache line. */
struct seat {
	uint8_t client_id[16];
	uint64_t session; /* its number, never used twice under one parent */
	uint64_t handle;  /* of its ctl: the kernel's fh */
	uint64_t process; /* inode of its pidfd where those have one of their own (pidfs), else its pid; 0 = not known */
	uint32_t state;   /* enum seat_state; the word that decides; not under check */
	uint32_t reserved;
	uint64_t check;   /* over client_id, session, handle, process and the seat's number */
	uint64_t unused;
};
_Static_assert(sizeof(struct seat) == 64, "one cache line");

#define SEATS_SWEEP 4096u /* words in one stay, at most */

/* A seat for a session: sealed before it is TAKEN. SEATS_CROWD: all others are in use; it is the same for all who get it, says nothing of
 * any of them, and is left by an adoption alone. SEATS_NONE: the crowd's is wanted and is LEAVING; until it is free. 63 looks. */
uint32_t seats_take(struct tables *tables, const uint8_t client_id[16], uint64_t session, uint64_t handle, uint64_t process);
/* The seat, which is TAKEN, will not be named again; its bits may still stand. */
void seats_leave(struct tables *tables, uint32_t number);
/* Takes the bit of a LEAVING seat out of the words of @count slots from @first on (at most SEATS_SWEEP; for each grant in turn, so that no
 * hole of the file is filled). Words without the bit are not written to. */
void seats_sweep(struct tables *tables, uint32_t number, uint32_t first, uint32_t count);
/* No word has its bit any more: all were swept while it was LEAVING. */
void seats_free(struct tables *tables, uint32_t number);
/* State of a seat whose check is right; SEAT_FREE of any other. */
enum seat_state seats_state(const struct tables *tables, uint32_t number);

/* The address of @slot is about to be told to the session of seat @number: one store, before the one that tells. */
static inline void seats_use(struct tables *tables, uint32_t slot, uint32_t number)
{
	uint64_t word = tables->users[slot], with = word | 1ull << number;

	if (with != word)
		__atomic_store_n(&tables->users[slot], with, __ATOMIC_RELEASE);
}

/* What seat @number used of @slot has ended; others' bits stay. One store. */
static inline void seats_take_out(struct tables *tables, uint32_t slot, uint32_t number)
{
	__atomic_store_n(&tables->users[slot], tables->users[slot] & ~(1ull << number), __ATOMIC_RELEASE);
}

/* Nobody uses @slot any more: before its entry becomes ENTRY_FREE. */
static inline void seats_clear(struct tables *tables, uint32_t slot)
{
	if (tables->users[slot])
		__atomic_store_n(&tables->users[slot], 0, __ATOMIC_RELEASE);
}

#endif
