/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_INTO at work, in one thread: stays under the lock that say where values are, copies from slots, and up to INTO_READS reads
 * under way meanwhile.
 *
 *   gathering   64 values at a time: those in memory are held, copied and let go; those on disk are collected in a batch
 *   given       a batch of one record's values, when it is full or its record ends, read into memory of this call
 *   settled     the oldest batch, when its read has ended: each value that passed its check is written to the import
 *
 * The row comes first. What cannot be had cuts the range before its page.
 */
#include "store/into_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/load_own.h"

#define INTO_READS 4u
#define INTO_WINDOW (4ull << 20) /* of one read, unless a page's slots are larger */
#define INTO_PIECE (64u << 10)   /* of a copy from a slot: stays in the processor's cache */
#define INTO_ALIGN 4096u
#define INTO_LOOK_NS 20000000ull /* whether somebody wants it to give up */

struct batch {
	struct own_read *read;
	bool again; /* the disk has erred once */
	struct into_value at[OWN_VALUES]; /* of its values */
};

struct carry {
	struct get_into *call;
	struct tiering *tiering;
	struct batch *reading[INTO_READS]; /* oldest first */
	uint32_t readings;
	struct batch *batch;     /* that is being collected */
	char *spare[INTO_READS]; /* memory of reads that ended, `window` long */
	uint32_t spares;
	uint64_t window;
	uint32_t next, run;      /* key to gather; of the handle: where it lies or behind it */
	uint32_t limit;          /* keys from here on are not delivered */
	bool failed;             /* since the value there is gone */
	bool blocked;            /* one is on disk, and may not be waited for */
	uint32_t ahead_first, ahead_end; /* keys whose reads GET_START counted */
	struct into_value here[INDEX_STEP_KEYS];
	uint32_t here_count;
	char *piece;
};

static void cut(struct carry *c, uint32_t key, bool failed)
{
	if (key >= c->limit)
		return;
	c->limit = key;
	c->failed = failed;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void batch_free(struct carry *c, struct batch *b)
{
	struct own_read *r = b->read;

	if (r && r->memory && c->spares < INTO_READS) {
		c->spare[c->spares++] = r->memory;
		r->memory = NULL;
	}
	if (r)
		own_read_free(r);
	free(b);
}

/* One whose read is under way is left to it. */
static void batch_abandon(struct batch *b)
{
	own_read_abandon(b->read);
	free(b);
}

static void abandon_all(struct carry *c)
{
	for (uint32_t i = 0; i < c->readings; i++)
		batch_abandon(c->reading[i]);
	c->readings = 0;
}

static struct batch *batch_new(struct carry *c)
{
	struct batch *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->read = own_read_new(c->tiering);
	if (!b->read) {
		free(b);
		return NULL;
	}
	return b;
}

static bool batch_memory(struct carry *c, struct own_read *r)
{
	r->memory = c->spares ? c->spare[--c->spares] : aligned_alloc(INTO_ALIGN, c->window);
	return r->memory;
}

/* Bytes of slots: of a page's, or of the row's. */
static uint64_t slots_of(const struct carry *c, bool row)
{
	const struct get_transfer *t = &c->call->transfer;
	const struct session *s = t->session;
	const struct layout *layout = s->space->layout;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < layout->classes; i++)
		if (t->class_mask >> i & 1 && layout_is_row(layout, i) == row)
			bytes += layout->class[i].share[s->share[i]].slot_bytes;
	return bytes;
}

static uint64_t window_of(const struct carry *c)
{
	uint64_t page = slots_of(c, false), row = slots_of(c, true), most = page > row ? page : row;

	return most > INTO_WINDOW ? most : INTO_WINDOW;
}

/* ---- from slots ------------------------------------------------------------------------------------------------------- */

