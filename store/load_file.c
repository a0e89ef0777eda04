/* SPDX-License-Identifier: Apache-2.0
 *
 * Values on disk as the mount reads them: through the same checks, into memory of their own; where they are does not change.
 */
#include "store/load_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/records_private.h"

#define READ_VALUES 64u
#define READ_BYTES (8ull << 20)
#define READ_NS 60000000000ull /* a disk that does not answer for so long has an error */
#define READ_ALIGN 4096u

/* One piece of `pages` or `row` for one reader. The engine has the job until done(), the reader the rest; the last one frees. */
struct file_read {
	struct disk_read read; /* first */
	struct tiering *tiering;
	struct lock lock; /* LOCK_QUEUE: ended, abandoned */
	struct lock_cond cond;
	bool ended, abandoned;
	uint64_t file; /* its id */
	void *memory;
	uint64_t bytes; /* of it */
	uint32_t place[READ_VALUES];
	struct records_value at[READ_VALUES];
	struct key keys[READ_VALUES];
	struct disk_read_value values[READ_VALUES];
};

static void file_read_free(struct file_read *r)
{
	lock_cond_destroy(&r->cond);
	lock_destroy(&r->lock);
	free(r->memory);
	free(r);
}

static struct file_read *file_read_new(struct tiering *t)
{
	struct file_read *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->tiering = t;
	lock_init(&r->lock, LOCK_QUEUE);
	lock_cond_init(&r->cond);
	return r;
}

static void file_read_done(struct disk_job *job)
{
	struct file_read *r = job->context;
	struct tiering *t = r->tiering;
	bool abandoned;

	lock_take(&r->lock);
	r->ended = true;
	abandoned = r->abandoned;
	lock_cond_wake_all(&r->cond);
	lock_drop(&r->lock);
	if (abandoned)
		file_read_free(r);
	tiering_job_ended(t);
}

/* Under the space lock: the values from @offset on that are on disk, as far as @bytes go. 0: the first one is in memory. */
static int choose(struct file_read *r, uint32_t number, bool row, uint64_t offset, uint64_t bytes)
{
	struct space *space = r->tiering->space;
	struct records_value v;

	for (uint64_t at = offset; at < offset + bytes && r->read.count < READ_VALUES; at += v.share->slot_bytes - v.within) {
		uint32_t entry = INDEX_NONE;
		bool committed = false;

		if (records_value_at(space->layout, row, at, &v))
			entry = index_value(space->index, number, v.page, v.column, &committed);
		if (!committed || !tiering_is_place(r->tiering, entry) || tiering_alike(r->tiering, entry) != INDEX_NONE)
			return r->read.count || committed ? 0 : -ENODATA;
		if (r->read.count && r->bytes + v.share->slot_bytes > READ_BYTES)
			return 0;
		r->at[r->read.count] = v;
		r->place[r->read.count] = entry;
		r->keys[r->read.count] = space->tables.entries[entry].key;
		r->values[r->read.count] = (struct disk_read_value){ .page = v.page, .column = v.column, .to = r->bytes };
		r->bytes += v.share->slot_bytes;
		r->read.count++;
	}
	return 0;
}

/* Under the space lock, which is dropped for the memory: the record is pinned. */
static int prepare(struct file_read *r, uint32_t number)
{
	struct tiering *t = r->tiering;
	const struct record_file *f;

	lock_drop(&t->space->lock);
	r->memory = aligned_alloc(READ_ALIGN, r->bytes);
	lock_take(&t->space->lock);
	f = tiering_file(t, number);
	if (!r->memory)
		return -ENOMEM;
	if (t->closed || !f->id || !index_record_current(t->space->index, number))
		return -EIO;
	r->read.memory = true;
	r->read.keys = r->keys;
	r->read.values = r->values;
	for (uint32_t i = 0; i < r->read.count; i++)
		r->values[i].to += (uintptr_t)r->memory;
	return 0;
}

/* Under the space lock, which is dropped while it waits. The error of the file as a whole; the reader gives up: -ETIMEDOUT, and
 * @r is not the caller's any more. */
