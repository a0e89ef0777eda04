/* SPDX-License-Identifier: Apache-2.0
 *
 * One serving process, as the parent has it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/heirlooms.h"
#include "fs/log.h"
#include "fs/memory_limit.h"
#include "fs/mount.h"
#include "fs/parent_state.h"
#include "fs/serve.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

#define DYING_LOOKS 2 /* in a row, until its connection is ended; as many again, until it is gone on without */
#define START_WATCHDOGS 10u /* times watchdog_s: what a start may take that says nothing */

/* ---- the start ------------------------------------------------------------------------------------------------------- */

/* With the one that is tried. */
static unsigned upgrades(const struct parent *p)
{
	return p->upgrades + (p->trying >= 0);
}

__attribute__((noreturn)) static void become(struct parent *p, int keeper, int log)
{
	char name[] = "prefixfsd", serve[sizeof(p->config->serve) + 8], arguments[64][CONFIG_TEXT_BYTES + 64], *argv[67];
	int inherited[] = {p->fuse, keeper, p->listener, p->will_fd};
	int program = p->trying >= 0 ? p->trying : p->program;
	unsigned n = 0;
	sigset_t none;

	for (unsigned i = 0; i < sizeof(inherited) / sizeof(inherited[0]); i++)
		fcntl(inherited[i], F_SETFD, 0);
	dup2(STDERR_FILENO, STDOUT_FILENO); /* for log_by_itself */
	dup2(log, STDERR_FILENO);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	snprintf(serve, sizeof(serve), "--serve=%d,%d,%d,%d,%u,%u,%u,%s", p->fuse, keeper, p->listener, p->will_fd, p->device,
		p->restarts, upgrades(p), p->last_exit);
	argv[0] = name;
	while (n < 64 && config_argument(p->config, n, arguments[n], sizeof(arguments[n]))) {
		argv[n + 1] = arguments[n];
		n++;
	}
	argv[n + 1] = serve;
	argv[n + 2] = p->config->mountpoint;
	argv[n + 3] = NULL;
	if (program >= 0)
		fexecve(program, argv, environ);
	else
		execv("/proc/self/exe", argv);
	dprintf(STDERR_FILENO, "the serving process cannot be started: %s\n", strerror(errno));
	_exit(SERVE_EXIT_REFUSED);
}

static void begin(struct parent *p, struct serving *s, pid_t pid, int keeper, int log)
{
	fcntl(keeper, F_SETFL, O_NONBLOCK);
	fcntl(log, F_SETFL, O_NONBLOCK);
	memset(s, 0, sizeof(*s));
	s->pid = pid;
	s->keeper = keeper;
	s->log = log;
	s->mounts = p->mounts;
	s->oom_kills = memory_limit_kills("");
	s->populating = p->restarts + upgrades(p) > 0; /* it begins with that, and says when it is over */
}

int serving_start(struct parent *p, struct serving *s, struct why *why)
{
	int pair[2], log[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return why_set(why, errno, "socketpair: %s", strerror(errno));
	if (pipe2(log, O_CLOEXEC) != 0) {
		close(pair[0]);
		close(pair[1]);
		return why_set(why, errno, "pipe: %s", strerror(errno));
	}
	pid_t pid = fork();
	if (pid == 0)
		become(p, pair[1], log[1]);
	close(pair[1]);
	close(log[1]);
	begin(p, s, pid > 0 ? pid : 0, pair[0], log[0]);
	return pid < 0 ? why_set(why, errno, "fork: %s", strerror(errno)) : 0;
}

void serving_begin(struct parent *p)
{
	p->serving.giving = true;
}

static void clear(struct serving *s)
{
	closep(&s->keeper);
	closep(&s->log);
	s->pid = 0;
}

void serving_clear(struct parent *p)
{
	clear(&p->serving);
	p->kill_ns = 0;
}

void serving_promote(struct parent *p)
{
	serving_clear(p);
	p->serving = p->next;
	p->next = (struct serving){.keeper = -1, .log = -1};
}

bool serving_waits(const struct parent *p)
{
	return p->next.pid && !p->next.reaped && !p->next.ended_ns && p->next.mounts == p->mounts;
}

/* Killed before its channel is closed: it would take that for the parent's end, and the mount away. */
void serving_discard_next(struct parent *p)
{
	if (p->next.pid)
		serving_kill(&p->next);
	clear(&p->next);
}

/* ---- its log ----------------------------------------------------------------------------------------------------------- */

/* Whoever waits for the start sees what the serving process warns of, and does not read the log. */
static void show_warning(const struct parent *p, const char *line)
{
	const char *text = strstr(line, " warning: ");

	if (p->terminal >= 0 && text)
		dprintf(p->terminal, "prefixfsd: %s\n", text + 1);
}

static void note_line_bytes(const struct parent *p, struct serving *s, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		char *line = s->lines[s->line_count % PARENT_LAST_LINES];

		if (text[i] == '\n') {
			line[s->partial] = 0;
			show_warning(p, line);
			s->partial = 0;
			s->line_count++;
		} else if (s->partial < PARENT_LINE_BYTES - 1) {
			line[s->partial++] = text[i];
			line[s->partial] = 0;
		}
	}
}

