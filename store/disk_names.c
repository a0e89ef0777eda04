/* SPDX-License-Identifier: Apache-2.0
 *
 * The names thread: the one place where names of record files are looked up and changed, in the order in which jobs were given. What
 * it does to a job are a few system calls on the folder; all that takes long is a worker's.
 *
 * One queue, first in first out. The renaming of a write enters it when the write's transfers have ended: behind every removal, trim
 * and opening that was given before, so that the removal of an older file of its name does not take it. Too many open files hold back
 * reads, which end without this thread, and all that is behind them; and writes, which need this thread to end: they are parked
 * beside the queue when their turn comes, which loses nothing, for a write has no name until it is renamed.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"

static struct disk_ops *ops_of(const struct disk_job *job)
{
	return job->dir->disk->ops;
}

/* ---- what is done to names -------------------------------------------------------------------------------------------- */

static int open_file(struct disk_job *job, uint64_t consumed, const struct key *endpoint, bool write)
{
	struct disk_ops *ops = ops_of(job);
	char path[DISK_PATH_BYTES];

	disk_path_of(path, consumed, endpoint, 0);
	return ops->table->open(ops, job->dir->fd, path, write);
}

static uint32_t temporary_of(struct disk *disk)
{
	uint32_t number;

	do
		number = atomic_fetch_add(&disk->temporary, 1) + 1;
	while (!number); /* 0 is none */
	return number;
}

static void close_files(struct disk_job *job)
{
	struct disk_ops *ops = ops_of(job);

	if (job->fd >= 0)
		ops->table->close(ops, job->fd);
	if (job->old_fd >= 0)
		ops->table->close(ops, job->old_fd);
	job->fd = job->old_fd = -1;
}

/* With its folder, if that is missing. */
static int create(struct disk_job *job, const char *path)
{
	struct disk_ops *ops = ops_of(job);
	int fd = ops->table->create(ops, job->dir->fd, path);

	if (fd != -ENOENT)
		return fd;
	int r = disk_folder_make(job->dir, path);

	return r ? r : ops->table->create(ops, job->dir->fd, path);
}

static int rename_file(struct disk_job *job, const char *from, const char *to)
{
	struct disk_ops *ops = ops_of(job);
	int r = ops->table->rename(ops, job->dir->fd, from, job->dir->fd, to);

	if (r != -ENOENT)
		return r;
	r = disk_folder_make(job->dir, to); /* or it is the file that is not there */
	return r ? r : ops->table->rename(ops, job->dir->fd, from, job->dir->fd, to);
}

static int open_write(struct disk_job *job)
{
	struct disk_write *write = (struct disk_write *)job;
	char path[DISK_PATH_BYTES];

	if (write->from_old) {
		job->old_fd = open_file(job, write->old_consumed, &write->old_endpoint, false);
		if (job->old_fd < 0)
			return job->old_fd;
	}
	uint32_t number = temporary_of(job->dir->disk);

	disk_path_of(path, job->consumed, &job->endpoint, number);
	job->fd = create(job, path);
	if (job->fd < 0)
		return job->fd;
	job->temporary = number;
	return 0;
}

static int open_trim(struct disk_job *job)
{
	struct disk_trim *trim = (struct disk_trim *)job;
	char from[DISK_PATH_BYTES], to[DISK_PATH_BYTES];

	job->fd = open_file(job, job->consumed, &job->endpoint, true);
	if (job->fd < 0)
		return job->fd;
	disk_path_of(from, job->consumed, &job->endpoint, 0);
	disk_path_of(to, trim->new_consumed, &trim->new_endpoint, 0);
	return strcmp(from, to) ? rename_file(job, from, to) : 0;
}

static int open_remove(struct disk_job *job)
{
	struct disk_ops *ops = ops_of(job);
	char from[DISK_PATH_BYTES], to[DISK_PATH_BYTES];
	uint32_t number = temporary_of(job->dir->disk);

	disk_path_of(from, job->consumed, &job->endpoint, 0);
	disk_path_of(to, job->consumed, &job->endpoint, number);
	int r = ops->table->rename(ops, job->dir->fd, from, job->dir->fd, to);

	if (!r)
		job->temporary = number;
	return r == -ENOENT ? 0 : r;
}

