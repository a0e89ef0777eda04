/* SPDX-License-Identifier: Apache-2.0
 *
 * libprefixfs: the plans of prefixfs as ordinary C calls, for inference engines.
 *
 * An engine opens one session per rank. To store, it starts a put plan, writes the values to the addresses it is
 * given and commits. To fetch, it asks with pfs_get_start what is there, makes a get plan with pfs_get_transfer,
 * reads the values in place and releases the plan.
 *
 * Conventions. Functions return 0 or a negative errno; outputs are set on success only, unless their comment says
 * otherwise. After a failure pfs_last_error() has the sentence that says why. Lengths and positions are in tokens,
 * sizes in bytes, deadlines in relative milliseconds. Structs that go in are zeroed by the caller before it fills
 * them, and reserved fields stay 0. Limits are those of prefixfs_abi.h. Everything is thread-safe: any number of
 * threads may use one session at once, except where pfs_close says otherwise. Every call may block for as long as the
 * daemon takes, at most until its deadline; calls repeat interrupted requests by themselves (EINTR is never
 * returned).
 *
 * Death of the daemon. A call that finds its connection gone attaches anew by itself, within the session's deadline and with pauses,
 * and asks again: what is not there any more is a miss. Plans and handles are their connection's, and none of them makes an error of it:
 *   a put plan     pfs_put_commit and pfs_put_abort answer PFS_GROUP_COMMITTED where the daemon knows it, else PFS_GROUP_LOST
 *   a handle       pfs_get_transfer and pfs_get_into deliver nothing and end it; pfs_get_cancel is 0
 *   a get plan     its addresses stay mapped and its bytes what they are, until pfs_release, which is 0
 * Where the daemon kept its memory, the segment's address stays, and what was registered with a device. Else there is a second mapping;
 * the old one goes with the last of its plans and holds, and pfs_info() counts it in `remapped`. One line a death is told (pfs_options.log).
 * Where nobody serves until the deadline, or the daemon dies again and again of the same request, any call that has to ask is -ENOTCONN: to
 * an engine a miss, or a value that is not kept. From then on such calls fail at once, but for one a second, which tries again: until
 * the session is attached. pfs_poll_fd() is readable when it is time to. A fallen mount (prefixfsd(8)) is not waited for at all.
 *
 * A session does not survive fork(2): a child opens its own. All memory returned belongs to the library.
 */
#ifndef PREFIXFS_H
#define PREFIXFS_H

#include <stddef.h>
#include <stdint.h>

#include "prefixfs_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PFS_VERSION_MAJOR 0
#define PFS_VERSION_MINOR 1
#define PFS_VERSION_PATCH 0

/* Version of the library that is really loaded, as "0.1.0"; static storage. */
const char *pfs_version(void);

/* Copies the sentence about the calling thread's last failed call to @to, NUL-terminated and cut to @size bytes, and
 * returns its whole length without the NUL. Empty when nothing has failed yet. Never blocks. */
size_t pfs_last_error(char *to, size_t size);

/* ---- session ------------------------------------------------------------------------------------------------- */

struct pfs_session;

struct pfs_options {
	uint32_t size;        /* sizeof(struct pfs_options); pfs_options_init sets it */
	uint32_t abi_version; /* PFS_ABI_VERSION; pfs_options_init sets it */
	uint32_t rank;        /* 0..world-1; default PFS_RANK_NONE: a session that may ask but not put or transfer */
	uint32_t node;        /* NUMA node of the engine's device; default PFS_NODE_ANY */
	uint64_t
		call_buffer_bytes; /* PFS_MIN_CALL_BUFFER..PFS_MAX_CALL_BUFFER; default 4 MiB. A put plan of k keys and c
	                          classes needs 32k + 8kc while it starts and 8kc until it ends */
	uint32_t deadline_ms;      /* of opening, of attaching anew and of waits inside the library; default 30,000 */
	uint8_t read_only;         /* 1: opens ctl for reading; the segment is mapped read-only; default 0 */
	uint8_t auto_ack;     /* 1: granted ranges are acknowledged by the library; default 1. 0: the engine registers
	                          ranges with its device first and calls pfs_segments_ack itself */
	uint8_t wait_prewarm; /* 1: pfs_open returns when the namespace's floor is populated; default 0 */
	uint8_t premap; /* 1: ranges acknowledged by the library are mapped at once, not page by page at first use;
	                          default 0 */
	const char *
		socket_dir; /* where the daemon's socket lies if it is not at the path that the daemon names (a container
	                          with the directory bind-mounted elsewhere); default NULL */
	/* What is to be told about deaths of the daemon: one line for each, without a newline, by the call that attached anew. May come on
	 * any thread that calls; must not call this session. Default NULL: to standard error */
	void (*log)(void *context, const char *line);
	void *log_context;
	uint32_t guard_pid; /* a further process that may write to the segment for this one, and after its end: that of the CUDA MPS server, whose
	                       contexts this one's are; as the daemon's pid namespace numbers it. Slots of puts that are open when this
	                       process dies are free when that one has ended too. At attaching anew one that is gone is left out. Default 0: none */
	uint32_t reserved0;
	uint64_t reserved[5];
};

