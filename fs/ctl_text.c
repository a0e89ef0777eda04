/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ctl_text.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "fs/calls.h"
#include "fs/ctl.h"
#include "fs/ctl_command.h"
#include "fs/handles.h"
#include "fs/log.h"
#include "fs/notifier.h"
#include "store/base/clock.h"

#define COMMANDS_A_TURN 16u /* of one write, before others have their turn */

struct ctl_text {
	struct lock lock;         /* LOCK_QUEUE; guards what is marked */
	bool writing;             /* (lock) */
	char *unread;             /* (lock) answers that wait, or NULL */
	size_t capacity;          /* (lock) of it: grows, to CTL_UNREAD_MAX at most */
	size_t first;             /* (lock) the answers lie from here */
	_Atomic size_t waiting;   /* bytes of them; written under the lock, read without */
	/* The rest belongs to the write under way. */
	bool in_command;
	struct ctl_line line;
	struct ctl_command_run command;
};

struct ctl_text *ctl_text_new(void)
{
	struct ctl_text *t = calloc(1, sizeof(*t));

	if (t)
		lock_init(&t->lock, LOCK_QUEUE);
	return t;
}

void ctl_text_free(struct ctl_text *t)
{
	if (!t)
		return;
	assert(!t->writing && !t->in_command);
	free(t->unread);
	lock_destroy(&t->lock);
	free(t);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

static bool has_room(const struct ctl_text *t)
{
	return atomic_load(&t->waiting) <= CTL_UNREAD_MAX - CTL_ANSWER_MAX;
}

unsigned ctl_text_events(const struct ctl_text *t)
{
	return (atomic_load(&t->waiting) ? POLLIN | POLLRDNORM : 0) | (has_room(t) ? POLLOUT | POLLWRNORM : 0);
}

/* Under the lock: @bytes more fit behind what waits. */
static bool make_place(struct ctl_text *t, size_t bytes)
{
	size_t waiting = atomic_load(&t->waiting), capacity = t->capacity ? t->capacity : 4096;
	char *more;

	lock_assert_held(&t->lock);
	if (t->first) {
		memmove(t->unread, t->unread + t->first, waiting);
		t->first = 0;
	}
	while (capacity < waiting + bytes)
		capacity *= 2;
	assert(capacity <= CTL_UNREAD_MAX);
	if (capacity == t->capacity)
		return true;
	more = realloc(t->unread, capacity);
	if (!more)
		return false;
	t->unread = more;
	t->capacity = capacity;
	return true;
}

/* False: no memory; or no room, which who had has_room() does not see. */
static bool append(struct ctl_text *t, const char *answer, size_t bytes)
{
	bool fits;

	assert(bytes <= CTL_ANSWER_MAX);
	lock_take(&t->lock);
	fits = atomic_load(&t->waiting) + bytes <= CTL_UNREAD_MAX && make_place(t, bytes);
	if (fits) {
		memcpy(t->unread + atomic_load(&t->waiting), answer, bytes);
		atomic_fetch_add(&t->waiting, bytes);
	}
	lock_drop(&t->lock);
	return fits;
}

void ctl_text_read(fuse_req_t req, struct ctl *ctl, size_t bytes)
{
	struct fs *fs = fuse_req_userdata(req);
	struct ctl_text *t = ctl_text_face(ctl, false);
	char *to = NULL;
	size_t n = 0;

	if (t && atomic_load(&t->waiting)) {
		to = buffers_get(&fs->buffers, CTL_UNREAD_MAX);
		if (!to) {
			fuse_reply_err(req, ENOMEM);
			return;
		}
		lock_take(&t->lock);
		n = atomic_load(&t->waiting);
		n = n < bytes ? n : bytes;
		memcpy(to, t->unread + t->first, n);
		t->first += n;
		atomic_fetch_sub(&t->waiting, n);
		lock_drop(&t->lock);
		notifier_changed(fs->notifier); /* who polls for room */
	}
	fuse_reply_buf(req, to, n);
	buffers_put(&fs->buffers, to);
}

/* ---- the end of a write ---------------------------------------------------------------------------------------- */

static void end_write(struct ctl_text *t)
{
	lock_take(&t->lock);
	t->writing = false;
	lock_drop(&t->lock);
}

/* The write is over: @result bytes were taken, or a negative errno whose sentence is in call->why. Everything of it is
 * settled before the kernel hears of it. */
static void answer(struct fs *fs, struct call *call, ssize_t result)
{
	struct ctl *ctl = call->ctl;
	uint64_t handle = ctl_handle(ctl);
	fuse_req_t req = call->req;

	lock_assert_none_held();
	if (result < 0) {
		session_note_error(ctl_session(ctl), 0, 0, &call->why);
		log_debug("session %" PRIu64 ": text: %s", ctl_session_number(ctl), call->why.text);
	}
	end_write(call->work.text.face);
	notifier_changed(fs->notifier); /* who polls for answers */
	calls_put(fs->calls, call);
	handles_put(fs->handles, handle);
	if (result < 0)
		fuse_reply_err(req, (int)-result);
	else
		fuse_reply_write(req, (size_t)result);
}

/* A command or a line ended with @r. True: the write goes on. */
static bool note_answer(struct call *call, int r)
{
	struct ctl_text *t = call->work.text.face;
	size_t bytes = 0;
	char *text;

	if (r < 0 && !call->why.error)
		why_set(&call->why, -r, "%s", strerror(-r));
	if (t->in_command)
		text = ctl_command_end(&t->command, &call->why, &bytes);
	else
		text = ctl_command_error(&call->why, &bytes);
	t->in_command = false;
	if ((!text || !append(t, text, bytes)) && r >= 0)
		r = why_set(&call->why, ENOMEM, "the command was run, but there is no memory for its answer");
	free(text);
	return r >= 0;
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

/* A line, of which a command may begin: STEP_MORE: it has begun. 0: it is over, or there was none; else an error. */
static int next_line(struct call *call)
{
	struct ctl_text *t = call->work.text.face;
	const char *from = call->copy;
	char *words[CTL_LINE_WORDS];
	size_t taken = 0;
	int r = ctl_line_take(&t->line, from + call->work.text.done, call->work.text.bytes - call->work.text.done, &taken,
		&call->why);

	if (r < 0)
		return r;
	call->work.text.done += taken;
	if (r != CTL_LINE_WHOLE)
		return 0;
	r = ctl_line_words(&t->line, words, &call->why);
	if (r <= 0)
		return r;
	t->in_command = true;
	return ctl_command_begin(&t->command, call->ctl, words, (unsigned)r, &call->why);
}

/* Why the write has to end. */
static int verdict(struct fs *fs, struct call *call)
{
	int error = calls_verdict(fs->calls, call);

	if (!error && session_ended(ctl_session(call->ctl)))
		error = ESHUTDOWN;
	if (!error && clock_now_ns() > call->deadline_ns)
		return why_set(&call->why, ETIMEDOUT, "stopped after %u s: what was not done yet is left undone",
			CTL_WRITE_MS / 1000);
	if (!error)
		return 0;
	return why_set(&call->why, error, "%s",
		error == EINTR       ? "interrupted: what was not done yet is left undone"
		: error == ESHUTDOWN ? "the session has ended"
				     : "the daemon is stopping");
}

/* One step: STEP_MORE as long as there is something to do, STEP_WAIT, 0 when all was taken, or an error. */
static int step(struct fs *fs, struct call *call)
{
	struct ctl_text *t = call->work.text.face;
	int r = verdict(fs, call);

	if (!r && t->in_command)
		r = ctl_command_step(&t->command, &call->why);
	else if (!r && call->work.text.done == call->work.text.bytes)
		return 0;
	else if (!r && !has_room(t))
		return why_set(&call->why, EAGAIN, "%zu bytes of answers wait to be read; a command is run when at most %u do",
			atomic_load(&t->waiting), CTL_UNREAD_MAX - CTL_ANSWER_MAX);
	else if (!r)
		r = next_line(call);
	if (r == STEP_MORE || r == STEP_WAIT)
		return r;
	if (r == 0 && !t->in_command)
		return STEP_MORE; /* a line that says nothing */
	return note_answer(call, r) ? STEP_MORE : -call->why.error;
}

static void go_on(struct fs *fs, struct call *call)
{
	struct ctl_text *t = call->work.text.face;
	size_t before = 0;
	int r = STEP_MORE;

	for (unsigned i = 0; r == STEP_MORE && i < COMMANDS_A_TURN; i++) {
		before = call->work.text.done;
		call->change = calls_change(fs->calls, ctl_serial(call->ctl));
		r = step(fs, call);
		if (t->in_command)
			break; /* it was a step of a long one */
	}
	if (r == STEP_MORE || r == STEP_WAIT) {
		call->wake_ns = t->command.wake_ns < call->deadline_ns ? t->command.wake_ns : call->deadline_ns;
		if (!call->armed) {
			call->armed = true;
			fuse_req_interrupt_func(call->req, calls_interrupt, calls_name(call));
		}
		calls_publish(fs->calls, call, r == STEP_WAIT);
		return;
	}
	if (r == -EAGAIN && before) /* those before it were run */
		r = 0;
	answer(fs, call, r ? r : (ssize_t)call->work.text.done);
}

/* ---- the write ------------------------------------------------------------------------------------------------- */

static int begin_write(struct ctl *ctl, struct ctl_text *t, struct why *why)
{
	bool busy;

	if (!t)
		return why_set(why, ENOMEM, "no memory for the text face");
	lock_take(&t->lock);
	busy = t->writing;
	t->writing = true;
	lock_drop(&t->lock);
	return busy ? why_set(why, EBUSY, "another write to this open file is under way") : 0;
}

/* A write that cannot begin. */
static void refuse(fuse_req_t req, struct fs *fs, struct ctl *ctl, const struct why *why)
{
	uint64_t handle = ctl_handle(ctl);

	session_note_error(ctl_session(ctl), 0, 0, why);
	handles_put(fs->handles, handle);
	fuse_reply_err(req, why->error);
}

void ctl_text_write(fuse_req_t req, struct ctl *ctl, const char *from, size_t bytes)
{
	struct fs *fs = fuse_req_userdata(req);
	size_t n = bytes < CTL_WRITE_MAX ? bytes : CTL_WRITE_MAX;
	struct ctl_text *t = NULL;
	struct call *call = NULL;
	struct why why = WHY_INIT;
	int r = 0;

	if (ctl_read_only(ctl)) /* the kernel does not let it come so far */
		r = why_set(&why, EBADF, "the file was opened read-only");
	if (!r) {
		t = ctl_text_face(ctl, true);
		r = begin_write(ctl, t, &why);
	}
	if (!r) {
		call = calls_get(fs->calls, ctl);
		if (call)
			call->copy = buffers_get(&fs->buffers, n ? n : 1);
		if (!call)
			r = why_set(&why, EBUSY, "%u requests are under way on this host, the most that it serves",
				CALLS_MAX);
		else if (!call->copy)
			r = why_set(&why, ENOMEM, "no memory for %zu bytes of commands", n);
		if (r)
			end_write(t);
	}
	if (r) {
		if (call)
			calls_put(fs->calls, call);
		refuse(req, fs, ctl, &why);
		return;
	}
	call->req = req;
	call->run = go_on;
	call->work.text.face = t;
	call->work.text.bytes = n;
	call->work.text.done = 0;
	memcpy(call->copy, from, n);
	call->deadline_ns = clock_now_ns() + CTL_WRITE_MS * 1000000ull;
	ctl_note_asked(ctl);
	go_on(fs, call);
}
