/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree: from a node id to what it is now, and what a directory holds.
 *
 * Permissions follow the namespace's mode M: its directories have M, its files the read bits of M, ctl the read and
 * write bits. The kernel checks them (default_permissions). Sizes of small texts are 0, as in /proc: they change
 * between stat and open, and cat, grep, wc and Python read to the end of such a file, while a wrong size would cut
 * them short. layout has its true size, since it never changes, and pages and row have theirs. Folders that are computed
 * (checkpoints, pages) have the mode without its write bits: nobody can put anything there.
 */
#ifndef PREFIXFS_FS_TREE_H
#define PREFIXFS_FS_TREE_H

#include "fs/fs.h"
#include "fs/namespaces.h"
#include "fs/node.h"
#include "fs/viewer.h"

#define EVENTS_NAME ".events" /* where the link events leads */

/* A node as it is now. */
struct look {
	struct node node;
	struct namespace_info namespace; /* of what belongs to a namespace; its space is referenced by us */
	struct record_info record;       /* of a record's */
	struct key key;                  /* of a page */
	struct page_info page;           /* likewise */
	struct space_access access;      /* of a session's: of its namespace */
	struct stat st;
};

/* 0, or -ENOENT: what it was is gone; look_end either way is right. */
int look_at(struct fs *fs, fuse_ino_t ino, struct look *look);
/* Child @name of directory @parent, which was looked at, as @viewer sees it (NULL: as root does). -ENOENT, -ENOTDIR;
 * -ENFILE: too many pages are looked at by key. */
int look_up(struct fs *fs, const struct look *parent, const char *name, const struct viewer *viewer, struct look *look);
/* After look_up alone: the kernel does not count it as a look-up, since it was not told of it. Before look_end. */
void look_forget(struct fs *fs, const struct look *look);
void look_end(struct look *look);
/* May @viewer know of it? False for a session of a namespace that it does not see. What stands in a namespace's folder is
 * guarded by that folder's mode. */
bool look_visible(const struct look *look, const struct viewer *viewer);

/* How long the kernel may remember the name and attributes, in seconds. */
double look_patience(const struct look *look);

/* What stands in a directory by itself, in the order of readdir. */
struct fixed {
	enum node_kind parent;
	const char *name;
	enum node_kind kind;
	mode_t type;
};
/* The first one of @dir at or after *index that is there now; *index goes on behind it. NULL: none. */
const struct fixed *fixed_next(const struct look *dir, uint64_t *index);

#define WALK_LABELS 64u

/* Entries of a directory, in an order that stays while entries come and go. On the stack of a request. */
struct walk {
	struct fs *fs;
	const struct look *dir;
	struct viewer viewer;
	uint64_t listing; /* of the open directory */
	uint64_t *sessions; /* numbers, of the sessions directory */
	uint32_t session_count;
	uint32_t labels, label; /* records fetched ahead, and given out */
	uint64_t label_offset;  /* at which the next of them is asked for */
	struct record_label at[WALK_LABELS];
};

struct walk_entry {
	char name[96];
	struct node node;
	mode_t type;   /* S_IFDIR, ... */
	uint64_t next; /* offset after it */
};

/* @viewer counts in ns/ and sessions/. @listing: a number of its own for each open of the directory. False: no memory. */
bool walk_begin(struct walk *walk, struct fs *fs, const struct look *dir, const struct viewer *viewer, uint64_t listing);
/* The first entry at or after @offset, 0 being the beginning; false: there is none. */
bool walk_next(struct walk *walk, uint64_t offset, struct walk_entry *entry);
void walk_end(struct walk *walk);

#endif
