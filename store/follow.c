/* SPDX-License-Identifier: Apache-2.0
 *
 * A record's file follows what the index lets go, and its row in the tables follows the file (index/files.h).
 *
 * At most one job that changes a record's file is under way, a write or a trim (record_file.job): so at its end the file is what
 * record_file says, which is when the row is sealed, and a successor has to reckon with one name that it does not know.
 *
 *   the record gets shorter    listed in tiering.trims      at the next flush: given, or
 *                                                           TIERING_TRIM_LATER: given when the job under way has ended
 *   a value of its file goes   STALE, at once, in the row that there is
 *   the record goes            no row, then the removal is given
 */
#include "store/tiering.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/host_private.h"

#define BLOCK 4096u
#define NAME_LOOKS INDEX_STEP_KEYS /* of trims under way, when a name is looked for among them */

/* ---- the row ------------------------------------------------------------------------------------------------------------ */

void tiering_row_set(struct tiering *t, uint32_t record, bool stale)
{
	const struct record_file *f = tiering_file(t, record);
	struct file_row row = {
		.endpoint = f->endpoint,
		.id = f->id,
		.blocks = (uint32_t)((f->bytes + BLOCK - 1) / BLOCK),
		.pages = f->pages,
		.file_pages = f->file_pages,
		.flags = (f->flags & TIERING_FILE_ROW ? FILES_ROW : 0) | (f->alias ? FILES_ALIASED : 0) |
			 (stale || f->flags & TIERING_STALE ? FILES_STALE : 0),
	};

	lock_assert_held(&t->space->lock);
	assert(f->id);
	files_set(&t->space->tables, record, &row);
}

bool tiering_row_covers(const struct tiering *t, uint32_t entry)
{
	const struct entry *e = &t->space->tables.entries[entry];
	const struct file_row *row = files_get(&t->space->tables, e->record);

	if (!row)
		return false;
	if (e->page != INDEX_PAGE_ROW)
		return e->page < row->pages;
	return row->flags & FILES_ROW && row->pages == index_record(t->space->index, e->record)->pages;
}

/* What else the row says stays: a job may be under way that it knows nothing of. */
static void row_mark(struct tiering *t, uint32_t record, uint16_t flag)
{
	const struct file_row *now = files_get(&t->space->tables, record);
	struct file_row row;

	if (!now || now->flags & flag)
		return;
	row = *now;
	row.flags |= flag;
	files_set(&t->space->tables, record, &row);
}

void tiering_file_stale(struct tiering *t, uint32_t record)
{
	lock_assert_held(&t->space->lock);
	tiering_file(t, record)->flags |= TIERING_STALE;
	row_mark(t, record, FILES_STALE);
	tiering_consider(t, record);
}

void tiering_file_alias_unknown(struct tiering *t, uint32_t record)
{
	lock_assert_held(&t->space->lock);
	tiering_file(t, record)->alias = TIERING_ALIAS_UNKNOWN;
	row_mark(t, record, FILES_ALIASED);
}

/* ---- what is to get shorter --------------------------------------------------------------------------------------------- */

uint64_t tiering_file_consumed(const struct tiering *t, uint32_t record)
{
	const struct record_file *f = &t->files[record];

	return t->space->tables.records[record].start + (uint64_t)f->pages * t->space->layout->page_tokens;
}

/* Will the file of @record, if it has one, be called that? */
static bool is_named(const struct tiering *t, uint32_t record, uint64_t consumed, const struct key *endpoint)
{
	const struct record_file *f = &t->files[record];

	return f->id && tiering_file_consumed(t, record) == consumed && !memcmp(&f->endpoint, endpoint, sizeof(*endpoint));
}

static void list_for_trim(struct tiering *t, uint32_t record, uint8_t why)
{
	struct record_file *f = tiering_file(t, record);

	if (!(f->flags & (TIERING_TRIM | TIERING_ROW_LOST))) {
		f->next_trim = t->trims;
		f->prev_trim = INDEX_NONE;
		if (t->trims != INDEX_NONE)
			t->files[t->trims].prev_trim = record;
		t->trims = record;
	}
	f->flags |= why;
}

static void trim_note(struct tiering *t, uint32_t record)
{
	if (tiering_file(t, record)->id)
		list_for_trim(t, record, TIERING_TRIM);
}

static void trim_forget(struct tiering *t, uint32_t record)
{
	struct record_file *f = &t->files[record];

	if (!(f->flags & (TIERING_TRIM | TIERING_ROW_LOST)))
		return;
	if (f->prev_trim == INDEX_NONE)
		t->trims = f->next_trim;
	else
		t->files[f->prev_trim].next_trim = f->next_trim;
	if (f->next_trim != INDEX_NONE)
		t->files[f->next_trim].prev_trim = f->prev_trim;
	f->flags &= (uint8_t)~(TIERING_TRIM | TIERING_ROW_LOST);
}

