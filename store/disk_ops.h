/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam between the disk tier and the kernel: everything that touches the record directory goes through one table of
 * functions, so that a test can record it, fail it, or lose what was not synced.
 *
 *   uring    O_DIRECT through io_uring, memory registered (disk_uring.c, the one file that knows liburing)
 *   plain    preadv and pwritev in the caller's thread: where io_uring is not to be had, and for tests
 *   fault    another one, with errors and short transfers put in, and a log of all that changed something
 *
 * A struct disk_ops_queue belongs to one thread: the one that first submits or reaps with it. Before that another may make it and
 * add buffers, afterwards free it. Functions about files are for any thread. All functions return 0 or a number >= 0, or a
 * negative errno. Names are relative to the directory descriptor @dir. Hold no lock.
 */
#ifndef PREFIXFS_STORE_DISK_OPS_H
#define PREFIXFS_STORE_DISK_OPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "store/base/why.h"

#define DISK_IO_MOST (8u << 20) /* bytes of one transfer */
#define DISK_IO_VECTORS 512u    /* pieces of memory of one transfer */
#define DISK_QUEUE_DEPTH 256u   /* transfers under way in one queue */
#define DISK_BUFFERS 4096u      /* registered pieces of memory of one queue */

struct disk_ops;
struct disk_ops_queue;

/* One read or write. The caller's until it is started, again its own once it was reaped. */
struct disk_io {
	bool write;
	int fd;
	uint64_t offset;          /* in the file, a multiple of 4096 */
	uint32_t bytes;           /* a multiple of 4096; all or nothing: what the kernel moves short is gone on with; the end of the file is -ENODATA */
	const struct iovec *parts; /* memory, multiples of 4 KiB, together @bytes; stays until it was reaped */
	uint32_t part_count;
	int32_t buffer;           /* number of the registered piece that holds all of the one part, or -1 */
	int result;               /* 0 or a negative errno, once reaped */
	void *context;            /* the caller's */
	struct disk_io *next;     /* the queue's */
	uint32_t done;            /* the queue's: bytes that were moved */
	uint32_t retries;         /* the queue's */
};

struct disk_ops_table {
	const char *name;
	void (*free)(struct disk_ops **ops); /* all queues are freed */
	/* False once a file had to be opened without O_DIRECT. */
	bool (*direct)(const struct disk_ops *ops);

	/* ---- files; may block ---- */
	/* O_DIRECT where the file system has it. Returns the descriptor. Create: O_EXCL, 0600, to read and write. */
	int (*create)(struct disk_ops *ops, int dir, const char *name);
	int (*open)(struct disk_ops *ops, int dir, const char *name, bool write);
	void (*close)(struct disk_ops *ops, int fd);
	int (*allocate)(struct disk_ops *ops, int fd, uint64_t bytes); /* and the length; -EOPNOTSUPP: only the length is set */
	int (*truncate)(struct disk_ops *ops, int fd, uint64_t bytes);
	int (*sync)(struct disk_ops *ops, int fd); /* fdatasync */
	int (*sync_dir)(struct disk_ops *ops, int dir);
	int (*rename)(struct disk_ops *ops, int from_dir, const char *from, int to_dir, const char *to);
	int (*unlink)(struct disk_ops *ops, int dir, const char *name);

