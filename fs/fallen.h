/* SPDX-License-Identifier: Apache-2.0
 *
 * The mount after the serving process was given up: the parent itself answers, without libfuse, without threads, without memory of
 * its own beyond one request: so that nothing that made the serving process die can make this one die.
 *
 *   /          a directory of mode 0555 with one entry, `health`
 *   /health    the text of the death (fs/last_exit.h), begun with `state: fallen`
 *   forget, batch forget, interrupt       no answer
 *   release, releasedir, flush            0
 *   everything else                       EIO
 *
 * Requests that wait are asked for again first, so those that the last serving process had read are answered too. Nobody hangs.
 * SIGTERM, an unmount and `prefixfs upgrade` (which starts a serving process once more) end it.
 */
#ifndef PREFIXFS_FS_FALLEN_H
#define PREFIXFS_FS_FALLEN_H

#include <stddef.h>
#include <stdint.h>

#define FALLEN_REQUEST_BYTES ((1u << 20) + 4096u) /* what read(2) of /dev/fuse must be able to take: max_write and a header */

struct fallen {
	int fuse;         /* borrowed; non-blocking */
	const char *text; /* of health; the caller's, constant until fallen_end */
	size_t bytes;
	void *request;    /* FALLEN_REQUEST_BYTES, made before it is needed */
};

/* Memory alone. ENOMEM. At the parent's start, where there still is some. */
int fallen_prepare(struct fallen *fallen);
/* From now on @text is shown. Asks the kernel to say again what waits. */
void fallen_begin(struct fallen *fallen, int fuse, const char *text, size_t bytes);
/* Answers what is there, at most 64 requests; 0: none is left for now (poll the descriptor), 1: there are more, -ENODEV: unmounted. Never
 * blocks. */
int fallen_answer(struct fallen *fallen);
void fallen_end(struct fallen *fallen); /* frees */

/* One answer: bytes of @reply, 0 = none is due. @reply has room for 4096 and @text's bytes. Pure, for tests and the fuzzer: any bytes
 * may stand in @request. */
size_t fallen_reply(const struct fallen *fallen, const void *request, size_t bytes, void *reply, size_t capacity);

#endif
