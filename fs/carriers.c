/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/carriers.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "store/base/clock.h"

#define LOOK_AGAIN_NS 1000000000ull

struct burden {
	struct call *call;
	void (*work)(struct call *call);
};

struct carriers {
	struct fs *fs;
	struct lock lock; /* LOCK_QUEUE: closed, the ring */
	struct lock_cond more;
	bool closed;
	uint32_t first, used; /* of the ring */
	struct burden *ring;    /* CALLS_MAX */
	unsigned threads;     /* (of who starts and stops them) */
	pthread_t thread[CARRIERS_THREADS];
};

struct carriers *carriers_new(struct fs *fs)
{
	struct carriers *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->fs = fs;
	lock_init(&c->lock, LOCK_QUEUE);
	lock_cond_init(&c->more);
	c->ring = calloc(CALLS_MAX, sizeof(*c->ring));
	if (!c->ring)
		carriers_free(&c);
	return c;
}

void carriers_free(struct carriers **cp)
{
	struct carriers *c = *cp;

	*cp = NULL;
	if (!c)
		return;
	free(c->ring);
	lock_cond_destroy(&c->more);
	lock_destroy(&c->lock);
	free(c);
}

/* False: the end, and nothing waits. */
static bool take(struct carriers *c, struct burden *ret)
{
	bool some;

	lock_take(&c->lock);
	while (!c->used && !c->closed)
		lock_cond_wait(&c->more, &c->lock, clock_now_ns() + LOOK_AGAIN_NS);
	some = c->used;
	if (some) {
		*ret = c->ring[c->first];
		c->first = (c->first + 1) % CALLS_MAX;
		c->used--;
	}
	lock_drop(&c->lock);
	return some;
}

static void *carrier_main(void *argument)
{
	struct carriers *c = argument;
	struct burden burden;

	pthread_setname_np(pthread_self(), "pfs-carry");
	while (take(c, &burden)) {
		burden.work(burden.call);
		calls_publish(c->fs->calls, burden.call, false);
		calls_kick(c->fs->calls);
	}
	return NULL;
}

int carriers_start(struct carriers *c)
{
	int r = 0;

	while (c->threads < CARRIERS_THREADS && !r) {
		r = pthread_create(&c->thread[c->threads], NULL, carrier_main, c);
		c->threads += r == 0;
	}
	return -r;
}

bool carriers_give(struct carriers *c, struct call *call, void (*work)(struct call *call))
{
	bool taken;

	lock_take(&c->lock);
	taken = !c->closed;
	if (taken) {
		c->ring[(c->first + c->used) % CALLS_MAX] = (struct burden){call, work};
		c->used++;
		lock_cond_wake_all(&c->more);
	}
	lock_drop(&c->lock);
	return taken;
}

void carriers_stop(struct carriers *c)
{
	lock_take(&c->lock);
	c->closed = true;
	lock_cond_wake_all(&c->more);
	lock_drop(&c->lock);
	while (c->threads)
		pthread_join(c->thread[--c->threads], NULL);
}
