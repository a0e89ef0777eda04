/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between host and device as batches: neighbours merged, no entry across two registrations, no batch above the limits.
 */
#ifndef PREFIXFS_KERNELS_MERGE_H
#define PREFIXFS_KERNELS_MERGE_H

#include <stdint.h>

#include "kernels/registry.h"
#include "kernels/shape.h"

#define MERGE_MAX_ENTRIES 4096u
#define MERGE_MAX_BYTES (16ull << 20)

struct gpu_entry {
	uint64_t device, host, bytes;
};

/* Takes a batch, in the order of adding. 0 or a negative errno, which ends the merging. */
typedef int (*merge_batch)(void *context, const struct gpu_entry *entries, uint32_t count);

struct merger {
	const struct spans *spans; /* all that is added lies in them */
	merge_batch batch;
	void *context;
	uint32_t at;               /* in spans */
	uint32_t count;
	uint64_t bytes;            /* of the batch in the making */
	uint64_t wall;             /* where the registration of the last entry ends */
	struct gpu_entry entries[MERGE_MAX_ENTRIES];
};

/* @merger's memory is the caller's. */
void merge_begin(struct merger *merger, const struct spans *spans, merge_batch batch, void *context);
/* Adds a copy of any length; merged with the last one where it goes on from it on both sides. */
int merge_add(struct merger *merger, uint64_t device, uint64_t host, uint64_t bytes);
/* Adds all pieces of a rectangle, which then lie in values and on the device. */
int merge_rect(struct merger *merger, const struct gpu_rect *rect);
/* Gives away what is left. */
int merge_end(struct merger *merger);

#endif
