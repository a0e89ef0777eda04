/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs under threads: what is read is always one version, whole; one thread at a time makes what is not there; those that die
 * with a lock hold nobody up.
 */
#include "tests/unit/blobs_world.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4u
#define ROUNDS 400u
#define LONGEST (3 * BLOBS_UNIT)

struct world {
	struct blobs *b;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint64_t changes; /* (mutex) */
	_Atomic uint32_t making[ROUNDS], made[ROUNDS];
	_Atomic uint32_t number;
};

static void changed(void *context)
{
	struct world *w = context;

	pthread_mutex_lock(&w->mutex);
	w->changes++;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->mutex);
}

static void world_open(struct world *w, uint32_t units)
{
	memset(w, 0, sizeof(*w));
	pthread_mutex_init(&w->mutex, NULL);
	pthread_cond_init(&w->cond, NULL);
	w->b = blobs_open(units, 64, changed, w);
}

static void world_run(struct world *w, void *(*function)(void *))
{
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, function, w);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < THREADS; i++)
		blobs_session_end(w->b, i + 1);
	struct blobs_report r = report_of(w->b);

	assert_int_equal(r.transfers, 0);
	assert_int_equal(r.waiting, 0);
	assert_int_equal(r.locks, 0);
	blobs_free(&w->b);
	pthread_mutex_destroy(&w->mutex);
	pthread_cond_destroy(&w->cond);
}

/* The content of a blob stands in its first byte, and all of it is that byte. */
static void *store_and_read(void *context)
{
	struct world *w = context;
	uint64_t session = atomic_fetch_add(&w->number, 1) + 1;
	unsigned char *bytes = malloc(LONGEST), *got = malloc(LONGEST);

	for (unsigned n = 0; n < 4 * ROUNDS; n++) {
		uint64_t key = n * session % 7, length = 1 + (n * 977 + session * 4001) % (LONGEST - 1);
		struct why why = WHY_INIT;

		memset(bytes, (int)(n + session), LONGEST);
		if (n % 3 == 0) {
			struct blob_write whole = {.blobs = w->b, .session = session, .name.key = blob_key(key), .from = bytes,
				.length = length, .bytes = (uint32_t)length};
			int r = write_run(&whole, &why);

			assert_true(r == 0 || r == -ENOSPC);
		}
		struct blob_read c = {.blobs = w->b, .session = session, .id = n + 1, .key = blob_key(key), .to = got,
			.capacity = 1000};

		while (read_run(&c, &why) == 0) { /* in pieces of one version */
			for (uint32_t i = 0; i < c.bytes; i++)
				assert_int_equal(got[i], c.offset || i ? got[i ? i - 1 : 0] : got[0]);
			if (c.offset)
				assert_int_equal(got[0], bytes[0]);
			else
				bytes[0] = got[0];
			c.offset += c.bytes;
			if (c.ended)
				break;
		}
	}
	free(bytes);
	free(got);
	return NULL;
}

static void reads_are_of_one_version(void **state)
{
	struct world w;

	world_open(&w, 24);
	world_run(&w, store_and_read);
}

/* Waits for a lock as the mount does: looks, and if it has to wait, for a change that came after the look began. */
static int lock_wait(struct world *w, struct blob_lock *c, struct why *why)
{
	int r = blob_lock_begin(c, false, why);

	while (r == STEP_MORE || r == STEP_WAIT) {
		struct timespec until;
		uint64_t before;

		pthread_mutex_lock(&w->mutex);
		before = w->changes;
		pthread_mutex_unlock(&w->mutex);
		r = blob_lock_step(c, why);
		if (r != STEP_WAIT)
			break;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 20;
		pthread_mutex_lock(&w->mutex);
		while (w->changes == before)
			if (pthread_cond_timedwait(&w->cond, &w->mutex, &until))
				fail_msg("nobody was told for 20 s");
		pthread_mutex_unlock(&w->mutex);
	}
	blob_lock_end(c);
	return r;
}

static void *make_once(void *context)
{
	struct world *w = context;
	uint64_t session = atomic_fetch_add(&w->number, 1) + 1;

	for (uint64_t n = 0; n < ROUNDS; n++) {
		struct blob_lock c = {.blobs = w->b, .session = session, .key = blob_key(n), .hold_ns = 3600 * SECOND_NS,
			.deadline_ns = UINT64_MAX};
		struct why why = WHY_INIT;

		assert_int_equal(lock_wait(w, &c, &why), 0);
		if (c.answer == BLOB_LOCK_HELD && (n + session) % 5 == 0 && !atomic_load(&w->made[n])) {
			blobs_session_end(w->b, session); /* dies with it, and comes again */
			assert_int_equal(lock_wait(w, &c, &why), 0);
		}
		if (c.answer != BLOB_LOCK_HELD) {
			assert_int_equal(c.answer, BLOB_LOCK_FOUND);
			assert_int_equal(c.info.length, 100 + n);
			continue;
		}
		assert_int_equal(atomic_fetch_add(&w->making[n], 1), 0);
		assert_int_equal(atomic_fetch_add(&w->made[n], 1), 0);
		assert_int_equal(put(w->b, session, n, 100 + n, n, BLOB_WRITE_EXCLUSIVE), 0);
	}
	return NULL;
}

static void each_is_made_once(void **state)
{
	struct world w;

	world_open(&w, 1024);
	blobs_free(&w.b);
	w.b = blobs_open(1024, 1000, changed, &w); /* nothing is evicted */
	world_run(&w, make_once);
	for (unsigned n = 0; n < ROUNDS; n++)
		assert_int_equal(atomic_load(&w.made[n]), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_are_of_one_version),
		cmocka_unit_test(each_is_made_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
