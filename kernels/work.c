/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations from their start to their end, and the threads that carry them.
 */
#include "kernels/work.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/check.h"
#include "kernels/say.h"
#include "kernels/thread.h"

static uint64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t work_now(void)
{
	return now_ns(CLOCK_MONOTONIC);
}

void work_moment(struct pfs_gpu_op *op, enum op_moment moment)
{
	op->moments[moment] = work_now();
}

uint64_t work_deadline(const struct pfs_gpu *gpu, uint32_t deadline_ms)
{
	return work_now() + (uint64_t)(deadline_ms ? deadline_ms : gpu->deadline_ms) * 1000000u;
}

bool work_news(struct pfs_gpu *gpu, uint64_t deadline_ns)
{
	struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};

	return pthread_cond_timedwait(&gpu->news, &gpu->lock, &until) != ETIMEDOUT;
}

/* ---- ends ----------------------------------------------------------------------------------------------------------- */

static void op_free(struct pfs_gpu_op *op)
{
	struct backend *b = op->channel->gpu->backend;

	for (uint32_t i = 0; op->events && op->shape && i < op->shape->part_count; i++)
		if (op->events[i])
			b->ops->event_free(b, op->events[i]);
	if (op->close)
		b->ops->event_free(b, op->close);
	free(op->events);
	shape_free(op->shape);
	free(op);
}

/* (lock) Out of the count; the device may be closed now. */
static void forget_op(struct pfs_gpu *gpu)
{
	assert(gpu->ops > 0);
	gpu->ops--;
	pthread_cond_broadcast(&gpu->news);
}

static void note_end(struct pfs_gpu_op *op, int error)
{
	struct pfs_gpu *gpu = op->channel->gpu;

	if (!error)
		gpu->moved[op->channel->to_device] += op->shape->bytes;
	op->error = error;
	if (error)
		snprintf(op->why, sizeof(op->why), "%s", gpu_said());
}

/* Nothing of it is under way any more; @error 0, or what the calling thread has a sentence about. */
static void op_end(struct pfs_gpu_op *op, int error)
{
	struct pfs_gpu *gpu = op->channel->gpu;
	op_ended ended;
	void *context;
	bool let_go;

	registry_release(&gpu->registry, &op->spans);
	pthread_mutex_lock(&gpu->lock);
	note_end(op, error);
	op->channel->under_way--;
	__atomic_store_n(&op->done, true, __ATOMIC_RELEASE);
	ended = op->ended;
	context = op->ended_context;
	let_go = op->let_go;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
	/* From here on it may be freed by its owner, unless it was let go. */
	if (let_go)
		op_free(op);
	if (ended)
		ended(context, error);
	if (!let_go)
		return;
	pthread_mutex_lock(&gpu->lock);
	forget_op(gpu);
	pthread_mutex_unlock(&gpu->lock);
}

void work_recorded(struct pfs_gpu_op *op)
{
	struct pfs_gpu *gpu = op->channel->gpu;

	pthread_mutex_lock(&gpu->lock);
	op->recorded++;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
}

bool work_tell(struct pfs_gpu_op *op, op_ended ended, void *context)
{
	struct pfs_gpu *gpu = op->channel->gpu;
	bool later;

	pthread_mutex_lock(&gpu->lock);
	later = !op->done;
	if (later) {
		op->ended = ended;
		op->ended_context = context;
	}
	pthread_mutex_unlock(&gpu->lock);
	return later;
}

/* ---- submitting ------------------------------------------------------------------------------------------------------ */

/* (lock) */
static void push(struct pfs_gpu_op *op, struct pfs_gpu_op ***end)
{
	op->next = NULL;
	**end = op;
	*end = &op->next;
}

/* (lock) */
static struct pfs_gpu_op *pop(struct pfs_gpu_op **queue, struct pfs_gpu_op ***end)
{
	struct pfs_gpu_op *op = *queue;

	if (op) {
		*queue = op->next;
		if (!op->next)
			*end = queue;
	}
	return op;
}

