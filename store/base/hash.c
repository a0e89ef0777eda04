/* SPDX-License-Identifier: Apache-2.0
 *
 * This file is compiled several times (meson.build). With HASH_PATH it is one way of the function, for a CPU that may not be
 * the one it runs on, and has nothing else in it; without, it has the way that any CPU of this kind can go, and chooses.
 *
 * Inlined, because the packaged library is built for any CPU: a quarter as fast as AVX2 from cache, half from memory.
 */
#include "store/base/hash.h"

/* Bytes ahead of what is being read: 1 KiB, one block. Data that no cache has comes 5 % faster than with the 320 or 512 that
 * are usual, and 4 KiB are slower than none. */
#define XXH_PREFETCH_DIST 1024
#define XXH_INLINE_ALL
#include <xxhash.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#ifdef HASH_PATH

#define HASH_FUNCTION JOIN(hash_with_, HASH_PATH)

hash_function HASH_FUNCTION;

uint64_t HASH_FUNCTION(const void *data, size_t size, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, size, seed);
}

#else

#if XXH_VECTOR == XXH_SSE2
#define BASE_NAME "sse2"
#elif XXH_VECTOR == XXH_AVX2
#define BASE_NAME "avx2"
#elif XXH_VECTOR == XXH_AVX512
#define BASE_NAME "avx512"
#elif XXH_VECTOR == XXH_NEON
#define BASE_NAME "neon"
#else
#define BASE_NAME "plain"
#endif

hash_function hash_with_scalar, hash_with_avx2, hash_with_avx512;

static uint64_t hash_base(const void *data, size_t size, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, size, seed);
}

/* Written once, by choose(), when there is one thread. Until then what every CPU can do is right, too. */
static struct hash_path paths[4] = {{"scalar", hash_with_scalar}, {BASE_NAME, hash_base}};
static unsigned path_count = 2;
static hash_function *chosen = hash_base;

#ifdef HASH_HAVE_AVX
static void add(const char *name, hash_function *hash)
{
	paths[path_count++] = (struct hash_path){name, hash};
	chosen = hash;
}

__attribute__((constructor)) static void choose(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2"))
		add("avx2", hash_with_avx2);
	if (__builtin_cpu_supports("avx512f"))
		add("avx512", hash_with_avx512);
}
#endif

uint64_t hash_64(const void *data, size_t size, uint64_t seed)
{
	return chosen(data, size, seed);
}

const char *hash_path_name(void)
{
	return paths[path_count - 1].name;
}

const struct hash_path *hash_paths(unsigned *count)
{
	*count = path_count;
	return paths;
}

#endif
