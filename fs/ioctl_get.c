/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_START, GET_TRANSFER, GET_CANCEL, RELEASE, PROBE.
 */
#include "fs/ioctl.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "store/ticket.h"

_Static_assert(sizeof(struct pfs_candidate) == sizeof(struct get_candidate) &&
		       offsetof(struct pfs_candidate, key) == offsetof(struct get_candidate, key) &&
		       offsetof(struct pfs_candidate, consumed) == offsetof(struct get_candidate, consumed) &&
		       offsetof(struct pfs_candidate, bytes) == offsetof(struct get_candidate, bytes),
	"a candidate is written as it is");
_Static_assert(PFS_MAX_TICKETS == TICKETS_MAX, "limits");

#define MEMORY_BYTES_PER_US 20000u /* 20 GB/s, before anything was measured */
#define RELEASES_AT_ONCE 64u       /* plans of one step */

/* An array of the client's that it does not want. */
static int take_wanted(struct call *call, const char *name, uint64_t offset, uint64_t count, uint32_t size, void **ret)
{
	*ret = NULL;
	if (offset == PFS_OFFSET_NONE)
		return 0;
	return span_take(&call->span, name, offset, count, size, ret, &call->why);
}

/* Copies @bytes at @from, once, into memory of the call. */
static int copy_in(struct call *call, const void *from, size_t bytes)
{
	struct fs *fs = fuse_req_userdata(call->req);

	call->copy = buffers_get(&fs->buffers, bytes);
	if (!call->copy)
		return why_set(&call->why, ENOMEM, "no memory for %zu bytes of arguments", bytes);
	memcpy(call->copy, from, bytes);
	return 0;
}

/* ---- GET_START ----------------------------------------------------------------------------------------------- */

static int get_start_check(struct call *call)
{
	const struct pfs_get_start *g = &call->arg.get_start;
	int r;

	if (g->reserved)
		return why_set(&call->why, EINVAL, "reserved: it is 0x%x and must be zero", g->reserved);
	if (g->handle == 0)
		return why_set(&call->why, EINVAL, "handle: it is 0; ids begin at 1");
	if (g->flags & ~(PFS_GET_WAIT_INFLIGHT | PFS_GET_NO_AHEAD))
		return why_set(&call->why, EINVAL, "flags: 0x%x has unknown bits; known are 0x%x", g->flags,
			PFS_GET_WAIT_INFLIGHT | PFS_GET_NO_AHEAD);
	if (g->policy == PFS_POLICY_SEGMENTED || g->policy == PFS_POLICY_SPARSE)
		return why_set(
			&call->why, EOPNOTSUPP, "policy: %u is not served by this version; PREFIX (0) is", g->policy);
	if (g->policy != PFS_POLICY_PREFIX)
		return why_set(&call->why, EINVAL, "policy: there is no policy %u", g->policy);
	if (g->candidates_capacity > PFS_MAX_CANDIDATES || g->wanted_capacity > PFS_MAX_WANTED)
		return why_set(&call->why, EINVAL, "%s_capacity: %u is over the limit of %u",
			g->candidates_capacity > PFS_MAX_CANDIDATES ? "candidates" : "wanted",
			g->candidates_capacity > PFS_MAX_CANDIDATES ? g->candidates_capacity : g->wanted_capacity,
			g->candidates_capacity > PFS_MAX_CANDIDATES ? PFS_MAX_CANDIDATES : PFS_MAX_WANTED);
	r = span_check_count("keys", g->keys, PFS_MAX_KEYS, &call->why);
	if (!r && g->groups > PFS_MAX_GROUPS)
		r = why_set(&call->why, E2BIG, "groups: %u are over the limit of %u", g->groups, PFS_MAX_GROUPS);
	return r;
}

