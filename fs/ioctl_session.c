/* SPDX-License-Identifier: Apache-2.0
 *
 * ATTACH, SEGMENTS, SEGMENTS_ACK, STAT, LAST_ERROR.
 */
#include "fs/ioctl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fs/process.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/remnants.h"

#define RANGES_AT_ONCE 64u
#define MAX_ACKS 65536u

_Static_assert(sizeof(struct pfs_range_ack) == sizeof(struct session_ack) &&
		       offsetof(struct pfs_range_ack, generation) == offsetof(struct session_ack, generation),
	"an ack is copied as it is");
_Static_assert(PFS_RANK_NONE == SESSION_RANK_NONE && PFS_MAX_CLASSES == LAYOUT_MAX_CLASSES &&
		       PFS_MAX_SHARES == LAYOUT_MAX_SHARES,
	"the store's numbers are the ABI's");

/* ---- ATTACH -------------------------------------------------------------------------------------------------- */

static int open_guard(uint32_t pid, struct session_attach *s, struct why *why)
{
	s->guard = pid;
	s->guard_fd = process_open(pid);
	if (s->guard_fd >= 0)
		return 0;
	if (s->guard_fd == -ESRCH)
		return why_set(why, ESRCH, "guard_pid: there is no process %u in the daemon's pid namespace, or it has ended", pid);
	return why_set(why, -s->guard_fd, "guard_pid: process %u cannot be watched: %s", pid, strerror(-s->guard_fd));
}

static int attach(struct call *call)
{
	struct pfs_attach *a = &call->arg.attach;
	struct fs *fs = fuse_req_userdata(call->req);
	struct space *space = ctl_space(call->ctl);
	const struct layout *layout = space_layout(space);
	struct session_attach s = {
		.rank = a->rank,
		.node = a->node,
		.handle = ctl_handle(call->ctl),
		.call_buffer_bytes = a->call_buffer_bytes,
		.guard_fd = -1,
	};
	char path[RUNDIR_PATH_BYTES];
	int r;

	memcpy(s.client_id, a->client_id, sizeof(s.client_id));
	if (a->guard_pid) {
		r = open_guard(a->guard_pid, &s, &call->why);
		if (r)
			return r;
	}
	r = session_attach(ctl_session(call->ctl), &s, &call->why);
	if (r) {
		closep(&s.guard_fd);
		return r;
	}
	a->call_buffer_bytes = s.call_buffer_bytes;
	a->session = ctl_session_number(call->ctl);
	a->segment_bytes = segment_bytes(space_segment(space));
	a->segment_page_bytes = segment_page_bytes(space_segment(space));
	a->generation = space_generation(space);
	a->ranges_version = space_ranges_version(space);
	a->world = layout->world;
	a->page_tokens = layout->page_tokens;
	a->classes = layout->classes;
	a->token_ttl_ms = (uint32_t)fs->config->token_ttl_ms;
	memcpy(a->fingerprint, layout->fingerprint, sizeof(a->fingerprint));
	memcpy(a->token, s.token, sizeof(a->token));
	a->read_only = ctl_read_only(call->ctl);
	a->state_mask = 0;
	for (uint32_t c = 0; c < layout->classes; c++)
		a->state_mask |= (uint32_t)layout_is_row(layout, c) << c;
	for (uint32_t c = 0; c < PFS_MAX_CLASSES; c++)
		a->share[c] = a->rank == PFS_RANK_NONE || c >= layout->classes ? PFS_INDEX_NONE
		                                                               : layout->share_of_rank[a->rank][c];
	for (uint32_t c = 0; c < PFS_MAX_CLASSES; c++)
		a->value_bytes[c] = a->share[c] == PFS_INDEX_NONE ? 0 : layout->class[c].share[a->share[c]].payload_bytes;
	rundir_path(&fs->dir, "sock", path);
	memset(a->socket_path, 0, sizeof(a->socket_path));
	snprintf(a->socket_path, sizeof(a->socket_path), "%.*s", (int)sizeof(a->socket_path) - 1, path);
	return 0;
}

/* The token's time begins when it is told, so waiting comes first. */
static int attach_step(struct call *call)
{
	bool wait = call->arg.attach.flags & PFS_ATTACH_WAIT_PREWARM;

	if (wait && !session_prewarmed(ctl_session(call->ctl)) && clock_now_ns() < call->deadline_ns)
		return STEP_WAIT;
	return attach(call);
}

static int attach_begin(struct call *call)
{
	struct pfs_attach *a = &call->arg.attach;

	if (a->abi_version != PFS_ABI_VERSION)
		return why_set(&call->why, EPROTONOSUPPORT, "abi_version: the client speaks %u, this daemon %u",
			a->abi_version, PFS_ABI_VERSION);
	if (a->flags & ~PFS_ATTACH_WAIT_PREWARM)
		return why_set(&call->why, EINVAL, "flags: 0x%x has unknown bits; known is 0x%x", a->flags,
			PFS_ATTACH_WAIT_PREWARM);
	if (a->call_buffer_bytes < PFS_MIN_CALL_BUFFER || a->call_buffer_bytes > PFS_MAX_CALL_BUFFER)
		return why_set(&call->why, EINVAL, "call_buffer_bytes: %" PRIu64 " is outside %u to %u",
			(uint64_t)a->call_buffer_bytes, PFS_MIN_CALL_BUFFER, PFS_MAX_CALL_BUFFER);
	if (a->guard_pid && process_has_thread(a->guard_pid, fuse_req_ctx(call->req)->pid))
		return why_set(&call->why, EINVAL, "guard_pid: %u is the client itself, which is watched anyway", a->guard_pid);
	if (a->reserved1)
		return why_set(&call->why, EINVAL, "reserved1: it is %u, not 0", a->reserved1);
	return STEP_MORE;
}

