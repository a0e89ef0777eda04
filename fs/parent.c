/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/parent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fs/deaths.h"
#include "fs/disk_folder.h"
#include "fs/keeper.h"
#include "fs/last_exit.h"
#include "fs/log.h"
#include "fs/memory_limit.h"
#include "fs/mount.h"
#include "fs/rundir.h"
#include "fs/serve.h"
#include "fs/version.h"
#include "fs/will.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

#define LAST_LINES 20
#define LINE_BYTES 512
#define STOP_MS 900 /* a serving process that has not ended by then after STOP, and after writing down, is killed */
#define LOOK_MS 1000 /* how often the serving process is looked at */

struct parent {
	struct config *config;
	struct rundir dir;
	int launcher;    /* pipe to the process that waits for READY, or -1 */
	int terminal;    /* standard error of the start, in the background until READY; or -1 */
	int signals;     /* signalfd */
	int listener;    /* the clients' socket, inherited by every serving process */
	struct will *will; /* and its memory file, inherited likewise */
	int will_fd;
	int fuse;        /* /dev/fuse of the present mount, or -1 */
	unsigned device; /* of the present mount */
	int abort;       /* what ends its connection, or -1 */
	int keeper, log; /* channel to the serving process, its standard error; or -1 */
	pid_t child;
	bool ready;       /* READY came from the present serving process */
	bool stopping;    /* a signal asked for the end */
	bool taken_away;  /* the present mount, by us, since its serving process was half dead */
	bool not_begun;   /* the start failed: nothing was ever served */
	uint64_t ready_ns; /* when READY came */
	uint64_t kill_ns; /* when to kill it, 0 = not */
	uint64_t stop_ms; /* that it was given after STOP */
	uint64_t killed_ms; /* of stop_ms, when it was killed for it; 0 = it was not */
	uint64_t oom_kills; /* memory_limit_kills before the present serving process */
	unsigned half_dead; /* looks in a row that found it so */
	unsigned restarts;
	char last_exit[448]; /* for health: how the serving process ended last, even where the file cannot be written */
	struct kept kept;
	bool populating; /* the serving process is making floors present */
	struct deaths deaths;
	char lines[LAST_LINES][LINE_BYTES]; /* a ring of what the serving process logged */
	unsigned line_count;
	size_t partial; /* bytes of the last, unfinished line */
};

/* For whoever started us: the log, and the terminal while somebody waits there. */
static void say(struct parent *p, const char *sentence)
{
	if (p->terminal >= 0)
		dprintf(p->terminal, "prefixfsd: %s\n", sentence);
	log_error("%s", sentence);
}

static int open_listener(struct parent *p, struct why *why)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[RUNDIR_PATH_BYTES];
	cleanup(closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return why_set(why, errno, "socket: %s", strerror(errno));
	rundir_path(&p->dir, "sock", path);
	snprintf(address.sun_path, sizeof(address.sun_path), "%.*s", (int)sizeof(address.sun_path) - 1, path);
	unlink(path);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || chmod(path, 0666) != 0 ||
		listen(fd, 128) != 0)
		return why_set(why, errno, "socket %s: %s", path, strerror(errno));
	p->listener = STEAL_FD(fd);
	return 0;
}

static int open_signals(struct parent *p, struct why *why)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	p->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return p->signals < 0 ? why_set(why, errno, "signalfd: %s", strerror(errno)) : 0;
}

/* In the background the log goes to a file from here on; the terminal is kept for what READY is waited with. */
static int open_log(struct parent *p, struct why *why)
{
	char path[RUNDIR_PATH_BYTES];

	if (p->config->foreground)
		return 0;
	if (p->config->log_file[0])
		snprintf(path, sizeof(path), "%s", p->config->log_file);
	else
		rundir_path(&p->dir, "log", path);
	cleanup(closep) int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0)
		return why_set(why, errno, "log_file: %s: %s", path, strerror(errno));
	p->terminal = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	dup2(fd, STDERR_FILENO);
	return 0;
}

static void spare_from_oom_killer(void)
{
	cleanup(closep) int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "-900", 4) < 0)
		log_debug("oom_score_adj stays as it is: %s", strerror(errno));
}

