/* SPDX-License-Identifier: Apache-2.0
 *
 * When the daemon is gone: a call that finds it so attaches anew, and is run again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#include "fs/client/client.h"

#define RETRY_FIRST_MS 5u
#define RETRY_LONGEST_MS 200u
#define AGAIN_MS 1000u /* between tries, once a deadline has passed in vain; less with a shorter deadline */
#define MAX_TURNS 3u /* on so many connections a request is run: it may be what the daemon dies of */

bool conn_is_lost(int error)
{
	switch (-error) {
	case ENOTCONN:
	case ENODEV:
	case ESTALE:
	case ECONNABORTED:
	case ESHUTDOWN:
		return true;
	default:
		return false;
	}
}

void conn_mark_lost(struct pfs_session *session, struct conn *conn, int error)
{
	pthread_mutex_lock(&session->lock);
	if (!conn->lost && session->current == conn)
		session->lost_ms = now_ms();
	conn->lost = true;
	conn->unpinned |= error == -ESHUTDOWN;
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
}

int conn_open_again(struct pfs_session *session, uint64_t until_ms, struct conn **ret)
{
	uint64_t pause = RETRY_FIRST_MS;
	int r;

	while ((r = conn_open(session, until_ms, ret)) && r != -EHOSTDOWN && now_ms() + pause < until_ms) {
		nanosleep(&(struct timespec){.tv_nsec = (long)pause * 1000000}, NULL);
		pause = pause * 2 < RETRY_LONGEST_MS ? pause * 2 : RETRY_LONGEST_MS;
	}
	return r;
}

/* ---- when a deadline has passed in vain ------------------------------------------------------------------------- */

static uint64_t again_ms(const struct pfs_session *session)
{
	return session->options.deadline_ms < AGAIN_MS ? session->options.deadline_ms : AGAIN_MS;
}

/* pfs_poll_fd is readable in @ms; 0: not for that. */
static void set_timer(struct pfs_session *session, uint64_t ms)
{
	struct itimerspec at = {.it_value = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}};

	timerfd_settime(session->retry_fd, 0, &at, NULL);
}

/* (lock) The lost ctl is in error for good: it would wake whoever sleeps on pfs_poll_fd again and again. The timer does it instead. */
static void note_tried(struct pfs_session *session)
{
	epoll_ctl(session->poll_fd, EPOLL_CTL_DEL, session->current->ctl, NULL);
	session->tried_ms = now_ms();
	set_timer(session, again_ms(session));
}

/* (lock) A deadline has passed in vain, and somebody has tried since, or does so now: nobody waits for that. */
static bool is_away(const struct pfs_session *session)
{
	return session->tried_ms && (session->attaching || now_ms() - session->tried_ms < again_ms(session));
}

/* ---- attaching anew --------------------------------------------------------------------------------------------- */

/* (lock) Put plans and handles of it that were open. */
static unsigned open_plans(struct pfs_session *session, const struct conn *conn)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < PLAN_SLOTS; i++) {
		const struct plan *p = session->plans[i];

		n += p && (p->kind == PLAN_PUT || p->kind == PLAN_HANDLE) && p->conn == conn && !p->over && !p->ended;
	}
	return n;
}

/* (lock) @conn takes the place of the one that was lost, which is returned for conn_put. @line: what is to be told of it. */
static struct conn *install(struct pfs_session *session, struct conn *conn, char *line, size_t size)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct conn *old = session->current;
	bool kept = conn->mapping == old->mapping;

	int n = snprintf(line, size, "prefixfs: %s: attached anew after %llu ms; memory %s; %u plans lost", session->ctl_path,
		(unsigned long long)(now_ms() - session->lost_ms), kept ? "kept" : "is new", open_plans(session, old));

	if (conn->guard_left_out && n > 0 && (size_t)n < size)
		snprintf(line + n, size - (size_t)n, "; the guard process %u is gone", conn->guard_left_out);
	session->tried_ms = 0;
	set_timer(session, 0);
	session->reattached++;
	session->remapped += !kept;
	epoll_ctl(session->poll_fd, EPOLL_CTL_DEL, old->ctl, NULL);
	epoll_ctl(session->poll_fd, EPOLL_CTL_ADD, conn->ctl, &event);
	conn->next = session->conns;
	session->conns = conn;
	session->current = conn;
	return old;
}

