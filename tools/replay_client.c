/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/replay_work.h"

/* ---- turns ------------------------------------------------------------------------------------------------------ */

static void await_turn(struct replay_shared *shared, uint32_t number)
{
	uint32_t now;

	while ((now = atomic_load(&shared->turn)) != number && !atomic_load(&shared->stop)) {
		const struct timespec limit = {.tv_nsec = 100000000};

		syscall(SYS_futex, &shared->turn, FUTEX_WAIT, now, &limit, NULL, 0);
	}
}

static void pass_turn(struct replay_shared *shared)
{
	atomic_fetch_add(&shared->turn, 1);
	syscall(SYS_futex, &shared->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* What a request added to the counts of before it, of all processes of the client. */
static void add_up(const struct work *w, struct replay_sample *to)
{
	*to = (struct replay_sample){.end_ns = clock_ns() - w->client->shared->begin_ns, .hits = (uint32_t)w->counts->hits};
	for (uint32_t i = 0; i < w->client->processes; i++) {
		to->bytes_put += w->counts[i].bytes_put;
		to->bytes_got += w->counts[i].bytes_got;
		to->noroom += (uint32_t)w->counts[i].noroom_groups;
	}
}

static void note(const struct work *w, struct replay_sample *to, const struct replay_sample *before)
{
	add_up(w, to);
	to->bytes_put -= before->bytes_put;
	to->bytes_got -= before->bytes_got;
	to->hits -= before->hits;
	to->noroom -= before->noroom;
}

/* All ranks of this process, one after the other, or those of the team together. */
static int get_all(struct work *w, struct team *team, uint32_t number, const struct pfs_key *keys, uint32_t pages, uint32_t *first,
	uint32_t *hit)
{
	struct found found = {0};
	int r = 0;

	*first = UINT32_MAX;
	*hit = 0;
	if (team)
		r = team_get(team, w, number, keys, pages, &found);
	*first = team ? found.have : *first;
	*hit = found.hit;
	for (uint32_t i = 0; i < w->rank_count && !r && !team; i++) {
		r = work_get(w, &w->ranks[i], keys, pages, NULL, &found);
		*first = found.have < *first ? found.have : *first;
		*hit = i == 0 ? found.hit : *hit;
	}
	return r;
}

static int put_all(struct work *w, struct team *team, uint32_t number, const struct pfs_key *keys, uint32_t pages, uint32_t first)
{
	int r = 0;

	if (team)
		return team_put(team, w, number, first);
	for (uint32_t i = 0; i < w->rank_count && !r; i++)
		r = work_put(w, &w->ranks[i], keys, first, pages - first, NULL);
	return r;
}

static int one_request(struct work *w, struct team *team, uint32_t number, const struct pfs_key *keys, uint32_t pages)
{
	enum replay_order order = w->client->options->order;
	struct replay_shared *shared = w->client->shared;
	struct replay_sample before;
	uint32_t first = 0, hit = 0;
	bool killed;
	int r = 0;

	add_up(w, &before);
	if (order != ORDER_FREE)
		await_turn(shared, number);
	atomic_fetch_add_explicit(&shared->begun, 1, memory_order_relaxed);
	w->answered_ns = clock_ns();
	killed = atomic_load_explicit(&shared->kills, memory_order_relaxed) > 0;
	if (pages > 0) {
		r = get_all(w, team, number, keys, pages, &first, &hit);
		w->counts->references += pages;
		w->counts->hits += hit;
		w->counts->references_killed += killed ? pages : 0;
		w->counts->hits_killed += killed ? hit : 0;
	}
	if (order == ORDER_LOOKUPS)
		pass_turn(shared);
	if (!r && pages > 0)
		r = put_all(w, team, number, keys, pages, first);
	if (order == ORDER_STRICT)
		pass_turn(shared);
	w->counts->requests++;
	if (shared->samples)
		note(w, &shared->samples[number], &before);
	return r;
}

/* ---- a client --------------------------------------------------------------------------------------------------- */

static int work_through(struct work *w, struct team *team)
{
	const struct trace *trace = w->client->trace;
	struct chain *chains = chains_new(trace);
	struct progress progress;
	int r = chains ? 0 : work_stop(w, "no memory for the keys");

	progress_start(&progress, "replaying", trace->count);
	progress.wanted &= w->client->number == 0;
	for (size_t i = 0; i < trace->count && !r && !atomic_load(&w->client->shared->stop); i++) {
		const struct pfs_key *keys = chains_advance(chains, trace, i);

		if (!keys && trace->requests[i].pages > 0)
			r = work_stop(w, "no memory for the keys");
		else if (i % w->client->options->clients == w->client->number)
			r = one_request(w, team, (uint32_t)i, keys, trace->requests[i].pages);
		progress_show(&progress, i);
	}
	progress_end(&progress);
	chains_free(chains, trace);
	return r;
}

/* Sessions of all ranks, or with a team, whose processes have them, one that only asks. */
static int open_sessions(struct work *w, const struct team *team)
{
	uint32_t world = team ? 1 : (uint32_t)w->client->layout->world;
	int r = 0;

	for (; w->rank_count < world && !r; w->rank_count++)
		r = work_open(w, team ? PFS_RANK_NONE : w->rank_count, &w->ranks[w->rank_count]);
	return r;
}

int replay_client_run(struct replay_client *client)
{
	struct team *team = NULL;
	struct work *w;
	int r = client->processes > 1 && team_start(client, &team) ? 1 : 0; /* before there are sessions, which survive no fork */

	if (!r)
		r = work_new(client, client->counts, &w);
	else
		w = NULL;
	if (!r)
		r = open_sessions(w, team);
	if (!r)
		r = work_through(w, team);
	if (r)
		atomic_store(&client->shared->stop, 1);
	team_end(&team);
	work_free(&w);
	return r;
}
