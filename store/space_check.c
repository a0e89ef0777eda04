/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of a namespace that is in use: every value that a record file has is read from it and compared with its checksum, also
 * what is in memory still.
 *
 * One record a step, in pieces of at most PIECE_VALUES values: its values are noted and their read is given in one stay under the lock, so
 * the file is that of the record's name; the lock is dropped while the disk works; what failed twice is judged in another stay,
 * in which record, file and each value are what they were, or are passed over. A value that is on disk alone is lost with its
 * bytes; one that is in memory becomes dirty again, and the file is written anew.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/load_private.h"
#include "store/tiering.h"

#define PIECE_VALUES INDEX_STEP_KEYS
#define PIECE_BYTES (16u << 20)  /* of values; more when one alone is longer */
#define LOOK_NS 100000000ull     /* a wait for the disk looks again after this */

struct piece {
	struct disk_read read; /* first */
	struct tiering *tiering;
	uint32_t record, generation;
	uint64_t file;         /* record_file.id: each writing has its own */
	uint32_t page, column; /* where the next piece begins; page = TABLES_PAGE_ROW: in the row; UINT32_MAX: there is none */
	uint64_t bytes, room;  /* of values; of memory */
	char *memory;
	uint32_t count;        /* values that it had at first */
	struct disk_read_value value[PIECE_VALUES];
	struct key key[PIECE_VALUES];
	uint32_t entry[PIECE_VALUES];
	struct lock lock;      /* LOCK_QUEUE */
	struct lock_cond wake;
	bool ended;            /* (lock) */
};

/* ---- one read ------------------------------------------------------------------------------------------------------------- */

static void read_done(struct disk_job *job)
{
	struct piece *p = (struct piece *)job;

	lock_take(&p->lock);
	p->ended = true;
	lock_cond_wake_all(&p->wake);
	lock_drop(&p->lock);
}

/* Under the space lock: of the file as it is called now. */
static void give(struct piece *p)
{
	struct tiering *t = p->tiering;
	const struct record_file *f = tiering_file(t, p->record);

	p->read = (struct disk_read){
		.job = {
			.kind = DISK_JOB_READ,
			.dir = t->dir,
			.consumed = tiering_file_consumed(t, p->record),
			.endpoint = f->endpoint,
			.done = read_done,
		},
		.memory = true,
		.pages = f->pages,
		.file_pages = f->file_pages,
		.alias = tiering_file_alias(t, f),
		.keys = p->key,
		.values = p->value,
		.count = p->read.count,
	};
	p->ended = false;
	tiering_give(t, &p->read.job);
}

static void await(struct piece *p)
{
	lock_assert_none_held();
	lock_take(&p->lock);
	while (!p->ended)
		lock_cond_wait(&p->wake, &p->lock, clock_now_ns() + LOOK_NS);
	lock_drop(&p->lock);
	tiering_job_ended(p->tiering);
}

/* ---- what is read ----------------------------------------------------------------------------------------------------------- */

/* Is the record still there, with the file that it had? */
static bool is_current(const struct piece *p)
{
	struct tiering *t = p->tiering;

	return p->record < index_record_limit(t->space->index) && index_record_current(t->space->index, p->record) &&
	       index_record(t->space->index, p->record)->generation == p->generation && tiering_file(t, p->record)->id == p->file &&
	       !tiering_file(t, p->record)->writing && !t->closed;
}

/* The entry of a value that the file has; INDEX_NONE: it is not there, or in memory alone. */
static uint32_t value_in_file(const struct piece *p, uint32_t page, uint32_t column)
{
	struct tiering *t = p->tiering;
	bool committed = false;
	uint32_t entry = index_value(t->space->index, p->record, (uint16_t)page, column, &committed);

	if (entry == INDEX_NONE || !committed || !tiering_has_value(t, entry))
		return INDEX_NONE;
	return tiering_is_place(t, entry) || tiering_is_clean(t, entry) ? entry : INDEX_NONE;
}

