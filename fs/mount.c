/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/log.h"
#include "store/base/cleanup.h"

#define MAX_READ (1u << 20)
#define ANSWER_MS 3000 /* a mount that does not answer stat in this time is taken for alive and busy */

extern char **environ;

void mount_unescape(char *text)
{
	char *to = text;

	for (const char *c = text; *c; to++) {
		if (c[0] == '\\' && c[1] >= '0' && c[1] <= '3' && c[2] && c[3]) {
			*to = (char)((c[1] - '0') * 64 + (c[2] - '0') * 8 + (c[3] - '0'));
			c += 4;
		} else {
			*to = *c++;
		}
	}
	*to = 0;
}

/* The topmost mount at @path: 1, with its device and whether it is ours; 0: none. */
static int find_mount(const char *path, unsigned *device, bool *ours)
{
	cleanup(fclosep) FILE *file = fopen("/proc/self/mountinfo", "re");
	cleanup(freep) char *line = NULL;
	size_t capacity = 0;
	int found = 0;

	while (file && getline(&line, &capacity, file) > 0) {
		unsigned major, minor;
		int root = 0, point = 0, end = 0;

		if (sscanf(line, "%*u %*u %u:%u %n%*s %n%*s%n", &major, &minor, &root, &point, &end) < 2 || !end)
			continue;
		const char *type = strstr(line + end, " - ");
		bool is_ours = type && !strncmp(type + 3, "fuse.prefixfs ", 14);
		line[end] = 0;
		mount_unescape(line + point);
		if (strcmp(line + point, path) != 0)
			continue;
		found = 1;
		*device = minor;
		*ours = is_ours;
	}
	return found;
}

/* What a mount answers that nobody serves any more. */
static bool is_dead(int error)
{
	return error == ENOTCONN || error == ECONNABORTED;
}

/* errno of stat(@path), asked by a process that may hang in our place: EBUSY when it does. */
static int stat_from_afar(const char *path)
{
	int pipe_fds[2], answer = EBUSY;
	struct stat st;

	if (pipe2(pipe_fds, O_CLOEXEC) != 0)
		return errno;
	pid_t pid = fork();
	if (pid == 0) {
		int error = stat(path, &st) == 0 ? 0 : errno;

		_exit(write(pipe_fds[1], &error, sizeof(error)) == sizeof(error) ? 0 : 1);
	}
	close(pipe_fds[1]);
	struct pollfd wait = {.fd = pipe_fds[0], .events = POLLIN};
	if (pid > 0 && poll(&wait, 1, ANSWER_MS) == 1 && read(pipe_fds[0], &answer, sizeof(answer)) == sizeof(answer)) {
		waitpid(pid, NULL, 0);
	} else if (pid > 0) {
		answer = EBUSY;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, WNOHANG);
	}
	close(pipe_fds[0]);
	return answer;
}

/* Runs fusermount3: -1 when it cannot be run, else its exit status. @comm: descriptor for _FUSE_COMMFD, or -1. What it
 * says goes to @words. */
