/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/events.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/lock.h"

#define WORDS 8u /* endpoint 4, consumed; number; time; the rest */
#define AHEAD 12u    /* slots fetched ahead of the writer: the ring is larger than a cache */
#define MARGIN 1024u /* events that a reader gives up more when writers passed it while it copied */

struct slot {
	_Atomic uint64_t word[WORDS];
};

struct events {
	_Atomic uint64_t begun; /* written under the lock */
	_Atomic uint64_t done;  /* likewise */
	struct lock lock;       /* LOCK_QUEUE: writers */
	struct slot *slot;      /* [EVENTS_KEPT]; written under the lock */
};

struct events *events_new(void)
{
	struct events *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	lock_init(&e->lock, LOCK_QUEUE);
	e->slot = aligned_alloc(sizeof(struct slot), EVENTS_KEPT * sizeof(struct slot));
	if (!e->slot)
		events_free(&e);
	else
		memset(e->slot, 0, EVENTS_KEPT * sizeof(struct slot)); /* page faults come now, not under a space lock */
	return e;
}

void events_free(struct events **ep)
{
	struct events *e = *ep;

	*ep = NULL;
	if (!e)
		return;
	free(e->slot);
	lock_destroy(&e->lock);
	free(e);
}

static bool names_record(enum host_event_kind kind)
{
	return kind < HOST_EVENT_ROOM;
}

/* From register to slot, word by word: narrow stores that are loaded again as a word would stall the writer. */
static inline void set(struct slot *slot, unsigned w, uint64_t value)
{
	atomic_store_explicit(&slot->word[w], value, memory_order_release);
}

static inline void store(struct slot *slot, uint32_t serial, uint64_t time_us, const struct host_event *from)
{
	assert((unsigned)from->kind < EVENT_KINDS && from->pages <= UINT16_MAX);
	if (names_record(from->kind)) {
		set(slot, 0, from->endpoint.words[0]);
		set(slot, 1, from->endpoint.words[1]);
		set(slot, 2, from->endpoint.words[2]);
		set(slot, 3, from->endpoint.words[3]);
		set(slot, 4, from->consumed);
	} else {
		set(slot, 0, from->bytes);
		set(slot, 1, from->class_index | (uint64_t)from->share << 32);
		set(slot, 2, (uint32_t)from->pid);
	}
	set(slot, 5, from->number);
	set(slot, 6, time_us);
	set(slot, 7,
		serial | (uint64_t)(from->pages | (uint32_t)from->kind << 16 | (uint32_t)from->why << 24) << 32);
}

static void load(const struct slot *slot, struct event *to)
{
	uint64_t words[WORDS];

	for (unsigned w = 0; w < WORDS; w++)
		words[w] = atomic_load_explicit(&slot->word[w], memory_order_acquire);
	*to = (struct event){
		.number = words[5],
		.time_us = words[6],
		.serial = (uint32_t)words[7],
		.pages = (uint16_t)(words[7] >> 32),
		.kind = (uint8_t)(words[7] >> 48),
		.why = (uint8_t)(words[7] >> 56),
	};
	if (names_record((enum host_event_kind)to->kind)) {
		memcpy(to->record.endpoint.words, words, sizeof(to->record.endpoint.words));
		to->record.consumed = words[4];
	} else {
		to->other.bytes = words[0];
		to->other.class_index = (uint32_t)words[1];
		to->other.share = (uint32_t)(words[1] >> 32);
		to->other.pid = (int32_t)words[2];
	}
}

void events_note(struct events *e, uint32_t serial, const struct host_event *noted, uint32_t count)
{
	struct timespec t;

	assert(count > 0 && count <= EVENTS_KEPT / 16);
	clock_gettime(CLOCK_REALTIME, &t);
	uint64_t time_us = (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;

	lock_take(&e->lock);
	uint64_t number = atomic_load_explicit(&e->done, memory_order_relaxed);

	assert(atomic_load_explicit(&e->begun, memory_order_relaxed) == number);
	atomic_store_explicit(&e->begun, number + count, memory_order_relaxed);
	for (uint32_t i = 0; i < count; i++) {
		__builtin_prefetch(&e->slot[(number + AHEAD) % EVENTS_KEPT], 1);
		store(&e->slot[++number % EVENTS_KEPT], serial, time_us, &noted[i]);
	}
	atomic_store(&e->done, number);
	lock_drop(&e->lock);
}

uint64_t events_last(const struct events *e)
{
	return atomic_load(&e->done);
}

/* The oldest number that is safe when @number is the last. */
static uint64_t oldest(uint64_t number)
{
	return number >= EVENTS_KEPT ? number - EVENTS_KEPT + 1 : 1;
}

uint64_t events_oldest(const struct events *e)
{
	return oldest(atomic_load_explicit(&e->begun, memory_order_relaxed));
}

uint32_t events_read(
	const struct events *e, uint64_t first, struct event *to, uint32_t capacity, uint64_t *ret_first)
{
	uint64_t from = first;

	assert(first > 0 && capacity > 0);
	for (;;) {
		uint64_t done = atomic_load(&e->done);

		if (from < oldest(done))
			from = oldest(done);
		*ret_first = from;
		if (from > done)
			return 0;
		uint32_t n = done - from + 1 < capacity ? (uint32_t)(done - from + 1) : capacity;

		for (uint32_t i = 0; i < n; i++)
			load(&e->slot[(from + i) % EVENTS_KEPT], &to[i]);
		if (from >= oldest(atomic_load_explicit(&e->begun, memory_order_relaxed)))
			return n;
		from = oldest(atomic_load_explicit(&e->begun, memory_order_relaxed)) + MARGIN;
	}
}