/* @r is what the backend said. -ECANCELED: it cannot be asked any more, for the process ends, and the device may still be at it. */
static void note_lost(struct pfs_gpu *gpu, int r)
{
	pthread_mutex_lock(&gpu->lock);
	gpu->unknown |= r == -ECANCELED;
	if (!gpu->lost)
		snprintf(gpu->why_lost, sizeof(gpu->why_lost), "%s", gpu_said());
	gpu->lost = true;
	pthread_mutex_unlock(&gpu->lock);
}

/* (lock) */
static void hand_to_reaper(struct channel *c, struct pfs_gpu_op *op)
{
	push(op, &c->reap_end);
	pthread_cond_signal(&c->ends);
}

/* (lock) Who submits next is let in. */
static void give_channel(struct channel *c)
{
	c->taken = false;
	if (c->queue)
		pthread_cond_signal(&c->work);
}

/* (lock) Somebody has submitted @op, or its beginning: the rest comes first. */
static void hand_on(struct channel *c, struct pfs_gpu_op *op)
{
	if (submit_ended(op)) {
		hand_to_reaper(c, op);
		return;
	}
	op->next = c->queue;
	c->queue = op;
	if (!op->next)
		c->queue_end = &op->next;
}

/* The calling thread has taken @c, submits, and gives it back; after a failure the reaper does, who drains it first: that may take as long
 * as what is under way there, and a caller has a deadline. */
static void carry(struct channel *c, struct pfs_gpu_op *op, bool beginning)
{
	struct pfs_gpu *gpu = c->gpu;
	uint64_t began = now_ns(CLOCK_THREAD_CPUTIME_ID);
	int r;

	if (!op->moments[OP_TAKEN])
		work_moment(op, OP_TAKEN);
	r = submit_op(c, op, beginning);
	work_moment(op, OP_SUBMITTED);
	pthread_mutex_lock(&gpu->lock);
	gpu->submit_cpu_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
	if (r) {
		op->failed = r == -ECANCELED ? -EIO : r;
		snprintf(op->why, sizeof(op->why), "%s", gpu_said());
		hand_to_reaper(c, op);
	} else {
		hand_on(c, op);
		give_channel(c);
	}
	pthread_mutex_unlock(&gpu->lock);
}

/* (lock) */
static struct pfs_gpu_op *next_to_submit(struct channel *c)
{
	struct pfs_gpu_op *op = c->taken ? NULL : pop(&c->queue, &c->queue_end);

	c->taken |= op != NULL;
	return op;
}

/* (lock) */
static struct pfs_gpu_op *next_to_reap(struct channel *c)
{
	return pop(&c->reap, &c->reap_end);
}

/* Waits for it, at @cond. NULL: the device is being closed, and none is left. Without the lock. */
static struct pfs_gpu_op *await_op(struct channel *c, struct pfs_gpu_op *(*next)(struct channel *), pthread_cond_t *cond)
{
	struct pfs_gpu_op *op;

	pthread_mutex_lock(&c->gpu->lock);
	while (!(op = next(c)) && !c->gpu->closing)
		pthread_cond_wait(cond, &c->gpu->lock);
	pthread_mutex_unlock(&c->gpu->lock);
	return op;
}

static void *submitter_main(void *context)
{
	struct channel *c = context;
	const struct sched_param none = {0};
	struct pfs_gpu_op *op;

	pthread_setschedparam(pthread_self(), SCHED_BATCH, &none); /* best effort */
	while ((op = await_op(c, next_to_submit, &c->work)))
		carry(c, op, false);
	return NULL;
}

/* 1: @last is reached. 0: it is still to come, and sleeping is cheaper. */
static int look_for_end(struct channel *c, struct pfs_gpu_op *op, struct gpu_event *last)
{
	struct backend *b = c->gpu->backend;
	int r = b->ops->event_finish(b, op->close);
	uint64_t until = work_now() + c->gpu->tuning.spin_us * 1000ull;

	pthread_mutex_lock(&c->gpu->lock);
	op->is_close = true;
	pthread_cond_broadcast(&c->gpu->news);
	pthread_mutex_unlock(&c->gpu->lock);
	while (!r && !(r = b->ops->event_reached(b, last)) && work_now() < until)
		;
	return r;
}

