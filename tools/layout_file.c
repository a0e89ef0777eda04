/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/layout_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/host.h"

#define PLANES_MAX 4096u

int layout_wish_check(const struct command *command, const struct layout_wish *wish)
{
	if (wish->file && wish->model)
		return usage_error(command, "--layout and --model exclude each other: give one of them");
	if (wish->model && strchr(wish->model, '/'))
		return usage_error(command, "--model is '%s', not the name of a layout that comes along; --layout takes a file",
			wish->model);
	if ((wish->tp || wish->one_rank) && !wish->model)
		return usage_error(command, "--%s goes with --model", wish->tp ? "tp" : "one-rank");
	if ((wish->plane_divisor || wish->floor_bytes) && !wish->model && !wish->file)
		return usage_error(command, "--%s goes with --model or --layout",
			wish->plane_divisor ? "plane-divisor" : "floor");
	return 0;
}

static int find_model(const struct layout_wish *wish, char path[PATH_MAX])
{
	/* From the build folder, and from an installed program. */
	static const char *const places[] = {"tools/layouts", "../share/prefixfs/layouts"};
	char folder[PATH_MAX];

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		if (host_path(folder, "%s/%s", host_program_folder(), places[i]))
			return 1;
		if (wish->tp) {
			if (host_path(path, "%s/%s-tp%llu.json", folder, wish->model, (unsigned long long)wish->tp))
				return 1;
			if (!access(path, R_OK))
				return 0;
		}
		for (unsigned tp = 1; tp <= 64 && !wish->tp; tp *= 2) {
			if (host_path(path, "%s/%s-tp%u.json", folder, wish->model, tp))
				return 1;
			if (!access(path, R_OK))
				return 0;
		}
	}
	if (wish->tp)
		return complain("no layout of %s at TP %llu comes along; tools/make_layout.py makes one", wish->model,
			(unsigned long long)wish->tp);
	return complain("no layout of %s comes along; tools/make_layout.py makes one", wish->model);
}

static int divide_planes(json_t *planes, uint64_t divisor)
{
	json_t *plane;
	size_t i;

	json_array_foreach(planes, i, plane)
	{
		json_int_t bytes = json_integer_value(json_object_get(plane, "bytes"));
		const char *name = json_string_value(json_object_get(plane, "name"));

		if (bytes <= 0 || (uint64_t)bytes % divisor)
			return complain("--plane-divisor is %llu, which does not divide the %lld bytes of plane %s",
				(unsigned long long)divisor, (long long)bytes, name ? name : "?");
		json_object_set_new(plane, "bytes", json_integer((json_int_t)((uint64_t)bytes / divisor)));
	}
	return 0;
}

/* What the layout's `memory` says otherwise stays. */
static void set_memory(json_t *layout, const struct layout_wish *wish)
{
	json_t *memory = json_object_get(layout, "memory");

	if (!json_is_object(memory)) {
		memory = json_object();
		json_object_set_new(layout, "memory", memory);
	}
	if (wish->floor_bytes)
		json_object_set_new(memory, "floor", json_integer((json_int_t)wish->floor_bytes));
	if (wish->blobs_bytes)
		json_object_set_new(memory, "blobs", json_pack("{s:I}", "bytes", (json_int_t)wish->blobs_bytes));
}

static int reshape(json_t *layout, const struct layout_wish *wish)
{
	json_t *classes = json_object_get(layout, "classes"), *class, *planes;
	size_t i, k;

	json_array_foreach(classes, i, class)
	{
		json_t *per_share = json_object_get(class, "share_planes");

		if (wish->one_rank) {
			json_object_del(class, "share_of_rank");
			if (per_share) {
				json_object_set(class, "planes", json_array_get(per_share, 0));
				json_object_del(class, "share_planes");
				per_share = NULL;
			}
		}
		if (wish->plane_divisor > 1) {
			if (divide_planes(json_object_get(class, "planes"), wish->plane_divisor))
				return 1;
			json_array_foreach(
				per_share, k, planes) if (divide_planes(planes, wish->plane_divisor)) return 1;
		}
	}
	if (wish->one_rank)
		json_object_set_new(layout, "world", json_integer(1));
	if (wish->floor_bytes || wish->blobs_bytes)
		set_memory(layout, wish);
	return 0;
}

