/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for one request.
 */
#include "store/tier.h"

#include <stdbool.h>

#include "store/base/clock.h"
#include "store/base/lock.h"

#define WAIT_STEP_NS 60000000000ull /* a wait has a deadline; this one is renewed for as long as the tier takes */

struct waiter {
	struct lock lock;
	struct lock_cond ended;
	bool done; /* (lock) */
};

static void waiter_done(struct tier_io *io)
{
	struct waiter *w = io->context;

	/* Woken inside the lock: the waiter frees both as soon as it can have the lock. */
	lock_take(&w->lock);
	w->done = true;
	lock_cond_wake_all(&w->ended);
	lock_drop(&w->lock);
}

static int wait_for(struct tier *tier, void (*start)(struct tier *tier, struct tier_io *io), uint64_t offset,
	void *buffer, size_t bytes)
{
	struct waiter w = {.done = false};
	struct tier_io io = {
		.offset = offset,
		.buffer = buffer,
		.bytes = bytes,
		.done = waiter_done,
		.context = &w,
	};

	lock_assert_none_held();
	lock_init(&w.lock, LOCK_QUEUE);
	lock_cond_init(&w.ended);
	start(tier, &io);
	lock_take(&w.lock);
	while (!w.done)
		lock_cond_wait(&w.ended, &w.lock, clock_now_ns() + WAIT_STEP_NS);
	lock_drop(&w.lock);
	lock_cond_destroy(&w.ended);
	lock_destroy(&w.lock);
	return io.result;
}

int tier_read(struct tier *tier, uint64_t offset, void *to, size_t bytes)
{
	return wait_for(tier, tier->ops->read, offset, to, bytes);
}

int tier_write(struct tier *tier, uint64_t offset, const void *from, size_t bytes)
{
	return wait_for(tier, tier->ops->write, offset, (void *)(uintptr_t)from, bytes);
}

void tier_await_idle(const _Atomic uint64_t *under_way)
{
	const struct timespec nap = {.tv_nsec = 100000};

	lock_assert_none_held();
	while (*under_way)
		nanosleep(&nap, NULL);
}
