/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/doorman.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fs/calls.h"
#include "fs/health.h"
#include "fs/keeper.h"
#include "fs/log.h"
#include "fs/mount.h"
#include "fs/namespaces.h"
#include "fs/process.h"
#include "fs/watch.h"
#include "fs/will.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/import.h"
#include "store/session.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define MAX_GROUPS_OF_PEER 1024
#define LAST_WORD_S 2 /* after the parent's death: what has not ended by then is ended by SIGALRM */

enum guest_kind {
	GUEST_LISTENER,
	GUEST_TICK,
	GUEST_POPULATED,
	GUEST_KEEPER,
	GUEST_STOP,
	GUEST_MOUNTS,
	GUEST_CONNECTION,
	GUEST_PROCESS
};

/* Something in the epoll set. */
struct guest {
	enum guest_kind kind;
	int fd;
	pid_t pid;          /* PROCESS: 0 = unknown here, of another pid namespace */
	unsigned sessions;  /* PROCESS: that name it */
	uint64_t deadline_ns;      /* CONNECTION */
	struct guest *next, *prev; /* CONNECTION, PROCESS: the list of all such */
};

/* A session that is open, or has something in quarantine: it goes when both processes are gone, or is forgotten when nothing waits for them. */
struct attached {
	uint64_t number;
	char space[HOST_MAX_NAME + 1];
	struct guest *client; /* that attached it; NULL: it is gone */
	struct guest *guard;  /* NULL: it is gone, or there is none */
};

struct doorman {
	struct fs *fs;
	int epoll;
	pthread_t thread;
	bool running;
	struct guest listener, tick, populated, keeper, stop;
	struct guest mounts; /* the kernel's list of them: has something to say when it changes */
	struct guest list;    /* head of a ring; the thread's own */
	unsigned connections; /* the thread's own */
	struct attached *sessions; /* the thread's own, in no order */
	unsigned session_count, session_capacity;
	struct health *health; /* the thread's own */
};

static int watch(struct doorman *d, struct guest *guest)
{
	struct epoll_event event = {
		.events = guest->kind == GUEST_MOUNTS ? EPOLLPRI : EPOLLIN, .data.ptr = guest};

	return epoll_ctl(d->epoll, EPOLL_CTL_ADD, guest->fd, &event) == 0 ? 0 : -errno;
}

static void guest_end(struct doorman *d, struct guest *guest)
{
	if (guest->kind == GUEST_CONNECTION)
		d->connections--;
	guest->prev->next = guest->next;
	guest->next->prev = guest->prev;
	/* Closing would not take a descriptor out of the set of which the parent has a copy. */
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, guest->fd, NULL);
	close(guest->fd);
	free(guest);
}

/* Takes @fd over, on failure too, which is NULL with errno. */
static struct guest *guest_new(struct doorman *d, enum guest_kind kind, int fd)
{
	struct guest *guest = calloc(1, sizeof(*guest));
	int r = -ENOMEM;

	if (guest) {
		guest->kind = kind;
		guest->fd = fd;
		r = watch(d, guest);
	}
	if (r) {
		close(fd);
		free(guest);
		errno = -r;
		return NULL;
	}
	guest->next = &d->list;
	guest->prev = d->list.prev;
	guest->prev->next = guest;
	d->list.prev = guest;
	d->connections += kind == GUEST_CONNECTION;
	return guest;
}

/* ---- sessions and their processes ------------------------------------------------------------------------------ */

/* A process that attaches again and again, or guards many, costs one descriptor: while it lives nobody else has its pid. */
static struct guest *process_find(struct doorman *d, pid_t pid)
{
	for (struct guest *g = d->list.next; pid > 0 && g != &d->list; g = g->next)
		if (g->kind == GUEST_PROCESS && g->pid == pid && !process_ended(g->fd))
			return g;
	return NULL;
}

/* That of @pidfd, which is taken over. NULL with errno. */
static struct guest *process_of(struct doorman *d, pid_t pid, int pidfd)
{
	struct guest *guest = process_find(d, pid);

