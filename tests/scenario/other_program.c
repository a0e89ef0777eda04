/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that a daemon is to be upgraded to, and that is not what it should be. What it does stands behind its end, as the last line of
 * its own file: "<path of prefixfsd> <how>".
 *
 *   hang              says nothing when it is asked what it is
 *   nonsense          says something else
 *   will, tables      is the other program, but speaks another version to its parent, or knows no tables but older ones
 *   options           ... but does not take the options
 *   exit, abort       is the other program when it is judged, and ends as soon as it is to serve
 *   never             ... and never serves
 *   late, stuck       ... and ends, or does nothing, when it has been given what there is
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/keeper.h"
#include "fs/upgrade.h"

static char line[4096];

/* False: there is none. */
static bool read_line(char **program, char **how)
{
	FILE *self = fopen("/proc/self/exe", "r");
	size_t n = 0;

	if (!self || fseek(self, -(long)(sizeof(line) - 1), SEEK_END))
		return false;
	n = fread(line, 1, sizeof(line) - 1, self);
	fclose(self);
	while (n && line[n - 1] != '\n')
		n--;
	*program = line + n;
	*how = strchr(*program, ' ');
	if (!*how)
		return false;
	*(*how)++ = '\0';
	return true;
}

/* What the other program says of itself, changed. */
static int judge(const char *program, char **argv, const char *how)
{
	static struct upgrade_verdict verdict;
	int said[2], status;

	if (!strcmp(how, "hang"))
		pause();
	if (!strcmp(how, "nonsense"))
		return write(STDOUT_FILENO, "usage: something else", 21) != 21;
	if (pipe(said))
		return 1;
	pid_t pid = fork();
	if (pid == 0) {
		dup2(said[1], STDOUT_FILENO);
		execv(program, argv);
		_exit(127);
	}
	waitpid(pid, &status, 0); /* a pipe has room for all that it says */
	if (read(said[0], &verdict, sizeof(verdict)) != sizeof(verdict))
		return 1;
	if (!strcmp(how, "will"))
		verdict.will_version++;
	if (!strcmp(how, "tables"))
		verdict.tables_oldest = verdict.tables_newest = 1;
	if (!strcmp(how, "options")) {
		verdict.error = EINVAL;
		strcpy(verdict.text, "there is no parameter 'colour'");
	}
	strcpy(verdict.version, "9.9.9");
	return write(STDOUT_FILENO, &verdict, sizeof(verdict)) != sizeof(verdict);
}

/* The second number of --serve is the channel to the parent. Until all is there. */
static void take_all(const char *serve)
{
	struct keeper_message m = {.kind = KEEPER_WAITS};
	int keeper = -1;

	sscanf(serve, "--serve=%*d,%d", &keeper);
	if (send(keeper, &m, sizeof(m), MSG_NOSIGNAL) != sizeof(m))
		exit(1);
	while (m.kind != KEEPER_GIVEN && recv(keeper, &m, sizeof(m), 0) == sizeof(m))
		;
}

int main(int argc, char **argv)
{
	char *program, *how;

	if (!read_line(&program, &how))
		return 2;
	if (argc > 1 && !strcmp(argv[1], "--judge"))
		return judge(program, argv, how);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "never"))
		pause();
	for (int i = 1; i < argc && (!strcmp(how, "late") || !strcmp(how, "stuck")); i++)
		if (!strncmp(argv[i], "--serve=", 8))
			take_all(argv[i]);
	if (!strcmp(how, "stuck"))
		pause();
	fprintf(stderr, "another program's last words\n");
	return 1;
}
