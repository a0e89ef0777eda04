/* SPDX-License-Identifier: Apache-2.0
 *
 * Step 7 of an adoption: what is on disk. For now memory alone is kept: places are let go of, and what is in slots counts as not written.
 */
#include "store/adopt_private.h"

#include "index/files.h"
#include "store/tiering.h"

static void forget_place(void *context, uint32_t entry)
{
	(void)context; /* nobody has taken it yet */
	(void)entry;
}

static void let_place_go(struct space *space, uint32_t place)
{
	static const struct index_sink sink = { forget_place, NULL };

	if (space->tables.entries[place].state == ENTRY_VALUE)
		index_value_drop(space->index, place, false, &sink);
	else
		tables_entry_set_state(&space->tables, place, ENTRY_FREE);
}

static void mark_dirty(struct space *space, uint32_t slot)
{
	if (files_is_clean(&space->tables, slot))
		files_set_clean(&space->tables, slot, false);
	if (!space->tiering || space->tables.entries[slot].state != ENTRY_VALUE)
		return;
	tiering_committing(space->tiering, slot);
	tiering_committed(space->tiering, slot);
}

int adopt_disk(struct attempt *a)
{
	struct space *space = a->space;
	struct tables_header *header = space->tables.header;
	uint32_t first = a->ranges.slots, end = header->places_high < first + a->ranges.places ? header->places_high : first + a->ranges.places;
	struct slots_grant g;

	lock_take(&space->lock);
	for (uint32_t place = first; place < end; place++)
		let_place_go(space, place);
	for (uint32_t id = 0; a->ranges.places && id < slots_grant_limit(space->slots); id++)
		for (uint32_t n = 0; slots_grant_get(space->slots, id, &g) && g.ready && n < g.slots; n++)
			mark_dirty(space, g.first_entry + n);
	lock_drop(&space->lock);
	return 0;
}
