/* SPDX-License-Identifier: Apache-2.0
 *
 * One namespace over memory and disk: which value is where, what is written, what leaves memory, what is read back
 * (docs/disk.md). Private to store/.
 *
 * A value has one entry in the index. Entries below tiering.place_first are slots of the segment; those from there on are
 * *places*: numbers that stand for "on disk only". A value changes between the two with index_value_move, under the space
 * lock: the index, its words and its orders do not know the difference.
 *
 *   dirty     its entry is a slot, the record's file lacks it
 *   clean     its entry is a slot, the file has it                           bit of the slot in the tables (index/files.h)
 *   on disk   its entry is a place                                           the file has it
 *   loading   its entry is a place, and a struct load reads it into a slot    loads_of[place] (load.c)
 *
 * A slot with holds > 0 does not leave memory and is not reused: a get plan has its address, a disk job writes it, or a waiting
 * transfer is owed it. A value may go nevertheless (REMOVE, eviction, reset): its slot's entry is then ENTRY_QUARANTINED until the
 * last hold goes. Pins of records keep what they always kept: the record and its pages' names, and, where there is no disk, its
 * slots. Disk jobs hold slots and pin nothing: a background write is in nobody's way, and is cancelled when its record goes.
 *
 * Everything here is guarded by the space lock unless it says otherwise. Without a disk tier space.tiering is NULL and nothing of
 * this runs: one test of that pointer is all it costs.
 */
#ifndef PREFIXFS_STORE_TIERING_H
#define PREFIXFS_STORE_TIERING_H

#include "index/catalogue.h"
#include "index/files.h"
#include "index/policy.h"
#include "store/adopt.h"
#include "store/disk.h"
#include "store/space.h"

#define TIERING_KNOWN 16u       /* the struct is set up */
#define TIERING_FILE_ROW 1u     /* the file has a row */
#define TIERING_TRIM 2u         /* on the list of tiering.trims: the file is longer than the record, or has a row that went */
#define TIERING_STALE 4u        /* the file has values that the index no longer has: it is written anew */
#define TIERING_FAILED 8u       /* its last write failed: tried again after tiering.retry_ns */
#define TIERING_TRIM_LATER 128u /* a trim is given when `job` has ended */
#define TIERING_ALIAS_SURE 64u  /* the file's header has that `alias`: it was written or read since the start */
#define TIERING_ROW_LOST 32u    /* on the list of tiering.trims: the row came from another record, in whose file it was */

/* What the disk tier knows about a record, by its number (tiering_file). The file is described as it will be when the jobs given have
 * ended; between the record's getting shorter and tiering_flush it is longer than the record and has its old name. */
struct record_file {
	uint64_t id;             /* row of the catalogue; 0 = no file */
	struct key endpoint;     /* of its name; consumed follows from start and pages */
	uint64_t bytes;          /* its length */
	struct disk_write *writing; /* under way and to be seen, or NULL */
	const struct disk_job *job; /* that changes the file, a write or a trim, under way: one at a time */
	uint32_t dirty;          /* dirty values */
	uint32_t clean;          /* clean values */
	uint32_t dirty_slot;     /* place in tiering.dirty, INDEX_NONE = none */
	uint32_t next_trim, prev_trim; /* list of tiering.trims */
	uint16_t pages;          /* that it has */
	uint16_t file_pages;     /* that it was written with: says where everything lies */
	uint8_t flags;           /* TIERING_* */
	uint8_t alias;           /* number in tiering.alias of what it was written with; 0: each column is stored */
	uint32_t held;           /* clean values that somebody holds */
};

#define TIERING_ALIASES 255u       /* kinds of files: which columns are aliases; mostly there are one or two */
#define TIERING_ALIAS_UNKNOWN 255u /* there were more: reads find out each time, nothing is collapsed */

#define TIERING_TIMES 7u     /* writes whose median duration counts */
#define TIERING_ASKED 64u
#define TIERING_PASSED 1024u /* records that have nothing to give, passed over in one look */

/* A record, until its number is another one's. */
struct tiering_name {
	uint32_t record, generation;
};

