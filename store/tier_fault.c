/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults put into another tier. What befalls the n-th read or write follows from the seed and n alone, whatever the
 * threads do: a failing run can be run again.
 *
 * Life of a request:
 *   judged     numbered, and each rule asked                   fault_start, on the caller's thread
 *   waiting    if a delay struck: in the queue                 the timer thread takes it out when it is due
 *   failed     if an error struck: done with it                nothing below was asked
 *   below      with the tier under it, in a copy of the io     below_done flips, shortens, passes on
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/fault_spec.h"
#include "store/tier.h"

#define FOREVER_NS (3600ull * 1000000000u)

enum operation {
	READ,
	WRITE,
	OPERATIONS
};

struct fault_io {
	struct tier_io below; /* what the tier under us sees */
	struct tier_fault *tier;
	struct tier_io *io;    /* the caller's */
	struct fault_io *next; /* (lock) in the queue */
	uint64_t due_ns;       /* 0 = at once */
	enum operation operation;
	struct fault_verdict verdict;
	void *copy; /* of data to write, when a bit of it flips; ours */
};

struct tier_fault {
	struct tier tier;
	struct tier *under;
	struct fault_spec spec;
	_Atomic uint64_t number[OPERATIONS]; /* requests judged */
	_Atomic uint64_t errors;
	_Atomic uint64_t under_way;
	bool timed; /* there is a delay rule, hence a timer thread */
	pthread_t timer;
	struct lock lock;
	struct lock_cond changed; /* (lock) the queue or @stop */
	struct fault_io *queue;   /* (lock) earliest first */
	bool stop;                /* (lock) */
};

static const char *const operations[OPERATIONS] = {"read", "write"};
static const struct fault_words words = {
	.operations = operations,
	.count = OPERATIONS,
	.nth_flip_is_one = true,
};

int tier_fault_check(const char *spec, struct why *why)
{
	struct fault_spec parsed;

	return fault_spec_parse(&words, spec, &parsed, why);
}

static bool delays(const struct fault_spec *spec)
{
	for (unsigned i = 0; i < spec->rules; i++)
		if (spec->rule[i].effect == FAULT_DELAY)
			return true;
	return false;
}

/* ---- going on -------------------------------------------------------------------------------------------------- */

static void end(struct tier_fault *t, struct tier_io *io, int result)
{
	if (result)
		t->errors++;
	io->result = result;
	io->done(io);
	t->under_way--;
}

static void flip(const struct fault_io *f, void *data, size_t bytes)
{
	if (bytes)
		((uint8_t *)data)[f->verdict.flip_bit / 8 % bytes] ^= (uint8_t)(1u << f->verdict.flip_bit % 8);
}

static void below_done(struct tier_io *below)
{
	struct fault_io *f = below->context;
	struct tier_fault *t = f->tier;
	struct tier_io *io = f->io;
	int result = below->result;

	if (!result && f->verdict.flip && f->operation == READ)
		flip(f, below->buffer, below->bytes);
	if (!result && f->verdict.shorten)
		result = -EIO;
	free(f->copy);
	free(f);
	end(t, io, result);
}

/* Fails it or hands it to the tier under us. */
static void fault_go(struct fault_io *f)
{
	struct tier_fault *t = f->tier;
	int error = f->verdict.error;

	if (!error && f->verdict.flip && f->operation == WRITE) {
		f->copy = malloc(f->io->bytes ? f->io->bytes : 1);
		error = f->copy ? 0 : ENOMEM;
	}
	if (error) {
		struct tier_io *io = f->io;

		free(f);
		end(t, io, -error);
		return;
	}
	f->below = (struct tier_io){
		.offset = f->io->offset,
		.buffer = f->io->buffer,
		.bytes = f->verdict.shorten ? f->io->bytes / 2 : f->io->bytes,
		.done = below_done,
		.context = f,
	};
	if (f->copy) {
		memcpy(f->copy, f->io->buffer, f->below.bytes);
		flip(f, f->copy, f->below.bytes);
		f->below.buffer = f->copy;
	}
	if (f->operation == READ)
		t->under->ops->read(t->under, &f->below);
	else
		t->under->ops->write(t->under, &f->below);
}

