/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of one plan, and what becomes of the plan: it is given back when the device cannot touch its values any more. By the caller,
 * where that is so in time, else by a thread that does nothing else: the daemon may take its time to answer, and the ends of other copies
 * are not to wait for it.
 */
#ifndef PREFIXFS_KERNELS_MOVES_H
#define PREFIXFS_KERNELS_MOVES_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/client/prefixfs.h"
#include "kernels/prefixfs_gpu.h"
#include "kernels/work.h"

struct moves {
	struct pfs_gpu *gpu;
	struct pfs_session *session;
	uint64_t plan;
	bool to_device; /* a get plan, to be released; else a put plan, to be aborted */
	uint32_t count, values;
	uint64_t bytes;
	struct aftermath *aftermath; /* memory for giving the plan back later */
	struct pfs_gpu_op *ops[PFS_MAX_CLASSES];
};

/* Before there is a plan: takes all memory that giving it back takes, so that this cannot fail. Ended with moves_end. -ENOMEM. */
int moves_init(struct moves *moves, struct pfs_gpu *gpu, struct pfs_session *session, bool to_device);
/* Starts the copies of one class: of @count answers or offsets those below PFS_ANSWER_MIN. */
int moves_start(struct moves *moves, const struct pfs_gpu_pages *pages, const uint8_t *segment, const uint64_t *offsets,
	uint32_t count, void *after, uint32_t flags);
/* Waits for all, until @deadline_ns. -ETIMEDOUT: one is under way still. Else none is: @error, which is what starting them said, or the first
 * error of theirs. */
int moves_wait(struct moves *moves, uint64_t deadline_ns, int error);
/* Ends the operations. With @give_back the plan is aborted or released: now, and what that says is returned; or, 0 then, by the thread: when the
 * last copy has ended, or where the daemon cannot be asked now. The calling thread's sentence stays. */
int moves_end(struct moves *moves, bool give_back);

/* Is @pages of class @class_index, as @info has it, right for that class? -EINVAL and what check_pool says, of "class N". */
int moves_check(struct pfs_session *session, const struct pfs_session_info *info, uint32_t class_index, const struct pfs_gpu_pages *pages);

/* What libprefixfs says about its last failed call becomes ours: "@what: ...". Returns @error. */
int from_client(int error, const char *what);

/* Waits until no plan of @session is left to be given back, the default deadline. -ETIMEDOUT. */
int aftermaths_wait(struct pfs_gpu *gpu, struct pfs_session *session);

#endif
