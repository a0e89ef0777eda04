/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom to ask for an upgrade: the parent of the process that serves a mount, and where it listens. Nothing in the mount is read as long
 * as a process serves it: it may be stopped, and that is when an upgrade helps. In a fallen mount nobody serves, and the parent itself
 * answers.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/host.h"
#include "tools/cli.h"
#include "tools/upgrade.h"

#define HEALTH_MS 5000u
#define LISTENER "/sock" /* the clients' socket: in the run folder as well, and the parent's */

/* Has the process @pid the socket with this inode? */
static bool has_socket(long pid, unsigned long inode)
{
	char folder[64], wanted[64];
	struct dirent *e;
	bool has = false;
	DIR *d;

	snprintf(folder, sizeof(folder), "/proc/%ld/fd", pid);
	snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
	d = opendir(folder);
	while (d && !has && (e = readdir(d))) {
		char link[PATH_MAX], to[64];
		ssize_t n = host_path(link, "%s/%s", folder, e->d_name) ? -1 : readlink(link, to, sizeof(to) - 1);

		to[n > 0 ? n : 0] = '\0';
		has = !strcmp(to, wanted);
	}
	if (d)
		closedir(d);
	return has;
}

/* The run folder of the daemon whose parent is @pid, by the socket that it listens at. */
static bool folder_of(long pid, char to[PATH_MAX])
{
	FILE *f = fopen("/proc/net/unix", "re");
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	while (f && !found && getline(&line, &size, f) > 0) {
		unsigned long inode;
		size_t bytes;

		if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %4095[^\n]", &inode, to) != 2)
			continue;
		bytes = strlen(to);
		if (bytes <= strlen(LISTENER) || strcmp(to + bytes - strlen(LISTENER), LISTENER) != 0)
			continue;
		to[bytes - strlen(LISTENER)] = '\0';
		found = has_socket(pid, inode);
	}
	free(line);
	if (f)
		fclose(f);
	return found;
}

/* What health says, where no process is to be seen that serves: the mount is fallen, or its daemon's processes are not to be seen here. */
static int ask_health(const char *mount, long *parent, char folder[PATH_MAX])
{
	char path[PATH_MAX], *text, *socket = NULL, *pid = NULL, *slash;
	int r = 1;

	if (host_path(path, "%s/health", mount))
		return 1;
	text = host_read_within(path, HEALTH_MS);
	if (!text)
		return errno == ETIMEDOUT ? complain("the daemon at %s does not answer within %u ms", mount, HEALTH_MS)
		       : errno == ENOTCONN ? complain("nobody serves the mount %s: prefixfs mount %s starts it again", mount, mount)
					   : complain("%s: %s", path, strerror(errno));
	socket = host_line(text, "socket");
	pid = host_line(text, "parent");
	slash = socket ? strrchr(socket, '/') : NULL;
	if (slash && pid) {
		*slash = '\0';
		*parent = strtol(pid, NULL, 10);
		r = host_path(folder, "%s", socket);
	} else {
		complain("%s names no socket and parent", path);
	}
	free(socket);
	free(pid);
	free(text);
	return r;
}

int upgrade_find(const char *mount, long *parent, char path[PATH_MAX])
{
	struct host_mount_row row;
	struct host_daemon daemon;
	char folder[PATH_MAX];

	if (!host_mount_find(mount, &row))
		return access(mount, F_OK) ? complain("no prefixfs is mounted at %s: %s", mount, strerror(errno))
					   : complain("no prefixfs is mounted at %s", mount);
	if (geteuid() != 0 && (long)geteuid() != row.owner)
		return row.owner ? complain("only root and uid %ld, who mounted %s, may upgrade its daemon", row.owner, mount)
				 : complain("only root, who mounted %s, may upgrade its daemon", mount);
	host_daemon_find(&row, &daemon);
	*parent = daemon.parent;
	if ((*parent <= 0 || !folder_of(*parent, folder)) && ask_health(mount, parent, folder))
		return 1;
	if (host_process_stopped(*parent))
		return complain("the daemon at %s is stopped: kill -CONT %ld has its parent go on", mount, *parent);
	return host_path(path, "%s/" UPGRADE_SOCKET, folder);
}
