/* SPDX-License-Identifier: Apache-2.0
 *
 * bench control, bench view, bench disk: measure the control path, the mount and the disk tier, a figure a line; and the way to the
 * other benchmarks.
 */
#include "tools/bench.h"

#include <stdio.h>
#include <string.h>

#include "tools/bench_gpu.h"
#include "tools/commands.h"

#define FIGURES                                                                                                        \
	"get_start_1000_p50_us, get_transfer_1000_p50_us, release_1000_p50_us, put_start_1000_p50_us,\n"                \
	"put_commit_1000_p50_us, put_start_full_1000_p50_us, empty_ioctl_p50_us, index_bytes_per_page,\n"               \
	"probe_p99_under_batches_ratio, segment_ready_s_per_gib, cat_pages_gbps, memcpy_gbps"

static const char more[] =
	"\nStarts a daemon of its own on a private mount, unless --mount names one. Values have 4 KiB and are never touched;\n"
	"chains have 1,000 pages and are taken at random. Each figure is one JSON object a line: figure, value, unit, what it\n"
	"is held against and value / against, where there is such a thing. Figures of batches are printed for records of 1\n"
	"and of 32 pages, with the measuring thread pinned to a CPU and free to run anywhere, then the worse of both.\n"
	"\nFigures: " FIGURES ".";

bool bench_wants(const struct bench_options *options, const char *figure)
{
	const char *name = options->figure;

	while (name) {
		size_t length = strcspn(name, ",");

		if (length && !strncmp(figure, name, length))
			return true;
		name = name[length] ? name + length + 1 : NULL;
	}
	return !options->figure;
}

/* Is there a figure that --figure may mean? */
static bool known(const struct bench_options *options)
{
	char list[] = FIGURES, *save = NULL;

	for (const char *name = strtok_r(list, ", \n", &save); name; name = strtok_r(NULL, ", \n", &save))
		if (bench_wants(options, name))
			return true;
	return false;
}

void bench_print(const struct bench_options *options, const char *figure, double value, const char *unit,
	double against, json_t *rest)
{
	json_t *out = json_pack("{s:s, s:f, s:s, s:o, s:o}", "figure", figure, "value", value, "unit", unit, "against",
		against > 0 ? json_real(against) : json_null(), "ratio",
		against > 0 ? json_real(value / against) : json_null());

	if (rest) {
		json_object_update(out, rest);
		json_decref(rest);
	}
	if (options->human) {
		printf("%-36s %12.4g %-8s", figure, value, unit);
		if (json_object_get(out, "records_of"))
			printf(" records of %-2lld", (long long)json_integer_value(json_object_get(out, "records_of")));
		if (json_object_get(out, "thread"))
			printf(" thread %-6s", json_string_value(json_object_get(out, "thread")));
		if (json_object_get(out, "backing"))
			printf(" %-8s", json_string_value(json_object_get(out, "backing")));
		if (json_object_get(out, "ceiling_gbps"))
			printf(" %6.1f of %.1f GB/s", json_real_value(json_object_get(out, "gbps")),
				json_real_value(json_object_get(out, "ceiling_gbps")));
		else if (json_object_get(out, "gbps"))
			printf(" %6.1f GB/s", json_real_value(json_object_get(out, "gbps")));
		if (against > 0)
			printf("  (against %.4g: %.2f)", against, value / against);
		printf("\n");
		fflush(stdout);
		json_decref(out);
		return;
	}
	show_object(out, true);
}

void bench_skip(const struct bench_options *options, const char *figure, const char *reason, json_t *rest)
{
	json_t *out = json_pack("{s:s, s:s}", "figure", figure, "skipped", reason);

	if (rest) {
		json_object_update(out, rest);
		json_decref(rest);
	}
	if (options->human)
		printf("%-36s skipped: %s\n", figure, reason);
	else
		show_object(json_incref(out), true);
	json_decref(out);
}

