/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fallen.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/connection.h"
#include "fs/node.h"

#define ANSWERS 64u /* of one call */
#define MAX_WRITE (1u << 17)
#define STATX 52u /* FUSE_STATX (linux/fuse.h of protocol 7.39), which older headers lack */
#define GENERATION 1u /* as in life (fs/ops_dir.c): another one would be another file */

/* A request in parts; the reply as it grows behind its header. */
struct answer {
	const struct fallen *fallen;
	struct fuse_in_header in;
	const uint8_t *body;
	size_t body_bytes;
	uint8_t *to;
	size_t bytes, capacity;
};

static uint64_t health_node(void)
{
	return node_pack((struct node){.kind = NODE_HEALTH});
}

/* The request's argument; false: it is shorter. */
static bool argument(const struct answer *a, void *to, size_t bytes)
{
	if (a->body_bytes < bytes)
		return false;
	memcpy(to, a->body, bytes);
	return true;
}

static int put(struct answer *a, const void *from, size_t bytes)
{
	if (bytes > a->capacity - a->bytes)
		return -EIO;
	if (bytes)
		memcpy(a->to + a->bytes, from, bytes);
	a->bytes += bytes;
	return 0;
}

/* ---- answers: 0, or the negative errno that is answered ------------------------------------------------------------- */

static int fill_attr(const struct answer *a, uint64_t node, struct fuse_attr *ret)
{
	bool root = node == FUSE_ROOT_ID;

	if (!root && node != health_node())
		return -EIO;
	*ret = (struct fuse_attr){
		.ino = node,
		.size = root ? 0 : a->fallen->bytes,
		.mode = root ? S_IFDIR | 0555 : S_IFREG | 0444,
		.nlink = root ? 2 : 1,
		.uid = geteuid(),
		.gid = getegid(),
		.blksize = 4096,
	};
	return 0;
}

static int answer_init(struct answer *a)
{
	struct fuse_init_in in;

	/* What comes after the first four words is newer. */
	if (a->body_bytes < offsetof(struct fuse_init_in, flags2))
		return -EIO;
	memcpy(&in, a->body, offsetof(struct fuse_init_in, flags2));
	if (in.major < FUSE_KERNEL_VERSION)
		return -EPROTO;
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = in.max_readahead,
		.max_background = 12,
		.congestion_threshold = 9,
		.max_write = MAX_WRITE,
		.time_gran = 1,
	};
	return put(a, &out, sizeof(out));
}

static int answer_lookup(struct answer *a)
{
	static const char name[] = "health"; /* with its end */
	struct fuse_entry_out out = {.nodeid = health_node(), .generation = GENERATION};

	if (a->in.nodeid != FUSE_ROOT_ID || a->body_bytes != sizeof(name) || memcmp(a->body, name, sizeof(name)) != 0)
		return -EIO;
	int r = fill_attr(a, out.nodeid, &out.attr);
	return r ? r : put(a, &out, sizeof(out));
}

static int answer_getattr(struct answer *a)
{
	struct fuse_attr_out out = {.attr_valid = 0};
	int r = fill_attr(a, a->in.nodeid, &out.attr);

	return r ? r : put(a, &out, sizeof(out));
}

static int answer_open(struct answer *a, uint64_t node)
{
	/* The text is not what the kernel may remember of the file. */
	struct fuse_open_out out = {.open_flags = node == FUSE_ROOT_ID ? 0 : FOPEN_DIRECT_IO};
	struct fuse_open_in in;

	if (a->in.nodeid != node || !argument(a, &in, sizeof(in)))
		return -EIO;
	return (in.flags & O_ACCMODE) == O_RDONLY ? put(a, &out, sizeof(out)) : -EIO;
}

/* As much as fits: whoever wants more asks again. */
static int answer_read(struct answer *a)
{
	struct fuse_read_in in;

	if (a->in.nodeid != health_node() || !argument(a, &in, sizeof(in)))
		return -EIO;
	if (in.offset >= a->fallen->bytes)
		return 0;
	size_t bytes = a->fallen->bytes - in.offset, room = a->capacity - a->bytes;
	if (bytes > in.size)
		bytes = in.size;
	return put(a, a->fallen->text + in.offset, bytes < room ? bytes : room);
}

/* With @plus each has a place for what a look-up would say; node 0 there: look it up yourself. */
static int answer_readdir(struct answer *a, bool plus)
{
	static const struct {
		const char *name;
		uint32_t type;
	} entries[] = {{".", DT_DIR}, {"..", DT_DIR}, {"health", DT_REG}};
	struct fuse_read_in in;

	if (a->in.nodeid != FUSE_ROOT_ID || !argument(a, &in, sizeof(in)))
		return -EIO;
	for (uint64_t i = in.offset; i < sizeof(entries) / sizeof(entries[0]); i++) {
		struct {
			struct fuse_entry_out entry;
			uint8_t bytes[FUSE_NAME_OFFSET + 8];
		} one = {.bytes = {0}};
		struct fuse_dirent d = {.ino = i < 2 ? FUSE_ROOT_ID : health_node(),
			.off = i + 1,
			.namelen = (uint32_t)strlen(entries[i].name),
			.type = entries[i].type};
		const void *from = plus ? (const void *)&one : one.bytes;
		size_t bytes = sizeof(one.bytes) + (plus ? sizeof(one.entry) : 0);

		memcpy(one.bytes, &d, FUSE_NAME_OFFSET);
		memcpy(one.bytes + FUSE_NAME_OFFSET, entries[i].name, d.namelen);
		if (a->bytes - sizeof(struct fuse_out_header) + bytes > in.size || put(a, from, bytes))
			break;
	}
	return 0;
}

