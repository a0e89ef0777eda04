/* SPDX-License-Identifier: Apache-2.0
 *
 * TOUCH, REMOVE, PIN, DRAIN, RESET.
 */
#include "store/manage.h"
#include "store/tiering.h"

#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/seating.h"
#include "store/session_private.h"
#include "store/ticket.h"
#include "store/space.h"

#define RETIRE_STAYS 16u        /* under the lock, in one step of RESET */
#define RETIRE_STAYS_MORE 2u    /* after another request */
#define RETIRE_STAYS_TICK 4096u /* in one tick of the maintenance */

/* Keys of one stay under the lock. */
struct chunk {
	uint32_t count;
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];
};

/* Without the lock: keys from number @at of @keys on, each read once, with the lines that their look-up touches. */
static void chunk_fetch(struct chunk *k, const struct space *space, const struct key *keys, uint32_t at, uint32_t key_count)
{
	k->count = key_count - at > INDEX_STEP_KEYS ? INDEX_STEP_KEYS : key_count - at;
	memcpy(k->keys, &keys[at], k->count * sizeof(k->keys[0]));
	__asm__ __volatile__("" : : "r"(k->keys) : "memory"); /* the copy is what is used from here on */
	index_prefetch(space->index, k->keys, k->count, k->hashes);
}

static int check_write(const struct session *session, struct why *why)
{
	return session->read_only ? why_set(why, EROFS, "the session was opened read-only") : 0;
}

/* ---- TOUCH ------------------------------------------------------------------------------------------------------ */

int touch_begin(struct touch *call, struct why *why)
{
	struct space *space = call->session->space;

	if (!call->key_count)
		return why_set(why, EINVAL, "an empty batch: 0 keys");
	call->key = call->touched = 0;
	lock_take(&space->lock);
	call->tick = index_tick(space->index);
	lock_drop(&space->lock);
	return STEP_MORE;
}

/* Under the lock: one touch for a stretch of a record, as GET_START does. */
static void touch_chunk(struct touch *call, const struct chunk *k)
{
	struct index *index = call->session->space->index;
	struct index_hit hits[INDEX_STEP_KEYS];

	index_lookup_hashed(index, k->keys, k->hashes, k->count, ~0u, false, hits);
	index_prefetch_uses(index, hits, k->count);
	for (uint32_t i = 0; i < k->count; i++) {
		uint32_t record = hits[i].present ? hits[i].record : INDEX_NONE;

		if (record == INDEX_NONE) { /* a row alone? */
			record = index_find_row(index, &k->keys[i], ~0u);
			if (record != INDEX_NONE)
				index_touch(index, record, INDEX_PAGE_ROW, call->tick);
		} else if (i + 1 == k->count || hits[i + 1].record != record || hits[i + 1].page < hits[i].page) {
			index_touch(index, record, hits[i].page, call->tick);
		}
		call->touched += record != INDEX_NONE;
	}
}

int touch_step(struct touch *call, struct why *why)
{
	struct space *space = call->session->space;
	uint32_t stop = call->key + PUT_STEP_KEYS;
	struct chunk k;

	(void)why;
	while (call->key < call->key_count && call->key < stop) {
		chunk_fetch(&k, space, call->keys, call->key, call->key_count);
		lock_take(&space->lock);
		touch_chunk(call, &k);
		lock_drop(&space->lock);
		call->key += k.count;
	}
	return call->key < call->key_count ? STEP_MORE : 0;
}

/* ---- REMOVE ----------------------------------------------------------------------------------------------------- */

int removal_begin(struct removal *call, struct why *why)
{
	const struct layout *layout = call->session->space->layout;
	int r = check_write(call->session, why);

	if (r)
		return r;
	if (!call->key_count)
		return why_set(why, EINVAL, "an empty batch: 0 keys");
	if (call->class_mask >> layout->classes)
		return why_set(why, EINVAL, "class_mask: 0x%x; the layout has %u classes", call->class_mask, layout->classes);
	if (!call->class_mask)
		call->class_mask = (1u << layout->classes) - 1;
	call->key = call->removed = call->absent = call->busy = 0;
	call->values = 0;
	return STEP_MORE;
}

