/* SPDX-License-Identifier: Apache-2.0
 *
 * evict: rmdir on records, as rm -r would do it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"

struct record {
	char name[128];
	uint64_t consumed; /* deeper ones go first: they have no children left then */
	long long used;    /* seconds; older first */
	uint64_t bytes;
};

struct outcome {
	uint64_t evicted, bytes, refused;
};

static int by_depth(const void *a, const void *b)
{
	const struct record *x = a, *y = b;

	return x->consumed < y->consumed ? 1 : x->consumed > y->consumed ? -1 : strcmp(x->name, y->name);
}

static int by_age(const void *a, const void *b)
{
	const struct record *x = a, *y = b;

	if (x->used != y->used)
		return x->used < y->used ? -1 : 1;
	return by_depth(a, b);
}

/* What its header says about itself. */
static void read_header(const char *records, struct record *r)
{
	static const char *const sizes[] = {"page bytes", "page_bytes", "row bytes", "row_bytes"};
	static const char *const ages[] = {"last use", "last_use", "last_use_s"};
	char path[PATH_MAX], *text, *value;

	if (host_path(path, "%s/%s/header", records, r->name))
		return;
	text = host_read_file(path, NULL);
	if (!text)
		return;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		value = host_line(text, sizes[i]);
		if (value)
			r->bytes += strtoull(value, NULL, 10);
		free(value);
	}
	for (unsigned i = 0; i < sizeof(ages) / sizeof(ages[0]); i++) {
		value = host_line(text, ages[i]);
		if (value)
			r->used = strtoll(value, NULL, 10);
		free(value);
	}
	free(text);
}

static int list_records(const char *path, bool headers, struct record **ret, size_t *ret_count)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	struct record *list = NULL;
	size_t count = 0, room = 0;

	if (!dir && errno == ENOENT)
		return complain("%s: the namespace has no layout yet, and so no records", path);
	if (!dir)
		return complain("%s: %s", path, strerror(errno));
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(list->name))
			continue;
		if (count == room) {
			struct record *p = realloc(list, (room ? room * 2 : 1024) * sizeof(*p));

			if (!p) {
				free(list);
				closedir(dir);
				return complain("no memory for %zu records", room * 2);
			}
			list = p;
			room = room ? room * 2 : 1024;
		}
		list[count] = (struct record){.consumed = strtoull(entry->d_name, NULL, 16)};
		memcpy(list[count].name, entry->d_name, strlen(entry->d_name) + 1);
		if (headers)
			read_header(path, &list[count]);
		count++;
	}
	closedir(dir);
	*ret = list;
	*ret_count = count;
	return 0;
}

static bool evict_one(const char *records, const char *name)
{
	char path[PATH_MAX];

	return !host_path(path, "%s/%s", records, name) && !rmdir(path);
}

/* Turns over the list while that helps: a record with children goes once they are gone. */
static void evict_list(const char *records, struct record *list, size_t count, uint64_t goal, struct outcome *out)
{
	struct progress progress;
	bool again = true;

	progress_start(&progress, "evicting", count);
	while (again && out->bytes < goal) {
		again = false;
		out->refused = 0;
		for (size_t i = 0; i < count && out->bytes < goal; i++) {
			if (!list[i].name[0])
				continue;
			if (evict_one(records, list[i].name)) {
				out->evicted++;
				out->bytes += list[i].bytes ? list[i].bytes : 1;
				again = true;
			} else if (errno != ENOENT) {
				out->refused++;
				continue;
			}
			list[i].name[0] = '\0';
			progress_show(&progress, out->evicted);
		}
	}
	progress_end(&progress);
}

int command_evict(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false, all = false;
	uint64_t bytes = 0;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"all", OPTION_FLAG, &all, NULL, "every record that is not in use", 0, 0},
		{"bytes", OPTION_BYTES, &bytes, "SIZE", "those unused for longest, until so much went", 1, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	struct outcome out = {0};
	struct record *list = NULL;
	char records[PATH_MAX];
	size_t count = 0;
	int r = 0;

	options_read(self, rows, &argc, argv);
	if (argc < 1)
		return usage_error(self, "a namespace is needed");
	if ((argc > 1) + all + (bytes > 0) > 1)
		return usage_error(self, "record names, --all and --bytes exclude each other: give one of them");
	if (argc == 1 && !all && bytes == 0)
		return usage_error(self, "one of record names, --all and --bytes is needed");
	mount = host_mount(mount);
	if (!mount || host_namespace(records, mount, argv[0], "/records"))
		return 1;
	if (argc > 1) {
		for (int i = 1; i < argc; i++) {
			char path[PATH_MAX];

			if (host_record(path, records, argv[i]))
				r = 1;
			else if (!rmdir(path))
				out.evicted++;
			else
				r = complain("%s: %s", argv[i],
					errno == ENOTEMPTY ? "other records descend from it"
					: errno == EBUSY   ? "in use or pinned"
					: errno == ENOENT  ? "no such record"
							   : strerror(errno));
		}
		out.refused = (uint64_t)(argc - 1) - out.evicted;
	} else {
		if (list_records(records, bytes > 0, &list, &count))
			return 1;
		if (count > 0)
			qsort(list, count, sizeof(*list), all ? by_depth : by_age);
		evict_list(records, list, count, all ? UINT64_MAX : bytes, &out);
		free(list);
		if (bytes > 0 && out.bytes < bytes)
			r = complain("only %llu of %llu bytes could go", (unsigned long long)out.bytes,
				(unsigned long long)bytes);
	}
	show_object(
		json_pack("{s:I, s:I}", "evicted", (json_int_t)out.evicted, "refused", (json_int_t)out.refused), json);
	return r;
}
