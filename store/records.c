/* SPDX-License-Identifier: Apache-2.0
 *
 * Records as the mount shows them: walking, finding, describing, reading, evicting.
 */
#include <errno.h>
#include <string.h>

#include "store/records_private.h"
#include "store/tiering.h"

bool record_current(struct space *space, uint32_t number, uint32_t generation)
{
	lock_assert_held(&space->lock);
	return number < index_record_limit(space->index) && index_record_visible(space->index, number) &&
	       index_record(space->index, number)->generation == generation;
}

uint64_t records_page_bytes(const struct layout *layout)
{
	uint64_t bytes = 0;

	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares && !layout_is_row(layout, c); s++)
			bytes += layout->class[c].share[s].slot_bytes;
	return bytes;
}

static uint64_t row_stride(const struct layout *layout)
{
	uint64_t bytes = 0;

	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares && layout_is_row(layout, c); s++)
			bytes += layout->class[c].share[s].slot_bytes;
	return bytes;
}

static void describe_parent(struct space *space, const struct record *record, struct record_info *ret)
{
	if (record->parent == INDEX_NONE || !index_record_visible(space->index, record->parent))
		return;
	ret->parent_visible = true;
	index_record_name(space->index, record->parent, &ret->parent_consumed, &ret->parent_endpoint);
}

void record_describe(struct space *space, uint32_t number, struct record_info *ret)
{
	const struct layout *layout = space->layout;
	const struct record *record = index_record(space->index, number);
	const struct record_entry *entry = &space->tables.records[number];

	lock_assert_held(&space->lock);
	memset(ret, 0, sizeof(*ret));
	ret->number = number;
	ret->generation = record->generation;
	index_record_name(space->index, number, &ret->consumed, &ret->endpoint);
	ret->parent = entry->parent_key;
	ret->root = entry->flags & RECORD_ROOT;
	ret->whole = entry->flags & RECORD_WHOLE;
	ret->pinned = entry->flags & RECORD_PINNED;
	ret->orphan = record->flags & RECORD_FLAG_ORPHAN;
	ret->pages = record->pages;
	ret->pins = record->pins;
	ret->children = record->children;
	ret->page_bytes = record->pages * records_page_bytes(layout);
	for (uint32_t c = 0; c < layout->row_columns; c++) {
		bool committed;

		ret->row_values += index_value(space->index, number, INDEX_PAGE_ROW, c, &committed) != INDEX_NONE && committed;
	}
	ret->row_bytes = ret->row_values ? row_stride(layout) : 0;
	ret->created_s = entry->created_s;
	ret->last_use_s = entry->last_use_s;
	ret->hits = entry->hits;
	if (space->tiering && tiering_file(space->tiering, number)->id)
		ret->file_bytes = tiering_file(space->tiering, number)->bytes;
	describe_parent(space, record, ret);
}

/* Under the lock: is it there, and where? */
static bool count_value(struct space *space, struct record_info *info, uint32_t page, uint32_t column)
{
	const struct tiering *t = space->tiering;
	bool committed;
	uint32_t entry = index_value(space->index, info->number, (uint16_t)page, column, &committed);

	if (entry == INDEX_NONE || !committed)
		return false;
	if (!t || !tiering_is_place(t, entry)) {
		info->memory_values++;
		info->dirty_values += t && !tiering_is_clean(t, entry);
	}
	return true;
}

/* Values present and absent: for a long record, in a stay of its own per piece of the record. */
static int count_values(struct space *space, struct record_info *info)
{
	const struct layout *layout = space->layout;
	uint32_t step = INDEX_STEP_KEYS / (layout->page_columns ? layout->page_columns : 1), page = 0;

	step = step ? step : 1;
	do {
		uint32_t end = info->pages - page > step ? page + step : info->pages;

		lock_take(&space->lock);
		if (!record_current(space, info->number, info->generation)) {
			lock_drop(&space->lock);
			return -ENOENT;
		}
		for (; page < end && page < index_record(space->index, info->number)->pages; page++)
			for (uint32_t c = 0; c < layout->page_columns; c++)
				if (count_value(space, info, page, c))
					info->values++;
				else
					info->absent++;
		page = end;
		if (page == info->pages)
			for (uint32_t c = 0; c < layout->row_columns; c++)
				count_value(space, info, INDEX_PAGE_ROW, c);
		lock_drop(&space->lock);
	} while (page < info->pages);
	return 0;
}

