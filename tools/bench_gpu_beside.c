/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: what copies do to other work of the device.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench_gpu.h"
#include "tools/latency.h"

#define LOOP_TURNS 101u
#define SLOW_BYTES (32ull << 20) /* of a copy when the rate is 2 GB/s */
#define UPLOAD_BYTES 65536u
#define UPLOADS 2000u
#define UPLOAD_EVERY_NS 250000u
#define UPLOADS_NS 1500000000ull /* all of them, at most */

#define PIECE_BYTES MERGE_MAX_BYTES

/* Copies that go on in a thread of their own. */
struct traffic {
	struct bench_gpu *b;
	struct bench_values values;
	int path;       /* enum gpu_path, -1 = the library's choice, PATHS = plain copies */
	bool pieces;    /* plain ones, of PIECE_BYTES each */
	double gbps;    /* 0 = all that goes */
	bool to_device;
	pthread_t thread;
	bool stop;      /* atomic */
	uint64_t bytes, ns;
	int failed;
};

static int plain_copy(struct traffic *t)
{
	uint64_t step = t->pieces ? PIECE_BYTES : t->values.bytes;
	int r = 0;

	for (uint64_t at = 0; at < t->values.bytes && !r; at += step) {
		uint64_t rest = t->values.bytes - at;
		const struct gpu_entry entry = {t->b->planes + at, (uintptr_t)t->b->host + at, rest < step ? rest : step};

		r = lab_copy(t->b->lab, t->to_device, &entry, 1, false);
	}
	return r || lab_finish(t->b->lab, t->to_device);
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

/* The loop alone and beside copies; *slower: the ratio of both, 0 where it was not measured. */
static int one_loop(struct bench_gpu *b, enum lab_work work, const char *figure, struct traffic *t, double against, double *slower, double *rate)
{
	double alone = 0, beside = 0;
	int r = lab_loop(b->lab, work, LOOP_TURNS, &alone); /* the first one warms up */

	*slower = 0;
	if (!r)
		r = lab_loop(b->lab, work, LOOP_TURNS, &alone);
	if (r == -EOPNOTSUPP) {
		bench_skip(&b->o, figure, "plain C has no device that could work beside copies", NULL);
		return 0;
	}
	if (r)
		return bench_gpu_complain("the loop alone");
	if (traffic_start(t))
		return 1;
	r = lab_loop(b->lab, work, LOOP_TURNS, &beside);
	*rate = traffic_end(t);
	if (r || t->failed)
		return bench_gpu_complain("the loop beside copies");
	*slower = beside / alone;
	bench_print(&b->o, figure, *slower, "", against,
		json_pack("{s:f, s:f, s:f}", "alone_ms", alone * 1e3, "beside_ms", beside * 1e3, "gbps", *rate));
	return 0;
}

/* One path at one rate. The library's choice is held against plain copies of the same rate, which are measured right before
 * it at 2 GB/s, and behind it where its rate is what it gets. */
static int one_path(struct bench_gpu *b, enum lab_work work, bool to_device, int path, double gbps)
{
	struct traffic t = {.b = b, .path = path, .gbps = gbps, .to_device = to_device};
	const char *loop = work == LAB_MEMORY ? "memory" : "matrix", *way = to_device ? "h2d" : "d2h";
	const char *name = path == PATHS ? "plain" : path < 0 ? "default" : path_name((enum gpu_path)path);
	double slower = 0, rate = 0, plain;
	char figure[80], beside[80];
	int r;

	snprintf(figure, sizeof(figure), "interference_%s_%s_%s_%s", loop, way, name, gbps > 0 ? "2gbps" : "full");
	if (!bench_gpu_wants(b, figure))
		return 0;
	r = one_loop(b, work, figure, &t, 0, &slower, &rate);
	if (r || path >= 0 || gbps > 0 || slower <= 0)
		return r;
	t = (struct traffic){.b = b, .path = PATHS, .gbps = rate, .to_device = to_device};
	snprintf(beside, sizeof(beside), "interference_%s_%s_plain_as_default", loop, way);
	r = one_loop(b, work, beside, &t, 0, &plain, &rate);
	if (!r) {
		snprintf(figure, sizeof(figure), "interference_%s_%s_ratio", loop, way);
		bench_print(&b->o, figure, slower / plain, "", 0, NULL);
	}
	return r;
}

/* Uploads of an engine, one every UPLOAD_EVERY_NS: so that a moment is as likely as any other to be met. */
static int uploads(struct bench_gpu *b, struct latency *l)
{
	uint64_t first = clock_ns(), begin = first;

	memset(l, 0, sizeof(*l));
	for (uint32_t i = 0; i < UPLOADS && begin - first < UPLOADS_NS; i++) {
		uint64_t due = clock_ns() + UPLOAD_EVERY_NS;

		while ((begin = clock_ns()) < due)
			continue;
		if (lab_upload(b->lab, b->planes + b->bytes, b->host + b->bytes, UPLOAD_BYTES))
			return bench_gpu_complain("uploading");
		latency_add(l, clock_ns() - begin);
	}
	return 0;
}

static int upload_beside(struct bench_gpu *b, const char *figure, const struct latency *alone, int path, bool pieces, double gbps)
{
	struct latency *l;
	struct traffic t = {.b = b, .path = path, .pieces = pieces, .gbps = gbps, .to_device = true};
	double rate;
	int r;

	if (!bench_gpu_wants(b, figure))
		return 0;
	l = calloc(1, sizeof(*l));
	if (!l)
		return complain("no memory");
	r = traffic_start(&t);
	if (!r) {
		r = uploads(b, l);
		rate = traffic_end(&t);
		r = r ? r : t.failed;
	}
	if (!r)
		bench_print(&b->o, figure, latency_us(l, 0.99), "us", latency_us(alone, 0.99),
			json_pack("{s:f, s:f, s:f, s:f}", "p50_us", latency_us(l, 0.5), "p90_us", latency_us(l, 0.9), "p50_alone_us",
				latency_us(alone, 0.5), "gbps", rate));
	free(l);
	return r;
}

static int upload_figures(struct bench_gpu *b)
{
	struct latency *alone = calloc(1, sizeof(*alone));
	int r = alone ? b->looking || !bench_wants(&b->o, "upload_p99_us") ? 0 : uploads(b, alone) : complain("no memory");

	if (!r)
		r = upload_beside(b, "upload_p99_us", alone, -1, false, 0);
	if (!r)
		r = upload_beside(b, "upload_p99_us_plain", alone, PATHS, false, 0);
	if (!r)
		r = upload_beside(b, "upload_p99_us_pieces", alone, PATHS, true, 0);
	if (!r)
		r = upload_beside(b, "upload_p99_us_2gbps", alone, -1, false, 2);
	if (!r)
		r = upload_beside(b, "upload_p99_us_2gbps_plain", alone, PATHS, false, 2);
	free(alone);
	return r;
}

/* What an urgent restore takes when the bus is full of others that are not. */
static int restores_beside(struct bench_gpu *b)
{
	struct traffic t = {.b = b, .path = -1, .to_device = true};
	double bytes, median, p99, rate;
	int r;

	if (!bench_gpu_wants(b, "small_restore_us_beside"))
		return 0;
	if (traffic_start(&t))
		return 1;
	r = bench_restores(b, 1, &bytes, &median, &p99);
	rate = traffic_end(&t);
	if (!r && !t.failed)
		bench_print(&b->o, "small_restore_us_beside", median, "us", 0, json_pack("{s:f, s:f}", "p99_us", p99, "gbps", rate));
	return r || t.failed;
}

int bench_gpu_beside(struct bench_gpu *b)
{
	int r = 0;

	for (int work = LAB_MEMORY; work <= LAB_MATRIX && !r; work++)
		for (int to_device = 1; to_device >= 0 && !r; to_device--) {
			r = one_path(b, (enum lab_work)work, to_device, PATHS, 0);
			for (int path = b->paths ? PATHS - 1 : -1; path >= -1 && !r; path--)
				r = one_path(b, (enum lab_work)work, to_device, path, 0);
			if (!r)
				r = one_path(b, (enum lab_work)work, to_device, PATHS, 2);
			if (!r)
				r = one_path(b, (enum lab_work)work, to_device, -1, 2);
		}
	if (!r)
		r = restores_beside(b);
	return r ? r : upload_figures(b);
}
