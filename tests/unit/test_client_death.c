/* SPDX-License-Identifier: Apache-2.0
 *
 * libprefixfs through deaths of the daemon: what becomes of requests, plans and memory, and what is said of it.
 */
#include "tests/unit/client_world.h"

static unsigned mappings(const struct pfs_session *s)
{
	unsigned n = 0;

	for (const struct pfs_segment *m = s->mappings; m; m = m->next)
		n++;
	return n;
}

static bool is_mapped(const void *at)
{
	unsigned char present;

	return !mincore((void *)at, 1, &present);
}

/* ---- noticing --------------------------------------------------------------------------------------------------- */

static void every_errno_of_a_loss_attaches_anew(void **state)
{
	static const int errors[] = {ESTALE, ENOTCONN, ENODEV, ECONNABORTED, ESHUTDOWN};
	struct pfs_session *s = session_open(true);

	for (unsigned i = 0; i < 5; i++) {
		d.lost = errors[i];
		die(false);
		assert_int_equal(probe(s), 0);
		assert_int_equal(info_of(s).reattached, i + 1);
		assert_int_equal(info_of(s).remapped, i + 1);
		assert_int_equal(info_of(s).session, i + 2);
		assert_int_equal(lines, i + 1);
		assert_int_equal(d.asked, i + 1);
		assert_int_equal(mappings(s), 1);
	}
	assert_true(strstr(line, "prefixfs: /tmp/pfs-") == line && strstr(line, "/ctl: attached anew after "));
	assert_non_null(strstr(line, " ms; memory is new; 0 plans lost"));
	pfs_close(&s);
}

static void eio_is_a_loss_when_the_next_word_says_so(void **state)
{
	struct pfs_session *s = session_open(true);

	d.failing = PFS_IOC_PROBE;
	d.error = EIO;
	assert_int_equal(probe(s), -EIO);
	assert_int_equal(info_of(s).reattached, 0);
	d.failing = 0;
	d.deadly = PFS_IOC_PROBE;
	d.deaths = 1;
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 1);
	pfs_close(&s);
}

static void estale_of_a_served_connection_is_no_loss(void **state)
{
	struct pfs_session *s = session_open(false);
	struct pfs_range_ack ack = {3, 6};
	uint32_t accepted = 9;

	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), -ESTALE);
	assert_int_equal(accepted, 0);
	assert_int_equal(info_of(s).reattached, 0);
	pfs_close(&s);
}

static int open_guarded(uint32_t guard, struct pfs_session **ret)
{
	struct pfs_options o;

	pfs_options_init(&o);
	o.rank = 0;
	o.call_buffer_bytes = PFS_MIN_CALL_BUFFER;
	o.deadline_ms = 300;
	o.log = keep_line;
	o.guard_pid = guard;
	lines = 0;
	return pfs_open(d.folder, &o, ret);
}

/* One that is gone by then is left out, for good: its number may be another process's later. At the opening it is the engine's mistake. */
static void a_guard_is_named_at_each_attaching(void **state)
{
	struct pfs_session *s;

	d.no_guards = true;
	assert_int_equal(open_guarded(4711, &s), -ESRCH);
	d.no_guards = false;
	assert_int_equal(open_guarded(4711, &s), 0);
	assert_int_equal(d.attached.guard_pid, 4711);
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 1);
	assert_int_equal(d.attached.guard_pid, 4711);
	assert_null(strstr(line, "guard"));
	d.no_guards = true;
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 2);
	assert_int_equal(d.attached.guard_pid, 0);
	assert_int_equal(lines, 2);
	assert_non_null(strstr(line, "; 0 plans lost; the guard process 4711 is gone"));
	d.no_guards = false;
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 3);
	assert_int_equal(d.attached.guard_pid, 0);
	assert_null(strstr(line, "guard"));
	pfs_close(&s);
}

static void a_guard_is_more_than_an_older_daemon_knows(void **state)
{
	struct pfs_session *s;

	d.first_sizes = true;
	assert_int_equal(open_guarded(4711, &s), -EOPNOTSUPP);
	assert_int_equal(d.attached.call.size, 0); /* without its guard it does not attach */
	assert_int_equal(open_guarded(0, &s), 0);
	pfs_close(&s);
}

static void a_request_that_the_daemon_dies_of_is_given_up(void **state)
{
	struct pfs_session *s = session_open(true);
	char text[300];

	d.deadly = PFS_IOC_PROBE;
	d.deaths = 100;
	d.error = ECONNABORTED;
	assert_int_equal(probe(s), -ENOTCONN);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "the daemon went 3 times while it was asked this"));
	assert_int_equal(d.deaths, 97);
	d.deaths = 0;
	assert_int_equal(probe(s), 0);
	pfs_close(&s);
}