/* ---- jobs --------------------------------------------------------------------------------------------------------------- */

static void job_done_free(struct disk_job *job)
{
	struct tiering *t = job->context;

	free(job);
	tiering_job_ended(t);
}

/* Under the lock. A job that cannot be made leaves a file too many: the catalogue is told that it is behind. */
static void *job_make(struct tiering *t, size_t bytes, enum disk_job_kind kind, uint64_t consumed, const struct key *endpoint)
{
	struct disk_job *job = calloc(1, bytes);

	if (!job)
		return NULL;
	job->kind = kind;
	job->dir = t->dir;
	job->consumed = consumed;
	if (endpoint)
		job->endpoint = *endpoint;
	job->done = job_done_free;
	job->context = t;
	return job;
}

void tiering_give(struct tiering *t, struct disk_job *job)
{
	lock_assert_held(&t->space->lock);
	atomic_fetch_add(&t->jobs, 1);
	disk_give(t->disk, job);
}

void tiering_remove_file(struct tiering *t, uint64_t consumed, const struct key *endpoint)
{
	struct disk_remove *removal = job_make(t, sizeof(*removal), DISK_JOB_REMOVE, consumed, endpoint);

	if (removal)
		tiering_give(t, &removal->job);
	else
		catalogue_behind(t->catalogue);
}

static void file_goes(struct tiering *t, struct record_file *f)
{
	catalogue_remove(t->catalogue, f->id);
	t->disk_bytes -= f->bytes;
	t->disk_files--;
	f->id = 0;
	f->bytes = 0;
	f->flags &= (uint8_t)~(TIERING_FILE_ROW | TIERING_STALE | TIERING_FAILED);
}

/* ---- what went ---------------------------------------------------------------------------------------------------------- */

/* The write is not to be seen any more. Its done() finds that the record does not know it. */
static void write_cancel(struct record_file *f)
{
	atomic_store(&f->writing->job.cancelled, true);
	f->writing = NULL;
}

/* Has another record's file, as it will be, that name? Twins have one name, and whose file was written or renamed last has it. */
static bool named_by_another(struct tiering *t, uint32_t record, uint64_t consumed, const struct key *endpoint)
{
	uint32_t other = index_find_endpoint(t->space->index, endpoint);

	return other != INDEX_NONE && other != record && is_named(t, other, consumed, endpoint);
}

static void name_goes(struct tiering *t, uint32_t record, uint64_t consumed, const struct key *endpoint)
{
	if (!t->closed && !named_by_another(t, record, consumed, endpoint))
		tiering_remove_file(t, consumed, endpoint);
}

static void record_lost(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	bool current = index_record_current(t->space->index, record);

	trim_forget(t, record);
	if (f->id)
		files_clear(&t->space->tables, record);
	if (f->writing) {
		struct key endpoint = f->writing->id.endpoint;
		uint64_t consumed = f->writing->job.consumed;

		write_cancel(f);
		if (current && !f->id)
			name_goes(t, record, consumed, &endpoint);
	}
	if (f->id && current) {
		name_goes(t, record, tiering_file_consumed(t, record), &f->endpoint);
		file_goes(t, f);
	}
	if (current && f->dirty_slot != INDEX_NONE)
		policy_lru.remove(t->dirty, record);
	for (uint32_t c = 0; c < t->space->layout->classes; c++)
		if (current && t->class[c].slot[record] != INDEX_NONE)
			policy_lru.remove(t->class[c].resident, record);
	assert(!f->dirty && !f->clean);
	*f = (struct record_file){ 0 };
}

/* A write of a file that has what the record has not any more, or is named otherwise: it is not to be seen. One that had replaced the
 * file by then did so before anything that is asked for now; its done() finds out. */
static void write_outlived(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	struct key endpoint;
	uint64_t consumed;

	if (!f->writing)
		return;
	endpoint = f->writing->id.endpoint;
	consumed = f->writing->job.consumed;
	write_cancel(f);
	if (!f->id)
		name_goes(t, record, consumed, &endpoint);
	tiering_consider(t, record);
}

