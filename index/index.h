/* SPDX-License-Identifier: Apache-2.0
 *
 * The prefix index of one namespace: which key is where, what hangs off what, who holds it, what leaves first.
 *
 * It names places and owns none: entry numbers are slots of the store's, handed in with a value and handed back to the
 * caller (struct index_sink) when the value goes. All state is rebuildable from the tables (index_rebuild).
 *
 * Life of a page:
 *   unknown     not in the map
 *   filling     has values, none of them committed      index_value_add -> index_settle, index_value_drop
 *   present     has a committed value                    index_lookup finds it
 *   complete    every wanted value is committed          counts as a hit
 *   hollow      no value left, but later pages or child records need its place: its key stays known
 *
 * Life of a record:
 *   OPEN        its run is being built by a PUT_START    index_record_new -> index_record_close
 *   FILLING     closed; its group is not committed: pinned by the plan, invisible, never a victim
 *   LIVE        published                                index_record_publish
 *   freed       its last page or value went; number and generation are reused
 *   any of them, of an older generation than the index's (index_reset): found by nobody, no victim; let go when it is idle
 *
 * A record's parent link leads to the record and page that its first page follows. A parent that is not known makes it
 * an orphan, found again by its parent key when that page comes. A parent that goes (abort) makes its children orphans.
 *
 * Concurrency: everything here runs under the space lock (index_config.guard), asserted, for at most INDEX_STEP_KEYS
 * keys at a time; only index_prefetch may be called without it. Nothing here blocks, allocates after index_new (the
 * arrays are reserved at their largest size and touched as they fill), or does I/O.
 */
#ifndef PREFIXFS_INDEX_INDEX_H
#define PREFIXFS_INDEX_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "index/layout.h"
#include "index/tables.h"
#include "store/base/lock.h"

#define INDEX_STEP_KEYS 64u /* keys of one stay under the lock */
#define INDEX_NONE TABLES_NONE
#define INDEX_PAGE_ROW TABLES_PAGE_ROW

struct index;

enum record_state { RECORD_FREE, RECORD_OPEN, RECORD_FILLING, RECORD_LIVE, RECORD_GOING /* of an older generation, idle */ };

/* A record as the running process sees it; its persistent half has the same number in tables->records. */
struct record {
	uint32_t parent;        /* record of the page before, INDEX_NONE = root or orphan */
	uint32_t child;         /* first child, INDEX_NONE = none */
	uint32_t next, prev;    /* siblings, or orphans with the same parent key */
	uint32_t children;      /* linked to any of our pages */
	uint32_t tail_children; /* of them, those linked to our last page (of a zero-page record: all) */
	uint32_t pins;          /* plans, handles, reads of the mount; > 0: nothing of it goes */
	uint32_t block;         /* its arrays: see index_columns() */
	uint32_t policy_slot;   /* place in the policy's structure, INDEX_NONE = not a candidate */
	uint32_t row_slot;      /* the same for its row */
	uint32_t generation;    /* of the number and its length; a reader that comes back compares it */
	uint32_t unsettled;     /* values of groups that have not been settled */
	uint16_t parent_page;   /* page there, or INDEX_PAGE_ROW: the parent is a zero-page record */
	uint16_t pages;
	uint16_t capacity;      /* pages that the block has room for */
	uint8_t state;          /* enum record_state */
	uint8_t flags;          /* RECORD_FLAG_* */
	uint16_t deepest;       /* no child is linked to a later page than this one */
	uint16_t selected;      /* values owed while SELECTED */
	uint32_t era;           /* as record_entry.generation */
};
_Static_assert(sizeof(struct record) <= 64, "one cache line");

