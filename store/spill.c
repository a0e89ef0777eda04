/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing behind: which records are written, and how a file comes about.
 *
 * A write belongs to its record as long as record_file.writing names it. Whatever takes a committed value from the record, or
 * its name, lets go of that (tiering.c) and cancels the write; so when a write has ended and is still its record's, every
 * slot that it wrote holds the value that it wrote, and what came meanwhile is not among them.
 *
 *   chosen      from the order of dirty records             write_of
 *   gathered    slots held, in stays of INDEX_STEP_KEYS     gather
 *   given       in one stay with the trims before it        give
 *   written     on a worker: the file is the record's       done, file_came
 *   clean       at once, or with the last of its WHOLE ring end_write
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/tiering.h"

#define SPILL_REQUEST_PAGES 64u
#define SPILL_TRIES 64u         /* records passed over in one look */
#define SPILL_RING_MOST 4096u   /* records of a WHOLE group; of a longer one each is written by itself */
#define SPILL_PAUSE_MIN 100000000ull
#define SPILL_PAUSE_MAX 30000000000ull
#define SPILL_CLOSE_FAILURES 8u
#define SPILL_CLOSE_NS 10000000000ull
#define SPILL_RATE_NS 100000000ull

struct ring;

struct spill {
	struct disk_write write; /* first */
	struct tiering *t;
	struct spill *next, *prev; /* of the tier's, under the lock */
	struct spill *next_ended;  /* of its ring's */
	struct ring *ring;         /* or NULL */
	struct key *keys;
	uint64_t *values;
	uint32_t *entries;         /* slots that are held */
	uint32_t count, value_count;
	uint32_t record;
	uint64_t old_id;           /* of the file when it was begun; 0 = none */
	uint64_t bytes, begun_ns;
	bool row;
};

/* A WHOLE group that is being written: one after the other. */
struct ring {
	struct tiering_name *members;
	uint32_t count, at;        /* of them, begun */
	uint32_t open;             /* begun and not ended */
	uint64_t id;
	bool failed;
	struct spill *ended;       /* written; their slots are held until all are */
};

struct disk_write_list {
	struct spill *first;
	struct ring *ring; /* one at a time */
};

static void done(struct disk_job *job);

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

static void note_time(struct tiering *t, uint64_t ns)
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

/* ---- choosing ------------------------------------------------------------------------------------------------------------ */

static bool alive(const struct tiering *t, struct tiering_name name)
{
	const struct record *r = index_record(t->space->index, name.record);

	return r->generation == name.generation && r->state == RECORD_LIVE && index_record_current(t->space->index, name.record);
}

static struct tiering_name name_of(const struct tiering *t, uint32_t record)
{
	return (struct tiering_name){ record, index_record(t->space->index, record)->generation };
}

/* May it be written now? Twins have one name: neither is written before they have joined. */
static bool writable(struct tiering *t, uint32_t record)
{
	struct index *index = t->space->index;
	const struct record *r = index_record(index, record);
	struct key endpoint;
	uint64_t consumed;
	uint32_t home;

	if (r->state != RECORD_LIVE || !index_record_current(index, record) || tiering_file(t, record)->writing ||
	    r->pages > RECORD_FILE_MAX_PAGES || (!r->pages && !(r->flags & RECORD_FLAG_ROW)))
		return false;
	index_record_name(index, record, &consumed, &endpoint);
	home = t->space->layout->row_columns ? index_row_home(index, &endpoint) : INDEX_NONE;
	return index_find_endpoint(index, &endpoint) == record && (home == INDEX_NONE || home == record);
}

/* Of a WHOLE group, all that are written with it too? */
static bool choosable(struct tiering *t, uint32_t record)
{
	const struct tables *tables = &t->space->tables;
	uint32_t m = record, n = 0;

	if (!writable(t, record) || !(index_record(t->space->index, record)->flags & RECORD_FLAG_WHOLE))
		return writable(t, record);
	while ((m = tables->records[m].whole_next) != record && n++ < SPILL_RING_MOST)
		if (!writable(t, m))
			return false;
	return true;
}

