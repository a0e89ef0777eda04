/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions on threads of their own put, get, give up and die over a few keys in too little memory. Every value put
 * begins with its key; every value got must: a slot that was handed out twice, reused while it was read, or seen before
 * its commit shows at once. At the end everything that was under way is at its base.
 *
 * PREFIXFS_TEST_SEED repeats a run; the seed is printed.
 */
#include "tests/unit/store_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define THREADS 4u
#define ROUNDS 1500u
#define CHAINS 24u
#define GROUPS 8u /* of one call, at most */
#define PAGES 200u /* of a chain; CHAINS * PAGES values are more than there are slots */

struct worker {
	struct fixture *f;
	uint8_t *memory;
	uint64_t random;
	uint32_t verified, refused;
	struct put_result *result;
	struct key keys[PAGES];
	uint64_t offsets[PAGES];
};

static _Atomic bool stop;

static uint64_t draw(struct worker *w, uint64_t below)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random % below;
}

/* Through volatile words: readers and writers of different slots only, and the commit orders them for one slot. */
static void stamp(struct worker *w, uint64_t offset, const struct key *key)
{
	memcpy(w->memory + offset, key, sizeof(*key));
	memcpy(w->memory + offset + 4096 - sizeof(*key), key, sizeof(*key));
}

static void check(struct worker *w, uint64_t offset, const struct key *key)
{
	if (memcmp(w->memory + offset, key, sizeof(*key)) || memcmp(w->memory + offset + 4096 - sizeof(*key), key, sizeof(*key)))
		abort();
	w->verified++;
}

/* Cuts pages [from, from + pages) of a chain into groups; how many. */
static uint32_t cut(struct worker *w, uint64_t chain, uint32_t from, uint32_t pages, struct put_group *groups)
{
	uint32_t n = 0, flags = draw(w, 8) ? 0 : PUT_WHOLE;

	for (uint32_t at = 0; at < pages; n++) {
		uint32_t keys = n + 1 < GROUPS ? 1 + (uint32_t)draw(w, pages - at) : pages - at;

		groups[n] = (struct put_group){
			.consumed = (uint64_t)(from + at + keys) * FIXTURE_PAGE,
			.keys = keys,
			.class_mask = 1,
			.flags = flags | (from + at ? 0 : PUT_ROOT),
		};
		if (from + at)
			groups[n].parent = fixture_key(chain, from + at - 1);
		at += keys;
	}
	return n;
}

/* Ends groups [first, first + n) of a plan; whoever waits for another plan's key gives up. */
static void end_some(struct session *s, uint64_t id, bool commit, uint32_t first, uint32_t n)
{
	uint32_t status[GROUPS];
	struct why why = WHY_INIT;

	if (!n)
		return;
	if (end_run(s, id, commit, first, n, status, NULL, &why))
		abort();
	for (uint32_t i = 0; i < n; i++)
		if (status[i] == PUT_PENDING && end_run(s, id, false, first + i, 1, &status[i], NULL, &why))
			abort();
}

static void put_some(struct worker *w, struct session *s, uint64_t id)
{
	uint64_t chain = 1 + draw(w, CHAINS);
	uint32_t from = (uint32_t)draw(w, 3) * 50, pages = 1 + (uint32_t)draw(w, PAGES - from);
	struct put_group groups[GROUPS];
	struct key keys[PAGES];
	uint32_t n = cut(w, chain, from, pages, groups), last = n;

	for (uint32_t i = 0; i < pages; i++)
		keys[i] = fixture_key(chain, from + i);
	if (put_run(s, id, groups, n, keys, pages, 1, w->result))
		abort();
	for (uint32_t i = 0; i < pages; i++)
		if (w->result->answers[i] < PUT_ANSWER_DUPLICATE)
			stamp(w, w->result->answers[i], &keys[i]);
	w->refused += n - w->result->groups_ok;
	while (last && w->result->status[last - 1] != PUT_OK) /* nothing is left of those: the plan ends with the others */
		last--;
	/* sometimes the first ones are given up, and nothing leads to the others */
	uint32_t lost = draw(w, 4) ? 0 : (uint32_t)draw(w, last + 1);

	if (lost < last)
		end_some(s, id, false, 0, lost);
	else
		lost = 0;
	if (last)
		end_some(s, id, draw(w, 5) != 0, lost, last - lost);
}

