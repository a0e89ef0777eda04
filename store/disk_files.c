/* SPDX-License-Identifier: Apache-2.0
 *
 * Files by ordinary system calls, and the arithmetic of transfers that end short.
 *
 * O_DIRECT is switched on after a file was opened: a file system that refuses it at the opening has by then made the file.
 */
#include "store/disk_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/lock.h"

#define MOST_RETRIES 1000u /* in a row, of a call that says EINTR or EAGAIN */

/* ---- files ------------------------------------------------------------------------------------------------------ */

bool disk_files_direct(const struct disk_ops *ops)
{
	return !((const struct disk_files *)ops)->buffered;
}

static int open_direct(struct disk_ops *ops, int dir, const char *name, int flags)
{
	struct disk_files *files = (struct disk_files *)ops;
	int fd;

	lock_assert_none_held();
	do
		fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
	while (fd < 0 && errno == EINTR);
	if (fd < 0)
		return -errno;
	int have = fcntl(fd, F_GETFL);

	if (have < 0 || fcntl(fd, F_SETFL, have | O_DIRECT))
		files->buffered = true;
	return fd;
}

int disk_files_create(struct disk_ops *ops, int dir, const char *name)
{
	return open_direct(ops, dir, name, O_RDWR | O_CREAT | O_EXCL);
}

int disk_files_open(struct disk_ops *ops, int dir, const char *name, bool write)
{
	return open_direct(ops, dir, name, write ? O_RDWR : O_RDONLY);
}

void disk_files_close(struct disk_ops *ops, int fd)
{
	lock_assert_none_held();
	close(fd);
}

int disk_files_allocate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	int error;

	lock_assert_none_held();
	if (!bytes)
		return disk_files_truncate(ops, fd, 0);
	do
		error = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
	while (error == EINTR);
	if (error != EOPNOTSUPP && error != ENOSYS)
		return -error;
	int r = disk_files_truncate(ops, fd, bytes);

	return r ? r : -EOPNOTSUPP;
}

int disk_files_truncate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	int error;

	lock_assert_none_held();
	do
		error = ftruncate(fd, (off_t)bytes) ? errno : 0;
	while (error == EINTR);
	return -error;
}

int disk_files_sync(struct disk_ops *ops, int fd)
{
	int error;

	lock_assert_none_held();
	do
		error = fdatasync(fd) ? errno : 0;
	while (error == EINTR);
	return -error;
}

int disk_files_sync_dir(struct disk_ops *ops, int dir)
{
	int error;

	lock_assert_none_held();
	do
		error = fsync(dir) ? errno : 0;
	while (error == EINTR);
	return -error;
}

int disk_files_rename(struct disk_ops *ops, int from_dir, const char *from, int to_dir, const char *to)
{
	lock_assert_none_held();
	return renameat(from_dir, from, to_dir, to) ? -errno : 0;
}

int disk_files_unlink(struct disk_ops *ops, int dir, const char *name)
{
	lock_assert_none_held();
	return unlinkat(dir, name, 0) ? -errno : 0;
}

/* ---- one transfer ----------------------------------------------------------------------------------------------- */

void disk_io_append(struct disk_io_list *list, struct disk_io *io)
{
	io->next = NULL;
	if (list->first)
		list->last->next = io;
	else
		list->first = io;
	list->last = io;
}

struct disk_io *disk_io_take(struct disk_io_list *list)
{
	struct disk_io *io = list->first;

	if (io) {
		list->first = io->next;
		io->next = NULL;
	}
	return io;
}

int disk_io_begin(struct disk_io *io)
{
	uint64_t bytes = 0;

	io->done = 0;
	io->retries = 0;
	io->result = 0;
	if (io->part_count == 0 || io->part_count > DISK_IO_VECTORS || io->bytes > DISK_IO_MOST)
		return -EINVAL;
	if (io->offset % DISK_BLOCK || io->offset > INT64_MAX - DISK_IO_MOST)
		return -EINVAL;
	if (io->buffer >= 0 && io->part_count != 1)
		return -EINVAL;
	for (uint32_t i = 0; i < io->part_count; i++) {
		const struct iovec *part = &io->parts[i];

		if (part->iov_len == 0 || part->iov_len > DISK_IO_MOST)
			return -EINVAL;
		if (part->iov_len % DISK_BLOCK || (uintptr_t)part->iov_base % DISK_BLOCK)
			return -EINVAL;
		bytes += part->iov_len;
	}
	return bytes == io->bytes ? 0 : -EINVAL;
}

uint32_t disk_io_rest(const struct disk_io *io, struct iovec *scratch, const struct iovec **ret_parts)
{
	uint64_t skip = io->done;
	uint32_t i = 0;

	*ret_parts = io->parts;
	if (!skip)
		return io->part_count;
	while (skip >= io->parts[i].iov_len)
		skip -= io->parts[i++].iov_len;
	scratch->iov_base = (char *)io->parts[i].iov_base + skip;
	scratch->iov_len = io->parts[i].iov_len - skip;
	*ret_parts = scratch;
	return 1;
}

static bool end(struct disk_io *io, int result)
{
	io->result = result;
	return true;
}

/* Only whole blocks count, so that the rest is aligned too. What ends within a block ends there for good: a read at the end
 * of the file, a write where there was no room for more. */
bool disk_io_moved(struct disk_io *io, int64_t moved)
{
	if (moved == -EINTR || moved == -EAGAIN)
		return ++io->retries > MOST_RETRIES ? end(io, (int)moved) : false;
	if (moved < 0)
		return end(io, (int)moved);
	uint32_t blocks = (uint32_t)moved / DISK_BLOCK * DISK_BLOCK;

	io->retries = 0;
	io->done += blocks;
	if (io->done == io->bytes)
		return end(io, 0);
	if (!io->write && (moved == 0 || blocks != moved))
		return end(io, -ENODATA);
	if (io->write && blocks == 0)
		return end(io, -ENOSPC);
	return false;
}