/* A put or a load found no slot of (class, share). */
struct tiering_wish {
	bool is;
	uint32_t class_index, share;
};

/* Records with clean values of one class, coldest first. A size that has enough room so keeps nothing that others look for from
 * being found. */
struct tiering_class {
	struct tiering *t;
	struct policy *resident; /* entered with the first clean value; left when it is looked at and has none, or goes */
	uint32_t *slot;          /* [records] place there, INDEX_NONE = none */
	uint32_t *clean;         /* [records] clean values; both through tiering_file */
};

struct reconcile;

struct tiering {
	struct space *space;
	struct disk *disk;
	struct disk_dir *dir;
	struct catalogue *catalogue;
	uint32_t place_first, place_count; /* entries */
	uint32_t place_top, place_list;    /* never used from here on; used once: list through entry.record */
	uint32_t places_used;
	uint32_t *holds;                   /* [slots] the space's */
	uint64_t *collapse;                /* bitmap [slots]: another share's slot has the same bytes: it goes when nobody holds it */
	uint64_t *kept;                    /* bitmap [slots]: was clean, and its file is no good: tiering_alike finds it all the same */
	uint16_t *alias[TIERING_ALIASES];  /* record_file_plan's; NULL: not used yet, and [0] */
	struct record_file *files;         /* [records]; through tiering_file */
	uint32_t trims;                    /* records whose files are to get shorter, through next_trim */
	struct trim *trimming;             /* follow.c: trims that were given and have not ended */
	uint32_t trimming_count;
	uint64_t disk_files;
	struct policy *dirty;              /* records to be written, coldest first */
	struct tiering_class class[LAYOUT_MAX_CLASSES];
	uint64_t clean_bytes, dirty_bytes; /* slot bytes */
	uint64_t held_clean_bytes;         /* of clean ones, those with holds */
	uint64_t disk_bytes;               /* of files, as they will be when the jobs given have ended */
	uint64_t writing_bytes;            /* of writes under way */
	uint32_t writes;                   /* under way */
	uint64_t retry_ns;                 /* no write before then: the last one failed */
	uint64_t retry_pause_ns;           /* the last pause before a try */
	uint32_t failures;                 /* writes and reads in a row that failed, but for lack of room on the disk */
	uint32_t write_failures;           /* of them, the writes: a read that succeeds forgets the others alone */
	uint64_t failing_since_ns;         /* the first of them */
	bool full;                         /* a write failed for lack of room on the disk, and the mover has not seen to it */
	bool places_short;                 /* a value could not leave memory: no place was left */
	bool closed;                       /* the disk has failed: dirty counts as clean, nothing is read or written */
	uint32_t draining, drain_newest;   /* drains under way: everything dirty is written; the newest endpoints first */
	int error;                         /* the last failure's errno, and its sentence */
	char error_text[160];
	uint32_t *loads_of;                /* [places]: load.c's, 0 = none */
	struct loads *loads;               /* load.c */
	struct viewed *viewed;             /* viewed.c */
	struct reconcile *reconcile;       /* reconcile.c, after an adoption: set before others know the space; the mover's */
	uint32_t room_waiters;             /* transfers that got no slot and wait for one */
	struct disk_write_list *writing;   /* spill.c: writes under way */
	_Atomic uint32_t jobs;             /* given to the engine and not ended */
	_Atomic bool remove;               /* the files go with the namespace */
	bool fresh, behind;                /* the catalogue, as it was opened */
	uint64_t generation;               /* that namespace.json has: the index's, or one that a reset is about to begin */
	bool saving;                       /* namespace.json is being written */
	struct lock_cond saved;            /* told when it was */
	uint64_t foreign_files, foreign_bytes; /* of another writer or a newer version: left alone */
	uint64_t put_bytes_s, write_ns;    /* rates: of puts; median duration of the last writes */
	uint64_t looked_bytes, floor_bytes; /* what had been put, and the floor, when spill_run looked last */
	uint64_t rate_ns, rate_bytes;      /* when the rate of puts was looked at last, and what had been put by then */
	uint64_t write_times[TIERING_TIMES]; /* of the last writes */
	uint32_t write_count;              /* ever */
	struct tiering_wish wish;          /* spill_wish */
	struct tiering_name asked[TIERING_ASKED]; /* records that are to be written before others: ring */
	uint32_t asked_first, asked_count;
	uint32_t passed[TIERING_PASSED];   /* demote.c's while it looks */
	uint32_t place_sweep;              /* mover.c: with the tier closed, places below are gone */
	uint64_t expire_at_s;              /* demote.c: when ages are looked at next */
	uint64_t disk_bytes_s[3];          /* of the last three reads; 0 = none yet */
	uint32_t rate_at;
};

