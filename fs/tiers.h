/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of `tiers`: the budget, and who has how much of it. Takes the locks of namespaces, one at a time and shortly.
 */
#ifndef PREFIXFS_FS_TIERS_H
#define PREFIXFS_FS_TIERS_H

#include <stdio.h>

#include "fs/fs.h"

void tiers_print(struct fs *fs, FILE *to);

#endif
