/* SPDX-License-Identifier: Apache-2.0
 *
 * Room for PUT_START: growing, letting victims go.
 */
#include "store/host_private.h"
#include "store/put_private.h"

struct acceptance {
	struct space *space;
	struct slots_filter filter;
};

static bool in_acknowledged(void *context, uint32_t entry)
{
	const struct acceptance *a = context;
	uint32_t grant = slots_grant_of(a->space->slots, entry);

	return a->filter.acknowledged[grant / 64] >> (grant % 64) & 1;
}

bool room_make(struct session *s, uint32_t class_index, uint32_t share, uint32_t want)
{
	struct space *space = s->space;
	struct slots_filter filter = session_filter(s), any = { NULL };
	struct acceptance a = { space, filter };
	struct index_sink sink = space_sink(space);
	uint32_t free = slots_free_count(space->slots, class_index, share, filter);
	bool row = layout_is_row(space->layout, class_index);

	if (!free && slots_free_count(space->slots, class_index, share, any))
		return false;
	if (!free && space_grow(space, class_index, share, s->node)) {
		free = slots_free_count(space->slots, class_index, share, filter);
		if (!free)
			return false;
	}
	while (free < want) {
		uint32_t before = free;
		int r = row ? index_evict_row(space->index, in_acknowledged, &a, &sink) :
			      index_evict_page(space->index, in_acknowledged, &a, &sink);

		if (r)
			break;
		free = slots_free_count(space->slots, class_index, share, filter);
		space->stats.values_evicted += free > before ? free - before : 0;
	}
	return free > 0;
}