json_t *layout_load(const struct layout_wish *wish)
{
	char path[PATH_MAX], *text;
	json_error_t error;
	json_t *file, *layout;
	size_t bytes;

	if (wish->file)
		snprintf(path, sizeof(path), "%s", wish->file);
	else if (find_model(wish, path))
		return NULL;
	text = host_read_file(path, &bytes);
	if (!text) {
		complain("layout %s: %s", path, strerror(errno));
		return NULL;
	}
	file = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	free(text);
	if (!file) {
		complain("layout %s is no JSON: line %d: %s", path, error.line, error.text);
		return NULL;
	}
	/* Those that come along are wrapped: their sources stand beside the layout. */
	layout = json_object_get(file, "layout");
	layout = json_incref(layout ? layout : file);
	json_decref(file);
	if (reshape(layout, wish)) {
		json_decref(layout);
		return NULL;
	}
	return layout;
}

/* The daemon's own sentence stands beside the layout. */
static int say_refusal(const char *path, const char *otherwise)
{
	char reason[PATH_MAX], *text = NULL;

	if (!host_path(reason, "%s.error", path))
		text = host_read_file(reason, NULL);
	if (text)
		text[strcspn(text, "\n")] = '\0';
	complain("%s: the layout was refused: %s", path, text && *text ? text : otherwise);
	free(text);
	return 1;
}

/* A folder without a layout ends with its serving process; so often is one made again. */
#define TRIES 5u

static bool is_lost(int error)
{
	return error == ENOENT || error == ESTALE;
}

/* Writes the layout in one piece: it is judged there, and the namespace exists or does not. -EAGAIN: the folder of it is gone. */
static int write_layout(const char *path, const char *text)
{
	size_t bytes = strlen(text);
	int fd = open(path, O_WRONLY | O_CLOEXEC), r = 0;

	if (fd < 0)
		return is_lost(errno) ? -EAGAIN : complain("%s: %s", path, strerror(errno));
	ssize_t n = write(fd, text, bytes);

	if (n < 0 && is_lost(errno))
		r = -EAGAIN;
	else if (n != (ssize_t)bytes)
		r = say_refusal(path, n < 0 ? strerror(errno) : "not all was taken");
	close(fd);
	return r;
}

static int say_mkdir(const char *mount, const char *name, int error)
{
	char path[PATH_MAX], *text = NULL, *most = NULL;

	if (error == EEXIST)
		return complain("namespace %s exists in %s", name, mount);
	if (error == ENOSPC && !host_path(path, "%s/config", mount))
		text = host_read_file(path, NULL);
	if (text)
		most = host_line(text, "max_namespaces");
	if (most)
		complain("namespace %s: %s has as many as it may have: %s namespaces at most (max_namespaces)", name,
			mount, most);
	else
		complain("%s/ns/%s: %s", mount, name, strerror(error));
	free(most);
	free(text);
	return 1;
}

/* Folder and layout, once. */
static int make_namespace(const char *mount, const char *name, const char *path, const char *text, unsigned mode)
{
	char file[PATH_MAX];

	if (host_path(file, "%s/layout", path))
		return 1;
	if (mkdir(path, mode == LAYOUT_MODE_DEFAULT ? 0755 : 0700))
		return say_mkdir(mount, name, errno);
	int r = write_layout(file, text);

	/* mkdir obeys the umask and drops the setgid bit. Not before the layout: the mode may be one that forbids it. */
	if (!r && mode != LAYOUT_MODE_DEFAULT && chmod(path, mode))
		r = complain("%s: mode %04o: %s", path, mode, strerror(errno));
	if (r && r != -EAGAIN)
		rmdir(path);
	return r;
}

