/* SPDX-License-Identifier: Apache-2.0
 *
 * The small files' texts. Each is made once, when its file is opened, and read from that snapshot.
 */
#ifndef PREFIXFS_FS_TEXT_H
#define PREFIXFS_FS_TEXT_H

#include "fs/tree.h"

struct text {
	size_t bytes;
	char *at;
};

/* The text of the node that was looked at. ENOENT: it went meanwhile; ENOMEM. */
int text_new(struct fs *fs, const struct look *look, struct text **ret);
void text_free(void *text);

#endif
