/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/notifier.h"
#include "fs/page_nodes.h"
#include "fs/record_name.h"
#include "store/base/clock.h"
#include "store/session.h"

static const struct fixed fixed[] = {
	{NODE_ROOT, "README", NODE_README, S_IFREG},
	{NODE_ROOT, "version", NODE_VERSION, S_IFREG},
	{NODE_ROOT, "config", NODE_CONFIG, S_IFREG},
	{NODE_ROOT, "health", NODE_HEALTH, S_IFREG},
	{NODE_ROOT, "tiers", NODE_TIERS, S_IFREG},
	{NODE_ROOT, "metrics", NODE_METRICS, S_IFREG},
	{NODE_ROOT, "events", NODE_EVENTS_LINK, S_IFLNK},
	{NODE_ROOT, EVENTS_NAME, NODE_EVENTS, S_IFREG},
	{NODE_ROOT, "sessions", NODE_SESSIONS, S_IFDIR},
	{NODE_ROOT, "ns", NODE_NAMESPACES, S_IFDIR},
	{NODE_NAMESPACE, "layout", NODE_LAYOUT, S_IFREG},
	{NODE_NAMESPACE, "layout.error", NODE_LAYOUT_ERROR, S_IFREG},
	{NODE_NAMESPACE, "ctl", NODE_CTL, S_IFREG},
	{NODE_NAMESPACE, "segment", NODE_SEGMENT, S_IFREG},
	{NODE_NAMESPACE, "stats", NODE_STATS, S_IFREG},
	{NODE_NAMESPACE, "funnel", NODE_FUNNEL, S_IFREG},
	{NODE_NAMESPACE, "records", NODE_RECORDS, S_IFDIR},
	{NODE_NAMESPACE, "checkpoints", NODE_CHECKPOINTS, S_IFDIR},
	{NODE_NAMESPACE, "pages", NODE_BY_KEY, S_IFDIR},
	{NODE_RECORD, "header", NODE_HEADER, S_IFREG},
	{NODE_RECORD, "pages", NODE_PAGES, S_IFREG},
	{NODE_RECORD, "row", NODE_ROW, S_IFREG},
	{NODE_RECORD, "raw", NODE_RAW, S_IFREG},
	{NODE_RECORD, "parent", NODE_PARENT, S_IFLNK},
};
#define FIXED (sizeof(fixed) / sizeof(fixed[0]))
#define CHECKPOINT_TO "../records/"

/* Is it there now? */
static bool fixed_present(const struct fixed *f, const struct look *dir)
{
	switch (f->kind) {
	case NODE_LAYOUT:
		return true;
	case NODE_LAYOUT_ERROR:
		return !dir->namespace.space;
	case NODE_CTL:
	case NODE_SEGMENT:
	case NODE_STATS:
	case NODE_FUNNEL:
	case NODE_RECORDS:
	case NODE_CHECKPOINTS:
	case NODE_BY_KEY:
		return dir->namespace.space;
	case NODE_ROW:
		return dir->record.row_bytes > 0;
	case NODE_RAW:
		return dir->record.file_bytes > 0;
	case NODE_PARENT:
		return dir->record.parent_visible;
	default:
		return true;
	}
}

const struct fixed *fixed_next(const struct look *dir, uint64_t *index)
{
	while (*index < FIXED) {
		const struct fixed *f = &fixed[(*index)++];

		if (f->parent == dir->node.kind && f->kind != NODE_EVENTS && fixed_present(f, dir))
			return f;
	}
	return NULL;
}

static mode_t kind_type(enum node_kind kind)
{
	for (size_t i = 0; i < FIXED; i++)
		if (fixed[i].kind == kind)
			return fixed[i].type;
	if (kind == NODE_CHECKPOINT)
		return S_IFLNK;
	return kind == NODE_SESSION || kind == NODE_PAGE ? S_IFREG : S_IFDIR;
}

static bool in_namespace(enum node_kind kind)
{
	return kind >= NODE_NAMESPACE || kind == NODE_PAGE;
}

/* ---- attributes ---------------------------------------------------------------------------------------------- */

static void owned_by_mount(const struct fs *fs, struct stat *st, mode_t mode)
{
	st->st_uid = (uid_t)fs->config->uid;
	st->st_gid = (gid_t)fs->config->gid;
	st->st_mode |= mode;
}

static mode_t member_mode(const struct look *look)
{
	mode_t m = look->namespace.access.mode;

	switch (look->node.kind) {
	case NODE_NAMESPACE:
	case NODE_RECORDS:
	case NODE_RECORD:
		return m & 07777;
	case NODE_CHECKPOINTS:
	case NODE_BY_KEY:
		return m & 07555;
	case NODE_CTL:
		return m & 0666;
	case NODE_LAYOUT:
		return look->namespace.space ? m & 0444 : m & 0666;
	case NODE_PARENT:
	case NODE_CHECKPOINT:
		return 0777;
	default:
		return m & 0444;
	}
}