/* A client that maps and a session that is kept cost descriptors: take what is allowed. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

__attribute__((noreturn)) static void become_serving(struct parent *p, int keeper, int log)
{
	char name[] = "prefixfsd", serve[sizeof(p->config->serve) + 8], arguments[64][CONFIG_TEXT_BYTES + 64], *argv[67];
	int inherited[] = {p->fuse, keeper, p->listener, p->will_fd};
	unsigned n = 0;
	sigset_t none;

	for (unsigned i = 0; i < sizeof(inherited) / sizeof(inherited[0]); i++)
		fcntl(inherited[i], F_SETFD, 0);
	dup2(log, STDERR_FILENO);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	snprintf(serve, sizeof(serve), "--serve=%d,%d,%d,%d,%u,%u,%s", p->fuse, keeper, p->listener, p->will_fd, p->device,
		p->restarts, p->last_exit);
	argv[0] = name;
	while (n < 64 && config_argument(p->config, n, arguments[n], sizeof(arguments[n]))) {
		argv[n + 1] = arguments[n];
		n++;
	}
	argv[n + 1] = serve;
	argv[n + 2] = p->config->mountpoint;
	argv[n + 3] = NULL;
	execv("/proc/self/exe", argv);
	dprintf(STDERR_FILENO, "the serving process cannot be started: %s\n", strerror(errno));
	_exit(SERVE_EXIT_REFUSED);
}

static int start_serving(struct parent *p, struct why *why)
{
	int pair[2], log[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return why_set(why, errno, "socketpair: %s", strerror(errno));
	if (pipe2(log, O_CLOEXEC) != 0) {
		close(pair[0]);
		close(pair[1]);
		return why_set(why, errno, "pipe: %s", strerror(errno));
	}
	p->ready = p->taken_away = false;
	p->killed_ms = 0;
	p->oom_kills = memory_limit_kills("");
	p->populating = p->restarts > 0; /* it begins with that, and says when it is over */
	p->partial = 0;
	p->line_count = 0;
	will_next(p->will, true);
	p->child = fork();
	if (p->child == 0)
		become_serving(p, pair[1], log[1]);
	close(pair[1]);
	close(log[1]);
	p->keeper = pair[0];
	p->log = log[0];
	fcntl(p->log, F_SETFL, O_NONBLOCK);
	return p->child < 0 ? why_set(why, errno, "fork: %s", strerror(errno)) : 0;
}

/* Whoever waits for the start sees what the serving process warns of, and does not read the log. */
static void show_warning(const struct parent *p, const char *line)
{
	const char *text = strstr(line, " warning: ");

	if (p->terminal >= 0 && text)
		dprintf(p->terminal, "prefixfsd: %s\n", text + 1);
}

static void note_line_bytes(struct parent *p, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		char *line = p->lines[p->line_count % LAST_LINES];

		if (text[i] == '\n') {
			line[p->partial] = 0;
			show_warning(p, line);
			p->partial = 0;
			p->line_count++;
		} else if (p->partial < LINE_BYTES - 1) {
			line[p->partial++] = text[i];
			line[p->partial] = 0;
		}
	}
}

static void copy_log(struct parent *p)
{
	char text[4096];
	ssize_t n;

	if (p->log < 0)
		return;
	while ((n = read(p->log, text, sizeof(text))) > 0) {
		if (write(STDERR_FILENO, text, (size_t)n) < 0) {
			/* The log's place is full or gone; the last lines are remembered all the same. */
		}
		note_line_bytes(p, text, (size_t)n);
	}
	if (n == 0) {
		close(p->log);
		p->log = -1;
	}
}

static void release_launcher(struct parent *p)
{
	if (p->launcher >= 0) {
		if (write(p->launcher, "", 1) < 0)
			log_debug("nobody waited for the start");
		close(p->launcher);
		p->launcher = -1;
	}
	if (p->terminal >= 0)
		close(p->terminal);
	p->terminal = -1;
}

