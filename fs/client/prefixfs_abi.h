/* SPDX-License-Identifier: Apache-2.0
 *
 * The control ABI of prefixfs, version 1: what travels through ioctl(2) on ns/<name>/ctl.
 *
 * Every struct is fixed-width, without padding, begins with struct pfs_call and is at most 4 KiB. Arrays do not travel in the
 * structs: they lie in the session's call buffer and a struct names each by its byte offset there (8-aligned). The daemon reads
 * each array element once, into memory of its own, before it checks it.
 *
 * Conventions, everywhere: lengths and positions are in tokens; indices count from 0 in the caller's order and a missing index is
 * PFS_INDEX_NONE; deadlines are relative milliseconds; reserved fields are zero (EINVAL otherwise). An ioctl that fails returns -1
 * with errno and has still filled the `out` fields that its comment names; the sentence that says why is read with
 * PFS_IOC_LAST_ERROR. docs/abi.md documents each operation with its errors.
 *
 * A struct may grow at its end. An operation keeps its number; the size in the ioctl's number and in pfs_call.size says which
 * version of the struct a caller has, and the daemon takes each that there was (PFS_BYTES_*): what a caller's struct lacks is 0,
 * or not wanted, and is not answered. So programs built before work with a later daemon; one built after asks an earlier daemon by
 * the earlier size, where it wants nothing of what is new.
 */
#ifndef PREFIXFS_ABI_H
#define PREFIXFS_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PFS_ABI_VERSION 1u

/* Limits. Passing one is EINVAL unless another errno is named. */
#define PFS_KEY_BYTES 32u            /* of a key */
#define PFS_MAX_CLASSES 16u          /* value classes of a layout */
#define PFS_MAX_SHARES 64u           /* shares of a class */
#define PFS_MAX_RECORD_PAGES 4096u   /* pages of a record; a longer run makes several */
#define PFS_MAX_KEYS 65536u          /* keys of one call: E2BIG */
#define PFS_MAX_GROUPS 65536u        /* groups of one call: E2BIG */
#define PFS_MAX_PLANS 4096u          /* plans and handles a session holds: EDQUOT */
#define PFS_MAX_RELEASE 4096u        /* plans of one RELEASE: E2BIG */
#define PFS_MIN_CALL_BUFFER (64u << 10)
#define PFS_MAX_CALL_BUFFER (64u << 20)
#define PFS_MAX_DEADLINE_MS 600000u  /* ten minutes */
#define PFS_STEP_KEYS 1024u          /* a longer batch runs in pieces of this many keys */
#define PFS_ENDED_PLANS 1024u        /* ended plans and handles, together, that a session still answers EALREADY for */
#define PFS_MAX_IMPORTS 16u          /* memory files that a session has imported: EDQUOT */

#define PFS_TICKET_BYTES 16u
#define PFS_MAX_TICKETS 4096u        /* of a namespace, that have not ended: EDQUOT */
#define PFS_MAX_CANDIDATES 16u       /* of one GET_START */
#define PFS_MAX_WANTED 4096u         /* boundaries listed by one GET_START */

#define PFS_MAX_BLOB_NAME 255u       /* bytes of a blob's name */
#define PFS_MAX_BLOB_TRANSFERS 16u   /* writes and reads of blobs in pieces that a session has under way: EDQUOT */
#define PFS_MAX_BLOB_LOCKS 256u      /* of a session: EDQUOT */

#define PFS_INDEX_NONE 0xffffffffu
#define PFS_OFFSET_NONE 0xffffffffffffffffull /* of an array in the call buffer: it is not wanted */
#define PFS_RANK_NONE 0xffffffffu
#define PFS_NODE_ANY 0xffffffffu
#define PFS_BLOB_MAGIC 0x4658504c414e5631ull

struct pfs_key {
	__u8 bytes[PFS_KEY_BYTES];
};

/* Begins every request. */
struct pfs_call {
	__u32 size;        /* sizeof the whole struct */
	__u32 flags;       /* PFS_CALL_* */
	__u64 seq;         /* the client's number of this request, never 0; the same number is the same request */
	__u64 acked_seq;   /* the client has every answer up to this one: their outcomes need not be kept */
	__u32 deadline_ms; /* of requests that may wait; 0 takes the default of the operation */
	__u32 cpu;         /* 1 + the CPU that the calling thread is pinned to: the daemon answers on it if it can, so that no
	                      other CPU has to be woken twice; 0 = the thread is not pinned */
};

#define PFS_CALL_NONBLOCK 1u /* say EAGAIN instead of waiting; poll(2) then tells when to ask again */
/* poll(2) on ctl: POLLIN once something changed since the last ioctl of the session that could be worth asking about: a
 * request answered EAGAIN may go on, room after a NOROOM, other ranges. EAGAIN, EINTR and EBUSY are no outcomes: the same
 * seq may be sent again after them. */

