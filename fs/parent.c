/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/parent.h"

#include <errno.h>
#include <fcntl.h>
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
#include <unistd.h>

#include "fs/disk_folder.h"
#include "fs/log.h"
#include "fs/memory_limit.h"
#include "fs/mount.h"
#include "fs/parent_state.h"
#include "store/base/cleanup.h"

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
	signal(SIGHUP, SIG_IGN); /* stray ones are not to end everybody's cache */
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
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

/* Refuses a budget that would have the serving process killed as soon as it populates it. */
static int check_budget(const struct config *config, struct why *why)
{
	bool fatal;
	int r = memory_limit_check("", config, &fatal, why);

	return fatal ? r : 0;
}

/* What must be so before anything is made. */
static int check(struct parent *p, struct why *why)
{
	int r = check_budget(p->config, why);

	if (!r)
		r = mount_check(p->config, why);
	if (!r)
		r = disk_folder_check(p->config, why);
	if (!r)
		r = run_folder_check(p->config, why);
	return r;
}

/* What every serving process is to have; after the claim of the run folder. */
static int make_parts(struct parent *p, struct why *why)
{
	int r = open_log(p, why);

	if (!r)
		r = open_listener(p, why);
	if (!r)
		r = will_make(&p->will, &p->will_fd, why);
	if (!r && fallen_prepare(&p->fallen))
		r = why_set(why, ENOMEM, "no memory for the fallen mount");
	if (!r)
		replacement_begin(p);
	return r;
}

/* The mount goes first: whoever waits there is answered. */
static void end_parts(struct parent *p)
{
	replacement_end(p);
	succession_unmount(p);
	if (p->helper > 0)
		kill(p->helper, SIGKILL);
	serving_clear(p);
	kept_clear(&p->kept);
	fallen_end(&p->fallen);
	closep(&p->listener);
	closep(&p->will_fd);
	will_unmap(&p->will);
}

static int run_here(struct parent *p)
{
	struct why why = WHY_INIT;
	int r = open_signals(p, &why);

	if (!r)
		r = check(p, &why);
	if (!r)
		r = rundir_init(&p->dir, p->config->run_dir, p->config->mountpoint, &why);
	if (!r)
		r = rundir_claim(&p->dir, geteuid() == 0, &why);
	if (r) {
		fprintf(stderr, "prefixfsd: %s\n", why.text);
		return 1;
	}
	r = make_parts(p, &why);
	if (r) {
		fprintf(stderr, "prefixfsd: %s\n", why.text);
		rundir_undo(&p->dir);
		return 1;
	}
	if (!p->config->foreground && chdir("/") != 0)
		log_warning("the working folder stays in use: %s", strerror(errno));
	obituary_recall(p);
	spare_from_oom_killer();
	raise_descriptor_limit();
	int status = parent_supervise(p);
	end_parts(p);
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
	p->launcher = p->terminal = p->signals = p->listener = p->will_fd = p->fuse = p->abort = p->program = p->trying = -1;
	p->serving.keeper = p->serving.log = p->next.keeper = p->next.log = -1;
	if (!config->foreground)
		status = go_into_background(p);
	if (status < 0) {
		status = run_here(p);
		closep(&p->signals);
	}
	free(p);
	return status;
}
