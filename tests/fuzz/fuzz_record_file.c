/* SPDX-License-Identifier: Apache-2.0
 *
 * Record files: names, headers and key segments that somebody else wrote. What is accepted is written again as the same bytes.
 *
 * An input's first byte chooses. Of a header the rest is laid over a good one from its first byte on (a length that is no
 * multiple of 4 KiB is a file cut short), and its checksum is made right, for a fuzzer will not find it.
 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/hash.h"
#include "store/record_file.h"
#include "tests/fuzz/fuzz.h"

enum {
	TRY_NAME,
	TRY_HEADER,
	TRY_CUT_HEADER,
	TRY_KEYS,
	TRY_THERE,
	TRIES
};

static struct layout *layout;
static struct record_file_plan good_plan;
static uint8_t *good_header;

static const char text[] =
	"{\"version\":1,\"identity\":{\"model\":\"a\"},\"world\":2,\"page_tokens\":16,\"classes\":[{\"name\":\"kv\",\"kind\":"
	"\"dense\",\"planes\":[{\"name\":\"K\",\"bytes\":8192}]},{\"name\":\"w\",\"kind\":\"window\",\"sink\":1,\"last\":4,"
	"\"every\":32,\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"x\",\"bytes\":1}]},{\"name\":\"st\",\"kind\":\"state\","
	"\"planes\":[{\"name\":\"S\",\"bytes\":5000}]}]}";

static const uint16_t good_alias[] = {0, 0, 2, 3, 3};

static const char *const names[] = {
	"0000000000000000-00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.rec",
	"ffffffffffffffff-00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.rec",
	"0000000000000040-00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.tmp",
};

static void make_good(void)
{
	struct record_file_id id = {.start = 32,
		.generation = 3,
		.nonce = 4,
		.created_s = 5,
		.whole_id = 6,
		.whole_count = 7,
		.pages = 8,
		.flags = RECORD_FILE_WHOLE | RECORD_FILE_ROW};

	if (layout)
		return;
	if (layout_parse(text, strlen(text), &layout, NULL))
		abort();
	record_file_plan(layout, id.pages, true, good_alias, &good_plan);
	good_header = aligned_alloc(RECORD_FILE_ALIGN, good_plan.header_bytes);
	record_file_make_header(good_header, layout, &good_plan, &id, good_alias);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	make_good();
	return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *to)
{
	make_good();
	if (n < 3) {
		to[0] = TRY_NAME;
		memcpy(to + 1, names[n], strlen(names[n]));
		return 1 + strlen(names[n]);
	}
	if (n >= 7)
		return 0;
	to[0] = (uint8_t)(TRY_HEADER + n - 3);
	memset(to + 1, (int)n, 1000);
	if (n < 5)
		memcpy(to + 1, good_header, 1000);
	return 1001;
}

static void try_name(const uint8_t *data, size_t bytes)
{
	char *name = malloc(bytes + 1), again[RECORD_FILE_NAME_BYTES];
	struct key endpoint;
	uint64_t consumed;

	memcpy(name, data, bytes);
	name[bytes] = 0;
	if (record_file_parse_name(name, &consumed, &endpoint)) {
		record_file_name(again, consumed, &endpoint);
		assert(!strcmp(name, again));
	}
	free(name);
}

/* One that is accepted is the one that its id and its aliases make, and everything in it lies in the file. */
static void accepted(const uint8_t *header, const struct record_file_id *id, const uint16_t *alias)
{
	uint8_t *again = aligned_alloc(RECORD_FILE_ALIGN, record_file_header_bytes(layout));
	struct record_file_plan plan;

	record_file_plan(layout, id->pages, id->flags & RECORD_FILE_ROW, alias, &plan);
	for (uint32_t c = 0; c < plan.page_columns && plan.pages; c++)
		assert(record_file_offset(layout, &plan, alias, plan.pages - 1, c) <
			record_file_length(&plan, plan.pages));
	for (uint32_t c = 0; c < plan.row_columns && plan.row_bytes; c++)
		assert(record_file_offset(layout, &plan, alias, TABLES_PAGE_ROW, c) < plan.file_bytes);
	record_file_make_header(again, layout, &plan, id, alias);
	assert(!memcmp(again, header, plan.header_bytes));
	free(again);
}

