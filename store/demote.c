/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaving memory: clean values that nobody holds go on as places. Leaving the disk: records go, by the limit and by age.
 */
#include <string.h>

#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/tiering.h"

#define DEMOTE_LOOKS 4096u /* places looked at in one call */
#define RING_LOOKS 4u      /* what a WHOLE group counts for */

/* ---- leaving memory ----------------------------------------------------------------------------------------------------- */

void demote_places_short(struct tiering *t)
{
	if (!t->places_short)
		mover_ask(t->space->host);
	t->places_short = true;
}

bool demote_value(struct tiering *t, uint32_t slot)
{
	uint32_t record = t->space->tables.entries[slot].record, place;
	uint64_t bytes;

	lock_assert_held(&t->space->lock);
	if (!tiering_is_clean(t, slot) || t->holds[slot] || t->closed)
		return false;
	if (ring_is(t, record))
		return ring_demote(t, record, &bytes) > 0;
	place = tiering_place_take(t);
	if (place == INDEX_NONE) {
		demote_places_short(t);
		return false;
	}
	tiering_demote(t, slot, place);
	return true;
}

/* What is to leave, and what has. */
struct leaving {
	struct tiering *t;
	bool all;                          /* of any size, else of (class_index, share) */
	uint32_t class_index, share;
	struct slots_filter filter;
	uint32_t values, most, looks;
	uint64_t bytes, most_bytes;
};

static bool leaving_done(const struct leaving *l)
{
	return l->values >= l->most || l->bytes >= l->most_bytes || !l->looks || l->t->places_short;
}

static bool fits(const struct leaving *l, uint32_t slot)
{
	uint32_t grant = slots_grant_of(l->t->space->slots, slot);

	return !l->filter.acknowledged || l->filter.acknowledged[grant / 64] >> (grant % 64) & 1;
}

static void column_leaves(struct leaving *l, uint32_t record, uint32_t page, uint32_t column)
{
	struct tiering *t = l->t;
	uint32_t entry = index_value(t->space->index, record, (uint16_t)page, column, NULL);
	uint64_t bytes;

	l->looks--;
	if (entry == INDEX_NONE || tiering_is_place(t, entry) || !tiering_is_clean(t, entry) || !fits(l, entry))
		return;
	bytes = slots_slot_bytes(t->space->slots, entry);
	if (!demote_value(t, entry))
		return;
	l->values++;
	l->bytes += bytes;
}

static void place_leaves(struct leaving *l, uint32_t record, uint32_t page)
{
	const struct layout *layout = l->t->space->layout;
	uint32_t columns = page == INDEX_PAGE_ROW ? layout->row_columns : layout->page_columns;

	if (!l->all) {
		column_leaves(l, record, page, layout_column(layout, l->class_index, l->share));
		return;
	}
	for (uint32_t c = 0; c < columns && !leaving_done(l); c++)
		column_leaves(l, record, page, c);
}

static bool has_clean(const struct leaving *l, uint32_t record)
{
	return l->all ? l->t->files[record].clean : l->t->class[l->class_index].clean[record];
}

/* Has it a value that is looked for? */
static bool has_fitting(struct leaving *l, uint32_t record)
{
	struct tiering *t = l->t;
	uint32_t column = layout_column(t->space->layout, l->class_index, l->share);
	bool row = layout_is_row(t->space->layout, l->class_index);
	uint32_t places = row ? 1 : index_record(t->space->index, record)->pages;

	for (uint32_t i = 0; i < places && l->looks; i++, l->looks--) {
		uint32_t entry = index_value(t->space->index, record, row ? INDEX_PAGE_ROW : (uint16_t)i, column, NULL);

		if (entry != INDEX_NONE && !tiering_is_place(t, entry) && tiering_is_clean(t, entry) && fits(l, entry))
			return true;
	}
	return false;
}

/* Nothing of a WHOLE group goes alone: what goes with the value counts too. */
static void ring_leaves(struct leaving *l, uint32_t record)
{
	uint64_t bytes;

	if (!l->all && !has_fitting(l, record))
		return;
	l->values += ring_demote(l->t, record, &bytes);
	l->bytes += bytes;
	l->looks -= l->looks < RING_LOOKS ? l->looks : RING_LOOKS;
}

/* From its end on. */
static void record_leaves(struct leaving *l, uint32_t record)
{
	const struct layout *layout = l->t->space->layout;
	const struct record *r = index_record(l->t->space->index, record);
	bool rows = l->all || layout_is_row(layout, l->class_index), pages = l->all || !rows;

	if (ring_is(l->t, record)) {
		ring_leaves(l, record);
		return;
	}
	if (rows && layout->row_columns && r->flags & RECORD_FLAG_ROW)
		place_leaves(l, record, INDEX_PAGE_ROW);
	for (uint32_t page = r->pages; pages && page-- > 0 && has_clean(l, record) && !leaving_done(l);)
		place_leaves(l, record, page);
}

static void note_left(struct tiering *t, uint32_t record, uint32_t values, uint64_t bytes)
{
	struct host_event event = { .kind = HOST_EVENT_DEMOTED, .pages = values, .number = bytes };

	index_record_name(t->space->index, record, &event.consumed, &event.endpoint);
	space_note(t->space, &event);
}

