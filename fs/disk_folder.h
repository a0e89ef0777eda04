/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon's folders cannot be, that of record files and the run folder's, looked at before anything is mounted.
 */
#ifndef PREFIXFS_FS_DISK_FOLDER_H
#define PREFIXFS_FS_DISK_FOLDER_H

#include "fs/config.h"

/* Refuses config->disk where it is not there (ENOENT) or is no folder (ENOTDIR), and where it is the mount point, lies below
 * it or above it (EINVAL): the daemon would look for its files in its own mount, and wait for itself. config->mountpoint is
 * resolved (mount_check). What else is wrong with it is no error here: memory runs alone then. 0 without a disk. Blocks. */
int disk_folder_check(const struct config *config, struct why *why);
/* Refuses config->run_dir where it is the mount point or lies below it, or is to be made there (EINVAL), for the same reason. What else is
 * wrong with it shows when it is used (fs/rundir.h). Blocks. */
int run_folder_check(const struct config *config, struct why *why);

#endif
