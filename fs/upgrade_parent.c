/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/upgrade_parent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/log.h"
#include "fs/version.h"
#include "store/base/cleanup.h"

#define BACKLOG 8
#define ARGUMENTS 64u

const char *upgrade_parent_version(const struct upgrade_parent *u)
{
	return u->version[0] ? u->version : version_text;
}

/* ---- answers ------------------------------------------------------------------------------------------------------------ */

static void send_answer(int asker, bool done, int error, uint64_t pause_ns, const char *text)
{
	struct upgrade_answer answer = {
		.magic = UPGRADE_MAGIC,
		.done = done,
		.error = (uint32_t)error,
		.pause_us = (uint32_t)(pause_ns / 1000),
	};

	snprintf(answer.text, sizeof(answer.text), "%s", text);
	if (asker >= 0 && send(asker, &answer, sizeof(answer), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_debug("nobody hears how the upgrade goes: %s", strerror(errno));
}

__attribute__((format(printf, 2, 3))) static void tell(struct upgrade_parent *u, const char *format, ...)
{
	char text[480];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log_info("upgrade: %s", text);
	send_answer(u->asker, false, 0, 0, text);
}

static void end_judge(struct upgrade_parent *u)
{
	if (u->judge > 0 && !u->judge_reaped)
		kill(u->judge, SIGKILL); /* reaped by reap_judge, when it has ended */
	closep(&u->judge_said);
}

static void rest(struct upgrade_parent *u)
{
	end_judge(u);
	closep(&u->asker);
	closep(&u->program);
	u->state = UPGRADE_IDLE;
	u->until_ns = 0;
}

/* The last word to who asked. */
__attribute__((format(printf, 4, 5))) static void answer(
	struct upgrade_parent *u, int error, uint64_t pause_ns, const char *format, ...)
{
	char text[480];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log_info("upgrade: %s", text);
	send_answer(u->asker, true, error, pause_ns, text);
	rest(u);
}

static void enter(struct upgrade_parent *u, enum upgrade_state state, uint64_t now_ns, uint64_t limit_ms)
{
	u->state = state;
	u->until_ns = limit_ms ? now_ns + limit_ms * 1000000 : 0;
}

/* ---- the judge ---------------------------------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void become_judge(const struct upgrade_parent *u, int input, int output, pid_t parent)
{
	char name[] = "prefixfsd", judge[] = "--judge", arguments[ARGUMENTS][CONFIG_TEXT_BYTES + 64], *argv[ARGUMENTS + 4] = {name, judge};
	unsigned n = 0;
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(126);
	dup2(input, STDIN_FILENO);
	dup2(output, STDOUT_FILENO);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	while (n < ARGUMENTS && config_argument(u->config, n, arguments[n], sizeof(arguments[n]))) {
		argv[n + 2] = arguments[n];
		n++;
	}
	argv[n + 2] = (char *)u->config->mountpoint;
	fexecve(u->program, argv, environ);
	_exit(127);
}

/* A pipe with the kernel's INIT in it, to its end. The reading end, or a negative errno. */
static int fill_input(const struct will_init *init)
{
	size_t bytes = atomic_load_explicit(&init->request_bytes, memory_order_acquire);
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
		return -errno;
	if (bytes > sizeof(init->request))
		bytes = 0;
	if (bytes && write(ends[1], init->request, bytes) != (ssize_t)bytes) { /* a pipe has room for a page */
		close(ends[0]);
		ends[0] = -EIO;
	}
	close(ends[1]);
	return ends[0];
}

static int start_judge(struct upgrade_parent *u, struct why *why)
{
	cleanup(closep) int input = fill_input(u->init);
	pid_t parent = getpid();
	int output[2];

	if (input < 0)
		return why_set(why, -input, "the judge's input: %s", strerror(-input));
	if (pipe2(output, O_CLOEXEC) != 0)
		return why_set(why, errno, "pipe: %s", strerror(errno));
	u->judge = fork();
	if (u->judge == 0)
		become_judge(u, input, output[1], parent);
	close(output[1]);
	u->judge_said = output[0];
	fcntl(u->judge_said, F_SETFL, O_NONBLOCK);
	if (u->judge < 0) {
		u->judge = 0;
		return why_set(why, errno, "fork: %s", strerror(errno));
	}
	u->judge_end = (int)syscall(SYS_pidfd_open, u->judge, 0);
	if (u->judge_end >= 0)
		return 0;
	why_set(why, errno, "pidfd_open: %s", strerror(errno));
	kill(u->judge, SIGKILL);
	waitpid(u->judge, NULL, 0); /* it runs nothing that could hold it up */
	u->judge = 0;
	return -why->error;
}

/* True: it has been reaped, with *status. */
static bool reap_judge(struct upgrade_parent *u, int *status)
{
	if (u->judge <= 0 || (!u->judge_reaped && waitpid(u->judge, status, WNOHANG) != u->judge))
		return false;
	if (u->judge_reaped)
		*status = u->judge_status;
	u->judge = 0;
	u->judge_reaped = false;
	closep(&u->judge_end);
	return true;
}

/* True: it has said all. */
static bool read_verdict(struct upgrade_parent *u)
{
	char further;

	for (;;) {
		size_t left = sizeof(u->verdict) - u->verdict_bytes;
		ssize_t n = left ? read(u->judge_said, (char *)&u->verdict + u->verdict_bytes, left) : read(u->judge_said, &further, 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return false;
		if (n <= 0)
			return true;
		if (left)
			u->verdict_bytes += (uint32_t)n;
		else
			u->too_much = true;
		if (u->too_much)
			return true;
	}
}

/* What came of it, when it has ended with @status. */
static int judge_verdict(struct upgrade_parent *u, int status, struct why *why)
{
	bool head = u->verdict_bytes >= offsetof(struct upgrade_verdict, error) && u->verdict.magic == UPGRADE_MAGIC;

	if (WIFSIGNALED(status))
		return why_set(why, ENOEXEC, "the program was ended by signal %d (%s) when it was asked what it is", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status) == 127 && !u->verdict_bytes)
		return why_set(why, ENOEXEC, "the file is no program that can be run here");
	if (!head && WEXITSTATUS(status))
		return why_set(why, ENOEXEC, "the program ended with status %d when it was asked what it is: it is no prefixfsd, or one of before "
			"upgrades", WEXITSTATUS(status));
	/* One of another length says its versions all the same. */
	if (!head || (u->verdict.bytes == sizeof(u->verdict) && (u->verdict_bytes != sizeof(u->verdict) || u->too_much)))
		return why_set(why, ENOEXEC, "the program is no prefixfsd: what it says of itself makes no sense");
	return upgrade_may_follow(&u->verdict, u->calls->tables_version(u->calls->context), u->init, why);
}

/* ---- the change --------------------------------------------------------------------------------------------------------- */

static void begin_starting(struct upgrade_parent *u, uint64_t now_ns)
{
	u->over_ns = now_ns;
	enter(u, UPGRADE_STARTING, now_ns, u->config->upgrade_ready_ms);
	u->calls->succeed(u->calls->context);
}

/* The program that was there before serves again. */
static void begin_back(struct upgrade_parent *u, uint64_t now_ns)
{
	struct why why = WHY_INIT;
	int r;

	tell(u, "the new serving process ended before it served: %s; the old program is started again", u->why.text);
	enter(u, UPGRADE_BACK, now_ns, 0);
	closep(&u->program);
	r = u->calls->start_program(u->calls->context, -1, false, &why);
	if (r >= 0) {
		u->calls->succeed(u->calls->context);
		return;
	}
	answer(u, ECANCELED, 0, "the new serving process ended before it served: %s; prefixfsd %s could not be started again: %s", u->why.text,
		upgrade_parent_version(u), why.text);
}

static void begin_draining(struct upgrade_parent *u, uint64_t now_ns)
{
	enter(u, UPGRADE_DRAINING, now_ns, UPGRADE_DRAIN_MS);
	if (u->calls->hand_over(u->calls->context))
		begin_starting(u, now_ns);
}

static void begin_loading(struct upgrade_parent *u, uint64_t now_ns)
{
	struct why why = WHY_INIT;
	int r = u->calls->start_program(u->calls->context, u->program, u->remount, &why);

	if (r < 0)
		answer(u, why.error, 0, "%s", why.text);
	else if (r)
		begin_draining(u, now_ns);
	else
		enter(u, UPGRADE_LOADING, now_ns, u->config->upgrade_ready_ms);
}

static void conclude(struct upgrade_parent *u, int status, uint64_t now_ns)
{
	struct why why = WHY_INIT;
	int r = judge_verdict(u, status, &why);
	const char *version = u->tried;

	memcpy(u->tried, u->verdict.version, sizeof(u->verdict.version));
	u->remount = r == -EXDEV && u->remount;
	if (u->remount)
		tell(u, "%s", why.text);
	if (r && !u->remount) {
		answer(u, why.error, 0, "%s", why.text);
		return;
	}
	if (u->judge_only) {
		answer(u, 0, 0, "prefixfsd %s may follow %s", version, upgrade_parent_version(u));
		return;
	}
	tell(u, "prefixfsd %s may follow %s", version, upgrade_parent_version(u));
	begin_loading(u, now_ns);
}

/* ---- who asks ----------------------------------------------------------------------------------------------------------- */

static int check_peer(int asker, struct why *why)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	if (getsockopt(asker, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
		return why_set(why, errno, "who asks is not known: %s", strerror(errno));
	if (peer.uid != 0 && peer.uid != geteuid())
		return why_set(why, EACCES, "only root and uid %u, whose daemon this is, may ask", (unsigned)geteuid());
	return 0;
}

void upgrade_parent_take(struct upgrade_parent *u, int asker, uint64_t now_ns)
{
	struct why why = WHY_INIT;

	if (check_peer(asker, &why) == 0 && (u->state != UPGRADE_IDLE || u->judge > 0))
		why_set(&why, EBUSY, "an upgrade is under way already");
	if (why.error) {
		send_answer(asker, true, why.error, 0, why.text);
		close(asker);
		return;
	}
	u->asker = asker;
	enter(u, UPGRADE_ASKED, now_ns, UPGRADE_JUDGE_MS);
}

static void accept_askers(struct upgrade_parent *u, uint64_t now_ns)
{
	int asker;

	while (u->listener >= 0 && (asker = accept4(u->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		upgrade_parent_take(u, asker, now_ns);
}

/* One request with its descriptor. Bytes as recv(2) says; *program -1: none came. */
static ssize_t receive_request(int asker, struct upgrade_request *request, int *program)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = request, .iov_len = sizeof(*request)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(asker, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*program = -1;
	for (struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&message) : NULL; c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
			memcpy(program, CMSG_DATA(c), sizeof(int));
	return n;
}

static void hear_request(struct upgrade_parent *u, uint64_t now_ns)
{
	struct upgrade_request request = {0};
	struct why why = WHY_INIT;
	ssize_t n = receive_request(u->asker, &request, &u->program);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		rest(u);
		return;
	}
	if (n != sizeof(request) || request.magic != UPGRADE_MAGIC || request.bytes != sizeof(request)) {
		answer(u, EINVAL, 0, "this is no request for an upgrade of prefixfsd %s: another version's command?", upgrade_parent_version(u));
		return;
	}
	if (u->program < 0) {
		answer(u, EINVAL, 0, "the request for an upgrade came without a program");
		return;
	}
	u->judge_only = request.judge_only;
	u->remount = request.remount;
	u->verdict_bytes = 0;
	u->too_much = u->died = u->late = false;
	u->verdict = (struct upgrade_verdict){0};
	if (start_judge(u, &why)) {
		answer(u, why.error, 0, "%s", why.text);
		return;
	}
	enter(u, UPGRADE_JUDGING, now_ns, u->config->upgrade_judge_ms);
}

/* True: it went away. What it says is thrown away. */
static bool asker_has_gone(struct upgrade_parent *u)
{
	char bytes[64];
	ssize_t n;

	while (u->asker >= 0 && (n = recv(u->asker, bytes, sizeof(bytes), MSG_DONTWAIT)) != -1)
		if (n == 0)
			closep(&u->asker);
	return u->asker < 0;
}

/* ---- what is there, and what is due --------------------------------------------------------------------------------------- */

static void hear_judge(struct upgrade_parent *u, uint64_t now_ns)
{
	int status;

	if (u->judge_said >= 0 && read_verdict(u))
		closep(&u->judge_said);
	if (u->judge_said < 0 && reap_judge(u, &status))
		conclude(u, status, now_ns);
}

static void do_what_is_due(struct upgrade_parent *u, uint64_t now_ns)
{
	if (!u->until_ns || now_ns < u->until_ns)
		return;
	u->until_ns = 0;
	switch (u->state) {
	case UPGRADE_ASKED:
		answer(u, ETIMEDOUT, 0, "nothing was asked for within %u ms", UPGRADE_JUDGE_MS);
		break;
	case UPGRADE_JUDGING:
		answer(u, ENOEXEC, 0, "the program answered nothing within %" PRIu64 " ms when it was asked what it is",
			u->config->upgrade_judge_ms);
		break;
	case UPGRADE_DRAINING:
		tell(u, "the old one did not end what it ran within %u ms and was killed", UPGRADE_DRAIN_MS);
		u->calls->kill_old(u->calls->context);
		break;
	case UPGRADE_LOADING:
	case UPGRADE_STARTING:
		u->late = true;
		u->calls->kill_new(u->calls->context);
		break;
	case UPGRADE_IDLE:
	case UPGRADE_BACK:
		break;
	}
}

void upgrade_parent_hear(struct upgrade_parent *u, uint64_t now_ns)
{
	int status;

	if (u->state != UPGRADE_JUDGING)
		reap_judge(u, &status);
	if (u->state == UPGRADE_ASKED)
		hear_request(u, now_ns);
	else if (u->state != UPGRADE_IDLE && asker_has_gone(u) && u->state == UPGRADE_JUDGING)
		rest(u);
	if (u->state == UPGRADE_JUDGING)
		hear_judge(u, now_ns);
	do_what_is_due(u, now_ns);
	accept_askers(u, now_ns);
}

unsigned upgrade_parent_fds(const struct upgrade_parent *u, struct pollfd *fds)
{
	const int all[UPGRADE_PARENT_FDS] = {u->listener, u->asker, u->judge_end, u->judge_said};
	unsigned n = 0;

	for (unsigned i = 0; i < UPGRADE_PARENT_FDS; i++)
		if (all[i] >= 0)
			fds[n++] = (struct pollfd){.fd = all[i], .events = POLLIN};
	return n;
}

int upgrade_parent_timeout(const struct upgrade_parent *u, uint64_t now_ns)
{
	if (!u->until_ns)
		return -1;
	return now_ns >= u->until_ns ? 0 : (int)((u->until_ns - now_ns) / 1000000) + 1;
}

bool upgrade_parent_reaped(struct upgrade_parent *u, pid_t pid, int status)
{
	if (u->judge <= 0 || pid != u->judge || u->judge_reaped)
		return false;
	u->judge_reaped = true;
	u->judge_status = status;
	return true;
}

/* ---- what becomes of serving processes ------------------------------------------------------------------------------------ */

bool upgrade_parent_waits(const struct upgrade_parent *u)
{
	return u->state >= UPGRADE_LOADING;
}

void upgrade_parent_loaded(struct upgrade_parent *u, uint64_t now_ns)
{
	if (u->state == UPGRADE_LOADING)
		begin_draining(u, now_ns);
}

void upgrade_parent_over(struct upgrade_parent *u, uint64_t now_ns)
{
	if (u->state != UPGRADE_LOADING && u->state != UPGRADE_DRAINING)
		return;
	if (u->died)
		begin_back(u, now_ns);
	else
		begin_starting(u, now_ns);
}

void upgrade_parent_ready(struct upgrade_parent *u, uint64_t now_ns)
{
	uint64_t pause_ns = now_ns - u->over_ns;

	if (u->state == UPGRADE_BACK)
		answer(u, ECANCELED, 0, "the new serving process ended before it served: %s; prefixfsd %s serves again", u->why.text, upgrade_parent_version(u));
	if (u->state != UPGRADE_STARTING)
		return;
	memcpy(u->version, u->tried, sizeof(u->version));
	u->calls->keep_program(u->calls->context, STEAL_FD(u->program));
	answer(u, 0, pause_ns, "prefixfsd %s serves, after a pause of %.1f ms", u->tried, (double)pause_ns / 1e6);
}

void upgrade_parent_died(struct upgrade_parent *u, const char *reason, uint64_t now_ns)
{
	if (u->state == UPGRADE_BACK) {
		answer(u, ECANCELED, 0, "the new serving process ended before it served: %s; prefixfsd %s, started again, did so too: %s",
			u->why.text, upgrade_parent_version(u), reason);
		return;
	}
	if (!upgrade_parent_waits(u))
		return;
	if (u->late)
		why_set(&u->why, ETIMEDOUT, "it was not ready within %" PRIu64 " ms and was killed", u->config->upgrade_ready_ms);
	else
		why_set(&u->why, ECANCELED, "%s", reason);
	u->died = true;
	if (u->state == UPGRADE_LOADING)
		answer(u, ECANCELED, 0, "the new serving process ended before it served: %s; prefixfsd %s serves on", u->why.text,
			upgrade_parent_version(u));
	if (u->state == UPGRADE_STARTING) /* else the old one was told to end, and its end is waited for */
		begin_back(u, now_ns);
}

void upgrade_parent_stop(struct upgrade_parent *u)
{
	if (u->state != UPGRADE_IDLE)
		answer(u, ESHUTDOWN, 0, "the daemon is being stopped");
	closep(&u->listener);
}

/* ---- beginning and end ---------------------------------------------------------------------------------------------------- */

void upgrade_parent_init(
	struct upgrade_parent *u, const struct upgrade_calls *calls, const struct config *config, const struct will_init *init)
{
	*u = (struct upgrade_parent){
		.calls = calls,
		.config = config,
		.init = init,
		.listener = -1,
		.asker = -1,
		.program = -1,
		.judge_end = -1,
		.judge_said = -1,
	};
}

int upgrade_parent_listen(struct upgrade_parent *u, const char *path, struct why *why)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	cleanup(closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return why_set(why, errno, "socket: %s", strerror(errno));
	if (strlen(path) >= sizeof(address.sun_path))
		return why_set(why, ENAMETOOLONG, "socket %s: its path has %zu bytes, at most %zu are possible", path, strlen(path),
			sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	unlink(path);
	mode_t mask = umask(0177);
	int r = bind(fd, (struct sockaddr *)&address, sizeof(address));
	umask(mask);
	if (r != 0 || listen(fd, BACKLOG) != 0)
		return why_set(why, errno, "socket %s: %s", path, strerror(errno));
	u->listener = STEAL_FD(fd);
	return 0;
}

void upgrade_parent_end(struct upgrade_parent *u)
{
	upgrade_parent_stop(u);
	rest(u);
	if (u->judge > 0 && !u->judge_reaped)
		waitpid(u->judge, NULL, 0); /* killed, and it runs nothing that could hold it up */
	u->judge = 0;
	closep(&u->judge_end);
}
