/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/planes.h"

#include <string.h>

uint64_t planes_value_bytes(const struct planes_shape *shape)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < shape->count; i++)
		bytes += shape->bytes[i];
	return bytes;
}

void planes_gather(const struct planes_shape *shape, const void *const *planes, void *value)
{
	uint8_t *to = value;

	for (uint32_t i = 0; i < shape->count; i++) {
		memcpy(to, planes[i], shape->bytes[i]);
		to += shape->bytes[i];
	}
}

void planes_scatter(const struct planes_shape *shape, const void *value, void *const *planes)
{
	const uint8_t *from = value;

	for (uint32_t i = 0; i < shape->count; i++) {
		memcpy(planes[i], from, shape->bytes[i]);
		from += shape->bytes[i];
	}
}
