/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs with transfers. What has ended makes room for the next transfers first, and is looked at while those are under way: large ones
 * end several at a time, and the disk would have nothing to do meanwhile. A task's kind is asked for one transfer after the other, in the order of the file, whenever there is room; so
 * a job of any length needs few of them at a time. Reads go before writes, and among themselves tasks take turns.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "store/base/clock.h"

#define PUMP_BYTES (8u << 20) /* then it is time to look what has ended: checksums on the way take time */
#define WORK_BYTES (4u << 20) /* of what was moved, likewise */
#define TELL_BYTES (1u << 20) /* so many are worth a system call */

static struct disk_ops *ops_of(const struct disk_worker *w)
{
	return w->disk->ops;
}

void *disk_memory(uint64_t bytes)
{
	void *memory = NULL;

	return posix_memalign(&memory, RECORD_FILE_ALIGN, bytes) ? NULL : memory;
}

/* ---- transfers ---------------------------------------------------------------------------------------------------------- */

struct disk_transfer *disk_transfer_new(struct disk_task *task, bool write, int fd, uint64_t offset)
{
	struct disk_transfer *t = task->worker->free_transfers;

	assert(t);
	task->worker->free_transfers = t->next;
	t->next = NULL;
	t->task = task;
	t->head = false;
	t->first = t->last = 0;
	t->io = (struct disk_io){.write = write, .fd = fd, .offset = offset, .parts = t->parts, .buffer = -1, .context = t};
	return t;
}

void disk_transfer_drop(struct disk_transfer *t)
{
	struct disk_worker *w = t->task->worker;

	t->next = w->free_transfers;
	w->free_transfers = t;
}

/* Is it better to end here than to go on with another piece of memory? Long pieces go alone: the kernel takes them as they are when
 * they are registered, and as few. */
static bool better_alone(const struct disk_transfer *t, uint64_t bytes)
{
	return t->io.part_count == DISK_IO_VECTORS || bytes >= DISK_ALONE_LEAST ||
		t->parts[t->io.part_count - 1].iov_len >= DISK_ALONE_LEAST;
}

uint32_t disk_transfer_add(struct disk_transfer *t, uint64_t offset, char *memory, uint64_t bytes)
{
	uint64_t n = DISK_IO_MOST - t->io.bytes < bytes ? DISK_IO_MOST - t->io.bytes : bytes;
	struct iovec *last = t->io.part_count ? &t->parts[t->io.part_count - 1] : NULL;

	if (offset != t->io.offset + t->io.bytes)
		return 0;
	if (n < bytes && bytes <= DISK_IO_MOST) /* in one piece in the next one */
		return 0;
	if (last && (char *)last->iov_base + last->iov_len == memory) {
		last->iov_len += n;
	} else {
		if (last && better_alone(t, bytes))
			return 0;
		t->parts[t->io.part_count++] = (struct iovec){.iov_base = memory, .iov_len = n};
	}
	t->io.bytes += (uint32_t)n;
	return (uint32_t)n;
}

static void tell(struct disk_worker *w)
{
	if (w->bytes_untold && ops_of(w)->table->submit(w->queue) >= 0)
		w->bytes_untold = 0; /* else at the next occasion */
}

enum disk_next disk_transfer_start(struct disk_transfer *t)
{
	struct disk_task *task = t->task;
	struct disk_worker *w = task->worker;

	if (t->io.part_count == 1)
		t->io.buffer = disk_pieces_use(w, t->parts[0].iov_base, t->parts[0].iov_len);
	int r = ops_of(w)->table->start(w->queue, &t->io);

	if (r < 0) {
		if (t->io.buffer >= 0)
			disk_pieces_unuse(w, t->parts[0].iov_base);
		disk_transfer_drop(t);
		disk_task_fail(task, r);
		return DISK_NEXT_WAIT;
	}
	if (!task->began_ns)
		task->began_ns = clock_now_ns();
	task->under_way++;
	w->transfers_under_way++;
	w->bytes_under_way += t->io.bytes;
	w->bytes_untold += t->io.bytes;
	if (w->bytes_untold >= TELL_BYTES)
		tell(w);
	return DISK_NEXT_STARTED;
}

