/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing behind: how much, and when.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/spill_private.h"

#define SPILL_REQUEST_PAGES 64u
#define SPILL_RATE_NS 100000000ull

/* ---- how much and when ------------------------------------------------------------------------------------------------ */

uint64_t spill_intake(const struct tiering *t)
{
	const struct layout *layout = t->space->layout;
	const struct space *space = t->space;
	uint64_t budget = space->granted_bytes > space->floor_bytes ? space->granted_bytes : space->floor_bytes;
	uint64_t request = 0, intake;

	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++)
			request += layout->class[c].share[s].slot_bytes *
				   (layout_is_row(layout, c) ? 1 : SPILL_REQUEST_PAGES / layout->class[c].every_pages);
	intake = 2 * request;
	if (intake > budget / 8)
		intake = budget / 8;
	return intake > request ? intake : request;
}

uint64_t spill_floor(const struct tiering *t)
{
	const struct space *space = t->space;
	uint64_t budget = space->granted_bytes > space->floor_bytes ? space->granted_bytes : space->floor_bytes;
	uint64_t intake = 2 * spill_intake(t), rate = 2 * (t->put_bytes_s / 1000) * (t->write_ns / 1000000);
	uint64_t floor = intake > rate ? intake : rate;

	return floor < budget / 2 ? floor : budget / 2;
}

/* Bytes of slots that are free, or that the budget still has. */
static uint64_t free_bytes(const struct tiering *t)
{
	const struct space *space = t->space;
	const struct layout *layout = space->layout;
	struct budget_report budget;
	uint64_t bytes = space->granted_bytes < space->floor_bytes ? space->floor_bytes - space->granted_bytes : 0;

	budget_report(&space->host->budget, &budget);
	bytes += budget.free;
	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++)
			bytes += slots_free_count(space->slots, c, s, (struct slots_filter){ NULL }) *
				 layout->class[c].share[s].slot_bytes;
	return bytes;
}

static bool under_floor(const struct tiering *t)
{
	/* What is under way counts as clean: it is about to be. */
	return free_bytes(t) + t->clean_bytes - t->held_clean_bytes + t->writing_bytes < spill_floor(t);
}

static bool wanted(const struct tiering *t)
{
	return t->draining || t->space->host->config.disk_only || t->wish.is || t->asked_count || under_floor(t);
}

static void look_at_rate(struct tiering *t)
{
	uint64_t now = clock_now_ns(), bytes = t->space->stats.bytes_committed, rate;

	if (t->rate_ns && now - t->rate_ns < SPILL_RATE_NS)
		return;
	if (t->rate_ns) {
		rate = (uint64_t)((double)(bytes - t->rate_bytes) * 1e9 / (double)(now - t->rate_ns));
		t->put_bytes_s = rate > t->put_bytes_s ? rate : (t->put_bytes_s * 7 + rate) / 8;
	}
	t->rate_ns = now;
	t->rate_bytes = bytes;
}

