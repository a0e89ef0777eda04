/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/heirlooms.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "fs/keeper.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

/* ---- the parent's side --------------------------------------------------------------------------------------------- */

int heirlooms_give(const struct kept *kept, int socket, uint32_t *cursor)
{
	int r = 0;

	for (; !r && *cursor < kept->count; *cursor += !r) {
		const struct kept_fd *k = &kept->fds[*cursor];

		r = keeper_send(socket, KEEPER_GIVE, k->what, k->name, k->number, k->fd);
	}
	return r ? r : keeper_send(socket, KEEPER_GIVEN, "", "", kept->count, -1);
}

/* ---- the serving process's side: receiving --------------------------------------------------------------------------- */

/* The array grows by doubling; NULL: no memory. */
static void *room_for_one(void *array, uint32_t count, size_t bytes)
{
	if (count & (count - 1) || (count && count < 16))
		return array;
	return realloc(array, (count ? 2 * (size_t)count : 16) * bytes);
}

static struct heirloom_space *find_space(struct heirlooms *h, const char *name, uint64_t serial)
{
	for (uint32_t i = 0; i < h->space_count; i++)
		if (h->spaces[i].serial == serial && !strcmp(h->spaces[i].name, name))
			return &h->spaces[i];
	return NULL;
}

/* Takes @fd over, likewise below; after an error it is the caller's. */
static int add_space_part(struct heirlooms *h, const struct keeper_message *m, int fd)
{
	struct heirloom_space *s = find_space(h, m->name, m->number);

	if (!s) {
		struct heirloom_space *more = room_for_one(h->spaces, h->space_count, sizeof(*more));

		if (!more)
			return -ENOMEM;
		h->spaces = more;
		s = &more[h->space_count++];
		*s = (struct heirloom_space){.serial = m->number, .segment = -1, .tables = -1};
		snprintf(s->name, sizeof(s->name), "%s", m->name);
	}
	int *part = m->what[0] == 't' ? &s->tables : &s->segment;
	closep(part);
	*part = fd;
	return 0;
}

static struct heirloom_session *find_session(struct heirlooms *h, uint64_t number)
{
	for (uint32_t i = 0; i < h->session_count; i++)
		if (h->sessions[i].number == number)
			return &h->sessions[i];
	return NULL;
}

/* Client and guard come in any order. */
static int add_session_part(struct heirlooms *h, const struct keeper_message *m, int fd)
{
	struct heirloom_session *s = find_session(h, m->number);

	if (!s) {
		struct heirloom_session *more = room_for_one(h->sessions, h->session_count, sizeof(*more));

		if (!more)
			return -ENOMEM;
		h->sessions = more;
		s = &more[h->session_count++];
		*s = (struct heirloom_session){.number = m->number, .pidfd = -1, .guard_fd = -1};
		snprintf(s->space, sizeof(s->space), "%s", m->name);
	}
	int *part = m->what[0] == 'g' ? &s->guard_fd : &s->pidfd;
	closep(part);
	*part = fd;
	return 0;
}

/* Takes @fd over in any case. */
static int add(struct heirlooms *h, const struct keeper_message *m, int fd, struct why *why)
{
	int r = -EPROTO;

	if (fd < 0)
		return why_set(why, EMFILE, "the %s %s %" PRIu64 " did not come through: no descriptor is free", m->what,
			m->name, m->number);
	if (strlen(m->name) <= HOST_MAX_NAME && (!strcmp(m->what, "segment") || !strcmp(m->what, "tables")))
		r = add_space_part(h, m, fd);
	else if (strlen(m->name) <= HOST_MAX_NAME && (!strcmp(m->what, "session") || !strcmp(m->what, "guard")))
		r = add_session_part(h, m, fd);
	if (!r)
		return 0;
	closep(&fd);
	return r == -ENOMEM ? why_set(why, ENOMEM, "no memory for what the parent holds")
			    : why_set(why, EPROTO, "the parent holds a %s %s, which this program does not know", m->what, m->name);
}

/* The next message, with its descriptor or -1. */
static int receive_one(int socket, uint64_t until_ns, struct keeper_message *m, int *fd, struct why *why)
{
	int r;

	while ((r = keeper_receive(socket, m, fd)) == -EAGAIN) {
		uint64_t now = clock_now_ns();
		struct pollfd wait = {.fd = socket, .events = POLLIN};

		if (now >= until_ns)
			return why_set(why, ETIMEDOUT, "the parent did not give in time what it holds");
		poll(&wait, 1, (int)((until_ns - now) / 1000000) + 1);
	}
	if (r == 0)
		return why_set(why, ECONNRESET, "the parent is gone");
	return r < 0 ? why_set(why, EPROTO, "the parent says what is no message: %s", strerror(-r)) : 0;
}

