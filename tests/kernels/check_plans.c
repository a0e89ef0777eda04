/* SPDX-License-Identifier: Apache-2.0
 *
 * check_plans ref|cuda NAMESPACE PAGES WHAT [NUMBER ...]: an engine whose device or process comes to grief amid copies of plans.
 * faults.py has the namespace made, runs these one after another, and kills some. Exits with 77 where there is no GPU. GUARD_PID in the
 * environment is the session's guard.
 *
 *   keep    stores chain 1
 *   lost    the context is lost while a put and a get are under way: both say so, and are given back
 *   held    a put whose copies cannot end; says "copying" and waits to be killed
 *   churn FIRST       stores chains FIRST, FIRST + 1, ..., fetches chain 1 beside, and is killed; says "copying" and each number
 *   look FIRST LAST   of chains 1 and FIRST..LAST each page that is there is whole; nothing is left of anybody else
 *   fill FIRST BYTES  chains from FIRST on fill so many bytes
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"
#include "kernels/attach.h"
#include "kernels/lab.h"
#include "kernels/moves.h"
#include "tests/kernels/fragile.h"
#include "tests/unit/gpu_world.h"

#define SKIPPED 77
#define HANGS_S 120u
#define PLANES 3u
#define KINDS 8u /* of content: chains whose numbers differ by so many have the same */
#define MUST(condition) must(condition, #condition, __LINE__)

static const uint64_t plane_bytes[PLANES] = {65536, 4096, 1168}; /* as in faults.py */
#define VALUE_BYTES (65536u + 4096u + 1168u)

static bool cuda;

static void must(int holds, const char *text, int line)
{
	char why[512], gpu_why[512];

	if (holds)
		return;
	pfs_last_error(why, sizeof(why));
	pfs_gpu_last_error(gpu_why, sizeof(gpu_why));
	printf("FAILED: line %d: not so: %s (%s; %s)\n", line, text, why, gpu_why);
	exit(1);
}

struct engine {
	struct lab *lab;
	struct pfs_session *session;
	struct pfs_gpu *gpu;
	uint32_t count;      /* pages of a chain, and of the device's pool */
	uint64_t device;     /* planes one after another */
	uint8_t *wanted, *got; /* as the pool's memory is */
	struct pfs_gpu_plane planes[PLANES];
	struct pfs_gpu_pool pool;
	struct pfs_gpu_pages pages;
	uint32_t *ids;
	struct pfs_key *keys;
	struct pfs_put_group group;
	struct pfs_put_request put;
	struct pfs_get_request look;
	struct dice dice;
};

static void make_pool(struct engine *e)
{
	uint64_t at = 0;

	e->wanted = malloc((uint64_t)e->count * VALUE_BYTES);
	e->got = malloc((uint64_t)e->count * VALUE_BYTES);
	e->ids = malloc(e->count * sizeof(*e->ids));
	e->keys = malloc(e->count * sizeof(*e->keys));
	MUST(!lab_take(e->lab, (uint64_t)e->count * VALUE_BYTES, &e->device));
	for (unsigned i = 0; i < PLANES; i++) {
		e->planes[i] = (struct pfs_gpu_plane){.base = e->device + at, .stride = plane_bytes[i], .bytes = plane_bytes[i]};
		at += e->count * plane_bytes[i];
	}
	e->pool = (struct pfs_gpu_pool){.planes = e->planes, .plane_count = PLANES, .page_limit = e->count};
	e->pages = (struct pfs_gpu_pages){&e->pool, e->ids};
}

