/* SPDX-License-Identifier: Apache-2.0
 *
 * May this program follow that one? Every refusal, and what the judge says of this very build.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/client/prefixfs_abi.h"
#include "fs/config.h"
#include "fs/upgrade.h"
#include "fs/version.h"
#include "index/tables.h"

struct init_request {
	struct fuse_in_header header;
	struct fuse_init_in in;
};

struct init_reply {
	struct fuse_out_header header;
	struct fuse_init_out out;
};

static struct upgrade_verdict verdict;
static struct will_init init;
static struct init_reply reply;

/* A program that may follow. */
static int begin(void **state)
{
	reply = (struct init_reply){
		.header = {.len = sizeof(reply), .unique = 7},
		.out = {.major = 7, .minor = 38, .max_readahead = 131072, .max_write = 131072, .max_pages = 32},
	};
	memset(&init, 0, sizeof(init));
	memcpy(init.reply, &reply, sizeof(reply));
	init.reply_bytes = sizeof(reply);
	init.answered = 1;
	verdict = (struct upgrade_verdict){
		.magic = UPGRADE_MAGIC,
		.bytes = sizeof(verdict),
		.will_version = WILL_VERSION,
		.tables_oldest = 3,
		.tables_newest = 5,
		.reply_bytes = sizeof(reply),
		.version = "9.9.9",
	};
	reply.header.unique = 8; /* means nothing */
	memcpy(verdict.reply, &reply, sizeof(reply));
	return 0;
}

static void expect(int error, uint32_t tables_version, const char *sentence)
{
	struct why why = WHY_INIT;

	assert_int_equal(upgrade_may_follow(&verdict, tables_version, &init, &why), -error);
	assert_string_equal(why.text, sentence);
}

static void change_reply(void)
{
	memcpy(verdict.reply, &reply, sizeof(reply));
}

static void test_may_follow(void **state)
{
	for (uint32_t version = 3; version <= 5; version++)
		expect(0, version, "");
	expect(0, 0, ""); /* no namespace is there */
	init.reply_bytes = 0;
	verdict.reply_bytes = 0;
	expect(0, 4, ""); /* nobody was answered yet */
}

static void test_another_parent(void **state)
{
	char sentence[200];

	verdict.will_version = WILL_VERSION + 1;
	verdict.error = EINVAL; /* what comes first is said */
	snprintf(sentence, sizeof(sentence),
		"prefixfsd 9.9.9 speaks version %u to its parent, this daemon %u: stop it and start the new one", WILL_VERSION + 1, WILL_VERSION);
	expect(EPROTO, 4, sentence);
	verdict.will_version = WILL_VERSION;
	verdict.bytes = 12;
	snprintf(sentence, sizeof(sentence),
		"prefixfsd 9.9.9 says 12 bytes about itself, this daemon knows %zu: stop it and start the new one", sizeof(verdict));
	expect(EPROTO, 4, sentence);
}

static void test_options(void **state)
{
	verdict.error = EINVAL;
	strcpy(verdict.text, "unknown option 'disk_io'");
	verdict.tables_newest = 3;
	expect(EINVAL, 4, "prefixfsd 9.9.9 does not take this daemon's options: unknown option 'disk_io'");
}

static void test_tables(void **state)
{
	expect(ENOTSUP, 6,
		"prefixfsd 9.9.9 knows tables of versions 3 to 5; those here have 6: an older program cannot take them over; stop with --drain, "
		"then start it");
	expect(ENOTSUP, 2,
		"prefixfsd 9.9.9 knows tables of versions 3 to 5; those here have 2: so new a program cannot take them over; stop with "
		"--drain, then start it");
	verdict.tables_oldest = 5;
	memset(verdict.reply, 0, sizeof(verdict.reply)); /* --remount does not help against this one */
	expect(ENOTSUP, 6,
		"prefixfsd 9.9.9 knows tables of version 5; those here have 6: an older program cannot take them over; stop with --drain, then "
		"start it");
}

static void test_another_reply(void **state)
{
	reply.out.max_write = 1048576;
	change_reply();
	expect(EXDEV, 4,
		"prefixfsd 9.9.9 answers the kernel's INIT otherwise: max_write 1048576, and not 131072; the mount would be made anew, which "
		"--remount allows");
	reply.out.max_write = 131072;
	change_reply();
	verdict.reply_bytes = 24;
	expect(EXDEV, 4,
		"prefixfsd 9.9.9 answers the kernel's INIT otherwise: 24 bytes, and not 80; the mount would be made anew, which --remount allows");
	for (unsigned i = 0; i < 2; i++) {
		verdict.reply_bytes = i ? UINT32_MAX : 0;
		expect(EXDEV, 4,
			"prefixfsd 9.9.9 gives no answer to the kernel's INIT; the mount would be made anew, which --remount allows");
	}
}