/* ---- session ------------------------------------------------------------------------------------------------- */

#define PFS_ATTACH_WAIT_PREWARM 1u /* answer when the namespace's floor is populated, or at the deadline */

struct pfs_attach {
	struct pfs_call call;
	__u32 abi_version;        /* in: PFS_ABI_VERSION; another is EPROTONOSUPPORT */
	__u32 rank;               /* in: 0..world-1, or PFS_RANK_NONE for a session without data */
	__u32 node;               /* in: NUMA node of the caller's device, or PFS_NODE_ANY */
	__u32 flags;              /* in: PFS_ATTACH_* */
	__u64 call_buffer_bytes;  /* in: wanted; out: given (whole pages) */
	__u8 client_id[16];       /* in: random, repeated by a re-attach */
	__u64 session;            /* out: the number under sessions/ */
	__u64 segment_bytes;      /* out: length to map */
	__u64 segment_page_bytes; /* out: page size of the backing */
	__u64 generation;         /* out: of the namespace: rises with each RESET; the segment and its ranges stay */
	__u64 ranges_version;     /* out: of SEGMENTS */
	__u32 world;              /* out */
	__u32 page_tokens;        /* out */
	__u32 classes;            /* out: number of value classes */
	__u32 token_ttl_ms;       /* out: how long the token below is good */
	__u8 fingerprint[16];     /* out: of the layout */
	__u8 token[16];           /* out: to present, once, on the socket */
	__u32 read_only;          /* out: 1 for a session opened O_RDONLY */
	__u32 share[PFS_MAX_CLASSES]; /* out: this rank's share of each class; PFS_INDEX_NONE without a rank */
	__u32 state_mask;         /* out: bit c is set when class c is a state class */
	char socket_path[104];    /* out: NUL-terminated */
	/* second version */
	__u32 guard_pid;          /* in: 0, or a further process that may write to the segment for this client, and after its end (a CUDA MPS
	                             server): slots of puts that the client leaves open are free when both have ended. Of the daemon's pid
	                             namespace: ESRCH */
	__u32 reserved1;
	__u64 value_bytes[PFS_MAX_CLASSES]; /* out: bytes of a value of each class in this rank's share, without padding; 0 without a rank
	                                       and beyond `classes` */
};

/* A granted range of the segment: slots of one size for one (class, share). */
struct pfs_range {
	__u64 offset; /* in the segment, a multiple of 2 MiB */
	__u64 length; /* a multiple of 2 MiB */
	__u64 slot_bytes;
	__u32 id;
	__u32 generation; /* of this range: it changes when the range is cut anew */
	__u32 class_index;
	__u32 share;
	__u32 node; /* NUMA node, or PFS_NODE_ANY */
	__u32 reserved;
};

struct pfs_segments {
	struct pfs_call call;
	__u64 ranges_offset; /* in: struct pfs_range[capacity] in the call buffer */
	__u32 first;         /* in: skip this many */
	__u32 capacity;      /* in */
	__u32 count;         /* out: written */
	__u32 total;         /* out: existing */
	__u64 version;       /* out: rises with every change */
	__u64 generation;    /* out: of the namespace, as of ATTACH; a range has its own */
};

struct pfs_range_ack {
	__u32 id;
	__u32 generation;
};

struct pfs_segments_ack {
	struct pfs_call call;
	__u64 acks_offset; /* in: struct pfs_range_ack[count] */
	__u32 count;       /* in */
	__u32 accepted;    /* out: how many were right; a wrong id or stale generation is ESTALE after the others counted */
	__u64 version;     /* out */
};

/* ---- put ----------------------------------------------------------------------------------------------------- */

#define PFS_GROUP_ROOT 1u     /* the first key begins a chain; `parent` is zero */
#define PFS_GROUP_WHOLE 2u    /* all or nothing, for ever: what it stores is never trimmed or evicted in part. At most
                                 PFS_MAX_RECORD_PAGES keys (more are TOOBIG) */
#define PFS_GROUP_ROW_ONLY 4u /* one key, the endpoint, which owns no page here; only state classes in the mask */
#define PFS_GROUP_RUNG 8u     /* its row is one of the ladder's, wherever it stands: the next one of its chain does not replace it */

struct pfs_put_group {
	struct pfs_key parent; /* key before the first one */
	__u64 consumed;        /* tokens at the endpoint; key i of n ends n-1-i pages before it */
	__u32 keys;            /* at least 1 */
	__u32 class_mask;      /* bit c: values of class c are put; a subset of the call's */
	__u32 flags;           /* PFS_GROUP_* */
	__u32 priority;        /* hint, 0 = none */
	__u32 pause_ms;        /* hint: expected pause until the next use, 0 = unknown */
	__u32 reserved;
};

