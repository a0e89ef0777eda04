/* SPDX-License-Identifier: Apache-2.0 */
#include "index/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/memory.h"

const struct index_sink index_no_sink = {NULL, NULL};

static size_t records_bytes(const struct index *index)
{
	return (size_t)index->tables->record_capacity * sizeof(struct record);
}

/* Most units that blocks can take: each record one block; buddies leave no more than half unused. */
static uint64_t arena_units(const struct index *index, uint32_t max_pages)
{
	uint64_t words = (uint64_t)max_pages * (index->page_columns + 1) +
	                 (uint64_t)index->tables->record_capacity * (index->row_columns + 2);
	uint64_t units = words / ARENA_UNIT_WORDS * 2 + (1u << 20);

	return units < 1u << 31 ? units : 1u << 31;
}

int index_new(const struct index_config *config, struct index **ret, struct why *why)
{
	struct tables *tables = config->tables;

	if (!config->max_pages || config->max_pages >= WORD_ENTRY)
		return why_set(
			why, EINVAL, "an index for %u pages; from 1 to %u can be", config->max_pages, WORD_ENTRY - 1);
	if (tables->entry_capacity >= WORD_ENTRY || !tables->record_capacity)
		return why_set(why, EINVAL,
			"tables with %u entries and %u records; an index takes up to %u and at least 1",
			tables->entry_capacity, tables->record_capacity, WORD_ENTRY - 1);
	if ((uint64_t)config->hollow_first + config->hollow_count > tables->entry_capacity)
		return why_set(why, EINVAL, "hollow entries %u + %u lie beyond the tables' %u", config->hollow_first,
			config->hollow_count, tables->entry_capacity);

	if ((uint64_t)config->place_first + config->place_count > tables->entry_capacity)
		return why_set(why, EINVAL, "places %u + %u lie beyond the tables' %u entries", config->place_first,
			config->place_count, tables->entry_capacity);

	struct index *index = calloc(1, sizeof(*index));
	struct policy_view views[2];

	if (!index)
		return why_set(why, ENOMEM, "no memory for an index");
	index->layout = config->layout;
	index->tables = tables;
	index->guard = config->guard;
	index->page_columns = config->layout->page_columns;
	index->row_columns = config->layout->row_columns;
	index->record_free = index->going = INDEX_NONE;
	index->era = (uint32_t)tables->header->generation;
	index->hollow_first = config->hollow_first;
	index->hollow_count = config->hollow_count;
	index->place_first = config->place_first;
	index->place_count = config->place_count;
	index->settle_at = INDEX_NONE;
	index->gone = config->gone;
	index->gone_context = config->gone_context;
	index->news = config->news;
	index->news_context = config->news_context;
	index->on_loss = config->lost;
	index->on_loss_context = config->lost_context;
	index->row_gone = config->row_gone;
	index->row_gone_context = config->row_gone_context;
	index->loss.record = INDEX_NONE;
	index->tick = 1;
	index->now_s = (uint32_t)clock_wall_s();
	gates_begin(&index->gates, config->layout, ~0u, 0, 0);
	policy_views(index, views);
	index->records = memory_reserve(records_bytes(index), true);
	index->memo = resume_memo_new();
	index->pages = policy_lru.create(&views[0], tables->record_capacity, why);
	index->lost = policy_lru.create(&views[0], tables->record_capacity, why);
	index->rows = policy_lru.create(&views[1], tables->record_capacity, why);
	if (olds_new(index, why) || !index->records || !index->memo || !index->pages || !index->lost || !index->rows ||
		keymap_init(
			&index->map, config->max_pages + config->hollow_count, tables->entries, sizeof(struct entry)) ||
		keymap_init(&index->orphans, tables->record_capacity, tables->records, sizeof(struct record_entry)) ||
		arena_init(&index->arena, arena_units(index, config->max_pages))) {
		index_free(&index);
		return why_set(why, ENOMEM, "no address space for an index of %u pages and %u records",
			config->max_pages, tables->record_capacity);
	}
	hollow_pool_init(index);
	*ret = index;
	return 0;
}

void index_free(struct index **indexp)
{
	struct index *index = *indexp;

	*indexp = NULL;
	if (!index)
		return;
	memory_release(&index->records, records_bytes(index));
	policy_lru.destroy(&index->pages);
	policy_lru.destroy(&index->lost);
	policy_lru.destroy(&index->rows);
	olds_free(index);
	keymap_deinit(&index->map);
	keymap_deinit(&index->orphans);
	arena_deinit(&index->arena);
	free(index->memo);
	free(index);
}

size_t index_memory_bytes(const struct index *index)
{
	return sizeof(*index) + (size_t)index->record_top * sizeof(struct record) + keymap_memory_bytes(&index->map) +
	       keymap_memory_bytes(&index->orphans) + arena_memory_bytes(&index->arena) +
	       policy_lru.memory_bytes(index->pages) + policy_lru.memory_bytes(index->rows) +
	       policy_lru.memory_bytes(index->lost) + olds_memory_bytes(index) + resume_memo_bytes(index->memo);
}

const struct index_counters *index_counters(const struct index *index)
{
	lock_assert_held(index->guard);
	return &index->counters;
}

struct record *index_record(struct index *index, uint32_t number)
{
	assert(number < index->record_top);
	return &index->records[number];
}

uint64_t index_consumed(const struct index *index, uint32_t record, uint16_t page)
{
	return place_consumed(index, record, page);
}

bool index_record_visible(const struct index *index, uint32_t number)
{
	const struct record *r = &index->records[number];

	if (record_hidden(index, r))
		return false;
	if (r->state == RECORD_LIVE)
		return r->pages || r->flags & RECORD_FLAG_ROW;
	return r->state == RECORD_FILLING && tables_committed(index->tables, record_table(index, number)->group);
}

/* A zero-page record that waits to join its twin: the twin bears the name. */
static bool hidden_by_twin(const struct index *index, const struct record *r)
{
	if (r->pages || r->parent == INDEX_NONE)
		return false;

	const struct record *parent = &index->records[r->parent];

	return parent->state == RECORD_LIVE && parent->pages && r->parent_page == parent->pages - 1 &&
	       record_table(index, r->parent)->consumed == record_table(index, record_number(index, r))->consumed;
}

uint32_t index_next_record(struct index *index, uint32_t *cursor)
{
	lock_assert_held(index->guard);
	for (unsigned looked = 0; looked < INDEX_STEP_KEYS && *cursor < index->record_top; looked++) {
		uint32_t number = (*cursor)++;

		if (index_record_visible(index, number) && !hidden_by_twin(index, &index->records[number]))
			return number;
	}
	if (*cursor >= index->record_top)
		*cursor = index->record_top + 1;
	return INDEX_NONE;
}

uint32_t index_record_limit(const struct index *index)
{
	return index->record_top;
}
