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

#include "store/base/memory.h"
#include "store/host_private.h"

/* ---- what is known about a record ------------------------------------------------------------------------------- */

struct record_file *tiering_file(struct tiering *t, uint32_t record)
{
	struct record_file *f = &t->files[record];

	if (!(f->flags & TIERING_KNOWN))
		*f = (struct record_file){
			.dirty_slot = INDEX_NONE, .resident_slot = INDEX_NONE, .next_trim = INDEX_NONE, .flags = TIERING_KNOWN,
		};
	return f;
}

static struct record_file *file_of_value(struct tiering *t, uint32_t entry)
{
	return tiering_file(t, t->space->tables.entries[entry].record);
}

void tiering_consider(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	bool wanted = (f->dirty || f->flags & TIERING_STALE) && !f->writing && !t->closed &&
		      index_record(t->space->index, record)->state == RECORD_LIVE && index_record_current(t->space->index, record);

	lock_assert_held(&t->space->lock);
	if (wanted && f->dirty_slot == INDEX_NONE)
		policy_lru.insert(t->dirty, record);
	else if (!wanted && f->dirty_slot != INDEX_NONE)
		policy_lru.remove(t->dirty, record);
}

static void consider_resident(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);

	if (f->clean && f->resident_slot == INDEX_NONE && index_record_current(t->space->index, record))
		policy_lru.insert(t->resident, record);
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
	e->record = t->place_list;
	t->place_list = place;
	t->places_used--;
}

/* ---- holds ------------------------------------------------------------------------------------------------------ */

void tiering_hold(struct tiering *t, uint32_t slot)
{
	lock_assert_held(&t->space->lock);
	assert(!tiering_is_place(t, slot));
	if (!t->holds[slot]++ && tiering_is_clean(t, slot))
		t->held_clean_bytes += slots_slot_bytes(t->space->slots, slot);
}

void tiering_unhold(struct tiering *t, uint32_t slot)
{
	struct space *space = t->space;

	lock_assert_held(&space->lock);
	assert(t->holds[slot] > 0);
	if (--t->holds[slot])
		return;
	if (space->tables.entries[slot].state == ENTRY_QUARANTINED) { /* its value has gone meanwhile */
		index_quarantine_end(space->index, slot);
		slots_give(space->slots, slot);
		t->space->stats.slots_owed--;
	} else if (tiering_is_clean(t, slot)) {
		t->held_clean_bytes -= slots_slot_bytes(space->slots, slot);
	}
	space_room(space);
}

/* ---- clean and dirty ---------------------------------------------------------------------------------------------- */

static void clean_set(struct tiering *t, uint32_t slot, struct record_file *f)
{
	uint64_t bytes = slots_slot_bytes(t->space->slots, slot);

	assert(!tiering_is_clean(t, slot));
	t->clean[slot / 64] |= 1ull << slot % 64;
	t->clean_bytes += bytes;
	t->held_clean_bytes += t->holds[slot] ? bytes : 0;
	f->clean++;
}

static void clean_unset(struct tiering *t, uint32_t slot, struct record_file *f)
{
	uint64_t bytes = slots_slot_bytes(t->space->slots, slot);

	assert(tiering_is_clean(t, slot) && f->clean > 0);
	t->clean[slot / 64] &= ~(1ull << slot % 64);
	t->clean_bytes -= bytes;
	t->held_clean_bytes -= t->holds[slot] ? bytes : 0;
	f->clean--;
}

void tiering_make_clean(struct tiering *t, uint32_t slot)
{
	struct record_file *f = file_of_value(t, slot);
	uint32_t record = t->space->tables.entries[slot].record;

	lock_assert_held(&t->space->lock);
	assert(f->dirty > 0);
	f->dirty--;
	t->dirty_bytes -= slots_slot_bytes(t->space->slots, slot);
	clean_set(t, slot, f);
	consider_resident(t, record);
}

void tiering_make_dirty(struct tiering *t, uint32_t slot)
{
	struct record_file *f = file_of_value(t, slot);

	lock_assert_held(&t->space->lock);
	clean_unset(t, slot, f);
	f->dirty++;
	t->dirty_bytes += slots_slot_bytes(t->space->slots, slot);
}

void tiering_committed(struct tiering *t, uint32_t entry)
{
	struct record_file *f = file_of_value(t, entry);

	lock_assert_held(&t->space->lock);
	assert(!tiering_is_place(t, entry) && !tiering_is_clean(t, entry));
	f->dirty++;
	t->dirty_bytes += slots_slot_bytes(t->space->slots, entry);
	tiering_consider(t, t->space->tables.entries[entry].record);
}

