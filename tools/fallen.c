/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/fallen.h"

#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/host.h"

#define HEAD "state: fallen\n"
#define HEALTH_MS 5000u

bool fallen_is(const char *mount)
{
	char path[PATH_MAX], *text;
	bool fallen;

	if (host_path(path, "%s/health", mount))
		return false;
	text = host_read_within(path, HEALTH_MS);
	fallen = text && !strncmp(text, HEAD, strlen(HEAD));
	free(text);
	return fallen;
}

int fallen_complain(const char *mount)
{
	return complain("the mount %s is fallen: %s/health says why, and prefixfs upgrade --mount %s has it served again, with its cache", mount,
		mount, mount);
}

/* "sessions: 4  spaces: 1" is two of them. */
static void add_line(json_t *to, const char *name, char *value)
{
	char *second = strstr(value, "  "), *colon = second ? strstr(second, ": ") : NULL;

	if (!strcmp(name, "sessions") && colon) {
		*second = *colon = '\0';
		json_object_set_new(to, second + 2, json_integer(strtoll(colon + 2, NULL, 10)));
	}
	if (value[0] && strspn(value, "0123456789") == strlen(value))
		json_object_set_new(to, name, json_integer(strtoll(value, NULL, 10)));
	else
		json_object_set_new(to, name, json_string(value));
}

json_t *fallen_lines(const char *text)
{
	static const char *const names[] = {"state", "parent", "socket", "reason", "time", "pid", "version", "mount", "restarts", "served_s",
		"phase", "doing", "sessions", "next"};
	json_t *to;

	if (strncmp(text, HEAD, strlen(HEAD)) != 0)
		return NULL;
	to = json_object();
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char *value = host_line(text, names[i]);

		if (value)
			add_line(to, names[i], value);
		free(value);
	}
	return to;
}
