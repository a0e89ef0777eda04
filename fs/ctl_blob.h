/* SPDX-License-Identifier: Apache-2.0
 *
 * `blob` of the text face of ctl: what blobs there are, one of them, removing one. Their bytes go by ioctl.
 */
#ifndef PREFIXFS_FS_CTL_BLOB_H
#define PREFIXFS_FS_CTL_BLOB_H

#include "fs/ctl_command.h"

/* As the other commands' begin: @words are list [FROM], stat WHICH or rm WHICH, where WHICH is a key's 64 hex digits or a name. */
int ctl_blob_begin(struct ctl_command_run *run, char **words, struct why *why);

#endif
