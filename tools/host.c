/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/fallen.h"

#define FILE_MAX (1u << 20)

/* "\040" in mountinfo is a space. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *at = text; *at; at++) {
		if (at[0] == '\\' && at[1] && at[2] && at[3]) {
			*to++ = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
			at += 3;
		} else {
			*to++ = *at;
		}
	}
	*to = '\0';
}

static bool is_prefixfs(const char *line)
{
	const char *dash = strstr(line, " - ");

	return dash && (!strncmp(dash + 3, "fuse.prefixfs ", 14) ||
			       (!strncmp(dash + 3, "fuse ", 5) && !strncmp(dash + 8, "prefixfs ", 9)));
}

bool host_mount_find(const char *mount, struct host_mount_row *ret)
{
	char real[PATH_MAX], point[PATH_MAX];
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	if (!realpath(mount, real)) /* it reads links and asks nobody who serves a file system */
		snprintf(real, sizeof(real), "%s", mount);
	while (f && getline(&line, &size, f) > 0) {
		const char *user = strstr(line, "user_id=");
		unsigned device;

		if (!user || !is_prefixfs(line) || sscanf(line, "%*s %*s %*u:%u %*s %4095s", &device, point) != 2)
			continue;
		unescape(point);
		if (strcmp(point, real))
			continue;
		*ret = (struct host_mount_row){.owner = strtol(user + strlen("user_id="), NULL, 10), .device = device};
		memcpy(ret->point, point, sizeof(ret->point));
		found = true;
	}
	free(line);
	if (f)
		fclose(f);
	return found;
}

struct process {
	char state;
	long parent;
	unsigned long long start; /* in ticks since the host's */
};

/* What follows the process's name in /proc/PID/stat. False: it is gone. */
static bool look_at_process(long pid, struct process *ret)
{
	char path[64], *text, *end;
	bool there;

	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	text = host_read_file(path, NULL);
	end = text ? strrchr(text, ')') : NULL;
	there = end && sscanf(end, ") %c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ret->state,
			       &ret->parent, &ret->start) == 3;
	free(text);
	return there;
}

bool host_process_stopped(long pid)
{
	struct process p;

	return look_at_process(pid, &p) && (p.state == 'T' || p.state == 't');
}

/* How well does this command line fit that of the process which serves @mount? 0: not at all; 2: the mount point, its last argument, is
 * the same, which a bind mount's is not. Arguments end with 0 each. */
static unsigned serves(const char *text, size_t bytes, const struct host_mount_row *mount, bool *disk)
{
	const char *last = "";
	bool found = false;

	*disk = false;
	for (const char *at = text; at < text + bytes; at += strlen(at) + 1) {
		unsigned device;

		found |= sscanf(at, "--serve=%*d,%*d,%*d,%*d,%u,", &device) == 1 && device == mount->device;
		*disk |= !strncmp(at, "--disk=/", strlen("--disk=/"));
		last = at;
	}
	return found ? 1 + !strcmp(last, mount->point) : 0;
}

/* How well does this command line fit that of the parent of what serves @mount, where no process serves? The mount point is its last argument;
 * it is not looked up, for nobody might answer. */
static unsigned is_parent(const char *text, size_t bytes, const struct host_mount_row *mount)
{
	const char *name = strrchr(text, '/'), *last = text;

	if (strcmp(name ? name + 1 : text, "prefixfsd") != 0)
		return 0;
	for (const char *at = text; at < text + bytes; at += strlen(at) + 1) {
		if (!strncmp(at, "--serve=", strlen("--serve=")))
			return 0;
		last = at;
	}
	const char *slash = strrchr(last, '/'), *point = strrchr(mount->point, '/');
	char above[PATH_MAX], real[PATH_MAX], wanted[PATH_MAX];

	if (*last != '/' || strcmp(slash, point) != 0)
		return 0;
	snprintf(above, sizeof(above), "%.*s", slash == last ? 1 : (int)(slash - last), last);
	snprintf(wanted, sizeof(wanted), "%.*s", point == mount->point ? 1 : (int)(point - mount->point), mount->point);
	return realpath(above, real) && !strcmp(real, wanted);
}

