/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: takes jobs from its inbox, begins what there is room for, and moves their bytes. Nothing here waits but for a
 * transfer or for something new, both in ops->reap; what blocks besides are system calls on files.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"

/* ---- what others do --------------------------------------------------------------------------------------------------- */

void disk_worker_wake(struct disk_worker *w)
{
	bool asleep;

	lock_take(&w->lock);
	asleep = w->asleep;
	w->asleep = false;
	lock_drop(&w->lock);
	if (asleep)
		w->disk->ops->table->wake(w->queue);
}

void disk_worker_give(struct disk *disk, struct disk_job *job)
{
	struct disk_worker *w = &disk->worker[0];

	for (uint32_t i = 1; i < disk->workers; i++)
		if (atomic_load(&disk->worker[i].jobs) < atomic_load(&w->jobs))
			w = &disk->worker[i];
	atomic_fetch_add(&w->jobs, 1);
	lock_take(&w->lock);
	disk_list_add(&w->inbox, job);
	lock_drop(&w->lock);
	disk_worker_wake(w);
}

void disk_worker_ask(struct disk_worker *w, struct disk_request *request)
{
	lock_assert_none_held();
	request->answered = false;
	lock_take(&w->lock);
	request->next = w->requests;
	w->requests = request;
	lock_drop(&w->lock);
	disk_worker_wake(w);
	lock_take(&w->lock);
	while (!request->answered)
		lock_cond_wait(&w->answered, &w->lock, clock_now_ns() + DISK_PATIENCE_NS);
	lock_drop(&w->lock);
}

void disk_worker_answer(struct disk_worker *w, struct disk_request *request)
{
	lock_take(&w->lock);
	request->answered = true;
	lock_cond_wake_all(&w->answered);
	lock_drop(&w->lock);
}

/* ---- the thread --------------------------------------------------------------------------------------------------------- */

void disk_worker_done(struct disk_worker *w, struct disk_job *job)
{
	atomic_fetch_sub(&w->jobs, 1);
	if (job->step == DISK_STEP_RENAME)
		disk_names_rename(w->disk, job);
	else
		disk_job_end(w->disk, job);
}

static void sort_in(struct disk_worker *w, struct disk_job *job)
{
	disk_list_add(job->kind == DISK_JOB_WRITE ? &w->writes : &w->reads, job);
}

/* False: the end. */
static bool collect(struct disk_worker *w)
{
	struct disk_list inbox;
	struct disk_request *requests;
	bool end;

	lock_take(&w->lock);
	inbox = w->inbox;
	requests = w->requests;
	w->inbox = (struct disk_list){0};
	w->requests = NULL;
	end = w->stop;
	w->asleep = false;
	lock_drop(&w->lock);
	for (struct disk_job *job; (job = disk_list_take(&inbox));)
		sort_in(w, job);
	while (requests) {
		struct disk_request *request = requests;

		requests = request->next; /* which is its asker's once it is answered */
		disk_pieces_do(w, request);
	}
	return !end;
}

static void begin_from(struct disk_worker *w, struct disk_list *list)
{
	while (list->first) {
		struct disk_job *job = list->first, *next = job->next;

		if (!disk_task_begin(w, job))
			return;
		list->first = next;
	}
}

/* Nothing new has come: others wake us from here on. */
static bool may_sleep(struct disk_worker *w)
{
	bool may;

	lock_take(&w->lock);
	may = !w->inbox.first && !w->requests && !w->stop;
	w->asleep = may;
	lock_drop(&w->lock);
	return may;
}

static void *worker_main(void *context)
{
	struct disk_worker *w = context;
	const struct sched_param normal = {0};

	pthread_setschedparam(pthread_self(), SCHED_BATCH, &normal); /* as it is without */
	while (collect(w)) {
		begin_from(w, &w->reads);
		begin_from(w, &w->writes);
		bool more = disk_tasks_pump(w);

		more |= disk_tasks_work(w);
		disk_tasks_reap(w, !more && may_sleep(w) ? DISK_PATIENCE_NS : 0);
	}
	return NULL;
}

/* ---- made and ended ------------------------------------------------------------------------------------------------------- */

static int make(struct disk_worker *w, struct why *why)
{
	struct disk_ops *ops = w->disk->ops;
	int r = ops->table->queue_new(ops, &w->queue, why);

	if (r)
		return r;
	r = ops->table->queue_keep(w->queue, w->disk->lock_fd);
	if (r)
		return why_set(why, -r, "a ring of the disk tier cannot keep the lock of %s: %s", w->disk->path, strerrordesc_np(-r));
	w->pieces = calloc(DISK_BUFFERS, sizeof(*w->pieces));
	r = w->pieces ? disk_tasks_new(w) : -ENOMEM;
	if (r)
		return why_set(why, -r, "no memory for a worker of the disk tier");
	r = pthread_create(&w->thread, NULL, worker_main, w);
	if (r)
		return why_set(why, r, "cannot start a worker of the disk tier");
	w->running = true;
	pthread_setname_np(w->thread, "pfs-disk");
	return 0;
}

int disk_worker_start(struct disk *disk, struct disk_worker *w, uint32_t number, struct why *why)
{
	w->disk = disk;
	w->number = number;
	lock_init(&w->lock, LOCK_QUEUE);
	lock_cond_init(&w->answered);
	int r = make(w, why);

	if (r)
		disk_worker_end(w);
	return r;
}

void disk_worker_end(struct disk_worker *w)
{
	if (!w->disk)
		return;
	if (w->running) {
		lock_take(&w->lock);
		w->stop = true;
		lock_drop(&w->lock);
		disk_worker_wake(w);
		pthread_join(w->thread, NULL);
		assert(!w->tasks_used && !w->inbox.first && !w->requests && !w->dropping && !atomic_load(&w->jobs));
	}
	if (w->queue)
		w->disk->ops->table->queue_free(&w->queue);
	disk_tasks_free(w);
	free(w->pieces);
	lock_cond_destroy(&w->answered);
	lock_destroy(&w->lock);
	w->disk = NULL;
}