/* An answer of PUT_START: below PFS_ANSWER_MIN it is NEW and the number is the value's offset in the segment. */
#define PFS_ANSWER_MIN 0xfffffffffffffff0ull
#define PFS_ANSWER_NONE 0xffffffffffffffffull      /* not asked for; no value of the class ends at this page; or the group got no room */
#define PFS_ANSWER_EXISTS 0xfffffffffffffffeull    /* committed; pinned until this plan's group ends */
#define PFS_ANSWER_INFLIGHT 0xfffffffffffffffdull  /* another plan is writing it */
#define PFS_ANSWER_DUPLICATE 0xfffffffffffffffcull /* this plan writes it already: the key stands earlier in it */

enum pfs_group_status {
	PFS_GROUP_OK = 0,
	PFS_GROUP_NOROOM = 1,    /* ask again when poll(2) says POLLIN: room, or a range to acknowledge */
	PFS_GROUP_TOOBIG = 2,    /* can never fit the budget */
	PFS_GROUP_COMMITTED = 3,
	PFS_GROUP_PENDING = 4,   /* a WHOLE group waits for another plan's key */
	PFS_GROUP_LOST = 5,      /* freed; nothing of it was published */
	PFS_GROUP_ABORTED = 6,
	PFS_GROUP_NOPAGES = 7,   /* ROW_ONLY at a page's end, and the page has no value, nor is one being written: nothing was kept */
};

struct pfs_put_start {
	struct pfs_call call;
	__u64 plan;           /* in: the client's id, not 0, not in use in this session */
	__u64 groups_offset;  /* in: struct pfs_put_group[groups] */
	__u64 keys_offset;    /* in: struct pfs_key[keys], the groups' keys one after another */
	__u64 answers_offset; /* in: __u64 answers: for each class of class_mask, ascending, [keys] for a class with
	                         page values, [groups] for a state class */
	__u64 status_offset;  /* in: __u32[groups], enum pfs_group_status */
	__u32 groups;         /* in */
	__u32 keys;           /* in: the sum of the groups' */
	__u32 class_mask;     /* in: union of the groups' masks */
	__u32 new_values;     /* out */
	__u32 groups_ok;      /* out */
	__u32 come_again;     /* in: 0; out: 1: under a ticket, slots are kept for this rank in ranges that the session has not acknowledged. Each
	                         group is NOROOM and the rank has not come: acknowledge them, then put again under the same ticket */
	__u64 ranges_version; /* out */
	/* second version */
	__u8 ticket[PFS_TICKET_BYTES]; /* in: zero, or that of all ranks that put these groups: room for all of their shares is taken, or
	                         for none. Other groups, keys or masks under it are EINVAL, the same rank twice is EEXIST. It ends when all
	                         ranks have come, or after call.deadline_ms of the first one (0: fill_ttl), or when one that came loses or aborts
	                         all of it; later ones are NOROOM */
};

/* PUT_COMMIT asserts that the caller's writes to the groups' values are complete, PUT_ABORT that they have stopped: the GPU's
 * too. A plan none of whose groups was OK has ended when PUT_START answers. */
struct pfs_put_end { /* PUT_COMMIT and PUT_ABORT */
	struct pfs_call call;
	__u64 plan;          /* in */
	__u64 status_offset; /* in: __u32[groups], an answer for each */
	__u32 first_group;   /* in */
	__u32 groups;        /* in */
	__u32 done;          /* out: groups that ended the way this call asked */
	__u32 outcome;       /* out: enum pfs_group_status of the whole plan once it has ended; with EALREADY too */
};

/* ---- get ----------------------------------------------------------------------------------------------------- */

enum pfs_policy {
	PFS_POLICY_PREFIX = 0,
	PFS_POLICY_SEGMENTED = 1, /* EOPNOTSUPP in this version */
	PFS_POLICY_SPARSE = 2,    /* EOPNOTSUPP in this version */
};

#define PFS_GET_WAIT_INFLIGHT 1u /* wait, within the deadline, for values that other plans are writing */
#define PFS_GET_NO_AHEAD 2u      /* nothing is read from disk into memory ahead: GET_INTO follows */

#define PFS_TIER_MEMORY 0u
#define PFS_TIER_DISK 1u
#define PFS_TIERS 4u /* 2 remote, 3 reserved */