	if (guest && !process_ended(pidfd)) { /* both live: one process */
		close(pidfd);
		return guest;
	}
	guest = guest_new(d, GUEST_PROCESS, pidfd);
	if (guest)
		guest->pid = pid;
	return guest;
}

/* One session less names it, NULL: none did. The last one lets go of the descriptor. */
static void process_leave(struct doorman *d, struct guest *guest)
{
	if (guest && --guest->sessions == 0)
		guest_end(d, guest);
}

static void drop_guard(struct doorman *d, struct attached *a)
{
	if (!a->guard)
		return;
	keeper_send(d->fs->keeper, KEEPER_DROP, "guard", a->space, a->number, -1);
	process_leave(d, a->guard);
	a->guard = NULL;
}

/* Nothing waits for its processes any more. The last one takes its place. */
static void forget_session(struct doorman *d, struct attached *a)
{
	drop_guard(d, a);
	keeper_send(d->fs->keeper, KEEPER_DROP, "session", a->space, a->number, -1);
	process_leave(d, a->client);
	*a = d->sessions[--d->session_count];
}

static void forget_ended(struct doorman *d)
{
	for (unsigned i = d->session_count; i-- > 0;)
		if (!host_process_awaited(d->fs->host, d->sessions[i].number))
			forget_session(d, &d->sessions[i]);
}

/* For one more. Of those that nothing waits for there are never more than of the others, or 16. */
static int sessions_room(struct doorman *d)
{
	if (d->session_count < d->session_capacity)
		return 0;
	forget_ended(d);
	if (d->session_count < d->session_capacity / 2) /* else it would soon look through all of them again */
		return 0;
	unsigned capacity = d->session_capacity ? 2 * d->session_capacity : 16;
	struct attached *more = realloc(d->sessions, capacity * sizeof(*more));

	if (!more)
		return -ENOMEM;
	d->sessions = more;
	d->session_capacity = capacity;
	return 0;
}

/* Of a session that is new here. Takes both descriptors over, on failure too; @guard_fd -1: it has no guard. There is room for it. */
static int add_session(struct doorman *d, const char *space, uint64_t number, pid_t pid, int pidfd, pid_t guard_pid, int guard_fd)
{
	struct attached *a = &d->sessions[d->session_count];
	int r = 0;

	*a = (struct attached){.number = number};
	snprintf(a->space, sizeof(a->space), "%s", space);
	a->client = process_of(d, pid, pidfd);
	if (!a->client) {
		r = -errno;
		closep(&guard_fd);
		return r;
	}
	a->client->sessions++;
	if (guard_fd >= 0) {
		a->guard = process_of(d, guard_pid, guard_fd);
		r = a->guard ? 0 : -errno;
	}
	if (a->guard)
		a->guard->sessions++;
	if (r)
		process_leave(d, a->client);
	else
		d->session_count++;
	return r;
}

/* The parent has the descriptors under each session. The guard's goes first: no death leaves its client's there without it. */
static int keep_session(struct doorman *d, struct attached *a)
{
	int r = a->guard ? keeper_send(d->fs->keeper, KEEPER_KEEP, "guard", a->space, a->number, a->guard->fd) : 0;

	return r ? r : keeper_send(d->fs->keeper, KEEPER_KEEP, "session", a->space, a->number, a->client->fd);
}

int doorman_watch(struct doorman *d, const char *space, uint64_t number, int pidfd, int guard_fd)
{
	int r = sessions_room(d);

	if (!r)
		return add_session(d, space, number, process_pid(pidfd), pidfd, guard_fd >= 0 ? process_pid(guard_fd) : 0, guard_fd);
	close(pidfd);
	closep(&guard_fd);
	return r;
}

void doorman_forget(struct doorman *d, const char *space, uint64_t number)
{
	keeper_send(d->fs->keeper, KEEPER_DROP, "session", space, number, -1);
	keeper_send(d->fs->keeper, KEEPER_DROP, "guard", space, number, -1);
}

