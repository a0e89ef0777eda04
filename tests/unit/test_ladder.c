/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows stay, what becomes of demands, and what makes room for a window: through store/, without a disk.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>

#include "store/manage.h"

#define MIB (1ull << 20)
#define KV 1u
#define STATE 2u

static struct put_result result;
static struct fixture f;
static struct session *s;
static uint64_t plan;

static void begin(const char *classes, uint64_t memory, uint64_t floor)
{
	fixture_open(&f, classes, 1, memory, floor, NULL);
	s = fixture_session(&f, 0);
	plan = 0;
}

static void end(void)
{
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
}

static void stored(uint64_t chain, uint32_t from, uint32_t pages, uint32_t mask)
{
	assert_int_equal(put_chain(s, ++plan, chain, from, pages, mask, 0, &result), 0);
	assert_int_equal(result.status[0], PUT_OK);
	commit_all(s, plan, 1);
}

/* The record whose row stands at the end of @page of a chain. */
static uint32_t row_at(uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	uint32_t record;

	lock_take(&f.space->lock);
	record = index_find_row(f.space->index, &key, ~0u);
	lock_drop(&f.space->lock);
	return record;
}

static bool has_row(uint64_t chain, uint32_t page)
{
	return row_at(chain, page) != INDEX_NONE;
}

static void mark(uint32_t record, uint32_t flags, uint32_t hits)
{
	lock_take(&f.space->lock);
	f.space->tables.records[record].flags |= flags;
	f.space->tables.records[record].hits = hits;
	lock_drop(&f.space->lock);
}

static void the_next_row_makes_one_needless(void **state)
{
	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 64 * MIB, 48 * MIB);
	for (uint64_t chain = 1; chain <= 6; chain++) {
		stored(chain, 0, 4, KV | STATE);
		assert_true(has_row(chain, 3));
		mark(row_at(chain, 3), chain == 2 ? RECORD_RUNG : chain == 3 ? RECORD_DEMANDED : 0, chain == 4);
		stored(chain, 4, 4, chain == 5 ? KV : KV | STATE);
		if (chain == 6) { /* another child: somebody branched there */
			struct put_group group = { .consumed = 5 * FIXTURE_PAGE, .keys = 1, .class_mask = KV,
						   .parent = fixture_key(chain, 3) };
			struct key key = fixture_key(100, 0);

			assert_int_equal(put_run(s, ++plan, &group, 1, &key, 1, KV, &result), 0);
			commit_all(s, plan, 1);
		}
		rows_drop(f.space);
		assert_int_equal(has_row(chain, 3), chain != 1);
		assert_int_equal(has_row(chain, 7), chain != 5);
	}
	assert_int_equal(fixture_report(&f).stats.rows_superseded, 1);
	assert_int_equal(fixture_report(&f).pages, 6 * 8 + 1); /* all pages are there */
	end();
}

/* On the grid of 8,192 tokens, 128 pages, rows stay; the one before the last goes. */
static void rungs_stay(void **state)
{
	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 64 * MIB, 48 * MIB);
	for (uint32_t page = 0; page < 320; page += 64) {
		stored(1, page, 64, KV | STATE);
		rows_drop(f.space);
	}
	for (uint32_t page = 64; page <= 320; page += 64)
		assert_int_equal(has_row(1, page - 1), page == 128 || page == 256 || page == 320);
	end();
}

static void demand(uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	uint64_t hash;

	index_prefetch(f.space->index, &key, 1, &hash);
	lock_take(&f.space->lock);
	demands_record(f.space->demands, &key, hash, (page + 1) * FIXTURE_PAGE);
	lock_drop(&f.space->lock);
}

