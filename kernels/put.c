/* SPDX-License-Identifier: Apache-2.0
 *
 * pfs_gpu_put: start, copy, wait, commit.
 */
#include <errno.h>
#include <stdlib.h>

#include "fs/client/prefixfs.h"
#include "kernels/moves.h"
#include "kernels/say.h"

#define PENDING_LOOK_MS 10u

static int check_request(const struct pfs_gpu_put_request *q)
{
	if (!q || !q->put || !q->classes)
		return gpu_say(EINVAL, "a put has no request or no pages");
	if (q->reserved0 || q->reserved[0] || q->reserved[1] || q->reserved[2])
		return gpu_say(EINVAL, "reserved fields of a put are not 0");
	for (uint32_t c = 0; c < 32; c++)
		if ((q->put->class_mask >> c & 1) && (c >= PFS_MAX_CLASSES || !q->classes[c].pool || !q->classes[c].pages))
			return gpu_say(EINVAL, "class %u is put, and has no pool or no pages", c);
	return 0;
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

static void count_groups(struct pfs_gpu_put_result *ret, const uint32_t *status, uint32_t count)
{
	ret->groups_committed = ret->groups_refused = ret->groups_lost = ret->groups_pending = 0;
	for (uint32_t i = 0; i < count; i++) {
		ret->groups_committed += status[i] == PFS_GROUP_COMMITTED;
		ret->groups_refused += status[i] == PFS_GROUP_NOROOM || status[i] == PFS_GROUP_TOOBIG;
		ret->groups_lost += status[i] == PFS_GROUP_LOST;
		ret->groups_pending += status[i] == PFS_GROUP_PENDING;
	}
}

/* Groups that wait for another plan's key are asked about again until the deadline, and given back then. */
static int commit(struct moves *m, uint32_t groups, uint64_t until, uint32_t *status, struct pfs_gpu_put_result *ret)
{
	struct pfs_put_outcome outcome;
	int r;

	for (;;) {
		r = pfs_put_commit(m->session, m->plan, 0, 0, status, &outcome);
		if (r)
			return from_client(r, "committing");
		count_groups(ret, status, groups);
		if (ret->groups_pending == 0 || outcome.outcome != PFS_GROUP_OK)
			return 0;
		if (work_deadline(m->gpu, PENDING_LOOK_MS) > until)
			break;
		pfs_news(m->session, PENDING_LOOK_MS);
	}
	pfs_put_abort(m->session, m->plan, 0, 0, NULL, NULL);
	return 0;
}

int pfs_gpu_put(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_put_request *q, uint32_t *status,
	struct pfs_gpu_put_result *ret)
{
	struct moves m = {.gpu = gpu, .session = session};
	struct pfs_gpu_put_result result = {0};
	uint32_t *own_status;
	struct pfs_session_info info;
	struct pfs_put_result plan;
	uint64_t until;
	int r = check_request(q);

	if (r)
		return r;
	own_status = malloc((q->put->group_count + 1ull) * sizeof(*own_status));
	if (!own_status)
		return gpu_say(ENOMEM, "no memory for the answers of %u groups", q->put->group_count);
	until = work_deadline(gpu, q->deadline_ms);
	pfs_info(session, &info);
	r = pfs_put_start(session, q->put, &plan);
	if (r) {
		free(own_status);
		return from_client(r, "starting a put");
	}
	m.plan = plan.plan;
	result.new_values = plan.new_values;
	r = start_copies(&m, q, &plan, info.state_mask);
	if (!r)
		r = moves_wait(&m, until);
	if (r) {
		if (r != -ETIMEDOUT) /* those that were started before */
			moves_wait(&m, until);
		moves_end(&m, true);
		free(own_status);
		return r;
	}
	result.bytes = m.bytes;
	moves_end(&m, false);
	r = commit(&m, q->put->group_count, until, own_status, &result);
	for (uint32_t i = 0; status && !r && i < q->put->group_count; i++)
		status[i] = own_status[i];
	free(own_status);
	if (!r && ret)
		*ret = result;
	return r;
}