static void set_times(struct stat *st, int64_t created_s, int64_t used_s)
{
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = created_s;
	st->st_atim.tv_sec = used_s;
}

static void fill_stat(struct fs *fs, struct look *look)
{
	struct stat *st = &look->st;
	uint64_t size = 0;
	int64_t started = (int64_t)(clock_wall_s() - (clock_now_ns() - fs->started_ns) / 1000000000u);

	memset(st, 0, sizeof(*st));
	st->st_ino = node_pack(look->node);
	st->st_mode = kind_type(look->node.kind);
	st->st_nlink = S_ISDIR(st->st_mode) ? 2 : 1;
	st->st_blksize = 4096;
	set_times(st, started, started);
	if (!in_namespace(look->node.kind)) {
		bool writable = look->node.kind == NODE_NAMESPACES;
		mode_t mode = (mode_t)fs->config->mode;

		if (S_ISLNK(st->st_mode)) {
			mode = 0777;
			st->st_size = sizeof(EVENTS_NAME) - 1;
		} else if (S_ISDIR(st->st_mode)) {
			mode &= writable ? 07777 : 0555;
		} else {
			mode &= 0444;
		}
		owned_by_mount(fs, st, mode);
		return;
	}
	st->st_uid = look->namespace.access.uid;
	st->st_gid = look->namespace.access.gid;
	st->st_mode |= member_mode(look);
	set_times(st, look->namespace.created_s, look->namespace.created_s);
	if (node_is_record(look->node.kind))
		set_times(st, look->record.created_s, look->record.last_use_s);
	if (look->node.kind == NODE_PAGE)
		set_times(st, look->page.created_s, look->page.last_use_s);
	switch (look->node.kind) {
	case NODE_LAYOUT:
		size = look->namespace.space ? strlen(space_layout(look->namespace.space)->json) + 1
		                             : look->namespace.text_bytes;
		break;
	case NODE_PAGES:
		size = look->record.page_bytes;
		break;
	case NODE_ROW:
		size = look->record.row_bytes;
		break;
	case NODE_RAW:
		size = look->record.file_bytes;
		break;
	case NODE_PARENT:
		size = strlen("../") + RECORD_NAME_BYTES;
		break;
	case NODE_CHECKPOINT:
		size = strlen(CHECKPOINT_TO) + RECORD_NAME_BYTES;
		break;
	case NODE_PAGE:
		size = look->page.bytes;
		break;
	default:
		break;
	}
	st->st_size = (off_t)size;
	st->st_blocks = (blkcnt_t)((size + 511) / 512);
}

/* What depends on the viewer or is computed has none. What a namespace's mode decides is asked of the namespace's own
 * folder, which has none, on the way to it; the rest is told when it changes (fs/notifier.h). */
double look_patience(const struct look *look)
{
	switch (look->node.kind) {
	case NODE_RECORDS:
	case NODE_CHECKPOINTS:
	case NODE_BY_KEY:
	case NODE_RECORD:
	case NODE_HEADER:
	case NODE_PAGES:
	case NODE_ROW:
	case NODE_PARENT:
	case NODE_ROOT:
	case NODE_SESSIONS:
	case NODE_NAMESPACES:
		return FS_ENTRY_S;
	default:
		return 0;
	}
}

/* ---- looking ------------------------------------------------------------------------------------------------- */

/* The record that look->node names, and what the node is of it. */
static int get_record(struct look *look)
{
	uint32_t cursor = look->node.record;
	enum node_kind kind = look->node.kind;

	if (space_record_next(look->namespace.space, &cursor, &look->record) != 1 ||
		look->record.number != look->node.record ||
		node_generation(look->record.generation, space_serial(look->namespace.space)) != look->node.generation)
		return -ENOENT;
	if (kind == NODE_CHECKPOINT)
		return space_checkpoint_get(
			look->namespace.space, look->record.number, look->record.generation, &look->record);
	if ((kind == NODE_ROW && !look->record.row_bytes) || (kind == NODE_RAW && !look->record.file_bytes) ||
		(kind == NODE_PARENT && !look->record.parent_visible))
		return -ENOENT;
	return 0;
}

/* Fetches what the node stands for. */
static int fetch(struct fs *fs, struct look *look)
{
	enum node_kind kind = look->node.kind;
	uint64_t number = look->node.number;
	int r = 0;

	if (node_is_record(kind) && !namespaces_of_low_bits(fs->namespaces, (uint32_t)number, &number))
		return fs->resumed ? -ESTALE : -ENOENT; /* perhaps a namespace's that was made anew since: to be looked up again */
	if (kind == NODE_PAGE && !page_nodes_get(fs->page_nodes, number, &number, &look->key))
		return -ESTALE; /* an earlier serving process's: the kernel looks the name up again */
	if (in_namespace(kind))
		r = namespaces_get(fs->namespaces, number, &look->namespace);
	if (r) {
		look->namespace.space = NULL;
		return r;
	}
	if (kind == NODE_SESSION)
		return session_access(fs->host, number, &look->access);
	if (node_is_record(kind))
		return look->namespace.space ? get_record(look) : -ENOENT;
	if (kind == NODE_PAGE)
		return look->namespace.space ? space_page_find(look->namespace.space, &look->key, &look->page) : -ENOENT;
	return 0;
}

