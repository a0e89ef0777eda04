/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: what registration costs, by what memory is made of: mapping pages in and pinning them. The figure is of pages that a daemon
 * has made, as a grant's are; beside it stand new ones, which are made and zeroed meanwhile. With --times other pieces and numbers of
 * threads too.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/attach.h"
#include "tools/bench_gpu.h"

#define SCALE (64.0 * (1 << 30))
#define MAX_THREADS 16u
#define THREADS 4u /* of the library, unless an engine says otherwise */
#define SLICE (2ull << 20) /* slices begin and end so */

struct backing {
	const char *name;
	unsigned flags; /* of memfd_create */
	bool huge;      /* by madvise */
};

static int make(const struct backing *backing, uint64_t bytes)
{
	int fd = memfd_create("bench", MFD_CLOEXEC | backing->flags);

	if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* A mapping of it; NULL: the host has no such memory. */
static void *look(const struct backing *backing, int fd, uint64_t bytes)
{
	void *memory = fd >= 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (memory == MAP_FAILED)
		return NULL;
	if (backing->huge && madvise(memory, bytes, MADV_HUGEPAGE)) {
		munmap(memory, bytes);
		return NULL;
	}
	return memory;
}

static void *take(const struct backing *backing, uint64_t bytes)
{
	int fd = make(backing, bytes);
	void *memory = look(backing, fd, bytes);

	if (fd >= 0)
		close(fd);
	return memory;
}

/* One of the threads that share the memory out. */
struct slice {
	struct bench_gpu *b;
	uint8_t *memory;
	uint64_t bytes;
	pthread_t thread;
	bool runs;
	int (*work)(struct slice *s);
	int error;
};

static int map(struct slice *s)
{
	return madvise(s->memory, s->bytes, MADV_POPULATE_WRITE);
}

static int zero(struct slice *s)
{
	memset(s->memory, 0, s->bytes);
	return 0;
}

static void *slice_main(void *context)
{
	struct slice *s = context;

	s->error = s->work(s);
	return NULL;
}

/* @threads at once, each on its slice. Seconds, or below 0 where one has failed. */
static double all_at_once(struct bench_gpu *b, uint8_t *memory, uint64_t bytes, uint32_t threads, int (*work)(struct slice *s))
{
	struct slice slices[MAX_THREADS] = {0};
	uint64_t each = bytes / threads / SLICE * SLICE, begin = clock_ns();
	bool failed = false;

	for (uint32_t i = 0; i < threads; i++) {
		slices[i] = (struct slice){.b = b, .memory = memory + i * each, .bytes = i + 1 < threads ? each : bytes - i * each, .work = work};
		slices[i].runs = !pthread_create(&slices[i].thread, NULL, slice_main, &slices[i]);
		if (!slices[i].runs)
			slice_main(&slices[i]);
	}
	for (uint32_t i = 0; i < threads; i++) {
		if (slices[i].runs)
			pthread_join(slices[i].thread, NULL);
		failed |= slices[i].error != 0;
	}
	return failed ? -1 : (double)(clock_ns() - begin) / 1e9;
}

static double scaled(const struct bench_gpu *b, double seconds)
{
	return seconds < 0 ? seconds : seconds * SCALE / (double)b->register_bytes;
}

static int by_size(const void *x, const void *y)
{
	uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

	return a < b ? -1 : a > b;
}

/* Seconds for 64 GiB, and what the units took: milliseconds. */
static json_t *round_of(const struct bench_gpu *b, struct register_round *round)
{
	uint32_t n = round->units;

	qsort(round->unit_ns, n, sizeof(*round->unit_ns), by_size);
	return json_pack("{s:f, s:i, s:f, s:f, s:f}", "s", scaled(b, (double)round->ns / 1e9), "units", (int)n, "min_ms",
		n ? (double)round->unit_ns[0] / 1e6 : 0, "median_ms", n ? (double)round->unit_ns[n / 2] / 1e6 : 0, "max_ms",
		n ? (double)round->unit_ns[n - 1] / 1e6 : 0);
}

/* As the library does it for one range: mapping in and pinning, in one call. Seconds for 64 GiB, or below 0; *ret: its parts. */
static double whole(struct bench_gpu *b, void *memory, json_t **ret)
{
	struct register_times *times = calloc(1, sizeof(*times));
	double took = -1;

	if (!times) {
		complain("no memory");
	} else if (attach_register(b->gpu, memory, b->register_bytes, THREADS, PFS_GPU_REGISTER_BYTES, times)) {
		bench_gpu_complain("registering");
	} else {
		took = scaled(b, (double)(times->map.ns + times->pin.ns) / 1e9);
		attach_unregister(b->gpu, memory, b->register_bytes, PFS_GPU_REGISTER_BYTES);
		*ret = json_pack("{s:f, s:o, s:o}", "s", took, "map", round_of(b, &times->map), "pin", round_of(b, &times->pin));
	}
	free(times);
	return took;
}

/* Of a file whose pages were made through another mapping, as a daemon makes those that it grants. Seconds, or below 0. */
static double made_before(struct bench_gpu *b, const struct backing *backing, json_t *rest)
{
	json_t *parts;
	int fd = make(backing, b->register_bytes);
	uint8_t *other = look(backing, fd, b->register_bytes), *memory = look(backing, fd, b->register_bytes);
	double took = -1;

	if (fd >= 0)
		close(fd);
	if (other && memory && all_at_once(b, other, b->register_bytes, MAX_THREADS, map) >= 0)
		took = whole(b, memory, &parts);
	if (took >= 0)
		json_object_set_new(rest, "made_before", parts);
	if (other)
		munmap(other, b->register_bytes);
	if (memory)
		munmap(memory, b->register_bytes);
	return took;
}

/* Mapping new pages in by so many threads; writing zeros to what is mapped, which is most of the work. */
static void mapping(struct bench_gpu *b, const struct backing *backing, json_t *rest)
{
	for (uint32_t threads = 1; threads <= MAX_THREADS; threads *= 4) {
		uint8_t *memory = take(backing, b->register_bytes);
		char name[32];

		if (!memory)
			return;
		snprintf(name, sizeof(name), "map_%u_threads_s", threads);
		json_object_set_new(rest, name, json_real(scaled(b, all_at_once(b, memory, b->register_bytes, threads, map))));
		snprintf(name, sizeof(name), "zero_%u_threads_s", threads);
		json_object_set_new(rest, name, json_real(scaled(b, all_at_once(b, memory, b->register_bytes, threads, zero))));
		munmap(memory, b->register_bytes);
	}
}

/* Pinning of what is mapped, in pieces and by threads. */
static void pinning(struct bench_gpu *b, const struct backing *backing, json_t *rest)
{
	static const uint64_t pieces[] = {256ull << 20, 1ull << 30, 2ull << 30, 8ull << 30};
	static const uint32_t threads[] = {1, 4, 8, 16};
	struct register_times *times = calloc(1, sizeof(*times));
	uint8_t *memory = take(backing, b->register_bytes);
	json_t *list = json_array();

	for (unsigned i = 0; times && memory && i < 16; i++) {
		uint64_t piece = pieces[i / 4], begin;
		json_t *row;

		memset(times, 0, sizeof(*times));
		if (attach_register(b->gpu, memory, b->register_bytes, threads[i % 4], piece, times))
			break;
		row = round_of(b, &times->pin);
		begin = clock_ns();
		attach_unregister(b->gpu, memory, b->register_bytes, piece);
		json_object_set_new(row, "unpin_s", json_real(scaled(b, (double)(clock_ns() - begin) / 1e9)));
		json_object_set_new(row, "piece_mib", json_integer((json_int_t)(piece >> 20)));
		json_object_set_new(row, "threads", json_integer(threads[i % 4]));
		json_array_append_new(list, row);
		if (piece >= b->register_bytes) /* one piece: threads change nothing */
			break;
	}
	json_object_set_new(rest, "pinning", list);
	if (memory)
		munmap(memory, b->register_bytes);
	free(times);
}

static void skip(struct bench_gpu *b, const struct backing *backing, json_t *rest)
{
	char why[160];

	snprintf(why, sizeof(why), "the host has no such memory");
	if (backing->flags & MFD_HUGETLB)
		snprintf(why, sizeof(why), "too few hugetlb pages are free; as root: sysctl vm.nr_hugepages=%llu",
			(unsigned long long)((b->register_bytes + 2 * b->bytes + b->memory) >> 21));
	bench_skip(&b->o, "register_64gib_s", why, rest);
}

/* New pages twice, for those that the host has never touched before cost more the first time, in a virtual machine above all. 0 where the
 * host has no such memory: *none. */
static int new_pages(struct bench_gpu *b, const struct backing *backing, json_t *rest, bool *none)
{
	static const char *const turns[] = {"first", "again"};

	for (int i = 0; i < 2; i++) {
		void *memory = take(backing, b->register_bytes);
		json_t *parts;
		double took;

		*none = memory == NULL;
		if (*none)
			return 0;
		took = whole(b, memory, &parts);
		munmap(memory, b->register_bytes);
		if (took < 0)
			return 1;
		json_object_set_new(rest, turns[i], parts);
	}
	return 0;
}

static int one_backing(struct bench_gpu *b, const struct backing *backing)
{
	json_t *rest = json_pack("{s:s, s:I, s:i}", "backing", backing->name, "measured_bytes", (json_int_t)b->register_bytes, "threads",
		(int)THREADS);
	double took = -1;
	bool none;
	int r = new_pages(b, backing, rest, &none);

	if (!r && none) {
		skip(b, backing, rest);
		return 0;
	}
	if (!r)
		took = made_before(b, backing, rest);
	if (took < 0) {
		json_decref(rest);
		return 1;
	}
	if (b->times) {
		mapping(b, backing, rest);
		pinning(b, backing, rest);
	}
	bench_print(&b->o, "register_64gib_s", took, "s", 0, rest);
	return 0;
}

int bench_gpu_register(struct bench_gpu *b)
{
	static const struct backing backings[] = {{"hugetlb", MFD_HUGETLB, false}, {"thp", 0, true}, {"4k", 0, false}};
	int r = 0;

	if (!bench_gpu_wants(b, "register_64gib_s"))
		return 0;
	for (unsigned i = 0; i < sizeof(backings) / sizeof(*backings) && !r; i++)
		if (!b->backing || !strcmp(b->backing, backings[i].name))
			r = one_backing(b, &backings[i]);
	return r;
}
