/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk tier's engine: the host's record directory and the threads that read and write record files. It knows files, memory
 * and checksums; which record is where, what may go and what is worth keeping is the index's and store/tiering.h's business.
 *
 *   <dir>/lock                               held while a daemon owns the directory
 *   <dir>/<identity prefix>-<fingerprint>/   a struct disk_dir: one namespace
 *       namespace.json                       what the namespace was made from (docs/on-disk-format.md)
 *       catalogue.sqlite
 *       <two hex>/<consumed>-<key>.rec       record files;  *.tmp: being written, removed at start
 *
 * Work is handed over as jobs. A job belongs to the engine from disk_give to its done(), which is called exactly once, with no lock
 * held, and gives it back. Jobs never wait for a lock of the store; disk_give never blocks or allocates and may be called under the
 * space lock.
 *
 * Names are changed and looked up by one thread, the *names thread*, in the order in which it is asked: the opening of a read, all of a
 * removal, the renaming of a trim in the order in which the jobs were given; the renaming of a write when its transfers have
 * ended. So a read given after a trim finds the trimmed file and one given before a removal has the file open before it goes; a
 * write that is cancelled before its renaming is never seen, and a removal given before a write of the same name was given cannot
 * remove that one's file. What takes long is left to the workers, on descriptors: transfers, checksums, syncs, truncation, the
 * unlinking of what a removal has renamed to a temporary name.
 *
 * A worker reads payload memory through the kernel or under a guard: what a client did to it is an error of that job.
 */
#ifndef PREFIXFS_STORE_DISK_H
#define PREFIXFS_STORE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "index/layout.h"
#include "index/tables.h"
#include "store/disk_ops.h"
#include "store/record_file.h"
#include "store/segment.h"

struct disk;
struct disk_dir;

enum disk_durability {
	DISK_DURABILITY_NONE, /* files are renamed into place; a crash of the host may lose or tear them: checks find that */
	DISK_DURABILITY_DATA, /* fdatasync before the rename, and the folder is synced before the job ends */
};

struct disk_config {
	const char *path;        /* must be there, a folder */
	unsigned workers;        /* 1..16 */
	enum disk_durability durability;
	bool uring;              /* false, or the kernel has none for us: the plain ops (disk_uses_uring tells) */
	const char *fault;       /* disk_ops_fault_new specification, or NULL */
	struct disk_ops *ops;    /* NULL: made from the two above; else the engine's when it could be made, freed with it */
	bool look_only;          /* disk_dir_open makes no folder (ENOENT) and removes no left-overs: for checks */
};

#define DISK_DIR_NAME_BYTES 50u /* "<16 hex>-<32 hex>" with its NUL */

/* Takes the directory. EWOULDBLOCK: another daemon has it, and had it for two seconds more (the sentence says which pid, where known);
 * EROFS, EACCES, ENOTDIR, ENOENT: no disk tier, the sentence says why. Blocks. */
int disk_new(const struct disk_config *config, struct disk **ret, struct why *why);
/* Jobs that wait in queues end with -ECANCELED; those under way have @patience_ns, then they start no more transfers and end with
 * -ECANCELED too, once the kernel has given back what it has (that alone has no limit: the memory is the kernel's until then). Nobody
 * gives jobs any more. Namespaces are closed before it; who has to end their jobs before that calls disk_stop first, which
 * does all but the freeing. */
void disk_stop(struct disk *disk, uint64_t patience_ns);
void disk_free(struct disk **disk, uint64_t patience_ns);
const char *disk_path(const struct disk *disk);
struct disk_ops *disk_ops(struct disk *disk);
bool disk_uses_uring(const struct disk *disk);

/* ---- namespaces ----------------------------------------------------------------------------------------------------- */

/* Finds or makes the folder of @layout's namespace; removes *.tmp. EBUSY while it is open or being removed. @segment: NULL while
 * there is none (tools); it is mapped here, once. Both outlive the dir. Blocks. */
int disk_dir_open(struct disk *disk, const struct layout *layout, struct segment *segment, struct disk_dir **ret, struct why *why);
/* No job of it may be under way, its pieces are dropped. With @remove the folder goes, set aside first, with everything in it
 * but record files of another writer or of a newer version, and what else is not ours: they keep the folder, without its
 * namespace.json. Blocks. */
void disk_dir_close(struct disk_dir **dir, bool remove);
/* A removal begins: the folder is renamed to "<name>.<number>.gone", and a restart removes it from then on. Jobs go on in it. What goes on
 * by itself next is disk_dir_set_aside; a second call does nothing. Blocks, for a renaming; one thread at a time. */
void disk_dir_rename_away(struct disk_dir *dir);
/* The first half of a removal, which is quick whatever there is in the folder: it is renamed, if it was not yet, and its segment let
 * go, so that another namespace of the layout can be opened. The second is disk_dir_close(, true), which needs the layout. Blocks. */
void disk_dir_set_aside(struct disk_dir *dir);
bool disk_is_folder(const char *name); /* is that a name of a namespace's folder? Any thread */
bool disk_is_gone(const char *name); /* is that such a folder's name? Any thread */
/* The rest of a removal that a death ended; @layout: of its namespace.json, which goes last, or NULL. Nobody else removes it; one that is
 * still open is left to who has it. Blocks. */
