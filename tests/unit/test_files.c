/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of record files and clean bits: what they say, and what a successor reads of them after every single store.
 *
 *	test_files [seed [operations]]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "index/files.h"
#include "store/base/clock.h"
#include "tests/unit/index_world.h"
#include "tests/unit/stores_step.h"

#define RECORDS 4u
#define SLOTS 128u

static struct tables tables;
static size_t bytes;

static void make_record(uint32_t number, uint64_t parent)
{
	struct record_entry *t = &tables.records[number];

	tables_unseal(&t->check);
	t->parent_key = key_of(parent);
	t->flags = RECORD_USED;
	tables_seal_record(t, number);
}

static void start(void)
{
	static const uint8_t identity[32] = {1}, fingerprint[16] = {2};
	struct tables_config config = {.grants = 1, .records = RECORDS, .groups = 1, .entries = 128, .slots = SLOTS,
		.identity = identity, .fingerprint = fingerprint};
	void *memory;

	bytes = tables_bytes(&config);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	tables_format(&tables, memory, &config);
	for (uint32_t n = 0; n < RECORDS; n++)
		make_record(n, n);
}

static void end(void)
{
	munmap(tables.header, bytes);
}

static struct file_row row_of(uint64_t id)
{
	return (struct file_row){
		.endpoint = key_of(id),
		.id = id,
		.blocks = (uint32_t)id * 3,
		.pages = (uint16_t)(id % 60000 + 1),
		.file_pages = (uint16_t)(id % 60000 + 2),
		.flags = FILES_ROW | (id % 2 ? FILES_STALE : 0),
	};
}

static void set(uint32_t record, uint64_t id)
{
	struct file_row row = row_of(id);

	files_set(&tables, record, &row);
}

/* The row of @record is that of @id, in all that it says. */
static void assert_row(const struct tables *of, uint32_t record, uint64_t id)
{
	const struct file_row *row = files_get(of, record);
	struct file_row as = row_of(id);

	assert_non_null(row);
	assert_memory_equal(&row->endpoint, &as.endpoint, sizeof(as.endpoint));
	assert_int_equal(row->id, as.id);
	assert_int_equal(row->blocks, as.blocks);
	assert_int_equal(row->pages, as.pages);
	assert_int_equal(row->file_pages, as.file_pages);
	assert_int_equal(row->flags, as.flags);
}

/* ---- one situation a test -------------------------------------------------------------------------------------- */

static void test_a_row(void **state)
{
	(void)state;
	start();
	assert_null(files_get(&tables, 2));
	set(2, 10);
	assert_row(&tables, 2, 10);
	assert_null(files_get(&tables, 1));
	assert_null(files_get(&tables, 3));
	const struct file_row *first = files_get(&tables, 2);

	set(2, 11);
	assert_row(&tables, 2, 11);
	assert_ptr_not_equal(files_get(&tables, 2), first);
	set(2, 12);
	assert_row(&tables, 2, 12);
	assert_ptr_equal(files_get(&tables, 2), first);
	files_clear(&tables, 2);
	assert_null(files_get(&tables, 2));
	files_clear(&tables, 2);
	assert_null(files_get(&tables, 2));
	end();
}

static void test_turns_go_round(void **state)
{
	(void)state;
	start();
	for (uint32_t i = 0; i < 70000; i++) {
		set(0, i);
		assert_int_equal(files_get(&tables, 0)->id, i);
	}
	assert_int_equal(files_get(&tables, 0)->turn, 70000 % 65536);
	end();
}

static void test_another_record(void **state)
{
	(void)state;
	start();
	for (uint32_t sets = 1; sets <= 2; sets++) {
		for (uint32_t i = 0; i < sets; i++)
			set(1, 20 + i);
		make_record(1, 100 + sets); /* the number is reused without its row having gone */
		assert_null(files_get(&tables, 1));
		set(1, 30);
		assert_row(&tables, 1, 30);
		assert_int_equal(tables.rows[3].check, 0); /* nothing of the former one is left to count */
	}
	end();
}

