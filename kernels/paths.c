/* SPDX-License-Identifier: Apache-2.0
 *
 * The table: GB/s by path, direction and size of what the path copies at a time. An H200 on PCIe 5 x16; docs/gpu.md has the
 * measurements. Between two columns the lower one is taken.
 */
#include "kernels/paths.h"

#define SIZES 11u
static const uint64_t sizes[SIZES] = {0, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576, 4194304};

/* An entry of a batched copy has so many bytes. */
static const double batched_to_device[SIZES] = {0.5, 2.1, 6.2, 17, 26.6, 42.5, 53.8, 53.8, 53.8, 54.2, 54.5};
static const double batched_to_host[SIZES] = {0.6, 2.5, 10.4, 11, 37.6, 52.2, 53.8, 54.2, 54.5, 54.7, 54.7};
/* A piece that a kernel moves between ring and planes has so many: the whole path, copies of long stretches included. */
static const double staged_to_device[SIZES] = {10, 52.8, 54.1, 54.3, 54.4, 54.4, 54.4, 54.4, 54.4, 54.4, 54.4};
static const double staged_to_host[SIZES] = {10, 53.5, 54.2, 54.2, 54.2, 54.2, 54.2, 54.2, 54.2, 54.2, 54.2};
/* A piece that a kernel moves across the bus. */
static const double bulk_to_device[SIZES] = {0, 29, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7};
static const double bulk_to_host[SIZES] = {0, 38.5, 51.7, 51.7, 51.7, 51.7, 51.7, 51.7, 51.7, 51.7, 51.7};
static const double direct_to_device[SIZES] = {10, 47.2, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7, 50.7};
static const double direct_to_host[SIZES] = {10, 49, 51.9, 51.9, 51.9, 51.9, 51.9, 51.9, 51.9, 51.9, 51.9};

/* Entries of 4 MiB and more are as plain copies: nothing is gained by the ring, whose bytes cross the device's memory twice more. */

/* What a GB/s of a path costs the rest of the device, by the slowing of a memory-bound loop beside it: the share of its rate that
 * counts, [to_device]. The bulk kernel needs few blocks, the direct one all of them. Somebody who waits does not care. */
static const double weight[2][PATHS] = {
	{[PATH_STAGED] = 1, [PATH_BULK] = 0.44, [PATH_DIRECT] = 0.24, [PATH_BATCHED] = 1},
	{[PATH_STAGED] = 1, [PATH_BULK] = 0.82, [PATH_DIRECT] = 0.39, [PATH_BATCHED] = 1},
};
/* Copies that pass the ring begin to arrive later, by two submissions. */
static const double weight_urgent[PATHS] = {[PATH_STAGED] = 0.5, [PATH_BULK] = 1, [PATH_DIRECT] = 0.95, [PATH_BATCHED] = 0.9};

const char *path_name(enum gpu_path path)
{
	static const char *const names[PATHS] = {
		[PATH_STAGED] = "staged", [PATH_BULK] = "bulk", [PATH_DIRECT] = "direct", [PATH_BATCHED] = "batched"};

	return names[path];
}

static double at(const double *rates, uint64_t bytes)
{
	uint32_t i = SIZES - 1;

	while (i > 0 && sizes[i] > bytes)
		i--;
	return rates[i];
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

double path_rate(enum gpu_path path, const struct path_question *q)
{
	uint64_t piece = q->measure.bytes / q->measure.pieces, stretch = q->measure.bytes / q->measure.stretches;
	double unaligned = q->measure.aligned ? 1 : 0.5;

	switch (path) {
	case PATH_STAGED:
		if (!q->stages)
			return 0;
		return q->to_device ? least(at(staged_to_device, piece) * unaligned, at(batched_to_device, stretch)) :
				      least(at(staged_to_host, piece) * unaligned, at(batched_to_host, stretch));
	case PATH_BULK:
		if (!q->bulk || !q->measure.aligned)
			return 0;
		return at(q->to_device ? bulk_to_device : bulk_to_host, piece);
	case PATH_DIRECT:
		return at(q->to_device ? direct_to_device : direct_to_host, piece) * unaligned;
	case PATH_BATCHED:
		return at(q->to_device ? batched_to_device : batched_to_host, piece);
	case PATHS:
		break;
	}
	return 0;
}

enum gpu_path path_choose(const struct path_question *q)
{
	const double *weights = q->urgent ? weight_urgent : weight[q->to_device];
	enum gpu_path best = PATH_DIRECT;
	double most = 0;

	for (int path = 0; path < PATHS; path++) {
		double rate = path_rate((enum gpu_path)path, q) * weights[path];

		if (rate >= most) { /* of equals the last: batched copies cost the device least */
			most = rate;
			best = (enum gpu_path)path;
		}
	}
	return best;
}
