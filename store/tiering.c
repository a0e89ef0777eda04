/* SPDX-License-Identifier: Apache-2.0
 *
 * Which value is where: places, holds, clean and dirty, and the files that follow what the index lets go.
 */
#include "store/tiering.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/killpoint.h"
#include "store/base/memory.h"
#include "store/host_private.h"
#include "store/seating.h"
#include "store/viewed.h"

/* ---- what is known about a record ------------------------------------------------------------------------------- */

struct record_file *tiering_file(struct tiering *t, uint32_t record)
{
	struct record_file *f = &t->files[record];

	if (f->flags & TIERING_KNOWN)
		return f;
	*f = (struct record_file){
		.dirty_slot = INDEX_NONE, .next_trim = INDEX_NONE, .prev_trim = INDEX_NONE, .flags = TIERING_KNOWN,
	};
	for (uint32_t c = 0; c < t->space->layout->classes; c++) {
		t->class[c].slot[record] = INDEX_NONE;
		t->class[c].clean[record] = 0;
	}
	return f;
}

static struct record_file *file_of_value(struct tiering *t, uint32_t entry)
{
	return tiering_file(t, t->space->tables.entries[entry].record);
}

void tiering_consider(struct tiering *t, uint32_t record)
{
	struct index *index = t->space->index;
	struct record_file *f = tiering_file(t, record);
	bool wanted = (f->dirty || f->flags & TIERING_STALE) && !f->writing && !t->closed &&
		      index_record(index, record)->state == RECORD_LIVE;

	lock_assert_held(&t->space->lock);
	if (!index_record_current(index, record)) /* the orders were emptied: its places there mean nothing */
		return;
	if (wanted && f->dirty_slot == INDEX_NONE)
		policy_lru.insert(t->dirty, record);
	else if (!wanted && f->dirty_slot != INDEX_NONE)
		policy_lru.remove(t->dirty, record);
}

static void consider_resident(struct tiering *t, uint32_t slot)
{
	const struct entry *e = &t->space->tables.entries[slot];
	struct tiering_class *class = &t->class[e->class_index];

	if (class->slot[e->record] == INDEX_NONE && index_record_current(t->space->index, e->record))
		policy_lru.insert(class->resident, e->record);
}

/* ---- places ----------------------------------------------------------------------------------------------------- */

uint32_t tiering_place_take(struct tiering *t)
{
	uint32_t place = t->place_list;

	lock_assert_held(&t->space->lock);
	if (place != INDEX_NONE)
		t->place_list = t->space->tables.entries[place].record;
	else if (t->place_top < t->place_first + t->place_count)
		place = t->place_top++;
	else
		return INDEX_NONE;
	t->places_used++;
	return place;
}

void tiering_place_give(struct tiering *t, uint32_t place)
{
	struct entry *e = &t->space->tables.entries[place];

	lock_assert_held(&t->space->lock);
	assert(tiering_is_place(t, place) && e->state == ENTRY_FREE);
	if (viewed_is(t, place))
		viewed_gone(t, place);
	e->record = t->place_list;
	t->place_list = place;
	t->places_used--;
}

/* ---- holds ------------------------------------------------------------------------------------------------------ */

void tiering_hold(struct tiering *t, uint32_t slot)
{
	lock_assert_held(&t->space->lock);
	assert(!tiering_is_place(t, slot));
	if (!t->holds[slot]++ && tiering_is_clean(t, slot)) {
		t->held_clean_bytes += slots_slot_bytes(t->space->slots, slot);
		file_of_value(t, slot)->held++;
	}
}

void tiering_unhold(struct tiering *t, uint32_t slot)
{
	struct space *space = t->space;

	lock_assert_held(&space->lock);
	if (!slot_let_go(space, slot))
		return;
	if (space->tables.entries[slot].state == ENTRY_QUARANTINED) { /* its value has gone meanwhile */
		index_quarantine_end(space->index, slot);
		slots_give(space->slots, slot);
		t->space->stats.slots_owed--;
	} else if (tiering_is_clean(t, slot)) {
		t->held_clean_bytes -= slots_slot_bytes(space->slots, slot);
		file_of_value(t, slot)->held--;
		if (space->host->config.disk_only)
			demote_value(t, slot);
		else if (t->collapse[slot / 64] >> slot % 64 & 1)
			tiering_collapse(t, slot);
	}
	space_room(space);
}

/* ---- clean and dirty ---------------------------------------------------------------------------------------------- */

static uint32_t *clean_of(struct tiering *t, uint32_t slot, const struct record_file *f)
{
	return &t->class[t->space->tables.entries[slot].class_index].clean[f - t->files];
}

