/* SPDX-License-Identifier: Apache-2.0
 *
 * What a remnant holds is said by the words alone: each bit of its seat is one hold (store/seating.h) from its adoption until it is
 * settled, and the bit goes with the hold. So nothing has to be listed, and a death in the middle leaves the rest to the next process.
 *
 *   waits -> settling -> gone
 *
 * The crowd's remnant waits for the processes of all sessions that no other seat names. Its seat is LEAVING meanwhile, so that no session
 * of this process's shares it.
 */
#include "store/remnants.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "index/seats.h"
#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/outcomes.h"
#include "store/seating.h"
#include "store/session_private.h"

enum remnant_state { REMNANT_WAITS, REMNANT_SETTLING, REMNANT_GONE };

struct remnant {
	enum remnant_state state; /* (space lock) */
	uint32_t seat;            /* constant, like the next four */
	uint64_t session, handle, process;
	uint8_t client_id[16];
	uint32_t slots;           /* (space lock) that it holds */
	bool watched;             /* a pidfd is held; constant */
};

/* A process that is watched: of a remnant, or one of the crowd's. */
struct watched {
	struct adopt_session of; /* descriptors -1: they are the doorman's */
	bool crowd;
	bool gone;   /* (space lock) with its guard */
};

struct remnants {
	struct remnant at[SEATS];
	uint32_t count;
	_Atomic uint32_t left; /* not GONE */
	struct watched *watched;
	uint32_t watched_count;
	uint64_t born_ns;
};

bool remnants_any(const struct space *space)
{
	return space->remnants && atomic_load(&space->remnants->left) > 0;
}

/* ---- who they are --------------------------------------------------------------------------------------------------- */

static struct remnant *of_seat(struct remnants *r, uint32_t seat)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->at[i].seat == seat && r->at[i].state != REMNANT_GONE)
			return &r->at[i];
	return NULL;
}

static struct remnant *of_session(struct remnants *r, uint64_t session)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->at[i].seat != SEATS_CROWD && r->at[i].session == session && r->at[i].state != REMNANT_GONE)
			return &r->at[i];
	return NULL;
}

static bool process_ended(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static bool both_ended(const struct adopt_session *s)
{
	return process_ended(s->pidfd) && (s->guard_fd < 0 || process_ended(s->guard_fd));
}

/* A seat that is not free becomes a remnant. */
static void read_seats(struct remnants *r, struct tables *tables)
{
	for (uint32_t seat = 0; seat < SEATS; seat++) {
		const struct seat *s = &tables->seats[seat];
		struct remnant *m = &r->at[r->count];

		if (seats_state(tables, seat) == SEAT_FREE)
			continue;
		*m = (struct remnant){ .seat = seat, .session = s->session, .handle = s->handle, .process = s->process };
		memcpy(m->client_id, s->client_id, sizeof(m->client_id));
		r->count++;
	}
	atomic_store(&r->left, r->count);
}

/* Descriptors of sessions that no seat names, where none shares the crowd's, go. */
static int take_processes(struct remnants *r, const struct adoption *from, struct why *why)
{
	r->watched = calloc(from->session_count + 1, sizeof(*r->watched));
	for (uint32_t i = 0; !r->watched && i < from->session_count; i++)
		adopt_session_end(&from->sessions[i]);
	if (!r->watched)
		return why_set(why, ENOMEM, "no memory for the processes of %u sessions of before", from->session_count);
	for (uint32_t i = 0; i < from->session_count; i++) {
		const struct adopt_session *s = &from->sessions[i];
		struct remnant *m = of_session(r, s->number), *crowd = of_seat(r, SEATS_CROWD);

		if (s->pidfd < 0 || (!m && !crowd)) {
			adopt_session_end(s);
			continue;
		}
		if (m)
			m->watched = true;
		else
			crowd->watched = true;
		r->watched[r->watched_count++] = (struct watched){ *s, !m, both_ended(s) };
	}
	return 0;
}

/* ---- what they hold ------------------------------------------------------------------------------------------------- */

/* Bits of seats that are free, whose line is damaged, are nobody's. */
static void hold_slot(struct space *space, uint32_t slot)
{
	struct remnants *r = space->remnants;
	uint64_t nobody = 0;

	for (uint64_t bits = space->tables.users[slot]; bits; bits &= bits - 1) {
		uint32_t seat = (uint32_t)__builtin_ctzll(bits);
		struct remnant *m = of_seat(r, seat);

		if (!m) {
			nobody |= 1ull << seat;
			continue;
		}
		m->slots++;
		space->holds[slot]++;
	}
	for (; nobody; nobody &= nobody - 1)
		seats_take_out(&space->tables, slot, (uint32_t)__builtin_ctzll(nobody));
	if (space->tables.entries[slot].state != ENTRY_QUARANTINED)
		return;
	if (space->holds[slot]) {
		space->stats.slots_owed++;
	} else if (!space->tables.users[slot]) { /* it rested for nobody */
		tables_entry_set_state(&space->tables, slot, ENTRY_FREE);
		slots_give(space->slots, slot);
	}
}

/* Words of all slots in grants. */
static void hold_slots(struct space *space, struct adopt_report *report)
{
	struct slots_grant g;

	lock_take(&space->lock);
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++)
		for (uint32_t n = 0; slots_grant_get(space->slots, id, &g) && g.ready && n < g.slots; n++)
			if (space->tables.users[g.first_entry + n]) {
				hold_slot(space, g.first_entry + n);
				report->kept_slots += space->tables.users[g.first_entry + n] != 0;
			}
	lock_drop(&space->lock);
}

