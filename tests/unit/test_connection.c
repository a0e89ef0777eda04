/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection across serving processes, with a socket in the kernel's place: what is kept, what is refused, what is said again.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/connection.h"

#define DEVICE 47
#define UNIQUE 2
#define HAS_RESEND_2 (1u << 7) /* of flags2 */

struct init_request {
	struct fuse_in_header header;
	struct fuse_init_in in;
};

struct init_reply {
	struct fuse_out_header header;
	struct fuse_init_out out;
};

static struct will *will;
static int will_fd = -1, kernel = -1;
static struct fs fs;
static unsigned max_write = 1 << 17;

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
	conn->max_write = max_write;
}

static const struct fuse_lowlevel_ops ops = {.init = on_init};

static int setup(void **state)
{
	struct why why = WHY_INIT;

	assert_int_equal(will_make(&will, &will_fd, &why), 0);
	return 0;
}

/* The next serving process. */
static void begin(void)
{
	struct why why = WHY_INIT;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	kernel = pair[0];
	memset(&fs, 0, sizeof(fs));
	fs.will = will;
	fs.device = DEVICE;
	assert_int_equal(connection_open(&fs, &ops, pair[1], &why), 0);
	assert_int_equal(fuse_session_fd(fs.session), pair[1]);
	assert_true(fcntl(pair[1], F_GETFL) & O_NONBLOCK);
}

static void end(void)
{
	if (fs.session)
		fuse_session_destroy(fs.session);
	fs.session = NULL;
	close(kernel);
	kernel = -1;
}

static int teardown(void **state)
{
	end();
	will_unmap(&will);
	return close(will_fd);
}

static bool take_one(void)
{
	struct fuse_buf buffer = {.mem = NULL};
	int n = fuse_session_receive_buf(fs.session, &buffer);

	if (n > 0) {
		connection_note(&fs, buffer.mem, (size_t)n);
		fuse_session_process_buf(fs.session, &buffer);
	}
	free(buffer.mem);
	return n > 0;
}

static struct init_request init_request(uint32_t flags2)
{
	return (struct init_request){
		.header = {.len = sizeof(struct init_request), .opcode = FUSE_INIT, .unique = UNIQUE},
		.in = {.major = 7, .minor = 38, .max_readahead = 131072, .flags = FUSE_INIT_EXT | FUSE_BIG_WRITES | FUSE_MAX_PAGES, .flags2 = flags2},
	};
}

static void say(const void *request, size_t bytes)
{
	assert_int_equal(send(kernel, request, bytes, 0), bytes);
}

static bool nothing_said(void)
{
	char byte;

	return recv(kernel, &byte, 1, 0) < 0 && errno == EAGAIN;
}

/* The first serving process: what the kernel was told. */
static struct init_reply serve_init(uint32_t flags2)
{
	struct init_request request = init_request(flags2);
	struct init_reply reply;

	will_next(will, true);
	begin();
	say(&request, sizeof(request));
	assert_true(take_one());
	assert_int_equal(recv(kernel, &reply, sizeof(reply), 0), sizeof(reply));
	return reply;
}

static enum connection_state judge(const char *sentence)
{
	struct why why = WHY_INIT;
	enum connection_state state = connection_judge(will, DEVICE, &why);

	assert_string_equal(why.text, sentence);
	return state;
}

/* ---- keeping --------------------------------------------------------------------------------------------------------- */

static void test_init_is_kept(void **state)
{
	assert_int_equal(judge(""), CONNECTION_NEW);
	assert_false(connection_survives(will));
	struct init_request request = init_request(HAS_RESEND_2);
	struct init_reply reply = serve_init(HAS_RESEND_2);

	assert_int_equal(reply.header.unique, UNIQUE);
	assert_int_equal(reply.out.max_write, 1 << 17);
	assert_int_equal(atomic_load(&will->init.request_bytes), sizeof(request));
	assert_memory_equal(will->init.request, &request, sizeof(request));
	assert_int_equal(atomic_load(&will->init.reply_bytes), sizeof(reply));
	assert_memory_equal(will->init.reply, &reply, sizeof(reply));
	assert_int_equal(atomic_load(&will->init.answered), 1);
	assert_int_equal(will->init.device, DEVICE);
	assert_int_equal(judge(""), CONNECTION_KEPT);
	assert_true(connection_survives(will));
}

/* The reply is kept before the kernel has it, and counts after it. */
static void test_init_that_nobody_took(void **state)
{
	struct init_request request = init_request(HAS_RESEND_2);

	begin();
	say(&request, sizeof(request));
	shutdown(kernel, SHUT_RD);
	signal(SIGPIPE, SIG_IGN);
	take_one();
	assert_int_equal(atomic_load(&will->init.reply_bytes), sizeof(struct init_reply));
	assert_int_equal(atomic_load(&will->init.answered), 0);
	assert_int_equal(judge("the kernel's INIT was read and not answered"), CONNECTION_DIFFERENT);
}

