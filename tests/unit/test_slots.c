/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants and slots: sizes, order, neighbours, filters, and random work against a model that looks at every slot.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/base/memory.h"
#include "store/slots.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define GRANTS 1024u

static const struct slots_filter everything = {NULL};

struct fixture {
	struct layout *layout;
	struct tables tables;
	void *memory;
	size_t memory_bytes;
	struct lock lock;
	struct slots_config config;
	struct slots *slots;
};

/* One class for each size, with @shares shares. */
static struct layout *make_layout(const uint64_t *sizes, uint32_t classes, uint32_t shares)
{
	struct layout *layout = calloc(1, sizeof(*layout));

	assert_non_null(layout);
	layout->world = 1;
	layout->page_tokens = 64;
	layout->classes = classes;
	for (uint32_t c = 0; c < classes; c++) {
		layout->class[c].shares = shares;
		for (uint32_t i = 0; i < shares; i++) {
			layout->class[c].share[i].payload_bytes = sizes[c];
			layout->class[c].share[i].slot_bytes = sizes[c] < 4096 ? 4096 : (sizes[c] + 4095) / 4096 * 4096;
		}
	}
	return layout;
}

static void make_slots(struct fixture *f)
{
	assert_int_equal(slots_new(&f->config, &f->slots, NULL), 0);
}

static void setup(struct fixture *f, const uint64_t *sizes, uint32_t classes, uint32_t shares, uint64_t segment,
	uint64_t budget, uint32_t entries)
{
	uint8_t identity[32] = {1}, fingerprint[16] = {2};
	struct tables_config config = {
		.grants = GRANTS,
		.records = 1,
		.groups = 1,
		.entries = entries,
		.generation = 1,
		.identity = identity,
		.fingerprint = fingerprint,
	};

	memset(f, 0, sizeof(*f));
	f->layout = make_layout(sizes, classes, shares);
	f->memory_bytes = tables_bytes(&config);
	f->memory = memory_reserve(f->memory_bytes, false);
	assert_non_null(f->memory);
	tables_format(&f->tables, f->memory, &config);
	lock_init(&f->lock, LOCK_SPACE);
	f->config = (struct slots_config){
		.layout = f->layout,
		.tables = &f->tables,
		.guard = &f->lock,
		.segment_bytes = segment,
		.budget_bytes = budget,
		.entry_limit = entries,
	};
	make_slots(f);
	lock_take(&f->lock);
}

static void teardown(struct fixture *f)
{
	slots_check(f->slots);
	lock_drop(&f->lock);
	slots_free(&f->slots);
	assert_null(f->slots);
	lock_destroy(&f->lock);
	memory_release(&f->memory, f->memory_bytes);
	free(f->layout);
}

static uint32_t add_grant(struct fixture *f, uint32_t class_index, uint32_t share)
{
	uint32_t id;

	assert_int_equal(slots_grant_begin(f->slots, class_index, share, 0, &id), 0);
	slots_grant_ready(f->slots, id);
	return id;
}

/* What the index does around a slot. */
static uint32_t take(struct fixture *f, struct slots_cursor *cursor, struct slots_filter filter)
{
	uint32_t entry = slots_take(f->slots, cursor, filter);

	if (entry != SLOTS_NONE) {
		assert_int_equal(f->tables.entries[entry].state, ENTRY_FREE);
		f->tables.entries[entry].state = ENTRY_VALUE;
	}
	return entry;
}

static void give(struct fixture *f, uint32_t entry)
{
	f->tables.entries[entry].state = ENTRY_FREE;
	slots_give(f->slots, entry);
}

static struct slots_grant get(struct fixture *f, uint32_t id)
{
	struct slots_grant g;

	assert_true(slots_grant_get(f->slots, id, &g));
	return g;
}

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

