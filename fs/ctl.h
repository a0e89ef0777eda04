/* SPDX-License-Identifier: Apache-2.0
 *
 * An open ns/<name>/ctl: its session, the answers it has given, and who polls it.
 *
 * The same sequence number is the same request: while the first is under way the second is EBUSY, afterwards it gets
 * the same answer, from a ring of the last CTL_ANSWERS. The struct is repeated as it was; arrays lie in the call
 * buffer where the first answer put them. Answers that are no outcome (EAGAIN, EINTR, EBUSY, and those of
 * LAST_ERROR, STAT and EMPTY) are not kept.
 *
 * poll(2): readable once a change of the namespace was counted since the last request of this open began, and while an
 * answer of the text face waits; writable while another answer of that would fit.
 */
#ifndef PREFIXFS_FS_CTL_H
#define PREFIXFS_FS_CTL_H

#include "fs/fs.h"
#include "store/session.h"

#define CTL_ANSWERS 64u
#define CTL_ANSWER_BYTES 472u /* of the largest answer that is kept, asserted in ctl.c */
#define CTL_RUNNING 64u       /* requests of one open that may be under way: EBUSY */

struct ctl;
struct ctl_text;

/* Opens a session on @space. The handle for fi->fh, or 0 with the sentence. */
uint64_t ctl_open(struct fs *fs, struct space *space, const struct fuse_ctx *who, bool read_only, struct why *why);

struct session *ctl_session(const struct ctl *ctl);
uint64_t ctl_session_number(const struct ctl *ctl);
struct space *ctl_space(const struct ctl *ctl);
struct fs *ctl_fs(const struct ctl *ctl);
uint32_t ctl_serial(const struct ctl *ctl); /* of the space */
bool ctl_read_only(const struct ctl *ctl);
uint64_t ctl_handle(const struct ctl *ctl);
/* Its text face, for as long as the ctl is taken. NULL: there is none yet, or with @make no memory for it. */
struct ctl_text *ctl_text_face(struct ctl *ctl, bool make);

enum { CTL_E_REPEATED = 1 };
/* Request @seq of operation @nr begins. CTL_E_REPEATED: it was answered; *result and the @bytes at @reply are what was
 * said then. EBUSY: it is under way, or too many are; EINVAL: the number was used for another operation. */
int ctl_request_begin(struct ctl *ctl, uint64_t seq, unsigned nr, uint64_t now_ns, int *result, void *reply, size_t bytes,
		      struct why *why);
struct ctl_request {
	uint64_t seq, since_ns;
	unsigned nr;
};
/* Requests that are under way now, in no order; those that are not kept for a repetition are not among them. */
uint32_t ctl_requests(struct ctl *ctl, struct ctl_request ret[CTL_RUNNING]);
/* It was answered so (or, with @keep false, is as if it had never come). */
void ctl_request_end(struct ctl *ctl, uint64_t seq, unsigned nr, bool keep, int result, const void *reply,
		     size_t bytes);

/* A request begins to look at the namespace: what changed before is no news any more. */
void ctl_note_asked(struct ctl *ctl);
/* For poll(2) that waits for @wanted: takes @handle over, or NULL; what is so now. */
unsigned ctl_poll(struct ctl *ctl, struct fuse_pollhandle *handle, unsigned wanted);
/* For the notifier: is there something to tell a poller? */
bool ctl_poller_ready(struct ctl *ctl);

#endif
