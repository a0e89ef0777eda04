/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and directories.
 */
#include "fs/ops.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fs/connection.h"
#include "fs/dropped.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "fs/page_nodes.h"
#include "fs/record_name.h"
#include "fs/tree.h"

#define RELEASE_TRIES 5
#define RELEASE_MS 2

static void fill_entry(const struct look *look, struct fuse_entry_param *entry)
{
	*entry = (struct fuse_entry_param){
		.ino = look->st.st_ino,
		.generation = node_is_record(look->node.kind) ? look->record.generation : 1,
		.attr = look->st,
		.attr_timeout = look_patience(look),
		.entry_timeout = look_patience(look),
	};
}

/* Replies with the error; true when there was none. */
static bool fine(fuse_req_t req, int r)
{
	if (r)
		fuse_reply_err(req, -r);
	return r == 0;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fuse_req_userdata(req);
	struct fuse_entry_param entry;
	struct look dir, look = {0};
	struct viewer viewer;
	int r = look_at(fs, parent, &dir);

	if (!r && dir.node.kind == NODE_SESSIONS) /* nowhere else does a look-up depend on who asks */
		viewer_of(req, &viewer);
	if (!r)
		r = look_up(fs, &dir, name, dir.node.kind == NODE_SESSIONS ? &viewer : NULL, &look);
	if (!r)
		fill_entry(&look, &entry);
	look_end(&dir);
	/* An interrupted one is not counted by the kernel. */
	if (fine(req, r) && fuse_reply_entry(req, &entry) == -ENOENT)
		look_forget(fs, &look);
	look_end(&look);
}

/* Node ids are computed but for those of pages/<key>: there is nothing else to forget. */
static void forget(struct fs *fs, fuse_ino_t ino, uint64_t lookups)
{
	struct node node;

	if (node_unpack(ino, &node) && node.kind == NODE_PAGE)
		page_nodes_forget(fs->page_nodes, node.number, lookups);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
	forget(fuse_req_userdata(req), ino, lookups);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget(fuse_req_userdata(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct look look;
	int r = look_at(fs, ino, &look);

	look_end(&look);
	if (fine(req, r))
		fuse_reply_attr(req, &look.st, look_patience(&look));
}

/* chmod, chown of a namespace, which the kernel has checked; and truncate of a pending layout. */
static int set_attributes(struct fs *fs, const struct look *look, const struct stat *attr, int set)
{
	struct space_access access = look->namespace.access;
	int ids = FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID;

	set &= ~(FUSE_SET_ATTR_CTIME | FUSE_SET_ATTR_FORCE | FUSE_SET_ATTR_KILL_SUID | FUSE_SET_ATTR_KILL_SGID |
		 FUSE_SET_ATTR_KILL_PRIV | FUSE_SET_ATTR_FILE | FUSE_SET_ATTR_OPEN);
	if (look->node.kind == NODE_LAYOUT && set & FUSE_SET_ATTR_SIZE) {
		if (attr->st_size != 0)
			return -EINVAL;
		return namespaces_truncate_layout(fs->namespaces, look->namespace.number);
	}
	if (look->node.kind == NODE_LAYOUT && !look->namespace.space && !(set & ids))
		return 0; /* times, by touch or a shell */
	if (look->node.kind != NODE_NAMESPACE || set & ~ids)
		return -EPERM;
	if (set & FUSE_SET_ATTR_MODE)
		access.mode = attr->st_mode & 07777;
	if (set & FUSE_SET_ATTR_UID)
		access.uid = attr->st_uid;
	if (set & FUSE_SET_ATTR_GID)
		access.gid = attr->st_gid;
	return set ? namespaces_set_access(fs->namespaces, look->namespace.number, &access) : 0;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int set, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct look look;
	int r = look_at(fs, ino, &look);

	if (!r)
		r = set_attributes(fs, &look, attr, set);
	look_end(&look);
	if (r) {
		fuse_reply_err(req, -r);
		return;
	}
	op_getattr(req, ino, fi);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fuse_req_userdata(req);
	char name[RECORD_NAME_BYTES + 1], target[sizeof("../records/") + RECORD_NAME_BYTES];
	struct look look;
	int r = look_at(fs, ino, &look);

	if (!r && look.node.kind == NODE_CHECKPOINT) {
		record_name(look.record.consumed, &look.record.endpoint, name);
		snprintf(target, sizeof(target), "../records/%s", name);
	} else if (!r && look.node.kind == NODE_PARENT) {
		record_name(look.record.parent_consumed, &look.record.parent_endpoint, name);
		snprintf(target, sizeof(target), "../%s", name);
	} else if (!r && look.node.kind == NODE_EVENTS_LINK) {
		snprintf(target, sizeof(target), EVENTS_NAME);
	} else if (!r) {
		r = -EINVAL;
	}
	look_end(&look);
	if (fine(req, r))
		fuse_reply_readlink(req, target);
}

/* ---- making and removing ------------------------------------------------------------------------------------- */

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
	fuse_reply_err(req, EROFS);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, EROFS);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent, const char *new_name,
	unsigned flags)
{
	fuse_reply_err(req, EROFS);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, EROFS);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fs *fs = fuse_req_userdata(req);
	const struct fuse_ctx *who = fuse_req_ctx(req);
	struct space_access access = {.uid = who->uid, .gid = who->gid, .mode = mode & 07777};
	struct node node = {.kind = NODE_NAMESPACE};
	struct fuse_entry_param entry;
	struct why why = WHY_INIT;
	struct look dir, look = {0};
	int r = look_at(fs, parent, &dir);

	if (!r)
		r = dir.node.kind == NODE_NAMESPACES
		            ? namespaces_make(fs->namespaces, name, &access, &node.number, &why)
		            : -EROFS;
	if (why.error)
		log_info("mkdir ns/%s: %s", name, why.text);
	if (!r)
		r = look_at(fs, node_pack(node), &look);
	if (!r)
		fill_entry(&look, &entry);
	look_end(&look);
	look_end(&dir);
	if (fine(req, r))
		fuse_reply_entry(req, &entry);
}