static void read_keeper(struct parent *p)
{
	struct keeper_message m;
	int fd, r;

	while (p->keeper >= 0 && (r = keeper_receive(p->keeper, &m, &fd)) != -EAGAIN) {
		if (r <= 0) {
			close(p->keeper);
			p->keeper = -1;
			return;
		}
		switch (m.kind) {
		case KEEPER_READY:
			p->ready = true;
			p->ready_ns = clock_now_ns();
			copy_log(p); /* whoever waits is to see what it warned of before that */
			log_info("serving %s, pid %d", p->config->mountpoint, (int)p->child);
			release_launcher(p);
			break;
		case KEEPER_POPULATING:
			p->populating = m.number;
			if (!p->populating) {
				log_info("the serving process has its floors");
				deaths_populated(&p->deaths);
			}
			break;
		case KEEPER_KEEP:
			kept_add(&p->kept, &m, fd);
			break;
		case KEEPER_DROP:
			kept_drop(&p->kept, &m);
			break;
		default:
			if (fd >= 0)
				close(fd);
		}
	}
}

/* How long the serving process may take for its end. */
static uint64_t stop_ms(const struct config *config)
{
	bool newest;

	return STOP_MS + (config->disk[0] ? SERVE_DISK_END_MS : 0) + config_drain_s(config, &newest) * 1000;
}

/* A second signal is in a hurry: what is not written down by then is lost. */
static void hurry(struct parent *p)
{
	uint64_t most_ms = STOP_MS + SERVE_DISK_END_MS, until = clock_now_ns() + most_ms * 1000000ull;

	if (p->kill_ns <= until)
		return;
	log_info("a second signal: writing down ends");
	keeper_send(p->keeper, KEEPER_STOP, "", "", 1, -1);
	p->stop_ms = most_ms;
	p->kill_ns = until;
}

static void begin_stop(struct parent *p)
{
	if (p->stopping) {
		hurry(p);
		return;
	}
	p->stopping = true;
	log_info("stopping");
	if (p->child <= 0)
		return;
	mount_remove(p->config, p->device, false);
	keeper_send(p->keeper, KEEPER_STOP, "", "", 0, -1);
	p->stop_ms = stop_ms(p->config);
	p->kill_ns = clock_now_ns() + p->stop_ms * 1000000ull;
}

/* True: the serving process ended, with *status. */
static bool read_signals(struct parent *p, int *status)
{
	struct signalfd_siginfo info;
	bool ended = false;

	while (read(p->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			ended |= p->child > 0 && waitpid(p->child, status, WNOHANG) == p->child;
		else
			begin_stop(p);
	}
	return ended;
}

/* Has the serving process died without being able to end? Its threads may be on the way into the mount's own folders (a
 * cache invalidation takes a folder's lock, whose holder waits for an answer that nobody gives any more): then neither a
 * core dump nor SIGKILL gets to its end before the connection is ended. */
static bool half_dead(pid_t child)
{
	char path[32], text[4096];
	cleanup(closep) int fd = -1;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)child);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return false;
	text[n] = '\0';
	return strstr(text, "\nState:\tZ") || strstr(text, "\nCoreDumping:\t1");
}

/* By a signal, or by an unmount: whoever took the mount away, if it was not us, wants no other one. */
static bool told_to_stop(const struct parent *p)
{
	return p->stopping || (!p->taken_away && !mount_present(p->config, p->device));
}

/* Called about once a second: ends the connection of a process that was half dead twice in a row. */
static void free_half_dead(struct parent *p)
{
	p->half_dead = p->child > 0 && half_dead(p->child) ? p->half_dead + 1 : 0;
	if (p->half_dead != 2)
		return;
	log_error("the serving process died and cannot end; its connection is ended");
	p->taken_away = told_to_stop(p) ? p->taken_away : true;
	mount_remove(p->config, p->device, true);
	mount_abort(p->abort); /* a mount that was detached is not there to be removed */
}