static int get_start_spans(struct call *call)
{
	const struct pfs_get_start *g = &call->arg.get_start;
	struct get_start *w = &call->work.get_start;
	uint64_t words = ((uint64_t)g->keys + 63) / 64;
	void *groups = NULL;
	int r = span_take(&call->span, "keys_offset", g->keys_offset, g->keys, sizeof(struct pfs_key),
		(void **)&w->keys, &call->why);

	if (!r)
		r = span_take(&call->span, "groups_offset", g->groups_offset, g->groups, sizeof(uint32_t), &groups,
			&call->why);
	if (!r)
		r = take_wanted(call, "hits_offset", g->hits_offset, words, sizeof(uint64_t), (void **)&w->hits);
	if (!r)
		r = take_wanted(call, "restorable_offset", g->restorable_offset, words, sizeof(uint64_t),
			(void **)&w->restorable);
	if (!r)
		r = span_take(&call->span, "missing_offset", g->missing_offset, g->missing_capacity, sizeof(uint32_t),
			(void **)&w->missing, &call->why);
	if (!r)
		r = span_take(&call->span, "candidates_offset", g->candidates_offset, g->candidates_capacity,
			sizeof(struct pfs_candidate), (void **)&w->candidates, &call->why);
	if (!r)
		r = span_take(&call->span, "wanted_offset", g->wanted_offset, g->wanted_capacity, sizeof(uint64_t),
			(void **)&w->wanted, &call->why);
	if (!r && groups) {
		r = copy_in(call, groups, g->groups * sizeof(uint32_t));
		w->groups = call->copy;
	}
	return r;
}

static int get_start_call(struct call *call)
{
	const struct pfs_get_start *g = &call->arg.get_start;
	struct get_start *w = &call->work.get_start;
	int r = get_start_check(call);

	w->first_miss_index = w->first_miss_group_index = PFS_INDEX_NONE;
	if (!r)
		r = get_start_spans(call);
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->handle = g->handle;
	w->key_count = g->keys;
	w->group_count = g->groups;
	w->start = g->start;
	w->have = g->have;
	w->limit = g->limit;
	memcpy(w->ticket, g->ticket, sizeof(w->ticket));
	w->prompt_len = g->prompt_len;
	w->room = g->room;
	w->candidates_capacity = g->candidates_capacity;
	w->wanted_capacity = g->wanted_capacity;
	w->class_mask = g->class_mask;
	w->wait_inflight = g->flags & PFS_GET_WAIT_INFLIGHT;
	w->no_ahead = g->flags & PFS_GET_NO_AHEAD;
	w->deadline_ns = call->deadline_ns;
	w->missing_capacity = g->missing_capacity;
	r = get_start_begin(w, &call->why);
	return r ? r : STEP_MORE;
}

static int get_start_go_on(struct call *call)
{
	return get_start_step(&call->work.get_start, &call->why);
}

static void get_start_give_up(struct call *call)
{
	get_start_undo(&call->work.get_start);
}

static void get_start_done(struct call *call)
{
	struct pfs_get_start *g = &call->arg.get_start;
	const struct get_start *w = &call->work.get_start;

	g->raw_prefix_hit_len = w->raw_prefix_hit_len;
	g->transferable_len = w->transferable_len;
	g->prefix_hit_groups = w->prefix_hit_groups;
	g->first_miss_index = w->first_miss_index;
	g->first_miss_group_index = w->first_miss_group_index;
	g->all_hit = w->all_hit;
	g->hits = w->hit_count;
	g->missing = w->missing_count;
	g->candidates = w->candidate_count;
	g->wanted = w->wanted_count;
	g->handle_live = w->handle_live;
	g->demand = w->demand;
	g->dense_len = w->dense_len;
	g->would_len = w->would_len;
	g->interval = (uint32_t)space_layout(ctl_space(call->ctl))->interval;
	memset(g->bytes, 0, sizeof(g->bytes));
	memset(g->estimate_us, 0, sizeof(g->estimate_us));
	g->bytes[PFS_TIER_MEMORY] = w->bytes;
	g->bytes[PFS_TIER_DISK] = w->disk_bytes;
	g->estimate_us[PFS_TIER_MEMORY] = (uint32_t)((w->bytes + MEMORY_BYTES_PER_US - 1) / MEMORY_BYTES_PER_US);
	g->estimate_us[PFS_TIER_DISK] = w->disk_us < UINT32_MAX ? (uint32_t)w->disk_us : UINT32_MAX;
	g->ranges_version = space_ranges_version(ctl_space(call->ctl));
}