static void test_an_old_kernel(void **state)
{
	serve_init(0);
	assert_false(connection_survives(will));
	assert_int_equal(judge("this kernel does not send requests again; Linux 6.9 and later do"), CONNECTION_DIFFERENT);
}

static void test_another_mount(void **state)
{
	serve_init(HAS_RESEND_2);
	will->init.device++;
	assert_int_equal(judge("the INIT that was kept is that of mount 48, and this is mount 47"), CONNECTION_DIFFERENT);
}

static void judge_length(_Atomic uint32_t *word, uint32_t bytes)
{
	uint32_t before = atomic_exchange(word, bytes);

	assert_int_equal(judge("the kernel's INIT and the reply to it were not kept whole"), CONNECTION_DIFFERENT);
	atomic_store(word, before);
	assert_int_equal(judge(""), CONNECTION_KEPT);
}

static void test_wrong_lengths(void **state)
{
	static const uint32_t lengths[] = {0, 1, 15, 16, 39, 40, sizeof(struct init_reply) - 1, sizeof(struct init_reply) + 1,
		sizeof(struct init_request) - 1, sizeof(struct init_request) + 1, WILL_INIT_BYTES, WILL_INIT_BYTES + 1, UINT32_MAX};

	serve_init(HAS_RESEND_2);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		judge_length(&will->init.request_bytes, lengths[i]);
		judge_length(&will->init.reply_bytes, lengths[i]);
	}
	((struct fuse_in_header *)will->init.request)->opcode = FUSE_LOOKUP;
	assert_int_equal(judge("the kernel's INIT and the reply to it were not kept whole"), CONNECTION_DIFFERENT);
}

/* ---- replaying ------------------------------------------------------------------------------------------------------- */

static int replay(char *text)
{
	struct why why = WHY_INIT;
	int r;

	end();
	will_next(will, false);
	begin();
	assert_int_equal(judge(""), CONNECTION_KEPT);
	r = connection_replay(&fs, &why);
	assert_true(nothing_said());
	strcpy(text, why.text);
	return r;
}

static void test_replay(void **state)
{
	struct init_reply reply = serve_init(HAS_RESEND_2);
	char text[sizeof(((struct why *)0)->text)];

	for (int i = 0; i < 3; i++)
		assert_int_equal(replay(text), 0);
	assert_memory_equal(will->init.reply, &reply, sizeof(reply));
	/* The session is as good as one that spoke with the kernel. */
	struct fuse_in_header request = {.len = sizeof(request), .opcode = FUSE_STATFS, .unique = 4, .nodeid = 1};
	struct {
		struct fuse_out_header header;
		struct fuse_statfs_out out;
	} answer;
	say(&request, sizeof(request));
	assert_true(take_one());
	assert_int_equal(recv(kernel, &answer, sizeof(answer), 0), sizeof(answer));
	assert_int_equal(answer.header.unique, 4);
	assert_int_equal(answer.out.st.namelen, 255);
}

static void expect_field(size_t at, const char *sentence)
{
	char text[sizeof(((struct why *)0)->text)];

	will->init.reply[at] ^= 1;
	assert_int_equal(replay(text), -EPROTO);
	assert_string_equal(text, sentence);
	will->init.reply[at] ^= 1;
	assert_int_equal(replay(text), 0);
}

#define AT(name) (sizeof(struct fuse_out_header) + offsetof(struct fuse_init_out, name))
#define OTHERWISE "libfuse answers the kernel's INIT otherwise than before: "

static void test_replies_that_differ(void **state)
{
	char text[sizeof(((struct why *)0)->text)];
	unsigned minor = serve_init(HAS_RESEND_2).out.minor; /* libfuse's own */

	snprintf(text, sizeof(text), OTHERWISE "minor %u, and not %u", minor, minor ^ 1);
	expect_field(AT(minor), text);
	expect_field(AT(major), OTHERWISE "major 7, and not 6");
	expect_field(AT(max_readahead), OTHERWISE "max_readahead 131072, and not 131073");
	expect_field(AT(max_write), OTHERWISE "max_write 131072, and not 131073");
	expect_field(AT(max_write) + 2, OTHERWISE "max_write 131072, and not 196608");
	expect_field(AT(time_gran), OTHERWISE "time_gran 1, and not 0");
	expect_field(AT(max_pages), OTHERWISE "max_pages 32, and not 33");
	expect_field(AT(map_alignment), OTHERWISE "map_alignment 0, and not 1");
	expect_field(AT(unused) + 4, OTHERWISE "byte 56 is 0, and not 1");
	will->init.reply[offsetof(struct fuse_out_header, unique)] ^= 1;
	assert_int_equal(replay(text), 0); /* the kernel's own */
	max_write = 1 << 16;
	assert_int_equal(replay(text), -EPROTO);
	assert_string_equal(text, OTHERWISE "max_write 65536, and not 131072");
	max_write = 1 << 17;
}

