/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of plans, and plans whose copies are not done in time.
 */
#include "kernels/moves.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/check.h"
#include "kernels/say.h"

#define WHY_BYTES 512u /* that a sentence has at most */
#define AGAIN_MS 10u   /* between two tries to give a plan back */

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
	uint32_t each = pool_pages_per_value(pages->pool), chosen = 0;

	for (uint32_t i = 0; i < count; i++)
		chosen += offsets[i] < PFS_ANSWER_MIN;
	c->values = malloc((chosen + 1ull) * sizeof(*c->values));
	c->pages = malloc((chosen + 1ull) * each * sizeof(*c->pages));
	if (!c->values || !c->pages)
		return gpu_say(ENOMEM, "no memory for the addresses of %u values", chosen);
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

int moves_wait(struct moves *m, uint64_t deadline_ns, int error)
{
	char why[WHY_BYTES], late[WHY_BYTES] = "";

	snprintf(why, sizeof(why), "%s", gpu_said());
	for (uint32_t i = 0; i < m->count; i++) {
		int r = work_wait(m->ops[i], deadline_ns);

		if (r == -ETIMEDOUT)
			snprintf(late, sizeof(late), "%s", gpu_said());
		else if (r && !error)
			snprintf(why, sizeof(why), "%s", gpu_said());
		if (r != -ETIMEDOUT && !error)
			error = r;
	}
	if (*late)
		return error ? gpu_say(ETIMEDOUT, "%s; and of the same plan: %s", late, why) : gpu_say(ETIMEDOUT, "%s", late);
	return error ? gpu_say(-error, "%s", why) : 0;
}

int moves_check(struct pfs_session *session, const struct pfs_session_info *info, uint32_t c, const struct pfs_gpu_pages *pages)
{
	uint64_t wanted = 0, bytes;
	int r = check_pool(pages->pool);

	if (r)
		return gpu_say(-r, "class %u: %s", c, gpu_said());
	if (info->rank != PFS_RANK_NONE) /* else the daemon refuses it */
		r = pfs_value_bytes(session, c, &wanted);
	if (r)
		return from_client(r, "asking for the bytes of a value");
	bytes = pool_value_bytes(pages->pool);
	if (wanted && bytes != wanted)
		return gpu_say(EINVAL, "class %u: the planes of its pool have %llu bytes together, a value has %llu", c,
			(unsigned long long)bytes, (unsigned long long)wanted);
	/* A value may be of several pages (`every`), which only the layout tells. */
	if (!(info->state_mask >> c & 1) && pages->pool->value_tokens % info->page_tokens)
		return gpu_say(EINVAL, "class %u: value_tokens of its pool is %u, pages have %u tokens", c, pages->pool->value_tokens,
			info->page_tokens);
	return 0;
}

/* ---- afterwards ------------------------------------------------------------------------------------------------------ */

/* A plan whose copies were not done in time, or which the daemon did not take back.
 *
 * left     who has it
 * 1..n     its operations, and the caller until all of them are told of it
 * 0        whoever made it 0: the caller gives the plan back at once (`here`), and leaves it to the thread where that cannot be done now; an
 *          operation's end leaves it to the thread */
struct aftermath {
	struct aftermath *next; /* gpu->lock */
	struct pfs_gpu *gpu;
	struct pfs_session *session;
	uint64_t plan;
	bool get;
	bool here;      /* gpu->lock */
	uint32_t left;  /* gpu->lock */
	uint32_t tries; /* the thread's */
};

int moves_init(struct moves *m, struct pfs_gpu *gpu, struct pfs_session *session, bool to_device)
{
	*m = (struct moves){.gpu = gpu, .session = session, .to_device = to_device};
	m->aftermath = calloc(1, sizeof(*m->aftermath));
	return m->aftermath ? 0 : gpu_say(ENOMEM, "no memory for a plan");
}

static bool touches_are_over(struct pfs_gpu *gpu)
{
	bool over;

	pthread_mutex_lock(&gpu->lock);
	over = !gpu->unknown;
	pthread_mutex_unlock(&gpu->lock);
	return over;
}

static int give_back(const struct aftermath *a)
{
	if (!touches_are_over(a->gpu))
		return 0;
	if (a->get)
		return pfs_release(a->session, &a->plan, 1, NULL);
	return pfs_put_abort(a->session, a->plan, 0, 0, NULL, NULL);
}

/* @r of give_back: the daemon could not be asked, it still has the plan. */
static bool not_asked(int r)
{
	return r == -ENOBUFS || r == -EBUSY;
}

/* It is given back. */
static void aftermath_free(struct aftermath *a)
{
	struct pfs_gpu *gpu = a->gpu;
	struct aftermath **at;

	pthread_mutex_lock(&gpu->lock);
	for (at = &gpu->aftermaths; *at != a;)
		at = &(*at)->next;
	*at = a->next;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
	free(a);
}