static void nobody_serves_for_a_while(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t plan = put(s);
	struct pollfd next = {.fd = pfs_poll_fd(s), .events = POLLIN};
	struct pfs_put_outcome outcome;
	char text[300];
	uint64_t before;

	d.lost = ENOTCONN;
	d.life = 0;
	assert_int_equal(probe(s), -ENOTCONN);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "not attached anew within 300 ms: ATTACH failed"));
	assert_int_equal(info_of(s).session, 1);
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, NULL, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_LOST);
	assert_int_equal(lines, 0);
	/* One deadline was enough: nobody waits again. */
	before = now_ms();
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(probe(s), -ENOTCONN);
		pfs_last_error(text, sizeof(text));
		assert_non_null(strstr(text, "nobody serves; attaching anew is tried every 300 ms"));
	}
	assert_true(now_ms() - before < 20 * 300 / 4);
	d.life = 2;
	assert_int_equal(poll(&next, 1, 10000), 1); /* it is time to try again */
	assert_int_equal(probe(s), 0);
	assert_int_equal(info_of(s).reattached, 1);
	assert_int_equal(lines, 1);
	/* The next loss is waited for again. */
	d.life = 0;
	assert_int_equal(probe(s), -ENOTCONN);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "not attached anew within 300 ms: "));
	pfs_close(&s);
}

static void *take_keys(void *session)
{
	struct pfs_key *keys = NULL;

	return pfs_keys_area(session, 1, &keys) ? NULL : keys;
}