void spill_note_time(struct tiering *t, uint64_t ns)
{
	uint64_t sorted[TIERING_TIMES];
	uint32_t n;

	t->write_times[t->write_count++ % TIERING_TIMES] = ns;
	n = t->write_count < TIERING_TIMES ? t->write_count : TIERING_TIMES;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = i;

		for (; at > 0 && sorted[at - 1] > t->write_times[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = t->write_times[i];
	}
	t->write_ns = sorted[n / 2];
}

void spill_wish(struct tiering *t, uint32_t class_index, uint32_t share)
{
	lock_assert_held(&t->space->lock);
	t->wish = (struct tiering_wish){ .is = true, .class_index = class_index, .share = share };
	mover_ask(t->space->host);
}

void spill_ask(struct tiering *t, uint32_t slot)
{
	uint32_t record = t->space->tables.entries[slot].record;

	lock_assert_held(&t->space->lock);
	if (t->asked_count == TIERING_ASKED || tiering_file(t, record)->dirty_slot == INDEX_NONE)
		return;
	for (uint32_t i = 0; i < t->asked_count; i++)
		if (t->asked[(t->asked_first + i) % TIERING_ASKED].record == record)
			return;
	t->asked[(t->asked_first + t->asked_count++) % TIERING_ASKED] =
		(struct tiering_name){ record, index_record(t->space->index, record)->generation };
	mover_ask(t->space->host);
}

/* ---- the next one --------------------------------------------------------------------------------------------------------- */

static uint64_t file_bytes_about(const struct tiering *t, uint32_t record)
{
	const struct record *r = index_record(t->space->index, record);
	struct record_file_plan plan;

	record_file_plan(t->space->layout, r->pages, r->flags & RECORD_FLAG_ROW, NULL, &plan);
	return plan.file_bytes;
}

static bool has_room(const struct tiering *t, uint64_t bytes)
{
	return t->writes < SPILL_WRITES_MOST && (!t->writes || t->writing_bytes + bytes <= SPILL_BYTES_MOST);
}

/* Under the lock: which record is next, if any may be written now. Out of the order of dirty ones until spill_begin. */
static uint32_t next_record(struct tiering *t, struct spill_ring **ret_ring)
{
	uint32_t record;

	if (t->writing->ring && t->writing->ring->open &&
	    (t->writing->ring->failed || t->writing->ring->at == t->writing->ring->count))
		t->writing->ring = NULL; /* all of it that will be begun is: the last to end ends it, and others' turn comes */
	*ret_ring = t->writing->ring;
	if (t->closed || clock_now_ns() < t->retry_ns || !has_room(t, 0))
		return INDEX_NONE;
	if (*ret_ring) {
		record = spill_ring_next(t, *ret_ring);
		if (record == INDEX_NONE)
			return INDEX_NONE; /* until it has ended */
		if (has_room(t, file_bytes_about(t, record)))
			return record;
		(*ret_ring)->at--;
		return INDEX_NONE;
	}
	if (!wanted(t))
		return INDEX_NONE;
	record = spill_choose(t);
	if (record == INDEX_NONE) {
		t->wish.is = false; /* there is nothing that could be written */
		return INDEX_NONE;
	}
	if (!has_room(t, file_bytes_about(t, record))) {
		tiering_consider(t, record);
		return INDEX_NONE;
	}
	if (index_record(t->space->index, record)->flags & RECORD_FLAG_WHOLE) {
		*ret_ring = t->writing->ring = spill_ring_new(t, record);
		if (*ret_ring) {
			tiering_consider(t, record);
			return spill_ring_next(t, *ret_ring);
		}
	}
	return record;
}

/* Makes the write of the next record; NULL: there is none. */
static struct spill *write_of(struct tiering *t)
{
	struct space *space = t->space;
	struct tiering_name name = { 0 };
	struct spill *s;
	struct spill_ring *ring;
	uint32_t record, pages = 0;

	lock_take(&space->lock);
	look_at_rate(t);
	t->looked_bytes = space->stats.bytes_committed;
	t->floor_bytes = spill_floor(t);
	while (tiering_flush(t)) {
		lock_drop(&space->lock);
		lock_take(&space->lock);
	}
	record = next_record(t, &ring);
	if (record != INDEX_NONE) {
		name = spill_name(t, record);
		pages = index_record(space->index, record)->pages;
		if (ring)
			ring->open++;
	}
	lock_drop(&space->lock);
	if (record == INDEX_NONE)
		return NULL;
	s = spill_make(t, record, pages);
	lock_take(&space->lock);
	if (s && spill_alive(t, name) && spill_writable(t, record) && index_record(space->index, record)->pages == pages && !t->closed) {
		s->ring = ring;
		spill_begin(t, s);
	} else {
		if (s)
			spill_delete(s);
		s = NULL;
		if (ring) {
			ring->failed = true;
			ring->open--;
		}
	}
	tiering_consider(t, record);
	lock_drop(&space->lock);
	return s;
}

/* ---- the mover's part ----------------------------------------------------------------------------------------------------- */

void spill_run(struct tiering *t)
{
	struct spill *s;

	lock_assert_none_held();
	spill_ring_give_up(t);
	spill_order(t);
	while ((s = write_of(t))) {
		if (!spill_gather(s) || !spill_give(s))
			spill_undo(s);
		spill_ring_give_up(t);
	}
}

void spill_cancel_all(struct tiering *t)
{
	lock_assert_held(&t->space->lock);
	for (struct spill *s = t->writing->first; s; s = s->next) {
		atomic_store(&s->write.job.cancelled, true);
		if (spill_is_its_records(t, s))
			tiering_file(t, s->record)->writing = NULL;
	}
}

int spill_new(struct tiering *t, struct why *why)
{
	t->writing = calloc(1, sizeof(*t->writing));
	return t->writing ? 0 : why_set(why, ENOMEM, "namespace %s: no memory for its disk tier", t->space->name);
}

void spill_free(struct tiering *t)
{
	if (t->writing && t->writing->ring) {
		t->closed = true; /* nobody else is there any more */
		spill_ring_give_up(t);
	}
	if (t->writing)
		free(t->writing->order.of);
	free(t->writing);
	t->writing = NULL;
}
