/* SPDX-License-Identifier: Apache-2.0
 *
 * client_gpu NAMESPACE [hang | outlive]: whole requests through libprefixfs-gpu on ordinary memory. Exits with 0, or says what was not so.
 * With `hang` a put and a get are left whose copies never end, and it says "hanging" and waits to be killed. With `outlive` it says which
 * death of the daemon it wants, "serving" or "both", and goes on when it is told a line.
 *
 * The namespace has pages of 64 tokens, a dense class of planes of 1,168, 4,096 and 2,048 bytes, and a state class of 10,000 bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"
#include "kernels/attach.h"
#include "kernels/moves.h"
#include "tests/unit/gpu_lazy.h"

#define PAGES 24u
#define POOL 100u /* pages of the device */
#define MUST(condition) must(condition, #condition, __LINE__)

static void must(int holds, const char *text, int line)
{
	char why[512], gpu_why[512];

	if (holds)
		return;
	pfs_last_error(why, sizeof(why));
	pfs_gpu_last_error(gpu_why, sizeof(gpu_why));
	fprintf(stderr, "line %d: not so: %s (%s; %s)\n", line, text, why, gpu_why);
	exit(1);
}

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

static void open_engine(struct engine *e, const char *path, bool read_only, const struct backend_ops *ops)
{
	struct pfs_gpu_options o;
	struct pfs_options options;

	*e = (struct engine){.dice.state = 88172645463325252ull};
	pfs_options_init(&options);
	options.rank = 0;
	options.auto_ack = 0;
	options.wait_prewarm = 1;
	options.read_only = read_only;
	MUST(!pfs_open(path, &options, &e->session));
	pfs_gpu_options_init(&o);
	MUST(!gpu_open_with(ops, &o, &e->gpu));
	make_pools(e);
	make_request(e, 1);
}

static void close_engine(struct engine *e)
{
	MUST(!pfs_gpu_detach(e->gpu, e->session));
	pfs_close(&e->session);
	pfs_gpu_close(&e->gpu);
	for (unsigned i = 0; i < 3; i++)
		munmap(e->kv[i], POOL * plane_bytes[i]);
	munmap(e->state, POOL * state_bytes);
}

static int64_t counter(struct pfs_session *session, const char *name)
{
	char text[65536], *at;
	char line[64];

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
	nothing_is_left(e);
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
	nothing_is_left(e);
	make_request(e, 2);
	MUST(pfs_gpu_put(e->gpu, e->session, &put, NULL, NULL) == -ERANGE);
	nothing_is_left(e);
	MUST(!pfs_gpu_get(e->gpu, e->session, &get, &got));
	MUST(got.values == 0);
	e->state_id = good;
	make_request(e, 1);
}

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
	__atomic_store_n(&recorded, true, __ATOMIC_RELEASE);
	MUST(!aftermaths_wait(e.gpu, e.session));
	nothing_is_left(&e);
	MUST(!pfs_gpu_get(e.gpu, e.session, &(struct pfs_gpu_get_request){.get = &look, .classes = e.classes, .class_count = 2}, &got));
	MUST(got.values == 0); /* what was late was not published */
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
	MUST(msync(segment, 4096, MS_ASYNC) && errno == ENOMEM); /* it is unmapped */
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
	ask_for_death("both"); /* with nothing under way */
	MUST(!pfs_gpu_attach(e.gpu, e.session, NULL, NULL));
	MUST(info_of(&e).remapped == 2 && registered(&e) == granted(&e));
	MUST(msync(segment, 4096, MS_ASYNC) && errno == ENOMEM);
	free(put_and_get(&e, 1, &bytes));
	close_engine(&e);
	MUST(lazy.registered == 0);
}

int main(int argc, char **argv)
{
	struct engine e;

	MUST(argc >= 2);
	lazy.dice.state = 1234567;
	if (argc > 2 && !strcmp(argv[2], "outlive")) {
		outlive(argv[1]);
		return 0;
	}
	if (argc > 2) {
		hang(argv[1]);
		return 1;
	}
	open_engine(&e, argv[1], false, &backend_ref);
	attach(&e);
	there_and_back(&e, argv[1]);
	bad_pages(&e);
	late(argv[1]);
	close_engine(&e);
	return 0;
}
