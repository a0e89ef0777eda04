/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/memory_limit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fs/mount.h"
#include "store/base/cleanup.h"

#define HUGE_PAGE (2ull << 20)
#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static FILE *open_below(const char *root, const char *path)
{
	cleanup(freep) char *whole = NULL;

	if (asprintf(&whole, "%s%s", root, path) < 0) {
		whole = NULL;
		return NULL;
	}
	return fopen(whole, "re");
}

/* The number that a file consists of; false: there is none ("max"). */
static bool read_number(const char *root, const char *path, uint64_t *ret)
{
	cleanup(fclosep) FILE *file = open_below(root, path);

	return file && fscanf(file, "%" SCNu64, ret) == 1;
}

static void lower(struct memory_limit *limit, uint64_t bytes, const char *from)
{
	if (bytes >= limit->bytes)
		return;
	limit->bytes = bytes;
	snprintf(limit->from, sizeof(limit->from), "%.*s", (int)sizeof(limit->from) - 1, from);
}

/* ---- the host -------------------------------------------------------------------------------------------------- */

static void lower_by_host(const char *root, struct memory_limit *limit)
{
	cleanup(fclosep) FILE *file = open_below(root, "/proc/meminfo");
	uint64_t total = 0, huge = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file)) {
		sscanf(line, "MemTotal: %" SCNu64, &total);
		sscanf(line, "Hugetlb: %" SCNu64, &huge);
	}
	if (total > huge)
		lower(limit, (total - huge) << 10,
			huge ? "MemTotal without Hugetlb in /proc/meminfo" : "MemTotal in /proc/meminfo");
}

static uint64_t pool_pages(const char *root)
{
	uint64_t pages = 0;

	read_number(root, POOL "nr_hugepages", &pages);
	return pages;
}

/* What may join the pool while it is used. A segment is not begun on it, only continued. */
static uint64_t surplus_pages(const char *root)
{
	uint64_t pages = 0;

	read_number(root, POOL "nr_overcommit_hugepages", &pages);
	return pages;
}

/* ---- cgroups --------------------------------------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (;; list++) {
		size_t n = strcspn(list, ",");

		if (n == length && !memcmp(list, word, n))
			return true;
		list += n;
		if (!*list)
			return false;
	}
}

/* The process's cgroup, as the hierarchy of v2 or that of v1 with the memory controller calls it. */
static bool cgroup_path(const char *root, bool v2, char path[PATH_MAX])
{
	cleanup(fclosep) FILE *file = open_below(root, "/proc/self/cgroup");
	cleanup(freep) char *line = NULL;
	size_t capacity = 0;

	while (file && getline(&line, &capacity, file) > 0) {
		char *controllers = strchr(line, ':'), *at;

		line[strcspn(line, "\n")] = 0;
		if (!controllers || !(at = strchr(++controllers, ':')))
			continue;
		*at++ = 0;
		if (v2 ? !*controllers : has_word(controllers, "memory")) {
			snprintf(path, PATH_MAX, "%s", at);
			return true;
		}
	}
	return false;
}

/* Where that hierarchy is mounted, and which cgroup its root is there. */
static bool cgroup_mount(const char *root, bool v2, char point[PATH_MAX], char top[PATH_MAX])
{
	cleanup(fclosep) FILE *file = open_below(root, "/proc/self/mountinfo");
	cleanup(freep) char *line = NULL;
	size_t capacity = 0;

	while (file && getline(&line, &capacity, file) > 0) {
		char type[32], options[512];
		const char *rest = strstr(line, " - ");

		if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", top, point) != 2 ||
			sscanf(rest, " - %31s %*s %511s", type, options) != 2)
			continue;
		if (strcmp(type, v2 ? "cgroup2" : "cgroup") != 0 || (!v2 && !has_word(options, "memory")))
			continue;
		mount_unescape(point);
		mount_unescape(top);
		return true;
	}
	return false;
}

