/* SPDX-License-Identifier: Apache-2.0
 *
 * The version that `--version`, the mount's `version` file and `health` show; the build gives it.
 */
#ifndef PREFIXFS_FS_VERSION_H
#define PREFIXFS_FS_VERSION_H

extern const char version_text[];

#endif
