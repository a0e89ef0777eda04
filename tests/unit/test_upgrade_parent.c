/* SPDX-License-Identifier: Apache-2.0
 *
 * An upgrade from the parent's side: who asks over a socket, a judge that is this very program with --judge, and serving processes that
 * are calls alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/upgrade_parent.h"
#include "fs/version.h"
#include "store/base/clock.h"

#define PATIENCE_MS 20000
#define MS 1000000ull

static struct config config;
static struct will_init init;
static struct upgrade_parent upgrade;
static int asker;
static char calls[256]; /* what the parent was asked to do, a letter each */
static int start_error, hand_over_result, kept_program;
static uint32_t tables;
static bool loads; /* what is started takes its time, and says when it has what it can have */

/* ---- the judge ----------------------------------------------------------------------------------------------------------- */

/* What the program does when it is run with --judge: PFS_TEST_JUDGE says it. */
static int play_judge(void)
{
	const char *how = getenv("PFS_TEST_JUDGE");
	static struct upgrade_verdict verdict;
	static uint8_t input[WILL_INIT_BYTES + 1];
	ssize_t n = read(STDIN_FILENO, input, sizeof(input));

	verdict = (struct upgrade_verdict){
		.magic = UPGRADE_MAGIC,
		.bytes = sizeof(verdict),
		.will_version = WILL_VERSION,
		.tables_oldest = 4,
		.tables_newest = 4,
		.version = "9.9.9",
	};
	if (!strcmp(how, "hang"))
		pause();
	if (!strcmp(how, "status"))
		return 3;
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "silent"))
		return 0;
	if (!strcmp(how, "garbage"))
		return write(STDOUT_FILENO, "usage: something else", 21) == 21 ? 0 : 9;
	if (!strcmp(how, "short"))
		return write(STDOUT_FILENO, &verdict, 100) == 100 ? 0 : 9;
	if (!strcmp(how, "later")) {
		verdict.will_version = WILL_VERSION + 1;
		verdict.bytes = 100;
		return write(STDOUT_FILENO, &verdict, 100) == 100 ? 0 : 9;
	}
	if (!strcmp(how, "echo")) { /* the kernel's INIT came whole */
		memcpy(verdict.reply, input, (size_t)n);
		verdict.reply_bytes = (uint32_t)n;
	}
	if (write(STDOUT_FILENO, &verdict, sizeof(verdict)) != sizeof(verdict))
		return 9;
	return !strcmp(how, "more") && write(STDOUT_FILENO, "more", 4) != 4 ? 9 : 0;
}

/* ---- the parent ---------------------------------------------------------------------------------------------------------- */

static void note(char letter)
{
	size_t n = strlen(calls);

	assert_in_range(n, 0, sizeof(calls) - 2);
	calls[n] = letter;
	calls[n + 1] = '\0';
}

static uint32_t on_tables(void *context)
{
	return tables;
}

static int on_start(void *context, int program, bool remount, struct why *why)
{
	note(program < 0 ? 'o' : remount ? 'N' : 'n');
	return start_error ? why_set(why, start_error, "fork: %s", strerror(start_error)) : !loads;
}

static int on_hand_over(void *context)
{
	note('h');
	return hand_over_result;
}

static void on_kill_old(void *context)
{
	note('k');
}

static void on_succeed(void *context)
{
	note('s');
}

static void on_kill_new(void *context)
{
	note('K');
}

static void on_keep(void *context, int program)
{
	note('p');
	kept_program = program;
}

static const struct upgrade_calls parent_calls = {
	.tables_version = on_tables,
	.start_program = on_start,
	.hand_over = on_hand_over,
	.kill_old = on_kill_old,
	.succeed = on_succeed,
	.kill_new = on_kill_new,
	.keep_program = on_keep,
};

static int connect_asker(void)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	upgrade_parent_take(&upgrade, pair[0], clock_now_ns());
	return pair[1];
}

static int begin(void **state)
{
	config_init(&config);
	strcpy(config.mountpoint, "/nowhere");
	memset(&init, 0, sizeof(init));
	calls[0] = '\0';
	start_error = hand_over_result = 0;
	kept_program = -1;
	tables = 4;
	loads = false;
	upgrade_parent_init(&upgrade, &parent_calls, &config, &init);
	asker = connect_asker();
	return 0;
}

static int end(void **state)
{
	upgrade_parent_end(&upgrade);
	close(asker);
	if (kept_program >= 0)
		close(kept_program);
	return 0;
}

