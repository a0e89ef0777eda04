/* SPDX-License-Identifier: Apache-2.0
 *
 * What is half there for fill_ttl goes. Seconds are those that fills_run is told.
 */
#include "tests/unit/store_fixture.h"

#include <pthread.h>

#include "store/manage.h"

#define MIB (1ull << 20)
#define CLASS_ONE "{\"name\":\"one\",\"kind\":\"dense\",\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"k\",\"bytes\":4096}]}"
#define CLASS_THREE "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":4096}]}"
#define KV 1u
#define STATE 2u

static struct put_result result;
static struct fixture f;
static struct session *rank[3];
static uint64_t plan;

static void begin(const char *classes, uint32_t world)
{
	fixture_open(&f, classes, world, 64 * MIB, 48 * MIB, NULL);
	for (uint32_t r = 0; r < world; r++)
		rank[r] = fixture_session(&f, r);
	plan = 0;
	fills_run(f.space->fills, 0);
}

static void end(uint32_t world)
{
	assert_at_base(&f, world);
	for (uint32_t r = 0; r < world; r++) {
		session_release(rank[r]);
		session_unref(&rank[r]);
	}
	fixture_close(&f);
}

static uint64_t start(uint32_t r, uint64_t chain, uint32_t from, uint32_t pages, uint32_t mask, uint32_t flags)
{
	assert_int_equal(put_chain(rank[r], ++plan, chain, from, pages, mask, flags, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	return plan;
}

static void stored(uint32_t r, uint64_t chain, uint32_t from, uint32_t pages, uint32_t mask, uint32_t flags)
{
	commit_all(rank[r], start(r, chain, from, pages, mask, flags), 1);
}

static void give_up(uint32_t r, uint64_t number)
{
	struct why why = WHY_INIT;
	uint32_t status;

	assert_int_equal(end_run(rank[r], number, false, 0, 1, &status, NULL, &why), 0);
}

static void second(uint64_t s)
{
	fills_run(f.space->fills, s * 1000000000ull);
}

/* Pages of a chain that have a committed value. */
static uint32_t present(uint64_t chain, uint32_t pages)
{
	uint32_t n = 0;

	lock_take(&f.space->lock);
	for (uint32_t i = 0; i < pages; i++) {
		struct key key = fixture_key(chain, i);
		struct index_hit hit;

		index_lookup(f.space->index, &key, 1, ~0u, &hit);
		n += hit.present;
	}
	lock_drop(&f.space->lock);
	return n;
}

static uint64_t filling(void)
{
	return fixture_report(&f).records_filling;
}

static uint64_t abandoned(void)
{
	return fixture_report(&f).stats.values_abandoned;
}

static void nobody_has_two_shares(void **state)
{
	(void)state;
	fixture_open(&f, CLASS_ONE, 2, 64 * MIB, 48 * MIB, NULL);
	assert_null(f.space->fills);
	fixture_close(&f);
}

/* The example of docs/ranks-and-classes.md. */
static void ten_pages_and_eight(void **state)
{
	(void)state;
	begin(CLASS_KV, 2);
	stored(0, 1, 0, 10, KV, 0);
	assert_int_equal(filling(), 1);
	stored(1, 1, 0, 8, KV, 0);
	second(59);
	assert_int_equal(present(1, 10), 10);
	second(60);
	assert_int_equal(present(1, 10), 8);
	assert_int_equal(abandoned(), 2);
	assert_int_equal(filling(), 0);
	assert_int_equal(fixture_report(&f).pages, 8);
	second(1000);
	assert_int_equal(present(1, 10), 8);
	/* What is whole was noted while it was not, and is forgotten. */
	stored(0, 2, 0, 4, KV, 0);
	stored(1, 2, 0, 4, KV, 0);
	assert_int_equal(filling(), 1);
	second(1060);
	assert_int_equal(filling(), 0);
	assert_int_equal(present(2, 4), 4);
	assert_int_equal(abandoned(), 2);
	end(2);
}

static void what_is_being_written_waits(void **state)
{
	uint64_t open;

	(void)state;
	begin(CLASS_KV, 2);
	stored(0, 1, 0, 4, KV, 0);
	second(50);
	open = start(1, 1, 0, 4, KV, 0);
	second(60);
	assert_int_equal(present(1, 4), 4);
	second(119);
	give_up(1, open);
	assert_int_equal(present(1, 4), 4);
	second(120);
	assert_int_equal(present(1, 4), 0);
	assert_int_equal(abandoned(), 4);
	assert_int_equal(fixture_report(&f).records, 0);
	end(2);
}

/* Of three shares the second comes late: the third has its time from then on. */
static void more_of_it_was_committed(void **state)
{
	(void)state;
	begin(CLASS_THREE, 3);
	stored(0, 1, 0, 2, KV, 0);
	second(30);
	stored(1, 1, 0, 2, KV, 0);
	second(60);
	assert_int_equal(present(1, 2), 2);
	second(119);
	assert_int_equal(present(1, 2), 2);
	second(120);
	assert_int_equal(present(1, 2), 0);
	assert_int_equal(abandoned(), 4);
	end(3);
}

static void what_is_pinned_waits(void **state)
{
	struct get_start get = { 0 };
	struct why why = WHY_INIT;

	(void)state;
	begin(CLASS_KV, 2);
	stored(0, 1, 0, 4, KV, 0);
	stored(1, 1, 0, 3, KV, 0);
	assert_int_equal(get_chain(rank[0], 1, 1, 4, 0, &get, &why), 0);
	assert_int_equal(get.transferable_len, 3 * FIXTURE_PAGE);
	second(60);
	assert_int_equal(present(1, 4), 4);
	assert_int_equal(filling(), 1);
	assert_int_equal(get_cancel(rank[0], 1, &why), 0);
	second(120);
	assert_int_equal(present(1, 4), 3);
	end(2);
}

static void a_ring_goes_whole(void **state)
{
	(void)state;
	begin(CLASS_KV, 2);
	stored(0, 1, 0, 4, KV, PUT_WHOLE);
	stored(1, 1, 0, 3, KV, 0);
	second(60);
	assert_int_equal(present(1, 4), 0);
	assert_int_equal(abandoned(), 7);
	end(2);
}

/* A row that is half there goes and leaves the pages. */
static void a_row_goes_alone(void **state)
{
	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 2);
	stored(0, 1, 0, 4, KV | STATE, 0);
	stored(1, 1, 0, 4, KV, 0);
	second(60);
	assert_int_equal(present(1, 4), 4);
	assert_int_equal(abandoned(), 1);
	lock_take(&f.space->lock);
	struct key key = fixture_key(1, 3);
	assert_false(index_record(f.space->index, index_find_endpoint(f.space->index, &key))->flags & RECORD_FLAG_ROW);
	lock_drop(&f.space->lock);
	end(2);
}

static void in_several_stays(void **state)
{
	(void)state;
	begin(CLASS_KV, 2);
	for (uint64_t chain = 1; chain <= 5; chain++)
		stored(0, chain, 0, 300, KV, 0);
	stored(1, 3, 0, 100, KV, 0);
	stored(1, 4, 0, 300, KV, 0);
	assert_int_equal(filling(), 5);
	second(60);
	assert_int_equal(filling(), 0);
	assert_int_equal(abandoned(), 3 * 300 + 200);
	assert_int_equal(present(3, 300), 100);
	assert_int_equal(present(4, 300), 300);
	assert_int_equal(fixture_report(&f).pages, 400);
	end(2);
}

/* A number that is another record's by then has its own time. */
static void a_number_is_used_again(void **state)
{
	struct eviction all = { .goal_bytes = EVICTION_ALL };
	struct why why = WHY_INIT;
	int r;

	(void)state;
	begin(CLASS_KV, 2);
	all.session = rank[0];
	stored(0, 1, 0, 4, KV, 0);
	r = eviction_begin(&all, &why);
	while (r == STEP_MORE)
		r = eviction_step(&all, &why);
	assert_int_equal(present(1, 4), 0);
	second(40);
	stored(0, 2, 0, 4, KV, 0);
	second(99);
	assert_int_equal(present(2, 4), 4);
	second(120);
	assert_int_equal(present(2, 4), 0);
	/* Of what a reset hid nothing is looked at. */
	stored(0, 3, 0, 4, KV, 0);
	struct reset reset = { .session = rank[0] };
	r = reset_begin(&reset, &why);
	while (r == STEP_MORE)
		r = reset_step(&reset, &why);
	assert_int_equal(r, 0);
	second(180);
	assert_int_equal(filling(), 0);
	assert_int_equal(abandoned(), 4);
	end(2);
}

/* The list is lost, and made anew from what is there. */
static void sweep(void)
{
	struct why why = WHY_INIT;

	fills_free(&f.space->fills);
	assert_int_equal(fills_new(f.space, &f.space->fills, &why), 0);
	second(1000);
	while (fills_sweep(f.space->fills))
		;
}

/* The maintainer does so once, where an adoption or a restart says so. */
static void the_maintainer_sweeps(void **state)
{
	struct why why = WHY_INIT;

	(void)state;
	begin(CLASS_KV, 2);
	stored(0, 1, 0, 4, KV, 0);
	fills_free(&f.space->fills);
	assert_int_equal(fills_new(f.space, &f.space->fills, &why), 0);
	host_maintain(f.host);
	assert_int_equal(filling(), 0);
	f.space->fills_sweep = true;
	host_maintain(f.host);
	assert_int_equal(filling(), 1);
	assert_false(f.space->fills_sweep);
	end(2);
}

/* What is there after an adoption is as if it had just been committed. */
static void after_an_adoption(void **state)
{
	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 2);
	for (uint64_t chain = 1; chain <= 100; chain++) {
		stored(0, chain, 0, 2, KV, 0);
		if (chain % 2)
			stored(1, chain, 0, 2, KV, 0);
	}
	stored(0, 101, 0, 200, KV, 0);
	stored(1, 101, 0, 199, KV, 0);
	stored(0, 102, 0, 200, KV, 0);
	stored(1, 102, 0, 200, KV, 0);
	stored(0, 103, 0, 1, KV | STATE, 0);
	stored(1, 103, 0, 1, KV, 0);
	sweep();
	assert_int_equal(filling(), 50 + 1 + 1);
	second(1060);
	assert_int_equal(abandoned(), 50 * 2 + 1 + 1);
	sweep();
	assert_int_equal(filling(), 0);
	end(2);
}

