/* SPDX-License-Identifier: Apache-2.0
 *
 * The index after every single store to its tables.
 *
 * From each snapshot (stores_step.h) an index is rebuilt: its invariants hold,
 * what was committed before and after the operation is there, nothing else is, and what the operation commits is there
 * as a whole or not at all.
 *
 *	test_index_stores [seed [operations]]
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "tests/unit/index_world.h"
#include "tests/unit/stores_step.h"

#define NODES 60u
#define VALUES 230u
#define PLACES 60u
#define RECORDS 60u
#define GROUPS 4u
#define GROUP_VALUES 64u

struct put {
	uint32_t group;
	bool stale; /* a reset came since it began */
	uint32_t entries[GROUP_VALUES], n;
	uint32_t records[GROUP_VALUES], records_n;
	uint32_t pins[GROUP_VALUES], pins_n;
};

struct work {
	struct world w;
	uint64_t seed;
	struct key key[NODES];
	uint32_t parent[NODES];
	uint64_t consumed[NODES];
	struct index_sink sink;
	struct put puts[GROUPS];
	uint32_t reader; /* a record held by a reader, INDEX_NONE */
	bool ring;       /* the eviction under way is of one WHOLE ring */
	bool moving;     /* the operation under way moves a value */
	uint64_t stores, joins, moves;
};

/* ---- what must be there ---------------------------------------------------------------------------------------- */

/* Is the line [from, to) in @text? Lines are sorted, but texts are short. */
static bool has_line(const char *text, const char *from, const char *to)
{
	for (const char *line = text; *line; line = strchr(line, '\n') + 1)
		if (!strncmp(line, from, (size_t)(to - from)))
			return true;
	return false;
}

/* Value lines of @a that are in @b: how many, of how many. */
static void count_lines(const char *a, const char *b, const char *not_in, uint32_t *ret_in, uint32_t *ret_all)
{
	*ret_in = *ret_all = 0;
	for (const char *line = a, *next; *line; line = next) {
		next = strchr(line, '\n') + 1;
		if (strncmp(line, "value", 5) || (not_in && has_line(not_in, line, next)))
			continue;
		++*ret_all;
		*ret_in += has_line(b, line, next);
	}
}

static void judge(struct work *k, const char *before, const char *after, bool eviction)
{
	uint32_t in, all;

	for (uint32_t i = 0; i < snapshot_count; i++) {
		struct world w = k->w;
		struct twin_world t;

		w.memory = snapshots + i * k->w.tables.bytes;
		world_rebuild(&w, &t, false);
		index_check(t.index);
		char *there = describe(t.index);

		for (const char *line = before, *next; *line; line = next) { /* what stays is there */
			next = strchr(line, '\n') + 1;
			if (!strncmp(line, "value", 5) && has_line(after, line, next) && !has_line(there, line, next))
				fail_msg("store %u lost %.*s", i, (int)(next - line) - 1, line);
		}
		for (const char *line = there, *next; *line; line = next) { /* nothing else is */
			next = strchr(line, '\n') + 1;
			if (!strncmp(line, "value", 5) && !has_line(before, line, next) && !has_line(after, line, next))
				fail_msg("store %u made up %.*s", i, (int)(next - line) - 1, line);
		}
		count_lines(after, there, before, &in, &all); /* what comes, comes at once */
		if (in && in != all)
			fail_msg("store %u committed %u of %u values", i, in, all);
		count_lines(before, there, after, &in, &all); /* what goes, may go one by one, but not out of a ring */
		if (eviction && k->ring && in && in != all)
			fail_msg("store %u left %u of %u values of a ring", i, in, all);
		if (k->moving) { /* it is always there, once */
			uint32_t moved;

			count_lines(after, there, before, &moved, &all);
			if (moved + in != all)
				fail_msg("store %u left %u and made %u of %u values that move", i, in, moved, all);
		} else if (!eviction && in != all && in)
			fail_msg("store %u took %u of %u values away", i, all - in, all);
		free(there);
		twin_deinit(&t, &w, false);
	}
	k->stores += snapshot_count;
}

