/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of the view that may have to wait for a disk: `pages`, `row`, `pages/<key>` and `raw` of a namespace with a disk tier,
 * and opens of `raw` that look at its file (fs/passthrough.h). Threads of its own ("pfs-view", at batch priority) make them, so
 * that a `cat` of files never keeps a loop from an engine's request. First in, first out; ASIDE_MAX wait at most.
 *
 * Thread-safe. One lock, a leaf (LOCK_QUEUE), guards the queue; neither the store nor libfuse is called under it.
 */
#ifndef PREFIXFS_FS_ASIDE_H
#define PREFIXFS_FS_ASIDE_H

#include "fs/tree.h"

#define ASIDE_THREADS 2u
#define ASIDE_MAX 4096u

struct aside;

struct aside *aside_new(struct fs *fs); /* NULL: no memory */
int aside_start(struct aside *aside);   /* 0 or a negative errno */
/* What waits is answered with ENODEV. Waits for the reads under way. */
void aside_stop(struct aside *aside);
/* For a handover: what waits is not answered, since the next serving process is asked for it again. Waits for the reads under way. */
void aside_leave(struct aside *aside);
void aside_free(struct aside **aside);

/* Takes the read over and answers it; EAGAIN: too many wait. */
void aside_read(struct aside *aside, fuse_req_t req, fuse_ino_t ino, size_t size, uint64_t offset);
/* The same with the open of a `raw`. */
void aside_open(struct aside *aside, fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi);

#endif
