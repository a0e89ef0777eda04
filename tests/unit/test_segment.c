/* SPDX-License-Identifier: Apache-2.0
 *
 * The segment: seals, modes, population that is really there, reads and writes, and each backing the host has.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/cleanup.h"
#include "store/segment.h"

#define MIB (1ull << 20)

static struct segment *make(uint64_t bytes, enum segment_wish wish)
{
	struct segment_config config = {.name = "test", .bytes = bytes, .wish = wish};
	struct segment *s = NULL;
	struct why why = WHY_INIT;

	if (segment_new(&config, &s, &why))
		fail_msg("%s", why.text);
	return s;
}

static void test_refusals(void **state)
{
	struct segment_config config = {.name = "test", .bytes = 0};
	struct segment *s = NULL;
	struct why why = WHY_INIT;

	(void)state;
	assert_int_equal(segment_new(&config, &s, &why), -EINVAL);
	assert_int_equal(why.error, EINVAL);
	config.bytes = 3 * MIB;
	assert_int_equal(segment_new(&config, &s, NULL), -EINVAL);
	config.bytes = 1ull << 60;
	assert_int_equal(segment_new(&config, &s, NULL), -EINVAL);
	config.bytes = 2 * MIB;
	config.expected_bytes = 4 * MIB;
	assert_int_equal(segment_new(&config, &s, NULL), -EINVAL);
	config.bytes = 1ull << 44;
	config.expected_bytes = 1ull << 44;
	config.wish = SEGMENT_WISH_HUGETLB;
	assert_int_equal(segment_new(&config, &s, &why), -ENOMEM);
	assert_non_null(strstr(why.text, "huge pages"));
	assert_null(s);
}

static void test_file(void **state)
{
	struct segment *s = make(512ull << 30, SEGMENT_WISH_SMALL);
	int fd = segment_fd(s), ro = segment_read_only_fd(s);
	struct stat st;

	(void)state;
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, 512ull << 30);
	assert_int_equal(segment_bytes(s), 512ull << 30);
	assert_int_equal(segment_resident_bytes(s), 0);
	assert_int_equal(segment_page_bytes(s), sysconf(_SC_PAGESIZE));
	assert_int_equal(segment_backing(s), SEGMENT_SMALL);
	assert_string_equal(segment_backing_name(segment_backing(s)), "small");
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(ro, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fcntl(ro, F_GETFL) & O_ACCMODE, O_RDONLY);

	int seals = fcntl(fd, F_GET_SEALS);

	assert_int_equal(
		seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_false(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE));
	assert_int_equal(ftruncate(fd, 2 * MIB), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 1ull << 40), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
	assert_int_equal(errno, EPERM);
	segment_free(&s);
	assert_null(s);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(fcntl(ro, F_GETFD), -1);
	segment_free(&s);
}

static void test_read_only(void **state)
{
	struct segment *s = make(4 * MIB, SEGMENT_WISH_SMALL);
	int ro = segment_read_only_fd(s);

	(void)state;
	assert_int_equal(segment_write(s, 0, "abc", 3), 0);
	assert_ptr_equal(mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0), MAP_FAILED);
	assert_int_equal(errno, EACCES);
	char *map = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, ro, 0);

	assert_ptr_not_equal(map, MAP_FAILED);
	assert_memory_equal(map, "abc", 4);
	assert_int_equal(mprotect(map, 2 * MIB, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(madvise(map, 2 * MIB, MADV_REMOVE), -1);
	assert_int_equal(fallocate(ro, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * MIB), -1);
	assert_int_equal(pwrite(ro, "x", 1, 0), -1);
	/* a client's mapping outlives the segment */
	segment_free(&s);
	assert_memory_equal(map, "abc", 4);
	munmap(map, 2 * MIB);
}

/* Another user may not make more of a descriptor than it is. */
static void test_no_reopening_by_others(void **state)
{
	(void)state;
	if (geteuid() != 0) {
		print_message("only root can become another user\n");
		skip();
	}
	struct segment *s = make(4 * MIB, SEGMENT_WISH_SMALL);

	fflush(NULL);
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		char path[40];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", segment_read_only_fd(s));
		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(2);
		_exit(open(path, O_RDWR) >= 0 || open(path, O_RDONLY) >= 0);
	}
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	segment_free(&s);
}

