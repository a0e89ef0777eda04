/* SPDX-License-Identifier: Apache-2.0
 *
 * Values on disk as the mount reads them: through the same checks, into memory of their own; where they are does not change. What was
 * read is kept a moment (viewed.c), and of a file that is read on and on a little more is read than was asked for.
 */
#include "store/load_own.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/records_private.h"
#include "store/viewed.h"

#define READ_VALUES 64u
#define READ_BYTES (8ull << 20)
#define READ_NS 60000000000ull /* a disk that does not answer for so long has an error */
#define READ_ALIGN 4096u
#define READ_AHEAD (512ull << 10) /* of a reader that goes on */

/* A value, or the part of one, that is to be copied. */
struct kept {
	struct records_value value;
	const char *memory;
};

/* Under the space lock: the committed value at @offset when it is on disk; else INDEX_NONE. */
static uint32_t place_at(struct tiering *t, uint32_t number, bool row, uint64_t offset, struct records_value *ret)
{
	bool committed = false;
	uint32_t entry = INDEX_NONE;

	if (records_value_at(t->space->layout, row, offset, ret))
		entry = index_value(t->space->index, number, ret->page, ret->column, &committed);
	return committed && tiering_is_place(t, entry) ? entry : INDEX_NONE;
}

/* Under the space lock: how much to read for who wants @bytes at @offset. */
static uint64_t with_ahead(struct tiering *t, uint32_t number, bool row, uint64_t offset, uint64_t bytes)
{
	struct space *space = t->space;
	struct records_value v;
	uint64_t end = index_record(space->index, number)->pages * records_page_bytes(space->layout);
	uint32_t before;

	if (!records_value_at(space->layout, row, offset, &v) || offset == v.within || bytes >= READ_AHEAD || (!row && offset >= end))
		return bytes;
	before = place_at(t, number, row, offset - v.within - 1, &v);
	if (before == INDEX_NONE || !viewed_is(t, before))
		return bytes;
	return row || end - offset > READ_AHEAD ? READ_AHEAD : end - offset;
}

/* Under the space lock: the values from @offset on that are on disk, as far as @bytes go, and in @at what they are. 0: the first one
 * is in memory. */
static int choose(struct own_read *r, struct records_value *at, uint32_t number, bool row, uint64_t offset, uint64_t bytes)
{
	struct space *space = r->tiering->space;
	struct records_value v;

	for (uint64_t to = offset; to < offset + bytes && r->read.count < READ_VALUES; to += v.share->slot_bytes - v.within) {
		uint32_t entry = INDEX_NONE;
		bool committed = false;

		if (records_value_at(space->layout, row, to, &v))
			entry = index_value(space->index, number, v.page, v.column, &committed);
		if (!committed || !tiering_is_place(r->tiering, entry) || tiering_alike(r->tiering, entry) != INDEX_NONE)
			return r->read.count || committed ? 0 : -ENODATA;
		if (r->read.count && r->bytes + v.share->slot_bytes > READ_BYTES)
			return 0;
		at[r->read.count] = v;
		own_read_add(r, entry, v.page, v.column, v.share->slot_bytes);
	}
	return 0;
}

/* Under the space lock, which is dropped for the memory: the record is pinned. */
static int prepare(struct own_read *r)
{
	struct space *space = r->tiering->space;

	lock_drop(&space->lock);
	r->memory = aligned_alloc(READ_ALIGN, r->bytes);
	lock_take(&space->lock);
	return r->memory ? 0 : -ENOMEM;
}

/* Under the space lock, which is dropped while it waits. The error of the file as a whole; the reader gives up: -ETIMEDOUT, and
 * @r is not the caller's any more. */
static int read_once(struct own_read *r, uint32_t number)
{
	struct space *space = r->tiering->space;
	int error = own_read_give(r, number);

	if (error)
		return error;
	lock_drop(&space->lock);
	if (own_read_wait(r, clock_now_ns() + READ_NS)) {
		error = r->read.job.result;
	} else {
		own_read_abandon(r);
		error = -ETIMEDOUT;
	}
	lock_take(&space->lock);
	return error;
}

/* What of @v is to be copied at most @bytes of: its payload from @from, then zeros. */
static uint64_t copy_value(char *to, const char *from, const struct records_value *v, uint64_t bytes)
{
	uint64_t n = v->share->slot_bytes - v->within, payload;

	n = n < bytes ? n : bytes;
	payload = v->within < v->share->payload_bytes ? v->share->payload_bytes - v->within : 0;
	payload = payload < n ? payload : n;
	memcpy(to, from + v->within, payload);
	memset(to + payload, 0, n - payload);
	return n;
}

/* What of the values that were read begins at the reader's offset, without a gap. */
static ssize_t copy(const struct own_read *r, const struct records_value *at, char *to, size_t bytes)
{
	const char *from = r->memory;
	size_t done = 0;

	for (uint32_t i = 0; i < r->read.count && done < bytes && !own_read_error(r, i); i++) {
		done += copy_value(to + done, from, &at[i], bytes - done);
		from += at[i].share->slot_bytes;
	}
	return done ? (ssize_t)done : -EIO;
}

/* ---- what is kept --------------------------------------------------------------------------------------------------- */