static void test_sizes(void **state)
{
	static const struct {
		uint64_t value, budget;
		uint32_t shares;
		uint64_t bytes;
		uint32_t slots;
	} cases[] = {
		/* the limit of 512 MiB */
		{4096, 64 * GIB, 1, 512 * MIB, 131072},
		{1, 64 * GIB, 1, 512 * MIB, 131072},
		{65536, 4 * GIB, 1, 512 * MIB, 8192},
		{9437184, 1024 * GIB, 1, 504 * MIB, 56},
		/* budget / (8 * shares), rounded down to 2 MiB */
		{65536, 1 * GIB, 1, 128 * MIB, 2048},
		{65536, 1 * GIB, 4, 32 * MIB, 512},
		{65536, 1 * GIB, 3, 42 * MIB, 672},
		{65536, 1 * GIB - 1, 1, 126 * MIB, 2016},
		/* no more than the slots need */
		{3 * MIB, 128 * MIB, 1, 16 * MIB, 5},
		{5 * MIB, 72 * MIB, 1, 6 * MIB, 1},
		/* never less than one slot */
		{65536, 0, 1, 2 * MIB, 32}, /* a unit that is begun is used up */
		{65536, 16 * MIB, 1, 2 * MIB, 32},
		{20 * MIB, 64 * MIB, 1, 20 * MIB, 1},
		{20 * MIB + 4096, 64 * MIB, 1, 22 * MIB, 1},
		{32 * MIB, 16 * GIB, 1, 512 * MIB, 16},
		{32 * MIB, 64 * MIB, 1, 32 * MIB, 1},
		/* big values: as few as waste under a sixteenth */
		{32 * MIB + 1, 64 * GIB, 1, 34 * MIB, 1},
		{77266944, 64 * GIB, 1, 74 * MIB, 1},
		{77266944, 64 * MIB, 8, 74 * MIB, 1},
		{512 * MIB, 64 * GIB, 1, 512 * MIB, 1},
		{512 * MIB + 1, 64 * GIB, 1, 514 * MIB, 1},
		{1000000000, 64 * GIB, 1, 954 * MIB, 1},
		{1 * GIB, 64 * GIB, 1, 1 * GIB, 1},
		{1 * GIB + 1, 64 * GIB, 1, 1 * GIB + 2 * MIB, 1},
		{4 * GIB, 64 * GIB, 1, 4 * GIB, 1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fixture f;

		setup(&f, &cases[i].value, 1, cases[i].shares, 64 * GIB, cases[i].budget, 1u << 20);
		uint64_t bytes = slots_grant_bytes(f.slots, 0, cases[i].shares - 1);
		uint32_t id = add_grant(&f, 0, 0);
		struct slots_grant g = get(&f, id);

		if (bytes != cases[i].bytes || g.slots != cases[i].slots)
			fail_msg("case %zu: %llu bytes, %u slots", i, (unsigned long long)bytes, g.slots);
		assert_int_equal(g.length, bytes);
		assert_int_equal(slots_granted_bytes(f.slots), bytes);
		assert_int_equal(g.free, g.slots);
		assert_true(g.slots * g.slot_bytes <= g.length);
		if (g.slot_bytes > SLOTS_BIG_VALUE)
			assert_true((g.length - g.slots * g.slot_bytes) * 16 < g.length);
		assert_int_equal(slots_capacity(f.slots, 0, 0, bytes), g.slots);
		assert_int_equal(slots_capacity(f.slots, 0, 0, 2 * bytes - 1), g.slots);
		assert_int_equal(slots_capacity(f.slots, 0, 0, bytes - 1), 0);
		teardown(&f);
	}
}

static void test_capacity_bounds(void **state)
{
	uint64_t size = 1 * MIB;
	struct fixture f;

	(void)state;
	/* 64 slots a grant of 64 MiB; the segment holds 4 grants, entries are for 8 */
	setup(&f, &size, 1, 1, 256 * MIB, 512 * MIB, 8 * 128);
	assert_int_equal(slots_capacity(f.slots, 0, 0, UINT64_MAX), 4 * 64);
	teardown(&f);
	setup(&f, &size, 1, 1, 64 * GIB, 512 * MIB, 8 * 128);
	assert_int_equal(slots_capacity(f.slots, 0, 0, UINT64_MAX), 8 * 64);
	teardown(&f);
}

static void test_refusals(void **state)
{
	uint64_t size = 65536;
	struct fixture f;
	struct slots *slots = NULL;
	struct why why = WHY_INIT;

	(void)state;
	setup(&f, &size, 1, 1, 64 * MIB, 64 * MIB, 1024);
	struct slots_config bad = f.config;

	bad.entry_limit = 1000;
	assert_int_equal(slots_new(&bad, &slots, &why), -EINVAL);
	assert_int_equal(why.error, EINVAL);
	bad.entry_limit = 2048;
	assert_int_equal(slots_new(&bad, &slots, NULL), -EINVAL);
	bad = f.config;
	bad.segment_bytes = 3 * MIB;
	assert_int_equal(slots_new(&bad, &slots, NULL), -EINVAL);
	assert_null(slots);
	teardown(&f);
}

/* ---- grants ---------------------------------------------------------------------------------------------------- */

static void test_grants_come_and_go(void **state)
{
	uint64_t sizes[] = {65536, 3 * MIB};
	struct fixture f;
	uint32_t id[3], more;

	(void)state;
	/* 2 pairs: 4 MiB a grant: 64 slots, 1 slot; room for 16 MiB and 4 * 128 entries */
	setup(&f, sizes, 2, 1, 16 * MIB, 64 * MIB, 512);
	assert_int_equal(slots_version(f.slots), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(slots_grant_begin(f.slots, 0, 0, 7, &id[i]), 0);
	assert_int_equal(slots_version(f.slots), 1);
	assert_int_equal(slots_free_count(f.slots, 0, 0, everything), 0);
	struct slots_cursor c;

	slots_seek(f.slots, &c, 0, 0, 4, everything);
	assert_int_equal(slots_take(f.slots, &c, everything), SLOTS_NONE);
	for (int i = 0; i < 3; i++) {
		struct slots_grant g = get(&f, id[i]);

		assert_int_equal(g.id, i);
		assert_int_equal(g.offset, (uint64_t)i * 4 * MIB);
		assert_int_equal(g.first_entry, i * 128);
		assert_int_equal(g.generation, 1);
		assert_int_equal(g.node, 7);
		assert_false(g.ready);
		slots_grant_ready(f.slots, id[i]);
		assert_true(get(&f, id[i]).ready);
		assert_int_equal(slots_version(f.slots), 2 + i);
	}
	slots_check(f.slots);
	assert_int_equal(slots_free_count(f.slots, 0, 0, everything), 3 * 64);
	assert_int_equal(slots_grant_begin(f.slots, 1, 0, 0, &more), 0);
	assert_int_equal(more, 3);
	assert_int_equal(slots_grant_begin(f.slots, 1, 0, 0, &more), SLOTS_E_FULL);

	/* two neighbours end: their room comes together, ids and entries return, lowest first, with a new generation */
	slots_grant_end(f.slots, 1);
	slots_grant_end(f.slots, 0);
	assert_int_equal(slots_version(f.slots), 6);
	struct slots_grant gone;

	assert_false(slots_grant_get(f.slots, 0, &gone));
	assert_false(slots_grant_get(f.slots, 99, &gone));
	assert_int_equal(slots_granted_bytes(f.slots), 8 * MIB);
	uint32_t cut = add_grant(&f, 1, 0);
	struct slots_grant g = get(&f, cut);

	assert_int_equal(g.id, 0);
	assert_int_equal(g.generation, 2);
	assert_int_equal(g.offset, 0);
	assert_int_equal(g.first_entry, 0);
	assert_int_equal(g.slots, 1);
	assert_int_equal(g.class_index, 1);
	/* one that never became ready ends, too */
	assert_int_equal(slots_grant_begin(f.slots, 1, 0, 0, &more), 0);
	assert_int_equal(more, 1);
	uint64_t version = slots_version(f.slots);

	slots_grant_end(f.slots, more);
	assert_int_equal(slots_version(f.slots), version);
	assert_int_equal(slots_grant_limit(f.slots), 4);
	teardown(&f);
}

/* ---- slots ----------------------------------------------------------------------------------------------------- */

static void test_offsets(void **state)
{
	uint64_t sizes[] = {5000, 9 * MIB};
	struct fixture f;

	(void)state;
	setup(&f, sizes, 2, 2, 1 * GIB, 1 * GIB, 1u << 16);
	for (uint32_t c = 0; c < 2; c++)
		for (uint32_t i = 0; i < 2; i++) {
			struct slots_grant g = get(&f, add_grant(&f, c, i));

			for (uint32_t n = 0; n < g.slots; n++) {
				assert_int_equal(slots_offset(f.slots, g.first_entry + n), g.offset + n * g.slot_bytes);
				assert_int_equal(slots_grant_of(f.slots, g.first_entry + n), g.id);
			}
			assert_int_equal(slots_slot_bytes(f.slots, g.first_entry), g.slot_bytes);
		}
	teardown(&f);
}

static void test_neighbours(void **state)
{
	uint64_t size = 65536;
	struct fixture f;
	uint32_t entry[256];
	struct slots_cursor c;

	(void)state;
	setup(&f, &size, 1, 1, 1 * GIB, 128 * MIB, 1u << 16); /* 16 MiB: 256 slots */
	uint32_t first = get(&f, add_grant(&f, 0, 0)).first_entry;

	slots_seek(f.slots, &c, 0, 0, 256, everything);
	for (uint32_t i = 0; i < 256; i++) {
		entry[i] = take(&f, &c, everything);
		assert_int_equal(entry[i], first + i);
	}
	assert_int_equal(slots_take(f.slots, &c, everything), SLOTS_NONE);
	/* holes of 1, 2, 3 ... slots at 10, 20, 30 ..., one of them across a word's border */
	for (uint32_t n = 1; n <= 9; n++)
		for (uint32_t i = 0; i < n; i++)
			give(&f, first + n * 10 + i);
	for (uint32_t i = 120; i < 200; i++)
		give(&f, first + i);
	slots_check(f.slots);
	for (uint32_t n = 1; n <= 9; n++) {
		slots_seek(f.slots, &c, 0, 0, n, everything);
		assert_int_equal(take(&f, &c, everything), first + n * 10);
		for (uint32_t i = 1; i < n; i++)
			assert_int_equal(take(&f, &c, everything), first + n * 10 + i);
	}
	slots_seek(f.slots, &c, 0, 0, 80, everything);
	assert_int_equal(take(&f, &c, everything), first + 120);
	/* 79 are left in a run, 80 are not to be had: the lowest free one it is */
	give(&f, first + 3);
	slots_seek(f.slots, &c, 0, 0, 80, everything);
	assert_int_equal(take(&f, &c, everything), first + 3);
	slots_seek(f.slots, &c, 0, 0, 79, everything);
	assert_int_equal(take(&f, &c, everything), first + 121);
	/* runs longer than a give looks, growing at either end and joined in the middle */
	while (take(&f, &c, everything) != SLOTS_NONE)
		;
	for (uint32_t i = 0; i < 100; i++) {
		give(&f, first + 129 + i);
		give(&f, first + 127 - i);
		slots_check(f.slots);
	}
	give(&f, first + 128);
	slots_check(f.slots);
	slots_seek(f.slots, &c, 0, 0, 201, everything);
	assert_int_equal(take(&f, &c, everything), first + 28);
	while (take(&f, &c, everything) != SLOTS_NONE)
		;
	for (uint32_t i = 256; i-- > 0;) {
		give(&f, first + i);
		slots_check(f.slots);
	}
	teardown(&f);
}

/* 64 slots a grant, so that a level is one slot. */
static void fill(struct fixture *f, uint32_t id, uint32_t taken)
{
	uint64_t bits[SLOTS_MAX_GRANTS / 64] = {0};
	struct slots_filter only = {bits};
	struct slots_cursor c;

	bits[id / 64] |= 1ull << id % 64;
	slots_seek(f->slots, &c, 0, 0, 1, only);
	for (uint32_t i = 0; i < taken; i++)
		assert_int_equal(slots_grant_of(f->slots, take(f, &c, only)), id);
	assert_int_equal(get(f, id).free, get(f, id).slots - taken);
}

static void test_fullest_first(void **state)
{
	uint64_t size = 65536;
	struct fixture f;
	struct slots_cursor c;
	static const uint32_t taken[] = {0, 10, 60, 10, 60, 64};
	static const uint32_t order[] = {2, 4, 1, 3, 0};

	(void)state;
	setup(&f, &size, 1, 1, 1 * GIB, 32 * MIB, 1u << 16);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(add_grant(&f, 0, 0), i);
	for (uint32_t i = 0; i < 6; i++)
		fill(&f, i, taken[i]);
	slots_check(f.slots);
	/* a run of 50 is in the fullest grant that has one, else the fullest grant will do */
	slots_seek(f.slots, &c, 0, 0, 50, everything);
	assert_int_equal(c.grant, 1);
	assert_int_equal(c.next, 10);
	slots_seek(f.slots, &c, 0, 0, 65, everything);
	assert_int_equal(c.grant, 2);
	/* one cursor goes through all of them in order */
	for (uint32_t i = 0; i < 5; i++)
		for (uint32_t n = taken[order[i]]; n < 64; n++)
			assert_int_equal(slots_grant_of(f.slots, take(&f, &c, everything)), order[i]);
	assert_int_equal(take(&f, &c, everything), SLOTS_NONE);
	assert_int_equal(slots_free_count(f.slots, 0, 0, everything), 0);
	struct slots_usage u;

	slots_usage(f.slots, 0, 0, &u);
	assert_int_equal(u.slots, 6 * 64);
	assert_int_equal(u.free, 0);
	assert_int_equal(u.payload_bytes, 6 * 64 * 65536);
	assert_int_equal(u.slot_bytes, 6 * 64 * 65536);
	teardown(&f);
}

static void test_filter(void **state)
{
	uint64_t size = 65536;
	struct fixture f;
	struct slots_cursor c;
	uint64_t bits[SLOTS_MAX_GRANTS / 64] = {0};
	struct slots_filter some = {bits};

	(void)state;
	setup(&f, &size, 1, 1, 1 * GIB, 32 * MIB, 1u << 16);
	for (uint32_t i = 0; i < 70; i++)
		add_grant(&f, 0, 0);
	assert_int_equal(slots_free_count(f.slots, 0, 0, some), 0);
	slots_seek(f.slots, &c, 0, 0, 2, some);
	assert_int_equal(take(&f, &c, some), SLOTS_NONE);
	bits[0] = 1ull << 5;
	bits[1] = 1ull << 2;
	assert_int_equal(slots_free_count(f.slots, 0, 0, some), 128);
	slots_seek(f.slots, &c, 0, 0, 2, some);
	for (uint32_t i = 0; i < 128; i++)
		assert_int_equal(slots_grant_of(f.slots, take(&f, &c, some)), i < 64 ? 5 : 66);
	assert_int_equal(take(&f, &c, some), SLOTS_NONE);
	assert_int_equal(slots_free_count(f.slots, 0, 0, some), 0);
	assert_int_equal(slots_free_count(f.slots, 0, 0, everything), 68 * 64);
	/* a session that sees little does not spoil the bounds of one that sees all */
	slots_seek(f.slots, &c, 0, 0, 64, some);
	slots_seek(f.slots, &c, 0, 0, 64, everything);
	assert_int_equal(c.grant, 0);
	/* a bit cleared while the cursor stands there */
	bits[0] |= 1;
	slots_seek(f.slots, &c, 0, 0, 2, some);
	assert_int_equal(slots_grant_of(f.slots, take(&f, &c, some)), 0);
	bits[0] = 1ull << 9;
	assert_int_equal(slots_grant_of(f.slots, take(&f, &c, some)), 9);
	teardown(&f);
}

static void test_cursor_outlives_its_grant(void **state)
{
	uint64_t sizes[] = {65536, 131072};
	struct fixture f;
	struct slots_cursor c;

	(void)state;
	setup(&f, sizes, 2, 1, 8 * MIB, 64 * MIB, 1u << 16);
	add_grant(&f, 0, 0);
	add_grant(&f, 0, 0);
	slots_seek(f.slots, &c, 0, 0, 8, everything);
	give(&f, take(&f, &c, everything));
	slots_grant_end(f.slots, 0);
	assert_int_equal(slots_grant_of(f.slots, take(&f, &c, everything)), 1);
	slots_seek(f.slots, &c, 0, 0, 8, everything);
	c.grant = 0;
	c.next = 3;
	assert_int_equal(add_grant(&f, 1, 0), 0);
	assert_int_equal(slots_grant_of(f.slots, take(&f, &c, everything)), 1);
	teardown(&f);
}

static void dies(void (*act)(struct fixture *f), struct fixture *f)
{
	fflush(NULL);
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		fclose(stderr);
		act(f);
		_exit(0);
	}
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void act_give_twice(struct fixture *f)
{
	struct slots_cursor c;

	slots_seek(f->slots, &c, 0, 0, 1, everything);
	uint32_t entry = slots_take(f->slots, &c, everything);

	slots_give(f->slots, entry);
	slots_give(f->slots, entry);
}

static void act_give_foreign(struct fixture *f)
{
	slots_give(f->slots, 1024);
}

static void act_give_written(struct fixture *f)
{
	struct slots_cursor c;

	slots_seek(f->slots, &c, 0, 0, 1, everything);
	slots_give(f->slots, take(f, &c, everything));
}

static void act_end_used(struct fixture *f)
{
	struct slots_cursor c;

	slots_seek(f->slots, &c, 0, 0, 1, everything);
	take(f, &c, everything);
	slots_grant_end(f->slots, 0);
}

static void act_without_lock(struct fixture *f)
{
	lock_drop(&f->lock);
	slots_version(f->slots);
}

static void test_abuse_aborts(void **state)
{
	uint64_t size = 65536;
	struct fixture f;

	(void)state;
	setup(&f, &size, 1, 1, 8 * MIB, 64 * MIB, 1u << 16);
	add_grant(&f, 0, 0);
	dies(act_give_twice, &f);
	dies(act_give_foreign, &f);
	dies(act_give_written, &f);
	dies(act_end_used, &f);
	dies(act_without_lock, &f);
	teardown(&f);
}

/* ---- building again -------------------------------------------------------------------------------------------- */

static void same_grant(const struct slots_grant *a, const struct slots_grant *b)
{
	assert_int_equal(a->offset, b->offset);
	assert_int_equal(a->length, b->length);
	assert_int_equal(a->slot_bytes, b->slot_bytes);
	assert_int_equal(a->id, b->id);
	assert_int_equal(a->generation, b->generation);
	assert_int_equal(a->class_index, b->class_index);
	assert_int_equal(a->share, b->share);
	assert_int_equal(a->node, b->node);
	assert_int_equal(a->slots, b->slots);
	assert_int_equal(a->free, b->free);
	assert_int_equal(a->first_entry, b->first_entry);
	assert_int_equal(a->ready, b->ready);
}

/* Another slots from the same tables equals the live one. */
static void check_rebuild(struct fixture *f)
{
	static struct grant_entry saved[GRANTS];
	struct slots *live = f->slots, *again;

	memcpy(saved, f->tables.grants, sizeof(saved)); /* a rebuild drops torn grants */
	assert_int_equal(slots_new(&f->config, &again, NULL), 0);
	assert_int_equal(slots_rebuild(again, NULL), 0);
	slots_check(again);
	uint64_t granted = 0;

	for (uint32_t id = 0; id < slots_grant_limit(live); id++) {
		struct slots_grant a, b;
		bool is = slots_grant_get(live, id, &a);

		assert_int_equal(slots_grant_get(again, id, &b), is);
		if (!is)
			continue;
		same_grant(&a, &b);
		granted += a.length;
	}
	assert_int_equal(slots_granted_bytes(again), granted);
	for (uint32_t c = 0; c < f->layout->classes; c++)
		for (uint32_t i = 0; i < f->layout->class[c].shares; i++) {
			struct slots_usage a, b;
			struct slots_cursor from;

			slots_usage(live, c, i, &a);
			slots_usage(again, c, i, &b);
			assert_memory_equal(&a, &b, sizeof(a));
			/* it hands out what is free, no more */
			slots_seek(again, &from, c, i, 1, everything);
			for (uint64_t n = 0; n < b.free; n++) {
				uint32_t entry = slots_take(again, &from, everything);

				assert_int_not_equal(entry, SLOTS_NONE);
				assert_int_equal(f->tables.entries[entry].state, ENTRY_FREE);
			}
			assert_int_equal(slots_take(again, &from, everything), SLOTS_NONE);
		}
	slots_free(&again);
	memcpy(f->tables.grants, saved, sizeof(saved));
}

/* A successor finds a closed grant as a ready one. */
static void check_rebuild_closed(struct fixture *f, uint32_t id)
{
	slots_grant_reopen(f->slots, id);
	check_rebuild(f);
	slots_grant_close(f->slots, id);
}

static void test_rebuild(void **state)
{
	uint64_t sizes[] = {65536, 40 * MIB};
	struct fixture f;
	struct slots_cursor c;
	uint32_t populating, torn;

	(void)state;
	setup(&f, sizes, 2, 2, 1 * GIB, 128 * MIB, 1u << 16);
	for (uint32_t i = 0; i < 2; i++) {
		add_grant(&f, 0, i);
		add_grant(&f, 1, i);
		slots_seek(f.slots, &c, 0, i, 1, everything);
		for (uint32_t n = 0; n < 20; n++) {
			uint32_t entry = take(&f, &c, everything);

			f.tables.entries[entry].state = n % 3 == 1 ? ENTRY_QUARANTINED : ENTRY_VALUE;
			if (n % 3 == 0)
				give(&f, entry);
		}
	}
	check_rebuild(&f);
	/* a kill between cutting and ready, and in the middle of a change */
	assert_int_equal(slots_grant_begin(f.slots, 0, 0, 0, &populating), 0);
	torn = add_grant(&f, 0, 0);
	check_rebuild(&f);
	f.tables.grants[torn].length += 2 * MIB;
	struct slots *again;

	assert_int_equal(slots_new(&f.config, &again, NULL), 0);
	assert_int_equal(slots_rebuild(again, NULL), 0);
	struct slots_grant g;

	assert_true(slots_grant_get(again, populating, &g));
	assert_false(g.ready); /* its memory is made present again */
	assert_false(slots_grant_get(again, torn, &g));
	assert_int_equal(f.tables.grants[torn].used, 0);
	slots_check(again);
	/* both are of another generation then */
	uint32_t id;

	slots_grant_renew(again, populating);
	slots_grant_ready(again, populating);
	assert_true(slots_grant_get(again, populating, &g));
	assert_int_equal(g.generation, 2);
	assert_int_equal(slots_grant_begin(again, 0, 0, 0, &id), 0);
	assert_int_equal(id, torn);
	assert_true(slots_grant_get(again, id, &g));
	assert_int_equal(g.generation, 2);
	slots_check(again);
	slots_free(&f.slots);
	f.slots = again;
	teardown(&f);
}

static void test_recut(void **state)
{
	uint64_t sizes[] = {4096, 60000};
	struct fixture f;
	struct slots_cursor old, c;
	struct slots_usage use;
	uint64_t version;

	(void)state;
	setup(&f, sizes, 2, 1, 64 * MIB, 64 * MIB, 1u << 14);
	uint32_t a = add_grant(&f, 0, 0), b = add_grant(&f, 1, 0);
	struct slots_grant before = get(&f, a);

	assert_int_equal(before.length, 4 * MIB);
	slots_seek(f.slots, &old, 0, 0, 1, everything);
	uint32_t entry = take(&f, &old, everything);

	/* closed: nothing free is counted or given, what is taken still counts */
	slots_grant_close(f.slots, a);
	version = slots_version(f.slots);
	slots_check(f.slots);
	assert_int_equal(slots_free_count(f.slots, 0, 0, everything), 0);
	assert_int_equal(slots_take(f.slots, &old, everything), SLOTS_NONE);
	slots_usage(f.slots, 0, 0, &use);
	assert_int_equal(use.slots, 1);
	assert_int_equal(use.free, 0);
	assert_int_equal(use.grants, 0);
	assert_int_equal(use.slot_bytes, 4096);
	assert_true(get(&f, a).ready && get(&f, a).closed);
	check_rebuild_closed(&f, a);
	slots_grant_reopen(f.slots, a);
	assert_int_equal(slots_free_count(f.slots, 0, 0, everything), 1023);
	slots_grant_close(f.slots, a);
	give(&f, entry);
	slots_check(f.slots);
	slots_usage(f.slots, 0, 0, &use);
	assert_int_equal(use.slots, 0);

	/* cut anew: the same bytes, other slots, another generation, and not to be had before it is ready */
	assert_int_equal(slots_version(f.slots), version);
	assert_int_equal(slots_grant_recut(f.slots, a, 1, 0), 0);
	assert_int_equal(slots_version(f.slots), version + 1);
	slots_check(f.slots);
	assert_false(get(&f, a).ready);
	assert_int_equal(slots_free_count(f.slots, 1, 0, everything), get(&f, b).slots);
	slots_grant_ready(f.slots, a);
	struct slots_grant after = get(&f, a);

	assert_int_equal(after.offset, before.offset);
	assert_int_equal(after.length, before.length);
	assert_int_equal(after.generation, before.generation + 1);
	assert_int_equal(after.class_index, 1);
	assert_int_equal(after.slot_bytes, 61440);
	assert_int_equal(after.slots, 68);
	assert_int_equal(slots_free_count(f.slots, 1, 0, everything), 2 * 68);
	assert_int_equal(slots_take(f.slots, &old, everything), SLOTS_NONE); /* the cursor's size has no grant now */
	slots_seek(f.slots, &c, 1, 0, 1, everything);
	for (int i = 0; i < 100; i++)
		assert_int_not_equal(take(&f, &c, everything), SLOTS_NONE);
	check_rebuild(&f);

	/* a death between cutting and ready */
	slots_grant_close(f.slots, b);
	for (uint32_t i = 0; i < get(&f, b).slots; i++)
		if (!slots_is_free(f.slots, b, i))
			give(&f, get(&f, b).first_entry + i);
	assert_int_equal(slots_grant_recut(f.slots, b, 0, 0), 0);
	check_rebuild(&f);
	slots_grant_ready(f.slots, b);
	assert_int_equal(get(&f, b).slots, 1024);
	check_rebuild(&f);

	/* withdrawn: no longer listed; a successor makes it present again */
	slots_grant_close(f.slots, b);
	version = slots_version(f.slots);
	slots_grant_withdraw(f.slots, b);
	assert_int_equal(slots_version(f.slots), version + 1);
	assert_false(get(&f, b).ready);
	slots_check(f.slots);
	check_rebuild(&f);
	slots_grant_end(f.slots, b);
	assert_int_equal(slots_granted_bytes(f.slots), 4 * MIB);
	teardown(&f);
}

static void test_rebuild_refuses(void **state)
{
	uint64_t size = 65536;
	struct fixture f;
	static const char *const words[] = {"layout", "segment", "slots", "entries", "bytes are", "entries are"};

	(void)state;
	for (int n = 0; n < 6; n++) {
		setup(&f, &size, 1, 1, 64 * MIB, 64 * MIB, 4096);
		add_grant(&f, 0, 0);
		add_grant(&f, 0, 0);
		struct grant_entry *e = &f.tables.grants[1], saved = *e;
		struct slots *again;
		struct why why = WHY_INIT;

		switch (n) {
		case 0:
			e->slot_bytes = 4096;
			break;
		case 1:
			e->offset = 64 * MIB;
			break;
		case 2:
			e->slots = 4000;
			break;
		case 3:
			e->first_entry = 4096;
			break;
		case 4:
			e->offset = 2 * MIB;
			break;
		case 5:
			e->first_entry = 0;
			break;
		}
		tables_seal_grant(&f.tables, 1);
		assert_int_equal(slots_new(&f.config, &again, NULL), 0);
		assert_int_equal(slots_rebuild(again, &why), -EINVAL);
		if (!strstr(why.text, words[n]))
			fail_msg("case %d: '%s'", n, why.text);
		slots_free(&again);
		*e = saved;
		teardown(&f);
	}
}

/* ---- random work against a model ------------------------------------------------------------------------------- */

#define MODEL_ENTRIES 65536u
#define MODEL_GRANTS 64u

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 16) % below);
}

