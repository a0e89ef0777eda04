/* SPDX-License-Identifier: Apache-2.0 */
#include "index/space_json.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *space_json_make(const struct space_json *space)
{
	json_t *layout = json_loads(space->layout, 0, NULL);
	json_t *all = layout ? json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "version", SPACE_JSON_VERSION, "name", space->name,
					 "mode", (json_int_t)space->mode, "uid", (json_int_t)space->uid, "gid",
					 (json_int_t)space->gid, "floor", (json_int_t)space->floor_bytes, "generation",
					 (json_int_t)space->generation, "layout", layout) :
			       NULL;
	char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;

	json_decref(all);
	return text;
}

static int read_fields(json_t *all, struct space_json *ret, struct why *why)
{
	json_int_t version = 0, mode = 0, uid = 0, gid = 0, floor = 0, generation = 1;
	const char *name = NULL;
	json_t *layout = NULL;
	json_error_t error;

	if (json_unpack_ex(all, &error, 0, "{s:I, s:s, s:I, s:I, s:I, s?I, s?I, s:o}", "version", &version, "name", &name, "mode", &mode,
			   "uid", &uid, "gid", &gid, "floor", &floor, "generation", &generation, "layout", &layout))
		return why_set(why, EINVAL, "namespace.json: %s", error.text);
	if (version > SPACE_JSON_VERSION)
		return why_set(why, ENOTSUP, "namespace.json: version %lld is newer than %d", (long long)version, SPACE_JSON_VERSION);
	if (version < 1 || mode < 0 || mode > 07777 || uid < 0 || uid > UINT32_MAX || gid < 0 || gid > UINT32_MAX ||
	    floor < 0 || generation < 1)
		return why_set(why, EINVAL, "namespace.json: version, mode, uid, gid, floor or generation is out of its limits");
	if (strlen(name) >= sizeof(ret->name))
		return why_set(why, EINVAL, "namespace.json: the name has %zu bytes; the limit is %zu", strlen(name), sizeof(ret->name) - 1);
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	ret->mode = (uint32_t)mode;
	ret->uid = (uint32_t)uid;
	ret->gid = (uint32_t)gid;
	ret->floor_bytes = (uint64_t)floor;
	ret->generation = (uint64_t)generation;
	ret->layout = json_dumps(layout, JSON_COMPACT);
	return ret->layout ? 0 : why_set(why, ENOMEM, "namespace.json: no memory");
}

int space_json_read(const char *text, size_t bytes, struct space_json *ret, struct why *why)
{
	json_error_t error;
	json_t *all;
	int r;

	memset(ret, 0, sizeof(*ret));
	if (bytes > SPACE_JSON_MOST)
		return why_set(why, EINVAL, "namespace.json: %zu bytes are over the limit of %u", bytes, SPACE_JSON_MOST);
	all = json_loadb(text, bytes, 0, &error);
	if (!all)
		return why_set(why, EINVAL, "namespace.json: line %d: %s", error.line, error.text);
	r = read_fields(all, ret, why);
	json_decref(all);
	return r;
}
