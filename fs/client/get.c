/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles and get plans.
 */
#include <errno.h>
#include <string.h>

#include "fs/client/client.h"

#define DEMANDS 64u /* wanted boundaries off the grid that there is room for */
#define MISSING_RANGES 16u /* how many of them GET_START lists; one is enough to know */

static int check_request(const struct pfs_get_request *q)
{
	uint64_t sum = 0;

	if (!q->keys || q->key_count == 0)
		return say(EINVAL, "get request: at least one key is needed");
	if (q->key_count > PFS_MAX_KEYS || q->group_count > PFS_MAX_GROUPS)
		return say(E2BIG, "get request: %u keys and %u groups, at most %u and %u are possible", q->key_count,
			q->group_count, PFS_MAX_KEYS, PFS_MAX_GROUPS);
	if (!q->groups != (q->group_count == 0))
		return say(EINVAL, "get request: groups is %s and group_count is %u", q->groups ? "given" : "NULL",
			q->group_count);
	for (uint32_t i = 0; i < q->group_count; i++)
		sum += q->groups[i];
	if (q->groups && sum != q->key_count)
		return say(EINVAL, "get request: the groups have %llu keys, key_count is %u", (unsigned long long)sum,
			q->key_count);
	for (uint32_t i = 0; i < sizeof(q->reserved) / sizeof(q->reserved[0]); i++)
		if (q->reserved[i])
			return say(EINVAL, "get request: reserved field %u is not 0", i);
	return 0;
}

static uint64_t bitmap_bytes(uint32_t keys)
{
	return ((uint64_t)keys + 63) / 64 * 8;
}

struct start {
	const struct pfs_get_request *request;
	struct pfs_get_start answer;
	struct plan *plan;
};

/* Boundaries that can be wanted: multiples of the interval, and some where a row was lacking. */
static uint32_t wanted_capacity(struct pfs_session *session, const struct conn *conn, const struct pfs_get_request *q)
{
	uint64_t interval = atomic_load(&session->interval), end = q->start + (uint64_t)q->key_count * conn->page_tokens;
	uint64_t pages = (q->prompt_len > end ? q->prompt_len : end) / conn->page_tokens;
	uint64_t most = interval ? pages * conn->page_tokens / interval + DEMANDS : pages;

	most = most < pages ? most : pages;
	return most < PFS_MAX_WANTED ? (uint32_t)most : PFS_MAX_WANTED;
}

/* What the handle keeps, behind one another: bitmaps, wanted boundaries, candidates, missing ranges, groups. */
static int place_start(struct pfs_session *session, struct plan *plan, const struct pfs_get_request *q, struct pfs_get_start *a)
{
	struct conn *conn = plan->conn;
	uint64_t bits = q->flags & PFS_GET_NO_BITS ? 0 : bitmap_bytes(q->key_count), groups = q->group_count * sizeof(uint32_t);
	uint32_t mask = q->class_mask ? q->class_mask : UINT32_MAX;
	bool states = mask & conn->state_mask;
	int r;

	a->wanted_capacity = states ? wanted_capacity(session, conn, q) : 0;
	a->candidates_capacity = states ? PFS_MAX_CANDIDATES : 0;
	r = area_take(session, conn,
		2 * bits + a->wanted_capacity * sizeof(uint64_t) + a->candidates_capacity * sizeof(struct pfs_candidate) +
			MISSING_RANGES * sizeof(uint32_t) + groups,
		&plan->area);
	if (r)
		return r;
	a->hits_offset = bits ? plan->area : PFS_OFFSET_NONE;
	a->restorable_offset = bits ? plan->area + bits : PFS_OFFSET_NONE;
	a->wanted_offset = plan->area + 2 * bits;
	a->candidates_offset = a->wanted_offset + a->wanted_capacity * sizeof(uint64_t);
	a->missing_offset = a->candidates_offset + a->candidates_capacity * sizeof(struct pfs_candidate);
	a->groups_offset = a->missing_offset + MISSING_RANGES * sizeof(uint32_t);
	if (groups > 0)
		memcpy(conn->buffer + a->groups_offset, q->groups, groups);
	return 0;
}

