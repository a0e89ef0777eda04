/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving process: opens the store, answers the mount, ends when told to or when the mount or the parent is gone.
 */
#ifndef PREFIXFS_FS_SERVE_H
#define PREFIXFS_FS_SERVE_H

#include "fs/config.h"

#define SERVE_DISK_END_MS 5000 /* for the jobs under way and the catalogues, where there is a disk tier */
#define SERVE_EXIT_REFUSED 3 /* it could not begin, and would not the next time either; its last log line says why */

/* config->serve says what it inherited. Returns the exit status: 0 after STOP or an unmount. */
int serve_run(const struct config *config);

#endif
