/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults put into another disk_ops, and the log of what it changed.
 *
 * The log names files by their folder's name and their own: what the directory descriptor is, the kernel says
 * (/proc/self/fd). A file keeps its number as long as it has the name under which it is known; a rename through us takes both
 * along. What changes names behind our back is not seen.
 *
 * Points at which the process dies are operations of rules beyond those of the seam, and are armed as the rules come into force.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/cleanup.h"
#include "store/base/killpoint.h"
#include "store/base/lock.h"
#include "store/disk_files.h"
#include "store/fault_spec.h"

struct fault_ops {
	struct disk_ops ops;
	struct disk_ops *under;
	bool logs;
	_Atomic uint64_t count[DISK_OPS]; /* changes under @lock, to be counted and judged at once */
	struct lock lock;                 /* LOCK_QUEUE; guards what follows */
	struct fault_spec spec;
	uint64_t before[DISK_OPS]; /* @count when the rules were set */
	struct disk_event *event;  /* [events], room for @events_most */
	uint32_t events, events_most;
	char **path;    /* by file number, [files]: where the file is, NULL: it has no name; [0] is unused */
	uint32_t files;
	uint32_t *file; /* by descriptor, [descriptors]; 0: not ours */
	uint32_t descriptors;
};

struct fault_queue {
	struct fault_ops *ops;
	struct disk_ops_queue *under;
	struct disk_io_list started, failed; /* never given to @under */
	uint32_t under_way;
};

struct fault_io {
	struct disk_io below;
	struct disk_io *io; /* the caller's */
	struct fault_verdict verdict;
	struct iovec parts[]; /* when it is shortened */
};

#define X(name, word) [DISK_OPS + KILLPOINT_##name] = word,
static const char *const operations[DISK_OPS + KILLPOINTS] = {
	[DISK_OP_CREATE] = "create",
	[DISK_OP_OPEN] = "open",
	[DISK_OP_ALLOCATE] = "allocate",
	[DISK_OP_TRUNCATE] = "truncate",
	[DISK_OP_SYNC] = "sync",
	[DISK_OP_SYNC_DIR] = "sync_dir",
	[DISK_OP_RENAME] = "rename",
	[DISK_OP_UNLINK] = "unlink",
	[DISK_OP_READ] = "read",
	[DISK_OP_WRITE] = "write",
	KILLPOINT_NAMES(X)
};
#undef X

static struct fault_ops *fault_of(const struct disk_ops *ops)
{
	return (struct fault_ops *)ops;
}

/* ---- rules ------------------------------------------------------------------------------------------------------ */

static bool allowed(const struct fault_rule *rule)
{
	bool any = rule->operation == FAULT_ANY;

	if (!any && rule->operation >= DISK_OPS)
		return rule->effect == FAULT_KILL && rule->when != FAULT_CHANCE;
	switch (rule->effect) {
	case FAULT_FAIL:
	case FAULT_KILL:
	case FAULT_KILL_AFTER:
		return true;
	case FAULT_FLIP:
		return any || rule->operation == DISK_OP_READ;
	case FAULT_SHORT:
		return any || rule->operation == DISK_OP_READ || rule->operation == DISK_OP_WRITE;
	case FAULT_DELAY:
		return false;
	}
	return false;
}

static const struct fault_words words = {
	.operations = operations,
	.count = DISK_OPS + KILLPOINTS,
	.any = true,
	.kills = true,
	.allowed = allowed,
};

int disk_ops_fault_check(const char *spec, struct why *why)
{
	struct fault_spec parsed;

	return fault_spec_parse(&words, spec, &parsed, why);
}

static void arm_points(const struct fault_spec *spec)
{
	for (unsigned i = 0; i < KILLPOINTS; i++)
		killpoint_arm(i, 0, false);
	for (unsigned i = 0; i < spec->rules; i++) {
		const struct fault_rule *rule = &spec->rule[i];

		if (rule->operation != FAULT_ANY && rule->operation >= DISK_OPS)
			killpoint_arm(rule->operation - DISK_OPS, rule->when == FAULT_ALWAYS ? 1 : rule->n, false);
	}
}

int disk_ops_fault_set(struct disk_ops *ops, const char *spec, struct why *why)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_spec parsed;
	int r = fault_spec_parse(&words, spec, &parsed, why);

	if (r)
		return r;
	lock_take(&f->lock);
	f->spec = parsed;
	for (unsigned i = 0; i < DISK_OPS; i++)
		f->before[i] = f->count[i];
	lock_drop(&f->lock);
	arm_points(&parsed);
	return 0;
}

