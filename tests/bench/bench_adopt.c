/* SPDX-License-Identifier: Apache-2.0
 *
 * What it costs to have records back from a catalogue: seconds, and nanoseconds a name.
 *
 *	bench_adopt [records [pages [rows]]]    default 1,000,000 records of 8 pages, each with a row
 *
 * Records are chains of about ten with branches: each one hangs off one of those before it. They come newest first, which
 * is how a catalogue is read, oldest first, and shuffled.
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

#define LAYOUT \
	"{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":1,\"page_tokens\":64,\"classes\":[{\"name\":\"kv\"," \
	"\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":65536}]},{\"name\":\"s\",\"kind\":\"state\"," \
	"\"planes\":[{\"name\":\"s\",\"bytes\":65536}]}]}"

#define AHEAD 8u /* records that are fetched before their turn */

struct bench {
	struct layout *layout;
	struct tables tables;
	struct lock lock;
	struct index *index;
	uint32_t records, pages, rows;
	struct key *keys;
	uint32_t *entries, *parents, *depths, *turn;
	struct row {
		struct key parent;
		uint64_t start;
		uint32_t used;
		bool root;
	} *rows_of; /* in the order of turns, as keys and entries */
	uint64_t seed;
};

static uint64_t roll(struct bench *b)
{
	b->seed ^= b->seed << 13;
	b->seed ^= b->seed >> 7;
	b->seed ^= b->seed << 17;
	return b->seed;
}

static void plan_tree(struct bench *b)
{
	for (uint32_t n = 0; n < b->records; n++) {
		b->parents[n] = n % 10 == 0 ? INDEX_NONE : n % 3 ? n - 1 : (uint32_t)(roll(b) % n);
		b->depths[n] = b->parents[n] == INDEX_NONE ? 0 : 1 + b->depths[b->parents[n]];
	}
}

/* What a catalogue hands out lies in the order of turns, and so do the places. */
static void lay_out(struct bench *b)
{
	uint32_t each = b->pages + 1;

	for (uint64_t i = 0; i < (uint64_t)b->records * b->pages; i++)
		for (unsigned w = 0; w < 4; w++)
			b->keys[i].words[w] = roll(b);
	for (uint64_t i = 0; i < (uint64_t)b->records * each; i++)
		b->entries[i] = i % each < b->pages || b->rows ? (uint32_t)i : INDEX_NONE;
	for (uint32_t n = 0; n < b->records; n++) {
		uint32_t turn = b->turn[n], parent = b->parents[n];

		b->rows_of[turn] = (struct row){.start = (uint64_t)b->depths[n] * b->pages * b->layout->page_tokens, .used = n};
		b->rows_of[turn].root = parent == INDEX_NONE;
		if (parent != INDEX_NONE)
			b->rows_of[turn].parent = b->keys[(uint64_t)(b->turn[parent] + 1) * b->pages - 1];
	}
}

static void order(struct bench *b, bool newest_first)
{
	for (uint32_t n = 0; n < b->records; n++)
		b->turn[n] = newest_first ? b->records - 1 - n : n;
	lay_out(b);
}

static void shuffle(struct bench *b)
{
	for (uint32_t n = b->records; n > 1; n--) {
		uint32_t other = (uint32_t)(roll(b) % n), kept = b->turn[n - 1];

		b->turn[n - 1] = b->turn[other];
		b->turn[other] = kept;
	}
	lay_out(b);
}

static struct index_adoption adoption_of(const struct bench *b, uint32_t turn)
{
	const struct row *row = &b->rows_of[turn];

	return (struct index_adoption){
		.parent = row->root ? NULL : &row->parent,
		.keys = &b->keys[(uint64_t)turn * b->pages],
		.entries = &b->entries[(uint64_t)turn * (b->pages + 1)],
		.start = row->start,
		.pages = b->pages,
		.whole_ring = INDEX_NONE,
		.created_s = 1,
		.last_use_s = 1,
		.tick = 1000 + row->used,
	};
}

