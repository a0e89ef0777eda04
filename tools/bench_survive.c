/* SPDX-License-Identifier: Apache-2.0
 *
 * bench survive: its options, its daemons, and its rows.
 */
#include "tools/bench_survive.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"

#define DEATHS 1000u
#define SERVE_S 60u /* until a serving process is there again */

/* ---- a daemon that dies --------------------------------------------------------------------------------------------- */

int bench_mortal_start(struct bench_mortal *m, uint64_t memory, uint64_t page_bytes, uint64_t floor, bool populate)
{
	const struct bench_daemon_options options = {.memory = memory, .populate = populate, .deaths = DEATHS};
	int r = bench_daemon_start(&m->daemon, &options, false);

	if (r)
		return r;
	r = victim_find(&m->victim, m->daemon.mount);
	if (!r && page_bytes)
		r = bench_namespace(&m->daemon, "bench", page_bytes, 1, floor ? floor : memory / 2);
	if (r)
		bench_daemon_stop(&m->daemon);
	return r;
}

void bench_mortal_stop(struct bench_mortal *m)
{
	m->daemon.serving = m->victim.parent; /* which ends last, with the run folder */
	bench_daemon_stop(&m->daemon);
}

int bench_mortal_kill(struct bench_mortal *m, uint64_t *ns)
{
	uint64_t until = clock_ns() + SERVE_S * 1000000000ull;
	int r;

	do {
		*ns = clock_ns();
		r = victim_kill(&m->victim);
		if (r == 0)
			usleep(1000);
	} while (r == 0 && clock_ns() < until);
	if (r == 1)
		return 0;
	return r ? complain("the serving process cannot be killed: %s", strerror(-r))
	         : complain("no serving process was there for %u s; %s may say why", SERVE_S, m->victim.run_dir);
}

static void say_nothing(void *context, const char *line)
{
}

void bench_mortal_options(struct pfs_options *options)
{
	pfs_options_init(options);
	options->rank = 0;
	options->log = say_nothing;
}

uint64_t bench_survive_memory(void)
{
	char *text = host_read_file("/proc/meminfo", NULL), *line = text ? host_line(text, "MemAvailable") : NULL;
	uint64_t there = line ? strtoull(line, NULL, 10) << 10 : 0;

	free(line);
	free(text);
	return there / 10 * 7;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

static void show_head(const struct bench_survive *b)
{
	if (b->base.human)
		printf("%-28s %10s %-4s  %-10s %s\n", "figure", "value", "", "target", "");
}

void bench_survive_row(const struct bench_survive *b, const char *figure, double value, const char *unit, const char *target, bool met,
	json_t *more)
{
	json_t *out = json_pack("{s:s, s:f, s:s, s:s, s:b}", "figure", figure, "value", value, "unit", unit, "target", target, "met", met);

	if (more)
		json_object_update(out, more);
	if (b->base.human) {
		const char *note = json_string_value(json_object_get(more, "note"));

		printf("%-28s %10.4g %-4s  %-10s %s%s%s\n", figure, value, unit, target, target[0] == '\0' ? "" : met ? "met" : "MISSED",
			note ? "; " : "", note ? note : "");
		fflush(stdout);
		json_decref(out);
	} else {
		show_object(out, true);
	}
	json_decref(more);
}

void bench_survive_none(const struct bench_survive *b, const char *figure, const char *target, const char *why)
{
	if (b->base.human) {
		printf("%-28s %10s %-4s  %-10s not available: %s\n", figure, "-", "", target, why);
		fflush(stdout);
	} else {
		show_object(json_pack("{s:s, s:n, s:s, s:s}", "figure", figure, "value", "target", target, "not_available", why), true);
	}
}

/* ---- the command -------------------------------------------------------------------------------------------------------- */

static const char more[] =
	"\nStarts daemons of its own on private mounts, kills their serving processes with signal 9, and measures how it looks to\n"
	"clients. --quick does less of everything, in half a minute; its figures say little.\n"
	"\n"
	"first_open_after_kill_ms, first_stat_after_kill_ms: from the kill until a client has opened ctl and attached, and until\n"
	"the kernel has been answered about the mount's root; nothing is stored; medians of 20 kills, each of a process that has\n"
	"served for 5 s. adopt_1m_pages_s: from the kill to the first GET_START that finds all of a chain, a million pages being\n"
	"in memory: 20 GiB of them, less where there is less memory. committed_values_lost: four clients put, the process is\n"
	"killed ten times meanwhile; all whose commit was answered is then got and compared byte for byte; there is room for all.\n"
	"upgrade_pause_ms_p99: prefixfs upgrade 30 times while a client asks without a pause and a replay runs; the longest time\n"
	"between two answers to that client, each time. hit_ratio_kills, hit_ratio_undisturbed, hit_ratio_points, wrong_values: a\n"
	"replay with 20 kills beside one without any.";

static bool known(const struct bench_options *options)
{
	static const char *const figures[] = {"first_open_after_kill_ms", "first_stat_after_kill_ms", "adopt_1m_pages_s", "committed_values_lost",
		"upgrade_pause_ms_p99", "hit_ratio_kills", "hit_ratio_undisturbed", "hit_ratio_points", "wrong_values"};

	for (unsigned i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
		if (bench_wants(options, figures[i]))
			return true;
	return false;
}

/* The one of the source tree, where this program lies in its build folder. */
static const char *own_trace(void)
{
	static char path[PATH_MAX];

	if (host_path(path, "%s/../tests/data/coding_sessions.jsonl", host_program_folder()) || access(path, R_OK))
		return NULL;
	return path;
}

static int measure(const struct bench_survive *b)
{
	int r = 0;

	show_head(b);
	if (bench_wants(&b->base, "first_open_after_kill_ms") || bench_wants(&b->base, "first_stat_after_kill_ms"))
		r = bench_survive_open(b);
	if (!r && bench_wants(&b->base, "adopt_1m_pages_s"))
		r = bench_survive_adopt(b);
	if (!r && bench_wants(&b->base, "committed_values_lost"))
		r = bench_survive_puts(b);
	if (!r && bench_wants(&b->base, "upgrade_pause_ms_p99"))
		r = bench_survive_upgrade(b);
	if (!r && (bench_wants(&b->base, "hit_ratio_kills") || bench_wants(&b->base, "hit_ratio_undisturbed") ||
			  bench_wants(&b->base, "hit_ratio_points") || bench_wants(&b->base, "wrong_values")))
		r = bench_survive_replay(b);
	return r;
}

int bench_survive(const struct command *self, int argc, char **argv)
{
	struct bench_survive b = {.base = {.human = true}, .trace = own_trace()};
	bool json = false;
	const struct option_row rows[] = {
		{"quick", OPTION_FLAG, &b.quick, NULL, "less of everything", 0, 0},
		{"figure", OPTION_TEXT, &b.base.figure, "NAME", "only figures whose names begin so", 0, 0},
		{"trace", OPTION_TEXT, &b.trace, "FILE", "what is replayed (the coding sessions of the source tree)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line instead of aligned text", 0, 0},
		{0},
	};
	struct command with_more = *self;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	if (!known(&b.base))
		return usage_error(self, "--figure is '%s', and none begins so; --help lists them", b.base.figure);
	b.base.human = !json;
	b.opens = b.quick ? 3 : 20;
	b.pages = b.quick ? 100000 : 1000000;
	b.plans = b.quick ? 200 : 512;
	b.kills = b.quick ? 3 : 10;
	b.upgrades = b.quick ? 5 : 30;
	b.requests = b.quick ? 100 : 400;
	b.replay_kills = b.quick ? 5 : 20;
	return measure(&b);
}
