/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ctl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "fs/calls.h"
#include "fs/ctl_text.h"
#include "fs/handles.h"
#include "fs/notifier.h"

_Static_assert(sizeof(struct pfs_attach) <= CTL_ANSWER_BYTES, "an answer fits");
_Static_assert(sizeof(struct pfs_segments) <= CTL_ANSWER_BYTES, "an answer fits");
_Static_assert(sizeof(struct pfs_put_start) <= CTL_ANSWER_BYTES, "an answer fits");
_Static_assert(sizeof(struct pfs_get_start) <= CTL_ANSWER_BYTES, "an answer fits");
_Static_assert(sizeof(struct pfs_get_transfer) <= CTL_ANSWER_BYTES, "an answer fits");

struct answer {
	unsigned nr;
	int result;
	unsigned char reply[CTL_ANSWER_BYTES];
};

struct ctl {
	struct fs *fs;
	struct session *session; /* referenced */
	struct space *space;     /* the session's */
	uint32_t serial;
	bool read_only;
	uint64_t handle;        /* constant once it can be taken */
	_Atomic uint32_t asked; /* the namespace's counter of changes when the last request began */
	_Atomic unsigned wanted; /* events that polls have waited for */
	struct ctl_text *_Atomic text; /* NULL: nothing was written yet; constant once it is there */

	struct lock lock;              /* LOCK_QUEUE; guards the rest */
	struct ctl_request running[CTL_RUNNING]; /* under way; seq 0 = free */
	unsigned running_count;
	uint64_t answered[CTL_ANSWERS]; /* numbers of the kept answers, 0 = none */
	unsigned next_answer;
	struct answer answers[CTL_ANSWERS];
};

static void ctl_end(void *object)
{
	struct ctl *ctl = object;

	notifier_forget_poller(ctl->fs->notifier, ctl);
	session_release(ctl->session);
	session_unref(&ctl->session);
	ctl_text_free(atomic_load(&ctl->text));
	lock_destroy(&ctl->lock);
	free(ctl);
}

uint64_t ctl_open(struct fs *fs, struct space *space, const struct fuse_ctx *who, bool read_only, struct why *why)
{
	struct ctl *ctl = calloc(1, sizeof(*ctl));

	if (!ctl) {
		why_set(why, ENOMEM, "no memory for a session");
		return 0;
	}
	if (session_new(fs->host, space, who->pid, who->uid, who->gid, read_only, &ctl->session, why)) {
		free(ctl);
		return 0;
	}
	ctl->fs = fs;
	ctl->space = session_space(ctl->session);
	ctl->serial = space_serial(ctl->space);
	ctl->read_only = read_only;
	atomic_store(&ctl->asked, calls_change(fs->calls, ctl->serial));
	lock_init(&ctl->lock, LOCK_QUEUE);
	if (!handles_open(fs->handles, HANDLE_CTL, HOST_MAX_SESSIONS, ctl, ctl_end, &ctl->handle)) {
		ctl_end(ctl);
		why_set(why, EMFILE, "%u control files are open, the most that one host has", HOST_MAX_SESSIONS);
		return 0;
	}
	atomic_store(&fs->ctls[session_number(ctl->session) % HOST_MAX_SESSIONS], ctl->handle);
	return ctl->handle;
}

struct session *ctl_session(const struct ctl *ctl)
{
	return ctl->session;
}

uint64_t ctl_session_number(const struct ctl *ctl)
{
	return session_number(ctl->session);
}

struct fs *ctl_fs(const struct ctl *ctl)
{
	return ctl->fs;
}

struct space *ctl_space(const struct ctl *ctl)
{
	return ctl->space;
}

uint32_t ctl_serial(const struct ctl *ctl)
{
	return ctl->serial;
}

bool ctl_read_only(const struct ctl *ctl)
{
	return ctl->read_only;
}

uint64_t ctl_handle(const struct ctl *ctl)
{
	return ctl->handle;
}

struct ctl_text *ctl_text_face(struct ctl *ctl, bool make)
{
	struct ctl_text *face = atomic_load(&ctl->text), *fresh;

	if (face || !make)
		return face;
	fresh = ctl_text_new();
	if (!fresh || atomic_compare_exchange_strong(&ctl->text, &face, fresh))
		return fresh;
	ctl_text_free(fresh); /* another thread was faster */
	return face;
}

