/* SPDX-License-Identifier: Apache-2.0
 *
 * What parent and serving process tell each other, over a SOCK_SEQPACKET pair: one message a packet.
 *
 *   WAITS        serving -> parent   it has all that it can have before it is given anything
 *   READY        serving -> parent   the mount answers
 *   POPULATING   serving -> parent   number 1: it makes memory of floors present; 0: it is. A successor begins with 1
 *   KEEP         serving -> parent   with a descriptor: hold it for me as (what, name, number)
 *   DROP         serving -> parent   let go of that one
 *   GIVE         parent -> serving   with a descriptor: what a process before it had kept as (what, name, number)
 *   GIVEN        parent -> serving   that was all; number: how many (fs/heirlooms.h)
 *   HANDOVER     parent -> serving   end what runs, answer it, take nothing new, exit with 0
 *   STOP         parent -> serving   end everything and exit with 0; number 1: at once, write nothing down
 *
 * End of file means that the other one is gone. Sending is one call of the kernel and safe from any thread. It waits while the
 * channel is full, unless its end is non-blocking: the parent's is.
 */
#ifndef PREFIXFS_FS_KEEPER_H
#define PREFIXFS_FS_KEEPER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/host.h"

enum keeper_kind { KEEPER_READY = 1, KEEPER_KEEP, KEEPER_DROP, KEEPER_STOP, KEEPER_POPULATING, KEEPER_GIVE, KEEPER_GIVEN, KEEPER_HANDOVER, KEEPER_WAITS };

struct keeper_message {
	uint32_t kind; /* enum keeper_kind; a change of these messages is one of WILL_VERSION (fs/will.h) */
	uint32_t reserved;
	uint64_t number;
	char what[16]; /* "segment", "tables", "session", "guard" */
	char name[80]; /* of the namespace */
};

/* @fd goes along unless it is -1, and stays the caller's. 0 or a negative errno; -EAGAIN: full, and @socket is non-blocking. */
int keeper_send(int socket, enum keeper_kind kind, const char *what, const char *name, uint64_t number, int fd);
/* 1: a message, with its descriptor or -1 in *fd; 0: the other one is gone; -EAGAIN: nothing there. Does not block. */
int keeper_receive(int socket, struct keeper_message *message, int *fd);

/* The parent's store of descriptors. One thread. */
struct kept {
	struct kept_fd {
		char what[16];
		char name[80];
		uint64_t number;
		int fd;
	} *fds;
	unsigned count, capacity;
	uint32_t refused; /* so far: more than KEPT_MAX, or no memory */
};

#define KEPT_MAX (2 * HOST_MAX_SPACES + 2 * HOST_MAX_SESSIONS)

/* Takes @fd over; one of the same name is replaced. Where there is no room it is closed and counted. */
void kept_add(struct kept *kept, const struct keeper_message *message, int fd);
void kept_drop(struct kept *kept, const struct keeper_message *message);
uint32_t kept_count(const struct kept *kept, const char *what);
void kept_clear(struct kept *kept);

#endif