/* Up to GIVEN. */
static int receive_all(int socket, uint64_t until_ns, struct heirlooms *h, struct why *why)
{
	uint64_t count = 0;
	struct keeper_message m;
	int fd, r;

	while ((r = receive_one(socket, until_ns, &m, &fd, why)) == 0 && m.kind == KEEPER_GIVE) {
		r = add(h, &m, fd, why);
		if (r)
			return r;
		count++;
	}
	if (r)
		return r;
	closep(&fd);
	if (m.kind != KEEPER_GIVEN)
		return why_set(why, EPROTO, "the parent says %u before it has given all that it holds", m.kind);
	if (m.number != count)
		return why_set(why, EPROTO, "the parent gave %" PRIu64 " descriptors, and %" PRIu64 " came", m.number, count);
	return 0;
}

/* ---- letting go ------------------------------------------------------------------------------------------------------ */

static void drop_space(struct heirloom_space *s, int socket)
{
	if (s->taken)
		return;
	closep(&s->segment);
	closep(&s->tables);
	keeper_send(socket, KEEPER_DROP, "segment", s->name, s->serial, -1);
	keeper_send(socket, KEEPER_DROP, "tables", s->name, s->serial, -1);
}

static void drop_session(struct heirloom_session *s, int socket)
{
	if (s->taken)
		return;
	closep(&s->pidfd);
	keeper_send(socket, KEEPER_DROP, "session", s->space, s->number, -1);
	if (s->guard_fd >= 0)
		keeper_send(socket, KEEPER_DROP, "guard", s->space, s->number, -1);
	closep(&s->guard_fd);
}

static bool has_later(const struct heirlooms *h, const struct heirloom_space *s)
{
	for (uint32_t i = 0; i < h->space_count; i++)
		if (h->spaces[i].serial > s->serial && !strcmp(h->spaces[i].name, s->name))
			return true;
	return false;
}

/* A namespace was removed and made again under its name, and the removal did not get to its end. */
static void drop_earlier_ones(struct heirlooms *h, int socket)
{
	for (uint32_t i = 0; i < h->space_count;) {
		if (has_later(h, &h->spaces[i])) {
			drop_space(&h->spaces[i], socket);
			h->spaces[i] = h->spaces[--h->space_count];
		} else {
			i++;
		}
	}
}

static void forget_all(struct heirlooms *h)
{
	for (uint32_t i = 0; i < h->space_count; i++) {
		closep(&h->spaces[i].segment);
		closep(&h->spaces[i].tables);
	}
	for (uint32_t i = 0; i < h->session_count; i++)
		closep(&h->sessions[i].pidfd), closep(&h->sessions[i].guard_fd);
	free(h->spaces);
	free(h->sessions);
	*h = (struct heirlooms){0};
}

/* ---- the serving process's side ------------------------------------------------------------------------------------ */

int heirlooms_receive(int socket, int timeout_ms, struct heirlooms *ret, struct why *why)
{
	*ret = (struct heirlooms){0};
	int r = receive_all(socket, clock_now_ns() + (uint64_t)timeout_ms * 1000000, ret, why);

	if (r)
		forget_all(ret);
	else
		drop_earlier_ones(ret, socket);
	return r;
}

bool heirlooms_take_space(struct heirlooms *h, const char *name, int *segment, int *tables, uint64_t *serial)
{
	for (uint32_t i = 0; i < h->space_count; i++) {
		struct heirloom_space *s = &h->spaces[i];

		if (s->taken || s->segment < 0 || s->tables < 0 || strcmp(s->name, name) != 0)
			continue;
		s->taken = true;
		*segment = STEAL_FD(s->segment);
		*tables = STEAL_FD(s->tables);
		*serial = s->serial;
		return true;
	}
	return false;
}

int heirlooms_take_session(struct heirlooms *h, uint64_t number, int *guard_fd)
{
	struct heirloom_session *s = find_session(h, number);

	*guard_fd = -1;
	if (!s || s->taken || s->pidfd < 0)
		return -1;
	s->taken = true;
	*guard_fd = STEAL_FD(s->guard_fd);
	return STEAL_FD(s->pidfd);
}

void heirlooms_end(struct heirlooms *h, int socket)
{
	for (uint32_t i = 0; i < h->space_count; i++)
		drop_space(&h->spaces[i], socket);
	for (uint32_t i = 0; i < h->session_count; i++)
		drop_session(&h->sessions[i], socket);
	forget_all(h);
}
