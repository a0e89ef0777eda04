/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the disk engine share.
 *
 *   disk.c         the directory, its lock, the report
 *   disk_dir.c     a namespace's folder: made, listed, removed
 *   disk_names.c   the names thread: jobs come in and are opened, removed, renamed
 *   disk_worker.c  a worker's thread: jobs from its inbox begun, and ended
 *   disk_task.c    a job with transfers under way: transfers made, started, reaped
 *   disk_chores.c  a thread for what takes long without transfers
 *   disk_pieces.c  registered memory
 *   disk_write.c  disk_read.c  disk_look.c      kinds of jobs that have transfers;  disk_trim.c, disk_copy.c: those that have none
 *   disk_alike.c   which columns of a file that is to be written have the same bytes
 *
 * A job's life:
 *
 *   step       is with                           goes on when
 *   ASKED      names.queue, .parked (lock)       it is its turn, and few enough files are open
 *   OPENED     worker.inbox (lock), ready[]      a task is free; trim, remove, clear: chores.queue (lock), done. A copy begins here
 *   MOVING     a struct disk_task                its last transfer was reaped: a write goes on to RENAME, others are done
 *   RENAME     names.queue (lock)                it is its turn
 *   RENAMED    chores.queue (lock)               folder synced: done
 *   UNWANTED   chores.queue (lock)               temporary file unlinked: done
 *
 * Only what says (lock) is shared: everything else of a thread is that thread's.
 */
#ifndef PREFIXFS_STORE_DISK_PRIVATE_H
#define PREFIXFS_STORE_DISK_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/base/lock.h"
#include "store/disk.h"

#define DISK_MAX_WORKERS 16u
#define DISK_READS_OPEN_MOST 192u          /* reads that are OPENED or further, */
#define DISK_WRITES_OPEN_MOST 64u          /* and writes */
#define DISK_TASKS 16u                     /* of one worker */
#define DISK_TASKS_WRITING 12u             /* of these, those that write: reads always find room */
#define DISK_BYTES_UNDER_WAY (64ull << 20) /* of one worker's transfers; one more may begin below it */
#define DISK_BOUNCE_MOST (64ull << 20)     /* headers and key segments of one worker's tasks; a single task may pass it */
#define DISK_BOUNCE_KEPT (256u << 10)      /* so much a task keeps for the next job */
#define DISK_ALONE_LEAST (1u << 20)        /* pieces of memory at least so long get transfers of their own */
#define DISK_PATIENCE_NS 1000000000ull     /* a wait ends after this and looks again: nothing waits without a deadline */
#define DISK_PATH_BYTES (RECORD_FILE_NAME_BYTES + 24u) /* "<two hex>/<name>.<number>.tmp" */

enum disk_step {
	DISK_STEP_ASKED,
	DISK_STEP_OPENED,
	DISK_STEP_MOVING,
	DISK_STEP_RENAME,
	DISK_STEP_RENAMED,
	DISK_STEP_UNWANTED,
};

struct disk_column {
	uint64_t slot_bytes, payload_bytes;
};

struct disk_dir {
	struct disk *disk;
	struct disk_dir *next;       /* (disk.lock) */
	const struct layout *layout;
	struct disk_column *columns; /* of a page, then of the row */
	char *path;                  /* of the folder */
	const char *name;            /* its last part */
	int fd;                      /* -1: being made */
	char *memory;                /* the segment, mapped; NULL without one */
	uint64_t memory_bytes;
	bool aside;                  /* disk_dir_set_aside */
	char gone[DISK_DIR_NAME_BYTES + 20]; /* what the folder is called once it is removed; empty: as before. Changes under disk.lock */
};

struct disk_counters { /* any thread */
	_Atomic uint64_t read_bytes, written_bytes, reads, writes, removes, trims;
	_Atomic uint64_t read_errors, write_errors, checksum_errors;
};

/* A registered piece of memory. */
struct disk_piece {
	const struct disk_dir *dir;
	uint32_t grant;
	char *memory;
	uint64_t bytes;
	int32_t buffer;
	uint32_t users; /* transfers under way */
	bool dropping;  /* no new ones */
};

/* From another thread to a worker; lies on the asker's stack until it was answered. */
struct disk_request {
	struct disk_request *next;
	bool drop; /* else add */
	const struct disk_dir *dir;
	uint32_t grant;
	char *memory;
	uint64_t bytes;
	bool answered; /* (worker.lock) */
};

