/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the index share. Nobody else includes it, except tests.
 *
 * A record's block: values [capacity][page_columns], tick of the last use [max(capacity, 1)], row values [row_columns].
 * A value is one word: the entry's number and two marks.
 *
 * Order of stores, for a successor that finds any prefix of them (rebuild.c):
 *   - an entry or record is unsealed, filled, sealed; `group` says whether it counts
 *   - a page or row that goes: its entries become free first, then `pages` falls (one store), then the copies of
 *     endpoint and consumed follow; a rebuild trims pages without values itself
 *   - a record that goes as a whole (all of a WHOLE ring, a removed name): its flags fall to 0 first (one store), then
 *     its entries; a rebuild frees entries whose record is not in use, and the rest of a broken ring
 *   - a page that turns hollow: its hollow entry is sealed before its last value goes
 *   - a reset: one store to the header's generation. A rebuild takes records of that one alone
 *   - a value that moves to another entry: that one is unsealed, filled and sealed, then the old one becomes free; a
 *     rebuild that finds both keeps the lower number, so a slot before a place, and frees the other
 *   - an adopted record: its entries are sealed first, then it is; a rebuild frees entries whose record is not in use
 *   - twins: the row entries' `record` changes one by one, the survivor takes flags and ring, then the zero-page record
 *     goes; a rebuild joins what it finds on both sides
 */
#ifndef PREFIXFS_INDEX_INTERNAL_H
#define PREFIXFS_INDEX_INTERNAL_H

#include <assert.h>
#include <string.h>

#include "index/arena.h"
#include "index/gates.h"
#include "index/index.h"
#include "index/keymap.h"
#include "index/policy.h"
#include "store/base/killpoint.h"

#define WORD_NONE 0xffffffffu
#define WORD_PREPARED 0x80000000u /* not settled: committed only if its entry's group is */
#define WORD_HOLLOW 0x40000000u   /* no value: the entry keeps a hollow page's key; always in column 0 */
#define WORD_ENTRY 0x3fffffffu

#define INDEX_MAX_GATHER 1024u     /* rings and records that a WHOLE ring may take along */
#define INDEX_TICK_SPAN (1u << 30) /* ticks older than this are made this old, so that they compare */

struct index {
	const struct layout *layout;
	struct tables *tables;
	struct lock *guard;

	struct keymap map;     /* page keys and row keys -> entries */
	struct keymap orphans; /* parent keys -> first record of a list */
	struct record *records;
	uint32_t record_top;  /* numbers ever used are below */
	uint32_t record_free; /* list through record.next */
	struct arena arena;

	struct policy *pages, *rows, *lost; /* leaf records, records with rows, orphan leaves */
	struct policy *olds;           /* records that may have old values (olds.c); NULL: the layout has no windows, so nobody has any */
	uint32_t *old_slot;            /* [records] place there */
	uint16_t *old_next;            /* [records] pages before this one have none */
	uint32_t old_reach, old_most;  /* pages that every window, or any, keeps before a boundary */
	struct old_place {
		uint32_t record, generation, class_index, page;
		bool whole; /* the search began at old_next */
	} old_at; /* where the last search ended, or was broken off */
	uint32_t tick;
	uint32_t sweep; /* next record whose ticks are looked at */
	uint32_t now_s;

