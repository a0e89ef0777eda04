/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots of put plans that ended without their process: nobody knows whether its GPU still writes there, so they rest until
 * the process's pidfd is readable, and its guard's (host_process_gone).
 */
#include "store/host_private.h"

#include <stdlib.h>
#include <string.h>

#include "store/seating.h"
#include "store/session_private.h"

void quarantine_add(struct session *session, const uint32_t *entries, uint32_t count)
{
	struct host *host = session->host;
	struct space *space = session->space;
	struct quarantine *q;

	if (!count)
		return;
	q = malloc(sizeof(*q) + (size_t)count * sizeof(q->entries[0]));
	if (!q)
		return; /* leaked: counted in slots_quarantined, never handed out again */
	q->space = space_ref(space);
	q->session = session->number;
	lock_take(&space->lock);
	q->seat = session->seat;
	lock_drop(&space->lock);
	q->count = count;
	memcpy(q->entries, entries, (size_t)count * sizeof(q->entries[0]));
	lock_take(&host->lock);
	q->next = host->quarantine;
	host->quarantine = q;
	lock_drop(&host->lock);
}

/* Slots go back in pieces: the lock is never held for a whole batch. */
static void quarantine_end(struct quarantine *q)
{
	struct space *space = q->space;
	uint32_t i = 0;

	while (i < q->count) {
		uint32_t end = q->count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : q->count;

		lock_take(&space->lock);
		for (; i < end; i++)
			slot_rested(space, q->entries[i], q->seat);
		space_room(space);
		lock_drop(&space->lock);
	}
	space_unref(&q->space);
	free(q);
}

static void quarantine_take_out(struct host *host, uint64_t session, bool all)
{
	struct quarantine *out = NULL, **at;

	lock_take(&host->lock);
	for (at = &host->quarantine; *at;) {
		struct quarantine *q = *at;

		if (!all && q->session != session) {
			at = &q->next;
			continue;
		}
		*at = q->next;
		q->next = out;
		out = q;
	}
	lock_drop(&host->lock);
	while (out) {
		struct quarantine *next = out->next;

		quarantine_end(out);
		out = next;
	}
}

uint32_t quarantine_of_session(struct host *host, uint64_t session)
{
	uint32_t slots = 0;

	lock_take(&host->lock);
	for (const struct quarantine *q = host->quarantine; q; q = q->next)
		slots += q->session == session ? q->count : 0;
	lock_drop(&host->lock);
	return slots;
}

void quarantine_free_session(struct host *host, uint64_t session)
{
	quarantine_take_out(host, session, false);
}

void quarantine_free_all(struct host *host)
{
	quarantine_take_out(host, 0, true);
}
