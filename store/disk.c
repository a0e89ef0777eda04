/* SPDX-License-Identifier: Apache-2.0
 *
 * The record directory as a whole: taken, its threads started and ended, reported.
 */
#include "store/disk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/disk_private.h"

#define LOCK_NS 2000000000ull /* a daemon that was just killed holds its lock until the kernel is done with its transfers */
#define LOCK_STEP_NS 10000000l
#define STOP_STEP_NS 5000000ull /* a wait for the last job looks again after this */

/* ---- the directory is ours ------------------------------------------------------------------------------------------ */

static int said_taken(const struct disk *disk, struct why *why)
{
	char pid[32] = "";
	ssize_t n = pread(disk->lock_fd, pid, sizeof(pid) - 1, 0);

	pid[n > 0 ? strcspn(pid, "\n") : 0] = 0;
	if (!*pid || strspn(pid, "0123456789") != strlen(pid))
		return why_set(why, EWOULDBLOCK, "%s belongs to another daemon: its lock is held", disk->path);
	return why_set(why, EWOULDBLOCK, "%s belongs to another daemon, process %s: its lock is held", disk->path, pid);
}

/* 0, or the errno, after LOCK_NS at most. */
static int lock_in_time(int fd)
{
	const struct timespec step = {.tv_nsec = LOCK_STEP_NS};
	uint64_t until_ns = clock_now_ns() + LOCK_NS;

	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK || clock_now_ns() >= until_ns)
			return errno;
		nanosleep(&step, NULL);
	}
	return 0;
}

static int take_lock(struct disk *disk, struct why *why)
{
	char pid[32];

	disk->lock_fd = openat(disk->fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (disk->lock_fd < 0)
		return why_set(why, errno, "%s/lock cannot be opened: %s", disk->path, strerrordesc_np(errno));
	int error = lock_in_time(disk->lock_fd);

	if (error == EWOULDBLOCK)
		return said_taken(disk, why);
	if (error)
		return why_set(why, error, "%s/lock cannot be locked: %s", disk->path, strerrordesc_np(error));
	int n = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());

	/* For people; a full disk does not keep us out. */
	if (ftruncate(disk->lock_fd, 0) || pwrite(disk->lock_fd, pid, (size_t)n, 0) != n)
		return 0;
	return 0;
}

static int take_directory(struct disk *disk, const char *path, struct why *why)
{
	disk->path = strdup(path);
	if (!disk->path)
		return why_set(why, ENOMEM, "no memory for the disk tier");
	disk->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (disk->fd < 0)
		return why_set(why, errno, "%s cannot be opened: %s", path, strerrordesc_np(errno));
	return take_lock(disk, why);
}

/* ---- made and freed -------------------------------------------------------------------------------------------------- */

static int make_ops(struct disk *disk, const struct disk_config *config, struct why *why)
{
	struct disk_ops *ops = NULL;

	disk->uring = config->uring && !disk_ops_uring_new(&ops, NULL);
	if (!ops)
		ops = disk_ops_plain_new();
	if (!ops)
		return why_set(why, ENOMEM, "no memory for the disk tier");
	if (config->fault) {
		int r = disk_ops_fault_new(ops, config->fault, false, &disk->ops, why);

		if (r)
			ops->table->free(&ops);
		return r;
	}
	disk->ops = ops;
	return 0;
}

static int start(struct disk *disk, const struct disk_config *config, struct why *why)
{
	int r = config->ops ? 0 : make_ops(disk, config, why);

	for (uint32_t i = 0; i < config->workers && !r; i++) {
		r = disk_worker_start(disk, &disk->worker[i], i, why);
		disk->workers += !r;
	}
	r = r ? r : disk_chores_start(disk, why);
	return r ? r : disk_names_start(disk, why);
}

static void end(struct disk *disk, bool ops_too)
{
	disk_names_end(disk);
	disk_chores_end(disk);
	for (uint32_t i = 0; i < disk->workers; i++)
		disk_worker_end(&disk->worker[i]);
	if (disk->ops && ops_too)
		disk->ops->table->free(&disk->ops);
	if (disk->lock_fd >= 0)
		flock(disk->lock_fd, LOCK_UN); /* rings that are gone keep it open for a moment */
	closep(&disk->lock_fd);
	closep(&disk->fd);
	lock_destroy(&disk->lock);
	free(disk->path);
	free(disk);
}

