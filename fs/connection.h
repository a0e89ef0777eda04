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
 * where INIT and its reply are seen. The descriptor is never cloned: what a clone has read dies with it.
 *
 * connection_open and _replay: the first thread, before others run. The rest: any thread, without a lock.
 */
#ifndef PREFIXFS_FS_CONNECTION_H
#define PREFIXFS_FS_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"
#include "fs/will.h"

enum connection_state { CONNECTION_NEW, CONNECTION_KEPT, CONNECTION_DIFFERENT };

/* What the will says about the connection of the mount @device. @text: why it is DIFFERENT, a sentence for log and health. */
enum connection_state connection_judge(const struct will *will, uint32_t device, char *text, size_t bytes);

/* fs->session over @fd, non-blocking, with custom input and output. ENOMEM, EIO. Takes nothing over. */
int connection_open(struct fs *fs, int fd, struct why *why);
/* Of a KEPT one: fs->session becomes what the predecessor's was, in about 0.1 ms. EPROTO: libfuse answers INIT otherwise than it was
 * answered; the sentence names the first field that differs, with both values. */
int connection_replay(struct fs *fs, struct why *why);
/* Has the kernel queue again what was read and not answered, with FUSE_UNIQUE_RESEND in its number. To be called once in a process's
 * life, after connection_replay and before the first read, when no thread of the predecessor can run any more. EINVAL: the kernel
 * is older than 6.9. Harmless when it is repeated by the next process. */
int connection_resend(struct fs *fs, struct why *why);
/* Of each request, before libfuse has it (loop.c): notes whether it was sent again, and of FUSE_POLL the kernel's number of the sleeper,
 * which libfuse tells nobody, in the will. */
void connection_note(struct fs *fs, const void *request, size_t bytes);
/* Wakes whoever waits in poll(2) on a handle of a predecessor. Never blocks on a lock of a directory. */
void connection_wake_polls(struct fs *fs);

/* Is the request that this thread works on one that was sent again? Then what it asks for may have been done already (ops_dir.c). */
bool connection_resent(void);
/* Does the kernel resend (its INIT said so)? For health. */
bool connection_survives(const struct will *will);

#endif
