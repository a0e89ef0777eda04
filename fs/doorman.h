/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread for everything that does not come from the kernel's mount: the socket on which clients show their
 * tokens, the deaths of their processes, the parent's word, and the tick of each second.
 *
 * A connection has one message to send, struct pfs_hello, within config.hello_ms; it is answered with struct
 * pfs_welcome and closed. A hello of kind IMPORT brings a descriptor for a session that is there (store/import.h). Who sent it is told by the kernel: credentials, groups, and a descriptor of the process
 * (SO_PEERPIDFD, else pidfd_open of the peer's pid). Without one it is refused: the end of that process is what
 * frees its slots. The parent has a copy of it before the client is welcomed.
 */
#ifndef PREFIXFS_FS_DOORMAN_H
#define PREFIXFS_FS_DOORMAN_H

#include "fs/fs.h"

struct doorman;

/* @listener is taken over. NULL: no memory or descriptors. */
struct doorman *doorman_new(struct fs *fs, int listener);
/* Before it is started: the process of session @number of before, whose end is watched for. @pidfd is taken over, on failure too. 0 or a
 * negative errno. */
int doorman_watch(struct doorman *doorman, const char *space, uint64_t number, int pidfd);
int doorman_start(struct doorman *doorman); /* the thread; 0 or a negative errno */
void doorman_stop(struct doorman *doorman); /* waits for it */
void doorman_free(struct doorman **doorman);

#endif
