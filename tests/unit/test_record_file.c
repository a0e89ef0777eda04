/* SPDX-License-Identifier: Apache-2.0
 *
 * The format of record files: where things lie, what comes back of what was written, and that nothing else is believed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/base/hash.h"
#include "store/record_file.h"

#define PLANES(bytes) "\"planes\":[{\"name\":\"p\",\"bytes\":" #bytes "}]"
#define DENSE "{\"name\":\"kv\",\"kind\":\"dense\"," PLANES(5000) "}"
/* Columns of pages 0..3 kv, 4..5 idx, 6 win; of rows 7..10 gdn. */
#define MANY \
	DENSE ",{\"name\":\"idx\",\"kind\":\"dense\",\"every\":256,\"share_of_rank\":[0,0,1,1],\"share_planes\":[[{" \
	      "\"name\":\"a\",\"bytes\":1}],[{\"name\":\"a\",\"bytes\":4097}]]},{\"name\":\"win\",\"kind\":\"window\"," \
	      "\"sink\":1,\"last\":3,\"share_of_rank\":[0,0,0,0]," PLANES(8192) "}," STATE
#define STATE "{\"name\":\"gdn\",\"kind\":\"state\"," PLANES(12000) "}"

static uint16_t read_alias[RECORD_FILE_MAX_COLUMNS];

static struct layout *make_layout(unsigned world, const char *classes)
{
	struct why why = WHY_INIT;
	struct layout *layout = NULL;
	char text[4096];
	int n = snprintf(text, sizeof(text),
		"{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":%u,\"page_tokens\":64,\"classes\":[%s]}",
		world, classes);

	if (layout_parse(text, (size_t)n, &layout, &why))
		fail_msg("%s", why.text);
	return layout;
}

static struct key key_of(uint64_t n)
{
	struct key key;

	for (unsigned i = 0; i < 4; i++)
		key.words[i] = (n + 1) * 0x9e3779b97f4a7c15ull + i * 0xc2b2ae3d27d4eb4full;
	return key;
}

static struct record_file_id id_of(uint32_t pages, bool row)
{
	return (struct record_file_id){
		.endpoint = key_of(pages),
		.parent = key_of(1000),
		.start = 640,
		.generation = 0x1122334455667788,
		.nonce = 0x99aabbccddeeff01,
		.created_s = -7,
		.whole_id = 0x0123456789abcdef,
		.whole_count = 0xfedcba98,
		.pages = pages,
		.flags = RECORD_FILE_WHOLE | (row ? RECORD_FILE_ROW : 0),
	};
}

static uint8_t *make_header(
	const struct layout *l, const struct record_file_id *id, const uint16_t *alias, struct record_file_plan *plan)
{
	uint8_t *header;

	record_file_plan(l, id->pages, id->flags & RECORD_FILE_ROW, alias, plan);
	header = aligned_alloc(RECORD_FILE_ALIGN, plan->header_bytes);
	memset(header, 0xee, plan->header_bytes);
	record_file_make_header(header, l, plan, id, alias);
	return header;
}

static void seal(uint8_t *header, size_t bytes)
{
	uint64_t sum = hash_64(header, bytes - 8, 0);

	memcpy(header + bytes - 8, &sum, 8);
}

/* The errno, after looking that there is a sentence for it. */
static int read_error(const uint8_t *header, size_t bytes, const struct layout *l)
{
	struct record_file_id id;
	struct why why = WHY_INIT;
	int r = record_file_read_header(header, bytes, l, &id, read_alias, &why);

	assert_int_equal(r, -why.error);
	assert_true(!r == !why.text[0]);
	return -r;
}

/* ---- where things lie ------------------------------------------------------------------------------------------------ */