static int start_on(struct pfs_session *session, struct conn *conn, void *context)
{
	static const uint8_t none[PFS_TICKET_BYTES];
	struct start *start = context;
	const struct pfs_get_request *q = start->request;
	struct pfs_get_start a = {
		.start = q->start,
		.have = q->have,
		.limit = q->limit,
		.keys = q->key_count,
		.groups = q->group_count,
		.policy = q->policy,
		.flags = q->flags & ~PFS_GET_NO_BITS,
		.class_mask = q->class_mask,
		.missing_capacity = MISSING_RANGES,
		.prompt_len = q->prompt_len,
		.room = q->room,
	};
	/* the first version has a ticket, too, of which nobody knew what it is */
	bool grown = q->prompt_len || q->room || memcmp(q->ticket, none, sizeof(none));
	__u64 keys_area = AREA_NONE;
	struct plan *plan;
	int r = plan_new(session, PLAN_HANDLE, conn, &plan);

	if (r)
		return r;
	memcpy(a.ticket, q->ticket, sizeof(a.ticket));
	r = place_start(session, plan, q, &a);
	if (!r)
		r = call_place_keys(session, conn, q->keys, q->key_count, &a.keys_offset, &keys_area);
	if (!r) {
		a.handle = plan->id;
		r = call_run_grown(session, conn, PFS_IOC_GET_START, &a.call, sizeof(a), PFS_BYTES_GET_START_1, grown,
			q->call_flags, q->deadline_ms);
	}
	area_give(session, conn, keys_area);
	if (r) {
		plan_leave(session, plan, true);
		return r;
	}
	plan->class_mask = q->class_mask ? q->class_mask : (1u << conn->classes) - 1;
	plan->keys = q->key_count;
	plan->over = !a.handle_live;
	if (a.missing > 0 && !ranges_sync(session, conn, a.ranges_version) && session->options.auto_ack)
		a.missing = 0;
	atomic_store(&session->interval, a.interval);
	start->plan = plan;
	start->answer = a;
	return 0;
}

int pfs_get_start(struct pfs_session *session, const struct pfs_get_request *request, struct pfs_get_result *ret)
{
	struct start start = {.request = request};
	const struct pfs_get_start *a = &start.answer;
	int r = check_request(request);

	if (!r)
		r = conn_run(session, start_on, &start);
	if (r)
		return r;
	*ret = (struct pfs_get_result){
		.handle = start.plan->id,
		.raw_prefix_hit_len = a->raw_prefix_hit_len,
		.transferable_len = a->transferable_len,
		.demand = a->demand,
		.prefix_hit_groups = a->prefix_hit_groups,
		.first_miss_index = a->first_miss_index,
		.first_miss_group_index = a->first_miss_group_index,
		.all_hit = a->all_hit,
		.hits = a->hits,
		.missing = a->missing,
		.wanted_count = a->wanted < a->wanted_capacity ? a->wanted : a->wanted_capacity,
		.candidate_count = a->candidates < a->candidates_capacity ? a->candidates : a->candidates_capacity,
		.dense_len = a->dense_len,
	};
	if (ret->wanted_count > 0)
		ret->wanted = (const uint64_t *)(start.plan->conn->buffer + a->wanted_offset);
	if (ret->candidate_count > 0)
		ret->candidates = (const struct pfs_candidate *)(start.plan->conn->buffer + a->candidates_offset);
	if (!(request->flags & PFS_GET_NO_BITS)) {
		ret->hit_bits = start.plan->conn->buffer + a->hits_offset;
		ret->restorable_bits = start.plan->conn->buffer + a->restorable_offset;
	}
	memcpy(ret->bytes, a->bytes, sizeof(ret->bytes));
	memcpy(ret->estimate_us, a->estimate_us, sizeof(ret->estimate_us));
	plan_leave(session, start.plan, false);
	return 0;
}

/* ---- transfer --------------------------------------------------------------------------------------------------- */

static int ask_transfer(struct pfs_session *session, struct conn *conn, const struct pfs_transfer_request *q, struct pfs_get_transfer *a)
{
	return call_run_grown(session, conn, PFS_IOC_GET_TRANSFER, &a->call, sizeof(*a), PFS_BYTES_GET_TRANSFER_1, q->candidate, 0,
		q->deadline_ms);
}

