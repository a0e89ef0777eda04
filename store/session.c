/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: opening, attaching, ending; who is inside; the last error.
 */
#include "store/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/import.h"
#include "store/nodes.h"
#include "store/remnants.h"
#include "store/seating.h"
#include "store/session_private.h"
#include "store/ticket.h"
#include "store/tiering.h"

#define MILLISECOND 1000000ull

/* ---- opening ------------------------------------------------------------------------------------------------- */

static int session_enlist(struct host *host, struct session *s, struct why *why)
{
	int r = 0;

	lock_take(&host->lock);
	if (!s->space->listed) {
		r = why_set(why, ENOENT, "namespace %s was removed", s->space->name);
	} else if (host->session_count == HOST_MAX_SESSIONS) {
		r = why_set(why, EMFILE, "%u sessions are open, the most that one host has", HOST_MAX_SESSIONS);
	} else {
		for (s->slot = 0; host->sessions[s->slot]; s->slot++)
			;
		host->sessions[s->slot] = session_ref(s);
		s->number = (atomic_fetch_add(host->last_session, 1) + 1) * HOST_MAX_SESSIONS + s->slot;
		s->space->sessions++;
		host->session_count++;
	}
	lock_drop(&host->lock);
	return r;
}

int session_new(struct host *host, struct space *space, pid_t pid, uid_t uid, gid_t gid, bool read_only,
		struct session **ret, struct why *why)
{
	struct session *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return why_set(why, ENOMEM, "no memory for a session");
	s->host = host;
	s->space = space_ref(space);
	atomic_store(&s->refs, 1);
	s->pid = pid;
	s->uid = uid;
	s->gid = gid;
	s->read_only = read_only;
	s->opened_s = (int64_t)clock_wall_s();
	s->rank = SESSION_RANK_NONE;
	s->buffer_fd = -1;
	s->guard_fd = -1;
	s->seat = SEATS_NONE;
	for (uint32_t i = 0; i < SESSION_MAX_IMPORTS; i++)
		s->imports[i].fd = -1;
	lock_init(&s->lock, LOCK_SESSION);
	r = session_enlist(host, s, why);
	if (r) {
		s->torn_down = true;
		session_unref(&s);
		return r;
	}
	*ret = s;
	return 0;
}

struct session *session_ref(struct session *session)
{
	atomic_fetch_add(&session->refs, 1);
	return session;
}

static void spares_free(struct session *s)
{
	static void (*const destroy[HOLDING_KINDS])(struct holding *) = {
		[HOLDING_PUT] = put_plan_destroy,
		[HOLDING_GET] = get_plan_destroy,
		[HOLDING_HANDLE] = handle_destroy,
	};

	for (int k = 0; k < HOLDING_KINDS; k++)
		while (s->spare[k]) {
			struct holding *h = s->spare[k];

			s->spare[k] = h->next;
			destroy[k](h);
		}
}

void session_unref(struct session **sp)
{
	struct session *s = *sp;

	*sp = NULL;
	if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	spares_free(s);
	if (s->buffer)
		munmap(s->buffer, s->buffer_bytes);
	if (s->buffer_fd >= 0)
		close(s->buffer_fd);
	closep(&s->guard_fd);
	space_unref(&s->space);
	lock_destroy(&s->lock);
	free(s);
}

struct session *session_get(struct host *host, uint64_t number)
{
	struct session *s;

	lock_take(&host->lock);
	s = host->sessions[number % HOST_MAX_SESSIONS];
	s = s && s->number == number ? session_ref(s) : NULL;
	lock_drop(&host->lock);
	return s;
}

bool host_process_awaited(struct host *host, uint64_t number)
{
	struct session *s = session_get(host, number);
	bool open = s;

	session_unref(&s);
	return open || quarantine_of_session(host, number) > 0 || remnants_await(host, number); /* in this order: what is put there is put before the session goes */
}

uint64_t session_number(const struct session *session)
{
	return session->number;
}

struct space *session_space(const struct session *session)
{
	return session->space;
}

