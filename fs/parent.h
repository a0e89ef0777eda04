/* SPDX-License-Identifier: Apache-2.0
 *
 * The parent process: mounts, starts the serving process, holds its descriptors, and takes the mount away again
 * whatever happens to whom.
 *
 *   the serving process ends with 0 and the mount is gone   somebody unmounted it: exit 0
 *   SIGTERM, SIGINT to the parent                           unmount, STOP, exit 0
 *   the serving process dies                                reason to last_exit, unmount, mount again, start it again;
 *                                                           after too many of them (deaths.h): give up, exit 1
 *   the parent is killed                                    the serving process sees the channel's end, unmounts, ends
 *
 * One thread. It never opens a file of the mount.
 */
#ifndef PREFIXFS_FS_PARENT_H
#define PREFIXFS_FS_PARENT_H

#include "fs/config.h"

/* Returns the program's exit status; in the background the caller's process has left before with it. */
int parent_run(struct config *config);

#endif
