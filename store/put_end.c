/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_COMMIT and PUT_ABORT, and the other ends of a put plan: its session ends, its groups stay pending too long.
 *
 * A group commits with the one store tables_group_publish(); from then on every look-up sees all of its values. Settling
 * them and publishing its records follows in steps of INDEX_STEP_KEYS under the lock, while others work in between.
 */
#include "store/put_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/outcomes.h"
#include "store/seating.h"
#include "store/tiering.h"

/* ---- without commit ------------------------------------------------------------------------------------------- */

/* A quarantined slot's entry is remembered before its name goes: a failed push leaks it, never reuses it. */
static bool undo_value(struct session *session, uint32_t entry, struct vec32 *quarantine_to,
		       const struct index_sink *sink)
{
	struct space *space = session->space;

	session->prepared_bytes -= slots_slot_bytes(space->slots, entry);
	space->stats.slots_prepared--;
	if (quarantine_to)
		slot_rests(session, entry);
	else
		slot_let_go(space, entry);
	killpoint(KILLPOINT_ABORT_VALUE);
	index_value_drop(space->index, entry, quarantine_to != NULL, sink);
	if (!quarantine_to)
		return true;
	if (!vec32_reserve(quarantine_to, 1))
		return false;
	vec32_push(quarantine_to, entry);
	return true;
}

void put_group_undo(struct session *session, struct put_plan *plan, uint32_t i, uint8_t status, struct vec32 *quarantine_to)
{
	struct space *space = session->space;
	struct plan_group *group = &plan->group[i];
	struct index_sink sink = space_sink(space);
	uint32_t value = GROUP_FROM(plan, i, values), record = GROUP_FROM(plan, i, records);
	uint32_t pin = GROUP_FROM(plan, i, pins);
	uint32_t left;

	killpoint(KILLPOINT_ABORT_BEGIN);
	atomic_store_explicit(&space->tables.groups[group->group - 1].state, GROUP_LOST, memory_order_release);
	killpoint(KILLPOINT_ABORT_WORD);
	do {
		left = INDEX_STEP_KEYS;
		lock_take(&space->lock);
		for (; value < group->values && left; value++, left--)
			undo_value(session, plan->values.at[value], quarantine_to, &sink);
		for (; value == group->values && record < group->records && left; record++, left--) {
			index_record_abandon(space->index, plan->records.at[record], &sink);
			if (space->tiering) /* values of other groups may have made it live */
				tiering_published(space->tiering, plan->records.at[record]);
		}
		for (; record == group->records && pin < group->pins && left; pin++, left--)
			session_unpin(session, plan->pins.at[pin]);
		if (left) {
			if (status == PUT_LOST)
				space->stats.groups_lost++;
			else if (status == PUT_ABORTED)
				space->stats.groups_aborted++;
			space_committed(space); /* whoever waits for one of its keys may look again: it is gone */
			/* What a refused group had taken itself is no news to the one that was refused. */
			if (!quarantine_to && !(status == PUT_NOROOM && space->refused == session->number))
				space_room(space);
		}
		lock_drop(&space->lock);
	} while (!left);
	space_retire(space);
	group->status = status;
	plan->holding.values -= group->values - GROUP_FROM(plan, i, values);
	plan->any_lost |= status == PUT_LOST;
	plan->open--;
}

uint8_t put_plan_outcome(const struct put_plan *plan)
{
	return plan->any_committed ? PUT_COMMITTED : plan->any_lost ? PUT_LOST : PUT_ABORTED;
}

void put_plan_finish(struct session *s, struct put_plan *plan, uint64_t seq)
{
	bool acknowledged;

	assert(!plan->open);
	plan->end_seq = seq;
	session_drop(s, &plan->holding, put_plan_outcome(plan));
	lock_take(&s->space->lock);
	s->space->stats.put_plans--;
	lock_drop(&s->space->lock);
	lock_take(&s->lock);
	acknowledged = seq <= s->acked_seq;
	plan->next_unacked = acknowledged ? NULL : s->unacked;
	if (!acknowledged)
		s->unacked = plan;
	lock_drop(&s->lock);
	if (acknowledged)
		put_plans_acknowledge(s, plan);
}

/* ---- PUT_COMMIT and PUT_ABORT ---------------------------------------------------------------------------------- */

