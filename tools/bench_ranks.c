/* SPDX-License-Identifier: Apache-2.0
 *
 * bench ranks: look-ups in a namespace of several classes and ranks beside those in a plain one, tickets, and what replicated values
 * take.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/host.h"
#include "tools/latency.h"
#include "tools/mix.h"

#define WORLD 4u
#define ROW_PAGES 128u /* a row each so many */
#define MLA_WORLD 8u
#define MLA_PLANES 61u
#define ROOM_TRIES 400u
#define ROOM_WAIT_MS 100u

/* kv in four shares, an indexer that all ranks hold alike, and states of four shares. */
static const char classes_layout[] =
	"{\"version\":1,\"identity\":{\"model\":\"bench\"},\"world\":4,\"page_tokens\":64,\"memory\":{\"floor\":%llu},\"classes\":["
	"{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"p\",\"bytes\":4096}]},"
	"{\"name\":\"indexer\",\"kind\":\"dense\",\"share_of_rank\":[0,0,0,0],\"planes\":[{\"name\":\"p\",\"bytes\":4096}]},"
	"{\"name\":\"state\",\"kind\":\"state\",\"planes\":[{\"name\":\"p\",\"bytes\":4096}]}]}";
/* The latents of DeepSeek-V3, an eighteenth of them, so that no padding is measured. */
static const char mla_layout[] =
	"{\"version\":1,\"identity\":{\"model\":\"bench\"},\"world\":8,\"page_tokens\":64,\"memory\":{\"floor\":%llu},\"classes\":["
	"{\"name\":\"kv\",\"kind\":\"dense\",\"share_of_rank\":[0,0,0,0,0,0,0,0],"
	"\"planes\":[{\"name\":\"mla.K\",\"count\":61,\"bytes\":4096}]}]}";

/* A namespace and a session of each of its ranks. */
struct ranks {
	struct pfs_session *session[MLA_WORLD];
	uint32_t world, state_mask, classes;
};

struct run {
	const struct bench_options *options;
	struct bench_daemon daemon;
	struct ranks plain, mixed;
	uint64_t chains, random;
	struct latency alone, beside, joined, round;
};

static int open_ranks(struct run *run, const char *ns, uint32_t world, struct ranks *ret)
{
	struct pfs_session_info info;
	struct pfs_options options;
	char path[PATH_MAX];

	if (host_path(path, "%s/ns/%s", run->daemon.mount, ns))
		return 1;
	for (; ret->world < world; ret->world++) {
		pfs_options_init(&options);
		options.rank = ret->world;
		options.wait_prewarm = 1;
		if (pfs_open(path, &options, &ret->session[ret->world]))
			return complain_client(path);
	}
	if (pfs_info(ret->session[0], &info))
		return complain_client(path);
	ret->state_mask = info.state_mask;
	ret->classes = (1u << info.classes) - 1;
	return 0;
}

static void close_ranks(struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->world; i++)
		pfs_close(&ranks->session[i]);
}

/* ---- filling ------------------------------------------------------------------------------------------------------- */

static uint32_t make_groups(const struct ranks *ranks, const struct pfs_key *keys, struct pfs_put_group *groups)
{
	uint32_t n = 0;

	for (uint32_t at = 0; at < BENCH_BATCH; n++) {
		uint32_t pages = BENCH_BATCH - at < ROW_PAGES ? BENCH_BATCH - at : ROW_PAGES;

		groups[n] = (struct pfs_put_group){
			.consumed = (uint64_t)(at + pages) * BENCH_TOKENS,
			.keys = pages,
			.class_mask = ranks->classes,
			.flags = at == 0 ? PFS_GROUP_ROOT : 0,
		};
		if (at > 0)
			groups[n].parent = keys[at - 1];
		at += pages;
	}
	return n;
}

/* A chain as one rank, again until all of it has room. */
static int put_chain(const struct ranks *ranks, uint32_t rank, uint64_t chain)
{
	struct pfs_put_group groups[BENCH_BATCH / ROW_PAGES + 1];
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_put_request q = {.groups = groups, .keys = keys, .key_count = BENCH_BATCH, .class_mask = ranks->classes};
	struct pfs_put_result put;

	bench_chain_keys(chain, 0, BENCH_BATCH, keys);
	q.group_count = make_groups(ranks, keys, groups);
	for (unsigned turn = 0; turn < ROOM_TRIES; turn++) {
		if (pfs_put_start(ranks->session[rank], &q, &put))
			return complain_client("put_start");
		if (pfs_put_commit(ranks->session[rank], put.plan, 0, 0, NULL, NULL))
			return complain_client("put_commit");
		if (put.groups_ok == q.group_count)
			return 0;
		pfs_news(ranks->session[rank], ROOM_WAIT_MS);
	}
	return complain("chain %llu got no room in %u tries: the memory of the daemon is too small", (unsigned long long)chain, ROOM_TRIES);
}