const struct operation ioctl_get_start = {
	.name = "GET_START",
	.bytes = sizeof(struct pfs_get_start),
	.bytes_1 = PFS_BYTES_GET_START_1,
	.deadline_ms = 10000,
	.begin = get_start_call,
	.step = get_start_go_on,
	.undo = get_start_give_up,
	.done = get_start_done,
};

/* ---- GET_TRANSFER -------------------------------------------------------------------------------------------- */

static int get_transfer_call(struct call *call)
{
	const struct pfs_get_transfer *g = &call->arg.get_transfer;
	struct get_transfer *w = &call->work.get_transfer;
	int r;

	w->delivered_len = g->from;
	if (g->reserved)
		return why_set(&call->why, EINVAL, "reserved: it is 0x%x and must be zero", g->reserved);
	if (g->handle == 0 || g->plan == 0)
		return why_set(&call->why, EINVAL, "%s: it is 0; ids begin at 1", g->handle ? "plan" : "handle");
	r = span_take(&call->span, "offsets_offset", g->offsets_offset, g->offsets_capacity, sizeof(uint64_t),
		(void **)&w->offsets, &call->why);
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->handle = g->handle;
	w->plan = g->plan;
	w->boundary = g->boundary;
	w->from = g->from;
	w->to = g->to;
	w->class_mask = g->class_mask;
	w->candidate = g->candidate;
	w->offsets_capacity = g->offsets_capacity;
	w->deadline_ns = call->deadline_ns;
	r = get_transfer_begin(w, &call->why);
	return r ? r : STEP_MORE;
}

static int get_transfer_go_on(struct call *call)
{
	return get_transfer_step(&call->work.get_transfer, &call->why);
}

static void get_transfer_give_up(struct call *call)
{
	get_transfer_undo(&call->work.get_transfer);
}

static void get_transfer_done(struct call *call)
{
	struct pfs_get_transfer *g = &call->arg.get_transfer;
	const struct get_transfer *w = &call->work.get_transfer;

	g->delivered_len = w->delivered_len;
	g->values = w->values;
	g->handle_ended = w->handle_ended;
}

const struct operation ioctl_get_transfer = {
	.name = "GET_TRANSFER",
	.bytes = sizeof(struct pfs_get_transfer),
	.bytes_1 = PFS_BYTES_GET_TRANSFER_1,
	.deadline_ms = 10000,
	.begin = get_transfer_call,
	.step = get_transfer_go_on,
	.undo = get_transfer_give_up,
	.done = get_transfer_done,
};

/* ---- GET_CONFIRM --------------------------------------------------------------------------------------------- */

static int get_confirm_call(struct call *call)
{
	const struct pfs_get_confirm *g = &call->arg.get_confirm;
	struct ticket_confirm *w = &call->work.confirm;

	if (g->reserved)
		return why_set(&call->why, EINVAL, "reserved: it is 0x%x and must be zero", g->reserved);
	if (g->flags & ~PFS_CONFIRM_FAILED)
		return why_set(&call->why, EINVAL, "flags: 0x%x has unknown bits; known is 0x%x", g->flags, PFS_CONFIRM_FAILED);
	w->session = ctl_session(call->ctl);
	memcpy(w->ticket, g->ticket, sizeof(w->ticket));
	w->failed = g->flags & PFS_CONFIRM_FAILED;
	w->deadline_ns = call->deadline_ns;
	return STEP_MORE;
}

static int get_confirm_go_on(struct call *call)
{
	return ticket_confirm_step(&call->work.confirm, &call->why);
}

static void get_confirm_give_up(struct call *call)
{
	ticket_confirm_undo(&call->work.confirm);
}

