/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for the copies that a request makes of its arrays: four sizes with free lists, so that after warm-up a request
 * allocates nothing. Thread-safe; the lock is a leaf (LOCK_QUEUE).
 */
#ifndef PREFIXFS_FS_BUFFERS_H
#define PREFIXFS_FS_BUFFERS_H

#include <stddef.h>

#include "store/base/lock.h"

#define BUFFER_SIZES 4

struct buffers {
	struct lock lock;
	void *free[BUFFER_SIZES];     /* (lock) lists through the first word */
	unsigned count[BUFFER_SIZES]; /* (lock) of them; each size keeps a bounded number */
};

void buffers_init(struct buffers *buffers);
void buffers_deinit(struct buffers *buffers);
/* At least @bytes, 16-aligned, not cleared; NULL: no memory, or more than the largest size. */
void *buffers_get(struct buffers *buffers, size_t bytes);
void buffers_put(struct buffers *buffers, void *buffer); /* NULL is let pass */

#endif
