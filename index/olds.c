/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of windows that no boundary needs any more.
 *
 * Boundaries that stand are a record's endpoint and the pages that children hang off. Each keeps the last values of its window and the
 * sink's; what lies before them is old. A record with more than MOST_CHILDREN children has no old values: looking at them would take too
 * long.
 *
 * A record stands in the order `olds` while it may have such values: old_next is the first page that may have one. It falls when a child
 * goes and when a value is put again, and rises as they are looked for. A record that has been looked through leaves the order.
 */
#include "index/internal.h"

#include <errno.h>

#include "store/base/memory.h"

#define MOST_CHILDREN 64u
#define MOST_LOOKS 64u /* pages of one call: a bit each */

static uint32_t view_old_use(void *context, uint32_t record)
{
	const struct index *index = context;

	return record_last_use(index, &index->records[record]);
}

static uint32_t *view_old_slot(void *context, uint32_t record)
{
	return &((struct index *)context)->old_slot[record];
}

static size_t records_of(const struct index *index, size_t bytes)
{
	return index->tables->record_capacity * bytes;
}

int olds_new(struct index *index, struct why *why)
{
	struct policy_view view = {index, view_old_use, view_old_slot};

	index->old_at.record = INDEX_NONE;
	if (!index->gates.windows)
		return 0;
	index->old_reach = INDEX_PAGE_ROW;
	for (uint32_t mask = index->gates.windows; mask; mask &= mask - 1) {
		const struct value_class *class = &index->layout->class[__builtin_ctz(mask)];
		uint64_t reach = (uint64_t)class->last * class->every_pages, most = reach + class->every_pages;

		index->old_reach = reach < index->old_reach ? (uint32_t)reach : index->old_reach;
		most = most < INDEX_PAGE_ROW ? most : INDEX_PAGE_ROW;
		index->old_most = most > index->old_most ? (uint32_t)most : index->old_most;
	}
	index->old_slot = memory_reserve(records_of(index, sizeof(*index->old_slot)), false);
	index->old_next = memory_reserve(records_of(index, sizeof(*index->old_next)), false);
	index->olds = policy_lru.create(&view, index->tables->record_capacity, why);
	return index->old_slot && index->old_next && index->olds ? 0 : why_set(why, ENOMEM, "no memory for the order of old values");
}

void olds_free(struct index *index)
{
	memory_release(&index->old_slot, records_of(index, sizeof(*index->old_slot)));
	memory_release(&index->old_next, records_of(index, sizeof(*index->old_next)));
	policy_lru.destroy(&index->olds);
}

size_t olds_memory_bytes(const struct index *index)
{
	return index->olds ? policy_lru.memory_bytes(index->olds) +
	                             index->record_top * (sizeof(*index->old_slot) + sizeof(*index->old_next))
	                   : 0;
}

void old_record_begins(struct index *index, uint32_t record)
{
	if (!index->olds)
		return;
	index->old_slot[record] = INDEX_NONE;
	index->old_next[record] = 0;
}

bool old_candidate(const struct index *index, const struct record *r)
{
	return r->state == RECORD_LIVE && !r->unsettled && !(r->flags & (RECORD_FLAG_HELD | RECORD_FLAG_WHOLE)) &&
	       index->old_next[record_number(index, r)] + index->old_reach < r->pages;
}

/* From @page on there may be old values again. */
static void look_again(struct index *index, uint32_t record, uint32_t page)
{
	if (page < index->old_next[record])
		index->old_next[record] = (uint16_t)page;
	if (index->old_at.record == record)
		index->old_at.whole = false;
}

void old_child_gone(struct index *index, uint32_t record, uint32_t page)
{
	if (index->olds && page != INDEX_PAGE_ROW)
		look_again(index, record, page > index->old_most ? page - index->old_most : 0);
}

void old_value_settled(struct index *index, uint32_t record, uint32_t page)
{
	if (index->olds)
		look_again(index, record, page);
}

/* ---- which values are old --------------------------------------------------------------------------------------- */

/* Bits of pages @from to @to of those from @first on. */
static uint64_t page_bits(uint64_t from, uint64_t to, uint64_t first)
{
	from = from > first ? from - first : 0;
	if (to < first || from >= MOST_LOOKS || to - first < from)
		return 0;
	to -= first;

	uint64_t up_to = to >= MOST_LOOKS - 1 ? ~0ull : (2ull << to) - 1;

	return up_to & ~0ull << from;
}

/* Pages of @r, from @first on, whose values of @class a boundary at the end of @page keeps. */
static uint64_t kept_by(const struct index *index, const struct record *r, const struct value_class *class, uint32_t page,
	uint32_t first)
{
	uint64_t start = record_table(index, record_number(index, r))->start, tokens = index->layout->page_tokens;
	uint64_t every = class->every_pages * tokens, values = (start + (page + 1ull) * tokens) / every;
	uint64_t from = values > class->last ? (values - class->last + 1) * every : 0; /* where the first one that is kept ends */

	return page_bits(from > start + tokens ? (from - start + tokens - 1) / tokens - 1 : 0, page, first);
}

static uint64_t kept_pages(const struct index *index, const struct record *r, const struct value_class *class, uint32_t first)
{
	uint64_t kept = kept_by(index, r, class, r->pages - 1u, first);

	for (uint32_t c = r->child; c != INDEX_NONE; c = index->records[c].next)
		kept |= kept_by(index, r, class, index->records[c].parent_page, first);
	return kept;
}

