/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel is given: as C and as the device see it.
 */
#ifndef PREFIXFS_KERNELS_MOVE_H
#define PREFIXFS_KERNELS_MOVE_H

#include <stdint.h>

#define MOVE_THREADS 512u      /* of a block of the moving kernels */
#define TABLES_THREADS 256u    /* of a block of the kernel that fetches tables */
#define TABLES_A_BLOCK 8192u   /* bytes */
#define BULK_CHUNK 4096u       /* of a lane of the bulk kernel, which has a buffer of its own for it */
#define BULK_LANES 32u
#define BULK_SHARED_BYTES (BULK_LANES * (BULK_CHUNK + 8u) + 128u)

/* struct gpu_column, struct gpu_rect: kernels/shape.h */
struct move_args {
	const void *columns;
	const uint64_t *values;
	const uint32_t *pages;
	uint32_t column_count, row_count, pages_per_value;
	uint32_t lanes;  /* that share a piece: 32..MOVE_THREADS, a power of two */
	uint64_t chunks; /* of the longest piece: bulk kernel */
};

struct tables_args {
	void *to;         /* both aligned to 8 */
	const void *from;
	uint32_t bytes;   /* a multiple of 4 */
	uint32_t reserved;
};

#endif
