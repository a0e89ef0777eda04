/* SPDX-License-Identifier: Apache-2.0
 *
 * After a start: the index is filled from the catalogue and one listing of the files, or, where the catalogue does not know a
 * file, from that file's own header and key segment (docs/disk.md, "The catalogue").
 *
 * Newest first: a file that has a page which is known already is the older one, and is cut before it. Nobody else knows the space
 * yet; the lock is taken all the same, for as long as the index may be worked on in one stay.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/restart_private.h"

#define RESTART_FLUSH_NS 10000000000ull /* for half a queue of the catalogue */
#define RESTART_TOLD 256u               /* records adopted, between two words to who touches memory */
#define RESTART_NEAR_S 2                /* the catalogue may not know what was written so shortly before the end */

struct ring { /* of a WHOLE group */
	uint64_t id;
	uint32_t record; /* one of it */
	uint32_t there, wanted;
};

struct restart {
	struct tiering *t;
	struct listing listing;
	struct present *present;
	struct ring *rings;
	uint32_t ring_count, ring_capacity;
	uint32_t *entries; /* of the record that is being adopted */
	size_t entry_capacity;
	uint32_t order;    /* records adopted so far: the younger, the later used */
	uint64_t generation; /* files of older ones are what a reset left */
	uint64_t *gone;    /* rows of the catalogue that go */
	uint32_t gone_count, gone_capacity;
	bool sizes;        /* the listing has lengths and times: a row that says otherwise is not believed */
	uint64_t dropped, foreign, foreign_bytes, damaged, cut;
	bool no_memory;
	struct why why;
};

/* ---- WHOLE groups ------------------------------------------------------------------------------------------------- */

/* The group's row, made if it is new; NULL: no memory. */
static struct ring *ring_of(struct restart *r, uint64_t id, uint32_t wanted)
{
	for (uint32_t i = r->ring_count; i-- > 0;) /* its files were written one after the other */
		if (r->rings[i].id == id)
			return &r->rings[i];
	if (r->ring_count == r->ring_capacity) {
		uint32_t capacity = r->ring_capacity ? 2 * r->ring_capacity : 64;
		struct ring *rings = realloc(r->rings, capacity * sizeof(*rings));

		if (!rings)
			return NULL;
		r->rings = rings;
		r->ring_capacity = capacity;
	}
	r->rings[r->ring_count] = (struct ring){ id, INDEX_NONE, 0, wanted };
	return &r->rings[r->ring_count++];
}

/* Under the lock. */
static void drop_place(struct space *space, uint32_t record, uint32_t page, uint32_t column)
{
	struct index_sink sink = space_sink(space);
	uint32_t entry = index_value(space->index, record, (uint16_t)page, column, NULL);

	if (entry != INDEX_NONE)
		index_value_drop(space->index, entry, false, &sink);
}

/* Under the lock: all values of a record, which may be gone then. */
static void drop_values(struct space *space, uint32_t record)
{
	const struct layout *layout = space->layout;
	const struct record *at = index_record(space->index, record);
	uint32_t generation = at->generation;

	for (uint32_t c = 0; c < layout->row_columns && at->generation == generation; c++)
		drop_place(space, record, INDEX_PAGE_ROW, c);
	for (uint32_t page = at->pages; page-- > 0;)
		for (uint32_t c = 0; c < layout->page_columns && at->generation == generation && page < at->pages; c++)
			drop_place(space, record, page, c);
}

/* Under the lock: a group that others stand on cannot leave the tree; its values go, and its pages stay as hollow ones. */
static void drop_ring_values(struct restart *r, const struct ring *ring)
{
	struct space *space = r->t->space;
	uint32_t *members = calloc(ring->there, sizeof(*members)), n = 0, at = ring->record;

	if (!members) {
		r->no_memory = true;
		return;
	}
	do
		members[n++] = at;
	while (n < ring->there && (at = space->tables.records[at].whole_next) != ring->record);
	for (uint32_t i = 0; i < n; i++)
		drop_values(space, members[i]);
	free(members);
}

