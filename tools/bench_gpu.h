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
	uint64_t blocks[KERNELS], gap; /* other than the library's; 0 and UINT64_MAX: its own */
	bool paths; /* each path by itself, and what users would write */
	struct lab *lab;
	struct pfs_gpu *gpu;
	uint8_t *host;    /* 2 x bytes of registered memory: a half for each direction */
	uint64_t planes;  /* on the device: as much */
	double ceiling[2]; /* GB/s of the largest copies, [to_device]; measured again beside each figure */
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
/* Median of some turns, after one to warm up; GB/s. */
int bench_rate(struct bench_gpu *b, struct bench_values *values, bool to_device, int path, double *ret);
/* Measures the ceiling of a direction now. */
int bench_ceiling(struct bench_gpu *b, bool to_device, double *ret);

int bench_gpu(const struct command *self, int argc, char **argv);
int bench_gpu_rates(struct bench_gpu *b);    /* h2d_, d2h_, duplex, small_restore_us, cpu_ms_per_gib */
int bench_gpu_beside(struct bench_gpu *b);   /* interference_, upload_p99_us */
int bench_gpu_register(struct bench_gpu *b); /* register_64gib_s */
int bench_gpu_daemon(struct bench_gpu *b);   /* e2e_ */

#endif
