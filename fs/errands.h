/* SPDX-License-Identifier: Apache-2.0
 *
 * Long work on one namespace that is asked for through its ctl and waits for the disk: writing down what is in memory alone
 * (drain), and looking at every record file (check). It is done in threads of its own ("pfs-errand"), so that no loop waits
 * for a disk; a request that asked parks and is woken by the namespace's change, ten times a second at most and at the end.
 *
 * Of one namespace each kind is under way once: who asks for it then joins. It ends when it is done, when nobody has asked
 * for ERRANDS_IDLE_NS longer (drain: what is left stays dirty), or with the daemon. How it ended is remembered until its
 * place is needed, so that who asks again by the number hears it.
 *
 * Thread-safe. One lock, a leaf (LOCK_QUEUE), guards the table; the store is never called under it.
 */
#ifndef PREFIXFS_FS_ERRANDS_H
#define PREFIXFS_FS_ERRANDS_H

#include "fs/fs.h"

#define ERRANDS_MAX 64u    /* remembered */
#define ERRANDS_RUNNING 8u /* at once */
#define ERRANDS_IDLE_NS 3000000000ull

enum errand_kind { ERRAND_DRAIN, ERRAND_DRAIN_NEWEST, ERRAND_CHECK };

struct errand_state {
	bool running;
	struct why why;        /* how it ended; error 0 = well */
	uint64_t done, goal;   /* bytes of a drain, files of a check, about */
	uint64_t left;         /* of a drain that ended: dirty bytes */
	struct space_check check;
};

struct errands;

struct errands *errands_new(struct fs *fs); /* NULL: no memory */
/* Tells all to stop and waits for them: for one file's reads, or for a tenth of a second. Later ones are refused. */
void errands_stop(struct errands *errands);
void errands_free(struct errands **errands); /* stopped */

/* Begins one on @space or joins the one under way; *number names it. It is wanted until @until_ns at least. EBUSY: so many run
 * already; ENODEV: the daemon ends; ENOMEM, EAGAIN. */
int errands_ask(struct errands *errands, struct space *space, enum errand_kind kind, uint64_t until_ns, uint64_t *number,
		struct why *why);
/* How number @number of @space is, which is wanted until @until_ns (0: for no longer). ENOENT: it is forgotten, or was another
 * namespace's. */
int errands_look(struct errands *errands, const struct space *space, uint64_t number, uint64_t until_ns,
		 struct errand_state *ret, struct why *why);

#endif
