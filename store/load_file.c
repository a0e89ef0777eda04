/* SPDX-License-Identifier: Apache-2.0
 *
 * Values on disk as the mount reads them: through the same checks, into memory of their own; where they are does not change.
 */
#include "store/load_own.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/records_private.h"

#define READ_VALUES 64u
#define READ_BYTES (8ull << 20)
#define READ_NS 60000000000ull /* a disk that does not answer for so long has an error */
#define READ_ALIGN 4096u

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

/* What of the values that were read begins at the reader's offset, without a gap. */
static ssize_t copy(const struct own_read *r, const struct records_value *at, char *to, size_t bytes)
{
	const char *from = r->memory;
	size_t done = 0;

	for (uint32_t i = 0; i < r->read.count && done < bytes && !own_read_error(r, i); i++) {
		const struct records_value *v = &at[i];
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
	struct own_read *r = own_read_new(t);
	struct records_value at[READ_VALUES];
	ssize_t n;
	int error;

	lock_assert_none_held();
	if (!r)
		return -ENOMEM;
	lock_take(&space->lock);
	error = record_current(space, number, generation) ? choose(r, at, number, row, offset, bytes) : -ENOENT;
	if (error || !r->read.count) {
		lock_drop(&space->lock);
		own_read_free(r);
		return error ? error : -EAGAIN;
	}
	space_pin(space, number);
	error = prepare(r);
	error = error ? error : read_once(r, number);
	if (error != -ETIMEDOUT && r->read.job.done && own_read_disk_error(r))
		error = read_once(r, number);
	if (error != -ETIMEDOUT && r->read.job.done) {
		lock_drop(&space->lock);
		own_read_settle(r);
		lock_take(&space->lock);
	}
	space_unpin(space, number);
	space_room(space);
	lock_drop(&space->lock);
	space_retire(space);
	if (error == -ETIMEDOUT) {
		tiering_result(t, -EIO, true);
		return -EIO;
	}
	n = r->read.job.done ? copy(r, at, to, bytes) : error;
	own_read_free(r);
	return n;
}