struct doorman *doorman_new(struct fs *fs, int listener)
{
	struct doorman *d = calloc(1, sizeof(*d));
	struct itimerspec second = {{1, 0}, {1, 0}};

	if (!d) {
		close(listener);
		return NULL;
	}
	d->fs = fs;
	d->list.next = d->list.prev = &d->list;
	d->health = health_new();
	d->epoll = epoll_create1(EPOLL_CLOEXEC);
	d->listener = (struct guest){.kind = GUEST_LISTENER, .fd = listener};
	d->keeper = (struct guest){.kind = GUEST_KEEPER, .fd = fs->keeper};
	d->tick = (struct guest){.kind = GUEST_TICK, .fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
	d->populated = (struct guest){.kind = GUEST_POPULATED, .fd = fs->populated};
	d->stop = (struct guest){.kind = GUEST_STOP, .fd = eventfd(0, EFD_CLOEXEC)};
	d->mounts = (struct guest){.kind = GUEST_MOUNTS, .fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC)};
	fcntl(listener, F_SETFL, O_NONBLOCK);
	if (!d->health || d->epoll < 0 || d->tick.fd < 0 || d->stop.fd < 0 || timerfd_settime(d->tick.fd, 0, &second, NULL) != 0 ||
		watch(d, &d->listener) || watch(d, &d->keeper) || watch(d, &d->tick) || watch(d, &d->populated) ||
		watch(d, &d->stop) || (d->mounts.fd >= 0 && watch(d, &d->mounts)))
		doorman_free(&d);
	return d;
}

void doorman_free(struct doorman **dp)
{
	struct doorman *d = *dp;

	*dp = NULL;
	if (!d)
		return;
	assert(!d->running);
	while (d->list.next != &d->list)
		guest_end(d, d->list.next);
	closep(&d->listener.fd);
	closep(&d->tick.fd);
	closep(&d->stop.fd);
	closep(&d->mounts.fd);
	closep(&d->epoll);
	free(d->sessions);
	health_free(&d->health);
	free(d);
}

/* ---- welcoming ----------------------------------------------------------------------------------------------- */

struct peer {
	struct ucred who;
	gid_t groups[MAX_GROUPS_OF_PEER];
	int group_count;
	int pidfd;
};

static int peer_identify(int fd, struct peer *peer, struct why *why)
{
	socklen_t size = sizeof(peer->who);

	peer->pidfd = -1;
	peer->group_count = 0;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer->who, &size) != 0)
		return why_set(why, errno, "the peer's credentials are not told: %s", strerror(errno));
	size = sizeof(peer->groups);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &size) == 0)
		peer->group_count = (int)(size / sizeof(gid_t));
	size = sizeof(peer->pidfd);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &peer->pidfd, &size) != 0) {
		int error = errno; /* of a kernel that knows the option, when the process is gone already */

		peer->pidfd = peer->who.pid > 0 ? (int)syscall(SYS_pidfd_open, peer->who.pid, 0) : -1;
		if (peer->pidfd < 0)
			return why_set(why, ESRCH,
				"no descriptor of the peer's process is to be had (pid %d: %s); without it "
				"its end would not be noticed",
				(int)peer->who.pid, strerror(error));
	}
	fcntl(peer->pidfd, F_SETFD, FD_CLOEXEC);
	return 0;
}

static void send_welcome(int fd, const struct why *why, int segment, int buffer)
{
	struct pfs_welcome w = {.status = -why->error};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec iov = {&w, sizeof(w)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[2] = {segment, buffer};

	snprintf(w.text, sizeof(w.text), "%.*s", (int)sizeof(w.text) - 1, why->text);
	if (!why->error && segment >= 0) {
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(&control.header), fds, sizeof(fds));
	}
	if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("a client did not wait for its welcome: %s", strerror(errno));
}

/* The descriptor that came along, -1: none, or more than one. The kernel closes what there is no room for. */
static int received_descriptor(struct msghdr *message)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(message);
	int fd;

	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(fd)))
		return -1;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (message->msg_flags & MSG_CTRUNC)
		closep(&fd);
	return fd;
}

