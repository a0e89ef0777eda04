/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam by io_uring: a ring for each queue, memory registered with it.
 *
 * Life of a transfer:
 *   started    in a list                                  start; the kernel knows nothing
 *   submitted  the kernel's                               submit; reap, when one that moved too little goes on
 *   ended      in a list                                  reap takes all that the ring has, and hands out one
 *
 * The ring is made at rest and set going by the thread that first submits or reaps: from then on it alone may use it, which
 * lets the kernel leave out locks and interrupts. Wakes come through an eventfd that the ring polls: the kernel never writes to
 * memory of ours for it, so nothing has to be awaited at the end.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/disk_files.h"

#define RING_ENTRIES (2 * DISK_QUEUE_DEPTH) /* all transfers and the poll at once, so that none is ever wanting */
#define MOST_BUFFER (1ull << 30)            /* the kernel's limit */
#define LONG_NS (365ull * 24 * 3600 * 1000000000u) /* no wait is longer: the sum of two times stays one */
#define REFUSED_NS 1000000u /* what is waited for when the kernel has no room for new requests: it may be the end of others */

struct uring_ops {
	struct disk_files files;
	unsigned flags; /* IORING_SETUP_* that the kernel has */
};

struct uring_queue {
	struct io_uring ring;
	unsigned flags;
	bool going;   /* the ring was set going */
	int bell;     /* eventfd */
	bool polled;  /* the ring waits for the bell */
	bool woken;   /* a wake that no reap has told */
	_Atomic bool rung; /* the bell was rung and not heard: another wake need not */
	struct disk_io_list started, ended;
	uint32_t under_way;
	bool registers; /* the kernel keeps a table of buffers for us */
	struct iovec buffer[DISK_BUFFERS];
	uint16_t unused[DISK_BUFFERS]; /* numbers of those that are not registered, the first @unused_count */
	uint32_t unused_count;
};

/* From the best on. R_DISABLED comes with the first, which binds the ring to the thread that sets it going. */
static const unsigned flag_choices[] = {
	IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
	IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
	0,
};

static struct uring_queue *queue_of(struct disk_ops_queue *queue)
{
	return (struct uring_queue *)queue;
}

/* ---- making and freeing ----------------------------------------------------------------------------------------- */

static int sorry(struct why *why, int error)
{
	switch (error) {
	case ENOSYS:
		return why_set(why, ENOSYS, "io_uring: this kernel has none, or one older than Linux 5.11");
	case EPERM:
	case EACCES:
		return why_set(why, EPERM,
			"io_uring: forbidden here, by the sysctl kernel.io_uring_disabled or a container's seccomp filter");
	case ENOMEM:
		return why_set(why, ENOMEM, "io_uring: no memory for a ring; its limit may be that on locked memory "
					    "(ulimit -l, LimitMEMLOCK=)");
	default:
		return why_set(why, error, "io_uring: no ring can be made: %s", strerrordesc_np(error));
	}
}

/* 0 or a negative errno; -ENOSYS also when it lacks what we cannot do without. */
static int ring_make(struct io_uring *ring, unsigned entries, unsigned flags)
{
	struct io_uring_params params = {.flags = flags | IORING_SETUP_CLAMP};
	unsigned needed = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
	int r = io_uring_queue_init_params(entries, ring, &params);

	if (r)
		return r;
	if ((params.features & needed) == needed)
		return 0;
	io_uring_queue_exit(ring);
	return -ENOSYS;
}

static int uring_queue_new(struct disk_ops *ops, struct disk_ops_queue **ret, struct why *why)
{
	const struct uring_ops *u = (const struct uring_ops *)ops;
	struct uring_queue *q = calloc(1, sizeof(*q));

	lock_assert_none_held();
	if (!q)
		return why_set(why, ENOMEM, "no memory for a queue of disk transfers");
	q->flags = u->flags;
	q->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int r = q->bell < 0 ? -errno : ring_make(&q->ring, RING_ENTRIES, u->flags);

	if (r) {
		if (q->bell >= 0)
			close(q->bell);
		free(q);
		return sorry(why, -r);
	}
	q->registers = io_uring_register_buffers_sparse(&q->ring, DISK_BUFFERS) == 0;
	for (uint32_t i = 0; i < DISK_BUFFERS; i++)
		q->unused[i] = (uint16_t)(DISK_BUFFERS - 1 - i);
	q->unused_count = DISK_BUFFERS;
	*ret = (struct disk_ops_queue *)q;
	return 0;
}

static void uring_queue_free(struct disk_ops_queue **queue)
{
	struct uring_queue *q = queue_of(*queue);

	*queue = NULL;
	assert(q->under_way == 0);
	io_uring_queue_exit(&q->ring);
	close(q->bell);
	free(q);
}

/* A ring lets go of its files when its last request has ended. */
static int uring_queue_keep(struct disk_ops_queue *queue, int fd)
{
	return io_uring_register_files(&queue_of(queue)->ring, &fd, 1);
}