	uint32_t page_columns, row_columns;
	uint32_t era;          /* low bits of the tables' generation */
	uint32_t records_used; /* numbers that are not free */
	uint32_t hidden;       /* records of older eras: 0 = every name in the map is of this one (reset.c) */
	uint32_t going;        /* list of those that are idle, through record.next */
	uint32_t retire_at, retire_end; /* numbers that are still to be looked at for such */
	uint64_t held_units;   /* sum over held records, */
	uint32_t held;         /* and how many there are */
	uint32_t zero_page_records; /* with a row: looked for when a page comes or a record is trimmed; atomic where it is read without the guard */
	bool rows_apart; /* the page of a row has lost its name, for want of hollow entries: rows are looked for from then on; likewise atomic */
	uint32_t hollow_first, hollow_count;
	uint32_t place_first, place_count;
	uint32_t hollow_top, hollow_list; /* never used from here on; used once: list through entry.record */
	struct index_counters counters;
	void (*gone)(void *context, uint64_t consumed, const struct key *endpoint);
	void *gone_context;
	void (*news)(void *context, enum index_news_kind kind, enum index_why why, uint64_t consumed,
		     const struct key *endpoint, uint32_t pages, uint32_t row_values);
	void *news_context;
	void (*on_loss)(void *context, enum index_loss what, uint32_t record, uint32_t other);
	void *on_loss_context;
	void (*row_gone)(void *context, const struct key *key, uint64_t hash, bool empty);
	void *row_gone_context;
	enum index_why why; /* of what goes in the call under way */
	bool rebuilding;
	struct index_rebuilt rebuilt; /* rebuild.c */
	void (*seen)(void *context, uint64_t entries);
	void *seen_context;
	bool adopting;       /* records may be in no order and have idle pages at their end: from index_adopt to the end of a settle */
	uint32_t settle_at;  /* adopt.c: the record from which uses are still to be carried up, INDEX_NONE */
	struct loss {
		uint32_t record; /* that has lost something and is not reviewed yet; INDEX_NONE */
		bool row;        /* its row went */
		bool value;      /* a settled value went by itself */
		uint32_t pages;  /* as it was before, like the next two */
		uint64_t consumed;
		struct key endpoint;
	} loss; /* news.c */
	uint32_t passed_over[INDEX_MAX_TRIES];
	uint32_t gather[INDEX_MAX_GATHER], gathered; /* whole.c */
	struct gates gates;      /* all classes, nothing held: what a page needs */
	struct index_memo *memo; /* resume.c */
	uint64_t breaks;         /* committed page values dropped by themselves, and children that lost their parent */
	uint64_t mends;          /* page values settled, and orphans that found their parent */
};

extern const struct index_sink index_no_sink;

/* ---- words (internal.h) -------------------------------------------------------------------------------------- */

static inline uint32_t block_words(const struct index *index, uint32_t capacity)
{
	return capacity * index->page_columns + (capacity ? capacity : 1) + index->row_columns;
}

static inline uint32_t *block_values(const struct index *index, const struct record *r, uint32_t page)
{
	return arena_at(&index->arena, r->block) + page * index->page_columns;
}

static inline uint32_t *block_uses(const struct index *index, const struct record *r)
{
	return arena_at(&index->arena, r->block) + (uint32_t)r->capacity * index->page_columns;
}

static inline uint32_t *block_row(const struct index *index, const struct record *r)
{
	return block_uses(index, r) + (r->capacity ? r->capacity : 1);
}

/* The words of a page or of the row, and how many. */
static inline uint32_t *place_words(const struct index *index, const struct record *r, uint32_t page, uint32_t *ret_n)
{
	if (page == INDEX_PAGE_ROW) {
		*ret_n = index->row_columns;
		return block_row(index, r);
	}
	*ret_n = index->page_columns;
	return block_values(index, r, page);
}

static inline bool word_is_value(uint32_t word)
{
	return word != WORD_NONE && !(word & WORD_HOLLOW);
}

static inline bool word_committed(const struct index *index, uint32_t word)
{
	if (word & WORD_HOLLOW) /* and WORD_NONE */
		return false;
	return !(word & WORD_PREPARED) ||
	       tables_committed(index->tables, index->tables->entries[word & WORD_ENTRY].group);
}

/* Any word of the place that is not WORD_NONE, preferring values to hollow marks; WORD_NONE = none. */
static inline uint32_t place_any(const struct index *index, const struct record *r, uint32_t page)
{
	uint32_t n;
	const uint32_t *words = place_words(index, r, page, &n);

	for (uint32_t i = 0; i < n; i++)
		if (words[i] != WORD_NONE)
			return words[i];
	return WORD_NONE;
}

