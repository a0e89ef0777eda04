/* SPDX-License-Identifier: Apache-2.0 */
#include "store/victim.h"

#include "store/host_private.h"

#include <sched.h>

#include "store/tiering.h"

#define FREE_LOOKS 4096u /* free slots passed over in one stay: a bit each */

/* ---- finding --------------------------------------------------------------------------------------------------- */

/* Does the grant's (class, share) keep enough for one request without it? With @room also a free slot: a namespace to which programs
 * come for one put each grows for the next one by what the last one was refused. */
static bool spare(const struct space *space, const struct slots_grant *g, bool room)
{
	const struct layout *layout = space->layout;
	uint64_t request = layout_is_row(layout, g->class_index) ?
				   1 : VICTIM_REQUEST_PAGES / layout->class[g->class_index].every_pages;
	struct slots_usage usage;

	slots_usage(space->slots, g->class_index, g->share, &usage);
	return usage.grants > 1 && usage.slots - g->slots >= (request ? request : 1) && (!room || usage.free > g->free);
}

static bool eligible(const struct victim_wish *wish, uint32_t id, struct slots_grant *g)
{
	const struct space *space = wish->space;

	if (wish->passed[id / 64] >> id % 64 & 1 || !slots_grant_get(space->slots, id, g) || !g->ready || g->closed)
		return false;
	if (wish->other && ((g->class_index == wish->class_index && g->share == wish->share) ||
			    recut_holds(space, g->class_index, g->share) ||
			    g->length < space->layout->class[wish->class_index].share[wish->share].slot_bytes))
		return false;
	return g->length <= wish->most_bytes && (!wish->empty_only || g->free == g->slots) && spare(space, g, wish->empty_only);
}

static void sort(uint32_t *ages, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		uint32_t age = ages[i], at = i;

		for (; at > 0 && ages[at - 1] > age; at--)
			ages[at] = ages[at - 1];
		ages[at] = age;
	}
}

static bool tiered(const struct space *space)
{
	return space->tiering && !space->tiering->closed;
}

/* Ticks since the value was used. False: it cannot leave its slot now. With a disk pins are no obstacle: it goes on there. */
static bool value_age(const struct space *space, uint32_t entry, uint32_t *age)
{
	const struct entry *e = &space->tables.entries[entry];

	if (!tiered(space) || e->state != ENTRY_VALUE || !index_record_current(space->index, e->record))
		return index_value_age(space->index, entry, age);
	if (e->group || space->tiering->holds[entry])
		return false;
	*age = index_clock(space->index) - index_record_last_use(space->index, e->record);
	return true;
}

/* False: something in it is in use. */
static bool look_at(const struct space *space, const struct slots_grant *g, struct victim *ret)
{
	uint32_t ages[INDEX_STEP_KEYS], taken = 0, n = g->slots < INDEX_STEP_KEYS ? g->slots : INDEX_STEP_KEYS;
	uint32_t since_cut = index_clock(space->index) - space->cut_at[g->id];

	*ret = (struct victim){ .id = g->id, .generation = g->generation, .age = since_cut, .free = g->free };
	ret->empty = g->free == g->slots;
	if (ret->empty)
		return true;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = (uint32_t)((uint64_t)i * g->slots / n);

		if (slots_is_free(space->slots, g->id, slot))
			continue;
		if (!value_age(space, g->first_entry + slot, &ages[taken++]))
			return false;
	}
	sort(ages, taken);
	ret->old = taken ? ages[taken / 4] : 0;
	for (uint32_t i = taken; i < n; i++)
		ages[i] = since_cut;
	sort(ages, n);
	ret->age = ages[n / 4];
	return true;
}

static bool worth_less(const struct victim *a, const struct victim *b)
{
	return a->age != b->age ? a->age > b->age : a->free > b->free;
}

