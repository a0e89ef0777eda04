/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling slots. A slot's copies are MERGE_MAX_ENTRIES at most, and one batch where a slot is not larger than a batch.
 */
#include "kernels/stage.h"

_Static_assert(STAGE_RING_BYTES / 2 / STAGE_MAX_SLOTS >= STAGE_SLOT_BYTES, "a value of several columns fits");

uint32_t stage_stretches(const struct gpu_rect *rect, uint64_t gap, struct stretch *to)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < rect->column_count; i++) {
		const struct gpu_column *c = &rect->columns[i];

		if (n > 0 && c->offset - (to[n - 1].offset + to[n - 1].bytes) <= gap)
			to[n - 1].bytes = c->offset + c->bytes - to[n - 1].offset;
		else
			to[n++] = (struct stretch){c->offset, c->bytes};
	}
	return n;
}

static uint64_t low_of(const struct gpu_rect *rect)
{
	return rect->columns[0].offset;
}

static uint64_t high_of(const struct gpu_rect *rect)
{
	const struct gpu_column *last = &rect->columns[rect->column_count - 1];

	return last->offset + last->bytes;
}

bool stage_fits(const struct gpu_rect *rect, uint64_t bytes)
{
	return high_of(rect) - low_of(rect) <= bytes - 16;
}

uint32_t stage_max_rows(const struct gpu_rect *rect)
{
	return (uint32_t)(STAGE_ROW_BYTES / (sizeof(uint64_t) + sizeof(uint32_t) * (uint64_t)rect->pages_per_value));
}

/* That a slot takes, if it has the bytes. */
static uint32_t most_rows(const struct gpu_rect *rect, uint32_t stretches)
{
	uint32_t by_tables = stage_max_rows(rect), by_entries = MERGE_MAX_ENTRIES / (stretches ? stretches : 1);

	if (by_entries == 0)
		by_entries = 1;
	return by_tables < by_entries ? by_tables : by_entries;
}

uint32_t stage_sure_rows(const struct gpu_rect *rect, uint32_t stretches, uint64_t bytes, uint64_t gap)
{
	uint64_t each = high_of(rect) - low_of(rect) + (gap > 15 ? gap : 15), most = most_rows(rect, stretches);

	return (uint32_t)(bytes / each < most ? bytes / each : most);
}

/* Does row @i go on in memory where row @i - 1 ended, or nearly? */
static bool goes_on(const struct gpu_rect *rect, uint32_t i, uint64_t gap)
{
	uint64_t end = rect->values[i - 1] + high_of(rect), begin = rect->values[i] + low_of(rect);

	return begin >= end && begin - end <= gap;
}

uint32_t stage_place(const struct gpu_rect *rect, uint32_t stretches, uint32_t first, uint64_t slot, uint64_t bytes,
	uint64_t gap, uint64_t *stand_ins)
{
	uint64_t low = low_of(rect), span = high_of(rect) - low, end = slot;
	uint32_t most = most_rows(rect, stretches), n = 0;

	for (; n < most && first + n < rect->row_count; n++) {
		uint32_t i = first + n;
		uint64_t begin = rect->values[i] + low, at;

		if (n > 0 && goes_on(rect, i, gap))
			at = end + (begin - (rect->values[i - 1] + high_of(rect)));
		else
			at = end + ((begin - end) & 15);
		if (at + span > slot + bytes)
			break;
		stand_ins[n] = at - low;
		end = at + span;
	}
	return n;
}

/* The bytes between row @i - 1 and row @i, so that both are one entry; they are of memory that is used anyway. */
static int fill_gap(struct merger *m, const struct gpu_rect *rect, uint32_t i, const uint64_t *stand_in)
{
	uint64_t end = rect->values[i - 1] + high_of(rect), begin = rect->values[i] + low_of(rect);

	if (begin == end || m->count == 0 || m->wall <= begin || m->count == MERGE_MAX_ENTRIES)
		return 0;
	return merge_add(m, stand_in[-1] + high_of(rect), end, begin - end);
}

int stage_entries(struct merger *m, const struct gpu_rect *rect, const struct stretch *stretches, uint32_t stretch_count,
	uint32_t first, uint32_t count, uint64_t gap, const uint64_t *stand_ins)
{
	int r = 0;

	for (uint32_t i = 0; i < count && !r; i++) {
		if (i > 0 && gap > 0 && goes_on(rect, first + i, gap))
			r = fill_gap(m, rect, first + i, &stand_ins[i]);
		for (uint32_t k = 0; k < stretch_count && !r; k++)
			r = merge_add(m, stand_ins[i] + stretches[k].offset, rect->values[first + i] + stretches[k].offset,
				stretches[k].bytes);
	}
	return r;
}
