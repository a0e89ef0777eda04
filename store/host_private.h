/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host is made of. Private to store/.
 */
#ifndef PREFIXFS_STORE_HOST_PRIVATE_H
#define PREFIXFS_STORE_HOST_PRIVATE_H

#include <stdatomic.h>

#include "store/budget.h"
#include "store/disk.h"
#include "store/space.h"

struct grower;
struct quarantine;

struct host {
	struct host_config config;
	struct grower *grower;
	struct disk *disk;        /* or NULL */
	struct mover *mover;      /* where there is a disk */
	uint64_t disk_limit;      /* bytes of record files when it was opened: sizes the places of namespaces */
	char disk_text[200];      /* why there is none though it was asked for */
	struct budget budget; /* of config.memory_bytes */

	_Atomic uint64_t viewed_bytes;    /* that the namespaces keep for the mount's readers: store/viewed.c */
	_Atomic bool closing;             /* by host_free */
	_Atomic bool balance_queued;
	_Atomic uint32_t imports;         /* memory files of clients: store/import.c */
	_Atomic bool room_made;           /* since the last balance: who was refused is told to try again */

	struct lock lock; /* LOCK_HOST */
	struct space *spaces[HOST_MAX_SPACES];         /* (lock) in order of creation, each holds a reference */
	uint32_t space_count;                          /* (lock) */
	_Atomic uint64_t own_serial, own_session;      /* where config.last_serial and last_session are NULL */
	_Atomic uint64_t *last_serial;                 /* constant; written under the lock */
	struct session *sessions[HOST_MAX_SESSIONS];   /* (lock) each holds a reference while it is open */
	_Atomic uint64_t *last_session;                /* likewise; a session's number is this x HOST_MAX_SESSIONS + slot */
	uint32_t session_count;                        /* (lock) */
	struct quarantine *quarantine;                 /* (lock) list */
	struct space *going;                           /* (lock) removed ones, until memory and folder are given back */
	uint32_t await_going;                          /* (lock) creations that wait for one of them */
	struct lock_cond gone;                         /* (lock) told when one of them was */
	struct unused_folder *unused;                  /* (lock) list: of the disk, that no namespace has */
};

/* References to all namespaces in view; the caller drops them. How many. */
uint32_t host_all_spaces(struct host *host, struct space *ret[HOST_MAX_SPACES]);

/* ---- host_disk.c -------------------------------------------------------------------------------------------------- */

/* Opens the record directory, if one is configured: EWOULDBLOCK when another daemon has it (config.disk_late: no error), else 0; what
 * keeps it from being used stands in disk_text. Blocks. */
int host_disk_open(struct host *host, struct why *why);
void host_disk_close(struct host *host); /* no space is left; blocks */
void host_disk_clear_gone(struct host *host); /* what a death left of namespaces that were being removed; the mover's; blocks */

/* A folder that holds record files which no namespace serves. */
struct unused_folder {
	struct unused_folder *next;
	char name[DISK_DIR_NAME_BYTES];
	char text[160];         /* what is wrong, or empty: nothing */
	uint64_t files, bytes;
};

/* ---- host.c ------------------------------------------------------------------------------------------------------- */

/* Puts @space in view, under the checks of host_space_create; the list has a reference of its own. */
int host_list(struct host *host, struct space *space, struct why *why);
void host_space_gone(struct space *space); /* @space gave back its memory and its folder; any thread, without a lock */

/* ---- grower.c: a thread that makes memory present in the background -------------------------------------------- */

enum grower_kind { GROWER_GRANT, GROWER_AHEAD, GROWER_RECUT, GROWER_BALANCE };

struct grower_job {
	enum grower_kind kind;
	struct space *space;   /* the queue takes a reference of its own; NULL of a balance */
	uint64_t length;       /* of the grant */
	uint64_t offset;
	uint32_t grant, node;
	uint32_t first_entry, slots;
	bool populate;         /* false: only its entries */
	bool prewarm;          /* part of the floor */
	struct index_mark mark; /* AHEAD: the index's memory behind it */
	uint32_t class_index, share; /* RECUT: what lacks slots */
};

int grower_new(struct host *host, unsigned threads, struct grower **ret, struct why *why);
/* Ends the thread; jobs that did not run are dropped with their references. */
void grower_free(struct grower **grower);
/* Any thread, the space lock may be held. False: the queue is full. */
bool grower_push(struct grower *grower, const struct grower_job *job);
bool grower_idle(struct grower *grower); /* no job waits or is under way; for tests */

/* ---- recut.c: a grant of another size for one that lacks slots ------------------------------------------------ */

#define RECUT_REST 64u        /* batches: no grant with younger content is cut anew */
#define RECUT_FACTOR 2u       /* its content is that much older than what the size that lacks could let go itself */
#define RECUT_PAUSE_MIN 16u   /* batches after a look that found nothing, doubling, but not past when it could find */
#define RECUT_PAUSE_MAX 4096u
#define RECUT_HOLD_MAX 65536u /* batches for which a size keeps what it got, doubled at every way back */
#define RECUT_MEMORY 2u       /* a way back counts as one so many times the hold after the way there */

/* Under the space lock: a put of (class, share) found no free slot, and the budget gave no grant. */
void recut_wish(struct space *space, uint32_t class_index, uint32_t share);
/* Under the space lock: it got a grant by recut so lately that none may be taken from it. */
bool recut_holds(const struct space *space, uint32_t class_index, uint32_t share);
void recut_run(struct space *space, uint32_t class_index, uint32_t share); /* in the grower's thread */

/* ---- balance.c: grants above floors go back to the host -------------------------------------------------------- */

/* Any thread, any lock but a leaf: looks soon, in the grower's thread, whether grants can go back and who waits for them. */
void balance_ask(struct host *host);
/* Under the space lock: a put found no room, and though the namespace is below its floor the budget gave no grant. */
void balance_hunger(struct space *space, uint32_t class_index, uint32_t share, uint32_t node);
void balance_run(struct host *host); /* in the grower's thread */

/* ---- quarantine.c: slots that wait for a process to be gone --------------------------------------------------- */

struct quarantine {
	struct quarantine *next;
	struct space *space; /* referenced */
	uint64_t session;
	uint32_t seat;
	uint32_t count;
	uint32_t entries[];
};
/* Takes @entries, already ENTRY_QUARANTINED, until the process of @session is gone. Aborts when out of memory only after
 * leaking them: they are then counted for ever, never reused, and the seat is not left. */
void quarantine_add(struct session *session, const uint32_t *entries, uint32_t count);
/* Slots that wait for the process of @session. */
uint32_t quarantine_of_session(struct host *host, uint64_t session);
void quarantine_free_session(struct host *host, uint64_t session);
void quarantine_free_all(struct host *host);

#endif