#define PAGE_NEXT (INDEX_PAGE_ROW - 1u)

/* ---- operations ------------------------------------------------------------------------------------------------ */

static void freed(void *context, uint32_t entry)
{
	world_freed(&((struct work *)context)->w, entry);
}

/* @page: PAGE_NEXT is appended with its first value. */
static void add_all(struct work *k, struct put *p, uint32_t record, uint16_t page, uint32_t node)
{
	const struct layout *l = k->w.layout;
	uint64_t hash;

	index_prefetch(k->w.index, &k->key[node], 1, &hash);

	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			if (layout_is_row(l, c) != (page == INDEX_PAGE_ROW) ||
				(page != INDEX_PAGE_ROW && !layout_has_value(l, c, k->consumed[node])) ||
				!k->w.free_count)
				continue;
			if (index_value(k->w.index, record, page, layout_column(l, c, s), NULL) != INDEX_NONE)
				continue;
			uint32_t entry = world_entry(&k->w);

			if (page == PAGE_NEXT)
				page = index_page_add(k->w.index, record, &k->key[node], hash, c, s, entry, p->group);
			else
				index_value_add(k->w.index, record, page, &k->key[node], c, s, entry, p->group);
			p->entries[p->n++] = entry;
		}
}

static uint32_t begin(struct work *k, struct put *p, uint32_t node, uint32_t pages, uint32_t flags)
{
	struct index_run run = {
		.parent_key = k->parent[node] == INDEX_NONE ? NULL : &k->key[k->parent[node]],
		.endpoint = pages ? NULL : &k->key[node],
		.consumed = k->consumed[node] - (pages ? 16 : 0),
		.max_pages = pages,
		.group = p->group,
		.flags = flags,
		.whole_ring = p->records_n ? p->records[0] : INDEX_NONE,
	};
	uint32_t record = index_record_new(k->w.index, &run);

	assert(record != INDEX_NONE);
	p->records[p->records_n++] = record;
	return record;
}

static void close_run(struct work *k, struct put *p, uint32_t record)
{
	if (record != INDEX_NONE && !index_record_close(k->w.index, record))
		p->records_n--;
}

static void hold(struct work *k, struct put *p, uint32_t record)
{
	index_pin(k->w.index, record);
	p->pins[p->pins_n++] = record;
}

static void fill(struct work *k, struct put *p)
{
	uint32_t chain[4], n = 0, node = roll_to(&k->seed, NODES), end = node, record = INDEX_NONE;
	uint32_t flags = roll_to(&k->seed, 3) ? 0 : RECORD_WHOLE;

	for (uint32_t want = roll_to(&k->seed, 5); n < want && node != INDEX_NONE; node = k->parent[node])
		chain[n++] = node;
	while (n-- > 0) {
		struct index_hit hit;

		node = chain[n];
		index_lookup(k->w.index, &k->key[node], 1, ~0u, &hit);
		if (hit.record != INDEX_NONE) {
			close_run(k, p, record);
			record = INDEX_NONE;
			hold(k, p, hit.record);
			add_all(k, p, hit.record, hit.page, node);
			continue;
		}
		if (record == INDEX_NONE)
			record = begin(k, p, node, n + 1, flags);
		add_all(k, p, record, PAGE_NEXT, node);
	}
	close_run(k, p, record);
	if (!k->w.layout->row_columns || roll_to(&k->seed, 2))
		return;
	record = index_row_home(k->w.index, &k->key[end]);
	if (record != INDEX_NONE) {
		hold(k, p, record);
		add_all(k, p, record, INDEX_PAGE_ROW, end);
	} else {
		record = begin(k, p, end, 0, flags);
		add_all(k, p, record, INDEX_PAGE_ROW, end);
		close_run(k, p, record);
	}
}

