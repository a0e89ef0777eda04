/* SPDX-License-Identifier: Apache-2.0
 *
 * How long memory takes to become ready, for each backing; and reading pages through the mount, beside memcpy.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/host.h"
#include "tools/value_bytes.h"

#define READY "segment_ready_s_per_gib"
#define READY_BYTES (1ull << 30)

/* The hugetlb pages that the host holds free, in bytes. */
static uint64_t free_hugetlb(void)
{
	char *text = host_read_file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", NULL);
	uint64_t n = text ? strtoull(text, NULL, 10) : 0;

	free(text);
	return n << 21;
}

static bool thp_possible(void)
{
	char *text = host_read_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", NULL);
	bool possible = text && !strstr(text, "[never]") && !strstr(text, "[deny]");

	free(text);
	return possible;
}

static int ready_with(const struct bench_options *o, const char *backing, const char *hugepages, uint64_t bytes)
{
	const struct bench_daemon_options d = {.memory = bytes * 5 / 4, .populate = true, .hugepages = hugepages};
	struct bench_chains chains = {0};
	struct bench_daemon daemon;
	struct pfs_session_info info = {0};
	uint64_t begin, took;
	int r;

	if (bench_daemon_start(&daemon, &d, true)) {
		bench_skip(o, READY, "the daemon does not start with it", json_pack("{s:s}", "backing", backing));
		return 0;
	}
	begin = clock_ns();
	r = bench_namespace(&daemon, "bench", 1 << 20, 1, bytes);
	if (!r)
		r = bench_chains_open(&chains, &daemon, "bench", 1); /* which waits for the floor */
	took = clock_ns() - begin;
	if (!r)
		r = pfs_info(chains.session, &info) ? complain_client("info") : 0;
	bench_chains_close(&chains);
	bench_daemon_stop(&daemon);
	if (!r)
		bench_print(o, READY, (double)took / 1e9 / ((double)bytes / (1 << 30)), "s/GiB", 0,
			json_pack("{s:s, s:I, s:I}", "backing", backing, "page_bytes",
				(json_int_t)info.segment_page_bytes, "bytes", (json_int_t)bytes));
	return r;
}

int bench_segment(const struct bench_options *o)
{
	int r = ready_with(o, "4k", "never", READY_BYTES);

	if (r)
		return r;
	if (thp_possible())
		r = ready_with(o, "thp", "thp", READY_BYTES);
	else
		bench_skip(o, READY, "shmem_enabled says that shared memory gets no huge pages",
			json_pack("{s:s}", "backing", "thp"));
	if (r)
		return r;
	if (free_hugetlb() >= READY_BYTES * 5 / 4)
		return ready_with(o, "hugetlb", "require", READY_BYTES);
	bench_skip(o, READY, "the host holds no 1280 MiB of hugetlb pages", json_pack("{s:s}", "backing", "hugetlb"));
	return 0;
}

/* ---- pages through the mount ------------------------------------------------------------------------------------ */

#define CAT_VALUE (1u << 20)
#define CAT_PAGES 192u
#define CAT_TURNS 5u

static int put_record(struct bench_chains *chains)
{
	struct pfs_key keys[CAT_PAGES];
	struct pfs_put_result put;

	bench_chain_keys(0, 0, CAT_PAGES, keys);
	if (bench_put_start(chains, keys, NULL, 0, CAT_PAGES, &put))
		return complain_client("put_start");
	if (put.new_values != CAT_PAGES)
		return complain("%u of %u values got room", put.new_values, CAT_PAGES);
	for (uint32_t i = 0; i < CAT_PAGES; i++)
		value_bytes_fill(&keys[i], 0, 0, put.segment + put.answers[0][i], CAT_VALUE);
	return pfs_put_commit(chains->session, put.plan, 0, 0, NULL, NULL) ? complain_client("put_commit") : 0;
}

static int find_pages(const struct bench_chains *chains, char path[PATH_MAX])
{
	char records[PATH_MAX];
	struct dirent *entry;
	DIR *dir;
	int r = 1;

	if (host_path(records, "%s/records", chains->path))
		return 1;
	dir = opendir(records);
	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			r = host_path(path, "%s/%s/pages", records, entry->d_name);
	if (dir)
		closedir(dir);
	return r ? complain("%s shows no record", records) : 0;
}

/* Reads all of a file in pieces of 1 MiB; *match: whether the bytes are right. */
static int read_pages(const char *path, char *buffer, uint64_t *bytes, uint64_t *took_ns)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t begin = clock_ns();
	ssize_t n;

	if (fd < 0)
		return complain("%s: %s", path, strerror(errno));
	*bytes = 0;
	while ((n = read(fd, buffer, CAT_VALUE)) > 0)
		*bytes += (uint64_t)n;
	*took_ns = clock_ns() - begin;
	close(fd);
	return n < 0 ? complain("%s: %s", path, strerror(errno)) : 0;
}

static double copy_gbps(char *to, const char *from, size_t bytes)
{
	uint64_t begin = clock_ns();

	memcpy(to, from, bytes);
	__asm__ volatile("" ::: "memory");
	return (double)bytes / (double)(clock_ns() - begin);
}

static int measure_cat(const struct bench_options *o, struct bench_chains *chains)
{
	size_t size = (size_t)CAT_PAGES * CAT_VALUE;
	char *a = aligned_alloc(4096, size), *b = aligned_alloc(4096, size), path[PATH_MAX];
	double cat = 0, copy = 0;
	int r = a && b ? put_record(chains) : complain("no memory");

	if (!r)
		r = find_pages(chains, path);
	if (!r) {
		memset(a, 1, size);
		memset(b, 2, size);
	}
	for (unsigned i = 0; i < CAT_TURNS && !r; i++) { /* side by side: the better of each */
		uint64_t bytes = 0, took = 1;
		double rate;

		r = read_pages(path, a, &bytes, &took);
		if (r)
			break;
		if (bytes != size)
			r = complain("%s has %llu bytes, not %zu", path, (unsigned long long)bytes, size);
		rate = (double)bytes / (double)took;
		cat = rate > cat ? rate : cat;
		rate = copy_gbps(b, a, size);
		copy = rate > copy ? rate : copy;
	}
	free(a);
	free(b);
	if (r)
		return r;
	bench_print(o, "cat_pages_gbps", cat, "GB/s", copy, NULL);
	bench_print(o, "memcpy_gbps", copy, "GB/s", 0, NULL);
	return 0;
}

int bench_cat(const struct bench_options *o)
{
	const struct bench_daemon_options d = {.memory = 2ull * CAT_PAGES * CAT_VALUE, .populate = true};
	struct bench_chains chains = {0};
	struct bench_daemon daemon;
	int r = o->mount ? bench_daemon_use(&daemon, o->mount) : bench_daemon_start(&daemon, &d, false);

	if (r)
		return r;
	r = bench_namespace(&daemon, "bench", CAT_VALUE, 1, d.memory * 3 / 4);
	if (!r) {
		r = bench_chains_open(&chains, &daemon, "bench", CAT_PAGES);
		if (!r)
			r = measure_cat(o, &chains);
		bench_chains_close(&chains);
		if (o->mount)
			bench_namespace_remove(&daemon, "bench");
	}
	bench_daemon_stop(&daemon);
	return r;
}
