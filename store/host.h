/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's store: its memory budget, its namespaces ("spaces"), and the sessions open on them.
 *
 * Thread-safe throughout. What it tells the room above, it tells through struct host_events; no lock is held then, but
 * for `record_gone` and `changed`, which are called under the space lock and may only note and return.
 */
#ifndef PREFIXFS_STORE_HOST_H
#define PREFIXFS_STORE_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "index/demands.h"
#include "index/layout.h"
#include "index/tables.h"
#include "store/segment.h"
#include "store/stats.h"

#define HOST_MAX_SPACES 64u
#define HOST_MAX_SESSIONS 4096u
#define HOST_MAX_NAME 64u /* bytes of a namespace's name: [A-Za-z0-9._-], not beginning with a dot */
#define HOST_MIN_MEMORY (16ull << 20)

struct blobs;
struct disk_ops;
struct host;
struct space;
struct session;

enum host_change {
	HOST_CHANGED_COMMIT, /* values became readable: what waits for them may look again */
	HOST_CHANGED_ROOM,   /* slots became free after a NOROOM */
	HOST_CHANGED_RANGES, /* the granted ranges' version rose */
};

/* What happened, for whoever watches (docs/view.md, events). */
enum host_event_kind {
	HOST_EVENT_STORED,      /* record, pages, number = values of its row */
	HOST_EVENT_EVICTED,     /* record, pages, why: all of it went */
	HOST_EVENT_TRIMMED,     /* record (its name now), pages that went, why */
	HOST_EVENT_ROW_DROPPED, /* record, why */
	HOST_EVENT_PINNED,      /* record */
	HOST_EVENT_UNPINNED,    /* record */
	HOST_EVENT_CORRUPT,     /* record, pages = page number */
	HOST_EVENT_SPILLED,     /* record, pages, number = bytes of its file: it was written */
	HOST_EVENT_DEMOTED,     /* record, pages = values, number = bytes of their slots: they are on disk only now */
	HOST_EVENT_ROOM,
	HOST_EVENT_GRANT,       /* bytes, class_index, share */
	HOST_EVENT_RECUT,       /* bytes, class_index, share: what it is for now */
	HOST_EVENT_RESET,       /* number = generation */
	HOST_EVENT_SPACE_CREATED,
	HOST_EVENT_SPACE_REMOVED,
	HOST_EVENT_SESSION_ATTACHED, /* number = session, pid */
	HOST_EVENT_SESSION_ENDED,    /* number = session, pid */
};

enum host_event_why {
	HOST_WHY_ROOM, /* memory was wanted */
	HOST_WHY_HAND,
	HOST_WHY_LOST, /* a part was lost, and so the rest is of no use */
	HOST_WHY_DISK, /* the disk's limit */
	HOST_WHY_AGE,  /* not used for host_config.expire_s */
};

struct host_event {
	enum host_event_kind kind;
	enum host_event_why why;
	uint64_t consumed;   /* of a record's name */
	struct key endpoint; /* likewise */
	uint64_t number, bytes;
	uint32_t pages, class_index, share;
	pid_t pid;
};

struct host_events {
	void *context;
	/* Under the space lock or none (SPACE_CREATED and SPACE_REMOVED: none at all): note copies of @count events, in
	 * this order and without others in between, return. @space is never NULL, @count at most 64. Of SPACE_CREATED and
	 * SPACE_REMOVED @count is 1. */
	void (*note)(void *context, struct space *space, const struct host_event *events, uint32_t count);
	/* Under the space lock, or of blobs under none: note it, return. Told only while somebody waits (COMMIT) or was refused (ROOM). */
	void (*changed)(void *context, struct space *space, enum host_change what);
	/* Under the space lock: a record whose name the kernel may know is gone or has another name now. */
	void (*record_gone)(void *context, struct space *space, uint64_t consumed, const struct key *endpoint);
	/* A descriptor that should outlive this process: `what` is "segment", "tables" or "session". Borrowed. */
	void (*keep)(void *context, const char *what, const char *name, uint64_t number, int fd);
	/* No lock is held: the floor of a namespace is there, or what of it found memory. */
	void (*populated)(void *context);
};