/* ---- registered memory ------------------------------------------------------------------------------------------ */

static int register_piece(struct uring_queue *q, uint32_t number, void *memory, uint64_t bytes)
{
	struct iovec piece = {.iov_base = memory, .iov_len = bytes};
	__u64 no_tag = 0;
	int r;

	do
		r = io_uring_register_buffers_update_tag(&q->ring, number, &piece, &no_tag, 1);
	while (r == -EINTR);
	if (r < 0)
		return r;
	return r == 1 ? 0 : -EIO;
}

static int uring_buffer_add(struct disk_ops_queue *queue, void *memory, uint64_t bytes)
{
	struct uring_queue *q = queue_of(queue);

	lock_assert_none_held();
	if (!q->registers)
		return -EOPNOTSUPP;
	if (!bytes || bytes > MOST_BUFFER)
		return -EINVAL;
	if (!q->unused_count)
		return -ENOSPC;
	uint32_t number = q->unused[q->unused_count - 1];
	int r = register_piece(q, number, memory, bytes);

	if (r)
		return r;
	q->unused_count--;
	q->buffer[number] = (struct iovec){.iov_base = memory, .iov_len = bytes};
	return (int)number;
}

static void uring_buffer_drop(struct disk_ops_queue *queue, int32_t buffer)
{
	struct uring_queue *q = queue_of(queue);

	lock_assert_none_held();
	if (buffer < 0)
		return;
	assert((uint32_t)buffer < DISK_BUFFERS && q->buffer[buffer].iov_len);
	register_piece(q, (uint32_t)buffer, NULL, 0);
	q->buffer[buffer] = (struct iovec){.iov_len = 0};
	q->unused[q->unused_count++] = (uint16_t)buffer;
}

static bool in_buffer(const struct uring_queue *q, int32_t buffer, const struct iovec *part)
{
	if ((uint32_t)buffer >= DISK_BUFFERS)
		return false;
	const struct iovec *piece = &q->buffer[buffer];
	uint64_t at = (uint64_t)((uintptr_t)part->iov_base - (uintptr_t)piece->iov_base);

	return at <= piece->iov_len && part->iov_len <= piece->iov_len - at;
}

/* ---- to the kernel ---------------------------------------------------------------------------------------------- */

/* The system call itself: liburing 2.3 has a function for it that its library does not export. */
static int enable(struct io_uring *ring)
{
	return syscall(__NR_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0 ? -errno : 0;
}

static int set_going(struct uring_queue *q)
{
	if (q->going)
		return 0;
	int r = q->flags & IORING_SETUP_R_DISABLED ? enable(&q->ring) : 0;

	q->going = r == 0;
	return r;
}

static struct io_uring_sqe *next_entry(struct uring_queue *q)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

	assert(sqe); /* RING_ENTRIES */
	return sqe;
}

static void prepare(struct uring_queue *q, struct disk_io *io)
{
	struct io_uring_sqe *sqe = next_entry(q);
	uint64_t at = io->offset + io->done;
	struct iovec rest;
	const struct iovec *parts;
	uint32_t count = disk_io_rest(io, &rest, &parts); /* of one part no vector is given, so @rest need not last */
	void *memory = parts[0].iov_base;
	unsigned bytes = (unsigned)parts[0].iov_len;

	if (count == 1 && io->buffer >= 0 && io->write)
		io_uring_prep_write_fixed(sqe, io->fd, memory, bytes, at, io->buffer);
	else if (count == 1 && io->buffer >= 0)
		io_uring_prep_read_fixed(sqe, io->fd, memory, bytes, at, io->buffer);
	else if (count == 1 && io->write)
		io_uring_prep_write(sqe, io->fd, memory, bytes, at);
	else if (count == 1)
		io_uring_prep_read(sqe, io->fd, memory, bytes, at);
	else if (io->write)
		io_uring_prep_writev(sqe, io->fd, parts, count, at);
	else
		io_uring_prep_readv(sqe, io->fd, parts, count, at);
	io_uring_sqe_set_data(sqe, io);
}

/* Entries without data are the bell's. */
static void poll_bell(struct uring_queue *q)
{
	struct io_uring_sqe *sqe = next_entry(q);

	io_uring_prep_poll_add(sqe, q->bell, POLLIN);
	io_uring_sqe_set_data(sqe, NULL);
	q->polled = true;
}

/* What the kernel has no room for now stays in the ring: the next submit or reap tells it again. */
static int tell(struct uring_queue *q)
{
	int r = 0;

	while (io_uring_sq_ready(&q->ring)) {
		r = io_uring_submit(&q->ring);
		if (r <= 0 && r != -EINTR)
			break;
	}
	return r >= 0 || r == -EAGAIN || r == -EBUSY ? 0 : r;
}

