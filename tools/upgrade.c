/* SPDX-License-Identifier: Apache-2.0
 *
 * upgrade: asks the parent of a daemon to have another program serve. The parent is asked and not the mount, which may have nobody who
 * answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"
#include "tools/upgrade.h"

#define DELETED " (deleted)" /* the kernel's, behind the path of a program that was replaced */
#define CONNECT_S 5
#define ANSWER_S 60u         /* judge, drain and start have limits of their own, together less */

/* ---- which program ----------------------------------------------------------------------------------------------------- */

/* The program that the daemon was started from, by its path, where a package has put another by now. */
static int own_program(long parent, char path[PATH_MAX])
{
	char link[64];
	size_t ends = strlen(DELETED);
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/%ld/exe", parent);
	n = readlink(link, path, PATH_MAX - 1);
	if (n < 0)
		return complain("%s: %s; name the program", link, strerror(errno));
	path[n] = '\0';
	if ((size_t)n > ends && !strcmp(path + (size_t)n - ends, DELETED))
		path[(size_t)n - ends] = '\0';
	return 0;
}

/* What can be said of a file before anybody runs it. */
static int check_program(int fd, const char *path)
{
	char head[2];
	struct stat st;

	if (fstat(fd, &st))
		return complain("%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return complain("%s is no regular file", path);
	if (!(st.st_mode & 0111))
		return complain("%s may not be executed: its mode is %04o", path, st.st_mode & 07777);
	if (pread(fd, head, sizeof(head), 0) == sizeof(head) && !memcmp(head, "#!", sizeof(head)))
		return complain("%s is a script: it must be the program itself", path);
	return 0;
}

static int open_program(const char *file, long parent, char path[PATH_MAX])
{
	int fd;

	if (file ? host_path(path, "%s", file) : own_program(parent, path))
		return -1;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for its writer */
	if (fd < 0)
		complain("%s: %s", path, strerror(errno));
	else if (check_program(fd, path)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static int connect_to(const char *path)
{
	const struct timeval longest = {.tv_sec = CONNECT_S};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof(address.sun_path)) {
		complain("the socket %s has a path of %zu bytes, at most %zu are possible", path, strlen(path),
			sizeof(address.sun_path) - 1);
		return -1;
	}
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest)); /* of connect too, where others wait there */
	if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof(address)))
		return fd;
	if (errno == ENOENT)
		complain("%s is not there: the daemon cannot be upgraded while it runs; stop it and start the new one", path);
	else
		complain("%s: %s", path, errno == EAGAIN ? "the daemon's parent does not answer" : strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/* ---- asking ------------------------------------------------------------------------------------------------------------ */

static int send_request(int fd, const struct upgrade_request *request, int program)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
	struct iovec part = {.iov_base = (void *)request, .iov_len = sizeof(*request)};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

	memcpy(CMSG_DATA(&control.header), &program, sizeof(program));
	return sendmsg(fd, &message, MSG_NOSIGNAL) == sizeof(*request) ? 0 : errno;
}

/* One answer, within what is left of @until_ns. 0, or an errno. */
static int receive_answer(int fd, uint64_t until_ns, struct upgrade_answer *answer)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	uint64_t now = clock_ns();
	ssize_t n;

	int r = poll(&wait, 1, now < until_ns ? (int)((until_ns - now) / 1000000) + 1 : 0);
	if (r < 0)
		return errno;
	if (r == 0)
		return ETIMEDOUT;
	n = recv(fd, answer, sizeof(*answer), 0);
	if (n < 0 && errno == ECONNRESET) /* it closed with our words unread; its answer lies behind that */
		n = recv(fd, answer, sizeof(*answer), MSG_DONTWAIT);
	if (n < 0)
		return errno;
	if (n == 0)
		return ECONNRESET;
	answer->text[sizeof(answer->text) - 1] = '\0';
	return n == sizeof(*answer) && answer->magic == UPGRADE_MAGIC ? 0 : EPROTO;
}

/* The parent's words, each as it comes, up to the last one. */
static int hear(int fd, upgrade_heard *heard, void *context, struct upgrade_answer *answer)
{
	uint64_t until = clock_ns() + ANSWER_S * 1000000000ull;
	int error;

	do {
		error = receive_answer(fd, until, answer);
		if (!error && !answer->done && heard)
			heard(context, answer->text);
	} while (error == EINTR || (!error && !answer->done));
	return error;
}

