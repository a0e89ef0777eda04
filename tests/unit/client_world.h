/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon of our own for tests of libprefixfs: ctl is a pipe with a name whose ioctls are answered here, the socket is a thread. A life of it
 * ends between two requests, or in the middle of one; the next one has the same memory, or other. It may be one that was built before some
 * structs grew.
 */
#ifndef PREFIXFS_TESTS_UNIT_CLIENT_WORLD_H
#define PREFIXFS_TESTS_UNIT_CLIENT_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/client/client.h"

#define SEGMENT_BYTES (4u << 20)
#define VALUE 4096u
#define TOKENS 64u
#define MAX_FDS 1024
#define FIRST_RANGE 3u

/* ---- the daemon ------------------------------------------------------------------------------------------------- */

static pthread_mutex_t one_request = PTHREAD_MUTEX_INITIALIZER; /* at a time is answered */

static struct {
	char folder[64], ctl[96], socket[96];
	int listener;
	pthread_t thread;
	unsigned life;                /* 0: nobody serves */
	int memory;                   /* descriptor of the segment */
	unsigned life_of[MAX_FDS];    /* by descriptor of ctl: that it attached to */
	uint8_t *buffer[MAX_FDS];     /* call buffers */
	_Atomic int offered[2];       /* to be sent with the next welcome */
	int lost;                     /* errno of a ctl of another life */
	unsigned long deadly;         /* the operation that ends a life when it is asked, 0 = none */
	unsigned deaths;              /* how often it still does */
	int error;                    /* of that request, and of `failing` */
	unsigned long failing;        /* the operation that fails without a death, 0 = none */
	bool keep;                    /* deaths leave the memory as it is */
	uint32_t generation;          /* of its ranges */
	uint32_t ranges;              /* that the segment is cut into, with ids from FIRST_RANGE on */
	uint64_t resets;              /* the namespace's generation */
	unsigned acknowledged, asked; /* ranges; PROBEs */
	unsigned lacking, again;      /* PUT_STARTs that are to be told come_again, since the range is another generation's; that were */
	uint64_t put, known;          /* plan that is open; that is known to have ended, its groups COMMITTED and LOST in turn */
	uint32_t known_groups;
	bool first_sizes;             /* it knows the first version of each struct alone, and no tickets */
	bool first_attach;            /* of ATTACH alone */
	uint32_t at_most;             /* pages that a transfer delivers; then there is no room for any (EAGAIN). 0: all */
	uint32_t unread;              /* transfers that deliver nothing and end their handle */
	uint32_t cost, gone;          /* pages that each of them costs; last ones that are not found any more */
	uint32_t looks;               /* look-ups */
	bool no_guards;               /* guards that are named are gone */
	unsigned refused, seconds;    /* requests of a size that it does not know; of the second size, answered */
	struct pfs_last_error last;   /* what it says of the last one that it refused by a sentence */
	struct pfs_attach attached;   /* the last ones that came */
	struct pfs_get_start got;
	struct pfs_put_start began;
	struct pfs_get_transfer moved;
} d;

static inline int memory_file(uint64_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
	return fd;
}

/* The byte that a memory's pages are full of is its life's. */
static inline void new_memory(void)
{
	uint8_t page[VALUE];

	if (d.memory >= 0)
		close(d.memory);
	d.memory = memory_file(SEGMENT_BYTES);
	memset(page, (int)d.life, sizeof(page));
	for (off_t at = 0; at < 16 * (off_t)VALUE; at += VALUE)
		if (pwrite(d.memory, page, VALUE, at) != VALUE)
			abort();
}

static inline void die(bool keep)
{
	d.life++;
	d.put = 0;
	if (!keep)
		new_memory();
}

static inline int attach(int fd, struct pfs_attach *a)
{
	d.attached = *a;
	if (a->guard_pid && d.no_guards)
		return ESRCH;
	if (d.buffer[fd])
		munmap(d.buffer[fd], PFS_MIN_CALL_BUFFER);
	d.offered[0] = d.memory;
	d.offered[1] = memory_file(PFS_MIN_CALL_BUFFER);
	d.buffer[fd] = mmap(NULL, PFS_MIN_CALL_BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, d.offered[1], 0);
	a->call_buffer_bytes = PFS_MIN_CALL_BUFFER;
	a->session = d.life;
	a->generation = d.resets;
	a->segment_bytes = SEGMENT_BYTES;
	a->segment_page_bytes = 4096;
	a->world = a->classes = 1;
	a->page_tokens = TOKENS;
	a->share[0] = 0;
	a->value_bytes[0] = VALUE - 96;
	snprintf(a->socket_path, sizeof(a->socket_path), "%s", d.socket);
	return 0;
}