static inline bool place_has_value(const struct index *index, const struct record *r, uint32_t page)
{
	return word_is_value(place_any(index, r, page));
}

static inline uint32_t record_number(const struct index *index, const struct record *r)
{
	return (uint32_t)(r - index->records);
}

static inline struct record_entry *record_table(const struct index *index, uint32_t number)
{
	return &index->tables->records[number];
}

/* index_consumed */
static inline uint64_t place_consumed(const struct index *index, uint32_t record, uint32_t page)
{
	const struct record *r = &index->records[record];
	uint64_t pages = page == INDEX_PAGE_ROW ? r->pages : page + 1u;

	assert(r->state != RECORD_FREE);
	return record_table(index, record)->start + pages * index->layout->page_tokens;
}

static inline uint64_t row_hash(uint64_t hash)
{
	return mix_64(hash, 0xd6e8feb86659fd93ull);
}

static inline uint64_t place_hash(const struct index *index, const struct key *key, uint32_t page)
{
	uint64_t hash = keymap_hash(&index->map, key);

	return page == INDEX_PAGE_ROW ? row_hash(hash) : hash;
}

/* Of an older generation: nobody finds it, its links are dead, it is in no order. */
static inline bool record_hidden(const struct index *index, const struct record *r)
{
	return r->era != index->era;
}

static inline bool entry_hidden(const struct index *index, const struct entry *e)
{
	return __builtin_expect(index->hidden > 0, 0) && record_hidden(index, &index->records[e->record]);
}

static inline bool fits_page(const void *context, uint32_t ref)
{
	const struct index *index = context;
	const struct entry *e = &index->tables->entries[ref];

	return e->page != INDEX_PAGE_ROW && !entry_hidden(index, e);
}

static inline bool fits_row(const void *context, uint32_t ref)
{
	const struct index *index = context;
	const struct entry *e = &index->tables->entries[ref];

	return e->page == INDEX_PAGE_ROW && !entry_hidden(index, e);
}

/* The columns that @class_mask wants of the page that ends at @consumed are all committed? Classes that have no value there do not count. */
static inline bool page_complete(const struct index *index, const uint32_t *words, uint32_t class_mask, uint64_t consumed)
{
	const struct layout *l = index->layout;

	for (uint32_t mask = class_mask; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		if (c >= l->classes)
			break;
		if (layout_is_row(l, c) || !layout_has_value(l, c, consumed))
			continue;
		const uint32_t *word = words + l->class[c].first_column;

		for (uint32_t s = 0; s < l->class[c].shares; s++)
			if (!word_committed(index, word[s]))
				return false;
	}
	return true;
}

/* Entry that stands in the map for @key's page, or for its row; INDEX_NONE. */
static inline uint32_t anchor_page(const struct index *index, const struct key *key)
{
	return keymap_find(&index->map, keymap_hash(&index->map, key), key, fits_page, index);
}

static inline uint32_t anchor_row(const struct index *index, const struct key *key)
{
	if (!index->row_columns)
		return INDEX_NONE;
	return keymap_find(&index->map, row_hash(keymap_hash(&index->map, key)), key, fits_row, index);
}

/* The record whose row (or hollow row) stands at @key, or INDEX_NONE. */
static inline uint32_t row_owner(const struct index *index, const struct key *key)
{
	uint32_t entry = anchor_row(index, key);

	return entry == INDEX_NONE ? INDEX_NONE : index->tables->entries[entry].record;
}

/* A record that never owns pages. */
static inline bool record_is_zero(const struct record *r)
{
	return r->capacity == 0;
}

/* They are counted under the guard, and asked for without it: are there any? */
static inline void zero_page_record_comes(struct index *index, const struct record *r)
{
	if (record_is_zero(r))
		__atomic_store_n(&index->zero_page_records, index->zero_page_records + 1, __ATOMIC_RELAXED);
}