/* Until the serving process has ended; its wait status. */
static int watch(struct parent *p)
{
	int status = 0;

	for (;;) {
		struct pollfd fds[] = {
			{.fd = p->signals, .events = POLLIN},
			{.fd = p->keeper, .events = POLLIN},
			{.fd = p->log, .events = POLLIN},
		};
		int timeout = LOOK_MS;

		if (p->kill_ns) {
			uint64_t now = clock_now_ns();

			if (now >= p->kill_ns) {
				log_error("the serving process did not stop in %" PRIu64 " ms and is killed", p->stop_ms);
				kill(p->child, SIGKILL);
				mount_remove(p->config, p->device, true);
				mount_abort(p->abort);
				p->killed_ms = p->stop_ms;
				p->kill_ns = 0;
			} else {
				timeout = (int)((p->kill_ns - now) / 1000000) + 1;
			}
		}
		int events = poll(fds, 3, timeout < LOOK_MS ? timeout : LOOK_MS);

		if (events < 0 && errno != EINTR) {
			log_error("poll: %s", strerror(errno));
			return 0;
		}
		if (events == 0)
			free_half_dead(p);
		copy_log(p);
		read_keeper(p);
		if (read_signals(p, &status)) {
			copy_log(p);
			read_keeper(p);
			return status;
		}
	}
}

static bool killed(int status)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* What the parent knows of the process that ended with @status. @lines: room for pointers to what it logged. */
static void gather_facts(const struct parent *p, int status, const char *lines[LAST_LINES], struct last_exit_facts *ret)
{
	uint64_t now = clock_now_ns();
	struct memory_limit limit;
	unsigned end = p->line_count + (p->partial ? 1 : 0), first = end > LAST_LINES ? end - LAST_LINES : 0;

	memory_limit_find("", p->config->hugepages, &limit);
	*ret = (struct last_exit_facts){
		.status = status,
		.pid = p->child,
		.stop_ms = p->killed_ms,
		.populating = p->populating,
		.ready = p->ready,
		.served_ns = p->ready ? now - p->ready_ns : 0,
		.died_ns = now,
		.oom_before = p->oom_kills,
		.oom_after = memory_limit_kills(""),
		.memory_limit = limit.bytes == UINT64_MAX ? 0 : limit.bytes,
		.will = p->will,
		.lines = lines,
		.line_count = end - first,
		.mount = p->config->mountpoint,
		.version = version_text,
		.restarts = p->restarts,
		.sessions = kept_count(&p->kept, "session"),
		.spaces = kept_count(&p->kept, "segment"),
	};
	for (unsigned i = first; i < end; i++)
		lines[i - first] = p->lines[i % LAST_LINES];
}

/* How long the next start waits. */
static uint64_t back_off_ms(const struct parent *p)
{
	unsigned recent = p->deaths.recent;

	return recent < 2 ? 0 : 100ull << (recent > 7 ? 5 : recent - 2);
}

/* One more line; that it cannot be written is said for last_exit beside it. */
static void write_deaths(const struct parent *p, const struct last_exit_facts *facts, const char *reason)
{
	char text[LAST_EXIT_DEATHS_BYTES];
	long before = rundir_read(&p->dir, "deaths", text, sizeof(text));
	size_t bytes = last_exit_add_death(facts, reason, time(NULL), text, before < 0 ? 0 : (size_t)before);

	rundir_write(&p->dir, "deaths", text, bytes);
}

/* Keeps the reason in the run folder, and for the next serving process. */
static void note_last_exit(struct parent *p, const struct last_exit_facts *facts, const char *reason)
{
	char text[LAST_EXIT_BYTES];
	size_t bytes = last_exit_text(facts, reason, time(NULL), text);
	int r = rundir_write(&p->dir, "last_exit", text, bytes);

	write_deaths(p, facts, reason);
	if (!r) {
		snprintf(p->last_exit, sizeof(p->last_exit), "%.240s; more in %s/last_exit", reason, p->dir.path);
		return;
	}
	snprintf(p->last_exit, sizeof(p->last_exit), "%.240s; %s/last_exit cannot be written: %s", reason, p->dir.path,
		strerror(-r));
	log_warning("%s/last_exit cannot be written: %s", p->dir.path, strerror(-r));
}