/* ---- tiering.c: its making, its places, what values are ---------------------------------------------------------------- */

/* Gives @space, which is being made, a disk tier in @disk: opens folder and catalogue; the records come with
 * tiering_restart. */
int tiering_new(struct space *space, struct disk *disk, uint32_t place_first, uint32_t place_count, struct why *why);
/* Waits for the jobs under way, then frees. @remove: the files go too, with the folder that is returned, set aside, for disk_dir_close; the
 * layout outlives it. Else NULL. No session is open. Without the lock; blocks. */
struct disk_dir *tiering_free(struct tiering **tiering, bool remove);
/* Places that a disk of @bytes can need for @layout's values. */
uint32_t tiering_places(const struct layout *layout, uint64_t bytes);

static inline bool tiering_is_place(const struct tiering *t, uint32_t entry)
{
	return entry >= t->place_first; /* hollow entries are no values and are never asked about */
}

static inline bool tiering_is_clean(const struct tiering *t, uint32_t slot)
{
	return files_is_clean(&t->space->tables, slot);
}

/* What @f was written with, as disk_read wants it. */
static inline const uint16_t *tiering_file_alias(const struct tiering *t, const struct record_file *f)
{
	return f->alias == TIERING_ALIAS_UNKNOWN ? NULL : t->alias[f->alias];
}

void tiering_report(const struct tiering *t, struct space_report *ret); /* fills its disk fields */
size_t tiering_memory_bytes(const struct tiering *t); /* touched, about: arrays, orders, loads */
struct record_file *tiering_file(struct tiering *t, uint32_t record);
uint64_t tiering_file_consumed(const struct tiering *t, uint32_t record); /* of its file's name now */
static inline bool tiering_has_value(const struct tiering *t, uint32_t entry) /* its entry is a value's (not quarantined, not free) */
{
	return t->space->tables.entries[entry].state == ENTRY_VALUE;
}

uint32_t tiering_place_take(struct tiering *t);             /* INDEX_NONE: none is left */
void tiering_place_give(struct tiering *t, uint32_t place); /* its entry is ENTRY_FREE */
void tiering_hold(struct tiering *t, uint32_t slot);
void tiering_unhold(struct tiering *t, uint32_t slot);      /* the last one makes room: space_room */

/* Called where values come and go, always under the lock: */
void tiering_committing(struct tiering *t, uint32_t entry); /* before index_settle, which may hand a row to another record: dirty */
void tiering_committed(struct tiering *t, uint32_t entry);  /* after index_settle: its record is to be written */
void tiering_published(struct tiering *t, uint32_t record); /* after index_record_publish and index_record_abandon */
void tiering_freed(struct tiering *t, uint32_t entry);      /* from the sink: place or slot; before slots_give */
/* The value of @slot, which is dirty, is in its record's file from now on; and the other way round. */
void tiering_make_clean(struct tiering *t, uint32_t slot);
void tiering_make_dirty(struct tiering *t, uint32_t slot);
/* The committed value of @slot, which a predecessor left there, counts as its bit says. */
void tiering_count(struct tiering *t, uint32_t slot);
/* The value of @slot is not clean any more, @f being its record's file until now. */
void tiering_unclean(struct tiering *t, uint32_t slot, struct record_file *f);
/* The slot that has the bytes of @place's value: that of a share whose bytes the file has for both (P6), while that one is in memory
 * as the file had it. INDEX_NONE: none. */
uint32_t tiering_alike(struct tiering *t, uint32_t place);
/* Of a value that a file was written with: when it is an alias and the other one is in memory too, it goes on as a place, whose bytes
 * that slot has; at once, or when nobody holds it any more. */
