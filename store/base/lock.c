/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/lock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *const lock_class_names[LOCK_CLASSES] = {
	[LOCK_HOST] = "host",   [LOCK_SESSION] = "session", [LOCK_SPACE] = "space",
	[LOCK_BLOBS] = "blobs",  [LOCK_QUEUE] = "queue",
};

/* One lock of a class at a time, so a bit is enough. */
_Thread_local uint32_t lock_held_classes;

static uintptr_t lock_self(void)
{
	return (uintptr_t)&lock_held_classes;
}

__attribute__((noreturn, cold)) static void lock_die(const char *what, const struct lock *lock)
{
	uint32_t held = lock_held_classes;
	char list[128];
	size_t used = 0;

	list[0] = 0;
	for (unsigned c = 0; c < LOCK_CLASSES; c++)
		if (held & 1u << c)
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used ? ", " : "",
						 lock_class_names[c]);
	fprintf(stderr, "lock: %s %s while this thread holds: %s\n", what, lock ? lock_class_names[lock->class] : "",
		held ? list : "none");
	abort();
}

/* A mutex call that fails means a destroyed or torn mutex: nothing can go on. */
static void lock_must(int error, const char *what, const struct lock *lock)
{
	if (__builtin_expect(error != 0, 0))
		lock_die(what, lock);
}

void lock_init(struct lock *lock, enum lock_class class)
{
	lock->class = class;
	if (class >= LOCK_CLASSES) {
		fprintf(stderr, "lock: class %d does not exist\n", (int)class);
		abort();
	}
	lock_must(pthread_mutex_init(&lock->mutex, NULL), "cannot make", lock);
	atomic_store_explicit(&lock->owner, 0, memory_order_relaxed);
}

void lock_destroy(struct lock *lock)
{
	if (atomic_load_explicit(&lock->owner, memory_order_relaxed))
		lock_die("destroying a held", lock);
	lock_must(pthread_mutex_destroy(&lock->mutex), "cannot destroy", lock);
}

static void lock_note_taken(struct lock *lock)
{
	atomic_store_explicit(&lock->owner, lock_self(), memory_order_relaxed);
	lock_held_classes |= 1u << lock->class;
}

static void lock_note_dropped(struct lock *lock)
{
	lock_held_classes &= ~(1u << lock->class);
	atomic_store_explicit(&lock->owner, 0, memory_order_relaxed);
}

void lock_take(struct lock *lock)
{
	if (__builtin_expect(lock_held_classes >> lock->class != 0, 0))
		lock_die("out of order: taking", lock);
	lock_must(pthread_mutex_lock(&lock->mutex), "cannot take", lock);
	lock_note_taken(lock);
}

void lock_drop(struct lock *lock)
{
	lock_assert_held(lock);
	lock_note_dropped(lock);
	lock_must(pthread_mutex_unlock(&lock->mutex), "cannot drop", lock);
}

void lock_die_not_held(const struct lock *lock)
{
	lock_die("not held:", lock);
}

void lock_assert_none_held(void)
{
	if (__builtin_expect(lock_held_classes != 0, 0))
		lock_die("none may be held here", NULL);
}

void lock_cond_init(struct lock_cond *cond)
{
	pthread_condattr_t attr;
	int error = pthread_condattr_init(&attr);

	if (!error)
		error = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!error)
		error = pthread_cond_init(&cond->cond, &attr);
	lock_must(error, "cannot make a condition", NULL);
	pthread_condattr_destroy(&attr);
}

void lock_cond_destroy(struct lock_cond *cond)
{
	lock_must(pthread_cond_destroy(&cond->cond), "cannot destroy a condition", NULL);
}

void lock_cond_wake_all(struct lock_cond *cond)
{
	pthread_cond_broadcast(&cond->cond);
}

bool lock_cond_wait(struct lock_cond *cond, struct lock *lock, uint64_t deadline_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u),
	};

	lock_assert_held(lock);
	if (lock_held_classes != 1u << lock->class)
		lock_die("waiting with more than", lock);
	lock_note_dropped(lock);
	int error = pthread_cond_timedwait(&cond->cond, &lock->mutex, &until);
	lock_note_taken(lock);
	if (error == 0)
		return true;
	if (error != ETIMEDOUT)
		lock_die("cannot wait on", lock);
	return false;
}
