/* SPDX-License-Identifier: Apache-2.0
 *
 * The account of a death: reasons and texts from facts.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/client/prefixfs_abi.h"
#include "fs/last_exit.h"

#define EXITED(status) ((status) << 8)
#define NOON 1769860800 /* 2026-01-31T12:00:00Z */

static struct will will;

static struct last_exit_facts facts_of(int status)
{
	memset(&will, 0, sizeof(will));
	return (struct last_exit_facts){
		.status = status,
		.pid = 4711,
		.oom_before = UINT64_MAX,
		.oom_after = UINT64_MAX,
		.will = &will,
		.mount = "/mnt/cache",
		.version = "0.9.0",
		.next = "started again after 0 ms",
	};
}

static void expect(const struct last_exit_facts *facts, const char *expected)
{
	char reason[LAST_EXIT_REASON_BYTES];

	assert_int_equal(last_exit_reason(facts, reason), strlen(expected));
	assert_string_equal(reason, expected);
}

static void last_words(int signal, int code, uint64_t address, uint64_t instruction)
{
	will.code = code;
	will.address = address;
	will.instruction = instruction;
	atomic_store(&will.signal, signal);
}

/* ---- reasons --------------------------------------------------------------------------------------------------------- */

static void test_statuses(void **state)
{
	struct last_exit_facts f = facts_of(EXITED(7));

	expect(&f, "exit status 7");
	f.status = 0;
	expect(&f, "its connection was ended from outside");
	f.status = SIGTERM;
	expect(&f, "signal 15 (Terminated)");
	f.status = SIGSEGV | 0x80; /* with a core */
	expect(&f, "signal 11 (Segmentation fault)");
	f.status = -1;
	expect(&f, "not known yet: it has not been reaped");
	f.will = NULL;
	f.status = SIGKILL;
	expect(&f, "signal 9 (Killed)");
}

static void test_an_assertion_has_its_own_sentence(void **state)
{
	static const char *const lines[] = {
		"2026-01-31T12:00:00.000Z prefixfsd[4711] info: the disk tier is /kv",
		"prefixfsd: ../index/index.c:77: index_take: Assertion `slot < capacity' failed.",
		"2026-01-31T12:00:00.001Z prefixfsd[4711] warning: another thread's",
	};
	static const char *const order[] = {"lock: out of order: taking host while this thread holds: space", ""};
	struct last_exit_facts f = facts_of(SIGABRT);

	f.lines = lines;
	f.line_count = 3;
	expect(&f, "signal 6 (Aborted): ../index/index.c:77: index_take: Assertion `slot < capacity' failed.");
	f.lines = order;
	f.line_count = 2;
	expect(&f, "signal 6 (Aborted): lock: out of order: taking host while this thread holds: space");
	f.line_count = 0;
	expect(&f, "signal 6 (Aborted)");
	f.lines = lines;
	f.line_count = 1; /* the log's own says something else */
	expect(&f, "signal 6 (Aborted)");
	f.status = SIGKILL; /* the handler's way */
	f.line_count = 2;
	last_words(SIGABRT, -6, 0, 0);
	expect(&f, "signal 6 (Aborted): ../index/index.c:77: index_take: Assertion `slot < capacity' failed.");
	f.status = SIGSEGV; /* not of an abort */
	atomic_store(&will.signal, 0);
	expect(&f, "signal 11 (Segmentation fault)");
}

static void test_the_wills_signal(void **state)
{
	struct last_exit_facts f = facts_of(SIGKILL);

	f.populating = true;
	last_words(SIGSEGV, 1, 0x10, 0x4a2f3);
	expect(&f, "signal 11 (Segmentation fault) at address 0x10, in the program at 0x4a2f3");
	last_words(SIGBUS, 2, 0x7f0000001000, 0);
	expect(&f, "signal 7 (Bus error) at address 0x7f0000001000, in a library");
	last_words(SIGSEGV, 0, 0x10, 0x4a2f3); /* sent by somebody: the rest means nothing */
	expect(&f, "signal 11 (Segmentation fault)");
	f.status = -1;
	last_words(SIGFPE, 1, 0x55, 0x55);
	expect(&f, "signal 8 (Floating point exception) at address 0x55, in the program at 0x55");
}

