/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs: storing, reading, removing, and who makes what is not there.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "fs/client/client.h"

#define PIECE_PART 4u /* of the call buffer's largest piece of memory */
#define MOST_PIECE (4u << 20)
#define RESET_TURNS 4u /* a write that a reset of the namespace ended begins anew */

/* What is named, as it is passed on. */
struct name {
	const struct pfs_key *key;
	const char *text; /* or NULL */
	uint32_t bytes;
};

static _Atomic uint64_t last_transfer; /* numbers of reads and writes in pieces, of the process */

static int check_name(const char *what, struct name *name, const struct pfs_key *key, const char *text)
{
	size_t bytes = text ? strnlen(text, PFS_MAX_BLOB_NAME + 1) : 0;

	if (!key && !text)
		return say(EINVAL, "%s: neither a key nor a name", what);
	if (text && (!bytes || bytes > PFS_MAX_BLOB_NAME))
		return say(EINVAL, "%s: a name has 1 to %u bytes", what, PFS_MAX_BLOB_NAME);
	*name = (struct name){.key = text ? NULL : key, .text = text, .bytes = (uint32_t)bytes};
	return 0;
}

/* An area for the name and @bytes more behind it; *data is where those are. */
static int place(struct pfs_session *session, struct conn *conn, const struct name *name, uint64_t bytes, __u64 *area,
	__u64 *data)
{
	uint64_t head = ((uint64_t)name->bytes + 7) / 8 * 8;
	int r;

	*area = AREA_NONE;
	*data = 0;
	if (!head && !bytes)
		return 0;
	r = area_take(session, conn, head + bytes, area);
	if (r)
		return r;
	if (name->bytes)
		memcpy(conn->buffer + *area, name->text, name->bytes);
	*data = *area + head;
	return 0;
}

static void set_key(struct pfs_key *key, const struct name *name)
{
	if (name->key)
		*key = *name->key;
}

static uint64_t piece_bytes(const struct conn *conn)
{
	uint64_t part = conn->buffer_bytes / PIECE_PART;

	return part < MOST_PIECE ? part : MOST_PIECE;
}

/* ---- storing --------------------------------------------------------------------------------------------------- */

struct put {
	struct name name;
	const uint8_t *data;
	uint64_t length;
	uint32_t kind, flags;
};

/* Gives the write up; what the call said stays said. */
static void put_abort(struct pfs_session *session, struct conn *conn, const struct pfs_blob_put *last)
{
	struct pfs_blob_put a = {.write = last->write, .key = last->key, .flags = PFS_BLOB_ABORT};
	char text[512];

	if (!a.write)
		return;
	pfs_last_error(text, sizeof(text));
	call_run(session, conn, PFS_IOC_BLOB_PUT, &a.call, sizeof(a), 0, 0);
	say_text(text);
}

static int put_pieces(struct pfs_session *session, struct conn *conn, const struct put *p, __u64 area, __u64 data, uint64_t piece)
{
	struct pfs_blob_put a = {.write = p->length > piece ? atomic_fetch_add(&last_transfer, 1) + 1 : 0};
	uint64_t at = 0;
	int r;

	do {
		uint32_t bytes = (uint32_t)(p->length - at < piece ? p->length - at : piece);

		a = (struct pfs_blob_put){.write = a.write,
			.name_offset = p->name.bytes ? area : 0,
			.name_bytes = p->name.bytes,
			.data_offset = data,
			.offset = at,
			.bytes = bytes,
			.length = p->length,
			.kind = p->kind,
			.flags = p->flags};
		set_key(&a.key, &p->name);
		if (bytes)
			memcpy(conn->buffer + data, p->data + at, bytes);
		r = call_run(session, conn, PFS_IOC_BLOB_PUT, &a.call, sizeof(a), 0, 0);
		at += bytes;
	} while (!r && at < p->length);
	if (r && !conn_is_lost(r))
		put_abort(session, conn, &a);
	return r;
}

static int put_on(struct pfs_session *session, struct conn *conn, void *context)
{
	const struct put *p = context;
	uint64_t piece = piece_bytes(conn) < p->length ? piece_bytes(conn) : p->length;
	__u64 area, data;
	int r = place(session, conn, &p->name, piece, &area, &data);

	for (unsigned turn = 0; !r && turn < RESET_TURNS; turn++) {
		r = put_pieces(session, conn, p, area, data, piece);
		if (r != -CHANGED_SINCE)
			break;
		r = turn + 1 < RESET_TURNS ? 0 : -EAGAIN;
	}
	area_give(session, conn, area);
	return r;
}

