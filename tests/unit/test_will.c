/* SPDX-License-Identifier: Apache-2.0
 *
 * The will: shared by two processes, refused when it is another program's, and the last words of those that a signal ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/guard.h"
#include "fs/will.h"

static struct will *will;
static int fd = -1;

static int make(void **state)
{
	struct why why = WHY_INIT;

	assert_int_equal(will_make(&will, &fd, &why), 0);
	will_next(will, true);
	return 0;
}

static int unmake(void **state)
{
	will_unmap(&will);
	assert_null(will);
	return close(fd);
}

/* ---- the pages ------------------------------------------------------------------------------------------------------- */

static void test_both_see_the_same(void **state)
{
	struct why why = WHY_INIT;
	struct will *other = NULL;
	struct stat st;

	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(ftruncate(fd, 1 << 20), -1);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_in_range(st.st_size, 1, 256 << 10);
	assert_int_equal(will_map(fd, &other, &why), 0);
	assert_int_equal(will_number(&other->sessions), 1);
	assert_int_equal(will_number(&will->sessions), 2);
	assert_int_equal(atomic_load(&other->sessions), 2);
	assert_int_equal(atomic_load(&other->phase), WILL_STARTING);
	will_unmap(&other);
}

static void test_of_another_program(void **state)
{
	struct why why = WHY_INIT;
	struct will *other = NULL;
	int foreign = memfd_create("test", MFD_CLOEXEC);

	assert_int_equal(will_map(foreign, &other, &why), -EINVAL); /* empty */
	assert_int_equal(ftruncate(foreign, sizeof(*will)), 0);
	assert_int_equal(will_map(foreign, &other, &why), -EINVAL); /* no magic */
	assert_int_equal(pwrite(foreign, will, offsetof(struct will, epoch), 0), offsetof(struct will, epoch));
	assert_int_equal(will_map(foreign, &other, &why), 0);
	will_unmap(&other);
	assert_int_equal(ftruncate(foreign, 4096), 0); /* would fault */
	assert_int_equal(will_map(foreign, &other, &why), -EPROTO);
	close(foreign);
	will->bytes++;
	assert_int_equal(will_map(fd, &other, &why), -EPROTO);
	will->bytes--;
	will->version = 77;
	assert_int_equal(will_map(fd, &other, &why), -EPROTO);
	assert_string_equal(why.text, "the parent speaks version 77 to its serving process, this program 2");
	will->version = WILL_VERSION;
	assert_int_equal(will_map(-1, &other, &why), -EINVAL);
	assert_null(other);
}

/* One after the other of one namespace; SIGKILL leaves no words and counts as none. */
static void test_deaths_of_an_adoption(void **state)
{
	static const struct {
		const char *space;
		int signal;
		uint32_t faults;
	} deaths[] = {{"a", SIGSEGV, 1}, {"a", SIGABRT, 2}, {"b", SIGSEGV, 1}, {"b", 0, 0}, {"b", SIGBUS, 1}};

	for (unsigned i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++) {
		snprintf(will->space, sizeof(will->space), "%s", deaths[i].space);
		will_enters(will, WILL_ADOPTING);
		atomic_store(&will->signal, deaths[i].signal);
		will_next(will, false);
		assert_int_equal(will->adoption_faults, deaths[i].faults);
		if (deaths[i].faults)
			assert_string_equal(will->adoption_fault, deaths[i].space);
	}
	will_enters(will, WILL_SERVING); /* it came through */
	atomic_store(&will->signal, SIGSEGV);
	will_next(will, false);
	assert_int_equal(will->adoption_faults, 0);
}

static void test_the_next_one(void **state)
{
	will_begins(will, 63, WILL_DOING_CTL + 3, 1234);
	assert_int_equal(atomic_load(&will->loops[63].doing), WILL_DOING_CTL + 3);
	assert_int_equal(atomic_load(&will->loops[63].began_ns), 1234);
	will_enters(will, WILL_ADOPTING);
	strcpy(will->space, "x");
	atomic_store(&will->done, 1);
	atomic_store(&will->goal, 2);
	atomic_store(&will->signal, SIGSEGV);
	atomic_store(&will->sessions, 40);
	atomic_store(&will->beats, 50);
	atomic_store(&will->polls[7], 60);
	will->address = 1;
	atomic_store(&will->init.request_bytes, 104);
	will_next(will, false);
	assert_int_equal(atomic_load(&will->epoch), 2);
	assert_int_equal(atomic_load(&will->phase), WILL_STARTING);
	assert_int_equal(atomic_load(&will->loops[63].doing), 0);
	assert_int_equal(atomic_load(&will->signal), 0);
	assert_int_equal(will->address, 0);
	assert_string_equal(will->space, "");
	assert_int_equal(atomic_load(&will->done) + atomic_load(&will->goal), 0);
	assert_int_equal(atomic_load(&will->sessions), 40);
	assert_int_equal(atomic_load(&will->beats), 50);
	assert_int_equal(atomic_load(&will->polls[7]), 60);
	assert_int_equal(atomic_load(&will->init.request_bytes), 104);
	will_next(will, true);
	assert_int_equal(atomic_load(&will->epoch), 3);
	assert_int_equal(atomic_load(&will->polls[7]), 0);
	assert_int_equal(atomic_load(&will->init.request_bytes), 0);
	assert_int_equal(atomic_load(&will->sessions), 40);
	atomic_store(&will->epoch, 65535);
	will_next(will, false);
	assert_int_equal(atomic_load(&will->epoch), 1); /* 16 bits of a handle, and never 0 */
}

