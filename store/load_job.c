/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of values as jobs for the disk: put together by files, and what becomes of each value when one has ended.
 */
#include "store/load_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/host_private.h"

#define RATE_BYTES (1ull << 20) /* smaller reads tell nothing about the disk */

/* ---- errors --------------------------------------------------------------------------------------------------------- */

bool load_error_of_value(int error)
{
	return error == -EBADMSG || error == -ENODATA || error == -ENOENT || error == -EXDEV || error == -ENOTSUP ||
	       error == -EINVAL;
}

bool load_error_of_disk(int error)
{
	return error && !load_error_of_value(error) && error != -ECANCELED && error != -ENOMEM && error != -EMFILE &&
	       error != -ENFILE && error != -EAGAIN;
}

/* Another share's slot has the bytes of @place: nothing is lost with the file, which is written anew. */
static bool keep_alike(struct tiering *t, uint32_t place)
{
	uint32_t slot = tiering_alike(t, place), record = t->space->tables.entries[place].record;

	if (slot == INDEX_NONE)
		return false;
	if (tiering_is_clean(t, slot))
		tiering_make_dirty(t, slot);
	tiering_file_stale(t, record);
	return true;
}

void load_lose(struct tiering *t, uint32_t place)
{
	struct space *space = t->space;
	const struct entry *e = &space->tables.entries[place];
	struct host_event event = { .kind = HOST_EVENT_CORRUPT, .pages = e->page };
	struct index_sink sink = space_sink(space);
	uint32_t record = e->record;

	lock_assert_held(&space->lock);
	assert(tiering_is_place(t, place) && e->state == ENTRY_VALUE);
	if (keep_alike(t, place))
		return;
	space->stats.loads_failed++;
	if (!index_record_current(space->index, e->record))
		return; /* a reset hid it: its file went, and it goes itself when nobody holds it */
	index_record_name(space->index, e->record, &event.consumed, &event.endpoint);
	space_note(space, &event);
	if (ring_is(t, e->record))
		ring_lose(space, e->record, &sink);
	if (tiering_has_value(t, place))
		index_value_drop(space->index, place, false, &sink);
	fills_value_lost(space, record, (uint16_t)event.pages);
}

/* Under the lock: one value of a file that is not there or damaged as a whole. One in memory is not on disk then. */
static void lose_copy(struct tiering *t, uint32_t record, uint32_t page, uint32_t column)
{
	struct index_sink sink = space_sink(t->space);
	bool committed;
	uint32_t entry = index_value(t->space->index, record, (uint16_t)page, column, &committed);

	if (entry == INDEX_NONE || !committed)
		return;
	if (!tiering_is_place(t, entry)) {
		if (tiering_is_clean(t, entry))
			tiering_make_dirty(t, entry);
		return;
	}
	if (keep_alike(t, entry))
		return;
	t->space->stats.loads_failed++;
	if (ring_is(t, record))
		ring_lose(t->space, record, &sink);
	if (tiering_has_value(t, entry))
		index_value_drop(t->space->index, entry, false, &sink);
	fills_value_lost(t->space, record, (uint16_t)page);
}

bool load_error_of_file(int error)
{
	return error == -EBADMSG || error == -ENOENT;
}

/* Under the lock: is it still the record's? A write has made another one since, or the record went. */
static bool file_of(struct tiering *t, uint32_t record, uint64_t id)
{
	return !t->closed && tiering_file(t, record)->id == id && index_record(t->space->index, record)->state == RECORD_LIVE &&
	       index_record_current(t->space->index, record);
}

void load_lose_file(struct tiering *t, uint32_t record, uint64_t id)
{
	struct space *space = t->space;
	const struct layout *layout = space->layout;
	uint32_t page = UINT32_MAX, pages = INDEX_STEP_KEYS / (layout->page_columns ? layout->page_columns : 1);

	lock_assert_none_held();
	while (page) {
		lock_take(&space->lock);
		const struct record *r = index_record(space->index, record);
		bool there = file_of(t, record, id);

		for (uint32_t c = 0; c < layout->row_columns && there && page == UINT32_MAX; c++)
			lose_copy(t, record, INDEX_PAGE_ROW, c);
		page = !there ? 0 : page < r->pages ? page : r->pages;
		for (uint32_t n = 0; page && n < (pages ? pages : 1); n++) {
			page--;
			for (uint32_t c = 0; c < layout->page_columns && file_of(t, record, id); c++)
				lose_copy(t, record, page, c);
		}
		if (file_of(t, record, id))
			tiering_consider(t, record);
		space_room(space);
		lock_drop(&space->lock);
	}
}

/* ---- giving --------------------------------------------------------------------------------------------------------- */

/* Takes the loads of one record out of the queue, those of the first. Those that nobody wants any more end at once. Returns
 * how many are in @chosen. */
