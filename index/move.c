/* SPDX-License-Identifier: Apache-2.0
 *
 * A value changes its entry: from a slot to a place on disk, or back. Whoever asks the index sees the same before and after.
 */
#include "index/internal.h"

void index_value_move(struct index *index, uint32_t from, uint32_t to)
{
	const struct entry *e = &index->tables->entries[from];
	struct record *r;
	uint32_t *word = value_word(index, from, &r);

	lock_assert_held(index->guard);
	assert(!(*word & WORD_PREPARED) && e->group == 0);
	assert(from != to && to < index->tables->entry_capacity && to - index->hollow_first >= index->hollow_count);
	place_mark(index, to);
	entry_fill(index, to, &e->key, e->record, e->page, e->class_index, e->share, 0);
	*word = to;

	uint32_t *anchor = keymap_place(&index->map, place_hash(index, &e->key, e->page), from);

	if (anchor)
		*anchor = to;
	tables_entry_set_state(index->tables, from, ENTRY_FREE);
}
