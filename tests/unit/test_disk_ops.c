/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam to the disk: the same tests for each of its makes, then the faults and the log.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/disk_files.h"
#include "store/segment.h"

#define KIB4 4096u
#define MIB (1u << 20)
#define AREA (40u * MIB)
#define MINUTE_NS (60ull * 1000000000u)

enum make {
	PLAIN,
	URING,
	FAULT_PLAIN,
	FAULT_URING
};

static enum make make;
static char folder[64];
static int dir;
static struct segment *segment;
static char *area; /* AREA bytes of a sealed memory file */
static uint64_t seed;

static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void fill(char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t r = next_random();

		memcpy(at + i, &r, 8);
	}
}

static struct disk_ops *new_ops(enum make which, const char *spec, bool log)
{
	bool uring = which == URING || which == FAULT_URING;
	struct disk_ops *ops = NULL, *fault = NULL;
	struct why why = WHY_INIT;

	if (!uring)
		ops = disk_ops_plain_new();
	else if (disk_ops_uring_new(&ops, &why))
		fail_msg("%s", why.text);
	assert_non_null(ops);
	if (which == PLAIN || which == URING)
		return ops;
	if (disk_ops_fault_new(ops, spec, log, &fault, &why))
		fail_msg("'%s': %s", spec, why.text);
	return fault;
}

static struct disk_ops_queue *new_queue(struct disk_ops *ops)
{
	struct disk_ops_queue *q = NULL;
	struct why why = WHY_INIT;

	if (ops->table->queue_new(ops, &q, &why))
		fail_msg("%s", why.text);
	return q;
}

static void free_both(struct disk_ops **ops, struct disk_ops_queue **q)
{
	(*ops)->table->queue_free(q);
	assert_null(*q);
	(*ops)->table->free(ops);
	assert_null(*ops);
}

/* One transfer from beginning to end: its result. */
static int transfer(struct disk_ops *ops, struct disk_ops_queue *q, struct disk_io *io)
{
	io->context = io;
	io->result = 1;
	int r = ops->table->start(q, io);

	if (r)
		return r;
	assert_null(ops->table->reap(q, 0)); /* nobody was told yet */
	assert_int_equal(ops->table->submit(q), 0);
	assert_ptr_equal(ops->table->reap(q, MINUTE_NS), io);
	assert_ptr_equal(io->context, io);
	assert_null(ops->table->reap(q, 0));
	return io->result;
}

static int move(struct disk_ops *ops, struct disk_ops_queue *q, bool write, int fd, uint64_t offset, char *at, uint32_t bytes,
	int32_t buffer)
{
	struct iovec part = {.iov_base = at, .iov_len = bytes};
	struct disk_io io = {.write = write, .fd = fd, .offset = offset, .bytes = bytes, .parts = &part, .part_count = 1,
		.buffer = buffer};

	return transfer(ops, q, &io);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void test_files(void **state)
{
	struct disk_ops *ops = new_ops(make, "", true);
	const struct disk_ops_table *t = ops->table;
	struct stat st;

	(void)state;
	int fd = t->create(ops, dir, "a");

	assert_true(fd >= 0);
	assert_int_equal((fcntl(fd, F_GETFL) & O_DIRECT) != 0, t->direct(ops));
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(t->create(ops, dir, "a"), -EEXIST);
	assert_int_equal(t->open(ops, dir, "b", true), -ENOENT);
	assert_int_equal(symlinkat("a", dir, "link"), 0);
	assert_int_equal(t->open(ops, dir, "link", true), -ELOOP);
	assert_int_equal(t->unlink(ops, dir, "link"), 0);
	int r = t->allocate(ops, fd, 3 * MIB);

	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 3 * MIB);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	if (r == 0)
		assert_true((uint64_t)st.st_blocks * 512 >= 3 * MIB);
	else
		assert_int_equal(r, -EOPNOTSUPP);
	assert_int_equal(t->truncate(ops, fd, MIB), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, MIB);
	assert_int_equal(t->sync(ops, fd), 0);
	assert_int_equal(t->rename(ops, dir, "a", dir, "b"), 0);
	assert_int_equal(t->rename(ops, dir, "a", dir, "b"), -ENOENT);
	assert_int_equal(t->sync_dir(ops, dir), 0);
	t->close(ops, fd);
	fd = t->open(ops, dir, "b", false);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(t->truncate(ops, fd, 0), -EINVAL);
	t->close(ops, fd);
	assert_int_equal(t->sync(ops, -1), -EBADF);
	assert_int_equal(t->unlink(ops, dir, "b"), 0);
	assert_int_equal(t->unlink(ops, dir, "b"), -ENOENT);
	t->free(&ops);
}

/* ---- one transfer ----------------------------------------------------------------------------------------------- */

