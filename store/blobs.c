/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs: making and unmaking, units, the map, the order of eviction.
 */
#include "store/blobs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/hash.h"
#include "store/base/memory.h"
#include "store/blobs_private.h"
#include "store/budget.h"
#include "store/put.h"

#define GRANT_UNITS 512u /* what is taken from the budget at a time: 2 MiB */

/* ---- making and unmaking --------------------------------------------------------------------------------------- */

static uint32_t buckets_for(uint32_t count)
{
	uint32_t buckets = 16;

	while (buckets < count)
		buckets *= 2;
	return buckets;
}

static uint64_t limit_bytes(const struct blobs *b)
{
	return (uint64_t)b->unit_limit * BLOBS_UNIT;
}

static int blobs_memory(struct blobs *b, struct why *why)
{
	b->memory = memory_reserve(limit_bytes(b), true);
	b->next_unit = memory_reserve(b->unit_limit * sizeof(*b->next_unit), false);
	b->blob = memory_reserve(b->config.count * sizeof(*b->blob), false);
	b->bucket = memory_reserve((b->bucket_mask + 1ull) * sizeof(*b->bucket), false);
	b->flight = memory_reserve(BLOBS_LOCKS * sizeof(*b->flight), false);
	if (b->memory && b->next_unit && b->blob && b->bucket && b->flight)
		return 0;
	return why_set(why, ENOMEM, "namespace %s: no memory for %u blobs of %llu bytes in all", b->config.space, b->config.count,
		(unsigned long long)limit_bytes(b));
}

/* The share is a floor of its own in the budget. */
static int blobs_promise(struct blobs *b, struct why *why)
{
	uint64_t bytes = limit_bytes(b), floors;

	if (!b->config.budget)
		return 0;
	if (!budget_promise(b->config.budget, &bytes, &floors)) {
		uint64_t budget = b->config.budget->bytes;

		b->config.budget = NULL;
		return why_set(why, ENOSPC,
			"namespace %s: %llu bytes for blobs and the %llu of floors, its own included, exceed the budget of %llu",
			b->config.space, (unsigned long long)bytes, (unsigned long long)floors, (unsigned long long)budget);
	}
	return 0;
}

int blobs_new(const struct blobs_config *config, struct blobs **ret, struct why *why)
{
	struct blobs *b = calloc(1, sizeof(*b));

	if (!b)
		return why_set(why, ENOMEM, "namespace %s: no memory for blobs", config->space);
	b->config = *config;
	b->unit_limit = (uint32_t)(config->bytes / BLOBS_UNIT);
	b->bucket_mask = buckets_for(config->count) - 1;
	b->free_blob = b->free_unit = b->hottest = b->coldest = BLOBS_NONE;
	digest_random(&b->seed, sizeof(b->seed));
	lock_init(&b->lock, LOCK_BLOBS);
	int r = blobs_promise(b, why);

	r = r ? r : blobs_memory(b, why);
	if (r) {
		blobs_free(&b);
		return r;
	}
	*ret = b;
	return 0;
}

void blobs_free(struct blobs **bp)
{
	struct blobs *b = *bp;

	*bp = NULL;
	if (!b)
		return;
	if (b->config.budget)
		budget_forget(b->config.budget, limit_bytes(b), (uint64_t)b->granted_units * BLOBS_UNIT);
	memory_release(&b->memory, limit_bytes(b));
	memory_release(&b->next_unit, b->unit_limit * sizeof(*b->next_unit));
	memory_release(&b->blob, b->config.count * sizeof(*b->blob));
	memory_release(&b->bucket, (b->bucket_mask + 1ull) * sizeof(*b->bucket));
	memory_release(&b->flight, BLOBS_LOCKS * sizeof(*b->flight));
	lock_destroy(&b->lock);
	free(b);
}

bool blobs_news(struct blobs *b)
{
	lock_assert_held(&b->lock);
	bool tell = b->waiting || b->asked;

	b->asked = false;
	return tell;
}

void blobs_tell(struct blobs *b)
{
	if (b->config.changed)
		b->config.changed(b->config.context);
}

