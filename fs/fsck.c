/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fsck.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/base/clock.h"
#include "store/host.h"

#define BAR_AFTER_NS 1000000000ull
#define BAR_WIDTH 30
#define EXIT_USAGE 2

struct fsck {
	const char *path;
	bool json, terminal;
	struct disk_check_options options;
	uint64_t began_ns;
	bool bar;          /* one is shown */
	uint64_t findings;
};

/* What disk_check counts, in the order in which it is told. */
static const struct {
	const char *name;
	size_t offset;
	bool bad;
} rows[] = {
#define ROW(name, bad) {#name, offsetof(struct disk_check_report, name), bad}
	ROW(namespaces, false),
	ROW(files, false),
	ROW(foreign, false),
	ROW(bytes, false),
	ROW(bad_headers, true),
	ROW(bad_keys, true),
	ROW(bad_values, true),
	ROW(wrong_names, true),
	ROW(wrong_lengths, true),
	ROW(broken_groups, true),
	ROW(unreadable, true),
	ROW(left_over, true),
	ROW(rows, false),
	ROW(rows_without_file, true),
	ROW(files_without_row, true),
	ROW(wrong_rows, true),
	ROW(repaired, false),
	ROW(removed, false),
	ROW(unrepaired, true),
#undef ROW
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void hide_bar(struct fsck *f)
{
	if (f->bar)
		fprintf(stderr, "\r%*s\r", BAR_WIDTH + 12, "");
	f->bar = false;
}

static bool on_progress(void *context, uint64_t done, uint64_t goal)
{
	struct fsck *f = context;
	uint64_t now = clock_now_ns();

	if (!f->terminal || now - f->began_ns < BAR_AFTER_NS || !goal)
		return true;
	done = done < goal ? done : goal;
	int full = (int)(done * BAR_WIDTH / goal);
	fprintf(stderr, "\rfsck [%.*s%*s] %3.0f%%", full, "##############################", BAR_WIDTH - full, "",
		100.0 * (double)done / (double)goal);
	f->bar = true;
	return true;
}

static void print_json(json_t *object)
{
	json_dumpf(object, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(object);
}

static void on_finding(void *context, const char *file, const char *what)
{
	struct fsck *f = context;

	hide_bar(f);
	f->findings++;
	if (f->json)
		print_json(json_pack("{s:s, s:s}", "file", file, "what", what));
	else
		printf("%s: %s\n", file, what);
}

static uint64_t number_of(const struct disk_check_report *report, unsigned row)
{
	uint64_t number;

	memcpy(&number, (const char *)report + rows[row].offset, sizeof(number));
	return number;
}

/* How many things were wrong. */
static uint64_t print_report(const struct fsck *f, const struct disk_check_report *report)
{
	json_t *object = json_object();
	uint64_t bad = 0;

	for (unsigned i = 0; i < ROWS; i++) {
		uint64_t number = number_of(report, i);

		bad += rows[i].bad ? number : 0;
		json_object_set_new(object, rows[i].name, json_integer((json_int_t)number));
		if (!f->json)
			printf("%-17s  %" PRIu64 "\n", rows[i].name, number);
	}
	if (f->json)
		print_json(object);
	else
		json_decref(object);
	return bad;
}

/* One file may have many bad values: what counts is what could not be put right. A rebuild mends rows, a repair files and rows. */
static bool all_mended(const struct fsck *f, const struct disk_check_report *report, uint64_t bad)
{
	uint64_t rows_bad = report->rows_without_file + report->files_without_row + report->wrong_rows;

	if (report->unrepaired || report->unreadable)
		return false;
	return f->options.repair || (f->options.rebuild && bad == rows_bad);
}

static int usage(const char *sentence, const char *word)
{
	fprintf(stderr, "prefixfsd: --fsck: %s%s\nusage: prefixfsd --fsck FOLDER [--repair] [--rebuild] [--values] [--json]\n",
		sentence, word);
	return EXIT_USAGE;
}

static int read_arguments(struct fsck *f, int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		if (!strcmp(argv[i], "--repair"))
			f->options.repair = true;
		else if (!strcmp(argv[i], "--rebuild"))
			f->options.rebuild = true;
		else if (!strcmp(argv[i], "--values"))
			f->options.values = true;
		else if (!strcmp(argv[i], "--json"))
			f->json = true;
		else if (argv[i][0] == '-')
			return usage("there is no option ", argv[i]);
		else if (f->path)
			return usage("a second folder, ", argv[i]);
		else
			f->path = argv[i];
	return f->path ? 0 : usage("a folder is needed", "");
}

int fsck_main(int argc, char **argv)
{
	struct fsck f = {.terminal = isatty(STDERR_FILENO), .began_ns = clock_now_ns()};
	struct disk_check_report report = {0};
	struct why why = WHY_INIT;
	int r = read_arguments(&f, argc, argv);

	if (r)
		return r;
	r = disk_check(f.path, &f.options, on_progress, on_finding, &f, &report, &why);
	hide_bar(&f);
	if (r) {
		fprintf(stderr, "prefixfsd: %s: %s\n", f.path, why.text);
		return 1;
	}
	uint64_t bad = print_report(&f, &report);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "prefixfsd: standard output: %s\n", strerror(errno));
		return 1;
	}
	return bad == 0 || all_mended(&f, &report, bad) ? 0 : 1;
}