static uint32_t choose(struct tiering *t, uint32_t *chosen)
{
	struct loads *l = t->loads;
	uint32_t record = l->at[l->first].record, count = 0, last = 0;
	uint32_t *link = &l->first;

	while (*link && count < LOAD_JOB_VALUES) {
		struct load *load = &l->at[*link];

		if (load->record != record && load_counts(load)) {
			last = *link;
			link = &load->next;
			continue;
		}
		uint32_t number = *link;

		*link = load->next;
		if (load_counts(load)) {
			chosen[count++] = number;
		} else {
			t->space->stats.loads_cancelled += !load->wanters;
			load_end(t, load, LOAD_FAILED);
		}
	}
	if (!*link)
		l->last = last;
	return count;
}

/* Before its place in the file? */
static bool before(const struct load *a, const struct load *b)
{
	return a->page != b->page ? a->page < b->page : a->column < b->column;
}

static void sort(const struct loads *l, uint32_t *chosen, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++) { /* mostly they are in order */
		uint32_t number = chosen[i], at = i;

		for (; at > 0 && before(&l->at[number], &l->at[chosen[at - 1]]); at--)
			chosen[at] = chosen[at - 1];
		chosen[at] = number;
	}
}

static void job_done(struct disk_job *job);

/* Where the bytes of what @load waits for are in memory. After an error of the copying it is read. */
static uint32_t source_of(struct tiering *t, const struct load *load)
{
	return load->errors ? INDEX_NONE : tiering_alike(t, load->place);
}

static struct load_job *job_new(struct tiering *t, uint32_t record, const uint32_t *chosen, uint32_t count, bool copy)
{
	const struct record_file *f = tiering_file(t, record);
	size_t bytes = sizeof(struct load_job) + count * (sizeof(struct disk_read_value) + sizeof(struct key));
	struct load_job *job = calloc(1, bytes);

	if (!job)
		return NULL;
	job->tiering = t;
	job->wanted = count;
	job->record = record;
	job->file = f->id;
	job->keys = (struct key *)&job->values[count];
	job->read = (struct disk_read){
		.job = {
			.kind = copy ? DISK_JOB_COPY : DISK_JOB_READ,
			.dir = t->dir,
			.consumed = tiering_file_consumed(t, record),
			.endpoint = f->endpoint,
			.done = job_done,
			.context = job,
		},
		.pages = f->pages,
		.file_pages = f->file_pages,
		.alias = tiering_file_alias(t, f),
		.keys = job->keys,
		.values = job->values,
		.count = count,
	};
	for (uint32_t i = 0; i < count; i++) {
		struct load *load = &t->loads->at[chosen[i]];

		job->keys[i] = load->key;
		job->values[i] = (struct disk_read_value){
			.page = load->page,
			.column = load->column,
			.to = slots_offset(t->space->slots, load->slot),
			.context = (void *)(uintptr_t)chosen[i],
		};
		load->step = LOAD_GIVEN;
		load->job = job;
		if (!copy)
			continue;
		load->from = source_of(t, load);
		tiering_hold(t, load->from);
		job->values[i].from = slots_offset(t->space->slots, load->from);
	}
	return job;
}

/* Loads that no job can be made of. */
static void end_all(struct tiering *t, const uint32_t *chosen, uint32_t count, enum load_state end)
{
	for (uint32_t i = 0; i < count; i++) {
		struct load *load = &t->loads->at[chosen[i]];
		uint32_t place = load->place;

		load_end(t, load, end);
		if (end == LOAD_FAILED && !t->closed)
			load_lose(t, place);
	}
	space_committed(t->space);
}

/* Puts those that can be copied first. Returns how many. */
static uint32_t copies_first(struct tiering *t, uint32_t *chosen, uint32_t count)
{
	uint32_t copies = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t number = chosen[i];

		if (source_of(t, &t->loads->at[number]) == INDEX_NONE)
			continue;
		chosen[i] = chosen[copies];
		chosen[copies++] = number;
	}
	return copies;
}

/* Loads of one record, all copies or none. */
static void submit(struct tiering *t, uint32_t *chosen, uint32_t count, bool copy)
{
	uint32_t record = t->loads->at[chosen[0]].record;
	struct load_job *job;

	if (!copy && (t->closed || !tiering_file(t, record)->id)) { /* a row whose file went: tiering.c, row_joined */
		end_all(t, chosen, count, LOAD_FAILED);
		return;
	}
	sort(t->loads, chosen, count);
	job = job_new(t, record, chosen, count, copy);
	if (job)
		tiering_give(t, &job->read.job);
	else
		end_all(t, chosen, count, LOAD_NONE);
}

void load_submit(struct tiering *t)
{
	uint32_t chosen[LOAD_JOB_VALUES];

	lock_assert_held(&t->space->lock);
	while (t->loads->first) {
		uint32_t count = choose(t, chosen), copies = copies_first(t, chosen, count);

		if (copies)
			submit(t, chosen, copies, true);
		if (count > copies)
			submit(t, chosen + copies, count - copies, false);
	}
}

/* ---- ended ---------------------------------------------------------------------------------------------------------- */

