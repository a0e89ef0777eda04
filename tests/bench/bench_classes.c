/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks and classes cost a look-up: batches of 1,000 keys of one chain, in an index of one class and world 1 and in one of three
 * classes and world 4, in turns; gates and rows included.
 *
 *	bench_classes [pages]      nanoseconds a key of both, and their ratio (default 500,000 pages each)
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "index/gates.h"
#include "index/index.h"
#include "index/mix.h"
#include "store/base/clock.h"
#include "store/base/memory.h"

#define HEAD(world) "{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":" #world ",\"page_tokens\":64,\"classes\":["
#define PLANES "\"planes\":[{\"name\":\"k\",\"bytes\":4096}]}"
#define ONE HEAD(1) "{\"name\":\"kv\",\"kind\":\"dense\"," PLANES "]}"
#define THREE \
	HEAD(4) "{\"name\":\"kv\",\"kind\":\"dense\"," PLANES ",{\"name\":\"indexer\",\"kind\":\"dense\"," \
		"\"share_of_rank\":[0,0,0,0]," PLANES ",{\"name\":\"state\",\"kind\":\"state\"," PLANES "]}"

enum { RECORD = 128, CHAIN = 4096, BATCH = 1000, ROUNDS = 1500 };

struct bench {
	struct layout *layout;
	struct tables tables;
	struct lock lock;
	struct index *index;
	struct key *keys;
	uint32_t pages, next_entry;
	double ns[ROUNDS];
	uint64_t restorable;
};

static void setup(struct bench *b, const char *layout, uint32_t pages, struct key *keys)
{
	struct why why = WHY_INIT;

	memset(b, 0, sizeof(*b));
	b->pages = pages;
	b->keys = keys;
	if (layout_parse(layout, strlen(layout), &b->layout, &why))
		abort();
	uint32_t values = pages * b->layout->page_columns + pages / RECORD * b->layout->row_columns;
	struct tables_config config = {
		.grants = 1,
		.records = pages / RECORD + 1024,
		.groups = 16,
		.entries = (values + 2 * TABLES_GRANT_ENTRIES) / TABLES_GRANT_ENTRIES * TABLES_GRANT_ENTRIES,
		.identity = b->layout->identity,
		.fingerprint = b->layout->fingerprint,
	};
	void *memory = memory_reserve(tables_bytes(&config), true);

	assert(memory);
	tables_format(&b->tables, memory, &config);
	b->tables.grants[0] = (struct grant_entry){.first_entry = 0, .slots = values, .used = 2};
	tables_seal_grant(&b->tables, 0);
	lock_init(&b->lock, LOCK_SPACE);
	struct index_config index = {
		.layout = b->layout, .tables = &b->tables, .guard = &b->lock, .max_pages = values, .hollow_first = values};

	if (index_new(&index, &b->index, &why))
		abort();
}

static void teardown(struct bench *b)
{
	index_free(&b->index);
	munmap(b->tables.header, b->tables.bytes);
	layout_free(&b->layout);
	lock_destroy(&b->lock);
}

/* Values of a page, or of the row: the first one of a page makes it. */
static void add_values(struct bench *b, uint32_t record, uint32_t page, const struct key *key)
{
	uint64_t hash;

	index_prefetch(b->index, key, 1, &hash);
	for (uint32_t c = 0; c < b->layout->classes; c++)
		for (uint32_t s = 0; s < b->layout->class[c].shares; s++) {
			uint32_t entry = b->next_entry;

			if (layout_is_row(b->layout, c) != (page == INDEX_PAGE_ROW))
				continue;
			b->next_entry++;
			if (!c && !s)
				index_page_add(b->index, record, key, hash, c, s, entry, 1);
			else
				index_value_add(b->index, record, (uint16_t)page, key, c, s, entry, 1);
		}
}

static void fill(struct bench *b)
{
	for (uint32_t first = 0; first < b->pages; first += RECORD) {
		struct index_run run = {
			.parent_key = first % CHAIN ? &b->keys[first - 1] : NULL,
			.consumed = first % CHAIN * 64ull,
			.max_pages = RECORD,
			.group = 1,
			.whole_ring = INDEX_NONE,
		};
		uint32_t from = b->next_entry;

		b->tables.groups[0].state = GROUP_PREPARED;
		tables_seal_group(&b->tables.groups[0], 0);
		uint32_t record = index_record_new(b->index, &run);

		for (uint32_t i = 0; i < RECORD; i++)
			add_values(b, record, i, &b->keys[first + i]);
		if (b->layout->row_columns)
			add_values(b, record, INDEX_PAGE_ROW, &b->keys[first + RECORD - 1]);
		index_record_close(b->index, record);
		tables_group_publish(&b->tables, 0);
		for (uint32_t e = from; e < b->next_entry; e++)
			index_settle(b->index, e);
		index_record_publish(b->index, record, NULL);
	}
}

/* What GET_START does with the index for one batch. */
static void batch(struct bench *b, uint32_t first, uint32_t round)
{
	bool states = b->layout->state_mask;
	struct index_hit hits[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS], t0 = clock_now_ns();
	struct gates gates;

	gates_begin(&gates, b->layout, ~0u, 0, 0);
	for (uint32_t at = 0; at < BATCH; at += INDEX_STEP_KEYS) {
		uint32_t n = BATCH - at < INDEX_STEP_KEYS ? BATCH - at : INDEX_STEP_KEYS;

		index_prefetch(b->index, &b->keys[first + at], n, hashes);
		if (states)
			index_prefetch_rows(b->index, hashes, n);
		index_lookup_hashed(b->index, &b->keys[first + at], hashes, n, ~0u, states, hits);
		for (uint32_t i = 0; i < n; i++)
			b->restorable += gates_page(&gates, (at + i + 1) * 64ull, hits[i].classes) &&
					 (!states || hits[i].row != INDEX_NONE);
	}
	b->ns[round] = (double)(clock_now_ns() - t0) / BATCH;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(struct bench *b)
{
	qsort(b->ns, ROUNDS, sizeof(b->ns[0]), compare);
	return b->ns[ROUNDS / 2];
}

int main(int argc, char **argv)
{
	uint32_t pages = (argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 500000u) / CHAIN * CHAIN;
	static struct bench one, three;
	struct key *keys = malloc(pages * sizeof(*keys));
	uint64_t seed = 88172645463325252ull;

	assert(pages && keys);
	for (uint32_t i = 0; i < pages; i++)
		for (unsigned w = 0; w < 4; w++)
			keys[i].words[w] = mix_64(i * 4ull + w + 1, 0x9e3779b97f4a7c15ull);
	setup(&one, ONE, pages, keys);
	setup(&three, THREE, pages, keys);
	lock_take(&one.lock);
	fill(&one);
	lock_drop(&one.lock);
	lock_take(&three.lock);
	fill(&three);
	lock_drop(&three.lock);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t first;

		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		first = (uint32_t)(seed >> 32) % (pages / CHAIN) * CHAIN;
		lock_take(&one.lock);
		batch(&one, first, round);
		lock_drop(&one.lock);
		lock_take(&three.lock);
		batch(&three, first, round);
		lock_drop(&three.lock);
	}
	assert(one.restorable == (uint64_t)BATCH * ROUNDS && three.restorable == BATCH / RECORD * (uint64_t)ROUNDS);
	double a = median(&one), b = median(&three);

	printf("one class, world 1: %.1f ns/key; three classes, world 4, a row each %u pages: %.1f ns/key; ratio %.2f\n", a, RECORD, b, b / a);
	teardown(&one);
	teardown(&three);
	free(keys);
	return 0;
}
