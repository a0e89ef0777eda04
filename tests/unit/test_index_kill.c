/* SPDX-License-Identifier: Apache-2.0
 *
 * The index after SIGKILL: a child works on shared tables and is killed anywhere; the parent rebuilds from them.
 *
 * The child keeps a journal in shared memory too: what each group is about to hold, one word when it is about to
 * commit, one when it has, and what it is about to let go. What must then be there is what was acknowledged and never
 * let go; what must not be there is what was never about to commit.
 *
 *	test_index_kill [seed [kills]]
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "tests/unit/index_world.h"

#define NODES 300u
#define VALUES 600u
#define RECORDS 300u
#define GROUPS 16u
#define GROUP_VALUES 64u

/* Of an entry. */
struct fate {
	uint32_t node, column;
	uint32_t row;
	_Atomic uint32_t state;
};
enum {
	NOTHING,
	PREPARED,
	COMMITTING,
	COMMITTED,
	LEAVING,
	HIDDEN /* by a reset that came back: it must not be there */
};

struct journal {
	struct fate fate[VALUES];
	_Atomic uint64_t commits;
};

struct work {
	struct world w;
	struct journal *journal;
	uint64_t seed;
	struct key key[NODES];
	uint32_t parent[NODES];
	uint64_t consumed[NODES];
	struct index_sink sink;
};

static void freed(void *context, uint32_t entry)
{
	struct work *k = context;

	k->journal->fate[entry].state = NOTHING;
	world_freed(&k->w, entry);
}

/* ---- the child ------------------------------------------------------------------------------------------------- */

struct put {
	uint32_t group;
	bool stale; /* a reset came since it began */
	uint32_t entries[GROUP_VALUES], n;
	uint32_t records[GROUP_VALUES], records_n;
	uint32_t pins[GROUP_VALUES], pins_n;
};

#define NEW_PAGE (INDEX_PAGE_ROW - 1u) /* one at the end of the open record */

static uint16_t add(struct work *k, struct put *p, uint32_t record, uint16_t page, uint32_t node, uint32_t c, uint32_t s)
{
	uint32_t entry = world_entry(&k->w);

	assert(entry < VALUES);
	struct fate *f = &k->journal->fate[entry];

	f->node = node;
	f->column = layout_column(k->w.layout, c, s);
	f->row = page == INDEX_PAGE_ROW;
	f->state = PREPARED;
	if (page == NEW_PAGE) {
		uint64_t hash;

		index_prefetch(k->w.index, &k->key[node], 1, &hash);
		page = index_page_add(k->w.index, record, &k->key[node], hash, c, s, entry, p->group);
	} else {
		index_value_add(k->w.index, record, page, &k->key[node], c, s, entry, p->group);
	}
	p->entries[p->n++] = entry;
	return page;
}

