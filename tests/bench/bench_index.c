/* SPDX-License-Identifier: Apache-2.0
 *
 * What the index costs: nanoseconds a key, bytes a page.
 *
 *	bench_index [pages [record pages]]      times (default 1,000,000 and both 1 and 32)
 *	bench_index memory [pages]              bytes a page (default 10,000,000 in records of 32), also after refilling
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "index/index.h"
#include "index/mix.h"
#include "store/base/clock.h"
#include "store/base/memory.h"

#define LAYOUT \
	"{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":1,\"page_tokens\":64,\"classes\":[{\"name\":\"kv\"," \
	"\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":65536}]}]}"

struct bench {
	struct layout *layout;
	struct tables tables;
	struct lock lock;
	struct index *index;
	uint32_t pages, per_record;
	struct key *keys;
	uint32_t *free_entries, free_count;
	uint64_t seed;
	struct index_sink sink;
};

static uint64_t roll(struct bench *b)
{
	b->seed ^= b->seed << 13;
	b->seed ^= b->seed >> 7;
	b->seed ^= b->seed << 17;
	return b->seed;
}

static void freed(void *context, uint32_t entry)
{
	struct bench *b = context;

	b->free_entries[b->free_count++] = entry;
}

static void new_index(struct bench *b)
{
	struct why why = WHY_INIT;
	struct index_config config = {
		.layout = b->layout,
		.tables = &b->tables,
		.guard = &b->lock,
		.max_pages = b->tables.entry_capacity,
		.hollow_first = b->tables.entry_capacity,
	};

	if (index_new(&config, &b->index, &why)) {
		fprintf(stderr, "%s\n", why.text);
		abort();
	}
}

static void setup(struct bench *b, uint32_t pages, uint32_t per_record)
{
	struct why why = WHY_INIT;
	uint32_t entries = (pages + TABLES_GRANT_ENTRIES) / TABLES_GRANT_ENTRIES * TABLES_GRANT_ENTRIES;

	memset(b, 0, sizeof(*b));
	b->pages = pages;
	b->per_record = per_record;
	b->seed = 88172645463325252ull;
	b->sink = (struct index_sink){freed, b};
	if (layout_parse(LAYOUT, strlen(LAYOUT), &b->layout, &why))
		abort();
	struct tables_config config = {
		.grants = 1,
		.records = pages / per_record * 2 + 1024,
		.groups = 16,
		.entries = entries,
		.identity = b->layout->identity,
		.fingerprint = b->layout->fingerprint,
	};
	void *memory = memory_reserve(tables_bytes(&config), true);

	assert(memory);
	tables_format(&b->tables, memory, &config);
	b->tables.grants[0] = (struct grant_entry){.first_entry = 0, .slots = pages, .used = 2};
	tables_seal_grant(&b->tables, 0);
	lock_init(&b->lock, LOCK_SPACE);
	new_index(b);
	b->keys = malloc(pages * sizeof(*b->keys));
	b->free_entries = malloc(entries * sizeof(uint32_t));
	for (uint32_t i = 0; i < pages; i++)
		for (unsigned w = 0; w < 4; w++)
			b->keys[i].words[w] = mix_64(i * 4ull + w + 1, 0x9e3779b97f4a7c15ull);
	for (uint32_t i = pages; i-- > 0;)
		b->free_entries[b->free_count++] = i;
	b->tables.groups[0].state = GROUP_PREPARED;
	tables_seal_group(&b->tables.groups[0], 0);
	lock_take(&b->lock);
}

static void teardown(struct bench *b)
{
	lock_drop(&b->lock);
	index_free(&b->index);
	munmap(b->tables.header, b->tables.bytes);
	layout_free(&b->layout);
	lock_destroy(&b->lock);
	free(b->keys);
	free(b->free_entries);
}

/* One record of keys [first, first + n), none of which is there. */
static uint32_t put(struct bench *b, uint32_t first, uint32_t n, uint32_t *entries)
{
	struct index_run run = {
		.parent_key = first % 4096 ? &b->keys[first - 1] : NULL,
		.consumed = first % 4096 * 64ull,
		.max_pages = n,
		.group = 1,
		.whole_ring = INDEX_NONE,
	};
	uint32_t record = index_record_new(b->index, &run);
	uint64_t hash;

	assert(record != INDEX_NONE);
	for (uint32_t i = 0; i < n; i++) {
		entries[i] = b->free_entries[--b->free_count];
		index_prefetch(b->index, &b->keys[first + i], 1, &hash);
		index_page_add(b->index, record, &b->keys[first + i], hash, 0, 0, entries[i], 1);
	}
	index_record_close(b->index, record);
	return record;
}

