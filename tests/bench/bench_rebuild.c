/* SPDX-License-Identifier: Apache-2.0
 *
 * What it costs to have the index back from its tables after a death: seconds, the least and the most of some rebuilds.
 *
 *	bench_rebuild [pages [record pages [times]]]    default 1,000,000 in records of 1, of 16 and of 64, 5 times
 *
 * Chains of 1,000 pages. Slots are given out one after the other, as to an empty namespace, or anywhere, as to one that has
 * been full for long. The tables are in a memory file that each rebuild maps anew, as a successor does. One thread does it all:
 * where other programs run too, its processor's time says what it costs without them.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "index/index.h"
#include "index/mix.h"
#include "store/base/clock.h"

#define LAYOUT \
	"{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":1,\"page_tokens\":64,\"classes\":[{\"name\":\"kv\"," \
	"\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":65536}]}]}"
#define CHAIN 1000u

struct bench {
	struct layout *layout;
	struct tables tables;
	struct lock lock;
	struct index *index;
	uint32_t pages, per_record;
	uint32_t *slots; /* [pages] in the order in which they are given out */
	int file;
	size_t bytes;
};

static struct key key_of(uint32_t page)
{
	struct key key;

	for (unsigned w = 0; w < 4; w++)
		key.words[w] = mix_64(page * 4ull + w + 1, 0x9e3779b97f4a7c15ull);
	return key;
}

static void fail(const struct why *why)
{
	fprintf(stderr, "%s\n", why->text);
	exit(1);
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

	if (index_new(&config, &b->index, &why))
		fail(&why);
}

static void *map_tables(const struct bench *b)
{
	void *memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, b->file, 0);

	assert(memory != MAP_FAILED);
	return memory;
}

static void let_go(struct bench *b)
{
	index_free(&b->index);
	munmap(b->tables.header, b->bytes);
}

static void make_tables(struct bench *b)
{
	struct tables_config config = {
		.grants = 1,
		.records = b->pages / b->per_record * 2 + 1024,
		.groups = 16,
		.entries = (b->pages + TABLES_GRANT_ENTRIES) / TABLES_GRANT_ENTRIES * TABLES_GRANT_ENTRIES,
		.identity = b->layout->identity,
		.fingerprint = b->layout->fingerprint,
	};

	b->bytes = tables_bytes(&config);
	b->file = memfd_create("tables", MFD_CLOEXEC);
	if (b->file < 0 || ftruncate(b->file, (off_t)b->bytes))
		abort();
	tables_format(&b->tables, map_tables(b), &config);
	b->tables.grants[0] = (struct grant_entry){.first_entry = 0, .slots = b->pages, .used = 2};
	tables_seal_grant(&b->tables, 0);
}

static void deal_slots(struct bench *b, bool anywhere)
{
	uint64_t seed = 88172645463325252ull;

	for (uint32_t i = 0; i < b->pages; i++)
		b->slots[i] = i;
	for (uint32_t n = b->pages; anywhere && n > 1; n--) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		uint32_t other = (uint32_t)((seed >> 32) * n >> 32), kept = b->slots[n - 1];

		b->slots[n - 1] = b->slots[other];
		b->slots[other] = kept;
	}
}

/* A committed record of pages [first, first + n). */
static void put(struct bench *b, uint32_t first, uint32_t n)
{
	struct key before = key_of(first - 1);
	struct index_run run = {
		.parent_key = first % CHAIN ? &before : NULL,
		.parent_record = INDEX_NONE,
		.consumed = first % CHAIN * 64ull,
		.max_pages = n,
		.group = 1,
		.whole_ring = INDEX_NONE,
	};
	b->tables.groups[0].state = GROUP_PREPARED;
	tables_seal_group(&b->tables.groups[0], 0);
	uint32_t record = index_record_new(b->index, &run);

	assert(record != INDEX_NONE);
	for (uint32_t i = first; i < first + n; i++) {
		struct key key = key_of(i);
		uint64_t hash;

		index_prefetch(b->index, &key, 1, &hash);
		index_page_add(b->index, record, &key, hash, 0, 0, b->slots[i], 1);
	}
	index_record_close(b->index, record);
	tables_group_publish(&b->tables, 0);
	for (uint32_t i = first; i < first + n; i++)
		index_settle(b->index, b->slots[i]);
	index_record_publish(b->index, record, NULL);
}

static void fill(struct bench *b)
{
	new_index(b);
	for (uint32_t first = 0, n; first < b->pages; first += n) {
		n = CHAIN - first % CHAIN; /* to the chain's end */
		n = n < b->per_record ? n : b->per_record;
		n = n < b->pages - first ? n : b->pages - first;
		put(b, first, n);
	}
	let_go(b);
}

static double processor_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct range {
	double least, most;
};

static void note(struct range *range, double s)
{
	range->least = range->most == 0 || s < range->least ? s : range->least;
	range->most = s > range->most ? s : range->most;
}

static void rebuild(struct bench *b, struct range *clock, struct range *processor)
{
	uint64_t begin = clock_now_ns();
	double used = processor_s();
	struct why why = WHY_INIT;

	if (tables_open(&b->tables, map_tables(b), b->bytes, &why))
		fail(&why);
	new_index(b);
	if (index_rebuild(b->index, &why))
		fail(&why);
	note(processor, processor_s() - used);
	note(clock, (double)(clock_now_ns() - begin) / 1e9);
	if (index_counters(b->index)->pages != b->pages || index_counters(b->index)->orphans)
		abort();
	let_go(b);
}

static void measure(struct bench *b, uint32_t per_record, bool anywhere, uint32_t times)
{
	struct range clock = {0, 0}, processor = {0, 0};

	b->per_record = per_record;
	deal_slots(b, anywhere);
	make_tables(b);
	fill(b);
	for (uint32_t i = 0; i < times; i++)
		rebuild(b, &clock, &processor);
	close(b->file);
	printf("%u pages in records of %u, slots %s: %.2f to %.2f s, of a processor %.2f to %.2f s\n", b->pages, per_record,
		anywhere ? "anywhere" : "in order", clock.least, clock.most, processor.least, processor.most);
}

int main(int argc, char **argv)
{
	struct bench b = {.pages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1000000};
	uint32_t given = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 0;
	uint32_t times = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 0) : 5;
	const uint32_t lengths[] = {1, 16, 64};
	struct why why = WHY_INIT;

	if (layout_parse(LAYOUT, strlen(LAYOUT), &b.layout, &why))
		fail(&why);
	b.slots = malloc(b.pages * sizeof(*b.slots));
	assert(b.slots);
	lock_init(&b.lock, LOCK_SPACE);
	lock_take(&b.lock);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		if (given && i)
			break;
		measure(&b, given ? given : lengths[i], false, times);
		measure(&b, given ? given : lengths[i], true, times);
	}
	lock_drop(&b.lock);
	lock_destroy(&b.lock);
	layout_free(&b.layout);
	free(b.slots);
	return 0;
}