static int uring_start(struct disk_ops_queue *queue, struct disk_io *io)
{
	struct uring_queue *q = queue_of(queue);

	if (q->under_way == DISK_QUEUE_DEPTH)
		return -EAGAIN;
	int r = disk_io_begin(io);

	if (!r && io->buffer >= 0 && !in_buffer(q, io->buffer, io->parts))
		r = -EINVAL;
	if (r)
		return r;
	disk_io_append(&q->started, io);
	q->under_way++;
	return 0;
}

static int uring_submit(struct disk_ops_queue *queue)
{
	struct uring_queue *q = queue_of(queue);
	struct disk_io *io;

	lock_assert_none_held();
	int r = set_going(q);

	if (r)
		return r;
	while ((io = disk_io_take(&q->started)))
		prepare(q, io);
	return tell(q);
}

/* ---- from the kernel -------------------------------------------------------------------------------------------- */

static void hear_bell(struct uring_queue *q)
{
	uint64_t wakes;

	q->polled = false;
	if (read(q->bell, &wakes, sizeof(wakes)) == sizeof(wakes)) {
		atomic_exchange(&q->rung, false); /* what was done before a wake that finds it true is seen by the caller */
		q->woken = true;
	}
}

/* Takes all that the ring has; what moved too little goes on. */
static void collect(struct uring_queue *q)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&q->ring, &cqe) == 0) {
		struct disk_io *io = io_uring_cqe_get_data(cqe);
		int moved = cqe->res;

		io_uring_cqe_seen(&q->ring, cqe);
		if (!io)
			hear_bell(q);
		else if (disk_io_moved(io, moved))
			disk_io_append(&q->ended, io);
		else
			prepare(q, io);
	}
	if (!q->polled)
		poll_bell(q);
	tell(q);
}

static void await_some(struct uring_queue *q, uint64_t ns)
{
	bool refused = io_uring_sq_ready(&q->ring) != 0;
	uint64_t most = refused && ns > REFUSED_NS ? REFUSED_NS : ns;
	struct __kernel_timespec left = {.tv_sec = (int64_t)(most / 1000000000u), .tv_nsec = (long long)(most % 1000000000u)};
	struct io_uring_cqe *cqe;

	io_uring_wait_cqe_timeout(&q->ring, &cqe, &left);
}

static struct disk_io *uring_reap(struct disk_ops_queue *queue, uint64_t patience_ns)
{
	struct uring_queue *q = queue_of(queue);
	uint64_t deadline = 0;

	lock_assert_none_held();
	if (set_going(q))
		return NULL;
	for (;;) {
		struct disk_io *io = disk_io_take(&q->ended);

		if (!io) {
			collect(q);
			io = disk_io_take(&q->ended);
		}
		if (io) {
			q->under_way--;
			return io;
		}
		if (!patience_ns)
			return NULL;
		if (q->woken) {
			q->woken = false;
			return NULL;
		}
		uint64_t now = clock_now_ns();

		if (!deadline)
			deadline = now + (patience_ns < LONG_NS ? patience_ns : LONG_NS);
		if (now >= deadline)
			return NULL;
		await_some(q, deadline - now);
	}
}

static void uring_wake(struct disk_ops_queue *queue)
{
	struct uring_queue *q = queue_of(queue);
	uint64_t one = 1;

	if (atomic_exchange(&q->rung, true))
		return;
	while (write(q->bell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static void uring_free(struct disk_ops **ops)
{
	free(*ops);
	*ops = NULL;
}

static const struct disk_ops_table table = {
	.name = "uring",
	.free = uring_free,
	DISK_FILES_ENTRIES,
	.queue_new = uring_queue_new,
	.queue_free = uring_queue_free,
	.queue_keep = uring_queue_keep,
	.buffer_add = uring_buffer_add,
	.buffer_drop = uring_buffer_drop,
	.start = uring_start,
	.submit = uring_submit,
	.reap = uring_reap,
	.wake = uring_wake,
};

/* The best flags that the kernel takes; old ones answer EINVAL to those that they do not know. */
static int choose_flags(unsigned *ret)
{
	int r = -ENOSYS;

	for (size_t i = 0; i < sizeof(flag_choices) / sizeof(flag_choices[0]); i++) {
		struct io_uring ring;

		r = ring_make(&ring, 4, flag_choices[i]);
		if (!r) {
			io_uring_queue_exit(&ring);
			*ret = flag_choices[i];
			return 0;
		}
		if (r != -EINVAL)
			return r;
	}
	return r;
}

int disk_ops_uring_new(struct disk_ops **ret, struct why *why)
{
	unsigned flags = 0;

	lock_assert_none_held();
	int r = choose_flags(&flags);

	if (r)
		return sorry(why, -r);
	struct uring_ops *u = calloc(1, sizeof(*u));

	if (!u)
		return why_set(why, ENOMEM, "no memory for io_uring");
	u->files.ops.table = &table;
	u->flags = flags;
	*ret = &u->files.ops;
	return 0;
}
