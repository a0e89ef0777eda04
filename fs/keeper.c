/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/keeper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int keeper_send(int socket, enum keeper_kind kind, const char *what, const char *name, uint64_t number, int fd)
{
	struct keeper_message m = {.kind = kind, .number = number};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {&m, sizeof(m)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	snprintf(m.what, sizeof(m.what), "%s", what);
	snprintf(m.name, sizeof(m.name), "%s", name);
	if (fd >= 0) {
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	do {
		n = sendmsg(socket, &message, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int keeper_receive(int socket, struct keeper_message *m, int *fd)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {m, sizeof(*m)};
	struct msghdr message = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n;

	*fd = -1;
	do {
		n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? 0 : -errno;
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	if (n != sizeof(*m)) {
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		return n == 0 ? 0 : -EBADMSG;
	}
	m->what[sizeof(m->what) - 1] = 0;
	m->name[sizeof(m->name) - 1] = 0;
	return 1;
}

static struct kept_fd *kept_find(struct kept *kept, const struct keeper_message *m)
{
	for (unsigned i = 0; i < kept->count; i++) {
		struct kept_fd *k = &kept->fds[i];

		if (k->number == m->number && !strcmp(k->what, m->what) && !strcmp(k->name, m->name))
			return k;
	}
	return NULL;
}

void kept_add(struct kept *kept, const struct keeper_message *m, int fd)
{
	struct kept_fd *k = kept_find(kept, m);

	if (fd < 0)
		return;
	if (!k && kept->count >= KEPT_MAX) {
		kept->refused++;
		close(fd);
		return;
	}
	if (!k && kept->count == kept->capacity) {
		unsigned capacity = kept->capacity ? 2 * kept->capacity : 64;
		struct kept_fd *more = realloc(kept->fds, capacity * sizeof(*more));

		if (!more) {
			kept->refused++;
			close(fd);
			return;
		}
		kept->fds = more;
		kept->capacity = capacity;
	}
	if (k)
		close(k->fd);
	else
		k = &kept->fds[kept->count++];
	memcpy(k->what, m->what, sizeof(k->what));
	memcpy(k->name, m->name, sizeof(k->name));
	k->number = m->number;
	k->fd = fd;
}

void kept_drop(struct kept *kept, const struct keeper_message *m)
{
	struct kept_fd *k = kept_find(kept, m);

	if (!k)
		return;
	close(k->fd);
	*k = kept->fds[--kept->count];
}

uint32_t kept_count(const struct kept *kept, const char *what)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < kept->count; i++)
		n += !strcmp(kept->fds[i].what, what);
	return n;
}

void kept_clear(struct kept *kept)
{
	for (unsigned i = 0; i < kept->count; i++)
		close(kept->fds[i].fd);
	free(kept->fds);
	*kept = (struct kept){0};
}