static void add_all(struct work *k, struct put *p, uint32_t record, uint16_t page, uint32_t node)
{
	const struct layout *l = k->w.layout;

	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			if (layout_is_row(l, c) != (page == INDEX_PAGE_ROW) ||
				(page != INDEX_PAGE_ROW && !layout_has_value(l, c, k->consumed[node])))
				continue;
			if (index_value(k->w.index, record, page, layout_column(l, c, s), NULL) == INDEX_NONE)
				add(k, p, record, page, node, c, s);
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

static void fill(struct work *k, struct put *p)
{
	uint32_t chain[6], n = 0, node = roll_to(&k->seed, NODES), end = node, record = INDEX_NONE;
	uint32_t flags = roll_to(&k->seed, 4) ? 0 : RECORD_WHOLE;

	for (uint32_t want = roll_to(&k->seed, 6); n < want && node != INDEX_NONE; node = k->parent[node])
		chain[n++] = node;
	while (n-- > 0) {
		struct index_hit hit;

		node = chain[n];
		index_lookup(k->w.index, &k->key[node], 1, ~0u, &hit);
		if (hit.record != INDEX_NONE) {
			if (record != INDEX_NONE)
				index_record_close(k->w.index, record);
			record = INDEX_NONE;
			index_pin(k->w.index, hit.record);
			p->pins[p->pins_n++] = hit.record;
			add_all(k, p, hit.record, hit.page, node);
			continue;
		}
		if (record == INDEX_NONE)
			record = begin(k, p, node, n + 1, flags);
		add_all(k, p, record, add(k, p, record, NEW_PAGE, node, 0, 0), node); /* class 0 has a value on every page */
	}
	if (record != INDEX_NONE)
		index_record_close(k->w.index, record);
	if (!k->w.layout->row_columns || roll_to(&k->seed, 2))
		return;
	record = index_row_home(k->w.index, &k->key[end]);
	if (record != INDEX_NONE) {
		index_pin(k->w.index, record);
		p->pins[p->pins_n++] = record;
		add_all(k, p, record, INDEX_PAGE_ROW, end);
	} else {
		record = begin(k, p, end, 0, flags);
		add_all(k, p, record, INDEX_PAGE_ROW, end);
		index_record_close(k->w.index, record);
	}
}

static void mark_leaving(struct work *k, uint32_t record)
{
	for (uint32_t e = 0; e < VALUES; e++) {
		const struct entry *t = &k->w.tables.entries[e];

		if (k->journal->fate[e].state == COMMITTED && (record == INDEX_NONE || t->record == record))
			k->journal->fate[e].state = LEAVING;
	}
}

/* Those that stayed are to be kept again. */
static void stayed(struct work *k)
{
	for (uint32_t e = 0; e < VALUES; e++)
		if (k->journal->fate[e].state == LEAVING && index_record_current(k->w.index, k->w.tables.entries[e].record))
			k->journal->fate[e].state = COMMITTED;
}

/* All of it leaves, though none is freed yet. */
static void reset(struct work *k, struct put *puts, uint32_t n)
{
	mark_leaving(k, INDEX_NONE);
	index_reset(k->w.index);
	for (uint32_t e = 0; e < VALUES; e++)
		if (k->journal->fate[e].state == LEAVING)
			k->journal->fate[e].state = HIDDEN;
	for (uint32_t i = 0; i < n; i++)
		puts[i].stale = true;
}

static void finish(struct work *k, struct put *p)
{
	if (p->stale || roll_to(&k->seed, 6) == 0) {
		bool backwards = roll_to(&k->seed, 2);

		for (uint32_t i = 0; i < p->n; i++)
			index_value_drop(k->w.index, p->entries[backwards ? p->n - 1 - i : i], false, &k->sink);
		for (uint32_t i = 0; i < p->records_n; i++)
			index_record_abandon(k->w.index, p->records[i], &k->sink);
	} else {
		for (uint32_t i = 0; i < p->n; i++)
			k->journal->fate[p->entries[i]].state = COMMITTING;
		tables_group_publish(&k->w.tables, p->group - 1);
		for (uint32_t i = 0; i < p->n; i++)
			k->journal->fate[p->entries[i]].state = COMMITTED;
		for (uint32_t i = 0; i < p->n; i++)
			index_settle(k->w.index, p->entries[i]);
		for (uint32_t i = 0; i < p->records_n; i++)
			index_record_publish(k->w.index, p->records[i], &k->sink);
		k->journal->commits++;
	}
	while (p->pins_n) {
		uint32_t record = p->pins[--p->pins_n];

		if (k->w.index->records[record].flags & RECORD_FLAG_SELECTED)
			mark_leaving(k, record);
		index_unpin(k->w.index, record, &k->sink);
	}
	stayed(k);
	world_group_end(&k->w, p->group);
	p->group = p->n = p->records_n = 0;
}

/* Everything that an eviction could free is on its way out from before it happens: more than will go. */
static bool leaving(void *context, uint32_t entry)
{
	struct work *k = context;
	uint32_t record = k->w.tables.entries[entry].record;

	mark_leaving(k, k->w.index->records[record].flags & RECORD_FLAG_WHOLE ? INDEX_NONE : record);
	return true;
}

static void child(struct work *k)
{
	struct put puts[4] = {{0}};

	for (uint64_t step = 0;; step++) {
		uint32_t i = roll_to(&k->seed, 4);
		struct put *p = &puts[i];

		if (k->w.free_count < 200 || roll_to(&k->seed, 4) == 0) {
			index_tick(k->w.index);
			if (k->w.layout->row_columns && roll_to(&k->seed, 6) == 0)
				index_evict_row(k->w.index, leaving, k, &k->sink);
			else
				index_evict_page(k->w.index, leaving, k, &k->sink);
			stayed(k);
		} else if (roll_to(&k->seed, 64) == 0) {
			reset(k, puts, 4);
		} else if (roll_to(&k->seed, 4) == 0) {
			index_retire(k->w.index, &k->sink, NULL);
		} else if (!p->group) {
			p->group = i + 1;
			p->stale = false;
			world_group(&k->w, p->group);
			fill(k, p);
		} else {
			finish(k, p);
		}
		if (step % 256 == 0)
			index_check(k->w.index);
	}
}

/* ---- the parent ------------------------------------------------------------------------------------------------ */

static void setup(struct work *k, const char *layout, uint64_t seed, uint32_t hollow)
{
	k->seed = seed * 2 + 1;
	for (unsigned i = 0; i < 8; i++)
		roll(&k->seed);
	world_init(&k->w, layout, RECORDS, GROUPS, VALUES, hollow, MAP_SHARED);
	k->sink = (struct index_sink){freed, k};
	k->journal = mmap(NULL, sizeof(*k->journal), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(k->journal != MAP_FAILED);
	for (uint32_t i = 0; i < NODES; i++) {
		k->key[i] = key_of(seed + i);
		k->parent[i] = i < 2 ? INDEX_NONE : roll_to(&k->seed, 4) ? i - 1 : roll_to(&k->seed, i);
		k->consumed[i] = 16 + (i < 2 ? 0 : k->consumed[k->parent[i]]);
	}
}

static void judge_value(struct work *k, struct index *index, uint32_t entry)
{
	const struct fate *f = &k->journal->fate[entry];
	const struct entry *e = &k->w.tables.entries[entry];
	bool there = e->state == ENTRY_VALUE;

	switch (f->state) {
	case NOTHING: /* or being freed, which the journal learns last: then it may not be a value either */
		assert_false(there);
		break;
	case PREPARED:
	case HIDDEN:
		assert_false(there);
		break;
	case COMMITTED:
		assert_true(there);
		break;
	case COMMITTING:
	case LEAVING:
		break;
	}
	if (!there)
		return;
	struct index_hit hit;
	bool committed;

	assert_true(key_equal(&e->key, &k->key[f->node]));
	assert_int_equal(index_value(index, e->record, e->page, f->column, &committed), entry);
	assert_true(committed);
	assert_int_equal(index_consumed(index, e->record, e->page), k->consumed[f->node]);
	if (f->row)
		return;
	index_lookup(index, &e->key, 1, ~0u, &hit);
	assert_int_equal(hit.record, e->record);
	assert_int_equal(hit.page, e->page);
}

static void one_kill(const char *layout, uint64_t seed, uint32_t hollow, uint64_t *commits, uint64_t *kept)
{
	struct work *k = calloc(1, sizeof(*k));
	struct twin_world t;

	setup(k, layout, seed, hollow);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		child(k);
	struct timespec nap = {.tv_nsec = 300000 + (long)(roll(&k->seed) % 6000000)};

	nanosleep(&nap, NULL);
	assert_int_equal(kill(pid, SIGKILL), 0);
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
	*commits += k->journal->commits;

	world_rebuild(&k->w, &t, false);
	index_check(t.index);
	for (uint32_t e = 0; e < VALUES; e++) {
		judge_value(k, t.index, e);
		*kept += k->w.tables.entries[e].state == ENTRY_VALUE;
	}
	for (uint32_t g = 0; g < GROUPS; g++)
		assert_int_not_equal(tables_group_state(&t.tables, g), GROUP_PREPARED);
	/* A rebuild of what the rebuild left says the same. */
	char *first = describe(t.index);
	twin_deinit(&t, &k->w, false);
	world_rebuild(&k->w, &t, false);
	index_check(t.index);
	char *second = describe(t.index);
	assert_string_equal(first, second);
	free(first);
	free(second);
	twin_deinit(&t, &k->w, false);
	munmap(k->journal, sizeof(*k->journal));
	world_deinit(&k->w);
	free(k);
}

static uint64_t given_seed, current_seed;
static uint32_t given_kills = 60;

static void kills(const char *layout, uint32_t hollow)
{
	uint64_t commits = 0, kept = 0;

	fprintf(stderr, "from seed %llu\n", (unsigned long long)given_seed);

	for (uint32_t i = 0; i < given_kills; i++) {
		uint64_t seed = given_seed++;

		current_seed = seed;
		one_kill(layout, seed, hollow, &commits, &kept);
	}
	fprintf(stderr, "up to seed %llu: %u kills, %llu commits, %llu values kept\n", (unsigned long long)current_seed,
		given_kills, (unsigned long long)commits, (unsigned long long)kept);
}

static void test_plain(void **state)
{
	(void)state;
	kills(LAYOUT_PLAIN, 20);
}

static void test_rows(void **state)
{
	(void)state;
	kills(LAYOUT_ROWS, 20);
}

static void test_many(void **state)
{
	(void)state;
	kills(LAYOUT_MANY, 2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_many),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	if (argc > 2)
		given_kills = (uint32_t)strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
