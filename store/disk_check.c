/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check: a record directory that no daemon has, looked at and put right (docs/disk.md, docs/on-disk-format.md).
 */
#include "store/disk_check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "index/space_json.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

#define CHECK_WORKERS 4u
#define CHECK_END_NS 10000000000ull /* for what the workers have begun */

/* ---- what is told ---------------------------------------------------------------------------------------------------- */

void check_tell(struct check *check, const struct check_space *space, const char *file, const char *format, ...)
{
	char path[4096], what[600];
	va_list arguments;

	if (!check->finding)
		return;
	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	snprintf(path, sizeof(path), "%s/%s%s%s", check->path, space ? space->folder : "", space ? "/" : "", file);
	check->finding(check->context, path, what);
}

bool check_go_on(struct check *check)
{
	uint64_t now = clock_now_ns();

	lock_assert_none_held();
	if (!check->progress || check->stopped || now - check->told_ns < CHECK_NS)
		return !check->stopped;
	check->told_ns = now;
	check->stopped = !check->progress(check->context, check->done < check->goal ? check->done : check->goal, check->goal);
	return !check->stopped;
}

/* ---- which folders are namespaces -------------------------------------------------------------------------------------- */

/* Calls @space for each namespace's folder, in order of names; an error from it ends it. */
static int each_space(struct check *check, int (*space)(struct check *check, const char *folder, int fd, struct why *why), struct why *why)
{
	struct dirent **names = NULL;
	int count = scandir(check->path, &names, NULL, alphasort), r = 0;

	if (count < 0)
		return why_set(why, errno, "%s cannot be listed: %s", check->path, strerrordesc_np(errno));
	for (int i = 0; i < count; i++) {
		char path[4096];

		snprintf(path, sizeof(path), "%s/%s", check->path, names[i]->d_name);
		cleanup(closep) int fd = r || !disk_is_folder(names[i]->d_name) ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd >= 0)
			r = space(check, names[i]->d_name, fd, why);
		else if (!r && disk_is_folder(names[i]->d_name) && errno != ENOTDIR && errno != ELOOP)
			check_tell(check, NULL, names[i]->d_name, "the folder cannot be opened: %s", strerrordesc_np(errno));
		free(names[i]);
	}
	free(names);
	return r;
}

static int survey(struct check *check, const char *folder, int fd, struct why *why)
{
	uint64_t files = 0, bytes = 0;

	(void)folder;
	(void)why;
	check_survey(fd, &files, &bytes);
	check->goal += check->options->values ? bytes : files;
	return 0;
}

/* ---- one namespace ----------------------------------------------------------------------------------------------------- */

static char *read_json(int fd, size_t *bytes, struct why *why)
{
	cleanup(closep) int file = openat(fd, "namespace.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	cleanup(freep) char *text = malloc(SPACE_JSON_MOST + 1);
	ssize_t n = 1;

	*bytes = 0;
	if (file < 0) {
		why_set(why, errno, "it cannot be opened: %s", strerrordesc_np(errno));
		return NULL;
	}
	while (text && n > 0 && *bytes <= SPACE_JSON_MOST) {
		n = read(file, text + *bytes, SPACE_JSON_MOST + 1 - *bytes);
		*bytes += n > 0 ? (size_t)n : 0;
	}
	if (n < 0 || !text) {
		why_set(why, text ? errno : ENOMEM, "it cannot be read: %s", strerrordesc_np(text ? errno : ENOMEM));
		return NULL;
	}
	return STEAL(text);
}

/* What the namespace was made from, if that can be believed; else the sentence. */
static struct layout *read_layout(const char *folder, int fd, struct why *why)
{
	struct space_json json = {0};
	struct layout *layout = NULL;
	char name[DISK_DIR_NAME_BYTES];
	size_t bytes;
	cleanup(freep) char *text = read_json(fd, &bytes, why);

	if (!text || space_json_read(text, bytes, &json, why))
		return NULL;
	if (layout_parse(json.layout, strlen(json.layout), &layout, why)) {
		free(json.layout);
		return NULL;
	}
	free(json.layout);
	disk_dir_name(name, layout);
	if (strcmp(name, folder)) {
		why_set(why, EINVAL, "its layout belongs in the folder %s", name);
		layout_free(&layout);
	}
	return layout;
}

static int take_columns(struct check_space *s, struct why *why)
{
	const struct layout *l = s->layout;

	s->slot_bytes = calloc(l->page_columns + l->row_columns + 1, sizeof(*s->slot_bytes));
	if (!s->slot_bytes)
		return why_set(why, ENOMEM, "no memory to check %s", s->folder);
	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t i = 0; i < l->class[c].shares; i++)
			s->slot_bytes[layout_column(l, c, i) + (layout_is_row(l, c) ? l->page_columns : 0)] =
				l->class[c].share[i].slot_bytes;
	return 0;
}

static int check_space(struct check *check, const char *folder, int fd, struct why *why)
{
	struct check_space s = {.check = check, .folder = folder};
	struct why damaged = WHY_INIT;
	int r;

	if (disk_is_unmade(fd)) {
		check_unmade(check, folder);
		return 0;
	}
	s.layout = read_layout(folder, fd, &damaged);
	if (!s.layout) {
		check->report->unreadable++;
		check_tell(check, &s, "namespace.json",
			"%s; without it nothing in the folder can be checked, repaired or rebuilt, and all of it is left alone",
			damaged.text);
		return 0;
	}
	check->report->namespaces++;
	r = take_columns(&s, why);
	r = r ? r : check_oddities(&s, fd, why);
	r = r ? r : disk_dir_open(check->disk, s.layout, NULL, &s.dir, why);
	r = r ? r : check_files(&s, why);
	r = r ? r : check_catalogue(&s, why);
	disk_dir_close(&s.dir, false);
	free(s.files);
	free(s.table);
	free(s.slot_bytes);
	layout_free(&s.layout);
	return r;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------------- */

int disk_check(const char *path, const struct disk_check_options *options, bool (*progress)(void *context, uint64_t done, uint64_t goal),
	       void (*finding)(void *context, const char *file, const char *what), void *context, struct disk_check_report *ret,
	       struct why *why)
{
	struct disk_config config = {
		.path = path,
		.workers = CHECK_WORKERS,
		.durability = DISK_DURABILITY_DATA,
		.uring = true,
		.ops = options->ops,
		.look_only = true, /* what there is to remove is found and counted here */
	};
	struct check check = {
		.options = options, .report = ret, .progress = progress, .finding = finding, .context = context, .path = path};
	int r;

	lock_assert_none_held();
	memset(ret, 0, sizeof(*ret));
	r = disk_new(&config, &check.disk, why);
	if (r)
		return r;
	r = each_space(&check, survey, why);
	r = r ? r : each_space(&check, check_space, why);
	disk_free(&check.disk, CHECK_END_NS);
	if (!r && progress)
		progress(context, check.goal, check.goal);
	return r;
}
