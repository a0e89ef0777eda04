/* SPDX-License-Identifier: Apache-2.0
 *
 * The namespaces as the mount shows them, from their mkdir on:
 *
 *   PENDING   mkdir made it; it has `layout` (empty, writable) and `layout.error`, nothing else
 *             the text written to layout is complete JSON, and judged          -> JUDGED
 *   JUDGED    the store makes the space, or refuses: back to PENDING, the sentence in layout.error   -> LIVE
 *   LIVE      it has everything; its layout can only be read
 *   gone      rmdir
 *
 * Each has a number, never reused, by no later serving process either (fs/will.h), which its node ids carry: they stay the same when a
 * pending one becomes live, and when the next serving process makes it again. The
 * space's serial is the store's own number. What is needed to make a live one again lies in the run folder
 * (fs/rundir.h), for the successor of a serving process that died; where it cannot be written, `unsaved` says why until
 * it can.
 *
 * Thread-safe. One lock, a leaf (LOCK_QUEUE), guards the table; the store is never called under it, nor is the run folder
 * written: whoever does that takes turns with the others by a mark.
 */
#ifndef PREFIXFS_FS_NAMESPACES_H
#define PREFIXFS_FS_NAMESPACES_H

#include "fs/fs.h"
#include "fs/heirlooms.h"
#include "store/host.h"

#define NAMESPACES_MAX (2 * HOST_MAX_SPACES) /* pending ones included */

struct dropped;

struct namespace_info {
	uint64_t number;
	char name[HOST_MAX_NAME + 1];
	struct space *space; /* referenced for the caller, or NULL while it is pending */
	struct space_access access;
	int64_t created_s;
	size_t text_bytes; /* of the pending layout */
	char anew[200];    /* why it could not be adopted and was made anew; empty: it was, or needed not be */
	bool saved;        /* a live one: it was in the run folder */
	int unsaved;       /* a live one: why what is in the run folder is not what it is now, an errno; 0 = it is */
};

struct namespaces *namespaces_new(struct fs *fs); /* NULL: no memory */
void namespaces_free(struct namespaces **namespaces);
/* Makes the spaces that a predecessor had, as the run folder says: out of what the parent holds of them, where there is something and it is
 * good; else anew, with what was written to the disk. Then those that only the disk knows. Logs what cannot be. Takes what it uses of
 * @heirlooms; NULL: there are none. */
void namespaces_restore(struct namespaces *namespaces, struct heirlooms *heirlooms);

/* 0 with *ret filled, or -ENOENT; by a number of an earlier serving process -ESTALE. The caller drops the space with space_unref. */
int namespaces_get(struct namespaces *namespaces, uint64_t number, struct namespace_info *ret);
int namespaces_find(struct namespaces *namespaces, const char *name, struct namespace_info *ret);
/* The first one whose number is above @after. */
int namespaces_next(struct namespaces *namespaces, uint64_t after, struct namespace_info *ret);
/* The number whose low NODE_NAMESPACE_BITS these are. */
bool namespaces_of_low_bits(struct namespaces *namespaces, uint32_t bits, uint64_t *number);
bool namespaces_of_serial(struct namespaces *namespaces, uint32_t serial, uint64_t *number);

/* Memory that was held and had to be dropped, for `health`. Lives as long as @namespaces. */
struct dropped *namespaces_dropped(struct namespaces *namespaces);

/* mkdir. EEXIST, ENOSPC (as many as there may be), and what host_check_name refuses. */
int namespaces_make(struct namespaces *namespaces, const char *name, const struct space_access *access,
		    uint64_t *number, struct why *why);
/* rmdir. ENOENT, EBUSY while sessions are open, slots are kept for those of before (store/remnants.h), or the layout is being judged. */
int namespaces_remove(struct namespaces *namespaces, const char *name, struct why *why);
/* chmod, chown. Of a live one it is first written to the run folder, since after a death what lies there counts: where that fails, its errno,
 * and nothing is changed. */
int namespaces_set_access(struct namespaces *namespaces, uint64_t number, const struct space_access *access);
/* Writes those anew that are not in the run folder as they are: that could not be written, or that somebody removed or changed there. Called
 * once a second. */
void namespaces_save_again(struct namespaces *namespaces);

/* write(2) on layout: @bytes at @offset, which must follow what was written before; at 0 it begins anew. When the
 * whole is complete JSON it is judged. EINVAL with the sentence (also in layout.error), EFBIG, EEXIST for a live
 * one, EBUSY while another write is judged. White space after the layout of a live one is let pass. */
int namespaces_write_layout(struct namespaces *namespaces, uint64_t number, uint64_t offset, const char *text,
			    size_t bytes, struct why *why);
/* O_TRUNC: the text of a pending one begins anew; nothing happens to a live one's: EEXIST. */
int namespaces_truncate_layout(struct namespaces *namespaces, uint64_t number);
/* A copy, to be freed, of the pending text (@error false) or of what is wrong with it: why it was refused, or that it is
 * incomplete. NULL: gone, or no memory. */
char *namespaces_text(struct namespaces *namespaces, uint64_t number, bool error, size_t *bytes);

#endif