/* Under the lock: a bit and its hold. */
static void let_slot_go(struct space *space, struct remnant *m, uint32_t slot)
{
	seats_take_out(&space->tables, slot, m->seat);
	killpoint(KILLPOINT_SETTLE_SLOT);
	m->slots--;
	slots_unhold(space, &slot, 1);
}

/* One stay under the lock: slots from *@from on, as many as SEATS_SWEEP words or INDEX_STEP_KEYS bits. False: those were all. */
static bool let_some_go(struct space *space, struct remnant *m, bool values_only, uint32_t *from)
{
	const struct tables *tables = &space->tables;
	uint32_t first, count, steps = INDEX_STEP_KEYS;

	lock_assert_held(&space->lock);
	if (!m->slots || !slots_next(space->slots, *from, SEATS_SWEEP, &first, &count))
		return false;
	for (*from = first; *from < first + count && steps; ++*from) {
		if (!(tables->users[*from] >> m->seat & 1) || (values_only && tables->entries[*from].state != ENTRY_VALUE))
			continue;
		let_slot_go(space, m, *from);
		steps--;
	}
	return true;
}

static void let_go(struct space *space, struct remnant *m, bool values_only)
{
	uint32_t from = 0;
	bool more = true;

	while (more) {
		lock_take(&space->lock);
		more = let_some_go(space, m, values_only, &from);
		space_room(space);
		lock_drop(&space->lock);
	}
}

/* ---- settling --------------------------------------------------------------------------------------------------------- */

/* Under the lock: the caller settles it, or somebody else does already. */
static bool begin_to_settle(struct space *space, struct remnant *m)
{
	lock_assert_held(&space->lock);
	if (m->state != REMNANT_WAITS)
		return false;
	m->state = REMNANT_SETTLING;
	if (seats_state(&space->tables, m->seat) == SEAT_TAKEN)
		seats_leave(&space->tables, m->seat);
	killpoint(KILLPOINT_SETTLE_LEAVING);
	return true;
}

static void forget_outcomes(struct space *space, const struct remnant *m)
{
	bool more = true;

	while (more) {
		lock_take(&space->lock);
		more = outcomes_settle(space, m->seat == SEATS_CROWD ? OUTCOMES_CROWD : m->session);
		space_room(space);
		lock_drop(&space->lock);
	}
}

