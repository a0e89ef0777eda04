/* SPDX-License-Identifier: Apache-2.0
 *
 * What the report of a replay computes: hits of caches that were not run, against caches that are run here page by page;
 * ticks and texts of its axes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/report_plot.h"
#include "tools/report_reuse.h"
#include "tools/trace.h"

#define REQUESTS 80u
#define DEPTH 12u
#define NEVER UINT32_MAX

/* A trace whose requests are random walks in a small tree, and the pages of each as small numbers. */
struct world {
	struct trace trace;
	uint32_t page[REQUESTS][DEPTH], depth[REQUESTS * DEPTH];
	uint32_t pages;
};

static void make_world(struct world *w, unsigned seed)
{
	static struct pfs_key keys[REQUESTS * DEPTH];
	const struct trace_options wish = {0};
	char path[] = "/tmp/prefixfs-report-XXXXXX";
	struct chain *chains;
	FILE *f = fdopen(mkstemp(path), "w");

	srand(seed);
	*w = (struct world){0};
	for (unsigned i = 0; i < REQUESTS; i++) {
		unsigned length = 1 + (unsigned)rand() % DEPTH;

		fprintf(f, "{\"timestamp\": %u, \"hash_ids\": [%u", i, (unsigned)rand() % 3);
		for (unsigned d = 1; d < length; d++)
			fprintf(f, ", %u", 10 * d + (rand() % 4 == 0));
		fprintf(f, "]}\n");
	}
	fclose(f);
	assert_int_equal(trace_read(path, &wish, &w->trace), 0);
	unlink(path);
	chains = chains_new(&w->trace);
	for (unsigned i = 0; i < REQUESTS; i++) {
		const struct pfs_key *chain = chains_advance(chains, &w->trace, i);

		for (unsigned d = 0; d < w->trace.requests[i].pages; d++) {
			uint32_t n = 0;

			while (n < w->pages && memcmp(&keys[n], &chain[d], sizeof(keys[n])))
				n++;
			if (n == w->pages) {
				w->depth[n] = d;
				keys[w->pages++] = chain[d];
			}
			w->page[i][d] = n;
		}
	}
	chains_free(chains, &w->trace);
}

static uint32_t next_use(const struct world *w, uint32_t page, unsigned after)
{
	for (unsigned i = after + 1; i < REQUESTS; i++)
		for (unsigned d = 0; d < w->trace.requests[i].pages; d++)
			if (w->page[i][d] == page)
				return i;
	return NEVER;
}

/* Lets one page go: for LRU the one used by the earliest request, else the one used next the latest; the deepest of them. */
static void evict(const struct world *w, bool *there, const uint32_t *last, bool lru, unsigned now)
{
	uint32_t victim = NEVER, best = 0;

	for (uint32_t p = 0; p < w->pages; p++) {
		uint32_t worth = lru ? REQUESTS - last[p] : next_use(w, p, now);

		if (there[p] &&
			(victim == NEVER || worth > best || (worth == best && w->depth[p] > w->depth[victim]))) {
			victim = p;
			best = worth;
		}
	}
	there[victim] = false;
}

static uint64_t run_cache(const struct world *w, uint32_t room, bool lru, uint32_t *hits)
{
	bool there[REQUESTS * DEPTH] = {false};
	uint32_t last[REQUESTS * DEPTH] = {0};
	uint64_t sum = 0;

	for (unsigned i = 0; i < REQUESTS; i++) {
		uint32_t count = 0, run = 0, n = w->trace.requests[i].pages;

		while (run < n && there[w->page[i][run]])
			run++;
		hits[i] = run;
		sum += run;
		for (unsigned d = 0; d < n; d++) {
			there[w->page[i][d]] = true;
			last[w->page[i][d]] = i;
		}
		for (uint32_t p = 0; p < w->pages; p++)
			count += there[p];
		for (; count > room; count--)
			evict(w, there, last, lru, i);
	}
	return sum;
}

static void caches_of_every_size(void **state)
{
	for (unsigned seed = 1; seed <= 4; seed++) {
		uint32_t want[REQUESTS], got[REQUESTS];
		static struct world w;
		struct reuse reuse;

		make_world(&w, seed);
		assert_int_equal(reuse_read(&w.trace, &reuse), 0);
		assert_int_equal(reuse.distinct, w.pages);
		assert_int_equal(reuse.references, w.trace.references);
		for (uint32_t room = 0; room <= w.pages + 2; room += room < 40 ? 1 : 7) {
			assert_int_equal(reuse_lru(&reuse, room, got), run_cache(&w, room, true, want));
			assert_memory_equal(got, want, sizeof(want));
			assert_int_equal(reuse_optimum(&reuse, room, got), run_cache(&w, room, false, want));
			assert_memory_equal(got, want, sizeof(want));
			assert_true(reuse_optimum(&reuse, room, NULL) >= reuse_lru(&reuse, room, NULL));
		}
		assert_int_equal(reuse_lru(&reuse, w.pages, NULL), reuse_unlimited(&reuse));
		assert_int_equal(reuse_optimum(&reuse, w.pages, NULL), reuse_unlimited(&reuse));
		reuse_free(&reuse);
		trace_free(&w.trace);
	}
}

static void ticks(void **state)
{
	struct axis a;

	axis_init(&a, SCALE_LINEAR, UNIT_PERCENT, 0, 1, 5, true);
	assert_int_equal(a.ticks, 6);
	assert_true(a.tick[0] == 0 && a.tick[5] > 0.999 && a.tick[5] < 1.001);
	axis_init(&a, SCALE_LINEAR, UNIT_SECONDS, 0, 6.22, 7, false);
	assert_true(a.ticks == 7 && a.tick[6] == 6 && a.to == 6.22);
	axis_init(&a, SCALE_DECADES, UNIT_NS, 3e3, 4e6, 8, true);
	assert_true(a.ticks == 5 && a.from > 999 && a.from < 1001 && a.to > 0.99e7);
	axis_init(&a, SCALE_DOUBLES, UNIT_BYTES, 0x1p23, 0x1p31, 4, false);
	assert_true(a.ticks == 4 && a.tick[0] == 0x1p24 && a.tick[3] == 0x1p30);
	axis_init(&a, SCALE_LINEAR, UNIT_COUNT, 0, 0, 5, true); /* nothing to show is no division by it */
	assert_true(a.to > a.from && a.ticks >= 2);
}

static void texts(void **state)
{
	static const struct {
		enum unit unit;
		double value;
		const char *text;
	} rows[] = {
		{UNIT_COUNT, 0, "0"},
		{UNIT_COUNT, 12345, "12,345"},
		{UNIT_COUNT, 2.5e6, "2.5 M"},
		{UNIT_PERCENT, 0.913, "91.3 %"},
		{UNIT_SECONDS, 1.5, "1.5 s"},
		{UNIT_NS, 132000, "132 &micro;s"},
		{UNIT_NS, 999900, "1 ms"},
		{UNIT_BYTES, 1u << 30, "1 GiB"},
		{UNIT_BYTES, 1023.4 * 1048576, "1023 MiB"},
		{UNIT_BYTES, 73728, "72 KiB"},
		{UNIT_RATE, 4.4e9, "4.4 GB/s"},
		{UNIT_RATE, 0, "0 B/s"},
	};
	char text[PLOT_TEXT];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unit_text(text, rows[i].unit, rows[i].value);
		assert_string_equal(text, rows[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(caches_of_every_size),
		cmocka_unit_test(ticks),
		cmocka_unit_test(texts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