struct disk_task;

struct disk_transfer {
	struct disk_io io; /* io.context is this */
	struct disk_task *task;
	struct disk_transfer *next; /* free ones */
	bool head;                  /* of header and keys: not payload */
	uint32_t first, last;       /* the task's numbers of the values that it moves some of */
	struct iovec parts[DISK_IO_VECTORS];
};

enum disk_next {
	DISK_NEXT_STARTED,
	DISK_NEXT_WAIT,    /* for one that is under way */
	DISK_NEXT_THROUGH, /* everything was started */
};

/* What a kind of job does. Errors go to the task (disk_task_fail); nothing more is started then. */
struct disk_task_kind {
	void (*begin)(struct disk_task *task);
	enum disk_next (*next)(struct disk_task *task);
	void (*reaped)(struct disk_task *task, const struct disk_transfer *transfer);
	uint64_t (*work)(struct disk_task *task); /* one of task->work pieces of it: bytes looked at. NULL: it never has any */
	void (*end)(struct disk_task *task); /* nothing is under way: sets job->result and frees what the kind has */
};

struct disk_write_state {
	uint32_t values, at;      /* how many there are; the next one */
	uint64_t moved;           /* of that one */
	uint64_t *sums;
	bool made;                /* the head */
	bool holes;               /* some values are absent */
	bool alike;               /* which columns are the same is known: the plan stands, the file has its length */
	uint32_t column, like;    /* disk_alike.c: is this one, counted among all, as that one? */
	uint32_t page, same;      /* of it; values that are */
	bool bytes;               /* their checksums are the same: now the bytes */
	uint16_t *old_alias;      /* of the old file, once checked */
	uint64_t old_bytes;       /* the old file's length */
	struct record_file_plan old_plan;
	char *old_head;           /* its header and keys */
	const uint64_t *old_sums; /* in there, once checked */
	char *carry;              /* DISK_IO_MOST, on its way from the old file */
	uint32_t carried;         /* bytes that were read and are not written yet */
	uint64_t carry_to;        /* their offset in the new file */
	bool full, carrying;      /* were read; a transfer of them is under way */
};

struct disk_read_state {
	uint32_t at;          /* the next value */
	uint32_t unchecked;   /* all before it are CHECKED */
	uint64_t moved;       /* of `at` */
	uint64_t file_bytes;  /* its length */
	uint32_t *pending;    /* [count]: transfers under way; DISK_CHECKED */
	const struct key *keys; /* in the bounce, once header and keys were checked */
	const uint64_t *sums;
	struct record_file_id id;
	const uint16_t *alias; /* where things are looked for by it; NULL: each is stored */
	uint16_t *own_alias;  /* of the header, when that said otherwise */
	uint32_t *like;       /* [count]: number of the value before it that has its bytes; else its own */
	bool again;           /* the header says that things lie elsewhere: once more when nothing is under way */
	bool twice;           /* that was done */
};

struct disk_look_state {
	bool header_good;
};

struct disk_task {
	struct disk_worker *worker;
	struct disk_job *job; /* NULL: free */
	const struct disk_task_kind *kind;
	int error;            /* the first one; nothing more is started */
	bool through;
	uint32_t under_way;   /* transfers */
	uint32_t work;        /* pieces of work with what was moved: done once more transfers are under way */
	uint64_t began_ns;
	struct record_file_plan plan;
	char *bounce;         /* header and key segment */
	uint64_t bounce_bytes, bounce_room, bounce_counted;
	uint64_t head_moved;  /* bytes of the head that were asked for */
	uint32_t head_under_way;
	union {
		struct disk_write_state write;
		struct disk_read_state read;
		struct disk_look_state look;
	};
};

struct disk_list {
	struct disk_job *first, *last;
};

struct disk_worker {
	struct disk *disk;
	uint32_t number;
	pthread_t thread;
	bool running;
	struct disk_ops_queue *queue;
	_Atomic uint32_t jobs;       /* handed to it and not ended */
	struct lock lock;            /* LOCK_QUEUE */
	struct lock_cond answered;
	struct disk_list inbox;      /* (lock) */
	struct disk_request *requests; /* (lock) newest first: they wait for nothing of each other */
	bool asleep, stop;           /* (lock) */
	/* the thread's */
	struct disk_list reads, writes; /* wait for a task */
	struct disk_task tasks[DISK_TASKS];
	uint32_t tasks_used, tasks_writing, turn;
	uint64_t bounce_counted;     /* of all tasks */
	struct disk_transfer *transfers, *free_transfers;
	uint32_t transfers_under_way;
	uint64_t bytes_under_way, bytes_untold; /* of transfers; of those that were not submitted */
	struct disk_piece *pieces;   /* [DISK_BUFFERS], the first pieces_used ones, by address */
	uint32_t pieces_used;
	struct disk_request *dropping; /* wait for transfers */
	_Atomic uint32_t buffers;
};