static int copy_value(struct carry *c, const struct into_value *v, struct why *why)
{
	struct space *space = c->call->transfer.session->space;
	uint64_t bytes = into_payload(c->call, v->class_index), to = into_place(c->call, v);

	for (uint64_t done = 0; done < bytes;) {
		size_t n = bytes - done < INTO_PIECE ? bytes - done : INTO_PIECE;
		int r = tier_read(space->memory, v->offset + done, c->piece, n);

		if (r) {
			lock_take(&space->lock);
			space->stats.read_errors++;
			lock_drop(&space->lock);
			return why_set(why, EIO, "memory at offset %llu of the segment cannot be read: %s",
				       (unsigned long long)(v->offset + done), strerror(-r));
		}
		r = import_write(c->call->to, to + done, c->piece, n, why);
		if (r)
			return r;
		done += n;
	}
	return 0;
}

static void let_here_go(struct carry *c)
{
	struct space *space = c->call->transfer.session->space;

	if (c->tiering && c->here_count) {
		lock_take(&space->lock);
		for (uint32_t i = 0; i < c->here_count; i++)
			tiering_unhold(c->tiering, c->here[i].slot);
		lock_drop(&space->lock);
	}
	c->here_count = 0;
}

static int copy_here(struct carry *c, struct why *why)
{
	int r = c->here_count ? import_check(c->call->to, why) : 0;

	for (uint32_t i = 0; i < c->here_count && !r && c->here[i].key < c->limit; i++) {
		r = copy_value(c, &c->here[i], why);
		r = r ? r : into_verdict(c->call, why);
	}
	let_here_go(c);
	return r;
}

/* ---- gathering -------------------------------------------------------------------------------------------------------- */

/* Under the lock. False: there is no such value any more. */
static bool gather_value(struct carry *c, uint32_t record, uint32_t page, struct into_value v, bool *led)
{
	struct session *s = c->call->transfer.session;
	struct space *space = s->space;
	uint32_t column = layout_column(space->layout, v.class_index, s->share[v.class_index]), entry;
	bool committed;

	entry = index_value(space->index, record, (uint16_t)page, column, &committed);
	if (entry == INDEX_NONE || !committed)
		return false;
	v.slot = INDEX_NONE;
	if (!c->tiering || !tiering_is_place(c->tiering, entry)) {
		if (c->tiering)
			tiering_hold(c->tiering, entry);
		v.slot = entry;
		v.offset = slots_offset(space->slots, entry);
		c->here[c->here_count++] = v;
		return true;
	}
	if (c->tiering->closed || !index_record_current(space->index, record))
		return false; /* its file is not read any more, or went with a reset */
	c->blocked = true;
	*led = true;
	c->batch->at[c->batch->read->read.count] = v;
	own_read_add(c->batch->read, entry, page, column, space->layout->class[v.class_index].share[s->share[v.class_index]].slot_bytes);
	return true;
}

/* Under the lock. */
static bool gather_page(struct carry *c, const struct run *run)
{
	const struct get_transfer *t = &c->call->transfer;
	const struct handle *h = t->h;
	const struct found *f = h->found;
	bool led = false, ok = true;

	for (uint32_t i = 0; i < f->columns && ok; i++)
		if (t->class_mask >> f->class_of[i] & 1 && handle_delivers(h, i, c->next, t->boundary))
			ok = gather_value(c, run->record, run->page + c->next - run->first,
					  (struct into_value){ .key = c->next, .class_index = f->class_of[i] }, &led);
	t->session->space->stats.keys_led += led && (c->next < c->ahead_first || c->next >= c->ahead_end);
	return ok;
}

static bool batch_has_room(const struct carry *c, uint64_t page_bytes)
{
	const struct own_read *r = c->batch ? c->batch->read : NULL;

	return !r || (r->read.count + LAYOUT_MAX_CLASSES <= OWN_VALUES && r->bytes + page_bytes <= c->window);
}

