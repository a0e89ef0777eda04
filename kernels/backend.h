/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device can do. Plain C decides what is copied, where and in which order (submit.c); a backend does it. Work on one lane is
 * done in order; work on two lanes is ordered by events alone. All functions say 0 or a negative errno with a sentence.
 */
#ifndef PREFIXFS_KERNELS_BACKEND_H
#define PREFIXFS_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/merge.h"
#include "kernels/shape.h"

enum lane {
	LANE_IN_COPY,     /* to the device: copies */
	LANE_IN_COPY_2,
	LANE_IN_WORK,     /*                kernels */
	LANE_OUT_COPY,    /* to the host */
	LANE_OUT_COPY_2,
	LANE_OUT_WORK,
	LANE_IN_URGENT,   /* urgent copies, each way */
	LANE_OUT_URGENT,
	LANES,
};

enum gpu_kernel {
	KERNEL_RING, /* loads and stores between the ring and planes */
	KERNEL_BUS,  /* the same across the bus */
	KERNEL_BULK, /* bulk asynchronous copies across the bus: everything aligned to 16 bytes */
	KERNELS,
};

struct gpu_event;

struct backend {
	const struct backend_ops *ops;
	uint64_t staging; /* address on the device of what was asked for */
	uint8_t *mirror;  /* pinned memory here */
	bool bulk;        /* it has KERNEL_BULK */
	char device_name[64];
	uint32_t compute_capability, driver_version;
	bool mps;
	uint32_t blocks[KERNELS]; /* that a kernel gets at most */
	bool prefer_overlap;      /* batches are to leave compute work alone, where the driver can tell */
};

struct backend_needs {
	int32_t device;
	uint64_t staging_bytes, mirror_bytes;
	bool kernels_first; /* kernels between ring and planes have the highest priority, not the lowest */
};

struct backend_ops {
	const char *name;

	/* What it takes is released by close, which waits for all lanes. *ret is the backend's. */
	int (*open)(const struct backend_needs *needs, struct backend **ret);
	void (*close)(struct backend *backend);

	/* Pins memory. @read_only: it is mapped for reading alone. *foreign: it was pinned already, by somebody else. Slow; any number of
	 * threads at once. */
	int (*host_register)(struct backend *backend, uint64_t address, uint64_t bytes, bool read_only, bool *foreign);
	int (*host_unregister)(struct backend *backend, uint64_t address);

	/* The rest returns before the work is done. One thread at a time for one lane. Entries lie in registrations. */
	int (*copy)(struct backend *backend, enum lane lane, bool to_device, const struct gpu_entry *entries, uint32_t count);
	/* From the mirror to staging memory, both aligned to 8; a multiple of 4 bytes. */
	int (*upload)(struct backend *backend, enum lane lane, uint64_t device, const void *mirror, size_t bytes);
	/* Moves all pieces of @rect, whose lists lie in staging memory, between values (or what stands for them) and planes. */
	int (*move)(struct backend *backend, enum lane lane, enum gpu_kernel kernel, bool to_device, const struct gpu_rect *rect,
		const struct rect_measure *measure);

	int (*event_new)(struct backend *backend, struct gpu_event **ret);
	void (*event_free)(struct backend *backend, struct gpu_event *event);
	int (*event_record)(struct backend *backend, enum lane lane, struct gpu_event *event);
	/* @lane goes on after what was recorded; an event that was never recorded holds nothing up. */
	int (*event_wait)(struct backend *backend, enum lane lane, struct gpu_event *event);
	int (*event_wait_foreign)(struct backend *backend, enum lane lane, void *event);
	/* The calling thread waits, sleeping. */
	/* Both wait; -ECANCELED: nobody can tell any more, the process ends. */
	int (*event_finish)(struct backend *backend, struct gpu_event *event);
	/* 1: it is reached, or was never recorded. 0: not yet. */
	int (*event_reached)(struct backend *backend, struct gpu_event *event);
	/* As users know it. */
	void *(*event_handle)(struct gpu_event *event);
	/* Waits until nothing is under way on @lane; the error that its work has met, if any. */
	int (*drain)(struct backend *backend, enum lane lane);
};

extern const struct backend_ops backend_ref;
extern const struct backend_ops backend_cuda; /* in builds without CUDA its open says so */

/* "ref", "cuda", or NULL: $PFS_KERNELS, else cuda. -EINVAL. */
int backend_select(const char *name, const struct backend_ops **ret);

/* The twin of all kernels, in plain C: on the memory of this process. */
void twin_move(bool to_device, const struct gpu_rect *rect);

#endif
