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
#include <unistd.h>

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
	p->mounts++;
	return r;
}

/* ---- the pause --------------------------------------------------------------------------------------------------------- */

bool succession_pause(struct parent *p, uint64_t ms)
{
	uint64_t until = clock_now_ns() + ms * 1000000;

	for (;;) {
		uint64_t now = clock_now_ns();
		struct pollfd fds[PARENT_FDS];
		unsigned count = 0;

		parent_hear_signals(p);
		replacement_hear(p);
		if (parent_told_to_stop(p))
			return parent_has_to_write_down(p);
		if (now >= until || p->succeeding)
			return true;
		uint64_t left_ms = (until - now) / 1000000 + 1;
		int due = upgrade_parent_timeout(&p->upgrade, now), most = left_ms < PARENT_LOOK_MS ? (int)left_ms : PARENT_LOOK_MS;

		parent_gather(p, fds, &count);
		poll(fds, count, due >= 0 && due < most ? due : most);
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

/* True: an upgrade takes over. */
static bool answer(struct parent *p)
{
	int r = 1;

	while (r >= 0) {
		struct pollfd fds[PARENT_FDS + 1] = {{.fd = p->fuse, .events = POLLIN}};
		int ms = upgrade_parent_timeout(&p->upgrade, clock_now_ns());
		unsigned count = 1;

		parent_gather(p, fds, &count);
		if (r == 0)
			poll(fds, count, ms >= 0 && ms < PARENT_LOOK_MS ? ms : PARENT_LOOK_MS);
		parent_hear_signals(p);
		replacement_hear(p);
		if (parent_told_to_stop(p))
			return false;
		if (p->succeeding)
			return true;
		r = fallen_answer(&p->fallen);
	}
	return false;
}

static size_t write_text(struct parent *p)
{
	char text[LAST_EXIT_BYTES];
	long bytes = rundir_read(&p->dir, "last_exit", text, sizeof(text));

	return (size_t)snprintf(p->fallen_text, sizeof(p->fallen_text), "state: fallen\nparent: %d\nsocket: %s/sock\n%s%s", (int)getpid(),
		p->dir.path, bytes > 0 ? text : "reason: ", bytes > 0 ? "" : p->last_exit);
}

bool succession_fall(struct parent *p)
{
	struct why why = WHY_INIT;

	if (parent_told_to_stop(p)) {
		obituary_undrained(p);
		return false;
	}
	if (fallen_mount(p, &why)) {
		parent_say(p, why.text);
		return false;
	}
	size_t bytes = write_text(p);
	log_info("%s answers EIO from now on, and in health why", p->config->mountpoint);
	fallen_begin(&p->fallen, p->fuse, p->will, p->fallen_text, bytes);
	bool again = answer(p);
	log_info("the fallen mount ends");
	if (again)
		p->deaths = (struct deaths){0};
	else
		obituary_undrained(p);
	return again;
}
