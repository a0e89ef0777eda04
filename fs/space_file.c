/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/space_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/cleanup.h"

#define FILE_MAX (LAYOUT_MAX_JSON + 128)

static void file_name(const char *name, char to[HOST_MAX_NAME + 8])
{
	snprintf(to, HOST_MAX_NAME + 8, "spaces/%s", name);
}

void space_file_path(const struct rundir *dir, const char *name, char to[RUNDIR_PATH_BYTES])
{
	char file[HOST_MAX_NAME + 8];

	file_name(name, file);
	rundir_path(dir, file, to);
}

/* The length of *ret, which is to be freed; negative: no memory. */
static int print(const struct space *space, const struct space_access *access, uint64_t number, char **ret)
{
	int bytes = asprintf(ret, "%u %u %o %" PRIu64 " %" PRIu64 "\n%s\n", access->uid, access->gid, access->mode,
		space_floor_bytes(space), number, space_layout(space)->json);

	if (bytes < 0)
		*ret = NULL;
	return bytes;
}

int space_file_write(const struct rundir *dir, const char *name, const struct space *space, const struct space_access *access, uint64_t number)
{
	cleanup(freep) char *text = NULL;
	char file[HOST_MAX_NAME + 8];
	int bytes = print(space, access, number, &text);

	if (bytes < 0)
		return -ENOMEM;
	file_name(name, file);
	int r = rundir_write(dir, file, text, (size_t)bytes);
	if (r == -ENOENT && rundir_mend(dir) == 0)
		r = rundir_write(dir, file, text, (size_t)bytes);
	return r;
}

bool space_file_is_there(
	const struct rundir *dir, const char *name, const struct space *space, const struct space_access *access, uint64_t number)
{
	cleanup(freep) char *text = NULL, *there = NULL;
	char file[HOST_MAX_NAME + 8];
	int bytes = print(space, access, number, &text);

	if (bytes >= 0)
		there = malloc((size_t)bytes + 2); /* one that is longer shows */
	if (!there)
		return true;
	file_name(name, file);
	long r = rundir_read(dir, file, there, (size_t)bytes + 2);
	if (r < 0)
		return r != -ENOENT && r != -ENOTDIR && r != -ELOOP && r != -EISDIR;
	return r == bytes && !memcmp(there, text, (size_t)bytes);
}

int space_file_read(const struct rundir *dir, const char *name, struct space_file *ret, struct why *why)
{
	cleanup(freep) char *text = malloc(FILE_MAX);
	char file[HOST_MAX_NAME + 8], path[RUNDIR_PATH_BYTES];
	int begin = 0;

	if (!text)
		return why_set(why, ENOMEM, "no memory");
	file_name(name, file);
	space_file_path(dir, name, path);
	long bytes = rundir_read(dir, file, text, FILE_MAX);
	if (bytes < 0)
		return why_set(why, (int)-bytes, "%s: %s", path, strerror((int)-bytes));
	if (sscanf(text, "%u %u %o %" SCNu64 " %" SCNu64 "\n%n", &ret->access.uid, &ret->access.gid, &ret->access.mode, &ret->floor,
		    &ret->number, &begin) < 5 ||
		!begin)
		return why_set(why, EINVAL, "%s is damaged", path);
	ret->layout = text + begin;
	ret->layout_bytes = (size_t)bytes - (size_t)begin;
	ret->text = STEAL(text);
	return 0;
}

int space_file_remove(const struct rundir *dir, const char *name)
{
	char path[RUNDIR_PATH_BYTES];

	space_file_path(dir, name, path);
	return unlink(path) != 0 && errno != ENOENT ? -errno : 0;
}
