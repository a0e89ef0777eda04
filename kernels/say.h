/* SPDX-License-Identifier: Apache-2.0
 *
 * The sentence about a thread's last failed call, as pfs_gpu_last_error() shows it.
 */
#ifndef PREFIXFS_KERNELS_SAY_H
#define PREFIXFS_KERNELS_SAY_H

/* Keeps the sentence for the calling thread and returns -@error. */
int gpu_say(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The calling thread's sentence; lives until its next gpu_say. */
const char *gpu_said(void);

#endif
