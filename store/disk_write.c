/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a record file. First, where a class has several shares, what of it is the same (disk_alike.c). Then its values in the order of
 * the file straight from the segment, each checksummed just before it goes unless it was already; then
 * keys and header, which need the checksums. Values that are taken from the old file pass through memory of their own, with their
 * old checksums.
 *
 *   carry     carried  full  carrying  goes on when
 *   empty     0        no    no        values from the old file are next: they are read
 *   filling   n        no    yes       that was reaped
 *   full      n        yes   no        at the next transfer: it is written
 *   emptying  0        no    yes       that was reaped
 */
#include "store/disk_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/guard.h"

static struct disk_write *job_of(const struct disk_task *task)
{
	return (struct disk_write *)task->job;
}

/* ---- beginning ------------------------------------------------------------------------------------------------------------ */

/* Where value @v stands: its column, and its page or TABLES_PAGE_ROW. */
static uint32_t place_of(const struct disk_task *task, uint32_t v, uint32_t *column)
{
	uint32_t of_pages = task->plan.pages * task->plan.page_columns;

	if (v >= of_pages) {
		*column = v - of_pages;
		return TABLES_PAGE_ROW;
	}
	*column = v % task->plan.page_columns;
	return v / task->plan.page_columns;
}

static const struct disk_column *column_of(const struct disk_task *task, uint32_t v)
{
	uint32_t column, page = place_of(task, v, &column);

	return disk_column(task->job->dir, page == TABLES_PAGE_ROW, column);
}

static uint64_t offset_of(const struct disk_task *task, uint32_t v)
{
	uint32_t column, page = place_of(task, v, &column);

	return record_file_offset(task->job->dir->layout, &task->plan, job_of(task)->alias, page, column);
}

/* Are its bytes another column's? */
static bool is_alias(const struct disk_task *task, uint32_t v)
{
	uint32_t column, page = place_of(task, v, &column);

	column += page == TABLES_PAGE_ROW ? task->plan.page_columns : 0;
	return job_of(task)->alias[column] != column;
}

static void fill_in(struct disk_write *write, const struct record_file_plan *plan)
{
	while (!write->id.nonce)
		digest_random(&write->id.nonce, sizeof(write->id.nonce));
	if (!write->id.created_s)
		write->id.created_s = (int64_t)clock_wall_s();
	for (uint32_t i = 0; i < plan->page_columns + plan->row_columns; i++)
		write->alias[i] = (uint16_t)i;
}

static int check_values(struct disk_task *task)
{
	const struct disk_write *write = job_of(task);

	task->write.holes = false;
	for (uint32_t v = 0; v < task->write.values; v++) {
		uint64_t at = write->values[v];

		if (at == DISK_ABSENT)
			task->write.holes = true;
		else if (at == DISK_FROM_OLD ? !write->from_old
					     : !disk_dir_holds(write->job.dir, at, column_of(task, v)->slot_bytes))
			return -EINVAL;
	}
	return 0;
}

/* Which columns are stored is known: where everything lies, and room for it. */
static int make_room(struct disk_task *task)
{
	struct disk_write *write = job_of(task);
	struct disk_ops *ops = task->worker->disk->ops;
	int r;

	task->write.alike = true;
	record_file_plan(write->job.dir->layout, write->id.pages, write->id.flags & RECORD_FILE_ROW, write->alias, &task->plan);
	if (task->write.holes)
		return ops->table->truncate(ops, task->job->fd, task->plan.file_bytes);
	r = ops->table->allocate(ops, task->job->fd, task->plan.file_bytes);
	return r == -EOPNOTSUPP ? 0 : r;
}