struct disk_names {
	pthread_t thread;
	bool running;
	struct lock lock;         /* LOCK_QUEUE */
	struct lock_cond wake;
	struct disk_list queue;   /* (lock) */
	struct disk_list parked;  /* (lock) writes whose turn came when too many were open */
	uint32_t reads_open, writes_open; /* (lock) jobs that are OPENED or further */
	bool stop;                /* (lock) what is ASKED is not begun */
	bool end;                 /* (lock) nothing comes any more */
};

struct disk_chores {
	pthread_t thread;
	bool running;
	struct lock lock;       /* LOCK_QUEUE */
	struct lock_cond wake;
	struct disk_list queue; /* (lock) */
	bool end;               /* (lock) nothing comes any more */
};

struct disk {
	char *path;
	int fd, lock_fd;
	struct disk_ops *ops;
	bool uring;
	enum disk_durability durability;
	bool look_only;
	_Atomic uint32_t jobs;
	_Atomic uint32_t temporary;  /* numbers of temporary files */
	uint32_t temporary_first;    /* before this process's first one, by chance: others are what a death left */
	_Atomic uint64_t give_up_ns; /* from then on no transfer is started */
	struct disk_counters counters;
	struct lock lock;            /* LOCK_QUEUE */
	struct disk_dir *dirs;       /* (lock) */
	struct disk_names names;
	struct disk_chores chores;
	uint32_t workers;
	struct disk_worker worker[DISK_MAX_WORKERS];
};

static inline void disk_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline void disk_list_add(struct disk_list *list, struct disk_job *job)
{
	job->next = NULL;
	if (list->first)
		list->last->next = job;
	else
		list->first = job;
	list->last = job;
}

static inline struct disk_job *disk_list_take(struct disk_list *list)
{
	struct disk_job *job = list->first;

	if (job)
		list->first = job->next;
	return job;
}

/* ---- disk_names.c ------------------------------------------------------------------------------------------------- */

int disk_names_start(struct disk *disk, struct why *why);
void disk_names_stop(struct disk *disk);  /* what was not begun ends with -ECANCELED */
void disk_names_end(struct disk *disk);   /* no job is left; joins */
void disk_names_rename(struct disk *disk, struct disk_job *job); /* any thread */
/* A job that is OPENED or further has ended: its result is set, nothing of it is open. Calls done(). */
void disk_job_end(struct disk *disk, struct disk_job *job);

/* ---- disk_chores.c ------------------------------------------------------------------------------------------------ */

int disk_chores_start(struct disk *disk, struct why *why);
void disk_chores_end(struct disk *disk); /* no job is left; joins */
void disk_chores_give(struct disk *disk, struct disk_job *job); /* any thread */

/* ---- disk_worker.c ------------------------------------------------------------------------------------------------ */

int disk_worker_start(struct disk *disk, struct disk_worker *worker, uint32_t number, struct why *why);
void disk_worker_end(struct disk_worker *worker); /* no job is left; joins, frees. One that was never started is let pass */
void disk_worker_give(struct disk *disk, struct disk_job *job); /* to the one with least to do */
void disk_worker_wake(struct disk_worker *worker);
void disk_worker_ask(struct disk_worker *worker, struct disk_request *request); /* waits for the answer */
void disk_worker_answer(struct disk_worker *worker, struct disk_request *request);
/* The job leaves this worker: it has ended, or its write is to be renamed. */
void disk_worker_done(struct disk_worker *worker, struct disk_job *job);

/* ---- disk_task.c -------------------------------------------------------------------------------------------------- */

int disk_tasks_new(struct disk_worker *worker);
void disk_tasks_free(struct disk_worker *worker);
/* False: there is no room for it now. */
bool disk_task_begin(struct disk_worker *worker, struct disk_job *job);
/* Starts some transfers and ends tasks that are through; true: more could be done at once. */
bool disk_tasks_pump(struct disk_worker *worker);
/* Some of the work with what was moved; true: there is more. */
bool disk_tasks_work(struct disk_worker *worker);
/* Takes back what has ended; waits for the first one at most so long. */
void disk_tasks_reap(struct disk_worker *worker, uint64_t patience_ns);

