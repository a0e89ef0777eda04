/* SPDX-License-Identifier: Apache-2.0
 *
 * Granted ranges: listing them, and acknowledging those of this rank's shares.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "fs/client/client.h"

#define STEP_RANGES 256u          /* of one SEGMENTS call of our own */
#define MAX_RANGES 32768u         /* of one call by the user */
#define SYNC_TURNS 4u

static void premap(struct pfs_session *session, struct conn *conn, const struct pfs_range *r)
{
	int advice = session->options.read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;

	/* Best effort: what fails here is mapped at first use. */
	if (r->offset <= conn->segment_bytes && r->length <= conn->segment_bytes - r->offset)
		madvise(conn->segment + r->offset, r->length, advice);
}

/* (ranges_lock) Is it to be acknowledged on this connection, and by the library? */
static bool wanted(const struct pfs_session *session, const struct conn *conn, const struct pfs_range *r)
{
	if (acks_have(&conn->acked, r))
		return false;
	if (!session->options.auto_ack)
		return acks_have(&conn->mapping->acked, r);
	return r->class_index < conn->classes && r->share == conn->share[r->class_index];
}

/* (ranges_lock) */
static void remember(struct conn *conn, const struct pfs_range *r)
{
	acks_add(&conn->acked, r);
	acks_add(&conn->mapping->acked, r);
}

/* (ranges_lock) Acknowledges what is wanted of the ranges listed in the call buffer. */
static int acknowledge(struct pfs_session *session, struct conn *conn, const struct pfs_range *ranges, uint32_t count, __u64 acks_offset)
{
	struct pfs_range_ack *acks = (void *)(conn->buffer + acks_offset);
	struct pfs_segments_ack a = {.acks_offset = acks_offset};
	uint32_t place[STEP_RANGES];
	int r;

	for (uint32_t i = 0; i < count; i++) {
		struct pfs_range range = ranges[i];

		if (!wanted(session, conn, &range))
			continue;
		if (session->options.premap && !acks_have(&conn->mapping->acked, &range))
			premap(session, conn, &range);
		place[a.count] = i;
		acks[a.count++] = (struct pfs_range_ack){range.id, range.generation};
	}
	if (a.count == 0)
		return 0;
	r = call_run(session, conn, PFS_IOC_SEGMENTS_ACK, &a.call, sizeof(a), 0, 0);
	if (r) /* -CHANGED_SINCE: those that counted are acknowledged once more, which does no harm */
		return r;
	for (uint32_t i = 0; i < a.count; i++)
		remember(conn, &ranges[place[i]]);
	return 0;
}

/* (ranges_lock) One walk over all ranges. *version: of which everything is acknowledged now. -CHANGED_SINCE: one was cut anew
 * meanwhile. */
static int walk(struct pfs_session *session, struct conn *conn, uint64_t *version)
{
	__u64 area, acks_offset = STEP_RANGES * sizeof(struct pfs_range);
	struct pfs_segments q = {.capacity = STEP_RANGES};
	uint64_t first_version = 0;
	int r = area_take(session, conn, acks_offset + STEP_RANGES * sizeof(struct pfs_range_ack), &area);

	if (r)
		return r;
	q.ranges_offset = area;
	do {
		r = call_run(session, conn, PFS_IOC_SEGMENTS, &q.call, sizeof(q), 0, 0);
		if (r)
			break;
		if (q.count > STEP_RANGES) {
			r = say(EBADMSG, "SEGMENTS answered %u ranges where %u have room", q.count, STEP_RANGES);
			break;
		}
		/* What changes behind the walk's back is newer than its first piece, and told by the next answer. */
		if (q.first == 0)
			first_version = q.version;
		r = acknowledge(session, conn, (const void *)(conn->buffer + area), q.count, area + acks_offset);
		q.first += q.count;
	} while (!r && q.count > 0 && q.first < q.total);
	area_give(session, conn, area);
	*version = first_version;
	return r;
}

/* (ranges_lock) Walks until nothing changes meanwhile. *version stays as it is when they change faster than we walk, which is no error:
 * what is not acknowledged yet is so after the next answer. */
static int walk_on(struct pfs_session *session, struct conn *conn, uint64_t *version)
{
	uint64_t walked = 0;
	int r = -CHANGED_SINCE;

	for (unsigned turn = 0; turn < SYNC_TURNS && r == -CHANGED_SINCE; turn++)
		r = walk(session, conn, &walked);
	if (!r)
		*version = walked;
	return r == -CHANGED_SINCE ? 0 : r;
}

