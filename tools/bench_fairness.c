/* SPDX-License-Identifier: Apache-2.0
 *
 * What big batches of others do to a small question. Seven processes look up 10,000 keys again and again while one
 * asks for one key; then seven burn as much CPU time as clients and daemon used before, while one asks for one key.
 * The ratio of the two p99s is what the daemon adds to what a busy machine does anyway. Several such pairs; the
 * median.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/latency.h"

#define FIGURE "probe_p99_under_batches_ratio"
#define BUSY 7u
#define LONG_CHAIN 10000u
#define PAIRS 5u
#define RUN_NS 3000000000ull
#define PROBE_PAUSE_NS 200000
#define SLICE_NS 1000000ull /* of a burner: it burns a part of each */

struct shared {
	_Atomic uint32_t ready, stop;
	_Atomic uint64_t cpu_ns[BUSY]; /* of each client, at its end */
	_Atomic uint64_t batches;
};

static uint64_t own_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Looks up its own long chain until it is told to stop. */
static int look_up(struct shared *shared, unsigned number, const struct bench_daemon *daemon)
{
	static struct pfs_key keys[LONG_CHAIN];
	struct pfs_get_request q = {.keys = keys, .key_count = LONG_CHAIN};
	struct bench_chains chains;
	struct pfs_get_result found;
	uint64_t begin;

	if (bench_chains_open(&chains, daemon, "bench", 32))
		return 1;
	bench_chain_keys(number, 0, LONG_CHAIN, keys);
	atomic_fetch_add(&shared->ready, 1);
	begin = own_cpu_ns();
	while (!atomic_load(&shared->stop)) {
		if (pfs_get_start(chains.session, &q, &found))
			return complain_client("get_start");
		if (found.transferable_len == 0)
			return complain("chain %u is not there", number);
		if (pfs_get_cancel(chains.session, found.handle))
			return complain_client("get_cancel");
		atomic_fetch_add(&shared->batches, 1);
	}
	atomic_store(&shared->cpu_ns[number], own_cpu_ns() - begin);
	bench_chains_close(&chains);
	return 0;
}

/* Burns @share of one core. */
static int burn(struct shared *shared, unsigned number, double share)
{
	uint64_t cpu = own_cpu_ns(), begin = clock_ns(), now;

	atomic_fetch_add(&shared->ready, 1);
	while (!atomic_load(&shared->stop)) {
		now = clock_ns();
		if ((double)(own_cpu_ns() - cpu) < share * (double)(now - begin + SLICE_NS)) {
			for (volatile unsigned i = 0; i < 20000; i++)
				;
		} else {
			nanosleep(&(struct timespec){.tv_nsec = SLICE_NS / 4}, NULL);
		}
	}
	atomic_store(&shared->cpu_ns[number], own_cpu_ns() - cpu);
	return 0;
}

static int probe_for(struct bench_chains *chains, struct latency *l)
{
	uint64_t until = clock_ns() + RUN_NS, begin;
	struct pfs_probe_result found;
	struct pfs_key key;

	while ((begin = clock_ns()) < until) {
		bench_chain_keys(bench_dice(chains, BUSY), (uint32_t)bench_dice(chains, LONG_CHAIN), 1, &key);
		begin = clock_ns();
		if (pfs_probe(chains->session, &key, 1, NULL, &found))
			return complain_client("probe");
		latency_add(l, clock_ns() - begin);
		nanosleep(&(struct timespec){.tv_nsec = PROBE_PAUSE_NS}, NULL);
	}
	return 0;
}

/* One run beside seven busy processes. @share < 0: they look up; else they burn that share of a core each. *cpu_ns: what
 * they and, when they look up, the daemon used. */
static int run(const struct bench_daemon *daemon, struct bench_chains *chains, struct shared *shared, double share,
	struct latency *l, double *cpu_share, uint64_t *batches)
{
	uint64_t begin, daemon_cpu, cpu = 0;
	pid_t pids[BUSY];
	int r = 0, status;

