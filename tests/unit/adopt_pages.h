/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages that are stored before an adoption and looked for after it, and what is to be left of it in the end.
 */
#ifndef PREFIXFS_TESTS_UNIT_ADOPT_PAGES_H
#define PREFIXFS_TESTS_UNIT_ADOPT_PAGES_H

#include "tests/unit/adopt_world.h"

#define MIB (1ull << 20)
#define KV 1u
#define STATE 2u
#define MEMORY (64 * MIB)

static struct put_result result;

/* Puts, writes and commits pages of a chain. */
static inline void store_pages(struct fixture *f, struct session *s, uint64_t plan, uint64_t chain, uint32_t from, uint32_t pages)
{
	assert_int_equal(put_chain(s, plan, chain, from, pages, KV, 0, &result), 0);
	for (uint32_t i = 0; i < pages; i++)
		write_value(f, result.answers[i], chain, from + i);
	commit_all(s, plan, 1);
}

static inline bool found(struct session *s, uint64_t handle, uint64_t chain, uint32_t pages)
{
	struct get_start get = { 0 };
	struct why why = WHY_INIT;

	assert_int_equal(get_chain(s, handle, chain, pages, 0, &get, &why), 0);
	if (get.handle_live)
		assert_int_equal(get_cancel(s, handle, &why), 0);
	return get.all_hit;
}

/* Everything under way has ended, and nothing is kept. */
static inline void assert_nothing_kept(struct heir *heir, uint32_t sessions)
{
	assert_false(remnants_any(heir->f.space));
	assert_null(heir->f.space->outcomes);
	assert_at_base(&heir->f, sessions);
	struct space_report r = fixture_report(&heir->f);

	assert_int_equal(r.stats.slots_owed, 0);
	assert_int_equal(r.stats.groups_open, 0);
}

#endif