static void try_header(const uint8_t *data, size_t bytes, bool cut)
{
	size_t length = cut ? bytes : good_plan.header_bytes, over = bytes < length ? bytes : length;
	uint8_t *header = malloc(length ? length : 1);
	uint16_t alias[RECORD_FILE_MAX_COLUMNS];
	struct record_file_id id;
	struct why why = WHY_INIT;
	uint64_t sum;
	int r;

	memcpy(header, good_header, length < good_plan.header_bytes ? length : good_plan.header_bytes);
	memcpy(header, data, over);
	if (!cut) {
		sum = hash_64(header, length - sizeof(sum), 0);
		memcpy(header + length - sizeof(sum), &sum, sizeof(sum));
	}
	r = record_file_read_header(header, length, layout, &id, alias, &why);
	assert(r == -why.error && !r == !why.text[0]);
	assert(r == 0 || r == -EINVAL || r == -ENOTSUP || r == -EXDEV);
	if (!r)
		accepted(header, &id, alias);
	free(header);
}

static void try_keys(const uint8_t *data, size_t bytes)
{
	struct record_file_plan plan;
	const struct key *keys;
	const uint64_t *sums;
	uint8_t *segment;
	uint64_t sum;

	record_file_plan(layout, bytes ? data[0] : 0, true, NULL, &plan);
	segment = aligned_alloc(RECORD_FILE_ALIGN, plan.keys_bytes);
	memset(segment, 0, plan.keys_bytes);
	memcpy(segment, data, bytes < plan.keys_bytes ? bytes : plan.keys_bytes);
	assert(record_file_read_keys(segment, &plan, &keys, &sums, NULL) == -EINVAL);
	sum = record_file_sum(segment, plan.keys_bytes - sizeof(sum));
	memcpy(segment + plan.keys_bytes - sizeof(sum), &sum, sizeof(sum));
	assert(record_file_read_keys(segment, &plan, &keys, &sums, NULL) == 0);
	assert((const uint8_t *)(sums + plan.pages * plan.page_columns + plan.row_columns) <=
		segment + plan.keys_bytes);
	free(segment);
}

/* Names and lengths: at most what was written, and within the length. */
static void try_there(const uint8_t *data, size_t bytes)
{
	struct {
		struct record_file_id id;
		struct record_file_found found;
		struct key keys[64];
		uint8_t pages, alike;
	} in = {0};
	struct record_file_plan plan;
	struct why why = WHY_INIT;
	uint32_t pages = 0;
	bool row = false;

	memcpy(&in, data, bytes < sizeof(in) ? bytes : sizeof(in));
	in.id.pages = in.pages % 65;
	record_file_plan(layout, in.id.pages, in.alike & 1, good_alias, &plan);
	if (in.alike & 2) { /* a name that fits, so that lengths matter */
		in.found.consumed = in.id.start + in.alike / 4 % 64 * layout->page_tokens;
		in.found.endpoint = in.id.endpoint;
		for (unsigned i = 0; i < 64; i++)
			in.keys[i] = in.id.endpoint;
	}
	int r = record_file_there(&in.id, &plan, in.keys, &in.found, &pages, &row, &why);

	assert(r == -why.error && (r == 0 || r == -EINVAL));
	if (r)
		return;
	assert(pages <= plan.pages && record_file_length(&plan, pages) <= in.found.file_bytes);
	assert(!row || (pages == plan.pages && plan.file_bytes <= in.found.file_bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	unsigned what = bytes ? data[0] % TRIES : TRY_NAME;

	if (bytes) {
		data++;
		bytes--;
	}
	switch (what) {
	case TRY_NAME:
		try_name(data, bytes);
		break;
	case TRY_HEADER:
	case TRY_CUT_HEADER:
		try_header(data, bytes, what == TRY_CUT_HEADER);
		break;
	case TRY_KEYS:
		try_keys(data, bytes);
		break;
	case TRY_THERE:
		try_there(data, bytes);
		break;
	}
	return 0;
}
