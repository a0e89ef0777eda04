/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of a namespace: made, cleared of what a death left half done, listed, removed.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/base/cleanup.h"
#include "store/base/killpoint.h"

#define FOLDERS 256u
#define LIST_BYTES (256u << 10) /* of names, in one system call */
#define NAME_IDENTITY 8u        /* bytes of the identity in a folder's name */
#define GONE_TRIES 1000u        /* names of a folder that is removed: those that a death left may be in use */

/* ---- names --------------------------------------------------------------------------------------------------------- */

void disk_path_of(char to[DISK_PATH_BYTES], uint64_t consumed, const struct key *endpoint, uint32_t temporary)
{
	char name[RECORD_FILE_NAME_BYTES];

	record_file_name(name, consumed, endpoint);
	if (temporary)
		snprintf(to, DISK_PATH_BYTES, "%02x/%s.%u.tmp", record_file_folder(endpoint), name, temporary);
	else
		snprintf(to, DISK_PATH_BYTES, "%02x/%s", record_file_folder(endpoint), name);
}

static void folder_of(char to[3], const char *path)
{
	memcpy(to, path, 2);
	to[2] = 0;
}

int disk_folder_make(const struct disk_dir *dir, const char *path)
{
	struct disk_ops *ops = dir->disk->ops;
	char folder[3];

	folder_of(folder, path);
	if (mkdirat(dir->fd, folder, 0700))
		return errno == EEXIST ? 0 : -errno;
	return dir->disk->durability == DISK_DURABILITY_DATA ? ops->table->sync_dir(ops, dir->fd) : 0;
}

int disk_folder_sync(const struct disk_dir *dir, const char *path)
{
	struct disk_ops *ops = dir->disk->ops;
	char folder[3];

	folder_of(folder, path);
	cleanup(closep) int fd = openat(dir->fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : ops->table->sync_dir(ops, fd);
}

/* Is @name "<name of a record file>.<number>.tmp"? */
static bool is_temporary(const char *name)
{
	const char *end = strstr(name, ".rec.");
	size_t length = strlen(name);
	char whole[RECORD_FILE_NAME_BYTES];
	uint64_t consumed;
	struct key key;

	if (!end || length < 4 || strcmp(name + length - 4, ".tmp") || end + 4 - name >= (ptrdiff_t)sizeof(whole))
		return false;
	memcpy(whole, name, (size_t)(end + 4 - name));
	whole[end + 4 - name] = 0;
	return record_file_parse_name(whole, &consumed, &key);
}

/* Of a name that is_temporary: did this process give it? */
static bool is_own_temporary(struct disk *disk, const char *name)
{
	uint32_t number = (uint32_t)strtoul(strstr(name, ".rec.") + 5, NULL, 10);

	return number - disk->temporary_first <= atomic_load(&disk->temporary) - disk->temporary_first;
}

/* ---- listing --------------------------------------------------------------------------------------------------------- */

/* Calls @name for each entry of the folder @fd; false from it stops. 0, 1 = stopped, or a negative errno. */
static int each_name(int fd, bool (*name)(void *context, int fd, const char *name), void *context)
{
	cleanup(freep) char *buffer = malloc(LIST_BYTES);

	if (!buffer)
		return -ENOMEM;
	for (;;) {
		ssize_t n = getdents64(fd, buffer, LIST_BYTES);

		if (n <= 0)
			return n ? -errno : 0;
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *entry = (const struct dirent64 *)(void *)(buffer + at);

			at += entry->d_reclen;
			if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && !name(context, fd, entry->d_name))
				return 1;
		}
	}
}

