/* SPDX-License-Identifier: Apache-2.0
 *
 * Step 7 of an adoption: what a predecessor's tables say of files (index/files.h) becomes what the tier knows.
 *
 *   rows      a record's file, as it lay there when its last job ended
 *   bits      a slot is clean when its bit stands and the row covers its value; any other bit goes, so that none is left behind of a slot
 *             that is nobody's
 *   places    a value whose row does not cover it is nowhere
 *   owed      a row longer than its record: the trim is given, again perhaps
 *
 * Each step is a function of the tables and leaves them reading the same to another adoption.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/adopt_private.h"
#include "store/host_private.h"
#include "store/reconcile.h"
#include "store/tiering.h"

#define STAY 65536u      /* entries or records of one stay: nobody waits */
#define ROWS_AHEAD 16u   /* records whose rows are fetched ahead */
#define IDS_UNKNOWN 1024u /* numbers that may have been given out behind the last one that a row has */

struct work {
	struct tiering *t;
	const struct adoption *adoption;
	struct adopt_report *report;
	uint64_t done, goal;
	uint64_t largest_id;
	uint64_t *granted; /* bitmap of slots */
};

/* Calls @one for each number of [@from, @end) under the lock, in stays. */
static void for_each(struct work *w, uint32_t from, uint32_t end, void (*one)(struct work *w, uint32_t number))
{
	struct space *space = w->t->space;

	for (uint32_t at = from; at < end;) {
		uint32_t stay = end - at < STAY ? end : at + STAY;

		lock_take(&space->lock);
		for (uint32_t n = at; n < stay; n++)
			one(w, n);
		lock_drop(&space->lock);
		w->done += stay - at;
		at = stay;
		if (w->adoption && w->adoption->progress)
			w->adoption->progress(w->adoption->context, w->done, w->goal);
	}
}

/* ---- rows ----------------------------------------------------------------------------------------------------------------- */

static bool row_is_sound(const struct file_row *row, const struct record *r)
{
	return row->id && row->pages <= row->file_pages && row->file_pages <= RECORD_FILE_MAX_PAGES && row->pages >= r->pages &&
	       (row->pages || row->flags & FILES_ROW);
}

static void take_file(struct work *w, uint32_t record, const struct file_row *row)
{
	struct tiering *t = w->t;
	struct record_file *f = tiering_file(t, record);

	f->id = row->id;
	f->endpoint = row->endpoint;
	f->bytes = (uint64_t)row->blocks * LAYOUT_VALUE_ALIGN;
	f->pages = row->pages;
	f->file_pages = row->file_pages;
	f->alias = row->flags & FILES_ALIASED ? TIERING_ALIAS_UNKNOWN : 0;
	f->flags |= (row->flags & FILES_ROW ? TIERING_FILE_ROW : 0) | (row->flags & FILES_STALE ? TIERING_STALE : 0);
	t->disk_bytes += f->bytes;
	t->disk_files++;
	w->largest_id = row->id > w->largest_id ? row->id : w->largest_id;
}

static void adopt_row(struct work *w, uint32_t record)
{
	struct tiering *t = w->t;
	struct tables *tables = &t->space->tables;
	const struct file_row *lines = &tables->rows[2 * (size_t)record], *row;
	bool live = record < index_record_limit(t->space->index) && index_record(t->space->index, record)->state == RECORD_LIVE;

	if (record + ROWS_AHEAD < tables->record_capacity)
		__builtin_prefetch(lines + 2 * ROWS_AHEAD);
	if (live) { /* also of a hold that was taken since */
		t->files[record].flags = 0;
		tiering_file(t, record);
	}
	row = live ? files_get(tables, record) : NULL;
	if (row && row_is_sound(row, index_record(t->space->index, record))) {
		take_file(w, record, row);
	} else if (lines[0].check || lines[1].check) { /* of a record that went, or whose number it was */
		w->report->torn_rows += row != NULL;
		files_clear(tables, record);
	}
}

/* ---- slots ---------------------------------------------------------------------------------------------------------------- */

/* Bits stand only where grants are, or were. */
static uint32_t words_end(const struct tables *tables)
{
	uint64_t end = 0;

	for (uint32_t g = 0; g < tables->grant_capacity; g++) {
		uint64_t last = (uint64_t)tables->grants[g].first_entry + tables->grants[g].slots;

		end = last > end && last <= tables->slot_capacity ? last : end;
	}
	return (uint32_t)((end + 63) / 64);
}

