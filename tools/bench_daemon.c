/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon to measure, on a mount of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/host.h"

#define START_S 30u
#define STOP_TRIES 1000u

/* The daemon that runs now, for the signal handler. */
static struct bench_daemon *running;

/* Ended from outside: take the mount and the folders away, with what a handler may call. */
static void take_away(int number)
{
	char mount[PATH_MAX], run[PATH_MAX];
	const struct bench_daemon *d = running;

	if (d && d->folder[0]) {
		memcpy(mount, d->mount, sizeof(mount));
		strcpy(run, d->folder);
		strcat(run, "/run");
		umount2(mount, MNT_DETACH);
		/* The daemon's end comes after that of our sessions: a child that has none of them waits for it. */
		if (fork() > 0)
			_exit(128 + number);
		close_range(0, ~0u, 0);
		for (unsigned i = 0; i < STOP_TRIES && (rmdir(run) && errno != ENOENT); i++)
			usleep(10000);
		rmdir(mount);
		rmdir(d->folder);
	}
	_exit(128 + number);
}

static void watch_signals(struct bench_daemon *d)
{
	const struct sigaction action = {.sa_handler = d ? take_away : SIG_DFL};

	running = d;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int read_serving(struct bench_daemon *d)
{
	char path[PATH_MAX], *health, *pid = NULL;

	if (host_path(path, "%s/health", d->mount))
		return 1;
	health = host_read_file(path, NULL);
	if (health)
		pid = host_line(health, "serving");
	free(health);
	if (!pid)
		return complain("%s names no serving process", path);
	d->serving = (pid_t)strtol(pid, NULL, 10);
	free(pid);
	return 0;
}

static int run_daemon(struct bench_daemon *d, const struct bench_daemon_options *o, bool quiet)
{
	char program[PATH_MAX], memory[64], populate[32], run_dir[128], huge[64];
	int status = 0;
	pid_t pid;

	if (host_path(program, "%s/prefixfsd", host_program_folder()))
		return 1;
	snprintf(memory, sizeof(memory), "--memory=%llu", (unsigned long long)o->memory);
	snprintf(populate, sizeof(populate), "--populate=%s", o->populate ? "true" : "false");
	snprintf(run_dir, sizeof(run_dir), "--run-dir=%s/run", d->folder);
	snprintf(huge, sizeof(huge), "--hugepages=%s", o->hugepages ? o->hugepages : "auto");
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		if (quiet && null >= 0)
			dup2(null, STDERR_FILENO);
		dup2(null, STDOUT_FILENO);
		execl(program, program, d->mount, memory, populate, run_dir, huge, NULL);
		execlp("prefixfsd", "prefixfsd", d->mount, memory, populate, run_dir, huge, NULL);
		_exit(127);
	}
	if (pid < 0)
		return complain("fork: %s", strerror(errno));
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return quiet ? 1
		             : complain("prefixfsd could not be started on %s (status %d)", d->mount,
				       WEXITSTATUS(status));
	return 0;
}

int bench_daemon_start(struct bench_daemon *d, const struct bench_daemon_options *o, bool quiet)
{
	char run[128];

	*d = (struct bench_daemon){0};
	snprintf(d->folder, sizeof(d->folder), "/tmp/prefixfs-bench-XXXXXX");
	if (!mkdtemp(d->folder))
		return complain("/tmp: %s", strerror(errno));
	watch_signals(d);
	snprintf(d->mount, sizeof(d->mount), "%s/mnt", d->folder);
	snprintf(run, sizeof(run), "%s/run", d->folder);
	if (mkdir(d->mount, 0755) || mkdir(run, 0755) || run_daemon(d, o, quiet) || read_serving(d)) {
		bench_daemon_stop(d);
		return 1;
	}
	return 0;
}

int bench_daemon_use(struct bench_daemon *d, const char *mount)
{
	*d = (struct bench_daemon){0};
	snprintf(d->mount, sizeof(d->mount), "%s", mount);
	return host_mounted(mount) || read_serving(d);
}

