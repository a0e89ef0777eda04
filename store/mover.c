/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of the disk tier: writes behind, keeps the limit, lets go what is old, and tears namespaces down.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/reconcile.h"
#include "store/tiering.h"
#include "store/viewed.h"

#define MOVER_LOOK_NS 100000000ull
#define MOVER_LIMIT_NS 3000000000ull /* how often what is free on the disk is looked at */
#define MOVER_FREE_PART 20u          /* of the file system stays free */
#define MOVER_UNDER 50u              /* a part of the limit: how far under it is gone */

struct mover {
	struct host *host;
	pthread_t thread;
	struct lock lock; /* LOCK_QUEUE */
	struct lock_cond wake;
	bool asked, stop;     /* (lock) */
	bool ended;           /* who ends the host's: joined */
	struct space *buried; /* (lock) list through space.next_buried */
	_Atomic uint64_t limit; /* bytes of record files */
	uint64_t limit_ns;    /* the thread's: when it is computed next */
};

/* ---- the limit ------------------------------------------------------------------------------------------------------------ */

static uint64_t used_bytes(struct space *const *spaces, uint32_t n)
{
	uint64_t used = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!spaces[i]->tiering)
			continue;
		lock_take(&spaces[i]->lock);
		used += spaces[i]->tiering->disk_bytes;
		lock_drop(&spaces[i]->lock);
	}
	return used;
}

/* Has a write failed for lack of room since the last look? Each one lets files go once. */
static bool any_full(struct space *const *spaces, uint32_t n)
{
	bool full = false;

	for (uint32_t i = 0; i < n; i++) {
		if (!spaces[i]->tiering)
			continue;
		lock_take(&spaces[i]->lock);
		full |= spaces[i]->tiering->full;
		spaces[i]->tiering->full = false;
		lock_drop(&spaces[i]->lock);
	}
	return full;
}

/* What was asked for, but no more than leaves a twentieth of the file system free; when it refuses to take more, a fiftieth less
 * than there is. */
static void compute_limit(struct mover *m, uint64_t used, bool full)
{
	uint64_t limit = m->host->disk_limit, now = clock_now_ns();
	struct statvfs s;

	if (now < m->limit_ns && !full)
		return;
	m->limit_ns = now + MOVER_LIMIT_NS;
	if (!statvfs(disk_path(m->host->disk), &s)) {
		uint64_t free = (uint64_t)s.f_bavail * s.f_frsize, keep = (uint64_t)s.f_blocks * s.f_frsize / MOVER_FREE_PART;
		uint64_t most = used + free > keep ? used + free - keep : 0;

		limit = most < limit ? most : limit;
	}
	if (full && limit > used)
		limit = used;
	atomic_store(&m->limit, limit);
}

uint64_t mover_limit(struct host *host)
{
	return host->mover ? atomic_load(&host->mover->limit) : 0;
}

/* The one that uses most, of those that may still give. */
static struct space *giver(struct space *const *spaces, uint32_t n, const bool *done)
{
	struct space *most = NULL;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t used;

		if (done[i] || !spaces[i]->tiering || !(used = used_bytes(&spaces[i], 1)) || used < bytes)
			continue;
		most = spaces[i];
		bytes = used;
	}
	return most;
}

static void keep_limit(struct mover *m, struct space *const *spaces, uint32_t n)
{
	bool done[HOST_MAX_SPACES] = { false };
	uint64_t used = used_bytes(spaces, n), limit, goal;
	bool full = any_full(spaces, n);

	compute_limit(m, used, full);
	limit = atomic_load(&m->limit);
	if (used < limit || (used == limit && !full))
		return;
	goal = limit - limit / MOVER_UNDER;
	while (used > goal) {
		struct space *space = giver(spaces, n, done);
		uint64_t part = (used - goal) / n + 1;

		if (!space)
			return;
		if (!demote_disk(space->tiering, part < used - goal ? part : used - goal))
			for (uint32_t i = 0; i < n; i++)
				done[i] |= spaces[i] == space;
		used = used_bytes(spaces, n);
	}
}

/* ---- a tier that is closed --------------------------------------------------------------------------------------------------- */