/* One stay: pages of @run. */
static void gather_pages(struct carry *c, const struct run *run, uint64_t page_bytes)
{
	struct space *space = c->call->transfer.session->space;
	uint32_t columns = c->call->transfer.h->found->columns, values = 0;
	bool ok = true;

	lock_take(&space->lock);
	for (; ok && c->next < c->limit && c->next < run->end && values + columns <= INDEX_STEP_KEYS && batch_has_room(c, page_bytes);
	     values += columns ? columns : 1) {
		ok = gather_page(c, run);
		if (ok)
			c->next++;
		else
			cut(c, c->next, true);
	}
	lock_drop(&space->lock);
}

/* ---- reads ------------------------------------------------------------------------------------------------------------ */

/* Has the batch read, if there is anything to be read in it. */
static void batch_give(struct carry *c, uint32_t record)
{
	struct space *space = c->call->transfer.session->space;
	struct batch *b = c->batch;
	int r = 0;

	c->batch = NULL;
	if (!b)
		return;
	if (!b->read->read.count) {
		batch_free(c, b);
		return;
	}
	if (!batch_memory(c, b->read)) {
		cut(c, b->at[0].key, false);
		batch_free(c, b);
		return;
	}
	lock_take(&space->lock);
	r = own_read_give(b->read, record);
	lock_drop(&space->lock);
	if (r) {
		cut(c, b->at[0].key, true);
		batch_free(c, b);
		return;
	}
	c->reading[c->readings++] = b;
}

/* A batch and a place for its read; false: no memory, and nothing more is gathered. */
static bool batch_begin(struct carry *c)
{
	if (!c->tiering || c->batch)
		return true;
	c->batch = batch_new(c);
	if (!c->batch)
		cut(c, c->next, false);
	return c->batch;
}

static int blocked(const struct carry *c, struct why *why)
{
	if (!c->blocked || !c->call->nonblock)
		return 0;
	return why_set(why, EAGAIN, "a value of the range is on disk, and NONBLOCK was asked for");
}

static int gather(struct carry *c, struct why *why)
{
	const struct handle *h = c->call->transfer.h;
	const struct found *f = h->found;
	uint64_t page_bytes = slots_of(c, false);
	const struct run *run;
	int r = 0;

	while (f->runs[c->run].end <= c->next)
		c->run++;
	run = &f->runs[c->run];
	if (run->first > c->next) { /* windows have let all go that was there, and nothing of it is wanted */
		c->next = run->first < c->limit ? run->first : c->limit;
		return 0;
	}
	if (!batch_begin(c))
		return 0;
	while (!r && c->next < c->limit && c->next < run->end && batch_has_room(c, page_bytes)) {
		gather_pages(c, run, page_bytes);
		r = blocked(c, why);
		if (r)
			let_here_go(c);
		else
			r = copy_here(c, why);
	}
	if (!r)
		batch_give(c, run->record);
	return r;
}

static int gather_row(struct carry *c, struct why *why)
{
	const struct get_transfer *t = &c->call->transfer;
	struct space *space = t->session->space;
	const struct row_pin *row = t->to == t->boundary ? handle_row(t->h, t->last) : NULL;
	bool ok = true, led;
	int r;

	if (!row || !batch_begin(c))
		return 0;
	lock_take(&space->lock);
	for (uint32_t i = 0; i < space->layout->classes && ok; i++)
		if (t->class_mask >> i & 1 && layout_is_row(space->layout, i))
			ok = gather_value(c, row->record, INDEX_PAGE_ROW,
					  (struct into_value){ .key = t->first, .class_index = (uint8_t)i, .row = true }, &led);
	lock_drop(&space->lock);
	if (!ok)
		cut(c, t->first, true);
	r = blocked(c, why);
	if (r) {
		let_here_go(c);
		return r;
	}
	r = copy_here(c, why);
	if (!r)
		batch_give(c, row->record);
	return r;
}

/* ---- settling --------------------------------------------------------------------------------------------------------- */