/* The parent was given a descriptor, and does not know the file's name. */
static void name_program(struct upgrade_answer *answer, const char *path)
{
	char text[sizeof(answer->text)];

	memcpy(text, answer->text, sizeof(text));
	snprintf(answer->text, sizeof(answer->text), "%.200s: %.270s", path, text);
}

int upgrade_ask(const char *mount, const char *file, bool judge_only, bool remount, upgrade_heard *heard, void *context,
	struct upgrade_answer *answer)
{
	const struct upgrade_request request = {
		.magic = UPGRADE_MAGIC, .bytes = sizeof(request), .judge_only = judge_only, .remount = remount};
	char socket_path[PATH_MAX], program_path[PATH_MAX];
	int fd = -1, program, error = 0;
	long parent;

	if (upgrade_find(mount, &parent, socket_path))
		return 1;
	program = open_program(file, parent, program_path);
	if (program >= 0)
		fd = connect_to(socket_path);
	if (fd >= 0) {
		error = send_request(fd, &request, program);
		if (!error || error == EPIPE) /* one that is refused at once finds its answer all the same */
			error = hear(fd, heard, context, answer);
		close(fd);
	}
	if (fd >= 0 && !error && answer->error == ENOEXEC)
		name_program(answer, program_path);
	if (program >= 0)
		close(program);
	if (error == ECONNRESET)
		return complain("the daemon at %s ended before it answered", mount);
	if (error)
		return complain("the daemon at %s: %s", mount, error == EPROTO ? "it answers otherwise than this command understands" : strerror(error));
	return fd < 0;
}

bool upgrade_possible(const char *mount)
{
	char health[PATH_MAX], path[PATH_MAX], *text, *socket, *slash;
	bool possible = false;

	if (host_path(health, "%s/health", mount) || !(text = host_read_file(health, NULL)))
		return false;
	socket = host_line(text, "socket");
	slash = socket ? strrchr(socket, '/') : NULL;
	if (slash) {
		*slash = '\0';
		possible = !host_path(path, "%s/" UPGRADE_SOCKET, socket) && !access(path, F_OK);
	}
	free(socket);
	free(text);
	return possible;
}

/* ---- the command -------------------------------------------------------------------------------------------------------- */

static const char more[] =
	"\nFILE is a prefixfsd; without it, the one that stands now where the daemon was started from. It is run with --judge\n"
	"first, and refused when it could not take over what is there. Then requests under way are answered, the serving\n"
	"process ends, and one of FILE takes its place: the mount, the cache and the engines' registrations stay. Clients wait\n"
	"meanwhile, and attach anew by themselves. If it does not come to serve, the old program serves again. Options are the\n"
	"daemon's own, and stay.";

static void show_word(void *context, const char *text)
{
	printf("%s\n", text);
	fflush(stdout);
}

int command_upgrade(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool judge_only = false, remount = false, json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"judge-only", OPTION_FLAG, &judge_only, NULL, "say whether FILE could take over, and change nothing", 0, 0},
		{"remount", OPTION_FLAG, &remount, NULL, "also when the mount must be made anew: what is open there is lost", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object: mount, upgraded, errno, text, pause_ms", 0, 0},
		{0},
	};
	struct command with_more = *self;
	struct upgrade_answer answer;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc > 1)
		return usage_error(self, "one program is expected, %d are given", argc);
	if (argc && !*argv[0])
		return usage_error(self, "the program's name is empty");
	mount = host_mount(mount);
	if (!mount || upgrade_ask(mount, argc ? argv[0] : NULL, judge_only, remount, json ? NULL : show_word, NULL, &answer))
		return 1;
	if (json) {
		show_object(json_pack("{s:s, s:b, s:I, s:s, s:o}", "mount", mount, "upgraded", !judge_only && !answer.error, "errno",
				    (json_int_t)answer.error, "text", answer.text, "pause_ms",
				    !judge_only && !answer.error ? json_real(answer.pause_us / 1000.0) : json_null()),
			true);
		return answer.error != 0;
	}
	if (answer.error)
		return complain("%s", answer.text);
	printf("%s\n", answer.text);
	return 0;
}
