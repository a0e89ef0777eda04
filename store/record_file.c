/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands in a file is what is in memory, little-endian: the two structs below are the file's, byte by byte
 * (docs/on-disk-format.md). What is read is copied out first and believed last: where things lie follows from the layout, and a
 * header that says otherwise is refused.
 */
#include "store/record_file.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "store/base/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

struct file_header {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint8_t identity[32];
	uint8_t fingerprint[16];
	struct key endpoint, parent;
	uint64_t start, generation, nonce;
	int64_t created_s;
	uint64_t whole_id;
	uint32_t whole_count, flags;
	uint32_t pages, page_tokens, page_columns, row_columns;
	uint64_t keys_bytes, page_offset, page_stride, row_offset, row_bytes, file_bytes;
	uint32_t column_bytes; /* of one line of the table, which follows */
	uint32_t reserved[3];  /* 0 */
};
_Static_assert(sizeof(struct file_header) == 256, "on disk");
_Static_assert(offsetof(struct file_header, endpoint) == 64, "on disk");
_Static_assert(offsetof(struct file_header, start) == 128, "on disk");
_Static_assert(offsetof(struct file_header, pages) == 176, "on disk");
_Static_assert(offsetof(struct file_header, keys_bytes) == 192, "on disk");
_Static_assert(offsetof(struct file_header, column_bytes) == 240, "on disk");

struct file_column {
	uint16_t class_index, share;
	uint16_t alias;
	uint16_t reserved;   /* 0 */
	uint64_t slot_bytes; /* of a value in the file */
	uint64_t payload_bytes;
	uint64_t offset;      /* of the first value; 0: there is none */
	uint32_t values;      /* pages, or 1 of a row */
	uint32_t every_pages; /* pages that a value stands for; others have none */
};
_Static_assert(sizeof(struct file_column) == 40, "on disk");
_Static_assert(offsetof(struct file_column, values) == 32, "on disk");

#define CHECK_BYTES sizeof(uint64_t)
#define KNOWN_FLAGS (RECORD_FILE_ROOT | RECORD_FILE_WHOLE | RECORD_FILE_ROW)

_Static_assert(sizeof(struct file_header) + RECORD_FILE_TABLE_MOST * sizeof(struct file_column) + CHECK_BYTES <=
		       RECORD_FILE_ALIGN,
	"the table of so many columns fits");
_Static_assert(sizeof(struct file_header) + (RECORD_FILE_TABLE_MOST + 1) * sizeof(struct file_column) + CHECK_BYTES >
		       RECORD_FILE_ALIGN,
	"and of no more");

/* ---- where everything lies ------------------------------------------------------------------------------------------ */

static uint64_t padded(uint64_t bytes)
{
	return (bytes + RECORD_FILE_ALIGN - 1) & ~(uint64_t)(RECORD_FILE_ALIGN - 1);
}

static uint32_t columns_of(const struct layout *layout)
{
	return layout->page_columns + layout->row_columns;
}

static uint32_t alias_of(const uint16_t *alias, uint32_t column)
{
	return alias ? alias[column] : column;
}

static uint64_t keys_bytes(uint32_t pages, uint32_t page_columns, uint32_t row_columns)
{
	return padded(pages * (sizeof(struct key) + page_columns * sizeof(uint64_t)) + row_columns * sizeof(uint64_t) +
		      CHECK_BYTES);
}

/* Bytes of the stored columns below @column of its kind; with a column behind the last one of a kind, of all of them. */
static uint64_t bytes_before(const struct layout *layout, const uint16_t *alias, bool row, uint32_t column)
{
	uint32_t at = row ? layout->page_columns : 0;
	uint64_t bytes = 0;

	for (uint32_t c = 0; c < layout->classes; c++) {
		if (layout_is_row(layout, c) != row)
			continue;
		for (uint32_t s = 0; s < layout->class[c].shares; s++, at++) {
			if (at == column)
				return bytes;
			if (alias_of(alias, at) == at)
				bytes += layout->class[c].share[s].slot_bytes;
		}
	}
	return bytes;
}

uint64_t record_file_header_bytes(const struct layout *layout)
{
	return padded(sizeof(struct file_header) + columns_of(layout) * sizeof(struct file_column) + CHECK_BYTES);
}

