/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing blobs, and the table of reads and writes in pieces.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/blobs_private.h"
#include "store/put.h"

typedef unsigned long long ull;

/* ---- reads and writes in pieces -------------------------------------------------------------------------------- */

struct transfer *transfer_find(struct blobs *b, uint64_t session, uint64_t id)
{
	lock_assert_held(&b->lock);
	for (uint32_t i = 0; i < BLOBS_TRANSFERS; i++)
		if (b->transfer[i].session == session && b->transfer[i].id == id)
			return &b->transfer[i];
	return NULL;
}

int transfer_new(struct blobs *b, uint64_t session, uint64_t id, bool writes, struct transfer **ret, struct why *why)
{
	struct transfer *empty = NULL;
	uint32_t own = 0;

	lock_assert_held(&b->lock);
	for (uint32_t i = BLOBS_TRANSFERS; i--;) {
		own += b->transfer[i].session == session;
		if (!b->transfer[i].session)
			empty = &b->transfer[i];
	}
	if (own == BLOBS_SESSION_TRANSFERS)
		return why_set(why, EDQUOT, "the session has %u reads and writes of blobs in pieces under way, its limit", own);
	if (!empty)
		return why_set(why, EDQUOT, "%u reads and writes of blobs in pieces are under way, the most that a namespace has",
			BLOBS_TRANSFERS);
	*empty = (struct transfer){
		.session = session, .id = id, .writes = writes, .busy = true, .entry = BLOBS_NONE, .unit = BLOBS_NONE};
	b->transfers++;
	*ret = empty;
	return 0;
}

