/* SPDX-License-Identifier: Apache-2.0
 *
 * The control path while another namespace's values are written to disk as fast as they can be.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench_disk.h"
#include "tools/latency.h"

#define CHAINS 100u      /* of BENCH_BATCH pages */
#define LOADED_LEAST 20u /* batches while it is written; fewer say nothing */
#define MEMORY_MORE (64ull << 20)
#define GIB (1ull << 30)
#define JOBS_NS 60000000000ull

struct beside {
	const struct bench_disk *bench;
	struct bench_shape shape; /* of what is written */
	struct bench_daemon daemon;
	struct bench_chains chains, load; /* that are asked for; of the other namespace */
	double *quiet, *loaded, *ratio;   /* p50 in microseconds, of each pair */
};

static int ask_once(struct beside *c, struct latency *latency)
{
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_get_request q = {.keys = keys, .key_count = BENCH_BATCH};
	struct pfs_get_result found;
	uint64_t begin;

	bench_chain_keys(bench_dice(&c->chains, CHAINS), 0, BENCH_BATCH, keys);
	begin = clock_ns();
	if (pfs_get_start(c->chains.session, &q, &found))
		return complain_client("get_start");
	latency_add(latency, clock_ns() - begin);
	if (found.transferable_len != (uint64_t)BENCH_BATCH * BENCH_TOKENS)
		return complain("%llu of %u tokens are there", (unsigned long long)found.transferable_len,
			BENCH_BATCH * BENCH_TOKENS);
	return pfs_get_cancel(c->chains.session, found.handle) ? complain_client("get_cancel") : 0;
}

/* ---- while it is written ------------------------------------------------------------------------------------------- */

struct writing {
	struct pfs_session *session;
	_Atomic bool ended;
	int result;
};

static void *write_main(void *context)
{
	struct writing *w = context;

	do
		w->result = pfs_drain(w->session, NULL);
	while (w->result == -ETIMEDOUT);
	if (w->result)
		complain_client("drain");
	atomic_store(&w->ended, true);
	return NULL;
}

static int ask_while_written(struct beside *c, struct latency *latency)
{
	struct writing w = {.session = c->load.session};
	pthread_attr_t attributes;
	cpu_set_t all;
	pthread_t thread;
	int r;

	/* This thread is pinned; that one is not. */
	CPU_ZERO(&all);
	for (unsigned i = 0; i < CPU_SETSIZE; i++)
		CPU_SET(i, &all);
	pthread_attr_init(&attributes);
	pthread_attr_setaffinity_np(&attributes, sizeof(all), &all);
	r = pthread_create(&thread, &attributes, write_main, &w);
	pthread_attr_destroy(&attributes);
	if (r)
		return complain("a thread cannot be started: %s", strerror(r));
	while (!r && !atomic_load(&w.ended))
		r = ask_once(c, latency);
	pthread_join(thread, NULL);
	return r || w.result;
}

/* Until nothing is under way on the disk. */
static int wait_for_jobs(const struct beside *c)
{
	const struct timespec step = {.tv_nsec = 20000000};
	uint64_t until_ns = clock_ns() + JOBS_NS;

	while (bench_disk_word(&c->daemon, "jobs") != 0) {
		if (clock_ns() > until_ns)
			return complain("the disk tier has had something to do for %llu s", JOBS_NS / 1000000000);
		nanosleep(&step, NULL);
	}
	bench_disk_settle(c->bench);
	return 0;
}

