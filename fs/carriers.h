/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads ("pfs-carry") for requests in which the daemon itself moves values' bytes: no loop copies any, or waits for a disk. A
 * request that was handed over belongs to its thread until its step has run to the end; then it is queued, and a loop answers it.
 * First in, first out.
 *
 * Thread-safe. One lock, a leaf (LOCK_QUEUE), guards the queue; nothing is called under it.
 */
#ifndef PREFIXFS_FS_CARRIERS_H
#define PREFIXFS_FS_CARRIERS_H

#include "fs/calls.h"

#define CARRIERS_THREADS 4u

struct carriers;

struct carriers *carriers_new(struct fs *fs); /* NULL: no memory */
int carriers_start(struct carriers *carriers); /* 0 or a negative errno */
/* Waits for those under way: after calls_close they give up within a twentieth of a second; what waits is queued. Before the loops leave. */
void carriers_stop(struct carriers *carriers);
void carriers_free(struct carriers **carriers); /* stopped */

/* @work(call) blocks; then the call goes to the loops. False: it is over; the call is still the caller's. */
bool carriers_give(struct carriers *carriers, struct call *call, void (*work)(struct call *call));

#endif