void tiering_collapse(struct tiering *t, uint32_t slot);
/* The number of a file's aliases, of @count columns (none: each is stored). */
uint8_t tiering_alias_of(struct tiering *t, const uint16_t *alias, uint32_t count);
/* The clean value of @slot goes on as @place; the slot is free, or quarantined while it is held. */
void tiering_demote(struct tiering *t, uint32_t slot, uint32_t place);
/* The value of @place goes on in @slot, which is clean then; the place is given back. */
void tiering_promote(struct tiering *t, uint32_t place, uint32_t slot);
/* Has @record to be written, and is in the order of those? Enters it or takes it out. */
void tiering_consider(struct tiering *t, uint32_t record);

/* ---- follow.c: the file follows what the index lets go, its row follows the file ------------------------------------------- */

/* index_config.lost: what the index let go, so that the file follows. Removals are given at once; what got shorter is noted. */
void tiering_lost(void *context, enum index_loss what, uint32_t record, uint32_t other);
/* Gives @job, whose done() calls tiering_job_ended last. */
void tiering_give(struct tiering *t, struct disk_job *job);
void tiering_job_ended(struct tiering *t); /* without the lock */
/* Gives the trims that are noted, at most INDEX_STEP_KEYS, or puts them off until the job of their record has ended; true: there are more.
 * Before any write is given, in the same stay, it has answered false: a name that a record has left may be another one's next. */
bool tiering_flush(struct tiering *t);
/* A file that no record has goes. */
void tiering_remove_file(struct tiering *t, uint64_t consumed, const struct key *endpoint);
/* A reset: all files go at once, writes under way are cancelled. In the stay of index_reset, after it. */
void tiering_reset(struct tiering *t);
/* Is a file of that name to be renamed by a trim that has not ended, or is put off? No write is given that name before it has: or a death
 * would leave a row that takes the new file for the old one. True also where there are too many to look. */
bool tiering_name_owed(struct tiering *t, uint64_t consumed, const struct key *endpoint);
/* The row of @record says from here on what its record_file does; @stale: that it is to be written anew, whatever that says. */
void tiering_row_set(struct tiering *t, uint32_t record, bool stale);
/* Has the file, as its row says, the value of @entry? */
bool tiering_row_covers(const struct tiering *t, uint32_t entry);
void tiering_file_stale(struct tiering *t, uint32_t record);         /* it is to be written anew; row and order are told */
void tiering_file_alias_unknown(struct tiering *t, uint32_t record); /* its header says otherwise than record_file.alias */
/* @job, which changed the file of @record, has ended and what came of it is noted: what waited for that goes on. */
void tiering_file_settled(struct tiering *t, uint32_t record, const struct disk_job *job);

/* ---- spill.c: writing ------------------------------------------------------------------------------------------------- */

/* Looks whether something must be written, and gives it to the disk: when free + clean are under the floor, when
 * draining, when a size has refused a put. At most SPILL_WRITES_MOST under way. Without the lock, from the tier thread. */
void spill_run(struct tiering *t);
uint64_t spill_intake(const struct tiering *t); /* bytes that a request or two may bring; likewise what is read ahead of transfers */
uint64_t spill_floor(const struct tiering *t); /* bytes that are to be free or clean */
void spill_cancel_all(struct tiering *t);      /* a reset: no write under way is to be seen; under the lock */
/* Under the lock: a put or a load found no slot of (class, share) and nothing to demote: something is written soon. */
void spill_wish(struct tiering *t, uint32_t class_index, uint32_t share);
/* Under the lock: the dirty value of @slot stands in the way: its record is written soon. */
void spill_ask(struct tiering *t, uint32_t slot);
/* Under the lock: tiering_name_owed of what waits for a write. */
bool spill_name_owed(struct tiering *t, uint64_t consumed, const struct key *endpoint);
int spill_new(struct tiering *t, struct why *why);
void spill_free(struct tiering *t); /* no job is under way */
/* Any thread, without the lock: an operation of the disk ended so (0 or a negative errno; @read: of a read, whose success says
 * nothing about writing). Closes the tier when it is to be. */