int ranges_sync(struct pfs_session *session, struct conn *conn, uint64_t version)
{
	uint64_t walked = 0;
	int r = 0;

	if (!session->options.auto_ack || session->options.rank == PFS_RANK_NONE)
		return 0;
	pthread_mutex_lock(&session->ranges_lock);
	if (conn->ranges_version < version) {
		r = walk_on(session, conn, &walked);
		if (walked)
			conn->ranges_version = walked;
	}
	pthread_mutex_unlock(&session->ranges_lock);
	return r;
}

int ranges_repeat(struct pfs_session *session, struct conn *conn)
{
	uint64_t walked;
	int r = 0;

	pthread_mutex_lock(&session->ranges_lock);
	if (conn->mapping->acked.capacity > 0)
		r = walk_on(session, conn, &walked);
	pthread_mutex_unlock(&session->ranges_lock);
	return r;
}

struct listing {
	struct pfs_range *to;
	struct pfs_segments q;
};

static int segments_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct listing *l = context;
	struct pfs_segments q = l->q;
	int r = area_take(session, conn, q.capacity * sizeof(*l->to), &q.ranges_offset);

	if (r)
		return r;
	r = call_run(session, conn, PFS_IOC_SEGMENTS, &q.call, sizeof(q), 0, 0);
	if (!r && q.count <= q.capacity) {
		memcpy(l->to, conn->buffer + q.ranges_offset, q.count * sizeof(*l->to));
		l->q = q;
		pthread_mutex_lock(&session->ranges_lock);
		session->listed = conn->mapping->number;
		pthread_mutex_unlock(&session->ranges_lock);
	}
	area_give(session, conn, q.ranges_offset);
	return r;
}

int pfs_segments(struct pfs_session *session, uint32_t first, struct pfs_range *to, uint32_t capacity, uint32_t *count,
	uint32_t *total, uint64_t *version)
{
	struct listing l = {.to = to, .q = {.first = first, .capacity = capacity}};
	int r;

	if (capacity > MAX_RANGES || (capacity > 0 && !to))
		return say(EINVAL, "capacity is %u, at most %u ranges are possible", capacity, MAX_RANGES);
	r = conn_run(session, segments_on, &l);
	if (r)
		return r;
	if (count)
		*count = l.q.count;
	if (total)
		*total = l.q.total;
	if (version)
		*version = l.q.version;
	return 0;
}

struct acking {
	const struct pfs_range_ack *acks;
	uint32_t count, accepted;
};

static int ack_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct acking *k = context;
	struct pfs_segments_ack a = {.count = k->count};
	int r;

	k->accepted = 0;
	pthread_mutex_lock(&session->ranges_lock);
	r = session->listed && session->listed != conn->mapping->number ? -CHANGED_SINCE : 0;
	pthread_mutex_unlock(&session->ranges_lock);
	if (r) {
		say(ESTALE, "the daemon was restarted, and its memory is new: list its ranges again");
		return r;
	}
	r = area_take(session, conn, k->count * sizeof(*k->acks), &a.acks_offset);
	if (r)
		return r;
	memcpy(conn->buffer + a.acks_offset, k->acks, k->count * sizeof(*k->acks));
	r = call_run(session, conn, PFS_IOC_SEGMENTS_ACK, &a.call, sizeof(a), 0, 0);
	area_give(session, conn, a.acks_offset);
	if (!r || r == -CHANGED_SINCE)
		k->accepted = a.accepted;
	pthread_mutex_lock(&session->ranges_lock);
	for (uint32_t i = 0; i < k->count && !r; i++)
		remember(conn, &(struct pfs_range){.id = k->acks[i].id, .generation = k->acks[i].generation});
	pthread_mutex_unlock(&session->ranges_lock);
	return r;
}

int pfs_segments_ack(struct pfs_session *session, const struct pfs_range_ack *acks, uint32_t count, uint32_t *accepted)
{
	struct acking k = {acks, count, 0};
	int r;

	if (!acks || count == 0 || count > MAX_RANGES)
		return say(EINVAL, "count is %u, 1..%u acknowledgements are possible", count, MAX_RANGES);
	r = conn_run(session, ack_on, &k);
	if (accepted && (!r || r == -CHANGED_SINCE))
		*accepted = k.accepted;
	return r == -CHANGED_SINCE ? -ESTALE : r;
}
