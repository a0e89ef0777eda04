/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/process.h"

#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "store/base/cleanup.h"

#define PIDFS_MAGIC 0x50494446 /* "PIDF" */

uint64_t process_number(int pidfd, pid_t pid)
{
	struct statfs system;
	struct stat file;

	if (fstatfs(pidfd, &system) == 0 && system.f_type == PIDFS_MAGIC && fstat(pidfd, &file) == 0)
		return file.st_ino;
	return pid > 0 ? (uint64_t)pid : 0;
}

pid_t process_pid(int pidfd)
{
	char line[128];
	int pid = 0;

	snprintf(line, sizeof(line), "/proc/self/fdinfo/%d", pidfd);
	cleanup(fclosep) FILE *file = fopen(line, "re");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pid: %d", &pid) == 1)
			break;
	return pid > 0 ? pid : 0;
}
