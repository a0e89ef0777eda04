/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that are read back from disk: who wants which, and the slots that they are read into.
 */
#include "store/load_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "store/base/memory.h"
#include "store/put_private.h"

/* ---- the pool ----------------------------------------------------------------------------------------------------- */

int loads_new(struct tiering *t, struct why *why)
{
	struct loads *l = calloc(1, sizeof(*l));

	if (l)
		l->at = memory_reserve((1 + LOADS_MOST) * sizeof(*l->at), false);
	if (!l || !l->at) {
		free(l);
		return why_set(why, ENOMEM, "namespace %s: no memory for the reads of its disk tier", t->space->name);
	}
	l->top = 1;
	t->loads = l;
	return 0;
}

void loads_free(struct tiering *t)
{
	if (!t->loads)
		return;
	assert(!t->loads->used);
	memory_release(&t->loads->at, (1 + LOADS_MOST) * sizeof(*t->loads->at));
	free(t->loads);
	t->loads = NULL;
}

static struct load *load_new(struct loads *l)
{
	uint32_t number = l->list;

	if (number)
		l->list = l->at[number].next;
	else if (l->top <= LOADS_MOST)
		number = l->top++;
	else
		return NULL;
	l->used++;
	return &l->at[number];
}

static void load_free(struct loads *l, struct load *load)
{
	load->step = LOAD_FREE;
	load->generation++;
	load->next = l->list;
	l->list = load_number(l, load);
	l->used--;
}

static struct load *load_named(const struct tiering *t, struct load_name name)
{
	struct load *load = &t->loads->at[name.number];

	lock_assert_held(&t->space->lock);
	assert(name.number && load->step != LOAD_FREE && load->generation == name.generation && load->wanters);
	return load;
}

/* ---- its way ------------------------------------------------------------------------------------------------------ */

void load_queue(struct tiering *t, struct load *load)
{
	struct loads *l = t->loads;

	load->step = LOAD_QUEUED;
	load->next = 0;
	if (l->last)
		l->at[l->last].next = load_number(l, load);
	else
		l->first = load_number(l, load);
	l->last = load_number(l, load);
}

/* What nothing was read into, or nothing that is of use. */
static void slot_back(struct tiering *t, struct load *load)
{
	index_quarantine_end(t->space->index, load->slot);
	slots_give(t->space->slots, load->slot);
	load->slot = INDEX_NONE;
	space_room(t->space);
}

void load_let_go(struct tiering *t, struct load *load)
{
	if (load->from != INDEX_NONE)
		tiering_unhold(t, load->from);
	load->from = INDEX_NONE;
}

void load_end(struct tiering *t, struct load *load, enum load_state end)
{
	t->loads->bytes -= slots_slot_bytes(t->space->slots, load->slot);
	t->space->stats.loads--;
	if (load->place != INDEX_NONE)
		t->loads_of[load->place - t->place_first] = 0;
	load->place = INDEX_NONE;
	load_let_go(t, load);
	if (end != LOAD_HERE)
		slot_back(t, load);
	load->job = NULL;
	load->step = LOAD_ENDED;
	load->end = (uint8_t)end;
	if (!load->wanters)
		load_free(t->loads, load);
}

/* One that counted does so no more: a job that nobody wants anything of need not begin. */
static void uncount(struct load *load)
{
	if (load->step == LOAD_GIVEN && --load->job->wanted == 0)
		atomic_store(&load->job->read.job.cancelled, true);
}

void load_place_gone(struct tiering *t, uint32_t place)
{
	uint32_t *number = &t->loads_of[place - t->place_first];
	struct load *load = &t->loads->at[*number];

	lock_assert_held(&t->space->lock);
	if (!*number)
		return;
	*number = 0;
	if (load_counts(load))
		uncount(load);
	load->place = INDEX_NONE;
	if (load->wanters)
		space_committed(t->space);
}

/* ---- a slot ------------------------------------------------------------------------------------------------------- */

static uint32_t slot_free(struct tiering *t, uint32_t class_index, uint32_t share, struct slots_filter filter)
{
	struct slots_cursor cursor;

	slots_seek(t->space->slots, &cursor, class_index, share, 1, filter);
	return cursor.grant == SLOTS_NONE ? SLOTS_NONE : slots_take(t->space->slots, &cursor, filter);
}

