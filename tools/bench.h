/* SPDX-License-Identifier: Apache-2.0
 *
 * bench control, bench view, bench disk, bench ranks, bench survive: what their figures share.
 */
#ifndef PREFIXFS_TOOLS_BENCH_H
#define PREFIXFS_TOOLS_BENCH_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "fs/client/prefixfs.h"
#include "tools/cli.h"

#define BENCH_BATCH 1000u /* keys of a batch, pages of a chain */
#define BENCH_VALUE 4096u /* bytes */
#define BENCH_TOKENS 64u  /* of a page */

struct bench_options {
	uint64_t pages;
	uint64_t repeats;
	const char *figure; /* only those whose name begins so, or so: NAME,NAME; NULL = all */
	const char *mount;  /* a daemon that runs already */
	bool no_populate;
	bool human; /* aligned text instead of JSON lines */
};

/* Is a figure of this name wanted? */
bool bench_wants(const struct bench_options *options, const char *figure);
/* Prints one figure. @against 0: there is nothing to compare it with. @more (may be NULL) has further members and is taken. */
void bench_print(const struct bench_options *options, const char *figure, double value, const char *unit,
	double against, json_t *more);
/* A figure that cannot be measured here. */
void bench_skip(const struct bench_options *options, const char *figure, const char *reason, json_t *more);

/* ---- bench_daemon.c --------------------------------------------------------------------------------------------- */

struct bench_daemon {
	char folder[64]; /* of ours, with the mount point and the run folder in it; empty: somebody else's daemon */
	char mount[PATH_MAX];
	pid_t serving;
};

struct bench_daemon_options {
	uint64_t memory;
	bool populate;
	const char *hugepages;
	const char *disk; /* folder of record files; NULL: no disk tier, and the next three mean nothing */
	uint64_t disk_bytes, disk_workers;
	bool durable; /* durability data */
	uint64_t deaths; /* 0 = the daemon's default */
};

/* Starts a daemon on a mount of its own. 0, or 1 after a sentence (none with @quiet). */
int bench_daemon_start(struct bench_daemon *daemon, const struct bench_daemon_options *options, bool quiet);
/* Uses the daemon mounted at @mount. */
int bench_daemon_use(struct bench_daemon *daemon, const char *mount);
/* Unmounts and removes what bench_daemon_start made. */
void bench_daemon_stop(struct bench_daemon *daemon);
/* Makes a folder in @dir, which goes with bench_scratch_remove, or when a signal ends this program. One at a time. */
int bench_scratch_make(const char *dir, char path[PATH_MAX]);
void bench_scratch_remove(void);
/* With everything in it, but for what is mounted there. */
void bench_folder_remove(const char *path);
/* Makes a namespace with one dense class of @planes planes of @plane_bytes. @floor 0 = the daemon's default. */
int bench_namespace(
	const struct bench_daemon *daemon, const char *name, uint64_t plane_bytes, uint64_t planes, uint64_t floor);
int bench_namespace_of(const struct bench_daemon *daemon, const char *name, const char *layout); /* of this JSON */
int bench_namespace_remove(const struct bench_daemon *daemon, const char *name);
/* Bytes of private memory of the serving process and of its tables; the segments are not counted. */
int bench_memory(const struct bench_daemon *daemon, uint64_t *bytes);
/* User and system time of a process in nanoseconds; 0 when it is gone. */
uint64_t bench_cpu_ns(pid_t pid);
/* Counter of a namespace's stats, -1 if there is none. */
int64_t bench_counter(const struct bench_daemon *daemon, const char *ns, const char *name);
/* Number of the line `disk` in tiers, as "written", "yes" being 1; -1 if there is none. */
int64_t bench_disk_word(const struct bench_daemon *daemon, const char *name);

/* ---- bench_child.c ---------------------------------------------------------------------------------------------- */

/* A program that this one runs, and which ends with it. */
struct bench_child {
	pid_t pid;
	FILE *out; /* its standard output */
};

/* @argv ends with NULL; argv[0] is looked for in PATH. @quiet: what it says on standard error is not shown. */
int bench_child_start(struct bench_child *child, const char *const *argv, bool quiet);
/* Waits for its end. Its exit status, or 255. */
int bench_child_end(struct bench_child *child);
/* The daemon's program: beside this one, or the one in PATH. Static storage. */
const char *bench_daemon_program(void);

/* ---- bench_fill.c ----------------------------------------------------------------------------------------------- */

/* Chains of pages without content: key i of chain c follows from both. */
struct bench_chains {
	struct pfs_session *session;
	char path[PATH_MAX];   /* of the namespace */
	uint32_t record_pages; /* of a put group */
	uint64_t count;        /* chains put so far, 0..count-1; those before `gone` may have been evicted */
	uint64_t random;       /* state of the dice */
	uint64_t noroom;       /* groups refused, all in all */
};

int bench_chains_open(
	struct bench_chains *chains, const struct bench_daemon *daemon, const char *ns, uint32_t record_pages);
void bench_chains_close(struct bench_chains *chains);
void bench_chain_keys(uint64_t chain, uint32_t first, uint32_t count, struct pfs_key *keys);
uint64_t bench_dice(struct bench_chains *chains, uint64_t sides);
/* The request for @count keys of a chain as records of the chains' length: its groups are written to @groups [@count].
 * @before: the key before the first one, NULL = it begins the chain. */
void bench_put_request(const struct bench_chains *chains, const struct pfs_key *keys, const struct pfs_key *before,
	uint32_t first, uint32_t count, struct pfs_put_group *groups, struct pfs_put_request *ret);
/* Keys first..first+count-1 of a chain as one plan of groups of record_pages pages. */
int bench_put_start(struct bench_chains *chains, const struct pfs_key *keys, const struct pfs_key *before,
	uint32_t first, uint32_t count, struct pfs_put_result *ret);
/* Puts further chains of BENCH_BATCH pages. Waits for room where memory is still being granted. */
int bench_fill(struct bench_chains *chains, uint64_t how_many, const char *what);

/* ---- figures ---------------------------------------------------------------------------------------------------- */

int bench_batches(const struct bench_options *options);  /* *_1000_p50_us, empty_ioctl_p50_us */
int bench_index(const struct bench_options *options);    /* index_bytes_per_page */
int bench_fairness(const struct bench_options *options); /* probe_p99_under_batches_ratio */
int bench_segment(const struct bench_options *options);  /* segment_ready_s_per_gib */
int bench_view(const struct bench_options *options);     /* all of bench view, with the next two */
int bench_events(const struct bench_options *options);   /* events_per_s */
int bench_scrapes(const struct bench_options *options);  /* metrics_10hz_cpu_percent */
int bench_cat(const struct bench_options *options);      /* cat_pages_gbps, memcpy_gbps */
/* All of bench disk: tools/bench_disk.h. */
int bench_disk(const struct command *self, int argc, char **argv);
int bench_ranks(const struct command *self, int argc, char **argv); /* all of bench ranks */
/* All of bench survive: tools/bench_survive.h. */
int bench_survive(const struct command *self, int argc, char **argv);

#endif
