/* SPDX-License-Identifier: Apache-2.0
 *
 * One request: its place in the call buffer, its number, its ioctl.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "fs/client/client.h"

#define BUSY_PAUSE_NS 100000

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static struct timespec at_ms(uint64_t ms)
{
	return (struct timespec){.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
}

int area_take(struct pfs_session *session, struct conn *conn, uint64_t bytes, __u64 *ret_offset)
{
	struct timespec until = at_ms(now_ms() + session->options.deadline_ms);
	uint64_t offset;

	if (bytes > areas_largest(&conn->areas))
		return say(ENOBUFS,
			"the request needs %llu bytes of call buffer in one piece, and its largest piece has %llu",
			(unsigned long long)bytes, (unsigned long long)areas_largest(&conn->areas));
	pthread_mutex_lock(&session->lock);
	while ((offset = areas_take(&conn->areas, bytes)) == AREA_NONE) {
		int r;

		if (conn->lost) {
			pthread_mutex_unlock(&session->lock);
			return say(ESTALE, "the connection was lost while its call buffer was full");
		}
		session->waiters++;
		r = pthread_cond_timedwait(&session->changed, &session->lock, &until);
		session->waiters--;
		if (r == ETIMEDOUT) {
			uint64_t used = (uint64_t)conn->areas.used * AREA_UNIT;

			pthread_mutex_unlock(&session->lock);
			return say(ENOBUFS,
				"no room for %llu bytes in the call buffer for %u ms: %llu of its %llu bytes are "
				"held by plans and key areas",
				(unsigned long long)bytes, session->options.deadline_ms, (unsigned long long)used,
				(unsigned long long)conn->buffer_bytes);
		}
	}
	pthread_mutex_unlock(&session->lock);
	*ret_offset = offset;
	return 0;
}

void area_give(struct pfs_session *session, struct conn *conn, uint64_t offset)
{
	if (offset == AREA_NONE)
		return;
	pthread_mutex_lock(&session->lock);
	areas_give(&conn->areas, offset);
	if (session->waiters > 0)
		pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
}

int call_place_keys(struct pfs_session *session, struct conn *conn, const struct pfs_key *keys, uint32_t count,
	__u64 *offset, __u64 *area)
{
	uint64_t bytes = (uint64_t)count * sizeof(*keys), at = (uintptr_t)keys - (uintptr_t)conn->buffer;
	int r;

	*area = AREA_NONE;
	if ((uintptr_t)keys >= (uintptr_t)conn->buffer && at < conn->buffer_bytes) {
		if (at % 8 || bytes > conn->buffer_bytes - at)
			return say(EINVAL,
				"keys: %u keys at byte %llu of the call buffer are unaligned or pass its end", count,
				(unsigned long long)at);
		*offset = at;
		return 0;
	}
	r = area_take(session, conn, bytes, area);
	if (r)
		return r;
	*offset = *area;
	memcpy(conn->buffer + *area, keys, bytes);
	return 0;
}

/* The number of a request, and the watermark below which every answer has arrived. */
static void call_begin(struct pfs_session *s, struct call *call, struct pfs_call *request)
{
	pthread_mutex_lock(&s->lock);
	call->seq = ++s->seq;
	call->next = NULL;
	call->prev = s->newest;
	*(s->newest ? &s->newest->next : &s->oldest) = call;
	s->newest = call;
	request->acked_seq = s->oldest->seq - 1;
	pthread_mutex_unlock(&s->lock);
	request->seq = call->seq;
}

static void call_end(struct pfs_session *s, struct call *call)
{
	pthread_mutex_lock(&s->lock);
	*(call->prev ? &call->prev->next : &s->oldest) = call->next;
	*(call->next ? &call->next->prev : &s->newest) = call->prev;
	pthread_mutex_unlock(&s->lock);
}

static int run(struct pfs_session *session, struct conn *conn, unsigned long op, struct pfs_call *request)
{
	uint64_t until_ms = 0;
	struct call call;
	int r;

	call_begin(session, &call, request);
	/* The same number again is the same request. EBUSY: the daemon is still at it, or at too many others. */
	while ((r = ioctl(conn->ctl, op, request) < 0 ? -errno : 0) == -EINTR || r == -EBUSY) {
		if (until_ms == 0)
			until_ms = now_ms() + session->options.deadline_ms;
		if (now_ms() >= until_ms) {
			r = -EBUSY; /* interrupts are nothing that callers see */
			break;
		}
		if (r == -EBUSY)
			nanosleep(&(struct timespec){.tv_nsec = BUSY_PAUSE_NS}, NULL);
	}
	call_end(session, &call);
	return r;
}

