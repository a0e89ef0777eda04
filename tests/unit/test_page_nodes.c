/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes of pages: counted as the kernel counts, bounded, never mistaken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/page_nodes.h"

static struct key key_of(uint64_t n)
{
	return (struct key){.words = {n, 7, 7, 7}};
}

static uint64_t look(struct page_nodes *nodes, uint64_t namespace, uint64_t n)
{
	struct key key = key_of(n);
	uint64_t number = 0;
	bool surplus;

	return page_nodes_look_up(nodes, namespace, &key, &number, &surplus) ? number : UINT64_MAX;
}

static void test_counts(void **state)
{
	struct page_nodes *nodes = page_nodes_new(1);
	uint64_t namespace, a = look(nodes, 1, 5), other;
	struct key key;

	assert_int_equal(look(nodes, 1, 5), a);
	other = look(nodes, 2, 5);
	assert_int_not_equal(other, a); /* the same key elsewhere is another page */
	assert_int_equal(page_nodes_count(nodes), 2);
	page_nodes_forget(nodes, a, 1);
	assert_true(page_nodes_get(nodes, a, &namespace, &key));
	assert_int_equal(namespace, 1);
	assert_int_equal(key.words[0], 5);
	page_nodes_forget(nodes, a, 1);
	assert_false(page_nodes_get(nodes, a, &namespace, &key));
	page_nodes_forget(nodes, a, 1); /* unknown */
	uint64_t b = look(nodes, 1, 6); /* in the same place */
	assert_int_not_equal(a, b);
	assert_false(page_nodes_get(nodes, a, &namespace, &key));
	assert_true(page_nodes_get(nodes, b, &namespace, &key) && key.words[0] == 6);
	assert_true(b >> 56 == 0);
	assert_false(page_nodes_surplus(nodes, &namespace, &key));
	page_nodes_free(&nodes);
}

/* What an earlier serving process gave out is unknown to the next, though key and place are the same. */
static void test_epochs(void **state)
{
	struct page_nodes *before = page_nodes_new(UINT16_MAX), *after = page_nodes_new(1);
	uint64_t old = look(before, 1, 5), namespace;
	struct key key;

	assert_true(old >> 56 == 0);
	uint64_t new = look(after, 1, 5);
	assert_int_not_equal(old, new);
	assert_false(page_nodes_get(after, old, &namespace, &key));
	page_nodes_forget(after, old, 1);
	assert_true(page_nodes_get(after, new, &namespace, &key));
	assert_false(page_nodes_get(before, new, &namespace, &key));
	page_nodes_free(&before);
	page_nodes_free(&after);
}

static void test_bound(void **state)
{
	struct page_nodes *nodes = page_nodes_new(1);
	static uint64_t number[PAGE_NODES_MAX];
	uint64_t namespace, told = 0;
	struct key key;

	for (uint32_t i = 0; i < PAGE_NODES_MAX; i++) {
		number[i] = look(nodes, 1, i);
		assert_int_not_equal(number[i], UINT64_MAX);
	}
	assert_int_equal(look(nodes, 1, PAGE_NODES_MAX), UINT64_MAX);
	assert_int_equal(look(nodes, 1, 3), number[3]); /* those that are there stay good */
	page_nodes_forget(nodes, number[3], 1);
	/* A kernel that lets go what it is told about ends at the easy number. */
	while (page_nodes_surplus(nodes, &namespace, &key)) {
		page_nodes_forget(nodes, number[key.words[0]], 1);
		told++;
	}
	assert_int_equal(told, PAGE_NODES_MAX - PAGE_NODES_EASY);
	assert_int_equal(page_nodes_count(nodes), PAGE_NODES_EASY);
	for (uint32_t i = 0; i < PAGE_NODES_MAX; i++) {
		bool there = page_nodes_get(nodes, number[i], &namespace, &key);

		assert_true(!there || key.words[0] == i);
	}
	/* One that lets nothing go is asked no more than twice for each that comes. */
	for (uint32_t i = 0; i < 100; i++)
		look(nodes, 2, i);
	for (told = 0; page_nodes_surplus(nodes, &namespace, &key); told++)
		;
	assert_int_equal(told, 200);
	page_nodes_free(&nodes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_epochs),
		cmocka_unit_test(test_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
