/* SPDX-License-Identifier: Apache-2.0
 *
 * Namespaces out of what the parent held of their predecessor (fs/heirlooms.h, store/adopt.h), by name.
 *
 * In the serving process's first thread, before others run.
 */
#ifndef PREFIXFS_FS_INHERITANCE_H
#define PREFIXFS_FS_INHERITANCE_H

#include "fs/fs.h"
#include "fs/heirlooms.h"

enum inheritance_answer {
	INHERITANCE_NONE,    /* nothing of it is held */
	INHERITANCE_TAKEN,   /* *ret is the namespace, referenced for the caller */
	INHERITANCE_REFUSED, /* @why says why: it is to be made anew; what was held of it has been let go of */
};

/* @layout is taken over where the answer is not NONE. Logs what was found. Does not return where there is no memory for it: the process
 * ends, and the next one tries again. */
enum inheritance_answer inheritance_take(struct fs *fs, struct heirlooms *heirlooms, const char *name, struct layout *layout,
	const struct space_access *access, struct space **ret, struct why *why);

#endif