/* The reason that an earlier run on this mount point left. */
static void recall_last_exit(struct parent *p)
{
	char text[512], when[32] = "an unknown time";

	if (rundir_read(&p->dir, "last_exit", text, sizeof(text)) <= 0 || strncmp(text, "reason: ", 8) != 0)
		return;
	char *end = strchr(text, '\n');
	if (end)
		sscanf(end, "\ntime: %31[^\n]", when);
	text[strcspn(text, "\n")] = 0;
	snprintf(p->last_exit, sizeof(p->last_exit), "%.160s, before this start, at %s; more in %s/last_exit", text + 8, when,
		p->dir.path);
}

/* What a serving process had is let go. */
static void clear_serving(struct parent *p)
{
	if (p->fuse >= 0)
		mount_remove(p->config, p->device, true);
	closep(&p->fuse);
	closep(&p->abort);
	closep(&p->keeper);
	closep(&p->log);
	kept_clear(&p->kept);
	p->child = 0;
	p->kill_ns = 0;
}

/* Waits before the next start, longer with every death. False: a signal asked for the end meanwhile. */
static bool back_off(struct parent *p)
{
	uint64_t until = clock_now_ns() + back_off_ms(p) * 1000000;
	int status;

	for (;;) {
		uint64_t now = clock_now_ns();
		struct pollfd wait = {.fd = p->signals, .events = POLLIN};

		read_signals(p, &status);
		if (p->stopping || now >= until)
			return !p->stopping;
		poll(&wait, 1, (int)((until - now) / 1000000) + 1);
	}
}

/* Why it is not started again, as a sentence; empty: it is. */
static void give_up(const struct parent *p, enum deaths_verdict verdict, const char *how, char *sentence, size_t bytes)
{
	sentence[0] = 0;
	if (verdict == DEATHS_OF_MEMORY)
		snprintf(sentence, bytes,
			"giving up: the serving process was killed %u times in a row while it populated memory; there is "
			"less than the floors of the namespaces ask for; %s/last_exit says more",
			p->deaths.populating, p->dir.path);
	if (verdict == DEATHS_TOO_OFTEN)
		snprintf(sentence, bytes, "giving up: the serving process died %u times in %d s (last: %s); %s/last_exit says more",
			p->deaths.recent, DEATHS_WITHIN_S, how, p->dir.path);
}

/* Whoever waits for the start is told what it refused. */
static void say_refused(struct parent *p, const char *how)
{
	const char *last = p->line_count ? p->lines[(p->line_count - 1) % LAST_LINES] : how;
	const char *text = strstr(last, " error: ");

	say(p, text ? text + strlen(" error: ") : last);
}

/* A process that was not told to end: whether there is a next one, and the account of it. The exit status, or -1. */
static int judge_death(struct parent *p, int status, bool refused, bool told)
{
	char how[LAST_EXIT_REASON_BYTES], end[640], next[64], sentence[LAST_EXIT_REASON_BYTES + 64];
	const char *lines[LAST_LINES];
	struct last_exit_facts facts;
	enum deaths_verdict verdict = DEATHS_GO_ON;

	gather_facts(p, status, lines, &facts);
	last_exit_reason(&facts, how);
	if (!refused && !told)
		verdict = deaths_note(&p->deaths, facts.died_ns, killed(status) && p->populating, (unsigned)p->config->deaths);
	give_up(p, verdict, how, end, sizeof(end));
	snprintf(next, sizeof(next), "started again after %" PRIu64 " ms", back_off_ms(p));
	facts.next = refused ? "not started again, it refuses" : told ? "not started again, it was to stop" : end[0] ? end : next;
	note_last_exit(p, &facts, how);
	if (refused) {
		say_refused(p, how);
		return 1;
	}
	snprintf(sentence, sizeof(sentence), "the serving process died: %s", how);
	say(p, sentence);
	if (told)
		log_info("it was told to stop and is not started again");
	else if (end[0])
		say(p, end);
	return told || end[0] ? 1 : -1;
}

/* The exit status when all is over, or -1: start it again. */
static int judge(struct parent *p, int status)
{
	bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	bool refused = !p->ready && WIFEXITED(status) && WEXITSTATUS(status) == SERVE_EXIT_REFUSED;
	bool told = told_to_stop(p);

	if (clean && told) {
		log_info(p->stopping ? "stopped" : "%s was unmounted", p->config->mountpoint);
		return 0;
	}
	p->not_begun = refused && p->restarts == 0;
	if (!p->not_begun)
		return judge_death(p, status, refused, told);
	say_refused(p, "exit status 3");
	return 1;
}