static int check_hello(const struct pfs_hello *hello, ssize_t bytes, struct why *why)
{
	if (bytes != sizeof(*hello))
		return why_set(why, EINVAL, "hello: %zd bytes came, it has %zu", bytes, sizeof(*hello));
	if (hello->abi_version != PFS_ABI_VERSION)
		return why_set(why, EPROTONOSUPPORT, "hello: the client speaks version %u, this daemon %u",
			hello->abi_version, PFS_ABI_VERSION);
	if (hello->kind != PFS_HELLO_ATTACH && hello->kind != PFS_HELLO_IMPORT)
		return why_set(why, EINVAL, "hello: there is no kind %u", hello->kind);
	return 0;
}

/* Looks at the hello, which stays where it is, for a descriptor may lie with it: 0, -EAGAIN (not there yet) or a refusal. */
static int look_at_hello(int fd, struct pfs_hello *hello, struct why *why)
{
	ssize_t n = recv(fd, hello, sizeof(*hello), MSG_DONTWAIT | MSG_TRUNC | MSG_PEEK);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : why_set(why, errno, "hello: %s", strerror(errno));
	return check_hello(hello, n, why);
}

/* The descriptor that lies with the hello. Of what is not fetched the kernel lets go by itself, and without waiting for the file
 * system that it is of, as close(2) might. */
static int fetch_descriptor(int fd, int *descriptor, struct why *why)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_LEN(sizeof(int))]; /* no room for a second one */
	} control;
	struct pfs_hello hello;
	struct iovec iov = {&hello, sizeof(hello)};
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

	if (recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return why_set(why, errno, "hello: %s", strerror(errno));
	*descriptor = received_descriptor(&message);
	if (*descriptor >= 0)
		return 0;
	return why_set(why, EBADF, "hello: %s", message.msg_flags & MSG_CTRUNC ?
		"its descriptors could not be received: one is asked for, and this process must have room for it" :
		"one descriptor is to come along, and none did");
}

/* A hello that was only looked at, with what lies with it: unread it would make the peer's connection one that was reset. */
static void leave_nothing(int fd)
{
	char byte;

	while (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) < 0 && errno == EINTR) {
	}
}

/* A descriptor is taken from those alone who have been offered that. */
static int admit_import(struct doorman *d, int fd, const struct peer *peer, const struct pfs_hello *hello, struct why *why)
{
	int descriptor = -1;
	int r = import_offered(d->fs->host, hello->token, peer->who.uid, why);

	r = r ? r : fetch_descriptor(fd, &descriptor, why);
	return r ? r : import_bring(d->fs->host, hello->token, peer->who.uid, descriptor, why);
}

/* Its client and its guard are watched, and the parent has their descriptors. Takes the peer's. */
static int watch_session(struct doorman *d, struct session *session, struct peer *peer, struct why *why)
{
	pid_t guard;
	cleanup(closep) int guard_fd = session_take_guard(session, &guard);

	int r = sessions_room(d);

	if (!r)
		r = add_session(d, space_name(session_space(session)), session_number(session), peer->who.pid, STEAL_FD(peer->pidfd), guard,
			STEAL_FD(guard_fd));
	if (!r) {
		r = keep_session(d, &d->sessions[d->session_count - 1]);
		if (r)
			forget_session(d, &d->sessions[d->session_count - 1]);
	}
	return r ? why_set(why, -r, "the process cannot be watched: %s", strerror(-r)) : 0;
}

/* On success the process is watched and the parent has its descriptor. */
static int admit(struct doorman *d, struct peer *peer, const struct pfs_hello *hello, struct session **session,
	int *segment, int *buffer, struct why *why)
{
	struct host *host = d->fs->host;
	int r = session_welcome(host, hello->token, peer->who.pid, process_number(peer->pidfd, peer->who.pid), peer->who.uid,
		peer->who.gid, peer->groups, peer->group_count, session, segment, buffer, why);

	if (r)
		return r;
	r = watch_session(d, *session, peer, why);
	if (r) {
		session_release(*session);
		session_unref(session);
		return r;
	}
	killpoint(KILLPOINT_ATTACH_KEPT);
	return 0;
}

