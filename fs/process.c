/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/process.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#define PIDFS_MAGIC 0x50494446 /* "PIDF" */

uint64_t process_number(int pidfd, pid_t pid)
{
	struct statfs system;
	struct stat file;

	if (fstatfs(pidfd, &system) == 0 && system.f_type == PIDFS_MAGIC && fstat(pidfd, &file) == 0)
		return file.st_ino;
	return pid > 0 ? (uint64_t)pid : 0;
}