static uint32_t removal_note(struct removal *call, enum index_removal what)
{
	switch (what) {
	case INDEX_REMOVED:
		call->removed++;
		return REMOVAL_DONE;
	case INDEX_ABSENT:
		call->absent++;
		return REMOVAL_ABSENT;
	case INDEX_BUSY:
		break;
	}
	call->busy++;
	return REMOVAL_BUSY;
}

/* Under the lock: keys of the chunk until INDEX_STEP_KEYS values have gone (one key may have more). Returns how many. */
static uint32_t removal_chunk(struct removal *call, const struct chunk *k)
{
	struct space *space = call->session->space;
	struct index_sink sink = space_sink(space);
	uint32_t i = 0, gone = 0;

	for (; i < k->count && gone < INDEX_STEP_KEYS; i++) {
		uint32_t values, answer;

		answer = removal_note(call, index_remove(space->index, &k->keys[i], k->hashes[i], call->class_mask, &sink, &values));
		if (call->answers)
			call->answers[call->key + i] = answer;
		gone += values;
	}
	call->values += gone;
	space->stats.values_removed += gone;
	if (gone)
		space_room(space);
	return i;
}

int removal_step(struct removal *call, struct why *why)
{
	struct space *space = call->session->space;
	uint32_t stop = call->key + PUT_STEP_KEYS;
	struct chunk k;

	(void)why;
	while (call->key < call->key_count && call->key < stop) {
		chunk_fetch(&k, space, call->keys, call->key, call->key_count);
		lock_take(&space->lock);
		call->key += removal_chunk(call, &k);
		lock_drop(&space->lock);
	}
	return call->key < call->key_count ? STEP_MORE : 0;
}

/* ---- PIN -------------------------------------------------------------------------------------------------------- */

uint64_t space_pin_limit(const struct space *space)
{
	return space->floor_bytes / MANAGE_PIN_PART;
}

int space_hold(struct space *space, uint32_t record, bool hold, bool *ret_changed, struct why *why)
{
	struct host_event event = { .kind = hold ? HOST_EVENT_PINNED : HOST_EVENT_UNPINNED };
	uint64_t pinned = index_held_bytes(space->index), bytes = index_hold_bytes(space->index, record);

	lock_assert_held(&space->lock);
	*ret_changed = hold != !!(index_record(space->index, record)->flags & RECORD_FLAG_HELD);
	if (!*ret_changed)
		return 0;
	if (hold && pinned + bytes > space_pin_limit(space)) {
		*ret_changed = false;
		return why_set(why, ENOSPC, "the record takes %llu bytes and %llu are pinned; at most %llu may be, a tenth of "
			       "the namespace's floor of %llu", (unsigned long long)bytes, (unsigned long long)pinned,
			       (unsigned long long)space_pin_limit(space), (unsigned long long)space->floor_bytes);
	}
	index_hold(space->index, record, hold);
	if (space->tiering && tiering_file(space->tiering, record)->id)
		catalogue_pin(space->tiering->catalogue, tiering_file(space->tiering, record)->id, hold);
	index_record_name(space->index, record, &event.consumed, &event.endpoint);
	space_note(space, &event);
	if (!hold)
		space_room(space);
	return 0;
}

int pinning_begin(struct pinning *call, struct why *why)
{
	int r = check_write(call->session, why);

	if (r)
		return r;
	if (!call->key_count)
		return why_set(why, EINVAL, "an empty batch: 0 keys");
	if (call->flags & ~(PINNING_RELEASE | PINNING_ENDPOINTS))
		return why_set(why, EINVAL, "flags: 0x%x has unknown bits; known are 0x%x", call->flags,
			       PINNING_RELEASE | PINNING_ENDPOINTS);
	call->key = call->changed = call->absent = 0;
	call->pinned_bytes = 0;
	call->limit_bytes = space_pin_limit(call->session->space);
	call->refused.error = 0;
	return STEP_MORE;
}

