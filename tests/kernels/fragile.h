/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain C as a device that is held up and lost: what is done when it is submitted is not done before it is let go, and nothing works
 * after it was lost. For tests where there is no GPU.
 */
#ifndef PREFIXFS_TESTS_KERNELS_FRAGILE_H
#define PREFIXFS_TESTS_KERNELS_FRAGILE_H

#include <errno.h>
#include <pthread.h>

#include "kernels/backend.h"
#include "kernels/say.h"

static struct {
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t news;
	bool held, lost;
	uint32_t fail; /* so many ends say that the copy failed, though all else is held up */
} fragile = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};

static inline void fragile_set(bool held, bool lost)
{
	pthread_mutex_lock(&fragile.lock);
	fragile.held = held;
	fragile.lost = lost;
	pthread_cond_broadcast(&fragile.news);
	pthread_mutex_unlock(&fragile.lock);
}

static inline void fragile_fail(uint32_t ends)
{
	pthread_mutex_lock(&fragile.lock);
	fragile.fail = ends;
	pthread_cond_broadcast(&fragile.news);
	pthread_mutex_unlock(&fragile.lock);
}

static inline int fragile_state(bool wait)
{
	bool lost;

	pthread_mutex_lock(&fragile.lock);
	while (wait && fragile.held && !fragile.lost && !fragile.fail)
		pthread_cond_wait(&fragile.news, &fragile.lock);
	lost = fragile.lost || (wait && fragile.fail);
	fragile.fail -= wait && fragile.fail;
	pthread_mutex_unlock(&fragile.lock);
	return lost ? gpu_say(EIO, "CUDA_ERROR_LAUNCH_FAILED, as a test would have it") : 0;
}

static int fragile_register(struct backend *b, uint64_t address, uint64_t bytes, bool read_only, bool *foreign)
{
	int r = fragile_state(false);

	return r ? r : backend_ref.host_register(b, address, bytes, read_only, foreign);
}

static int fragile_unregister(struct backend *b, uint64_t address)
{
	return fragile_state(false);
}

static int fragile_copy(struct backend *b, enum lane lane, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	int r = fragile_state(false);

	return r ? r : backend_ref.copy(b, lane, to_device, entries, count);
}

static int fragile_event_finish(struct backend *b, struct gpu_event *event)
{
	return fragile_state(true);
}

static int fragile_event_reached(struct backend *b, struct gpu_event *event)
{
	int r = fragile_state(false);
	bool held;

	pthread_mutex_lock(&fragile.lock);
	held = fragile.held;
	pthread_mutex_unlock(&fragile.lock);
	return r ? r : !held;
}

static int fragile_drain(struct backend *b, enum lane lane)
{
	return fragile_state(false);
}

static struct backend_ops fragile_these;

static int fragile_open(const struct backend_needs *needs, struct backend **ret)
{
	int r = backend_ref.open(needs, ret);

	if (!r)
		(*ret)->ops = &fragile_these;
	return r;
}

static inline const struct backend_ops *fragile_ops(void)
{
	struct backend_ops ops = backend_ref;

	ops.open = fragile_open;
	ops.host_register = fragile_register;
	ops.host_unregister = fragile_unregister;
	ops.copy = fragile_copy;
	ops.event_finish = fragile_event_finish;
	ops.event_reached = fragile_event_reached;
	ops.drain = fragile_drain;
	fragile_these = ops;
	return &fragile_these;
}

#endif