	/* ---- transfers ---- */
	int (*queue_new)(struct disk_ops *ops, struct disk_ops_queue **ret, struct why *why);
	void (*queue_free)(struct disk_ops_queue **queue); /* nothing is under way */
	/* Keeps the open file of @fd open until the last transfer of the queue has ended in the kernel, also when the process is killed:
	 * a lock on it is held as long. Before the first transfer, once. Plain: nothing to do, a thread inside a call keeps all that
	 * its process has open. */
	int (*queue_keep)(struct disk_ops_queue *queue, int fd);
	/* Registers [memory, +bytes), at most 1 GiB, for transfers of this queue: a number for disk_io.buffer; negative: it
	 * cannot be, and transfers do without. Only while nothing that uses the number is under way. */
	int (*buffer_add)(struct disk_ops_queue *queue, void *memory, uint64_t bytes);
	void (*buffer_drop)(struct disk_ops_queue *queue, int32_t buffer);
	/* Adds one; nothing is told to the kernel before submit. At most DISK_QUEUE_DEPTH are under way: -EAGAIN. -EINVAL: it is
	 * not what struct disk_io says. */
	int (*start)(struct disk_ops_queue *queue, struct disk_io *io);
	int (*submit)(struct disk_ops_queue *queue);
	/* The next one that ended, in whatever order, or NULL after @patience_ns (0: does not wait). Plain: the transfer itself is
	 * made here, and waited for. */
	struct disk_io *(*reap)(struct disk_ops_queue *queue, uint64_t patience_ns);
	/* Ends a reap that waits, or else the next that would: it returns NULL at once. Wakes before that are as one. A reap
	 * that returns a transfer, or has no patience, leaves the wake for a later one. Any thread, also under a lock. */
	void (*wake)(struct disk_ops_queue *queue);
};

struct disk_ops {
	const struct disk_ops_table *table;
};

/* ENOSYS, EPERM, ENOMEM: the kernel does not give us io_uring; the sentence says which. */
int disk_ops_uring_new(struct disk_ops **ret, struct why *why);
struct disk_ops *disk_ops_plain_new(void); /* NULL: ENOMEM */

/* ---- faults, and the log (disk_fault.c) ------------------------------------------------------------------------------ */

enum disk_op { DISK_OP_CREATE, DISK_OP_OPEN, DISK_OP_ALLOCATE, DISK_OP_TRUNCATE, DISK_OP_SYNC, DISK_OP_SYNC_DIR, DISK_OP_RENAME,
	       DISK_OP_UNLINK, DISK_OP_READ, DISK_OP_WRITE, DISK_OPS };

/* What changed something, in order; for tests that put a directory together as a crash may have left it. Operations that failed
 * are not there; of a write that ended short, what was moved is. A write stands where it was reaped: a SYNC covers the writes of
 * its file that stand before it. OPEN and READ change nothing and are not there. */
struct disk_event {
	enum disk_op op;
	uint32_t file;      /* counts files as they are first created or opened: an open of the same name is the same file, a rename
			     * takes it along; 0: none, or not seen before (RENAME, UNLINK) */
	char name[192];     /* of the file now: "<its folder>/<name>", for the engine "<two hex>/<name>"; SYNC_DIR: "<folder>" */
	char to[192];       /* RENAME */
	uint64_t offset, bytes; /* WRITE, TRUNCATE, ALLOCATE */
	void *data;         /* WRITE: a copy, the log's */
};

/* Owns @under, when it succeeds. @spec: comma-separated rules <op>:<what>[:<when>]: op as in enum disk_op in lower case, or `any`;
 * what = an errno's name, `short` (reads and writes: half of it is moved, then EIO), `flip` (reads: one bit), `kill` (the process
 * dies of SIGKILL before it) or `kill_after` (when it was done well); when = nothing (always), 3 (from the third on), =3 (the third
 * alone), 1/100 (by chance, seed=7). Transfers are counted as they are started.
 * <point>:kill[:3], with a point of store/base/killpoint.h: the process dies when it is passed for the third time. Points are the
 * process's: the rules that were given last are in force.
 * Empty: no faults. @log: events are kept. EINVAL names the rule. */
int disk_ops_fault_new(struct disk_ops *under, const char *spec, bool log, struct disk_ops **ret, struct why *why);
int disk_ops_fault_check(const char *spec, struct why *why); /* makes nothing */
/* Changes the rules while it is in use: the third is then the third from now on. Any thread. */
int disk_ops_fault_set(struct disk_ops *ops, const char *spec, struct why *why);
/* Every operation so far, failed ones too; any thread. Of one kind, or of all with DISK_OPS. */
uint64_t disk_ops_fault_count(const struct disk_ops *ops, enum disk_op op);
/* The log from event @first on: at most @capacity; the copies of data stay the log's until it is freed. */
uint32_t disk_ops_fault_log(struct disk_ops *ops, uint32_t first, struct disk_event *ret, uint32_t capacity);

#endif