/* No attributes: for any other answer the kernel may not ask again, of a successor neither. */
static int answer_listxattr(struct answer *a)
{
	struct fuse_getxattr_out out = {.size = 0};
	struct fuse_getxattr_in in;

	if (a->in.nodeid != health_node() && a->in.nodeid != FUSE_ROOT_ID)
		return -EIO;
	if (!argument(a, &in, sizeof(in)))
		return -EIO;
	return in.size ? 0 : put(a, &out, sizeof(out));
}

static int answer_one(struct answer *a)
{
	switch (a->in.opcode) {
	case FUSE_INIT:
		return answer_init(a);
	case FUSE_LOOKUP:
		return answer_lookup(a);
	case FUSE_GETATTR:
		return answer_getattr(a);
	case STATX:
		return -ENOSYS; /* as in life: it asks for FUSE_GETATTR */
	case FUSE_LISTXATTR:
		return answer_listxattr(a);
	case FUSE_GETXATTR:
		return a->in.nodeid == health_node() || a->in.nodeid == FUSE_ROOT_ID ? -ENODATA : -EIO;
	case FUSE_OPENDIR:
		return answer_open(a, FUSE_ROOT_ID);
	case FUSE_OPEN:
		return answer_open(a, health_node());
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		return answer_readdir(a, a->in.opcode == FUSE_READDIRPLUS);
	case FUSE_READ:
		return answer_read(a);
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
		return 0;
	default:
		return -EIO;
	}
}

static bool wants_none(uint32_t opcode)
{
	return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_INTERRUPT || opcode == FUSE_NOTIFY_REPLY;
}

size_t fallen_reply(const struct fallen *fallen, const void *request, size_t bytes, void *reply, size_t capacity)
{
	struct answer a = {.fallen = fallen, .to = reply, .bytes = sizeof(struct fuse_out_header), .capacity = capacity};

	if (bytes < sizeof(a.in))
		return 0;
	memcpy(&a.in, request, sizeof(a.in));
	if (wants_none(a.in.opcode))
		return 0;
	a.body = (const uint8_t *)request + sizeof(a.in);
	a.body_bytes = bytes - sizeof(a.in);
	int error = answer_one(&a);
	struct fuse_out_header header = {
		.len = (uint32_t)(error ? sizeof(header) : a.bytes), .error = error, .unique = a.in.unique};
	memcpy(reply, &header, sizeof(header));
	return header.len;
}

/* ---- the mount ----------------------------------------------------------------------------------------------------- */

int fallen_prepare(struct fallen *fallen)
{
	*fallen = (struct fallen){.fuse = -1, .request = malloc(FALLEN_REQUEST_BYTES)};
	if (!fallen->request)
		return -ENOMEM;
	memset(fallen->request, 0xa5, FALLEN_REQUEST_BYTES); /* not 0, which a compiler would have calloc promise */
	return 0;
}

void fallen_begin(struct fallen *fallen, int fuse, struct will *will, const char *text, size_t bytes)
{
	fallen->fuse = fuse;
	fallen->will = will;
	fallen->text = text;
	fallen->bytes = bytes;
	connection_resend(fuse, NULL); /* an old kernel does not: what was read there is ended with the connection */
	connection_wake_polls(fuse, will);
}

/* A mount whose INIT is answered here was never a serving process's. */
static void keep_init(struct fallen *fallen, size_t bytes)
{
	struct fuse_in_header header;

	if (bytes < sizeof(header))
		return;
	memcpy(&header, fallen->request, sizeof(header));
	if (header.opcode == FUSE_INIT)
		connection_keep(fallen->will, 0, fallen->request, bytes);
}

int fallen_answer(struct fallen *fallen)
{
	uint8_t reply[FALLEN_REPLY_BYTES];

	for (unsigned i = 0; i < ANSWERS; i++) {
		ssize_t n = read(fallen->fuse, fallen->request, FALLEN_REQUEST_BYTES);

		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n == 0 || (n < 0 && errno == ENODEV))
			return -ENODEV;
		if (n < 0) /* EINTR; ENOENT: it was interrupted before it was read */
			continue;
		keep_init(fallen, (size_t)n);
		size_t bytes = fallen_reply(fallen, fallen->request, (size_t)n, reply, sizeof(reply));
		if (bytes && write(fallen->fuse, reply, bytes) < 0)
			continue; /* ENOENT: nobody waits for it any more */
	}
	return 1;
}

void fallen_end(struct fallen *fallen)
{
	free(fallen->request);
	*fallen = (struct fallen){.fuse = -1};
}
