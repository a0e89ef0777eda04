/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/loop.h"

#include <assert.h>
#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fs/calls.h"
#include "fs/connection.h"
#include "fs/ioctl.h"
#include "fs/log.h"
#include "fs/passthrough.h"
#include "fs/requests.h"
#include "fs/will.h"
#include "store/base/clock.h"

struct loop {
	struct fs *fs;
	pthread_t thread;
	unsigned number;     /* constant: counted from 0 */
	int epoll;           /* of requests, the queue's kick and the end */
	int aside;           /* of the latter two */
	void *scratch;
	bool follows;        /* constant: always moves to a caller's CPU */
	uint32_t cpu;        /* 1 + the CPU that it was moved to, 0 = anywhere. Its own thread's */
	uint32_t elsewhere;  /* requests since, of callers who are not pinned. Its own thread's */
	struct fuse_buf buffer; /* its memory is libfuse's, made at the first request */
};

struct loops {
	unsigned count;
	struct loop at[];
};

static _Thread_local struct loop *self; /* NULL outside loop threads */
static cpu_set_t anywhere;              /* CPUs that the daemon may use; constant once threads run */
static _Atomic uint32_t last_cpu, in_row; /* relaxed: where the last requests came from, and how many in a row */

void *loop_scratch(void)
{
	return self->scratch;
}

static void move_to(struct loop *l, uint32_t cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	if (cpu)
		CPU_SET(cpu - 1, &set);
	if (sched_setaffinity(0, sizeof(set), cpu ? &set : &anywhere) == 0)
		l->cpu = cpu;
	l->elsewhere = 0;
}

static bool one_caller(void)
{
	return atomic_load_explicit(&in_row, memory_order_relaxed) >= LOOP_ALONE;
}

/* A request came from a thread pinned to @cpu - 1; 0: from any other. Who stepped aside for one caller is called back. */
static void note_origin(struct fs *fs, uint32_t cpu)
{
	if (cpu && atomic_load_explicit(&last_cpu, memory_order_relaxed) == cpu) {
		atomic_fetch_add_explicit(&in_row, 1, memory_order_relaxed);
		return;
	}
	bool alone = one_caller();

	atomic_store_explicit(&last_cpu, cpu, memory_order_relaxed);
	atomic_store_explicit(&in_row, 0, memory_order_relaxed);
	if (alone)
		calls_kick(fs->calls);
}

void loop_follow(uint32_t cpu)
{
	bool wanted = cpu && cpu <= CPU_SETSIZE && CPU_ISSET(cpu - 1, &anywhere);

	if (!self)
		return;
	note_origin(self->fs, wanted ? cpu : 0);
	if (!self->follows)
		return;
	if (wanted) {
		self->elsewhere = 0;
		if (cpu != self->cpu)
			move_to(self, cpu);
	} else if (self->cpu && ++self->elsewhere == LOOP_FOLLOW_FOR) {
		move_to(self, 0);
	}
}

static int loop_watch(int epoll, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = EPOLLIN | events, .data.u64 = data};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

/* For the account of a death: an ioctl is called by its operation. */
static uint32_t operation_of(const struct loop *l, uint32_t opcode)
{
	const struct fuse_in_header *header = l->buffer.mem;
	const struct fuse_ioctl_in *in = (const void *)(header + 1);

	if (opcode != FUSE_IOCTL || l->buffer.size < sizeof(*header) + sizeof(*in))
		return opcode;
	return WILL_DOING_CTL + _IOC_NR(in->cmd);
}

static void run_call(struct loop *l, struct call *call)
{
	uint32_t operation = call->operation ? WILL_DOING_CTL + ioctl_nr(call->operation) : FUSE_WRITE;

	will_begins(l->fs->will, l->number, operation, clock_now_ns());
	call->run(l->fs, call);
	will_ends(l->fs->will, l->number);
}

/* One request of the kernel's: false when none is there. The end of the connection ends everything. */
static bool take_request(struct loop *l)
{
	struct fuse_session *session = l->fs->session;
	int n = fuse_session_receive_buf(session, &l->buffer);

	if (n > 0) {
		const struct fuse_in_header *header = l->buffer.mem;

		uint32_t opcode = header->opcode;
		uint64_t began_ns = clock_now_ns();

		/* ioctls say themselves where they come from, and are counted by their operation */
		if (opcode != FUSE_IOCTL)
			note_origin(l->fs, 0);
		connection_note(l->fs, header, (size_t)n);
		will_begins(l->fs->will, l->number, operation_of(l, opcode), began_ns);
		fuse_session_process_buf(session, &l->buffer);
		will_ends(l->fs->will, l->number);
		if (opcode != FUSE_IOCTL)
			requests_count(requests_kind(opcode), clock_now_ns() - began_ns);
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
	if (epoll_wait(!l->follows && one_caller() ? l->aside : l->epoll, &event, 1, patience) == 1) {
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
	self = l;
	requests_enter(l->fs->requests, l->number);
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
			run_call(l, call);
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
	int kick = calls_kick_fd(fs->calls);
	int r;

	l->fs = fs;
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	l->aside = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0 || l->aside < 0 || posix_memalign(&l->scratch, 4096, LOOP_SCRATCH_BYTES) != 0)
		return -ENOMEM;
	memset(l->scratch, 0, LOOP_SCRATCH_BYTES);
	r = loop_watch(l->epoll, fuse_session_fd(fs->session), EPOLLEXCLUSIVE, 0);
	r = r ? r : loop_watch(l->epoll, fs->leave, 0, 0);
	r = r ? r : loop_watch(l->epoll, kick, EPOLLEXCLUSIVE, 1);
	r = r ? r : loop_watch(l->aside, fs->leave, 0, 0);
	r = r ? r : loop_watch(l->aside, kick, EPOLLEXCLUSIVE, 1);
	return r ? r : -pthread_create(&l->thread, NULL, loop_main, l);
}

static void loop_end(struct loop *l)
{
	if (l->epoll >= 0)
		close(l->epoll);
	if (l->aside >= 0)
		close(l->aside);
	free(l->scratch);
	free(l->buffer.mem);
}

int loops_start(struct fs *fs, struct loops **ret)
{
	unsigned threads = (unsigned)fs->config->loop_threads;
	struct loops *loops = calloc(1, sizeof(*loops) + threads * sizeof(loops->at[0]));
	int r;

	assert(threads <= WILL_LOOPS);
	if (!loops)
		return -ENOMEM;
	*ret = loops;
	r = answer_init(fs);
	if (!r)
		passthrough_begin(fs->passthrough);
	if (sched_getaffinity(0, sizeof(anywhere), &anywhere))
		CPU_ZERO(&anywhere); /* more CPUs than the set holds: nobody is followed */
	while (!r && loops->count < threads) {
		loops->at[loops->count].number = loops->count;
		loops->at[loops->count].follows = loops->count < (threads + 1) / 2;
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