static void ask_with(const void *request, size_t bytes, int program)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
	struct iovec part = {.iov_base = (void *)request, .iov_len = bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (program >= 0) {
		memcpy(CMSG_DATA(&control.header), &program, sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	assert_int_equal(sendmsg(asker, &message, 0), bytes);
}

static void ask(const char *how, bool judge_only, bool remount)
{
	const struct upgrade_request request = {
		.magic = UPGRADE_MAGIC, .bytes = sizeof(request), .judge_only = judge_only, .remount = remount};
	int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	setenv("PFS_TEST_JUDGE", how, 1);
	ask_with(&request, sizeof(request), program);
	close(program);
}

/* As the parent's loop, until @state. */
static void run_until(enum upgrade_state state)
{
	uint64_t until = clock_now_ns() + PATIENCE_MS * MS;

	while (upgrade.state != state) {
		struct pollfd fds[UPGRADE_PARENT_FDS];
		uint64_t now = clock_now_ns();
		int timeout = upgrade_parent_timeout(&upgrade, now);

		assert_true(now < until);
		poll(fds, upgrade_parent_fds(&upgrade, fds), timeout < 0 || timeout > 1000 ? 1000 : timeout);
		upgrade_parent_hear(&upgrade, clock_now_ns());
	}
}

/* The next answer: its text is the first one that begins so. */
static struct upgrade_answer expect(bool done, int error, const char *text)
{
	struct upgrade_answer a;

	assert_int_equal(recv(asker, &a, sizeof(a), 0), sizeof(a));
	assert_true(a.magic == UPGRADE_MAGIC);
	if (strncmp(a.text, text, strlen(text)))
		assert_string_equal(a.text, text);
	assert_int_equal(a.done, done);
	assert_int_equal(a.error, error);
	return a;
}

static void expect_closed(void)
{
	char byte;

	assert_int_equal(recv(asker, &byte, 1, 0), 0);
	assert_int_equal(upgrade.state, UPGRADE_IDLE);
	assert_int_equal(upgrade.program, -1);
}

static void expect_may_follow(bool done)
{
	char text[100];

	snprintf(text, sizeof(text), "prefixfsd 9.9.9 may follow %s", version_text);
	expect(done, 0, text);
}

/* ---- refusals -------------------------------------------------------------------------------------------------------------- */

static void test_judges(void **state)
{
	static const struct {
		const char *how;
		int error;
		const char *text;
	} rows[] = {
		{"status", ENOEXEC, "the program ended with status 3 when it was asked what it is"},
		{"abort", ENOEXEC, "the program was ended by signal 6 (Aborted) when it was asked what it is"},
		{"silent", ENOEXEC, "the program is no prefixfsd"},
		{"garbage", ENOEXEC, "the program is no prefixfsd"},
		{"short", ENOEXEC, "the program is no prefixfsd"},
		{"more", ENOEXEC, "the program is no prefixfsd"},
		{"later", EPROTO, "prefixfsd 9.9.9 speaks version 3 to its parent, this daemon 2: stop it and start the new one"},
	};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ask(rows[i].how, false, true);
		run_until(UPGRADE_IDLE);
		expect(true, rows[i].error, rows[i].text);
		expect_closed();
		close(asker);
		asker = connect_asker();
	}
	assert_string_equal(calls, "");
}

static void test_older_tables(void **state)
{
	tables = 5;
	ask("good", false, true);
	run_until(UPGRADE_IDLE);
	expect(true, ENOTSUP, "prefixfsd 9.9.9 knows tables of version 4; those here have 5: an older program cannot take them over");
	assert_string_equal(calls, "");
}

static void test_judge_that_hangs(void **state)
{
	ask("hang", false, false);
	run_until(UPGRADE_JUDGING);
	assert_in_range(upgrade_parent_timeout(&upgrade, clock_now_ns()), 1, UPGRADE_JUDGE_MS + 1);
	upgrade_parent_hear(&upgrade, upgrade.until_ns);
	expect(true, ENOEXEC, "the program answered nothing within 5000 ms when it was asked what it is");
	expect_closed();
	close(asker);
	/* It is reaped in its time, and the next one may ask. */
	for (uint64_t until = clock_now_ns() + PATIENCE_MS * MS; upgrade.judge > 0;) {
		struct pollfd fds[UPGRADE_PARENT_FDS];

		assert_true(clock_now_ns() < until);
		poll(fds, upgrade_parent_fds(&upgrade, fds), 1000);
		upgrade_parent_hear(&upgrade, clock_now_ns());
	}
	asker = connect_asker();
	assert_int_equal(upgrade.state, UPGRADE_ASKED);
}

static void test_no_program(void **state)
{
	const struct upgrade_request request = {.magic = UPGRADE_MAGIC, .bytes = sizeof(request)};
	int text = open("/proc/self/status", O_RDONLY | O_CLOEXEC);

	ask_with(&request, sizeof(request), text);
	close(text);
	run_until(UPGRADE_IDLE);
	expect(true, ENOEXEC, "the file is no program that can be run here");
	close(asker);
	asker = connect_asker();
	ask_with(&request, sizeof(request), -1);
	run_until(UPGRADE_IDLE);
	expect(true, EINVAL, "the request for an upgrade came without a program");
	expect_closed();
}

static void test_no_request(void **state)
{
	struct upgrade_request request = {.magic = UPGRADE_MAGIC, .bytes = 12};
	int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	for (unsigned i = 0; i < 3; i++) {
		request.magic = i == 1 ? 7 : UPGRADE_MAGIC;
		request.bytes = i == 1 ? sizeof(request) : 12;
		ask_with(&request, i == 2 ? 5 : sizeof(request), program);
		run_until(UPGRADE_IDLE);
		expect(true, EINVAL, "this is no request for an upgrade of prefixfsd ");
		expect_closed();
		close(asker);
		asker = connect_asker();
	}
	close(program);
	upgrade_parent_hear(&upgrade, upgrade.until_ns);
	expect(true, ETIMEDOUT, "nothing was asked for within 5000 ms");
	expect_closed();
}

static void test_one_at_a_time(void **state)
{
	int first = asker;

	asker = connect_asker();
	expect(true, EBUSY, "an upgrade is under way already");
	close(asker);
	asker = first;
	assert_int_equal(upgrade.state, UPGRADE_ASKED);
}

static void test_asker_goes_while_it_is_judged(void **state)
{
	ask("hang", false, false);
	run_until(UPGRADE_JUDGING);
	close(asker);
	run_until(UPGRADE_IDLE);
	assert_string_equal(calls, "");
	asker = -1;
}

/* ---- the change -------------------------------------------------------------------------------------------------------------- */

static void test_judge_only(void **state)
{
	ask("good", true, false);
	run_until(UPGRADE_IDLE);
	expect_may_follow(true);
	expect_closed();
	assert_string_equal(calls, "");
}

static void drain(void)
{
	ask("good", false, false);
	run_until(UPGRADE_DRAINING);
	expect_may_follow(false);
	assert_true(upgrade_parent_waits(&upgrade));
	assert_string_equal(calls, "nh");
}

static void test_upgrade(void **state)
{
	uint64_t over = clock_now_ns() + 20 * MS;

	drain();
	upgrade_parent_over(&upgrade, over);
	assert_string_equal(calls, "nhs");
	assert_int_equal(upgrade.state, UPGRADE_STARTING);
	upgrade_parent_ready(&upgrade, over + 12500000);
	struct upgrade_answer a = expect(true, 0, "prefixfsd 9.9.9 serves, after a pause of 12.5 ms");
	assert_int_equal(a.pause_us, 12500);
	assert_string_equal(calls, "nhsp");
	assert_true(fcntl(kept_program, F_GETFD) >= 0);
	assert_false(upgrade_parent_waits(&upgrade));
	expect_closed();
}

static void test_old_one_does_not_end(void **state)
{
	drain();
	upgrade_parent_hear(&upgrade, upgrade.until_ns - 1);
	assert_string_equal(calls, "nh");
	upgrade_parent_hear(&upgrade, upgrade.until_ns);
	expect(false, 0, "the old one did not end what it ran within 100 ms and was killed");
	assert_string_equal(calls, "nhk");
	assert_int_equal(upgrade_parent_timeout(&upgrade, clock_now_ns()), -1); /* it is said once */
	upgrade_parent_over(&upgrade, clock_now_ns());
	assert_string_equal(calls, "nhks");
}

static void test_nobody_serves(void **state)
{
	hand_over_result = -ESRCH;
	ask("good", false, false);
	run_until(UPGRADE_STARTING);
	assert_string_equal(calls, "nhs");
	upgrade_parent_over(&upgrade, clock_now_ns()); /* of one before: means nothing */
	upgrade_parent_ready(&upgrade, clock_now_ns());
	expect_may_follow(false);
	expect(true, 0, "prefixfsd 9.9.9 serves, after a pause of ");
}

static void test_it_cannot_be_started(void **state)
{
	start_error = EAGAIN;
	ask("good", false, false);
	run_until(UPGRADE_IDLE);
	expect_may_follow(false);
	expect(true, EAGAIN, "fork: ");
	assert_string_equal(calls, "n");
}

static void load(void)
{
	loads = true;
	ask("good", false, false);
	run_until(UPGRADE_LOADING);
	expect_may_follow(false);
	assert_string_equal(calls, "n"); /* the old one knows nothing of it yet */
	assert_true(upgrade_parent_waits(&upgrade));
}

static void test_it_is_loaded_first(void **state)
{
	load();
	upgrade_parent_loaded(&upgrade, clock_now_ns());
	assert_int_equal(upgrade.state, UPGRADE_DRAINING);
	assert_string_equal(calls, "nh");
	upgrade_parent_loaded(&upgrade, clock_now_ns()); /* once is enough */
	assert_string_equal(calls, "nh");
}

static void test_it_dies_while_it_is_loaded(void **state)
{
	char text[300];

	load();
	upgrade_parent_died(&upgrade, "exit status 3", clock_now_ns());
	snprintf(text, sizeof(text), "the new serving process ended before it served: exit status 3; prefixfsd %s serves on", version_text);
	expect(true, ECANCELED, text);
	assert_string_equal(calls, "n");
	expect_closed();
}

static void test_it_is_never_loaded(void **state)
{
	load();
	upgrade_parent_hear(&upgrade, upgrade.until_ns);
	assert_string_equal(calls, "nK");
	upgrade_parent_died(&upgrade, "signal 9 (Killed)", clock_now_ns());
	expect(true, ECANCELED, "the new serving process ended before it served: it was not ready within 30000 ms and was killed; prefixfsd ");
}

static void test_the_old_one_dies_meanwhile(void **state)
{
	load();
	upgrade_parent_over(&upgrade, clock_now_ns());
	assert_int_equal(upgrade.state, UPGRADE_STARTING);
	assert_string_equal(calls, "ns");
}

static void test_the_parent_reaps_the_judge(void **state)
{
	int status;

	ask("good", true, false);
	run_until(UPGRADE_JUDGING);
	pid_t judge = upgrade.judge;
	assert_int_equal(waitpid(judge, &status, 0), judge);
	assert_false(upgrade_parent_reaped(&upgrade, judge + 1, status));
	assert_true(upgrade_parent_reaped(&upgrade, judge, status));
	assert_false(upgrade_parent_reaped(&upgrade, judge, status));
	run_until(UPGRADE_IDLE);
	expect_may_follow(true);
}

static void expect_back(const char *reason)
{
	char text[300];

	snprintf(text, sizeof(text), "the new serving process ended before it served: %s; the old program is started again", reason);
	expect(false, 0, text);
	assert_int_equal(upgrade.state, UPGRADE_BACK);
	assert_int_equal(upgrade_parent_timeout(&upgrade, clock_now_ns()), -1);
}

static void test_back_again(void **state)
{
	char text[300];

	drain();
	upgrade_parent_over(&upgrade, clock_now_ns());
	upgrade_parent_died(&upgrade, "exit status 3", clock_now_ns());
	expect_back("exit status 3");
	assert_string_equal(calls, "nhsos");
	upgrade_parent_ready(&upgrade, clock_now_ns());
	snprintf(text, sizeof(text), "the new serving process ended before it served: exit status 3; prefixfsd %s serves again", version_text);
	expect(true, ECANCELED, text);
	expect_closed();
}

static void test_it_dies_before_the_old_one_is_over(void **state)
{
	drain();
	upgrade_parent_died(&upgrade, "signal 11 (Segmentation fault)", clock_now_ns());
	assert_string_equal(calls, "nh");
	upgrade_parent_over(&upgrade, clock_now_ns());
	expect_back("signal 11 (Segmentation fault)");
	assert_string_equal(calls, "nhos");
}

static void test_it_is_never_ready(void **state)
{
	drain();
	upgrade_parent_over(&upgrade, clock_now_ns());
	upgrade_parent_hear(&upgrade, upgrade.until_ns);
	assert_string_equal(calls, "nhsK");
	upgrade_parent_died(&upgrade, "signal 9 (Killed)", clock_now_ns());
	expect_back("it was not ready within 30000 ms and was killed");
}

static void test_both_die(void **state)
{
	drain();
	upgrade_parent_over(&upgrade, clock_now_ns());
	upgrade_parent_died(&upgrade, "exit status 3", clock_now_ns());
	expect_back("exit status 3");
	upgrade_parent_died(&upgrade, "signal 9 (Killed)", clock_now_ns());
	expect(true, ECANCELED, "the new serving process ended before it served: exit status 3; prefixfsd ");
	expect_closed();
}

static void test_asker_goes_later(void **state)
{
	drain();
	close(asker);
	asker = -1;
	upgrade_parent_hear(&upgrade, clock_now_ns());
	assert_int_equal(upgrade.state, UPGRADE_DRAINING);
	upgrade_parent_over(&upgrade, clock_now_ns());
	upgrade_parent_ready(&upgrade, clock_now_ns());
	assert_string_equal(calls, "nhsp");
}

static void test_stop(void **state)
{
	drain();
	upgrade_parent_stop(&upgrade);
	expect(true, ESHUTDOWN, "the daemon is being stopped");
	expect_closed();
}

static void answer_init(void)
{
	init.request_bytes = 104;
	init.reply_bytes = 104;
	for (unsigned i = 0; i < 104; i++)
		init.request[i] = init.reply[i] = (uint8_t)i;
}

static void test_the_judge_hears_init(void **state)
{
	answer_init();
	ask("echo", true, false);
	run_until(UPGRADE_IDLE);
	expect_may_follow(true);
}

static void test_remount(void **state)
{
	answer_init();
	ask("good", false, false);
	run_until(UPGRADE_IDLE);
	expect(true, EXDEV, "prefixfsd 9.9.9 gives no answer to the kernel's INIT; the mount would be made anew, which --remount allows");
	close(asker);
	asker = connect_asker();
	ask("good", false, true);
	run_until(UPGRADE_DRAINING);
	expect(false, 0, "prefixfsd 9.9.9 gives no answer to the kernel's INIT");
	expect_may_follow(false);
	assert_string_equal(calls, "Nh");
}

static void test_socket(void **state)
{
	char path[] = "/tmp/pfs-upgrade-XXXXXX", too_long[200];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct why why = WHY_INIT;
	struct stat st;

	upgrade_parent_end(&upgrade);
	close(asker);
	close(mkstemp(path));
	assert_int_equal(upgrade_parent_listen(&upgrade, path, &why), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode, S_IFSOCK | 0600);
	asker = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strcpy(address.sun_path, path);
	assert_int_equal(connect(asker, (struct sockaddr *)&address, sizeof(address)), 0);
	ask("good", true, false);
	run_until(UPGRADE_ASKED);
	run_until(UPGRADE_IDLE);
	expect_may_follow(true);
	unlink(path);
	memset(too_long, 'x', sizeof(too_long) - 1);
	too_long[sizeof(too_long) - 1] = '\0';
	assert_int_equal(upgrade_parent_listen(&upgrade, too_long, &why), -ENAMETOOLONG);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
		TEST(test_judges),
		TEST(test_older_tables),
		TEST(test_judge_that_hangs),
		TEST(test_no_program),
		TEST(test_no_request),
		TEST(test_one_at_a_time),
		TEST(test_asker_goes_while_it_is_judged),
		TEST(test_judge_only),
		TEST(test_upgrade),
		TEST(test_old_one_does_not_end),
		TEST(test_nobody_serves),
		TEST(test_it_cannot_be_started),
		TEST(test_it_is_loaded_first),
		TEST(test_it_dies_while_it_is_loaded),
		TEST(test_it_is_never_loaded),
		TEST(test_the_old_one_dies_meanwhile),
		TEST(test_the_parent_reaps_the_judge),
		TEST(test_back_again),
		TEST(test_it_dies_before_the_old_one_is_over),
		TEST(test_it_is_never_ready),
		TEST(test_both_die),
		TEST(test_asker_goes_later),
		TEST(test_stop),
		TEST(test_the_judge_hears_init),
		TEST(test_remount),
		TEST(test_socket),
#undef TEST
	};

	if (argc > 1 && !strcmp(argv[1], "--judge"))
		return play_judge();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
