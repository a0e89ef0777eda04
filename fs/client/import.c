/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory files of the engine's own, and transfers into them. A file is brought to the daemon again on each connection that it is
 * used on.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/client/client.h"

/* (imports_lock) */
static struct imported *find(struct pfs_session *session, uint64_t id)
{
	for (unsigned i = 0; i < PFS_MAX_IMPORTS; i++)
		if (session->imports[i].id == id)
			return &session->imports[i];
	return NULL;
}

/* After a failure, whose sentence stays: its place in the daemon is free again. An error says that the connection is gone. */
static int withdraw(struct pfs_session *session, struct conn *conn, const struct imported *import)
{
	struct pfs_import a = {.import = import->id, .flags = PFS_IMPORT_DROP};
	char text[512];
	int r;

	pfs_last_error(text, sizeof(text));
	r = call_run(session, conn, PFS_IOC_IMPORT, &a.call, sizeof(a), 0, 0);
	say_text(text);
	return conn_is_lost(r) ? r : 0;
}

/* (imports_lock) The daemon on the other side of @conn has it afterwards. */
static int bring(struct pfs_session *session, struct conn *conn, struct imported *import)
{
	struct pfs_hello hello = {.abi_version = PFS_ABI_VERSION, .kind = PFS_HELLO_IMPORT};
	struct pfs_import a = {.import = import->id};
	int r, lost;

	if (import->conn == conn->serial)
		return 0;
	r = call_run(session, conn, PFS_IOC_IMPORT, &a.call, sizeof(a), 0, 0);
	if (r)
		return r;
	memcpy(hello.token, a.token, sizeof(hello.token));
	r = conn_show_token(
		session, conn->socket_path, &hello, import->fd, now_ms() + session->options.deadline_ms, NULL);
	if (!r) {
		import->conn = conn->serial;
		return 0;
	}
	lost = withdraw(session, conn, import);
	return lost ? lost : r;
}

static int bring_on(struct pfs_session *session, struct conn *conn, void *context)
{
	return bring(session, conn, context);
}

static int drop_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct imported *import = context;
	struct pfs_import a = {.import = import->id, .flags = PFS_IMPORT_DROP};
	int r;

	if (import->conn != conn->serial)
		return 0; /* that daemon never had it */
	r = call_run(session, conn, PFS_IOC_IMPORT, &a.call, sizeof(a), 0, 0);
	return r == -ENOENT ? 0 : r;
}

/* (imports_lock) */
static void forget(struct imported *import)
{
	close(import->fd);
	*import = (struct imported){.fd = -1};
}

void imports_free(struct pfs_session *session)
{
	for (unsigned i = 0; i < PFS_MAX_IMPORTS; i++)
		if (session->imports[i].id)
			forget(&session->imports[i]);
}

int pfs_import_add(struct pfs_session *session, int fd, uint64_t *ret)
{
	struct imported *import;
	int copy, r;

	if (!ret)
		return say(EINVAL, "import: ret is NULL");
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return say(errno, "import: descriptor %d: %s", fd, strerror(errno));
	pthread_mutex_lock(&session->imports_lock);
	import = find(session, 0);
	if (!import) {
		pthread_mutex_unlock(&session->imports_lock);
		close(copy);
		return say(EDQUOT, "the session has %u imports, more are not possible", PFS_MAX_IMPORTS);
	}
	*import = (struct imported){.id = ++session->import_counter, .fd = copy};
	r = conn_run(session, bring_on, import);
	if (r)
		forget(import);
	else
		*ret = import->id;
	pthread_mutex_unlock(&session->imports_lock);
	return r;
}

int pfs_import_drop(struct pfs_session *session, uint64_t id)
{
	struct imported *import;
	int r;

	pthread_mutex_lock(&session->imports_lock);
	import = id ? find(session, id) : NULL;
	if (!import)
		r = say(ENOENT, "this session has no import %llu", (unsigned long long)id);
	else
		r = conn_run(session, drop_on, import);
	if (import && r != -EBUSY)
		forget(import);
	pthread_mutex_unlock(&session->imports_lock);
	return r;
}

/* ---- transfer --------------------------------------------------------------------------------------------------- */

static int bring_for(struct pfs_session *session, struct conn *conn, uint64_t id)
{
	struct imported *import;
	int r;

	pthread_mutex_lock(&session->imports_lock);
	import = id ? find(session, id) : NULL;
	if (!import)
		r = say(ENOENT, "this session has no import %llu", (unsigned long long)id);
	else
		r = bring(session, conn, import);
	pthread_mutex_unlock(&session->imports_lock);
	return r;
}

static int into_on(struct pfs_session *session, struct conn *conn, const struct pfs_into_request *q, struct pfs_get_into *a)
{
	uint64_t pages = (q->to - q->from) / conn->page_tokens;
	__u64 area = AREA_NONE;
	int r = bring_for(session, conn, q->import);

	if (!r && q->blocks && pages)
		r = area_take(session, conn, pages * sizeof(*q->blocks), &area);
	if (r)
		return r;
	*a = (struct pfs_get_into){
		.handle = q->handle,
		.boundary = q->boundary,
		.from = q->from,
		.to = q->to,
		.import = q->import,
		.base = q->base,
		.stride = q->stride,
		.blocks_offset = area == AREA_NONE ? PFS_OFFSET_NONE : area,
		.state_base = q->state_base,
		.class_mask = q->class_mask,
	};
	memcpy(a->class_offset, q->class_offset, sizeof(a->class_offset));
	if (area != AREA_NONE)
		memcpy(conn->buffer + area, q->blocks, pages * sizeof(*q->blocks));
	r = call_run(session, conn, PFS_IOC_GET_INTO, &a->call, sizeof(*a), q->call_flags, q->deadline_ms);
	area_give(session, conn, area);
	return r;
}

static int check_into(const struct pfs_into_request *q, const struct plan *handle)
{
	for (unsigned i = 0; i < 5; i++)
		if (q->reserved[i])
			return say(EINVAL, "into: reserved field %u is not 0", i);
	if (handle->over)
		return say(EINVAL, "into: nothing above `have` is there under handle %#llx", (unsigned long long)q->handle);
	if (q->from > q->to || q->to > q->boundary || (q->to - q->from) / handle->conn->page_tokens > PFS_MAX_KEYS)
		return say(EINVAL, "into: from %llu to %llu of boundary %llu", (unsigned long long)q->from,
			(unsigned long long)q->to, (unsigned long long)q->boundary);
	return 0;
}

int pfs_get_into(struct pfs_session *session, const struct pfs_into_request *q, struct pfs_into_result *ret)
{
	struct pfs_get_into a = {0};
	struct plan *handle;
	bool lost;
	int r = plan_find(session, q->handle, PLAN_HANDLE, &handle);

	if (r)
		return r;
	r = check_into(q, handle);
	if (r) {
		plan_leave(session, handle, false);
		return r;
	}
	lost = plan_lost(session, handle);
	if (!lost) {
		r = into_on(session, handle->conn, q, &a);
		lost = conn_is_lost(r);
		if (lost)
			conn_mark_lost(session, handle->conn, r);
	}
	if (lost) { /* a miss */
		a = (struct pfs_get_into){.delivered_len = q->from, .handle_ended = 1};
		r = 0;
	}
	if (!r)
		*ret = (struct pfs_into_result){
			.delivered_len = a.delivered_len,
			.bytes = a.bytes,
			.values = a.values,
			.handle_ended = a.handle_ended,
		};
	plan_leave(session, handle, r == -EALREADY || (!r && a.handle_ended));
	return r;
}