static void test_want_of_memory(void **state)
{
	struct last_exit_facts f = facts_of(SIGKILL);

	f.oom_before = f.oom_after = 3;
	f.memory_limit = 200ull << 20;
	expect(&f, "signal 9 (Killed)");
	f.populating = true;
	expect(&f, "signal 9 (Killed) while it populated memory, as the OOM killer does");
	f.oom_after = 4;
	expect(&f, "killed by the kernel for want of memory while it populated memory, of which there are 200 MiB");
	f.populating = false;
	expect(&f, "killed by the kernel for want of memory, of which there are 200 MiB");
	snprintf(f.memory_from, sizeof(f.memory_from), "/sys/fs/cgroup/kv/memory.max");
	f.memory = 1ull << 30;
	expect(&f, "killed by the kernel for want of memory, of which there are 200 MiB (/sys/fs/cgroup/kv/memory.max); memory is 1024 MiB");
	memset(f.memory_from, 'x', sizeof(f.memory_from) - 1);
	char reason[LAST_EXIT_REASON_BYTES];
	last_exit_reason(&f, reason);
	assert_non_null(strstr(reason, "xxx); memory is 1024 MiB")); /* a long one leaves room */
	f.memory_limit = f.memory = 0;
	expect(&f, "killed by the kernel for want of memory");
	f.oom_before = UINT64_MAX;
	expect(&f, "signal 9 (Killed)");
	f.oom_before = 3;
	f.oom_after = UINT64_MAX;
	expect(&f, "signal 9 (Killed)");
	f.oom_after = 4;
	f.status = SIGTERM; /* not the kernel's way */
	expect(&f, "signal 15 (Terminated)");
}

static void test_the_parents_own(void **state)
{
	struct last_exit_facts f = facts_of(SIGKILL);

	f.oom_before = 3;
	f.oom_after = 4; /* of somebody else */
	f.stop_ms = 900;
	expect(&f, "it did not stop in 900 ms and was killed");
	f.status = -1;
	expect(&f, "it did not stop in 900 ms and was killed");
	f.status = EXITED(7); /* it ended just before */
	expect(&f, "exit status 7");
	f.status = SIGKILL;
	f.stop_ms = 0;
	f.watchdog_s = 30;
	expect(&f, "nothing moved in it for 30 s, and it was killed");
	f.was_stopped = true;
	expect(&f, "nothing moved in it for 30 s, for it was stopped, and it was killed");
}

static void test_a_long_reason_is_cut(void **state)
{
	char line[1000], reason[LAST_EXIT_REASON_BYTES];
	const char *const lines[] = {line};
	struct last_exit_facts f = facts_of(SIGABRT);

	memset(line, 'x', sizeof(line) - 1);
	line[sizeof(line) - 1] = 0;
	f.lines = lines;
	f.line_count = 1;
	assert_int_equal(last_exit_reason(&f, reason), LAST_EXIT_REASON_BYTES - 1);
	assert_memory_equal(reason, "signal 6 (Aborted): xxx", 23);
}

/* ---- texts ----------------------------------------------------------------------------------------------------------- */

static void test_text(void **state)
{
	static const char *const lines[] = {"one", "two"};
	struct last_exit_facts f = facts_of(SIGKILL);
	char text[LAST_EXIT_BYTES];

	f.ready = true;
	f.served_ns = 812900000000;
	f.died_ns = 5000000000;
	f.restarts = 3;
	f.sessions = 4;
	f.spaces = 1;
	f.lines = lines;
	f.line_count = 2;
	atomic_store(&will.phase, WILL_SERVING);
	atomic_store(&will.loops[0].doing, WILL_DOING_CTL + _IOC_NR(PFS_IOC_PUT_COMMIT));
	atomic_store(&will.loops[0].began_ns, 4999750000);
	atomic_store(&will.loops[5].doing, 1); /* FUSE_LOOKUP */
	atomic_store(&will.loops[5].began_ns, 5000000001);
	atomic_store(&will.loops[6].doing, WILL_DOING_CTL - 1);
	size_t bytes = last_exit_text(&f, "signal 9 (Killed)", NOON, text);
	assert_string_equal(text, "reason: signal 9 (Killed)\n"
				  "time: 2026-01-31T12:00:00Z\n"
				  "pid: 4711\n"
				  "version: 0.9.0\n"
				  "mount: /mnt/cache\n"
				  "restarts: 3\n"
				  "served_s: 812\n"
				  "phase: serving\n"
				  "doing: PUT_COMMIT 0.2 ms, lookup 0.0 ms, other 5000.0 ms\n"
				  "sessions: 4  spaces: 1\n"
				  "next: started again after 0 ms\n"
				  "last lines:\n"
				  "  one\n"
				  "  two\n");
	assert_int_equal(bytes, strlen(text));
}

static void test_text_of_an_early_death(void **state)
{
	struct last_exit_facts f = facts_of(EXITED(1));
	char text[LAST_EXIT_BYTES];

	f.served_ns = 5000000000;
	last_exit_text(&f, "exit status 1", NOON, text);
	assert_non_null(strstr(text, "served_s: never\nsessions: 0  spaces: 0\n")); /* an empty will says nothing */
	f.will = NULL;
	last_exit_text(&f, "exit status 1", NOON, text);
	assert_non_null(strstr(text, "served_s: never\nsessions: 0  spaces: 0\n"));
	f.will = &will;
	memset(will.space, 'n', sizeof(will.space)); /* no end of its own */
	atomic_store(&will.phase, WILL_ADOPTING);
	atomic_store(&will.done, 17);
	atomic_store(&will.goal, 400);
	last_exit_text(&f, "exit status 1", NOON, text);
	const char *phase = strstr(text, "phase: adopting nnn");
	assert_non_null(phase);
	assert_memory_equal(phase + 16 + WILL_NAME_BYTES, " 17/400\n", 8);
	atomic_store(&will.phase, 99);
	last_exit_text(&f, "exit status 1", NOON, text);
	assert_null(strstr(text, "phase:"));
}