struct pfs_get_start {
	struct pfs_call call;
	__u64 handle;            /* in: the client's id, not 0 */
	__u64 keys_offset;       /* in: struct pfs_key[keys], consecutive pages */
	__u64 groups_offset;     /* in: __u32[groups], the groups' lengths in keys */
	__u64 hits_offset;       /* in: bitmap of whole 8-byte words, bit i of byte i/8: page i is complete; PFS_OFFSET_NONE =
	                            not wanted, and the search ends at the first miss */
	__u64 restorable_offset; /* in: bitmap likewise: the end of page i is a restorable boundary; or PFS_OFFSET_NONE */
	__u64 missing_offset;    /* in: __u32[missing_capacity]: ids of ranges this session has yet to acknowledge */
	__u64 start;             /* in: tokens before the first key, a multiple of page_tokens */
	__u64 have;              /* in: tokens the caller holds already; below nothing is required, pinned or read */
	__u64 limit;             /* in: restore no further than this; 0 = no limit */
	__u8 ticket[PFS_TICKET_BYTES]; /* in: zero, or the ticket that the ranks of one request share, and a session without a rank
	                            may: all get one answer, and `hits` goes to the last key. EINVAL: it was asked otherwise before;
	                            EEXIST: this rank has come already. 0 tokens: it has ended */
	__u32 keys;              /* in: at least 1 */
	__u32 groups;            /* in: 0 = every key is a group of its own */
	__u32 policy;            /* in: enum pfs_policy */
	__u32 flags;             /* in: PFS_GET_* */
	__u32 class_mask;        /* in: classes wanted; 0 = all */
	__u32 missing_capacity;  /* in */
	__u64 raw_prefix_hit_len; /* out: tokens of the leading complete pages, from `start` */
	__u64 transferable_len;  /* out: deepest restorable boundary on a group boundary; `have` or less = nothing */
	__u32 prefix_hit_groups; /* out: leading groups that hit as a whole */
	__u32 first_miss_index;  /* out: key, or PFS_INDEX_NONE */
	__u32 first_miss_group_index; /* out */
	__u32 all_hit;           /* out: 0 or 1 */
	__u32 hits;              /* out: complete pages, anywhere in the batch */
	__u32 missing;           /* out: ranges missing in all; the first missing_capacity are listed */
	__u32 candidates;        /* out: endpoint candidates in all; the first candidates_capacity are listed */
	__u32 wanted;            /* out: wanted boundaries in all; the first wanted_capacity are listed */
	__u32 handle_live;       /* out: 0 = nothing above `have` can be transferred and the handle has ended already */
	__u32 reserved;
	__u64 demand;            /* out: boundary at which a state would have lengthened the hit; 0 = none. It is among the wanted */
	__u64 bytes[PFS_TIERS];  /* out: to be moved up to transferable_len, by tier */
	__u32 estimate_us[PFS_TIERS]; /* out: estimated time for it, by tier */
	__u64 ranges_version;    /* out */
	/* second version */
	__u64 candidates_offset; /* in: struct pfs_candidate[candidates_capacity] */
	__u64 wanted_offset;     /* in: __u64[wanted_capacity]: boundaries behind transferable_len at which a row is worth putting, ascending */
	__u64 prompt_len;        /* in: tokens of the prompt, from position 0; 0 = to the end of the keys */
	__u64 dense_len;         /* out: how far the dense classes reach; `have` or less = no further */
	__u64 would_len;         /* out: transferable_len if every state class were dense; at least transferable_len */
	__u32 room;              /* in: tokens that the caller computes behind a boundary where it keeps a state */
	__u32 candidates_capacity; /* in: at most PFS_MAX_CANDIDATES; 0 = not wanted */
	__u32 wanted_capacity;   /* in: at most PFS_MAX_WANTED; 0 = not wanted */
	__u32 interval;          /* out: tokens of the ladder, 0 = off */
};

/* A row inside a page behind one that hit: somebody's state at `consumed` tokens. Pinned until the handle's first transfer. */
struct pfs_candidate {
	struct pfs_key key; /* of the endpoint */
	__u64 consumed;     /* tokens at it; the pages before it end at the page's beginning */
	__u64 bytes;        /* of this rank's share of pages from `have` on and of the row */
};