struct model_grant {
	bool is, ready, closed;
	uint32_t class_index, share, first, slots;
};

static struct model_grant model[MODEL_GRANTS];
static bool model_taken[MODEL_ENTRIES];
static uint32_t held[MODEL_ENTRIES];
static uint32_t holding;

static uint32_t model_free(uint32_t id)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < model[id].slots; i++)
		n += !model_taken[model[id].first + i];
	return n;
}

/* Lowest run of @count free slots in grant @id, SLOTS_NONE if none. */
static uint32_t model_run(uint32_t id, uint32_t count)
{
	for (uint32_t i = 0; i + count <= model[id].slots; i++) {
		uint32_t n = 0;

		while (n < count && !model_taken[model[id].first + i + n])
			n++;
		if (n == count)
			return i;
	}
	return SLOTS_NONE;
}

/* What slots_seek should find; SLOTS_NONE if no grant. */
static uint32_t model_seek(
	uint32_t class_index, uint32_t share, uint32_t count, const uint64_t *bits, uint32_t *ret_slot)
{
	for (uint32_t want = count;; want = 1) {
		uint32_t best = SLOTS_NONE, best_level = UINT32_MAX;

		for (uint32_t id = 0; id < MODEL_GRANTS; id++) {
			const struct model_grant *g = &model[id];

			if (!g->is || !g->ready || g->closed || g->class_index != class_index || g->share != share ||
				(bits && !(bits[id / 64] >> id % 64 & 1)))
				continue;
			uint32_t n = model_free(id);
			uint32_t level = n ? (n - 1) * 64 / g->slots : UINT32_MAX;

			if (n && level < best_level && model_run(id, want) != SLOTS_NONE) {
				best = id;
				best_level = level;
				*ret_slot = model_run(id, want);
			}
		}
		if (best != SLOTS_NONE || want == 1)
			return best;
	}
}