static const char *op_name(unsigned long op)
{
	static const char *const names[] = {
		[_IOC_NR(PFS_IOC_ATTACH)] = "ATTACH",
		[_IOC_NR(PFS_IOC_SEGMENTS)] = "SEGMENTS",
		[_IOC_NR(PFS_IOC_SEGMENTS_ACK)] = "SEGMENTS_ACK",
		[_IOC_NR(PFS_IOC_PUT_START)] = "PUT_START",
		[_IOC_NR(PFS_IOC_PUT_COMMIT)] = "PUT_COMMIT",
		[_IOC_NR(PFS_IOC_PUT_ABORT)] = "PUT_ABORT",
		[_IOC_NR(PFS_IOC_GET_START)] = "GET_START",
		[_IOC_NR(PFS_IOC_GET_TRANSFER)] = "GET_TRANSFER",
		[_IOC_NR(PFS_IOC_GET_CANCEL)] = "GET_CANCEL",
		[_IOC_NR(PFS_IOC_RELEASE)] = "RELEASE",
		[_IOC_NR(PFS_IOC_PROBE)] = "PROBE",
		[_IOC_NR(PFS_IOC_STAT)] = "STAT",
		[_IOC_NR(PFS_IOC_IMPORT)] = "IMPORT",
		[_IOC_NR(PFS_IOC_GET_CONFIRM)] = "GET_CONFIRM",
		[_IOC_NR(PFS_IOC_TOUCH)] = "TOUCH",
		[_IOC_NR(PFS_IOC_REMOVE)] = "REMOVE",
		[_IOC_NR(PFS_IOC_PIN)] = "PIN",
		[_IOC_NR(PFS_IOC_DRAIN)] = "DRAIN",
		[_IOC_NR(PFS_IOC_RESET)] = "RESET",
		[_IOC_NR(PFS_IOC_GET_INTO)] = "GET_INTO",
		[_IOC_NR(PFS_IOC_BLOB_PUT)] = "BLOB_PUT",
		[_IOC_NR(PFS_IOC_BLOB_GET)] = "BLOB_GET",
		[_IOC_NR(PFS_IOC_BLOB_REMOVE)] = "BLOB_REMOVE",
		[_IOC_NR(PFS_IOC_BLOB_LOCK)] = "BLOB_LOCK",
	};
	unsigned nr = _IOC_NR(op);

	return nr < sizeof(names) / sizeof(names[0]) && names[nr] ? names[nr] : "ioctl";
}

/* 1 + the CPU that the calling thread is pinned to; 0 where it may use several, or more than the set holds. */
static uint32_t pinned_cpu(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) != 1)
		return 0;
	return (uint32_t)sched_getcpu() + 1;
}

/* A served connection always answers this: any other errno of it than "lost" would say the same. */
static int ask_last_error(struct pfs_session *session, struct conn *conn, struct pfs_last_error *last)
{
	int r;

	*last = (struct pfs_last_error){.call = {.size = sizeof(*last)}};
	r = run(session, conn, PFS_IOC_LAST_ERROR, &last->call);
	return r == -EBUSY || r == -EINTR || r == 0 ? 0 : conn_is_lost(r) ? r : -ESTALE;
}

int call_judge(struct pfs_session *session, struct conn *conn)
{
	struct pfs_last_error last;

	return ask_last_error(session, conn, &last);
}

int call_run(struct pfs_session *session, struct conn *conn, unsigned long op, struct pfs_call *request, size_t size,
	uint32_t flags, uint32_t deadline_ms)
{
	struct pfs_last_error last;
	int r, lost;

	request->size = (uint32_t)size;
	request->flags = flags;
	request->deadline_ms = deadline_ms;
	request->cpu = pinned_cpu();
	r = run(session, conn, op, request);
	if (!r)
		return 0;
	/* ESTALE may be the daemon's own word about what was asked. EIO is the kernel's too, for a request that it could not hand over. */
	lost = conn_is_lost(r) && r != -ESTALE ? r : ask_last_error(session, conn, &last);
	if (lost && (r == -ESTALE || r == -EIO))
		r = lost;
	else if (r == -ESTALE)
		r = -CHANGED_SINCE;
	/* The daemon's own sentence, if it is about this request and not about another thread's. */
	if (!lost && last.failed_seq == request->seq) {
		last.text[sizeof(last.text) - 1] = '\0';
		say_text(last.text);
	} else {
		say(-r, "%s failed: %s", op_name(op), strerror(r == -CHANGED_SINCE ? ESTALE : -r));
	}
	return r;
}

/* Has the daemon said that it does not know a struct of this size? So say all that were built before there was a second one. */
static bool size_refused(void)
{
	char text[sizeof(((struct pfs_last_error *)0)->text)];

	pfs_last_error(text, sizeof(text));
	return strstr(text, "the ioctl number carries");
}

int call_run_grown(struct pfs_session *session, struct conn *conn, unsigned long op, struct pfs_call *request, size_t size, size_t size_1,
	bool grown, uint32_t flags, uint32_t deadline_ms)
{
	unsigned long op_1 = _IOC(_IOC_DIR(op), _IOC_TYPE(op), _IOC_NR(op), size_1);
	uint32_t of_op = 1u << _IOC_NR(op);
	int r;

	if (!(atomic_load(&conn->first_sizes) & of_op)) {
		r = call_run(session, conn, op, request, size, flags, deadline_ms);
		if (r != -EINVAL || !size_refused())
			return r;
		atomic_fetch_or(&conn->first_sizes, of_op);
	}
	if (grown) { /* unless another one serves by now */
		r = call_judge(session, conn);
		return r ? r : say(EOPNOTSUPP, "%s: the daemon was built before what is asked for", op_name(op));
	}
	return call_run(session, conn, op_1, request, size_1, flags, deadline_ms);
}
