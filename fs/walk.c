/* SPDX-License-Identifier: Apache-2.0
 *
 * What a directory holds.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fs/record_name.h"
#include "fs/tree.h"
#include "store/session.h"

#define FIRST_OFFSET 2u /* of the entries after "." and ".." */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

bool walk_begin(struct walk *walk, struct fs *fs, const struct look *dir, const struct viewer *viewer, uint64_t listing)
{
	walk->fs = fs;
	walk->dir = dir;
	walk->viewer = *viewer;
	walk->listing = listing;
	walk->sessions = NULL;
	walk->session_count = walk->labels = walk->label = 0;
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
	const struct fixed *f = fixed_next(walk->dir, &index);

	if (!f)
		return false;
	snprintf(entry->name, sizeof(entry->name), "%s", f->name);
	entry->node = walk->dir->node;
	entry->node.kind = f->kind;
	entry->type = f->type;
	entry->next = index + FIRST_OFFSET;
	return true;
}

static bool session_seen(const struct walk *walk, uint64_t number)
{
	struct space_access access;

	return session_access(walk->fs->host, number, &access) == 0 && viewer_sees(&walk->viewer, &access);
}

static bool walk_sessions(struct walk *walk, uint64_t after, struct walk_entry *entry)
{
	for (uint32_t i = 0; i < walk->session_count; i++) {
		uint64_t number = walk->sessions[i];

		if (number <= after || !session_seen(walk, number))
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

	do {
		if (namespaces_next(walk->fs->namespaces, after, &info) != 0)
			return false;
		space_unref(&info.space);
		after = info.number;
	} while (!viewer_sees(&walk->viewer, &info.access));
	snprintf(entry->name, sizeof(entry->name), "%s", info.name);
	entry->node = (struct node){.kind = NODE_NAMESPACE, .number = info.number};
	entry->type = S_IFDIR;
	entry->next = info.number + FIRST_OFFSET;
	return true;
}

/* Records are fetched ahead, so that a listing costs one stay under the lock for many of them. */
static bool walk_records(struct walk *walk, uint64_t cursor, struct walk_entry *entry)
{
	struct space *space = walk->dir->namespace.space;
	bool checkpoints = walk->dir->node.kind == NODE_CHECKPOINTS;

	if (!space || cursor >= UINT32_MAX)
		return false;
	if (walk->label == walk->labels || walk->label_offset != cursor) {
		uint32_t at = (uint32_t)cursor;

		walk->label = 0;
		walk->labels = checkpoints ? space_checkpoint_list(space, walk->listing, &at, walk->at, WALK_LABELS)
		                           : space_record_list(space, &at, walk->at, WALK_LABELS);
		if (!walk->labels)
			return false;
	}
	const struct record_label *label = &walk->at[walk->label++];
	walk->label_offset = (uint64_t)label->number + 1;
	record_name(label->consumed, &label->endpoint, entry->name);
	entry->node = (struct node){
		.kind = checkpoints ? NODE_CHECKPOINT : NODE_RECORD,
		.number = walk->dir->node.number,
		.record = label->number,
		.generation = node_generation(label->generation, space_serial(space)),
	};
	entry->type = checkpoints ? S_IFLNK : S_IFDIR;
	entry->next = walk->label_offset + FIRST_OFFSET;
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
	case NODE_CHECKPOINTS:
		return walk_records(walk, offset, entry);
	default:
		return walk_fixed(walk, offset, entry);
	}
}