static void test_plan(void **state)
{
	struct layout *one = make_layout(1, DENSE), *many = make_layout(4, MANY), *rows = make_layout(2, STATE);
	struct record_file_plan p;

	(void)state;
	record_file_plan(one, 100, false, NULL, &p);
	assert_int_equal(p.pages, 100);
	assert_int_equal(p.page_columns, 1);
	assert_int_equal(p.row_columns, 0);
	assert_int_equal(p.page_tokens, 64);
	assert_int_equal(p.header_bytes, 4096);
	assert_int_equal(p.keys_bytes, 4096); /* 100 x 40 + 8 */
	assert_int_equal(p.page_offset, 8192);
	assert_int_equal(p.page_stride, 8192);
	assert_int_equal(p.row_offset, 8192 + 100 * 8192);
	assert_int_equal(p.row_bytes, 0);
	assert_int_equal(p.file_bytes, p.row_offset);
	assert_int_equal(record_file_length(&p, 3), 4 * 8192);
	record_file_plan(one, 103, true, NULL, &p); /* 103 x 40 + 8 = 4128; no state class: no row */
	assert_int_equal(p.keys_bytes, 8192);
	assert_int_equal(p.row_bytes, 0);

	record_file_plan(many, 5, true, NULL, &p);
	assert_int_equal(p.page_columns, 7);
	assert_int_equal(p.row_columns, 4);
	assert_int_equal(p.keys_bytes, 4096);
	assert_int_equal(p.page_stride, 4 * 8192 + 4096 + 8192 + 8192);
	assert_int_equal(p.row_bytes, 4 * 12288);
	assert_int_equal(p.row_offset, 8192 + 5 * 53248);
	assert_int_equal(p.file_bytes, 8192 + 5 * 53248 + 49152);
	assert_int_equal(record_file_offset(many, &p, NULL, 0, 0), 8192);
	assert_int_equal(record_file_offset(many, &p, NULL, 2, 5), 8192 + 2 * 53248 + 4 * 8192 + 4096);
	assert_int_equal(record_file_offset(many, &p, NULL, 4, 6), 8192 + 4 * 53248 + 4 * 8192 + 4096 + 8192);
	assert_int_equal(record_file_offset(many, &p, NULL, TABLES_PAGE_ROW, 3), p.row_offset + 3 * 12288);

	record_file_plan(rows, 0, true, NULL, &p);
	assert_int_equal(p.page_stride, 0);
	assert_int_equal(p.keys_bytes, 4096);
	assert_int_equal(p.row_offset, 8192);
	assert_int_equal(p.file_bytes, 8192 + 2 * 12288);
	record_file_plan(rows, RECORD_FILE_MAX_PAGES, false, NULL, &p);
	assert_int_equal(p.keys_bytes, 4096 * 32 + 4096);
	assert_int_equal(p.file_bytes, p.page_offset);
	layout_free(&one);
	layout_free(&many);
	layout_free(&rows);
}

/* kv's shares are alike but the third, gdn's all. */
static const uint16_t some_aliases[11] = {0, 0, 2, 0, 4, 5, 6, 7, 7, 7, 7};

static void test_aliases(void **state)
{
	struct layout *many = make_layout(4, MANY);
	struct record_file_plan p;

	(void)state;
	record_file_plan(many, 5, true, some_aliases, &p);
	assert_int_equal(p.page_stride, 2 * 8192 + 4096 + 8192 + 8192);
	assert_int_equal(p.row_bytes, 12288);
	assert_int_equal(p.file_bytes, 8192 + 5 * 36864 + 12288);
	assert_int_equal(record_file_offset(many, &p, some_aliases, 1, 0), 8192 + 36864);
	assert_int_equal(record_file_offset(many, &p, some_aliases, 1, 1), 8192 + 36864);
	assert_int_equal(record_file_offset(many, &p, some_aliases, 1, 2), 8192 + 36864 + 8192);
	assert_int_equal(record_file_offset(many, &p, some_aliases, 1, 3), 8192 + 36864);
	assert_int_equal(record_file_offset(many, &p, some_aliases, 1, 4), 8192 + 36864 + 16384);
	for (uint32_t c = 0; c < 4; c++)
		assert_int_equal(record_file_offset(many, &p, some_aliases, TABLES_PAGE_ROW, c), p.row_offset);
	layout_free(&many);
}