/* Fills in the defaults. */
void pfs_options_init(struct pfs_options *options);

/* Opens a session on the namespace at @path: its directory (<mount>/ns/<name>) or its ctl file. @options may be NULL;
 * strings in it are copied. Blocks until the daemon has answered, at most deadline_ms; when the daemon dies meanwhile its
 * successor is asked. On success *ret is the caller's,
 * to be closed with pfs_close.
 * -EINVAL (an option; the sentence names it), -ENOENT, -EACCES, -EPROTONOSUPPORT (ABI version), -ESRCH (there is no process guard_pid),
 * -EOPNOTSUPP (guard_pid, and the daemon is an older one), -EBADMSG (the descriptors received are not what was promised), -ETIMEDOUT,
 * -ENOMEM, -EHOSTDOWN (the mount is fallen), and whatever open(2) says. */
int pfs_open(const char *path, const struct pfs_options *options, struct pfs_session **ret);

/* Ends the session with all it holds and leaves NULL behind. Plans that are open are lost: first let the copies that use
 * their addresses come to their end. No other call on this session may be under way or come after. */
void pfs_close(struct pfs_session **session);

struct pfs_session_info {
	uint64_t session;            /* number under <mount>/sessions/ */
	uint64_t segment_bytes;      /* length of the mapping */
	uint64_t segment_page_bytes; /* page size of its backing */
	uint64_t generation;         /* of the segment */
	uint64_t call_buffer_bytes;
	uint64_t ranges_version; /* up to which ranges are acknowledged */
	void *segment;           /* address of the mapping */
	uint64_t reattached;     /* how often the session attached anew */
	uint32_t world, page_tokens, classes, state_mask; /* state_mask: bit c is set when class c is a state class */
	uint32_t share[PFS_MAX_CLASSES];                  /* this rank's */
	uint8_t fingerprint[16];                          /* of the layout */
	uint32_t read_only;
	uint32_t rank;
	uint64_t remapped;       /* how often it was given other memory with it: `segment` has changed, what was registered with a
	                            device is to be registered anew */
	uint64_t interval;       /* tokens of the ladder, as of the last pfs_get_start; 0 = off, or none was asked yet */
	uint64_t reserved[6];
};

/* What the session knows about itself: between a loss and attaching anew, what it knew before. Never blocks on the daemon. 0. */
int pfs_info(struct pfs_session *session, struct pfs_session_info *ret);

/* *ret: bytes of a value of class @class_index in this rank's share, without the padding up to the end of its slot; 0 where the daemon is
 * an older one, which does not tell. Known from attaching: between a loss and attaching anew, what was so before. Never blocks on the daemon.
 * -EINVAL (no such class; a session without a rank). */
int pfs_value_bytes(struct pfs_session *session, uint32_t class_index, uint64_t *ret);

/* A descriptor for poll(2) or epoll, the same for the session's whole life: readable when there is news - new granted
 * ranges, room after PFS_GROUP_NOROOM, a commit that a PFS_CALL_NONBLOCK call waits for. Belongs to the session. Not
 * to be read from. pfs_news() takes the news, and so does any other request of the session. */
int pfs_poll_fd(struct pfs_session *session);

/* Waits until there is news, at most @deadline_ms (0 = does not wait), then brings the acknowledged ranges up to date if
 * the session has auto_ack. 0, or -ETIMEDOUT if there was no news (ranges were brought up to date nevertheless). The loss of the
 * connection is news, until it was attached anew or a deadline has passed in vain; then it is news that it is time to try again. */
int pfs_news(struct pfs_session *session, uint32_t deadline_ms);

/* ---- granted ranges, for engines that register memory with a device ------------------------------------------- */

