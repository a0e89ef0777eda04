/* SPDX-License-Identifier: Apache-2.0
 *
 * WHOLE groups and the tiers: a group is in memory or on disk as a whole, and what cannot be read of one takes the rest along (P4).
 * Only a get makes a difference for a while: what it wants is in memory, the rest need not be.
 *
 * Both take one stay, however long the group is.
 */
#include <stdlib.h>

#include "store/host_private.h"
#include "store/tiering.h"

static uint32_t next_of(const struct space *space, uint32_t record)
{
	return space->tables.records[record].whole_next;
}

bool ring_is(const struct tiering *t, uint32_t record)
{
	return index_record(t->space->index, record)->flags & RECORD_FLAG_WHOLE;
}

/* Calls @value for each committed value of @record, from its end on, until it says false. It may make the value go, and with it the
 * record. */
static bool each_value(struct space *space, uint32_t record, bool (*value)(struct space *space, uint32_t entry, void *context),
		       void *context)
{
	struct index *index = space->index;
	const struct layout *layout = space->layout;
	uint32_t pages = index_record(index, record)->pages;

	for (uint32_t at = 0; at <= pages; at++) {
		uint32_t page = at ? pages - at : INDEX_PAGE_ROW, columns = at ? layout->page_columns : layout->row_columns;

		for (uint32_t c = 0; c < columns; c++) {
			const struct record *r = index_record(index, record);
			bool committed;
			uint32_t entry;

			if (r->state != RECORD_LIVE) /* no number is another record's within a stay in which things only go */
				return true;
			if (page != INDEX_PAGE_ROW && page >= r->pages)
				break;
			entry = index_value(index, record, (uint16_t)page, c, &committed);
			if (entry != INDEX_NONE && committed && !value(space, entry, context))
				return false;
		}
	}
	return true;
}

/* ---- leaving memory ------------------------------------------------------------------------------------------------------- */

/* Is all of it that is in memory clean, and held by nobody, and is there a place for each value? */
static bool may_leave(struct tiering *t, uint32_t record, uint32_t *values)
{
	uint32_t m = record;

	*values = 0;
	do {
		const struct record_file *f = tiering_file(t, m);
		const struct record *r = index_record(t->space->index, m);

		if (r->state != RECORD_LIVE || !index_record_current(t->space->index, m) || r->unsettled || f->dirty || f->held)
			return false;
		*values += f->clean;
		m = next_of(t->space, m);
	} while (m != record);
	return true;
}

static bool leaves(struct space *space, uint32_t entry, void *context)
{
	struct tiering *t = space->tiering;
	uint64_t *bytes = context;

	if (tiering_is_place(t, entry))
		return true;
	*bytes += slots_slot_bytes(t->space->slots, entry);
	tiering_demote(t, entry, tiering_place_take(t));
	return true;
}

uint32_t ring_demote(struct tiering *t, uint32_t record, uint64_t *bytes)
{
	uint32_t values, m = record;

	lock_assert_held(&t->space->lock);
	*bytes = 0;
	if (t->closed || !may_leave(t, record, &values) || !values)
		return 0;
	if (values > t->place_count - t->places_used) {
		demote_places_short(t);
		return 0;
	}
	do {
		each_value(t->space, m, leaves, bytes);
		m = next_of(t->space, m);
	} while (m != record);
	return values;
}

/* ---- lost -------------------------------------------------------------------------------------------------------------------- */

static bool goes(struct space *space, uint32_t entry, void *context)
{
	index_value_drop(space->index, entry, false, context);
	return true;
}

void ring_lose(struct space *space, uint32_t record, const struct index_sink *sink)
{
	struct index_sink to = *sink;
	uint32_t count = 0, m = record;
	uint32_t *members;

	lock_assert_held(&space->lock);
	do {
		count++;
		m = next_of(space, m);
	} while (m != record);
	members = calloc(count, sizeof(*members));
	if (!members)
		return; /* what cannot be read alone goes */
	for (uint32_t i = 0; i < count; i++, m = next_of(space, m))
		members[i] = m;
	for (uint32_t i = 0; i < count; i++)
		each_value(space, members[i], goes, &to);
	free(members);
}
