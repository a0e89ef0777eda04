/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ioctl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "fs/carriers.h"
#include "fs/handles.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "fs/requests.h"
#include "store/base/clock.h"

static const struct operation *const operations[] = {
	[_IOC_NR(PFS_IOC_ATTACH)] = &ioctl_attach,
	[_IOC_NR(PFS_IOC_SEGMENTS)] = &ioctl_segments,
	[_IOC_NR(PFS_IOC_SEGMENTS_ACK)] = &ioctl_segments_ack,
	[_IOC_NR(PFS_IOC_PUT_START)] = &ioctl_put_start,
	[_IOC_NR(PFS_IOC_PUT_COMMIT)] = &ioctl_put_commit,
	[_IOC_NR(PFS_IOC_PUT_ABORT)] = &ioctl_put_abort,
	[_IOC_NR(PFS_IOC_GET_START)] = &ioctl_get_start,
	[_IOC_NR(PFS_IOC_GET_TRANSFER)] = &ioctl_get_transfer,
	[_IOC_NR(PFS_IOC_GET_CANCEL)] = &ioctl_get_cancel,
	[_IOC_NR(PFS_IOC_RELEASE)] = &ioctl_release,
	[_IOC_NR(PFS_IOC_PROBE)] = &ioctl_probe,
	[_IOC_NR(PFS_IOC_STAT)] = &ioctl_stat,
	[_IOC_NR(PFS_IOC_LAST_ERROR)] = &ioctl_last_error,
	[_IOC_NR(PFS_IOC_IMPORT)] = &ioctl_import,
	[_IOC_NR(PFS_IOC_GET_CONFIRM)] = &ioctl_get_confirm,
	[_IOC_NR(PFS_IOC_TOUCH)] = &ioctl_touch,
	[_IOC_NR(PFS_IOC_REMOVE)] = &ioctl_remove,
	[_IOC_NR(PFS_IOC_PIN)] = &ioctl_pin,
	[_IOC_NR(PFS_IOC_DRAIN)] = &ioctl_drain,
	[_IOC_NR(PFS_IOC_RESET)] = &ioctl_reset,
	[_IOC_NR(PFS_IOC_GET_INTO)] = &ioctl_get_into,
	[_IOC_NR(PFS_IOC_BLOB_PUT)] = &ioctl_blob_put,
	[_IOC_NR(PFS_IOC_BLOB_GET)] = &ioctl_blob_get,
	[_IOC_NR(PFS_IOC_BLOB_REMOVE)] = &ioctl_blob_remove,
	[_IOC_NR(PFS_IOC_BLOB_LOCK)] = &ioctl_blob_lock,
	[_IOC_NR(PFS_IOC_SETTLE)] = &ioctl_settle,
};
#define OPERATIONS (sizeof(operations) / sizeof(operations[0]))

unsigned ioctl_nr(const struct operation *operation)
{
	for (unsigned i = 0; i < OPERATIONS; i++)
		if (operations[i] == operation)
			return i;
	return 0;
}

const char *ioctl_name(unsigned nr)
{
	return nr < OPERATIONS && operations[nr] ? operations[nr]->name : NULL;
}

/* ---- the answer ---------------------------------------------------------------------------------------------- */

/* No outcome: the same number may be sent again. */
static bool passing(int result)
{
	return result == -EAGAIN || result == -EINTR || result == -EBUSY;
}

/* The call is over with @result, 0 or a negative errno. Everything of it is settled before the kernel hears of it: the
 * client's next request, or the release of the file, may come at once. */
