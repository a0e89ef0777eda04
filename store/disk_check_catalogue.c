/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check, catalogue: its rows against the files, which are the truth.
 *
 * It is open while files are repaired: a death then leaves one that was not closed, and a restart believes no row unseen.
 */
#include "store/disk_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"

#define FLUSH_NS 30000000000ull /* for half a queue of the catalogue */
#define NAME "catalogue.sqlite"

struct rows {
	struct check_space *space;
	struct catalogue *catalogue; /* NULL: it is looked at alone */
	uint64_t *gone;              /* rows without a file */
	uint32_t gone_count, gone_capacity;
	uint32_t untold;             /* changes since the last flush */
	bool unread;                 /* what was there is not believed, or nothing was */
	bool no_memory, dropped;
};

/* ---- comparing ------------------------------------------------------------------------------------------------------------ */

static bool lacks(const struct catalogue_row *row, size_t at)
{
	return at / 8 < row->absent_bytes && row->absent[at / 8] >> at % 8 & 1;
}

static uint64_t absent_in(const struct rows *rows, const struct catalogue_row *row, bool with_row)
{
	const struct layout *layout = rows->space->layout;
	uint64_t hash = 0;

	for (uint32_t page = 0; row->absent && page < row->pages; page++)
		for (uint32_t c = 0; c < layout->page_columns; c++)
			if (lacks(row, (size_t)page * layout->page_columns + c))
				hash = check_absent_hash(hash, page, c);
	for (uint32_t c = 0; row->absent && with_row && c < layout->row_columns; c++)
		if (lacks(row, (size_t)row->file_pages * layout->page_columns + c))
			hash = check_absent_hash(hash, TABLES_PAGE_ROW, c);
	return hash;
}

/* What the catalogue's row says otherwise than the file, or NULL. Of a file that is to be cut or renamed only what that leaves as it is: its row is
 * written anew anyway. */
static const char *differs(const struct rows *rows, const struct catalogue_row *row, const struct check_file *f)
{
	if (row->nonce != f->nonce)
		return "it is of another writing of it";
	if (row->start != f->start)
		return "it says that it begins at another token";
	if (row->file_pages != f->file_pages)
		return "it says that it was written with another number of pages";
	if (row->pages != f->pages)
		return "it says that it has another number of pages";
	if (check_keys_hash(row->keys, row->pages) != f->keys_hash)
		return "it says that it has other keys";
	if (f->changed || f->state != CHECK_GOOD)
		return NULL;
	if (row->file_bytes != f->bytes)
		return "it says that it has another length";
	if (!(row->flags & CATALOGUE_ROW) != !f->row)
		return f->row ? "it says that it has no state" : "it says that it has a state";
	return absent_in(rows, row, f->row) == f->absent_hash ? NULL : "it says that other values are absent";
}

static void row_goes(struct rows *rows, uint64_t id)
{
	if (rows->gone_count == rows->gone_capacity) {
		uint32_t capacity = rows->gone_capacity ? 2 * rows->gone_capacity : 256;
		uint64_t *gone = realloc(rows->gone, capacity * sizeof(*gone));

		if (!gone) {
			rows->no_memory = true;
			return;
		}
		rows->gone = gone;
		rows->gone_capacity = capacity;
	}
	rows->gone[rows->gone_count++] = id;
}

static bool compare_row(void *context, const struct catalogue_row *row)
{
	struct rows *rows = context;
	struct check_space *s = rows->space;
	struct check *check = s->check;
	struct check_file *f = check_find(s, row->consumed, &row->endpoint);
	char path[CHECK_PATH_BYTES];
	const char *what;

	check->report->rows++;
	check_path_of(path, row->consumed, &row->endpoint);
	if (!f || f->state == CHECK_GONE || f->state == CHECK_FOREIGN || f->row_id) {
		check->report->rows_without_file++;
		check_tell(check, s, path, f && f->row_id ? "the catalogue's row %llu says what row %llu says of the same file"
		                                          : "the catalogue's row %llu names this file: there is none that is ours",
			(unsigned long long)row->id, f ? (unsigned long long)f->row_id : 0ull);
		row_goes(rows, row->id);
		return !rows->no_memory;
	}
	f->row_id = row->id;
	f->row_pinned = row->flags & CATALOGUE_PINNED;
	what = f->whole_head ? differs(rows, row, f) : NULL;
	if (what) {
		f->row_wrong = true;
		check->report->wrong_rows++;
		check_tell(check, s, path, "the catalogue's row %llu does not fit this file: %s", (unsigned long long)row->id, what);
	}
	return true;
}

