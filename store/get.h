/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles and get plans: GET_START, GET_TRANSFER, GET_CANCEL, RELEASE, PROBE. Steps as in store/put.h.
 */
#ifndef PREFIXFS_STORE_GET_H
#define PREFIXFS_STORE_GET_H

#include "store/put.h"

struct handle;
struct get_plan;

/* A row inside a page, that hangs off one that hit. */
struct get_candidate {
	struct key key; /* of the endpoint */
	uint64_t consumed, bytes;
};

struct get_start {
	struct session *session;
	uint64_t handle;
	uint8_t ticket[16];        /* zero, or that of all ranks of the request: store/ticket.h */
	const struct key *keys;    /* untrusted */
	const uint32_t *groups;    /* our own copy, or NULL: every key for itself */
	uint32_t key_count, group_count;
	uint64_t start, have, limit; /* tokens; limit 0 = none */
	uint64_t prompt_len;       /* tokens of the prompt, from position 0; 0 = to the end of the keys */
	uint32_t room;             /* tokens that the caller computes behind a boundary where it keeps a state */
	uint32_t class_mask;       /* 0 = all */
	bool wait_inflight;
	bool no_ahead;             /* nothing is read ahead of the transfer */
	uint64_t deadline_ns;      /* of the wait, clock_now_ns */
	uint64_t *hits, *restorable; /* untrusted, written only, whole 64-bit words; or NULL. Without @hits
	                              the search ends at the first miss and hit_count counts up to there */
	uint32_t *missing;         /* untrusted, written only */
	uint32_t missing_capacity;
	struct get_candidate *candidates; /* untrusted, written only */
	uint64_t *wanted;          /* untrusted, written only: boundaries */
	uint32_t candidates_capacity, wanted_capacity;
	/* out */
	uint64_t raw_prefix_hit_len, transferable_len;
	uint64_t dense_len;        /* how far the dense classes reach */
	uint64_t would_len;        /* transferable_len if every state class were dense */
	uint64_t demand;           /* boundary at which a state would have lengthened the hit; 0 = none */
	uint32_t candidate_count, wanted_count; /* in all */
	uint32_t prefix_hit_groups, first_miss_index, first_miss_group_index;
	uint32_t hit_count;
	uint32_t missing_count; /* ranges missing in all; the first missing_capacity of them are listed */
	bool all_hit;
	bool handle_live; /* false: nothing is transferable, the handle has ended already */
	uint64_t bytes;   /* in memory, up to transferable_len */
	uint64_t disk_bytes, disk_us; /* on disk, up to transferable_len; how long reading them is estimated to take */
	/* private */
	struct handle *h;
	uint32_t key;
	uint32_t tick;
	uint64_t generation; /* of the space when the last key was looked up */
	bool missed;      /* the leading run of hits is over */
	bool waiting;     /* announced */
	uint64_t waited_since_ns;
	uint64_t keys_sum[2]; /* with a ticket, of the keys before @key */
	bool wants;       /* wanted boundaries are looked for */
	bool all;         /* all keys are looked up */
	bool all_hits;    /* and counted as hits */
	bool leads;       /* with a ticket: this look-up is that of all */
	bool over;        /* likewise: it has ended */
};

/* EINVAL, EEXIST, EDQUOT. */
int get_start_begin(struct get_start *call, struct why *why);
int get_start_step(struct get_start *call, struct why *why); /* 0, STEP_MORE, STEP_WAIT or an error */
/* The caller gives up waiting (interrupt, NONBLOCK): everything is undone. */
void get_start_undo(struct get_start *call);

struct get_transfer {
	struct session *session;
	uint64_t handle, plan;
	uint64_t boundary, from, to; /* tokens */
	uint32_t class_mask;         /* 0 = the handle's */
	uint32_t candidate;          /* 1 + the number of one; 0 = a boundary of the bitmap */
	uint64_t deadline_ns;        /* of waiting for the disk, clock_now_ns; then what is there is delivered */
	uint64_t *offsets;           /* untrusted, written only */
	uint32_t offsets_capacity;
	bool into;                   /* store/into.c: offsets and plan are not wanted */
	/* out */
	uint64_t delivered_len;
	uint32_t values;
	bool handle_ended;
	/* private */
	struct handle *h;
	struct get_plan *p;
	uint32_t key;        /* next to answer */
	uint32_t first, end; /* keys of the range */
	uint32_t last;       /* key that ends at the boundary */
	uint64_t bytes;
	uint64_t asked_to;   /* `to` as it was asked for */
	uint32_t good;       /* keys before it are delivered */
	/* with a ticket */
	bool over;           /* there is an outcome, and the handle has ended */
	bool decided;        /* what all deliver is known */
	bool gate_waiting;   /* announced */
	uint64_t gate_since_ns;
	/* with a disk tier */
	uint32_t asked_end;  /* `end` as it was asked for */
	uint32_t settled;    /* keys before it are in memory and held; between it and `key` they are wanted */
	uint32_t run;        /* of the handle: where `key` lies or behind it */
	bool stopped;        /* nothing more is wanted: there was no room, or a value is gone */
	bool failed;         /* that one */
	bool spent;          /* the handle ends with this call, though the boundary was not reached */
	bool waiting, wants_room; /* announced */
	uint32_t soft;       /* reads that failed without a reason of their own */
	uint64_t waited_since_ns;
};

/* ENOENT (handle), EEXIST, EALREADY (plan), EINVAL (boundary not restorable, range), ENOSPC (offsets_capacity: names what
 * is needed), ENXIO (a range is not acknowledged; what was read stays in memory for a second), EDQUOT. */
int get_transfer_begin(struct get_transfer *call, struct why *why);
/* 0, STEP_MORE, STEP_WAIT (for the disk; a change of kind COMMIT wakes) or an error. delivered_len may be less than `to`: where
 * memory is too small for the range, or a read failed (docs/disk.md, Reading back): answers behind it are PUT_ANSWER_NONE. With
 * delivered_len = from there is no plan, and the handle has ended. EAGAIN: nothing was there at the deadline; ESHUTDOWN: the session has
 * ended. After both the call is undone. */
int get_transfer_step(struct get_transfer *call, struct why *why);
/* The caller gives up waiting (interrupt, NONBLOCK): the handle is as it was before the call. */
void get_transfer_undo(struct get_transfer *call);

int get_cancel(struct session *session, uint64_t handle, struct why *why); /* ENOENT, EALREADY, EBUSY */
/* One get plan. ENOENT, EALREADY, EINVAL for a put plan. Work in steps inside: no long lock. */
int get_release(struct session *session, uint64_t plan, struct why *why);

struct probe {
	struct session *session;
	const struct key *keys; /* untrusted */
	uint32_t key_count;
	uint64_t *hits;         /* untrusted, written only, or NULL */
	/* out */
	uint32_t hit_count, prefix;
	/* private */
	uint32_t key;
	bool missed;
};
int probe_step(struct probe *call, struct why *why); /* 0 or STEP_MORE; pins nothing, refreshes nothing */

#endif