struct host *session_host(const struct session *session)
{
	return session->host;
}

bool session_ended(const struct session *session)
{
	return atomic_load(&session->ended);
}

/* ---- who is attached ------------------------------------------------------------------------------------------ */

/* Under the space lock. The pid does not change once the session is attached. */
static void note_session(const struct session *s, enum host_event_kind kind)
{
	space_note(s->space, &(struct host_event){.kind = kind, .number = s->number, .pid = s->pid});
}

static void attached_enter(struct session *s)
{
	struct space *space = s->space;

	lock_take(&space->lock);
	s->next_attached = space->attached;
	space->attached = s;
	space->stats.sessions++;
	note_session(s, HOST_EVENT_SESSION_ATTACHED);
	lock_drop(&space->lock);
}

/* The last one that leaves lets the host have grants back. */
static void attached_leave(struct session *s)
{
	struct space *space = s->space;
	struct session **at = &space->attached;
	bool last;

	lock_take(&space->lock);
	while (*at != s)
		at = &(*at)->next_attached;
	*at = s->next_attached;
	session_stands_up(s);
	space->stats.sessions--;
	note_session(s, HOST_EVENT_SESSION_ENDED);
	last = !space->attached;
	if (last)
		atomic_store(&space->idle_since_ns, clock_now_ns());
	lock_drop(&space->lock);
	if (last)
		balance_ask(s->host);
}

/* ---- attaching ----------------------------------------------------------------------------------------------- */

static int call_buffer_new(struct session *s, uint64_t bytes, struct why *why)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	void *map;
	int fd;

	bytes = (bytes + page - 1) / page * page;
	fd = memfd_create("prefixfs-call-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return why_set(why, errno, "no memory file for a call buffer");
	if (fchmod(fd, 0600) || ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		int error = errno;

		close(fd);
		return why_set(why, error, "cannot make a call buffer of %llu bytes", (unsigned long long)bytes);
	}
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		int error = errno;

		close(fd);
		return why_set(why, error, "cannot map a call buffer of %llu bytes", (unsigned long long)bytes);
	}
	s->buffer_fd = fd;
	s->buffer = map;
	s->buffer_bytes = bytes;
	return 0;
}

static void session_shares(struct session *s, uint32_t rank)
{
	const struct layout *layout = s->space->layout;

	s->rank = rank;
	for (uint32_t c = 0; c < layout->classes; c++)
		s->share[c] = rank == SESSION_RANK_NONE ? 0 : layout->share_of_rank[rank][c];
}

int session_attach(struct session *s, struct session_attach *attach, struct why *why)
{
	const struct layout *layout = s->space->layout;
	char nodes[NODES_TEXT];
	int r = 0;

	if (attach->rank != SESSION_RANK_NONE && attach->rank >= layout->world)
		return why_set(why, EINVAL, "rank: %u is outside the namespace's world of %u", attach->rank, layout->world);
	if (attach->node != SEGMENT_ANY_NODE && !nodes_has_memory(attach->node, nodes))
		return why_set(why, EINVAL, "node: %u is none of the host's nodes with memory, %s; %u asks for any", attach->node, nodes,
			       SEGMENT_ANY_NODE);
	lock_take(&s->lock);
	if (s->state == SESSION_ATTACHED)
		r = why_set(why, EISCONN, "session %llu is attached already", (unsigned long long)s->number);
	else if (s->state == SESSION_GONE)
		r = why_set(why, ESHUTDOWN, "session %llu has ended", (unsigned long long)s->number);
	else if (!s->buffer)
		r = call_buffer_new(s, attach->call_buffer_bytes, why);
	if (!r && getrandom(s->token, sizeof(s->token), 0) != (ssize_t)sizeof(s->token))
		r = why_set(why, EIO, "the kernel gave no random bytes for a token");
	if (!r) {
		memcpy(s->client_id, attach->client_id, sizeof(s->client_id));
		session_shares(s, attach->rank);
		s->handle = attach->handle;
		closep(&s->guard_fd);
		s->guard = attach->guard;
		s->guard_fd = attach->guard ? attach->guard_fd : -1;
		s->node = attach->node;
		s->token_until_ns = clock_now_ns() + s->host->config.token_ttl_ms * MILLISECOND;
		s->state = SESSION_OFFERED;
		memcpy(attach->token, s->token, sizeof(attach->token));
		attach->call_buffer_bytes = s->buffer_bytes;
	}
	lock_drop(&s->lock);
	return r;
}

