/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's disk tier as a whole: the directory, what it holds, how it is.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "index/space_json.h"
#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/disk_check.h"
#include "store/host_private.h"
#include "store/reconcile.h"
#include "store/tiering.h"

#define DISK_PART 10u /* of the file system is the default limit */
#define SAVING_NS 100000000ull /* between two looks whether a namespace.json was written */
#define DISK_END_NS 10000000000ull /* for what the workers have begun */

/* ---- beginning and end ---------------------------------------------------------------------------------------------- */

static uint64_t default_limit(const char *path)
{
	struct statvfs s;

	return statvfs(path, &s) ? 0 : (uint64_t)s.f_blocks * s.f_frsize / DISK_PART;
}

int host_disk_open(struct host *host, struct why *why)
{
	const struct host_config *c = &host->config;
	struct disk_config config = {
		.path = c->disk_path,
		.workers = c->disk_workers ? c->disk_workers : 1,
		.durability = c->disk_sync ? DISK_DURABILITY_DATA : DISK_DURABILITY_NONE,
		.uring = !c->disk_plain,
		.fault = c->disk_fault,
		.ops = c->disk_ops,
	};
	struct why refused = WHY_INIT;
	int r;

	if (!c->disk_path)
		return 0;
	r = disk_new(&config, &host->disk, &refused);
	if (r == -EWOULDBLOCK && c->disk_late)
		why_set(&refused, EWOULDBLOCK, "%s: what the process before gave to the disk has not ended in 2 s; its lock is held", c->disk_path);
	else if (r == -EWOULDBLOCK || r == -EINVAL)
		return why_set(why, -r, "%s", refused.text);
	if (r) {
		snprintf(host->disk_text, sizeof(host->disk_text), "%.*s", (int)sizeof(host->disk_text) - 1, refused.text);
		return 0;
	}
	host->disk_limit = c->disk_bytes ? c->disk_bytes : default_limit(c->disk_path);
	r = mover_new(host, why);
	if (r)
		disk_free(&host->disk, 0);
	return r;
}

static void free_unused(struct host *host)
{
	while (host->unused) {
		struct unused_folder *next = host->unused->next;

		free(host->unused);
		host->unused = next;
	}
}

void host_disk_close(struct host *host)
{
	mover_stop(host);
	if (host->disk)
		disk_stop(host->disk, DISK_END_NS);
	mover_free(host);
	disk_free(&host->disk, 0);
	free_unused(host);
}

/* ---- namespaces that it holds ----------------------------------------------------------------------------------------- */

static char *read_whole(int dir, const char *name, size_t *bytes)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char *text = fd >= 0 ? malloc(SPACE_JSON_MOST + 1) : NULL;
	ssize_t n = 0;

	*bytes = 0;
	while (text && *bytes <= SPACE_JSON_MOST && (n = read(fd, text + *bytes, SPACE_JSON_MOST + 1 - *bytes)) > 0)
		*bytes += (size_t)n;
	if (fd >= 0)
		close(fd);
	if (n < 0) {
		int error = errno;

		free(text);
		errno = error;
		return NULL;
	}
	return text;
}

/* Calls @one for each folder of the disk; nobody else changes which there are. */
static void each_folder(struct host *host, void (*one)(void *context, struct host *host, int dir, const char *name), void *context)
{
	DIR *dir = host->disk ? opendir(disk_path(host->disk)) : NULL;
	struct dirent *entry;

	lock_assert_none_held();
	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			one(context, host, dirfd(dir), entry->d_name);
	if (dir)
		closedir(dir);
}

/* What the namespace.json of a folder says; json->layout is the caller's. */
static int read_json(int dir, const char *folder, struct space_json *json, struct why *why)
{
	char path[300];
	size_t bytes;
	int r;

	snprintf(path, sizeof(path), "%.255s/namespace.json", folder);
	char *text = read_whole(dir, path, &bytes);
	if (!text)
		return why_set(why, errno, "namespace.json cannot be read: %s", strerror(errno));
	r = space_json_read(text, bytes, json, why);
	free(text);
	return r;
}

static void clear_gone(void *context, struct host *host, int dir, const char *name)
{
	struct space_json json = { 0 };
	struct layout *layout = NULL;
	struct why why = WHY_INIT;

	(void)context;
	if (!disk_is_gone(name))
		return;
	if (!read_json(dir, name, &json, &why)) {
		if (layout_parse(json.layout, strlen(json.layout), &layout, &why))
			layout = NULL;
		free(json.layout);
	}
	disk_remove_gone(host->disk, name, layout);
	layout_free(&layout);
}