/* Waits for all of it. */
static int finish(struct channel *c, struct pfs_gpu_op *op)
{
	struct backend *b = c->gpu->backend;
	struct gpu_event *last = op->events[op->shape->part_count - 1];
	int r = op->close_recorded ? look_for_end(c, op, last) : 0;

	if (r <= 0) {
		int s = b->ops->event_finish(b, last);

		r = r ? r : s;
	} else {
		r = 0;
	}
	work_moment(op, OP_REACHED);
	if (r) /* CUDA's errors of work are sticky */
		note_lost(c->gpu, r);
	return r == -ECANCELED ? -EIO : r;
}

/* Its submission failed. Waits for what is under way on all lanes of @c, and lets others submit again. */
static int drain(struct channel *c, struct pfs_gpu_op *op)
{
	int r = submit_drain(c);

	if (r)
		note_lost(c->gpu, r);
	pthread_mutex_lock(&c->gpu->lock);
	give_channel(c);
	pthread_mutex_unlock(&c->gpu->lock);
	return gpu_say(-op->failed, "%s", op->why);
}

static void *reaper_main(void *context)
{
	struct channel *c = context;
	struct pfs_gpu_op *op;

	while ((op = await_op(c, next_to_reap, &c->ends)))
		op_end(op, op->failed ? drain(c, op) : finish(c, op));
	return NULL;
}

static int channel_threads_start(struct channel *c)
{
	static const char *const submitters[] = {"pfs-gpu-out", "pfs-gpu-in", "pfs-gpu-out-now", "pfs-gpu-in-now"};
	int r = thread_start(&c->submitter, submitters[c->to_device | c->urgent << 1], submitter_main, c);

	c->submitter_runs = !r;
	if (r)
		return r;
	r = thread_start(&c->reaper, c->to_device ? "pfs-gpu-in-end" : "pfs-gpu-out-end", reaper_main, c);
	c->reaper_runs = !r;
	return r;
}

int work_threads_start(struct pfs_gpu *gpu)
{
	int r = 0;

	for (int i = 0; i < CHANNELS && !r; i++) {
		struct channel *c = &gpu->channels[i];

		c->queue_end = &c->queue;
		c->reap_end = &c->reap;
		pthread_cond_init(&c->work, NULL);
		pthread_cond_init(&c->ends, NULL);
		r = channel_threads_start(c);
	}
	if (!r) {
		r = thread_start(&gpu->returner, "pfs-gpu-plans", aftermaths_main, gpu);
		gpu->returner_runs = !r;
	}
	return r ? gpu_say(r, "no thread for a device: %s", strerror(r)) : 0;
}

void work_threads_stop(struct pfs_gpu *gpu)
{
	pthread_mutex_lock(&gpu->lock);
	gpu->leaving = true;
	while (gpu->ops > 0 || gpu->aftermaths)
		pthread_cond_wait(&gpu->news, &gpu->lock);
	gpu->closing = true;
	for (int i = 0; i < CHANNELS; i++)
		if (gpu->channels[i].queue_end) {
			pthread_cond_signal(&gpu->channels[i].work);
			pthread_cond_signal(&gpu->channels[i].ends);
		}
	pthread_cond_broadcast(&gpu->over);
	pthread_mutex_unlock(&gpu->lock);
	if (gpu->returner_runs)
		pthread_join(gpu->returner, NULL);
	for (int i = 0; i < CHANNELS; i++) {
		struct channel *c = &gpu->channels[i];

		if (c->submitter_runs)
			pthread_join(c->submitter, NULL);
		if (c->reaper_runs)
			pthread_join(c->reaper, NULL);
		if (c->queue_end) {
			pthread_cond_destroy(&c->work);
			pthread_cond_destroy(&c->ends);
		}
	}
}

