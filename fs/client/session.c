/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: their options, their beginning and end, their news and key areas.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fs/client/client.h"

#define DEFAULT_CALL_BUFFER (4u << 20)
#define DEFAULT_DEADLINE_MS 30000u
#define TAG_BITS 12u

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)

const char *pfs_version(void)
{
	return TEXT_OF(PFS_VERSION_MAJOR) "." TEXT_OF(PFS_VERSION_MINOR) "." TEXT_OF(PFS_VERSION_PATCH);
}

void pfs_options_init(struct pfs_options *options)
{
	*options = (struct pfs_options){
		.size = sizeof(*options),
		.abi_version = PFS_ABI_VERSION,
		.rank = PFS_RANK_NONE,
		.node = PFS_NODE_ANY,
		.call_buffer_bytes = DEFAULT_CALL_BUFFER,
		.deadline_ms = DEFAULT_DEADLINE_MS,
		.auto_ack = 1,
	};
}

static int check_options(const struct pfs_options *o)
{
	if (o->size != sizeof(*o))
		return say(EINVAL, "options: size is %u, this library's has %zu bytes", o->size, sizeof(*o));
	if (o->abi_version != PFS_ABI_VERSION)
		return say(EPROTONOSUPPORT, "options: abi_version is %u, this library speaks %u", o->abi_version,
			PFS_ABI_VERSION);
	if (o->call_buffer_bytes < PFS_MIN_CALL_BUFFER || o->call_buffer_bytes > PFS_MAX_CALL_BUFFER)
		return say(EINVAL, "options: call_buffer_bytes is %llu, %u..%u are possible",
			(unsigned long long)o->call_buffer_bytes, PFS_MIN_CALL_BUFFER, PFS_MAX_CALL_BUFFER);
	if (o->deadline_ms == 0 || o->deadline_ms > PFS_MAX_DEADLINE_MS)
		return say(
			EINVAL, "options: deadline_ms is %u, 1..%u are possible", o->deadline_ms, PFS_MAX_DEADLINE_MS);
	if (o->reserved0)
		return say(EINVAL, "options: reserved0 is not 0");
	for (unsigned i = 0; i < sizeof(o->reserved) / sizeof(o->reserved[0]); i++)
		if (o->reserved[i])
			return say(EINVAL, "options: reserved field %u is not 0", i);
	return 0;
}

/* @path is the directory or the ctl in it. */
static int set_paths(struct pfs_session *s, const char *path)
{
	size_t n = strlen(path);
	struct stat st;
	bool directory = !stat(path, &st) && S_ISDIR(st.st_mode);
	int r;

	while (directory && n > 1 && path[n - 1] == '/')
		n--;
	if (directory)
		r = asprintf(&s->ctl_path, "%.*s/ctl", (int)n, path);
	else
		r = asprintf(&s->ctl_path, "%s", path);
	if (r >= 0 && s->options.socket_dir)
		r = asprintf(&s->socket_dir, "%s", s->options.socket_dir);
	return r < 0 ? say(ENOMEM, "no memory for the paths of a session") : 0;
}

static int session_new(const char *path, const struct pfs_options *options, struct pfs_session **ret)
{
	struct pfs_session *s = calloc(1, sizeof(*s));
	struct epoll_event event = {.events = EPOLLIN};
	pthread_condattr_t attr;
	uint64_t random[2];
	int r;

	if (!s)
		return say(ENOMEM, "no memory for a session");
	*ret = s;
	s->poll_fd = s->retry_fd = -1;
	s->options = *options;
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->ranges_lock, NULL);
	pthread_mutex_init(&s->imports_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->changed, &attr);
	pthread_condattr_destroy(&attr);
	for (uint32_t i = 0; i < PLAN_SLOTS; i++)
		s->free_slots[s->free_count++] = PLAN_SLOTS - 1 - i;
	r = set_paths(s, path);
	if (r)
		return r;
	s->options.socket_dir = s->socket_dir;
	if (getrandom(s->client_id, sizeof(s->client_id), 0) != sizeof(s->client_id) ||
		getrandom(random, sizeof(random), 0) != sizeof(random))
		return say(EIO, "getrandom gave no client id");
	s->tag = random[0] % ((1u << TAG_BITS) - 1) + 1; /* not 0: no id is */
	s->plan_counter = random[1];
	s->poll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (s->poll_fd < 0)
		return say(errno, "epoll_create1: %s", strerror(errno));
	s->retry_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (s->retry_fd < 0 || epoll_ctl(s->poll_fd, EPOLL_CTL_ADD, s->retry_fd, &event))
		return say(errno, "the timer of a session: %s", strerror(errno));
	return 0;
}

int pfs_open(const char *path, const struct pfs_options *options, struct pfs_session **ret)
{
	struct pfs_options defaults;
	struct pfs_session *session = NULL;
	struct epoll_event event = {.events = EPOLLIN};
	struct conn *conn;
	uint64_t until_ms;
	int r;

	if (!path || !ret)
		return say(EINVAL, "pfs_open: %s is NULL", path ? "ret" : "path");
	if (!options) {
		pfs_options_init(&defaults);
		options = &defaults;
	}
	r = check_options(options);
	if (r)
		return r;
	r = session_new(path, options, &session);
	if (!r) {
		until_ms = now_ms() + session->options.deadline_ms;
		r = conn_open(session, until_ms, &conn);
		if (session->met && conn_is_lost(r)) /* the daemon died while it was asked */
			r = conn_open_again(session, until_ms, &conn);
	}
	if (r) {
		pfs_close(&session);
		return r;
	}
	session->conns = session->current = conn;
	epoll_ctl(session->poll_fd, EPOLL_CTL_ADD, conn->ctl, &event);
	*ret = session;
	return 0;
}

