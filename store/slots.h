/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants and slots: which piece of the segment holds values of which (class, share), and which of its slots are free.
 *
 *   grant:  none -> populating -> ready -> none          slots_grant_begin, slots_grant_ready, slots_grant_end
 *           ready <-> closed: gives no slot any more     slots_grant_close, slots_grant_reopen
 *           closed -> populating, for another pair       slots_grant_recut
 *           closed -> leaving -> none                    slots_grant_withdraw, slots_grant_end
 *   slot:   free -> taken -> free                        slots_take, slots_give
 *
 * A slot's number is its entry's number in the tables; the grants' entries and their grant_entry are written here, the
 * entries' contents by the index. Slots are taken from the fullest grant, and among equally full ones the lowest, in
 * neighbouring ascending runs whenever free space allows, so that grants empty, copies merge and disk writes merge.
 * Equally full means the same sixty-fourth of free slots; lowest means the lowest id. Ids, bytes and entries of a grant
 * are each the lowest that are free when it is cut.
 *
 * Concurrency: everything runs under the space lock (slots_config.guard), asserted, and neither blocks nor does I/O.
 * Nothing allocates after slots_new but slots_grant_begin and slots_grant_recut (a bitmap) and slots_rebuild. Cutting and ending take time
 * that grows with the number of grants (tens of microseconds for the most there can be); take, give and offset do not.
 */
#ifndef PREFIXFS_STORE_SLOTS_H
#define PREFIXFS_STORE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "index/layout.h"
#include "index/tables.h"
#include "store/base/lock.h"

#define SLOTS_NONE TABLES_NONE
#define SLOTS_GRANT_UNIT (2ull << 20)   /* grants are multiples of it, at multiples of it */
#define SLOTS_GRANT_MAX (512ull << 20)  /* of one grant, unless one slot is larger */
#define SLOTS_BIG_VALUE (32ull << 20)   /* above it a grant is cut to waste under a sixteenth */
#define SLOTS_MAX_GRANTS 16384u

struct slots;

struct slots_config {
	const struct layout *layout;
	struct tables *tables;
	struct lock *guard;
	uint64_t segment_bytes;
	uint64_t budget_bytes;    /* of the namespace: bounds a grant to budget / (8 * pairs), pairs being the sum of the
				   * classes' numbers of shares */
	uint32_t entry_limit;     /* entries [0, entry_limit) are for grants */
	const uint32_t *holds;    /* [entry_limit] of each slot (store/seating.h), for the check; NULL: it is not looked at */
	bool told;                /* nobody holds a slot but who was told its address */
};

int slots_new(const struct slots_config *config, struct slots **ret, struct why *why);
void slots_free(struct slots **slots);

/* ---- grants -------------------------------------------------------------------------------------------------- */

struct slots_grant {
	uint64_t offset, length, slot_bytes;
	uint32_t id, generation;
	uint32_t class_index, share;
	uint32_t node;
	uint32_t slots, free;
	uint32_t first_entry;
	bool ready;  /* its values may be read, and (unless closed) its slots taken */
	bool closed; /* ready, but its free slots are nobody's: neither counted nor taken */
};

/* Bytes that a grant of (class, share) takes, always the same, and no lock is needed to ask: the least multiple of
 * SLOTS_GRANT_UNIT that holds the slots which fit min(SLOTS_GRANT_MAX, budget / (8 * pairs)), but at least one; of values
 * above SLOTS_BIG_VALUE as few as waste under a sixteenth, which is one. */
uint64_t slots_grant_bytes(const struct slots *slots, uint32_t class_index, uint32_t share);
/* The largest number of slots of (class, share) that @budget bytes can ever give: whole grants, bounded also by the
 * segment, the entries and the grants' table. No lock is needed to ask. */
uint64_t slots_capacity(const struct slots *slots, uint32_t class_index, uint32_t share, uint64_t budget);

enum { SLOTS_E_FULL = 1 }; /* no room in the segment, the entries or the grants' table */

/* Cuts a grant and writes its table entry; its slots are not handed out before slots_grant_ready. 0 or SLOTS_E_FULL or
 * -ENOMEM. */
int slots_grant_begin(struct slots *slots, uint32_t class_index, uint32_t share, uint32_t node, uint32_t *ret_id);
void slots_grant_ready(struct slots *slots, uint32_t id);
/* Takes a grant whose slots are all free (or that never became ready) away. Its id may return with a new generation. */
void slots_grant_end(struct slots *slots, uint32_t id);

/* A ready grant gives no slot from here on; slots may be given back, and what it holds stays readable. */
void slots_grant_close(struct slots *slots, uint32_t id);
void slots_grant_reopen(struct slots *slots, uint32_t id); /* a closed one gives slots again */
/* A closed grant whose slots are all free, and which is no shorter than a slot of (class, share), is cut into those: id,
 * offset, length and node stay, generation and version rise, it is populating (its entries are others now) until
 * slots_grant_ready. The caller clears what sessions have acknowledged in the same stay. 0, or SLOTS_E_FULL (entries) or
 * -ENOMEM and it is as before. */
