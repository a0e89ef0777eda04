/* SPDX-License-Identifier: Apache-2.0
 *
 * client_gpu NAMESPACE [WHAT]: whole requests through libprefixfs-gpu on ordinary memory. Exits with 0, or says what was not so. WHAT:
 *
 *   hang          leaves a put and a get whose copies never end, says "hanging" and waits to be killed
 *   outlive       says which death of the daemon it wants, "serving" or "both", and goes on when it is told a line
 *   stopped PID   copies of plans end while the daemon, PID, is stopped: other copies end nevertheless
 *   ranks         a put under a ticket of two ranks, of which one has acknowledged nothing
 *   threads       puts and gets of several threads, of which some end too late
 *
 * The namespace has pages of 64 tokens, a dense class of planes of 1,168, 4,096 and 2,048 bytes, and a state class of 10,000 bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/attach.h"
#include "kernels/moves.h"
#include "tests/kernels/fragile.h"
#include "tests/scenario/client_gpu.h"
#include "tests/unit/gpu_lazy.h"

#define PAGES 24u
#define POOL 100u /* pages of the device */
/* An engine: its session, its device, its pools. */
struct engine {
	struct pfs_session *session;
	struct pfs_gpu *gpu;
	struct pfs_gpu_plane planes[3], state_plane;
	struct pfs_gpu_pool pools[2];
	struct pfs_gpu_pages classes[2];
	uint8_t *kv[3], *state;
	uint32_t ids[PAGES], state_id;
	struct pfs_key keys[PAGES];
	struct pfs_put_group group;
	struct pfs_put_request put;
	struct dice dice;
};

static const uint64_t plane_bytes[3] = {1168, 4096, 2048};
static const uint64_t state_bytes = 10000;

static void make_pools(struct engine *e)
{
	for (unsigned i = 0; i < 3; i++) {
		e->kv[i] = world_map(POOL * plane_bytes[i]);
		e->planes[i] = (struct pfs_gpu_plane){.base = (uintptr_t)e->kv[i], .stride = plane_bytes[i], .bytes = plane_bytes[i]};
	}
	e->state = world_map(POOL * state_bytes);
	e->state_plane = (struct pfs_gpu_plane){.base = (uintptr_t)e->state, .stride = state_bytes, .bytes = state_bytes};
	e->pools[0] = (struct pfs_gpu_pool){.planes = e->planes, .plane_count = 3, .page_limit = POOL, .value_tokens = 0};
	e->pools[1] = (struct pfs_gpu_pool){.planes = &e->state_plane, .plane_count = 1, .page_limit = POOL};
	e->classes[0] = (struct pfs_gpu_pages){&e->pools[0], e->ids};
	e->classes[1] = (struct pfs_gpu_pages){&e->pools[1], &e->state_id};
}

/* Other pages than before, and other bytes in all of them. */
static void new_pages(struct engine *e)
{
	world_choose(&e->dice, e->ids, PAGES, POOL);
	e->state_id = (uint32_t)dice(&e->dice, POOL);
	for (unsigned i = 0; i < 3; i++)
		dice_fill(&e->dice, e->kv[i], POOL * plane_bytes[i]);
	dice_fill(&e->dice, e->state, POOL * state_bytes);
}

static void make_request(struct engine *e, unsigned chain)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		char name[64];
		int length = snprintf(name, sizeof(name), "chain %u, page %u", chain, i);

		MUST(!pfs_key_from_bytes(name, (size_t)length, &e->keys[i]));
	}
	e->group = (struct pfs_put_group){.consumed = PAGES * 64, .keys = PAGES, .class_mask = 3, .flags = PFS_GROUP_ROOT};
	e->put = (struct pfs_put_request){
		.groups = &e->group, .keys = e->keys, .group_count = 1, .key_count = PAGES, .class_mask = 3};
}

static void open_rank(struct engine *e, const char *path, uint32_t rank, bool read_only, const struct backend_ops *ops)
{
	struct pfs_gpu_options o;
	struct pfs_options options;

	*e = (struct engine){.dice.state = 88172645463325252ull};
	pfs_options_init(&options);
	options.rank = rank;
	options.auto_ack = 0;
	options.wait_prewarm = 1;
	options.read_only = read_only;
	MUST(!pfs_open(path, &options, &e->session));
	pfs_gpu_options_init(&o);
	MUST(!gpu_open_with(ops, &o, &e->gpu));
	make_pools(e);
	make_request(e, 1);
}

