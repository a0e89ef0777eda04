/* SPDX-License-Identifier: Apache-2.0
 *
 * Endpoint candidates: rows within a page, which hang off a page up to which all gates but the states' hold, and lie deeper than what
 * was found. The children of such pages are looked at, from the deepest page on.
 */
#include "store/get_private.h"

#include <string.h>

#define CHILDREN 1024u /* looked at, of one call */

struct search {
	struct get_start *call;
	struct space *space;
	struct found *found;
	uint64_t above, most; /* tokens between which a candidate lies */
	uint32_t left;        /* children that may be looked at */
	/* where the last stay ended */
	uint32_t child, generation;
};

/* Under the lock: are the wanted states at the row of @record complete? */
static bool row_complete(const struct space *space, uint32_t record, uint32_t states)
{
	for (uint32_t mask = states; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		for (uint32_t s = 0; s < space->layout->class[c].shares; s++) {
			bool committed;

			index_value(space->index, record, INDEX_PAGE_ROW, layout_column(space->layout, c, s), &committed);
			if (!committed)
				return false;
		}
	}
	return true;
}

static bool goes_before(const struct candidate *a, const struct candidate *b)
{
	return a->consumed != b->consumed ? a->consumed > b->consumed : memcmp(&a->key, &b->key, sizeof(a->key)) < 0;
}

/* Under the lock: into the list, in order; the last one makes place. */
static void insert(struct search *s, const struct candidate *candidate)
{
	struct found *f = s->found;
	uint32_t at = f->candidates;

	while (at && goes_before(candidate, &f->candidate[at - 1]))
		at--;
	if (at == FOUND_CANDIDATES)
		return;
	if (f->candidates == FOUND_CANDIDATES)
		session_unpin(s->call->session, f->candidate[--f->candidates].row.record);
	memmove(&f->candidate[at + 1], &f->candidate[at], (f->candidates - at) * sizeof(f->candidate[0]));
	f->candidate[at] = *candidate;
	f->candidates++;
	session_pin(s->call->session, candidate->row.record);
}

/* Under the lock. */
static void look_at(struct search *s, uint32_t child, uint32_t key, uint16_t page)
{
	const struct record *r = index_record(s->space->index, child);
	const struct record_entry *t = &s->space->tables.records[child];
	struct candidate candidate = { .key = t->endpoint, .consumed = t->consumed, .row = { key, child } };

	if (r->pages || r->parent_page != page || r->state != RECORD_LIVE || !index_record_current(s->space->index, child) ||
	    layout_is_page_end(s->space->layout, t->consumed))
		return;
	if (t->consumed > s->above && t->consumed <= s->most && row_complete(s->space, child, s->found->gates.states))
		insert(s, &candidate);
}

/* One stay. False: that were all children of the page at @run. */
static bool look_some(struct search *s, const struct run *run, uint32_t key)
{
	struct index *index = s->space->index;
	uint32_t end = s->left > INDEX_STEP_KEYS ? s->left - INDEX_STEP_KEYS : 0;
	uint32_t child = s->child;

	if (child == INDEX_NONE)
		child = index_record(index, run->record)->child;
	else if (index_record(index, child)->generation != s->generation || index_record(index, child)->parent != run->record)
		return false; /* it went meanwhile, and the way with it */
	for (; child != INDEX_NONE && s->left > end; s->left--) {
		look_at(s, child, key, (uint16_t)(run->page + key - run->first));
		child = index_record(index, child)->next;
	}
	s->child = child;
	s->generation = child == INDEX_NONE ? 0 : index_record(index, child)->generation;
	return child != INDEX_NONE && s->left;
}

static void look_through(struct search *s, const struct run *run, uint32_t key)
{
	bool more = true;

	s->child = INDEX_NONE;
	while (more) {
		lock_take(&s->space->lock);
		more = look_some(s, run, key);
		lock_drop(&s->space->lock);
	}
}

void get_candidates(struct get_start *call, uint64_t hit)
{
	struct found *f = call->h->own;
	uint32_t page = call->session->space->layout->page_tokens;
	struct search s = {
		.call = call,
		.space = call->session->space,
		.found = f,
		.above = hit,
		.most = call->limit ? call->limit : UINT64_MAX,
		.left = CHILDREN,
	};

	if (!f->gates.states || !(call->candidates_capacity || get_has_ticket(call)))
		return;
	for (uint32_t n = f->run_count; n-- && s.left && f->candidates < FOUND_CANDIDATES;)
		for (uint32_t key = f->runs[n].end; key-- > f->runs[n].first && s.left && f->candidates < FOUND_CANDIDATES;) {
			if (f->start + (uint64_t)(key + 2) * page <= hit)
				return; /* what hangs off here lies before what was found */
			if (bit_get(&f->would, key))
				look_through(&s, &f->runs[n], key);
		}
}

/* Of this rank's share: pages from `have` on, and the row. */
static uint64_t bytes_of(const struct get_start *call, const struct candidate *candidate)
{
	const struct found *f = call->h->found;
	const struct session *s = call->session;
	uint64_t bytes = 0;

	for (uint32_t mask = f->class_mask; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		bytes += gates_count(&f->gates, c, f->gates.have, candidate->consumed, candidate->consumed) *
			 s->space->layout->class[c].share[s->share[c]].payload_bytes;
	}
	return bytes;
}

void get_tell_candidates(struct get_start *call)
{
	const struct found *f = call->h->found;

	call->candidate_count = f->candidates;
	for (uint32_t i = 0; i < f->candidates && i < call->candidates_capacity; i++)
		call->candidates[i] = (struct get_candidate){
			.key = f->candidate[i].key,
			.consumed = f->candidate[i].consumed,
			.bytes = bytes_of(call, &f->candidate[i]),
		};
}
