/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of index and tier made present while a restart fills it: first touch of it in the thread that fills is half of a restart.
 *
 * What fills from its beginning is kept present for some thousand records ahead. The map of names is touched at random and lies on huge
 * pages, where there are some.
 */
#include "store/restart_private.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/memory.h"

#define AHEAD_PLACES (256u << 10)
#define STEP_RECORDS (INDEX_AHEAD_RECORDS / 4) /* adopted, before it looks again */
#define STEP_NS 1000000000ull                  /* a wait looks again after this */

struct present {
	struct tiering *t;
	pthread_t thread;
	struct lock lock; /* LOCK_QUEUE; guards what follows */
	struct lock_cond wake;
	uint32_t moved;   /* records since it looked last */
	bool stop;
};

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Where filling is. */
struct mark {
	struct index_mark index;
	uint32_t place; /* counted from the first one */
};

static struct mark look(struct tiering *t)
{
	struct mark m;

	lock_take(&t->space->lock);
	m.index = index_mark(t->space->index);
	m.place = t->place_top - t->place_first;
	lock_drop(&t->space->lock);
	return m;
}

static void make_present(const struct tiering *t, const struct mark *m)
{
	uint32_t places = least(t->place_count - m->place, AHEAD_PLACES);
	uint32_t records = least(t->space->tables.record_capacity - m->index.record, INDEX_AHEAD_RECORDS);

	index_make_present(t->space->index, m->index);
	if (places) {
		index_make_entries_present(t->space->index, t->place_first + m->place, places);
		memory_make_present(&t->loads_of[m->place], places * sizeof(*t->loads_of));
	}
	if (!records)
		return;
	memory_make_present(&t->files[m->index.record], records * sizeof(*t->files));
	memory_make_present(&t->space->tables.rows[2 * (size_t)m->index.record], 2 * records * sizeof(*t->space->tables.rows));
}

static bool await(struct present *present)
{
	bool go;

	lock_take(&present->lock);
	while (!present->stop && present->moved < STEP_RECORDS)
		lock_cond_wait(&present->wake, &present->lock, clock_now_ns() + STEP_NS);
	present->moved = 0;
	go = !present->stop;
	lock_drop(&present->lock);
	return go;
}

static void *present_main(void *context)
{
	struct present *present = context;

	do {
		struct mark m = look(present->t);

		make_present(present->t, &m);
	} while (await(present));
	return NULL;
}

struct present *present_begin(struct tiering *t)
{
	struct present *present = calloc(1, sizeof(*present));

	if (!present)
		return NULL;
	present->t = t;
	lock_init(&present->lock, LOCK_QUEUE);
	lock_cond_init(&present->wake);
	if (pthread_create(&present->thread, NULL, present_main, present)) {
		lock_cond_destroy(&present->wake);
		lock_destroy(&present->lock);
		free(present);
		return NULL;
	}
	pthread_setname_np(present->thread, "pfs-present");
	return present;
}

void present_moved(struct present *present, uint32_t records)
{
	if (!present)
		return;
	lock_take(&present->lock);
	present->moved += records;
	if (present->moved >= STEP_RECORDS)
		lock_cond_wake_all(&present->wake);
	lock_drop(&present->lock);
}

void present_end(struct present **pointer)
{
	struct present *present = *pointer;

	if (!present)
		return;
	lock_take(&present->lock);
	present->stop = true;
	lock_cond_wake_all(&present->wake);
	lock_drop(&present->lock);
	pthread_join(present->thread, NULL);
	lock_cond_destroy(&present->wake);
	lock_destroy(&present->lock);
	free(present);
	*pointer = NULL;
}