static int open_engine(struct engine *e, const char *path, uint32_t count)
{
	struct pfs_gpu_options o;
	struct pfs_options options;
	const struct backend_ops *ops;
	int r = lab_open(cuda ? "cuda" : "ref", 0, &e->lab);

	if (r)
		return r;
	e->count = count;
	e->dice.state = 88172645463325252ull ^ (uint64_t)getpid() << 32;
	pfs_options_init(&options);
	options.rank = 0;
	options.auto_ack = 0;
	options.wait_prewarm = 1;
	options.deadline_ms = 60000;
	if (getenv("GUARD_PID"))
		options.guard_pid = (uint32_t)strtoul(getenv("GUARD_PID"), NULL, 0);
	MUST(!pfs_open(path, &options, &e->session));
	pfs_gpu_options_init(&o);
	MUST(!backend_select(cuda ? "cuda" : "ref", &ops));
	MUST(!gpu_open_with(cuda ? ops : fragile_ops(), &o, &e->gpu));
	make_pool(e);
	MUST(!pfs_gpu_attach(e->gpu, e->session, NULL, NULL));
	return 0;
}

static void name_keys(struct engine *e, uint32_t number)
{
	for (uint32_t i = 0; i < e->count; i++) {
		char name[64];
		int length = snprintf(name, sizeof(name), "chain %u, page %u", number, i);

		MUST(!pfs_key_from_bytes(name, (size_t)length, &e->keys[i]));
	}
	e->group = (struct pfs_put_group){.consumed = e->count * 64, .keys = e->count, .class_mask = 1, .flags = PFS_GROUP_ROOT};
	e->put = (struct pfs_put_request){
		.groups = &e->group, .keys = e->keys, .group_count = 1, .key_count = e->count, .class_mask = 1};
	e->look = (struct pfs_get_request){.keys = e->keys, .key_count = e->count};
}

/* Keys of chain @number, pages in another order, and to e->wanted what its values are at those pages. */
static void choose(struct engine *e, uint32_t number)
{
	name_keys(e, number);
	world_choose(&e->dice, e->ids, e->count, e->count);
	for (uint32_t i = 0; i < e->count; i++) {
		struct dice content = {.state = (uint64_t)(number % KINDS + 1) << 32 | (i + 1)};
		uint64_t at = 0;

		for (unsigned p = 0; p < PLANES; p++) {
			dice_fill(&content, e->wanted + at + e->ids[i] * plane_bytes[p], plane_bytes[p]);
			at += e->count * plane_bytes[p];
		}
	}
}

static int put(struct engine *e, void *after, uint32_t deadline_ms, uint32_t *status)
{
	const struct pfs_gpu_put_request q = {.put = &e->put, .classes = &e->pages, .after = after, .deadline_ms = deadline_ms};

	return pfs_gpu_put(e->gpu, e->session, &q, status, NULL);
}

static int get(struct engine *e, void *after, struct pfs_gpu_get_result *ret)
{
	const struct pfs_gpu_get_request q = {.get = &e->look, .classes = &e->pages, .class_count = 1, .after = after};

	return pfs_gpu_get(e->gpu, e->session, &q, ret);
}

/* What gets no room is asked for again, as an engine does. */
static void put_all(struct engine *e)
{
	uint32_t status = 99;

	for (unsigned tries = 0; tries < 100; tries++) {
		MUST(!put(e, NULL, 0, &status));
		if (status == PFS_GROUP_COMMITTED)
			return;
		pfs_news(e->session, 50);
		MUST(!pfs_gpu_attach(e->gpu, e->session, NULL, NULL));
	}
	MUST(status == PFS_GROUP_COMMITTED);
}

/* Values of the chain go to the device, and from there into a put. */
static void store(struct engine *e, uint32_t number)
{
	choose(e, number);
	MUST(!lab_write(e->lab, e->device, e->wanted, (uint64_t)e->count * VALUE_BYTES));
	put_all(e);
}

