/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory this process may have at all, whether a budget fits, and whether somebody was killed for it: a daemon that
 * populates more than that is, again and again.
 *
 *   ordinary pages   the least of MemTotal, without what is reserved as huge pages, and the limits of the process's
 *                    cgroup and of those above it (v2 memory.max, v1 memory.limit_in_bytes)
 *   huge pages       the pool of 2 MiB pages: it is reserved already, and no memory cgroup's
 *
 * A namespace's memory is of one kind, so that `auto` may have the larger of the two. Nothing is remembered: each call
 * looks anew. @root is "" but in tests, where it is a folder that stands for /.
 */
#ifndef PREFIXFS_FS_MEMORY_LIMIT_H
#define PREFIXFS_FS_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/config.h"

struct memory_limit {
	uint64_t bytes; /* UINT64_MAX: nothing says */
	char from[256]; /* where that stands */
};

/* Of pages of the kind that @hugepages (CONFIG_HUGE_...) asks for. */
void memory_limit_find(const char *root, uint64_t hugepages, struct memory_limit *ret);

/* 0, or ENOMEM with the sentence: the budget is more than may be had, or huge pages are required and there are none.
 * *fatal: do not begin. Else it is a warning, for what populates nothing grows only as far as it is used. */
int memory_limit_check(const char *root, const struct config *config, bool *fatal, struct why *why);

/* How often the kernel has killed somebody for want of memory, as far as it tells: in the process's cgroup (v2 memory.events, v1
 * memory.oom_control), else on the host (/proc/vmstat). UINT64_MAX: nothing says. To be compared with itself. */
uint64_t memory_limit_kills(const char *root);

#endif