#define RECORD_FLAG_SELECTED 1u /* a victim that was busy; its bytes are owed */
#define RECORD_FLAG_ORPHAN 2u   /* waits in the orphan map */
#define RECORD_FLAG_KNOWN 4u    /* the kernel may have its name cached */
#define RECORD_FLAG_ADOPTED 8u  /* its own group was lost; the next one that commits a value in it makes it LIVE */
#define RECORD_FLAG_WHOLE 16u   /* RECORD_WHOLE */
#define RECORD_FLAG_HELD 32u    /* RECORD_PINNED */
#define RECORD_FLAG_ROOT 64u    /* RECORD_ROOT */
#define RECORD_FLAG_ROW 128u    /* has a row value, committed or not, or keeps the place of one */

/* What happened to a visible record. */
enum index_news_kind {
	INDEX_NEWS_STORED,      /* published: pages, row_values. A row that joins a record later: pages 0, row_values 1 */
	INDEX_NEWS_EVICTED,     /* all of it went: its `pages`; named as it was */
	INDEX_NEWS_TRIMMED,     /* its last `pages` went; named as it is now */
	INDEX_NEWS_ROW_DROPPED, /* named as it was until now */
};
enum index_why { INDEX_WHY_ROOM, INDEX_WHY_HAND, INDEX_WHY_LOST }; /* of what went */

/* What the disk tier has to follow: a record's file is truncated, renamed or removed after it.
 *
 * Told of records that are LIVE, or were when a reset hid them, once for each happening and in the order of happening. The
 * entries of what went are ENTRY_FREE and have been sunk by then. Only settled values count: what a group under way takes
 * back was never told of as come.
 *   - A record that goes is told of by RECORD alone, whatever of it went in the same call; also when it keeps its number
 *     for a while since it is pinned, or since a reset hid it: then when the number is given back, and until then nothing
 *     else of it.
 *   - What stays but lost its row and its end: ROW, then PAGES once, however many pages went. Neither if not so.
 *   - A value that went by itself while the record stays as long as it was, and settled values at the row if it was the
 *     row's: VALUE, for each of them.
 *   - A twin's row has moved: JOINED of the survivor, whose name, flags and ring are final, then RECORD of the other one.
 *   - Of a WHOLE ring: RECORD of each member, then what became of the records that they hung off. */
enum index_loss {
	INDEX_LOST_RECORD, /* all of it: its number is given back after the call; its name is still what it was */
	INDEX_LOST_PAGES,  /* it is shorter and is named otherwise now */
	INDEX_LOST_ROW,    /* no settled value stands at its row any more */
	INDEX_LOST_VALUE,  /* a value of it went, and it stays as long as it was */
	INDEX_JOINED,      /* the row of @other, which is lost next, is its own now */
};

struct index_config {
	const struct layout *layout; /* outlives the index */
	struct tables *tables;       /* outlives the index */
	struct lock *guard;          /* the space lock */
	uint32_t max_pages;          /* sizes the map: pages and rows that can have a name at once */
	uint32_t hollow_first, hollow_count; /* entries that the index may use for hollow pages */
	uint32_t place_first, place_count;   /* entries that are places on disk, in no grant; count 0 = no disk */
	/* A visible record whose name somebody may have cached (RECORD_FLAG_KNOWN) is gone or named otherwise now. Under the
	 * lock; may only note it. NULL = nobody wants to know. */
	void (*gone)(void *context, uint64_t consumed, const struct key *endpoint);
	void *gone_context;
	/* Of every visible record, under the lock, in the order of happening; may only note it and not call the index. A
	 * record that joins its twin is no news: its name stays. Silent during index_rebuild. NULL = nobody wants to know. */
	void (*news)(void *context, enum index_news_kind kind, enum index_why why, uint64_t consumed,
		     const struct key *endpoint, uint32_t pages, uint32_t row_values);
	void *news_context;
	/* Of LIVE records, under the lock, whatever the reason; may only note it and ask index_record_name,
	 * index_record and index_half of it. @other: JOINED only, else INDEX_NONE. Silent during index_rebuild. NULL = no disk. */
	void (*lost)(void *context, enum index_loss what, uint32_t record, uint32_t other);
	void *lost_context;
	/* A value of the row at @key went, committed or not; @hash is the key's, of index_prefetch; @empty: it was the last one there. Under the
	 * lock; may only note it. Silent during index_rebuild, and of what a reset hid. NULL = nobody wants to know. */
	void (*row_gone)(void *context, const struct key *key, uint64_t hash, bool empty);
	void *row_gone_context;
};

