/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/process.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

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

bool process_ended(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

bool process_has_thread(uint32_t pid, pid_t thread)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/task/%d", pid, (int)thread);
	return thread > 0 && access(path, F_OK) == 0;
}

int process_open(uint32_t pid)
{
	int fd = pid && pid <= INT_MAX ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;

	if (fd < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -ESRCH;
	if (!process_ended(fd))
		return fd;
	close(fd);
	return -ESRCH;
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
