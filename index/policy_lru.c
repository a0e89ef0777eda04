/* SPDX-License-Identifier: Apache-2.0
 *
 * A binary heap of (tick, record), oldest on top. The tick is the one that a record had when it was put in or last
 * looked at; it can only have risen since, so the top is checked when it is popped and put back if it was used.
 */
#include "index/policy.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "index/tables.h"
#include "store/base/memory.h"

struct lru_item {
	uint32_t tick;
	uint32_t record;
};

struct policy {
	struct policy_view view;
	struct lru_item *heap;
	uint32_t count, capacity, high;
};

static bool older(const struct lru_item *a, const struct lru_item *b)
{
	return (int32_t)(a->tick - b->tick) < 0;
}

static void put(struct policy *p, uint32_t at, struct lru_item item)
{
	p->heap[at] = item;
	*p->view.slot(p->view.context, item.record) = at;
}

static void sift_up(struct policy *p, uint32_t at, struct lru_item item)
{
	while (at > 0) {
		uint32_t above = (at - 1) / 2;

		if (!older(&item, &p->heap[above]))
			break;
		put(p, at, p->heap[above]);
		at = above;
	}
	put(p, at, item);
}

static void sift_down(struct policy *p, uint32_t at, struct lru_item item)
{
	for (;;) {
		uint64_t below = (uint64_t)at * 2 + 1;

		if (below >= p->count)
			break;
		if (below + 1 < p->count && older(&p->heap[below + 1], &p->heap[below]))
			below++;
		if (!older(&p->heap[below], &item))
			break;
		put(p, at, p->heap[below]);
		at = (uint32_t)below;
	}
	put(p, at, item);
}

static void lru_destroy(struct policy **policy)
{
	struct policy *p = *policy;

	*policy = NULL;
	if (!p)
		return;
	memory_release(&p->heap, (size_t)p->capacity * sizeof(*p->heap));
	free(p);
}

static struct policy *lru_create(const struct policy_view *view, uint32_t capacity, struct why *why)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (p) {
		p->view = *view;
		p->capacity = capacity;
		p->heap = memory_reserve((size_t)capacity * sizeof(*p->heap), false);
	}
	if (!p || !p->heap) {
		lru_destroy(&p);
		why_set(why, ENOMEM, "no memory for an eviction order of %u records", capacity);
	}
	return p;
}

static void lru_insert(struct policy *p, uint32_t record)
{
	assert(p->count < p->capacity);
	assert(*p->view.slot(p->view.context, record) == TABLES_NONE);
	p->count++;
	if (p->count > p->high)
		p->high = p->count;
	sift_up(p, p->count - 1, (struct lru_item){p->view.last_use(p->view.context, record), record});
}

static void lru_remove(struct policy *p, uint32_t record)
{
	uint32_t *slot = p->view.slot(p->view.context, record);
	uint32_t at = *slot;

	assert(at < p->count && p->heap[at].record == record);
	*slot = TABLES_NONE;
	struct lru_item last = p->heap[--p->count];

	if (at == p->count)
		return;
	if (at > 0 && older(&last, &p->heap[(at - 1) / 2]))
		sift_up(p, at, last);
	else
		sift_down(p, at, last);
}

static uint32_t lru_pop(struct policy *p)
{
	while (p->count) {
		struct lru_item top = p->heap[0];
		uint32_t tick = p->view.last_use(p->view.context, top.record);

		if (tick == top.tick) {
			lru_remove(p, top.record);
			return top.record;
		}
		top.tick = tick;
		sift_down(p, 0, top);
	}
	return TABLES_NONE;
}

static void lru_clear(struct policy *p)
{
	p->count = 0;
}

static uint32_t lru_count(const struct policy *p)
{
	return p->count;
}

static size_t lru_memory_bytes(const struct policy *p)
{
	return sizeof(*p) + (size_t)p->high * sizeof(struct lru_item);
}

const struct policy_ops policy_lru = {
	.name = "lru",
	.create = lru_create,
	.destroy = lru_destroy,
	.insert = lru_insert,
	.remove = lru_remove,
	.pop = lru_pop,
	.clear = lru_clear,
	.count = lru_count,
	.memory_bytes = lru_memory_bytes,
};
