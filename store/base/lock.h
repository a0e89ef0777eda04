/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutexes with a class, an owner and an order.
 *
 * Classes are numbered in the order in which they may be taken: a thread may take a lock only if its class is greater
 * than that of every lock it holds (so never two of one class). Taking out of order, dropping a lock one does not hold
 * and asserting a lock one does not hold abort the process with both class names: in every build, since the check is a
 * handful of thread-local instructions. docs/locking.md lists what each class guards.
 *
 * Nothing may be held across I/O, a reply to the kernel or a wait: call lock_assert_none_held() there.
 */
#ifndef PREFIXFS_STORE_BASE_LOCK_H
#define PREFIXFS_STORE_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum lock_class {
	LOCK_HOST,    /* struct host: the list of namespaces and the budget */
	LOCK_SESSION, /* struct session: its plans, handles, acknowledgements */
	LOCK_SPACE,   /* struct space: index and slots of one namespace */
	LOCK_BLOBS,   /* struct blobs: those of one namespace; never taken under the space lock */
	LOCK_QUEUE,   /* leaf queues: deferred requests, notifications, jobs */
	LOCK_CLASSES,
};

struct lock {
	pthread_mutex_t mutex;
	_Atomic(uintptr_t) owner; /* thread that holds it, 0 = none */
	enum lock_class class;
};

void lock_init(struct lock *lock, enum lock_class class);
void lock_destroy(struct lock *lock); /* nobody holds it */
void lock_take(struct lock *lock);
void lock_drop(struct lock *lock);
void lock_assert_none_held(void); /* this thread holds none at all */

/* Bit c: this thread holds a lock of class c. Its address is also the thread's name in lock.owner. Lock.c's own. */
extern _Thread_local uint32_t lock_held_classes __attribute__((tls_model("initial-exec")));
void lock_die_not_held(const struct lock *lock) __attribute__((noreturn, cold));

static inline bool lock_held(const struct lock *lock) /* by this thread */
{
	return __atomic_load_n((const uintptr_t *)&lock->owner, __ATOMIC_RELAXED) == (uintptr_t)&lock_held_classes;
}

/* Begins the functions that need a lock; a few instructions, since there are several on the way of one key. */
static inline void lock_assert_held(const struct lock *lock)
{
	if (__builtin_expect(!lock_held(lock), 0))
		lock_die_not_held(lock);
}

/* A condition used with a lock. Waits have a deadline, always: CLOCK_MONOTONIC nanoseconds (clock_now_ns). */
struct lock_cond {
	pthread_cond_t cond;
};

void lock_cond_init(struct lock_cond *cond);
void lock_cond_destroy(struct lock_cond *cond);
void lock_cond_wake_all(struct lock_cond *cond);
/* Drops @lock while waiting, holds it again on return. False when the deadline passed. @lock must be the only one held. */
bool lock_cond_wait(struct lock_cond *cond, struct lock *lock, uint64_t deadline_ns);

#endif
