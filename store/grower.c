/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes memory present in the background, before plans need it: the grants' (each range touched by several short-lived
 * threads inside segment_populate), their entries' in the tables, and the index's next records; and moves grants between
 * sizes and namespaces. One thread, jobs in order.
 */
#include "store/host_private.h"
#include "store/seating.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/remnants.h"
#include "store/tiering.h"

#define GROWER_IDLE_NS 1000000000ull /* a wait ends after this and looks again: nothing waits without a deadline */


struct grower {
	struct host *host;
	pthread_t thread;
	unsigned threads;
	struct lock lock; /* LOCK_QUEUE */
	struct lock_cond wake;
	struct grower_job *jobs;  /* (lock) ring */
	uint32_t first, count, capacity; /* (lock) */
	bool stop;         /* (lock) */
	bool working;      /* (lock) on the job that was taken last */
};

#define GROWER_JOBS (2u * SLOTS_MAX_GRANTS)

static bool grower_next(struct grower *g, struct grower_job *ret)
{
	bool got = false;

	lock_take(&g->lock);
	g->working = false;
	while (!g->stop && !g->count)
		lock_cond_wait(&g->wake, &g->lock, clock_now_ns() + GROWER_IDLE_NS);
	if (!g->stop) {
		*ret = g->jobs[g->first];
		g->first = (g->first + 1) % g->capacity;
		g->count--;
		got = g->working = true;
	}
	lock_drop(&g->lock);
	return got;
}

static void grower_grant(struct grower *g, const struct grower_job *job)
{
	const struct host_events *events = &job->space->host->config.events;
	struct why why = WHY_INIT;
	int r = 0;

	index_make_entries_present(job->space->index, job->first_entry, job->slots);
	seating_make_present(job->space, job->first_entry, job->slots);
	if (job->populate)
		r = segment_populate_on_node(job->space->segment, job->offset, job->length, g->threads, job->node, NULL, &why);
	if (r && !remnants_any(job->space)) /* a client of before may know it */
		segment_punch(job->space->segment, job->offset, job->length, &why); /* nobody knows the range yet */
	space_grant_done(job->space, job->grant, r, job->prewarm ? job->length : 0);
	if (!r && job->space->tiering)
		disk_piece_add(job->space->tiering->dir, job->grant, job->offset, job->length);
	if (job->prewarm && events->populated && atomic_load(&job->space->prewarm_done) == job->space->prewarm_goal)
		events->populated(events->context);
}

static void *grower_main(void *context)
{
	struct grower *g = context;
	struct grower_job job;

	while (grower_next(g, &job)) {
		switch (job.kind) {
		case GROWER_GRANT:
			grower_grant(g, &job);
			break;
		case GROWER_AHEAD:
			index_make_present(job.space->index, job.mark);
			break;
		case GROWER_RECUT:
			recut_run(job.space, job.class_index, job.share);
			break;
		case GROWER_BALANCE:
			balance_run(g->host);
			break;
		}
		space_unref(&job.space);
	}
	return NULL;
}

int grower_new(struct host *host, unsigned threads, struct grower **ret, struct why *why)
{
	struct grower *g = calloc(1, sizeof(*g));
	int r;

	if (!g)
		return why_set(why, ENOMEM, "no memory for the thread that populates grants");
	g->host = host;
	g->threads = threads;
	g->capacity = GROWER_JOBS;
	g->jobs = calloc(g->capacity, sizeof(*g->jobs));
	lock_init(&g->lock, LOCK_QUEUE);
	lock_cond_init(&g->wake);
	r = g->jobs ? pthread_create(&g->thread, NULL, grower_main, g) : ENOMEM;
	if (r) {
		lock_cond_destroy(&g->wake);
		lock_destroy(&g->lock);
		free(g->jobs);
		free(g);
		return why_set(why, r, "cannot start the thread that populates grants");
	}
	pthread_setname_np(g->thread, "pfs-grower");
	*ret = g;
	return 0;
}

void grower_free(struct grower **gp)
{
	struct grower *g = *gp;

	*gp = NULL;
	if (!g)
		return;
	lock_take(&g->lock);
	g->stop = true;
	lock_cond_wake_all(&g->wake);
	lock_drop(&g->lock);
	pthread_join(g->thread, NULL);
	for (uint32_t i = 0; i < g->count; i++)
		space_unref(&g->jobs[(g->first + i) % g->capacity].space);
	lock_cond_destroy(&g->wake);
	lock_destroy(&g->lock);
	free(g->jobs);
	free(g);
}

bool grower_push(struct grower *g, const struct grower_job *job)
{
	bool ok;

	lock_take(&g->lock);
	ok = g->count < g->capacity;
	if (ok) {
		if (job->space)
			space_ref(job->space);
		g->jobs[(g->first + g->count++) % g->capacity] = *job;
		lock_cond_wake_all(&g->wake);
	}
	lock_drop(&g->lock);
	return ok;
}

bool grower_idle(struct grower *g)
{
	bool idle;

	lock_take(&g->lock);
	idle = !g->count && !g->working;
	lock_drop(&g->lock);
	return idle;
}
