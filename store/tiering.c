/* SPDX-License-Identifier: Apache-2.0
 *
 * Which value is where: places, holds, clean and dirty.
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
#include "store/reconcile.h"
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
	bool wanted = (f->dirty || f->flags & TIERING_STALE) && !f->job && !t->closed &&
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
	killpoint(KILLPOINT_RELEASE_WORD);
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

static void clean_count(struct tiering *t, uint32_t slot, struct record_file *f)
{
	uint64_t bytes = slots_slot_bytes(t->space->slots, slot);

	t->clean_bytes += bytes;
	t->held_clean_bytes += t->holds[slot] ? bytes : 0;
	f->held += t->holds[slot] > 0;
	f->clean++;
	*clean_of(t, slot, f) += 1;
}

static void clean_set(struct tiering *t, uint32_t slot, struct record_file *f)
{
	assert(!tiering_is_clean(t, slot));
	files_set_clean(&t->space->tables, slot, true);
	t->kept[slot / 64] &= ~(1ull << slot % 64);
	clean_count(t, slot, f);
}

void tiering_unclean(struct tiering *t, uint32_t slot, struct record_file *f)
{
	uint64_t bytes = slots_slot_bytes(t->space->slots, slot);

	lock_assert_held(&t->space->lock);
	assert(tiering_is_clean(t, slot) && f->clean > 0);
	files_set_clean(&t->space->tables, slot, false);
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
	tiering_unclean(t, slot, f);
	t->kept[slot / 64] |= 1ull << slot % 64;
	f->dirty++;
	t->dirty_bytes += slots_slot_bytes(t->space->slots, slot);
}

void tiering_count(struct tiering *t, uint32_t slot)
{
	struct record_file *f = file_of_value(t, slot);

	lock_assert_held(&t->space->lock);
	if (tiering_is_clean(t, slot)) {
		clean_count(t, slot, f);
		consider_resident(t, slot);
	} else {
		f->dirty++;
		t->dirty_bytes += slots_slot_bytes(t->space->slots, slot);
	}
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
}

void tiering_published(struct tiering *t, uint32_t record)
{
	if (index_record(t->space->index, record)->state != RECORD_LIVE) /* it may have joined another one at once */
		return;
	tiering_consider(t, record);
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
		tiering_unclean(t, entry, f);
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
	tiering_unclean(t, slot, f);
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
	t->collapse = memory_reserve((t->place_first / 64 + 1) * sizeof(*t->collapse), false);
	t->kept = memory_reserve((t->place_first / 64 + 1) * sizeof(*t->kept), false);
	t->files = memory_reserve(records * sizeof(*t->files), false);
	t->loads_of = memory_reserve(t->place_count * sizeof(*t->loads_of), false);
	if (!t->collapse || !t->kept || !t->files || !t->loads_of)
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
	reconcile_free(&t->reconcile);
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
	memory_release(&t->collapse, (t->place_first / 64 + 1) * sizeof(*t->collapse));
	memory_release(&t->kept, (t->place_first / 64 + 1) * sizeof(*t->kept));
	for (uint32_t i = 1; i < TIERING_ALIASES; i++)
		free(t->alias[i]);
	lock_cond_destroy(&t->saved);
	free(t);
	return aside;
}
