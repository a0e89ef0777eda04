/* SPDX-License-Identifier: Apache-2.0
 *
 * Put plans: PUT_START, PUT_COMMIT, PUT_ABORT.
 *
 * Each runs in steps: begin() checks and registers, step() works on at most PUT_STEP_KEYS keys, and between two steps
 * the caller lets other requests have their turn. A call that began must be stepped to its end (0 or an error).
 * Arrays marked untrusted lie in the client's call buffer: each element is read once, into memory of our own.
 */
#ifndef PREFIXFS_STORE_PUT_H
#define PREFIXFS_STORE_PUT_H

#include "store/session.h"
#include "store/slots.h"
#include "store/vec.h"

#define PUT_STEP_KEYS 1024u
#define PUT_RECORD_PAGES 4096u /* of one record; a longer run makes several */
#define STEP_MORE 1 /* not done: step again, after others had their turn */
#define STEP_WAIT 2 /* nothing to do before something changes or the deadline passes */

/* Numbers as in the ABI; fs/ asserts that they are equal. */
#define PUT_ANSWER_NONE 0xffffffffffffffffull
#define PUT_ANSWER_EXISTS 0xfffffffffffffffeull
#define PUT_ANSWER_INFLIGHT 0xfffffffffffffffdull
#define PUT_ANSWER_DUPLICATE 0xfffffffffffffffcull

enum put_status { PUT_OK, PUT_NOROOM, PUT_TOOBIG, PUT_COMMITTED, PUT_PENDING, PUT_LOST, PUT_ABORTED, PUT_NOPAGES };

#define PUT_ROOT 1u
#define PUT_WHOLE 2u
#define PUT_ROW_ONLY 4u
#define PUT_RUNG 8u

struct put_group {
	struct key parent;
	uint64_t consumed;
	uint32_t keys;
	uint32_t class_mask;
	uint32_t flags;
	uint32_t priority;
	uint32_t pause_ms;
	uint32_t reserved;
};

struct put_plan;

/* A class that a call names, as the session writes it. Private to put.c and put_values.c. */
struct put_class {
	uint32_t number, share;
	uint32_t every_pages;
	uint64_t capacity; /* slots that the whole budget could ever give */
	uint64_t slot_bytes;
	uint64_t *answers; /* untrusted: the first of its keys, or for a state class of its groups */
	struct slots_cursor cursor;
};

struct put_tickets; /* of a namespace: store/ticket.h */
struct put_ticket;

/* A put plan's part in a ticket, while its PUT_START is under way. */
struct ticket_put {
	struct put_tickets *tickets;
	struct put_ticket *ticket; /* NULL: none */
	bool first;                /* the caller decides room for all */
	struct vec32 begun;        /* where it has begun values: struct fill_span, as words */
};

struct put_start {
	struct session *session;
	uint64_t plan;
	const struct put_group *groups; /* our own copy, checked against each other here */
	uint32_t group_count;
	const struct key *keys;         /* untrusted */
	uint32_t key_count;
	uint32_t class_mask;
	uint8_t ticket[16];             /* zero, or that of all ranks that put these groups: store/ticket.h */
	uint64_t deadline_ns;           /* of the ticket, when this is the first rank, clock_now_ns; 0: after fill_ttl */
	uint64_t *answers;              /* untrusted, written only */
	uint32_t *status;               /* untrusted, written only */
	/* out */
	uint32_t new_values, groups_ok;
	/* private to put.c and put_values.c */
	struct put_plan *p;
	struct put_class class[LAYOUT_MAX_CLASSES]; /* of pages, then of rows */
	uint32_t page_classes, classes;
	uint32_t always;      /* mask of the classes of which every page has a value */
	uint32_t row_mask;    /* of the layout's state classes */
	bool fits;            /* a group of all keys would fit: no group need be asked about */
	uint64_t prepared_limit; /* bytes that the session may have prepared */
	uint32_t group, key;  /* being worked on */
	uint32_t in_group;    /* keys of the group that are done */
	uint32_t run;         /* open record, or none */
	uint32_t run_pages;
	struct key previous;  /* key before the next one */
	struct ticket_put put;
	uint64_t sum[2];      /* with a ticket: of groups and keys */
	uint32_t summed;      /* keys that are in it */
	bool ticketed, ended; /* it has a ticket and has yet to come to it; that had ended: nothing gets room */
	uint32_t last_record; /* where the last key stands that does: where the next one's parent is looked for first */
	uint16_t last_page;
};

/* Number of answers that PUT_START writes, to check the call buffer against. UINT64_MAX: the mask names no class. */
uint64_t put_answer_count(const struct layout *layout, uint32_t class_mask, uint32_t keys, uint32_t groups);

/* EINVAL, EROFS (read-only session), EEXIST (plan in use), EALREADY (plan ended), EDQUOT (too many plans). A step is ESTALE
 * when the namespace was reset since. */
int put_start_begin(struct put_start *call, struct why *why);
int put_start_step(struct put_start *call, struct why *why); /* 0, STEP_MORE or an error, which undid everything */

struct put_end {
	struct session *session;
	uint64_t plan;
	uint64_t seq; /* the outcome is kept until it is acknowledged */
	bool commit;
	uint32_t first_group, group_count;
	uint32_t *status; /* untrusted, written only */
	/* out */
	uint32_t done;
	uint32_t outcome; /* enum put_status of the plan when it has ended, else PUT_OK */
	/* private to put_end.c: groups that a reset took, and what is done next */
	uint32_t stale;
	struct put_plan *p;
	uint32_t group, value, record, pin;
};

/* ENOENT (unknown plan), EALREADY (ended: outcome is set; of a session before an adoption status too, and done counts committed ones),
 * EINVAL (range), EBUSY (another request is at it). The last step
 * of a commit is ESTALE when groups were lost because the namespace was reset since the plan began; all outputs are set. */
int put_end_begin(struct put_end *call, struct why *why);
int put_end_step(struct put_end *call, struct why *why);

#endif