static void test_contents(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	struct iovec part[DISK_IO_VECTORS];

	(void)state;
	int fd = ops->table->create(ops, dir, "contents");

	/* 512 pieces from all over the place, every other page */
	fill(area, 4 * MIB);
	for (uint32_t i = 0; i < DISK_IO_VECTORS; i++)
		part[i] = (struct iovec){.iov_base = area + (uint64_t)(i * 7 % 512) * 2 * KIB4, .iov_len = KIB4};
	struct disk_io io = {.write = true, .fd = fd, .offset = MIB, .bytes = 2 * MIB, .parts = part,
		.part_count = DISK_IO_VECTORS, .buffer = -1};

	assert_int_equal(transfer(ops, q, &io), 0);
	assert_int_equal(move(ops, q, false, fd, MIB, area + 8 * MIB, 2 * MIB, -1), 0);
	for (uint32_t i = 0; i < DISK_IO_VECTORS; i++)
		assert_memory_equal(area + 8 * MIB + i * KIB4, part[i].iov_base, KIB4);
	/* and back into pieces */
	for (uint32_t i = 0; i < DISK_IO_VECTORS; i++)
		part[i].iov_base = area + 16 * MIB + (uint64_t)(i * 5 % 512) * 2 * KIB4;
	io.write = false;
	assert_int_equal(transfer(ops, q, &io), 0);
	for (uint32_t i = 0; i < DISK_IO_VECTORS; i++)
		assert_memory_equal(area + 8 * MIB + i * KIB4, part[i].iov_base, KIB4);
	/* what was never written reads as zeroes */
	assert_int_equal(move(ops, q, false, fd, 0, area, MIB, -1), 0);
	for (uint32_t i = 0; i < MIB; i++)
		assert_int_equal(area[i], 0);
	/* the largest one */
	fill(area, DISK_IO_MOST);
	assert_int_equal(move(ops, q, true, fd, KIB4, area, DISK_IO_MOST, -1), 0);
	assert_int_equal(move(ops, q, false, fd, KIB4, area + 8 * MIB, DISK_IO_MOST, -1), 0);
	assert_memory_equal(area, area + 8 * MIB, DISK_IO_MOST);
	ops->table->close(ops, fd);
	free_both(&ops, &q);
}

static void test_registered_memory(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	bool uring = make == URING || make == FAULT_URING;

	(void)state;
	int fd = ops->table->create(ops, dir, "registered");
	int a = ops->table->buffer_add(q, area, 8 * MIB);
	int b = ops->table->buffer_add(q, area + 8 * MIB, 8 * MIB);

	if (!uring) {
		assert_int_equal(a, -EOPNOTSUPP);
		assert_int_equal(move(ops, q, true, fd, 0, area, KIB4, 0), -EINVAL);
		ops->table->close(ops, fd);
		free_both(&ops, &q);
		return;
	}
	assert_true(a >= 0 && b >= 0 && a != b);
	fill(area, 8 * MIB);
	assert_int_equal(move(ops, q, true, fd, 0, area + 3 * KIB4, 4 * MIB + 512 * 1024, a), 0);
	assert_int_equal(move(ops, q, false, fd, 0, area + 8 * MIB, 4 * MIB + 512 * 1024, b), 0);
	assert_memory_equal(area + 3 * KIB4, area + 8 * MIB, 4 * MIB + 512 * 1024);
	/* outside of the piece, in none, in two parts */
	assert_int_equal(move(ops, q, true, fd, 0, area + 8 * MIB - KIB4, 2 * KIB4, a), -EINVAL);
	assert_int_equal(move(ops, q, true, fd, 0, area, KIB4, b), -EINVAL);
	assert_int_equal(move(ops, q, true, fd, 0, area, KIB4, DISK_BUFFERS), -EINVAL);
	ops->table->buffer_drop(q, a);
	assert_int_equal(move(ops, q, true, fd, 0, area, KIB4, a), -EINVAL);
	/* as many as there may be */
	assert_int_equal(ops->table->buffer_add(q, area, 0), -EINVAL);
	assert_int_equal(ops->table->buffer_add(q, area, (1ull << 30) + KIB4), -EINVAL);
	for (uint32_t i = 1; i < DISK_BUFFERS; i++)
		assert_in_range(ops->table->buffer_add(q, area + i * KIB4, KIB4), 0, DISK_BUFFERS - 1);
	assert_int_equal(ops->table->buffer_add(q, area, KIB4), -ENOSPC);
	ops->table->buffer_drop(q, b);
	ops->table->buffer_drop(q, -ENOMEM);
	assert_int_equal(ops->table->buffer_add(q, area, 8 * MIB), b);
	assert_int_equal(move(ops, q, false, fd, 0, area, MIB, b), 0);
	assert_memory_equal(area, area + 8 * MIB, MIB);
	ops->table->close(ops, fd);
	free_both(&ops, &q);
}

static void test_what_is_no_transfer(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	struct iovec part[2] = {{.iov_base = area, .iov_len = KIB4}, {.iov_base = area + KIB4, .iov_len = KIB4}};
	const struct disk_io good = {.fd = dir, .bytes = KIB4, .parts = part, .part_count = 1, .buffer = -1};
	struct disk_io bad[] = {good, good, good, good, good, good, good, good};

	(void)state;
	bad[0].offset = 512;
	bad[1].bytes = 2 * KIB4;
	bad[2].part_count = 0;
	bad[3].part_count = DISK_IO_VECTORS + 1;
	bad[4].part_count = 2;
	bad[5].bytes = 0;
	bad[6].offset = UINT64_MAX - KIB4 + 1;
	bad[7].part_count = 2;
	bad[7].bytes = 2 * KIB4;
	bad[7].buffer = 0;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(transfer(ops, q, &bad[i]), -EINVAL);
	struct disk_io io = good;

	part[0].iov_len = io.bytes = 512;
	assert_int_equal(transfer(ops, q, &io), -EINVAL);
	part[0] = (struct iovec){.iov_base = area + 512, .iov_len = KIB4};
	io = good;
	assert_int_equal(transfer(ops, q, &io), -EINVAL);
	part[0] = (struct iovec){.iov_base = area, .iov_len = DISK_IO_MOST + KIB4};
	io.bytes = DISK_IO_MOST + KIB4;
	assert_int_equal(transfer(ops, q, &io), -EINVAL);
	free_both(&ops, &q);
}

