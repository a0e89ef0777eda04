/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules for pools and copies, one function each.
 */
#include "kernels/check.h"

#include <errno.h>
#include <stdbool.h>

#include "kernels/say.h"
#include "kernels/shape.h"

#define MAX_CELLS (1u << 16)  /* planes x pages of a value */
#define MAX_PIECES (1u << 20) /* of a value that a token range cuts, and of all parts */
#define MAX_BYTES (1ull << 63)

typedef unsigned long long ull;

static uint64_t page_bytes(const struct pfs_gpu_pool *pool, const struct pfs_gpu_plane *plane)
{
	return plane->bytes / pool_pages_per_value(pool);
}

uint32_t plane_alignment(const struct pfs_gpu_pool *pool, const struct pfs_gpu_plane *plane)
{
	uint64_t bits = 16 | page_bytes(pool, plane) | plane->row_bytes;

	return (uint32_t)(bits & -bits);
}

static int check_plane_bytes(const struct pfs_gpu_pool *pool, uint32_t i)
{
	const struct pfs_gpu_plane *plane = &pool->planes[i];
	uint32_t pages = pool_pages_per_value(pool);
	uint64_t page;

	if (plane->bytes == 0 || plane->bytes > MAX_BYTES)
		return gpu_say(EINVAL, "plane %u has %llu bytes, 1..2^63 are possible", i, (ull)plane->bytes);
	if (plane->bytes % pages)
		return gpu_say(EINVAL, "plane %u: its %llu bytes are not those of %u pages", i, (ull)plane->bytes, pages);
	page = plane->bytes / pages;
	if (plane->row_bytes && page % plane->row_bytes)
		return gpu_say(EINVAL, "plane %u: the %llu bytes of a page are not whole rows of %llu", i, (ull)page,
			(ull)plane->row_bytes);
	if (plane->blocks && page % plane->blocks)
		return gpu_say(EINVAL, "plane %u: the %llu bytes of a page are not %u equal blocks", i, (ull)page,
			plane->blocks);
	if (plane->row_bytes && plane->row_bytes < page && plane->row_stride < plane->row_bytes)
		return gpu_say(EINVAL, "plane %u: rows of %llu bytes overlap, row_stride is %llu", i, (ull)plane->row_bytes,
			(ull)plane->row_stride);
	return plane->reserved ? gpu_say(EINVAL, "plane %u: reserved is %u, not 0", i, plane->reserved) : 0;
}

/* Bytes from the first to behind the last of a page. */
static bool page_span(const struct pfs_gpu_pool *pool, const struct pfs_gpu_plane *plane, uint64_t *ret)
{
	uint64_t page = page_bytes(pool, plane), rows, span;

	*ret = page;
	if (plane->row_bytes == 0 || plane->row_bytes == page)
		return true;
	rows = page / plane->row_bytes;
	if (__builtin_mul_overflow(rows - 1, plane->row_stride, &span) ||
		__builtin_add_overflow(span, plane->row_bytes, &span))
		return false;
	*ret = span;
	return true;
}

/* Planes of one tensor may lie between each other's rows. Those of a page do not meet those of the next one where all of a page lies within the
 * stride. */
static int check_plane_place(const struct pfs_gpu_pool *pool, uint32_t i)
{
	const struct pfs_gpu_plane *plane = &pool->planes[i];
	uint32_t alignment = plane_alignment(pool, plane);
	uint64_t span, last, end;

	if (!plane->base)
		return gpu_say(EINVAL, "plane %u has no address", i);
	if (plane->base % alignment)
		return gpu_say(EINVAL, "plane %u is misaligned: base is 0x%llx, not a multiple of %u as its pieces are", i,
			(ull)plane->base, alignment);
	if (plane->stride % alignment)
		return gpu_say(EINVAL, "plane %u is misaligned: stride is %llu, not a multiple of %u as its pieces are", i,
			(ull)plane->stride, alignment);
	if (plane->row_bytes && plane->row_stride % alignment)
		return gpu_say(EINVAL, "plane %u is misaligned: row_stride is %llu, not a multiple of %u as its pieces are", i,
			(ull)plane->row_stride, alignment);
	if (!page_span(pool, plane, &span))
		return gpu_say(EOVERFLOW, "plane %u: rows of a page are farther apart than addresses go", i);
	if (pool->page_limit > 1 && plane->stride < span)
		return gpu_say(EINVAL, "plane %u: pages overlap, each spans %llu bytes and stride is %llu", i, (ull)span,
			(ull)plane->stride);
	if (__builtin_mul_overflow((uint64_t)(pool->page_limit - 1), plane->stride, &last) ||
		__builtin_add_overflow(last, span, &end) || __builtin_add_overflow(plane->base, end, &end))
		return gpu_say(EOVERFLOW, "plane %u: %u pages of stride %llu from 0x%llx on end behind the last address", i,
			pool->page_limit, (ull)plane->stride, (ull)plane->base);
	return 0;
}

