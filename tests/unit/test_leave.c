/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a host (store/adopt.h, host_leave) while its disk is at work.
 */
#include <pthread.h>

#include "store/adopt.h"
#include "store/disk_private.h"
#include "tests/unit/tiering_world.h"

#define ROUNDS 8

static struct world world;
static struct world *const w = &world;

static void begin(void)
{
	static const struct world_options o = {
		.classes = CLASS_KV "," CLASS_STATE, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 256 * MIB,
	};

	world_open(w, &o);
}

static void *leave_main(void *context)
{
	(void)context;
	host_leave(w->f.host, clock_now_ns() + 10000000000ull);
	return NULL;
}

/* A write that ends when the mover has ended: it asks the mover, which must still be there. With the gate the write ends late for
 * certain, without it at any moment. */
static void end_amid_a_write(uint64_t chain, bool gated)
{
	pthread_t thread;

	begin();
	assert_true(world_put(w, chain, 0, 8, 0));
	gate_set(gated, 0);
	world_lock(w);
	w->t->draining = 1;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, gated ? gate_waiting() : w->t->writes || world_record(w, chain, 7) != INDEX_NONE);
	assert_int_equal(pthread_create(&thread, NULL, leave_main, NULL), 0);
	if (gated)
		world_await(w, atomic_load(&w->f.host->disk->give_up_ns)); /* after which only the disk is waited for */
	gate_set(false, 0);
	pthread_join(thread, NULL);
	assert_non_null(w->f.host->mover);
	assert_int_equal(disk_jobs(w->f.host->disk), 0);
	mover_ask(w->f.host); /* nobody hears it */
	world_lock(w);
	w->t->draining = 0;
	assert_int_equal(w->t->writes, 0);
	world_unlock(w);
	world_close(w);
}

static void test_jobs_that_end_after_the_mover_find_it(void **state)
{
	(void)state;
	end_amid_a_write(1, true);
	for (uint64_t round = 0; round < ROUNDS; round++)
		end_amid_a_write(2 + round, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_jobs_that_end_after_the_mover_find_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
