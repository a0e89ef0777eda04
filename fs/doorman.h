/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread for everything that does not come from the kernel's mount: the socket on which clients show their
 * tokens, the deaths of their processes, the parent's word, and the tick of each second.
 *
 * A connection has one message to send, struct pfs_hello, within config.hello_ms; it is answered with struct
 * pfs_welcome and closed. A hello of kind IMPORT brings a descriptor for a session that is there (store/import.h). Who sent it is told by the kernel: credentials, groups, and a descriptor of the process
 * (SO_PEERPIDFD, else pidfd_open of the peer's pid). Without one it is refused: the end of that process is what
 * frees its slots. The parent has a copy of it before the client is welcomed.
 *
 * A session may have a guard, which ATTACH named: its slots are free when both have ended. A process is watched by one descriptor, however
 * many sessions are its own, or have it for their guard; sessions that nothing waits for any more are forgotten now and then, and
 * with the last one the descriptor.
 */
#ifndef PREFIXFS_FS_DOORMAN_H
#define PREFIXFS_FS_DOORMAN_H

#include "fs/fs.h"

struct doorman;

/* @listener is taken over. NULL: no memory or descriptors. */
struct doorman *doorman_new(struct fs *fs, int listener);
/* Before it is started: the process of session @number of before, and its guard (@guard_fd -1: there is none), whose ends are watched for;
 * either may have come already. The descriptors are taken over, on failure too. 0 or a negative errno. */
int doorman_watch(struct doorman *doorman, const char *space, uint64_t number, int pidfd, int guard_fd);
/* Before it is started: nothing waits for the processes of session @number of before: the parent lets go of them. */
void doorman_forget(struct doorman *doorman, const char *space, uint64_t number);
int doorman_start(struct doorman *doorman); /* the thread; 0 or a negative errno */
void doorman_stop(struct doorman *doorman); /* waits for it */
void doorman_free(struct doorman **doorman);

#endif
