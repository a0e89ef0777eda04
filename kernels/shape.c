/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies into rectangles. A token range cuts the first and the last value, each of which is then a rectangle of one row with
 * columns of its own; a part is a range of columns; and no rectangle is larger than the staging ring and the tables of a
 * kernel have room for.
 */
#include "kernels/shape.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/say.h"

uint32_t pool_pages_per_value(const struct pfs_gpu_pool *pool)
{
	return pool->pages_per_value ? pool->pages_per_value : 1;
}

uint64_t pool_value_bytes(const struct pfs_gpu_pool *pool)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < pool->plane_count; i++)
		bytes += pool->planes[i].bytes;
	return bytes;
}

/* Values of which tokens from..to-1 are moved; rows first..first+count-1. */
struct band {
	uint32_t first, count;
	uint64_t from, to; /* tokens in each value */
	bool whole;
};

/* At most three: a cut value, whole ones, another cut one. */
static uint32_t bands_of(const struct pfs_gpu_copy *copy, struct band bands[3])
{
	uint64_t tokens = copy->pool->value_tokens, from = copy->token_from, to = copy->token_to;
	uint32_t n = 0, first, last;

	if (to == 0) {
		bands[0] = (struct band){0, copy->count, 0, tokens, true};
		return 1;
	}
	first = (uint32_t)(from / tokens);
	last = (uint32_t)((to - 1) / tokens);
	if (from % tokens) {
		uint64_t end = first == last ? (to - 1) % tokens + 1 : tokens;

		bands[n++] = (struct band){first, 1, from % tokens, end, false};
		if (first == last)
			return n;
		first++;
	}
	if (to % tokens) {
		if (last > first)
			bands[n++] = (struct band){first, last - first, 0, tokens, true};
		bands[n++] = (struct band){last, 1, 0, to % tokens, false};
	} else if (last + 1 > first) {
		bands[n++] = (struct band){first, last + 1 - first, 0, tokens, true};
	}
	return n;
}

/* Grows as columns and rectangles come. */
struct maker {
	struct shape *s;
	const struct pfs_gpu_copy *copy;
	uint32_t column_room, rect_room;
};

static int add_column(struct maker *m, const struct gpu_column *column)
{
	if (m->s->column_count == m->column_room) {
		uint32_t room = m->column_room ? m->column_room * 2 : 64;
		struct gpu_column *more = realloc(m->s->columns, room * sizeof(*more));

		if (!more)
			return gpu_say(ENOMEM, "no memory for %u pieces of a value", room);
		m->s->columns = more;
		m->column_room = room;
	}
	m->s->columns[m->s->column_count++] = *column;
	return 0;
}

static int add_rect(struct maker *m, const struct shape_rect *rect)
{
	if (m->s->rect_count == m->rect_room) {
		uint32_t room = m->rect_room ? m->rect_room * 2 : 8;
		struct shape_rect *more = realloc(m->s->rects, room * sizeof(*more));

		if (!more)
			return gpu_say(ENOMEM, "no memory for %u parts of a copy", room);
		m->s->rects = more;
		m->rect_room = room;
	}
	m->s->rects[m->s->rect_count++] = *rect;
	return 0;
}

/* Tokens from..to-1 of page @page of a plane whose bytes begin at @at in the value: one piece for each block of tokens. */
static int add_cell(struct maker *m, const struct pfs_gpu_plane *plane, uint64_t at, uint32_t page, uint64_t from, uint64_t to,
	uint64_t page_tokens)
{
	uint64_t cell = plane->bytes / pool_pages_per_value(m->copy->pool);
	uint64_t row = plane->row_bytes ? plane->row_bytes : cell;
	uint64_t blocks = from == 0 && to == page_tokens ? 1 : plane->blocks ? plane->blocks : 1;
	uint64_t block = cell / blocks, token = page_tokens ? block / page_tokens : block;
	int r = 0;

	for (uint64_t b = 0; b < blocks && !r; b++) {
		uint64_t begin = page_tokens ? b * block + from * token : 0, bytes = page_tokens ? (to - from) * token : cell;
		struct gpu_column column = {
			.base = plane->base + (row == cell ? begin : begin / row * plane->row_stride + begin % row),
			.stride = plane->stride,
			.offset = at + page * cell + begin,
			.bytes = bytes,
			.row_bytes = row == cell || bytes < row ? bytes : row,
			.row_stride = plane->row_stride,
			.page = page,
		};

		r = add_column(m, &column);
	}
	return r;
}

static int add_plane(struct maker *m, const struct band *band, uint32_t plane, uint64_t at)
{
	uint32_t pages = pool_pages_per_value(m->copy->pool);
	uint64_t page_tokens = band->whole ? 0 : m->copy->pool->value_tokens / pages;
	int r = 0;

	for (uint32_t j = 0; j < pages && !r; j++) {
		uint64_t first = j * page_tokens, from = band->from > first ? band->from - first : 0;
		uint64_t to = band->to < first + page_tokens ? band->to - first : page_tokens;

		if (band->whole)
			r = add_cell(m, &m->copy->pool->planes[plane], at, j, 0, 0, 0);
		else if (band->from < first + page_tokens && band->to > first)
			r = add_cell(m, &m->copy->pool->planes[plane], at, j, from, to, page_tokens);
	}
	return r;
}