/* ---- starts ----------------------------------------------------------------------------------------------------------- */

static int op_make(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, struct pfs_gpu_op *op)
{
	struct backend *b = gpu->backend;
	int r = shape_make(copy, &op->shape);

	if (r)
		return r;
	op->left = op->shape->bytes;
	op->events = calloc(op->shape->part_count, sizeof(struct gpu_event *));
	if (!op->events)
		return gpu_say(ENOMEM, "no memory for %u events", op->shape->part_count);
	for (uint32_t i = 0; i < op->shape->part_count && !r; i++)
		r = b->ops->event_new(b, &op->events[i]);
	if (!r && gpu->tuning.spin_us && op->shape->bytes >= gpu->tuning.spin_bytes)
		r = b->ops->event_new(b, &op->close);
	return r;
}

int work_mine(const struct pfs_gpu *gpu)
{
	pid_t pid = getpid();

	if (!gpu)
		return gpu_say(EINVAL, "no device was given");
	return pid == gpu->pid ? 0 : gpu_say(EPERM, "process %d opened the device, and this is %d: it does not survive fork(2)", gpu->pid, pid);
}

/* (lock) */
static int say_lost(const struct pfs_gpu *gpu)
{
	return gpu->lost ? gpu_say(EIO, "the device is lost, it has to be opened anew: %s", gpu->why_lost) : 0;
}

int work_lost(struct pfs_gpu *gpu)
{
	int r;

	pthread_mutex_lock(&gpu->lock);
	r = say_lost(gpu);
	pthread_mutex_unlock(&gpu->lock);
	return r;
}

/* (lock) *begins: the channel was taken for its caller, who submits its beginning. Else it is queued. */
static int admit(struct channel *c, struct pfs_gpu_op *op, bool *begins)
{
	uint32_t most = c->urgent ? c->mirror_count : 1;
	int r = say_lost(c->gpu);

	*begins = !r && !c->taken && !c->queue && c->under_way < most;
	if (r)
		return r;
	c->gpu->ops++;
	c->under_way++;
	if (*begins) {
		c->taken = true;
	} else {
		push(op, &c->queue_end);
		pthread_cond_signal(&c->work);
	}
	return 0;
}

int work_start(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, bool to_device, int forced, struct pfs_gpu_op **ret)
{
	enum channel_number number = to_device ? CHANNEL_IN : CHANNEL_OUT;
	struct pfs_gpu_op *op;
	struct channel *c;
	bool begins = false;
	int r = ret ? work_mine(gpu) : gpu_say(EINVAL, "a copy has nowhere to put its operation");

	if (!r)
		r = check_copy(copy);
	if (!r)
		r = work_lost(gpu);
	if (r)
		return r;
	if (copy->flags & PFS_GPU_URGENT)
		number = to_device ? CHANNEL_IN_URGENT : CHANNEL_OUT_URGENT;
	c = &gpu->channels[number];
	op = calloc(1, sizeof(*op));
	if (!op)
		return gpu_say(ENOMEM, "no memory for an operation");
	op->channel = c;
	op->forced = forced;
	op->after = copy->after;
	work_moment(op, OP_STARTED);
	r = op_make(gpu, copy, op);
	if (!r)
		r = registry_claim(&gpu->registry, copy->values, copy->count, pool_value_bytes(copy->pool), !to_device, &op->spans);
	work_moment(op, OP_QUEUED);
	pthread_mutex_lock(&gpu->lock);
	if (!r)
		r = admit(c, op, &begins);
	pthread_mutex_unlock(&gpu->lock);
	if (r) {
		registry_release(&gpu->registry, &op->spans);
		op_free(op);
		return r;
	}
	*ret = op;
	if (begins)
		carry(c, op, true);
	return 0;
}

int pfs_gpu_scatter(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, struct pfs_gpu_op **ret)
{
	return work_start(gpu, copy, true, -1, ret);
}