static void a_demanded_row(void **state)
{
	struct demands_counters c;
	struct eviction all = { .goal_bytes = EVICTION_ALL };
	struct why why = WHY_INIT;
	int r;

	(void)state;
	begin(CLASS_KV "," CLASS_STATE, 64 * MIB, 48 * MIB);
	stored(1, 0, 4, KV);
	demand(1, 3);
	demand(1, 2);
	stored(1, 0, 4, KV | STATE);
	c = fixture_report(&f).demands;
	assert_int_equal(c.demands_recorded, 2);
	assert_int_equal(c.demands_kept, 1);
	assert_int_equal(c.kept_now, 1);
	assert_int_equal(c.open, 1);
	assert_true(f.space->tables.records[row_at(1, 3)].flags & RECORD_DEMANDED);
	stored(1, 4, 4, KV | STATE);
	rows_drop(f.space);
	assert_true(has_row(1, 3));
	all.session = s;
	r = eviction_begin(&all, &why);
	while (r == STEP_MORE)
		r = eviction_step(&all, &why);
	c = fixture_report(&f).demands;
	assert_int_equal(c.demands_evicted, 1);
	assert_int_equal(c.kept_now, 0);
	assert_int_equal(c.open, 1);
	stored(2, 0, 4, KV | STATE);
	demand(2, 3); /* of no use, but somebody asked */
	struct reset reset = { .session = s };
	r = reset_begin(&reset, &why);
	while (r == STEP_MORE)
		r = reset_step(&reset, &why);
	c = fixture_report(&f).demands;
	assert_int_equal(c.demands_recorded, 3);
	assert_int_equal(c.demands_dropped, 2);
	assert_int_equal(c.demands_evicted, 1);
	end();
}

#define CLASS_NEAR "{\"name\":\"near\",\"kind\":\"window\",\"last\":2,\"planes\":[{\"name\":\"k\",\"bytes\":65536}]}"

/* Slots of a window are lacking: no page goes for them while there are old values. */
static void a_window_makes_room_for_itself(void **state)
{
	struct space_report r;

	(void)state;
	begin(CLASS_KV "," CLASS_NEAR, 128 * MIB, 128 * MIB); /* 2,048 slots for pages, 1,920 for the window */
	for (uint64_t chain = 1; chain <= 40; chain++)
		stored(chain, 0, 50, 3);
	r = fixture_report(&f);
	assert_int_equal(r.pages, 40 * 50);
	assert_int_equal(r.records, 40);
	assert_true(r.stats.values_evicted > 0);
	lock_take(&f.space->lock);
	for (uint64_t chain = 1; chain <= 40; chain++) {
		struct key key = fixture_key(chain, 49);
		struct index_walk walk;
		uint32_t budget = 1000;

		index_walk_begin(&walk, index_find_endpoint(f.space->index, &key), 0);
		assert_int_equal(index_record_restorable(f.space->index, &walk, &budget), 1);
	}
	lock_drop(&f.space->lock);
	end();
}

/* The sentence about a floor that is too small says what one would need; that much does. */
static void a_floor_says_what_it_lacks(void **state)
{
	const char *classes = CLASS_KV ",{\"name\":\"big\",\"kind\":\"state\",\"planes\":[{\"name\":\"s\",\"bytes\":10485760}]}";
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;
	struct space *two;
	unsigned long long needs = 0;

	(void)state;
	begin(CLASS_KV, 64 * MIB, 16 * MIB);
	assert_int_equal(host_space_create(f.host, "two", fixture_layout(classes, 1, 4 * MIB), &access, &two, &why), -EINVAL);
	assert_memory_equal(why.text, "namespace two: a floor of 4194304 bytes is too small: class big needs a grant of 10485760", 89);
	assert_int_equal(sscanf(strstr(why.text, "; a request of 64 pages needs "), "; a request of 64 pages needs %llu", &needs), 1);
	assert_true(needs > 10485760 && needs < 16 * MIB);
	assert_int_equal(host_space_create(f.host, "two", fixture_layout(classes, 1, needs), &access, &two, &why), 0);
	space_unref(&two);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_next_row_makes_one_needless),
		cmocka_unit_test(rungs_stay),
		cmocka_unit_test(a_demanded_row),
		cmocka_unit_test(a_floor_says_what_it_lacks),
		cmocka_unit_test(a_window_makes_room_for_itself),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
