/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that one can resume from: listing, finding.
 */
#include <errno.h>

#include "index/mix.h"
#include "store/base/clock.h"
#include "store/records_private.h"

#define BATCH_SHIFT 28 /* of nanoseconds: how long a broken chain is believed to be broken */

/* A listing under way: the record that is judged, if any. */
struct listing {
	struct space *space;
	uint32_t *cursor;
	struct record_label *ret;
	uint32_t count, capacity;
	uint32_t batch;
	bool walking;
	struct index_walk walk;
};

/* Not 0, and another one for another listing or a later time, but for a chance in 2^31. */
static uint32_t batch_of(uint64_t listing)
{
	uint64_t time = clock_now_ns() >> BATCH_SHIFT;

	return (uint32_t)mix_64(listing ^ 0x9e3779b97f4a7c15ull, time ^ 0xd6e8feb86659fd93ull) | 1u;
}

/* One stay under the lock: false at the end. */
static bool list_some(struct listing *l)
{
	struct index *index = l->space->index;
	uint32_t budget = INDEX_STEP_KEYS;
	bool more = true;

	lock_take(&l->space->lock);
	while (budget && more && l->count < l->capacity) {
		if (!l->walking) {
			uint32_t before = *l->cursor, number = index_next_record(index, l->cursor);
			uint32_t looked = *l->cursor - before;

			budget -= looked < budget ? looked : budget;
			more = number != INDEX_NONE || *l->cursor < index_record_limit(index);
			if (number == INDEX_NONE)
				continue;
			index_walk_begin(&l->walk, number, l->batch);
			l->walking = true;
		}
		int r = index_record_restorable(index, &l->walk, &budget);

		l->walking = r == INDEX_E_MORE;
		if (r == 1) {
			struct record_label *label = &l->ret[l->count++];

			label->number = l->walk.record;
			label->generation = l->walk.generation;
			index_record_name(index, label->number, &label->consumed, &label->endpoint);
		}
	}
	lock_drop(&l->space->lock);
	return more;
}

uint32_t space_checkpoint_list(struct space *space, uint64_t listing, uint32_t *cursor, struct record_label *ret,
			       uint32_t capacity)
{
	struct listing l = {
		.space = space,
		.cursor = cursor,
		.ret = ret,
		.capacity = capacity,
		.batch = batch_of(listing),
	};

	while (l.count < capacity && (list_some(&l) || l.walking))
		;
	return l.count;
}

/* Judges @number, which was current under the lock that is held; the lock is dropped. */
static int judge_and_drop(struct space *space, uint32_t number, struct record_info *ret)
{
	struct index_walk walk;
	int r;

	index_walk_begin(&walk, number, 0);
	for (;;) {
		uint32_t budget = INDEX_STEP_KEYS;

		r = index_record_restorable(space->index, &walk, &budget);
		if (r != INDEX_E_MORE)
			break;
		lock_drop(&space->lock);
		lock_take(&space->lock);
	}
	if (r)
		record_describe(space, number, ret);
	lock_drop(&space->lock);
	return r ? 0 : -ENOENT;
}

int space_checkpoint_find(struct space *space, const struct key *endpoint, struct record_info *ret)
{
	uint32_t number;

	lock_take(&space->lock);
	number = index_find_endpoint(space->index, endpoint);
	if (number != INDEX_NONE)
		return judge_and_drop(space, number, ret);
	lock_drop(&space->lock);
	return -ENOENT;
}

int space_checkpoint_get(struct space *space, uint32_t number, uint32_t generation, struct record_info *ret)
{
	lock_take(&space->lock);
	if (record_current(space, number, generation))
		return judge_and_drop(space, number, ret);
	lock_drop(&space->lock);
	return -ENOENT;
}
