/* SPDX-License-Identifier: Apache-2.0
 *
 * The one thread that tells the kernel things without being asked: names that went, namespaces that changed, pages it
 * should let go, files that became readable. It may block there on a directory that a request of ours holds, so no request
 * ever waits for it, and it ends before the loops. A process that is killed while it waits there cannot end; so it has a
 * table of descriptors of its own, and a successor need not wait for it (docs/survival.md).
 *
 * Of records only those are told that somebody has looked at (RECORD_FLAG_KNOWN). The queue is bounded, by NOTIFIER_NAMES
 * of 48 bytes, and its memory is touched as far as it ever filled; what does not fit is dropped and counted: names are
 * remembered by the kernel for FS_ENTRY_S only, which heals it. Links in checkpoints/ are never remembered, so there is
 * nothing to tell.
 */
#ifndef PREFIXFS_FS_NOTIFIER_H
#define PREFIXFS_FS_NOTIFIER_H

#include "fs/fs.h"
#include "index/tables.h"

#define NOTIFIER_NAMES (1u << 18) /* names that wait to be told: more than the kernel drops in FS_ENTRY_S */

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
/* A namespace got another mode or owner, or (@removed) is gone. */
void notifier_namespace(struct notifier *notifier, uint64_t number, const char *name, bool removed);
/* fs->page_nodes has a surplus. */
void notifier_pages(struct notifier *notifier);

/* @ctl wants to be told once; takes @handle over. */
void notifier_add_poller(struct notifier *notifier, struct ctl *ctl, struct fuse_pollhandle *handle);
void notifier_forget_poller(struct notifier *notifier, struct ctl *ctl);

struct notifier_count { /* of names */
	uint64_t told;    /* to the kernel, whether it knew them or not */
	uint64_t pending; /* in the queue now */
	uint64_t dropped; /* did not fit */
};
void notifier_count(struct notifier *notifier, struct notifier_count *ret);

#endif