uint64_t disk_ops_fault_count(const struct disk_ops *ops, enum disk_op op)
{
	const struct fault_ops *f = fault_of(ops);
	uint64_t all = 0;

	if (op < DISK_OPS)
		return f->count[op];
	for (unsigned i = 0; i < DISK_OPS; i++)
		all += f->count[i];
	return all;
}

static struct fault_verdict judge(struct fault_ops *f, enum disk_op op)
{
	uint64_t all = 0;

	lock_take(&f->lock);
	f->count[op]++;
	for (unsigned i = 0; i < DISK_OPS; i++)
		all += f->count[i] - f->before[i];
	struct fault_verdict verdict = fault_spec_judge(&f->spec, op, f->count[op] - f->before[op], all);

	lock_drop(&f->lock);
	if (verdict.kill)
		killpoint_die("before", operations[op]);
	return verdict;
}

/* What an operation has returned, unless the process was to die when it was done. */
static int judged(const struct fault_verdict *verdict, enum disk_op op, int r)
{
	if (verdict->kill_after && r >= 0)
		killpoint_die("after", operations[op]);
	return r;
}

/* ---- the log ---------------------------------------------------------------------------------------------------- */

/* @memory with room for @count pieces more than nothing; a log that has no memory is of no use to a test. */
static void *grown(void *memory, uint64_t count, size_t each)
{
	memory = reallocarray(memory, count, each);
	assert(memory);
	return memory;
}

/* The whole path of @name in @dir, malloc'ed; NULL: the log is not kept. */
static char *path_of(const struct fault_ops *f, int dir, const char *name)
{
	char link[64], folder[PATH_MAX], *path = NULL;

	if (!f->logs)
		return NULL;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	ssize_t length = readlink(link, folder, sizeof(folder) - 1);

	folder[length < 0 ? 0 : length] = 0;
	int r = *name ? asprintf(&path, "%s/%s", folder, name) : asprintf(&path, "%s", folder);

	assert(r >= 0);
	return path;
}

/* The last @names names of a path. */
static void shorten(const char *path, unsigned names, char *ret, size_t size)
{
	const char *from = path ? path + strlen(path) : "";

	while (path && from > path) {
		if (from[-1] == '/' && --names == 0)
			break;
		from--;
	}
	snprintf(ret, size, "%s", from);
}

static struct disk_event *new_event(struct fault_ops *f, enum disk_op op, uint32_t file)
{
	lock_assert_held(&f->lock);
	if (f->events == f->events_most) {
		f->events_most = f->events_most ? 2 * f->events_most : 64;
		f->event = grown(f->event, f->events_most, sizeof(*f->event));
	}
	struct disk_event *event = &f->event[f->events++];

	*event = (struct disk_event){.op = op, .file = file};
	shorten(file ? f->path[file] : NULL, 2, event->name, sizeof(event->name));
	return event;
}

static uint32_t find_path(const struct fault_ops *f, const char *path)
{
	lock_assert_held(&f->lock);
	for (uint32_t i = 1; i < f->files; i++)
		if (f->path[i] && !strcmp(f->path[i], path))
			return i;
	return 0;
}

static void forget_path(struct fault_ops *f, uint32_t file)
{
	if (!file)
		return;
	free(f->path[file]);
	f->path[file] = NULL;
}

/* Takes @path. */
static uint32_t add_path(struct fault_ops *f, char *path)
{
	uint32_t number = f->files ? f->files : 1;

	f->path = grown(f->path, number + 1, sizeof(*f->path));
	f->path[0] = NULL;
	f->path[number] = path;
	f->files = number + 1;
	return number;
}

static void set_file(struct fault_ops *f, int fd, uint32_t file)
{
	uint32_t have = f->descriptors;

	if ((uint32_t)fd >= have) {
		f->descriptors = 2 * (uint32_t)fd + 16;
		f->file = grown(f->file, f->descriptors, sizeof(*f->file));
		memset(f->file + have, 0, (f->descriptors - have) * sizeof(*f->file));
	}
	f->file[fd] = file;
}

static void note_open(struct fault_ops *f, int fd, int dir, const char *name, bool created)
{
	cleanup(freep) char *path = path_of(f, dir, name);

	if (!path)
		return;
	lock_take(&f->lock);
	uint32_t file = find_path(f, path);

	if (file && created) { /* the old one went behind our back */
		forget_path(f, file);
		file = 0;
	}
	if (!file)
		file = add_path(f, STEAL(path));
	set_file(f, fd, file);
	if (created)
		new_event(f, DISK_OP_CREATE, file);
	lock_drop(&f->lock);
}