static int transfer_on(struct pfs_session *session, struct plan *handle, const struct pfs_transfer_request *q,
	struct plan *plan, struct pfs_get_transfer *a)
{
	struct conn *conn = handle->conn;
	uint64_t pages = (q->to - q->from) / conn->page_tokens;
	uint32_t mask = q->class_mask ? q->class_mask : handle->class_mask;
	uint32_t rows = q->to == q->boundary ? (uint32_t)__builtin_popcount(mask & conn->state_mask) : 0;
	uint64_t capacity = (uint64_t)__builtin_popcount(mask & ~conn->state_mask) * pages + rows;
	int r = area_take(session, conn, capacity * sizeof(uint64_t), &plan->area);

	if (r)
		return r;
	a->handle = q->handle;
	a->plan = plan->id;
	a->boundary = q->boundary;
	a->from = q->from;
	a->to = q->to;
	a->offsets_offset = plan->area;
	a->class_mask = q->class_mask;
	a->offsets_capacity = (uint32_t)capacity;
	a->candidate = q->candidate;
	r = ask_transfer(session, conn, q, a);
	if (r == -ENXIO && session->options.auto_ack) {
		r = ranges_sync(session, conn, UINT64_MAX);
		if (!r)
			r = ask_transfer(session, conn, q, a);
	}
	if (r)
		return r;
	plan->class_mask = mask;
	plan->keys = (uint32_t)pages;
	for (uint32_t c = 0, at = 0; c < conn->classes; c++) {
		bool row = conn->state_mask >> c & 1;

		if (!(mask >> c & 1) || (row && rows == 0))
			continue;
		plan->values[c] = (const uint64_t *)(conn->buffer + plan->area) + at;
		at += row ? 1 : (uint32_t)pages;
	}
	return 0;
}

int pfs_get_transfer(struct pfs_session *session, const struct pfs_transfer_request *q, struct pfs_transfer_result *ret)
{
	struct pfs_get_transfer a = {0};
	struct plan *handle, *plan;
	bool ended;
	int r = plan_find(session, q->handle, PLAN_HANDLE, &handle);

	if (r)
		return r;
	if (handle->over) {
		r = say(EINVAL, "transfer: nothing above `have` is there under handle %#llx",
			(unsigned long long)q->handle);
		plan_leave(session, handle, false);
		return r;
	}
	if (q->from > q->to || q->to > q->boundary || (q->to - q->from) / handle->conn->page_tokens > PFS_MAX_KEYS ||
		(q->class_mask & ~handle->class_mask)) {
		r = say(EINVAL, "transfer: from %llu to %llu of boundary %llu, classes %#x of %#x",
			(unsigned long long)q->from, (unsigned long long)q->to, (unsigned long long)q->boundary,
			q->class_mask, handle->class_mask);
		plan_leave(session, handle, false);
		return r;
	}
	r = plan_new(session, PLAN_GET, handle->conn, &plan);
	if (r) {
		plan_leave(session, handle, false);
		return r;
	}
	r = plan_lost(session, handle) ? -ESTALE : transfer_on(session, handle, q, plan, &a);
	if (conn_is_lost(r)) { /* a miss */
		conn_mark_lost(session, handle->conn, r);
		a = (struct pfs_get_transfer){.delivered_len = q->from, .handle_ended = 1};
		r = 0;
	}
	ended = r == -ENOENT || (!r && a.handle_ended);
	if (r) {
		plan_leave(session, plan, true);
		plan_leave(session, handle, ended);
		return r;
	}
	*ret = (struct pfs_transfer_result){
		.plan = a.delivered_len > q->from ? plan->id : 0,
		.delivered_len = a.delivered_len,
		.segment = plan->conn->segment,
		.pages = plan->keys,
		.values = a.values,
		.handle_ended = ended,
	};
	if (ret->plan)
		memcpy(ret->offsets, plan->values, sizeof(ret->offsets));
	plan_leave(session, plan, !ret->plan);
	plan_leave(session, handle, ended);
	return 0;
}

