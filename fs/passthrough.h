/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of `raw` past the daemon: at its opening the kernel is given the record file, and reads it itself from then on (FUSE
 * passthrough). It takes libfuse 3.17 at compile time, Linux 6.9 and CAP_SYS_ADMIN; where anything is missing, reads come to the
 * daemon. Which it is stands in the log at the start, and in `tiers` and `metrics`.
 *
 * The kernel wants all opens of a node that are there at once to be of one kind and to have one file, or they end with EIO. So:
 *
 *   first open      the kernel gets the file: a *backing*, kept for the node and counted
 *   further opens   have the same backing. Where the record has another file by now (it grew, and was written anew), the
 *                   kernel is told to bring this open's reads to the daemon all the same: it shows the file of now
 *   last release    the kernel has let go of the file for the node before it says so: the backing ends
 *   a failure       no node begins with a backing any more until the daemon starts anew; those that have one go on
 *
 * On a connection that a serving process has taken over nothing begins with a backing: which nodes are open so since before is not
 * known, and the kernel would end other opens of them with EIO.
 *
 * What is open stays readable, as any file: what it reads is the file of its opening, though that was removed meanwhile.
 *
 * Thread-safe. One lock, a leaf (LOCK_QUEUE), held for a walk over PASSTHROUGH_OPENS nodes at most; the kernel is not called
 * under it.
 */
#ifndef PREFIXFS_FS_PASSTHROUGH_H
#define PREFIXFS_FS_PASSTHROUGH_H

#include "fs/fs.h"

#define PASSTHROUGH_OPENS 1024u /* opens of `raw` at once, where it is in use */

struct passthrough;

struct passthrough *passthrough_new(struct fs *fs); /* NULL: no memory */
/* Nothing may be open any more (handles_free). */
void passthrough_free(struct passthrough **passthrough);

/* While INIT is answered, where there is a disk tier: asks the kernel for it. */
void passthrough_ask(struct passthrough *p, struct fuse_conn_info *conn);
/* Once it was answered and before anything else is: tries it with a nameless file in the folder of record files, and says in the
 * log what came of it. Nothing without a disk tier. Blocks on the disk. */
void passthrough_begin(struct passthrough *p);
/* Is an open of `raw` to be asked about (passthrough_open)? Constant after passthrough_begin. */
bool passthrough_began(const struct passthrough *p);
/* Does a first open read past the daemon now? Any thread. */
bool passthrough_in_use(struct passthrough *p);

/* A `raw`. Its node has the low bits of the other two alone (fs/node.h), and may be another's while an open is there for long. */
struct passthrough_of {
	fuse_ino_t node;
	uint64_t namespace;  /* its number */
	uint32_t generation; /* of the record's number */
};

/* What the open of @of answers: @fi, whose `fh` is a handle that ends with the release, or 0: reads come to the daemon then.
 * @file: its record file, open for reading, the caller's. -ENFILE: PASSTHROUGH_OPENS are open; -EBUSY: another record's file is
 * open under the node; -EINVAL: O_DIRECT, which its file system does not have, or no regular file; -EIO. Blocks on the disk; no
 * lock is held. */
int passthrough_open(struct passthrough *p, const struct passthrough_of *of, int file, struct fuse_file_info *fi);

#endif
