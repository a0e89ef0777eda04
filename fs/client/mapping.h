/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside libprefixfs: one mapping of a namespace's segment for all connections that have the same one. A daemon that adopted its
 * predecessor's memory hands out the same memory file: then address, ranges and whatever the engine registered stay as they were.
 *
 * Same means: the descriptors' st_dev and st_ino are equal, and so are the lengths. Counted by connections, under the session's lock; the
 * last one unmaps. mmap and munmap run without the lock.
 */
#ifndef PREFIXFS_CLIENT_MAPPING_H
#define PREFIXFS_CLIENT_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

struct pfs_session;

struct mapping {
	struct mapping *next; /* (lock) of the session's */
	unsigned refs;        /* (lock) */
	uint64_t device, inode, bytes;
	uint8_t *at;
	int fd;               /* the first one that came */
	uint32_t *acked, acked_capacity; /* (ranges_lock) by range id: generation that was acknowledged plus 1, of whatever connection */
};

/* The mapping of @fd, which is taken over: one that is there, or a new one. Negative errno; the sentence is said. *same: it was there,
 * so the engine's registrations of it are good. */
int mapping_get(struct pfs_session *session, int fd, uint64_t bytes, bool read_only, struct mapping **ret, bool *same);
void mapping_put(struct pfs_session *session, struct mapping **mapping);

/* After an attach anew on the same mapping: acknowledges, on the new connection, every range that is listed with the generation that was
 * acknowledged before. Others are left to ranges_sync, or with auto_ack 0 to the engine: it is asked about what is new alone. */
struct conn;
int mapping_acknowledge(struct pfs_session *session, struct conn *conn);

/* The last plan of a lost connection has ended: tells the daemon by SETTLE on the current connection, if there
 * is one. A failure is no matter: the daemon keeps the slots until this process ends. Never attaches anew for it. */
void conn_settle(struct pfs_session *session, uint64_t earlier);

#endif