/* ENOMEM, EINVAL. The index starts empty; tables must be formatted or go through index_rebuild next. */
int index_new(const struct index_config *config, struct index **ret, struct why *why);
void index_free(struct index **index);

/* ---- memory ahead of need -------------------------------------------------------------------------------------- */

#define INDEX_AHEAD_RECORDS 16384u /* records made present at once: 3 MiB */
#define INDEX_AHEAD_UNITS 65536u   /* units of the arrays' arena likewise: 1 MiB */

/* How far the arrays that fill in order are filled. */
struct index_mark {
	uint32_t record, unit;
};
struct index_mark index_mark(const struct index *index);
/* Makes the memory behind @mark present, without the lock, from any thread; blocks for page faults (about a millisecond). */
void index_make_present(const struct index *index, struct index_mark mark);
/* The same for the entries of a new grant. */
void index_make_entries_present(const struct index *index, uint32_t first, uint32_t count);

/* ---- looking up ---------------------------------------------------------------------------------------------- */

struct index_hit {
	uint32_t record; /* INDEX_NONE = unknown key */
	uint16_t page;
	uint16_t classes; /* bit c: the value of page class c that belongs here is complete, all shares of it, or none belongs here;
	                     0 of an unknown key */
	bool complete; /* the values of all shares of the wanted page classes that belong on this page (layout_has_value) are
	                  there and committed; one that was never put is lacking */
	bool present;  /* some value is committed */
	uint32_t entry; /* of column 0 when the page has one column and is complete, else INDEX_NONE */
	uint32_t row;   /* if rows were asked for: the record whose row of all wanted states is complete at this key, as index_find_row says
	                   (of a key without a page those of records without pages alone); INDEX_NONE */
};

/* Brings the map's lines for @n <= INDEX_STEP_KEYS keys near and writes what the keys hash to, which is then handed to
 * whatever is asked about them. May be called without the lock. */
void index_prefetch(const struct index *index, const struct key *keys, uint32_t n, uint64_t *hashes);

/* The same for rows that are about to be looked for at the same keys. */
void index_prefetch_rows(const struct index *index, const uint64_t *hashes, uint32_t n);

/* The same for records that are about to be pinned or unpinned. Without the lock. */
void index_prefetch_records(const struct index *index, const uint32_t *records, uint32_t n);

/* Looks @n <= INDEX_STEP_KEYS page keys up. @class_mask: classes of which values are wanted. */
void index_lookup(struct index *index, const struct key *keys, uint32_t n, uint32_t class_mask, struct index_hit *hits);
/* The same of keys that went through index_prefetch. @rows: the states of @class_mask are looked for too. */
void index_lookup_hashed(struct index *index, const struct key *keys, const uint64_t *hashes, uint32_t n,
			 uint32_t class_mask, bool rows, struct index_hit *hits);
/* Fetches what index_touch of the pages at @hits will write; under the lock. */
void index_prefetch_uses(const struct index *index, const struct index_hit *hits, uint32_t n);

/* The record whose endpoint is @key, or INDEX_NONE. Finds filling ones too. */
uint32_t index_find_endpoint(struct index *index, const struct key *key);

/* The record whose complete, committed row (all state classes of @class_mask) stands at @key, or INDEX_NONE. */
uint32_t index_find_row(struct index *index, const struct key *key, uint32_t class_mask);

/* Entry of a value, or INDEX_NONE when there is none or (@committed) it is not committed yet.
 * @page = INDEX_PAGE_ROW: @column is the row's. Sets *committed when not NULL. */
uint32_t index_value(const struct index *index, uint32_t record, uint16_t page, uint32_t column, bool *committed);
/* The entries of the values in @columns of a page that was just looked up, as index_value says of each. */
void index_page_values(const struct index *index, uint32_t record, uint16_t page, const uint32_t *columns, uint32_t n,
		       uint32_t *entries);
