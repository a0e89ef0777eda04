/* SPDX-License-Identifier: Apache-2.0
 *
 * Which classes of a namespace's layout are state classes, read from its JSON text. The daemon has checked that text:
 * this reads only what it looks for, and refuses what it cannot follow.
 */
#include <errno.h>
#include <string.h>

#include "fs/client/client.h"

#define DEPTH_MAX 16

struct text {
	const char *at, *end;
};

static void skip_space(struct text *t)
{
	while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n' || *t->at == '\r'))
		t->at++;
}

static bool eat(struct text *t, char c)
{
	skip_space(t);
	if (t->at == t->end || *t->at != c)
		return false;
	t->at++;
	return true;
}

/* A string; *ret spans what stands between the quotes, escapes and all. */
static bool string(struct text *t, struct text *ret)
{
	if (!eat(t, '"'))
		return false;
	ret->at = t->at;
	for (; t->at < t->end && *t->at != '"'; t->at++)
		if (*t->at == '\\' && ++t->at == t->end)
			return false;
	if (t->at >= t->end)
		return false;
	ret->end = t->at++;
	return true;
}

static bool is(struct text s, const char *word)
{
	return (size_t)(s.end - s.at) == strlen(word) && !memcmp(s.at, word, strlen(word));
}

/* Passes over one value of any kind. */
static bool skip_value(struct text *t)
{
	struct text s;
	unsigned depth = 0;

	do {
		skip_space(t);
		if (t->at == t->end)
			return false;
		if (*t->at == '"') {
			if (!string(t, &s))
				return false;
		} else if (*t->at == '{' || *t->at == '[') {
			if (++depth > DEPTH_MAX)
				return false;
			t->at++;
			continue;
		} else if (*t->at == '}' || *t->at == ']') {
			if (depth == 0)
				return false;
			depth--;
			t->at++;
		} else if (*t->at == ',' || *t->at == ':') {
			if (depth == 0)
				return false;
			t->at++;
			continue;
		} else {
			const char *start = t->at;

			while (t->at < t->end && !strchr(" \t\r\n,:]}[{\"", *t->at))
				t->at++;
			if (t->at == start)
				return false;
		}
	} while (depth > 0);
	return true;
}

/* One class: an object; *state tells whether its kind is "state". */
static bool class_kind(struct text *t, bool *state)
{
	struct text name, kind;

	*state = false;
	if (!eat(t, '{'))
		return false;
	if (eat(t, '}'))
		return true;
	do {
		if (!string(t, &name) || !eat(t, ':'))
			return false;
		if (is(name, "kind")) {
			if (!string(t, &kind))
				return false;
			*state = is(kind, "state");
		} else if (!skip_value(t)) {
			return false;
		}
	} while (eat(t, ','));
	return eat(t, '}');
}

static bool classes_kinds(struct text *t, uint32_t *mask, uint32_t *count)
{
	if (!eat(t, '['))
		return false;
	if (eat(t, ']'))
		return true;
	do {
		bool state;

		if (*count == PFS_MAX_CLASSES || !class_kind(t, &state))
			return false;
		*mask |= (uint32_t)state << (*count)++;
	} while (eat(t, ','));
	return eat(t, ']');
}

int layout_state_mask(const char *json, size_t bytes, uint32_t *ret_mask, uint32_t *ret_classes)
{
	struct text t = {json, json + bytes}, name;
	uint32_t mask = 0, classes = 0;

	if (!eat(&t, '{'))
		return say(EBADMSG, "the layout is not a JSON object");
	do {
		if (!string(&t, &name) || !eat(&t, ':'))
			return say(EBADMSG, "the layout cannot be read at byte %zu", (size_t)(t.at - json));
		if (is(name, "classes") ? !classes_kinds(&t, &mask, &classes) : !skip_value(&t))
			return say(EBADMSG, "the layout cannot be read at byte %zu", (size_t)(t.at - json));
	} while (eat(&t, ','));
	if (!eat(&t, '}'))
		return say(EBADMSG, "the layout cannot be read at byte %zu", (size_t)(t.at - json));
	*ret_mask = mask;
	*ret_classes = classes;
	return 0;
}