static int control(const struct command *self, int argc, char **argv)
{
	struct bench_options o = {.pages = 1000000, .repeats = 200};
	bool json = false;
	const struct option_row rows[] = {
		{"pages", OPTION_NUMBER, &o.pages, "N", "pages in the index (1000000)", 20 * BENCH_BATCH, 100000000},
		{"figure", OPTION_TEXT, &o.figure, "NAME", "only figures whose names begin so", 0, 0},
		{"repeats", OPTION_NUMBER, &o.repeats, "N", "batches behind each figure (200)", 1, 100000},
		{"mount", OPTION_TEXT, &o.mount, "DIR", "a mount to measure instead of one of its own", 0, 0},
		{"no-populate", OPTION_FLAG, &o.no_populate, NULL, "implied where values are not touched", 0, 0},
		{"human", OPTION_FLAG, &o.human, NULL, "aligned text instead of JSON", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line (the default)", 0, 0},
		{0},
	};
	struct command with_more = *self;
	int r;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	if (!known(&o)) {
		char list[] = FIGURES;

		for (char *end = list; (end = strchr(end, '\n'));)
			*end = ' ';
		return usage_error(self, "--figure is '%s', and none begins so; there are %s", o.figure, list);
	}
	r = bench_batches(&o);
	if (!r && bench_wants(&o, "index_bytes_per_page"))
		r = bench_index(&o);
	if (!r && bench_wants(&o, "probe_p99_under_batches_ratio"))
		r = bench_fairness(&o);
	if (!r && bench_wants(&o, "segment_ready_s_per_gib"))
		r = bench_segment(&o);
	if (!r && (bench_wants(&o, "cat_pages_gbps") || bench_wants(&o, "memcpy_gbps")))
		r = bench_cat(&o);
	return r;
}

static const char view_more[] =
	"\nStarts daemons of its own on private mounts. Records have one page of 4 KiB whose bytes are never touched, in chains of\n"
	"1,000. Each figure is one JSON object a line, as of bench control.\n"
	"\nFigures: ls_1m_records_s, ls_1m_checkpoints_s (all records listed, against 5 s for a million), stat_per_s,\n"
	"view_extra_mib (growth of the daemon's memory by listing everything and looking at 100,000 names), inval_100k_s (100,000\n"
	"names that the kernel knows are evicted: until it was told of each), events_per_s (that reach one reader while records\n"
	"are put and another reader sleeps), metrics_10hz_cpu_percent (of a CPU, with 64 namespaces).";

static int view(const struct command *self, int argc, char **argv)
{
	struct bench_options o = {.pages = 1000000};
	bool json = false;
	const struct option_row rows[] = {
		{"pages", OPTION_NUMBER, &o.pages, "N", "records to list (1000000)", BENCH_BATCH, 100000000},
		{"figure", OPTION_TEXT, &o.figure, "NAME", "only figures whose names begin so", 0, 0},
		{"human", OPTION_FLAG, &o.human, NULL, "aligned text instead of JSON", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line (the default)", 0, 0},
		{0},
	};
	struct command with_more = *self;

	with_more.more = view_more;
	options_read(&with_more, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	return bench_view(&o);
}

int command_bench(const struct command *self, int argc, char **argv)
{
	static const struct command table[] = {
		{"bench control", "", "the control path: batches of 1,000 keys, memory of the index, fairness", NULL,
			control},
		{"bench view", "", "the mount: listing and looking at a million records, names that go", NULL, view},
		{"bench disk", "", "the disk tier: writing and reading beside fio, restarts, the control path meanwhile", NULL,
			bench_disk},
		{"bench gpu", "", "values to and from a GPU, beside the largest copies; registration; other work of the device", NULL,
			bench_gpu},
		{"bench ranks", "", "several ranks and classes: look-ups beside plain ones, tickets, what is replicated", NULL, bench_ranks},
		{"bench survive", "", "kills and upgrades: what clients wait for and lose", NULL, bench_survive},
		{0},
	};

	return command_dispatch("prefixfs bench", self->summary, table, argc, argv);
}