static int begin_old(struct disk_task *task)
{
	const struct disk_write *write = job_of(task);
	struct disk_write_state *s = &task->write;
	struct stat st;

	if (write->old_file_pages > RECORD_FILE_MAX_PAGES)
		return -EINVAL;
	if (fstat(write->job.old_fd, &st))
		return -errno;
	s->old_bytes = (uint64_t)st.st_size;
	record_file_plan(write->job.dir->layout, write->old_file_pages, true, NULL, &s->old_plan);
	if (s->old_bytes < s->old_plan.page_offset)
		return -EBADMSG;
	s->old_head = disk_memory(s->old_plan.page_offset);
	s->old_alias = malloc(RECORD_FILE_MAX_COLUMNS * sizeof(*s->old_alias));
	s->carry = disk_memory(DISK_IO_MOST);
	return s->old_head && s->old_alias && s->carry ? 0 : -ENOMEM;
}

/* Everything that is to be written can be had: what of it is the same is found before any of it is. */
static int begin_values(struct disk_task *task)
{
	if (!disk_alike_begin(task))
		return make_room(task);
	task->work = 1;
	return 0;
}

static uint64_t write_work(struct disk_task *task)
{
	bool more;
	uint64_t bytes = disk_alike_step(task, &more);
	int r = more || task->error ? 0 : make_room(task);

	task->work = more;
	if (r)
		disk_task_fail(task, r);
	return bytes;
}

static int begin_steps(struct disk_task *task)
{
	struct disk_write *write = job_of(task);
	struct disk_write_state *s = &task->write;
	bool row = write->id.flags & RECORD_FILE_ROW;
	const struct layout *layout = write->job.dir->layout;
	int r;

	if (write->id.pages > RECORD_FILE_MAX_PAGES || (row && !layout->row_columns))
		return -EINVAL;
	record_file_plan(layout, write->id.pages, row, NULL, &task->plan);
	s->values = task->plan.pages * task->plan.page_columns + (row ? task->plan.row_columns : 0);
	fill_in(write, &task->plan);
	r = check_values(task);
	if (r)
		return r;
	s->sums = calloc((uint64_t)task->plan.pages * task->plan.page_columns + task->plan.row_columns + 1, sizeof(*s->sums));
	r = s->sums ? disk_task_bounce(task, task->plan.page_offset) : -ENOMEM;
	if (!r && write->from_old)
		return begin_old(task);
	return r ? r : begin_values(task);
}

static void write_begin(struct disk_task *task)
{
	int r = begin_steps(task);

	if (r)
		disk_task_fail(task, r);
}

/* ---- from memory ------------------------------------------------------------------------------------------------------------ */

struct sum {
	char *memory;
	const struct disk_column *column;
	uint64_t sum;
};

/* What lies behind the payload is another value's of old: it does not get into the file. */
static void sum_value(void *context)
{
	struct sum *sum = context;

	memset(sum->memory + sum->column->payload_bytes, 0, sum->column->slot_bytes - sum->column->payload_bytes);
	sum->sum = record_file_sum(sum->memory, sum->column->slot_bytes);
}

int disk_write_sum(struct disk_task *task, uint32_t v)
{
	struct sum sum = {.memory = task->job->dir->memory + job_of(task)->values[v], .column = column_of(task, v)};
	int r;

	if (task->write.sums[v])
		return 0;
	r = guard_run(sum_value, &sum, sum.memory, sum.column->slot_bytes);
	if (!r)
		task->write.sums[v] = sum.sum;
	return r;
}

/* Adds what is at the cursor. False: that is for another transfer, or it has failed. */
static bool add_value(struct disk_task *task, struct disk_transfer *t)
{
	struct disk_write_state *s = &task->write;
	char *memory = task->job->dir->memory + job_of(task)->values[s->at];
	uint64_t bytes = column_of(task, s->at)->slot_bytes;
	int r = disk_write_sum(task, s->at);

	if (r) {
		disk_task_fail(task, r);
		return false;
	}
	uint32_t n = disk_transfer_add(t, offset_of(task, s->at) + s->moved, memory + s->moved, bytes - s->moved);

	s->moved += n;
	if (s->moved == bytes) {
		s->at++;
		s->moved = 0;
	}
	return n != 0;
}

