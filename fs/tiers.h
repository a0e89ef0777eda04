/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of `tiers`: the budgets, and who has how much of them, as far as the viewer sees them. Takes the locks of
 * namespaces, one at a time and shortly.
 */
#ifndef PREFIXFS_FS_TIERS_H
#define PREFIXFS_FS_TIERS_H

#include <stdio.h>

#include "fs/fs.h"
#include "fs/viewer.h"

/* "ok", "full" ... */
const char *tiers_state_name(enum host_disk_state state);
/* Where a record's values are: "memory", "disk" or "memory,disk". */
const char *tiers_of_record(const struct record_info *record);

void tiers_print(struct fs *fs, const struct viewer *viewer, FILE *to);

#endif
