/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/errands.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/calls.h"
#include "fs/log.h"
#include "store/base/clock.h"

#define DRAIN_MOST_NS (24 * 3600 * 1000000000ull) /* who asks ends it long before */
#define TELL_NS 100000000ull

struct errand {
	uint64_t number; /* (lock) 0 = free */
	uint32_t serial; /* (lock) of the namespace */
	enum errand_kind kind;
	bool threaded;   /* (lock) its thread has to be joined */
	bool joining;    /* (lock) somebody does */
	pthread_t thread;
	uint64_t until_ns; /* (lock) */
	struct errand_state state; /* (lock) */
	struct space *space;       /* the thread's, referenced */
	struct errands *all;
};

struct errands {
	struct fs *fs;
	struct lock lock; /* LOCK_QUEUE */
	uint64_t last;    /* (lock) number */
	unsigned running; /* (lock) */
	bool closing;     /* (lock) */
	struct errand at[ERRANDS_MAX];
};

struct errands *errands_new(struct fs *fs)
{
	struct errands *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->fs = fs;
	lock_init(&e->lock, LOCK_QUEUE);
	return e;
}

void errands_free(struct errands **ep)
{
	struct errands *e = *ep;

	*ep = NULL;
	if (!e)
		return;
	assert(!e->running);
	lock_destroy(&e->lock);
	free(e);
}

void errands_stop(struct errands *e)
{
	lock_take(&e->lock);
	e->closing = true;
	lock_drop(&e->lock);
	for (unsigned i = 0; i < ERRANDS_MAX; i++) {
		lock_take(&e->lock);
		bool join = e->at[i].threaded && !e->at[i].joining;
		e->at[i].threaded &= !join;
		lock_drop(&e->lock);
		if (join)
			pthread_join(e->at[i].thread, NULL);
	}
}

/* ---- the threads ----------------------------------------------------------------------------------------------- */

/* False: nobody wants it any more. */
static bool note_progress(struct errand *a, uint64_t done, uint64_t goal)
{
	struct errands *e = a->all;

	lock_take(&e->lock);
	a->state.done = done;
	a->state.goal = goal;
	bool wanted = !e->closing && clock_now_ns() < a->until_ns + ERRANDS_IDLE_NS;
	lock_drop(&e->lock);
	calls_changed(e->fs->calls, space_serial(a->space));
	return wanted;
}

static bool on_drained(void *context, uint64_t done, uint64_t goal)
{
	return note_progress(context, done, goal);
}

static void run_drain(struct errand *a, struct errand_state *end)
{
	host_drain(a->all->fs->host, a->space, a->kind == ERRAND_DRAIN ? HOST_DRAIN_FULL : HOST_DRAIN_NEWEST,
		clock_now_ns() + DRAIN_MOST_NS, on_drained, a, &end->left, &end->why);
}

static void run_check(struct errand *a, struct errand_state *end)
{
	uint64_t told_ns = clock_now_ns();
	bool wanted = true;
	int r = 1;

	while (r == 1 && wanted) {
		r = space_check_step(a->space, &end->check, &end->why);
		lock_take(&a->all->lock);
		a->state.check = end->check;
		lock_drop(&a->all->lock);
		if (clock_now_ns() - told_ns < TELL_NS)
			continue;
		told_ns = clock_now_ns();
		wanted = note_progress(a, end->check.files, end->check.files_in_all);
	}
	if (r == 1)
		why_set(&end->why, EINTR, "the check was stopped after %" PRIu64 " files: nobody asked for it any more",
			end->check.files);
}

