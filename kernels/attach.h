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
/* The device is closed: takes back all that is registered still. No operation is under way. */
void attach_forget(struct pfs_gpu *gpu);

#endif