static inline int segments(uint8_t *buffer, struct pfs_segments *q)
{
	struct pfs_range range = {.length = SEGMENT_BYTES / d.ranges, .slot_bytes = VALUE, .generation = d.generation};

	q->count = 0;
	q->total = d.ranges;
	q->version = 1;
	for (uint32_t i = q->first; i < d.ranges && q->count < q->capacity; i++) {
		range.id = FIRST_RANGE + i;
		range.offset = i * range.length;
		memcpy(buffer + q->ranges_offset + q->count++ * sizeof(range), &range, sizeof(range));
	}
	return 0;
}

static inline int acknowledge(const uint8_t *buffer, struct pfs_segments_ack *a)
{
	const struct pfs_range_ack *acks = (const void *)(buffer + a->acks_offset);

	a->accepted = 0;
	for (uint32_t i = 0; i < a->count; i++)
		a->accepted += acks[i].id - FIRST_RANGE < d.ranges && acks[i].generation == d.generation;
	d.acknowledged += a->accepted;
	return a->accepted == a->count ? 0 : ESTALE;
}

static inline int put_start(uint8_t *buffer, struct pfs_put_start *p)
{
	for (uint32_t i = 0; i < p->keys; i++)
		((uint64_t *)(buffer + p->answers_offset))[i] = (uint64_t)i * VALUE;
	memset(buffer + p->status_offset, 0, p->groups * sizeof(uint32_t));
	p->groups_ok = p->groups;
	p->new_values = p->keys;
	d.put = p->plan;
	d.began = *p;
	if (d.lacking > 0) {
		d.lacking--;
		d.again++;
		p->come_again = 1;
		p->groups_ok = p->new_values = 0;
		p->ranges_version = 100 + ++d.generation;
		*(uint32_t *)(buffer + p->status_offset) = PFS_GROUP_NOROOM;
	}
	return 0;
}

static inline int put_end(uint8_t *buffer, struct pfs_put_end *e)
{
	uint32_t *status = (uint32_t *)(buffer + e->status_offset);

	if (e->plan == d.known) {
		for (uint32_t i = 0; i < e->groups && i < d.known_groups; i++)
			status[i] = i % 2 ? PFS_GROUP_LOST : PFS_GROUP_COMMITTED;
		e->outcome = PFS_GROUP_COMMITTED;
		return EALREADY;
	}
	if (e->plan != d.put)
		return ENOENT;
	for (uint32_t i = 0; i < e->groups; i++)
		status[i] = PFS_GROUP_COMMITTED;
	e->done = e->groups;
	e->outcome = PFS_GROUP_COMMITTED;
	return 0;
}

static inline int transfer(uint8_t *buffer, struct pfs_get_transfer *t)
{
	d.moved = *t;
	if (d.unread > 0) {
		d.unread--;
		d.gone += d.cost;
		t->delivered_len = t->from;
		t->handle_ended = 1;
		return 0;
	}
	if (d.at_most && t->from > 0)
		return EAGAIN;
	if (d.at_most)
		t->to = t->from + d.at_most * TOKENS;
	t->values = (uint32_t)((t->to - t->from) / TOKENS);
	for (uint32_t i = 0; i < t->values; i++)
		((uint64_t *)(buffer + t->offsets_offset))[i] = (uint64_t)i * VALUE;
	t->delivered_len = t->to;
	t->handle_ended = t->to == t->boundary;
	return 0;
}

