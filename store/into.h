/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_INTO: a range of a handle written to memory of the client's own. What is in memory is copied from its slot, what is on disk is
 * read into memory of this call, checked, and copied from there: no slot is taken and nothing is promoted. A read that others
 * have under way is not joined.
 *
 * begin() checks and registers, like a transfer's; run() does the work and blocks, so it is called from a thread that may. A call that
 * began is run to its end or undone.
 */
#ifndef PREFIXFS_STORE_INTO_H
#define PREFIXFS_STORE_INTO_H

#include "store/get.h"
#include "store/import.h"

struct get_into {
	struct get_transfer transfer; /* session to class_mask and deadline_ns are the caller's; what comes out, too */
	uint64_t import;
	uint64_t base, stride, state_base; /* bytes in the import */
	uint64_t class_offset[LAYOUT_MAX_CLASSES];
	const uint32_t *blocks; /* our own copy: of each page of the range; NULL: its number in the range */
	bool nonblock;          /* nothing is read from disk: EAGAIN */
	/* Asked between values and 50 times a second: 0, or the errno to give up with: EINTR, ESHUTDOWN, ENODEV. NULL: none ever. */
	int (*verdict)(void *context);
	void *context;
	/* private */
	struct import *to;
};

/* As get_transfer_begin without its ids of plans and offsets; ENOENT, EINVAL of the import; EINVAL, ERANGE: a value would lie over
 * another or outside the import. */
int get_into_begin(struct get_into *call, struct why *why);
/* 0: delivered_len may be less than `to` as of get_transfer_step, but for memory, which is not needed. After an error the call is
 * undone and the handle as before, and what was written so far means nothing. EAGAIN: nothing was read by the deadline, or
 * nonblock; EFAULT: the import cannot be written any more; EIO: a slot cannot be read; what verdict says; ENOMEM. Hold no lock. */
int get_into_run(struct get_into *call, struct why *why);
/* After run said 0; with a ticket it waits for the other ranks, and delivers what all can. 0; STEP_WAIT: again, or get_into_undo; an error,
 * after which it is undone. */
int get_into_step(struct get_into *call, struct why *why);
void get_into_undo(struct get_into *call);

#endif
