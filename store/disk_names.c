/* SPDX-License-Identifier: Apache-2.0
 *
 * The names thread: the one place where names of record files are looked up and changed, in the order in which jobs were given. What
 * it does to a job are a few system calls on the folder; all that takes long is a worker's.
 *
 * The renaming of a write goes before all that waits: it needs no order but that a write which was cancelled before is not renamed,
 * and jobs wait here while too many files are open, which ends by renaming.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "store/base/clock.h"

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
	}
	return -EINVAL;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */

static void count_failed(struct disk_job *job)
{
	struct disk_counters *counters = &job->dir->disk->counters;
	bool reads = job->kind == DISK_JOB_READ || job->kind == DISK_JOB_LOOK;

	if (job->result != -ECANCELED)
		disk_count(reads ? &counters->read_errors : &counters->write_errors, 1);
}

void disk_job_end(struct disk *disk, struct disk_job *job)
{
	struct disk_names *n = &disk->names;

	assert(job->fd < 0 && job->old_fd < 0);
	if (job->result)
		count_failed(job);
	lock_take(&n->lock);
	if (n->open-- >= DISK_OPEN_MOST)
		lock_cond_wake_all(&n->wake);
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
	disk_worker_give(disk, job);
}

/* A write whose transfers have ended. */
static void finish(struct disk *disk, struct disk_job *job)
{
	char from[DISK_PATH_BYTES], to[DISK_PATH_BYTES];

	disk_path_of(from, job->consumed, &job->endpoint, job->temporary);
	disk_path_of(to, job->consumed, &job->endpoint, 0);
	job->result = atomic_load(&job->cancelled) ? -ECANCELED : rename_file(job, from, to);
	job->step = job->result ? DISK_STEP_UNWANTED : DISK_STEP_RENAMED;
	disk_worker_give(disk, job);
}

/* ---- the thread --------------------------------------------------------------------------------------------------------- */

/* False: the end. */
static bool next(struct disk_names *n, struct disk_job **ret, bool *stopped)
{
	struct disk_job *job = NULL;

	lock_take(&n->lock);
	while (!n->end) {
		job = disk_list_take(&n->renames);
		if (!job && (n->open < DISK_OPEN_MOST || n->stop)) {
			job = disk_list_take(&n->asked);
			n->open += job != NULL;
		}
		if (job)
			break;
		lock_cond_wait(&n->wake, &n->lock, clock_now_ns() + DISK_PATIENCE_NS);
	}
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

static void put(struct disk_names *n, struct disk_list *list, struct disk_job *job)
{
	lock_take(&n->lock);
	disk_list_add(list, job);
	lock_cond_wake_all(&n->wake);
	lock_drop(&n->lock);
}

void disk_names_rename(struct disk *disk, struct disk_job *job)
{
	job->step = DISK_STEP_RENAME;
	put(&disk->names, &disk->names.renames, job);
}

void disk_give(struct disk *disk, struct disk_job *job)
{
	assert(job->dir && job->dir->disk == disk && job->done);
	job->fd = job->old_fd = -1;
	job->temporary = 0;
	job->result = 0;
	job->step = DISK_STEP_ASKED;
	atomic_fetch_add(&disk->jobs, 1);
	put(&disk->names, &disk->names.asked, job);
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
	assert(!n->asked.first && !n->renames.first && !n->open);
	lock_cond_destroy(&n->wake);
	lock_destroy(&n->lock);
	n->running = false;
}
