/* SPDX-License-Identifier: Apache-2.0
 *
 * The fallen mount: a reply to every opcode and to garbage; and, as root where there is /dev/fuse, a mount that is answered so after its
 * server was killed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
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
#include "fs/fallen.h"
#include "fs/mount.h"
#include "fs/node.h"

#define TEXT "state: fallen\nreason: signal 9 (Killed)\n"
#define PATIENCE_S 10 /* whoever hangs for so long is killed by its alarm */

static struct fallen fallen;
static uint8_t reply[FALLEN_REPLY_BYTES];
static struct fuse_out_header out;

static uint64_t health(void)
{
	return node_pack((struct node){.kind = NODE_HEALTH});
}

/* The reply's bytes behind its header. */
static size_t ask(uint32_t opcode, uint64_t node, const void *body, size_t bytes)
{
	uint8_t request[512];
	struct fuse_in_header header = {
		.len = (uint32_t)(sizeof(header) + bytes), .opcode = opcode, .unique = 1ull << 63 | 78, .nodeid = node};

	memcpy(request, &header, sizeof(header));
	if (bytes)
		memcpy(request + sizeof(header), body, bytes);
	size_t n = fallen_reply(&fallen, request, sizeof(header) + bytes, reply, sizeof(reply));
	assert_in_range(n, sizeof(out), sizeof(reply));
	memcpy(&out, reply, sizeof(out));
	assert_int_equal(out.len, n);
	assert_true(out.unique == header.unique);
	return n - sizeof(out);
}

static void expect_error(int error, uint32_t opcode, uint64_t node, const void *body, size_t bytes)
{
	assert_int_equal(ask(opcode, node, body, bytes), 0);
	assert_int_equal(out.error, -error);
}

static int begin(void **state)
{
	fallen = (struct fallen){.fuse = -1, .text = TEXT, .bytes = strlen(TEXT)};
	return 0;
}

/* ---- replies --------------------------------------------------------------------------------------------------------- */

static void test_lookup(void **state)
{
	struct fuse_entry_out entry;

	assert_int_equal(ask(FUSE_LOOKUP, 1, "health", 7), sizeof(entry));
	memcpy(&entry, reply + sizeof(out), sizeof(entry));
	assert_true(entry.nodeid == health() && entry.attr.ino == health());
	assert_int_equal(entry.generation, 1);
	assert_int_equal(entry.attr.mode, S_IFREG | 0444);
	assert_int_equal(entry.attr.size, strlen(TEXT));
	assert_int_equal(entry.entry_valid + entry.attr_valid, 0);
	expect_error(EIO, FUSE_LOOKUP, 1, "healthy", 8);
	expect_error(EIO, FUSE_LOOKUP, 1, "health", 6); /* without its end */
	expect_error(EIO, FUSE_LOOKUP, 1, "ns", 3);
	expect_error(EIO, FUSE_LOOKUP, 1, "", 0);
	expect_error(EIO, FUSE_LOOKUP, 5, "health", 7);
}

/* What `ls -l` and `stat` ask besides. ENOSYS of attributes would be remembered by the kernel beyond the fall. */
static void test_attributes(void **state)
{
	struct fuse_getxattr_in in = {.size = 0};
	struct fuse_getxattr_out none = {.size = 1};

	(void)state;
	expect_error(ENOSYS, 52, health(), "", 0); /* FUSE_STATX */
	expect_error(ENODATA, FUSE_GETXATTR, health(), &in, sizeof(in));
	expect_error(ENODATA, FUSE_GETXATTR, 1, &in, sizeof(in));
	expect_error(EIO, FUSE_GETXATTR, 5, &in, sizeof(in));
	expect_error(EIO, FUSE_LISTXATTR, 5, &in, sizeof(in));
	expect_error(EIO, FUSE_LISTXATTR, 1, &in, sizeof(in) - 1);
	assert_int_equal(ask(FUSE_LISTXATTR, health(), &in, sizeof(in)), sizeof(none));
	memcpy(&none, reply + sizeof(out), sizeof(none));
	assert_int_equal(none.size, 0);
	in.size = 100;
	assert_int_equal(ask(FUSE_LISTXATTR, health(), &in, sizeof(in)), 0);
	assert_int_equal(out.error, 0);
}

