/* SPDX-License-Identifier: Apache-2.0
 *
 * mount, unmount, version.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"
#include "tools/commands.h"
#include "tools/fallen.h"
#include "tools/host.h"

extern char **environ;

/* Runs a program and waits for it. Its exit status, or -1 after a sentence. */
static int run(const char *path, char *const *argv)
{
	int status, error;
	pid_t pid;

	error = posix_spawnp(&pid, path, NULL, NULL, argv, environ);
	if (error) {
		complain("%s: %s", path, strerror(error));
		return -1;
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	complain("%s was ended by signal %d (%s)", path, WTERMSIG(status), strsignal(WTERMSIG(status)));
	return -1;
}

/* The process to stop of the daemon that @mount says to have; 0 if it says none. */
static long parent_of(const char *mount)
{
	char path[PATH_MAX], *health = NULL, *text = NULL;
	long pid = 0;

	if ((size_t)snprintf(path, sizeof(path), "%s/health", mount) < sizeof(path))
		health = host_read_file(path, NULL);
	if (health)
		text = host_line(health, "parent");
	if (text)
		pid = strtol(text, NULL, 10);
	free(text);
	free(health);
	return pid;
}

/* Which of the arguments is the mount point is the daemon's to know: it is the one where somebody serves now. */
static int show_mount(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		long pid = argv[i][0] == '-' ? 0 : parent_of(argv[i]);

		if (pid > 0) {
			show_object(json_pack("{s:s, s:I}", "mount", argv[i], "pid", (json_int_t)pid), true);
			return 0;
		}
	}
	return complain("mounted, but the daemon has ended since");
}

/* Another daemon there would have to begin with nothing: says so, 1. */
static int refuse_fallen(int argc, char **argv)
{
	struct host_mount_row row;

	for (int i = 0; i < argc; i++)
		if (argv[i][0] != '-' && host_mount_find(argv[i], &row) && fallen_is(argv[i]))
			return fallen_complain(argv[i]);
	return 0;
}

int command_mount(const struct command *self, int argc, char **argv)
{
	static const struct option_row rows[] = {
		{"json", OPTION_FLAG, NULL, NULL, "one JSON object: mount, pid", 0, 0},
		{0},
	};
	char beside[PATH_MAX];
	const char *daemon = "prefixfsd";
	bool json = false, foreground = false;
	char **args;
	int r, left = 0;

	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			options_read(self, rows, &argc, argv);
		foreground |= !strcmp(argv[i], "--foreground");
		if (!strcmp(argv[i], "--json"))
			json = true;
		else
			argv[left++] = argv[i]; /* the daemon's */
	}
	argc = left;
	if (argc == 0)
		return usage_error(self, "a mount point is needed");
	if (json && foreground)
		return usage_error(self, "--json and --foreground exclude each other");
	if (refuse_fallen(argc, argv) || host_path(beside, "%s/prefixfsd", host_program_folder()))
		return 1;
	if (!access(beside, X_OK))
		daemon = beside;
	args = calloc((size_t)argc + 2, sizeof(*args));
	if (!args)
		return complain("no memory");
	args[0] = (char *)daemon;
	memcpy(args + 1, argv, (size_t)argc * sizeof(*args));
	r = run(daemon, args);
	free(args);
	if (r == 0 && json)
		return show_mount(argc, argv);
	return r < 0 ? 1 : r;
}

/* ---- unmount ---------------------------------------------------------------------------------------------------- */

static int say_owner(const char *mount, long owner)
{
	if (owner == 0)
		return complain("%s: root mounted it, and only root may unmount it", mount);
	return complain("%s: uid %ld mounted it, and only that user or root may unmount it", mount, owner);
}

static int unmount(const char *mount, long owner, bool lazy)
{
	char *args[] = {(char *)"fusermount3", (char *)"-u", lazy ? (char *)"-z" : (char *)mount,
		lazy ? (char *)mount : NULL, NULL};

	if (!umount2(mount, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)))
		return 0;
	if (errno != EPERM && errno != EACCES)
		return complain("%s: %s", mount,
			errno == EBUSY ? "in use: end what has files or folders open there" : strerror(errno));
	if (owner != (long)getuid())
		return say_owner(mount, owner);
	return run("fusermount3", args) ? 1 : 0;
}