/* Records of one class's order; with `all` each loses what it has of any. */
static void leave(struct leaving *l, uint32_t class_index)
{
	struct tiering *t = l->t;
	struct tiering_class *class = &t->class[class_index];
	uint32_t n = 0;

	t->places_short = false;
	while (n < TIERING_PASSED && !leaving_done(l)) {
		uint32_t record = policy_lru.pop(class->resident), values = l->values;
		uint64_t bytes = l->bytes;

		if (record == INDEX_NONE)
			break;
		if (class->clean[record])
			record_leaves(l, record);
		if (l->values > values)
			note_left(t, record, l->values - values, l->bytes - bytes);
		if (class->clean[record])
			t->passed[n++] = record;
	}
	for (uint32_t i = 0; i < n; i++)
		policy_lru.insert(class->resident, t->passed[i]);
}

uint32_t demote_make_room(struct tiering *t, uint32_t class_index, uint32_t share, uint32_t want, struct slots_filter filter)
{
	struct slots *slots = t->space->slots;
	uint32_t free = slots_free_count(slots, class_index, share, filter);
	struct leaving l = {
		.t = t, .class_index = class_index, .share = share, .filter = filter, .looks = DEMOTE_LOOKS, .most_bytes = UINT64_MAX,
	};

	lock_assert_held(&t->space->lock);
	if (free >= want || t->closed)
		return free;
	l.most = want - free < INDEX_STEP_KEYS ? want - free : INDEX_STEP_KEYS;
	leave(&l, class_index);
	return slots_free_count(slots, class_index, share, filter);
}

uint64_t demote_some(struct tiering *t, uint64_t bytes, uint64_t *values)
{
	struct leaving l = { .t = t, .all = true, .looks = DEMOTE_LOOKS, .most = INDEX_STEP_KEYS, .most_bytes = bytes };

	lock_assert_held(&t->space->lock);
	if (t->closed)
		return 0;
	for (uint32_t c = 0; c < t->space->layout->classes && !leaving_done(&l); c++)
		leave(&l, c);
	*values += l.values;
	return l.bytes;
}

/* ---- leaving the disk ------------------------------------------------------------------------------------------------------ */

/* Not what somebody uses, nor what is being written. */
static bool idle(void *context, uint32_t entry)
{
	struct tiering *t = context;
	uint32_t record = t->space->tables.entries[entry].record;

	return !index_record(t->space->index, record)->pins && !tiering_file(t, record)->writing;
}

uint64_t demote_disk(struct tiering *t, uint64_t bytes)
{
	struct space *space = t->space;
	struct index_sink sink = space_sink(space);
	uint64_t gone = 0;
	bool more = true;

	lock_assert_none_held();
	while (more && (gone < bytes || !bytes)) {
		uint64_t freed;

		lock_take(&space->lock);
		uint64_t before = t->disk_bytes, places = t->places_used;

		freed = index_counters(space->index)->victims_freed;
		space_notes_begin(space);
		space->news_why = HOST_WHY_DISK;
		for (uint32_t i = 0; more && i < INDEX_STEP_KEYS && (bytes || places - t->places_used < INDEX_STEP_KEYS); i++)
			more = !index_evict_page(space->index, idle, t, &sink);
		space->stats.values_evicted += index_counters(space->index)->victims_freed - freed;
		space->news_why = HOST_WHY_ROOM;
		space_notes_end(space);
		while (tiering_flush(t)) {
			lock_drop(&space->lock);
			lock_take(&space->lock);
		}
		gone += before > t->disk_bytes ? before - t->disk_bytes : 0;
		if (!bytes && places - t->places_used >= INDEX_STEP_KEYS) {
			t->places_short = false;
			more = false;
		}
		space_room(space);
		lock_drop(&space->lock);
	}
	return gone;
}

/* ---- age -------------------------------------------------------------------------------------------------------------------- */

struct expiring {
	struct space *space;
	uint64_t values; /* that have gone */
};

static void value_expired(void *context, uint32_t entry)
{
	struct expiring *e = context;
	struct index_sink sink = space_sink(e->space);

	e->values++;
	sink.freed(sink.context, entry);
}

/* Under the lock: it goes if it is old enough and may. Returns what it hung off, if it has gone. */
static uint32_t expire_one(struct expiring *e, uint32_t record, uint64_t before_s)
{
	struct space *space = e->space;
	struct index_sink sink = { value_expired, e };
	uint32_t parent;

	if (record >= index_record_limit(space->index) || !index_record_visible(space->index, record) ||
	    space->tables.records[record].last_use_s > before_s)
		return INDEX_NONE;
	parent = index_record(space->index, record)->parent;
	return index_evict_record(space->index, record, &sink, NULL) ? INDEX_NONE : parent;
}

void demote_expired(struct tiering *t, uint64_t now_s)
{
	struct space *space = t->space;
	uint64_t age = space->host->config.expire_s;
	uint32_t cursor, climb = INDEX_NONE;

	if (!age || now_s < t->expire_at_s || now_s < age)
		return;
	t->expire_at_s = now_s + DEMOTE_EXPIRE_EVERY_S;
	lock_take(&space->lock);
	cursor = index_record_limit(space->index);
	lock_drop(&space->lock);
	while (cursor || climb != INDEX_NONE) {
		lock_take(&space->lock);
		space_notes_begin(space);
		space->news_why = HOST_WHY_AGE;
		struct expiring e = { .space = space };

		for (uint32_t i = 0; i + e.values < INDEX_STEP_KEYS && (cursor || climb != INDEX_NONE); i++)
			climb = expire_one(&e, climb != INDEX_NONE ? climb : --cursor, now_s - age);
		space->stats.values_expired += e.values;
		space->news_why = HOST_WHY_ROOM;
		space_notes_end(space);
		space_room(space);
		lock_drop(&space->lock);
	}
}
