/* SPDX-License-Identifier: Apache-2.0
 *
 * The helpers of store/base: sentences, lock order, digests, reserved memory.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/hash.h"
#include "store/base/lock.h"
#include "store/base/memory.h"
#include "store/base/why.h"

static void test_why(void **state)
{
	struct why why = WHY_INIT;

	(void)state;
	errno = EPIPE;
	assert_int_equal(why_set(&why, EINVAL, "pages %d is over the limit of %u", 5000, 4096u), -EINVAL);
	assert_int_equal(why.error, EINVAL);
	assert_string_equal(why.text, "pages 5000 is over the limit of 4096");
	why_prefix(&why, "namespace %s", "x");
	assert_string_equal(why.text, "namespace x: pages 5000 is over the limit of 4096");
	assert_int_equal(errno, EPIPE);
	assert_int_equal(why_set(NULL, ENOMEM, "no"), -ENOMEM);

	why_set(&why, EINVAL, "%0600d", 7);
	assert_int_equal(strlen(why.text), sizeof(why.text) - 1);
	assert_string_equal(why.text + sizeof(why.text) - 4, "...");
	why_prefix(&why, "long");
	assert_int_equal(strlen(why.text), sizeof(why.text) - 1);
	assert_memory_equal(why.text, "long: 000", 9);
	assert_string_equal(why.text + sizeof(why.text) - 4, "...");
}

/* Runs @act in a child; it must abort and its stderr contain each of @words. */
static void dies(void (*act)(void), const char *const *words)
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		act();
		_exit(0);
	}
	close(fds[1]);
	char text[512];
	size_t used = 0;
	ssize_t got;

	while ((got = read(fds[0], text + used, sizeof(text) - 1 - used)) > 0)
		used += (size_t)got;
	text[used] = 0;
	close(fds[0]);
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	for (; *words; words++)
		if (!strstr(text, *words))
			fail_msg("'%s' lacks '%s'", text, *words);
}

static void act_order(void)
{
	struct lock space, host;

	lock_init(&space, LOCK_SPACE);
	lock_init(&host, LOCK_HOST);
	lock_take(&space);
	lock_take(&host);
}

static void act_twice(void)
{
	struct lock a, b;

	lock_init(&a, LOCK_QUEUE);
	lock_init(&b, LOCK_QUEUE);
	lock_take(&a);
	lock_take(&b);
}

static void act_drop(void)
{
	struct lock space;

	lock_init(&space, LOCK_SPACE);
	lock_drop(&space);
}

static void act_none(void)
{
	struct lock queue;

	lock_init(&queue, LOCK_QUEUE);
	lock_take(&queue);
	lock_assert_none_held();
}

static void *drop_elsewhere(void *lock)
{
	lock_drop(lock);
	return NULL;
}

static void act_foreign(void)
{
	struct lock space;
	pthread_t thread;

	lock_init(&space, LOCK_SPACE);
	lock_take(&space);
	pthread_create(&thread, NULL, drop_elsewhere, &space);
	pthread_join(thread, NULL);
}

static void test_lock_order(void **state)
{
	struct lock host, session, space;

	(void)state;
	lock_init(&host, LOCK_HOST);
	lock_init(&session, LOCK_SESSION);
	lock_init(&space, LOCK_SPACE);
	lock_take(&host);
	lock_take(&space);
	lock_assert_held(&host);
	lock_assert_held(&space);
	assert_false(lock_held(&session));
	lock_drop(&host); /* any order of dropping */
	lock_drop(&space);
	lock_assert_none_held();
	lock_take(&session);
	lock_drop(&session);

	dies(act_order, (const char *const[]){"host", "space", "out of order", NULL});
	dies(act_twice, (const char *const[]){"queue", NULL});
	dies(act_drop, (const char *const[]){"not held", "space", NULL});
	dies(act_none, (const char *const[]){"none may be held", "queue", NULL});
	dies(act_foreign, (const char *const[]){"not held", "space", NULL});
	lock_destroy(&host);
	lock_destroy(&session);
	lock_destroy(&space);
}

struct waiter {
	struct lock lock;
	struct lock_cond cond;
	bool there;
};

static void *wake(void *context)
{
	struct waiter *w = context;

	lock_take(&w->lock);
	w->there = true;
	lock_cond_wake_all(&w->cond);
	lock_drop(&w->lock);
	return NULL;
}

