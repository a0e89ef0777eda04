/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a GET_START over memory and disk: what a transfer will cost, and the first reads for it.
 */
#include "store/get_private.h"

#define DISK_BYTES_S 3000000000ull /* until three reads were made */

/* ---- the estimate --------------------------------------------------------------------------------------------------- */

static uint64_t disk_rate(const struct tiering *t)
{
	const uint64_t *r = t->disk_bytes_s;
	uint64_t low = r[0] < r[1] ? r[0] : r[1], high = r[0] < r[1] ? r[1] : r[0];

	if (!r[0] || !r[1] || !r[2])
		return DISK_BYTES_S;
	return r[2] < low ? low : r[2] > high ? high : r[2];
}

static void count_value(struct get_start *call, uint32_t class_index, uint32_t entry)
{
	const struct session *s = call->session;
	uint64_t payload = s->space->layout->class[class_index].share[s->share[class_index]].payload_bytes;

	if (entry == INDEX_NONE)
		return;
	if (tiering_is_place(s->space->tiering, entry))
		call->disk_bytes += payload;
	else
		call->bytes += payload;
}

/* Under the lock. */
static void count_row(struct get_start *call, uint32_t record)
{
	const struct session *s = call->session;
	const struct layout *layout = s->space->layout;

	for (uint32_t c = 0; c < layout->classes; c++)
		if (call->h->found->class_mask >> c & 1 && layout_is_row(layout, c))
			count_value(call, c, index_value(s->space->index, record, INDEX_PAGE_ROW,
							 layout_column(layout, c, s->share[c]), NULL));
}

void get_estimate(struct get_start *call, uint32_t deepest)
{
	const struct handle *h = call->h;
	const struct found *f = h->found;
	const struct row_pin *row = handle_row(h, deepest);
	struct space *space = call->session->space;
	uint64_t boundary = f->start + (uint64_t)(deepest + 1) * space->layout->page_tokens, keys = 0, rate;

	for (uint32_t key = f->first; key <= deepest; key++) {
		uint64_t before = call->disk_bytes;

		for (uint32_t c = 0; c < f->columns; c++)
			if (handle_delivers(h, c, key, boundary))
				count_value(call, f->class_of[c], h->entries.at[(size_t)(key - f->first) * f->columns + c]);
		keys += call->disk_bytes > before;
	}
	lock_take(&space->lock);
	if (row)
		count_row(call, row->record);
	space->stats.keys_local -= keys;
	rate = disk_rate(space->tiering);
	lock_drop(&space->lock);
	call->disk_us = (uint64_t)((double)call->disk_bytes * 1e6 / (double)rate) + (call->disk_bytes > 0);
}

/* ---- reads ahead ------------------------------------------------------------------------------------------------------ */

static bool ahead_reserve(struct handle *h)
{
	uint32_t need = h->ahead_count + INDEX_STEP_KEYS + LAYOUT_MAX_CLASSES;
	struct ahead *ahead;

	if (need <= h->ahead_capacity)
		return true;
	ahead = realloc(h->ahead, 2 * (size_t)need * sizeof(*ahead));
	if (!ahead)
		return false;
	h->ahead = ahead;
	h->ahead_capacity = 2 * need;
	return true;
}

/* Under the lock: what @key lacks in memory. False: no more. */
static bool want_key(struct get_start *call, const struct run *run, uint32_t key, uint64_t boundary)
{
	struct session *s = call->session;
	struct space *space = s->space;
	struct handle *h = call->h;
	const struct found *f = h->found;
	bool led = false, joined_any = false;

	for (uint32_t c = 0; c < f->columns; c++) {
		uint32_t column = layout_column(space->layout, f->class_of[c], s->share[f->class_of[c]]), entry;
		struct load_name name;
		bool joined = false;

		if (!handle_delivers(h, c, key, boundary))
			continue;
		switch (load_want(space->tiering, run->record, run->page + key - run->first, column, false, session_filter(s), &name,
				  &entry, &joined)) {
		case LOAD_HERE:
			break;
		case LOAD_COMING:
			h->ahead[h->ahead_count++] = (struct ahead){ key, name };
			space->stats.reads_avoided += joined;
			led |= !joined;
			joined_any |= joined;
			break;
		default:
			return false;
		}
	}
	space->stats.keys_led += led;
	space->stats.keys_joined += !led && joined_any;
	return true;
}

void get_look_ahead(struct get_start *call, uint32_t deepest)
{
	struct space *space = call->session->space;
	struct handle *h = call->h;
	const struct found *f = h->found;
	uint64_t boundary = f->start + (uint64_t)(deepest + 1) * space->layout->page_tokens;
	uint32_t key = f->first, run = h->run_at;
	bool more = call->session->rank != SESSION_RANK_NONE && call->disk_bytes;

	while (more && key <= deepest && ahead_reserve(h)) {
		uint32_t stop = h->ahead_count + INDEX_STEP_KEYS, end = key + INDEX_STEP_KEYS;
		uint64_t most;

		lock_take(&space->lock);
		most = spill_intake(space->tiering);
		for (; more && key <= deepest && key < end && h->ahead_count < stop; key++) {
			const struct run *at = handle_run(h, key, &run);

			more = loads_bytes(space->tiering) < most && (!at || want_key(call, at, key, boundary));
		}
		load_submit(space->tiering);
		lock_drop(&space->lock);
	}
}
