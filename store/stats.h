/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of a namespace: one row here is a counter's name, its line in `stats` and its help text.
 *
 * Written under the space lock, but for those of blobs, which count for themselves; text is made from a snapshot. "transient" counters are 0 when nothing is under way.
 */
#ifndef PREFIXFS_STORE_STATS_H
#define PREFIXFS_STORE_STATS_H

#include <stdint.h>
#include <stddef.h>

#include "store/blobs.h"

#define STATS_COUNTERS(x)                                                                  \
	x(put_calls, "PUT_START calls")                                                   \
	x(put_new, "values given a slot by PUT_START")                                    \
	x(put_exists, "values that PUT_START found committed")                            \
	x(put_inflight, "values that PUT_START found in another plan")                    \
	x(put_duplicate, "values that PUT_START found earlier in the same plan")          \
	x(put_noroom, "groups refused for lack of room")                                  \
	x(put_toobig, "groups that can never fit")                                        \
	x(groups_committed, "put groups committed")                                       \
	x(groups_aborted, "put groups aborted")                                           \
	x(groups_lost, "put groups that ended without their session's word")              \
	x(values_committed, "values committed")                                           \
	x(bytes_committed, "payload bytes committed")                                     \
	x(values_evicted, "values evicted")                                               \
	x(values_removed, "values removed by key")                                        \
	x(values_reset, "values that went with a reset")                                  \
	x(resets, "generations begun")                                                    \
	x(get_calls, "GET_START calls")                                                   \
	x(keys_asked, "keys asked for by GET_START above have")                           \
	x(keys_local, "keys that hit in memory")                                          \
	x(keys_joined, "keys that joined a read in flight")                               \
	x(keys_led, "keys that began a read")                                             \
	x(reads_avoided, "reads not done because another was under way")                  \
	x(join_wait_us, "microseconds waited for reads or puts in flight")                \
	x(suffix_released, "hit keys released behind the transferable length")            \
	x(requests, "look-ups that GET_START has ended, once for all ranks of a ticket")  \
	x(dense_hit_tokens, "tokens above have that the dense classes reach")             \
	x(hit_tokens, "tokens restorable above have")                                     \
	x(lost_to_checkpoint_tokens, "tokens that states would have made restorable")     \
	x(lost_unrecoverable_tokens, "tokens of dense_hit_tokens that nothing would have") \
	x(rows_wanted, "boundaries told to be worth a row")                               \
	x(rows_put, "rows begun to be put")                                               \
	x(handles_expired, "handles cancelled after handle_ttl")                          \
	x(values_given, "values handed out by GET_TRANSFER")                              \
	x(bytes_given, "payload bytes handed out by GET_TRANSFER")                        \
	x(values_imported, "values written to clients' own memory by GET_INTO")           \
	x(bytes_imported, "payload bytes written to clients' own memory by GET_INTO")     \
	x(grants_begun, "grants cut")                                                     \
	x(grants_failed, "grants given up because the host had no memory")                \
	x(grants_recut, "grants emptied and cut for another class or share")              \
	x(grants_returned, "grants given back to the host")                               \
	x(read_errors, "reads of a tier that failed")                                     \
	x(values_spilled, "values written to disk")                                       \
	x(bytes_spilled, "bytes of record files written")                                 \
	x(files_written, "record files written")                                          \
	x(write_errors, "writes of record files that failed")                             \
	x(values_demoted, "values that left memory for disk")                             \
	x(values_collapsed, "values whose slot was given back, since another share's has the same bytes") \
	x(values_copied, "values that came back from another share's slot without a read") \
	x(bytes_saved, "bytes that record files do not take, since shares have the same values") \
	x(values_promoted, "values read back from disk")                                  \
	x(bytes_promoted, "bytes of them")                                                \
	x(loads_failed, "values that could not be read back: misses")                     \
	x(loads_cancelled, "reads that nobody wanted any more")                           \
	x(values_expired, "values that went because of their age")                        \
	x(files_dropped, "record files that a restart found of no use or damaged")         \
	x(files_cut, "record files that a restart cut, since newer ones have their last pages") \
	x(rows_superseded, "rows that went when the only child had one")                  \
	x(values_abandoned, "values that went since other shares of them did not come")   \
	x(tickets_decided, "look-ups under a ticket")                                     \
	x(tickets_joined, "GET_STARTs answered from one")                                 \
	x(tickets_restored, "tickets that were restored on all ranks")                    \
	x(tickets_failed, "tickets that were not, whoever left")                          \
	x(tickets_late, "gates of tickets whose deadline passed")                         \
	x(put_tickets, "puts under a ticket")                                             \
	x(put_tickets_short, "of them, those that lacked ranks at their deadline")        \
	BLOBS_COUNTERS(x)

#define STATS_TRANSIENT(x)                                                                 \
	x(sessions, "sessions attached")                                                  \
	x(put_plans, "put plans open")                                                    \
	x(get_plans, "get plans open")                                                    \
	x(handles, "handles open")                                                        \
	x(pins, "pins held by plans, handles and reads")                                  \
	x(slots_prepared, "slots of open put plans")                                      \
	x(slots_quarantined, "slots that wait for a process to be gone")                  \
	x(groups_open, "put groups neither ended nor acknowledged")                       \
	x(waiting, "requests that wait for something")                                    \
	x(loads, "reads of values under way")                                             \
	x(slots_owed, "slots whose value went while they were held")                      \
	x(tickets, "tickets without an outcome")                                          \
	x(ticket_pins, "pins held by tickets")                                            \
	x(ticket_slots, "slots kept by put tickets for ranks to come")                    \
	x(blob_transfers, "reads and writes of blobs in pieces")                          \
	x(blob_locks, "locks of blobs that are held")

struct stats {
#define X(name, help) uint64_t name;
	STATS_COUNTERS(X)
	STATS_TRANSIENT(X)
#undef X
};

#endif
