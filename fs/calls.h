/* SPDX-License-Identifier: Apache-2.0
 *
 * Control requests under way, ioctls and commands of the text face: their memory, the queue of those that go on in steps, and those that wait.
 *
 *   state     who has it                    goes on by
 *   FREE      the pool                      calls_get        -> RUNNING
 *   RUNNING   one thread, a loop or a       calls_publish    -> QUEUED or PARKED;  calls_put -> FREE, after the reply
 *   QUEUED    the queue, first in first out calls_next       -> RUNNING
 *   PARKED    the list of waiting ones      calls_wake (something changed, a deadline passed), calls_interrupt,
 *                                           calls_end_session, calls_close -> QUEUED
 *
 * A waiting request is never answered by whoever wakes it: it is queued again, and the loop thread that takes it
 * sees why (interrupted, ended, deadline) and answers. The kernel's interrupt names a call by number and generation,
 * is armed before the call is published, and finds nothing when the call was answered meanwhile.
 *
 * One lock (LOCK_QUEUE) guards the lists, states and flags; the rest of a call belongs to the thread that runs it. The
 * counters of changes are atomic, since the store raises them under the space lock.
 */
#ifndef PREFIXFS_FS_CALLS_H
#define PREFIXFS_FS_CALLS_H

#include "fs/client/prefixfs_abi.h"
#include "fs/fs.h"
#include "fs/span.h"
#include "store/blobs.h"
#include "store/get.h"
#include "store/into.h"
#include "store/manage.h"
#include "store/put.h"
#include "store/ticket.h"

#define CALLS_MAX 4096u

struct ctl;
struct ctl_text;
struct operation;

enum call_state { CALL_FREE, CALL_RUNNING, CALL_QUEUED, CALL_PARKED };

struct call {
	uint32_t number, generation; /* (lock) both name it */
	enum call_state state;       /* (lock) */
	bool interrupted;            /* (lock) the kernel wants no answer any more */
	bool ended;                  /* (lock) its session is over */
	struct call *next, *prev;    /* (lock) of the list it is in */
	uint64_t wake_ns;            /* (lock while parked) look again then */

	fuse_req_t req;
	struct ctl *ctl; /* (lock; written in calls_get and calls_put) taken from the handles until the answer */
	void (*run)(struct fs *fs, struct call *call); /* goes on with it when it comes from the queue */
	const struct operation *operation; /* of an ioctl */
	uint32_t bytes;  /* of the struct that came, and goes back */
	bool entered;    /* session_enter succeeded */
	bool noted;      /* its number stands in the session's list of running requests */
	bool armed;      /* the kernel's interrupt knows it */
	bool waiting;    /* its last step answered STEP_WAIT */
	uint32_t change; /* counter of changes before the last step */
	uint64_t deadline_ns;
	uint64_t look_ns; /* after STEP_WAIT of an ioctl: step again then, if nothing changed; 0 = at the deadline */
	uint64_t began_ns; /* while it runs; while it does not, how long it has */
	void *copy;      /* from the buffers, given back with the call */
	struct span span;
	struct why why;
	union {
		struct pfs_call call; /* begins each of them */
		struct pfs_attach attach;
		struct pfs_segments segments;
		struct pfs_segments_ack segments_ack;
		struct pfs_put_start put_start;
		struct pfs_put_end put_end;
		struct pfs_get_start get_start;
		struct pfs_get_transfer get_transfer;
		struct pfs_import import;
		struct pfs_get_into get_into;
		struct pfs_get_confirm get_confirm;
		struct pfs_get_cancel get_cancel;
		struct pfs_release release;
		struct pfs_probe probe;
		struct pfs_stat stat;
		struct pfs_last_error last_error;
		struct pfs_touch touch;
		struct pfs_remove remove;
		struct pfs_pin pin;
		struct pfs_drain drain;
		struct pfs_reset reset;
		struct pfs_settle settle;
		struct pfs_blob_put blob_put;
		struct pfs_blob_get blob_get;
		struct pfs_blob_remove blob_remove;
		struct pfs_blob_lock blob_lock;
		unsigned char bytes[4096];
	} arg; /* what came, and what goes back */
	union {
		struct put_start put_start;
		struct put_end put_end;
		struct get_start get_start;
		struct get_transfer get_transfer;
		struct {
			struct get_into store;
			int result; /* of its carrier */
		} get_into;
		struct ticket_confirm confirm;
		struct probe probe;
		struct touch touch;
		struct removal removal;
		struct pinning pinning;
		struct reset reset;
		struct blob_write blob_write;
		struct blob_read blob_read;
		struct blob_lock blob_lock;
		struct {
			const uint64_t *plans; /* our copy */
			int32_t *status;       /* untrusted, or NULL */
			uint32_t next;
			int error;
		} release;
		struct {
			uint64_t number; /* of the errand, 0 = there is none */
			bool disk;
		} drain;
		struct {
			struct ctl_text *face;
			size_t bytes, done; /* of the copy: what was written, and what was taken of it */
		} text;
	} work;
};

struct calls *calls_new(struct fs *fs); /* NULL: no memory */
void calls_free(struct calls **calls);  /* none may be under way */

/* A RUNNING call on @ctl, which its caller has taken; NULL: CALLS_MAX are under way. */
struct call *calls_get(struct calls *calls, struct ctl *ctl);
void calls_put(struct calls *calls, struct call *call);

/* Gives a running call to whichever loop comes next (@park false), or lets it wait for a change, its deadline or
 * call->wake_ns. The caller may not touch it afterwards. */
void calls_publish(struct calls *calls, struct call *call, bool park);
/* The next queued call, now the caller's to run; NULL: none. */
struct call *calls_next(struct calls *calls);
uint32_t calls_queued(const struct calls *calls);
/* Why a call that was waiting should give up: EINTR, ESHUTDOWN, ENODEV; 0: it should not. */
int calls_verdict(struct calls *calls, const struct call *call);

/* For fuse_req_interrupt_func: the data is calls_name(). */
void *calls_name(const struct call *call);
void calls_interrupt(fuse_req_t req, void *name);
/* The calls of a session are to give up: its process is gone. */
void calls_end_session(struct calls *calls, uint64_t session);
/* From now on nothing waits: what is parked is queued and gives up. */
void calls_close(struct calls *calls);

/* Changes of a space, by the low bits of its serial: others' changes may be counted along. Any thread, any lock. */
uint32_t calls_change(const struct calls *calls, uint32_t serial);
void calls_changed(struct calls *calls, uint32_t serial);
/* Queues those that have something to look at again. Cheap when there is nothing. Loops call it in turn. */
void calls_wake(struct calls *calls);
/* Milliseconds until calls_wake is worth calling without a kick; -1: none. */
int calls_patience_ms(const struct calls *calls);
/* Makes the kick readable: one thread that sleeps wakes. Any thread. */
void calls_kick(struct calls *calls);
/* eventfd that wakes one idle loop. */
int calls_kick_fd(const struct calls *calls);

#endif
