/* SPDX-License-Identifier: Apache-2.0
 *
 * libprefixfs through deaths of a daemon of our own: ctl is a pipe with a name whose ioctls are answered here, the socket is a thread.
 * A life of it ends between two requests, or in the middle of one; the next one has the same memory, or other.
 */
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

/* ---- the daemon ------------------------------------------------------------------------------------------------- */

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
	uint32_t generation;          /* of its range */
	unsigned acknowledged, asked; /* ranges; PROBEs */
	uint64_t put, known;          /* plan that is open; that is known to have ended, its groups COMMITTED and LOST in turn */
	uint32_t known_groups;
} d;

static int memory_file(uint64_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
	return fd;
}

/* The byte that a memory's pages are full of is its life's. */
static void new_memory(void)
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

static void die(bool keep)
{
	d.life++;
	d.put = 0;
	if (!keep)
		new_memory();
}

static int attach(int fd, struct pfs_attach *a)
{
	if (d.buffer[fd])
		munmap(d.buffer[fd], PFS_MIN_CALL_BUFFER);
	d.life_of[fd] = d.life;
	d.offered[0] = d.memory;
	d.offered[1] = memory_file(PFS_MIN_CALL_BUFFER);
	d.buffer[fd] = mmap(NULL, PFS_MIN_CALL_BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, d.offered[1], 0);
	a->call_buffer_bytes = PFS_MIN_CALL_BUFFER;
	a->session = d.life;
	a->segment_bytes = SEGMENT_BYTES;
	a->segment_page_bytes = 4096;
	a->world = a->classes = 1;
	a->page_tokens = TOKENS;
	a->share[0] = 0;
	snprintf(a->socket_path, sizeof(a->socket_path), "%s", d.socket);
	return 0;
}

static int segments(uint8_t *buffer, struct pfs_segments *q)
{
	struct pfs_range range = {.length = SEGMENT_BYTES, .slot_bytes = VALUE, .id = 3, .generation = d.generation};

	q->count = q->capacity > 0 && q->first == 0;
	q->total = 1;
	q->version = 1;
	if (q->count)
		memcpy(buffer + q->ranges_offset, &range, sizeof(range));
	return 0;
}

static int acknowledge(const uint8_t *buffer, struct pfs_segments_ack *a)
{
	const struct pfs_range_ack *acks = (const void *)(buffer + a->acks_offset);

	a->accepted = 0;
	for (uint32_t i = 0; i < a->count; i++)
		a->accepted += acks[i].id == 3 && acks[i].generation == d.generation;
	d.acknowledged += a->accepted;
	return a->accepted == a->count ? 0 : ESTALE;
}

static int put_start(uint8_t *buffer, struct pfs_put_start *p)
{
	for (uint32_t i = 0; i < p->keys; i++)
		((uint64_t *)(buffer + p->answers_offset))[i] = (uint64_t)i * VALUE;
	memset(buffer + p->status_offset, 0, p->groups * sizeof(uint32_t));
	p->groups_ok = p->groups;
	p->new_values = p->keys;
	d.put = p->plan;
	return 0;
}

static int put_end(uint8_t *buffer, struct pfs_put_end *e)
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

static int transfer(uint8_t *buffer, struct pfs_get_transfer *t)
{
	t->values = (uint32_t)((t->to - t->from) / TOKENS);
	for (uint32_t i = 0; i < t->values; i++)
		((uint64_t *)(buffer + t->offsets_offset))[i] = (uint64_t)i * VALUE;
	t->delivered_len = t->to;
	t->handle_ended = t->to == t->boundary;
	return 0;
}

static int answer(int fd, unsigned long op, void *argument)
{
	struct pfs_get_start *get = argument;

	switch (op) {
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
		get->transferable_len = get->raw_prefix_hit_len = (uint64_t)get->keys * TOKENS;
		get->handle_live = 1;
		return 0;
	case PFS_IOC_GET_TRANSFER:
		return transfer(d.buffer[fd], argument);
	default: /* GET_CANCEL, RELEASE, LAST_ERROR */
		return 0;
	}
}

