/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay: one client process as an engine would drive a namespace.
 */
#ifndef PREFIXFS_TOOLS_REPLAY_H
#define PREFIXFS_TOOLS_REPLAY_H

#include <stdatomic.h>
#include <stdbool.h>

#include "tools/latency.h"
#include "tools/layout_file.h"
#include "tools/trace.h"

#define REPLAY_WAIT_S 30u /* for a daemon that is gone */

enum replay_op {
	REPLAY_GET_START,
	REPLAY_GET_TRANSFER,
	REPLAY_RELEASE,
	REPLAY_PUT_START,
	REPLAY_PUT_COMMIT,
	REPLAY_OPS,
};

/* What one client counted. */
struct replay_counts {
	uint64_t requests, references, hits;
	uint64_t new_values, bytes_put, bytes_got, verified, wrong;
	uint64_t unfetched_pages; /* that hit, but could not be read back, or found no room in time */
	uint64_t noroom_groups, toobig_groups, lost_plans, exists, inflight;
	uint64_t put_ns, get_ns; /* from START to the end of the plan, the copying and checking of bytes included */
	uint64_t reattached;
	uint64_t references_killed, hits_killed; /* of requests begun after the first kill */
	struct latency op[REPLAY_OPS];
	uint64_t longest_gap_ns; /* between two answers of the daemon within a request; making and checking bytes counts */
	uint32_t toobig_pages; /* of the largest group that can never fit */
	char error[512]; /* why it stopped; empty = it did not */
};

/* How one request went, for a report. */
struct replay_sample {
	uint64_t end_ns; /* CLOCK_MONOTONIC less the beginning of the replay; 0 = it was not worked on */
	uint64_t bytes_put, bytes_got;
	uint32_t hits, noroom; /* pages; groups */
};

enum replay_order {
	/* A request is looked up when every one before it was committed: hit ratios are those of one client. */
	ORDER_STRICT,
	/* A request is looked up when every one before it was: lookups keep the trace's order, puts overlap. */
	ORDER_LOOKUPS,
	/* Each client goes on by itself. */
	ORDER_FREE,
};

struct replay_options {
	enum replay_order order;
	uint32_t clients;
	uint32_t processes; /* of each client: 1, or one more than there are ranks */
	bool planes; /* values pass through planes of the engine's own, as with a GPU, instead of being made in place */
	bool may_part; /* the daemon dies meanwhile: ranks may hear different outcomes */
	uint32_t group_pages; /* pages of a put group; 0 = one group for all that missed */
};

/* Shared by the clients. */
struct replay_shared {
	_Atomic uint32_t turn; /* number of the request whose turn it is */
	_Atomic uint32_t stop; /* a client failed */
	_Atomic uint32_t begun; /* requests */
	_Atomic uint32_t kills; /* of the daemon's serving process, so far */
	struct replay_sample
		*samples; /* [requests of the trace], each written by the client that works on it; NULL: none wanted */
	uint64_t begin_ns;
	struct replay_counts counts[]; /* of each client its own, and those of its ranks' processes */
};

struct replay_client {
	const struct trace *trace;
	const struct layout_view *layout;
	const struct replay_options *options;
	struct replay_shared *shared;
	struct replay_counts *counts; /* [processes] */
	uint32_t number;
	uint32_t processes; /* 1, or one more than there are ranks: each rank is one */
	const char *path; /* of the namespace */
};

/* Opens its own sessions and works through the requests that are dealt to it. 0, or 1 with counts->error set. */
int replay_client_run(struct replay_client *client);

#endif
