/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving process's parts, in one place. Made by serve.c in this order and ended in the opposite one; between, the
 * pointers never change, so every thread reads them without a lock.
 *
 * Threads: loop_threads loops that take requests from the kernel (loop.c); the doorman, for the clients' socket, the
 * processes' deaths and the tick of each second (doorman.c); the notifier, which alone tells the kernel things without
 * being asked about names and ctl (notifier.c); the one of `events`, for its readers that wait (watch.c); those that read
 * values from a disk for the view (aside.c), and those of drains and checks (errands.c), and those that
 * move bytes for GET_INTO (carriers.c); and the first one, which waits
 * for the end (serve.c).
 */
#ifndef PREFIXFS_FS_FS_H
#define PREFIXFS_FS_FS_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/buffers.h"
#include "fs/config.h"
#include "fs/rundir.h"
#include "store/host.h"

struct aside;
struct carriers;
struct calls;
struct doorman;
struct errands;
struct handles;
struct namespaces;
struct notifier;
struct page_nodes;
struct passthrough;
struct requests;
struct watch;
struct will;

#define FS_MAX_TEXTS 1024u /* open snapshots of small files */
#define FS_ENTRY_S 1.0     /* how long the kernel may remember a record's name and attributes */

struct fs {
	const struct config *config;
	struct rundir dir;
	int keeper;        /* channel to the parent */
	struct will *will; /* shared with the parent */
	unsigned device;   /* of the mount */
	unsigned restarts; /* serving processes that died before this one */
	unsigned upgrades; /* that gave way to one of another program, or of the same */
	const char *last_exit; /* why the one before ended, in the parent's words; empty = nobody died */
	uint64_t started_ns;
	struct why budget; /* a warning about the budget; error 0 = none */
	struct buffers buffers;
	struct host *host;
	bool disk; /* there is a disk tier, or was at the start */
	struct namespaces *namespaces;
	struct handles *handles;
	struct page_nodes *page_nodes;
	struct calls *calls;
	struct notifier *notifier;
	struct watch *watch;
	struct requests *requests;
	struct errands *errands;
	struct aside *aside;
	struct passthrough *passthrough;
	struct carriers *carriers;
	struct doorman *doorman;
	struct fuse_session *session;
	/* [number % HOST_MAX_SESSIONS] handle of the session's ctl, or of one before it */
	_Atomic uint64_t ctls[HOST_MAX_SESSIONS];
	_Atomic uint64_t listings; /* directories opened so far, above the epoch's */
	_Atomic bool ready;    /* the kernel's INIT was answered */
	_Atomic bool orphaned; /* the parent is gone */
	_Atomic bool leaving;  /* loops end */
	_Atomic bool handover; /* the end is an upgrade's: another serving process follows */
	_Atomic bool stop;     /* the daemon ends, also where an upgrade was under way */
	_Atomic bool hurry;    /* nothing is to be written down any more */
	bool resumed;          /* the connection is a predecessor's; constant once loops run */
	bool populating;       /* what the parent was told; the doorman's, once that runs */
	int populated;         /* eventfd: a namespace has its floor; the doorman reads it */
	int over;              /* eventfd: readable once the end has come; never read */
	int leave;             /* eventfd: readable once loops are to end; never read */
};

/* The end has come: by STOP, by an unmount, by the parent's death. Any thread, any number of times. */
void fs_end(struct fs *fs);

/* Tells the parent when populating the floors begins or is over. One thread. */
void fs_tell_populating(struct fs *fs);

/* The table of FUSE operations, and what they share. */
extern const struct fuse_lowlevel_ops fs_ops;

#endif
