/* SPDX-License-Identifier: Apache-2.0
 *
 * Which way a rectangle goes, by what was measured.
 */
#ifndef PREFIXFS_KERNELS_PATHS_H
#define PREFIXFS_KERNELS_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/shape.h"

enum gpu_path {
	PATH_STAGED,  /* batched copies of stretches, kernels between ring and planes */
	PATH_BULK,    /* kernel of bulk asynchronous copies across the bus */
	PATH_DIRECT,  /* kernel of 16-byte loads and stores across the bus */
	PATH_BATCHED, /* batched copies, an entry a piece */
	PATHS,
};

const char *path_name(enum gpu_path path);

struct path_question {
	struct rect_measure measure;
	bool to_device, urgent;
	bool stages; /* it passes through the ring: stage_fits */
	bool bulk;   /* the device has the kernel */
};

/* GB/s that the table expects of it; 0 where it cannot go that way. */
double path_rate(enum gpu_path path, const struct path_question *question);
enum gpu_path path_choose(const struct path_question *question);

#endif
