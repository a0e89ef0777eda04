/* SPDX-License-Identifier: Apache-2.0
 *
 * pfs_gpu_get: look up, make a get plan, copy, wait, release; the same again where memory holds a part at a time, and where less came than
 * one can go on from.
 */
#include <errno.h>
#include <string.h>

#include "kernels/attach.h"
#include "kernels/moves.h"
#include "kernels/say.h"

#define LOOKS 3u    /* for a boundary that all can be delivered of */
#define ATTACHES 3u /* of one plan */

typedef unsigned long long ull;

/* What is fetched. */
struct fetch {
	const struct pfs_gpu_get_request *q;
	struct pfs_session_info info;
	uint64_t handle; /* 0: none is open */
	uint64_t start, from, to;
	uint64_t at; /* up to here it is done */
	uint32_t class_mask;
	bool gaps; /* of a class less than all pages was delivered: the boundary `to` needs no more */
};

static int check_classes(struct pfs_session *session, struct fetch *f)
{
	const struct pfs_gpu_get_request *q = f->q;
	uint32_t looked_up = q->get && q->get->class_mask ? q->get->class_mask : UINT32_MAX, all = 0;
	int r = 0;

	if (!q->classes || q->class_count == 0 || q->class_count > PFS_MAX_CLASSES)
		return gpu_say(EINVAL, "a get has no pages, or those of more than %u classes", PFS_MAX_CLASSES);
	for (uint32_t c = 0; c < q->class_count; c++) {
		if (!q->class_mask && !q->classes[c].pool != !q->classes[c].pages)
			return gpu_say(EINVAL, "class %u has a pool without pages, or pages without a pool", c);
		all |= q->classes[c].pool && q->classes[c].pages ? 1u << c : 0;
	}
	f->class_mask = q->class_mask ? q->class_mask : all & looked_up;
	if (f->class_mask == 0 || (f->class_mask & ~all))
		return gpu_say(EINVAL, "classes 0x%x are fetched, pools and pages are given for 0x%x", f->class_mask, all);
	if (f->class_mask & ~looked_up)
		return gpu_say(EINVAL, "classes 0x%x are fetched, 0x%x are looked up", f->class_mask, looked_up);
	for (uint32_t c = 0; c < q->class_count && !r; c++)
		if (f->class_mask >> c & 1)
			r = c < f->info.classes ? moves_check(session, &f->info, c, &q->classes[c])
						: gpu_say(EINVAL, "class %u is fetched, the layout has %u classes", c, f->info.classes);
	return r;
}

/* Where keys begin, and the first page that the caller does not hold whole. */
static void set_range(struct fetch *f)
{
	const struct pfs_gpu_get_request *q = f->q;
	uint64_t held = q->get ? q->get->have / f->info.page_tokens * f->info.page_tokens : 0;

	f->start = q->get ? q->get->start : q->start;
	f->from = q->from;
	if (q->get && q->from == 0)
		f->from = held > f->start ? held : f->start;
	f->to = q->to;
}

static int check_range(const struct fetch *f)
{
	uint64_t page = f->info.page_tokens;
	bool given = !f->q->get || (f->q->from && f->q->to); /* both ends */

	if (f->from % page || f->to % page || f->start % page)
		return gpu_say(EINVAL, "tokens %llu..%llu of keys from %llu on are to be fetched, and pages have %llu", (ull)f->from,
			(ull)f->to, (ull)f->start, (ull)page);
	if (f->from < f->start || (given && f->to <= f->from))
		return gpu_say(EINVAL, "tokens %llu..%llu are to be fetched, and the first key is at %llu", (ull)f->from, (ull)f->to,
			(ull)f->start);
	if (f->q->get && f->from + page <= f->q->get->have)
		return gpu_say(EINVAL, "tokens from %llu on are to be fetched, and have is %llu", (ull)f->from, (ull)f->q->get->have);
	return 0;
}

/* All that can be judged before there is a plan; not a device that is lost, as of a put. */
static int check_request(const struct pfs_gpu *gpu, struct pfs_session *session, struct fetch *f)
{
	const struct pfs_gpu_get_request *q = f->q;
	int r;

	if (!gpu)
		return gpu_say(EINVAL, "a get has no device");
	if (q->reserved[0] || q->reserved[1] || q->reserved[2])
		return gpu_say(EINVAL, "reserved fields of a get are not 0");
	if (q->flags & ~PFS_GPU_URGENT)
		return gpu_say(EINVAL, "flags are 0x%x, 0 or PFS_GPU_URGENT are possible", q->flags);
	if (q->get && q->handle)
		return gpu_say(EINVAL, "a get has a look-up and a handle, one of them is possible");
	pfs_info(session, &f->info);
	r = check_classes(session, f);
	if (r)
		return r;
	set_range(f);
	return check_range(f);
}

static void drop_handle(struct pfs_session *session, struct fetch *f)
{
	if (f->handle)
		pfs_get_cancel(session, f->handle);
	f->handle = 0;
}

/* Looks up. @limit: tokens, 0 = what the request says. */
static int look_up(struct pfs_session *session, struct fetch *f, uint64_t limit)
{
	struct pfs_get_request get = *f->q->get;
	struct pfs_get_result found;
	int r;

	if (limit)
		get.limit = limit;
	r = pfs_get_start(session, &get, &found);
	if (r)
		return from_client(r, "looking up");
	f->handle = found.handle;
	f->to = f->q->to;
	if (f->to == 0 || f->to > found.transferable_len)
		f->to = found.transferable_len;
	if (f->to <= f->q->get->have)
		f->to = f->from;
	return 0;
}