int look_at(struct fs *fs, fuse_ino_t ino, struct look *look)
{
	int r;

	look->namespace.space = NULL;
	if (!node_unpack(ino, &look->node))
		return -ENOENT;
	r = fetch(fs, look);
	if (!r)
		fill_stat(fs, look);
	return r;
}

bool look_visible(const struct look *look, const struct viewer *viewer)
{
	return !viewer || look->node.kind != NODE_SESSION || viewer_sees(viewer, &look->access);
}

void look_end(struct look *look)
{
	space_unref(&look->namespace.space);
}

void look_forget(struct fs *fs, const struct look *look)
{
	if (look->node.kind == NODE_PAGE)
		page_nodes_forget(fs->page_nodes, look->node.number, 1);
}

static int find_session(const char *name, struct node *node)
{
	char *end;

	errno = 0;
	unsigned long long number = strtoull(name, &end, 10);
	if (name[0] < '1' || name[0] > '9' || *end || errno || number >> 56)
		return -ENOENT;
	*node = (struct node){.kind = NODE_SESSION, .number = number};
	return 0;
}

static int find_record(const struct look *dir, const char *name, struct node *node)
{
	bool checkpoint = dir->node.kind == NODE_CHECKPOINTS;
	struct space *space = dir->namespace.space;
	struct record_info info;
	struct key endpoint;
	uint64_t consumed;

	if (!space || !record_name_parse(name, &consumed, &endpoint))
		return -ENOENT;
	int r = checkpoint ? space_checkpoint_find(space, &endpoint, &info)
	                   : space_record_find(space, &endpoint, true, &info);
	if (r || info.consumed != consumed)
		return -ENOENT;
	*node = (struct node){.kind = checkpoint ? NODE_CHECKPOINT : NODE_RECORD,
		.number = dir->node.number,
		.record = info.number,
		.generation = node_generation(info.generation, space_serial(space))};
	return 0;
}

/* The node counts one look-up more: see look_forget. */
static int find_page(struct fs *fs, const struct look *dir, const char *name, struct node *node)
{
	struct page_info info;
	struct key key;
	bool surplus;

	if (!dir->namespace.space || strlen(name) != 2 * sizeof(key.bytes) ||
		!hex_parse(name, sizeof(key.bytes), key.bytes) ||
		space_page_find(dir->namespace.space, &key, &info) != 0)
		return -ENOENT;
	*node = (struct node){.kind = NODE_PAGE};
	if (!page_nodes_look_up(fs->page_nodes, dir->namespace.number, &key, &node->number, &surplus))
		return -ENFILE;
	if (surplus)
		notifier_pages(fs->notifier);
	return 0;
}

static int find_fixed(const struct look *dir, const char *name, struct node *node)
{
	for (size_t i = 0; i < FIXED; i++)
		if (fixed[i].parent == dir->node.kind && !strcmp(fixed[i].name, name) &&
			fixed_present(&fixed[i], dir)) {
			*node = dir->node;
			node->kind = fixed[i].kind;
			return 0;
		}
	return -ENOENT;
}

static int find_namespace(struct fs *fs, const char *name, struct node *node)
{
	struct namespace_info info;
	int r = namespaces_find(fs->namespaces, name, &info);

	if (r)
		return r;
	space_unref(&info.space);
	*node = (struct node){.kind = NODE_NAMESPACE, .number = info.number};
	return 0;
}

int look_up(struct fs *fs, const struct look *dir, const char *name, const struct viewer *viewer, struct look *look)
{
	struct node node;
	int r;

	look->namespace.space = NULL;
	look->node.kind = NODE_NONE;
	if (strlen(name) > NAME_MAX) /* FUSE itself lets longer ones through */
		return -ENAMETOOLONG;
	switch (dir->node.kind) {
	case NODE_SESSIONS:
		r = find_session(name, &node);
		break;
	case NODE_NAMESPACES:
		r = find_namespace(fs, name, &node);
		break;
	case NODE_RECORDS:
	case NODE_CHECKPOINTS:
		r = find_record(dir, name, &node);
		break;
	case NODE_BY_KEY:
		r = find_page(fs, dir, name, &node);
		break;
	case NODE_ROOT:
	case NODE_NAMESPACE:
	case NODE_RECORD:
		r = find_fixed(dir, name, &node);
		break;
	default:
		r = -ENOTDIR;
	}
	if (r)
		return r;
	uint64_t id = node_pack(node);
	if (!id)
		return -EOVERFLOW;
	r = look_at(fs, id, look);
	if (r) {
		look_forget(fs, look);
		look->node.kind = NODE_NONE;
	}
	if (!r && !look_visible(look, viewer))
		r = -ENOENT;
	return r;
}
