/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that come back from disk: in any order they make the index that putting them makes.
 *
 *	test_index_adopt [seed]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "tests/unit/index_world.h"

#define MOST_RECORDS 60u
#define MOST_PAGES 5u
#define MOST_COLUMNS 8u
#define SLOTS 4096u
#define PLACES 256u
#define HOLLOW 256u
#define ROUNDS 40u

#define LAYOUT_ONE LAYOUT_HEAD CLASS_KV "," CLASS_STATE1 "]}" /* a column for pages, one for rows */

/* A record as a file has it, and where its values lie. */
struct saved {
	struct index_adoption a;
	struct key keys[MOST_PAGES], parent, endpoint;
	uint32_t entries[(MOST_PAGES + 1) * MOST_COLUMNS];
	uint32_t ring; /* one that is before it in the same WHOLE group, INDEX_NONE */
	uint32_t number;
	bool has_row, joined;
};

static uint64_t given_seed;
static uint64_t seed;
static struct saved saved[MOST_RECORDS];
static uint32_t saved_n, entries_n;
static uint64_t key_n;

static uint32_t rnd(uint32_t n)
{
	return roll_to(&seed, n);
}

/* ---- what there is ------------------------------------------------------------------------------------------------ */

static bool row_taken(const struct key *key)
{
	for (uint32_t i = 0; i < saved_n; i++)
		if (saved[i].has_row && key_equal(saved[i].a.pages ? &saved[i].keys[saved[i].a.pages - 1] : &saved[i].endpoint, key))
			return true;
	return false;
}

static uint32_t entry_or_none(bool there)
{
	return there ? entries_n++ : INDEX_NONE;
}

static void add_values(struct saved *s, const struct layout *l)
{
	bool any = false;

	for (uint32_t page = 0; page < s->a.pages; page++) {
		bool hollow = rnd(6) == 0;

		for (uint32_t column = 0; column < l->page_columns; column++)
			s->entries[page * l->page_columns + column] = entry_or_none(!hollow && rnd(8));
	}
	for (uint32_t column = 0; column < l->row_columns; column++) {
		bool there = s->has_row && (!any || rnd(2));

		s->entries[s->a.pages * l->page_columns + column] = entry_or_none(there);
		any |= there;
	}
}

/* One more record: after any page of one that there is, a root, or after a key that nobody has. */
static void add_record(const struct layout *l)
{
	struct saved *s = &saved[saved_n];
	const struct saved *p = saved_n && rnd(5) ? &saved[rnd(saved_n)] : NULL;
	uint64_t start = 0;

	*s = (struct saved){.ring = INDEX_NONE};
	s->a.keys = s->keys;
	s->a.entries = s->entries;
	s->a.pages = l->row_columns && rnd(4) == 0 ? 0 : 1 + rnd(MOST_PAGES);
	if (p && p->a.pages) {
		uint32_t page = rnd(2) ? p->a.pages - 1 : rnd(p->a.pages);

		s->parent = p->keys[page];
		start = p->a.start + (page + 1) * 16;
	} else if (p) {
		s->parent = p->endpoint;
		start = p->a.start;
	} else if (rnd(3) == 0) {
		s->parent = key_of(++key_n);
		start = 160;
	}
	s->a.parent = start ? &s->parent : NULL;
	s->a.start = start;
	for (uint32_t i = 0; i < s->a.pages; i++)
		s->keys[i] = key_of(++key_n);
	s->has_row = l->row_columns && rnd(3) == 0;
	if (!s->a.pages) {
		s->has_row = true;
		if (p && p->a.pages && rnd(2)) { /* at a page: the last one's twin joins */
			uint32_t page = rnd(2) ? p->a.pages - 1 : rnd(p->a.pages);

			s->endpoint = p->keys[page];
			s->a.start = p->a.start + (page + 1) * 16;
			s->parent = page ? p->keys[page - 1] : p->parent;
			s->a.parent = page || p->a.parent ? &s->parent : NULL;
			if (row_taken(&s->endpoint))
				return;
		} else {
			s->endpoint = key_of(++key_n);
			s->a.start += 5;
		}
		s->a.endpoint = &s->endpoint;
	}
	if (rnd(5) == 0) {
		s->a.flags |= RECORD_WHOLE;
		for (uint32_t i = saved_n; i-- > 0 && rnd(2);)
			if (saved[i].a.flags & RECORD_WHOLE) {
				s->ring = i;
				break;
			}
	}
	s->a.flags |= rnd(6) ? 0 : RECORD_PINNED;
	s->a.tick = 1 + rnd(100);
	s->a.created_s = 1;
	s->a.last_use_s = s->a.tick;
	add_values(s, l);
	saved_n++;
}

