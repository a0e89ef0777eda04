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

struct copy {
	char *to;
	const char *from;
	uint64_t bytes;
};

static void copy_bytes(void *context)
{
	const struct copy *copy = context;

	memcpy(copy->to, copy->from, copy->bytes);
}

/* What is after @v and has its bytes too: they are copied. */
static void copy_likes(struct disk_task *task, uint32_t v)
{
	struct disk_read *read = job_of(task);
	const struct disk_read_value *from = &read->values[v];

	for (uint32_t i = v + 1; i < read->count && read->values[i].page == from->page; i++) {
		struct disk_read_value *value = &read->values[i];
		struct copy copy = {memory_of(task, value), memory_of(task, from), column_of(task, value)->slot_bytes};
		uint64_t want;

		if (task->read.like[i] != v || value->result)
			continue;
		want = sum_of(task, value);
		value->result = !want ? -ENODATA : from->result;
		if (value->result)
			continue;
		if (want != sum_of(task, from))
			value->result = -EBADMSG;
		else if (read->memory)
			copy_bytes(&copy);
		else
			value->result = guard_run(copy_bytes, &copy, task->job->dir->memory, task->job->dir->memory_bytes);
		read->bytes += value->result ? 0 : copy.bytes;
	}
}

static void check_value(struct disk_task *task, uint32_t v)
{
	struct disk_read_value *value = &job_of(task)->values[v];

	task->read.pending[v] = CHECKED;
	if (!value->result)
		value->result = check_sum(task, value);
	copy_likes(task, v);
}

/* The value before @v that the file stores for both, when it is read too; else @v. */
static uint32_t first_like(const struct disk_task *task, uint32_t v)
{
	const struct disk_read *read = job_of(task);
	const struct disk_read_value *value = &read->values[v];

	if (!task->read.alias || value->result)
		return v;
	for (uint32_t i = v; i-- > 0 && read->values[i].page == value->page;)
		if (task->read.like[i] == i && !read->values[i].result &&
			offset_of(task, &read->values[i]) == offset_of(task, value))
			return i;
	return v;
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
	s->at = s->unchecked = 0;
	s->moved = 0;
	task->work = 0;
	task->head_moved = 0;
	task->through = false;
	for (uint32_t v = 0; v < read->count; v++) {
		read->values[v].result = check_place(task, &read->values[v]);
		s->pending[v] = 0;
		s->like[v] = first_like(task, v);
	}
	return disk_task_bounce(task, task->plan.page_offset);
}

/* NULL: each column is stored. */
static bool aliases_differ(const struct disk_task *task, const uint16_t *alias)
{
	const uint16_t *now = task->read.alias;

	for (uint32_t i = 0; i < task->plan.page_columns + task->plan.row_columns; i++)
		if ((alias ? alias[i] : i) != (now ? now[i] : i))
			return true;
	return false;
}

/* Do things lie elsewhere than was thought? */
static bool elsewhere(const struct disk_task *task, const uint16_t *alias)
{
	return task->read.id.pages != task->plan.pages || aliases_differ(task, alias);
}

static int read_again(struct disk_task *task, const uint16_t *alias)
{
	struct disk_read_state *s = &task->read;

	if (s->twice) /* it was written twice meanwhile, and this is one file: its header changed */
		return -EBADMSG;
	s->own_alias = malloc(RECORD_FILE_MAX_COLUMNS * sizeof(*alias));
	if (!s->own_alias)
		return -ENOMEM;
	memcpy(s->own_alias, alias, RECORD_FILE_MAX_COLUMNS * sizeof(*alias));
	s->alias = s->own_alias;
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
	read->alias_good = !s->own_alias || !aliases_differ(task, read->alias);
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
	read->alias_good = false;
	s->alias = read->alias;
	s->pending = calloc(read->count + 1, sizeof(*s->pending));
	s->like = calloc(read->count + 1, sizeof(*s->like));
	r = !s->pending || !s->like ? -ENOMEM : fstat(read->job.fd, &st) ? -errno : 0;
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
	const struct disk_read_state *s = &task->read;

	return s->at < job_of(task)->count && !job_of(task)->values[s->at].result && s->like[s->at] == s->at;
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
	while (s->at < read->count && !s->moved && !wanted(task))
		s->pending[s->at++] = CHECKED;
	if (s->at == read->count)
		return DISK_NEXT_THROUGH;
	struct disk_transfer *t =
		disk_transfer_new(task, false, read->job.fd, offset_of(task, &read->values[s->at]) + s->moved);

	t->first = s->at;
	/* What has failed half way is gone on with: it has begun. What is copied from one of these is in nobody's way. */
	while ((wanted(task) || s->moved) && add_value(task, t))
		while (!s->moved && s->at < read->count && s->like[s->at] != s->at)
			s->pending[s->at++] = CHECKED;
	return disk_transfer_start(t);
}

/* The values that the transfer moved some of. */
static void moved(struct disk_task *task, const struct disk_transfer *t)
{
	struct disk_read_state *s = &task->read;

	for (uint32_t v = t->first; v <= t->last; v++) {
		struct disk_read_value *value = &job_of(task)->values[v];

		if (s->like[v] != v)
			continue;
		s->pending[v]--;
		if (t->io.result < 0 && !value->result)
			value->result = t->io.result;
		task->work += s->sums && !s->pending[v] && v < s->at;
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
	for (uint32_t v = 0; s->sums && v < s->at; v++)
		task->work += !s->pending[v];
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

/* Checks the first value that is there and was not: its bytes. */
static uint64_t read_work(struct disk_task *task)
{
	struct disk_read_state *s = &task->read;
	uint32_t v;

	while (s->pending[s->unchecked] == CHECKED)
		s->unchecked++;
	for (v = s->unchecked; s->pending[v]; v++)
		;
	assert(v < s->at);
	check_value(task, v);
	task->work--;
	return column_of(task, &job_of(task)->values[v])->slot_bytes;
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
	/* What was never moved cannot be copied. */
	for (uint32_t v = 0; v < read->count && !task->error; v++)
		if (!read->values[v].result)
			read->values[v].result = read->values[task->read.like[v]].result;
	if (task->error)
		disk_read_failed(read);
	else
		count(task);
	free(task->read.pending);
	free(task->read.like);
	free(task->read.own_alias);
}

const struct disk_task_kind disk_read_kind = {
	.begin = read_begin,
	.next = read_next,
	.reaped = read_reaped,
	.work = read_work,
	.end = read_end,
};
