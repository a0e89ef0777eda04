/* SPDX-License-Identifier: Apache-2.0
 *
 * Laboratories by kind.
 */
#ifndef PREFIXFS_KERNELS_LAB_OPS_H
#define PREFIXFS_KERNELS_LAB_OPS_H

#include "kernels/lab.h"

struct lab {
	const struct lab_ops *ops;
};

struct lab_ops {
	int (*open)(int device, struct lab **ret);
	void (*close)(struct lab *lab);
	int (*take)(struct lab *lab, uint64_t bytes, uint64_t *ret);
	void (*give)(struct lab *lab, uint64_t memory);
	int (*write)(struct lab *lab, uint64_t device, const void *from, uint64_t bytes);
	int (*read)(struct lab *lab, void *to, uint64_t device, uint64_t bytes);
	int (*set)(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes);
	int (*copy)(struct lab *lab, bool to_device, const struct gpu_entry *entries, uint32_t count, bool batched);
	int (*copy_rows)(struct lab *lab, bool to_device, const struct lab_rows *list, uint32_t count, bool batched);
	int (*finish)(struct lab *lab, bool to_device);
	int (*upload)(struct lab *lab, uint64_t device, const void *from, uint64_t bytes);
	bool (*batches)(const struct lab *lab);
	int (*loop)(struct lab *lab, enum lab_work work, uint32_t turns, double *ret);
	int (*late_set)(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes, void **event);
	int (*hold)(struct lab *lab, uint32_t ms, void **event);
	int (*scribble)(struct lab *lab, uint64_t host, uint32_t ms);
	int (*trap)(struct lab *lab);
	int (*thread)(struct lab *lab);
	int (*spin)(struct lab *lab, void *event);
};

extern const struct lab_ops lab_ref;
extern const struct lab_ops lab_cuda; /* in builds without CUDA its open says so */

#endif