static int supervise(struct parent *p)
{
	struct why why = WHY_INIT;

	for (;;) {
		int r = mount_make(p->config, &p->fuse, &p->device, &why);

		p->abort = r ? -1 : mount_open_abort(p->device);
		if (!r)
			r = start_serving(p, &why);
		if (r) {
			say(p, why.text);
			p->not_begun = p->restarts == 0;
			clear_serving(p);
			return 1;
		}
		int status = watch(p);
		int verdict = judge(p, status);
		clear_serving(p);
		if (verdict >= 0)
			return verdict;
		p->restarts++;
		if (!back_off(p))
			return 0;
		log_info("starting again");
	}
}

/* Refuses a budget that would have the serving process killed as soon as it populates it. */
static int check_budget(const struct config *config, struct why *why)
{
	bool fatal;
	int r = memory_limit_check("", config, &fatal, why);

	return fatal ? r : 0;
}

static int run_here(struct parent *p)
{
	struct why why = WHY_INIT;
	int r = open_signals(p, &why);

	if (!r)
		r = check_budget(p->config, &why);
	if (!r)
		r = mount_check(p->config, &why);
	if (!r)
		r = disk_folder_check(p->config, &why);
	if (!r)
		r = rundir_init(&p->dir, p->config->run_dir, p->config->mountpoint, &why);
	if (!r)
		r = rundir_claim(&p->dir, geteuid() == 0, &why);
	if (r) {
		fprintf(stderr, "prefixfsd: %s\n", why.text);
		return 1;
	}
	r = open_log(p, &why);
	if (!r)
		r = open_listener(p, &why);
	if (!r)
		r = will_make(&p->will, &p->will_fd, &why);
	if (r) {
		fprintf(stderr, "prefixfsd: %s\n", why.text);
		rundir_undo(&p->dir);
		return 1;
	}
	if (!p->config->foreground && chdir("/") != 0)
		log_warning("the working folder stays in use: %s", strerror(errno));
	recall_last_exit(p);
	spare_from_oom_killer();
	raise_descriptor_limit();
	int status = supervise(p);
	closep(&p->listener);
	closep(&p->will_fd);
	will_unmap(&p->will);
	if (p->not_begun)
		rundir_undo(&p->dir);
	else
		rundir_remove(&p->dir, status != 0);
	return status;
}

/* The process that was called leaves when READY comes; its child is the parent of this file. */
static int go_into_background(struct parent *p)
{
	int ready[2], status;
	char byte;

	if (pipe2(ready, O_CLOEXEC) != 0) {
		fprintf(stderr, "prefixfsd: pipe: %s\n", strerror(errno));
		return 1;
	}
	pid_t pid = fork();
	if (pid < 0) {
		fprintf(stderr, "prefixfsd: fork: %s\n", strerror(errno));
		return 1;
	}
	if (pid > 0) {
		close(ready[1]);
		if (read(ready[0], &byte, 1) == 1)
			_exit(0);
		/* It said why, unless it could not. */
		if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status))
			fprintf(stderr, "prefixfsd: ended by signal %d (%s) before it served\n", WTERMSIG(status),
				strsignal(WTERMSIG(status)));
		_exit(1);
	}
	close(ready[0]);
	p->launcher = ready[1];
	setsid();
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		close(null);
	}
	return -1;
}

int parent_run(struct config *config)
{
	struct parent *p = calloc(1, sizeof(*p));
	int status = -1;

	if (!p) {
		fprintf(stderr, "prefixfsd: out of memory\n");
		return 1;
	}
	p->config = config;
	p->launcher = p->terminal = p->signals = p->listener = p->will_fd = p->fuse = p->abort = p->keeper = p->log = -1;
	if (!config->foreground)
		status = go_into_background(p);
	if (status < 0) {
		status = run_here(p);
		closep(&p->signals);
	}
	free(p);
	return status;
}