/* A free one; else one of a clean value. A grant is asked for first, and what is clean serves until it has come. */
static uint32_t slot_take(struct tiering *t, uint32_t class_index, uint32_t share, struct slots_filter filter)
{
	uint32_t slot = slot_free(t, class_index, share, filter);

	if (slot != SLOTS_NONE)
		return slot;
	room_grow(t->space, class_index, share, TABLES_NONE);
	slot = slot_free(t, class_index, share, filter); /* without populating it is there at once */
	if (slot == SLOTS_NONE && demote_make_room(t, class_index, share, 1, filter))
		slot = slot_free(t, class_index, share, filter);
	if (slot == SLOTS_NONE)
		spill_wish(t, class_index, share);
	return slot;
}

/* ---- wanting ------------------------------------------------------------------------------------------------------ */

static struct load *load_begin(struct tiering *t, uint32_t place, uint32_t column, struct slots_filter filter)
{
	const struct entry *e = &t->space->tables.entries[place];
	struct load *load = load_new(t->loads);
	uint32_t slot;

	if (!load)
		return NULL;
	slot = slot_take(t, e->class_index, e->share, filter);
	if (slot == SLOTS_NONE) {
		load_free(t->loads, load);
		return NULL;
	}
	tables_entry_set_state(&t->space->tables, slot, ENTRY_QUARANTINED);
	*load = (struct load){
		.key = e->key,
		.generation = load->generation,
		.place = place,
		.slot = slot,
		.from = INDEX_NONE,
		.record = e->record,
		.column = column,
		.page = e->page,
		.class_index = e->class_index,
		.share = e->share,
	};
	t->loads_of[place - t->place_first] = load_number(t->loads, load);
	t->loads->bytes += slots_slot_bytes(t->space->slots, slot);
	t->space->stats.loads++;
	load_queue(t, load);
	return load;
}

enum load_state load_want(struct tiering *t, uint32_t record, uint32_t page, uint32_t column, bool hold, struct slots_filter filter,
			  struct load_name *name, uint32_t *entry, bool *joined)
{
	struct load *load;
	bool committed;

	lock_assert_held(&t->space->lock);
	*entry = index_value(t->space->index, record, (uint16_t)page, column, &committed);
	if (*entry == INDEX_NONE || !committed)
		return LOAD_FAILED;
	if (!tiering_is_place(t, *entry)) {
		if (hold)
			tiering_hold(t, *entry);
		return LOAD_HERE;
	}
	if ((t->closed && tiering_alike(t, *entry) == INDEX_NONE) || !index_record_current(t->space->index, record))
		return LOAD_FAILED; /* its file is not read any more, or went with a reset */
	*joined = t->loads_of[*entry - t->place_first];
	load = *joined ? &t->loads->at[t->loads_of[*entry - t->place_first]] : load_begin(t, *entry, column, filter);
	if (!load)
		return LOAD_NONE;
	if (!load->wanters++ && load->step == LOAD_GIVEN)
		load->job->wanted++;
	load->holders += hold;
	*name = (struct load_name){ load_number(t->loads, load), load->generation, hold };
	return LOAD_COMING;
}

/* ---- asking ------------------------------------------------------------------------------------------------------- */

static void wanter_leaves(struct tiering *t, struct load *load, bool hold)
{
	load->holders -= hold;
	if (--load->wanters)
		return;
	if (load->step == LOAD_ENDED)
		load_free(t->loads, load);
	else if (load->place != INDEX_NONE)
		uncount(load);
}

enum load_state load_ask(struct tiering *t, struct load_name name, uint32_t *entry)
{
	struct load *load = load_named(t, name);
	enum load_state end = load->step == LOAD_ENDED ? (enum load_state)load->end :
			      load->place == INDEX_NONE ? LOAD_FAILED :
							  LOAD_COMING;

	if (end == LOAD_COMING)
		return end;
	*entry = end == LOAD_HERE ? load->slot : INDEX_NONE;
	wanter_leaves(t, load, name.hold);
	return end;
}

void load_detach(struct tiering *t, struct load_name name)
{
	struct load *load = load_named(t, name);

	if (name.hold && load->step == LOAD_ENDED && load->end == LOAD_HERE)
		tiering_unhold(t, load->slot);
	wanter_leaves(t, load, name.hold);
}

uint64_t loads_bytes(const struct tiering *t)
{
	lock_assert_held(&t->space->lock);
	return t->loads->bytes;
}
