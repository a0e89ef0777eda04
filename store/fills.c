/* SPDX-License-Identifier: Apache-2.0 */
#include "store/fills.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/memory.h"
#include "store/host_private.h"
#include "store/tiering.h"

#define MILLISECOND 1000000ull
#define ROW_FIRST UINT32_MAX /* of the page that is next: the row has not been looked at */

struct fill {
	uint32_t record, generation;
	uint32_t due_ms; /* low bits of milliseconds */
};

struct fills {
	struct space *space;
	struct fill *ring;          /* [capacity] */
	uint16_t *listed;           /* [capacity] 0 = not in the ring; else since which run, and AGAIN */
	uint32_t capacity;
	uint32_t first, count;
	uint16_t run;               /* number of the last fills_run, from 1 on, in the bits below AGAIN */
	uint64_t now_ns;            /* of the last fills_run: what is noted is due fill_ttl after it */
	uint64_t late;              /* places that wait for a second time, since their record is another one or shorter */
	uint32_t ttl_ms;
	uint32_t page;              /* of the first one of the ring: pages before it are to be looked at, from behind; ROW_FIRST */
	bool stays;                 /* and it waits again: something of it that is half there has to stay, or came while it was looked at */
	bool again;                 /* and more of it had been committed when that began */
	uint32_t sweep, sweep_page; /* record and page that are next */
};

#define AGAIN 0x8000u /* more was committed in it in a later second than the one in which it was put into the ring */
#define RUNS 0x7fffu  /* hours: none stays in the ring so long without being looked at */

/* ---- making ---------------------------------------------------------------------------------------------------- */

int fills_new(struct space *space, struct fills **ret, struct why *why)
{
	struct fills *f;

	*ret = NULL;
	if (!space->layout->shared)
		return 0;
	f = calloc(1, sizeof(*f));
	if (!f)
		return why_set(why, ENOMEM, "namespace %s: no memory for what is half there", space->name);
	f->space = space;
	f->capacity = space->tables.record_capacity;
	f->ttl_ms = space->host->config.fill_ttl_ms;
	f->now_ns = clock_now_ns();
	f->page = ROW_FIRST;
	f->run = 1;
	f->ring = memory_reserve(f->capacity * sizeof(*f->ring), false);
	f->listed = memory_reserve(f->capacity * sizeof(*f->listed), false);
	if (!f->ring || !f->listed) {
		fills_free(&f);
		return why_set(why, ENOMEM, "namespace %s: no memory for what is half there", space->name);
	}
	*ret = f;
	return 0;
}

void fills_free(struct fills **fillsp)
{
	struct fills *f = *fillsp;

	*fillsp = NULL;
	if (!f)
		return;
	memory_release(&f->ring, f->capacity * sizeof(*f->ring));
	memory_release(&f->listed, f->capacity * sizeof(*f->listed));
	free(f);
}

/* ---- the ring -------------------------------------------------------------------------------------------------- */

static struct fill *ring_at(const struct fills *f, uint32_t i)
{
	uint32_t at = f->first + i;

	return &f->ring[at < f->capacity ? at : at - f->capacity];
}

static void push(struct fills *f, uint32_t record, uint32_t due_ms)
{
	const struct fill *last = f->count ? ring_at(f, f->count - 1) : NULL;

	assert(f->count < f->capacity);
	f->listed[record] = f->run;
	if (last && (int32_t)(due_ms - last->due_ms) < 0) /* it is in order, whenever fills_run came by */
		due_ms = last->due_ms;
	*ring_at(f, f->count++) = (struct fill){ record, index_record(f->space->index, record)->generation, due_ms };
}

static struct fill pop(struct fills *f)
{
	struct fill first = *ring_at(f, 0);

	f->first = f->first + 1 < f->capacity ? f->first + 1 : 0;
	if (!--f->count)
		f->first = 0; /* as little of it is touched as was ever in use */
	f->page = ROW_FIRST;
	f->stays = false;
	return first;
}

void fills_note(struct fills *f, uint32_t record)
{
	lock_assert_held(&f->space->lock);
	if (!f->listed[record])
		push(f, record, (uint32_t)(f->now_ns / MILLISECOND) + f->ttl_ms);
	else if (f->listed[record] != f->run)
		f->listed[record] |= AGAIN;
}

