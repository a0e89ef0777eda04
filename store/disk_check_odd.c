/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check, names: what a death left half done, and files that lie in another folder than their key's, where nobody looks
 * for them.
 */
#include "store/disk_check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/cleanup.h"

/* Calls @name for each name in @path below @fd: 0, also when there is no such folder, or a negative errno. */
static int each_name(int fd, const char *path, void (*name)(void *context, const char *folder, const char *name), void *context)
{
	int folder = openat(fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = folder < 0 ? NULL : fdopendir(folder);
	struct dirent *entry;
	int r;

	if (!dir) {
		r = errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
		if (folder >= 0)
			close(folder);
		return r;
	}
	errno = 0;
	while ((entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			name(context, path, entry->d_name);
		errno = 0;
	}
	r = -errno;
	closedir(dir);
	return r;
}

/* The same in all folders of record files. */
static int each_file(int fd, void (*name)(void *context, const char *folder, const char *name), void *context)
{
	int r = 0;

	for (unsigned i = 0; i < CHECK_FOLDERS && !r; i++) {
		char folder[3];

		snprintf(folder, sizeof(folder), "%02x", i);
		r = each_name(fd, folder, name, context);
	}
	return r;
}

static bool is_at_home(const char *folder, const struct key *endpoint)
{
	char home[3];

	snprintf(home, sizeof(home), "%02x", record_file_folder(endpoint));
	return !strcmp(folder, home);
}

/* ---- how much there is -------------------------------------------------------------------------------------------------- */

struct survey {
	int fd;
	uint64_t *files, *bytes;
};

static void survey_name(void *context, const char *folder, const char *name)
{
	struct survey *s = context;
	char path[300];
	uint64_t consumed;
	struct stat st;
	struct key key;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (!record_file_parse_name(name, &consumed, &key) || !is_at_home(folder, &key) ||
		fstatat(s->fd, path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return;
	*s->files += 1;
	*s->bytes += (uint64_t)st.st_size;
}

void check_survey(int fd, uint64_t *files, uint64_t *bytes)
{
	struct survey s = {.fd = fd, .files = files, .bytes = bytes};

	each_file(fd, survey_name, &s);
}

/* ---- left-overs ----------------------------------------------------------------------------------------------------------- */

struct odd {
	struct check_space *space;
	int fd;
};

/* "<name of a record file>.<number>.tmp": what the engine calls a file before it has its name. */
static bool is_temporary(const char *name)
{
	const char *end = strstr(name, ".rec.");
	char whole[RECORD_FILE_NAME_BYTES];
	uint64_t consumed;
	struct key key;
	size_t digits;

	if (!end || end + 4 - name >= (ptrdiff_t)sizeof(whole))
		return false;
	memcpy(whole, name, (size_t)(end + 4 - name));
	whole[end + 4 - name] = 0;
	digits = strspn(end + 5, "0123456789");
	return record_file_parse_name(whole, &consumed, &key) && digits && !strcmp(end + 5 + digits, ".tmp");
}

/* "<two hex>.<number>.old": a folder that a reset has set aside. */
static bool is_old(const char *name)
{
	size_t digits;

	if (strspn(name, "0123456789abcdef") != 2 || name[2] != '.')
		return false;
	digits = strspn(name + 3, "0123456789");
	return digits && !strcmp(name + 3 + digits, ".old");
}

static void left_over(struct odd *odd, const char *path, const char *what)
{
	struct check *check = odd->space->check;
	struct disk_ops *ops = disk_ops(check->disk);
	int r;

	check->report->left_over++;
	check_tell(check, odd->space, path, "%s", what);
	if (!check->options->repair)
		return;
	r = ops->table->unlink(ops, odd->fd, path);
	if (r) {
		check->report->unrepaired++;
		check_tell(check, odd->space, path, "it could not be removed: %s", strerrordesc_np(-r));
	} else {
		check->report->removed++;
	}
}

static void old_name(void *context, const char *folder, const char *name)
{
	struct odd *odd = context;
	struct disk_file_info info = {0};
	char path[300];
	struct why why = WHY_INIT;
	uint64_t consumed;
	struct key key;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (!is_temporary(name)) {
		enum check_head head = record_file_parse_name(name, &consumed, &key)
			? check_read_head(odd->space, odd->fd, path, &info, &why) : CHECK_HEAD_FOREIGN;

		free(info.segment);
		if (head == CHECK_HEAD_FOREIGN || head == CHECK_HEAD_UNREADABLE)
			return;
	}
	left_over(odd, path, "it is a left-over of a reset");
}

static void folder_name(void *context, const char *folder, const char *name)
{
	struct odd *odd = context;
	struct stat st;

	(void)folder;
	if (!strcmp(name, "namespace.json.tmp"))
		left_over(odd, name, "it is a left-over of a change of namespace.json");
	if (!is_old(name) || fstatat(odd->fd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
		return;
	int r = each_name(odd->fd, name, old_name, odd);

	if (r)
		check_tell(odd->space->check, odd->space, name, "the folder cannot be listed: %s", strerrordesc_np(-r));
	else if (odd->space->check->options->repair)
		unlinkat(odd->fd, name, AT_REMOVEDIR); /* one that has something left stays */
}

void check_unmade(struct check *check, const char *folder)
{
	check->report->left_over++;
	check_tell(check, NULL, folder, "it is a left-over of the creation of a namespace");
	if (!check->options->repair)
		return;
	if (disk_remove_unmade(check->disk, folder)) {
		check->report->removed++;
	} else {
		check->report->unrepaired++;
		check_tell(check, NULL, folder, "not all of it could be removed");
	}
}

/* ---- files elsewhere --------------------------------------------------------------------------------------------------------- */

static int bring_home(const struct odd *odd, const char *path, uint64_t consumed, const struct key *endpoint)
{
	struct disk_ops *ops = disk_ops(odd->space->check->disk);
	char home[CHECK_PATH_BYTES], folder[3];

	check_path_of(home, consumed, endpoint);
	snprintf(folder, sizeof(folder), "%02x", record_file_folder(endpoint));
	if (!faccessat(odd->fd, home, F_OK, AT_SYMLINK_NOFOLLOW))
		return -EEXIST;
	if (errno != ENOENT || (mkdirat(odd->fd, folder, 0700) && errno != EEXIST))
		return -errno;
	return ops->table->rename(ops, odd->fd, path, odd->fd, home);
}

static void elsewhere(struct odd *odd, const char *path, uint64_t consumed, const struct key *endpoint)
{
	struct check *check = odd->space->check;
	struct disk_file_info info = {0};
	struct why why = WHY_INIT;
	enum check_head head = check_read_head(odd->space, odd->fd, path, &info, &why);

	free(info.segment);
	if (head != CHECK_HEAD_GOOD)
		return; /* nobody's business: neither read nor removed */
	odd->space->blind |= !check->options->repair;
	check->report->wrong_names++;
	check_tell(check, odd->space, path, "it lies in another folder than that of its key, %02x", record_file_folder(endpoint));
	if (!check->options->repair)
		return;
	int r = bring_home(odd, path, consumed, endpoint);

	if (r) {
		odd->space->blind |= r != -EEXIST;
		check->report->unrepaired++;
		check_tell(check, odd->space, path, "it could not be moved there: %s", strerrordesc_np(-r));
	} else {
		check->report->repaired++;
	}
}

static void file_name(void *context, const char *folder, const char *name)
{
	struct odd *odd = context;
	uint64_t consumed;
	char path[300];
	struct key key;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (is_temporary(name))
		left_over(odd, path, "it is a left-over of a write or a removal");
	else if (record_file_parse_name(name, &consumed, &key) && !is_at_home(folder, &key))
		elsewhere(odd, path, consumed, &key);
}

int check_oddities(struct check_space *space, int fd, struct why *why)
{
	struct odd odd = {.space = space, .fd = fd};
	int r = each_name(fd, ".", folder_name, &odd);

	r = r ? r : each_file(fd, file_name, &odd);
	return r ? why_set(why, -r, "%s/%s cannot be listed: %s", space->check->path, space->folder, strerrordesc_np(-r)) : 0;
}
