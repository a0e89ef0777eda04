/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of this library in somebody else's process: no signal of the engine's comes to them, and `top -H` tells them from its own.
 */
#ifndef PREFIXFS_KERNELS_THREAD_H
#define PREFIXFS_KERNELS_THREAD_H

#include <pthread.h>

/* As pthread_create, with all signals blocked. @name: at most 15 bytes. */
int thread_start(pthread_t *thread, const char *name, void *(*start)(void *context), void *context);

#endif