void disk_remove_gone(struct disk *disk, const char *name, const struct layout *layout);
/* What a death left of the creation of a namespace: its folder @fd, which has no namespace.json yet nor anything in the folders of
 * record files. Any thread; blocks. */
bool disk_is_unmade(int fd);
/* Removes the folder @name of the directory if it is that; nobody has it open. False: it is still there. Blocks. */
bool disk_remove_unmade(struct disk *disk, const char *name);
void disk_dir_name(char to[DISK_DIR_NAME_BYTES], const struct layout *layout); /* of the namespace's folder; any thread */
int disk_dir_fd(const struct disk_dir *dir);             /* the namespace's folder */
const char *disk_dir_path(const struct disk_dir *dir);

/* Of the folders of record files, those whose number modulo @parts is @part: several threads may list one directory together. */
struct disk_listing {
	unsigned part, parts; /* all: 0 of 1 */
	bool sizes;           /* with lengths and times, a stat each; else both are 0 */
	bool clear;           /* what writes that a death ended left is removed */
};
/* Calls @file for every record file by name. False from @file stops. Negative errno with a sentence. Blocks. */
int disk_dir_list(struct disk_dir *dir, const struct disk_listing *what,
		  bool (*file)(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s),
		  void *context, struct why *why);
/* Reads and checks header and key segment of one file; what it says where it lies: *keys_ret is malloc'ed (plan.keys_bytes) and the
 * caller's. The file's own length, and how many pages and whether the row lie within it, are taken into account: *pages, *row. -ENOENT,
 * -EINVAL (damaged), -ENOTSUP (newer or another writer's), -EXDEV, -EIO. Blocks. */
struct disk_file_info {
	struct record_file_id id;
	struct record_file_plan plan;
	uint16_t alias[LAYOUT_MAX_CLASSES * LAYOUT_MAX_SHARES];
	uint64_t file_bytes;
	int64_t mtime_s;
	uint32_t pages; /* whole ones that are there, of those that its name says */
	bool row;
	void *segment;  /* key segment; record_file_read_keys */
};
int disk_file_look(struct disk_dir *dir, uint64_t consumed, const struct key *endpoint, struct disk_file_info *ret, struct why *why);

/* Length of a file; 0: it is not there. Blocks. */
uint64_t disk_file_bytes(const struct disk_dir *dir, uint64_t consumed, const struct key *endpoint);

/* The file as it lies there, unchecked, for reading through the page cache: a descriptor, the caller's; -ENOENT, -EIO. Blocks. */
int disk_file_open(struct disk_dir *dir, uint64_t consumed, const struct key *endpoint);

/* Bytes of a file as they lie there, unchecked, through the page cache. 0 at the end; -ENOENT, -EIO. Blocks. */
ssize_t disk_file_read(struct disk_dir *dir, uint64_t consumed, const struct key *endpoint, uint64_t offset, void *to, size_t bytes);

/* Pieces of the segment that values lie in: registered with every worker for direct transfers. May fail quietly. From any
 * thread but within a done(), without a lock; both wait for the workers, drop also until no transfer uses the piece (nobody may
 * give jobs for it meanwhile). */
void disk_piece_add(struct disk_dir *dir, uint32_t grant, uint64_t offset, uint64_t length);
void disk_piece_drop(struct disk_dir *dir, uint32_t grant);

/* ---- jobs ----------------------------------------------------------------------------------------------------------- */

enum disk_job_kind {
	DISK_JOB_WRITE,
	DISK_JOB_READ,
	DISK_JOB_TRIM,
	DISK_JOB_REMOVE,
	DISK_JOB_CLEAR,
	DISK_JOB_COPY, /* a struct disk_read without a file: within the segment */
	DISK_JOB_LOOK, /* the engine's own: disk_file_look */
};

struct disk_job {
	/* the engine's */
	struct disk_job *next;
	int fd, old_fd;        /* while it is open */
	uint32_t temporary;    /* number in its temporary name */
	int step;

	/* the caller's */
	enum disk_job_kind kind;
	struct disk_dir *dir;
	uint64_t consumed;     /* of the file's name as it will be when the jobs given before have ended */
	struct key endpoint;
	int result;            /* 0 or a negative errno, in done() */
	void (*done)(struct disk_job *job);
	void *context;         /* the caller's */
	_Atomic bool cancelled; /* by the caller: what has not begun need not, and a write is not renamed any more; done() comes all
	                         * the same, -ECANCELED */
};

#define DISK_ABSENT UINT64_MAX

/* A whole file, under a temporary name that no other job has, then renamed to its own; one that is there already is
 * replaced. After any error nothing is left of it, and what was there before is there still. A folder that cannot be synced
 * after the renaming is counted as a write error, and is none of the job: the file is there and whole.
 * -EFAULT: the memory of a value is not to be had; -EINVAL: an offset; else what the kernel says. With `from_old` also -ENOENT
 * and -EBADMSG: of the old file's header or keys.
 *
 * Shares of one class whose values are the same in every page (and of a state class in the row) are found and stored once: `alias` says
 * which. Two values at one offset are the same without a look. */