struct pfs_get_transfer {
	struct pfs_call call;
	__u64 handle;         /* in */
	__u64 plan;           /* in: the client's id of the get plan made here */
	__u64 boundary;       /* in: tokens; restorable, on a group boundary; every call on a handle names the same */
	__u64 from;           /* in: first token wanted; at or after the end of the range before; a page's first */
	__u64 to;             /* in: end of the range, at most boundary; at boundary the handle ends */
	__u64 offsets_offset; /* in: __u64 offsets: for each class of class_mask, ascending, [pages in the range] for a class
	                         with page values (PFS_ANSWER_NONE where `every` has no value), [1] for a state class,
	                         present only when `to` is the boundary */
	__u32 class_mask;     /* in: 0 = the handle's */
	__u32 offsets_capacity; /* in: elements at offsets_offset */
	__u64 delivered_len;  /* out: tokens; `to`, or less: memory is too small for the range, or a value could not be read
	                         from the disk. Restorable like `boundary` as far as the whole handle goes; at `from` nothing
	                         was delivered. What stands at offsets_offset behind it means nothing */
	__u32 values;         /* out: offsets written */
	__u32 handle_ended;   /* out: 0 or 1 */
	/* second version */
	__u32 candidate;      /* in: 1 + the number of an endpoint candidate, whose `consumed` is `boundary` then; 0 = a boundary of the bitmap */
	__u32 reserved;
};
/* Of a window's values only those are delivered that `boundary` needs, else PFS_ANSWER_NONE. With a ticket each call waits for all
 * ranks to come with the same boundary, from, to and candidate, and answers the least that any of them can deliver; nothing, if
 * the deadline of one passes or one can no longer come: delivered_len is `from`, and the handle has ended. */

#define PFS_CONFIRM_FAILED 1u /* this rank has not restored it */

/* With a ticket, after the last transfer: this rank's copies are done, or have failed. Waits until all ranks 0..world-1 have said
 * so, or one never will, or the deadline of one passes; the answer is the same for all then, and is remembered for handle_ttl.
 * What is restored is good on every rank. ENOENT: no such ticket (any more): nothing is restored. EPERM: the session has no rank,
 * or did not begin with this ticket. Interrupted or EAGAIN: the report counts; ask again. */
struct pfs_get_confirm {
	struct pfs_call call;
	__u8 ticket[PFS_TICKET_BYTES]; /* in */
	__u32 flags;    /* in: PFS_CONFIRM_* */
	__u32 reserved;
	__u64 restored; /* out: tokens, position of the boundary; 0 = nothing, on no rank */
};

#define PFS_IMPORT_DROP 1u /* forget it: EBUSY while a request writes there */

/* A memory file of the client's own that GET_INTO may write to. Without DROP the answer is a token, to be shown on the socket in
 * a hello of kind PFS_HELLO_IMPORT that carries the descriptor; from the welcome on it can be used. */
struct pfs_import {
	struct pfs_call call;
	__u64 import;       /* in: the client's id, not 0 */
	__u32 flags;        /* in: PFS_IMPORT_* */
	__u32 token_ttl_ms; /* out: how long the token is good */
	__u8 token[16];     /* out */
};

/* Like GET_TRANSFER, but the daemon writes the values to the client's memory: no plan is made, nothing is to be released. The
 * value of class c of page i of the range goes to byte
 *     base + block(i) * stride + class_offset[c]    of the import, that of a state class to
 *     state_base + class_offset[c]
 * as many bytes as it has, without the slot's padding. */
struct pfs_get_into {
	struct pfs_call call;
	__u64 handle;        /* in */
	__u64 boundary;      /* in: tokens; as of GET_TRANSFER, like the next two */
	__u64 from;          /* in */
	__u64 to;            /* in */
	__u64 import;        /* in: id of the memory file */
	__u64 base;          /* in: bytes; where block 0 begins */
	__u64 stride;        /* in: bytes from one block to the next; no alignment is asked for */
	__u64 blocks_offset; /* in: __u32[pages in the range]: block(i); PFS_OFFSET_NONE: block(i) = i */
	__u64 state_base;    /* in: bytes */
	__u64 class_offset[PFS_MAX_CLASSES]; /* in: bytes; of classes in class_mask */
	__u32 class_mask;    /* in: 0 = the handle's */
	__u32 flags;         /* in: 0 */
	__u64 delivered_len; /* out: tokens; `to`, or less: the deadline has passed, or a value could not be read. What was
	                        written for pages behind it, and for state classes unless it is the boundary, means nothing */
	__u64 bytes;         /* out: payload bytes delivered */
	__u32 values;        /* out: values delivered */
	__u32 handle_ended;  /* out: 0 or 1 */
};

struct pfs_get_cancel {
	struct pfs_call call;
	__u64 handle; /* in */
};

struct pfs_release {
	struct pfs_call call;
	__u64 plans_offset;  /* in: __u64[count], ids of get plans */
	__u64 status_offset; /* in: __s32[count], 0 or a negative errno for each; PFS_OFFSET_NONE = not wanted */
	__u32 count;         /* in: at least 1 */
	__u32 released;      /* out; a wrong id (ENOENT), an ended plan (EALREADY), a put plan (EINVAL) or one in use (EBUSY)
	                        is the call's errno after the others were released */
};

/* ---- questions ----------------------------------------------------------------------------------------------- */