int pfs_gpu_gather(struct pfs_gpu *gpu, const struct pfs_gpu_copy *copy, struct pfs_gpu_op **ret)
{
	return work_start(gpu, copy, false, -1, ret);
}

/* ---- questions ---------------------------------------------------------------------------------------------------------- */

/* (lock) */
static int outcome(const struct pfs_gpu_op *op)
{
	return op->error ? gpu_say(-op->error, "%s", op->why) : 0;
}

/* It is about to be done. */
static void look_for_done(const struct pfs_gpu_op *op, uint64_t deadline_ns)
{
	uint64_t until = work_now() + op->channel->gpu->tuning.spin_us * 1000ull;

	if (until > deadline_ns)
		until = deadline_ns;
	while (!__atomic_load_n(&op->done, __ATOMIC_ACQUIRE) && work_now() < until)
		;
}

int work_wait(struct pfs_gpu_op *op, uint64_t until)
{
	struct pfs_gpu *gpu = op->channel->gpu;
	bool in_time = true, looked = false;
	int r = work_mine(gpu);

	if (r)
		return r;
	pthread_mutex_lock(&gpu->lock);
	while (!op->done && in_time) {
		if (!op->is_close || looked) {
			in_time = work_news(gpu, until);
			continue;
		}
		looked = true;
		pthread_mutex_unlock(&gpu->lock);
		look_for_done(op, until);
		pthread_mutex_lock(&gpu->lock);
	}
	r = op->done ? outcome(op) : gpu_say(ETIMEDOUT, "a copy of %llu bytes is still under way", (unsigned long long)op->shape->bytes);
	pthread_mutex_unlock(&gpu->lock);
	return r;
}

int pfs_gpu_wait(struct pfs_gpu_op *op, uint32_t deadline_ms)
{
	return work_wait(op, work_deadline(op->channel->gpu, deadline_ms));
}

int pfs_gpu_test(struct pfs_gpu_op *op)
{
	struct pfs_gpu *gpu = op->channel->gpu;
	int r = work_mine(gpu);

	if (r)
		return r;
	pthread_mutex_lock(&gpu->lock);
	r = op->done ? outcome(op) : -EAGAIN;
	pthread_mutex_unlock(&gpu->lock);
	return r;
}

int pfs_gpu_event(struct pfs_gpu_op *op, uint32_t part, uint32_t deadline_ms, void **ret)
{
	struct pfs_gpu *gpu = op->channel->gpu;
	uint64_t until = work_deadline(gpu, deadline_ms);
	bool in_time = true;
	int r = work_mine(gpu);

	if (r)
		return r;
	if (part >= op->shape->part_count)
		return gpu_say(ERANGE, "part %u of a copy that has %u", part, op->shape->part_count);
	pthread_mutex_lock(&gpu->lock);
	while (op->recorded <= part && !op->done && in_time)
		in_time = work_news(gpu, until);
	if (op->recorded > part)
		r = 0;
	else
		r = op->done ? outcome(op) : gpu_say(ETIMEDOUT, "part %u is not submitted yet", part);
	pthread_mutex_unlock(&gpu->lock);
	if (!r)
		*ret = gpu->backend->ops->event_handle(op->events[part]);
	return r;
}

void pfs_gpu_end(struct pfs_gpu_op **ended)
{
	struct pfs_gpu_op *op = *ended;
	struct pfs_gpu *gpu;
	bool done;

	if (!op)
		return;
	*ended = NULL;
	gpu = op->channel->gpu;
	if (gpu->pid != getpid())
		return;
	pthread_mutex_lock(&gpu->lock);
	op->let_go = true;
	done = op->done;
	pthread_mutex_unlock(&gpu->lock);
	if (!done) /* whoever ends it frees it */
		return;
	op_free(op);
	pthread_mutex_lock(&gpu->lock);
	forget_op(gpu);
	pthread_mutex_unlock(&gpu->lock);
}
