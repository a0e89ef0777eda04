/* SPDX-License-Identifier: Apache-2.0
 *
 * IMPORT and GET_INTO.
 */
#include "fs/ioctl.h"

#include <errno.h>
#include <string.h>

_Static_assert(PFS_MAX_IMPORTS == SESSION_MAX_IMPORTS, "the store's number is the ABI's");

/* ---- IMPORT ---------------------------------------------------------------------------------------------------- */

static int import_call(struct call *call)
{
	struct pfs_import *p = &call->arg.import;
	struct fs *fs = fuse_req_userdata(call->req);
	struct session *session = ctl_session(call->ctl);

	memset(p->token, 0, sizeof(p->token));
	p->token_ttl_ms = 0;
	if (p->flags & ~PFS_IMPORT_DROP)
		return why_set(&call->why, EINVAL, "flags: 0x%x has unknown bits; known is 0x%x", p->flags, PFS_IMPORT_DROP);
	if (p->flags & PFS_IMPORT_DROP)
		return import_drop(session, p->import, &call->why);
	p->token_ttl_ms = (uint32_t)fs->config->token_ttl_ms;
	return import_offer(session, p->import, p->token, &call->why);
}

const struct operation ioctl_import = {
	.name = "IMPORT",
	.bytes = sizeof(struct pfs_import),
	.begin = import_call,
};

/* ---- GET_INTO -------------------------------------------------------------------------------------------------- */

static int verdict(void *context)
{
	struct call *call = context;
	struct fs *fs = fuse_req_userdata(call->req);

	return calls_verdict(fs->calls, call);
}

/* Numbers of blocks, a copy. Ranges that are none are refused by the store. */
static int take_blocks(struct call *call)
{
	const struct pfs_get_into *g = &call->arg.get_into;
	struct fs *fs = fuse_req_userdata(call->req);
	uint64_t pages = g->to > g->from ? (g->to - g->from) / space_layout(ctl_space(call->ctl))->page_tokens : 0;
	void *blocks;
	int r;

	if (g->blocks_offset == PFS_OFFSET_NONE || !pages)
		return 0;
	if (pages > PFS_MAX_KEYS)
		return why_set(&call->why, EINVAL, "to: the range has %llu pages, a handle has %u at most",
			(unsigned long long)pages, PFS_MAX_KEYS);
	r = span_take(&call->span, "blocks_offset", g->blocks_offset, pages, sizeof(uint32_t), &blocks, &call->why);
	if (r)
		return r;
	call->copy = buffers_get(&fs->buffers, pages * sizeof(uint32_t));
	if (!call->copy)
		return why_set(&call->why, ENOMEM, "no memory for the blocks of %llu pages", (unsigned long long)pages);
	memcpy(call->copy, blocks, pages * sizeof(uint32_t));
	call->work.get_into.store.blocks = call->copy;
	return 0;
}

static int get_into_call(struct call *call)
{
	const struct pfs_get_into *g = &call->arg.get_into;
	struct get_into *w = &call->work.get_into.store;
	int r;

	w->transfer.delivered_len = g->from;
	if (g->flags)
		return why_set(&call->why, EINVAL, "flags: it is 0x%x and must be zero", g->flags);
	if (g->handle == 0 || g->import == 0)
		return why_set(&call->why, EINVAL, "%s: it is 0; ids begin at 1", g->handle ? "import" : "handle");
	r = take_blocks(call);
	if (r)
		return r;
	w->transfer.session = ctl_session(call->ctl);
	w->transfer.handle = g->handle;
	w->transfer.boundary = g->boundary;
	w->transfer.from = g->from;
	w->transfer.to = g->to;
	w->transfer.class_mask = g->class_mask;
	w->transfer.deadline_ns = call->deadline_ns;
	w->import = g->import;
	w->base = g->base;
	w->stride = g->stride;
	w->state_base = g->state_base;
	memcpy(w->class_offset, g->class_offset, sizeof(w->class_offset));
	w->nonblock = call->arg.call.flags & PFS_CALL_NONBLOCK;
	w->verdict = verdict;
	w->context = call;
	r = get_into_begin(w, &call->why);
	return r ? r : STEP_CARRY;
}

static void get_into_carry(struct call *call)
{
	call->work.get_into.result = get_into_run(&call->work.get_into.store, &call->why);
}

static int get_into_go_on(struct call *call)
{
	int r = call->work.get_into.result;

	return r ? r : get_into_step(&call->work.get_into.store, &call->why);
}

static void get_into_give_up(struct call *call)
{
	get_into_undo(&call->work.get_into.store);
}

static void get_into_done(struct call *call)
{
	struct pfs_get_into *g = &call->arg.get_into;
	const struct get_transfer *w = &call->work.get_into.store.transfer;

	g->delivered_len = w->delivered_len;
	g->bytes = w->bytes;
	g->values = w->values;
	g->handle_ended = w->handle_ended;
}

const struct operation ioctl_get_into = {
	.name = "GET_INTO",
	.bytes = sizeof(struct pfs_get_into),
	.deadline_ms = 10000,
	.begin = get_into_call,
	.carry = get_into_carry,
	.step = get_into_go_on,
	.undo = get_into_give_up,
	.done = get_into_done,
};