/* Groups of which files are missing go as a whole. */
static void drop_broken_rings(struct restart *r)
{
	struct space *space = r->t->space;

	for (uint32_t i = 0; i < r->ring_count; i++) {
		struct index_sink sink = space_sink(space);
		const struct ring *ring = &r->rings[i];

		if (ring->record == INDEX_NONE || ring->there == ring->wanted)
			continue;
		lock_take(&space->lock);
		if (index_evict_record(space->index, ring->record, &sink, &r->why))
			drop_ring_values(r, ring);
		r->dropped += ring->there;
		lock_drop(&space->lock);
	}
}

/* ---- one record ----------------------------------------------------------------------------------------------------- */

/* What a catalogue's row or a file says. */
struct found {
	uint64_t id;
	struct key endpoint, parent;
	uint64_t start, file_bytes, whole_id;
	int64_t created_s, written_s;
	const struct key *keys;
	const uint8_t *absent;  /* bitmap as in the catalogue, or NULL */
	const uint64_t *sums;   /* in place of it, of a file: 0 = absent; or NULL */
	const uint16_t *alias;  /* of so many columns; or NULL */
	uint32_t alias_count;
	uint32_t pages, file_pages, whole_count;
	bool root, row, whole, pinned;
};

static bool is_absent(const struct found *f, const struct layout *layout, uint32_t page, uint32_t column)
{
	size_t at = page == INDEX_PAGE_ROW ? (size_t)f->file_pages * layout->page_columns + column :
					     (size_t)page * layout->page_columns + column;

	if (f->sums)
		return !f->sums[at];
	return f->absent && f->absent[at / 8] >> at % 8 & 1;
}

static void give_places(struct restart *r, uint32_t count)
{
	for (uint32_t i = count; i-- > 0;)
		if (r->entries[i] != INDEX_NONE)
			tiering_place_give(r->t, r->entries[i]);
}

/* False: there is none left. */
static bool take_place(struct restart *r, uint32_t at, bool absent)
{
	r->entries[at] = absent ? INDEX_NONE : tiering_place_take(r->t);
	return absent || r->entries[at] != INDEX_NONE;
}

/* Places for all that is in the file, in r->entries. False: there are none left, and none was taken, or r->no_memory. */
static bool take_places(struct restart *r, const struct found *f, uint32_t pages, bool row, uint32_t *count)
{
	const struct layout *layout = r->t->space->layout;
	size_t n = (size_t)pages * layout->page_columns + layout->row_columns;
	uint32_t at = 0;
	bool ok = true;

	if (n > r->entry_capacity) {
		uint32_t *entries = realloc(r->entries, n * sizeof(*entries));

		r->no_memory |= !entries;
		if (!entries)
			return false;
		r->entries = entries;
		r->entry_capacity = n;
	}
	for (uint32_t page = 0; page < pages; page++)
		for (uint32_t c = 0; ok && c < layout->page_columns; c++)
			ok = take_place(r, at++, is_absent(f, layout, page, c));
	for (uint32_t c = 0; ok && c < layout->row_columns; c++)
		ok = take_place(r, at++, !row || is_absent(f, layout, INDEX_PAGE_ROW, c));
	if (!ok)
		give_places(r, at);
	*count = at;
	return ok;
}

/* Pages from the beginning that nobody else has. */
static uint32_t pages_unknown(struct restart *r, const struct found *f)
{
	struct index_hit hits[INDEX_STEP_KEYS];

	for (uint32_t page = 0; page < f->pages; page += INDEX_STEP_KEYS) {
		uint32_t n = f->pages - page < INDEX_STEP_KEYS ? f->pages - page : INDEX_STEP_KEYS;

		index_lookup(r->t->space->index, &f->keys[page], n, 0, hits);
		for (uint32_t i = 0; i < n; i++)
			if (hits[i].record != INDEX_NONE)
				return page + i;
	}
	return f->pages;
}

