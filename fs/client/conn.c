/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections: open ctl, ATTACH, fetch the two descriptors over the socket, map them; and their references.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/client/client.h"

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int socket_address(struct pfs_session *session, const char *path, struct sockaddr_un *ret)
{
	const char *name = strrchr(path, '/');
	int n;

	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (!session->socket_dir || !access(path, F_OK))
		n = snprintf(ret->sun_path, sizeof(ret->sun_path), "%s", path);
	else
		n = snprintf(
			ret->sun_path, sizeof(ret->sun_path), "%s/%s", session->socket_dir, name ? name + 1 : path);
	if (n <= 0 || (size_t)n >= sizeof(ret->sun_path))
		return say(ENAMETOOLONG, "the socket's path has %d bytes, at most %zu are possible", n,
			sizeof(ret->sun_path) - 1);
	return 0;
}

/* @fd (-1: none) goes along. */
static int send_hello(int sock, const struct pfs_hello *hello, int fd)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)hello, sizeof(*hello)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	return sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(*hello) ? 0 : -1;
}

static int await_welcome(int sock, uint64_t until_ms)
{
	for (;;) {
		struct pollfd p = {.fd = sock, .events = POLLIN};
		uint64_t now = now_ms();
		int r = poll(&p, 1, now < until_ms ? (int)(until_ms - now) : 0);

		if (r > 0)
			return 0;
		if (r == 0)
			return say(ETIMEDOUT, "the daemon did not answer on its socket in time");
		if (errno != EINTR)
			return say(errno, "poll: %s", strerror(errno));
	}
}

/* Waits for the welcome; *ret_fds are the two descriptors, unless it is NULL. */
static int receive_welcome(int sock, uint64_t until_ms, struct pfs_welcome *welcome, int *ret_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = {welcome, sizeof(*welcome)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = ret_fds ? control.bytes : NULL,
		.msg_controllen = ret_fds ? sizeof(control.bytes) : 0,
	};
	struct cmsghdr *c;
	ssize_t n;
	int fds[2], r;

	r = await_welcome(sock, until_ms);
	if (r)
		return r;
	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return say(errno, "the daemon's socket: %s", strerror(errno));
	c = ret_fds ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(fds))) {
		memcpy(fds, CMSG_DATA(c), sizeof(fds));
	} else if (n == (ssize_t)sizeof(*welcome) && welcome->status) {
		welcome->text[sizeof(welcome->text) - 1] = '\0';
		return say(-welcome->status, "the daemon refused %s: %s", ret_fds ? "the session" : "the import", welcome->text);
	} else if (n == (ssize_t)sizeof(*welcome) && !ret_fds) {
		return 0;
	} else {
		return say(EBADMSG, "the daemon's welcome has %zd bytes and not two descriptors", n);
	}
	if (n != (ssize_t)sizeof(*welcome) || welcome->status) {
		close(fds[0]);
		close(fds[1]);
		return say(EBADMSG, "the daemon's welcome has %zd bytes and status %d", n, welcome->status);
	}
	memcpy(ret_fds, fds, sizeof(fds));
	return 0;
}

int conn_show_token(struct pfs_session *session, const char *path, const struct pfs_hello *hello, int fd,
	uint64_t until_ms, int *ret_fds)
{
	struct pfs_welcome welcome = {0};
	struct sockaddr_un address;
	int sock, r;

	r = socket_address(session, path, &address);
	if (r)
		return r;
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return say(errno, "socket: %s", strerror(errno));
	if (connect(sock, (struct sockaddr *)&address, sizeof(address)) || send_hello(sock, hello, fd))
		r = say(errno, "%s: %s", address.sun_path, strerror(errno));
	else
		r = receive_welcome(sock, until_ms, &welcome, ret_fds);
	close(sock);
	return r;
}

static int fetch_descriptors(struct pfs_session *session, struct conn *conn, const struct pfs_attach *attach, uint64_t until_ms,
	int ret_fds[2])
{
	struct pfs_hello hello = {.abi_version = PFS_ABI_VERSION, .kind = PFS_HELLO_ATTACH};
	int r, lost;

	memcpy(hello.token, attach->token, sizeof(hello.token));
	r = conn_show_token(session, attach->socket_path, &hello, -1, until_ms, ret_fds);
	lost = r ? call_judge(session, conn) : 0; /* the socket's errors do not say whether the daemon went */
	return lost ? lost : r;
}