static void test_getattr(void **state)
{
	struct fuse_getattr_in in = {.getattr_flags = 0};
	struct fuse_attr_out attr;

	assert_int_equal(ask(FUSE_GETATTR, 1, &in, sizeof(in)), sizeof(attr));
	memcpy(&attr, reply + sizeof(out), sizeof(attr));
	assert_int_equal(attr.attr.mode, S_IFDIR | 0555);
	assert_int_equal(ask(FUSE_GETATTR, health(), &in, sizeof(in)), sizeof(attr));
	memcpy(&attr, reply + sizeof(out), sizeof(attr));
	assert_int_equal(attr.attr.mode, S_IFREG | 0444);
	expect_error(EIO, FUSE_GETATTR, 3, &in, sizeof(in));
}

static void test_open_and_read(void **state)
{
	struct fuse_open_in in = {.flags = O_RDONLY};
	struct fuse_read_in part = {.offset = 7, .size = 6};
	struct fuse_open_out opened;

	assert_int_equal(ask(FUSE_OPEN, health(), &in, sizeof(in)), sizeof(opened));
	memcpy(&opened, reply + sizeof(out), sizeof(opened));
	assert_int_equal(opened.open_flags, FOPEN_DIRECT_IO);
	assert_int_equal(ask(FUSE_OPENDIR, 1, &in, sizeof(in)), sizeof(opened));
	expect_error(EIO, FUSE_OPEN, 1, &in, sizeof(in));
	expect_error(EIO, FUSE_OPENDIR, health(), &in, sizeof(in));
	expect_error(EIO, FUSE_OPEN, health(), &in, sizeof(in) - 1);
	in.flags = O_RDWR;
	expect_error(EIO, FUSE_OPEN, health(), &in, sizeof(in));

	assert_int_equal(ask(FUSE_READ, health(), &part, sizeof(part)), 6);
	assert_memory_equal(reply + sizeof(out), "fallen", 6);
	part.size = 4096;
	assert_int_equal(ask(FUSE_READ, health(), &part, sizeof(part)), strlen(TEXT) - 7);
	part.offset = strlen(TEXT);
	assert_int_equal(ask(FUSE_READ, health(), &part, sizeof(part)), 0);
	assert_int_equal(out.error, 0);
	part.offset = UINT64_MAX;
	assert_int_equal(ask(FUSE_READ, health(), &part, sizeof(part)), 0);
	expect_error(EIO, FUSE_READ, 3, &part, sizeof(part)); /* an open file of before */
}

static void test_a_long_text_is_read_in_parts(void **state)
{
	static char text[20000];
	struct fuse_read_in part = {.size = 1 << 20};
	size_t n;

	memset(text, 'x', sizeof(text));
	fallen.text = text;
	fallen.bytes = sizeof(text);
	while ((n = ask(FUSE_READ, health(), &part, sizeof(part))) > 0)
		part.offset += n;
	assert_int_equal(out.error, 0);
	assert_int_equal(part.offset, sizeof(text));
}

static unsigned count_entries(uint32_t opcode, size_t ahead)
{
	struct fuse_read_in in = {.size = (uint32_t)(ahead + 40)}; /* one at a time */
	unsigned n = 0;
	size_t bytes;

	while ((bytes = ask(opcode, 1, &in, sizeof(in))) > 0) {
		static const char *const names[] = {".", "..", "health"};
		struct fuse_dirent d;

		assert_int_equal(bytes, ahead + 32);
		memcpy(&d, reply + sizeof(out) + ahead, FUSE_NAME_OFFSET);
		assert_in_range(n, 0, 2);
		assert_int_equal(d.namelen, strlen(names[n]));
		assert_memory_equal(reply + sizeof(out) + ahead + FUSE_NAME_OFFSET, names[n], d.namelen);
		assert_int_equal(d.off, ++n);
		in.offset = d.off;
	}
	assert_int_equal(out.error, 0);
	in.offset = 0;
	in.size = 4096;
	assert_int_equal(ask(opcode, 1, &in, sizeof(in)), n * (ahead + 32));
	in.offset = UINT64_MAX;
	assert_int_equal(ask(opcode, 1, &in, sizeof(in)), 0);
	expect_error(EIO, opcode, health(), &in, sizeof(in));
	return n;
}

static void test_listing(void **state)
{
	assert_int_equal(count_entries(FUSE_READDIR, 0), 3);
	assert_int_equal(count_entries(FUSE_READDIRPLUS, sizeof(struct fuse_entry_out)), 3);
}

static void test_init(void **state)
{
	struct fuse_init_in in = {.major = 7, .minor = 45, .max_readahead = 131072, .flags = UINT32_MAX};
	struct fuse_init_out init;

	assert_int_equal(ask(FUSE_INIT, 0, &in, sizeof(in)), sizeof(init));
	memcpy(&init, reply + sizeof(out), sizeof(init));
	assert_int_equal(init.major, 7);
	assert_int_equal(init.flags, 0);
	assert_int_equal(init.max_readahead, 131072);
	assert_int_equal(init.max_write, 131072);
	assert_int_equal(ask(FUSE_INIT, 0, &in, 16), sizeof(init)); /* as long as it once was */
	expect_error(EIO, FUSE_INIT, 0, &in, 15);
	in.major = 6;
	expect_error(EPROTO, FUSE_INIT, 0, &in, sizeof(in));
}

