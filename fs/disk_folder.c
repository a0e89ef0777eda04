/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/disk_folder.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Is @path, resolved, @folder or something in it? */
static bool within(const char *path, const char *folder)
{
	size_t bytes = strlen(folder);

	return !strncmp(path, folder, bytes) && (!path[bytes] || path[bytes] == '/' || (bytes && folder[bytes - 1] == '/'));
}

static int check_place(const char *disk, const char *mount, struct why *why)
{
	if (!strcmp(disk, mount))
		return why_set(why, EINVAL, "disk: %s is the mount point; its files need a folder elsewhere", disk);
	if (within(disk, mount))
		return why_set(why, EINVAL, "disk: %s lies below the mount point %s; its files need a folder elsewhere", disk, mount);
	if (within(mount, disk))
		return why_set(why, EINVAL, "disk: the mount point %s lies in %s; its files need a folder of their own", mount, disk);
	return 0;
}

/* A folder that is not there yet is made in the one that is to hold it. */
static bool resolve_future(const char *path, char resolved[PATH_MAX])
{
	char above[PATH_MAX];

	if (realpath(path, resolved))
		return true;
	snprintf(above, sizeof(above), "%s", path);
	for (size_t n = strlen(above); n > 1 && above[n - 1] == '/'; n--)
		above[n - 1] = 0;
	char *slash = strrchr(above, '/');
	if (slash == above)
		return false;
	if (slash)
		*slash = 0;
	return realpath(slash ? above : ".", resolved);
}

int run_folder_check(const struct config *config, struct why *why)
{
	const char *dir = config->run_dir, *mount = config->mountpoint;
	char resolved[PATH_MAX];

	if (!resolve_future(dir, resolved))
		return 0;
	if (!strcmp(resolved, mount) && realpath(dir, resolved))
		return why_set(why, EINVAL, "run_dir: %s is the mount point; its files need a folder elsewhere", dir);
	if (within(resolved, mount))
		return why_set(why, EINVAL, "run_dir: %s lies below the mount point %s; its files need a folder elsewhere", dir, mount);
	return 0;
}

int disk_folder_check(const struct config *config, struct why *why)
{
	char resolved[PATH_MAX];
	struct stat st;

	if (!config->disk[0])
		return 0;
	if (stat(config->disk, &st) != 0) {
		if (errno != ENOENT && errno != ENOTDIR)
			return 0;
		return why_set(why, errno, "disk: %s: %s; make the folder first", config->disk, strerror(errno));
	}
	if (!S_ISDIR(st.st_mode))
		return why_set(why, ENOTDIR, "disk: %s is not a directory", config->disk);
	return realpath(config->disk, resolved) ? check_place(resolved, config->mountpoint, why) : 0;
}
