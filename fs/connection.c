/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/connection.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/killpoint.h"

/* Of Linux 6.9, which headers of before do not have. */
#define NOTIFY_RESEND 7
#define UNIQUE_RESEND (1ull << 63)
#define HAS_RESEND (1ull << 39) /* of flags and, above bit 31, flags2 */

#define PLACE_MASK 0xffffu /* of a handle: its place in the table (fs/handles.h) */

struct replay {
	uint8_t reply[WILL_INIT_BYTES];
	size_t bytes; /* 0 = none came; more than there is room for: cut */
};

static _Thread_local bool resent;            /* the request at hand */
static _Thread_local uint64_t init_unique;   /* of the kernel's INIT that this thread has read; 0 = none */
static _Thread_local struct replay *replaying; /* where replies go instead; NULL: to the kernel */
static _Thread_local const void *touched;    /* buffer that has all of its pages */

/* ---- what was kept ------------------------------------------------------------------------------------------------- */

static uint32_t load(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

/* False: what is kept is no INIT. */
static bool read_request(const struct will_init *init, uint64_t *flags)
{
	struct fuse_in_header header;
	struct fuse_init_in in = {0};
	uint32_t bytes = load(&init->request_bytes);

	if (bytes < sizeof(header) + offsetof(struct fuse_init_in, flags2) || bytes > sizeof(init->request))
		return false;
	memcpy(&header, init->request, sizeof(header));
	memcpy(&in, init->request + sizeof(header), bytes - sizeof(header) < sizeof(in) ? bytes - sizeof(header) : sizeof(in));
	*flags = in.flags | (in.flags & FUSE_INIT_EXT ? (uint64_t)in.flags2 << 32 : 0);
	return header.len == bytes && header.opcode == FUSE_INIT;
}

static bool reply_is_whole(const struct will_init *init)
{
	struct fuse_out_header header;
	uint32_t bytes = load(&init->reply_bytes);

	if (bytes < sizeof(header) || bytes > sizeof(init->reply))
		return false;
	memcpy(&header, init->reply, sizeof(header));
	return header.len == bytes && header.error == 0;
}

bool connection_survives(const struct will *will)
{
	uint64_t flags;

	return read_request(&will->init, &flags) && flags & HAS_RESEND;
}

enum connection_state connection_judge(const struct will *will, uint32_t device, struct why *why)
{
	const struct will_init *init = &will->init;
	bool answered = load(&init->answered);
	uint64_t flags;

	if (!load(&init->request_bytes) && !load(&init->reply_bytes) && !answered)
		return CONNECTION_NEW;
	if (!read_request(init, &flags) || (answered && !reply_is_whole(init)))
		why_set(why, EBADMSG, "the kernel's INIT and the reply to it were not kept whole");
	else if (init->device != device)
		why_set(why, EXDEV, "the INIT that was kept is that of mount %u, and this is mount %u", init->device, device);
	else if (!answered)
		why_set(why, EPROTO, "the kernel's INIT was read and not answered");
	else if (!(flags & HAS_RESEND))
		why_set(why, ENOTSUP, "this kernel does not send requests again; Linux 6.9 and later do");
	else
		return CONNECTION_KEPT;
	return CONNECTION_DIFFERENT;
}

/* ---- input and output ------------------------------------------------------------------------------------------------ */

void connection_keep(struct will *will, uint32_t device, const void *request, size_t bytes)
{
	struct will_init *init = &will->init;

	atomic_store_explicit(&init->answered, 0, memory_order_relaxed);
	atomic_store_explicit(&init->reply_bytes, 0, memory_order_relaxed);
	atomic_store_explicit(&init->request_bytes, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	init->device = device;
	if (bytes <= sizeof(init->request))
		memcpy(init->request, request, bytes);
	atomic_store_explicit(&init->request_bytes, (uint32_t)bytes, memory_order_release); /* longer: not kept whole, as it is judged */
}

/* The parts in one piece; its length, whatever fits. */
static size_t gather(const struct iovec *iov, int count, uint8_t *to, size_t capacity)
{
	size_t bytes = 0;

	for (int i = 0; i < count; i++) {
		size_t room = bytes < capacity ? capacity - bytes : 0;

		if (room && iov[i].iov_len)
			memcpy(to + bytes, iov[i].iov_base, iov[i].iov_len < room ? iov[i].iov_len : room);
		bytes += iov[i].iov_len;
	}
	return bytes;
}

static void keep_reply(struct will_init *init, const struct iovec *iov, int count)
{
	size_t bytes = gather(iov, count, init->reply, sizeof(init->reply));

	if (bytes <= sizeof(init->reply))
		atomic_store_explicit(&init->reply_bytes, (uint32_t)bytes, memory_order_release);
}

static ssize_t read_request_of(int fd, void *to, size_t bytes, void *userdata)
{
	const struct fuse_in_header *header = to;
	struct fs *fs = userdata;
	ssize_t n;

	if (touched != to) {
		memset(to, 0, bytes);
		touched = to;
	}
	n = read(fd, to, bytes);
	if (n >= (ssize_t)sizeof(*header) && header->opcode == FUSE_INIT) {
		init_unique = header->unique;
		connection_keep(fs->will, fs->device, to, (size_t)n);
	}
	return n;
}

static ssize_t write_reply(int fd, struct iovec *iov, int count, void *userdata)
{
	const struct fuse_out_header *header = iov[0].iov_base;
	struct fs *fs = userdata;

	if (replaying) {
		replaying->bytes = gather(iov, count, replaying->reply, sizeof(replaying->reply));
		return (ssize_t)replaying->bytes;
	}
	if (!init_unique || header->unique != init_unique)
		return writev(fd, iov, count);
	keep_reply(&fs->will->init, iov, count);
	init_unique = 0;
	killpoint(KILLPOINT_INIT_KEPT);
	ssize_t n = writev(fd, iov, count);
	killpoint(KILLPOINT_INIT_WRITTEN);
	if (n > 0 && !header->error)
		atomic_store_explicit(&fs->will->init.answered, 1, memory_order_release);
	return n;
}

int connection_open(struct fs *fs, const struct fuse_lowlevel_ops *ops, int fd, struct why *why)
{
	static const struct fuse_custom_io io = {.read = read_request_of, .writev = write_reply};
	char name[] = "prefixfsd", *argv[] = {name, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);

	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		return why_set(why, EIO, "/dev/fuse does not become non-blocking: %s", strerror(errno));
	fs->session = fuse_session_new(&args, ops, sizeof(*ops), fs);
	fuse_opt_free_args(&args);
	if (!fs->session)
		return why_set(why, ENOMEM, "libfuse made no session");
	if (fuse_session_custom_io(fs->session, &io, fd) != 0) {
		fuse_session_destroy(fs->session);
		fs->session = NULL;
		return why_set(why, EIO, "libfuse did not take the descriptor of /dev/fuse");
	}
	return 0;
}

/* ---- once more ------------------------------------------------------------------------------------------------------- */

/* What stands where in a reply to INIT, but for its unique. */
static const struct field {
	const char *name;
	size_t at, bytes;
} fields[] = {
#define IN_HEADER(name) {#name, offsetof(struct fuse_out_header, name), sizeof(((struct fuse_out_header *)0)->name)}
#define IN_REPLY(name) \
	{#name, sizeof(struct fuse_out_header) + offsetof(struct fuse_init_out, name), sizeof(((struct fuse_init_out *)0)->name)}
	IN_HEADER(error),
	IN_REPLY(major),
	IN_REPLY(minor),
	IN_REPLY(max_readahead),
	IN_REPLY(flags),
	IN_REPLY(max_background),
	IN_REPLY(congestion_threshold),
	IN_REPLY(max_write),
	IN_REPLY(time_gran),
	IN_REPLY(max_pages),
	IN_REPLY(map_alignment),
	IN_REPLY(flags2),
#undef IN_HEADER
#undef IN_REPLY
};

static unsigned long long value_of(const uint8_t *reply, const struct field *field)
{
	unsigned long long value = 0;

	memcpy(&value, reply + field->at, field->bytes); /* little-endian, as every host of ours */
	return value;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "value_of");

bool connection_differs(const struct will_init *init, const uint8_t *reply, size_t reply_bytes, char *text, size_t size)
{
	size_t bytes = load(&init->reply_bytes), unique = offsetof(struct fuse_out_header, unique);

	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const struct field *field = &fields[i];

		if (field->at + field->bytes > bytes || field->at + field->bytes > reply_bytes)
			break;
		if (memcmp(init->reply + field->at, reply + field->at, field->bytes) != 0) {
			snprintf(text, size, "%s %llu, and not %llu", field->name, value_of(reply, field), value_of(init->reply, field));
			return true;
		}
	}
	if (reply_bytes != bytes) {
		snprintf(text, size, "%zu bytes, and not %zu", reply_bytes, bytes);
		return true;
	}
	for (size_t i = 0; i < bytes; i++) {
		if ((i >= unique && i < unique + sizeof(uint64_t)) || init->reply[i] == reply[i])
			continue;
		snprintf(text, size, "byte %zu is %u, and not %u", i, reply[i], init->reply[i]);
		return true;
	}
	return false;
}

size_t connection_rehearse(struct fs *fs, uint8_t reply[WILL_INIT_BYTES])
{
	const struct will_init *init = &fs->will->init;
	uint8_t request[WILL_INIT_BYTES]; /* libfuse may write there */
	struct replay replay = {.bytes = 0};
	struct fuse_buf buffer = {.size = load(&init->request_bytes), .mem = request};

	assert(buffer.size <= sizeof(request)); /* judged */
	memcpy(request, init->request, buffer.size);
	replaying = &replay;
	fuse_session_process_buf(fs->session, &buffer);
	replaying = NULL;
	memcpy(reply, replay.reply, sizeof(replay.reply));
	return replay.bytes;
}

int connection_replay(struct fs *fs, struct why *why)
{
	uint8_t reply[WILL_INIT_BYTES];
	char text[128];
	size_t bytes = connection_rehearse(fs, reply);

	assert(load(&fs->will->init.reply_bytes) <= sizeof(fs->will->init.reply)); /* judged */
	if (bytes < sizeof(struct fuse_out_header))
		return why_set(why, EPROTO, "libfuse does not answer the kernel's INIT");
	if (connection_differs(&fs->will->init, reply, bytes, text, sizeof(text)))
		return why_set(why, EPROTO, "libfuse answers the kernel's INIT otherwise than before: %s", text);
	return 0;
}

int connection_resend(int fd, struct why *why)
{
	struct fuse_out_header header = {.len = sizeof(header), .error = NOTIFY_RESEND};

	if (write(fd, &header, sizeof(header)) < 0)
		return why_set(why, errno, "the kernel does not send again what was not answered: %s", strerror(errno));
	return 0;
}

void connection_wake_polls(int fd, struct will *will)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_poll_wakeup_out wake;
	} notice = {.header = {.len = sizeof(notice), .error = FUSE_NOTIFY_POLL}};

	for (unsigned i = 0; i < WILL_HANDLES; i++) {
		notice.wake.kh = atomic_exchange_explicit(&will->polls[i], 0, memory_order_relaxed);
		if (notice.wake.kh && write(fd, &notice, sizeof(notice)) < 0)
			continue; /* it sleeps no more, or the connection has ended */
	}
}

/* ---- each request ---------------------------------------------------------------------------------------------------- */

void connection_note(struct fs *fs, const void *request, size_t bytes)
{
	const struct fuse_in_header *header = request;
	const struct fuse_poll_in *in = (const void *)(header + 1);

	resent = header->unique & UNIQUE_RESEND;
	if (header->opcode != FUSE_POLL || bytes < sizeof(*header) + sizeof(*in) || !(in->flags & FUSE_POLL_SCHEDULE_NOTIFY))
		return;
	uint32_t place = in->fh & PLACE_MASK;
	if (place < WILL_HANDLES)
		atomic_store_explicit(&fs->will->polls[place], in->kh, memory_order_relaxed);
}

bool connection_resent(void)
{
	return resent;
}
