/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection across serving processes, with the kernel: a mount in a scratch folder whose server is killed while it has a request,
 * and a second one that answers. Needs root, /dev/fuse and a kernel that sends again.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/connection.h"
#include "fs/mount.h"

#define PATIENCE_S 10 /* whoever hangs for so long is killed by its alarm */
#define SIZE 4242

/* The names in the mount. */
#define SLOW_NODE 2 /* "slow": looked up once the server is told to answer */
#define FILE_NODE 3 /* "file": nothing comes of a poll of it */

static struct config config;
static struct will *will;
static int will_fd = -1, fuse = -1, abort_fd = -1;
static unsigned device;
static pid_t server, client;

/* ---- a server -------------------------------------------------------------------------------------------------------- */

static bool hang;    /* read requests for "slow" and do not answer */
static int said[2];  /* bytes from a server: 'r' it serves, 'h' it hangs, 'a' it answers what was sent again, 'p' somebody polls */

static void tell(char what)
{
	if (write(said[1], &what, 1) != 1)
		_exit(50);
}

static const struct stat file = {.st_mode = S_IFREG | 0644, .st_nlink = 1, .st_size = SIZE};
static const struct stat folder = {.st_mode = S_IFDIR | 0755, .st_nlink = 2};

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {.attr = file};

	if (!strcmp(name, "slow") && hang) {
		tell('h');
		return;
	}
	if (connection_resent())
		tell('a');
	entry.ino = !strcmp(name, "slow") ? SLOW_NODE : FILE_NODE;
	fuse_reply_entry(req, &entry);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fuse_reply_attr(req, ino == FUSE_ROOT_ID ? &folder : &file, 0);
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->fh = atomic_load(&will->epoch) << 16 | 5; /* place 5 */
	fuse_reply_open(req, fi);
}

static void on_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *handle)
{
	if (handle)
		fuse_pollhandle_destroy(handle);
	if (fi->fh >> 16 != atomic_load(&will->epoch)) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	fuse_reply_poll(req, 0);
	tell('p');
}

static const struct fuse_lowlevel_ops ops = {.lookup = on_lookup, .getattr = on_getattr, .open = on_open, .poll = on_poll};

static void begin_serving(struct fs *fs)
{
	struct why why = WHY_INIT;
	enum connection_state state = connection_judge(will, device, &why);

	if (state == CONNECTION_DIFFERENT || connection_open(fs, &ops, fuse, &why))
		_exit(51);
	if (state != CONNECTION_KEPT)
		return;
	if (connection_replay(fs, &why) || connection_resend(fuse, &why))
		_exit(52);
	connection_wake_polls(fuse, will);
}

__attribute__((noreturn)) static void serve(void)
{
	struct fs fs = {.will = will, .device = device};
	struct fuse_buf buffer = {.mem = NULL};

	alarm(PATIENCE_S);
	begin_serving(&fs);
	if (atomic_load(&will->init.answered))
		tell('r');
	for (;;) {
		struct pollfd wait = {.fd = fuse, .events = POLLIN};
		bool was_new = !atomic_load(&will->init.answered);
		int n = poll(&wait, 1, -1) == 1 ? fuse_session_receive_buf(fs.session, &buffer) : 0;

		if (n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR))
			_exit(53);
		if (n < 0)
			continue;
		connection_note(&fs, buffer.mem, (size_t)n);
		fuse_session_process_buf(fs.session, &buffer);
		if (was_new && atomic_load(&will->init.answered))
			tell('r');
	}
}

/* ---- both sides ------------------------------------------------------------------------------------------------------ */

static void expect_said(char what)
{
	struct pollfd wait = {.fd = said[0], .events = POLLIN};
	char byte = 0;

	assert_int_equal(poll(&wait, 1, PATIENCE_S * 1000), 1);
	assert_int_equal(read(said[0], &byte, 1), 1);
	assert_int_equal(byte, what);
}

static void start_server(bool hangs)
{
	will_next(will, false);
	hang = hangs;
	server = fork();
	assert_true(server >= 0);
	if (!server)
		serve();
	expect_said('r');
}