/* Fetches what there is of the chain: how many pages. Each is whole, and nothing else of the device was written. */
static uint32_t fetch(struct engine *e, uint32_t number)
{
	struct pfs_gpu_get_result got;
	uint64_t at = 0;
	uint32_t pages;

	choose(e, number);
	MUST(!lab_set(e->lab, e->device, 0x5a, (uint64_t)e->count * VALUE_BYTES));
	MUST(!get(e, NULL, &got));
	pages = got.values;
	MUST(got.restored_len == pages * 64ull);
	MUST(!lab_read(e->lab, e->got, e->device, (uint64_t)e->count * VALUE_BYTES));
	for (unsigned p = 0; p < PLANES; p++) {
		for (uint32_t i = pages; i < e->count; i++)
			memset(e->wanted + at + e->ids[i] * plane_bytes[p], 0x5a, plane_bytes[p]);
		at += e->count * plane_bytes[p];
	}
	MUST(!memcmp(e->got, e->wanted, (uint64_t)e->count * VALUE_BYTES));
	return pages;
}

static int64_t counter(struct pfs_session *session, const char *name)
{
	char text[65536], *at, line[64];

	MUST(!pfs_stat(session, text, sizeof(text), NULL));
	snprintf(line, sizeof(line), "\n%s ", name);
	at = strstr(text, line);
	MUST(at != NULL);
	return strtoll(at + strlen(line), NULL, 10);
}

static void nothing_is_left(struct engine *e)
{
	MUST(counter(e->session, "put_plans") == 0);
	MUST(counter(e->session, "get_plans") == 0);
	MUST(counter(e->session, "handles") == 0);
	MUST(counter(e->session, "pins") == 0);
	MUST(counter(e->session, "slots_prepared") == 0);
	MUST(counter(e->session, "slots_quarantined") == 0);
}

static void close_engine(struct engine *e)
{
	MUST(!pfs_gpu_detach(e->gpu, e->session));
	nothing_is_left(e);
	pfs_close(&e->session);
	pfs_gpu_close(&e->gpu);
	lab_close(&e->lab);
}

/* ---- what is done -------------------------------------------------------------------------------------------------- */

static void *hold(struct engine *e, uint32_t ms)
{
	void *event = NULL;

	MUST(!lab_hold(e->lab, ms, &event));
	if (!cuda)
		fragile_set(true, false);
	return event;
}

/* A put of a chain that is not there yet, which @after holds up: it goes on without its caller. */
static void begin_put(struct engine *e, uint32_t number, void *after)
{
	choose(e, number);
	MUST(put(e, after, 20, NULL) == -ETIMEDOUT);
	MUST(counter(e->session, "put_plans") == 1);
}

static void *a_get(void *context)
{
	struct engine *e = context;
	char why[512];
	int r = get(e, NULL, NULL); /* behind the put's copies no more than beside them: it fails, or was done before */

	pfs_gpu_last_error(why, sizeof(why));
	printf("the get: %d, %s\n", r, r ? why : "done");
	MUST(r == 0 || r == -EIO);
	return NULL;
}

static void lose(struct engine *e)
{
	if (cuda)
		MUST(!lab_trap(e->lab));
	else
		fragile_set(false, true);
}

static void lost(struct engine *e)
{
	struct pfs_gpu_get_result got;
	pthread_t thread;
	char why[512];

	begin_put(e, 2, hold(e, 3000));
	choose(e, 1);
	MUST(!pthread_create(&thread, NULL, a_get, e));
	lose(e);
	pthread_join(thread, NULL);
	MUST(!aftermaths_wait(e->gpu, e->session));
	nothing_is_left(e);
	MUST(get(e, NULL, &got) == -EIO);
	choose(e, 3);
	MUST(put(e, NULL, 0, NULL) == -EIO);
	pfs_gpu_last_error(why, sizeof(why));
	printf("a put: %s\n", why);
	MUST(strstr(why, "the device is lost, it has to be opened anew: ") != NULL);
	nothing_is_left(e);
	MUST(pfs_gpu_attach(e->gpu, e->session, NULL, NULL) == 0); /* all is registered: there is nothing to ask the device for */
	MUST(pfs_gpu_detach(e->gpu, e->session) == -EIO);
	nothing_is_left(e);
	MUST(pfs_gpu_attach(e->gpu, e->session, NULL, NULL) == -EIO);
	pfs_gpu_last_error(why, sizeof(why));
	printf("attaching: %s\n", why);
	MUST(strstr(why, "the device is lost, it has to be opened anew: ") != NULL);
	pfs_close(&e->session);
	pfs_gpu_close(&e->gpu);
}