static void finish(struct work *k, struct put *p, bool commit)
{
	bool backwards = roll_to(&k->seed, 2);

	if (commit) {
		tables_group_publish(&k->w.tables, p->group - 1);
		for (uint32_t i = 0; i < p->n; i++)
			index_settle(k->w.index, p->entries[i]);
		for (uint32_t i = 0; i < p->records_n; i++)
			index_record_publish(k->w.index, p->records[i], &k->sink);
	} else {
		for (uint32_t i = 0; i < p->n; i++)
			index_value_drop(k->w.index, p->entries[backwards ? p->n - 1 - i : i], false, &k->sink);
		for (uint32_t i = 0; i < p->records_n; i++)
			index_record_abandon(k->w.index, p->records[i], &k->sink);
	}
}

static void let_go(struct work *k, struct put *p)
{
	while (p->pins_n)
		index_unpin(k->w.index, p->pins[--p->pins_n], &k->sink);
	world_group_end(&k->w, p->group);
	p->group = p->n = p->records_n = 0;
}

static void read_or_leave(struct work *k)
{
	struct index_hit hit;

	if (k->reader != INDEX_NONE) {
		index_unpin(k->w.index, k->reader, &k->sink);
		k->reader = INDEX_NONE;
		return;
	}
	index_lookup(k->w.index, &k->key[roll_to(&k->seed, NODES)], 1, ~0u, &hit);
	if (hit.record == INDEX_NONE)
		return;
	index_pin(k->w.index, hit.record);
	index_touch(k->w.index, hit.record, hit.page, index_tick(k->w.index));
	k->reader = hit.record;
}

static bool note_ring(void *context, uint32_t entry)
{
	struct work *k = context;

	k->ring = k->w.index->records[k->w.tables.entries[entry].record].flags & RECORD_FLAG_WHOLE;
	return true;
}

static void remove_one(struct work *k)
{
	uint32_t entry = roll_to(&k->seed, VALUES + PLACES);
	const struct entry *e = &k->w.tables.entries[entry];

	if (e->state == ENTRY_VALUE && e->group == 0 && index_record_current(k->w.index, e->record))
		index_value_drop(k->w.index, entry, false, &k->sink);
}

static void move_one(struct work *k)
{
	uint32_t entry = roll_to(&k->seed, VALUES + PLACES);

	for (uint32_t tries = 0; tries < VALUES + PLACES; tries++, entry = (entry + 1) % (VALUES + PLACES)) {
		const struct entry *e = &k->w.tables.entries[entry];

		if (e->state == ENTRY_VALUE && e->group == 0) {
			k->moves += world_move(&k->w, entry) != INDEX_NONE;
			return;
		}
	}
}

static void remove_key(struct work *k)
{
	const struct key *key = &k->key[roll_to(&k->seed, NODES)];
	uint32_t values;
	uint64_t hash;

	index_prefetch(k->w.index, key, 1, &hash);
	index_remove(k->w.index, key, hash, ~0u, &k->sink, &values);
}

static void hold_or_not(struct work *k)
{
	uint32_t record = roll_to(&k->seed, RECORDS);

	if (record < index_record_limit(k->w.index) && index_record_visible(k->w.index, record))
		index_hold(k->w.index, record, !(index_record(k->w.index, record)->flags & RECORD_FLAG_HELD));
}

static void reset(struct work *k)
{
	index_reset(k->w.index);
	for (uint32_t i = 0; i < GROUPS; i++)
		k->puts[i].stale = true;
}

