/* SPDX-License-Identifier: Apache-2.0 */
#include "store/import.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/session_private.h"

#define BLOCK_BYTES 512u /* of st_blocks */

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* ---- the table ------------------------------------------------------------------------------------------------------ */

/* NULL: there is none; with id 0 a free place. */
static struct import *find(struct session *s, uint64_t id)
{
	lock_assert_held(&s->lock);
	for (uint32_t i = 0; i < SESSION_MAX_IMPORTS; i++)
		if (s->imports[i].id == id)
			return &s->imports[i];
	return NULL;
}

static int place_take(struct session *s, uint64_t id, struct import **ret, struct why *why)
{
	struct import *import = find(s, 0);

	if (!import)
		return why_set(why, EDQUOT, "import %llu: the session has %u, the most that it may", (unsigned long long)id,
			       SESSION_MAX_IMPORTS);
	if (atomic_fetch_add(&s->host->imports, 1) >= IMPORTS_MOST) {
		atomic_fetch_sub(&s->host->imports, 1);
		return why_set(why, ENFILE, "import %llu: the host's sessions have %u, the most that one host has",
			       (unsigned long long)id, IMPORTS_MOST);
	}
	*import = (struct import){ .id = id, .fd = -1 };
	*ret = import;
	return 0;
}

/* Returns the descriptor, which the caller closes without the lock. */
static int place_give(struct session *s, struct import *import)
{
	int fd = import->fd;

	*import = (struct import){ .fd = -1 };
	atomic_fetch_sub(&s->host->imports, 1);
	return fd;
}

int import_offer(struct session *s, uint64_t id, uint8_t token[16], struct why *why)
{
	struct import *import;
	int r = 0;

	if (!id)
		return why_set(why, EINVAL, "import: the id is 0");
	lock_take(&s->lock);
	import = find(s, id);
	if (s->state != SESSION_ATTACHED)
		r = why_set(why, ESHUTDOWN, "session %llu has ended", (unsigned long long)s->number);
	else if (import && import->fd >= 0)
		r = why_set(why, EEXIST, "import %llu is in use", (unsigned long long)id);
	else if (!import)
		r = place_take(s, id, &import, why);
	if (!r && getrandom(import->token, sizeof(import->token), 0) != (ssize_t)sizeof(import->token)) {
		place_give(s, import);
		r = why_set(why, EIO, "the kernel gave no random bytes for a token");
	}
	if (!r) {
		import->token_until_ns = clock_now_ns() + s->host->config.token_ttl_ms * 1000000ull;
		memcpy(token, import->token, sizeof(import->token));
	}
	lock_drop(&s->lock);
	return r;
}

int import_drop(struct session *s, uint64_t id, struct why *why)
{
	struct import *import;
	int fd = -1, r = 0;

	if (!id)
		return why_set(why, EINVAL, "import: the id is 0");
	lock_take(&s->lock);
	import = find(s, id);
	if (!import)
		r = why_set(why, ENOENT, "this session has no import %llu", (unsigned long long)id);
	else if (import->users)
		r = why_set(why, EBUSY, "import %llu: %u requests write there", (unsigned long long)id, import->users);
	else
		fd = place_give(s, import);
	lock_drop(&s->lock);
	if (fd >= 0)
		close(fd);
	return r;
}

