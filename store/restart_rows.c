/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue's rows, read by one thread and used by another: sqlite takes as long to give a row as the index to take it.
 *
 *   reader     catalogue_load -> rows copied into a batch -> the list's end
 *   caller     the list's beginning -> row() -> freed
 *
 * The reader waits while ROWS_AHEAD_BYTES are in the list.
 */
#include "store/restart_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"

#define BATCH_ROWS 512u
#define BATCH_BYTES (256u << 10) /* of what rows point to; one row that has more gets as much */
#define STEP_NS 1000000000ull    /* a wait looks again after this */

struct batch {
	struct batch *next;
	size_t used, room; /* of bytes */
	uint32_t count;
	struct catalogue_row rows[BATCH_ROWS];
	_Alignas(struct key) uint8_t bytes[];
};

struct rows {
	struct catalogue *catalogue;
	pthread_t thread;
	struct batch *filling; /* the reader's */
	struct lock lock;      /* LOCK_QUEUE; guards what follows */
	struct lock_cond moved;
	struct batch *first, **last;
	uint64_t waiting;      /* bytes of the list */
	bool stop, ended;
	bool no_memory;
	int result;            /* of catalogue_load, once it has ended */
	struct why why;
};

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

/* What a row points to, each piece aligned as keys are. */
static size_t rounded(size_t bytes)
{
	return (bytes + sizeof(struct key) - 1) & ~(sizeof(struct key) - 1);
}

static size_t bytes_of(const struct catalogue_row *row)
{
	return rounded(row->pages * sizeof(struct key)) + rounded(row->absent ? row->absent_bytes : 0) +
	       rounded(row->alias ? row->alias_count * sizeof(uint16_t) : 0);
}

static const void *copy(struct batch *b, const void *from, size_t bytes)
{
	void *to = &b->bytes[b->used];

	if (!from || !bytes)
		return NULL;
	memcpy(to, from, bytes);
	b->used += rounded(bytes);
	return to;
}

/* The batch that was filled is the caller's now. False: nobody wants more. */
static bool hand_on(struct rows *r)
{
	bool more;

	lock_take(&r->lock);
	while (r->waiting > ROWS_AHEAD_BYTES && !r->stop)
		lock_cond_wait(&r->moved, &r->lock, clock_now_ns() + STEP_NS);
	more = !r->stop;
	if (r->filling) {
		*r->last = r->filling;
		r->last = &r->filling->next;
		r->waiting += r->filling->room;
		r->filling = NULL;
		lock_cond_wake_all(&r->moved);
	}
	lock_drop(&r->lock);
	return more;
}

/* One with room for @bytes more of a row; NULL: no memory, or nobody wants more. */
static struct batch *batch_for(struct rows *r, size_t bytes)
{
	struct batch *b = r->filling;

	if (b && b->count < BATCH_ROWS && bytes <= b->room - b->used)
		return b;
	if (!hand_on(r))
		return NULL;
	size_t room = bytes > BATCH_BYTES ? bytes : BATCH_BYTES;

	b = malloc(sizeof(*b) + room);
	if (!b) {
		r->no_memory = true;
		return NULL;
	}
	b->next = NULL;
	b->used = b->count = 0;
	b->room = room;
	r->filling = b;
	return b;
}

static bool row_read(void *context, const struct catalogue_row *row)
{
	struct batch *b = batch_for(context, bytes_of(row));
	struct catalogue_row *to;

	if (!b)
		return false;
	to = &b->rows[b->count++];
	*to = *row;
	to->keys = copy(b, row->keys, row->pages * sizeof(struct key));
	to->absent = copy(b, row->absent, row->absent_bytes);
	to->alias = copy(b, row->alias, row->alias_count * sizeof(uint16_t));
	return true;
}

static void *reader_main(void *context)
{
	struct rows *r = context;
	int result = catalogue_load(r->catalogue, row_read, r, &r->why);

	hand_on(r);
	lock_take(&r->lock);
	r->result = r->no_memory ? why_set(&r->why, ENOMEM, "no memory for the rows of a catalogue") : result;
	r->ended = true;
	lock_cond_wake_all(&r->moved);
	lock_drop(&r->lock);
	return NULL;
}

int rows_begin(struct catalogue *catalogue, struct rows **ret, struct why *why)
{
	struct rows *r = calloc(1, sizeof(*r));
	int error;

	if (!r)
		return why_set(why, ENOMEM, "no memory for the rows of a catalogue");
	r->catalogue = catalogue;
	r->why = (struct why)WHY_INIT;
	r->last = &r->first;
	lock_init(&r->lock, LOCK_QUEUE);
	lock_cond_init(&r->moved);
	error = pthread_create(&r->thread, NULL, reader_main, r);
	if (error) {
		lock_cond_destroy(&r->moved);
		lock_destroy(&r->lock);
		free(r);
		return why_set(why, error, "there is no thread to read a catalogue: %s", strerrordesc_np(error));
	}
	pthread_setname_np(r->thread, "pfs-rows");
	*ret = r;
	return 0;
}

/* ---- using ------------------------------------------------------------------------------------------------------------ */

/* The next batch; NULL: there is none any more. */
static struct batch *next_batch(struct rows *r)
{
	struct batch *b;

	lock_take(&r->lock);
	while (!r->first && !r->ended)
		lock_cond_wait(&r->moved, &r->lock, clock_now_ns() + STEP_NS);
	b = r->first;
	if (b) {
		r->first = b->next;
		r->last = r->first ? r->last : &r->first;
		r->waiting -= b->room;
		lock_cond_wake_all(&r->moved);
	}
	lock_drop(&r->lock);
	return b;
}

int rows_each(struct rows *r, bool (*row)(void *context, const struct catalogue_row *row, const struct catalogue_row *ahead),
	      void *context, struct why *why)
{
	struct batch *b;
	bool more = true;

	lock_assert_none_held();
	while (more && (b = next_batch(r))) {
		for (uint32_t i = 0; i < b->count && more; i++)
			more = row(context, &b->rows[i], i + ROWS_AHEAD < b->count ? &b->rows[i + ROWS_AHEAD] : NULL);
		free(b);
	}
	if (!more)
		return 0;
	return r->result ? why_set(why, -r->result, "%s", r->why.text) : 0;
}

void rows_end(struct rows **rows)
{
	struct rows *r = *rows;
	struct batch *b;

	if (!r)
		return;
	lock_assert_none_held();
	lock_take(&r->lock);
	r->stop = true;
	lock_cond_wake_all(&r->moved);
	lock_drop(&r->lock);
	pthread_join(r->thread, NULL);
	while ((b = next_batch(r)))
		free(b);
	free(r->filling);
	lock_cond_destroy(&r->moved);
	lock_destroy(&r->lock);
	free(r);
	*rows = NULL;
}