static void tell(struct pfs_session *session, const char *line)
{
	if (session->options.log)
		session->options.log(session->options.log_context, line);
	else
		fprintf(stderr, "%s\n", line);
}

/* Afterwards the session is attached, or @until_ms has come; @once: or nobody was there. By the one thread that set `attaching`. */
static int attach_anew(struct pfs_session *session, bool once, uint64_t until_ms)
{
	char line[512];
	struct conn *conn, *old = NULL;
	int r = once ? conn_open(session, now_ms() + again_ms(session), &conn) : conn_open_again(session, until_ms, &conn);

	pthread_mutex_lock(&session->lock);
	session->attaching = false;
	if (r)
		note_tried(session);
	else
		old = install(session, conn, line, sizeof(line));
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	conn_put(session, &old);
	if (!r)
		tell(session, line);
	return r;
}

/* (lock) Until another thread has attached, or failed to. */
static int await_attached(struct pfs_session *session, uint64_t until_ms)
{
	struct timespec until = {(time_t)(until_ms / 1000), (long)(until_ms % 1000) * 1000000};
	int r;

	session->waiters++;
	r = pthread_cond_timedwait(&session->changed, &session->lock, &until);
	session->waiters--;
	return r == ETIMEDOUT && session->current->lost ? -ETIMEDOUT : 0;
}

static int say_away(struct pfs_session *session, int error)
{
	char why[300];

	if (error == -EAGAIN)
		return say(ENOTCONN, "%s: nobody serves; attaching anew is tried every %llu ms", session->ctl_path,
			(unsigned long long)again_ms(session));
	pfs_last_error(why, sizeof(why));
	if (error == -EHOSTDOWN)
		return say(ENOTCONN, "%s", why);
	return say(ENOTCONN, "%s: not attached anew within %u ms%s%s", session->ctl_path, session->options.deadline_ms,
		error == -ETIMEDOUT ? "" : ": ", error == -ETIMEDOUT ? "" : why);
}

/* *until_ms: 0, or when to give up, which is set when there is something to wait for. */
static int get_until(struct pfs_session *session, uint64_t *until_ms, struct conn **ret)
{
	int r = 0;

	pthread_mutex_lock(&session->lock);
	while (!r && session->current->lost) {
		bool once = session->tried_ms != 0;

		if (is_away(session)) {
			r = -EAGAIN;
			continue;
		}
		if (*until_ms == 0)
			*until_ms = now_ms() + session->options.deadline_ms;
		if (session->attaching) {
			r = await_attached(session, *until_ms);
			continue;
		}
		session->attaching = true;
		pthread_mutex_unlock(&session->lock);
		r = attach_anew(session, once, *until_ms);
		pthread_mutex_lock(&session->lock);
	}
	if (!r) {
		session->current->refs++;
		*ret = session->current;
	}
	pthread_mutex_unlock(&session->lock);
	return r ? say_away(session, r) : 0;
}

int conn_get(struct pfs_session *session, struct conn **ret)
{
	uint64_t until_ms = 0;

	return get_until(session, &until_ms, ret);
}

int conn_run(struct pfs_session *session, conn_call *call, void *context)
{
	uint64_t until_ms = 0;

	for (unsigned turn = 0; turn < MAX_TURNS; turn++) {
		struct conn *conn;
		int r = get_until(session, &until_ms, &conn);

		if (r)
			return r;
		r = call(session, conn, context);
		if (!conn_is_lost(r)) {
			conn_put(session, &conn);
			return r;
		}
		conn_mark_lost(session, conn, r);
		conn_put(session, &conn);
	}
	return say(ENOTCONN, "%s: the daemon went %u times while it was asked this", session->ctl_path, MAX_TURNS);
}