static void a_wait_for_the_call_buffer_ends_with_the_connection(void **state)
{
	struct pfs_session *s = session_open(true);
	struct conn *conn = s->current;
	struct pfs_key *all, *one;
	bool waits = false;
	pthread_t thread;
	void *taken;

	s->options.deadline_ms = 60000;
	assert_int_equal(pfs_keys_area(s, PFS_MIN_CALL_BUFFER / sizeof(*all), &all), 0);
	assert_int_equal(pthread_create(&thread, NULL, take_keys, s), 0);
	while (!waits) {
		pthread_mutex_lock(&s->lock);
		waits = s->waiters == 1;
		pthread_mutex_unlock(&s->lock);
	}
	die(false);
	conn_mark_lost(s, conn, -ESTALE);
	pthread_join(thread, &taken);
	one = taken;
	assert_non_null(one);
	assert_true((uint8_t *)one >= s->current->buffer && (uint8_t *)one < s->current->buffer + PFS_MIN_CALL_BUFFER);
	assert_int_equal(pfs_keys_free(s, all), 0);
	assert_int_equal(pfs_keys_free(s, one), 0);
	pfs_close(&s);
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static void open_put_plans_are_lost(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t first = put(s), second = put(s);
	struct pfs_put_outcome outcome;
	uint32_t status[4] = {0};

	die(false);
	assert_int_equal(pfs_put_commit(s, first, 1, 2, status, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_LOST);
	assert_int_equal(outcome.done, 0);
	assert_true(status[0] == PFS_GROUP_LOST && status[1] == PFS_GROUP_LOST && status[2] == 0);
	assert_non_null(strstr(line, "; 2 plans lost"));
	assert_int_equal(pfs_put_abort(s, second, 0, 0, NULL, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_LOST);
	assert_int_equal(pfs_put_commit(s, first, 0, 0, NULL, NULL), -ENOENT);
	assert_int_equal(lines, 1);
	pfs_close(&s);
}

static void what_the_daemon_knows_of_a_put_plan_is_told(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t plan = put(s);
	struct pfs_put_outcome outcome;
	uint32_t status[4];

	d.deadly = PFS_IOC_PUT_COMMIT; /* it was executed, and the answer did not come */
	d.deaths = 1;
	d.error = ECONNABORTED;
	d.keep = true;
	d.known = plan;
	d.known_groups = 3;
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, status, &outcome), 0);
	assert_int_equal(outcome.outcome, PFS_GROUP_COMMITTED);
	assert_true(status[0] == PFS_GROUP_COMMITTED && status[1] == PFS_GROUP_LOST && status[2] == PFS_GROUP_COMMITTED);
	assert_int_equal(status[3], PFS_GROUP_COMMITTED); /* what was not told is as the whole */
	assert_int_equal(pfs_put_commit(s, plan, 0, 0, NULL, NULL), -ENOENT);
	pfs_close(&s);
}

static void handles_deliver_nothing(void **state)
{
	struct pfs_session *s = session_open(true);
	uint64_t first = look_up(s), second = look_up(s), third = look_up(s), fourth;
	struct pfs_into_request into = {.handle = third, .boundary = 4 * TOKENS, .from = TOKENS, .to = 4 * TOKENS, .import = 1};
	struct pfs_into_result copied = {0};
	struct pfs_transfer_result got;

	die(false);
	assert_int_equal(fetch(s, first, &got), 0);
	assert_true(got.plan == 0 && got.delivered_len == 0 && got.values == 0 && got.handle_ended == 1);
	assert_int_equal(fetch(s, first, &got), -ENOENT);
	assert_int_equal(pfs_get_cancel(s, second), 0);
	assert_int_equal(pfs_get_cancel(s, second), -ENOENT);
	assert_int_equal(pfs_get_into(s, &into, &copied), 0);
	assert_true(copied.delivered_len == TOKENS && copied.values == 0 && copied.handle_ended == 1);
	assert_int_equal(lines, 0); /* none of it had to ask anybody */
	fourth = look_up(s);
	d.deadly = PFS_IOC_GET_TRANSFER;
	d.deaths = 1;
	d.error = ENOTCONN;
	assert_int_equal(fetch(s, fourth, &got), 0);
	assert_true(got.plan == 0 && got.delivered_len == 0 && got.handle_ended == 1);
	assert_int_equal(probe(s), 0);
	assert_int_equal(lines, 2);
	pfs_close(&s);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* The daemon was restarted, and other ranks have begun under the same ticket since: this rank has not come to that, which is no fault of its own. */
static void a_ticket_of_before_restores_nothing(void **state)
{
	const uint8_t ticket[PFS_TICKET_BYTES] = {7};
	struct pfs_session *s = session_open(true);
	uint64_t restored = 9;

	d.failing = PFS_IOC_GET_CONFIRM;
	d.error = EPERM;
	assert_int_equal(pfs_get_confirm(s, ticket, 0, 0, 0, &restored), -EPERM);
	assert_int_equal(restored, 9);
	die(true);
	assert_int_equal(pfs_get_confirm(s, ticket, 0, 0, 0, &restored), 0);
	assert_int_equal(restored, 0);
	assert_int_equal(info_of(s).reattached, 1);
	pfs_close(&s);
}

static void the_same_memory_keeps_its_address(void **state)
{
	struct pfs_session *s = session_open(true);
	void *segment = info_of(s).segment;
	struct pfs_transfer_result before, after;

	assert_int_equal(fetch(s, look_up(s), &before), 0);
	die(true);
	assert_int_equal(fetch(s, look_up(s), &after), 0);
	assert_ptr_equal(info_of(s).segment, segment);
	assert_ptr_equal(after.segment, segment);
	assert_int_equal(info_of(s).reattached, 1);
	assert_int_equal(info_of(s).remapped, 0);
	assert_int_equal(mappings(s), 1);
	assert_non_null(strstr(line, "; memory kept; "));
	assert_int_equal(d.acknowledged, 2); /* on either connection */
	assert_int_equal(pfs_release(s, &before.plan, 1, NULL), 0);
	assert_int_equal(pfs_release(s, &after.plan, 1, NULL), 0);
	assert_true(is_mapped(segment));
	die(true); /* with nothing in anybody's hands */
	assert_int_equal(probe(s), 0);
	assert_ptr_equal(info_of(s).segment, segment);
	pfs_close(&s);
	assert_false(is_mapped(segment));
}

/* The daemon is busy, or a signal comes each time, for as long as the deadline: the plan is still there. */
static void a_plan_that_could_not_be_released_goes_on(void **state)
{
	static const int errors[] = {EBUSY, EINTR};
	struct pfs_session *s = session_open(true);
	struct pfs_transfer_result plan;

	for (unsigned i = 0; i < 2; i++) {
		int32_t status = 0;

		assert_int_equal(fetch(s, look_up(s), &plan), 0);
		d.error = errors[i];
		d.failing = PFS_IOC_RELEASE;
		assert_int_equal(pfs_release(s, &plan.plan, 1, &status), -EBUSY);
		assert_int_equal(status, -EBUSY);
		assert_bytes(&plan, 1);
		d.failing = 0;
		assert_int_equal(pfs_release(s, &plan.plan, 1, NULL), 0);
		assert_int_equal(pfs_release(s, &plan.plan, 1, NULL), -ENOENT);
	}
	pfs_close(&s);
}

static void a_get_plan_stays_readable_until_its_release(void **state)
{
	struct pfs_session *s = session_open(true);
	const uint8_t *segment = info_of(s).segment;
	struct pfs_transfer_result held, also, now;
	struct pfs_blob blob;

	assert_int_equal(fetch(s, look_up(s), &held), 0);
	assert_int_equal(fetch(s, look_up(s), &also), 0);
	die(false);
	assert_int_equal(probe(s), 0);
	die(false);
	assert_int_equal(fetch(s, look_up(s), &now), 0);
	assert_int_equal(mappings(s), 2); /* that between them had no plan */
	assert_true(info_of(s).remapped == 2 && now.segment != segment);
	assert_bytes(&held, 1);
	assert_bytes(&now, 3);
	assert_int_equal(pfs_blob(s, held.plan, PFS_BLOB_READ, 0, &blob), 0);
	assert_int_equal(blob.words[2], (uint64_t)(uintptr_t)segment);
	assert_int_equal(pfs_release(s, &held.plan, 1, NULL), 0);
	assert_bytes(&also, 1);
	assert_int_equal(pfs_release(s, &also.plan, 1, NULL), 0);
	assert_false(is_mapped(segment));
	assert_int_equal(mappings(s), 1);
	assert_int_equal(pfs_release(s, &also.plan, 1, NULL), -ENOENT);
	assert_int_equal(pfs_release(s, &now.plan, 1, NULL), 0);
	pfs_close(&s);
}

static struct pfs_segment_info segment_of(const struct pfs_segment *segment)
{
	struct pfs_segment_info info;

	assert_int_equal(pfs_segment_info(segment, &info), 0);
	return info;
}

static void what_is_held_stays_mapped_under_its_number(void **state)
{
	struct pfs_session *s = session_open(true);
	struct pfs_segment *first, *again, *second;
	struct pfs_transfer_result plan;
	uint64_t number;

	assert_int_equal(pfs_segment_hold(s, &first), 0);
	number = segment_of(first).number;
	assert_ptr_equal(segment_of(first).address, info_of(s).segment);
	assert_int_equal(segment_of(first).bytes, SEGMENT_BYTES);
	assert_true(!segment_of(first).unused && !segment_of(first).read_only);
	assert_int_equal(fetch(s, look_up(s), &plan), 0);
	die(true); /* the same memory is the same mapping */
	assert_int_equal(probe(s), 0);
	assert_int_equal(pfs_segment_hold(s, &again), 0);
	assert_int_equal(segment_of(again).number, number);
	pfs_segment_let_go(&again);
	assert_null(again);
	pfs_segment_let_go(&again);
	die(false);
	assert_int_equal(probe(s), 0);
	assert_int_equal(pfs_segment_hold(s, &second), 0);
	assert_true(segment_of(second).number > number && segment_of(second).address != segment_of(first).address);
	assert_false(segment_of(first).unused); /* a plan is left */
	assert_int_equal(pfs_release(s, &plan.plan, 1, NULL), 0);
	assert_true(segment_of(first).unused && !segment_of(second).unused);
	assert_int_equal(*(uint8_t *)segment_of(first).address, 1);
	assert_int_equal(mappings(s), 2);
	pfs_segment_let_go(&first);
	assert_int_equal(mappings(s), 1);
	pfs_segment_let_go(&second);
	assert_true(is_mapped(info_of(s).segment)); /* the session has it still */
	pfs_close(&s);
}

static void what_is_held_outlives_its_session(void **state)
{
	struct pfs_session *s = session_open(true);
	const uint8_t *at = info_of(s).segment;
	struct pfs_segment *held, *other;
	uint64_t number;

	assert_int_equal(pfs_segment_hold(s, &held), 0);
	assert_int_equal(pfs_segment_hold(s, &other), 0);
	number = segment_of(held).number;
	pfs_close(&s);
	assert_true(segment_of(held).unused);
	assert_int_equal(*at, 1);
	s = session_open(true); /* of the same memory: a mapping of its own, for it has acknowledged nothing yet */
	assert_true(info_of(s).segment != at);
	pfs_segment_let_go(&held);
	assert_true(is_mapped(at));
	pfs_segment_let_go(&other);
	assert_false(is_mapped(at));
	assert_int_equal(mappings(s), 1);
	assert_int_equal(pfs_segment_hold(s, &held), 0);
	assert_true(segment_of(held).number > number);
	pfs_close(&s);
	pfs_segment_let_go(&held);
}

#define TURNS 300u

static void *hold_and_let_go(void *context)
{
	for (unsigned i = 0; i < TURNS; i++) {
		struct pfs_segment *held;

		pfs_segment_hold(context, &held);
		if (*(volatile uint8_t *)segment_of(held).address == 0)
			abort();
		pfs_segment_let_go(&held);
	}
	return NULL;
}

/* Mappings come and go with connections meanwhile. */
static void holds_of_several_threads(void **state)
{
	struct pfs_session *s = session_open(true);
	pthread_t threads[2];

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hold_and_let_go, s), 0);
	for (unsigned i = 0; i < 30; i++) {
		die(i % 3 == 0);
		assert_int_equal(probe(s), 0);
	}
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(mappings(s), 1);
	assert_int_equal(info_of(s).remapped, 20);
	pfs_close(&s);
}

