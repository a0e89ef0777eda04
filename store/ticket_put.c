/* SPDX-License-Identifier: Apache-2.0
 *
 * Put tickets: the first rank takes room for all, the others find theirs kept.
 *
 * A kept slot is taken in the sense of slots.h, and that is all: its entry is free, no word names anybody. So a death of the process gives
 * it back.
 */
#include "store/ticket.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/fills.h"
#include "store/host_private.h"
#include "store/put_private.h"

#define BUCKETS 1024u
#define MILLISECOND 1000000ull
#define SPAN_WORDS ((uint32_t)(sizeof(struct fill_span) / sizeof(uint32_t)))
_Static_assert(sizeof(struct fill_span) == 4 * sizeof(uint32_t), "a vec32 holds them");

enum { DECIDING, OPEN, ENDED };

struct kept { /* of a (class, share) */
	struct vec32 slots;
	uint32_t taken; /* of them, from the first one on */
	uint32_t mark;  /* how many there were when the group began */
};

struct put_ticket {
	struct put_ticket *next; /* in its bucket */
	struct put_ticket *later; /* that ended next */
	uint8_t id[16];
	uint64_t sum[2];
	uint8_t state;
	bool listed;          /* can be found */
	uint32_t users;       /* PUT_STARTs under way */
	uint32_t came;        /* ranks */
	uint64_t deadline_ns; /* then it ends; when it has: when it is forgotten */
	struct vec32 pins;    /* records */
	struct kept *kept;    /* [columns] of pages, then of rows; NULL: given back */
	struct vec32 *begun;  /* [world] of each PUT_START that is over, in their order: where it has begun values */
	uint32_t over;
	uint8_t *status;      /* [groups] */
	uint32_t groups;
	uint8_t here[];       /* bits: ranks that have come */
};

struct put_tickets {
	struct space *space;
	struct put_ticket *bucket[BUCKETS];
	struct put_ticket *oldest, *newest; /* of those that have ended */
	uint32_t open, remembered;
};

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static uint32_t columns_of(const struct put_tickets *t)
{
	return t->space->layout->page_columns + t->space->layout->row_columns;
}

static struct kept *kept_of(const struct put_tickets *t, const struct put_ticket *k, uint32_t class_index, uint32_t share)
{
	const struct layout *layout = t->space->layout;
	uint32_t column = layout_column(layout, class_index, share);

	return &k->kept[layout_is_row(layout, class_index) ? layout->page_columns + column : column];
}

int put_tickets_new(struct space *space, struct put_tickets **ret, struct why *why)
{
	struct put_tickets *t = calloc(1, sizeof(*t));

	if (!t)
		return why_set(why, ENOMEM, "namespace %s: no memory for its tickets", space->name);
	t->space = space;
	*ret = t;
	return 0;
}

static void free_arrays(const struct put_tickets *t, struct put_ticket *k)
{
	for (uint32_t i = 0; k->kept && i < columns_of(t); i++)
		vec32_free(&k->kept[i].slots);
	for (uint32_t i = 0; k->begun && i < k->over; i++)
		vec32_free(&k->begun[i]);
	free(k->kept);
	free(k->begun);
	k->kept = NULL;
	k->begun = NULL;
	vec32_free(&k->pins);
}

static void ticket_free(const struct put_tickets *t, struct put_ticket *k)
{
	free_arrays(t, k);
	free(k->status);
	free(k);
}

void put_tickets_free(struct put_tickets **tickets)
{
	struct put_tickets *t = *tickets;

	*tickets = NULL;
	for (uint32_t i = 0; t && i < BUCKETS; i++)
		while (t->bucket[i]) {
			struct put_ticket *k = t->bucket[i];

			t->bucket[i] = k->next;
			ticket_free(t, k);
		}
	free(t);
}

static struct put_ticket **find(struct put_tickets *t, const uint8_t id[16])
{
	struct put_ticket **at;
	uint64_t word;

	memcpy(&word, id, sizeof(word)); /* ids are random */
	at = &t->bucket[word % BUCKETS];
	while (*at && memcmp((*at)->id, id, sizeof((*at)->id)))
		at = &(*at)->next;
	return at;
}

/* Under the lock: the one that ended first is found no more. Its memory is the caller's to free, unless it is still looked at. */
static struct put_ticket *forget_oldest(struct put_tickets *t)
{
	struct put_ticket *k = t->oldest, **at = find(t, k->id);

	t->oldest = k->later;
	if (!t->oldest)
		t->newest = NULL;
	t->remembered--;
	*at = k->next;
	k->listed = false;
	return k->users ? NULL : k;
}