/* The folders get other names, which nobody looks for; a worker empties them. */
static int open_clear(struct disk_job *job)
{
	struct disk_ops *ops = ops_of(job);
	uint32_t number = temporary_of(job->dir->disk);
	int result = 0;

	for (unsigned folder = 0; folder < 256; folder++) {
		char from[DISK_PATH_BYTES], to[DISK_PATH_BYTES];

		snprintf(from, sizeof(from), "%02x", folder);
		disk_old_folder(to, folder, number);
		killpoint(KILLPOINT_RESET_CLEAR);
		int r = ops->table->rename(ops, job->dir->fd, from, job->dir->fd, to);

		if (r && r != -ENOENT)
			result = r;
	}
	if (!result && job->dir->disk->durability == DISK_DURABILITY_DATA)
		result = ops->table->sync_dir(ops, job->dir->fd);
	job->temporary = number;
	return result;
}

static int open_job(struct disk_job *job)
{
	switch (job->kind) {
	case DISK_JOB_WRITE:
		return open_write(job);
	case DISK_JOB_READ:
	case DISK_JOB_LOOK:
		job->fd = open_file(job, job->consumed, &job->endpoint, false);
		return job->fd < 0 ? job->fd : 0;
	case DISK_JOB_TRIM:
		return open_trim(job);
	case DISK_JOB_REMOVE:
		return open_remove(job);
	case DISK_JOB_CLEAR:
		return open_clear(job);
	case DISK_JOB_COPY: /* it never comes here */
		break;
	}
	return -EINVAL;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */

static void count_failed(struct disk_job *job)
{
	struct disk_counters *counters = &job->dir->disk->counters;
	bool reads = job->kind == DISK_JOB_READ || job->kind == DISK_JOB_LOOK;

	/* A look that finds another's file has read what it was to read. */
	if (job->kind == DISK_JOB_LOOK && (job->result == -ENOTSUP || job->result == -EXDEV))
		return;
	if (job->result != -ECANCELED && job->kind != DISK_JOB_COPY)
		disk_count(reads ? &counters->read_errors : &counters->write_errors, 1);
}

/* (lock) what counts the files that jobs like this one have open; NULL: they have none for long. */
static uint32_t *open_count(struct disk_names *n, const struct disk_job *job)
{
	if (job->kind == DISK_JOB_WRITE)
		return &n->writes_open;
	return job->kind == DISK_JOB_READ || job->kind == DISK_JOB_LOOK ? &n->reads_open : NULL;
}

void disk_job_end(struct disk *disk, struct disk_job *job)
{
	struct disk_names *n = &disk->names;

	assert(job->fd < 0 && job->old_fd < 0);
	if (job->result)
		count_failed(job);
	uint32_t *open = open_count(n, job);

	lock_take(&n->lock);
	if (open) {
		--*open;
		lock_cond_wake_all(&n->wake);
	}
	lock_drop(&n->lock);
	lock_assert_none_held();
	job->done(job); /* and it is the caller's */
	atomic_fetch_sub(&disk->jobs, 1);
}

static void begin(struct disk *disk, struct disk_job *job, bool stopped)
{
	job->result = stopped || atomic_load(&job->cancelled) ? -ECANCELED : open_job(job);
	if (job->result) {
		close_files(job);
		if (job->kind == DISK_JOB_READ)
			disk_read_failed((struct disk_read *)job);
		disk_job_end(disk, job);
		return;
	}
	job->step = DISK_STEP_OPENED;
	if (open_count(&disk->names, job)) /* it has transfers */
		disk_worker_give(disk, job);
	else
		disk_chores_give(disk, job);
}

/* A write whose transfers have ended. */
static void finish(struct disk *disk, struct disk_job *job)
{
	char from[DISK_PATH_BYTES], to[DISK_PATH_BYTES];

	disk_path_of(from, job->consumed, &job->endpoint, job->temporary);
	disk_path_of(to, job->consumed, &job->endpoint, 0);
	if (atomic_load(&job->cancelled)) {
		job->result = -ECANCELED;
	} else {
		/* What is replaced goes when it is closed, by a worker: freeing its blocks takes long. */
		job->old_fd = job->dir->disk->ops->table->open(job->dir->disk->ops, job->dir->fd, to, false);
		job->result = rename_file(job, from, to);
	}
	job->step = job->result ? DISK_STEP_UNWANTED : DISK_STEP_RENAMED;
	disk_chores_give(disk, job);
}

/* ---- the thread --------------------------------------------------------------------------------------------------------- */

/* Under the lock: whose turn it is; NULL: nobody's now. */
static struct disk_job *take(struct disk_names *n)
{
	struct disk_job *job;

	if (n->parked.first && (n->writes_open < DISK_WRITES_OPEN_MOST || n->stop)) {
		n->writes_open++;
		return disk_list_take(&n->parked);
	}
	while ((job = n->queue.first)) {
		if (job->step != DISK_STEP_RENAME && job->kind == DISK_JOB_WRITE && n->writes_open >= DISK_WRITES_OPEN_MOST && !n->stop) {
			disk_list_add(&n->parked, disk_list_take(&n->queue));
			continue;
		}
		if ((job->kind == DISK_JOB_READ || job->kind == DISK_JOB_LOOK) && n->reads_open >= DISK_READS_OPEN_MOST && !n->stop)
			return NULL;
		disk_list_take(&n->queue);
		if (job->step != DISK_STEP_RENAME && open_count(n, job))
			++*open_count(n, job);
		return job;
	}
	return NULL;
}

/* False: the end. */
static bool next(struct disk_names *n, struct disk_job **ret, bool *stopped)
{
	struct disk_job *job = NULL;

	lock_take(&n->lock);
	while (!n->end && !(job = take(n)))
		lock_cond_wait(&n->wake, &n->lock, clock_now_ns() + DISK_PATIENCE_NS);
	*stopped = n->stop;
	lock_drop(&n->lock);
	*ret = job;
	return job != NULL;
}

static void *names_main(void *context)
{
	struct disk *disk = context;
	struct disk_job *job;
	bool stopped;

	while (next(&disk->names, &job, &stopped)) {
		if (job->step == DISK_STEP_RENAME)
			finish(disk, job);
		else
			begin(disk, job, stopped);
	}
	return NULL;
}

static void put(struct disk_names *n, struct disk_job *job)
{
	lock_take(&n->lock);
	disk_list_add(&n->queue, job);
	lock_cond_wake_all(&n->wake);
	lock_drop(&n->lock);
}

void disk_names_rename(struct disk *disk, struct disk_job *job)
{
	job->step = DISK_STEP_RENAME;
	put(&disk->names, job);
}

void disk_give(struct disk *disk, struct disk_job *job)
{
	assert(job->dir && job->dir->disk == disk && job->done);
	job->fd = job->old_fd = -1;
	job->temporary = 0;
	job->result = 0;
	atomic_fetch_add(&disk->jobs, 1);
	if (job->kind == DISK_JOB_COPY) { /* it has no name */
		job->step = DISK_STEP_OPENED;
		disk_worker_give(disk, job);
		return;
	}
	job->step = DISK_STEP_ASKED;
	put(&disk->names, job);
}

int disk_names_start(struct disk *disk, struct why *why)
{
	struct disk_names *n = &disk->names;
	int r;

	lock_init(&n->lock, LOCK_QUEUE);
	lock_cond_init(&n->wake);
	r = pthread_create(&n->thread, NULL, names_main, disk);
	if (r) {
		lock_cond_destroy(&n->wake);
		lock_destroy(&n->lock);
		return why_set(why, r, "cannot start the thread for the names of record files");
	}
	n->running = true;
	pthread_setname_np(n->thread, "pfs-names");
	return 0;
}

static void tell(struct disk_names *n, bool *what)
{
	lock_take(&n->lock);
	*what = true;
	lock_cond_wake_all(&n->wake);
	lock_drop(&n->lock);
}

void disk_names_stop(struct disk *disk)
{
	tell(&disk->names, &disk->names.stop);
}

void disk_names_end(struct disk *disk)
{
	struct disk_names *n = &disk->names;

	if (!n->running)
		return;
	tell(n, &n->end);
	pthread_join(n->thread, NULL);
	assert(!n->queue.first && !n->parked.first && !n->reads_open && !n->writes_open);
	lock_cond_destroy(&n->wake);
	lock_destroy(&n->lock);
	n->running = false;
}