static uint64_t own_shared_bytes(void)
{
	cleanup(fclosep) FILE *file = fopen("/proc/self/status", "re");
	char line[256];
	unsigned long long kib = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssShmem: %llu", &kib) == 1)
			break;
	return kib << 10;
}

static void check_population(struct segment *s)
{
	_Atomic uint64_t progress = 5;
	struct why why = WHY_INIT;
	uint64_t before = own_shared_bytes();

	assert_int_equal(segment_populate(s, 0, 0, 1, NULL, NULL), 0);
	assert_int_equal(segment_resident_bytes(s), 0);
	if (segment_populate(s, 4 * MIB, 6 * MIB, 4, &progress, &why))
		fail_msg("%s", why.text);
	assert_int_equal(segment_resident_bytes(s), 6 * MIB);
	assert_int_equal(progress, 5 + 6 * MIB);
	/* again, and more pieces than one */
	assert_int_equal(segment_populate_on_node(s, 4 * MIB, 150 * MIB, 3, 0, &progress, &why), 0);
	assert_int_equal(segment_resident_bytes(s), 150 * MIB);
	assert_int_equal(progress, 5 + 156 * MIB);
	/* a node that is not there is no error */
	assert_int_equal(segment_populate_on_node(s, 0, 2 * MIB, 64, 1000, NULL, &why), 0);
	assert_int_equal(segment_resident_bytes(s), 152 * MIB);
	/* the cache is not charged to the daemon's resident size */
	assert_true(own_shared_bytes() < before + 8 * MIB);

	/* population keeps what is there; reads and writes across pages, up to the end, not beyond */
	char text[9] = {0};
	uint64_t end = segment_bytes(s);

	assert_int_equal(segment_write(s, 4 * MIB - 3, "abcdefgh", 8), 0);
	assert_int_equal(segment_populate(s, 0, 64 * MIB, 2, NULL, NULL), 0);
	assert_int_equal(segment_read(s, 4 * MIB - 3, text, 8), 0);
	assert_string_equal(text, "abcdefgh");
	assert_int_equal(segment_write(s, 152 * MIB - 3, "xyz", 3), 0);
	assert_int_equal(segment_read(s, end - 3, text, 3), 0);
	assert_int_equal(text[0], 0);
	assert_int_equal(segment_read(s, end - 2, text, 3), -EINVAL);
	assert_int_equal(segment_write(s, end - 2, text, 3), -EINVAL);
	assert_int_equal(segment_read(s, UINT64_MAX, text, 3), -EINVAL);
	assert_int_equal(segment_write(s, UINT64_MAX - 1, text, 3), -EINVAL);

	/* large ones */
	size_t size = 70 * MIB;
	char *a = malloc(size), *b = calloc(1, size);

	assert_non_null(a);
	assert_non_null(b);
	for (size_t i = 0; i < size; i++)
		a[i] = (char)(i * 7 + i / 4099);
	assert_int_equal(segment_write(s, 5 * MIB + 77, a, size), 0);
	assert_int_equal(segment_read(s, 5 * MIB + 77, b, size), 0);
	assert_memory_equal(a, b, size);
	free(a);
	free(b);

	/* a hole that a client punched: zeroes, and no signal */
	assert_int_equal(fallocate(segment_fd(s), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8 * MIB), 0);
	assert_int_equal(segment_read(s, 4 * MIB - 3, text, 8), 0);
	assert_memory_equal(text, "\0\0\0\0\0\0\0\0", 8);
	assert_int_equal(segment_resident_bytes(s), 146 * MIB);
}

static void test_populate(void **state)
{
	struct segment *s = make(1ull << 30, SEGMENT_WISH_SMALL);
	struct why why = WHY_INIT;

	(void)state;
	assert_int_equal(segment_populate(s, 4096, 2 * MIB, 1, NULL, &why), -EINVAL);
	assert_int_equal(segment_populate(s, 0, 4096, 1, NULL, NULL), -EINVAL);
	assert_int_equal(segment_populate(s, 1ull << 30, 2 * MIB, 1, NULL, NULL), -EINVAL);
	assert_int_equal(segment_populate(s, 2 * MIB, 1ull << 30, 1, NULL, NULL), -EINVAL);
	assert_int_equal(segment_populate(s, 2 * MIB, 0ull - 2 * MIB, 1, NULL, NULL), -EINVAL);
	assert_int_equal(segment_populate(s, 0, 2 * MIB, 0, NULL, NULL), -EINVAL);
	assert_int_equal(segment_populate(s, 0, 2 * MIB, 65, NULL, NULL), -EINVAL);
	assert_int_equal(segment_resident_bytes(s), 0);
	check_population(s);
	uint64_t checked, huge;

	segment_huge_seen(s, &checked, &huge);
	assert_int_equal(checked, 0);
	segment_free(&s);
}