/* Under the lock: its first @pages and its row as a record. 0, INDEX_E_TWICE, INDEX_E_FULL. */
static int adopt_as(struct restart *r, const struct found *f, uint32_t pages, bool row, struct ring *ring, uint32_t *ret)
{
	struct tiering *t = r->t;
	uint32_t count, tick = index_clock(t->space->index) - r->order;
	struct index_adoption adoption = {
		.parent = f->root ? NULL : &f->parent,
		.endpoint = &f->endpoint,
		.keys = f->keys,
		.start = f->start,
		.pages = pages,
		.flags = (f->whole ? RECORD_WHOLE : 0) | (f->pinned ? RECORD_PINNED : 0),
		.whole_ring = ring ? ring->record : INDEX_NONE,
		.created_s = (uint32_t)f->created_s,
		.last_use_s = (uint32_t)f->written_s,
		.tick = tick,
	};
	int e;

	if (!take_places(r, f, pages, row, &count))
		return INDEX_E_FULL;
	adoption.entries = r->entries;
	e = index_adopt(t->space->index, &adoption, ret);
	if (e)
		give_places(r, count);
	return e;
}

static void describe_file(struct restart *r, uint32_t record, const struct found *f)
{
	struct tiering *t = r->t;
	struct record_file *file = tiering_file(t, record);

	file->id = f->id;
	file->endpoint = f->endpoint;
	file->bytes = f->file_bytes;
	file->pages = (uint16_t)f->pages;
	file->file_pages = (uint16_t)f->file_pages;
	file->alias = tiering_alias_of(t, f->alias, f->alias_count);
	file->flags |= f->row ? TIERING_FILE_ROW : 0;
	tiering_row_set(t, record, false);
	t->disk_bytes += f->file_bytes;
	t->disk_files++;
}

static void row_goes(struct restart *r, uint64_t id)
{
	if (r->gone_count == r->gone_capacity) {
		uint32_t capacity = r->gone_capacity ? 2 * r->gone_capacity : 1024;
		uint64_t *gone = realloc(r->gone, capacity * sizeof(*gone));

		if (!gone) {
			r->no_memory = true;
			return;
		}
		r->gone = gone;
		r->gone_capacity = capacity;
	}
	r->gone[r->gone_count++] = id;
}

static void remove_file(struct restart *r, const struct found *f)
{
	struct tiering *t = r->t;

	lock_take(&t->space->lock);
	tiering_remove_file(t, f->start + (uint64_t)f->pages * t->space->layout->page_tokens, &f->endpoint);
	lock_drop(&t->space->lock);
	row_goes(r, f->id);
	r->dropped++;
}

/* Under the lock: is the file longer than its name says? A death came between its renaming and its cut. */
static bool half_cut(const struct tiering *t, uint32_t record, const struct found *f)
{
	struct record_file_plan plan;

	record_file_plan(t->space->layout, f->file_pages, f->row, tiering_file_alias(t, &t->files[record]), &plan);
	return !f->row && f->file_bytes > record_file_length(&plan, f->pages);
}

/* A record for the first @pages of @f, all of them but of a file that is too short; what of it is known already is cut off. False: none
 * could be made, its file goes. */
static bool adopt(struct restart *r, const struct found *f, uint32_t pages)
{
	struct tiering *t = r->t;
	struct ring *ring = f->whole ? ring_of(r, f->whole_id, f->whole_count) : NULL;
	uint32_t record = INDEX_NONE;
	bool row = f->row;
	int e;

	if (f->whole && !ring) {
		r->no_memory = true;
		return true;
	}
	if (pages < f->pages && f->whole)
		return false;
	lock_take(&t->space->lock);
	e = adopt_as(r, f, pages, row, ring, &record);
	if (e == INDEX_E_TWICE && !f->whole) {
		uint32_t unknown = pages_unknown(r, f);

		pages = unknown < pages ? unknown : pages;
		row = false;
		if (pages)
			e = adopt_as(r, f, pages, row, NULL, &record);
		r->cut += !e;
	}
	if (!e) {
		describe_file(r, record, f);
		if (pages < f->pages || row != f->row || half_cut(t, record, f))
			tiering_lost(t, row != f->row && pages == f->pages ? INDEX_LOST_ROW : INDEX_LOST_PAGES, record, INDEX_NONE);
		r->order++;
	}
	lock_drop(&t->space->lock);
	if (!e)
		killpoint(KILLPOINT_ADOPT);
	if (!e && r->order % RESTART_TOLD == 0)
		present_moved(r->present, RESTART_TOLD);
	if (!e && ring) {
		ring->record = record;
		ring->there++;
	}
	return !e || r->no_memory; /* then nothing is judged */
}

