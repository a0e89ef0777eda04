/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking at one file: header, then keys, as they say themselves where they lie. A job like others, for which its asker waits.
 */
#include "store/disk_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/clock.h"

static struct disk_look *job_of(const struct disk_task *task)
{
	return (struct disk_look *)task->job;
}

static int begin_steps(struct disk_task *task)
{
	struct disk_look *look = job_of(task);
	uint64_t header = record_file_header_bytes(look->job.dir->layout);
	struct stat st;

	if (fstat(look->job.fd, &st))
		return why_set(look->why, errno, "cannot ask for its length");
	look->info->file_bytes = (uint64_t)st.st_size;
	look->info->mtime_s = st.st_mtim.tv_sec;
	/* A shorter one may still say that it is another's. */
	task->bounce_bytes = look->info->file_bytes < header ? look->info->file_bytes & ~(RECORD_FILE_ALIGN - 1ull) : header;
	if (!task->bounce_bytes)
		return why_set(look->why, EINVAL, "it has %llu bytes; a header has %llu",
			(unsigned long long)st.st_size, (unsigned long long)header);
	return disk_task_bounce(task, task->bounce_bytes);
}

static void look_begin(struct disk_task *task)
{
	int r = begin_steps(task);

	if (r)
		disk_task_fail(task, r);
}

static enum disk_next look_next(struct disk_task *task)
{
	const struct disk_file_info *info = job_of(task)->info;
	bool keys = task->look.header_good;
	enum disk_next next = keys ? disk_task_head(task, false, task->job->fd, info->plan.header_bytes, info->segment,
					     info->plan.keys_bytes)
				   : disk_task_head(task, false, task->job->fd, 0, task->bounce, task->bounce_bytes);

	return next == DISK_NEXT_THROUGH && !keys ? DISK_NEXT_WAIT : next;
}

static int check_header(struct disk_task *task)
{
	struct disk_look *look = job_of(task);
	struct disk_file_info *info = look->info;
	int r = record_file_read_header(
		task->bounce, task->bounce_bytes, look->job.dir->layout, &info->id, info->alias, look->why);

	if (r)
		return r;
	record_file_plan(
		look->job.dir->layout, info->id.pages, info->id.flags & RECORD_FILE_ROW, info->alias, &info->plan);
	if (info->file_bytes < info->plan.page_offset)
		return why_set(look->why, EINVAL, "it has %llu bytes; header and keys have %llu",
			(unsigned long long)info->file_bytes, (unsigned long long)info->plan.page_offset);
	info->segment = disk_memory(info->plan.keys_bytes);
	if (!info->segment)
		return why_set(look->why, ENOMEM, "no memory for its keys");
	task->look.header_good = true;
	task->head_moved = 0;
	return 0;
}

static int check_keys(struct disk_task *task)
{
	struct disk_look *look = job_of(task);
	struct disk_file_info *info = look->info;
	struct record_file_found found = {
		.consumed = look->job.consumed, .endpoint = look->job.endpoint, .file_bytes = info->file_bytes};
	const struct key *keys;
	const uint64_t *sums;
	int r = record_file_read_keys(info->segment, &info->plan, &keys, &sums, look->why);

	return r ? r : record_file_there(&info->id, &info->plan, keys, &found, &info->pages, &info->row, look->why);
}

static void look_reaped(struct disk_task *task, const struct disk_transfer *t)
{
	uint64_t whole = task->look.header_good ? job_of(task)->info->plan.keys_bytes : task->bounce_bytes;
	int r = t->io.result;

	if (r < 0)
		why_set(job_of(task)->why, -r, "it cannot be read");
	else if (task->head_under_way || task->head_moved < whole)
		return;
	else
		r = task->look.header_good ? check_keys(task) : check_header(task);
	if (r)
		disk_task_fail(task, r);
}

static void look_end(struct disk_task *task)
{
	struct disk_look *look = job_of(task);

	look->job.result = task->error;
	if (task->error) {
		free(look->info->segment);
		look->info->segment = NULL;
	}
}

const struct disk_task_kind disk_look_kind = {
	.begin = look_begin,
	.next = look_next,
	.reaped = look_reaped,
	.end = look_end,
};

/* ---- its asker --------------------------------------------------------------------------------------------------------------- */

static void look_done(struct disk_job *job)
{
	struct disk_look *look = (struct disk_look *)job;

	lock_take(&look->lock);
	look->ended = true;
	lock_cond_wake_all(&look->wake);
	lock_drop(&look->lock);
}

int disk_file_look(struct disk_dir *dir, uint64_t consumed, const struct key *endpoint, struct disk_file_info *ret, struct why *why)
{
	struct disk_look look = {
		.job = {.kind = DISK_JOB_LOOK, .dir = dir, .consumed = consumed, .endpoint = *endpoint, .done = look_done},
		.info = ret,
		.why = why,
	};
	char path[DISK_PATH_BYTES];

	lock_assert_none_held();
	memset(ret, 0, sizeof(*ret));
	lock_init(&look.lock, LOCK_QUEUE);
	lock_cond_init(&look.wake);
	disk_path_of(path, consumed, endpoint, 0);
	if (why)
		why->error = 0;
	disk_give(dir->disk, &look.job);
	lock_take(&look.lock);
	while (!look.ended)
		lock_cond_wait(&look.wake, &look.lock, clock_now_ns() + DISK_PATIENCE_NS);
	lock_drop(&look.lock);
	lock_cond_destroy(&look.wake);
	lock_destroy(&look.lock);
	if (!look.job.result)
		return 0;
	if (why && why->error)
		why_prefix(why, "%s/%s", dir->path, path);
	else
		why_set(why, -look.job.result, "%s/%s cannot be read: %s", dir->path, path, strerrordesc_np(-look.job.result));
	return look.job.result;
}
