/* SPDX-License-Identifier: Apache-2.0
 *
 * Files and catalogue against the tables, after an adoption.
 *
 *   FOLDERS    one after the other: each name is a record's, or is judged        seen: bitmap of records
 *   MISSING    records of before whose file was not seen, and is not there
 *   KNOWN      their ids, in order
 *   ROWS       the catalogue from its newest row of before on, beside them
 *   LACKING    those that have no row, or one of a writing that another one may have overtaken just before the death
 */
#include "store/reconcile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/host_private.h"
#include "store/load_private.h"

#define FOLDERS 256u
#define LOOKS 64u          /* headers of one step */
#define STEP_RECORDS 4096u /* records, and rows, of one step */
#define QUEUE_MOST (CATALOGUE_QUEUE / 2) /* of changes that wait: no more are made */

enum phase { FOLDERS_LISTED, MISSING_FOUND, KNOWN_TAKEN, ROWS_COMPARED, ROWS_ADDED, DONE };

struct name {
	uint64_t consumed;
	struct key endpoint;
};

struct known {
	uint64_t id;
	uint32_t record;
};

struct reconcile {
	struct tiering *t;
	enum phase phase;
	uint64_t ids_end;    /* files with larger ids were written since */
	uint32_t limit;      /* records that there were */
	uint64_t *seen;      /* bitmap [limit] */
	uint32_t folder, cursor;
	struct name *names;  /* of the folder, those that are to be judged: [name_at, name_count) */
	uint32_t name_count, name_at, name_capacity;
	struct known *known; /* with descending ids */
	uint32_t known_count, known_capacity, known_at;
	uint32_t lacking;    /* of them, the first so many have no row; while rows are compared, of those before known_at */
	uint64_t row_at;     /* ids of rows below are to be compared */
	uint32_t rows;       /* of this step */
	bool no_memory;
	struct reconcile_report report; /* (space lock) */
};

struct reconcile *reconcile_new(struct tiering *t)
{
	struct reconcile *r = calloc(1, sizeof(*r));

	lock_assert_none_held();
	if (!r)
		return NULL;
	r->t = t;
	r->ids_end = r->row_at = catalogue_next_id(t->catalogue);
	lock_take(&t->space->lock);
	r->limit = index_record_limit(t->space->index);
	r->known_capacity = (uint32_t)t->disk_files;
	lock_drop(&t->space->lock);
	r->seen = calloc(r->limit / 64 + 1, sizeof(*r->seen));
	r->known = calloc((size_t)r->known_capacity + 1, sizeof(*r->known));
	if (r->seen && r->known)
		return r;
	reconcile_free(&r);
	return NULL;
}

static void let_go(struct reconcile *r)
{
	free(r->seen);
	free(r->names);
	free(r->known);
	r->seen = NULL;
	r->names = NULL;
	r->known = NULL;
}

void reconcile_free(struct reconcile **rp)
{
	if (!*rp)
		return;
	let_go(*rp);
	free(*rp);
	*rp = NULL;
}

void reconcile_report(const struct reconcile *r, struct reconcile_report *ret)
{
	lock_take(&r->t->space->lock);
	*ret = r->report;
	lock_drop(&r->t->space->lock);
}

static void next_phase(struct reconcile *r)
{
	r->phase++;
	r->cursor = 0;
}

static bool finish(struct reconcile *r)
{
	r->phase = DONE;
	lock_take(&r->t->space->lock);
	r->report.done = true;
	lock_drop(&r->t->space->lock);
	return false;
}

