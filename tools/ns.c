/* SPDX-License-Identifier: Apache-2.0
 *
 * ns create, list, show, remove.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"
#include "tools/layout_file.h"

static int create(const struct command *self, int argc, char **argv)
{
	struct layout_wish wish = {0};
	const char *mount = NULL;
	bool print = false, json = false;
	uint64_t mode = LAYOUT_MODE_DEFAULT;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"layout", OPTION_TEXT, &wish.file, "FILE", "the layout as JSON", 0, 0},
		{"model", OPTION_TEXT, &wish.model, "NAME", "a layout that comes along, as Qwen3-8B", 0, 0},
		{"tp", OPTION_NUMBER, &wish.tp, "N", "the tensor parallel size of --model", 1, 1024},
		{"one-rank", OPTION_FLAG, &wish.one_rank, NULL, "one rank's values of --model as a world of their own", 0, 0},
		{"plane-divisor", OPTION_NUMBER, &wish.plane_divisor, "N", "divide the bytes of every plane", 1,
			1 << 20},
		{"floor", OPTION_BYTES, &wish.floor_bytes, "SIZE", "memory that is its own", 1, 0},
		{"blobs", OPTION_BYTES, &wish.blobs_bytes, "SIZE", "memory for blobs, beside the floor", 1, 0},
		{"mode", OPTION_OCTAL, &mode, "BITS", "permission bits of its folder (0755 less the umask)", 0, 07777},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object: namespace, mount", 0, 0},
		{"print", OPTION_FLAG, &print, NULL, "print the layout and create nothing", 0, 0},
		{0},
	};

	options_read(self, rows, &argc, argv);
	if (argc != 1 && !print)
		return usage_error(self, "one name is expected, %d are given", argc);
	if (!wish.file && !wish.model)
		return usage_error(self, "one of --layout and --model is needed");
	if (layout_wish_check(self, &wish))
		return EXIT_USAGE;
	if (print) {
		json_t *layout = layout_load(&wish);

		if (!layout)
			return 1;
		json_dumpf(layout, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(layout);
		return 0;
	}
	mount = host_mount(mount);
	if (!mount)
		return 1;
	if (layout_create(mount, argv[0], &wish, (unsigned)mode))
		return 1;
	if (json)
		show_object(json_pack("{s:s, s:s}", "namespace", argv[0], "mount", mount), true);
	return 0;
}

static json_t *describe(const char *mount, const char *name)
{
	struct layout_view view;
	json_t *row;
	char path[PATH_MAX], *text = NULL, classes[512] = "";
	uint64_t page_bytes = 0;
	size_t n = 0;

	if (layout_view_read(mount, name, &view))
		return NULL;
	for (uint32_t i = 0; i < view.classes && n < sizeof(classes); i++) {
		n += (size_t)snprintf(classes + n, sizeof(classes) - n, "%s%s (%s)", i ? ", " : "", view.class[i].name,
			view.class[i].kind);
		if (strcmp(view.class[i].kind, "state"))
			page_bytes += view.class[i].payload_bytes;
	}
	if (!host_namespace(path, mount, name, "/stats"))
		text = host_read_file(path, NULL);
	row = json_pack("{s:s, s:I, s:I, s:I, s:s}", "name", name, "world", (json_int_t)view.world, "page_tokens",
		(json_int_t)view.page_tokens, "page_bytes", (json_int_t)page_bytes, "classes", classes);
	for (unsigned i = 0; text && i < 3; i++) {
		static const char *const names[] = {"records", "pages", "slot_bytes"};
		char *value = host_line(text, names[i]);

		if (value)
			json_object_set_new(row, names[i], json_integer(strtoll(value, NULL, 10)));
		free(value);
	}
	free(text);
	layout_view_free(&view);
	return row;
}

static int list(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line", 0, 0},
		{0},
	};
	struct dirent **names;
	char path[PATH_MAX];
	json_t *out;
	int n;

	options_read(self, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	mount = host_mount(mount);
	if (!mount || host_mounted(mount) || host_path(path, "%s/ns", mount))
		return 1;
	n = scandir(path, &names, NULL, alphasort);
	if (n < 0)
		return complain("%s: %s", path, strerror(errno));
	out = json_array();
	for (int i = 0; i < n; i++) {
		if (names[i]->d_name[0] != '.') {
			json_t *row = describe(mount, names[i]->d_name);

			if (row)
				json_array_append_new(out, row);
		}
		free(names[i]);
	}
	free(names);
	show_list(out, json);
	return 0;
}

static int show(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	json_t *row;

	options_read(self, rows, &argc, argv);
	if (argc != 1)
		return usage_error(self, "one name is expected, %d are given", argc);
	mount = host_mount(mount);
	row = mount ? describe(mount, argv[0]) : NULL;
	if (!row)
		return 1;
	show_object(row, json);
	return 0;
}

static int remove_ns(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object: namespace, mount", 0, 0},
		{0},
	};
	char path[PATH_MAX];

	options_read(self, rows, &argc, argv);
	if (argc != 1)
		return usage_error(self, "one name is expected, %d are given", argc);
	mount = host_mount(mount);
	if (!mount || host_namespace(path, mount, argv[0], ""))
		return 1;
	if (rmdir(path))
		return complain("%s: %s", path, errno == EBUSY ? "sessions are open on it" : strerror(errno));
	if (json)
		show_object(json_pack("{s:s, s:s}", "namespace", argv[0], "mount", mount), true);
	return 0;
}

int command_ns(const struct command *self, int argc, char **argv)
{
	static const struct command table[] = {
		{"ns create", "NAME --layout FILE | --model NAME [--tp N]", "create a namespace", NULL, create},
		{"ns list", "", "the namespaces there are", NULL, list},
		{"ns show", "NAME", "one namespace", NULL, show},
		{"ns remove", "NAME", "remove a namespace with all that is in it", NULL, remove_ns},
		{0},
	};

	return command_dispatch("prefixfs ns", self->summary, table, argc, argv);
}