static void clean_set(struct tiering *t, uint32_t slot, struct record_file *f)
{
	uint64_t bytes = slots_slot_bytes(t->space->slots, slot);

	assert(!tiering_is_clean(t, slot));
	t->clean[slot / 64] |= 1ull << slot % 64;
	t->kept[slot / 64] &= ~(1ull << slot % 64);
	t->clean_bytes += bytes;
	t->held_clean_bytes += t->holds[slot] ? bytes : 0;
	f->held += t->holds[slot] > 0;
	f->clean++;
	*clean_of(t, slot, f) += 1;
}

static void clean_unset(struct tiering *t, uint32_t slot, struct record_file *f)
{
	uint64_t bytes = slots_slot_bytes(t->space->slots, slot);

	assert(tiering_is_clean(t, slot) && f->clean > 0);
	t->clean[slot / 64] &= ~(1ull << slot % 64);
	t->collapse[slot / 64] &= ~(1ull << slot % 64);
	t->clean_bytes -= bytes;
	t->held_clean_bytes -= t->holds[slot] ? bytes : 0;
	f->held -= t->holds[slot] > 0;
	f->clean--;
	*clean_of(t, slot, f) -= 1;
}

void tiering_make_clean(struct tiering *t, uint32_t slot)
{
	struct record_file *f = file_of_value(t, slot);

	lock_assert_held(&t->space->lock);
	assert(f->dirty > 0);
	f->dirty--;
	t->dirty_bytes -= slots_slot_bytes(t->space->slots, slot);
	clean_set(t, slot, f);
	consider_resident(t, slot);
}

void tiering_make_dirty(struct tiering *t, uint32_t slot)
{
	struct record_file *f = file_of_value(t, slot);

	lock_assert_held(&t->space->lock);
	clean_unset(t, slot, f);
	t->kept[slot / 64] |= 1ull << slot % 64;
	f->dirty++;
	t->dirty_bytes += slots_slot_bytes(t->space->slots, slot);
}

void tiering_committing(struct tiering *t, uint32_t entry)
{
	struct record_file *f = file_of_value(t, entry);

	lock_assert_held(&t->space->lock);
	assert(!tiering_is_place(t, entry) && !tiering_is_clean(t, entry));
	f->dirty++;
	t->dirty_bytes += slots_slot_bytes(t->space->slots, entry);
}

void tiering_committed(struct tiering *t, uint32_t entry)
{
	uint32_t record = t->space->tables.entries[entry].record;

	tiering_consider(t, record);
	if (t->space->tables.entries[entry].page == INDEX_PAGE_ROW)
		demote_note_child(t, record);
}

void tiering_published(struct tiering *t, uint32_t record)
{
	if (index_record(t->space->index, record)->state != RECORD_LIVE) /* it may have joined another one at once */
		return;
	tiering_consider(t, record);
	demote_note_child(t, record);
	if (t->space->host->config.disk_only || t->space->stats.bytes_committed - t->looked_bytes > t->floor_bytes / 4) {
		t->looked_bytes = t->space->stats.bytes_committed; /* it is asked once, and looks before the floor is gone */
		mover_ask(t->space->host);
	}
}

void tiering_freed(struct tiering *t, uint32_t entry)
{
	struct space *space = t->space;

	lock_assert_held(&space->lock);
	if (tiering_is_place(t, entry)) {
		load_place_gone(t, entry);
		tiering_place_give(t, entry);
		return;
	}
	struct record_file *f = file_of_value(t, entry);

	t->kept[entry / 64] &= ~(1ull << entry % 64);
	if (tiering_is_clean(t, entry)) {
		clean_unset(t, entry, f);
	} else if (!space->tables.entries[entry].group) { /* else it was never committed */
		assert(f->dirty > 0);
		f->dirty--;
		t->dirty_bytes -= slots_slot_bytes(space->slots, entry);
	}
	slot_leaves(space, entry);
}

void tiering_demote(struct tiering *t, uint32_t slot, uint32_t place)
{
	struct record_file *f = file_of_value(t, slot);

	lock_assert_held(&t->space->lock);
	assert(!t->holds[slot]);
	clean_unset(t, slot, f);
	index_value_move(t->space->index, slot, place);
	killpoint(KILLPOINT_DEMOTE);
	slots_give(t->space->slots, slot);
	t->space->stats.values_demoted++;
}

void tiering_promote(struct tiering *t, uint32_t place, uint32_t slot)
{
	uint32_t record = t->space->tables.entries[place].record;

	lock_assert_held(&t->space->lock);
	index_value_move(t->space->index, place, slot);
	tiering_place_give(t, place);
	clean_set(t, slot, tiering_file(t, record));
	consider_resident(t, slot);
	t->space->stats.values_promoted++;
}

