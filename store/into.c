/* SPDX-License-Identifier: Apache-2.0 */
#include "store/into_private.h"

#include <errno.h>

/* ---- begin ---------------------------------------------------------------------------------------------------------- */

uint64_t into_payload(const struct get_into *call, uint32_t class_index)
{
	const struct session *s = call->transfer.session;

	return s->space->layout->class[class_index].share[s->share[class_index]].payload_bytes;
}

/* base + block * stride + offset + bytes; UINT64_MAX: over all bounds. */
static uint64_t end_of(uint64_t base, uint32_t block, uint64_t stride, uint64_t offset, uint64_t bytes)
{
	uint64_t end;

	if (__builtin_mul_overflow(block, stride, &end) || __builtin_add_overflow(end, base, &end) ||
	    __builtin_add_overflow(end, offset, &end) || __builtin_add_overflow(end, bytes, &end))
		return UINT64_MAX;
	return end;
}

static int outside(const struct get_into *call, uint32_t class_index, uint64_t end, struct why *why)
{
	return why_set(why, ERANGE, "class %u: a value would end at byte %llu of import %llu, which has %llu", class_index,
		       (unsigned long long)end, (unsigned long long)call->import, (unsigned long long)import_bytes(call->to));
}

static int check_pages(const struct get_into *call, uint32_t class_index, struct why *why)
{
	const struct get_transfer *t = &call->transfer;
	uint64_t bytes = into_payload(call, class_index), end;
	uint32_t pages = t->end - t->first;

	if (pages > 1 && call->stride < bytes)
		return why_set(why, EINVAL, "stride: %llu bytes; a value of class %u has %llu", (unsigned long long)call->stride,
			       class_index, (unsigned long long)bytes);
	for (uint32_t i = 0; i < pages; i++) {
		end = end_of(call->base, call->blocks ? call->blocks[i] : i, call->stride, call->class_offset[class_index], bytes);
		if (end > import_bytes(call->to))
			return outside(call, class_index, end, why);
	}
	return 0;
}

static int check_places(const struct get_into *call, struct why *why)
{
	const struct get_transfer *t = &call->transfer;
	const struct layout *layout = t->session->space->layout;
	int r = 0;

	for (uint32_t c = 0; c < layout->classes && !r; c++) {
		uint64_t end;

		if (!(t->class_mask >> c & 1))
			continue;
		if (!layout_is_row(layout, c)) {
			r = check_pages(call, c, why);
			continue;
		}
		end = end_of(call->state_base, 0, 0, call->class_offset[c], into_payload(call, c));
		if (t->to == t->boundary && end > import_bytes(call->to))
			r = outside(call, c, end, why);
	}
	return r;
}

int get_into_begin(struct get_into *call, struct why *why)
{
	int r;

	call->transfer.into = true;
	call->to = NULL;
	r = get_transfer_begin(&call->transfer, why);
	if (r || call->transfer.over)
		return r;
	r = import_use(call->transfer.session, call->import, &call->to, why);
	if (r) {
		get_transfer_undo(&call->transfer);
		return r;
	}
	r = check_places(call, why);
	if (r)
		get_into_undo(call);
	return r;
}

void get_into_undo(struct get_into *call)
{
	if (call->transfer.over)
		return;
	import_leave(call->transfer.session, call->to);
	get_transfer_undo(&call->transfer);
}

/* ---- places ----------------------------------------------------------------------------------------------------------- */

uint64_t into_place(const struct get_into *call, const struct into_value *v)
{
	uint32_t i = v->key - call->transfer.first;

	if (v->row)
		return call->state_base + call->class_offset[v->class_index];
	return call->base + (call->blocks ? call->blocks[i] : i) * call->stride + call->class_offset[v->class_index];
}

int into_verdict(const struct get_into *call, struct why *why)
{
	int error = atomic_load(&call->transfer.session->ended) ? ESHUTDOWN : call->verdict ? call->verdict(call->context) : 0;

	if (!error)
		return 0;
	return why_set(why, error, "%s",
		       error == EINTR     ? "the transfer was interrupted" :
		       error == ESHUTDOWN ? "the session has ended" :
					    "the daemon is stopping");
}

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

static void count(struct get_into *call, uint32_t class_index, uint32_t values)
{
	call->transfer.values += values;
	call->transfer.bytes += values * into_payload(call, class_index);
}

static void count_delivered(struct get_into *call)
{
	struct get_transfer *t = &call->transfer;

	for (uint32_t mask = t->class_mask; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		count(call, c, (uint32_t)gates_count(&t->h->found->gates, c, t->from, t->to, t->boundary));
	}
}

/* The keys before @end are there. */
static void deliver(struct get_into *call, uint32_t end)
{
	struct get_transfer *t = &call->transfer;
	struct session *s = t->session;

	t->end = end;
	t->to = transfer_position(t, end);
	t->spent = end == t->first;
	count_delivered(call);
	import_count(s, call->to, t->bytes);
	import_leave(s, call->to);
	transfer_finish(t);
	t->h = NULL;
}

int get_into_run(struct get_into *call, struct why *why)
{
	struct get_transfer *t = &call->transfer;
	bool failed = false;
	int r;

	lock_assert_none_held();
	if (t->over)
		return 0;
	t->good = t->first;
	r = into_carry(call, &t->good, &failed, why);
	if (!r && failed)
		t->good = transfer_restorable(t, t->good);
	if (!r && t->good == t->first && !failed && !t->h->seat.ticket)
		r = why_set(why, EAGAIN, "from %llu tokens on: no page was there by the deadline, or could be read now",
			    (unsigned long long)t->from);
	if (r)
		get_into_undo(call);
	else if (!t->h->seat.ticket)
		deliver(call, t->good);
	return r;
}

int get_into_step(struct get_into *call, struct why *why)
{
	struct get_transfer *t = &call->transfer;
	int r;

	if (t->over || !t->h || !t->h->seat.ticket)
		return 0;
	r = atomic_load(&t->session->ended) ? why_set(why, ESHUTDOWN, "the session has ended") : transfer_gate(t, &t->good, why);
	if (r == STEP_WAIT)
		return r;
	if (r)
		get_into_undo(call);
	else
		deliver(call, t->good);
	return r;
}
