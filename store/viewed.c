/* SPDX-License-Identifier: Apache-2.0 */
#include "store/viewed.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/memory.h"
#include "store/host_private.h"

static size_t bitmap_bytes(const struct tiering *t)
{
	return (t->place_count / 64 + 1) * sizeof(uint64_t);
}

int viewed_new(struct tiering *t, struct why *why)
{
	struct viewed *v = calloc(1, sizeof(*v));

	if (v)
		v->is = memory_reserve(bitmap_bytes(t), false);
	if (!v || !v->is) {
		free(v);
		return why_set(why, ENOMEM, "namespace %s: no memory for what is read of its disk tier", t->space->name);
	}
	lock_cond_init(&v->ended);
	t->viewed = v;
	return 0;
}

static void set(struct tiering *t, uint32_t place, bool is)
{
	uint32_t i = place - t->place_first;

	t->viewed->is[i / 64] = (t->viewed->is[i / 64] & ~(1ull << i % 64)) | (uint64_t)is << i % 64;
}

/* It counts no more, and its memory goes when the lock is not held: giving back megabytes takes a while. */
static void chunk_spend(struct tiering *t, uint32_t slot)
{
	struct viewed_chunk *chunk = t->viewed->chunk[slot];

	assert(!chunk->uses);
	for (uint32_t i = 0; i < chunk->count; i++)
		if (chunk->place[i] != INDEX_NONE)
			set(t, chunk->place[i], false);
	atomic_fetch_sub(&t->space->host->viewed_bytes, chunk->bytes);
	t->viewed->chunk[slot] = NULL;
	chunk->next = t->viewed->spent;
	t->viewed->spent = chunk;
}

static void free_list(struct viewed_chunk *chunk)
{
	while (chunk) {
		struct viewed_chunk *next = chunk->next;

		free(chunk->memory);
		free(chunk);
		chunk = next;
	}
}

void viewed_free_spent(struct tiering *t)
{
	struct viewed_chunk *list;

	lock_take(&t->space->lock);
	list = t->viewed->spent;
	t->viewed->spent = NULL;
	lock_drop(&t->space->lock);
	free_list(list);
}

void viewed_free(struct tiering *t)
{
	struct viewed *v = t->viewed;

	if (!v)
		return;
	for (uint32_t i = 0; i < VIEWED_CHUNKS; i++)
		if (v->chunk[i])
			chunk_spend(t, i);
	free_list(v->spent);
	lock_cond_destroy(&v->ended);
	memory_release(&v->is, bitmap_bytes(t));
	free(v);
	t->viewed = NULL;
}

/* ---- looking ------------------------------------------------------------------------------------------------------------ */

static struct viewed_chunk *find(struct tiering *t, uint32_t place, uint32_t *at)
{
	struct viewed *v = t->viewed;

	lock_assert_held(&t->space->lock);
	for (uint32_t i = 0; i < VIEWED_CHUNKS && viewed_is(t, place); i++)
		for (*at = 0; v->chunk[i] && *at < v->chunk[i]->count; ++*at)
			if (v->chunk[i]->place[*at] == place)
				return v->chunk[i];
	return NULL;
}

struct viewed_chunk *viewed_find(struct tiering *t, uint32_t place, uint64_t *from)
{
	uint32_t at = 0;
	struct viewed_chunk *chunk = find(t, place, &at);

	if (chunk)
		*from = chunk->from[at];
	return chunk;
}

void viewed_use(struct viewed_chunk *chunk)
{
	chunk->uses++;
	chunk->used_ns = clock_now_ns();
}

void viewed_unuse(struct viewed_chunk *chunk)
{
	assert(chunk->uses);
	chunk->uses--;
}

bool viewed_wait(struct tiering *t, uint64_t until_ns)
{
	return lock_cond_wait(&t->viewed->ended, &t->space->lock, until_ns);
}

/* ---- coming ------------------------------------------------------------------------------------------------------------- */

/* The one that was not looked at for longest and that nobody has; VIEWED_CHUNKS: none. */
static uint32_t oldest(const struct viewed *v)
{
	uint32_t found = VIEWED_CHUNKS;

	for (uint32_t i = 0; i < VIEWED_CHUNKS; i++) {
		const struct viewed_chunk *chunk = v->chunk[i];

		if (chunk && chunk->memory && !chunk->uses && (found == VIEWED_CHUNKS || chunk->used_ns < v->chunk[found]->used_ns))
			found = i;
	}
	return found;
}