void tiering_result(struct tiering *t, int error, bool read);
#define TIERING_PLACES_MOST ((1u << 29) - TABLES_GRANT_ENTRIES)
#define TIERING_CLOSE_NS 5000000000ull /* for what the catalogue has in its queue */
#define SPILL_WRITES_MOST 16u
#define SPILL_BYTES_MOST (256ull << 20)

/* ---- demote.c: leaving memory, leaving the disk -------------------------------------------------------------------------- */

/* Lets clean values of (class, share) without holds go to disk until @want slots are free, coldest records first, tails first;
 * at most INDEX_STEP_KEYS values in one call. In acknowledged grants of @filter. Returns free slots there. */
uint32_t demote_make_room(struct tiering *t, uint32_t class_index, uint32_t share, uint32_t want, struct slots_filter filter);
/* Under the lock: the same of any size, at most @bytes, a stay's worth. Returns bytes of slots; 0: nothing is clean and idle. */
uint64_t demote_some(struct tiering *t, uint64_t bytes, uint64_t *values);
/* Under the lock: one clean value goes, with all of its WHOLE group; false: it (or one of them) is dirty or held, or no place is left. */
bool demote_value(struct tiering *t, uint32_t slot);
void demote_places_short(struct tiering *t); /* under the lock: there is none for what is to leave memory */
/* Lets records go, leaf first, coldest first, until @bytes of files have gone (or, with 0, places where they were short), or
 * nothing may go. In bounded stays; from the tier thread. Returns the bytes. */
uint64_t demote_disk(struct tiering *t, uint64_t bytes);
/* Records that were not used for so long as the host says go, leaf first. Looks once a minute; in bounded stays; from the tier
 * thread. @now_s: clock_wall_s(). */
void demote_expired(struct tiering *t, uint64_t now_s);
#define DEMOTE_EXPIRE_EVERY_S 60u

/* ---- rings.c: WHOLE groups ----------------------------------------------------------------------------------------------- */

/* All under the lock, each in one stay. Is @record of one? */
bool ring_is(const struct tiering *t, uint32_t record);
/* All of the group that is in memory leaves it; 0: something of it is dirty or held, or there are too few places. Returns values, and bytes
 * of slots. */
uint32_t ring_demote(struct tiering *t, uint32_t record, uint64_t *bytes);
/* A value of the group cannot be read: every value of it goes, held slots when nobody holds them any more. Of any namespace. */
void ring_lose(struct space *space, uint32_t record, const struct index_sink *sink);

/* ---- load.c: reading back (P3) --------------------------------------------------------------------------------------------- */

/* A value's read. One per place, belongs to nobody; wanters are counted and detach one by one, the last one cancels what has not
 * begun. When it has ended its slot is held once for each wanter that asked for that. When its place goes meanwhile
 * (tiering_freed) it is an orphan: its slot is given back when the read has ended, and nothing becomes of the bytes. Only a wrong
 * checksum or key, a file that is not there or too short, and an error of the disk that came twice make the value go; anything
 * else (ENOMEM, EMFILE, ECANCELED) leaves the place as it was. Named by number and generation. */
struct load_name {
	uint32_t number, generation; /* number 0: none */
	bool hold;                   /* as it was wanted */
};

int loads_new(struct tiering *t, struct why *why);
void loads_free(struct tiering *t);
void load_place_gone(struct tiering *t, uint32_t place); /* its value went or moved: a load of it is an orphan */

enum load_state { LOAD_NONE, LOAD_COMING, LOAD_HERE, LOAD_FAILED };

/* Wants the value at @page, @column of @record, which is pinned, in memory, in a grant of @filter. HERE: it is, its slot (*entry)
 * is held once for the caller (@hold). COMING: *name was begun or joined (*joined), the caller detaches it in the end. NONE: no
 * slot is to be had now: none is free, none can be demoted; a grant was asked for as PUT_START would. FAILED: there is no such
 * value any more. Without @hold (GET_START ahead of its transfer) the value ends clean and held by nobody. A load that was
 * cancelled and is wanted again is begun again. */
