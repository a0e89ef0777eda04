/* SPDX-License-Identifier: Apache-2.0
 *
 * pfs_gpu_get: look up, make a get plan, copy, wait, release.
 */
#include <errno.h>

#include "fs/client/prefixfs.h"
#include "kernels/moves.h"
#include "kernels/say.h"

typedef unsigned long long ull;

/* What is fetched. */
struct fetch {
	const struct pfs_gpu_get_request *q;
	struct pfs_session_info info;
	uint64_t handle, start, from, to;
	uint32_t class_mask;
	bool nothing; /* nothing is there; the handle was given back */
};

static int check_request(const struct pfs_gpu_get_request *q, uint32_t *class_mask)
{
	uint32_t all = 0;

	if (!q || !q->classes || q->class_count == 0 || q->class_count > PFS_MAX_CLASSES)
		return gpu_say(EINVAL, "a get has no pages, or those of more than %u classes", PFS_MAX_CLASSES);
	if (q->reserved[0] || q->reserved[1] || q->reserved[2])
		return gpu_say(EINVAL, "reserved fields of a get are not 0");
	for (uint32_t c = 0; c < q->class_count; c++)
		all |= q->classes[c].pool && q->classes[c].pages ? 1u << c : 0;
	*class_mask = q->class_mask ? q->class_mask : all;
	if (*class_mask == 0 || (*class_mask & ~all))
		return gpu_say(EINVAL, "classes 0x%x are fetched, pools and pages are given for 0x%x", *class_mask, all);
	return 0;
}

/* Looks up. */
static int begin(struct pfs_session *session, struct fetch *f)
{
	const struct pfs_gpu_get_request *q = f->q;
	struct pfs_get_result found;
	int r = pfs_get_start(session, q->get, &found);

	if (r)
		return from_client(r, "looking up");
	f->handle = found.handle;
	f->start = q->get->start;
	f->from = q->from ? q->from : q->get->have / f->info.page_tokens * f->info.page_tokens;
	if (f->from < f->start)
		f->from = f->start;
	f->to = q->to && q->to < found.transferable_len ? q->to : found.transferable_len;
	f->nothing = f->to <= q->get->have || f->to <= f->from;
	if (f->nothing)
		pfs_get_cancel(session, f->handle);
	return 0;
}

static int use_handle(struct fetch *f)
{
	const struct pfs_gpu_get_request *q = f->q;

	f->handle = q->handle;
	f->start = q->start;
	f->from = q->from;
	f->to = q->to;
	if (f->from < f->start || f->to <= f->from)
		return gpu_say(EINVAL, "tokens %llu..%llu of a handle whose first key is at %llu", (ull)f->from, (ull)f->to,
			(ull)f->start);
	return 0;
}

static int start_copies(struct moves *m, const struct fetch *f, const struct pfs_transfer_result *plan)
{
	uint32_t pages = (uint32_t)((plan->delivered_len - f->from) / f->info.page_tokens);
	uint64_t skip = (f->from - f->start) / f->info.page_tokens;
	int r = 0;

	for (uint32_t c = 0; c < f->q->class_count && !r; c++) {
		struct pfs_gpu_pages at = f->q->classes[c];
		bool state = f->info.state_mask >> c & 1;

		if (!(f->class_mask >> c & 1) || !plan->offsets[c] || (state && plan->delivered_len < f->to))
			continue;
		if (!state)
			at.pages += skip * (at.pool->pages_per_value ? at.pool->pages_per_value : 1);
		r = moves_start(m, &at, plan->segment, plan->offsets[c], state ? 1 : pages, f->q->after, f->q->flags);
	}
	return r;
}

static int copy_plan(struct moves *m, const struct fetch *f, const struct pfs_transfer_result *plan, uint64_t until)
{
	int r = start_copies(m, f, plan);

	if (!r)
		r = moves_wait(m, until);
	else /* those that were started before */
		moves_wait(m, until);
	return r;
}

static int transfer(struct moves *m, struct fetch *f, uint64_t until, struct pfs_gpu_get_result *ret)
{
	const struct pfs_transfer_request q = {
		.handle = f->handle, .boundary = f->to, .from = f->from, .to = f->to, .class_mask = f->class_mask};
	struct pfs_transfer_result plan;
	int r = pfs_get_transfer(m->session, &q, &plan);

	if (r) {
		r = from_client(r, "making a get plan");
		pfs_get_cancel(m->session, f->handle);
		return r;
	}
	if (!plan.handle_ended)
		pfs_get_cancel(m->session, f->handle);
	if (plan.plan == 0)
		return 0;
	m->plan = plan.plan;
	if (plan.delivered_len > f->from)
		r = copy_plan(m, f, &plan, until);
	if (!r && plan.delivered_len > f->from)
		*ret = (struct pfs_gpu_get_result){.restored_len = plan.delivered_len, .bytes = m->bytes, .values = m->values};
	moves_end(m, true);
	return r;
}

int pfs_gpu_get(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_get_request *q,
	struct pfs_gpu_get_result *ret)
{
	struct moves m = {.gpu = gpu, .session = session, .to_device = true};
	struct pfs_gpu_get_result result = {0};
	struct fetch f = {.q = q};
	uint64_t until;
	int r = check_request(q, &f.class_mask);

	if (r)
		return r;
	until = work_deadline(gpu, q->deadline_ms);
	pfs_info(session, &f.info);
	r = q->get ? begin(session, &f) : use_handle(&f);
	result.restored_len = f.from;
	if (!r && !f.nothing)
		r = transfer(&m, &f, until, &result);
	if (!r && ret)
		*ret = result;
	return r;
}
