/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which work is submitted, on a backend that takes every liberty that lanes and events leave it; and every call of the backend
 * failing in turn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/attach.h"
#include "tests/unit/gpu_lazy.h"

static struct dice d;

/* With any tuning. */
static int open_lazy(struct pfs_gpu **gpu)
{
	struct pfs_gpu_options o;
	struct gpu_tuning t;

	pfs_gpu_options_init(&o);
	tuning_init(&t);
	if (dice(&d, 2)) {
		t.slots = 2 + (uint32_t)dice(&d, STAGE_MAX_SLOTS - 1);
		t.copy_lanes = 1 + (uint32_t)dice(&d, COPY_LANES);
		t.turns = dice(&d, 2);
		t.ahead = 2 + (uint32_t)dice(&d, MIRRORS - 1);
		t.in_bytes = t.slots * STAGE_SLOT_BYTES + dice(&d, STAGE_RING_BYTES - 2 * t.slots * STAGE_SLOT_BYTES);
		t.spin_us = (uint32_t)dice(&d, 2) * 200;
		t.spin_bytes = 0;
	}
	return gpu_open_tuned(&backend_lazy, &o, &t, gpu);
}

/* Values that fill the ring's slots many times. */
static void make_world(struct world *w, uint32_t slots, uint32_t item)
{
	*w = (struct world){.pool = {.page_limit = slots * 2, .pages_per_value = 1}, .slots = slots};
	world_planes(w, LAYOUT_LAYER_FIRST, 6, 16, 2, item, &d);
	world_make(w, &d);
}

struct job {
	struct pfs_gpu_copy copy;
	struct pfs_gpu_part parts[24];
	uint64_t *values;
	uint32_t *pages;
	bool to_device;
	struct pfs_gpu *gpu;
	struct pfs_gpu_op *op;
};

/* @count values from slot @first on, in any order. */
static void make_job(struct job *j, struct world *w, bool to_device, uint32_t first, uint32_t count)
{
	uint32_t *slots = malloc(count * sizeof(*slots)), *pages = malloc(count * sizeof(*pages));

	*j = (struct job){.copy = {.pool = &w->pool, .count = count}, .to_device = to_device, .pages = pages};
	j->values = malloc(count * sizeof(*j->values));
	world_choose(&d, slots, count, count);
	world_choose(&d, pages, count, count);
	for (uint32_t i = 0; i < count; i++) {
		j->values[i] = (uintptr_t)w->segment + (first + slots[i]) * w->slot_bytes;
		pages[i] += first;
	}
	free(slots);
	j->copy.values = j->values;
	j->copy.pages = pages;
	for (uint32_t i = 0; i < 24; i++) /* each plane twice: more turns than there are mirrors */
		j->parts[i] = (struct pfs_gpu_part){i % 12, 1};
	if (dice(&d, 2)) {
		j->copy.parts = j->parts;
		j->copy.part_count = 24;
	}
}

static void free_job(struct job *j)
{
	free(j->values);
	free(j->pages);
}

/* Several operations at once, each on slots and pages of its own, in both directions and on all paths. */
static void many_at_once(void **state)
{
	for (unsigned turn = 0; turn < 6; turn++) {
		uint8_t *device, *segment;
		struct pfs_gpu *gpu = NULL;
		struct job jobs[6];
		struct world w;

		make_world(&w, 6 * 24, turn % 3 ? 1024 : 146); /* values of 384 KiB, or of 56 KiB */
		device = world_map(w.device_bytes);
		segment = world_map(w.segment_bytes);
		memcpy(device, w.device, w.device_bytes);
		memcpy(segment, w.segment, w.segment_bytes);
		assert_int_equal(open_lazy(&gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes / 8192 * 4096, 1), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment + w.segment_bytes / 8192 * 4096,
					 w.segment_bytes - w.segment_bytes / 8192 * 4096, 1), 0);
		for (uint32_t i = 0; i < 6; i++) {
			make_job(&jobs[i], &w, dice(&d, 2), i * 24, 24);
			world_expect(&w, &jobs[i].copy, jobs[i].to_device, device, segment);
		}
		for (uint32_t i = 0; i < 6; i++) {
			jobs[i].copy.flags = i == 3 ? PFS_GPU_URGENT : 0;
			assert_int_equal(work_start(gpu, &jobs[i].copy, jobs[i].to_device, i < 3 ? PATH_STAGED : (int)dice(&d, PATHS + 1) - 1,
						 &jobs[i].op), 0);
		}
		for (uint32_t i = 0; i < 6; i++) {
			assert_int_equal(pfs_gpu_wait(jobs[i].op, 0), 0);
			pfs_gpu_end(&jobs[i].op);
		}
		assert_memory_equal(device, w.device, w.device_bytes);
		assert_memory_equal(segment, w.segment, w.segment_bytes);
		pfs_gpu_close(&gpu);
		assert_int_equal(lazy.registered, 0);
		for (uint32_t i = 0; i < 6; i++)
			free_job(&jobs[i]);
		munmap(device, w.device_bytes);
		munmap(segment, w.segment_bytes);
		world_free(&w);
	}
}

