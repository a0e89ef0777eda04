/* SPDX-License-Identifier: Apache-2.0
 *
 * Eight xorshift generators side by side, seeded from the key: a compiler turns them into whatever vectors there are.
 */
#include "tools/value_bytes.h"

#include "tools/mix.h"

typedef uint64_t lanes __attribute__((vector_size(64), aligned(16), may_alias));

#define LANES (sizeof(lanes) / sizeof(uint64_t))

static void seed(const struct pfs_key *key, uint32_t class_index, uint32_t share, lanes *ret)
{
	uint64_t words[4], base = mix64((uint64_t)class_index << 32 | share);

	memcpy(words, key->bytes, sizeof(words));
	for (unsigned i = 0; i < LANES; i++)
		(*ret)[i] = mix64(words[i % 4] ^ mix64(base + i)) | 1; /* never 0, which would stay 0 */
}

#define STEP(x) \
	do { \
		(x) ^= (x) << 13; \
		(x) ^= (x) >> 7; \
		(x) ^= (x) << 17; \
	} while (0)

void value_bytes_fill(const struct pfs_key *key, uint32_t class_index, uint32_t share, void *to, size_t bytes)
{
	lanes x, *at = to;
	size_t whole = bytes / sizeof(x);

	seed(key, class_index, share, &x);
	for (size_t i = 0; i < whole; i++) {
		STEP(x);
		at[i] = x;
	}
	STEP(x);
	memcpy(at + whole, &x, bytes % sizeof(x));
}

bool value_bytes_match(const struct pfs_key *key, uint32_t class_index, uint32_t share, const void *at, size_t bytes)
{
	const lanes *from = at;
	size_t whole = bytes / sizeof(lanes);
	lanes x, wrong = {0};
	uint64_t any = 0;

	seed(key, class_index, share, &x);
	for (size_t i = 0; i < whole; i++) {
		STEP(x);
		wrong |= x ^ from[i];
	}
	for (unsigned i = 0; i < LANES; i++)
		any |= wrong[i];
	STEP(x);
	return any == 0 && !memcmp(from + whole, &x, bytes % sizeof(x));
}