/* Columns first..end-1 as rectangles of the allowed size. */
static int cut_rects(struct maker *m, const struct band *band, uint32_t first, uint32_t end, uint32_t part)
{
	int r = 0;

	while (first < end && !r) {
		const struct gpu_column *c = m->s->columns;
		uint32_t next = first + 1;

		while (next < end && next - first < SHAPE_MAX_COLUMNS &&
			c[next].offset + c[next].bytes - c[first].offset <= SHAPE_MAX_SPAN)
			next++;
		r = add_rect(m, &(struct shape_rect){first, next - first, band->first, band->count, part});
		first = next;
	}
	return r;
}

static int add_part(struct maker *m, const struct band *band, const struct pfs_gpu_part *part, uint32_t number)
{
	const struct pfs_gpu_pool *pool = m->copy->pool;
	uint32_t first = m->s->column_count;
	uint64_t at = 0;
	int r = 0;

	for (uint32_t i = 0; i < part->first_plane; i++)
		at += pool->planes[i].bytes;
	for (uint32_t i = part->first_plane; i < part->first_plane + part->plane_count && !r; i++) {
		r = add_plane(m, band, i, at);
		at += pool->planes[i].bytes;
	}
	return r ? r : cut_rects(m, band, first, m->s->column_count, number);
}

static int take_lists(struct shape *s, const struct pfs_gpu_copy *copy)
{
	size_t pages = (size_t)copy->count * s->pages_per_value;

	s->values = malloc(copy->count * sizeof(*s->values));
	s->pages = malloc(pages * sizeof(*s->pages));
	if (!s->values || !s->pages)
		return gpu_say(ENOMEM, "no memory for the addresses of %u values and %zu pages", copy->count, pages);
	memcpy(s->values, copy->values, copy->count * sizeof(*s->values));
	memcpy(s->pages, copy->pages, pages * sizeof(*s->pages));
	return 0;
}

static uint64_t bytes_of(const struct shape *s)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->rect_count; i++) {
		const struct shape_rect *rect = &s->rects[i];
		uint64_t row = 0;

		for (uint32_t c = 0; c < rect->column_count; c++)
			row += s->columns[rect->first_column + c].bytes;
		sum += row * rect->row_count;
	}
	return sum;
}

int shape_make(const struct pfs_gpu_copy *copy, struct shape **ret)
{
	const struct pfs_gpu_part all = {0, copy->pool->plane_count};
	const struct pfs_gpu_part *parts = copy->parts ? copy->parts : &all;
	struct shape *s = calloc(1, sizeof(*s));
	struct maker m = {.s = s, .copy = copy};
	struct band bands[3];
	uint32_t band_count = bands_of(copy, bands);
	int r;

	if (!s)
		return gpu_say(ENOMEM, "no memory for a copy");
	s->count = copy->count;
	s->pages_per_value = pool_pages_per_value(copy->pool);
	s->part_count = copy->parts ? copy->part_count : 1;
	r = take_lists(s, copy);
	for (uint32_t p = 0; p < s->part_count && !r; p++)
		for (uint32_t b = 0; b < band_count && !r; b++)
			r = add_part(&m, &bands[b], &parts[p], p);
	if (r) {
		shape_free(s);
		return r;
	}
	s->bytes = bytes_of(s);
	*ret = s;
	return 0;
}

void shape_free(struct shape *s)
{
	if (!s)
		return;
	free(s->columns);
	free(s->rects);
	free(s->values);
	free(s->pages);
	free(s);
}

struct gpu_rect shape_rect(const struct shape *s, uint32_t i)
{
	const struct shape_rect *rect = &s->rects[i];

	return (struct gpu_rect){
		.columns = s->columns + rect->first_column,
		.values = s->values + rect->first_row,
		.pages = s->pages + (size_t)rect->first_row * s->pages_per_value,
		.column_count = rect->column_count,
		.row_count = rect->row_count,
		.pages_per_value = s->pages_per_value,
	};
}

struct rect_measure rect_measure(const struct gpu_rect *rect)
{
	struct rect_measure m = {0};
	uint64_t bits = 0, end = UINT64_MAX;

	for (uint32_t i = 0; i < rect->column_count; i++) {
		const struct gpu_column *c = &rect->columns[i];

		m.bytes += c->bytes;
		m.longest = c->bytes > m.longest ? c->bytes : m.longest;
		m.pieces += c->bytes / c->row_bytes;
		m.stretches += c->offset != end;
		end = c->offset + c->bytes;
		bits |= c->base | c->stride | c->offset | c->row_bytes | (c->row_bytes == c->bytes ? 0 : c->row_stride);
	}
	for (uint32_t i = 0; i < rect->row_count; i++)
		bits |= rect->values[i];
	m.bytes *= rect->row_count;
	m.pieces *= rect->row_count;
	m.stretches *= rect->row_count;
	m.aligned = bits % 16 == 0;
	return m;
}