uint32_t space_record_list(struct space *space, uint32_t *cursor, struct record_label *ret, uint32_t capacity)
{
	uint32_t n = 0, end, limit;

	do {
		lock_take(&space->lock);
		end = *cursor + INDEX_STEP_KEYS;
		while (n < capacity && *cursor < end) {
			uint32_t number = index_next_record(space->index, cursor);

			if (number == INDEX_NONE)
				break;
			ret[n].number = number;
			ret[n].generation = index_record(space->index, number)->generation;
			index_record_name(space->index, number, &ret[n].consumed, &ret[n].endpoint);
			n++;
		}
		limit = index_record_limit(space->index);
		lock_drop(&space->lock);
	} while (n < capacity && *cursor < limit);
	return n;
}

int space_record_next(struct space *space, uint32_t *cursor, struct record_info *ret)
{
	for (;;) {
		uint32_t number, limit;

		lock_take(&space->lock);
		number = index_next_record(space->index, cursor);
		limit = index_record_limit(space->index);
		if (number != INDEX_NONE)
			record_describe(space, number, ret);
		lock_drop(&space->lock);
		if (number != INDEX_NONE)
			return 1;
		if (*cursor >= limit)
			return 0;
	}
}

int space_record_find(struct space *space, const struct key *endpoint, bool known, struct record_info *ret)
{
	uint32_t number;

	lock_take(&space->lock);
	number = index_find_endpoint(space->index, endpoint);
	if (number != INDEX_NONE && !index_record_visible(space->index, number))
		number = INDEX_NONE;
	if (number != INDEX_NONE) {
		record_describe(space, number, ret);
		if (known)
			index_record(space->index, number)->flags |= RECORD_FLAG_KNOWN;
	}
	lock_drop(&space->lock);
	return number == INDEX_NONE ? -ENOENT : 0;
}

int space_record_get(struct space *space, uint32_t number, uint32_t generation, struct record_info *ret)
{
	bool current;

	lock_take(&space->lock);
	current = record_current(space, number, generation);
	if (current)
		record_describe(space, number, ret);
	lock_drop(&space->lock);
	return current ? count_values(space, ret) : -ENOENT;
}

int space_record_evict(struct space *space, uint32_t number, uint32_t generation, bool check_only, struct why *why)
{
	struct index_sink sink = space_sink(space);
	uint64_t before = 0;
	int r;

	lock_take(&space->lock);
	if (!record_current(space, number, generation)) {
		r = why_set(why, ENOENT, "the record is gone");
	} else if (check_only) {
		r = index_may_evict_record(space->index, number, why);
	} else {
		before = index_counters(space->index)->pages;
		r = index_evict_record(space->index, number, &sink, why);
		space->stats.values_evicted += before - index_counters(space->index)->pages;
		if (!r)
			space_room(space);
	}
	lock_drop(&space->lock);
	return r;
}

static int record_hold(struct space *space, uint32_t number, uint32_t generation, bool hold, struct why *why)
{
	bool changed;
	int r;

	lock_take(&space->lock);
	r = record_current(space, number, generation) ? space_hold(space, number, hold, &changed, why) :
							why_set(why, ENOENT, "the record is gone");
	lock_drop(&space->lock);
	return r;
}

int space_record_pin(struct space *space, uint32_t number, uint32_t generation, struct why *why)
{
	return record_hold(space, number, generation, true, why);
}

int space_record_unpin(struct space *space, uint32_t number, uint32_t generation, struct why *why)
{
	return record_hold(space, number, generation, false, why);
}

