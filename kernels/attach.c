/* SPDX-License-Identifier: Apache-2.0
 *
 * Registering memory: what was granted to a session, and any other. Mapping pages in and registering them are two rounds of work
 * for a few threads; a range is registered whole or in pieces of PFS_GPU_REGISTER_BYTES.
 */
#include "kernels/attach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fs/client/prefixfs.h"
#include "kernels/moves.h"
#include "kernels/say.h"
#include "kernels/thread.h"

#define LIST_RANGES 512u /* of one call: the smallest call buffer has room */
#define ACK_RANGES 4096u
#define TURNS 4u         /* of listing, when ranges change meanwhile */
#define MAP_STEP (256ull << 20)
#define MOST_BYTES (1ull << 47) /* of a range that its caller names */

typedef unsigned long long ull;

struct pieces {
	struct piece *list;
	uint32_t count, room;
};

/* A mapping of a session's that stays mapped, for something of it is registered. */
struct held {
	struct held *next;
	struct pfs_segment *segment;
	uint64_t number; /* of the mapping; the generation of its pieces */
};

/* What a session has. */
struct attached {
	struct attached *next;       /* gpu->lock */
	struct pfs_session *session; /* a name alone for whoever detaches: it may be closed */
	bool busy;                   /* gpu->lock: a call works on it, to whom the rest belongs */
	struct held *held;
	struct pieces pieces; /* of all its mappings */
};

/* Room for @count more. */
static int reserve(struct pieces *p, uint32_t count)
{
	uint32_t room = p->room ? p->room : 64;
	struct piece *more;

	if (count <= p->room - p->count)
		return 0;
	while (room - p->count < count)
		room *= 2;
	more = realloc(p->list, room * sizeof(*more));
	if (!more)
		return gpu_say(ENOMEM, "no memory for a list of %u ranges", room);
	p->list = more;
	p->room = room;
	return 0;
}

