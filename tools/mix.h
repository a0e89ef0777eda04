/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixing numbers into keys: quick, well spread, and no protection against anybody.
 */
#ifndef PREFIXFS_TOOLS_MIX_H
#define PREFIXFS_TOOLS_MIX_H

#include <string.h>

#include "fs/client/prefixfs.h"

static inline uint64_t mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* The key of the block @id of the session @salt after @parent, NULL at the beginning. @ret may not be @parent. */
static inline void mix_key(const struct pfs_key *parent, uint64_t salt, uint64_t id, struct pfs_key *ret)
{
	uint64_t words[4] = {1, 2, 3, 4}, h;

	if (parent)
		memcpy(words, parent->bytes, sizeof(words));
	h = mix64(words[0] ^ mix64(salt ^ mix64(id)));
	for (unsigned i = 0; i < 4; i++)
		words[i] = mix64(words[i] + h * (2 * i + 1));
	memcpy(ret->bytes, words, sizeof(words));
}

#endif
