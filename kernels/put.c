/* SPDX-License-Identifier: Apache-2.0
 *
 * pfs_gpu_put: start, copy, wait, commit.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/attach.h"
#include "kernels/moves.h"
#include "kernels/say.h"

#define PENDING_LOOK_MS 10u

/* All that can be judged before there is a plan. A device that is lost is not: the ranks of a ticket are told sooner by a plan that fails. */
static int check_request(const struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_put_request *q,
	struct pfs_session_info *info)
{
	int r = 0;

	if (!gpu || !session || !q || !q->put || !q->classes)
		return gpu_say(EINVAL, "a put has no device, no session, no request or no pages");
	r = work_mine(gpu);
	if (r)
		return r;
	if (q->reserved0 || q->reserved[0] || q->reserved[1] || q->reserved[2])
		return gpu_say(EINVAL, "reserved fields of a put are not 0");
	pfs_info(session, info);
	for (uint32_t c = 0; c < 32 && !r; c++) {
		if (!(q->put->class_mask >> c & 1))
			continue;
		if (c >= info->classes)
			r = gpu_say(EINVAL, "class %u is put, the layout has %u classes", c, info->classes);
		else if (!q->classes[c].pool || !q->classes[c].pages)
			r = gpu_say(EINVAL, "class %u is put, and has no pool or no pages", c);
		else
			r = moves_check(session, info, c, &q->classes[c]);
	}
	return r;
}

static int start_copies(struct moves *m, const struct pfs_gpu_put_request *q, const struct pfs_put_result *plan, uint32_t state_mask)
{
	int r = 0;

	for (uint32_t c = 0; c < PFS_MAX_CLASSES && !r; c++)
		if (plan->answers[c])
			r = moves_start(m, &q->classes[c], plan->segment, plan->answers[c],
				state_mask >> c & 1 ? q->put->group_count : q->put->key_count, q->after, 0);
	return r;
}

static bool any_pending(const uint32_t *status, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (status[i] == PFS_GROUP_PENDING)
			return true;
	return false;
}

static void count_groups(struct pfs_gpu_put_result *ret, const uint32_t *status, uint32_t count)
{
	ret->groups_committed = ret->groups_refused = ret->groups_lost = ret->groups_aborted = 0;
	for (uint32_t i = 0; i < count; i++) {
		ret->groups_committed += status[i] == PFS_GROUP_COMMITTED;
		ret->groups_refused += status[i] == PFS_GROUP_NOROOM || status[i] == PFS_GROUP_TOOBIG;
		ret->groups_lost += status[i] == PFS_GROUP_LOST;
		ret->groups_aborted += status[i] == PFS_GROUP_ABORTED;
	}
}

/* Those that are pending are given back, unless they were committed meanwhile. False: the daemon could not be asked. */
static bool give_up(struct moves *m, uint32_t groups, uint32_t *status, uint32_t *given)
{
	bool told = !pfs_put_abort(m->session, m->plan, 0, 0, given, NULL);

	for (uint32_t i = 0; i < groups; i++)
		if (status[i] == PFS_GROUP_PENDING)
			status[i] = told ? given[i] : PFS_GROUP_LOST;
	return told;
}

/* Groups that wait for another plan's key are asked about again until the deadline, and given back then. @status: of each group; @given:
 * room for as many. The session's news is the engine's: it is not looked at. *open: something may be left of the plan. */
static int commit(struct moves *m, uint32_t groups, uint64_t until, uint32_t *status, uint32_t *given, struct pfs_gpu_put_result *ret, bool *open)
{
	struct pfs_put_outcome outcome;
	int r;

	for (;;) {
		r = pfs_put_commit(m->session, m->plan, 0, 0, status, &outcome);
		*open = r != 0;
		if (r)
			return from_client(r, "committing");
		if (!any_pending(status, groups) || outcome.outcome != PFS_GROUP_OK)
			break;
		if (work_deadline(m->gpu, PENDING_LOOK_MS) > until) {
			*open = !give_up(m, groups, status, given);
			break;
		}
		nanosleep(&(struct timespec){.tv_nsec = PENDING_LOOK_MS * 1000000}, NULL);
	}
	count_groups(ret, status, groups);
	return 0;
}

/* Starts the plan and ends it. */
static int put(struct moves *m, const struct pfs_gpu_put_request *q, uint32_t state_mask, uint32_t *status, uint32_t *given,
	struct pfs_gpu_put_result *ret)
{
	struct pfs_put_result plan;
	uint64_t until;
	bool open = true;
	int r = pfs_put_start(m->session, q->put, &plan);

	if (r) {
		r = from_client(r, "starting a put");
		moves_end(m, false);
		return r;
	}
	until = work_deadline(m->gpu, q->deadline_ms);
	m->plan = plan.plan;
	ret->new_values = plan.new_values;
	ret->come_again = plan.come_again != 0;
	r = moves_wait(m, until, start_copies(m, q, &plan, state_mask));
	ret->bytes = m->bytes;
	if (!r)
		r = commit(m, q->put->group_count, until, status, given, ret, &open);
	moves_end(m, open);
	if (!r && (ret->groups_refused || ret->come_again))
		attach_again(m->gpu, m->session); /* best effort: so that another try finds what was granted since */
	return r;
}

int pfs_gpu_put(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_put_request *q, uint32_t *status,
	struct pfs_gpu_put_result *ret)
{
	struct pfs_gpu_put_result result = {0};
	struct pfs_session_info info;
	struct moves m;
	uint32_t *own_status, room;
	int r = check_request(gpu, session, q, &info);

	if (r)
		return r;
	room = q->put->group_count < PFS_MAX_GROUPS ? q->put->group_count : PFS_MAX_GROUPS; /* more are refused */
	own_status = malloc((2ull * room + 1) * sizeof(*own_status));
	if (!own_status)
		return gpu_say(ENOMEM, "no memory for the answers of %u groups", room);
	r = moves_init(&m, gpu, session, false);
	if (!r)
		r = put(&m, q, info.state_mask, own_status, own_status + room, &result);
	for (uint32_t i = 0; status && !r && i < room; i++)
		status[i] = own_status[i];
	free(own_status);
	if (!r && ret)
		*ret = result;
	return r;
}