struct host_config {
	uint64_t memory_bytes;      /* budget for values, slots' padding included */
	enum segment_wish wish;
	bool populate;              /* false: grants are handed out unpopulated (benchmarks of the index only) */
	unsigned populate_threads;  /* 1..64 */
	uint32_t handle_ttl_ms;     /* 60,000 */
	uint32_t fill_ttl_ms;       /* 60,000 */
	uint32_t token_ttl_ms;      /* 10,000 */
	const char *memory_fault;   /* tier_fault_new specification for reads of the mount, or NULL */
	const char *disk_path;      /* the record directory, or NULL: memory only */
	uint64_t disk_bytes;        /* of all record files; 0 = a tenth of what is free at start */
	unsigned disk_workers;      /* 1..16 */
	bool disk_sync;             /* durability: data is synced before a file counts */
	bool disk_only;             /* memory is intake alone: everything is written at once and leaves when it is not in use */
	bool disk_plain;            /* without io_uring */
	bool disk_late;             /* a serving process has died before: its lock may come too late */
	const char *disk_fault;     /* disk_ops_fault_new specification, or NULL */
	struct disk_ops *disk_ops;  /* for tests: what the engine is to use, its own from then on; or NULL */
	uint64_t expire_s;          /* a record that was not used for so long goes; 0 = never */
	/* The last numbers that were given out, by whoever was host here before too; raised before one is. NULL: counted from 1. Borrowed. */
	_Atomic uint64_t *last_session, *last_serial;
	struct host_events events;
};

/* Where disk_path cannot be used there is no disk tier and host_disk_report says why: that is no error. EWOULDBLOCK, when
 * another daemon has it, is one, but not with disk_late. */
int host_new(const struct host_config *config, struct host **ret, struct why *why);
/* Ends every session and space. No call may be under way. What is dirty is lost: host_drain first. */
void host_free(struct host **host);

struct space_access {
	uid_t uid;
	gid_t gid;
	mode_t mode; /* permission bits of the namespace directory */
};

/* ---- the disk tier as a whole (docs/disk.md) ------------------------------------------------------------------ */

enum host_disk_state { HOST_DISK_NONE, HOST_DISK_OK, HOST_DISK_FULL, HOST_DISK_FAILING, HOST_DISK_CLOSED, HOST_DISK_REFUSED };

struct host_disk_report {
	enum host_disk_state state; /* NONE: not asked for; FULL: writes find no room and are tried again;
				     * FAILING: likewise, but something else is wrong; CLOSED, REFUSED: see text */
	char text[200];             /* what is wrong, or empty */
	const char *path;
	uint64_t limit_bytes, used_bytes; /* of record files, as they will be when the work given has ended */
	uint64_t dirty_bytes, clean_bytes; /* in memory */
	uint64_t files;
	uint64_t foreign_files, foreign_bytes; /* of another writer, a newer version or a folder that no namespace has: left alone */
	uint64_t unused_folders;           /* that a namespace should have: damaged, or it could not be made */
	char unused_text[220];             /* one of them, and what is wrong; or empty */
	uint64_t free_bytes, total_bytes;  /* of its file system */
	uint64_t read_bytes, written_bytes, reads, writes, read_errors, write_errors, checksum_errors;
	uint64_t jobs, memory_bytes;       /* under way; of the daemon's, besides segments and index */
	bool uring, direct;
	uint64_t catalogue_queued, catalogue_dropped;
	uint64_t comparing;                /* namespaces that were adopted and whose files and catalogue are being compared with the tables */
	uint64_t compared_removed, compared_missing; /* files so far that were too many, and that were not there */
};
void host_disk_report(struct host *host, struct host_disk_report *ret);

/* Namespaces that the directory holds: calls @found for each, which may create it (host_space_create finds its files). @text is
 * the layout's JSON, @floor_bytes what it was promised, 0 where that is not known. @damaged: for each folder whose namespace.json
 * cannot be understood, with the sentence. Folders without one are counted as foreign. Blocks. */
void host_disk_spaces(struct host *host,
		      void (*found)(void *context, const char *name, const char *text, size_t bytes, uint64_t floor_bytes,
				    const struct space_access *access),
		      void (*damaged)(void *context, const char *folder, const char *text), void *context);
/* The folder has no namespace, for what @text says: its files count as foreign in the report until one has it. Once a folder. Blocks. */
void host_disk_unused(struct host *host, const char *folder, const char *text);

