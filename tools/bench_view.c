/* SPDX-License-Identifier: Apache-2.0
 *
 * bench view: what looking at the mount costs, and what it must not cost.
 *
 * A figure is a row of the table below. Those that need no daemon of their own share one that is filled with one-page
 * records; each leaves it as it was.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/host.h"

#define SPACE "bench"
#define NAME_BYTES 128u
#define STATS 100000u         /* names that are looked at one by one, at most */
#define GONE 100000u          /* names that the kernel knows and that go at once */
#define LS_AGAINST_S 5.0      /* for a million records */
#define EXTRA_AGAINST_MIB 64.0
#define GONE_AGAINST_S 1.0
#define GONE_PATIENCE_S 60u
#define MIB (1024.0 * 1024.0)

struct view {
	const struct bench_options *o;
	struct bench_daemon daemon;
	struct bench_chains chains;
};

struct view_figure {
	const char *name;
	int (*measure)(struct view *view);
	bool own; /* starts a daemon of its own: `view` has none */
};

static double seconds_since(uint64_t began_ns)
{
	return (double)(clock_ns() - began_ns) / 1e9;
}

/* ---- what is looked at ------------------------------------------------------------------------------------------- */

static void hex_of(const struct pfs_key *key, char *to)
{
	for (unsigned i = 0; i < sizeof(key->bytes); i++)
		sprintf(to + 2 * i, "%02x", key->bytes[i]);
}

/* The record of page @page of a chain whose records have one page. */
static void name_of(uint64_t chain, uint32_t page, char to[NAME_BYTES])
{
	struct pfs_key key;

	bench_chain_keys(chain, page, 1, &key);
	sprintf(to, "%016llx-", (page + 1ull) * BENCH_TOKENS);
	hex_of(&key, to + 17);
}

/* Entries of a folder of the namespace, as `ls -f` reads them; -1 after a sentence. */
static int64_t list(const struct view *v, const char *folder)
{
	char path[PATH_MAX];
	struct dirent *e;
	int64_t n = 0;

	if (host_path(path, "%s/ns/" SPACE "/%s", v->daemon.mount, folder))
		return -1;
	DIR *d = opendir(path);
	if (!d) {
		complain("%s: %s", path, strerror(errno));
		return -1;
	}
	errno = 0;
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	if (errno) {
		complain("%s: %s", path, strerror(errno));
		n = -1;
	}
	closedir(d);
	return n;
}

static int open_folder(const struct view *v, const char *folder)
{
	char path[PATH_MAX];
	int fd;

	if (host_path(path, "%s/ns/" SPACE "/%s", v->daemon.mount, folder))
		return -1;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		complain("%s: %s", path, strerror(errno));
	return fd;
}

