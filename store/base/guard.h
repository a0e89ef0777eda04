/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a function over shared memory that may have no page left to give: a client that punches a hole where the host has no
 * huge page any more makes SIGBUS for whoever touches it next. Under a guard that is an error of the one job.
 *
 * The first guard_run of the process installs a handler of SIGBUS, once. A fault outside the guarded range is not ours: it goes
 * to whoever had the signal before, and without anybody it ends the process as ever. What installs a handler of SIGBUS later must
 * pass on what is not its own.
 */
#ifndef PREFIXFS_STORE_BASE_GUARD_H
#define PREFIXFS_STORE_BASE_GUARD_H

#include <stddef.h>

/* Calls @function(@context). 0, or -EFAULT when it touched a byte of [memory, +bytes) that is not to be had: it was left there and
 * then, so it holds no lock, allocates nothing and calls no guard_run. Any thread; costs no system call. */
int guard_run(void (*function)(void *context), void *context, const void *memory, size_t bytes);

#endif
