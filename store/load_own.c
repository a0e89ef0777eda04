/* SPDX-License-Identifier: Apache-2.0 */
#include "store/load_own.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct own_read *own_read_new(struct tiering *t)
{
	struct own_read *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->tiering = t;
	lock_init(&r->lock, LOCK_QUEUE);
	lock_cond_init(&r->cond);
	return r;
}

void own_read_free(struct own_read *r)
{
	lock_cond_destroy(&r->cond);
	lock_destroy(&r->lock);
	free(r->memory);
	free(r);
}

static void own_read_done(struct disk_job *job)
{
	struct own_read *r = job->context;
	struct tiering *t = r->tiering;
	bool abandoned;

	lock_take(&r->lock);
	r->ended = true;
	abandoned = r->abandoned;
	lock_cond_wake_all(&r->cond);
	lock_drop(&r->lock);
	if (abandoned)
		own_read_free(r);
	tiering_job_ended(t);
}

void own_read_add(struct own_read *r, uint32_t place, uint32_t page, uint32_t column, uint64_t slot_bytes)
{
	uint32_t i = r->read.count++;

	lock_assert_held(&r->tiering->space->lock);
	assert(i < OWN_VALUES);
	r->place[i] = place;
	r->keys[i] = r->tiering->space->tables.entries[place].key;
	r->values[i] = (struct disk_read_value){ .page = page, .column = column, .to = r->bytes };
	r->bytes += slot_bytes;
}

int own_read_give(struct own_read *r, uint32_t record)
{
	struct tiering *t = r->tiering;
	const struct record_file *f = tiering_file(t, record);

	lock_assert_held(&t->space->lock);
	if (t->closed || !f->id || !index_record_current(t->space->index, record))
		return -EIO;
	for (uint32_t i = 0; i < r->read.count && !r->read.memory; i++)
		r->values[i].to += (uintptr_t)r->memory;
	r->ended = false;
	r->record = record;
	r->file = f->id;
	r->read.job = (struct disk_job){
		.kind = DISK_JOB_READ,
		.dir = t->dir,
		.consumed = tiering_file_consumed(t, record),
		.endpoint = f->endpoint,
		.done = own_read_done,
		.context = r,
	};
	r->read.memory = true;
	r->read.keys = r->keys;
	r->read.values = r->values;
	r->read.pages = f->pages;
	r->read.file_pages = f->file_pages;
	r->read.alias = tiering_file_alias(t, f);
	tiering_give(t, &r->read.job);
	return 0;
}

bool own_read_wait(struct own_read *r, uint64_t until_ns)
{
	bool ended;

	lock_take(&r->lock);
	while (!r->ended && lock_cond_wait(&r->cond, &r->lock, until_ns)) {
	}
	ended = r->ended;
	lock_drop(&r->lock);
	return ended;
}

void own_read_abandon(struct own_read *r)
{
	bool ended;

	lock_take(&r->lock);
	ended = r->ended;
	r->abandoned = !ended;
	if (!ended)
		atomic_store(&r->read.job.cancelled, true);
	lock_drop(&r->lock);
	if (ended)
		own_read_free(r);
}

int own_read_error(const struct own_read *r, uint32_t i)
{
	return r->read.job.result ? r->read.job.result : r->values[i].result;
}

int own_read_disk_error(const struct own_read *r)
{
	for (uint32_t i = 0; i < r->read.count; i++)
		if (load_error_of_disk(own_read_error(r, i)))
			return own_read_error(r, i);
	return 0;
}

/* Under the lock: what could not be read of values [i, end). */
static void lose(struct own_read *r, uint32_t i, uint32_t end)
{
	struct space *space = r->tiering->space;

	for (; i < end; i++) {
		const struct entry *e = &space->tables.entries[r->place[i]];
		int error = own_read_error(r, i);

		if (!load_error_of_value(error) && !load_error_of_disk(error))
			continue;
		space->stats.read_errors++;
		if (e->state == ENTRY_VALUE && !memcmp(&e->key, &r->keys[i], sizeof(e->key)))
			load_lose(r->tiering, r->place[i]);
	}
	space_room(space);
}

void own_read_settle(struct own_read *r)
{
	struct tiering *t = r->tiering;
	int error = own_read_disk_error(r);
	bool failing = false;

	for (uint32_t i = 0; i < r->read.count;) {
		uint32_t end = r->read.count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : r->read.count;

		lock_take(&t->space->lock);
		if (!i)
			load_note_rate(t, &r->read);
		lose(r, i, end);
		failing = t->failures > 0;
		lock_drop(&t->space->lock);
		i = end;
	}
	if (load_error_of_file(r->read.job.result))
		load_lose_file(t, r->record, r->file);
	if (error || (failing && !r->read.job.result))
		tiering_result(t, error, true);
}
