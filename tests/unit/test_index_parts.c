/* SPDX-License-Identifier: Apache-2.0
 *
 * What the index is made of: tables, map, arena, eviction order.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "index/arena.h"
#include "index/keymap.h"
#include "index/policy.h"
#include "tests/unit/index_world.h"

/* ---- tables ---------------------------------------------------------------------------------------------------- */

static void test_tables(void **state)
{
	static const uint8_t identity[32] = {1}, fingerprint[16] = {2};
	struct tables_config config = {.grants = 3,
		.records = 10,
		.groups = 5,
		.entries = 256,
		.slots = 200,
		.places = 40,
		.hollow = 16,
		.generation = 7,
		.serial = 11,
		.created_s = 12,
		.segment_inode = 13,
		.segment_bytes = 14,
		.identity = identity,
		.fingerprint = fingerprint};
	size_t bytes = tables_bytes(&config);
	char *memory = aligned_alloc(4096, bytes);
	struct tables t, u;
	struct why why = WHY_INIT;

	(void)state;
	memset(memory, 0, bytes);
	/* header; grants; records, 1280 bytes; groups; entries, 16 KiB; seats; words, 1600 bytes; rows, 1280 bytes; clean bits:
	 * each from a page of its own */
	assert_int_equal(bytes, 4096 + 4096 + 4096 + 4096 + 16384 + 4 * 4096);
	assert_int_equal(tables_open(&u, memory, bytes, &why), -EINVAL);
	assert_string_equal(why.text, "tables begin with 0, not with 0x5046535441423031");
	tables_format(&t, memory, &config);
	assert_int_equal(tables_open(&u, memory, bytes, &why), 0);
	assert_ptr_equal(u.entries, memory + 16384);
	assert_int_equal(u.entry_capacity, 256);
	assert_int_equal(u.slot_capacity, 200);
	assert_ptr_equal(u.seats, memory + 32768);
	assert_ptr_equal(u.users, memory + 32768 + 4096);
	assert_ptr_equal(u.rows, memory + 32768 + 2 * 4096);
	assert_ptr_equal(u.clean, memory + 32768 + 3 * 4096);
	assert_int_equal(u.header->places, 40);
	assert_int_equal(u.header->hollow, 16);
	assert_int_equal(u.header->serial, 11);
	assert_int_equal(u.header->created_s, 12);
	assert_int_equal(u.header->segment_inode, 13);
	assert_int_equal(u.header->segment_bytes, 14);
	assert_int_equal(u.header->generation, 7);
	assert_int_equal(tables_open(&u, memory, bytes - 4096, &why), -EINVAL);
	assert_int_equal(tables_open(&u, memory, 100, &why), -EINVAL);
	t.header->groups++;
	assert_int_equal(tables_open(&u, memory, bytes, &why), -EINVAL);
	assert_non_null(strstr(why.text, "the header of the tables has check"));
	t.header->groups--;
	for (size_t i = offsetof(struct tables_header, slots); i < offsetof(struct tables_header, clock); i++) {
		((uint8_t *)memory)[i] ^= 0x10; /* the words added last are under check, the clock is not */
		assert_int_equal(tables_open(&u, memory, bytes, &why), -EINVAL);
		((uint8_t *)memory)[i] ^= 0x10;
	}
	t.header->clock = 5;
	assert_int_equal(tables_open(&u, memory, bytes, &why), 0);
	t.header->version++;
	assert_int_equal(tables_open(&u, memory, bytes, &why), -EPROTO);

	/* Zeroes are not intact, a copy at another number is not, nor is one with any sealed byte changed. */
	assert_false(tables_entry_intact(&t, 0));
	assert_false(tables_record_intact(&t, 0));
	assert_false(tables_group_intact(&t, 0));
	assert_false(tables_grant_intact(&t, 0));
	t.entries[4].key = key_of(1);
	t.entries[4].page = 3;
	t.entries[4].state = ENTRY_VALUE;
	tables_seal_entry(&t.entries[4], 4);
	assert_true(tables_entry_intact(&t, 4));
	t.entries[5] = t.entries[4];
	assert_false(tables_entry_intact(&t, 5));
	for (unsigned i = 0; i < offsetof(struct entry, check); i++) {
		bool free_to_change = (i >= offsetof(struct entry, record) && i < offsetof(struct entry, page)) ||
		                      i >= offsetof(struct entry, group);

		((uint8_t *)&t.entries[4])[i] ^= 0x10;
		assert_int_equal(tables_entry_intact(&t, 4), free_to_change);
		((uint8_t *)&t.entries[4])[i] ^= 0x10;
	}
	tables_unseal(&t.entries[4].check);
	assert_false(tables_entry_intact(&t, 4));
	t.groups[2].plan = 9;
	tables_seal_group(&t.groups[2], 2);
	t.groups[2].state = GROUP_PREPARED;
	assert_true(tables_group_intact(&t, 2));
	assert_false(tables_committed(&t, 3));
	tables_group_publish(&t, 2);
	assert_true(tables_committed(&t, 3) && tables_committed(&t, 0) && tables_group_intact(&t, 2));
	t.groups[2].session = 1;
	assert_false(tables_group_intact(&t, 2));
	free(memory);
}