/* Granted ranges from the @first-th on, at most @capacity, to @to (the caller's). *count: how many were written, *total:
 * how many exist, *version: rises with every change; each may be NULL. @capacity at most 32,768.
 * A range that is listed with a higher generation was cut into slots of another size: offset, length and memory are what
 * they were, so what was mapped or registered with a device stays good, and it only has to be acknowledged again. A range
 * that is gone from the list while the session is open holds nothing any more; its memory stays as it is till the end of
 * the session. */
int pfs_segments(struct pfs_session *session, uint32_t first, struct pfs_range *to, uint32_t capacity, uint32_t *count,
	uint32_t *total, uint64_t *version);

/* Tells the daemon that this session can reach these ranges; puts are given addresses in acknowledged ranges only.
 * *accepted (may be NULL) is set on -ESTALE too: a range is unknown or has been cut anew, the others counted; or the daemon was restarted
 * with other memory since pfs_segments, and none did: list them again. In memory that was kept, what was acknowledged before a restart and is
 * as it was is acknowledged again by the library.
 * @count 1..32,768. */
int pfs_segments_ack(struct pfs_session *session, const struct pfs_range_ack *acks, uint32_t count, uint32_t *accepted);

/* ---- mappings that stay, for engines that register memory with a device ---------------------------------------- */

/* A mapping of a session's segment that is held. What is registered with a device must stay mapped: without a hold another mapping may
 * come to lie at the same address, and the device goes on using the memory of the old one. */
struct pfs_segment;

/* Holds the mapping that the session has now: it stays mapped until pfs_segment_let_go, over a restart of the daemon with other memory and
 * over pfs_close too. *ret is the caller's; one mapping may be held any number of times. Never blocks on the daemon. 0. */
int pfs_segment_hold(struct pfs_session *session, struct pfs_segment **ret);

struct pfs_segment_info {
	void *address;
	uint64_t bytes;
	uint64_t number;    /* of this mapping: no other of the process has it, before or later. From 1 */
	uint32_t read_only;
	uint32_t unused;    /* 1: it is not the session's any more and has no plan left: holds alone keep it, and it will not be used again */
	uint64_t reserved[4];
};

/* What a held mapping is. Its session may be closed by now. Never blocks. 0. */
int pfs_segment_info(const struct pfs_segment *segment, struct pfs_segment_info *ret);

/* Ends a hold and leaves NULL behind; unmaps where it was the last that kept the mapping. Its session may be closed by now. NULL inside is
 * allowed. */
void pfs_segment_let_go(struct pfs_segment **segment);

/* ---- keys in place --------------------------------------------------------------------------------------------- */

/* Room for @keys keys (1..PFS_MAX_KEYS) inside the call buffer. Calls that are given this address, or one inside it, as
 * `keys` copy nothing. Blocks while the call buffer is full, at most the session's deadline. The area is the caller's
 * until pfs_keys_free and may be used by any number of calls, one after another; after a restart of the daemon it stays
 * valid memory, and its keys are copied. -ENOBUFS (buffer full until the deadline, or too small), -E2BIG. */
int pfs_keys_area(struct pfs_session *session, uint32_t keys, struct pfs_key **ret);
/* Gives an area back; NULL is allowed. -EINVAL if it is none of this session's. */
int pfs_keys_free(struct pfs_session *session, struct pfs_key *keys);

/* The key for an engine's own name of a page, of any length and content: BLAKE2b-256 of the @bytes bytes at @data.
 * Names that are 32 bytes long already need not pass here, unless a tenant can choose them. */
int pfs_key_from_bytes(const void *data, size_t bytes, struct pfs_key *ret);

/* ---- put ------------------------------------------------------------------------------------------------------- */

struct pfs_put_request {
	const struct pfs_put_group *groups; /* see prefixfs_abi.h */
	const struct pfs_key *keys;         /* of all groups, one after another: their sum is `key_count` */
	uint32_t group_count;               /* 1..PFS_MAX_GROUPS */
	uint32_t key_count;                 /* 1..PFS_MAX_KEYS */
	uint32_t class_mask;                /* union of the groups' masks */
	uint32_t flags;                     /* 0 or PFS_CALL_NONBLOCK */
	uint32_t deadline_ms;               /* 0 = the daemon's default; of a ticket: until when all ranks are to have come */
	uint8_t ticket[16];                 /* zero, or one that all ranks use which put these groups: room for all, or for none */
	uint32_t reserved[1];
};

