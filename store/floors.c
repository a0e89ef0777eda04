/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace's floor, cut into grants.
 */
#include <errno.h>

#include "index/layout_sizing.h"
#include "store/host_private.h"
#include "store/space_make.h"

#define ROUNDS 64u /* of looking for the least that would do: each adds to what lacks, and a few are enough */

/* Tokens that the ready and coming grants of (class, share) hold values for: what the floor is shared out by. */
static uint64_t coverage(const struct space *space, uint32_t class_index, uint32_t share, uint64_t slots)
{
	const struct layout *layout = space->layout;
	uint64_t every = layout_is_row(layout, class_index) ?
				 layout->interval ? layout->interval : LAYOUT_INTERVAL :
				 (uint64_t)layout->class[class_index].every_pages * layout->page_tokens;

	return slots ? slots * every + LAYOUT_MAX_SHARES + share : share; /* those with none first; equal ones in order */
}

/* ---- what one request needs ------------------------------------------------------------------------------------- */

/* Values of each class in each share, and how many they are for. */
struct request {
	uint64_t tokens;
	uint64_t values[LAYOUT_MAX_CLASSES];
};

/* Of the layout's context, or the tokens that sizes are said for. False: they have more bytes than can be counted. */
static bool request_of(const struct layout *layout, struct request *ret)
{
	struct sizing sizing;
	int r;

	layout_sizing(layout, &sizing);
	r = sizing_plan(&sizing); /* of no budget: ENOSPC, and what a request needs is known */
	ret->tokens = sizing.context;
	for (uint32_t c = 0; c < layout->classes; c++)
		ret->values[c] = sizing.class[c].request;
	return r == -ENOSPC;
}

/* Bytes of the grants for @values values of each share of a class. */
static uint64_t class_bytes(const struct layout *layout, uint32_t c, uint64_t values, uint64_t floor)
{
	uint64_t bytes = 0;

	for (uint32_t s = 0; s < layout->class[c].shares; s++) {
		uint32_t slots;
		uint64_t grant = slots_grant_bytes_of(layout, c, s, floor, &slots);

		bytes += (values + slots - 1) / slots * grant;
	}
	return bytes;
}

/* Of the whole, cut as of a floor of @floor. *ret_short: the class with which it passes @budget, page classes first, as sizes say it. */
static uint64_t request_bytes(const struct layout *layout, const struct request *request, uint64_t floor, uint64_t budget,
	uint32_t *ret_short)
{
	uint64_t bytes = 0;
	bool passed = false;

	for (int rows = 0; rows < 2; rows++)
		for (uint32_t c = 0; c < layout->classes; c++) {
			if (layout_is_row(layout, c) != rows)
				continue;
			bytes += class_bytes(layout, c, request->values[c], floor);
			if (bytes > budget && !passed) {
				*ret_short = c;
				passed = true;
			}
		}
	return bytes;
}

/* What a namespace must have at least, whatever its requests are: a grant of each (class, share). */
static struct request least_request(const struct layout *layout)
{
	struct request ret = { 0 };

	for (uint32_t c = 0; c < layout->classes; c++)
		ret.values[c] = 1;
	return ret;
}

/* The least floor, of @floor or more, that holds the request. Larger floors have larger grants, so it is looked for. */
static uint64_t least_floor(const struct layout *layout, const struct request *request, uint64_t floor)
{
	uint32_t none;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t bytes = request_bytes(layout, request, floor, UINT64_MAX, &none);

		if (bytes <= floor)
			break;
		floor = bytes;
	}
	return floor;
}

/* The least budget of a host, of @budget or more, in which a namespace of the layout holds the request. */
static uint64_t least_budget(const struct layout *layout, const struct request *request, uint64_t budget)
{
	struct request least = least_request(layout);
	uint32_t none;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t floor = layout->floor_bytes ? layout->floor_bytes : budget_default(budget, 0);
		uint64_t needs = request_bytes(layout, request, floor, UINT64_MAX, &none) + layout->blobs_bytes;
		uint64_t floors = request_bytes(layout, &least, floor, UINT64_MAX, &none) * BUDGET_DEFAULT_PART;

		if (!layout->floor_bytes && needs < floors)
			needs = floors;
		if (needs <= budget)
			break;
		budget = needs;
	}
	return budget;
}

