/* SPDX-License-Identifier: Apache-2.0
 *
 * write_record FOLDER PAGES ROW ALIASES: writes a record file of a layout with aliases, several shares, values that most pages
 * lack and a state, and prints its name. What lies in it follows from numbers, so that a reader can tell (test_record_file.py).
 *
 * Page p's value of column c is as many bytes (c' << 4 | p) % 251, c' being the column whose bytes it has; the row's likewise with
 * p = the number of pages. Page 1 has no value of column 0 and its aliases.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/record_file.h"

#define COLUMNS 9u /* kv 0..3, idx 4, st 5..8 */

static const char text[] =
	"{\"version\":1,\"identity\":{\"model\":\"m\"},\"world\":4,\"page_tokens\":64,\"classes\":[{\"name\":\"kv\",\"kind\":"
	"\"dense\",\"planes\":[{\"name\":\"p\",\"bytes\":5000}]},{\"name\":\"st\",\"kind\":\"state\",\"planes\":[{\"name\":"
	"\"s\",\"bytes\":4096}]},{\"name\":\"idx\",\"kind\":\"dense\",\"every\":128,\"share_of_rank\":[0,0,0,0],\"planes\":"
	"[{\"name\":\"i\",\"bytes\":77}]}]}";
static const uint16_t aliases[COLUMNS] = {0, 0, 2, 0, 4, 5, 6, 5, 5};

static struct layout *layout;
static struct record_file_plan plan;
static const uint16_t *alias;
static int file;

static void must(bool true_that)
{
	if (!true_that) {
		perror("write_record");
		exit(1);
	}
}

static void put(const void *from, uint64_t bytes, uint64_t offset)
{
	must(pwrite(file, from, bytes, (off_t)offset) == (ssize_t)bytes);
}

/* Its checksum, 0: absent. */
static uint64_t put_value(uint32_t page, uint32_t number)
{
	static const struct {
		uint32_t slot, payload;
	} size[] = {{8192, 5000}, {4096, 77}, {4096, 4096}};
	bool row = page == plan.pages;
	uint32_t column = row ? plan.page_columns + number : number, bytes = alias ? alias[column] : column;
	uint32_t kind = row ? 2 : number == 4;
	uint8_t value[8192] = {0};

	if (!row && ((number == 4 && page % 2 == 0) || (page == 1 && bytes == 0)))
		return 0;
	memset(value, (int)((bytes << 4 | page) % 251), size[kind].payload);
	put(value, size[kind].slot,
		record_file_offset(layout, &plan, alias, row ? TABLES_PAGE_ROW : page, row ? number : column));
	return record_file_sum(value, size[kind].slot);
}

int main(int argc, char **argv)
{
	must(argc == 5);
	struct record_file_id id = {
		.start = 128, .generation = 3, .nonce = 4, .created_s = 5, .pages = (uint32_t)atoi(argv[2])};
	bool row = atoi(argv[3]);
	struct key *keys = calloc(id.pages + 1, sizeof(*keys));
	uint64_t *sums = calloc(id.pages * 5 + 4, sizeof(*sums));
	char name[RECORD_FILE_NAME_BYTES];

	alias = atoi(argv[4]) ? aliases : NULL;
	must(!layout_parse(text, strlen(text), &layout, NULL));
	for (uint32_t p = 0; p <= id.pages; p++)
		memset(keys[p].bytes, (int)p + 1, sizeof(keys[p].bytes));
	id.endpoint = keys[id.pages ? id.pages - 1 : 0];
	id.parent = keys[id.pages];
	id.flags = row ? RECORD_FILE_ROW : 0;
	record_file_plan(layout, id.pages, row, alias, &plan);
	record_file_name(name, id.start + id.pages * 64ull, &id.endpoint);
	must(!chdir(argv[1]));
	file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	must(file >= 0 && !ftruncate(file, (off_t)plan.file_bytes));
	for (uint32_t p = 0; p < id.pages; p++)
		for (uint32_t c = 0; c < plan.page_columns; c++)
			sums[p * plan.page_columns + c] = put_value(p, c);
	for (uint32_t c = 0; c < plan.row_columns && row; c++)
		sums[id.pages * plan.page_columns + c] = put_value(id.pages, c);

	uint8_t *part = aligned_alloc(RECORD_FILE_ALIGN, plan.page_offset);

	record_file_make_header(part, layout, &plan, &id, alias);
	record_file_make_keys(part + plan.header_bytes, &plan, keys, sums);
	put(part, plan.page_offset, 0);
	puts(name);
	free(part);
	free(sums);
	free(keys);
	layout_free(&layout);
	return close(file);
}
