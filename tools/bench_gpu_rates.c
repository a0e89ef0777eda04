/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: rates by size of planes, both ways at once, one small value, CPU time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench_gpu.h"

#define SMALL_PLANE 65536u
#define SMALL_PLANES 72u /* 4.5 MiB */
#define SMALL_TURNS 201u
#define ROWS_BATCH 64u       /* values of one call */
#define USER_ENTRIES 65536u /* copies of their own that a user's way is measured with: they are slow */

static const uint64_t sizes[] = {1168, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152};

static const char *word_of(bool to_device)
{
	return to_device ? "h2d" : "d2h";
}

/* What a user would write: a copy a plane, or one batched call of them. GB/s. */
static int user_rate(struct bench_gpu *b, const struct bench_values *v, bool to_device, bool batched, double *ret)
{
	uint32_t planes = v->pool.plane_count, count = USER_ENTRIES / planes < v->copy.count ? USER_ENTRIES / planes : v->copy.count;
	struct gpu_entry *entries = malloc((size_t)count * planes * sizeof(*entries));
	double took[3];
	int r = entries ? 0 : complain("no memory");

	for (uint32_t i = 0; i < count && !r; i++)
		for (uint32_t p = 0; p < planes; p++)
			entries[(size_t)i * planes + p] = (struct gpu_entry){v->planes[p].base + v->pages[i] * v->planes[p].stride,
				v->values[i] + p * v->planes[p].bytes, v->planes[p].bytes};
	for (uint32_t i = 0; i < 3 && !r; i++) {
		uint64_t begin = clock_ns();

		if (lab_copy(b->lab, to_device, entries, count * planes, batched) || lab_finish(b->lab, to_device))
			r = bench_gpu_complain("copying");
		took[i] = (double)(clock_ns() - begin) / 1e9;
	}
	if (!r)
		*ret = (double)count * planes * (double)v->planes[0].bytes / 1e9 / bench_median(took, 3);
	free(entries);
	return r;
}

/* The same planes as rows of one copy a value: they lie at equal distances here, which an engine's need not. */
static int rows_rate(struct bench_gpu *b, const struct bench_values *v, bool to_device, bool batched, double *ret)
{
	uint32_t planes = v->pool.plane_count, count = USER_ENTRIES / planes < v->copy.count ? USER_ENTRIES / planes : v->copy.count;
	struct lab_rows *list = malloc(count * sizeof(*list));
	double took[3];
	int r = list ? 0 : complain("no memory");

	for (uint32_t i = 0; i < count && !r; i++)
		list[i] = (struct lab_rows){v->planes[0].base + v->pages[i] * v->planes[0].stride, v->values[i],
			v->planes[1].base - v->planes[0].base, v->planes[0].bytes, planes};
	for (uint32_t i = 0; i < 3 && !r; i++) {
		uint64_t begin = clock_ns();

		for (uint32_t at = 0; at < count && !r; at += ROWS_BATCH)
			r = lab_copy_rows(b->lab, to_device, list + at, count - at < ROWS_BATCH ? count - at : ROWS_BATCH, batched);
		if (r || lab_finish(b->lab, to_device))
			r = bench_gpu_complain("copying rows");
		took[i] = (double)(clock_ns() - begin) / 1e9;
	}
	if (!r)
		*ret = (double)count * planes * (double)v->planes[0].bytes / 1e9 / bench_median(took, 3);
	free(list);
	return r;
}

void bench_users_ways(struct bench_gpu *b, struct bench_values *v, bool to_device, json_t *rest)
{
	double rate = 0;

	if (!user_rate(b, v, to_device, false, &rate))
		json_object_set_new(rest, "copy_a_plane", json_real(rate));
	if (lab_batches(b->lab) && !user_rate(b, v, to_device, true, &rate))
		json_object_set_new(rest, "one_batch", json_real(rate));
	if (!rows_rate(b, v, to_device, false, &rate))
		json_object_set_new(rest, "rows_a_value", json_real(rate));
	if (lab_batches(b->lab) && !rows_rate(b, v, to_device, true, &rate))
		json_object_set_new(rest, "rows_batched", json_real(rate));
}