/* The same for folders of record files: from @first on each @step'th one. */
static int each_file(const struct disk_dir *dir, unsigned first, unsigned step,
	bool (*name)(void *context, int fd, const char *name), void *context)
{
	for (unsigned i = first; i < FOLDERS; i += step) {
		char folder[3];

		snprintf(folder, sizeof(folder), "%02x", i);
		cleanup(closep) int fd = openat(dir->fd, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
			continue;
		int r = fd < 0 ? -errno : each_name(fd, name, context);

		if (r)
			return r;
	}
	return 0;
}

struct list {
	struct disk_dir *dir;
	const struct disk_listing *what;
	bool (*file)(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s);
	void *context;
	int error;
};

static bool list_name(void *context, int fd, const char *name)
{
	struct list *l = context;
	struct disk_ops *ops = l->dir->disk->ops;
	struct stat st = {0};
	uint64_t consumed;
	struct key key;

	if (l->what->clear && is_temporary(name) && !is_own_temporary(l->dir->disk, name))
		ops->table->unlink(ops, fd, name); /* one that stays is looked at again next time */
	if (!record_file_parse_name(name, &consumed, &key))
		return true;
	if (l->what->sizes && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW)) {
		l->error = errno == ENOENT ? 0 : -errno; /* it went meanwhile */
		return !l->error;
	}
	if (l->what->sizes && !S_ISREG(st.st_mode))
		return true;
	return l->file(l->context, consumed, &key, (uint64_t)st.st_size, st.st_mtim.tv_sec);
}

int disk_dir_list(struct disk_dir *dir, const struct disk_listing *what,
	bool (*file)(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s),
	void *context, struct why *why)
{
	struct list l = {.dir = dir, .what = what, .file = file, .context = context};

	lock_assert_none_held();
	int r = each_file(dir, what->part, what->parts, list_name, &l);

	if (r > 0)
		r = l.error;
	return r ? why_set(why, -r, "%s: its files cannot be listed: %s", dir->path, strerrordesc_np(-r)) : 0;
}

/* ---- opened ------------------------------------------------------------------------------------------------------------ */

static bool remove_name(void *context, int fd, const char *name);

void disk_old_folder(char to[DISK_PATH_BYTES], unsigned folder, uint32_t number)
{
	snprintf(to, DISK_PATH_BYTES, "%02x.%u.old", folder, number);
}

/* Is @name one of those? */
static bool is_old_folder(const char *name)
{
	unsigned folder, number;
	char made[DISK_PATH_BYTES];

	if (sscanf(name, "%2x.%u.old", &folder, &number) != 2)
		return false;
	disk_old_folder(made, folder, number);
	return !strcmp(name, made);
}

/* Everything in it that is ours, and it. */
static void empty_folder(struct disk_dir *dir, int fd, const char *name)
{
	cleanup(closep) int folder = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (folder < 0)
		return;
	each_name(folder, remove_name, dir);
	unlinkat(fd, name, AT_REMOVEDIR); /* one that has something left stays */
}

void disk_dir_empty_old(struct disk_dir *dir, uint32_t number)
{
	for (unsigned folder = 0; folder < FOLDERS; folder++) {
		char name[DISK_PATH_BYTES];

		disk_old_folder(name, folder, number);
		empty_folder(dir, dir->fd, name);
	}
}

static bool empty_left_over(void *context, int fd, const char *name)
{
	if (is_old_folder(name))
		empty_folder(context, fd, name);
	return true;
}

static int hex(char *to, const uint8_t *from, unsigned bytes)
{
	int n = 0;

	for (unsigned i = 0; i < bytes; i++)
		n += sprintf(to + n, "%02x", from[i]);
	return n;
}

void disk_dir_name(char to[DISK_DIR_NAME_BYTES], const struct layout *layout)
{
	int n = hex(to, layout->identity, NAME_IDENTITY);

	to[n++] = '-';
	hex(to + n, layout->fingerprint, sizeof(layout->fingerprint));
}

static int name_it(struct disk_dir *dir)
{
	char name[DISK_DIR_NAME_BYTES];

	disk_dir_name(name, dir->layout);
	if (asprintf(&dir->path, "%s/%s", dir->disk->path, name) < 0) {
		dir->path = NULL;
		return -ENOMEM;
	}
	dir->name = strrchr(dir->path, '/') + 1;
	return 0;
}

static int take_columns(struct disk_dir *dir)
{
	const struct layout *l = dir->layout;

	dir->columns = calloc(l->page_columns + l->row_columns + 1, sizeof(*dir->columns));
	if (!dir->columns)
		return -ENOMEM;
	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			uint32_t at = layout_column(l, c, s) + (layout_is_row(l, c) ? l->page_columns : 0);

			dir->columns[at] = (struct disk_column){.slot_bytes = l->class[c].share[s].slot_bytes,
				.payload_bytes = l->class[c].share[s].payload_bytes};
		}
	return 0;
}