struct pfs_put_result {
	uint64_t plan;    /* id: names the plan in all calls, and in <mount>/sessions/<id> */
	uint8_t *segment; /* the address of a NEW value is segment + answer */
	/* Per class: an answer for each key, or for each group where the class is a state class; NULL for a class that
	 * was not asked for. Below PFS_ANSWER_MIN: NEW, and the number is the value's offset. Else PFS_ANSWER_*. */
	const uint64_t *answers[PFS_MAX_CLASSES];
	const uint32_t *status; /* of each group: PFS_GROUP_OK, _NOROOM, _TOOBIG */
	uint32_t new_values;    /* answers that are NEW */
	uint32_t groups_ok;
	uint64_t come_again;    /* 1: under a ticket, the session lacks ranges where slots are kept for this rank. Each group is NOROOM and the rank
	                           has not come: acknowledge them, then put again under the same ticket. With auto_ack pfs_put_start does so itself */
	uint64_t reserved[3];
};

/* Starts a put plan. Everything in *ret belongs to the plan and dies when it ends. Every started plan is ended with
 * pfs_put_commit or pfs_put_abort, one that got no room too. Never waits for room: a group without room says
 * PFS_GROUP_NOROOM, and pfs_news() tells when to try again; what was put under a ticket, under another one, unless come_again is 1.
 * One that meets a pfs_reset is started anew, in the new generation.
 * -EINVAL, -E2BIG, -EROFS (read-only session), -EDQUOT (PFS_MAX_PLANS open), -ENOBUFS (call buffer full), -ESTALE (one
 * reset after another), -EOPNOTSUPP (a ticket, and the daemon is an older one), -EAGAIN (PFS_CALL_NONBLOCK; or the daemon has died while more than
 * 63 sessions of the namespace had slots, and this one finds no seat: docs/survival.md). */
int pfs_put_start(struct pfs_session *session, const struct pfs_put_request *request, struct pfs_put_result *ret);

struct pfs_put_outcome {
	uint32_t done;    /* groups that ended the way the call asked */
	uint32_t outcome; /* PFS_GROUP_OK while the plan goes on (some groups are open or PENDING), else how it ended:
	                      PFS_GROUP_COMMITTED, _ABORTED, _LOST. The plan's id is then no longer valid */
	uint64_t reserved[2];
};

/* Publishes groups @first..@first+@count-1 (@count 0 = all that follow). With this call the engine asserts that its writes
 * to their values are complete, those of its GPU included. @status (may be NULL): the caller's array, an answer for
 * each group: COMMITTED, PENDING (ask again), LOST, or what it was. @ret may be NULL. A group of a plan that began before a
 * pfs_reset is LOST: that is no error, put it again. So is one of which nobody knows since the daemon was restarted; should it have been
 * published after all, putting it again finds it there.
 * -ENOENT (no such plan of this session: ended already, or another session's), -EINVAL (range; or a get plan). */
int pfs_put_commit(struct pfs_session *session, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status,
	struct pfs_put_outcome *ret);
/* Gives groups back unpublished. No write to their values may be under way. Otherwise as pfs_put_commit. */
int pfs_put_abort(struct pfs_session *session, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status,
	struct pfs_put_outcome *ret);

/* ---- get ------------------------------------------------------------------------------------------------------- */

#define PFS_GET_NO_BITS 0x80000000u /* the bitmaps are not wanted: the search ends at the first miss */

struct pfs_get_request {
	const struct pfs_key *keys; /* consecutive pages */
	const uint32_t *groups;     /* lengths of the groups in keys, or NULL: every key for itself */
	uint32_t key_count;         /* 1..PFS_MAX_KEYS */
	uint32_t group_count;       /* 0 with groups NULL */
	uint64_t start;             /* tokens before the first key */
	uint64_t have;              /* tokens the engine holds already */
	uint64_t limit;             /* 0 = none */
	uint8_t ticket[16];         /* zero, or the one that all ranks of this request use: one answer, and pfs_get_confirm at its end */
	uint32_t policy;      /* PFS_POLICY_PREFIX */
	uint32_t flags;       /* PFS_GET_WAIT_INFLIGHT, PFS_GET_NO_AHEAD, PFS_GET_NO_BITS */
	uint32_t class_mask;  /* 0 = all */
	uint32_t call_flags;  /* 0 or PFS_CALL_NONBLOCK */
	uint32_t deadline_ms; /* 0 = the daemon's default */
	uint32_t room;        /* tokens that the engine computes behind a boundary where it keeps a state */
	uint64_t prompt_len;  /* tokens of the prompt, from position 0; 0 = to the end of the keys */
	uint32_t reserved[2];
};

