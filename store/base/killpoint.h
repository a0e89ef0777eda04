/* SPDX-License-Identifier: Apache-2.0
 *
 * Points at which a test has the process die as kill -9 would have it: nothing is closed, flushed or told. Or stop, as by SIGSTOP, until
 * somebody lets it go on. A rule of store/disk_ops.h or of killpoint_rules arms one; without any a point costs a branch, on a word that
 * nobody writes.
 *
 * Of values in memory, by the operation that goes through them:
 *
 *   put_group           a put group has its entry, none of its values a slot
 *   put_word            a slot's word says who is told of it, its entry is free
 *   put_entry           its entry is filled, not sealed
 *   put_sealed          and sealed; no call buffer has the address
 *   put_kept            a slot is kept for another rank, which has not come
 *   put_answer          all addresses stand in the call buffer, the request is not answered
 *   commit_begin        a group is to be published
 *   commit_word         its word says so, none of its values knows
 *   commit_value        one of its values is settled
 *   commit_settled      all are, its records are not published
 *   commit_answer       PUT_COMMIT is done and not answered
 *   abort_begin         a group is to be given up
 *   abort_word          its word says so, its values are as they were
 *   abort_value         one of its slots is nobody's, its entry stands
 *   abort_answer        PUT_ABORT is done and not answered
 *   get_word            words of slots say who reads them, no call buffer has the address
 *   get_offsets         some addresses stand in the call buffer
 *   ticket_decided      a look-up under a ticket has ended, no rank has its answer
 *   ticket_range        all ranks have come to a range, none was told what all deliver
 *   ticket_outcome      a ticket is to have its outcome, nobody was told
 *   release_word        nobody reads a slot any more; what waited for that has not been done
 *   settle_leaving      a session of before is being settled: its seat says so
 *   settle_slot         one of its slots is not its any more, its hold stands
 *   settle_free         none of its slots is, its seat is not free
 *   attach_kept         the parent has a client's process, the client has no welcome
 *   space_made          a namespace is made, the parent has nothing of it
 *   space_segment       and its segment, not its tables
 *   space_tables        and both; who made it was not told
 *   reset_tables        RESET: the tables say so, no value has gone
 *   rmdir_gone          a namespace is no more, its file in the run folder stands
 *   rmdir_forgotten     that has gone, the parent has both of its memory files
 *   rmdir_dropped       and its tables alone
 *
 * Of a start after a death:
 *
 *   adopt_header        a namespace's tables were judged
 *   adopt_grants        its grants were
 *   adopt_index         its index is there
 *   adopt_slots         it knows what is free
 *   adopt_seats         and what is held for sessions of before; those that have ended are settled
 *   adopt_outcomes      and what became of put groups
 *   adopt_disk          and what lies on the disk
 *   adopt_budget        and what it has of the budget
 *   adopt_all           all namespaces are there
 *   init_kept           the reply to the kernel's INIT is kept, and not written
 *   init_written        it is written, and not noted as that
 *   resent              the kernel was asked for what had no answer; none of it was read
 *
 * Of the disk:
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

#include "store/base/why.h"

#define KILLPOINT_NAMES(x)                                                                                                              \
	x(PUT_GROUP, "put_group") x(PUT_WORD, "put_word") x(PUT_ENTRY, "put_entry") x(PUT_SEALED, "put_sealed")                         \
	x(PUT_ANSWER, "put_answer") x(COMMIT_BEGIN, "commit_begin") x(COMMIT_WORD, "commit_word") x(COMMIT_VALUE, "commit_value")       \
	x(COMMIT_SETTLED, "commit_settled") x(COMMIT_ANSWER, "commit_answer") x(ABORT_BEGIN, "abort_begin")                             \
	x(ABORT_WORD, "abort_word") x(ABORT_VALUE, "abort_value") x(ABORT_ANSWER, "abort_answer") x(GET_WORD, "get_word")               \
	x(GET_OFFSETS, "get_offsets") x(TICKET_DECIDED, "ticket_decided") x(TICKET_RANGE, "ticket_range")                               \
	x(PUT_KEPT, "put_kept") x(TICKET_OUTCOME, "ticket_outcome") x(RELEASE_WORD, "release_word") x(SETTLE_LEAVING, "settle_leaving")                         \
	x(SETTLE_SLOT, "settle_slot") x(SETTLE_FREE, "settle_free") x(ATTACH_KEPT, "attach_kept") x(SPACE_MADE, "space_made")           \
	x(SPACE_SEGMENT, "space_segment") x(SPACE_TABLES, "space_tables") x(RESET_TABLES, "reset_tables")                               \
	x(RMDIR_GONE, "rmdir_gone") x(RMDIR_FORGOTTEN, "rmdir_forgotten") x(RMDIR_DROPPED, "rmdir_dropped")                             \
	x(ADOPT_HEADER, "adopt_header") x(ADOPT_GRANTS, "adopt_grants") x(ADOPT_INDEX, "adopt_index") x(ADOPT_SLOTS, "adopt_slots")     \
	x(ADOPT_SEATS, "adopt_seats") x(ADOPT_OUTCOMES, "adopt_outcomes") x(ADOPT_DISK, "adopt_disk")                                   \
	x(ADOPT_BUDGET, "adopt_budget") x(ADOPT_ALL, "adopt_all") x(INIT_KEPT, "init_kept") x(INIT_WRITTEN, "init_written")             \
	x(RESENT, "resent")                                                                                                             \
	x(CATALOGUE_BEGIN, "catalogue_begin") x(CATALOGUE_COMMIT, "catalogue_commit") x(CATALOGUE_DONE, "catalogue_done")               \
	x(CATALOGUE_CLOSE, "catalogue_close") x(JSON_WRITTEN, "json_written") x(WRITE_NAMED, "write_named")                             \
	x(WRITE_KNOWN, "write_known") x(DEMOTE, "demote") x(ADOPT, "adopt") x(RESTART_ROWS, "restart_rows")                             \
	x(RESTART_FILES, "restart_files") x(RESTART_SETTLED, "restart_settled") x(RESET_BEGIN, "reset_begin")                           \
	x(RESET_NOTED, "reset_noted") x(RESET_CLEAR, "reset_clear") x(REMOVE_BEGIN, "remove_begin")                                     \
	x(REMOVE_RENAMED, "remove_renamed") x(REMOVE_ASIDE, "remove_aside") x(REMOVE_EMPTIED, "remove_emptied")

#define X(name, word) KILLPOINT_##name,
enum killpoint { KILLPOINT_NAMES(X) KILLPOINTS };
#undef X

/* One is armed. In a line of its own, which every core has and nobody writes. */
extern struct killpoint_flag {
	_Alignas(64) _Atomic bool any;
} killpoint_flag;

/* The process dies, or with @stop is stopped, when @point is passed for the n-th time from now on; 0: it does not. For the whole process;
 * any thread. */
void killpoint_arm(enum killpoint point, uint64_t n, bool stop);
/* Arms by the rules of a start: `<point>[:<n>][:again]`, separated by commas, one for each serving process in turn; an empty one is for a
 * process that is let live. `again`, in the last one: for those that follow, too. @process counts from 1; 0: the rules are only looked at.
 * EINVAL, with the rule that is not understood. */
int killpoint_rules(const char *rules, uint32_t process, bool stop, struct why *why);
/* Says "killed <when> <what>" on standard error, in one line, and dies of SIGKILL. Any thread, under any lock. */
_Noreturn void killpoint_die(const char *when, const char *what);

void killpoint_passed(enum killpoint point); /* what follows, once one is armed */

/* Any thread, under any lock. */
static inline void killpoint(enum killpoint point)
{
	if (__builtin_expect(atomic_load_explicit(&killpoint_flag.any, memory_order_relaxed), false))
		killpoint_passed(point);
}

#endif
