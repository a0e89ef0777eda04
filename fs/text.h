/* SPDX-License-Identifier: Apache-2.0
 *
 * The small files' texts. Each is made once, when its file is opened, and read from that snapshot.
 */
#ifndef PREFIXFS_FS_TEXT_H
#define PREFIXFS_FS_TEXT_H

#include <stdio.h>

#include "fs/tree.h"

struct text {
	size_t bytes;
	char *at;
};

/* The text of the node that was looked at, as @viewer sees it. ENOENT: it went meanwhile; ENOMEM. No lock may be held. */
int text_new(struct fs *fs, const struct look *look, const struct viewer *viewer, struct text **ret);
void text_free(void *text);

/* text_session.c: sessions/<id>, at most some 20 KiB. ENOENT, ENOMEM. */
int text_print_session(struct fs *fs, uint64_t number, FILE *to);

#endif
