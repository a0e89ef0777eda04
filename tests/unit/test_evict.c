/* SPDX-License-Identifier: Apache-2.0
 *
 * Evicting by hand, through store/, without a mount.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>

#include "store/manage.h"

#define MIB (1ull << 20)

static struct put_result result;

static void stored(struct session *s, uint64_t plan, uint64_t chain, uint32_t from, uint32_t pages, uint32_t flags)
{
	assert_int_equal(put_chain(s, plan, chain, from, pages, 1, flags, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, plan, 1);
}

static struct eviction evict(struct session *s, uint64_t goal)
{
	struct eviction call = { .session = s, .goal_bytes = goal };
	struct why why = WHY_INIT;
	int r = eviction_begin(&call, &why);

	while (r == STEP_MORE)
		r = eviction_step(&call, &why);
	assert_int_equal(r, 0);
	return call;
}

static void all_of_many_chains(void **state)
{
	struct fixture f;
	struct eviction e;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 48 * MIB, NULL);
	struct session *s = fixture_session(&f, 0);
	uint64_t plan = 1;

	/* The second time numbers come back in another order, so that parents lie above their children. */
	for (unsigned time = 0; time < 3; time++) {
		for (uint64_t chain = 1; chain <= 60; chain++)
			for (uint32_t link = 0; link < 20; link++)
				stored(s, plan++, chain, link * 5, 5, 0);
		e = evict(s, EVICTION_ALL);
		assert_int_equal(e.values, 6000);
		assert_int_equal(e.bytes, 6000 * 4096);
		assert_int_equal(e.records, 1200);
		assert_int_equal(e.refused, 0);
		assert_int_equal(fixture_report(&f).records, 0);
		assert_int_equal(fixture_report(&f).stats.values_evicted, 6000 * (time + 1));
		assert_at_base(&f, 1);
	}
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void what_is_in_use_stays_and_is_named(void **state)
{
	struct fixture f;
	struct get_start get = { 0 };
	struct why why = WHY_INIT;
	struct eviction e;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 48 * MIB, NULL);
	struct session *s = fixture_session(&f, 0);

	for (uint32_t link = 0; link < 4; link++)
		stored(s, 1 + link, 1, link * 100, 100, 0);
	stored(s, 9, 2, 0, 700, 0);
	stored(s, 10, 3, 0, 10, PUT_WHOLE);
	assert_int_equal(get_chain(s, 1, 1, 150, 0, &get, &why), 0); /* two of the four records */
	e = evict(s, EVICTION_ALL);
	assert_int_equal(e.values, 200 + 700 + 10);
	assert_int_equal(e.records, 4);
	assert_int_equal(e.refused, 2);
	assert_int_equal(e.refusals, 2);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	for (uint32_t i = 0; i < e.refusals; i++) {
		struct record_info info;

		assert_int_equal(space_record_get(f.space, e.refusal[i].number, e.refusal[i].generation, &info), 0);
		assert_int_equal(info.pages, 100);
	}
	e = evict(s, EVICTION_ALL);
	assert_int_equal(e.values, 200);
	assert_int_equal(e.refused, 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void so_many_bytes_and_no_more_than_a_page_over(void **state)
{
	struct fixture f;
	struct eviction e;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 48 * MIB, NULL);
	struct session *s = fixture_session(&f, 0);

	for (uint64_t chain = 1; chain <= 4; chain++)
		stored(s, chain, chain, 0, 500, 0);
	e = evict(s, 1);
	assert_int_equal(e.values, 1);
	e = evict(s, 4096 * 1299);
	assert_int_equal(e.values, 1299);
	assert_int_equal(e.records, 2);
	assert_int_equal(fixture_report(&f).pages, 700);
	/* The coldest went: the last chain is whole. */
	struct get_start get = { 0 };
	struct why why = WHY_INIT;
	assert_int_equal(get_chain(s, 1, 4, 500, 0, &get, &why), 0);
	assert_int_equal(get.transferable_len, 500 * FIXTURE_PAGE);
	e = evict(s, 1ull << 40);
	assert_int_equal(e.values, 200);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	e = evict(s, 1ull << 40);
	assert_true(e.values >= 499); /* the busy one had come to owe its last page */
	assert_int_equal(fixture_report(&f).records, 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void one_by_name(void **state)
{
	struct fixture f;
	struct why why = WHY_INIT;

	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 48 * MIB, NULL);
	struct session *s = fixture_session(&f, 0);
	struct eviction e = { .session = s };
	struct key first = fixture_key(1, 9), second = fixture_key(1, 19), other = fixture_key(7, 7);

	stored(s, 1, 1, 0, 10, 0);
	stored(s, 2, 1, 10, 10, 0);
	assert_int_equal(eviction_begin(&e, &why), STEP_MORE);
	assert_int_equal(eviction_record(&e, 640, &other, &why), -ENOENT);
	assert_int_equal(eviction_record(&e, 641, &first, &why), -ENOENT);
	assert_int_equal(eviction_record(&e, 640, &first, &why), -ENOTEMPTY);
	assert_int_equal(eviction_record(&e, 1280, &second, &why), 0);
	assert_int_equal(eviction_record(&e, 1280, &second, &why), -ENOENT);
	assert_int_equal(eviction_record(&e, 640, &first, &why), 0);
	assert_int_equal(e.values, 20);
	assert_int_equal(e.records, 2);
	assert_int_equal(e.bytes, 20 * 4096);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	assert_int_equal(session_new(f.host, f.space, 1, 0, 0, true, &s, &why), 0);
	e.session = s;
	assert_int_equal(eviction_begin(&e, &why), -EROFS);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_of_many_chains),
		cmocka_unit_test(what_is_in_use_stays_and_is_named),
		cmocka_unit_test(so_many_bytes_and_no_more_than_a_page_over),
		cmocka_unit_test(one_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