struct pfs_probe {
	struct pfs_call call;
	__u64 keys_offset; /* in: struct pfs_key[keys] */
	__u64 hits_offset; /* in: bitmap of whole 8-byte words; PFS_OFFSET_NONE = not wanted */
	__u32 keys;        /* in: at least 1 */
	__u32 hits;        /* out: complete pages */
	__u32 prefix;      /* out: leading complete pages */
	__u32 reserved;
};

struct pfs_stat {
	struct pfs_call call;
	__u64 text_offset; /* in: char[capacity]: the namespace's `stats` file, "name value" lines, not NUL-terminated */
	__u32 capacity;    /* in */
	__u32 bytes;       /* out: length of the whole text; more than capacity = it was cut there */
};

struct pfs_last_error {
	struct pfs_call call;
	__u64 failed_seq; /* out: seq of the failed request, 0 = none failed yet */
	__u32 failed_op;  /* out: its ioctl number, _IOC_NR */
	__s32 error;      /* out: its errno */
	char text[480];   /* out: one sentence, NUL-terminated, naming the argument and the limit */
};

/* ---- by hand -------------------------------------------------------------------------------------------------- */

/* The pages were used now, as a GET_START would say that hit them. Unknown keys are passed over. */
struct pfs_touch {
	struct pfs_call call;
	__u64 keys_offset; /* in: struct pfs_key[keys] */
	__u32 keys;        /* in: at least 1 */
	__u32 flags;       /* in: 0 */
	__u32 priority;    /* in: hint, 0 = none; without effect in this version */
	__u32 pause_ms;    /* in: hint: expected pause until the next use, 0 = unknown; without effect in this version */
	__u32 touched;     /* out: keys that were there */
	__u32 reserved;
};

enum pfs_remove_answer {
	PFS_REMOVE_DONE = 0,   /* it had values of these classes and has none now */
	PFS_REMOVE_ABSENT = 1, /* it had none */
	PFS_REMOVE_BUSY = 2,   /* it has all that it had: pinned, being written, or of a WHOLE group that cannot go now */
};

/* Lets the values of these classes go, of all shares; of a state class those of the row at the key. */
struct pfs_remove {
	struct pfs_call call;
	__u64 keys_offset;    /* in: struct pfs_key[keys] */
	__u64 answers_offset; /* in: __u32[keys], enum pfs_remove_answer; PFS_OFFSET_NONE = not wanted */
	__u32 keys;           /* in: at least 1 */
	__u32 class_mask;     /* in: 0 = all classes */
	__u32 removed;        /* out: keys by their answer */
	__u32 absent;         /* out */
	__u32 busy;           /* out */
	__u32 reserved;
	__u64 values;         /* out: values that went */
};

#define PFS_PIN_RELEASE 1u   /* hold no longer */
#define PFS_PIN_ENDPOINTS 2u /* each key names the record that ends there; without it the record that its page lies in */

enum pfs_pin_answer {
	PFS_PIN_DONE = 0,   /* the record is as asked for, whatever it was before */
	PFS_PIN_ABSENT = 1, /* there is no such record */
	PFS_PIN_NOROOM = 2, /* no more may be pinned: the call is ENOSPC after the others were pinned */
};

/* Records that are no victims until they are released. They stay so when the session ends. */
struct pfs_pin {
	struct pfs_call call;
	__u64 keys_offset;    /* in: struct pfs_key[keys] */
	__u64 answers_offset; /* in: __u32[keys], enum pfs_pin_answer; PFS_OFFSET_NONE = not wanted */
	__u32 keys;           /* in: at least 1 */
	__u32 flags;          /* in: PFS_PIN_* */
	__u32 changed;        /* out: records that were not so before */
	__u32 absent;         /* out: keys without a record */
	__u64 pinned_bytes;   /* out: of the namespace, now */
	__u64 limit_bytes;    /* out: a tenth of its floor */
};

/* Has written down what is in memory alone, and waits until nothing is or the deadline (ETIMEDOUT; writing goes on for a
 * moment, and another DRAIN joins it). Without a disk tier there is nothing to write: 0, at once. */
struct pfs_drain {
	struct pfs_call call;
	__u64 values; /* out: 0; bytes are counted */
	__u64 bytes;  /* out: of slots, in memory alone still; after ETIMEDOUT too */
	__u32 disk;   /* out: 1 with a disk tier */
	__u32 reserved;
};

/* A new generation of the namespace: nothing that was there is found any more. */
struct pfs_reset {
	struct pfs_call call;
	__u32 flags;      /* in: 0 */
	__u32 held;       /* out: old records that plans, handles or readers still hold */
	__u64 generation; /* out: the new one */
	__u64 values;     /* out: values that this call let go */
};