/* 128 columns do not fit a table in 4 KiB; 95 do. */
static void test_header_bytes(void **state)
{
	struct layout *l64 = make_layout(64, DENSE), *l128 = make_layout(64, DENSE "," STATE);
	struct layout *l95 = make_layout(48, DENSE
		",{\"name\":\"b\",\"kind\":\"dense\",\"share_of_rank\":[0,0,1,2,3,4,5,6,7,"
		"8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,"
		"44,45,46]," PLANES(1) "}");
	struct layout *l96 = make_layout(48, DENSE "," STATE);

	(void)state;
	assert_int_equal(record_file_header_bytes(l64), 4096);
	assert_int_equal(l95->page_columns, RECORD_FILE_TABLE_MOST);
	assert_int_equal(record_file_header_bytes(l95), 4096);
	assert_int_equal(record_file_header_bytes(l96), 8192);
	assert_int_equal(record_file_header_bytes(l128), 8192);
	layout_free(&l64);
	layout_free(&l95);
	layout_free(&l96);
	layout_free(&l128);
}

/* ---- round trips ----------------------------------------------------------------------------------------------------- */

static void round_trip(const struct layout *l, const struct record_file_id *id, const uint16_t *alias)
{
	struct record_file_plan plan;
	uint8_t *header = make_header(l, id, alias, &plan);
	struct record_file_id got;
	struct why why = WHY_INIT;

	if (record_file_read_header(header, plan.header_bytes, l, &got, read_alias, &why))
		fail_msg("%s", why.text);
	assert_memory_equal(&got.endpoint, &id->endpoint, sizeof(struct key));
	assert_memory_equal(&got.parent, &id->parent, sizeof(struct key));
	assert_int_equal(got.start, id->start);
	assert_int_equal(got.generation, id->generation);
	assert_int_equal(got.nonce, id->nonce);
	assert_int_equal(got.created_s, id->created_s);
	assert_int_equal(got.whole_id, id->whole_id);
	assert_int_equal(got.whole_count, id->whole_count);
	assert_int_equal(got.pages, id->pages);
	assert_int_equal(got.flags, id->flags);
	for (uint16_t c = 0; c < l->page_columns + l->row_columns; c++)
		assert_int_equal(read_alias[c], alias ? alias[c] : c);
	assert_int_equal(read_error(header, plan.header_bytes - 1, l), EINVAL);
	free(header);
}

static void test_header(void **state)
{
	struct layout *one = make_layout(1, DENSE), *many = make_layout(4, MANY), *rows = make_layout(2, STATE);
	struct layout *wide = make_layout(64, DENSE "," STATE);
	struct record_file_id id = id_of(7, true);
	uint16_t alias[128];

	(void)state;
	round_trip(many, &id, NULL);
	round_trip(many, &id, some_aliases);
	for (uint16_t c = 0; c < 128; c++)
		alias[c] = c < 64 ? 0 : 64;
	round_trip(wide, &id, alias);
	round_trip(rows, &id, NULL);
	id = id_of(0, true);
	id.start = 1001; /* of a record without pages: any */
	round_trip(rows, &id, NULL);
	round_trip(many, &id, some_aliases);
	id = id_of(RECORD_FILE_MAX_PAGES, false);
	round_trip(one, &id, NULL);
	round_trip(many, &id, NULL);
	id.flags = RECORD_FILE_ROOT;
	id.whole_count = 0;
	id.whole_id = id.start = 0;
	memset(&id.parent, 0, sizeof(id.parent));
	round_trip(one, &id, NULL);
	layout_free(&one);
	layout_free(&many);
	layout_free(&rows);
	layout_free(&wide);
}