static int fusermount(const char *const *argv, int comm, char *words, size_t bytes)
{
	posix_spawn_file_actions_t actions;
	char variable[32];
	int said[2], status = 0, r;
	size_t used = 0;
	ssize_t n;
	pid_t pid;

	words[0] = 0;
	if (pipe2(said, O_CLOEXEC) != 0)
		return -1;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, said[1], STDERR_FILENO);
	if (comm >= 0) {
		/* A copy onto itself clears close-on-exec. */
		posix_spawn_file_actions_adddup2(&actions, comm, comm);
		snprintf(variable, sizeof(variable), "%d", comm);
		setenv("_FUSE_COMMFD", variable, 1);
	}
	r = posix_spawnp(&pid, "fusermount3", &actions, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (comm >= 0)
		unsetenv("_FUSE_COMMFD");
	close(said[1]);
	while (!r && used < bytes - 1 && (n = read(said[0], words + used, bytes - 1 - used)) > 0)
		used += (size_t)n;
	close(said[0]);
	words[used] = 0;
	words[strcspn(words, "\n")] = 0;
	while (!r && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return r ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* fusectl, mounted where nobody sees it. -1: this process may not mount. */
static int fusectl_of_our_own(void)
{
	cleanup(closep) int fs = fsopen("fusectl", FSOPEN_CLOEXEC);

	if (fs < 0 || fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return -1;
	return fsmount(fs, FSMOUNT_CLOEXEC, 0);
}

/* A container has fusectl mounted nowhere, often enough. */
int mount_open_abort(unsigned device)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "/sys/fs/fuse/connections/%u/abort", device);
	fd = open(name, O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	cleanup(closep) int fusectl = fusectl_of_our_own();
	if (fusectl < 0)
		return -1;
	snprintf(name, sizeof(name), "%u/abort", device);
	return openat(fusectl, name, O_WRONLY | O_CLOEXEC);
}

void mount_abort(int fd)
{
	if (fd >= 0 && write(fd, "1", 1) < 0)
		log_warning("the connection cannot be ended: %s", strerror(errno));
}

static void abort_connection(unsigned device)
{
	cleanup(closep) int fd = mount_open_abort(device);

	mount_abort(fd);
}

static bool unmount_lazily(const char *path, bool force)
{
	if (geteuid() == 0)
		return umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW | (force ? MNT_FORCE : 0)) == 0;
	const char *argv[] = {"fusermount3", "-u", "-z", "-q", "--", path, NULL};
	char words[256];

	return fusermount(argv, -1, words, sizeof(words)) == 0;
}

static bool unmount_cleanly(const char *path)
{
	if (geteuid() == 0)
		return umount2(path, UMOUNT_NOFOLLOW) == 0;
	const char *argv[] = {"fusermount3", "-u", "-q", "--", path, NULL};
	char words[256];

	return fusermount(argv, -1, words, sizeof(words)) == 0;
}

bool mount_anywhere(unsigned device)
{
	cleanup(fclosep) FILE *file = fopen("/proc/self/mountinfo", "re");
	cleanup(freep) char *line = NULL;
	size_t capacity = 0;
	bool found = !file;

	while (!found && getline(&line, &capacity, file) > 0) {
		unsigned major, minor;

		found = sscanf(line, "%*u %*u %u:%u ", &major, &minor) == 2 && minor == device &&
		        strstr(line, " - fuse.prefixfs ");
	}
	return found;
}

bool mount_present(const struct config *config, unsigned device)
{
	unsigned found;
	bool ours;

	return find_mount(config->mountpoint, &found, &ours) && ours && found == device;
}

void mount_remove(const struct config *config, unsigned device, bool dead)
{
	/* A device number that is not at our place any more may be another mount's by now: hands off. */
	if (!mount_present(config, device))
		return;
	if (!dead && unmount_cleanly(config->mountpoint))
		return;
	if (dead)
		abort_connection(device);
	if (!unmount_lazily(config->mountpoint, dead) && mount_present(config, device)) {
		log_warning("%s cannot be unmounted: %s; ending the connection", config->mountpoint, strerror(errno));
		abort_connection(device);
		unmount_lazily(config->mountpoint, true);
	}
}

static int check_empty(const char *path, struct why *why)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int entries = 0;

	if (!d)
		return why_set(why, errno, "mount point %s: %s", path, strerror(errno));
	while ((e = readdir(d)))
		entries += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	closedir(d);
	return entries ? why_set(why, ENOTEMPTY, "mount point %s is not empty", path) : 0;
}

