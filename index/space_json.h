/* SPDX-License-Identifier: Apache-2.0
 *
 * namespace.json: what a namespace with a disk tier is made from again after a restart (docs/on-disk-format.md).
 */
#ifndef PREFIXFS_INDEX_SPACE_JSON_H
#define PREFIXFS_INDEX_SPACE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "store/base/why.h"

#define SPACE_JSON_VERSION 1
#define SPACE_JSON_MOST (256u << 10) /* bytes of the text */
#define SPACE_JSON_NAME 65u

struct space_json {
	char name[SPACE_JSON_NAME];
	uint32_t mode, uid, gid;
	uint64_t floor_bytes; /* that it was promised, chosen or the layout's own; 0: it is not known */
	uint64_t generation;  /* files of older ones are not served; 1 where the text does not say */
	char *layout; /* its JSON text, NUL-terminated; of space_json_read: the caller's, to be freed */
};

/* The text, to be freed, NUL-terminated; NULL: no memory. Safe from any thread. */
char *space_json_make(const struct space_json *space);
/* EINVAL with what is wrong; ENOTSUP: a newer version; ENOMEM. The name is not judged. */
int space_json_read(const char *text, size_t bytes, struct space_json *ret, struct why *why);

#endif