/* What is to go is gone: the one who did it died before it could say so. */
static int done_before(int r)
{
	return r == -ENOENT && connection_resent() ? 0 : r;
}

/* unlink of a record's member checks whether the record may go, and does nothing: `rm -r` unlinks the members and then
 * removes the directory, which evicts the record at once, or refuses and leaves it whole. */
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fuse_req_userdata(req);
	struct look dir, look = {0};
	int r = look_at(fs, parent, &dir);

	if (!r)
		r = look_up(fs, &dir, name, NULL, &look);
	look_forget(fs, &look);
	if (!r && S_ISDIR(look.st.st_mode))
		r = -EISDIR;
	else if (!r)
		r = dir.node.kind == NODE_RECORD ? space_record_evict(dir.namespace.space, dir.record.number,
							   dir.record.generation, true, NULL)
		                                 : -EPERM;
	look_end(&look);
	look_end(&dir);
	fuse_reply_err(req, -done_before(r));
}

/* The kernel sends the release of a file behind the back of whoever closed it, so it may still be on its way in another
 * loop thread: a namespace that was left is not to be busy. */
static int remove_namespace(struct fs *fs, const char *name, struct why *why)
{
	int r = namespaces_remove(fs->namespaces, name, why);

	for (int tries = 0; r == -EBUSY && tries < RELEASE_TRIES; tries++) {
		usleep(RELEASE_MS * 1000);
		r = namespaces_remove(fs->namespaces, name, why);
	}
	if (!r)
		why->error = 0;
	return r;
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fuse_req_userdata(req);
	struct why why = WHY_INIT;
	struct look dir, look = {0};
	int r = look_at(fs, parent, &dir);

	if (!r)
		r = look_up(fs, &dir, name, NULL, &look);
	look_forget(fs, &look);
	if (!r && !S_ISDIR(look.st.st_mode))
		r = -ENOTDIR;
	else if (!r && look.node.kind == NODE_RECORD)
		r = space_record_evict(look.namespace.space, look.record.number, look.record.generation, false, &why);
	else if (!r && look.node.kind == NODE_NAMESPACE) {
		space_unref(&look.namespace.space);
		r = remove_namespace(fs, name, &why);
	} else if (!r)
		r = -EPERM;
	if (r == -ENOENT && connection_resent() && dir.node.kind == NODE_NAMESPACES)
		dropped_forget(namespaces_dropped(fs->namespaces), name);
	if (why.error)
		log_info("rmdir %s: %s", name, why.text);
	look_end(&look);
	look_end(&dir);
	fuse_reply_err(req, -done_before(r));
}