void transfer_end(struct blobs *b, struct transfer *t)
{
	lock_assert_held(&b->lock);
	if (t->entry != BLOBS_NONE && t->writes)
		blob_give_up(b, blob_at(b, t->entry));
	else if (t->entry != BLOBS_NONE)
		blob_unhold(b, blob_at(b, t->entry));
	t->session = 0;
	b->transfers--;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int check_write(const struct blob_write *w, struct why *why)
{
	const struct blobs *b = w->blobs;
	uint64_t largest = (uint64_t)(b->unit_limit / BLOBS_LARGEST_PART) * BLOBS_UNIT;

	if (w->flags & ~(BLOB_WRITE_EXCLUSIVE | BLOB_WRITE_ABORT))
		return why_set(why, EINVAL, "flags: 0x%x has unknown bits", w->flags);
	if ((w->flags & BLOB_WRITE_ABORT) && !w->id)
		return why_set(why, EINVAL, "write: it is 0, and the write that is to be given up has a number");
	if (w->flags & BLOB_WRITE_ABORT)
		return 0;
	if (w->length > largest)
		return why_set(why, EFBIG, "length: %llu is over the limit of %llu, half of what the namespace has for blobs",
			(ull)w->length, (ull)largest);
	if (w->offset > w->length || w->bytes > w->length - w->offset)
		return why_set(why, EINVAL, "bytes: %u at offset %llu pass the length of %llu", w->bytes, (ull)w->offset,
			(ull)w->length);
	if (!w->id && w->bytes != w->length)
		return why_set(why, EINVAL, "bytes: %u are not the length of %llu, and a write in pieces has a number", w->bytes,
			(ull)w->length);
	if (!w->bytes && w->length)
		return why_set(why, EINVAL, "bytes: the piece is empty");
	return 0;
}

static int same_write(const struct transfer *t, const struct blob_write *w, struct why *why)
{
	if (!t->writes)
		return why_set(why, EINVAL, "write: %llu is a read under way", (ull)w->id);
	if (w->flags & BLOB_WRITE_ABORT)
		return 0;
	if (memcmp(&t->key, &w->name.key, sizeof(t->key)) != 0 || t->length != w->length)
		return why_set(why, EINVAL, "write: %llu is that of another blob, or of another length than %llu", (ull)w->id,
			(ull)w->length);
	if (t->position != w->offset)
		return why_set(why, EINVAL, "offset: it is %llu, and the next piece of write %llu begins at %llu", (ull)w->offset,
			(ull)w->id, (ull)t->position);
	return 0;
}

/* Finds the write in pieces, or begins it. */
static int claim_write(struct blob_write *w, struct why *why)
{
	struct blobs *b = w->blobs;
	struct transfer *t = transfer_find(b, w->session, w->id);
	int r;

	if (t && t->busy)
		return why_set(why, EBUSY, "another request works on write %llu", (ull)w->id);
	if (!t && (w->offset || (w->flags & BLOB_WRITE_ABORT)))
		return why_set(why, ENOENT, "write %llu is not under way", (ull)w->id);
	if (t) {
		r = same_write(t, w, why);
		if (r)
			return r;
		t->busy = true;
	} else {
		r = transfer_new(b, w->session, w->id, true, &t, why);
		if (r)
			return r;
		t->key = w->name.key;
		t->length = w->length;
	}
	w->transfer = (uint32_t)(t - b->transfer);
	w->entry = t->entry;
	return 0;
}

static struct transfer *transfer_of(const struct blob_write *w)
{
	return w->transfer == BLOBS_NONE ? NULL : &w->blobs->transfer[w->transfer];
}

/* The write is over without a blob, whole or in pieces. */
static void lose(struct blob_write *w)
{
	struct transfer *t = transfer_of(w);

	if (t)
		transfer_end(w->blobs, t);
	else if (w->entry != BLOBS_NONE)
		blob_give_up(w->blobs, blob_at(w->blobs, w->entry));
	w->entry = w->transfer = BLOBS_NONE;
}

static int exists(const struct blob_write *w, struct why *why)
{
	if (!(w->flags & BLOB_WRITE_EXCLUSIVE) || !blob_look(w->blobs, &w->name.key))
		return 0;
	return why_set(why, EEXIST, "the blob is there, and only a new one was to be stored");
}

int blob_write_begin(struct blob_write *w, struct why *why)
{
	int r = check_write(w, why);

	w->stored = false;
	w->version = 0;
	w->done = 0;
	w->entry = w->transfer = BLOBS_NONE;
	if (r)
		return r;
	lock_take(&w->blobs->lock);
	r = w->id ? claim_write(w, why) : 0;
	if (!r && (w->flags & BLOB_WRITE_ABORT)) {
		lose(w);
	} else if (!r) {
		r = exists(w, why);
		if (r)
			lose(w);
		else
			r = STEP_MORE;
	}
	lock_drop(&w->blobs->lock);
	return r;
}

static int take_room(struct blob_write *w, struct why *why)
{
	struct transfer *t = transfer_of(w);
	struct blob *blob;
	int r = blob_room(w->blobs, (uint32_t)((w->length + BLOBS_UNIT - 1) / BLOBS_UNIT), &blob, why);

	if (r)
		return r;
	blob->info.name = w->name;
	blob->info.length = w->length;
	blob->info.kind = w->kind;
	w->entry = blob_number(w->blobs, blob);
	if (t)
		t->entry = w->entry;
	return 0;
}

/* Units for the next @bytes at @at, and the one where they begin. */
static uint32_t take_units(struct blob_write *w, uint64_t at, uint32_t bytes)
{
	struct blob *blob = blob_at(w->blobs, w->entry);
	uint32_t first = at % BLOBS_UNIT ? blob->last : BLOBS_NONE;

	while ((uint64_t)blob->taken * BLOBS_UNIT < at + bytes) {
		uint32_t unit = blob_take_unit(w->blobs, blob);

		if (first == BLOBS_NONE)
			first = unit;
	}
	return first;
}

/* Without the lock: the units are ours. */
static void copy_in(struct blobs *b, uint32_t unit, uint64_t at, const unsigned char *from, uint32_t bytes)
{
	for (;;) {
		uint32_t skip = (uint32_t)(at % BLOBS_UNIT), n = BLOBS_UNIT - skip < bytes ? BLOBS_UNIT - skip : bytes;

		memcpy(b->memory + (uint64_t)unit * BLOBS_UNIT + skip, from, n);
		at += n;
		from += n;
		bytes -= n;
		if (!bytes)
			return;
		unit = b->next_unit[unit];
	}
}

/* It is all there: it takes its place. */
static int publish(struct blob_write *w, struct why *why)
{
	struct blobs *b = w->blobs;
	struct blob *blob = blob_at(b, w->entry), *old;
	struct flight *flight = flight_find(b, &w->name.key);

	if (blob->reset_number != b->reset_number)
		return why_set(why, ESTALE, "the namespace was reset since the write began");
	int r = exists(w, why);

	if (r)
		return r;
	old = blob_look(b, &w->name.key);
	if (old) {
		blob_leave(b, old);
		b->counts.blobs_removed++;
	}
	blob_enter(b, blob);
	if (flight && flight->session == w->session)
		flight_end(b, flight);
	b->counts.blob_puts++;
	b->counts.blob_bytes_put += w->length;
	w->stored = true;
	w->version = blob->info.version;
	struct transfer *t = transfer_of(w);

	if (t) {
		t->entry = BLOBS_NONE;
		transfer_end(b, t);
	}
	return 0;
}

/* The piece is there. */
static int finish_piece(struct blob_write *w, bool *tell, struct why *why)
{
	struct transfer *t = transfer_of(w);

	if (w->offset + w->bytes == w->length) {
		int r = publish(w, why);

		if (!r)
			*tell = blobs_news(w->blobs);
		return r;
	}
	t->position = w->offset + w->bytes;
	t->used_ns = clock_now_ns();
	t->busy = false;
	return 0;
}

int blob_write_step(struct blob_write *w, struct why *why)
{
	struct blobs *b = w->blobs;
	uint32_t bytes = w->bytes - w->done < BLOBS_STEP_BYTES ? w->bytes - w->done : BLOBS_STEP_BYTES, unit = BLOBS_NONE;
	bool tell = false;
	int r = 0;

	lock_take(&b->lock);
	if (w->entry == BLOBS_NONE)
		r = take_room(w, why);
	if (!r && bytes)
		unit = take_units(w, w->offset + w->done, bytes);
	else if (!r)
		r = finish_piece(w, &tell, why);
	if (r < 0)
		lose(w);
	lock_drop(&b->lock);
	if (tell)
		blobs_tell(b);
	if (r || !bytes)
		return r;
	copy_in(b, unit, w->offset + w->done, (const unsigned char *)w->from + w->done, bytes);
	w->done += bytes;
	return STEP_MORE;
}
