/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/planes.h"
#include "tools/cli.h"
#include "tools/value_bytes.h"

#define MAX_RANKS 64u
#define ROOM_TRIES 8u     /* how often a put without room is tried again */
#define ROOM_WAIT_MS 250u /* and how long news are waited for in between */
#define FEW_PAGES 64u     /* of a group when larger ones got no room */

struct rank {
	struct pfs_session *session;
	struct pfs_session_info info;
};

struct work {
	struct replay_client *client;
	struct replay_counts *counts;
	struct rank ranks[MAX_RANKS];
	uint32_t rank_count;
	uint64_t page_tokens;
	struct pfs_put_group *groups; /* [pages of the longest request] */
	uint8_t *planes_memory;       /* the engine's planes, of the largest class */
	void **planes;
	uint64_t answered_ns; /* the last answer of the daemon, or the beginning of this request */
};

static int stop(struct work *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int stop(struct work *w, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(w->counts->error, sizeof(w->counts->error), format, args);
	va_end(args);
	return 1;
}

static int stop_client(struct work *w, const char *what)
{
	char text[400];

	pfs_last_error(text, sizeof(text));
	return stop(w, "%s: %s", what, text);
}

/* The daemon answered what was asked at @begin_ns. */
static void answered(struct work *w, enum replay_op op, uint64_t begin_ns)
{
	uint64_t now = clock_ns(), gap = now - w->answered_ns;

	latency_add(&w->counts->op[op], now - begin_ns);
	if (gap > w->counts->longest_gap_ns)
		w->counts->longest_gap_ns = gap;
	w->answered_ns = now;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static void write_value(struct work *w, const struct pfs_key *key, uint32_t c, uint32_t share, uint8_t *slot)
{
	const struct layout_class *class = &w->client->layout->class[c];
	const struct planes_shape shape = {class->plane_bytes, class->planes};

	if (!w->client->options->planes) {
		value_bytes_fill(key, c, share, slot, class->payload_bytes);
		return;
	}
	value_bytes_fill(key, c, share, w->planes_memory, class->payload_bytes);
	w->planes[0] = w->planes_memory;
	for (uint32_t i = 1; i < class->planes; i++)
		w->planes[i] = (uint8_t *)w->planes[i - 1] + class->plane_bytes[i - 1];
	planes_gather(&shape, (const void *const *)w->planes, slot);
}

static bool check_value(struct work *w, const struct pfs_key *key, uint32_t c, uint32_t share, const uint8_t *slot)
{
	const struct layout_class *class = &w->client->layout->class[c];
	const struct planes_shape shape = {class->plane_bytes, class->planes};

	if (!w->client->options->planes)
		return value_bytes_match(key, c, share, slot, class->payload_bytes);
	w->planes[0] = w->planes_memory;
	for (uint32_t i = 1; i < class->planes; i++)
		w->planes[i] = (uint8_t *)w->planes[i - 1] + class->plane_bytes[i - 1];
	planes_scatter(&shape, slot, w->planes);
	return value_bytes_match(key, c, share, w->planes_memory, class->payload_bytes);
}

/* ---- get -------------------------------------------------------------------------------------------------------- */

/* What one plan gave; it counts once the release says that the plan held to its end. */
struct checked {
	uint64_t values, wrong, bytes;
};

/* Looks at what was delivered of the range: offsets behind that mean nothing. The row is at the boundary. */
static void verify(struct work *w, const struct rank *rank, const struct pfs_key *keys, const struct pfs_transfer_request *t,
	const struct pfs_transfer_result *got, struct checked *ret)
{
	uint32_t first = (uint32_t)(t->from / w->page_tokens), end = (uint32_t)(got->delivered_len / w->page_tokens);

	for (uint32_t c = 0; c < w->client->layout->classes; c++) {
		bool row = rank->info.state_mask >> c & 1;
		uint32_t n = row ? got->delivered_len == t->boundary : end - first;

		for (uint32_t i = 0; got->offsets[c] && i < n; i++) {
			uint64_t offset = got->offsets[c][i];

			if (offset >= PFS_ANSWER_MIN)
				continue;
			ret->values++;
			ret->bytes += w->client->layout->class[c].payload_bytes;
			if (!check_value(w, &keys[row ? end - 1 : first + i], c, rank->info.share[c], got->segment + offset))
				ret->wrong++;
		}
	}
}

/* A plan came to nothing: the engine computes those pages itself. */
static int lost_plan(struct work *w)
{
	w->counts->lost_plans++;
	return 0;
}

/* Checks what a transfer gave, and gives it back. 0, 1, or -ESTALE: the plan is lost. */
static int check_plan(struct work *w, struct rank *rank, const struct pfs_key *keys, const struct pfs_transfer_request *t,
	const struct pfs_transfer_result *got)
{
	struct checked checked = {0};
	uint64_t now;
	int r;

	verify(w, rank, keys, t, got, &checked);
	now = clock_ns();
	r = pfs_release(rank->session, &got->plan, 1, NULL);
	if (r == -ESTALE)
		return r;
	if (r)
		return stop_client(w, "release");
	answered(w, REPLAY_RELEASE, now);
	w->counts->verified += checked.values;
	w->counts->wrong += checked.wrong;
	w->counts->bytes_got += checked.bytes;
	return 0;
}

/* Fetches up to t->boundary, in as many ranges as the daemon makes of it: what is longer than the memory that it has to read into
 * comes in several. t->from: how far it came; what could not be read back, or found no room in time, is not fetched. */
static int fetch(struct work *w, struct rank *rank, const struct pfs_key *keys, struct pfs_transfer_request *t)
{
	struct pfs_transfer_result got = {0};
	int r = 0;

	while (t->from < t->boundary && !got.handle_ended) {
		uint64_t now = clock_ns();

		r = pfs_get_transfer(rank->session, t, &got);
		if (r == -EAGAIN)
			break;
		if (r)
			return stop_client(w, "get_transfer");
		answered(w, REPLAY_GET_TRANSFER, now);
		r = got.plan ? check_plan(w, rank, keys, t, &got) : 0;
		if (r)
			return r == -ESTALE ? lost_plan(w) : r;
		if (got.delivered_len <= t->from)
			break;
		t->from = got.delivered_len;
	}
	if (!got.handle_ended)
		pfs_get_cancel(rank->session, t->handle);
	return 0;
}

/* Fetches what is there and checks it. *hit is the leading run in pages, *have what need not be put: less where not all of it came. */
static int get(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t pages, uint32_t *hit, uint32_t *have)
{
	struct pfs_get_request q = {.keys = keys, .key_count = pages};
	struct pfs_transfer_request t = {0};
	struct pfs_get_result found;
	uint64_t begin = clock_ns();
	int r;

	if (pfs_get_start(rank->session, &q, &found))
		return stop_client(w, "get_start");
	answered(w, REPLAY_GET_START, begin);
	*hit = *have = (uint32_t)(found.raw_prefix_hit_len / w->page_tokens);
	if (found.transferable_len == 0) {
		r = pfs_get_cancel(rank->session, found.handle);
		return r ? stop_client(w, "get_cancel") : 0;
	}
	t.handle = found.handle;
	t.boundary = t.to = found.transferable_len;
	r = fetch(w, rank, keys, &t);
	if (t.from > 0)
		w->counts->get_ns += clock_ns() - begin;
	if (t.from < t.boundary) {
		*have = (uint32_t)(t.from / w->page_tokens);
		w->counts->unfetched_pages += (t.boundary - t.from) / w->page_tokens;
	}
	return r;
}

/* ---- put -------------------------------------------------------------------------------------------------------- */

/* Groups of @pages_each pages over keys first..first+count-1 of a chain of keys. */
static uint32_t make_groups(
	struct work *w, const struct pfs_key *keys, uint32_t first, uint32_t count, uint32_t pages_each)
{
	uint32_t n = 0;

	for (uint32_t at = first; at < first + count;) {
		uint32_t left = first + count - at, take = pages_each && pages_each < left ? pages_each : left;

		w->groups[n] = (struct pfs_put_group){
			.consumed = (at + take) * w->page_tokens,
			.keys = take,
			.class_mask = (1u << w->client->layout->classes) - 1,
			.flags = at == 0 ? PFS_GROUP_ROOT : 0,
		};
		if (at > 0)
			w->groups[n].parent = keys[at - 1];
		n++;
		at += take;
	}
	return n;
}

static void fill_class(struct work *w, const struct rank *rank, const struct pfs_key *keys, uint32_t c, uint32_t groups,
	const struct pfs_put_result *put)
{
	bool row = rank->info.state_mask >> c & 1;
	uint32_t key = 0;

	for (uint32_t g = 0; g < groups; key += w->groups[g++].keys) {
		uint32_t n = row ? 1 : w->groups[g].keys;

		for (uint32_t i = 0; i < n && put->status[g] == PFS_GROUP_OK; i++) {
			uint64_t answer = put->answers[c][row ? g : key + i];
			const struct pfs_key *k = &keys[row ? key + w->groups[g].keys - 1 : key + i];

			if (answer == PFS_ANSWER_EXISTS)
				w->counts->exists++;
			else if (answer == PFS_ANSWER_INFLIGHT)
				w->counts->inflight++;
			if (answer >= PFS_ANSWER_MIN)
				continue;
			write_value(w, k, c, rank->info.share[c], put->segment + answer);
			w->counts->new_values++;
			w->counts->bytes_put += w->client->layout->class[c].payload_bytes;
		}
	}
}

/* One plan over keys first..first+count-1. *left: pages from the first group without room on. */
static int put_once(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t first, uint32_t count,
	uint32_t pages_each, uint32_t *left, bool *never)
{
	uint32_t groups = make_groups(w, keys, first, count, pages_each), done = 0;
	struct pfs_put_request q = {
		.groups = w->groups,
		.keys = keys + first,
		.group_count = groups,
		.key_count = count,
		.class_mask = (1u << w->client->layout->classes) - 1,
	};
	struct pfs_put_outcome outcome;
	struct pfs_put_result put;
	uint64_t begin = clock_ns(), now;

	if (pfs_put_start(rank->session, &q, &put))
		return stop_client(w, "put_start");
	answered(w, REPLAY_PUT_START, begin);
	*never = false;
	for (uint32_t g = 0; g < groups && put.status[g] == PFS_GROUP_OK; g++)
		done += w->groups[g].keys;
	for (uint32_t g = 0; g < groups; g++) {
		w->counts->noroom_groups += put.status[g] != PFS_GROUP_OK;
		if (put.status[g] != PFS_GROUP_TOOBIG)
			continue;
		*never = true;
		w->counts->toobig_groups++;
		if (w->groups[g].keys > w->counts->toobig_pages)
			w->counts->toobig_pages = w->groups[g].keys;
	}
	*left = count - done;
	for (uint32_t c = 0; c < w->client->layout->classes; c++)
		fill_class(w, rank, keys + first, c, groups, &put);
	now = clock_ns();
	if (pfs_put_commit(rank->session, put.plan, 0, 0, NULL, &outcome))
		return stop_client(w, "put_commit");
	answered(w, REPLAY_PUT_COMMIT, now);
	w->counts->lost_plans += outcome.outcome == PFS_GROUP_LOST;
	w->counts->put_ns += clock_ns() - begin;
	return 0;
}

static int put(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t first, uint32_t count)
{
	uint32_t each = w->client->options->group_pages, left = count;
	bool never = false;

	for (unsigned turn = 0; count > 0; turn++) {
		if (put_once(w, rank, keys, first, count, each, &left, &never))
			return 1;
		if (left < count)
			turn = 0;
		first += count - left;
		count = left;
		if (count == 0 || turn >= ROOM_TRIES || (never && each == FEW_PAGES))
			break; /* an engine would go on without */
		if (never || turn == ROOM_TRIES / 2)
			each = FEW_PAGES;
		else
			pfs_news(rank->session, ROOM_WAIT_MS);
	}
	return 0;
}

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

/* What a request added to the counts of before it. */
static void note(struct work *w, struct replay_sample *to, const struct replay_sample *before)
{
	const struct replay_counts *now = w->counts;

	*to = (struct replay_sample){
		.end_ns = clock_ns() - w->client->shared->begin_ns,
		.bytes_put = now->bytes_put - before->bytes_put,
		.bytes_got = now->bytes_got - before->bytes_got,
		.hits = (uint32_t)now->hits - before->hits,
		.noroom = (uint32_t)now->noroom_groups - before->noroom,
	};
}

static int one_request(struct work *w, uint32_t number, const struct pfs_key *keys, uint32_t pages)
{
	const struct replay_sample before = {
		.bytes_put = w->counts->bytes_put,
		.bytes_got = w->counts->bytes_got,
		.hits = (uint32_t)w->counts->hits,
		.noroom = (uint32_t)w->counts->noroom_groups,
	};
	enum replay_order order = w->client->options->order;
	struct replay_shared *shared = w->client->shared;
	uint32_t hit = 0, have = 0, first = UINT32_MAX;
	bool killed;
	int r = 0;

	if (order != ORDER_FREE)
		await_turn(shared, number);
	atomic_fetch_add_explicit(&shared->begun, 1, memory_order_relaxed);
	w->answered_ns = clock_ns();
	killed = atomic_load_explicit(&shared->kills, memory_order_relaxed) > 0;
	for (uint32_t i = 0; i < w->rank_count && !r && pages > 0; i++) {
		r = get(w, &w->ranks[i], keys, pages, &hit, &have);
		first = have < first ? have : first;
		if (i == 0) {
			w->counts->references += pages;
			w->counts->hits += hit;
			w->counts->references_killed += killed ? pages : 0;
			w->counts->hits_killed += killed ? hit : 0;
		}
	}
	if (order == ORDER_LOOKUPS)
		pass_turn(shared);
	for (uint32_t i = 0; i < w->rank_count && !r && pages > 0; i++)
		r = put(w, &w->ranks[i], keys, first, pages - first);
	if (order == ORDER_STRICT)
		pass_turn(shared);
	w->counts->requests++;
	if (shared->samples)
		note(w, &shared->samples[number], &before);
	return r;
}

/* ---- a client --------------------------------------------------------------------------------------------------- */

static int prepare(struct work *w)
{
	const struct layout_view *layout = w->client->layout;
	uint64_t largest = 0;
	uint32_t planes = 1;

	for (uint32_t c = 0; c < layout->classes; c++) {
		largest = layout->class[c].payload_bytes > largest ? layout->class[c].payload_bytes : largest;
		planes = layout->class[c].planes > planes ? layout->class[c].planes : planes;
	}
	if (layout->world > MAX_RANKS)
		return stop(w, "the namespace has %llu ranks, at most %u can be replayed",
			(unsigned long long)layout->world, MAX_RANKS);
	w->page_tokens = layout->page_tokens;
	w->groups = calloc(w->client->trace->longest + 1u, sizeof(*w->groups));
	w->planes = calloc(planes, sizeof(*w->planes));
	w->planes_memory = aligned_alloc(64, (largest + 127) / 64 * 64);
	if (!w->groups || !w->planes || !w->planes_memory)
		return stop(w, "no memory");
	for (; w->rank_count < layout->world; w->rank_count++) {
		struct rank *rank = &w->ranks[w->rank_count];
		struct pfs_options options;

		pfs_options_init(&options);
		options.rank = w->rank_count;
		options.wait_prewarm = 1;
		options.deadline_ms = REPLAY_WAIT_S * 1000;
		if (pfs_open(w->client->path, &options, &rank->session))
			return stop_client(w, "no session");
		if (pfs_info(rank->session, &rank->info))
			return stop_client(w, "info");
	}
	return 0;
}

static int work_through(struct work *w)
{
	const struct trace *trace = w->client->trace;
	struct chain *chains = chains_new(trace);
	struct progress progress;
	int r = chains ? 0 : stop(w, "no memory for the keys");

	progress_start(&progress, "replaying", trace->count);
	progress.wanted &= w->client->number == 0;
	for (size_t i = 0; i < trace->count && !r && !atomic_load(&w->client->shared->stop); i++) {
		const struct pfs_key *keys = chains_advance(chains, trace, i);

		if (!keys && trace->requests[i].pages > 0)
			r = stop(w, "no memory for the keys");
		else if (i % w->client->options->clients == w->client->number)
			r = one_request(w, (uint32_t)i, keys, trace->requests[i].pages);
		progress_show(&progress, i);
	}
	progress_end(&progress);
	chains_free(chains, trace);
	return r;
}

int replay_client_run(struct replay_client *client)
{
	struct work *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return 1;
	w->client = client;
	w->counts = client->counts;
	r = prepare(w);
	if (!r)
		r = work_through(w);
	if (r)
		atomic_store(&client->shared->stop, 1);
	for (uint32_t i = 0; i < w->rank_count; i++) {
		if (w->ranks[i].session && !pfs_info(w->ranks[i].session, &w->ranks[i].info))
			w->counts->reattached += w->ranks[i].info.reattached;
		pfs_close(&w->ranks[i].session);
	}
	free(w->groups);
	free(w->planes);
	free(w->planes_memory);
	free(w);
	return r;
}
