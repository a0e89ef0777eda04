/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan path inside the daemon, without the way through FUSE: medians for batches of 1,000 keys at 1 M pages.
 *
 *   bench_plans [pages] [pages a record]
 */
#include "tests/unit/store_fixture.h"

#define BATCH 1000u
#define CHAIN 1000u /* pages of a chain */
#define ROUNDS 300u

static struct put_result result;
static uint64_t samples[8][ROUNDS];

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static double median_us(uint64_t *ns, uint32_t n)
{
	qsort(ns, n, sizeof(*ns), by_value);
	return (double)ns[n / 2] / 1000;
}

/* A chain of CHAIN pages as records of @length. */
static void groups_of(uint64_t chain, uint32_t length, struct put_group *groups, struct key *keys)
{
	for (uint32_t i = 0; i < CHAIN; i++)
		keys[i] = fixture_key(chain, i);
	for (uint32_t g = 0; g * length < CHAIN; g++) {
		uint32_t n = CHAIN - g * length < length ? CHAIN - g * length : length;

		groups[g] = (struct put_group){
			.consumed = (uint64_t)(g * length + n) * FIXTURE_PAGE,
			.keys = n,
			.class_mask = 1,
			.flags = g ? 0 : PUT_ROOT,
		};
		if (g)
			groups[g].parent = keys[g * length - 1];
	}
}

int main(int argc, char **argv)
{
	uint32_t pages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1000000;
	uint32_t length = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 32;
	uint32_t chains = pages / CHAIN, count = (CHAIN + length - 1) / length;
	uint64_t memory = ((uint64_t)pages + (ROUNDS + 4ull) * BATCH) * 4096;
	static struct put_group groups[CHAIN];
	static struct key keys[CHAIN];
	static uint64_t offsets[BATCH];
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s;
	uint64_t seed = 88172645463325252ull, id = 1;

	fixture_open(&f, CLASS_KV, 1, memory * 9 / 8, memory * 9 / 8, NULL);
	s = fixture_session(&f, 0);
	for (uint64_t c = 1; c <= chains; c++) {
		groups_of(c, length, groups, keys);
		if (put_run(s, id, groups, count, keys, CHAIN, 1, &result) || result.groups_ok != count)
			fail_msg("fill: %s", result.why.text);
		commit_all(s, id++, count);
	}
	for (uint32_t r = 0; r < ROUNDS; r++) {
		struct get_start get = { 0 };
		struct get_transfer transfer = { 0 };
		uint64_t t[6], chain;

		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		chain = 1 + seed % chains;
		t[0] = clock_now_ns();
		get_chain(s, id, chain, BATCH, 0, &get, &why);
		t[1] = clock_now_ns();
		assert(get.all_hit);
		transfer_run(s, id, id, get.transferable_len, 0, get.transferable_len, offsets, BATCH, &transfer, &why);
		t[2] = clock_now_ns();
		assert(transfer.values == BATCH);
		get_release(s, id++, &why);
		t[3] = clock_now_ns();
		samples[0][r] = t[1] - t[0];
		samples[1][r] = t[2] - t[1];
		samples[2][r] = t[3] - t[2];

		groups_of(chains + 1 + r, length, groups, keys);
		t[0] = clock_now_ns();
		put_run(s, id, groups, count, keys, CHAIN, 1, &result);
		t[1] = clock_now_ns();
		assert(result.groups_ok == count);
		commit_all(s, id, count);
		t[2] = clock_now_ns();
		id++;
		samples[3][r] = t[1] - t[0];
		samples[4][r] = t[2] - t[1];
	}
	printf("pages %u, records of %u: get_start %.1f us, transfer %.1f, release %.1f, put_start %.1f, commit %.1f; "
	       "index %.1f + tables %.1f bytes a page\n",
	       pages, length, median_us(samples[0], ROUNDS), median_us(samples[1], ROUNDS), median_us(samples[2], ROUNDS),
	       median_us(samples[3], ROUNDS), median_us(samples[4], ROUNDS),
	       (double)fixture_report(&f).index_bytes / (double)fixture_report(&f).pages,
	       (double)fixture_report(&f).table_bytes / (double)fixture_report(&f).pages);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
	return 0;
}
