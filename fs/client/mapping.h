/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside libprefixfs: one mapping of a namespace's segment for all connections that have the same one. A daemon that adopted its
 * predecessor's memory hands out the same memory file: then address, ranges and whatever the engine registered stay as they were.
 *
 * Same means: the descriptors' st_dev and st_ino are equal, and so are the lengths. What is mapped keeps its inode, so no other file gets
 * that number meanwhile, and no descriptor is kept. Counted by connections and by holds; the last one unmaps. The session's
 * current connection, lost or not, is one of them: so the mapping lasts until the next connection says whether it has the same. A hold is
 * its caller's and may outlive the session, so one lock of the process guards all mappings: it may be taken under a session's `lock`,
 * nothing is taken under it, and nothing is mapped or unmapped while it is held.
 */
#ifndef PREFIXFS_CLIENT_MAPPING_H
#define PREFIXFS_CLIENT_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

struct pfs_range;
struct pfs_session;

/* Ranges that were acknowledged, by id: the generation plus 1. */
struct acks {
	uint32_t *generations, capacity;
};

bool acks_have(const struct acks *acks, const struct pfs_range *range);
/* Best effort: one that is forgotten is acknowledged once more. */
void acks_add(struct acks *acks, const struct pfs_range *range);
void acks_free(struct acks *acks);

struct pfs_segment {
	struct pfs_segment *next;    /* (mappings) of the session's */
	struct pfs_session *session; /* (mappings) NULL: it is closed, and holds alone are left */
	unsigned connections, holds; /* (mappings) */
	uint64_t number;             /* of all of the process, from 1 */
	uint64_t device, inode, bytes;
	uint8_t *at;
	bool read_only;
	struct acks acked;           /* (ranges_lock) on whatever connection: what the engine can reach in this memory */
};

/* The mapping of @fd, which stays the caller's: one that is there, or a new one, read-only in a read-only session. By one thread at a time,
 * the one that attaches, without the lock, for a new one may block in mmap. Negative errno; the sentence is said. */
int mapping_get(struct pfs_session *session, int fd, uint64_t bytes, struct pfs_segment **ret);
/* Gives a connection's back, without the lock: the last one unmaps. NULL is allowed and left behind. */
void mapping_put(struct pfs_segment **mapping);
/* The session is closed, its connections are gone: what is held is nobody's. */
void mappings_leave(struct pfs_session *session);

#endif