static uint32_t free_slot(struct tiering *t)
{
	uint32_t slot = 0;

	while (slot < VIEWED_CHUNKS && t->viewed->chunk[slot])
		slot++;
	if (slot < VIEWED_CHUNKS)
		return slot;
	slot = oldest(t->viewed);
	if (slot < VIEWED_CHUNKS)
		chunk_spend(t, slot);
	return slot;
}

struct viewed_chunk *viewed_begin(struct tiering *t, const uint32_t *place, uint32_t count)
{
	uint32_t slot;
	struct viewed_chunk *chunk;

	lock_assert_held(&t->space->lock);
	assert(count <= VIEWED_VALUES);
	slot = free_slot(t);
	chunk = slot < VIEWED_CHUNKS ? calloc(1, sizeof(*chunk)) : NULL;
	if (!chunk)
		return NULL;
	chunk->count = count;
	for (uint32_t i = 0; i < count; i++) {
		const struct entry *e = &t->space->tables.entries[place[i]];

		if (i + 1 < count)
			chunk->from[i + 1] = chunk->from[i] + t->space->layout->class[e->class_index].share[e->share].slot_bytes;
		if (viewed_is(t, place[i]))
			viewed_gone(t, place[i]); /* in an older one */
		chunk->place[i] = place[i];
		set(t, place[i], true);
	}
	t->viewed->chunk[slot] = chunk;
	return chunk;
}

void viewed_bad(struct tiering *t, struct viewed_chunk *chunk, uint32_t i)
{
	lock_assert_held(&t->space->lock);
	if (chunk->place[i] != INDEX_NONE)
		set(t, chunk->place[i], false);
	chunk->place[i] = INDEX_NONE;
}

static bool room_for(struct tiering *t, uint64_t bytes)
{
	_Atomic uint64_t *kept = &t->space->host->viewed_bytes;
	uint32_t slot;

	while (atomic_fetch_add(kept, bytes) + bytes > VIEWED_BYTES) {
		atomic_fetch_sub(kept, bytes);
		slot = oldest(t->viewed);
		if (slot == VIEWED_CHUNKS)
			return false;
		chunk_spend(t, slot);
	}
	return true;
}

bool viewed_keep(struct tiering *t, struct viewed_chunk *chunk, char *memory, uint64_t bytes)
{
	lock_assert_held(&t->space->lock);
	if (!room_for(t, bytes)) {
		viewed_drop(t, chunk);
		return false;
	}
	chunk->memory = memory;
	chunk->bytes = bytes;
	chunk->used_ns = clock_now_ns();
	lock_cond_wake_all(&t->viewed->ended);
	return true;
}

/* ---- going -------------------------------------------------------------------------------------------------------------- */

void viewed_drop(struct tiering *t, struct viewed_chunk *chunk)
{
	uint32_t slot = 0;

	lock_assert_held(&t->space->lock);
	while (t->viewed->chunk[slot] != chunk)
		slot++;
	chunk_spend(t, slot);
	lock_cond_wake_all(&t->viewed->ended);
}

void viewed_gone(struct tiering *t, uint32_t place)
{
	uint32_t at = 0;
	struct viewed_chunk *chunk = find(t, place, &at);

	assert(chunk);
	chunk->place[at] = INDEX_NONE;
	set(t, place, false);
}

void viewed_trim(struct tiering *t, uint64_t now_ns)
{
	lock_take(&t->space->lock);
	for (uint32_t i = 0; i < VIEWED_CHUNKS; i++) {
		const struct viewed_chunk *chunk = t->viewed->chunk[i];

		if (chunk && chunk->memory && !chunk->uses && chunk->used_ns + VIEWED_NS < now_ns)
			chunk_spend(t, i);
	}
	lock_drop(&t->space->lock);
	viewed_free_spent(t);
}

uint64_t viewed_bytes(const struct tiering *t)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < VIEWED_CHUNKS; i++)
		bytes += t->viewed->chunk[i] ? t->viewed->chunk[i]->bytes + sizeof(struct viewed_chunk) : 0;
	return bytes;
}