/* Where the fields stand is a promise. */
static void test_bytes(void **state)
{
	struct layout *many = make_layout(4, MANY);
	struct record_file_id id = id_of(7, true);
	struct record_file_plan plan;
	uint8_t *h = make_header(many, &id, some_aliases, &plan);
	uint64_t u64;
	uint32_t u32;
	uint16_t u16;

#define AT(type, offset) (memcpy(&(type), h + (offset), sizeof(type)), (type))
	(void)state;
	assert_memory_equal(h, "PFSREC01", 8);
	assert_int_equal(AT(u32, 8), 1);
	assert_int_equal(AT(u32, 12), 4096);
	assert_memory_equal(h + 16, many->identity, 32);
	assert_memory_equal(h + 48, many->fingerprint, 16);
	assert_memory_equal(h + 64, id.endpoint.bytes, 32);
	assert_memory_equal(h + 96, id.parent.bytes, 32);
	assert_int_equal(AT(u64, 128), 640);
	assert_int_equal(AT(u64, 136), id.generation);
	assert_int_equal(AT(u64, 144), id.nonce);
	assert_int_equal(AT(u64, 152), -7);
	assert_int_equal(AT(u64, 160), id.whole_id);
	assert_int_equal(AT(u32, 168), id.whole_count);
	assert_int_equal(AT(u32, 172), RECORD_FILE_WHOLE | RECORD_FILE_ROW);
	assert_int_equal(AT(u32, 176), 7);
	assert_int_equal(AT(u32, 180), 64);
	assert_int_equal(AT(u32, 184), 7);
	assert_int_equal(AT(u32, 188), 4);
	assert_int_equal(AT(u64, 192), 4096);
	assert_int_equal(AT(u64, 200), 8192);
	assert_int_equal(AT(u64, 208), 36864);
	assert_int_equal(AT(u64, 216), 8192 + 7 * 36864);
	assert_int_equal(AT(u64, 224), 12288);
	assert_int_equal(AT(u64, 232), 8192 + 7 * 36864 + 12288);
	assert_int_equal(AT(u32, 240), 40);
	/* Column 5: share 1 of idx. */
	assert_int_equal(AT(u16, 256 + 5 * 40), 1);
	assert_int_equal(AT(u16, 256 + 5 * 40 + 2), 1);
	assert_int_equal(AT(u16, 256 + 5 * 40 + 4), 5);
	assert_int_equal(AT(u64, 256 + 5 * 40 + 8), 8192);
	assert_int_equal(AT(u64, 256 + 5 * 40 + 16), 4097);
	assert_int_equal(AT(u64, 256 + 5 * 40 + 24), 8192 + 2 * 8192 + 4096);
	assert_int_equal(AT(u32, 256 + 5 * 40 + 32), 7);
	assert_int_equal(AT(u32, 256 + 5 * 40 + 36), 4);
	/* Column 9: share 2 of gdn, an alias of 7. */
	assert_int_equal(AT(u16, 256 + 9 * 40), 3);
	assert_int_equal(AT(u16, 256 + 9 * 40 + 2), 2);
	assert_int_equal(AT(u16, 256 + 9 * 40 + 4), 7);
	assert_int_equal(AT(u64, 256 + 9 * 40 + 24), 8192 + 7 * 36864);
	assert_int_equal(AT(u32, 256 + 9 * 40 + 32), 1);
	assert_true(AT(u64, 4088) == hash_64(h, 4088, 0));
	free(h);
	layout_free(&many);
}

static void test_keys(void **state)
{
	struct layout *many = make_layout(4, MANY);
	struct key keys[150];
	uint64_t sums[150 * 7 + 4];
	struct record_file_plan plan;
	uint8_t *segment;
	const struct key *got_keys;
	const uint64_t *got_sums;
	struct why why = WHY_INIT;

	(void)state;
	for (unsigned i = 0; i < 150; i++)
		keys[i] = key_of(i);
	for (unsigned i = 0; i < 150 * 7 + 4; i++)
		sums[i] = i % 5 ? i * 0x9e3779b97f4a7c15ull : 0;
	for (unsigned pages = 0; pages <= 150; pages += 75) {
		record_file_plan(many, pages, true, NULL, &plan);
		assert_int_equal(plan.keys_bytes, (pages * (32 + 56) + 32 + 8 + 4095) / 4096 * 4096);
		segment = aligned_alloc(RECORD_FILE_ALIGN, plan.keys_bytes);
		memset(segment, 0xee, plan.keys_bytes);
		record_file_make_keys(segment, &plan, keys, sums);
		assert_int_equal(record_file_read_keys(segment, &plan, &got_keys, &got_sums, &why), 0);
		assert_ptr_equal(got_keys, segment);
		assert_memory_equal(got_keys, keys, pages * sizeof(*keys));
		assert_memory_equal(got_sums, sums, (pages * 7 + 4) * sizeof(*sums));
		for (uint64_t i = 0; i < plan.keys_bytes; i++) {
			segment[i] ^= 1 << i % 8;
			assert_int_equal(record_file_read_keys(segment, &plan, &got_keys, &got_sums, &why), -EINVAL);
			segment[i] ^= 1 << i % 8;
		}
		assert_string_equal(why.text, "the checksum of the file's keys is wrong");
		free(segment);
	}
	layout_free(&many);
}

