/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON to struct layout and back. Reading is strict: a member that is missing, unknown, repeated, of another type or
 * out of its range is refused by name, with its value and the limit.
 */
#include "index/layout_json.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"

#define PATH_BYTES 160

const char *const layout_identity_names[LAYOUT_IDENTITY_MEMBERS] = {
	"adapters",
	"engine",
	"execution",
	"hash",
	"hash_seed",
	"isolation",
	"kv_dtype",
	"model",
	"revision",
};

static const char *const kind_names[] = {
	[VALUE_DENSE] = "dense",
	[VALUE_WINDOW] = "window",
	[VALUE_STATE] = "state",
};

static void json_free(json_t **json)
{
	json_decref(*json);
}

/* ---- members --------------------------------------------------------------------------------------------------- */

/* An object and where it stands, for sentences: "" or "classes[2]." */
struct node {
	json_t *json;
	char path[PATH_BYTES];
	struct why *why;
};

__attribute__((format(printf, 3, 4))) static struct node node_at(
	const struct node *above, json_t *json, const char *format, ...)
{
	struct node n = {.json = json, .why = above->why};
	char step[PATH_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(step, sizeof(step), format, args);
	va_end(args);
	size_t used = strlen(above->path);

	if (used + strlen(step) + 1 < sizeof(n.path)) {
		memcpy(n.path, above->path, used);
		memcpy(n.path + used, step, strlen(step) + 1);
	}
	return n;
}

static const char *type_name(const json_t *json)
{
	switch (json ? json_typeof(json) : JSON_NULL) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "a list";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a fraction";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_NULL:
		break;
	}
	return "null";
}

static int missing(const struct node *n, const char *name)
{
	return why_set(n->why, EINVAL, "%s%s is missing", n->path, name);
}

static int wrong_type(const struct node *n, const char *name, const json_t *json, const char *wanted)
{
	return why_set(n->why, EINVAL, "%s%s is %s; it must be %s", n->path, name, type_name(json), wanted);
}

/* @names ends in NULL. */
static int only_members(const struct node *n, const char *const *names)
{
	const char *name;
	json_t *value;

	json_object_foreach(n->json, name, value)
	{
		const char *const *known = names;

		while (*known && strcmp(*known, name))
			known++;
		if (!*known)
			return why_set(n->why, EINVAL, "%s%.64s is no member of a layout (version 1)", n->path, name);
	}
	return 0;
}

static int as_number(
	const struct node *n, const char *name, const json_t *json, uint64_t least, uint64_t most, uint64_t *ret)
{
	if (!json_is_integer(json))
		return wrong_type(n, name, json, "an integer");
	json_int_t v = json_integer_value(json);

	if (v < 0 || (uint64_t)v < least || (uint64_t)v > most)
		return why_set(n->why, EINVAL, "%s%s is %lld; it must be from %llu to %llu", n->path, name,
			(long long)v, (unsigned long long)least, (unsigned long long)most);
	*ret = (uint64_t)v;
	return 0;
}

static int get_number(const struct node *n, const char *name, uint64_t least, uint64_t most, uint64_t *ret)
{
	const json_t *json = json_object_get(n->json, name);

	return json ? as_number(n, name, json, least, most, ret) : missing(n, name);
}

/* *ret keeps its value when the member is missing. */
static int get_number_or(const struct node *n, const char *name, uint64_t least, uint64_t most, uint64_t *ret)
{
	const json_t *json = json_object_get(n->json, name);

	return json ? as_number(n, name, json, least, most, ret) : 0;
}

static int get_list(const struct node *n, const char *name, size_t least, size_t most, json_t **ret)
{
	json_t *json = json_object_get(n->json, name);

	if (!json)
		return missing(n, name);
	if (!json_is_array(json))
		return wrong_type(n, name, json, "a list");
	if (json_array_size(json) < least || json_array_size(json) > most)
		return why_set(n->why, EINVAL, "%s%s has %zu elements; it must have from %zu to %zu", n->path, name,
			json_array_size(json), least, most);
	*ret = json;
	return 0;
}

static int get_object(const struct node *n, const char *name, json_t **ret)
{
	json_t *json = json_object_get(n->json, name);

	if (!json)
		return missing(n, name);
	if (!json_is_object(json))
		return wrong_type(n, name, json, "an object");
	*ret = json;
	return 0;
}

