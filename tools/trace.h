/* SPDX-License-Identifier: Apache-2.0
 *
 * Recorded workloads, in the two formats that are public:
 *
 *   mooncake  a request a line: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}; ids are of
 *             512-token blocks and name them within their prefix, over the whole trace
 *   kvct      a session a line: {"id": "...", "block": 64, "reqs": [[t, tokens, model, is_main, keep, [[first, count],
 *             ...]], ...]}; the ids of a request are the first `keep` of the request before it in the list, then the runs;
 *             ids are local to their session, times are seconds since its start. "start", in seconds, places the
 *             session; without it the start is drawn, as random.Random(seed).uniform(0, spread) of Python would, session
 *             after session in the file's order
 *
 * Requests are merged by time; among equal times the file's order counts. Immutable once read; a forked child may go on
 * using it.
 */
#ifndef PREFIXFS_TOOLS_TRACE_H
#define PREFIXFS_TOOLS_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "fs/client/prefixfs.h"

struct trace_run {
	uint64_t first;
	uint32_t count;
	uint32_t reserved;
};

struct trace_request {
	double time; /* seconds */
	uint32_t session;
	uint32_t keep, pages; /* pages: keep and all runs together */
	uint32_t runs;
	size_t first_run;
	size_t number; /* in the file's order */
};

struct trace {
	struct trace_request *requests;
	size_t count, room;
	struct trace_run *runs;
	size_t run_count, run_room;
	uint64_t *salts; /* [sessions]: what its ids are mixed with */
	uint32_t sessions, session_room;
	uint64_t references; /* pages over all requests */
	uint32_t block_tokens;
	uint32_t longest; /* pages of the longest request */
};

struct trace_options {
	uint64_t max_sessions, max_requests; /* the first in the file; the first in time; 0 = all */
	double spread;                       /* seconds over which starts are drawn */
	uint32_t seed;
};

/* @path may end in .gz (read through gzip). 0, or 1 after a sentence. */
int trace_read(const char *path, const struct trace_options *options, struct trace *ret);
void trace_free(struct trace *trace);

/* The keys of each session's latest request. Each key chains over those before it. */
struct chain {
	struct pfs_key *keys;
	uint32_t count, room;
	uint32_t left; /* requests of the session to come */
};

struct chain *chains_new(const struct trace *trace); /* [sessions]; NULL: no memory */
/* Goes on to request @i; requests must be passed in order, each once. Its keys, which live until the session's next request;
 * NULL: no memory. */
const struct pfs_key *chains_advance(struct chain *chains, const struct trace *trace, size_t i);
void chains_free(struct chain *chains, const struct trace *trace);

/* Python's random.Random(seed).random(), for small seeds. */
struct twister {
	uint32_t state[624], at;
};
void twister_seed(struct twister *twister, uint32_t seed);
double twister_next(struct twister *twister);

#endif
