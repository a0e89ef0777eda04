/* SPDX-License-Identifier: Apache-2.0
 *
 * Node ids: what a file of the mount is, packed in 64 bits. They are computed, so there is no table to keep and forget
 * has nothing to do; but for pages/<key>, whose number stands for a key in a table (fs/page_nodes.h). The inode number
 * that users see is the node id; the root's is 1, as FUSE wants.
 *
 *   of a record's files   1 | part 3 | namespace 14 | record number 28 | generation of the number, and serial of the space, 18
 *   of everything else    0 | kind 7 | number of the namespace, session or page node 56
 *
 * The low bits of the namespace's number and of the record's generation are enough: an id that the kernel still
 * holds is at most seconds old, and 16,384 namespaces or 262,144 reuses of one record number do not pass in that
 * time. The serial goes into the generation since a namespace that a serving process has to make anew, empty, keeps its number: its
 * folders stay what they were, and its records are none of before. A number of a record that needs more than 28 bits has no id (node_pack answers 0).
 */
#ifndef PREFIXFS_FS_NODE_H
#define PREFIXFS_FS_NODE_H

#include <stdbool.h>
#include <stdint.h>

enum node_kind {
	NODE_NONE,
	NODE_ROOT,
	NODE_README,
	NODE_VERSION,
	NODE_CONFIG,
	NODE_HEALTH,
	NODE_TIERS,
	NODE_METRICS,
	NODE_EVENTS,      /* a stream: not listed, so that nobody who copies or searches the mount waits there */
	NODE_EVENTS_LINK, /* leads to it */
	NODE_SESSIONS,
	NODE_SESSION, /* number: of the session */
	NODE_PAGE,    /* number: of the page node (fs/page_nodes.h) */
	NODE_NAMESPACES,
	NODE_NAMESPACE, /* from here on, number: of the namespace (fs/namespaces.h) */
	NODE_CTL,
	NODE_LAYOUT,
	NODE_LAYOUT_ERROR,
	NODE_SEGMENT,
	NODE_STATS,
	NODE_RECORDS,
	NODE_CHECKPOINTS,
	NODE_BY_KEY, /* pages/ */
	NODE_FUNNEL, /* behind the others: ids that the kernel holds over an upgrade stay what they are */
	NODE_RECORD, /* from here on, a record's */
	NODE_HEADER,
	NODE_PAGES,
	NODE_ROW,
	NODE_RAW, /* its record file */
	NODE_PARENT,
	NODE_CHECKPOINT, /* the link in checkpoints/ */
	NODE_KINDS,
};

#define NODE_NAMESPACE_BITS 14
#define NODE_RECORD_BITS 28
#define NODE_GENERATION_BITS 18
#define NODE_NAMESPACE_MASK ((1u << NODE_NAMESPACE_BITS) - 1)
#define NODE_GENERATION_MASK ((1u << NODE_GENERATION_BITS) - 1)

struct node {
	enum node_kind kind;
	uint64_t number;     /* of the session, page node or namespace; of a record's, its low NODE_NAMESPACE_BITS */
	uint32_t record;
	uint32_t generation; /* node_generation */
};

static inline uint32_t node_generation(uint32_t generation, uint32_t serial)
{
	return (generation + serial * 0x9e3779b1u) & NODE_GENERATION_MASK;
}

static inline bool node_is_record(enum node_kind kind)
{
	return kind >= NODE_RECORD;
}

_Static_assert(NODE_KINDS - NODE_RECORD <= 8, "part has three bits");

static inline uint64_t node_pack(struct node node)
{
	if (node.kind == NODE_ROOT)
		return 1;
	if (!node_is_record(node.kind))
		return (uint64_t)node.kind << 56 | node.number;
	if (node.record >> NODE_RECORD_BITS)
		return 0;
	return 1ull << 63 | (uint64_t)(node.kind - NODE_RECORD) << 60 |
	       (node.number & NODE_NAMESPACE_MASK) << (NODE_RECORD_BITS + NODE_GENERATION_BITS) |
	       (uint64_t)node.record << NODE_GENERATION_BITS | (node.generation & NODE_GENERATION_MASK);
}

/* False: no id of ours. */
static inline bool node_unpack(uint64_t id, struct node *node)
{
	*node = (struct node){.kind = NODE_ROOT};
	if (id == 1)
		return true;
	if (id >> 63) {
		node->kind = NODE_RECORD + (enum node_kind)(id >> 60 & 7);
		node->number = id >> (NODE_RECORD_BITS + NODE_GENERATION_BITS) & NODE_NAMESPACE_MASK;
		node->record = (uint32_t)(id >> NODE_GENERATION_BITS & ((1u << NODE_RECORD_BITS) - 1));
		node->generation = (uint32_t)(id & NODE_GENERATION_MASK);
		return node->kind < NODE_KINDS;
	}
	node->kind = (enum node_kind)(id >> 56);
	node->number = id & ((1ull << 56) - 1);
	return node->kind > NODE_ROOT && node->kind < NODE_RECORD;
}

#endif
