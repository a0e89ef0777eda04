/* SPDX-License-Identifier: Apache-2.0
 *
 * A map from keys to numbers of things that hold the key themselves.
 *
 * Buckets of one cache line hold twelve one-byte tags and twelve numbers; the key of a number is read where it lies
 * (keys + number x stride) and compared in full. A full bucket passes on to the next one and counts how many it has
 * passed on, so that removal leaves no marks and a miss ends at the first bucket that never passed anything on. The map
 * is sized at creation for its largest count and never grows: a bucket's memory is touched when it is first used.
 *
 * The hash multiplies the key's words with secret random words, so nobody outside can choose keys that collide. One
 * key may be in the map twice, as different `kinds`, which hash apart.
 */
#ifndef PREFIXFS_INDEX_KEYMAP_H
#define PREFIXFS_INDEX_KEYMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "index/mix.h"
#include "index/tables.h"

#define KEYMAP_SLOTS 12u
#define KEYMAP_LOAD 9u /* of them, filled on average when the map is full */
#define KEYMAP_NONE TABLES_NONE

struct keymap_bucket {
	uint8_t tag[KEYMAP_SLOTS]; /* 0 = empty */
	uint32_t passed_on;        /* keys that would be here or earlier and are later */
	uint32_t ref[KEYMAP_SLOTS];
};
_Static_assert(sizeof(struct keymap_bucket) == 64, "one cache line");

struct keymap {
	struct keymap_bucket *buckets;
	const char *keys; /* the key of number n lies at keys + n * stride */
	size_t stride;
	uint64_t secret[4];
	uint32_t bucket_count;
	uint32_t count, max_count;
	uint32_t high; /* largest count so far */
};

/* Room for @max_count numbers. 0 or -ENOMEM. */
int keymap_init(struct keymap *map, uint32_t max_count, const void *keys, size_t stride);
void keymap_deinit(struct keymap *map);
/* Bytes touched, estimated: buckets fill at random. */
size_t keymap_memory_bytes(const struct keymap *map);

/* The first bucket with room from full @home on; those before it pass a key on to it. There is one. */
uint32_t keymap_pass_on(struct keymap *map, uint32_t home);
/* Where @ref stands, to be overwritten with another number of the same key, or NULL. */
uint32_t *keymap_place(const struct keymap *map, uint64_t hash, uint32_t ref);
void keymap_remove(struct keymap *map, uint64_t hash, uint32_t ref); /* it is there */

static inline uint64_t keymap_hash(const struct keymap *map, const struct key *key)
{
	uint64_t a = mix_64(key->words[0] ^ map->secret[0], key->words[1] ^ map->secret[1]);
	uint64_t b = mix_64(key->words[2] ^ map->secret[2], key->words[3] ^ map->secret[3]);

	return a + (b << 29 | b >> 35);
}

static inline uint32_t keymap_home(const struct keymap *map, uint64_t hash)
{
	return (uint32_t)((hash >> 32) * map->bucket_count >> 32);
}

static inline uint8_t keymap_tag(uint64_t hash)
{
	uint8_t tag = (uint8_t)hash;

	return tag ? tag : 1;
}

static inline bool key_equal(const struct key *a, const struct key *b)
{
	return ((a->words[0] ^ b->words[0]) | (a->words[1] ^ b->words[1]) | (a->words[2] ^ b->words[2]) |
		       (a->words[3] ^ b->words[3])) == 0;
}

static inline const struct key *keymap_key(const struct keymap *map, uint32_t ref)
{
	return (const struct key *)(const void *)(map->keys + (size_t)ref * map->stride);
}

/* Bit i: slot i of @bucket has @tag. The plain twin of keymap_match. */
static inline uint32_t keymap_match_plain(const struct keymap_bucket *bucket, uint8_t tag)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < KEYMAP_SLOTS; i++)
		mask |= (uint32_t)(bucket->tag[i] == tag) << i;
	return mask;
}

static inline uint32_t keymap_match(const struct keymap_bucket *bucket, uint8_t tag)
{
#ifdef __SSE2__
	__m128i tags = _mm_load_si128((const __m128i *)(const void *)bucket);
	uint32_t mask = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag)));

	return mask & ((1u << KEYMAP_SLOTS) - 1);
#else
	return keymap_match_plain(bucket, tag);
#endif
}

static inline uint32_t keymap_next_bucket(const struct keymap *map, uint32_t bucket)
{
	return bucket + 1 == map->bucket_count ? 0 : bucket + 1;
}

/* @ref's key hashes to @hash and is not there yet in this kind. False: every bucket is full. */
static inline bool keymap_insert(struct keymap *map, uint64_t hash, uint32_t ref)
{
	uint32_t b = keymap_home(map, hash);
	uint32_t free_slots = keymap_match(&map->buckets[b], 0);

	if (map->count >= map->bucket_count * (uint64_t)KEYMAP_SLOTS)
		return false;
	if (__builtin_expect(!free_slots, 0)) {
		b = keymap_pass_on(map, b);
		free_slots = keymap_match(&map->buckets[b], 0);
	}

	unsigned slot = (unsigned)__builtin_ctz(free_slots);

	map->buckets[b].tag[slot] = keymap_tag(hash);
	map->buckets[b].ref[slot] = ref;
	map->count++;
	if (map->count > map->high)
		map->high = map->count;
	return true;
}

/* The number with @key for which @fits(context, number) holds, or KEYMAP_NONE. */
static inline __attribute__((always_inline)) uint32_t keymap_find(const struct keymap *map, uint64_t hash,
	const struct key *key, bool (*fits)(const void *context, uint32_t ref), const void *context)
{
	uint8_t tag = keymap_tag(hash);
	uint32_t b = keymap_home(map, hash);

	for (uint32_t tries = map->bucket_count; tries; tries--) {
		const struct keymap_bucket *bucket = &map->buckets[b];

		for (uint32_t mask = keymap_match(bucket, tag); mask; mask &= mask - 1) {
			uint32_t ref = bucket->ref[__builtin_ctz(mask)];

			if (key_equal(keymap_key(map, ref), key) && (!fits || fits(context, ref)))
				return ref;
		}
		if (!bucket->passed_on)
			break;
		b = keymap_next_bucket(map, b);
	}
	return KEYMAP_NONE;
}

#endif
