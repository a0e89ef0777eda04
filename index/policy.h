/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction policy: in which order candidates leave.
 *
 * The index tells a policy which records are candidates (leaves, idle, LIVE) and asks for the next one; what may go is
 * decided by the index, not by the policy. There are two orders per index: of leaf pages and of rows. A policy holds
 * numbers only; a record's place in it is a u32 that the index keeps for it (policy_slot or row_slot).
 *
 * All calls run under the space lock and neither block nor allocate after creation.
 */
#ifndef PREFIXFS_INDEX_POLICY_H
#define PREFIXFS_INDEX_POLICY_H

#include <stdint.h>
#include <stddef.h>

#include "store/base/why.h"

struct policy;

/* What a policy may ask about a candidate. */
struct policy_view {
	void *context;
	uint32_t (*last_use)(void *context, uint32_t record); /* tick of the unit that would leave first */
	uint32_t *(*slot)(void *context, uint32_t record);    /* where the record keeps its place */
};

struct policy_ops {
	const char *name;
	struct policy *(*create)(const struct policy_view *view, uint32_t capacity, struct why *why); /* NULL: ENOMEM */
	void (*destroy)(struct policy **policy);
	void (*insert)(struct policy *policy, uint32_t record); /* becomes a candidate; it is none yet */
	void (*remove)(struct policy *policy, uint32_t record); /* is one no longer; it is one */
	uint32_t (*pop)(struct policy *policy);                 /* the next to leave, removed; TABLES_NONE = none */
	void (*clear)(struct policy *policy); /* none is one any more; their places are as they were; takes no time */
	uint32_t (*count)(const struct policy *policy);
	size_t (*memory_bytes)(const struct policy *policy);
};

/* Least recently used first, exact, over a binary heap with lazy keys: a use costs the policy nothing; a popped
 * candidate that was used since is put back under its newer key. */
extern const struct policy_ops policy_lru;

#endif