/* ---- reading directories ------------------------------------------------------------------------------------- */

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);

	fi->fh = atomic_fetch_add(&fs->listings, 1) + 1; /* a number and no handle: there is nothing to release */
	fuse_reply_open(req, fi);
}

static size_t add_plain(fuse_req_t req, char *to, size_t room, const struct walk_entry *e)
{
	struct stat st = {.st_ino = node_pack(e->node), .st_mode = e->type};

	return fuse_add_direntry(req, to, room, e->name, &st, (off_t)e->next);
}

/* With attributes, which saves a lookup each; without for records and checkpoints, of which there may be a million that
 * nobody looks at: the kernel keeps an inode for each that it was told about. */
static size_t add_plus(fuse_req_t req, char *to, size_t room, const struct walk *walk, const struct walk_entry *e)
{
	struct fuse_entry_param entry = {.attr = {.st_ino = node_pack(e->node), .st_mode = e->type}};

	if (walk->dir->node.kind != NODE_RECORDS && walk->dir->node.kind != NODE_CHECKPOINTS && e->name[0] != '.') {
		struct look look;

		if (look_at(walk->fs, node_pack(e->node), &look) == 0)
			fill_entry(&look, &entry);
		look_end(&look);
	}
	return fuse_add_direntry_plus(req, to, room, e->name, &entry, (off_t)e->next);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, uint64_t listing, bool plus)
{
	struct fs *fs = fuse_req_userdata(req);
	char *buffer = loop_scratch();
	size_t room = size < LOOP_SCRATCH_BYTES ? size : LOOP_SCRATCH_BYTES, used = 0;
	struct viewer viewer = {0};
	struct walk_entry e;
	struct walk walk;
	struct look dir;
	int r = look_at(fs, ino, &dir);

	if (!r && !S_ISDIR(dir.st.st_mode))
		r = -ENOTDIR;
	if (!r && (dir.node.kind == NODE_NAMESPACES || dir.node.kind == NODE_SESSIONS))
		viewer_of(req, &viewer); /* nothing else that is listed depends on who asks */
	if (!r && !walk_begin(&walk, fs, &dir, &viewer, listing))
		r = -ENOMEM;
	if (!r) {
		uint64_t at = (uint64_t)offset;

		while (walk_next(&walk, at, &e)) {
			size_t n = plus ? add_plus(req, buffer + used, room - used, &walk, &e)
			                : add_plain(req, buffer + used, room - used, &e);

			if (n > room - used)
				break;
			used += n;
			at = e.next;
		}
		walk_end(&walk);
	}
	look_end(&dir);
	if (fine(req, r))
		fuse_reply_buf(req, buffer, used);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	read_directory(req, ino, size, offset, fi->fh, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	read_directory(req, ino, size, offset, fi->fh, true);
}

/* df: the disk tier; where there is none the memory tier, whose free part is what no slot in use takes. Files are records. */
void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fuse_req_userdata(req);
	struct namespace_info info;
	struct host_report report;
	struct host_disk_report disk;
	struct statvfs st = {.f_bsize = 4096, .f_frsize = 4096, .f_namemax = NAME_MAX};
	uint64_t after = 0, records = 0, free_slots = 0;

	host_report(fs->host, &report);
	while (namespaces_next(fs->namespaces, after, &info) == 0) {
		struct space_report space;

		after = info.number;
		if (!info.space)
			continue;
		space_report(info.space, &space);
		records += space.records;
		free_slots += space.slots_free;
		space_unref(&info.space);
	}
	st.f_blocks = report.memory_bytes / 4096;
	st.f_bfree = st.f_bavail = report.memory_bytes > report.used_bytes
	                                   ? (report.memory_bytes - report.used_bytes) / 4096
	                                   : 0;
	st.f_ffree = free_slots; /* as many records more could come, of one page each */
	if (fs->disk) {
		uint64_t free_bytes;

		host_disk_report(fs->host, &disk);
		free_bytes = disk.limit_bytes > disk.used_bytes ? disk.limit_bytes - disk.used_bytes : 0;
		free_bytes = free_bytes < disk.free_bytes ? free_bytes : disk.free_bytes;
		st.f_blocks = disk.limit_bytes / 4096;
		st.f_bfree = st.f_bavail = free_bytes / 4096;
		st.f_ffree = st.f_bfree / 3; /* of a header, keys and a page at least */
	}
	st.f_files = records + st.f_ffree;
	fuse_reply_statfs(req, &st);
}
