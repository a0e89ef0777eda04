/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay: the daemon's serving process is killed while clients work.
 */
#ifndef PREFIXFS_TOOLS_REPLAY_KILLS_H
#define PREFIXFS_TOOLS_REPLAY_KILLS_H

#include "tools/victim.h"

struct replay_kills {
	struct victim victim;
	uint64_t wanted, done;
	uint64_t work;   /* requests of the replay: one kill falls into each of `wanted` equal parts of them */
	uint64_t random; /* of the seed */
	uint64_t next;   /* request in which the next one falls */
	uint64_t due_ns; /* when in it; 0 = it was not begun */
	uint64_t begun;  /* requests begun when the last one fell */
	int error;       /* why it could not be; 0 */
};

/* 0, or 1 after a sentence: the daemon's processes are not here or may not be killed, it would give up, or the work is too short. */
int replay_kills_start(struct replay_kills *kills, const char *mount, uint64_t wanted, uint64_t seed, uint64_t work);
/* Kills where it is time, @begun requests being begun. Never waits. At most one in what is begun between two looks. */
void replay_kills_look(struct replay_kills *kills, uint64_t begun);

#endif
