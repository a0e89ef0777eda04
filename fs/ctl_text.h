/* SPDX-License-Identifier: Apache-2.0
 *
 * The text face of one open ctl (docs/view.md): write(2) runs commands, read(2) fetches their answers.
 *
 * A write takes at most CTL_WRITE_MAX bytes and runs their lines one after another. A command that fails ends it: what
 * follows in that write is dropped, its answer says why, and the write fails. A write that finds no room for another
 * answer ends before that line: short, or EAGAIN when nothing was run. Long commands go on in steps through the queue
 * (fs/calls.h); a signal, the end of the session or CTL_WRITE_MS ends them after any step.
 *
 * One write is under way at most. The answers are guarded by a leaf lock (LOCK_QUEUE), the rest belongs to the write.
 */
#ifndef PREFIXFS_FS_CTL_TEXT_H
#define PREFIXFS_FS_CTL_TEXT_H

#include "fs/fs.h"

#define CTL_WRITE_MAX 65536u   /* bytes that one write takes */
#define CTL_UNREAD_MAX 65536u  /* bytes of answers that wait to be read */
#define CTL_WRITE_MS 30000u    /* that one write may take: others who write to the same ctl wait in the kernel */

struct ctl;
struct ctl_text;

struct ctl_text *ctl_text_new(void); /* NULL: no memory */
void ctl_text_free(struct ctl_text *face); /* NULL is let pass; no write may be under way */

/* The FUSE operations. @ctl was taken from the handles: write puts it back when it has answered, read leaves that to its
 * caller. Never waits. */
void ctl_text_write(fuse_req_t req, struct ctl *ctl, const char *from, size_t bytes);
void ctl_text_read(fuse_req_t req, struct ctl *ctl, size_t bytes);
/* Of poll(2): is an answer there, is there room for another one. Any thread, under any lock. */
unsigned ctl_text_events(const struct ctl_text *face);

#endif
