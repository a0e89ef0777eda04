/* SPDX-License-Identifier: Apache-2.0
 *
 * What memory may be had, read from a made-up host in a folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/memory_limit.h"

#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define GiB (1ull << 30)

static char root[] = "/tmp/pfs-unit-XXXXXX";

/* File @path of the host, with its folders. */
static void put(const char *path, const char *text)
{
	char whole[PATH_MAX];

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		if (mkdir(whole, 0700) != 0)
			assert_int_equal(errno, EEXIST);
		*slash = '/';
	}
	FILE *file = fopen(whole, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static int host_new(void **state)
{
	strcpy(root + strlen(root) - 6, "XXXXXX");
	assert_non_null(mkdtemp(root));
	put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1 kB\nHugetlb:               0 kB\n");
	return 0;
}

static int host_free(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command);
}

static void expect(uint64_t hugepages, uint64_t bytes, const char *from)
{
	struct memory_limit limit;

	memory_limit_find(root, hugepages, &limit);
	assert_int_equal(limit.bytes, bytes);
	assert_string_equal(limit.from, from);
}

static void test_host(void **state)
{
	expect(CONFIG_HUGE_AUTO, 16 * GiB, "MemTotal in /proc/meminfo");
	put("/proc/meminfo", "MemTotal:       16777216 kB\nHugetlb:        4194304 kB\n");
	expect(CONFIG_HUGE_NEVER, 12 * GiB, "MemTotal without Hugetlb in /proc/meminfo");
	expect(CONFIG_HUGE_THP, 12 * GiB, "MemTotal without Hugetlb in /proc/meminfo");
	put("/proc/meminfo", "");
	expect(CONFIG_HUGE_NEVER, UINT64_MAX, "");
}

static void test_pool(void **state)
{
	put("/proc/meminfo", "MemTotal:       16777216 kB\nHugetlb:       12582912 kB\n");
	put(POOL "nr_hugepages", "6144\n");
	put(POOL "nr_overcommit_hugepages", "0\n");
	expect(CONFIG_HUGE_NEVER, 4 * GiB, "MemTotal without Hugetlb in /proc/meminfo");
	expect(CONFIG_HUGE_REQUIRE, 12 * GiB, "huge pages, " POOL "nr_hugepages");
	expect(CONFIG_HUGE_AUTO, 12 * GiB, "huge pages, " POOL "nr_hugepages");
	put(POOL "nr_hugepages", "512\n");
	expect(CONFIG_HUGE_REQUIRE, 1 * GiB, "huge pages, " POOL "nr_hugepages");
	expect(CONFIG_HUGE_AUTO, 4 * GiB, "MemTotal without Hugetlb in /proc/meminfo");
	put(POOL "nr_overcommit_hugepages", "512\n");
	expect(CONFIG_HUGE_REQUIRE, 2 * GiB, "huge pages, " POOL "nr_hugepages");
}

