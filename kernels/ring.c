/* SPDX-License-Identifier: Apache-2.0
 *
 * Ring windows: where frames lie. Neighbouring frames get neighbouring page ids, which the copies merge into runs.
 */
#include <errno.h>

#include "kernels/prefixfs_gpu.h"
#include "kernels/say.h"

typedef unsigned long long ull;

int pfs_gpu_ring_pages(const struct pfs_gpu_ring *ring, uint64_t first, uint32_t count, uint32_t *pages)
{
	uint64_t last, rolling;

	if (!ring || !pages || ring->sink >= ring->capacity)
		return gpu_say(EINVAL, "a ring of %u frames cannot have a sink of %u", ring ? ring->capacity : 0,
			ring ? ring->sink : 0);
	if (__builtin_add_overflow(first, (uint64_t)count, &last))
		return gpu_say(ERANGE, "%u frames from %llu on end behind the last number", count, (ull)first);
	rolling = ring->capacity - ring->sink;
	if (count > ring->capacity || (last > ring->sink && last - (first > ring->sink ? first : ring->sink) > rolling))
		return gpu_say(ERANGE, "%u frames from %llu on, and the ring holds %llu behind its sink of %u at once", count,
			(ull)first, (ull)rolling, ring->sink);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t f = first + i;

		pages[i] = f < ring->sink ? (uint32_t)f : (uint32_t)(ring->sink + ((f - ring->sink) % rolling + ring->roll % rolling) % rolling);
	}
	return 0;
}
