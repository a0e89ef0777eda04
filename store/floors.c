/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace's floor, cut into grants.
 */
#include <errno.h>

#include "store/base/sizing.h"
#include "store/host_private.h"
#include "store/space_make.h"

#define FLOOR_PAGES 64u /* of the request that a floor is to serve at least, as class floors are (store/recut.c) */

/* Tokens that the ready and coming grants of (class, share) hold values for: what the floor is shared out by. */
static uint64_t coverage(const struct space *space, uint32_t class_index, uint32_t share, uint64_t slots)
{
	const struct layout *layout = space->layout;
	uint64_t every = layout_is_row(layout, class_index) ?
				 layout->interval ? layout->interval : LAYOUT_INTERVAL :
				 (uint64_t)layout->class[class_index].every_pages * layout->page_tokens;

	return slots * every + share; /* equal ones in order */
}

/* How much a floor must have for one request of FLOOR_PAGES pages, in whole grants. */
static uint64_t least_floor(const struct space *space)
{
	const struct layout *layout = space->layout;
	struct sizing sizing = {
		.page_tokens = layout->page_tokens,
		.context = (uint64_t)FLOOR_PAGES * layout->page_tokens,
		.budget = space->floor_bytes,
		.classes = layout->classes,
	};
	uint64_t bytes = 0;

	for (uint32_t c = 0; c < layout->classes; c++) {
		const struct value_class *class = &layout->class[c];
		struct sizing_class *to = &sizing.class[c];

		*to = (struct sizing_class){
			.kind = class->kind == VALUE_DENSE ? SIZING_DENSE : class->kind == VALUE_WINDOW ? SIZING_WINDOW : SIZING_STATE,
			.every_tokens = (uint64_t)class->every_pages * layout->page_tokens,
			.values = (uint64_t)class->sink + class->last,
		};
		for (uint32_t s = 0; s < class->shares; s++)
			to->share_bytes += class->share[s].slot_bytes;
	}
	sizing_plan(&sizing); /* whatever it says of the budget, each class's request is known then */
	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++) {
			uint64_t grant = slots_grant_bytes(space->slots, c, s), slots = grant / layout->class[c].share[s].slot_bytes;

			bytes += (sizing.class[c].request + slots - 1) / slots * grant;
		}
	return bytes;
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
				return why_set(why, EINVAL, "namespace %s: a floor of %llu bytes is too small: class %s needs a "
					       "grant of %llu and %llu are left; a request of %u pages needs "
					       "%llu together", space->name,
					       (unsigned long long)space->floor_bytes, layout->class[class_index].name,
					       (unsigned long long)bytes, (unsigned long long)left, FLOOR_PAGES,
					       (unsigned long long)least_floor(space));
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
		slots_grant_get(space->slots, id, &grant);
		slots[class_index][share] += grant.slots;
		space->granted_bytes += bytes;
		space->stats.grants_begun++;
		left -= bytes;
	}
}