/* ---- blobs ----------------------------------------------------------------------------------------------------
 *
 * Bytes of any length under a key, in the namespace's share for them (EOPNOTSUPP without one), apart from its pages. Each request
 * names one by `key`, or with name_bytes > 0 by a name in the call buffer, of which `key` becomes the BLAKE2b-256. */

#define PFS_BLOB_EXCLUSIVE 1u /* only where there is none: EEXIST */
#define PFS_BLOB_ABORT 2u     /* gives up the write of that number: nothing of it was seen */

/* Stores a blob, in place of the one that is there, once its last byte has come: all of it, or nothing. In one piece, or, with a
 * number, in several that follow one another. Ends the session's lock of that key. */
struct pfs_blob_put {
	struct pfs_call call;
	struct pfs_key key; /* in; out: the name's */
	__u64 name_offset;  /* in: char[name_bytes] */
	__u64 data_offset;  /* in: __u8[bytes], the piece */
	__u64 write;        /* in: the client's number of a write in pieces; reads and writes of a session share them; 0 = in one piece */
	__u64 offset;       /* in: of the piece in the blob */
	__u64 length;       /* in: of the blob; at most half of the share: EFBIG */
	__u64 version;      /* out: of the blob, once it is stored; never used again while the daemon lives */
	__u32 bytes;        /* in: of the piece */
	__u32 name_bytes;   /* in: 0 = by key */
	__u32 flags;        /* in: PFS_BLOB_EXCLUSIVE, PFS_BLOB_ABORT */
	__u32 kind;         /* in: told to whoever reads it; the first piece's counts */
	__u32 stored;       /* out: 1 with the last piece */
	__u32 reserved;
};

#define PFS_BLOB_END 1u /* the read of that number ends with this piece */

/* Reads a blob, or a piece of it. The pieces of a read with a number are of one version, whatever becomes of the blob meanwhile. */
struct pfs_blob_get {
	struct pfs_call call;
	struct pfs_key key; /* in; out: the name's */
	__u64 name_offset;  /* in */
	__u64 data_offset;  /* in: __u8[capacity] */
	__u64 read;         /* in: the client's number of a read in pieces; 0 = there is one piece */
	__u64 offset;       /* in: of the piece in the blob */
	__u64 length;       /* out: of the whole blob */
	__u64 version;      /* out */
	__u64 created_s;    /* out: seconds of the epoch */
	__u64 used_s;       /* out: likewise; read last */
	__u32 capacity;     /* in: 0 without a number: only asks, which counts as no use */
	__u32 name_bytes;   /* in */
	__u32 flags;        /* in: PFS_BLOB_END */
	__u32 kind;         /* out */
	__u32 bytes;        /* out: of the piece; fewer than capacity at the end of the blob */
	__u32 ended;        /* out: 1 = the read in pieces has ended: with the last byte, or by PFS_BLOB_END */
};

/* It is found no more. Reads of it go on. ENOENT where there is none. */
struct pfs_blob_remove {
	struct pfs_call call;
	struct pfs_key key; /* in; out: the name's */
	__u64 name_offset;  /* in */
	__u32 name_bytes;   /* in */
	__u32 reserved;
};

#define PFS_BLOB_RELEASE 1u /* hold the lock no longer */

enum pfs_blob_lock_answer {
	PFS_BLOB_FOUND = 1,    /* the blob is there; no lock is held */
	PFS_BLOB_LOCKED = 2,   /* it is not, and this session is to make it: it holds the lock, for hold_ms from now */
	PFS_BLOB_RELEASED = 3,
};

/* Who makes a blob that is not there, while the others wait for it. */
struct pfs_blob_lock {
	struct pfs_call call; /* deadline: of the wait for the blob or the lock (ETIMEDOUT); 0 = 10 s */
	struct pfs_key key;   /* in; out: the name's */
	__u64 name_offset;    /* in */
	__u32 name_bytes;     /* in */
	__u32 flags;          /* in: PFS_BLOB_RELEASE */
	__u32 hold_ms;        /* in: after which another one may take the lock, if it was not asked for again; 0 = 30 s */
	__u32 answer;         /* out: enum pfs_blob_lock_answer */
	__u64 length;         /* out: of a blob that was found */
	__u64 version;        /* out: likewise */
	__u32 kind;           /* out: likewise */
	__u32 left_ms;        /* out: after ETIMEDOUT: the holder's time */
};

/* Everything that session @session held has ended, reads and writes by the GPU included: it was on a ctl that a death of the daemon's serving
 * process has ended, of the same client_id and the same process. What was kept for it is free. ENOENT: nothing was (any more), which is as
 * good; EACCES: it was another client's, or another process's. */
struct pfs_settle {
	struct pfs_call call;
	__u64 session; /* in: of its ATTACH */
};

