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

static void add_moments(struct bench_way *way, const struct pfs_gpu_op *op, uint64_t returned)
{
	for (int i = 0; i < OP_MOMENTS; i++)
		way->moments[i] += (double)(op->moments[i] - op->moments[OP_STARTED]) / 1e3;
	way->moments[OP_MOMENTS] += (double)(returned - op->moments[OP_STARTED]) / 1e3;
	way->count++;
}

int bench_way_once(void *context, double *gbps)
{
	struct bench_way *way = context;
	struct pfs_gpu_op *op = NULL;
	uint64_t begin = clock_ns(), end = begin;
	void *event;
	int r;

	way->v->copy.pool = &way->v->pool; /* it may have been moved */
	r = work_start(way->b->gpu, &way->v->copy, way->to_device, way->path, &op);
	if (!r && way->event) {
		r = pfs_gpu_event(op, 0, 60000, &event) || lab_spin(way->b->lab, event);
		end = clock_ns();
	}
	if (!r)
		r = pfs_gpu_wait(op, 60000);
	if (!way->event)
		end = clock_ns();
	if (!r)
		add_moments(way, op, end);
	pfs_gpu_end(&op);
	*gbps = (double)way->v->bytes / (double)(end - begin);
	return r ? bench_gpu_complain("copying") : 0;
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
	struct bench_way way = {.b = b, .v = v, .to_device = to_device, .path = path};
	double warm;
	int r = bench_way_once(&way, &warm);

	return r ? r : bench_pairs(&b->ceiling[to_device], bench_ceiling_once, &way, bench_way_once, &way, ret);
}

/* A line through copies of a quarter and of all: what it takes at any rate, and the rest over the ceiling. */
static int line(struct bench_way *way, const struct bench_paired *pairs, json_t *rest)
{
	struct bench_values *v = way->v;
	struct pfs_gpu_copy all = v->copy;
	uint64_t bytes = v->bytes;
	double rates[BENCH_GPU_TURNS], part, whole = (double)bytes / pairs->rate;
	int r = 0;

	if (all.count < 4)
		return 0;
	v->copy.count = all.count / 4;
	v->bytes = bytes / all.count * v->copy.count;
	for (uint32_t i = 0; i < BENCH_GPU_TURNS && !r; i++)
		r = bench_way_once(way, &rates[i]);
	if (!r) {
		double slope;

		part = (double)v->bytes / bench_median(rates, BENCH_GPU_TURNS);
		slope = (whole - part) / (double)(bytes - v->bytes);
		json_object_set_new(rest, "fixed_us", json_real((whole - slope * (double)bytes) / 1e3));
		json_object_set_new(rest, "inside_ratio", json_real(1 / slope / pairs->reference));
	}
	v->copy = all;
	v->bytes = bytes;
	return r;
}

int bench_times(struct bench_gpu *b, struct bench_values *v, bool to_device, const struct bench_paired *pairs, json_t *rest)
{
	static const char *const names[] = {NULL, "checked_us", "taken_us", "first_us", "submitted_us", "reached_us", "returned_us"};
	struct bench_way way = {.b = b, .v = v, .to_device = to_device, .path = bench_path(b)}, event = way;
	struct bench_paired until;
	double rate;
	int r = 0;

	for (uint32_t i = 0; i < BENCH_GPU_TURNS && !r; i++)
		r = bench_way_once(&way, &rate);
	for (int i = 1; i <= OP_MOMENTS && !r; i++)
		json_object_set_new(rest, names[i], json_real(way.moments[i] / way.count));
	event.event = true;
	if (!r)
		r = bench_pairs(&b->ceiling[to_device], bench_ceiling_once, &event, bench_way_once, &event, &until);
	if (!r)
		json_object_set_new(rest, "event_ratio", json_real(until.ratio));
	return r ? r : line(&way, pairs, rest);
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