static void test_lock_cond(void **state)
{
	struct waiter w = {.there = false};
	pthread_t thread;

	(void)state;
	lock_init(&w.lock, LOCK_SESSION);
	lock_cond_init(&w.cond);
	lock_take(&w.lock);
	uint64_t start = clock_now_ns();
	while (lock_cond_wait(&w.cond, &w.lock, start + 20000000u))
		;
	assert_true(clock_now_ns() - start >= 20000000u);
	lock_assert_held(&w.lock);
	assert_int_equal(pthread_create(&thread, NULL, wake, &w), 0);
	while (!w.there)
		assert_true(lock_cond_wait(&w.cond, &w.lock, clock_now_ns() + 10000000000u));
	lock_drop(&w.lock);
	pthread_join(thread, NULL);
	lock_cond_destroy(&w.cond);
	lock_destroy(&w.lock);
}

static void test_digest(void **state)
{
	/* BLAKE2b-256 and BLAKE2b-128 of "abc": b2sum -l 256, -l 128 */
	static const uint8_t abc_256[32] = {0xbd, 0xdd, 0x81, 0x3c, 0x63, 0x42, 0x39, 0x72, 0x31, 0x71, 0xef,
		0x3f, 0xee, 0x98, 0x57, 0x9b, 0x94, 0x96, 0x4e, 0x3b, 0xb1, 0xcb, 0x3e, 0x42, 0x72, 0x62, 0xc8, 0xc0,
		0x68, 0xd5, 0x23, 0x19};
	static const uint8_t abc_128[16] = {
		0xcf, 0x4a, 0xb7, 0x91, 0xc6, 0x2b, 0x8d, 0x2b, 0x21, 0x09, 0xc9, 0x02, 0x75, 0x28, 0x78, 0x16};
	uint8_t got[32], random[2][32];

	(void)state;
	digest_256("abc", 3, got);
	assert_memory_equal(got, abc_256, 32);
	digest_128("abc", 3, got);
	assert_memory_equal(got, abc_128, 16);
	digest_random(random[0], 32);
	digest_random(random[1], 32);
	assert_memory_not_equal(random[0], random[1], 32);
	assert_true(hash_64("abc", 3, 0) == 0x78af5f94892f3950u); /* xxhsum -H3 */
	assert_true(hash_64("abc", 3, 1) != hash_64("abc", 3, 0));
}

/* Every way that this CPU can go says the same: all short lengths, long ones around blocks, any alignment and seed. */
static void test_hash_paths(void **state)
{
	unsigned count, seed = (unsigned)clock_now_ns();
	const struct hash_path *paths = hash_paths(&count);
	size_t room = 300000;
	uint8_t *data = malloc(room + 64);

	(void)state;
	print_message("seed %u, path %s\n", seed, hash_path_name());
	srandom(seed);
	assert_in_range(count, 2, 4);
	assert_string_equal(paths[0].name, "scalar");
	assert_string_equal(paths[count - 1].name, hash_path_name());
	for (size_t i = 0; i < room + 64; i++)
		data[i] = (uint8_t)random();
	for (unsigned i = 0; i < 4000; i++) {
		size_t size = i < 1500 ? i : (size_t)random() % (i % 2 ? room : 5000);
		const uint8_t *at = data + random() % 64;
		uint64_t with = i % 3 ? (uint64_t)random() << 33 ^ (uint64_t)random() : 0, want = paths[0].hash(at, size, with);

		for (unsigned p = 1; p < count; p++)
			if (paths[p].hash(at, size, with) != want)
				fail_msg("%s differs: %zu bytes, seed %#llx", paths[p].name, size, (unsigned long long)with);
		assert_true(hash_64(at, size, with) == want);
	}
	free(data);
}

static void test_memory(void **state)
{
	size_t bytes = (size_t)1 << 36;
	char *memory = memory_reserve(bytes, false);

	(void)state;
	assert_non_null(memory);
	assert_int_equal(memory[bytes - 1], 0);
	memory[0] = 1;
	memory[1 << 20] = 1;
	assert_int_equal(memory_resident(memory, 2 << 20), 2 * (size_t)sysconf(_SC_PAGESIZE));
	memory_release(&memory, bytes);
	assert_null(memory);
	memory_release(&memory, bytes);
}

static void test_cleanup(void **state)
{
	int kept;

	(void)state;
	{
		cleanup(freep) char *text = strdup("x");
		cleanup(closep) int fd = dup(0);
		char *taken = STEAL(text);

		assert_null(text);
		free(taken);
		kept = STEAL_FD(fd);
		assert_int_equal(fd, -1);
	}
	assert_int_equal(close(kept), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_why),        cmocka_unit_test(test_lock_order), cmocka_unit_test(test_lock_cond),
		cmocka_unit_test(test_digest),     cmocka_unit_test(test_hash_paths), cmocka_unit_test(test_memory),
		cmocka_unit_test(test_cleanup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