int pfs_blob_put(struct pfs_session *session, const struct pfs_key *key, const char *name, const void *data, uint64_t length,
	uint32_t kind, uint32_t flags)
{
	struct put p = {.data = data, .length = length, .kind = kind, .flags = flags};
	int r = check_name("blob_put", &p.name, key, name);

	if (!r && !data && length)
		r = say(EINVAL, "blob_put: no data of %llu bytes", (unsigned long long)length);
	if (!r && (flags & ~PFS_BLOB_EXCLUSIVE))
		r = say(EINVAL, "blob_put: flags %#x, 0 and PFS_BLOB_EXCLUSIVE are possible", flags);
	return r ? r : conn_run(session, put_on, &p);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

struct get {
	struct name name;
	uint8_t *to;
	uint64_t capacity;
	struct pfs_blob_get answer;
};

static int get_piece(struct pfs_session *session, struct conn *conn, struct get *g, __u64 area, __u64 data, uint64_t read,
	uint64_t at, uint64_t piece, uint32_t flags)
{
	struct pfs_blob_get *a = &g->answer;

	*a = (struct pfs_blob_get){.read = read,
		.name_offset = g->name.bytes ? area : 0,
		.name_bytes = g->name.bytes,
		.data_offset = data,
		.offset = at,
		.capacity = (uint32_t)(g->capacity - at < piece ? g->capacity - at : piece),
		.flags = flags};
	set_key(&a->key, &g->name);
	int r = call_run(session, conn, PFS_IOC_BLOB_GET, &a->call, sizeof(*a), 0, 0);

	if (!r && a->bytes)
		memcpy(g->to + at, conn->buffer + data, a->bytes);
	return r;
}

static int get_pieces(struct pfs_session *session, struct conn *conn, struct get *g, __u64 area, __u64 data, uint64_t piece)
{
	uint64_t read = g->capacity > piece ? atomic_fetch_add(&last_transfer, 1) + 1 : 0, at = 0;
	int r = get_piece(session, conn, g, area, data, read, at, piece, 0);

	if (r || !g->capacity)
		return r;
	while (!r && g->answer.length <= g->capacity && at + g->answer.bytes < g->answer.length) {
		at += g->answer.bytes;
		r = get_piece(session, conn, g, area, data, read, at, piece, 0);
	}
	if (!r && g->answer.length > g->capacity) {
		if (read)
			get_piece(session, conn, g, area, data, read, at, 0, PFS_BLOB_END);
		r = say(EMSGSIZE, "blob_get: it has %llu bytes, and there is room for %llu",
			(unsigned long long)g->answer.length, (unsigned long long)g->capacity);
	}
	return r;
}

static int get_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct get *g = context;
	uint64_t piece = piece_bytes(conn) < g->capacity ? piece_bytes(conn) : g->capacity;
	__u64 area, data;
	int r = place(session, conn, &g->name, piece, &area, &data);

	if (!r)
		r = get_pieces(session, conn, g, area, data, piece);
	area_give(session, conn, area);
	return r;
}

int pfs_blob_get(struct pfs_session *session, const struct pfs_key *key, const char *name, void *to, uint64_t capacity,
	struct pfs_blob_info *ret)
{
	struct get g = {.to = to, .capacity = capacity};
	const struct pfs_blob_get *a = &g.answer;
	int r = check_name("blob_get", &g.name, key, name);

	if (!r && !to && capacity)
		r = say(EINVAL, "blob_get: no memory of %llu bytes", (unsigned long long)capacity);
	if (!r)
		r = conn_run(session, get_on, &g);
	if ((!r || r == -EMSGSIZE) && ret)
		*ret = (struct pfs_blob_info){.length = a->length,
			.version = a->version,
			.created_s = a->created_s,
			.used_s = a->used_s,
			.kind = a->kind};
	return r;
}

/* ---- removing, locking ------------------------------------------------------------------------------------------- */

struct one {
	struct name name;
	unsigned long op;
	uint32_t flags, call_flags, hold_ms, deadline_ms;
	struct pfs_blob_lock lock;
};

static int one_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct one *o = context;
	struct pfs_blob_remove removal = {.name_bytes = o->name.bytes};
	__u64 area, data;
	int r = place(session, conn, &o->name, 0, &area, &data);

	if (r)
		return r;
	o->lock = (struct pfs_blob_lock){.name_bytes = o->name.bytes, .flags = o->flags, .hold_ms = o->hold_ms};
	o->lock.name_offset = removal.name_offset = o->name.bytes ? area : 0;
	set_key(&o->lock.key, &o->name);
	set_key(&removal.key, &o->name);
	if (o->op == PFS_IOC_BLOB_REMOVE)
		r = call_run(session, conn, o->op, &removal.call, sizeof(removal), 0, 0);
	else
		r = call_run(session, conn, o->op, &o->lock.call, sizeof(o->lock), o->call_flags, o->deadline_ms);
	area_give(session, conn, area);
	return r;
}

int pfs_blob_remove(struct pfs_session *session, const struct pfs_key *key, const char *name)
{
	struct one o = {.op = PFS_IOC_BLOB_REMOVE};
	int r = check_name("blob_remove", &o.name, key, name);

	return r ? r : conn_run(session, one_on, &o);
}

int pfs_blob_lock(struct pfs_session *session, const struct pfs_key *key, const char *name, uint32_t hold_ms,
	uint32_t deadline_ms, uint32_t call_flags, struct pfs_blob_info *ret)
{
	struct one o = {
		.op = PFS_IOC_BLOB_LOCK, .hold_ms = hold_ms, .deadline_ms = deadline_ms, .call_flags = call_flags};
	int r = check_name("blob_lock", &o.name, key, name);

	r = r ? r : conn_run(session, one_on, &o);
	if (r)
		return r;
	if (ret && o.lock.answer == PFS_BLOB_FOUND)
		*ret = (struct pfs_blob_info){
			.length = o.lock.length, .version = o.lock.version, .kind = o.lock.kind};
	return (int)o.lock.answer;
}

int pfs_blob_unlock(struct pfs_session *session, const struct pfs_key *key, const char *name)
{
	struct one o = {.op = PFS_IOC_BLOB_LOCK, .flags = PFS_BLOB_RELEASE};
	int r = check_name("blob_unlock", &o.name, key, name);

	return r ? r : conn_run(session, one_on, &o);
}
