/* SPDX-License-Identifier: Apache-2.0
 *
 * A value and its planes, in plain C: what an engine does with values on a GPU, for a replay on hosts without
 * one. A value is its planes in order, packed.
 */
#ifndef PREFIXFS_TOOLS_PLANES_H
#define PREFIXFS_TOOLS_PLANES_H

#include <stdint.h>

struct planes_shape {
	const uint64_t *bytes; /* [count]: of each plane */
	uint32_t count;
};

/* Length of a value without its padding. */
uint64_t planes_value_bytes(const struct planes_shape *shape);
/* Copies the planes at @planes[0..count-1] to the value at @value. Nothing overlaps. */
void planes_gather(const struct planes_shape *shape, const void *const *planes, void *value);
/* Copies the value at @value to the planes at @planes[0..count-1]. Nothing overlaps. */
void planes_scatter(const struct planes_shape *shape, const void *value, void *const *planes);

#endif
