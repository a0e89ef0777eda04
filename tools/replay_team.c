/* SPDX-License-Identifier: Apache-2.0
 *
 * One process a rank, as engines run: each has its session and its own way through the trace, and is told by the client, which asks
 * as a scheduler does, what comes next. What ranks know of each other they know through the daemon alone, by tickets.
 */
#include "tools/replay_work.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/mix.h"

enum order { ORDER_GET = 1, ORDER_PUT };

/* To a rank. */
struct told {
	uint32_t order;
	uint32_t number; /* of the request: those before it were passed */
	uint32_t first;  /* of a put: pages before it are there */
	uint32_t ticketed;
	uint8_t ticket[PFS_TICKET_BYTES];
};

/* From a rank. */
struct said {
	int32_t error; /* 1: its counts say which */
	struct found found;
};

struct team {
	struct replay_client *client;
	uint32_t ranks;
	uint64_t salt; /* of tickets */
	pid_t pids[REPLAY_RANKS];
	int wires[REPLAY_RANKS];
};

/* ---- a rank's process -------------------------------------------------------------------------------------------- */

/* Goes on to request @number; NULL: no memory. */
static const struct pfs_key *advance(struct chain *chains, const struct trace *trace, size_t *at, uint32_t number)
{
	const struct pfs_key *keys = NULL;

	for (; *at <= number; ++*at) {
		keys = chains_advance(chains, trace, *at);
		if (!keys && trace->requests[*at].pages > 0)
			break;
	}
	return keys;
}

static int obey(struct work *w, const struct told *told, const struct pfs_key *keys, struct found *found)
{
	uint32_t pages = w->client->trace->requests[told->number].pages;

	w->answered_ns = clock_ns();
	if (told->order == ORDER_GET)
		return work_get(w, &w->ranks[0], keys, pages, told->ticket, found);
	return work_put(w, &w->ranks[0], keys, told->first, pages - told->first, told->ticketed ? told->ticket : NULL);
}

static int rank_run(struct replay_client *client, uint32_t number, int wire)
{
	const struct trace *trace = client->trace;
	struct chain *chains = chains_new(trace);
	const struct pfs_key *keys = NULL;
	struct told told;
	struct work *w;
	size_t at = 0;
	int r = work_new(client, &client->counts[1 + number], &w);

	if (!r && !chains)
		r = work_stop(w, "no memory for the keys");
	if (!r) {
		w->rank_count = 1;
		r = work_open(w, number, &w->ranks[0]);
	}
	while (!r && recv(wire, &told, sizeof(told), 0) == sizeof(told)) {
		struct said said = {0};

		if (told.order == ORDER_GET) {
			keys = advance(chains, trace, &at, told.number);
			if (!keys)
				r = work_stop(w, "no memory for the keys");
		}
		if (!r)
			r = obey(w, &told, keys, &said.found);
		said.error = r;
		if (send(wire, &said, sizeof(said), MSG_NOSIGNAL) != sizeof(said))
			break; /* the client has ended */
	}
	chains_free(chains, trace);
	work_free(&w);
	return r;
}

/* ---- the client's side ------------------------------------------------------------------------------------------- */

static int start_rank(struct team *team, uint32_t number)
{
	int ends[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -errno;
	pid = fork();
	if (pid < 0) {
		close(ends[0]);
		close(ends[1]);
		return -errno;
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint32_t i = 0; i < team->ranks; i++)
			close(team->wires[i]); /* else the others would not hear of the client's end */
		close(ends[0]);
		_exit(rank_run(team->client, number, ends[1]));
	}
	close(ends[1]);
	team->pids[number] = pid;
	team->wires[number] = ends[0];
	return 0;
}

int team_start(struct replay_client *client, struct team **ret)
{
	struct team *team = calloc(1, sizeof(*team));
	struct work say = {.counts = client->counts};

	if (!team)
		return work_stop(&say, "no memory");
	*ret = team;
	team->client = client;
	team->salt = mix64((uint64_t)getpid() ^ clock_ns());
	for (; team->ranks < client->processes - 1; team->ranks++) {
		int r = start_rank(team, team->ranks);

		if (r)
			return work_stop(&say, "no process for rank %u: %s", team->ranks, strerror(-r));
	}
	return 0;
}