static bool has_dirty(struct tiering *t, uint32_t record)
{
	const struct record_file *f = tiering_file(t, record);

	return f->dirty || f->flags & TIERING_STALE;
}

/* The coldest dirty record that can be written, taken from the order. */
static uint32_t coldest(struct tiering *t)
{
	uint32_t passed[SPILL_TRIES], n = 0, record = INDEX_NONE;

	while (n < SPILL_TRIES && (record = policy_lru.pop(t->dirty)) != INDEX_NONE && !choosable(t, record))
		passed[n++] = record;
	if (n == SPILL_TRIES)
		record = INDEX_NONE;
	for (uint32_t i = 0; i < n; i++)
		tiering_consider(t, passed[i]);
	return record;
}

static uint32_t asked(struct tiering *t)
{
	while (t->asked_count) {
		struct tiering_name name = t->asked[t->asked_first];

		t->asked_first = (t->asked_first + 1) % TIERING_ASKED;
		t->asked_count--;
		if (alive(t, name) && has_dirty(t, name.record) && choosable(t, name.record))
			return name.record;
	}
	return INDEX_NONE;
}

/* When the time is short: the record used last, or what it stands on and is dirty, root first. A piece of the records at a
 * time is looked at, newest numbers of the order first; exact enough for what is given up when the time is over. */
static uint32_t newest(struct tiering *t)
{
	struct index *index = t->space->index;
	uint32_t passed[INDEX_STEP_KEYS * 4], n = 0, best = INDEX_NONE, at;

	while (n < INDEX_STEP_KEYS * 4 && (at = policy_lru.pop(t->dirty)) != INDEX_NONE)
		passed[n++] = at;
	for (uint32_t i = 0; i < n; i++)
		if (choosable(t, passed[i]))
			best = passed[i]; /* they come coldest first */
	for (uint32_t i = 0; i < n; i++)
		if (passed[i] != best)
			tiering_consider(t, passed[i]);
	if (best == INDEX_NONE)
		return best;
	at = best;
	for (uint32_t i = 0; i < INDEX_STEP_KEYS && at != INDEX_NONE; i++) {
		if (has_dirty(t, at) && choosable(t, at))
			best = at;
		at = index_record(index, at)->parent;
	}
	return best;
}

static uint32_t choose(struct tiering *t)
{
	uint32_t record = asked(t);

	if (record != INDEX_NONE)
		return record;
	return t->drain_newest ? newest(t) : coldest(t);
}

/* ---- WHOLE groups ---------------------------------------------------------------------------------------------------------- */

/* Under the lock: the ring of @record, which is choosable, is to be written, all of it. NULL: it is too long, or there is no
 * memory: each of it is written by itself. */
static struct ring *ring_new(struct tiering *t, uint32_t record)
{
	const struct tables *tables = &t->space->tables;
	struct ring *ring;
	uint32_t m = record, n = 0;

	do {
		if (n++ == SPILL_RING_MOST)
			return NULL;
		m = tables->records[m].whole_next;
	} while (m != record);
	ring = calloc(1, sizeof(*ring) + n * sizeof(ring->members[0]));
	if (!ring)
		return NULL;
	ring->members = (struct tiering_name *)(ring + 1);
	ring->id = catalogue_next_id(t->catalogue);
	do {
		ring->members[ring->count++] = name_of(t, m);
		m = tables->records[m].whole_next;
	} while (m != record);
	return ring;
}

/* Under the lock. The next of the ring, or INDEX_NONE: all are begun, or it has failed. */
static uint32_t ring_next(struct tiering *t, struct ring *ring)
{
	struct tiering_name name;

	if (ring->failed || ring->at == ring->count)
		return INDEX_NONE;
	name = ring->members[ring->at];
	if (alive(t, name) && writable(t, name.record)) {
		ring->at++;
		return name.record;
	}
	ring->failed = true;
	return INDEX_NONE;
}

/* ---- a write, made and unmade ------------------------------------------------------------------------------------------- */

static void link_in(struct tiering *t, struct spill *s)
{
	s->next = t->writing->first;
	if (s->next)
		s->next->prev = s;
	t->writing->first = s;
}

