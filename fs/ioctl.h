/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of the control file, one row of a table each, and the way every request goes:
 *
 *   ioctl_receive   checks what all requests share, finds a repeated one, enters the session, calls begin()
 *   ioctl_run       calls step() until it answers something else than "more" or "wait"; between two steps the call
 *                   lies in the queue (fs/calls.h), so that others get their turn
 *   the answer      done() copies the results, the error's sentence is noted, the answer is kept, the kernel gets it
 *
 * An error is answered with the struct as well: its `out` fields that the ABI names are filled.
 */
#ifndef PREFIXFS_FS_IOCTL_H
#define PREFIXFS_FS_IOCTL_H

#include "fs/calls.h"
#include "fs/ctl.h"

#define STEP_CARRY 3 /* of begin() alone */

struct operation {
	const char *name;
	uint32_t bytes;         /* of its struct; 0 = no such operation */
	uint32_t bytes_1;       /* of the struct's first version, which programs built before send; 0 = there is one version. What such a
	                         * struct lacks is 0 in call.arg, and is not answered */
	uint32_t deadline_ms;   /* when the client names none */
	bool outside;           /* may be asked before ATTACH ended, without a call buffer */
	bool forgettable;       /* its answer is not kept for a repetition, nor its error noted */
	/* Checks the struct and begins: STEP_MORE: step() follows; STEP_WAIT: wait, then step(); STEP_CARRY: carry() in a thread
	 * of its own, then step(); 0: done; or an error. */
	int (*begin)(struct call *call);
	void (*carry)(struct call *call); /* blocks; looks at calls_verdict by itself; NULL: begin() never asks for it */
	int (*step)(struct call *call); /* STEP_MORE, STEP_WAIT, 0 or an error */
	void (*undo)(struct call *call); /* the wait is given up; NULL: there is nothing to undo */
	void (*done)(struct call *call); /* copies results, after an error too; NULL: begin and step wrote them */
};

/* The tables: fs/ioctl_session.c, fs/ioctl_put.c, fs/ioctl_get.c, fs/ioctl_import.c, fs/ioctl_manage.c, fs/ioctl_blob.c. */
extern const struct operation ioctl_attach, ioctl_segments, ioctl_segments_ack, ioctl_stat, ioctl_last_error, ioctl_settle;
extern const struct operation ioctl_put_start, ioctl_put_commit, ioctl_put_abort;
extern const struct operation ioctl_get_start, ioctl_get_transfer, ioctl_get_confirm, ioctl_get_cancel, ioctl_release, ioctl_probe;
extern const struct operation ioctl_import, ioctl_get_into;
extern const struct operation ioctl_touch, ioctl_remove, ioctl_pin, ioctl_drain, ioctl_reset;
extern const struct operation ioctl_blob_put, ioctl_blob_get, ioctl_blob_remove, ioctl_blob_lock;

/* The name of operation @nr of the ABI; NULL: it is not served. */
const char *ioctl_name(unsigned nr);
/* The number of @operation, which is one of the tables. */
unsigned ioctl_nr(const struct operation *operation);
/* The FUSE operation. */
void ioctl_receive(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *argument, struct fuse_file_info *fi,
		   unsigned flags, const void *in, size_t in_bytes, size_t out_bytes);
/* Goes on with a call that came from the queue. */
void ioctl_run(struct fs *fs, struct call *call);

#endif
