/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes of ns/<name>/pages/<key>: a key of 32 bytes does not fit a node id, so these are the only ids that are allocated.
 * A node is there for as long as the kernel counts look-ups of it:
 *
 *   none -> there (page_nodes_look_up, one look-up) -> ... -> none (page_nodes_forget of the last one)
 *
 * It names a key and nothing else; where the page stands is looked up at every use. The number of a node carries a
 * generation, so that an id which the kernel has forgotten never means another page, and the epoch of the serving process, which
 * alone knows it: an earlier one's is unknown.
 *
 *   number    epoch 16 | generation of the place 24 | place 16
 *
 * Bounded: PAGE_NODES_MAX of 64 bytes each (4 MiB), touched as they are used. The kernel forgets by itself only when it is
 * short of memory; so from PAGE_NODES_EASY on the notifier tells it to let older ones go (page_nodes_surplus), two for each
 * that comes. What cannot go is what somebody has open or stands on: with PAGE_NODES_MAX of those a look-up is ENFILE.
 *
 * Thread-safe. Its lock is a leaf (LOCK_QUEUE), held for constant time.
 */
#ifndef PREFIXFS_FS_PAGE_NODES_H
#define PREFIXFS_FS_PAGE_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"

#define PAGE_NODES_MAX 65536u
#define PAGE_NODES_EASY (PAGE_NODES_MAX / 2)

struct page_nodes;

struct page_nodes *page_nodes_new(uint32_t epoch); /* NULL: no memory */
void page_nodes_free(struct page_nodes **nodes);

/* The number (of at most 56 bits) of the node of @key in namespace number @namespace, with one look-up more; *surplus: the
 * notifier has something to do. False: PAGE_NODES_MAX are in use. */
bool page_nodes_look_up(struct page_nodes *nodes, uint64_t namespace, const struct key *key, uint64_t *number,
	bool *surplus);
/* The kernel gives @lookups of them back, or did not take one. Unknown numbers are passed over. */
void page_nodes_forget(struct page_nodes *nodes, uint64_t number, uint64_t lookups);
/* What a node stands for. False: there is no such node. */
bool page_nodes_get(struct page_nodes *nodes, uint64_t number, uint64_t *namespace, struct key *key);

/* The next node that the kernel should let go, in the order of their places. False: enough were named. */
bool page_nodes_surplus(struct page_nodes *nodes, uint64_t *namespace, struct key *key);
uint32_t page_nodes_count(struct page_nodes *nodes);

#endif