/* ---- the map --------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(struct blobs *b, const struct key *key)
{
	return &b->bucket[hash_64(key, sizeof(*key), b->seed) & b->bucket_mask];
}

static void map_enter(struct blobs *b, struct blob *blob)
{
	uint32_t *bucket = bucket_of(b, &blob->info.name.key);

	blob->chain = *bucket;
	*bucket = blob_number(b, blob) + 1;
}

static void map_leave(struct blobs *b, struct blob *blob)
{
	uint32_t *at = bucket_of(b, &blob->info.name.key);

	while (*at != blob_number(b, blob) + 1)
		at = &b->blob[*at - 1].chain;
	*at = blob->chain;
}

struct blob *blob_look(struct blobs *b, const struct key *key)
{
	uint32_t at = *bucket_of(b, key);

	lock_assert_held(&b->lock);
	while (at && memcmp(&b->blob[at - 1].info.name.key, key, sizeof(*key)) != 0)
		at = b->blob[at - 1].chain;
	if (!at)
		return NULL;
	struct blob *blob = &b->blob[at - 1];

	if (blob->reset_number == b->reset_number)
		return blob;
	blob_leave(b, blob); /* what a reset left */
	return NULL;
}

/* ---- the order ------------------------------------------------------------------------------------------------- */

static void order_enter(struct blobs *b, struct blob *blob)
{
	uint32_t number = blob_number(b, blob);

	assert(!blob->ordered);
	blob->ordered = true;
	blob->hotter = BLOBS_NONE;
	blob->colder = b->hottest;
	if (b->hottest != BLOBS_NONE)
		b->blob[b->hottest].hotter = number;
	else
		b->coldest = number;
	b->hottest = number;
	b->ordered_units += blob->units;
}

static void order_leave(struct blobs *b, struct blob *blob)
{
	if (!blob->ordered)
		return;
	blob->ordered = false;
	if (blob->hotter != BLOBS_NONE)
		b->blob[blob->hotter].colder = blob->colder;
	else
		b->hottest = blob->colder;
	if (blob->colder != BLOBS_NONE)
		b->blob[blob->colder].hotter = blob->hotter;
	else
		b->coldest = blob->hotter;
	b->ordered_units -= blob->units;
}

/* ---- units ----------------------------------------------------------------------------------------------------- */

uint32_t blob_take_unit(struct blobs *b, struct blob *blob)
{
	uint32_t unit = b->free_unit;

	lock_assert_held(&b->lock);
	assert(blob->taken < blob->units);
	if (unit != BLOBS_NONE) {
		b->free_unit = b->next_unit[unit];
		b->free_units--;
	} else {
		unit = b->unit_high++;
		assert(unit < b->granted_units);
	}
	b->next_unit[unit] = BLOBS_NONE;
	if (blob->last == BLOBS_NONE)
		blob->first = unit;
	else
		b->next_unit[blob->last] = unit;
	blob->last = unit;
	blob->taken++;
	return unit;
}

static void blob_free(struct blobs *b, struct blob *blob)
{
	assert(!blob->readers && !blob->ordered);
	if (blob->last != BLOBS_NONE) {
		b->next_unit[blob->last] = b->free_unit;
		b->free_unit = blob->first;
		b->free_units += blob->taken;
	}
	b->charged -= blob->units;
	b->blobs--;
	blob->state = BLOB_FREE;
	blob->units = blob->taken = 0;
	blob->chain = b->free_blob;
	b->free_blob = blob_number(b, blob);
}

/* More of the share is taken from the budget, as far as it goes. */
static void grow(struct blobs *b, uint32_t units)
{
	uint32_t wanted = (units + GRANT_UNITS - 1) / GRANT_UNITS * GRANT_UNITS, left = b->unit_limit - b->granted_units;

	if (wanted > left)
		wanted = left;
	if (b->config.budget && budget_take(b->config.budget, limit_bytes(b), (uint64_t)b->granted_units * BLOBS_UNIT,
					(uint64_t)wanted * BLOBS_UNIT) != BUDGET_OK) {
		if (b->config.hungry)
			b->config.hungry(b->config.context);
		return;
	}
	b->granted_units += wanted;
}

/* ---- their life ------------------------------------------------------------------------------------------------ */

static struct blob *blob_new(struct blobs *b, uint32_t units)
{
	uint32_t number = b->free_blob;

	if (number != BLOBS_NONE)
		b->free_blob = b->blob[number].chain;
	else
		number = b->blob_high++;
	struct blob *blob = &b->blob[number];

	*blob = (struct blob){.state = BLOB_FILLING,
		.units = units,
		.first = BLOBS_NONE,
		.last = BLOBS_NONE,
		.reset_number = b->reset_number};
	b->blobs++;
	b->charged += units;
	b->filling_units += units;
	return blob;
}