static uint64_t slot_bytes(const struct layout *layout, bool row, uint32_t column)
{
	for (uint32_t c = 0; c < layout->classes; c++)
		if (layout_is_row(layout, c) == row && column - layout->class[c].first_column < layout->class[c].shares)
			return layout->class[c].share[column - layout->class[c].first_column].slot_bytes;
	return 0;
}

/* False: the piece is full. */
static bool add_value(struct piece *p, uint32_t page, uint32_t column)
{
	const struct tiering *t = p->tiering;
	bool row = page == TABLES_PAGE_ROW;
	uint64_t bytes = slot_bytes(t->space->layout, row, column);
	uint32_t entry = value_in_file(p, page, column), n = p->read.count;

	if (entry == INDEX_NONE)
		return true;
	if (n == PIECE_VALUES || (n && p->bytes + bytes > PIECE_BYTES))
		return false;
	p->value[n] = (struct disk_read_value){.page = page, .column = column, .to = p->bytes};
	p->value[n].context = &p->entry[n];
	p->key[n] = row ? tiering_file((struct tiering *)p->tiering, p->record)->endpoint : t->space->tables.entries[entry].key;
	p->entry[n] = entry;
	p->bytes += bytes;
	p->read.count = n + 1;
	return true;
}

/* Values from where the last piece ended, as many as fit; at most so many places are looked at in one stay. */
static void fill(struct piece *p)
{
	const struct layout *layout = p->tiering->space->layout;
	uint32_t looks = 4 * INDEX_STEP_KEYS, pages = index_record(p->tiering->space->index, p->record)->pages;
	bool has_row = tiering_file(p->tiering, p->record)->flags & TIERING_FILE_ROW;

	p->read.count = 0;
	p->bytes = 0;
	while (p->page != UINT32_MAX && looks--) {
		bool row = p->page == TABLES_PAGE_ROW;

		if (!row && p->page >= pages) {
			p->page = has_row ? TABLES_PAGE_ROW : UINT32_MAX;
			p->column = 0;
		} else if (p->column == (row ? layout->row_columns : layout->page_columns)) {
			p->page = row ? UINT32_MAX : p->page + 1;
			p->column = 0;
		} else if (add_value(p, p->page, p->column)) {
			p->column++;
		} else {
			break;
		}
	}
}

/* ---- what became of it ------------------------------------------------------------------------------------------------------- */

/* Leaves those that failed in the read; false: none did. */
static bool keep_failed(struct piece *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->read.count; i++) {
		if (!p->value[i].result && !p->read.job.result)
			continue;
		p->value[n] = p->value[i];
		p->key[n++] = p->key[i];
	}
	p->read.count = n;
	return n;
}

static void value_is_bad(struct piece *p, const struct disk_read_value *value)
{
	struct tiering *t = p->tiering;
	uint32_t entry = *(const uint32_t *)value->context;

	if (value_in_file(p, value->page, value->column) != entry)
		return;
	if (tiering_is_place(t, entry)) {
		load_lose(t, entry);
		return;
	}
	tiering_make_dirty(t, entry);
	tiering_file_stale(t, p->record);
}

/* Under the lock. Returns how many are bad; of those on disk alone the record may go with the last. */
static uint32_t judge(struct piece *p)
{
	uint32_t bad = 0;

	for (uint32_t i = 0; i < p->read.count && is_current(p); i++) {
		if (!load_error_of_value(p->value[i].result))
			continue;
		bad++;
		value_is_bad(p, &p->value[i]);
	}
	return bad;
}

static void let_go(struct piece *p)
{
	free(p->memory);
	lock_cond_destroy(&p->wake);
	lock_destroy(&p->lock);
	free(p);
}

static bool take_memory(struct piece *p)
{
	if (p->room < p->bytes) {
		free(p->memory);
		p->room = p->bytes > PIECE_BYTES ? p->bytes : PIECE_BYTES;
		p->memory = aligned_alloc(LAYOUT_VALUE_ALIGN, p->room);
		p->room = p->memory ? p->room : 0;
	}
	return p->memory;
}

