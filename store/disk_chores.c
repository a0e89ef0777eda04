/* SPDX-License-Identifier: Apache-2.0
 *
 * What takes long and has no transfers: syncing folders after a renaming, truncating and unlinking files. One thread, so that no
 * transfer and no name waits for the file system to give back a large file's blocks.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <sched.h>

#include "store/base/clock.h"

/* A renamed write: synced, where that is wished. */
static void renamed_run(struct disk *disk, struct disk_job *job)
{
	char path[DISK_PATH_BYTES];

	if (disk->durability != DISK_DURABILITY_DATA)
		return;
	disk_path_of(path, job->consumed, &job->endpoint, 0);
	if (disk_folder_sync(job->dir, path))
		disk_count(&disk->counters.write_errors, 1);
}

static void run(struct disk *disk, struct disk_job *job)
{
	if (job->step == DISK_STEP_RENAMED)
		renamed_run(disk, job);
	else if (job->step == DISK_STEP_OPENED && job->kind == DISK_JOB_TRIM)
		disk_trim_run((struct disk_trim *)job);
	else if (job->kind == DISK_JOB_CLEAR)
		disk_dir_empty_old(job->dir, job->temporary);
	else
		disk_unwanted_run(job);
	if (job->kind == DISK_JOB_REMOVE && job->temporary)
		disk_count(&disk->counters.removes, 1);
	disk_job_end(disk, job);
}

/* NULL: the end. */
static struct disk_job *next(struct disk_chores *c)
{
	struct disk_job *job = NULL;

	lock_take(&c->lock);
	while (!(job = disk_list_take(&c->queue)) && !c->end)
		lock_cond_wait(&c->wake, &c->lock, clock_now_ns() + DISK_PATIENCE_NS);
	lock_drop(&c->lock);
	return job;
}

static void *chores_main(void *context)
{
	const struct sched_param normal = {0};
	struct disk *disk = context;
	struct disk_job *job;

	pthread_setschedparam(pthread_self(), SCHED_BATCH, &normal);
	while ((job = next(&disk->chores)))
		run(disk, job);
	return NULL;
}

void disk_chores_give(struct disk *disk, struct disk_job *job)
{
	struct disk_chores *c = &disk->chores;

	lock_take(&c->lock);
	disk_list_add(&c->queue, job);
	lock_cond_wake_all(&c->wake);
	lock_drop(&c->lock);
}

int disk_chores_start(struct disk *disk, struct why *why)
{
	struct disk_chores *c = &disk->chores;
	int r;

	lock_init(&c->lock, LOCK_QUEUE);
	lock_cond_init(&c->wake);
	r = pthread_create(&c->thread, NULL, chores_main, disk);
	if (r) {
		lock_cond_destroy(&c->wake);
		lock_destroy(&c->lock);
		return why_set(why, r, "cannot start the thread that unlinks record files");
	}
	c->running = true;
	pthread_setname_np(c->thread, "pfs-chores");
	return 0;
}

void disk_chores_end(struct disk *disk)
{
	struct disk_chores *c = &disk->chores;

	if (!c->running)
		return;
	lock_take(&c->lock);
	c->end = true;
	lock_cond_wake_all(&c->wake);
	lock_drop(&c->lock);
	pthread_join(c->thread, NULL);
	assert(!c->queue.first);
	lock_cond_destroy(&c->wake);
	lock_destroy(&c->lock);
	c->running = false;
}