static void get_some(struct worker *w, struct session *s, uint64_t id)
{
	uint64_t chain = 1 + draw(w, CHAINS);
	struct get_start get = { .session = s, .handle = id, .keys = w->keys, .key_count = PAGES };
	struct get_transfer transfer = { .session = s };
	struct why why = WHY_INIT;
	int r;

	for (uint32_t i = 0; i < PAGES; i++)
		w->keys[i] = fixture_key(chain, i);
	if (session_enter(s, 0, &why))
		abort();
	r = get_start_begin(&get, &why);
	while (!r && (r = get_start_step(&get, &why)) == STEP_MORE)
		r = 0;
	session_leave(s);
	if (r)
		abort();
	if (!get.handle_live)
		return;
	if (!draw(w, 6)) {
		if (get_cancel(s, id, &why))
			abort();
		return;
	}
	if (transfer_run(s, id, id, get.transferable_len, 0, get.transferable_len, w->offsets, PAGES, &transfer, &why))
		abort();
	for (uint32_t i = 0; i < transfer.values; i++)
		check(w, w->offsets[i], &w->keys[i]);
	if (draw(w, 20) && get_release(s, id, &why)) /* sometimes left for the session's end */
		abort();
}

static void *work(void *context)
{
	struct worker *w = context;
	struct session *s = NULL;

	for (uint32_t round = 1; round <= ROUNDS; round++) {
		if (!s)
			s = fixture_session(w->f, 0);
		if (draw(w, 3))
			get_some(w, s, round);
		else
			put_some(w, s, round);
		if (!draw(w, 50)) {
			uint64_t number = session_number(s);

			session_release(s);
			session_unref(&s);
			host_process_gone(w->f->host, number);
		}
	}
	if (s) {
		session_release(s);
		session_unref(&s);
	}
	return NULL;
}

/* What the mount does meanwhile: looks at records, reads them, evicts some. */
static void *look(void *context)
{
	struct fixture *f = context;
	static char bytes[64 * 4096];
	uint32_t cursor = 0, seen = 0;

	while (!atomic_load(&stop)) {
		struct record_info info;
		struct why why = WHY_INIT;

		if (!space_record_next(f->space, &cursor, &info)) {
			cursor = 0;
			host_maintain(f->host);
			continue;
		}
		space_record_read(f->space, info.number, info.generation, false, 0, bytes, sizeof(bytes));
		if (++seen % 64 == 0)
			space_record_evict(f->space, info.number, info.generation, false, &why);
	}
	return NULL;
}

static void sessions_on_threads_never_see_anothers_bytes(void **state)
{
	const char *text = getenv("PREFIXFS_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : clock_now_ns();
	struct worker *workers = calloc(THREADS, sizeof(*workers));
	pthread_t threads[THREADS], looker;
	struct fixture f;
	uint8_t *memory;
	uint64_t verified = 0;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	memory = mmap(NULL, segment_bytes(f.space->segment), PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd(f.space->segment), 0);
	assert_true(memory != MAP_FAILED);
	atomic_store(&stop, false);
	for (uint32_t i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .f = &f, .memory = memory, .random = seed * 2 + 1 + i * 0x9e3779b97f4a7c15ull,
					      .result = malloc(sizeof(struct put_result)) };
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	assert_int_equal(pthread_create(&looker, NULL, look, &f), 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		verified += workers[i].verified;
		free(workers[i].result);
	}
	atomic_store(&stop, true);
	pthread_join(looker, NULL);
	assert_true(verified > 1000);
	assert_at_base(&f, 0);
	munmap(memory, segment_bytes(f.space->segment));
	free(workers);
	fixture_close(&f);
}

struct ending {
	struct fixture *f;
	pthread_barrier_t *together;
	uint64_t number;
	bool guarded; /* the guard goes right after it */
};

static void *process_goes(void *context)
{
	struct ending *e = context;

	pthread_barrier_wait(e->together);
	if (e->guarded)
		host_client_gone(e->f->host, e->number);
	host_process_gone(e->f->host, e->number);
	return NULL;
}

/* The descriptor's release and the process's end come at once, on two threads of the daemon: no slot rests for ever. */
static void a_process_that_goes_while_its_session_is_torn_down_leaves_no_quarantine(void **state)
{
	static struct put_result result;
	pthread_barrier_t together;
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	pthread_barrier_init(&together, NULL, 2);
	for (uint32_t round = 0; round < 100; round++) {
		struct session *s = fixture_session(&f, 0);
		struct ending e = { &f, &together, session_number(s), round % 2 };
		pthread_t thread;

		for (uint64_t plan = 1; plan <= 4; plan++)
			assert_int_equal(put_chain(s, plan, plan, 0, 500, 1, 0, &result), 0);
		assert_int_equal(pthread_create(&thread, NULL, process_goes, &e), 0);
		pthread_barrier_wait(&together);
		session_release(s);
		pthread_join(thread, NULL);
		session_unref(&s);
		assert_at_base(&f, 0);
	}
	pthread_barrier_destroy(&together);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_process_that_goes_while_its_session_is_torn_down_leaves_no_quarantine),
		cmocka_unit_test(sessions_on_threads_never_see_anothers_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
