/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory files of clients that GET_INTO writes to. A session has SESSION_MAX_IMPORTS of them at most, the host IMPORTS_MOST.
 *
 *   FREE      a place of the session's table
 *   OFFERED   named, its token is not shown yet          import_offer
 *   HERE      its descriptor came over the socket        import_bring
 *
 * The daemon has the descriptor alone and reaches the memory through pwrite(2): there is no mapping that a client could cut it
 * from. Accepted are regular files of a memory file system (memfd, shm_open) that are open for writing, not sealed against it, and
 * have all of their memory already: the daemon is not to be charged for it. What has changed since is found at each use.
 *
 * Thread-safe; the tables are guarded by the sessions' locks. Descriptors are closed without a lock.
 */
#ifndef PREFIXFS_STORE_IMPORT_H
#define PREFIXFS_STORE_IMPORT_H

#include "store/session.h"

#define IMPORTS_MOST 4096u /* of the host: descriptors */

struct import;

/* Names one and makes a token for it, good for token_ttl_ms. The same id again, before its descriptor came, makes a new token.
 * EINVAL (0), EEXIST, EDQUOT (the session's limit), ENFILE (the host's), EIO, ESHUTDOWN. */
int import_offer(struct session *session, uint64_t id, uint8_t token[16], struct why *why);
/* EINVAL (0), ENOENT, EBUSY: a request writes there. */
int import_drop(struct session *session, uint64_t id, struct why *why);
/* Would import_bring take a file from user @uid with @token? ENOENT (token), EACCES. */
int import_offered(struct host *host, const uint8_t token[16], uid_t uid, struct why *why);
/* The peer of the socket, user @uid, shows @token with @fd, which is taken over in any case (-1: none came). EBADF (none, or not open
 * for writing), EINVAL (no memory file, empty, has holes, appends), EOPNOTSUPP (hugetlbfs), EPERM (sealed), ENOENT (token), EACCES
 * (another user's session). */
int import_bring(struct host *host, const uint8_t token[16], uid_t uid, int fd, struct why *why);

/* For a request inside the session: one that cannot be dropped until import_leave. ENOENT; EINVAL: not here yet. */
int import_use(struct session *session, uint64_t id, struct import **ret, struct why *why);
void import_leave(struct session *session, struct import *import);
uint64_t import_bytes(const struct import *import); /* its length when it came */
/* Is it still as long, and all there? EFAULT. */
int import_check(const struct import *import, struct why *why);
/* All @bytes to @offset, which lies within; EFAULT with the kernel's word. Hold no lock. */
int import_write(const struct import *import, uint64_t offset, const void *from, size_t bytes, struct why *why);
/* Counted for sessions/<number>. By the one user that delivered so much. */
void import_count(struct session *session, struct import *import, uint64_t bytes);
/* At the session's end, with nobody inside. */
void imports_end(struct session *session);

#endif
