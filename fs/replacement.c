/* SPDX-License-Identifier: Apache-2.0
 *
 * Upgrades, as the parent's loop has them (fs/upgrade_parent.h decides): the next serving process is started beside the present one and
 * waits, with all that it can have before it is given anything.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "fs/log.h"
#include "fs/parent_state.h"
#include "store/adopt.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

/* ---- what an upgrade asks for ---------------------------------------------------------------------------------------------- */

static uint32_t on_tables_version(void *context)
{
	const struct parent *p = context;
	uint32_t newest = 0;

	for (unsigned i = 0; i < p->kept.count; i++) {
		uint32_t version = strcmp(p->kept.fds[i].what, "tables") ? 0 : adopt_tables_version(p->kept.fds[i].fd);

		newest = version > newest ? version : newest;
	}
	return newest;
}

/* One whose mount is still to be made, or that goes back, is started when it is its turn. */
static int on_start_program(void *context, int program, bool remount, struct why *why)
{
	struct parent *p = context;

	p->trying = program;
	p->remount = p->remount || remount;
	if (program < 0 || remount || p->fuse < 0 || !p->serving.pid)
		return 1;
	int r = serving_start(p, &p->next, why);
	if (r) {
		serving_discard_next(p);
		p->trying = -1;
	}
	return r;
}

static int on_hand_over(void *context)
{
	struct parent *p = context;

	if (!p->serving.pid || p->serving.reaped || p->serving.ended_ns)
		return -ESRCH;
	serving_hand_over(p);
	return 0;
}

static void on_kill_old(void *context)
{
	struct parent *p = context;

	serving_kill(&p->serving);
}

static void on_succeed(void *context)
{
	struct parent *p = context;

	p->succeeding = true;
}

static void on_kill_new(void *context)
{
	struct parent *p = context;

	serving_kill(p->next.pid ? &p->next : &p->serving);
}

static void on_keep_program(void *context, int program)
{
	struct parent *p = context;

	closep(&p->program);
	p->program = program;
	p->trying = -1;
	p->upgrades++;
}

static const struct upgrade_calls all_calls = {
	.tables_version = on_tables_version,
	.start_program = on_start_program,
	.hand_over = on_hand_over,
	.kill_old = on_kill_old,
	.succeed = on_succeed,
	.kill_new = on_kill_new,
	.keep_program = on_keep_program,
};

/* ---- what becomes of serving processes ------------------------------------------------------------------------------------- */

static void bury_next(struct parent *p)
{
	char reason[LAST_EXIT_REASON_BYTES];

	obituary_reason(p, &p->next, reason);
	serving_discard_next(p);
	p->trying = -1;
	upgrade_parent_died(&p->upgrade, reason, clock_now_ns());
}

/* The one that waits has no business to end. */
static void look_at_next(struct parent *p)
{
	if (!p->next.pid)
		return;
	serving_hear(p, &p->next);
	if (p->next.waits)
		upgrade_parent_loaded(&p->upgrade, clock_now_ns());
	if (p->next.reaped) /* its channel's end says less than its status, which comes */
		bury_next(p);
}

/* It may have ended when the old one did: then it is not begun with, nor its program tried once more. Waits for its status, PARENT_LEAVE_MS
 * at most. */
static void look_at_next_once_more(struct parent *p)
{
	uint64_t until = clock_now_ns() + PARENT_LEAVE_MS * 1000000ull;

	if (p->next.pid)
		serving_hear(p, &p->next);
	if (!p->next.pid || (!p->next.ended_ns && !p->next.reaped))
		return;
	while (!p->next.reaped && clock_now_ns() < until) {
		struct pollfd signals = {.fd = p->signals, .events = POLLIN};

		poll(&signals, 1, 10);
		parent_hear_signals(p);
		if (!p->next.pid) /* told to stop: it is gone */
			return;
	}
	bury_next(p);
}

void replacement_hear(struct parent *p)
{
	look_at_next(p);
	upgrade_parent_hear(&p->upgrade, clock_now_ns());
}

void replacement_ready(struct parent *p)
{
	upgrade_parent_ready(&p->upgrade, clock_now_ns());
}

/* A death, whose pause is over. */
static void note_the_old_ones_end(struct parent *p)
{
	char reason[LAST_EXIT_REASON_BYTES];

	if (p->serving.handed_over)
		return;
	obituary_reason(p, &p->serving, reason);
	log_error("the serving process died: %s", reason);
	obituary_note(p, reason, "its successor was there already");
}

/* A program that was tried and ended before it served. */
static void note_attempt(struct parent *p)
{
	char reason[LAST_EXIT_REASON_BYTES];

	obituary_reason(p, &p->serving, reason);
	log_error("the new serving process ended before it served: %s", reason);
	obituary_note(p, reason, "the program of before is started again");
	p->restarts++;
	upgrade_parent_died(&p->upgrade, reason, clock_now_ns());
}

bool replacement_goes_on(struct parent *p)
{
	char reason[LAST_EXIT_REASON_BYTES];

	if (parent_told_to_stop(p))
		return false;
	switch (p->upgrade.state) {
	case UPGRADE_LOADING:
	case UPGRADE_DRAINING:
		note_the_old_ones_end(p);
		look_at_next_once_more(p);
		upgrade_parent_over(&p->upgrade, clock_now_ns());
		return true;
	case UPGRADE_STARTING:
		note_attempt(p);
		return true;
	case UPGRADE_BACK:
		obituary_reason(p, &p->serving, reason);
		upgrade_parent_died(&p->upgrade, reason, clock_now_ns());
		return false;
	default:
		return false;
	}
}

void replacement_failed(struct parent *p, const char *reason)
{
	if (p->upgrade.state == UPGRADE_STARTING)
		upgrade_parent_died(&p->upgrade, reason, clock_now_ns());
	if (p->upgrade.state == UPGRADE_BACK)
		upgrade_parent_died(&p->upgrade, reason, clock_now_ns());
	p->succeeding = false;
	p->trying = -1;
	serving_discard_next(p);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------------------ */

void replacement_begin(struct parent *p)
{
	char path[RUNDIR_PATH_BYTES];
	struct why why = WHY_INIT;

	p->upgrade_calls = all_calls;
	p->upgrade_calls.context = p;
	upgrade_parent_init(&p->upgrade, &p->upgrade_calls, p->config, &p->will->init);
	rundir_path(&p->dir, UPGRADE_SOCKET, path);
	if (upgrade_parent_listen(&p->upgrade, path, &why))
		log_warning("prefixfs upgrade cannot ask this daemon: %s", why.text);
}

void replacement_stop(struct parent *p)
{
	upgrade_parent_stop(&p->upgrade);
	serving_discard_next(p);
	p->succeeding = false;
	p->trying = -1;
}

void replacement_end(struct parent *p)
{
	serving_discard_next(p);
	if (p->upgrade.calls)
		upgrade_parent_end(&p->upgrade);
	closep(&p->program);
}