void tiering_published(struct tiering *t, uint32_t record)
{
	if (index_record(t->space->index, record)->state == RECORD_LIVE) /* it may have joined another one at once */
		tiering_consider(t, record);
}

/* A slot that holds no value any more. */
static void slot_leaves(struct tiering *t, uint32_t slot)
{
	struct space *space = t->space;

	if (!t->holds[slot]) {
		slots_give(space->slots, slot);
		return;
	}
	tables_entry_set_state(&space->tables, slot, ENTRY_QUARANTINED);
	t->space->stats.slots_owed++;
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

	if (tiering_is_clean(t, entry)) {
		clean_unset(t, entry, f);
	} else if (!space->tables.entries[entry].group) { /* else it was never committed */
		assert(f->dirty > 0);
		f->dirty--;
		t->dirty_bytes -= slots_slot_bytes(space->slots, entry);
	}
	slot_leaves(t, entry);
}

void tiering_demote(struct tiering *t, uint32_t slot, uint32_t place)
{
	struct record_file *f = file_of_value(t, slot);

	lock_assert_held(&t->space->lock);
	assert(!t->holds[slot]);
	clean_unset(t, slot, f);
	index_value_move(t->space->index, slot, place);
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
	consider_resident(t, record);
	t->space->stats.values_promoted++;
}

/* ---- the file follows ----------------------------------------------------------------------------------------------- */

uint64_t tiering_file_consumed(const struct tiering *t, uint32_t record)
{
	const struct record_file *f = &t->files[record];

	return t->space->tables.records[record].start + (uint64_t)f->pages * t->space->layout->page_tokens;
}

static void trim_note(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);

	if (!f->id || f->flags & TIERING_TRIM)
		return;
	f->flags |= TIERING_TRIM;
	f->next_trim = t->trims;
	t->trims = record;
}

static void trim_forget(struct tiering *t, uint32_t record)
{
	uint32_t *at = &t->trims;

	if (!(t->files[record].flags & TIERING_TRIM))
		return;
	while (*at != record)
		at = &t->files[*at].next_trim;
	*at = t->files[record].next_trim;
	t->files[record].flags &= (uint8_t)~TIERING_TRIM;
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

static void give_removal(struct tiering *t, uint64_t consumed, const struct key *endpoint)
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

static void record_lost(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	bool current = index_record_current(t->space->index, record);
	bool named = t->joining == record && t->joining_named;

	trim_forget(t, record);
	if (f->writing) {
		struct key endpoint = f->writing->id.endpoint;
		uint64_t consumed = f->writing->job.consumed;

		write_cancel(f);
		if (current && !t->closed && !named && !f->id)
			give_removal(t, consumed, &endpoint);
	}
	if (f->id && current) {
		if (!t->closed && !named)
			give_removal(t, tiering_file_consumed(t, record), &f->endpoint);
		file_goes(t, f);
	}
	if (current && f->dirty_slot != INDEX_NONE)
		policy_lru.remove(t->dirty, record);
	if (current && f->resident_slot != INDEX_NONE)
		policy_lru.remove(t->resident, record);
	assert(!f->dirty && !f->clean);
	f->flags = 0;
	t->joining = t->joining == record ? INDEX_NONE : t->joining;
}

/* A write of a file that is longer than the record is now: cancelled, unless it replaces one that is there anyway. */
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
	if (!f->id && !t->closed)
		give_removal(t, consumed, &endpoint);
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

		if (entry == INDEX_NONE || !committed || tiering_is_place(t, entry))
			continue; /* one on disk only is in a file that goes: the first read of it finds nothing */
		if (tiering_is_clean(t, entry)) {
			clean_unset(t, entry, from);
			t->dirty_bytes += slots_slot_bytes(space->slots, entry);
		} else {
			from->dirty--;
		}
		to->dirty++;
	}
	t->joining = zero;
	t->joining_named = to->id && !memcmp(&to->endpoint, &space->tables.records[zero].endpoint, sizeof(to->endpoint));
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

