/* SPDX-License-Identifier: Apache-2.0
 *
 * Latencies, counted in buckets 1.6 % wide.
 */
#ifndef PREFIXFS_TOOLS_LATENCY_H
#define PREFIXFS_TOOLS_LATENCY_H

#include <stdint.h>

#define LATENCY_STEPS 64u /* buckets for each doubling */
#define LATENCY_BUCKETS (LATENCY_STEPS * 40u)

struct latency {
	uint64_t count, sum_ns;
	uint32_t bucket[LATENCY_BUCKETS];
};

static inline uint32_t latency_bucket(uint64_t ns)
{
	uint32_t top, at;

	if (ns < LATENCY_STEPS)
		return (uint32_t)ns;
	top = 63u - (uint32_t)__builtin_clzll(ns);
	at = (top - 5) * LATENCY_STEPS + (uint32_t)(ns >> (top - 6)) - LATENCY_STEPS;
	return at < LATENCY_BUCKETS ? at : LATENCY_BUCKETS - 1;
}

/* The least of a bucket. */
static inline double latency_bucket_ns(uint32_t i)
{
	if (i < LATENCY_STEPS)
		return i;
	return (double)((uint64_t)(i % LATENCY_STEPS + LATENCY_STEPS) << (i / LATENCY_STEPS - 1));
}

static inline void latency_add(struct latency *l, uint64_t ns)
{
	l->count++;
	l->sum_ns += ns;
	l->bucket[latency_bucket(ns)]++;
}

static inline void latency_merge(struct latency *to, const struct latency *from)
{
	to->count += from->count;
	to->sum_ns += from->sum_ns;
	for (uint32_t i = 0; i < LATENCY_BUCKETS; i++)
		to->bucket[i] += from->bucket[i];
}

/* The @quantile (0..1) in microseconds, 0 when nothing was counted. */
static inline double latency_us(const struct latency *l, double quantile)
{
	uint64_t want = (uint64_t)(quantile * (double)(l->count ? l->count - 1 : 0)), seen = 0;

	for (uint32_t i = 0; i < LATENCY_BUCKETS && l->count; i++) {
		seen += l->bucket[i];
		if (seen > want) {
			if (i < LATENCY_STEPS)
				return i / 1000.0;
			return (double)((uint64_t)(i % LATENCY_STEPS + LATENCY_STEPS) << (i / LATENCY_STEPS - 1)) *
			       (1 + 0.5 / LATENCY_STEPS) / 1000.0;
		}
	}
	return 0;
}

#endif