static int read_once(struct file_read *r, uint32_t number)
{
	struct tiering *t = r->tiering;
	const struct record_file *f = tiering_file(t, number);
	uint64_t deadline_ns = clock_now_ns() + READ_NS;

	r->ended = false;
	r->file = f->id;
	r->read.job = (struct disk_job){
		.kind = DISK_JOB_READ,
		.dir = t->dir,
		.consumed = tiering_file_consumed(t, number),
		.endpoint = f->endpoint,
		.done = file_read_done,
		.context = r,
	};
	r->read.pages = f->pages;
	r->read.file_pages = f->file_pages;
	r->read.alias = tiering_file_alias(t, f);
	tiering_give(t, &r->read.job);
	lock_drop(&t->space->lock);
	lock_take(&r->lock);
	while (!r->ended && lock_cond_wait(&r->cond, &r->lock, deadline_ns)) {
	}
	bool ended = r->ended;

	r->abandoned = !ended;
	if (!ended)
		atomic_store(&r->read.job.cancelled, true);
	lock_drop(&r->lock);
	lock_take(&t->space->lock);
	return ended ? r->read.job.result : -ETIMEDOUT;
}

static int error_of(const struct file_read *r, uint32_t i)
{
	return r->read.job.result ? r->read.job.result : r->values[i].result;
}

/* The disk's error, or 0. */
static int disk_error(const struct file_read *r)
{
	for (uint32_t i = 0; i < r->read.count; i++)
		if (load_error_of_disk(error_of(r, i)))
			return error_of(r, i);
	return 0;
}

/* Under the space lock: what could not be read goes, if it is still where it was read from. */
static void lose(struct file_read *r)
{
	struct space *space = r->tiering->space;

	for (uint32_t i = 0; i < r->read.count; i++) {
		const struct entry *e = &space->tables.entries[r->place[i]];
		int error = error_of(r, i);

		if (!load_error_of_value(error) && !load_error_of_disk(error))
			continue;
		space->stats.read_errors++;
		if (e->state == ENTRY_VALUE && !memcmp(&e->key, &r->keys[i], sizeof(e->key)))
			load_lose(r->tiering, r->place[i]);
	}
}

/* What of the values that were read begins at the reader's offset, without a gap. */
static ssize_t copy(const struct file_read *r, char *to, size_t bytes)
{
	const char *from = r->memory;
	size_t done = 0;

	for (uint32_t i = 0; i < r->read.count && done < bytes && !error_of(r, i); i++) {
		const struct records_value *v = &r->at[i];
		uint64_t n = v->share->slot_bytes - v->within, payload;

		n = n < bytes - done ? n : bytes - done;
		payload = v->within < v->share->payload_bytes ? v->share->payload_bytes - v->within : 0;
		payload = payload < n ? payload : n;
		memcpy(to + done, from + v->within, payload);
		memset(to + done + payload, 0, n - payload);
		from += v->share->slot_bytes;
		done += n;
	}
	return done ? (ssize_t)done : -EIO;
}

ssize_t load_read_file(struct space *space, uint32_t number, uint32_t generation, bool row, uint64_t offset, void *to, size_t bytes)
{
	struct tiering *t = space->tiering;
	struct file_read *r = file_read_new(t);
	ssize_t n;
	int error;

	lock_assert_none_held();
	if (!r)
		return -ENOMEM;
	lock_take(&space->lock);
	error = record_current(space, number, generation) ? choose(r, number, row, offset, bytes) : -ENOENT;
	if (error || !r->read.count) {
		lock_drop(&space->lock);
		file_read_free(r);
		return error ? error : -EAGAIN;
	}
	space_pin(space, number);
	error = prepare(r, number);
	error = error ? error : read_once(r, number);
	if (error != -ETIMEDOUT && r->read.job.done && disk_error(r))
		error = read_once(r, number);
	if (error != -ETIMEDOUT && r->read.job.done)
		lose(r);
	space_unpin(space, number);
	space_room(space);
	lock_drop(&space->lock);
	space_retire(space);
	if (error == -ETIMEDOUT) {
		tiering_result(t, -EIO, true);
		return -EIO;
	}
	if (r->read.job.done && load_error_of_file(error))
		load_lose_file(t, number, r->file);
	if (r->read.job.done && disk_error(r))
		tiering_result(t, disk_error(r), true);
	n = r->read.job.done ? copy(r, to, bytes) : error;
	file_read_free(r);
	return n;
}