/* Nothing is to be said to exist that nobody can read: all places go. */
static void drop_places(struct tiering *t)
{
	struct space *space = t->space;
	struct index_sink sink = space_sink(space);
	uint32_t at = t->place_first;
	bool more = true;

	while (more) {
		lock_take(&space->lock);
		space_notes_begin(space);
		for (uint32_t gone = 0, looks = 0; more && gone < INDEX_STEP_KEYS && looks < 64 * INDEX_STEP_KEYS; at++, looks++) {
			more = at < t->place_top;
			if (!more || !tiering_has_value(t, at) || tiering_alike(t, at) != INDEX_NONE)
				continue; /* what another share's slot has can be had */
			index_value_drop(space->index, at, false, &sink);
			gone++;
		}
		space_notes_end(space);
		space_room(space);
		lock_drop(&space->lock);
	}
}

/* ---- the thread ------------------------------------------------------------------------------------------------------------- */

static void move(struct tiering *t)
{
	struct space *space = t->space;
	bool closed, places, values;

	viewed_trim(t, clock_now_ns());
	lock_take(&space->lock);
	closed = t->closed;
	places = t->places_short;
	values = t->places_used > 0;
	lock_drop(&space->lock);
	rows_drop(space);
	demote_expired(t, clock_wall_s());
	if (closed) {
		if (values)
			drop_places(t);
		return;
	}
	if (places)
		demote_disk(t, 0);
	spill_run(t);
	if (t->reconcile && reconcile_step(t->reconcile))
		mover_ask(space->host);
}

static void look(struct mover *m)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = host_all_spaces(m->host, spaces);

	for (uint32_t i = 0; i < n; i++)
		if (spaces[i]->tiering)
			move(spaces[i]->tiering);
	if (n)
		keep_limit(m, spaces, n);
	for (uint32_t i = 0; i < n; i++)
		space_unref(&spaces[i]);
}

static void bury_all(struct mover *m)
{
	struct space *space;

	lock_take(&m->lock);
	space = m->buried;
	m->buried = NULL;
	lock_drop(&m->lock);
	while (space) {
		struct space *next = space->next_buried;

		space_free(space);
		space = next;
	}
}

static bool await(struct mover *m)
{
	uint64_t deadline_ns = clock_now_ns() + MOVER_LOOK_NS;
	bool goes_on;

	lock_take(&m->lock);
	while (!m->asked && !m->stop && !m->buried && lock_cond_wait(&m->wake, &m->lock, deadline_ns))
		;
	m->asked = false;
	goes_on = !m->stop;
	lock_drop(&m->lock);
	return goes_on;
}

static void *mover_main(void *context)
{
	struct mover *m = context;

	host_disk_clear_gone(m->host);
	while (await(m)) {
		look(m);
		bury_all(m);
	}
	return NULL;
}

int mover_new(struct host *host, struct why *why)
{
	struct mover *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return why_set(why, ENOMEM, "no memory for the thread of the disk tier");
	m->host = host;
	atomic_store(&m->limit, host->disk_limit);
	lock_init(&m->lock, LOCK_QUEUE);
	lock_cond_init(&m->wake);
	host->mover = m;
	r = pthread_create(&m->thread, NULL, mover_main, m);
	if (r) {
		host->mover = NULL;
		lock_cond_destroy(&m->wake);
		lock_destroy(&m->lock);
		free(m);
		return why_set(why, r, "cannot start the thread of the disk tier");
	}
	pthread_setname_np(m->thread, "pfs-mover");
	return 0;
}

void mover_stop(struct host *host)
{
	struct mover *m = host->mover;

	if (!m || m->ended)
		return;
	lock_take(&m->lock);
	m->stop = true;
	lock_cond_wake_all(&m->wake);
	lock_drop(&m->lock);
	pthread_join(m->thread, NULL);
	m->ended = true;
}

void mover_free(struct host *host)
{
	struct mover *m = host->mover;

	if (!m)
		return;
	assert(m->ended);
	bury_all(m);
	host->mover = NULL;
	lock_cond_destroy(&m->wake);
	lock_destroy(&m->lock);
	free(m);
}

void mover_ask(struct host *host)
{
	struct mover *m = host->mover;

	if (!m)
		return;
	lock_take(&m->lock);
	if (!m->asked) {
		m->asked = true;
		lock_cond_wake_all(&m->wake);
	}
	lock_drop(&m->lock);
}

void mover_bury(struct space *space)
{
	struct mover *m = space->host->mover;

	lock_take(&m->lock);
	space->next_buried = m->buried;
	m->buried = space;
	lock_cond_wake_all(&m->wake);
	lock_drop(&m->lock);
}