static struct fill_span span_of(uint64_t chain, uint32_t page, uint32_t pages)
{
	struct key key = fixture_key(chain, 0);
	struct index_hit hit;

	lock_take(&f.space->lock);
	index_lookup(f.space->index, &key, 1, ~0u, &hit);
	lock_drop(&f.space->lock);
	return (struct fill_span){ hit.record, index_record(f.space->index, hit.record)->generation, page, pages };
}

static void abandon(struct fill_span *spans, uint32_t count)
{
	struct fill_span copy[8];

	memcpy(copy, spans, count * sizeof(*spans)); /* they are used up */
	fills_abandon(f.space->fills, copy, count);
}

/* A put ticket's deadline: of the pages given, at once. */
static void abandoned_at_once(void **state)
{
	struct fill_span spans[3];
	uint64_t open;

	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 2);
	stored(0, 1, 0, 4, KV | STATE, 0);
	open = start(1, 1, 0, 1, KV, 0);
	spans[0] = span_of(1, 0, 1);
	spans[1] = span_of(1, 3, 1);
	spans[2] = span_of(1, INDEX_PAGE_ROW, 1);
	abandon(spans, 3); /* a plan holds the record */
	assert_int_equal(abandoned(), 0);
	commit_all(rank[1], open, 1);
	abandon(spans, 3);
	assert_int_equal(abandoned(), 2);
	assert_int_equal(present(1, 4), 3);
	end(2);
}

