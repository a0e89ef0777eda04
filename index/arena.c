/* SPDX-License-Identifier: Apache-2.0 */
#include "index/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>

#include "store/base/memory.h"

static size_t bits_bytes(const struct arena *arena, unsigned order)
{
	return ((arena->units >> order) / 64 + 1) * sizeof(uint64_t);
}

int arena_init(struct arena *arena, uint64_t units)
{
	assert(units > 0 && units <= 1u << 31);
	*arena = (struct arena){.units = (uint32_t)units};
	for (unsigned k = 0; k < ARENA_ORDERS; k++)
		arena->free_list[k] = ARENA_NONE;
	arena->words = memory_reserve(units * ARENA_UNIT_WORDS * sizeof(uint32_t), false);
	bool whole = arena->words != NULL;
	for (unsigned k = 0; k < ARENA_ORDERS; k++)
		whole &= (arena->free_bits[k] = memory_reserve(bits_bytes(arena, k), false)) != NULL;
	if (whole)
		return 0;
	arena_deinit(arena);
	return -ENOMEM;
}

void arena_deinit(struct arena *arena)
{
	memory_release(&arena->words, (size_t)arena->units * ARENA_UNIT_WORDS * sizeof(uint32_t));
	for (unsigned k = 0; k < ARENA_ORDERS; k++)
		memory_release(&arena->free_bits[k], bits_bytes(arena, k));
}

size_t arena_memory_bytes(const struct arena *arena)
{
	return (size_t)arena->top * (ARENA_UNIT_WORDS * sizeof(uint32_t)) + arena->top / 4;
}

static bool run_free(const struct arena *arena, uint32_t unit, unsigned order)
{
	uint32_t i = unit >> order;

	return arena->free_bits[order][i / 64] >> i % 64 & 1;
}

static void run_push(struct arena *arena, uint32_t unit, unsigned order)
{
	uint32_t i = unit >> order;
	uint32_t *link = arena_at(arena, unit);
	uint32_t first = arena->free_list[order];

	arena->free_bits[order][i / 64] |= 1ull << i % 64;
	link[0] = first;
	link[1] = ARENA_NONE;
	if (first != ARENA_NONE)
		arena_at(arena, first)[1] = unit;
	arena->free_list[order] = unit;
	arena->free_orders |= 1u << order;
}

static void run_take(struct arena *arena, uint32_t unit, unsigned order)
{
	uint32_t i = unit >> order;
	uint32_t *link = arena_at(arena, unit);

	arena->free_bits[order][i / 64] &= ~(1ull << i % 64);
	if (link[1] == ARENA_NONE) {
		arena->free_list[order] = link[0];
		if (link[0] == ARENA_NONE)
			arena->free_orders &= ~(1u << order);
	} else {
		arena_at(arena, link[1])[0] = link[0];
	}
	if (link[0] != ARENA_NONE)
		arena_at(arena, link[0])[1] = link[1];
}

/* Frees an aligned run, merged with as many free neighbours as it has. */
static void run_merge(struct arena *arena, uint32_t unit, unsigned order)
{
	while (order + 1 < ARENA_ORDERS) {
		uint32_t buddy = unit ^ 1u << order;

		if ((uint64_t)buddy + (1u << order) > arena->top || !run_free(arena, buddy, order))
			break;
		run_take(arena, buddy, order);
		unit &= ~(1u << order);
		order++;
	}
	run_push(arena, unit, order);
}

/* Frees units [from, to), cut into aligned runs. */
static void units_free(struct arena *arena, uint32_t from, uint32_t to)
{
	while (from < to) {
		unsigned order = from ? (unsigned)__builtin_ctz(from) : ARENA_ORDERS - 1;

		if (order > ARENA_ORDERS - 1)
			order = ARENA_ORDERS - 1;
		while (1u << order > to - from)
			order--;
		run_merge(arena, from, order);
		from += 1u << order;
	}
}

static uint32_t words_units(uint32_t words)
{
	return words / ARENA_UNIT_WORDS + (words % ARENA_UNIT_WORDS != 0);
}

/* An aligned run of order @order from beyond the top; what alignment skips becomes free. */
static uint32_t run_extend(struct arena *arena, unsigned order)
{
	uint64_t size = 1ull << order;
	uint64_t at = (arena->top + size - 1) & ~(size - 1);
	uint32_t top = arena->top;

	if (at + size > arena->units)
		return ARENA_NONE;
	arena->top = (uint32_t)(at + size);
	if (top < at)
		units_free(arena, top, (uint32_t)at);
	return (uint32_t)at;
}

uint32_t arena_alloc(struct arena *arena, uint32_t words)
{
	uint32_t n = words_units(words);
	unsigned want = n > 1 ? 32u - (unsigned)__builtin_clz(n - 1) : 0;

	assert(words > 0);
	if (want >= ARENA_ORDERS)
		return ARENA_NONE;
	uint32_t larger = arena->free_orders >> want;
	unsigned have = want;
	uint32_t unit;

	if (larger) {
		have += (unsigned)__builtin_ctz(larger);
		unit = arena->free_list[have];
		run_take(arena, unit, have);
		if (arena->free_list[have] != ARENA_NONE)
			__builtin_prefetch(arena_at(arena, arena->free_list[have]), 1); /* the next one to be taken */
	} else {
		unit = run_extend(arena, want);
		if (unit == ARENA_NONE)
			return ARENA_NONE;
	}
	arena->used += n;
	if (n < 1u << have)
		units_free(arena, unit + n, unit + (1u << have));
	return unit;
}

void arena_free(struct arena *arena, uint32_t unit, uint32_t words)
{
	uint32_t n = words_units(words);

	assert(words > 0 && unit + n <= arena->top && arena->used >= n);
	arena->used -= n;
	units_free(arena, unit, unit + n);
}

void arena_shrink(struct arena *arena, uint32_t unit, uint32_t words, uint32_t keep)
{
	uint32_t n = words_units(words), kept = words_units(keep);

	assert(keep > 0 && kept <= n);
	arena->used -= n - kept;
	units_free(arena, unit + kept, unit + n);
}