/* Was it a plan of a session of before? Then what became of its groups is all that can be said. */
static bool outcome_of_before(struct put_end *call)
{
	struct space *space = call->session->space;
	uint8_t status[INDEX_STEP_KEYS], outcome = PUT_LOST;

	for (uint32_t i = 0; i < call->group_count;) {
		uint32_t n = call->group_count - i < INDEX_STEP_KEYS ? call->group_count - i : INDEX_STEP_KEYS;
		bool known;

		lock_take(&space->lock);
		known = outcomes_ask(space, call->session->client_id, call->plan, call->first_group + i, n, status, &outcome);
		lock_drop(&space->lock);
		if (!known)
			return false;
		for (uint32_t k = 0; k < n; k++, i++) {
			call->status[i] = status[k];
			call->done += status[k] == PUT_COMMITTED;
		}
	}
	call->outcome = outcome;
	return call->group_count > 0;
}

int put_end_begin(struct put_end *call, struct why *why)
{
	struct holding *holding;
	struct put_plan *plan;
	uint8_t outcome = PUT_OK;
	int r;

	call->done = 0;
	call->outcome = PUT_OK;
	call->stale = 0;
	if (call->session->read_only)
		return why_set(why, EROFS, "the session was opened read-only");
	if (!call->plan)
		return why_set(why, EINVAL, "plan: the id is 0");
	r = session_claim(call->session, HOLDING_PUT, call->plan, &holding, &outcome, why);
	if (r == -ENOENT && outcome_of_before(call))
		return why_set(why, EALREADY, "plan %llu was of a session of before: status says what became of each group",
			       (unsigned long long)call->plan);
	if (r) {
		call->outcome = outcome;
		return r;
	}
	plan = (struct put_plan *)holding;
	if (!call->group_count || call->first_group >= plan->groups ||
	    call->group_count > plan->groups - call->first_group) {
		r = why_set(why, EINVAL, "groups %u..%llu: plan %llu has %u", call->first_group,
			    (unsigned long long)call->first_group + call->group_count, (unsigned long long)call->plan,
			    plan->groups);
		session_unclaim(call->session, holding);
		return r;
	}
	call->p = plan;
	call->group = call->first_group;
	call->value = GROUP_FROM(plan, call->group, values);
	call->record = GROUP_FROM(plan, call->group, records);
	call->pin = GROUP_FROM(plan, call->group, pins);
	return 0;
}

/* Under the lock: what became of the keys that a WHOLE group leans on. At most INDEX_STEP_KEYS of them. */
static uint8_t waits_state(struct space *space, const struct key *keys, uint32_t n)
{
	struct index_hit hits[INDEX_STEP_KEYS];
	uint8_t state = PUT_COMMITTED;

	index_lookup(space->index, keys, n, ~0u, hits);
	for (uint32_t i = 0; i < n; i++) {
		if (hits[i].record == INDEX_NONE)
			return PUT_LOST;
		if (!hits[i].present)
			state = PUT_PENDING;
	}
	return state;
}

/* May the group commit now? Without the lock. */
static uint8_t group_waits(struct space *space, const struct put_plan *plan, uint32_t i)
{
	uint32_t from = GROUP_FROM(plan, i, waits), to = plan->group[i].waits;
	uint8_t state = PUT_COMMITTED;

	while (from < to && state != PUT_LOST) {
		uint32_t n = to - from > INDEX_STEP_KEYS ? INDEX_STEP_KEYS : to - from;
		uint8_t part;

		lock_take(&space->lock);
		part = waits_state(space, &plan->waits[from], n);
		lock_drop(&space->lock);
		if (part != PUT_COMMITTED)
			state = part;
		from += n;
	}
	return state;
}

/* Under the lock: a committed value is no longer its group's. */
static void settle_value(struct session *session, uint32_t entry)
{
	struct space *space = session->space;
	const struct entry *e = &space->tables.entries[entry];
	const struct share *share = &space->layout->class[e->class_index].share[e->share];

	slot_let_go(space, entry);
	if (space->tiering)
		tiering_committing(space->tiering, entry);
	index_settle(space->index, entry);
	if (space->tiering)
		tiering_committed(space->tiering, entry);
	if (space->fills && index_value_half(space->index, entry))
		fills_note(space->fills, e->record);
	if (e->page == INDEX_PAGE_ROW) {
		rows_note_child(space, e->record);
		space_row_settled(space, entry);
	}
	space->stats.slots_prepared--;
	space->stats.values_committed++;
	space->stats.bytes_committed += share->payload_bytes;
	session->prepared_bytes -= share->slot_bytes;
	killpoint(KILLPOINT_COMMIT_VALUE);
}

