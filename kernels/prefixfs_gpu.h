/* SPDX-License-Identifier: Apache-2.0
 *
 * libprefixfs-gpu: the bytes of plans to and from the pages of a GPU, for inference engines.
 *
 * An engine opens its device once, attaches each session, which registers that session's memory with the device, and then either
 * stores and fetches whole requests with pfs_gpu_put and pfs_gpu_get, or makes plans itself (prefixfs.h) and moves
 * their values with pfs_gpu_gather and pfs_gpu_scatter.
 *
 * Conventions are those of prefixfs.h: 0 or a negative errno, outputs on success only unless said otherwise,
 * pfs_gpu_last_error() has the sentence, structs that go in are zeroed first, reserved fields stay 0. Sizes are in bytes,
 * deadlines in relative milliseconds, 0 = the default of the device. All functions may be called from any thread, except
 * where pfs_gpu_close and pfs_gpu_detach say otherwise. No call changes the CUDA context that is current to its caller,
 * none puts work or a wait on a stream of the engine. A device does not survive fork(2): in a child all calls are -EPERM, and pfs_gpu_close
 * and pfs_gpu_end leave NULL behind and do nothing else. Threads of the library have all signals blocked.
 *
 * CUDA is loaded when a device is opened. PFS_KERNELS=ref in the environment has plain C do the work on ordinary memory instead: all
 * addresses of planes are then the process's own. Events are CUevent, passed as void *; NULL with `ref`.
 */
#ifndef PREFIXFS_GPU_H
#define PREFIXFS_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pfs_session;
struct pfs_put_request;
struct pfs_get_request;

#define PFS_GPU_MAX_PLANES 4096u          /* of a pool */
#define PFS_GPU_MAX_PAGES_PER_VALUE 1024u /* planes x pages_per_value: 65,536 at most */
#define PFS_GPU_MAX_VALUES (1u << 20)     /* of a copy; and that many page ids */
#define PFS_GPU_MAX_PARTS 1024u           /* of a copy */
#define PFS_GPU_STAGING_BYTES (64u << 20) /* memory of the device that one pfs_gpu takes, all in all */
#define PFS_GPU_REGISTER_BYTES (2ull << 30) /* the most that one call of the driver registers */

/* As pfs_last_error(), for the functions of this header. */
size_t pfs_gpu_last_error(char *to, size_t size);

/* ---- device ---------------------------------------------------------------------------------------------------- */

struct pfs_gpu;

/* Filled in by pfs_gpu_options_init, not zeroed. */
struct pfs_gpu_options {
	uint32_t size;             /* sizeof(struct pfs_gpu_options); pfs_gpu_options_init sets it */
	int32_t device;            /* ordinal of the CUDA device, whose primary context is used; default 0 */
	const char *kernels;       /* "cuda", "ref", or NULL: $PFS_KERNELS, else cuda; default NULL */
	uint32_t register_threads; /* of one registration, 1..64; default 4 */
	uint32_t deadline_ms;      /* of waits that name none, not 0; default 30,000 */
	uint64_t reserved[6];
};

void pfs_gpu_options_init(struct pfs_gpu_options *options);

/* Opens a device: loads the driver and the kernels, takes PFS_GPU_STAGING_BYTES of its memory and starts the threads that submit
 * work. @options may be NULL. The caller's, to be closed with pfs_gpu_close.
 * -EINVAL (an option), -ENODEV (no driver, or no such device), -ENOTSUP (the driver or the device is too old, or this was
 * built without CUDA; the sentence says which and what is needed), -ENOMEM (its memory or the device's), -EIO (what CUDA says; a driver that
 * is not ready yet is asked again by the next pfs_gpu_open). */
int pfs_gpu_open(const struct pfs_gpu_options *options, struct pfs_gpu **ret);