/* ---- a client that punches while we populate ------------------------------------------------------------------- */

struct puncher {
	int fd;
	_Atomic bool stop;
};

static void *punch(void *argument)
{
	struct puncher *p = argument;

	for (uint64_t at = 0; !p->stop; at = (at + 2 * MIB) % (128 * MIB))
		fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, 2 * MIB);
	return NULL;
}

static void test_punched_meanwhile(void **state)
{
	struct segment *s = make(256 * MIB, SEGMENT_WISH_AUTO);
	struct puncher p = {.fd = segment_fd(s)};
	pthread_t thread;
	struct why why = WHY_INIT;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, punch, &p), 0);
	for (int i = 0; i < 4; i++)
		if (segment_populate(s, 0, 256 * MIB, 2, NULL, &why))
			fail_msg("%s", why.text);
	p.stop = true;
	pthread_join(thread, NULL);
	assert_true(segment_resident_bytes(s) >= 128 * MIB);
	assert_int_equal(segment_populate(s, 0, 256 * MIB, 2, NULL, &why), 0);
	assert_int_equal(segment_resident_bytes(s), 256 * MIB);
	segment_free(&s);
}

/* ---- backings that a host may lack ----------------------------------------------------------------------------- */

static void test_thp(void **state)
{
	struct segment *s = make(1ull << 30, SEGMENT_WISH_THP);
	uint64_t checked, huge;

	(void)state;
	if (segment_backing(s) != SEGMENT_THP) {
		print_message("memory files get no transparent huge pages here (shmem_enabled)\n");
		assert_int_equal(segment_backing(s), SEGMENT_SMALL);
		segment_free(&s);
		skip();
	}
	assert_string_equal(segment_backing_name(segment_backing(s)), "thp");
	check_population(s);
	segment_huge_seen(s, &checked, &huge);
	assert_true(checked > 0);
	assert_true(huge <= checked);
	segment_free(&s);
}

static uint64_t free_huge_pages(void)
{
	cleanup(fclosep) FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");
	unsigned long long n = 0;

	return file && fscanf(file, "%llu", &n) == 1 ? n : 0;
}

static void test_hugetlb(void **state)
{
	struct segment_config config = {
		.name = "test",
		.bytes = 1ull << 30,
		.expected_bytes = 160 * MIB,
		.wish = SEGMENT_WISH_HUGETLB,
	};
	struct segment *s = NULL;
	struct why why = WHY_INIT;

	(void)state;
	if (free_huge_pages() < 80) {
		print_message("80 free huge pages are needed (vm.nr_hugepages), %llu are there\n",
			(unsigned long long)free_huge_pages());
		skip();
	}
	assert_int_equal(segment_new(&config, &s, &why), 0);
	assert_int_equal(segment_backing(s), SEGMENT_HUGETLB);
	assert_string_equal(segment_backing_name(segment_backing(s)), "hugetlb");
	assert_int_equal(segment_page_bytes(s), 2 * MIB);
	assert_int_equal(ftruncate(segment_fd(s), 2 * MIB), -1);
	assert_int_equal(errno, EPERM);
	check_population(s);
	/* more than there are: refused, without a signal */
	if (free_huge_pages() * 2 * MIB < 800 * MIB) {
		assert_int_equal(segment_populate(s, 200 * MIB, 800 * MIB, 2, NULL, &why), -ENOMEM);
		assert_int_equal(segment_write(s, 1020 * MIB, "x", 1), -ENOMEM);
	}
	segment_free(&s);
	config.wish = SEGMENT_WISH_AUTO;
	assert_int_equal(segment_new(&config, &s, &why), 0);
	assert_int_equal(segment_backing(s), SEGMENT_HUGETLB);
	segment_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_no_reopening_by_others),
		cmocka_unit_test(test_populate),
		cmocka_unit_test(test_punched_meanwhile),
		cmocka_unit_test(test_thp),
		cmocka_unit_test(test_hugetlb),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