/* The least of the process's cgroup and of those above it. */
static void test_cgroup_v2(void **state)
{
	put("/proc/self/cgroup", "0::/kv.slice/prefixfs.service\n");
	put("/proc/self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
				     "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
	put("/sys/fs/cgroup/kv.slice/prefixfs.service/memory.max", "max\n");
	put("/sys/fs/cgroup/kv.slice/memory.max", "max\n");
	expect(CONFIG_HUGE_AUTO, 16 * GiB, "MemTotal in /proc/meminfo");
	put("/sys/fs/cgroup/kv.slice/memory.max", "4294967296\n");
	expect(CONFIG_HUGE_AUTO, 4 * GiB, "/sys/fs/cgroup/kv.slice/memory.max");
	put("/sys/fs/cgroup/kv.slice/prefixfs.service/memory.max", "2147483648\n");
	expect(CONFIG_HUGE_AUTO, 2 * GiB, "/sys/fs/cgroup/kv.slice/prefixfs.service/memory.max");
	put("/sys/fs/cgroup/kv.slice/memory.max", "1073741824\n");
	expect(CONFIG_HUGE_AUTO, 1 * GiB, "/sys/fs/cgroup/kv.slice/memory.max");
	put("/sys/fs/cgroup/kv.slice/memory.max", "17179869185\n"); /* one byte over MemTotal */
	put("/sys/fs/cgroup/kv.slice/prefixfs.service/memory.max", "17179869185\n");
	expect(CONFIG_HUGE_AUTO, 16 * GiB, "MemTotal in /proc/meminfo");
}

static void test_cgroup_v1(void **state)
{
	put("/proc/self/cgroup", "5:cpu,memory:/a/b\n4:memoryish:/c\n0::/\n");
	put("/proc/self/mountinfo",
		"32 31 0:29 / /cg/other rw - cgroup cgroup rw,cpuset\n"
		"33 31 0:30 / /cg/the\\040memory rw - cgroup cgroup rw,cpu,memory\n"
		"34 31 0:31 / /cg/unified rw - cgroup2 cgroup2 rw\n");
	put("/cg/the memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("/cg/the memory/a/memory.limit_in_bytes", "3221225472\n");
	put("/cg/the memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	expect(CONFIG_HUGE_AUTO, 3 * GiB, "/cg/the memory/a/memory.limit_in_bytes");
}

/* A mount that begins at the container's own cgroup, seen from within and from without its namespace. */
static void test_cgroup_of_a_container(void **state)
{
	put("/proc/self/cgroup", "0::/docker/abc/inner\n");
	put("/proc/self/mountinfo", "31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
	put("/sys/fs/cgroup/memory.max", "3221225472\n");
	put("/sys/fs/cgroup/inner/memory.max", "2147483648\n");
	expect(CONFIG_HUGE_AUTO, 2 * GiB, "/sys/fs/cgroup/inner/memory.max");
	put("/proc/self/cgroup", "0::/docker/abc\n");
	expect(CONFIG_HUGE_AUTO, 3 * GiB, "/sys/fs/cgroup/memory.max");
	put("/proc/self/cgroup", "0::/docker/abcd\n"); /* another's, whose limits are not to be seen */
	expect(CONFIG_HUGE_AUTO, 3 * GiB, "/sys/fs/cgroup/memory.max");
	put("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
	put("/proc/self/cgroup", "0::/\n");
	expect(CONFIG_HUGE_AUTO, 3 * GiB, "/sys/fs/cgroup/memory.max");
	put("/proc/self/cgroup", "0::/../outside\n");
	expect(CONFIG_HUGE_AUTO, 3 * GiB, "/sys/fs/cgroup/memory.max");
}

/* The nearest of what there is: a host's count rises with everybody's. */
static void test_kills(void **state)
{
	assert_true(memory_limit_kills(root) == UINT64_MAX);
	put("/proc/vmstat", "pgfault 1\noom_kill 70\nnuma_hit 2\n");
	assert_int_equal(memory_limit_kills(root), 70);
	put("/proc/self/cgroup", "4:memory:/a\n0::/kv\n");
	put("/proc/self/mountinfo", "33 31 0:30 / /cg rw - cgroup cgroup rw,memory\n"
				    "34 31 0:31 / /unified rw - cgroup2 cgroup2 rw\n");
	assert_int_equal(memory_limit_kills(root), 70);
	put("/cg/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
	assert_int_equal(memory_limit_kills(root), 3);
	put("/unified/kv/memory.events", "low 0\nhigh 0\nmax 9\noom 8\noom_kill 2\noom_group_kill 1\n");
	assert_int_equal(memory_limit_kills(root), 2);
}

static int check(const char *memory, const char *hugepages, const char *populate, bool *fatal, struct why *why)
{
	static struct config config;

	*why = (struct why)WHY_INIT;
	config_init(&config);
	assert_int_equal(config_set(&config, "memory", memory, why), 0);
	assert_int_equal(config_set(&config, "hugepages", hugepages, why), 0);
	assert_int_equal(config_set(&config, "populate", populate, why), 0);
	return memory_limit_check(root, &config, fatal, why);
}

static void test_budgets(void **state)
{
	struct why why;
	bool fatal;

	assert_int_equal(check("16G", "auto", "true", &fatal, &why), 0);
	assert_int_equal(check("17179869185", "auto", "true", &fatal, &why), -ENOMEM);
	assert_true(fatal);
	assert_string_equal(why.text, "memory: the budget of 17179869185 bytes is more than the 17179869184 that may be had "
				      "(MemTotal in /proc/meminfo)");
	assert_int_equal(check("17G", "auto", "false", &fatal, &why), -ENOMEM);
	assert_false(fatal); /* it may never be used */

	assert_int_equal(check("64M", "require", "false", &fatal, &why), -ENOMEM);
	assert_true(fatal); /* every layout would be refused */
	assert_string_equal(why.text, "hugepages: require was asked for, and this host has no huge pages of 2 MiB: " POOL
				      "nr_hugepages is 0; reserve 32 for the budget, see vm.nr_hugepages");
	put(POOL "nr_hugepages", "16\n");
	assert_int_equal(check("32M", "require", "true", &fatal, &why), 0);
	assert_int_equal(check("34M", "require", "false", &fatal, &why), -ENOMEM);
	assert_false(fatal);
	assert_int_equal(check("34M", "require", "true", &fatal, &why), -ENOMEM);
	assert_true(fatal);
	assert_int_equal(check("16G", "auto", "true", &fatal, &why), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_host, host_new, host_free),
		cmocka_unit_test_setup_teardown(test_pool, host_new, host_free),
		cmocka_unit_test_setup_teardown(test_cgroup_v2, host_new, host_free),
		cmocka_unit_test_setup_teardown(test_cgroup_v1, host_new, host_free),
		cmocka_unit_test_setup_teardown(test_cgroup_of_a_container, host_new, host_free),
		cmocka_unit_test_setup_teardown(test_kills, host_new, host_free),
		cmocka_unit_test_setup_teardown(test_budgets, host_new, host_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