/* Has the page a value, committed or not? If not it keeps its name only while something needs that, or has gone. */
bool index_page_has_value(const struct index *index, uint32_t record, uint16_t page);

/* Key of a page, with or without a value; NULL: it has lost its name, or there is no such page. Valid under the lock. */
const struct key *index_page_key(const struct index *index, uint32_t record, uint16_t page);

/* Tokens at the end of @page of @record (INDEX_PAGE_ROW: at its endpoint). */
uint64_t index_consumed(const struct index *index, uint32_t record, uint16_t page);

/* Name of a record: tokens at its endpoint, and the endpoint's key. */
void index_record_name(const struct index *index, uint32_t record, uint64_t *consumed, struct key *endpoint);

struct record *index_record(struct index *index, uint32_t number);
bool index_record_visible(const struct index *index, uint32_t number); /* LIVE, or its group has just committed */

/* ---- holding and using --------------------------------------------------------------------------------------- */

/* Where entries go whose value left: called under the lock, once per entry, which is already ENTRY_FREE. */
struct index_sink {
	void (*freed)(void *context, uint32_t entry);
	void *context;
};

void index_pin(struct index *index, uint32_t record);
/* The last unpin of a selected victim lets it go, into @sink; of a zero-page record it may join its twin. */
void index_unpin(struct index *index, uint32_t record, const struct index_sink *sink);

/* One step of the logical clock, per batch. Compare ticks by signed difference: they wrap. */
uint32_t index_tick(struct index *index);
/* Pages 0..@page of @record were used at @tick. A selected victim is restored. */
void index_touch(struct index *index, uint32_t record, uint16_t page, uint32_t tick);
/* A GET_START uses @record. */
void index_count_hit(struct index *index, uint32_t record);

/* ---- putting ------------------------------------------------------------------------------------------------- */

/* Opens a record for a run of at most @max_pages pages (0: zero-page record, with @endpoint) after @parent_key; @group as
 * in an entry; one pin is the caller's. Returns its number; INDEX_NONE: the tables are full. */
struct index_run {
	const struct key *parent_key; /* NULL = root */
	const struct key *endpoint;   /* zero-page record only */
	uint64_t consumed;            /* tokens before the first page; of a zero-page record: at its endpoint */
	uint32_t max_pages;
	uint32_t group;
	uint32_t flags;               /* RECORD_WHOLE */
	uint32_t whole_ring;          /* a record of the same WHOLE group, or INDEX_NONE */
	/* Where the parent key's page is thought to stand, which saves looking it up. Any numbers: they are checked. */
	uint32_t parent_record;
	uint16_t parent_page;
};
uint32_t index_record_new(struct index *index, const struct index_run *run);
/* The run is over: the record's length is final, a zero-page twin joins it when both are LIVE. A record without
 * any page or value is freed, its pin with it: false. */
bool index_record_close(struct index *index, uint32_t record);

/* Where a row put at @key belongs: the record that has a row there already, else the one with that endpoint (FILLING or
 * LIVE), or INDEX_NONE: make a zero-page record. A key's row has this one home: also who has just closed a record of its
 * own asks here before it adds a row (a twin may be busy yet). */
uint32_t index_row_home(struct index *index, const struct key *key);

/* Stores the name of a prepared value: entry @entry, free until now, is @key's value of (class, share) on @page of
 * @record, which has none there. */
void index_value_add(struct index *index, uint32_t record, uint16_t page, const struct key *key, uint32_t class_index,
		     uint32_t share, uint32_t entry, uint32_t group);
/* Appends the page of @key, which is unknown (the caller has just looked), to an open record, with its first value: as
 * index_value_add would store it. @hash is the key's, of index_prefetch. */
uint16_t index_page_add(struct index *index, uint32_t record, const struct key *key, uint64_t hash, uint32_t class_index,
			uint32_t share, uint32_t entry, uint32_t group);

