/* SPDX-License-Identifier: Apache-2.0 */
#include "index/files.h"

#include <assert.h>
#include <string.h>

#define LINES 2u

/* @line: of all records', so that no line is taken for another one. */
static uint64_t row_check(const struct file_row *row, uint32_t line)
{
	uint64_t sizes = (uint64_t)row->blocks << 32 | row->record_check;
	uint64_t counts = (uint64_t)row->pages << 48 | (uint64_t)row->file_pages << 32 | (uint64_t)row->flags << 16 | row->turn;

	return tables_check_key(&row->endpoint, tables_check_pair(row->id, sizes),
				tables_check_number(TABLES_KIND_ROW, line) ^ tables_check_pair(counts, line));
}

static struct file_row *line_of(const struct tables *tables, uint32_t record, uint32_t line)
{
	assert(record < tables->record_capacity);
	return &tables->rows[(size_t)record * LINES + line];
}

static bool line_counts(const struct tables *tables, uint32_t record, uint32_t line)
{
	const struct file_row *row = line_of(tables, record, line);

	return row->check == row_check(row, record * LINES + line) &&
	       row->record_check == (uint32_t)tables->records[record].check;
}

/* The line that counts; LINES: neither. */
static uint32_t line_now(const struct tables *tables, uint32_t record)
{
	bool first = line_counts(tables, record, 0), second = line_counts(tables, record, 1);

	if (first && second)
		return (int16_t)(line_of(tables, record, 1)->turn - line_of(tables, record, 0)->turn) > 0 ? 1 : 0;
	return first ? 0 : second ? 1 : LINES;
}

const struct file_row *files_get(const struct tables *tables, uint32_t record)
{
	uint32_t line = line_now(tables, record);

	return line == LINES ? NULL : line_of(tables, record, line);
}

void files_set(struct tables *tables, uint32_t record, const struct file_row *row)
{
	uint32_t before = line_now(tables, record), line = before == 0 ? 1 : 0;
	struct file_row *to = line_of(tables, record, line);
	struct file_row now = *row;

	now.turn = before == LINES ? 1 : (uint16_t)(line_of(tables, record, before)->turn + 1);
	now.record_check = (uint32_t)tables->records[record].check;
	if (before == LINES) /* what is left there of a former record never counts again */
		tables_unseal(&line_of(tables, record, 1)->check);
	tables_unseal(&to->check);
	memcpy(to, &now, offsetof(struct file_row, check));
	__atomic_store_n(&to->check, row_check(to, record * LINES + line), __ATOMIC_RELEASE);
}

/* The line that does not count first: else it would count again in between. */
void files_clear(struct tables *tables, uint32_t record)
{
	uint32_t now = line_now(tables, record);
	uint32_t last = now == 1 ? 1 : 0;

	tables_unseal(&line_of(tables, record, 1 - last)->check);
	tables_unseal(&line_of(tables, record, last)->check);
}

void files_set_clean(struct tables *tables, uint32_t slot, bool clean)
{
	assert(slot < tables->slot_capacity);
	uint64_t word = tables->clean[slot / 64], bit = 1ull << slot % 64;

	__atomic_store_n(&tables->clean[slot / 64], clean ? word | bit : word & ~bit, __ATOMIC_RELEASE);
}
