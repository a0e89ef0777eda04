/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators' pins. A held record is in no order, so nothing of it is a victim, and what it hangs off has a child.
 *
 * What it takes is counted when it is held, in its table entry, and given back as it was counted: values that come
 * later change nothing, so the sum is exact whatever happens to the record meanwhile.
 */
#include "index/internal.h"

static uint64_t class_bytes(const struct value_class *class)
{
	uint64_t bytes = 0;

	for (uint32_t s = 0; s < class->shares; s++)
		bytes += class->share[s].slot_bytes;
	return bytes;
}

/* Values of @class that belong on the pages of @t. */
static uint64_t class_values(const struct layout *layout, const struct value_class *class, const struct record_entry *t)
{
	uint64_t every = (uint64_t)class->every_pages * layout->page_tokens;

	return (t->start + (uint64_t)t->pages * layout->page_tokens) / every - t->start / every;
}

uint64_t index_hold_bytes(const struct index *index, uint32_t record)
{
	const struct layout *layout = index->layout;
	const struct record *r = &index->records[record];
	uint64_t bytes = 0;

	lock_assert_held(index->guard);
	for (uint32_t c = 0; c < layout->classes; c++) {
		const struct value_class *class = &layout->class[c];

		if (!layout_is_row(layout, c))
			bytes += class_values(layout, class, record_table(index, record)) * class_bytes(class);
		else if (r->flags & RECORD_FLAG_ROW)
			bytes += class_bytes(class);
	}
	return bytes;
}

uint64_t index_held_bytes(const struct index *index)
{
	lock_assert_held(index->guard);
	return index->held_units * TABLES_HELD_UNIT;
}

void hold_forget(struct index *index, uint32_t record)
{
	struct record *r = &index->records[record];
	struct record_entry *t = record_table(index, record);

	if (!(r->flags & RECORD_FLAG_HELD))
		return;
	r->flags &= (uint8_t)~RECORD_FLAG_HELD;
	__atomic_store_n(&t->flags, t->flags & ~(uint32_t)RECORD_PINNED, __ATOMIC_RELEASE);
	assert(index->held_units >= t->held_units);
	index->held_units -= t->held_units;
	index->held--;
}

void index_hold(struct index *index, uint32_t record, bool hold)
{
	struct record *r = &index->records[record];
	struct record_entry *t = record_table(index, record);

	lock_assert_held(index->guard);
	assert(r->state != RECORD_FREE && !record_hidden(index, r));
	if (hold == !!(r->flags & RECORD_FLAG_HELD))
		return;
	if (!hold) {
		hold_forget(index, record);
		candidate_consider(index, record);
		return;
	}
	t->held_units = (uint32_t)(index_hold_bytes(index, record) / TABLES_HELD_UNIT);
	index->held_units += t->held_units;
	index->held++;
	r->flags |= RECORD_FLAG_HELD;
	__atomic_store_n(&t->flags, t->flags | RECORD_PINNED, __ATOMIC_RELEASE);
	candidate_withdraw(index, record);
}