/* The group of @entry is committed (tables_group_publish was called): its mark goes, group = 0. */
void index_settle(struct index *index, uint32_t entry);
/* The group that made @record is committed: it is LIVE, a candidate for eviction, its orphans are linked. The caller's
 * pin is dropped. */
void index_record_publish(struct index *index, uint32_t record, const struct index_sink *sink);

/* The value of @entry goes: aborted, lost, evicted or removed. The page may become hollow, or lose its name when no hollow
 * entry is left or its record is not LIVE; the record may become shorter or free.
 * @quarantine: the entry is left ENTRY_QUARANTINED and nothing is sunk; else it is sunk. */
void index_value_drop(struct index *index, uint32_t entry, bool quarantine, const struct index_sink *sink);
/* The committed, settled value of @from is the one of @to, which is ENTRY_FREE, from now on; @from becomes ENTRY_FREE and is not
 * sunk. Nothing else changes: name, recency, orders, pins; nobody is told. Of any record, also one that is pinned, held or
 * hidden by a reset. In constant time. A process that dies in between leaves both: a rebuild keeps the lower number and
 * frees the other, which is not sunk. */
void index_value_move(struct index *index, uint32_t from, uint32_t to);
/* A quarantined entry becomes ENTRY_FREE; its slot may be given back. */
void index_quarantine_end(struct index *index, uint32_t entry);
/* A filling record's group ended without commit: drops the caller's pin; what still has values stays for their groups. */
void index_record_abandon(struct index *index, uint32_t record, const struct index_sink *sink);

/* ---- leaving ------------------------------------------------------------------------------------------------- */

enum { INDEX_E_NOTHING = 1 }; /* no candidate */
#define INDEX_MAX_TRIES 1024u  /* candidates passed over in one call */

/* Lets the least valuable leaf go by one step: the last page of the coldest leaf record (with its row, if any), or all of a
 * WHOLE ring, with what holds it up and is held up by it. @accept, if not NULL, is asked for the first entry that would be
 * freed; a refused candidate is passed over for this call, at most INDEX_MAX_TRIES of them. Busy candidates are passed over
 * too, and the first one of a call becomes selected. 0 or INDEX_E_NOTHING. */
int index_evict_page(struct index *index, bool (*accept)(void *context, uint32_t entry), void *context,
		     const struct index_sink *sink);
/* Lets the row of the coldest record with an idle row go. */
int index_evict_row(struct index *index, bool (*accept)(void *context, uint32_t entry), void *context,
		    const struct index_sink *sink);
/* Lets old values of window class @class_index go (olds.c), of the record used least recently, from its beginning: all shares of one, on one
 * page, which @accept has taken the entry of one share of. A record that is pinned, held, WHOLE or being filled loses none. 0; INDEX_E_NOTHING;
 * INDEX_E_MORE: call again, as many pages were looked at as one stay may. */
int index_evict_old(struct index *index, uint32_t class_index, bool (*accept)(void *context, uint32_t entry), void *context,
		    const struct index_sink *sink);
/* Evicts one whole record by name: -EBUSY while pinned or filling, -ENOTEMPTY with children, -ENOENT when not visible. */
int index_may_evict_record(struct index *index, uint32_t record, struct why *why); /* the checks alone */
int index_evict_record(struct index *index, uint32_t record, const struct index_sink *sink, struct why *why);

/* ---- emptying a place of the store's (empty.c) ------------------------------------------------------------------ */

uint32_t index_clock(const struct index *index); /* the tick of now; ages are counted in ticks */
/* Ticks since the value of @entry was last used. False: it cannot go now: prepared, quarantined, or of a record that is
 * pinned, held or being filled, or hidden by a reset. An entry without a value: false. */
bool index_value_age(struct index *index, uint32_t entry, uint32_t *age);
/* Of such a value: does its page keep up what an operator holds, or may it? Looked for among INDEX_EMPTY_DEPTH records that
 * hang off it, which *steps falls by. */