static void fault_start(struct tier *tier, struct tier_io *io, enum operation operation)
{
	struct tier_fault *t = (struct tier_fault *)tier;
	struct fault_io *f = calloc(1, sizeof(*f));

	lock_assert_none_held();
	t->under_way++;
	if (!f) {
		end(t, io, -ENOMEM);
		return;
	}
	f->tier = t;
	f->io = io;
	f->operation = operation;
	uint64_t n = ++t->number[operation];

	f->verdict = fault_spec_judge(&t->spec, operation, n, n);
	if (f->verdict.delay_ns)
		f->due_ns = clock_now_ns() + f->verdict.delay_ns;
	if (!f->due_ns) {
		fault_go(f);
		return;
	}
	lock_take(&t->lock);
	struct fault_io **at = &t->queue;

	while (*at && (*at)->due_ns <= f->due_ns)
		at = &(*at)->next;
	f->next = *at;
	*at = f;
	lock_cond_wake_all(&t->changed);
	lock_drop(&t->lock);
}

static void *timer_thread(void *argument)
{
	struct tier_fault *t = argument;

	lock_take(&t->lock);
	for (;;) {
		uint64_t now = clock_now_ns();
		struct fault_io *first = t->queue;

		if (first && first->due_ns <= now) {
			t->queue = first->next;
			lock_drop(&t->lock);
			fault_go(first);
			lock_take(&t->lock);
		} else if (t->stop) {
			break; /* nothing is under way, so the queue is empty */
		} else {
			lock_cond_wait(&t->changed, &t->lock, first ? first->due_ns : now + FOREVER_NS);
		}
	}
	lock_drop(&t->lock);
	return NULL;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static void fault_read(struct tier *tier, struct tier_io *io)
{
	fault_start(tier, io, READ);
}

static void fault_write(struct tier *tier, struct tier_io *io)
{
	fault_start(tier, io, WRITE);
}

static void fault_dispose(struct tier_fault *t)
{
	lock_cond_destroy(&t->changed);
	lock_destroy(&t->lock);
	free(t);
}

static void fault_free(struct tier **tier)
{
	struct tier_fault *t = (struct tier_fault *)*tier;

	*tier = NULL;
	tier_await_idle(&t->under_way);
	if (t->timed) {
		lock_take(&t->lock);
		t->stop = true;
		lock_cond_wake_all(&t->changed);
		lock_drop(&t->lock);
		pthread_join(t->timer, NULL);
	}
	assert(!t->queue);
	t->under->ops->free(&t->under);
	fault_dispose(t);
}

static uint64_t fault_errors(const struct tier *tier)
{
	return ((const struct tier_fault *)tier)->errors;
}

static const struct tier_ops ops = {
	.name = "fault",
	.read = fault_read,
	.write = fault_write,
	.free = fault_free,
	.errors = fault_errors,
};

static int start_timer(struct tier_fault *t)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&t->timer, NULL, timer_thread, t);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

int tier_fault_new(struct tier *under, const char *spec, struct tier **ret, struct why *why)
{
	struct tier_fault *t = calloc(1, sizeof(*t));

	if (!t)
		return why_set(why, ENOMEM, "no memory for a fault tier");
	t->tier.ops = &ops;
	t->under = under;
	lock_init(&t->lock, LOCK_QUEUE);
	lock_cond_init(&t->changed);
	int r = fault_spec_parse(&words, spec, &t->spec, why);

	t->timed = !r && delays(&t->spec);
	if (t->timed) {
		int error = start_timer(t);

		if (error)
			r = why_set(why, error, "no thread for a fault tier: %s", strerrordesc_np(error));
	}
	if (r) {
		fault_dispose(t);
		return r;
	}
	*ret = &t->tier;
	return 0;
}
