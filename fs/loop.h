/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop threads: each takes requests from the kernel and, where none waits, runs one step of a queued call. So a
 * short request beside long batches waits for at most one step per thread; and after LOOP_REQUESTS requests in a row
 * a step gets its turn, so that batches end under any load.
 *
 * A thread without work sleeps in epoll: on /dev/fuse and on the queue's kick, both exclusively (one thread wakes
 * for one request), and on fs->leave.
 */
#ifndef PREFIXFS_FS_LOOP_H
#define PREFIXFS_FS_LOOP_H

#include "fs/fs.h"

#define LOOP_REQUESTS 8u
#define LOOP_SCRATCH_BYTES (1u << 20)

struct loops;

/* Answers the kernel's INIT in this thread, then starts config->loop_threads threads. 0 or a negative errno. */
int loops_start(struct fs *fs, struct loops **ret);
/* Waits for all of them, after fs->leave. */
void loops_join(struct loops **loops);
/* Memory of this loop thread, LOOP_SCRATCH_BYTES, page-aligned, free to use within one request. */
void *loop_scratch(void);

#endif