static void test_a_long_text_ends_with_a_line(void **state)
{
	static char line[1000];
	const char *lines[40];
	struct last_exit_facts f = facts_of(SIGKILL);
	char text[LAST_EXIT_BYTES];

	memset(line, 'x', sizeof(line) - 1);
	for (unsigned i = 0; i < 40; i++)
		lines[i] = line;
	lines[20] = "short, and would fit";
	f.lines = lines;
	f.line_count = 40;
	size_t bytes = last_exit_text(&f, "signal 9 (Killed)", NOON, text);
	assert_int_equal(bytes, strlen(text));
	assert_in_range(bytes, LAST_EXIT_BYTES - 1100, LAST_EXIT_BYTES - 1);
	assert_string_equal(text + bytes - 3, "xx\n");
	assert_null(strstr(text, "short"));
}

/* ---- deaths ---------------------------------------------------------------------------------------------------------- */

static unsigned lines_of(const char *text)
{
	unsigned n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void test_deaths(void **state)
{
	struct last_exit_facts f = facts_of(SIGKILL);
	char deaths[LAST_EXIT_DEATHS_BYTES], first[80];
	size_t bytes = 0;

	for (unsigned n = 0; n < 70; n++) {
		f.restarts = n;
		f.ready = n % 2;
		f.served_ns = n * 1000000000ull;
		bytes = last_exit_add_death(&f, "signal 9 (Killed)", NOON + n, deaths, bytes);
		assert_int_equal(bytes, strlen(deaths));
		assert_int_equal(lines_of(deaths), n < LAST_EXIT_DEATHS ? n + 1 : LAST_EXIT_DEATHS);
		if (n == 1)
			assert_string_equal(deaths, "2026-01-31T12:00:00Z 0 never signal 9 (Killed)\n"
						    "2026-01-31T12:00:01Z 1 1 signal 9 (Killed)\n");
	}
	snprintf(first, sizeof(first), "2026-01-31T12:00:06Z 6 never signal 9 (Killed)\n");
	assert_memory_equal(deaths, first, strlen(first));
}

static void test_deaths_of_any_content(void **state)
{
	struct last_exit_facts f = facts_of(SIGKILL);
	char deaths[LAST_EXIT_DEATHS_BYTES], reason[LAST_EXIT_REASON_BYTES];
	const char *line = "2026-01-31T12:00:00Z 0 never x\n";
	size_t bytes = LAST_EXIT_DEATHS_BYTES - 1;

	memset(deaths, 'x', bytes); /* one line without an end */
	bytes = last_exit_add_death(&f, "x", NOON, deaths, bytes);
	assert_string_equal(deaths, line);
	memcpy(deaths + bytes, "half a", 6);
	bytes = last_exit_add_death(&f, "x", NOON, deaths, bytes + 6);
	assert_int_equal(bytes, 2 * strlen(line));
	assert_memory_equal(deaths + strlen(line), line, strlen(line) + 1);
	memset(deaths, '\n', LAST_EXIT_DEATHS_BYTES - 1);
	bytes = last_exit_add_death(&f, "x", NOON, deaths, LAST_EXIT_DEATHS_BYTES - 1);
	assert_int_equal(bytes, LAST_EXIT_DEATHS - 1 + strlen(line));
	memset(deaths, 'x', LAST_EXIT_DEATHS_BYTES - 2); /* whole, and leaves no room */
	deaths[LAST_EXIT_DEATHS_BYTES - 2] = '\n';
	bytes = last_exit_add_death(&f, "x", NOON, deaths, LAST_EXIT_DEATHS_BYTES - 1);
	assert_string_equal(deaths, line);
	memset(reason, 'r', sizeof(reason) - 1);
	reason[sizeof(reason) - 1] = 0;
	bytes = 0;
	for (unsigned n = 0; n < 2 * LAST_EXIT_DEATHS; n++)
		bytes = last_exit_add_death(&f, reason, NOON, deaths, bytes);
	assert_int_equal(lines_of(deaths), LAST_EXIT_DEATHS); /* the longest reasons fit, all of them */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_statuses),
		cmocka_unit_test(test_an_assertion_has_its_own_sentence),
		cmocka_unit_test(test_the_wills_signal),
		cmocka_unit_test(test_want_of_memory),
		cmocka_unit_test(test_the_parents_own),
		cmocka_unit_test(test_a_long_reason_is_cut),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_text_of_an_early_death),
		cmocka_unit_test(test_a_long_text_ends_with_a_line),
		cmocka_unit_test(test_deaths),
		cmocka_unit_test(test_deaths_of_any_content),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