/* Under the lock. */
static uint32_t pinning_key(struct pinning *call, const struct key *key, const struct index_hit *hit)
{
	struct space *space = call->session->space;
	struct why why = WHY_INIT;
	uint32_t record = INDEX_NONE;
	bool changed;

	if (call->flags & PINNING_ENDPOINTS)
		record = index_find_endpoint(space->index, key);
	else if (hit->present)
		record = hit->record;
	if (record == INDEX_NONE || !index_record_visible(space->index, record)) {
		call->absent++;
		return PINNING_ABSENT;
	}
	if (space_hold(space, record, !(call->flags & PINNING_RELEASE), &changed, &why)) {
		if (!call->refused.error)
			call->refused = why;
		return PINNING_NOROOM;
	}
	call->changed += changed;
	return PINNING_DONE;
}

int pinning_step(struct pinning *call, struct why *why)
{
	struct space *space = call->session->space;
	uint32_t stop = call->key + PUT_STEP_KEYS;
	struct index_hit hits[INDEX_STEP_KEYS];
	struct chunk k;

	while (call->key < call->key_count && call->key < stop) {
		chunk_fetch(&k, space, call->keys, call->key, call->key_count);
		lock_take(&space->lock);
		index_lookup_hashed(space->index, k.keys, k.hashes, k.count, ~0u, false, hits);
		for (uint32_t i = 0; i < k.count; i++) {
			uint32_t answer = pinning_key(call, &k.keys[i], &hits[i]);

			if (call->answers)
				call->answers[call->key + i] = answer;
		}
		call->pinned_bytes = index_held_bytes(space->index);
		lock_drop(&space->lock);
		call->key += k.count;
	}
	if (call->key < call->key_count)
		return STEP_MORE;
	if (!call->refused.error)
		return 0;
	*why = call->refused;
	return -why->error;
}

/* ---- DRAIN, RESET ----------------------------------------------------------------------------------------------- */

int drain(struct session *session, struct why *why)
{
	return check_write(session, why);
}

/* One stay under the lock. False: nothing is left that could go now. */
static bool retire_once(struct space *space, uint64_t *values)
{
	struct index_sink sink = space_sink(space);
	uint64_t before = *values;
	bool more;

	lock_take(&space->lock);
	more = index_retire(space->index, &sink, values);
	space->stats.values_reset += *values - before;
	if (*values != before)
		space_room(space);
	if (!index_hidden(space->index))
		atomic_store(&space->hidden, false);
	lock_drop(&space->lock);
	return more;
}

static void retire(struct space *space, uint32_t stays)
{
	uint64_t values = 0;

	while (atomic_load(&space->hidden) && stays-- && retire_once(space, &values))
		;
}

void space_retire(struct space *space)
{
	retire(space, RETIRE_STAYS_MORE);
}

void space_maintain(struct space *space)
{
	retire(space, RETIRE_STAYS_TICK);
	seating_sweep(space);
	tickets_run(space->tickets, clock_now_ns());
	put_tickets_run(space->put_tickets, clock_now_ns());
	if (space->blobs)
		blobs_maintain(space->blobs, clock_now_ns());
}

int reset_begin(struct reset *call, struct why *why)
{
	struct space *space = call->session->space;
	struct host_event event = { .kind = HOST_EVENT_RESET };
	int r = check_write(call->session, why);

	killpoint(KILLPOINT_RESET_BEGIN);
	if (!r && space->tiering)
		r = tiering_save_reset(space, why);
	if (r)
		return r;
	killpoint(KILLPOINT_RESET_NOTED);
	call->values = 0;
	call->held = 0;
	lock_take(&space->lock);
	call->generation = event.number = index_reset(space->index);
	killpoint(KILLPOINT_RESET_TABLES);
	if (space->tiering)
		tiering_reset(space->tiering);
	atomic_store(&space->generation, call->generation);
	atomic_store(&space->hidden, true);
	space->stats.resets++;
	demands_reset(space->demands);
	space_note(space, &event);
	space_committed(space); /* who waits for a value of the old generation looks again */
	lock_drop(&space->lock);
	if (space->blobs)
		blobs_reset(space->blobs);
	return STEP_MORE;
}

int reset_step(struct reset *call, struct why *why)
{
	struct space *space = call->session->space;

	(void)why;
	for (uint32_t stays = RETIRE_STAYS; stays; stays--)
		if (!retire_once(space, &call->values)) {
			lock_take(&space->lock);
			call->held = index_hidden(space->index);
			lock_drop(&space->lock);
			return 0;
		}
	return STEP_MORE;
}
