/* SPDX-License-Identifier: Apache-2.0
 *
 * The root file `metrics`: Prometheus text exposition 0.0.4 of one moment, that of its opening.
 */
#ifndef PREFIXFS_FS_METRICS_H
#define PREFIXFS_FS_METRICS_H

#include "fs/text.h"
#include "fs/viewer.h"

/* What @viewer may see: every family of the host, and of those by namespace the visible ones'. ENOMEM. Each space's lock is
 * held for a snapshot and for at most 64 (class, share) at a time; some 10 us a namespace in all. */
int metrics_text(struct fs *fs, const struct viewer *viewer, struct text **ret);

#endif
