/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: rates over a reference that is measured right before and right after. A host shared with others has moments when the bus
 * gives less; a pair taken in one is thrown away and taken again, but not for ever.
 */
#include "tools/bench_gpu.h"

#define TRIES (2 * BENCH_GPU_TURNS)
#define QUIET 0.97 /* of the best reference of the run, and of each other */

static double less(double a, double b)
{
	return a < b ? a : b;
}

static double more(double a, double b)
{
	return a > b ? a : b;
}

int bench_pairs(double *best, bench_once reference, void *of, bench_once what, void *with, struct bench_paired *ret)
{
	double rates[BENCH_GPU_TURNS], references[BENCH_GPU_TURNS], ratios[BENCH_GPU_TURNS], before, after, rate;
	uint32_t n = 0, tries = 0;
	int r = reference(of, &before);

	for (; n < BENCH_GPU_TURNS && !r; tries++) {
		bool last_chance = BENCH_GPU_TURNS - n >= TRIES - tries;

		r = what(with, &rate);
		if (!r)
			r = reference(of, &after);
		if (r)
			break;
		*best = more(*best, more(before, after));
		if (last_chance || less(before, after) >= QUIET * *best) {
			rates[n] = rate;
			references[n] = (before + after) / 2;
			ratios[n] = rate / references[n];
			n++;
		}
		before = after;
	}
	if (r)
		return r;
	*ret = (struct bench_paired){
		.rate = bench_median(rates, n),
		.reference = bench_median(references, n),
		.ratio = bench_median(ratios, n),
		.disturbed = tries - n,
	};
	return 0;
}

int bench_way_once(void *context, double *gbps)
{
	struct bench_way *way = context;
	double took;
	int r = bench_copy(way->b, way->v, way->to_device, way->path, &took);

	*gbps = (double)way->v->bytes / 1e9 / took;
	return r;
}

int bench_ceiling_once(void *context, double *gbps)
{
	const struct bench_way *way = context;
	struct bench_gpu *b = way->b;
	uint64_t bytes = b->bytes < 1ull << 30 ? b->bytes : 1ull << 30, begin = clock_ns();
	const struct gpu_entry entry = {b->planes, (uintptr_t)b->host, bytes};

	if (lab_copy(b->lab, way->to_device, &entry, 1, false) || lab_finish(b->lab, way->to_device))
		return bench_gpu_complain("the largest copies");
	*gbps = (double)bytes / (double)(clock_ns() - begin);
	return 0;
}

int bench_ratio(struct bench_gpu *b, struct bench_values *v, bool to_device, int path, struct bench_paired *ret)
{
	struct bench_way way = {b, v, to_device, path};
	double warm;
	int r = bench_way_once(&way, &warm);

	return r ? r : bench_pairs(&b->ceiling[to_device], bench_ceiling_once, &way, bench_way_once, &way, ret);
}

int bench_ceiling(struct bench_gpu *b, bool to_device, double *ret)
{
	struct bench_way way = {.b = b, .to_device = to_device};
	double took[BENCH_GPU_TURNS];

	for (uint32_t i = 0; i < BENCH_GPU_TURNS; i++)
		if (bench_ceiling_once(&way, &took[i]))
			return 1;
	*ret = bench_median(took, BENCH_GPU_TURNS);
	b->ceiling[to_device] = more(b->ceiling[to_device], *ret);
	return 0;
}
