/* SPDX-License-Identifier: Apache-2.0
 *
 * What the index tells of its records (index_config.news and, for the disk tier, .lost): published, shorter, without their
 * row, gone.
 *
 * A record gets shorter page by page and may be free at the end, so the first step of a loss keeps its name and length
 * (loss_begin) and the review that follows every loss says what came of it. Between the two no other record loses
 * anything.
 */
#include "index/internal.h"

static inline void tell(struct index *index, enum index_news_kind kind, uint64_t consumed, const struct key *endpoint,
	uint32_t pages, uint32_t row_values)
{
	if (index->news)
		index->news(index->news_context, kind, index->why, consumed, endpoint, pages, row_values);
}

static inline void lose(struct index *index, enum index_loss what, uint32_t record, uint32_t other)
{
	if (index->on_loss)
		index->on_loss(index->on_loss_context, what, record, other);
}

/* Is it worth telling? What a reset hid was told by that. */
static inline bool telling(const struct index *index, const struct record *r)
{
	return (index->news || index->on_loss) && !index->rebuilding && !record_hidden(index, r);
}

void news_stored(struct index *index, const struct record *r)
{
	const struct record_entry *t = record_table(index, record_number(index, r));

	if (!telling(index, r))
		return;
	if (r->flags & RECORD_FLAG_ROW)
		tell(index, INDEX_NEWS_STORED, t->consumed, &t->endpoint, r->pages,
			place_count_values(index, r, INDEX_PAGE_ROW));
	else
		tell(index, INDEX_NEWS_STORED, t->consumed, &t->endpoint, r->pages, 0);
}

void news_row_joined(struct index *index, const struct record *r)
{
	const struct record_entry *t = record_table(index, record_number(index, r));

	if (telling(index, r))
		tell(index, INDEX_NEWS_STORED, t->consumed, &t->endpoint, 0, 1);
}

void loss_begin(struct index *index, const struct record *r)
{
	uint32_t number = record_number(index, r);
	const struct record_entry *t = record_table(index, number);

	if (r->state != RECORD_LIVE || !telling(index, r) || index->loss.record == number)
		return;
	assert(index->loss.record == INDEX_NONE);
	index->loss.record = number;
	index->loss.row = index->loss.value = false;
	index->loss.pages = r->pages;
	index->loss.consumed = t->consumed;
	index->loss.endpoint = t->endpoint;
}

void loss_row(struct index *index, const struct record *r)
{
	loss_begin(index, r);
	if (index->loss.record == record_number(index, r))
		index->loss.row = true;
}

void loss_value(struct index *index, const struct record *r)
{
	loss_begin(index, r);
	if (index->loss.record == record_number(index, r))
		index->loss.value = true;
}

/* All of it went: whoever is told has heard of it by the name that it had before, step by step, it got shorter. */
static void name_before(struct index *index, struct record_entry *t)
{
	t->consumed = index->loss.consumed;
	t->endpoint = index->loss.endpoint;
}

void loss_end(struct index *index, const struct record *r)
{
	struct loss *loss = &index->loss;
	uint32_t number = record_number(index, r);
	struct record_entry *t = record_table(index, number);

	if (loss->record != number)
		return;
	loss->record = INDEX_NONE;
	if (!r->pages && !(r->flags & RECORD_FLAG_ROW)) {
		name_before(index, t);
		tell(index, INDEX_NEWS_EVICTED, loss->consumed, &loss->endpoint, loss->pages, 0);
		return;
	}
	if (loss->row) {
		tell(index, INDEX_NEWS_ROW_DROPPED, loss->consumed, &loss->endpoint, 0, 0);
		lose(index, INDEX_LOST_ROW, number, INDEX_NONE);
	}
	if (loss->pages > r->pages) {
		tell(index, INDEX_NEWS_TRIMMED, t->consumed, &t->endpoint, loss->pages - r->pages, 0);
		lose(index, INDEX_LOST_PAGES, number, INDEX_NONE);
	} else if (loss->value) {
		lose(index, INDEX_LOST_VALUE, number, INDEX_NONE);
	}
}

void news_gone(struct index *index, const struct record *r)
{
	const struct record_entry *t = record_table(index, record_number(index, r));

	if (index->loss.record == record_number(index, r))
		loss_end(index, r);
	else if (r->state == RECORD_LIVE && (r->pages || r->flags & RECORD_FLAG_ROW) && telling(index, r))
		tell(index, INDEX_NEWS_EVICTED, t->consumed, &t->endpoint, r->pages, 0);
}

/* Also of one that a reset hid: `group` says whether it was LIVE. */
void lost_record(struct index *index, const struct record *r)
{
	uint32_t number = record_number(index, r);

	if (!index->rebuilding && !record_table(index, number)->group)
		lose(index, INDEX_LOST_RECORD, number, INDEX_NONE);
}

void lost_joined(struct index *index, const struct record *r, uint32_t zero)
{
	if (!index->rebuilding)
		lose(index, INDEX_JOINED, record_number(index, r), zero);
}
