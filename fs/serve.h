/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving process: opens the store, answers the mount, ends when told to or when the mount or the parent is gone.
 */
#ifndef PREFIXFS_FS_SERVE_H
#define PREFIXFS_FS_SERVE_H

#include "fs/config.h"

#define SERVE_EXIT_REFUSED 3 /* it could not begin, and would not the next time either; its last log line says why */
#define SERVE_EXIT_REMOUNT 4 /* it could not take the mount's connection over, as its last log line says: with a new mount it can begin */

/* config->serve says what it inherited. Ends the process: with status 0 after HANDOVER, STOP or an unmount. */
__attribute__((noreturn)) void serve_run(const struct config *config);

#endif
