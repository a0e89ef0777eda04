/* SPDX-License-Identifier: Apache-2.0
 *
 * Values whose bytes are in memory already, as another column's: copied within the segment by a worker, so that nobody does it under a
 * lock.
 */
#include "store/disk_private.h"

#include <errno.h>
#include <string.h>

#include "store/base/guard.h"

static struct disk_read *job_of(const struct disk_task *task)
{
	return (struct disk_read *)task->job;
}

static uint64_t bytes_of(const struct disk_task *task, const struct disk_read_value *value)
{
	return disk_column(task->job->dir, value->page == TABLES_PAGE_ROW, value->column)->slot_bytes;
}

static void copy_begin(struct disk_task *task)
{
	struct disk_read *read = job_of(task);

	read->bytes = read->transfer_ns = 0;
	task->read.at = 0;
	task->work = read->count;
}

static enum disk_next copy_next(struct disk_task *task)
{
	(void)task;
	return DISK_NEXT_THROUGH;
}

struct pair {
	char *to;
	const char *from;
	uint64_t bytes;
};

static void copy(void *context)
{
	const struct pair *pair = context;

	memcpy(pair->to, pair->from, pair->bytes);
}

static uint64_t copy_work(struct disk_task *task)
{
	struct disk_read *read = job_of(task);
	const struct disk_dir *dir = read->job.dir;
	struct disk_read_value *value = &read->values[task->read.at++];
	uint64_t bytes = bytes_of(task, value);

	task->work--;
	if (!disk_dir_holds(dir, value->to, bytes) || !disk_dir_holds(dir, value->from, bytes)) {
		value->result = -EINVAL;
		return 0;
	}
	struct pair pair = {dir->memory + value->to, dir->memory + value->from, bytes};

	value->result = guard_run(copy, &pair, dir->memory, dir->memory_bytes);
	read->bytes += value->result ? 0 : bytes;
	return bytes;
}

static void copy_end(struct disk_task *task)
{
	struct disk_read *read = job_of(task);

	read->job.result = task->error;
	if (task->error)
		disk_read_failed(read);
}

const struct disk_task_kind disk_copy_kind = {
	.begin = copy_begin,
	.next = copy_next,
	.work = copy_work,
	.end = copy_end,
};
