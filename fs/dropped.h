/* SPDX-License-Identifier: Apache-2.0
 *
 * Namespaces whose memory was held and had to be dropped at the start, since what lay in the run folder did not say what it was (fs/space_file.h):
 * kept in words, for `health`, until a namespace of that name is made.
 *
 * Thread-safe: one lock, a leaf (LOCK_QUEUE), guards all of it.
 */
#ifndef PREFIXFS_FS_DROPPED_H
#define PREFIXFS_FS_DROPPED_H

#include "fs/event_text.h"
#include "store/base/lock.h"
#include "store/host.h"

struct dropped {
	struct lock lock;
	unsigned count;
	struct dropped_one {
		char name[HOST_MAX_NAME + 1];
		char text[EVENT_TEXT_BYTES]; /* a sentence */
	} at[HOST_MAX_SPACES];
};

void dropped_init(struct dropped *dropped);
void dropped_deinit(struct dropped *dropped);
/* @why: what was wrong, as the end of a sentence. Logs it. What is more than HOST_MAX_SPACES is in the log alone. */
void dropped_note(struct dropped *dropped, const char *name, const char *why);
bool dropped_is_noted(struct dropped *dropped, const char *name);
/* One of that name is made; or @name was being removed when the serving process died: nothing was lost. */
void dropped_forget(struct dropped *dropped, const char *name);
/* The sentence of the @i-th; false: there are fewer. */
bool dropped_get(struct dropped *dropped, unsigned i, char text[EVENT_TEXT_BYTES]);

#endif