/* Begun by begin_to_settle. */
static void settle(struct space *space, struct remnant *m)
{
	lock_assert_none_held();
	let_go(space, m, false);
	forget_outcomes(space, m);
	lock_take(&space->lock);
	assert(!m->slots);
	killpoint(KILLPOINT_SETTLE_FREE);
	seats_free(&space->tables, m->seat);
	m->state = REMNANT_GONE;
	bool last = atomic_fetch_sub(&space->remnants->left, 1) == 1;
	lock_drop(&space->lock);
	if (last)
		balance_ask(space->host); /* pages may be given back again */
}

/* Under the lock: have all of the crowd's processes ended? */
static bool crowd_gone(const struct remnants *r)
{
	for (uint32_t i = 0; i < r->watched_count; i++)
		if (r->watched[i].crowd && !r->watched[i].gone)
			return false;
	return true;
}

/* What nobody waits for any more. Before others know the space. */
static void settle_at_once(struct space *space)
{
	struct remnants *r = space->remnants;

	for (uint32_t i = 0; i < r->count; i++) {
		struct remnant *m = &r->at[i];
		bool over;

		lock_take(&space->lock);
		if (m->seat == SEATS_CROWD) {
			over = crowd_gone(r);
			if (seats_state(&space->tables, m->seat) == SEAT_TAKEN)
				seats_leave(&space->tables, m->seat);
		} else {
			over = seats_state(&space->tables, m->seat) == SEAT_LEAVING;
		}
		for (uint32_t w = 0; w < r->watched_count; w++)
			over |= !r->watched[w].crowd && r->watched[w].of.number == m->session && r->watched[w].gone;
		over = over && begin_to_settle(space, m);
		lock_drop(&space->lock);
		if (over)
			settle(space, m);
	}
}

int remnants_adopt(struct space *space, const struct adoption *from, struct adopt_report *report, struct remnants **ret,
		   struct why *why)
{
	struct remnants *r = calloc(1, sizeof(*r));
	int error = r ? 0 : why_set(why, ENOMEM, "no memory for the sessions of before");

	if (error)
		return error;
	r->born_ns = clock_now_ns();
	for (uint32_t seat = 0; seat < SEATS; seat++)
		report->torn_seats += seats_state(&space->tables, seat) == SEAT_FREE && space->tables.seats[seat].state != SEAT_FREE;
	read_seats(r, &space->tables);
	error = take_processes(r, from, why);
	*ret = r;
	if (error)
		return error;
	hold_slots(space, report);
	settle_at_once(space);
	return 0;
}

void remnants_free(struct remnants **rp)
{
	struct remnants *r = *rp;

	*rp = NULL;
	if (!r)
		return;
	for (uint32_t i = 0; i < r->watched_count; i++)
		adopt_session_end(&r->watched[i].of);
	free(r->watched);
	free(r);
}

/* ---- their ends -------------------------------------------------------------------------------------------------------- */

uint32_t remnants_watch(struct space *space, struct adopt_session *ret, uint32_t capacity)
{
	struct remnants *r = space->remnants;
	uint32_t n = 0;

	lock_take(&space->lock);
	for (uint32_t i = 0; r && i < r->watched_count && n < capacity; i++) {
		struct watched *w = &r->watched[i];

		if (w->of.pidfd < 0 || w->gone)
			continue;
		ret[n++] = w->of;
		w->of.pidfd = w->of.guard_fd = -1;
	}
	lock_drop(&space->lock);
	return n;
}

/* Of one space, under the lock: the remnant that is to be settled now, or NULL. *known: the session was one's. */
static struct remnant *process_gone(struct space *space, uint64_t number, bool *known)
{
	struct remnants *r = space->remnants;
	struct remnant *m = of_session(r, number);

	for (uint32_t i = 0; i < r->watched_count; i++) {
		struct watched *w = &r->watched[i];

		if (w->of.number != number)
			continue;
		w->gone = true;
		if (w->crowd && crowd_gone(r))
			m = of_seat(r, SEATS_CROWD);
		*known = true;
	}
	*known |= m != NULL;
	return m && begin_to_settle(space, m) ? m : NULL;
}

