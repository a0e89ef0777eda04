/* SPDX-License-Identifier: Apache-2.0
 *
 * size: how many values of each class a budget holds, and how many requests. Asks no daemon.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "index/layout_sizing.h"
#include "tools/commands.h"
#include "tools/layout_file.h"

/* What the options say; otherwise it is the layout's. */
struct size_options {
	uint64_t budget, context, interval; /* context 0, interval UINT64_MAX: not given */
	bool json;
};

/* The layout, judged as the daemon judges one. 0, or 1 after a sentence. */
static int judge(const struct layout_wish *wish, struct layout **ret)
{
	json_t *json = layout_load(wish);
	char *text = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	struct why why = WHY_INIT;
	int r = 1;

	json_decref(json);
	if (!json)
		return 1;
	if (!text)
		complain("no memory for the layout");
	else if (layout_parse(text, strlen(text), ret, &why))
		complain("layout %s: %s", wish->file ? wish->file : wish->model, why.text);
	else
		r = 0;
	free(text);
	return r;
}

static void show(const struct layout *layout, const struct sizing *plan, bool json)
{
	json_t *out = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "budget", (json_int_t)plan->budget, "context",
		(json_int_t)plan->context, "interval", (json_int_t)plan->interval, "request_bytes",
		(json_int_t)plan->request_bytes, "requests", (json_int_t)plan->requests, "left_bytes",
		(json_int_t)plan->left_bytes);
	json_t *classes = json_array();

	for (uint32_t c = 0; c < plan->classes; c++) {
		const struct sizing_class *class = &plan->class[c];

		json_array_append_new(classes, json_pack("{s:s, s:s, s:I, s:I, s:I}", "class", layout->class[c].name, "kind",
			layout_kind_name(layout->class[c].kind), "value_bytes", (json_int_t)class->share_bytes, "of_a_request",
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

static int answer(const struct layout *layout, const struct size_options *options)
{
	struct sizing plan;

	layout_sizing(layout, &plan);
	plan.budget = options->budget;
	if (options->context)
		plan.context = options->context;
	if (options->interval != UINT64_MAX)
		plan.interval = options->interval;
	if (plan.interval % plan.page_tokens)
		return complain("--interval is %" PRIu64 "; it must be 0 or a multiple of page_tokens, %" PRIu64, plan.interval,
			plan.page_tokens);
	int r = sizing_plan(&plan);

	if (r == -ENOSPC)
		return complain("a budget of %" PRIu64 " bytes is too small: %s does not fit: one request needs %" PRIu64 " bytes",
			plan.budget, layout->class[plan.short_class].name, plan.request_bytes);
	if (r)
		return complain("a context of %" PRIu64 " tokens: its values have more bytes than can be counted", plan.context);
	show(layout, &plan, options->json);
	return 0;
}

int command_size(const struct command *self, int argc, char **argv)
{
	struct layout_wish wish = {0};
	struct size_options options = {.interval = UINT64_MAX};
	struct layout *layout = NULL;
	const struct option_row rows[] = {
		{"layout", OPTION_TEXT, &wish.file, "FILE", "the layout as JSON", 0, 0},
		{"model", OPTION_TEXT, &wish.model, "NAME", "a layout that comes along, as Qwen3-8B", 0, 0},
		{"tp", OPTION_NUMBER, &wish.tp, "N", "the tensor parallel size of --model", 1, 1024},
		{"one-rank", OPTION_FLAG, &wish.one_rank, NULL, "one rank's values of --model as a world of their own", 0, 0},
		{"plane-divisor", OPTION_NUMBER, &wish.plane_divisor, "N", "divide the bytes of every plane", 1, 1 << 20},
		{"budget", OPTION_BYTES, &options.budget, "SIZE", "memory for values", 1, 0},
		{"context", OPTION_NUMBER, &options.context, "TOKENS", "of a request (the layout's context, or 8192)", 1, LAYOUT_MAX_CONTEXT},
		{"interval", OPTION_NUMBER, &options.interval, "TOKENS", "of the ladder of states, 0 = none (the layout's)", 0, LAYOUT_MAX_CONTEXT},
		{"json", OPTION_FLAG, &options.json, NULL, "one JSON object", 0, 0},
		{0},
	};
	int r;

	options_read(self, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	if (!wish.file && !wish.model)
		return usage_error(self, "one of --layout and --model is needed");
	if (!options.budget)
		return usage_error(self, "--budget is needed");
	if (layout_wish_check(self, &wish))
		return EXIT_USAGE;
	r = judge(&wish, &layout) || answer(layout, &options);
	layout_free(&layout);
	return r;
}