/* Looks at @count records from chain @first on, chain after chain; with @by_key at their pages in pages/ instead. */
static int look_at(const struct view *v, uint64_t first, uint64_t count, bool by_key)
{
	int fd = open_folder(v, by_key ? "pages" : "records");
	char name[NAME_BYTES];
	struct stat st;
	int r = fd < 0;

	for (uint64_t i = 0; i < count && !r; i++) {
		name_of(first + i / BENCH_BATCH, (uint32_t)(i % BENCH_BATCH), name);
		if (fstatat(fd, by_key ? name + 17 : name, &st, 0))
			r = complain("%s: %s", name, strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	return r;
}

/* A number of `health`; -1 if there is none. */
static int64_t health(const struct view *v, const char *line)
{
	char path[PATH_MAX], *text, *value;
	int64_t n = -1;

	if (host_path(path, "%s/health", v->daemon.mount))
		return -1;
	text = host_read_file(path, NULL);
	value = text ? host_line(text, line) : NULL;
	if (value)
		n = strtoll(value, NULL, 10);
	free(value);
	free(text);
	return n;
}

/* Inodes of FUSE that the kernel keeps, of all mounts; -1 where that cannot be read. */
static int64_t kernel_inodes(void)
{
	char *text = host_read_file("/proc/slabinfo", NULL), *at = text ? strstr(text, "\nfuse_inode ") : NULL;
	long long n = -1;

	if (!at || sscanf(at, "\nfuse_inode %lld", &n) != 1)
		n = -1;
	free(text);
	return n;
}

/* ---- a daemon ---------------------------------------------------------------------------------------------------- */

static void view_close(struct view *v)
{
	if (v->chains.session)
		bench_chains_close(&v->chains);
	bench_daemon_stop(&v->daemon);
	v->chains = (struct bench_chains){0};
}

/* Filled with @pages one-page records, in chains; with room for as many and @spare. */
static int view_open(struct view *v, uint64_t pages, uint64_t spare)
{
	const struct bench_daemon_options d = {.memory = (pages + pages / 64 + spare) * BENCH_VALUE};
	int r = bench_daemon_start(&v->daemon, &d, false);

	if (!r)
		r = bench_namespace(&v->daemon, SPACE, BENCH_VALUE, 1, 0);
	if (!r)
		r = bench_chains_open(&v->chains, &v->daemon, SPACE, 1);
	if (!r)
		r = bench_fill(&v->chains, pages / BENCH_BATCH, "filling");
	if (r)
		view_close(v);
	return r;
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

static int measure_list(struct view *v, const char *figure, const char *folder)
{
	int64_t records = bench_counter(&v->daemon, SPACE, "records"), inodes = kernel_inodes(), n;
	uint64_t began = clock_ns();

	n = list(v, folder);
	if (n < 0)
		return 1;
	double took = seconds_since(began);
	if (n != records)
		return complain("%s lists %" PRId64 " of %" PRId64 " records", folder, n, records);
	bench_print(v->o, figure, took, "s", LS_AGAINST_S * (double)n / 1e6,
		json_pack("{s:I, s:I}", "records", (json_int_t)n, "kernel_inodes_more",
			(json_int_t)(inodes < 0 ? -1 : kernel_inodes() - inodes)));
	return 0;
}

static int measure_ls_records(struct view *v)
{
	return measure_list(v, "ls_1m_records_s", "records");
}

static int measure_ls_checkpoints(struct view *v)
{
	return measure_list(v, "ls_1m_checkpoints_s", "checkpoints");
}

static uint64_t stats_of(const struct view *v)
{
	uint64_t there = v->chains.count * BENCH_BATCH;

	return there < STATS ? there : STATS;
}

static int measure_stat(struct view *v)
{
	uint64_t began = clock_ns(), n = stats_of(v);

	if (look_at(v, 0, n, false))
		return 1;
	bench_print(v->o, "stat_per_s", (double)n / seconds_since(began), "1/s", 0,
		json_pack("{s:I}", "names", (json_int_t)n));
	return 0;
}

/* What the daemon's memory grows by when everything is listed and a hundred thousand names are looked at. */
static int measure_extra(struct view *v)
{
	uint64_t before, after, n = stats_of(v);

	if (bench_memory(&v->daemon, &before) || list(v, "records") < 0 || list(v, "checkpoints") < 0 ||
		look_at(v, 0, n, false) || look_at(v, 0, n, true) || bench_memory(&v->daemon, &after))
		return 1;
	bench_print(v->o, "view_extra_mib", after > before ? (double)(after - before) / MIB : 0, "MiB", EXTRA_AGAINST_MIB,
		json_pack("{s:I, s:I}", "names", (json_int_t)n, "pages_known", (json_int_t)health(v, "pages known by key")));
	return 0;
}

static int64_t noticed(const struct view *v)
{
	return health(v, "notices told") + health(v, "notices pending") + health(v, "notices dropped");
}

/* Evicts by putting others, until as good as all of @names names went: a few are younger than what was put over them. */
static int evict_known(struct view *v, int64_t names, int64_t before)
{
	uint64_t began = clock_ns(), chains = (uint64_t)names / BENCH_BATCH;

	do {
		if (seconds_since(began) > GONE_PATIENCE_S)
			return complain("the known records were not evicted in %u s", GONE_PATIENCE_S);
		if (bench_fill(&v->chains, chains, "evicting"))
			return 1;
		chains = 2; /* there was a little room at first */
	} while (noticed(v) - before < names - names / 100);
	return 0;
}

/* A hundred thousand names that the kernel knows go at once: until it has been told of each. For comparison, how long the
 * same eviction takes when it knows none. */
static int measure_gone(struct view *v)
{
	uint64_t began, evicted = 0;
	int64_t before, pending;
	double unknown;

	if (view_open(v, GONE, 0))
		return 1;
	began = clock_ns();
	int r = bench_fill(&v->chains, GONE / BENCH_BATCH, "evicting unknown names");
	unknown = seconds_since(began);
	if (!r)
		r = look_at(v, v->chains.count - GONE / BENCH_BATCH, GONE, false);
	before = noticed(v);
	began = clock_ns();
	if (!r)
		r = evict_known(v, GONE, before);
	evicted = clock_ns();
	pending = health(v, "notices pending");
	while (!r && health(v, "notices pending") > 0)
		if (usleep(1000) || seconds_since(evicted) > GONE_PATIENCE_S)
			r = complain("names were not told in %u s", GONE_PATIENCE_S);
	if (!r)
		bench_print(v->o, "inval_100k_s", seconds_since(began), "s", GONE_AGAINST_S,
			json_pack("{s:f, s:f, s:I, s:f, s:I, s:I}", "evicting_unknown_s", unknown, "evicting_s",
				(double)(evicted - began) / 1e9, "then_pending", (json_int_t)pending, "after_s",
				seconds_since(evicted), "told", (json_int_t)(noticed(v) - before), "dropped",
				(json_int_t)health(v, "notices dropped")));
	view_close(v);
	return r;
}

static int measure_events(struct view *v)
{
	return bench_events(v->o);
}

static int measure_scrapes(struct view *v)
{
	return bench_scrapes(v->o);
}

static const struct view_figure figures[] = {
	{"ls_1m_records_s", measure_ls_records, false},
	{"ls_1m_checkpoints_s", measure_ls_checkpoints, false},
	{"stat_per_s", measure_stat, false},
	{"view_extra_mib", measure_extra, false},
	{"inval_100k_s", measure_gone, true},
	{"events_per_s", measure_events, true},
	{"metrics_10hz_cpu_percent", measure_scrapes, true},
};
#define FIGURES (sizeof(figures) / sizeof(figures[0]))

static int measure_shared(const struct bench_options *o)
{
	struct view v = {.o = o};
	bool wanted = false;
	int r;

	for (size_t i = 0; i < FIGURES; i++)
		wanted |= !figures[i].own && bench_wants(o, figures[i].name);
	if (!wanted)
		return 0;
	r = view_open(&v, o->pages, 20 * BENCH_BATCH);
	if (r)
		return r;
	for (size_t i = 0; i < FIGURES && !r; i++)
		if (!figures[i].own && bench_wants(o, figures[i].name))
			r = figures[i].measure(&v);
	view_close(&v);
	return r;
}

int bench_view(const struct bench_options *o)
{
	int r = measure_shared(o);

	for (size_t i = 0; i < FIGURES && !r; i++)
		if (figures[i].own && bench_wants(o, figures[i].name)) {
			struct view v = {.o = o};

			r = figures[i].measure(&v);
		}
	return r;
}