int session_take_guard(struct session *s, pid_t *pid)
{
	int fd;

	lock_take(&s->lock);
	fd = STEAL_FD(s->guard_fd);
	*pid = (pid_t)s->guard;
	lock_drop(&s->lock);
	return fd;
}

bool session_prewarmed(const struct session *session)
{
	return atomic_load(&session->space->prewarm_done) >= session->space->prewarm_goal;
}

static bool belongs_to(gid_t gid, gid_t own, const gid_t *groups, int count)
{
	if (gid == own)
		return true;
	for (int i = 0; i < count; i++)
		if (groups[i] == gid)
			return true;
	return false;
}

/* What the kernel checked when ctl was opened, checked again for whoever shows the token. */
static bool peer_allowed(const struct session *s, uid_t uid, gid_t gid, const gid_t *groups, int count)
{
	struct space_access access;
	unsigned need = s->read_only ? 4 : 6, have;

	space_access(s->space, &access);
	if (uid == 0)
		return true;
	if (uid == access.uid)
		have = (access.mode >> 6) & 7;
	else if (belongs_to(access.gid, gid, groups, count))
		have = (access.mode >> 3) & 7;
	else
		have = access.mode & 7;
	return (have & need) == need;
}

static bool token_equal(const uint8_t *a, const uint8_t *b)
{
	unsigned differs = 0;

	for (int i = 0; i < 16; i++)
		differs |= a[i] ^ b[i]; /* the same time whatever differs */
	return !differs;
}

int session_welcome(struct host *host, const uint8_t token[16], pid_t pid, uint64_t process, uid_t uid, gid_t gid,
		    const gid_t *groups, int group_count, struct session **ret, int *segment, int *buffer, struct why *why)
{
	struct session *s = NULL;
	int r = 0;

	for (uint32_t i = 0; i < HOST_MAX_SESSIONS && !s; i++) {
		struct session *candidate = NULL;

		lock_take(&host->lock);
		if (host->sessions[i])
			candidate = session_ref(host->sessions[i]);
		lock_drop(&host->lock);
		if (!candidate)
			continue;
		lock_take(&candidate->lock);
		if (candidate->state == SESSION_OFFERED && token_equal(candidate->token, token))
			s = session_ref(candidate);
		lock_drop(&candidate->lock);
		session_unref(&candidate);
	}
	if (!s)
		return why_set(why, ENOENT, "the token is unknown, used or too old");
	if (!peer_allowed(s, uid, gid, groups, group_count)) {
		r = why_set(why, EACCES, "uid %u may not %s namespace %s", uid, s->read_only ? "read" : "write", s->space->name);
	} else {
		lock_take(&s->lock);
		if (s->state != SESSION_OFFERED || !token_equal(s->token, token) || clock_now_ns() > s->token_until_ns) {
			r = why_set(why, ENOENT, "the token is unknown, used or too old");
		} else {
			s->state = SESSION_ATTACHED;
			memset(s->token, 0, sizeof(s->token));
			s->pid = pid;
			s->process = process;
			s->uid = uid;
			attached_enter(s); /* before anybody can end it */
		}
		lock_drop(&s->lock);
	}
	if (r) {
		session_unref(&s);
		return r;
	}
	*segment = s->read_only ? segment_read_only_fd(s->space->segment) : segment_fd(s->space->segment);
	*buffer = s->buffer_fd;
	*ret = s;
	return 0;
}

/* ---- ending -------------------------------------------------------------------------------------------------- */