/* No text has an end of its own. */
static void test_garbage(void **state)
{
	struct why why = WHY_INIT;

	for (unsigned byte = 0; byte < 256; byte++) {
		memset(&verdict, (int)byte, sizeof(verdict));
		verdict.will_version = byte % 3 ? WILL_VERSION : byte;
		verdict.bytes = byte % 5 ? sizeof(verdict) : byte;
		assert_true(upgrade_may_follow(&verdict, 4, &init, &why) < 0);
		assert_true(strlen(why.text) > 20);
	}
}

/* ---- the judge of this build ------------------------------------------------------------------------------------------- */

/* In a process of its own, since standard input and output are its own: the verdict, and its exit status. */
static int run_judge(const void *request, size_t bytes, int config_error, const char *text)
{
	struct why why = WHY_INIT;
	static struct config config;
	int in[2], out[2], status;
	size_t have = 0;
	ssize_t n;

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	if (bytes)
		assert_int_equal(write(in[1], request, bytes), bytes);
	close(in[1]);
	config_init(&config);
	pid_t pid = fork();
	if (!pid) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		if (config_error)
			why_set(&why, config_error, "%s", text);
		_exit(upgrade_judge(&config, -config_error, &why));
	}
	close(in[0]);
	close(out[1]);
	memset(&verdict, 0, sizeof(verdict));
	while ((n = read(out[0], (char *)&verdict + have, sizeof(verdict) - have)) > 0)
		have += (size_t)n;
	close(out[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(have, sizeof(verdict));
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_judge(void **state)
{
	struct init_request request = {
		.header = {.len = sizeof(request), .opcode = FUSE_INIT, .unique = 2},
		.in = {.major = 7, .minor = 38, .max_readahead = 131072, .flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES},
	};
	struct why why = WHY_INIT;

	assert_int_equal(run_judge(&request, sizeof(request), 0, NULL), 0);
	assert_true(verdict.magic == UPGRADE_MAGIC && verdict.bytes == sizeof(verdict));
	assert_int_equal(verdict.will_version, WILL_VERSION);
	assert_int_equal(verdict.tables_newest, TABLES_VERSION);
	assert_int_equal(verdict.abi_version, PFS_ABI_VERSION);
	assert_string_equal(verdict.version, version_text);
	assert_int_equal(verdict.error, 0);
	assert_int_equal(verdict.reply_bytes, sizeof(reply));
	memcpy(&reply, verdict.reply, sizeof(reply));
	assert_int_equal(reply.header.len, sizeof(reply));
	assert_int_equal(reply.header.error, 0);
	assert_int_equal(reply.out.major, 7);
	/* It may follow itself, and says the same each time. */
	memcpy(init.reply, &reply, sizeof(reply));
	assert_int_equal(run_judge(&request, sizeof(request), 0, NULL), 0);
	assert_int_equal(upgrade_may_follow(&verdict, TABLES_VERSION, &init, &why), 0);
}

static void test_judge_without_init(void **state)
{
	assert_int_equal(run_judge(NULL, 0, 0, NULL), 0);
	assert_int_equal(verdict.reply_bytes, 0);
	assert_int_equal(run_judge("no request", 10, 0, NULL), 0);
	assert_int_equal(verdict.bytes, sizeof(verdict));
}

static void test_judge_of_options(void **state)
{
	char sentence[200];

	assert_int_equal(run_judge(NULL, 0, EINVAL, "--memory is 3"), 0);
	assert_int_equal(verdict.error, EINVAL);
	assert_string_equal(verdict.text, "--memory is 3");
	snprintf(sentence, sizeof(sentence), "prefixfsd %s does not take this daemon's options: --memory is 3", version_text);
	expect(EINVAL, 4, sentence);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_may_follow, begin),
		cmocka_unit_test_setup(test_another_parent, begin),
		cmocka_unit_test_setup(test_options, begin),
		cmocka_unit_test_setup(test_tables, begin),
		cmocka_unit_test_setup(test_another_reply, begin),
		cmocka_unit_test_setup(test_garbage, begin),
		cmocka_unit_test_setup(test_judge, begin),
		cmocka_unit_test_setup(test_judge_without_init, begin),
		cmocka_unit_test_setup(test_judge_of_options, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