static void what_a_living_daemon_gave_up_is_not_trusted(void **state)
{
	struct pfs_session *s = session_open(true);
	struct pfs_transfer_result held;

	assert_int_equal(fetch(s, look_up(s), &held), 0);
	d.lost = ESHUTDOWN;
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(pfs_release(s, &held.plan, 1, NULL), -ESTALE);
	assert_int_equal(pfs_release(s, &held.plan, 1, NULL), -ENOENT);
	pfs_close(&s);
}

static void a_key_area_keeps_the_call_buffer_alone(void **state)
{
	struct pfs_session *s = session_open(true);
	const uint8_t *segment = info_of(s).segment;
	struct conn *first = s->current;
	struct pfs_key *keys;

	assert_int_equal(pfs_keys_area(s, 4, &keys), 0);
	die(false);
	assert_int_equal(pfs_probe(s, keys, 4, NULL, NULL), 0);
	assert_false(is_mapped(segment));
	assert_true(first->ctl == -1 && !first->mapping);
	memset(keys, 1, 4 * sizeof(*keys));
	assert_int_equal(pfs_probe(s, keys, 4, NULL, NULL), 0);
	assert_int_equal(pfs_keys_free(s, keys), 0);
	assert_true(s->conns == s->current && !s->conns->next);
	assert_int_equal(pfs_keys_free(s, keys), -EINVAL);
	pfs_close(&s);
}

