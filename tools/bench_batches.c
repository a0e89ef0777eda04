/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of 1,000 keys through libprefixfs, for records of 1 and of 32 pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/host.h"
#include "tools/latency.h"

enum figure {
	GET_START,
	GET_TRANSFER,
	RELEASE,
	PUT_START,
	PUT_COMMIT,
	PUT_START_FULL,
	EMPTY_IOCTL,
	FIGURES
};

static const struct {
	const char *name;
	double against; /* microseconds */
} figures[FIGURES] = {
	[GET_START] = {"get_start_1000_p50_us", 80},
	[GET_TRANSFER] = {"get_transfer_1000_p50_us", 50},
	[RELEASE] = {"release_1000_p50_us", 50},
	[PUT_START] = {"put_start_1000_p50_us", 150},
	[PUT_COMMIT] = {"put_commit_1000_p50_us", 120},
	[PUT_START_FULL] = {"put_start_full_1000_p50_us", 0},
	[EMPTY_IOCTL] = {"empty_ioctl_p50_us", 0},
};

#define EMPTY_CALLS 20000u
#define WARM_MAX 500u /* plans open at once */
#define GETS_A_PUT 10u /* gets cost no memory, and the first ones run beside what the filling left to do */

/* The thread that measures is pinned to a CPU, as an engine's scheduler thread is, and the daemon answers on it; then
 * everything is measured again with a thread that may run anywhere, which on an idle machine adds two wake-ups of another
 * CPU to each request. The figures that are held against something are the first ones. */
enum placement {
	PINNED,
	FREE,
	PLACEMENTS
};
static const char *const placements[PLACEMENTS] = {"pinned", "free"};

struct run {
	const struct bench_options *options;
	struct bench_daemon daemon;
	struct bench_chains chains;
	enum placement placement; /* of what is measured now */
	struct latency latency[PLACEMENTS][FIGURES];
};

static int measure_get(struct run *run, uint64_t chain)
{
	struct pfs_session *s = run->chains.session;
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_get_request q = {.keys = keys, .key_count = BENCH_BATCH};
	struct pfs_transfer_request t = {0};
	struct pfs_transfer_result got;
	struct pfs_get_result found;
	uint64_t at[4];

	bench_chain_keys(chain, 0, BENCH_BATCH, keys);
	at[0] = clock_ns();
	if (pfs_get_start(s, &q, &found))
		return complain_client("get_start");
	at[1] = clock_ns();
	if (found.transferable_len != (uint64_t)BENCH_BATCH * BENCH_TOKENS)
		return complain("chain %llu: %llu of %u tokens are there", (unsigned long long)chain,
			(unsigned long long)found.transferable_len, BENCH_BATCH * BENCH_TOKENS);
	t.handle = found.handle;
	t.boundary = t.to = found.transferable_len;
	if (pfs_get_transfer(s, &t, &got))
		return complain_client("get_transfer");
	at[2] = clock_ns();
	if (pfs_release(s, &got.plan, 1, NULL))
		return complain_client("release");
	at[3] = clock_ns();
	latency_add(&run->latency[run->placement][GET_START], at[1] - at[0]);
	latency_add(&run->latency[run->placement][GET_TRANSFER], at[2] - at[1]);
	latency_add(&run->latency[run->placement][RELEASE], at[3] - at[2]);
	return 0;
}

static int measure_put(struct run *run, bool full)
{
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_put_group groups[BENCH_BATCH];
	struct pfs_put_request q;
	struct pfs_put_result put;
	uint64_t at[3];

	bench_chain_keys(run->chains.count, 0, BENCH_BATCH, keys);
	bench_put_request(&run->chains, keys, NULL, 0, BENCH_BATCH, groups, &q);
	at[0] = clock_ns();
	if (pfs_put_start(run->chains.session, &q, &put))
		return complain_client("put_start");
	at[1] = clock_ns();
	if (pfs_put_commit(run->chains.session, put.plan, 0, 0, NULL, NULL))
		return complain_client("put_commit");
	at[2] = clock_ns();
	if (put.new_values != BENCH_BATCH) { /* it had to wait for a grant: that is another figure */
		pfs_news(run->chains.session, 100);
		return bench_fill(&run->chains, 1, "filling");
	}
	run->chains.count++;
	latency_add(&run->latency[run->placement][full ? PUT_START_FULL : PUT_START], at[1] - at[0]);
	if (!full)
		latency_add(&run->latency[run->placement][PUT_COMMIT], at[2] - at[1]);
	return 0;
}

/* As many puts as will be measured, all given up: what they took is taken again by those, so that the memory behind the
 * daemon's tables has been touched before, as it has in a daemon that has run for a while. */
static int warm_puts(struct run *run)
{
	uint64_t count = run->options->repeats < WARM_MAX ? run->options->repeats : WARM_MAX;
	uint64_t *plans = calloc(count, sizeof(*plans));
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_put_result put;
	uint64_t n = 0;
	int r = plans ? 0 : complain("no memory");

	for (; n < count && !r; n++) {
		bench_chain_keys(run->chains.count + n, 0, BENCH_BATCH, keys);
		r = bench_put_start(&run->chains, keys, NULL, 0, BENCH_BATCH, &put) ? complain_client("warming") : 0;
		plans[n] = put.plan;
	}
	while (n-- > 0 && !r)
		r = pfs_put_abort(run->chains.session, plans[n], 0, 0, NULL, NULL) ? complain_client("warming") : 0;
	free(plans);
	return r;
}

