/* SPDX-License-Identifier: Apache-2.0
 *
 * evict: records by name as rm -r would do it; all, or so many bytes, by a command to ctl.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"

struct outcome {
	uint64_t evicted, values, bytes, refused;
};

static uint64_t number_of(const json_t *answer, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(answer, name));
}

/* One command; its answer is counted into @out, and if it failed its sentence told. 0 or the errno. */
static int ask(int fd, const char *command, struct outcome *out)
{
	json_t *answer;
	int error = host_command(fd, command, &answer);

	out->evicted += number_of(answer, "evicted");
	out->values += number_of(answer, "values");
	out->bytes += number_of(answer, "bytes");
	out->refused = number_of(answer, "refused");
	if (error && error != ETIMEDOUT)
		complain("%s", host_command_why(answer, error));
	json_decref(answer);
	return error;
}

/* @bytes 0: all. A command that takes too long is given again for the rest. */
static int evict_much(const char *ctl, const char *records, uint64_t bytes, struct outcome *out)
{
	int fd = open(ctl, O_RDWR | O_CLOEXEC), error;
	char command[64];

	if (fd < 0 && errno == ENOENT)
		return complain("%s: the namespace has no layout yet, and so no records", records);
	if (fd < 0)
		return complain("%s: %s", ctl, strerror(errno));
	do {
		if (bytes)
			snprintf(command, sizeof(command), "evict --bytes %llu\n", (unsigned long long)(bytes - out->bytes));
		error = ask(fd, bytes ? command : "evict --all\n", out);
	} while (error == ETIMEDOUT && (!bytes || out->bytes < bytes));
	close(fd);
	return error && error != ETIMEDOUT;
}

/* All that can go of @names. */
static int evict_named(const char *records, char **names, int count, struct outcome *out)
{
	int r = 0;

	for (int i = 0; i < count; i++) {
		char path[PATH_MAX];

		if (host_record(path, records, names[i]))
			r = 1;
		else if (!rmdir(path))
			out->evicted++;
		else
			r = complain("%s: %s", names[i],
				errno == ENOTEMPTY ? "other records descend from it"
				: errno == EBUSY   ? "in use or pinned"
				: errno == ENOENT  ? "no such record"
						   : strerror(errno));
	}
	out->refused = (uint64_t)count - out->evicted;
	return r;
}

int command_evict(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false, all = false;
	uint64_t bytes = 0;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"all", OPTION_FLAG, &all, NULL, "every record that is not in use", 0, 0},
		{"bytes", OPTION_BYTES, &bytes, "SIZE", "what was unused for longest, until so much went", 1, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	struct outcome out = {0};
	char records[PATH_MAX], ctl[PATH_MAX];
	json_t *shown;
	int r;

	options_read(self, rows, &argc, argv);
	if (argc < 1)
		return usage_error(self, "a namespace is needed");
	if ((argc > 1) + all + (bytes > 0) > 1)
		return usage_error(self, "record names, --all and --bytes exclude each other: give one of them");
	if (argc == 1 && !all && bytes == 0)
		return usage_error(self, "one of record names, --all and --bytes is needed");
	mount = host_mount(mount);
	if (!mount || host_namespace(records, mount, argv[0], "/records") || host_namespace(ctl, mount, argv[0], "/ctl"))
		return 1;
	if (argc > 1)
		r = evict_named(records, argv + 1, argc - 1, &out);
	else
		r = evict_much(ctl, records, bytes, &out);
	shown = json_pack("{s:I, s:I}", "evicted", (json_int_t)out.evicted, "refused", (json_int_t)out.refused);
	if (argc == 1)
		json_object_update_new(shown, json_pack("{s:I, s:I}", "values", (json_int_t)out.values, "bytes",
						      (json_int_t)out.bytes));
	show_object(shown, json);
	return r;
}