static void test_sum(void **state)
{
	(void)state;
	assert_true(record_file_sum("abc", 3) == 0x78af5f94892f3950u);
	assert_true(record_file_sum("", 0) == hash_64("", 0, 0));
}

/* ---- what is not believed -------------------------------------------------------------------------------------------- */

/* Any bit, anywhere. */
static void test_flips(void **state)
{
	struct layout *many = make_layout(4, MANY), *wide = make_layout(64, DENSE "," STATE);
	struct layout *layouts[] = {many, wide};
	struct record_file_id id = id_of(7, true);

	(void)state;
	for (unsigned l = 0; l < 2; l++) {
		struct record_file_plan plan;
		uint8_t *h = make_header(layouts[l], &id, NULL, &plan);

		for (uint64_t bit = 0; bit < plan.header_bytes * 8; bit++) {
			int want = bit < 12 * 8 ? ENOTSUP : EINVAL, got;

			h[bit / 8] ^= 1 << bit % 8;
			got = read_error(h, plan.header_bytes, layouts[l]);
			if (got != want)
				fail_msg("bit %llu: %d", (unsigned long long)bit, got);
			h[bit / 8] ^= 1 << bit % 8;
		}
		assert_int_equal(read_error(h, plan.header_bytes, layouts[l]), 0);
		free(h);
	}
	layout_free(&many);
	layout_free(&wide);
}

/* Any byte with a checksum that is right: what says where things lie must say what the layout says. */
static void test_lies(void **state)
{
	struct layout *many = make_layout(4, MANY);
	struct record_file_id id = id_of(7, true);
	struct record_file_plan plan;
	uint8_t *h = make_header(many, &id, some_aliases, &plan);

	(void)state;
	for (uint64_t i = 0; i < plan.header_bytes - 8; i++) {
		bool of_id = i >= 64 && i < 172; /* what only the writer knows */
		int want = i < 12 ? ENOTSUP : i >= 16 && i < 64 ? EXDEV : EINVAL, got;

		h[i] ^= 0x40;
		seal(h, plan.header_bytes);
		got = read_error(h, plan.header_bytes, many);
		if (got != want && !(of_id && got == 0))
			fail_msg("byte %llu: %d", (unsigned long long)i, got);
		h[i] ^= 0x40;
	}
	free(h);
	layout_free(&many);
}