static void note_close(struct fault_ops *f, int fd)
{
	if (!f->logs)
		return;
	lock_take(&f->lock);
	if (fd >= 0 && (uint32_t)fd < f->descriptors)
		f->file[fd] = 0;
	lock_drop(&f->lock);
}

/* @data: malloc'ed, the log's from now on. */
static void note_bytes(struct fault_ops *f, enum disk_op op, int fd, uint64_t offset, uint64_t bytes, void *data)
{
	if (!f->logs)
		return;
	lock_take(&f->lock);
	struct disk_event *event = new_event(f, op, (uint32_t)fd < f->descriptors ? f->file[fd] : 0);

	event->offset = offset;
	event->bytes = bytes;
	event->data = data;
	lock_drop(&f->lock);
}

static void note_write(struct fault_ops *f, const struct disk_io *io)
{
	uint64_t at = 0;

	if (!f->logs)
		return;
	char *data = grown(NULL, io->bytes, 1);

	for (uint32_t i = 0; i < io->part_count; at += io->parts[i++].iov_len)
		memcpy(data + at, io->parts[i].iov_base, io->parts[i].iov_len);
	note_bytes(f, DISK_OP_WRITE, io->fd, io->offset, io->bytes, data);
}

static void note_sync_dir(struct fault_ops *f, int dir)
{
	cleanup(freep) char *path = path_of(f, dir, "");

	if (!path)
		return;
	lock_take(&f->lock);
	struct disk_event *event = new_event(f, DISK_OP_SYNC_DIR, 0);

	shorten(path, 1, event->name, sizeof(event->name));
	lock_drop(&f->lock);
}

static void note_rename(struct fault_ops *f, int from_dir, const char *from, int to_dir, const char *to)
{
	cleanup(freep) char *from_path = path_of(f, from_dir, from);
	cleanup(freep) char *to_path = path_of(f, to_dir, to);

	if (!from_path)
		return;
	lock_take(&f->lock);
	uint32_t file = find_path(f, from_path);
	struct disk_event *event = new_event(f, DISK_OP_RENAME, file);

	shorten(from_path, 2, event->name, sizeof(event->name));
	shorten(to_path, 2, event->to, sizeof(event->to));
	if (strcmp(from_path, to_path)) {
		forget_path(f, find_path(f, to_path));
		forget_path(f, file);
		if (file)
			f->path[file] = STEAL(to_path);
	}
	lock_drop(&f->lock);
}

static void note_unlink(struct fault_ops *f, int dir, const char *name)
{
	cleanup(freep) char *path = path_of(f, dir, name);

	if (!path)
		return;
	lock_take(&f->lock);
	uint32_t file = find_path(f, path);
	struct disk_event *event = new_event(f, DISK_OP_UNLINK, file);

	shorten(path, 2, event->name, sizeof(event->name));
	forget_path(f, file);
	lock_drop(&f->lock);
}

uint32_t disk_ops_fault_log(struct disk_ops *ops, uint32_t first, struct disk_event *ret, uint32_t capacity)
{
	struct fault_ops *f = fault_of(ops);

	lock_take(&f->lock);
	uint32_t there = first < f->events ? f->events - first : 0;
	uint32_t count = there < capacity ? there : capacity;

	if (count)
		memcpy(ret, f->event + first, count * sizeof(*ret));
	lock_drop(&f->lock);
	return count;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static bool fault_direct(const struct disk_ops *ops)
{
	const struct disk_ops *under = fault_of(ops)->under;

	return under->table->direct(under);
}

static int fault_create(struct disk_ops *ops, int dir, const char *name)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_CREATE);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->create(f->under, dir, name);
	if (r >= 0)
		note_open(f, r, dir, name, true);
	return judged(&verdict, DISK_OP_CREATE, r);
}

static int fault_open(struct disk_ops *ops, int dir, const char *name, bool write)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_OPEN);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->open(f->under, dir, name, write);
	if (r >= 0)
		note_open(f, r, dir, name, false);
	return judged(&verdict, DISK_OP_OPEN, r);
}

static void fault_close(struct disk_ops *ops, int fd)
{
	struct fault_ops *f = fault_of(ops);

	note_close(f, fd); /* before: another thread may have the number as soon as it is free */
	f->under->table->close(f->under, fd);
}

