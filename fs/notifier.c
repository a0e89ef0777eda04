/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/notifier.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/ctl.h"
#include "fs/log.h"
#include "fs/namespaces.h"
#include "fs/node.h"
#include "fs/record_name.h"

#define GONE_MAX 16384u /* names that wait to be told */

struct gone {
	uint32_t serial;
	uint64_t consumed;
	struct key endpoint;
};

struct poller {
	struct ctl *ctl; /* valid while it stands in the list: notifier_forget_poller comes before its end */
	struct fuse_pollhandle *handle;
};

struct notifier {
	struct fs *fs;
	int wake; /* eventfd */
	pthread_t thread;
	bool running;
	_Atomic bool stopping;
	_Atomic uint64_t dropped;
	_Atomic bool told;        /* the eventfd was written since the thread looked */
	_Atomic uint32_t polling; /* length of the list below; written under the lock, read without */
	struct lock lock;         /* LOCK_QUEUE; guards the rest */
	uint32_t first, count;    /* of the ring */
	struct poller *pollers;
	uint32_t poller_capacity;
	struct gone gone[GONE_MAX];
};

struct notifier *notifier_new(struct fs *fs)
{
	struct notifier *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->fs = fs;
	n->wake = eventfd(0, EFD_CLOEXEC);
	lock_init(&n->lock, LOCK_QUEUE);
	if (n->wake < 0)
		notifier_free(&n);
	return n;
}

void notifier_free(struct notifier **np)
{
	struct notifier *n = *np;

	*np = NULL;
	if (!n)
		return;
	assert(!n->running);
	for (uint32_t i = 0; i < n->polling; i++)
		fuse_pollhandle_destroy(n->pollers[i].handle);
	free(n->pollers);
	if (n->wake >= 0)
		close(n->wake);
	lock_destroy(&n->lock);
	free(n);
}

static void wake(struct notifier *n)
{
	uint64_t one = 1;

	if (!atomic_exchange(&n->told, true) && write(n->wake, &one, sizeof(one)) < 0)
		log_error("the notifier cannot be woken: %s", strerror(errno));
}

void notifier_record_gone(struct notifier *n, uint32_t serial, uint64_t consumed, const struct key *endpoint)
{
	bool fits;

	lock_take(&n->lock);
	fits = n->count < GONE_MAX;
	if (fits) {
		struct gone *g = &n->gone[(n->first + n->count++) % GONE_MAX];

		g->serial = serial;
		g->consumed = consumed;
		g->endpoint = *endpoint;
	}
	lock_drop(&n->lock);
	if (fits)
		wake(n);
	else
		atomic_fetch_add_explicit(&n->dropped, 1, memory_order_relaxed);
}

void notifier_changed(struct notifier *n)
{
	if (atomic_load(&n->polling))
		wake(n);
}

uint64_t notifier_dropped(const struct notifier *n)
{
	return atomic_load_explicit(&n->dropped, memory_order_relaxed);
}

/* ---- pollers ------------------------------------------------------------------------------------------------- */

void notifier_add_poller(struct notifier *n, struct ctl *ctl, struct fuse_pollhandle *handle)
{
	struct fuse_pollhandle *old = handle;
	uint32_t i = 0;

	lock_take(&n->lock);
	while (i < n->polling && n->pollers[i].ctl != ctl)
		i++;
	if (i < n->polling) {
		old = n->pollers[i].handle;
		n->pollers[i].handle = handle;
	} else {
		if (i == n->poller_capacity) {
			uint32_t capacity = i ? 2 * i : 64;
			struct poller *more = realloc(n->pollers, capacity * sizeof(*more));

			if (more) {
				n->pollers = more;
				n->poller_capacity = capacity;
			}
		}
		if (i < n->poller_capacity) {
			n->pollers[i] = (struct poller){ctl, handle};
			atomic_store(&n->polling, i + 1);
			old = NULL;
		}
	}
	lock_drop(&n->lock);
	if (old)
		fuse_pollhandle_destroy(old);
}

static struct fuse_pollhandle *take_poller(struct notifier *n, uint32_t i)
{
	struct fuse_pollhandle *handle = n->pollers[i].handle;

	lock_assert_held(&n->lock);
	n->pollers[i] = n->pollers[n->polling - 1];
	atomic_store(&n->polling, n->polling - 1);
	return handle;
}

void notifier_forget_poller(struct notifier *n, struct ctl *ctl)
{
	struct fuse_pollhandle *handle = NULL;

	lock_take(&n->lock);
	for (uint32_t i = 0; i < n->polling && !handle; i++)
		if (n->pollers[i].ctl == ctl)
			handle = take_poller(n, i);
	lock_drop(&n->lock);
	if (handle)
		fuse_pollhandle_destroy(handle);
}

static struct fuse_pollhandle *next_ready_poller(struct notifier *n)
{
	struct fuse_pollhandle *handle = NULL;

	lock_take(&n->lock);
	for (uint32_t i = 0; i < n->polling && !handle; i++)
		if (ctl_poller_ready(n->pollers[i].ctl))
			handle = take_poller(n, i);
	lock_drop(&n->lock);
	return handle;
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

static bool next_gone(struct notifier *n, struct gone *gone)
{
	lock_take(&n->lock);
	bool any = n->count > 0;
	if (any) {
		*gone = n->gone[n->first];
		n->first = (n->first + 1) % GONE_MAX;
		n->count--;
	}
	lock_drop(&n->lock);
	return any;
}

static void tell_gone(struct notifier *n, const struct gone *gone)
{
	char name[RECORD_NAME_BYTES + 1];
	uint64_t number;

	if (!namespaces_of_serial(n->fs->namespaces, gone->serial, &number))
		return;
	record_name(gone->consumed, &gone->endpoint, name);
	/* ENOENT: the kernel did not know it. */
	int r = fuse_lowlevel_notify_inval_entry(n->fs->session,
		node_pack((struct node){.kind = NODE_RECORDS, .number = number}), name, RECORD_NAME_BYTES);
	if (r && r != -ENOENT && r != -ENODEV && r != -ENOTCONN)
		log_debug("the kernel did not forget %s: %s", name, strerror(-r));
}

static void *notifier_main(void *argument)
{
	struct notifier *n = argument;
	struct gone gone;
	struct fuse_pollhandle *handle;
	uint64_t count;

	pthread_setname_np(pthread_self(), "pfs-notify");
	while (!atomic_load(&n->stopping)) {
		if (read(n->wake, &count, sizeof(count)) < 0 && errno != EINTR)
			break;
		atomic_store(&n->told, false);
		while (!atomic_load(&n->stopping) && (handle = next_ready_poller(n))) {
			fuse_lowlevel_notify_poll(handle);
			fuse_pollhandle_destroy(handle);
		}
		while (!atomic_load(&n->stopping) && next_gone(n, &gone))
			tell_gone(n, &gone);
	}
	return NULL;
}

int notifier_start(struct notifier *n)
{
	int r = pthread_create(&n->thread, NULL, notifier_main, n);

	n->running = r == 0;
	return -r;
}

void notifier_stop(struct notifier *n)
{
	uint64_t one = 1;

	if (!n->running)
		return;
	atomic_store(&n->stopping, true);
	if (write(n->wake, &one, sizeof(one)) < 0)
		log_error("the notifier cannot be woken: %s", strerror(errno));
	pthread_join(n->thread, NULL);
	n->running = false;
}
