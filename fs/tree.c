/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/record_name.h"
#include "store/base/clock.h"
#include "store/session.h"

/* What stands in a directory by itself, in the order of readdir. */
struct fixed {
	enum node_kind parent;
	const char *name;
	enum node_kind kind;
	mode_t type;
};

static const struct fixed fixed[] = {
	{NODE_ROOT, "README", NODE_README, S_IFREG},
	{NODE_ROOT, "version", NODE_VERSION, S_IFREG},
	{NODE_ROOT, "config", NODE_CONFIG, S_IFREG},
	{NODE_ROOT, "health", NODE_HEALTH, S_IFREG},
	{NODE_ROOT, "tiers", NODE_TIERS, S_IFREG},
	{NODE_ROOT, "metrics", NODE_METRICS, S_IFREG},
	{NODE_ROOT, "events", NODE_EVENTS, S_IFREG},
	{NODE_ROOT, "sessions", NODE_SESSIONS, S_IFDIR},
	{NODE_ROOT, "ns", NODE_NAMESPACES, S_IFDIR},
	{NODE_NAMESPACE, "layout", NODE_LAYOUT, S_IFREG},
	{NODE_NAMESPACE, "layout.error", NODE_LAYOUT_ERROR, S_IFREG},
	{NODE_NAMESPACE, "ctl", NODE_CTL, S_IFREG},
	{NODE_NAMESPACE, "segment", NODE_SEGMENT, S_IFREG},
	{NODE_NAMESPACE, "stats", NODE_STATS, S_IFREG},
	{NODE_NAMESPACE, "records", NODE_RECORDS, S_IFDIR},
	{NODE_RECORD, "header", NODE_HEADER, S_IFREG},
	{NODE_RECORD, "pages", NODE_PAGES, S_IFREG},
	{NODE_RECORD, "row", NODE_ROW, S_IFREG},
	{NODE_RECORD, "parent", NODE_PARENT, S_IFLNK},
};
#define FIXED (sizeof(fixed) / sizeof(fixed[0]))
#define FIRST_OFFSET 2u /* of the entries after "." and ".." */

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
	case NODE_RECORDS:
		return dir->namespace.space;
	case NODE_ROW:
		return dir->record.row_bytes > 0;
	case NODE_PARENT:
		return dir->record.parent_visible;
	default:
		return true;
	}
}

static mode_t kind_type(enum node_kind kind)
{
	for (size_t i = 0; i < FIXED; i++)
		if (fixed[i].kind == kind)
			return fixed[i].type;
	return kind == NODE_SESSION ? S_IFREG : S_IFDIR;
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
	case NODE_CTL:
		return m & 0666;
	case NODE_LAYOUT:
		return look->namespace.space ? m & 0444 : m & 0666;
	case NODE_PARENT:
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
	if (look->node.kind < NODE_NAMESPACE) {
		bool writable = look->node.kind == NODE_NAMESPACES;
		mode_t mode = (mode_t)fs->config->mode;

		owned_by_mount(fs, st, S_ISDIR(st->st_mode) ? writable ? mode : mode & 0555 : mode & 0444);
		return;
	}
	st->st_uid = look->namespace.access.uid;
	st->st_gid = look->namespace.access.gid;
	st->st_mode |= member_mode(look);
	set_times(st, look->namespace.created_s, look->namespace.created_s);
	if (node_is_record(look->node.kind))
		set_times(st, look->record.created_s, look->record.last_use_s);
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
	case NODE_PARENT:
		size = strlen("../") + RECORD_NAME_BYTES;
		break;
	default:
		break;
	}
	st->st_size = (off_t)size;
	st->st_blocks = (blkcnt_t)((size + 511) / 512);
}

