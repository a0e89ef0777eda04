/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of a namespace in use: bad bytes on disk are found wherever the value is, and only what is nowhere else is lost.
 */
#include "tests/unit/tiering_world.h"

static struct world world;
static struct world *const w = &world;

static const struct world_options plain = { .classes = CLASS_KV, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 256 * MIB };

static struct space_check check_all(void)
{
	struct space_check check = { 0 };
	struct why why = WHY_INIT;
	int r;

	while ((r = space_check_step(w->f.space, &check, &why)) == 1)
		;
	assert_int_equal(r, 0);
	return check;
}

static void begin(void)
{
	world_open(w, &plain);
	assert_true(world_put(w, 1, 0, 8, 0));
	assert_true(world_put(w, 2, 0, 100, 0)); /* more than one piece */
	world_drain(w);
}

/* Changes a byte of the file of @chain's record: of value @page, or of its header. */
static void damage(uint64_t chain, uint32_t last, uint32_t page, bool header)
{
	char path[4200], name[RECORD_FILE_NAME_BYTES], c;
	struct record_file_plan plan;
	const struct record_file *f;
	uint64_t at;
	int fd;

	world_lock(w);
	uint32_t record = world_record(w, chain, last);

	assert_int_not_equal(record, INDEX_NONE);
	f = tiering_file(w->t, record);
	assert_int_not_equal(f->id, 0);
	record_file_plan(w->f.space->layout, f->file_pages, false, NULL, &plan);
	record_file_name(name, tiering_file_consumed(w->t, record), &f->endpoint);
	snprintf(path, sizeof(path), "%s/%02x/%s", disk_dir_path(w->t->dir), record_file_folder(&f->endpoint), name);
	world_unlock(w);
	at = header ? 100 : record_file_length(&plan, page) + 5;
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
	c ^= 1;
	assert_int_equal(pwrite(fd, &c, 1, (off_t)at), 1);
	close(fd);
}

static uint32_t value_of(uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct index_hit hit;

	index_lookup(w->f.space->index, &key, 1, 1, &hit);
	return hit.record == INDEX_NONE ? INDEX_NONE : index_value(w->f.space->index, hit.record, (uint16_t)page, 0, NULL);
}

static void demote(uint64_t chain, uint32_t pages)
{
	world_lock(w);
	for (uint32_t page = pages; page-- > 0;)
		assert_true(demote_value(w->t, value_of(chain, page)));
	world_unlock(w);
}

static void expect(struct space_check check, uint64_t values, uint64_t bad_values, uint64_t bad_files)
{
	assert_int_equal(check.files, 2);
	assert_int_equal(check.files_in_all, 2);
	assert_int_equal(check.values, values);
	assert_int_equal(check.bytes, values * 4096);
	assert_int_equal(check.bad_values, bad_values);
	assert_int_equal(check.bad_files, bad_files);
	assert_int_equal(check.names, bad_files < SPACE_CHECK_NAMES ? bad_files : SPACE_CHECK_NAMES);
}

static void test_clean(void **state)
{
	(void)state;
	begin();
	expect(check_all(), 108, 0, 0);
	demote(2, 100);
	expect(check_all(), 108, 0, 0);
	world_check(w);
	world_close(w);
}

/* What memory has is written anew: nothing is lost, however much of the file is bad. */
static void test_in_memory(void **state)
{
	(void)state;
	for (unsigned header = 0; header < 2; header++) {
		begin();
		damage(2, 99, 70, header);
		expect(check_all(), 108, header ? 100 : 1, 1);
		world_drain(w);
		world_check(w);
		expect(check_all(), 108, 0, 0);
		world_lock(w);
		for (uint32_t page = 0; page < 100; page++)
			assert_int_not_equal(value_of(2, page), INDEX_NONE);
		world_unlock(w);
		assert_int_equal(fixture_report(&w->f).stats.loads_failed, 0);
		world_close(w);
	}
}

/* What is on disk alone is gone, as when a load of it fails, and nothing else is. */
static void test_on_disk(void **state)
{
	(void)state;
	begin();
	demote(2, 100);
	damage(2, 99, 99, false);
	expect(check_all(), 108, 1, 1);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, 1);
	world_lock(w);
	assert_int_equal(value_of(2, 99), INDEX_NONE);
	for (uint32_t page = 0; page < 99; page++)
		assert_int_not_equal(value_of(2, page), INDEX_NONE);
	world_unlock(w);
	world_drain(w);
	world_check(w);
	struct space_check again = check_all();

	assert_int_equal(again.bad_values, 0);
	assert_int_equal(again.values, 107);
	world_close(w);
}

static void test_no_disk(void **state)
{
	struct space_check check = { 0 };
	struct why why = WHY_INIT;
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 32 * MIB, 16 * MIB, NULL);
	assert_int_equal(space_check_step(f.space, &check, &why), -ENODEV);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_in_memory),
		cmocka_unit_test(test_on_disk),
		cmocka_unit_test(test_no_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
