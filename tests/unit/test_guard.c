/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is not to be had: an error under a guard, the end of the process or another's business without one.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/guard.h"

#define PAGE 4096u

static char *memory; /* two pages of a file that has one */

struct read {
	const char *at;
	char seen;
};

static void read_it(void *context)
{
	struct read *r = context;

	r->seen = *(const volatile char *)r->at;
}

static int setup(void **state)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	(void)state;
	assert_int_equal(ftruncate(fd, PAGE), 0);
	memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	memset(memory, 'x', PAGE);
	close(fd);
	return 0;
}

static int run(const char *at)
{
	struct read r = {.at = at};
	int result = guard_run(read_it, &r, memory, 2 * PAGE);

	return result || r.seen == 'x' ? result : 1;
}

static void *run_many(void *context)
{
	uintptr_t wrong = 0;

	(void)context;
	for (int i = 0; i < 500; i++)
		wrong += run(memory + PAGE) != -EFAULT || run(memory + PAGE - 1) != 0;
	return (void *)wrong;
}

static void check_threads(void)
{
	pthread_t threads[4];
	void *wrong;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_many, NULL), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
}

/* One test: cmocka takes the signal for itself at the beginning of each. */
static void test_guarded(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) { /* the signal is not left blocked */
		assert_int_equal(run(memory), 0);
		assert_int_equal(run(memory + PAGE), -EFAULT);
		assert_int_equal(run(memory + 2 * PAGE - 1), -EFAULT);
	}
	check_threads();
}

static int status_of(void (*function)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid) {
		function();
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void touch_outside(void)
{
	struct read r = {.at = memory + PAGE};

	/* guarded, but another range */
	guard_run(read_it, &r, memory, PAGE);
}

static void touch_bare(void)
{
	struct read r = {.at = memory + PAGE};

	read_it(&r);
}

static void send_one(void)
{
	raise(SIGBUS);
}

static void other_handler(int signal, siginfo_t *info, void *machine)
{
	_exit(info->si_addr == memory + PAGE ? 7 : 8);
}

/* Before the first guard of the process. */
static void touch_with_other(void)
{
	struct sigaction other = {.sa_sigaction = other_handler, .sa_flags = SA_SIGINFO};

	sigaction(SIGBUS, &other, NULL);
	if (run(memory + PAGE) == -EFAULT)
		touch_bare();
}

static void touch_with_default(void)
{
	signal(SIGBUS, SIG_DFL); /* and not what a sanitizer has there */
	run(memory + PAGE);
	touch_outside();
}

static void bare_with_default(void)
{
	signal(SIGBUS, SIG_DFL);
	run(memory + PAGE);
	touch_bare();
}

static void sent_with_default(void)
{
	signal(SIGBUS, SIG_DFL);
	run(memory + PAGE);
	send_one();
}

static void test_others(void **state)
{
	int status = status_of(touch_with_other);

	(void)state;
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
	void (*const deadly[])(void) = {touch_with_default, bare_with_default, sent_with_default};

	for (unsigned i = 0; i < 3; i++) {
		status = status_of(deadly[i]);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), SIGBUS);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_others), /* while this process has no handler yet */
		cmocka_unit_test(test_guarded),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