/* One of its operations has ended. */
static void aftermath_less(void *context, int error)
{
	struct aftermath *a = context;
	struct pfs_gpu *gpu = a->gpu;

	pthread_mutex_lock(&gpu->lock);
	if (--a->left == 0) {
		pthread_cond_signal(&gpu->over);
		pthread_cond_broadcast(&gpu->news);
	}
	pthread_mutex_unlock(&gpu->lock);
}

/* (lock) The one of those left to the thread that was tried least. */
static struct aftermath *aftermath_over(const struct pfs_gpu *gpu)
{
	struct aftermath *over = NULL;

	for (struct aftermath *a = gpu->aftermaths; a; a = a->next)
		if (a->left == 0 && !a->here && (!over || a->tries < over->tries))
			over = a;
	return over;
}

/* Whoever closes the device waits for one more try of each, not for a daemon that takes nothing back. */
static bool may_try_again(struct pfs_gpu *gpu)
{
	bool may;

	pthread_mutex_lock(&gpu->lock);
	may = !gpu->leaving;
	pthread_mutex_unlock(&gpu->lock);
	if (may)
		nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * 1000000}, NULL);
	return may;
}

void *aftermaths_main(void *context)
{
	struct pfs_gpu *gpu = context;
	struct aftermath *a;

	for (;;) {
		pthread_mutex_lock(&gpu->lock);
		while (!(a = aftermath_over(gpu)) && !gpu->closing)
			pthread_cond_wait(&gpu->over, &gpu->lock);
		pthread_mutex_unlock(&gpu->lock);
		if (!a)
			return NULL;
		a->tries++;
		if (!not_asked(give_back(a)) || !may_try_again(gpu))
			aftermath_free(a);
	}
}

/* Waits until @session has no plan whose copies are under way; @gone: none that is to be given back either. */
static int wait_for(struct pfs_gpu *gpu, struct pfs_session *session, bool gone, uint64_t until)
{
	bool in_time = true;
	struct aftermath *a;

	pthread_mutex_lock(&gpu->lock);
	for (;;) {
		for (a = gpu->aftermaths; a && (a->session != session || (!gone && a->left == 0));)
			a = a->next;
		if (!a || !in_time)
			break;
		in_time = work_news(gpu, until);
	}
	pthread_mutex_unlock(&gpu->lock);
	return a ? gpu_say(ETIMEDOUT, "copies of a plan of the session are still under way%s", gone ? ", or it is being given back" : "") : 0;
}

int aftermaths_wait(struct pfs_gpu *gpu, struct pfs_session *session)
{
	int r = work_mine(gpu);

	return r ? r : wait_for(gpu, session, true, work_deadline(gpu, 0));
}

int pfs_gpu_settle(struct pfs_gpu *gpu, struct pfs_session *session, uint32_t deadline_ms)
{
	int r = work_mine(gpu);

	return r ? r : wait_for(gpu, session, false, work_deadline(gpu, deadline_ms));
}

/* The operations of @m, all of which are ended by others from here on. True: they had ended before, and @a is the caller's; else the
 * thread may have freed it by now. */
static bool aftermath_begin(struct aftermath *a, struct moves *m)
{
	struct pfs_gpu *gpu = m->gpu;
	bool here;

	*a = (struct aftermath){.gpu = gpu, .session = m->session, .plan = m->plan, .get = m->to_device, .left = 1};
	pthread_mutex_lock(&gpu->lock);
	a->next = gpu->aftermaths;
	gpu->aftermaths = a;
	pthread_mutex_unlock(&gpu->lock);
	for (uint32_t i = 0; i < m->count; i++) {
		pthread_mutex_lock(&gpu->lock);
		a->left++;
		pthread_mutex_unlock(&gpu->lock);
		if (!work_tell(m->ops[i], aftermath_less, a))
			aftermath_less(a, 0); /* it has ended; ours is left, so this is not the last */
	}
	pthread_mutex_lock(&gpu->lock);
	here = a->here = --a->left == 0;
	pthread_mutex_unlock(&gpu->lock);
	return here;
}

/* What the caller could not do now. */
static void aftermath_leave(struct aftermath *a)
{
	struct pfs_gpu *gpu = a->gpu;

	pthread_mutex_lock(&gpu->lock);
	a->here = false;
	pthread_cond_signal(&gpu->over);
	pthread_mutex_unlock(&gpu->lock);
}

int moves_end(struct moves *m, bool back)
{
	struct aftermath *a = m->aftermath;
	char why[WHY_BYTES];
	int r = 0;

	snprintf(why, sizeof(why), "%s", gpu_said());
	if (!back) {
		free(a);
	} else if (aftermath_begin(a, m)) {
		r = give_back(a);
		if (not_asked(r)) {
			aftermath_leave(a);
			r = 0;
		} else {
			aftermath_free(a);
		}
	}
	for (uint32_t i = 0; i < m->count; i++)
		pfs_gpu_end(&m->ops[i]);
	m->count = 0;
	m->aftermath = NULL;
	gpu_say(0, "%s", why);
	return r;
}
