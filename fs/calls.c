/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/calls.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/ctl.h"
#include "store/base/clock.h"
#include "store/base/memory.h"

#define CHANGES 1024u /* counters */

struct list {
	struct call *first, *last;
};

struct calls {
	struct fs *fs;
	int kick;
	struct lock lock;
	struct call *all;                 /* CALLS_MAX of them, touched as they are used */
	uint32_t used;                    /* (lock) */
	struct list free;                 /* (lock) used as a stack: the warm one first */
	struct list queue;                /* (lock) */
	struct list parked;               /* (lock) */
	bool closed;                      /* (lock) */
	_Atomic uint32_t queued, waiting; /* lengths; written under the lock, read without */
	_Atomic uint64_t next_wake_ns;    /* of the parked ones; UINT64_MAX = none. Written under the lock */
	_Atomic bool changed;             /* some counter rose since calls_wake looked */
	_Atomic uint32_t changes[CHANGES];
};

static void list_append(struct list *list, struct call *call)
{
	call->next = NULL;
	call->prev = list->last;
	if (list->last)
		list->last->next = call;
	else
		list->first = call;
	list->last = call;
}

static void list_remove(struct list *list, struct call *call)
{
	if (call->prev)
		call->prev->next = call->next;
	else
		list->first = call->next;
	if (call->next)
		call->next->prev = call->prev;
	else
		list->last = call->prev;
	call->next = call->prev = NULL;
}

struct calls *calls_new(struct fs *fs)
{
	struct calls *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->fs = fs;
	c->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->all = memory_reserve(CALLS_MAX * sizeof(*c->all), false);
	lock_init(&c->lock, LOCK_QUEUE);
	atomic_store(&c->next_wake_ns, UINT64_MAX);
	if (c->kick < 0 || !c->all)
		calls_free(&c);
	return c;
}

void calls_free(struct calls **cp)
{
	struct calls *c = *cp;

	*cp = NULL;
	if (!c)
		return;
	assert(!c->queue.first && !c->parked.first);
	if (c->kick >= 0)
		close(c->kick);
	memory_release(&c->all, CALLS_MAX * sizeof(*c->all));
	lock_destroy(&c->lock);
	free(c);
}

void calls_kick(struct calls *c)
{
	uint64_t one = 1;

	if (write(c->kick, &one, sizeof(one)) < 0)
		assert(errno == EAGAIN); /* the counter is full: it is readable all the same */
}

struct call *calls_get(struct calls *c, struct ctl *ctl)
{
	lock_take(&c->lock);
	struct call *call = c->free.last;
	if (call)
		list_remove(&c->free, call);
	else if (c->used < CALLS_MAX)
		call = &c->all[c->used++];
	if (call) {
		call->number = (uint32_t)(call - c->all);
		call->generation++;
		call->state = CALL_RUNNING;
		call->interrupted = call->ended = false;
		call->ctl = ctl;
	}
	lock_drop(&c->lock);
	if (call) {
		call->operation = NULL;
		call->entered = call->noted = call->armed = call->waiting = false;
		call->copy = NULL;
		call->deadline_ns = call->look_ns = 0;
		call->why.error = 0;
		call->why.text[0] = 0;
		memset(&call->work, 0, sizeof(call->work));
	}
	return call;
}

void calls_put(struct calls *c, struct call *call)
{
	buffers_put(&c->fs->buffers, call->copy);
	lock_take(&c->lock);
	assert(call->state == CALL_RUNNING);
	call->state = CALL_FREE;
	call->ctl = NULL;
	call->generation++; /* a late interrupt finds nothing */
	list_append(&c->free, call);
	lock_drop(&c->lock);
}

static void enqueue(struct calls *c, struct call *call)
{
	lock_assert_held(&c->lock);
	call->state = CALL_QUEUED;
	list_append(&c->queue, call);
	atomic_store_explicit(
		&c->queued, atomic_load_explicit(&c->queued, memory_order_relaxed) + 1, memory_order_relaxed);
}

static void unpark(struct calls *c, struct call *call)
{
	list_remove(&c->parked, call);
	atomic_store(&c->waiting, atomic_load_explicit(&c->waiting, memory_order_relaxed) - 1);
	enqueue(c, call);
}

static bool worth_waking(const struct calls *c, const struct call *call, uint64_t now)
{
	return call->interrupted || call->ended || c->closed || now >= call->wake_ns ||
	       calls_change(c, ctl_serial(call->ctl)) != call->change;
}

