/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the index: what the daemon's private memory and its tables grow by, a page.
 */
#include <stdio.h>

#include "tools/bench.h"

#define FIGURE "index_bytes_per_page"

static int print(const struct bench_options *o, const struct bench_daemon *d, uint64_t before, uint32_t record_pages,
	const char *when)
{
	int64_t pages = bench_counter(d, "bench", "pages"), records = bench_counter(d, "bench", "records");
	uint64_t now;
	char name[96];

	if (bench_memory(d, &now))
		return 1;
	if (pages <= 0)
		return complain("the namespace's stats name no pages");
	snprintf(name, sizeof(name), FIGURE "%s%s", record_pages == 1 ? "_records_of_1" : "", when);
	bench_print(o, name, (double)(now > before ? now - before : 0) / (double)pages, "B", 0,
		json_pack("{s:i, s:I, s:I, s:I}", "records_of", (int)record_pages, "pages", (json_int_t)pages,
			"records", (json_int_t)records, "bytes", (json_int_t)(now - before)));
	return 0;
}

static int one_length(const struct bench_options *o, uint32_t record_pages)
{
	/* As much memory as the pages need: refilling evicts. */
	const struct bench_daemon_options d = {.memory = (o->pages + o->pages / 64 + 20 * BENCH_BATCH) * BENCH_VALUE};
	struct bench_chains chains = {0};
	struct bench_daemon daemon;
	uint64_t before, count = o->pages / BENCH_BATCH;
	int r;

	if (o->mount) {
		bench_skip(o, FIGURE, "needs a daemon of its own: leave --mount out", NULL);
		return 0;
	}
	r = bench_daemon_start(&daemon, &d, false);
	if (r)
		return r;
	r = bench_memory(&daemon, &before);
	if (!r)
		r = bench_namespace(&daemon, "bench", BENCH_VALUE, 1, 0);
	if (!r)
		r = bench_chains_open(&chains, &daemon, "bench", record_pages);
	if (!r)
		r = bench_fill(&chains, count, "filling");
	if (!r)
		r = print(o, &daemon, before, record_pages, "");
	if (!r && record_pages > 1) {
		r = bench_fill(&chains, count / 2 + 20, "evicting and refilling half");
		if (!r)
			r = print(o, &daemon, before, record_pages, "_after_refill");
	}
	bench_chains_close(&chains);
	bench_daemon_stop(&daemon);
	return r;
}

int bench_index(const struct bench_options *o)
{
	int r = one_length(o, 32);

	return r ? r : one_length(o, 1);
}