/* Entries of class @c on @page. False: the sink keeps them, or there are none. */
static bool gather(const struct index *index, const struct record *r, uint32_t c, uint32_t page, uint32_t *entries, uint32_t *n)
{
	const struct value_class *class = &index->layout->class[c];
	const uint32_t *words = block_values(index, r, page) + class->first_column;
	uint64_t consumed = place_consumed(index, record_number(index, r), page);

	*n = 0;
	if (consumed / ((uint64_t)class->every_pages * index->layout->page_tokens) <= class->sink)
		return false;
	for (uint32_t s = 0; s < class->shares; s++)
		if (word_is_value(words[s]))
			entries[(*n)++] = words[s] & WORD_ENTRY;
	return *n > 0;
}

/* ---- looking for them ------------------------------------------------------------------------------------------- */

struct old_search {
	uint32_t class_index;
	bool (*accept)(void *context, uint32_t entry);
	void *context;
	uint32_t looks;
	uint32_t entries[LAYOUT_MAX_SHARES], n; /* what was found */
};

static bool accepted(const struct old_search *s)
{
	bool any = !s->accept;

	for (uint32_t i = 0; i < s->n && !any; i++)
		any = s->accept(s->context, s->entries[i]);
	return any;
}

/* Has @page an old value of another class than the one that is looked for? */
static bool others_old(const struct index *index, const struct record *r, uint32_t page, uint32_t class_index)
{
	uint32_t entries[LAYOUT_MAX_SHARES], n;
	bool any = false;

	for (uint32_t mask = index->gates.windows & ~(1u << class_index); mask && !any; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		any = gather(index, r, c, page, entries, &n) &&
		      !(kept_pages(index, r, &index->layout->class[c], page) & 1);
	}
	return any;
}

enum old_answer { OLD_FOUND, OLD_NONE, OLD_LEFT /* none that is wanted, but others */, OLD_MORE };

/* The first old value of the class, from page @from on: on @ret_page. Old values of others, and such as are refused, keep old_next
 * where it is. */
static enum old_answer search_record(struct index *index, uint32_t record, struct old_search *s, uint32_t *from)
{
	const struct record *r = &index->records[record];
	const struct value_class *class = &index->layout->class[s->class_index];
	uint32_t end = r->pages - index->old_reach; /* later ones are the endpoint's, in every class */

	while (*from < end) {
		uint32_t n = end - *from < s->looks ? end - *from : s->looks;
		uint64_t kept = n ? kept_pages(index, r, class, *from) : 0;

		if (!n)
			return OLD_MORE;
		for (uint32_t i = 0; i < n; i++, ++*from) {
			s->looks--;
			bool old = !(kept >> i & 1) && gather(index, r, s->class_index, *from, s->entries, &s->n);

			if (old && accepted(s))
				return OLD_FOUND;
			old = old || others_old(index, r, *from, s->class_index);
			if (!old && index->old_next[record] == *from)
				index->old_next[record]++;
		}
	}
	return index->old_next[record] < end ? OLD_LEFT : OLD_NONE;
}

/* Takes up the last search, if it was of this record and class; else begins at its first page. */
static struct old_place search_from(const struct index *index, uint32_t record, uint32_t class_index)
{
	const struct old_place *at = &index->old_at;
	struct old_place from = {record, index->records[record].generation, class_index, index->old_next[record], true};

	if (at->record == record && at->class_index == class_index && at->generation == from.generation && at->page > from.page)
		return *at;
	return from;
}

static uint32_t free_found(struct index *index, const struct old_search *s, const struct index_sink *sink)
{
	uint32_t values = 0;

	for (uint32_t i = 0; i < s->n; i++)
		if (index->tables->entries[s->entries[i]].state == ENTRY_VALUE) {
			value_drop(index, s->entries[i], false, INDEX_WHY_ROOM, sink);
			values++;
		}
	return values;
}

int index_evict_old(struct index *index, uint32_t class_index, bool (*accept)(void *context, uint32_t entry), void *context,
	const struct index_sink *sink)
{
	struct old_search s = {.class_index = class_index, .accept = accept, .context = context, .looks = MOST_LOOKS};
	uint32_t passed = 0;
	int result = INDEX_E_NOTHING;

	lock_assert_held(index->guard);
	assert(index->gates.windows >> class_index & 1);
	while (passed < INDEX_MAX_TRIES && result == INDEX_E_NOTHING) {
		uint32_t record = policy_lru.pop(index->olds);

		if (record == INDEX_NONE)
			break;

		struct record *r = &index->records[record];

		if (!old_candidate(index, r) || r->pins) /* comes back with its last value or pin */
			continue;
		if (r->children > MOST_CHILDREN) {
			index->passed_over[passed++] = record;
			continue;
		}
		struct old_place at = search_from(index, record, class_index);

		index->old_at.record = INDEX_NONE;
		switch (search_record(index, record, &s, &at.page)) {
		case OLD_FOUND:
			index->old_at = at; /* the next one is behind it, mostly */
			index->old_at.whole = false;
			victim_gone(index, free_found(index, &s, sink)); /* its review puts it back */
			result = 0;
			break;
		case OLD_MORE:
			index->old_at = at;
			index->passed_over[passed++] = record;
			result = INDEX_E_MORE;
			break;
		case OLD_LEFT:
			index->passed_over[passed++] = record;
			result = at.whole ? result : INDEX_E_MORE; /* what lies before may be wanted now */
			break;
		case OLD_NONE:
			break;
		}
	}
	candidates_reenter(index, passed);
	return result;
}
