/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad input of copies: each rule by its error and its sentence. No memory is touched.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/check.h"
#include "kernels/say.h"
#include "kernels/shape.h"

/* A copy with nothing wrong: 2 planes of 4 KiB, 3 values of 2 pages with 8 tokens each. */
struct good {
	struct pfs_gpu_plane planes[2];
	struct pfs_gpu_pool pool;
	struct pfs_gpu_copy copy;
	uint64_t values[3];
	uint32_t pages[6];
};

static void make(struct good *g)
{
	*g = (struct good){
		.planes = {{.base = 1 << 20, .stride = 2048, .bytes = 4096}, {.base = 2 << 20, .stride = 2048, .bytes = 4096}},
		.pool = {.planes = g->planes, .plane_count = 2, .page_limit = 10, .pages_per_value = 2, .value_tokens = 16},
		.copy = {.pool = &g->pool, .values = g->values, .pages = g->pages, .count = 3},
		.values = {1ull << 32, 2ull << 32, 3ull << 32},
		.pages = {0, 9, 1, 8, 2, 7},
	};
}

static void expect(const struct good *g, int error, const char *sentence)
{
	assert_int_equal(check_copy(&g->copy), -error);
	if (error)
		assert_string_equal(gpu_said(), sentence);
}

#define BAD(change, error, sentence)                                                                                   \
	do {                                                                                                            \
		make(&g);                                                                                               \
		change;                                                                                                 \
		expect(&g, error, sentence);                                                                            \
	} while (0)

static void planes(void **state)
{
	struct good g;

	make(&g);
	expect(&g, 0, NULL);
	BAD(g.planes[1].bytes = 0, EINVAL, "plane 1 has 0 bytes, 1..2^63 are possible");
	BAD(g.planes[1].bytes = 4097, EINVAL, "plane 1: its 4097 bytes are not those of 2 pages");
	BAD(g.planes[1].base = 0, EINVAL, "plane 1 has no address");
	BAD(g.planes[1].base += 8, EINVAL, "plane 1 is misaligned: base is 0x200008, not a multiple of 16 as its pieces are");
	BAD(g.planes[0].stride = 2052, EINVAL, "plane 0 is misaligned: stride is 2052, not a multiple of 16 as its pieces are");
	BAD(g.planes[0].stride = 2032, EINVAL, "plane 0: pages overlap, each spans 2048 bytes and stride is 2032");
	BAD((g.planes[0].row_bytes = 100, g.planes[0].row_stride = 200), EINVAL,
		"plane 0: the 2048 bytes of a page are not whole rows of 100");
	BAD((g.planes[0].row_bytes = 128, g.planes[0].row_stride = 112), EINVAL,
		"plane 0: rows of 128 bytes overlap, row_stride is 112");
	BAD((g.planes[0].row_bytes = 128, g.planes[0].row_stride = 264), EINVAL,
		"plane 0 is misaligned: row_stride is 264, not a multiple of 16 as its pieces are");
	BAD((g.planes[0].row_bytes = 128, g.planes[0].row_stride = 256), EINVAL,
		"plane 0: pages overlap, each spans 3968 bytes and stride is 2048");
	BAD((g.planes[0].row_bytes = 128, g.planes[0].row_stride = 1ull << 62), EOVERFLOW,
		"plane 0: rows of a page are farther apart than addresses go");
	BAD(g.planes[0].blocks = 3, EINVAL, "plane 0: the 2048 bytes of a page are not 3 equal blocks");
	BAD(g.planes[0].stride = 1ull << 62, EOVERFLOW,
		"plane 0: 10 pages of stride 4611686018427387904 from 0x100000 on end behind the last address");
	BAD(g.planes[0].reserved = 1, EINVAL, "plane 0: reserved is 1, not 0");
	BAD((g.planes[0].bytes = g.planes[1].bytes = 1ull << 63, g.pool.page_limit = 1, g.copy.count = 1, g.pages[1] = 0), EOVERFLOW,
		"planes 0..1 have more than 2^63 bytes together");
	BAD(g.pool.value_tokens = 10, EINVAL, "plane 0: the 2048 bytes of a block are not those of 5 tokens");
	/* Odd sizes need no more alignment than they have. */
	BAD((g.planes[0].bytes = 2 * 1172, g.planes[0].base = 4, g.planes[0].stride = 1172, g.pool.value_tokens = 0), 0, NULL);
	BAD((g.planes[0].bytes = 2 * 1172, g.planes[0].base = 6, g.planes[0].stride = 1172, g.pool.value_tokens = 0), EINVAL,
		"plane 0 is misaligned: base is 0x6, not a multiple of 4 as its pieces are");
}

