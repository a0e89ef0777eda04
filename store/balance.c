/* SPDX-License-Identifier: Apache-2.0
 *
 * Between namespaces: grants above a floor go back to the host while no session is attached (docs/memory.md).
 */
#include "store/host_private.h"

#include "store/remnants.h"
#include "store/tiering.h"
#include "store/victim.h"

/* ---- asking -------------------------------------------------------------------------------------------------- */

void balance_ask(struct host *host)
{
	struct grower_job job = { .kind = GROWER_BALANCE };

	if (atomic_load(&host->closing) || atomic_exchange(&host->balance_queued, true))
		return;
	if (!grower_push(host->grower, &job))
		atomic_store(&host->balance_queued, false);
}

void balance_hunger(struct space *space, uint32_t class_index, uint32_t share, uint32_t node)
{
	lock_assert_held(&space->lock);
	space->hunger = (struct hunger){ .is = true, .class_index = class_index, .share = share, .node = node };
	balance_ask(space->host);
}

/* ---- giving back --------------------------------------------------------------------------------------------- */

/* Of before too: who mapped the segment is to find its own bytes there. */
static bool attached(const struct space *space)
{
	return space->attached != NULL || remnants_any(space);
}

/* What the namespace has above its floor; 0 while a session is attached. */
static uint64_t surplus(struct space *space)
{
	uint64_t bytes;

	lock_take(&space->lock);
	bytes = attached(space) || space->granted_bytes < space->floor_bytes ? 0 : space->granted_bytes - space->floor_bytes;
	lock_drop(&space->lock);
	return bytes;
}

/* An emptied, closed grant goes back to the host. */
static bool give(struct space *space, uint32_t id)
{
	struct why why = WHY_INIT;
	struct slots_grant g;
	bool goes;

	lock_take(&space->lock);
	slots_grant_get(space->slots, id, &g);
	goes = !attached(space);
	if (goes) {
		slots_grant_withdraw(space->slots, id);
		space->leaving = id;
		space_ranges_changed(space);
	} else {
		slots_grant_reopen(space->slots, id);
		space_room(space);
	}
	lock_drop(&space->lock);
	if (!goes)
		return false;
	if (space->tiering)
		disk_piece_drop(space->tiering->dir, id);
	goes = segment_punch(space->segment, g.offset, g.length, &why) == 0;
	if (!goes && space->tiering)
		disk_piece_add(space->tiering->dir, id, g.offset, g.length);
	lock_take(&space->lock);
	space->leaving = SLOTS_NONE;
	if (goes) {
		slots_grant_end(space->slots, id);
		budget_give(&space->host->budget, space->floor_bytes, space->granted_bytes, g.length);
		space->granted_bytes -= g.length;
		space->stats.grants_returned++;
	} else {
		slots_grant_ready(space->slots, id);
	}
	space_ranges_changed(space);
	lock_drop(&space->lock);
	return goes;
}

/* Gives one grant of @space back that is above its floor. */
static bool give_one(struct space *space, bool empty_only)
{
	struct victim_wish wish = { .space = space, .most_bytes = surplus(space), .empty_only = empty_only };
	struct victim v;

	for (uint32_t i = 0; i < VICTIM_TRIES && wish.most_bytes && victim_find(&wish, &v); i++) {
		wish.passed[v.id / 64] |= 1ull << v.id % 64;
		if (victim_close(space, &v) && victim_empty(space, &v, attached) && give(space, v.id))
			return true;
	}
	return false;
}

/* ---- balancing ----------------------------------------------------------------------------------------------- */

struct balance {
	struct host *host;
	struct space *spaces[HOST_MAX_SPACES];
	bool done[HOST_MAX_SPACES]; /* nothing more is to be had of it */
	uint32_t count;
	bool gave;
};

/* The one that has been without a session the longest; NULL = none has anything. */
static struct space *longest_idle(struct balance *b, const struct space *except, uint32_t *ret)
{
	struct space *best = NULL;
	uint64_t since = UINT64_MAX;

	for (uint32_t i = 0; i < b->count; i++) {
		uint64_t idle_since = atomic_load(&b->spaces[i]->idle_since_ns);

		if (b->done[i] || b->spaces[i] == except || idle_since >= since || !surplus(b->spaces[i]))
			continue;
		best = b->spaces[i];
		since = idle_since;
		*ret = i;
	}
	return best;
}

/* A namespace that is below its floor and got no grant: it gets one now if it can, also by what others are made to give.
 * Else it stays hungry: whoever gives next looks again. */
static void feed(struct balance *b, struct space *space)
{
	for (;;) {
		struct space *giver;
		uint32_t i = 0;

		lock_take(&space->lock);
		struct hunger *h = &space->hunger;

		h->is = h->is && space_grow(space, h->class_index, h->share, h->node) == GROW_SHORT;
		bool hungry = h->is;

		lock_drop(&space->lock);
		giver = hungry ? longest_idle(b, space, &i) : NULL;
		if (!giver)
			return;
		if (give_one(giver, false))
			b->gave = true;
		else
			b->done[i] = true;
	}
}

void balance_run(struct host *host)
{
	struct balance b = { .host = host };

	atomic_store(&host->balance_queued, false);
	lock_take(&host->lock);
	for (; b.count < host->space_count; b.count++)
		b.spaces[b.count] = space_ref(host->spaces[b.count]);
	lock_drop(&host->lock);
	b.gave = atomic_exchange(&host->room_made, false);
	for (uint32_t i = 0; i < b.count; i++)
		while (surplus(b.spaces[i]) && give_one(b.spaces[i], true))
			b.gave = true;
	for (uint32_t i = 0; i < b.count; i++)
		feed(&b, b.spaces[i]);
	for (uint32_t i = 0; i < b.count; i++) {
		if (b.gave) {
			lock_take(&b.spaces[i]->lock);
			space_room(b.spaces[i]);
			lock_drop(&b.spaces[i]->lock);
		}
		space_unref(&b.spaces[i]);
	}
}