/* Of slots that a grant has: [words_end]. False: no memory. */
static bool note_granted(struct work *w, uint32_t words)
{
	struct slots *slots = w->t->space->slots;
	struct slots_grant grant;

	w->granted = calloc(words + 1, sizeof(*w->granted));
	lock_take(&w->t->space->lock);
	for (uint32_t id = 0; w->granted && id < slots_grant_limit(slots); id++) {
		if (!slots_grant_get(slots, id, &grant))
			continue;
		for (uint32_t n = 0; n < grant.slots; n++)
			w->granted[(grant.first_entry + n) / 64] |= 1ull << (grant.first_entry + n) % 64;
		w->goal += grant.slots;
	}
	lock_drop(&w->t->space->lock);
	return w->granted;
}

/* 64 slots: bits that mean nothing go. */
static void judge_bits(struct work *w, uint32_t word)
{
	struct tiering *t = w->t;
	struct tables *tables = &t->space->tables;

	for (uint64_t bits = tables->clean[word]; bits; bits &= bits - 1) {
		uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);

		if (slot >= tables->slot_capacity)
			return;
		if (!(w->granted[word] >> slot % 64 & 1) || !tiering_has_value(t, slot) || !tiering_row_covers(t, slot))
			files_set_clean(tables, slot, false);
	}
}

static void count_slot(struct work *w, uint32_t slot)
{
	if (tiering_has_value(w->t, slot))
		tiering_count(w->t, slot);
}

static void adopt_slots(struct work *w, uint32_t words)
{
	struct slots *slots = w->t->space->slots;
	struct slots_grant grant;
	uint32_t limit;

	w->t->clean_bytes = w->t->dirty_bytes = w->t->held_clean_bytes = 0;
	for_each(w, 0, words, judge_bits);
	lock_take(&w->t->space->lock);
	limit = slots_grant_limit(slots);
	lock_drop(&w->t->space->lock);
	for (uint32_t id = 0; id < limit; id++) {
		lock_take(&w->t->space->lock);
		bool is = slots_grant_get(slots, id, &grant);

		lock_drop(&w->t->space->lock);
		if (is)
			for_each(w, grant.first_entry, grant.first_entry + grant.slots, count_slot);
	}
}

/* ---- places --------------------------------------------------------------------------------------------------------------- */

/* All of them before one goes: whatever goes with it is given back. */
static void count_place(struct work *w, uint32_t place)
{
	struct tiering *t = w->t;
	struct entry *e = &t->space->tables.entries[place];

	t->place_top = place + 1;
	if (e->state == ENTRY_VALUE) {
		t->places_used++;
		return;
	}
	e->record = t->place_list;
	t->place_list = place;
}

/* Of a WHOLE group all goes. */
static void drop_place(struct space *space, uint32_t place, const struct index_sink *sink)
{
	const struct entry *e = &space->tables.entries[place];

	if (e->state == ENTRY_VALUE && index_record(space->index, e->record)->flags & RECORD_FLAG_WHOLE)
		ring_lose(space, e->record, sink);
	if (e->state == ENTRY_VALUE)
		index_value_drop(space->index, place, false, sink);
}

static void judge_place(struct work *w, uint32_t place)
{
	struct index_sink sink = space_sink(w->t->space);

	if (tiering_has_value(w->t, place) && !tiering_row_covers(w->t, place))
		drop_place(w->t->space, place, &sink);
}

static uint32_t places_end(const struct space *space, uint32_t first, uint32_t count)
{
	uint32_t high = space->tables.header->places_high;

	return high <= first ? first : high - first < count ? high : first + count;
}

static void adopt_places(struct work *w)
{
	struct tiering *t = w->t;
	uint32_t end = places_end(t->space, t->place_first, t->place_count);

	for_each(w, t->place_first, end, count_place);
	for_each(w, t->place_first, end, judge_place);
}

/* ---- what is to be done ----------------------------------------------------------------------------------------------------- */

