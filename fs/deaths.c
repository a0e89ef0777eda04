/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/deaths.h"

enum deaths_verdict deaths_note(struct deaths *d, uint64_t now_ns, bool populating, unsigned limit)
{
	d->times[d->count++ % DEATHS_MAX] = now_ns;
	d->recent = 0;
	for (unsigned i = 0; i < DEATHS_MAX && i < d->count; i++)
		d->recent += now_ns - d->times[i] < DEATHS_WITHIN_S * 1000000000ull;
	d->populating = populating ? d->populating + 1 : 0;
	if (d->populating >= limit)
		return DEATHS_OF_MEMORY;
	return d->recent >= limit ? DEATHS_TOO_OFTEN : DEATHS_GO_ON;
}

void deaths_populated(struct deaths *d)
{
	d->populating = 0;
}

uint64_t deaths_pause_ms(struct deaths *d, uint64_t served_ns)
{
	d->quick = served_ns < DEATHS_LOOP_S * 1000000000ull ? d->quick + 1 : 0;
	return d->quick ? 100ull << (d->quick > 6 ? 5 : d->quick - 1) : 0;
}
