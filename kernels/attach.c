/* SPDX-License-Identifier: Apache-2.0
 *
 * Registering memory: what was granted to a session, and any other. Mapping pages in and registering them are two rounds of work
 * for a few threads; a range is registered whole or in pieces of PFS_GPU_REGISTER_BYTES.
 */
#include "kernels/attach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fs/client/prefixfs.h"
#include "kernels/moves.h"
#include "kernels/say.h"

#define LIST_RANGES 4096u
#define ACK_RANGES 32768u
#define TURNS 4u              /* of listing, when ranges change meanwhile */
#define MAP_STEP (256ull << 20)

typedef unsigned long long ull;

/* Memory that is registered in one call of the driver. */
struct piece {
	uint64_t begin, bytes, generation;
	bool ours; /* this call has made it or counted it once more */
};

struct pieces {
	struct piece *list;
	uint32_t count, room;
};

/* What a session holds. */
struct attached {
	struct attached *next;
	struct pfs_session *session;
	bool busy; /* gpu->lock: a call works on it, to whom the rest belongs */
	struct pieces pieces;
};

static int add_piece(struct pieces *p, uint64_t begin, uint64_t bytes, uint64_t generation)
{
	if (p->count == p->room) {
		uint32_t room = p->room ? p->room * 2 : 64;
		struct piece *more = realloc(p->list, room * sizeof(*more));

		if (!more)
			return gpu_say(ENOMEM, "no memory for a list of %u ranges", room);
		p->list = more;
		p->room = room;
	}
	p->list[p->count++] = (struct piece){begin, bytes, generation, false};
	return 0;
}

static int add_pieces(struct pieces *p, uint64_t begin, uint64_t bytes, uint64_t generation, uint64_t piece)
{
	int r = 0;

	for (uint64_t at = 0; at < bytes && !r; at += piece)
		r = add_piece(p, begin + at, bytes - at < piece ? bytes - at : piece, generation);
	return r;
}

static int add_range(struct pieces *p, uint64_t begin, uint64_t bytes, uint64_t generation)
{
	return add_pieces(p, begin, bytes, generation, PFS_GPU_REGISTER_BYTES);
}

/* ---- work for several threads ----------------------------------------------------------------------------------------- */

struct crew {
	struct pfs_gpu *gpu;
	struct pieces *pieces;
	uint32_t threads;
	bool read_only;
	int (*work)(struct crew *crew, uint64_t unit);
	uint64_t units;
	pfs_gpu_progress progress;
	void *context;
	uint64_t total; /* bytes of both rounds */

	pthread_mutex_t lock; /* guards what follows; the progress is told under it */
	uint64_t next, done;
	struct register_round *round; /* that is under way; NULL: nobody asks */
	int error;
	char why[512];
};

static void took_note(struct register_round *round, uint64_t ns)
{
	if (round && round->units < REGISTER_UNITS)
		round->unit_ns[round->units++] = ns;
}

static void *crew_main(void *context)
{
	struct crew *crew = context;

	pthread_mutex_lock(&crew->lock);
	while (crew->next < crew->units && !crew->error) {
		uint64_t unit = crew->next++, began = work_now();
		int r;

		pthread_mutex_unlock(&crew->lock);
		r = crew->work(crew, unit);
		pthread_mutex_lock(&crew->lock);
		took_note(crew->round, work_now() - began);
		if (r && !crew->error) {
			crew->error = r;
			strncpy(crew->why, gpu_said(), sizeof(crew->why) - 1);
		}
	}
	pthread_mutex_unlock(&crew->lock);
	return NULL;
}

/* Works on all units; the caller is one of the threads. The first error ends it. */
static int crew_run(struct crew *crew, int (*work)(struct crew *crew, uint64_t unit), uint64_t units, struct register_round *round)
{
	pthread_t threads[64];
	uint32_t started = 0, most = crew->threads;
	uint64_t began = work_now();

	crew->round = round;
	crew->work = work;
	crew->units = units;
	crew->next = 0;
	while (started + 1 < most && started + 1 < units && !pthread_create(&threads[started], NULL, crew_main, crew))
		started++;
	crew_main(crew);
	while (started > 0)
		pthread_join(threads[--started], NULL);
	if (round)
		round->ns = work_now() - began;
	return crew->error ? gpu_say(-crew->error, "%s", crew->why) : 0;
}

