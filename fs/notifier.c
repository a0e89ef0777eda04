/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/notifier.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/ctl.h"
#include "fs/log.h"
#include "fs/namespaces.h"
#include "fs/node.h"
#include "fs/page_nodes.h"
#include "fs/record_name.h"

#define TELL_AT_ONCE 64u   /* names taken from the queue in one stay under the lock */
#define EXPIRE_FROM 1024u  /* names in the queue from which on the kernel is told the cheaper thing */
#define NAMESPACES_WAIT 256u /* changes of namespaces that wait to be told */

struct gone {
	uint32_t serial;
	uint64_t consumed;
	struct key endpoint;
};

struct changed_namespace {
	uint64_t number;
	bool removed;
	char name[HOST_MAX_NAME + 1];
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
	_Atomic uint64_t dropped, told_names;
	_Atomic bool told;        /* the eventfd was written since the thread looked */
	_Atomic uint32_t polling; /* length of the list below; written under the lock, read without */
	struct lock lock;         /* LOCK_QUEUE; guards the rest */
	uint32_t first, count;    /* of the ring */
	struct poller *pollers;
	uint32_t poller_capacity;
	uint32_t changed_count;
	struct changed_namespace changed[NAMESPACES_WAIT]; /* oldest first */
	struct gone gone[NOTIFIER_NAMES];
};