int space_record_drop_row(struct space *space, uint32_t number, uint32_t generation, struct why *why)
{
	struct host_event event = { .kind = HOST_EVENT_ROW_DROPPED, .why = HOST_WHY_HAND };
	struct index_sink sink = space_sink(space);
	int r;

	lock_take(&space->lock);
	if (!record_current(space, number, generation)) {
		r = why_set(why, ENOENT, "the record is gone");
	} else {
		index_record_name(space->index, number, &event.consumed, &event.endpoint);
		r = index_drop_row(space->index, number, &sink, why);
	}
	if (!r) {
		space_note(space, &event);
		space_room(space);
	}
	lock_drop(&space->lock);
	return r;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

#define READ_TRIES 64u /* it is read back into memory just now: look where it is again */

struct piece {
	uint32_t entry;
	uint64_t segment_offset;
	uint64_t bytes;   /* to be read from there */
	uint64_t zeroes;  /* then: the value's padding, which may be an older value's bytes */
};

bool records_value_at(const struct layout *layout, bool row, uint64_t offset, struct records_value *ret)
{
	uint64_t stride = row ? row_stride(layout) : records_page_bytes(layout);
	uint64_t within = row ? offset : offset % stride;

	ret->page = row ? INDEX_PAGE_ROW : (uint16_t)(offset / stride);
	for (uint32_t c = 0; c < layout->classes; c++) {
		if (layout_is_row(layout, c) != row)
			continue;
		for (uint32_t s = 0; s < layout->class[c].shares; s++) {
			const struct share *share = &layout->class[c].share[s];

			if (within >= share->slot_bytes) {
				within -= share->slot_bytes;
				continue;
			}
			ret->column = layout_column(layout, c, s);
			ret->share = share;
			ret->within = within;
			return true;
		}
	}
	return false;
}

/* Under the lock: where @offset of `pages` or `row` lies. 0 when a value is there, -ENODATA when it is absent. One that is on
 * disk only has an entry and nothing else. */
static int locate(struct space *space, uint32_t number, bool row, uint64_t offset, struct piece *ret)
{
	struct records_value v;
	bool committed;

	if (!records_value_at(space->layout, row, offset, &v))
		return -ENODATA;
	ret->entry = index_value(space->index, number, v.page, v.column, &committed);
	if (ret->entry == INDEX_NONE || !committed)
		return -ENODATA;
	if (space->tiering && tiering_is_place(space->tiering, ret->entry)) {
		uint32_t alike = tiering_alike(space->tiering, ret->entry);

		if (alike == INDEX_NONE)
			return 0;
		ret->entry = alike;
	}
	ret->segment_offset = slots_offset(space->slots, ret->entry) + v.within;
	ret->bytes = v.within < v.share->payload_bytes ? v.share->payload_bytes - v.within : 0;
	ret->zeroes = v.share->slot_bytes - v.within - ret->bytes;
	return 0;
}

/* Joins what follows in the segment while it follows in the file too. */
static int locate_run(struct space *space, uint32_t number, bool row, uint64_t offset, uint64_t end, struct piece *ret)
{
	int r = locate(space, number, row, offset, ret);
	uint64_t at;

	if (r || space->tiering) /* there each slot is held by itself */
		return r;
	for (at = offset + ret->bytes + ret->zeroes; at < end && !ret->zeroes; at = offset + ret->bytes + ret->zeroes) {
		struct piece more;

		if (locate(space, number, row, at, &more) || more.segment_offset != ret->segment_offset + ret->bytes)
			break;
		ret->bytes += more.bytes;
		ret->zeroes = more.zeroes;
	}
	return 0;
}

static uint64_t file_size(struct space *space, uint32_t number, bool row)
{
	const struct record *record = index_record(space->index, number);

	return row ? row_stride(space->layout) : record->pages * records_page_bytes(space->layout);
}

/* Under the lock: nothing of it goes while it is read. */
static void piece_hold(struct space *space, uint32_t number, const struct piece *piece)
{
	space_pin(space, number);
	if (space->tiering)
		tiering_hold(space->tiering, piece->entry);
}

static void piece_let_go(struct space *space, uint32_t number, const struct piece *piece)
{
	if (space->tiering)
		tiering_unhold(space->tiering, piece->entry);
	space_unpin(space, number);
}

/* One piece at @offset: held while it is read. Bytes, 0 at the end, or an error. */
static ssize_t read_piece(struct space *space, uint32_t number, uint32_t generation, bool row, uint64_t offset, char *to,
			  size_t bytes)
{
	struct piece piece = { 0 };
	struct key endpoint;
	uint64_t size = 0, n, consumed = 0;
	bool on_disk = false;
	int r = 0;

	lock_take(&space->lock);
	if (!record_current(space, number, generation)) {
		lock_drop(&space->lock);
		return -ENOENT;
	}
	size = file_size(space, number, row);
	if (offset < size) {
		if (bytes > size - offset)
			bytes = (size_t)(size - offset);
		r = locate_run(space, number, row, offset, offset + bytes, &piece);
		on_disk = !r && space->tiering && tiering_is_place(space->tiering, piece.entry);
		if (!r && !on_disk) {
			piece_hold(space, number, &piece);
			index_record_name(space->index, number, &consumed, &endpoint);
		}
	}
	lock_drop(&space->lock);
	if (offset >= size || r)
		return r;
	if (on_disk)
		return load_read_file(space, number, generation, row, offset, to, bytes);
	n = piece.bytes < bytes ? piece.bytes : bytes;
	if (n)
		r = tier_read(space->memory, piece.segment_offset, to, n);
	if (bytes > n && piece.zeroes) {
		uint64_t zeroes = piece.zeroes < bytes - n ? piece.zeroes : bytes - n;

		memset(to + n, 0, zeroes);
		n += zeroes;
	}
	lock_take(&space->lock);
	piece_let_go(space, number, &piece);
	if (r) {
		struct host_event event = {
			.kind = HOST_EVENT_CORRUPT,
			.pages = row ? INDEX_PAGE_ROW : (uint32_t)(offset / records_page_bytes(space->layout)),
		};

		space->stats.read_errors++;
		event.consumed = consumed;
		event.endpoint = endpoint;
		space_note(space, &event);
	}
	lock_drop(&space->lock);
	space_retire(space);
	return r ? r : (ssize_t)n;
}

ssize_t space_record_read(struct space *space, uint32_t number, uint32_t generation, bool row, uint64_t offset,
			  void *to, size_t bytes)
{
	unsigned tries = READ_TRIES;
	size_t done = 0;

	lock_assert_none_held();
	while (done < bytes) {
		ssize_t n = read_piece(space, number, generation, row, offset + done, (char *)to + done, bytes - done);

		if (n == -EAGAIN && tries--)
			continue;
		if (n < 0 && !(n == -ENODATA && done))
			return n == -EAGAIN ? -EIO : n; /* a record that went meanwhile: an error, never a short file */
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* The name of its record file; false: the record is gone, or has none. */
static bool file_name(struct space *space, uint32_t number, uint32_t generation, uint64_t *consumed, struct key *endpoint)
{
	struct tiering *t = space->tiering;
	bool there;

	if (!t)
		return false;
	lock_take(&space->lock);
	there = record_current(space, number, generation) && tiering_file(t, number)->id;
	if (there) {
		*consumed = tiering_file_consumed(t, number);
		*endpoint = tiering_file(t, number)->endpoint;
	}
	lock_drop(&space->lock);
	return there;
}

ssize_t space_record_read_raw(struct space *space, uint32_t number, uint32_t generation, uint64_t offset, void *to, size_t bytes)
{
	uint64_t consumed = 0;
	struct key endpoint;

	if (!file_name(space, number, generation, &consumed, &endpoint))
		return -ENOENT;
	return disk_file_read(space->tiering->dir, consumed, &endpoint, offset, to, bytes);
}

int space_record_open_raw(struct space *space, uint32_t number, uint32_t generation)
{
	uint64_t consumed = 0;
	struct key endpoint;

	if (!file_name(space, number, generation, &consumed, &endpoint))
		return -ENOENT;
	return disk_file_open(space->tiering->dir, consumed, &endpoint);
}