static void publish(struct space *space, uint32_t record, const struct index_sink *sink)
{
	index_record_publish(space->index, record, sink);
	if (space->tiering)
		tiering_published(space->tiering, record);
	if (space->layout->row_columns)
		rows_note_child(space, record);
}

/* Under the lock: commits the current group as far as @left operations go; true when it is done. */
static bool commit_group(struct put_end *call, struct space *space, uint32_t *left)
{
	struct put_plan *plan = call->p;
	struct plan_group *group = &plan->group[call->group];
	struct index_sink sink = space_sink(space);

	if (!group->published) {
		killpoint(KILLPOINT_COMMIT_BEGIN);
		tables_group_publish(&space->tables, group->group - 1);
		killpoint(KILLPOINT_COMMIT_WORD);
		group->published = 1;
	}
	for (; call->value < group->values && *left; call->value++, --*left)
		settle_value(call->session, plan->values.at[call->value]);
	if (call->value < group->values)
		return false;
	killpoint(KILLPOINT_COMMIT_SETTLED);
	for (; call->record < group->records && *left; call->record++, --*left)
		publish(space, plan->records.at[call->record], &sink);
	if (call->record < group->records)
		return false;
	for (; call->pin < group->pins && *left; call->pin++, --*left)
		session_unpin(call->session, plan->pins.at[call->pin]);
	if (call->pin < group->pins)
		return false;
	space->stats.groups_committed++;
	group->status = PUT_COMMITTED;
	plan->holding.values -= group->values - GROUP_FROM(plan, call->group, values);
	plan->any_committed = true;
	plan->open--;
	return true;
}

/* Fetches what the next stay under the lock will write. */
static void commit_prefetch(const struct put_end *call, const struct space *space)
{
	const struct put_plan *plan = call->p;
	uint32_t end = plan->values.count - call->value > INDEX_STEP_KEYS ? call->value + INDEX_STEP_KEYS : plan->values.count;

	for (uint32_t i = call->value; i < end; i++)
		__builtin_prefetch(&space->tables.entries[plan->values.at[i]], 1);
	seating_prefetch(space, &plan->values.at[call->value], end - call->value);
}

static void answer_group(struct put_end *call)
{
	const struct plan_group *group = &call->p->group[call->group];

	call->status[call->group - call->first_group] = group->status;
	call->done += group->status == (call->commit ? PUT_COMMITTED : PUT_ABORTED);
	call->group++;
	call->value = group->values;
	call->record = group->records;
	call->pin = group->pins;
}

/* Commits as many groups as one stay under the lock takes. */
static void commit_some(struct put_end *call, struct space *space, uint32_t last)
{
	uint32_t left = INDEX_STEP_KEYS;

	commit_prefetch(call, space);
	lock_take(&space->lock);
	space_notes_begin(space);
	while (call->group < last && left) {
		struct plan_group *group = &call->p->group[call->group];
		bool open = group->status == PUT_OK || group->status == PUT_PENDING;

		if (open && !group->published && GROUP_FROM(call->p, call->group, waits) != group->waits)
			break; /* asked about without the lock first */
		if (open && !group->published && put_plan_stale(call->p, space))
			break; /* likewise */
		if (open && !commit_group(call, space, &left))
			break;
		answer_group(call);
		left -= left > 0;
	}
	space_notes_end(space);
	space_committed(space);
	space_room(space); /* what was committed may be evicted */
	lock_drop(&space->lock);
}

/* A WHOLE group with keys in flight elsewhere: pending, lost, or free to commit (true). */
static bool whole_may_commit(struct put_end *call, struct space *space)
{
	struct put_plan *plan = call->p;
	struct plan_group *group = &plan->group[call->group];
	uint8_t state = group_waits(space, plan, call->group);

	if (state == PUT_COMMITTED) {
		group->waits = GROUP_FROM(plan, call->group, waits); /* asked no more */
		return true;
	}
	if (state == PUT_LOST) {
		call->stale += put_plan_stale(plan, space); /* that is why */
		put_group_undo(call->session, plan, call->group, PUT_LOST, NULL);
	} else {
		group->status = PUT_PENDING;
		atomic_store(&space->asked, true); /* the next commit is told: it may poll for that */
		if (!plan->pending_since_ns)
			plan->pending_since_ns = clock_now_ns();
	}
	answer_group(call);
	return false;
}

