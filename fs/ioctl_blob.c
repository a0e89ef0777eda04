/* SPDX-License-Identifier: Apache-2.0
 *
 * BLOB_PUT, BLOB_GET, BLOB_REMOVE, BLOB_LOCK.
 */
#include "fs/ioctl.h"

#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/blobs.h"

#define LOCK_HOLD_MS 30000u /* where the client says none */
#define LOCK_WAIT_MS 10000u

_Static_assert(PFS_MAX_BLOB_NAME == BLOBS_MAX_NAME && PFS_MAX_BLOB_TRANSFERS == BLOBS_SESSION_TRANSFERS &&
		       PFS_MAX_BLOB_LOCKS == BLOBS_SESSION_LOCKS,
	"limits of blobs");
_Static_assert(PFS_BLOB_EXCLUSIVE == BLOB_WRITE_EXCLUSIVE && PFS_BLOB_ABORT == BLOB_WRITE_ABORT &&
		       PFS_BLOB_END == BLOB_READ_END,
	"flags of blobs");
_Static_assert((int)PFS_BLOB_FOUND == (int)BLOB_LOCK_FOUND && (int)PFS_BLOB_LOCKED == (int)BLOB_LOCK_HELD &&
		       (int)PFS_BLOB_RELEASED == (int)BLOB_LOCK_RELEASED,
	"answers of BLOB_LOCK");

/* ---- what they share ------------------------------------------------------------------------------------------- */

/* The namespace's blobs; @writes: the session must be one that may. */
static int take_blobs(struct call *call, bool writes, struct blobs **ret)
{
	if (writes && ctl_read_only(call->ctl))
		return why_set(&call->why, EROFS, "the session is read-only");
	*ret = space_blobs(ctl_space(call->ctl));
	if (!*ret)
		return why_set(&call->why, EOPNOTSUPP, "namespace %s has no blobs: its layout has no memory.blobs",
			space_name(ctl_space(call->ctl)));
	return 0;
}

/* The key, or the name with its key. */
static int take_name(struct call *call, struct pfs_key *key, uint64_t offset, uint32_t bytes, struct blob_name *ret)
{
	char *text = NULL;
	int r = 0;

	ret->bytes = 0;
	ret->text[0] = 0;
	memcpy(ret->key.bytes, key->bytes, sizeof(ret->key.bytes));
	if (!bytes)
		return 0;
	if (bytes > BLOBS_MAX_NAME)
		return why_set(&call->why, EINVAL, "name_bytes: %u are over the limit of %u", bytes, BLOBS_MAX_NAME);
	r = span_take(&call->span, "name_offset", offset, bytes, 1, (void **)&text, &call->why);
	r = r ? r : blob_name_set(ret, text, bytes, &call->why);
	if (!r)
		memcpy(key->bytes, ret->key.bytes, sizeof(key->bytes));
	return r;
}

static int must_be_zero(struct call *call, const char *name, uint32_t value)
{
	return value ? why_set(&call->why, EINVAL, "%s: it is 0x%x and must be zero", name, value) : 0;
}

/* ---- BLOB_PUT -------------------------------------------------------------------------------------------------- */

static int put_call(struct call *call)
{
	struct pfs_blob_put *p = &call->arg.blob_put;
	struct blob_write *w = &call->work.blob_write;
	int r = take_blobs(call, true, &w->blobs);

	r = r ? r : must_be_zero(call, "reserved", p->reserved);
	r = r ? r : take_name(call, &p->key, p->name_offset, p->name_bytes, &w->name);
	r = r ? r : span_take(&call->span, "data_offset", p->data_offset, p->bytes, 1, (void **)&w->from, &call->why);
	if (r)
		return r;
	w->session = ctl_session_number(call->ctl);
	w->id = p->write;
	w->offset = p->offset;
	w->length = p->length;
	w->bytes = p->bytes;
	w->flags = p->flags;
	w->kind = p->kind;
	return blob_write_begin(w, &call->why);
}

static int put_go_on(struct call *call)
{
	return blob_write_step(&call->work.blob_write, &call->why);
}

static void put_done(struct call *call)
{
	call->arg.blob_put.stored = call->work.blob_write.stored;
	call->arg.blob_put.version = call->work.blob_write.version;
}

const struct operation ioctl_blob_put = {
	.name = "BLOB_PUT",
	.bytes = sizeof(struct pfs_blob_put),
	.begin = put_call,
	.step = put_go_on,
	.done = put_done,
};

/* ---- BLOB_GET -------------------------------------------------------------------------------------------------- */

