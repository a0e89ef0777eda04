/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing behind: a write is made, and what it writes is held.
 */
#include <stdlib.h>

#include "store/spill_private.h"

/* ---- a write, made and unmade ------------------------------------------------------------------------------------------- */

static void link_in(struct tiering *t, struct spill *s)
{
	s->next = t->writing->first;
	if (s->next)
		s->next->prev = s;
	t->writing->first = s;
}

void spill_delete(struct spill *s)
{
	free(s->keys);
	free(s->values);
	free(s->entries);
	free(s);
}

bool spill_is_its_records(struct tiering *t, const struct spill *s)
{
	return tiering_file(t, s->record)->writing == &s->write;
}

/* Without the lock. */
struct spill *spill_make(struct tiering *t, uint32_t record, uint32_t pages)
{
	const struct layout *layout = t->space->layout;
	struct spill *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->t = t;
	s->record = record;
	s->value_count = pages * layout->page_columns + layout->row_columns;
	s->keys = calloc(pages + 1, sizeof(*s->keys));
	s->values = calloc(s->value_count, sizeof(*s->values));
	s->entries = calloc(s->value_count, sizeof(*s->entries));
	if (s->keys && s->values && s->entries)
		return s;
	spill_delete(s);
	return NULL;
}

/* Under the lock: what the file will be about. */
static void describe(struct tiering *t, struct spill *s)
{
	const struct record_entry *table = &t->space->tables.records[s->record];
	const struct record *r = index_record(t->space->index, s->record);
	struct record_file *f = tiering_file(t, s->record);
	struct record_file_id *id = &s->write.id;
	struct record_file_plan plan;

	s->row = r->flags & RECORD_FLAG_ROW;
	s->write.job.kind = DISK_JOB_WRITE;
	s->write.job.dir = t->dir;
	s->write.job.done = spill_done;
	s->write.job.context = t;
	index_record_name(t->space->index, s->record, &s->write.job.consumed, &s->write.job.endpoint);
	id->endpoint = s->write.job.endpoint;
	id->parent = table->parent_key;
	id->start = table->start;
	id->generation = index_generation(t->space->index);
	id->created_s = table->created_s;
	id->pages = r->pages;
	id->flags = (r->flags & RECORD_FLAG_ROOT ? RECORD_FILE_ROOT : 0) | (s->row ? RECORD_FILE_ROW : 0);
	if (s->ring) {
		id->flags |= RECORD_FILE_WHOLE;
		id->whole_id = s->ring->id;
		id->whole_count = s->ring->count;
	}
	s->old_id = f->id;
	if (f->id) {
		s->write.old_consumed = table->start + (uint64_t)f->pages * t->space->layout->page_tokens;
		s->write.old_endpoint = f->endpoint;
		s->write.old_file_pages = f->file_pages;
	}
	record_file_plan(t->space->layout, r->pages, s->row, NULL, &plan);
	s->bytes = plan.file_bytes;
	s->write.keys = s->keys;
	s->write.values = s->values;
	f->writing = &s->write;
	f->job = &s->write.job;
}

void spill_begin(struct tiering *t, struct spill *s)
{
	describe(t, s);
	link_in(t, s);
}

/* ---- gathering ------------------------------------------------------------------------------------------------------------ */

/* Under the lock: where the bytes of one value are to come from. */
static uint64_t source(struct tiering *t, struct spill *s, uint32_t page, uint32_t column)
{
	const struct record_file *f = tiering_file(t, s->record);
	bool committed, in_file = f->id && (page == INDEX_PAGE_ROW ? (f->flags & TIERING_FILE_ROW) != 0 : page < f->pages);
	uint32_t entry = index_value(t->space->index, s->record, (uint16_t)page, column, &committed), alike;

	if (entry == INDEX_NONE || !committed || t->space->tables.entries[entry].group)
		return DISK_ABSENT;
	if (tiering_is_place(t, entry) && (alike = tiering_alike(t, entry)) != INDEX_NONE)
		entry = alike; /* at one offset with that share's: they are stored once */
	if (tiering_is_place(t, entry)) {
		s->write.from_old |= in_file;
		return in_file ? DISK_FROM_OLD : DISK_ABSENT;
	}
	tiering_hold(t, entry);
	s->entries[s->count++] = entry;
	return slots_offset(t->space->slots, entry);
}

/* A page in the middle that has lost its name is written under one that nobody asks for. */
static struct key page_key(const struct tiering *t, const struct spill *s, uint32_t page)
{
	const struct key *key = index_page_key(t->space->index, s->record, (uint16_t)page);
	struct key none = s->write.id.endpoint;

	if (key)
		return *key;
	for (uint32_t i = 0; i < 4; i++)
		none.words[i] ^= (page + 1) * 0x9e3779b97f4a7c15ull + i;
	return none;
}

/* False: the record has changed meanwhile. */
static bool gather_pages(struct spill *s, uint32_t page, uint32_t end)
{
	struct tiering *t = s->t;
	uint32_t columns = t->space->layout->page_columns;
	bool ours;

	lock_take(&t->space->lock);
	ours = spill_is_its_records(t, s);
	for (uint32_t p = page; ours && p < end; p++) {
		s->keys[p] = page_key(t, s, p);
		for (uint32_t c = 0; c < columns; c++)
			s->values[(uint64_t)p * columns + c] = source(t, s, p, c);
	}
	lock_drop(&t->space->lock);
	return ours;
}

static bool gather_row(struct spill *s)
{
	struct tiering *t = s->t;
	uint32_t rows = t->space->layout->row_columns;
	uint64_t first = (uint64_t)s->write.id.pages * t->space->layout->page_columns;
	bool ours;

	lock_take(&t->space->lock);
	ours = spill_is_its_records(t, s);
	for (uint32_t c = 0; ours && c < rows; c++)
		s->values[first + c] = s->row ? source(t, s, INDEX_PAGE_ROW, c) : DISK_ABSENT;
	lock_drop(&t->space->lock);
	return ours;
}

bool spill_gather(struct spill *s)
{
	uint32_t columns = s->t->space->layout->page_columns, pages = s->write.id.pages;
	uint32_t at_once = columns && columns < INDEX_STEP_KEYS ? INDEX_STEP_KEYS / columns : 1;
	bool ours = true;

	for (uint32_t page = 0; ours && page < pages; page += at_once)
		ours = gather_pages(s, page, pages - page < at_once ? pages : page + at_once);
	return ours && gather_row(s);
}