struct pfs_get_result {
	uint64_t handle;
	uint64_t raw_prefix_hit_len;
	uint64_t transferable_len; /* deepest restorable boundary; `have` or less = nothing to fetch */
	uint64_t demand;
	uint32_t prefix_hit_groups;
	uint32_t first_miss_index;       /* or PFS_INDEX_NONE */
	uint32_t first_miss_group_index; /* or PFS_INDEX_NONE */
	uint32_t all_hit;
	uint32_t hits;           /* complete pages, anywhere in the batch; with PFS_GET_NO_BITS the leading ones */
	uint32_t missing;        /* ranges to acknowledge before a transfer; 0 with auto_ack */
	const uint8_t *hit_bits; /* bit i%8 of byte i/8: page i is complete; NULL with PFS_GET_NO_BITS */
	const uint8_t *restorable_bits;  /* likewise: the end of page i is a restorable boundary */
	uint64_t bytes[PFS_TIERS];       /* to be moved up to transferable_len, by tier */
	uint32_t estimate_us[PFS_TIERS]; /* estimated time for it */
	const uint64_t *wanted;          /* boundaries behind transferable_len at which a row is worth putting, ascending; NULL without
	                                    any. At most PFS_MAX_WANTED */
	const struct pfs_candidate *candidates; /* rows inside pages, deepest first; NULL without any */
	uint32_t wanted_count, candidate_count;
	uint64_t dense_len;              /* how far the dense classes reach; `have` or less = no further */
};

/* Looks up and pins what is restorable above `have`. Everything in *ret belongs to the handle and dies with it. A handle is
 * ended by the pfs_get_transfer that reaches its boundary or by pfs_get_cancel, which costs no request where nothing
 * could be transferred; the daemon cancels one that was left alone for its handle_ttl. Waits for values of other
 * plans only with PFS_GET_WAIT_INFLIGHT.
 * -EINVAL, -E2BIG, -EDQUOT, -ENOBUFS, -EOPNOTSUPP (policy; a ticket, prompt_len or room, of which the daemon, an older one, knows
 * nothing), -EAGAIN (PFS_CALL_NONBLOCK and it would wait). */
int pfs_get_start(struct pfs_session *session, const struct pfs_get_request *request, struct pfs_get_result *ret);

struct pfs_transfer_request {
	uint64_t handle;
	uint64_t boundary;    /* tokens: restorable and on a group boundary; the same in every call on a handle */
	uint64_t from, to;    /* tokens, on page boundaries; `to` at most boundary, where the handle ends */
	uint32_t class_mask;  /* 0 = the handle's */
	uint32_t deadline_ms; /* 0 = the daemon's default */
	uint32_t candidate;   /* 1 + its number, `boundary` being its `consumed`; 0 = a boundary of restorable_bits */
	uint32_t reserved[5];
};

struct pfs_transfer_result {
	uint64_t plan;          /* id of the get plan, 0 if nothing was delivered */
	uint64_t delivered_len; /* tokens, `to` or less: see pfs_get_transfer */
	const uint8_t *segment; /* the address of a value is segment + offset */
	/* Per class: an offset for each page of the range asked for, PFS_ANSWER_NONE where there is no value; one for a
	 * state class, where `to` is the boundary. NULL for a class without any. */
	const uint64_t *offsets[PFS_MAX_CLASSES];
	uint32_t pages;        /* of the range asked for */
	uint32_t values;       /* offsets in all */
	uint32_t handle_ended; /* 1: the handle's id is no longer valid */
	uint32_t reserved[5];
};

/* Makes a get plan of a range of a handle. *ret belongs to the plan and dies at its release. May be called again for
 * ascending ranges. The bytes at the offsets stay as they are until pfs_release. When the daemon was restarted meanwhile nothing is
 * delivered: `plan` 0, `handle_ended` 1.
 * -ENOENT (no such handle of this session), -EINVAL, -ENXIO (a range is not acknowledged), -EDQUOT, -ENOBUFS, -EOPNOTSUPP (a candidate, and the
 * daemon is an older one), -EAGAIN (as of pfs_put_start; or memory for values that are on disk was not to be had until the deadline, for none of them). */
int pfs_get_transfer(
	struct pfs_session *session, const struct pfs_transfer_request *request, struct pfs_transfer_result *ret);

/* Gives a handle back. Plans made from it stay. -ENOENT. With a ticket: nothing will be restored on any rank. */
int pfs_get_cancel(struct pfs_session *session, uint64_t handle);

