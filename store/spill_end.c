/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing behind: what becomes of a write, and of a WHOLE ring of them.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/spill_private.h"

/* ---- the end of a write --------------------------------------------------------------------------------------------------- */

static void link_out(struct tiering *t, struct spill *s)
{
	if (s->prev)
		s->prev->next = s->next;
	else
		t->writing->first = s->next;
	if (s->next)
		s->next->prev = s->prev;
}

/* Without the lock: what was written is clean (@clean, and if it is still its record's), what was held is let go, the record is
 * looked at again. */
static void end_write(struct spill *s, bool clean)
{
	struct tiering *t = s->t;
	struct space *space = t->space;
	bool last;
	uint32_t at = 0;

	do {
		lock_take(&space->lock);
		bool ours = spill_is_its_records(t, s);
		uint32_t end = s->count - at < INDEX_STEP_KEYS ? s->count : at + INDEX_STEP_KEYS;

		for (; at < end; at++) {
			uint32_t slot = s->entries[at];

			if (ours && clean && !tiering_is_clean(t, slot)) {
				assert(space->tables.entries[slot].state == ENTRY_VALUE && space->tables.entries[slot].record == s->record);
				tiering_make_clean(t, slot);
				space->stats.values_spilled++;
			}
			tiering_unhold(t, slot); /* with a tier that is disk only it leaves memory now */
			if (ours && clean && tiering_has_value(t, slot))
				tiering_collapse(t, slot);
		}
		last = at == s->count;
		if (last) {
			if (ours && clean && s->ring) /* its group is whole now */
				tiering_row_set(t, s->record, false);
			if (ours)
				tiering_file(t, s->record)->writing = NULL;
			tiering_file_settled(t, s->record, &s->write.job);
			link_out(t, s);
			space_room(space);
		}
		lock_drop(&space->lock);
	} while (!last);
	spill_delete(s);
}

/* Without the lock: one of the ring has ended; the last one ends all. */
static void ring_ended(struct tiering *t, struct spill_ring *ring, struct spill *s, bool good)
{
	struct space *space = t->space;
	bool all, clean;

	lock_take(&space->lock);
	ring->failed |= !good || (s && !spill_is_its_records(t, s));
	ring->open--;
	if (s) {
		s->next_ended = ring->ended;
		ring->ended = s;
	}
	for (const struct spill *e = ring->ended; e; e = e->next_ended)
		ring->failed |= !spill_is_its_records(t, e);
	all = !ring->open && (ring->failed || ring->at == ring->count);
	clean = all && !ring->failed;
	if (all && t->writing->ring == ring)
		t->writing->ring = NULL;
	for (struct spill *e = all && !clean ? ring->ended : NULL; e; e = e->next_ended)
		if (spill_is_its_records(t, e)) /* its file names a group that is not there */
			tiering_file_stale(t, e->record);
	lock_drop(&space->lock);
	if (!all)
		return;
	while (ring->ended) {
		struct spill *e = ring->ended;

		ring->ended = e->next_ended;
		end_write(e, clean);
	}
	free(ring);
}

/* A ring of which nothing is under way and that cannot go on. Without the lock. */
void spill_ring_give_up(struct tiering *t)
{
	struct spill_ring *ring;

	lock_take(&t->space->lock);
	ring = t->writing->ring;
	if (ring && !ring->open && (ring->failed || t->closed)) {
		ring->failed = true;
		ring->open = 1;
	} else {
		ring = NULL;
	}
	lock_drop(&t->space->lock);
	if (ring)
		ring_ended(t, ring, NULL, false);
}

void spill_undo(struct spill *s)
{
	struct spill_ring *ring = s->ring;
	struct tiering *t = s->t;

	end_write(s, false);
	if (ring)
		ring_ended(t, ring, NULL, false);
}

/* Under the lock, of what was put aside when the file was begun. */
static void add_row(struct tiering *t, struct spill *s, uint64_t id, const uint8_t *absent, uint32_t absent_bytes)
{
	const struct layout *layout = t->space->layout;
	const struct record_file_id *of = &s->write.id;
	uint32_t columns = layout->page_columns + layout->row_columns;
	bool any_alias = tiering_file(t, s->record)->alias != 0;
	bool pinned = index_record(t->space->index, s->record)->flags & RECORD_FLAG_HELD;
	struct catalogue_row row = {
		.id = id,
		.nonce = of->nonce,
		.start = of->start,
		.consumed = s->write.job.consumed,
		.generation = of->generation,
		.file_bytes = s->write.file_bytes,
		.whole_id = of->whole_id,
		.created_s = of->created_s,
		.written_s = (int64_t)clock_wall_s(),
		.endpoint = of->endpoint,
		.parent = of->parent,
		.keys = s->keys,
		.absent = absent,
		.absent_bytes = absent_bytes,
		.alias = any_alias ? s->write.alias : NULL,
		.alias_count = any_alias ? columns : 0,
		.pages = of->pages,
		.file_pages = of->pages,
		.flags = of->flags | (pinned ? CATALOGUE_PINNED : 0),
		.whole_count = of->whole_count,
	};

	catalogue_add(t->catalogue, &row);
}

