/* SPDX-License-Identifier: Apache-2.0
 *
 * One serving process after the other, until all is over.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/log.h"
#include "fs/mount.h"
#include "fs/parent_state.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

void parent_say(struct parent *p, const char *sentence)
{
	if (p->terminal >= 0)
		dprintf(p->terminal, "prefixfsd: %s\n", sentence);
	log_error("%s", sentence);
}

bool parent_told_to_stop(const struct parent *p)
{
	return p->stopping || (!p->taken_away && !mount_present(p->config, p->device));
}

bool parent_has_to_write_down(const struct parent *p)
{
	bool newest;

	return p->stopping && !p->stop_ms && p->served && p->config->disk[0] && config_drain_s(p->config, &newest);
}

/* ---- stopping --------------------------------------------------------------------------------------------------------- */

/* By a process of its own, for what it may wait for: it has no descriptor of the mount's, so it keeps no connection. */
static void send_unmounting(struct parent *p)
{
	p->helper = fork();
	if (p->helper != 0)
		return;
	closep(&p->fuse);
	closep(&p->serving.keeper);
	closep(&p->next.keeper);
	mount_remove(p->config, p->device, false);
	_exit(0);
}

/* How long the serving process may take for its end. */
static uint64_t stop_ms(const struct config *config)
{
	bool newest;

	return PARENT_STOP_MS + config_drain_s(config, &newest) * 1000;
}

/* A second signal is in a hurry: what is not written down by then is lost. */
static void hurry(struct parent *p)
{
	uint64_t until = clock_now_ns() + PARENT_STOP_MS * 1000000ull;

	if (p->kill_ns <= until)
		return;
	log_info("a second signal: writing down ends");
	serving_tell_stop(p, true);
	p->stop_ms = PARENT_STOP_MS;
	p->kill_ns = until;
}

static void stop_serving(struct parent *p)
{
	serving_tell_stop(p, false);
	p->stop_ms = stop_ms(p->config);
	p->kill_ns = clock_now_ns() + p->stop_ms * 1000000ull;
	send_unmounting(p);
}

static void begin_stop(struct parent *p)
{
	if (p->stopping) {
		hurry(p);
		return;
	}
	p->stopping = true;
	log_info("stopping");
	replacement_stop(p);
	if (p->serving.pid && !p->serving.ended_ns && !p->serving.reaped)
		stop_serving(p);
}

static void kill_late(struct parent *p)
{
	log_error("the serving process did not stop in %" PRIu64 " ms and is killed", p->stop_ms);
	serving_kill(&p->serving);
	mount_abort(p->abort);
	p->serving.killed_ms = p->stop_ms;
	p->kill_ns = 0;
}

/* ---- signals ----------------------------------------------------------------------------------------------------------- */

static void reap(struct parent *p)
{
	pid_t pid;
	int status;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == p->serving.pid) {
			p->serving.reaped = true;
			p->serving.status = status;
		} else if (pid == p->next.pid) {
			p->next.reaped = true;
			p->next.status = status;
		} else if (upgrade_parent_reaped(&p->upgrade, pid, status)) {
			continue;
		} else if (pid == p->helper) {
			p->helper = 0;
		} else if (pid == p->unreaped.pid) {
			obituary_reaped(p, status);
		}
	}
}

void parent_hear_signals(struct parent *p)
{
	struct signalfd_siginfo info;

	while (read(p->signals, &info, sizeof(info)) == sizeof(info))
		if (info.ssi_signo != SIGCHLD)
			begin_stop(p);
	reap(p);
}

/* ---- watching ---------------------------------------------------------------------------------------------------------- */

static int ms_until(uint64_t now, uint64_t ns)
{
	return ns <= now ? 0 : (int)((ns - now) / 1000000) + 1;
}

static void gather_serving(const struct serving *s, struct pollfd *fds, unsigned *n)
{
	if (!s->pid)
		return;
	fds[(*n)++] = (struct pollfd){.fd = s->keeper, .events = s->giving ? POLLIN | POLLOUT : POLLIN};
	fds[(*n)++] = (struct pollfd){.fd = s->log, .events = POLLIN};
}