/* ---- the two ways ------------------------------------------------------------------------------------------------- */

static void add(struct world *w, uint32_t record, uint32_t page, const struct key *key, uint32_t column, uint32_t entry)
{
	const struct layout *l = w->layout;

	for (uint32_t c = 0; c < l->classes; c++)
		for (uint32_t s = 0; s < l->class[c].shares && layout_is_row(l, c) == (page == INDEX_PAGE_ROW); s++)
			if (layout_column(l, c, s) == column)
				index_value_add(w->index, record, (uint16_t)page, key, c, s, entry, 1);
}

/* Puts and publishes it, with values where it has none too, so that its pages have names; those are taken from the end
 * of the entries and dropped once everything is there. */
static void put(struct world *w, struct saved *s, uint32_t *spare)
{
	const struct layout *l = w->layout;
	struct index_run run = {
		.parent_key = s->a.parent,
		.endpoint = s->a.endpoint,
		.consumed = s->a.start,
		.max_pages = s->a.pages,
		.group = 1,
		.flags = s->a.flags & RECORD_WHOLE,
		.whole_ring = s->ring == INDEX_NONE ? INDEX_NONE : saved[s->ring].number,
	};
	uint32_t record, used[(MOST_PAGES + 1) * MOST_COLUMNS], n = 0;

	world_group(w, 1);
	record = s->number = index_record_new(w->index, &run);
	assert_int_not_equal(record, INDEX_NONE);
	for (uint32_t page = 0; page < s->a.pages; page++) {
		uint64_t hash;

		index_prefetch(w->index, &s->keys[page], 1, &hash);
		for (uint32_t column = 0; column < l->page_columns; column++) {
			uint32_t entry = s->entries[page * l->page_columns + column];

			entry = entry == INDEX_NONE ? --*spare : entry;
			used[n++] = entry;
			if (column)
				add(w, record, page, &s->keys[page], column, entry);
			else
				index_page_add(w->index, record, &s->keys[page], hash, 0, 0, entry, 1);
		}
	}
	for (uint32_t column = 0; column < l->row_columns; column++)
		if (s->entries[s->a.pages * l->page_columns + column] != INDEX_NONE) {
			used[n] = s->entries[s->a.pages * l->page_columns + column];
			add(w, record, INDEX_PAGE_ROW, s->a.pages ? &s->keys[s->a.pages - 1] : &s->endpoint, column, used[n++]);
		}
	index_record_close(w->index, record);
	tables_group_publish(&w->tables, 0);
	for (uint32_t i = 0; i < n; i++)
		index_settle(w->index, used[i]);
	if (s->a.flags & RECORD_PINNED)
		index_hold(w->index, record, true);
	index_record_publish(w->index, record, NULL);
	world_group_end(w, 1);
}

static void put_all(struct world *w)
{
	uint32_t spare = SLOTS;

	for (uint32_t i = 0; i < saved_n; i++) {
		put(w, &saved[i], &spare);
		index_check(w->index);
		if (w->index->records[saved[i].number].state == RECORD_FREE || saved[i].joined)
			saved[i].number = INDEX_NONE;
	}
	for (uint32_t e = spare; e < SLOTS; e++)
		index_value_drop(w->index, e, false, NULL);
	index_check(w->index);
}

static void settle(struct world *w)
{
	uint32_t cursor = 0, stays = 0;

	while (index_adopt_settle(w->index, &cursor))
		assert_true(++stays < 10000);
	w->index->news = NULL; /* it has told of none of them, and they go in the end */
	index_check(w->index);
	world_check_losses(w);
}