struct disk_write {
	struct disk_job job;      /* first */
	struct record_file_id id; /* nonce, created_s: set by the engine when 0 */
	const struct key *keys;   /* [pages]; the caller's until done() */
	const uint64_t *values;   /* [pages][page_columns], then [row_columns]: offset in the segment, DISK_ABSENT; the caller's */
	/* When some values are to be taken from the file that is there now under @old's name instead: for those `values` is
	 * DISK_FROM_OLD, same page and column. They keep the checksum that they had: what is damaged in the old file is found
	 * damaged in the new one when it is read, and what the old one lacks is absent. */
	bool from_old;
	uint64_t old_consumed;
	struct key old_endpoint;
	uint32_t old_file_pages;
	/* out */
	uint16_t alias[LAYOUT_MAX_CLASSES * LAYOUT_MAX_SHARES]; /* record_file_plan */
	uint64_t file_bytes;
	uint64_t alias_bytes; /* of values that were not written: another column has them */
	uint64_t transfer_ns; /* of the payload */
};
#define DISK_FROM_OLD (UINT64_MAX - 1)

/* Values of one file into the segment or other memory. Every value is checked before done(); what failed says so by itself. What is
 * stored once and wanted twice is read once.
 *
 * With DISK_JOB_COPY no file is looked at: each value is copied from where the same bytes are in the segment; `result`s are 0, -EFAULT,
 * -EINVAL. It waits for no other job and no transfer. */
struct disk_read_value {
	uint32_t page;   /* or TABLES_PAGE_ROW */
	uint32_t column; /* of the page's or of the row's */
	uint64_t to;     /* offset in the segment, or address when the read has `memory` */
	uint64_t from;   /* DISK_JOB_COPY: offset in the segment of a value of the same size, which stays there */
	int result;      /* 0; -ENODATA: absent in the file, or behind its end; -EBADMSG: its checksum or key is wrong; -EFAULT: the
	                  * memory is not to be had; -EINVAL: `to`; -EIO ... (all values of one transfer) */
	void *context;   /* the caller's */
};

struct disk_read {
	struct disk_job job;     /* first; result: of the file as a whole: -ENOENT, -EBADMSG (header or key segment are damaged or
				  * another namespace's), -ENOTSUP (a newer version's or another writer's) ...: every value has
				  * failed with it. 0: look at each */
	bool memory;             /* `to` are addresses, 4 KiB-aligned, with room for the whole slot */
	uint32_t pages;          /* that the index knows: nothing behind them is read */
	uint32_t file_pages;     /* the file was written with: says where everything lies. When the (intact) header says another
	                          * number, the read begins once more with that one, which is then here */
	const uint16_t *alias;   /* that it was written with, as far as the caller knows; NULL: each column is stored. When the header
				  * says otherwise, likewise. The caller's */
	const struct key *keys;  /* [count]: key of each value's page, compared with the file's; the caller's */
	struct disk_read_value *values; /* in ascending order of pages and columns; the caller's */
	uint32_t count;
	/* out */
	bool alias_good;             /* the file's header has `alias` */
	uint64_t bytes, transfer_ns; /* of values that were read */
};

/* The file gets shorter and another name (the same, when only the row goes); what was there under that name is replaced. Renamed
 * first, then truncated: after -ENOENT and other errors of the renaming it has its old name. One that cannot be truncated is as
 * long as it was, under its new name: that is counted as a write error, `file_bytes` tells, and it is no error of the job. Where columns
 * may be aliases the file's header is read, which says where pages end. */
struct disk_trim {
	struct disk_job job; /* first; consumed and endpoint: the name now */
	uint32_t pages, file_pages; /* that stay; that the file was written with */
	bool row;                   /* stays */
	uint64_t new_consumed;
	struct key new_endpoint;
	uint64_t file_bytes; /* out */
};

/* The name goes at once, the file afterwards: one that cannot be unlinked is counted as a write error, has a temporary name and goes
 * when the namespace is opened the next time. */
struct disk_remove {
	struct disk_job job; /* first; a file that is not there is no error */
};

/* Every file that the namespace has when the names thread comes to it goes: the folders are renamed, synced and emptied by a worker
 * afterwards. What is written later is not touched. */
struct disk_clear {
	struct disk_job job; /* first; no name */
};

void disk_give(struct disk *disk, struct disk_job *job);
uint32_t disk_jobs(const struct disk *disk); /* given and not done; any thread */

/* ---- how it is ------------------------------------------------------------------------------------------------------ */

struct disk_report {
	uint64_t read_bytes, written_bytes, reads, writes, removes, trims;
	uint64_t read_errors, write_errors, checksum_errors;
	uint64_t free_bytes, total_bytes; /* of the file system, now */
	uint32_t workers, jobs;
	bool uring, direct;
	uint32_t buffers_registered; /* in all workers */
	size_t memory_bytes; /* bounce memory, queues */
};
void disk_report(struct disk *disk, struct disk_report *ret);

#endif