static int check_tokens(const struct pfs_gpu_pool *pool, uint32_t i)
{
	const struct pfs_gpu_plane *plane = &pool->planes[i];
	uint32_t pages = pool_pages_per_value(pool), blocks = plane->blocks ? plane->blocks : 1;
	uint64_t block = page_bytes(pool, plane) / blocks, tokens = pool->value_tokens / pages;

	if (block % tokens)
		return gpu_say(EINVAL, "plane %u: the %llu bytes of a block are not those of %llu tokens", i, (ull)block,
			(ull)tokens);
	return 0;
}

static int check_counts(const struct pfs_gpu_pool *pool)
{
	uint32_t pages = pool_pages_per_value(pool);

	if (!pool->planes || pool->plane_count == 0)
		return gpu_say(EINVAL, "a pool has no planes");
	if (pool->plane_count > PFS_GPU_MAX_PLANES)
		return gpu_say(E2BIG, "plane_count is %u, at most %u are possible", pool->plane_count, PFS_GPU_MAX_PLANES);
	if (pages > PFS_GPU_MAX_PAGES_PER_VALUE)
		return gpu_say(E2BIG, "pages_per_value is %u, at most %u are possible", pages, PFS_GPU_MAX_PAGES_PER_VALUE);
	if ((uint64_t)pool->plane_count * pages > MAX_CELLS)
		return gpu_say(E2BIG, "%u planes x %u pages of a value, at most %u pieces are possible", pool->plane_count,
			pages, MAX_CELLS);
	if (pool->page_limit == 0)
		return gpu_say(EINVAL, "page_limit is 0: no page can be named");
	if (pool->value_tokens % pages)
		return gpu_say(EINVAL, "value_tokens is %u, not those of %u equal pages", pool->value_tokens, pages);
	if (pool->reserved[0] || pool->reserved[1])
		return gpu_say(EINVAL, "reserved fields of a pool are not 0");
	return 0;
}

int check_pool(const struct pfs_gpu_pool *pool)
{
	uint64_t sum = 0;
	int r;

	if (!pool)
		return gpu_say(EINVAL, "a copy has no pool");
	r = check_counts(pool);
	for (uint32_t i = 0; i < pool->plane_count && !r; i++) {
		r = check_plane_bytes(pool, i);
		if (!r)
			r = check_plane_place(pool, i);
		if (!r && pool->value_tokens)
			r = check_tokens(pool, i);
		if (!r && (__builtin_add_overflow(sum, pool->planes[i].bytes, &sum) || sum > MAX_BYTES))
			r = gpu_say(EOVERFLOW, "planes 0..%u have more than 2^63 bytes together", i);
	}
	return r;
}

static int check_lists(const struct pfs_gpu_copy *copy)
{
	uint32_t pages = pool_pages_per_value(copy->pool);
	uint64_t bytes = pool_value_bytes(copy->pool), total, end;

	if (copy->count == 0 || !copy->values || !copy->pages)
		return gpu_say(EINVAL, "a copy has no values or no pages");
	if (copy->count > PFS_GPU_MAX_VALUES || (uint64_t)copy->count * pages > PFS_GPU_MAX_VALUES)
		return gpu_say(E2BIG, "count is %u with %u pages a value, at most %u pages are possible", copy->count, pages,
			PFS_GPU_MAX_VALUES);
	if (__builtin_mul_overflow(bytes, (uint64_t)copy->count, &total) || total > MAX_BYTES)
		return gpu_say(EOVERFLOW, "%u values of %llu bytes have more than 2^63", copy->count, (ull)bytes);
	for (uint32_t i = 0; i < copy->count; i++)
		if (__builtin_add_overflow(copy->values[i], bytes, &end))
			return gpu_say(EOVERFLOW, "value %u: %llu bytes at 0x%llx end behind the last address", i, (ull)bytes,
				(ull)copy->values[i]);
	for (uint64_t i = 0; i < (uint64_t)copy->count * pages; i++)
		if (copy->pages[i] >= copy->pool->page_limit)
			return gpu_say(ERANGE, "page id %u at place %llu, the pool has %u pages", copy->pages[i], (ull)i,
				copy->pool->page_limit);
	return 0;
}