static int add_piece(struct pieces *p, uint64_t begin, uint64_t bytes, uint64_t generation)
{
	int r = reserve(p, 1);

	if (!r)
		p->list[p->count++] = (struct piece){.begin = begin, .bytes = bytes, .generation = generation};
	return r;
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
	while (started + 1 < most && started + 1 < units &&
		!thread_start(&threads[started], "pfs-gpu-reg", crew_main, crew))
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

/* Its mapping permits no writing. (Both calls are EINVAL before Linux 5.14.) */
static bool is_for_reading(uint64_t begin, uint64_t bytes)
{
	void *memory = (void *)(uintptr_t)begin;

	return madvise(memory, bytes, MADV_POPULATE_WRITE) && errno == EINVAL && !madvise(memory, bytes, MADV_POPULATE_READ);
}

static int ask_driver(struct pfs_gpu *gpu, struct registration *r, bool anew, bool read_only)
{
	struct backend *b = gpu->backend;
	bool foreign = false;
	int error = 0;

	read_only = read_only || is_for_reading(r->begin, r->end - r->begin);
	if (anew && !r->foreign)
		error = b->ops->host_unregister(b, r->begin);
	if (!error)
		error = b->ops->host_register(b, r->begin, r->end - r->begin, read_only, &foreign);
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

/* Has the driver give up what registry_drop left to nobody: all of it, whatever it says of one. The first error. */
static int unregister(struct pfs_gpu *gpu, struct piece *pieces, uint32_t count)
{
	char why[512] = "";
	int r = 0;

	for (uint32_t i = 0; i < count; i++) {
		struct registration *last = pieces[i].last;
		int s = last && !last->foreign ? gpu->backend->ops->host_unregister(gpu->backend, last->begin) : 0;

		if (s && !r) {
			r = s;
			snprintf(why, sizeof(why), "%s", gpu_said());
		}
		if (last)
			registry_forget(&gpu->registry, last);
		pieces[i].last = NULL;
	}
	if (r && work_lost(gpu))
		return -EIO;
	return r ? gpu_say(-r, "%s", why) : 0;
}

/* All of @pieces, or none; the driver's own failures come when nothing is registered any more. */
static int drop_pieces(struct pfs_gpu *gpu, struct pieces *pieces)
{
	int r = registry_drop(&gpu->registry, pieces->list, pieces->count, false);

	return r ? r : unregister(gpu, pieces->list, pieces->count);
}

/* What copies use by now stays, and stays `ours`. */
static void roll_back(struct pfs_gpu *gpu, struct pieces *pieces)
{
	for (uint32_t i = 0; i < pieces->count; i++) {
		struct piece *p = &pieces->list[i];
		int r = p->ours ? registry_drop(&gpu->registry, p, 1, false) : -ENOENT;

		p->ours = r == -EBUSY;
		if (!r)
			unregister(gpu, p, 1);
	}
}

/* All of @pieces; after a failure none, but for those that are `ours`. */
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
	roll_back(gpu, pieces);
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

	if (!r)
		r = drop_pieces(gpu, &pieces);
	free(pieces.list);
	return r;
}

/* A range that the caller names, as pieces. */
static int range_of(struct pieces *pieces, void *address, uint64_t bytes, uint64_t generation)
{
	uint64_t begin = (uintptr_t)address;

	if (bytes == 0)
		return gpu_say(EINVAL, "a range at 0x%llx has 0 bytes", (ull)begin);
	if (bytes > MOST_BYTES || begin > UINT64_MAX - bytes)
		return gpu_say(EINVAL, "a range at 0x%llx has %llu bytes, at most %llu are possible", (ull)begin, (ull)bytes, MOST_BYTES);
	return add_range(pieces, begin, bytes, generation);
}

int pfs_gpu_register(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t generation)
{
	struct pieces pieces = {0};
	int r = work_mine(gpu);

	if (!r)
		r = range_of(&pieces, address, bytes, generation);

	if (!r)
		r = register_all(gpu, &pieces, false, NULL, NULL);
	free(pieces.list);
	return r;
}

int pfs_gpu_unregister(struct pfs_gpu *gpu, void *address, uint64_t bytes, uint64_t generation)
{
	struct pieces pieces = {0};
	int r = work_mine(gpu);

	if (!r)
		r = range_of(&pieces, address, bytes, generation);

	if (!r)
		r = drop_pieces(gpu, &pieces);
	free(pieces.list);
	return r;
}

/* ---- sessions ------------------------------------------------------------------------------------------------------------ */

/* Granted ranges as they were at one time, and where. */
struct listing {
	struct pfs_range *ranges;
	uint32_t count;
	struct pfs_segment *segment; /* held: the mapping that they all lie in */
	struct pfs_segment_info at;
	uint64_t remapped; /* as pfs_info said it all the while */
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

/* -ESTALE: the session was given other memory since the first word of @l. */
static int same_memory(struct pfs_session *session, const struct listing *l)
{
	struct pfs_session_info info;
	int r = pfs_info(session, &info);

	if (r)
		return from_client(r, "asking for the session");
	return info.remapped == l->remapped ? 0 : gpu_say(ESTALE, "the daemon was restarted, and its memory is new");
}

/* Fills in @l, which is freed by its caller, whatever comes of it. -ESTALE: the session was given other memory meanwhile. */
static int list_mapping(struct pfs_session *session, struct listing *l)
{
	struct pfs_session_info info;
	int r = pfs_info(session, &info);

	if (!r)
		r = pfs_segment_hold(session, &l->segment);
	if (!r)
		r = pfs_segment_info(l->segment, &l->at);
	if (r)
		return from_client(r, "asking for the session");
	if (info.rank == PFS_RANK_NONE)
		return gpu_say(EINVAL, "the session has no rank: nothing is granted to it");
	l->remapped = info.remapped;
	r = list_ranges(session, &info, l);
	return r ? r : same_memory(session, l);
}

/* (lock) */
static struct attached *find(struct pfs_gpu *gpu, const struct pfs_session *session)
{
	struct attached *a = gpu->attached;

	while (a && a->session != session)
		a = a->next;
	return a;
}

/* The session's, once no other call works on it; it is busy then, until attached_done or attached_free. @made: enters the list where there
 * is none yet; NULL: then there is none. */
static struct attached *attached_begin(struct pfs_gpu *gpu, const struct pfs_session *session, struct attached *made)
{
	struct attached *a;

	pthread_mutex_lock(&gpu->lock);
	while ((a = find(gpu, session)) && a->busy) /* as long as that call takes */
		pthread_cond_wait(&gpu->news, &gpu->lock);
	if (!a && made) {
		a = made;
		a->next = gpu->attached;
		gpu->attached = a;
	}
	if (a)
		a->busy = true;
	pthread_mutex_unlock(&gpu->lock);
	return a;
}

static void attached_done(struct pfs_gpu *gpu, struct attached *a)
{
	pthread_mutex_lock(&gpu->lock);
	a->busy = false;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
}

/* Nothing of it is registered any more: takes it out of the list and lets its mappings go. */
static void attached_free(struct pfs_gpu *gpu, struct attached *a)
{
	struct attached **at;

	pthread_mutex_lock(&gpu->lock);
	for (at = &gpu->attached; *at != a;)
		at = &(*at)->next;
	*at = a->next;
	pthread_cond_broadcast(&gpu->news);
	pthread_mutex_unlock(&gpu->lock);
	while (a->held) {
		struct held *h = a->held;

		a->held = h->next;
		pfs_segment_let_go(&h->segment);
		free(h);
	}
	free(a->pieces.list);
	free(a);
}

/* Moves the pieces of the mapping @number to the end of @p; how many there are. */
static uint32_t to_the_end(struct pieces *p, uint64_t number)
{
	uint32_t others = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		struct piece piece = p->list[i];

		if (piece.generation == number)
			continue;
		p->list[i] = p->list[others];
		p->list[others++] = piece;
	}
	return p->count - others;
}

/* Takes back what is registered of mappings that will not be used again, as far as no copy uses it. What the driver says of that is said
 * again by whatever it is asked next, where it matters. */
static void take_back(struct pfs_gpu *gpu, struct attached *a)
{
	struct held **at = &a->held, *h;

	while ((h = *at)) {
		uint32_t count = to_the_end(&a->pieces, h->number);
		struct piece *pieces = a->pieces.list + a->pieces.count - count;
		struct pfs_segment_info info;

		if (pfs_segment_info(h->segment, &info) || !info.unused || registry_drop(&gpu->registry, pieces, count, true)) {
			at = &h->next;
			continue;
		}
		unregister(gpu, pieces, count);
		a->pieces.count -= count;
		*at = h->next;
		pfs_segment_let_go(&h->segment);
		free(h);
	}
}

static bool has(const struct attached *a, const struct piece *p)
{
	for (uint32_t i = 0; i < a->pieces.count; i++)
		if (a->pieces.list[i].begin == p->begin && a->pieces.list[i].generation == p->generation)
			return true;
	return false;
}

/* What @a does not have yet. */
static int missing(const struct attached *a, const struct listing *l, struct pieces *ret)
{
	uint32_t kept = 0;
	int r = 0;

	for (uint32_t i = 0; i < l->count && !r; i++) {
		const struct pfs_range *range = &l->ranges[i];

		if (range->offset > l->at.bytes || range->length > l->at.bytes - range->offset)
			return gpu_say(EIO, "range %u lies outside the segment of %llu bytes", range->id, (ull)l->at.bytes);
		r = add_range(ret, (uintptr_t)l->at.address + range->offset, range->length, l->at.number);
	}
	for (uint32_t i = 0; i < ret->count; i++)
		if (!has(a, &ret->list[i]))
			ret->list[kept++] = ret->list[i];
	ret->count = kept;
	return r;
}

static bool is_held(const struct attached *a, uint64_t number)
{
	const struct held *h = a->held;

	while (h && h->number != number)
		h = h->next;
	return h != NULL;
}

/* Registers @more of the mapping in @l: it is @a's then, and so is the hold, where @a has none of it yet. */
static int take_in(struct pfs_gpu *gpu, struct attached *a, struct listing *l, struct pieces *more, pfs_gpu_progress progress, void *context)
{
	bool known = is_held(a, l->at.number);
	struct held *h = known ? NULL : calloc(1, sizeof(*h));
	uint32_t before = a->pieces.count;
	int r = known || h ? reserve(&a->pieces, more->count) : gpu_say(ENOMEM, "no memory for a mapping");

	if (!r)
		r = register_all(gpu, more, l->at.read_only, progress, context);
	for (uint32_t i = 0; i < more->count; i++)
		if (more->list[i].ours)
			a->pieces.list[a->pieces.count++] = more->list[i];
	if (!h || a->pieces.count == before) {
		free(h);
		return r;
	}
	*h = (struct held){a->held, l->segment, l->at.number};
	l->segment = NULL;
	a->held = h;
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
		if (r)
			r = from_client(r, "acknowledging ranges");
	}
	free(acks);
	return r;
}