bool remnants_process_gone(struct host *host, uint64_t number)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = host_all_spaces(host, spaces);
	bool known = false;

	for (uint32_t i = 0; i < n; i++) {
		struct remnant *m = NULL;

		if (remnants_any(spaces[i])) {
			lock_take(&spaces[i]->lock);
			m = process_gone(spaces[i], number, &known);
			lock_drop(&spaces[i]->lock);
		}
		if (m)
			settle(spaces[i], m);
		space_unref(&spaces[i]);
	}
	return known;
}

bool remnants_await(struct host *host, uint64_t number)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = host_all_spaces(host, spaces);
	bool awaited = false;

	for (uint32_t i = 0; i < n; i++) {
		struct remnants *r = spaces[i]->remnants;

		if (remnants_any(spaces[i])) {
			lock_take(&spaces[i]->lock);
			awaited |= of_session(r, number) != NULL;
			for (uint32_t w = 0; w < r->watched_count && of_seat(r, SEATS_CROWD); w++)
				awaited |= r->watched[w].of.number == number && r->watched[w].crowd && !r->watched[w].gone;
			lock_drop(&spaces[i]->lock);
		}
		space_unref(&spaces[i]);
	}
	return awaited;
}

void remnants_handle_released(struct host *host, uint64_t handle)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = host_all_spaces(host, spaces);

	for (uint32_t i = 0; i < n; i++) {
		struct remnants *r = spaces[i]->remnants;

		for (uint32_t k = 0; remnants_any(spaces[i]) && k < r->count; k++)
			if (r->at[k].seat != SEATS_CROWD && r->at[k].handle == handle)
				let_go(spaces[i], &r->at[k], true);
		space_unref(&spaces[i]);
	}
}

int remnants_settle(struct session *session, uint64_t earlier, struct why *why)
{
	struct space *space = session->space;
	struct remnant *m = NULL;
	int r = 0;

	lock_take(&space->lock);
	if (space->remnants)
		m = of_session(space->remnants, earlier);
	if (!m)
		r = why_set(why, ENOENT, "session %llu of before has nothing that is kept for it", (unsigned long long)earlier);
	else if (memcmp(m->client_id, session->client_id, sizeof(m->client_id)))
		r = why_set(why, EACCES, "session %llu was another client's", (unsigned long long)earlier);
	else if (!m->process || m->process != session->process)
		r = why_set(why, EACCES, "session %llu was of another process, which may still be writing: its end settles it",
			    (unsigned long long)earlier);
	else if (!begin_to_settle(space, m))
		m = NULL; /* somebody is at it */
	lock_drop(&space->lock);
	if (!r && m)
		settle(space, m);
	return r;
}

void remnants_report(const struct space *space, struct space_report *ret)
{
	const struct remnants *r = space->remnants;

	lock_assert_held(&space->lock);
	for (uint32_t i = 0; r && i < r->count; i++) {
		ret->remnants += r->at[i].state != REMNANT_GONE;
		ret->remnant_slots += r->at[i].slots;
	}
}

uint32_t remnants_list(struct space *space, struct remnant_info *ret, uint32_t capacity)
{
	struct remnants *r = space->remnants;
	uint32_t n = 0;

	lock_take(&space->lock);
	for (uint32_t i = 0; r && i < r->count && n < capacity; i++) {
		const struct remnant *m = &r->at[i];

		if (m->state == REMNANT_GONE)
			continue;
		ret[n] = (struct remnant_info){
			.session = m->session, .slots = m->slots, .age_ns = clock_now_ns() - r->born_ns, .watched = m->watched,
			.crowd = m->seat == SEATS_CROWD,
		};
		memcpy(ret[n++].client_id, m->client_id, sizeof(m->client_id));
	}
	lock_drop(&space->lock);
	return n;
}