static int map(struct disk_dir *dir, const struct segment *segment, struct why *why)
{
	uint64_t bytes = segment_bytes(segment);
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, segment_fd(segment), 0);

	if (memory == MAP_FAILED)
		return why_set(why, errno, "%s: the segment's %llu bytes cannot be mapped for the disk tier", dir->path,
			(unsigned long long)bytes);
	dir->memory = memory;
	dir->memory_bytes = bytes;
	return 0;
}

bool disk_dir_holds(const struct disk_dir *dir, uint64_t offset, uint64_t bytes)
{
	return dir->memory && offset % LAYOUT_VALUE_ALIGN == 0 && offset <= dir->memory_bytes &&
		bytes <= dir->memory_bytes - offset;
}

/* From here on nobody else opens it. */
static int enter(struct disk_dir *dir)
{
	struct disk *disk = dir->disk;
	bool taken = false;

	lock_take(&disk->lock);
	for (const struct disk_dir *other = disk->dirs; other; other = other->next)
		taken |= !strcmp(other->name, dir->name);
	if (!taken) {
		dir->next = disk->dirs;
		disk->dirs = dir;
	}
	lock_drop(&disk->lock);
	return taken ? -EBUSY : 0;
}

static void leave(struct disk_dir *dir)
{
	struct disk *disk = dir->disk;
	struct disk_dir **at = &disk->dirs;

	lock_take(&disk->lock);
	while (*at && *at != dir)
		at = &(*at)->next;
	if (*at)
		*at = dir->next;
	lock_drop(&disk->lock);
}

static int make_folder(struct disk_dir *dir, struct why *why)
{
	struct disk *disk = dir->disk;
	int r = disk->look_only ? -EEXIST : mkdirat(disk->fd, dir->name, 0700) ? -errno : 0;

	if (r && r != -EEXIST)
		return why_set(why, -r, "%s cannot be made: %s", dir->path, strerrordesc_np(-r));
	if (!r && disk->durability == DISK_DURABILITY_DATA)
		r = disk->ops->table->sync_dir(disk->ops, disk->fd);
	if (r && r != -EEXIST)
		return why_set(why, -r, "%s cannot be synced: %s", disk->path, strerrordesc_np(-r));
	dir->fd = openat(disk->fd, dir->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir->fd < 0)
		return why_set(why, errno, "%s cannot be opened: %s", dir->path, strerrordesc_np(errno));
	if (disk->look_only)
		return 0;
	cleanup(closep) int again = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	r = again < 0 ? -errno : each_name(again, empty_left_over, dir);
	return r ? why_set(why, -r, "%s: its files cannot be listed: %s", dir->path, strerrordesc_np(-r)) : 0;
}

static void unmap(struct disk_dir *dir)
{
	if (dir->memory)
		munmap(dir->memory, dir->memory_bytes);
	dir->memory = NULL;
}

static void dir_free(struct disk_dir *dir)
{
	leave(dir);
	closep(&dir->fd);
	unmap(dir);
	free(dir->columns);
	free(dir->path);
	free(dir);
}

int disk_dir_open(
	struct disk *disk, const struct layout *layout, struct segment *segment, struct disk_dir **ret, struct why *why)
{
	struct disk_dir *dir = calloc(1, sizeof(*dir));

	lock_assert_none_held();
	if (!dir)
		return why_set(why, ENOMEM, "no memory for a namespace of the disk tier");
	dir->disk = disk;
	dir->layout = layout;
	dir->fd = -1;
	int r = name_it(dir);

	if (!r)
		r = take_columns(dir);
	if (r)
		why_set(why, -r, "no memory for a namespace of the disk tier");
	if (!r) {
		r = enter(dir);
		if (r)
			why_set(why, -r, "%s is open already", dir->path);
	}
	if (!r)
		r = make_folder(dir, why);
	if (!r && segment)
		r = map(dir, segment, why);
	if (r) {
		dir_free(dir);
		return r;
	}
	*ret = dir;
	return 0;
}

int disk_dir_fd(const struct disk_dir *dir)
{
	return dir->fd;
}

const char *disk_dir_path(const struct disk_dir *dir)
{
	return dir->path;
}

