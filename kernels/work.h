/* SPDX-License-Identifier: Apache-2.0
 *
 * A device with its operations and the threads that submit and end them.
 *
 * There are four channels: to the device and back, and an urgent one each way. An operation is queued at its channel, submitted by
 * the thread of the channel, and ended by the channel's reaper. Where nothing is under way the caller submits the beginning itself, which
 * waits for nothing, and leaves the rest to the thread, in front of what was queued meanwhile; of an urgent one, beside up to as many as there are
 * mirrors, that is all of it, as a rule. What a channel submits with - lanes, slots, mirrors - belongs to whoever submits: the thread or the caller
 * that has `taken` it, and after a failure the reaper, until it has drained the lanes. So no caller waits for the device. One thread more gives plans
 * back whose copies were late (moves.h).
 *
 * Locks: pfs_gpu.lock, and below it nothing; registry.lock stands alone. Neither is held while a backend is called.
 */
#ifndef PREFIXFS_KERNELS_WORK_H
#define PREFIXFS_KERNELS_WORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/backend.h"
#include "kernels/paths.h"
#include "kernels/registry.h"
#include "kernels/shape.h"
#include "kernels/stage.h"

#define MIRRORS 16u /* tables on their way, of each channel */

#define COPY_LANES 2u /* of a channel at most */

/* How the ring is used. The library has one answer (tuning_init); benchmarks and tests try others. */
struct gpu_tuning {
	uint64_t in_bytes;        /* of STAGE_RING_BYTES, for the way to the device; the rest is for the way back */
	uint32_t slots;           /* that a direction's share of the ring is cut into: 2..STAGE_MAX_SLOTS, of STAGE_SLOT_BYTES at least */
	uint32_t spin_us;         /* that threads look for an end that is near, before they sleep until it comes: 0..10000 */
	uint64_t spin_bytes;      /* operations that are so large have an end that is looked for */
	uint32_t copy_lanes;      /* that a direction's copies take in turn: 1..COPY_LANES */
	bool turns;               /* a lane's copies wait for those given to the other one before */
	uint32_t ahead;           /* tables that a channel has on their way: 2..MIRRORS */
	uint64_t gap;             /* between values, that is copied rather than cut out: 0..STAGE_MAX_GAP */
	bool kernels_first;       /* struct backend_needs */
	bool prefer_overlap;      /* struct backend */
	uint32_t blocks[KERNELS]; /* that a kernel gets at most; 0: the backend's choice */
};

void tuning_init(struct gpu_tuning *tuning);

/* A piece of the ring, with tables for the kernel that works on it. Urgent channels have the tables alone. */
struct slot {
	uint64_t data, tables;   /* on the device */
	struct gpu_event *full;  /* the first of the two steps of what passes is done */
	struct gpu_event *empty; /* both are */
	uint64_t columns_of;     /* number of the rectangle whose columns its tables hold; 0 = none */
};

struct mirror {
	uint8_t *tables;
	struct gpu_event *uploaded;
	bool used;
};

struct channel {
	struct pfs_gpu *gpu;
	bool to_device, urgent;
	enum lane copies[COPY_LANES], kernels; /* all the same one where it is urgent */
	enum lane last; /* that ends what passes: kernels to the device, copies back */
	uint32_t copy_lanes, slot_count, mirror_count;
	uint64_t slot_bytes;

	/* whoever submits */
	struct slot slots[STAGE_MAX_SLOTS];
	struct mirror mirrors[MIRRORS];
	struct gpu_event *join[COPY_LANES + 1];
	struct gpu_event *passed[COPY_LANES]; /* what a copy lane was given last */
	struct merger *merger;
	uint64_t *stand_ins;       /* [rows of a slot] */
	struct stretch *stretches; /* [SHAPE_MAX_COLUMNS] */
	uint64_t rects;            /* submitted so far: numbers them */
	uint32_t next_slot, next_mirror, next_copy;

	/* gpu->lock */
	bool taken;         /* somebody submits, or drains */
	uint32_t under_way; /* operations that were admitted and are not done */
	struct pfs_gpu_op *queue, **queue_end;
	struct pfs_gpu_op *reap, **reap_end;
	pthread_cond_t work, ends; /* the submitter waits, the reaper */
	pthread_t submitter, reaper;
	bool submitter_runs, reaper_runs;
};

enum channel_number {
	CHANNEL_IN,
	CHANNEL_OUT,
	CHANNEL_IN_URGENT,
	CHANNEL_OUT_URGENT,
	CHANNELS,
};

/* What benchmarks ask where the time has gone for. */
enum op_moment {
	OP_STARTED,   /* called */
	OP_QUEUED,    /* checked */
	OP_TAKEN,     /* by who submits */
	OP_FIRST,     /* copy or kernel was submitted */
	OP_SUBMITTED, /* all were */
	OP_REACHED,   /* the reaper is told of the last event */
	OP_MOMENTS,
};

/* The last to end tells. */
typedef void (*op_ended)(void *context, int error);