/* False: the connection stays, its hello has not come. */
static bool serve_connection(struct doorman *d, int fd)
{
	struct pfs_hello hello;
	struct why why = WHY_INIT;
	struct peer peer = {.pidfd = -1};
	struct session *session = NULL;
	int segment = -1, buffer = -1;
	int r = look_at_hello(fd, &hello, &why);

	if (r == -EAGAIN)
		return false;
	if (!r)
		r = peer_identify(fd, &peer, &why);
	if (!r && hello.kind == PFS_HELLO_IMPORT)
		r = admit_import(d, fd, &peer, &hello, &why);
	else if (!r)
		r = admit(d, &peer, &hello, &session, &segment, &buffer, &why);
	if (r)
		log_debug("a client (pid %d, uid %u) was refused: %s", (int)peer.who.pid, peer.who.uid, why.text);
	leave_nothing(fd);
	send_welcome(fd, &why, segment, buffer);
	session_unref(&session);
	closep(&peer.pidfd);
	return true;
}

/* The connection that has been silent longest makes room: clients speak at once. */
static void dismiss_oldest(struct doorman *d)
{
	struct guest *g = d->list.next;
	struct why why = WHY_INIT;

	while (g->kind != GUEST_CONNECTION)
		g = g->next;
	if (!serve_connection(d, g->fd)) {
		why_set(&why, EBUSY, "%u connections are open that have not shown a token", d->connections);
		send_welcome(g->fd, &why, -1, -1);
	}
	guest_end(d, g);
}

static void accept_connections(struct doorman *d)
{
	int fd;

	while ((fd = accept4(d->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		struct guest *guest;

		if (d->connections >= d->fs->config->max_connections)
			dismiss_oldest(d);
		guest = guest_new(d, GUEST_CONNECTION, fd);
		if (guest)
			guest->deadline_ns = clock_now_ns() + d->fs->config->hello_ms * 1000000;
	}
	if (errno == EMFILE || errno == ENFILE) {
		log_warning("a connection cannot be accepted: %s", strerror(errno));
		usleep(100000); /* it still waits there: not a spin */
	}
}

/* ---- deaths, ticks, the parent ------------------------------------------------------------------------------- */

static void client_gone(struct doorman *d, struct attached *a)
{
	if (a->guard)
		host_client_gone(d->fs->host, a->number);
	else
		host_process_gone(d->fs->host, a->number);
	calls_end_session(d->fs->calls, a->number);
	process_leave(d, a->client);
	a->client = NULL;
}

static void guard_gone(struct doorman *d, struct attached *a)
{
	drop_guard(d, a);
	if (a->client)
		host_guard_gone(d->fs->host, a->number);
	else
		host_process_gone(d->fs->host, a->number);
}

static void process_gone(struct doorman *d, struct guest *guest)
{
	unsigned attached = 0, guarded = 0;

	guest->sessions++; /* ours: it is there until the end of this */
	for (unsigned i = d->session_count; i-- > 0;) {
		struct attached *a = &d->sessions[i];

		if (a->guard == guest) {
			guarded++;
			guard_gone(d, a);
		}
		if (a->client == guest) {
			attached++;
			client_gone(d, a);
		}
		if (!a->client && (!a->guard || !host_process_awaited(d->fs->host, a->number)))
			forget_session(d, a);
	}
	log_debug("process %d is gone, with %u sessions; it was the guard of %u", (int)guest->pid, attached, guarded);
	process_leave(d, guest);
}

static void expire_connections(struct doorman *d)
{
	uint64_t now = clock_now_ns();

	for (struct guest *g = d->list.next, *next; g != &d->list; g = next) {
		next = g->next;
		if (g->kind == GUEST_CONNECTION && now >= g->deadline_ns) {
			struct why why = WHY_INIT;

			why_set(&why, ETIMEDOUT, "no hello came within %u ms", (unsigned)d->fs->config->hello_ms);
			send_welcome(g->fd, &why, -1, -1);
			guest_end(d, g);
		}
	}
}

static void tick(struct doorman *d)
{
	uint64_t count;

	if (read(d->tick.fd, &count, sizeof(count)) < 0)
		return;
	host_maintain(d->fs->host);
	namespaces_save_again(d->fs->namespaces);
	fs_tell_populating(d->fs);
	health_look(d->health, d->fs);
	expire_connections(d);
	atomic_fetch_add_explicit(&d->fs->will->beats, 1, memory_order_relaxed);
}

/* The parent takes a death for the OOM killer's while memory is populated: it hears of the end at once. */
static void hear_populated(struct doorman *d)
{
	uint64_t count;

	if (read(d->populated.fd, &count, sizeof(count)) == sizeof(count))
		fs_tell_populating(d->fs);
}

/* The parent was killed: nobody else takes the mount away, and nobody else ends a process that hangs. */
static void parent_gone(struct doorman *d)
{
	log_by_itself();
	log_error("the parent is gone; unmounting");
	alarm(LAST_WORD_S);
	atomic_store(&d->fs->orphaned, true);
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, d->keeper.fd, NULL);
	mount_remove(d->fs->config, d->fs->device, false);
	fs_end(d->fs);
}

/* A lazy unmount: who has files open keeps the connection, and would wait at `events` for ever. */
static void mounts_changed(struct doorman *d)
{
	if (mount_anywhere(d->fs->device))
		return;
	log_debug("%s is unmounted", d->fs->config->mountpoint);
	watch_close(d->fs->watch);
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, d->mounts.fd, NULL);
}

