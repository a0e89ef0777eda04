/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs that a benchmark runs beside itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/host.h"

static void become(const char *const *argv, int out, bool quiet, pid_t parent)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	dup2(null, STDIN_FILENO);
	dup2(out, STDOUT_FILENO);
	if (quiet)
		dup2(null, STDERR_FILENO);
	execvp(argv[0], (char *const *)argv);
	_exit(127);
}

int bench_child_start(struct bench_child *c, const char *const *argv, bool quiet)
{
	pid_t parent = getpid();
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return complain("pipe: %s", strerror(errno));
	c->pid = fork();
	if (c->pid == 0)
		become(argv, ends[1], quiet, parent);
	close(ends[1]);
	c->out = c->pid > 0 ? fdopen(ends[0], "re") : NULL;
	if (c->out)
		return 0;
	close(ends[0]);
	return complain("%s: %s", argv[0], strerror(errno));
}

int bench_child_end(struct bench_child *c)
{
	int status = 0;

	while (fgetc(c->out) != EOF) /* it may still want to say something */
		;
	fclose(c->out);
	while (waitpid(c->pid, &status, 0) < 0)
		if (errno != EINTR)
			return 255;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

const char *bench_daemon_program(void)
{
	static char beside[PATH_MAX];

	if (!host_path(beside, "%s/prefixfsd", host_program_folder()) && !access(beside, X_OK))
		return beside;
	return "prefixfsd";
}
