/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of groups, sorted by session, plan and number in the plan; one bunch for each session, from which groups go at its end first.
 */
#include "store/outcomes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"
#include "store/remnants.h"

struct bunch {
	uint64_t session;
	uint32_t first, count; /* of outcomes.group */
	bool crowd;            /* no seat names the session */
};

struct outcomes {
	struct bunch *bunch; /* in order of sessions */
	uint32_t bunches;
	uint32_t count;      /* groups left */
	uint32_t group[];    /* numbers in the table */
};

/* ---- building ---------------------------------------------------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int compare(const void *a, const void *b, void *context)
{
	const struct group_entry *groups = context;
	const struct group_entry *x = &groups[*(const uint32_t *)a], *y = &groups[*(const uint32_t *)b];
	int r = compare_u64(x->session, y->session);

	r = r ? r : compare_u64(x->plan, y->plan);
	return r ? r : compare_u64(x->number, y->number);
}

/* Sessions of which remnants are left; whether one of them is the crowd's. */
struct kept {
	struct remnant_info info[SEATS];
	uint32_t count;
	bool crowd;
};

static void list_kept(struct space *space, struct kept *ret)
{
	ret->count = remnants_list(space, ret->info, SEATS);
	ret->crowd = false;
	for (uint32_t i = 0; i < ret->count; i++)
		ret->crowd |= ret->info[i].crowd;
}

static bool has_seat(const struct kept *kept, uint64_t session)
{
	for (uint32_t i = 0; i < kept->count; i++)
		if (!kept->info[i].crowd && kept->info[i].session == session)
			return true;
	return false;
}

static bool asked_about(const struct space *space, const struct kept *kept, uint32_t g)
{
	return tables_group_state(&space->tables, g) != GROUP_FREE && (kept->crowd || has_seat(kept, space->tables.groups[g].session));
}

/* Fills the stack: the lowest number is taken first. Returns how many somebody may ask about, which are counted as open. */
static uint32_t free_numbers(struct space *space, const struct kept *kept)
{
	struct tables *tables = &space->tables;
	uint32_t used = 0;

	space->group_next = 0;
	for (uint32_t g = 0; g < tables->group_capacity; g++)
		if (asked_about(space, kept, g)) {
			used++;
			space->group_next = g + 1;
		} else if (tables_group_state(tables, g) != GROUP_FREE) {
			atomic_store_explicit(&tables->groups[g].state, GROUP_FREE, memory_order_release);
		}
	for (uint32_t g = space->group_next; g-- > 0;)
		if (tables_group_state(tables, g) == GROUP_FREE)
			space->group_free[space->group_free_count++] = g;
	space->stats.groups_open = used;
	return used;
}

static void gather(struct space *space, struct outcomes *o)
{
	for (uint32_t g = 0; g < space->group_next; g++)
		if (tables_group_state(&space->tables, g) != GROUP_FREE)
			o->group[o->count++] = g;
	qsort_r(o->group, o->count, sizeof(o->group[0]), compare, space->tables.groups);
}

static int make_bunches(struct space *space, const struct kept *kept, struct outcomes *o)
{
	for (uint32_t i = 0; i < o->count; i++) {
		uint64_t session = space->tables.groups[o->group[i]].session;

		if (o->bunches && o->bunch[o->bunches - 1].session == session) {
			o->bunch[o->bunches - 1].count++;
			continue;
		}
		struct bunch *more = realloc(o->bunch, (o->bunches + 1) * sizeof(*more));

		if (!more)
			return -ENOMEM;
		o->bunch = more;
		o->bunch[o->bunches++] = (struct bunch){ session, i, 1, !has_seat(kept, session) };
	}
	return 0;
}

static void report_groups(const struct space *space, const struct outcomes *o, struct adopt_report *report)
{
	for (uint32_t i = 0; i < o->count; i++)
		if (tables_group_state(&space->tables, o->group[i]) == GROUP_COMMITTED)
			report->groups_committed++;
		else
			report->groups_lost++;
}