/* A name that may stand in a path: [A-Za-z0-9._-], shorter than LAYOUT_MAX_NAME. */
static int get_name(const struct node *n, char ret[LAYOUT_MAX_NAME])
{
	const json_t *json = json_object_get(n->json, "name");
	const char *text = json_string_value(json);

	if (!json)
		return missing(n, "name");
	if (!text)
		return wrong_type(n, "name", json, "a string");
	size_t length = json_string_length(json);

	if (length == 0 || length >= LAYOUT_MAX_NAME)
		return why_set(n->why, EINVAL, "%sname has %zu bytes; it must have from 1 to %u", n->path, length,
			LAYOUT_MAX_NAME - 1);
	size_t good = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	if (good != length)
		return why_set(n->why, EINVAL,
			"%sname has byte %#x at %zu; only A-Z, a-z, 0-9, '.', '_', '-' are allowed", n->path,
			(unsigned char)text[good], good);
	memcpy(ret, text, length + 1);
	return 0;
}

/* ---- identity -------------------------------------------------------------------------------------------------- */

static int read_identity(const struct node *top, char *identity[LAYOUT_IDENTITY_MEMBERS])
{
	json_t *json = NULL;
	int error = get_object(top, "identity", &json);

	if (error)
		return error;
	struct node n = node_at(top, json, "identity.");
	const char *names[LAYOUT_IDENTITY_MEMBERS + 1] = {NULL};

	for (unsigned i = 0; i < LAYOUT_IDENTITY_MEMBERS; i++)
		names[i] = layout_identity_names[i];
	error = only_members(&n, names);
	for (unsigned i = 0; i < LAYOUT_IDENTITY_MEMBERS && !error; i++) {
		const json_t *member = json_object_get(json, names[i]);
		bool model = !strcmp(names[i], "model");

		if (!member && model)
			return missing(&n, "model");
		if (member && !json_is_string(member))
			return wrong_type(&n, names[i], member, "a string");
		size_t length = json_string_length(member);

		if (length > LAYOUT_MAX_TEXT || (model && !length))
			return why_set(top->why, EINVAL, "identity.%s has %zu bytes; it must have from %u to %u",
				names[i], length, model, LAYOUT_MAX_TEXT);
		identity[i] = strdup(member ? json_string_value(member) : "");
		if (!identity[i])
			error = why_set(top->why, ENOMEM, "no memory for identity.%s", names[i]);
	}
	return error;
}

/* ---- classes --------------------------------------------------------------------------------------------------- */

static int read_plane(const struct node *n, struct plane *plane)
{
	static const char *const names[] = {"name", "count", "bytes", NULL};
	uint64_t count = 1;

	if (!json_is_object(n->json))
		return why_set(n->why, EINVAL, "%.*s is %s; it must be an object", (int)strlen(n->path) - 1, n->path,
			type_name(n->json));
	int error = only_members(n, names);

	if (!error)
		error = get_name(n, plane->name);
	if (!error)
		error = get_number_or(n, "count", 1, LAYOUT_MAX_PLANES, &count);
	if (!error)
		error = get_number(n, "bytes", 1, LAYOUT_MAX_VALUE, &plane->bytes);
	plane->count = (uint32_t)count;
	return error;
}

static int read_planes(const struct node *n, const char *name, json_t *list, struct share *share)
{
	size_t size = json_array_size(list);
	int error = 0;

	share->planes = calloc(size, sizeof(*share->planes));
	if (!share->planes)
		return why_set(n->why, ENOMEM, "no memory for %zu planes", size);
	share->plane_kinds = (uint32_t)size;
	for (size_t i = 0; i < size && !error; i++) {
		struct node plane = node_at(n, json_array_get(list, i), "%s[%zu].", name, i);

		error = read_plane(&plane, &share->planes[i]);
	}
	return error;
}

static int read_share_planes(const struct node *n, struct value_class *class)
{
	bool one = json_object_get(n->json, "planes"), each = json_object_get(n->json, "share_planes");
	json_t *list = NULL;

	if (one == each)
		return why_set(n->why, EINVAL, "%splanes and %sshare_planes are %s; exactly one must be given", n->path,
			n->path, one ? "both given" : "both missing");
	int error = one ? get_list(n, "planes", 1, LAYOUT_MAX_PLANES, &list)
	                : get_list(n, "share_planes", class->shares, class->shares, &list);

	for (uint32_t s = 0; s < class->shares && !error; s++) {
		char name[32] = "planes";
		json_t *planes = list;

		if (each) {
			snprintf(name, sizeof(name), "share_planes[%u]", s);
			planes = json_array_get(list, s);
			if (!json_is_array(planes))
				return wrong_type(n, name, planes, "a list");
			if (!json_array_size(planes) || json_array_size(planes) > LAYOUT_MAX_PLANES)
				return why_set(n->why, EINVAL, "%s%s has %zu elements; it must have from 1 to %u",
					n->path, name, json_array_size(planes), LAYOUT_MAX_PLANES);
		}
		error = read_planes(n, name, planes, &class->share[s]);
	}
	return error;
}