/* Ranks had values of their own, in any order; a record gets shorter as they go, and that is no reason to stop. */
static void abandoned_from_behind(void **state)
{
	struct fill_span spans[4];

	(void)state;
	begin(CLASS_KV, 3);
	stored(0, 1, 0, 300, KV, 0);
	stored(1, 1, 0, 10, KV, 0);
	stored(2, 1, 0, 5, KV, 0);
	stored(0, 2, 0, 4, KV, 0);
	spans[0] = span_of(1, 0, 8);
	spans[1] = span_of(2, 0, 4);
	spans[2] = span_of(1, 100, 200);
	spans[3] = span_of(1, 4, 96);
	abandon(spans, 4);
	assert_int_equal(abandoned(), 295 + 5 + 4); /* five pages have all shares */
	assert_int_equal(present(1, 300), 5);
	assert_int_equal(present(2, 4), 0);
	assert_int_equal(fixture_report(&f).records, 1);
	end(3);
}

/* The record has become another one: that is nobody's business here. */
static void another_record_is_left_alone(void **state)
{
	struct fill_span span;

	(void)state;
	begin(CLASS_KV, 2);
	stored(0, 1, 0, 4, KV, 0);
	span = span_of(1, 0, 4);
	second(60);
	assert_int_equal(fixture_report(&f).records, 0);
	stored(0, 2, 0, 4, KV, 0);
	assert_int_equal(span_of(2, 0, 4).record, span.record);
	abandon(&span, 1);
	assert_int_equal(abandoned(), 4); /* those of the minute */
	assert_int_equal(present(2, 4), 4);
	end(2);
}