/* ---- from the catalogue ---------------------------------------------------------------------------------------------- */

/* Another file may have come to the name since the row was written, as long as the one that it knows. It has a later time, or, if that was
 * within a second, one that is near the end; then the header knows. One that cannot be read is found out by the first read. */
static bool overtaken(const struct restart *r, const struct listed *file, const struct catalogue_row *row)
{
	struct disk_file_info info;
	bool other;

	if (!r->sizes)
		return false;
	if (file->bytes != row->file_bytes)
		return true;
	if (file->mtime_s < row->written_s || (file->mtime_s == row->written_s && file->mtime_s < r->listing.newest_s - RESTART_NEAR_S))
		return false;
	if (disk_file_look(r->t->dir, file->consumed, &file->endpoint, &info, NULL))
		return false;
	other = info.id.nonce != row->nonce;
	free(info.segment);
	return other;
}

static void fetch_ahead(const struct restart *r, const struct catalogue_row *row)
{
	struct space *space = r->t->space;

	lock_take(&space->lock);
	index_adopt_prefetch(space->index, row->flags & CATALOGUE_ROOT ? NULL : &row->parent, row->keys, row->pages);
	lock_drop(&space->lock);
}

static bool row_found(void *context, const struct catalogue_row *row, const struct catalogue_row *ahead)
{
	struct restart *r = context;
	struct listed *file = listing_find(&r->listing, row->consumed, &row->endpoint);
	struct found f = {
		.id = row->id,
		.endpoint = row->endpoint,
		.parent = row->parent,
		.start = row->start,
		.file_bytes = row->file_bytes,
		.whole_id = row->whole_id,
		.whole_count = row->whole_count,
		.created_s = row->created_s,
		.written_s = row->written_s,
		.keys = row->keys,
		.absent = row->absent,
		.alias = row->alias,
		.alias_count = row->alias ? row->alias_count : 0,
		.pages = row->pages,
		.file_pages = row->file_pages,
		.root = row->flags & CATALOGUE_ROOT,
		.row = row->flags & CATALOGUE_ROW,
		.whole = row->flags & CATALOGUE_WHOLE,
		.pinned = row->flags & CATALOGUE_PINNED,
	};

	if (!file || file->seen || row->generation < r->generation || overtaken(r, file, row)) {
		row_goes(r, row->id); /* its file went, or is another one by now, which is looked at below */
		return !r->no_memory;
	}
	file->seen = true;
	if (ahead)
		fetch_ahead(r, ahead);
	if (!adopt(r, &f, f.pages))
		remove_file(r, &f);
	return !r->no_memory;
}

/* ---- from the files ----------------------------------------------------------------------------------------------------- */

static bool any_alias(const struct found *f)
{
	for (uint32_t i = 0; i < f->alias_count; i++)
		if (f->alias[i] != i)
			return true;
	return false;
}

static void catalogue_file(struct restart *r, const struct found *f, const struct disk_file_info *info, const uint8_t *absent, uint32_t bytes)
{
	struct tiering *t = r->t;
	struct catalogue_row row = {
		.id = f->id,
		.nonce = info->id.nonce,
		.start = f->start,
		.consumed = f->start + (uint64_t)f->pages * t->space->layout->page_tokens,
		.generation = info->id.generation,
		.file_bytes = f->file_bytes,
		.whole_id = f->whole_id,
		.whole_count = f->whole_count,
		.created_s = f->created_s,
		.written_s = f->written_s,
		.endpoint = f->endpoint,
		.parent = f->parent,
		.keys = f->keys,
		.absent = absent,
		.absent_bytes = bytes,
		.alias = any_alias(f) ? f->alias : NULL,
		.alias_count = any_alias(f) ? f->alias_count : 0,
		.pages = f->pages,
		.file_pages = f->file_pages,
		.flags = (f->root ? CATALOGUE_ROOT : 0) | (f->whole ? CATALOGUE_WHOLE : 0) | (f->row ? CATALOGUE_ROW : 0),
	};

	catalogue_add(t->catalogue, &row);
}

