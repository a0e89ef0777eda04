/* SPDX-License-Identifier: Apache-2.0
 *
 * libprefixfs and a daemon that was built before ATTACH, PUT_START, GET_START and GET_TRANSFER grew: it is asked as it knows them, by a number
 * with the first size, and what it cannot do is refused here.
 */
#include "tests/unit/client_world.h"

static const uint8_t TICKET[PFS_TICKET_BYTES] = {7};

static int put_under(struct pfs_session *s, const uint8_t *ticket)
{
	const struct pfs_put_group group = {.keys = 4, .class_mask = 1};
	struct pfs_put_request q = {.groups = &group, .keys = KEYS, .group_count = 1, .key_count = 4, .class_mask = 1};
	struct pfs_put_result ret;

	memcpy(q.ticket, ticket, sizeof(q.ticket));
	return pfs_put_start(s, &q, &ret);
}

static void assert_unsupported(int r)
{
	char text[300];

	assert_int_equal(r, -EOPNOTSUPP);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "the daemon was built before what is asked for"));
}

/* All that there was before works, and it takes one refusal of each operation to know. */
static void an_older_daemon_is_asked_as_it_knows(void **state)
{
	struct pfs_transfer_result got;
	struct pfs_put_outcome outcome;
	struct pfs_session *s;
	uint64_t plan;

	d.first_sizes = true;
	s = session_open(true);
	assert_int_equal(d.refused, 1);
	assert_int_equal(d.attached.call.size, PFS_BYTES_ATTACH_1);
	plan = put(s);
	assert_int_equal(d.refused, 2);
	assert_int_equal(d.began.call.size, PFS_BYTES_PUT_START_1);
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, NULL, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_COMMITTED);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(fetch(s, look_up(s), &got), 0);
		assert_int_equal(got.delivered_len, 4 * TOKENS);
		assert_bytes(&got, 1);
		assert_int_equal(pfs_release(s, &got.plan, 1, NULL), 0);
	}
	assert_int_equal(d.got.call.size, PFS_BYTES_GET_START_1);
	assert_int_equal(d.moved.call.size, PFS_BYTES_GET_TRANSFER_1);
	assert_int_equal(d.refused, 4);
	assert_int_equal(info_of(s).interval, 0); /* so no ladder */
	assert_int_equal(info_of(s).reattached, 0);
	pfs_close(&s);
}

/* A ticket of which it knows nothing would be an answer for one rank that is taken for that of all. */
static void what_it_cannot_do_is_refused(void **state)
{
	struct pfs_get_request get = {.keys = KEYS, .key_count = 4};
	struct pfs_transfer_request transfer = {.boundary = 4 * TOKENS, .to = 4 * TOKENS, .candidate = 1};
	struct pfs_get_result found;
	struct pfs_transfer_result got;
	struct pfs_session *s;
	uint64_t restored = 9;

	d.first_sizes = true;
	s = session_open(true);
	assert_unsupported(put_under(s, TICKET));
	memcpy(get.ticket, TICKET, sizeof(get.ticket));
	assert_unsupported(pfs_get_start(s, &get, &found));
	memset(get.ticket, 0, sizeof(get.ticket));
	get.prompt_len = 200;
	assert_unsupported(pfs_get_start(s, &get, &found));
	get.prompt_len = 0;
	get.room = 3;
	assert_unsupported(pfs_get_start(s, &get, &found));
	transfer.handle = look_up(s);
	assert_unsupported(pfs_get_transfer(s, &transfer, &got));
	transfer.candidate = 0;
	assert_int_equal(pfs_get_transfer(s, &transfer, &got), 0);
	assert_int_equal(pfs_get_confirm(s, TICKET, 0, 0, 0, &restored), -EOPNOTSUPP);
	assert_int_equal(restored, 9);
	assert_int_equal(d.refused, 4);
	assert_int_equal(d.began.plan, 0); /* it never came so far */
	pfs_close(&s);
}

/* What serves next may be another version: it is asked anew. */
static void another_version_takes_its_place(void **state)
{
	struct pfs_session *s;

	d.first_sizes = true;
	s = session_open(true);
	look_up(s);
	assert_int_equal(d.refused, 2);
	d.first_sizes = false;
	die(true);
	assert_int_equal(put_under(s, TICKET), 0);
	assert_memory_equal(d.began.ticket, TICKET, sizeof(TICKET));
	look_up(s);
	assert_int_equal(d.got.call.size, sizeof(struct pfs_get_start));
	assert_int_equal(info_of(s).interval, 8192);
	assert_int_equal(d.attached.call.size, sizeof(struct pfs_attach));
	assert_int_equal(d.refused, 2);
	d.first_sizes = true;
	die(true);
	look_up(s);
	assert_int_equal(d.refused, 4);
	assert_int_equal(info_of(s).interval, 0);
	assert_unsupported(put_under(s, TICKET));
	assert_int_equal(info_of(s).reattached, 2);
	pfs_close(&s);
}