void imports_end(struct session *s)
{
	for (uint32_t i = 0; i < SESSION_MAX_IMPORTS; i++) {
		struct import *import = &s->imports[i];
		int fd = -1;

		lock_take(&s->lock);
		assert(!import->users);
		if (import->id)
			fd = place_give(s, import);
		lock_drop(&s->lock);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- the descriptor ------------------------------------------------------------------------------------------------- */

static int check_open(int fd, struct why *why)
{
	int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);

	if (flags < 0)
		return why_set(why, EBADF, "import: no descriptor came with the hello");
	if (flags & O_PATH || (flags & O_ACCMODE) == O_RDONLY)
		return why_set(why, EBADF, "import: the descriptor is not open for writing");
	if (flags & O_APPEND)
		return why_set(why, EINVAL, "import: the descriptor appends (O_APPEND)");
	return 0;
}

/* Files in memory alone have seals, and are asked for them without a word to any other file system, which might not answer. */
static bool in_memory(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0;
}

static int check_kind(int fd, const struct stat *st, struct why *why)
{
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return why_set(why, errno, "import: its file system is not told: %s", strerror(errno));
	if ((unsigned long)fs.f_type == HUGETLBFS_MAGIC)
		return why_set(why, EOPNOTSUPP, "import: files of hugetlbfs cannot be written by write(2)");
	if ((unsigned long)fs.f_type != TMPFS_MAGIC || !S_ISREG(st->st_mode))
		return why_set(why, EINVAL, "import: a file of type 0%o on a file system of type 0x%lx is none in memory",
			       (unsigned)st->st_mode, (unsigned long)fs.f_type);
	return 0;
}

/* No holes: whoever makes a page present is charged for it, and that is not to be the daemon. */
static bool all_there(const struct stat *st)
{
	return (uint64_t)st->st_blocks * BLOCK_BYTES >= (uint64_t)st->st_size;
}

static int check_memory(int fd, const struct stat *st, struct why *why)
{
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals > 0 && seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return why_set(why, EPERM, "import: the file is sealed against writing (seals 0x%x)", (unsigned)seals);
	if (!st->st_size)
		return why_set(why, EINVAL, "import: the file is empty");
	if (!all_there(st))
		return why_set(why, EINVAL, "import: the file has %llu bytes, of which %llu are present; populate it first (fallocate)",
			       (unsigned long long)st->st_size, (unsigned long long)st->st_blocks * BLOCK_BYTES);
	return 0;
}

static int check_file(int fd, struct stat *st, struct why *why)
{
	int r = check_open(fd, why);

	if (!r && !in_memory(fd))
		r = why_set(why, EINVAL, "import: the descriptor is no file in memory (memfd_create, shm_open)");
	if (!r && fstat(fd, st))
		r = why_set(why, errno, "import: %s", strerror(errno));
	r = r ? r : check_kind(fd, st, why);
	return r ? r : check_memory(fd, st, why);
}

/* ---- bringing it ---------------------------------------------------------------------------------------------------- */

static bool token_is(const struct import *import, const uint8_t token[16], uint64_t now_ns)
{
	unsigned differs = !import->id || import->fd >= 0 || now_ns > import->token_until_ns;

	for (int i = 0; i < 16; i++)
		differs |= import->token[i] ^ token[i]; /* the same time whatever differs */
	return !differs;
}

/* True: the token was one of @s's, and *r says what came of it. Without @st it is only looked for. */
static bool bring_to(struct session *s, const uint8_t token[16], uid_t uid, int fd, const struct stat *st, int *r, struct why *why)
{
	uint64_t now_ns = clock_now_ns();
	bool found = false;

	lock_take(&s->lock);
	for (uint32_t i = 0; i < SESSION_MAX_IMPORTS && s->state == SESSION_ATTACHED && !found; i++) {
		struct import *import = &s->imports[i];

		found = token_is(import, token, now_ns);
		if (!found)
			continue;
		*r = 0;
		if (uid != s->uid && uid != 0) {
			*r = why_set(why, EACCES, "import: uid %u shows a token of uid %u", uid, s->uid);
		} else if (st) {
			import->fd = fd;
			import->bytes = (uint64_t)st->st_size;
			memset(import->token, 0, sizeof(import->token));
		}
	}
	lock_drop(&s->lock);
	return found;
}

static int bring(struct host *host, const uint8_t token[16], uid_t uid, int fd, const struct stat *st, struct why *why)
{
	bool found = false;
	int r = 0;

	for (uint32_t i = 0; i < HOST_MAX_SESSIONS && !found; i++) {
		struct session *s = NULL;

		lock_take(&host->lock);
		if (host->sessions[i])
			s = session_ref(host->sessions[i]);
		lock_drop(&host->lock);
		if (!s)
			continue;
		found = bring_to(s, token, uid, fd, st, &r, why);
		session_unref(&s);
	}
	return found ? r : why_set(why, ENOENT, "the token is unknown, used or too old");
}

int import_offered(struct host *host, const uint8_t token[16], uid_t uid, struct why *why)
{
	return bring(host, token, uid, -1, NULL, why);
}

static void *close_it(void *argument)
{
	close((int)(intptr_t)argument);
	return NULL;
}

/* Closing a file of another file system may wait for that, for ever: not in the caller's thread. */
static void let_go(int fd)
{
	pthread_attr_t detached;
	pthread_t thread;
	bool begun = false;

	if (!in_memory(fd) && !pthread_attr_init(&detached)) {
		pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
		begun = !pthread_create(&thread, &detached, close_it, (void *)(intptr_t)fd);
		pthread_attr_destroy(&detached);
	}
	if (!begun)
		close(fd);
}

int import_bring(struct host *host, const uint8_t token[16], uid_t uid, int fd, struct why *why)
{
	struct stat st = { 0 };
	int r = check_file(fd, &st, why);

	r = r ? r : bring(host, token, uid, fd, &st, why);
	if (r && fd >= 0)
		let_go(fd);
	return r;
}

/* ---- use ------------------------------------------------------------------------------------------------------------ */

int import_use(struct session *s, uint64_t id, struct import **ret, struct why *why)
{
	struct import *import;
	int r = 0;

	lock_take(&s->lock);
	import = id ? find(s, id) : NULL;
	if (!import)
		r = why_set(why, ENOENT, "this session has no import %llu", (unsigned long long)id);
	else if (import->fd < 0)
		r = why_set(why, EINVAL, "import %llu: its descriptor has not come over the socket", (unsigned long long)id);
	else
		import->users++;
	lock_drop(&s->lock);
	*ret = import;
	return r;
}

void import_leave(struct session *s, struct import *import)
{
	lock_take(&s->lock);
	import->users--;
	lock_drop(&s->lock);
}

uint64_t import_bytes(const struct import *import)
{
	return import->bytes;
}

void import_count(struct session *s, struct import *import, uint64_t bytes)
{
	lock_take(&s->lock);
	import->written += bytes;
	lock_drop(&s->lock);
}

int import_check(const struct import *import, struct why *why)
{
	struct stat st;

	if (fstat(import->fd, &st))
		return why_set(why, EFAULT, "import %llu: %s", (unsigned long long)import->id, strerror(errno));
	if ((uint64_t)st.st_size < import->bytes)
		return why_set(why, EFAULT, "import %llu has %llu bytes, it had %llu when it came", (unsigned long long)import->id,
			       (unsigned long long)st.st_size, (unsigned long long)import->bytes);
	if (!all_there(&st))
		return why_set(why, EFAULT, "import %llu: of its %llu bytes %llu are present; holes were punched",
			       (unsigned long long)import->id, (unsigned long long)st.st_size,
			       (unsigned long long)st.st_blocks * BLOCK_BYTES);
	return 0;
}

int import_write(const struct import *import, uint64_t offset, const void *from, size_t bytes, struct why *why)
{
	lock_assert_none_held();
	for (size_t done = 0; done < bytes;) {
		ssize_t n = pwrite(import->fd, (const char *)from + done, bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return why_set(why, EFAULT, "import %llu: %zu bytes at %llu cannot be written: %s",
				       (unsigned long long)import->id, bytes - done, (unsigned long long)(offset + done),
				       n < 0 ? strerror(errno) : "nothing was taken");
		done += (size_t)n;
	}
	return 0;
}
