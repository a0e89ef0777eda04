/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans and handles by id: 12 bits that name the session, 40 bits that count, 12 bits of slot. An id that has ended is
 * never found again, and one of another session is told from it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/client.h"

#define SLOT_BITS 12u
#define COUNTER_BITS 40u

_Static_assert(PLAN_SLOTS == 1u << SLOT_BITS, "a slot fits its bits");

int plan_new(struct pfs_session *session, enum plan_kind kind, struct conn *conn, struct plan **ret)
{
	struct plan *plan;
	uint32_t slot;

	pthread_mutex_lock(&session->lock);
	if (session->free_count == 0) {
		pthread_mutex_unlock(&session->lock);
		return say(EDQUOT, "the session holds %u plans and handles, more are not possible", PLAN_SLOTS);
	}
	slot = session->free_slots[session->free_count - 1];
	plan = session->plans[slot];
	if (!plan) {
		plan = calloc(1, sizeof(*plan));
		if (!plan) {
			pthread_mutex_unlock(&session->lock);
			return say(ENOMEM, "no memory for a plan");
		}
		session->plans[slot] = plan;
	}
	session->free_count--;
	session->plan_counter = (session->plan_counter + 1) & ((1ull << COUNTER_BITS) - 1);
	plan->id = session->tag << (COUNTER_BITS + SLOT_BITS) | session->plan_counter << SLOT_BITS | slot;
	plan->kind = kind;
	plan->users = 1;
	plan->ended = plan->over = false;
	plan->conn = conn;
	conn->refs++;
	pthread_mutex_unlock(&session->lock);
	plan->area = AREA_NONE;
	plan->class_mask = plan->groups = plan->keys = 0;
	memset(plan->values, 0, sizeof(plan->values));
	*ret = plan;
	return 0;
}

static const char *kind_name(enum plan_kind kind)
{
	return kind == PLAN_PUT      ? "put plan"
	       : kind == PLAN_GET    ? "get plan"
	       : kind == PLAN_HANDLE ? "get handle"
	                             : "plan";
}

int plan_find(struct pfs_session *session, uint64_t id, enum plan_kind kind, struct plan **ret)
{
	struct plan *plan;
	int r = 0;

	if (id >> (COUNTER_BITS + SLOT_BITS) != session->tag)
		return say(ENOENT, "%s %#llx is not of this session", kind_name(kind), (unsigned long long)id);
	pthread_mutex_lock(&session->lock);
	plan = session->plans[id & (PLAN_SLOTS - 1)];
	if (!plan || plan->id != id || plan->kind == PLAN_NONE || plan->ended)
		r = say(ENOENT, "%s %#llx has ended", kind_name(kind), (unsigned long long)id);
	else if (kind != PLAN_NONE && plan->kind != kind)
		r = say(EINVAL, "%#llx is a %s, not a %s", (unsigned long long)id, kind_name(plan->kind),
			kind_name(kind));
	else
		plan->users++;
	pthread_mutex_unlock(&session->lock);
	if (!r)
		*ret = plan;
	return r;
}

void plan_leave(struct pfs_session *session, struct plan *plan, bool ended)
{
	struct conn *conn = NULL;
	uint64_t area = AREA_NONE;

	pthread_mutex_lock(&session->lock);
	if (ended)
		plan->ended = true;
	if (--plan->users == 0 && plan->ended) {
		conn = plan->conn;
		area = plan->area;
		for (unsigned c = 0; c < PFS_MAX_CLASSES; c++)
			plan->tables[c].built = false;
		plan->conn = NULL;
		plan->kind = PLAN_NONE;
		session->free_slots[session->free_count++] = (uint32_t)(plan->id & (PLAN_SLOTS - 1));
	}
	pthread_mutex_unlock(&session->lock);
	if (conn) {
		area_give(session, conn, area);
		conn_put(session, &conn);
	}
}

bool plan_lost(struct pfs_session *session, struct plan *plan)
{
	bool lost;

	pthread_mutex_lock(&session->lock);
	lost = plan->conn->lost;
	pthread_mutex_unlock(&session->lock);
	return lost;
}

void plans_free(struct pfs_session *session)
{
	for (uint32_t i = 0; i < PLAN_SLOTS; i++) {
		struct plan *plan = session->plans[i];

		if (!plan)
			continue;
		if (plan->kind != PLAN_NONE)
			conn_put(session, &plan->conn);
		for (unsigned c = 0; c < PFS_MAX_CLASSES; c++) {
			free(plan->tables[c].words);
			free(plan->tables[c].index);
		}
		free(plan->group_keys);
		free(plan);
	}
}