/* The ways from ready to closed and on. */
static void random_close(struct fixture *f, uint32_t id, uint32_t class_index, uint32_t share)
{
	struct slots_grant before = get(f, id);

	if (!model[id].closed) {
		slots_grant_close(f->slots, id);
		model[id].closed = true;
		return;
	}
	if (model_free(id) < model[id].slots || pick(4) == 0) {
		slots_grant_reopen(f->slots, id);
		model[id].closed = false;
		return;
	}
	model[id].ready = model[id].closed = false;
	if (pick(4) == 0) {
		slots_grant_withdraw(f->slots, id);
		slots_grant_end(f->slots, id);
		model[id].is = false;
		return;
	}
	int r = slots_grant_recut(f->slots, id, class_index, share);

	if (r == SLOTS_E_FULL) {
		model[id].ready = model[id].closed = true;
		return;
	}
	assert_int_equal(r, 0);
	struct slots_grant g = get(f, id);

	assert_int_equal(g.offset, before.offset);
	assert_int_equal(g.length, before.length);
	assert_int_equal(g.node, before.node);
	assert_int_equal(g.generation, before.generation + 1);
	assert_int_equal(g.slots, g.length / g.slot_bytes);
	assert_int_equal(g.slot_bytes, f->layout->class[class_index].share[share].slot_bytes);
	model[id] = (struct model_grant){true, false, false, class_index, share, g.first_entry, g.slots};
}