static int fill(struct run *run)
{
	struct progress progress;
	int r = 0;

	progress_start(&progress, "filling", run->chains);
	for (uint64_t i = 0; i < run->chains && !r; i++) {
		r = put_chain(&run->plain, 0, i);
		for (uint32_t rank = 0; rank < WORLD && !r; rank++)
			r = put_chain(&run->mixed, rank, i);
		progress_show(&progress, i);
	}
	progress_end(&progress);
	return r;
}

/* ---- look-ups ------------------------------------------------------------------------------------------------------- */

static int look(struct run *run, const struct ranks *ranks, uint32_t rank, uint64_t chain, const uint8_t *ticket, struct latency *to,
	struct pfs_get_result *found)
{
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_get_request q = {.keys = keys, .key_count = BENCH_BATCH};
	uint64_t begin;

	bench_chain_keys(chain, 0, BENCH_BATCH, keys);
	if (ticket)
		memcpy(q.ticket, ticket, sizeof(q.ticket));
	begin = clock_ns();
	if (pfs_get_start(ranks->session[rank], &q, found))
		return complain_client("get_start");
	if (to)
		latency_add(to, clock_ns() - begin);
	if (found->transferable_len != (uint64_t)BENCH_BATCH * BENCH_TOKENS)
		return complain("chain %llu: %llu of %u tokens are there", (unsigned long long)chain,
			(unsigned long long)found->transferable_len, BENCH_BATCH * BENCH_TOKENS);
	return 0;
}

static int look_once(struct run *run, const struct ranks *ranks, uint64_t chain, struct latency *to)
{
	struct pfs_get_result found;

	if (look(run, ranks, 0, chain, NULL, to, &found))
		return 1;
	return pfs_get_cancel(ranks->session[0], found.handle) ? complain_client("get_cancel") : 0;
}

static void draw_ticket(struct run *run, uint8_t ticket[PFS_TICKET_BYTES])
{
	uint64_t words[2];

	words[0] = run->random = mix64(run->random);
	words[1] = mix64(run->random ^ 1) | 1;
	memcpy(ticket, words, sizeof(words));
}

/* The others' GET_START under a ticket: nothing is looked up. */
static int join_once(struct run *run, uint64_t chain)
{
	struct pfs_get_result found[WORLD];
	uint8_t ticket[PFS_TICKET_BYTES];
	int r = 0;

	draw_ticket(run, ticket);
	for (uint32_t rank = 0; rank < WORLD && !r; rank++)
		r = look(run, &run->mixed, rank, chain, ticket, rank ? &run->joined : NULL, &found[rank]);
	for (uint32_t rank = 0; rank < WORLD && !r; rank++)
		r = pfs_get_cancel(run->mixed.session[rank], found[rank].handle) ? complain_client("get_cancel") : 0;
	return r;
}

/* Plain and mixed ones by turns, on one CPU, so that whatever else happens here happens to both. */
static int measure_lookups(struct run *run)
{
	cpu_set_t anywhere, here;
	int r = 0;

	if (sched_getaffinity(0, sizeof(anywhere), &anywhere))
		return complain("the CPUs of this process: %s", strerror(errno));
	CPU_ZERO(&here);
	CPU_SET((unsigned)sched_getcpu(), &here);
	if (sched_setaffinity(0, sizeof(here), &here))
		return complain("pinning to CPU %d: %s", sched_getcpu(), strerror(errno));
	for (uint64_t i = 0; i < run->options->repeats && !r; i++) {
		run->random = mix64(run->random);
		uint64_t chain = run->random % run->chains;

		r = look_once(run, &run->plain, chain, &run->alone);
		if (!r)
			r = look_once(run, &run->mixed, chain, &run->beside);
		if (!r)
			r = join_once(run, chain);
	}
	sched_setaffinity(0, sizeof(anywhere), &anywhere);
	return r;
}

/* ---- a round of all ranks ------------------------------------------------------------------------------------------- */

