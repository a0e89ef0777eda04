/* SPDX-License-Identifier: Apache-2.0
 *
 * BLAKE2b, for names: keys made from longer texts, identities, fingerprints. Safe from any thread.
 */
#ifndef PREFIXFS_STORE_BASE_DIGEST_H
#define PREFIXFS_STORE_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

void digest_256(const void *data, size_t size, uint8_t ret[32]);
void digest_128(const void *data, size_t size, uint8_t ret[16]);

/* Bytes that nobody can guess. */
void digest_random(void *ret, size_t size);

#endif