void fills_value_lost(struct space *space, uint32_t record, uint16_t page)
{
	if (space->fills && index_record(space->index, record)->state == RECORD_LIVE && index_record_current(space->index, record) &&
	    index_half(space->index, record, page))
		fills_note(space->fills, record);
}

/* From page *page on, of at most *looks, which fall. *page is where it stopped. */
static bool half_behind(const struct index *index, uint32_t record, uint32_t pages, uint32_t *page, uint32_t *looks)
{
	for (; *page < pages && *looks; ++*page, --*looks)
		if (index_half(index, record, (uint16_t)*page))
			return true;
	return false;
}

bool fills_has(const struct fills *f, uint32_t record)
{
	struct index *index = f->space->index;
	uint32_t looks = INDEX_STEP_KEYS, page = 0;

	lock_assert_held(&f->space->lock);
	if (!f->listed[record])
		return false;

	uint32_t pages = index_record(index, record)->pages;

	return index_half(index, record, INDEX_PAGE_ROW) || half_behind(index, record, pages, &page, &looks) || page < pages;
}

/* ---- what is due ----------------------------------------------------------------------------------------------- */

/* The first one of the ring is done with, or waits again. */
static void renew(struct fills *f)
{
	struct fill fill = pop(f);

	push(f, fill.record, fill.due_ms + f->ttl_ms);
}

static void forget(struct fills *f)
{
	f->listed[pop(f).record] = 0;
}

static void begin_look(struct fills *f, uint32_t record)
{
	f->page = index_record(f->space->index, record)->pages;
	f->again = f->listed[record] & AGAIN;
	f->listed[record] &= (uint16_t)~AGAIN; /* from here on: since then */
}

/* One page, or the row, of the first one. More of it was committed since: nothing goes. */
static void look_at(struct fills *f, uint32_t record, uint16_t page)
{
	struct index_sink sink = space_sink(f->space);
	uint32_t values = 0;

	if (f->again || f->listed[record] & AGAIN)
		f->stays |= index_half(f->space->index, record, page) != 0;
	else
		f->stays |= index_drop_half(f->space->index, record, page, &sink, &values) == INDEX_BUSY;
	f->space->stats.values_abandoned += values;
}

/* Looks at the first one of the ring, from its end on, since it gets shorter as values go. At most *left pages. */
static void look(struct fills *f, uint32_t *left)
{
	struct fill *fill = ring_at(f, 0);
	const struct record *r = index_record(f->space->index, fill->record);

	if (r->state == RECORD_FREE || !index_record_current(f->space->index, fill->record)) {
		--*left;
		forget(f);
		return;
	}
	if (r->generation != fill->generation) { /* it got shorter meanwhile, or is another one: that has its time */
		--*left;
		f->late++;
		renew(f);
		return;
	}
	if (f->page == ROW_FIRST) {
		begin_look(f, fill->record);
		look_at(f, fill->record, INDEX_PAGE_ROW);
		--*left;
	}
	for (; *left && f->page && r->state != RECORD_FREE; --*left) {
		if (--f->page < r->pages)
			look_at(f, fill->record, (uint16_t)f->page);
		if (f->stays && f->again)
			f->page = 0; /* one is enough */
	}
	f->stays |= f->listed[fill->record] & AGAIN;
	fill->generation = r->generation;
	if (f->page && r->state != RECORD_FREE)
		return;
	if (f->stays && r->state != RECORD_FREE)
		renew(f);
	else
		forget(f);
}

static bool due(const struct fills *f)
{
	return f->count && (int32_t)(ring_at(f, 0)->due_ms - (uint32_t)(f->now_ns / MILLISECOND)) <= 0;
}

/* Some of those that are due, at most *most; false: that was all. */
static bool run_some(struct fills *f, uint32_t *most)
{
	struct space *space = f->space;
	uint64_t before = space->stats.values_abandoned;
	uint32_t left = INDEX_STEP_KEYS;

	space_notes_begin(space);
	while (left && *most && due(f)) {
		look(f, &left);
		*most -= f->page == ROW_FIRST; /* it was done with */
	}
	space_notes_end(space);
	if (space->stats.values_abandoned > before)
		space_room(space);
	return *most && due(f);
}

