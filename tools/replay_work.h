/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay: what a client does as one rank of an engine. Private to replay.
 */
#ifndef PREFIXFS_TOOLS_REPLAY_WORK_H
#define PREFIXFS_TOOLS_REPLAY_WORK_H

#include "tools/replay.h"

#define REPLAY_RANKS 64u

struct rank {
	struct pfs_session *session;
	struct pfs_session_info info;
};

/* Of one process. */
struct work {
	struct replay_client *client;
	struct replay_counts *counts;
	struct rank ranks[REPLAY_RANKS];
	uint32_t rank_count; /* that this process is: all of them, or one */
	uint64_t page_tokens;
	struct pfs_put_group *groups; /* [pages of the longest request] */
	uint64_t *wanted;             /* [PFS_MAX_WANTED] boundaries at which the last look-up wants a row */
	uint32_t wanted_count;
	uint8_t *planes_memory;       /* the engine's planes, of the largest class */
	void **planes;
	uint64_t answered_ns; /* the last answer of the daemon, or the beginning of this request */
};

/* What a rank found, in pages. */
struct found {
	uint32_t told; /* by the look-up: what can be restored; without state classes what hit */
	uint32_t hit;  /* what hit; under a ticket what was restored, on all ranks */
	uint32_t have; /* what need not be put: less where not all of it came */
};

/* Why the client stops: a sentence in counts->error; 1. */
int work_stop(struct work *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
int work_stop_client(struct work *w, const char *what); /* with what libprefixfs says of it */

/* 0, or 1 with counts->error set, as all of these. */
int work_new(struct replay_client *client, struct replay_counts *counts, struct work **ret);
int work_open(struct work *w, uint32_t number, struct rank *ret); /* PFS_RANK_NONE: a session that only asks */
void work_close(struct work *w, struct rank *rank);
void work_free(struct work **w); /* sessions of its ranks are closed */

/* Looks up, fetches what is there and checks it. @ticket: NULL, or that of all ranks. */
int work_get(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t pages, const uint8_t *ticket, struct found *ret);
/* Puts keys first..first+count-1 of a request's @keys. @ticket as above: it is changed for each further try. */
int work_put(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t first, uint32_t count, const uint8_t *ticket);

/* ---- replay_team.c: one process a rank ---- */

struct team;

/* Forks a process for each rank, which goes through the trace as it is told. */
int team_start(struct replay_client *client, struct team **ret);
/* All ranks look @number up, fetch and check it: the same everywhere, or the client stops. */
int team_get(struct team *team, struct work *w, uint32_t number, const struct pfs_key *keys, uint32_t pages, struct found *ret);
/* All ranks put pages first.. of it. */
int team_put(struct team *team, struct work *w, uint32_t number, uint32_t first);
void team_end(struct team **team); /* waits for its processes */

#endif