/* Why a daemon of which nothing is mounted any more has not ended, as far as it is to be seen. */
static int say_goes_on(const struct host_daemon *daemon, uint64_t seconds)
{
	char why[128] = "";
	long stopped = host_process_stopped(daemon->parent) ? daemon->parent : host_process_stopped(daemon->serving) ? daemon->serving : 0;

	if (stopped)
		snprintf(why, sizeof(why), ": process %ld is stopped", stopped);
	else if (daemon->disk)
		snprintf(why, sizeof(why), ": it may still be writing to the disk tier, as its log says");
	return complain("unmounted, but the daemon (process %ld) has not ended within %llu s%s; kill %ld ends it%s", daemon->parent,
		(unsigned long long)seconds, why, daemon->parent, daemon->disk ? ", a second one without what is not written" : "");
}

/* Waits until the process that @pidfd names has ended. */
static int wait_for_end(int pidfd, const struct host_daemon *daemon, uint64_t seconds)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	uint64_t until = clock_ns() + seconds * 1000000000ull, now;
	int r;

	do {
		now = clock_ns();
		r = poll(&p, 1, now < until ? (int)((until - now) / 1000000) : 0);
	} while (r < 0 && errno == EINTR);
	if (r > 0)
		return 0;
	return say_goes_on(daemon, seconds);
}

int command_unmount(const struct command *self, int argc, char **argv)
{
	bool lazy = false, json = false;
	uint64_t seconds = 30;
	const struct option_row rows[] = {
		{"lazy", OPTION_FLAG, &lazy, NULL, "detach at once, also while files are open there", 0, 0},
		{"wait", OPTION_NUMBER, &seconds, "SECONDS", "how long to wait for the daemon's end (30)", 0, 86400},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object: mount, pid of the daemon that was", 0, 0},
		{0},
	};
	struct host_mount_row row;
	struct host_daemon daemon;
	const char *mount;
	int pidfd = -1, r;

	options_read(self, rows, &argc, argv);
	if (argc > 1)
		return usage_error(self, "one mount point is expected, %d are given", argc);
	mount = host_mount(argc ? argv[0] : NULL);
	if (!mount)
		return 1;
	/* Nothing in the mount is read: whoever serves it may be stuck, and that is when it has to go. */
	if (!host_mount_find(mount, &row))
		return access(mount, F_OK) ? complain("%s is no prefixfs mount: %s", mount, strerror(errno))
					   : complain("%s is no prefixfs mount", mount);
	if (host_daemon_find(&row, &daemon))
		pidfd = (int)syscall(SYS_pidfd_open, (pid_t)daemon.parent, 0);
	r = unmount(mount, row.owner, lazy);
	if (!r && pidfd >= 0)
		r = wait_for_end(pidfd, &daemon, seconds);
	if (pidfd >= 0)
		close(pidfd);
	if (!r && json)
		show_object(json_pack("{s:s, s:o}", "mount", mount, "pid", daemon.parent ? json_integer(daemon.parent) : json_null()), true);
	return r;
}

int command_version(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "ask the daemon mounted there too (PREFIXFS_MOUNT)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	char path[PATH_MAX], *daemon = NULL;
	json_t *out;

	options_read(self, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	if (!mount)
		mount = getenv("PREFIXFS_MOUNT");
	if (mount && *mount) {
		if (host_mounted(mount) || host_path(path, "%s/version", mount))
			return 1;
		daemon = host_read_file(path, NULL);
		if (!daemon)
			return complain("%s: %s", path, strerror(errno));
		daemon[strcspn(daemon, "\n")] = '\0';
	}
	out = json_pack("{s:s, s:s, s:i}", "prefixfs", pfs_version(), "libprefixfs", pfs_version(), "abi",
		(int)PFS_ABI_VERSION);
	if (daemon)
		json_object_set_new(out, "daemon", json_string(daemon));
	free(daemon);
	show_object(out, json);
	return 0;
}