/* Its values are put anew each time, and go afterwards with their files. */
static int loaded_once(struct beside *c, uint64_t pair, struct latency *latency)
{
	int r = bench_move_put(&c->load, &c->shape, pair * c->shape.records);

	if (!r)
		r = wait_for_jobs(c);
	if (!r)
		r = ask_while_written(c, latency);
	if (!r && pfs_reset(c->load.session, NULL))
		r = complain_client("reset");
	return r;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

static int one_pair(struct beside *c, uint64_t pair)
{
	static struct latency quiet, loaded;
	int r = wait_for_jobs(c);

	quiet = loaded = (struct latency){0};
	for (uint64_t i = 0; i < c->bench->base.repeats && !r; i++)
		r = ask_once(c, &quiet);
	if (!r)
		r = loaded_once(c, pair, &loaded);
	if (!r && loaded.count < LOADED_LEAST)
		return complain("only %llu batches were asked while %llu bytes were written: --bytes is too small",
			(unsigned long long)loaded.count, (unsigned long long)bench_shape_bytes(&c->shape));
	c->quiet[pair] = latency_us(&quiet, 0.5);
	c->loaded[pair] = latency_us(&loaded, 0.5);
	c->ratio[pair] = c->quiet[pair] > 0 ? c->loaded[pair] / c->quiet[pair] : 0;
	return r;
}

/* The measuring thread is pinned to a CPU, as in bench control. */
static int measure(struct beside *c)
{
	cpu_set_t anywhere, here;
	int r = bench_fill(&c->chains, CHAINS, "filling");

	if (!r && pfs_drain(c->chains.session, NULL))
		r = complain_client("drain");
	if (r)
		return r;
	if (sched_getaffinity(0, sizeof(anywhere), &anywhere))
		return complain("the CPUs of this process: %s", strerror(errno));
	CPU_ZERO(&here);
	CPU_SET((unsigned)sched_getcpu(), &here);
	if (sched_setaffinity(0, sizeof(here), &here))
		return complain("pinning to CPU %d: %s", sched_getcpu(), strerror(errno));
	for (uint64_t i = 0; i < c->bench->pairs && !r; i++)
		r = one_pair(c, i);
	sched_setaffinity(0, sizeof(anywhere), &anywhere);
	return r;
}

static int run(struct beside *c)
{
	uint64_t asked = (uint64_t)CHAINS * BENCH_BATCH * BENCH_VALUE,
		 memory = 3 * asked + 2 * bench_shape_bytes(&c->shape) + MEMORY_MORE;
	int r = bench_disk_memory(memory) ||
	        bench_disk_room(c->bench, 2 * bench_shape_bytes(&c->shape) + 2 * asked, 200000) ||
	        bench_disk_empty(c->bench) ||
	        bench_disk_start(c->bench, &c->daemon, memory, 2 * bench_shape_bytes(&c->shape) + 2 * asked + GIB);

	if (r)
		return 1;
	r = bench_namespace(&c->daemon, "bench", BENCH_VALUE, 1, 5 * asked / 2);
	if (!r)
		r = bench_chains_open(&c->chains, &c->daemon, "bench", 32);
	if (!r)
		r = bench_namespace(&c->daemon, "load", c->shape.page_bytes, 1, 2 * bench_shape_bytes(&c->shape));
	if (!r)
		r = bench_chains_open(&c->load, &c->daemon, "load", c->shape.record_pages);
	if (!r)
		r = measure(c);
	bench_chains_close(&c->load);
	bench_chains_close(&c->chains);
	bench_daemon_stop(&c->daemon);
	return bench_disk_empty(c->bench) || r;
}

int bench_disk_control(const struct bench_disk *b)
{
	struct beside c = {.bench = b, .shape = {.page_bytes = b->page_bytes, .record_pages = 16}};
	double *all;
	int r;

	if (!bench_wants(&b->base, "control_slowdown"))
		return 0;
	c.shape.records = b->bytes / (c.shape.page_bytes * c.shape.record_pages);
	if (!c.shape.records)
		return complain("--bytes is %llu, less than one record", (unsigned long long)b->bytes);
	all = calloc(3 * b->pairs, sizeof(*all));
	if (!all)
		return complain("no memory");
	c.quiet = all;
	c.loaded = all + b->pairs;
	c.ratio = all + 2 * b->pairs;
	r = run(&c);
	if (!r) {
		json_t *more = json_pack("{s:o, s:f, s:f}", "pairs", bench_values(c.ratio, b->pairs), "quiet_p50_us",
			bench_median(c.quiet, b->pairs), "loaded_p50_us", bench_median(c.loaded, b->pairs));

		bench_print(&b->base, "control_slowdown", bench_median(c.ratio, b->pairs), "x", 1.10, more);
	}
	free(all);
	return r;
}
