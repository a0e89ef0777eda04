/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors that outlive a serving process: how they get to the parent, and from there to the next one. Over the keeper's channel
 * (fs/keeper.h), one message a packet, at most one descriptor with each.
 *
 *   serving -> parent   KEEP (what, name, number, fd)     hold it; one of the same three is replaced
 *                       DROP (what, name, number)         let go of it
 *   parent -> serving   GIVE (what, name, number, fd)     one that is held; a copy stays with the parent
 *                       GIVEN (number = how many)         that was all: begin. A STOP comes only after it
 *                       HANDOVER                          end what runs, answer it, take nothing new, exit with 0
 *
 *   what       name            number                 descriptor
 *   segment    namespace       serial of the space    read-write memory file
 *   tables     namespace       serial of the space    read-write memory file
 *   session    namespace       of the session         pidfd of the process that attached it
 *   guard      namespace       of the session         pidfd of its guard; kept before the other one, so that it is not missing where that is held
 *
 * A descriptor of the mount is never among them: nobody here opens one, and import's are the engines' own and are not kept.
 *
 * At most 2 x HOST_MAX_SPACES + 2 x HOST_MAX_SESSIONS are held (KEPT_MAX); what would be one more is closed and counted. What a process sent before
 * it died is read by the parent up to the channel's end before the successor is given anything: nothing that was sent is missing.
 */
#ifndef PREFIXFS_FS_HEIRLOOMS_H
#define PREFIXFS_FS_HEIRLOOMS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/why.h"
#include "store/host.h"

/* ---- the parent's side (one thread) --------------------------------------------------------------------------------- */

struct kept;

/* Sends what is held, then GIVEN, without blocking where @socket is non-blocking: -EAGAIN, call it again with the same *cursor (0 at
 * first) when it is writable; 0: all was sent; else a negative errno. What is held does not change in between. */
int heirlooms_give(const struct kept *kept, int socket, uint32_t *cursor);

/* ---- the serving process's side (its first thread, before others run) ------------------------------------------------- */

struct heirloom_space {
	char name[HOST_MAX_NAME + 1];
	uint64_t serial;
	int segment, tables; /* -1: it is missing, or the caller's */
	bool taken;
};

struct heirloom_session {
	uint64_t number;
	char space[HOST_MAX_NAME + 1];
	int pidfd, guard_fd; /* -1: it is missing, or the caller's */
	bool taken;
};

struct heirlooms {
	struct heirloom_space *spaces; /* of one name the highest serial alone */
	struct heirloom_session *sessions;
	uint32_t space_count, session_count;
};

/* Waits for GIVEN, at most @timeout_ms. ETIMEDOUT, EPROTO (the parent speaks otherwise), ENOMEM, EMFILE (a descriptor did not come through:
 * there is no room for it), ECONNRESET: the parent is gone. After an error *ret is empty. */
int heirlooms_receive(int socket, int timeout_ms, struct heirlooms *ret, struct why *why);
/* The two descriptors of @name become the caller's; false: there is none, not both of them, or it was taken. */
bool heirlooms_take_space(struct heirlooms *heirlooms, const char *name, int *segment, int *tables, uint64_t *serial);
/* The pidfd of session @number becomes the caller's; -1: there is none, or it was taken. *guard_fd: its guard's likewise. */
int heirlooms_take_session(struct heirlooms *heirlooms, uint64_t number, int *guard_fd);
/* Closes what nobody took and has the parent DROP it: spaces that no namespace has any more, sessions that no seat names. Frees; once
 * more it does nothing. */
void heirlooms_end(struct heirlooms *heirlooms, int socket);

#endif
