/* SPDX-License-Identifier: Apache-2.0
 *
 * An index over tables in memory, for tests: layouts by text, free entries, keys by number.
 */
#ifndef PREFIXFS_TESTS_INDEX_WORLD_H
#define PREFIXFS_TESTS_INDEX_WORLD_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "index/index.h"
#include "index/internal.h"
#include "index/layout.h"

#define LAYOUT_HEAD "{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":2,\"page_tokens\":16,\"classes\":["
#define CLASS_KV \
	"{\"name\":\"kv\",\"kind\":\"dense\",\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"k\",\"bytes\":64}]}"
#define CLASS_KV2 "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":64}]}"
#define CLASS_WIN \
	"{\"name\":\"win\",\"kind\":\"window\",\"every\":32,\"last\":2,\"share_of_rank\":[0,0]," \
	"\"planes\":[{\"name\":\"w\",\"bytes\":64}]}"
#define CLASS_STATE "{\"name\":\"s\",\"kind\":\"state\",\"planes\":[{\"name\":\"s\",\"bytes\":64}]}"
#define CLASS_STATE1 \
	"{\"name\":\"s1\",\"kind\":\"state\",\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"s\",\"bytes\":64}]}"

#define CLASS_WIN2 \
	"{\"name\":\"near\",\"kind\":\"window\",\"sink\":1,\"last\":1,\"planes\":[{\"name\":\"w\",\"bytes\":64}]}"

#define LAYOUT_WINDOWS LAYOUT_HEAD CLASS_WIN2 "," CLASS_WIN "," CLASS_STATE1 "]}"
#define LAYOUT_PLAIN LAYOUT_HEAD CLASS_KV "]}"
#define LAYOUT_ROWS LAYOUT_HEAD CLASS_KV2 "," CLASS_STATE "]}"
#define LAYOUT_MANY LAYOUT_HEAD CLASS_KV "," CLASS_WIN "," CLASS_STATE "," CLASS_STATE1 "]}"

/* What is known of a LIVE record from what was seen and told (index_config.lost). */
struct world_shadow {
	bool known, row;
	bool recount; /* values went with pages or the row, or came by a join */
	uint32_t pages, values;
	uint64_t consumed;
	struct key endpoint;
};

struct world_loss {
	enum index_loss what;
	uint32_t record, other;
	uint64_t consumed; /* as it was named when it was told */
	struct key endpoint;
};
#define WORLD_LOSSES 256u

struct world {
	struct layout *layout;
	struct tables_config config;
	struct tables tables;
	void *memory;
	struct lock lock;
	struct index *index;
	struct index_config index_config;
	uint32_t *free_entries;
	uint32_t free_count;
	uint32_t places, first_place; /* entries behind those of slots */
	uint32_t *free_places;
	uint32_t free_places_count;
	struct world_shadow *shadow; /* [records] */
	struct world_loss losses[WORLD_LOSSES]; /* the first ones since losses_n was made 0 */
	uint32_t losses_n;
	uint32_t joined; /* record that was joined last and is lost next, INDEX_NONE */
	uint64_t told_pages; /* of records, as the news add up */
	uint32_t told_gone;  /* names of which nothing is left */
	uint32_t told_whys;  /* bit w: something went because of enum index_why w */
};

static inline struct key key_of(uint64_t number)
{
	struct key k;

	for (unsigned i = 0; i < 4; i++)
		k.words[i] = mix_64(number * 4 + i + 1, 0x9e3779b97f4a7c15ull) ^ number;
	return k;
}

static inline struct layout *layout_of(const char *text)
{
	struct why why = WHY_INIT;
	struct layout *layout = NULL;

	if (layout_parse(text, strlen(text), &layout, &why)) {
		fprintf(stderr, "%s\n", why.text);
		abort();
	}
	return layout;
}

static inline void world_news(void *context, enum index_news_kind kind, enum index_why why, uint64_t consumed,
	const struct key *endpoint, uint32_t pages, uint32_t row_values)
{
	struct world *w = context;

	assert(why <= INDEX_WHY_LOST);
	if (kind == INDEX_NEWS_STORED) {
		w->told_pages += pages;
		return;
	}
	w->told_whys |= 1u << why;
	assert(pages <= w->told_pages);
	w->told_pages -= pages;
	w->told_gone += kind == INDEX_NEWS_EVICTED;
}

/* A reset hid everything, which is not told one by one. */
static inline void world_was_reset(struct world *w)
{
	w->told_pages = 0;
}

/* The pages of visible records are those that were told. */
static inline void world_check_news(struct world *w)
{
	uint64_t pages = 0;

	for (uint32_t n = 0; n < index_record_limit(w->index); n++)
		if (index_record(w->index, n)->state == RECORD_LIVE && index_record_current(w->index, n))
			pages += index_record(w->index, n)->pages;
	assert(pages == w->told_pages);
}

