/* SPDX-License-Identifier: Apache-2.0
 *
 * The version that `--version`, the mount's `version` file and `health` show; the build gives it.
 */
#ifndef PREFIXFS_FS_VERSION_H
#define PREFIXFS_FS_VERSION_H

#ifdef PFS_VERSION
#define VERSION_TEXT PFS_VERSION
#else
#define VERSION_TEXT "unknown"
#endif

#endif
