/* SPDX-License-Identifier: Apache-2.0 */
#include "store/fills.h"

#include <stddef.h>

int fills_new(struct space *space, struct fills **ret, struct why *why)
{
	*ret = NULL;
	return 0;
}

void fills_free(struct fills **fills)
{
	*fills = NULL;
}

void fills_note(struct fills *fills, uint32_t record)
{
}

bool fills_has(const struct fills *fills, uint32_t record)
{
	return false;
}

void fills_abandon(struct fills *fills, const uint32_t *records, const uint16_t *pages, uint32_t count)
{
}

void fills_run(struct fills *fills, uint64_t now_ns)
{
}

bool fills_sweep(struct fills *fills)
{
	return false;
}

uint64_t fills_abandoned(const struct fills *fills)
{
	return 0;
}

uint32_t fills_count(const struct fills *fills)
{
	return 0;
}
