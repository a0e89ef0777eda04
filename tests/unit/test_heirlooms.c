/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parent holds, given to the next serving process: whole, in pieces while the channel is full, and refused where it is not what
 * was said.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/heirlooms.h"
#include "fs/keeper.h"
#include "store/base/cleanup.h"

#define SOON_MS 50 /* for what does not come */
#define LONG_MS 10000

static int parent = -1, child = -1;
static struct kept kept;
static struct heirlooms heirlooms;

static int setup(void **state)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	parent = pair[0];
	child = pair[1];
	fcntl(parent, F_SETFL, O_NONBLOCK);
	return 0;
}

static int teardown(void **state)
{
	heirlooms_end(&heirlooms, child);
	kept_clear(&kept);
	closep(&parent);
	closep(&child);
	return 0;
}

static struct keeper_message named(const char *what, const char *name, uint64_t number)
{
	struct keeper_message m = {.kind = KEEPER_KEEP, .number = number};

	snprintf(m.what, sizeof(m.what), "%s", what);
	snprintf(m.name, sizeof(m.name), "%s", name);
	return m;
}

/* Returns the inode of what is held. */
static ino_t keep(const char *what, const char *name, uint64_t number)
{
	struct keeper_message m = named(what, name, number);
	int fd = memfd_create("heirloom", MFD_CLOEXEC);
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	kept_add(&kept, &m, fd);
	return st.st_ino;
}

static ino_t inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void give_all(void)
{
	uint32_t cursor = 0;

	assert_int_equal(heirlooms_give(&kept, parent, &cursor), 0);
	assert_int_equal(cursor, kept.count);
}

static int receive(int timeout_ms, struct why *why)
{
	*why = (struct why)WHY_INIT;
	return heirlooms_receive(child, timeout_ms, &heirlooms, why);
}

static void expect_drop(const char *what, const char *name, uint64_t number)
{
	struct keeper_message m;
	int fd;

	assert_int_equal(keeper_receive(parent, &m, &fd), 1);
	assert_int_equal(m.kind, KEEPER_DROP);
	assert_string_equal(m.what, what);
	assert_string_equal(m.name, name);
	assert_int_equal(m.number, number);
	kept_drop(&kept, &m);
}

static void expect_nothing(void)
{
	struct keeper_message m;
	int fd;

	assert_int_equal(keeper_receive(parent, &m, &fd), -EAGAIN);
}

static void test_nothing(void **state)
{
	struct why why;

	give_all();
	assert_int_equal(receive(LONG_MS, &why), 0);
	assert_int_equal(heirlooms.space_count + heirlooms.session_count, 0);
	heirlooms_end(&heirlooms, child);
	expect_nothing();
}

