/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/span.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

int span_take(const struct span *span, const char *name, uint64_t offset, uint64_t count, uint32_t size, void **ret,
	struct why *why)
{
	uint64_t bytes, end;

	if (count == 0) {
		*ret = NULL;
		return 0;
	}
	if (offset % 8)
		return why_set(why, EINVAL, "%s: %" PRIu64 " is not a multiple of 8", name, offset);
	if (__builtin_mul_overflow(count, (uint64_t)size, &bytes) || __builtin_add_overflow(offset, bytes, &end) ||
		end > span->bytes)
		return why_set(why, EINVAL,
			"%s: %" PRIu64 " elements of %u bytes at %" PRIu64 " do not fit the call buffer of %" PRIu64
			" bytes",
			name, count, size, offset, span->bytes);
	*ret = span->buffer + offset;
	return 0;
}

int span_check_count(const char *name, uint32_t count, uint32_t limit, struct why *why)
{
	if (count == 0)
		return why_set(why, EINVAL, "%s: the batch is empty", name);
	if (count > limit)
		return why_set(why, E2BIG, "%s: %u are over the limit of %u", name, count, limit);
	return 0;
}
