/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/digest.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t digest_once = PTHREAD_ONCE_INIT;

static void digest_init(void)
{
	if (sodium_init() < 0) {
		fprintf(stderr, "digest: libsodium cannot start\n");
		abort();
	}
}

static void digest(const void *data, size_t size, uint8_t *ret, size_t ret_size)
{
	pthread_once(&digest_once, digest_init);
	if (crypto_generichash(ret, ret_size, data, size, NULL, 0)) {
		fprintf(stderr, "digest: BLAKE2b refused %zu bytes\n", size);
		abort();
	}
}

void digest_256(const void *data, size_t size, uint8_t ret[32])
{
	digest(data, size, ret, 32);
}

void digest_128(const void *data, size_t size, uint8_t ret[16])
{
	digest(data, size, ret, 16);
}

void digest_random(void *ret, size_t size)
{
	pthread_once(&digest_once, digest_init);
	randombytes_buf(ret, size);
}
