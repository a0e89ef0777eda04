/* SPDX-License-Identifier: Apache-2.0
 *
 * Resets, removals and pins beside sessions on threads that put, get and check every value: a slot that was given out
 * while somebody could still read or write it, or a key that is found with an older generation's place, shows at once.
 *
 * PREFIXFS_TEST_SEED repeats a run; the seed is printed.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "store/manage.h"

#define MIB (1ull << 20)
#define THREADS 4u
#define ROUNDS 800u
#define CHAINS 12u
#define PAGES 300u /* of a chain; CHAINS * PAGES values are about as many as there are slots */

struct worker {
	struct fixture *f;
	uint8_t *memory;
	uint64_t random;
	uint32_t verified, stale, removed, busy;
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

static void chain_keys(struct worker *w, uint64_t chain)
{
	for (uint32_t i = 0; i < PAGES; i++)
		w->keys[i] = fixture_key(chain, i);
}

static void check(struct worker *w, uint64_t offset, const struct key *key)
{
	if (memcmp(w->memory + offset, key, sizeof(*key)))
		abort();
	w->verified++;
}

static void put_some(struct worker *w, struct session *s, uint64_t id)
{
	uint64_t chain = 1 + draw(w, CHAINS);
	uint32_t pages = 1 + (uint32_t)draw(w, PAGES), status[1];
	struct why why = WHY_INIT;
	int r = put_chain(s, id, chain, 0, pages, 1, draw(w, 8) ? 0 : PUT_WHOLE, w->result);

	if (r == -ESTALE)
		w->stale++;
	else if (r)
		abort();
	if (r || w->result->status[0] != PUT_OK)
		return;
	for (uint32_t i = 0; i < pages; i++) {
		struct key key = fixture_key(chain, i);

		if (w->result->answers[i] < PUT_ANSWER_DUPLICATE)
			memcpy(w->memory + w->result->answers[i], &key, sizeof(key));
	}
	r = end_run(s, id, draw(w, 6) != 0, 0, 1, status, NULL, &why);
	if (r == -ESTALE && status[0] == PUT_LOST)
		w->stale++;
	else if (r)
		abort();
	if (!r && status[0] == PUT_PENDING && end_run(s, id, false, 0, 1, status, NULL, &why))
		abort();
}

static void get_some(struct worker *w, struct session *s, uint64_t id)
{
	struct get_start get = { .session = s, .handle = id, .keys = w->keys, .key_count = PAGES };
	struct get_transfer transfer = { .session = s };
	struct why why = WHY_INIT;
	int r;

	chain_keys(w, 1 + draw(w, CHAINS));
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
	if (!draw(w, 4))
		sched_yield(); /* a reset may come between */
	if (transfer_run(s, id, id, get.transferable_len, 0, get.transferable_len, w->offsets, PAGES, &transfer, &why))
		abort();
	for (uint32_t i = 0; i < transfer.values; i++)
		check(w, w->offsets[i], &w->keys[i]);
	if (draw(w, 20) && get_release(s, id, &why)) /* sometimes left for the session's end */
		abort();
}

static void manage_some(struct worker *w, struct session *s)
{
	struct removal removal = { .session = s, .keys = w->keys, .key_count = 1 + (uint32_t)draw(w, PAGES) };
	struct pinning pinning = { .session = s, .keys = w->keys, .key_count = 1, .flags = (uint32_t)draw(w, 4) };
	struct why why = WHY_INIT;
	int r;

	chain_keys(w, 1 + draw(w, CHAINS));
	r = pinning_begin(&pinning, &why);
	while (r == STEP_MORE)
		r = pinning_step(&pinning, &why);
	if (r && r != -ENOSPC)
		abort();
	r = removal_begin(&removal, &why);
	while (r == STEP_MORE)
		r = removal_step(&removal, &why);
	if (r || removal.removed + removal.absent + removal.busy != removal.key_count)
		abort();
	w->removed += removal.removed;
	w->busy += removal.busy;
}

static void *work(void *context)
{
	struct worker *w = context;
	struct session *s = NULL;

	for (uint32_t round = 1; round <= ROUNDS; round++) {
		if (!s)
			s = fixture_session(w->f, 0);
		switch (draw(w, 8)) {
		case 0:
			manage_some(w, s);
			break;
		case 1 ... 3:
			put_some(w, s, round);
			break;
		default:
			get_some(w, s, round);
			break;
		}
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

static uint64_t reset_once(struct session *s)
{
	struct reset call = { .session = s };
	struct why why = WHY_INIT;
	int r = reset_begin(&call, &why);

	while (r == STEP_MORE)
		r = reset_step(&call, &why);
	if (r)
		abort();
	return call.generation;
}

/* Two of these: resets overlap. */
static void *resetter(void *context)
{
	struct fixture *f = context;
	struct session *s = fixture_session(f, 0);
	uint64_t last = 1;

	while (!atomic_load(&stop)) {
		uint64_t generation = reset_once(s);

		if (generation <= last)
			abort();
		last = generation;
		host_maintain(f->host);
		for (int i = 0; i < 50; i++)
			sched_yield();
	}
	session_release(s);
	session_unref(&s);
	return NULL;
}

static void nobody_reads_anothers_bytes_beside_resets(void **state)
{
	const char *text = getenv("PREFIXFS_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : clock_now_ns(), verified = 0, stale = 0, removed = 0;
	struct worker *workers = calloc(THREADS, sizeof(*workers));
	pthread_t threads[THREADS], resetters[2];
	struct fixture f;
	struct session *s;
	uint8_t *memory;

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
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&resetters[i], NULL, resetter, &f), 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		verified += workers[i].verified;
		stale += workers[i].stale;
		removed += workers[i].removed;
		free(workers[i].result);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(resetters[i], NULL);
	print_message("%llu verified, %llu stale, %llu removed, generation %llu\n", (unsigned long long)verified,
		      (unsigned long long)stale, (unsigned long long)removed, (unsigned long long)space_generation(f.space));
	assert_true(verified > 500);
	s = fixture_session(&f, 0);
	reset_once(s);
	session_release(s);
	session_unref(&s);
	assert_at_base(&f, 0);
	assert_int_equal(fixture_report(&f).hidden_records, 0);
	assert_int_equal(fixture_report(&f).records, 0);
	assert_int_equal(fixture_report(&f).pinned_bytes, 0);
	assert_int_equal(fixture_report(&f).slots_free, fixture_report(&f).slots);
	munmap(memory, segment_bytes(f.space->segment));
	free(workers);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_reads_anothers_bytes_beside_resets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
