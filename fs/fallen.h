/* SPDX-License-Identifier: Apache-2.0
 *
 * The mount after the serving process was given up: the parent itself answers, without libfuse, without threads, without memory of
 * its own beyond one request: so that nothing that made the serving process die can make this one die.
 *
 *   /          a directory of mode 0555 with one entry, `health`, which has the node id that it had before
 *   /health    @text: the text of the death (fs/last_exit.h), begun with `state: fallen` and the lines `parent` and `socket`
 *   forget, batch forget, interrupt       no answer
 *   release, releasedir, flush            0
 *   INIT, where the connection is new     answered, and kept as one that was not: the next serving process has the mount made anew
 *   everything else                       EIO. Never ENOSYS, which the kernel remembers beyond the fallen mount
 *
 * Requests that wait are asked for again first, so those that the last serving process had read are answered too; and whoever sleeps in
 * poll(2) is woken, and learns that it is an error. Nobody hangs.
 * SIGTERM, an unmount and `prefixfs upgrade` (which starts a serving process once more) end it.
 */
#ifndef PREFIXFS_FS_FALLEN_H
#define PREFIXFS_FS_FALLEN_H

#include <stddef.h>
#include <stdint.h>

#include "fs/will.h"

#define FALLEN_REQUEST_BYTES ((1u << 20) + 4096u) /* what read(2) of /dev/fuse must be able to take: max_write and a header */
#define FALLEN_REPLY_BYTES 8192u                  /* the longest answer; a longer read is answered in part */

struct fallen {
	int fuse;          /* borrowed; non-blocking */
	struct will *will; /* borrowed */
	const char *text;  /* of health; the caller's, constant until fallen_end */
	size_t bytes;
	void *request;     /* FALLEN_REQUEST_BYTES, made before it is needed */
};

/* Memory alone, with all of its pages. ENOMEM. At the parent's start, where there still is some. */
int fallen_prepare(struct fallen *fallen);
/* From now on @text is shown. Asks the kernel to say again what waits. No thread of a serving process may run any more. */
void fallen_begin(struct fallen *fallen, int fuse, struct will *will, const char *text, size_t bytes);
/* Answers what is there, at most 64 requests; 0: none is left for now (poll the descriptor), 1: there are more, -ENODEV: unmounted, or
 * its connection was ended. Never blocks. */
int fallen_answer(struct fallen *fallen);
void fallen_end(struct fallen *fallen); /* frees */

/* One answer: bytes of @reply, 0 = none is due. @reply has room for @capacity, at least FALLEN_REPLY_BYTES. Pure, for tests and the
 * fuzzer: any bytes may stand in @request. */
size_t fallen_reply(const struct fallen *fallen, const void *request, size_t bytes, void *reply, size_t capacity);

#endif