static int no_room(const struct blobs *b, uint32_t units, struct why *why)
{
	if (b->blobs == b->config.count && b->coldest == BLOBS_NONE)
		return why_set(why, ENOSPC, "all %u blobs that there may be are being written or read", b->config.count);
	if (b->granted_units < b->unit_limit)
		return why_set(why, ENOSPC,
			"%llu bytes are wanted; other namespaces hold more than their floors, and blobs have got %llu of their "
			"%llu bytes",
			(unsigned long long)units * BLOBS_UNIT, (unsigned long long)b->granted_units * BLOBS_UNIT,
			(unsigned long long)limit_bytes(b));
	return why_set(why, ENOSPC, "%llu bytes are wanted, and %llu of the %llu for blobs are being written or read",
		(unsigned long long)units * BLOBS_UNIT, (unsigned long long)(b->charged - b->ordered_units) * BLOBS_UNIT,
		(unsigned long long)limit_bytes(b));
}

int blob_room(struct blobs *b, uint32_t units, struct blob **ret, struct why *why)
{
	lock_assert_held(&b->lock);
	if (b->filling_units + units > b->unit_limit / BLOBS_LARGEST_PART)
		return why_set(why, ENOSPC, "%llu bytes are wanted and %llu are being written; the limit of both is %llu",
			(unsigned long long)units * BLOBS_UNIT, (unsigned long long)b->filling_units * BLOBS_UNIT,
			(unsigned long long)(b->unit_limit / BLOBS_LARGEST_PART) * BLOBS_UNIT);
	if (b->charged + units > b->granted_units)
		grow(b, b->charged + units - b->granted_units);
	if (b->charged - b->ordered_units + units > b->granted_units)
		return no_room(b, units, why);
	for (unsigned n = 0; b->charged + units > b->granted_units || b->blobs == b->config.count; n++) {
		if (b->coldest == BLOBS_NONE)
			return no_room(b, units, why);
		if (n == BLOBS_STEP_EVICT)
			return STEP_MORE;
		b->counts.blobs_evicted += b->blob[b->coldest].reset_number == b->reset_number;
		blob_leave(b, &b->blob[b->coldest]);
	}
	*ret = blob_new(b, units);
	return 0;
}

void blob_enter(struct blobs *b, struct blob *blob)
{
	lock_assert_held(&b->lock);
	assert(blob->state == BLOB_FILLING && blob->taken == blob->units);
	b->filling_units -= blob->units;
	blob->state = BLOB_READY;
	blob->info.version = ++b->version;
	blob->info.created_s = blob->info.used_s = (int64_t)clock_wall_s();
	map_enter(b, blob);
	order_enter(b, blob);
	b->found++;
}

void blob_leave(struct blobs *b, struct blob *blob)
{
	lock_assert_held(&b->lock);
	assert(blob->state == BLOB_READY);
	map_leave(b, blob);
	order_leave(b, blob);
	b->found--;
	blob->state = BLOB_DYING;
	if (!blob->readers)
		blob_free(b, blob);
}

void blob_name_change(struct blobs *b, struct blob *blob, const struct blob_name *to)
{
	lock_assert_held(&b->lock);
	map_leave(b, blob);
	blob->info.name = *to;
	map_enter(b, blob);
}

void blob_give_up(struct blobs *b, struct blob *blob)
{
	lock_assert_held(&b->lock);
	assert(blob->state == BLOB_FILLING);
	b->filling_units -= blob->units;
	blob_free(b, blob);
}

void blob_hold(struct blobs *b, struct blob *blob)
{
	lock_assert_held(&b->lock);
	order_leave(b, blob);
	blob->readers++;
}

void blob_unhold(struct blobs *b, struct blob *blob)
{
	lock_assert_held(&b->lock);
	assert(blob->readers);
	if (--blob->readers)
		return;
	if (blob->state == BLOB_DYING)
		blob_free(b, blob);
	else if (blob->reset_number != b->reset_number)
		blob_leave(b, blob);
	else
		order_enter(b, blob);
}

/* ---- around ---------------------------------------------------------------------------------------------------- */

void blobs_session_end(struct blobs *b, uint64_t session)
{
	bool tell;

	lock_take(&b->lock);
	for (uint32_t i = 0; i < BLOBS_TRANSFERS && b->transfers; i++)
		if (b->transfer[i].session == session)
			transfer_end(b, &b->transfer[i]);
	flights_end(b, session);
	tell = blobs_news(b);
	lock_drop(&b->lock);
	if (tell)
		blobs_tell(b);
}

/* What a reset left, from the coldest on: all that is newer is hotter. */
static bool sweep(struct blobs *b)
{
	for (unsigned n = 0; n < BLOBS_STEP_EVICT; n++) {
		if (b->coldest == BLOBS_NONE || b->blob[b->coldest].reset_number == b->reset_number)
			return false;
		blob_leave(b, &b->blob[b->coldest]);
	}
	return true;
}

