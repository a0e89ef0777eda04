/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations that sessions hold.
 */
#ifndef PREFIXFS_KERNELS_ATTACH_H
#define PREFIXFS_KERNELS_ATTACH_H

#include "kernels/work.h"

/* Both opens of tests and benchmarks: with another backend, or another tuning (NULL: the library's own). */
int gpu_open_with(const struct backend_ops *ops, const struct pfs_gpu_options *options, struct pfs_gpu **ret);
int gpu_open_tuned(const struct backend_ops *ops, const struct pfs_gpu_options *options, const struct gpu_tuning *tuning,
	struct pfs_gpu **ret);
#define REGISTER_UNITS 512u

/* Of one of the two rounds of registering. */
struct register_round {
	uint64_t ns; /* all of it */
	uint32_t units;
	uint64_t unit_ns[REGISTER_UNITS]; /* of the first ones that ended */
};

struct register_times {
	struct register_round map, pin;
};

/* pfs_gpu_register and its end in generation 1, by other numbers of threads (1..64) and in other pieces than the library's, which *ret
 * (may be NULL) tells the times of. */
int attach_register(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint32_t threads, uint64_t piece, struct register_times *ret);
int attach_unregister(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t piece);
/* pfs_gpu_attach, for who has attached the session to this device before. -ENOENT: nobody has, and nothing is said. */
int attach_again(struct pfs_gpu *gpu, struct pfs_session *session);
/* The device is closed: takes back all that is registered still. No operation is under way. */
void attach_forget(struct pfs_gpu *gpu);

#endif
