/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes of records: user.prefixfs.* on records/<record> (docs/view.md).
 *
 * The kernel checks user.* attributes of a directory like its content: read bit to get, write bit to set or remove. It
 * checks against the mode that it remembers, for up to FS_ENTRY_S, so what changes something is checked here against the
 * mode of the moment.
 */
#include "fs/ops.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/log.h"
#include "fs/tiers.h"
#include "fs/tree.h"

#define PREFIX "user.prefixfs."
#define VALUE_MAX 32u
#define GROUPS_AT_ONCE 64

enum attribute { ATTRIBUTE_PIN, ATTRIBUTE_ROW, ATTRIBUTE_TIERS, ATTRIBUTE_HITS, ATTRIBUTES };

static const char *const names[ATTRIBUTES] = {
	[ATTRIBUTE_PIN] = PREFIX "pin",
	[ATTRIBUTE_ROW] = PREFIX "row",
	[ATTRIBUTE_TIERS] = PREFIX "tiers",
	[ATTRIBUTE_HITS] = PREFIX "hits",
};

/* ATTRIBUTES: none of ours, or on something that has none. */
static enum attribute find_attribute(const struct look *look, const char *name)
{
	enum attribute a = 0;

	if (look->node.kind != NODE_RECORD)
		return ATTRIBUTES;
	while (a < ATTRIBUTES && strcmp(names[a], name))
		a++;
	return a;
}

static void print_value(const struct record_info *record, enum attribute a, char value[VALUE_MAX])
{
	switch (a) {
	case ATTRIBUTE_PIN:
		snprintf(value, VALUE_MAX, "%d", record->pinned);
		break;
	case ATTRIBUTE_ROW:
		snprintf(value, VALUE_MAX, "%s", record->row_values ? "present" : "absent");
		break;
	case ATTRIBUTE_TIERS:
		snprintf(value, VALUE_MAX, "%s", tiers_of_record(record));
		break;
	case ATTRIBUTE_HITS:
		snprintf(value, VALUE_MAX, "%" PRIu64, record->hits);
		break;
	case ATTRIBUTES:
		value[0] = '\0';
		break;
	}
}

/* What getxattr(2) and listxattr(2) have in common: @size 0 asks for the length. */
static void reply_bytes(fuse_req_t req, const char *bytes, size_t length, size_t size)
{
	if (!size)
		fuse_reply_xattr(req, length);
	else if (length > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, bytes, length);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs *fs = fuse_req_userdata(req);
	char value[VALUE_MAX];
	struct look look;
	int r = look_at(fs, ino, &look);

	if (!r) {
		enum attribute a = find_attribute(&look, name);

		/* Counts the values, too, which looking at a record does not. */
		if (a == ATTRIBUTE_TIERS)
			r = space_record_get(look.namespace.space, look.record.number, look.record.generation, &look.record);
		print_value(&look.record, a, value);
		if (!r && a == ATTRIBUTES)
			r = -ENODATA;
	}
	look_end(&look);
	if (r)
		fuse_reply_err(req, -r);
	else
		reply_bytes(req, value, strlen(value), size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct fs *fs = fuse_req_userdata(req);
	char list[ATTRIBUTES * VALUE_MAX];
	size_t length = 0;
	struct look look;
	int r = look_at(fs, ino, &look);

	for (enum attribute a = 0; !r && look.node.kind == NODE_RECORD && a < ATTRIBUTES; a++) {
		memcpy(list + length, names[a], strlen(names[a]) + 1);
		length += strlen(names[a]) + 1;
	}
	look_end(&look);
	if (r)
		fuse_reply_err(req, -r);
	else
		reply_bytes(req, list, length, size);
}

/* ---- changing ------------------------------------------------------------------------------------------------ */

static bool in_group(fuse_req_t req, gid_t gid)
{
	gid_t few[GROUPS_AT_ONCE], *groups = few;
	int n = fuse_req_getgroups(req, GROUPS_AT_ONCE, few);
	bool found = fuse_req_ctx(req)->gid == gid;

	if (n > GROUPS_AT_ONCE) {
		int all = n;

		groups = malloc((size_t)all * sizeof(*groups));
		n = groups ? fuse_req_getgroups(req, all, groups) : 0;
		n = n > all ? all : n;
	}
	for (int i = 0; i < n && !found; i++)
		found = groups[i] == gid;
	if (groups != few)
		free(groups);
	return found;
}

static int check_write(fuse_req_t req, const struct space_access *access)
{
	const struct fuse_ctx *who = fuse_req_ctx(req);
	unsigned bits = access->mode & 7;

	if (who->uid == 0)
		return 0;
	if (who->uid == access->uid)
		bits = access->mode >> 6 & 7;
	else if (in_group(req, access->gid))
		bits = access->mode >> 3 & 7;
	return bits & 2 ? 0 : -EACCES;
}

static int set_pin(const struct look *look, const char *value, size_t size, struct why *why)
{
	struct space *space = look->namespace.space;

	if (size != 1 || (value[0] != '0' && value[0] != '1'))
		return why_set(why, EINVAL, "%s is 0 or 1", names[ATTRIBUTE_PIN]);
	return value[0] == '1' ? space_record_pin(space, look->record.number, look->record.generation, why)
	                       : space_record_unpin(space, look->record.number, look->record.generation, why);
}

static int set_attribute(
	fuse_req_t req, const struct look *look, const char *name, const char *value, size_t size, int flags, struct why *why)
{
	enum attribute a = find_attribute(look, name);
	int r;

	if (a == ATTRIBUTES)
		return -EOPNOTSUPP;
	r = check_write(req, &look->namespace.access);
	if (r)
		return r;
	if (flags & XATTR_CREATE)
		return -EEXIST;
	if (a == ATTRIBUTE_PIN)
		return set_pin(look, value, size, why);
	if (a != ATTRIBUTE_ROW)
		return -EPERM;
	if (size != strlen("drop") || memcmp(value, "drop", size))
		return why_set(why, EINVAL, "%s takes `drop`", names[ATTRIBUTE_ROW]);
	return space_record_drop_row(look->namespace.space, look->record.number, look->record.generation, why);
}

static int remove_attribute(fuse_req_t req, const struct look *look, const char *name, struct why *why)
{
	enum attribute a = find_attribute(look, name);
	int r;

	if (a == ATTRIBUTES)
		return -ENODATA;
	r = check_write(req, &look->namespace.access);
	if (r)
		return r;
	return a == ATTRIBUTE_PIN ? set_pin(look, "0", 1, why) : -EPERM;
}

static void finish(fuse_req_t req, struct look *look, const char *name, int r, const struct why *why)
{
	if (why->error)
		log_info("ns/%s: setting %s: %s", look->namespace.name, name, why->text);
	look_end(look);
	fuse_reply_err(req, -r);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
	struct fs *fs = fuse_req_userdata(req);
	struct why why = WHY_INIT;
	struct look look;
	int r = look_at(fs, ino, &look);

	if (!r)
		r = set_attribute(req, &look, name, value, size, flags, &why);
	finish(req, &look, name, r, &why);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct fs *fs = fuse_req_userdata(req);
	struct why why = WHY_INIT;
	struct look look;
	int r = look_at(fs, ino, &look);

	if (!r)
		r = remove_attribute(req, &look, name, &why);
	finish(req, &look, name, r, &why);
}