enum host_drain { HOST_DRAIN_FULL, HOST_DRAIN_NEWEST };
/* Has what is dirty written, of one namespace or (NULL) of all; NEWEST: the newest endpoints first. Until @deadline_ns
 * (clock_now_ns); blocks. *left: dirty bytes that are left. ENODEV without a disk, EIO when it is closed, ETIMEDOUT; @progress,
 * if not NULL, is called about ten times a second and returns false to stop (EINTR). */
int host_drain(struct host *host, struct space *space, enum host_drain how, uint64_t deadline_ns,
	       bool (*progress)(void *context, uint64_t done, uint64_t goal), void *context, uint64_t *left, struct why *why);

#define SPACE_CHECK_NAMES 16u

/* Looks at every record file of a namespace: header, keys, every value's checksum. In steps of one file; it begins zeroed. */
struct space_check {
	uint32_t cursor;         /* private */
	uint32_t names;          /* of the first bad files, as they were called */
	struct space_check_name {
		uint64_t consumed;
		struct key endpoint;
	} name[SPACE_CHECK_NAMES];
	uint64_t files, bad_files, values, bad_values, bytes; /* so far */
	uint64_t files_in_all;   /* about */
};
/* 1: call again, 0: the end, or an error (ENODEV). What is bad goes (event corrupt). Blocks for the reads of one file. */
int space_check_step(struct space *space, struct space_check *check, struct why *why);

/* The same without a daemon: takes the directory's lock. */
struct disk_check_options {
	bool repair;    /* bad values' files are removed or cut, wrong lengths and names put right */
	bool rebuild;   /* catalogues are made anew */
	bool values;    /* read every value, not only headers and keys */
	struct disk_ops *ops; /* for tests: what the engine is to use, its own from then on; or NULL */
};
struct disk_check_report {
	uint64_t namespaces, files, foreign, bytes, bad_headers, bad_keys, bad_values, wrong_names, left_over, repaired, removed;
	uint64_t rows, rows_without_file, files_without_row;
	uint64_t wrong_lengths, wrong_rows, broken_groups; /* groups: WHOLE ones that lack files */
	uint64_t unreadable, unrepaired; /* files that gave errors, folders without a good namespace.json: left alone; what could not be put right */
};
int disk_check(const char *path, const struct disk_check_options *options, bool (*progress)(void *context, uint64_t done, uint64_t goal),
	       void (*finding)(void *context, const char *file, const char *what), void *context, struct disk_check_report *ret,
	       struct why *why);
const struct host_config *host_config(const struct host *host);

/* Is @name allowed for a namespace? EINVAL or ENAMETOOLONG with the sentence. */
int host_check_name(const char *name, size_t bytes, struct why *why);

/* ---- namespaces ---------------------------------------------------------------------------------------------- */

/* Creates a namespace; @layout becomes the space's, on failure too it is freed. Its floor (layout's; default a quarter of
 * the budget, at most half of what no floor was promised) is promised, and populated in the background as far as others
 * do not hold more than theirs. EEXIST, ENOSPC (floors' sum over the budget: names both; or as many as one host has),
 * EINVAL (floor cannot hold one grant of each class and share), ENOMEM. *ret is referenced for the caller. */
int host_space_create(struct host *host, const char *name, struct layout *layout, const struct space_access *access,
		      struct space **ret, struct why *why);
/* Removes it from view and frees it with its last reference. EBUSY while sessions are open. */
int host_space_remove(struct host *host, const char *name, struct why *why);
struct space *space_ref(struct space *space);
void space_unref(struct space **space);

uint32_t space_serial(const struct space *space);
const char *space_name(const struct space *space);
const struct layout *space_layout(const struct space *space);
void space_access(struct space *space, struct space_access *ret);
void space_set_access(struct space *space, const struct space_access *access);
struct segment *space_segment(struct space *space);
uint64_t space_generation(const struct space *space); /* 1, and one more with each RESET; without a lock */
uint64_t space_created_s(const struct space *space); /* wall clock; the same after an adoption */
uint64_t space_floor_bytes(const struct space *space); /* what it was promised; never changes */

/* Its blobs (store/blobs.h), or NULL: its layout gives it no share for them. For as long as the space is referenced. */
struct blobs *space_blobs(const struct space *space);