static void let_go(struct space *space, uint32_t slot)
{
	slots_keep(space->slots, slot, false);
	slots_give(space->slots, slot);
	space->stats.ticket_slots--;
}

/* ---- the end --------------------------------------------------------------------------------------------------------- */

/* Under the lock: it is over, and whoever called this gives back what it holds. */
static void conclude(struct put_tickets *t, struct put_ticket *k)
{
	t->space->stats.put_tickets_short += k->came < t->space->layout->world;
	k->state = ENDED;
	k->deadline_ns = clock_now_ns() + t->space->host->config.handle_ttl_ms * MILLISECOND;
	k->later = NULL;
	*(t->newest ? &t->newest->later : &t->oldest) = k;
	t->newest = k;
	t->remembered++;
	t->open--;
	k->users++; /* until it is given back */
}

/* Under the lock: at most INDEX_STEP_KEYS. False: nothing is left. */
static bool give_some(struct put_tickets *t, struct put_ticket *k)
{
	uint32_t left = INDEX_STEP_KEYS;

	for (uint32_t i = 0; k->kept && i < columns_of(t) && left; i++)
		for (struct kept *kept = &k->kept[i]; kept->taken < kept->slots.count && left; left--) {
			let_go(t->space, kept->slots.at[kept->taken++]);
		}
	for (; k->pins.count && left; left--) {
		space_unpin(t->space, k->pins.at[--k->pins.count]);
		t->space->stats.ticket_pins--;
	}
	space_room(t->space);
	return !left;
}

/* Without the lock: ranks did not come in time, so what the others have committed is of no use. One that is late in its PUT_START is not
 * among them: it is writing. */
static void abandon(struct put_tickets *t, struct put_ticket *k)
{
	for (uint32_t i = 0; t->space->fills && i < k->over; i++) {
		struct vec32 *all = &k->begun[0], *own = &k->begun[i];

		if (i && !vec32_reserve(all, own->count))
			continue; /* goes after fill_ttl */
		for (uint32_t j = 0; i && j < own->count; j++)
			vec32_push(all, own->at[j]);
	}
	if (t->space->fills && k->over)
		fills_abandon(t->space->fills, (struct fill_span *)k->begun[0].at, k->begun[0].count / SPAN_WORDS);
}

/* Without the lock: one that was concluded by the caller. @late: at its deadline. */
static void give_back(struct put_tickets *t, struct put_ticket *k, bool late)
{
	bool more = true, gone;

	while (more) {
		lock_take(&t->space->lock);
		more = give_some(t, k);
		lock_drop(&t->space->lock);
	}
	if (late)
		abandon(t, k);
	lock_take(&t->space->lock);
	gone = !--k->users && !k->listed;
	lock_drop(&t->space->lock);
	if (gone)
		ticket_free(t, k);
	space_retire(t->space);
}

/* ---- coming ---------------------------------------------------------------------------------------------------------- */

static int ticket_new(struct put_tickets *t, const uint8_t id[16], const uint64_t sum[2], uint32_t groups, uint64_t deadline_ns,
		      struct put_ticket **ret, struct why *why)
{
	uint32_t world = t->space->layout->world;
	struct put_ticket *k;

	if (t->open == TICKETS_MAX)
		return why_set(why, EDQUOT, "ticket: %u puts of the namespace have not ended, the most that there may be", TICKETS_MAX);
	k = calloc(1, sizeof(*k) + (world + 7) / 8);
	if (k) {
		k->kept = calloc(columns_of(t), sizeof(*k->kept));
		k->begun = calloc(world, sizeof(*k->begun));
		k->status = malloc(groups);
	}
	if (!k || !k->kept || !k->begun || !k->status) {
		if (k)
			ticket_free(t, k);
		return why_set(why, ENOMEM, "no memory for a ticket of %u groups", groups);
	}
	memset(k->status, PUT_NOROOM, groups);
	memcpy(k->id, id, sizeof(k->id));
	memcpy(k->sum, sum, sizeof(k->sum));
	k->groups = groups;
	k->deadline_ns = deadline_ns;
	k->listed = true;
	*find(t, id) = k;
	t->open++;
	t->space->stats.put_tickets++;
	*ret = k;
	return 0;
}