bool index_value_kept(struct index *index, uint32_t entry, uint32_t *steps);
/* Ticks since the last use of what index_evict_page (@row: index_evict_row) would let go first; false: nothing can. Busy
 * ones at the front are passed over, at most INDEX_STEP_KEYS of them. */
bool index_coldest_age(struct index *index, bool row, uint32_t *age);

enum { INDEX_E_MORE = 2, INDEX_E_BUSY = 3 }; /* MORE: not done yet, call again */

/* Lets the value of @entry go. One that was not used for @old ticks goes with everything that hangs off it, leaf first (along
 * a chain nothing is used later than what it hangs off); a younger one goes alone, with all its shares, and one behind which something is
 * busy or more than INDEX_EMPTY_DEPTH records or siblings deep; its page may turn hollow. None goes alone that is kept
 * (index_value_kept). A WHOLE ring goes whole. A row goes as index_evict_row lets it go.
 * *steps: records looked at and pages let go that are left to the caller's stay under the lock; falls. 0: it is gone (or
 * was no value); INDEX_E_BUSY: it is in use or kept; INDEX_E_MORE: no steps are left, call again: with INDEX_STEP_KEYS of them every
 * call gets further. */
int index_evict_value(struct index *index, uint32_t entry, uint32_t old, uint32_t *steps, const struct index_sink *sink);
#define INDEX_EMPTY_DEPTH 32u

/* An operator's pin: as long as @hold it is no victim. Kept in the tables. What it takes then is counted until it is let
 * go or goes: all values that its pages and its row can have. */
void index_hold(struct index *index, uint32_t record, bool hold);
uint64_t index_hold_bytes(const struct index *index, uint32_t record); /* what it would be counted as */
uint64_t index_held_bytes(const struct index *index);                  /* of all that are held */

/* ---- by hand --------------------------------------------------------------------------------------------------- */

enum index_removal { INDEX_REMOVED, INDEX_ABSENT, INDEX_BUSY };

/* The values of @class_mask at @key go, of a state class those of the row there, all or none. BUSY: a record that has one
 * is pinned or held, or one is not settled, or the WHOLE ring cannot go; the whole of which goes with one of its values.
 * (Of a key whose page and row are of two rings one may go and the other be BUSY.) *ret_values: how many went. @hash is the key's, of index_prefetch. */
enum index_removal index_remove(struct index *index, const struct key *key, uint64_t hash, uint32_t class_mask,
				const struct index_sink *sink, uint32_t *ret_values);
/* Classes of which the value on @page (INDEX_PAGE_ROW: at the row) is half there: some shares of it are committed and others not. 0 where
 * there is no such page. */
uint32_t index_half(const struct index *index, uint32_t record, uint16_t page);
/* Is the value half there that the one of @entry is a share of? */
bool index_value_half(const struct index *index, uint32_t entry);
/* What is half there on @page of @record, which is current, goes; of a WHOLE ring all of it. BUSY: of some of it a share is being written, or
 * the record is pinned, held or not LIVE: that stays. ABSENT: nothing is half there. *ret_values: how many went. */
enum index_removal index_drop_half(struct index *index, uint32_t record, uint16_t page, const struct index_sink *sink,
				   uint32_t *ret_values);
/* The row of a record goes. -ENODATA without a committed one; -EBUSY while the record is pinned, held, WHOLE, or
 * values of it are not settled. @record must be visible. */
int index_drop_row(struct index *index, uint32_t record, const struct index_sink *sink, struct why *why);

/* A new generation, which is returned: nothing that is there is found any more; what is not held by a pin or a plan goes with
 * index_retire. Pins stay good. Takes the same time however much there is. */
uint64_t index_reset(struct index *index);
/* An empty index is of @generation from here on, which is not 0: as it was before a restart. */
void index_begin_at(struct index *index, uint64_t generation);
uint64_t index_generation(const struct index *index);
/* Is that still one of the index's own generation? */
bool index_record_current(const struct index *index, uint32_t record);
/* Lets up to INDEX_STEP_KEYS pages go of what resets hid and nobody holds, or looks at as many records for such. False:
 * there is none left for now. *ret_values is raised by the values that went; may be NULL. */
