/* SPDX-License-Identifier: Apache-2.0
 *
 * The two clocks: monotonic nanoseconds for deadlines and durations, wall-clock seconds for what people read.
 */
#ifndef PREFIXFS_STORE_BASE_CLOCK_H
#define PREFIXFS_STORE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_wall_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec;
}

/* The same, up to some milliseconds late and several times cheaper. */
static inline uint32_t clock_wall_coarse_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME_COARSE, &t);
	return (uint32_t)t.tv_sec;
}

#endif