/* One turn. -ESTALE: ranges have changed meanwhile, or the session has other memory. */
static int attach_once(struct pfs_gpu *gpu, struct attached *a, pfs_gpu_progress progress, void *context)
{
	struct listing l = {0};
	struct pieces more = {0};
	int r = list_mapping(a->session, &l);

	take_back(gpu, a);
	if (!r)
		r = missing(a, &l, &more);
	if (!r && more.count)
		r = take_in(gpu, a, &l, &more, progress, context);
	if (!r)
		r = acknowledge(a->session, &l);
	if (!r)
		r = same_memory(a->session, &l); /* where another thread has listed them since, other memory's were acknowledged */
	pfs_segment_let_go(&l.segment);
	free(l.ranges);
	free(more.list);
	return r;
}

int pfs_gpu_attach(struct pfs_gpu *gpu, struct pfs_session *session, pfs_gpu_progress progress, void *context)
{
	struct attached *made, *a;
	int r = work_mine(gpu);

	if (!r && !session)
		r = gpu_say(EINVAL, "no session was given");
	if (r)
		return r;
	made = calloc(1, sizeof(*made));
	if (!made)
		return gpu_say(ENOMEM, "no memory for a session");
	made->session = session;
	a = attached_begin(gpu, session, made);
	if (a != made)
		free(made);
	r = -ESTALE;
	for (unsigned turn = 0; turn < TURNS && r == -ESTALE; turn++)
		r = attach_once(gpu, a, progress, context);
	if (r && !a->held) /* nothing of it is registered: as if it had not been called */
		attached_free(gpu, a);
	else
		attached_done(gpu, a);
	return r;
}