static void link_out(struct tiering *t, struct spill *s)
{
	if (s->prev)
		s->prev->next = s->next;
	else
		t->writing->first = s->next;
	if (s->next)
		s->next->prev = s->prev;
}

static void spill_delete(struct spill *s)
{
	free(s->keys);
	free(s->values);
	free(s->entries);
	free(s);
}

static bool is_its_records(struct tiering *t, const struct spill *s)
{
	return tiering_file(t, s->record)->writing == &s->write;
}

/* Without the lock. */
static struct spill *spill_make(struct tiering *t, uint32_t record, uint32_t pages)
{
	const struct layout *layout = t->space->layout;
	struct spill *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->t = t;
	s->record = record;
	s->value_count = pages * layout->page_columns + layout->row_columns;
	s->keys = calloc(pages + 1, sizeof(*s->keys));
	s->values = calloc(s->value_count, sizeof(*s->values));
	s->entries = calloc(s->value_count, sizeof(*s->entries));
	if (s->keys && s->values && s->entries)
		return s;
	spill_delete(s);
	return NULL;
}

/* Under the lock: what the file will be about. */
static void describe(struct tiering *t, struct spill *s)
{
	const struct record_entry *table = &t->space->tables.records[s->record];
	const struct record *r = index_record(t->space->index, s->record);
	struct record_file *f = tiering_file(t, s->record);
	struct record_file_id *id = &s->write.id;
	struct record_file_plan plan;

	s->row = r->flags & RECORD_FLAG_ROW;
	s->write.job.kind = DISK_JOB_WRITE;
	s->write.job.dir = t->dir;
	s->write.job.done = done;
	s->write.job.context = t;
	index_record_name(t->space->index, s->record, &s->write.job.consumed, &s->write.job.endpoint);
	id->endpoint = s->write.job.endpoint;
	id->parent = table->parent_key;
	id->start = table->start;
	id->generation = index_generation(t->space->index);
	id->created_s = table->created_s;
	id->pages = r->pages;
	id->flags = (r->flags & RECORD_FLAG_ROOT ? RECORD_FILE_ROOT : 0) | (s->row ? RECORD_FILE_ROW : 0);
	if (s->ring) {
		id->flags |= RECORD_FILE_WHOLE;
		id->whole_id = s->ring->id;
		id->whole_count = s->ring->count;
	}
	s->old_id = f->id;
	if (f->id) {
		s->write.old_consumed = table->start + (uint64_t)f->pages * t->space->layout->page_tokens;
		s->write.old_endpoint = f->endpoint;
		s->write.old_file_pages = f->file_pages;
	}
	record_file_plan(t->space->layout, r->pages, s->row, NULL, &plan);
	s->bytes = plan.file_bytes;
	s->write.keys = s->keys;
	s->write.values = s->values;
	f->writing = &s->write;
}

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
static uint32_t next_record(struct tiering *t, struct ring **ret_ring)
{
	uint32_t record;

	*ret_ring = t->writing->ring;
	if (t->closed || clock_now_ns() < t->retry_ns || !has_room(t, 0))
		return INDEX_NONE;
	if (*ret_ring) {
		record = ring_next(t, *ret_ring);
		if (record == INDEX_NONE)
			return INDEX_NONE; /* until it has ended */
		if (has_room(t, file_bytes_about(t, record)))
			return record;
		(*ret_ring)->at--;
		return INDEX_NONE;
	}
	if (!wanted(t))
		return INDEX_NONE;
	record = choose(t);
	if (record == INDEX_NONE) {
		t->wish.is = false; /* there is nothing that could be written */
		return INDEX_NONE;
	}
	if (!has_room(t, file_bytes_about(t, record))) {
		tiering_consider(t, record);
		return INDEX_NONE;
	}
	if (index_record(t->space->index, record)->flags & RECORD_FLAG_WHOLE) {
		*ret_ring = t->writing->ring = ring_new(t, record);
		if (*ret_ring) {
			tiering_consider(t, record);
			return ring_next(t, *ret_ring);
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
	struct ring *ring;
	uint32_t record, pages = 0;

	lock_take(&space->lock);
	look_at_rate(t);
	while (tiering_flush(t)) {
		lock_drop(&space->lock);
		lock_take(&space->lock);
	}
	record = next_record(t, &ring);
	if (record != INDEX_NONE) {
		name = name_of(t, record);
		pages = index_record(space->index, record)->pages;
		if (ring)
			ring->open++;
	}
	lock_drop(&space->lock);
	if (record == INDEX_NONE)
		return NULL;
	s = spill_make(t, record, pages);
	lock_take(&space->lock);
	if (s && alive(t, name) && writable(t, record) && index_record(space->index, record)->pages == pages && !t->closed) {
		s->ring = ring;
		describe(t, s);
		link_in(t, s);
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

/* ---- gathering ------------------------------------------------------------------------------------------------------------ */

/* Under the lock: where the bytes of one value are to come from. */
static uint64_t source(struct tiering *t, struct spill *s, uint32_t page, uint32_t column)
{
	const struct record_file *f = tiering_file(t, s->record);
	bool committed, in_file = f->id && (page == INDEX_PAGE_ROW ? (f->flags & TIERING_FILE_ROW) != 0 : page < f->pages);
	uint32_t entry = index_value(t->space->index, s->record, (uint16_t)page, column, &committed);

	if (entry == INDEX_NONE || !committed || t->space->tables.entries[entry].group)
		return DISK_ABSENT;
	if (tiering_is_place(t, entry)) {
		s->write.from_old |= in_file;
		return in_file ? DISK_FROM_OLD : DISK_ABSENT;
	}
	tiering_hold(t, entry);
	s->entries[s->count++] = entry;
	return slots_offset(t->space->slots, entry);
}

/* A page in the middle that has lost its name is written under one that nobody asks for. */
static struct key page_key(const struct tiering *t, const struct spill *s, uint32_t page)
{
	const struct key *key = index_page_key(t->space->index, s->record, (uint16_t)page);
	struct key none = s->write.id.endpoint;

	if (key)
		return *key;
	for (uint32_t i = 0; i < 4; i++)
		none.words[i] ^= (page + 1) * 0x9e3779b97f4a7c15ull + i;
	return none;
}

/* Which value @column of a page, or of the row, is. */
static const struct share *share_of(const struct layout *layout, bool row, uint32_t column)
{
	for (uint32_t c = 0; c < layout->classes; c++)
		if (layout_is_row(layout, c) == row && column - layout->class[c].first_column < layout->class[c].shares)
			return &layout->class[c].share[column - layout->class[c].first_column];
	abort();
}

/* The bytes behind the payloads of @count places from value @first on, zeroed: no older value's get into the file. Without the lock:
 * held slots are nobody else's. */
static void zero_padding(const struct spill *s, bool row, uint64_t first, uint32_t count)
{
	static const uint8_t zeroes[LAYOUT_VALUE_ALIGN];
	const struct layout *layout = s->t->space->layout;
	uint32_t columns = row ? layout->row_columns : layout->page_columns;

	for (uint32_t column = 0; column < columns; column++) {
		const struct share *share = share_of(layout, row, column);
		uint64_t more = share->slot_bytes - share->payload_bytes;

		for (uint32_t i = 0; more && i < count; i++) {
			uint64_t at = s->values[first + (uint64_t)i * columns + column];

			if (at < DISK_FROM_OLD)
				segment_write(s->t->space->segment, at + share->payload_bytes, zeroes, more);
		}
	}
}

/* False: the record has changed meanwhile. */
static bool gather_pages(struct spill *s, uint32_t page, uint32_t end)
{
	struct tiering *t = s->t;
	uint32_t columns = t->space->layout->page_columns;
	bool ours;

	lock_take(&t->space->lock);
	ours = is_its_records(t, s);
	for (uint32_t p = page; ours && p < end; p++) {
		s->keys[p] = page_key(t, s, p);
		for (uint32_t c = 0; c < columns; c++)
			s->values[(uint64_t)p * columns + c] = source(t, s, p, c);
	}
	lock_drop(&t->space->lock);
	if (ours)
		zero_padding(s, false, (uint64_t)page * columns, end - page);
	return ours;
}

static bool gather_row(struct spill *s)
{
	struct tiering *t = s->t;
	uint32_t rows = t->space->layout->row_columns;
	uint64_t first = (uint64_t)s->write.id.pages * t->space->layout->page_columns;
	bool ours;

	lock_take(&t->space->lock);
	ours = is_its_records(t, s);
	for (uint32_t c = 0; ours && c < rows; c++)
		s->values[first + c] = s->row ? source(t, s, INDEX_PAGE_ROW, c) : DISK_ABSENT;
	lock_drop(&t->space->lock);
	if (ours && rows)
		zero_padding(s, true, first, 1);
	return ours;
}

static bool gather(struct spill *s)
{
	uint32_t columns = s->t->space->layout->page_columns, pages = s->write.id.pages;
	uint32_t at_once = columns && columns < INDEX_STEP_KEYS ? INDEX_STEP_KEYS / columns : 1;
	bool ours = true;

	for (uint32_t page = 0; ours && page < pages; page += at_once)
		ours = gather_pages(s, page, pages - page < at_once ? pages : page + at_once);
	return ours && gather_row(s);
}

/* ---- the end of a write --------------------------------------------------------------------------------------------------- */

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
		bool ours = is_its_records(t, s);
		uint32_t end = s->count - at < INDEX_STEP_KEYS ? s->count : at + INDEX_STEP_KEYS;

		for (; at < end; at++) {
			uint32_t slot = s->entries[at];

			if (ours && clean && !tiering_is_clean(t, slot)) {
				assert(space->tables.entries[slot].state == ENTRY_VALUE && space->tables.entries[slot].record == s->record);
				tiering_make_clean(t, slot);
				space->stats.values_spilled++;
			}
			tiering_unhold(t, slot); /* with a tier that is disk only it leaves memory now */
		}
		last = at == s->count;
		if (last) {
			if (ours) {
				tiering_file(t, s->record)->writing = NULL;
				tiering_consider(t, s->record);
			}
			link_out(t, s);
			space_room(space);
		}
		lock_drop(&space->lock);
	} while (!last);
	spill_delete(s);
}

/* Without the lock: one of the ring has ended; the last one ends all. */
static void ring_ended(struct tiering *t, struct ring *ring, struct spill *s, bool good)
{
	struct space *space = t->space;
	bool all, clean;

	lock_take(&space->lock);
	ring->failed |= !good || (s && !is_its_records(t, s));
	ring->open--;
	if (s) {
		s->next_ended = ring->ended;
		ring->ended = s;
	}
	for (const struct spill *e = ring->ended; e; e = e->next_ended)
		ring->failed |= !is_its_records(t, e);
	all = !ring->open && (ring->failed || ring->at == ring->count);
	clean = all && !ring->failed;
	if (all)
		t->writing->ring = NULL;
	for (struct spill *e = all && !clean ? ring->ended : NULL; e; e = e->next_ended)
		if (is_its_records(t, e)) /* its file names a group that is not there */
			tiering_file(t, e->record)->flags |= TIERING_STALE;
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
static void ring_give_up(struct tiering *t)
{
	struct ring *ring;

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

static void undo(struct spill *s)
{
	struct ring *ring = s->ring;
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
		.alias = s->write.alias,
		.alias_count = layout->page_columns + layout->row_columns,
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

	if (!ours && !(f->id && f->id == s->old_id && f->pages == s->write.id.pages &&
		       !memcmp(&f->endpoint, &s->write.id.endpoint, sizeof(f->endpoint))))
		return;
	if (f->id)
		catalogue_remove(t->catalogue, f->id);
	else
		t->disk_files++;
	t->disk_bytes += s->write.file_bytes - f->bytes;
	f->id = catalogue_next_id(t->catalogue);
	f->bytes = s->write.file_bytes;
	f->endpoint = s->write.id.endpoint;
	f->pages = f->file_pages = (uint16_t)s->write.id.pages;
	if (ours)
		f->flags &= (uint8_t)~(TIERING_STALE | TIERING_FAILED | TIERING_FILE_ROW);
	f->flags |= s->row ? TIERING_FILE_ROW : 0;
	add_row(t, s, f->id, absent, absent_bytes);
	t->space->stats.files_written++;
	t->space->stats.bytes_spilled += s->write.file_bytes;
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

/* A worker has ended it. */
static void done(struct disk_job *job)
{
	struct spill *s = (struct spill *)job;
	struct tiering *t = s->t;
	struct space *space = t->space;
	int result = job->result;
	uint32_t absent_bytes;
	uint8_t *absent = absent_map(s, &absent_bytes);

	tiering_result(t, result, false);
	lock_take(&space->lock);
	t->writes--;
	t->writing_bytes -= s->bytes;
	if (!result) {
		note_time(t, clock_now_ns() - s->begun_ns);
		file_came(t, s, absent, absent_bytes);
	} else if (result != -ECANCELED) {
		space->stats.write_errors++;
		if (is_its_records(t, s))
			tiering_file(t, s->record)->flags |= TIERING_FAILED;
	}
	lock_drop(&space->lock);
	free(absent);
	if (s->ring)
		ring_ended(t, s->ring, s, !result);
	else
		end_write(s, !result);
	mover_ask(space->host);
	tiering_job_ended(t);
}

/* Hands it to the disk, with the trims before it. False: it is not to be written any more. */
static bool give(struct spill *s)
{
	struct tiering *t = s->t;
	struct space *space = t->space;
	bool ok;

	lock_take(&space->lock);
	while (tiering_flush(t)) {
		lock_drop(&space->lock);
		lock_take(&space->lock);
	}
	ok = is_its_records(t, s) && !t->closed;
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

/* ---- failures ------------------------------------------------------------------------------------------------------------ */

static bool lacks_room(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

/* Under the lock. */
static void close_tier(struct tiering *t, int error)
{
	t->closed = true;
	snprintf(t->error_text, sizeof(t->error_text), "the disk tier is closed after %u failures in a row, the last one: %s",
		 t->failures, strerror(-error));
	spill_cancel_all(t);
	space_room(t->space);
}

/* Under the lock. */
static void note_failure(struct tiering *t, int error, bool read)
{
	uint64_t now = clock_now_ns();

	t->error = -error;
	if (!read) {
		t->retry_pause_ns = t->retry_pause_ns * 2 < SPILL_PAUSE_MIN ? SPILL_PAUSE_MIN : t->retry_pause_ns * 2;
		t->retry_pause_ns = t->retry_pause_ns > SPILL_PAUSE_MAX ? SPILL_PAUSE_MAX : t->retry_pause_ns;
		t->retry_ns = now + t->retry_pause_ns;
	}
	t->full = lacks_room(error);
	snprintf(t->error_text, sizeof(t->error_text), "%s: %s", read ? "reading a record file" : "writing a record file", strerror(-error));
	if (!lacks_room(error)) {
		t->failing_since_ns = t->failures ? t->failing_since_ns : now;
		t->failures++;
	}
	if (t->failures >= SPILL_CLOSE_FAILURES && now - t->failing_since_ns >= SPILL_CLOSE_NS)
		close_tier(t, error);
}

void tiering_result(struct tiering *t, int error, bool read)
{
	if (error == -ECANCELED)
		return;
	lock_take(&t->space->lock);
	if (t->closed) {
		/* stays so */
	} else if (error) {
		note_failure(t, error, read);
	} else {
		t->failures = 0;
		if (!read) {
			t->error = 0;
			t->error_text[0] = 0;
			t->full = false;
			t->retry_ns = t->retry_pause_ns = 0;
		}
	}
	lock_drop(&t->space->lock);
}

/* ---- the mover's part ----------------------------------------------------------------------------------------------------- */

void spill_run(struct tiering *t)
{
	struct spill *s;

	lock_assert_none_held();
	ring_give_up(t);
	while ((s = write_of(t))) {
		if (!gather(s) || !give(s))
			undo(s);
		ring_give_up(t);
	}
}

void spill_cancel_all(struct tiering *t)
{
	lock_assert_held(&t->space->lock);
	for (struct spill *s = t->writing->first; s; s = s->next) {
		atomic_store(&s->write.job.cancelled, true);
		if (is_its_records(t, s))
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
		ring_give_up(t);
	}
	free(t->writing);
	t->writing = NULL;
}