static int measure_empty(struct run *run)
{
	unsigned long cpu = run->placement == PINNED ? (unsigned long)sched_getcpu() + 1 : 0;
	char path[PATH_MAX];
	int fd;

	if (host_path(path, "%s/ctl", run->chains.path))
		return 1;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return complain("%s: %s", path, strerror(errno));
	for (unsigned i = 0; i < EMPTY_CALLS; i++) {
		uint64_t begin = clock_ns();

		if (ioctl(fd, PFS_IOC_EMPTY, cpu)) {
			close(fd);
			return complain("%s: the empty ioctl: %s", path, strerror(errno));
		}
		latency_add(&run->latency[run->placement][EMPTY_IOCTL], clock_ns() - begin);
	}
	close(fd);
	return 0;
}

/* Puts until values are evicted for it. */
static int fill_up(struct run *run)
{
	int64_t before = bench_counter(&run->daemon, "bench", "values_evicted");
	int r = 0;

	for (unsigned i = 0; i < 100000 && !r; i++) {
		r = bench_fill(&run->chains, 20, "filling up");
		if (!r && bench_counter(&run->daemon, "bench", "values_evicted") > before)
			return 0;
	}
	return r ? r : complain("memory never fills up");
}

static bool wants_any(const struct bench_options *o)
{
	for (unsigned i = 0; i < FIGURES; i++)
		if (bench_wants(o, figures[i].name))
			return true;
	return false;
}

/* The figures that need no full memory, with the thread where run->placement says. */
static int measure_placed(struct run *run, uint64_t filled)
{
	const struct bench_options *o = run->options;
	cpu_set_t anywhere, here;
	int r = 0;

	if (sched_getaffinity(0, sizeof(anywhere), &anywhere))
		return complain("the CPUs of this process: %s", strerror(errno));
	CPU_ZERO(&here);
	CPU_SET((unsigned)sched_getcpu(), &here);
	if (run->placement == PINNED && sched_setaffinity(0, sizeof(here), &here))
		return complain("pinning to CPU %d: %s", sched_getcpu(), strerror(errno));
	for (uint64_t i = 0; i < GETS_A_PUT * o->repeats && !r; i++)
		r = measure_get(run, bench_dice(&run->chains, filled));
	if (!r)
		r = warm_puts(run);
	for (uint64_t i = 0; i < o->repeats && !r; i++)
		r = measure_put(run, false);
	if (!r && bench_wants(o, figures[EMPTY_IOCTL].name))
		r = measure_empty(run);
	sched_setaffinity(0, sizeof(anywhere), &anywhere);
	return r;
}

static int measure_all(struct run *run)
{
	const struct bench_options *o = run->options;
	int r = bench_fill(&run->chains, o->pages / BENCH_BATCH, "filling");
	uint64_t filled = run->chains.count;

	for (run->placement = 0; run->placement < PLACEMENTS && !r; run->placement++)
		r = measure_placed(run, filled);
	run->placement = FREE;
	if (!r && bench_wants(o, figures[PUT_START_FULL].name)) {
		r = fill_up(run);
		for (uint64_t i = 0; i < o->repeats && !r; i++)
			r = measure_put(run, true);
	}
	return r;
}

static int one_length(struct run *run, uint32_t record_pages)
{
	const struct bench_options *o = run->options;
	/* Room for what is filled and for the puts that are measured with free slots; most of it granted from the start, so
	 * that these do not wait for grants. */
	uint64_t values = o->pages + (PLACEMENTS * o->repeats + 20) * BENCH_BATCH;
	const struct bench_daemon_options d = {.memory = (values + values / 4) * BENCH_VALUE};
	int r;

	r = o->mount ? bench_daemon_use(&run->daemon, o->mount) : bench_daemon_start(&run->daemon, &d, false);
	if (r)
		return r;
	r = bench_namespace(&run->daemon, "bench", BENCH_VALUE, 1, o->mount ? 0 : d.memory / 8 * 7);
	if (!r) {
		r = bench_chains_open(&run->chains, &run->daemon, "bench", record_pages);
		if (!r)
			r = measure_all(run);
		bench_chains_close(&run->chains);
		if (o->mount)
			bench_namespace_remove(&run->daemon, "bench");
	}
	bench_daemon_stop(&run->daemon);
	for (unsigned i = 0; i < PLACEMENTS * FIGURES && !r; i++) {
		unsigned figure = i / PLACEMENTS, placement = i % PLACEMENTS;
		const struct latency *l = &run->latency[placement][figure];

		if (l->count == 0 || !bench_wants(o, figures[figure].name))
			continue;
		bench_print(o, figures[figure].name, latency_us(l, 0.5), "us", figures[figure].against,
			json_pack("{s:i, s:s, s:f, s:I}", "records_of", (int)record_pages, "thread", placements[placement],
				"p99", latency_us(l, 0.99), "samples", (json_int_t)l->count));
	}
	return r;
}

int bench_batches(const struct bench_options *o)
{
	static const uint32_t lengths[] = {1, 32};
	struct run *runs;
	int r = 0;

	if (!wants_any(o))
		return 0;
	runs = calloc(2, sizeof(*runs));
	if (!runs)
		return complain("no memory");
	for (unsigned k = 0; k < 2 && !r; k++) {
		runs[k].options = o;
		r = one_length(&runs[k], lengths[k]);
	}
	for (unsigned i = 0; i < PLACEMENTS * FIGURES && !r; i++) {
		unsigned figure = i / PLACEMENTS, placement = i % PLACEMENTS;
		double a = latency_us(&runs[0].latency[placement][figure], 0.5);
		double b = latency_us(&runs[1].latency[placement][figure], 0.5);

		if (bench_wants(o, figures[figure].name) && a > 0 && b > 0)
			bench_print(o, figures[figure].name, a > b ? a : b, "us", figures[figure].against,
				json_pack("{s:s}", "thread", placements[placement]));
	}
	free(runs);
	return r;
}
