/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64, for checksums of payload and files. Never for keys: it can be crafted.
 *
 * The same function in several ways, one of which this CPU is fastest with: chosen before main(), once. All of it from any
 * thread; nothing blocks.
 */
#ifndef PREFIXFS_STORE_BASE_HASH_H
#define PREFIXFS_STORE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t hash_function(const void *data, size_t size, uint64_t seed);

struct hash_path {
	const char *name;    /* "scalar", "sse2", "avx2", "avx512", "neon", "plain" */
	hash_function *hash; /* answers what hash_64 does */
};

/* Of @size bytes at any alignment. Seed 0 is what xxhsum -H3 prints. */
uint64_t hash_64(const void *data, size_t size, uint64_t seed);

/* Name of the way that hash_64 takes. */
const char *hash_path_name(void);
/* Those that this CPU has, the plain one first, the chosen one last. */
const struct hash_path *hash_paths(unsigned *count);

#endif