static void answer(struct fs *fs, struct call *call, int result)
{
	const struct operation *op = call->operation;
	struct ctl *ctl = call->ctl;
	unsigned nr = ioctl_nr(op);
	uint64_t handle = ctl_handle(ctl);
	fuse_req_t req = call->req;
	uint64_t began_ns = call->began_ns;
	unsigned char reply[sizeof(struct pfs_last_error)];
	uint32_t bytes = call->bytes;

	lock_assert_none_held();
	if (op->done)
		op->done(call);
	if (call->entered)
		session_leave(ctl_session(ctl));
	if (result && !op->forgettable) {
		if (!call->why.error)
			why_set(&call->why, -result, "%s: %s", op->name, strerror(-result));
		session_note_error(ctl_session(ctl), call->arg.call.seq, nr, &call->why);
		log_debug("session %" PRIu64 ": %s: %s", ctl_session_number(ctl), op->name, call->why.text);
	}
	if (call->noted)
		ctl_request_end(ctl, call->arg.call.seq, nr, !op->forgettable && !passing(result), result,
			call->arg.bytes, bytes);
	assert(bytes <= sizeof(reply));
	memcpy(reply, call->arg.bytes, bytes);
	calls_put(fs->calls, call);
	handles_put(fs->handles, handle);
	fuse_reply_ioctl(req, result, reply, bytes);
	requests_count(REQUESTS_IOCTL + nr, clock_now_ns() - began_ns);
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

/* It leaves this thread. */
static void let_go(struct call *call)
{
	/* The kernel may cut in from here on; it names the call, which stays ours until it is published. */
	if (!call->armed) {
		call->armed = true;
		fuse_req_interrupt_func(call->req, calls_interrupt, calls_name(call));
	}
	call->began_ns = clock_now_ns() - call->began_ns; /* what it has taken so far */
}

static void publish(struct fs *fs, struct call *call, bool park)
{
	call->waiting = park;
	call->wake_ns = call->look_ns && call->look_ns < call->deadline_ns ? call->look_ns : call->deadline_ns;
	let_go(call);
	calls_publish(fs->calls, call, park);
}

/* False: the daemon is stopping. */
static bool hand_to_carrier(struct fs *fs, struct call *call)
{
	let_go(call);
	if (carriers_give(fs->carriers, call, call->operation->carry))
		return true;
	call->began_ns = clock_now_ns() - call->began_ns;
	return false;
}

static void give_up(struct fs *fs, struct call *call, int error)
{
	if (call->operation->undo)
		call->operation->undo(call);
	why_set(&call->why, error, "%s: %s", call->operation->name,
		error == EINTR       ? "the wait was interrupted"
		: error == EAGAIN    ? "it would have to wait, and NONBLOCK was asked for"
		: error == ESHUTDOWN ? "the session's process is gone"
				     : "the daemon is stopping");
	answer(fs, call, -error);
}

static void go_on(struct fs *fs, struct call *call, int r)
{
	if (r == STEP_MORE) {
		publish(fs, call, false);
	} else if (r == STEP_CARRY && !fs->carriers) { /* a test's world: here and now */
		call->operation->carry(call);
		go_on(fs, call, call->operation->step(call));
	} else if (r == STEP_CARRY) {
		if (!hand_to_carrier(fs, call))
			give_up(fs, call, ENODEV);
	} else if (r == STEP_WAIT) {
		if (call->arg.call.flags & PFS_CALL_NONBLOCK)
			give_up(fs, call, EAGAIN);
		else
			publish(fs, call, true);
	} else {
		answer(fs, call, r);
	}
}

void ioctl_run(struct fs *fs, struct call *call)
{
	call->began_ns = clock_now_ns() - call->began_ns; /* as if it had not lain in the queue */
	if (call->waiting) {
		int error = calls_verdict(fs->calls, call);

		if (error) {
			give_up(fs, call, error);
			return;
		}
	}
	call->change = calls_change(fs->calls, ctl_serial(call->ctl));
	go_on(fs, call, call->operation->step(call));
}

/* ---- receiving ----------------------------------------------------------------------------------------------- */

static int check_call(const struct pfs_call *c, uint32_t bytes, struct why *why)
{
	if (c->size != bytes)
		return why_set(why, EINVAL, "call.size: %u is not the %u bytes of the struct", c->size, bytes);
	if (c->flags & ~PFS_CALL_NONBLOCK)
		return why_set(
			why, EINVAL, "call.flags: 0x%x has unknown bits; known is 0x%x", c->flags, PFS_CALL_NONBLOCK);
	if (c->seq == 0)
		return why_set(why, EINVAL, "call.seq: it is 0; requests are numbered from 1");
	if (c->deadline_ms > PFS_MAX_DEADLINE_MS)
		return why_set(why, EINVAL, "call.deadline_ms: %u is over the limit of %u", c->deadline_ms,
			PFS_MAX_DEADLINE_MS);
	return 0;
}

/* An error before there is a call: noted like any other. */
static void refuse(fuse_req_t req, struct ctl *ctl, uint64_t seq, unsigned nr, const struct why *why)
{
	session_note_error(ctl_session(ctl), seq, nr, why);
	fuse_reply_err(req, why->error);
}

/* Enters the session, where the operation works inside one; the call buffer is at hand then. */
static int enter(struct call *call)
{
	int r;

	if (call->operation->outside)
		return 0;
	r = session_enter(ctl_session(call->ctl), call->arg.call.acked_seq, &call->why);
	if (r)
		return r;
	call->entered = true;
	call->span.buffer = session_call_buffer(ctl_session(call->ctl), &call->span.bytes);
	return 0;
}

static void begin(struct fs *fs, struct call *call, unsigned nr)
{
	const struct operation *op = call->operation;

	uint64_t now_ns = clock_now_ns();

	call->began_ns = now_ns;
	loop_follow(call->arg.call.cpu);
	int result, r = check_call(&call->arg.call, call->bytes, &call->why);

	if (!r && !op->forgettable) {
		r = ctl_request_begin(
			call->ctl, call->arg.call.seq, nr, now_ns, &result, call->arg.bytes, call->bytes, &call->why);
		if (r == CTL_E_REPEATED) {
			uint64_t handle = ctl_handle(call->ctl);
			unsigned char reply[CTL_ANSWER_BYTES];
			uint32_t bytes = call->bytes;

			memcpy(reply, call->arg.bytes, bytes);
			fuse_req_t req = call->req;
			calls_put(fs->calls, call);
			handles_put(fs->handles, handle);
			fuse_reply_ioctl(req, result, reply, bytes);
			return;
		}
		call->noted = r == 0;
	}
	if (!r)
		r = enter(call);
	if (r) {
		answer(fs, call, r);
		return;
	}
	uint32_t patience = call->arg.call.deadline_ms ? call->arg.call.deadline_ms : op->deadline_ms;
	call->deadline_ns = now_ns + patience * 1000000ull;
	call->change = calls_change(fs->calls, ctl_serial(call->ctl));
	if (!op->forgettable)
		ctl_note_asked(call->ctl);
	r = op->begin(call);
	if (r == STEP_MORE)
		r = op->step(call); /* the first step at once: a short batch is answered here */
	go_on(fs, call, r);
}

/* What the number of the ioctl says: the operation, or NULL with the sentence. */
static const struct operation *find_operation(
	unsigned cmd, size_t in_bytes, size_t out_bytes, const void *in, struct why *why)
{
	unsigned nr = _IOC_NR(cmd);
	const struct operation *op = nr < OPERATIONS ? operations[nr] : NULL;

	if (!op) {
		if (nr > 0 && nr <= PFS_IOC_NR_LAST)
			why_set(why, EOPNOTSUPP, "operation %u is not served by this version", nr);
		else
			why_set(why, ENOTTY, "there is no operation %u", nr);
		return NULL;
	}
	uint32_t bytes = _IOC_SIZE(cmd);

	if (bytes == 0 || (bytes != op->bytes && bytes != op->bytes_1) || _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE) || !in ||
		in_bytes < bytes || out_bytes < bytes) {
		why_set(why, EINVAL,
			"%s: the ioctl number carries %u bytes and direction %u; it has %u bytes, in and out", op->name,
			bytes, _IOC_DIR(cmd), op->bytes);
		return NULL;
	}
	return op;
}

