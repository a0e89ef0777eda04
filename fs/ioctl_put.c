/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT_START, PUT_COMMIT, PUT_ABORT.
 */
#include "fs/ioctl.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "store/base/killpoint.h"

/* What is copied as it is must be the same thing on both sides. */
#define SAME(member) (offsetof(struct pfs_put_group, member) == offsetof(struct put_group, member))
_Static_assert(sizeof(struct pfs_put_group) == sizeof(struct put_group) && SAME(parent) && SAME(consumed) &&
		       SAME(keys) && SAME(class_mask) && SAME(flags) && SAME(priority) && SAME(pause_ms) &&
		       SAME(reserved),
	"a group is copied as it is");
_Static_assert(sizeof(struct pfs_key) == sizeof(struct key), "keys are read in place");
_Static_assert(
	PFS_GROUP_ROOT == PUT_ROOT && PFS_GROUP_WHOLE == PUT_WHOLE && PFS_GROUP_ROW_ONLY == PUT_ROW_ONLY &&
		PFS_GROUP_RUNG == PUT_RUNG, "flags");
_Static_assert(PFS_ANSWER_NONE == PUT_ANSWER_NONE && PFS_ANSWER_EXISTS == PUT_ANSWER_EXISTS &&
		       PFS_ANSWER_INFLIGHT == PUT_ANSWER_INFLIGHT && PFS_ANSWER_DUPLICATE == PUT_ANSWER_DUPLICATE,
	"answers");
_Static_assert((int)PFS_GROUP_OK == (int)PUT_OK && (int)PFS_GROUP_NOROOM == (int)PUT_NOROOM &&
		       (int)PFS_GROUP_TOOBIG == (int)PUT_TOOBIG && (int)PFS_GROUP_COMMITTED == (int)PUT_COMMITTED &&
		       (int)PFS_GROUP_PENDING == (int)PUT_PENDING && (int)PFS_GROUP_LOST == (int)PUT_LOST &&
		       (int)PFS_GROUP_ABORTED == (int)PUT_ABORTED && (int)PFS_GROUP_NOPAGES == (int)PUT_NOPAGES,
	"status");
_Static_assert(PFS_STEP_KEYS == PUT_STEP_KEYS && PFS_MAX_RECORD_PAGES == PUT_RECORD_PAGES, "limits");

/* ---- PUT_START ----------------------------------------------------------------------------------------------- */

static int put_start_spans(struct call *call)
{
	struct pfs_put_start *p = &call->arg.put_start;
	struct put_start *w = &call->work.put_start;
	uint64_t answers = put_answer_count(space_layout(ctl_space(call->ctl)), p->class_mask, p->keys, p->groups);
	struct fs *fs = fuse_req_userdata(call->req);
	void *groups;
	int r;

	if (answers == UINT64_MAX)
		return why_set(&call->why, EINVAL, "class_mask: 0x%x names no class or one that the layout lacks",
			p->class_mask);
	r = span_take(&call->span, "groups_offset", p->groups_offset, p->groups, sizeof(struct pfs_put_group), &groups,
		&call->why);
	if (!r)
		r = span_take(&call->span, "keys_offset", p->keys_offset, p->keys, sizeof(struct pfs_key),
			(void **)&w->keys, &call->why);
	if (!r)
		r = span_take(&call->span, "answers_offset", p->answers_offset, answers, sizeof(uint64_t),
			(void **)&w->answers, &call->why);
	if (!r)
		r = span_take(&call->span, "status_offset", p->status_offset, p->groups, sizeof(uint32_t),
			(void **)&w->status, &call->why);
	if (r)
		return r;
	call->copy = buffers_get(&fs->buffers, p->groups * sizeof(struct put_group));
	if (!call->copy)
		return why_set(&call->why, ENOMEM, "no memory for %u groups", p->groups);
	memcpy(call->copy, groups, p->groups * sizeof(struct put_group));
	w->groups = call->copy;
	return 0;
}

static int put_start_call(struct call *call)
{
	struct pfs_put_start *p = &call->arg.put_start;
	struct put_start *w = &call->work.put_start;
	int r;

	if (p->reserved)
		return why_set(&call->why, EINVAL, "reserved: it is 0x%x and must be zero", p->reserved);
	if (p->plan == 0)
		return why_set(&call->why, EINVAL, "plan: it is 0; ids begin at 1");
	r = span_check_count("groups", p->groups, PFS_MAX_GROUPS, &call->why);
	if (!r)
		r = span_check_count("keys", p->keys, PFS_MAX_KEYS, &call->why);
	if (!r)
		r = put_start_spans(call);
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->plan = p->plan;
	w->group_count = p->groups;
	w->key_count = p->keys;
	w->class_mask = p->class_mask;
	memcpy(w->ticket, p->ticket, sizeof(w->ticket));
	w->deadline_ns = p->call.deadline_ms ? call->deadline_ns : 0;
	r = put_start_begin(w, &call->why);
	return r ? r : STEP_MORE;
}

static int put_start_go_on(struct call *call)
{
	return put_start_step(&call->work.put_start, &call->why);
}

static void put_start_done(struct call *call)
{
	struct pfs_put_start *p = &call->arg.put_start;

	p->new_values = call->work.put_start.new_values;
	p->groups_ok = call->work.put_start.groups_ok;
	p->ranges_version = space_ranges_version(ctl_space(call->ctl));
	killpoint(KILLPOINT_PUT_ANSWER);
}

const struct operation ioctl_put_start = {
	.name = "PUT_START",
	.bytes = sizeof(struct pfs_put_start),
	.bytes_1 = PFS_BYTES_PUT_START_1,
	.begin = put_start_call,
	.step = put_start_go_on,
	.done = put_start_done,
};

/* ---- PUT_COMMIT, PUT_ABORT ----------------------------------------------------------------------------------- */

static int put_end_call(struct call *call)
{
	struct pfs_put_end *p = &call->arg.put_end;
	struct put_end *w = &call->work.put_end;
	int r;

	if (p->plan == 0)
		return why_set(&call->why, EINVAL, "plan: it is 0; ids begin at 1");
	r = span_check_count("groups", p->groups, PFS_MAX_GROUPS, &call->why);
	if (!r)
		r = span_take(&call->span, "status_offset", p->status_offset, p->groups, sizeof(uint32_t),
			(void **)&w->status, &call->why);
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->plan = p->plan;
	w->seq = p->call.seq;
	w->commit = call->operation == &ioctl_put_commit;
	w->first_group = p->first_group;
	w->group_count = p->groups;
	r = put_end_begin(w, &call->why);
	return r ? r : STEP_MORE;
}

static int put_end_go_on(struct call *call)
{
	return put_end_step(&call->work.put_end, &call->why);
}

static void put_end_done(struct call *call)
{
	call->arg.put_end.done = call->work.put_end.done;
	call->arg.put_end.outcome = call->work.put_end.outcome;
	killpoint(call->work.put_end.commit ? KILLPOINT_COMMIT_ANSWER : KILLPOINT_ABORT_ANSWER);
}

const struct operation ioctl_put_commit = {
	.name = "PUT_COMMIT",
	.bytes = sizeof(struct pfs_put_end),
	.begin = put_end_call,
	.step = put_end_go_on,
	.done = put_end_done,
};

const struct operation ioctl_put_abort = {
	.name = "PUT_ABORT",
	.bytes = sizeof(struct pfs_put_end),
	.begin = put_end_call,
	.step = put_end_go_on,
	.done = put_end_done,
};