enum load_state load_want(struct tiering *t, uint32_t record, uint32_t page, uint32_t column, bool hold, struct slots_filter filter,
			  struct load_name *name, uint32_t *entry, bool *joined);
/* What became of it. HERE: *entry, held once for the caller (if it wanted that), and the caller is detached; FAILED, the value cannot
 * be had any more, and NONE, nothing is known about it (want it again): likewise detached. */
enum load_state load_ask(struct tiering *t, struct load_name name, uint32_t *entry);
void load_detach(struct tiering *t, struct load_name name); /* its hold goes too */
uint64_t loads_bytes(const struct tiering *t); /* of slots that are being read into */
/* Gives what load_want queued to the disk, merged per record. Under the lock; at the end of each stay that wanted something. */
void load_submit(struct tiering *t);

/* Reads what stands at @offset of `pages` (@row: of `row`) as far as it is on disk, for the mount, without promotion. Bytes read, at
 * least one, from what is kept of an earlier read (viewed.c) or from the file; -EAGAIN: it is in memory now. -ENODATA where absent;
 * -ENOENT: the record is gone; -EIO, -ENOMEM. What fails its check is gone afterwards. Without the lock; blocks, a minute at most for
 * each of two reads and for the same one of somebody else. */
ssize_t load_read_file(struct space *space, uint32_t number, uint32_t generation, bool row, uint64_t offset, void *to, size_t bytes);

/* ---- mover.c: the thread of the tier -------------------------------------------------------------------------------------- */

/* One for the host: runs spill_run, demote_disk, tiering_flush and what is due for every namespace with a tier; looks again at once when
 * it is asked, else every 100 ms. Takes no lock while it waits. */
int mover_new(struct host *host, struct why *why);
/* Its thread ends; jobs of the disk that are still to end may ask it. A second call does nothing. Blocks for the step that is under way. */
void mover_stop(struct host *host);
/* After mover_stop and after the last job of the disk: buries what is left. Blocks. */
void mover_free(struct host *host);
void mover_ask(struct host *host);      /* any thread, any lock; until mover_free */
uint64_t mover_limit(struct host *host); /* bytes of record files that there may be now */
/* The last reference of a space with a tier is gone: it is torn down by the mover, who may block. */
void mover_bury(struct space *space);

/* ---- restart.c ------------------------------------------------------------------------------------------------------------ */

/* Fills the index from catalogue and listing, or from the files. Before anyone else knows the space; blocks. */
int tiering_restart(struct tiering *t, struct why *why);
int tiering_open_catalogue(struct tiering *t, struct why *why);

/* ---- adopt_disk.c ----------------------------------------------------------------------------------------------------------- */

/* Instead of tiering_restart, where the tables are a predecessor's (step 7 of store/adopt.h): what is clean, dirty and on disk is what rows
 * and bits say; a place that no row covers goes; trims that are owed are given, what is dirty is in the order of what is to be written; a
 * reset that namespace.json knows and the tables do not is finished; what the folder and the catalogue have is compared behind
 * (store/reconcile.h). After index_rebuild and slots_rebuild; holds may have been taken since. @adoption: its progress, NULL = none. Adds
 * to @report. Opens, lists and reads nothing; takes as long as there are records, granted slots and places. Without the lock, before
 * anyone else knows the space. ENOMEM. */
int tiering_adopt(struct tiering *t, const struct adoption *adoption, struct adopt_report *report, struct why *why);
/* The same where the disk's lock did not come, or there is no disk any more: values in places [@first, + @count) go, no row and no bit says
 * anything. The space has no tiering. */
void tiering_adopt_none(struct space *space, uint32_t first, uint32_t count, struct adopt_report *report);

/* namespace.json: what a restart makes the namespace from. Written at its making and when its access changes. Blocks. */
int tiering_save_space(struct space *space, struct why *why);
/* The same with the next generation, before a reset begins it: what is on disk of older ones is found by no restart any more. Without
 * success the number stays what it was. Any thread; a second one waits for the first. */
int tiering_save_reset(struct space *space, struct why *why);
/* The generation that namespace.json has, 1 where there is none that is understood. Blocks. */
uint64_t tiering_saved_generation(struct disk_dir *dir);


#endif