static inline void zero_page_record_goes(struct index *index, const struct record *r)
{
	if (record_is_zero(r))
		__atomic_store_n(&index->zero_page_records, index->zero_page_records - 1, __ATOMIC_RELAXED);
}

/* Is there perhaps a row that does not stand where the page of its key ends its record? With the guard or without. */
static inline bool rows_elsewhere(const struct index *index)
{
	return __atomic_load_n(&index->zero_page_records, __ATOMIC_RELAXED) || __atomic_load_n(&index->rows_apart, __ATOMIC_RELAXED);
}

/* @page could not keep its name: notes a row there, for the page may be put again elsewhere. */
static inline void row_apart_note(struct index *index, const struct record *r, uint32_t page)
{
	if (page != INDEX_PAGE_ROW && page + 1u == r->pages && r->flags & RECORD_FLAG_ROW)
		__atomic_store_n(&index->rows_apart, true, __ATOMIC_RELAXED);
}

/* ---- fetching ahead -------------------------------------------------------------------------------------------- */

/* Inlined by force: a compiler that takes a function that only fetches for one without effect leaves the call out. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE void prefetch_bucket(const struct keymap *map, uint64_t hash)
{
	__builtin_prefetch(&map->buckets[keymap_home(map, hash)], 1);
}

/* Of a bucket that was fetched: the number that the key of @hash has, if it is there, mostly. KEYMAP_NONE: it is not, mostly. */
static ALWAYS_INLINE uint32_t bucket_likely(const struct keymap *map, uint64_t hash)
{
	const struct keymap_bucket *bucket = &map->buckets[keymap_home(map, hash)];
	uint32_t match = keymap_match(bucket, keymap_tag(hash));

	return match ? bucket->ref[__builtin_ctz(match)] : KEYMAP_NONE;
}

static ALWAYS_INLINE void prefetch_record(const struct index *index, uint32_t record)
{
	if (record >= index->record_top)
		return;
	__builtin_prefetch(&index->records[record], 1);
	__builtin_prefetch(&index->tables->records[record].start, 1);
}

/* ---- link.c: parents, children, orphans ------------------------------------------------------------------------ */

void link_find(struct index *index, uint32_t record);    /* links a record that has no parent to it, or orphans it */
/* The same for a record that has just been made. @parent and @page: where its parent key is thought to stand. */
void link_new(struct index *index, uint32_t record, uint32_t parent, uint32_t page);
uint32_t link_cut(struct index *index, uint32_t record); /* takes it from parent or orphans; the parent, INDEX_NONE */
void link_orphan_remove(struct index *index, uint32_t record); /* from the orphans alone */
/* @key's page or row has come to @record: what waits for it, or can now hang nearer, is linked to it. */
void link_adopt_any(struct index *index, uint32_t record, uint32_t page, const struct key *key);
static inline void link_adopt(struct index *index, uint32_t record, uint32_t page, const struct key *key)
{
	if (index->orphans.count || index->zero_page_records) /* else nobody waits */
		link_adopt_any(index, record, page, key);
}
/* Children of @record at @page (INDEX_NONE: all) look for another parent: the place's key has left the map. */
void link_disown(struct index *index, uint32_t record, uint32_t page);
void link_move_children(struct index *index, uint32_t from, uint32_t to, uint32_t to_page); /* all of them */
void link_recount(struct index *index, struct record *r); /* its last page changed: deepest and tail_children */

/* ---- place.c: what stands at a page or row ---------------------------------------------------------------------- */

/* The value at @word of the place goes: the entry becomes free or quarantined; another value of the place, or the
 * hollow entry @hollow (INDEX_NONE: none), becomes the key's anchor, or the key leaves the map. */
void place_take(struct index *index, struct record *r, uint32_t page, uint32_t *word, enum entry_state state,
	uint32_t hollow, const struct index_sink *sink);
/* Everything at the place goes. Returns the number of values. */
uint32_t place_empty(struct index *index, struct record *r, uint32_t page, const struct index_sink *sink);
uint32_t place_count_values(const struct index *index, const struct record *r, uint32_t page);

