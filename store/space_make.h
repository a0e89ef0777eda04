/* SPDX-License-Identifier: Apache-2.0
 *
 * What a new namespace and an adopted one are made by: steps of space_new and host_space_adopt. Private to them.
 */
#ifndef PREFIXFS_STORE_SPACE_MAKE_H
#define PREFIXFS_STORE_SPACE_MAKE_H

#include "store/space.h"

/* Entries: slots, then places, then hollow ones; and how many keys can have a name at once. */
struct ranges {
	uint32_t slots, places, names;
};

/* Takes @layout, also when there is no memory: NULL. */
struct space *space_empty(struct host *host, const char *name, uint32_t serial, struct layout *layout,
			  const struct space_access *access);
int space_promise(struct space *space, struct why *why);    /* its floor, by the budget; its blobs */
int space_memory_new(struct space *space, struct why *why); /* the tier over its segment */
int space_index_new(struct space *space, const struct ranges *ranges, struct why *why); /* and the slots; over its tables */
int space_groups_new(struct space *space, struct why *why); /* and its tickets */
void space_capacities(struct space *space); /* under the lock, like the next two */
/* Cuts what is left of the floor into grants: one for each (class, share), then for the one that covers the fewest tokens, until it
 * is used up. EINVAL: it cannot hold one of each; not of a namespace that has grants already. */
int space_cut_floor(struct space *space, struct why *why);
void space_prewarm(struct space *space); /* its grants are populated in the background, as part of the floor */

#endif