int disk_file_open(struct disk_dir *dir, uint64_t consumed, const struct key *endpoint)
{
	char path[DISK_PATH_BYTES];

	lock_assert_none_held();
	disk_path_of(path, consumed, endpoint, 0);
	int fd = openat(dir->fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

ssize_t disk_file_read(struct disk_dir *dir, uint64_t consumed, const struct key *endpoint, uint64_t offset, void *to, size_t bytes)
{
	cleanup(closep) int fd = disk_file_open(dir, consumed, endpoint);

	if (fd < 0)
		return fd;
	ssize_t n = pread(fd, to, bytes, (off_t)offset);

	return n < 0 ? -errno : n;
}

/* ---- closed, and removed --------------------------------------------------------------------------------------------- */

/* Another writer's, or of a newer version? What cannot be read is not known to be. */
static bool is_foreign(const struct disk_dir *dir, int fd, const char *name)
{
	uint64_t header = record_file_header_bytes(dir->layout);
	cleanup(freep) char *memory = disk_memory(header);
	uint16_t alias[RECORD_FILE_MAX_COLUMNS];
	struct record_file_id id;
	cleanup(closep) int file = openat(fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (file < 0 || !memory)
		return !memory || errno != ENOENT;
	ssize_t n = pread(file, memory, header, 0);

	return n < 0 || record_file_read_header(memory, (uint64_t)n, dir->layout, &id, alias, NULL) == -ENOTSUP;
}

static bool remove_name(void *context, int fd, const char *name)
{
	struct disk_dir *dir = context;
	struct disk_ops *ops = dir->disk->ops;
	uint64_t consumed;
	struct key key;

	if (is_temporary(name) || (record_file_parse_name(name, &consumed, &key) && !is_foreign(dir, fd, name)))
		ops->table->unlink(ops, fd, name);
	return true;
}

bool disk_is_folder(const char *name)
{
	size_t identity = strspn(name, "0123456789abcdef");

	return identity == 2 * NAME_IDENTITY && name[identity] == '-' && strlen(name) == DISK_DIR_NAME_BYTES - 1 &&
	       strspn(name + identity + 1, "0123456789abcdef") == DISK_DIR_NAME_BYTES - 2 - identity;
}

/* What is being removed is "<folder's name>.<number>.gone". */
bool disk_is_gone(const char *name)
{
	const size_t length = DISK_DIR_NAME_BYTES - 1;
	size_t digits;

	if (strlen(name) <= length || name[length] != '.' || strspn(name, "0123456789abcdef-") != length)
		return false;
	digits = strspn(name + length + 1, "0123456789");
	return digits && !strcmp(name + length + 1 + digits, ".gone");
}

static void set_gone(struct disk_dir *dir, const char *name)
{
	lock_take(&dir->disk->lock);
	snprintf(dir->gone, sizeof(dir->gone), "%s", name);
	lock_drop(&dir->disk->lock);
}

/* Is @name what the folder of one that is open is called by now? */
static bool is_open(struct disk *disk, const char *name)
{
	bool open = false;

	lock_take(&disk->lock);
	for (const struct disk_dir *dir = disk->dirs; dir; dir = dir->next)
		open |= !strcmp(dir->gone, name);
	lock_drop(&disk->lock);
	return open;
}

/* One that cannot be renamed is removed where it is. */
void disk_dir_rename_away(struct disk_dir *dir)
{
	struct disk *disk = dir->disk;
	char name[sizeof(dir->gone)];

	lock_assert_none_held();
	if (dir->gone[0])
		return;
	killpoint(KILLPOINT_REMOVE_BEGIN);
	for (unsigned tries = 0; tries < GONE_TRIES && !dir->gone[0]; tries++) {
		snprintf(name, sizeof(name), "%s.%u.gone", dir->name, atomic_fetch_add(&disk->temporary, 1) + 1);
		set_gone(dir, name);
		if (renameat2(disk->fd, dir->name, disk->fd, name, RENAME_NOREPLACE))
			set_gone(dir, "");
	}
	if (!dir->gone[0])
		unlinkat(dir->fd, "namespace.json", 0);
	if (disk->durability == DISK_DURABILITY_DATA)
		disk->ops->table->sync_dir(disk->ops, dir->gone[0] ? disk->fd : dir->fd);
	killpoint(KILLPOINT_REMOVE_RENAMED);
}

/* Others' files are left alone, under the name that they had. */
static void remove_folder(const struct disk_dir *dir)
{
	const char *name = dir->gone[0] ? dir->gone : dir->name;

	if (unlinkat(dir->disk->fd, name, AT_REMOVEDIR) && dir->gone[0])
		renameat2(dir->disk->fd, dir->gone, dir->disk->fd, dir->name, RENAME_NOREPLACE);
}

/* What is in it but record files and namespace.json. */
static void remove_ours(int fd)
{
	static const char *const ours[] = {"namespace.json.tmp", "catalogue.sqlite", "catalogue.sqlite-wal",
		"catalogue.sqlite-shm", "catalogue.sqlite-journal", "catalogue.sqlite.damaged", "catalogue.sqlite.damaged-wal"};

	for (unsigned i = 0; i < FOLDERS; i++) {
		char folder[3];

		snprintf(folder, sizeof(folder), "%02x", i);
		unlinkat(fd, folder, AT_REMOVEDIR); /* one that has something left stays */
	}
	for (unsigned i = 0; i < sizeof(ours) / sizeof(*ours); i++)
		unlinkat(fd, ours[i], 0);
}

static void remove_all(struct disk_dir *dir)
{
	struct disk_ops *ops = dir->disk->ops;

	each_file(dir, 0, 1, remove_name, dir);
	cleanup(closep) int again = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (again >= 0)
		each_name(again, empty_left_over, dir);
	remove_ours(dir->fd);
	killpoint(KILLPOINT_REMOVE_EMPTIED);
	unlinkat(dir->fd, "namespace.json", 0); /* last: it says how to read the files of a folder that a death leaves behind */
	if (dir->disk->durability == DISK_DURABILITY_DATA)
		ops->table->sync_dir(ops, dir->fd);
	remove_folder(dir);
}

void disk_dir_set_aside(struct disk_dir *dir)
{
	lock_assert_none_held();
	disk_dir_rename_away(dir);
	killpoint(KILLPOINT_REMOVE_ASIDE);
	leave(dir);
	unmap(dir);
	dir->aside = true;
}

void disk_remove_gone(struct disk *disk, const char *name, const struct layout *layout)
{
	char path[DISK_DIR_NAME_BYTES];
	struct disk_dir dir = {.disk = disk, .layout = layout, .name = path};

	lock_assert_none_held();
	if (is_open(disk, name))
		return;
	snprintf(path, sizeof(path), "%.*s", (int)DISK_DIR_NAME_BYTES - 1, name);
	snprintf(dir.gone, sizeof(dir.gone), "%s", name);
	dir.fd = openat(disk->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir.fd < 0)
		return;
	if (layout)
		remove_all(&dir);
	else
		remove_folder(&dir);
	closep(&dir.fd);
}

static bool stop_at_name(void *context, int fd, const char *name)
{
	(void)context;
	(void)fd;
	(void)name;
	return false;
}

bool disk_is_unmade(int fd)
{
	const struct disk_dir dir = {.fd = fd};

	return faccessat(fd, "namespace.json", F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT && !each_file(&dir, 0, 1, stop_at_name, NULL);
}

bool disk_remove_unmade(struct disk *disk, const char *name)
{
	cleanup(closep) int fd = openat(disk->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	lock_assert_none_held();
	if (fd < 0 || !disk_is_unmade(fd))
		return false;
	remove_ours(fd);
	return !unlinkat(disk->fd, name, AT_REMOVEDIR);
}

uint64_t disk_file_bytes(const struct disk_dir *dir, uint64_t consumed, const struct key *endpoint)
{
	char path[DISK_PATH_BYTES];
	struct stat st;

	lock_assert_none_held();
	disk_path_of(path, consumed, endpoint, 0);
	return fstatat(dir->fd, path, &st, AT_SYMLINK_NOFOLLOW) ? 0 : (uint64_t)st.st_size;
}

void disk_dir_close(struct disk_dir **dirp, bool remove)
{
	struct disk_dir *dir = *dirp;

	*dirp = NULL;
	if (!dir)
		return;
	lock_assert_none_held();
	if (remove && !dir->aside)
		disk_dir_set_aside(dir);
	if (remove)
		remove_all(dir);
	dir_free(dir);
}
