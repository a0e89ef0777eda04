/* SPDX-License-Identifier: Apache-2.0
 *
 * drain, fsck: commands to ctl that are asked for again until they are done; or, of a folder that no daemon has, prefixfsd's
 * own check.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"

extern char **environ;

static uint64_t number_of(const json_t *answer, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(answer, name));
}

/* The ctl of a namespace; -1 after a sentence. */
static int open_ctl(const char *mount, const char *name)
{
	char path[PATH_MAX];
	int fd;

	if (host_namespace(path, mount, name, "/ctl"))
		return -1;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		complain("namespace %s has no layout yet", name);
	else if (fd < 0)
		complain("%s: %s", path, strerror(errno));
	return fd;
}

/* What is named: one namespace, or all of a mount. An array of names, NULL after a sentence; *mount is set. */
static json_t *namespaces_of(const char *named, const char **mount)
{
	bool path = named && strchr(named, '/');
	json_t *names;

	*mount = host_mount(path && !*mount ? named : *mount);
	if (!*mount)
		return NULL;
	if (!named || path)
		return host_namespaces(*mount);
	names = json_array();
	json_array_append_new(names, json_string(named));
	return names;
}

/* Calls @each for every namespace that is named, and shows its rows. */
static int for_each(const char *named, const char *mount, bool json, void *context,
	int (*each)(void *context, const char *mount, const char *name, json_t *rows))
{
	json_t *rows = json_array(), *names = namespaces_of(named, &mount), *name;
	int r = !names;
	size_t i;

	json_array_foreach(names, i, name) r |= each(context, mount, json_string_value(name), rows);
	show_list(rows, json);
	json_decref(names);
	return r;
}

/* ---- drain ------------------------------------------------------------------------------------------------------ */

struct draining {
	uint64_t until_ns;
	bool newest;
};

static int drain_one(void *context, const char *mount, const char *name, json_t *rows)
{
	const struct draining *d = context;
	struct progress progress;
	json_t *answer = NULL;
	int fd = open_ctl(mount, name), error;

	if (fd < 0)
		return 1;
	progress_start(&progress, name, 0);
	do {
		uint64_t now = clock_ns();
		char command[64];

		json_decref(answer);
		snprintf(command, sizeof(command), "drain %s%d\n", d->newest ? "--newest " : "", now < d->until_ns);
		error = host_command(fd, command, &answer);
		progress.goal = number_of(answer, "goal");
		progress_show(&progress, number_of(answer, "drained"));
	} while (error == ETIMEDOUT && clock_ns() < d->until_ns);
	progress_end(&progress);
	close(fd);
	if (error == ETIMEDOUT)
		complain("namespace %s: the limit has passed, %llu bytes are in memory alone still", name,
			(unsigned long long)number_of(answer, "left"));
	else if (error)
		complain("namespace %s: %s", name, host_command_why(answer, error));
	if (answer && (!error || error == ETIMEDOUT)) {
		json_t *row = json_pack("{s:s, s:I, s:I}", "namespace", name, "drained",
			(json_int_t)number_of(answer, "drained"), "left", (json_int_t)number_of(answer, "left"));

		if (json_object_get(answer, "note"))
			json_object_set(row, "note", json_object_get(answer, "note"));
		json_array_append_new(rows, row);
	}
	json_decref(answer);
	return error != 0;
}

int command_drain(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	uint64_t limit = 600;
	struct draining draining = {0};
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"limit", OPTION_NUMBER, &limit, "SECONDS", "how long to wait (600)", 0, 86400},
		{"newest", OPTION_FLAG, &draining.newest, NULL, "the newest records first", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line", 0, 0},
		{0},
	};

	options_read(self, rows, &argc, argv);
	if (argc > 1)
		return usage_error(self, "one namespace or mount is expected, %d are given", argc);
	draining.until_ns = clock_ns() + limit * 1000000000ull;
	return for_each(argc ? argv[0] : NULL, mount, json, &draining, drain_one);
}

