/* SPDX-License-Identifier: Apache-2.0
 *
 * The staging ring: memory of the device of a fixed size, cut into slots, in which whole stretches of values lie on their way. This says
 * which values go into a slot, and where in it each is taken to begin.
 */
#ifndef PREFIXFS_KERNELS_STAGE_H
#define PREFIXFS_KERNELS_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/merge.h"
#include "kernels/shape.h"

#define STAGE_RING_BYTES (59ull << 20)                 /* data of both directions, cut into slots */
#define STAGE_MAX_SLOTS 4u                             /* of a direction */
#define STAGE_SLOT_BYTES (SHAPE_MAX_SPAN + 4096)       /* the smallest one: it takes a value whole */
#define STAGE_COLUMN_BYTES (SHAPE_MAX_COLUMNS * 56u)   /* tables of a slot */
#define STAGE_ROW_BYTES (160u << 10)
#define STAGE_TABLE_BYTES (STAGE_COLUMN_BYTES + STAGE_ROW_BYTES)
#define STAGE_MAX_GAP 4096u                            /* that is copied rather than cut out, where that does no harm */

/* A stretch of each value that is copied whole. */
struct stretch {
	uint64_t offset, bytes;
};

/* The stretches of @rect, at most column_count of them, to @to; those with at most @gap bytes between them are joined. Their number. */
uint32_t stage_stretches(const struct gpu_rect *rect, uint64_t gap, struct stretch *to);

/* Can it pass through a slot of @bytes at all? */
bool stage_fits(const struct gpu_rect *rect, uint64_t bytes);

/* How many of the rows from @first on pass through one slot of @bytes at @slot at once, at least one. @stand_ins[i]: what stands for the
 * address of row first + i: the byte that belongs at value + x is in the slot at stand_in + x. Neighbours in memory, with at most @gap bytes between
 * them, are neighbours in the slot; all keep their alignment to 16 bytes. */
uint32_t stage_place(const struct gpu_rect *rect, uint32_t stretches, uint32_t first, uint64_t slot, uint64_t bytes,
	uint64_t gap, uint64_t *stand_ins);

/* How many rows pass through one slot of @bytes at once wherever they lie; 0 where one may not. */
uint32_t stage_sure_rows(const struct gpu_rect *rect, uint32_t stretches, uint64_t bytes, uint64_t gap);

/* Adds the copies between slot and memory of rows first..first+count-1. */
int stage_entries(struct merger *merger, const struct gpu_rect *rect, const struct stretch *stretches, uint32_t stretch_count,
	uint32_t first, uint32_t count, uint64_t gap, const uint64_t *stand_ins);

/* Rows of which the tables have room. */
uint32_t stage_max_rows(const struct gpu_rect *rect);

#endif