static void held(struct engine *e)
{
	begin_put(e, 2, hold(e, 60000));
	printf("copying\n");
	pause();
}

static void *fetch_on(void *context)
{
	struct engine *e = context;
	struct pfs_gpu_get_result got;

	for (;;)
		MUST(!get(e, NULL, &got) && got.values % e->count == 0);
	return NULL;
}

/* Hardly anything but copies: the content is on the device beforehand. */
static void churn(struct engine *e, uint32_t first)
{
	struct engine kinds[KINDS], other = *e;
	pthread_t thread;

	for (uint32_t k = 0; k < KINDS; k++) {
		kinds[k] = *e;
		make_pool(&kinds[k]);
		choose(&kinds[k], k);
		MUST(!lab_write(e->lab, kinds[k].device, kinds[k].wanted, (uint64_t)e->count * VALUE_BYTES));
	}
	make_pool(&other);
	choose(&other, 1);
	MUST(!pthread_create(&thread, NULL, fetch_on, &other));
	for (uint32_t number = first;; number++) {
		struct engine *kind = &kinds[number % KINDS];

		name_keys(kind, number);
		kind->pages.pool = &kind->pool;
		if (number == first)
			printf("copying\n");
		printf("%u\n", number);
		put_all(kind);
	}
}

static void look(struct engine *e, uint32_t first, uint32_t last)
{
	uint32_t pages = fetch(e, 1), whole = 0, parts = 0;

	printf("%u of %u pages of chain 1", pages, e->count);
	for (uint32_t number = first; number <= last; number++) {
		pages = fetch(e, number);
		whole += pages == e->count;
		parts += pages > 0 && pages < e->count;
	}
	printf("; of chains %u..%u %u are there, %u in part\n", first, last, whole, parts);
	nothing_is_left(e);
}

static void fill(struct engine *e, uint32_t first, uint64_t bytes)
{
	for (uint64_t done = 0; done < bytes; done += (uint64_t)e->count * VALUE_BYTES, first++) {
		store(e, first);
		MUST(fetch(e, first) == e->count);
	}
	nothing_is_left(e);
}

int main(int argc, char **argv)
{
	static struct engine e; /* its memory goes with the process, however that ends */
	const char *what;
	int r;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc >= 5);
	cuda = !strcmp(argv[1], "cuda");
	what = argv[4];
	r = open_engine(&e, argv[2], (uint32_t)strtoul(argv[3], NULL, 0));
	if (r) {
		char why[512];

		pfs_gpu_last_error(why, sizeof(why));
		printf("%s: %s\n", r == -ENODEV || r == -ENOTSUP ? "skipped" : "FAILED", why);
		return r == -ENODEV || r == -ENOTSUP ? SKIPPED : 1;
	}
	alarm(HANGS_S);
	if (!strcmp(what, "keep")) {
		store(&e, 1);
		MUST(fetch(&e, 1) == e.count);
		close_engine(&e);
	} else if (!strcmp(what, "lost")) {
		lost(&e);
	} else if (!strcmp(what, "held")) {
		held(&e);
	} else if (!strcmp(what, "churn")) {
		MUST(argc == 6);
		churn(&e, (uint32_t)strtoul(argv[5], NULL, 0));
	} else {
		MUST(argc == 7);
		if (!strcmp(what, "look"))
			look(&e, (uint32_t)strtoul(argv[5], NULL, 0), (uint32_t)strtoul(argv[6], NULL, 0));
		else
			fill(&e, (uint32_t)strtoul(argv[5], NULL, 0), strtoull(argv[6], NULL, 0));
		close_engine(&e);
	}
	printf("%s: ok\n", what);
	return 0;
}
