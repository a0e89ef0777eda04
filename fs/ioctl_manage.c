/* SPDX-License-Identifier: Apache-2.0
 *
 * TOUCH, REMOVE, PIN, DRAIN, RESET.
 */
#include "fs/ioctl.h"

#include <errno.h>
#include <inttypes.h>

#include "fs/errands.h"
#include "store/base/clock.h"

_Static_assert((int)PFS_REMOVE_DONE == (int)REMOVAL_DONE && (int)PFS_REMOVE_ABSENT == (int)REMOVAL_ABSENT &&
		       (int)PFS_REMOVE_BUSY == (int)REMOVAL_BUSY,
	"answers of REMOVE");
_Static_assert((int)PFS_PIN_DONE == (int)PINNING_DONE && (int)PFS_PIN_ABSENT == (int)PINNING_ABSENT &&
		       (int)PFS_PIN_NOROOM == (int)PINNING_NOROOM && PFS_PIN_RELEASE == PINNING_RELEASE &&
		       PFS_PIN_ENDPOINTS == PINNING_ENDPOINTS,
	"answers and flags of PIN");

/* Keys, and where wanted a word for each. */
static int take_keys(struct call *call, uint64_t keys_offset, uint32_t count, const struct key **keys)
{
	int r = span_check_count("keys", count, PFS_MAX_KEYS, &call->why);

	return r ? r : span_take(&call->span, "keys_offset", keys_offset, count, sizeof(struct pfs_key), (void **)keys,
			       &call->why);
}

static int take_answers(struct call *call, uint64_t answers_offset, uint32_t count, uint32_t **answers)
{
	*answers = NULL;
	if (answers_offset == PFS_OFFSET_NONE)
		return 0;
	return span_take(&call->span, "answers_offset", answers_offset, count, sizeof(uint32_t), (void **)answers,
		&call->why);
}

static int must_be_zero(struct call *call, const char *name, uint32_t value)
{
	return value ? why_set(&call->why, EINVAL, "%s: it is 0x%x and must be zero", name, value) : 0;
}

/* ---- TOUCH --------------------------------------------------------------------------------------------------- */

static int touch_call(struct call *call)
{
	struct pfs_touch *p = &call->arg.touch;
	struct touch *w = &call->work.touch;
	int r = must_be_zero(call, "flags", p->flags);

	r = r ? r : must_be_zero(call, "reserved", p->reserved);
	r = r ? r : take_keys(call, p->keys_offset, p->keys, &w->keys);
	w->touched = 0;
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->key_count = p->keys;
	return touch_begin(w, &call->why);
}

static int touch_go_on(struct call *call)
{
	return touch_step(&call->work.touch, &call->why);
}

static void touch_done(struct call *call)
{
	call->arg.touch.touched = call->work.touch.touched;
}

const struct operation ioctl_touch = {
	.name = "TOUCH",
	.bytes = sizeof(struct pfs_touch),
	.begin = touch_call,
	.step = touch_go_on,
	.done = touch_done,
};

/* ---- REMOVE -------------------------------------------------------------------------------------------------- */

static int remove_call(struct call *call)
{
	struct pfs_remove *p = &call->arg.remove;
	struct removal *w = &call->work.removal;
	int r = must_be_zero(call, "reserved", p->reserved);

	r = r ? r : take_keys(call, p->keys_offset, p->keys, &w->keys);
	r = r ? r : take_answers(call, p->answers_offset, p->keys, &w->answers);
	w->removed = w->absent = w->busy = 0;
	w->values = 0;
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->key_count = p->keys;
	w->class_mask = p->class_mask;
	return removal_begin(w, &call->why);
}

static int remove_go_on(struct call *call)
{
	return removal_step(&call->work.removal, &call->why);
}

static void remove_done(struct call *call)
{
	struct pfs_remove *p = &call->arg.remove;
	const struct removal *w = &call->work.removal;

	p->removed = w->removed;
	p->absent = w->absent;
	p->busy = w->busy;
	p->values = w->values;
}

const struct operation ioctl_remove = {
	.name = "REMOVE",
	.bytes = sizeof(struct pfs_remove),
	.begin = remove_call,
	.step = remove_go_on,
	.done = remove_done,
};

/* ---- PIN ----------------------------------------------------------------------------------------------------- */

