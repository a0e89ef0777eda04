/* SPDX-License-Identifier: Apache-2.0
 *
 * Put plans: started, then ended group by group.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/client.h"

#define RESET_TURNS 8u /* resets that one PUT_START lives through */

static int check_request(const struct pfs_put_request *q)
{
	uint64_t sum = 0;

	if (!q->groups || !q->keys)
		return say(EINVAL, "put request: %s is NULL", q->groups ? "keys" : "groups");
	if (q->group_count == 0 || q->key_count == 0)
		return say(EINVAL, "put request: %u groups and %u keys, at least one of each is needed", q->group_count,
			q->key_count);
	if (q->group_count > PFS_MAX_GROUPS || q->key_count > PFS_MAX_KEYS)
		return say(E2BIG, "put request: %u groups and %u keys, at most %u and %u are possible", q->group_count,
			q->key_count, PFS_MAX_GROUPS, PFS_MAX_KEYS);
	if (q->class_mask == 0 || q->class_mask >> PFS_MAX_CLASSES)
		return say(EINVAL, "put request: class_mask is %#x", q->class_mask);
	for (uint32_t i = 0; i < sizeof(q->reserved) / sizeof(q->reserved[0]); i++)
		if (q->reserved[i])
			return say(EINVAL, "put request: reserved field %u is not 0", i);
	for (uint32_t i = 0; i < q->group_count; i++)
		sum += q->groups[i].keys;
	if (sum != q->key_count)
		return say(EINVAL, "put request: the groups have %llu keys, key_count is %u", (unsigned long long)sum,
			q->key_count);
	return 0;
}

static int keep_groups(struct plan *plan, const struct pfs_put_request *q)
{
	if (plan->group_capacity < q->group_count) {
		uint32_t *p = realloc(plan->group_keys, q->group_count * sizeof(*p));

		if (!p)
			return say(ENOMEM, "no memory for %u groups", q->group_count);
		plan->group_keys = p;
		plan->group_capacity = q->group_count;
	}
	for (uint32_t i = 0; i < q->group_count; i++)
		plan->group_keys[i] = q->groups[i].keys;
	return 0;
}

/* Room for the answers and the status: they live as long as the plan. */
static int place_answers(struct pfs_session *session, struct plan *plan, const struct pfs_put_request *q)
{
	struct conn *conn = plan->conn;
	uint32_t mask = q->class_mask & ((1u << conn->classes) - 1);
	uint32_t rows = (uint32_t)__builtin_popcount(mask & conn->state_mask);
	uint32_t pages = (uint32_t)__builtin_popcount(mask) - rows;
	uint64_t answers = ((uint64_t)pages * q->key_count + (uint64_t)rows * q->group_count) * sizeof(uint64_t), at;
	int r = area_take(session, conn, answers + q->group_count * sizeof(uint32_t), &plan->area);

	if (r)
		return r;
	at = plan->area;
	for (uint32_t c = 0; c < conn->classes; c++) {
		if (!(mask >> c & 1))
			continue;
		plan->values[c] = (const uint64_t *)(conn->buffer + at);
		at += (conn->state_mask >> c & 1 ? q->group_count : q->key_count) * sizeof(uint64_t);
	}
	plan->status_offset = at;
	plan->class_mask = mask;
	plan->groups = q->group_count;
	plan->keys = q->key_count;
	return 0;
}

struct start {
	const struct pfs_put_request *request;
	struct pfs_put_start answer;
	struct plan *plan;
};

static int start_on(struct pfs_session *session, struct conn *conn, void *context)
{
	static const uint8_t none[PFS_TICKET_BYTES];
	struct start *start = context;
	const struct pfs_put_request *q = start->request;
	struct pfs_put_start a = {.groups = q->group_count, .keys = q->key_count, .class_mask = q->class_mask};
	__u64 keys_area = AREA_NONE;
	struct plan *plan;
	int r;

	if (q->class_mask >> conn->classes)
		return say(EINVAL, "put request: class_mask is %#x, the layout has %u classes", q->class_mask,
			conn->classes);
	r = plan_new(session, PLAN_PUT, conn, &plan);
	if (r)
		return r;
	r = keep_groups(plan, q);
	if (!r)
		r = place_answers(session, plan, q);
	if (!r)
		r = call_place_keys(session, conn, q->keys, q->key_count, &a.keys_offset, &keys_area);
	if (!r)
		r = area_take(session, conn, q->group_count * sizeof(*q->groups), &a.groups_offset);
	if (!r) {
		memcpy(conn->buffer + a.groups_offset, q->groups, q->group_count * sizeof(*q->groups));
		a.plan = plan->id;
		a.answers_offset = plan->area;
		a.status_offset = plan->status_offset;
		memcpy(a.ticket, q->ticket, sizeof(a.ticket));
		r = call_run_grown(session, conn, PFS_IOC_PUT_START, &a.call, sizeof(a), PFS_BYTES_PUT_START_1,
			memcmp(q->ticket, none, sizeof(none)) != 0, q->flags, q->deadline_ms);
		area_give(session, conn, a.groups_offset);
	}
	area_give(session, conn, keys_area);
	if (r) {
		plan_leave(session, plan, true);
		return r;
	}
	plan->over = a.groups_ok == 0;
	if (a.ranges_version > conn->ranges_version)
		ranges_sync(session, conn, a.ranges_version); /* if not now, then next time */
	start->plan = plan;
	start->answer = a;
	return 0;
}