void record_file_plan(
	const struct layout *layout, uint32_t pages, bool row, const uint16_t *alias, struct record_file_plan *ret)
{
	assert(pages <= RECORD_FILE_MAX_PAGES);
	/* At most 2^10 columns of 2^32 bytes and 2^12 pages: nothing below passes 2^55. */
	*ret = (struct record_file_plan){
		.pages = pages,
		.page_columns = layout->page_columns,
		.row_columns = layout->row_columns,
		.page_tokens = layout->page_tokens,
		.header_bytes = record_file_header_bytes(layout),
		.keys_bytes = keys_bytes(pages, layout->page_columns, layout->row_columns),
		.page_stride = bytes_before(layout, alias, false, UINT32_MAX),
		.row_bytes = row ? bytes_before(layout, alias, true, UINT32_MAX) : 0,
	};
	ret->page_offset = ret->header_bytes + ret->keys_bytes;
	ret->row_offset = record_file_length(ret, pages);
	ret->file_bytes = ret->row_offset + ret->row_bytes;
}

uint64_t record_file_offset(const struct layout *layout, const struct record_file_plan *plan, const uint16_t *alias,
	uint32_t page, uint32_t column)
{
	bool row = page == TABLES_PAGE_ROW;
	uint64_t from = row ? plan->row_offset : plan->page_offset + page * plan->page_stride;

	assert(row ? plan->row_bytes && column < plan->row_columns : page < plan->pages && column < plan->page_columns);
	return from + bytes_before(layout, alias, row, alias_of(alias, row ? plan->page_columns + column : column));
}

uint64_t record_file_length(const struct record_file_plan *plan, uint32_t pages)
{
	assert(pages <= plan->pages);
	return plan->page_offset + pages * plan->page_stride;
}

/* ---- what of it is there ---------------------------------------------------------------------------------------------- */

/* Pages that the name says. */
static int named_pages(const struct record_file_id *id, const struct record_file_plan *plan, const struct key *keys,
	const struct record_file_found *found, uint32_t *pages, struct why *why)
{
	uint64_t tokens = found->consumed - id->start, count = tokens / plan->page_tokens;

	if (found->consumed < id->start || tokens % plan->page_tokens || count > plan->pages ||
		(count == 0 && plan->pages))
		return why_set(why, EINVAL,
			"the file's name says %llu tokens; it was written with %u pages of %u from %llu on",
			(unsigned long long)found->consumed, plan->pages, plan->page_tokens,
			(unsigned long long)id->start);
	if (memcmp(&found->endpoint, count ? &keys[count - 1] : &id->endpoint, sizeof(struct key)))
		return why_set(why, EINVAL, "the key in the file's name is not that of the file at %llu tokens",
			(unsigned long long)found->consumed);
	if (plan->pages && memcmp(&id->endpoint, &keys[plan->pages - 1], sizeof(struct key)))
		return why_set(
			why, EINVAL, "the endpoint in the file's header is not the last of its %u keys", plan->pages);
	*pages = (uint32_t)count;
	return 0;
}

int record_file_there(const struct record_file_id *id, const struct record_file_plan *plan, const struct key *keys,
	const struct record_file_found *found, uint32_t *pages, bool *row, struct why *why)
{
	uint32_t named = 0;
	int r = named_pages(id, plan, keys, found, &named, why);

	if (r)
		return r;
	if (found->file_bytes < plan->page_offset)
		return why_set(why, EINVAL, "the file has %llu bytes; its header and keys alone take %llu",
			(unsigned long long)found->file_bytes, (unsigned long long)plan->page_offset);
	*pages = named;
	if (plan->page_stride && (found->file_bytes - plan->page_offset) / plan->page_stride < named)
		*pages = (uint32_t)((found->file_bytes - plan->page_offset) / plan->page_stride);
	*row = plan->row_bytes && named == plan->pages && found->file_bytes >= plan->file_bytes;
	return 0;
}

/* ---- names ------------------------------------------------------------------------------------------------------------ */

static const char suffix[] = ".rec";

void record_file_name(char to[RECORD_FILE_NAME_BYTES], uint64_t consumed, const struct key *endpoint)
{
	int n = snprintf(to, RECORD_FILE_NAME_BYTES, "%016llx-", (unsigned long long)consumed);

	for (unsigned i = 0; i < sizeof(endpoint->bytes); i++)
		n += snprintf(to + n, RECORD_FILE_NAME_BYTES - (unsigned)n, "%02x", endpoint->bytes[i]);
	memcpy(to + n, suffix, sizeof(suffix));
}