static void operate(struct work *k, uint32_t what, struct put *p)
{
	switch (what) {
	case 0 ... 2:
		index_evict_page(k->w.index, note_ring, k, &k->sink);
		if (k->w.index->gathered > 1) /* rings that hold each other: one after the other */
			k->ring = false;
		break;
	case 3:
		if (k->w.layout->row_columns)
			index_evict_row(k->w.index, note_ring, k, &k->sink);
		k->ring = false;
		break;
	case 4:
		read_or_leave(k);
		break;
	case 5:
		remove_one(k);
		break;
	case 6:
		let_go(k, p);
		break;
	case 7:
		finish(k, p, true);
		break;
	case 8:
		finish(k, p, false);
		break;
	case 10:
		reset(k);
		break;
	case 11:
		index_retire(k->w.index, &k->sink, NULL);
		break;
	case 12:
		remove_key(k);
		break;
	case 13:
		hold_or_not(k);
		break;
	case 14:
		move_one(k);
		break;
	default:
		p->group = (uint32_t)(p - k->puts) + 1;
		p->stale = false;
		world_group(&k->w, p->group);
		fill(k, p);
	}
}

static void one(struct work *k)
{
	struct put *p = &k->puts[roll_to(&k->seed, GROUPS)];
	uint32_t what = roll_to(&k->seed, 6);
	bool filled = p->group != 0, eviction;

	if (roll_to(&k->seed, 2) && k->w.free_count > VALUES / 4)
		what = filled ? 7 + (roll_to(&k->seed, 4) == 0) : 9;
	if (what == 9 && k->w.free_count < 40)
		what = 0;
	if (what == 7 && p->stale)
		what = 8;
	if (roll_to(&k->seed, 6) == 0)
		what = roll_to(&k->seed, 8) ? 11 + roll_to(&k->seed, 3) : 10;
	if (roll_to(&k->seed, 5) == 0)
		what = 14;
	k->moving = what == 14;
	eviction = what <= 6 || (what > 10 && !k->moving);
	k->ring = false;
	k->w.index->gathered = 0;

	char *before = describe(k->w.index);

	step_begin();
	operate(k, what, p);
	step_end();
	char *after = describe(k->w.index);

	judge(k, before, after, eviction);
	free(before);
	free(after);
	if (what == 7 || what == 8) { /* pins go in an operation of their own: with the last one a victim may go */
		before = describe(k->w.index);
		step_begin();
		operate(k, 6, p);
		step_end();
		after = describe(k->w.index);
		judge(k, before, after, true);
		free(before);
		free(after);
	}
	index_check(k->w.index);
}

static uint64_t given_seed;
static uint32_t given_steps = 150;

static void run(const char *layout, uint32_t hollow)
{
	struct work *k = calloc(1, sizeof(*k));
	uint64_t seed = given_seed++;

	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	k->seed = seed * 2 + 1;
	k->reader = INDEX_NONE;
	for (unsigned i = 0; i < 8; i++)
		roll(&k->seed);
	world_init_places(&k->w, layout, RECORDS, GROUPS, VALUES, PLACES, hollow, MAP_PRIVATE);
	k->sink = (struct index_sink){freed, k};
	for (uint32_t i = 0; i < NODES; i++) {
		k->key[i] = key_of(seed + i);
		k->parent[i] = i < 2 ? INDEX_NONE : roll_to(&k->seed, 4) ? i - 1 : roll_to(&k->seed, i);
		k->consumed[i] = 16 + (i < 2 ? 0 : k->consumed[k->parent[i]]);
	}
	step_init(k->w.memory, k->w.tables.bytes);
	for (uint32_t i = 0; i < given_steps; i++)
		one(k);
	fprintf(stderr, "  %llu stores, %llu moves\n", (unsigned long long)k->stores, (unsigned long long)k->moves);
	step_deinit();
	world_deinit(&k->w);
	free(k);
}

static void test_plain(void **state)
{
	(void)state;
	run(LAYOUT_PLAIN, 10);
}

static void test_rows(void **state)
{
	(void)state;
	run(LAYOUT_ROWS, 10);
}

static void test_many(void **state)
{
	(void)state;
	run(LAYOUT_MANY, 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_many),
	};

	if (!CAN_STEP) {
		fprintf(stderr, "stores can be stepped on x86-64 without sanitizers only\n");
		return 77;
	}
	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	if (argc > 2)
		given_steps = (uint32_t)strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
