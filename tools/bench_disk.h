/* SPDX-License-Identifier: Apache-2.0
 *
 * bench disk: what its figures share.
 */
#ifndef PREFIXFS_TOOLS_BENCH_DISK_H
#define PREFIXFS_TOOLS_BENCH_DISK_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/bench.h"

#define BENCH_SESSIONS_MOST 64u

struct bench_disk {
	struct bench_options base;
	const char *dir;
	uint64_t bytes;      /* of one pass */
	uint64_t page_bytes; /* of the large pages */
	uint64_t pairs, sessions, workers;
	uint64_t records, record_pages, rebuild_records;
	bool durable, cold;
	/* made here */
	bool fio;
	char scratch[PATH_MAX]; /* in `dir` */
	char disk[PATH_MAX], fio_dir[PATH_MAX];
};

/* The middle one of @count values, which are sorted for it. 0 of none. */
double bench_median(double *values, uint64_t count);
/* An array of them. */
json_t *bench_values(const double *values, uint64_t count);
/* What was written to the file system of the scratch folder is written out: nothing of it disturbs what comes. */
void bench_disk_settle(const struct bench_disk *bench);
/* Both folders are there and empty. */
int bench_disk_empty(const struct bench_disk *bench);
/* Is there so much room, besides the twentieth of the file system that the daemon leaves? 0, or 1 after a sentence. */
int bench_disk_room(const struct bench_disk *bench, uint64_t bytes, uint64_t files);
/* Is there so much memory? Likewise. */
int bench_disk_memory(uint64_t bytes);
/* A daemon over the disk folder. */
int bench_disk_start(const struct bench_disk *bench, struct bench_daemon *daemon, uint64_t memory, uint64_t disk_bytes);

/* ---- bench_fio.c ------------------------------------------------------------------------------------------------ */

/* What fio is to do: @files of @file_bytes, each written from its beginning to its end in blocks of @block_bytes by one of
 * @jobs threads, each of which has @depth blocks under way. */
struct bench_fio {
	const char *folder;
	uint64_t files, file_bytes, block_bytes, jobs, depth;
	bool buffered; /* through the page cache */
	bool sync;     /* each file is synced at its end */
};

bool bench_fio_there(void);
/* One run, of writing new files or of reading those that it wrote. *bytes_s: what fio measured. */
int bench_fio_run(const struct bench_fio *fio, bool write, double *bytes_s);
/* All that fio was told, as an array of words. */
json_t *bench_fio_told(const struct bench_fio *fio, bool write);

/* ---- bench_disk_move.c ------------------------------------------------------------------------------------------- */

/* Records of a namespace and how they are moved. */
struct bench_shape {
	uint64_t page_bytes;
	uint32_t record_pages;
	uint64_t records;
};

static inline uint64_t bench_shape_bytes(const struct bench_shape *shape)
{
	return shape->page_bytes * shape->record_pages * shape->records;
}

struct bench_moved {
	uint64_t ns, bytes; /* of values */
	uint64_t cpu_ns;    /* of the daemon */
	uint64_t
		memory; /* what the daemon says that its disk tier has besides segment and index, the most that was seen */
};

/* Puts records @first.. with their bytes. */
int bench_move_put(struct bench_chains *chains, const struct bench_shape *shape, uint64_t first);
/* Has all that is dirty in the namespace of @chains written down. */
int bench_move_drain(const struct bench_daemon *daemon, struct bench_chains *chains, const struct bench_shape *shape,
	struct bench_moved *ret);
/* Gets records @first.., none of which is in memory, by @threads sessions that each have two handles. */
int bench_move_read(const struct bench_daemon *daemon, const struct bench_shape *shape, uint64_t first,
	unsigned threads, struct bench_moved *ret);
/* Gets them once more and compares every byte. */
int bench_move_verify(const struct bench_daemon *daemon, const struct bench_shape *shape, uint64_t first);

/* ---- figures ----------------------------------------------------------------------------------------------------- */

int bench_disk_pairs(const struct bench_disk *bench);    /* *_vs_fio, *_gbps, cpu_s_per_gib, disk_memory_mib */
int bench_disk_checksum(const struct bench_disk *bench); /* checksum_gbps */
int bench_disk_restart(const struct bench_disk *bench);  /* restart_1m_records_s, rebuild_files_per_s */
int bench_disk_control(const struct bench_disk *bench);  /* control_slowdown */

#endif