static int read_share_of_rank(const struct node *n, struct layout *layout, uint32_t c)
{
	struct value_class *class = &layout->class[c];
	bool used[LAYOUT_MAX_SHARES] = {false};
	json_t *list = NULL;

	if (!json_object_get(n->json, "share_of_rank")) {
		if (layout->world > LAYOUT_MAX_SHARES)
			return why_set(n->why, EINVAL,
				"%sshare_of_rank is missing; a share for each of %u ranks is over the "
				"limit of %u shares",
				n->path, layout->world, LAYOUT_MAX_SHARES);
		class->shares = layout->world;
		for (uint32_t rank = 0; rank < layout->world; rank++)
			layout->share_of_rank[rank][c] = (uint16_t)rank;
		return 0;
	}
	int error = get_list(n, "share_of_rank", layout->world, layout->world, &list);

	for (uint32_t rank = 0; rank < layout->world && !error; rank++) {
		char name[32];
		uint64_t share = 0;

		snprintf(name, sizeof(name), "share_of_rank[%u]", rank);
		error = as_number(n, name, json_array_get(list, rank), 0, LAYOUT_MAX_SHARES - 1, &share);
		if (error)
			break;
		layout->share_of_rank[rank][c] = (uint16_t)share;
		used[share] = true;
		if (share >= class->shares)
			class->shares = (uint32_t)share + 1;
	}
	for (uint32_t s = 0; s < class->shares && !error; s++)
		if (!used[s])
			error = why_set(n->why, EINVAL,
				"%sshare_of_rank gives share %u to no rank; shares 0 to %u must have one", n->path, s,
				class->shares - 1);
	return error;
}

static int read_kind(const struct node *n, struct value_class *class)
{
	const json_t *json = json_object_get(n->json, "kind");

	if (!json)
		return missing(n, "kind");
	if (!json_is_string(json))
		return wrong_type(n, "kind", json, "a string");
	for (unsigned k = 0; k < sizeof(kind_names) / sizeof(kind_names[0]); k++)
		if (!strcmp(json_string_value(json), kind_names[k])) {
			class->kind = (enum value_kind)k;
			return 0;
		}
	return why_set(n->why, EINVAL, "%skind is \"%.64s\"; it must be dense, window or state", n->path,
		json_string_value(json));
}

/* `every`, `sink` and `last`, where they belong. */
static int read_extent(const struct node *n, const struct layout *layout, struct value_class *class)
{
	uint64_t every = layout->page_tokens, sink = 0, last = 0;
	int error = 0;

	if (class->kind == VALUE_STATE && json_object_get(n->json, "every"))
		return why_set(n->why, EINVAL, "%severy does not go with kind state", n->path);
	if (class->kind != VALUE_WINDOW && (json_object_get(n->json, "sink") || json_object_get(n->json, "last")))
		return why_set(n->why, EINVAL, "%ssink and %slast go with kind window only", n->path, n->path);
	error = get_number_or(n, "every", 1, (uint64_t)LAYOUT_MAX_PAGE_TOKENS * 65536, &every);
	if (!error && every % layout->page_tokens)
		error = why_set(n->why, EINVAL, "%severy is %llu; it must be a multiple of page_tokens, %u", n->path,
			(unsigned long long)every, layout->page_tokens);
	if (!error && class->kind == VALUE_WINDOW)
		error = get_number_or(n, "sink", 0, UINT32_MAX, &sink);
	if (!error && class->kind == VALUE_WINDOW)
		error = get_number(n, "last", 1, UINT32_MAX, &last);
	class->every_pages = (uint32_t)(every / layout->page_tokens);
	class->sink = (uint32_t)sink;
	class->last = (uint32_t)last;
	return error;
}