static const struct {
	unsigned offset, bytes;
	uint64_t value;
	const char *sentence;
} lies[] = {
	{0, 8, 0, "the file begins with zeros"},
	{0, 8, 0x4142434445464748, "the file is another writer's: it begins with 0x4142434445464748"},
	{8, 4, 2, "the file's version is 2; this program knows 1"},
	{12, 4, 0, "the file's header says that it has 0 bytes; it has 4096"},
	{12, 4, 4095, "the file's header says that it has 4095 bytes; it has 4096"},
	{12, 4, 0xfffff000, "the file's header says that it has 4294963200 bytes; it has 4096"},
	{128, 8, 641, "the file's 7 pages of 64 tokens begin at 641"},
	{128, 8, UINT64_MAX - 63, "the file's 7 pages of 64 tokens begin at 18446744073709551552"},
	{168, 4, 0, "the file is one of a WHOLE group and names a group of 0 files"},
	{172, 4, RECORD_FILE_ROW, "the file is alone and names a group of 4275878552 files"},
	{172, 4, RECORD_FILE_ROW | RECORD_FILE_WHOLE | RECORD_FILE_ROOT, "the file begins a chain and has a parent"},
	{172, 4, 0x80000006, "the file's flags are 0x80000006; known are 0x7"},
	{172, 4, RECORD_FILE_WHOLE, "the file's header contradicts its layout at byte "},
	{176, 4, 6, "the file's header contradicts its layout at byte "},
	{176, 4, 4097, "the file has 4097 pages, over the limit of 4096"},
	{176, 4, UINT32_MAX, "the file has 4294967295 pages, over the limit of 4096"},
	{180, 4, 0, "the file's header contradicts its layout at byte 180"},
	{184, 4, UINT32_MAX, "the file's header contradicts its layout at byte 184"},
	{232, 8, UINT64_MAX, "the file's header contradicts its layout at byte 232"},
	{244, 4, 1, "the file's header contradicts its layout at byte 244"},
	{256 + 4, 2, 1, "column 0 has the bytes of column 1, which is no stored one before it"},
	{256 + 3 * 40 + 4, 2, 1, "column 3 has the bytes of column 1, which is no stored one before it"},
	{256 + 3 * 40 + 4, 2, 0xffff, "column 3 has the bytes of column 65535, which is no stored one before it"},
	{256 + 10 * 40 + 4, 2, 0, "column 10 has the bytes of column 0, which is no stored one before it"},
	{256 + 4 * 40 + 4, 2, 2, "column 4 of 4096 bytes has the bytes of column 2 of 8192"},
	{256 + 5 * 40 + 4, 2, 2, "the file's header contradicts its layout at byte 209"},
	{256 + 6 * 40 + 6, 2, 1, "the file's column 6 contradicts its layout"},
	{256 + 6 * 40 + 24, 8, UINT64_MAX, "the file's column 6 contradicts its layout"},
	{256 + 11 * 40, 1, 7, "byte 696 of the file's header is 7; it must be 0"},
};

static void test_sentences(void **state)
{
	struct layout *many = make_layout(4, MANY);
	struct record_file_id id = id_of(7, true), got;
	struct record_file_plan plan;
	uint8_t *good = make_header(many, &id, some_aliases, &plan), *h = malloc(plan.header_bytes);

	(void)state;
	for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct why why = WHY_INIT;

		memcpy(h, good, plan.header_bytes);
		memcpy(h + lies[i].offset, &lies[i].value, lies[i].bytes);
		seal(h, plan.header_bytes);
		assert_true(record_file_read_header(h, plan.header_bytes, many, &got, read_alias, &why) < 0);
		if (strncmp(why.text, lies[i].sentence, strlen(lies[i].sentence)))
			fail_msg("%s\nand not: %s", why.text, lies[i].sentence);
	}
	free(h);
	free(good);
	layout_free(&many);
}

static void test_foreign(void **state)
{
	struct layout *one = make_layout(1, DENSE), *wide = make_layout(64, DENSE "," STATE);
	struct record_file_id id = id_of(7, false);
	struct record_file_plan plan;
	uint8_t *h = make_header(wide, &id, NULL, &plan), zeros[4096] = {0}, *cut;

	(void)state;
	/* As many bytes as one's header has are read of a file whose header has twice that. */
	assert_int_equal(plan.header_bytes, 8192);
	cut = malloc(4096);
	memcpy(cut, h, 4096);
	assert_int_equal(read_error(cut, 4096, one), EXDEV);
	assert_int_equal(read_error(cut, 4096, wide), EINVAL);
	assert_int_equal(read_error(h, 8192, one), EXDEV);
	for (unsigned bytes = 0; bytes < 4096; bytes += 819) {
		uint8_t *few = malloc(bytes + 1);

		memcpy(few, h, bytes);
		assert_int_equal(read_error(few, bytes, one), EINVAL);
		free(few);
	}
	assert_int_equal(read_error(zeros, 4096, one), EINVAL);
	free(cut);
	free(h);
	layout_free(&one);
	layout_free(&wide);
}

/* ---- truncations ----------------------------------------------------------------------------------------------------- */

struct seen {
	int error;
	uint32_t pages;
	bool row;
};

