/* SPDX-License-Identifier: Apache-2.0
 *
 * Why ctl cannot be opened, as its mount lets one see.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/client/client.h"

#define FALLEN "state: fallen\n" /* what health begins with then (fs/fallen.h) */

/* <mount>/health of <mount>/ns/NAME/ctl, and how long the mount's own path is; 0: the path is another one. */
static int find_health(const char *ctl, char to[PATH_MAX])
{
	const char *end = NULL;

	for (const char *at = ctl; (at = strstr(at, "/ns/")); at++)
		end = at;
	if (!end || (size_t)(end - ctl) >= PATH_MAX - sizeof("/health"))
		return 0;
	snprintf(to, PATH_MAX, "%.*s/health", (int)(end - ctl), ctl);
	return (int)(end - ctl);
}

static bool is_fallen(const char *health)
{
	char head[sizeof(FALLEN) - 1];
	int fd = open(health, O_RDONLY | O_CLOEXEC);
	bool fallen = fd >= 0 && read(fd, head, sizeof(head)) == sizeof(head) && !memcmp(head, FALLEN, sizeof(head));

	if (fd >= 0)
		close(fd);
	return fallen;
}

int say_open(const char *ctl, int error)
{
	char health[PATH_MAX];
	int mount = error == EIO || error == ENOENT ? find_health(ctl, health) : 0;

	if (mount && error == EIO && is_fallen(health))
		return say(EHOSTDOWN, "the mount %.*s is fallen: %s says why, and prefixfs upgrade has it served again", mount, ctl, health);
	if (mount && error == ENOENT && access(health, F_OK) && errno == ENOENT)
		return say(error, "%s: no prefixfs is mounted at %.*s", ctl, mount, ctl);
	return say(error, "%s: %s", ctl,
		error == ENOENT	    ? "no such namespace, or it has no layout yet"
		: error == ENOTCONN ? "nobody serves the mount"
				    : strerror(error));
}