int pfs_put_start(struct pfs_session *session, const struct pfs_put_request *request, struct pfs_put_result *ret)
{
	struct start start = {.request = request};
	unsigned turn = 0;
	int r = check_request(request);

	if (!r)
		do /* after a reset nothing of it was kept: the next one begins in the new generation */
			r = conn_run(session, start_on, &start);
		while (r == -CHANGED_SINCE && ++turn < RESET_TURNS);
	if (r == -CHANGED_SINCE)
		r = -ESTALE;
	if (r)
		return r;
	*ret = (struct pfs_put_result){
		.plan = start.plan->id,
		.segment = start.plan->conn->segment,
		.status = (const uint32_t *)(start.plan->conn->buffer + start.plan->status_offset),
		.new_values = start.answer.new_values,
		.groups_ok = start.answer.groups_ok,
	};
	memcpy(ret->answers, start.plan->values, sizeof(ret->answers));
	plan_leave(session, start.plan, false);
	return 0;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static bool is_outcome(uint32_t status)
{
	return status == PFS_GROUP_COMMITTED || status == PFS_GROUP_LOST || status == PFS_GROUP_ABORTED;
}

struct ending {
	unsigned long op;
	struct pfs_put_end *end;
	uint32_t *status; /* or NULL */
};

static int ask_outcome_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct ending *e = context;
	uint32_t *told;
	int r = area_take(session, conn, e->end->groups * sizeof(uint32_t), &e->end->status_offset);

	if (r)
		return r;
	told = (uint32_t *)(conn->buffer + e->end->status_offset);
	memset(told, 0, e->end->groups * sizeof(*told)); /* PFS_GROUP_OK: nothing is told of a group */
	r = call_run(session, conn, e->op, &e->end->call, sizeof(*e->end), 0, 0);
	if (r == -EALREADY && e->status)
		memcpy(e->status, told, e->end->groups * sizeof(*told));
	area_give(session, conn, e->end->status_offset);
	return r;
}

/* Asks on a new connection how a plan of a lost one ended: the daemon may know it by its id, under the same client id. What nobody
 * knows, or can be asked about, is LOST: if it was published after all, putting it again finds it there. */
static void ask_outcome(struct pfs_session *session, unsigned long op, struct pfs_put_end *end, uint32_t *status)
{
	struct ending ending = {op, end, status};
	bool known = conn_run(session, ask_outcome_on, &ending) == -EALREADY && is_outcome(end->outcome);

	if (!known) {
		end->outcome = PFS_GROUP_LOST;
		end->done = 0;
	}
	for (uint32_t i = 0; i < end->groups && status; i++)
		if (!known || !is_outcome(status[i]))
			status[i] = end->outcome;
}

static int end_groups(struct pfs_session *session, unsigned long op, uint64_t id, uint32_t first, uint32_t count,
	uint32_t *status, struct pfs_put_outcome *ret)
{
	struct pfs_put_end end = {.plan = id, .first_group = first};
	struct plan *plan;
	bool lost;
	int r = plan_find(session, id, PLAN_PUT, &plan);

	if (r)
		return r;
	if (first >= plan->groups || count > plan->groups - first) {
		r = say(EINVAL, "groups %u..%llu: put plan %#llx has %u", first, (unsigned long long)first + count - 1,
			(unsigned long long)id, plan->groups);
		plan_leave(session, plan, false);
		return r;
	}
	end.groups = count > 0 ? count : plan->groups - first;
	end.status_offset = plan->status_offset + first * sizeof(uint32_t);
	lost = plan_lost(session, plan) && !plan->over;
	if (plan->over) {
		end.outcome = PFS_GROUP_ABORTED; /* no group got room: the daemon has forgotten it */
	} else if (!lost) {
		r = call_run(session, plan->conn, op, &end.call, sizeof(end), 0, 0);
		if (conn_is_lost(r)) {
			conn_mark_lost(session, plan->conn, r);
			lost = true;
		}
	}
	if (lost) {
		ask_outcome(session, op, &end, status);
		r = 0;
	} else {
		if (r == -EALREADY || r == -CHANGED_SINCE) /* its outcome and status say what became of it */
			r = 0;
		if (!r && status)
			memcpy(status, plan->conn->buffer + end.status_offset, end.groups * sizeof(*status));
	}
	if (!r && ret)
		*ret = (struct pfs_put_outcome){.done = end.done, .outcome = end.outcome};
	plan_leave(session, plan, (!r && end.outcome != PFS_GROUP_OK) || r == -ENOENT);
	return r;
}

int pfs_put_commit(struct pfs_session *session, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status,
	struct pfs_put_outcome *ret)
{
	return end_groups(session, PFS_IOC_PUT_COMMIT, plan, first, count, status, ret);
}

int pfs_put_abort(struct pfs_session *session, uint64_t plan, uint32_t first, uint32_t count, uint32_t *status,
	struct pfs_put_outcome *ret)
{
	return end_groups(session, PFS_IOC_PUT_ABORT, plan, first, count, status, ret);
}
