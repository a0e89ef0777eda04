/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: what its figures share.
 */
#ifndef PREFIXFS_TOOLS_BENCH_GPU_H
#define PREFIXFS_TOOLS_BENCH_GPU_H

#include "kernels/lab.h"
#include "kernels/work.h"
#include "tools/bench.h"
#include "tools/bench_disk.h"

#define BENCH_GPU_TURNS 5u

struct bench_gpu {
	struct bench_options o;
	const char *kernels;
	uint64_t device, bytes, register_bytes, memory;
	uint64_t blocks[KERNELS], slots, lanes, ahead, gap; /* struct gpu_tuning; 0 (gap: UINT64_MAX): the library's own */
	uint64_t ring_in, spin;           /* spin: UINT64_MAX */
	bool turns, kernels_first, prefer_overlap;
	bool paths; /* each path by itself, and what users would write */
	bool times; /* where the time of a copy goes */
	const char *path; /* that all copies take; NULL: the library's choice */
	const char *backing; /* that registration is measured with; NULL: each */
	struct lab *lab;
	struct pfs_gpu *gpu;
	uint8_t *host;    /* 2 x bytes of registered memory: a half for each direction */
	uint64_t planes;  /* on the device: as much */
	double ceiling[2]; /* GB/s of the largest copies, [to_device]: the best so far */
	bool hugetlb;      /* host memory is of such pages */
	bool looking;      /* nothing is measured: is there a figure that --figure may mean? */
	uint32_t found;    /* figures that are wanted */
};

/* Values of planes of one size that fill half of the memory, their pages in random order. */
struct bench_values {
	struct pfs_gpu_pool pool;
	struct pfs_gpu_copy copy;
	struct pfs_gpu_plane *planes;
	uint64_t *values;
	uint32_t *pages;
	uint64_t bytes; /* payload of all */
};

/* A sentence with what the library says; 1. */
int bench_gpu_complain(const char *what);
/* @first: of the values' bytes in @half (0 or 1) of the memory; at most @bytes of them. */
int bench_values_make(struct bench_gpu *b, uint64_t plane_bytes, uint64_t planes, unsigned half, uint64_t bytes, struct bench_values *ret);
void bench_values_free(struct bench_values *values);
/* How many planes of a size a value has. */
uint64_t bench_planes_of(uint64_t plane_bytes);
/* Copies all values once, start to end, @path -1 = as the library chooses. Seconds. */
int bench_copy(struct bench_gpu *b, struct bench_values *values, bool to_device, int path, double *seconds);
/* enum gpu_path of b->path, or -1. */
int bench_path(const struct bench_gpu *b);
/* Something else in each 512 bytes, without taking much time. */
void bench_gpu_fill(uint8_t *memory, uint64_t bytes);
/* Urgent restores of one value of 4.5 MiB in @half of the memory, from call to event. Microseconds. */
int bench_restores(struct bench_gpu *b, unsigned half, double *bytes, double *median, double *p99);
/* What one would write otherwise, as members of a figure. One that fails is told of and left out. */
void bench_users_ways(struct bench_gpu *b, struct bench_values *values, bool to_device, json_t *rest);
/* Is the figure to be measured now? */
bool bench_gpu_wants(struct bench_gpu *b, const char *figure);

/* ---- bench_gpu_pairs.c ---------------------------------------------------------------------------------------------- */

struct bench_paired {
	double rate, reference, ratio; /* medians of BENCH_GPU_TURNS */
	uint32_t disturbed;            /* pairs that were thrown away */
};

/* One turn; GB/s. */
typedef int (*bench_once)(void *context, double *gbps);

/* What a way through the library is. */
struct bench_way {
	struct bench_gpu *b;
	struct bench_values *v;
	bool to_device;
	int path;
	bool event; /* until the event is reached, as a stream of the engine sees it; else until pfs_gpu_wait returns */
	double moments[OP_MOMENTS + 1], count; /* sums of microseconds from the call on, the last one until it returned */
};

/* Values in both halves of the memory: to the host in the first, to the device in the second. */
struct bench_both {
	struct bench_gpu *b;
	struct bench_values v[2];
};

/* Takes a struct bench_both: all of both at once. */
int bench_both_once(void *both, double *gbps);
/* Measures @what between references. *best: of all references so far. */
int bench_pairs(double *best, bench_once reference, void *of, bench_once what, void *with, struct bench_paired *ret);
/* Both take a struct bench_way: a copy of all values; the largest plain copy. */
int bench_way_once(void *way, double *gbps);
int bench_ceiling_once(void *way, double *gbps);
/* A way beside the ceiling, after a turn to warm up. */
int bench_ratio(struct bench_gpu *b, struct bench_values *values, bool to_device, int path, struct bench_paired *ret);
/* Where the time goes: members of a figure whose rate is @pairs. */
int bench_times(struct bench_gpu *b, struct bench_values *values, bool to_device, const struct bench_paired *pairs, json_t *rest);
/* Measures the ceiling of a direction now. */
int bench_ceiling(struct bench_gpu *b, bool to_device, double *ret);

int bench_gpu(const struct command *self, int argc, char **argv);
int bench_gpu_rates(struct bench_gpu *b);    /* h2d_, d2h_, duplex, small_restore_us, cpu_ms_per_gib */
int bench_gpu_batches(struct bench_gpu *b);  /* h2d_gbps_, d2h_gbps_, duplex_gbps_ */
int bench_gpu_beside(struct bench_gpu *b);   /* interference_, upload_p99_us */
int bench_gpu_register(struct bench_gpu *b); /* register_64gib_s */
int bench_gpu_daemon(struct bench_gpu *b);   /* e2e_ */

#endif