static void test_damage(void **state)
{
	(void)state;
	start();
	set(1, 5);
	set(1, 6);
	struct file_row *line = &tables.rows[3];

	assert_ptr_equal(files_get(&tables, 1), line);
	for (unsigned i = 0; i < sizeof(*line); i++) { /* then the earlier one counts */
		((uint8_t *)line)[i] ^= 0x10;
		assert_row(&tables, 1, 5);
		((uint8_t *)line)[i] ^= 0x10;
	}
	assert_row(&tables, 1, 6);
	tables.rows[2] = *line; /* in the other line, and at another record */
	tables.rows[4] = *line;
	assert_ptr_equal(files_get(&tables, 1), line);
	assert_null(files_get(&tables, 2));
	line->check = 0;
	assert_null(files_get(&tables, 1));
	end();
}

static void test_clean_bits(void **state)
{
	(void)state;
	start();
	files_set_clean(&tables, 0, true);
	files_set_clean(&tables, 63, true);
	files_set_clean(&tables, 64, true);
	files_set_clean(&tables, 127, true);
	assert_true(tables.clean[0] == (1ull << 63 | 1) && tables.clean[1] == (1ull << 63 | 1));
	assert_true(files_is_clean(&tables, 63) && files_is_clean(&tables, 64) && !files_is_clean(&tables, 62));
	files_set_clean(&tables, 63, false);
	files_set_clean(&tables, 62, false);
	assert_true(tables.clean[0] == 1 && !files_is_clean(&tables, 63));
	end();
}

/* ---- every store ----------------------------------------------------------------------------------------------- */

static uint64_t given_seed;
static uint32_t given_steps = 2000;

#define NO_ROW UINT64_MAX

struct said {
	uint64_t id[RECORDS];
	uint64_t clean[SLOTS / 64];
};

static void hear(const struct tables *of, struct said *ret)
{
	for (uint32_t n = 0; n < RECORDS; n++) {
		const struct file_row *row = files_get(of, n);

		ret->id[n] = row ? row->id : NO_ROW;
		if (row)
			assert_row(of, n, row->id);
	}
	memcpy(ret->clean, of->clean, sizeof(ret->clean));
}

/* Each row is the one of before or the one of after, whole; and once it is the latter it stays. */
static void judge(const struct said *before, const struct said *after)
{
	bool came[RECORDS] = {false};

	for (uint32_t i = 0; i < snapshot_count; i++) {
		struct tables there;
		struct said now;
		struct why why = WHY_INIT;

		assert_int_equal(tables_open(&there, snapshots + i * bytes, bytes, &why), 0);
		hear(&there, &now);
		for (uint32_t n = 0; n < RECORDS; n++) {
			assert_true(now.id[n] == after->id[n] || (!came[n] && now.id[n] == before->id[n]));
			came[n] |= now.id[n] == after->id[n];
		}
		for (uint32_t w = 0; w < SLOTS / 64; w++)
			assert_true(now.clean[w] == before->clean[w] || now.clean[w] == after->clean[w]);
	}
}

static void operate(uint64_t *seed, uint64_t id)
{
	uint32_t record = roll_to(seed, RECORDS), slot = roll_to(seed, SLOTS);

	switch (roll_to(seed, 8)) {
	case 0 ... 3:
		set(record, id);
		break;
	case 4:
		files_clear(&tables, record);
		break;
	case 5:
		make_record(record, id);
		break;
	default:
		files_set_clean(&tables, slot, roll_to(seed, 2));
	}
}

static void test_every_store(void **state)
{
	static struct said before, after;
	uint64_t seed = given_seed * 2 + 1, stores = 0;

	(void)state;
	if (!CAN_STEP) /* the sanitizers see the other tests */
		return;
	fprintf(stderr, "seed %llu\n", (unsigned long long)given_seed);
	start();
	step_init(tables.header, bytes);
	for (uint32_t i = 0; i < given_steps; i++) {
		hear(&tables, &before);
		step_begin();
		operate(&seed, i + 1000);
		step_end();
		hear(&tables, &after);
		judge(&before, &after);
		stores += snapshot_count;
	}
	assert_true(stores > given_steps);
	fprintf(stderr, "  %llu stores\n", (unsigned long long)stores);
	step_deinit();
	end();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_row),
		cmocka_unit_test(test_turns_go_round),
		cmocka_unit_test(test_another_record),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_clean_bits),
		cmocka_unit_test(test_every_store),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	if (argc > 2)
		given_steps = (uint32_t)strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
