/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking a daemon's parent to have another program serve.
 */
#ifndef PREFIXFS_TOOLS_UPGRADE_H
#define PREFIXFS_TOOLS_UPGRADE_H

#include <limits.h>
#include <stdbool.h>

#include "fs/client/upgrade_wire.h"

typedef void upgrade_heard(void *context, const char *text);

/* Has the daemon at @mount upgraded to the program @file, NULL = what stands now where the daemon was started from. Each sentence on what
 * goes on is given to @heard (may be NULL). Blocks until the parent has answered, a minute at most. 0: *answer is the last word, which may be a
 * refusal; 1 after a sentence: nobody was asked, or nobody answered. */
int upgrade_ask(const char *mount, const char *file, bool judge_only, bool remount, upgrade_heard *heard, void *context,
	struct upgrade_answer *answer);
/* The parent of the daemon at @mount, and the path of the socket at which it is asked. At most some seconds; 0, or 1 after a sentence: there is
 * no mount, it is another user's, or its parent is stopped. */
int upgrade_find(const char *mount, long *parent, char path[PATH_MAX]);
/* Can the daemon at @mount be asked at all? Says nothing. */
bool upgrade_possible(const char *mount);

#endif
