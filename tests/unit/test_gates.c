/* SPDX-License-Identifier: Apache-2.0
 *
 * Gates against their own table, value by value.
 *
 *	test_gates [seed [worlds]]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "index/gates.h"
#include "store/base/clock.h"

#define PAGES 24u

static uint64_t seed, worlds = 20000;

static uint32_t roll(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 32) * n >> 32);
}

/* Classes, and which values are complete: bit p of page p. */
struct world {
	struct layout layout;
	uint32_t there[LAYOUT_MAX_CLASSES];
	uint32_t mask;
	uint64_t start, have, held;
};

static void add_class(struct layout *l, enum value_kind kind, uint32_t every, uint32_t sink, uint32_t last)
{
	uint32_t *const masks[] = {&l->dense_mask, &l->window_mask, &l->state_mask};

	*masks[kind] |= 1u << l->classes;
	l->class[l->classes++] = (struct value_class){
		.kind = kind, .every_pages = every, .sink = sink, .last = last, .shares = 1};
}

static void draw(struct world *w)
{
	uint32_t classes = 1 + roll(4);

	memset(w, 0, sizeof(*w));
	w->layout.page_tokens = roll(2) ? 16 : 12;
	for (uint32_t c = 0; c < classes; c++) {
		add_class(&w->layout, (enum value_kind)roll(3), 1 + roll(3) * roll(2), roll(2) * roll(4), 1 + roll(4));
		if (w->layout.class[c].kind == VALUE_STATE)
			w->layout.class[c].every_pages = 1;
		for (uint32_t p = 0; p < PAGES; p++)
			w->there[c] |= (uint32_t)(roll(10) > 0) << p;
	}
	w->mask = roll(3) ? (1u << classes) - 1 : 1 + roll((1u << classes) - 1);
	w->start = roll(3) ? 0 : roll(4) * w->layout.page_tokens;
	w->have = roll(2) ? 0 : w->start + roll(5 * w->layout.page_tokens);
	w->held = w->have / w->layout.page_tokens * w->layout.page_tokens;
	w->held = w->held > w->start ? w->held : w->start;
}

static bool is_there(const struct world *w, uint32_t c, uint64_t consumed)
{
	return w->there[c] >> (consumed / w->layout.page_tokens - 1) & 1;
}

/* The table of docs/ranks-and-classes.md: does @boundary need value @v of class @c? */
static bool needs(const struct world *w, uint32_t c, uint64_t v, uint64_t boundary)
{
	const struct value_class *class = &w->layout.class[c];
	uint64_t each = (uint64_t)class->every_pages * w->layout.page_tokens, m = boundary / each;

	if (v * each <= w->held || v > m)
		return false;
	return class->kind == VALUE_DENSE || v <= class->sink || v + class->last > m;
}

/* Of dense classes and windows. */
static bool holds(const struct world *w, uint64_t boundary)
{
	for (uint32_t c = 0; c < w->layout.classes; c++) {
		const struct value_class *class = &w->layout.class[c];
		uint64_t each = (uint64_t)class->every_pages * w->layout.page_tokens;

		if (!(w->mask >> c & 1) || class->kind == VALUE_STATE)
			continue;
		if (boundary % each)
			return false;
		for (uint64_t v = 1; v * each <= boundary; v++)
			if (needs(w, c, v, boundary) && !is_there(w, c, v * each))
				return false;
	}
	return true;
}

static void check_counts(const struct world *w, const struct gates *g, uint64_t boundary)
{
	uint32_t page = w->layout.page_tokens;

	for (uint32_t c = 0; c < w->layout.classes; c++) {
		uint64_t each = (uint64_t)w->layout.class[c].every_pages * page;
		uint64_t from = roll(PAGES + 1) * page, to = from + roll(PAGES) * page, expected = 0;

		for (uint64_t consumed = page; consumed <= PAGES * page; consumed += page) {
			bool state = w->layout.class[c].kind == VALUE_STATE;
			bool needed = !(w->mask >> c & 1) ? false :
				state ? consumed == boundary && consumed > w->held :
				consumed % each == 0 && needs(w, c, consumed / each, boundary);

			assert_int_equal(gates_needed(g, c, consumed, boundary), needed);
			expected += needed && consumed > from && consumed <= to;
		}
		assert_int_equal(gates_count(g, c, from, to, boundary), expected);
	}
}

static void test_against_the_table(void **state)
{
	static struct world w;

	(void)state;
	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	for (uint64_t i = 0; i < worlds; i++) {
		struct gates g;
		uint64_t intact_to = PAGES;

		draw(&w);
		gates_begin(&g, &w.layout, w.mask, w.start, w.have);
		for (uint64_t p = w.start / w.layout.page_tokens; p < PAGES; p++) {
			uint64_t end = (p + 1) * w.layout.page_tokens;
			uint32_t complete = 0, needed = gates_needs(&g, end);

			for (uint32_t c = 0; c < w.layout.classes; c++)
				complete |= (uint32_t)(is_there(&w, c, end) || !layout_has_value(&w.layout, c, end)) << c;
			assert_int_equal(needed & ~gates_due(&g, end), 0);
			bool is = gates_page(&g, end, complete), should = end > w.held && holds(&w, end);

			assert_int_equal(is, should);
			if (end > w.held && needed & ~complete && intact_to == PAGES)
				intact_to = p;
			assert_int_equal(g.intact, p < intact_to);
			if (end % 4 == 0 && should)
				check_counts(&w, &g, end);
		}
	}
}

/* The example of the page: six pages, a window of two, rows apart. */
static void test_example(void **state)
{
	static const uint32_t window = 1u << 0 | 1u << 3 | 1u << 4;
	static struct layout l;
	static const struct {
		uint64_t have;
		uint32_t restorable; /* bits of pages */
	} cases[] = {{0, 1u << 0 | 1u << 4}, {256, 1u << 4}};

	(void)state;
	l.page_tokens = 64;
	add_class(&l, VALUE_DENSE, 1, 0, 0);
	add_class(&l, VALUE_WINDOW, 1, 0, 2);
	for (unsigned i = 0; i < 2; i++) {
		struct gates g;
		uint32_t restorable = 0;

		gates_begin(&g, &l, 3, 0, cases[i].have);
		for (uint32_t p = 0; p < 6; p++)
			restorable |= (uint32_t)gates_page(&g, (p + 1) * 64, 1 | (window >> p & 1) << 1) << p;
		assert_int_equal(restorable, cases[i].restorable);
		assert_true(g.intact);
	}
}

/* Numbers at their limits: nothing passes 2^64. */
static void test_limits(void **state)
{
	static struct layout l;
	struct gates g;

	(void)state;
	l.page_tokens = 65536;
	add_class(&l, VALUE_WINDOW, 65536, UINT32_MAX, UINT32_MAX);
	gates_begin(&g, &l, 1, 0, 0);
	assert_int_equal(gates_needs(&g, 1ull << 32), 1);
	assert_int_equal(gates_needs(&g, 1ull << 31), 0);
	assert_true(gates_page(&g, 1ull << 32, 1));
	assert_int_equal(gates_count(&g, 0, 0, 1ull << 34, 1ull << 34), 4);
	assert_int_equal(gates_count(&g, 0, 1ull << 33, UINT64_MAX, 1ull << 40), 254);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_the_table),
		cmocka_unit_test(test_example),
		cmocka_unit_test(test_limits),
	};

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u + 1;
	worlds = argc > 2 ? strtoull(argv[2], NULL, 0) : worlds;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