/* ---- last words ------------------------------------------------------------------------------------------------------ */

static volatile uintptr_t bad_address = 0x10;
static char *hole; /* a page that a file does not have */

static void touch_nothing(void)
{
	*(volatile char *)bad_address = 1;
}

static void touch_the_hole(void)
{
	*(volatile char *)hole = 1;
}

static void *touch_main(void *context)
{
	touch_nothing();
	return NULL;
}

static void touch_in_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, touch_main, NULL);
	pthread_join(thread, NULL);
}

static void send_itself(void)
{
	raise(SIGSEGV);
}

static void illegal(void)
{
	raise(SIGILL);
}

static void do_nothing(void *context)
{
}

static void after_a_guard(void)
{
	guard_run(do_nothing, NULL, hole, 1);
	touch_the_hole();
}

/* How a process ends that wills and then does @last. */
static int end_of(void (*last)(void), bool core)
{
	int status;
	pid_t pid;

	will_next(will, false);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		const struct rlimit none = {0, 0};
		static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

		setrlimit(RLIMIT_CORE, &none);
		for (unsigned i = 0; i < 5; i++)
			signal(caught[i], SIG_DFL); /* neither cmocka's nor a sanitizer's */
		if (will_catch(will, core, NULL))
			_exit(1);
		last();
		_exit(2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void expect_words(void (*last)(void), int signal, uint64_t address)
{
	for (int core = 0; core < 2; core++) {
		int status = end_of(last, core);

		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), core ? signal : SIGKILL);
		assert_int_equal(atomic_load(&will->signal), signal);
		assert_int_equal(will->address, address);
		assert_true(will->thread > 1);
		if (address) {
			assert_true(will->code > 0);
			assert_true(will->instruction > 0 && will->instruction < 16u << 20);
		} else {
			assert_true(will->code <= 0);
		}
	}
}

static void test_last_words(void **state)
{
	int file = memfd_create("test", MFD_CLOEXEC);

	hole = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	assert_ptr_not_equal(hole, MAP_FAILED);
	close(file);
	expect_words(touch_nothing, SIGSEGV, 0x10);
	expect_words(touch_in_thread, SIGSEGV, 0x10);
	expect_words(touch_the_hole, SIGBUS, (uintptr_t)hole);
	expect_words(after_a_guard, SIGBUS, (uintptr_t)hole); /* which hands on what is not its own */
	expect_words(abort, SIGABRT, 0);
	expect_words(send_itself, SIGSEGV, 0);
	expect_words(illegal, SIGILL, 0);
	munmap(hole, 4096);
}

static void leave(void)
{
	_exit(7);
}

static void be_killed(void)
{
	raise(SIGKILL);
}

static void test_others_have_no_words(void **state)
{
	assert_int_equal(WEXITSTATUS(end_of(leave, true)), 7);
	assert_int_equal(atomic_load(&will->signal), 0);
	assert_int_equal(WTERMSIG(end_of(be_killed, true)), SIGKILL);
	assert_int_equal(atomic_load(&will->signal), 0);
}

/* With @core it ends as it did before, and that may be somebody else's business. */
static void somebody_else(int signal)
{
	_exit(40 + (atomic_load(&will->signal) == signal));
}

static void catch_after_somebody(void)
{
	signal(SIGSEGV, somebody_else);
	if (will_catch(will, true, NULL))
		_exit(1);
	touch_nothing();
}

static void test_somebody_else_has_the_signal(void **state)
{
	int status = end_of(catch_after_somebody, true);

	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 41);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_both_see_the_same, make, unmake),
		cmocka_unit_test_setup_teardown(test_of_another_program, make, unmake),
		cmocka_unit_test_setup_teardown(test_deaths_of_an_adoption, make, unmake),
		cmocka_unit_test_setup_teardown(test_the_next_one, make, unmake),
		cmocka_unit_test_setup_teardown(test_last_words, make, unmake),
		cmocka_unit_test_setup_teardown(test_others_have_no_words, make, unmake),
		cmocka_unit_test_setup_teardown(test_somebody_else_has_the_signal, make, unmake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