static struct holding *session_any_holding(struct session *s)
{
	struct holding *h = NULL;

	lock_take(&s->lock);
	for (uint32_t b = 0; b < SESSION_BUCKETS && !h; b++)
		if (s->bucket[b]) {
			h = s->bucket[b];
			s->bucket[b] = h->next;
			s->count[h->kind]--;
		}
	lock_drop(&s->lock);
	return h;
}

static bool session_process_gone(struct session *s)
{
	bool gone;

	lock_take(&s->lock);
	gone = s->process_gone;
	lock_drop(&s->lock);
	return gone;
}

/* Ends everything the session holds. Runs once, when no request is inside. */
static void session_tear_down(struct session *s, bool process_gone, bool was_attached)
{
	struct put_plan *unacked;
	struct holding *h;

	while ((h = session_any_holding(s)))
		switch (h->kind) {
		case HOLDING_PUT:
			put_plan_end(s, h, process_gone);
			break;
		case HOLDING_GET:
			get_plan_end(s, h);
			break;
		case HOLDING_HANDLE:
			handle_end(s, h);
			break;
		case HOLDING_KINDS:
			abort();
		}
	tickets_session_ends(s->space->tickets, s);
	if (s->space->blobs)
		blobs_session_end(s->space->blobs, s->number);
	lock_take(&s->lock);
	unacked = s->unacked;
	s->unacked = NULL;
	lock_drop(&s->lock);
	put_plans_acknowledge(s, unacked);
	imports_end(s);
	lock_take(&s->host->lock);
	s->host->sessions[s->slot] = NULL;
	s->host->session_count--;
	s->space->sessions--;
	lock_drop(&s->host->lock);
	/* host_process_gone may have come in between and emptied the quarantine before the plans were put there. From here on
	 * it does not find the session, and empties the quarantine after all of them. */
	if (!process_gone && session_process_gone(s))
		quarantine_free_session(s->host, s->number);
	if (was_attached)
		attached_leave(s);
	session_unref(&s); /* the table's */
}

/* Marks the end; tears down when nobody is inside, else the last one out does. */
static void session_end(struct session *s, bool process_gone)
{
	bool now, attached, gone;

	lock_take(&s->lock);
	s->process_gone |= process_gone;
	gone = s->process_gone;
	if (s->state != SESSION_GONE)
		s->was_attached = s->state == SESSION_ATTACHED;
	attached = s->was_attached;
	s->state = SESSION_GONE;
	atomic_store(&s->ended, true);
	now = !s->inside && !s->torn_down;
	if (now)
		s->torn_down = true;
	lock_drop(&s->lock);
	if (now) {
		session_tear_down(s, gone, attached);
		return;
	}
	lock_take(&s->space->lock);
	space_committed(s->space); /* its own requests that wait look again and find the end */
	lock_drop(&s->space->lock);
}

void session_release(struct session *session)
{
	session_end(session, false);
}

void host_guard_gone(struct host *host, uint64_t number)
{
	struct session *s = session_get(host, number);

	if (!s)
		return;
	lock_take(&s->lock);
	s->guard = 0;
	lock_drop(&s->lock);
	session_unref(&s);
}

void host_client_gone(struct host *host, uint64_t number)
{
	struct session *s = session_get(host, number);

	if (!s)
		return;
	session_end(s, false);
	session_unref(&s);
}

void host_process_gone(struct host *host, uint64_t number)
{
	struct session *s = session_get(host, number);

	if (s) {
		session_end(s, true);
		session_unref(&s);
	}
	quarantine_free_session(host, number);
	remnants_process_gone(host, number);
}

/* ---- around each request ------------------------------------------------------------------------------------- */

static struct put_plan *acknowledged_plans(struct session *s)
{
	struct put_plan *out = NULL, **at = &s->unacked;

	lock_assert_held(&s->lock);
	while (*at) {
		struct put_plan *plan = *at;

		if (put_plan_end_seq(plan) > s->acked_seq) {
			at = put_plan_next(plan);
			continue;
		}
		*at = *put_plan_next(plan);
		*put_plan_next(plan) = out;
		out = plan;
	}
	return out;
}