static void owe(struct work *w, uint32_t record)
{
	struct tiering *t = w->t;
	const struct record *r = index_record(t->space->index, record);
	const struct record_file *f = &t->files[record];

	if (r->state != RECORD_LIVE)
		return;
	if (f->id && (f->pages > r->pages || (f->flags & TIERING_FILE_ROW && !(r->flags & RECORD_FLAG_ROW)))) {
		tiering_lost(t, INDEX_LOST_PAGES, record, INDEX_NONE);
		w->report->trims_owed++;
	}
	tiering_consider(t, record);
}

/* A reset stands in namespace.json before the tables know it. */
static void finish_reset(struct tiering *t)
{
	struct space *space = t->space;
	struct index_sink sink = space_sink(space);
	uint64_t saved = tiering_saved_generation(t->dir);
	bool more;

	lock_take(&space->lock);
	t->generation = index_generation(space->index);
	if (saved > t->generation) {
		while (index_generation(space->index) < saved)
			t->generation = index_reset(space->index);
		tiering_reset(t);
		atomic_store(&space->hidden, true);
	}
	more = index_hidden(space->index);
	atomic_store(&space->generation, t->generation);
	lock_drop(&space->lock);
	while (more) { /* what somebody may touch still goes later */
		lock_take(&space->lock);
		more = index_retire(space->index, &sink, NULL);
		lock_drop(&space->lock);
	}
}

static void give_trims(struct tiering *t)
{
	bool more = true;

	while (more) {
		lock_take(&t->space->lock);
		more = tiering_flush(t);
		lock_drop(&t->space->lock);
	}
}

int tiering_adopt(struct tiering *t, const struct adoption *adoption, struct adopt_report *report, struct why *why)
{
	const struct tables_header *header = t->space->tables.header;
	uint32_t records = header->records_high < header->records ? header->records_high : header->records;
	uint32_t words = words_end(&t->space->tables), limit;
	uint64_t begun_ns = clock_now_ns();
	struct work w = {
		.t = t, .adoption = adoption, .report = report, .goal = 2ull * records + words + 2ull * t->place_count,
	};

	lock_assert_none_held();
	if (!note_granted(&w, words))
		return why_set(why, ENOMEM, "namespace %s: no memory to adopt what it has on disk", t->space->name);
	for_each(&w, 0, records, adopt_row);
	adopt_slots(&w, words);
	adopt_places(&w);
	free(w.granted);
	lock_take(&t->space->lock);
	limit = index_record_limit(t->space->index);
	lock_drop(&t->space->lock);
	for_each(&w, 0, limit, owe);
	catalogue_ids_from(t->catalogue, w.largest_id + IDS_UNKNOWN);
	finish_reset(t);
	t->reconcile = reconcile_new(t);
	give_trims(t);
	report->disk_us += (clock_now_ns() - begun_ns) / 1000;
	return 0;
}

/* ---- without a disk -------------------------------------------------------------------------------------------------------- */

struct freed {
	struct index_sink slots; /* of what is no place */
	uint32_t first, end;
};

static void place_freed(void *context, uint32_t entry)
{
	const struct freed *f = context;

	if (entry < f->first || entry >= f->end)
		f->slots.freed(f->slots.context, entry);
}

void tiering_adopt_none(struct space *space, uint32_t first, uint32_t count, struct adopt_report *report)
{
	struct freed freed = { space_sink(space), first, first + count };
	const struct index_sink sink = { place_freed, &freed };
	struct tables *tables = &space->tables;
	uint64_t begun_ns = clock_now_ns();

	lock_take(&space->lock);
	for (uint32_t word = 0, end = words_end(tables); word < end; word++)
		if (tables->clean[word])
			__atomic_store_n(&tables->clean[word], 0, __ATOMIC_RELEASE);
	for (uint32_t n = 0; n < tables->header->records_high && n < tables->record_capacity; n++)
		if (tables->rows[2 * (size_t)n].check || tables->rows[2 * (size_t)n + 1].check)
			files_clear(tables, n);
	for (uint32_t place = first, end = places_end(space, first, count); place < end; place++)
		drop_place(space, place, &sink);
	lock_drop(&space->lock);
	report->disk_us += (clock_now_ns() - begun_ns) / 1000;
}

int adopt_disk(struct attempt *a)
{
	struct space *space = a->space;

	if (space->tiering)
		return tiering_adopt(space->tiering, a->from, a->report, a->why);
	if (a->ranges.places)
		tiering_adopt_none(space, a->ranges.slots, a->ranges.places, a->report);
	return 0;
}
