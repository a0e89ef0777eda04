/* SPDX-License-Identifier: Apache-2.0
 *
 * Is anything wrong with a namespace, or with the disk tier? What `health` says in its first line, and the events `degraded` and `recovered`.
 */
#ifndef PREFIXFS_FS_HEALTH_H
#define PREFIXFS_FS_HEALTH_H

#include "fs/event_text.h"
#include "fs/fs.h"
#include "fs/namespaces.h"

/* True: something is, in words: each reason, with "; " between them, cut at the end of @text. */
bool health_is_degraded(const struct fs *fs, const struct namespace_info *info, const struct space_report *report,
	char text[EVENT_TEXT_BYTES]);

/* The same of the host's disk tier; false too where none was asked for. */
bool health_disk_is_degraded(const struct host_disk_report *disk, char text[EVENT_TEXT_BYTES]);

/* The same of memory that was dropped. @named: with names and reasons, else how many there are. */
bool health_dropped_is_degraded(const struct fs *fs, bool named, char text[EVENT_TEXT_BYTES]);

struct health; /* what was wrong when it was looked at last. One thread's: the doorman's */

struct health *health_new(void); /* NULL: no memory */
void health_free(struct health **health);
/* Looks at the disk tier and every namespace and notes what has changed since the last look: `degraded` when something is wrong that was
 * not, or in other words, `recovered` when nothing is any more or the namespace is gone. Some microseconds a namespace. */
void health_look(struct health *health, struct fs *fs);

#endif