/* What came over the socket must be what ATTACH promised: a mapping must never end before its stated length. */
static int check_descriptors(const struct pfs_attach *attach, const int fds[2])
{
	static const char *const names[2] = {"segment", "call buffer"};
	const uint64_t sizes[2] = {attach->segment_bytes, attach->call_buffer_bytes};

	for (int i = 0; i < 2; i++) {
		int seals = fcntl(fds[i], F_GET_SEALS);
		struct stat st;

		if (fstat(fds[i], &st) || (uint64_t)st.st_size < sizes[i] || sizes[i] == 0)
			return say(EBADMSG, "the %s's descriptor has %lld bytes, ATTACH promised %llu", names[i],
				(long long)st.st_size, (unsigned long long)sizes[i]);
		if (seals < 0 || !(seals & F_SEAL_SHRINK))
			return say(EBADMSG, "the %s's descriptor is not sealed against shrinking", names[i]);
	}
	return 0;
}

static int map_descriptors(struct pfs_session *session, struct conn *conn, const int fds[2])
{
	void *p;
	int r = mapping_get(session, fds[0], conn->segment_bytes, &conn->mapping);

	if (r)
		return r;
	conn->segment = conn->mapping->at;
	/* Populated: the first batches would pay for its pages otherwise. */
	p = mmap(NULL, conn->buffer_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fds[1], 0);
	if (p == MAP_FAILED)
		return say(errno, "mapping %llu bytes of call buffer: %s", (unsigned long long)conn->buffer_bytes,
			strerror(errno));
	conn->buffer = p;
	if (areas_init(&conn->areas, conn->buffer_bytes))
		return say(ENOMEM, "no memory for the areas of a call buffer of %llu bytes",
			(unsigned long long)conn->buffer_bytes);
	return 0;
}

/* Waiting for the floor ends in time for what follows. */
static int ask(struct pfs_session *session, struct conn *conn, struct pfs_attach *a, uint64_t until_ms)
{
	uint64_t now = now_ms();

	return call_run_grown(session, conn, PFS_IOC_ATTACH, &a->call, sizeof(*a), PFS_BYTES_ATTACH_1, a->guard_pid != 0, 0,
		now < until_ms ? (uint32_t)((until_ms - now) * 3 / 4) + 1 : 1);
}

static int attach(struct pfs_session *session, struct conn *conn, uint64_t until_ms)
{
	const struct pfs_options *o = &session->options;
	struct pfs_attach a = {
		.abi_version = PFS_ABI_VERSION,
		.rank = o->rank,
		.node = o->node,
		.flags = o->wait_prewarm ? PFS_ATTACH_WAIT_PREWARM : 0,
		.call_buffer_bytes = o->call_buffer_bytes,
		.guard_pid = o->guard_pid,
	};
	int fds[2], r;

	memcpy(a.client_id, session->client_id, sizeof(a.client_id));
	r = ask(session, conn, &a, until_ms);
	if (r == -ESRCH && a.guard_pid && session->current) { /* the guard is gone by now, and its number may become another's */
		conn->guard_left_out = a.guard_pid;
		a.guard_pid = session->options.guard_pid = 0;
		r = ask(session, conn, &a, until_ms);
	}
	if (r)
		return r;
	a.socket_path[sizeof(a.socket_path) - 1] = '\0';
	if (a.classes == 0 || a.classes > PFS_MAX_CLASSES || a.page_tokens == 0 || a.state_mask >> a.classes)
		return say(EBADMSG, "ATTACH answered %u classes, state classes %#x and pages of %u tokens", a.classes,
			a.state_mask, a.page_tokens);
	r = fetch_descriptors(session, conn, &a, until_ms, fds);
	if (r)
		return r;
	conn->segment_bytes = a.segment_bytes;
	conn->segment_page_bytes = a.segment_page_bytes;
	conn->buffer_bytes = a.call_buffer_bytes;
	conn->generation = a.generation;
	conn->number = a.session;
	memcpy(conn->socket_path, a.socket_path, sizeof(conn->socket_path));
	conn->world = a.world;
	conn->page_tokens = a.page_tokens;
	conn->classes = a.classes;
	conn->state_mask = a.state_mask;
	memcpy(conn->share, a.share, sizeof(conn->share));
	memcpy(conn->value_bytes, a.value_bytes, sizeof(conn->value_bytes));
	memcpy(conn->fingerprint, a.fingerprint, sizeof(conn->fingerprint));
	r = check_descriptors(&a, fds);
	if (!r)
		r = map_descriptors(session, conn, fds);
	close(fds[0]);
	close(fds[1]);
	return r;
}