static int pin_call(struct call *call)
{
	struct pfs_pin *p = &call->arg.pin;
	struct pinning *w = &call->work.pinning;
	int r = take_keys(call, p->keys_offset, p->keys, &w->keys);

	r = r ? r : take_answers(call, p->answers_offset, p->keys, &w->answers);
	w->changed = w->absent = 0;
	w->pinned_bytes = w->limit_bytes = 0;
	if (r)
		return r;
	w->session = ctl_session(call->ctl);
	w->key_count = p->keys;
	w->flags = p->flags;
	return pinning_begin(w, &call->why);
}

static int pin_go_on(struct call *call)
{
	return pinning_step(&call->work.pinning, &call->why);
}

static void pin_done(struct call *call)
{
	struct pfs_pin *p = &call->arg.pin;
	const struct pinning *w = &call->work.pinning;

	p->changed = w->changed;
	p->absent = w->absent;
	p->pinned_bytes = w->pinned_bytes;
	p->limit_bytes = w->limit_bytes;
}

const struct operation ioctl_pin = {
	.name = "PIN",
	.bytes = sizeof(struct pfs_pin),
	.begin = pin_call,
	.step = pin_go_on,
	.done = pin_done,
};

/* ---- DRAIN, RESET -------------------------------------------------------------------------------------------- */

static struct errands *drain_errands(const struct call *call)
{
	struct fs *fs = fuse_req_userdata(call->req);

	return fs->errands;
}

/* False: there is no disk. */
static bool dirty_bytes(const struct call *call, uint64_t *bytes)
{
	struct space_report report;

	space_report(ctl_space(call->ctl), &report);
	*bytes = report.dirty_bytes;
	return report.disk;
}

static int drain_call(struct call *call)
{
	struct pfs_drain *p = &call->arg.drain;
	uint64_t bytes;
	int r = must_be_zero(call, "reserved", p->reserved);

	p->values = p->bytes = 0;
	p->disk = 0;
	r = r ? r : drain(ctl_session(call->ctl), &call->why);
	if (r || !dirty_bytes(call, &bytes))
		return r;
	call->work.drain.disk = true;
	r = errands_ask(drain_errands(call), ctl_space(call->ctl), ERRAND_DRAIN, call->deadline_ns, &call->work.drain.number,
		&call->why);
	return r ? r : STEP_MORE;
}

static int drain_go_on(struct call *call)
{
	struct errand_state state;
	int r = errands_look(drain_errands(call), ctl_space(call->ctl), call->work.drain.number, call->deadline_ns, &state,
		&call->why);

	if (!r && state.running && clock_now_ns() < call->deadline_ns)
		return STEP_WAIT;
	if (!r && state.running)
		return why_set(&call->why, ETIMEDOUT, "%" PRIu64 " of %" PRIu64 " bytes are written down at the deadline",
			state.done, state.goal);
	if (!r && state.why.error) {
		call->why = state.why;
		r = -state.why.error;
	}
	return r;
}

static void drain_done(struct call *call)
{
	struct pfs_drain *p = &call->arg.drain;
	uint64_t bytes;

	if (!call->work.drain.disk)
		return;
	p->disk = 1;
	dirty_bytes(call, &bytes);
	p->bytes = bytes;
}

const struct operation ioctl_drain = {
	.name = "DRAIN",
	.bytes = sizeof(struct pfs_drain),
	.deadline_ms = 60000,
	.begin = drain_call,
	.step = drain_go_on,
	.done = drain_done,
};

static int reset_call(struct call *call)
{
	struct reset *w = &call->work.reset;

	w->generation = w->values = 0;
	w->held = 0;
	w->session = ctl_session(call->ctl);
	int r = must_be_zero(call, "flags", call->arg.reset.flags);
	return r ? r : reset_begin(w, &call->why);
}

static int reset_go_on(struct call *call)
{
	return reset_step(&call->work.reset, &call->why);
}

static void reset_done(struct call *call)
{
	struct pfs_reset *p = &call->arg.reset;
	const struct reset *w = &call->work.reset;

	p->generation = w->generation;
	p->values = w->values;
	p->held = w->held;
}

const struct operation ioctl_reset = {
	.name = "RESET",
	.bytes = sizeof(struct pfs_reset),
	.begin = reset_call,
	.step = reset_go_on,
	.done = reset_done,
};