/* A range may not cut through a row of a plane. */
static int check_rows_cut(const struct pfs_gpu_pool *pool, uint32_t i)
{
	const struct pfs_gpu_plane *plane = &pool->planes[i];
	uint32_t blocks = plane->blocks ? plane->blocks : 1;
	uint64_t page = page_bytes(pool, plane), block = page / blocks;
	uint64_t token = block / (pool->value_tokens / pool_pages_per_value(pool));

	if (plane->row_bytes == 0 || plane->row_bytes == page || token % plane->row_bytes == 0 ||
		plane->row_bytes % block == 0)
		return 0;
	return gpu_say(EINVAL, "plane %u: rows of %llu bytes cannot be cut between tokens of %llu", i, (ull)plane->row_bytes,
		(ull)token);
}

static int check_range(const struct pfs_gpu_copy *copy)
{
	const struct pfs_gpu_pool *pool = copy->pool;
	uint64_t tokens = (uint64_t)pool->value_tokens * copy->count, pieces = 0;
	int r = 0;

	if (copy->token_to == 0)
		return copy->token_from ? gpu_say(ERANGE, "token_from is %llu and token_to 0", (ull)copy->token_from) : 0;
	if (pool->value_tokens == 0)
		return gpu_say(EINVAL, "a token range, and value_tokens of the pool is 0");
	if (copy->token_from >= copy->token_to || copy->token_to > tokens)
		return gpu_say(ERANGE, "tokens %llu..%llu, and the values have %llu", (ull)copy->token_from,
			(ull)copy->token_to, (ull)tokens);
	if (copy->token_from % pool->value_tokens == 0 && copy->token_to % pool->value_tokens == 0)
		return 0;
	for (uint32_t i = 0; i < pool->plane_count && !r; i++) {
		pieces += (uint64_t)(pool->planes[i].blocks ? pool->planes[i].blocks : 1) * pool_pages_per_value(pool);
		r = check_rows_cut(pool, i);
	}
	if (!r && pieces > MAX_PIECES)
		r = gpu_say(E2BIG, "a token range cuts a value into %llu pieces, at most %u are possible", (ull)pieces,
			MAX_PIECES);
	return r;
}

/* Of a value, in @part: a plane of a page each, or each of its blocks where a token range cuts them. */
static uint64_t part_pieces(const struct pfs_gpu_copy *copy, const struct pfs_gpu_part *part)
{
	const struct pfs_gpu_plane *planes = copy->pool->planes + part->first_plane;
	uint64_t pieces = part->plane_count;

	for (uint32_t i = 0; copy->token_to && i < part->plane_count; i++)
		pieces += planes[i].blocks ? planes[i].blocks - 1 : 0;
	return pieces * pool_pages_per_value(copy->pool);
}

static int check_parts(const struct pfs_gpu_copy *copy)
{
	uint64_t pieces = 0;

	if (!copy->parts)
		return copy->part_count ? gpu_say(EINVAL, "part_count is %u without parts", copy->part_count) : 0;
	if (copy->part_count == 0)
		return gpu_say(EINVAL, "part_count is 0");
	if (copy->part_count > PFS_GPU_MAX_PARTS)
		return gpu_say(E2BIG, "part_count is %u, at most %u are possible", copy->part_count, PFS_GPU_MAX_PARTS);
	for (uint32_t i = 0; i < copy->part_count; i++) {
		const struct pfs_gpu_part *part = &copy->parts[i];

		if (part->plane_count == 0 || part->first_plane >= copy->pool->plane_count ||
			part->plane_count > copy->pool->plane_count - part->first_plane)
			return gpu_say(ERANGE, "part %u is %u planes from %u on, the pool has %u", i, part->plane_count,
				part->first_plane, copy->pool->plane_count);
		pieces += part_pieces(copy, part);
		if (pieces > MAX_PIECES)
			return gpu_say(E2BIG, "parts 0..%u have %llu pieces of a value, at most %u are possible", i, (ull)pieces,
				MAX_PIECES);
	}
	return 0;
}

int check_copy(const struct pfs_gpu_copy *copy)
{
	int r;

	if (!copy)
		return gpu_say(EINVAL, "no copy was given");
	if (copy->flags & ~PFS_GPU_URGENT)
		return gpu_say(EINVAL, "flags are 0x%x, 0 or PFS_GPU_URGENT are possible", copy->flags);
	if (copy->reserved0 || copy->reserved[0] || copy->reserved[1] || copy->reserved[2] || copy->reserved[3])
		return gpu_say(EINVAL, "reserved fields of a copy are not 0");
	r = check_pool(copy->pool);
	if (!r)
		r = check_lists(copy);
	if (!r)
		r = check_range(copy);
	return r ? r : check_parts(copy);
}