/* The ways by themselves. */
static int each_way(struct bench_gpu *b, struct bench_values *v, bool to_device, json_t *rest)
{
	struct bench_paired pairs;
	int r = 0;

	for (int path = 0; path < PATHS && !r; path++) {
		r = bench_ratio(b, v, to_device, path, &pairs);
		if (!r)
			json_object_set_new(rest, path_name((enum gpu_path)path),
				json_pack("{s:f, s:f, s:i}", "ratio", pairs.ratio, "gbps", pairs.rate, "disturbed", (int)pairs.disturbed));
	}
	if (!r)
		bench_users_ways(b, v, to_device, rest);
	return r;
}

static json_t *members_of(const struct bench_paired *pairs)
{
	return json_pack("{s:f, s:f, s:i}", "gbps", pairs->rate, "ceiling_gbps", pairs->reference, "disturbed", (int)pairs->disturbed);
}

static int one_size(struct bench_gpu *b, uint64_t plane, bool to_device)
{
	struct bench_paired pairs;
	struct bench_values v;
	char figure[64];
	json_t *rest;
	int r;

	snprintf(figure, sizeof(figure), "%s_ratio_%llu", word_of(to_device), (unsigned long long)plane);
	if (!bench_gpu_wants(b, figure))
		return 0;
	r = bench_values_make(b, plane, bench_planes_of(plane), 0, b->bytes, &v);
	if (r)
		return r;
	r = bench_ratio(b, &v, to_device, bench_path(b), &pairs);
	if (!r) {
		rest = members_of(&pairs);
		json_object_set_new(rest, "value_bytes", json_integer((json_int_t)(v.bytes / v.copy.count)));
		if (b->paths)
			r = each_way(b, &v, to_device, rest);
		if (b->times && !r)
			r = bench_times(b, &v, to_device, &pairs, rest);
		bench_print(&b->o, figure, pairs.ratio, "", 0, rest);
	}
	bench_values_free(&v);
	return r;
}

static int ceilings(struct bench_gpu *b)
{
	for (int to_device = 1; to_device >= 0; to_device--) {
		char figure[32];
		double rate;

		snprintf(figure, sizeof(figure), "%s_ceiling_gbps", word_of(to_device));
		if (!bench_gpu_wants(b, figure) && b->looking)
			continue;
		if (bench_ceiling(b, to_device, &rate))
			return 1;
		if (bench_wants(&b->o, figure))
			bench_print(&b->o, figure, rate, "GB/s", 0, NULL);
	}
	return 0;
}

int bench_both_once(void *context, double *gbps)
{
	struct bench_both *w = context;
	struct pfs_gpu_op *op[2] = {NULL, NULL};
	uint64_t begin = clock_ns();
	int r = 0;

	for (int i = 0; i < 2; i++)
		w->v[i].copy.pool = &w->v[i].pool;
	if (pfs_gpu_gather(w->b->gpu, &w->v[0].copy, &op[0]) || pfs_gpu_scatter(w->b->gpu, &w->v[1].copy, &op[1]) ||
		pfs_gpu_wait(op[0], 0) || pfs_gpu_wait(op[1], 0))
		r = bench_gpu_complain("copying both ways");
	*gbps = (double)(w->v[0].bytes + w->v[1].bytes) / (double)(clock_ns() - begin);
	pfs_gpu_end(&op[0]);
	pfs_gpu_end(&op[1]);
	return r;
}

static int plain_both_once(void *context, double *gbps)
{
	struct bench_gpu *b = ((struct bench_both *)context)->b;
	const struct gpu_entry in = {b->planes + b->bytes, (uintptr_t)b->host + b->bytes, b->bytes};
	const struct gpu_entry out = {b->planes, (uintptr_t)b->host, b->bytes};
	uint64_t begin = clock_ns();

	if (lab_copy(b->lab, true, &in, 1, false) || lab_copy(b->lab, false, &out, 1, false) || lab_finish(b->lab, true) ||
		lab_finish(b->lab, false))
		return bench_gpu_complain("plain copies both ways");
	*gbps = 2 * (double)b->bytes / (double)(clock_ns() - begin);
	return 0;
}