/* In a random order; of a WHOLE group each one names any that is there. */
static void adopt_all(struct world *w)
{
	uint32_t order[MOST_RECORDS], ring_of[MOST_RECORDS];

	for (uint32_t i = 0; i < saved_n; i++) {
		uint32_t j = rnd(i + 1);

		order[i] = order[j];
		order[j] = i;
		ring_of[i] = saved[i].ring == INDEX_NONE ? i : ring_of[saved[i].ring];
		saved[i].number = INDEX_NONE;
	}
	for (uint32_t turn = 0; turn < 100; turn++)
		index_tick(w->index);
	for (uint32_t i = 0; i < saved_n; i++) {
		struct saved *s = &saved[order[i]];

		s->a.whole_ring = INDEX_NONE;
		for (uint32_t j = 0; j < i && s->a.flags & RECORD_WHOLE; j++)
			if (ring_of[order[j]] == ring_of[order[i]] && saved[order[j]].a.flags & RECORD_WHOLE)
				s->a.whole_ring = saved[order[j]].number;
		index_adopt_prefetch(w->index, s->a.parent, s->a.keys, s->a.pages);
		w->losses_n = 0;
		assert_int_equal(index_adopt(w->index, &s->a, &s->number), 0);
		assert_int_equal(w->index->records[s->number].state, RECORD_LIVE);
		for (uint32_t l = 0; l < w->losses_n; l++) /* who joined is the survivor from here on */
			for (uint32_t j = 0; j < saved_n && w->losses[l].what == INDEX_JOINED; j++)
				if (saved[j].number == w->losses[l].other)
					saved[j].number = w->losses[l].record;
		index_check(w->index);
		world_check_losses(w);
	}
	assert_int_equal(w->told_gone, 0);
	settle(w);
}

/* No record was used later than the page that it hangs off. */
static void check_uses(const struct world *w)
{
	const struct index *index = w->index;

	for (uint32_t n = 0; n < index->record_top; n++) {
		const struct record *r = &index->records[n];

		if (r->state != RECORD_LIVE)
			continue;
		assert_true((int32_t)(index_record_last_use(index, n) - record_last_use(index, r)) >= 0);
		if (r->parent == INDEX_NONE)
			continue;
		const struct record *p = &index->records[r->parent];
		uint32_t page = r->parent_page == INDEX_PAGE_ROW ? 0 : r->parent_page;

		assert_true((int32_t)(block_uses(index, p)[page] - block_uses(index, r)[0]) >= 0);
		assert_true(record_table(index, r->parent)->last_use_s >= record_table(index, n)->last_use_s);
	}
}

static void compare(struct index *a, struct index *b)
{
	char *put_text = describe(a), *adopted = describe(b);

	assert_string_equal(put_text, adopted);
	free(put_text);
	free(adopted);
	assert_int_equal(a->counters.records, b->counters.records);
	assert_int_equal(a->counters.pages, b->counters.pages);
	assert_int_equal(a->counters.hollow_pages, b->counters.hollow_pages);
	assert_int_equal(a->counters.orphans, b->counters.orphans);
	assert_int_equal(a->map.count, b->map.count);
	assert_int_equal(a->held, b->held);
	assert_int_equal(policy_lru.count(a->lost), policy_lru.count(b->lost));
	/* What came before a page and after a zero-page record at its key hangs off that one, whichever way it came. */
	if (a->zero_page_records)
		return;
	assert_int_equal(policy_lru.count(a->pages), policy_lru.count(b->pages));
	assert_int_equal(policy_lru.count(a->rows), policy_lru.count(b->rows));
}

static uint32_t let_go;

static void count_freed(void *context, uint32_t entry)
{
	(void)context;
	(void)entry;
	let_go++;
}

/* Everything can go again, and nothing is left. */
static void drain(struct world *w)
{
	struct index_sink sink = {count_freed, NULL};
	uint64_t records = w->index->counters.records, told = 0;
	uint32_t values = 0;

	for (uint32_t e = 0; e < SLOTS; e++)
		values += w->tables.entries[e].state == ENTRY_VALUE;
	for (uint32_t n = 0; n < w->index->record_top; n++)
		if (w->index->records[n].flags & RECORD_FLAG_HELD)
			index_hold(w->index, n, false);
	let_go = 0;
	w->losses_n = 0;
	while (index_evict_page(w->index, NULL, NULL, &sink) == 0)
		world_check_losses(w);
	assert_true(w->losses_n < WORLD_LOSSES);
	for (uint32_t i = 0; i < w->losses_n; i++)
		told += w->losses[i].what == INDEX_LOST_RECORD;
	assert_int_equal(told, records);
	assert_int_equal(let_go, values);
	assert_int_equal(w->index->map.count, 0);
	assert_int_equal(w->index->arena.used, 0);
	assert_int_equal(w->index->counters.hollow_pages, 0);
	index_check(w->index);
}

