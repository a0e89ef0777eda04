/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of `tiers`: the budget, and who has how much of it, as far as the viewer sees them. Takes the locks of
 * namespaces, one at a time and shortly.
 */
#ifndef PREFIXFS_FS_TIERS_H
#define PREFIXFS_FS_TIERS_H

#include <stdio.h>

#include "fs/fs.h"
#include "fs/viewer.h"

void tiers_print(struct fs *fs, const struct viewer *viewer, FILE *to);

#endif
