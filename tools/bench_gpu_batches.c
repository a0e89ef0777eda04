/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: rates by size of planes and bytes of a copy. What a copy costs once counts where there is little of it.
 */
#include <stdio.h>

#include "tools/bench_gpu.h"

#define TURNS 11u

static const uint64_t plane_sizes[] = {1168, 4096, 16384, 65536, 1048576};
static const uint64_t mebibytes[] = {4, 16, 64, 256};

static int median_rate(bench_once what, void *with, double *ret)
{
	double rates[TURNS], warm;
	int r = what(with, &warm);

	for (uint32_t i = 0; i < TURNS && !r; i++)
		r = what(with, &rates[i]);
	if (!r)
		*ret = bench_median(rates, TURNS);
	return r;
}

/* One plain copy of as many bytes. */
static int plain_once(void *context, double *gbps)
{
	const struct bench_way *way = context;
	const struct gpu_entry entry = {way->b->planes, (uintptr_t)way->b->host, way->v->bytes};
	uint64_t begin = clock_ns();

	if (lab_copy(way->b->lab, way->to_device, &entry, 1, false) || lab_finish(way->b->lab, way->to_device))
		return bench_gpu_complain("a plain copy");
	*gbps = (double)way->v->bytes / (double)(clock_ns() - begin);
	return 0;
}

static int each_path(struct bench_way *way, json_t *rest)
{
	int r = 0;

	for (way->path = 0; way->path < PATHS && !r; way->path++) {
		double rate;

		r = median_rate(bench_way_once, way, &rate);
		if (!r)
			json_object_set_new(rest, path_name((enum gpu_path)way->path), json_real(rate));
	}
	return r;
}

static int one_way(struct bench_gpu *b, uint64_t plane, uint64_t mib, bool to_device)
{
	struct bench_values v;
	struct bench_way way = {.b = b, .v = &v, .to_device = to_device, .path = bench_path(b)};
	double rate, plain;
	char figure[64];
	json_t *rest;
	int r;

	snprintf(figure, sizeof(figure), "%s_gbps_%llu_of_%lluM", to_device ? "h2d" : "d2h", (unsigned long long)plane, (unsigned long long)mib);
	if (!bench_gpu_wants(b, figure))
		return 0;
	r = bench_values_make(b, plane, bench_planes_of(plane), 0, mib << 20, &v);
	if (r)
		return r;
	r = median_rate(bench_way_once, &way, &rate) || median_rate(plain_once, &way, &plain);
	if (!r) {
		rest = json_pack("{s:i}", "values", (int)v.copy.count);
		if (b->paths) {
			r = each_path(&way, rest);
			bench_users_ways(b, &v, to_device, rest);
		}
		bench_print(&b->o, figure, rate, "GB/s", plain, rest);
	}
	bench_values_free(&v);
	return r;
}

static int both_ways(struct bench_gpu *b, uint64_t plane, uint64_t mib)
{
	struct bench_both w = {.b = b};
	char figure[64];
	double rate;
	int r;

	snprintf(figure, sizeof(figure), "duplex_gbps_%llu_of_%lluM", (unsigned long long)plane, (unsigned long long)mib);
	if (!bench_gpu_wants(b, figure))
		return 0;
	r = bench_values_make(b, plane, bench_planes_of(plane), 0, mib << 20, &w.v[0]) ||
	    bench_values_make(b, plane, bench_planes_of(plane), 1, mib << 20, &w.v[1]) || median_rate(bench_both_once, &w, &rate);
	if (!r)
		bench_print(&b->o, figure, rate, "GB/s", 0, NULL);
	bench_values_free(&w.v[0]);
	bench_values_free(&w.v[1]);
	return r;
}

int bench_gpu_batches(struct bench_gpu *b)
{
	int r = 0;

	for (unsigned i = 0; i < sizeof(plane_sizes) / sizeof(*plane_sizes) && !r; i++)
		for (unsigned k = 0; k < sizeof(mebibytes) / sizeof(*mebibytes) && !r; k++) {
			if (mebibytes[k] << 20 > b->bytes)
				continue;
			r = one_way(b, plane_sizes[i], mebibytes[k], true);
			if (!r)
				r = one_way(b, plane_sizes[i], mebibytes[k], false);
			if (!r)
				r = both_ways(b, plane_sizes[i], mebibytes[k]);
		}
	return r;
}
