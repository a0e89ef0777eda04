/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/client/areas.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define NOTHING 0xffu /* inside a block */
#define FREE 0x80u    /* a free block of the order in the low bits begins here */
#define NO_BLOCK UINT32_MAX

static void list_add(struct areas *a, uint32_t unit, unsigned order)
{
	a->state[unit] = (uint8_t)(FREE | order);
	a->prev[unit] = NO_BLOCK;
	a->next[unit] = a->free[order];
	if (a->free[order] != NO_BLOCK)
		a->prev[a->free[order]] = unit;
	a->free[order] = unit;
}

static void list_del(struct areas *a, uint32_t unit, unsigned order)
{
	if (a->prev[unit] == NO_BLOCK)
		a->free[order] = a->next[unit];
	else
		a->next[a->prev[unit]] = a->next[unit];
	if (a->next[unit] != NO_BLOCK)
		a->prev[a->next[unit]] = a->prev[unit];
	a->state[unit] = NOTHING;
}

/* Order of the largest block that may begin at @unit and ends within the buffer. */
static unsigned fitting_order(const struct areas *a, uint32_t unit)
{
	unsigned order = 0;

	while (order + 1 < AREA_ORDERS && unit % (2u << order) == 0 && unit + (2u << order) <= a->units)
		order++;
	return order;
}

int areas_init(struct areas *a, uint64_t bytes)
{
	uint64_t units = bytes / AREA_UNIT;

	*a = (struct areas){0};
	if (units == 0 || units > 1u << (AREA_ORDERS - 1))
		return -EINVAL;
	a->units = (uint32_t)units;
	a->state = malloc(units);
	a->next = malloc(units * sizeof(*a->next));
	a->prev = malloc(units * sizeof(*a->prev));
	if (!a->state || !a->next || !a->prev) {
		areas_deinit(a);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < AREA_ORDERS; i++)
		a->free[i] = NO_BLOCK;
	for (uint32_t i = 0; i < a->units; i++)
		a->state[i] = NOTHING;
	for (uint32_t i = 0; i < a->units;) {
		unsigned order = fitting_order(a, i);

		list_add(a, i, order);
		i += 1u << order;
	}
	return 0;
}

void areas_deinit(struct areas *a)
{
	free(a->state);
	free(a->next);
	free(a->prev);
	*a = (struct areas){0};
}

uint64_t areas_take(struct areas *a, uint64_t bytes)
{
	unsigned want = 0, order;
	uint32_t unit;

	while (want < AREA_ORDERS && (uint64_t)AREA_UNIT << want < bytes)
		want++;
	for (order = want; order < AREA_ORDERS && a->free[order] == NO_BLOCK; order++)
		;
	if (order >= AREA_ORDERS)
		return AREA_NONE;
	unit = a->free[order];
	list_del(a, unit, order);
	while (order > want) {
		order--;
		list_add(a, unit + (1u << order), order);
	}
	a->state[unit] = (uint8_t)order;
	a->used += 1u << order;
	return (uint64_t)unit * AREA_UNIT;
}

int areas_taken(const struct areas *a, uint64_t offset)
{
	return offset % AREA_UNIT == 0 && offset / AREA_UNIT < a->units && a->state[offset / AREA_UNIT] < AREA_ORDERS;
}

void areas_give(struct areas *a, uint64_t offset)
{
	uint32_t unit = (uint32_t)(offset / AREA_UNIT);
	unsigned order;

	assert(areas_taken(a, offset));
	order = a->state[unit];
	a->used -= 1u << order;
	a->state[unit] = NOTHING;
	for (; order + 1 < AREA_ORDERS; order++) {
		uint32_t buddy = unit ^ (1u << order);

		if (buddy >= a->units || a->state[buddy] != (FREE | order))
			break;
		list_del(a, buddy, order);
		unit &= ~(1u << order);
	}
	list_add(a, unit, order);
}

uint64_t areas_largest(const struct areas *a)
{
	return (uint64_t)AREA_UNIT << fitting_order(a, 0);
}