/* ---- fsck, of a daemon that runs -------------------------------------------------------------------------------- */

static const char *const counts[] = {"files", "bad_files", "values", "bad_values", "bytes"};

static int check_one(void *context, const char *mount, const char *name, json_t *rows)
{
	struct progress progress;
	json_t *answer = NULL, *row;
	int fd = open_ctl(mount, name), error;
	char command[64] = "fsck\n";
	bool running;

	if (fd < 0)
		return 1;
	progress_start(&progress, name, 0);
	do {
		json_decref(answer);
		error = host_command(fd, command, &answer);
		running = !error && json_is_true(json_object_get(answer, "running"));
		snprintf(command, sizeof(command), "fsck %llu\n", (unsigned long long)number_of(answer, "number"));
		progress.goal = number_of(answer, "files_in_all");
		progress_show(&progress, number_of(answer, "files"));
	} while (running);
	progress_end(&progress);
	close(fd);
	if (error)
		complain("namespace %s: %s", name, host_command_why(answer, error));
	if (!error) {
		row = json_pack("{s:s}", "namespace", name);
		for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
			json_object_set_new(row, counts[i], json_integer((json_int_t)number_of(answer, counts[i])));
		if (json_object_get(answer, "bad"))
			json_object_set(row, "bad", json_object_get(answer, "bad"));
		json_array_append_new(rows, row);
	}
	json_decref(answer);
	return error != 0; /* what was bad is gone: that is put right */
}

/* ---- fsck, of a folder ------------------------------------------------------------------------------------------ */

/* Runs the daemon's check; its exit status, or 1 after a sentence. */
static int check_folder(const char *folder, const bool options[4])
{
	static const char *const names[] = {"--repair", "--rebuild", "--values", "--json"};
	char beside[PATH_MAX], path[PATH_MAX];
	const char *args[8] = {"prefixfsd", "--fsck"};
	const char *daemon = "prefixfsd";
	int n = 2, status, error;
	pid_t pid;

	if (host_path(path, "%s%s", folder[0] == '-' ? "./" : "", folder) ||
		host_path(beside, "%s/prefixfsd", host_program_folder()))
		return 1;
	if (!access(beside, X_OK))
		daemon = beside;
	args[n++] = path;
	for (int i = 0; i < 4; i++)
		if (options[i])
			args[n++] = names[i];
	error = posix_spawnp(&pid, daemon, NULL, NULL, (char *const *)args, environ);
	if (error)
		return complain("%s: %s", daemon, strerror(error));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return complain("%s: %s", daemon, strerror(errno));
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	return complain("%s was ended by signal %d (%s)", daemon, WTERMSIG(status), strsignal(WTERMSIG(status)));
}

/* A folder that is no mount of ours; a name without '/' is a namespace's. */
static bool is_folder(const char *named)
{
	struct host_mount_row row;

	return named && strchr(named, '/') && !host_mount_find(named, &row);
}

int command_fsck(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool options[4] = {false}; /* repair, rebuild, values, json */
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"repair", OPTION_FLAG, &options[0], NULL, "of a folder: cut or remove what is bad", 0, 0},
		{"rebuild", OPTION_FLAG, &options[1], NULL, "of a folder: make the catalogues anew", 0, 0},
		{"values", OPTION_FLAG, &options[2], NULL, "of a folder: read every value, too", 0, 0},
		{"json", OPTION_FLAG, &options[3], NULL, "one JSON object a line", 0, 0},
		{0},
	};

	options_read(self, rows, &argc, argv);
	if (argc > 1)
		return usage_error(self, "one namespace, mount or folder is expected, %d are given", argc);
	if (is_folder(argc ? argv[0] : NULL))
		return check_folder(argv[0], options);
	if (options[0] || options[1] || options[2])
		return usage_error(self, "--repair, --rebuild and --values are for a folder that no daemon has: a running one drops "
					 "what is bad, and reads every value");
	return for_each(argc ? argv[0] : NULL, mount, options[3], NULL, check_one);
}