int conn_open(struct pfs_session *session, uint64_t until_ms, struct conn **ret)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	int r;

	if (!conn)
		return say(ENOMEM, "no memory for a connection");
	conn->refs = 1;
	conn->serial = atomic_fetch_add(&session->serials, 1) + 1;
	do
		conn->ctl = open(session->ctl_path, (session->options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	while (conn->ctl < 0 && errno == EINTR);
	r = conn->ctl < 0 ? say_open(session->ctl_path, errno) : 0;
	session->met |= !r;
	if (!r)
		r = attach(session, conn, until_ms);
	if (!r)
		r = session->options.auto_ack ? ranges_sync(session, conn, UINT64_MAX) : ranges_repeat(session, conn);
	if (r) {
		conn_free(session, &conn);
		return r;
	}
	*ret = conn;
	return 0;
}

void conn_free(struct pfs_session *session, struct conn **connp)
{
	struct conn *conn = *connp;

	*connp = NULL;
	if (conn->ctl >= 0)
		close(conn->ctl);
	mapping_put(&conn->mapping);
	if (conn->buffer)
		munmap(conn->buffer, conn->buffer_bytes);
	areas_deinit(&conn->areas);
	acks_free(&conn->acked);
	free(conn);
}

/* ---- references ------------------------------------------------------------------------------------------------- */

/* (lock) */
static void unlink_conn(struct pfs_session *session, struct conn *conn)
{
	struct conn **at;

	for (at = &session->conns; *at; at = &(*at)->next) {
		if (*at == conn) {
			*at = conn->next;
			break;
		}
	}
}

/* (lock) The connection that takes word that all of @conn's plans have ended, referenced; NULL: nobody asks. */
static struct conn *heard_by(struct pfs_session *session, const struct conn *conn)
{
	struct conn *current = session->current;

	if (!conn->lost || !current || current == conn || current->lost)
		return NULL;
	current->refs++;
	return current;
}

/* What a daemon before kept for the lost connection it need keep no longer. Any error is as good: the end of this process says the same. */
static void settle(struct pfs_session *session, struct conn *by, uint64_t number)
{
	struct pfs_settle end = {.session = number};
	char before[512];

	pfs_last_error(before, sizeof(before));
	call_run(session, by, PFS_IOC_SETTLE, &end.call, sizeof(end), 0, 0);
	say_text(before);
	conn_put(session, &by);
}

void conn_put(struct pfs_session *session, struct conn **connp)
{
	struct conn *conn = *connp, *by = NULL;
	struct pfs_segment *mapping = NULL;
	int ctl = -1;
	bool last;

	*connp = NULL;
	if (!conn)
		return;
	pthread_mutex_lock(&session->lock);
	last = --conn->refs == 0;
	if (conn->refs == conn->key_areas) { /* the session's own reference is gone: nothing will come to it any more */
		mapping = conn->mapping;
		conn->mapping = NULL;
		ctl = conn->ctl;
		conn->ctl = -1;
		by = ctl >= 0 ? heard_by(session, conn) : NULL;
	}
	if (last)
		unlink_conn(session, conn);
	pthread_mutex_unlock(&session->lock);
	if (by)
		settle(session, by, conn->number);
	mapping_put(&mapping);
	if (ctl >= 0)
		close(ctl);
	if (last)
		conn_free(session, &conn);
}
