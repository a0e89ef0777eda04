/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay_work.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/planes.h"
#include "tools/value_bytes.h"

#define ROOM_TRIES 8u     /* how often a put without room is tried again */
#define ROOM_WAIT_MS 250u /* and how long news are waited for in between */
#define FEW_PAGES 64u     /* of a group when larger ones got no room */

int work_stop(struct work *w, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(w->counts->error, sizeof(w->counts->error), format, args);
	va_end(args);
	return 1;
}

int work_stop_client(struct work *w, const char *what)
{
	char text[400];

	pfs_last_error(text, sizeof(text));
	return work_stop(w, "%s: %s", what, text);
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
		return work_stop_client(w, "release");
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
			return work_stop_client(w, "get_transfer");
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

/* Has the layout classes of which a boundary needs something that the pages before it do not say? */
static bool is_hybrid(const struct layout_view *layout)
{
	for (uint32_t c = 0; c < layout->classes; c++)
		if (strcmp(layout->class[c].kind, "dense"))
			return true;
	return false;
}

static void note_wanted(struct work *w, const struct pfs_get_result *found)
{
	w->wanted_count = found->wanted ? found->wanted_count : 0;
	if (w->wanted_count > PFS_MAX_WANTED)
		w->wanted_count = PFS_MAX_WANTED;
	if (w->wanted_count)
		memcpy(w->wanted, found->wanted, w->wanted_count * sizeof(w->wanted[0]));
}

/* All ranks say how it went: *restored is the same for all. */
static int confirm(struct work *w, struct rank *rank, const uint8_t *ticket, bool failed, uint64_t *restored)
{
	return pfs_get_confirm(rank->session, ticket, failed, 0, 0, restored) ? work_stop_client(w, "get_confirm") : 0;
}

int work_get(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t pages, const uint8_t *ticket, struct found *ret)
{
	struct pfs_get_request q = {.keys = keys, .key_count = pages};
	bool hybrid = is_hybrid(w->client->layout);
	struct pfs_transfer_request t = {0};
	struct pfs_get_result found;
	uint64_t begin = clock_ns(), wrong = w->counts->wrong;
	int r;

	if (ticket)
		memcpy(q.ticket, ticket, sizeof(q.ticket));
	if (pfs_get_start(rank->session, &q, &found))
		return work_stop_client(w, "get_start");
	answered(w, REPLAY_GET_START, begin);
	note_wanted(w, &found);
	t.handle = found.handle;
	t.boundary = t.to = found.transferable_len;
	ret->told = ret->hit = ret->have = (uint32_t)((hybrid || ticket ? t.boundary : found.raw_prefix_hit_len) / w->page_tokens);
	if (t.boundary == 0) {
		r = pfs_get_cancel(rank->session, found.handle);
		return r ? work_stop_client(w, "get_cancel") : 0;
	}
	r = fetch(w, rank, keys, &t);
	if (!r && ticket) {
		bool failed = t.from < t.boundary || w->counts->wrong > wrong;

		r = confirm(w, rank, ticket, failed, &t.from);
		ret->hit = (uint32_t)(t.from / w->page_tokens);
	}
	if (t.from > 0)
		w->counts->get_ns += clock_ns() - begin;
	if (t.from < t.boundary) {
		ret->have = (uint32_t)(t.from / w->page_tokens);
		w->counts->unfetched_pages += (t.boundary - t.from) / w->page_tokens;
	}
	return r;
}

/* ---- put -------------------------------------------------------------------------------------------------------- */

/* The next boundary behind @tokens at which a row is wanted, or UINT64_MAX. */
static uint64_t next_wanted(const struct work *w, uint64_t tokens)
{
	for (uint32_t i = 0; i < w->wanted_count; i++)
		if (w->wanted[i] > tokens)
			return w->wanted[i];
	return UINT64_MAX;
}

/* Groups of @pages_each pages over keys first..first+count-1 of a chain of keys, one of which ends at each boundary where a row is
 * wanted. There and at the very end, as an engine goes on from there, the states are put, too. */
static uint32_t make_groups(
	struct work *w, const struct rank *rank, const struct pfs_key *keys, uint32_t first, uint32_t count, uint32_t pages_each)
{
	uint32_t n = 0, all = (1u << w->client->layout->classes) - 1;

	for (uint32_t at = first; at < first + count;) {
		uint32_t left = first + count - at, take = pages_each && pages_each < left ? pages_each : left;
		uint64_t wanted = next_wanted(w, at * w->page_tokens);
		bool row = take == left;

		if (wanted <= (at + take) * w->page_tokens) {
			take = (uint32_t)(wanted / w->page_tokens) - at;
			row = true;
		}
		w->groups[n] = (struct pfs_put_group){
			.consumed = (at + take) * w->page_tokens,
			.keys = take,
			.class_mask = row ? all : all & ~rank->info.state_mask,
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
		uint32_t n = !(w->groups[g].class_mask >> c & 1) ? 0 : row ? 1 : w->groups[g].keys;

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
	uint32_t pages_each, const uint8_t *ticket, uint32_t *left, bool *never)
{
	uint32_t groups = make_groups(w, rank, keys, first, count, pages_each), done = 0;
	struct pfs_put_request q = {
		.groups = w->groups,
		.keys = keys + first,
		.group_count = groups,
		.key_count = count,
	};
	struct pfs_put_outcome outcome;
	struct pfs_put_result put;
	uint64_t begin = clock_ns(), now;

	for (uint32_t g = 0; g < groups; g++)
		q.class_mask |= w->groups[g].class_mask;
	if (ticket)
		memcpy(q.ticket, ticket, sizeof(q.ticket));
	if (pfs_put_start(rank->session, &q, &put))
		return work_stop_client(w, "put_start");
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
		return work_stop_client(w, "put_commit");
	answered(w, REPLAY_PUT_COMMIT, now);
	w->counts->lost_plans += outcome.outcome == PFS_GROUP_LOST;
	w->counts->put_ns += clock_ns() - begin;
	return 0;
}

int work_put(struct work *w, struct rank *rank, const struct pfs_key *keys, uint32_t first, uint32_t count, const uint8_t *ticket)
{
	uint32_t each = w->client->options->group_pages, left = count;
	uint8_t own[PFS_TICKET_BYTES];
	bool never = false;

	if (ticket)
		memcpy(own, ticket, sizeof(own));
	for (unsigned turn = 0; count > 0; turn++) {
		if (put_once(w, rank, keys, first, count, each, ticket ? own : NULL, &left, &never))
			return 1;
		if (ticket)
			own[0]++; /* each rank was told the same, so it goes on under the same one */
		if (left < count)
			turn = 0;
		first += count - left;
		count = left;
		if (count == 0 || turn >= ROOM_TRIES || (never && each == FEW_PAGES))
			break; /* an engine would go on without */
		if (never || turn == ROOM_TRIES / 2) {
			each = FEW_PAGES;
			ticket = NULL; /* room for all ranks at once is not to be had: each takes what it gets */
		} else {
			pfs_news(rank->session, ROOM_WAIT_MS);
		}
	}
	return 0;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static int prepare(struct work *w)
{
	const struct layout_view *layout = w->client->layout;
	uint64_t largest = 0;
	uint32_t planes = 1;

	for (uint32_t c = 0; c < layout->classes; c++) {
		largest = layout->class[c].payload_bytes > largest ? layout->class[c].payload_bytes : largest;
		planes = layout->class[c].planes > planes ? layout->class[c].planes : planes;
	}
	if (layout->world > REPLAY_RANKS)
		return work_stop(w, "the namespace has %llu ranks, at most %u can be replayed",
			(unsigned long long)layout->world, REPLAY_RANKS);
	w->page_tokens = layout->page_tokens;
	w->groups = calloc(w->client->trace->longest + 1u, sizeof(*w->groups));
	w->wanted = calloc(PFS_MAX_WANTED, sizeof(*w->wanted));
	w->planes = calloc(planes, sizeof(*w->planes));
	w->planes_memory = aligned_alloc(64, (largest + 127) / 64 * 64);
	return w->groups && w->wanted && w->planes && w->planes_memory ? 0 : work_stop(w, "no memory");
}

int work_new(struct replay_client *client, struct replay_counts *counts, struct work **ret)
{
	struct work *w = calloc(1, sizeof(*w));

	*ret = w;
	if (!w)
		return 1;
	w->client = client;
	w->counts = counts;
	return prepare(w);
}

int work_open(struct work *w, uint32_t number, struct rank *ret)
{
	struct pfs_options options;

	pfs_options_init(&options);
	options.rank = number;
	options.wait_prewarm = 1;
	options.deadline_ms = REPLAY_WAIT_S * 1000;
	if (pfs_open(w->client->path, &options, &ret->session))
		return work_stop_client(w, "no session");
	return pfs_info(ret->session, &ret->info) ? work_stop_client(w, "info") : 0;
}

void work_close(struct work *w, struct rank *rank)
{
	if (rank->session && !pfs_info(rank->session, &rank->info))
		w->counts->reattached += rank->info.reattached;
	pfs_close(&rank->session);
}

void work_free(struct work **wp)
{
	struct work *w = *wp;

	*wp = NULL;
	if (!w)
		return;
	for (uint32_t i = 0; i < w->rank_count; i++)
		work_close(w, &w->ranks[i]);
	free(w->groups);
	free(w->wanted);
	free(w->planes);
	free(w->planes_memory);
	free(w);
}