static int get_call(struct call *call)
{
	struct pfs_blob_get *p = &call->arg.blob_get;
	struct blob_read *w = &call->work.blob_read;
	struct blob_name name;
	int r = take_blobs(call, false, &w->blobs);

	r = r ? r : take_name(call, &p->key, p->name_offset, p->name_bytes, &name);
	r = r ? r : span_take(&call->span, "data_offset", p->data_offset, p->capacity, 1, &w->to, &call->why);
	if (r)
		return r;
	w->session = ctl_session_number(call->ctl);
	w->id = p->read;
	w->key = name.key;
	w->offset = p->offset;
	w->capacity = p->capacity;
	w->flags = p->flags;
	return blob_read_begin(w, &call->why);
}

static int get_go_on(struct call *call)
{
	return blob_read_step(&call->work.blob_read, &call->why);
}

static void get_done(struct call *call)
{
	struct pfs_blob_get *p = &call->arg.blob_get;
	const struct blob_read *w = &call->work.blob_read;

	p->length = w->info.length;
	p->version = w->info.version;
	p->created_s = (uint64_t)w->info.created_s;
	p->used_s = (uint64_t)w->info.used_s;
	p->kind = w->info.kind;
	p->bytes = w->bytes;
	p->ended = w->ended;
}

const struct operation ioctl_blob_get = {
	.name = "BLOB_GET",
	.bytes = sizeof(struct pfs_blob_get),
	.begin = get_call,
	.step = get_go_on,
	.done = get_done,
};

/* ---- BLOB_REMOVE ----------------------------------------------------------------------------------------------- */

static int remove_call(struct call *call)
{
	struct pfs_blob_remove *p = &call->arg.blob_remove;
	struct blob_name name;
	struct blobs *blobs;
	int r = take_blobs(call, true, &blobs);

	r = r ? r : must_be_zero(call, "reserved", p->reserved);
	r = r ? r : take_name(call, &p->key, p->name_offset, p->name_bytes, &name);
	return r ? r : blobs_remove(blobs, &name.key, &call->why);
}

const struct operation ioctl_blob_remove = {
	.name = "BLOB_REMOVE",
	.bytes = sizeof(struct pfs_blob_remove),
	.begin = remove_call,
};

/* ---- BLOB_LOCK ------------------------------------------------------------------------------------------------- */

static int lock_call(struct call *call)
{
	struct pfs_blob_lock *p = &call->arg.blob_lock;
	struct blob_lock *w = &call->work.blob_lock;
	struct blob_name name;
	int r = take_blobs(call, true, &w->blobs);

	if (!r && (p->flags & ~PFS_BLOB_RELEASE))
		r = why_set(&call->why, EINVAL, "flags: 0x%x has unknown bits; known is 0x%x", p->flags, PFS_BLOB_RELEASE);
	if (!r && p->hold_ms > PFS_MAX_DEADLINE_MS)
		r = why_set(&call->why, EINVAL, "hold_ms: %u is over the limit of %u", p->hold_ms, PFS_MAX_DEADLINE_MS);
	r = r ? r : take_name(call, &p->key, p->name_offset, p->name_bytes, &name);
	if (r)
		return r;
	w->session = ctl_session_number(call->ctl);
	w->key = name.key;
	w->hold_ns = (p->hold_ms ? p->hold_ms : LOCK_HOLD_MS) * 1000000ull;
	w->deadline_ns = call->deadline_ns;
	return blob_lock_begin(w, p->flags & PFS_BLOB_RELEASE, &call->why);
}

static int lock_go_on(struct call *call)
{
	int r = blob_lock_step(&call->work.blob_lock, &call->why);

	call->look_ns = call->work.blob_lock.look_ns;
	return r;
}

static void lock_done(struct call *call)
{
	struct pfs_blob_lock *p = &call->arg.blob_lock;
	struct blob_lock *w = &call->work.blob_lock;
	uint64_t now_ns = clock_now_ns();

	p->answer = w->answer;
	p->length = w->info.length;
	p->version = w->info.version;
	p->kind = w->info.kind;
	p->left_ms = !w->answer && w->look_ns > now_ns ? (uint32_t)((w->look_ns - now_ns) / 1000000) : 0;
	blob_lock_end(w);
}

const struct operation ioctl_blob_lock = {
	.name = "BLOB_LOCK",
	.bytes = sizeof(struct pfs_blob_lock),
	.deadline_ms = LOCK_WAIT_MS,
	.begin = lock_call,
	.step = lock_go_on,
	.done = lock_done,
};