/* Bitmap of what the file lacks, to be freed; NULL: it lacks nothing (or there is no memory, and the catalogue will say too much: the
 * first read finds that). */
static uint8_t *absent_of(const uint64_t *sums, size_t count, uint32_t *ret_bytes)
{
	uint8_t *absent = NULL;

	*ret_bytes = 0;
	for (size_t i = 0; i < count; i++) {
		if (sums[i])
			continue;
		if (!absent)
			absent = calloc(1, (count + 7) / 8);
		if (!absent)
			return NULL;
		absent[i / 8] |= (uint8_t)(1u << i % 8);
	}
	if (absent)
		*ret_bytes = (uint32_t)((count + 7) / 8);
	return absent;
}

static void adopt_file(struct restart *r, const struct listed *file, const struct disk_file_info *info)
{
	struct tiering *t = r->t;
	const struct layout *layout = t->space->layout;
	struct why why = WHY_INIT;
	struct found f = {
		.endpoint = file->endpoint,
		.parent = info->id.parent,
		.start = info->id.start,
		.file_bytes = info->file_bytes,
		.whole_id = info->id.whole_id,
		.whole_count = info->id.whole_count,
		.created_s = info->id.created_s,
		.written_s = info->mtime_s,
		.pages = (uint32_t)((file->consumed - info->id.start) / layout->page_tokens), /* of its name, which was checked */
		.file_pages = info->plan.pages,
		.alias = info->alias,
		.alias_count = layout->page_columns + layout->row_columns,
		.root = info->id.flags & RECORD_FILE_ROOT,
		.whole = info->id.flags & RECORD_FILE_WHOLE,
		.row = info->row,
	};
	uint32_t bytes;

	if (info->id.generation < r->generation) {
		remove_file(r, &f);
		return;
	}
	if (record_file_read_keys(info->segment, &info->plan, &f.keys, &f.sums, &why) || (!info->pages && !f.row)) {
		r->damaged++;
		remove_file(r, &f);
		return;
	}
	f.id = catalogue_next_id(t->catalogue);
	if (!adopt(r, &f, info->pages)) {
		remove_file(r, &f);
		return;
	}
	uint8_t *absent = absent_of(f.sums, (size_t)f.file_pages * layout->page_columns + layout->row_columns, &bytes);

	catalogue_file(r, &f, info, absent, bytes);
	free(absent);
}

static void look_at_file(struct restart *r, const struct listed *file)
{
	struct tiering *t = r->t;
	struct disk_file_info info;
	struct why why = WHY_INIT;
	int e = disk_file_look(t->dir, file->consumed, &file->endpoint, &info, &why);

	if (!e) {
		adopt_file(r, file, &info);
		free(info.segment);
	} else if (e == -ENOTSUP || e == -EXDEV) {
		r->foreign++; /* left alone */
		r->foreign_bytes += disk_file_bytes(t->dir, file->consumed, &file->endpoint);
	} else if (e == -EINVAL) {
		r->damaged++;
		lock_take(&t->space->lock);
		tiering_remove_file(t, file->consumed, &file->endpoint);
		lock_drop(&t->space->lock);
	} else if (e != -ENOENT) {
		t->space->stats.read_errors++;
	}
}

static int newer(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;

	return x->mtime_s != y->mtime_s ? (x->mtime_s < y->mtime_s) - (x->mtime_s > y->mtime_s) : memcmp(&y->endpoint, &x->endpoint, sizeof(x->endpoint));
}

/* Files that the catalogue does not know, newest first. */
static void look_at_files(struct restart *r)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < r->listing.count; i++)
		if (!r->listing.files[i].seen)
			r->listing.files[left++] = r->listing.files[i];
	if (left)
		qsort(r->listing.files, left, sizeof(*r->listing.files), newer);
	for (uint32_t i = 0; i < left && !r->no_memory; i++) {
		look_at_file(r, &r->listing.files[i]);
		if (i % (CATALOGUE_QUEUE / 2) == CATALOGUE_QUEUE / 2 - 1)
			catalogue_flush(r->t->catalogue, RESTART_FLUSH_NS);
	}
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------ */