int pfs_get_cancel(struct pfs_session *session, uint64_t id)
{
	struct pfs_get_cancel a = {.handle = id};
	struct plan *handle;
	int r = plan_find(session, id, PLAN_HANDLE, &handle);

	if (r)
		return r;
	if (handle->over || plan_lost(session, handle))
		r = 0; /* the daemon has let go of it already, or its handles went with it */
	else
		r = call_run(session, handle->conn, PFS_IOC_GET_CANCEL, &a.call, sizeof(a), 0, 0);
	if (conn_is_lost(r)) {
		conn_mark_lost(session, handle->conn, r);
		r = 0;
	}
	plan_leave(session, handle, r != -EBUSY);
	return r;
}

/* ---- release ---------------------------------------------------------------------------------------------------- */

#define RELEASE_STEP 256u /* plans of one ioctl */

/* What the release of a plan of a lost connection says: its bytes were good to the end, unless the daemon lives on without it. */
static int release_lost(struct pfs_session *session, const struct plan *plan)
{
	bool unpinned;

	pthread_mutex_lock(&session->lock);
	unpinned = plan->conn->unpinned;
	pthread_mutex_unlock(&session->lock);
	return unpinned ? say(ESTALE, "the daemon took this process for dead: the bytes of get plan %#llx may be another's",
				  (unsigned long long)plan->id)
			: 0;
}

/* Releases up to RELEASE_STEP plans that were found, all of one connection that is not lost. */
static void release_found(struct pfs_session *session, struct plan **plans, uint32_t count, int32_t *errors)
{
	struct conn *conn = plans[0]->conn;
	__u64 status_at = (count * sizeof(uint64_t) + 7) / 8 * 8, area;
	struct pfs_release a = {.count = count};
	int r = area_take(session, conn, status_at + count * sizeof(int32_t), &area);

	if (!r) {
		uint64_t *ids = (uint64_t *)(conn->buffer + area);

		for (uint32_t i = 0; i < count; i++)
			ids[i] = plans[i]->id;
		a.plans_offset = area;
		a.status_offset = area + status_at;
		r = call_run(session, conn, PFS_IOC_RELEASE, &a.call, sizeof(a), 0, 0);
	}
	if (conn_is_lost(r)) {
		conn_mark_lost(session, conn, r);
		r = release_lost(session, plans[0]);
	}
	for (uint32_t i = 0; i < count; i++)
		errors[i] = r == 0 || r == -ENOENT ? (r ? ((int32_t *)(conn->buffer + area + status_at))[i] : 0) : r;
	if (a.status_offset)
		area_give(session, conn, area);
}

/* The daemon still has the plan: it goes on. */
static bool not_asked(int error)
{
	return error == -ENOBUFS || error == -EBUSY;
}

int pfs_release(struct pfs_session *session, const uint64_t *ids, uint32_t count, int32_t *status)
{
	struct plan *found[RELEASE_STEP];
	int32_t errors[RELEASE_STEP];
	uint32_t where[RELEASE_STEP], n;
	int ret = 0;

	if (!ids || count == 0)
		return say(EINVAL, "release: at least one plan is needed");
	if (count > PFS_MAX_RELEASE)
		return say(E2BIG, "release: %u plans, at most %u are possible", count, PFS_MAX_RELEASE);
	for (uint32_t i = 0; i < count;) {
		struct conn *conn = NULL;

		/* As many as fit one request: of one connection. */
		for (n = 0; i < count && n < RELEASE_STEP; i++) {
			struct plan *plan;
			int r = plan_find(session, ids[i], PLAN_GET, &plan);

			if (!r && plan_lost(session, plan)) {
				r = release_lost(session, plan);
				plan_leave(session, plan, true);
				plan = NULL;
			} else if (!r && n > 0 && plan->conn != conn) {
				plan_leave(session, plan, false);
				break;
			}
			if (status)
				status[i] = r;
			ret = ret ? ret : r;
			if (r || !plan)
				continue;
			conn = plan->conn;
			where[n] = i;
			found[n++] = plan;
		}
		if (n == 0)
			continue;
		release_found(session, found, n, errors);
		for (uint32_t k = 0; k < n; k++) {
			if (status)
				status[where[k]] = errors[k];
			ret = ret ? ret : errors[k];
			plan_leave(session, found[k], !not_asked(errors[k]));
		}
	}
	return ret;
}