static int fault_allocate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_ALLOCATE);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->allocate(f->under, fd, bytes);
	else if (r == -EOPNOTSUPP && f->under->table->truncate(f->under, fd, bytes))
		r = -EIO;
	if (!r || r == -EOPNOTSUPP)
		note_bytes(f, r ? DISK_OP_TRUNCATE : DISK_OP_ALLOCATE, fd, 0, bytes, NULL);
	return judged(&verdict, DISK_OP_ALLOCATE, r);
}

static int fault_truncate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_TRUNCATE);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->truncate(f->under, fd, bytes);
	if (!r)
		note_bytes(f, DISK_OP_TRUNCATE, fd, 0, bytes, NULL);
	return judged(&verdict, DISK_OP_TRUNCATE, r);
}

static int fault_sync(struct disk_ops *ops, int fd)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_SYNC);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->sync(f->under, fd);
	if (!r)
		note_bytes(f, DISK_OP_SYNC, fd, 0, 0, NULL);
	return judged(&verdict, DISK_OP_SYNC, r);
}

static int fault_sync_dir(struct disk_ops *ops, int dir)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_SYNC_DIR);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->sync_dir(f->under, dir);
	if (!r)
		note_sync_dir(f, dir);
	return judged(&verdict, DISK_OP_SYNC_DIR, r);
}

static int fault_rename(struct disk_ops *ops, int from_dir, const char *from, int to_dir, const char *to)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_RENAME);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->rename(f->under, from_dir, from, to_dir, to);
	if (!r)
		note_rename(f, from_dir, from, to_dir, to);
	return judged(&verdict, DISK_OP_RENAME, r);
}

static int fault_unlink(struct disk_ops *ops, int dir, const char *name)
{
	struct fault_ops *f = fault_of(ops);
	struct fault_verdict verdict = judge(f, DISK_OP_UNLINK);
	int r = -verdict.error;

	if (!r)
		r = f->under->table->unlink(f->under, dir, name);
	if (!r)
		note_unlink(f, dir, name);
	return judged(&verdict, DISK_OP_UNLINK, r);
}

/* ---- transfers -------------------------------------------------------------------------------------------------- */

static struct fault_queue *queue_of(struct disk_ops_queue *queue)
{
	return (struct fault_queue *)queue;
}

static const struct disk_ops_table *below(const struct fault_queue *q)
{
	return q->ops->under->table;
}

static int fault_queue_new(struct disk_ops *ops, struct disk_ops_queue **ret, struct why *why)
{
	struct fault_ops *f = fault_of(ops);
	cleanup(freep) struct fault_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return why_set(why, ENOMEM, "no memory for a queue of disk transfers");
	q->ops = f;
	int r = f->under->table->queue_new(f->under, &q->under, why);

	if (!r)
		*ret = (struct disk_ops_queue *)STEAL(q);
	return r;
}

static void fault_queue_free(struct disk_ops_queue **queue)
{
	struct fault_queue *q = queue_of(*queue);

	*queue = NULL;
	assert(q->under_way == 0);
	below(q)->queue_free(&q->under);
	free(q);
}

static int fault_queue_keep(struct disk_ops_queue *queue, int fd)
{
	struct fault_queue *q = queue_of(queue);

	return below(q)->queue_keep(q->under, fd);
}

static int fault_buffer_add(struct disk_ops_queue *queue, void *memory, uint64_t bytes)
{
	struct fault_queue *q = queue_of(queue);

	return below(q)->buffer_add(q->under, memory, bytes);
}

static void fault_buffer_drop(struct disk_ops_queue *queue, int32_t buffer)
{
	struct fault_queue *q = queue_of(queue);

	below(q)->buffer_drop(q->under, buffer);
}

/* Never begun: it ends with its error once it was submitted. */
static int fail_later(struct fault_queue *q, struct disk_io *io, int error)
{
	io->result = -error;
	disk_io_append(&q->started, io);
	return 0;
}

/* The first half of it, in whole blocks. */
static void cut_in_half(struct fault_io *f, const struct disk_io *io)
{
	uint32_t left = io->bytes / 2 / DISK_BLOCK * DISK_BLOCK;

	f->below.bytes = left;
	f->below.parts = f->parts;
	f->below.part_count = 0;
	while (left) {
		struct iovec *part = &f->parts[f->below.part_count];

		*part = io->parts[f->below.part_count++];
		if (part->iov_len > left)
			part->iov_len = left;
		left -= (uint32_t)part->iov_len;
	}
}

