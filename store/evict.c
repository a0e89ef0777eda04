/* SPDX-License-Identifier: Apache-2.0
 *
 * Evicting by hand: all that is idle, so many bytes, or one record. All and one go from the disk too; so many bytes are bytes of
 * memory: where there is a disk, what is clean goes on there, and when nothing is, something is written for the next call.
 *
 * All: the records are walked from the newest number down, since who descends from others mostly came after them. When
 * the last of a record's descendants goes it is tried at once, so that one pass lets a whole tree go; a further pass
 * follows while the one before let something go, for WHOLE groups, whose members hang off different records.
 */
#include "store/manage.h"

#include <errno.h>

#include "store/session_private.h"
#include "store/space.h"
#include "store/tiering.h"

#define MAX_PASSES 8u /* others may be putting as fast as this lets go */

/* Where the values of one stay under the lock go. */
struct counting {
	struct space *space;
	uint64_t values, bytes;
	uint64_t records; /* when it began */
};

static void count_freed(void *context, uint32_t entry)
{
	struct counting *c = context;
	struct index_sink sink = space_sink(c->space);

	c->values++;
	if (!c->space->tiering || !tiering_is_place(c->space->tiering, entry))
		c->bytes += slots_slot_bytes(c->space->slots, entry);
	sink.freed(sink.context, entry);
}

/* A stay under the lock begins, and ends. */
static void begin(struct counting *c)
{
	lock_take(&c->space->lock);
	c->records = index_counters(c->space->index)->records;
}

static void end(struct eviction *call, const struct counting *c)
{
	struct space *space = c->space;

	call->values += c->values;
	call->bytes += c->bytes;
	call->records += c->records - index_counters(space->index)->records;
	space->stats.values_evicted += c->values;
	if (c->values)
		space_room(space);
	lock_drop(&space->lock);
}

/* ---- all ------------------------------------------------------------------------------------------------------- */

static void note_refusal(struct eviction *call, uint32_t number)
{
	call->refused++;
	if (call->refusals < EVICTION_REFUSALS)
		call->refusal[call->refusals++] = (struct eviction_refusal){
			number, index_record(call->session->space->index, number)->generation };
}

/* Under the lock: the record goes, and the one that it hangs off is tried next. */
static void evict_one(struct eviction *call, uint32_t number, bool climbing, struct counting *c)
{
	struct index *index = c->space->index;
	struct index_sink sink = { count_freed, c };
	uint32_t parent;

	if (number >= index_record_limit(index) || !index_record_visible(index, number))
		return;
	parent = index_record(index, number)->parent;
	if (!index_evict_record(index, number, &sink, NULL))
		call->climb = parent;
	else if (!climbing)
		note_refusal(call, number);
}

/* One stay under the lock. Returns how many records were looked at. */
static uint32_t evict_some(struct eviction *call)
{
	struct space *space = call->session->space;
	struct counting c = { .space = space };
	uint32_t looked = 0;

	begin(&c);
	while ((call->climb != INDEX_NONE || call->cursor) && looked < INDEX_STEP_KEYS && c.values < INDEX_STEP_KEYS) {
		bool climbing = call->climb != INDEX_NONE;
		uint32_t number = climbing ? call->climb : --call->cursor;

		call->climb = INDEX_NONE;
		evict_one(call, number, climbing, &c);
		looked++;
	}
	end(call, &c);
	return looked;
}

static void pass_begins(struct eviction *call)
{
	struct space *space = call->session->space;

	call->refused = 0;
	call->refusals = 0;
	call->at_start = call->records;
	call->climb = INDEX_NONE;
	lock_take(&space->lock);
	call->cursor = index_record_limit(space->index);
	lock_drop(&space->lock);
}

static int all_step(struct eviction *call)
{
	uint64_t stop = call->values + PUT_STEP_KEYS;
	uint32_t looked = 0;

	while ((call->climb != INDEX_NONE || call->cursor) && looked < PUT_STEP_KEYS && call->values < stop)
		looked += evict_some(call);
	if (call->climb != INDEX_NONE || call->cursor)
		return STEP_MORE;
	if (!call->refused || call->records == call->at_start || ++call->passes == MAX_PASSES)
		return 0;
	pass_begins(call);
	return STEP_MORE;
}

/* ---- so many bytes --------------------------------------------------------------------------------------------- */

static bool no_place(void *context, uint32_t entry)
{
	struct space *space = context;

	return !space->tiering || !tiering_is_place(space->tiering, entry);
}

/* One stay under the lock. False: nothing more is clean and idle. */
static bool demote_coldest(struct eviction *call)
{
	struct space *space = call->session->space;
	uint64_t bytes;

	lock_take(&space->lock);
	bytes = demote_some(space->tiering, call->goal_bytes - call->bytes, &call->values);
	call->bytes += bytes;
	if (!bytes)
		spill_wish(space->tiering, 0, 0);
	space_room(space);
	lock_drop(&space->lock);
	return bytes > 0;
}

static bool has_open_disk(struct space *space)
{
	bool open;

	if (!space->tiering)
		return false;
	lock_take(&space->lock);
	open = !space->tiering->closed;
	lock_drop(&space->lock);
	return open;
}

/* One stay under the lock. False: nothing more may go. */
static bool evict_coldest(struct eviction *call)
{
	struct counting c = { .space = call->session->space };
	struct index_sink sink = { count_freed, &c };
	int r = 0;

	begin(&c);
	while (!r && c.values < INDEX_STEP_KEYS && call->bytes + c.bytes < call->goal_bytes)
		r = index_evict_page(c.space->index, no_place, c.space, &sink);
	end(call, &c);
	return !r;
}

static int bytes_step(struct eviction *call)
{
	uint64_t stop = call->values + PUT_STEP_KEYS;

	while (call->bytes < call->goal_bytes && call->values < stop)
		if (!(has_open_disk(call->session->space) ? demote_coldest(call) : evict_coldest(call)))
			return 0;
	return call->bytes < call->goal_bytes ? STEP_MORE : 0;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

int eviction_begin(struct eviction *call, struct why *why)
{
	if (call->session->read_only)
		return why_set(why, EROFS, "the session was opened read-only");
	call->values = call->bytes = call->records = 0;
	call->passes = 0;
	pass_begins(call);
	return STEP_MORE;
}

int eviction_step(struct eviction *call, struct why *why)
{
	(void)why;
	lock_assert_none_held();
	return call->goal_bytes == EVICTION_ALL ? all_step(call) : bytes_step(call);
}

int eviction_record(struct eviction *call, uint64_t consumed, const struct key *endpoint, struct why *why)
{
	struct counting c = { .space = call->session->space };
	struct index_sink sink = { count_freed, &c };
	struct index *index = c.space->index;
	uint64_t at = 0;
	struct key key;
	uint32_t number;
	int r;

	begin(&c);
	number = index_find_endpoint(index, endpoint);
	if (number != INDEX_NONE)
		index_record_name(index, number, &at, &key);
	if (number == INDEX_NONE || at != consumed || !index_record_visible(index, number))
		r = why_set(why, ENOENT, "there is no such record");
	else
		r = index_evict_record(index, number, &sink, why);
	end(call, &c);
	return r;
}
