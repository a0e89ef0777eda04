/* SPDX-License-Identifier: Apache-2.0
 *
 * A backend that does nothing until it is asked, and then what it was given, in any order that lanes and events allow. What is used too
 * early or overwritten too early shows as wrong bytes. The n-th call can be made to fail.
 */
#ifndef PREFIXFS_TESTS_UNIT_GPU_LAZY_H
#define PREFIXFS_TESTS_UNIT_GPU_LAZY_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/say.h"
#include "tests/unit/gpu_world.h"

struct gpu_event {
	uint64_t submitted, reached; /* how often */
};

enum lazy_kind {
	LAZY_COPY,
	LAZY_UPLOAD,
	LAZY_MOVE,
	LAZY_RECORD,
	LAZY_WAIT,
	LAZY_WAIT_FOREIGN,
};

struct lazy_command {
	struct lazy_command *next;
	enum lazy_kind kind;
	bool to_device;
	struct gpu_entry *entries;
	uint32_t count;
	uint64_t device;
	const void *mirror;
	size_t bytes;
	struct gpu_rect rect;
	struct gpu_event *event;
	uint64_t version;
	const bool *foreign;
};

static struct lazy {
	pthread_mutex_t lock; /* guards all of it, and events */
	struct dice dice;
	struct lazy_command *first[LANES], **end[LANES];
	uint64_t calls, fail_at; /* 0: none */
	bool fail_behind;        /* the call behind the next wait for a foreign event */
	uint32_t favourite;      /* lane that goes first, as far as it can */
	bool asleep;             /* nothing is done while work is given */
	uint32_t registered;
	void (*meanwhile)(void *); /* done once, amid the next work that is given; atomic */
	void *meanwhile_context;
} lazy = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* (lock) */
static inline int lazy_fault(void)
{
	if (++lazy.calls == lazy.fail_at)
		return gpu_say(EIO, "call %llu was made to fail", (unsigned long long)lazy.calls);
	return 0;
}

static inline void lazy_do(struct lazy_command *c)
{
	switch (c->kind) {
	case LAZY_COPY:
		backend_ref.copy(NULL, 0, c->to_device, c->entries, c->count);
		break;
	case LAZY_UPLOAD:
		backend_ref.upload(NULL, 0, c->device, c->mirror, c->bytes);
		break;
	case LAZY_MOVE:
		twin_move(c->to_device, &c->rect);
		break;
	case LAZY_RECORD:
		c->event->reached++;
		break;
	case LAZY_WAIT:
	case LAZY_WAIT_FOREIGN:
		break;
	}
}

static inline bool lazy_blocked(const struct lazy_command *c)
{
	if (c->kind == LAZY_WAIT)
		return c->event->reached < c->version;
	return c->kind == LAZY_WAIT_FOREIGN && !__atomic_load_n(c->foreign, __ATOMIC_ACQUIRE);
}

/* (lock) One command of any lane. False: no lane can go on. */
static inline bool lazy_step(void)
{
	if (dice(&lazy.dice, 100) == 0) {
		lazy.favourite = (uint32_t)dice(&lazy.dice, LANES);
		lazy.asleep = dice(&lazy.dice, 2);
	}
	for (uint32_t i = 0; i < LANES; i++) {
		uint32_t lane = (lazy.favourite + i) % LANES;
		struct lazy_command *c = lazy.first[lane];

		if (!c || lazy_blocked(c))
			continue;
		lazy_do(c);
		lazy.first[lane] = c->next;
		if (!c->next)
			lazy.end[lane] = &lazy.first[lane];
		free(c->entries);
		free(c);
		return true;
	}
	return false;
}

static inline int lazy_give(enum lane lane, struct lazy_command command)
{
	void (*meanwhile)(void *) = __atomic_exchange_n(&lazy.meanwhile, NULL, __ATOMIC_ACQ_REL);
	struct lazy_command *c = malloc(sizeof(*c));
	int r;

	if (meanwhile)
		meanwhile(lazy.meanwhile_context);
	pthread_mutex_lock(&lazy.lock);
	r = lazy_fault();
	if (r) {
		free(command.entries);
		free(c);
	} else {
		*c = command;
		c->next = NULL;
		if (c->kind == LAZY_RECORD)
			c->event->submitted++;
		if (c->kind == LAZY_WAIT)
			c->version = c->event->submitted;
		if (c->kind == LAZY_WAIT_FOREIGN && lazy.fail_behind) {
			lazy.fail_behind = false;
			lazy.fail_at = lazy.calls + 1;
		}
		*lazy.end[lane] = c;
		lazy.end[lane] = &c->next;
		for (uint64_t steps = lazy.asleep ? 0 : dice(&lazy.dice, 4); steps > 0; steps--)
			lazy_step();
	}
	pthread_mutex_unlock(&lazy.lock);
	return r;
}

static inline int lazy_copy(struct backend *b, enum lane lane, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	struct lazy_command c = {.kind = LAZY_COPY, .to_device = to_device, .count = count, .entries = malloc(count * sizeof(*entries))};
	uint64_t bytes = 0;

	memcpy(c.entries, entries, count * sizeof(*entries));
	for (uint32_t i = 0; i < count; i++)
		bytes += entries[i].bytes;
	assert(count > 0 && count <= MERGE_MAX_ENTRIES && bytes <= MERGE_MAX_BYTES);
	return lazy_give(lane, c);
}