/* What one operation lacks says nothing of the others: they grew at other times. */
static void each_operation_is_found_out_for_itself(void **state)
{
	struct pfs_session *s;

	d.first_attach = true;
	s = session_open(true);
	assert_int_equal(d.refused, 1);
	assert_int_equal(d.attached.call.size, PFS_BYTES_ATTACH_1);
	assert_int_equal(put_under(s, TICKET), 0);
	assert_int_equal(d.began.call.size, sizeof(struct pfs_put_start));
	assert_int_equal(d.refused, 1);
	pfs_close(&s);
}

/* Bytes of a value come with ATTACH; an older daemon does not tell. */
static void bytes_of_a_value_are_what_attach_said(void **state)
{
	struct pfs_session *s = session_open(true);
	struct pfs_options o;
	uint64_t bytes = 9;

	assert_int_equal(pfs_value_bytes(s, 1, &bytes), -EINVAL);
	assert_int_equal(pfs_value_bytes(s, UINT32_MAX, &bytes), -EINVAL);
	assert_int_equal(bytes, 9);
	assert_int_equal(pfs_value_bytes(s, 0, &bytes), 0);
	assert_int_equal(bytes, VALUE - 96);
	d.first_sizes = true;
	die(true);
	assert_int_equal(pfs_value_bytes(s, 0, &bytes), 0); /* nobody is asked */
	assert_int_equal(bytes, VALUE - 96);
	look_up(s);
	assert_int_equal(info_of(s).reattached, 1);
	assert_int_equal(pfs_value_bytes(s, 0, &bytes), 0);
	assert_int_equal(bytes, 0);
	pfs_close(&s);
	pfs_options_init(&o);
	o.call_buffer_bytes = PFS_MIN_CALL_BUFFER;
	assert_int_equal(pfs_open(d.folder, &o, &s), 0);
	bytes = 9;
	assert_int_equal(pfs_value_bytes(s, 0, &bytes), -EINVAL);
	assert_int_equal(bytes, 9);
	pfs_close(&s);
}

/* EINVAL of what was asked says nothing of sizes. */
static void another_refusal_is_no_reason(void **state)
{
	struct pfs_get_request get = {.keys = KEYS, .key_count = 4};
	struct pfs_get_result found;
	struct pfs_session *s = session_open(true);

	d.failing = PFS_IOC_GET_START;
	d.error = EINVAL;
	assert_int_equal(pfs_get_start(s, &get, &found), -EINVAL);
	d.failing = 0;
	assert_int_equal(d.seconds, 1); /* ATTACH */
	look_up(s);
	assert_int_equal(d.seconds, 2);
	assert_int_equal(put_under(s, TICKET), 0);
	assert_int_equal(d.seconds, 3);
	pfs_close(&s);
}

/* Ranges where room was kept for the rank are acknowledged, and the put comes again, to the same ticket. Not for good. */
static void who_lacks_ranges_comes_again(void **state)
{
	const struct pfs_put_group group = {.keys = 4, .class_mask = 1};
	struct pfs_put_request q = {.groups = &group, .keys = KEYS, .group_count = 1, .key_count = 4, .class_mask = 1, .ticket = {7}};
	struct pfs_session *s = session_open(true);
	unsigned before = d.acknowledged;
	struct pfs_put_result ret;

	d.lacking = 2;
	assert_int_equal(pfs_put_start(s, &q, &ret), 0);
	assert_int_equal(ret.status[0], PFS_GROUP_OK);
	assert_int_equal(ret.come_again, 0);
	assert_int_equal(d.again, 2);
	assert_int_equal(d.acknowledged, before + 2);
	assert_memory_equal(d.began.ticket, TICKET, sizeof(TICKET));
	assert_int_equal(d.began.plan, ret.plan);
	assert_int_equal(pfs_put_commit(s, ret.plan, 0, 0, NULL, NULL), 0);
	d.lacking = 100;
	assert_int_equal(pfs_put_start(s, &q, &ret), 0);
	assert_int_equal(ret.status[0], PFS_GROUP_NOROOM);
	assert_int_equal(ret.come_again, 1);
	assert_int_equal(d.again, 2 + 4);
	pfs_close(&s);
}

#define with_daemon(f) cmocka_unit_test_setup_teardown(f, daemon_start, daemon_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_daemon(an_older_daemon_is_asked_as_it_knows),
		with_daemon(what_it_cannot_do_is_refused),
		with_daemon(another_version_takes_its_place),
		with_daemon(each_operation_is_found_out_for_itself),
		with_daemon(bytes_of_a_value_are_what_attach_said),
		with_daemon(another_refusal_is_no_reason),
		with_daemon(who_lacks_ranges_comes_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
