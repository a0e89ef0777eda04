/* SPDX-License-Identifier: Apache-2.0
 *
 * What handles and get plans are made of. Private to store/get*.c.
 *
 * Both belong to the request that marked them busy. Their pins are runs: one pin of a record covers the consecutive keys
 * that lie in it. A transfer moves the pins of its range from the handle to the plan; a record that reaches beyond the
 * range gets a second pin.
 */
#ifndef PREFIXFS_STORE_GET_PRIVATE_H
#define PREFIXFS_STORE_GET_PRIVATE_H

#include <string.h>

#include "index/gates.h"
#include "store/get.h"
#include "store/session_private.h"
#include "store/space.h"
#include "store/ticket.h"
#include "store/tiering.h"

struct run {
	uint32_t record;
	uint32_t first; /* key */
	uint32_t end;   /* key behind the last */
	uint32_t page;  /* of the first key; the others follow */
};

struct row_pin {
	uint32_t key; /* the row stands at the end of this key's page */
	uint32_t record;
};

/* A read that GET_START began ahead of the transfer. */
struct ahead {
	uint32_t key;
	struct load_name name;
};

/* A row within the page behind that of row.key. */
struct candidate {
	struct key key; /* of the endpoint */
	uint64_t consumed;
	struct row_pin row;
};

#define FOUND_CANDIDATES 16u /* as PFS_MAX_CANDIDATES */

/* What a look-up found. Its handle's own, and changed by its transfers; or a ticket's, with all its handles, and constant then. */
struct found {
	struct found *next;     /* of those that are kept for reuse */
	uint64_t start;         /* tokens before key 0 */
	uint32_t keys;
	uint32_t first;         /* first key that is required: below it the caller has everything */
	uint32_t intact;        /* keys that hit from 0 on, the not required ones included */
	uint32_t class_mask;
	uint32_t columns;       /* page classes of the mask */
	uint8_t class_of[LAYOUT_MAX_CLASSES]; /* [column] */
	struct vec32 hits;      /* bitmap over keys */
	struct vec32 restorable; /* bitmap over keys: the end of its page is restorable */
	struct vec32 grouped;   /* restorable, and on a group boundary */
	struct gates gates;     /* of the classes of the mask; after the look-up to ask what a boundary needs */
	bool plain;             /* there are dense classes alone, each with a value on each page; and states */
	struct vec32 would;     /* with states: restorable if they were dense */
	struct vec32 wanted;    /* likewise: worth putting a row at, whatever was found */
	struct run *runs;
	uint32_t run_count, run_capacity;
	struct row_pin *rows;
	uint32_t row_count, row_capacity;
	struct candidate candidate[FOUND_CANDIDATES]; /* each with a pin; deepest first */
	uint32_t candidates;
	uint32_t reach;         /* last key that a boundary or a candidate needs; INDEX_NONE: there is none */
	/* what GET_START answers */
	uint32_t deepest;       /* key whose end is the deepest restorable boundary on a group boundary; INDEX_NONE: there is none */
	uint32_t prefix_hit_groups, first_miss_group_index;
	uint32_t hit_count;
	uint64_t dense_len, would_len, demand;
};

struct handle {
	struct holding holding;
	const struct found *found; /* its own or its ticket's; NULL: nothing is known yet */
	struct found *own;      /* filled by a look-up; NULL where a ticket has taken it */
	struct ticket_seat seat;
	uint32_t boundary;      /* key whose end is the boundary, INDEX_NONE = not chosen */
	uint32_t candidate;     /* 1 + the number of the one that was chosen with it; 0: none */
	uint32_t next;          /* key that the next range may begin at */
	uint32_t run_at;        /* runs before it were moved to plans */
	struct vec32 entries;   /* [key - first][column], INDEX_NONE where `every` has no value */
	/* with a disk tier */
	struct ahead *ahead;    /* in order of keys; those before ahead_at were detached */
	uint32_t ahead_at, ahead_count, ahead_capacity;
	bool row_held;
	struct vec32 row_slots; /* of the row at the boundary, held from the first range on: one for each wanted class, in order */
	struct vec32 kept;      /* slots held after ENXIO, */
	uint64_t kept_until_ns; /* until then */
};