static void transfer_ended(struct disk_worker *w, struct disk_transfer *t)
{
	struct disk_task *task = t->task;
	_Atomic uint64_t *bytes = t->io.write ? &w->disk->counters.written_bytes : &w->disk->counters.read_bytes;

	if (t->io.buffer >= 0)
		disk_pieces_unuse(w, t->parts[0].iov_base);
	w->transfers_under_way--;
	w->bytes_under_way -= t->io.bytes;
	task->under_way--;
	task->head_under_way -= t->head;
	if (t->io.result >= 0)
		disk_count(bytes, t->io.bytes);
	task->kind->reaped(task, t);
	disk_transfer_drop(t);
}

enum disk_next disk_task_head(struct disk_task *task, bool write, int fd, uint64_t offset, char *memory, uint64_t bytes)
{
	uint64_t at = task->head_moved;
	struct disk_transfer *t;

	if (at == bytes)
		return DISK_NEXT_THROUGH;
	t = disk_transfer_new(task, write, fd, offset + at);
	t->head = true;
	task->head_moved += disk_transfer_add(t, offset + at, memory + at, bytes - at);
	enum disk_next next = disk_transfer_start(t);

	task->head_under_way += next == DISK_NEXT_STARTED;
	return next;
}

/* ---- tasks ---------------------------------------------------------------------------------------------------------------- */

void disk_task_fail(struct disk_task *task, int error)
{
	if (!task->error)
		task->error = error;
}

/* Bytes of header and keys that the job is known to need. */
static uint64_t bounce_of(const struct disk_job *job)
{
	uint32_t pages = job->kind == DISK_JOB_WRITE ? ((const struct disk_write *)job)->id.pages
		: job->kind == DISK_JOB_READ         ? ((const struct disk_read *)job)->file_pages
						     : 0;
	struct record_file_plan plan;

	record_file_plan(job->dir->layout, pages < RECORD_FILE_MAX_PAGES ? pages : RECORD_FILE_MAX_PAGES, false, NULL, &plan);
	return plan.header_bytes + plan.keys_bytes;
}

int disk_task_bounce(struct disk_task *task, uint64_t bytes)
{
	if (bytes > task->bounce_room) {
		free(task->bounce);
		task->bounce = disk_memory(bytes);
		task->bounce_room = task->bounce ? bytes : 0;
	}
	task->bounce_bytes = bytes;
	return task->bounce ? 0 : -ENOMEM;
}

static bool room_for(const struct disk_worker *w, const struct disk_job *job, uint64_t bounce)
{
	if (w->tasks_used == DISK_TASKS || (job->kind == DISK_JOB_WRITE && w->tasks_writing == DISK_TASKS_WRITING))
		return false;
	return !w->tasks_used || w->bounce_counted + bounce <= DISK_BOUNCE_MOST;
}

static const struct disk_task_kind *kind_of(const struct disk_job *job)
{
	switch (job->kind) {
	case DISK_JOB_WRITE:
		return &disk_write_kind;
	case DISK_JOB_READ:
		return &disk_read_kind;
	case DISK_JOB_COPY:
		return &disk_copy_kind;
	default:
		return &disk_look_kind;
	}
}

static bool unwanted(const struct disk_worker *w, const struct disk_job *job)
{
	uint64_t give_up = atomic_load_explicit(&w->disk->give_up_ns, memory_order_relaxed);

	return atomic_load_explicit(&job->cancelled, memory_order_relaxed) || (give_up && clock_now_ns() >= give_up);
}

bool disk_task_begin(struct disk_worker *w, struct disk_job *job)
{
	uint64_t bounce = bounce_of(job);
	struct disk_task *task = w->tasks;

	if (!room_for(w, job, bounce))
		return false;
	while (task->job)
		task++;
	char *kept = task->bounce;
	uint64_t room = task->bounce_room;

	*task = (struct disk_task){.worker = w, .job = job, .kind = kind_of(job), .bounce = kept, .bounce_room = room};
	job->step = DISK_STEP_MOVING;
	task->bounce_counted = bounce;
	w->bounce_counted += bounce;
	w->tasks_used++;
	w->tasks_writing += job->kind == DISK_JOB_WRITE;
	if (atomic_load(&w->disk->give_up_ns) || atomic_load(&job->cancelled))
		disk_task_fail(task, -ECANCELED);
	else
		task->kind->begin(task);
	return true;
}

static void close_files(struct disk_job *job)
{
	struct disk_ops *ops = job->dir->disk->ops;

	if (job->fd >= 0)
		ops->table->close(ops, job->fd);
	if (job->old_fd >= 0)
		ops->table->close(ops, job->old_fd);
	job->fd = job->old_fd = -1;
}

