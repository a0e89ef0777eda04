/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading values of a record file: header and keys and the values asked for all at once, where the caller's numbers say that
 * they lie. Values count once header and keys were checked, and each when its own checksum was. A header that is whole and says
 * that things lie elsewhere has the read begun once more, by it.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/clock.h"
#include "store/base/guard.h"

#define CHECKED UINT32_MAX /* of pending: it was, or need not be */

static struct disk_read *job_of(const struct disk_task *task)
{
	return (struct disk_read *)task->job;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

static const struct disk_column *column_of(const struct disk_task *task, const struct disk_read_value *value)
{
	return disk_column(task->job->dir, value->page == TABLES_PAGE_ROW, value->column);
}

static char *memory_of(const struct disk_task *task, const struct disk_read_value *value)
{
	return job_of(task)->memory ? (char *)(uintptr_t)value->to : task->job->dir->memory + value->to;
}

static uint64_t offset_of(const struct disk_task *task, const struct disk_read_value *value)
{
	return record_file_offset(task->job->dir->layout, &task->plan, task->read.alias, value->page, value->column);
}

/* Is there such a value, as far as numbers say, and room for it? */
static int check_place(const struct disk_task *task, const struct disk_read_value *value)
{
	const struct disk_read *read = job_of(task);
	bool row = value->page == TABLES_PAGE_ROW;

	if (row ? value->column >= task->plan.row_columns
		: value->column >= task->plan.page_columns || value->page >= read->pages || value->page >= task->plan.pages)
		return -ENODATA;
	uint64_t bytes = column_of(task, value)->slot_bytes;

	if (read->memory ? value->to % LAYOUT_VALUE_ALIGN || !value->to : !disk_dir_holds(read->job.dir, value->to, bytes))
		return -EINVAL;
	return offset_of(task, value) + bytes <= task->read.file_bytes ? 0 : -ENODATA;
}

struct sum {
	const char *memory;
	uint64_t bytes, sum;
};

static void take_sum(void *context)
{
	struct sum *sum = context;

	sum->sum = record_file_sum(sum->memory, sum->bytes);
}

static uint64_t sum_of(const struct disk_task *task, const struct disk_read_value *value)
{
	const struct record_file_plan *plan = &task->plan;
	uint64_t row = (uint64_t)plan->pages * plan->page_columns;

	return task->read.sums[value->page == TABLES_PAGE_ROW ? row + value->column
							      : (uint64_t)value->page * plan->page_columns + value->column];
}

static int check_sum(struct disk_task *task, const struct disk_read_value *value)
{
	struct sum sum = {.memory = memory_of(task, value), .bytes = column_of(task, value)->slot_bytes};
	uint64_t want = sum_of(task, value);

	if (!want)
		return -ENODATA;
	int r = guard_run(take_sum, &sum, sum.memory, sum.bytes);

	if (r)
		return r;
	if (sum.sum != want) {
		disk_count(&task->worker->disk->counters.checksum_errors, 1);
		return -EBADMSG;
	}
	job_of(task)->bytes += sum.bytes;
	return 0;
}

static void check_value(struct disk_task *task, uint32_t v)
{
	struct disk_read_value *value = &job_of(task)->values[v];

	if (task->read.pending[v] == CHECKED)
		return;
	task->read.pending[v] = CHECKED;
	if (!value->result)
		value->result = check_sum(task, value);
}

/* ---- header and keys ------------------------------------------------------------------------------------------------------------ */

/* Begins, or begins once more: for a file of so many pages. */
static int prepare(struct disk_task *task, uint32_t pages)
{
	struct disk_read *read = job_of(task);
	struct disk_read_state *s = &task->read;

	if (pages > RECORD_FILE_MAX_PAGES)
		return -EINVAL;
	record_file_plan(read->job.dir->layout, pages, true, s->alias, &task->plan);
	if (s->file_bytes < task->plan.page_offset)
		return -EBADMSG;
	s->at = 0;
	s->moved = 0;
	task->head_moved = 0;
	task->through = false;
	for (uint32_t v = 0; v < read->count; v++) {
		read->values[v].result = check_place(task, &read->values[v]);
		s->pending[v] = 0;
	}
	return disk_task_bounce(task, task->plan.page_offset);
}

/* Do things lie elsewhere than was thought? */
static bool elsewhere(const struct disk_task *task, const uint16_t *alias)
{
	const struct record_file_plan *plan = &task->plan;
	bool differs = task->read.id.pages != plan->pages;

	for (uint32_t i = 0; i < plan->page_columns + plan->row_columns; i++)
		differs |= alias[i] != (task->read.alias ? task->read.alias[i] : i);
	return differs;
}

static int read_again(struct disk_task *task, const uint16_t *alias)
{
	struct disk_read_state *s = &task->read;

	if (s->twice) /* it was written twice meanwhile, and this is one file: its header changed */
		return -EBADMSG;
	s->alias = malloc(RECORD_FILE_MAX_COLUMNS * sizeof(*alias));
	if (!s->alias)
		return -ENOMEM;
	memcpy(s->alias, alias, RECORD_FILE_MAX_COLUMNS * sizeof(*alias));
	s->again = s->twice = true;
	return 0;
}

static void check_key(struct disk_task *task, uint32_t v)
{
	const struct disk_read *read = job_of(task);
	struct disk_read_value *value = &read->values[v];
	bool row = value->page == TABLES_PAGE_ROW;

	if (value->result)
		return;
	if (row && !(task->read.id.flags & RECORD_FILE_ROW))
		value->result = -ENODATA;
	else if (memcmp(&read->keys[v], row ? &task->read.id.endpoint : &task->read.keys[value->page], sizeof(struct key)))
		value->result = -EBADMSG;
}

static int check_head(struct disk_task *task)
{
	struct disk_read *read = job_of(task);
	struct disk_read_state *s = &task->read;
	uint16_t alias[RECORD_FILE_MAX_COLUMNS] = {0};
	const struct key *keys;
	int r = record_file_read_header(
		task->bounce, task->plan.header_bytes, read->job.dir->layout, &s->id, alias, NULL);

	if (r)
		return r == -ENOTSUP ? r : -EBADMSG;
	if (elsewhere(task, alias))
		return read_again(task, alias);
	if (record_file_read_keys(task->bounce + task->plan.header_bytes, &task->plan, &keys, &s->sums, NULL))
		return -EBADMSG;
	s->keys = keys;
	read->file_pages = s->id.pages;
	for (uint32_t v = 0; v < read->count; v++)
		check_key(task, v);
	return 0;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------------------- */

void disk_read_failed(struct disk_read *read)
{
	for (uint32_t v = 0; v < read->count; v++)
		read->values[v].result = read->job.result;
	read->bytes = 0;
}

static void read_begin(struct disk_task *task)
{
	struct disk_read *read = job_of(task);
	struct disk_read_state *s = &task->read;
	struct stat st;
	int r;

	read->bytes = read->transfer_ns = 0;
	s->pending = calloc(read->count + 1, sizeof(*s->pending));
	r = !s->pending ? -ENOMEM : fstat(read->job.fd, &st) ? -errno : 0;
	if (!r) {
		s->file_bytes = (uint64_t)st.st_size;
		r = prepare(task, read->file_pages);
	}
	if (r)
		disk_task_fail(task, r);
}

static bool add_value(struct disk_task *task, struct disk_transfer *t)
{
	struct disk_read_state *s = &task->read;
	const struct disk_read_value *value = &job_of(task)->values[s->at];
	uint64_t bytes = column_of(task, value)->slot_bytes;
	uint32_t n = disk_transfer_add(
		t, offset_of(task, value) + s->moved, memory_of(task, value) + s->moved, bytes - s->moved);

	if (!n)
		return false;
	t->last = s->at;
	s->pending[s->at]++;
	s->moved += n;
	if (s->moved == bytes) {
		s->at++;
		s->moved = 0;
	}
	return true;
}

static bool wanted(const struct disk_task *task)
{
	return task->read.at < job_of(task)->count && !job_of(task)->values[task->read.at].result;
}

static enum disk_next read_next(struct disk_task *task)
{
	struct disk_read *read = job_of(task);
	struct disk_read_state *s = &task->read;
	enum disk_next next;

	if (s->again)
		return DISK_NEXT_WAIT;
	next = disk_task_head(task, false, read->job.fd, 0, task->bounce, task->bounce_bytes);
	if (next != DISK_NEXT_THROUGH)
		return next;
	while (s->at < read->count && read->values[s->at].result && !s->moved)
		s->at++;
	if (s->at == read->count)
		return DISK_NEXT_THROUGH;
	struct disk_transfer *t =
		disk_transfer_new(task, false, read->job.fd, offset_of(task, &read->values[s->at]) + s->moved);

	t->first = s->at;
	/* What has failed half way is gone on with: it has begun. */
	while ((wanted(task) || s->moved) && add_value(task, t))
		;
	return disk_transfer_start(t);
}

/* The values that the transfer moved some of. */
static void moved(struct disk_task *task, const struct disk_transfer *t)
{
	struct disk_read_state *s = &task->read;

	for (uint32_t v = t->first; v <= t->last; v++) {
		struct disk_read_value *value = &job_of(task)->values[v];

		s->pending[v]--;
		if (t->io.result < 0 && !value->result)
			value->result = t->io.result;
		if (s->sums && !s->pending[v] && v < s->at)
			check_value(task, v);
	}
}

static int head_moved(struct disk_task *task, int result)
{
	struct disk_read_state *s = &task->read;
	int r = 0;

	if (result < 0)
		return result == -ENODATA ? -EBADMSG : result;
	if (task->head_under_way || task->head_moved < task->bounce_bytes)
		return 0;
	r = check_head(task);
	/* Those that were there before it. */
	for (uint32_t v = 0; s->sums && !r && !s->again && v < s->at; v++)
		if (!s->pending[v])
			check_value(task, v);
	return r;
}

static void read_reaped(struct disk_task *task, const struct disk_transfer *t)
{
	struct disk_read_state *s = &task->read;
	int r = 0;

	if (t->head)
		r = head_moved(task, t->io.result);
	else
		moved(task, t);
	if (!r && s->again && !task->under_way && !task->error) {
		s->again = false;
		r = prepare(task, s->id.pages);
	}
	if (r)
		disk_task_fail(task, r);
}

static void count(struct disk_task *task)
{
	struct disk_counters *counters = &task->worker->disk->counters;
	const struct disk_read *read = job_of(task);

	for (uint32_t v = 0; v < read->count; v++) {
		int r = read->values[v].result;

		if (r && r != -ENODATA && r != -EBADMSG && r != -EINVAL && r != -EFAULT)
			disk_count(&counters->read_errors, 1);
	}
	disk_count(&counters->reads, 1);
}

static void read_end(struct disk_task *task)
{
	struct disk_read *read = job_of(task);

	if (task->began_ns)
		read->transfer_ns = clock_now_ns() - task->began_ns;
	read->job.result = task->error;
	if (task->error)
		disk_read_failed(read);
	else
		count(task);
	free(task->read.pending);
	free(task->read.alias);
}

const struct disk_task_kind disk_read_kind = {
	.begin = read_begin,
	.next = read_next,
	.reaped = read_reaped,
	.end = read_end,
};
