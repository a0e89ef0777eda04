/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/victim.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/host.h"

/* ---- which process ----------------------------------------------------------------------------------------------- */

static pid_t parent_of(pid_t pid)
{
	char path[64], *text, *end;
	int parent = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	text = host_read_file(path, NULL);
	end = text ? strrchr(text, ')') : NULL;
	/* A zombie is nobody to be killed. */
	if (!end || end[1] != ' ' || end[2] == 'Z' || sscanf(end, ") %*c %d", &parent) != 1)
		parent = 0;
	free(text);
	return parent;
}

/* Does it serve a mount? Its arguments end with 0 each. */
static bool serves(pid_t pid)
{
	char path[64], *text;
	bool found = false;
	size_t bytes = 0;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
	text = host_read_file(path, &bytes);
	for (const char *at = text; text && at < text + bytes && !found; at += strlen(at) + 1)
		found = !strncmp(at, "--serve=", 8);
	free(text);
	return found;
}

pid_t victim_serving(const struct victim *v)
{
	DIR *dir = opendir("/proc");
	pid_t found = 0;
	struct dirent *e;

	while (dir && !found && (e = readdir(dir))) {
		pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

		if (pid > 0 && parent_of(pid) == v->parent && serves(pid))
			found = pid;
	}
	if (dir)
		closedir(dir);
	return found;
}

/* ---- the daemon ----------------------------------------------------------------------------------------------------- */

/* A line of health. */
static int read_health(struct victim *v, const char *health, pid_t *serving)
{
	char *parent = host_line(health, "parent"), *pid = host_line(health, "serving"), *socket = host_line(health, "socket");
	char *slash = socket ? strrchr(socket, '/') : NULL;
	int r = 1;

	if (parent && pid && slash) {
		v->parent = (pid_t)strtol(parent, NULL, 10);
		*serving = (pid_t)strtol(pid, NULL, 10);
		*slash = '\0';
		r = host_path(v->run_dir, "%s", socket);
	} else {
		complain("%s/health names no parent, serving process and socket", v->mount);
	}
	free(parent);
	free(pid);
	free(socket);
	return r;
}

int victim_find(struct victim *v, const char *mount)
{
	char path[PATH_MAX], *health;
	pid_t serving = 0;
	int r;

	*v = (struct victim){0};
	if (host_mounted(mount) || host_path(v->mount, "%s", mount) || host_path(path, "%s/health", mount))
		return 1;
	health = host_read_file(path, NULL);
	r = health ? read_health(v, health, &serving) : complain("%s: %s", path, strerror(errno));
	free(health);
	if (r)
		return r;
	if (parent_of(serving) != v->parent || !serves(serving))
		return complain("%s says that process %d serves it, which is none of the daemon's here: another namespace of processes?",
			path, (int)serving);
	if (kill(serving, 0))
		return complain("process %d, which serves %s, may not be killed: %s", (int)serving, mount, strerror(errno));
	return 0;
}

int victim_endures(const struct victim *v, uint64_t deaths, const char *what)
{
	char path[PATH_MAX], *config, *line;
	uint64_t limit = 0;

	if (host_path(path, "%s/config", v->mount))
		return 1;
	config = host_read_file(path, NULL);
	line = config ? host_line(config, "deaths") : NULL;
	if (line)
		limit = strtoull(line, NULL, 10);
	free(line);
	free(config);
	if (limit > deaths)
		return 0;
	return complain("%s: the daemon at %s gives up after %llu deaths in 60 s; start it with --deaths=%llu or more", what, v->mount,
		(unsigned long long)limit, (unsigned long long)deaths + 1);
}

/* The number may have become another process's since it was looked for: the descriptor is one process's. */
static int kill_one(const struct victim *v, pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0), r = 0;

	if (fd < 0)
		return errno == ESRCH ? 0 : -errno;
	if (parent_of(pid) == v->parent)
		r = syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) ? -errno : 1;
	close(fd);
	return r == -ESRCH ? 0 : r;
}

int victim_kill(struct victim *v)
{
	pid_t pid = victim_serving(v);
	int r;

	if (!pid || pid == v->killed)
		return 0;
	r = kill_one(v, pid);
	if (r == 1)
		v->killed = pid;
	return r;
}

char *victim_last_words(const struct victim *v, const char *name)
{
	char path[PATH_MAX], *text, *value = NULL;

	if (host_path(path, "%s/last_exit", v->run_dir))
		return NULL;
	text = host_read_file(path, NULL);
	if (text)
		value = host_line(text, name);
	free(text);
	return value;
}