/* Two ranks put the same chains, each leaving some out, while time passes quickly. */
static void *putting(void *context)
{
	static struct put_result results[2];
	uint32_t r = *(uint32_t *)context, status;
	uint64_t mine = (r + 1) * 1000000ull, seed = 88172645463325252ull + r;

	for (uint32_t i = 0; i < 600; i++) {
		uint64_t chain = 1 + i % 40;
		uint32_t pages = 1 + seed % 12;
		struct why why = WHY_INIT;

		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		assert(!put_chain(rank[r], ++mine, chain, 0, pages, seed % 3 ? KV | STATE : KV, 0, &results[r]));
		assert(results[r].status[0] != PUT_OK || !end_run(rank[r], mine, seed % 8 > 0, 0, 1, &status, NULL, &why));
	}
	return NULL;
}

static void beside_puts(void **state)
{
	uint32_t ranks[2] = { 0, 1 };
	pthread_t threads[2];
	uint64_t now = 1;

	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, putting, &ranks[i]), 0);
	for (; now < 5000; now++) {
		second(now);
		if (now % 100 == 0)
			while (fills_sweep(f.space->fills))
				;
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	for (unsigned i = 0; i < 3; i++)
		second(now += 60);
	assert_int_equal(filling(), 0);
	sweep();
	assert_int_equal(filling(), 0); /* nothing is half there */
	end(2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_has_two_shares),
		cmocka_unit_test(ten_pages_and_eight),
		cmocka_unit_test(what_is_being_written_waits),
		cmocka_unit_test(more_of_it_was_committed),
		cmocka_unit_test(what_is_pinned_waits),
		cmocka_unit_test(a_ring_goes_whole),
		cmocka_unit_test(a_row_goes_alone),
		cmocka_unit_test(in_several_stays),
		cmocka_unit_test(a_number_is_used_again),
		cmocka_unit_test(after_an_adoption),
		cmocka_unit_test(the_maintainer_sweeps),
		cmocka_unit_test(abandoned_at_once),
		cmocka_unit_test(abandoned_from_behind),
		cmocka_unit_test(another_record_is_left_alone),
		cmocka_unit_test(beside_puts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