int outcomes_adopt(struct space *space, struct outcomes **ret, struct adopt_report *report, struct why *why)
{
	struct outcomes *o = NULL;
	struct kept kept;
	uint32_t used;
	int r = 0;

	list_kept(space, &kept);
	lock_take(&space->lock);
	used = free_numbers(space, &kept);
	if (used) {
		o = calloc(1, sizeof(*o) + used * sizeof(o->group[0]));
		r = o ? 0 : -ENOMEM;
	}
	if (o) {
		gather(space, o);
		r = make_bunches(space, &kept, o);
		report_groups(space, o, report);
	}
	lock_drop(&space->lock);
	*ret = o;
	return r ? why_set(why, ENOMEM, "no memory for the outcomes of %u put groups of before", used) : 0;
}

void outcomes_free(struct outcomes **op)
{
	struct outcomes *o = *op;

	*op = NULL;
	if (!o)
		return;
	free(o->bunch);
	free(o);
}

/* ---- asking -------------------------------------------------------------------------------------------------------------- */

static const struct group_entry *group_of(const struct space *space, const struct bunch *b, uint32_t i)
{
	return &space->tables.groups[space->outcomes->group[b->first + i]];
}

/* The first group of the bunch that is (@plan, @number) or comes after it. */
static uint32_t lower_bound(const struct space *space, const struct bunch *b, uint64_t plan, uint32_t number)
{
	uint32_t from = 0, to = b->count;

	while (from < to) {
		uint32_t middle = from + (to - from) / 2;
		const struct group_entry *g = group_of(space, b, middle);

		if (g->plan < plan || (g->plan == plan && g->number < number))
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

static uint8_t status_of(const struct group_entry *g)
{
	return g->state == GROUP_COMMITTED ? PUT_COMMITTED : PUT_LOST;
}

/* The newest session of the client that had such a plan: its first group, *bunch its own. False: none. */
static bool find_plan(const struct space *space, const uint8_t client_id[16], uint64_t plan, const struct bunch **bunch, uint32_t *ret)
{
	const struct outcomes *o = space->outcomes;

	for (uint32_t i = o ? o->bunches : 0; i-- > 0;) {
		const struct bunch *b = &o->bunch[i];

		if (!b->count || memcmp(group_of(space, b, 0)->client_id, client_id, 16))
			continue;
		*ret = lower_bound(space, b, plan, 0);
		*bunch = b;
		if (*ret < b->count && group_of(space, b, *ret)->plan == plan)
			return true;
	}
	return false;
}

bool outcomes_ask(struct space *space, const uint8_t client_id[16], uint64_t plan, uint32_t first, uint32_t count,
		  uint8_t *status, uint8_t *outcome)
{
	const struct bunch *b;
	uint32_t i;

	lock_assert_held(&space->lock);
	if (!find_plan(space, client_id, plan, &b, &i))
		return false;
	*outcome = PUT_LOST;
	for (; i < b->count && group_of(space, b, i)->plan == plan && *outcome == PUT_LOST; i++)
		*outcome = status_of(group_of(space, b, i));
	memset(status, PUT_LOST, count);
	for (i = lower_bound(space, b, plan, first); i < b->count; i++) {
		const struct group_entry *g = group_of(space, b, i);

		if (g->plan != plan || g->number - first >= count)
			break;
		status[g->number - first] = status_of(g);
	}
	return true;
}

bool outcomes_settle(struct space *space, uint64_t earlier)
{
	struct outcomes *o = space->outcomes;
	uint32_t steps = INDEX_STEP_KEYS;

	lock_assert_held(&space->lock);
	for (uint32_t i = 0; o && i < o->bunches; i++) {
		struct bunch *b = &o->bunch[i];

		if (earlier == OUTCOMES_CROWD ? !b->crowd : b->crowd || b->session != earlier)
			continue;
		for (; b->count && steps; steps--, o->count--)
			space_group_free(space, o->group[b->first + --b->count] + 1);
		if (b->count)
			return true;
	}
	if (o && !o->count)
		outcomes_free(&space->outcomes);
	return false;
}