/* The folder of the process's cgroup, of which *below of @path is its own part, or none; false: there is no such hierarchy. */
static bool cgroup_folder(const char *root, bool v2, char path[PATH_MAX], char point[PATH_MAX], char **ret_below)
{
	char top[PATH_MAX];

	if (!cgroup_path(root, v2, path) || !cgroup_mount(root, v2, point, top))
		return false;
	/* In a container the mount may begin somewhere below the hierarchy's root. */
	size_t above = strcmp(top, "/") ? strlen(top) : 0;
	char *below = path;
	if (!strncmp(path, top, above) && (path[above] == '/' || !path[above]))
		below += above;
	else
		*below = 0;
	if (!strcmp(below, "/") || !strncmp(below, "/..", 3))
		*below = 0;
	*ret_below = below;
	return true;
}

static void lower_by_cgroups(const char *root, bool v2, struct memory_limit *limit)
{
	const char *name = v2 ? "memory.max" : "memory.limit_in_bytes";
	char path[PATH_MAX], point[PATH_MAX], file[2 * PATH_MAX + 32], *below;
	uint64_t bytes;

	if (!cgroup_folder(root, v2, path, point, &below))
		return;
	for (;;) {
		snprintf(file, sizeof(file), "%s%s/%s", point, below, name);
		if (read_number(root, file, &bytes))
			lower(limit, bytes, file);
		char *slash = strrchr(below, '/');
		if (!slash)
			break;
		*slash = 0;
	}
}

/* ---- those killed ---------------------------------------------------------------------------------------------- */

/* The number behind the word oom_kill. */
static bool read_kills(const char *root, const char *path, uint64_t *ret)
{
	cleanup(fclosep) FILE *file = open_below(root, path);
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "oom_kill %" SCNu64, ret) == 1)
			return true;
	return false;
}

static bool read_kills_of_cgroup(const char *root, bool v2, uint64_t *ret)
{
	char path[PATH_MAX], point[PATH_MAX], file[2 * PATH_MAX + 32], *below;

	if (!cgroup_folder(root, v2, path, point, &below))
		return false;
	snprintf(file, sizeof(file), "%s%s/%s", point, below, v2 ? "memory.events" : "memory.oom_control");
	return read_kills(root, file, ret);
}

uint64_t memory_limit_kills(const char *root)
{
	uint64_t kills;

	if (read_kills_of_cgroup(root, true, &kills) || read_kills_of_cgroup(root, false, &kills) ||
		read_kills(root, "/proc/vmstat", &kills))
		return kills;
	return UINT64_MAX;
}

/* ---- the budget ------------------------------------------------------------------------------------------------ */

void memory_limit_find(const char *root, uint64_t hugepages, struct memory_limit *ret)
{
	struct memory_limit ordinary = {.bytes = UINT64_MAX};
	struct memory_limit huge = {
		.bytes = (pool_pages(root) + surplus_pages(root)) * HUGE_PAGE,
		.from = "huge pages, " POOL "nr_hugepages",
	};

	lower_by_host(root, &ordinary);
	lower_by_cgroups(root, false, &ordinary);
	lower_by_cgroups(root, true, &ordinary);
	*ret = ordinary;
	if (hugepages == CONFIG_HUGE_REQUIRE || (hugepages == CONFIG_HUGE_AUTO && huge.bytes > ordinary.bytes))
		*ret = huge;
}

int memory_limit_check(const char *root, const struct config *config, bool *fatal, struct why *why)
{
	struct memory_limit limit;

	bool no_pages = config->hugepages == CONFIG_HUGE_REQUIRE && pool_pages(root) == 0;

	memory_limit_find(root, config->hugepages, &limit);
	*fatal = config->populate || no_pages;
	if (no_pages)
		return why_set(why, ENOMEM,
			"hugepages: require was asked for, and this host has no huge pages of 2 MiB: " POOL
			"nr_hugepages is 0; reserve %" PRIu64 " for the budget, see vm.nr_hugepages",
			(uint64_t)((config->memory + HUGE_PAGE - 1) / HUGE_PAGE));
	if (config->memory > limit.bytes)
		return why_set(why, ENOMEM,
			"memory: the budget of %" PRIu64 " bytes is more than the %" PRIu64 " that may be had (%s)",
			config->memory, limit.bytes, limit.from);
	return 0;
}