bool victim_find(const struct victim_wish *wish, struct victim *ret)
{
	struct space *space = wish->space;
	bool found = false, more = true;

	space_maintain(space); /* what nobody finds any more is in nobody's way then */
	for (uint32_t id = 0; more && !(found && wish->empty_only); id++) {
		struct slots_grant g;
		struct victim v;

		lock_take(&space->lock);
		more = id < slots_grant_limit(space->slots);
		if (more && eligible(wish, id, &g) && look_at(space, &g, &v) && (!found || worth_less(&v, ret))) {
			*ret = v;
			found = true;
		}
		lock_drop(&space->lock);
	}
	return found;
}

/* ---- emptying ---------------------------------------------------------------------------------------------------- */

bool victim_close(struct space *space, const struct victim *v)
{
	struct slots_grant g;
	bool ok;

	lock_take(&space->lock);
	ok = slots_grant_get(space->slots, v->id, &g) && g.ready && !g.closed && g.generation == v->generation &&
	     spare(space, &g, false);
	if (ok)
		slots_grant_close(space->slots, v->id);
	lock_drop(&space->lock);
	return ok;
}

/* Under the lock, where there is a disk: the slots from *at on, as many as one stay may have. What is clean goes on there, what
 * is not is written soon: false, as when one is held. With @look_only none goes. */
static bool some_to_disk(struct space *space, const struct victim *v, uint32_t slots, uint32_t first, uint32_t *at, bool look_only)
{
	struct tiering *t = space->tiering;
	uint32_t steps = INDEX_STEP_KEYS, age;
	bool all = true;

	for (uint32_t looks = FREE_LOOKS; *at < slots && steps && looks; looks--, ++*at) {
		uint32_t entry = first + *at;

		if (slots_is_free(space->slots, v->id, *at))
			continue;
		steps--;
		if (!value_age(space, entry, &age))
			return false;
		if (!tiering_is_clean(t, entry)) {
			spill_ask(t, entry);
			all = false;
		} else if (!look_only && !demote_value(t, entry)) {
			return false;
		}
	}
	return all;
}

/* Under the lock: the slots from *at on, as many as one stay may have. False: one is in use. With @look_only none goes. */
static bool some_slots(struct space *space, const struct victim *v, uint32_t slots, uint32_t first, uint32_t *at, bool look_only)
{
	uint32_t steps = INDEX_STEP_KEYS, looks = FREE_LOOKS, age;
	struct index_sink sink = space_sink(space);

	if (tiered(space))
		return some_to_disk(space, v, slots, first, at, look_only);
	for (; *at < slots && steps && looks; looks--) {
		uint32_t entry = first + *at;
		int r = 0;

		if (slots_is_free(space->slots, v->id, *at)) {
			++*at;
			continue;
		}
		if (look_only) {
			bool goes = index_value_age(space->index, entry, &age) && !index_value_kept(space->index, entry, &steps);

			r = goes ? 0 : INDEX_E_BUSY;
			steps -= steps > 0;
		} else {
			r = index_evict_value(space->index, entry, v->old, &steps, &sink);
		}
		if (r == INDEX_E_MORE)
			break;
		if (r || (!look_only && !slots_is_free(space->slots, v->id, *at)))
			return false;
		++*at;
	}
	return true;
}

static bool walk(struct space *space, const struct victim *v, bool (*stop)(const struct space *), bool look_only)
{
	uint32_t at = 0, slots = 1;
	bool ok = true;

	while (ok && at < slots) {
		struct slots_grant g;

		lock_take(&space->lock);
		uint64_t before = index_counters(space->index)->victims_freed;

		slots_grant_get(space->slots, v->id, &g);
		slots = g.slots;
		space_notes_begin(space);
		ok = !(stop && stop(space)) && some_slots(space, v, slots, g.first_entry, &at, look_only);
		space->stats.values_evicted += index_counters(space->index)->victims_freed - before;
		if (!ok)
			slots_grant_reopen(space->slots, v->id);
		if (!ok || (!look_only && at >= slots))
			space_room(space); /* slots that are open again, and what went with it and lay elsewhere */
		space_notes_end(space);
		lock_drop(&space->lock);
		sched_yield(); /* requests first */
	}
	return ok;
}

bool victim_empty(struct space *space, const struct victim *v, bool (*stop)(const struct space *))
{
	return walk(space, v, stop, true) && walk(space, v, stop, false);
}