/* ---- map ------------------------------------------------------------------------------------------------------- */

static uint32_t find(struct keymap *map, const struct key *keys, uint32_t i)
{
	return keymap_find(map, keymap_hash(map, &keys[i]), &keys[i], NULL, NULL);
}

static void test_keymap(void **state)
{
	enum {
		N = 30000
	};
	struct key *keys = malloc(N * sizeof(*keys));
	bool *in = calloc(N, sizeof(*in));
	uint64_t seed = 12345;
	struct keymap map;
	uint32_t count = 0;

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		keys[i] = key_of(i);
	/* Made for 2/3 of what comes: fuller than it should ever be, so that buckets pass on in chains. */
	assert_int_equal(keymap_init(&map, N * 2 / 3, keys, sizeof(*keys)), 0);
	for (uint32_t round = 0; round < 20 * N; round++) {
		uint32_t i = roll_to(&seed, N);
		uint64_t hash = keymap_hash(&map, &keys[i]);

		assert_int_equal(find(&map, keys, i), in[i] ? i : KEYMAP_NONE);
		if (in[i] && (round / N) % 2) {
			keymap_remove(&map, hash, i);
			in[i] = false;
			count--;
		} else if (!in[i] && count < map.bucket_count * 11) {
			assert_null(keymap_place(&map, hash, i));
			assert_true(keymap_insert(&map, hash, i));
			assert_int_equal(*keymap_place(&map, hash, i), i);
			in[i] = true;
			count++;
		}
		assert_int_equal(map.count, count);
	}
	for (uint32_t b = 0; b < map.bucket_count; b++)
		for (unsigned tag = 0; tag < 256; tag++)
			assert_int_equal(keymap_match(&map.buckets[b], (uint8_t)tag),
				keymap_match_plain(&map.buckets[b], (uint8_t)tag));
	for (uint32_t i = 0; i < N; i++)
		if (in[i])
			keymap_remove(&map, keymap_hash(&map, &keys[i]), i);
	for (uint32_t b = 0; b < map.bucket_count; b++)
		assert_int_equal(map.buckets[b].passed_on, 0);
	assert_int_equal(map.count, 0);
	keymap_deinit(&map);
	free(in);
	free(keys);
}

static void test_keymap_full(void **state)
{
	struct key keys[40];
	struct keymap map;

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		keys[i] = key_of(i);
	assert_int_equal(keymap_init(&map, 20, keys, sizeof(keys[0])), 0); /* 3 buckets */
	for (uint32_t i = 0; i < 36; i++)
		assert_true(keymap_insert(&map, keymap_hash(&map, &keys[i]), i));
	assert_false(keymap_insert(&map, keymap_hash(&map, &keys[36]), 36));
	assert_int_equal(find(&map, keys, 36), KEYMAP_NONE);
	for (uint32_t i = 0; i < 36; i++)
		assert_int_equal(find(&map, keys, i), i);
	keymap_deinit(&map);
}

/* Keys that differ little spread over buckets and tags. */
static void test_keymap_spread(void **state)
{
	struct key dummy = {.words = {0}};
	struct keymap map;
	uint32_t homes[64] = {0}, tags[256] = {0};

	(void)state;
	assert_int_equal(keymap_init(&map, 64 * KEYMAP_LOAD - 1, &dummy, sizeof(dummy)), 0);
	assert_int_equal(map.bucket_count, 64);
	for (uint32_t i = 0; i < 65536; i++) {
		struct key k = {.words = {0, 0, 0, 0}};

		k.words[i % 4] = i / 4;
		uint64_t hash = keymap_hash(&map, &k);
		homes[keymap_home(&map, hash)]++;
		tags[keymap_tag(hash)]++;
	}
	for (uint32_t i = 0; i < 64; i++)
		assert_in_range(homes[i], 1024 / 2, 1024 * 2);
	assert_int_equal(tags[0], 0);
	for (uint32_t i = 1; i < 256; i++)
		assert_in_range(tags[i], 64, 1024);
	keymap_deinit(&map);
}

/* ---- arena ----------------------------------------------------------------------------------------------------- */

