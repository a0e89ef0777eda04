/* SPDX-License-Identifier: Apache-2.0
 *
 * What is needed to make a namespace again when the serving process died, in <run folder>/spaces/<name>:
 *
 *   uid gid mode floor number
 *   the layout
 *
 * The floor in bytes that was chosen, so that namespaces have theirs again in whatever order they return; the number, so that the node ids
 * of its folders are what they were.
 *
 * Takes as long as the run folder's file system does: no lock may be held. Callers take turns for one name.
 */
#ifndef PREFIXFS_FS_SPACE_FILE_H
#define PREFIXFS_FS_SPACE_FILE_H

#include <sys/types.h>

#include "fs/rundir.h"
#include "store/host.h"

struct space_file {
	char *text; /* the whole file, to be freed */
	struct space_access access;
	uint64_t floor, number;
	const char *layout; /* in `text` */
	size_t layout_bytes;
};

/* The file as it is to be for @space with @access; the folders that are missing are made. 0 or a negative errno, and then the file is as
 * it was. */
int space_file_write(const struct rundir *dir, const char *name, const struct space *space, const struct space_access *access, uint64_t number);
/* Is that what lies there? True too where it cannot be read for another reason than that it is not there. */
bool space_file_is_there(
	const struct rundir *dir, const char *name, const struct space *space, const struct space_access *access, uint64_t number);
/* EINVAL: it is damaged. @why names the file. After an error nothing is to be freed. */
int space_file_read(const struct rundir *dir, const char *name, struct space_file *ret, struct why *why);
/* 0, too, where there is none. */
int space_file_remove(const struct rundir *dir, const char *name);
void space_file_path(const struct rundir *dir, const char *name, char to[RUNDIR_PATH_BYTES]);

#endif