int ticket_put_come(struct put_tickets *t, const uint8_t id[16], const uint64_t sum[2], uint32_t groups, const struct session *s,
		    uint64_t deadline_ns, struct ticket_put *ret, enum ticket_put_part *part, struct why *why)
{
	struct put_ticket *k = *find(t, id);
	int r;

	lock_assert_held(&t->space->lock);
	*part = TICKET_PUT_LATER;
	if (!k) {
		r = ticket_new(t, id, sum, groups, deadline_ns, &k, why);
		if (r)
			return r;
		*part = TICKET_PUT_FIRST;
	} else if (k->state == ENDED) {
		*part = TICKET_PUT_ENDED;
		return 0;
	} else if (memcmp(k->sum, sum, sizeof(k->sum))) {
		return why_set(why, EINVAL, "ticket: groups, keys or masks are others than those of whoever came first");
	} else if (k->here[s->rank / 8] >> (s->rank % 8) & 1) {
		return why_set(why, EEXIST, "ticket: rank %u has come already", s->rank);
	} else if (k->state == DECIDING) {
		*part = TICKET_PUT_WAITS;
		return 0;
	}
	k->here[s->rank / 8] |= (uint8_t)(1u << (s->rank % 8));
	k->came++;
	k->users++;
	*ret = (struct ticket_put){ t, k, *part == TICKET_PUT_FIRST, { 0 } };
	return 0;
}

void ticket_put_done(struct ticket_put *put, bool failed)
{
	struct put_tickets *t = put->tickets;
	struct put_ticket *k = put->ticket;
	bool ends, gone;

	if (!k)
		return;
	put->ticket = NULL;
	lock_take(&t->space->lock);
	if (k->state != ENDED) {
		k->begun[k->over++] = put->begun;
		put->begun = (struct vec32){ 0 };
	}
	if (put->first && !failed)
		k->state = OPEN;
	/* not while another one is at its groups: what was decided holds for it, too */
	ends = k->state != ENDED && ((put->first && failed) || (k->came == t->space->layout->world && k->users == 1));
	if (ends)
		conclude(t, k);
	gone = !--k->users && !k->listed;
	lock_drop(&t->space->lock);
	vec32_free(&put->begun);
	if (ends)
		give_back(t, k, false);
	else if (gone)
		ticket_free(t, k);
}

/* ---- the first rank ---------------------------------------------------------------------------------------------------- */

bool ticket_put_reserve(struct ticket_put *put, uint32_t more)
{
	for (uint32_t i = 0; i < columns_of(put->tickets); i++)
		if (!vec32_reserve(&put->ticket->kept[i].slots, more))
			return false;
	return vec32_reserve(&put->ticket->pins, 2 * more);
}

void ticket_put_begin(struct ticket_put *put)
{
	for (uint32_t i = 0; i < columns_of(put->tickets); i++)
		put->ticket->kept[i].mark = put->ticket->kept[i].slots.count;
}

/* Under the lock: a session that is attached as a rank of the share; NULL: none is. */
static struct session *session_of(const struct space *space, uint32_t class_index, uint32_t share)
{
	struct session *s = space->attached;

	while (s && (s->rank == SESSION_RANK_NONE || s->read_only || s->share[class_index] != share))
		s = s->next_attached;
	return s;
}

bool ticket_put_keep(struct ticket_put *put, struct session *session, uint32_t class_index, uint32_t share)
{
	struct space *space = put->tickets->space;
	struct session *owner = session_of(space, class_index, share);
	struct slots_filter filter = { owner ? owner->acknowledged : NULL };
	struct kept *kept = kept_of(put->tickets, put->ticket, class_index, share);
	struct slots_cursor cursor = { .grant = SLOTS_NONE };
	uint32_t slot;

	lock_assert_held(&space->lock);
	if (kept->slots.count >= space->capacity[class_index][share]) /* no rank could take them all */
		return false;
	if (!slots_free_count(space->slots, class_index, share, filter) && !room_make(owner ? owner : session, class_index, share, 1))
		return false;
	slots_seek(space->slots, &cursor, class_index, share, 1, filter);
	slot = cursor.grant == SLOTS_NONE ? SLOTS_NONE : slots_take(space->slots, &cursor, filter);
	if (slot == SLOTS_NONE)
		return false;
	vec32_push(&kept->slots, slot);
	slots_keep(space->slots, slot, true);
	space->stats.ticket_slots++;
	killpoint(KILLPOINT_PUT_KEPT);
	return true;
}

/* Under the lock, at most INDEX_STEP_KEYS. False: that was the last. */
static bool undo_some(struct put_tickets *t, struct put_ticket *k)
{
	uint32_t left = INDEX_STEP_KEYS;

	for (uint32_t i = 0; i < columns_of(t) && left; i++)
		for (struct kept *kept = &k->kept[i]; kept->slots.count > kept->mark && left; left--) {
			let_go(t->space, kept->slots.at[--kept->slots.count]);
		}
	return !left;
}

