/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad input: a whole copy is judged before anything of it is submitted.
 */
#ifndef PREFIXFS_KERNELS_CHECK_H
#define PREFIXFS_KERNELS_CHECK_H

#include "kernels/prefixfs_gpu.h"

/* The alignment that a plane has to have: the largest power of two up to 16 that divides its pieces. */
uint32_t plane_alignment(const struct pfs_gpu_pool *pool, const struct pfs_gpu_plane *plane);

/* Everything but whether values are registered, which registry_claim says. 0, or the error of the header with its sentence. */
int check_pool(const struct pfs_gpu_pool *pool);
int check_copy(const struct pfs_gpu_copy *copy);

#endif