	memset(shared, 0, sizeof(*shared));
	for (unsigned i = 0; i < BUSY; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			signal(SIGINT, SIG_DFL); /* the parent cleans up */
			signal(SIGTERM, SIG_DFL);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(share < 0 ? look_up(shared, i, daemon) : burn(shared, i, share));
		}
		if (pids[i] < 0)
			return complain("fork: %s", strerror(errno));
	}
	for (unsigned i = 0; i < 3000 && atomic_load(&shared->ready) < BUSY; i++)
		usleep(10000);
	begin = clock_ns();
	daemon_cpu = bench_cpu_ns(daemon->serving);
	if (atomic_load(&shared->ready) < BUSY)
		r = complain("the busy processes did not come up");
	if (!r)
		r = probe_for(chains, l);
	daemon_cpu = bench_cpu_ns(daemon->serving) - daemon_cpu;
	atomic_store(&shared->stop, 1);
	for (unsigned i = 0; i < BUSY; i++) {
		if (r)
			kill(pids[i], SIGKILL);
		if (waitpid(pids[i], &status, 0) == pids[i] && !r && (!WIFEXITED(status) || WEXITSTATUS(status)))
			r = complain("a busy process failed");
		cpu += atomic_load(&shared->cpu_ns[i]);
	}
	if (share < 0)
		cpu += daemon_cpu;
	*cpu_share = (double)cpu / (double)(clock_ns() - begin);
	*batches = atomic_load(&shared->batches);
	return r;
}

static int put_long_chains(struct bench_chains *chains)
{
	struct pfs_key keys[BENCH_BATCH + 1];
	struct pfs_put_result put;

	for (unsigned c = 0; c < BUSY; c++) {
		for (uint32_t at = 0; at < LONG_CHAIN; at += BENCH_BATCH) {
			bench_chain_keys(c, at ? at - 1 : 0, BENCH_BATCH + 1, keys);
			if (bench_put_start(chains, at ? keys + 1 : keys, at ? keys : NULL, at, BENCH_BATCH, &put))
				return complain_client("put_start");
			if (pfs_put_commit(chains->session, put.plan, 0, 0, NULL, NULL))
				return complain_client("put_commit");
			if (put.new_values != BENCH_BATCH)
				return complain("chain %u got no room", c);
		}
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int measure(const struct bench_options *o, const struct bench_daemon *daemon, struct bench_chains *chains,
	struct shared *shared)
{
	struct latency *l = calloc(2, sizeof(*l));
	double ratios[PAIRS], cpu, burned;
	int r = l ? 0 : complain("no memory");

	for (unsigned i = 0; i < PAIRS && !r; i++) {
		uint64_t batches, none;
		double a, b;

		memset(l, 0, 2 * sizeof(*l));
		r = run(daemon, chains, shared, -1, &l[0], &cpu, &batches);
		if (!r)
			r = run(daemon, chains, shared, cpu / BUSY, &l[1], &burned, &none);
		if (r)
			break;
		a = latency_us(&l[0], 0.99);
		b = latency_us(&l[1], 0.99);
		ratios[i] = a / b;
		bench_print(o, "probe_p99_under_batches_pair", ratios[i], "ratio", 0,
			json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "p99_us", a, "p99_beside_burners_us", b,
				"p50_us", latency_us(&l[0], 0.5), "p50_beside_burners_us", latency_us(&l[1], 0.5),
				"cpus", cpu, "cpus_burned", burned, "batches", (json_int_t)batches));
	}
	free(l);
	if (r)
		return r;
	qsort(ratios, PAIRS, sizeof(ratios[0]), by_value);
	bench_print(o, FIGURE, ratios[PAIRS / 2], "ratio", 0, json_pack("{s:i}", "pairs", (int)PAIRS));
	return 0;
}

int bench_fairness(const struct bench_options *o)
{
	const struct bench_daemon_options d = {.memory = 2ull * BUSY * LONG_CHAIN * BENCH_VALUE};
	struct bench_chains chains = {0};
	struct bench_daemon daemon;
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (shared == MAP_FAILED)
		return complain("no memory");
	r = o->mount ? bench_daemon_use(&daemon, o->mount) : bench_daemon_start(&daemon, &d, false);
	if (!r) {
		r = bench_namespace(&daemon, "bench", BENCH_VALUE, 1, d.memory * 3 / 4);
		if (!r) {
			r = bench_chains_open(&chains, &daemon, "bench", 32);
			if (!r)
				r = put_long_chains(&chains);
			if (!r)
				r = measure(o, &daemon, &chains, shared);
			bench_chains_close(&chains);
			if (o->mount)
				bench_namespace_remove(&daemon, "bench");
		}
		bench_daemon_stop(&daemon);
	}
	munmap(shared, sizeof(*shared));
	return r;
}
