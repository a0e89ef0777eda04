/* SPDX-License-Identifier: Apache-2.0
 *
 * Room for PUT_START: growing, letting victims go.
 */
#include "store/host_private.h"
#include "store/put_private.h"
#include "store/tiering.h"

#define MAX_STEPS 1024u /* pages that go for one slot of a class with few values: what does not suffice is there next time */

struct acceptance {
	struct space *space;
	struct slots_filter filter;
	uint32_t class_index, share; /* that lacks slots */
};

static bool in_acknowledged(void *context, uint32_t entry)
{
	const struct acceptance *a = context;
	uint32_t grant;

	if (a->space->tiering && tiering_is_place(a->space->tiering, entry))
		return false;
	grant = slots_grant_of(a->space->slots, entry);
	return a->filter.acknowledged[grant / 64] >> (grant % 64) & 1;
}

/* Of a window's old value all shares go: the one that slots are lacking of decides. */
static bool old_fits(void *context, uint32_t entry)
{
	const struct acceptance *a = context;

	return a->space->tables.entries[entry].share == a->share && in_acknowledged(context, entry);
}

/* One step of what goes first for the class that lacks slots. */
static int evict_step(struct acceptance *a, bool *olds, const struct index_sink *sink)
{
	struct index *index = a->space->index;
	int r = INDEX_E_NOTHING;

	if (layout_is_row(a->space->layout, a->class_index))
		return index_evict_row(index, in_acknowledged, a, sink);
	if (*olds)
		r = index_evict_old(index, a->class_index, old_fits, a, sink);
	if (r != INDEX_E_NOTHING)
		return 0;
	*olds = false;
	return index_evict_page(index, in_acknowledged, a, sink);
}

bool room_grow(struct space *space, uint32_t class_index, uint32_t share, uint32_t node)
{
	enum grow_answer answer = space_grow(space, class_index, share, node);

	if (answer == GROW_COMING)
		return true;
	if (answer == GROW_SHORT)
		balance_hunger(space, class_index, share, node);
	recut_wish(space, class_index, share);
	return false;
}

/* With a disk nothing is evicted: what is there already goes on there, or something is written for the next one. */
static bool room_from_disk(struct session *s, uint32_t class_index, uint32_t share, uint32_t want, struct slots_filter filter)
{
	struct tiering *t = s->space->tiering;
	uint32_t free = demote_make_room(t, class_index, share, want, filter);

	if (!free)
		spill_wish(t, class_index, share);
	return free > 0;
}

bool room_make(struct session *s, uint32_t class_index, uint32_t share, uint32_t want)
{
	struct space *space = s->space;
	struct slots_filter filter = session_filter(s), any = { NULL };
	struct acceptance a = { space, filter, class_index, share };
	struct index_sink sink = space_sink(space);
	uint32_t free = slots_free_count(space->slots, class_index, share, filter);
	bool olds = space->layout->class[class_index].kind == VALUE_WINDOW;
	struct slots_usage usage;

	if (!free && atomic_load(&space->hidden)) { /* what nobody finds any more goes first */
		index_retire(space->index, &sink, &space->stats.values_reset);
		free = slots_free_count(space->slots, class_index, share, filter);
	}
	if (!free && slots_free_count(space->slots, class_index, share, any))
		return false;
	if (!free && room_grow(space, class_index, share, s->node)) {
		free = slots_free_count(space->slots, class_index, share, filter);
		if (!free)
			return false;
	}
	if (space->tiering && !space->tiering->closed)
		return room_from_disk(s, class_index, share, want, filter);
	slots_usage(space->slots, class_index, share, &usage);
	if (usage.slots == usage.free)
		return free > 0; /* no victim is of this size */
	uint32_t steps = 0;

	space_notes_begin(space);
	for (; free < want && steps < (free ? INDEX_STEP_KEYS : MAX_STEPS); steps++) {
		uint32_t before = free;

		if (evict_step(&a, &olds, &sink))
			break;
		free = slots_free_count(space->slots, class_index, share, filter);
		space->stats.values_evicted += free > before ? free - before : 0;
	}
	space_notes_end(space);
	if (!free && steps == MAX_STEPS) { /* there is more: it is told to try again, from outside this stay */
		space_refused(space, s->number);
		atomic_store(&space->host->room_made, true);
		balance_ask(space->host);
	}
	return free > 0;
}