/* Waits for all copies, and until plans whose copies were late are given back - a daemon that cannot be asked is tried once more, then
 * they go with the session; takes every registration back and leaves NULL behind. All
 * operations must have been ended with pfs_gpu_end, and no call may be under way. NULL inside is allowed. */
void pfs_gpu_close(struct pfs_gpu **gpu);

struct pfs_gpu_info {
	char kernels[8];             /* "cuda" or "ref" */
	char device_name[64];
	uint32_t compute_capability; /* 90 = 9.0; 0 with ref */
	uint32_t driver_version;     /* 13000 = 13.0; 0 with ref */
	uint32_t registrations;
	uint32_t mps;                /* 1: the context belongs to a server of CUDA MPS; see docs/gpu.md */
	uint64_t registered_bytes;
	uint64_t staging_bytes;      /* memory of the device that is taken */
	uint64_t submit_cpu_ns;      /* CPU time of the submitting threads so far */
	uint64_t bytes_to_device, bytes_to_host; /* moved so far */
	uint64_t copies[8];          /* pieces of work (a copy, or each part and span of one) by path: staged, bulk kernel, direct kernel, batched */
	uint64_t reserved[6];
};
int pfs_gpu_info(struct pfs_gpu *gpu, struct pfs_gpu_info *ret);

/* ---- registration ---------------------------------------------------------------------------------------------- */

