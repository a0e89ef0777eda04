/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/aside.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "fs/loop.h"
#include "fs/ops.h"
#include "store/base/clock.h"

#define LOOK_AGAIN_NS 1000000000ull

struct wait {
	fuse_req_t req;
	fuse_ino_t ino;
	bool open;
	struct fuse_file_info fi; /* of an open */
	size_t size;              /* of a read, likewise offset */
	uint64_t offset;
};

struct aside {
	struct fs *fs;
	struct lock lock; /* LOCK_QUEUE */
	struct lock_cond more;
	bool closed;          /* (lock) */
	uint32_t first, used; /* (lock) of the ring */
	struct wait *ring;    /* (lock) ASIDE_MAX */
	pthread_t thread[ASIDE_THREADS];
	unsigned threads;
};

struct aside *aside_new(struct fs *fs)
{
	struct aside *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->fs = fs;
	lock_init(&a->lock, LOCK_QUEUE);
	lock_cond_init(&a->more);
	a->ring = calloc(ASIDE_MAX, sizeof(*a->ring));
	if (!a->ring)
		aside_free(&a);
	return a;
}

void aside_free(struct aside **ap)
{
	struct aside *a = *ap;

	*ap = NULL;
	if (!a)
		return;
	free(a->ring);
	lock_cond_destroy(&a->more);
	lock_destroy(&a->lock);
	free(a);
}

/* False: the end. */
static bool take(struct aside *a, struct wait *ret)
{
	lock_take(&a->lock);
	while (!a->used && !a->closed)
		lock_cond_wait(&a->more, &a->lock, clock_now_ns() + LOOK_AGAIN_NS);
	bool some = a->used;
	if (some) {
		*ret = a->ring[a->first];
		a->first = (a->first + 1) % ASIDE_MAX;
		a->used--;
	}
	lock_drop(&a->lock);
	return some;
}

static void *aside_main(void *argument)
{
	static const struct sched_param none = {0};
	struct aside *a = argument;
	void *buffer = aligned_alloc(4096, LOOP_SCRATCH_BYTES);
	struct wait wait;

	pthread_setname_np(pthread_self(), "pfs-view");
	pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
	while (take(a, &wait)) {
		lock_take(&a->lock);
		bool closed = a->closed;
		lock_drop(&a->lock);
		if (closed || !buffer)
			fuse_reply_err(wait.req, closed ? ENODEV : ENOMEM);
		else if (wait.open)
			ops_open_raw(wait.req, a->fs, wait.ino, &wait.fi);
		else
			ops_read_values(wait.req, a->fs, wait.ino, wait.size, wait.offset, buffer);
	}
	free(buffer);
	return NULL;
}

int aside_start(struct aside *a)
{
	int r = 0;

	while (a->threads < ASIDE_THREADS && !r) {
		r = pthread_create(&a->thread[a->threads], NULL, aside_main, a);
		a->threads += r == 0;
	}
	return -r;
}

void aside_leave(struct aside *a)
{
	lock_take(&a->lock);
	a->used = 0;
	lock_drop(&a->lock);
	aside_stop(a);
}

void aside_stop(struct aside *a)
{
	lock_take(&a->lock);
	a->closed = true;
	lock_cond_wake_all(&a->more);
	lock_drop(&a->lock);
	while (a->threads)
		pthread_join(a->thread[--a->threads], NULL);
}

static void give(struct aside *a, const struct wait *wait)
{
	lock_take(&a->lock);
	bool taken = !a->closed && a->used < ASIDE_MAX;
	if (taken) {
		a->ring[(a->first + a->used) % ASIDE_MAX] = *wait;
		a->used++;
		lock_cond_wake_all(&a->more);
	}
	lock_drop(&a->lock);
	if (!taken)
		fuse_reply_err(wait->req, EAGAIN);
}

void aside_read(struct aside *a, fuse_req_t req, fuse_ino_t ino, size_t size, uint64_t offset)
{
	const struct wait wait = {.req = req, .ino = ino, .size = size, .offset = offset};

	give(a, &wait);
}

void aside_open(struct aside *a, fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	const struct wait wait = {.req = req, .ino = ino, .open = true, .fi = *fi};

	give(a, &wait);
}
