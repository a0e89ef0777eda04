/* SPDX-License-Identifier: Apache-2.0
 *
 * Who looks at the mount: the uid, gid and further groups of the process that opens or lists. What stands outside a
 * namespace's own folder shows only namespaces that the viewer sees (docs/view.md, "Who sees what").
 *
 * A viewer is a plain value without pointers: the caller's, to copy and keep for as long as its open file lasts. What it
 * may see is decided anew at each question, so a chmod of a namespace counts at once; a change of the process's own
 * groups after the opening does not, as with any open file.
 *
 * Thread-safe: nothing is shared.
 */
#ifndef PREFIXFS_FS_VIEWER_H
#define PREFIXFS_FS_VIEWER_H

#include "fs/fs.h"
#include "store/host.h"

#define VIEWER_MAX_GROUPS 64u /* further groups that count; of a process with more the first ones do: it may see less */

struct viewer {
	uid_t uid;
	gid_t gid;
	uint32_t group_count; /* of `groups`; 0 for root, who needs none */
	gid_t groups[VIEWER_MAX_GROUPS];
};

/* Who made the request, before its reply. The further groups are read from /proc (the caller of a request waits for our
 * reply, so its entry is still its own): some 20 us, no lock may be held. They are none where the kernel knows no pid of
 * the caller's (another pid namespace) or /proc does not show it: such a viewer sees less, never more. */
void viewer_of(fuse_req_t req, struct viewer *ret);

/* Root sees every namespace. Others need the read bit of its mode by the usual rule: the owner's if it is the owner, else
 * the group's if in that group, else everybody's. Any thread, any lock. */
bool viewer_sees(const struct viewer *viewer, const struct space_access *access);

#endif