/* After the transfers of a request with a @ticket (16 bytes): this rank's copies are done, or (@failed) have not come to a good
 * end. Waits for all ranks, at most @deadline_ms (0: 10 s). *restored, the same on every rank: tokens up to which the request is
 * restored; 0: nothing is, on no rank, the daemon was restarted, or a rank died. Safe to repeat, but tickets end with the serving
 * process: from then on it says 0, also to a rank that was told more before. So a request of which any rank is told 0 is to be given
 * up on all. @call_flags: 0 or PFS_CALL_NONBLOCK (-EAGAIN: the report counts, ask again). -EPERM (no rank, or it did not begin with
 * this ticket), -EINVAL (a ticket of zeroes). */
int pfs_get_confirm(struct pfs_session *session, const uint8_t ticket[16], int failed, uint32_t call_flags, uint32_t deadline_ms,
	uint64_t *restored);

/* Is a state to be kept now, in generation? @committed: tokens whose values are final, where the last step ended; @last: of the
 * last checkpoint, 0 = none; @interval of pfs_info (0 = no ladder); @page_tokens likewise; @end: where generation is known to end,
 * 0 = unknown; @room as of pfs_get_request. 1: put the row at @committed with PFS_GROUP_RUNG; 0: no. Asks nobody. */
int pfs_ladder_due(uint64_t committed, uint64_t last, uint64_t interval, uint32_t page_tokens, uint64_t end, uint32_t room);

/* Releases @count get plans (1..PFS_MAX_RELEASE). @status (may be NULL): 0 or a negative errno for each. Returns the first
 * error of any, after all others were released. -ENOENT (unknown to this session, or ended), -EINVAL (a put plan),
 * -ESTALE: the daemon took this process for dead, while both live, and gave its plans up (it cannot watch processes): released, but the
 * bytes read under it are not to be trusted. The death of the daemon is no such thing: 0. -ENOBUFS, -EBUSY: the daemon could not be asked
 * until the session's deadline, and these go on. */
int pfs_release(struct pfs_session *session, const uint64_t *plans, uint32_t count, int32_t *status);

/* ---- get, into memory of the engine's own ------------------------------------------------------------------------
 *
 * An engine with a host pool of its own has the daemon write values there, those on disk too, without a slot of the segment in
 * between: it imports the pool's memory file once, and names it in pfs_get_into. Ask pfs_get_start with PFS_GET_NO_AHEAD then. */

/* Lets the session use the memory file @fd (memfd_create, shm_open), open for writing and with all of its memory present, at most
 * PFS_MAX_IMPORTS of them. The descriptor is copied: the engine may close it. After a restart of the daemon it is imported anew when
 * it is used. *ret names it in calls of this session.
 * -EBADF, -EINVAL (no memory file, empty, or with holes), -EPERM (sealed against writing), -EOPNOTSUPP (hugetlbfs), -EDQUOT, -EMFILE,
 * -ENFILE (the host's limit), -ETIMEDOUT; the sentence says which. */
int pfs_import_add(struct pfs_session *session, int fd, uint64_t *ret);

/* Forgets an import; the memory stays as it is. -ENOENT; -EBUSY: a pfs_get_into writes there. */
int pfs_import_drop(struct pfs_session *session, uint64_t import);

struct pfs_into_request {
	uint64_t handle;
	uint64_t boundary;      /* as of struct pfs_transfer_request, like the next two */
	uint64_t from, to;
	uint64_t import;
	/* The value of class c of page i of the range goes to byte base + block(i) * stride + class_offset[c] of the file, that of
	 * a state class to state_base + class_offset[c]; any alignment will do. */
	uint64_t base, stride, state_base;
	const uint32_t *blocks; /* block(i) of each page of the range; NULL: block(i) = i */
	uint64_t class_offset[PFS_MAX_CLASSES];
	uint32_t class_mask;    /* 0 = the handle's */
	uint32_t call_flags;    /* 0, or PFS_CALL_NONBLOCK: -EAGAIN where a value is on disk */
	uint32_t deadline_ms;   /* 0 = the daemon's default */
	uint32_t reserved[5];
};

struct pfs_into_result {
	uint64_t delivered_len; /* tokens, `to` or less: what was written for pages behind it means nothing */
	uint64_t bytes;         /* payload bytes delivered */
	uint32_t values;
	uint32_t handle_ended;  /* 1: the handle's id is no longer valid */
	uint64_t reserved[4];
};