/* ---- the file follows ----------------------------------------------------------------------------------------------- */

uint64_t tiering_file_consumed(const struct tiering *t, uint32_t record)
{
	const struct record_file *f = &t->files[record];

	return t->space->tables.records[record].start + (uint64_t)f->pages * t->space->layout->page_tokens;
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

	return other != INDEX_NONE && other != record && tiering_file(t, other)->id && tiering_file_consumed(t, other) == consumed &&
	       !memcmp(&t->files[other].endpoint, endpoint, sizeof(*endpoint));
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
			clean_unset(t, entry, from);
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
		if (tiering_file(t, record)->id) {
			tiering_file(t, record)->flags |= TIERING_STALE;
			tiering_consider(t, record);
		}
		break;
	case INDEX_JOINED:
		row_joined(t, record, other);
		break;
	}
}

struct trim {
	struct disk_trim trim; /* first */
	struct tiering *t;
	uint32_t record;
	uint64_t id; /* of the file */
};

/* The file's length is known exactly now: one that could not be cut is as long as it was. */
static void trim_done(struct disk_job *job)
{
	struct trim *trim = (struct trim *)job;
	struct tiering *t = trim->t;
	struct record_file *f;

	lock_take(&t->space->lock);
	f = tiering_file(t, trim->record);
	if (!job->result && f->id == trim->id && f->pages == trim->trim.pages) {
		t->disk_bytes += trim->trim.file_bytes - f->bytes;
		f->bytes = trim->trim.file_bytes;
	}
	lock_drop(&t->space->lock);
	free(trim);
	tiering_job_ended(t);
}

/* The file of @record is made as long as it. */
static void trim_give(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	const struct record *r = index_record(t->space->index, record);
	bool row = f->flags & TIERING_FILE_ROW && r->flags & RECORD_FLAG_ROW && r->pages == f->pages;
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
	trim->id = f->id;
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
	tiering_give(t, &trim->trim.job);
}