static void test_end_of_file(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);

	(void)state;
	int fd = ops->table->create(ops, dir, "end");

	assert_int_equal(move(ops, q, false, fd, 0, area, KIB4, -1), -ENODATA);
	fill(area, 3 * KIB4);
	assert_int_equal(move(ops, q, true, fd, 0, area, 3 * KIB4, -1), 0);
	assert_int_equal(move(ops, q, false, fd, 0, area + MIB, 3 * KIB4, -1), 0);
	assert_int_equal(move(ops, q, false, fd, KIB4, area + MIB, 3 * KIB4, -1), -ENODATA);
	assert_memory_equal(area + MIB, area + KIB4, 2 * KIB4); /* what there is of it was read */
	assert_int_equal(move(ops, q, false, fd, MIB, area + MIB, KIB4, -1), -ENODATA);
	/* in the middle of a block */
	assert_int_equal(ops->table->truncate(ops, fd, 2 * KIB4 + 1000), 0);
	assert_int_equal(move(ops, q, false, fd, 0, area + MIB, 3 * KIB4, -1), -ENODATA);
	assert_int_equal(move(ops, q, false, fd, 2 * KIB4, area + MIB, KIB4, -1), -ENODATA);
	assert_int_equal(move(ops, q, false, fd, 0, area + MIB, 2 * KIB4, -1), 0);
	ops->table->close(ops, fd);
	free_both(&ops, &q);
}

static void test_errors(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	char *nothing = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(nothing, MAP_FAILED);
	int fd = ops->table->create(ops, dir, "errors");

	assert_int_equal(move(ops, q, true, fd, 0, area, MIB, -1), 0);
	assert_int_equal(move(ops, q, true, fd, 0, nothing, MIB, -1), -EFAULT);
	assert_int_equal(move(ops, q, false, fd, 0, nothing, MIB, -1), -EFAULT);
	ops->table->close(ops, fd);
	fd = ops->table->open(ops, dir, "errors", false);
	assert_int_equal(move(ops, q, true, fd, 0, area, MIB, -1), -EBADF);
	assert_int_equal(move(ops, q, false, fd, 0, area, MIB, -1), 0);
	ops->table->close(ops, fd);
	assert_int_equal(move(ops, q, false, 9999, 0, area, KIB4, -1), -EBADF);
	assert_int_equal(move(ops, q, false, dir, 0, area, KIB4, -1), -EISDIR);
	munmap(nothing, MIB);
	free_both(&ops, &q);
}

/* What a system call moved, and where it goes on: nothing makes the kernel move too little when we want it. */
static void test_short_transfers(void **state)
{
	struct iovec part[3] = {{area, KIB4}, {area + MIB, 2 * KIB4}, {area + 2 * MIB, KIB4}}, rest;
	struct disk_io io = {.bytes = 4 * KIB4, .parts = part, .part_count = 3, .buffer = -1};
	const struct iovec *parts;

	(void)state;
	assert_int_equal(disk_io_begin(&io), 0);
	assert_int_equal(disk_io_rest(&io, &rest, &parts), 3);
	assert_ptr_equal(parts, part);
	assert_false(disk_io_moved(&io, -EINTR));
	assert_false(disk_io_moved(&io, -EAGAIN));
	assert_false(disk_io_moved(&io, 2 * KIB4));
	assert_int_equal(disk_io_rest(&io, &rest, &parts), 1);
	assert_ptr_equal(parts[0].iov_base, area + MIB + KIB4);
	assert_int_equal(parts[0].iov_len, KIB4);
	assert_false(disk_io_moved(&io, KIB4));
	assert_int_equal(disk_io_rest(&io, &rest, &parts), 1);
	assert_ptr_equal(parts[0].iov_base, area + 2 * MIB);
	assert_true(disk_io_moved(&io, KIB4));
	assert_int_equal(io.result, 0);
	assert_int_equal(io.done, io.bytes);

	/* a read that ends within a block has come to the end; a write is tried again from the block's beginning */
	assert_int_equal(disk_io_begin(&io), 0);
	assert_true(disk_io_moved(&io, KIB4 + 100));
	assert_int_equal(io.result, -ENODATA);
	io.write = true;
	assert_int_equal(disk_io_begin(&io), 0);
	assert_false(disk_io_moved(&io, KIB4 + 512));
	assert_int_equal(io.done, KIB4);
	assert_true(disk_io_moved(&io, 512));
	assert_int_equal(io.result, -ENOSPC);
	assert_int_equal(disk_io_begin(&io), 0);
	assert_true(disk_io_moved(&io, 0));
	assert_int_equal(io.result, -ENOSPC);
	assert_int_equal(disk_io_begin(&io), 0);
	assert_true(disk_io_moved(&io, -EDQUOT));
	assert_int_equal(io.result, -EDQUOT);
	/* nothing is tried for ever */
	assert_int_equal(disk_io_begin(&io), 0);
	int tries = 1;

	while (!disk_io_moved(&io, -EAGAIN))
		tries++;
	assert_in_range(tries, 100, 10000);
	assert_int_equal(io.result, -EAGAIN);
}

/* ---- many at once ----------------------------------------------------------------------------------------------- */