/* The absolute path without following the last step into a dead mount, which realpath could not do. */
static int resolve(struct config *config, struct why *why)
{
	char resolved[PATH_MAX], parent[PATH_MAX];
	const char *given = config->mountpoint;

	if (realpath(given, resolved)) {
		strcpy(config->mountpoint, resolved);
		return 0;
	}
	if (!is_dead(errno))
		return why_set(why, errno, "mount point %s: %s", given, strerror(errno));
	strcpy(parent, given);
	for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/'; n--)
		parent[n - 1] = 0;
	char *slash = strrchr(parent, '/');
	const char *last = slash ? slash + 1 : parent;
	if (slash == parent || !realpath(slash ? (*slash = 0, parent) : ".", resolved))
		return why_set(why, errno, "mount point %s: %s", given, strerror(errno));
	char whole[2 * PATH_MAX];
	snprintf(whole, sizeof(whole), "%s/%s", resolved, last);
	if (strlen(whole) >= PATH_MAX)
		return why_set(why, ENAMETOOLONG, "mount point %s: the path is too long", given);
	strcpy(config->mountpoint, whole);
	return 0;
}

int mount_check(struct config *config, struct why *why)
{
	unsigned device;
	bool ours;
	struct stat st;
	int r = resolve(config, why);

	for (int tries = 0; !r && find_mount(config->mountpoint, &device, &ours) && ours; tries++) {
		if (!is_dead(stat_from_afar(config->mountpoint)) || tries == 8)
			return why_set(why, EBUSY, "mount point %s carries a prefixfs already; unmount it first",
				config->mountpoint);
		log_warning("%s: taking away a mount that nobody serves", config->mountpoint);
		mount_remove(config, device, true);
	}
	if (r)
		return r;
	if (stat(config->mountpoint, &st) != 0)
		return why_set(why, errno, "mount point %s: %s", config->mountpoint, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return why_set(why, ENOTDIR, "mount point %s is not a directory", config->mountpoint);
	return check_empty(config->mountpoint, why);
}

static int mount_as_root(const struct config *config, int *ret, struct why *why)
{
	char options[256];
	cleanup(closep) int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return why_set(why, errno, "/dev/fuse: %s%s", strerror(errno),
			errno == ENOENT ? "; is the fuse module loaded?" : "");
	snprintf(options, sizeof(options),
		"fd=%d,rootmode=40000,user_id=%u,group_id=%u,max_read=%u,default_permissions%s", fd, geteuid(),
		getegid(), MAX_READ, config->allow_other == CONFIG_OTHER_YES ? ",allow_other" : "");
	if (mount("prefixfs", config->mountpoint, "fuse.prefixfs", MS_NOSUID | MS_NODEV, options) != 0)
		return why_set(why, errno, "mounting on %s failed: %s", config->mountpoint, strerror(errno));
	*ret = STEAL_FD(fd);
	return 0;
}

static int receive_fd(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t n;
	int fd;

	do {
		n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (!c || c->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

static int mount_as_user(const struct config *config, int *ret, struct why *why)
{
	char options[256], words[256];
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		return why_set(why, errno, "socketpair: %s", strerror(errno));
	snprintf(options, sizeof(options),
		"nosuid,nodev,fsname=prefixfs,subtype=prefixfs,default_permissions,max_read=%u%s", MAX_READ,
		config->allow_other == CONFIG_OTHER_YES ? ",allow_other" : "");
	const char *argv[] = {"fusermount3", "-o", options, "--", config->mountpoint, NULL};
	int r = fusermount(argv, pair[0], words, sizeof(words));
	close(pair[0]);
	int fd = r == 0 ? receive_fd(pair[1]) : -1;
	close(pair[1]);
	if (r < 0)
		return why_set(why, ENOENT, "fusermount3 cannot be run; without root it is needed to mount");
	if (fd < 0)
		return why_set(why, EPERM, "%s was not mounted: %s", config->mountpoint,
			words[0] ? words : "fusermount3 did not say why");
	*ret = fd;
	return 0;
}

int mount_make(const struct config *config, int *ret, unsigned *device, struct why *why)
{
	bool ours = false;
	int fd = -1;
	int r = geteuid() == 0 ? mount_as_root(config, &fd, why) : mount_as_user(config, &fd, why);

	if (r)
		return r;
	if (!find_mount(config->mountpoint, device, &ours) || !ours) {
		close(fd);
		return why_set(
			why, EIO, "%s was mounted, but /proc/self/mountinfo does not show it", config->mountpoint);
	}
	*ret = fd;
	return 0;
}