void hollow_pool_init(struct index *index);
/* A sealed entry that keeps @key for the place, not in its words yet; INDEX_NONE: no entry left. */
uint32_t hollow_make(struct index *index, uint32_t record, uint32_t page, const struct key *key);
void hollow_free(struct index *index, uint32_t entry);

static inline bool is_place(const struct index *index, uint32_t entry)
{
	return entry - index->place_first < index->place_count;
}

/* Before @entry, which is to be filled: a rebuild looks at places below the mark alone. */
static inline void place_mark(struct index *index, uint32_t entry)
{
	struct tables_header *header = index->tables->header;

	if (is_place(index, entry) && entry >= header->places_high)
		__atomic_store_n(&header->places_high, entry + 1, __ATOMIC_RELEASE);
}

/* The entry of a value that is about to get its name. */
static inline void entry_fill(struct index *index, uint32_t entry, const struct key *key, uint32_t record, uint32_t page,
	uint32_t class_index, uint32_t share, uint32_t group)
{
	struct entry *e = &index->tables->entries[entry];

	assert(e->state == ENTRY_FREE);
	tables_unseal(&e->check);
	e->key = *key;
	e->record = record;
	e->page = (uint16_t)page;
	e->class_index = (uint8_t)class_index;
	e->share = (uint8_t)share;
	e->group = group;
	e->state = ENTRY_VALUE;
	killpoint(KILLPOINT_PUT_ENTRY);
	tables_seal_entry(e, entry);
	killpoint(KILLPOINT_PUT_SEALED);
}

/* ---- value.c ------------------------------------------------------------------------------------------------- */

/* The word of the value of @entry, and its record. */
uint32_t *value_word(const struct index *index, uint32_t entry, struct record **ret_record);
/* index_value_drop, told as gone because of @why. */
void value_drop(struct index *index, uint32_t entry, bool quarantine, enum index_why why, const struct index_sink *sink);

/* ---- record.c ------------------------------------------------------------------------------------------------ */

uint32_t record_take_number(struct index *index); /* INDEX_NONE: the tables are full */
void record_give_back_number(struct index *index, uint32_t number);
bool record_make_block(struct index *index, struct record *r, uint32_t capacity);
void record_set_length(struct index *index, struct record *r, uint32_t pages); /* and the table's copies */
void record_copy_endpoint(struct index *index, struct record *r);
/* Whatever it has goes, and the record. Returns its parent, which the caller reviews. */
uint32_t record_free(struct index *index, uint32_t record, const struct index_sink *sink);
/* The same without news: what it had goes on under its name elsewhere. */
uint32_t record_free_joined(struct index *index, uint32_t record, const struct index_sink *sink);
/* Something left @record: trims what has no use, frees it when nothing is left and goes on with its parent, joins twins,
 * makes it a candidate. */
void record_review(struct index *index, uint32_t record, const struct index_sink *sink);
/* The last page with the row, or a zero-page record's row, or only the row goes; then reviews. Returns the number of
 * values. */
uint32_t record_drop_last(struct index *index, uint32_t record, const struct index_sink *sink);
uint32_t record_drop_row(struct index *index, uint32_t record, const struct index_sink *sink);
void record_row_gone(struct index *index, uint32_t record); /* nothing stands at its row any more */
void record_make_live(struct index *index, struct record *r);
void record_name_goes(struct index *index, struct record *r); /* whoever has it cached is told, before it changes */

/* ---- news.c ------------------------------------------------------------------------------------------------------ */

void news_stored(struct index *index, const struct record *r);     /* it has become LIVE */
void news_row_joined(struct index *index, const struct record *r); /* the first value of a LIVE record's row is committed */
void news_gone(struct index *index, const struct record *r);       /* it is about to be freed */
void loss_begin(struct index *index, const struct record *r);      /* its length or row is about to go */
void loss_row(struct index *index, const struct record *r);        /* the same: a row with committed values */
void loss_value(struct index *index, const struct record *r);      /* the same: one settled value */
void loss_end(struct index *index, const struct record *r);        /* it is reviewed: what came of it */
void lost_record(struct index *index, const struct record *r);     /* its number is about to be given back */
void lost_joined(struct index *index, const struct record *r, uint32_t zero); /* the row of @zero is its own now */