static void test_depth(void **state)
{
	static struct disk_io io[DISK_QUEUE_DEPTH + 1];
	static struct iovec part[DISK_QUEUE_DEPTH + 1];
	static int seen[DISK_QUEUE_DEPTH];
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);

	(void)state;
	memset(seen, 0, sizeof(seen));
	int fd = ops->table->create(ops, dir, "depth");

	for (uint32_t round = 0; round < 2; round++) {
		if (!round)
			fill(area, DISK_QUEUE_DEPTH * 16 * KIB4);
		for (uint32_t i = 0; i <= DISK_QUEUE_DEPTH; i++) {
			uint32_t at = i * 101 % DISK_QUEUE_DEPTH * 16 * KIB4;

			part[i] = (struct iovec){.iov_base = area + at + round * 16 * MIB, .iov_len = 16 * KIB4};
			io[i] = (struct disk_io){.write = !round, .fd = fd, .offset = at, .bytes = 16 * KIB4, .parts = &part[i],
				.part_count = 1, .buffer = -1, .context = &seen[i % DISK_QUEUE_DEPTH]};
			int r = ops->table->start(q, &io[i]);

			assert_int_equal(r, i < DISK_QUEUE_DEPTH ? 0 : -EAGAIN);
			if (i == DISK_QUEUE_DEPTH / 2)
				assert_int_equal(ops->table->submit(q), 0);
		}
		assert_int_equal(ops->table->submit(q), 0);
		for (uint32_t i = 0; i < DISK_QUEUE_DEPTH; i++) {
			struct disk_io *ended = ops->table->reap(q, MINUTE_NS);

			assert_non_null(ended);
			assert_int_equal(ended->result, 0);
			++*(int *)ended->context;
		}
		assert_null(ops->table->reap(q, 0));
		for (uint32_t i = 0; i < DISK_QUEUE_DEPTH; i++)
			assert_int_equal(seen[i], round + 1);
	}
	assert_memory_equal(area, area + 16 * MIB, DISK_QUEUE_DEPTH * 16 * KIB4);
	ops->table->close(ops, fd);
	free_both(&ops, &q);
}

/* Blocks are written and read in random order, each by at most one transfer at a time; a model knows what is in each. */
static void test_random(void **state)
{
	enum { BLOCKS = 128, ROUNDS = 3000 };
	static struct disk_io io[BLOCKS];
	static struct iovec part[BLOCKS];
	static uint64_t model[BLOCKS];
	static bool busy[BLOCKS];
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	uint32_t under_way = 0;

	(void)state;
	memset(model, 0, sizeof(model));
	int fd = ops->table->create(ops, dir, "random");
	int buffer = ops->table->buffer_add(q, area, BLOCKS * 2 * KIB4);

	assert_int_equal(ops->table->truncate(ops, fd, BLOCKS * 2 * KIB4), 0);
	for (uint32_t round = 0; round < ROUNDS || under_way; round++) {
		uint32_t b = (uint32_t)(next_random() % BLOCKS);

		if (round < ROUNDS && !busy[b]) {
			uint64_t *at = (uint64_t *)(area + b * 2 * KIB4);

			part[b] = (struct iovec){.iov_base = at, .iov_len = 2 * KIB4};
			io[b] = (struct disk_io){.write = next_random() % 2, .fd = fd, .offset = b * 2 * KIB4, .bytes = 2 * KIB4,
				.parts = &part[b], .part_count = 1, .buffer = next_random() % 2 ? buffer : -1};
			if (io[b].buffer < 0)
				io[b].buffer = -1;
			if (io[b].write)
				model[b] = at[0] = at[1023] = next_random();
			else
				at[0] = at[1023] = ~model[b];
			assert_int_equal(ops->table->start(q, &io[b]), 0);
			busy[b] = true;
			under_way++;
		}
		if (round % 7 == 0 || round >= ROUNDS)
			assert_int_equal(ops->table->submit(q), 0);
		struct disk_io *ended = ops->table->reap(q, round < ROUNDS ? 0 : MINUTE_NS);

		if (ended) {
			b = (uint32_t)(ended - io);
			assert_int_equal(ended->result, 0);
			assert_int_equal(((uint64_t *)part[b].iov_base)[0], model[b]);
			assert_int_equal(((uint64_t *)part[b].iov_base)[1023], model[b]);
			busy[b] = false;
			under_way--;
		}
	}
	ops->table->close(ops, fd);
	free_both(&ops, &q);
}

/* ---- waiting and waking ----------------------------------------------------------------------------------------- */

static void test_patience(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	struct iovec part = {.iov_base = area, .iov_len = KIB4};
	struct disk_io io = {.write = true, .bytes = KIB4, .parts = &part, .part_count = 1, .buffer = -1}, *ended;
	uint64_t since = clock_now_ns();

	(void)state;
	assert_null(ops->table->reap(q, 0));
	assert_null(ops->table->reap(q, 3000000));
	assert_true(clock_now_ns() - since >= 3000000);
	/* A wake that nobody waits for is kept, several are one, and what does not wait does not use it up. */
	ops->table->wake(q);
	ops->table->wake(q);
	assert_null(ops->table->reap(q, 0));
	io.fd = ops->table->create(ops, dir, "patience");
	assert_int_equal(ops->table->start(q, &io), 0);
	assert_int_equal(ops->table->submit(q), 0);
	while (!(ended = ops->table->reap(q, 0)))
		;
	assert_ptr_equal(ended, &io);
	since = clock_now_ns();
	assert_null(ops->table->reap(q, UINT64_MAX));
	assert_true(clock_now_ns() - since < MINUTE_NS / 2);
	since = clock_now_ns();
	assert_null(ops->table->reap(q, 3000000));
	assert_true(clock_now_ns() - since >= 3000000);
	ops->table->close(ops, io.fd);
	free_both(&ops, &q);
}