struct member {
	struct run *run;
	uint32_t rank;
	uint64_t chain;
	const uint8_t *ticket;
	pthread_barrier_t *barrier;
	uint64_t restored;
	int error;
};

static void *take_part(void *context)
{
	struct member *m = context;
	struct pfs_session *s = m->run->mixed.session[m->rank];
	struct pfs_transfer_request t = {0};
	struct pfs_transfer_result got;
	struct pfs_get_result found;

	pthread_barrier_wait(m->barrier);
	m->error = look(m->run, &m->run->mixed, m->rank, m->chain, m->ticket, NULL, &found);
	if (m->error)
		return NULL;
	t.handle = found.handle;
	t.boundary = t.to = found.transferable_len;
	if (pfs_get_transfer(s, &t, &got) || (got.plan && pfs_release(s, &got.plan, 1, NULL)) ||
		pfs_get_confirm(s, m->ticket, got.delivered_len < t.to, 0, 0, &m->restored))
		m->error = complain_client("a rank's part");
	return NULL;
}

/* Each rank is a thread: from the first GET_START until all know what was restored. */
static int measure_round(struct run *run)
{
	struct member member[WORLD];
	pthread_t thread[WORLD];
	uint8_t ticket[PFS_TICKET_BYTES];
	pthread_barrier_t barrier;
	uint64_t begin;
	int r = 0;

	draw_ticket(run, ticket);
	pthread_barrier_init(&barrier, NULL, WORLD + 1);
	for (uint32_t i = 0; i < WORLD; i++) {
		member[i] = (struct member){.run = run, .rank = i, .chain = run->random % run->chains, .ticket = ticket, .barrier = &barrier};
		if (pthread_create(&thread[i], NULL, take_part, &member[i])) {
			complain("no thread for a rank");
			exit(1);
		}
	}
	pthread_barrier_wait(&barrier);
	begin = clock_ns();
	for (uint32_t i = 0; i < WORLD; i++)
		pthread_join(thread[i], NULL);
	latency_add(&run->round, clock_ns() - begin);
	pthread_barrier_destroy(&barrier);
	for (uint32_t i = 0; i < WORLD && !r; i++) {
		r = member[i].error;
		if (!r && member[i].restored != (uint64_t)BENCH_BATCH * BENCH_TOKENS)
			r = complain("rank %u was told that %llu tokens are restored", i, (unsigned long long)member[i].restored);
	}
	return r;
}

/* ---- figures -------------------------------------------------------------------------------------------------------- */

static int make_spaces(struct run *run, uint64_t values)
{
	uint64_t plain = values * BENCH_VALUE * 5 / 4, mixed = (WORLD + 1) * plain + (64ull << 20);
	char layout[1024];
	int r = bench_namespace(&run->daemon, "plain", BENCH_VALUE, 1, plain);

	snprintf(layout, sizeof(layout), classes_layout, (unsigned long long)mixed);
	if (!r)
		r = bench_namespace_of(&run->daemon, "mixed", layout);
	if (!r)
		r = open_ranks(run, "plain", 1, &run->plain);
	return r ? r : open_ranks(run, "mixed", WORLD, &run->mixed);
}

static void print_lookups(const struct run *run)
{
	const struct bench_options *o = run->options;
	double alone = latency_us(&run->alone, 0.5), beside = latency_us(&run->beside, 0.5);

	if (bench_wants(o, "classes_get_start_ratio"))
		bench_print(o, "classes_get_start_ratio", alone > 0 ? beside / alone : 0, "", 1.3,
			json_pack("{s:f, s:f, s:I}", "one_class_us", alone, "three_classes_us", beside, "samples",
				(json_int_t)run->beside.count));
	if (bench_wants(o, "get_start_joined_p50_us"))
		bench_print(o, "get_start_joined_p50_us", latency_us(&run->joined, 0.5), "us", 0,
			json_pack("{s:f, s:I}", "p99", latency_us(&run->joined, 0.99), "samples", (json_int_t)run->joined.count));
	if (bench_wants(o, "ticket_round_p50_us"))
		bench_print(o, "ticket_round_p50_us", latency_us(&run->round, 0.5), "us", 0,
			json_pack("{s:f, s:I, s:i}", "p99", latency_us(&run->round, 0.99), "samples", (json_int_t)run->round.count,
				"ranks", (int)WORLD));
}