static void test_taken(void **state)
{
	ino_t segment = keep("segment", "a", 7), tables = keep("tables", "a", 7), session = keep("session", "a", 31);
	int fds[2] = {-1, -1};
	uint64_t serial = 0;
	struct why why;

	give_all();
	assert_int_equal(receive(LONG_MS, &why), 0);
	assert_false(heirlooms_take_space(&heirlooms, "b", &fds[0], &fds[1], &serial));
	assert_true(heirlooms_take_space(&heirlooms, "a", &fds[0], &fds[1], &serial));
	assert_int_equal(inode(fds[0]), segment);
	assert_int_equal(inode(fds[1]), tables);
	assert_int_equal(serial, 7);
	assert_int_equal(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
	assert_false(heirlooms_take_space(&heirlooms, "a", &fds[0], &fds[1], &serial));
	int guard_fd = -2;
	assert_int_equal(heirlooms_take_session(&heirlooms, 30, &guard_fd), -1);
	assert_int_equal(guard_fd, -1);
	int pidfd = heirlooms_take_session(&heirlooms, 31, &guard_fd);
	assert_int_equal(inode(pidfd), session);
	assert_int_equal(guard_fd, -1);
	assert_int_equal(heirlooms_take_session(&heirlooms, 31, &guard_fd), -1);
	heirlooms_end(&heirlooms, child);
	expect_nothing();
	assert_int_equal(inode(fds[0]), segment); /* they are the caller's */
	close(fds[0]);
	close(fds[1]);
	close(pidfd);
	assert_int_equal(kept.count, 3); /* and copies stay */
}

static void test_dropped(void **state)
{
	int fds[2];
	uint64_t serial;
	struct why why;

	keep("segment", "a", 7);
	keep("tables", "a", 7);
	keep("tables", "half", 8);
	keep("session", "a", 31);
	give_all();
	assert_int_equal(receive(LONG_MS, &why), 0);
	assert_false(heirlooms_take_space(&heirlooms, "half", &fds[0], &fds[1], &serial));
	heirlooms_end(&heirlooms, child);
	expect_drop("segment", "a", 7);
	expect_drop("tables", "a", 7);
	expect_drop("segment", "half", 8);
	expect_drop("tables", "half", 8);
	expect_drop("session", "a", 31);
	expect_nothing();
	assert_int_equal(kept.count, 0);
}

/* A session's two processes, in whichever order the parent has them. One whose client is missing was never welcomed. */
static void test_guards(void **state)
{
	ino_t client[2], guard[2];
	struct why why;
	int fds[2];

	guard[0] = keep("guard", "a", 31);
	client[0] = keep("session", "a", 31);
	client[1] = keep("session", "a", 32);
	guard[1] = keep("guard", "a", 32);
	keep("guard", "a", 33);
	keep("guard", "a", 34);
	keep("session", "a", 34);
	give_all();
	assert_int_equal(receive(LONG_MS, &why), 0);
	assert_int_equal(heirlooms.session_count, 4);
	for (uint64_t i = 0; i < 2; i++) {
		fds[0] = heirlooms_take_session(&heirlooms, 31 + i, &fds[1]);
		assert_int_equal(inode(fds[0]), client[i]);
		assert_int_equal(inode(fds[1]), guard[i]);
		close(fds[0]);
		close(fds[1]);
	}
	assert_int_equal(heirlooms_take_session(&heirlooms, 33, &fds[1]), -1);
	assert_int_equal(fds[1], -1);
	heirlooms_end(&heirlooms, child);
	expect_drop("session", "a", 33);
	expect_drop("guard", "a", 33);
	expect_drop("session", "a", 34);
	expect_drop("guard", "a", 34);
	expect_nothing();
	assert_int_equal(kept.count, 4);
}

static void test_of_one_name_the_last(void **state)
{
	int fds[2];
	uint64_t serial;
	struct why why;

	for (uint64_t number = 3; number > 0; number--) {
		keep("segment", "a", number);
		keep("tables", "a", number);
	}
	give_all();
	assert_int_equal(receive(LONG_MS, &why), 0);
	assert_int_equal(heirlooms.space_count, 1);
	assert_true(heirlooms_take_space(&heirlooms, "a", &fds[0], &fds[1], &serial));
	assert_int_equal(serial, 3);
	close(fds[0]);
	close(fds[1]);
	expect_drop("segment", "a", 2);
	expect_drop("tables", "a", 2);
	expect_drop("segment", "a", 1);
	expect_drop("tables", "a", 1);
	expect_nothing();
}

/* More than the channel takes at once: the parent goes on where it was. */
static void test_in_pieces(void **state)
{
	struct heirlooms got = {0};
	uint32_t cursor = 0, full = 0;
	int r;

	for (uint64_t number = 1; number <= 600; number++)
		keep("session", "a", number);
	/* The child's side by hand: heirlooms_receive would wait for what the same thread has to send. */
	while ((r = heirlooms_give(&kept, parent, &cursor)) != 0) {
		struct keeper_message m;
		int fd;

		assert_int_equal(r, -EAGAIN);
		full++;
		while (keeper_receive(child, &m, &fd) == 1) {
			assert_int_equal(m.kind, KEEPER_GIVE);
			assert_int_equal(m.number, ++got.session_count);
			assert_true(fd >= 0);
			close(fd);
		}
	}
	assert_true(full > 0);
	assert_int_equal(cursor, 600);
}

static void test_refusals(void **state)
{
	struct why why;

	assert_int_equal(receive(SOON_MS, &why), -ETIMEDOUT);
	assert_int_equal(keeper_send(parent, KEEPER_STOP, "", "", 0, -1), 0);
	assert_int_equal(receive(LONG_MS, &why), -EPROTO);
	assert_non_null(strstr(why.text, "before it has given"));
	assert_int_equal(keeper_send(parent, KEEPER_GIVEN, "", "", 1, -1), 0);
	assert_int_equal(receive(LONG_MS, &why), -EPROTO);
	assert_string_equal(why.text, "the parent gave 1 descriptors, and 0 came");
	assert_int_equal(keeper_send(parent, KEEPER_GIVE, "session", "a", 4, -1), 0);
	assert_int_equal(receive(LONG_MS, &why), -EMFILE);
	assert_non_null(strstr(why.text, "session a 4"));
	assert_int_equal(keeper_send(parent, KEEPER_GIVE, "spoon", "a", 4, child), 0);
	assert_int_equal(receive(LONG_MS, &why), -EPROTO);
	assert_non_null(strstr(why.text, "spoon"));
	assert_int_equal(write(parent, "?", 1), 1);
	assert_int_equal(receive(LONG_MS, &why), -EPROTO);
	closep(&parent);
	assert_int_equal(receive(LONG_MS, &why), -ECONNRESET);
	assert_int_equal(heirlooms.space_count + heirlooms.session_count, 0);
}

/* What does not fit is closed and counted; one of the same name takes the other's place. */
static void test_most_that_is_held(void **state)
{
	struct keeper_message m = named("session", "a", 0);

	for (m.number = 0; m.number < KEPT_MAX; m.number++)
		kept_add(&kept, &m, dup(STDERR_FILENO));
	assert_int_equal(kept.count, KEPT_MAX);
	int last = dup(STDERR_FILENO);
	kept_add(&kept, &m, last);
	assert_int_equal(kept.count, KEPT_MAX);
	assert_int_equal(kept.refused, 1);
	assert_int_equal(fcntl(last, F_GETFD), -1);
	m.number = 0;
	kept_add(&kept, &m, dup(STDERR_FILENO));
	assert_int_equal(kept.refused, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_taken, setup, teardown),
		cmocka_unit_test_setup_teardown(test_dropped, setup, teardown),
		cmocka_unit_test_setup_teardown(test_guards, setup, teardown),
		cmocka_unit_test_setup_teardown(test_of_one_name_the_last, setup, teardown),
		cmocka_unit_test_setup_teardown(test_in_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
		cmocka_unit_test_setup_teardown(test_most_that_is_held, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