static void test_a_reply_of_another_length(void **state)
{
	struct fuse_out_header *header = (void *)will->init.reply;
	char text[sizeof(((struct why *)0)->text)];

	serve_init(HAS_RESEND_2);
	header->len = sizeof(struct init_reply) + 8;
	atomic_store(&will->init.reply_bytes, sizeof(struct init_reply) + 8);
	assert_int_equal(replay(text), -EPROTO);
	assert_string_equal(text, OTHERWISE "80 bytes, and not 88");
	header->len = sizeof(*header);
	atomic_store(&will->init.reply_bytes, sizeof(*header));
	assert_int_equal(replay(text), -EPROTO);
	assert_string_equal(text, OTHERWISE "80 bytes, and not 16");
}

/* ---- each request ---------------------------------------------------------------------------------------------------- */

static void test_resend(void **state)
{
	struct fuse_out_header header;
	struct why why = WHY_INIT;

	begin();
	assert_int_equal(connection_resend(fuse_session_fd(fs.session), &why), 0);
	assert_int_equal(recv(kernel, &header, sizeof(header), 0), 16);
	assert_int_equal(header.len, 16);
	assert_int_equal(header.error, 7);
	assert_int_equal(header.unique, 0);
	shutdown(kernel, SHUT_RD);
	signal(SIGPIPE, SIG_IGN);
	assert_int_equal(connection_resend(fuse_session_fd(fs.session), &why), -EPIPE);
}

static void test_what_was_sent_again(void **state)
{
	struct fuse_in_header request = {.len = sizeof(request), .opcode = FUSE_STATFS, .unique = 4};

	begin();
	connection_note(&fs, &request, sizeof(request));
	assert_false(connection_resent());
	request.unique |= 1ull << 63;
	connection_note(&fs, &request, sizeof(request));
	assert_true(connection_resent());
	request.unique = 6;
	connection_note(&fs, &request, sizeof(request));
	assert_false(connection_resent());
}

static void poll_at(uint64_t fh, uint64_t kh, uint32_t flags, size_t bytes)
{
	struct {
		struct fuse_in_header header;
		struct fuse_poll_in in;
	} request = {.header = {.len = (uint32_t)bytes, .opcode = FUSE_POLL, .unique = 4}, .in = {.fh = fh, .kh = kh, .flags = flags}};

	connection_note(&fs, &request, bytes);
}

static void test_sleepers_are_woken(void **state)
{
	struct {
		struct fuse_out_header header;
		uint64_t kh;
	} notice;
	const size_t whole = sizeof(struct fuse_in_header) + sizeof(struct fuse_poll_in);

	begin();
	poll_at(0x0123456789ab0000ull | (WILL_HANDLES - 1), 71, FUSE_POLL_SCHEDULE_NOTIFY, whole);
	poll_at(3, 70, FUSE_POLL_SCHEDULE_NOTIFY, whole);
	poll_at(3, 72, FUSE_POLL_SCHEDULE_NOTIFY, whole); /* the same place: the last one sleeps */
	poll_at(4, 73, 0, whole);                         /* asks and does not wait */
	poll_at(5, 74, FUSE_POLL_SCHEDULE_NOTIFY, whole - 1);
	poll_at(WILL_HANDLES, 75, FUSE_POLL_SCHEDULE_NOTIFY, whole);
	assert_int_equal(atomic_load(&will->polls[3]), 72);
	end();
	begin();
	connection_wake_polls(fuse_session_fd(fs.session), will);
	for (unsigned kh = 72; kh >= 71; kh--) {
		assert_int_equal(recv(kernel, &notice, sizeof(notice), 0), 24);
		assert_int_equal(notice.header.len, 24);
		assert_int_equal(notice.header.error, FUSE_NOTIFY_POLL);
		assert_int_equal(notice.header.unique, 0);
		assert_int_equal(notice.kh, kh);
	}
	assert_true(nothing_said());
	connection_wake_polls(fuse_session_fd(fs.session), will);
	assert_true(nothing_said());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_init_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_init_that_nobody_took, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_old_kernel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_another_mount, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_lengths, setup, teardown),
		cmocka_unit_test_setup_teardown(test_replay, setup, teardown),
		cmocka_unit_test_setup_teardown(test_replies_that_differ, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_reply_of_another_length, setup, teardown),
		cmocka_unit_test_setup_teardown(test_resend, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_was_sent_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sleepers_are_woken, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