/* ---- answers ------------------------------------------------------------------------------------------------- */

/* Under the lock: 1, 0 or a negative errno, as ctl_request_begin answers. */
static int look_up(struct ctl *ctl, uint64_t seq, unsigned nr, int *result, void *reply, size_t bytes, struct why *why)
{
	for (unsigned i = 0; i < CTL_ANSWERS; i++) {
		const struct answer *a = &ctl->answers[i];

		if (ctl->answered[i] != seq)
			continue;
		if (a->nr != nr)
			return why_set(why, EINVAL, "seq: %" PRIu64 " was used for operation %u already", seq, a->nr);
		*result = a->result;
		memcpy(reply, a->reply, bytes < sizeof(a->reply) ? bytes : sizeof(a->reply));
		return CTL_E_REPEATED;
	}
	for (unsigned i = 0, seen = 0; seen < ctl->running_count; i++) {
		seen += ctl->running[i].seq != 0;
		if (ctl->running[i].seq == seq)
			return why_set(why, EBUSY, "seq: %" PRIu64 " is still under way", seq);
	}
	if (ctl->running_count == CTL_RUNNING)
		return why_set(
			why, EBUSY, "%u requests of this session are under way, the most that one has", CTL_RUNNING);
	return 0;
}

int ctl_request_begin(struct ctl *ctl, uint64_t seq, unsigned nr, uint64_t now_ns, int *result, void *reply,
	size_t bytes, struct why *why)
{
	lock_take(&ctl->lock);
	int r = look_up(ctl, seq, nr, result, reply, bytes, why);
	if (!r) {
		unsigned i = 0;

		while (ctl->running[i].seq)
			i++;
		ctl->running[i] = (struct ctl_request){seq, now_ns, nr};
		ctl->running_count++;
	}
	lock_drop(&ctl->lock);
	return r;
}

uint32_t ctl_requests(struct ctl *ctl, struct ctl_request ret[CTL_RUNNING])
{
	uint32_t n = 0;

	lock_take(&ctl->lock);
	for (unsigned i = 0; i < CTL_RUNNING; i++)
		if (ctl->running[i].seq)
			ret[n++] = ctl->running[i];
	lock_drop(&ctl->lock);
	return n;
}

void ctl_request_end(struct ctl *ctl, uint64_t seq, unsigned nr, bool keep, int result, const void *reply, size_t bytes)
{
	lock_take(&ctl->lock);
	for (unsigned i = 0; i < CTL_RUNNING; i++)
		if (ctl->running[i].seq == seq) {
			ctl->running[i].seq = 0;
			ctl->running_count--;
			break;
		}
	if (keep) {
		struct answer *a = &ctl->answers[ctl->next_answer];

		ctl->answered[ctl->next_answer] = seq;
		a->nr = nr;
		a->result = result;
		assert(bytes <= sizeof(a->reply));
		memcpy(a->reply, reply, bytes);
		ctl->next_answer = (ctl->next_answer + 1) % CTL_ANSWERS;
	}
	lock_drop(&ctl->lock);
}

/* ---- polling ------------------------------------------------------------------------------------------------- */

void ctl_note_asked(struct ctl *ctl)
{
	atomic_store_explicit(&ctl->asked, calls_change(ctl->fs->calls, ctl->serial), memory_order_relaxed);
}

static bool readable(const struct ctl *ctl)
{
	return calls_change(ctl->fs->calls, ctl->serial) != atomic_load_explicit(&ctl->asked, memory_order_relaxed);
}

static unsigned events(struct ctl *ctl)
{
	const struct ctl_text *face = atomic_load(&ctl->text);
	unsigned now = face ? ctl_text_events(face) : POLLOUT | POLLWRNORM;

	return now | (readable(ctl) ? POLLIN | POLLRDNORM : 0);
}

unsigned ctl_poll(struct ctl *ctl, struct fuse_pollhandle *handle, unsigned wanted)
{
	/* Listed before it is looked at: a change in between finds it listed. */
	if (handle) {
		atomic_fetch_or(&ctl->wanted, wanted);
		notifier_add_poller(ctl->fs->notifier, ctl, handle);
	}
	return events(ctl);
}

bool ctl_poller_ready(struct ctl *ctl)
{
	return events(ctl) & atomic_load(&ctl->wanted);
}
