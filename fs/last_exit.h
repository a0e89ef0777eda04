/* SPDX-License-Identifier: Apache-2.0
 *
 * The account of a death: why a serving process ended, when, and what it was doing. Made by the parent from what it sees itself; the
 * dead process's part is the will and the last lines of its log.
 *
 * `last_exit` in the run folder, outside the mount, replaced whole at each death; and `health` shows it. One `name: value` a line:
 *
 *   reason: <one sentence>
 *   time: 2026-01-31T12:00:00Z
 *   pid: 4711
 *   version: 0.9.0                    of the program that died
 *   mount: /mnt/cache
 *   epoch: 3                          serving processes so far
 *   served_s: 812                     since READY; `never` before it
 *   phase: serving                    starting, adopting <namespace> <done>/<goal>, serving, draining, writing down, ending
 *   doing: PUT_COMMIT 0.2 ms, LOOKUP 0.0 ms
 *   sessions: 4  spaces: 1            that the parent holds
 *   next: started again after 0 ms    or: given up, `prefixfs upgrade` or a restart begins anew
 *   last lines:
 *     <up to 20 lines of its log>
 *
 * `deaths` beside it has one line for each of the last LAST_EXIT_DEATHS: time, epoch, served_s, reason.
 *
 * The reason, by the first of these that is known:
 *   the line "Assertion `...' failed", or that of a lock's order, where it ended by SIGABRT
 *   the signal of the will, with address and place in the program
 *   SIGKILL, and oom_kill of the cgroup's memory.events (else of /proc/vmstat) is higher than at its start: "killed by the kernel for
 *     want of memory", with the limit; while floors were populated it says so
 *   SIGKILL by the parent: it did not stop in time, or its beats stood still for watchdog_s (and whether it was stopped: state T)
 *   another signal, an exit status, the connection was ended from outside
 *   not known yet: it has not been reaped; replaced when it is
 */
#ifndef PREFIXFS_FS_LAST_EXIT_H
#define PREFIXFS_FS_LAST_EXIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/will.h"

#define LAST_EXIT_BYTES 16384u /* the whole text, at most */
#define LAST_EXIT_REASON_BYTES 320u
#define LAST_EXIT_DEATHS 64u

struct last_exit_facts {
	int status;              /* of waitpid, -1 = not reaped yet */
	pid_t pid;
	bool by_parent_stop, by_watchdog, was_stopped, populating;
	bool ready;
	uint64_t served_ns;
	uint64_t oom_before, oom_after; /* UINT64_MAX = not known */
	uint64_t memory_limit;   /* bytes; 0 = none known */
	const struct will *will; /* as the process left it */
	const char *const *lines;
	unsigned line_count;
	const char *mount, *version, *next;
	uint32_t sessions, spaces;
};

/* oom_kill of the cgroup of this process, or of the host; UINT64_MAX. Reads one file. */
uint64_t last_exit_oom_kills(void);
/* The reason alone. Returns its bytes. Pure. */
size_t last_exit_reason(const struct last_exit_facts *facts, char reason[LAST_EXIT_REASON_BYTES]);
/* The whole text, with @reason. Returns its bytes, cut at LAST_EXIT_BYTES behind a whole line. Pure. */
size_t last_exit_text(const struct last_exit_facts *facts, const char *reason, int64_t wall_s, char *to);

#endif
