/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that the next one of a chain has made needless: of a record whose only child has a complete row its own may go, with all its pages
 * staying. Not one that somebody may come back to: a rung of the ladder, one that was demanded or resumed from.
 *
 * Children whose parents are to be looked at stand in a ring of the space's; one that finds it full is passed over, and its parent keeps its
 * row until memory lacks it.
 */
#include "store/space.h"

static bool has_row(const struct space *space, uint32_t record)
{
	for (uint32_t c = 0; c < space->layout->row_columns; c++) {
		bool committed;

		if (index_value(space->index, record, INDEX_PAGE_ROW, c, &committed) == INDEX_NONE || !committed)
			return false;
	}
	return space->layout->row_columns > 0;
}

void rows_note_child(struct space *space, uint32_t record)
{
	const struct record *r = index_record(space->index, record);

	lock_assert_held(&space->lock);
	if (space->parents_count == SPACE_PARENTS || r->state != RECORD_LIVE || r->parent == INDEX_NONE || !(r->flags & RECORD_FLAG_ROW) ||
	    !index_record_current(space->index, record))
		return;
	space->parents[(space->parents_first + space->parents_count++) % SPACE_PARENTS] =
		(struct space_record){ record, r->generation };
}

/* Is the row of @parent on the ladder, or was there a reason for it of its own? */
static bool is_wanted(const struct space *space, uint32_t parent)
{
	const struct record_entry *t = &space->tables.records[parent];
	uint64_t interval = space->layout->interval;

	return t->flags & (RECORD_RUNG | RECORD_DEMANDED) || t->hits || (interval && t->consumed % interval == 0);
}

/* May the row of @parent go, apart from what its child has? */
static bool may_go(const struct space *space, uint32_t parent, uint16_t page)
{
	const struct record *p = index_record(space->index, parent);

	return p->state == RECORD_LIVE && p->children == 1 && !p->unsettled && p->pages && page + 1u == p->pages &&
	       p->flags & RECORD_FLAG_ROW && !(p->flags & (RECORD_FLAG_HELD | RECORD_FLAG_WHOLE)) && !p->pins &&
	       !is_wanted(space, parent);
}

static void drop_parents_row(struct space *space, struct space_record child)
{
	struct index_sink sink = space_sink(space);
	const struct record *r = index_record(space->index, child.record);

	if (r->generation != child.generation || r->state != RECORD_LIVE || !index_record_current(space->index, child.record) ||
	    r->parent == INDEX_NONE || !has_row(space, child.record) || !may_go(space, r->parent, r->parent_page))
		return;
	if (!index_drop_row(space->index, r->parent, &sink, NULL))
		space->stats.rows_superseded++;
}

void rows_drop(struct space *space)
{
	bool more = space->layout->row_columns > 0;

	while (more) {
		lock_take(&space->lock);
		space_notes_begin(space);
		for (uint32_t i = 0; i < INDEX_STEP_KEYS && space->parents_count; i++) {
			struct space_record child = space->parents[space->parents_first];

			space->parents_first = (space->parents_first + 1) % SPACE_PARENTS;
			space->parents_count--;
			drop_parents_row(space, child);
		}
		more = space->parents_count > 0;
		space_notes_end(space);
		space_room(space);
		lock_drop(&space->lock);
	}
}