struct pfs_gpu_op {
	struct channel *channel;
	struct shape *shape;
	struct spans spans;
	void *after;
	int forced; /* enum gpu_path, or -1 */
	struct gpu_event **events; /* [part_count] */
	uint32_t waited;           /* whoever submits: bits of lanes that have waited for `after` */
	uint32_t rect, row;        /* whoever submits: where the rest begins */
	uint64_t left;             /* and about how many bytes it has */
	struct gpu_event *close;   /* recorded shortly before the end of a large operation; NULL: nobody looks for its end */
	bool close_recorded;       /* whoever submits, then the reaper */
	int failed;                /* likewise: its submission */
	uint64_t moments[OP_MOMENTS]; /* CLOCK_MONOTONIC; whoever has the operation then */

	/* gpu->lock */
	struct pfs_gpu_op *next; /* in a queue */
	uint32_t recorded;       /* parts whose event is */
	bool is_close;           /* `close` is reached */
	bool done, let_go;       /* done: written with the lock, but atomic. let_go: nobody asks any more */
	int error;               /* once done */
	char why[256];
	op_ended ended;
	void *ended_context;
};

struct attached;
struct aftermath;

struct pfs_gpu {
	pid_t pid; /* of the process that opened it */
	struct backend *backend;
	struct registry registry;
	uint32_t register_threads, deadline_ms;
	struct gpu_tuning tuning;
	struct channel channels[CHANNELS];

	pthread_mutex_t lock; /* guards what follows and what structs above say */
	pthread_cond_t news;  /* an operation is recorded or done, a plan is given back */
	uint32_t ops;         /* not yet freed */
	bool leaving; /* the device is being closed: what cannot be given back is not tried again */
	bool closing; /* and nothing is left */
	bool lost;
	bool unknown; /* nor can it be asked what it still does: plans are not given back, the process's end does that */
	char why_lost[256];
	uint64_t submit_cpu_ns, moved[2]; /* moved[1]: to the device */
	uint64_t paths[PATHS]; /* rectangles; atomic, without the lock */
	struct attached *attached;
	struct aftermath *aftermaths; /* plans that are given back when their copies have ended */
	pthread_cond_t over;          /* the copies of one have */
	pthread_t returner;           /* gives them back */
	bool returner_runs;
};

/* ---- submit.c: whoever submits, without locks -------------------------------------------------------------------- */

int channel_init(struct channel *channel, struct pfs_gpu *gpu, enum channel_number number, uint64_t *staging, uint8_t **mirror);
void channel_deinit(struct channel *channel);
/* Bytes of staging memory and of the mirror that all channels need. */
struct backend_needs channels_need(void);
/* Submits what is left of @op; work_recorded is told of each part. @beginning: so much of it alone as needs no waiting for the device - what a
 * ring takes that is empty, and of an urgent one what free mirrors take; perhaps nothing. After a failure all lanes are to be drained. */
int submit_op(struct channel *channel, struct pfs_gpu_op *op, bool beginning);
/* All of it was. */
bool submit_ended(const struct pfs_gpu_op *op);
/* After a failure: waits for all lanes of the channel. The error that their work has met, if any. */
int submit_drain(struct channel *channel);

/* ---- work.c ------------------------------------------------------------------------------------------------------- */

/* pfs_gpu_scatter and pfs_gpu_gather, with a path of the caller's choice (@forced, or -1), which is not taken where it is
 * impossible. */
int work_start(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, bool to_device, int forced, struct pfs_gpu_op **ret);
/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t work_now(void);
void work_moment(struct pfs_gpu_op *op, enum op_moment moment);
/* The event of the next part is recorded. */
void work_recorded(struct pfs_gpu_op *op);
/* pfs_gpu_wait until @deadline_ns. */
int work_wait(struct pfs_gpu_op *op, uint64_t deadline_ns);
/* Has @ended called when the operation is done, on the thread that ends it. False: it is done already, and nothing is called. */
bool work_tell(struct pfs_gpu_op *op, op_ended ended, void *context);
int work_threads_start(struct pfs_gpu *gpu);
/* -EINVAL without a device; -EPERM with its sentence in a child of fork(2), which has neither the threads nor the device, and perhaps a lock
 * that nobody unlocks. */
int work_mine(const struct pfs_gpu *gpu);
/* -EIO with its sentence where the device is lost, else 0. */
int work_lost(struct pfs_gpu *gpu);
/* Waits for all operations and for plans to be given back, then for the threads. */
void work_threads_stop(struct pfs_gpu *gpu);
/* Waits for news until @deadline_ns (CLOCK_MONOTONIC); false: it has passed. With gpu->lock. */
bool work_news(struct pfs_gpu *gpu, uint64_t deadline_ns);
/* CLOCK_MONOTONIC in @deadline_ms (0 = the device's default). */
uint64_t work_deadline(const struct pfs_gpu *gpu, uint32_t deadline_ms);

/* ---- moves.c ------------------------------------------------------------------------------------------------------ */

/* The thread that gives plans back whose copies were not done in time; until the device is being closed and none is left. */
void *aftermaths_main(void *gpu);

#endif