static void run(struct bench *b, const char *what)
{
	struct tables_config config = {
		.grants = 1,
		.records = b->records,
		.groups = 1,
		.entries = (b->records * (b->pages + 1) + TABLES_GRANT_ENTRIES - 1) / TABLES_GRANT_ENTRIES * TABLES_GRANT_ENTRIES,
		.generation = 1,
		.identity = b->layout->identity,
		.fingerprint = b->layout->fingerprint,
	};
	void *memory = mmap(NULL, tables_bytes(&config), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct why why = WHY_INIT;
	uint32_t record, cursor = 0;
	uint64_t names = (uint64_t)b->records * (b->pages + b->rows);

	assert(memory != MAP_FAILED);
	tables_format(&b->tables, memory, &config);
	struct index_config index_config = {
		.layout = b->layout,
		.tables = &b->tables,
		.guard = &b->lock,
		.max_pages = config.entries,
		.place_count = config.entries,
	};

	if (index_new(&index_config, &b->index, &why)) {
		fprintf(stderr, "%s\n", why.text);
		exit(1);
	}
	lock_take(&b->lock);
	for (uint32_t n = 0; n < b->records + 2000; n++)
		index_tick(b->index);
	uint64_t fresh = clock_now_ns(), begin;

	index_make_entries_present(b->index, 0, config.entries);
	for (struct index_mark mark = index_mark(b->index); mark.record < b->records; mark.record += INDEX_AHEAD_RECORDS) {
		index_make_present(b->index, mark);
		mark.unit += INDEX_AHEAD_RECORDS * (b->pages * 2 + 1) / 2;
	}
	begin = clock_now_ns();

	for (uint32_t turn = 0; turn < b->records; turn++) {
		if (turn + AHEAD < b->records) {
			struct index_adoption ahead = adoption_of(b, turn + AHEAD);

			index_adopt_prefetch(b->index, ahead.parent, ahead.keys, ahead.pages);
		}
		struct index_adoption a = adoption_of(b, turn);

		if (index_adopt(b->index, &a, &record))
			abort();
	}
	uint64_t adopted = clock_now_ns();

	while (index_adopt_settle(b->index, &cursor))
		;
	uint64_t end = clock_now_ns();

	printf("%s: %u records of %u pages: %.2f s for present memory, %.2f s to adopt (%" PRIu64 " ns a name), %.2f s to settle\n",
		what, b->records, b->pages, (double)(begin - fresh) / 1e9, (double)(adopted - begin) / 1e9,
		(adopted - begin) / names, (double)(end - adopted) / 1e9);
	lock_drop(&b->lock);
	index_free(&b->index);
	munmap(memory, tables_bytes(&config));
}

int main(int argc, char **argv)
{
	struct bench b = {
		.records = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1000000,
		.pages = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 8,
		.rows = argc > 3 ? !!strtoul(argv[3], NULL, 0) : 1,
		.seed = 88172645463325252ull,
	};
	struct why why = WHY_INIT;

	if (layout_parse(LAYOUT, strlen(LAYOUT), &b.layout, &why)) {
		fprintf(stderr, "%s\n", why.text);
		return 1;
	}
	lock_init(&b.lock, LOCK_SPACE);
	b.keys = malloc((uint64_t)b.records * b.pages * sizeof(*b.keys));
	b.entries = malloc((uint64_t)b.records * (b.pages + 1) * sizeof(uint32_t));
	b.parents = malloc(b.records * sizeof(uint32_t));
	b.depths = malloc(b.records * sizeof(uint32_t));
	b.turn = malloc(b.records * sizeof(uint32_t));
	b.rows_of = malloc(b.records * sizeof(*b.rows_of));
	assert(b.keys && b.entries && b.parents && b.depths && b.turn && b.rows_of);
	plan_tree(&b);
	order(&b, true);
	run(&b, "newest first");
	order(&b, false);
	run(&b, "oldest first");
	shuffle(&b);
	run(&b, "shuffled");
	lock_destroy(&b.lock);
	layout_free(&b.layout);
	free(b.keys);
	free(b.entries);
	free(b.parents);
	free(b.depths);
	free(b.turn);
	free(b.rows_of);
	return 0;
}