/* ---- evict.c --------------------------------------------------------------------------------------------------- */

void candidate_consider(struct index *index, uint32_t record); /* enters it in the orders that it belongs to */
void candidate_withdraw(struct index *index, uint32_t record);
void candidate_recheck(struct index *index, uint32_t record); /* it may have become none */
/* A busy victim has become idle: it goes. */
void victim_resolve(struct index *index, uint32_t record, const struct index_sink *sink);
void victim_gone(struct index *index, uint32_t values); /* chosen and freed at once */
void victim_restore(struct index *index, struct record *r);
void victim_obsolete(struct index *index, struct record *r);
void policy_views(struct index *index, struct policy_view views[2]);
void candidates_reenter(struct index *index, uint32_t n); /* the first @n that were passed over */

/* ---- olds.c ---------------------------------------------------------------------------------------------------- */

int olds_new(struct index *index, struct why *why); /* ENOMEM; nothing where the layout has no windows */
void olds_free(struct index *index);
size_t olds_memory_bytes(const struct index *index);
void old_record_begins(struct index *index, uint32_t record);
bool old_candidate(const struct index *index, const struct record *r); /* there are windows */
void old_child_gone(struct index *index, uint32_t record, uint32_t page); /* from @page of @record */
void old_value_settled(struct index *index, uint32_t record, uint32_t page);

/* ---- hold.c, reset.c ------------------------------------------------------------------------------------------- */

void hold_forget(struct index *index, uint32_t record); /* a held record goes */
/* A hidden record has become idle, or has not: if so it is on the list of those that go. */
void hidden_review(struct index *index, uint32_t record);
/* ---- resume.c -------------------------------------------------------------------------------------------------- */

struct index_memo *resume_memo_new(void); /* NULL: no memory; to be freed with free() */
size_t resume_memo_bytes(const struct index_memo *memo); /* touched */

/* ---- twin.c, whole.c ------------------------------------------------------------------------------------------ */

void twin_take_reason(struct index *index, uint32_t zero, uint32_t record); /* why its row was put goes over */
bool twin_join(struct index *index, uint32_t zero);      /* if it can now: @zero is gone then */
void twin_join_at(struct index *index, uint32_t record); /* a zero-page record at its endpoint, if there is one */

void whole_insert(struct index *index, uint32_t record, uint32_t ring);
void whole_remove(struct index *index, uint32_t record);
void whole_take_over(struct index *index, uint32_t from, uint32_t to);
uint32_t whole_last_use(const struct index *index, uint32_t record);
/* Lets the ring of @record go, with what it cannot be parted from. False: something is busy or has to go before. */
bool whole_drop(struct index *index, uint32_t record, const struct index_sink *sink, uint32_t *ret_values);

/* ---- use.c ----------------------------------------------------------------------------------------------------- */

uint32_t record_last_use(const struct index *index, const struct record *r);
void record_use(struct index *index, struct record *r, uint32_t page, uint32_t tick);

/* ---- the end of an open record ---------------------------------------------------------------------------------- */

/* A page that has no value yet. */
static inline uint16_t record_append(struct index *index, struct record *r, const struct key *key)
{
	struct record_entry *t = record_table(index, record_number(index, r));

	assert(r->state == RECORD_OPEN && r->pages < r->capacity);
	uint16_t page = r->pages++;

	block_uses(index, r)[page] = index->tick;
	if (page)
		record_use(index, r, page - 1u, index->tick);
	r->tail_children = 0;
	t->endpoint = *key;
	t->consumed += index->layout->page_tokens;
	__atomic_store_n(&t->pages, r->pages, __ATOMIC_RELEASE);
	return page;
}

#endif