static void test_every_opcode(void **state)
{
	struct fuse_in_header header = {.len = sizeof(header), .unique = 2, .nodeid = 1};

	for (uint32_t opcode = 0; opcode < 5000; opcode++) {
		bool none = opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_INTERRUPT || opcode == FUSE_NOTIFY_REPLY;
		bool good = opcode == FUSE_RELEASE || opcode == FUSE_RELEASEDIR || opcode == FUSE_FLUSH;

		header.opcode = opcode;
		for (size_t bytes = 0; bytes < sizeof(header); bytes++)
			assert_int_equal(fallen_reply(&fallen, &header, bytes, reply, sizeof(reply)), 0);
		size_t n = fallen_reply(&fallen, &header, sizeof(header), reply, sizeof(reply));
		memcpy(&out, reply, sizeof(out));
		assert_int_equal(n, none ? 0 : opcode == FUSE_GETATTR ? sizeof(out) + sizeof(struct fuse_attr_out) : sizeof(out));
		if (!none && opcode != FUSE_GETATTR)
			assert_int_equal(out.error, good ? 0 : opcode == 52 ? -ENOSYS : opcode == FUSE_GETXATTR ? -ENODATA : -EIO);
	}
}

/* Memory of its very length: a sanitizer sees whoever reads on. */
static void test_garbage(void **state)
{
	for (unsigned seed = 0; seed < 20000; seed++) {
		unsigned random = seed * 2654435761u + 1;
		size_t bytes = seed % 200;
		uint8_t *request = malloc(bytes + 1);

		for (size_t i = 0; i < bytes; i++)
			request[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
		if (bytes >= sizeof(struct fuse_in_header) && seed % 2) {
			struct fuse_in_header header = {.opcode = seed / 2 % 60, .nodeid = seed % 4 == 1 ? 1 : health()};

			memcpy(request, &header, sizeof(header));
		}
		size_t n = fallen_reply(&fallen, request, bytes, reply, sizeof(reply));
		memcpy(&out, reply, sizeof(out));
		assert_true(n == 0 || (n >= sizeof(out) && n <= sizeof(reply) && out.len == n));
		free(request);
	}
}

/* ---- a mount --------------------------------------------------------------------------------------------------------- */

static struct config config;
static struct will *will;
static int will_fd = -1, fuse = -1, abort_fd = -1, said[2];
static unsigned device;
static pid_t server, client;

static int setup(void **state)
{
	struct why why = WHY_INIT;

	strcpy(config.mountpoint, "/tmp/pfs-unit-XXXXXX");
	assert_non_null(mkdtemp(config.mountpoint));
	assert_int_equal(pipe2(said, O_CLOEXEC), 0);
	assert_int_equal(will_make(&will, &will_fd, &why), 0);
	assert_int_equal(mount_make(&config, &fuse, &device, &why), 0);
	abort_fd = mount_open_abort(device);
	assert_int_equal(fcntl(fuse, F_SETFL, fcntl(fuse, F_GETFL) | O_NONBLOCK), 0);
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

/* Reads one look-up, and stays. */
static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (write(said[1], "h", 1) != 1)
		_exit(50);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct stat folder = {.st_mode = S_IFDIR | 0555, .st_nlink = 2};

	fuse_reply_attr(req, &folder, 0);
}

static const struct fuse_lowlevel_ops hanging = {.lookup = on_lookup, .getattr = on_getattr};

__attribute__((noreturn)) static void serve_and_hang(void)
{
	struct fs fs = {.will = will, .device = device};
	struct fuse_buf buffer = {.mem = NULL};
	struct pollfd wait = {.fd = fuse, .events = POLLIN};

	alarm(PATIENCE_S);
	if (connection_open(&fs, &hanging, fuse, NULL))
		_exit(51);
	while (poll(&wait, 1, -1) == 1)
		if (fuse_session_receive_buf(fs.session, &buffer) > 0)
			fuse_session_process_buf(fs.session, &buffer);
	_exit(52);
}

/* As the parent would: 0 after an unmount. */
__attribute__((noreturn)) static void answer_fallen(void)
{
	struct pollfd wait = {.fd = fuse, .events = POLLIN};
	int r;

	alarm(PATIENCE_S);
	if (fallen_prepare(&fallen))
		_exit(51);
	fallen_begin(&fallen, fuse, will, TEXT, strlen(TEXT));
	while ((r = fallen_answer(&fallen)) >= 0)
		if (!r)
			poll(&wait, 1, -1);
	fallen_end(&fallen);
	_exit(r == -ENODEV ? 0 : 52);
}

static void start(pid_t *pid, void (*run)(void))
{
	*pid = fork();
	assert_true(*pid >= 0);
	if (!*pid)
		run();
}

static int end_of(pid_t *pid)
{
	int status;

	assert_int_equal(waitpid(*pid, &status, 0), *pid);
	*pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static const char *path_of(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%.4000s/%s", config.mountpoint, name);
	return path;
}

/* In a process that may hang: 0 if everything is as it should be, else the number of what is not. */
static void look_around(void)
{
	char text[200] = "";
	struct stat st;
	unsigned names = 0;

	alarm(PATIENCE_S);
	if (stat(config.mountpoint, &st) || st.st_mode != (S_IFDIR | 0555))
		_exit(1);
	int fd = open(path_of("health"), O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text)) != (ssize_t)strlen(TEXT) || strcmp(text, TEXT) != 0 || close(fd))
		_exit(2);
	DIR *dir = opendir(config.mountpoint);
	for (struct dirent *e; dir && (e = readdir(dir));)
		names += !strcmp(e->d_name, "health") ? 100 : 1;
	if (!dir || names != 102 || closedir(dir))
		_exit(3);
	if (stat(path_of("ns"), &st) != -1 || errno != EIO)
		_exit(4);
	if (mkdir(path_of("new"), 0700) != -1 || errno != EIO)
		_exit(5);
	if (unlink(path_of("health")) != -1 || errno != EIO)
		_exit(6);
	if (open(path_of("health"), O_WRONLY | O_CLOEXEC) != -1 || errno != EIO)
		_exit(7);
	_exit(0);
}