static void pools(void **state)
{
	struct good g;

	BAD(g.copy.pool = NULL, EINVAL, "a copy has no pool");
	BAD(g.pool.plane_count = 0, EINVAL, "a pool has no planes");
	BAD(g.pool.plane_count = 4097, E2BIG, "plane_count is 4097, at most 4096 are possible");
	BAD(g.pool.pages_per_value = 1025, E2BIG, "pages_per_value is 1025, at most 1024 are possible");
	BAD((g.pool.pages_per_value = 1024, g.pool.plane_count = 65), E2BIG,
		"65 planes x 1024 pages of a value, at most 65536 pieces are possible");
	BAD(g.pool.page_limit = 0, EINVAL, "page_limit is 0: no page can be named");
	BAD(g.pool.value_tokens = 15, EINVAL, "value_tokens is 15, not those of 2 equal pages");
	BAD(g.pool.reserved[1] = 1, EINVAL, "reserved fields of a pool are not 0");
}

static void lists(void **state)
{
	struct good g;

	BAD(g.copy.count = 0, EINVAL, "a copy has no values or no pages");
	BAD(g.copy.values = NULL, EINVAL, "a copy has no values or no pages");
	BAD(g.copy.count = 1 << 20, E2BIG, "count is 1048576 with 2 pages a value, at most 1048576 pages are possible");
	BAD(g.copy.count = UINT32_MAX, E2BIG, "count is 4294967295 with 2 pages a value, at most 1048576 pages are possible");
	BAD(g.pages[3] = 10, ERANGE, "page id 10 at place 3, the pool has 10 pages");
	BAD(g.pages[5] = UINT32_MAX, ERANGE, "page id 4294967295 at place 5, the pool has 10 pages");
	BAD(g.values[2] = UINT64_MAX - 8190, EOVERFLOW, "value 2: 8192 bytes at 0xffffffffffffe001 end behind the last address");
	BAD((g.planes[0].bytes = 1ull << 62, g.pool.value_tokens = 0, g.planes[0].stride = 1ull << 61, g.pool.page_limit = 1,
		    memset(g.pages, 0, sizeof(g.pages))),
		EOVERFLOW, "3 values of 4611686018427392000 bytes have more than 2^63");
	BAD(g.copy.flags = 2, EINVAL, "flags are 0x2, 0 or PFS_GPU_URGENT are possible");
	BAD(g.copy.reserved[3] = 2, EINVAL, "reserved fields of a copy are not 0");
}

static void ranges(void **state)
{
	struct pfs_gpu_part parts[2] = {{0, 1}, {1, 1}};
	struct good g;

	BAD((g.copy.token_from = 3, g.copy.token_to = 48), 0, NULL);
	BAD((g.copy.token_from = 3, g.copy.token_to = 49), ERANGE, "tokens 3..49, and the values have 48");
	BAD((g.copy.token_from = 3, g.copy.token_to = 3), ERANGE, "tokens 3..3, and the values have 48");
	BAD(g.copy.token_from = 3, ERANGE, "token_from is 3 and token_to 0");
	BAD((g.copy.token_to = 3, g.pool.value_tokens = 0), EINVAL, "a token range, and value_tokens of the pool is 0");
	BAD((g.copy.token_to = 3, g.planes[0].row_bytes = 512, g.planes[0].row_stride = 512), EINVAL,
		"plane 0: rows of 512 bytes cannot be cut between tokens of 256");
	BAD((g.copy.token_to = 32, g.planes[0].row_bytes = 512, g.planes[0].row_stride = 512), 0, NULL);
	BAD((g.copy.parts = parts, g.copy.part_count = 2), 0, NULL);
	BAD(g.copy.part_count = 2, EINVAL, "part_count is 2 without parts");
	BAD(g.copy.parts = parts, EINVAL, "part_count is 0");
	BAD((g.copy.parts = parts, g.copy.part_count = 1025), E2BIG, "part_count is 1025, at most 1024 are possible");
	parts[1].plane_count = 2;
	BAD((g.copy.parts = parts, g.copy.part_count = 2), ERANGE, "part 1 is 2 planes from 1 on, the pool has 2");
	parts[1] = (struct pfs_gpu_part){UINT32_MAX, 2};
	BAD((g.copy.parts = parts, g.copy.part_count = 2), ERANGE, "part 1 is 2 planes from 4294967295 on, the pool has 2");
}

