/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: what copies do to other work of the device; and registration by backing.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench_gpu.h"
#include "tools/latency.h"

#define LOOP_TURNS 101u
#define SLOW_BYTES (32ull << 20) /* of a copy when the rate is 2 GB/s */
#define UPLOAD_BYTES 65536u
#define UPLOADS 4000u

/* Copies that go on in a thread of their own. */
struct traffic {
	struct bench_gpu *b;
	struct bench_values values;
	int path;       /* enum gpu_path, -1 = the library's choice, PATHS = plain copies */
	double gbps;    /* 0 = all that goes */
	bool to_device;
	pthread_t thread;
	bool stop;      /* atomic */
	uint64_t bytes, ns;
	int failed;
};

static int plain_copy(struct traffic *t)
{
	const struct gpu_entry entry = {t->b->planes, (uintptr_t)t->b->host, t->values.bytes};

	return lab_copy(t->b->lab, t->to_device, &entry, 1, false) || lab_finish(t->b->lab, t->to_device);
}

static void *traffic_main(void *context)
{
	struct traffic *t = context;
	uint64_t begin = clock_ns();
	double took;

	t->failed = lab_thread(t->b->lab) != 0;
	while (!t->failed && !__atomic_load_n(&t->stop, __ATOMIC_RELAXED)) {
		uint64_t due;

		t->failed = t->path == PATHS ? plain_copy(t) : bench_copy(t->b, &t->values, t->to_device, t->path, &took);
		t->bytes += t->values.bytes;
		due = t->gbps > 0 ? begin + (uint64_t)((double)t->bytes / t->gbps) : 0;
		if (due > clock_ns()) { /* a rate, not an order */
			uint64_t rest = due - clock_ns();

			nanosleep(&(struct timespec){(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)}, NULL);
		}
	}
	t->ns = clock_ns() - begin;
	return NULL;
}

static int traffic_start(struct traffic *t)
{
	uint64_t bytes = t->gbps > 0 ? SLOW_BYTES : t->b->bytes / 4;

	if (bench_values_make(t->b, 16384, 72, 0, bytes < t->b->bytes ? bytes : t->b->bytes, &t->values))
		return 1;
	return pthread_create(&t->thread, NULL, traffic_main, t) ? complain("no thread") : 0;
}

/* GB/s that it has had. */
static double traffic_end(struct traffic *t)
{
	__atomic_store_n(&t->stop, true, __ATOMIC_RELAXED);
	pthread_join(t->thread, NULL);
	bench_values_free(&t->values);
	return (double)t->bytes / (double)t->ns;
}

static int one_loop(struct bench_gpu *b, enum lab_work work, int path, double gbps, bool to_device)
{
	struct traffic t = {.b = b, .path = path, .gbps = gbps, .to_device = to_device};
	const char *way = path == PATHS ? "plain" : path < 0 ? "default" : path_name((enum gpu_path)path);
	double alone = 0, beside = 0, rate;
	char figure[80];
	int r;

	snprintf(figure, sizeof(figure), "interference_%s_%s_%s_%s", work == LAB_MEMORY ? "memory" : "matrix",
		to_device ? "h2d" : "d2h", way, gbps > 0 ? "2gbps" : "full");
	if (!bench_wants(&b->o, figure))
		return 0;
	r = lab_loop(b->lab, work, LOOP_TURNS, &alone); /* the first one warms up */
	if (!r)
		r = lab_loop(b->lab, work, LOOP_TURNS, &alone);
	if (r == -EOPNOTSUPP) {
		bench_skip(&b->o, figure, "plain C has no device that could work beside copies", NULL);
		return 0;
	}
	if (r)
		return bench_gpu_complain("the loop alone");
	if (traffic_start(&t))
		return 1;
	r = lab_loop(b->lab, work, LOOP_TURNS, &beside);
	rate = traffic_end(&t);
	if (r || t.failed)
		return bench_gpu_complain("the loop beside copies");
	bench_print(&b->o, figure, beside / alone, "", 0,
		json_pack("{s:f, s:f, s:f}", "alone_ms", alone * 1e3, "beside_ms", beside * 1e3, "gbps", rate));
	return 0;
}