void fills_run(struct fills *f, uint64_t now_ns)
{
	bool more = true;
	uint32_t most;

	lock_take(&f->space->lock);
	f->now_ns = now_ns;
	f->run = f->run < RUNS ? f->run + 1 : 1;
	most = f->count; /* each once, however long ago the last run was */
	lock_drop(&f->space->lock);
	while (more) {
		lock_take(&f->space->lock);
		more = run_some(f, &most);
		lock_drop(&f->space->lock);
	}
}

/* ---- a put ticket's deadline ----------------------------------------------------------------------------------- */

/* By records, of each from its end on: it gets shorter as values go. The row is the last of its places. */
static int spans_order(const void *a, const void *b)
{
	const struct fill_span *x = a, *y = b;

	if (x->record != y->record)
		return x->record < y->record ? -1 : 1;
	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	return (x->page + x->pages < y->page + y->pages) - (x->page + x->pages > y->page + y->pages);
}

/* How far fills_abandon has come. */
struct abandon {
	struct fill_span *at, *end;
	uint32_t record, was, is; /* what it looks at, of which generation it was found and is now that some of it went */
	bool gone;                /* all of it did: its number is another's from now on */
};

/* Under the lock: what is left of the first span, at most *left pages. */
static void abandon_span(struct fills *f, struct abandon *a, uint32_t *left)
{
	struct index_sink sink = space_sink(f->space);
	const struct record *r = index_record(f->space->index, a->at->record);

	if (a->at->record != a->record || a->at->generation != a->was) {
		a->record = a->at->record;
		a->was = a->is = a->at->generation;
		a->gone = r->state == RECORD_FREE;
	}
	while (a->at->pages && *left && !a->gone && r->generation == a->is && index_record_current(f->space->index, a->record)) {
		uint32_t values = 0;

		index_drop_half(f->space->index, a->record, (uint16_t)(a->at->page + --a->at->pages), &sink, &values);
		f->space->stats.values_abandoned += values;
		a->is = r->generation;
		a->gone = r->state == RECORD_FREE;
		--*left;
	}
	if (*left) {
		a->at++;
		--*left;
	}
}

void fills_abandon(struct fills *f, struct fill_span *spans, uint32_t count)
{
	struct abandon a = { .at = spans, .end = spans + count, .record = INDEX_NONE };

	if (count)
		qsort(spans, count, sizeof(*spans), spans_order);
	while (a.at < a.end) {
		uint64_t before;
		uint32_t left = INDEX_STEP_KEYS;

		lock_take(&f->space->lock);
		before = f->space->stats.values_abandoned;
		space_notes_begin(f->space);
		while (left && a.at < a.end)
			abandon_span(f, &a, &left);
		space_notes_end(f->space);
		if (f->space->stats.values_abandoned > before)
			space_room(f->space);
		lock_drop(&f->space->lock);
	}
}

/* ---- after an adoption or a restart ---------------------------------------------------------------------------- */

/* Looks at the record that is next, as far as @looks go. */
static void sweep_record(struct fills *f, uint32_t *looks)
{
	struct index *index = f->space->index;
	const struct record *r = index_record(index, f->sweep);
	bool half = false;

	--*looks;
	if (r->state == RECORD_LIVE && index_record_current(index, f->sweep)) {
		half = (!f->sweep_page && index_half(index, f->sweep, INDEX_PAGE_ROW)) ||
		       half_behind(index, f->sweep, r->pages, &f->sweep_page, looks);
		if (!half && f->sweep_page < r->pages)
			return; /* goes on there */
	}
	if (half)
		fills_note(f, f->sweep);
	f->sweep++;
	f->sweep_page = 0;
}

bool fills_sweep(struct fills *f)
{
	uint32_t looks = INDEX_STEP_KEYS;
	bool more;

	lock_take(&f->space->lock);
	while (looks && f->sweep < index_record_limit(f->space->index))
		sweep_record(f, &looks);
	more = f->sweep < index_record_limit(f->space->index);
	if (!more)
		f->sweep = f->sweep_page = 0;
	lock_drop(&f->space->lock);
	return more;
}

uint64_t fills_abandoned(const struct fills *f)
{
	lock_assert_held(&f->space->lock);
	return f->space->stats.values_abandoned;
}

uint64_t fills_late(const struct fills *f)
{
	lock_assert_held(&f->space->lock);
	return f->late;
}

uint32_t fills_count(const struct fills *f)
{
	lock_assert_held(&f->space->lock);
	return f->count;
}