/* An operation has ended when both copy lanes have done their share. */
static void two_copy_lanes(void **state)
{
	struct pfs_gpu_options o;
	struct gpu_tuning t;

	pfs_gpu_options_init(&o);
	tuning_init(&t);
	t.copy_lanes = 2;
	for (unsigned turn = 0; turn < 40; turn++) {
		uint8_t *device, *segment;
		struct pfs_gpu *gpu = NULL;
		struct world w;
		struct job j;

		t.turns = turn & 1;
		make_world(&w, 8, 64);
		device = world_map(w.device_bytes);
		segment = world_map(w.segment_bytes);
		memcpy(device, w.device, w.device_bytes);
		memcpy(segment, w.segment, w.segment_bytes);
		assert_int_equal(gpu_open_tuned(&backend_lazy, &o, &t, &gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
		make_job(&j, &w, turn & 2, 0, 8);
		world_expect(&w, &j.copy, j.to_device, device, segment);
		for (unsigned again = 0; again < 3; again++) {
			assert_int_equal(work_start(gpu, &j.copy, j.to_device, turn & 4 ? PATH_BATCHED : PATH_STAGED, &j.op), 0);
			assert_int_equal(pfs_gpu_wait(j.op, 0), 0);
			pfs_gpu_end(&j.op);
			assert_memory_equal(device, w.device, w.device_bytes);
			assert_memory_equal(segment, w.segment, w.segment_bytes);
			dice_fill(&d, j.to_device ? w.device : w.segment, j.to_device ? w.device_bytes : w.segment_bytes);
			memcpy(device, w.device, w.device_bytes);
			memcpy(segment, w.segment, w.segment_bytes);
			world_expect(&w, &j.copy, j.to_device, device, segment);
		}
		pfs_gpu_close(&gpu);
		free_job(&j);
		munmap(device, w.device_bytes);
		munmap(segment, w.segment_bytes);
		world_free(&w);
	}
}

/* Pages are not touched before the engine's event, on any path, either way. */
static void after_an_event(void **state)
{
	for (int path = 0; path < PATHS; path++)
		for (int to_device = 0; to_device < 2; to_device++) {
			uint8_t *device, *segment;
			struct pfs_gpu *gpu = NULL;
			bool recorded = false;
			struct world w;
			struct job j;

			make_world(&w, 8, 64);
			device = world_map(w.device_bytes);
			segment = world_map(w.segment_bytes);
			assert_int_equal(open_lazy(&gpu), 0);
			assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
			make_job(&j, &w, to_device, 0, 8);
			j.copy.after = &recorded;
			assert_int_equal(work_start(gpu, &j.copy, to_device, path, &j.op), 0);
			assert_int_equal(pfs_gpu_wait(j.op, 20), -ETIMEDOUT);
			assert_int_equal(pfs_gpu_test(j.op), -EAGAIN);
			assert_int_equal(pfs_gpu_unregister(gpu, w.segment, w.segment_bytes, 1), -EBUSY);
			dice_fill(&d, w.device, w.device_bytes); /* the engine goes on until its event */
			memcpy(device, w.device, w.device_bytes);
			memcpy(segment, w.segment, w.segment_bytes);
			world_expect(&w, &j.copy, to_device, device, segment);
			__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
			assert_int_equal(pfs_gpu_wait(j.op, 0), 0);
			pfs_gpu_end(&j.op);
			assert_memory_equal(device, w.device, w.device_bytes);
			assert_memory_equal(segment, w.segment, w.segment_bytes);
			pfs_gpu_close(&gpu);
			free_job(&j);
			munmap(device, w.device_bytes);
			munmap(segment, w.segment_bytes);
			world_free(&w);
		}
}

static void start_two(void *context)
{
	struct job *jobs = context;

	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(work_start(jobs[i].gpu, &jobs[i].copy, jobs[i].to_device, -1, &jobs[i].op), 0);
}

/* The caller of an idle direction begins and does not wait, the thread goes on; what was started meanwhile is submitted later. */
static void begun_by_the_caller(void **state)
{
	const uint32_t counts[] = {96, 4, 4}, firsts[] = {0, 96, 100};
	struct pfs_gpu_options o;
	struct gpu_tuning t;

	pfs_gpu_options_init(&o);
	for (int turn = 0; turn < 2 * PATHS; turn++) {
		bool to_device = turn & 1, recorded = false;
		uint8_t *device, *segment;
		struct pfs_gpu *gpu = NULL;
		struct job jobs[3];
		struct world w;

		tuning_init(&t);
		t.in_bytes = to_device ? 2 * STAGE_SLOT_BYTES : STAGE_RING_BYTES - 2 * STAGE_SLOT_BYTES; /* values for three slots */
		t.spin_bytes = dice(&d, 2) * t.spin_bytes;
		make_world(&w, 104, 512);
		device = world_map(w.device_bytes);
		segment = world_map(w.segment_bytes);
		memcpy(device, w.device, w.device_bytes);
		memcpy(segment, w.segment, w.segment_bytes);
		assert_int_equal(gpu_open_tuned(&backend_lazy, &o, &t, &gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
		for (uint32_t i = 0; i < 3; i++) {
			make_job(&jobs[i], &w, to_device, firsts[i], counts[i]);
			jobs[i].copy.after = i == 0 ? &recorded : NULL;
			jobs[i].gpu = gpu;
			world_expect(&w, &jobs[i].copy, to_device, device, segment);
		}
		lazy.meanwhile_context = &jobs[1];
		lazy.meanwhile = start_two;
		assert_int_equal(work_start(gpu, &jobs[0].copy, to_device, turn / 2, &jobs[0].op), 0);
		assert_non_null(jobs[2].op);
		assert_int_equal(pfs_gpu_test(jobs[0].op), -EAGAIN);
		__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(pfs_gpu_wait(jobs[i].op, 0), 0);
		for (uint32_t i = 0; i < 2; i++)
			assert_true(jobs[i].op->moments[OP_SUBMITTED] <= jobs[i + 1].op->moments[OP_TAKEN]);
		for (uint32_t i = 0; i < 3; i++) {
			pfs_gpu_end(&jobs[i].op);
			free_job(&jobs[i]);
		}
		assert_memory_equal(device, w.device, w.device_bytes);
		assert_memory_equal(segment, w.segment, w.segment_bytes);
		pfs_gpu_close(&gpu);
		munmap(device, w.device_bytes);
		munmap(segment, w.segment_bytes);
		world_free(&w);
	}
}

static void note_thread(void *context)
{
	*(pthread_t *)context = pthread_self();
}

/* All of @op is submitted, and whoever did it is no more at it. */
static void await_submitted(struct pfs_gpu_op *op)
{
	struct channel *c = op->channel;
	bool taken = true;
	void *event;

	assert_int_equal(pfs_gpu_event(op, op->shape->part_count - 1, 0, &event), 0);
	while (taken) {
		pthread_mutex_lock(&c->gpu->lock);
		taken = c->taken;
		pthread_mutex_unlock(&c->gpu->lock);
		sched_yield();
	}
}

/* A caller begins where nothing is under way, though nobody submits. Else the thread does. */
static void begun_where_nothing_is_under_way(void **state)
{
	for (int to_device = 0; to_device < 2; to_device++) {
		pthread_t submitters[3] = {0};
		struct pfs_gpu *gpu = NULL;
		bool recorded = false;
		struct job jobs[3];
		struct world w;

		make_world(&w, 12, 64);
		assert_int_equal(open_lazy(&gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
		for (uint32_t i = 0; i < 3; i++) {
			make_job(&jobs[i], &w, to_device, i * 4, 4);
			jobs[i].copy.parts = NULL;
			jobs[i].copy.part_count = 0;
			jobs[i].copy.after = i == 0 ? &recorded : NULL;
			if (i == 2) { /* the third one is alone again */
				__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
				assert_int_equal(pfs_gpu_wait(jobs[0].op, 0), 0);
				assert_int_equal(pfs_gpu_wait(jobs[1].op, 0), 0);
			}
			lazy.meanwhile_context = &submitters[i];
			__atomic_store_n(&lazy.meanwhile, note_thread, __ATOMIC_RELEASE);
			assert_int_equal(work_start(gpu, &jobs[i].copy, to_device, PATH_STAGED, &jobs[i].op), 0);
			await_submitted(jobs[i].op);
			assert_int_equal(!pthread_equal(submitters[i], pthread_self()), i == 1);
		}
		assert_int_equal(pfs_gpu_wait(jobs[2].op, 0), 0);
		for (uint32_t i = 0; i < 3; i++) {
			pfs_gpu_end(&jobs[i].op);
			free_job(&jobs[i]);
		}
		pfs_gpu_close(&gpu);
		world_free(&w);
	}
}

/* More urgent copies than there are mirrors, behind an event that is still to come: their starts do not wait for it. */
static void many_urgent_ones_wait_for_an_event(void **state)
{
	enum { COPIES = 3 * MIRRORS };
	struct job jobs[COPIES];
	struct pfs_gpu *gpu = NULL;
	bool reached = false;
	struct world w;

	for (int to_device = 0; to_device < 2; to_device++) {
		make_world(&w, COPIES, 64);
		assert_int_equal(open_lazy(&gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
		reached = false;
		for (uint32_t i = 0; i < COPIES; i++) {
			make_job(&jobs[i], &w, to_device, i, 1);
			jobs[i].copy.flags = PFS_GPU_URGENT;
			jobs[i].copy.after = &reached;
			assert_int_equal(work_start(gpu, &jobs[i].copy, to_device, i % 2 ? PATH_BULK : PATH_BATCHED, &jobs[i].op), 0);
		}
		assert_int_equal(pfs_gpu_test(jobs[0].op), -EAGAIN);
		__atomic_store_n(&reached, true, __ATOMIC_RELEASE);
		for (uint32_t i = 0; i < COPIES; i++) {
			assert_int_equal(pfs_gpu_wait(jobs[i].op, 0), 0);
			for (uint32_t k = 0; k < w.pool.plane_count; k++)
				assert_memory_equal((void *)(jobs[i].values[0] + k * w.planes[k].bytes),
					(void *)(w.planes[k].base + jobs[i].pages[0] * w.planes[k].stride), w.planes[k].bytes);
			pfs_gpu_end(&jobs[i].op);
			free_job(&jobs[i]);
		}
		pfs_gpu_close(&gpu);
		world_free(&w);
	}
}

/* A submission fails behind an event that is still to come: the start does not wait for it, nor does a wait for longer than it was asked to;
 * what was under way is drained before the copy has failed, and the next one is as if nothing had been. */
static void a_failure_waits_for_an_event(void **state)
{
	const uint32_t flags[] = {0, PFS_GPU_URGENT};

	for (unsigned turn = 0; turn < 4; turn++) {
		struct pfs_gpu *gpu = NULL;
		bool reached = false;
		struct job jobs[2];
		struct world w;

		make_world(&w, 16, 64);
		assert_int_equal(open_lazy(&gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
		for (uint32_t i = 0; i < 2; i++) {
			make_job(&jobs[i], &w, turn % 2, i * 8, 8);
			jobs[i].copy.flags = flags[turn / 2];
		}
		jobs[0].copy.after = &reached;
		lazy.fail_behind = true;
		assert_int_equal(work_start(gpu, &jobs[0].copy, turn % 2, PATH_BULK, &jobs[0].op), 0);
		assert_int_equal(work_start(gpu, &jobs[1].copy, turn % 2, PATH_BULK, &jobs[1].op), 0);
		assert_int_equal(pfs_gpu_wait(jobs[0].op, 1), -ETIMEDOUT);
		__atomic_store_n(&reached, true, __ATOMIC_RELEASE);
		assert_int_equal(pfs_gpu_wait(jobs[0].op, 0), -EIO);
		assert_int_equal(pfs_gpu_wait(jobs[1].op, 0), 0);
		for (uint32_t i = 0; i < 2; i++) {
			pfs_gpu_end(&jobs[i].op);
			free_job(&jobs[i]);
		}
		pthread_mutex_lock(&lazy.lock);
		lazy.fail_at = 0;
		pthread_mutex_unlock(&lazy.lock);
		pfs_gpu_close(&gpu);
		world_free(&w);
	}
}

/* An operation that nobody asks about any more goes by itself, and a device waits for it. */
static void let_go(void **state)
{
	struct pfs_gpu *gpu = NULL;
	struct world w;
	struct job j;

	make_world(&w, 8, 64);
	assert_int_equal(open_lazy(&gpu), 0);
	assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
	make_job(&j, &w, false, 0, 8);
	for (unsigned i = 0; i < 50; i++) {
		assert_int_equal(pfs_gpu_gather(gpu, &j.copy, &j.op), 0);
		pfs_gpu_end(&j.op);
	}
	pfs_gpu_close(&gpu);
	assert_int_equal(lazy.registered, 0);
	free_job(&j);
	world_free(&w);
}

/* One run with call @fail_at failing: a put's copy, a get's, an urgent one. True: it was not reached. */
static bool run_with_fault(struct world *w, uint64_t fail_at)
{
	struct pfs_gpu *gpu = NULL;
	struct job jobs[3];
	uint32_t failed = 0;
	bool reached;
	int r;

	for (uint32_t i = 0; i < 3; i++) {
		make_job(&jobs[i], w, i > 0, i * 12, 12);
		jobs[i].copy.flags = i == 2 ? PFS_GPU_URGENT : 0;
	}
	lazy.calls = 0;
	lazy.fail_at = fail_at;
	r = open_lazy(&gpu);
	if (!r)
		r = pfs_gpu_register(gpu, w->segment, w->segment_bytes, 1);
	failed += r != 0;
	for (uint32_t i = 0; i < 3 && !r; i++) {
		int s = work_start(gpu, &jobs[i].copy, jobs[i].to_device, i < 2 ? PATH_STAGED : PATH_BULK, &jobs[i].op);

		failed += s != 0;
		assert_true(s == 0 || s == -EIO);
	}
	for (uint32_t i = 0; i < 3; i++) {
		int s = jobs[i].op ? pfs_gpu_wait(jobs[i].op, 0) : 0;
		char why[200];

		assert_true(s == 0 || s == -EIO);
		if (s) {
			pfs_gpu_last_error(why, sizeof(why));
			assert_non_null(strstr(why, "was made to fail"));
			failed++;
		}
		pfs_gpu_end(&jobs[i].op);
	}
	reached = lazy.calls >= fail_at;
	pfs_gpu_close(&gpu);
	assert_int_equal(lazy.registered, 0);
	if (reached)
		assert_true(failed >= 1);
	for (uint32_t i = 0; i < 3; i++)
		free_job(&jobs[i]);
	lazy.fail_at = 0;
	return !reached;
}

struct failing_beginning {
	struct job *jobs; /* [3] */
	uint64_t fail_at; /* call of the beginning */
};

static void start_two_and_fail(void *context)
{
	struct failing_beginning *f = context;

	start_two(f->jobs + 1);
	pthread_mutex_lock(&lazy.lock);
	lazy.calls = 0;
	lazy.fail_at = f->fail_at;
	pthread_mutex_unlock(&lazy.lock);
}

/* Wrong bytes lie where @w's jobs go, and the right ones in *device and *segment. */
static void spoil(struct world *w, const struct job *jobs, uint8_t *device, uint8_t *segment)
{
	if (jobs[0].to_device)
		dice_fill(&d, w->device, w->device_bytes);
	else
		dice_fill(&d, w->segment, w->segment_bytes);
	memcpy(device, w->device, w->device_bytes);
	memcpy(segment, w->segment, w->segment_bytes);
	for (uint32_t i = 0; i < 3; i++)
		world_expect(w, &jobs[i].copy, jobs[i].to_device, device, segment);
}

/* The caller's beginning is a part of a rectangle; call @n of it fails. False: it has fewer. */
static bool beginning_fails(struct pfs_gpu *gpu, struct job *jobs, uint64_t n)
{
	struct failing_beginning f = {jobs, n};
	char why[200];
	bool failed;

	lazy.meanwhile_context = &f;
	lazy.meanwhile = start_two_and_fail;
	assert_int_equal(work_start(gpu, &jobs[0].copy, jobs[0].to_device, PATH_STAGED, &jobs[0].op), 0);
	failed = pfs_gpu_wait(jobs[0].op, 0) == -EIO && jobs[0].op->row == 0; /* the thread begins at another row */
	if (failed) {
		pfs_gpu_last_error(why, sizeof(why));
		assert_non_null(strstr(why, "was made to fail"));
	}
	for (uint32_t i = 0; i < 3; i++) {
		int r = pfs_gpu_wait(jobs[i].op, 0);

		if (failed)
			assert_int_equal(r, i == 0 ? -EIO : 0);
		pfs_gpu_end(&jobs[i].op);
	}
	pthread_mutex_lock(&lazy.lock);
	lazy.fail_at = 0;
	pthread_mutex_unlock(&lazy.lock);
	return failed;
}

/* Whatever was started behind it is done, and so is the same copy when it is started again. */
static void a_cut_beginning_fails(void **state)
{
	const uint32_t counts[] = {96, 4, 4}, firsts[] = {0, 96, 100};

	for (int to_device = 0; to_device < 2; to_device++) {
		uint8_t *device, *segment;
		struct pfs_gpu_options o;
		struct pfs_gpu *gpu = NULL;
		struct gpu_tuning t;
		struct job jobs[3];
		struct world w;
		uint64_t n = 1;

		pfs_gpu_options_init(&o);
		tuning_init(&t);
		t.in_bytes = to_device ? 2 * STAGE_SLOT_BYTES : STAGE_RING_BYTES - 2 * STAGE_SLOT_BYTES;
		make_world(&w, 104, 512);
		assert_true(counts[0] * w.slot_bytes > 2 * STAGE_SLOT_BYTES);
		device = world_map(w.device_bytes);
		segment = world_map(w.segment_bytes);
		assert_int_equal(gpu_open_tuned(&backend_lazy, &o, &t, &gpu), 0);
		assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 1), 0);
		for (uint32_t i = 0; i < 3; i++) {
			make_job(&jobs[i], &w, to_device, firsts[i], counts[i]);
			jobs[i].gpu = gpu;
		}
		jobs[0].copy.parts = NULL;
		jobs[0].copy.part_count = 0;
		spoil(&w, jobs, device, segment);
		for (; beginning_fails(gpu, jobs, n); n++) {
			assert_int_equal(work_start(gpu, &jobs[0].copy, to_device, PATH_STAGED, &jobs[0].op), 0);
			assert_int_equal(pfs_gpu_wait(jobs[0].op, 0), 0);
			pfs_gpu_end(&jobs[0].op);
			assert_memory_equal(device, w.device, w.device_bytes);
			assert_memory_equal(segment, w.segment, w.segment_bytes);
			spoil(&w, jobs, device, segment);
		}
		assert_true(n > 2 * 8); /* two slots, eight calls each */
		pfs_gpu_close(&gpu);
		for (uint32_t i = 0; i < 3; i++)
			free_job(&jobs[i]);
		munmap(device, w.device_bytes);
		munmap(segment, w.segment_bytes);
		world_free(&w);
	}
}

static void every_call_fails(void **state)
{
	struct world w;
	uint64_t n = 1;

	make_world(&w, 36, 512);
	while (!run_with_fault(&w, n))
		n += n < 40 ? 1 : 1 + dice(&d, 12);
	assert_true(n > 100);
	world_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_at_once),
		cmocka_unit_test(two_copy_lanes),
		cmocka_unit_test(after_an_event),
		cmocka_unit_test(begun_by_the_caller),
		cmocka_unit_test(begun_where_nothing_is_under_way),
		cmocka_unit_test(many_urgent_ones_wait_for_an_event),
		cmocka_unit_test(a_failure_waits_for_an_event),
		cmocka_unit_test(let_go),
		cmocka_unit_test(every_call_fails),
		cmocka_unit_test(a_cut_beginning_fails),
	};
	const char *seed = getenv("SEED");

	d.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("SEED=%llu\n", (unsigned long long)d.state);
	lazy.dice.state = d.state ^ 0x9e3779b97f4a7c15ull;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