/* The file of @record is made as long as it. */
static void trim_give(struct tiering *t, uint32_t record)
{
	struct record_file *f = tiering_file(t, record);
	const struct record *r = index_record(t->space->index, record);
	bool row = f->flags & TIERING_FILE_ROW && r->flags & RECORD_FLAG_ROW && r->pages == f->pages;
	struct disk_trim *trim = job_make(t, sizeof(*trim), DISK_JOB_TRIM, tiering_file_consumed(t, record), &f->endpoint);
	struct record_file_plan plan;
	uint64_t bytes;

	if (!trim) {
		catalogue_behind(t->catalogue);
		return; /* the file stays longer than it need be: what is behind the record is never read */
	}
	record_file_plan(t->space->layout, f->file_pages, row, NULL, &plan);
	bytes = row ? plan.file_bytes : record_file_length(&plan, r->pages);
	trim->pages = r->pages;
	trim->file_pages = f->file_pages;
	trim->row = row;
	index_record_name(t->space->index, record, &trim->new_consumed, &trim->new_endpoint);
	catalogue_trim(t->catalogue, f->id, r->pages, trim->new_consumed, &trim->new_endpoint, row, bytes);
	f->endpoint = trim->new_endpoint;
	f->pages = r->pages;
	f->flags &= (uint8_t)~(row ? 0 : TIERING_FILE_ROW);
	t->disk_bytes -= f->bytes - bytes;
	f->bytes = bytes;
	tiering_give(t, &trim->job);
}

bool tiering_flush(struct tiering *t)
{
	lock_assert_held(&t->space->lock);
	for (uint32_t left = INDEX_STEP_KEYS; t->trims != INDEX_NONE && left; left--) {
		uint32_t record = t->trims;

		t->trims = t->files[record].next_trim;
		t->files[record].flags &= (uint8_t)~TIERING_TRIM;
		if (!t->closed && index_record_current(t->space->index, record))
			trim_give(t, record);
	}
	return t->trims != INDEX_NONE;
}

void tiering_reset(struct tiering *t)
{
	struct disk_clear *clear;

	lock_assert_held(&t->space->lock);
	spill_cancel_all(t);
	for (; t->trims != INDEX_NONE; t->trims = t->files[t->trims].next_trim)
		t->files[t->trims].flags &= (uint8_t)~TIERING_TRIM;
	policy_lru.clear(t->dirty);
	policy_lru.clear(t->resident);
	t->disk_bytes = t->disk_files = 0;
	catalogue_clear(t->catalogue);
	clear = t->closed ? NULL : job_make(t, sizeof(*clear), DISK_JOB_CLEAR, 0, NULL);
	if (clear)
		tiering_give(t, &clear->job);
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

static uint32_t *resident_place(void *context, uint32_t record)
{
	return &((struct tiering *)context)->files[record].resident_slot;
}

static int make_arrays(struct tiering *t, struct why *why)
{
	struct policy_view dirty = { t, dirty_use, dirty_place }, resident = { t, dirty_use, resident_place };
	uint32_t records = t->space->tables.record_capacity;

	t->holds = memory_reserve(t->place_first * sizeof(*t->holds), false);
	t->clean = memory_reserve((t->place_first / 64 + 1) * sizeof(*t->clean), false);
	t->files = memory_reserve(records * sizeof(*t->files), false);
	t->loads_of = memory_reserve(t->place_count * sizeof(*t->loads_of), false);
	if (!t->holds || !t->clean || !t->files || !t->loads_of)
		return why_set(why, ENOMEM, "namespace %s: no memory for its disk tier", t->space->name);
	t->dirty = policy_lru.create(&dirty, records, why);
	t->resident = t->dirty ? policy_lru.create(&resident, records, why) : NULL;
	return t->resident ? 0 : -why->error;
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
	t->place_list = t->trims = t->joining = INDEX_NONE;
	r = make_arrays(t, why);
	r = r ? r : loads_new(t, why);
	r = r ? r : disk_dir_open(disk, space->layout, space->segment, &t->dir, why);
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

void tiering_free(struct tiering **tp, bool remove)
{
	struct tiering *t = *tp;

	*tp = NULL;
	if (!t)
		return;
	uint32_t records = t->space->tables.record_capacity;

	tier_await_jobs(t);
	if (t->catalogue)
		catalogue_close(&t->catalogue, TIERING_CLOSE_NS);
	if (t->dir)
		disk_dir_close(&t->dir, remove);
	loads_free(t);
	policy_lru.destroy(&t->dirty);
	policy_lru.destroy(&t->resident);
	memory_release(&t->loads_of, t->place_count * sizeof(*t->loads_of));
	memory_release(&t->files, records * sizeof(*t->files));
	memory_release(&t->clean, (t->place_first / 64 + 1) * sizeof(*t->clean));
	memory_release(&t->holds, t->place_first * sizeof(*t->holds));
	free(t);
}