static void copy_log(const struct parent *p, struct serving *s)
{
	char text[4096];
	ssize_t n;

	if (s->log < 0)
		return;
	while ((n = read(s->log, text, sizeof(text))) > 0) {
		if (write(STDERR_FILENO, text, (size_t)n) < 0) {
			/* The log's place is full or gone; the last lines are remembered all the same. */
		}
		note_line_bytes(p, s, text, (size_t)n);
	}
	if (n == 0)
		closep(&s->log);
}

const char *serving_last_line(const struct serving *s, const char *otherwise)
{
	return s->line_count ? s->lines[(s->line_count - 1) % PARENT_LAST_LINES] : otherwise;
}

/* ---- what it says -------------------------------------------------------------------------------------------------- */

void serving_release_launcher(struct parent *p)
{
	if (p->launcher >= 0) {
		if (write(p->launcher, "", 1) < 0)
			log_debug("nobody waited for the start");
		closep(&p->launcher);
	}
	closep(&p->terminal);
}

static void on_ready(struct parent *p)
{
	p->serving.ready = p->served = true;
	p->serving.ready_ns = clock_now_ns();
	copy_log(p, &p->serving); /* whoever waits is to see what it warned of before that */
	log_info("serving %s, pid %d", p->config->mountpoint, (int)p->serving.pid);
	serving_release_launcher(p);
	replacement_ready(p);
}

/* One that waits yet has nothing to say. */
static void hear(struct parent *p, const struct keeper_message *m, int fd)
{
	switch (m->kind) {
	case KEEPER_READY:
		on_ready(p);
		break;
	case KEEPER_POPULATING:
		p->serving.populating = m->number;
		if (!m->number) {
			log_info("the serving process has its floors");
			deaths_populated(&p->deaths);
		}
		break;
	case KEEPER_KEEP:
		kept_add(&p->kept, m, fd);
		return;
	case KEEPER_DROP:
		kept_drop(&p->kept, m);
		break;
	default:
		break;
	}
	closep(&fd);
}

static void give(struct parent *p)
{
	struct serving *s = &p->serving;
	int r = heirlooms_give(&p->kept, s->keeper, &s->given);

	s->giving = r == -EAGAIN;
	if (r && r != -EAGAIN && r != -EPIPE && r != -ECONNRESET)
		log_error("what is held for the serving process cannot be given to it: %s", strerror(-r));
	if (!s->giving && p->stopping)
		serving_tell_stop(p, false); /* it was asked for meanwhile */
}

static void read_keeper(struct parent *p, struct serving *s)
{
	struct keeper_message m;
	int fd, r;

	while (s->keeper >= 0 && (r = keeper_receive(s->keeper, &m, &fd)) != -EAGAIN) {
		if (r == 1 && s == &p->serving) {
			hear(p, &m, fd);
			continue;
		}
		closep(&fd);
		if (r == 1) {
			s->waits = s->waits || m.kind == KEEPER_WAITS;
			continue;
		}
		closep(&s->keeper);
		s->giving = false;
		s->ended_ns = clock_now_ns();
	}
}

void serving_hear(struct parent *p, struct serving *s)
{
	copy_log(p, s);
	read_keeper(p, s);
	if (s == &p->serving && s->giving)
		give(p);
}

void serving_tell_stop(struct parent *p, bool hurry)
{
	if (p->serving.keeper >= 0 && !p->serving.giving)
		keeper_send(p->serving.keeper, KEEPER_STOP, "", "", hurry, -1);
}