/* Under the lock: the file of @record was there before, and it may be there still. */
static bool is_before(const struct reconcile *r, uint32_t record)
{
	const struct tiering *t = r->t;
	const struct record_file *f = &t->files[record];

	return record < index_record_limit(t->space->index) && f->flags & TIERING_KNOWN && f->id && f->id < r->ids_end &&
	       index_record(t->space->index, record)->state == RECORD_LIVE && index_record_current(t->space->index, record);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

static bool note_name(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s)
{
	struct reconcile *r = context;

	(void)bytes;
	(void)mtime_s;
	if (r->name_count == r->name_capacity) {
		uint32_t capacity = r->name_capacity ? 2 * r->name_capacity : 1024;
		struct name *names = realloc(r->names, capacity * sizeof(*names));

		r->no_memory |= !names;
		if (!names)
			return false;
		r->names = names;
		r->name_capacity = capacity;
	}
	r->names[r->name_count++] = (struct name){ consumed, *endpoint };
	return true;
}

enum verdict { WANTED, UNWANTED, LATER };

/* Under the lock. */
static enum verdict judge(struct reconcile *r, const struct name *name)
{
	struct tiering *t = r->t;
	uint32_t record = index_find_endpoint(t->space->index, &name->endpoint);

	if (tiering_name_owed(t, name->consumed, &name->endpoint) || t->trims != INDEX_NONE)
		return LATER;
	if (record == INDEX_NONE)
		return UNWANTED;

	const struct record_file *f = tiering_file(t, record);

	if (f->id && tiering_file_consumed(t, record) == name->consumed && !memcmp(&f->endpoint, &name->endpoint, sizeof(f->endpoint))) {
		if (record < r->limit)
			r->seen[record / 64] |= 1ull << record % 64;
		return WANTED;
	}
	return f->job ? LATER : UNWANTED; /* a write may bring it */
}

/* Another writer's, a newer version's or another namespace's? What cannot be read now may be. */
static bool is_foreign(struct reconcile *r, const struct name *name)
{
	struct tiering *t = r->t;
	struct disk_file_info info;
	int e = disk_file_look(t->dir, name->consumed, &name->endpoint, &info, NULL);

	if (!e)
		free(info.segment);
	if (e == -ENOTSUP || e == -EXDEV) {
		uint64_t bytes = disk_file_bytes(t->dir, name->consumed, &name->endpoint);

		lock_take(&t->space->lock);
		t->foreign_files++;
		t->foreign_bytes += bytes;
		lock_drop(&t->space->lock);
	}
	return e && e != -EINVAL && e != -ENOENT;
}

/* One that was unwanted, unless it has come to be wanted. False: it is to be judged again. */
static bool remove_unwanted(struct reconcile *r, const struct name *name)
{
	struct tiering *t = r->t;
	enum verdict verdict;

	if (is_foreign(r, name))
		return true;
	lock_take(&t->space->lock);
	verdict = t->closed ? WANTED : judge(r, name);
	if (verdict == UNWANTED) {
		tiering_remove_file(t, name->consumed, &name->endpoint);
		r->report.files_removed++;
	}
	lock_drop(&t->space->lock);
	return verdict != LATER;
}

/* Those that are wanted are passed, up to the first that is not; false: that one has to be waited for, or none is left. */
static bool find_unwanted(struct reconcile *r)
{
	struct tiering *t = r->t;
	enum verdict verdict = WANTED;

	while (verdict == WANTED && r->name_at < r->name_count) {
		lock_take(&t->space->lock);
		while (tiering_flush(t)) {
			lock_drop(&t->space->lock);
			lock_take(&t->space->lock);
		}
		for (uint32_t i = 0; i < INDEX_STEP_KEYS && verdict == WANTED && r->name_at < r->name_count; i++) {
			verdict = judge(r, &r->names[r->name_at]);
			r->name_at += verdict == WANTED;
			r->report.files += verdict == WANTED;
		}
		lock_drop(&t->space->lock);
	}
	return verdict == UNWANTED;
}

static bool list_folder(struct reconcile *r)
{
	struct disk_listing what = { .part = r->folder, .parts = FOLDERS, .clear = true };
	struct why why = WHY_INIT;

	r->name_count = r->name_at = 0;
	return !disk_dir_list(r->t->dir, &what, note_name, r, &why) && !r->no_memory;
}

/* A folder, or some of what it has too much. */
static bool step_folders(struct reconcile *r)
{
	uint32_t looks = 0;

	if (r->name_at == r->name_count) {
		if (r->folder == FOLDERS) {
			next_phase(r);
			return true;
		}
		if (!list_folder(r))
			return finish(r); /* what is not known to be there is not judged */
		r->folder++;
	}
	while (looks++ < LOOKS && find_unwanted(r)) {
		if (!remove_unwanted(r, &r->names[r->name_at]))
			return false;
		r->name_at++;
	}
	return looks > LOOKS || r->name_at == r->name_count; /* else one is to be waited for: the next look of the mover */
}

/* ---- files that are not there -------------------------------------------------------------------------------------------------- */

/* Is there no such file? What cannot be asked now is left to the reads. */
static bool is_missing(struct tiering *t, const struct name *name)
{
	int fd = disk_file_open(t->dir, name->consumed, &name->endpoint);

	if (fd >= 0)
		close(fd);
	return fd == -ENOENT;
}

/* Under the lock: a record whose file was not seen, and how that is called. */
static bool next_unseen(struct reconcile *r, uint32_t *ret, struct name *name, uint64_t *id)
{
	struct tiering *t = r->t;

	for (uint32_t i = 0; i < INDEX_STEP_KEYS && r->cursor < r->limit; i++) {
		uint32_t record = r->cursor++;

		if (!is_before(r, record) || r->seen[record / 64] >> record % 64 & 1 || t->files[record].job)
			continue;
		*ret = record;
		*id = t->files[record].id;
		*name = (struct name){ tiering_file_consumed(t, record), t->files[record].endpoint };
		return true;
	}
	return false;
}

static bool step_missing(struct reconcile *r)
{
	struct tiering *t = r->t;

	for (uint32_t i = 0; i < STEP_RECORDS / INDEX_STEP_KEYS && r->cursor < r->limit; i++) {
		struct name name;
		uint64_t id;
		uint32_t record;

		lock_take(&t->space->lock);
		bool unseen = next_unseen(r, &record, &name, &id);

		lock_drop(&t->space->lock);
		if (!unseen || !is_missing(t, &name))
			continue;
		lock_take(&t->space->lock);
		const struct record_file *f = &t->files[record];
		bool still = is_before(r, record) && f->id == id && !f->job && tiering_file_consumed(t, record) == name.consumed;

		r->report.files_missing += still;
		lock_drop(&t->space->lock);
		if (still)
			load_lose_file(t, record, id);
	}
	if (r->cursor == r->limit)
		next_phase(r);
	return true;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------ */

static int newer(const void *a, const void *b)
{
	uint64_t x = ((const struct known *)a)->id, y = ((const struct known *)b)->id;

	return (x < y) - (x > y);
}

static bool step_known(struct reconcile *r)
{
	struct tiering *t = r->t;

	for (uint32_t i = 0; i < STEP_RECORDS / INDEX_STEP_KEYS && r->cursor < r->limit; i++) {
		lock_take(&t->space->lock);
		for (uint32_t n = 0; n < INDEX_STEP_KEYS && r->cursor < r->limit; n++, r->cursor++)
			if (is_before(r, r->cursor) && r->known_count < r->known_capacity)
				r->known[r->known_count++] = (struct known){ t->files[r->cursor].id, r->cursor };
		lock_drop(&t->space->lock);
	}
	if (r->cursor < r->limit)
		return true;
	if (r->known_count)
		qsort(r->known, r->known_count, sizeof(*r->known), newer);
	next_phase(r);
	return true;
}

/* Under the lock: what @row says of the file of @record is what the tier knows, from here on. */
static void compare(struct reconcile *r, uint32_t record, const struct catalogue_row *row)
{
	struct tiering *t = r->t;
	const struct record_file *f = &t->files[record];
	bool held = index_record(t->space->index, record)->flags & RECORD_FLAG_HELD, has_row = f->flags & TIERING_FILE_ROW;
	bool other = row->pages != f->pages || row->consumed != tiering_file_consumed(t, record) ||
		     memcmp(&row->endpoint, &f->endpoint, sizeof(f->endpoint)) || !(row->flags & CATALOGUE_ROW) == has_row ||
		     row->file_bytes != f->bytes;

	if (other)
		catalogue_trim(t->catalogue, f->id, f->pages, tiering_file_consumed(t, record), &f->endpoint, has_row, f->bytes);
	if (!(row->flags & CATALOGUE_PINNED) == held)
		catalogue_pin(t->catalogue, f->id, held);
	r->report.rows_mended += other || !(row->flags & CATALOGUE_PINNED) == held;
}

/* Under the lock: the row of @k. The file of a record that is to be written may be a later writing already, whose name was all that came of
 * it: its header says. */
static void row_known(struct reconcile *r, const struct known *k, const struct catalogue_row *row)
{
	const struct record_file *f = &r->t->files[k->record];

	if (!is_before(r, k->record) || f->id != k->id)
		return; /* it has gone since, and who let it go has removed the row */
	if (f->dirty || f->flags & TIERING_STALE)
		r->known[r->lacking++] = *k;
	else
		compare(r, k->record, row);
}

static bool row_read(void *context, const struct catalogue_row *row)
{
	struct reconcile *r = context;
	struct tiering *t = r->t;

	r->row_at = row->id;
	while (r->known_at < r->known_count && r->known[r->known_at].id > row->id)
		r->known[r->lacking++] = r->known[r->known_at++];
	lock_take(&t->space->lock);
	if (r->known_at == r->known_count || r->known[r->known_at].id != row->id) {
		catalogue_remove(t->catalogue, row->id);
		r->report.rows_removed++;
	} else {
		struct known k = r->known[r->known_at++];

		row_known(r, &k, row);
	}
	lock_drop(&t->space->lock);
	return ++r->rows < STEP_RECORDS;
}

static bool step_rows(struct reconcile *r)
{
	const struct layout *layout = r->t->space->layout;
	struct why why = WHY_INIT;
	char path[4096];

	snprintf(path, sizeof(path), "%s/catalogue.sqlite", disk_dir_path(r->t->dir));
	r->rows = 0;
	if (catalogue_look(path, layout->identity, layout->fingerprint, r->row_at, row_read, r, &why))
		return finish(r); /* it stays behind: the next restart looks at the files */
	if (r->rows == STEP_RECORDS)
		return true;
	while (r->known_at < r->known_count)
		r->known[r->lacking++] = r->known[r->known_at++];
	next_phase(r);
	return true;
}

/* ---- rows that there are not ------------------------------------------------------------------------------------------------------ */

/* Bitmap of what the file lacks, to be freed; NULL: it lacks nothing, or there is no memory. */
static uint8_t *absent_of(const uint64_t *sums, size_t count, uint32_t *ret_bytes)
{
	uint8_t *absent = calloc(1, count / 8 + 1);
	bool any = false;

	for (size_t i = 0; absent && i < count; i++) {
		absent[i / 8] |= (uint8_t)(!sums[i] << i % 8);
		any |= !sums[i];
	}
	*ret_bytes = any ? (uint32_t)((count + 7) / 8) : 0;
	if (any)
		return absent;
	free(absent);
	return NULL;
}

/* Under the lock: what the header says of the file that is there. */
static void take_file(struct tiering *t, uint32_t record, const struct disk_file_info *info)
{
	struct record_file *f = &t->files[record];

	t->disk_bytes += info->file_bytes - f->bytes;
	f->bytes = info->file_bytes;
	f->file_pages = (uint16_t)info->plan.pages;
	f->flags &= (uint8_t)~TIERING_FILE_ROW;
	f->flags |= info->row ? TIERING_FILE_ROW : 0;
	f->alias = tiering_alias_of(t, info->alias, t->space->layout->page_columns + t->space->layout->row_columns);
	f->flags |= TIERING_ALIAS_SURE;
	tiering_row_set(t, record, false);
}

/* Under the lock. */
static void add_row(struct reconcile *r, uint32_t record, const struct disk_file_info *info, const struct key *keys, const uint8_t *absent,
		    uint32_t absent_bytes)
{
	struct tiering *t = r->t;
	const struct record_file *f = &t->files[record];
	bool held = index_record(t->space->index, record)->flags & RECORD_FLAG_HELD;
	struct catalogue_row row = {
		.id = f->id,
		.nonce = info->id.nonce,
		.start = info->id.start,
		.consumed = tiering_file_consumed(t, record),
		.generation = info->id.generation,
		.file_bytes = f->bytes,
		.whole_id = info->id.whole_id,
		.whole_count = info->id.whole_count,
		.created_s = info->id.created_s,
		.written_s = info->mtime_s,
		.endpoint = f->endpoint,
		.parent = info->id.parent,
		.keys = keys,
		.absent = absent,
		.absent_bytes = absent_bytes,
		.alias = info->alias,
		.alias_count = t->space->layout->page_columns + t->space->layout->row_columns,
		.pages = f->pages,
		.file_pages = info->plan.pages,
		.flags = (info->id.flags & (RECORD_FILE_ROOT | RECORD_FILE_WHOLE)) | (f->flags & TIERING_FILE_ROW ? CATALOGUE_ROW : 0) |
			 (held ? CATALOGUE_PINNED : 0),
	};
	bool any_alias = false;

	for (uint32_t i = 0; i < row.alias_count; i++)
		any_alias |= info->alias[i] != i;
	if (!any_alias)
		row.alias = NULL;
	catalogue_add(t->catalogue, &row);
	r->report.rows_added++;
}

static void add_lacking(struct reconcile *r, const struct known *k)
{
	struct tiering *t = r->t;
	struct disk_file_info info;
	struct why why = WHY_INIT;
	const uint64_t *sums;
	const struct key *keys;
	struct name name;

	lock_take(&t->space->lock);
	bool there = is_before(r, k->record) && t->files[k->record].id == k->id;

	if (there)
		name = (struct name){ tiering_file_consumed(t, k->record), t->files[k->record].endpoint };
	lock_drop(&t->space->lock);
	if (!there || disk_file_look(t->dir, name.consumed, &name.endpoint, &info, &why))
		return; /* one that cannot be read is found out by the first read, and a restart looks at it */
	if (!record_file_read_keys(info.segment, &info.plan, &keys, &sums, &why)) {
		size_t values = (size_t)info.plan.pages * t->space->layout->page_columns + t->space->layout->row_columns;
		uint32_t bytes;
		uint8_t *absent = absent_of(sums, values, &bytes);

		lock_take(&t->space->lock);
		if (is_before(r, k->record) && t->files[k->record].id == k->id && !t->files[k->record].job &&
		    tiering_file_consumed(t, k->record) == name.consumed && t->files[k->record].pages <= info.pages) {
			take_file(t, k->record, &info);
			add_row(r, k->record, &info, keys, absent, bytes);
		}
		lock_drop(&t->space->lock);
		free(absent);
	}
	free(info.segment);
}

static bool step_lacking(struct reconcile *r)
{
	for (uint32_t i = 0; i < LOOKS && r->cursor < r->lacking; i++)
		add_lacking(r, &r->known[r->cursor++]);
	if (r->cursor < r->lacking)
		return true;
	catalogue_mended(r->t->catalogue);
	return finish(r);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------- */

static bool catalogue_is_full(const struct reconcile *r)
{
	struct catalogue_report report;

	catalogue_report(r->t->catalogue, &report);
	return report.queued > QUEUE_MOST;
}

static bool step(struct reconcile *r)
{
	switch (r->phase) {
	case FOLDERS_LISTED:
		return step_folders(r);
	case MISSING_FOUND:
		return step_missing(r);
	case KNOWN_TAKEN:
		return step_known(r);
	case ROWS_COMPARED:
		return step_rows(r);
	case ROWS_ADDED:
		return step_lacking(r);
	case DONE:
		break;
	}
	return false;
}

bool reconcile_step(struct reconcile *r)
{
	bool more;

	lock_assert_none_held();
	if (r->phase == DONE || catalogue_is_full(r))
		return false;
	more = step(r);
	if (r->phase == DONE)
		let_go(r);
	return more;
}