void pfs_close(struct pfs_session **sessionp)
{
	struct pfs_session *s = *sessionp;
	struct conn *conn;

	*sessionp = NULL;
	if (!s)
		return;
	plans_free(s);
	imports_free(s);
	while ((conn = s->conns)) { /* those kept by key areas too */
		s->conns = conn->next;
		conn_free(s, &conn);
	}
	mappings_leave(s);
	if (s->poll_fd >= 0)
		close(s->poll_fd);
	if (s->retry_fd >= 0)
		close(s->retry_fd);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->ranges_lock);
	pthread_mutex_destroy(&s->imports_lock);
	pthread_mutex_destroy(&s->lock);
	free(s->ctl_path);
	free(s->socket_dir);
	free(s);
}

int pfs_info(struct pfs_session *session, struct pfs_session_info *ret)
{
	const struct conn *c;

	pthread_mutex_lock(&session->lock);
	c = session->current;
	*ret = (struct pfs_session_info){
		.session = c->number,
		.segment_bytes = c->segment_bytes,
		.segment_page_bytes = c->segment_page_bytes,
		.generation = c->generation,
		.call_buffer_bytes = c->buffer_bytes,
		.ranges_version = c->ranges_version,
		.segment = c->segment,
		.reattached = session->reattached,
		.interval = atomic_load(&session->interval),
		.remapped = session->remapped,
		.world = c->world,
		.page_tokens = c->page_tokens,
		.classes = c->classes,
		.state_mask = c->state_mask,
		.read_only = session->options.read_only,
		.rank = session->options.rank,
	};
	memcpy(ret->share, c->share, sizeof(ret->share));
	memcpy(ret->fingerprint, c->fingerprint, sizeof(ret->fingerprint));
	pthread_mutex_unlock(&session->lock);
	return 0;
}

int pfs_value_bytes(struct pfs_session *session, uint32_t class_index, uint64_t *ret)
{
	uint32_t classes;
	uint64_t bytes;

	if (session->options.rank == PFS_RANK_NONE)
		return say(EINVAL, "value bytes: the session has no rank, so no share of any class");
	pthread_mutex_lock(&session->lock);
	classes = session->current->classes;
	bytes = class_index < classes ? session->current->value_bytes[class_index] : 0;
	pthread_mutex_unlock(&session->lock);
	if (class_index >= classes)
		return say(EINVAL, "value bytes: class %u, the layout has %u classes", class_index, classes);
	*ret = bytes;
	return 0;
}

int pfs_poll_fd(struct pfs_session *session)
{
	return session->poll_fd;
}

static int bring_ranges(struct pfs_session *session, struct conn *conn, void *context)
{
	struct pfs_segments q = {.capacity = 0};

	(void)context;
	if (session->options.auto_ack && session->options.rank != PFS_RANK_NONE)
		return ranges_sync(session, conn, UINT64_MAX);
	return call_run(session, conn, PFS_IOC_SEGMENTS, &q.call, sizeof(q), 0, 0); /* takes the news, that of a loss too */
}

int pfs_news(struct pfs_session *session, uint32_t deadline_ms)
{
	uint64_t until = now_ms() + deadline_ms;
	int r, news;

	if (deadline_ms > PFS_MAX_DEADLINE_MS)
		return say(EINVAL, "deadline_ms is %u, at most %u is possible", deadline_ms, PFS_MAX_DEADLINE_MS);
	do {
		struct pollfd p = {.fd = session->poll_fd, .events = POLLIN};
		uint64_t now = now_ms();

		news = poll(&p, 1, now < until ? (int)(until - now) : 0);
	} while (news < 0 && errno == EINTR);
	r = conn_run(session, bring_ranges, NULL);
	if (!r && news == 0)
		r = say(ETIMEDOUT, "no news within %u ms", deadline_ms);
	return r;
}

/* ---- keys in place ---------------------------------------------------------------------------------------------- */

struct keys_area {
	uint32_t keys;
	struct pfs_key *at;
};

static int keys_area_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct keys_area *k = context;
	__u64 offset;
	int r = area_take(session, conn, (uint64_t)k->keys * sizeof(*k->at), &offset);

	if (r)
		return r;
	pthread_mutex_lock(&session->lock);
	conn->refs++; /* the area's own */
	conn->key_areas++;
	pthread_mutex_unlock(&session->lock);
	k->at = (struct pfs_key *)(conn->buffer + offset);
	return 0;
}

int pfs_keys_area(struct pfs_session *session, uint32_t keys, struct pfs_key **ret)
{
	struct keys_area area = {.keys = keys};
	int r;

	if (keys == 0)
		return say(EINVAL, "keys: an area of at least one key is needed");
	if (keys > PFS_MAX_KEYS)
		return say(E2BIG, "keys: an area of %u keys, at most %u are possible", keys, PFS_MAX_KEYS);
	r = conn_run(session, keys_area_on, &area);
	if (!r)
		*ret = area.at;
	return r;
}

int pfs_keys_free(struct pfs_session *session, struct pfs_key *keys)
{
	struct conn *conn;

	if (!keys)
		return 0;
	pthread_mutex_lock(&session->lock);
	for (conn = session->conns; conn; conn = conn->next) {
		uint64_t offset = (uintptr_t)keys - (uintptr_t)conn->buffer;

		if ((uintptr_t)keys < (uintptr_t)conn->buffer || offset >= conn->buffer_bytes)
			continue;
		if (!areas_taken(&conn->areas, offset))
			conn = NULL;
		else {
			areas_give(&conn->areas, offset);
			conn->key_areas--;
		}
		break;
	}
	if (conn && session->waiters > 0)
		pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	if (!conn)
		return say(EINVAL, "keys: %p is no key area of this session", (void *)keys);
	conn_put(session, &conn);
	return 0;
}