void host_disk_clear_gone(struct host *host)
{
	each_folder(host, clear_gone, NULL);
}

void host_disk_unused(struct host *host, const char *folder, const char *text)
{
	struct unused_folder *u = calloc(1, sizeof(*u));
	int root, fd;

	lock_assert_none_held();
	if (!u)
		return;
	snprintf(u->name, sizeof(u->name), "%s", folder);
	snprintf(u->text, sizeof(u->text), "%.*s", (int)sizeof(u->text) - 1, text);
	root = open(disk_path(host->disk), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fd = openat(root, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0) {
		check_survey(fd, &u->files, &u->bytes);
		close(fd);
	}
	if (root >= 0)
		close(root);
	lock_take(&host->lock);
	u->next = host->unused;
	host->unused = u;
	lock_drop(&host->lock);
}

static bool is_served(struct host *host, const char *folder)
{
	char name[DISK_DIR_NAME_BYTES];

	lock_assert_held(&host->lock);
	for (uint32_t i = 0; i < host->space_count; i++) {
		disk_dir_name(name, host->spaces[i]->layout);
		if (!strcmp(name, folder))
			return true;
	}
	return false;
}

/* One that a namespace was made of since is that one's. */
static void add_unused(struct host *host, struct host_disk_report *ret)
{
	lock_take(&host->lock);
	for (const struct unused_folder *u = host->unused; u; u = u->next) {
		if (is_served(host, u->name))
			continue;
		ret->foreign_files += u->files;
		ret->foreign_bytes += u->bytes;
		if (u->text[0] && !ret->unused_folders++)
			snprintf(ret->unused_text, sizeof(ret->unused_text), "%s: %s", u->name, u->text);
	}
	lock_drop(&host->lock);
}

struct found_folders {
	void (*found)(void *context, const char *name, const char *text, size_t bytes, uint64_t floor_bytes,
		      const struct space_access *access);
	void (*damaged)(void *context, const char *folder, const char *text);
	void *context;
};

/* The same, with a layout that is understood and is this folder's. */
static int read_space(int dir, const char *folder, struct space_json *json, struct why *why)
{
	char name[DISK_DIR_NAME_BYTES];
	struct layout *layout = NULL;
	int r = read_json(dir, folder, json, why);

	if (r)
		return r;
	r = layout_parse(json->layout, strlen(json->layout), &layout, why);
	if (!r) {
		disk_dir_name(name, layout);
		layout_free(&layout);
		r = strcmp(name, folder) ? why_set(why, EINVAL, "its layout belongs in the folder %s", name) : 0;
	}
	if (r)
		free(json->layout);
	return r;
}

static void found_folder(void *context, struct host *host, int dir, const char *folder)
{
	struct found_folders *f = context;
	struct why why = WHY_INIT;
	struct space_json json;

	if (!disk_is_folder(folder))
		return;
	if (!read_space(dir, folder, &json, &why)) {
		struct space_access access = { .uid = json.uid, .gid = json.gid, .mode = (mode_t)json.mode };

		f->found(f->context, json.name, json.layout, strlen(json.layout), json.floor_bytes, &access);
		free(json.layout);
		return;
	}
	if (why.error == ENOENT) { /* of a creation, or what is left of a removed one, which is others' */
		if (!disk_remove_unmade(host->disk, folder))
			host_disk_unused(host, folder, "");
		return;
	}
	f->damaged(f->context, folder, why.text);
}

void host_disk_spaces(struct host *host,
		      void (*found)(void *context, const char *name, const char *text, size_t bytes, uint64_t floor_bytes,
				    const struct space_access *access),
		      void (*damaged)(void *context, const char *folder, const char *text), void *context)
{
	struct found_folders f = { .found = found, .damaged = damaged, .context = context };

	each_folder(host, found_folder, &f);
}

/* Nobody else writes it; @generation: what it is to say. */
static char *space_text(struct space *space, uint64_t generation)
{
	struct space_json json = { .layout = space->layout->json, .generation = generation };
	struct space_access access;

	space_access(space, &access);
	snprintf(json.name, sizeof(json.name), "%s", space->name);
	json.mode = access.mode;
	json.uid = access.uid;
	json.gid = access.gid;
	json.floor_bytes = space_floor_bytes(space);
	return space_json_make(&json);
}

/* 0, or a negative errno. */
static int write_synced(int fd, const char *text)
{
	ssize_t n = fd < 0 ? -1 : pwrite(fd, text, strlen(text), 0);

	if (n == (ssize_t)strlen(text) && !fsync(fd))
		return 0;
	return n >= 0 && n < (ssize_t)strlen(text) ? -ENOSPC : -errno;
}

/* A new file in place of the old one; on a disk that is full the old one is written over, which needs no room. */
static int replace_text(int dir, const char *text)
{
	int fd = openat(dir, "namespace.json.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int r = write_synced(fd, text);

	if (fd >= 0)
		close(fd);
	killpoint(KILLPOINT_JSON_WRITTEN);
	if (!r)
		return renameat(dir, "namespace.json.tmp", dir, "namespace.json") || fsync(dir) ? -errno : 0;
	unlinkat(dir, "namespace.json.tmp", 0);
	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	fd = openat(dir, "namespace.json", O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return r;
	r = write_synced(fd, text);
	if (!r && ftruncate(fd, (off_t)strlen(text)))
		r = -errno;
	close(fd);
	return r;
}

/* One at a time: who comes later has later words. */
static uint64_t begin_saving(struct tiering *t)
{
	uint64_t generation;

	lock_take(&t->space->lock);
	while (t->saving)
		lock_cond_wait(&t->saved, &t->space->lock, clock_now_ns() + SAVING_NS);
	t->saving = true;
	generation = t->generation;
	lock_drop(&t->space->lock);
	return generation;
}

static void end_saving(struct tiering *t, uint64_t generation)
{
	lock_take(&t->space->lock);
	t->saving = false;
	t->generation = generation;
	lock_cond_wake_all(&t->saved);
	lock_drop(&t->space->lock);
}

static int save(struct space *space, bool next, struct why *why)
{
	struct tiering *t = space->tiering;
	uint64_t before, generation;
	char *text;
	int r;

	lock_assert_none_held();
	before = begin_saving(t);
	generation = before + next;
	text = space_text(space, generation);
	r = text ? replace_text(disk_dir_fd(t->dir), text) : -ENOMEM;
	free(text);
	end_saving(t, r ? before : generation);
	return r ? why_set(why, -r, "namespace %s: %s/namespace.json cannot be written: %s", space->name, disk_dir_path(t->dir),
			   strerror(-r)) :
		   0;
}

int tiering_save_space(struct space *space, struct why *why)
{
	return save(space, false, why);
}

int tiering_save_reset(struct space *space, struct why *why)
{
	return save(space, true, why);
}

uint64_t tiering_saved_generation(struct disk_dir *dir)
{
	struct why why = WHY_INIT;
	struct space_json json;
	uint64_t generation = 1;
	size_t bytes;
	char *text = read_whole(disk_dir_fd(dir), "namespace.json", &bytes);

	if (text && !space_json_read(text, bytes, &json, &why)) {
		generation = json.generation;
		free(json.layout);
	}
	free(text);
	return generation;
}

int tiering_open_catalogue(struct tiering *t, struct why *why)
{
	const struct layout *layout = t->space->layout;
	struct why note = WHY_INIT;
	char path[4096];
	int r;

	snprintf(path, sizeof(path), "%s/catalogue.sqlite", disk_dir_path(t->dir));
	r = catalogue_open(path, layout->identity, layout->fingerprint, &t->catalogue, &t->fresh, &t->behind, &note);
	return r ? why_set(why, -r, "namespace %s: %s", t->space->name, note.text) : 0;
}

/* ---- how it is ------------------------------------------------------------------------------------------------------ */

static void add_space(struct host_disk_report *ret, struct space *space)
{
	struct tiering *t = space->tiering;
	struct catalogue_report catalogue;
	struct reconcile_report compared;

	if (!t)
		return;
	catalogue_report(t->catalogue, &catalogue);
	lock_take(&space->lock);
	ret->used_bytes += t->disk_bytes;
	ret->files += t->disk_files;
	ret->foreign_files += t->foreign_files;
	ret->foreign_bytes += t->foreign_bytes;
	ret->memory_bytes += tiering_memory_bytes(t);
	ret->dirty_bytes += t->dirty_bytes;
	ret->clean_bytes += t->clean_bytes;
	if (t->closed)
		ret->state = HOST_DISK_CLOSED;
	else if (t->error && ret->state != HOST_DISK_CLOSED)
		ret->state = t->error == ENOSPC || t->error == EDQUOT ? HOST_DISK_FULL : HOST_DISK_FAILING;
	if (t->error || t->closed)
		snprintf(ret->text, sizeof(ret->text), "%s", t->error_text);
	lock_drop(&space->lock);
	ret->catalogue_queued += catalogue.queued;
	ret->catalogue_dropped += catalogue.dropped;
	ret->memory_bytes += catalogue.memory_bytes;
	if (!t->reconcile)
		return;
	reconcile_report(t->reconcile, &compared);
	ret->comparing += !compared.done;
	ret->compared_removed += compared.files_removed;
	ret->compared_missing += compared.files_missing;
}

void host_disk_report(struct host *host, struct host_disk_report *ret)
{
	struct space *spaces[HOST_MAX_SPACES];
	struct disk_report disk;
	uint32_t n;

	*ret = (struct host_disk_report){ .path = host->config.disk_path };
	if (!host->disk) {
		ret->state = host->config.disk_path ? HOST_DISK_REFUSED : HOST_DISK_NONE;
		snprintf(ret->text, sizeof(ret->text), "%s", host->disk_text);
		return;
	}
	ret->state = HOST_DISK_OK;
	ret->limit_bytes = mover_limit(host);
	disk_report(host->disk, &disk);
	ret->free_bytes = disk.free_bytes;
	ret->total_bytes = disk.total_bytes;
	ret->read_bytes = disk.read_bytes;
	ret->written_bytes = disk.written_bytes;
	ret->reads = disk.reads;
	ret->writes = disk.writes;
	ret->read_errors = disk.read_errors;
	ret->write_errors = disk.write_errors;
	ret->checksum_errors = disk.checksum_errors;
	ret->jobs = disk.jobs;
	ret->memory_bytes = disk.memory_bytes;
	ret->uring = disk.uring;
	ret->direct = disk.direct;
	add_unused(host, ret);
	n = host_all_spaces(host, spaces);
	for (uint32_t i = 0; i < n; i++) {
		add_space(ret, spaces[i]);
		space_unref(&spaces[i]);
	}
}

/* ---- draining ----------------------------------------------------------------------------------------------------------- */

struct drain_state {
	uint64_t left;
	bool closed;
};

static struct drain_state look_at(struct space *const *spaces, uint32_t n)
{
	struct drain_state s = { 0 };

	for (uint32_t i = 0; i < n; i++) {
		struct tiering *t = spaces[i]->tiering;

		if (!t)
			continue;
		lock_take(&spaces[i]->lock);
		s.left += t->dirty_bytes;
		s.closed |= t->closed;
		lock_drop(&spaces[i]->lock);
	}
	return s;
}

static void set_draining(struct space *const *spaces, uint32_t n, enum host_drain how, int change)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tiering *t = spaces[i]->tiering;

		if (!t)
			continue;
		lock_take(&spaces[i]->lock);
		t->draining += (uint32_t)change;
		t->drain_newest += how == HOST_DRAIN_NEWEST ? (uint32_t)change : 0;
		lock_drop(&spaces[i]->lock);
	}
}

static int drain_until(struct host *host, struct space *const *spaces, uint32_t n, uint64_t deadline_ns,
		       bool (*progress)(void *context, uint64_t done, uint64_t goal), void *context, uint64_t *left, struct why *why)
{
	const struct timespec step = { .tv_nsec = 5000000 };
	struct drain_state s = look_at(spaces, n);
	uint64_t goal = s.left, told_ns = 0;

	for (;; s = look_at(spaces, n)) {
		uint64_t now = clock_now_ns();

		*left = s.left;
		goal = s.left > goal ? s.left : goal;
		if (progress && (now - told_ns > 100000000 || !s.left)) {
			told_ns = now;
			if (!progress(context, goal - s.left, goal))
				return why_set(why, EINTR, "stopped with %llu bytes that are not on disk", (unsigned long long)s.left);
		}
		if (s.closed)
			return why_set(why, EIO, "the disk tier is closed; %llu bytes are in memory alone", (unsigned long long)s.left);
		if (!s.left)
			return 0;
		if (now >= deadline_ns)
			return why_set(why, ETIMEDOUT, "the time is over with %llu bytes that are not on disk", (unsigned long long)s.left);
		mover_ask(host);
		nanosleep(&step, NULL);
	}
}

int host_drain(struct host *host, struct space *space, enum host_drain how, uint64_t deadline_ns,
	       bool (*progress)(void *context, uint64_t done, uint64_t goal), void *context, uint64_t *left, struct why *why)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = 1;
	int r;

	lock_assert_none_held();
	*left = 0;
	if (!host->disk || (space && !space->tiering))
		return why_set(why, ENODEV, "there is no disk tier");
	if (space)
		spaces[0] = space_ref(space);
	else
		n = host_all_spaces(host, spaces);
	set_draining(spaces, n, how, 1);
	r = drain_until(host, spaces, n, deadline_ns, progress, context, left, why);
	set_draining(spaces, n, how, -1);
	for (uint32_t i = 0; i < n; i++)
		space_unref(&spaces[i]);
	return r;
}
