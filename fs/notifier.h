/* SPDX-License-Identifier: Apache-2.0
 *
 * The one thread that tells the kernel things without being asked: names that went, files that became readable. It may
 * block there on a directory that a request of ours holds, so no request ever waits for it, and it ends before the
 * loops.
 *
 * The queue of names is bounded; what does not fit is dropped and counted: names are remembered by the kernel for
 * FS_ENTRY_S only, which heals it.
 */
#ifndef PREFIXFS_FS_NOTIFIER_H
#define PREFIXFS_FS_NOTIFIER_H

#include "fs/fs.h"
#include "index/tables.h"

struct ctl;
struct notifier;

struct notifier *notifier_new(struct fs *fs); /* NULL: no memory */
/* The thread; 0 or a negative errno. */
int notifier_start(struct notifier *notifier);
void notifier_stop(struct notifier *notifier); /* waits for it; nothing is told any more */
void notifier_free(struct notifier **notifier);

/* Under any lock but a leaf: notes and returns. */
void notifier_record_gone(struct notifier *notifier, uint32_t serial, uint64_t consumed, const struct key *endpoint);
void notifier_changed(struct notifier *notifier);

/* @ctl wants to be told once; takes @handle over. */
void notifier_add_poller(struct notifier *notifier, struct ctl *ctl, struct fuse_pollhandle *handle);
void notifier_forget_poller(struct notifier *notifier, struct ctl *ctl);

uint64_t notifier_dropped(const struct notifier *notifier); /* names that did not fit the queue */

#endif
