/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/kernel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/calls.h"
#include "fs/handles.h"
#include "fs/log.h"
#include "fs/namespaces.h"
#include "fs/node.h"
#include "fs/notifier.h"
#include "fs/page_nodes.h"
#include "fs/requests.h"
#include "fs/watch.h"
#include "fs/will.h"
#include "store/base/clock.h"
#include "store/space.h"

#define MEMORY (16ull << 20)
#define BLOBS (128u << 10) /* as in the layout */

static const char layout_text[] =
	"{\"version\":1,\"identity\":{\"model\":\"fuzz\"},\"world\":1,\"page_tokens\":64,\"memory\":{\"floor\":16777216,"
	"\"blobs\":{\"bytes\":131072,\"count\":12}},"
	"\"classes\":[{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"K\",\"bytes\":65536}]},"
	"{\"name\":\"st\",\"kind\":\"state\",\"planes\":[{\"name\":\"S\",\"bytes\":20000}]}]}";

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

struct fs kernel_fs;
static struct will kernel_will;
fuse_ino_t kernel_ctl;
struct kernel kernel;

static struct config config;
static struct space *space;
static uint64_t next_unique;
static uint64_t under_way[UNDER_WAY]; /* 0 = free */
static uint64_t asked;                /* the request whose answer is wanted in `kernel` */

static void answered(uint64_t unique)
{
	for (unsigned i = 0; i < UNDER_WAY; i++)
		if (under_way[i] == unique) {
			under_way[i] = 0;
			kernel.count--;
			return;
		}
	fprintf(stderr, "request %llu was answered twice, or never asked\n", (unsigned long long)unique);
	abort();
}

static ssize_t take_reply(int fd, struct iovec *iov, int count, void *userdata)
{
	const struct fuse_out_header *header = iov[0].iov_base;
	size_t bytes = 0;

	lock_assert_none_held();
	for (int i = 0; i < count; i++)
		bytes += iov[i].iov_len;
	assert(iov[0].iov_len >= sizeof(*header) && header->len == bytes);
	if (header->unique == 0)
		return (ssize_t)bytes; /* a notification */
	if (header->unique & 1) { /* an interrupt of a request that had been answered */
		assert(header->error == -EAGAIN);
		return (ssize_t)bytes;
	}
	answered(header->unique);
	if (header->unique != asked)
		return (ssize_t)bytes;
	kernel.error = header->error;
	kernel.bytes = 0;
	for (int i = 0; i < count; i++) {
		size_t skip = i ? 0 : sizeof(*header);

		assert(kernel.bytes + iov[i].iov_len - skip <= sizeof(kernel.reply));
		memcpy(kernel.reply + kernel.bytes, (char *)iov[i].iov_base + skip, iov[i].iov_len - skip);
		kernel.bytes += iov[i].iov_len - skip;
	}
	return (ssize_t)bytes;
}

static ssize_t read_nothing(int fd, void *to, size_t bytes, void *userdata)
{
	return -EAGAIN;
}

static void hand_over(struct fuse_in_header *header, const void *head, size_t head_bytes, const void *body, size_t body_bytes)
{
	size_t bytes = sizeof(*header) + head_bytes + body_bytes;
	char *message = malloc(bytes), *to = message; /* memory of its very length */
	struct fuse_buf buffer = {.size = bytes, .mem = message};

	header->len = (uint32_t)bytes;
	to = mempcpy(to, header, sizeof(*header));
	to = mempcpy(to, head, head_bytes);
	if (body_bytes)
		memcpy(to, body, body_bytes);
	fuse_session_process_buf(kernel_fs.session, &buffer);
	memset(message, 0xa5, bytes); /* nobody may look there any more */
	free(message);
}

uint64_t kernel_send(uint32_t opcode, uint64_t node, const void *head, size_t head_bytes, const void *body, size_t body_bytes)
{
	struct fuse_in_header header = {.opcode = opcode, .unique = next_unique += 2, .nodeid = node, .pid = 1};
	unsigned i = 0;

	while (under_way[i])
		i++;
	under_way[i] = header.unique;
	kernel.count++;
	asked = header.unique;
	kernel.error = 1;
	hand_over(&header, head, head_bytes, body, body_bytes);
	return header.unique;
}

bool kernel_step(void)
{
	struct call *call;

	calls_wake(kernel_fs.calls);
	call = calls_next(kernel_fs.calls);
	if (call)
		call->run(&kernel_fs, call);
	return call;
}

void kernel_interrupt(uint64_t unique)
{
	struct fuse_interrupt_in in = {.unique = unique};
	struct fuse_in_header header = {.opcode = FUSE_INTERRUPT, .unique = unique | 1};

	hand_over(&header, &in, sizeof(in), NULL, 0);
}