/* Files of which the catalogue says nothing: each is told, or, where it says nothing at all, how many they are. */
static void files_without_row(struct rows *rows)
{
	struct check_space *s = rows->space;
	const struct disk_check_options *options = s->check->options;
	uint64_t count = 0;

	for (uint32_t i = 0; i < s->count; i++) {
		const struct check_file *f = &s->files[i];
		char path[CHECK_PATH_BYTES];

		if (f->state != CHECK_GOOD || f->row_id)
			continue;
		count++;
		check_path_of(path, f->consumed, &f->endpoint);
		if (!rows->unread)
			check_tell(s->check, s, path, "the catalogue has no row for it");
	}
	s->check->report->files_without_row += count;
	if (rows->unread && count)
		check_tell(s->check, s, NAME, "%llu files have no row in it%s", (unsigned long long)count,
			options->repair || options->rebuild ? "" : ": --rebuild makes it anew");
}

/* ---- putting right ---------------------------------------------------------------------------------------------------------- */

static void changed(struct rows *rows, bool queued)
{
	rows->dropped |= !queued;
	if (++rows->untold < CATALOGUE_QUEUE / 2)
		return;
	rows->untold = 0;
	rows->dropped |= !catalogue_flush(rows->catalogue, FLUSH_NS);
}

/* Bitmap of values that the file lacks, the caller's; NULL and 0 bytes: none. False: no memory. */
static bool absent_of(const uint64_t *sums, size_t count, uint8_t **ret, uint32_t *ret_bytes)
{
	*ret = NULL;
	*ret_bytes = 0;
	for (size_t i = 0; i < count; i++) {
		if (sums[i])
			continue;
		if (!*ret) {
			*ret_bytes = (uint32_t)((count + 7) / 8);
			*ret = calloc(1, *ret_bytes);
		}
		if (!*ret)
			return false;
		(*ret)[i / 8] |= (uint8_t)(1u << i % 8);
	}
	return true;
}

static bool any_alias(const struct disk_file_info *info, uint32_t columns)
{
	for (uint32_t i = 0; i < columns; i++)
		if (info->alias[i] != i)
			return true;
	return false;
}

/* The row of a file as it is now. */
static bool add_info(struct rows *rows, const struct check_file *f, const struct disk_file_info *info)
{
	uint32_t columns = info->plan.page_columns + info->plan.row_columns;
	cleanup(freep) uint8_t *absent = NULL;
	uint32_t absent_bytes;
	const struct key *keys;
	const uint64_t *sums;

	if (record_file_read_keys(info->segment, &info->plan, &keys, &sums, NULL) ||
		!absent_of(sums, (size_t)info->plan.pages * info->plan.page_columns + info->plan.row_columns, &absent, &absent_bytes))
		return false;
	struct catalogue_row row = {
		.id = f->row_id ? f->row_id : catalogue_next_id(rows->catalogue),
		.nonce = info->id.nonce,
		.start = info->id.start,
		.consumed = f->consumed,
		.generation = info->id.generation,
		.file_bytes = info->file_bytes,
		.whole_id = info->id.whole_id,
		.created_s = info->id.created_s,
		.written_s = f->mtime_s,
		.endpoint = f->endpoint,
		.parent = info->id.parent,
		.keys = keys,
		.absent = absent,
		.absent_bytes = absent_bytes,
		.pages = info->pages,
		.file_pages = info->plan.pages,
		.flags = (info->id.flags & (RECORD_FILE_ROOT | RECORD_FILE_WHOLE)) | (info->row ? CATALOGUE_ROW : 0) |
			(f->row_pinned ? CATALOGUE_PINNED : 0),
		.whole_count = info->id.whole_count,
	};

	if (any_alias(info, columns)) {
		row.alias = info->alias;
		row.alias_count = columns;
	}
	changed(rows, catalogue_add(rows->catalogue, &row));
	return true;
}

static void add_row(struct rows *rows, const struct check_file *f)
{
	struct check_space *s = rows->space;
	struct disk_file_info info;
	struct why why = WHY_INIT;
	char path[CHECK_PATH_BYTES];
	int r = disk_file_look(s->dir, f->consumed, &f->endpoint, &info, &why);

	if (!r && add_info(rows, f, &info)) {
		free(info.segment);
		return;
	}
	if (!r)
		free(info.segment);
	rows->dropped = true;
	s->check->report->unrepaired++;
	check_path_of(path, f->consumed, &f->endpoint);
	check_tell(s->check, s, path, "the catalogue's row for it could not be made: %s", r ? why.text : "no memory");
}