/* In the place of libc's, for the library too. */
int ioctl(int fd, unsigned long op, ...)
{
	va_list args;
	int error;

	va_start(args, op);
	void *argument = va_arg(args, void *);
	va_end(args);
	if (op == d.deadly && d.deaths > 0) {
		d.deaths--;
		die(d.keep);
		error = d.error;
	} else if (d.life == 0 || (op != PFS_IOC_ATTACH && d.life_of[fd] != d.life)) {
		error = d.lost;
	} else if (op == d.failing) {
		error = d.error;
	} else {
		error = op == PFS_IOC_ATTACH ? attach(fd, argument) : answer(fd, op, argument);
	}
	errno = error;
	return error ? -1 : 0;
}

static void welcome(int peer)
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

static void *listening(void *argument)
{
	int peer;

	while ((peer = accept(d.listener, NULL, NULL)) >= 0) {
		welcome(peer);
		close(peer);
	}
	return argument;
}

static int daemon_start(void **state)
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
	new_memory();
	return pthread_create(&d.thread, NULL, listening, NULL);
}

static int daemon_end(void **state)
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

static void keep_line(void *context, const char *text)
{
	snprintf(line, sizeof(line), "%s", text);
	lines++;
}

static struct pfs_session *session_open(bool auto_ack)
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

static struct pfs_session_info info_of(struct pfs_session *s)
{
	struct pfs_session_info info;

	assert_int_equal(pfs_info(s, &info), 0);
	return info;
}

static const struct pfs_key KEYS[4];

static int probe(struct pfs_session *s)
{
	return pfs_probe(s, KEYS, 4, NULL, NULL);
}

static uint64_t put(struct pfs_session *s)
{
	const struct pfs_put_group groups[4] = {{.keys = 1, .class_mask = 1}, {.keys = 1, .class_mask = 1}, {.keys = 1, .class_mask = 1},
		{.keys = 1, .class_mask = 1}};
	struct pfs_put_request q = {.groups = groups, .keys = KEYS, .group_count = 4, .key_count = 4, .class_mask = 1};
	struct pfs_put_result ret;

	assert_int_equal(pfs_put_start(s, &q, &ret), 0);
	return ret.plan;
}

static uint64_t look_up(struct pfs_session *s)
{
	struct pfs_get_request q = {.keys = KEYS, .key_count = 4};
	struct pfs_get_result ret;

	assert_int_equal(pfs_get_start(s, &q, &ret), 0);
	assert_int_equal(ret.transferable_len, 4 * TOKENS);
	return ret.handle;
}

static int fetch(struct pfs_session *s, uint64_t handle, struct pfs_transfer_result *ret)
{
	struct pfs_transfer_request q = {.handle = handle, .boundary = 4 * TOKENS, .to = 4 * TOKENS};

	return pfs_get_transfer(s, &q, ret);
}

static void assert_bytes(const struct pfs_transfer_result *got, uint8_t byte)
{
	for (uint32_t i = 0; i < got->pages; i++)
		for (uint32_t k = 0; k < VALUE; k++)
			assert_int_equal(got->segment[got->offsets[0][i] + k], byte);
}

static unsigned mappings(const struct pfs_session *s)
{
	unsigned n = 0;

	for (const struct mapping *m = s->mappings; m; m = m->next)
		n++;
	return n;
}

static bool is_mapped(const void *at)
{
	unsigned char present;

	return !mincore((void *)at, 1, &present);
}

/* ---- noticing --------------------------------------------------------------------------------------------------- */

static void every_errno_of_a_loss_attaches_anew(void **state)
{
	static const int errors[] = {ESTALE, ENOTCONN, ENODEV, ECONNABORTED, ESHUTDOWN};
	struct pfs_session *s = session_open(true);

	for (unsigned i = 0; i < 5; i++) {
		d.lost = errors[i];
		die(false);
		assert_int_equal(probe(s), 0);
		assert_int_equal(info_of(s).reattached, i + 1);
		assert_int_equal(info_of(s).remapped, i + 1);
		assert_int_equal(info_of(s).session, i + 2);
		assert_int_equal(lines, i + 1);
		assert_int_equal(d.asked, i + 1);
		assert_int_equal(mappings(s), 1);
	}
	assert_true(strstr(line, "prefixfs: /tmp/pfs-") == line && strstr(line, "/ctl: attached anew after "));
	assert_non_null(strstr(line, " ms; memory is new; 0 plans lost"));
	pfs_close(&s);
}