#define PFS_IOC_TYPE 0xF5
#define PFS_IOC_ATTACH _IOWR(PFS_IOC_TYPE, 1, struct pfs_attach)
#define PFS_IOC_SEGMENTS _IOWR(PFS_IOC_TYPE, 2, struct pfs_segments)
#define PFS_IOC_SEGMENTS_ACK _IOWR(PFS_IOC_TYPE, 3, struct pfs_segments_ack)
#define PFS_IOC_PUT_START _IOWR(PFS_IOC_TYPE, 4, struct pfs_put_start)
#define PFS_IOC_PUT_COMMIT _IOWR(PFS_IOC_TYPE, 5, struct pfs_put_end)
#define PFS_IOC_PUT_ABORT _IOWR(PFS_IOC_TYPE, 6, struct pfs_put_end)
#define PFS_IOC_GET_START _IOWR(PFS_IOC_TYPE, 7, struct pfs_get_start)
#define PFS_IOC_GET_TRANSFER _IOWR(PFS_IOC_TYPE, 8, struct pfs_get_transfer)
#define PFS_IOC_GET_CANCEL _IOWR(PFS_IOC_TYPE, 9, struct pfs_get_cancel)
#define PFS_IOC_RELEASE _IOWR(PFS_IOC_TYPE, 10, struct pfs_release)
#define PFS_IOC_PROBE _IOWR(PFS_IOC_TYPE, 11, struct pfs_probe)
#define PFS_IOC_STAT _IOWR(PFS_IOC_TYPE, 12, struct pfs_stat)
#define PFS_IOC_LAST_ERROR _IOWR(PFS_IOC_TYPE, 13, struct pfs_last_error)
#define PFS_IOC_EMPTY _IO(PFS_IOC_TYPE, 14) /* does nothing: the cost of the way; its argument is pfs_call.cpu */
#define PFS_IOC_IMPORT _IOWR(PFS_IOC_TYPE, 15, struct pfs_import)
#define PFS_IOC_GET_CONFIRM _IOWR(PFS_IOC_TYPE, 16, struct pfs_get_confirm)
/* 20 FP_ADD, 21 FP_MATCH, 30 and 31 are kept for later: EOPNOTSUPP. */
#define PFS_IOC_TOUCH _IOWR(PFS_IOC_TYPE, 17, struct pfs_touch)
#define PFS_IOC_REMOVE _IOWR(PFS_IOC_TYPE, 18, struct pfs_remove)
#define PFS_IOC_PIN _IOWR(PFS_IOC_TYPE, 19, struct pfs_pin)
#define PFS_IOC_DRAIN _IOWR(PFS_IOC_TYPE, 22, struct pfs_drain)
#define PFS_IOC_RESET _IOWR(PFS_IOC_TYPE, 23, struct pfs_reset)
#define PFS_IOC_BLOB_PUT _IOWR(PFS_IOC_TYPE, 24, struct pfs_blob_put)
#define PFS_IOC_BLOB_GET _IOWR(PFS_IOC_TYPE, 25, struct pfs_blob_get)
#define PFS_IOC_BLOB_REMOVE _IOWR(PFS_IOC_TYPE, 26, struct pfs_blob_remove)
#define PFS_IOC_BLOB_LOCK _IOWR(PFS_IOC_TYPE, 27, struct pfs_blob_lock)
#define PFS_IOC_GET_INTO _IOWR(PFS_IOC_TYPE, 28, struct pfs_get_into)
#define PFS_IOC_SETTLE _IOWR(PFS_IOC_TYPE, 29, struct pfs_settle)
#define PFS_IOC_NR_LAST 31

/* Bytes of structs as they were in their first version, where there is a second. */
#define PFS_BYTES_ATTACH_1 336u
#define PFS_BYTES_PUT_START_1 104u
#define PFS_BYTES_GET_START_1 264u
#define PFS_BYTES_GET_TRANSFER_1 104u

#define PFS_HELLO_ATTACH 0u /* the token is ATTACH's */
#define PFS_HELLO_IMPORT 1u /* it is IMPORT's, and one descriptor comes along */

/* What the socket carries: the client sends a hello, the daemon answers with a welcome and, when status is 0 and the hello was
 * of kind ATTACH, two descriptors (SCM_RIGHTS): the segment's, then the call buffer's. Both messages are one SOCK_SEQPACKET
 * packet; a connection carries one of each. */
struct pfs_hello {
	__u32 abi_version;
	__u32 kind; /* PFS_HELLO_* */
	__u8 token[16];
};

struct pfs_welcome {
	__s32 status; /* 0, or a negative errno */
	__u32 reserved;
	char text[120]; /* why, NUL-terminated */
};

#ifdef __cplusplus
}
#endif

#endif