static void put_right(struct rows *rows)
{
	struct check_space *s = rows->space;

	for (uint32_t i = 0; i < rows->gone_count; i++)
		changed(rows, catalogue_remove(rows->catalogue, rows->gone[i]));
	for (uint32_t i = 0; i < s->count; i++) {
		const struct check_file *f = &s->files[i];

		if (f->state == CHECK_GONE && f->row_id)
			changed(rows, catalogue_remove(rows->catalogue, f->row_id));
		else if (f->state == CHECK_GOOD && !f->changed && (f->row_wrong || !f->row_id))
			add_row(rows, f);
	}
}

/* All rows once more, in the order in which the files were written. */
static void make_anew(struct rows *rows)
{
	struct check_space *s = rows->space;

	changed(rows, catalogue_clear(rows->catalogue));
	for (uint32_t i = 0; i < s->count; i++) {
		struct check_file *f = &s->files[i];

		f->row_id = 0;
		if (f->state == CHECK_GOOD && !f->changed)
			add_row(rows, f);
	}
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------- */

static void forget_rows(struct rows *rows)
{
	struct check_space *s = rows->space;

	rows->gone_count = 0;
	rows->unread = true;
	for (uint32_t i = 0; i < s->count; i++) {
		s->files[i].row_id = 0;
		s->files[i].row_wrong = s->files[i].row_pinned = false;
	}
}

static void tell(struct rows *rows, const struct why *why)
{
	check_tell(rows->space->check, rows->space, NAME, "%s", why->text);
}

/* The rows, without touching it. */
static void look(struct rows *rows, const char *path)
{
	const struct layout *l = rows->space->layout;
	struct why why = WHY_INIT;
	int r = catalogue_look(path, l->identity, l->fingerprint, UINT64_MAX, compare_row, rows, &why);

	if (r)
		tell(rows, &why);
	if (r && !rows->no_memory)
		forget_rows(rows);
}

/* The rows, from a catalogue that is changed afterwards. Without one only the files are repaired: @rows->catalogue is NULL then. */
static void open_it(struct rows *rows, const char *path)
{
	const struct layout *l = rows->space->layout;
	struct why why = WHY_INIT;
	bool fresh = false, behind = false;
	int r = catalogue_open(path, l->identity, l->fingerprint, &rows->catalogue, &fresh, &behind, &why);

	rows->unread = r || fresh;
	if (r || why.error)
		tell(rows, &why);
	else if (fresh)
		check_tell(rows->space->check, rows->space, NAME, "there was none");
	if (!r && !fresh) {
		r = catalogue_load(rows->catalogue, compare_row, rows, &why);
		rows->unread |= r != 0;
		if (r)
			tell(rows, &why);
		if (r == -EBADMSG)
			forget_rows(rows);
		if (r && r != -EBADMSG)
			catalogue_close(&rows->catalogue, FLUSH_NS);
	}
	rows->space->check->report->unrepaired += !rows->catalogue;
}

static void close_it(struct rows *rows)
{
	if (!rows->catalogue)
		return;
	rows->dropped |= !catalogue_flush(rows->catalogue, FLUSH_NS);
	if (!rows->dropped && !rows->space->blind)
		catalogue_mended(rows->catalogue);
	if (rows->dropped) {
		rows->space->check->report->unrepaired++;
		check_tell(rows->space->check, rows->space, NAME, "not all of it could be put right");
	}
	catalogue_close(&rows->catalogue, FLUSH_NS);
}

int check_catalogue(struct check_space *s, struct why *why)
{
	const struct disk_check_options *options = s->check->options;
	struct rows rows = {.space = s};
	char path[4096];

	snprintf(path, sizeof(path), "%s/" NAME, disk_dir_path(s->dir));
	if (options->repair || options->rebuild)
		open_it(&rows, path);
	else
		look(&rows, path);
	if (!rows.no_memory) {
		files_without_row(&rows);
		if (options->repair)
			check_repair(s);
		if (rows.catalogue && options->rebuild)
			make_anew(&rows);
		else if (rows.catalogue)
			put_right(&rows);
	}
	close_it(&rows);
	free(rows.gone);
	return rows.no_memory ? why_set(why, ENOMEM, "no memory to check the catalogue of %s", s->folder) : 0;
}