/* Notes values under the lock, with memory for them taken outside it: 1: some; 0: none is left, or the record is not what it was. */
static int next_values(struct piece *p)
{
	struct space *space = p->tiering->space;
	uint32_t page = p->page, column = p->column;
	int more = 0;

	lock_take(&space->lock);
	if (is_current(p)) {
		fill(p);
		more = p->read.count || p->page != UINT32_MAX;
	}
	if (more && p->read.count && p->room >= p->bytes) {
		for (uint32_t i = 0; i < p->read.count; i++)
			p->value[i].to += (uint64_t)(uintptr_t)p->memory;
		give(p);
	} else if (p->read.count) {
		p->page = page; /* once more, with memory */
		p->column = column;
	}
	lock_drop(&space->lock);
	return more;
}

static bool read_again(struct piece *p)
{
	struct space *space = p->tiering->space;
	bool given;

	lock_take(&space->lock);
	given = is_current(p);
	if (given)
		give(p);
	lock_drop(&space->lock);
	if (given)
		await(p);
	return given;
}

/* A read was given. */
static void see_to(struct piece *p, struct space_check *check, bool *bad_file)
{
	struct space *space = p->tiering->space;
	uint32_t bad;

	await(p);
	check->values += p->read.count;
	check->bytes += p->bytes;
	if (!keep_failed(p) || !read_again(p) || !keep_failed(p))
		return;
	if (p->read.job.result)
		for (uint32_t i = 0; i < p->read.count; i++)
			p->value[i].result = p->read.job.result;
	lock_take(&space->lock);
	space_notes_begin(space);
	bad = judge(p);
	space_notes_end(space);
	lock_drop(&space->lock);
	check->bad_values += bad;
	*bad_file |= bad;
	if (bad)
		mover_ask(space->host);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------ */

/* The next record with a file, from the cursor on, in stays of bounded length; false: the end. */
static bool next_record(struct piece *p, struct space_check *check)
{
	struct tiering *t = p->tiering;
	struct space *space = t->space;
	bool found = false, more = true;

	while (more && !found) {
		lock_take(&space->lock);
		check->files_in_all = t->disk_files;
		for (uint32_t i = 0; more && !found && i < INDEX_STEP_KEYS; i++) {
			uint32_t limit = index_record_limit(space->index), record = check->cursor++;

			more = record < limit;
			found = more && index_record_visible(space->index, record) && index_record_current(space->index, record) &&
				tiering_file(t, record)->id && !tiering_file(t, record)->writing;
			if (!more)
				check->cursor = limit;
			if (!found)
				continue;
			p->record = record;
			p->generation = index_record(space->index, record)->generation;
			p->file = tiering_file(t, record)->id;
			p->page = p->column = 0;
		}
		lock_drop(&space->lock);
	}
	return found;
}

/* The name under which it was read last: what is bad has been taken from it since. */
static void note_bad(const struct piece *p, struct space_check *check)
{
	check->bad_files++;
	if (check->names < SPACE_CHECK_NAMES)
		check->name[check->names++] =
			(struct space_check_name){.consumed = p->read.job.consumed, .endpoint = p->read.job.endpoint};
}

static int check_record(struct piece *p, struct space_check *check, struct why *why)
{
	bool bad = false;

	while (next_values(p)) {
		if (!p->read.count)
			continue;
		if (p->room >= p->bytes)
			see_to(p, check, &bad);
		else if (!take_memory(p))
			return why_set(why, ENOMEM, "no memory to read the %llu bytes of a value in", (unsigned long long)p->bytes);
	}
	check->files++;
	if (bad)
		note_bad(p, check);
	return 1;
}

int space_check_step(struct space *space, struct space_check *check, struct why *why)
{
	struct piece *p;
	int r;

	lock_assert_none_held();
	if (!space->tiering)
		return why_set(why, ENODEV, "namespace %s has no disk tier", space->name);
	p = calloc(1, sizeof(*p));
	if (!p)
		return why_set(why, ENOMEM, "no memory to check namespace %s", space->name);
	p->tiering = space->tiering;
	lock_init(&p->lock, LOCK_QUEUE);
	lock_cond_init(&p->wake);
	r = next_record(p, check) ? check_record(p, check, why) : 0;
	let_go(p);
	return r;
}