/* What of the record's row is on disk only stood in another record's file. */
static void drop_lost_row(struct tiering *t, uint32_t record)
{
	struct space *space = t->space;
	struct index_sink sink = space_sink(space);

	for (uint32_t c = 0; c < space->layout->row_columns; c++) {
		uint32_t entry = index_value(space->index, record, INDEX_PAGE_ROW, c, NULL);

		if (entry != INDEX_NONE && tiering_is_place(t, entry) && !(tiering_file(t, record)->flags & TIERING_FILE_ROW))
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
		if (flags & TIERING_TRIM && !t->closed && t->files[record].id)
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

void tiering_report(const struct tiering *t, struct space_report *ret)
{
	lock_assert_held(&t->space->lock);
	ret->disk = true;
	ret->disk_bytes = t->disk_bytes;
	ret->disk_files = t->disk_files;
	ret->disk_values = t->places_used;
	ret->dirty_bytes = t->dirty_bytes;
	ret->clean_bytes = t->clean_bytes;
	ret->spill_floor_bytes = spill_floor(t);
}

size_t tiering_memory_bytes(const struct tiering *t)
{
	return (size_t)t->disk_files * sizeof(struct record_file) + (size_t)(t->place_top - t->place_first) * sizeof(uint32_t) +
	       viewed_bytes(t) + policy_lru.memory_bytes(t->dirty) * (1 + t->space->layout->classes);
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

uint32_t tiering_places(const struct layout *layout, uint64_t bytes)
{
	uint64_t least = UINT64_MAX, places;

	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++)
			if (layout->class[c].share[s].slot_bytes < least)
				least = layout->class[c].share[s].slot_bytes;
	places = bytes / least + TABLES_GRANT_ENTRIES;
	places -= places % TABLES_GRANT_ENTRIES;
	return places < TIERING_PLACES_MOST ? (uint32_t)places : TIERING_PLACES_MOST;
}

static uint32_t dirty_use(void *context, uint32_t record)
{
	return index_record_last_use(((struct tiering *)context)->space->index, record);
}

static uint32_t *dirty_place(void *context, uint32_t record)
{
	return &((struct tiering *)context)->files[record].dirty_slot;
}

static uint32_t resident_use(void *context, uint32_t record)
{
	return index_record_last_use(((struct tiering_class *)context)->t->space->index, record);
}

static uint32_t *resident_place(void *context, uint32_t record)
{
	return &((struct tiering_class *)context)->slot[record];
}

static int make_class(struct tiering *t, struct tiering_class *class, struct why *why)
{
	struct policy_view view = { class, resident_use, resident_place };
	uint32_t records = t->space->tables.record_capacity;

	class->t = t;
	class->slot = memory_reserve(records * sizeof(*class->slot), false);
	class->clean = memory_reserve(records * sizeof(*class->clean), false);
	if (!class->slot || !class->clean)
		return why_set(why, ENOMEM, "namespace %s: no memory for its disk tier", t->space->name);
	class->resident = policy_lru.create(&view, records, why);
	return class->resident ? 0 : -why->error;
}

static int make_arrays(struct tiering *t, struct why *why)
{
	struct policy_view dirty = { t, dirty_use, dirty_place };
	uint32_t records = t->space->tables.record_capacity;

	t->holds = t->space->holds;
	t->clean = memory_reserve((t->place_first / 64 + 1) * sizeof(*t->clean), false);
	t->collapse = memory_reserve((t->place_first / 64 + 1) * sizeof(*t->collapse), false);
	t->kept = memory_reserve((t->place_first / 64 + 1) * sizeof(*t->kept), false);
	t->files = memory_reserve(records * sizeof(*t->files), false);
	t->loads_of = memory_reserve(t->place_count * sizeof(*t->loads_of), false);
	if (!t->clean || !t->collapse || !t->kept || !t->files || !t->loads_of)
		return why_set(why, ENOMEM, "namespace %s: no memory for its disk tier", t->space->name);
	t->dirty = policy_lru.create(&dirty, records, why);
	if (!t->dirty)
		return -why->error;
	for (uint32_t c = 0; c < t->space->layout->classes; c++) {
		int r = make_class(t, &t->class[c], why);

		if (r)
			return r;
	}
	return 0;
}

static int open_dir(struct tiering *t, struct why *why)
{
	struct why refused = WHY_INIT;
	int r = disk_dir_open(t->disk, t->space->layout, t->space->segment, &t->dir, &refused);

	return r ? why_set(why, -r, "namespace %s: %s", t->space->name, refused.text) : 0;
}

int tiering_new(struct space *space, struct disk *disk, uint32_t place_first, uint32_t place_count, struct why *why)
{
	struct tiering *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return why_set(why, ENOMEM, "namespace %s: no memory for its disk tier", space->name);
	t->space = space;
	t->disk = disk;
	t->place_first = t->place_top = place_first;
	t->place_count = place_count;
	t->place_list = t->trims = INDEX_NONE;
	lock_cond_init(&t->saved);
	r = make_arrays(t, why);
	r = r ? r : spill_new(t, why);
	r = r ? r : loads_new(t, why);
	r = r ? r : viewed_new(t, why);
	r = r ? r : open_dir(t, why);
	r = r ? r : tiering_open_catalogue(t, why);
	if (r) {
		tiering_free(&t, false);
		return r;
	}
	space->tiering = t;
	return 0;
}

void tiering_job_ended(struct tiering *t)
{
	atomic_fetch_sub(&t->jobs, 1);
}

static void tier_await_jobs(const struct tiering *t)
{
	const struct timespec nap = { .tv_nsec = 100000 };

	lock_assert_none_held();
	while (atomic_load(&t->jobs))
		nanosleep(&nap, NULL);
}

struct disk_dir *tiering_free(struct tiering **tp, bool remove)
{
	struct tiering *t = *tp;
	struct disk_dir *aside = NULL;

	if (!t)
		return NULL;
	uint32_t records = t->space->tables.record_capacity;

	tier_await_jobs(t); /* they look it up through the space */
	*tp = NULL;
	if (t->catalogue)
		catalogue_close(&t->catalogue, TIERING_CLOSE_NS);
	if (t->dir && remove) {
		disk_dir_set_aside(t->dir);
		aside = t->dir;
	} else {
		disk_dir_close(&t->dir, false);
	}
	viewed_free(t);
	loads_free(t);
	spill_free(t);
	policy_lru.destroy(&t->dirty);
	for (uint32_t c = 0; c < t->space->layout->classes; c++) {
		policy_lru.destroy(&t->class[c].resident);
		memory_release(&t->class[c].slot, records * sizeof(uint32_t));
		memory_release(&t->class[c].clean, records * sizeof(uint32_t));
	}
	memory_release(&t->loads_of, t->place_count * sizeof(*t->loads_of));
	memory_release(&t->files, records * sizeof(*t->files));
	memory_release(&t->clean, (t->place_first / 64 + 1) * sizeof(*t->clean));
	memory_release(&t->collapse, (t->place_first / 64 + 1) * sizeof(*t->collapse));
	memory_release(&t->kept, (t->place_first / 64 + 1) * sizeof(*t->kept));
	for (uint32_t i = 1; i < TIERING_ALIASES; i++)
		free(t->alias[i]);
	lock_cond_destroy(&t->saved);
	free(t);
	return aside;
}
