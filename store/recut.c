/* SPDX-License-Identifier: Apache-2.0
 *
 * Recut: a (class, share) without slots gets the grant of another whose content is worth least (docs/memory.md).
 */
#include "store/host_private.h"
#include "store/session_private.h"
#include "store/victim.h"

/* ---- wishing ------------------------------------------------------------------------------------------------- */

void recut_wish(struct space *space, uint32_t class_index, uint32_t share)
{
	struct recut_pause *pause = &space->recut_pause[class_index][share];
	struct grower_job job = {
		.kind = GROWER_RECUT, .space = space, .class_index = class_index, .share = share,
	};

	lock_assert_held(&space->lock);
	if (space->recut_queued || (int32_t)(index_clock(space->index) - pause->until) < 0 ||
	    space->layout->page_columns + space->layout->row_columns == 1)
		return;
	space->recut_queued = grower_push(space->host->grower, &job);
}

/* Is it old enough to be given to (class, share)? Both sides' coldest content is compared. */
static bool worth_it(struct space *space, uint32_t class_index, uint32_t share, const struct victim *v)
{
	struct slots_usage usage;
	uint32_t own = 0;
	bool has;

	lock_take(&space->lock);
	slots_usage(space->slots, class_index, share, &usage);
	has = usage.slots > usage.free && index_coldest_age(space->index, layout_is_row(space->layout, class_index), &own);
	lock_drop(&space->lock);
	return v->age >= RECUT_REST && (!has || v->age / RECUT_FACTOR >= own);
}

/* ---- cutting ------------------------------------------------------------------------------------------------- */

/* Under the lock: nobody is given an address in @id before it is acknowledged again. */
static void forget_acknowledged(struct space *space, uint32_t id)
{
	for (struct session *s = space->attached; s; s = s->next_attached)
		s->acknowledged[id / 64] &= ~(1ull << id % 64);
}

/* An emptied grant becomes (class, share)'s. */
static bool cut(struct space *space, uint32_t id, uint32_t class_index, uint32_t share)
{
	struct slots_grant g;
	int r;

	lock_take(&space->lock);
	r = slots_grant_recut(space->slots, id, class_index, share);
	if (r) {
		slots_grant_reopen(space->slots, id);
		space_room(space);
	} else {
		forget_acknowledged(space, id);
		space->cut_at[id] = index_clock(space->index);
		space->stats.grants_recut++;
		slots_grant_get(space->slots, id, &g);
		space_ranges_changed(space);
	}
	lock_drop(&space->lock);
	if (r)
		return false;
	index_make_entries_present(space->index, g.first_entry, g.slots);
	lock_take(&space->lock);
	slots_grant_ready(space->slots, id);
	space_note(space, &(struct host_event){
		.kind = HOST_EVENT_RECUT, .bytes = g.length, .class_index = class_index, .share = share });
	space_ranges_changed(space);
	space_room(space);
	lock_drop(&space->lock);
	return true;
}

void recut_run(struct space *space, uint32_t class_index, uint32_t share)
{
	struct victim_wish wish = {
		.space = space, .other = true, .class_index = class_index, .share = share, .most_bytes = UINT64_MAX,
	};
	struct recut_pause *pause = &space->recut_pause[class_index][share];
	bool done = false;
	struct victim v;

	for (uint32_t i = 0; i < VICTIM_TRIES && !done && victim_find(&wish, &v); i++) {
		if (!worth_it(space, class_index, share, &v))
			break; /* the others are worth more */
		wish.passed[v.id / 64] |= 1ull << v.id % 64;
		done = victim_close(space, &v) && victim_empty(space, &v, NULL) && cut(space, v.id, class_index, share);
	}
	lock_take(&space->lock);
	if (done)
		pause->batches = 0;
	else if (!pause->batches)
		pause->batches = RECUT_PAUSE_MIN;
	else if (pause->batches < RECUT_PAUSE_MAX)
		pause->batches *= 2;
	pause->until = index_clock(space->index) + pause->batches;
	space->recut_queued = false;
	lock_drop(&space->lock);
}