int put_end_step(struct put_end *call, struct why *why)
{
	struct space *space = call->session->space;
	uint32_t last = call->first_group + call->group_count;
	uint32_t begun_value = call->value, begun_group = call->group;

	while (call->group < last) {
		struct plan_group *group = &call->p->group[call->group];
		bool open = group->status == PUT_OK || group->status == PUT_PENDING;

		if (call->value - begun_value + call->group - begun_group >= PUT_STEP_KEYS)
			return STEP_MORE;
		if (!call->commit) {
			if (open)
				put_group_undo(call->session, call->p, call->group, PUT_ABORTED, NULL);
			answer_group(call);
			continue;
		}
		if (open && !group->published && put_plan_stale(call->p, space)) {
			call->stale++;
			put_group_undo(call->session, call->p, call->group, PUT_LOST, NULL);
			answer_group(call);
			continue;
		}
		if (open && !group->published && GROUP_FROM(call->p, call->group, waits) != group->waits &&
		    !whole_may_commit(call, space))
			continue;
		commit_some(call, space, last);
	}
	if (call->commit)
		space_retire(space);
	if (call->p->open) {
		session_unclaim(call->session, &call->p->holding);
	} else {
		call->outcome = put_plan_outcome(call->p);
		put_plan_finish(call->session, call->p, call->seq);
	}
	if (!call->stale)
		return 0;
	return why_set(why, ESTALE, "plan %llu: the namespace was reset, to generation %llu, since it began; %u groups are lost",
		       (unsigned long long)call->plan, (unsigned long long)space_generation(space), call->stale);
}

/* ---- other ends ------------------------------------------------------------------------------------------------- */

void put_plan_end(struct session *s, struct holding *holding, bool process_gone)
{
	struct put_plan *plan = (struct put_plan *)holding;
	struct vec32 quarantine = { 0 };

	for (uint32_t i = 0; i < plan->groups; i++) {
		struct plan_group *group = &plan->group[i];

		if (group->status != PUT_OK && group->status != PUT_PENDING)
			continue;
		put_group_undo(s, plan, i, PUT_LOST, process_gone ? NULL : &quarantine);
	}
	quarantine_add(s, quarantine.at, quarantine.count);
	vec32_free(&quarantine);
	lock_take(&s->space->lock);
	s->space->stats.put_plans--;
	lock_drop(&s->space->lock);
	plan->next_unacked = NULL;
	put_plans_acknowledge(s, plan);
}

bool put_plan_pending(const struct holding *holding, uint64_t now_ns, uint64_t ttl_ns)
{
	const struct put_plan *plan = (const struct put_plan *)holding;

	return plan->pending_since_ns && now_ns - plan->pending_since_ns > ttl_ns;
}

void put_plan_expire(struct session *s, struct holding *holding)
{
	struct put_plan *plan = (struct put_plan *)holding;

	for (uint32_t i = 0; i < plan->groups; i++)
		if (plan->group[i].status == PUT_PENDING)
			put_group_undo(s, plan, i, PUT_LOST, NULL);
	plan->pending_since_ns = 0;
	if (plan->open)
		session_unclaim(s, holding);
	else
		put_plan_finish(s, plan, 0);
}

void put_plans_acknowledge(struct session *s, struct put_plan *list)
{
	struct space *space = s->space;

	while (list) {
		struct put_plan *plan = list;
		uint32_t i = 0;

		list = plan->next_unacked;
		while (i < plan->groups) {
			uint32_t end = plan->groups - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : plan->groups;

			lock_take(&space->lock);
			for (; i < end; i++)
				if (plan->group[i].group)
					space_group_free(space, plan->group[i].group);
			if (space->refused != s->number) /* as above: the refused plan's own numbers */
				space_room(space);
			lock_drop(&space->lock);
		}
		if (!session_reuse(s, &plan->holding))
			put_plan_destroy(&plan->holding);
	}
}

void put_plan_destroy(struct holding *holding)
{
	struct put_plan *plan = (struct put_plan *)holding;

	free(plan->group);
	free(plan->waits);
	vec32_free(&plan->values);
	vec32_free(&plan->pins);
	vec32_free(&plan->records);
	free(plan);
}

struct put_plan **put_plan_next(struct put_plan *plan)
{
	return &plan->next_unacked;
}

uint64_t put_plan_end_seq(const struct put_plan *plan)
{
	return plan->end_seq;
}