/* The row of @zero is @record's now, whose file lacks it. */
static void row_joined(struct tiering *t, uint32_t record, uint32_t zero)
{
	struct space *space = t->space;
	struct record_file *from = tiering_file(t, zero), *to = tiering_file(t, record);

	for (uint32_t c = 0; c < space->layout->row_columns; c++) {
		bool committed;
		uint32_t entry = index_value(space->index, record, INDEX_PAGE_ROW, c, &committed);

		if (entry == INDEX_NONE || !committed)
			continue;
		if (tiering_is_place(t, entry)) { /* it is in a file that goes, and is let go with the next flush */
			list_for_trim(t, record, TIERING_ROW_LOST);
			continue;
		}
		if (tiering_is_clean(t, entry)) {
			tiering_unclean(t, entry, from);
			t->dirty_bytes += slots_slot_bytes(space->slots, entry);
		} else {
			from->dirty--;
		}
		t->kept[entry / 64] &= ~(1ull << entry % 64);
		to->dirty++;
	}
	tiering_consider(t, record);
}

void tiering_lost(void *context, enum index_loss what, uint32_t record, uint32_t other)
{
	struct tiering *t = context;

	lock_assert_held(&t->space->lock);
	switch (what) {
	case INDEX_LOST_RECORD:
		record_lost(t, record);
		break;
	case INDEX_LOST_PAGES:
		write_outlived(t, record);
		trim_note(t, record);
		break;
	case INDEX_LOST_ROW:
		write_outlived(t, record);
		if (tiering_file(t, record)->flags & TIERING_FILE_ROW)
			trim_note(t, record);
		break;
	case INDEX_LOST_VALUE:
		write_outlived(t, record);
		if (tiering_file(t, record)->id)
			tiering_file_stale(t, record);
		break;
	case INDEX_JOINED:
		row_joined(t, record, other);
		break;
	}
}

/* ---- trims -------------------------------------------------------------------------------------------------------------- */

struct trim {
	struct disk_trim trim; /* first */
	struct tiering *t;
	struct trim *next, *prev; /* of tiering.trimming, under the lock */
	uint32_t record;
	bool again;
};

static void link_in(struct tiering *t, struct trim *trim)
{
	trim->next = t->trimming;
	trim->prev = NULL;
	if (trim->next)
		trim->next->prev = trim;
	t->trimming = trim;
	t->trimming_count++;
}

static void link_out(struct tiering *t, struct trim *trim)
{
	if (trim->prev)
		trim->prev->next = trim->next;
	else
		t->trimming = trim->next;
	if (trim->next)
		trim->next->prev = trim->prev;
	t->trimming_count--;
}

/* A predecessor had renamed the file before it died: what is left is to cut it. */
static bool renamed_before(struct trim *trim)
{
	struct disk_job *job = &trim->trim.job;
	bool is = job->result == -ENOENT && !trim->again && memcmp(&job->endpoint, &trim->trim.new_endpoint, sizeof(job->endpoint));

	if (!is)
		return false;
	trim->again = true;
	job->consumed = trim->trim.new_consumed;
	job->endpoint = trim->trim.new_endpoint;
	return true;
}

/* Under the lock. The file's length is known exactly now: one that could not be cut is as long as it was. One that could not be renamed
 * is not where the record says: reads find out. */
static void trim_ended(struct tiering *t, struct trim *trim)
{
	struct record_file *f = tiering_file(t, trim->record);

	link_out(t, trim);
	if (f->job != &trim->trim.job)
		return;
	if (!trim->trim.job.result) {
		t->disk_bytes += trim->trim.file_bytes - f->bytes;
		f->bytes = trim->trim.file_bytes;
	}
	if (trim->trim.job.result != -ECANCELED) /* that was the end of the process: it stays owed */
		tiering_row_set(t, trim->record, false);
	tiering_file_settled(t, trim->record, &trim->trim.job);
}

static void trim_done(struct disk_job *job)
{
	struct trim *trim = (struct trim *)job;
	struct tiering *t = trim->t;
	bool again;

	lock_take(&t->space->lock);
	again = tiering_file(t, trim->record)->job == job && renamed_before(trim);
	if (again)
		tiering_give(t, job);
	else
		trim_ended(t, trim);
	lock_drop(&t->space->lock);
	if (!again) {
		free(trim);
		mover_ask(t->space->host); /* its name may have been waited for */
	}
	tiering_job_ended(t);
}

/* Is a row in the file, at the boundary where the record ends now? */
static bool has_own_row(struct tiering *t, uint32_t record)
{
	const struct record_file *f = tiering_file(t, record);

	return f->flags & TIERING_FILE_ROW && f->pages == index_record(t->space->index, record)->pages;
}