static int start_copies(struct moves *m, struct fetch *f, const struct pfs_transfer_result *plan)
{
	uint32_t pages = (uint32_t)((plan->delivered_len - f->at) / f->info.page_tokens);
	uint64_t skip = (f->at - f->start) / f->info.page_tokens;
	int r = 0;

	for (uint32_t c = 0; c < f->q->class_count && !r; c++) {
		struct pfs_gpu_pages at = f->q->classes[c];
		bool state = f->info.state_mask >> c & 1;
		uint32_t before = m->values;

		if (!(f->class_mask >> c & 1) || !plan->offsets[c] || (state && plan->delivered_len < f->to))
			continue;
		if (!state)
			at.pages += skip * pool_pages_per_value(at.pool);
		r = moves_start(m, &at, plan->segment, plan->offsets[c], state ? 1 : pages, f->q->after, f->q->flags);
		f->gaps |= !state && m->values - before < pages;
	}
	return r;
}

static int copy_plan(struct moves *m, struct fetch *f, const struct pfs_transfer_result *plan, struct pfs_gpu_get_result *ret)
{
	int r = start_copies(m, f, plan), s;

	r = moves_wait(m, work_deadline(m->gpu, f->q->deadline_ms), r);
	s = moves_end(m, true);
	if (!r && s)
		r = from_client(s, "releasing what was fetched");
	if (r)
		return r;
	f->at = plan->delivered_len;
	ret->bytes += m->bytes;
	ret->values += m->values;
	return 0;
}

/* Values may come into memory that was granted since the session was attached here: then it is attached again. */
static int make_plan(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_transfer_request *q, struct pfs_transfer_result *plan)
{
	int r = pfs_get_transfer(session, q, plan);

	for (unsigned turn = 0; turn < ATTACHES && r == -ENXIO; turn++) {
		int s = attach_again(gpu, session);

		if (s == -ENOENT)
			break;
		if (s)
			return s;
		r = pfs_get_transfer(session, q, plan);
	}
	return r ? from_client(r, "making a get plan") : 0;
}

/* One plan of what is left: f->at moves on by what came. */
static int transfer(struct pfs_gpu *gpu, struct pfs_session *session, struct fetch *f, struct pfs_gpu_get_result *ret)
{
	const struct pfs_transfer_request q = {
		.handle = f->handle, .boundary = f->to, .from = f->at, .to = f->to, .class_mask = f->class_mask,
		.deadline_ms = f->q->deadline_ms < PFS_MAX_DEADLINE_MS ? f->q->deadline_ms : PFS_MAX_DEADLINE_MS};
	struct pfs_transfer_result plan = {0};
	struct moves m;
	int r = moves_init(&m, gpu, session, true);

	if (r)
		return r;
	r = make_plan(gpu, session, &q, &plan);
	if (plan.handle_ended)
		f->handle = 0;
	if (plan.plan) {
		m.plan = plan.plan;
		return copy_plan(&m, f, &plan, ret);
	}
	moves_end(&m, false);
	return r;
}

/* What one can go on from. Less than `to` is of use only where all was delivered up to there that its boundary needs. */
static uint64_t restored(const struct fetch *f)
{
	bool lacking = f->gaps || (f->class_mask & f->info.state_mask);

	return f->at < f->to && lacking ? f->from : f->at;
}

static int fetch_all(struct pfs_gpu *gpu, struct pfs_session *session, struct fetch *f, struct pfs_gpu_get_result *ret)
{
	uint64_t before;
	int r;

	do {
		before = f->at;
		r = transfer(gpu, session, f, ret);
	} while (!r && f->handle && f->at > before && f->at < f->to);
	return r == -EAGAIN && f->at > f->from ? 0 : r; /* there is no memory for the rest */
}

/* The ticket of a look-up has one answer. */
static bool may_look_again(const struct pfs_get_request *get)
{
	static const uint8_t none[PFS_TICKET_BYTES];

	return memcmp(get->ticket, none, sizeof(none)) == 0;
}

/* Looks up and fetches. Where less came - a value could not be read, or memory is short - than one can go on from, the boundary below what came
 * is looked for and fetched. */
static int fetch_found(struct pfs_gpu *gpu, struct pfs_session *session, struct fetch *f, struct pfs_gpu_get_result *ret)
{
	uint64_t limit = 0, last = UINT64_MAX;

	for (unsigned look = 0; look < LOOKS; look++) {
		int r = look_up(session, f, limit);

		f->at = f->from;
		f->gaps = false;
		if (r || f->to <= f->from || f->to >= last)
			return r;
		r = fetch_all(gpu, session, f, ret);
		if (r || f->at == f->to || (f->at > f->from && restored(f) == f->at) || !may_look_again(f->q->get))
			return r;
		drop_handle(session, f);
		last = f->to;
		limit = f->at > f->from ? f->at : limit; /* where nothing came at all, what could not be read is not found again */
	}
	return 0;
}

int pfs_gpu_get(struct pfs_gpu *gpu, struct pfs_session *session, const struct pfs_gpu_get_request *q,
	struct pfs_gpu_get_result *ret)
{
	struct pfs_gpu_get_result result = {0};
	struct fetch f = {.q = q};
	int r;

	if (!session || !q)
		return gpu_say(EINVAL, "a get has no session or no request");
	r = gpu ? work_mine(gpu) : 0;
	if (r) /* the handle is the parent's */
		return r;
	f.handle = q->handle;
	r = check_request(gpu, session, &f);
	f.at = f.from;
	if (!r && q->get)
		r = fetch_found(gpu, session, &f, &result);
	else if (!r)
		r = fetch_all(gpu, session, &f, &result);
	drop_handle(session, &f);
	result.restored_len = restored(&f);
	if (!r && ret)
		*ret = result;
	return r;
}
