/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains of pages to measure with: put without touching their values.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/host.h"
#include "tools/mix.h"

#define ROOM_TRIES 400u
#define ROOM_WAIT_MS 100u

int bench_chains_open(struct bench_chains *c, const struct bench_daemon *daemon, const char *ns, uint32_t record_pages)
{
	struct pfs_options options;

	*c = (struct bench_chains){.record_pages = record_pages, .random = record_pages};
	pfs_options_init(&options);
	options.rank = 0;
	options.wait_prewarm = 1;
	options.call_buffer_bytes = 64ull << 20; /* many plans are open at once while memory is warmed */
	if (host_path(c->path, "%s/ns/%s", daemon->mount, ns))
		return 1;
	return pfs_open(c->path, &options, &c->session) ? complain_client(c->path) : 0;
}

void bench_chains_close(struct bench_chains *c)
{
	pfs_close(&c->session);
}

uint64_t bench_dice(struct bench_chains *c, uint64_t sides)
{
	c->random = mix64(c->random);
	return c->random % sides;
}

void bench_chain_keys(uint64_t chain, uint32_t first, uint32_t count, struct pfs_key *keys)
{
	for (uint32_t i = 0; i < count; i++)
		mix_key(NULL, chain, first + i, &keys[i]);
}

void bench_put_request(const struct bench_chains *c, const struct pfs_key *keys, const struct pfs_key *before,
	uint32_t first, uint32_t count, struct pfs_put_group *groups, struct pfs_put_request *ret)
{
	struct pfs_put_request q = {.groups = groups, .keys = keys, .key_count = count, .class_mask = 1};

	for (uint32_t at = 0; at < count;) {
		uint32_t n = count - at < c->record_pages ? count - at : c->record_pages;
		struct pfs_put_group *g = &groups[q.group_count++];

		*g = (struct pfs_put_group){
			.consumed = (uint64_t)(first + at + n) * BENCH_TOKENS,
			.keys = n,
			.class_mask = 1,
			.flags = first + at == 0 ? PFS_GROUP_ROOT : 0,
		};
		if (at > 0)
			g->parent = keys[at - 1];
		else if (before)
			g->parent = *before;
		at += n;
	}
	*ret = q;
}

int bench_put_start(struct bench_chains *c, const struct pfs_key *keys, const struct pfs_key *before, uint32_t first,
	uint32_t count, struct pfs_put_result *ret)
{
	struct pfs_put_group groups[BENCH_BATCH];
	struct pfs_put_request q;

	bench_put_request(c, keys, before, first, count, groups, &q);
	return pfs_put_start(c->session, &q, ret);
}

/* One chain, again and again until all of it has room. */
static int put_chain(struct bench_chains *c, uint64_t chain)
{
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_put_result put;

	bench_chain_keys(chain, 0, BENCH_BATCH, keys);
	for (unsigned turn = 0; turn < ROOM_TRIES; turn++) {
		uint32_t groups = (BENCH_BATCH + c->record_pages - 1) / c->record_pages;

		if (bench_put_start(c, keys, NULL, 0, BENCH_BATCH, &put))
			return complain_client("put_start");
		if (pfs_put_commit(c->session, put.plan, 0, 0, NULL, NULL))
			return complain_client("put_commit");
		if (put.groups_ok == groups)
			return 0;
		c->noroom += groups - put.groups_ok;
		pfs_news(c->session, ROOM_WAIT_MS);
	}
	return complain("chain %llu got no room in %u tries: the memory of the daemon is too small",
		(unsigned long long)chain, ROOM_TRIES);
}

int bench_fill(struct bench_chains *c, uint64_t how_many, const char *what)
{
	struct progress progress;
	int r = 0;

	progress_start(&progress, what, how_many);
	for (uint64_t i = 0; i < how_many && !r; i++) {
		r = put_chain(c, c->count);
		if (!r)
			c->count++;
		progress_show(&progress, i);
	}
	progress_end(&progress);
	return r;
}