/* The kernel gives a number of a device that is gone to the next mount, and a daemon may still write down what it held when another one has its
 * number: of those that fit best, it is the one that began last. A parent fits worst: where somebody serves it is
 * found by that. */
bool host_daemon_find(const struct host_mount_row *mount, struct host_daemon *ret)
{
	DIR *d = opendir("/proc");
	unsigned long long start = 0;
	struct dirent *e;
	unsigned best = 0;

	*ret = (struct host_daemon){0};
	while (d && (e = readdir(d))) {
		char path[PATH_MAX], *text;
		struct process p;
		struct stat st;
		unsigned fits;
		size_t bytes;
		bool disk;

		if (e->d_name[0] < '1' || e->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/cmdline", e->d_name);
		if (stat(path, &st) || (long)st.st_uid != mount->owner) /* anybody may have such arguments */
			continue;
		text = host_read_file(path, &bytes);
		long pid = strtol(e->d_name, NULL, 10);
		bool parent;
		fits = text ? 2 * serves(text, bytes, mount, &disk) : 0;
		parent = text && !fits && is_parent(text, bytes, mount);
		fits += parent;
		free(text);
		if (!fits || fits < best || !look_at_process(pid, &p) || (fits == best && p.start < start))
			continue;
		best = fits;
		start = p.start;
		*ret = parent ? (struct host_daemon){.parent = pid, .disk = disk} : (struct host_daemon){p.parent, pid, disk};
	}
	if (d)
		closedir(d);
	return best > 0;
}

static const char *only_mount(void)
{
	static char found[PATH_MAX];
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t size = 0;
	unsigned count = 0;

	if (!f) {
		complain("/proc/self/mountinfo: %s", strerror(errno));
		return NULL;
	}
	while (getline(&line, &size, f) > 0) {
		char point[PATH_MAX];

		if (is_prefixfs(line) && sscanf(line, "%*s %*s %*s %*s %4095s", point) == 1) {
			unescape(point);
			memcpy(found, point, sizeof(found));
			count++;
		}
	}
	free(line);
	fclose(f);
	if (count == 1)
		return found;
	if (count)
		complain("%u prefixfs mounts are here: name one with --mount or PREFIXFS_MOUNT", count);
	else
		complain("no prefixfs is mounted here: prefixfs mount MOUNTPOINT starts one");
	return NULL;
}

const char *host_mount(const char *given)
{
	const char *mount = given ? given : getenv("PREFIXFS_MOUNT");

	return mount && *mount ? mount : only_mount();
}

int host_path(char to[PATH_MAX], const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(to, PATH_MAX, format, args);
	va_end(args);
	return n < 0 || n >= PATH_MAX ? complain("a path has %d bytes, at most %d are possible", n, PATH_MAX - 1) : 0;
}

#define NAME_MAX_BYTES 64u /* of a namespace */

/* What somebody typed, fit for a terminal: at most 80 bytes, others than printable ASCII as '?'. */
static const char *printable(const char *text)
{
	static char shown[81];
	size_t n = 0;

	for (; n < sizeof(shown) - 1 && text[n]; n++)
		shown[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
	shown[n] = '\0';
	return shown;
}

int host_mounted(const char *mount)
{
	char health[PATH_MAX];
	struct statvfs room;

	if (host_path(health, "%s/health", mount))
		return 1;
	if (!access(health, F_OK)) /* a fallen mount answers nothing else; the kernel remembers none of statfs */
		return statvfs(mount, &room) && errno == EIO && fallen_is(mount) ? fallen_complain(mount) : 0;
	if (errno == ENOTCONN)
		return complain("nobody serves the mount %s: prefixfs mount %s starts it again", mount, mount);
	if (errno == ENOENT && !access(mount, F_OK))
		return complain("no prefixfs is mounted at %s", mount);
	return complain("no prefixfs is mounted at %s: %s", mount, strerror(errno));
}

int host_new_namespace(char to[PATH_MAX], const char *mount, const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t bytes = strlen(name);

	if (bytes == 0 || bytes > NAME_MAX_BYTES || name[0] == '.' || strspn(name, allowed) != bytes)
		return complain("'%s' is no name of a namespace: 1 to %u of A-Z a-z 0-9 . _ -, not beginning with a dot",
			printable(name), NAME_MAX_BYTES);
	if (host_mounted(mount))
		return 1;
	return host_path(to, "%s/ns/%s", mount, name);
}

int host_namespace(char to[PATH_MAX], const char *mount, const char *name, const char *rest)
{
	char path[PATH_MAX];

	if (host_new_namespace(path, mount, name))
		return 1;
	if (access(path, F_OK) && errno == ENOENT)
		return complain("no namespace %s in %s", name, mount);
	return host_path(to, "%s%s", path, rest);
}

int host_record(char to[PATH_MAX], const char *records, const char *name)
{
	static const char digits[] = "0123456789abcdef";

	if (strspn(name, digits) != 16 || name[16] != '-' || strspn(name + 17, digits) != 64 || name[81])
		return complain("'%s' is no name of a record: 16 hex digits, '-', 64 hex digits", printable(name));
	return host_path(to, "%s/%s", records, name);
}

char *host_read_file(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), error = 0;
	size_t have = 0, room = 0;
	char *text = NULL;
	ssize_t n = 1;

	if (fd < 0)
		return NULL;
	while (n > 0 && have < FILE_MAX) {
		if (room - have < 4096) {
			char *p = realloc(text, room + 65536 + 1);

			if (!p) {
				error = ENOMEM;
				break;
			}
			text = p;
			room += 65536;
		}
		n = read(fd, text + have, room - have);
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n < 0)
			error = errno;
		else
			have += (size_t)n;
	}
	close(fd);
	if (error) {
		free(text);
		errno = error;
		return NULL;
	}
	text[have] = '\0';
	if (bytes)
		*bytes = have;
	return text;
}

