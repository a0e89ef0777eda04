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
	const struct recut_side *side = &space->recut_side[class_index][share];
	struct grower_job job = {
		.kind = GROWER_RECUT, .space = space, .class_index = class_index, .share = share,
	};

	lock_assert_held(&space->lock);
	if (space->recut_queued || (int32_t)(index_clock(space->index) - side->until) < 0 ||
	    space->layout->page_columns + space->layout->row_columns == 1)
		return;
	space->recut_queued = grower_push(space->host->grower, &job);
}

/* Is it old enough to be given to (class, share)? Both sides' coldest content is compared. 0: it is, else in how many batches
 * it could be, if nobody uses it. */
static uint32_t too_early(struct space *space, uint32_t class_index, uint32_t share, const struct victim *v)
{
	struct slots_usage usage;
	uint32_t own = 0, needed = RECUT_REST;

	lock_take(&space->lock);
	slots_usage(space->slots, class_index, share, &usage);
	if (usage.slots > usage.free && index_coldest_age(space->index, layout_is_row(space->layout, class_index), &own) &&
	    own > RECUT_REST / RECUT_FACTOR)
		needed = own < UINT32_MAX / RECUT_FACTOR ? own * RECUT_FACTOR : UINT32_MAX;
	lock_drop(&space->lock);
	return v->age >= needed ? 0 : needed - v->age;
}

bool recut_holds(const struct space *space, uint32_t class_index, uint32_t share)
{
	const struct recut_side *side = &space->recut_side[class_index][share];

	return side->won && index_clock(space->index) - side->won_at < side->hold;
}

/* Under the lock: a grant moves whose content was @age batches old. The winner keeps what it has for as long; what goes back
 * to where it came from before long makes both keep theirs twice as long. */
static void note_move(struct space *space, struct recut_side *from, struct recut_side *to, uint32_t age)
{
	uint32_t now = index_clock(space->index), hold = from->hold > to->hold ? from->hold : to->hold;

	if (from->won && now - from->won_at < RECUT_MEMORY * hold)
		hold *= 2;
	else if (!to->won)
		hold = age;
	if (hold < age)
		hold = age;
	if (hold > RECUT_HOLD_MAX)
		hold = RECUT_HOLD_MAX;
	from->won = false;
	from->hold = hold;
	*to = (struct recut_side){ .until = now, .won_at = now, .hold = hold, .won = true };
}

/* ---- cutting ------------------------------------------------------------------------------------------------- */

/* Under the lock: nobody is given an address in @id before it is acknowledged again. */
static void forget_acknowledged(struct space *space, uint32_t id)
{
	for (struct session *s = space->attached; s; s = s->next_attached)
		s->acknowledged[id / 64] &= ~(1ull << id % 64);
}

/* An emptied grant becomes (class, share)'s. */
static bool cut(struct space *space, const struct victim *v, uint32_t class_index, uint32_t share)
{
	uint32_t id = v->id;
	struct slots_grant g;
	int r;

	lock_take(&space->lock);
	slots_grant_get(space->slots, id, &g);
	r = slots_grant_recut(space->slots, id, class_index, share);
	if (r) {
		slots_grant_reopen(space->slots, id);
		space_room(space);
	} else {
		note_move(space, &space->recut_side[g.class_index][g.share], &space->recut_side[class_index][share],
			  v->age);
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
	struct recut_side *side = &space->recut_side[class_index][share];
	uint32_t early = 0;
	bool done = false;
	struct victim v;

	for (uint32_t i = 0; i < VICTIM_TRIES && !done && !early && victim_find(&wish, &v); i++) {
		early = too_early(space, class_index, share, &v); /* the others are worth more */
		wish.passed[v.id / 64] |= 1ull << v.id % 64;
		done = !early && victim_close(space, &v) && victim_empty(space, &v, NULL) &&
		       cut(space, &v, class_index, share);
	}
	lock_take(&space->lock);
	if (!done) {
		side->pause = side->pause * 2 < RECUT_PAUSE_MIN ? RECUT_PAUSE_MIN : side->pause * 2;
		if (early && side->pause > early)
			side->pause = early > RECUT_PAUSE_MIN ? early : RECUT_PAUSE_MIN;
		if (side->pause > RECUT_PAUSE_MAX)
			side->pause = RECUT_PAUSE_MAX;
		side->until = index_clock(space->index) + side->pause;
	}
	space->recut_queued = false;
	lock_drop(&space->lock);
}