/* Has a range of a handle written to an import; when it returns, the bytes are there. No plan is made, nothing is to be released.
 * Less than `to` is delivered when the deadline has passed, or a value could not be read from disk: that one is gone, and is never
 * written. After an error the handle is as before, and the bytes at the places named mean nothing.
 * -ENOENT (handle or import), -EALREADY (the handle has ended), -EINVAL, -ERANGE (a place outside the file), -EFAULT (the file has
 * become shorter, has holes, or was sealed), -EAGAIN, -EBUSY, -EIO, -ENOMEM, -ENOBUFS. When the daemon was restarted meanwhile: 0, nothing
 * is delivered, `handle_ended` 1. */
int pfs_get_into(struct pfs_session *session, const struct pfs_into_request *request, struct pfs_into_result *ret);

/* ---- pointer tables for kernels -------------------------------------------------------------------------------- */

#define PFS_BLOB_WRITE 1u /* of a put plan: its NEW values */
#define PFS_BLOB_READ 2u  /* of a get plan: its values */

/* struct { u64 magic = PFS_BLOB_MAGIC; u64 count; u64 value_ptrs[count]; } and which values these are. */
struct pfs_blob {
	const uint64_t *words; /* the table: 2 + count words */
	size_t bytes;          /* of it */
	const uint32_t *index; /* index of each value in the plan's answers or offsets of that class */
	uint32_t count;
	uint32_t kind; /* PFS_BLOB_WRITE or PFS_BLOB_READ */
	uint64_t reserved[2];
};

/* The pointer table of one class of a plan, in the order of its keys. It belongs to the plan and dies at its commit, abort
 * or release; groups committed or aborted before are not in it. Asking again for the same class gives the same table.
 * Never blocks on the daemon. -EINVAL (wrong kind of plan, class not in it), -ENOENT (ended, or another session's
 * plan; the sentence says which), -ENOMEM. */
int pfs_blob(struct pfs_session *session, uint64_t plan, uint32_t kind, uint32_t class_index, struct pfs_blob *ret);

/* ---- questions -------------------------------------------------------------------------------------------------- */

struct pfs_probe_result {
	uint32_t hits;   /* complete pages */
	uint32_t prefix; /* leading complete pages */
	uint64_t reserved[2];
};

/* Which of @keys (1..PFS_MAX_KEYS) are there? Pins nothing, refreshes nothing. @hit_bits (may be NULL): the caller's
 * (@count + 7) / 8 bytes. */
int pfs_probe(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint8_t *hit_bits,
	struct pfs_probe_result *ret);

/* ---- by hand ----------------------------------------------------------------------------------------------------
 *
 * Keys as everywhere: in place if they lie in a pfs_keys_area, else copied. All of these are idempotent and are asked again
 * after a restart of the daemon. All may block for as long as the daemon takes; none waits for others' plans. */

/* The pages of @keys (1..PFS_MAX_KEYS) were used now: they leave later. @priority and @pause_ms (expected pause until the
 * next use) are hints, 0 = none. *touched (may be NULL): how many of them are there. A read-only session may.
 * -EINVAL, -E2BIG, -ENOBUFS. */
int pfs_touch(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t priority,
	uint32_t pause_ms, uint32_t *touched);

struct pfs_remove_result {
	uint32_t removed, absent, busy; /* keys by their answer */
	uint32_t reserved0;
	uint64_t values;                /* that went */
	uint64_t reserved[2];
};

/* Lets the values of @class_mask (0 = all classes) at @keys (1..PFS_MAX_KEYS) go. @answers (may be NULL): the caller's array
 * of @count, PFS_REMOVE_* for each. One that is pinned or being written is PFS_REMOVE_BUSY, which is no error. @ret may
 * be NULL. -EINVAL, -E2BIG, -EROFS (read-only session), -ENOBUFS. */
int pfs_remove(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t class_mask,
	uint32_t *answers, struct pfs_remove_result *ret);

struct pfs_pin_result {
	uint32_t changed, absent;           /* records that were not so before; keys without a record */
	uint64_t pinned_bytes, limit_bytes; /* of the namespace */
	uint64_t reserved[2];
};

/* Holds the records of @keys (1..PFS_MAX_KEYS): they are no victims until they are released. @flags: PFS_PIN_*. @answers (may
 * be NULL): the caller's array of @count, PFS_PIN_* for each. A pin outlives the session. @answers and *ret (may be NULL)
 * are set on -ENOSPC too: some passed the limit, all others were pinned; pfs_last_error() names the numbers.
 * -EINVAL, -E2BIG, -EROFS (read-only session), -ENOSPC, -ENOBUFS. */