static void eio_is_a_loss_when_the_next_word_says_so(void **state)
{
	struct pfs_session *s = session_open(true);

	d.failing = PFS_IOC_PROBE;
	d.error = EIO;
	assert_int_equal(probe(s), -EIO);
	assert_int_equal(info_of(s).reattached, 0);
	d.failing = 0;
	d.deadly = PFS_IOC_PROBE;
	d.deaths = 1;
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 1);
	pfs_close(&s);
}

static void estale_of_a_served_connection_is_no_loss(void **state)
{
	struct pfs_session *s = session_open(false);
	struct pfs_range_ack ack = {3, 6};
	uint32_t accepted = 9;

	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), -ESTALE);
	assert_int_equal(accepted, 0);
	assert_int_equal(info_of(s).reattached, 0);
	pfs_close(&s);
}

static void a_request_that_the_daemon_dies_of_is_given_up(void **state)
{
	struct pfs_session *s = session_open(true);
	char text[300];

	d.deadly = PFS_IOC_PROBE;
	d.deaths = 100;
	d.error = ECONNABORTED;
	assert_int_equal(probe(s), -ENOTCONN);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "the daemon went 3 times while it was asked this"));
	assert_int_equal(d.deaths, 97);
	d.deaths = 0;
	assert_int_equal(probe(s), 0);
	pfs_close(&s);
}

static void nobody_serves_for_a_while(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t plan = put(s);
	struct pollfd next = {.fd = pfs_poll_fd(s), .events = POLLIN};
	struct pfs_put_outcome outcome;
	char text[300];
	uint64_t before;

	d.lost = ENOTCONN;
	d.life = 0;
	assert_int_equal(probe(s), -ENOTCONN);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "not attached anew within 300 ms: ATTACH failed"));
	assert_int_equal(info_of(s).session, 1);
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, NULL, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_LOST);
	assert_int_equal(lines, 0);
	/* One deadline was enough: nobody waits again. */
	before = now_ms();
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(probe(s), -ENOTCONN);
		pfs_last_error(text, sizeof(text));
		assert_non_null(strstr(text, "nobody serves; attaching anew is tried every 300 ms"));
	}
	assert_true(now_ms() - before < 20 * 300 / 4);
	d.life = 2;
	assert_int_equal(poll(&next, 1, 10000), 1); /* it is time to try again */
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 1);
	assert_int_equal(lines, 1);
	/* The next loss is waited for again. */
	d.life = 0;
	assert_int_equal(probe(s), -ENOTCONN);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "not attached anew within 300 ms: "));
	pfs_close(&s);
}

static void *take_keys(void *session)
{
	struct pfs_key *keys = NULL;

	return pfs_keys_area(session, 1, &keys) ? NULL : keys;
}

static void a_wait_for_the_call_buffer_ends_with_the_connection(void **state)
{
	struct pfs_session *s = session_open(true);
	struct conn *conn = s->current;
	struct pfs_key *all, *one;
	bool waits = false;
	pthread_t thread;
	void *taken;

	s->options.deadline_ms = 60000;
	assert_int_equal(pfs_keys_area(s, PFS_MIN_CALL_BUFFER / sizeof(*all), &all), 0);
	assert_int_equal(pthread_create(&thread, NULL, take_keys, s), 0);
	while (!waits) {
		pthread_mutex_lock(&s->lock);
		waits = s->waiters == 1;
		pthread_mutex_unlock(&s->lock);
	}
	die(false);
	conn_mark_lost(s, conn, -ESTALE);
	pthread_join(thread, &taken);
	one = taken;
	assert_non_null(one);
	assert_true((uint8_t *)one >= s->current->buffer && (uint8_t *)one < s->current->buffer + PFS_MIN_CALL_BUFFER);
	assert_int_equal(pfs_keys_free(s, all), 0);
	assert_int_equal(pfs_keys_free(s, one), 0);
	pfs_close(&s);
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static void open_put_plans_are_lost(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t first = put(s), second = put(s);
	struct pfs_put_outcome outcome;
	uint32_t status[4] = {0};

	die(false);
	assert_int_equal(pfs_put_commit(s, first, 1, 2, status, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_LOST);
	assert_int_equal(outcome.done, 0);
	assert_true(status[0] == PFS_GROUP_LOST && status[1] == PFS_GROUP_LOST && status[2] == 0);
	assert_non_null(strstr(line, "; 2 plans lost"));
	assert_int_equal(pfs_put_abort(s, second, 0, 0, NULL, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_LOST);
	assert_int_equal(pfs_put_commit(s, first, 0, 0, NULL, NULL), -ENOENT);
	assert_int_equal(lines, 1);
	pfs_close(&s);
}

static void what_the_daemon_knows_of_a_put_plan_is_told(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t plan = put(s);
	struct pfs_put_outcome outcome;
	uint32_t status[4];

	d.deadly = PFS_IOC_PUT_COMMIT; /* it was executed, and the answer did not come */
	d.deaths = 1;
	d.error = ECONNABORTED;
	d.keep = true;
	d.known = plan;
	d.known_groups = 3;
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, status, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_COMMITTED);
	assert_true(status[0] == PFS_GROUP_COMMITTED && status[1] == PFS_GROUP_LOST && status[2] == PFS_GROUP_COMMITTED);
	assert_int_equal(status[3], PFS_GROUP_COMMITTED); /* what was not told is as the whole */
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, NULL, NULL), -ENOENT);
	pfs_close(&s);
}

