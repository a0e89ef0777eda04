/* SPDX-License-Identifier: Apache-2.0
 *
 * Between two serving processes (docs/survival.md).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "fs/connection.h"
#include "fs/log.h"
#include "fs/mount.h"
#include "fs/parent_state.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

/* ---- the mount --------------------------------------------------------------------------------------------------------- */

/* Somebody ended the connection, by /sys/fs/fuse/connections or umount -f: it is readable for ever, and nothing comes. */
static bool connection_ended(int fuse)
{
	struct pollfd look = {.fd = fuse, .events = POLLIN};

	return poll(&look, 1, 0) == 1 && look.revents & POLLERR;
}

/* May the next serving process go on with what the kernel was told? */
static bool stays(struct parent *p)
{
	struct why why = WHY_INIT;

	if (p->fuse < 0 || p->taken_away || connection_ended(p->fuse))
		return false;
	enum connection_state state = connection_judge(p->will, p->device, &why);
	if (state == CONNECTION_KEPT && !p->config->resend)
		why_set(&why, ENOTSUP, "resend: no");
	if (!why.error && p->remount)
		why_set(&why, EPROTO, "the serving process cannot take it over");
	if (why.error)
		log_info("%s is mounted anew: %s", p->config->mountpoint, why.text);
	return !why.error;
}

void succession_unmount(struct parent *p)
{
	if (p->fuse >= 0) {
		mount_remove(p->config, p->device, true);
		mount_abort(p->abort); /* a mount that was detached is not there to be removed */
	}
	closep(&p->fuse);
	closep(&p->abort);
}

int succession_mount(struct parent *p, struct why *why)
{
	if (stays(p)) {
		will_next(p->will, false);
		return 0;
	}
	succession_unmount(p);
	p->taken_away = p->remount = false;
	will_next(p->will, true);
	int r = mount_make(p->config, &p->fuse, &p->device, why);

	p->abort = r ? -1 : mount_open_abort(p->device);
	return r;
}

/* ---- the pause --------------------------------------------------------------------------------------------------------- */

bool succession_pause(struct parent *p, uint64_t ms)
{
	uint64_t until = clock_now_ns() + ms * 1000000;

	for (;;) {
		uint64_t now = clock_now_ns();
		struct pollfd wait = {.fd = p->signals, .events = POLLIN};

		parent_hear_signals(p);
		if (parent_told_to_stop(p))
			return false;
		if (now >= until)
			return true;
		uint64_t left_ms = (until - now) / 1000000 + 1;
		poll(&wait, 1, left_ms < PARENT_LOOK_MS ? (int)left_ms : PARENT_LOOK_MS);
	}
}

/* ---- the fallen mount ---------------------------------------------------------------------------------------------- */

static int fallen_mount(struct parent *p, struct why *why)
{
	int r = succession_mount(p, why);

	if (r)
		return r;
	if (fcntl(p->fuse, F_SETFL, fcntl(p->fuse, F_GETFL) | O_NONBLOCK))
		return why_set(why, errno, "/dev/fuse does not become non-blocking: %s", strerror(errno));
	return 0;
}

static void answer(struct parent *p)
{
	int r = 1;

	while (r >= 0) {
		struct pollfd fds[] = {{.fd = p->signals, .events = POLLIN}, {.fd = p->fuse, .events = POLLIN}};

		if (r == 0)
			poll(fds, 2, PARENT_LOOK_MS);
		parent_hear_signals(p);
		if (parent_told_to_stop(p))
			return;
		r = fallen_answer(&p->fallen);
	}
}

void succession_fall(struct parent *p)
{
	struct why why = WHY_INIT;
	char text[LAST_EXIT_BYTES];
	long bytes = rundir_read(&p->dir, "last_exit", text, sizeof(text));

	if (parent_told_to_stop(p))
		return;
	if (fallen_mount(p, &why)) {
		parent_say(p, why.text);
		return;
	}
	bytes = snprintf(p->fallen_text, sizeof(p->fallen_text), "state: fallen\n%s%s", bytes > 0 ? text : "reason: ",
		bytes > 0 ? "" : p->last_exit);
	log_info("%s answers EIO from now on, and in health why", p->config->mountpoint);
	fallen_begin(&p->fallen, p->fuse, p->will, p->fallen_text, (size_t)bytes);
	answer(p);
	log_info("the fallen mount ends");
}