static void kill_server(void)
{
	int status;

	kill(server, SIGKILL);
	assert_int_equal(waitpid(server, &status, 0), server);
	server = 0;
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int end_of_client(void)
{
	int status;

	assert_int_equal(waitpid(client, &status, 0), client);
	client = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void path_of(const char *name, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%.4000s/%s", config.mountpoint, name);
}

/* In a process that may hang: 0, or what it met. */
static void start_stat(const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	path_of(name, path);
	client = fork();
	assert_true(client >= 0);
	if (client)
		return;
	alarm(PATIENCE_S);
	_exit(stat(path, &st) ? errno : st.st_size == SIZE ? 0 : 99);
}

static void start_poll(const char *name)
{
	struct pollfd wait = {.events = POLLIN};
	char path[PATH_MAX];

	path_of(name, path);
	client = fork();
	assert_true(client >= 0);
	if (client)
		return;
	alarm(PATIENCE_S);
	wait.fd = open(path, O_RDONLY | O_CLOEXEC);
	_exit(wait.fd >= 0 && poll(&wait, 1, -1) == 1 && wait.revents == POLLERR ? 0 : 99);
}

static int setup(void **state)
{
	struct why why = WHY_INIT;

	strcpy(config.mountpoint, "/tmp/pfs-unit-XXXXXX");
	assert_non_null(mkdtemp(config.mountpoint));
	assert_int_equal(pipe2(said, O_CLOEXEC), 0);
	assert_int_equal(will_make(&will, &will_fd, &why), 0);
	assert_int_equal(mount_make(&config, &fuse, &device, &why), 0);
	abort_fd = mount_open_abort(device);
	return 0;
}

static void end_process(pid_t *pid)
{
	if (*pid > 0) {
		kill(*pid, SIGKILL);
		waitpid(*pid, NULL, 0);
	}
	*pid = 0;
}

/* Whatever the test did. The connection ends with its last descriptor where there is no fusectl. */
static int teardown(void **state)
{
	mount_abort(abort_fd);
	umount2(config.mountpoint, MNT_DETACH | MNT_FORCE);
	close(fuse);
	end_process(&server);
	end_process(&client);
	if (abort_fd >= 0)
		close(abort_fd);
	close(said[0]);
	close(said[1]);
	will_unmap(&will);
	close(will_fd);
	return rmdir(config.mountpoint);
}

/* ---- the tests ------------------------------------------------------------------------------------------------------- */

/* As in a container: nobody mounted fusectl. */
static void test_the_connection_can_be_ended_where_fusectl_is_mounted_nowhere(void **state)
{
	pid_t hidden;
	int status;

	start_server(true);
	start_stat("slow");
	expect_said('h');
	hidden = fork();
	assert_true(hidden >= 0);
	if (hidden == 0) {
		int fd;

		if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
			_exit(2);
		while (umount2("/sys/fs/fuse/connections", MNT_DETACH) == 0) {
		}
		fd = mount_open_abort(device);
		mount_abort(fd);
		_exit(fd >= 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(hidden, &status, 0), hidden);
	assert_int_equal(status, 0);
	assert_int_equal(end_of_client(), ECONNABORTED);
}

static void test_a_request_that_was_read_is_answered(void **state)
{
	start_server(true);
	start_stat("slow");
	expect_said('h');
	kill_server();
	start_server(false);
	expect_said('a');
	assert_int_equal(end_of_client(), 0);
	start_stat("file"); /* and it goes on as ever */
	assert_int_equal(end_of_client(), 0);
}

static void test_a_request_that_nobody_read_is_answered(void **state)
{
	start_server(true);
	kill_server();
	start_stat("slow");
	usleep(20000);
	start_server(false);
	assert_int_equal(end_of_client(), 0);
}

static void test_two_deaths(void **state)
{
	start_server(true);
	start_stat("slow");
	expect_said('h');
	for (int i = 0; i < 3; i++) {
		kill_server();
		start_server(true);
		expect_said('h'); /* each has it */
	}
	kill_server();
	start_server(false);
	expect_said('a');
	assert_int_equal(end_of_client(), 0);
}

static void test_a_sleeper_learns_that_its_handle_is_gone(void **state)
{
	start_server(false);
	start_poll("file");
	expect_said('p');
	kill_server();
	start_server(false);
	assert_int_equal(end_of_client(), 0);
}

static void test_the_mount_stays(void **state)
{
	struct why why = WHY_INIT;

	start_server(false);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(connection_judge(will, device, &why), CONNECTION_KEPT);
		start_stat("file");
		assert_int_equal(end_of_client(), 0);
		kill_server();
		start_server(false);
	}
	assert_true(mount_present(&config, device));
}

/* Why it cannot be tried here; NULL: it can. */
static const char *lacking(void)
{
	const char *text = NULL;
	struct why why = WHY_INIT;

	if (geteuid() != 0)
		return "it needs root";
	if (access("/dev/fuse", R_OK | W_OK) != 0)
		return "there is no /dev/fuse";
	strcpy(config.mountpoint, "/tmp/pfs-unit-XXXXXX");
	if (!mkdtemp(config.mountpoint))
		return "there is no scratch folder";
	int r = mount_make(&config, &fuse, &device, &why);
	if (!r) {
		close(fuse);
		umount2(config.mountpoint, MNT_DETACH);
	}
	rmdir(config.mountpoint);
	if (r)
		return "nothing can be mounted";
	setup(NULL);
	server = fork();
	if (!server)
		serve();
	struct pollfd wait = {.fd = said[0], .events = POLLIN};
	if (poll(&wait, 1, PATIENCE_S * 1000) != 1)
		text = "nobody serves";
	else if (!connection_survives(will))
		text = "this kernel does not send again (6.9 and later do)";
	teardown(NULL);
	return text;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_connection_can_be_ended_where_fusectl_is_mounted_nowhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_request_that_was_read_is_answered, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_request_that_nobody_read_is_answered, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_deaths, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_sleeper_learns_that_its_handle_is_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_mount_stays, setup, teardown),
	};
	const char *why = lacking();

	if (why) {
		fprintf(stderr, "skipped: %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