int space_judge_request(const struct space *space, struct why *why)
{
	const struct layout *layout = space->layout;
	uint64_t memory = space->host->config.memory_bytes, budget = memory - layout->blobs_bytes, bytes;
	struct request request;
	uint32_t c = 0;

	if (!layout->context)
		return 0; /* nobody says how long a request is: a grant of each class is all that must fit */
	if (!request_of(layout, &request))
		return why_set(why, EINVAL, "namespace %s: the values of one request of context, %llu tokens, have more bytes than can be "
			       "counted", space->name, (unsigned long long)layout->context);
	bytes = request_bytes(layout, &request, space->floor_bytes, budget, &c);
	if (bytes <= budget)
		return 0;
	return why_set(why, EINVAL, "namespace %s: one request of context, %llu tokens, can never fit: it needs grants of %llu bytes, and "
		       "class %s passes the %llu that the budget of %llu has for values; the smallest budget that would do is %llu",
		       space->name, (unsigned long long)layout->context, (unsigned long long)bytes, layout->class[c].name,
		       (unsigned long long)budget, (unsigned long long)memory,
		       (unsigned long long)least_budget(layout, &request, memory));
}

/* ---- cutting ---------------------------------------------------------------------------------------------------- */

static int say_too_small(const struct space *space, uint32_t class_index, uint64_t grant, uint64_t left, struct why *why)
{
	const struct layout *layout = space->layout;
	struct request request, least = least_request(layout);

	request_of(layout, &request); /* counted: space_judge_request */
	return why_set(why, EINVAL, "namespace %s: a floor of %llu bytes is too small: class %s needs a grant of %llu and %llu are left; a "
		       "grant of each class and share needs %llu together, a request of %llu tokens %llu", space->name,
		       (unsigned long long)space->floor_bytes, layout->class[class_index].name, (unsigned long long)grant,
		       (unsigned long long)left, (unsigned long long)least_floor(layout, &least, space->floor_bytes),
		       (unsigned long long)request.tokens, (unsigned long long)least_floor(layout, &request, space->floor_bytes));
}

int space_cut_floor(struct space *space, struct why *why)
{
	const struct layout *layout = space->layout;
	uint64_t slots[LAYOUT_MAX_CLASSES][LAYOUT_MAX_SHARES] = { 0 };
	uint64_t left = space->floor_bytes > space->granted_bytes ? space->floor_bytes - space->granted_bytes : 0;
	bool fresh = !space->granted_bytes;
	struct slots_grant grant;
	uint32_t id;

	for (id = 0; id < slots_grant_limit(space->slots); id++)
		if (slots_grant_get(space->slots, id, &grant))
			slots[grant.class_index][grant.share] += grant.slots;

	for (;;) {
		uint32_t class_index = 0, share = 0;
		uint64_t least = UINT64_MAX, bytes;
		int r;

		for (uint32_t c = 0; c < layout->classes; c++)
			for (uint32_t s = 0; s < layout->class[c].shares; s++)
				if (coverage(space, c, s, slots[c][s]) < least) {
					least = coverage(space, c, s, slots[c][s]);
					class_index = c;
					share = s;
				}
		bytes = slots_grant_bytes(space->slots, class_index, share);
		if (bytes > left) {
			if (fresh && slots[class_index][share] == 0)
				return say_too_small(space, class_index, bytes, left, why);
			return 0;
		}
		if (budget_take(&space->host->budget, space->floor_bytes, space->granted_bytes, bytes))
			return 0; /* others hold more than their floors: the rest is granted when it is asked for */
		r = slots_grant_begin(space->slots, class_index, share, TABLES_NONE, &id);
		if (r)
			budget_give(&space->host->budget, space->floor_bytes, space->granted_bytes + bytes, bytes);
		if (r == SLOTS_E_FULL)
			return 0;
		if (r)
			return why_set(why, -r, "namespace %s: no memory for a grant", space->name);
		space->cold[id / 64] |= 1ull << id % 64;
		slots_grant_get(space->slots, id, &grant);
		slots[class_index][share] += grant.slots;
		space->granted_bytes += bytes;
		space->stats.grants_begun++;
		left -= bytes;
	}
}
