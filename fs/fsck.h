/* SPDX-License-Identifier: Apache-2.0
 *
 * prefixfsd --fsck: looks at the record files of a folder that no daemon has, and puts them right where that is asked for.
 */
#ifndef PREFIXFS_FS_FSCK_H
#define PREFIXFS_FS_FSCK_H

/* The arguments after --fsck. The exit status: 0, nothing is wrong or all of it was put right; 1, something is, or it failed;
 * 2, wrong usage. */
int fsck_main(int argc, char **argv);

#endif