void ioctl_receive(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *argument, struct fuse_file_info *fi,
	unsigned flags, const void *in, size_t in_bytes, size_t out_bytes)
{
	struct fs *fs = fuse_req_userdata(req);
	struct why why = WHY_INIT;
	uint64_t seq = 0;

	if (cmd == PFS_IOC_EMPTY) {
		loop_follow((uint32_t)(uintptr_t)argument);
		fuse_reply_ioctl(req, 0, NULL, 0);
		return;
	}
	if (_IOC_TYPE(cmd) != PFS_IOC_TYPE) {
		fuse_reply_err(req, ENOTTY);
		return;
	}
	struct ctl *ctl = handles_take(fs->handles, fi->fh, HANDLE_CTL);
	if (!ctl) { /* another file of the mount, or a handle of an earlier daemon */
		fuse_reply_err(req, fi->fh ? ESTALE : ENOTTY);
		return;
	}
	if (in && in_bytes >= sizeof(struct pfs_call))
		memcpy(&seq, (const char *)in + offsetof(struct pfs_call, seq), sizeof(seq));
	const struct operation *op = find_operation(cmd, in_bytes, out_bytes, in, &why);
	struct call *call = op ? calls_get(fs->calls, ctl) : NULL;
	if (!call) {
		if (op)
			why_set(&why, EBUSY, "%u requests are under way on this host, the most that it serves",
				CALLS_MAX);
		refuse(req, ctl, seq, _IOC_NR(cmd), &why);
		handles_put(fs->handles, fi->fh);
		return;
	}
	call->req = req;
	call->run = ioctl_run;
	call->operation = op;
	call->bytes = _IOC_SIZE(cmd);
	memcpy(call->arg.bytes, in, call->bytes);
	if (call->bytes < op->bytes)
		memset(call->arg.bytes + call->bytes, 0, op->bytes - call->bytes);
	begin(fs, call, _IOC_NR(cmd));
}