void bench_daemon_stop(struct bench_daemon *d)
{
	pid_t serving = d->serving;

	if (!d->folder[0])
		return;
	/* EINVAL: it never came to a mount. */
	if (umount2(d->mount, 0) && errno != EINVAL && umount2(d->mount, MNT_DETACH)) {
		pid_t pid = fork();

		if (pid == 0) {
			execlp("fusermount3", "fusermount3", "-u", "-z", "-q", d->mount, NULL);
			_exit(127);
		}
		waitpid(pid, NULL, 0);
	}
	/* Its memory is to be free before the next one starts. */
	for (unsigned i = 0; serving && i < START_S * 100 && bench_cpu_ns(serving); i++)
		usleep(10000);
	nftw(d->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	watch_signals(NULL);
	*d = (struct bench_daemon){0};
}

/* ---- namespaces ------------------------------------------------------------------------------------------------- */

int bench_namespace(
	const struct bench_daemon *d, const char *name, uint64_t plane_bytes, uint64_t planes, uint64_t floor)
{
	char path[PATH_MAX], text[512], memory[64] = "";
	int fd, n;

	if (host_path(path, "%s/ns/%s", d->mount, name))
		return 1;
	if (mkdir(path, 0755))
		return complain("%s: %s", path, strerror(errno));
	if (floor)
		snprintf(memory, sizeof(memory), "\"memory\":{\"floor\":%llu},", (unsigned long long)floor);
	n = snprintf(text, sizeof(text),
		"{\"version\":1,\"identity\":{\"model\":\"bench\"},\"world\":1,\"page_tokens\":%u,%s\"classes\":[{\"name\":\"kv\","
		"\"kind\":\"dense\",\"planes\":[{\"name\":\"p\",\"count\":%llu,\"bytes\":%llu}]}]}",
		BENCH_TOKENS, memory, (unsigned long long)planes, (unsigned long long)plane_bytes);
	if (host_path(path, "%s/ns/%s/layout", d->mount, name))
		return 1;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, (size_t)n) != n) {
		int error = errno;

		if (fd >= 0)
			close(fd);
		bench_namespace_remove(d, name);
		return complain("%s: %s", path, strerror(error));
	}
	close(fd);
	return 0;
}

int bench_namespace_remove(const struct bench_daemon *d, const char *name)
{
	char path[PATH_MAX];

	if (host_path(path, "%s/ns/%s", d->mount, name))
		return 1;
	return rmdir(path) ? complain("%s: %s", path, strerror(errno)) : 0;
}

int64_t bench_counter(const struct bench_daemon *d, const char *ns, const char *name)
{
	char path[PATH_MAX], *text, *value;
	int64_t n = -1;

	if (host_path(path, "%s/ns/%s/stats", d->mount, ns))
		return -1;
	text = host_read_file(path, NULL);
	value = text ? host_line(text, name) : NULL;
	if (value)
		n = strtoll(value, NULL, 10);
	free(value);
	free(text);
	return n;
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

uint64_t bench_cpu_ns(pid_t pid)
{
	unsigned long user = 0, system = 0;
	char path[64], *text, *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	text = host_read_file(path, NULL);
	at = text ? strrchr(text, ')') : NULL;
	if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		user = system = 0;
	else if (user + system == 0)
		user = 1; /* it lives */
	free(text);
	return (uint64_t)(user + system) * (1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK));
}

int bench_memory(const struct bench_daemon *d, uint64_t *bytes)
{
	bool segment = false, tables = false;
	char path[64], *line = NULL;
	size_t size = 0;
	FILE *f;

	*bytes = 0;
	snprintf(path, sizeof(path), "/proc/%d/smaps", (int)d->serving);
	f = fopen(path, "re");
	if (!f)
		return complain("%s: %s", path, strerror(errno));
	while (getline(&line, &size, f) > 0) {
		unsigned long long begin, end, kib;
		char name[32];

		if (sscanf(line, "%llx-%llx ", &begin, &end) == 2) {
			tables = strstr(line, "/memfd:prefixfs-tables");
			segment = strstr(line, "/memfd:") && !tables; /* and call buffers */
		} else if (sscanf(line, "%31[A-Za-z_]: %llu kB", name, &kib) == 2 && !segment) {
			/* What the parent maps too is not private, and is counted all the same. */
			if (tables ? !strcmp(name, "Rss")
				   : !strncmp(name, "Private_", 8) && strcmp(name, "Private_Hugetlb"))
				*bytes += kib * 1024;
		}
	}
	free(line);
	fclose(f);
	return 0;
}