static void task_end(struct disk_worker *w, struct disk_task *task)
{
	struct disk_job *job = task->job;

	task->kind->end(task);
	close_files(job);
	w->bounce_counted -= task->bounce_counted;
	w->tasks_used--;
	w->tasks_writing -= job->kind == DISK_JOB_WRITE;
	task->job = NULL;
	if (task->bounce_room > DISK_BOUNCE_KEPT) {
		free(task->bounce);
		task->bounce = NULL;
		task->bounce_room = 0;
	}
	if (job->kind == DISK_JOB_WRITE && !job->result)
		job->step = DISK_STEP_RENAME;
	else if (job->kind == DISK_JOB_WRITE)
		disk_unwanted_run(job);
	disk_worker_done(w, job);
}

static void end_those_through(struct disk_worker *w)
{
	for (uint32_t i = 0; i < DISK_TASKS; i++) {
		struct disk_task *task = &w->tasks[i];

		if (task->job && !task->under_way && (task->error || (task->through && !task->work)))
			task_end(w, task);
	}
}

static bool room_for_transfer(const struct disk_worker *w)
{
	return w->free_transfers && w->bytes_under_way < DISK_BYTES_UNDER_WAY;
}

/* One transfer of each task that writes, or of each that reads. False: none was started. */
static bool pump_round(struct disk_worker *w, bool writing)
{
	uint32_t turn = w->turn++;
	bool started = false;

	for (uint32_t i = 0; i < DISK_TASKS && room_for_transfer(w); i++) {
		struct disk_task *task = &w->tasks[(turn + i) % DISK_TASKS];

		if (!task->job || (task->job->kind == DISK_JOB_WRITE) != writing || task->through)
			continue;
		if (unwanted(w, task->job))
			disk_task_fail(task, -ECANCELED);
		if (task->error)
			continue;
		enum disk_next next = task->kind->next(task);

		assert(next != DISK_NEXT_WAIT || task->under_way || task->work || task->error);
		task->through = next == DISK_NEXT_THROUGH;
		started |= next == DISK_NEXT_STARTED;
	}
	return started;
}

bool disk_tasks_pump(struct disk_worker *w)
{
	uint64_t before = w->bytes_under_way;
	bool started = true;

	for (int writing = 0; writing < 2; writing++) {
		started = true;
		while (started && w->bytes_under_way - before < PUMP_BYTES)
			started = pump_round(w, writing);
	}
	tell(w);
	uint32_t used = w->tasks_used;

	end_those_through(w);
	/* What has ended made room for what waits. */
	return (started && room_for_transfer(w)) || w->tasks_used < used;
}

bool disk_tasks_work(struct disk_worker *w)
{
	uint64_t bytes = 0;
	bool more = false;

	for (uint32_t i = 0; i < DISK_TASKS; i++) {
		struct disk_task *task = &w->tasks[i];

		bool worked = false;

		for (; task->job && task->work && !task->error && bytes < WORK_BYTES; worked = true)
			bytes += task->kind->work(task);
		/* What had to be looked at before the first transfer may have it begin. */
		more |= task->job && !task->error && (task->work || (worked && !task->through));
	}
	uint32_t used = w->tasks_used;

	end_those_through(w);
	return more || w->tasks_used < used;
}

void disk_tasks_reap(struct disk_worker *w, uint64_t patience_ns)
{
	struct disk_io *io = ops_of(w)->table->reap(w->queue, patience_ns);

	while (io) {
		transfer_ended(w, io->context);
		io = ops_of(w)->table->reap(w->queue, 0);
	}
	end_those_through(w);
}

int disk_tasks_new(struct disk_worker *w)
{
	w->transfers = calloc(DISK_QUEUE_DEPTH, sizeof(*w->transfers));
	if (!w->transfers)
		return -ENOMEM;
	for (uint32_t i = 0; i < DISK_QUEUE_DEPTH; i++) {
		w->transfers[i].next = w->free_transfers;
		w->free_transfers = &w->transfers[i];
	}
	return 0;
}

void disk_tasks_free(struct disk_worker *w)
{
	for (uint32_t i = 0; i < DISK_TASKS; i++)
		free(w->tasks[i].bounce);
	free(w->transfers);
}
