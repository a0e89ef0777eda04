/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: what registration costs, by what memory is made of; and whether several threads of one process help the driver.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench_gpu.h"

#define SCALE (64.0 * (1 << 30))
#define MAX_THREADS 16u
#define SLICE (2ull << 20) /* slices begin and end so */

struct backing {
	const char *name;
	unsigned flags; /* of memfd_create */
	bool huge;      /* by madvise */
};

/* NULL: the host has none. */
static void *take(const struct backing *backing, uint64_t bytes)
{
	int fd = memfd_create("bench", MFD_CLOEXEC | backing->flags);
	void *memory = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, (off_t)bytes))
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (memory == MAP_FAILED)
		return NULL;
	if (backing->huge && madvise(memory, bytes, MADV_HUGEPAGE)) {
		munmap(memory, bytes);
		return NULL;
	}
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

static int pin(struct slice *s)
{
	return pfs_gpu_register(s->b->gpu, s->memory, s->bytes, 1);
}

static int unpin(struct slice *s)
{
	return pfs_gpu_unregister(s->b->gpu, s->memory, s->bytes, 1);
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

/* As the library does it for one range: mapping in and pinning, in one call. */
static int whole(struct bench_gpu *b, const struct backing *backing, double *seconds)
{
	void *memory = take(backing, b->register_bytes);
	uint64_t begin = clock_ns();
	int r;

	if (!memory)
		return 1;
	r = pfs_gpu_register(b->gpu, memory, b->register_bytes, 1);
	*seconds = (double)(clock_ns() - begin) / 1e9;
	if (!r)
		pfs_gpu_unregister(b->gpu, memory, b->register_bytes, 1);
	munmap(memory, b->register_bytes);
	return r ? bench_gpu_complain("registering") : 0;
}

/* The steps apart, and pinning by so many threads of what is mapped. */
static void steps(struct bench_gpu *b, const struct backing *backing, json_t *rest)
{
	double scale = SCALE / (double)b->register_bytes;
	uint8_t *memory = take(backing, b->register_bytes);

	if (!memory)
		return;
	json_object_set_new(rest, "map_16_threads_s", json_real(all_at_once(b, memory, b->register_bytes, MAX_THREADS, map) * scale));
	for (uint32_t threads = 1; threads <= 8; threads *= 2) {
		double took = all_at_once(b, memory, b->register_bytes, threads, pin);
		char name[32];

		snprintf(name, sizeof(name), "pin_%u_threads_s", threads);
		json_object_set_new(rest, name, json_real(took * scale));
		if (took < 0)
			break;
		took = all_at_once(b, memory, b->register_bytes, threads, unpin);
		snprintf(name, sizeof(name), "unpin_%u_threads_s", threads);
		json_object_set_new(rest, name, json_real(took * scale));
	}
	munmap(memory, b->register_bytes);
}

static int one_backing(struct bench_gpu *b, const struct backing *backing)
{
	json_t *rest = json_pack("{s:s, s:I}", "backing", backing->name, "measured_bytes", (json_int_t)b->register_bytes);
	void *memory = take(backing, b->register_bytes);
	double seconds = 0;
	char why[160];

	if (!memory) {
		snprintf(why, sizeof(why), "the host has no such memory");
		if (backing->flags & MFD_HUGETLB)
			snprintf(why, sizeof(why), "too few hugetlb pages are free; as root: sysctl vm.nr_hugepages=%llu",
				(unsigned long long)((b->register_bytes + 2 * b->bytes + b->memory) >> 21));
		bench_skip(&b->o, "register_64gib_s", why, rest);
		return 0;
	}
	munmap(memory, b->register_bytes);
	if (whole(b, backing, &seconds)) {
		json_decref(rest);
		return 1;
	}
	steps(b, backing, rest);
	bench_print(&b->o, "register_64gib_s", seconds * SCALE / (double)b->register_bytes, "s", 0, rest);
	return 0;
}

int bench_gpu_register(struct bench_gpu *b)
{
	static const struct backing backings[] = {{"4k", 0, false}, {"thp", 0, true}, {"hugetlb", MFD_HUGETLB, false}};
	int r = 0;

	if (!bench_gpu_wants(b, "register_64gib_s"))
		return 0;
	for (unsigned i = 0; i < sizeof(backings) / sizeof(*backings) && !r; i++)
		r = one_backing(b, &backings[i]);
	return r;
}