void kernel_finish(void)
{
	for (unsigned i = 0; i < UNDER_WAY; i++)
		if (under_way[i])
			kernel_interrupt(under_way[i]);
	while (kernel_step())
		;
	if (kernel.count) {
		fprintf(stderr, "%u requests were never answered\n", kernel.count);
		abort();
	}
}

/* ---- clients --------------------------------------------------------------------------------------------------- */

int client_ioctl(struct client *c, unsigned cmd, const void *in, size_t in_bytes, size_t out_bytes)
{
	struct fuse_ioctl_in head = {
		.fh = c->handle, .cmd = cmd, .in_size = (uint32_t)in_bytes, .out_size = (uint32_t)out_bytes};

	c->last = kernel_send(FUSE_IOCTL, kernel_ctl, &head, sizeof(head), in, in_bytes);
	return kernel.error;
}

/* One that is answered at once. */
static void must(struct client *c, unsigned cmd, void *in, size_t bytes)
{
	if (client_ioctl(c, cmd, in, bytes, bytes) || ((struct fuse_ioctl_out *)kernel.reply)->result)
		abort();
	memcpy(in, kernel.reply + sizeof(struct fuse_ioctl_out), bytes);
}

#define CALL(c, type) {.size = sizeof(type), .seq = ++(c)->seq}

void client_open(struct client *c, bool read_only)
{
	struct fuse_open_in open = {.flags = read_only ? O_RDONLY : O_RDWR};
	struct pfs_segments segments;
	struct pfs_segments_ack ack;
	struct pfs_range *ranges;
	struct session *session;
	struct why why = WHY_INIT;
	uint64_t bytes;
	int segment, buffer;

	memset(c, 0, sizeof(*c));
	kernel_send(FUSE_OPEN, kernel_ctl, &open, sizeof(open), NULL, 0);
	if (kernel.error)
		abort();
	c->handle = ((struct fuse_open_out *)kernel.reply)->fh;
	struct pfs_attach attach = {.call = CALL(c, struct pfs_attach), .abi_version = PFS_ABI_VERSION, .node = PFS_NODE_ANY,
		.call_buffer_bytes = BUFFER};
	must(c, PFS_IOC_ATTACH, &attach, sizeof(attach));
	c->session = attach.session;
	if (session_welcome(kernel_fs.host, attach.token, getpid(), (uint64_t)getpid(), 0, 0, NULL, 0, &session, &segment, &buffer, &why))
		abort();
	c->buffer = session_call_buffer(session, &bytes);
	session_unref(&session);
	segments = (struct pfs_segments){.call = CALL(c, struct pfs_segments), .capacity = 64};
	must(c, PFS_IOC_SEGMENTS, &segments, sizeof(segments));
	ranges = (struct pfs_range *)c->buffer;
	for (uint32_t i = 0; i < segments.count; i++) {
		struct pfs_range_ack one = {ranges[i].id, ranges[i].generation};

		memcpy(c->buffer + 32768 + i * sizeof(one), &one, sizeof(one));
	}
	ack = (struct pfs_segments_ack){
		.call = CALL(c, struct pfs_segments_ack), .acks_offset = 32768, .count = segments.count};
	must(c, PFS_IOC_SEGMENTS_ACK, &ack, sizeof(ack));
	memset(c->buffer, 0, BUFFER);
}

/* As when the process is gone. */
void client_close(struct client *c)
{
	struct fuse_release_in release = {.fh = c->handle};

	kernel_send(FUSE_RELEASE, kernel_ctl, &release, sizeof(release), NULL, 0);
	calls_end_session(kernel_fs.calls, c->session);
	host_process_gone(kernel_fs.host, c->session);
}

/* ---- the world ------------------------------------------------------------------------------------------------- */

static void on_changed(void *context, struct space *s, enum host_change what)
{
	calls_changed(kernel_fs.calls, space_serial(s));
	notifier_changed(kernel_fs.notifier);
}

static void on_record_gone(void *context, struct space *s, uint64_t consumed, const struct key *endpoint)
{
	notifier_record_gone(kernel_fs.notifier, space_serial(s), consumed, endpoint);
}

static void on_note(void *context, struct space *s, const struct host_event *events, uint32_t count)
{
	struct space_access access;

	if (events[0].kind == HOST_EVENT_SPACE_CREATED) {
		space_access(s, &access);
		watch_space(kernel_fs.watch, space_serial(s), "x", &access);
	}
	watch_note(kernel_fs.watch, space_serial(s), events, count);
}

static void open_connection(void)
{
	static const struct fuse_custom_io io = {.writev = take_reply, .read = read_nothing};
	char name[] = "fuzz", *argv[] = {name, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct fuse_init_in init = {.major = FUSE_KERNEL_VERSION, .minor = 38, .max_readahead = 4096};

	next_unique = 2;
	kernel_fs.session = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), &kernel_fs);
	fuse_opt_free_args(&args);
	if (!kernel_fs.session || fuse_session_custom_io(kernel_fs.session, &io, eventfd(0, EFD_CLOEXEC)))
		abort();
	kernel_send(FUSE_INIT, 0, &init, sizeof(init), NULL, 0);
	if (kernel.error || !kernel_fs.ready)
		abort();
}