struct pair {
	struct disk_ops *ops;
	struct disk_ops_queue *q;
	_Atomic uint64_t asked, answered;
	uint64_t rounds;
	uint64_t cargo; /* @asked's writer's, handed over by the wake */
	int fd;
	_Atomic uint64_t moved;
};

static void *answer(void *argument)
{
	struct pair *p = argument;
	uint64_t answered = 0;

	while (answered < p->rounds) {
		uint64_t since = clock_now_ns();

		assert_null(p->ops->table->reap(p->q, MINUTE_NS));
		assert_true(clock_now_ns() - since < MINUTE_NS / 2);
		if (atomic_load(&p->asked) == answered)
			continue; /* the wake of a question that was seen already */
		assert_int_equal(p->cargo, 3 * ++answered);
		atomic_store(&p->answered, answered);
	}
	return NULL;
}

/* Made here, used there, freed here. Were a wake lost, the answer would take a minute. */
static void test_wake(void **state)
{
	struct pair p = {.ops = new_ops(make, "", false), .rounds = 2000};
	pthread_t thread;

	(void)state;
	p.q = new_queue(p.ops);
	assert_int_equal(pthread_create(&thread, NULL, answer, &p), 0);
	for (uint64_t i = 1; i <= p.rounds; i++) {
		p.cargo = 3 * i;
		atomic_store(&p.asked, i);
		p.ops->table->wake(p.q);
		while (atomic_load(&p.answered) < i)
			sched_yield();
	}
	pthread_join(thread, NULL);
	free_both(&p.ops, &p.q);
}

/* Transfers and wakes at once: moves a block for each question, and waits for both with one call. */
static void *work(void *argument)
{
	struct pair *p = argument;
	struct iovec part = {.iov_base = area, .iov_len = KIB4};
	struct disk_io io = {.write = true, .fd = p->fd, .bytes = KIB4, .parts = &part, .part_count = 1, .buffer = -1};
	bool busy = false;

	while (atomic_load(&p->moved) < p->rounds) {
		if (!busy && atomic_load(&p->asked) > atomic_load(&p->moved)) {
			assert_int_equal(p->ops->table->start(p->q, &io), 0);
			assert_int_equal(p->ops->table->submit(p->q), 0);
			busy = true;
		}
		uint64_t since = clock_now_ns();
		struct disk_io *ended = p->ops->table->reap(p->q, MINUTE_NS);

		assert_true(clock_now_ns() - since < MINUTE_NS / 2);
		if (ended) {
			assert_ptr_equal(ended, &io);
			assert_int_equal(io.result, 0);
			busy = false;
			p->moved++;
			p->ops->table->wake(p->q); /* to look again */
		}
	}
	return NULL;
}

static void *ask(void *argument)
{
	struct pair *p = argument;

	for (uint64_t i = 0; i < p->rounds / 2; i++) {
		p->asked++;
		p->ops->table->wake(p->q);
	}
	return NULL;
}

static void test_wake_and_work(void **state)
{
	struct pair p = {.ops = new_ops(make, "", false), .rounds = 1000};
	pthread_t worker, asker[2];

	(void)state;
	p.q = new_queue(p.ops);
	p.fd = p.ops->table->create(p.ops, dir, "work");
	assert_int_equal(pthread_create(&worker, NULL, work, &p), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&asker[i], NULL, ask, &p), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(asker[i], NULL);
	pthread_join(worker, NULL);
	assert_int_equal(p.moved, p.rounds);
	p.ops->table->close(p.ops, p.fd);
	free_both(&p.ops, &p.q);
}

/* ---- little memory to lock -------------------------------------------------------------------------------------- */

/* In a process that may lock 64 KiB: a large piece is refused, and transfers do without. Returns an exit status. */
static int with_little_memory(int fd)
{
	struct rlimit little = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
	struct iovec part = {.iov_base = area, .iov_len = MIB};
	struct disk_io io = {.write = true, .fd = fd, .bytes = MIB, .parts = &part, .part_count = 1, .buffer = -1};
	struct disk_ops *ops = NULL;
	struct disk_ops_queue *q = NULL;

	if (setrlimit(RLIMIT_MEMLOCK, &little) || (geteuid() == 0 && setresuid(65534, 65534, 65534)))
		return 2;
	if (disk_ops_uring_new(&ops, NULL) || ops->table->queue_new(ops, &q, NULL))
		return 77; /* old kernels count the ring too */
	if (ops->table->buffer_add(q, area, 16 * MIB) != -ENOMEM)
		return 3;
	if (ops->table->start(q, &io) || ops->table->submit(q) || ops->table->reap(q, MINUTE_NS) != &io || io.result)
		return 4;
	free_both(&ops, &q);
	return 0;
}

static void test_little_memory(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	int status;

	(void)state;
	if (make != URING) {
		ops->table->free(&ops);
		return;
	}
	int fd = ops->table->create(ops, dir, "little");
	pid_t child = fork();

	if (child == 0)
		_exit(with_little_memory(fd));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) != 77)
		assert_int_equal(WEXITSTATUS(status), 0);
	ops->table->close(ops, fd);
	ops->table->free(&ops);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static void test_specification(void **state)
{
	static const char *const good[] = {"", "seed=7", "any:EIO", "any:flip:3", "sync_dir:EROFS:=2,read:flip:1/3,seed=9",
		"write:short", "create:EMFILE", "any:short:1/2", "write:kill", "any:kill_after:1/9", "demote:kill", "demote:kill:=3"};
	static const char *const bad[] = {"reed:EIO", "read", "read:EWHAT", "write:flip", "sync:short", "read:delay:5ms",
		"any", "read:EIO:0", "READ:EIO", "seed=x", "read:killed", "demote", "demote:EIO", "demote:kill_after", "demote:kill:1/2"};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(disk_ops_fault_check(good[i], NULL), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct disk_ops *under = disk_ops_plain_new(), *ops = NULL;
		struct why why = WHY_INIT;
		char spec[64];

		snprintf(spec, sizeof(spec), "read:EIO:1,%s,write:EIO", bad[i]);
		if (disk_ops_fault_new(under, spec, false, &ops, &why) != -EINVAL)
			fail_msg("'%s' was understood", bad[i]);
		assert_null(ops);
		snprintf(spec, sizeof(spec), "'%s'", bad[i]);
		if (!strstr(why.text, spec))
			fail_msg("'%s' does not name %s", why.text, spec);
		under->table->free(&under); /* still ours */
	}
}