/* Settled values of a record, and of its row. */
static inline uint32_t world_settled(const struct world *w, uint32_t record, uint32_t *ret_row)
{
	const struct record *r = &w->index->records[record];
	uint32_t n, settled = 0;

	*ret_row = 0;
	for (uint32_t page = 0; page <= r->pages; page++) {
		const uint32_t *words = place_words(w->index, r, page < r->pages ? page : INDEX_PAGE_ROW, &n);

		for (uint32_t i = 0; i < n; i++) {
			bool one = word_is_value(words[i]) && !(words[i] & WORD_PREPARED);

			settled += one;
			*ret_row += one && page == r->pages;
		}
	}
	return settled;
}

/* Every loss fits what is known of the record. */
static inline void world_lost(void *context, enum index_loss what, uint32_t record, uint32_t other)
{
	struct world *w = context;
	struct world_shadow *s = &w->shadow[record];
	struct world_loss loss = {.what = what, .record = record, .other = other};

	index_record_name(w->index, record, &loss.consumed, &loss.endpoint);
	if (w->losses_n < WORLD_LOSSES)
		w->losses[w->losses_n] = loss;
	w->losses_n++;
	assert(w->index->tables->records[record].group == 0);
	assert((what == INDEX_JOINED) == (other != INDEX_NONE));
	assert(w->joined == INDEX_NONE || (what == INDEX_LOST_RECORD && record == w->joined));
	w->joined = INDEX_NONE;
	switch (what) {
	case INDEX_LOST_RECORD:
		assert(!s->known || (loss.consumed == s->consumed && key_equal(&loss.endpoint, &s->endpoint)));
		s->known = false;
		break;
	case INDEX_LOST_PAGES:
		assert(!s->known || w->index->records[record].pages < s->pages);
		s->pages = w->index->records[record].pages;
		s->consumed = loss.consumed;
		s->endpoint = loss.endpoint;
		s->recount = true;
		break;
	case INDEX_LOST_ROW:
		s->row = false;
		s->recount = true;
		break;
	case INDEX_LOST_VALUE:
		assert(!s->known || s->recount || s->values > 0);
		s->values -= s->values > 0;
		break;
	case INDEX_JOINED:
		w->joined = other;
		s->recount = s->row = true;
		break;
	}
}

/* Nothing went that was not told. */
static inline void world_check_losses(struct world *w)
{
	assert(w->joined == INDEX_NONE);
	for (uint32_t n = 0; n < w->config.records; n++) {
		struct world_shadow *s = &w->shadow[n], now = {0};
		bool there = n < index_record_limit(w->index) && index_record(w->index, n)->state != RECORD_FREE;
		uint32_t row;

		assert(!s->known || there);
		if (!there || w->tables.records[n].group)
			continue;
		index_record_name(w->index, n, &now.consumed, &now.endpoint);
		assert(!s->known || (now.consumed == s->consumed && key_equal(&now.endpoint, &s->endpoint)));
		if (index_record(w->index, n)->state != RECORD_LIVE || !index_record_current(w->index, n))
			continue;
		now.known = true;
		now.pages = index_record(w->index, n)->pages;
		now.values = world_settled(w, n, &row);
		now.row = row > 0;
		if (s->known && now.pages) {
			assert(now.pages == s->pages && (now.row || !s->row));
			assert(s->recount || now.values >= s->values);
		}
		*s = now;
	}
}