/* Under the lock: the file stands under the record's name. Also when the write was cancelled after that: then the file that it
 * replaced was the record's, and so is this one, unless it was renamed meanwhile (its trim tells its length). */
static void file_came(struct tiering *t, struct spill *s, const uint8_t *absent, uint32_t absent_bytes)
{
	struct record_file *f = tiering_file(t, s->record);
	bool ours = f->writing == &s->write;

	if (!ours && !(f->id && f->id == s->old_id && index_record_current(t->space->index, s->record) &&
		       f->pages == s->write.id.pages &&
		       !memcmp(&f->endpoint, &s->write.id.endpoint, sizeof(f->endpoint))))
		return;
	if (f->id)
		catalogue_remove(t->catalogue, f->id);
	else
		t->disk_files++;
	t->disk_bytes += s->write.file_bytes - f->bytes;
	f->id = catalogue_next_id(t->catalogue);
	f->bytes = s->write.file_bytes;
	f->flags |= TIERING_ALIAS_SURE;
	f->alias = tiering_alias_of(t, s->write.alias, t->space->layout->page_columns + t->space->layout->row_columns);
	f->endpoint = s->write.id.endpoint;
	f->pages = f->file_pages = (uint16_t)s->write.id.pages;
	if (ours)
		f->flags &= (uint8_t)~(TIERING_STALE | TIERING_FAILED | TIERING_FILE_ROW);
	f->flags |= (s->row ? TIERING_FILE_ROW : 0) | (s->ring && !ours ? TIERING_STALE : 0);
	tiering_row_set(t, s->record, s->ring);
	add_row(t, s, f->id, absent, absent_bytes);
	t->space->stats.files_written++;
	t->space->stats.bytes_spilled += s->write.file_bytes;
	t->space->stats.bytes_saved += s->write.alias_bytes;
	if (ours)
		space_note(t->space, &(struct host_event){ .kind = HOST_EVENT_SPILLED, .consumed = s->write.job.consumed,
							   .endpoint = s->write.id.endpoint, .pages = s->write.id.pages,
							   .number = s->write.file_bytes });
}

static uint8_t *absent_map(const struct spill *s, uint32_t *ret_bytes)
{
	uint8_t *map = NULL;

	*ret_bytes = (s->value_count + 7) / 8;
	for (uint32_t v = 0; v < s->value_count; v++) {
		if (s->values[v] != DISK_ABSENT)
			continue;
		if (!map)
			map = calloc(1, *ret_bytes);
		if (!map)
			break;
		map[v / 8] |= (uint8_t)(1u << v % 8);
	}
	*ret_bytes = map ? *ret_bytes : 0;
	return map;
}

void spill_done(struct disk_job *job)
{
	struct spill *s = (struct spill *)job;
	struct tiering *t = s->t;
	struct space *space = t->space;
	int result = job->result;
	uint32_t absent_bytes;
	uint8_t *absent = absent_map(s, &absent_bytes);

	if (!result)
		killpoint(KILLPOINT_WRITE_NAMED);
	tiering_result(t, result, false);
	lock_take(&space->lock);
	t->writes--;
	t->writing_bytes -= s->bytes;
	if (!result) {
		spill_note_time(t, clock_now_ns() - s->begun_ns);
		file_came(t, s, absent, absent_bytes);
	} else if (result != -ECANCELED) {
		space->stats.write_errors++;
		if (spill_is_its_records(t, s))
			tiering_file(t, s->record)->flags |= TIERING_FAILED;
	}
	lock_drop(&space->lock);
	if (!result)
		killpoint(KILLPOINT_WRITE_KNOWN);
	free(absent);
	if (s->ring)
		ring_ended(t, s->ring, s, !result);
	else
		end_write(s, !result);
	mover_ask(space->host);
	tiering_job_ended(t);
}

/* Hands it to the disk, with the trims before it. False: it is not to be written any more. */
bool spill_give(struct spill *s)
{
	struct tiering *t = s->t;
	struct space *space = t->space;
	bool ok;

	lock_take(&space->lock);
	while (tiering_flush(t)) {
		lock_drop(&space->lock);
		lock_take(&space->lock);
	}
	ok = spill_is_its_records(t, s) && !t->closed && !tiering_name_owed(t, s->write.job.consumed, &s->write.job.endpoint);
	if (ok) {
		for (uint32_t i = 0; i < s->count && t->wish.is; i++) {
			const struct entry *e = &space->tables.entries[s->entries[i]];

			t->wish.is = e->class_index != t->wish.class_index || e->share != t->wish.share;
		}
		s->begun_ns = clock_now_ns();
		t->writes++;
		t->writing_bytes += s->bytes;
		tiering_give(t, &s->write.job);
	}
	lock_drop(&space->lock);
	return ok;
}