uint8_t record_file_folder(const struct key *endpoint)
{
	return endpoint->bytes[0];
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Sixteen hex digits; where they end, or NULL. */
static const char *parse_number(const char *at, uint64_t *number)
{
	*number = 0;
	for (unsigned i = 0; i < 16; i++, at++) {
		int digit = hex_digit(*at);

		if (digit < 0)
			return NULL;
		*number = *number << 4 | (unsigned)digit;
	}
	return at;
}

bool record_file_parse_name(const char *name, uint64_t *consumed, struct key *endpoint)
{
	const char *at = parse_number(name, consumed);

	if (!at || *at++ != '-')
		return false;
	for (unsigned i = 0; i < sizeof(endpoint->bytes); i++, at += 2) {
		int high = hex_digit(at[0]), low = high < 0 ? -1 : hex_digit(at[1]);

		if (low < 0)
			return false;
		endpoint->bytes[i] = (uint8_t)(high << 4 | low);
	}
	return !strcmp(at, suffix);
}

/* ---- making ----------------------------------------------------------------------------------------------------------- */

uint64_t record_file_sum(const void *value, uint64_t bytes)
{
	uint64_t sum = hash_64(value, bytes, 0);

	return sum ? sum : 1;
}

/* The checksum of a header or key segment is its last 8 bytes. */
static void seal(uint8_t *part, uint64_t bytes)
{
	uint64_t sum = record_file_sum(part, bytes - CHECK_BYTES);

	memcpy(part + bytes - CHECK_BYTES, &sum, CHECK_BYTES);
}

static bool sealed(const uint8_t *part, uint64_t bytes)
{
	uint64_t sum = record_file_sum(part, bytes - CHECK_BYTES);

	return !memcmp(part + bytes - CHECK_BYTES, &sum, CHECK_BYTES);
}

static void make_column(const struct layout *layout, const struct record_file_plan *plan, const uint16_t *alias,
	uint32_t column, struct file_column *ret)
{
	bool row = column >= layout->page_columns;
	uint32_t number = row ? column - layout->page_columns : column, c = 0,
		 values = row ? plan->row_bytes != 0 : plan->pages;

	while (layout_is_row(layout, c) != row || number - layout->class[c].first_column >= layout->class[c].shares)
		c++;
	const struct value_class *class = &layout->class[c];
	uint32_t s = number - class->first_column;

	*ret = (struct file_column){
		.class_index = (uint16_t)c,
		.share = (uint16_t)s,
		.alias = (uint16_t)alias_of(alias, column),
		.slot_bytes = class->share[s].slot_bytes,
		.payload_bytes = class->share[s].payload_bytes,
		.offset = values ? record_file_offset(layout, plan, alias, row ? TABLES_PAGE_ROW : 0, number) : 0,
		.values = values,
		.every_pages = class->every_pages,
	};
}

static void make_fixed(const struct layout *layout, const struct record_file_plan *plan,
	const struct record_file_id *id, struct file_header *ret)
{
	*ret = (struct file_header){
		.magic = RECORD_FILE_MAGIC,
		.version = RECORD_FILE_VERSION,
		.header_bytes = (uint32_t)plan->header_bytes,
		.endpoint = id->endpoint,
		.parent = id->parent,
		.start = id->start,
		.generation = id->generation,
		.nonce = id->nonce,
		.created_s = id->created_s,
		.whole_id = id->whole_id,
		.whole_count = id->whole_count,
		.flags = id->flags,
		.pages = id->pages,
		.page_tokens = plan->page_tokens,
		.page_columns = plan->page_columns,
		.row_columns = plan->row_columns,
		.keys_bytes = plan->keys_bytes,
		.page_offset = plan->page_offset,
		.page_stride = plan->page_stride,
		.row_offset = plan->row_offset,
		.row_bytes = plan->row_bytes,
		.file_bytes = plan->file_bytes,
		.column_bytes = sizeof(struct file_column),
	};
	memcpy(ret->identity, layout->identity, sizeof(ret->identity));
	memcpy(ret->fingerprint, layout->fingerprint, sizeof(ret->fingerprint));
}

static int check_id(const struct layout *layout, const struct record_file_id *id, struct why *why)
{
	static const struct key zero;
	bool row = id->flags & RECORD_FILE_ROW, whole = id->flags & RECORD_FILE_WHOLE;
	uint64_t tokens = (uint64_t)id->pages * layout->page_tokens;

	if (id->flags & ~(uint32_t)KNOWN_FLAGS)
		return why_set(why, EINVAL, "the file's flags are %#x; known are %#x", id->flags, KNOWN_FLAGS);
	if (id->pages > RECORD_FILE_MAX_PAGES)
		return why_set(
			why, EINVAL, "the file has %u pages, over the limit of %u", id->pages, RECORD_FILE_MAX_PAGES);
	if (!id->pages && !row)
		return why_set(why, EINVAL, "the file has neither pages nor a row");
	if (row && !layout->row_columns)
		return why_set(why, EINVAL, "the file has a row; its layout has no state class");
	if (id->start > UINT64_MAX - tokens || (id->pages && id->start % layout->page_tokens))
		return why_set(why, EINVAL, "the file's %u pages of %u tokens begin at %llu", id->pages,
			layout->page_tokens, (unsigned long long)id->start);
	if ((id->flags & RECORD_FILE_ROOT) && memcmp(&id->parent, &zero, sizeof(zero)))
		return why_set(why, EINVAL, "the file begins a chain and has a parent");
	if (whole ? !id->whole_count : id->whole_count || id->whole_id)
		return why_set(why, EINVAL, "the file is %s and names a group of %u files",
			whole ? "one of a WHOLE group" : "alone", id->whole_count);
	return 0;
}

void record_file_make_header(void *to, const struct layout *layout, const struct record_file_plan *plan,
	const struct record_file_id *id, const uint16_t *alias)
{
	uint8_t *table = (uint8_t *)to + sizeof(struct file_header);
	struct file_header header;

	/* What would be refused is not written. */
	assert(check_id(layout, id, NULL) == 0);
	assert(id->pages == plan->pages && !(id->flags & RECORD_FILE_ROW) == !plan->row_bytes);
	memset(to, 0, plan->header_bytes);
	make_fixed(layout, plan, id, &header);
	memcpy(to, &header, sizeof(header));
	for (uint32_t i = 0; i < columns_of(layout); i++) {
		struct file_column column;

		make_column(layout, plan, alias, i, &column);
		memcpy(table + i * sizeof(column), &column, sizeof(column));
	}
	seal(to, plan->header_bytes);
}

void record_file_make_keys(void *to, const struct record_file_plan *plan, const struct key *keys, const uint64_t *sums)
{
	uint64_t key_bytes = plan->pages * sizeof(*keys);
	uint64_t sum_bytes = ((uint64_t)plan->pages * plan->page_columns + plan->row_columns) * sizeof(*sums);

	if (key_bytes)
		memcpy(to, keys, key_bytes);
	if (sum_bytes)
		memcpy((uint8_t *)to + key_bytes, sums, sum_bytes);
	memset((uint8_t *)to + key_bytes + sum_bytes, 0, plan->keys_bytes - key_bytes - sum_bytes);
	seal(to, plan->keys_bytes);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static int not_of(const struct file_header *h, const struct layout *layout, struct why *why)
{
	if (memcmp(h->identity, layout->identity, sizeof(h->identity)))
		return why_set(why, EXDEV, "the file is of another namespace: its identity differs");
	if (memcmp(h->fingerprint, layout->fingerprint, sizeof(h->fingerprint)))
		return why_set(why, EXDEV, "the file is of another namespace: its layout's fingerprint differs");
	return 0;
}

/* Is it a header, of this writer, whole? */
static int check_envelope(
	const uint8_t *from, uint64_t bytes, const struct layout *layout, struct file_header *h, struct why *why)
{
	if (bytes < RECORD_FILE_ALIGN)
		return why_set(why, EINVAL, "the file has %llu bytes; a header has at least %u",
			(unsigned long long)bytes, RECORD_FILE_ALIGN);
	memcpy(h, from, sizeof(*h));
	if (!h->magic) /* nobody's magic, but what a crash of the host leaves of a page that was not written */
		return why_set(why, EINVAL, "the file begins with zeros");
	if (h->magic != RECORD_FILE_MAGIC)
		return why_set(why, ENOTSUP, "the file is another writer's: it begins with %#llx",
			(unsigned long long)h->magic);
	if (h->version != RECORD_FILE_VERSION)
		return why_set(why, ENOTSUP, "the file's version is %u; this program knows %u", h->version,
			RECORD_FILE_VERSION);
	if (h->header_bytes < RECORD_FILE_ALIGN || h->header_bytes % RECORD_FILE_ALIGN || h->header_bytes > bytes) {
		/* That of another layout may be longer than what was read. */
		int r = not_of(h, layout, why);

		return r ? r
		         : why_set(why, EINVAL, "the file's header says that it has %u bytes; it has %llu",
				   h->header_bytes, (unsigned long long)record_file_header_bytes(layout));
	}
	if (!sealed(from, h->header_bytes))
		return why_set(why, EINVAL, "the checksum of the file's header is wrong");
	return not_of(h, layout, why);
}

static void take_id(const struct file_header *h, struct record_file_id *ret)
{
	*ret = (struct record_file_id){
		.endpoint = h->endpoint,
		.parent = h->parent,
		.start = h->start,
		.generation = h->generation,
		.nonce = h->nonce,
		.created_s = h->created_s,
		.whole_id = h->whole_id,
		.whole_count = h->whole_count,
		.pages = h->pages,
		.flags = h->flags,
	};
}

static int check_alias(
	const struct layout *layout, const uint8_t *table, const uint16_t *alias, uint32_t column, struct why *why)
{
	uint32_t to = alias[column];
	struct file_column mine, target;

	if (to == column)
		return 0;
	if (to > column || alias[to] != to || (to < layout->page_columns) != (column < layout->page_columns))
		return why_set(why, EINVAL, "column %u has the bytes of column %u, which is no stored one before it",
			column, to);
	/* Their sizes are compared with the layout's afterwards. */
	memcpy(&mine, table + column * sizeof(mine), sizeof(mine));
	memcpy(&target, table + to * sizeof(target), sizeof(target));
	if (mine.slot_bytes != target.slot_bytes)
		return why_set(why, EINVAL, "column %u of %llu bytes has the bytes of column %u of %llu", column,
			(unsigned long long)mine.slot_bytes, to, (unsigned long long)target.slot_bytes);
	return 0;
}

static int take_aliases(const struct layout *layout, const uint8_t *table, uint16_t *alias, struct why *why)
{
	int r = 0;

	for (uint32_t i = 0; i < columns_of(layout) && !r; i++) {
		memcpy(&alias[i], table + i * sizeof(struct file_column) + offsetof(struct file_column, alias),
			sizeof(alias[i]));
		r = check_alias(layout, table, alias, i, why);
	}
	return r;
}

/* Does each byte of the header say what would be written for this id and these aliases? */
static int check_places(const struct layout *layout, const uint8_t *from, const struct file_header *h,
	const struct record_file_id *id, const uint16_t *alias, struct why *why)
{
	const uint8_t *table = from + sizeof(*h), *rest = table + columns_of(layout) * sizeof(struct file_column);
	const uint8_t *end = from + h->header_bytes - CHECK_BYTES;
	struct record_file_plan plan;
	struct file_header want;

	record_file_plan(layout, id->pages, id->flags & RECORD_FILE_ROW, alias, &plan);
	make_fixed(layout, &plan, id, &want);
	for (size_t i = 0; i < sizeof(want); i++)
		if (((const uint8_t *)&want)[i] != ((const uint8_t *)h)[i])
			return why_set(why, EINVAL, "the file's header contradicts its layout at byte %zu", i);
	for (uint32_t i = 0; i < columns_of(layout); i++) {
		struct file_column column;

		make_column(layout, &plan, alias, i, &column);
		if (memcmp(&column, table + i * sizeof(column), sizeof(column)))
			return why_set(why, EINVAL, "the file's column %u contradicts its layout", i);
	}
	for (; rest < end; rest++)
		if (*rest)
			return why_set(why, EINVAL, "byte %zu of the file's header is %u; it must be 0",
				(size_t)(rest - from), *rest);
	return 0;
}

int record_file_read_header(const void *header, uint64_t bytes, const struct layout *layout, struct record_file_id *id,
	uint16_t *alias, struct why *why)
{
	struct file_header h;
	int r = check_envelope(header, bytes, layout, &h, why);

	if (r)
		return r;
	if (h.header_bytes != record_file_header_bytes(layout))
		return why_set(why, EINVAL, "the file's header has %u bytes; its layout's has %llu", h.header_bytes,
			(unsigned long long)record_file_header_bytes(layout));
	take_id(&h, id);
	r = check_id(layout, id, why);
	if (!r)
		r = take_aliases(layout, (const uint8_t *)header + sizeof(h), alias, why);
	return r ? r : check_places(layout, header, &h, id, alias, why);
}

int record_file_read_keys(const void *segment, const struct record_file_plan *plan, const struct key **keys,
	const uint64_t **sums, struct why *why)
{
	assert((uintptr_t)segment % _Alignof(uint64_t) == 0);
	if (!sealed(segment, plan->keys_bytes))
		return why_set(why, EINVAL, "the checksum of the file's keys is wrong");
	*keys = segment;
	*sums = (const uint64_t *)(*keys + plan->pages);
	return 0;
}