static void an_engine_acknowledges_new_memory_alone(void **state)
{
	struct pfs_session *s = session_open(false);
	struct pfs_range range;
	struct pfs_range_ack ack;
	uint32_t count, accepted;

	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 0);
	assert_int_equal(pfs_segments(s, 0, &range, 1, &count, NULL, NULL), 0);
	ack = (struct pfs_range_ack){range.id, range.generation};
	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), 0);
	assert_int_equal(d.acknowledged, 1);
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 2); /* again, by the library */
	d.generation++;
	die(true);
	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 2); /* cut anew: the engine's to do */
	d.generation--;
	die(false);
	assert_int_equal(probe(s), 0);
	assert_int_equal(d.acknowledged, 2); /* the same number, of memory that the engine does not know */
	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), -ESTALE);
	assert_int_equal(pfs_segments(s, 0, &range, 1, &count, NULL, NULL), 0);
	assert_int_equal(pfs_segments_ack(s, &ack, 1, &accepted), 0);
	assert_int_equal(d.acknowledged, 3);
	die(false);
	assert_int_equal(pfs_news(s, 0), -ETIMEDOUT); /* asks, though it acknowledges nothing */
	assert_int_equal(info_of(s).reattached, 4);
	pfs_close(&s);
}

#define with_daemon(f) cmocka_unit_test_setup_teardown(f, daemon_start, daemon_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_daemon(every_errno_of_a_loss_attaches_anew),
		with_daemon(eio_is_a_loss_when_the_next_word_says_so),
		with_daemon(estale_of_a_served_connection_is_no_loss),
		with_daemon(a_guard_is_named_at_each_attaching),
		with_daemon(a_guard_is_more_than_an_older_daemon_knows),
		with_daemon(a_request_that_the_daemon_dies_of_is_given_up),
		with_daemon(nobody_serves_for_a_while),
		with_daemon(a_wait_for_the_call_buffer_ends_with_the_connection),
		with_daemon(open_put_plans_are_lost),
		with_daemon(what_the_daemon_knows_of_a_put_plan_is_told),
		with_daemon(handles_deliver_nothing),
		with_daemon(a_ticket_of_before_restores_nothing),
		with_daemon(the_same_memory_keeps_its_address),
		with_daemon(a_plan_that_could_not_be_released_goes_on),
		with_daemon(a_get_plan_stays_readable_until_its_release),
		with_daemon(what_is_held_stays_mapped_under_its_number),
		with_daemon(what_is_held_outlives_its_session),
		with_daemon(holds_of_several_threads),
		with_daemon(what_a_living_daemon_gave_up_is_not_trusted),
		with_daemon(a_key_area_keeps_the_call_buffer_alone),
		with_daemon(an_engine_acknowledges_new_memory_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
