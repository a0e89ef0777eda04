/* SPDX-License-Identifier: Apache-2.0
 *
 * Areas of a call buffer: a buddy allocator whose bookkeeping lies outside the buffer. No locking: the session's lock.
 */
#ifndef PREFIXFS_CLIENT_AREAS_H
#define PREFIXFS_CLIENT_AREAS_H

#include <stddef.h>
#include <stdint.h>

#define AREA_UNIT 256u /* bytes; areas are a power of two of it, so they are aligned well enough for anything */
#define AREA_ORDERS 24u
#define AREA_NONE UINT64_MAX

struct areas {
	uint32_t units;             /* of the buffer */
	uint32_t used;              /* units in areas that are taken */
	uint32_t free[AREA_ORDERS]; /* first free block of each order, UINT32_MAX = none */
	uint8_t *state;             /* per unit: what begins here */
	uint32_t *next, *prev;      /* per unit, of a free block: its neighbours in the list */
};

int areas_init(struct areas *areas, uint64_t bytes); /* -ENOMEM; -EINVAL when not even a unit fits */
void areas_deinit(struct areas *areas);
/* Offset of @bytes bytes, or AREA_NONE. */
uint64_t areas_take(struct areas *areas, uint64_t bytes);
void areas_give(struct areas *areas, uint64_t offset);
/* Is @offset the beginning of an area that is taken? */
int areas_taken(const struct areas *areas, uint64_t offset);
/* The most that areas_take could ever give. */
uint64_t areas_largest(const struct areas *areas);

#endif
