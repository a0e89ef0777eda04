/* SPDX-License-Identifier: Apache-2.0
 *
 * The account of a death: why a serving process ended, when, and what it was doing. Made by the parent from what it sees itself; the
 * dead process's part is the will and the last lines of its log. Texts alone: the parent writes them.
 *
 * `last_exit` in the run folder, outside the mount, replaced whole at each death; and `health` shows its reason. One `name: value` a line:
 *
 *   reason: <one sentence>
 *   time: 2026-01-31T12:00:00Z
 *   pid: 4711
 *   version: 0.9.0                    of the program that died
 *   mount: /mnt/cache
 *   restarts: 3                       serving processes before it, as `health` counts them
 *   served_s: 812                     since READY; `never` before it
 *   phase: serving                    starting, adopting <namespace> <done>/<goal>, serving, draining, writing down, ending
 *   doing: PUT_COMMIT 0.2 ms, lookup 0.0 ms
 *   sessions: 4  spaces: 1            that the parent holds
 *   next: started again after 0 ms    or why not
 *   last lines:
 *     <up to 20 lines of its log>
 *
 * `phase` and `doing` are left out where there is no will, or nothing in it.
 *
 * `deaths` beside it has one line for each of the last LAST_EXIT_DEATHS: time, restarts, served_s or `never`, reason.
 *
 * The reason, by the first of these that is known:
 *   SIGABRT, by status or will: the signal and the last line that is not the log's own: an assertion's, a lock's, the C library's
 *   the signal of the will, with address and place in the program
 *   SIGKILL by the parent: it did not stop in time, or its beats stood still for watchdog_s (and whether it was stopped: state T)
 *   SIGKILL, and more were killed for want of memory than at its start: "killed by the kernel for want of memory", with the limit, where it stands, and `memory`;
 *     while floors were populated it says so
 *   SIGKILL while floors were populated
 *   another signal, an exit status, the connection was ended from outside
 *   not known yet: it has not been reaped; replaced when it is
 */
#ifndef PREFIXFS_FS_LAST_EXIT_H
#define PREFIXFS_FS_LAST_EXIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/will.h"

#define LAST_EXIT_BYTES 16384u /* the whole text, at most */
#define LAST_EXIT_REASON_BYTES 320u
#define LAST_EXIT_DEATHS 64u
#define LAST_EXIT_DEATHS_BYTES 24576u /* of `deaths`, at most */

struct last_exit_facts {
	int status; /* of waitpid, -1 = not reaped yet */
	pid_t pid;
	uint64_t stop_ms;     /* the parent killed it since it had not stopped in that time; 0 = it did not */
	uint64_t watchdog_s;  /* the parent killed it since its beats stood still for so long; 0 = it did not */
	bool was_stopped;     /* by a signal, when the watchdog looked */
	bool populating, ready;
	uint64_t served_ns;
	uint64_t died_ns;     /* clock_now_ns */
	uint64_t oom_before, oom_after; /* memory_limit_kills; UINT64_MAX = not known */
	uint64_t memory_limit;   /* bytes; 0 = none known */
	char memory_from[256];   /* where that stands; empty = nothing is to be said of it */
	uint64_t memory;         /* the option, in bytes; 0 = nothing is to be said of it */
	const struct will *will; /* as the process left it; NULL = there is none */
	const char *const *lines;
	unsigned line_count;
	const char *mount, *version, *next;
	uint32_t restarts, sessions, spaces;
};

/* All of them pure: they read no file and look at no clock. NUL-terminated. */

/* The reason alone. Returns its bytes. */
size_t last_exit_reason(const struct last_exit_facts *facts, char reason[LAST_EXIT_REASON_BYTES]);
/* The whole text, with @reason. Returns its bytes, cut at LAST_EXIT_BYTES behind a whole line. */
size_t last_exit_text(const struct last_exit_facts *facts, const char *reason, int64_t wall_s, char to[LAST_EXIT_BYTES]);
/* @deaths holds @bytes of the file of that name, of any content: takes the oldest lines out and adds this one. Returns its bytes. */
size_t last_exit_add_death(const struct last_exit_facts *facts, const char *reason, int64_t wall_s,
	char deaths[LAST_EXIT_DEATHS_BYTES], size_t bytes);

#endif
