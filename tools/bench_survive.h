/* SPDX-License-Identifier: Apache-2.0
 *
 * bench survive: what its figures share.
 */
#ifndef PREFIXFS_TOOLS_BENCH_SURVIVE_H
#define PREFIXFS_TOOLS_BENCH_SURVIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench.h"
#include "tools/victim.h"

struct bench_survive {
	struct bench_options base;
	const char *trace; /* of replays; NULL: there is none */
	bool quick;
	/* how much, made from `quick` */
	uint64_t opens, pages, plans, kills, upgrades, requests, replay_kills;
};

/* A daemon of its own that endures any number of deaths, with the namespace `bench`, whose floor is half of @memory. */
struct bench_mortal {
	struct bench_daemon daemon;
	struct victim victim;
};

/* @page_bytes 0: without the namespace. @floor of it, 0 = half of @memory. */
int bench_mortal_start(struct bench_mortal *mortal, uint64_t memory, uint64_t page_bytes, uint64_t floor, bool populate);
void bench_mortal_stop(struct bench_mortal *mortal);
/* Kills the serving process; waits for one where there is none. *ns: when. 0, or 1 after a sentence. */
int bench_mortal_kill(struct bench_mortal *mortal, uint64_t *ns);
/* Of a session that says nothing about deaths: they are many. */
void bench_mortal_options(struct pfs_options *options);
/* Bytes of memory that a daemon here may have without getting into others' way. */
uint64_t bench_survive_memory(void);

/* One line: a figure beside its target. @more (may be NULL) is taken; its `note` stands in the table too. */
void bench_survive_row(const struct bench_survive *bench, const char *figure, double value, const char *unit, const char *target,
	bool met, json_t *more);
void bench_survive_none(const struct bench_survive *bench, const char *figure, const char *target, const char *why);

int bench_survive_open(const struct bench_survive *bench);    /* first_open_after_kill_ms, first_stat_after_kill_ms */
int bench_survive_adopt(const struct bench_survive *bench);   /* adopt_1m_pages_s */
int bench_survive_puts(const struct bench_survive *bench);    /* committed_values_lost */
int bench_survive_upgrade(const struct bench_survive *bench); /* upgrade_pause_ms_p99 */
int bench_survive_replay(const struct bench_survive *bench);  /* hit_ratio_*, hit_ratio_points, wrong_values */

#endif
