/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing arrays of plain numbers that keep their memory when emptied, so that a warm plan path allocates nothing.
 * Not thread-safe: a vector belongs to its plan.
 */
#ifndef PREFIXFS_STORE_VEC_H
#define PREFIXFS_STORE_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct vec32 {
	uint32_t *at;
	uint32_t count, capacity;
};

/* Room for @more elements behind the last; false: no memory, nothing changed. */
static inline bool vec32_reserve(struct vec32 *v, uint32_t more)
{
	uint64_t need = (uint64_t)v->count + more;
	uint64_t capacity = v->capacity ? v->capacity : 64;
	uint32_t *at;

	if (need <= v->capacity)
		return true;
	while (capacity < need)
		capacity *= 2;
	at = realloc(v->at, capacity * sizeof(*at));
	if (!at)
		return false;
	v->at = at;
	v->capacity = (uint32_t)capacity;
	return true;
}

/* The caller has reserved. */
static inline void vec32_push(struct vec32 *v, uint32_t value)
{
	v->at[v->count++] = value;
}

static inline void vec32_free(struct vec32 *v)
{
	free(v->at);
	v->at = NULL;
	v->count = v->capacity = 0;
}

#endif