static void forget_rows(struct restart *r)
{
	for (uint32_t i = 0; i < r->gone_count; i++) {
		catalogue_remove(r->t->catalogue, r->gone[i]);
		if (i % (CATALOGUE_QUEUE / 2) == CATALOGUE_QUEUE / 2 - 1)
			catalogue_flush(r->t->catalogue, RESTART_FLUSH_NS);
	}
}

/* Where one resumes at rows alone, records without one that carry nothing are of no use. Parents that become so follow. */
static void prune(struct restart *r)
{
	struct space *space = r->t->space;
	uint32_t limit;

	if (!space->layout->row_columns)
		return;
	lock_take(&space->lock);
	limit = index_record_limit(space->index);
	for (uint32_t n = 0; n < limit; n++) {
		struct index_sink sink = space_sink(space);
		uint32_t at = n;

		while (at != INDEX_NONE && index_record_visible(space->index, at)) {
			const struct record *record = index_record(space->index, at);
			uint32_t parent = record->parent;

			if (record->flags & (RECORD_FLAG_ROW | RECORD_FLAG_WHOLE | RECORD_FLAG_HELD) || record->children ||
			    index_evict_record(space->index, at, &sink, &r->why))
				break;
			r->dropped++;
			at = parent;
		}
		if (n % INDEX_STEP_KEYS == INDEX_STEP_KEYS - 1) {
			lock_drop(&space->lock);
			lock_take(&space->lock);
		}
	}
	lock_drop(&space->lock);
}

static void settle(struct restart *r)
{
	struct space *space = r->t->space;
	uint32_t cursor = 0;
	bool more = true;

	while (more) {
		lock_take(&space->lock);
		more = index_adopt_settle(space->index, &cursor);
		lock_drop(&space->lock);
	}
}

static void flush_trims(struct restart *r)
{
	struct space *space = r->t->space;
	bool more = true;

	while (more) {
		lock_take(&space->lock);
		more = tiering_flush(r->t);
		lock_drop(&space->lock);
	}
}

/* The listing, and beside it the reading of the catalogue that is to be compared with it. */
static int fill_from_rows(struct restart *r, bool fresh, bool sizes, struct why *why)
{
	struct tiering *t = r->t;
	struct rows *rows = NULL;
	int e = fresh ? 0 : rows_begin(t->catalogue, &rows, why);

	e = e ? e : listing_make(t->dir, sizes, &r->listing, why);
	if (!e && rows)
		e = rows_each(rows, row_found, r, why);
	rows_end(&rows);
	return e == -EBADMSG ? 0 : e; /* it is made anew, the rows that were given are as good as they were */
}

static int fill(struct restart *r, bool fresh, bool behind, struct why *why)
{
	struct tiering *t = r->t;
	int e;

	r->sizes = behind && !fresh;
	e = fill_from_rows(r, fresh, fresh || behind, why);
	if (e)
		return e;
	killpoint(KILLPOINT_RESTART_ROWS);
	forget_rows(r);
	look_at_files(r);
	killpoint(KILLPOINT_RESTART_FILES);
	if (r->no_memory)
		return why_set(why, ENOMEM, "namespace %s: no memory to read its %u record files in", t->space->name, r->listing.count);
	drop_broken_rings(r);
	settle(r);
	prune(r);
	flush_trims(r);
	killpoint(KILLPOINT_RESTART_SETTLED);
	catalogue_mended(t->catalogue);
	return 0;
}

int tiering_restart(struct tiering *t, struct why *why)
{
	struct restart r = { .t = t, .why = WHY_INIT };
	int e;

	lock_assert_none_held();
	r.generation = tiering_saved_generation(t->dir);
	lock_take(&t->space->lock);
	index_begin_at(t->space->index, r.generation);
	t->generation = r.generation;
	atomic_store(&t->space->generation, r.generation);
	lock_drop(&t->space->lock);
	r.present = present_begin(t);
	e = fill(&r, t->fresh, t->behind, why);
	present_end(&r.present);
	t->foreign_files = r.foreign;
	t->foreign_bytes = r.foreign_bytes;
	t->space->stats.files_dropped += r.dropped + r.damaged;
	t->space->stats.files_cut += r.cut;
	listing_free(&r.listing);
	free(r.rings);
	free(r.entries);
	free(r.gone);
	return e;
}
