/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests and benchmarks need of a device, and engines have themselves: memory, plain copies, a clock, other work beside copies.
 * Not part of libprefixfs-gpu. On ordinary memory with `ref`. All functions say 0 or a negative errno with a sentence of
 * pfs_gpu_last_error(); one thread at a time but for lab_thread.
 */
#ifndef PREFIXFS_KERNELS_LAB_H
#define PREFIXFS_KERNELS_LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/merge.h"

struct lab;

enum lab_work {
	LAB_MEMORY, /* a loop that reads and writes memory of the device */
	LAB_MATRIX, /* a loop of matrix products */
};

/* Rows of @row_bytes, packed on the host, @pitch apart on the device. */
struct lab_rows {
	uint64_t device, host, pitch, row_bytes, rows;
};

int lab_open(const char *kernels, int device, struct lab **ret);
void lab_close(struct lab **lab);

int lab_take(struct lab *lab, uint64_t bytes, uint64_t *ret);
void lab_give(struct lab *lab, uint64_t memory);
/* Wait until it is done. */
int lab_write(struct lab *lab, uint64_t device, const void *from, uint64_t bytes);
int lab_read(struct lab *lab, void *to, uint64_t device, uint64_t bytes);
int lab_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes);

/* Copies as one would write them without this library, each way on a stream of its own; until lab_finish. @batched: one call for
 * all where the driver has it, else a call an entry. */
int lab_copy(struct lab *lab, bool to_device, const struct gpu_entry *entries, uint32_t count, bool batched);
/* The same with rows: a value packed on the host, its planes on the device at equal distances. */
int lab_copy_rows(struct lab *lab, bool to_device, const struct lab_rows *list, uint32_t count, bool batched);
int lab_finish(struct lab *lab, bool to_device);
/* A copy and its end on the stream of the loops, as an engine's inputs go up. */
int lab_upload(struct lab *lab, uint64_t device, const void *from, uint64_t bytes);
/* Can lab_copy be batched? */
bool lab_batches(const struct lab *lab);

/* Has memory filled behind other work that takes some milliseconds, as an engine's kernels would; *event is recorded behind it, and may
 * be used until the next call. */
int lab_late_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes, void **event);
/* The stream of the loops does nothing for @ms milliseconds; *event is recorded behind it, and may be used until the next call. */
int lab_hold(struct lab *lab, uint32_t ms, void **event);
/* Starts a kernel that writes a number other than 0 to @host, which is registered and aligned to 8, for @ms milliseconds, again and again.
 * -EOPNOTSUPP with `ref`. */
int lab_scribble(struct lab *lab, uint64_t host, uint32_t ms);
/* Starts a kernel that traps, which costs the process its context: all later work of it fails. -EOPNOTSUPP with `ref`. */
int lab_trap(struct lab *lab);
/* To be called first on a thread other than that of lab_open; work of two threads may not be of one kind. */
int lab_thread(struct lab *lab);
/* Spins until an event (of pfs_gpu_event) is reached. */
int lab_spin(struct lab *lab, void *event);
/* Seconds that one turn of the loop takes, the median of @turns, on a stream of ordinary priority. -EOPNOTSUPP with `ref`. */
int lab_loop(struct lab *lab, enum lab_work work, uint32_t turns, double *ret);

#endif
