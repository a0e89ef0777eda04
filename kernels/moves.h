/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of one plan, and what becomes of the plan: it is given back when the device cannot touch its values any more.
 */
#ifndef PREFIXFS_KERNELS_MOVES_H
#define PREFIXFS_KERNELS_MOVES_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/client/prefixfs_abi.h"
#include "kernels/prefixfs_gpu.h"
#include "kernels/work.h"

struct moves {
	struct pfs_gpu *gpu;
	struct pfs_session *session;
	uint64_t plan;
	bool to_device; /* a get plan, to be released; else a put plan, to be aborted */
	uint32_t count, values;
	uint64_t bytes;
	struct pfs_gpu_op *ops[PFS_MAX_CLASSES];
};

/* Starts the copies of one class: of @count answers or offsets those below PFS_ANSWER_MIN. */
int moves_start(struct moves *moves, const struct pfs_gpu_pages *pages, const uint8_t *segment, const uint64_t *offsets,
	uint32_t count, void *after, uint32_t flags);
/* Waits for all, until @deadline_ns. The first error. */
int moves_wait(struct moves *moves, uint64_t deadline_ns);
/* Ends the operations. With @give_back the plan is aborted or released: now, or when the last copy has ended. The
 * calling thread's sentence stays. */
void moves_end(struct moves *moves, bool give_back);

/* What libprefixfs says about its last failed call becomes ours: "@what: ...". Returns @error. */
int from_client(int error, const char *what);

/* Waits until no plan of @session is left to be given back, the default deadline. -ETIMEDOUT. */
int aftermaths_wait(struct pfs_gpu *gpu, struct pfs_session *session);

#endif