void ticket_put_undo(struct ticket_put *put)
{
	bool more = true;

	while (more) {
		lock_take(&put->tickets->space->lock);
		more = undo_some(put->tickets, put->ticket);
		lock_drop(&put->tickets->space->lock);
	}
}

void ticket_put_decide(struct ticket_put *put, uint32_t group, uint8_t status)
{
	lock_assert_held(&put->tickets->space->lock);
	put->ticket->status[group] = status;
}

void ticket_put_pin(struct ticket_put *put, uint32_t record)
{
	struct vec32 *pins = &put->ticket->pins;

	if (pins->count && pins->at[pins->count - 1] == record)
		return;
	space_pin(put->tickets->space, record);
	put->tickets->space->stats.ticket_pins++;
	vec32_push(pins, record);
}

/* ---- a later one -------------------------------------------------------------------------------------------------------- */

uint8_t ticket_put_status(const struct ticket_put *put, uint32_t group)
{
	lock_assert_held(&put->tickets->space->lock);
	return put->ticket->state == ENDED ? PUT_NOROOM : put->ticket->status[group];
}

uint32_t ticket_put_take(struct ticket_put *put, uint32_t class_index, uint32_t share, struct slots_filter filter)
{
	struct space *space = put->tickets->space;
	struct kept *kept;
	uint32_t slot, grant;

	lock_assert_held(&space->lock);
	if (put->ticket->state == ENDED)
		return SLOTS_NONE;
	kept = kept_of(put->tickets, put->ticket, class_index, share);
	if (kept->taken == kept->slots.count)
		return SLOTS_NONE;
	slot = kept->slots.at[kept->taken++];
	grant = slots_grant_of(space->slots, slot);
	if (!(filter.acknowledged[grant / 64] >> (grant % 64) & 1)) { /* the session cannot reach it */
		let_go(space, slot);
		return SLOTS_NONE;
	}
	slots_keep(space->slots, slot, false);
	space->stats.ticket_slots--;
	return slot;
}

/* ---- any rank ----------------------------------------------------------------------------------------------------------- */

bool ticket_put_reserve_begun(struct ticket_put *put, uint32_t more)
{
	return vec32_reserve(&put->begun, more * SPAN_WORDS);
}

void ticket_put_begun(struct ticket_put *put, uint32_t record, uint16_t page)
{
	uint32_t generation = index_record(put->tickets->space->index, record)->generation;
	struct fill_span *last, span = { record, generation, page, 1 };

	if (put->begun.count) {
		last = (struct fill_span *)&put->begun.at[put->begun.count - SPAN_WORDS];
		if (last->record == record && last->generation == generation) {
			if (last->page + last->pages == page + 1u) /* another class */
				return;
			if (last->page + last->pages == page && page != INDEX_PAGE_ROW) {
				last->pages++;
				return;
			}
		}
	}
	put->begun.count += SPAN_WORDS;
	memcpy(&put->begun.at[put->begun.count - SPAN_WORDS], &span, sizeof(span));
}

/* ---- time ---------------------------------------------------------------------------------------------------------------- */

/* Under the lock: one whose deadline has passed, concluded; NULL: none. */
static struct put_ticket *late_one(struct put_tickets *t, uint32_t *bucket, uint64_t now_ns)
{
	uint32_t end = *bucket + INDEX_STEP_KEYS;

	for (; *bucket < end && *bucket < BUCKETS; ++*bucket)
		for (struct put_ticket *k = t->bucket[*bucket]; k; k = k->next)
			if (k->state == OPEN && now_ns > k->deadline_ns) {
				conclude(t, k);
				return k;
			}
	return NULL;
}

static struct put_ticket *old_one(struct put_tickets *t, uint64_t now_ns, bool *more)
{
	*more = t->oldest && (now_ns > t->oldest->deadline_ns || t->remembered > TICKETS_REMEMBERED);
	return *more ? forget_oldest(t) : NULL;
}

void put_tickets_run(struct put_tickets *t, uint64_t now_ns)
{
	bool more = true;

	for (uint32_t bucket = 0; bucket < BUCKETS && t->open;) {
		struct put_ticket *k;

		lock_take(&t->space->lock);
		k = late_one(t, &bucket, now_ns);
		lock_drop(&t->space->lock);
		if (k)
			give_back(t, k, true);
	}
	while (more) {
		struct put_ticket *k;

		lock_take(&t->space->lock);
		k = old_one(t, now_ns, &more);
		lock_drop(&t->space->lock);
		if (k)
			ticket_free(t, k);
	}
}
