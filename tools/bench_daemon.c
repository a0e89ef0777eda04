/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon to measure, on a mount of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
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

/* The daemon that runs now and the folder that is to go, for the signal handler. */
static struct bench_daemon *running;
static char scratch[PATH_MAX];

/* The daemon has been unmounted: waits for its end, which removes what it has in there, and takes the rest away. */
static void await_daemon(const struct bench_daemon *d, const char *run)
{
	for (unsigned i = 0; i < STOP_TRIES && (rmdir(run) && errno != ENOENT); i++)
		usleep(10000);
	rmdir(d->mount);
	rmdir(d->folder);
}

/* Ended from outside: take the mount and the folders away, with what a handler may call. */
static void take_away(int number)
{
	char run[PATH_MAX];
	const struct bench_daemon *d = running && running->folder[0] ? running : NULL;

	if (d) {
		strcpy(run, d->folder);
		strcat(run, "/run");
		umount2(d->mount, MNT_DETACH);
	}
	/* The daemon's end comes after that of our sessions: a child that has none of them waits for it. */
	if ((!d && !scratch[0]) || fork() > 0)
		_exit(128 + number);
	setsid();
	close_range(0, ~0u, 0);
	if (d)
		await_daemon(d, run);
	if (scratch[0])
		execl("/bin/rm", "rm", "-rf", "--", scratch, NULL);
	_exit(128 + number);
}

static void watch_signals(struct bench_daemon *d)
{
	const struct sigaction action = {.sa_handler = d || scratch[0] ? take_away : SIG_DFL};

	running = d;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

int bench_scratch_make(const char *dir, char path[PATH_MAX])
{
	if (host_path(path, "%s/prefixfs-bench-XXXXXX", dir))
		return 1;
	if (!mkdtemp(path))
		return complain("%s: no folder can be made in it: %s", dir, strerror(errno));
	strcpy(scratch, path);
	watch_signals(NULL);
	return 0;
}

void bench_scratch_remove(void)
{
	if (!scratch[0])
		return;
	bench_folder_remove(scratch);
	scratch[0] = '\0';
	watch_signals(NULL);
}

void bench_folder_remove(const char *path)
{
	nftw(path, remove_one, 64, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
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

#define ARGUMENTS 16u
#define ARGUMENT_BYTES (PATH_MAX + 32)

struct arguments {
	char text[ARGUMENTS][ARGUMENT_BYTES];
	char *at[ARGUMENTS + 3];
	unsigned count;
};

static void __attribute__((format(printf, 2, 3))) add(struct arguments *a, const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(a->text[a->count], sizeof(a->text[0]), format, values);
	va_end(values);
	a->at[a->count + 2] = a->text[a->count];
	a->count++;
}

static void add_options(struct arguments *a, const struct bench_daemon *d, const struct bench_daemon_options *o)
{
	add(a, "--memory=%llu", (unsigned long long)o->memory);
	add(a, "--populate=%s", o->populate ? "true" : "false");
	add(a, "--run-dir=%s/run", d->folder);
	add(a, "--hugepages=%s", o->hugepages ? o->hugepages : "auto");
	if (o->deaths)
		add(a, "--deaths=%llu", (unsigned long long)o->deaths);
	if (!o->disk)
		return;
	add(a, "--disk=%s", o->disk);
	add(a, "--disk-bytes=%llu", (unsigned long long)o->disk_bytes);
	add(a, "--disk-workers=%llu", (unsigned long long)o->disk_workers);
	add(a, "--durability=%s", o->durable ? "data" : "none");
}

static int run_daemon(struct bench_daemon *d, const struct bench_daemon_options *o, bool quiet)
{
	const char *program = bench_daemon_program();
	struct arguments a = {.count = 0};
	int status = 0;
	pid_t pid;

	add_options(&a, d, o);
	a.at[0] = (char *)program;
	a.at[1] = d->mount;
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		if (quiet && null >= 0)
			dup2(null, STDERR_FILENO);
		dup2(null, STDOUT_FILENO);
		execvp(program, a.at);
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
	bench_folder_remove(d->folder);
	watch_signals(NULL);
	*d = (struct bench_daemon){0};
}

/* ---- namespaces ------------------------------------------------------------------------------------------------- */

int bench_namespace_of(const struct bench_daemon *d, const char *name, const char *layout)
{
	char path[PATH_MAX];
	size_t n = strlen(layout);
	int fd;

	if (host_path(path, "%s/ns/%s", d->mount, name))
		return 1;
	if (mkdir(path, 0755))
		return complain("%s: %s", path, strerror(errno));
	if (host_path(path, "%s/ns/%s/layout", d->mount, name))
		return 1;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, layout, n) != (ssize_t)n) {
		int error = errno;

		if (fd >= 0)
			close(fd);
		bench_namespace_remove(d, name);
		return complain("%s: %s", path, strerror(error));
	}
	close(fd);
	return 0;
}

int bench_namespace(
	const struct bench_daemon *d, const char *name, uint64_t plane_bytes, uint64_t planes, uint64_t floor)
{
	char text[512], memory[64] = "";

	if (floor)
		snprintf(memory, sizeof(memory), "\"memory\":{\"floor\":%llu},", (unsigned long long)floor);
	snprintf(text, sizeof(text),
		"{\"version\":1,\"identity\":{\"model\":\"bench\"},\"world\":1,\"page_tokens\":%u,%s\"classes\":[{\"name\":\"kv\","
		"\"kind\":\"dense\",\"planes\":[{\"name\":\"p\",\"count\":%llu,\"bytes\":%llu}]}]}",
		BENCH_TOKENS, memory, (unsigned long long)planes, (unsigned long long)plane_bytes);
	return bench_namespace_of(d, name, text);
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

int64_t bench_disk_word(const struct bench_daemon *d, const char *name)
{
	char path[PATH_MAX], wanted[64], *text, *line, *at;
	int64_t n = -1;

	if (host_path(path, "%s/tiers", d->mount))
		return -1;
	snprintf(wanted, sizeof(wanted), " %s=", name);
	text = host_read_file(path, NULL);
	line = text ? strstr(text, "disk ") : NULL;
	while (line && line != text && line[-1] != '\n')
		line = strstr(line + 1, "disk ");
	if (line)
		line[strcspn(line, "\n")] = '\0';
	at = line ? strstr(line, wanted) : NULL;
	if (at)
		n = at[strlen(wanted)] == 'y' ? 1 : strtoll(at + strlen(wanted), NULL, 10);
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
