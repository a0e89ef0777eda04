/* SPDX-License-Identifier: Apache-2.0
 *
 * size: how many values of each class a budget holds, and how many requests. Asks no daemon.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/sizing.h"
#include "tools/commands.h"
#include "tools/layout_file.h"

#define CONTEXT 8192u     /* tokens of a request, where nobody says */
#define INTERVAL 8192u    /* the ladder's default: the least multiple of the page that is so much */
#define SLOT_UNIT 4096u
#define VALUE_MAX (4ull << 30)
#define TOKENS_MAX (1ull << 40)
#define SHARES_MAX 64u

/* Bytes of a value of these planes; 0: there are none, or too many. */
static uint64_t payload(const json_t *planes)
{
	const json_t *plane;
	uint64_t sum = 0;
	size_t i;

	json_array_foreach(planes, i, plane)
	{
		const json_t *count = json_object_get(plane, "count");
		uint64_t n = count ? (uint64_t)json_integer_value(count) : 1, bytes;

		if (__builtin_mul_overflow(n, (uint64_t)json_integer_value(json_object_get(plane, "bytes")), &bytes) ||
			bytes > VALUE_MAX - sum)
			return 0;
		sum += bytes;
	}
	return sum;
}

static uint64_t shares_of(const json_t *class, uint64_t world)
{
	const json_t *map = json_object_get(class, "share_of_rank"), *rank;
	uint64_t most = 0;
	size_t i;

	if (!map)
		return world;
	json_array_foreach(map, i, rank)
	{
		uint64_t share = (uint64_t)json_integer_value(rank);

		most = share > most ? share : most;
	}
	return most + 1;
}

/* Slots of all shares of one value; 0 after a sentence. */
static uint64_t share_bytes(const json_t *class, const char *name, uint64_t shares)
{
	const json_t *per_share = json_object_get(class, "share_planes"), *planes = json_object_get(class, "planes");
	uint64_t sum = 0;

	for (uint64_t s = 0; s < shares; s++) {
		uint64_t bytes = payload(per_share ? json_array_get(per_share, s) : planes);

		if (!bytes) {
			complain("class %s, share %" PRIu64 ": its planes have no bytes, or over %llu", name, s, VALUE_MAX);
			return 0;
		}
		sum += (bytes + SLOT_UNIT - 1) / SLOT_UNIT * SLOT_UNIT;
	}
	return sum;
}

static int read_class(const json_t *class, const struct layout_class *view, uint64_t world, uint64_t page_tokens,
	struct sizing_class *ret)
{
	uint64_t sink = (uint64_t)json_integer_value(json_object_get(class, "sink"));
	uint64_t last = (uint64_t)json_integer_value(json_object_get(class, "last")), shares = shares_of(class, world);

	if (shares == 0 || shares > SHARES_MAX)
		return complain("class %s has %" PRIu64 " shares, 1 to %u are possible", view->name, shares, SHARES_MAX);
	if (view->every % page_tokens || view->every > TOKENS_MAX)
		return complain("class %s has a value each %" PRIu64 " tokens, no multiple of the page, %" PRIu64, view->name, view->every, page_tokens);
	ret->kind = !strcmp(view->kind, "state") ? SIZING_STATE : !strcmp(view->kind, "window") ? SIZING_WINDOW : SIZING_DENSE;
	ret->every_tokens = view->every;
	ret->values = ret->kind == SIZING_WINDOW ? sink + last : 0;
	if (ret->kind == SIZING_WINDOW && (!last || sink > TOKENS_MAX || last > TOKENS_MAX))
		return complain("class %s is a window of the last %" PRIu64 " values", view->name, last);
	ret->share_bytes = share_bytes(class, view->name, shares);
	return ret->share_bytes ? 0 : 1;
}