static struct seen look(const struct record_file_id *id, const struct record_file_plan *plan, const struct key *keys,
	uint64_t consumed, const struct key *endpoint, uint64_t bytes)
{
	struct record_file_found found = {.consumed = consumed, .endpoint = *endpoint, .file_bytes = bytes};
	struct seen seen = {0};
	struct why why = WHY_INIT;

	seen.error = -record_file_there(id, plan, keys, &found, &seen.pages, &seen.row, &why);
	assert_int_equal(seen.error, why.error);
	return seen;
}

#define LOOK(consumed, endpoint, bytes, want_error, want_pages, want_row) \
	do { \
		struct seen seen = look(&id, &plan, keys, consumed, endpoint, bytes); \
\
		assert_int_equal(seen.error, want_error); \
		assert_int_equal(seen.pages, want_pages); \
		assert_int_equal(seen.row, want_row); \
	} while (0)

static void test_truncations(void **state)
{
	struct layout *many = make_layout(4, MANY), *rows = make_layout(2, STATE);
	struct record_file_id id = id_of(5, true);
	struct record_file_plan plan;
	struct key keys[5];
	uint64_t stride = 53248, row = 4 * 12288, from = 8192;

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		keys[i] = key_of(i + 1);
	record_file_plan(many, 5, true, NULL, &plan);
	LOOK(960, &keys[4], from + 5 * stride + row, 0, 5, true);
	LOOK(960, &keys[4], from + 5 * stride + row + 1, 0, 5, true);
	LOOK(960, &keys[4], from + 5 * stride + row - 1, 0, 5, false);
	LOOK(960, &keys[4], from + 5 * stride, 0, 5, false);
	LOOK(960, &keys[4], from + 5 * stride - 1, 0, 4, false); /* cut, not yet renamed */
	LOOK(960, &keys[4], from, 0, 0, false);
	LOOK(960, &keys[4], from - 1, EINVAL, 0, false);
	LOOK(832, &keys[2], from + 3 * stride, 0, 3, false);
	LOOK(832, &keys[2], from + 5 * stride + row, 0, 3,
		false); /* renamed, not yet cut: the row is another boundary's */
	LOOK(832, &keys[2], from + 2 * stride + 5, 0, 2, false);
	LOOK(832, &keys[3], from + 3 * stride, EINVAL, 0, false); /* a key of another page */
	LOOK(833, &keys[2], from + 3 * stride, EINVAL, 0, false);
	LOOK(640, &keys[0], from + 3 * stride, EINVAL, 0, false); /* no page */
	LOOK(576, &keys[0], from + 3 * stride, EINVAL, 0, false);
	LOOK(1024, &keys[4], from + 5 * stride, EINVAL, 0, false);
	LOOK(UINT64_MAX - 63, &keys[4], from + 5 * stride, EINVAL, 0, false);
	keys[4] = key_of(77);
	LOOK(832, &keys[2], from + 3 * stride, EINVAL, 0, false); /* the header's endpoint is not the last key */

	/* Without page columns the keys are the pages. */
	id = id_of(5, true);
	keys[4] = id.endpoint;
	record_file_plan(rows, 5, true, NULL, &plan);
	LOOK(960, &keys[4], from + 2 * 12288, 0, 5, true);
	LOOK(832, &keys[2], from, 0, 3, false);
	/* Without pages the name's key is the record's own. */
	id = id_of(0, true);
	record_file_plan(rows, 0, true, NULL, &plan);
	LOOK(640, &id.endpoint, from + 2 * 12288, 0, 0, true);
	LOOK(640, &id.endpoint, from + 12288, 0, 0, false);
	LOOK(640, &id.parent, from + 2 * 12288, EINVAL, 0, false);
	LOOK(704, &id.endpoint, from + 2 * 12288, EINVAL, 0, false);
	layout_free(&many);
	layout_free(&rows);
}

/* ---- names ----------------------------------------------------------------------------------------------------------- */

#define HEX "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9"

#define N15 "000000000000280"