int pfs_pin(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t flags, uint32_t *answers,
	struct pfs_pin_result *ret);

/* Has everything written to disk that is in memory alone, and waits for it, at most a minute; *values (may be NULL) is 0: bytes
 * are counted, by pfs_stat. Without a disk tier there is nothing to do.
 * -EROFS (read-only session), -ETIMEDOUT (it goes on for some seconds; call again to wait on), -EIO (the disk tier is
 * closed), -EBUSY (too many on this host). */
int pfs_drain(struct pfs_session *session, uint64_t *values);

struct pfs_reset_result {
	uint64_t generation; /* the new one */
	uint64_t values;     /* that went at once */
	uint32_t held;       /* old records that plans, handles or readers still hold */
	uint32_t reserved0;
	uint64_t reserved[2];
};

/* Begins a new generation of the namespace: nothing that was stored before is found any more, by anybody. Get plans and handles
 * stay readable until they are released; open put plans are LOST at their commit. @ret may be NULL.
 * -EROFS (read-only session). */
int pfs_reset(struct pfs_session *session, struct pfs_reset_result *ret);

/* ---- blobs ------------------------------------------------------------------------------------------------------
 *
 * Bytes of any length under a key or a name, in the namespace's share for them: prepared inputs, small files. Not to be confused
 * with struct pfs_blob, the pointer table of a plan. One is named by @name, 1..PFS_MAX_BLOB_NAME bytes and a NUL, or, where that
 * is NULL, by @key; a name's key is pfs_key_from_bytes of it. What is larger than a part of the call buffer goes in pieces.
 * -EOPNOTSUPP where the namespace has no share for blobs; -EINVAL, -ENOBUFS. */

struct pfs_blob_info {
	uint64_t length, version; /* a version is never used again while the daemon lives */
	uint64_t created_s, used_s;
	uint32_t kind;            /* as its writer said */
	uint32_t reserved0;
	uint64_t reserved[2];
};

/* Stores @length bytes, in place of what is there, at once and whole; others go for it, those unused for longest first. Ends the
 * session's lock of it. @flags: 0 or PFS_BLOB_EXCLUSIVE. Never waits for others.
 * -EROFS, -EEXIST, -EFBIG (over half of the share), -ENOSPC (what is being read and written holds too much), -EDQUOT; a reset of
 * the namespace meanwhile is tried again. */
int pfs_blob_put(struct pfs_session *session, const struct pfs_key *key, const char *name, const void *data, uint64_t length,
	uint32_t kind, uint32_t flags);

/* Copies the whole blob to @to. One that is longer than @capacity is -EMSGSIZE, and *ret (may be NULL) says how long; @to NULL and
 * @capacity 0 only ask, which counts as no use: 0. -ENOENT, -EDQUOT. */
int pfs_blob_get(struct pfs_session *session, const struct pfs_key *key, const char *name, void *to, uint64_t capacity,
	struct pfs_blob_info *ret);

/* -ENOENT, -EROFS. */
int pfs_blob_remove(struct pfs_session *session, const struct pfs_key *key, const char *name);

/* Who makes a blob that is not there? PFS_BLOB_FOUND: it is there, *ret (may be NULL) says what; PFS_BLOB_LOCKED: this session,
 * which holds the lock until it stores it, releases it, ends, or @hold_ms (0 = 30 s) have passed since it asked last. Else waits
 * for either, @deadline_ms at most (0 = 10 s). @call_flags: 0 or PFS_CALL_NONBLOCK. Threads of one session are not kept apart.
 * -ETIMEDOUT, -EAGAIN (PFS_CALL_NONBLOCK and it would wait), -EDQUOT, -EROFS. */
int pfs_blob_lock(struct pfs_session *session, const struct pfs_key *key, const char *name, uint32_t hold_ms,
	uint32_t deadline_ms, uint32_t call_flags, struct pfs_blob_info *ret);

/* The blob will not come: the next one may make it. -ENOENT: this session does not hold the lock (any more). */
int pfs_blob_unlock(struct pfs_session *session, const struct pfs_key *key, const char *name);

/* ---- counters --------------------------------------------------------------------------------------------------- */

/* The namespace's counters as "name value" lines, NUL-terminated and cut to @size bytes; *length (may be NULL): of the whole
 * text without the NUL. @size at most 1 MiB. */
int pfs_stat(struct pfs_session *session, char *to, size_t size, size_t *length);

#ifdef __cplusplus
}
#endif

#endif
