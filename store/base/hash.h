/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64, for checksums of payload and files. Never for keys: it can be crafted.
 */
#ifndef PREFIXFS_STORE_BASE_HASH_H
#define PREFIXFS_STORE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_64(const void *data, size_t size, uint64_t seed);

#endif
