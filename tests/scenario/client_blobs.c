/* SPDX-License-Identifier: Apache-2.0
 *
 * client_blobs NAMESPACE: blobs through libprefixfs, with a call buffer that they do not fit. Exits with 0, or says what was not
 * so.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/prefixfs.h"

#define LENGTH ((1u << 20) + 12345)

#define MUST(condition)                                                                                            \
	do {                                                                                                       \
		if (!(condition)) {                                                                                \
			char why[512];                                                                             \
			pfs_last_error(why, sizeof(why));                                                          \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, why);                           \
			exit(1);                                                                                   \
		}                                                                                                  \
	} while (0)

static struct pfs_session *opened(const char *at, uint32_t read_only)
{
	struct pfs_options options;
	struct pfs_session *s;

	pfs_options_init(&options);
	options.call_buffer_bytes = 256 << 10;
	options.read_only = read_only;
	MUST(!pfs_open(at, &options, &s));
	return s;
}

static void storing(struct pfs_session *s, const uint8_t *data)
{
	uint8_t *got = malloc(LENGTH + 1);
	struct pfs_blob_info info;
	struct pfs_key key;

	MUST(pfs_blob_get(s, NULL, "a/b", NULL, 0, NULL) == -ENOENT);
	MUST(!pfs_blob_put(s, NULL, "a/b", data, LENGTH, 3, 0));
	MUST(!pfs_blob_get(s, NULL, "a/b", NULL, 0, &info) && info.length == LENGTH && info.kind == 3);
	MUST(!pfs_key_from_bytes("a/b", 3, &key));
	MUST(!pfs_blob_get(s, &key, NULL, got, LENGTH + 1, &info) && info.length == LENGTH && !memcmp(got, data, LENGTH));
	MUST(pfs_blob_get(s, &key, NULL, got, LENGTH - 1, &info) == -EMSGSIZE && info.length == LENGTH);
	MUST(pfs_blob_get(s, &key, NULL, got, 10, &info) == -EMSGSIZE && info.length == LENGTH);
	MUST(pfs_blob_put(s, &key, NULL, data, 5, 0, PFS_BLOB_EXCLUSIVE) == -EEXIST);
	MUST(pfs_blob_put(s, &key, NULL, data, LENGTH, 0, PFS_BLOB_EXCLUSIVE) == -EEXIST);
	MUST(!pfs_blob_put(s, &key, NULL, data, 5, 0, 0));
	MUST(!pfs_blob_get(s, NULL, "a/b", got, 10, &info) && info.length == 5 && !memcmp(got, data, 5));
	MUST(!pfs_blob_put(s, NULL, "empty", NULL, 0, 0, 0));
	MUST(!pfs_blob_get(s, NULL, "empty", got, 10, &info) && info.length == 0);
	MUST(!pfs_blob_remove(s, NULL, "empty") && pfs_blob_remove(s, NULL, "empty") == -ENOENT);
	MUST(pfs_blob_put(s, NULL, NULL, data, 5, 0, 0) == -EINVAL && pfs_blob_put(s, NULL, "", data, 5, 0, 0) == -EINVAL);
	MUST(pfs_blob_put(s, NULL, "big", data, 1ull << 40, 0, 0) == -EFBIG);
	free(got);
}

static void locking(struct pfs_session *s, struct pfs_session *other)
{
	struct pfs_blob_info info;
	struct pfs_key key = {{1}};

	MUST(pfs_blob_lock(s, &key, NULL, 0, 0, 0, NULL) == PFS_BLOB_LOCKED);
	MUST(pfs_blob_lock(other, &key, NULL, 0, 0, PFS_CALL_NONBLOCK, NULL) == -EAGAIN);
	MUST(pfs_blob_lock(other, &key, NULL, 0, 20, 0, NULL) == -ETIMEDOUT);
	MUST(!pfs_blob_unlock(s, &key, NULL) && pfs_blob_unlock(s, &key, NULL) == -ENOENT);
	MUST(pfs_blob_lock(other, &key, NULL, 0, 0, 0, NULL) == PFS_BLOB_LOCKED);
	MUST(!pfs_blob_put(other, &key, NULL, "tensors", 7, 2, 0));
	MUST(pfs_blob_lock(s, &key, NULL, 0, 0, 0, &info) == PFS_BLOB_FOUND && info.length == 7 && info.kind == 2);
	MUST(!pfs_reset(s, NULL) && pfs_blob_get(s, &key, NULL, NULL, 0, NULL) == -ENOENT);
}

int main(int argc, char **argv)
{
	uint8_t *data = malloc(LENGTH);
	struct pfs_session *s, *other, *reader;
	struct pfs_session_info info;

	if (argc != 2)
		return 2;
	for (unsigned i = 0; i < LENGTH; i++)
		data[i] = (uint8_t)(i * 2654435761u >> 24);
	s = opened(argv[1], 0);
	other = opened(argv[1], 0);
	reader = opened(argv[1], 1);
	storing(s, data);
	MUST(!pfs_blob_get(reader, NULL, "a/b", data, LENGTH, NULL));
	MUST(pfs_blob_put(reader, NULL, "a/b", data, 1, 0, 0) == -EROFS && pfs_blob_remove(reader, NULL, "a/b") == -EROFS);
	locking(s, other);
	MUST(!pfs_info(s, &info) && info.reattached == 0);
	pfs_close(&reader);
	pfs_close(&other);
	pfs_close(&s);
	free(data);
	return 0;
}