/* Under the space lock: the chunk of the value at @offset, once nobody reads it any more; it is dropped while it waits. NULL: none,
 * or an *error. */
static struct viewed_chunk *await_chunk(struct tiering *t, uint32_t number, uint32_t generation, bool row, uint64_t offset, int *error)
{
	uint64_t until_ns = clock_now_ns() + READ_NS, from;

	for (;;) {
		struct viewed_chunk *chunk = NULL;
		struct records_value v;
		uint32_t place;

		*error = record_current(t->space, number, generation) ? 0 : -ENOENT;
		if (*error || t->closed || !index_record_current(t->space->index, number))
			return NULL;
		place = place_at(t, number, row, offset, &v);
		if (place != INDEX_NONE)
			chunk = viewed_find(t, place, &from);
		if (!chunk || chunk->memory)
			return chunk;
		if (!viewed_wait(t, until_ns)) {
			*error = -EIO;
			return NULL;
		}
	}
}

/* Under the space lock: what @chunk has of the values from @offset on, without a gap. */
static uint32_t choose_kept(struct tiering *t, struct viewed_chunk *chunk, uint32_t number, bool row, uint64_t offset, uint64_t bytes,
			    struct kept *kept)
{
	uint32_t n = 0;

	for (uint64_t to = offset; to < offset + bytes && n < READ_VALUES; n++) {
		struct records_value *v = &kept[n].value;
		uint32_t place = place_at(t, number, row, to, v);
		uint64_t from = 0;

		if (place == INDEX_NONE || viewed_find(t, place, &from) != chunk)
			break;
		kept[n].memory = chunk->memory + from;
		to += v->share->slot_bytes - v->within;
	}
	return n;
}

/* Under the space lock, which is dropped for the bytes. 0: nothing is kept of what stands at @offset. */
static ssize_t read_kept(struct tiering *t, uint32_t number, uint32_t generation, bool row, uint64_t offset, char *to, size_t bytes)
{
	struct kept kept[READ_VALUES];
	size_t done = 0;
	int error;
	struct viewed_chunk *chunk = await_chunk(t, number, generation, row, offset, &error);
	uint32_t count;

	if (!chunk)
		return error;
	count = choose_kept(t, chunk, number, row, offset, bytes, kept);
	viewed_use(chunk);
	lock_drop(&t->space->lock);
	for (uint32_t i = 0; i < count && done < bytes; i++)
		done += copy_value(to + done, kept[i].memory, &kept[i].value, bytes - done);
	lock_take(&t->space->lock);
	viewed_unuse(chunk);
	return (ssize_t)done;
}

/* Under the space lock: @r has ended, or was given up (@given_up: it is not to be looked at). */
static void keep(struct tiering *t, struct viewed_chunk *chunk, struct own_read *r, bool given_up)
{
	if (!chunk)
		return;
	if (given_up || !r->read.job.done || r->read.job.result) {
		viewed_drop(t, chunk);
		return;
	}
	for (uint32_t i = 0; i < r->read.count; i++)
		if (own_read_error(r, i))
			viewed_bad(t, chunk, i);
	if (viewed_keep(t, chunk, r->memory, r->bytes))
		r->memory = NULL;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

/* Under the space lock, which is dropped meanwhile: reads what @r has, once more after an error of the disk, and copies what the reader
 * asked for. -ETIMEDOUT: @r is gone. */
static ssize_t read_chosen(struct own_read *r, const struct records_value *at, uint32_t number, void *to, size_t bytes)
{
	struct space *space = r->tiering->space;
	ssize_t n = prepare(r);

	n = n ? n : read_once(r, number);
	if (n != -ETIMEDOUT && r->read.job.done && own_read_disk_error(r))
		n = read_once(r, number);
	if (n == -ETIMEDOUT || !r->read.job.done)
		return n;
	lock_drop(&space->lock);
	own_read_settle(r);
	n = copy(r, at, to, bytes);
	lock_take(&space->lock);
	return n;
}

ssize_t load_read_file(struct space *space, uint32_t number, uint32_t generation, bool row, uint64_t offset, void *to, size_t bytes)
{
	struct tiering *t = space->tiering;
	struct own_read *r = own_read_new(t);
	struct records_value at[READ_VALUES];
	struct viewed_chunk *chunk;
	ssize_t n;

	lock_assert_none_held();
	if (!r)
		return -ENOMEM;
	lock_take(&space->lock);
	n = read_kept(t, number, generation, row, offset, to, bytes);
	if (!n)
		n = choose(r, at, number, row, offset, with_ahead(t, number, row, offset, bytes));
	if (n || !r->read.count) {
		lock_drop(&space->lock);
		own_read_free(r);
		return n ? n : -EAGAIN;
	}
	space_pin(space, number);
	chunk = viewed_begin(t, r->place, r->read.count);
	n = read_chosen(r, at, number, to, bytes);
	keep(t, chunk, r, n == -ETIMEDOUT);
	space_unpin(space, number);
	space_room(space);
	lock_drop(&space->lock);
	space_retire(space);
	viewed_free_spent(t);
	if (n == -ETIMEDOUT) {
		tiering_result(t, -EIO, true);
		return -EIO;
	}
	own_read_free(r);
	return n;
}
