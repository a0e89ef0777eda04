/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving process of a daemon, to be killed: what outlives it is measured so.
 */
#ifndef PREFIXFS_TOOLS_VICTIM_H
#define PREFIXFS_TOOLS_VICTIM_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

struct victim {
	char mount[PATH_MAX];
	char run_dir[PATH_MAX]; /* the run folder of the mount */
	pid_t parent;
	pid_t killed;           /* the one that was killed last, 0 = none was */
};

/* The daemon at @mount, by its health; looks whether its processes are here and may be killed. 0, or 1 after a sentence. */
int victim_find(struct victim *victim, const char *mount);
/* Refused when the daemon would give up after so many deaths. 0, or 1 after a sentence which begins with @what. */
int victim_endures(const struct victim *victim, uint64_t deaths, const char *what);
/* The serving process that lives now, found among the parent's children and not in the mount, which may have nobody who answers;
 * 0: there is none. */
pid_t victim_serving(const struct victim *victim);
/* Kills it, unless it is the one that was killed before and has not ended. 1: done; 0: there is none yet; a negative errno. */
int victim_kill(struct victim *victim);
/* The value of "name: value" in last_exit of the run folder, to be freed; NULL: there is none. */
char *victim_last_words(const struct victim *victim, const char *name);

#endif