/* So that the leak sanitizer has something to say. */
static void close_world(void)
{
	fuse_session_destroy(kernel_fs.session);
	space_unref(&space);
	namespaces_free(&kernel_fs.namespaces);
	host_free(&kernel_fs.host);
	notifier_free(&kernel_fs.notifier);
	watch_free(&kernel_fs.watch);
	requests_free(&kernel_fs.requests);
	page_nodes_free(&kernel_fs.page_nodes);
	calls_free(&kernel_fs.calls);
	handles_free(&kernel_fs.handles);
	buffers_deinit(&kernel_fs.buffers);
	close(kernel_fs.over);
	close(kernel_fs.leave);
}

void kernel_open(void)
{
	struct host_config host = {
		.memory_bytes = MEMORY + BLOBS,
		.wish = SEGMENT_WISH_SMALL,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 600000,
		.events = {.note = on_note, .changed = on_changed, .record_gone = on_record_gone},
	};
	struct space_access access = {.mode = 0700};
	struct namespace_info info;
	struct why why = WHY_INIT;
	uint64_t number;

	log_set_level(LOG_LEVEL_ERROR);
	config_init(&config);
	kernel_fs.config = &config;
	kernel_fs.last_exit = "";
	kernel_fs.will = &kernel_will;
	kernel_fs.started_ns = clock_now_ns();
	kernel_fs.over = eventfd(0, EFD_CLOEXEC);
	kernel_fs.leave = eventfd(0, EFD_CLOEXEC);
	snprintf(kernel_fs.dir.path, sizeof(kernel_fs.dir.path), "/nowhere");
	buffers_init(&kernel_fs.buffers);
	kernel_fs.handles = handles_new(64, 1);
	kernel_fs.calls = calls_new(&kernel_fs);
	kernel_fs.notifier = notifier_new(&kernel_fs);
	kernel_fs.watch = watch_new(&kernel_fs);
	kernel_fs.requests = requests_new(1);
	kernel_fs.page_nodes = page_nodes_new(1);
	kernel_fs.namespaces = namespaces_new(&kernel_fs);
	if (host_new(&host, &kernel_fs.host, &why) || namespaces_make(kernel_fs.namespaces, "x", &access, &number, &why) ||
		namespaces_write_layout(kernel_fs.namespaces, number, 0, layout_text, sizeof(layout_text) - 1, &why) ||
		namespaces_get(kernel_fs.namespaces, number, &info)) {
		fprintf(stderr, "%s\n", why.text);
		abort();
	}
	space = info.space;
	kernel_ctl = node_pack((struct node){.kind = NODE_CTL, .number = number});
	while (atomic_load(&space->prewarm_done) < space->prewarm_goal)
		sched_yield();
	open_connection();
	atexit(close_world);
}

void kernel_check(void)
{
	struct space_report r;

	space_report(space, &r);
#define X(name, help)                                                                                              \
	if (r.stats.name) {                                                                                        \
		fprintf(stderr, "%s is %llu, not 0\n", #name, (unsigned long long)r.stats.name);                   \
		abort();                                                                                           \
	}
	STATS_TRANSIENT(X)
#undef X
	assert(r.victims_selected == r.victims_freed + r.victims_restored + r.victims_obsolete + r.victims_pending);
	lock_take(&space->lock);
	index_check(space->index);
	slots_check(space->slots);
	lock_drop(&space->lock);
	blobs_check(space->blobs);
}

/* Nothing is left of this input: everything goes, by RESET, which is seen to. */
void kernel_empty(void)
{
	struct space_report r;
	struct session *s;
	struct reset reset;
	struct why why = WHY_INIT;

	if (session_new(kernel_fs.host, space, 1, 0, 0, false, &s, &why))
		abort();
	reset = (struct reset){.session = s};
	if (reset_begin(&reset, &why) != STEP_MORE)
		abort();
	while (reset_step(&reset, &why) == STEP_MORE)
		;
	session_release(s);
	session_unref(&s);
	space_report(space, &r);
	if (r.blobs || r.blob_bytes || reset.held || r.records || r.pages || r.hidden_records || r.slots_free != r.slots || r.pinned_bytes) {
		fprintf(stderr, "after a reset: %u held, %llu records, %llu pages, %llu of %llu slots free\n", reset.held,
			(unsigned long long)r.records, (unsigned long long)r.pages, (unsigned long long)r.slots_free,
			(unsigned long long)r.slots);
		abort();
	}
}
