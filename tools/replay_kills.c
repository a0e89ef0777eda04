/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay_kills.h"

#include <stdio.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/mix.h"

#define LATEST_NS 8000000u /* after the beginning of its request */

/* Anywhere in the middle half of the part of the work that the next one has. */
static void draw(struct replay_kills *k)
{
	uint64_t first = k->done * k->work / k->wanted, part = (k->done + 1) * k->work / k->wanted - first;

	k->random = mix64(k->random);
	k->next = first + part / 4 + k->random % (part / 2 + 1);
	k->due_ns = 0;
}

/* Somewhere in that request, or in one of those behind it. */
static bool is_due(struct replay_kills *k)
{
	if (!k->due_ns) {
		k->random = mix64(k->random);
		k->due_ns = clock_ns() + k->random % LATEST_NS;
	}
	return clock_ns() >= k->due_ns;
}

int replay_kills_start(struct replay_kills *k, const char *mount, uint64_t wanted, uint64_t seed, uint64_t work)
{
	char what[32];

	*k = (struct replay_kills){.wanted = wanted, .work = work, .random = seed};
	if (work < wanted)
		return complain("--kills is %llu, and the replay has %llu requests", (unsigned long long)wanted, (unsigned long long)work);
	snprintf(what, sizeof(what), "--kills %llu", (unsigned long long)wanted);
	if (victim_find(&k->victim, mount) || victim_endures(&k->victim, wanted, what))
		return 1;
	draw(k);
	return 0;
}

void replay_kills_look(struct replay_kills *k, uint64_t begun)
{
	int r;

	/* After a kill something has to be begun first: the next one serves. */
	if (k->done == k->wanted || k->error || begun <= k->next || begun <= k->begun || !is_due(k))
		return;
	r = victim_kill(&k->victim);
	if (r < 0) {
		k->error = -r;
		complain("process %d, which serves %s, could not be killed: %s", (int)victim_serving(&k->victim), k->victim.mount,
			strerror(-r));
	}
	if (r <= 0)
		return;
	k->begun = begun;
	if (++k->done < k->wanted)
		draw(k);
}