/* In a process of its own, which may be left behind in the mount. The text, or an errno as its exit status. */
__attribute__((noreturn)) static void read_for(const char *path, int to)
{
	size_t bytes;
	char *text = host_read_file(path, &bytes);

	for (size_t at = 0; text && at < bytes;) {
		ssize_t n = write(to, text + at, bytes - at);

		if (n <= 0)
			_exit(EIO);
		at += (size_t)n;
	}
	_exit(text ? 0 : errno);
}

/* All that comes from @from until @until_ns, to be freed; NULL with errno. */
static char *collect(int from, uint64_t until_ns)
{
	char *text = malloc(FILE_MAX + 1);
	size_t have = 0;
	int error = text ? 0 : ENOMEM;
	ssize_t n = 1;

	while (!error && n > 0) {
		struct pollfd p = {.fd = from, .events = POLLIN};
		uint64_t now = clock_ns();
		int r = poll(&p, 1, now < until_ns ? (int)((until_ns - now) / 1000000) + 1 : 0);

		if (r > 0)
			n = read(from, text + have, FILE_MAX - have);
		error = r == 0 ? ETIMEDOUT : (r < 0 || n < 0) && errno != EINTR ? errno : 0;
		have += r > 0 && n > 0 ? (size_t)n : 0;
		n = n < 0 ? 1 : n;
	}
	if (error) {
		free(text);
		errno = error;
		return NULL;
	}
	text[have] = '\0';
	return text;
}

