/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace's grants: asked of the budget, populated in the background, listed.
 */
#include "store/space.h"

#include "store/host_private.h"

bool space_push_grant(struct space *space, const struct slots_grant *grant, bool prewarm)
{
	struct grower_job job = {
		.space = space,
		.length = grant->length,
		.offset = grant->offset,
		.grant = grant->id,
		.node = grant->node,
		.first_entry = grant->first_entry,
		.slots = grant->slots,
		.populate = space->host->config.populate,
		.prewarm = prewarm,
	};

	return grower_push(space->host->grower, &job);
}

static bool grant_on_its_way(const struct space *space, uint32_t class_index, uint32_t share)
{
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++) {
		struct slots_grant grant;

		if (slots_grant_get(space->slots, id, &grant) && !grant.ready && id != space->leaving &&
		    grant.class_index == class_index && grant.share == share)
			return true;
	}
	return false;
}

/* Under the lock: the memory of a grant is there. */
static void note_grant(struct space *space, const struct slots_grant *grant)
{
	space_note(space, &(struct host_event){ .kind = HOST_EVENT_GRANT, .bytes = grant->length,
						.class_index = grant->class_index, .share = grant->share });
}

enum grow_answer space_grow(struct space *space, uint32_t class_index, uint32_t share, uint32_t node)
{
	struct budget *budget = &space->host->budget;
	uint64_t bytes = slots_grant_bytes(space->slots, class_index, share);
	enum budget_answer answer;
	struct slots_grant grant;
	uint32_t id;

	lock_assert_held(&space->lock);
	if (grant_on_its_way(space, class_index, share))
		return GROW_COMING;
	answer = budget_take(budget, space->floor_bytes, space->granted_bytes, bytes);
	if (answer != BUDGET_OK)
		return answer == BUDGET_SHORT ? GROW_SHORT : GROW_NONE;
	if (slots_grant_begin(space->slots, class_index, share, node, &id)) {
		budget_give(budget, space->floor_bytes, space->granted_bytes + bytes, bytes);
		return GROW_FULL;
	}
	space->cut_at[id] = index_clock(space->index);
	space->granted_bytes += bytes;
	space->stats.grants_begun++;
	slots_grant_get(space->slots, id, &grant);
	if (!space_push_grant(space, &grant, false)) {
		slots_grant_ready(space->slots, id);
		note_grant(space, &grant);
		space_ranges_changed(space);
	}
	return GROW_COMING;
}

void space_grant_done(struct space *space, uint32_t id, int error, uint64_t prewarmed)
{
	struct slots_grant grant;

	lock_take(&space->lock);
	/* Before anybody is told of the range: who waits for the floor looks again then, and not later. */
	atomic_fetch_add(&space->prewarm_done, prewarmed);
	slots_grant_get(space->slots, id, &grant);
	if (error) {
		slots_grant_end(space->slots, id);
		budget_give(&space->host->budget, space->floor_bytes, space->granted_bytes, grant.length);
		space->granted_bytes -= grant.length;
		space->stats.grants_failed++;
		space->grants_short++;
		if (prewarmed)
			space_ranges_changed(space);
	} else {
		space->grants_short = 0;
		slots_grant_ready(space->slots, id);
		note_grant(space, &grant);
		space_ranges_changed(space);
		space_room(space);
	}
	lock_drop(&space->lock);
}

uint32_t space_ranges(struct space *space, uint32_t first, struct space_range *ranges, uint32_t capacity,
		      uint32_t *total, uint64_t *version)
{
	uint32_t n = 0, seen = 0;

	lock_take(&space->lock);
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++) {
		struct slots_grant grant;

		if (!slots_grant_get(space->slots, id, &grant) || !grant.ready)
			continue;
		if (seen++ >= first && n < capacity)
			ranges[n++] = (struct space_range){ grant.offset, grant.length, grant.slot_bytes, grant.id,
							    grant.generation, grant.class_index, grant.share, grant.node };
	}
	*total = seen;
	*version = slots_version(space->slots);
	lock_drop(&space->lock);
	return n;
}

uint64_t space_ranges_version(struct space *space)
{
	uint64_t version;

	lock_take(&space->lock);
	version = slots_version(space->slots);
	lock_drop(&space->lock);
	return version;
}
