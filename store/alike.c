/* SPDX-License-Identifier: Apache-2.0
 *
 * Shares whose values are the same (P6): what a file has for both of, and the slot that has it for both while they need not be two
 * (docs/disk.md, "What is the same").
 */
#include "store/tiering.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint8_t tiering_alias_of(struct tiering *t, const uint16_t *alias, uint32_t count)
{
	uint32_t n = 1;
	bool any = false;

	lock_assert_held(&t->space->lock);
	for (uint32_t i = 0; i < count; i++)
		any |= alias[i] != i;
	if (!any || count != t->space->layout->page_columns + t->space->layout->row_columns)
		return any ? TIERING_ALIAS_UNKNOWN : 0;
	while (n < TIERING_ALIASES && t->alias[n] && memcmp(t->alias[n], alias, count * sizeof(*alias)))
		n++;
	if (n == TIERING_ALIASES)
		return TIERING_ALIAS_UNKNOWN;
	if (!t->alias[n])
		t->alias[n] = calloc(count, sizeof(*alias));
	if (!t->alias[n])
		return TIERING_ALIAS_UNKNOWN;
	memcpy(t->alias[n], alias, count * sizeof(*alias));
	return (uint8_t)n;
}

/* The entry of the share whose bytes the record's file has for @entry's value too; INDEX_NONE: it has them for itself. */
static uint32_t stored_of(struct tiering *t, uint32_t entry)
{
	const struct entry *e = &t->space->tables.entries[entry];
	const struct layout *layout = t->space->layout;
	const struct record_file *f = tiering_file(t, e->record);
	uint32_t column = layout_column(layout, e->class_index, e->share);
	uint32_t first = e->page == INDEX_PAGE_ROW ? layout->page_columns : 0, stored, other;
	bool committed;

	if (!f->alias || f->alias == TIERING_ALIAS_UNKNOWN || !(f->flags & TIERING_ALIAS_SURE))
		return INDEX_NONE;
	stored = t->alias[f->alias][first + column] - first;
	if (stored == column)
		return INDEX_NONE;
	other = index_value(t->space->index, e->record, e->page, stored, &committed);
	return other != INDEX_NONE && committed ? other : INDEX_NONE;
}

uint32_t tiering_alike(struct tiering *t, uint32_t place)
{
	uint32_t stored = stored_of(t, place);

	lock_assert_held(&t->space->lock);
	assert(tiering_is_place(t, place));
	if (stored == INDEX_NONE || tiering_is_place(t, stored))
		return INDEX_NONE;
	return tiering_is_clean(t, stored) || t->kept[stored / 64] >> stored % 64 & 1 ? stored : INDEX_NONE;
}

/* The row of a record without pages may become another record's, whose file lacks it. */
static bool may_collapse(struct tiering *t, uint32_t slot)
{
	const struct entry *e = &t->space->tables.entries[slot];
	uint32_t stored;

	if (e->state != ENTRY_VALUE || !tiering_is_clean(t, slot) || t->closed ||
	    (e->page == INDEX_PAGE_ROW && !index_record(t->space->index, e->record)->pages))
		return false;
	stored = stored_of(t, slot);
	return stored != INDEX_NONE && !tiering_is_place(t, stored) && tiering_is_clean(t, stored);
}

void tiering_collapse(struct tiering *t, uint32_t slot)
{
	uint32_t place;

	lock_assert_held(&t->space->lock);
	t->collapse[slot / 64] &= ~(1ull << slot % 64);
	if (!may_collapse(t, slot))
		return;
	if (t->holds[slot]) {
		t->collapse[slot / 64] |= 1ull << slot % 64;
		return;
	}
	place = tiering_place_take(t);
	if (place == INDEX_NONE)
		return;
	tiering_demote(t, slot, place);
	t->space->stats.values_demoted--; /* its bytes are in memory still */
	t->space->stats.values_collapsed++;
}