static void test_arena(void **state)
{
	enum {
		PIECES = 300,
		UNITS = 1 << 16
	};
	static struct {
		uint32_t unit, words;
	} piece[PIECES];
	uint8_t *owner = calloc(UNITS, 1);
	struct arena a;
	uint64_t seed = 99;

	(void)state;
	assert_int_equal(arena_init(&a, UNITS), 0);
	for (uint32_t round = 0; round < 200000; round++) {
		uint32_t i = roll_to(&seed, PIECES);

		if (!piece[i].words) {
			uint32_t words = 1 + roll_to(&seed, roll_to(&seed, 4) ? 40 : 900);
			uint32_t unit = arena_alloc(&a, words);

			if (unit == ARENA_NONE)
				continue;
			for (uint32_t u = unit; u < unit + (words + 1) / 2; u++) {
				assert_int_equal(owner[u], 0);
				owner[u] = 1;
			}
			memset(arena_at(&a, unit), 0xa5, words * 4);
			piece[i].unit = unit;
			piece[i].words = words;
		} else if (roll_to(&seed, 3)) {
			memset(owner + piece[i].unit, 0, (piece[i].words + 1) / 2);
			arena_free(&a, piece[i].unit, piece[i].words);
			piece[i].words = 0;
		} else {
			uint32_t keep = 1 + roll_to(&seed, piece[i].words);

			memset(owner + piece[i].unit + (keep + 1) / 2, 0, (piece[i].words + 1) / 2 - (keep + 1) / 2);
			arena_shrink(&a, piece[i].unit, piece[i].words, keep);
			piece[i].words = keep;
		}
	}
	uint32_t used = 0;

	for (uint32_t u = 0; u < UNITS; u++)
		used += owner[u];
	assert_int_equal(a.used, used);
	for (uint32_t i = 0; i < PIECES; i++)
		if (piece[i].words)
			arena_free(&a, piece[i].unit, piece[i].words);
	assert_int_equal(a.used, 0);
	/* All of it is whole again: the largest piece that fits into what was ever used is there without growing. */
	uint32_t top = a.top, order = 31 - (uint32_t)__builtin_clz(top);
	uint32_t unit = arena_alloc(&a, ARENA_UNIT_WORDS << order);

	assert_int_not_equal(unit, ARENA_NONE);
	assert_int_equal(a.top, top);
	assert_int_equal(arena_alloc(&a, ARENA_UNIT_WORDS * UNITS), ARENA_NONE);
	assert_int_equal(arena_alloc(&a, UINT32_MAX), ARENA_NONE);
	arena_deinit(&a);
	free(owner);
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

static uint32_t last_use[64], slots[64];

static uint32_t use_of(void *context, uint32_t record)
{
	(void)context;
	return last_use[record];
}

static uint32_t *slot_of(void *context, uint32_t record)
{
	(void)context;
	return &slots[record];
}

static void test_lru(void **state)
{
	struct policy_view view = {NULL, use_of, slot_of};
	struct policy *p = policy_lru.create(&view, 64, NULL);
	uint64_t seed = 5;

	(void)state;
	assert_non_null(p);
	assert_int_equal(policy_lru.pop(p), TABLES_NONE);
	/* Ticks around the wrap; uses after insertion; removals. The order is exact all the same. */
	for (uint32_t round = 0; round < 500; round++) {
		uint32_t base = 0xffffff00u + round, n = 1 + roll_to(&seed, 64);
		bool in[64] = {false};

		for (uint32_t i = 0; i < n; i++) {
			slots[i] = TABLES_NONE;
			last_use[i] = base + roll_to(&seed, 400);
			policy_lru.insert(p, i);
			in[i] = true;
		}
		for (uint32_t i = 0; i < n; i++) {
			if (roll_to(&seed, 3) == 0)
				last_use[i] += roll_to(&seed, 300);
			if (roll_to(&seed, 5) == 0) {
				policy_lru.remove(p, i);
				assert_int_equal(slots[i], TABLES_NONE);
				in[i] = false;
			}
		}
		uint32_t before = base;

		for (uint32_t record; (record = policy_lru.pop(p)) != TABLES_NONE; before = last_use[record]) {
			assert_true(in[record]);
			in[record] = false;
			assert_true((int32_t)(last_use[record] - before) >= 0);
			assert_int_equal(slots[record], TABLES_NONE);
		}
		for (uint32_t i = 0; i < n; i++)
			assert_false(in[i]);
	}
	policy_lru.destroy(&p);
	assert_null(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_keymap),
		cmocka_unit_test(test_keymap_full),
		cmocka_unit_test(test_keymap_spread),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_lru),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