static inline int lazy_upload(struct backend *b, enum lane lane, uint64_t device, const void *mirror, size_t bytes)
{
	return lazy_give(lane, (struct lazy_command){.kind = LAZY_UPLOAD, .device = device, .mirror = mirror, .bytes = bytes});
}

static inline int lazy_move(struct backend *b, enum lane lane, enum gpu_kernel kernel, bool to_device, const struct gpu_rect *rect,
	const struct rect_measure *measure)
{
	assert(kernel != KERNEL_BULK || measure->aligned);
	return lazy_give(lane, (struct lazy_command){.kind = LAZY_MOVE, .to_device = to_device, .rect = *rect});
}

static inline int lazy_event_new(struct backend *b, struct gpu_event **ret)
{
	int r;

	pthread_mutex_lock(&lazy.lock);
	r = lazy_fault();
	pthread_mutex_unlock(&lazy.lock);
	if (!r)
		*ret = calloc(1, sizeof(**ret));
	return r;
}

static inline void lazy_event_free(struct backend *b, struct gpu_event *event)
{
	pthread_mutex_lock(&lazy.lock);
	assert(event->reached == event->submitted);
	pthread_mutex_unlock(&lazy.lock);
	free(event);
}

static inline int lazy_event_record(struct backend *b, enum lane lane, struct gpu_event *event)
{
	return lazy_give(lane, (struct lazy_command){.kind = LAZY_RECORD, .event = event});
}

static inline int lazy_event_wait(struct backend *b, enum lane lane, struct gpu_event *event)
{
	return lazy_give(lane, (struct lazy_command){.kind = LAZY_WAIT, .event = event});
}

static inline int lazy_event_wait_foreign(struct backend *b, enum lane lane, void *event)
{
	return lazy_give(lane, (struct lazy_command){.kind = LAZY_WAIT_FOREIGN, .foreign = event});
}

/* Lets others in between: what a lane waits for may not be submitted yet. */
static inline void lazy_until(const uint64_t *reached, uint64_t goal, enum lane lane)
{
	pthread_mutex_lock(&lazy.lock);
	while (reached ? *reached < goal : lazy.first[lane] != NULL) {
		bool moved = lazy_step();

		pthread_mutex_unlock(&lazy.lock);
		if (!moved)
			sched_yield();
		pthread_mutex_lock(&lazy.lock);
	}
	pthread_mutex_unlock(&lazy.lock);
}

static inline int lazy_event_finish(struct backend *b, struct gpu_event *event)
{
	uint64_t goal;
	int r;

	pthread_mutex_lock(&lazy.lock);
	r = lazy_fault();
	goal = event->submitted;
	pthread_mutex_unlock(&lazy.lock);
	lazy_until(&event->reached, goal, 0); /* also where it "fails": CUDA's contexts stop when they are lost */
	return r;
}

static inline int lazy_event_reached(struct backend *b, struct gpu_event *event)
{
	int r;

	pthread_mutex_lock(&lazy.lock);
	r = lazy_fault();
	if (!r) {
		lazy_step();
		r = event->reached >= event->submitted;
	}
	pthread_mutex_unlock(&lazy.lock);
	return r;
}

static inline int lazy_drain(struct backend *b, enum lane lane)
{
	int r;

	pthread_mutex_lock(&lazy.lock);
	r = lazy_fault();
	pthread_mutex_unlock(&lazy.lock);
	lazy_until(NULL, 0, lane);
	return r;
}

static inline void *lazy_event_handle(struct gpu_event *event)
{
	return event;
}

static inline int lazy_register(struct backend *b, uint64_t address, uint64_t bytes, bool read_only, bool *foreign)
{
	int r;

	pthread_mutex_lock(&lazy.lock);
	r = lazy_fault();
	lazy.registered += !r;
	pthread_mutex_unlock(&lazy.lock);
	*foreign = false;
	return r;
}

static inline int lazy_unregister(struct backend *b, uint64_t address)
{
	pthread_mutex_lock(&lazy.lock);
	lazy.registered--;
	pthread_mutex_unlock(&lazy.lock);
	return 0;
}

static int lazy_open(const struct backend_needs *needs, struct backend **ret);
static inline void lazy_close(struct backend *b)
{
	for (int i = 0; i < LANES; i++)
		assert(!lazy.first[i]);
	backend_ref.close(b);
}

static const struct backend_ops backend_lazy = {
	.name = "lazy",
	.open = lazy_open,
	.close = lazy_close,
	.host_register = lazy_register,
	.host_unregister = lazy_unregister,
	.copy = lazy_copy,
	.upload = lazy_upload,
	.move = lazy_move,
	.event_new = lazy_event_new,
	.event_free = lazy_event_free,
	.event_record = lazy_event_record,
	.event_wait = lazy_event_wait,
	.event_wait_foreign = lazy_event_wait_foreign,
	.event_finish = lazy_event_finish,
	.event_reached = lazy_event_reached,
	.event_handle = lazy_event_handle,
	.drain = lazy_drain,
};

static int lazy_open(const struct backend_needs *needs, struct backend **ret)
{
	int r;

	pthread_mutex_lock(&lazy.lock);
	for (int i = 0; i < LANES; i++)
		lazy.end[i] = &lazy.first[i];
	r = lazy_fault();
	pthread_mutex_unlock(&lazy.lock);
	r = r ? r : backend_ref.open(needs, ret);
	if (!r)
		(*ret)->ops = &backend_lazy;
	return r;
}

#endif
