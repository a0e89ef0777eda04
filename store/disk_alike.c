/* SPDX-License-Identifier: Apache-2.0
 *
 * Which columns of a file that is to be written have the same bytes: shares of one class that the engine's author did not declare to be
 * one. A column is compared with the stored ones of its class before it, lowest first: checksums of all its values, which the writing
 * needs anyway, then bytes. Mostly the first page tells. So each value is summed once at most, and its bytes are compared
 * with one other's.
 *
 * Of values that are taken from the old file the bytes are not at hand. They are the same where that file has them as one; and a
 * value of it is as one in memory when that is the one which the file was written from: it has its checksum.
 *
 *   column, like   the pair that is looked at
 *   page           of it is next
 *   bytes          false: checksums; true: they are the same in all pages
 */
#include "store/disk_private.h"

#include <string.h>

#include "store/base/guard.h"

static struct disk_write *job_of(const struct disk_task *task)
{
	return (struct disk_write *)task->job;
}

/* ---- pairs of columns ---------------------------------------------------------------------------------------------------- */

static const struct value_class *class_of(const struct layout *layout, uint32_t column)
{
	bool row = column >= layout->page_columns;
	uint32_t number = row ? column - layout->page_columns : column, c = 0;

	while (layout_is_row(layout, c) != row || number - layout->class[c].first_column >= layout->class[c].shares)
		c++;
	return &layout->class[c];
}

/* The first column of @column's class. */
static uint32_t first_of(const struct layout *layout, uint32_t column)
{
	return class_of(layout, column)->first_column + (column >= layout->page_columns ? layout->page_columns : 0);
}

static bool may_be(const struct disk_task *task, uint32_t column, uint32_t like)
{
	const struct disk_column *columns = task->job->dir->columns;

	return job_of(task)->alias[like] == like && columns[like].slot_bytes == columns[column].slot_bytes &&
		columns[like].payload_bytes == columns[column].payload_bytes;
}

/* Goes on to the next pair from (column, like) on that may be the same. False: there is none. */
static bool find_pair(struct disk_task *task)
{
	struct disk_write_state *s = &task->write;
	const struct layout *layout = task->job->dir->layout;
	uint32_t end = job_of(task)->id.flags & RECORD_FILE_ROW ? layout->page_columns + layout->row_columns : layout->page_columns;

	s->page = s->same = 0;
	s->bytes = false;
	while (s->column < end) {
		for (; s->like < s->column; s->like++)
			if (may_be(task, s->column, s->like))
				return true;
		s->column++;
		s->like = s->column < end ? first_of(layout, s->column) : 0;
	}
	return false;
}

bool disk_alike_begin(struct disk_task *task)
{
	task->write.column = task->write.like = 0;
	return find_pair(task);
}

/* ---- two values ------------------------------------------------------------------------------------------------------------ */

enum likeness { ALIKE, ABSENT, OTHER };

static uint32_t value_of(const struct disk_task *task, uint32_t page, uint32_t column)
{
	const struct record_file_plan *plan = &task->plan;

	return column < plan->page_columns ? page * plan->page_columns + column
					   : plan->pages * plan->page_columns + (column - plan->page_columns);
}

struct pair {
	const void *a, *b;
	uint64_t bytes;
	bool same;
};

static void compare(void *context)
{
	struct pair *pair = context;

	pair->same = !memcmp(pair->a, pair->b, pair->bytes);
}

/* Both are in memory, with the same checksum. */
static enum likeness same_bytes(struct disk_task *task, uint64_t a, uint64_t b, uint64_t bytes)
{
	const struct disk_dir *dir = task->job->dir;
	struct pair pair = {.a = dir->memory + a, .b = dir->memory + b, .bytes = bytes};
	int r = guard_run(compare, &pair, dir->memory, dir->memory_bytes);

	if (r)
		disk_task_fail(task, r);
	return !r && pair.same ? ALIKE : OTHER;
}

/* The checksum that the file will have for value @v; 0: it is absent there, or the task has failed. */
static uint64_t sum_of(struct disk_task *task, uint32_t v)
{
	struct disk_write_state *s = &task->write;
	uint64_t at = job_of(task)->values[v], offset;
	int r = 0;

	if (at == DISK_FROM_OLD && !s->sums[v])
		s->sums[v] = disk_write_old(task, v, &offset);
	else if (at < DISK_FROM_OLD)
		r = disk_write_sum(task, v);
	if (r)
		disk_task_fail(task, r);
	return r ? 0 : s->sums[v];
}

/* Has the old file both columns' values as one? */
static bool one_in_old(const struct disk_task *task)
{
	const struct disk_write_state *s = &task->write;

	return s->old_alias && s->old_alias[s->column] == s->old_alias[s->like];
}

/* ABSENT: the column has no value there. */
static enum likeness values_alike(struct disk_task *task, uint64_t *bytes)
{
	struct disk_write_state *s = &task->write;
	uint32_t v = value_of(task, s->page, s->column), like = value_of(task, s->page, s->like);
	uint64_t a = job_of(task)->values[v], b = job_of(task)->values[like], offset;
	uint64_t slot = task->job->dir->columns[s->column].slot_bytes;

	if (!s->bytes) {
		uint64_t sum = sum_of(task, v), other = sum ? sum_of(task, like) : 0;

		*bytes = (a < DISK_FROM_OLD ? slot : 0) + (b < DISK_FROM_OLD ? slot : 0);
		if (task->error)
			return OTHER;
		return !sum ? ABSENT : sum == other ? ALIKE : OTHER;
	}
	if (!s->sums[v])
		return ABSENT;
	if (a == b && a < DISK_FROM_OLD)
		return ALIKE;
	if (a < DISK_FROM_OLD && b < DISK_FROM_OLD) {
		*bytes = 2 * slot;
		return same_bytes(task, a, b, slot);
	}
	/* What is in memory of the two is what the old file has. */
	return one_in_old(task) && disk_write_old(task, v, &offset) == s->sums[v] && disk_write_old(task, like, &offset) == s->sums[like]
		? ALIKE
		: OTHER;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------ */

uint64_t disk_alike_step(struct disk_task *task, bool *more)
{
	struct disk_write_state *s = &task->write;
	uint32_t pages = s->column < task->plan.page_columns ? task->plan.pages : 1;
	enum likeness likeness;
	uint64_t bytes = 0;

	*more = true;
	if (s->page < pages) {
		likeness = values_alike(task, &bytes);
		s->same += likeness == ALIKE;
		s->page++;
		if (likeness != OTHER)
			return bytes;
		s->like = s->bytes ? s->column : s->like + 1; /* the same checksums for other bytes: it is stored */
	} else if (!s->same) {
		s->like = s->column; /* it has no values */
	} else if (!s->bytes) {
		s->bytes = true;
		s->page = s->same = 0;
		return 0;
	} else {
		job_of(task)->alias[s->column] = (uint16_t)s->like;
		s->like = s->column;
	}
	*more = !task->error && find_pair(task);
	return bytes;
}