/* The disk erred for the first time, and is asked once more. */
static bool once_more(struct carry *c, struct batch *b)
{
	struct space *space = c->call->transfer.session->space;
	int r;

	if (b->again || !own_read_disk_error(b->read))
		return false;
	b->again = true;
	lock_take(&space->lock);
	r = own_read_give(b->read, b->read->record);
	lock_drop(&space->lock);
	return !r;
}

/* What was read goes to the import. */
static int write_read(struct carry *c, const struct batch *b, struct why *why)
{
	int r = import_check(c->call->to, why);

	for (uint32_t i = 0; i < b->read->read.count && !r && b->at[i].key < c->limit; i++) {
		const struct into_value *v = &b->at[i];
		int error = own_read_error(b->read, i);

		if (error)
			cut(c, v->key, load_error_of_value(error) || load_error_of_disk(error));
		else
			r = import_write(c->call->to, into_place(c->call, v), (void *)(uintptr_t)b->read->values[i].to,
					 into_payload(c->call, v->class_index), why);
	}
	return r;
}

static int settle_oldest(struct carry *c, struct why *why)
{
	const struct get_transfer *t = &c->call->transfer;
	struct batch *b = c->reading[0];
	uint64_t until_ns = clock_now_ns() + INTO_LOOK_NS;
	int r;

	if (!own_read_wait(b->read, until_ns < t->deadline_ns ? until_ns : t->deadline_ns) || once_more(c, b))
		return 0;
	c->readings--;
	memmove(c->reading, c->reading + 1, c->readings * sizeof(c->reading[0]));
	own_read_settle(b->read);
	r = write_read(c, b, why);
	batch_free(c, b);
	return r;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

/* Reads for pages behind the limit are of no use; those of one batch ascend. */
static void drop_useless(struct carry *c)
{
	while (c->readings && c->reading[c->readings - 1]->at[0].key >= c->limit)
		batch_abandon(c->reading[--c->readings]);
}

static void time_is_up(struct carry *c)
{
	cut(c, c->readings ? c->reading[0]->at[0].key : c->next, false);
}

static int carry_pages(struct carry *c, struct why *why)
{
	int r = 0;

	while (!r && (c->next < c->limit || c->readings)) {
		if (clock_now_ns() >= c->call->transfer.deadline_ns)
			time_is_up(c);
		drop_useless(c);
		r = into_verdict(c->call, why);
		if (r)
			break;
		if (c->next < c->limit && c->readings < INTO_READS)
			r = gather(c, why);
		else if (c->readings)
			r = settle_oldest(c, why);
	}
	return r;
}

static void carry_begin(struct carry *c, struct get_into *call)
{
	const struct get_transfer *t = &call->transfer;
	struct handle *h = t->h;

	c->call = call;
	c->tiering = t->session->space->tiering;
	c->next = t->first;
	c->limit = t->end;
	c->run = h->run_at;
	c->window = window_of(c);
	if (!c->tiering)
		return;
	if (h->ahead_at < h->ahead_count) {
		c->ahead_first = h->ahead[h->ahead_at].key;
		c->ahead_end = h->ahead[h->ahead_count - 1].key + 1;
	}
	handle_detach(t->session, h, t->end); /* what has not begun need not */
}

static void carry_end(struct carry *c)
{
	abandon_all(c);
	if (c->batch)
		batch_free(c, c->batch);
	while (c->spares)
		free(c->spare[--c->spares]);
	free(c->piece);
	free(c);
}

int into_carry(struct get_into *call, uint32_t *end, bool *failed, struct why *why)
{
	struct carry *c = calloc(1, sizeof(*c));
	int r = 0;

	if (c)
		c->piece = malloc(INTO_PIECE);
	if (!c || !c->piece) {
		free(c);
		return why_set(why, ENOMEM, "no memory for a transfer");
	}
	carry_begin(c, call);
	r = into_verdict(call, why);
	r = r ? r : gather_row(c, why);
	r = r ? r : carry_pages(c, why);
	*end = c->limit;
	*failed = c->failed;
	carry_end(c);
	return r;
}