static int fault_start(struct disk_ops_queue *queue, struct disk_io *io)
{
	struct fault_queue *q = queue_of(queue);

	if (q->under_way == DISK_QUEUE_DEPTH)
		return -EAGAIN;
	int r = disk_io_begin(io);

	if (r)
		return r;
	struct fault_io *f = malloc(sizeof(*f) + io->part_count * sizeof(f->parts[0]));

	if (!f)
		return -ENOMEM;
	*f = (struct fault_io){.below = *io, .io = io};
	f->below.context = f;
	f->verdict = judge(q->ops, io->write ? DISK_OP_WRITE : DISK_OP_READ);
	if (!f->verdict.error && f->verdict.shorten) {
		cut_in_half(f, io);
		f->verdict.error = f->below.bytes ? 0 : EIO;
	}
	if (f->verdict.error) {
		r = fail_later(q, io, f->verdict.error);
		free(f);
	} else {
		r = below(q)->start(q->under, &f->below);
		if (r)
			free(f);
	}
	q->under_way += r == 0;
	return r;
}

static int fault_submit(struct disk_ops_queue *queue)
{
	struct fault_queue *q = queue_of(queue);
	struct disk_io *io;

	while ((io = disk_io_take(&q->started)))
		disk_io_append(&q->failed, io);
	return below(q)->submit(q->under);
}

static void flip(const struct disk_io *io, uint64_t bit)
{
	uint64_t at = bit / 8 % io->bytes;
	uint32_t i = 0;

	while (at >= io->parts[i].iov_len)
		at -= io->parts[i++].iov_len;
	((uint8_t *)io->parts[i].iov_base)[at] ^= (uint8_t)(1u << bit % 8);
}

static struct disk_io *ended(struct fault_queue *q, struct disk_io *under)
{
	struct fault_io *f = under->context;
	struct disk_io *io = f->io;

	io->result = under->result;
	io->done = under->done;
	if (!io->result && io->write)
		note_write(q->ops, under);
	if (!io->result && !io->write && f->verdict.flip)
		flip(under, f->verdict.flip_bit);
	if (!io->result && f->verdict.shorten)
		io->result = -EIO;
	judged(&f->verdict, io->write ? DISK_OP_WRITE : DISK_OP_READ, io->result);
	free(f);
	return io;
}

static struct disk_io *fault_reap(struct disk_ops_queue *queue, uint64_t patience_ns)
{
	struct fault_queue *q = queue_of(queue);
	struct disk_io *io = disk_io_take(&q->failed);

	if (!io) {
		struct disk_io *under = below(q)->reap(q->under, patience_ns);

		io = under ? ended(q, under) : NULL;
	}
	q->under_way -= io != NULL;
	return io;
}

static void fault_wake(struct disk_ops_queue *queue)
{
	struct fault_queue *q = queue_of(queue);

	below(q)->wake(q->under);
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static void fault_free(struct disk_ops **ops)
{
	struct fault_ops *f = fault_of(*ops);

	*ops = NULL;
	f->under->table->free(&f->under);
	for (uint32_t i = 0; i < f->events; i++)
		free(f->event[i].data);
	for (uint32_t i = 1; i < f->files; i++)
		free(f->path[i]);
	free(f->event);
	free(f->path);
	free(f->file);
	lock_destroy(&f->lock);
	free(f);
}

static const struct disk_ops_table table = {
	.name = "fault",
	.free = fault_free,
	.direct = fault_direct,
	.create = fault_create,
	.open = fault_open,
	.close = fault_close,
	.allocate = fault_allocate,
	.truncate = fault_truncate,
	.sync = fault_sync,
	.sync_dir = fault_sync_dir,
	.rename = fault_rename,
	.unlink = fault_unlink,
	.queue_new = fault_queue_new,
	.queue_free = fault_queue_free,
	.queue_keep = fault_queue_keep,
	.buffer_add = fault_buffer_add,
	.buffer_drop = fault_buffer_drop,
	.start = fault_start,
	.submit = fault_submit,
	.reap = fault_reap,
	.wake = fault_wake,
};

int disk_ops_fault_new(struct disk_ops *under, const char *spec, bool log, struct disk_ops **ret, struct why *why)
{
	cleanup(freep) struct fault_ops *f = calloc(1, sizeof(*f));

	if (!f)
		return why_set(why, ENOMEM, "no memory for faults of a disk");
	int r = fault_spec_parse(&words, spec, &f->spec, why);

	if (r)
		return r;
	f->ops.table = &table;
	f->under = under;
	f->logs = log;
	arm_points(&f->spec);
	lock_init(&f->lock, LOCK_QUEUE);
	*ret = &STEAL(f)->ops;
	return 0;
}