enum {
	BATCH = 1000,
	ROUNDS = 2000,
	MAX_ROUNDS = 1 << 16
};

/* Nanoseconds of each round; the median is told, since other programs' turns fall into some. */
struct rounds {
	uint32_t n;
	double ns[MAX_ROUNDS];
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void note(struct rounds *r, uint64_t ns, uint32_t n)
{
	if (r->n < MAX_ROUNDS)
		r->ns[r->n++] = (double)ns / n;
}

static void median(const char *what, struct rounds *r, const char *unit)
{
	if (!r->n)
		return;
	qsort(r->ns, r->n, sizeof(r->ns[0]), compare);
	printf("  %-34s %8.1f ns/%s\n", what, r->ns[r->n / 2], unit);
	r->n = 0;
}

static void line(const char *what, uint64_t ns, uint64_t n, const char *unit)
{
	printf("  %-34s %8.1f ns/%s\n", what, (double)ns / (double)n, unit);
}

static void fill(struct bench *b, bool say)
{
	uint32_t group = 512 / b->per_record ? 512 / b->per_record * b->per_record : b->per_record;
	uint32_t *entries = malloc(group * sizeof(*entries));
	uint32_t *records = malloc((group / b->per_record + 1) * sizeof(*records));
	static struct rounds look, add, settle;

	for (uint32_t first = 0; first < b->pages; first += group) {
		uint32_t n = b->pages - first < group ? b->pages - first : group, n_records = 0;
		struct index_hit hits[INDEX_STEP_KEYS];
		uint64_t t0 = clock_now_ns();

		b->tables.groups[0].state = GROUP_PREPARED;
		index_tick(b->index);
		for (uint32_t i = 0; i < n; i += INDEX_STEP_KEYS)
			index_lookup(b->index, &b->keys[first + i], n - i < INDEX_STEP_KEYS ? n - i : INDEX_STEP_KEYS,
				1, hits);
		uint64_t t1 = clock_now_ns();

		for (uint32_t i = 0; i < n; i += b->per_record)
			records[n_records++] = put(
				b, first + i, n - i < b->per_record ? n - i : b->per_record, entries + i);
		uint64_t t2 = clock_now_ns();

		tables_group_publish(&b->tables, 0);
		for (uint32_t i = 0; i < n; i++)
			index_settle(b->index, entries[i]);
		for (uint32_t i = 0; i < n_records; i++)
			index_record_publish(b->index, records[i], &b->sink);
		uint64_t t3 = clock_now_ns();

		note(&look, t1 - t0, n);
		note(&add, t2 - t1, n);
		note(&settle, t3 - t2, n);
	}
	if (!say)
		look.n = add.n = settle.n = 0;
	median("lookup, all miss", &look, "key");
	median("record new, append, add", &add, "key");
	median("settle, publish", &settle, "key");
	free(entries);
	free(records);
}

/* Batches of BATCH keys as a request has them: a chain of @run following keys from each of several random places. */
/* A pin and a touch for each stretch of hits in one record, as GET_START does. */
static uint32_t pin_run(struct bench *b, const struct index_hit *hits, uint32_t n, uint32_t tick, uint32_t *ret)
{
	uint32_t pinned = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (hits[i].record == INDEX_NONE || (i + 1 < n && hits[i + 1].record == hits[i].record))
			continue;
		index_pin(b->index, hits[i].record);
		index_touch(b->index, hits[i].record, hits[i].page, tick);
		ret[pinned++] = hits[i].record;
	}
	return pinned;
}

static void look(struct bench *b, uint32_t run, bool pin)
{
	static struct key batch[BATCH];
	static struct index_hit hits[BATCH + INDEX_STEP_KEYS];
	static uint32_t pins[BATCH];
	static struct rounds go, leave;
	uint64_t hit = 0;
	char name[64];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < BATCH; i += run) {
			uint32_t first = (uint32_t)((roll(b) >> 32) * (b->pages - run) >> 32);

			for (uint32_t j = i; j < i + run && j < BATCH; j++)
				batch[j] = b->keys[first + j - i];
		}
		uint32_t pinned = 0;
		uint64_t t0 = clock_now_ns();
		uint32_t tick = index_tick(b->index);

		for (uint32_t i = 0; i < BATCH; i += INDEX_STEP_KEYS) {
			uint32_t n = BATCH - i < INDEX_STEP_KEYS ? BATCH - i : INDEX_STEP_KEYS;

			index_lookup(b->index, batch + i, n, 1, hits + i);
			if (pin)
				pinned += pin_run(b, hits + i, n, tick, pins + pinned);
		}
		uint64_t t1 = clock_now_ns();

		for (uint32_t i = 0; i < pinned; i++)
			index_unpin(b->index, pins[i], &b->sink);
		uint64_t t2 = clock_now_ns();

		note(&go, t1 - t0, BATCH);
		if (pin)
			note(&leave, t2 - t1, BATCH);
		for (uint32_t i = 0; i < BATCH; i++)
			hit += hits[i].complete;
	}
	assert(hit == (uint64_t)BATCH * ROUNDS);
	snprintf(name, sizeof(name), "lookup%s, runs of %u", pin ? " + pin + touch" : "", run);
	median(name, &go, "key");
	median("unpin", &leave, "key");
}

