/* SPDX-License-Identifier: Apache-2.0
 *
 * One page by its key: where it stands now, and its bytes.
 */
#include <errno.h>

#include "store/records_private.h"

#define READ_TRIES 8u /* its record changes its length while it is read: look the page up again */

struct place {
	uint32_t record, generation;
	uint16_t page;
};

/* Under the lock: 0, or -ENOENT when no value of it is there, or its record is not to be seen yet. */
static int find(struct space *space, const struct key *key, struct place *ret)
{
	struct index_hit hit;

	index_lookup(space->index, key, 1, ~0u, &hit);
	if (hit.record == INDEX_NONE || !hit.present || !index_record_visible(space->index, hit.record))
		return -ENOENT;
	*ret = (struct place){hit.record, index_record(space->index, hit.record)->generation, hit.page};
	return 0;
}

int space_page_find(struct space *space, const struct key *key, struct page_info *ret)
{
	struct place place;
	int r;

	lock_take(&space->lock);
	r = find(space, key, &place);
	if (!r) {
		const struct record_entry *entry = &space->tables.records[place.record];

		ret->bytes = records_page_bytes(space->layout);
		ret->consumed = index_consumed(space->index, place.record, place.page);
		ret->created_s = entry->created_s;
		ret->last_use_s = entry->last_use_s;
	}
	lock_drop(&space->lock);
	return r;
}

ssize_t space_page_read(struct space *space, const struct key *key, uint64_t offset, void *to, size_t bytes)
{
	uint64_t size = records_page_bytes(space->layout);
	ssize_t n = -ENOENT;

	lock_assert_none_held();
	if (bytes > size - (offset < size ? offset : size))
		bytes = (size_t)(size - (offset < size ? offset : size));
	for (unsigned tries = 0; tries < READ_TRIES && n == -ENOENT; tries++) {
		struct place place;
		int r;

		lock_take(&space->lock);
		r = find(space, key, &place);
		lock_drop(&space->lock);
		if (r)
			return r;
		if (!bytes)
			return 0;
		n = space_record_read(space, place.record, place.generation, false, place.page * size + offset, to, bytes);
	}
	return n;
}