/* A snapshot of everything that is counted. */
struct space_report {
	struct stats stats;
	uint64_t budget_bytes;   /* the most it may have now: its floor or grants, and what is free */
	uint64_t may_take_bytes; /* of it, what it has not been granted yet */
	uint64_t surplus_bytes;  /* granted above its floor */
	uint64_t floor_bytes;
	uint64_t granted_bytes;
	uint64_t grants_short;   /* grants in a row that found no memory; 0 once one does */
	uint64_t resident_bytes; /* of the segment, as the file system counts */
	uint64_t slots, slots_free, payload_bytes, slot_bytes;
	uint64_t records, pages, hollow_pages, orphans; /* what a reset hid included, until it is gone */
	uint64_t records_filling; /* in which something may be half there */
	struct demands_counters demands;
	uint64_t remnants, remnant_slots; /* sessions of before an adoption, and slots that are kept for them */
	uint64_t generation, hidden_records;            /* of the namespace; of older ones */
	uint64_t pinned_bytes, pinned_limit_bytes;      /* by operators */
	uint64_t victims_selected, victims_freed, victims_restored, victims_obsolete, victims_pending;
	uint64_t index_bytes, table_bytes; /* memory of the index; touched memory of the tables */
	uint64_t prewarm_done, prewarm_goal; /* bytes */
	bool disk;                           /* it has a disk tier */
	uint64_t disk_bytes, disk_files;     /* of its record files */
	uint64_t disk_values;                /* on disk only */
	uint64_t dirty_bytes, clean_bytes;   /* slots whose bytes are not, are on disk too */
	uint64_t spill_floor_bytes;          /* that are to be free or clean */
	uint64_t blobs, blobs_limit;         /* found; and as many as there may be */
	uint64_t blob_bytes;                 /* of their units, those being written or read out included */
	uint64_t blob_granted_bytes, blob_limit_bytes; /* taken of the share; the share */
};
void space_report(struct space *space, struct space_report *ret);

/* The `stats` file: "name value" lines. Returns the whole length; writes at most @capacity bytes. */
size_t space_stats_text(struct space *space, char *to, size_t capacity);

struct space_class_report { /* of one (class, share) */
	uint32_t class_index, share;
	uint64_t slot_bytes;
	uint64_t grants, slots, slots_free; /* of ready grants that are not being emptied */
};
/* In order of classes, then shares; false: there is no such number. The lock is held for one of them. */
bool space_class(struct space *space, uint32_t number, struct space_class_report *ret);

struct space_range { /* a ready grant */
	uint64_t offset, length, slot_bytes;
	uint32_t id, generation, class_index, share, node;
};
/* Ready grants from the @first-th on; returns how many were written, *total how many there are. */
uint32_t space_ranges(struct space *space, uint32_t first, struct space_range *ranges, uint32_t capacity,
		      uint32_t *total, uint64_t *version);

uint64_t space_ranges_version(struct space *space);

struct host_report {
	uint64_t memory_bytes, floors_bytes, granted_bytes, used_bytes;
	uint64_t free_bytes; /* for whoever is at its floor or above it */
	uint64_t owed_bytes; /* held above floors, though others' floors need it */
	uint32_t spaces, sessions;
};
void host_report(struct host *host, struct host_report *ret);
/* Is memory of a floor still being populated? */
bool host_populating(struct host *host);

/* ---- records, for the mount ---------------------------------------------------------------------------------- */

struct record_info {
	uint32_t number, generation; /* of the record: both name it until it is gone */
	struct key endpoint, parent;
	bool root, orphan, whole, pinned;
	uint64_t consumed;
	uint32_t pages;
	uint32_t pins, children;
	uint32_t row_values;      /* values in its row; 0 = page-only */
	uint64_t page_bytes;      /* length of `pages`: pages x page stride */
	uint64_t row_bytes;       /* length of `row`, 0 = none */
	uint64_t values, absent;  /* page values present and missing */
	int64_t created_s, last_use_s;
	uint64_t hits;            /* GET_STARTs that used it */
	uint64_t memory_values;   /* values in memory, row included */
	uint64_t dirty_values;    /* of them, those that are in memory alone, where there is a disk */
	uint64_t file_bytes;      /* of its record file; 0 = none */
	bool parent_visible;      /* the parent record is linked and visible */
	struct key parent_endpoint;
	uint64_t parent_consumed;
};

struct record_label { /* a record in a listing */
	uint32_t number, generation;
	uint64_t consumed;
	struct key endpoint;
};

