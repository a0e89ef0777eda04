/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays in a call buffer: from an offset and a count that a client sent to a pointer, or a sentence.
 */
#ifndef PREFIXFS_FS_SPAN_H
#define PREFIXFS_FS_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/why.h"

struct span {
	unsigned char *buffer; /* the whole call buffer */
	uint64_t bytes;
};

/* @count elements of @size bytes at @offset, which must be a multiple of 8 and lie wholly inside: EINVAL. *ret is
 * NULL for no elements, whatever the offset. @name names the argument in the sentence. */
int span_take(const struct span *span, const char *name, uint64_t offset, uint64_t count, uint32_t size, void **ret,
	      struct why *why);
/* Is @count from 1 to @limit? EINVAL for an empty batch, E2BIG over the limit. */
int span_check_count(const char *name, uint32_t count, uint32_t limit, struct why *why);

#endif