/* The file of @record is made as long as it. */
static void trim_give(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	const struct record *r = index_record(t->space->index, record);
	bool row = has_own_row(t, record) && r->flags & RECORD_FLAG_ROW;
	struct trim *trim = job_make(t, sizeof(*trim), DISK_JOB_TRIM, tiering_file_consumed(t, record), &f->endpoint);
	struct record_file_plan plan;
	uint64_t bytes;

	if (!trim) { /* the file stays longer than it need be: what is behind the record is never read */
		catalogue_behind(t->catalogue);
		return;
	}
	record_file_plan(t->space->layout, f->file_pages, row, tiering_file_alias(t, f), &plan);
	bytes = row ? plan.file_bytes : record_file_length(&plan, r->pages);
	bytes = bytes < f->bytes ? bytes : f->bytes;
	trim->t = t;
	trim->record = record;
	trim->trim.job.done = trim_done;
	trim->trim.pages = r->pages;
	trim->trim.file_pages = f->file_pages;
	trim->trim.row = row;
	index_record_name(t->space->index, record, &trim->trim.new_consumed, &trim->trim.new_endpoint);
	catalogue_trim(t->catalogue, f->id, r->pages, trim->trim.new_consumed, &trim->trim.new_endpoint, row, bytes);
	f->endpoint = trim->trim.new_endpoint;
	f->pages = r->pages;
	f->flags &= (uint8_t)~(row ? 0 : TIERING_FILE_ROW);
	t->disk_bytes -= f->bytes - bytes;
	f->bytes = bytes;
	f->job = &trim->trim.job;
	link_in(t, trim);
	tiering_give(t, &trim->trim.job);
}

void tiering_file_settled(struct tiering *t, uint32_t record, const struct disk_job *job)
{
	struct record_file *f = tiering_file(t, record);
	bool later = f->flags & TIERING_TRIM_LATER;

	lock_assert_held(&t->space->lock);
	if (f->job != job) /* the number is another record's by now */
		return;
	f->job = NULL;
	f->flags &= (uint8_t)~TIERING_TRIM_LATER;
	if (!index_record_current(t->space->index, record))
		return;
	if (later && f->id && !t->closed)
		trim_give(t, record);
	tiering_consider(t, record);
}

bool tiering_name_owed(struct tiering *t, uint64_t consumed, const struct key *endpoint)
{
	lock_assert_held(&t->space->lock);
	if (t->trimming_count > NAME_LOOKS)
		return true;
	for (const struct trim *trim = t->trimming; trim; trim = trim->next) {
		const struct disk_job *job = &trim->trim.job;
		const struct record_file *f = &t->files[trim->record];

		if (job->consumed == consumed && !memcmp(&job->endpoint, endpoint, sizeof(*endpoint)))
			return true;
		if (f->job == job && f->flags & TIERING_TRIM_LATER && is_named(t, trim->record, consumed, endpoint))
			return true;
	}
	return spill_name_owed(t, consumed, endpoint);
}

/* What of the record's row is on disk only stood in another record's file. */
static void drop_lost_row(struct tiering *t, uint32_t record)
{
	struct space *space = t->space;
	struct index_sink sink = space_sink(space);

	for (uint32_t c = 0; c < space->layout->row_columns; c++) {
		uint32_t entry = index_value(space->index, record, INDEX_PAGE_ROW, c, NULL);

		if (entry != INDEX_NONE && tiering_is_place(t, entry) && !has_own_row(t, record))
			index_value_drop(space->index, entry, false, &sink);
		if (index_record(space->index, record)->state != RECORD_LIVE)
			return;
	}
}

bool tiering_flush(struct tiering *t)
{
	lock_assert_held(&t->space->lock);
	for (uint32_t left = INDEX_STEP_KEYS; t->trims != INDEX_NONE && left; left--) {
		uint32_t record = t->trims;
		uint8_t flags = t->files[record].flags;

		trim_forget(t, record);
		if (!index_record_current(t->space->index, record))
			continue;
		if (flags & TIERING_ROW_LOST)
			drop_lost_row(t, record);
		if (!(flags & TIERING_TRIM) || t->closed || !t->files[record].id)
			continue;
		if (t->files[record].job)
			t->files[record].flags |= TIERING_TRIM_LATER;
		else
			trim_give(t, record);
	}
	return t->trims != INDEX_NONE;
}

void tiering_reset(struct tiering *t)
{
	struct disk_clear *clear;

	lock_assert_held(&t->space->lock);
	spill_cancel_all(t);
	while (t->trims != INDEX_NONE)
		trim_forget(t, t->trims);
	policy_lru.clear(t->dirty);
	for (uint32_t c = 0; c < t->space->layout->classes; c++)
		policy_lru.clear(t->class[c].resident);
	t->disk_bytes = t->disk_files = 0;
	catalogue_clear(t->catalogue);
	clear = t->closed ? NULL : job_make(t, sizeof(*clear), DISK_JOB_CLEAR, 0, NULL);
	if (clear)
		tiering_give(t, &clear->job);
}