static void open_engine(struct engine *e, const char *path, bool read_only, const struct backend_ops *ops)
{
	open_rank(e, path, 0, read_only, ops);
}

static void free_pools(struct engine *e)
{
	for (unsigned i = 0; i < 3; i++)
		munmap(e->kv[i], POOL * plane_bytes[i]);
	munmap(e->state, POOL * state_bytes);
}

static void close_engine(struct engine *e)
{
	MUST(!pfs_gpu_detach(e->gpu, e->session));
	pfs_close(&e->session);
	pfs_gpu_close(&e->gpu);
	free_pools(e);
}

static struct pfs_gpu_put_request put_of(const struct engine *e)
{
	return (struct pfs_gpu_put_request){.put = &e->put, .classes = e->classes};
}

static struct pfs_get_request look_of(const struct engine *e)
{
	return (struct pfs_get_request){.keys = e->keys, .key_count = PAGES};
}

static struct pfs_gpu_get_request get_of(const struct engine *e, const struct pfs_get_request *look)
{
	return (struct pfs_gpu_get_request){.get = look, .classes = e->classes, .class_count = 2};
}

static uint32_t told;

static void tell(void *context, uint64_t done, uint64_t total)
{
	told++;
	MUST(done <= total);
}

static void attach(struct engine *e)
{
	struct pfs_gpu_info info, again;

	told = 0;
	MUST(!pfs_gpu_attach(e->gpu, e->session, tell, NULL));
	MUST(told > 0);
	MUST(!pfs_gpu_info(e->gpu, &info));
	MUST(info.registrations > 0 && info.registered_bytes > 0);
	MUST(!pfs_gpu_attach(e->gpu, e->session, NULL, NULL)); /* nothing is new */
	MUST(!pfs_gpu_info(e->gpu, &again));
	MUST(again.registrations == info.registrations && again.registered_bytes == info.registered_bytes);
}

/* What is on the device at the pages of the request. */
static uint8_t *pages_of(const struct engine *e, size_t *bytes)
{
	uint8_t *all = malloc(PAGES * 7312 + state_bytes), *to = all;

	for (uint32_t p = 0; p < PAGES; p++)
		for (unsigned i = 0; i < 3; i++) {
			memcpy(to, e->kv[i] + e->ids[p] * plane_bytes[i], plane_bytes[i]);
			to += plane_bytes[i];
		}
	memcpy(to, e->state + e->state_id * state_bytes, state_bytes);
	*bytes = (size_t)(to - all) + state_bytes;
	return all;
}

static void get_and_compare(struct engine *e, const uint8_t *want, size_t want_bytes)
{
	struct pfs_get_request look = look_of(e);
	struct pfs_gpu_get_request get = get_of(e, &look);
	struct pfs_gpu_get_result got;
	size_t bytes;
	uint8_t *have;

	new_pages(e);
	MUST(!pfs_gpu_get(e->gpu, e->session, &get, &got));
	MUST(got.restored_len == PAGES * 64 && got.values == PAGES + 1 && got.bytes == PAGES * 7312ull + state_bytes);
	have = pages_of(e, &bytes);
	MUST(bytes == want_bytes && !memcmp(have, want, bytes));
	free(have);
	nothing_is_left(e->session);
}

static void there_and_back(struct engine *e, const char *path)
{
	struct pfs_gpu_put_request put = put_of(e);
	struct pfs_get_request look = look_of(e);
	struct pfs_gpu_get_request get = get_of(e, &look);
	struct pfs_gpu_put_result stored;
	struct pfs_gpu_get_result got;
	struct engine reader;
	uint32_t status = 99;
	size_t bytes;
	uint8_t *want;

	new_pages(e);
	want = pages_of(e, &bytes);
	MUST(!pfs_gpu_get(e->gpu, e->session, &get, &got));
	MUST(got.values == 0 && got.restored_len == 0); /* nothing yet */
	MUST(!pfs_gpu_put(e->gpu, e->session, &put, &status, &stored));
	MUST(status == PFS_GROUP_COMMITTED && stored.groups_committed == 1 && stored.new_values == PAGES + 1);
	MUST(stored.bytes == PAGES * 7312ull + state_bytes);
	MUST(!pfs_gpu_put(e->gpu, e->session, &put, &status, &stored));
	MUST(status == PFS_GROUP_COMMITTED && stored.new_values == 0 && stored.bytes == 0); /* it is there */
	get_and_compare(e, want, bytes);

	open_engine(&reader, path, true, &backend_ref);
	attach(&reader);
	get_and_compare(&reader, want, bytes);
	put = put_of(&reader);
	MUST(pfs_gpu_put(reader.gpu, reader.session, &put, NULL, NULL) == -EROFS);
	close_engine(&reader);
	free(want);
}