/* One value of a range while it is transferred: read (name), here (entry, held), or neither. */
struct wanted {
	struct load_name name;
	uint32_t entry; /* INDEX_NONE */
};

struct get_plan {
	struct holding holding;
	struct vec32 pins;
	struct vec32 slots;    /* held until the end */
	/* with a disk tier */
	struct wanted *wanted; /* [keys of the range][columns of the handle], then the row's classes; during the transfer */
	uint32_t wanted_capacity;
};

static inline bool bit_get(const struct vec32 *bits, uint32_t i)
{
	return bits->at[i / 32] >> (i % 32) & 1;
}

static inline void bit_set(struct vec32 *bits, uint32_t i)
{
	bits->at[i / 32] |= 1u << (i % 32);
}

/* Empties @found (NULL: a new one) for @keys keys; NULL: no memory, and it is freed. */
struct found *found_begin(struct found *found, uint32_t keys);
void found_free(struct found *found); /* NULL is allowed; no pin is left */

/* The handle is over what @found says, nothing of which was transferred yet. */
void handle_begin(struct handle *handle, const struct found *found);
/* Has it a @found of its own, whose pins are its session's? Else they are its ticket's. */
static inline bool handle_has_own(const struct handle *handle)
{
	return handle->found && handle->found == handle->own;
}

/* Does @boundary, in tokens, take the value of @column at @key? Of a window it needs some only. */
static inline bool handle_delivers(const struct handle *h, uint32_t column, uint32_t key, uint64_t boundary)
{
	const struct found *f = h->found;
	uint32_t class_index = f->class_of[column];

	return h->entries.at[(size_t)(key - f->first) * f->columns + column] != INDEX_NONE &&
	       (!(f->gates.windows >> class_index & 1) ||
		gates_needed(&f->gates, class_index, f->start + (uint64_t)(key + 1) * f->gates.layout->page_tokens, boundary));
}

/* The run that @key lies in, from number *run on, which goes on with it; NULL: nothing is there, and nothing is wanted. */
static inline const struct run *handle_run(const struct handle *h, uint32_t key, uint32_t *run)
{
	const struct found *f = h->found;

	while (*run < f->run_count && f->runs[*run].end <= key)
		++*run;
	return *run < f->run_count && f->runs[*run].first <= key ? &f->runs[*run] : NULL;
}

/* Gives the pins of runs [from, run_count) that begin at or behind @key back, and shortens the list; the same for rows. (Candidates have
 * handle_release_candidates.)
 * In steps under the lock, which is not held. Returns the keys that were released. */
uint32_t handle_release_behind(struct session *session, struct handle *handle, uint32_t key);
void handle_release_candidates(struct session *session, struct handle *handle);
/* Gives every pin back. */
void handle_release_all(struct session *session, struct handle *handle);
/* Gives the slots that a plan holds back. In steps under the lock, which is not held. */
void plan_unhold(struct session *session, struct vec32 *slots);
/* Ends a handle that was taken out of the table: no pin is left; its memory is kept or freed. */
void handle_retire(struct session *session, struct handle *handle);

/* ---- get.c: what a GET_START under a ticket needs, too --------------------------------------------------------------- */

/* An empty look-up of the handle's own, for what is asked; false: no memory. */
bool get_start_own(struct get_start *call);
bool get_start_wait(struct get_start *call); /* announces that it waits; true: for the first time, look again */
void get_start_stop_waiting(struct get_start *call);
/* The handle's found is complete: the answer, and the end of the call. */
void get_start_answer(struct get_start *call);