static inline int answer(int fd, unsigned long op, void *argument)
{
	struct pfs_get_start *get = argument;

	switch (op) {
	case PFS_IOC_ATTACH:
		return attach(fd, argument);
	case PFS_IOC_SEGMENTS:
		return segments(d.buffer[fd], argument);
	case PFS_IOC_SEGMENTS_ACK:
		return acknowledge(d.buffer[fd], argument);
	case PFS_IOC_PROBE:
		d.asked++;
		((struct pfs_probe *)argument)->hits = d.life == 1;
		return 0;
	case PFS_IOC_PUT_START:
		return put_start(d.buffer[fd], argument);
	case PFS_IOC_PUT_COMMIT:
	case PFS_IOC_PUT_ABORT:
		return put_end(d.buffer[fd], argument);
	case PFS_IOC_GET_START:
		d.got = *get;
		d.looks++;
		get->interval = d.first_sizes ? 0 : 8192;
		get->transferable_len = get->raw_prefix_hit_len = (uint64_t)(get->keys - d.gone) * TOKENS;
		get->handle_live = 1;
		return 0;
	case PFS_IOC_GET_TRANSFER:
		return transfer(d.buffer[fd], argument);
	case PFS_IOC_LAST_ERROR:
		((struct pfs_last_error *)argument)->failed_seq = d.last.failed_seq;
		memcpy(((struct pfs_last_error *)argument)->text, d.last.text, sizeof(d.last.text));
		return 0;
	default: /* GET_CANCEL, RELEASE, GET_CONFIRM */
		return 0;
	}
}

/* The first size of a struct that has two, else 0. */
static inline size_t first_size(unsigned long op)
{
	switch (_IOC_NR(op)) {
	case _IOC_NR(PFS_IOC_ATTACH):
		return PFS_BYTES_ATTACH_1;
	case _IOC_NR(PFS_IOC_PUT_START):
		return PFS_BYTES_PUT_START_1;
	case _IOC_NR(PFS_IOC_GET_START):
		return PFS_BYTES_GET_START_1;
	case _IOC_NR(PFS_IOC_GET_TRANSFER):
		return PFS_BYTES_GET_TRANSFER_1;
	default:
		return 0;
	}
}

/* The answer of a daemon that was built before structs grew: as many bytes as the number says come, and go back. */
static inline int answer_old(int fd, unsigned long op, void *argument)
{
	static const unsigned long whole[] = {PFS_IOC_ATTACH, PFS_IOC_PUT_START, PFS_IOC_GET_START, PFS_IOC_GET_TRANSFER};
	size_t first = first_size(op);
	unsigned char copy[1024] = {0};
	int r = 0;

	if (op == PFS_IOC_GET_CONFIRM)
		return EOPNOTSUPP;
	if (!first)
		return answer(fd, op, argument);
	if (_IOC_SIZE(op) != first) {
		d.refused++;
		d.last.failed_seq = ((struct pfs_call *)argument)->seq;
		snprintf(d.last.text, sizeof(d.last.text), "%u: the ioctl number carries %u bytes and direction 3; it has %zu bytes, in and out",
			(unsigned)_IOC_NR(op), (unsigned)_IOC_SIZE(op), first);
		return EINVAL;
	}
	memcpy(copy, argument, first);
	for (unsigned i = 0; i < 4; i++)
		if (_IOC_NR(whole[i]) == _IOC_NR(op))
			r = answer(fd, whole[i], copy);
	memcpy(argument, copy, first);
	return r;
}

static inline int answer_any(int fd, unsigned long op, void *argument)
{
	if (d.first_sizes || (d.first_attach && _IOC_NR(op) == _IOC_NR(PFS_IOC_ATTACH)))
		return answer_old(fd, op, argument);
	d.seconds += first_size(op) > 0;
	return answer(fd, op, argument);
}

/* In the place of libc's, for the library too. */
int ioctl(int fd, unsigned long op, ...)
{
	va_list args;
	int error;

	va_start(args, op);
	void *argument = va_arg(args, void *);
	va_end(args);
	pthread_mutex_lock(&one_request);
	if (op == d.deadly && d.deaths > 0) {
		d.deaths--;
		die(d.keep);
		error = d.error;
	} else if (d.life == 0 || (_IOC_NR(op) != _IOC_NR(PFS_IOC_ATTACH) && d.life_of[fd] != d.life)) {
		error = d.lost;
	} else if (op == d.failing) {
		error = d.error;
	} else {
		d.life_of[fd] = d.life; /* ATTACH is the first that comes */
		error = answer_any(fd, op, argument);
	}
	pthread_mutex_unlock(&one_request);
	errno = error;
	return error ? -1 : 0;
}