static bool in_memory(const struct disk_task *task)
{
	return task->write.at < task->write.values && job_of(task)->values[task->write.at] < DISK_FROM_OLD &&
		!is_alias(task, task->write.at);
}

static enum disk_next next_values(struct disk_task *task)
{
	struct disk_transfer *t =
		disk_transfer_new(task, true, task->job->fd, offset_of(task, task->write.at) + task->write.moved);

	while (in_memory(task) && add_value(task, t))
		;
	if (task->error) {
		disk_transfer_drop(t);
		return DISK_NEXT_WAIT;
	}
	return disk_transfer_start(t);
}

/* ---- from the old file ------------------------------------------------------------------------------------------------------- */

static int check_old(struct disk_task *task)
{
	const struct disk_write *write = job_of(task);
	struct disk_write_state *s = &task->write;
	struct record_file_id id;
	const struct key *keys;

	if (record_file_read_header(s->old_head, s->old_plan.header_bytes, write->job.dir->layout, &id, s->old_alias, NULL) ||
		id.pages != s->old_plan.pages)
		return -EBADMSG;
	record_file_plan(write->job.dir->layout, id.pages, true, s->old_alias, &s->old_plan);
	if (record_file_read_keys(s->old_head + s->old_plan.header_bytes, &s->old_plan, &keys, &s->old_sums, NULL))
		return -EBADMSG;
	uint32_t both = id.pages < task->plan.pages ? id.pages : task->plan.pages;

	if (both && memcmp(keys, write->keys, both * sizeof(*keys))) {
		s->old_sums = NULL;
		return -EBADMSG;
	}
	return begin_values(task);
}

uint64_t disk_write_old(const struct disk_task *task, uint32_t v, uint64_t *offset)
{
	const struct disk_write_state *s = &task->write;
	uint32_t column, page = place_of(task, v, &column);
	bool row = page == TABLES_PAGE_ROW;

	if (!row && page >= s->old_plan.pages)
		return 0;
	*offset = record_file_offset(task->job->dir->layout, &s->old_plan, s->old_alias, page, column);
	if (*offset + column_of(task, v)->slot_bytes > s->old_bytes)
		return 0;
	return s->old_sums[row ? s->old_plan.pages * s->old_plan.page_columns + column
			       : page * s->old_plan.page_columns + column];
}

/* Reads a run of values that lie together in both files. NULL: there are none. */
static struct disk_transfer *next_run(struct disk_task *task)
{
	struct disk_write_state *s = &task->write;
	struct disk_transfer *t = NULL;

	while (s->at < s->values && job_of(task)->values[s->at] == DISK_FROM_OLD) {
		uint64_t bytes = column_of(task, s->at)->slot_bytes, to = offset_of(task, s->at) + s->moved, from = 0;
		uint64_t sum = disk_write_old(task, s->at, &from);

		if (!sum || is_alias(task, s->at)) {
			s->at++;
			continue;
		}
		s->sums[s->at] = sum;
		if (!t) {
			t = disk_transfer_new(task, false, task->job->old_fd, from + s->moved);
			s->carry_to = to;
		}
		if (to != s->carry_to + t->io.bytes)
			break;
		uint32_t n = disk_transfer_add(t, from + s->moved, s->carry + t->io.bytes, bytes - s->moved);

		if (!n)
			break;
		s->moved += n;
		if (s->moved == bytes) {
			s->at++;
			s->moved = 0;
		}
	}
	return t;
}

static enum disk_next next_old_head(struct disk_task *task)
{
	struct disk_write_state *s = &task->write;
	enum disk_next next = disk_task_head(task, false, task->job->old_fd, 0, s->old_head, s->old_plan.page_offset);

	return next == DISK_NEXT_STARTED ? next : DISK_NEXT_WAIT;
}

