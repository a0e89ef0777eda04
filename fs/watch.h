/* SPDX-License-Identifier: Apache-2.0
 *
 * The root file `events`: who has it open, where each of them stands in the ring (fs/events.h), and who waits.
 *
 * A reader is an open of the file: a viewer and a position. One that stops reading costs nothing else; what the ring has
 * overwritten meanwhile it is told as a gap.
 *
 *   read(2)    what is there is answered at once, in the loop thread that took the request; else the request is kept
 *   waiting    kept, at most WATCH_READS of one open     watch_noted, watch_interrupt, watch_stop wake the thread,
 *                                                        which answers it: a waiting request holds no loop thread
 *   poll(2)    the last handle of each open is kept and told once, by the thread
 *
 * The thread ("pfs-events") looks at most once in WATCH_PAUSE_MS, and whoever notes an event wakes it at most once for
 * each look, and only while somebody waits: some hundred wake-ups a second at any rate of events.
 *
 * Names and access rights of namespaces are kept here by their serial, from their making on; of those that are gone
 * the last WATCH_SPACES are, with the rights that they had at their end. An event of one that is not known any more (or
 * of one that never came into view) only root sees, without a name.
 *
 * Thread-safe. One lock, a leaf (LOCK_QUEUE), held for at most 64 events; never across a call of libfuse's. The way of
 * a put takes the ring's lock only.
 */
#ifndef PREFIXFS_FS_WATCH_H
#define PREFIXFS_FS_WATCH_H

#include "fs/events.h"
#include "fs/fs.h"
#include "fs/viewer.h"

#define WATCH_READERS 64u
#define WATCH_READS 4u     /* waiting reads of one open: EBUSY */
#define WATCH_SPACES 1024u /* known ones, at most HOST_MAX_SPACES of them alive */
#define WATCH_BYTES 65536u /* of one read */
#define WATCH_PAUSE_MS 5

struct reader;
struct watch;

struct watch *watch_new(struct fs *fs); /* NULL: no memory or descriptors */
/* The thread; 0 or a negative errno. */
int watch_start(struct watch *watch);
/* The mount is gone from its place while some have the file open yet: nothing waits any more. What does is answered with
 * ENODEV, as is who has read all that is there; pollers are woken. Any thread. */
void watch_close(struct watch *watch);
/* The same, and waits for the thread, which has answered everything by then and never waits for a request. */
void watch_stop(struct watch *watch);
void watch_free(struct watch **watch); /* no reader may be open */

/* ---- what the store tells -------------------------------------------------------------------------------------- */

/* Notes @count events of the namespace with @serial. Under any lock but a leaf; a few nanoseconds each, and a write(2)
 * to an eventfd now and then. */
void watch_note(struct watch *watch, uint32_t serial, const struct host_event *events, uint32_t count);
/* EVENT_DEGRADED or EVENT_RECOVERED with its sentence, which is cut at EVENT_TEXT_BYTES. */
void watch_note_health(struct watch *watch, uint32_t serial, bool degraded, const char *text);
/* EVENT_RESUMED, told to all. */
void watch_note_resumed(struct watch *watch, uint32_t restarts, uint32_t upgrades);
/* A namespace came into view; its rights changed; it is gone. Before the events that say so. */
void watch_space(struct watch *watch, uint32_t serial, const char *name, const struct space_access *access);
void watch_space_access(struct watch *watch, uint32_t serial, const struct space_access *access);
void watch_space_gone(struct watch *watch, uint32_t serial, const struct space_access *access);
uint64_t watch_count(const struct watch *watch); /* events noted since the start */
uint64_t watch_lost(const struct watch *watch);  /* events that readers were told as gaps, summed over readers */
uint32_t watch_readers(struct watch *watch);

/* ---- the file -------------------------------------------------------------------------------------------------- */

/* Opens for @viewer, at the oldest event that is kept or (@at_end) the next one. 0 with the handle for fi->fh; -ENFILE:
 * WATCH_READERS are open; -ENOMEM. */
int watch_open(struct watch *watch, const struct viewer *viewer, bool at_end, uint64_t *handle);
/* read(2): whole lines into at most @size bytes. Replies, now or later. EINVAL: the next line does not fit; EAGAIN;
 * EBUSY; EINTR; ENODEV: the daemon ends; ESTALE: a handle of an earlier daemon. Called by a loop thread. */
void watch_read(struct watch *watch, fuse_req_t req, uint64_t handle, size_t size, bool nonblock);
/* poll(2) of the open file that the caller has taken from the handles; takes @poll over, or NULL. True: readable. */
bool watch_poll(struct reader *reader, struct fuse_pollhandle *poll);

#endif
