/* SPDX-License-Identifier: Apache-2.0
 *
 * The will: what a serving process leaves to the next one besides descriptors. One memory file of the parent's, made once, mapped
 * by the parent and by every serving process, never seen by a client. It holds what the kernel was told at the beginning of the
 * connection, numbers that must not be given twice, and what the process was doing, for the account of its death.
 *
 * Writers: the serving process that lives, each field from the thread that its comment names; the parent writes `epoch` between
 * two of them, while none lives. A killed process leaves a prefix of its stores: so each word is stored at once (relaxed atomics;
 * release where it says so), and bytes are valid only where the word that is stored after them says so.
 *
 * Nothing here blocks or allocates after will_make and will_map, which populate it.
 */
#ifndef PREFIXFS_FS_WILL_H
#define PREFIXFS_FS_WILL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/why.h"

#define WILL_MAGIC 0x504653574c4c3031ull /* "PFSWLL01" */
#define WILL_VERSION 2u        /* of this struct and of the keeper's messages: parent and serving process speak the same, or not at all */
#define WILL_INIT_BYTES 4096u  /* the largest INIT, and reply to it, that is kept */
#define WILL_HANDLES 16384u    /* places of fs/handles.h, at most */
#define WILL_LOOPS 64u
#define WILL_NAME_BYTES 80u
#define WILL_DOING_CTL 256u    /* in `doing`: operations of ctl, by their number, from here on */

enum will_phase {
	WILL_STARTING = 1, /* until all heirlooms are there */
	WILL_ADOPTING,     /* will.space names the namespace; done and goal count entries */
	WILL_SERVING,
	WILL_DRAINING,     /* for a handover: what runs is ended */
	WILL_WRITING_DOWN, /* for the end; done and goal count bytes */
	WILL_ENDING,
};

/* What the kernel said and was told, once in the life of a connection. */
struct will_init {
	_Atomic uint32_t request_bytes; /* 0 = none; released after `request` */
	_Atomic uint32_t reply_bytes;   /* 0 = none; released after `reply` and before the kernel is given it */
	_Atomic uint32_t answered;      /* 1: the kernel took the reply */
	uint32_t device;                /* minor of the mount that it belongs to */
	uint8_t request[WILL_INIT_BYTES]; /* struct fuse_in_header and what follows */
	uint8_t reply[WILL_INIT_BYTES];   /* struct fuse_out_header and what follows; its unique means nothing */
};

/* What a loop works on, its thread alone; 128 bytes each, so that none disturbs another. */
struct will_loop {
	_Alignas(128) _Atomic uint32_t doing; /* opcode of FUSE, or WILL_DOING_CTL + number of the operation of ctl; 0 = nothing */
	_Atomic uint64_t began_ns;            /* clock_now_ns */
};

struct will {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes;                    /* sizeof(struct will) */
	_Atomic uint32_t epoch;            /* of the serving process that lives: counts them from 1; at most 65,535 */
	_Atomic uint32_t phase;            /* enum will_phase */
	/* Raised before a number is given out, so that no successor gives it again. Any thread. */
	_Atomic uint64_t sessions;         /* of the last session, from which its number under sessions/ is made */
	_Atomic uint64_t namespaces;       /* last number of a namespace in node ids */
	_Atomic uint64_t serials;          /* last serial of a space */
	/* The tick of each second raises it: a serving process in which it stands still for watchdog_s hangs, or was stopped. */
	_Atomic uint64_t beats;
	_Atomic uint64_t done, goal;       /* of what the phase counts; 0 and 0 = nothing yet */
	char space[WILL_NAME_BYTES];       /* being adopted */
	char adoption_fault[WILL_NAME_BYTES]; /* the namespace in whose adoption the last ones died by a fault of their own; the parent's */
	uint32_t adoption_faults;          /* how many in a row did; 0: the last one did not */
	struct will_loop loops[WILL_LOOPS];
	/* The kernel's numbers of those who wait in poll(2), by place in the table of handles; 0 = nobody. The successor wakes them all:
	 * they ask again and learn that their handle is gone. */
	_Atomic uint64_t polls[WILL_HANDLES];
	/* Of a fatal signal, written by its handler. `signal` last, released; 0 = none. */
	_Atomic int32_t signal;
	int32_t code;                      /* si_code */
	uint64_t address;                  /* si_addr of a fault; 0 = the signal was sent */
	uint64_t instruction;              /* where it was, as an offset in the program; 0 = in a library */
	uint64_t thread;                   /* gettid */
	struct will_init init;
};

/* The parent's: a memory file, sealed against shrinking and growing, and its mapping. ENOMEM, EMFILE. The descriptor is
 * close-on-exec; the serving process inherits it. */
int will_make(struct will **ret, int *ret_fd, struct why *why);
/* The serving process's: maps what it inherited. EPROTO, with both versions: another program made it; EINVAL: it is no will. */
int will_map(int fd, struct will **ret, struct why *why);
void will_unmap(struct will **will);
/* The parent's, before it starts a serving process: the next epoch, nothing being done, no last words. What the kernel was told, and
 * who waits in poll(2), stays unless @remounted. */
void will_next(struct will *will, bool remounted);

/* Installs the handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, which fill the last words and end the process: by SIGKILL, so
 * that no dump keeps its descriptors open, or with @core by the way that the signal had before. To be called once, before the first
 * guard_run (store/base/guard.h), which hands on what is not its own, and before other threads run. The handlers take no lock, allocate
 * nothing and touch only the will; of two faults at once one's words may be missing. */
int will_catch(struct will *will, bool core, struct why *why);

static inline void will_enters(struct will *will, enum will_phase phase)
{
	atomic_store_explicit(&will->phase, phase, memory_order_relaxed);
}

static inline void will_begins(struct will *will, unsigned loop, uint32_t operation, uint64_t now_ns)
{
	atomic_store_explicit(&will->loops[loop].began_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&will->loops[loop].doing, operation, memory_order_relaxed);
}

static inline void will_ends(struct will *will, unsigned loop)
{
	atomic_store_explicit(&will->loops[loop].doing, 0, memory_order_relaxed);
}

/* Numbers that no earlier serving process gave out. */
static inline uint64_t will_number(_Atomic uint64_t *last)
{
	return atomic_fetch_add_explicit(last, 1, memory_order_relaxed) + 1;
}

#endif