int disk_new(const struct disk_config *config, struct disk **ret, struct why *why)
{
	struct disk *disk;
	int r;

	lock_assert_none_held();
	if (!config->workers || config->workers > DISK_MAX_WORKERS)
		return why_set(why, EINVAL, "%u workers of the disk tier; 1 to %u can be", config->workers, DISK_MAX_WORKERS);
	disk = calloc(1, sizeof(*disk));
	if (!disk)
		return why_set(why, ENOMEM, "no memory for the disk tier");
	disk->fd = disk->lock_fd = -1;
	disk->durability = config->durability;
	disk->look_only = config->look_only;
	if (getrandom(&disk->temporary_first, sizeof(disk->temporary_first), 0) < 0)
		disk->temporary_first = (uint32_t)clock_now_ns();
	atomic_store(&disk->temporary, disk->temporary_first);
	lock_init(&disk->lock, LOCK_QUEUE);
	r = take_directory(disk, config->path, why);
	if (!r) {
		disk->ops = config->ops;
		disk->uring = config->ops && !strcmp(config->ops->table->name, "uring");
		r = start(disk, config, why);
	}
	if (r) {
		end(disk, !config->ops); /* which are the caller's until we are */
		return r;
	}
	*ret = disk;
	return 0;
}

void disk_stop(struct disk *disk, uint64_t patience_ns)
{
	struct disk_names *n = &disk->names;
	uint64_t none = 0, until = clock_now_ns() + patience_ns;

	lock_assert_none_held();
	atomic_compare_exchange_strong(&disk->give_up_ns, &none, until);
	disk_names_stop(disk);
	for (uint32_t i = 0; i < disk->workers; i++)
		disk_worker_wake(&disk->worker[i]);
	while (atomic_load(&disk->jobs)) {
		lock_take(&n->lock);
		lock_cond_wait(&n->wake, &n->lock, clock_now_ns() + STOP_STEP_NS);
		lock_drop(&n->lock);
	}
}

void disk_free(struct disk **diskp, uint64_t patience_ns)
{
	struct disk *disk = *diskp;

	*diskp = NULL;
	if (!disk)
		return;
	disk_stop(disk, patience_ns);
	assert(!disk->dirs);
	end(disk, true);
}

/* ---- how it is --------------------------------------------------------------------------------------------------------- */

const char *disk_path(const struct disk *disk)
{
	return disk->path;
}

struct disk_ops *disk_ops(struct disk *disk)
{
	return disk->ops;
}

bool disk_uses_uring(const struct disk *disk)
{
	return disk->uring;
}

uint32_t disk_jobs(const struct disk *disk)
{
	return atomic_load(&disk->jobs);
}

static void report_counters(const struct disk_counters *c, struct disk_report *ret)
{
	ret->read_bytes = atomic_load(&c->read_bytes);
	ret->written_bytes = atomic_load(&c->written_bytes);
	ret->reads = atomic_load(&c->reads);
	ret->writes = atomic_load(&c->writes);
	ret->removes = atomic_load(&c->removes);
	ret->trims = atomic_load(&c->trims);
	ret->read_errors = atomic_load(&c->read_errors);
	ret->write_errors = atomic_load(&c->write_errors);
	ret->checksum_errors = atomic_load(&c->checksum_errors);
}

void disk_report(struct disk *disk, struct disk_report *ret)
{
	struct statvfs st;

	lock_assert_none_held();
	memset(ret, 0, sizeof(*ret));
	report_counters(&disk->counters, ret);
	if (!fstatvfs(disk->fd, &st)) {
		ret->free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
		ret->total_bytes = (uint64_t)st.f_blocks * st.f_frsize;
	}
	ret->workers = disk->workers;
	ret->jobs = disk_jobs(disk);
	ret->uring = disk_uses_uring(disk);
	ret->direct = disk->ops->table->direct(disk->ops);
	for (uint32_t i = 0; i < disk->workers; i++)
		ret->buffers_registered += atomic_load(&disk->worker[i].buffers);
}
