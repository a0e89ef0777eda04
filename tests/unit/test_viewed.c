/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mount's reads of values on disk keep: each value is read once for many small steps, and what is kept goes with its place.
 */
#include "tests/unit/tier_world.h"

#include <errno.h>

#include "store/get_private.h"
#include "store/viewed.h"

#define MEMORY (16ull << 20)
#define PAGES 100u
#define STEP 4096u
#define READERS 4u
#define ROUNDS 6u

static struct tier_world world; /* static: cmocka leaves a failed test by longjmp */
static uint64_t offsets[8192];

static struct session *begin(struct tier_world *w, struct record_info *info)
{
	struct key endpoint = fixture_key(1, PAGES - 1);

	world_open(w, WORLD_KV, MEMORY);
	struct session *s = fixture_session(&w->f, 0);

	world_put(w, s, 1, 1, 0, PAGES, false);
	world_to_disk(w);
	assert_int_equal(space_record_find(w->f.space, &endpoint, false, info), 0);
	return s;
}

static void end(struct tier_world *w, struct session *s)
{
	world_at_base(w, 1);
	session_release(s);
	session_unref(&s);
	world_close(w);
}

static uint64_t read_bytes(struct tier_world *w)
{
	struct host_disk_report r;

	host_disk_report(w->f.host, &r);
	return r.read_bytes;
}

/* Everything of the record, in steps; the first error. */
static ssize_t read_all(struct tier_world *w, const struct record_info *info, char *to)
{
	for (uint64_t at = 0; at < PAGES * WORLD_VALUE; at += STEP) {
		ssize_t n = space_record_read(w->f.space, info->number, info->generation, false, at, to + at, STEP);

		if (n != STEP)
			return n < 0 ? n : -EIO;
	}
	return 0;
}

static bool is_right(const char *all)
{
	bool right = true;

	for (uint32_t i = 0; i < PAGES; i++)
		right &= world_is(all + i * WORLD_VALUE, WORLD_VALUE, 1, i);
	return right;
}

/* Values in chunks. */
static uint32_t kept(struct tier_world *w)
{
	struct tiering *t = w->f.space->tiering;
	uint32_t n = 0;

	lock_take(&w->f.space->lock);
	for (uint32_t place = t->place_first; place < t->place_top; place++)
		n += viewed_is(t, place);
	lock_drop(&w->f.space->lock);
	return n;
}

static void small_steps_read_once(void **state)
{
	struct tier_world *w = &world;
	struct record_info info;
	struct session *s = begin(w, &info);
	char *all = malloc(PAGES * WORLD_VALUE);
	uint64_t before = read_bytes(w);

	assert_int_equal(read_all(w, &info, all), 0);
	assert_true(is_right(all));
	assert_true(read_bytes(w) - before >= PAGES * WORLD_VALUE);
	assert_true(read_bytes(w) - before < PAGES * WORLD_VALUE * 13 / 10);
	assert_true(atomic_load(&w->f.host->viewed_bytes) <= VIEWED_BYTES);
	viewed_trim(w->f.space->tiering, UINT64_MAX);
	assert_int_equal(kept(w), 0);
	assert_int_equal(atomic_load(&w->f.host->viewed_bytes), 0);
	free(all);
	end(w, s);
}

/* The value comes back to memory: what was kept is of a place that may be another value's next. */
static void it_goes_with_its_place(void **state)
{
	struct tier_world *w = &world;
	struct record_info info;
	struct session *s = begin(w, &info);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;
	char value[WORLD_VALUE];

	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, 0, value, STEP), STEP);
	assert_int_equal(kept(w), 1);
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(get_release(s, 2, &why), 0);
	assert_int_equal(kept(w), 0);
	world_to_disk(w); /* all at places that others had */
	for (uint32_t i = 0; i < PAGES; i++) {
		assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, i * WORLD_VALUE, value, WORLD_VALUE),
			WORLD_VALUE);
		assert_true(world_is(value, WORLD_VALUE, 1, i));
	}
	end(w, s);
}

static void it_goes_with_its_record(void **state)
{
	struct tier_world *w = &world;
	struct record_info info;
	struct session *s = begin(w, &info);
	struct why why = WHY_INIT;
	char value[STEP];

	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, 0, value, STEP), STEP);
	assert_int_equal(space_record_evict(w->f.space, info.number, info.generation, false, &why), 0);
	assert_int_equal(kept(w), 0);
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, STEP, value, STEP), -ENOENT);
	end(w, s);
}

/* ---- several readers --------------------------------------------------------------------------------------------------- */

struct reader {
	pthread_t thread;
	struct record_info info;
	ssize_t error;
	bool wrong;
};

static void *read_again_and_again(void *argument)
{
	struct reader *r = argument;
	char *all = malloc(PAGES * WORLD_VALUE);

	for (uint32_t i = 0; i < ROUNDS && !r->error && !r->wrong; i++) {
		r->error = read_all(&world, &r->info, all);
		r->wrong = !r->error && !is_right(all);
	}
	free(all);
	return NULL;
}

/* While the values come and go: never other bytes, never an error. */
static void readers_and_an_engine(void **state)
{
	struct tier_world *w = &world;
	struct reader reader[READERS] = { 0 };
	struct record_info info;
	struct session *s = begin(w, &info);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	for (uint32_t i = 0; i < READERS; i++) {
		reader[i].info = info;
		assert_int_equal(pthread_create(&reader[i].thread, NULL, read_again_and_again, &reader[i]), 0);
	}
	for (uint32_t i = 1; i <= ROUNDS; i++) {
		world_get(s, 2 * i, 1, PAGES, &start);
		transfer_of(&call, s, 2 * i, 2 * i + 1, PAGES, 0, PAGES, offsets, PAGES);
		assert_int_equal(transfer_all(&call, &why), 0);
		assert_int_equal(get_release(s, 2 * i + 1, &why), 0);
		world_to_disk(w);
		viewed_trim(w->f.space->tiering, UINT64_MAX);
	}
	for (uint32_t i = 0; i < READERS; i++) {
		pthread_join(reader[i].thread, NULL);
		assert_int_equal(reader[i].error, 0);
		assert_false(reader[i].wrong);
	}
	assert_int_equal(atomic_load(&w->corrupt), 0);
	viewed_trim(w->f.space->tiering, UINT64_MAX);
	assert_int_equal(atomic_load(&w->f.host->viewed_bytes), 0);
	end(w, s);
}

/* Two want the same value at the same time: one reads it, the other waits for that. */
static void two_read_once(void **state)
{
	struct tier_world *w = &world;
	struct reader reader[2] = { 0 };
	struct record_info info;
	struct session *s = begin(w, &info);
	uint64_t before = read_bytes(w);

	gate_set(w->gate, true);
	for (uint32_t i = 0; i < 2; i++) {
		reader[i].info = info;
		assert_int_equal(pthread_create(&reader[i].thread, NULL, read_again_and_again, &reader[i]), 0);
	}
	gate_await(w->gate);
	gate_set(w->gate, false);
	for (uint32_t i = 0; i < 2; i++) {
		pthread_join(reader[i].thread, NULL);
		assert_int_equal(reader[i].error, 0);
		assert_false(reader[i].wrong);
	}
	assert_true(read_bytes(w) - before < PAGES * WORLD_VALUE * 13 / 10); /* both, and all rounds: it fits what is kept */
	end(w, s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_steps_read_once),
		cmocka_unit_test(it_goes_with_its_place),
		cmocka_unit_test(it_goes_with_its_record),
		cmocka_unit_test(readers_and_an_engine),
		cmocka_unit_test(two_read_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