/* Bytes per second of the last three reads: no small ones, none of rows alone. */
void load_note_rate(struct tiering *t, const struct disk_read *read)
{
	if (read->job.result || read->bytes < RATE_BYTES || !read->transfer_ns || read->values[0].page == TABLES_PAGE_ROW)
		return;
	t->disk_bytes_s[t->rate_at % 3] = (uint64_t)((double)read->bytes * 1e9 / (double)read->transfer_ns);
	t->rate_at++;
}

static bool still_its_own(const struct tiering *t, const struct load *load)
{
	const struct entry *e;

	if (load->place == INDEX_NONE)
		return false;
	e = &t->space->tables.entries[load->place];
	return e->state == ENTRY_VALUE && !memcmp(&e->key, &load->key, sizeof(load->key)) &&
	       t->loads_of[load->place - t->place_first] == load_number(t->loads, load);
}

/* Has the record's file the value too? Not when the one that it was copied from is to be written anew. */
static bool in_file(struct tiering *t, const struct load *load)
{
	if (load->from == INDEX_NONE)
		return true;
	return !t->closed && tiering_file(t, t->space->tables.entries[load->place].record)->id &&
	       (!tiering_has_value(t, load->from) || tiering_is_clean(t, load->from));
}

/* Its bytes are there: the value is in memory from now on. */
static void value_read(struct tiering *t, struct load *load)
{
	struct space *space = t->space;
	uint32_t record = space->tables.entries[load->place].record;
	bool clean = in_file(t, load);

	index_quarantine_end(space->index, load->slot);
	tiering_promote(t, load->place, load->slot);
	if (!clean) {
		tiering_make_dirty(t, load->slot);
		tiering_consider(t, record);
	}
	if (load->from != INDEX_NONE) {
		space->stats.values_promoted--;
		space->stats.values_copied++;
	} else {
		space->stats.bytes_promoted += space->layout->class[load->class_index].share[load->share].payload_bytes;
	}
	for (uint32_t i = 0; i < load->holders; i++)
		tiering_hold(t, load->slot);
	t->loads_of[load->place - t->place_first] = 0;
	load->place = INDEX_NONE;
	load_end(t, load, LOAD_HERE);
}

/* Once more? A read that was cancelled when nobody wanted it, or the first error. */
static bool again(const struct tiering *t, struct load *load, const struct disk_job *job, int error)
{
	if (!load->wanters || t->closed)
		return false;
	if (error == -ECANCELED)
		return atomic_load(&job->cancelled);
	return load_error_of_disk(error) && ++load->errors < LOAD_TRIES;
}

static void value_ended(struct tiering *t, struct load *load, const struct disk_job *job, int error)
{
	uint32_t place = load->place;

	if (!still_its_own(t, load)) {
		load_end(t, load, LOAD_FAILED);
	} else if (!error) {
		value_read(t, load);
	} else if (again(t, load, job, error)) {
		load->job = NULL;
		load_let_go(t, load);
		load->record = t->space->tables.entries[place].record;
		load_queue(t, load);
	} else if (load_error_of_value(error) || (load_error_of_disk(error) && load->errors >= LOAD_TRIES)) {
		load_end(t, load, LOAD_FAILED);
		load_lose(t, place);
	} else {
		t->space->stats.loads_cancelled += !load->wanters;
		load_end(t, load, LOAD_NONE);
	}
}

/* Under the lock: what the header says of aliases. */
static void note_alias(struct tiering *t, const struct load_job *job)
{
	struct record_file *f = tiering_file(t, job->record);

	if (job->read.job.kind != DISK_JOB_READ || job->read.job.result || f->id != job->file)
		return;
	if (job->read.alias_good)
		f->flags |= TIERING_ALIAS_SURE;
	else
		tiering_file_alias_unknown(t, job->record);
}

/* From a worker, without a lock. */
static void job_done(struct disk_job *disk_job)
{
	struct load_job *job = disk_job->context;
	struct tiering *t = job->tiering;
	struct space *space = t->space;
	bool failing = false;
	int worst = 0;

	for (uint32_t i = 0; i < job->read.count;) {
		uint32_t end = job->read.count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : job->read.count;

		lock_take(&space->lock);
		if (!i) {
			load_note_rate(t, &job->read);
			note_alias(t, job);
		}
		for (; i < end; i++) {
			const struct disk_read_value *value = &job->values[i];
			int error = disk_job->result ? disk_job->result : value->result;

			worst = load_error_of_disk(error) ? error : worst;
			value_ended(t, &t->loads->at[(uintptr_t)value->context], disk_job, error);
		}
		load_submit(t);
		failing = t->failures > 0;
		space_committed(space);
		lock_drop(&space->lock);
	}
	if (disk_job->kind == DISK_JOB_READ && (worst || (failing && !disk_job->result)))
		tiering_result(t, worst, true);
	if (load_error_of_file(disk_job->result))
		load_lose_file(t, job->record, job->file);
	free(job);
	tiering_job_ended(t);
}