int layout_create(const char *mount, const char *name, const struct layout_wish *wish, unsigned mode)
{
	char path[PATH_MAX];
	json_t *layout = layout_load(wish);
	char *text = layout ? json_dumps(layout, JSON_COMPACT) : NULL;
	int r = -EAGAIN;

	json_decref(layout);
	if (!layout)
		return 1;
	if (!text)
		return complain("no memory for the layout");
	if (host_new_namespace(path, mount, name))
		r = 1;
	for (unsigned i = 0; i < TRIES && r == -EAGAIN; i++)
		r = make_namespace(mount, name, path, text, mode);
	if (r == -EAGAIN)
		r = complain("%s: the serving process died %u times while it was made; see %s/health", path, TRIES, mount);
	free(text);
	return r;
}

/* ---- views ------------------------------------------------------------------------------------------------------ */

static int class_view(const json_t *class, uint64_t page_tokens, struct layout_class *ret)
{
	const json_t *planes = json_object_get(class, "planes"), *plane;
	const char *name = json_string_value(json_object_get(class, "name"));
	const char *kind = json_string_value(json_object_get(class, "kind"));
	uint64_t every = (uint64_t)json_integer_value(json_object_get(class, "every"));
	size_t i;

	if (!planes)
		planes = json_array_get(json_object_get(class, "share_planes"), 0);
	snprintf(ret->name, sizeof(ret->name), "%s", name ? name : "");
	snprintf(ret->kind, sizeof(ret->kind), "%s", kind ? kind : "dense");
	ret->every = every ? every : page_tokens;
	ret->plane_bytes = calloc(PLANES_MAX, sizeof(*ret->plane_bytes));
	if (!ret->plane_bytes)
		return complain("no memory");
	json_array_foreach(planes, i, plane)
	{
		const json_t *count = json_object_get(plane, "count");
		uint64_t n = count ? (uint64_t)json_integer_value(count) : 1;
		uint64_t bytes = (uint64_t)json_integer_value(json_object_get(plane, "bytes"));

		if (n > PLANES_MAX - ret->planes)
			return complain("class %s has more than %u planes", ret->name, PLANES_MAX);
		for (uint64_t k = 0; k < n; k++)
			ret->plane_bytes[ret->planes++] = bytes;
		ret->payload_bytes += n * bytes;
	}
	return 0;
}

int layout_view_of(const json_t *layout, struct layout_view *ret)
{
	const json_t *classes = json_object_get(layout, "classes"), *class;
	struct layout_view view = {0};
	size_t i;

	view.world = (uint64_t)json_integer_value(json_object_get(layout, "world"));
	view.page_tokens = (uint64_t)json_integer_value(json_object_get(layout, "page_tokens"));
	if (json_array_size(classes) == 0 || json_array_size(classes) > LAYOUT_CLASSES || !view.page_tokens)
		return complain("the layout has %zu classes and pages of %llu tokens", json_array_size(classes),
			(unsigned long long)view.page_tokens);
	json_array_foreach(classes, i, class)
	{
		view.classes++;
		if (class_view(class, view.page_tokens, &view.class[i])) {
			layout_view_free(&view);
			return 1;
		}
	}
	*ret = view;
	return 0;
}

int layout_view_read(const char *mount, const char *name, struct layout_view *ret)
{
	char path[PATH_MAX], *text;
	json_error_t error;
	json_t *layout;
	size_t bytes;
	int r;

	if (host_namespace(path, mount, name, "/layout"))
		return 1;
	text = host_read_file(path, &bytes);
	if (!text)
		return complain("%s: %s", path, strerror(errno));
	layout = json_loadb(text, bytes, 0, &error);
	free(text);
	if (!layout && bytes == 0)
		return complain("namespace %s has no layout yet: write one to %s", name, path);
	if (!layout)
		return complain("%s: %s", path, error.text);
	r = layout_view_of(layout, ret);
	json_decref(layout);
	return r;
}

void layout_view_free(struct layout_view *view)
{
	for (uint32_t i = 0; i < view->classes; i++)
		free(view->class[i].plane_bytes);
	*view = (struct layout_view){0};
}
