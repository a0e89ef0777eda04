/* SPDX-License-Identifier: Apache-2.0
 *
 * Granted ranges: listing them, and acknowledging those of this rank's shares.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fs/client/client.h"

#define STEP_RANGES 256u          /* of one SEGMENTS call of our own */
#define MAX_RANGES 32768u         /* of one call by the user */
#define MAX_REMEMBERED (1u << 20) /* ids above are acknowledged each time */
#define SYNC_TURNS 4u

static bool is_acked(const struct conn *conn, const struct pfs_range *r)
{
	return r->id < conn->acked_capacity && conn->acked[r->id] == r->generation + 1;
}

static void remember(struct conn *conn, const struct pfs_range *r)
{
	if (r->id >= MAX_REMEMBERED)
		return;
	if (r->id >= conn->acked_capacity) {
		uint32_t capacity = r->id + 64;
		uint32_t *p = realloc(conn->acked, capacity * sizeof(*p));

		if (!p)
			return; /* it is acknowledged again, which does no harm */
		memset(p + conn->acked_capacity, 0, (capacity - conn->acked_capacity) * sizeof(*p));
		conn->acked = p;
		conn->acked_capacity = capacity;
	}
	conn->acked[r->id] = r->generation + 1;
}

static void premap(struct pfs_session *session, struct conn *conn, const struct pfs_range *r)
{
	int advice = session->options.read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;

	/* Best effort: what fails here is mapped at first use. */
	if (r->offset <= conn->segment_bytes && r->length <= conn->segment_bytes - r->offset)
		madvise(conn->segment + r->offset, r->length, advice);
}

/* (ranges_lock) One walk over all ranges. *version: of which everything is acknowledged now. -ESTALE: one was cut anew
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
		const struct pfs_range *ranges = (const void *)(conn->buffer + area);
		struct pfs_range_ack *acks = (void *)(conn->buffer + area + acks_offset);
		struct pfs_segments_ack a = {.acks_offset = area + acks_offset};

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
		uint32_t place[STEP_RANGES];

		for (uint32_t i = 0; i < q.count; i++) {
			struct pfs_range range = ranges[i];

			if (range.class_index >= conn->classes || range.share != conn->share[range.class_index] ||
				is_acked(conn, &range))
				continue;
			if (session->options.premap)
				premap(session, conn, &range);
			place[a.count] = i;
			acks[a.count++] = (struct pfs_range_ack){range.id, range.generation};
		}
		if (a.count > 0) {
			r = call_run(session, conn, PFS_IOC_SEGMENTS_ACK, &a.call, sizeof(a), 0, 0);
			if (r) /* -ESTALE: cut anew meanwhile; those that counted are acknowledged once more, which does no harm */
				break;
			for (uint32_t i = 0; i < a.count; i++)
				remember(conn, &ranges[place[i]]);
		}
		q.first += q.count;
	} while (q.count > 0 && q.first < q.total);
	area_give(session, conn, area);
	*version = first_version;
	return r;
}

int ranges_sync(struct pfs_session *session, struct conn *conn, uint64_t version)
{
	uint64_t walked;
	int r = 0;

	if (!session->options.auto_ack || session->options.rank == PFS_RANK_NONE)
		return 0;
	pthread_mutex_lock(&session->ranges_lock);
	if (conn->ranges_version < version) {
		for (unsigned turn = 0; turn < SYNC_TURNS; turn++) {
			r = walk(session, conn, &walked);
			if (!r)
				conn->ranges_version = walked;
			if (r != -ESTALE)
				break;
		}
		/* They change faster than we walk. That says nothing about the connection, as ESTALE does of other calls; what is
		 * not acknowledged yet is so after the next answer. */
		if (r == -ESTALE)
			r = 0;
	}
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

int pfs_segments_ack(struct pfs_session *session, const struct pfs_range_ack *acks, uint32_t count, uint32_t *accepted)
{
	struct pfs_segments_ack a = {.count = count};
	struct conn *conn;
	int r;

	if (!acks || count == 0 || count > MAX_RANGES)
		return say(EINVAL, "count is %u, 1..%u acknowledgements are possible", count, MAX_RANGES);
	/* Not asked again after a restart: those ranges were of the mapping that is gone. */
	r = conn_get(session, &conn);
	if (r)
		return r;
	r = area_take(session, conn, count * sizeof(*acks), &a.acks_offset);
	if (!r) {
		memcpy(conn->buffer + a.acks_offset, acks, count * sizeof(*acks));
		r = call_run(session, conn, PFS_IOC_SEGMENTS_ACK, &a.call, sizeof(a), 0, 0);
		area_give(session, conn, a.acks_offset);
		if (accepted && (!r || r == -ESTALE))
			*accepted = a.accepted;
	}
	conn_put(session, &conn);
	return r;
}