static void get_confirm_done(struct call *call)
{
	call->arg.get_confirm.restored = call->work.confirm.restored;
}

const struct operation ioctl_get_confirm = {
	.name = "GET_CONFIRM",
	.bytes = sizeof(struct pfs_get_confirm),
	.deadline_ms = 10000,
	.begin = get_confirm_call,
	.step = get_confirm_go_on,
	.undo = get_confirm_give_up,
	.done = get_confirm_done,
};

/* ---- GET_CANCEL, RELEASE ------------------------------------------------------------------------------------- */

static int get_cancel_call(struct call *call)
{
	return get_cancel(ctl_session(call->ctl), call->arg.get_cancel.handle, &call->why);
}

const struct operation ioctl_get_cancel = {
	.name = "GET_CANCEL",
	.bytes = sizeof(struct pfs_get_cancel),
	.begin = get_cancel_call,
};

static int release_call(struct call *call)
{
	struct pfs_release *p = &call->arg.release;
	void *plans;
	int r;

	p->released = 0;
	r = span_check_count("count", p->count, PFS_MAX_RELEASE, &call->why);
	if (!r)
		r = span_take(
			&call->span, "plans_offset", p->plans_offset, p->count, sizeof(uint64_t), &plans, &call->why);
	if (!r)
		r = take_wanted(call, "status_offset", p->status_offset, p->count, sizeof(int32_t),
			(void **)&call->work.release.status);
	if (!r)
		r = copy_in(call, plans, p->count * sizeof(uint64_t));
	if (r)
		return r;
	call->work.release.plans = call->copy;
	return STEP_MORE;
}

/* The first refusal is the request's; the others were released all the same. */
static int release_go_on(struct call *call)
{
	struct pfs_release *p = &call->arg.release;

	for (unsigned n = 0; n < RELEASES_AT_ONCE && call->work.release.next < p->count; n++) {
		uint32_t i = call->work.release.next++;
		struct why why = WHY_INIT;
		int r = get_release(ctl_session(call->ctl), call->work.release.plans[i], &why);

		if (call->work.release.status)
			call->work.release.status[i] = r;
		p->released += r == 0;
		if (r && !call->work.release.error) {
			call->work.release.error = r;
			call->why = why;
			why_prefix(&call->why, "plan %u of %u", i, p->count);
		}
	}
	return call->work.release.next < p->count ? STEP_MORE : call->work.release.error;
}

const struct operation ioctl_release = {
	.name = "RELEASE",
	.bytes = sizeof(struct pfs_release),
	.begin = release_call,
	.step = release_go_on,
};

/* ---- PROBE --------------------------------------------------------------------------------------------------- */

static int probe_call(struct call *call)
{
	struct pfs_probe *p = &call->arg.probe;
	struct probe *w = &call->work.probe;
	int r;

	if (p->reserved)
		return why_set(&call->why, EINVAL, "reserved: it is 0x%x and must be zero", p->reserved);
	r = span_check_count("keys", p->keys, PFS_MAX_KEYS, &call->why);
	if (!r)
		r = span_take(&call->span, "keys_offset", p->keys_offset, p->keys, sizeof(struct pfs_key),
			(void **)&w->keys, &call->why);
	if (!r)
		r = take_wanted(call, "hits_offset", p->hits_offset, ((uint64_t)p->keys + 63) / 64, sizeof(uint64_t),
			(void **)&w->hits);
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->key_count = p->keys;
	return STEP_MORE;
}

static int probe_go_on(struct call *call)
{
	return probe_step(&call->work.probe, &call->why);
}

static void probe_done(struct call *call)
{
	call->arg.probe.hits = call->work.probe.hit_count;
	call->arg.probe.prefix = call->work.probe.prefix;
}

const struct operation ioctl_probe = {
	.name = "PROBE",
	.bytes = sizeof(struct pfs_probe),
	.begin = probe_call,
	.step = probe_go_on,
	.done = probe_done,
};