struct notifier *notifier_new(struct fs *fs)
{
	struct notifier *n = calloc(1, sizeof(*n)); /* large: its pages come as they are used */

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
	fits = n->count < NOTIFIER_NAMES;
	if (fits) {
		struct gone *g = &n->gone[(n->first + n->count++) % NOTIFIER_NAMES];

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

void notifier_namespace(struct notifier *n, uint64_t number, const char *name, bool removed)
{
	bool fits;

	lock_take(&n->lock);
	fits = n->changed_count < NAMESPACES_WAIT;
	if (fits) {
		struct changed_namespace *c = &n->changed[n->changed_count++];

		c->number = number;
		c->removed = removed;
		snprintf(c->name, sizeof(c->name), "%s", name);
	}
	lock_drop(&n->lock);
	if (fits)
		wake(n);
	else
		atomic_fetch_add_explicit(&n->dropped, 1, memory_order_relaxed);
}

void notifier_pages(struct notifier *n)
{
	wake(n);
}

void notifier_count(struct notifier *n, struct notifier_count *ret)
{
	lock_take(&n->lock);
	ret->pending = n->count + n->changed_count;
	lock_drop(&n->lock);
	ret->told = atomic_load_explicit(&n->told_names, memory_order_relaxed);
	ret->dropped = atomic_load_explicit(&n->dropped, memory_order_relaxed);
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

static uint32_t take_gone(struct notifier *n, struct gone to[TELL_AT_ONCE], bool *hurry)
{
	uint32_t taken = 0;

	lock_take(&n->lock);
	*hurry = n->count >= EXPIRE_FROM;
	while (n->count && taken < TELL_AT_ONCE) {
		to[taken++] = n->gone[n->first];
		n->first = (n->first + 1) % NOTIFIER_NAMES;
		n->count--;
	}
	if (!n->count)
		n->first = 0; /* the same memory again */
	lock_drop(&n->lock);
	return taken;
}

static bool take_changed(struct notifier *n, struct changed_namespace *to)
{
	lock_take(&n->lock);
	bool any = n->changed_count > 0;
	if (any) {
		*to = n->changed[0];
		memmove(n->changed, n->changed + 1, --n->changed_count * sizeof(n->changed[0]));
	}
	lock_drop(&n->lock);
	return any;
}

/* libfuse 3.14 wants a flag for what is the only thing that later ones do. */
static int expire_name(struct notifier *n, uint64_t directory, const char *name)
{
#if PFS_EXPIRE_HAS_FLAGS
	return fuse_lowlevel_notify_expire_entry(n->fs->session, directory, name, strlen(name), FUSE_LL_EXPIRE_ONLY);
#else
	return fuse_lowlevel_notify_expire_entry(n->fs->session, directory, name, strlen(name));
#endif
}

/* The kernel is to forget @name in @directory. In a @hurry it is only told that its time is over, so that it asks the next
 * time: several times cheaper, since it need not take the inode apart and send a forget; it keeps that until it is short of
 * memory. Kernels before 6.2 cannot be told that. */
static void tell_name(struct notifier *n, uint64_t directory, const char *name, bool hurry)
{
	int r = hurry ? expire_name(n, directory, name) : -ENOSYS;

	if (r == -ENOSYS)
		r = fuse_lowlevel_notify_inval_entry(n->fs->session, directory, name, strlen(name));

	atomic_fetch_add_explicit(&n->told_names, 1, memory_order_relaxed);
	/* ENOENT: it did not know it. */
	if (r && r != -ENOENT && r != -ENODEV && r != -ENOTCONN)
		log_debug("the kernel did not forget %s: %s", name, strerror(-r));
}

static void tell_gone(struct notifier *n, const struct gone *gone, bool hurry)
{
	char name[RECORD_NAME_BYTES + 1];
	uint64_t number;

	if (!namespaces_of_serial(n->fs->namespaces, gone->serial, &number))
		return;
	record_name(gone->consumed, &gone->endpoint, name);
	tell_name(n, node_pack((struct node){.kind = NODE_RECORDS, .number = number}), name, hurry);
}

static void tell_page(struct notifier *n, uint64_t namespace, const struct key *key)
{
	char name[2 * sizeof(key->bytes) + 1];

	hex_print(key->bytes, sizeof(key->bytes), name);
	tell_name(n, node_pack((struct node){.kind = NODE_BY_KEY, .number = namespace}), name, false);
}

/* Of a changed one, the attributes of its folders, which have the mode and owner; of a removed one, its name. */
static void tell_namespace(struct notifier *n, const struct changed_namespace *c)
{
	static const enum node_kind folders[] = {NODE_NAMESPACE, NODE_RECORDS, NODE_CHECKPOINTS, NODE_BY_KEY};

	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
		fuse_lowlevel_notify_inval_inode(
			n->fs->session, node_pack((struct node){.kind = folders[i], .number = c->number}), -1, 0);
	if (c->removed)
		tell_name(n, node_pack((struct node){.kind = NODE_NAMESPACES}), c->name, false);
}

static void tell_pollers(struct notifier *n)
{
	struct fuse_pollhandle *handle;

	while (!atomic_load(&n->stopping) && (handle = next_ready_poller(n))) {
		fuse_lowlevel_notify_poll(handle);
		fuse_pollhandle_destroy(handle);
	}
}

/* A piece of what there is to tell; false: there was nothing. */
static bool tell_some(struct notifier *n)
{
	struct gone gone[TELL_AT_ONCE];
	struct changed_namespace changed;
	uint64_t namespace;
	struct key key;
	uint32_t done;

	if (take_changed(n, &changed)) {
		tell_namespace(n, &changed);
		return true;
	}
	bool hurry;
	uint32_t taken = take_gone(n, gone, &hurry);

	for (uint32_t i = 0; i < taken && !atomic_load(&n->stopping); i++)
		tell_gone(n, &gone[i], hurry);
	for (done = 0; done < TELL_AT_ONCE && page_nodes_surplus(n->fs->page_nodes, &namespace, &key); done++)
		tell_page(n, namespace, &key);
	return taken + done > 0;
}

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* A table of descriptors of its own, with nothing in it but /dev/fuse, the event and the log: if the process is killed while this thread
 * waits in the kernel, everything else of the process ends, the channel to the parent too, and the next one may start (docs/survival.md).
 * It answers what this thread waits for. */
static void keep_few_descriptors(const struct notifier *n)
{
	int kept[] = {STDERR_FILENO, n->wake, fuse_session_fd(n->fs->session)};
	unsigned from = 0;

	if (unshare(CLONE_FILES)) {
		log_warning("the notifier has no table of descriptors of its own: %s", strerror(errno));
		return;
	}
	qsort(kept, sizeof(kept) / sizeof(kept[0]), sizeof(kept[0]), by_number);
	for (unsigned i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		if ((unsigned)kept[i] > from)
			close_range(from, (unsigned)kept[i] - 1, 0);
		from = (unsigned)kept[i] + 1;
	}
	if (close_range(from, ~0u, 0))
		log_warning("the notifier keeps descriptors that it does not need: %s", strerror(errno));
}

static void *notifier_main(void *argument)
{
	struct notifier *n = argument;
	uint64_t count;

	pthread_setname_np(pthread_self(), "pfs-notify");
	keep_few_descriptors(n);
	while (!atomic_load(&n->stopping)) {
		if (read(n->wake, &count, sizeof(count)) < 0 && errno != EINTR)
			break;
		atomic_store(&n->told, false);
		do /* who polls does not wait for names */
			tell_pollers(n);
		while (!atomic_load(&n->stopping) && tell_some(n));
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
