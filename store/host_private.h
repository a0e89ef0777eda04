/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host is made of. Private to store/.
 */
#ifndef PREFIXFS_STORE_HOST_PRIVATE_H
#define PREFIXFS_STORE_HOST_PRIVATE_H

#include <stdatomic.h>

#include "store/budget.h"
#include "store/space.h"

struct grower;
struct quarantine;

struct host {
	struct host_config config;
	struct grower *grower;
	struct budget budget; /* of config.memory_bytes */

	struct lock lock; /* LOCK_HOST */
	struct space *spaces[HOST_MAX_SPACES];         /* (lock) in order of creation, each holds a reference */
	uint32_t space_count;                          /* (lock) */
	uint32_t last_serial;                          /* (lock) */
	struct session *sessions[HOST_MAX_SESSIONS];   /* (lock) each holds a reference while it is open */
	uint64_t last_session;                         /* (lock) a session's number is this x HOST_MAX_SESSIONS + slot */
	uint32_t session_count;                        /* (lock) */
	struct quarantine *quarantine;                 /* (lock) list */
};

/* ---- grower.c: a thread that makes memory present in the background -------------------------------------------- */

struct grower_job {
	struct space *space;   /* the queue takes a reference of its own */
	uint64_t length;       /* of the grant; 0 = the index's memory behind `mark` */
	uint64_t offset;
	uint32_t grant, node;
	uint32_t first_entry, slots;
	bool populate;         /* false: only its entries */
	bool prewarm;          /* part of the floor */
	struct index_mark mark;
};

int grower_new(unsigned threads, struct grower **ret, struct why *why);
/* Ends the thread; jobs that did not run are dropped with their references. */
void grower_free(struct grower **grower);
/* Any thread, the space lock may be held. False: the queue is full. */
bool grower_push(struct grower *grower, const struct grower_job *job);

/* ---- quarantine.c: slots that wait for a process to be gone --------------------------------------------------- */

struct quarantine {
	struct quarantine *next;
	struct space *space; /* referenced */
	uint64_t session;
	uint32_t count;
	uint32_t entries[];
};
/* Takes @entries, already ENTRY_QUARANTINED, until the process of @session is gone. Aborts when out of memory only after
 * leaking them: they are then counted for ever, never reused. */
void quarantine_add(struct host *host, struct space *space, uint64_t session, const uint32_t *entries, uint32_t count);
void quarantine_free_session(struct host *host, uint64_t session);
void quarantine_free_all(struct host *host);

#endif
