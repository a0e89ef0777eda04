/* SPDX-License-Identifier: Apache-2.0
 *
 * A checked copy as rectangles. Columns are pieces of a value, rows are values: piece (c, r) lies at
 * values[r] + column.offset here, and at column.base + pages[r * pages_per_value + column.page] * column.stride on the
 * device, there perhaps in rows.
 */
#ifndef PREFIXFS_KERNELS_SHAPE_H
#define PREFIXFS_KERNELS_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/prefixfs_gpu.h"

#define SHAPE_MAX_COLUMNS 4096u        /* of a rectangle */
#define SHAPE_MAX_SPAN (7ull << 20)    /* from the first to the last byte of a value that a rectangle of several columns touches */

/* Kernels read these as they are. */
struct gpu_column {
	uint64_t base, stride;
	uint64_t offset; /* in the value; rises from column to column */
	uint64_t bytes;
	uint64_t row_bytes, row_stride; /* row_bytes is bytes where it is one piece; divides bytes */
	uint32_t page;                  /* which of the value's pages */
	uint32_t reserved;
};
_Static_assert(sizeof(struct gpu_column) == 56, "read by kernels");

struct gpu_rect {
	const struct gpu_column *columns;
	const uint64_t *values; /* [row_count] addresses of the values, or of what stands for them */
	const uint32_t *pages;  /* [row_count * pages_per_value] */
	uint32_t column_count, row_count;
	uint32_t pages_per_value;
	uint32_t reserved;
};

struct shape_rect {
	uint32_t first_column, column_count, first_row, row_count;
	uint32_t part;
};

struct shape {
	struct gpu_column *columns;
	struct shape_rect *rects; /* by part, rising */
	uint64_t *values;         /* [count] */
	uint32_t *pages;          /* [count * pages_per_value] */
	uint32_t column_count, rect_count, count, pages_per_value, part_count;
	uint64_t bytes;           /* that move */
};

/* Bytes of a value of @pool, without its padding. The pool has passed check_pool. */
uint64_t pool_value_bytes(const struct pfs_gpu_pool *pool);
uint32_t pool_pages_per_value(const struct pfs_gpu_pool *pool);

/* Makes the shape of a copy that has passed check_copy; nothing of @copy is used afterwards. -ENOMEM. */
int shape_make(const struct pfs_gpu_copy *copy, struct shape **ret);
void shape_free(struct shape *shape);

/* Rectangle @i, as kernels and twins take it. */
struct gpu_rect shape_rect(const struct shape *shape, uint32_t i);

/* What a choice of path needs to know of a rectangle. */
struct rect_measure {
	uint64_t bytes;     /* that move */
	uint64_t pieces;    /* contiguous both here and there */
	uint64_t stretches; /* of values, contiguous here alone */
	uint64_t longest;   /* column's bytes */
	bool aligned;       /* all pieces begin and end on 16 bytes, here and there */
};
struct rect_measure rect_measure(const struct gpu_rect *rect);

#endif