static void test_names(void **state)
{
	static const uint64_t tokens[] = {0, 1, 9, 10, 64, 1000000, UINT32_MAX, UINT64_MAX - 1, UINT64_MAX};
	static const char *const bad[] = {"", "-", ".rec", "-" HEX ".rec", "+" N15 "-" HEX ".rec", "-" N15 "-" HEX ".rec",
		" " N15 "-" HEX ".rec", N15 "-" HEX ".rec", "0" N15 "1-" HEX ".rec", "0x" N15 "-" HEX ".rec",
		"A" N15 "-" HEX ".rec", "g" N15 "-" HEX ".rec", "1" N15 HEX ".rec", "1" N15 "_" HEX ".rec", "1" N15 "--" HEX ".rec",
		"1" N15 "-" HEX, "1" N15 "-" HEX ".re", "1" N15 "-" HEX ".recs", "1" N15 "-" HEX ".REC", "1" N15 "-" HEX ".rec.tmp",
		"1" N15 "-" HEX "0.rec", "1" N15 "-" HEX "00.rec",
		"1" N15 "-0A1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9.rec",
		"1" N15 "-a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9.rec", "1" N15 "-0", "1" N15 "-0a", "1" N15,
		"1" N15 "-ga1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9.rec"};
	struct key key = key_of(5), got;
	char name[RECORD_FILE_NAME_BYTES];
	uint64_t consumed;

	(void)state;
	for (unsigned i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		record_file_name(name, tokens[i], &key);
		assert_true(record_file_parse_name(name, &consumed, &got));
		assert_int_equal(consumed, tokens[i]);
		assert_memory_equal(&got, &key, sizeof(key));
	}
	assert_true(record_file_parse_name("0" N15 "-" HEX ".rec", &consumed, &got));
	assert_int_equal(consumed, 640);
	assert_int_equal(got.bytes[0], 0x0a);
	assert_int_equal(got.bytes[31], 0xf9);
	assert_int_equal(record_file_folder(&got), 0x0a);
	record_file_name(name, 640, &got);
	assert_string_equal(name, "0" N15 "-" HEX ".rec");
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char *copy = strdup(bad[i]); /* so that reading behind its end is seen */

		if (record_file_parse_name(copy, &consumed, &got))
			fail_msg("\"%s\" is a name", copy);
		free(copy);
	}
}

/* Random layouts' worth of columns: nothing overlaps, everything is 4 KiB-aligned, and the last byte is the file's. */
static void test_no_overlap(void **state)
{
	struct layout *many = make_layout(4, MANY);
	unsigned seed = (unsigned)clock_now_ns();

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (unsigned round = 0; round < 300; round++) {
		uint16_t alias[11];
		uint32_t pages = (uint32_t)random() % 20;
		struct record_file_plan plan;
		uint64_t at, kv = 0;

		for (uint16_t c = 0; c < 11; c++) {
			bool kv_or_gdn = (c > 0 && c < 4) || c > 7;

			alias[c] = kv_or_gdn && random() % 2 ? (c < 4 ? 0 : 7) : c;
		}
		record_file_plan(many, pages, true, alias, &plan);
		at = plan.page_offset;
		for (uint32_t page = 0; page <= pages; page++) {
			bool row = page == pages;

			for (uint32_t c = row ? 7 : 0; c < (row ? 11u : 7u); c++) {
				uint64_t offset = record_file_offset(
					many, &plan, alias, row ? TABLES_PAGE_ROW : page, row ? c - 7 : c);

				if (c == 0 || c == 7)
					kv = at;
				assert_int_equal(offset, alias[c] == c ? at : kv);
				assert_int_equal(offset % 4096, 0);
				if (alias[c] == c)
					at += c < 4 || c == 5 || c == 6 ? 8192 : c == 4 ? 4096 : 12288;
			}
			assert_int_equal(at, row ? plan.file_bytes : record_file_length(&plan, page + 1));
		}
	}
	layout_free(&many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_aliases),
		cmocka_unit_test(test_header_bytes),
		cmocka_unit_test(test_no_overlap),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_sum),
		cmocka_unit_test(test_flips),
		cmocka_unit_test(test_lies),
		cmocka_unit_test(test_sentences),
		cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_truncations),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