/* Uploads of an engine: 64 KiB and waiting for it, over and over. */
static int uploads(struct bench_gpu *b, struct latency *l)
{
	const struct gpu_entry entry = {b->planes + b->bytes, (uintptr_t)b->host + b->bytes, UPLOAD_BYTES};

	memset(l, 0, sizeof(*l));
	for (uint32_t i = 0; i < UPLOADS; i++) {
		uint64_t begin = clock_ns();

		if (lab_copy(b->lab, true, &entry, 1, false) || lab_finish(b->lab, true))
			return bench_gpu_complain("uploading");
		latency_add(l, clock_ns() - begin);
	}
	return 0;
}

static int upload_p99(struct bench_gpu *b)
{
	struct latency *l = calloc(2, sizeof(*l));
	struct traffic t = {.b = b, .path = -1, .to_device = true};
	int r = l ? uploads(b, &l[0]) : complain("no memory");

	if (!r && traffic_start(&t) == 0) {
		r = uploads(b, &l[1]);
		traffic_end(&t);
		if (!r)
			bench_print(&b->o, "upload_p99_us", latency_us(&l[1], 0.99), "us", latency_us(&l[0], 0.99),
				json_pack("{s:f, s:f}", "p50_us", latency_us(&l[1], 0.5), "p50_alone_us", latency_us(&l[0], 0.5)));
	}
	free(l);
	return r;
}

int bench_gpu_beside(struct bench_gpu *b)
{
	int r = 0;

	for (int work = LAB_MEMORY; work <= LAB_MATRIX && !r; work++)
		for (int to_device = 1; to_device >= 0 && !r; to_device--) {
			r = one_loop(b, (enum lab_work)work, PATHS, 0, to_device);
			for (int path = b->paths ? PATHS - 1 : -1; path >= -1 && !r; path--)
				r = one_loop(b, (enum lab_work)work, path, 0, to_device);
			if (!r)
				r = one_loop(b, (enum lab_work)work, PATHS, 2, to_device);
			if (!r)
				r = one_loop(b, (enum lab_work)work, -1, 2, to_device);
		}
	if (!r && bench_wants(&b->o, "upload_p99_us"))
		r = upload_p99(b);
	return r;
}

/* ---- registration ---------------------------------------------------------------------------------------------------- */

static int register_backing(struct bench_gpu *b, const char *backing, unsigned flags)
{
	int fd = memfd_create("bench", MFD_CLOEXEC | flags);
	void *memory = MAP_FAILED;
	uint64_t begin, took;
	json_t *rest = json_pack("{s:s, s:I}", "backing", backing, "measured_bytes", (json_int_t)b->register_bytes);

	if (fd >= 0 && !ftruncate(fd, (off_t)b->register_bytes))
		memory = mmap(NULL, b->register_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (memory == MAP_FAILED || (!strcmp(backing, "thp") && madvise(memory, b->register_bytes, MADV_HUGEPAGE))) {
		bench_skip(&b->o, "register_64gib_s", "the host has no such memory", rest);
		return 0;
	}
	begin = clock_ns();
	if (pfs_gpu_register(b->gpu, memory, b->register_bytes, 1)) {
		munmap(memory, b->register_bytes);
		json_decref(rest);
		return bench_gpu_complain("registering");
	}
	took = clock_ns() - begin;
	pfs_gpu_unregister(b->gpu, memory, b->register_bytes, 1);
	munmap(memory, b->register_bytes);
	bench_print(&b->o, "register_64gib_s", (double)took / 1e9 * 64 * (1 << 30) / (double)b->register_bytes, "s", 0, rest);
	return 0;
}

int bench_gpu_register(struct bench_gpu *b)
{
	int r;

	if (!bench_wants(&b->o, "register_64gib_s"))
		return 0;
	r = register_backing(b, "4k", 0);
	if (!r)
		r = register_backing(b, "thp", 0);
	return r ? r : register_backing(b, "hugetlb", MFD_HUGETLB);
}