/* Tells how far it got; may come on another thread, one call at a time; must not call this library. */
typedef void (*pfs_gpu_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* Registers what was granted to @session's rank - ranges of its own shares alone - in parallel, mapping its pages first, and
 * acknowledges it, so that puts are given addresses in it. Open the session with auto_ack 0, and attach before the first request: it takes
 * 0.02 to 0.03 s a GiB of huge pages, up to 0.11 of others, up to 0.3 where the daemon has not made them (`populate` false). One session is one device's: for two open two sessions. Called again it takes up what was granted since; what is
 * registered already stays so and costs nothing. Memory that is mapped read-only is registered so, and only read from. What is registered stays mapped. After the daemon was
 * restarted with other memory (pfs_session_info.remapped) the new one is registered, and what was registered of the old one is taken back
 * as soon as an attaching finds neither a plan nor a copy that uses it. Several threads may attach one session: one after another.
 * Blocks as long as it takes. All or nothing is acknowledged: a range that cannot be registered is an error.
 * -EINVAL (the session has no rank), -ENOMEM, -EIO, -ESTALE (ranges or memory change again and again), and what pfs_segments and
 * pfs_segments_ack say. */
int pfs_gpu_attach(struct pfs_gpu *gpu, struct pfs_session *session, pfs_gpu_progress progress, void *context);

/* Takes the registrations back that @session's attaching made, and lets its memory go. First end all copies of its plans. Those that a
 * pfs_gpu_put or pfs_gpu_get left under way are waited for, the default deadline; an attaching as long as it takes. Before pfs_close; where that was
 * forgotten, @session still names what it had, and nothing of it is touched.
 * -ENOENT (it is not attached), -EBUSY (a copy uses its memory), -ETIMEDOUT (a copy is under way, or a plan is being given
 * back): nothing was taken back then, and the session may not be closed.
 * -EIO: the driver's; everything was. */
int pfs_gpu_detach(struct pfs_gpu *gpu, struct pfs_session *session);

/* The same for any memory of the process: @bytes at @address, a whole number of pages. @generation: the caller's; the same (address, bytes,
 * generation) counts once more and costs nothing; another generation of the same place registers it anew. Memory that somebody registered
 * already, another pfs_gpu of the process too, is accepted and left to them: they unregister last. It has to stay mapped as long as it is registered.
 * -EINVAL (misaligned, empty, overlapping another registration, or registered by somebody in part, or in several pieces), -EBUSY (copies use the other generation),
 * -ENOMEM, -EIO. */
int pfs_gpu_register(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t generation);
/* Undoes one pfs_gpu_register, all of it or nothing. -ENOENT, -ESTALE (another generation is registered there), -EBUSY (a copy uses it),
 * -EIO (the driver's; it is undone). */
int pfs_gpu_unregister(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t generation);

/* ---- copies ---------------------------------------------------------------------------------------------------- */

/* One plane of all pages. A value holds its planes in order, packed. {base, stride, bytes} is enough where a page of a plane lies
 * in one piece (layer_first, MLA, a whole page of page_first); docs/gpu.md writes down the common layouts. */
struct pfs_gpu_plane {
	uint64_t base;       /* address on the device of the plane of page 0 */
	uint64_t stride;     /* from the plane of a page to that of the next; at least what it spans */
	uint64_t bytes;      /* of the plane in a value: that of pages_per_value pages together */
	uint64_t row_bytes;  /* 0: a page's bytes lie in one piece. Else in rows of so many */
	uint64_t row_stride; /* from a row to the next, where row_bytes is not 0 */
	uint32_t blocks;     /* 0 = 1: how often the page's tokens follow each other in it (page_head: once a head) */
	uint32_t reserved;
};

/* Where the pages of one value class are on the device. */
struct pfs_gpu_pool {
	const struct pfs_gpu_plane *planes;
	uint32_t plane_count;     /* 1..PFS_GPU_MAX_PLANES */
	uint32_t page_limit;      /* page ids are below it */
	uint32_t pages_per_value; /* 0 = 1: a value is so many pages of the device, one after another in each plane */
	uint32_t value_tokens;    /* tokens of a value; 0: token ranges are not used */
	uint64_t reserved[2];
};

/* Planes first..first+count-1, moved before those of the next part. */
struct pfs_gpu_part {
	uint32_t first_plane, plane_count;
};

#define PFS_GPU_URGENT 1u /* somebody waits: goes beside what is queued; meant for a few MiB */

struct pfs_gpu_copy {
	const struct pfs_gpu_pool *pool;
	const uint64_t *values; /* [count]: their addresses here, as in pfs_blob.words + 2. All registered */
	const uint32_t *pages;  /* [count * pages_per_value]: ids */
	uint32_t count;         /* 1..PFS_GPU_MAX_VALUES */
	uint32_t flags;         /* 0 or PFS_GPU_URGENT */
	uint64_t token_from, token_to; /* only these of the values' tokens, counted through; token_to 0 = all */
	const struct pfs_gpu_part *parts; /* NULL: all planes at once */
	uint32_t part_count;    /* 0 with parts NULL */
	uint32_t reserved0;
	void *after;            /* event after which pages may be touched; NULL = at once. It must have been recorded. Until it is reached it
	                           holds up later copies of the same direction as well, but urgent ones */
	uint64_t reserved[4];
};

struct pfs_gpu_op;

/* Starts copying values to pages. Everything is checked before anything is submitted. Nothing of @copy is used after the return, except
 * `after`. Does not wait for the device. Where nothing else is under way in its direction it submits as much as fills the ring once (32 MiB to
 * the device, 27 back; with parts, of the first one), which takes some ten microseconds; if it is urgent as much as tables have room for, all of a few
 * MiB, beside up to 15 others. *ret is the caller's and is ended
 * with pfs_gpu_end. The values must stay theirs (the plan must stay) until the operation is done. Operations are not ordered among
 * themselves, of one direction neither: give the last event of one (pfs_gpu_event) as `after` of what is to follow it, or wait.
 * -EINVAL, -E2BIG, -EOVERFLOW, -ERANGE (page id, token range), -EFAULT (a value is not registered, or leaves its registration),
 * -EROFS (pfs_gpu_gather to memory that is read-only), -ENOMEM, -EIO (the device is lost: all calls say so from then on). */
int pfs_gpu_scatter(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, struct pfs_gpu_op **ret);
/* Starts copying pages to values, otherwise the same. Where two values are the same address, or planes overlap, what is left is
 * undefined; and so it is at a page that is named twice in a scatter. */
int pfs_gpu_gather(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, struct pfs_gpu_op **ret);

/* Waits until all of it is done: 0. -ETIMEDOUT: not yet; the plan may not be given back. Any other error: it failed, and
 * nothing of it is under way any more. */
int pfs_gpu_wait(struct pfs_gpu_op *op, uint32_t deadline_ms);
/* 0: done. -EAGAIN: not yet. Else how it failed. Never blocks. */
int pfs_gpu_test(struct pfs_gpu_op *op);
/* The event of part @part (0 without parts), for a stream of the engine to wait for. Waits until it was recorded, which is long before the
 * copy is done. The event belongs to the operation. *ret is NULL with `ref`: the part is done. -ERANGE (no such part), -ETIMEDOUT (not
 * recorded until then), else how the operation failed. */
int pfs_gpu_event(struct pfs_gpu_op *op, uint32_t part, uint32_t deadline_ms, void **ret);
/* Ends an operation and leaves NULL behind; one that is still under way goes by itself when it is done. NULL inside is allowed. */
void pfs_gpu_end(struct pfs_gpu_op **op);

/* ---- ring windows ---------------------------------------------------------------------------------------------- */

/* A window of the last frames in a ring of @capacity frames. The first @sink frames of all stay where they are; each later frame f
 * is at sink + (f - sink + roll) mod (capacity - sink). As a pool: pages are frames, stride is a frame's bytes,
 * pages_per_value the frames of a value. */
struct pfs_gpu_ring {
	uint32_t capacity; /* frames */
	uint32_t sink;     /* below capacity */
	uint64_t roll;     /* 0 = frame `sink` is right behind the sink */
};

/* Page ids of @count frames from @first on. -EINVAL, -ERANGE (more than fit at once). */
int pfs_gpu_ring_pages(const struct pfs_gpu_ring *ring, uint64_t first, uint32_t count, uint32_t *pages);

/* ---- whole requests -------------------------------------------------------------------------------------------- */

/* Page ids of one class for a request: pages_per_value for each of its keys; where it is a state class, for each group of a put, and for the
 * one state of a get. Those of keys whose value is not copied are not looked at. */
struct pfs_gpu_pages {
	const struct pfs_gpu_pool *pool; /* its planes have the bytes of a value in this rank's share, together */
	const uint32_t *pages;
};

struct pfs_gpu_put_request {
	const struct pfs_put_request *put;
	const struct pfs_gpu_pages *classes; /* [index of a class]: of all in put->class_mask */
	void *after;                         /* as in struct pfs_gpu_copy */
	uint32_t deadline_ms;                /* of the copies and of waiting for groups that are pending, from the copies' start */
	uint32_t reserved0;
	uint64_t reserved[3];
};

struct pfs_gpu_put_result {
	uint32_t new_values;       /* copied, and published with their groups; the others were there, or another plan is writing them */
	uint32_t groups_committed, groups_refused, groups_lost;
	uint32_t groups_aborted;   /* they were pending (WHOLE, and another plan had a key of theirs) until the deadline: put them again */
	uint32_t come_again;       /* as in struct pfs_put_result: put again under the same ticket */
	uint64_t bytes;
	uint64_t reserved[3];
};

/* Stores a request: starts a put plan, copies the values that are new, waits, commits. When it returns, the pages may be written again and
 * the plan has ended, whatever is returned, but for -ETIMEDOUT: the device has not finished, pages may still be read and `after` be waited
 * for, until pfs_gpu_settle is 0; the plan is aborted by this library when it has, and the same keys are another plan's till then
 * (PFS_ANSWER_INFLIGHT). After any other error nothing of it is under way. A plan that the daemon cannot be asked about just then, being
 * too busy for as long as the session's deadline, is aborted by this library as soon as it can. @status (may be NULL): the caller's array, PFS_GROUP_* of each group.
 * *ret may be NULL. The request is judged before there is a plan, but for page ids and what the device says. Where groups got no room the
 * session is attached again before the return, so that another try finds what was granted since: the session's news need not be waited for,
 * and any request takes them.
 * -EINVAL (a class that the layout has not, a pool that is not of its class), -ETIMEDOUT, -ENOMEM, and what pfs_put_start,
 * pfs_gpu_gather and pfs_put_commit say. */
int pfs_gpu_put(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_put_request *request, uint32_t *status,
	struct pfs_gpu_put_result *ret);

struct pfs_gpu_get_request {
	const struct pfs_get_request *get; /* NULL: `handle` is one that pfs_get_start gave, whose first key is at token
	                                      `start`; it is consumed, whatever is returned */
	uint64_t handle, start;            /* with `get`: handle is 0 */
	uint64_t from, to;                 /* tokens to restore, on page boundaries, from >= start. `to` is the boundary, a restorable one.
	                                      With `get` `from` 0 is the page that have lies in, `to` 0 what is there; what lies between have
	                                      and `from` is not fetched, `to` beyond what is there is no error */
	const struct pfs_gpu_pages *classes; /* [index of a class]: of all in the class mask; pages for the keys from `start` on */
	uint32_t class_count;                /* of that array */
	uint32_t class_mask;                 /* 0 = all of `classes` that are not NULL; with `get` those that it looks up */
	void *after;
	uint32_t deadline_ms; /* of making a get plan (0: the daemon's default), and of its copies, from their start */
	uint32_t flags; /* 0 or PFS_GPU_URGENT */
	uint64_t reserved[3];
};

struct pfs_gpu_get_result {
	uint64_t restored_len; /* tokens that one can go on from, those in front of `from` counted; `from` or less: nothing */
	uint64_t bytes;        /* that were copied, and values, those of boundaries that came in part among them */
	uint32_t values;
	uint32_t reserved0;
	uint64_t reserved[3];
};

/* Fetches a request: looks up, makes a get plan, copies, waits, releases; what memory does not hold at once comes by several plans. Values that
 * come into memory that is new to the session are no error: it is attached again. Where less than `to` comes, since a value cannot be read or
 * memory is short, `restored_len` is that where it can be gone on from: of classes with a value of each page. Else, with `get` and without a
 * ticket, a boundary below is looked up and fetched, twice at most; and if there is none, nothing is restored. Candidates, and where rows are
 * wanted, are what pfs_get_start answers: ask it, and give the handle.
 * Afterwards no plan and no handle of it is left, whatever is returned, but for -ETIMEDOUT: the device has not finished, pages may still be
 * written and `after` be waited for, so they may not be another request's, until pfs_gpu_settle is 0; the plan is released by this library when
 * it has. After any other error nothing of it is under way. A plan that cannot be released just then is so later, as of a put. After an error the bytes of the pages named mean nothing; where a page is named
 * twice, or by two classes of one pool, they are undefined. The request is judged before there is a plan, but for page ids and what the device
 * says.
 * -EINVAL (a class that the layout has not, a pool that is not of its class, a range), -ETIMEDOUT, -ENOMEM, -EAGAIN (memory for values that are on
 * disk was not to be had until the deadline, for none of them), and what pfs_get_start, pfs_get_transfer, pfs_gpu_attach, pfs_gpu_scatter and
 * pfs_release say. */
int pfs_gpu_get(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_get_request *request,
	struct pfs_gpu_get_result *ret);

/* After an -ETIMEDOUT: waits until no copy of @session's puts and gets is under way any more. The pages may be used for something else then; the
 * plans are given back without anybody waiting. 0, or -ETIMEDOUT: not yet. */
int pfs_gpu_settle(struct pfs_gpu *gpu, struct pfs_session *session, uint32_t deadline_ms);

#ifdef __cplusplus
}
#endif

#endif