void blobs_reset(struct blobs *b)
{
	bool more, tell;

	lock_take(&b->lock);
	b->reset_number++;
	flights_end(b, UINT64_MAX);
	tell = blobs_news(b);
	lock_drop(&b->lock);
	if (tell)
		blobs_tell(b);
	do {
		lock_take(&b->lock);
		more = sweep(b);
		lock_drop(&b->lock);
	} while (more);
}

void blobs_maintain(struct blobs *b, uint64_t now_ns)
{
	bool tell;

	lock_take(&b->lock);
	for (uint32_t i = 0; i < BLOBS_TRANSFERS && b->transfers; i++) {
		struct transfer *t = &b->transfer[i];

		if (t->session && !t->busy && now_ns > t->used_ns + b->config.transfer_ttl_ns)
			transfer_end(b, t);
	}
	flights_expire(b, now_ns);
	tell = blobs_news(b);
	lock_drop(&b->lock);
	if (tell)
		blobs_tell(b);
}

void blobs_report(struct blobs *b, struct blobs_report *ret)
{
	lock_take(&b->lock);
	*ret = b->counts;
	ret->transfers = b->transfers;
	ret->locks = b->locks;
	ret->waiting = b->waiting;
	ret->blobs = b->found;
	ret->count_limit = b->config.count;
	ret->bytes = (uint64_t)b->charged * BLOBS_UNIT;
	ret->limit_bytes = limit_bytes(b);
	ret->granted_bytes = (uint64_t)b->granted_units * BLOBS_UNIT;
	lock_drop(&b->lock);
}

/* ---- for tests ------------------------------------------------------------------------------------------------- */

static uint32_t chain_length(const struct blobs *b, uint32_t unit, uint32_t count, uint32_t last)
{
	uint32_t n = 0;

	for (; n < count; n++) {
		assert(unit < b->unit_high);
		assert(n + 1 < count || last == BLOBS_NONE || unit == last);
		unit = b->next_unit[unit];
	}
	return n;
}

static void check_order(const struct blobs *b)
{
	uint32_t before = BLOBS_NONE, units = 0;

	for (uint32_t i = b->hottest; i != BLOBS_NONE; before = i, i = b->blob[i].colder) {
		assert(b->blob[i].ordered && b->blob[i].hotter == before);
		assert(b->blob[i].state == BLOB_READY && !b->blob[i].readers);
		units += b->blob[i].units;
	}
	assert(before == b->coldest && units == b->ordered_units);
}

void blobs_check(struct blobs *b)
{
	uint32_t blobs = 0, found = 0, charged = 0, taken = 0, filling = 0, mapped = 0, free_blobs = 0, locks = 0, transfers = 0;

	lock_take(&b->lock);
	for (uint32_t i = 0; i < b->blob_high; i++) {
		const struct blob *blob = &b->blob[i];

		if (blob->state == BLOB_FREE)
			continue;
		blobs++;
		found += blob->state == BLOB_READY;
		charged += blob->units;
		taken += chain_length(b, blob->first, blob->taken, blob->last);
		filling += blob->state == BLOB_FILLING ? blob->units : 0;
		assert(blob->state == BLOB_FILLING || blob->taken == blob->units);
		assert(blob->state != BLOB_DYING || blob->readers);
		assert(blob->ordered == (blob->state == BLOB_READY && !blob->readers));
	}
	for (uint32_t i = 0; i <= b->bucket_mask; i++)
		for (uint32_t at = b->bucket[i]; at; at = b->blob[at - 1].chain, mapped++)
			assert(b->blob[at - 1].state == BLOB_READY);
	for (uint32_t i = b->free_blob; i != BLOBS_NONE; i = b->blob[i].chain)
		free_blobs++;
	check_order(b);
	assert(blobs == b->blobs && found == b->found && mapped == found && blobs + free_blobs == b->blob_high);
	assert(charged == b->charged && filling == b->filling_units && charged <= b->granted_units);
	assert(b->blobs <= b->config.count && b->granted_units <= b->unit_limit && b->unit_high <= b->granted_units);
	assert(chain_length(b, b->free_unit, b->free_units, BLOBS_NONE) + taken == b->unit_high);
	for (uint32_t i = 0; i < BLOBS_TRANSFERS; i++)
		transfers += b->transfer[i].session != 0;
	for (uint32_t i = 0; i < BLOBS_LOCKS; i++)
		locks += b->flight[i].session != 0;
	assert(transfers == b->transfers && locks == b->locks);
	lock_drop(&b->lock);
}