static enum disk_next write_carried(struct disk_task *task)
{
	struct disk_write_state *s = &task->write;
	struct disk_transfer *t = disk_transfer_new(task, true, task->job->fd, s->carry_to);

	disk_transfer_add(t, s->carry_to, s->carry, s->carried);
	s->full = false;
	s->carrying = true;
	s->carried = 0;
	return disk_transfer_start(t);
}

/* ---- the whole ----------------------------------------------------------------------------------------------------------------- */

static enum disk_next next_head(struct disk_task *task)
{
	struct disk_write *write = job_of(task);

	if (!task->write.made) {
		record_file_make_header(task->bounce, write->job.dir->layout, &task->plan, &write->id, write->alias);
		record_file_make_keys(task->bounce + task->plan.header_bytes, &task->plan, write->keys, task->write.sums);
		task->write.made = true;
		task->head_moved = 0;
	}
	return disk_task_head(task, true, write->job.fd, 0, task->bounce, task->bounce_bytes);
}

static enum disk_next write_next(struct disk_task *task)
{
	struct disk_write_state *s = &task->write;

	if (s->carry && !s->old_sums)
		return next_old_head(task);
	if (!s->alike)
		return DISK_NEXT_WAIT;
	if (s->full)
		return write_carried(task);
	for (;;) {
		while (s->at < s->values && (job_of(task)->values[s->at] == DISK_ABSENT || is_alias(task, s->at)))
			s->at++;
		if (s->at == s->values)
			break;
		if (in_memory(task))
			return next_values(task);
		if (s->carrying)
			return DISK_NEXT_WAIT;
		struct disk_transfer *t = next_run(task);

		if (t) {
			s->carrying = true;
			s->carried = t->io.bytes;
			return disk_transfer_start(t);
		}
	}
	enum disk_next next = next_head(task);

	return next == DISK_NEXT_THROUGH && s->carrying && s->carried ? DISK_NEXT_WAIT : next;
}

static void write_reaped(struct disk_task *task, const struct disk_transfer *t)
{
	struct disk_write_state *s = &task->write;
	bool old = t->io.fd == task->job->old_fd;

	if (t->io.result < 0) {
		disk_task_fail(task, t->io.result == -ENODATA ? -EBADMSG : t->io.result); /* the old file became shorter */
	} else if (old && t->head) {
		int r = task->head_moved == s->old_plan.page_offset && !task->head_under_way ? check_old(task) : 0;

		if (r)
			disk_task_fail(task, r);
	} else if (old) {
		s->carrying = false;
		s->full = true;
	} else if (t->parts[0].iov_base == s->carry) {
		s->carrying = false;
	}
}

static void write_end(struct disk_task *task)
{
	struct disk_write *write = job_of(task);
	struct disk_counters *counters = &task->worker->disk->counters;
	struct disk_ops *ops = task->worker->disk->ops;

	if (task->began_ns)
		write->transfer_ns = clock_now_ns() - task->began_ns;
	if (!task->error && task->worker->disk->durability == DISK_DURABILITY_DATA) {
		int r = ops->table->sync(ops, write->job.fd);

		if (r)
			disk_task_fail(task, r);
	}
	write->job.result = task->error;
	write->file_bytes = task->error ? 0 : task->plan.file_bytes;
	write->alias_bytes = 0;
	for (uint32_t v = 0; !task->error && v < task->write.values; v++)
		write->alias_bytes += is_alias(task, v) && task->write.sums[v] ? column_of(task, v)->slot_bytes : 0;
	if (!task->error)
		disk_count(&counters->writes, 1);
	free(task->write.sums);
	free(task->write.old_head);
	free(task->write.old_alias);
	free(task->write.carry);
}

const struct disk_task_kind disk_write_kind = {
	.begin = write_begin,
	.next = write_next,
	.reaped = write_reaped,
	.work = write_work,
	.end = write_end,
};
