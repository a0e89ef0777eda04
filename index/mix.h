/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of a hash over words: the product of two words, folded. It spreads every input bit; whether it can be
 * steered from outside depends on whether the other word is secret (keymap.h) or not (the checks of tables.h, which
 * find torn stores, not forgeries).
 */
#ifndef PREFIXFS_INDEX_MIX_H
#define PREFIXFS_INDEX_MIX_H

#include <stdint.h>

static inline uint64_t mix_64(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
