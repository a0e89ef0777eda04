/* SPDX-License-Identifier: Apache-2.0
 *
 * The run folder of one mount, <run_dir>/<id>, beside the mount and never in it:
 *
 *   lock         held (flock) by the parent while it lives, with its pid
 *   sock         where clients show their tokens; the folder may be bind-mounted into containers
 *   last_exit    why the serving process died last
 *   deaths       one line for each of its last deaths
 *   log          the log, in the background without log_file
 *   log.1        the log of the start before
 *   spaces/      one file a namespace: what is needed to make it again, empty, when the serving process died
 *
 * The id is the mount point's last component and eight hex digits of its whole path, so that it is the same every time.
 * The parent makes the folder, throws away what a killed predecessor left there but for the reason of its death
 * (last_exit, deaths and the log), and removes it at the end. It makes <run_dir> where there is none, and never removes that. Not thread-safe: each process uses it from one thread, except
 * rundir_path.
 */
#ifndef PREFIXFS_FS_RUNDIR_H
#define PREFIXFS_FS_RUNDIR_H

#include <stdbool.h>
#include <stddef.h>

#include "store/base/why.h"

#define RUNDIR_PATH_BYTES 256u

struct rundir {
	char path[104]; /* short enough for a socket in it */
	int lock;       /* the parent's, else -1 */
	bool turned;    /* the claim made a log.1 */
};

/* Finds the folder's path; makes nothing. ENAMETOOLONG. */
int rundir_init(struct rundir *dir, const char *run_dir, const char *mountpoint, struct why *why);
/* Makes and locks it; a log that lies there becomes log.1. EBUSY: another daemon serves this mount point.
 * What a claim that failed had made is gone again. */
int rundir_claim(struct rundir *dir, bool for_all, struct why *why);
/* Removes what is in it, and itself; with @keep_reason last_exit, deaths and the logs stay. */
void rundir_remove(struct rundir *dir, bool keep_reason);
/* For a start that failed: removes what it made since the claim; what was there before stays. */
void rundir_undo(struct rundir *dir);

/* "<path>/<name>" */
void rundir_path(const struct rundir *dir, const char *name, char to[RUNDIR_PATH_BYTES]);
/* Makes the folders again that somebody removed; neither the socket nor the lock comes back. */
int rundir_mend(const struct rundir *dir);
/* Replaces file @name as a whole. */
int rundir_write(const struct rundir *dir, const char *name, const char *text, size_t bytes);
/* Reads file @name; the length, at most @capacity - 1, or a negative errno. NUL-terminated. */
long rundir_read(const struct rundir *dir, const char *name, char *to, size_t capacity);

#endif