int attach_again(struct pfs_gpu *gpu, struct pfs_session *session)
{
	bool known;

	pthread_mutex_lock(&gpu->lock);
	known = find(gpu, session) != NULL;
	pthread_mutex_unlock(&gpu->lock);
	return known ? pfs_gpu_attach(gpu, session, NULL, NULL) : -ENOENT;
}

int pfs_gpu_detach(struct pfs_gpu *gpu, struct pfs_session *session)
{
	struct attached *a;
	int r = aftermaths_wait(gpu, session);

	if (r)
		return r;
	a = attached_begin(gpu, session, NULL);
	if (!a)
		return gpu_say(ENOENT, "the session is not attached to this device");
	r = registry_drop(&gpu->registry, a->pieces.list, a->pieces.count, true);
	if (r) {
		attached_done(gpu, a);
		return r;
	}
	r = unregister(gpu, a->pieces.list, a->pieces.count);
	attached_free(gpu, a);
	return r;
}

void attach_forget(struct pfs_gpu *gpu)
{
	struct registration *left;

	while ((left = registry_any(&gpu->registry))) {
		if (!left->foreign)
			gpu->backend->ops->host_unregister(gpu->backend, left->begin);
		registry_forget(&gpu->registry, left);
	}
	while (gpu->attached)
		attached_free(gpu, gpu->attached);
}