static void evict(struct bench *b)
{
	static struct rounds rounds;
	int r = 0;

	while (!r) {
		uint64_t t0 = clock_now_ns();

		for (uint32_t i = 0; i < INDEX_STEP_KEYS && !r; i++)
			r = index_evict_page(b->index, NULL, NULL, &b->sink);
		note(&rounds, clock_now_ns() - t0, INDEX_STEP_KEYS);
	}
	median("evict", &rounds, "page");
}

static void times(uint32_t pages, uint32_t per_record)
{
	struct bench b;

	setup(&b, pages, per_record);
	printf("%u pages in records of %u\n", pages, per_record);
	fill(&b, true);
	look(&b, 1, false);
	look(&b, 1, true);
	look(&b, BATCH, false);
	look(&b, BATCH, true);
	evict(&b);
	printf("  again, in memory that has been touched:\n");
	fill(&b, true);
	teardown(&b);
}

static void say_memory(struct bench *b, const char *when)
{
	uint64_t pages = index_counters(b->index)->pages;
	size_t index_bytes = index_memory_bytes(b->index);
	size_t tables = (size_t)pages * sizeof(struct entry) +
	                (size_t)index_record_limit(b->index) * sizeof(struct record_entry);

	printf("  %-34s %8" PRIu64 " pages: %.1f bytes a page (index %.1f, tables %.1f)\n", when, pages,
		(double)(index_bytes + tables) / (double)pages, (double)index_bytes / (double)pages,
		(double)tables / (double)pages);
}

/* A record of @n of @keys, committed. */
static void put_committed(struct bench *b, uint32_t first, uint32_t n)
{
	uint32_t entries[64];

	b->tables.groups[0].state = GROUP_PREPARED;
	uint32_t record = put(b, first, n, entries);

	tables_group_publish(&b->tables, 0);
	for (uint32_t i = 0; i < n; i++)
		index_settle(b->index, entries[i]);
	index_record_publish(b->index, record, &b->sink);
}

/* Pages are used at random, half of them are evicted, records of random lengths come in their place; and again. */
static void memory(uint32_t pages)
{
	struct bench b;

	setup(&b, pages, 32);
	printf("%u pages in records of 32\n", pages);
	fill(&b, false);
	say_memory(&b, "filled");
	for (uint32_t round = 1; round <= 3; round++) {
		for (uint32_t i = 0; i < pages / 64; i++) {
			struct index_hit hit;

			index_lookup(b.index, &b.keys[(roll(&b) >> 32) * pages >> 32], 1, 1, &hit);
			if (hit.record != INDEX_NONE)
				index_touch(b.index, hit.record, hit.page, index_tick(b.index));
		}
		while (b.free_count < pages / 2)
			if (index_evict_page(b.index, NULL, NULL, &b.sink))
				break;
		say_memory(&b, "half evicted");
		uint32_t gone = b.free_count;

		for (uint32_t i = 0; i < gone; i++) /* new keys, for what comes now */
			for (unsigned w = 0; w < 4; w++)
				b.keys[i].words[w] = mix_64(i * 4ull + w + 1, 0xa0761d6478bd642full + round);
		for (uint32_t first = 0, n; first + 64 < gone; first += n) {
			n = 1 + (uint32_t)((roll(&b) >> 32) * 63 >> 32);
			put_committed(&b, first, n);
		}
		say_memory(&b, "refilled, lengths 1 to 63");
	}
	index_free(&b.index);
	uint64_t t0 = clock_now_ns();

	new_index(&b);
	if (index_rebuild(b.index, NULL))
		abort();
	line("rebuild", clock_now_ns() - t0, pages, "page");
	say_memory(&b, "rebuilt");
	teardown(&b);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "memory")) {
		memory(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 10000000u);
		return 0;
	}
	uint32_t pages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1000000u;

	if (argc > 2) {
		times(pages, (uint32_t)strtoul(argv[2], NULL, 0));
		return 0;
	}
	times(pages, 1);
	times(pages, 32);
	return 0;
}
