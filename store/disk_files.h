/* SPDX-License-Identifier: Apache-2.0
 *
 * What the uring and the plain disk_ops have in common: all about files, and how far one transfer has come. For those two.
 */
#ifndef PREFIXFS_STORE_DISK_FILES_H
#define PREFIXFS_STORE_DISK_FILES_H

#include "store/disk_ops.h"

#define DISK_BLOCK 4096u

/* Begins what the two allocate. */
struct disk_files {
	struct disk_ops ops;
	_Atomic bool buffered; /* a file had to be opened without O_DIRECT */
};

bool disk_files_direct(const struct disk_ops *ops);
int disk_files_create(struct disk_ops *ops, int dir, const char *name);
int disk_files_open(struct disk_ops *ops, int dir, const char *name, bool write);
void disk_files_close(struct disk_ops *ops, int fd);
int disk_files_allocate(struct disk_ops *ops, int fd, uint64_t bytes);
int disk_files_truncate(struct disk_ops *ops, int fd, uint64_t bytes);
int disk_files_sync(struct disk_ops *ops, int fd);
int disk_files_sync_dir(struct disk_ops *ops, int dir);
int disk_files_rename(struct disk_ops *ops, int from_dir, const char *from, int to_dir, const char *to);
int disk_files_unlink(struct disk_ops *ops, int dir, const char *name);

#define DISK_FILES_ENTRIES                                                                                      \
	.direct = disk_files_direct, .create = disk_files_create, .open = disk_files_open,                      \
	.close = disk_files_close, .allocate = disk_files_allocate, .truncate = disk_files_truncate,            \
	.sync = disk_files_sync, .sync_dir = disk_files_sync_dir, .rename = disk_files_rename,                  \
	.unlink = disk_files_unlink

/* ---- one transfer ----------------------------------------------------------------------------------------------- */

/* First in, first out; by disk_io.next. */
struct disk_io_list {
	struct disk_io *first, *last;
};

void disk_io_append(struct disk_io_list *list, struct disk_io *io);
struct disk_io *disk_io_take(struct disk_io_list *list); /* NULL: it is empty */

/* 0 or -EINVAL: is it what disk_ops.h promises? Sets what is the queue's to its beginning. */
int disk_io_begin(struct disk_io *io);
/* The memory that the next system call is for: all of the parts, or of one the rest, which then lies in *scratch. */
uint32_t disk_io_rest(const struct disk_io *io, struct iovec *scratch, const struct iovec **ret_parts);
/* A system call moved @moved bytes, or failed with a negative errno. True: io->result is set; false: go on with the rest. */
bool disk_io_moved(struct disk_io *io, int64_t moved);

#endif