static inline void welcome(int peer)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {.header = {CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct pfs_welcome w = {0};
	struct pfs_hello hello;
	int fds[2];
	struct iovec iov = {&w, sizeof(w)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

	if (recv(peer, &hello, sizeof(hello), 0) != sizeof(hello))
		return;
	fds[0] = d.offered[0];
	fds[1] = d.offered[1]; /* ours; when the welcome has come the next one may be offered */
	memcpy(CMSG_DATA(&control.header), fds, sizeof(fds));
	sendmsg(peer, &msg, MSG_NOSIGNAL);
	close(fds[1]);
}

static inline void *listening(void *argument)
{
	int peer;

	while ((peer = accept(d.listener, NULL, NULL)) >= 0) {
		welcome(peer);
		close(peer);
	}
	return argument;
}

static inline int daemon_start(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	memset(&d, 0, sizeof(d));
	strcpy(d.folder, "/tmp/pfs-XXXXXX");
	assert_non_null(mkdtemp(d.folder));
	snprintf(d.ctl, sizeof(d.ctl), "%s/ctl", d.folder);
	snprintf(d.socket, sizeof(d.socket), "%s/socket", d.folder);
	assert_int_equal(mkfifo(d.ctl, 0600), 0);
	strcpy(address.sun_path, d.socket);
	d.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(d.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(d.listener, 8), 0);
	d.life = 1;
	d.memory = -1;
	d.lost = ESTALE;
	d.generation = 7;
	d.ranges = 1;
	new_memory();
	return pthread_create(&d.thread, NULL, listening, NULL);
}

static inline int daemon_end(void **state)
{
	shutdown(d.listener, SHUT_RDWR);
	pthread_join(d.thread, NULL);
	close(d.listener);
	close(d.memory);
	for (int fd = 0; fd < MAX_FDS; fd++)
		if (d.buffer[fd])
			munmap(d.buffer[fd], PFS_MIN_CALL_BUFFER);
	unlink(d.socket);
	unlink(d.ctl);
	return rmdir(d.folder);
}

/* ---- the engine ------------------------------------------------------------------------------------------------- */

static char line[512]; /* the last one that was told */
static unsigned lines;

static inline void keep_line(void *context, const char *text)
{
	snprintf(line, sizeof(line), "%s", text);
	lines++;
}

static inline struct pfs_session *session_open(bool auto_ack)
{
	struct pfs_session *s;
	struct pfs_options o;

	pfs_options_init(&o);
	o.rank = 0;
	o.call_buffer_bytes = PFS_MIN_CALL_BUFFER;
	o.deadline_ms = 300;
	o.auto_ack = auto_ack;
	o.log = keep_line;
	lines = 0;
	assert_int_equal(pfs_open(d.folder, &o, &s), 0);
	return s;
}

static inline struct pfs_session_info info_of(struct pfs_session *s)
{
	struct pfs_session_info info;

	assert_int_equal(pfs_info(s, &info), 0);
	return info;
}

static const struct pfs_key KEYS[4];

static inline int probe(struct pfs_session *s)
{
	return pfs_probe(s, KEYS, 4, NULL, NULL);
}

static inline uint64_t put(struct pfs_session *s)
{
	const struct pfs_put_group groups[4] = {{.keys = 1, .class_mask = 1}, {.keys = 1, .class_mask = 1}, {.keys = 1, .class_mask = 1},
		{.keys = 1, .class_mask = 1}};
	struct pfs_put_request q = {.groups = groups, .keys = KEYS, .group_count = 4, .key_count = 4, .class_mask = 1};
	struct pfs_put_result ret;

	assert_int_equal(pfs_put_start(s, &q, &ret), 0);
	return ret.plan;
}

static inline uint64_t look_up(struct pfs_session *s)
{
	struct pfs_get_request q = {.keys = KEYS, .key_count = 4};
	struct pfs_get_result ret;

	assert_int_equal(pfs_get_start(s, &q, &ret), 0);
	assert_int_equal(ret.transferable_len, 4 * TOKENS);
	return ret.handle;
}

static inline int fetch(struct pfs_session *s, uint64_t handle, struct pfs_transfer_result *ret)
{
	struct pfs_transfer_request q = {.handle = handle, .boundary = 4 * TOKENS, .to = 4 * TOKENS};

	return pfs_get_transfer(s, &q, ret);
}

static inline void assert_bytes(const struct pfs_transfer_result *got, uint8_t byte)
{
	for (uint32_t i = 0; i < got->pages; i++)
		for (uint32_t k = 0; k < VALUE; k++)
			assert_int_equal(got->segment[got->offsets[0][i] + k], byte);
}

#endif
