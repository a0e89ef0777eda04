/* SPDX-License-Identifier: Apache-2.0
 *
 * Mounting and unmounting, by the kernel's calls as root and through fusermount3 otherwise. Nothing here opens a
 * file of the mount: whoever serves a mount and opens it hangs at exit.
 */
#ifndef PREFIXFS_FS_MOUNT_H
#define PREFIXFS_FS_MOUNT_H

#include <stdbool.h>

#include "fs/config.h"

/* Resolves config->mountpoint and refuses what is no empty directory or carries a live mount; a dead one of ours
 * (nobody answers) is taken away first. */
int mount_check(struct config *config, struct why *why);
/* Opens /dev/fuse and mounts. *fd is close-on-exec; *device is the mount's st_dev minor, as mountinfo shows it. */
int mount_make(const struct config *config, int *fd, unsigned *device, struct why *why);
/* Is our mount @device still the topmost at the mount point? */
bool mount_present(const struct config *config, unsigned device);
/* Is a prefixfs of that device mounted anywhere in our mount namespace, bind mounts included? True when it cannot be told. */
bool mount_anywhere(unsigned device);
/* Takes it away. Clean first, then lazily, and last by ending the connection, so that it is gone whatever clients do.
 * With @dead nobody serves any more: only the last two. */
void mount_remove(const struct config *config, unsigned device, bool dead);
/* A descriptor to end the connection of the mount @device with, which must be there: it stays that connection's when the
 * mount is detached and its number another's. -1: none is to be had. */
int mount_open_abort(unsigned device);
/* Ends the connection if it is still there: whoever waits for an answer gets ECONNABORTED or ENOTCONN. */
void mount_abort(int fd);
/* "\040" and the like of /proc/self/mountinfo become what they stand for. */
void mount_unescape(char *text);

#endif
