/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fs/calls.h"
#include "fs/ioctl.h"
#include "fs/log.h"

struct loop {
	struct fs *fs;
	pthread_t thread;
	int epoll;
	void *scratch;
	struct fuse_buf buffer; /* its memory is libfuse's, made at the first request */
};

struct loops {
	unsigned count;
	struct loop at[];
};

static _Thread_local void *scratch;

void *loop_scratch(void)
{
	return scratch;
}

static int loop_watch(struct loop *l, int fd, uint32_t events)
{
	struct epoll_event event = {.events = EPOLLIN | events};

	return epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

/* One request of the kernel's: false when none is there. The end of the connection ends everything. */
static bool take_request(struct loop *l)
{
	struct fuse_session *session = l->fs->session;
	int n = fuse_session_receive_buf(session, &l->buffer);

	if (n > 0) {
		fuse_session_process_buf(session, &l->buffer);
		return true;
	}
	if (n == 0 || fuse_session_exited(session)) {
		fs_end(l->fs);
		return false;
	}
	if (n != -EAGAIN && n != -EINTR) {
		log_error("/dev/fuse cannot be read: %s", strerror(-n));
		fs_end(l->fs);
	}
	return false;
}

static void sleep_until_work(struct loop *l)
{
	struct epoll_event event;
	int patience = calls_patience_ms(l->fs->calls);

	/* After the end nothing comes from the kernel, and its descriptor is readable for ever: wait for the others. */
	if (fuse_session_exited(l->fs->session)) {
		struct pollfd leave = {.fd = l->fs->leave, .events = POLLIN};

		poll(&leave, 1, patience >= 0 && patience < 10 ? patience : 10);
		return;
	}
	if (epoll_wait(l->epoll, &event, 1, patience) == 1) {
		uint64_t count;

		/* Whoever comes first takes the kick back; the others find the queue as it is. */
		if (event.data.u64 && read(calls_kick_fd(l->fs->calls), &count, sizeof(count)) < 0 && errno != EAGAIN)
			log_error("the queue's event cannot be read: %s", strerror(errno));
	}
}

static void *loop_main(void *argument)
{
	struct loop *l = argument;
	struct calls *calls = l->fs->calls;
	unsigned in_a_row = 0;

	pthread_setname_np(pthread_self(), "pfs-loop");
	scratch = l->scratch;
	while (!atomic_load_explicit(&l->fs->leaving, memory_order_relaxed)) {
		struct call *call;

		calls_wake(calls);
		if ((in_a_row < LOOP_REQUESTS || !calls_queued(calls)) && take_request(l)) {
			in_a_row++;
			continue;
		}
		in_a_row = 0;
		call = calls_next(calls);
		if (call)
			ioctl_run(l->fs, call);
		else
			sleep_until_work(l);
	}
	return NULL;
}

/* The first request decides how everything after it is read: alone, with memory of its own. */
static int answer_init(struct fs *fs)
{
	struct loop l = {.fs = fs};
	int r = 0;

	while (!atomic_load(&fs->ready) && !r) {
		struct pollfd fds[] = {
			{.fd = fuse_session_fd(fs->session), .events = POLLIN}, {.fd = fs->over, .events = POLLIN}};

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			r = -errno;
		else if (fds[1].revents)
			r = -ENODEV;
		else
			take_request(&l);
	}
	free(l.buffer.mem);
	return r;
}

static int loop_start(struct fs *fs, struct loop *l)
{
	struct epoll_event kick = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = 1};
	int r;

	l->fs = fs;
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0 || posix_memalign(&l->scratch, 4096, LOOP_SCRATCH_BYTES) != 0)
		return -ENOMEM;
	memset(l->scratch, 0, LOOP_SCRATCH_BYTES);
	r = loop_watch(l, fuse_session_fd(fs->session), EPOLLEXCLUSIVE);
	if (!r)
		r = loop_watch(l, fs->leave, 0);
	if (!r)
		r = epoll_ctl(l->epoll, EPOLL_CTL_ADD, calls_kick_fd(fs->calls), &kick) == 0 ? 0 : -errno;
	return r ? r : -pthread_create(&l->thread, NULL, loop_main, l);
}

static void loop_end(struct loop *l)
{
	if (l->epoll >= 0)
		close(l->epoll);
	free(l->scratch);
	free(l->buffer.mem);
}

int loops_start(struct fs *fs, struct loops **ret)
{
	unsigned threads = (unsigned)fs->config->loop_threads;
	struct loops *loops = calloc(1, sizeof(*loops) + threads * sizeof(loops->at[0]));
	int fd = fuse_session_fd(fs->session);
	int r;

	if (!loops)
		return -ENOMEM;
	*ret = loops;
	r = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0 ? answer_init(fs) : -errno;
	while (!r && loops->count < threads) {
		r = loop_start(fs, &loops->at[loops->count]);
		if (r)
			loop_end(&loops->at[loops->count]);
		else
			loops->count++;
	}
	return r;
}

void loops_join(struct loops **lp)
{
	struct loops *loops = *lp;

	*lp = NULL;
	for (unsigned i = 0; loops && i < loops->count; i++) {
		pthread_join(loops->at[i].thread, NULL);
		loop_end(&loops->at[i]);
	}
	free(loops);
}