static void handles_deliver_nothing(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t first = look_up(s), second = look_up(s), third = look_up(s), fourth;
	struct pfs_into_request into = {.handle = third, .boundary = 4 * TOKENS, .from = TOKENS, .to = 4 * TOKENS, .import = 1};
	struct pfs_into_result copied = {0};
	struct pfs_transfer_result got;

	die(false);
	assert_int_equal(fetch(s, first, &got), 0);
	assert_true(got.plan == 0 && got.delivered_len == 0 && got.values == 0 && got.handle_ended == 1);
	assert_int_equal(fetch(s, first, &got), -ENOENT);
	assert_int_equal(pfs_get_cancel(s, second), 0);
	assert_int_equal(pfs_get_cancel(s, second), -ENOENT);
	assert_int_equal(pfs_get_into(s, &into, &copied), 0);
	assert_true(copied.delivered_len == TOKENS && copied.values == 0 && copied.handle_ended == 1);
	assert_int_equal(lines, 0); /* none of it had to ask anybody */
	fourth = look_up(s);
	d.deadly = PFS_IOC_GET_TRANSFER;
	d.deaths = 1;
	d.error = ENOTCONN;
	assert_int_equal(fetch(s, fourth, &got), 0);
	assert_true(got.plan == 0 && got.delivered_len == 0 && got.handle_ended == 1);
	assert_int_equal(probe(s), 0);
	assert_int_equal(lines, 2);
	pfs_close(&s);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void the_same_memory_keeps_its_address(void **state)
{
	struct pfs_session *s = session_open(true);
	void *segment = info_of(s).segment;
	struct pfs_transfer_result before, after;

	assert_int_equal(fetch(s, look_up(s), &before), 0);
	die(true);
	assert_int_equal(fetch(s, look_up(s), &after), 0);
	assert_ptr_equal(info_of(s).segment, segment);
	assert_ptr_equal(after.segment, segment);
	assert_int_equal(info_of(s).reattached, 1);
	assert_int_equal(info_of(s).remapped, 0);
	assert_int_equal(mappings(s), 1);
	assert_non_null(strstr(line, "; memory kept; "));
	assert_int_equal(d.acknowledged, 2); /* on either connection */
	assert_int_equal(pfs_release(s, &before.plan, 1, NULL), 0);
	assert_int_equal(pfs_release(s, &after.plan, 1, NULL), 0);
	assert_true(is_mapped(segment));
	die(true); /* with nothing in anybody's hands */
	assert_int_equal(probe(s), 0);
	assert_ptr_equal(info_of(s).segment, segment);
	pfs_close(&s);
	assert_false(is_mapped(segment));
}

static void a_get_plan_stays_readable_until_its_release(void **state)
{
	struct pfs_session *s = session_open(true);
	const uint8_t *segment = info_of(s).segment;
	struct pfs_transfer_result held, also, now;
	struct pfs_blob blob;

	assert_int_equal(fetch(s, look_up(s), &held), 0);
	assert_int_equal(fetch(s, look_up(s), &also), 0);
	die(false);
	assert_int_equal(probe(s), 0);
	die(false);
	assert_int_equal(fetch(s, look_up(s), &now), 0);
	assert_int_equal(mappings(s), 2); /* that between them had no plan */
	assert_true(info_of(s).remapped == 2 && now.segment != segment);
	assert_bytes(&held, 1);
	assert_bytes(&now, 3);
	assert_int_equal(pfs_blob(s, held.plan, PFS_BLOB_READ, 0, &blob), 0);
	assert_int_equal(blob.words[2], (uint64_t)(uintptr_t)segment);
	assert_int_equal(pfs_release(s, &held.plan, 1, NULL), 0);
	assert_bytes(&also, 1);
	assert_int_equal(pfs_release(s, &also.plan, 1, NULL), 0);
	assert_false(is_mapped(segment));
	assert_int_equal(mappings(s), 1);
	assert_int_equal(pfs_release(s, &also.plan, 1, NULL), -ENOENT);
	assert_int_equal(pfs_release(s, &now.plan, 1, NULL), 0);
	pfs_close(&s);
}

static void what_a_living_daemon_gave_up_is_not_trusted(void **state)
{
	struct pfs_session *s = session_open(true);
	struct pfs_transfer_result held;

	assert_int_equal(fetch(s, look_up(s), &held), 0);
	d.lost = ESHUTDOWN;
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(pfs_release(s, &held.plan, 1, NULL), -ESTALE);
	assert_int_equal(pfs_release(s, &held.plan, 1, NULL), -ENOENT);
	pfs_close(&s);
}

static void a_key_area_keeps_the_call_buffer_alone(void **state)
{
	struct pfs_session *s = session_open(true);
	const uint8_t *segment = info_of(s).segment;
	struct conn *first = s->current;
	struct pfs_key *keys;

	assert_int_equal(pfs_keys_area(s, 4, &keys), 0);
	die(false);
	assert_int_equal(pfs_probe(s, keys, 4, NULL, NULL), 0);
	assert_false(is_mapped(segment));
	assert_true(first->ctl == -1 && !first->mapping);
	memset(keys, 1, 4 * sizeof(*keys));
	assert_int_equal(pfs_probe(s, keys, 4, NULL, NULL), 0);
	assert_int_equal(pfs_keys_free(s, keys), 0);
	assert_true(s->conns == s->current && !s->conns->next);
	assert_int_equal(pfs_keys_free(s, keys), -EINVAL);
	pfs_close(&s);
}

static void an_engine_acknowledges_new_memory_alone(void **state)
{
	struct pfs_session *s = session_open(false);
	struct pfs_range range;
	struct pfs_range_ack ack;
	uint32_t count, accepted;

	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 0);
	assert_int_equal(pfs_segments(s, 0, &range, 1, &count, NULL, NULL), 0);
	ack = (struct pfs_range_ack){range.id, range.generation};
	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), 0);
	assert_int_equal(d.acknowledged, 1);
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 2); /* again, by the library */
	d.generation++;
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 2); /* cut anew: the engine's to do */
	d.generation--;
	die(false);
	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 2); /* the same number, of memory that the engine does not know */
	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), -ESTALE);
	assert_int_equal(pfs_segments(s, 0, &range, 1, &count, NULL, NULL), 0);
	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), 0);
	assert_int_equal(d.acknowledged, 3);
	die(false);
	assert_int_equal(pfs_news(s, 0), -ETIMEDOUT); /* asks, though it acknowledges nothing */
	assert_int_equal(info_of(s).reattached, 4);
	pfs_close(&s);
}

#define with_daemon(f) cmocka_unit_test_setup_teardown(f, daemon_start, daemon_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_daemon(every_errno_of_a_loss_attaches_anew),
		with_daemon(eio_is_a_loss_when_the_next_word_says_so),
		with_daemon(estale_of_a_served_connection_is_no_loss),
		with_daemon(a_request_that_the_daemon_dies_of_is_given_up),
		with_daemon(nobody_serves_for_a_while),
		with_daemon(a_wait_for_the_call_buffer_ends_with_the_connection),
		with_daemon(open_put_plans_are_lost),
		with_daemon(what_the_daemon_knows_of_a_put_plan_is_told),
		with_daemon(handles_deliver_nothing),
		with_daemon(the_same_memory_keeps_its_address),
		with_daemon(a_get_plan_stays_readable_until_its_release),
		with_daemon(what_a_living_daemon_gave_up_is_not_trusted),
		with_daemon(a_key_area_keeps_the_call_buffer_alone),
		with_daemon(an_engine_acknowledges_new_memory_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