static void crew_told(struct crew *crew, uint64_t bytes)
{
	pthread_mutex_lock(&crew->lock);
	crew->done += bytes;
	if (crew->progress)
		crew->progress(crew->context, crew->done / 2, crew->total / 2);
	pthread_mutex_unlock(&crew->lock);
}

/* Unit @unit is the unit-th step of all pieces. */
static int map_step(struct crew *crew, uint64_t unit)
{
	for (uint32_t i = 0; i < crew->pieces->count; i++) {
		const struct piece *p = &crew->pieces->list[i];
		uint64_t steps = (p->bytes + MAP_STEP - 1) / MAP_STEP, at = unit * MAP_STEP, bytes;

		if (unit >= steps) {
			unit -= steps;
			continue;
		}
		bytes = p->bytes - at < MAP_STEP ? p->bytes - at : MAP_STEP;
		/* Best effort: what fails here fails, with a reason, when it is registered. */
		madvise((void *)(uintptr_t)(p->begin + at), bytes, crew->read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
		crew_told(crew, bytes);
		return 0;
	}
	return 0;
}

static int ask_driver(struct pfs_gpu *gpu, struct registration *r, bool anew, bool read_only)
{
	struct backend *b = gpu->backend;
	bool foreign = false;
	int error = 0;

	if (anew && !r->foreign)
		error = b->ops->host_unregister(b, r->begin);
	if (!error)
		error = b->ops->host_register(b, r->begin, r->end - r->begin, &read_only, &foreign);
	registry_settle(&gpu->registry, r, error != 0, read_only, foreign);
	return error;
}

static int register_piece(struct crew *crew, uint64_t unit)
{
	struct piece *p = &crew->pieces->list[unit];
	struct registration *registration;
	int answer = registry_want(&crew->gpu->registry, p->begin, p->bytes, p->generation, &registration), r = answer;

	if (answer > 0)
		r = ask_driver(crew->gpu, registration, answer == REGISTRY_ANEW, crew->read_only);
	if (r < 0)
		return r;
	p->ours = true;
	crew_told(crew, p->bytes);
	return 0;
}

static int drop_piece(struct pfs_gpu *gpu, const struct piece *p)
{
	struct registration *registration;
	int r = registry_drop(&gpu->registry, p->begin, p->bytes, p->generation, &registration);

	if (r <= 0)
		return r;
	r = registration->foreign ? 0 : gpu->backend->ops->host_unregister(gpu->backend, registration->begin);
	registry_forget(&gpu->registry, registration);
	if (r && work_lost(gpu))
		return -EIO;
	return r;
}

/* All of @pieces, or none. */
static int register_timed(struct pfs_gpu *gpu, struct pieces *pieces, bool read_only, uint32_t threads, pfs_gpu_progress progress,
	void *context, struct register_times *times)
{
	struct crew crew = {.gpu = gpu, .pieces = pieces, .threads = threads, .read_only = read_only, .progress = progress,
		.context = context};
	uint64_t steps = 0;
	char why[512];
	int r = work_lost(gpu);

	if (r)
		return r;
	for (uint32_t i = 0; i < pieces->count; i++) {
		steps += (pieces->list[i].bytes + MAP_STEP - 1) / MAP_STEP;
		crew.total += 2 * pieces->list[i].bytes;
	}
	pthread_mutex_init(&crew.lock, NULL);
	r = crew_run(&crew, map_step, steps, times ? &times->map : NULL);
	if (!r)
		r = crew_run(&crew, register_piece, pieces->count, times ? &times->pin : NULL);
	pthread_mutex_destroy(&crew.lock);
	if (!r)
		return 0;
	memcpy(why, crew.why, sizeof(why));
	for (uint32_t i = 0; i < pieces->count; i++)
		if (pieces->list[i].ours)
			drop_piece(gpu, &pieces->list[i]);
	return gpu_say(-r, "%s", why);
}

static int register_all(struct pfs_gpu *gpu, struct pieces *pieces, bool read_only, pfs_gpu_progress progress, void *context)
{
	return register_timed(gpu, pieces, read_only, gpu->register_threads, progress, context, NULL);
}

int attach_register(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint32_t threads, uint64_t piece, struct register_times *ret)
{
	struct pieces pieces = {0};
	int r = add_pieces(&pieces, (uintptr_t)address, bytes, 1, piece);

	if (!r)
		r = register_timed(gpu, &pieces, false, threads, NULL, NULL, ret);
	free(pieces.list);
	return r;
}

int attach_unregister(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t piece)
{
	struct pieces pieces = {0};
	int r = add_pieces(&pieces, (uintptr_t)address, bytes, 1, piece);

	for (uint32_t i = 0; i < pieces.count && !r; i++)
		r = drop_piece(gpu, &pieces.list[i]);
	free(pieces.list);
	return r;
}

int pfs_gpu_register(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t generation)
{
	struct pieces pieces = {0};
	int r = bytes ? add_range(&pieces, (uintptr_t)address, bytes, generation) : gpu_say(EINVAL, "0 bytes cannot be registered");

	if (!r)
		r = register_all(gpu, &pieces, false, NULL, NULL);
	free(pieces.list);
	return r;
}

int pfs_gpu_unregister(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t generation)
{
	struct pieces pieces = {0};
	int r = bytes ? add_range(&pieces, (uintptr_t)address, bytes, generation) : gpu_say(EINVAL, "0 bytes are not registered");

	for (uint32_t i = 0; i < pieces.count && !r; i++)
		r = drop_piece(gpu, &pieces.list[i]);
	free(pieces.list);
	return r;
}

/* ---- sessions ------------------------------------------------------------------------------------------------------------ */

/* Granted ranges as they were at one time. */
struct listing {
	struct pfs_range *ranges;
	uint32_t count;
};

/* Those of the rank's own shares. */
static int list_ranges(struct pfs_session *session, const struct pfs_session_info *info, struct listing *l)
{
	uint32_t first = 0, got = 0, total = 0, room = 0;
	struct pfs_range *step = malloc(LIST_RANGES * sizeof(*step));
	int r = step ? 0 : gpu_say(ENOMEM, "no memory for a list of ranges");

	l->count = 0;
	while (!r) {
		r = pfs_segments(session, first, step, LIST_RANGES, &got, &total, NULL);
		if (r) {
			r = from_client(r, "listing the granted ranges");
			break;
		}
		if (l->count + got > room) {
			struct pfs_range *more = realloc(l->ranges, (l->count + got) * sizeof(*more));

			r = more ? 0 : gpu_say(ENOMEM, "no memory for %u ranges", l->count + got);
			if (r)
				break;
			l->ranges = more;
			room = l->count + got;
		}
		for (uint32_t i = 0; i < got; i++)
			if (step[i].class_index < PFS_MAX_CLASSES && step[i].share == info->share[step[i].class_index])
				l->ranges[l->count++] = step[i];
		first += got;
		if (got == 0 || first >= total)
			break;
	}
	free(step);
	return r;
}

/* (lock) */
static struct attached *find(struct pfs_gpu *gpu, struct pfs_session *session)
{
	struct attached *a = gpu->attached;

	while (a && a->session != session)
		a = a->next;
	return a;
}

/* The session's, once no other call works on it; it is busy then, until attached_done. */
static int attached_begin(struct pfs_gpu *gpu, struct pfs_session *session, struct attached **ret)
{
	struct attached *made = calloc(1, sizeof(*made)), *a;

	if (!made)
		return gpu_say(ENOMEM, "no memory for a session");
	pthread_mutex_lock(&gpu->lock);
	while ((a = find(gpu, session)) && a->busy) /* as long as that call takes */
		pthread_cond_wait(&gpu->news, &gpu->lock);
	if (!a) {
		a = made;
		made = NULL;
		a->session = session;
		a->next = gpu->attached;
		gpu->attached = a;
	}
	a->busy = true;
	pthread_mutex_unlock(&gpu->lock);
	free(made);
	*ret = a;
	return 0;
}

static void attached_done(struct pfs_gpu *gpu, struct attached *a)
{
	pthread_mutex_lock(&gpu->lock);
	a->busy = false;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
}

static bool holds(const struct attached *a, uint64_t begin, uint64_t generation)
{
	for (uint32_t i = 0; i < a->pieces.count; i++)
		if (a->pieces.list[i].begin == begin && a->pieces.list[i].generation == generation)
			return true;
	return false;
}

/* What @a does not hold yet. */
static int missing(const struct attached *a, const struct listing *l, const struct pfs_session_info *info, struct pieces *ret)
{
	int r = 0;

	for (uint32_t i = 0; i < l->count && !r; i++) {
		uint64_t begin = (uintptr_t)info->segment + l->ranges[i].offset;

		if (l->ranges[i].offset > info->segment_bytes || l->ranges[i].length > info->segment_bytes - l->ranges[i].offset)
			r = gpu_say(EIO, "range %u lies outside the segment of %llu bytes", l->ranges[i].id, (ull)info->segment_bytes);
		else if (!holds(a, begin, info->generation))
			r = add_range(ret, begin, l->ranges[i].length, info->generation);
	}
	return r;
}

static int acknowledge(struct pfs_session *session, const struct listing *l)
{
	struct pfs_range_ack *acks = malloc((l->count + 1) * sizeof(*acks));
	int r = acks ? 0 : gpu_say(ENOMEM, "no memory for %u acknowledgements", l->count);

	for (uint32_t i = 0; i < l->count && !r; i++)
		acks[i] = (struct pfs_range_ack){l->ranges[i].id, l->ranges[i].generation};
	for (uint32_t i = 0; i < l->count && !r; i += ACK_RANGES) {
		r = pfs_segments_ack(session, acks + i, l->count - i < ACK_RANGES ? l->count - i : ACK_RANGES, NULL);
		if (r && r != -ESTALE)
			r = from_client(r, "acknowledging ranges");
	}
	free(acks);
	return r;
}

static int keep(struct attached *a, const struct pieces *more)
{
	int r = 0;

	for (uint32_t i = 0; i < more->count && !r; i++)
		r = add_piece(&a->pieces, more->list[i].begin, more->list[i].bytes, more->list[i].generation);
	return r;
}

/* One turn. -ESTALE: ranges have changed meanwhile. */
static int attach_once(struct pfs_gpu *gpu, struct attached *a, pfs_gpu_progress progress, void *context)
{
	struct pfs_session_info info;
	struct listing l = {0};
	struct pieces more = {0};
	int r = pfs_info(a->session, &info);

	r = r ? from_client(r, "asking for the session") : 0;
	if (!r && info.rank == PFS_RANK_NONE)
		r = gpu_say(EINVAL, "the session has no rank: nothing is granted to it");
	if (!r)
		r = list_ranges(a->session, &info, &l);
	if (!r)
		r = missing(a, &l, &info, &more);
	if (!r && more.count)
		r = register_all(gpu, &more, info.read_only, progress, context);
	if (!r)
		r = keep(a, &more);
	if (!r)
		r = acknowledge(a->session, &l);
	free(l.ranges);
	free(more.list);
	return r;
}

int pfs_gpu_attach(struct pfs_gpu *gpu, struct pfs_session *session, pfs_gpu_progress progress, void *context)
{
	struct attached *a = NULL;
	int r = attached_begin(gpu, session, &a);

	if (r)
		return r;
	r = -ESTALE;
	for (unsigned turn = 0; turn < TURNS && r == -ESTALE; turn++)
		r = attach_once(gpu, a, progress, context);
	attached_done(gpu, a);
	return r == -ESTALE ? from_client(r, "ranges change faster than they are acknowledged") : r;
}

/* (lock) Takes it out of the list. */
static struct attached *take(struct pfs_gpu *gpu, struct pfs_session *session)
{
	struct attached **at = &gpu->attached, *a;

	while (*at && (*at)->session != session)
		at = &(*at)->next;
	a = *at;
	if (a)
		*at = a->next;
	return a;
}

int pfs_gpu_detach(struct pfs_gpu *gpu, struct pfs_session *session)
{
	struct attached *a;
	int r = aftermaths_wait(gpu, session);

	if (r)
		return r;
	pthread_mutex_lock(&gpu->lock);
	a = take(gpu, session);
	pthread_mutex_unlock(&gpu->lock);
	if (!a)
		return gpu_say(ENOENT, "the session is not attached to this device");
	for (uint32_t i = 0; i < a->pieces.count; i++) {
		int s = drop_piece(gpu, &a->pieces.list[i]);

		r = r ? r : s;
	}
	free(a->pieces.list);
	free(a);
	return r;
}

void attach_forget(struct pfs_gpu *gpu)
{
	struct registration *left;

	while (gpu->attached) {
		struct attached *a = gpu->attached;

		gpu->attached = a->next;
		free(a->pieces.list);
		free(a);
	}
	while ((left = registry_any(&gpu->registry))) {
		if (!left->foreign)
			gpu->backend->ops->host_unregister(gpu->backend, left->begin);
		registry_forget(&gpu->registry, left);
	}
}