void disk_task_fail(struct disk_task *task, int error); /* negative errno */
int disk_task_bounce(struct disk_task *task, uint64_t bytes); /* 4 KiB-aligned room for the head */
void *disk_memory(uint64_t bytes); /* 4 KiB-aligned, for free(); NULL */
/* A transfer of @task at @offset of the file. There is room for one whenever kind->next is called, of which it is part. */
struct disk_transfer *disk_transfer_new(struct disk_task *task, bool write, int fd, uint64_t offset);
/* Adds memory for the file's bytes from @offset on, as much of it as fits: the bytes taken; 0: begin another transfer. */
uint32_t disk_transfer_add(struct disk_transfer *transfer, uint64_t offset, char *memory, uint64_t bytes);
enum disk_next disk_transfer_start(struct disk_transfer *transfer);
void disk_transfer_drop(struct disk_transfer *transfer); /* instead of starting it */
/* The next transfer of the head, which lies at @offset of @fd and is [memory, +bytes); THROUGH when all were started before. */
enum disk_next disk_task_head(struct disk_task *task, bool write, int fd, uint64_t offset, char *memory, uint64_t bytes);

/* ---- disk_pieces.c ------------------------------------------------------------------------------------------------ */

void disk_pieces_do(struct disk_worker *worker, struct disk_request *request); /* answers it, perhaps later */
/* Number of the buffer that holds all of it, with one more user; -1: none does. */
int32_t disk_pieces_use(struct disk_worker *worker, const char *memory, uint64_t bytes);
void disk_pieces_unuse(struct disk_worker *worker, const char *memory);

/* ---- disk_dir.c --------------------------------------------------------------------------------------------------- */

/* "<two hex>/<name>", and with a number of a temporary file "<two hex>/<name>.<number>.tmp". */
void disk_path_of(char to[DISK_PATH_BYTES], uint64_t consumed, const struct key *endpoint, uint32_t temporary);
void disk_old_folder(char to[DISK_PATH_BYTES], unsigned folder, uint32_t number); /* what a clearing names it */
void disk_dir_empty_old(struct disk_dir *dir, uint32_t number); /* folders that a clearing has named so; blocks */
int disk_folder_make(const struct disk_dir *dir, const char *path); /* that @path lies in; there already is fine */
int disk_folder_sync(const struct disk_dir *dir, const char *path);
/* Does [offset, +bytes) lie in the segment, page by page? */
bool disk_dir_holds(const struct disk_dir *dir, uint64_t offset, uint64_t bytes);

static inline const struct disk_column *disk_column(const struct disk_dir *dir, bool row, uint32_t column)
{
	return &dir->columns[row ? dir->layout->page_columns + column : column];
}

/* ---- kinds of jobs ------------------------------------------------------------------------------------------------ */

extern const struct disk_task_kind disk_write_kind, disk_read_kind, disk_look_kind, disk_copy_kind;

struct disk_look {
	struct disk_job job; /* first */
	struct disk_file_info *info;
	struct why *why;
	struct lock lock; /* LOCK_QUEUE */
	struct lock_cond wake;
	bool ended; /* (lock) */
};

void disk_read_failed(struct disk_read *read); /* every value has failed as the job has */

/* The checksum of a value in the segment into sums[value], with what is behind its payload zeroed; once. 0, -EFAULT. */
int disk_write_sum(struct disk_task *task, uint32_t value);
/* The old file's checksum of a value, and where it lies; 0: it has none. */
uint64_t disk_write_old(const struct disk_task *task, uint32_t value, uint64_t *offset);

/* ---- disk_alike.c ------------------------------------------------------------------------------------------------- */

/* A write whose old file, if it has one, was checked: are there columns that may be the same? False: each is stored. */
bool disk_alike_begin(struct disk_task *task);
/* Compares two values, or passes on to the next columns: bytes looked at. *more: once more. */
uint64_t disk_alike_step(struct disk_task *task, bool *more);

void disk_trim_run(struct disk_trim *trim);     /* once it is renamed and open */
void disk_unwanted_run(struct disk_job *job);   /* unlinks the temporary file */

#endif
