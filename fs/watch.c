/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/watch.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/event_text.h"
#include "fs/handles.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "store/base/cleanup.h"

#define CHUNK 64u                /* events of one stay under the lock */
#define SLOTS (WATCH_READERS + 8) /* a closed one is free a moment later than its handle */
#define TEXTS 64u                /* sentences of the last changes of health */

_Static_assert(WATCH_BYTES <= LOOP_SCRATCH_BYTES, "a read is made in the loop's scratch");

/* FREE -> ARMED (the kernel's interrupt knows it) -> WAITING <-> TAKEN (by the thread) -> FREE, then the reply */
enum wait_state { WAIT_FREE, WAIT_ARMED, WAIT_WAITING, WAIT_TAKEN };

struct wait {
	enum wait_state state;
	uint32_t generation;
	bool interrupted;
	fuse_req_t req;  /* constant while it is not FREE, as are the next two */
	uint64_t handle; /* taken until the reply */
	size_t size;
};

struct reader {
	struct watch *watch; /* constant */
	bool open;
	struct viewer viewer;
	uint64_t next; /* number of the event that it reads next */
	struct wait waits[WATCH_READS];
	struct fuse_pollhandle *poll;
};

struct known {
	uint32_t serial;
	bool gone;
	char name[HOST_MAX_NAME + 1];
	struct space_access access;
};

struct watch {
	struct fs *fs;
	struct events *events;
	int wake, over; /* eventfds: look; and, never read, do not pause any more */
	pthread_t thread;
	bool running;
	_Atomic bool told;        /* the eventfd was written since the thread looked */
	_Atomic uint32_t waiting; /* reads that wait and poll handles: while 0 nobody is woken */
	_Atomic uint64_t lost;
	char *buffer;             /* the thread's */
	struct lock lock;         /* LOCK_QUEUE; guards the rest */
	bool closed;  /* nobody waits any more */
	bool leaving; /* and the thread ends */
	uint32_t open_count;
	uint32_t known_count;
	uint64_t text_count; /* ever noted */
	struct reader readers[SLOTS];
	struct known known[WATCH_SPACES]; /* by ascending serial */
	char texts[TEXTS][EVENT_TEXT_BYTES];
};

struct watch *watch_new(struct fs *fs)
{
	struct watch *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->fs = fs;
	w->wake = eventfd(0, EFD_CLOEXEC);
	w->over = eventfd(0, EFD_CLOEXEC);
	w->events = events_new();
	w->buffer = malloc(WATCH_BYTES);
	lock_init(&w->lock, LOCK_QUEUE);
	for (uint32_t i = 0; i < SLOTS; i++)
		w->readers[i].watch = w;
	if (w->wake < 0 || w->over < 0 || !w->events || !w->buffer)
		watch_free(&w);
	return w;
}

void watch_free(struct watch **wp)
{
	struct watch *w = *wp;

	*wp = NULL;
	if (!w)
		return;
	assert(!w->running && !w->open_count);
	closep(&w->wake);
	closep(&w->over);
	free(w->buffer);
	events_free(&w->events);
	lock_destroy(&w->lock);
	free(w);
}

static void wake(struct watch *w)
{
	uint64_t one = 1;

	if (!atomic_exchange(&w->told, true) && write(w->wake, &one, sizeof(one)) < 0)
		log_error("the readers of events cannot be woken: %s", strerror(errno));
}

/* ---- noting -------------------------------------------------------------------------------------------------- */

void watch_note(struct watch *w, uint32_t serial, const struct host_event *events, uint32_t count)
{
	events_note(w->events, serial, events, count);
	/* Who waits counted itself before it looked at the ring for the last time. */
	if (atomic_load(&w->waiting))
		wake(w);
}

void watch_note_health(struct watch *w, uint32_t serial, bool degraded, const char *text)
{
	struct host_event event = {.kind = (enum host_event_kind)(degraded ? EVENT_DEGRADED : EVENT_RECOVERED)};

	lock_take(&w->lock);
	event.number = w->text_count++;
	char *to = w->texts[event.number % TEXTS];
	strncpy(to, text, EVENT_TEXT_BYTES - 1);
	to[EVENT_TEXT_BYTES - 1] = 0;
	lock_drop(&w->lock);
	watch_note(w, serial, &event, 1);
}