int slots_grant_recut(struct slots *slots, uint32_t id, uint32_t class_index, uint32_t share);
/* A closed grant whose slots are all free is no longer listed; slots_grant_end follows when its pages are gone. */
void slots_grant_withdraw(struct slots *slots, uint32_t id);

uint32_t slots_grant_limit(const struct slots *slots); /* ids are below */
/* False: no such grant now. */
bool slots_grant_get(const struct slots *slots, uint32_t id, struct slots_grant *ret);
uint64_t slots_version(const struct slots *slots); /* of the set of ready grants; rises with every change, from 1 */
uint64_t slots_granted_bytes(const struct slots *slots); /* of all grants, populating ones included */

/* ---- slots --------------------------------------------------------------------------------------------------- */

/* What a session may be given: bit g set = grant g of the current generation is acknowledged. Bit arrays of
 * SLOTS_MAX_GRANTS bits; NULL = every grant. A grant's bit is to be cleared by its owner when the generation changes. */
struct slots_filter {
	const uint64_t *acknowledged;
};

/* Free slots of (class, share) in ready grants that @filter allows. */
uint32_t slots_free_count(const struct slots *slots, uint32_t class_index, uint32_t share, struct slots_filter filter);

/* Where to take the next slot. Valid until used up, also when others take and give in between. */
struct slots_cursor {
	uint32_t grant;  /* SLOTS_NONE = seek again */
	uint32_t next;   /* slot in the grant to look at first */
	uint32_t pair;   /* number of its (class, share) */
	uint64_t offset; /* of the slot that was taken last, as slots_offset */
};

/* Puts @cursor where @count neighbouring slots are free, else at the fullest, lowest grant with free ones. Nothing is set
 * aside: of two cursors at one place the first to take has it. Bounded: where tens of thousands of slots are so ragged that
 * the search takes over 10 us, it may miss a place that a later one finds. */
void slots_seek(struct slots *slots, struct slots_cursor *cursor, uint32_t class_index, uint32_t share, uint32_t count,
		struct slots_filter filter);
/* The next free slot at or after the cursor, taken; then in other grants. SLOTS_NONE: there is none. */
uint32_t slots_take(struct slots *slots, struct slots_cursor *cursor, struct slots_filter filter);
/* A slot that was taken is kept, its entry free and its word 0, for whoever comes; or (@kept false) no longer. */
void slots_keep(struct slots *slots, uint32_t entry, bool kept);
void slots_give(struct slots *slots, uint32_t entry); /* the slot is free; its entry is ENTRY_FREE already */

/* State of slot @number of grant @id: taken or not, closed grants too. */
bool slots_is_free(const struct slots *slots, uint32_t id, uint32_t number);

/* Place of a slot in the segment. Any entry of a grant. Cheap: one table lookup. */
uint64_t slots_offset(const struct slots *slots, uint32_t entry);
/* Of @count entries, @step apart, in order; SLOTS_NONE gives @none. Cheaper where neighbours lie in one grant. */
void slots_offsets(const struct slots *slots, const uint32_t *entries, uint32_t step, uint32_t count, uint64_t none, uint64_t *ret);
uint32_t slots_grant_of(const struct slots *slots, uint32_t entry);
uint64_t slots_slot_bytes(const struct slots *slots, uint32_t entry);
/* The slots that come next from entry @from on, of one grant and at most @most. False: there are none. */
bool slots_next(const struct slots *slots, uint32_t from, uint32_t most, uint32_t *ret_first, uint32_t *ret_count);

struct slots_usage {
	uint64_t slots, free;      /* of ready grants; of closed ones the taken slots alone */
	uint64_t grants;           /* ready and not closed */
	uint64_t payload_bytes;    /* of taken slots, without padding */
	uint64_t slot_bytes;       /* of taken slots */
};
void slots_usage(const struct slots *slots, uint32_t class_index, uint32_t share, struct slots_usage *ret);

/* ---- after a death, before anyone else knows the slots; in this order, the index is rebuilt after the first ------- */

/* Drops grants of the tables that are torn, or contradict the layout, the segment or an earlier one, and those being populated of
 * which a slot is in use all the same. What is left of their entries is cleaned. Returns how many. */
uint32_t slots_judge(struct slots *slots);
/* Slots of ready grants that may be touched by somebody (seats.h) rest: those whose entry is free become ENTRY_QUARANTINED; those that
 * are that and may be touched by nobody become free, unless @read_into: a disk may still read into them. Returns how many rest. */
uint64_t slots_rest(struct slots *slots, bool read_into);
/* Adopts the grants and taken slots that the tables describe: every entry that is not ENTRY_FREE is taken. What was ready is; what was
 * being populated is so again, to be made present by the caller; a torn one is dropped. EINVAL: the tables contradict the layout, the
 * segment or themselves; ENOMEM. After an error the slots can only be freed. */
int slots_rebuild(struct slots *slots, struct why *why);
/* A grant that is being populated becomes ready under another generation than whoever was told of it knows. */
void slots_grant_renew(struct slots *slots, uint32_t id);
void slots_check(const struct slots *slots); /* aborts on the first broken invariant; for tests */

#endif