static void random_grant(struct fixture *f)
{
	uint32_t id, what = pick(3), c = pick(f->layout->classes), share = pick(f->layout->class[0].shares);

	if (what == 0) {
		int r = slots_grant_begin(f->slots, c, share, pick(2), &id);

		if (r == SLOTS_E_FULL)
			return;
		assert_int_equal(r, 0);
		struct slots_grant g = get(f, id);

		assert_true(id < MODEL_GRANTS && !model[id].is);
		model[id] = (struct model_grant){true, false, false, c, share, g.first_entry, g.slots};
		return;
	}
	id = pick(MODEL_GRANTS);
	if (!model[id].is)
		return;
	if (!model[id].ready) {
		slots_grant_ready(f->slots, id);
		model[id].ready = true;
	} else if (what == 2) {
		random_close(f, id, c, share);
	} else if (what == 1 && model_free(id) == model[id].slots) {
		slots_grant_end(f->slots, id);
		model[id].is = false;
	}
}

static void random_take(struct fixture *f)
{
	static uint64_t bits[SLOTS_MAX_GRANTS / 64];
	struct slots_filter filter = {pick(3) ? NULL : bits};
	uint32_t c = pick(f->layout->classes), share = pick(f->layout->class[0].shares);
	uint32_t count = 1 + pick(pick(2) ? 8 : 200), slot = 0, n = 0;
	struct slots_cursor cursor;

	bits[0] = ((uint64_t)pick(1u << 31) << 32 | pick(1u << 31)) * 2;
	for (uint32_t id = 0; id < MODEL_GRANTS; id++)
		if (model[id].is && model[id].ready && !model[id].closed && model[id].class_index == c &&
			model[id].share == share &&
			(!filter.acknowledged || bits[0] >> id & 1))
			n += model_free(id);
	assert_int_equal(slots_free_count(f->slots, c, share, filter), n);
	uint32_t id = model_seek(c, share, count, filter.acknowledged, &slot);

	slots_seek(f->slots, &cursor, c, share, count, filter);
	assert_int_equal(cursor.grant, id);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t entry = take(f, &cursor, filter);

		if (entry == SLOTS_NONE) {
			assert_int_equal(i, n);
			break;
		}
		assert_true(i < n && !model_taken[entry]);
		if (i == 0)
			assert_int_equal(entry, model[id].first + slot);
		const struct model_grant *g = &model[slots_grant_of(f->slots, entry)];

		assert_true(g->is && g->ready && !g->closed && g->class_index == c && g->share == share);
		assert_true(entry >= g->first && entry - g->first < g->slots);
		model_taken[entry] = true;
		held[holding++] = entry;
	}
}

