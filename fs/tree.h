/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree: from a node id to what it is now, and what a directory holds.
 *
 * Permissions follow the namespace's mode M: its directories have M, its files the read bits of M, ctl the read and
 * write bits. The kernel checks them (default_permissions). Sizes of small texts are 0, as in /proc: they change
 * between stat and open, and cat, grep, wc and Python read to the end of such a file, while a wrong size would cut
 * them short. layout has its true size, since it never changes, and pages and row have theirs.
 */
#ifndef PREFIXFS_FS_TREE_H
#define PREFIXFS_FS_TREE_H

#include "fs/fs.h"
#include "fs/namespaces.h"
#include "fs/node.h"

/* A node as it is now. */
struct look {
	struct node node;
	struct namespace_info namespace; /* of a namespace's nodes and records'; its space is referenced by us */
	struct record_info record;       /* of a record's */
	struct session_info *session;    /* of a session's; ours */
	struct stat st;
};

/* 0, or -ENOENT: what it was is gone; look_end either way is right. */
int look_at(struct fs *fs, fuse_ino_t ino, struct look *look);
/* Child @name of directory @parent, which was looked at. -ENOENT, -ENOTDIR. */
int look_up(struct fs *fs, const struct look *parent, const char *name, struct look *look);
void look_end(struct look *look);

/* How long the kernel may remember the name and attributes, in seconds. */
double look_patience(const struct look *look);

/* Entries of a directory, in an order that stays while entries come and go. */
struct walk {
	struct fs *fs;
	const struct look *dir;
	uint64_t *sessions; /* numbers, of the sessions directory */
	uint32_t session_count;
};

struct walk_entry {
	char name[96];
	struct node node;
	mode_t type;   /* S_IFDIR, ... */
	uint64_t next; /* offset after it */
};

/* False: no memory. */
bool walk_begin(struct walk *walk, struct fs *fs, const struct look *dir);
/* The first entry at or after @offset, 0 being the beginning; false: there is none. */
bool walk_next(struct walk *walk, uint64_t offset, struct walk_entry *entry);
void walk_end(struct walk *walk);

#endif