int session_enter(struct session *s, uint64_t acked_seq, struct why *why)
{
	struct put_plan *acknowledged = NULL;
	int r = 0;

	lock_take(&s->lock);
	if (s->state == SESSION_GONE)
		r = why_set(why, ESHUTDOWN, "session %llu has ended", (unsigned long long)s->number);
	else if (s->state != SESSION_ATTACHED)
		r = why_set(why, ENOTCONN, "session %llu is not attached: ATTACH, then show the token on the socket",
			    (unsigned long long)s->number);
	if (!r) {
		s->inside++;
		if (acked_seq > s->acked_seq) {
			s->acked_seq = acked_seq;
			acknowledged = acknowledged_plans(s);
		}
	}
	lock_drop(&s->lock);
	if (acknowledged)
		put_plans_acknowledge(s, acknowledged);
	return r;
}

void session_leave(struct session *s)
{
	bool last, gone, attached;

	lock_take(&s->lock);
	s->inside--;
	last = s->state == SESSION_GONE && !s->inside && !s->torn_down;
	if (last)
		s->torn_down = true;
	gone = s->process_gone;
	attached = s->was_attached;
	lock_drop(&s->lock);
	if (last)
		session_tear_down(s, gone, attached);
}

void *session_call_buffer(const struct session *session, uint64_t *bytes)
{
	*bytes = session->buffer_bytes;
	return session->buffer;
}

int session_ack_ranges(struct session *s, const struct session_ack *acks, uint32_t count, uint32_t *accepted,
		       struct why *why)
{
	struct space *space = s->space;
	int r = 0;

	*accepted = 0;
	for (uint32_t i = 0; i < count;) {
		uint32_t end = count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : count;

		lock_take(&space->lock);
		for (; i < end; i++) {
			struct slots_grant grant;

			if (!slots_grant_get(space->slots, acks[i].id, &grant) || !grant.ready ||
			    grant.generation != acks[i].generation) {
				r = why_set(why, ESTALE, "ack %u: there is no range %u of generation %u", i, acks[i].id,
					    acks[i].generation);
				continue;
			}
			s->acknowledged[acks[i].id / 64] |= 1ull << (acks[i].id % 64);
			++*accepted;
		}
		lock_drop(&space->lock);
	}
	session_acknowledged_all(s);
	return r;
}

bool session_has_all(struct session *s)
{
	struct space *space = s->space;
	uint64_t version = slots_version(space->slots);
	bool all = s->judged_version != version;

	lock_assert_held(&space->lock);
	if (s->acknowledged_version == version)
		return true;
	s->judged_version = version;
	for (uint32_t id = 0; id < slots_grant_limit(space->slots) && all; id++) {
		struct slots_grant grant;

		all = !slots_grant_get(space->slots, id, &grant) || !grant.ready || grant.share != s->share[grant.class_index] ||
		      (s->acknowledged[id / 64] >> (id % 64) & 1);
	}
	if (all)
		s->acknowledged_version = version;
	return all;
}

void session_acknowledged_all(struct session *s)
{
	struct space *space = s->space;

	lock_take(&space->lock);
	s->judged_version = 0;
	session_has_all(s);
	if (space->tiering && space->tiering->room_waiters)
		space_committed(space);
	lock_drop(&space->lock);
}

void session_note_error(struct session *s, uint64_t seq, uint32_t op, const struct why *why)
{
	lock_take(&s->lock);
	s->error_seq = seq;
	s->error_op = op;
	s->error_ns = clock_now_ns();
	s->error = *why;
	lock_drop(&s->lock);
}

void session_last_error(struct session *s, uint64_t *seq, uint32_t *op, struct why *ret)
{
	lock_take(&s->lock);
	*seq = s->error_seq;
	*op = s->error_op;
	*ret = s->error;
	lock_drop(&s->lock);
}