static void *errand_main(void *argument)
{
	struct errand *a = argument;
	struct errands *e = a->all;
	struct errand_state end = {.why = WHY_INIT};
	struct space *space = a->space;
	uint32_t serial = space_serial(space);

	pthread_setname_np(pthread_self(), "pfs-errand");
	if (a->kind == ERRAND_CHECK)
		run_check(a, &end);
	else
		run_drain(a, &end);
	lock_take(&e->lock);
	end.done = end.goal = a->state.goal;
	if (end.why.error)
		end.done = a->state.done;
	a->state = end;
	a->space = NULL;
	e->running--;
	lock_drop(&e->lock);
	space_unref(&space); /* may be the last one */
	calls_changed(e->fs->calls, serial);
	return NULL;
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

/* Under the lock: the one under way, or NULL. A drain of the newest first joins any other. */
static struct errand *find_running(struct errands *e, uint32_t serial, enum errand_kind kind)
{
	for (unsigned i = 0; i < ERRANDS_MAX; i++) {
		struct errand *a = &e->at[i];

		if (a->number && a->state.running && a->serial == serial &&
			(a->kind == ERRAND_CHECK) == (kind == ERRAND_CHECK))
			return a;
	}
	return NULL;
}

/* Under the lock: a place, the one that ended first where all are taken. Its thread, if there was one, is *join. */
static struct errand *find_place(struct errands *e)
{
	struct errand *best = NULL;

	for (unsigned i = 0; i < ERRANDS_MAX; i++) {
		struct errand *a = &e->at[i];

		if (!a->state.running && !a->joining && (!best || a->number < best->number))
			best = a;
	}
	return best;
}

static int begin(struct errands *e, struct space *space, enum errand_kind kind, uint64_t until_ns, uint64_t *number,
	struct why *why)
{
	struct errand *a = find_place(e);
	bool join = a->threaded;
	pthread_t old = a->thread;
	int r;

	lock_assert_held(&e->lock);
	*a = (struct errand){.number = ++e->last,
		.serial = space_serial(space),
		.kind = kind,
		.joining = true,
		.until_ns = until_ns,
		.state = {.running = true, .why = WHY_INIT},
		.space = space_ref(space), /* the thread's */
		.all = e};
	e->running++;
	*number = a->number;
	lock_drop(&e->lock);
	if (join)
		pthread_join(old, NULL); /* it has ended but for its last few instructions */
	r = pthread_create(&a->thread, NULL, errand_main, a);
	lock_take(&e->lock);
	a->joining = false;
	a->threaded = r == 0;
	if (r) {
		a->number = 0;
		a->state.running = false;
		a->space = NULL;
		e->running--;
	}
	lock_drop(&e->lock);
	if (r) {
		space_unref(&space);
		return why_set(why, r, "no thread can be made: %s", strerror(r));
	}
	return 0;
}

int errands_ask(struct errands *e, struct space *space, enum errand_kind kind, uint64_t until_ns, uint64_t *number, struct why *why)
{
	int r = 0;

	lock_take(&e->lock);
	struct errand *a = find_running(e, space_serial(space), kind);
	if (e->closing) {
		r = why_set(why, ENODEV, "the daemon is stopping");
	} else if (a) {
		a->until_ns = until_ns > a->until_ns ? until_ns : a->until_ns;
		*number = a->number;
	} else if (e->running == ERRANDS_RUNNING) {
		r = why_set(why, EBUSY, "%u drains and checks are under way on this host, the most at once", e->running);
	} else {
		return begin(e, space, kind, until_ns, number, why); /* drops the lock */
	}
	lock_drop(&e->lock);
	return r;
}

int errands_look(struct errands *e, const struct space *space, uint64_t number, uint64_t until_ns, struct errand_state *ret,
	struct why *why)
{
	bool found = false;

	lock_take(&e->lock);
	for (unsigned i = 0; number && i < ERRANDS_MAX && !found; i++) {
		struct errand *a = &e->at[i];

		found = a->number == number && a->serial == space_serial(space);
		if (!found)
			continue;
		a->until_ns = until_ns > a->until_ns ? until_ns : a->until_ns;
		*ret = a->state;
	}
	lock_drop(&e->lock);
	return found ? 0 : why_set(why, ENOENT, "number %" PRIu64 " is none of this namespace's, or forgotten", number);
}
