/* SPDX-License-Identifier: Apache-2.0
 *
 * Get tickets, told: how many there are, who waits where, and whether lists and counts agree.
 */
#include "store/ticket_private.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/get_private.h"
#include "store/host_private.h"

#define MILLISECOND 1000000ull

void tickets_report(const struct tickets *t, struct tickets_report *ret)
{
	lock_assert_held(&t->space->lock);
	*ret = (struct tickets_report){
		.live = TICKETS_MAX - t->live_free_count,
		.remembered = t->remembered,
		.pins = t->space->stats.ticket_pins,
		.kept_slots = t->space->stats.ticket_slots,
	};
}

/* Has the rank come to where a session is? */
static bool is_there(const struct live *live, uint32_t rank, int gate)
{
	const struct place *p = &live->rank[rank];

	return gate == SESSION_TICKET_CONFIRMS ? p->reported : gate == SESSION_TICKET_DELIVERS ? p->came : p->session != 0;
}

/* Under the lock. */
static struct session_ticket tell_place(const struct tickets *t, const struct live *live, const struct session *s)
{
	const struct gate *gate = &live->gate[live->range % 2];
	uint64_t now_ns = clock_now_ns();
	struct session_ticket told = {
		.world = t->space->layout->world,
		.lacks = SESSION_RANK_NONE,
		.idle_ms = now_ns > live->ticket->used_ns ? (now_ns - live->ticket->used_ns) / MILLISECOND : 0,
	};

	memcpy(told.id, live->ticket->id, sizeof(told.id));
	if (s->rank != SESSION_RANK_NONE && live->rank[s->rank].reported) {
		told.gate = SESSION_TICKET_CONFIRMS;
	} else if (s->rank != SESSION_RANK_NONE && live->rank[s->rank].came && live->rank[s->rank].range == live->range) {
		told.gate = SESSION_TICKET_DELIVERS;
		told.from = gate->range.from;
		told.to = gate->range.to;
	}
	for (uint32_t i = told.world; i-- > 0;)
		if (is_there(live, i, told.gate))
			told.came++;
		else
			told.lacks = i;
	return told;
}

static bool has_come(const struct live *live, const struct session *s)
{
	bool came = s->rank != SESSION_RANK_NONE && live->rank[s->rank].session == s->number;

	for (uint32_t i = 0; i < live->others && !came; i++)
		came = live->other[i] == s->number;
	return came && live->ticket->state < RESTORED;
}

uint32_t tickets_of_session(const struct tickets *t, const struct session *s, struct session_ticket *ret, uint32_t capacity)
{
	uint32_t n = 0;
	bool any = true;

	for (uint32_t i = 0; i < TICKETS_MAX && any;) {
		uint32_t end = i + INDEX_STEP_KEYS;

		lock_take(&t->space->lock);
		any = t->live_free_count < TICKETS_MAX;
		for (; any && i < end; i++)
			if (t->live[i] && has_come(t->live[i], s) && n++ < capacity)
				ret[n - 1] = tell_place(t, t->live[i], s);
		lock_drop(&t->space->lock);
	}
	return n;
}

void tickets_check(const struct tickets *t)
{
	uint32_t listed = 0, live = 0, ended = 0, undecided = 0;
	uint64_t pins = 0;

	lock_assert_held(&t->space->lock);
	for (uint32_t i = 0; i < TICKET_BUCKETS; i++)
		for (const struct ticket *k = t->bucket[i]; k; k = k->next) {
			listed++;
			undecided += k->state < RESTORED;
			if (!k->listed || (k->live && k->live->ticket != k))
				abort();
		}
	for (const struct ticket *k = t->oldest; k; k = k->later)
		ended++;
	for (uint32_t i = 0; i < TICKETS_MAX; i++)
		if (t->live[i]) {
			live++;
			pins += t->live[i]->found ? found_pins(t->live[i]->found) : 0;
		}
	if (listed != undecided + ended || ended != t->remembered || live != TICKETS_MAX - t->live_free_count ||
	    undecided != t->space->stats.tickets || pins != t->space->stats.ticket_pins)
		abort();
}
