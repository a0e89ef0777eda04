/* SPDX-License-Identifier: Apache-2.0
 *
 * Points at which a test has the process die as kill -9 would have it: nothing is closed, flushed or told. A rule of
 * store/disk_ops.h arms one; without any a point costs a branch.
 *
 *   catalogue_begin     a batch of changes waits, its transaction has not begun
 *   catalogue_commit    it stands in the transaction, which is not committed
 *   catalogue_done      it is committed, who waits for it has not been told
 *   catalogue_close     before the mark that it was closed
 *   json_written        the new namespace.json is synced under its other name
 *   write_named         a record file has its name, its record knows nothing of it
 *   write_known         the record and the catalogue know it, its values are not clean
 *   demote              a value is at its place, its slot is not free
 *   adopt               a restart has made a record of a file
 *   restart_rows        it has gone through the catalogue's rows and changed nothing
 *   restart_files       and through the files without one
 *   restart_settled     all that is wrong has been let go, the catalogue still counts as behind
 *   reset_begin         RESET was asked
 *   reset_noted         its generation stands in namespace.json, the index knows nothing of it
 *   reset_clear         one of the 256 folders is to be renamed, others were
 *   remove_begin        a namespace is in no list any more, its folder is as it was
 *   remove_renamed      the folder has the name of what is gone, who asked has not been told
 *   remove_aside        its jobs and its catalogue have ended, all of its files are there
 *   remove_emptied      nothing of ours is in it but namespace.json
 */
#ifndef PREFIXFS_STORE_BASE_KILLPOINT_H
#define PREFIXFS_STORE_BASE_KILLPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KILLPOINT_NAMES(x)                                                                                                              \
	x(CATALOGUE_BEGIN, "catalogue_begin") x(CATALOGUE_COMMIT, "catalogue_commit") x(CATALOGUE_DONE, "catalogue_done")               \
	x(CATALOGUE_CLOSE, "catalogue_close") x(JSON_WRITTEN, "json_written") x(WRITE_NAMED, "write_named")                             \
	x(WRITE_KNOWN, "write_known") x(DEMOTE, "demote") x(ADOPT, "adopt") x(RESTART_ROWS, "restart_rows")                             \
	x(RESTART_FILES, "restart_files") x(RESTART_SETTLED, "restart_settled") x(RESET_BEGIN, "reset_begin")                           \
	x(RESET_NOTED, "reset_noted") x(RESET_CLEAR, "reset_clear") x(REMOVE_BEGIN, "remove_begin")                                     \
	x(REMOVE_RENAMED, "remove_renamed") x(REMOVE_ASIDE, "remove_aside") x(REMOVE_EMPTIED, "remove_emptied")

#define X(name, word) KILLPOINT_##name,
enum killpoint { KILLPOINT_NAMES(X) KILLPOINTS };
#undef X

extern _Atomic bool killpoint_any; /* one is armed */

/* The process dies when @point is passed for the n-th time from now on; 0: it does not. For the whole process; any thread. */
void killpoint_arm(enum killpoint point, uint64_t n);
/* Says "killed <when> <what>" on standard error, in one line, and dies of SIGKILL. Any thread, under any lock. */
_Noreturn void killpoint_die(const char *when, const char *what);

void killpoint_passed(enum killpoint point); /* what follows, once one is armed */

/* Any thread, under any lock. */
static inline void killpoint(enum killpoint point)
{
	if (__builtin_expect(atomic_load_explicit(&killpoint_any, memory_order_relaxed), false))
		killpoint_passed(point);
}

#endif
