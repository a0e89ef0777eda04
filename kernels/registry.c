/* SPDX-License-Identifier: Apache-2.0
 *
 * A sorted list of registrations: a few thousand at most, looked up once a value.
 */
#include "kernels/registry.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/say.h"

#define CLAIM_STEP 1024u /* values looked up in one stay under the lock */

typedef unsigned long long ull;

int registry_init(struct registry *registry)
{
	memset(registry, 0, sizeof(*registry));
	pthread_mutex_init(&registry->lock, NULL);
	pthread_cond_init(&registry->idle, NULL);
	return 0;
}

void registry_deinit(struct registry *registry)
{
	assert(registry->count == 0);
	free(registry->sorted);
	pthread_mutex_destroy(&registry->lock);
	pthread_cond_destroy(&registry->idle);
}

/* (lock) The first one that ends behind @address. */
static uint32_t place_of(const struct registry *registry, uint64_t address)
{
	uint32_t low = 0, high = registry->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (registry->sorted[middle]->end > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* (lock) */
static int insert(struct registry *registry, uint32_t at, struct registration *registration)
{
	if (registry->count == registry->room) {
		uint32_t room = registry->room ? registry->room * 2 : 64;
		struct registration **more = realloc(registry->sorted, room * sizeof(*more));

		if (!more)
			return gpu_say(ENOMEM, "no memory for a list of %u registrations", room);
		registry->sorted = more;
		registry->room = room;
	}
	memmove(&registry->sorted[at + 1], &registry->sorted[at], (registry->count - at) * sizeof(*registry->sorted));
	registry->sorted[at] = registration;
	registry->count++;
	registry->bytes += registration->end - registration->begin;
	return 0;
}

/* (lock) */
static void take_out(struct registry *registry, struct registration *registration)
{
	uint32_t at = place_of(registry, registration->begin);

	assert(at < registry->count && registry->sorted[at] == registration);
	registry->count--;
	registry->bytes -= registration->end - registration->begin;
	memmove(&registry->sorted[at], &registry->sorted[at + 1], (registry->count - at) * sizeof(*registry->sorted));
	free(registration);
}

/* (lock) The one that lies exactly there. NULL: there is none; *at: where it would be. */
static struct registration *exact(const struct registry *registry, uint64_t begin, uint64_t end, uint32_t *at)
{
	struct registration *found;

	*at = place_of(registry, begin);
	found = *at < registry->count ? registry->sorted[*at] : NULL;
	return found && found->begin == begin && found->end == end ? found : NULL;
}

/* (lock) */
static int want_new(struct registry *registry, uint32_t at, uint64_t begin, uint64_t end, uint64_t generation,
	struct registration **ret)
{
	struct registration *made;
	int r;

	if (at < registry->count && registry->sorted[at]->begin < end)
		return gpu_say(EINVAL, "0x%llx..0x%llx overlaps what is registered at 0x%llx..0x%llx", (ull)begin, (ull)end,
			(ull)registry->sorted[at]->begin, (ull)registry->sorted[at]->end);
	made = calloc(1, sizeof(*made));
	if (!made)
		return gpu_say(ENOMEM, "no memory for a registration");
	*made = (struct registration){.begin = begin, .end = end, .generation = generation, .holders = 1, .busy = true};
	r = insert(registry, at, made);
	if (r) {
		free(made);
		return r;
	}
	*ret = made;
	return REGISTRY_NEW;
}

/* (lock) */
static int want_known(struct registration *found, uint64_t generation)
{
	if (found->generation == generation) {
		found->holders++;
		return REGISTRY_HELD;
	}
	if (found->users)
		return gpu_say(EBUSY, "%u copies use the memory at 0x%llx in generation %llu", found->users,
			(ull)found->begin, (ull)found->generation);
	found->busy = true;
	found->generation = generation;
	found->holders = 1;
	return REGISTRY_ANEW;
}

int registry_want(struct registry *registry, uint64_t begin, uint64_t bytes, uint64_t generation, struct registration **ret)
{
	struct registration *found;
	uint32_t at;
	int r;

	if (bytes == 0 || begin % 4096 || bytes % 4096 || begin + bytes < begin)
		return gpu_say(EINVAL, "%llu bytes at 0x%llx are no whole pages of memory", (ull)bytes, (ull)begin);
	pthread_mutex_lock(&registry->lock);
	while ((found = exact(registry, begin, begin + bytes, &at)) && found->busy)
		pthread_cond_wait(&registry->idle, &registry->lock);
	if (found) {
		*ret = found;
		r = want_known(found, generation);
	} else {
		r = want_new(registry, at, begin, begin + bytes, generation, ret);
	}
	pthread_mutex_unlock(&registry->lock);
	return r;
}

void registry_settle(struct registry *registry, struct registration *registration, bool failed, bool read_only, bool foreign)
{
	pthread_mutex_lock(&registry->lock);
	assert(registration->busy);
	registration->busy = false;
	registration->read_only = read_only;
	registration->foreign = foreign;
	if (failed)
		take_out(registry, registration);
	pthread_cond_broadcast(&registry->idle);
	pthread_mutex_unlock(&registry->lock);
}

/* (lock) Until nobody asks the driver about any of them. */
static void await_idle(struct registry *registry, const struct piece *pieces, uint32_t count)
{
	uint32_t i = 0, at;

	while (i < count) {
		const struct registration *found = exact(registry, pieces[i].begin, pieces[i].begin + pieces[i].bytes, &at);

		i++;
		if (!found || !found->busy)
			continue;
		pthread_cond_wait(&registry->idle, &registry->lock);
		i = 0; /* those before may be busy by now */
	}
}

/* (lock) May it have one holder less? piece->last: what is to have it, or NULL. */
static int judge_drop(const struct registry *registry, struct piece *piece, bool unmapping)
{
	uint32_t at;
	struct registration *found = exact(registry, piece->begin, piece->begin + piece->bytes, &at);
	bool theirs = found && found->generation != piece->generation;

	piece->last = theirs ? NULL : found;
	if (unmapping && (!found || theirs))
		return 0;
	if (!found)
		return gpu_say(ENOENT, "%llu bytes at 0x%llx are not registered", (ull)piece->bytes, (ull)piece->begin);
	if (theirs)
		return gpu_say(ESTALE, "the memory at 0x%llx is registered in generation %llu, not %llu", (ull)piece->begin,
			(ull)found->generation, (ull)piece->generation);
	if (found->users && (unmapping || found->holders == 1))
		return gpu_say(EBUSY, "%u copies use the memory at 0x%llx", found->users, (ull)piece->begin);
	return 0;
}

int registry_drop(struct registry *registry, struct piece *pieces, uint32_t count, bool unmapping)
{
	int r = 0;

	pthread_mutex_lock(&registry->lock);
	await_idle(registry, pieces, count);
	for (uint32_t i = 0; i < count && !r; i++)
		r = judge_drop(registry, &pieces[i], unmapping);
	for (uint32_t i = 0; i < count && !r; i++) {
		struct registration *found = pieces[i].last;

		if (!found)
			continue;
		assert(!found->busy);
		if (--found->holders == 0)
			found->busy = true;
		else
			pieces[i].last = NULL;
	}
	pthread_mutex_unlock(&registry->lock);
	return r;
}

void registry_forget(struct registry *registry, struct registration *registration)
{
	registry_settle(registry, registration, true, false, false);
}

struct registration *registry_any(struct registry *registry)
{
	struct registration *found = NULL;

	pthread_mutex_lock(&registry->lock);
	if (registry->count > 0) {
		found = registry->sorted[registry->count - 1];
		assert(!found->busy && found->users == 0);
		found->busy = true;
	}
	pthread_mutex_unlock(&registry->lock);
	return found;
}

/* ---- what copies use -------------------------------------------------------------------------------------------- */

static int remember(struct spans *spans, uint32_t *room, struct registration *registration)
{
	if (spans->count == *room) {
		uint32_t more = *room ? *room * 2 : 16;
		struct registration **list = realloc(spans->list, more * sizeof(*list));

		if (!list)
			return gpu_say(ENOMEM, "no memory for a list of %u registrations", more);
		spans->list = list;
		*room = more;
	}
	spans->list[spans->count++] = registration;
	return 0;
}

static bool usable(const struct registry *registry, uint32_t at, uint64_t address)
{
	return at < registry->count && registry->sorted[at]->begin <= address && registry->sorted[at]->end > address &&
	       !registry->sorted[at]->busy;
}

/* (lock) All registrations of one value, each used once more. */
static int claim_value(struct registry *registry, uint32_t number, uint64_t value, uint64_t bytes, bool write,
	struct spans *spans, uint32_t *room)
{
	struct registration *last = spans->count ? spans->list[spans->count - 1] : NULL;
	uint64_t reached = value, end = value + bytes;
	uint32_t at;

	if (last && last->begin <= value && last->end >= end) /* nearly always, and it was judged already */
		return 0;
	at = place_of(registry, value);
	while (reached < end) {
		struct registration *found;
		int r;

		if (!usable(registry, at, reached) && reached == value)
			return gpu_say(EFAULT, "value %u: the memory at 0x%llx is not registered", number, (ull)value);
		if (!usable(registry, at, reached))
			return gpu_say(EFAULT, "value %u: %llu bytes at 0x%llx leave their registration at 0x%llx", number,
				(ull)bytes, (ull)value, (ull)reached);
		found = registry->sorted[at++];
		if (write && found->read_only)
			return gpu_say(EROFS, "value %u: the memory at 0x%llx can only be read", number, (ull)reached);
		r = remember(spans, room, found);
		if (r)
			return r;
		found->users++;
		reached = found->end;
	}
	return 0;
}

static int by_address(const void *a, const void *b)
{
	const struct registration *x = *(struct registration *const *)a, *y = *(struct registration *const *)b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Each once. */
static void tidy_spans(struct registry *registry, struct spans *spans)
{
	uint32_t kept = 0;

	qsort(spans->list, spans->count, sizeof(*spans->list), by_address);
	pthread_mutex_lock(&registry->lock);
	for (uint32_t i = 0; i < spans->count; i++) {
		if (kept > 0 && spans->list[kept - 1] == spans->list[i])
			spans->list[i]->users--;
		else
			spans->list[kept++] = spans->list[i];
	}
	pthread_mutex_unlock(&registry->lock);
	spans->count = kept;
}

int registry_claim(struct registry *registry, const uint64_t *values, uint32_t count, uint64_t bytes, bool write,
	struct spans *ret)
{
	struct spans spans = {0};
	uint32_t room = 0, i = 0;
	int r = 0;

	while (i < count && !r) {
		uint32_t stop = count - i > CLAIM_STEP ? i + CLAIM_STEP : count;

		pthread_mutex_lock(&registry->lock);
		for (; i < stop && !r; i++)
			r = claim_value(registry, i, values[i], bytes, write, &spans, &room);
		pthread_mutex_unlock(&registry->lock);
	}
	if (r) {
		registry_release(registry, &spans);
		return r;
	}
	tidy_spans(registry, &spans);
	*ret = spans;
	return 0;
}

void registry_release(struct registry *registry, struct spans *spans)
{
	pthread_mutex_lock(&registry->lock);
	for (uint32_t i = 0; i < spans->count; i++) {
		assert(spans->list[i]->users > 0);
		spans->list[i]->users--;
	}
	pthread_mutex_unlock(&registry->lock);
	free(spans->list);
	*spans = (struct spans){0};
}

uint64_t spans_end(const struct spans *spans, uint64_t address, uint32_t *at)
{
	uint32_t low = 0, high = spans->count;

	if (*at < spans->count && spans->list[*at]->begin <= address && address < spans->list[*at]->end)
		return spans->list[*at]->end;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (spans->list[middle]->end > address)
			high = middle;
		else
			low = middle + 1;
	}
	assert(low < spans->count && spans->list[low]->begin <= address);
	*at = low;
	return spans->list[low]->end;
}

void registry_counts(struct registry *registry, uint32_t *registrations, uint64_t *bytes)
{
	pthread_mutex_lock(&registry->lock);
	*registrations = registry->count;
	*bytes = registry->bytes;
	pthread_mutex_unlock(&registry->lock);
}
