/* SPDX-License-Identifier: Apache-2.0 */
#include "index/keymap.h"

#include <assert.h>
#include <errno.h>

#include "store/base/digest.h"
#include "store/base/memory.h"

int keymap_init(struct keymap *map, uint32_t max_count, const void *keys, size_t stride)
{
	uint64_t buckets = (uint64_t)max_count / KEYMAP_LOAD + 1;

	*map = (struct keymap){
		.keys = keys,
		.stride = stride,
		.bucket_count = (uint32_t)buckets,
		.max_count = max_count,
	};
	map->buckets = memory_reserve(buckets * sizeof(struct keymap_bucket), true);
	if (!map->buckets)
		return -ENOMEM;
	digest_random(map->secret, sizeof(map->secret));
	return 0;
}

void keymap_deinit(struct keymap *map)
{
	memory_release(&map->buckets, map->bucket_count * sizeof(struct keymap_bucket));
}

size_t keymap_memory_bytes(const struct keymap *map)
{
	size_t all = map->bucket_count * sizeof(struct keymap_bucket);
	size_t touched = (size_t)map->high * 4096;

	return touched < all ? touched : all;
}

uint32_t keymap_pass_on(struct keymap *map, uint32_t home)
{
	uint32_t b = home;

	while (!keymap_match(&map->buckets[b], 0))
		b = keymap_next_bucket(map, b);
	for (uint32_t p = home; p != b; p = keymap_next_bucket(map, p))
		map->buckets[p].passed_on++;
	return b;
}

/* Bucket and slot of @ref; false when it is not in the map. */
static bool keymap_locate(
	const struct keymap *map, uint64_t hash, uint32_t ref, uint32_t *ret_bucket, unsigned *ret_slot)
{
	uint8_t tag = keymap_tag(hash);
	uint32_t b = keymap_home(map, hash);

	for (uint32_t tries = map->bucket_count; tries; tries--) {
		const struct keymap_bucket *bucket = &map->buckets[b];

		for (uint32_t mask = keymap_match(bucket, tag); mask; mask &= mask - 1) {
			unsigned slot = (unsigned)__builtin_ctz(mask);

			if (bucket->ref[slot] == ref) {
				*ret_bucket = b;
				*ret_slot = slot;
				return true;
			}
		}
		if (!bucket->passed_on)
			break;
		b = keymap_next_bucket(map, b);
	}
	return false;
}

uint32_t *keymap_place(const struct keymap *map, uint64_t hash, uint32_t ref)
{
	uint32_t b;
	unsigned slot;

	return keymap_locate(map, hash, ref, &b, &slot) ? &map->buckets[b].ref[slot] : NULL;
}

void keymap_remove(struct keymap *map, uint64_t hash, uint32_t ref)
{
	uint32_t b = 0;
	unsigned slot = 0;
	bool there = keymap_locate(map, hash, ref, &b, &slot);

	assert(there);
	for (uint32_t p = keymap_home(map, hash); p != b; p = keymap_next_bucket(map, p)) {
		assert(map->buckets[p].passed_on > 0);
		map->buckets[p].passed_on--;
	}
	map->buckets[b].tag[slot] = 0;
	map->count--;
}