void parent_gather(struct parent *p, struct pollfd *fds, unsigned *n)
{
	fds[(*n)++] = (struct pollfd){.fd = p->signals, .events = POLLIN};
	gather_serving(&p->serving, fds, n);
	gather_serving(&p->next, fds, n);
	*n += upgrade_parent_fds(&p->upgrade, fds + *n);
}

static void wait_for_something(struct parent *p, uint64_t look_ns)
{
	const struct serving *s = &p->serving;
	uint64_t now = clock_now_ns();
	struct pollfd fds[PARENT_FDS];
	unsigned count = 0;
	int ms = ms_until(now, look_ns), upgrade_ms = upgrade_parent_timeout(&p->upgrade, now);

	parent_gather(p, fds, &count);
	if (upgrade_ms >= 0 && upgrade_ms < ms)
		ms = upgrade_ms;

	if (p->kill_ns && ms_until(now, p->kill_ns) < ms)
		ms = ms_until(now, p->kill_ns);
	if (s->ended_ns && ms > PARENT_REAP_MS)
		ms = PARENT_REAP_MS;
	if (s->killed_ms && ms > PARENT_LEAVE_MS / 4)
		ms = PARENT_LEAVE_MS / 4;
	if (poll(fds, count, ms) < 0 && errno != EINTR)
		log_error("poll: %s", strerror(errno));
}

/* Until the serving process has ended, or nothing is to be expected of it any more. */
static void watch(struct parent *p)
{
	uint64_t look_ns = clock_now_ns() + PARENT_LOOK_MS * 1000000ull, leave_ns = 0;

	for (;;) {
		wait_for_something(p, look_ns);
		serving_hear(p, &p->serving);
		parent_hear_signals(p);
		replacement_hear(p);
		uint64_t now = clock_now_ns();

		if (p->kill_ns && now >= p->kill_ns) {
			kill_late(p);
			leave_ns = now + PARENT_LEAVE_MS * 1000000ull;
		}
		if (now >= look_ns) {
			serving_look(p);
			look_ns = now + PARENT_LOOK_MS * 1000000ull;
		}
		if (serving_is_over(p, now) || (leave_ns && now >= leave_ns))
			break;
	}
	serving_hear(p, &p->serving); /* its last words */
}

/* The next serving process, from its start to its end. */
static int run_one(struct parent *p, struct why *why)
{
	int r = succession_mount(p, why);

	p->succeeding = false;
	if (!r && serving_waits(p)) {
		serving_promote(p);
	} else if (!r) {
		serving_discard_next(p);
		r = serving_start(p, &p->serving, why);
	}
	if (r)
		return r;
	serving_begin(p);
	if (p->stopping) /* it was told to while nobody served */
		stop_serving(p);
	watch(p);
	return 0;
}

/* Nobody can be started. True: an upgrade will. */
static bool fail(struct parent *p, const struct why *why)
{
	parent_say(p, why->text);
	replacement_failed(p, why->text);
	serving_clear(p);
	p->not_begun = p->restarts == 0 && !p->served;
	return p->served && succession_fall(p);
}

/* The serving process is over. True: there is to be another one; else *status is all that is left. */
static bool goes_on(struct parent *p, int *status)
{
	uint64_t pause_ms = 0;

	if (replacement_goes_on(p)) {
		serving_clear(p);
		return true;
	}
	enum obituary_verdict verdict = obituary_judge(p, &pause_ms);
	serving_clear(p);
	p->restarts++;
	*status = verdict == OBITUARY_STOPPED ? 0 : 1;
	if (verdict == OBITUARY_FALL)
		return succession_fall(p);
	if (verdict != OBITUARY_NEXT)
		return false;
	*status = 0;
	if (!succession_pause(p, pause_ms))
		return false;
	log_info(p->stopping ? "starting again to write down what memory holds" : "starting again");
	return true;
}

int parent_supervise(struct parent *p)
{
	int status = 1;

	for (;;) {
		struct why why = WHY_INIT;

		if (run_one(p, &why) ? !fail(p, &why) : !goes_on(p, &status))
			return status;
	}
}