void serving_hand_over(struct parent *p)
{
	struct serving *s = &p->serving;

	s->handed_over = true;
	if (s->giving || keeper_send(s->keeper, KEEPER_HANDOVER, "", "", 0, -1))
		serving_kill(s);
}

/* ---- looks ----------------------------------------------------------------------------------------------------------- */

struct state {
	char letter; /* of its first thread; 0 = it is not there */
	bool dumping, traced;
};

static void read_state(pid_t pid, struct state *ret)
{
	char path[32], text[4096];
	ssize_t n;

	*ret = (struct state){0};
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return;
	text[n] = 0;
	const char *letter = strstr(text, "\nState:\t"), *tracer = strstr(text, "\nTracerPid:\t");
	ret->letter = letter ? letter[8] : 0;
	ret->dumping = strstr(text, "\nCoreDumping:\t1");
	ret->traced = tracer && tracer[12] != '0';
}

/* Has it died without being able to end? A thread of it may hang in a disk's call, or a core dump may wait for its notifier, which is on
 * the way into one of the mount's own folders, whose lock's holder waits for an answer that nobody gives any more. */
static void look_whether_it_ends(struct parent *p, const struct state *state)
{
	struct serving *s = &p->serving;

	s->dying = s->killed || state->letter == 'Z' || state->dumping ? s->dying + 1 : 0;
	if (s->dying == DYING_LOOKS) {
		log_error("the serving process died and cannot end; its connection is ended");
		p->taken_away = p->taken_away || !parent_told_to_stop(p);
		mount_remove(p->config, p->device, true);
		mount_abort(p->abort); /* a mount that was detached is not there to be removed */
	}
	s->given_up = s->dying >= 2 * DYING_LOOKS && !state->dumping;
}

/* How many looks it may stand still; 0: as long as it likes. Before it serves nothing beats but adoption, and a start from a large disk
 * takes its time; while it writes down nothing does. A process that is stopped does not move whatever it is about. */
static uint64_t most_looks(const struct parent *p, const struct state *state)
{
	uint32_t phase = atomic_load_explicit(&p->will->phase, memory_order_relaxed);
	uint64_t most = p->config->watchdog_s;

	if (state->traced || state->letter == 'Z' || state->dumping)
		return 0;
	if (state->letter == 'T' || phase == WILL_ADOPTING || (phase == WILL_SERVING && p->serving.ready))
		return most;
	return phase == WILL_STARTING || phase == WILL_SERVING ? START_WATCHDOGS * most : 0;
}

static void look_whether_it_moves(struct parent *p, const struct state *state)
{
	struct serving *s = &p->serving;
	uint64_t beats = atomic_load_explicit(&p->will->beats, memory_order_relaxed), most = most_looks(p, state);

	s->still = beats == s->beats && most ? s->still + 1 : 0;
	s->beats = beats;
	if (!most || s->still < most || s->killed || p->stopping)
		return;
	s->hung_s = most;
	s->was_stopped = state->letter == 'T';
	log_error("nothing moved in the serving process for %u looks, one a second%s; it is killed", s->still,
		s->was_stopped ? ", for it was stopped" : "");
	serving_kill(s);
}

void serving_look(struct parent *p)
{
	struct state state;

	if (!p->serving.pid || p->serving.reaped || p->serving.ended_ns)
		return;
	read_state(p->serving.pid, &state);
	look_whether_it_moves(p, &state);
	look_whether_it_ends(p, &state);
}

/* ---- the end ----------------------------------------------------------------------------------------------------------- */

void serving_kill(struct serving *s)
{
	if (s->pid && !s->reaped)
		kill(s->pid, SIGKILL);
	s->killed = true;
}

bool serving_is_over(struct parent *p, uint64_t now_ns)
{
	struct serving *s = &p->serving;

	if (s->reaped || s->given_up)
		return true;
	if (!s->ended_ns)
		return false;
	if (!s->killed)
		serving_kill(s);
	if (s->handed_over && !p->stopping)
		return true; /* how it ended is nobody's question */
	/* What was told to stop is not started again: there is time to hear how it ended, until kill_ns. */
	return !p->stop_ms && now_ns >= s->ended_ns + PARENT_REAP_MS * 1000000ull;
}