static int lookups(const struct bench_options *o)
{
	struct run *run = calloc(1, sizeof(*run));
	/* Slots for what is filled, and what grants of nine (class, share) take to begin with. */
	const struct bench_daemon_options d = {.memory = o->pages * BENCH_VALUE * (WORLD + 2) * 5 / 4 + (256ull << 20)};
	int r;

	if (!run)
		return complain("no memory");
	run->options = o;
	run->chains = o->pages / BENCH_BATCH;
	r = bench_daemon_start(&run->daemon, &d, false);
	if (!r) {
		r = make_spaces(run, o->pages);
		if (!r)
			r = fill(run);
		if (!r)
			r = measure_lookups(run);
		for (uint64_t i = 0; i < o->repeats && !r; i++)
			r = measure_round(run);
		close_ranks(&run->plain);
		close_ranks(&run->mixed);
		bench_daemon_stop(&run->daemon);
	}
	if (!r)
		print_lookups(run);
	free(run);
	return r;
}

/* Eight ranks put a chain whose values are the same for all: bytes of slots beside those of one rank's values. */
static int replicated(const struct bench_options *o)
{
	const uint64_t payload = (uint64_t)BENCH_BATCH * MLA_PLANES * 4096, floor = payload * 5 / 4 + (16ull << 20);
	const struct bench_daemon_options d = {.memory = floor + (64ull << 20)};
	struct run run = {.options = o};
	struct ranks ranks = {0};
	char layout[1024];
	int64_t bytes = -1;
	int r = bench_daemon_start(&run.daemon, &d, false);

	if (r)
		return r;
	snprintf(layout, sizeof(layout), mla_layout, (unsigned long long)floor);
	r = bench_namespace_of(&run.daemon, "mla", layout);
	if (!r)
		r = open_ranks(&run, "mla", MLA_WORLD, &ranks);
	for (uint32_t rank = 0; rank < ranks.world && !r; rank++)
		r = put_chain(&ranks, rank, 0);
	if (!r)
		bytes = bench_counter(&run.daemon, "mla", "slot_bytes");
	close_ranks(&ranks);
	bench_daemon_stop(&run.daemon);
	if (!r && bytes < 0)
		r = complain("the namespace says nothing of slot_bytes");
	if (!r)
		bench_print(o, "mla_tp8_bytes_ratio", (double)bytes / (double)payload, "", 1,
			json_pack("{s:I, s:I, s:i}", "slot_bytes", (json_int_t)bytes, "payload_bytes", (json_int_t)payload, "ranks",
				(int)MLA_WORLD));
	return r;
}

static const char more[] =
	"\nStarts daemons of its own on private mounts; values have 4 KiB and are never touched, batches 1,000 keys.\n"
	"\n"
	"classes_get_start_ratio: median time of a GET_START in a namespace of four ranks with three classes - kv of four shares, an\n"
	"indexer of one, states of four, a row each 128 pages - over that in a plain one of one class and one rank, both in one\n"
	"daemon, by turns, the thread pinned to a CPU. get_start_joined_p50_us: that of a rank that joins a ticket, whose look-up\n"
	"was another one's. ticket_round_p50_us: four ranks, a thread each, from the first GET_START until all have confirmed.\n"
	"mla_tp8_bytes_ratio: slots in use over the bytes of one rank's values, after eight ranks have put the same 1,000 pages.";

int bench_ranks(const struct command *self, int argc, char **argv)
{
	static const char *const figures[] = {"classes_get_start_ratio", "get_start_joined_p50_us", "ticket_round_p50_us"};
	struct bench_options o = {.pages = 100000, .repeats = 200};
	bool json = false, any = false, mla;
	const struct option_row rows[] = {
		{"pages", OPTION_NUMBER, &o.pages, "N", "pages of each namespace (100000)", BENCH_BATCH, 10000000},
		{"figure", OPTION_TEXT, &o.figure, "NAME", "only figures whose names begin so", 0, 0},
		{"repeats", OPTION_NUMBER, &o.repeats, "N", "batches behind each figure (200)", 1, 100000},
		{"human", OPTION_FLAG, &o.human, NULL, "aligned text instead of JSON", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line (the default)", 0, 0},
		{0},
	};
	struct command with_more = *self;
	int r = 0;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	for (unsigned i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
		any |= bench_wants(&o, figures[i]);
	mla = bench_wants(&o, "mla_tp8_bytes_ratio");
	if (!any && !mla)
		return usage_error(self, "--figure is '%s', and none begins so; --help lists them", o.figure);
	if (any)
		r = lookups(&o);
	return r || !mla ? r : replicated(&o);
}
