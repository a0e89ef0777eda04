/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the index made present before it is needed: a page fault costs as much as ten keys.
 */
#include "index/internal.h"

#include "store/base/memory.h"

struct index_mark index_mark(const struct index *index)
{
	lock_assert_held(index->guard);
	return (struct index_mark){ index->record_top, index->arena.top };
}

void index_make_present(const struct index *index, struct index_mark mark)
{
	uint32_t records = index->tables->record_capacity - mark.record;
	uint32_t units = index->arena.units - mark.unit;

	if (records > INDEX_AHEAD_RECORDS)
		records = INDEX_AHEAD_RECORDS;
	if (units > INDEX_AHEAD_UNITS)
		units = INDEX_AHEAD_UNITS;
	if (records) {
		memory_make_present(&index->tables->records[mark.record], records * sizeof(struct record_entry));
		memory_make_present(&index->records[mark.record], records * sizeof(struct record));
	}
	if (units)
		memory_make_present(arena_at(&index->arena, mark.unit), units * ARENA_UNIT_WORDS * sizeof(uint32_t));
}

void index_make_entries_present(const struct index *index, uint32_t first, uint32_t count)
{
	memory_make_present(&index->tables->entries[first], (size_t)count * sizeof(struct entry));
}