static void random_give(struct fixture *f)
{
	uint32_t most = pick(4) ? 40 : 2000;

	for (uint32_t n = pick(most); n && holding; n--) {
		uint32_t i = pick(holding);

		model_taken[held[i]] = false;
		give(f, held[i]);
		held[i] = held[--holding];
	}
}

static void random_run(uint64_t seed)
{
	/* 6 pairs, 4 MiB a grant: 1024 slots, 70, 3 */
	uint64_t sizes[] = {4096, 60000, 1300000};
	struct fixture f;

	random_state = seed;
	memset(model, 0, sizeof(model));
	memset(model_taken, 0, sizeof(model_taken));
	holding = 0;
	setup(&f, sizes, 3, 2, 200 * MIB, 6 * 8 * 4 * MIB + MIB, MODEL_ENTRIES);
	for (int step = 0; step < 1500; step++) {
		uint32_t what = pick(10);

		if (what < 3)
			random_grant(&f);
		else if (what < 7)
			random_take(&f);
		else
			random_give(&f);
		if (step % 16 == 0)
			slots_check(f.slots);
		if (step % 128 == 127) {
			for (uint32_t id = 0; id < MODEL_GRANTS; id++)
				if (model[id].is && model[id].closed) {
					slots_grant_reopen(f.slots, id); /* as a successor finds it */
					model[id].closed = false;
				}
			check_rebuild(&f);
		}
	}
	teardown(&f);
}

static void test_random(void **state)
{
	const char *wanted = getenv("PREFIXFS_TEST_SEED");
	uint64_t seed = wanted ? strtoull(wanted, NULL, 0) : clock_now_ns();

	(void)state;
	printf("PREFIXFS_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	for (uint64_t i = 0; i < 6; i++)
		random_run((seed + i) * 2 + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_capacity_bounds),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_grants_come_and_go),
		cmocka_unit_test(test_offsets),
		cmocka_unit_test(test_neighbours),
		cmocka_unit_test(test_fullest_first),
		cmocka_unit_test(test_filter),
		cmocka_unit_test(test_cursor_outlives_its_grant),
		cmocka_unit_test(test_abuse_aborts),
		cmocka_unit_test(test_rebuild),
		cmocka_unit_test(test_recut),
		cmocka_unit_test(test_rebuild_refuses),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