void calls_publish(struct calls *c, struct call *call, bool park)
{
	bool help;

	lock_take(&c->lock);
	assert(call->state == CALL_RUNNING);
	if (park) {
		/* Counted before the change is looked at: a change after this look sees it waiting and kicks. */
		atomic_store(&c->waiting, atomic_load_explicit(&c->waiting, memory_order_relaxed) + 1);
		call->state = CALL_PARKED;
		list_append(&c->parked, call);
		if (call->wake_ns < atomic_load_explicit(&c->next_wake_ns, memory_order_relaxed))
			atomic_store(&c->next_wake_ns, call->wake_ns);
		if (worth_waking(c, call, clock_now_ns()))
			unpark(c, call);
	} else {
		enqueue(c, call);
	}
	/* One goes on in the thread that published it; a second one is worth waking somebody for. */
	help = atomic_load_explicit(&c->queued, memory_order_relaxed) > 1;
	lock_drop(&c->lock);
	if (help)
		calls_kick(c);
}

struct call *calls_next(struct calls *c)
{
	if (atomic_load_explicit(&c->queued, memory_order_relaxed) == 0)
		return NULL;
	lock_take(&c->lock);
	struct call *call = c->queue.first;
	if (call) {
		list_remove(&c->queue, call);
		call->state = CALL_RUNNING;
		atomic_store_explicit(
			&c->queued, atomic_load_explicit(&c->queued, memory_order_relaxed) - 1, memory_order_relaxed);
	}
	lock_drop(&c->lock);
	return call;
}

uint32_t calls_queued(const struct calls *c)
{
	return atomic_load_explicit(&c->queued, memory_order_relaxed);
}

int calls_verdict(struct calls *c, const struct call *call)
{
	lock_take(&c->lock);
	int error = call->interrupted ? EINTR : call->ended ? ESHUTDOWN : c->closed ? ENODEV : 0;
	lock_drop(&c->lock);
	return error;
}

void *calls_name(const struct call *call)
{
	return (void *)((uintptr_t)call->generation << 32 | (call->number + 1));
}

void calls_interrupt(fuse_req_t req, void *name)
{
	struct fs *fs = fuse_req_userdata(req);
	struct calls *c = fs->calls;
	uint32_t number = (uint32_t)(uintptr_t)name - 1;
	bool wake = false;

	lock_take(&c->lock);
	if (number < c->used) {
		struct call *call = &c->all[number];

		if (call->generation == (uintptr_t)name >> 32 && call->state != CALL_FREE) {
			call->interrupted = true;
			wake = call->state == CALL_PARKED;
			if (wake)
				unpark(c, call);
		}
	}
	lock_drop(&c->lock);
	if (wake)
		calls_kick(c);
}

void calls_end_session(struct calls *c, uint64_t session)
{
	lock_take(&c->lock);
	for (uint32_t i = 0; i < c->used; i++) {
		struct call *call = &c->all[i];

		if (call->state == CALL_FREE || ctl_session_number(call->ctl) != session)
			continue;
		call->ended = true;
		if (call->state == CALL_PARKED)
			unpark(c, call);
	}
	lock_drop(&c->lock);
	calls_kick(c);
}

void calls_close(struct calls *c)
{
	lock_take(&c->lock);
	c->closed = true;
	while (c->parked.first)
		unpark(c, c->parked.first);
	lock_drop(&c->lock);
	calls_kick(c);
}

uint32_t calls_change(const struct calls *c, uint32_t serial)
{
	return atomic_load(&c->changes[serial % CHANGES]);
}

void calls_changed(struct calls *c, uint32_t serial)
{
	atomic_fetch_add(&c->changes[serial % CHANGES], 1);
	if (atomic_load(&c->waiting) && !atomic_exchange(&c->changed, true))
		calls_kick(c);
}

void calls_wake(struct calls *c)
{
	uint64_t now, next = UINT64_MAX;

	if (atomic_load_explicit(&c->waiting, memory_order_relaxed) == 0)
		return;
	now = clock_now_ns();
	if (!atomic_load_explicit(&c->changed, memory_order_relaxed) && now < atomic_load(&c->next_wake_ns))
		return;
	lock_take(&c->lock);
	atomic_store(&c->changed, false);
	for (struct call *call = c->parked.first, *after; call; call = after) {
		after = call->next;
		if (worth_waking(c, call, now))
			unpark(c, call);
		else if (call->wake_ns < next)
			next = call->wake_ns;
	}
	atomic_store(&c->next_wake_ns, next);
	lock_drop(&c->lock);
}

int calls_patience_ms(const struct calls *c)
{
	uint64_t next = atomic_load(&c->next_wake_ns), now;

	if (next == UINT64_MAX)
		return -1;
	now = clock_now_ns();
	return next <= now ? 0 : (int)((next - now) / 1000000) + 1;
}

int calls_kick_fd(const struct calls *c)
{
	return c->kick;
}