/* Both ways at once, over one way alone; and what plain copies get of both. */
static int duplex(struct bench_gpu *b)
{
	struct bench_both w = {.b = b};
	struct bench_way alone = {.b = b, .v = &w.v[1], .to_device = true, .path = -1};
	struct bench_paired pairs;
	double best = 0, plain = 0, warm;
	int r = bench_values_make(b, 16384, 72, 0, b->bytes, &w.v[0]) || bench_values_make(b, 16384, 72, 1, b->bytes, &w.v[1]);

	if (!r)
		r = bench_both_once(&w, &warm);
	if (!r)
		r = bench_pairs(&best, bench_way_once, &alone, bench_both_once, &w, &pairs);
	if (!r)
		r = plain_both_once(&w, &plain);
	if (!r)
		bench_print(&b->o, "duplex_ratio", pairs.ratio, "", 0,
			json_pack("{s:f, s:f, s:f, s:i}", "gbps", pairs.rate, "one_way_gbps", pairs.reference, "plain_gbps", plain,
				"disturbed", (int)pairs.disturbed));
	bench_values_free(&w.v[0]);
	bench_values_free(&w.v[1]);
	return r;
}

int bench_restores(struct bench_gpu *b, unsigned half, double *bytes, double *median, double *p99)
{
	struct bench_values v;
	double took[SMALL_TURNS];
	int r = bench_values_make(b, SMALL_PLANE, SMALL_PLANES, half, (uint64_t)SMALL_PLANE * SMALL_PLANES, &v);

	if (r)
		return 1;
	v.copy.pool = &v.pool;
	v.copy.flags = PFS_GPU_URGENT;
	for (uint32_t i = 0; i < SMALL_TURNS && !r; i++) {
		struct pfs_gpu_op *op = NULL;
		uint64_t begin = clock_ns();
		void *event;

		if (pfs_gpu_scatter(b->gpu, &v.copy, &op) || pfs_gpu_event(op, 0, 0, &event) || lab_spin(b->lab, event))
			r = bench_gpu_complain("restoring one value");
		took[i] = (double)(clock_ns() - begin) / 1e3;
		if (!r && pfs_gpu_wait(op, 0))
			r = bench_gpu_complain("restoring one value");
		pfs_gpu_end(&op);
	}
	*bytes = (double)v.bytes;
	if (!r) {
		*median = bench_median(took, SMALL_TURNS); /* which sorts */
		*p99 = took[SMALL_TURNS * 99 / 100];
	}
	bench_values_free(&v);
	return r;
}

static int small_restore(struct bench_gpu *b)
{
	double ceiling, bytes, median, p99;
	int r = bench_ceiling(b, true, &ceiling) || bench_restores(b, 0, &bytes, &median, &p99);

	if (!r)
		bench_print(&b->o, "small_restore_us", median, "us", 1.2 * bytes / ceiling / 1e3 + 30, json_pack("{s:f}", "p99_us", p99));
	return r;
}

static int cpu_time(struct bench_gpu *b)
{
	struct pfs_gpu_info before, after;
	struct bench_values v;
	int r = bench_values_make(b, 4096, 72, 0, b->bytes, &v);
	uint64_t begin;
	double took, whole;

	if (r)
		return r;
	pfs_gpu_info(b->gpu, &before);
	begin = bench_cpu_ns(getpid());
	for (uint32_t i = 0; i < BENCH_GPU_TURNS && !r; i++)
		r = bench_copy(b, &v, true, -1, &took);
	whole = (double)(bench_cpu_ns(getpid()) - begin) / 1e6;
	pfs_gpu_info(b->gpu, &after);
	if (!r) {
		double gib = (double)(after.bytes_to_device - before.bytes_to_device) / (1 << 30);

		bench_print(&b->o, "cpu_ms_per_gib", whole / gib, "ms", 0,
			json_pack("{s:f}", "submitting_ms_per_gib", (double)(after.submit_cpu_ns - before.submit_cpu_ns) / 1e6 / gib));
	}
	bench_values_free(&v);
	return r;
}

int bench_gpu_rates(struct bench_gpu *b)
{
	int r = ceilings(b);

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes) && !r; i++)
		for (int to_device = 1; to_device >= 0 && !r; to_device--)
			r = one_size(b, sizes[i], to_device);
	if (!r && bench_gpu_wants(b, "duplex_ratio"))
		r = duplex(b);
	if (!r && bench_gpu_wants(b, "small_restore_us"))
		r = small_restore(b);
	if (!r && bench_gpu_wants(b, "cpu_ms_per_gib"))
		r = cpu_time(b);
	return r;
}
