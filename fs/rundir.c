/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/cleanup.h"
#include "store/base/digest.h"

int rundir_init(struct rundir *dir, const char *run_dir, const char *mountpoint, struct why *why)
{
	const char *slash = strrchr(mountpoint, '/');
	char name[25];
	size_t used = 0;
	uint8_t digest[16];

	dir->lock = -1;
	dir->turned = false;
	for (const char *c = slash ? slash + 1 : mountpoint; *c && used < sizeof(name) - 1; c++) {
		bool plain = (*c >= '0' && *c <= '9') || (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') ||
		             *c == '_';

		name[used++] = plain ? *c : '_';
	}
	name[used] = 0;
	digest_128(mountpoint, strlen(mountpoint), digest);
	int length = snprintf(dir->path, sizeof(dir->path), "%s/%s-%02x%02x%02x%02x", run_dir, name, digest[0],
		digest[1], digest[2], digest[3]);
	if (length < 0 || (size_t)length + sizeof("/sock") > sizeof(dir->path))
		return why_set(why, ENAMETOOLONG, "run_dir: '%s' is too long; the socket's path must fit %zu bytes",
			run_dir, sizeof(dir->path));
	return 0;
}

void rundir_path(const struct rundir *dir, const char *name, char to[RUNDIR_PATH_BYTES])
{
	snprintf(to, RUNDIR_PATH_BYTES, "%s/%s", dir->path, name);
}

/* The files that say why somebody died. */
static bool is_reason(const char *name)
{
	return !strcmp(name, "last_exit") || !strcmp(name, "deaths") || !strcmp(name, "log") || !strcmp(name, "log.1");
}

static void remove_files(const char *path, bool keep_reason)
{
	DIR *d = opendir(path);
	struct dirent *e;

	if (!d)
		return;
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, "lock"))
			continue;
		if (keep_reason && is_reason(e->d_name))
			continue;
		unlinkat(dirfd(d), e->d_name, 0); /* a folder is let pass: EISDIR */
	}
	closedir(d);
}

static void empty(struct rundir *dir, bool keep_reason)
{
	char path[RUNDIR_PATH_BYTES];

	rundir_path(dir, "spaces", path);
	remove_files(path, false);
	rmdir(path);
	remove_files(dir->path, keep_reason);
}

static void turn_log(struct rundir *dir)
{
	char from[RUNDIR_PATH_BYTES], to[RUNDIR_PATH_BYTES];

	rundir_path(dir, "log", from);
	rundir_path(dir, "log.1", to);
	dir->turned = rename(from, to) == 0; /* none there: log.1 stays */
}

static void turn_log_back(struct rundir *dir)
{
	char from[RUNDIR_PATH_BYTES], to[RUNDIR_PATH_BYTES];

	rundir_path(dir, "log.1", from);
	rundir_path(dir, "log", to);
	unlink(to);
	if (dir->turned)
		rename(from, to);
	dir->turned = false;
}

static int make_dir(const char *path, mode_t mode, struct why *why)
{
	if (mkdir(path, mode) == 0)
		return chmod(path, mode) == 0 ? 0 : why_set(why, errno, "%s: %s", path, strerror(errno));
	if (errno != EEXIST)
		return why_set(why, errno, "run folder %s cannot be made: %s", path, strerror(errno));
	return 0;
}

/* The folder's own lock and name go last: until then nobody else claims it. */
static void remove_lock(struct rundir *dir)
{
	char path[RUNDIR_PATH_BYTES];

	rundir_path(dir, "lock", path);
	unlink(path);
	rmdir(dir->path); /* only when it is empty. run_dir stays: it is not this mount's alone, and may be bind-mounted */
	if (dir->lock >= 0)
		close(dir->lock);
	dir->lock = -1;
}

static int make_dirs(const struct rundir *dir, mode_t mode, struct why *why)
{
	char path[RUNDIR_PATH_BYTES];

	snprintf(path, sizeof(path), "%s", dir->path);
	*strrchr(path, '/') = 0;
	int r = make_dir(path, mode, why);

	if (r)
		return r;
	return make_dir(dir->path, mode, why);
}

static int take_lock(struct rundir *dir, struct why *why)
{
	char path[RUNDIR_PATH_BYTES], pid[16];

	rundir_path(dir, "lock", path);
	cleanup(closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0) {
		why_set(why, errno, "%s: %s", path, strerror(errno));
		remove_lock(dir);
		return -why->error;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);

		pid[n > 0 ? n : 0] = 0;
		pid[strcspn(pid, "\n")] = 0;
		return why_set(
			why, EBUSY, "another prefixfsd (pid %s) serves this mount point; it holds %s", pid, path);
	}
	dir->lock = STEAL_FD(fd);
	return 0;
}

static int make_spaces(const struct rundir *dir, struct why *why)
{
	char path[RUNDIR_PATH_BYTES];

	rundir_path(dir, "spaces", path);
	return make_dir(path, 0700, why);
}

int rundir_mend(const struct rundir *dir)
{
	struct why why = WHY_INIT;
	int r = make_dirs(dir, geteuid() == 0 ? 0755 : 0700, &why);

	return r ? r : make_spaces(dir, &why);
}

static int fill(struct rundir *dir, struct why *why)
{
	char path[RUNDIR_PATH_BYTES], pid[16];
	int length = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());

	rundir_path(dir, "lock", path);
	if (ftruncate(dir->lock, 0) != 0 || pwrite(dir->lock, pid, (size_t)length, 0) != length)
		return why_set(why, errno, "%s: %s", path, strerror(errno));
	return make_spaces(dir, why);
}

int rundir_claim(struct rundir *dir, bool for_all, struct why *why)
{
	int r = make_dirs(dir, for_all ? 0755 : 0700, why);

	if (!r)
		r = take_lock(dir, why);
	if (r)
		return r;
	empty(dir, true);
	turn_log(dir);
	r = fill(dir, why);
	if (r)
		rundir_undo(dir);
	return r;
}

void rundir_undo(struct rundir *dir)
{
	empty(dir, true);
	turn_log_back(dir);
	remove_lock(dir);
}

void rundir_remove(struct rundir *dir, bool keep_reason)
{
	empty(dir, keep_reason);
	remove_lock(dir);
}

static int write_all(int fd, const char *text, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, text, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		text += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int rundir_write(const struct rundir *dir, const char *name, const char *text, size_t bytes)
{
	char path[RUNDIR_PATH_BYTES], temporary[RUNDIR_PATH_BYTES + 8];
	int r;

	rundir_path(dir, name, path);
	snprintf(temporary, sizeof(temporary), "%s~", path); /* no namespace may be called so */
	cleanup(closep) int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return -errno;
	r = write_all(fd, text, bytes);
	if (!r && rename(temporary, path) != 0)
		r = -errno;
	if (r)
		unlink(temporary);
	return r;
}

long rundir_read(const struct rundir *dir, const char *name, char *to, size_t capacity)
{
	char path[RUNDIR_PATH_BYTES];
	size_t used = 0;

	rundir_path(dir, name, path);
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	while (used < capacity - 1) {
		ssize_t n = read(fd, to + used, capacity - 1 - used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		used += (size_t)n;
	}
	to[used] = 0;
	return (long)used;
}