const struct operation ioctl_attach = {
	.name = "ATTACH",
	.bytes = sizeof(struct pfs_attach),
	.bytes_1 = PFS_BYTES_ATTACH_1,
	.deadline_ms = 60000,
	.outside = true,
	.begin = attach_begin,
	.step = attach_step,
};

/* ---- ranges -------------------------------------------------------------------------------------------------- */

static uint32_t copy_ranges(struct space *space, uint32_t first, struct pfs_range *to, uint32_t capacity,
	uint32_t *total, uint64_t *version)
{
	struct space_range from[RANGES_AT_ONCE];
	uint32_t wanted = capacity < RANGES_AT_ONCE ? capacity : RANGES_AT_ONCE;
	uint32_t n = space_ranges(space, first, from, wanted, total, version);

	for (uint32_t i = 0; i < n; i++)
		to[i] = (struct pfs_range){
			.offset = from[i].offset,
			.length = from[i].length,
			.slot_bytes = from[i].slot_bytes,
			.id = from[i].id,
			.generation = from[i].generation,
			.class_index = from[i].class_index,
			.share = from[i].share,
			.node = from[i].node,
		};
	return n;
}

static int segments_begin(struct call *call)
{
	struct pfs_segments *s = &call->arg.segments;
	struct space *space = ctl_space(call->ctl);
	uint64_t version = 0, before;
	struct pfs_range *to;
	uint32_t total = 0, n;
	int r;

	s->count = 0;
	r = span_take(
		&call->span, "ranges_offset", s->ranges_offset, s->capacity, sizeof(*to), (void **)&to, &call->why);
	if (r)
		return r;
	s->generation = space_generation(space);
	/* Pieces of one version: from the start again when it rose in between. */
	do {
		s->count = 0;
		before = 0;
		do {
			n = copy_ranges(space, s->first + s->count, to ? to + s->count : NULL, s->capacity - s->count,
				&total, &version);
			s->count += n;
			if (!before)
				before = version;
		} while (n && s->count < s->capacity && version == before);
	} while (version != before);
	s->total = total;
	s->version = version;
	return 0;
}

const struct operation ioctl_segments = {
	.name = "SEGMENTS",
	.bytes = sizeof(struct pfs_segments),
	.begin = segments_begin,
};

static int segments_ack_begin(struct call *call)
{
	struct pfs_segments_ack *a = &call->arg.segments_ack;
	struct fs *fs = fuse_req_userdata(call->req);
	void *from;
	int r;

	a->accepted = 0;
	if (a->count > MAX_ACKS)
		return why_set(&call->why, E2BIG, "count: %u acks are over the limit of %u", a->count, MAX_ACKS);
	r = span_take(
		&call->span, "acks_offset", a->acks_offset, a->count, sizeof(struct pfs_range_ack), &from, &call->why);
	if (r)
		return r;
	if (a->count) {
		call->copy = buffers_get(&fs->buffers, a->count * sizeof(struct pfs_range_ack));
		if (!call->copy)
			return why_set(&call->why, ENOMEM, "no memory for %u acks", a->count);
		memcpy(call->copy, from, a->count * sizeof(struct pfs_range_ack));
	}
	r = session_ack_ranges(ctl_session(call->ctl), call->copy, a->count, &a->accepted, &call->why);
	a->version = space_ranges_version(ctl_space(call->ctl));
	return r;
}

const struct operation ioctl_segments_ack = {
	.name = "SEGMENTS_ACK",
	.bytes = sizeof(struct pfs_segments_ack),
	.begin = segments_ack_begin,
};

/* ---- SETTLE ---------------------------------------------------------------------------------------------------- */

static int settle_begin(struct call *call)
{
	return remnants_settle(ctl_session(call->ctl), call->arg.settle.session, &call->why);
}

const struct operation ioctl_settle = {
	.name = "SETTLE",
	.bytes = sizeof(struct pfs_settle),
	.begin = settle_begin,
};

/* ---- STAT and LAST_ERROR ------------------------------------------------------------------------------------- */

static int stat_begin(struct call *call)
{
	struct pfs_stat *s = &call->arg.stat;
	void *to;
	int r = span_take(&call->span, "text_offset", s->text_offset, s->capacity, 1, &to, &call->why);

	if (r)
		return r;
	s->bytes = (uint32_t)space_stats_text(ctl_space(call->ctl), to, s->capacity);
	return 0;
}

const struct operation ioctl_stat = {
	.name = "STAT",
	.bytes = sizeof(struct pfs_stat),
	.begin = stat_begin,
};

static int last_error_begin(struct call *call)
{
	struct pfs_last_error *l = &call->arg.last_error;
	struct why why = WHY_INIT;
	uint64_t seq = 0;
	uint32_t op = 0;

	session_last_error(ctl_session(call->ctl), &seq, &op, &why);
	l->failed_seq = seq;
	l->failed_op = op;
	l->error = why.error;
	memcpy(l->text, why.text, sizeof(l->text));
	return 0;
}
_Static_assert(sizeof(((struct why *)0)->text) == sizeof(((struct pfs_last_error *)0)->text), "a sentence fits");

const struct operation ioctl_last_error = {
	.name = "LAST_ERROR",
	.bytes = sizeof(struct pfs_last_error),
	.outside = true,
	.forgettable = true,
	.begin = last_error_begin,
};