static void test_faults_of_files(void **state)
{
	struct disk_ops *ops = new_ops(make, "create:EMFILE:=2,sync:EIO:2,rename:ENOSPC,allocate:EOPNOTSUPP", true);
	const struct disk_ops_table *t = ops->table;
	struct stat st;

	(void)state;
	int fd = t->create(ops, dir, "f1");

	assert_true(fd >= 0);
	assert_int_equal(t->create(ops, dir, "f2"), -EMFILE);
	assert_int_equal(t->open(ops, dir, "f2", true), -ENOENT); /* the one below was not asked */
	assert_int_equal(t->sync(ops, fd), 0);
	assert_int_equal(t->sync(ops, fd), -EIO);
	assert_int_equal(t->sync(ops, fd), -EIO);
	assert_int_equal(t->rename(ops, dir, "f1", dir, "f3"), -ENOSPC);
	assert_int_equal(t->allocate(ops, fd, MIB), -EOPNOTSUPP);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, MIB);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_CREATE), 2);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_SYNC), 3);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_WRITE), 0);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OPS), 8);
	/* Other rules: counted from there on, as are all operations together. */
	assert_int_equal(disk_ops_fault_set(ops, "sync:what", NULL), -EINVAL);
	assert_int_equal(t->sync(ops, fd), -EIO);
	assert_int_equal(disk_ops_fault_set(ops, "sync:EROFS:=2,any:ENODEV:=4", NULL), 0);
	assert_int_equal(t->sync(ops, fd), 0);
	assert_int_equal(t->sync(ops, fd), -EROFS);
	assert_int_equal(t->sync_dir(ops, dir), 0);
	assert_int_equal(t->unlink(ops, dir, "f1"), -ENODEV);
	assert_int_equal(t->unlink(ops, dir, "f1"), 0);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_SYNC), 6);
	t->close(ops, fd);
	t->free(&ops);
}

/* Runs @spec over a file being created, renamed twice and written; how many of these were done before it died, 4: it did not. */
static unsigned done_before_death(const char *spec)
{
	_Atomic unsigned *done = mmap(NULL, sizeof(*done), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	assert_true(done != MAP_FAILED);
	pid_t child = fork();

	if (child == 0) {
		struct disk_ops *ops = new_ops(make, spec, false);
		const struct disk_ops_table *t = ops->table;
		int fd = t->create(ops, dir, "dying");

		*done = 1;
		t->rename(ops, dir, "dying", dir, "dead");
		*done = 2;
		t->rename(ops, dir, "dead", dir, "dying");
		*done = 3;
		killpoint(KILLPOINT_DEMOTE);
		t->truncate(ops, fd, 4096);
		*done = 4;
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	unsigned n = *done;

	munmap(done, sizeof(*done));
	if (n < 4)
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return n;
}

static bool is_there(const char *name)
{
	return !unlinkat(dir, name, 0);
}

static void test_deaths(void **state)
{
	(void)state;
	assert_int_equal(done_before_death("create:kill"), 0);
	assert_false(is_there("dying"));
	assert_int_equal(done_before_death("create:kill_after"), 0);
	assert_true(is_there("dying"));
	assert_int_equal(done_before_death("rename:kill:2"), 2);
	assert_true(is_there("dead"));
	assert_int_equal(done_before_death("rename:kill_after:2"), 2);
	assert_true(is_there("dying"));
	assert_int_equal(done_before_death("any:kill:4"), 3);
	assert_true(is_there("dying"));
	assert_int_equal(done_before_death("demote:kill"), 3);
	assert_true(is_there("dying"));
	assert_int_equal(done_before_death("demote:kill:2,adopt:kill,rename:kill:3,truncate:kill_after:2"), 4);
	assert_true(is_there("dying"));
}

static int bits_apart(const char *a, const char *b, size_t bytes)
{
	int n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += __builtin_popcount((unsigned char)(a[i] ^ b[i]));
	return n;
}

static void test_faults_of_transfers(void **state)
{
	struct disk_ops *ops = new_ops(make, "write:EIO:=2,write:short:=3,read:flip:=2,read:short:=3,read:ENODEV:=4", false);
	struct disk_ops_queue *q = new_queue(ops);
	char *in = area + MIB;

	(void)state;
	int fd = ops->table->create(ops, dir, "faulty");

	fill(area, 8 * KIB4);
	assert_int_equal(move(ops, q, true, fd, 0, area, 8 * KIB4, -1), 0);
	assert_int_equal(move(ops, q, true, fd, 8 * KIB4, area, 8 * KIB4, -1), -EIO);
	assert_int_equal(move(ops, q, false, fd, 0, in, 8 * KIB4, -1), 0);
	assert_memory_equal(in, area, 8 * KIB4);
	assert_int_equal(move(ops, q, false, fd, 0, in, 8 * KIB4, -1), 0);
	assert_int_equal(bits_apart(in, area, 8 * KIB4), 1);
	memset(in, 0, 8 * KIB4);
	assert_int_equal(move(ops, q, false, fd, 0, in, 8 * KIB4, -1), -EIO);
	assert_memory_equal(in, area, 4 * KIB4);
	for (uint32_t i = 4 * KIB4; i < 8 * KIB4; i++)
		assert_int_equal(in[i], 0);
	assert_int_equal(move(ops, q, false, fd, 0, in, 8 * KIB4, -1), -ENODEV);
	/* the third write moves half of it, through parts */
	struct iovec part[3] = {{area, KIB4}, {area + 2 * KIB4, 4 * KIB4}, {area + 7 * KIB4, KIB4}};
	struct disk_io io = {.write = true, .fd = fd, .offset = 8 * KIB4, .bytes = 6 * KIB4, .parts = part, .part_count = 3,
		.buffer = -1};

	assert_int_equal(transfer(ops, q, &io), -EIO);
	assert_int_equal(part[1].iov_len, 4 * KIB4);
	assert_int_equal(move(ops, q, false, fd, 8 * KIB4, in, 4 * KIB4, -1), -ENODATA);
	assert_memory_equal(in, area, KIB4);
	assert_memory_equal(in + KIB4, area + 2 * KIB4, 2 * KIB4);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_READ), 5);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_WRITE), 3);
	ops->table->close(ops, fd);
	free_both(&ops, &q);
}