static void hear_parent(struct doorman *d)
{
	struct keeper_message m;
	int fd;
	int r = keeper_receive(d->keeper.fd, &m, &fd);

	if (fd >= 0)
		close(fd);
	if (r == 0)
		parent_gone(d);
	else if (r == 1 && m.kind == KEEPER_STOP) {
		if (m.number)
			atomic_store(&d->fs->hurry, true);
		atomic_store(&d->fs->stop, true);
		fs_end(d->fs);
	} else if (r == 1 && m.kind == KEEPER_HANDOVER) {
		atomic_store(&d->fs->handover, true);
		fs_end(d->fs);
	}
}

static void *doorman_main(void *argument)
{
	struct doorman *d = argument;

	pthread_setname_np(pthread_self(), "pfs-door");
	for (;;) {
		struct epoll_event event;

		/* One at a time: what it ends may be another's guest. */
		if (epoll_wait(d->epoll, &event, 1, -1) < 1)
			continue;
		struct guest *guest = event.data.ptr;
		switch (guest->kind) {
		case GUEST_LISTENER:
			accept_connections(d);
			break;
		case GUEST_TICK:
			tick(d);
			break;
		case GUEST_MOUNTS:
			mounts_changed(d);
			break;
		case GUEST_POPULATED:
			hear_populated(d);
			break;
		case GUEST_KEEPER:
			hear_parent(d);
			break;
		case GUEST_CONNECTION:
			if (serve_connection(d, guest->fd))
				guest_end(d, guest);
			break;
		case GUEST_PROCESS:
			process_gone(d, guest);
			break;
		case GUEST_STOP:
			return NULL;
		}
	}
}

int doorman_start(struct doorman *d)
{
	int r = pthread_create(&d->thread, NULL, doorman_main, d);

	d->running = r == 0;
	return -r;
}

void doorman_stop(struct doorman *d)
{
	uint64_t one = 1;

	if (!d->running)
		return;
	if (write(d->stop.fd, &one, sizeof(one)) < 0)
		log_error("the doorman cannot be stopped: %s", strerror(errno));
	pthread_join(d->thread, NULL);
	d->running = false;
}