/* What the layout says, where the options do not. */
static int read_layout(const json_t *layout, const struct layout_view *view, struct sizing *plan)
{
	const json_t *context = json_object_get(layout, "context");
	const json_t *interval = json_object_get(json_object_get(layout, "ladder"), "interval");
	const json_t *classes = json_object_get(layout, "classes");

	plan->page_tokens = view->page_tokens;
	plan->classes = view->classes;
	if (!plan->context)
		plan->context = context ? (uint64_t)json_integer_value(context) : CONTEXT;
	if (plan->interval == UINT64_MAX)
		plan->interval = interval ? (uint64_t)json_integer_value(interval) :
					    (INTERVAL + view->page_tokens - 1) / view->page_tokens * view->page_tokens;
	if (plan->interval % view->page_tokens || plan->interval > TOKENS_MAX)
		return complain("an interval of %" PRIu64 " tokens is no multiple of the page, %" PRIu64, plan->interval, view->page_tokens);
	if (plan->context == 0 || plan->context > TOKENS_MAX)
		return complain("a context of %" PRIu64 " tokens; 1 to %llu are possible", plan->context, TOKENS_MAX);
	for (uint32_t c = 0; c < view->classes; c++)
		if (read_class(json_array_get(classes, c), &view->class[c], view->world, view->page_tokens, &plan->class[c]))
			return 1;
	return 0;
}

static void show(const struct layout_view *view, const struct sizing *plan, bool json)
{
	json_t *out = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "budget", (json_int_t)plan->budget, "context",
		(json_int_t)plan->context, "interval", (json_int_t)plan->interval, "request_bytes",
		(json_int_t)plan->request_bytes, "requests", (json_int_t)plan->requests, "left_bytes",
		(json_int_t)plan->left_bytes);
	json_t *classes = json_array();

	for (uint32_t c = 0; c < plan->classes; c++) {
		const struct sizing_class *class = &plan->class[c];

		json_array_append_new(classes, json_pack("{s:s, s:s, s:I, s:I, s:I}", "class", view->class[c].name, "kind",
			view->class[c].kind, "value_bytes", (json_int_t)class->share_bytes, "of_a_request",
			(json_int_t)class->request, "slots", (json_int_t)class->slots));
	}
	if (json)
		json_object_set(out, "classes", classes);
	show_object(out, json);
	if (!json) {
		putchar('\n');
		show_list(classes, false);
	} else {
		json_decref(classes);
	}
}

static int answer(const struct layout_view *view, struct sizing *plan, bool json)
{
	int r = sizing_plan(plan);

	if (r == -ENOSPC)
		return complain("a budget of %" PRIu64 " bytes is too small: %s does not fit: one request needs %" PRIu64 " bytes",
			plan->budget, view->class[plan->short_class].name, plan->request_bytes);
	if (r)
		return complain("a context of %" PRIu64 " tokens: its values have more bytes than can be counted", plan->context);
	show(view, plan, json);
	return 0;
}

int command_size(const struct command *self, int argc, char **argv)
{
	struct layout_wish wish = {0};
	struct sizing plan = {.interval = UINT64_MAX};
	struct layout_view view;
	bool json = false;
	const struct option_row rows[] = {
		{"layout", OPTION_TEXT, &wish.file, "FILE", "the layout as JSON", 0, 0},
		{"model", OPTION_TEXT, &wish.model, "NAME", "a layout that comes along, as Qwen3-8B", 0, 0},
		{"tp", OPTION_NUMBER, &wish.tp, "N", "the tensor parallel size of --model", 1, 1024},
		{"one-rank", OPTION_FLAG, &wish.one_rank, NULL, "one rank's values of --model as a world of their own", 0, 0},
		{"plane-divisor", OPTION_NUMBER, &wish.plane_divisor, "N", "divide the bytes of every plane", 1, 1 << 20},
		{"budget", OPTION_BYTES, &plan.budget, "SIZE", "memory for values", 1, 0},
		{"context", OPTION_NUMBER, &plan.context, "TOKENS", "of a request (the layout's context, or 8192)", 1, TOKENS_MAX},
		{"interval", OPTION_NUMBER, &plan.interval, "TOKENS", "of the ladder of states, 0 = none (the layout's)", 0, TOKENS_MAX},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	json_t *layout;
	int r;

	options_read(self, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	if (!wish.file && !wish.model)
		return usage_error(self, "one of --layout and --model is needed");
	if (!plan.budget)
		return usage_error(self, "--budget is needed");
	if (layout_wish_check(self, &wish))
		return EXIT_USAGE;
	layout = layout_load(&wish);
	if (!layout)
		return 1;
	r = layout_view_of(layout, &view);
	if (!r) {
		r = read_layout(layout, &view, &plan) || answer(&view, &plan, json);
		layout_view_free(&view);
	}
	json_decref(layout);
	return r;
}