/* Parts may name planes again, but tables of all their pieces have to be made. */
static void parts_without_end(void **state)
{
	static struct pfs_gpu_plane planes[PFS_GPU_MAX_PLANES];
	static struct pfs_gpu_part parts[257];
	static uint32_t pages[16];
	uint64_t value = 1ull << 40;
	struct pfs_gpu_pool pool = {.planes = planes, .plane_count = PFS_GPU_MAX_PLANES, .page_limit = 1, .pages_per_value = 16,
		.value_tokens = 32};
	struct pfs_gpu_copy copy = {.pool = &pool, .values = &value, .pages = pages, .count = 1, .parts = parts, .part_count = 16};

	for (uint32_t i = 0; i < PFS_GPU_MAX_PLANES; i++)
		planes[i] = (struct pfs_gpu_plane){.base = 1ull << 36, .stride = 4096, .bytes = 65536};
	for (uint32_t i = 0; i < 257; i++)
		parts[i] = (struct pfs_gpu_part){0, PFS_GPU_MAX_PLANES};
	assert_int_equal(check_copy(&copy), 0);
	copy.part_count = 17;
	assert_int_equal(check_copy(&copy), -E2BIG);
	assert_string_equal(gpu_said(), "parts 0..16 have 1114112 pieces of a value, at most 1048576 are possible");
	copy.part_count = 16;
	copy.token_to = 31;
	assert_int_equal(check_copy(&copy), 0);
	planes[PFS_GPU_MAX_PLANES - 1].blocks = 2;
	assert_int_equal(check_copy(&copy), -E2BIG);
	assert_string_equal(gpu_said(), "parts 0..15 have 1048832 pieces of a value, at most 1048576 are possible");
	copy.token_to = 0;
	assert_int_equal(check_copy(&copy), 0);
}

/* Pools and values beyond 4 GiB and 2^31 pieces: the last byte is where it belongs. */
static void beyond_four_gib(void **state)
{
	static const uint32_t page = 3000000;
	uint64_t value = 1ull << 40;
	struct pfs_gpu_plane planes[2] = {{.base = 1ull << 36, .stride = 1 << 20, .bytes = 1 << 20},
		{.base = 1ull << 45, .stride = 5ull << 30, .bytes = 5ull << 30}};
	struct pfs_gpu_pool pool = {.planes = planes, .plane_count = 2, .page_limit = page + 1};
	struct pfs_gpu_copy copy = {.pool = &pool, .values = &value, .pages = &page, .count = 1};
	struct shape *s = NULL;
	struct gpu_rect rect;

	assert_int_equal(check_copy(&copy), 0);
	assert_int_equal(shape_make(&copy, &s), 0);
	assert_int_equal(s->bytes, (1ull << 20) + (5ull << 30));
	rect = shape_rect(s, s->rect_count - 1);
	assert_int_equal(rect.columns[0].offset, 1 << 20);
	assert_int_equal(rect.columns[0].bytes, 5ull << 30);
	assert_int_equal(rect.columns[0].base + rect.pages[0] * rect.columns[0].stride, (1ull << 45) + 3000000ull * (5ull << 30));
	shape_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(planes),
		cmocka_unit_test(pools),
		cmocka_unit_test(lists),
		cmocka_unit_test(ranges),
		cmocka_unit_test(parts_without_end),
		cmocka_unit_test(beyond_four_gib),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