bool index_retire(struct index *index, const struct index_sink *sink, uint64_t *ret_values);
uint32_t index_hidden(const struct index *index); /* records that resets hid and that are not gone yet */

/* ---- reading it as a tree ------------------------------------------------------------------------------------ */

/* Next visible record with a number >= *cursor; *cursor becomes its number + 1. INDEX_NONE at the end. At most
 * INDEX_STEP_KEYS records are looked at for each call: INDEX_NONE with *cursor <= index_record_limit() means "call again". */
uint32_t index_next_record(struct index *index, uint32_t *cursor);
uint32_t index_record_limit(const struct index *index); /* numbers ever used are below */

/* ---- resuming ------------------------------------------------------------------------------------------------ */

/* A walk up the chain of one record, in bounded stays under the lock. The caller's; begun for each record anew. */
struct index_walk {
	uint32_t record, generation;    /* that was asked about */
	uint32_t at, at_generation;     /* where it stands; INDEX_NONE = not begun, or ended */
	uint32_t page, pages;           /* there: looked at, and needed */
	uint32_t batch, restarts;
	uint64_t breaks;
	bool windows;                   /* it goes back over the windows' values, then over the whole chain */
	uint64_t end, low;              /* then: tokens at the boundary; values that end at or before `low` are in no window */
};
/* @batch: walks of the same one (and not 0) may believe of each other that a chain is not whole, though a commit has
 * mended it meanwhile: that makes a listing of a broken chain beside puts cost its length and not its square. Without the
 * lock. */
void index_walk_begin(struct index_walk *walk, uint32_t record, uint32_t batch);

/* Can one resume from the walk's record now: do the gates of all classes hold at its endpoint (index/gates.h)? It is visible, its chain is
 * linked to a root, every page has what it needs whatever comes behind it, each window's last values are complete, a class with longer
 * values ends one there, and with state classes the key's row is complete. (Of a row within a page, the page before it counts.) 1 or 0; INDEX_E_MORE: @budget (pages and records looked at, counted down) is used
 * up: drop the lock and call again. What changes between two stays is noticed where it matters: a chain that stays as it is
 * is never misjudged, and one that changes is judged as it was when it was looked at. Remembers what it finds about the
 * records on its way (65,536 of them), so that walking a chain of n records from each of them costs n steps. */
int index_record_restorable(struct index *index, struct index_walk *walk, uint32_t *budget);
/* Gives a walk up that answered INDEX_E_MORE last. */
void index_walk_end(struct index *index, struct index_walk *walk);

/* ---- coming back from disk (adopt.c) --------------------------------------------------------------------------- */

/* A record as a catalogue or a file describes it. All of it stays the caller's. */
struct index_adoption {
	const struct key *parent;   /* NULL = root */
	const struct key *endpoint; /* of a record without pages */
	const struct key *keys;    /* [pages] */
	const uint32_t *entries;   /* [pages][page columns], then [row columns]: ENTRY_FREE entries, INDEX_NONE = no value */
	uint64_t start;            /* tokens before the first page; of a record without pages: at its endpoint */
	uint32_t pages;            /* at most INDEX_PAGE_ROW - 1 */
	uint32_t flags;            /* RECORD_WHOLE, RECORD_PINNED */
	uint32_t whole_ring;       /* a record of the same WHOLE group, or INDEX_NONE */
	uint32_t created_s, last_use_s;
	uint32_t tick;             /* last use, for the orders; one later than now is now */
	uint32_t twice_at;         /* out, of INDEX_E_TWICE: the first page that is known already, INDEX_PAGE_ROW: the row alone */
};
enum { INDEX_E_TWICE = 4, INDEX_E_FULL = 5 };
/* Makes it a LIVE record with committed values, as if it had been put and published, without news. Orphans are linked as they
 * come, in any order. A page without a value becomes hollow, or has no name when no hollow entry is left. It is in no order,
 * so no victim, and keeps pages at its end that have no value, until index_adopt_settle has come by.
 * 0, *ret its number; when it is the twin of a record that is there the two join at once: INDEX_JOINED and INDEX_LOST_RECORD
 * are told during the call, *ret being its own number by then, and afterwards *ret is the survivor's.
 * INDEX_E_TWICE: a page of it or its row is known already, or two of its keys are the same (then twice_at is the second
 * one's page, unless another is known before); INDEX_E_FULL: no record number,
 * name or memory is left. Nothing was changed then and *ret is INDEX_NONE. Takes as long as it has pages, whatever their
 * number, under the lock. A WHOLE group counts as whole as soon as one of it is there: whoever adopts a part only lets that go. */