static void rounds(const char *layout)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct world by_put, by_adopt;
		struct twin_world again;

		saved_n = entries_n = 0;
		world_init_places(&by_put, layout, 128, 2, SLOTS, PLACES, HOLLOW, MAP_PRIVATE);
		while (saved_n < MOST_RECORDS && rnd(50))
			add_record(by_put.layout);
		put_all(&by_put);
		lock_drop(&by_put.lock);
		world_init_places(&by_adopt, layout, 128, 2, SLOTS, PLACES, HOLLOW, MAP_PRIVATE);
		adopt_all(&by_adopt);
		lock_drop(&by_adopt.lock);
		lock_take(&by_put.lock);
		by_adopt.index->guard = &by_put.lock; /* one lock of a kind at a time */
		compare(by_put.index, by_adopt.index);
		check_uses(&by_adopt);
		world_rebuild(&by_adopt, &again, true);
		by_adopt.index->guard = &again.lock;
		index_check(again.index);
		char *live = describe(by_adopt.index), *rebuilt = describe(again.index);

		assert_string_equal(live, rebuilt);
		free(live);
		free(rebuilt);
		twin_deinit(&again, &by_adopt, true);
		by_adopt.index->guard = &by_put.lock;
		drain(&by_adopt);
		by_adopt.index->guard = &by_adopt.lock;
		world_deinit(&by_put);
		lock_take(&by_adopt.lock);
		world_deinit(&by_adopt);
	}
}

static void test_plain(void **state)
{
	(void)state;
	rounds(LAYOUT_PLAIN);
}

static void test_rows(void **state)
{
	(void)state;
	rounds(LAYOUT_ROWS);
}

static void test_one(void **state)
{
	(void)state;
	rounds(LAYOUT_ONE);
}

/* ---- one by one -------------------------------------------------------------------------------------------------- */

static struct world w;

struct snapshot {
	char *text;
	struct index_counters counters;
	uint32_t names, units, losses;
};

static struct snapshot look(void)
{
	return (struct snapshot){describe(w.index), w.index->counters, w.index->map.count, w.index->arena.used, w.losses_n};
}

static void nothing_changed(struct snapshot *before)
{
	struct snapshot after = look();

	assert_string_equal(before->text, after.text);
	assert_memory_equal(&before->counters, &after.counters, sizeof(after.counters));
	assert_int_equal(before->names, after.names);
	assert_int_equal(before->units, after.units);
	assert_int_equal(before->losses, after.losses);
	for (uint32_t e = 40; e < 80; e++)
		assert_int_equal(w.tables.entries[e].state, ENTRY_FREE);
	index_check(w.index);
	free(before->text);
	free(after.text);
}

static void refused(struct index_adoption *a, int error, uint32_t twice_at)
{
	struct snapshot before = look();
	uint32_t record = 7;

	assert_int_equal(index_adopt(w.index, a, &record), error);
	assert_int_equal(record, INDEX_NONE);
	assert_int_equal(a->twice_at, twice_at);
	nothing_changed(&before);
}

static void test_twice(void **state)
{
	(void)state;
	struct key keys[4] = {key_of(1), key_of(2), key_of(3), key_of(4)}, same[3] = {key_of(5), key_of(6), key_of(5)};
	struct key other[3] = {key_of(7), key_of(8), key_of(2)}, zero = key_of(4);
	uint32_t entries[5] = {0, INDEX_NONE, 2, 3, 4}, more[5] = {40, 41, 42, 43, 44}, row[1] = {50};
	uint32_t hollow[4] = {60, INDEX_NONE, 61, INDEX_NONE};
	struct index_adoption a = {.keys = keys, .entries = entries, .pages = 4, .tick = 1};
	uint32_t record;

	world_init_places(&w, LAYOUT_ONE, 4, 2, 128, 0, 16, MAP_PRIVATE);
	assert_int_equal(index_adopt(w.index, &a, &record), 0);
	settle(&w);
	assert_int_equal(w.index->counters.hollow_pages, 1);
	a.entries = more;
	refused(&a, INDEX_E_TWICE, 0); /* all of it */
	a.keys = other;
	a.pages = 3;
	refused(&a, INDEX_E_TWICE, 2); /* its last page, known as a hollow one */
	a.keys = same;
	refused(&a, INDEX_E_TWICE, 2); /* one of its own */
	a.entries = hollow;
	refused(&a, INDEX_E_TWICE, 2);
	a = (struct index_adoption){.parent = &keys[2], .endpoint = &zero, .entries = row, .start = 64, .tick = 1};
	refused(&a, INDEX_E_TWICE, INDEX_PAGE_ROW); /* a row */
	world_deinit(&w);
}

