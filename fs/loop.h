/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop threads: each takes requests from the kernel and, where none waits, runs one step of a queued call. So a
 * short request beside long batches waits for at most one step per thread; and after LOOP_REQUESTS requests in a row
 * a step gets its turn, so that batches end under any load.
 *
 * Threads follow the caller: one that says that it is pinned to a CPU is answered on it (loop_follow). It sleeps while it
 * waits, so nothing is lost by sharing its CPU, and two wake-ups of another CPU are saved, which cost some 30 us each
 * where that one has halted, in a virtual machine above all. The first half of the threads, at least one, do so. The
 * others stay where the scheduler puts them; while LOOP_ALONE requests in a row came from one pinned caller they do not
 * even look for requests, so as not to be woken for nothing, and the first request of anybody else calls them back.
 *
 * A thread without work sleeps in epoll: on /dev/fuse and on the queue's kick, both exclusively (one thread wakes
 * for one request), and on fs->leave.
 */
#ifndef PREFIXFS_FS_LOOP_H
#define PREFIXFS_FS_LOOP_H

#include "fs/fs.h"

#define LOOP_REQUESTS 8u
#define LOOP_SCRATCH_BYTES (1u << 20)
#define LOOP_FOLLOW_FOR 256u /* requests of callers who are not pinned, after which a thread is anywhere again */
#define LOOP_ALONE 64u

struct loops;

/* Answers the kernel's INIT in this thread, then starts config->loop_threads threads. 0 or a negative errno. */
int loops_start(struct fs *fs, struct loops **ret);
/* Waits for all of them, after fs->leave. */
void loops_join(struct loops **loops);
/* The request at hand comes from a thread pinned to CPU @cpu - 1, or (0) from one that is not pinned. Called by a loop
 * thread, before it works on it. A CPU that the daemon may not use is passed over. */
void loop_follow(uint32_t cpu);
/* Memory of this loop thread, LOOP_SCRATCH_BYTES, page-aligned, free to use within one request. */
void *loop_scratch(void);

#endif