static int read_class(const struct node *n, struct layout *layout, uint32_t c)
{
	static const char *const names[] = {
		"name", "kind", "every", "sink", "last", "share_of_rank", "planes", "share_planes", NULL};
	struct value_class *class = &layout->class[c];

	if (!json_is_object(n->json))
		return why_set(n->why, EINVAL, "classes[%u] is %s; it must be an object", c, type_name(n->json));
	int error = only_members(n, names);

	if (!error)
		error = get_name(n, class->name);
	if (!error)
		error = read_kind(n, class);
	if (!error)
		error = read_extent(n, layout, class);
	if (!error)
		error = read_share_of_rank(n, layout, c);
	if (!error)
		error = read_share_planes(n, class);
	return error;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static int read_blobs(const struct node *memory, struct layout *layout)
{
	static const char *const names[] = {"bytes", "count", NULL};
	uint64_t count = LAYOUT_BLOBS_COUNT;
	json_t *json = NULL;

	if (!json_object_get(memory->json, "blobs"))
		return 0;
	int error = get_object(memory, "blobs", &json);

	if (error)
		return error;
	struct node n = node_at(memory, json, "blobs.");

	error = only_members(&n, names);
	if (!error)
		error = get_number(&n, "bytes", LAYOUT_MIN_BLOBS, LAYOUT_MAX_BLOBS, &layout->blobs_bytes);
	if (!error)
		error = get_number_or(&n, "count", 1, LAYOUT_MAX_BLOBS_COUNT, &count);
	layout->blobs_count = (uint32_t)count;
	return error;
}

static int read_memory(const struct node *top, struct layout *layout)
{
	static const char *const names[] = {"floor", "blobs", NULL};
	json_t *json = NULL;

	if (!json_object_get(top->json, "memory"))
		return 0;
	int error = get_object(top, "memory", &json);

	if (error)
		return error;
	struct node n = node_at(top, json, "memory.");

	error = only_members(&n, names);
	error = error ? error : get_number_or(&n, "floor", 0, INT64_MAX, &layout->floor_bytes);
	return error ? error : read_blobs(&n, layout);
}

/* The least multiple of a page that is LAYOUT_INTERVAL or more. */
static uint64_t default_interval(const struct layout *layout)
{
	uint64_t page = layout->page_tokens;

	return (LAYOUT_INTERVAL + page - 1) / page * page;
}

static int read_ladder(const struct node *top, struct layout *layout)
{
	static const char *const names[] = {"interval", NULL};
	json_t *json = NULL;

	layout->interval = default_interval(layout);
	if (!json_object_get(top->json, "ladder"))
		return 0;
	int error = get_object(top, "ladder", &json);

	if (error)
		return error;
	struct node n = node_at(top, json, "ladder.");

	error = only_members(&n, names);
	error = error ? error : get_number_or(&n, "interval", 0, LAYOUT_MAX_CONTEXT, &layout->interval);
	if (!error && layout->interval % layout->page_tokens)
		error = why_set(n.why, EINVAL, "%sinterval is %llu; it must be 0 or a multiple of page_tokens, %u", n.path,
			(unsigned long long)layout->interval, layout->page_tokens);
	return error;
}

int layout_json_read(
	const char *text, size_t size, struct layout *layout, char *identity[LAYOUT_IDENTITY_MEMBERS], struct why *why)
{
	static const char *const names[] = {
		"version", "identity", "world", "page_tokens", "memory", "context", "ladder", "classes", NULL};
	json_error_t parse;
	cleanup(json_free) json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &parse);
	uint64_t version, world = 0, page_tokens = 0;
	json_t *classes = NULL;

	if (!json)
		return why_set(why, EINVAL, "the layout is no JSON: line %d, column %d: %s", parse.line, parse.column,
			parse.text);
	struct node top = {.json = json, .path = "", .why = why};

	if (!json_is_object(json))
		return why_set(why, EINVAL, "the layout is %s; it must be an object", type_name(json));
	int error = get_number(&top, "version", 1, 1, &version);

	if (!error)
		error = only_members(&top, names);
	if (!error)
		error = read_identity(&top, identity);
	if (!error)
		error = get_number(&top, "world", 1, LAYOUT_MAX_WORLD, &world);
	if (!error)
		error = get_number(&top, "page_tokens", 1, LAYOUT_MAX_PAGE_TOKENS, &page_tokens);
	if (!error)
		error = read_memory(&top, layout);
	if (!error)
		error = get_number_or(&top, "context", 1, LAYOUT_MAX_CONTEXT, &layout->context);
	layout->world = (uint32_t)world;
	layout->page_tokens = (uint32_t)page_tokens;
	if (!error)
		error = read_ladder(&top, layout);
	if (!error)
		error = get_list(&top, "classes", 1, LAYOUT_MAX_CLASSES, &classes);
	if (error)
		return error;
	layout->classes = (uint32_t)json_array_size(classes);
	layout->share_of_rank = calloc(world, sizeof(*layout->share_of_rank));
	if (!layout->share_of_rank)
		return why_set(why, ENOMEM, "no memory for the shares of %u ranks", layout->world);
	for (uint32_t c = 0; c < layout->classes && !error; c++) {
		struct node n = node_at(&top, json_array_get(classes, c), "classes[%u].", c);

		error = read_class(&n, layout, c);
	}
	return error;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static json_t *write_planes(const struct share *share)
{
	json_t *list = json_array();

	for (uint32_t i = 0; list && i < share->plane_kinds; i++) {
		const struct plane *p = &share->planes[i];
		json_t *plane = json_pack("{s:s, s:I, s:I}", "name", p->name, "count", (json_int_t)p->count, "bytes",
			(json_int_t)p->bytes);

		if (json_array_append_new(list, plane)) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *write_class(const struct layout *layout, uint32_t c)
{
	const struct value_class *class = &layout->class[c];
	json_t *ranks = json_array();
	json_t *share_planes = NULL;
	bool alike = layout_shares_alike(class);
	int bad = !ranks;

	for (uint32_t rank = 0; rank < layout->world; rank++)
		bad |= json_array_append_new(ranks, json_integer(layout->share_of_rank[rank][c]));
	if (alike) {
		share_planes = write_planes(&class->share[0]);
	} else {
		share_planes = json_array();
		for (uint32_t s = 0; s < class->shares; s++)
			bad |= json_array_append_new(share_planes, write_planes(&class->share[s]));
	}
	json_t *json = json_pack("{s:s, s:s, s:o, s:o}", "name", class->name, "kind", kind_names[class->kind],
		"share_of_rank", ranks, alike ? "planes" : "share_planes", share_planes);

	if (class->kind != VALUE_STATE)
		bad |= json_object_set_new(
			json, "every", json_integer((json_int_t) class->every_pages * layout->page_tokens));
	if (class->kind == VALUE_WINDOW) {
		bad |= json_object_set_new(json, "sink", json_integer(class->sink));
		bad |= json_object_set_new(json, "last", json_integer(class->last));
	}
	if (bad) {
		json_decref(json);
		return NULL;
	}
	return json;
}

static json_t *write_identity(char *const identity[LAYOUT_IDENTITY_MEMBERS])
{
	json_t *json = json_object();

	for (unsigned i = 0; json && i < LAYOUT_IDENTITY_MEMBERS; i++)
		if (json_object_set_new(json, layout_identity_names[i], json_string(identity[i]))) {
			json_decref(json);
			return NULL;
		}
	return json;
}

static json_t *write_memory(const struct layout *layout)
{
	json_t *json = json_object();
	int bad = !json;

	if (layout->floor_bytes)
		bad |= json_object_set_new(json, "floor", json_integer((json_int_t)layout->floor_bytes));
	if (layout->blobs_bytes)
		bad |= json_object_set_new(json, "blobs",
			json_pack("{s:I, s:I}", "bytes", (json_int_t)layout->blobs_bytes, "count",
				(json_int_t)layout->blobs_count));
	if (bad) {
		json_decref(json);
		return NULL;
	}
	return json;
}

/* What no fingerprint has; as little of it as says the same, so that an older program reads what it knows. */
static int write_apart(json_t *json, const struct layout *layout)
{
	int bad = 0;

	if (layout->floor_bytes || layout->blobs_bytes)
		bad |= json_object_set_new(json, "memory", write_memory(layout));
	if (layout->context)
		bad |= json_object_set_new(json, "context", json_integer((json_int_t)layout->context));
	if (layout->interval != default_interval(layout))
		bad |= json_object_set_new(json, "ladder", json_pack("{s:I}", "interval", (json_int_t)layout->interval));
	return bad;
}

static json_t *write_all(const struct layout *layout, char *const identity[LAYOUT_IDENTITY_MEMBERS], bool apart)
{
	json_t *classes = json_array();
	int bad = !classes;

	for (uint32_t c = 0; c < layout->classes; c++)
		bad |= json_array_append_new(classes, write_class(layout, c));
	json_t *json = json_pack("{s:i, s:o, s:I, s:I, s:o}", "version", 1, "identity", write_identity(identity),
		"world", (json_int_t)layout->world, "page_tokens", (json_int_t)layout->page_tokens, "classes", classes);

	if (apart)
		bad |= write_apart(json, layout);
	if (bad) {
		json_decref(json);
		return NULL;
	}
	return json;
}

char *layout_json_text(
	const struct layout *layout, char *const identity[LAYOUT_IDENTITY_MEMBERS], enum layout_text what)
{
	cleanup(json_free) json_t *json = what == LAYOUT_TEXT_IDENTITY
	                                          ? write_identity(identity)
	                                          : write_all(layout, identity, what == LAYOUT_TEXT_ALL);

	return json ? json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
}
