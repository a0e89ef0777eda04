/* SPDX-License-Identifier: Apache-2.0
 *
 * The format of a record file (docs/on-disk-format.md): where everything lies, header and key segment made and checked.
 * No I/O here. All functions are safe from any thread; none blocks or allocates unless it says so.
 *
 *   header        4 KiB (or more, where more than RECORD_FILE_TABLE_MOST columns need it): what the file is; ends in its checksum
 *   key segment   keys[pages], sums[pages][page columns], row sums[row columns], zeros up to 4 KiB less 8, checksum of all that
 *   pages         [pages][stored page columns], each value as long as its slot; an absent value is a hole
 *   row           the stored row columns
 *
 * A file that lost tail pages or its row was only truncated and renamed: its name says how many pages it has, its size
 * whether they and the row are there; the header stays as it was written.
 */
#ifndef PREFIXFS_STORE_RECORD_FILE_H
#define PREFIXFS_STORE_RECORD_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "index/layout.h"
#include "index/tables.h"
#include "store/base/why.h"

#define RECORD_FILE_MAGIC 0x3130434552534650ull /* "PFSREC01" */
#define RECORD_FILE_VERSION 1u
#define RECORD_FILE_ALIGN 4096u
#define RECORD_FILE_MAX_PAGES 4096u
#define RECORD_FILE_TABLE_MOST 95u /* columns whose table fits the first 4 KiB */
#define RECORD_FILE_MAX_COLUMNS (LAYOUT_MAX_CLASSES * LAYOUT_MAX_SHARES) /* of pages and row together */
#define RECORD_FILE_NAME_BYTES 112u /* "<consumed>-<64 hex>.rec" with its NUL */

enum record_file_flags {
	RECORD_FILE_ROOT = 1,  /* begins a chain; parent is zero */
	RECORD_FILE_WHOLE = 2, /* one of whole_count files of a group that is all or nothing */
	RECORD_FILE_ROW = 4,   /* was written with a row */
};

/* What a file is about. Fixed when it is written. */
struct record_file_id {
	struct key endpoint; /* when it was written */
	struct key parent;
	uint64_t start;      /* tokens before the first page; of a record without pages: at its endpoint */
	uint64_t generation; /* of the namespace */
	uint64_t nonce;      /* random, of this writing: a file of the same name that is another one has another */
	int64_t created_s;
	uint64_t whole_id;   /* of the group, and how many files belong to it (>= 1 with WHOLE); both 0 without */
	uint32_t whole_count;
	uint32_t pages;
	uint32_t flags;      /* enum record_file_flags */
};

/* Where everything lies. Computed from a layout, a number of pages and the columns' aliases; never from a file. */
struct record_file_plan {
	uint32_t pages, page_columns, row_columns;
	uint32_t page_tokens;
	uint64_t header_bytes, keys_bytes; /* padded */
	uint64_t page_offset, page_stride; /* of page 0; between pages */
	uint64_t row_offset, row_bytes;    /* behind the last page; 0 bytes: no row */
	uint64_t file_bytes;
};

/* @alias[column]: the column whose bytes it has; itself when its bytes are stored. NULL: each is stored. Index and value count
 * page columns, then row columns: column c of the row is [page_columns + c]. An alias names a lower column of the same kind
 * (page or row) and slot size that is stored, and has a value where that has one with the same bytes, or none. */
void record_file_plan(const struct layout *layout, uint32_t pages, bool row, const uint16_t *alias, struct record_file_plan *ret);
/* Offset in the file of the value of @column (of a page, or with @page = TABLES_PAGE_ROW of the row: both count from 0). */
uint64_t record_file_offset(const struct layout *layout, const struct record_file_plan *plan, const uint16_t *alias,
			    uint32_t page, uint32_t column);
/* Length that a file has with its first @pages pages and no row. */
uint64_t record_file_length(const struct record_file_plan *plan, uint32_t pages);

/* A file's name and length, as a listing has them. */
struct record_file_found {
	uint64_t consumed;
	struct key endpoint;
	uint64_t file_bytes;
};

/* What of the file is there: the leading *pages, of those that its name says, lie wholly within its length, and the *row does
 * when the name says all pages. @keys: of its key segment. EINVAL: the name says what no truncation leaves. */
int record_file_there(const struct record_file_id *id, const struct record_file_plan *plan, const struct key *keys,
		      const struct record_file_found *found, uint32_t *pages, bool *row, struct why *why);

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* "<consumed>-<key>.rec", 16 and 64 hex digits, as the record is called in the mount; the folder it lies in is named after the key's first byte, two hex digits. */
void record_file_name(char to[RECORD_FILE_NAME_BYTES], uint64_t consumed, const struct key *endpoint);
uint8_t record_file_folder(const struct key *endpoint);
/* False: @name is none. One file has one name: lower case. */
bool record_file_parse_name(const char *name, uint64_t *consumed, struct key *endpoint);

/* ---- header and key segment ----------------------------------------------------------------------------------------- */

/* Both write whole padded lengths (plan.header_bytes, plan.keys_bytes) into @to, 4 KiB-aligned memory of the caller. @id says
 * ROW when the plan has a row. */
void record_file_make_header(void *to, const struct layout *layout, const struct record_file_plan *plan,
			     const struct record_file_id *id, const uint16_t *alias);
/* @sums: [pages][page_columns], then [row_columns]; 0 = absent (record_file_sum never is). */
void record_file_make_keys(void *to, const struct record_file_plan *plan, const struct key *keys, const uint64_t *sums);

/* Checksum of a value of @bytes, its whole slot (writers zero what lies behind the payload): hash_64 with seed 0. Never 0. */
uint64_t record_file_sum(const void *value, uint64_t bytes);

/* Checks the first 4 KiB-multiple of a file, @bytes long, against @layout: EINVAL names what is wrong; ENOTSUP: a newer
 * version or another writer; EXDEV: another namespace's. *id and @alias (RECORD_FILE_MAX_COLUMNS are enough) are set, and
 * mean something when the answer is 0. Whatever the header says, nothing past @bytes is looked at. */
int record_file_read_header(const void *header, uint64_t bytes, const struct layout *layout, struct record_file_id *id,
			    uint16_t *alias, struct why *why);
/* Bytes of the header that files of @layout have. */
uint64_t record_file_header_bytes(const struct layout *layout);
/* Checks a key segment as long as @plan says, 8-aligned, and points into it: keys, sums. EINVAL: its checksum is wrong. */
int record_file_read_keys(const void *segment, const struct record_file_plan *plan, const struct key **keys,
			  const uint64_t **sums, struct why *why);

#endif