/* Entries [0, values) are for values, then @places on disk, then @hollow for hollow pages. */
static inline void world_init_places(struct world *w, const char *layout, uint32_t records, uint32_t groups, uint32_t values,
	uint32_t places, uint32_t hollow, int map_flags)
{
	struct why why = WHY_INIT;
	uint32_t room = (values + places + hollow + TABLES_GRANT_ENTRIES - 1) / TABLES_GRANT_ENTRIES * TABLES_GRANT_ENTRIES;

	memset(w, 0, sizeof(*w));
	w->layout = layout_of(layout);
	w->config = (struct tables_config){
		.grants = 1,
		.records = records,
		.groups = groups,
		.entries = room,
		.generation = 1,
		.identity = w->layout->identity,
		.fingerprint = w->layout->fingerprint,
	};
	w->memory = mmap(NULL, tables_bytes(&w->config), PROT_READ | PROT_WRITE,
		map_flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert(w->memory != MAP_FAILED);
	tables_format(&w->tables, w->memory, &w->config);
	w->tables.grants[0] = (struct grant_entry){.first_entry = 0, .slots = values, .used = 2};
	tables_seal_grant(&w->tables, 0);
	lock_init(&w->lock, LOCK_SPACE);
	w->index_config = (struct index_config){
		.layout = w->layout,
		.tables = &w->tables,
		.guard = &w->lock,
		.max_pages = values + places,
		.hollow_first = values + places,
		.hollow_count = hollow,
		.place_first = values,
		.place_count = places,
		.lost = world_lost,
		.lost_context = w,
		.news = world_news,
		.news_context = w,
	};
	if (index_new(&w->index_config, &w->index, &why)) {
		fprintf(stderr, "%s\n", why.text);
		abort();
	}
	w->free_entries = malloc(values * sizeof(uint32_t));
	for (uint32_t i = values; i-- > 0;)
		w->free_entries[w->free_count++] = i;
	w->places = places;
	w->first_place = values;
	w->free_places = malloc((places + 1) * sizeof(uint32_t));
	for (uint32_t i = places; i-- > 0;)
		w->free_places[w->free_places_count++] = values + i;
	w->shadow = calloc(records, sizeof(*w->shadow));
	w->joined = INDEX_NONE;
	lock_take(&w->lock);
}

static inline void world_init(struct world *w, const char *layout, uint32_t records, uint32_t groups, uint32_t values,
	uint32_t hollow, int map_flags)
{
	world_init_places(w, layout, records, groups, values, 0, hollow, map_flags);
}

static inline void world_deinit(struct world *w)
{
	lock_drop(&w->lock);
	index_free(&w->index);
	munmap(w->memory, w->tables.bytes);
	layout_free(&w->layout);
	lock_destroy(&w->lock);
	free(w->free_entries);
	free(w->free_places);
	free(w->shadow);
}

static inline void world_freed(void *context, uint32_t entry)
{
	struct world *w = context;

	assert(w->tables.entries[entry].state == ENTRY_FREE);
	if (entry >= w->first_place)
		w->free_places[w->free_places_count++] = entry;
	else
		w->free_entries[w->free_count++] = entry;
}

static inline uint32_t world_entry(struct world *w)
{
	return w->free_count ? w->free_entries[--w->free_count] : INDEX_NONE;
}

static inline uint32_t world_place(struct world *w)
{
	return w->free_places_count ? w->free_places[--w->free_places_count] : INDEX_NONE;
}

/* Moves the value of @entry from a slot to a place, or back. Returns where it is; INDEX_NONE: there is no room. */
static inline uint32_t world_move(struct world *w, uint32_t entry)
{
	uint32_t to = entry >= w->first_place ? world_entry(w) : world_place(w);

	if (to == INDEX_NONE)
		return to;
	index_value_move(w->index, entry, to);
	world_freed(w, entry);
	return to;
}

/* Makes group @number (not 0) prepared; what stands in entries is @number. */
static inline void world_group(struct world *w, uint32_t number)
{
	struct group_entry *g = &w->tables.groups[number - 1];

	g->plan = number;
	g->number = 0;
	tables_seal_group(&w->tables.groups[number - 1], number - 1);
	__atomic_store_n((uint32_t *)&g->state, GROUP_PREPARED, __ATOMIC_RELEASE);
}

static inline void world_group_end(struct world *w, uint32_t number)
{
	__atomic_store_n((uint32_t *)&w->tables.groups[number - 1].state, GROUP_FREE, __ATOMIC_RELEASE);
}

/* A second index, rebuilt from a copy of the tables as they are now. */
struct twin_world {
	struct tables tables;
	void *memory;
	struct lock lock;
	struct index *index;
};

static inline void world_rebuild(struct world *w, struct twin_world *t, bool copy)
{
	struct why why = WHY_INIT;
	struct index_config config = w->index_config;

	t->memory = w->memory;
	if (copy) {
		t->memory = mmap(NULL, w->tables.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert(t->memory != MAP_FAILED);
		memcpy(t->memory, w->memory, w->tables.bytes);
	}
	if (tables_open(&t->tables, t->memory, w->tables.bytes, &why))
		abort();
	lock_init(&t->lock, LOCK_QUEUE);
	config.tables = &t->tables;
	config.guard = &t->lock;
	lock_take(&t->lock);
	if (index_new(&config, &t->index, &why) || index_rebuild(t->index, &why)) {
		fprintf(stderr, "%s\n", why.text);
		abort();
	}
}

static inline void twin_deinit(struct twin_world *t, struct world *w, bool copy)
{
	index_free(&t->index);
	lock_drop(&t->lock);
	lock_destroy(&t->lock);
	if (copy)
		munmap(t->memory, w->tables.bytes);
}

static inline char *describe(struct index *index)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	assert(f);
	if (index_describe(index, f))
		abort();
	fclose(f);
	return text;
}

/* xorshift, so that a seed means the same everywhere */
static inline uint64_t roll(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

static inline uint32_t roll_to(uint64_t *state, uint32_t n)
{
	return (uint32_t)((roll(state) >> 32) * n >> 32);
}

#endif
