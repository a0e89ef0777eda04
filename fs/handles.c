/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/handles.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "store/base/lock.h"

#define KINDS 5
#define PLACE_BITS 16
#define GENERATION_BITS 32

struct handle {
	uint32_t generation;
	uint32_t takers;
	enum handle_kind kind;
	bool open;
	uint32_t next_free;
	void *object; /* NULL = free */
	void (*end)(void *object);
};

struct handles {
	uint64_t epoch;                /* constant */
	struct lock lock;              /* guards everything below */
	uint32_t capacity, used, free; /* `free`: head of the list of free ones below `used`, capacity = none */
	uint32_t open[KINDS];
	struct handle at[];
};

struct handles *handles_new(uint32_t capacity, uint32_t epoch)
{
	struct handles *h = calloc(1, sizeof(*h) + capacity * sizeof(h->at[0]));

	assert(capacity <= HANDLES_MAX && epoch > 0 && epoch <= UINT16_MAX);
	if (!h)
		return NULL;
	lock_init(&h->lock, LOCK_QUEUE);
	h->epoch = epoch;
	h->capacity = h->free = capacity;
	return h;
}

static uint64_t handle_id(const struct handles *h, uint32_t i)
{
	return h->epoch << (GENERATION_BITS + PLACE_BITS) | (uint64_t)h->at[i].generation << PLACE_BITS | i;
}

static struct handle *handle_find(struct handles *h, uint64_t id)
{
	uint32_t i = id & ((1u << PLACE_BITS) - 1);

	lock_assert_held(&h->lock);
	if (i >= h->used || handle_id(h, i) != id || !h->at[i].object)
		return NULL;
	return &h->at[i];
}

bool handles_known(struct handles *h, uint64_t id)
{
	lock_take(&h->lock);
	const struct handle *a = handle_find(h, id);
	bool known = a && a->open;
	lock_drop(&h->lock);
	return known;
}

bool handles_open(
	struct handles *h, enum handle_kind kind, uint32_t limit, void *object, void (*end)(void *object), uint64_t *id)
{
	bool fits;

	assert(object);
	lock_take(&h->lock);
	fits = h->open[kind] < limit && (h->free < h->capacity || h->used < h->capacity);
	if (fits) {
		uint32_t i = h->free < h->capacity ? h->free : h->used++;
		struct handle *a = &h->at[i];

		if (i == h->free)
			h->free = a->next_free;
		a->generation++;
		a->kind = kind;
		a->open = true;
		a->takers = 0;
		a->object = object;
		a->end = end;
		h->open[kind]++;
		*id = handle_id(h, i);
	}
	lock_drop(&h->lock);
	return fits;
}

void *handles_take(struct handles *h, uint64_t id, enum handle_kind kind)
{
	void *object = NULL;

	lock_take(&h->lock);
	struct handle *a = handle_find(h, id);
	if (a && a->open && a->kind == kind) {
		a->takers++;
		object = a->object;
	}
	lock_drop(&h->lock);
	return object;
}

/* With the lock held, which is dropped: frees the handle if nothing refers to it any more. */
static void settle_and_drop(struct handles *h, struct handle *a)
{
	void *object = NULL;
	void (*end)(void *) = a->end;

	if (!a->open && a->takers == 0) {
		object = a->object;
		a->object = NULL;
		a->next_free = h->free;
		h->free = (uint32_t)(a - h->at);
	}
	lock_drop(&h->lock);
	if (object)
		end(object);
}

void handles_put(struct handles *h, uint64_t id)
{
	lock_take(&h->lock);
	struct handle *a = handle_find(h, id);

	assert(a && a->takers > 0);
	a->takers--;
	settle_and_drop(h, a);
}

void handles_close(struct handles *h, uint64_t id)
{
	lock_take(&h->lock);
	struct handle *a = handle_find(h, id);

	if (!a || !a->open) {
		lock_drop(&h->lock);
		return;
	}
	a->open = false;
	h->open[a->kind]--;
	settle_and_drop(h, a);
}

void handles_free(struct handles **hp)
{
	struct handles *h = *hp;

	*hp = NULL;
	if (!h)
		return;
	for (uint32_t i = 0; i < h->used; i++)
		if (h->at[i].object) {
			assert(h->at[i].takers == 0);
			handles_close(h, handle_id(h, i));
		}
	lock_destroy(&h->lock);
	free(h);
}