static uint32_t failures(const char *spec, char *pattern)
{
	struct disk_ops *ops = new_ops(make, spec, false);
	struct disk_ops_queue *q = new_queue(ops);
	uint32_t n = 0;

	unlinkat(dir, "chance", 0);
	int fd = ops->table->create(ops, dir, "chance");

	for (int i = 0; i < 500; i++) {
		if (i % 3 == 0)
			assert_int_equal(ops->table->sync_dir(ops, 9999), -EBADF); /* is none of the writes' business */
		pattern[i] = (char)(move(ops, q, true, fd, 0, area, KIB4, -1) != 0);
		n += pattern[i] != 0;
	}
	ops->table->close(ops, fd);
	free_both(&ops, &q);
	return n;
}

static void test_chance_is_seeded(void **state)
{
	static char a[500], b[500];

	(void)state;
	uint32_t n = failures("write:EIO:1/10,seed=5", a);

	assert_in_range(n, 20, 90);
	assert_int_equal(failures("write:EIO:1/10,seed=5", b), n);
	assert_memory_equal(a, b, sizeof(a));
	failures("write:EIO:1/10,seed=6", b);
	assert_int_not_equal(memcmp(a, b, sizeof(a)), 0);
}

static void expect(const struct disk_event *event, enum disk_op op, uint32_t file, const char *name, uint64_t offset, uint64_t bytes)
{
	char whole[192];

	snprintf(whole, sizeof(whole), "%s%s%s", op == DISK_OP_SYNC_DIR ? "" : "sub", *name ? "/" : "", name);
	if (op == DISK_OP_SYNC_DIR)
		snprintf(whole, sizeof(whole), "sub");
	assert_int_equal(event->op, op);
	assert_int_equal(event->file, file);
	assert_string_equal(event->name, whole);
	assert_int_equal(event->offset, offset);
	assert_int_equal(event->bytes, bytes);
	assert_int_equal(event->data != NULL, op == DISK_OP_WRITE);
}

static void test_log(void **state)
{
	struct disk_ops *ops = new_ops(make, "write:short:=2,write:EIO:=3,unlink:EIO:=1", true);
	const struct disk_ops_table *t = ops->table;
	struct disk_ops_queue *q = new_queue(ops);
	struct disk_event event[32];
	char *before = area + 8 * MIB;

	(void)state;
	assert_int_equal(mkdirat(dir, "sub", 0700), 0);
	int sub = openat(dir, "sub", O_RDONLY | O_DIRECTORY);
	int a = t->create(ops, sub, "a.tmp");
	int b = t->create(ops, dir, "sub/b"); /* a path does as well */

	fill(area, MIB);
	memcpy(before, area, MIB);
	assert_int_equal(t->truncate(ops, a, 2 * MIB), 0);
	assert_int_equal(move(ops, q, true, a, KIB4, area, MIB, -1), 0);
	assert_int_equal(move(ops, q, true, b, 0, area + KIB4, 4 * KIB4, -1), -EIO); /* short */
	assert_int_equal(move(ops, q, true, b, 0, area, KIB4, -1), -EIO);
	assert_int_equal(move(ops, q, false, a, KIB4, area + MIB, MIB, -1), 0);
	memset(area, 0, MIB); /* the log has copies */
	assert_int_equal(t->sync(ops, a), 0);
	assert_int_equal(t->rename(ops, sub, "a.tmp", sub, "a"), 0);
	assert_int_equal(t->sync_dir(ops, sub), 0);
	assert_int_equal(t->unlink(ops, sub, "b"), -EIO);
	assert_int_equal(t->rename(ops, sub, "a", dir, "sub/b"), 0); /* replaces it */
	t->close(ops, a);
	t->close(ops, b);
	a = t->open(ops, sub, "b", true);
	assert_int_equal(t->truncate(ops, a, 0), 0);
	t->close(ops, a);
	assert_int_equal(t->unlink(ops, sub, "b"), 0);
	a = t->create(ops, sub, "b");
	t->close(ops, a);
	assert_int_equal(disk_ops_fault_log(ops, 0, event, 32), 12);
	expect(&event[0], DISK_OP_CREATE, 1, "a.tmp", 0, 0);
	expect(&event[1], DISK_OP_CREATE, 2, "b", 0, 0);
	expect(&event[2], DISK_OP_TRUNCATE, 1, "a.tmp", 0, 2 * MIB);
	expect(&event[3], DISK_OP_WRITE, 1, "a.tmp", KIB4, MIB);
	assert_memory_equal(event[3].data, before, MIB);
	expect(&event[4], DISK_OP_WRITE, 2, "b", 0, 2 * KIB4);
	assert_memory_equal(event[4].data, before + KIB4, 2 * KIB4);
	expect(&event[5], DISK_OP_SYNC, 1, "a.tmp", 0, 0);
	expect(&event[6], DISK_OP_RENAME, 1, "a.tmp", 0, 0);
	assert_string_equal(event[6].to, "sub/a");
	expect(&event[7], DISK_OP_SYNC_DIR, 0, "", 0, 0);
	expect(&event[8], DISK_OP_RENAME, 1, "a", 0, 0);
	assert_string_equal(event[8].to, "sub/b");
	expect(&event[9], DISK_OP_TRUNCATE, 1, "b", 0, 0);
	expect(&event[10], DISK_OP_UNLINK, 1, "b", 0, 0);
	expect(&event[11], DISK_OP_CREATE, 3, "b", 0, 0);
	/* in pieces */
	assert_int_equal(disk_ops_fault_log(ops, 10, event, 1), 1);
	expect(&event[0], DISK_OP_UNLINK, 1, "b", 0, 0);
	assert_int_equal(disk_ops_fault_log(ops, 12, event, 32), 0);
	assert_int_equal(disk_ops_fault_log(ops, 99, event, 32), 0);
	close(sub);
	free_both(&ops, &q);
}