double look_patience(const struct look *look)
{
	switch (look->node.kind) {
	case NODE_RECORDS:
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

/* The record that look->node names. */
static int get_record(struct look *look)
{
	uint32_t cursor = look->node.record;

	/* The node has the low bits of the generation only. */
	if (space_record_next(look->namespace.space, &cursor, &look->record) != 1 ||
		look->record.number != look->node.record ||
		(look->record.generation & NODE_GENERATION_MASK) != look->node.generation)
		return -ENOENT;
	return 0;
}

static int get_session(struct fs *fs, struct look *look)
{
	look->session = malloc(sizeof(*look->session));
	if (!look->session)
		return -ENOMEM;
	return session_info(fs->host, look->node.number, look->session);
}

/* Fetches what the node stands for. */
static int fetch(struct fs *fs, struct look *look)
{
	enum node_kind kind = look->node.kind;
	uint64_t number = look->node.number;
	int r = 0;

	if (node_is_record(kind) && !namespaces_of_low_bits(fs->namespaces, (uint32_t)number, &number))
		return -ENOENT;
	if (kind >= NODE_NAMESPACE)
		r = namespaces_get(fs->namespaces, number, &look->namespace);
	if (r) {
		look->namespace.space = NULL;
		return r;
	}
	if (kind == NODE_SESSION)
		return get_session(fs, look);
	if (node_is_record(kind))
		return look->namespace.space ? get_record(look) : -ENOENT;
	return 0;
}

int look_at(struct fs *fs, fuse_ino_t ino, struct look *look)
{
	int r;

	look->session = NULL;
	look->namespace.space = NULL;
	if (!node_unpack(ino, &look->node))
		return -ENOENT;
	r = fetch(fs, look);
	if (!r)
		fill_stat(fs, look);
	return r;
}

void look_end(struct look *look)
{
	space_unref(&look->namespace.space);
	free(look->session);
	look->session = NULL;
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
	struct record_info info;
	struct key endpoint;
	uint64_t consumed;

	if (!record_name_parse(name, &consumed, &endpoint) ||
		space_record_find(dir->namespace.space, &endpoint, true, &info) != 0 || info.consumed != consumed)
		return -ENOENT;
	*node = (struct node){
		.kind = NODE_RECORD, .number = dir->node.number, .record = info.number, .generation = info.generation};
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

int look_up(struct fs *fs, const struct look *dir, const char *name, struct look *look)
{
	struct node node;
	int r;

	look->session = NULL;
	look->namespace.space = NULL;
	switch (dir->node.kind) {
	case NODE_SESSIONS:
		r = find_session(name, &node);
		break;
	case NODE_NAMESPACES:
		r = find_namespace(fs, name, &node);
		break;
	case NODE_RECORDS:
		r = dir->namespace.space ? find_record(dir, name, &node) : -ENOENT;
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
	return id ? look_at(fs, id, look) : -EOVERFLOW;
}

/* ---- walking ------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

bool walk_begin(struct walk *walk, struct fs *fs, const struct look *dir)
{
	*walk = (struct walk){.fs = fs, .dir = dir};
	if (dir->node.kind != NODE_SESSIONS)
		return true;
	walk->sessions = malloc(HOST_MAX_SESSIONS * sizeof(*walk->sessions));
	if (!walk->sessions)
		return false;
	walk->session_count = host_session_list(fs->host, walk->sessions, HOST_MAX_SESSIONS);
	qsort(walk->sessions, walk->session_count, sizeof(*walk->sessions), by_value);
	return true;
}

void walk_end(struct walk *walk)
{
	free(walk->sessions);
	walk->sessions = NULL;
}

static bool walk_fixed(struct walk *walk, uint64_t index, struct walk_entry *entry)
{
	for (; index < FIXED; index++) {
		const struct fixed *f = &fixed[index];

		if (f->parent != walk->dir->node.kind || !fixed_present(f, walk->dir))
			continue;
		snprintf(entry->name, sizeof(entry->name), "%s", f->name);
		entry->node = walk->dir->node;
		entry->node.kind = f->kind;
		entry->type = f->type;
		entry->next = index + 1 + FIRST_OFFSET;
		return true;
	}
	return false;
}

static bool walk_sessions(struct walk *walk, uint64_t after, struct walk_entry *entry)
{
	for (uint32_t i = 0; i < walk->session_count; i++) {
		uint64_t number = walk->sessions[i];

		if (number <= after)
			continue;
		snprintf(entry->name, sizeof(entry->name), "%" PRIu64, number);
		entry->node = (struct node){.kind = NODE_SESSION, .number = number};
		entry->type = S_IFREG;
		entry->next = number + FIRST_OFFSET;
		return true;
	}
	return false;
}

static bool walk_namespaces(struct walk *walk, uint64_t after, struct walk_entry *entry)
{
	struct namespace_info info;

	if (namespaces_next(walk->fs->namespaces, after, &info) != 0)
		return false;
	space_unref(&info.space);
	snprintf(entry->name, sizeof(entry->name), "%s", info.name);
	entry->node = (struct node){.kind = NODE_NAMESPACE, .number = info.number};
	entry->type = S_IFDIR;
	entry->next = info.number + FIRST_OFFSET;
	return true;
}

static bool walk_records(struct walk *walk, uint64_t cursor, struct walk_entry *entry)
{
	uint32_t at = (uint32_t)cursor;
	struct record_info info;

	if (!walk->dir->namespace.space || cursor > UINT32_MAX ||
		space_record_next(walk->dir->namespace.space, &at, &info) != 1)
		return false;
	record_name(info.consumed, &info.endpoint, entry->name);
	entry->node = (struct node){
		.kind = NODE_RECORD,
		.number = walk->dir->node.number,
		.record = info.number,
		.generation = info.generation,
	};
	entry->type = S_IFDIR;
	entry->next = (uint64_t)info.number + 1 + FIRST_OFFSET;
	return true;
}

bool walk_next(struct walk *walk, uint64_t offset, struct walk_entry *entry)
{
	if (offset < FIRST_OFFSET) {
		snprintf(entry->name, sizeof(entry->name), "%s", offset ? ".." : ".");
		entry->node = walk->dir->node;
		entry->type = S_IFDIR;
		entry->next = offset + 1;
		return true;
	}
	offset -= FIRST_OFFSET;
	switch (walk->dir->node.kind) {
	case NODE_SESSIONS:
		return walk_sessions(walk, offset, entry);
	case NODE_NAMESPACES:
		return walk_namespaces(walk, offset, entry);
	case NODE_RECORDS:
		return walk_records(walk, offset, entry);
	default:
		return walk_fixed(walk, offset, entry);
	}
}