static void test_full(void **state)
{
	(void)state;
	struct key keys[8];
	uint32_t entries[9] = {40, 41, 42, 43, 44, 45, 46, 47, 48}, record;
	struct index_adoption a = {.keys = keys, .entries = entries, .pages = 8, .tick = 1};

	for (uint32_t i = 0; i < 8; i++)
		keys[i] = key_of(100 + i);
	world_init_places(&w, LAYOUT_ONE, 1, 2, 128, 0, 0, MAP_PRIVATE);
	w.index->map.max_count = 8;
	refused(&a, INDEX_E_FULL, 0); /* names */
	w.index->map.max_count = 9;
	w.index->arena.top = w.index->arena.units;
	uint32_t top = w.index->arena.units;

	refused(&a, INDEX_E_FULL, 0); /* memory */
	w.index->arena.top = 0;
	w.index->arena.units = top;
	assert_int_equal(index_adopt(w.index, &a, &record), 0);
	w.index->map.max_count = 200;
	settle(&w);
	struct key other = key_of(200);
	uint32_t few[2] = {90, INDEX_NONE};

	a = (struct index_adoption){.keys = &other, .entries = few, .pages = 1};
	assert_int_equal(index_adopt(w.index, &a, &record), INDEX_E_FULL); /* records */
	assert_int_equal(w.tables.entries[90].state, ENTRY_FREE);
	world_deinit(&w);
}

/* Either twin first: one record is left, and who adopts knows which. */
static void test_twins(void **state)
{
	(void)state;
	struct key keys[2] = {key_of(1), key_of(2)};
	uint32_t entries[3] = {0, 1, INDEX_NONE}, row[1] = {2}, first, second;
	struct index_adoption pages = {.keys = keys, .entries = entries, .pages = 2, .tick = 1, .flags = RECORD_PINNED};
	struct index_adoption zero = {.parent = &keys[0], .endpoint = &keys[1], .entries = row, .start = 32, .tick = 1};

	for (unsigned swap = 0; swap < 2; swap++) {
		world_init_places(&w, LAYOUT_ONE, 8, 2, 128, 0, 16, MAP_PRIVATE);
		assert_int_equal(index_adopt(w.index, swap ? &zero : &pages, &first), 0);
		world_check_losses(&w);
		assert_int_equal(w.losses_n, 0);
		assert_int_equal(index_adopt(w.index, swap ? &pages : &zero, &second), 0);
		assert_int_equal(second, swap ? 1 : first);
		assert_int_equal(w.losses_n, 2);
		assert_int_equal(w.losses[0].what, INDEX_JOINED);
		assert_int_equal(w.losses[0].record, second);
		assert_int_equal(w.losses[0].other, swap ? first : 1);
		assert_int_equal(w.losses[1].what, INDEX_LOST_RECORD);
		assert_int_equal(w.losses[1].record, swap ? first : 1);
		settle(&w);
		assert_int_equal(index_value(w.index, second, INDEX_PAGE_ROW, 0, NULL), 2);
		assert_int_equal(index_held_bytes(w.index), w.index->records[second].flags & RECORD_FLAG_HELD ?
				w.tables.records[second].held_units * TABLES_HELD_UNIT : 0);
		assert_true(w.index->records[second].flags & RECORD_FLAG_HELD);
		world_deinit(&w);
	}
}