/* Visible records from *cursor (a record number, 0 at first) on, in the order of their numbers, which stay while others come
 * and go. Returns how many of @capacity were written, 0 at the end only; *cursor goes on behind the last. The lock is held
 * for at most 64 records at a time. */
uint32_t space_record_list(struct space *space, uint32_t *cursor, struct record_label *ret, uint32_t capacity);
/* Next visible record at or after *cursor (a record number); 1, or 0 at the end. Never holds the lock for long. */
int space_record_next(struct space *space, uint32_t *cursor, struct record_info *ret);
/* By endpoint key; -ENOENT. Marks its name as known to the kernel when @known. */
int space_record_find(struct space *space, const struct key *endpoint, bool known, struct record_info *ret);
/* By number and generation; -ENOENT once it is gone. */
int space_record_get(struct space *space, uint32_t number, uint32_t generation, struct record_info *ret);
/* Evicts it whole: -EBUSY, -ENOTEMPTY, -ENOENT. With @check_only nothing is done but the checks. */
int space_record_evict(struct space *space, uint32_t number, uint32_t generation, bool check_only, struct why *why);
/* An operator's pin, kept until it is taken back, the record goes or the namespace is reset; idempotent. -ENOSPC over a tenth
 * of the floor: the sentence has both numbers; -ENOENT. Short, under the space lock. */
int space_record_pin(struct space *space, uint32_t number, uint32_t generation, struct why *why);
int space_record_unpin(struct space *space, uint32_t number, uint32_t generation, struct why *why);
/* The row goes. -ENODATA without one, -ENOENT, -EBUSY while the record is pinned by anybody, WHOLE or being filled. */
int space_record_drop_row(struct space *space, uint32_t number, uint32_t generation, struct why *why);
/* Bytes of `pages` (@row false) or `row` from @offset on: page, class, share, each value with its padding. At most
 * @bytes, short only at the end; the record is pinned meanwhile, so bytes are never another's. -ENODATA where a value is
 * absent, -ENOENT, -EIO. Blocks on the tier. */
ssize_t space_record_read(struct space *space, uint32_t number, uint32_t generation, bool row, uint64_t offset,
			  void *to, size_t bytes);

/* Bytes of its record file (`raw`), as they lie there: nothing is checked. 0 at the end; -ENOENT: the record or its file is gone.
 * Blocks on the disk. */
ssize_t space_record_read_raw(struct space *space, uint32_t number, uint32_t generation, uint64_t offset, void *to,
			      size_t bytes);
/* That file, for reading: a descriptor, the caller's; what becomes of the record does not change what it reads, but for a trim, which
 * shortens the file. -ENOENT as above. Blocks on the disk. */
int space_record_open_raw(struct space *space, uint32_t number, uint32_t generation);

/* ---- what one can resume from (docs/view.md, checkpoints) ------------------------------------------------------ */

/* As space_record_list, of those records that one can resume from now. A chain of n records costs n steps to list; that it
 * is broken is believed until a value is committed, and within one @listing (any number that others do not have) for a
 * quarter of a second. */
uint32_t space_checkpoint_list(struct space *space, uint64_t listing, uint32_t *cursor, struct record_label *ret,
			       uint32_t capacity);
/* By endpoint key; -ENOENT: there is no such record, or one cannot resume from it now. A look at its chain that nobody has
 * looked at before takes a step a record, in stays of 64 under the lock. */
int space_checkpoint_find(struct space *space, const struct key *endpoint, struct record_info *ret);
/* By number and generation. */
int space_checkpoint_get(struct space *space, uint32_t number, uint32_t generation, struct record_info *ret);

/* ---- one page by its key ----------------------------------------------------------------------------------------- */

struct page_info {
	uint64_t bytes;    /* of all its values, class after class, share after share, each with its padding */
	uint64_t consumed; /* tokens at its end */
	int64_t created_s, last_use_s; /* of its record */
};
/* -ENOENT: none of its values is there. */
int space_page_find(struct space *space, const struct key *key, struct page_info *ret);
/* Bytes of the page from @offset on, as space_record_read of its place in `pages`. The key is looked up anew: its own bytes
 * wherever it stands meanwhile, -ENOENT when it has gone. */
ssize_t space_page_read(struct space *space, const struct key *key, uint64_t offset, void *to, size_t bytes);

#endif
