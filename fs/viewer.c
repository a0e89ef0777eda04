/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/viewer.h"

#include <assert.h>
#include <sys/stat.h>

#include "store/base/lock.h"

void viewer_of(fuse_req_t req, struct viewer *ret)
{
	const struct fuse_ctx *who = fuse_req_ctx(req);

	lock_assert_none_held();
	ret->uid = who->uid;
	ret->gid = who->gid;
	ret->group_count = 0;
	if (who->uid == 0 || who->pid <= 0)
		return;
	/* How many there are, which may be more than were written; negative: not to be had. */
	int n = fuse_req_getgroups(req, VIEWER_MAX_GROUPS, ret->groups);
	if (n > 0)
		ret->group_count = (uint32_t)n < VIEWER_MAX_GROUPS ? (uint32_t)n : VIEWER_MAX_GROUPS;
}

static bool in_group(const struct viewer *v, gid_t gid)
{
	assert(v->group_count <= VIEWER_MAX_GROUPS);
	if (v->gid == gid)
		return true;
	for (uint32_t i = 0; i < v->group_count; i++)
		if (v->groups[i] == gid)
			return true;
	return false;
}

bool viewer_sees(const struct viewer *v, const struct space_access *access)
{
	if (v->uid == 0)
		return true;
	if (v->uid == access->uid)
		return access->mode & S_IRUSR;
	if (in_group(v, access->gid))
		return access->mode & S_IRGRP;
	return access->mode & S_IROTH;
}
