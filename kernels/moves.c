/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of plans, and plans whose copies are not done in time.
 */
#include "kernels/moves.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "fs/client/prefixfs.h"
#include "kernels/say.h"

int from_client(int error, const char *what)
{
	char why[400];

	pfs_last_error(why, sizeof(why));
	return gpu_say(-error, "%s: %s", what, why);
}

/* Lists of one class that are copied. */
struct chosen {
	uint64_t *values;
	uint32_t *pages;
	uint32_t count;
};

static int choose(const struct pfs_gpu_pages *pages, const uint8_t *segment, const uint64_t *offsets, uint32_t count,
	struct chosen *c)
{
	uint32_t each = pages->pool->pages_per_value ? pages->pool->pages_per_value : 1;

	c->values = malloc((count + 1ull) * sizeof(*c->values));
	c->pages = malloc((count + 1ull) * each * sizeof(*c->pages));
	if (!c->values || !c->pages)
		return gpu_say(ENOMEM, "no memory for the addresses of %u values", count);
	for (uint32_t i = 0; i < count; i++) {
		if (offsets[i] >= PFS_ANSWER_MIN)
			continue;
		for (uint32_t k = 0; k < each; k++)
			c->pages[(uint64_t)c->count * each + k] = pages->pages[(uint64_t)i * each + k];
		c->values[c->count++] = (uintptr_t)segment + offsets[i];
	}
	return 0;
}

int moves_start(struct moves *m, const struct pfs_gpu_pages *pages, const uint8_t *segment, const uint64_t *offsets,
	uint32_t count, void *after, uint32_t flags)
{
	struct chosen c = {0};
	struct pfs_gpu_copy copy = {.pool = pages->pool, .after = after, .flags = flags};
	int r = choose(pages, segment, offsets, count, &c);

	copy.values = c.values;
	copy.pages = c.pages;
	copy.count = c.count;
	if (!r && c.count)
		r = work_start(m->gpu, &copy, m->to_device, -1, &m->ops[m->count]);
	if (!r && c.count) {
		m->bytes += m->ops[m->count++]->shape->bytes;
		m->values += c.count;
	}
	free(c.values);
	free(c.pages);
	return r;
}

int moves_wait(struct moves *m, uint64_t deadline_ns)
{
	int r = 0;

	for (uint32_t i = 0; i < m->count && !r; i++) {
		uint64_t now = work_deadline(m->gpu, 1) - 1000000;

		r = pfs_gpu_wait(m->ops[i], deadline_ns > now ? (uint32_t)((deadline_ns - now) / 1000000 + 1) : 1);
	}
	return r;
}

/* ---- afterwards ------------------------------------------------------------------------------------------------------ */

struct aftermath {
	struct aftermath *next; /* gpu->lock */
	struct pfs_gpu *gpu;
	struct pfs_session *session;
	uint64_t plan;
	bool get;
	uint32_t left; /* gpu->lock: operations under way, and one for whoever makes it */
};

static void give_back(struct pfs_session *session, uint64_t plan, bool get)
{
	if (get)
		pfs_release(session, &plan, 1, NULL);
	else
		pfs_put_abort(session, plan, 0, 0, NULL, NULL);
}

/* One of its operations has ended. */
static void aftermath_less(void *context, int error)
{
	struct aftermath *a = context, **at;
	struct pfs_gpu *gpu = a->gpu;
	bool last;

	pthread_mutex_lock(&gpu->lock);
	last = --a->left == 0;
	pthread_mutex_unlock(&gpu->lock);
	if (!last)
		return;
	give_back(a->session, a->plan, a->get);
	pthread_mutex_lock(&gpu->lock);
	for (at = &gpu->aftermaths; *at != a;)
		at = &(*at)->next;
	*at = a->next;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
	free(a);
}

int aftermaths_wait(struct pfs_gpu *gpu, struct pfs_session *session)
{
	uint64_t until = work_deadline(gpu, 0);
	bool in_time = true;
	struct aftermath *a;

	pthread_mutex_lock(&gpu->lock);
	for (;;) {
		for (a = gpu->aftermaths; a && a->session != session;)
			a = a->next;
		if (!a || !in_time)
			break;
		in_time = work_news(gpu, until);
	}
	pthread_mutex_unlock(&gpu->lock);
	return a ? gpu_say(ETIMEDOUT, "copies of a plan of the session are still under way") : 0;
}

static struct aftermath *aftermath_make(const struct moves *m)
{
	struct aftermath *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	*a = (struct aftermath){.gpu = m->gpu, .session = m->session, .plan = m->plan, .get = m->to_device, .left = 1};
	pthread_mutex_lock(&m->gpu->lock);
	a->next = m->gpu->aftermaths;
	m->gpu->aftermaths = a;
	pthread_mutex_unlock(&m->gpu->lock);
	return a;
}

static void aftermath_more(struct aftermath *a, struct pfs_gpu_op *op)
{
	pthread_mutex_lock(&a->gpu->lock);
	a->left++;
	pthread_mutex_unlock(&a->gpu->lock);
	if (!work_tell(op, aftermath_less, a))
		aftermath_less(a, 0); /* it has ended; ours is left, so this is not the last */
}

void moves_end(struct moves *m, bool back)
{
	struct aftermath *a = back ? aftermath_make(m) : NULL;
	char why[400];

	snprintf(why, sizeof(why), "%s", gpu_said());
	/* Without memory the plan stays as it is until its session ends, which is safe. */
	for (uint32_t i = 0; i < m->count; i++) {
		if (a)
			aftermath_more(a, m->ops[i]);
		pfs_gpu_end(&m->ops[i]);
	}
	if (a)
		aftermath_less(a, 0);
	m->count = 0;
	gpu_say(0, "%s", why);
}