int index_adopt(struct index *index, struct index_adoption *adoption, uint32_t *ret);
/* Brings near what index_adopt of a record with these keys will read: for one some places ahead of the one that is adopted now.
 * @parent: NULL = root. */
void index_adopt_prefetch(const struct index *index, const struct key *parent, const struct key *keys, uint32_t pages);
/* After the last of many: no record was used later than what it hangs off, what has no use at the end of a record goes (and is
 * told as a loss, not as news), records enter the orders. *cursor is 0 at first. Ends in bounded stays, of some
 * INDEX_STEP_KEYS records: call until it is false. */
bool index_adopt_settle(struct index *index, uint32_t *cursor);

/* Tick of its last use, as the orders see it: of its last page, which was used least recently; of one in a WHOLE ring, the
 * newest of all its members. */
uint32_t index_record_last_use(const struct index *index, uint32_t record);

/* ---- proving it ---------------------------------------------------------------------------------------------- */

/* Builds the empty index from the tables alone. What was not committed goes: its entries are quarantined with their group
 * (their clients live on and may still be writing), its groups LOST. Entries that were being made or freed are free
 * afterwards and not sunk: the caller looks at the entries of its grants and at its places next. The clock of uses goes on from the
 * tables' header, and a record was last used as long ago in ticks as it was in seconds. Takes as long as there are granted entries
 * and places that were used; runs before anyone else knows the index. EINVAL: more names than max_pages; ENOMEM. */
int index_rebuild(struct index *index, struct why *why);
/* @seen is told about every 65,536 entries how many index_rebuild has looked at; NULL: nobody wants to know. */
void index_watch_rebuild(struct index *index, void (*seen)(void *context, uint64_t entries), void *context);
/* What it came across. */
struct index_rebuilt {
	uint64_t entries;      /* looked at */
	uint64_t torn_entries; /* being made, or contradicting the rest: free now */
	uint64_t torn_records, torn_groups;
};
void index_rebuilt(const struct index *index, struct index_rebuilt *ret);
/* One line per record and per value, sorted, without numbers that a rebuild may change: two indices with the same
 * content describe themselves alike. Committed content only. For tests. */
int index_describe(struct index *index, FILE *to);
/* Walks everything and aborts on the first broken invariant. For tests; holds the lock for long. */
void index_check(struct index *index);

/* Bytes of private memory that hold the index (touched, not reserved). */
size_t index_memory_bytes(const struct index *index);

#define INDEX_COUNTERS(x)                                                        \
	x(records, "records published and present")                             \
	x(pages, "pages with a committed value")                                \
	x(hollow_pages, "pages without a value whose descendants need them")    \
	x(orphans, "records whose parent is not known")                         \
	x(victims_selected, "values chosen for eviction")                       \
	x(victims_freed, "of them, freed")                                      \
	x(victims_restored, "of them, used again while they were busy")         \
	x(victims_obsolete, "of them, gone for another reason")                 \
	x(victims_pending, "of them, still busy: bytes owed")

struct index_counters {
#define X(name, help) uint64_t name;
	INDEX_COUNTERS(X)
#undef X
};
const struct index_counters *index_counters(const struct index *index); /* under the lock */

#endif
