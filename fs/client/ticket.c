/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks of one request tell each other through the daemon; and when a state is due in generation.
 */
#include <errno.h>
#include <string.h>

#include "fs/client/client.h"

struct confirm {
	const uint8_t *ticket;
	uint32_t flags, call_flags, deadline_ms;
	uint64_t restored;
};

static int confirm_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct confirm *c = context;
	struct pfs_get_confirm a = {.flags = c->flags};
	int r;

	memcpy(a.ticket, c->ticket, sizeof(a.ticket));
	r = call_run(session, conn, PFS_IOC_GET_CONFIRM, &a.call, sizeof(a), c->call_flags, c->deadline_ms);
	c->restored = r ? 0 : a.restored;
	return r;
}

int pfs_get_confirm(struct pfs_session *session, const uint8_t ticket[16], int failed, uint32_t call_flags, uint32_t deadline_ms,
	uint64_t *restored)
{
	static const uint8_t none[PFS_TICKET_BYTES];
	struct confirm c = {
		.ticket = ticket,
		.flags = failed ? PFS_CONFIRM_FAILED : 0,
		.call_flags = call_flags,
		.deadline_ms = deadline_ms,
	};
	struct pfs_session_info info;
	int r;

	if (!memcmp(ticket, none, sizeof(none)))
		return say(EINVAL, "confirm: the ticket is zero");
	r = conn_run(session, confirm_on, &c);
	pfs_info(session, &info);
	/* A daemon that was restarted knows no ticket of before, or one of that name to which other ranks have come since. */
	if (r == -ENOENT || (r == -EPERM && info.rank != PFS_RANK_NONE && info.reattached > 0))
		r = 0;
	if (!r)
		*restored = c.restored;
	return r;
}

int pfs_ladder_due(uint64_t committed, uint64_t last, uint64_t interval, uint32_t page_tokens, uint64_t end, uint32_t room)
{
	if (!interval || !page_tokens || committed % page_tokens || committed < last || committed - last < interval)
		return 0;
	return end == 0 || (committed <= end && end - committed >= room);
}