/* Pages at the end without values are kept until it is known whether something hangs off them. */
static void test_ends(void **state)
{
	(void)state;
	struct key keys[3] = {key_of(1), key_of(2), key_of(3)}, child = key_of(9);
	uint32_t entries[4] = {0, INDEX_NONE, INDEX_NONE, INDEX_NONE}, more[2] = {1, INDEX_NONE}, record, other;
	struct index_adoption a = {.keys = keys, .entries = entries, .pages = 3, .tick = 1};
	struct index_adoption b = {.parent = &keys[1], .keys = &child, .entries = more, .start = 32, .pages = 1, .tick = 1};

	world_init_places(&w, LAYOUT_ONE, 8, 2, 128, 0, 16, MAP_PRIVATE);
	assert_int_equal(index_adopt(w.index, &a, &record), 0);
	assert_int_equal(w.index->records[record].pages, 3);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, NULL), INDEX_E_NOTHING); /* no victim yet */
	assert_int_equal(index_adopt(w.index, &b, &other), 0);
	world_check_losses(&w);
	settle(&w);
	assert_int_equal(w.index->records[record].pages, 2);
	assert_int_equal(w.index->records[other].parent, record);
	assert_int_equal(w.losses_n, 1);
	assert_int_equal(w.losses[0].what, INDEX_LOST_PAGES);
	assert_int_equal(w.losses[0].record, record);
	assert_int_equal(w.losses[0].consumed, 32);
	assert_int_equal(w.index->counters.hollow_pages, 1);
	world_deinit(&w);
}

/* A group comes back in pieces and goes as one. */
static void test_whole(void **state)
{
	(void)state;
	struct key keys[3] = {key_of(1), key_of(2), key_of(3)};
	uint32_t entries[3][2] = {{0, INDEX_NONE}, {1, INDEX_NONE}, {2, INDEX_NONE}}, numbers[3];

	world_init_places(&w, LAYOUT_ONE, 8, 2, 128, 0, 16, MAP_PRIVATE);
	for (uint32_t i = 0; i < 50; i++)
		index_tick(w.index);
	for (uint32_t i = 3; i-- > 0;) {
		struct index_adoption a = {.parent = i ? &keys[i - 1] : NULL, .keys = &keys[i], .entries = entries[i],
			.start = 16 * i, .pages = 1, .flags = RECORD_WHOLE, .whole_ring = i == 2 ? INDEX_NONE : numbers[2],
			.tick = 10 * (i + 1)};

		assert_int_equal(index_adopt(w.index, &a, &numbers[i]), 0);
		assert_int_equal(index_record_last_use(w.index, numbers[i]), 30); /* the newest of the ring */
		world_check_losses(&w);
	}
	settle(&w);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, NULL), 0);
	assert_int_equal(w.losses_n, 3);
	assert_int_equal(w.index->counters.records, 0);
	world_deinit(&w);
}

/* What is read back at a tick that has not come is used now, and what is out of all times is as old as can be. */
static void test_ticks(void **state)
{
	(void)state;
	const uint32_t ticks[3] = {5, 1000, UINT32_MAX / 2 + 200};
	uint32_t now, record, entries[2] = {0, INDEX_NONE};

	world_init_places(&w, LAYOUT_ONE, 8, 2, 128, 0, 16, MAP_PRIVATE);
	for (uint32_t i = 0; i < 100; i++)
		index_tick(w.index);
	now = index_clock(w.index);
	const uint32_t want[3] = {5, now, now - INDEX_TICK_SPAN};

	for (uint32_t i = 0; i < 3; i++) {
		struct key key = key_of(i + 1);
		struct index_adoption a = {.keys = &key, .entries = entries, .pages = 1, .tick = ticks[i]};

		entries[0] = i;
		assert_int_equal(index_adopt(w.index, &a, &record), 0);
		assert_int_equal(index_record_last_use(w.index, record), want[i]);
	}
	settle(&w);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, NULL), 0);
	assert_int_equal(w.tables.entries[2].state, ENTRY_FREE);
	assert_int_equal(index_evict_page(w.index, NULL, NULL, NULL), 0);
	assert_int_equal(w.tables.entries[0].state, ENTRY_FREE);
	world_deinit(&w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_one),
		cmocka_unit_test(test_twice),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_twins),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_ticks),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	fprintf(stderr, "seed %llu\n", (unsigned long long)given_seed);
	seed = given_seed * 2 + 1;
	for (unsigned i = 0; i < 8; i++)
		roll(&seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