void watch_note_resumed(struct watch *w, uint32_t restarts, uint32_t upgrades)
{
	struct host_event event = {.kind = (enum host_event_kind)EVENT_RESUMED, .number = restarts, .bytes = upgrades};

	watch_note(w, 0, &event, 1);
}

uint64_t watch_count(const struct watch *w)
{
	return events_last(w->events);
}

uint64_t watch_lost(const struct watch *w)
{
	return atomic_load_explicit(&w->lost, memory_order_relaxed);
}

uint32_t watch_readers(struct watch *w)
{
	lock_take(&w->lock);
	uint32_t n = w->open_count;
	lock_drop(&w->lock);
	return n;
}

/* ---- namespaces ---------------------------------------------------------------------------------------------- */

/* The first one whose serial is not below @serial. */
static uint32_t known_at(const struct watch *w, uint32_t serial)
{
	uint32_t low = 0, high = w->known_count;

	lock_assert_held(&w->lock);
	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (w->known[middle].serial < serial)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct known *known_find(struct watch *w, uint32_t serial)
{
	uint32_t i = known_at(w, serial);

	return i < w->known_count && w->known[i].serial == serial ? &w->known[i] : NULL;
}

/* The one that has been gone longest, as near as serials tell. */
static void known_drop_one(struct watch *w)
{
	uint32_t i = 0;

	while (i < w->known_count - 1 && !w->known[i].gone)
		i++;
	w->known_count--;
	memmove(&w->known[i], &w->known[i + 1], (w->known_count - i) * sizeof(w->known[0]));
}

void watch_space(struct watch *w, uint32_t serial, const char *name, const struct space_access *access)
{
	lock_take(&w->lock);
	if (w->known_count == WATCH_SPACES)
		known_drop_one(w);
	uint32_t i = known_at(w, serial);
	assert(i == w->known_count || w->known[i].serial > serial);
	memmove(&w->known[i + 1], &w->known[i], (w->known_count - i) * sizeof(w->known[0]));
	w->known_count++;
	w->known[i] = (struct known){.serial = serial, .access = *access};
	strncpy(w->known[i].name, name, HOST_MAX_NAME);
	lock_drop(&w->lock);
}

static void set_access(struct watch *w, uint32_t serial, const struct space_access *access, bool gone)
{
	lock_take(&w->lock);
	struct known *k = known_find(w, serial);
	if (k) {
		k->access = *access;
		k->gone |= gone;
	}
	lock_drop(&w->lock);
}

void watch_space_access(struct watch *w, uint32_t serial, const struct space_access *access)
{
	set_access(w, serial, access, false);
}

void watch_space_gone(struct watch *w, uint32_t serial, const struct space_access *access)
{
	set_access(w, serial, access, true);
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* Looks a namespace up once for events of the same one in a row. */
struct sight {
	uint32_t serial;
	bool visible;
	const struct known *known;
};

static const struct sight of_the_host = {.serial = 0, .visible = true, .known = NULL};

static bool sees(struct reader *r, uint32_t serial, struct sight *sight)
{
	if (serial != sight->serial) {
		sight->serial = serial;
		sight->known = known_find(r->watch, serial);
		sight->visible = r->viewer.uid == 0 || serial == of_the_host.serial ||
		                 (sight->known && viewer_sees(&r->viewer, &sight->known->access));
	}
	return sight->visible;
}

/* What is being filled for one read. */
struct filling {
	char *to;
	size_t size, used;
	bool full; /* the next line did not fit */
};

/* False: it does not fit. */
static bool add_line(struct filling *f, const char *line, size_t bytes)
{
	f->full = bytes > f->size - f->used;
	if (f->full)
		return false;
	memcpy(f->to + f->used, line, bytes);
	f->used += bytes;
	return true;
}

static size_t make_line(struct watch *w, const struct event *e, uint64_t number, const struct known *known, char *line)
{
	const char *text = NULL;

	if (e->kind == EVENT_DEGRADED || e->kind == EVENT_RECOVERED)
		text = w->text_count - e->number <= TEXTS ? w->texts[e->number % TEXTS] : "";
	return event_line(e, number, known ? known->name : NULL, text, line);
}

/* Under the lock: adds the lines of the next CHUNK events, and moves the position behind them. False: nothing is left, or
 * no room. */
static bool fill_some(struct reader *r, struct filling *f)
{
	struct watch *w = r->watch;
	struct event events[CHUNK];
	struct sight sight = of_the_host;
	char line[EVENT_LINE_BYTES];
	uint64_t first;
	uint32_t n = events_read(w->events, r->next, events, CHUNK, &first);

	lock_assert_held(&w->lock);
	if (n && first > r->next) {
		uint64_t lost = first - r->next;

		if (!add_line(f, line, event_gap_line(r->next, lost, events[0].time_us, line)))
			return false;
		atomic_fetch_add_explicit(&w->lost, lost, memory_order_relaxed);
		r->next = first;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (sees(r, events[i].serial, &sight) &&
			!add_line(f, line, make_line(w, &events[i], first + i, sight.known, line)))
			return false;
		r->next = first + i + 1;
	}
	return n == CHUNK;
}

/* Bytes; 0: there is nothing for this viewer; -EINVAL: the next line is longer than @size. */
static ssize_t fill(struct reader *r, char *to, size_t size)
{
	struct filling f = {.to = to, .size = size};
	bool more = true;

	/* No further than the ring is long: a viewer who sees nothing of it does not run after it for ever. */
	for (uint32_t i = 0; more && i < EVENTS_KEPT / CHUNK; i++) {
		lock_take(&r->watch->lock);
		more = fill_some(r, &f);
		lock_drop(&r->watch->lock);
	}
	return f.full && !f.used ? -EINVAL : (ssize_t)f.used;
}

/* Under the lock: 1: there is a line for this reader; 0: none; -1: call again. The position moves behind what the viewer
 * does not see. */
static int readable_some(struct reader *r)
{
	struct event events[CHUNK];
	struct sight sight = of_the_host;
	uint64_t first;
	uint32_t n = events_read(r->watch->events, r->next, events, CHUNK, &first);

	lock_assert_held(&r->watch->lock);
	if (r->watch->closed || (n && first > r->next))
		return 1; /* read(2) says so; or a gap */
	for (uint32_t i = 0; i < n; i++, r->next++)
		if (sees(r, events[i].serial, &sight))
			return 1;
	return n == CHUNK ? -1 : 0;
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

static void reader_end(void *object)
{
	struct reader *r = object;
	struct watch *w = r->watch;

	lock_take(&w->lock);
	struct fuse_pollhandle *poll = r->poll;
	assert(r->open);
	for (unsigned i = 0; i < WATCH_READS; i++)
		assert(r->waits[i].state == WAIT_FREE);
	r->open = false;
	r->poll = NULL;
	w->open_count--;
	lock_drop(&w->lock);
	if (poll) {
		atomic_fetch_sub(&w->waiting, 1);
		fuse_pollhandle_destroy(poll);
	}
}

int watch_open(struct watch *w, const struct viewer *viewer, bool at_end, uint64_t *handle)
{
	struct reader *r = NULL;

	lock_take(&w->lock);
	for (uint32_t i = 0; i < SLOTS && !r; i++)
		if (!w->readers[i].open)
			r = &w->readers[i];
	if (r) {
		r->open = true;
		r->viewer = *viewer;
		r->next = at_end ? events_last(w->events) + 1 : events_oldest(w->events);
		w->open_count++;
	}
	lock_drop(&w->lock);
	if (r && handles_open(w->fs->handles, HANDLE_EVENTS, WATCH_READERS, r, reader_end, handle))
		return 0;
	if (r)
		reader_end(r);
	return -ENFILE;
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

static void *wait_name(const struct reader *r, unsigned i)
{
	uint32_t place = (uint32_t)(r - r->watch->readers) * WATCH_READS + i + 1;

	return (void *)((uintptr_t)r->waits[i].generation << 32 | place);
}

/* Comes with libfuse's lock of the request held. */
static void watch_interrupt(fuse_req_t req, void *name)
{
	struct fs *fs = fuse_req_userdata(req);
	struct watch *w = fs->watch;
	uint32_t place = (uint32_t)(uintptr_t)name - 1;
	bool found = false;

	lock_take(&w->lock);
	if (place < SLOTS * WATCH_READS) {
		struct wait *wait = &w->readers[place / WATCH_READS].waits[place % WATCH_READS];

		found = wait->state != WAIT_FREE && wait->generation == (uintptr_t)name >> 32;
		if (found)
			wait->interrupted = true;
	}
	lock_drop(&w->lock);
	if (found)
		wake(w);
}

/* The request is answered: @n bytes, or a negative errno. The handle is given back before: the release may come at once. */
static void answer(struct watch *w, fuse_req_t req, uint64_t handle, const char *bytes, ssize_t n)
{
	lock_assert_none_held();
	handles_put(w->fs->handles, handle);
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		fuse_reply_buf(req, bytes, (size_t)n);
}

/* A place for a request that waits; NULL with *error. */
static struct wait *wait_begin(struct reader *r, int *error)
{
	struct wait *wait = NULL;

	lock_take(&r->watch->lock);
	*error = r->watch->closed ? ENODEV : EBUSY;
	for (unsigned i = 0; i < WATCH_READS && !wait && !r->watch->closed; i++)
		if (r->waits[i].state == WAIT_FREE)
			wait = &r->waits[i];
	if (wait) {
		wait->state = WAIT_ARMED;
		wait->generation++;
		wait->interrupted = false;
	}
	lock_drop(&r->watch->lock);
	return wait;
}

static void park(struct reader *r, fuse_req_t req, uint64_t handle, size_t size)
{
	struct watch *w = r->watch;
	int error;
	struct wait *wait = wait_begin(r, &error);

	if (!wait) {
		answer(w, req, handle, NULL, -error);
		return;
	}
	wait->req = req;
	wait->handle = handle;
	wait->size = size;
	fuse_req_interrupt_func(req, watch_interrupt, wait_name(r, (unsigned)(wait - r->waits)));
	/* Counted before the ring is looked at: what comes after that look finds it waiting. */
	atomic_fetch_add(&w->waiting, 1);
	lock_take(&w->lock);
	error = wait->interrupted ? EINTR : w->closed ? ENODEV : 0;
	wait->state = error ? WAIT_FREE : WAIT_WAITING;
	bool look = events_last(w->events) >= r->next;
	lock_drop(&w->lock);
	if (error) {
		atomic_fetch_sub(&w->waiting, 1);
		answer(w, req, handle, NULL, -error);
	} else if (look) {
		wake(w);
	}
}

static bool is_closed(struct watch *w, bool *leaving)
{
	lock_take(&w->lock);
	bool closed = w->closed;
	if (leaving)
		*leaving = w->leaving;
	lock_drop(&w->lock);
	return closed;
}

void watch_read(struct watch *w, fuse_req_t req, uint64_t handle, size_t size, bool nonblock)
{
	struct reader *r = handles_take(w->fs->handles, handle, HANDLE_EVENTS);
	char *buffer = loop_scratch();

	if (!r) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	size = size < WATCH_BYTES ? size : WATCH_BYTES;
	ssize_t n = size ? fill(r, buffer, size) : 0;
	if (n || !size)
		answer(w, req, handle, buffer, n);
	else if (nonblock)
		answer(w, req, handle, NULL, is_closed(w, NULL) ? -ENODEV : -EAGAIN);
	else
		park(r, req, handle, size);
}

bool watch_poll(struct reader *r, struct fuse_pollhandle *poll)
{
	struct watch *w = r->watch;
	struct fuse_pollhandle *old = NULL;
	int state = -1;

	if (poll) {
		/* Counted and kept before the ring is looked at, as above. */
		atomic_fetch_add(&w->waiting, 1);
		lock_take(&w->lock);
		old = r->poll;
		r->poll = poll;
		lock_drop(&w->lock);
	}
	if (old) {
		atomic_fetch_sub(&w->waiting, 1);
		fuse_pollhandle_destroy(old);
	}
	for (uint32_t i = 0; state < 0 && i < EVENTS_KEPT / CHUNK; i++) {
		lock_take(&w->lock);
		state = readable_some(r);
		lock_drop(&w->lock);
	}
	return state != 0;
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

static struct wait *take_wait(struct reader *r, int *error)
{
	lock_assert_held(&r->watch->lock);
	for (unsigned i = 0; i < WATCH_READS; i++) {
		struct wait *wait = &r->waits[i];

		if (wait->state != WAIT_WAITING)
			continue;
		*error = wait->interrupted ? EINTR : r->watch->closed ? ENODEV : 0;
		if (!*error && events_last(r->watch->events) < r->next)
			continue;
		wait->state = WAIT_TAKEN;
		return wait;
	}
	return NULL;
}

/* Answers the reads of one reader for which there is something. */
static void serve_reads(struct watch *w, struct reader *r)
{
	for (;;) {
		int error = 0;

		lock_take(&w->lock);
		struct wait *wait = take_wait(r, &error);
		lock_drop(&w->lock);
		if (!wait)
			return;
		ssize_t n = error ? -error : fill(r, w->buffer, wait->size);
		fuse_req_t req = wait->req;
		uint64_t handle = wait->handle;
		lock_take(&w->lock);
		wait->state = n ? WAIT_FREE : WAIT_WAITING;
		lock_drop(&w->lock);
		if (!n)
			continue; /* nothing that this viewer sees: it goes on waiting, and is looked at no more */
		atomic_fetch_sub(&w->waiting, 1);
		answer(w, req, handle, w->buffer, n);
	}
}

static void serve_poll(struct watch *w, struct reader *r)
{
	struct fuse_pollhandle *poll = NULL;
	int state;

	do {
		lock_take(&w->lock);
		state = r->poll ? readable_some(r) : 0;
		if (state > 0) {
			poll = r->poll;
			r->poll = NULL;
		}
		lock_drop(&w->lock);
	} while (state < 0);
	if (poll) {
		atomic_fetch_sub(&w->waiting, 1);
		fuse_lowlevel_notify_poll(poll);
		fuse_pollhandle_destroy(poll);
	}
}

static void *watch_main(void *argument)
{
	struct watch *w = argument;
	struct pollfd over = {.fd = w->over, .events = POLLIN};
	bool leaving;
	uint64_t count;

	pthread_setname_np(pthread_self(), "pfs-events");
	do {
		if (read(w->wake, &count, sizeof(count)) < 0 && errno != EINTR)
			break;
		atomic_store(&w->told, false);
		is_closed(w, &leaving); /* before the last look at who waits */
		for (uint32_t i = 0; i < SLOTS; i++) {
			serve_reads(w, &w->readers[i]);
			if (!leaving)
				serve_poll(w, &w->readers[i]);
		}
		if (!leaving)
			poll(&over, 1, WATCH_PAUSE_MS);
	} while (!leaving);
	return NULL;
}

int watch_start(struct watch *w)
{
	int r = pthread_create(&w->thread, NULL, watch_main, w);

	w->running = r == 0;
	return -r;
}

void watch_close(struct watch *w)
{
	lock_take(&w->lock);
	w->closed = true;
	lock_drop(&w->lock);
	wake(w);
}

void watch_stop(struct watch *w)
{
	uint64_t one = 1;

	lock_take(&w->lock);
	w->closed = w->leaving = true;
	lock_drop(&w->lock);
	if (!w->running)
		return;
	if (write(w->over, &one, sizeof(one)) < 0 || write(w->wake, &one, sizeof(one)) < 0)
		log_error("the readers of events cannot be ended: %s", strerror(errno));
	pthread_join(w->thread, NULL);
	w->running = false;
}