/* A wrong page id ends the plan. */
static void bad_pages(struct engine *e)
{
	struct pfs_gpu_put_request put = put_of(e);
	struct pfs_get_request look = look_of(e);
	struct pfs_gpu_get_request get = get_of(e, &look);
	struct pfs_gpu_get_result got;
	uint32_t good = e->state_id;

	e->state_id = POOL; /* of the class that is copied last */
	MUST(pfs_gpu_get(e->gpu, e->session, &get, &got) == -ERANGE);
	nothing_is_left(e->session);
	make_request(e, 2);
	MUST(pfs_gpu_put(e->gpu, e->session, &put, NULL, NULL) == -ERANGE);
	nothing_is_left(e->session);
	MUST(!pfs_gpu_get(e->gpu, e->session, &get, &got));
	MUST(got.values == 0);
	e->state_id = good;
	make_request(e, 1);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------ */

static int try_put(struct engine *e, const struct pfs_gpu_put_request *q)
{
	int r = pfs_gpu_put(e->gpu, e->session, q, NULL, NULL);

	nothing_is_left(e->session);
	return r;
}

/* Each is judged before a plan is started: what is asked for is there, and room for what is put. */
static void wrong_pools(struct engine *e)
{
	struct pfs_get_request look = look_of(e);
	struct pfs_gpu_get_request get = get_of(e, &look);
	struct pfs_gpu_pages classes[3] = {e->classes[0], e->classes[1], e->classes[1]};
	struct pfs_gpu_put_request put = {.put = &e->put, .classes = classes};
	struct pfs_gpu_pool pool = e->pools[0];
	int64_t plans = counter(e->session, "put_calls") + counter(e->session, "get_calls");

	classes[0].pool = &pool;
	get.classes = classes;
	pool.plane_count = 2;
	MUST(try_put(e, &put) == -EINVAL);
	said("class 0: the planes of its pool have 5264 bytes together, a value has 7312");
	MUST(pfs_gpu_get(e->gpu, e->session, &get, NULL) == -EINVAL);
	said("class 0: the planes of its pool have 5264 bytes together, a value has 7312");
	pool = e->pools[0];
	pool.page_limit = 0;
	MUST(try_put(e, &put) == -EINVAL);
	said("class 0: page_limit is 0: no page can be named");
	MUST(pfs_gpu_get(e->gpu, e->session, &get, NULL) == -EINVAL);
	said("class 0: page_limit is 0: no page can be named");
	pool = e->pools[0];
	pool.value_tokens = 16;
	MUST(try_put(e, &put) == -EINVAL);
	said("class 0: value_tokens of its pool is 16, pages have 64 tokens");
	MUST(pfs_gpu_get(e->gpu, e->session, &get, NULL) == -EINVAL);
	said("class 0: value_tokens of its pool is 16, pages have 64 tokens");
	pool = e->pools[0];
	e->put.class_mask = 5;
	MUST(try_put(e, &put) == -EINVAL);
	said("class 2 is put, the layout has 2 classes");
	e->put.class_mask = 3;
	get.class_count = 3;
	MUST(pfs_gpu_get(e->gpu, e->session, &get, NULL) == -EINVAL);
	said("class 2 is fetched, the layout has 2 classes");
	get.flags = 2;
	get.class_count = 2;
	MUST(pfs_gpu_get(e->gpu, e->session, &get, NULL) == -EINVAL);
	said("flags are 0x2, 0 or PFS_GPU_URGENT are possible");
	classes[0].pages = NULL;
	MUST(try_put(e, &put) == -EINVAL);
	said("class 0 is put, and has no pool or no pages");
	MUST(pfs_gpu_put(e->gpu, NULL, &put, NULL, NULL) == -EINVAL);
	MUST(pfs_gpu_put(NULL, e->session, &put, NULL, NULL) == -EINVAL);
	MUST(pfs_gpu_get(e->gpu, NULL, &get, NULL) == -EINVAL);
	MUST(pfs_gpu_get(NULL, e->session, &get, NULL) == -EINVAL);
	MUST(counter(e->session, "put_calls") + counter(e->session, "get_calls") == plans);
	nothing_is_left(e->session);
}

/* A get of a handle, made wrong in one way of many. False: there is no such way. */
static bool spoil(struct pfs_gpu_get_request *q, struct pfs_gpu_pages *classes, struct pfs_gpu_pool *pool, unsigned way)
{
	static const struct pfs_get_request look = {0};

	switch (way) {
	case 0: q->classes = NULL; break;
	case 1: q->class_count = 0; break;
	case 2: q->class_count = PFS_MAX_CLASSES + 1; break;
	case 3: q->reserved[1] = 1; break;
	case 4: q->class_mask = 1 << 5; break;
	case 5: q->flags = 4; break;
	case 6: q->from = 128, q->to = 64; break;
	case 7: q->start = 128, q->from = 64; break;
	case 8: q->from = 10; break;
	case 9: q->to = 100; break;
	case 10: q->start = 10, q->from = 64; break;
	case 11: q->to = 64ull * (PAGES + 1); break;
	case 12: q->from = q->to; break;
	case 13: pool->plane_count--; break;
	case 14: pool->pages_per_value = 3; break;
	case 15: classes[1].pool = NULL; q->class_mask = 3; break;
	case 16: q->get = &look; break; /* both */
	case 17: q->to = UINT64_MAX - 63; break;
	default: return false;
	}
	return true;
}

static void handle_is_consumed(struct engine *e)
{
	struct pfs_get_request look = look_of(e);

	for (unsigned way = 0;; way++) {
		struct pfs_gpu_pool pool = e->pools[0];
		struct pfs_gpu_pages classes[2] = {{&pool, e->ids}, e->classes[1]};
		struct pfs_gpu_get_request q = {.classes = classes, .class_count = 2, .to = PAGES * 64};
		struct pfs_get_result found;

		if (!spoil(&q, classes, &pool, way))
			break;
		MUST(!pfs_get_start(e->session, &look, &found));
		MUST(found.transferable_len == PAGES * 64);
		q.handle = found.handle;
		if (pfs_gpu_get(e->gpu, e->session, &q, NULL) != -EINVAL || pfs_get_cancel(e->session, found.handle) != -ENOENT) {
			fprintf(stderr, "way %u is no error, or leaves its handle\n", way);
			exit(1);
		}
		nothing_is_left(e->session);
	}
}

static void get_of_handle(struct engine *e)
{
	struct pfs_get_request look = look_of(e);
	struct pfs_gpu_get_request q = {.classes = e->classes, .class_count = 2, .to = PAGES * 64};
	struct pfs_gpu_get_result got;
	struct pfs_get_result found;

	MUST(!pfs_get_start(e->session, &look, &found));
	q.handle = found.handle;
	MUST(!pfs_gpu_get(e->gpu, e->session, &q, &got));
	MUST(got.restored_len == PAGES * 64 && got.values == PAGES + 1);
	nothing_is_left(e->session);
	MUST(pfs_gpu_get(e->gpu, e->session, &q, &got) == -ENOENT); /* it is over */
}

/* The second rank of a ticket has acknowledged nothing yet: once it has, the same ticket is good, as pfs_put_start says. */
static void ranks(const char *path)
{
	struct pfs_gpu_put_result stored;
	struct engine all[2];
	uint32_t status = 99;

	for (uint32_t rank = 0; rank < 2; rank++) {
		open_rank(&all[rank], path, rank, false, &backend_ref);
		all[rank].put.ticket[3] = 1;
		new_pages(&all[rank]);
	}
	attach(&all[0]);
	MUST(!pfs_gpu_put(all[0].gpu, all[0].session, &(struct pfs_gpu_put_request){.put = &all[0].put, .classes = all[0].classes}, &status, &stored));
	MUST(status == PFS_GROUP_COMMITTED && stored.come_again == 0 && stored.new_values == PAGES + 1);
	for (uint32_t turn = 0; turn < 2; turn++) {
		MUST(!pfs_gpu_put(all[1].gpu, all[1].session, &(struct pfs_gpu_put_request){.put = &all[1].put, .classes = all[1].classes}, &status,
			&stored));
		MUST(status == (turn ? PFS_GROUP_COMMITTED : PFS_GROUP_NOROOM));
		MUST(stored.come_again == !turn && stored.new_values == (turn ? PAGES + 1 : 0));
		if (!turn)
			attach(&all[1]);
	}
	for (uint32_t rank = 0; rank < 2; rank++) {
		nothing_is_left(all[rank].session);
		close_engine(&all[rank]);
	}
}

/* ---- late ---------------------------------------------------------------------------------------------------------- */

static bool recorded; /* the event of an engine's own work */

/* A get of what is there and a put of request @number, whose copies do not end in time: they wait for `recorded`. */
static void begin_late(struct engine *e, unsigned number)
{
	struct pfs_get_request look = look_of(e);
	struct pfs_gpu_get_request get = get_of(e, &look);
	struct pfs_gpu_put_request put;

	get.after = &recorded;
	get.deadline_ms = 20;
	MUST(pfs_gpu_get(e->gpu, e->session, &get, NULL) == -ETIMEDOUT);
	make_request(e, number);
	put = put_of(e);
	put.after = &recorded;
	put.deadline_ms = 20;
	MUST(pfs_gpu_put(e->gpu, e->session, &put, NULL, NULL) == -ETIMEDOUT);
}

/* Copies that do not end in time: the plan stays until they have, and goes then by itself. */
static void late(const char *path)
{
	struct pfs_get_request look;
	struct pfs_gpu_get_result got;
	struct engine e;

	open_engine(&e, path, false, &backend_lazy);
	attach(&e);
	look = look_of(&e);
	begin_late(&e, 3);
	MUST(counter(e.session, "get_plans") == 1);
	MUST(counter(e.session, "put_plans") == 1);
	MUST(pfs_gpu_settle(e.gpu, e.session, 1) == -ETIMEDOUT);
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	MUST(!aftermaths_wait(e.gpu, e.session));
	nothing_is_left(e.session);
	MUST(!pfs_gpu_get(e.gpu, e.session, &(struct pfs_gpu_get_request){.get = &look, .classes = e.classes, .class_count = 2}, &got));
	MUST(got.values == 0); /* what was late was not published */
	close_engine(&e);
}

/* The same, and the device is closed at once: it waits until they are given back. */
static void late_and_closed(const char *path)
{
	struct engine e;

	recorded = false;
	open_engine(&e, path, false, &backend_lazy);
	attach(&e);
	begin_late(&e, 5);
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	pfs_gpu_close(&e.gpu);
	nothing_is_left(e.session);
	pfs_close(&e.session);
	free_pools(&e);
}

static void *let_fail(void *context)
{
	struct engine *e = context;
	struct channel *c = &e->gpu->channels[CHANNEL_OUT];
	uint32_t under_way = 0;

	while (under_way < 2) { /* both classes */
		pthread_mutex_lock(&e->gpu->lock);
		under_way = c->under_way;
		pthread_mutex_unlock(&e->gpu->lock);
		sched_yield();
	}
	fragile_fail(1);
	while (under_way > 1) {
		pthread_mutex_lock(&e->gpu->lock);
		under_way = c->under_way;
		pthread_mutex_unlock(&e->gpu->lock);
		sched_yield();
	}
	return NULL;
}

static void *let_fail_and_go(void *context)
{
	let_fail(context);
	fragile_set(false, false);
	return NULL;
}

/* The copy of one class fails while that of another is under way: an error other than -ETIMEDOUT says that none is any more. */
static void fails_beside(const char *path, bool goes)
{
	struct pfs_gpu_put_request put;
	struct engine e;
	pthread_t thread;

	open_engine(&e, path, false, fragile_ops());
	attach(&e);
	make_request(&e, 6);
	put = put_of(&e);
	put.deadline_ms = goes ? 60000 : 300;
	fragile_set(true, false);
	MUST(!pthread_create(&thread, NULL, goes ? let_fail_and_go : let_fail, &e));
	MUST(pfs_gpu_put(e.gpu, e.session, &put, NULL, NULL) == (goes ? -EIO : -ETIMEDOUT));
	pthread_join(thread, NULL);
	if (goes) {
		MUST(e.gpu->channels[CHANNEL_OUT].under_way == 0);
		said("CUDA_ERROR_LAUNCH_FAILED, as a test would have it");
	} else {
		MUST(counter(e.session, "put_plans") == 1);
		fragile_set(false, false);
		MUST(!aftermaths_wait(e.gpu, e.session));
	}
	nothing_is_left(e.session);
	close_engine(&e);
}

/* Plans are given back beside the ends of other copies, however long the daemon takes. */
static void stopped(const char *path, pid_t daemon)
{
	const uint64_t bytes = 65536;
	struct engine e;
	struct pfs_gpu_op *ops[2];
	uint64_t value;
	struct pfs_gpu_copy copy = {.pool = &e.pools[0], .values = &value, .pages = e.ids, .count = 1};
	uint8_t *own = world_map(bytes);

	open_engine(&e, path, false, &backend_lazy);
	attach(&e);
	MUST(!pfs_gpu_register(e.gpu, own, bytes, 1));
	value = (uintptr_t)own;
	new_pages(&e);
	begin_late(&e, 7);
	MUST(!kill(daemon, SIGSTOP));
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	MUST(!pfs_gpu_scatter(e.gpu, &copy, &ops[0]));
	MUST(!pfs_gpu_wait(ops[0], 5000)); /* behind the late get */
	MUST(!pfs_gpu_gather(e.gpu, &copy, &ops[1]));
	MUST(!pfs_gpu_wait(ops[1], 5000)); /* behind the late put */
	MUST(!pfs_gpu_settle(e.gpu, e.session, 5000)); /* the device has left the pages; the plans wait for the daemon */
	MUST(!kill(daemon, SIGCONT));
	pfs_gpu_end(&ops[0]);
	pfs_gpu_end(&ops[1]);
	MUST(!aftermaths_wait(e.gpu, e.session));
	nothing_is_left(e.session);
	MUST(!pfs_gpu_unregister(e.gpu, own, bytes, 1));
	munmap(own, bytes);
	close_engine(&e);
}

#define THREADS 4u
#define TURNS 30u

struct some {
	struct engine *e;
	uint32_t number;
	struct pfs_key keys[PAGES];
	bool recorded[TURNS]; /* atomic */
	uint32_t done, late;
};

/* Puts, and of the first thread gets, which are let go when they are about to be too late. */
static void *put_or_get(void *context)
{
	struct some *s = context;
	struct engine *e = s->e;

	for (unsigned i = 0; i < TURNS; i++) {
		struct pfs_put_group group = e->group;
		struct pfs_put_request put = e->put;
		struct pfs_get_request look = look_of(e);
		struct pfs_gpu_get_request get = get_of(e, &look);
		struct pfs_gpu_put_request q = {.put = &put, .classes = e->classes, .after = &s->recorded[i], .deadline_ms = 1 + i % 3};
		int r;

		for (uint32_t k = 0; k < PAGES; k++) {
			char name[64];
			int length = snprintf(name, sizeof(name), "thread %u, turn %u, page %u", s->number, i, k);

			MUST(!pfs_key_from_bytes(name, (size_t)length, &s->keys[k]));
		}
		group.keys = put.key_count = 4; /* there is room for all */
		group.consumed = 4 * 64;
		put.groups = &group;
		put.keys = s->keys;
		get.after = q.after;
		get.deadline_ms = q.deadline_ms;
		if (i % 2)
			__atomic_store_n(&s->recorded[i], true, __ATOMIC_RELEASE);
		r = s->number ? pfs_gpu_put(e->gpu, e->session, &q, NULL, NULL) : pfs_gpu_get(e->gpu, e->session, &get, NULL);
		MUST(r == 0 || r == -ETIMEDOUT);
		s->done += r == 0;
		s->late += r != 0;
		__atomic_store_n(&s->recorded[i], true, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void threads(const char *path)
{
	static struct some all[THREADS];
	pthread_t ids[THREADS];
	uint32_t done = 0, late = 0;
	struct engine e;

	open_engine(&e, path, false, &backend_lazy);
	attach(&e);
	new_pages(&e);
	for (uint32_t i = 0; i < THREADS; i++) {
		all[i].e = &e;
		all[i].number = i;
		MUST(!pthread_create(&ids[i], NULL, put_or_get, &all[i]));
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		MUST(!pthread_join(ids[i], NULL));
		done += all[i].done;
		late += all[i].late;
	}
	MUST(late >= THREADS * TURNS / 2 && done + late == THREADS * TURNS);
	MUST(!aftermaths_wait(e.gpu, e.session));
	nothing_is_left(e.session);
	close_engine(&e);
}

static void hang(const char *path)
{
	struct engine e;

	open_engine(&e, path, false, &backend_lazy);
	attach(&e);
	begin_late(&e, 4);
	puts("hanging");
	fflush(stdout);
	pause();
}

/* ---- an engine that outlives daemons ------------------------------------------------------------------------------------------ */

static unsigned registers; /* calls of the driver */
static struct backend_ops counting;

static int counting_register(struct backend *b, uint64_t address, uint64_t bytes, bool read_only, bool *foreign)
{
	__atomic_add_fetch(&registers, 1, __ATOMIC_RELAXED);
	return lazy_register(b, address, bytes, read_only, foreign);
}

static int counting_open(const struct backend_needs *needs, struct backend **ret)
{
	int r = lazy_open(needs, ret);

	if (!r)
		(*ret)->ops = &counting;
	return r;
}

static void ask_for_death(const char *of)
{
	char line[16];

	puts(of);
	fflush(stdout);
	MUST(fgets(line, sizeof(line), stdin) != NULL);
}

static struct pfs_session_info info_of(const struct engine *e)
{
	struct pfs_session_info info;

	MUST(!pfs_info(e->session, &info));
	return info;
}

static uint64_t registered(const struct engine *e)
{
	struct pfs_gpu_info info;

	MUST(!pfs_gpu_info(e->gpu, &info));
	return info.registered_bytes;
}

static uint64_t granted(const struct engine *e)
{
	struct pfs_range ranges[64];
	uint32_t count, total;
	uint64_t bytes = 0;

	MUST(!pfs_segments(e->session, 0, ranges, 64, &count, &total, NULL) && count == total);
	for (uint32_t i = 0; i < count; i++)
		bytes += ranges[i].length;
	return bytes;
}

/* Puts chain @number, and gets it at other pages; *want is what was put. */
static uint8_t *put_and_get(struct engine *e, unsigned number, size_t *bytes)
{
	struct pfs_gpu_put_request put;
	struct pfs_gpu_put_result stored;
	uint8_t *want;

	make_request(e, number);
	new_pages(e);
	want = pages_of(e, bytes);
	put = put_of(e);
	MUST(!pfs_gpu_put(e->gpu, e->session, &put, NULL, &stored));
	MUST(stored.groups_committed == 1 && stored.new_values == PAGES + 1);
	get_and_compare(e, want, *bytes);
	return want;
}

/* A get plan of the pages of the request, and their copies, which wait for `recorded`. */
static struct pfs_gpu_op *begin_copy(struct engine *e, uint64_t *plan)
{
	struct pfs_get_request look = look_of(e);
	struct pfs_get_result found;
	struct pfs_transfer_request request = {0};
	struct pfs_transfer_result moved;
	struct pfs_gpu_copy copy = {.pool = &e->pools[0], .pages = e->ids, .count = PAGES, .after = &recorded};
	struct pfs_gpu_op *op;
	struct pfs_blob blob;

	MUST(!pfs_get_start(e->session, &look, &found));
	request = (struct pfs_transfer_request){.handle = found.handle, .boundary = PAGES * 64, .to = PAGES * 64};
	MUST(!pfs_get_transfer(e->session, &request, &moved) && moved.delivered_len == PAGES * 64);
	*plan = moved.plan;
	MUST(!pfs_blob(e->session, moved.plan, PFS_BLOB_READ, 0, &blob));
	copy.values = blob.words + 2;
	MUST(!pfs_gpu_scatter(e->gpu, &copy, &op));
	return op;
}

/* Does a memory file begin at @address? Stacks of threads may lie there by now. */
static bool is_mapped(const uint8_t *address)
{
	FILE *f = fopen("/proc/self/maps", "re");
	bool found = false;
	char line[512];

	MUST(f != NULL);
	while (fgets(line, sizeof(line), f))
		found |= strtoull(line, NULL, 16) == (uintptr_t)address && strstr(line, "/memfd:");
	fclose(f);
	return found;
}

/* A copy under way out of memory whose daemon is gone: it ends with the right bytes, and only then is the memory given up. */
static void death_amid_a_copy(struct engine *e)
{
	uint64_t plan, before = registered(e);
	size_t bytes, now_bytes;
	uint8_t *want = put_and_get(e, 6, &bytes), *segment = info_of(e).segment, *now;
	struct pfs_gpu_op *op;

	new_pages(e);
	op = begin_copy(e, &plan);
	MUST(pfs_gpu_detach(e->gpu, e->session) == -EBUSY);
	MUST(registered(e) == before);
	ask_for_death("both");
	MUST(!pfs_gpu_attach(e->gpu, e->session, NULL, NULL));
	MUST(info_of(e).remapped == 1 && info_of(e).segment != segment);
	MUST(registered(e) == before + granted(e));
	MUST(pfs_gpu_detach(e->gpu, e->session) == -EBUSY);
	MUST(registered(e) == before + granted(e));
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	MUST(!pfs_gpu_wait(op, 0));
	pfs_gpu_end(&op);
	now = pages_of(e, &now_bytes);
	MUST(!memcmp(now, want, bytes - state_bytes)); /* pages: no state was asked for */
	free(now);
	free(want);
	MUST(!pfs_gpu_attach(e->gpu, e->session, NULL, NULL));
	MUST(registered(e) == before + granted(e)); /* a plan that nobody copies */
	MUST(!pfs_release(e->session, &plan, 1, NULL));
	MUST(!pfs_gpu_attach(e->gpu, e->session, NULL, NULL));
	MUST(registered(e) == granted(e));
	MUST(!is_mapped(segment));
	free(put_and_get(e, 6, &bytes));
}

static void outlive(const char *path)
{
	uint8_t *segment;
	struct engine e;
	unsigned calls;
	size_t bytes;

	counting = backend_lazy;
	counting.open = counting_open;
	counting.host_register = counting_register;
	open_engine(&e, path, false, &counting);
	attach(&e);
	free(put_and_get(&e, 1, &bytes));
	segment = info_of(&e).segment;
	calls = registers;
	MUST(!pfs_reset(e.session, NULL));
	ask_for_death("serving"); /* the memory is kept, its generation is another */
	MUST(!pfs_gpu_attach(e.gpu, e.session, NULL, NULL));
	MUST(info_of(&e).reattached == 1 && info_of(&e).segment == segment);
	MUST(registers == calls && registered(&e) == granted(&e));
	free(put_and_get(&e, 1, &bytes));
	death_amid_a_copy(&e);
	segment = info_of(&e).segment;
	MUST(is_mapped(segment));
	ask_for_death("both"); /* with nothing under way */
	MUST(!pfs_gpu_attach(e.gpu, e.session, NULL, NULL));
	MUST(info_of(&e).remapped == 2 && registered(&e) == granted(&e));
	MUST(!is_mapped(segment));
	free(put_and_get(&e, 1, &bytes));
	close_engine(&e);
	MUST(lazy.registered == 0);
}

int main(int argc, char **argv)
{
	struct engine e;

	MUST(argc >= 2);
	lazy.dice.state = 1234567;
	if (argc > 2) {
		if (!strcmp(argv[2], "hang"))
			hang(argv[1]);
		else if (!strcmp(argv[2], "outlive"))
			outlive(argv[1]);
		else if (!strcmp(argv[2], "ranks"))
			ranks(argv[1]);
		else if (!strcmp(argv[2], "threads"))
			threads(argv[1]);
		else
			stopped(argv[1], (pid_t)atoi(argv[3]));
		return 0;
	}
	open_engine(&e, argv[1], false, &backend_ref);
	attach(&e);
	there_and_back(&e, argv[1]);
	bad_pages(&e);
	wrong_pools(&e);
	handle_is_consumed(&e);
	get_of_handle(&e);
	late(argv[1]);
	late_and_closed(argv[1]);
	fails_beside(argv[1], true);
	fails_beside(argv[1], false);
	close_engine(&e);
	return 0;
}