char *host_read_within(const char *path, unsigned ms)
{
	uint64_t until_ns = clock_ns() + ms * 1000000ull;
	int ends[2], status = 0;
	char *text;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return NULL;
	pid = fork();
	if (pid == 0)
		read_for(path, ends[1]);
	close(ends[1]);
	text = pid > 0 ? collect(ends[0], until_ns) : NULL;
	close(ends[0]);
	if (!text) {
		int error = errno;

		if (pid > 0)
			kill(pid, SIGKILL); /* not waited for: its call may not end before the daemon does */
		errno = error;
		return NULL;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status == 0)
		return text;
	free(text);
	errno = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
	return NULL;
}

/* One line "name: value" or "name value". */
static bool split_line(const char *line, size_t length, size_t *name, const char **value, size_t *bytes)
{
	const char *space = memchr(line, ' ', length), *colon = NULL;

	for (const char *c = line; c + 1 < line + length && !colon; c++)
		if (c[0] == ':' && c[1] == ' ')
			colon = c;
	if (!colon && !space)
		return false;
	*name = (size_t)((colon ? colon : space) - line);
	*value = colon ? colon + 2 : space + 1;
	while (*value < line + length && **value == ' ')
		(*value)++;
	*bytes = length - (size_t)(*value - line);
	return *name > 0;
}

char *host_line(const char *text, const char *wanted)
{
	while (*text) {
		size_t length = strcspn(text, "\n"), name, bytes;
		const char *value;

		if (split_line(text, length, &name, &value, &bytes) && name == strlen(wanted) &&
			!memcmp(text, wanted, name))
			return strndup(value, bytes);
		text += length + (text[length] == '\n');
	}
	return NULL;
}

static json_t *value_of(const char *text, size_t bytes)
{
	char copy[32], *end;

	if (bytes > 0 && bytes < sizeof(copy)) {
		memcpy(copy, text, bytes);
		copy[bytes] = '\0';
		if (strspn(copy, "0123456789") == bytes && (bytes == 1 || copy[0] != '0')) {
			long long n = strtoll(copy, &end, 10);

			if (!*end && errno != ERANGE)
				return json_integer(n);
		}
		if (strspn(copy, "0123456789.") == bytes && strchr(copy, '.') && copy[0] != '.') {
			double d = strtod(copy, &end);

			if (!*end)
				return json_real(d);
		}
	}
	return json_stringn(text, bytes);
}

json_t *host_lines(const char *text)
{
	json_t *object = json_object();

	errno = 0;
	while (*text) {
		size_t length = strcspn(text, "\n"), name, bytes;
		const char *value;

		if (split_line(text, length, &name, &value, &bytes)) {
			char key[128];

			snprintf(key, sizeof(key), "%.*s", (int)name, text);
			json_object_set_new(object, key, value_of(value, bytes));
		}
		text += length + (text[length] == '\n');
	}
	return object;
}

#define ANSWER_BYTES 16384 /* of the text face, at most */

int host_command(int fd, const char *command, json_t **answer)
{
	static char text[ANSWER_BYTES];
	int error = write(fd, command, strlen(command)) < 0 ? errno : 0;
	ssize_t n = read(fd, text, sizeof(text));

	*answer = n > 0 ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
	return error;
}

const char *host_command_why(const json_t *answer, int error)
{
	const char *why = json_string_value(json_object_get(answer, "error"));

	return why ? why : strerror(error);
}

json_t *host_namespaces(const char *mount)
{
	json_t *names = json_array();
	char path[PATH_MAX];
	struct dirent *e;
	DIR *d;

	if (host_mounted(mount) || host_path(path, "%s/ns", mount)) {
		json_decref(names);
		return NULL;
	}
	d = opendir(path);
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			json_array_append_new(names, json_string(e->d_name));
	if (d)
		closedir(d);
	return names;
}

const char *host_program_folder(void)
{
	static char folder[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
	char *slash;

	folder[n > 0 ? n : 0] = '\0';
	slash = strrchr(folder, '/');
	if (slash)
		*slash = '\0';
	return folder[0] ? folder : ".";
}
