/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's connection across serving processes. The parent has the only open file of /dev/fuse; every serving process inherits
 * it. What one read and did not answer stays with the kernel, on that open file, until it is asked to say it again.
 *
 *   NEW       nothing was read        the kernel's INIT comes, is answered by libfuse, both are kept (fs/will.h)
 *   KEPT      INIT was answered       connection_replay: libfuse is fed the kept INIT; its reply is compared with the kept one and sent
 *                                     to nobody; then connection_resend
 *   DIFFERENT the replies differ, INIT was kept but not answered, or the kernel cannot resend: the parent aborts the connection and mounts
 *                                     anew (SERVE_EXIT_REMOUNT); what is in memory is adopted all the same
 *
 * The session's input and output go through fuse_session_custom_io: read(2) and writev(2) on the inherited descriptor, and the place
 * where INIT and its reply are seen. The descriptor is never cloned: what a clone has read dies with it. Each buffer is touched before
 * it is read into for the first time: where a page is missing, a read that a death meets has the kernel end its request with EIO.
 *
 * connection_open and _replay: the first thread, before others run. The rest: any thread, without a lock; what is known of the request
 * at hand is the thread's own.
 */
#ifndef PREFIXFS_FS_CONNECTION_H
#define PREFIXFS_FS_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"
#include "fs/will.h"

enum connection_state { CONNECTION_NEW, CONNECTION_KEPT, CONNECTION_DIFFERENT };

/* What the will says about the connection of the mount @device. @why: when it is DIFFERENT, a sentence for log and health. */
enum connection_state connection_judge(const struct will *will, uint32_t device, struct why *why);
/* Does the kernel resend (its INIT said so)? For health. */
bool connection_survives(const struct will *will);

/* Keeps the INIT of the mount @device as one that is not answered yet. */
void connection_keep(struct will *will, uint32_t device, const void *request, size_t bytes);

/* fs->session with @ops over @fd, which becomes non-blocking and the session's, to be closed by fuse_session_destroy; the caller's still
 * after an error. INIT and the reply to it are kept in fs->will when they pass. ENOMEM, EIO. */
int connection_open(struct fs *fs, const struct fuse_lowlevel_ops *ops, int fd, struct why *why);
/* Of a KEPT one, right after connection_open: fs->session becomes what the predecessor's was, in about 0.1 ms. EPROTO: libfuse answers
 * INIT otherwise than it was answered; the sentence names the first field that differs, with both values. */
int connection_replay(struct fs *fs, struct why *why);
/* Feeds libfuse the INIT of fs->will, right after connection_open; its reply goes to nobody but @reply. Its length, which is 0 where
 * there is none and larger than there is room for where it was cut. */
size_t connection_rehearse(struct fs *fs, uint8_t reply[WILL_INIT_BYTES]);
/* Does @reply, of @bytes, say anything but what the kernel was told? @text, at least 128: the first field, with both values. Pure. */
bool connection_differs(const struct will_init *init, const uint8_t *reply, size_t bytes, char *text, size_t size);
/* Has the kernel of @fd queue again what was read and not answered, with the top bit of its number set. To be called once in a process's life,
 * after connection_replay and before the first read, when no thread of the predecessor can run any more; by the parent before it answers
 * itself (fs/fallen.h). EINVAL: the kernel is older than 6.9. Harmless when it is repeated by the next process. */
int connection_resend(int fd, struct why *why);
/* Wakes whoever waits in poll(2) on a handle of a predecessor, and forgets them. Never blocks on a lock of a directory. Before the first
 * read. */
void connection_wake_polls(int fd, struct will *will);

/* Of each request, before libfuse has it (loop.c): notes whether it was sent again, and of FUSE_POLL the kernel's number of the sleeper,
 * which libfuse tells nobody, in the will. */
void connection_note(struct fs *fs, const void *request, size_t bytes);
/* Is the request that this thread works on one that was sent again? Then what it asks for may have been done already (ops_dir.c). */
bool connection_resent(void);

#endif