/* One for all ranks of a request, and for its puts. */
static void make_ticket(const struct team *team, uint32_t number, enum order order, uint8_t ticket[PFS_TICKET_BYTES])
{
	uint64_t words[2] = {mix64(team->salt ^ mix64(2ull * number + order)), mix64(team->salt + number) | 1};

	memcpy(ticket, words, sizeof(words));
	ticket[0] = 0; /* counts further tries of a put */
}

static int lost(struct work *w, uint32_t rank)
{
	const char *why = w->counts[1 + rank].error;

	return work_stop(w, "rank %u: %.400s", rank, *why ? why : "its process has ended");
}

/* Tells all, then hears all: none waits for another one's order. */
static int tell_all(struct team *team, struct work *w, const struct told *told, struct said *said)
{
	for (uint32_t i = 0; i < team->ranks; i++)
		if (send(team->wires[i], told, sizeof(*told), MSG_NOSIGNAL) != sizeof(*told))
			return lost(w, i);
	for (uint32_t i = 0; i < team->ranks; i++)
		if (recv(team->wires[i], &said[i], sizeof(said[i]), 0) != sizeof(said[i]) || said[i].error)
			return lost(w, i);
	return 0;
}

/* The scheduler's look-up, the first one. */
static int schedule(struct work *w, const struct told *told, const struct pfs_key *keys, uint32_t pages, struct pfs_get_result *found)
{
	struct pfs_get_request q = {.keys = keys, .key_count = pages};

	memcpy(q.ticket, told->ticket, sizeof(q.ticket));
	return pfs_get_start(w->ranks[0].session, &q, found) ? work_stop_client(w, "the scheduler's get_start") : 0;
}

int team_get(struct team *team, struct work *w, uint32_t number, const struct pfs_key *keys, uint32_t pages, struct found *ret)
{
	struct told told = {.order = ORDER_GET, .number = number, .ticketed = 1};
	struct said said[REPLAY_RANKS];
	struct pfs_get_result found;
	uint32_t deepest;
	int r;

	make_ticket(team, number, ORDER_GET, told.ticket);
	r = schedule(w, &told, keys, pages, &found);
	if (!r)
		r = tell_all(team, w, &told, said);
	if (r)
		return r;
	deepest = (uint32_t)(found.transferable_len / w->page_tokens);
	pfs_get_cancel(w->ranks[0].session, found.handle); /* all have come: it concerns nobody */
	*ret = said[0].found;
	for (uint32_t i = 0; i < team->ranks; i++) {
		const struct found *f = &said[i].found;

		/* After a death of the daemon a rank may not know what others were told. */
		if (w->client->options->may_part)
			ret->hit = f->hit < ret->hit ? f->hit : ret->hit;
		else if (f->told != deepest || f->hit != ret->hit)
			return work_stop(w, "request %u: the scheduler was told %u pages, rank 0 restored %u, rank %u was told %u and restored %u",
				number, deepest, ret->hit, i, f->told, f->hit);
		ret->have = f->have < ret->have ? f->have : ret->have;
	}
	return 0;
}

int team_put(struct team *team, struct work *w, uint32_t number, uint32_t first)
{
	struct told told = {.order = ORDER_PUT, .number = number, .first = first};
	struct said said[REPLAY_RANKS];

	/* Those who heard different boundaries of two daemons put different groups: each for itself. */
	told.ticketed = !w->client->options->may_part;
	make_ticket(team, number, ORDER_PUT, told.ticket);
	return tell_all(team, w, &told, said);
}

void team_end(struct team **team_p)
{
	struct team *team = *team_p;

	*team_p = NULL;
	if (!team)
		return;
	for (uint32_t i = 0; i < team->ranks; i++)
		close(team->wires[i]);
	for (uint32_t i = 0; i < team->ranks; i++)
		while (waitpid(team->pids[i], NULL, 0) < 0 && errno == EINTR)
			;
	free(team);
}
