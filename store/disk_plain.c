/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam by preadv and pwritev. A transfer is made by the reap that returns it, one at a time and in the order in which they
 * were started; what it lacks is speed alone.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/disk_files.h"

#define LONG_NS (365ull * 24 * 3600 * 1000000000u) /* no wait is longer: the sum of two times stays one */

struct plain_queue {
	struct disk_io_list started, submitted; /* the thread's */
	uint32_t under_way;                     /* the thread's */
	int bell;                               /* eventfd, not 0 = woken; a lock would forbid wakes under other locks */
};

static int plain_queue_new(struct disk_ops *ops, struct disk_ops_queue **ret, struct why *why)
{
	struct plain_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return why_set(why, ENOMEM, "no memory for a queue of disk transfers");
	q->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (q->bell < 0) {
		int error = errno;

		free(q);
		return why_set(why, error, "no eventfd for a queue of disk transfers: %s", strerrordesc_np(error));
	}
	*ret = (struct disk_ops_queue *)q;
	return 0;
}

static void plain_queue_free(struct disk_ops_queue **queue)
{
	struct plain_queue *q = (struct plain_queue *)*queue;

	*queue = NULL;
	assert(q->under_way == 0);
	close(q->bell);
	free(q);
}

static int plain_queue_keep(struct disk_ops_queue *queue, int fd)
{
	(void)queue;
	(void)fd;
	return 0;
}

static int plain_buffer_add(struct disk_ops_queue *queue, void *memory, uint64_t bytes)
{
	return -EOPNOTSUPP;
}

static void plain_buffer_drop(struct disk_ops_queue *queue, int32_t buffer)
{
	assert(buffer < 0);
}

static int plain_start(struct disk_ops_queue *queue, struct disk_io *io)
{
	struct plain_queue *q = (struct plain_queue *)queue;

	if (q->under_way == DISK_QUEUE_DEPTH)
		return -EAGAIN;
	if (io->buffer >= 0)
		return -EINVAL;
	int r = disk_io_begin(io);

	if (r)
		return r;
	disk_io_append(&q->started, io);
	q->under_way++;
	return 0;
}

static int plain_submit(struct disk_ops_queue *queue)
{
	struct plain_queue *q = (struct plain_queue *)queue;
	struct disk_io *io;

	while ((io = disk_io_take(&q->started)))
		disk_io_append(&q->submitted, io);
	return 0;
}

static void transfer(struct disk_io *io)
{
	ssize_t moved;

	do {
		struct iovec scratch;
		const struct iovec *parts;
		int count = (int)disk_io_rest(io, &scratch, &parts);
		off_t at = (off_t)(io->offset + io->done);

		moved = io->write ? pwritev(io->fd, parts, count, at) : preadv(io->fd, parts, count, at);
		if (moved < 0)
			moved = -errno;
	} while (!disk_io_moved(io, moved));
}

static void await_wake(struct plain_queue *q, uint64_t patience_ns)
{
	uint64_t deadline = clock_now_ns() + (patience_ns < LONG_NS ? patience_ns : LONG_NS);
	struct pollfd ring = {.fd = q->bell, .events = POLLIN};
	uint64_t wakes;

	while (read(q->bell, &wakes, sizeof(wakes)) < 0) {
		uint64_t now = clock_now_ns();

		if (now >= deadline)
			return;
		struct timespec left = {
			.tv_sec = (time_t)((deadline - now) / 1000000000u),
			.tv_nsec = (long)((deadline - now) % 1000000000u),
		};

		ppoll(&ring, 1, &left, NULL);
	}
}

static struct disk_io *plain_reap(struct disk_ops_queue *queue, uint64_t patience_ns)
{
	struct plain_queue *q = (struct plain_queue *)queue;

	lock_assert_none_held();
	struct disk_io *io = disk_io_take(&q->submitted);

	if (io) {
		transfer(io);
		q->under_way--;
	} else if (patience_ns) {
		await_wake(q, patience_ns);
	}
	return io;
}

static void plain_wake(struct disk_ops_queue *queue)
{
	struct plain_queue *q = (struct plain_queue *)queue;
	uint64_t one = 1;

	while (write(q->bell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static void plain_free(struct disk_ops **ops)
{
	free(*ops);
	*ops = NULL;
}

static const struct disk_ops_table table = {
	.name = "plain",
	.free = plain_free,
	DISK_FILES_ENTRIES,
	.queue_new = plain_queue_new,
	.queue_free = plain_queue_free,
	.queue_keep = plain_queue_keep,
	.buffer_add = plain_buffer_add,
	.buffer_drop = plain_buffer_drop,
	.start = plain_start,
	.submit = plain_submit,
	.reap = plain_reap,
	.wake = plain_wake,
};

struct disk_ops *disk_ops_plain_new(void)
{
	struct disk_files *files = calloc(1, sizeof(*files));

	if (!files)
		return NULL;
	files->ops.table = &table;
	return &files->ops;
}