/* Without being asked for, nothing is kept. */
static void test_no_log(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_event event[2];

	(void)state;
	int fd = ops->table->create(ops, dir, "silent");

	ops->table->close(ops, fd);
	assert_int_equal(disk_ops_fault_log(ops, 0, event, 2), 0);
	assert_int_equal(disk_ops_fault_count(ops, DISK_OP_CREATE), 1);
	ops->table->free(&ops);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static int make_world(void **state)
{
	struct segment_config config = {.name = "test", .bytes = AREA, .wish = SEGMENT_WISH_SMALL};
	const char *tmp = getenv("TMPDIR");

	(void)state;
	seed = clock_now_ns() | 1;
	print_message("seed %llu\n", (unsigned long long)seed);
	snprintf(folder, sizeof(folder), "%s/disk-ops-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(folder));
	dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	assert_int_equal(segment_new(&config, &segment, NULL), 0);
	area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd(segment), 0);
	assert_ptr_not_equal(area, MAP_FAILED);
	return 0;
}

static int free_world(void **state)
{
	char command[128];

	(void)state;
	munmap(area, AREA);
	segment_free(&segment);
	close(dir);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

static int open_lock(void)
{
	int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

/* Whoever has the lock knows that nothing moves any more: the ring has it until it is gone, which the kernel sees to in its own time. */
static void test_keeps_the_lock(void **state)
{
	struct disk_ops *ops = new_ops(make, "", false);
	struct disk_ops_queue *q = new_queue(ops);
	bool uring = make == URING || make == FAULT_URING;
	int fd = open_lock(), other = open_lock();
	uint64_t until = clock_now_ns() + MINUTE_NS;

	(void)state;
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(ops->table->queue_keep(q, fd), 0);
	fill(area, KIB4);
	int file = ops->table->create(ops, dir, "kept");

	assert_true(file >= 0);
	assert_int_equal(move(ops, q, true, file, 0, area, KIB4, -1), 0);
	ops->table->close(ops, file);
	close(fd);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), uring ? -1 : 0);
	free_both(&ops, &q);
	while (flock(other, LOCK_EX | LOCK_NB))
		assert_true(clock_now_ns() < until);
	close(other);
}

static int run(enum make which, const char *name)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_contents),
		cmocka_unit_test(test_registered_memory),
		cmocka_unit_test(test_what_is_no_transfer),
		cmocka_unit_test(test_end_of_file),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_short_transfers),
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_patience),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_wake_and_work),
		cmocka_unit_test(test_little_memory),
		cmocka_unit_test(test_keeps_the_lock),
	};
	const struct CMUnitTest faulty[] = {
		cmocka_unit_test(test_specification),
		cmocka_unit_test(test_deaths),
		cmocka_unit_test(test_faults_of_files),
		cmocka_unit_test(test_faults_of_transfers),
		cmocka_unit_test(test_chance_is_seeded),
		cmocka_unit_test(test_log),
		cmocka_unit_test(test_no_log),
	};

	print_message("---- %s\n", name);
	make = which;
	int failed = cmocka_run_group_tests(all, make_world, free_world);

	if (which == FAULT_PLAIN || which == FAULT_URING)
		failed += cmocka_run_group_tests(faulty, make_world, free_world);
	return failed;
}

int main(void)
{
	struct disk_ops *ops = NULL;
	struct why why = WHY_INIT;
	int failed = run(PLAIN, "plain") + run(FAULT_PLAIN, "fault over plain");

	if (disk_ops_uring_new(&ops, &why)) {
		printf("uring is not tested: %s\n", why.text);
		return failed ? failed : 77;
	}
	ops->table->free(&ops);
	return failed + run(URING, "uring") + run(FAULT_URING, "fault over uring");
}
