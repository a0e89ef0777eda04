/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys from an engine's own names. The one file of libprefixfs that needs libsodium.
 */
#include <errno.h>
#include <sodium/crypto_generichash_blake2b.h>

#include "fs/client/client.h"

int pfs_key_from_bytes(const void *data, size_t bytes, struct pfs_key *ret)
{
	if (!ret || (!data && bytes > 0))
		return say(EINVAL, "pfs_key_from_bytes: %s is NULL", ret ? "data" : "ret");
	if (crypto_generichash_blake2b(ret->bytes, sizeof(ret->bytes), data, bytes, NULL, 0))
		return say(EINVAL, "pfs_key_from_bytes: BLAKE2b refused %zu bytes", bytes);
	return 0;
}