static void stat_something(void)
{
	struct stat st;

	alarm(PATIENCE_S);
	_exit(stat(path_of("something"), &st) ? errno : 99);
}

static void test_a_mount_of_its_own(void **state)
{
	struct why why = WHY_INIT;

	start(&server, answer_fallen);
	start(&client, look_around);
	assert_int_equal(end_of(&client), 0);
	assert_int_equal(connection_judge(will, device, &why), CONNECTION_DIFFERENT); /* no serving process goes on with it */
	assert_int_equal(umount2(config.mountpoint, 0), 0);
	assert_int_equal(end_of(&server), 0);
}

static void test_after_a_death(void **state)
{
	struct pollfd wait = {.fd = said[0], .events = POLLIN};

	start(&server, serve_and_hang);
	start(&client, stat_something);
	assert_int_equal(poll(&wait, 1, PATIENCE_S * 1000), 1);
	end_process(&server);
	if (!connection_survives(will)) { /* an old kernel: nothing is said again, and the parent ends the connection */
		end_process(&client);
		return;
	}
	start(&server, answer_fallen);
	assert_int_equal(end_of(&client), EIO);
	start(&client, look_around);
	assert_int_equal(end_of(&client), 0);
	mount_abort(abort_fd);
	umount2(config.mountpoint, MNT_DETACH);
	assert_int_equal(end_of(&server), 0);
}

/* Why no mount can be tried here; NULL: it can. */
static const char *lacking(void)
{
	struct why why = WHY_INIT;

	if (geteuid() != 0)
		return "a mount needs root";
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
	return r ? "nothing can be mounted" : NULL;
}

int main(void)
{
	const struct CMUnitTest replies[] = {
		cmocka_unit_test_setup(test_lookup, begin),
		cmocka_unit_test_setup(test_getattr, begin),
		cmocka_unit_test_setup(test_open_and_read, begin),
		cmocka_unit_test_setup(test_a_long_text_is_read_in_parts, begin),
		cmocka_unit_test_setup(test_listing, begin),
		cmocka_unit_test_setup(test_init, begin),
		cmocka_unit_test_setup(test_attributes, begin),
		cmocka_unit_test_setup(test_every_opcode, begin),
		cmocka_unit_test_setup(test_garbage, begin),
	};
	const struct CMUnitTest mounts[] = {
		cmocka_unit_test_setup_teardown(test_a_mount_of_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(test_after_a_death, setup, teardown),
	};
	int failed = cmocka_run_group_tests(replies, NULL, NULL);
	const char *why = lacking();

	if (failed)
		return failed;
	if (why) {
		fprintf(stderr, "skipped: %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests(mounts, NULL, NULL);
}