/* ---- get_ticket.c ------------------------------------------------------------------------------------------------------ */

#define GET_LEADS 3 /* look up */

static inline bool get_has_ticket(const struct get_start *call)
{
	uint64_t word[2];

	memcpy(word, call->ticket, sizeof(word));
	return word[0] | word[1];
}

/* 0: answered; STEP_MORE, STEP_WAIT, GET_LEADS, or an error, which undid everything. */
int get_ticket_step(struct get_start *call, struct why *why);
void get_ticket_decide(struct get_start *call); /* the leader's look-up is complete: it is the ticket's from now on */
void get_ticket_undo(struct get_start *call);   /* gives its seat back */
void handle_idle(struct session *session, struct handle *handle); /* ticket_idle, where it has a ticket. No lock held */
/* The handle ends, or has come to its end (@keep): its place in the ticket, after ticket_idle where
 * this request used it, as of ticket_leave. No lock held. */
void handle_leave(struct session *session, struct handle *handle, bool keep);

/* ---- transfer.c: what both kinds of transfer need ---------------------------------------------------------------- */

/* Where the answers for a class of the mask begin. */
uint32_t transfer_offsets_of(const struct get_transfer *call, uint32_t class_index);
/* The row at the end of @key's page, or of the candidate that was chosen. NULL: none stands there. */
const struct row_pin *handle_row(const struct handle *handle, uint32_t key);
/* Tokens at the end of the range when keys before @key are delivered, the row included with the last. */
uint64_t transfer_position(const struct get_transfer *call, uint32_t key);
/* Of keys before @key, behind which a value is gone, those up to the deepest boundary that GET_START found restorable, as far as the range goes. */
uint32_t transfer_restorable(const struct get_transfer *call, uint32_t key);
/* Keys before *key can be delivered by this rank: *key, those that all deliver. Without a ticket nothing changes. 0; STEP_WAIT; EINVAL:
 * another range than the others', the caller undoes. */
int transfer_gate(struct get_transfer *call, uint32_t *key, struct why *why);
/* Pins of what call->end and call->to say pass to the plan; the handle ends at the boundary, or when it is spent. */
void transfer_finish(struct get_transfer *call);
/* A value lies in @grant, which the session has not acknowledged: the plan ends, the handle stays. ENXIO. */
int transfer_refuse(struct get_transfer *call, uint32_t grant, struct why *why);

/* ---- transfer_tiers.c: values that may be on disk ----------------------------------------------------------------- */

bool transfer_tiers_reserve(struct get_transfer *call, const struct handle *handle, struct get_plan *plan); /* false: no memory */
void transfer_tiers_begin(struct get_transfer *call);
int transfer_tiers_step(struct get_transfer *call, struct why *why);
void transfer_tiers_undo(struct get_transfer *call);
/* Detaches what was begun ahead for keys before @key. In steps under the lock, which is not held; so does what follows. */
void handle_detach(struct session *session, struct handle *handle, uint32_t key);
/* Gives all that a handle has of the disk tier's back. */
void handle_tiers_end(struct session *session, struct handle *handle);

/* ---- get_candidates.c ----------------------------------------------------------------------------------------------------- */

/* Into the handle's own found: at most FOUND_CANDIDATES, behind @hit tokens. No lock held. */
void get_candidates(struct get_start *call, uint64_t hit);
void get_tell_candidates(struct get_start *call);
static inline uint32_t found_pins(const struct found *f)
{
	return f->run_count + f->row_count + f->candidates;
}

/* ---- get_ahead.c ------------------------------------------------------------------------------------------------------ */

/* Sets bytes, disk_bytes, disk_us of what ends at key @deepest. */
void get_estimate(struct get_start *call, uint32_t deepest);
/* Begins reads of the first keys above `have`, as far as there is room and the namespace's intake goes. */
void get_look_ahead(struct get_start *call, uint32_t deepest);

#endif
