/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: a whole prefix stored and fetched through a daemon, beside the copies alone.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/bench_gpu.h"
#include "tools/host.h"

#define E2E_PLANE 16384u
#define E2E_PLANES 72u
#define E2E_BATCH 1024u /* keys of a put */
#define E2E_RECORD 32u  /* pages of a group */
#define ROOM_S 20u      /* that memory may take to grow */

struct e2e {
	struct bench_gpu *b;
	struct pfs_session *session;
	struct pfs_gpu_plane planes[E2E_PLANES];
	struct pfs_gpu_pool pool;
	struct pfs_gpu_pages pages;
	uint32_t *ids;
	struct pfs_key *keys;
	uint32_t count;
	uint64_t value_bytes;
};

static int open_session(struct e2e *e, const struct bench_daemon *daemon, double *attach_s)
{
	struct pfs_options options;
	char path[PATH_MAX];
	uint64_t begin;

	pfs_options_init(&options);
	options.rank = 0;
	options.auto_ack = 0;
	options.wait_prewarm = 1;
	options.deadline_ms = 120000;
	if (host_path(path, "%s/ns/benchgpu", daemon->mount))
		return 1;
	if (pfs_open(path, &options, &e->session))
		return complain_client(path);
	begin = clock_ns();
	if (pfs_gpu_attach(e->b->gpu, e->session, NULL, NULL))
		return bench_gpu_complain("attaching");
	*attach_s = (double)(clock_ns() - begin) / 1e9;
	return 0;
}

/* Page i of the chain is page i of the pool. */
static int make_lists(struct e2e *e)
{
	struct bench_gpu *b = e->b;

	e->value_bytes = (uint64_t)E2E_PLANE * E2E_PLANES;
	e->count = (uint32_t)(b->bytes / e->value_bytes);
	e->keys = malloc(e->count * sizeof(*e->keys));
	e->ids = malloc(e->count * sizeof(*e->ids));
	if (!e->keys || !e->ids)
		return complain("no memory for %u keys", e->count);
	bench_chain_keys(1, 0, e->count, e->keys);
	for (uint32_t i = 0; i < E2E_PLANES; i++)
		e->planes[i] = (struct pfs_gpu_plane){
			.base = b->planes + (uint64_t)i * e->count * E2E_PLANE, .stride = E2E_PLANE, .bytes = E2E_PLANE};
	for (uint32_t i = 0; i < e->count; i++)
		e->ids[i] = i;
	e->pool = (struct pfs_gpu_pool){.planes = e->planes, .plane_count = E2E_PLANES, .page_limit = e->count};
	return 0;
}

/* As an engine does: what gets no room is asked for again when there is news, which may be a new range to register. */
static int put_some(struct e2e *e, const struct pfs_gpu_put_request *q, uint32_t values)
{
	uint64_t until = clock_ns() + ROOM_S * 1000000000ull;
	struct pfs_gpu_put_result result;

	for (;;) {
		if (pfs_gpu_put(e->b->gpu, e->session, q, NULL, &result))
			return bench_gpu_complain("putting");
		if (result.groups_refused == 0 || clock_ns() > until)
			break;
		pfs_news(e->session, 100);
		if (pfs_gpu_attach(e->b->gpu, e->session, NULL, NULL))
			return bench_gpu_complain("attaching");
	}
	if (result.groups_committed != q->put->group_count)
		return complain("%u of %u groups of %u values were put, %u got no room; --memory is too little, or --bytes too many",
			result.groups_committed, q->put->group_count, values, result.groups_refused);
	return 0;
}

static int put_all(struct e2e *e, double *seconds)
{
	struct bench_chains shape = {.record_pages = E2E_RECORD};
	uint64_t begin = clock_ns();

	for (uint32_t first = 0; first < e->count; first += E2E_BATCH) {
		uint32_t n = e->count - first < E2E_BATCH ? e->count - first : E2E_BATCH;
		struct pfs_put_group groups[E2E_BATCH / E2E_RECORD + 1];
		struct pfs_gpu_pages pages = {&e->pool, e->ids + first};
		struct pfs_put_request put;
		struct pfs_gpu_put_request q = {.put = &put, .classes = &pages};

		bench_put_request(&shape, e->keys + first, first ? &e->keys[first - 1] : NULL, first, n, groups, &put);
		if (put_some(e, &q, n))
			return 1;
	}
	*seconds = (double)(clock_ns() - begin) / 1e9;
	return 0;
}

static int get_all(struct e2e *e, double *seconds)
{
	const struct pfs_get_request get = {.keys = e->keys, .key_count = e->count, .flags = PFS_GET_NO_BITS};
	const struct pfs_gpu_pages pages = {&e->pool, e->ids};
	const struct pfs_gpu_get_request q = {.get = &get, .classes = &pages, .class_count = 1};
	struct pfs_gpu_get_result result;
	uint64_t begin = clock_ns();

	if (pfs_gpu_get(e->b->gpu, e->session, &q, &result))
		return bench_gpu_complain("getting");
	*seconds = (double)(clock_ns() - begin) / 1e9;
	if (result.values != e->count)
		return complain("%u of %u values came", result.values, e->count);
	return 0;
}

/* What was put is what came: the pages are poisoned between. */
static int check(struct e2e *e, const uint8_t *want)
{
	uint64_t bytes = e->count * e->value_bytes;
	uint8_t *got = malloc(bytes);
	double took;
	int r = got ? 0 : complain("no memory");

	if (!r && lab_set(e->b->lab, e->b->planes, 0x5a, bytes))
		r = bench_gpu_complain("poisoning");
	if (!r)
		r = get_all(e, &took);
	if (!r && lab_read(e->b->lab, got, e->b->planes, bytes))
		r = bench_gpu_complain("reading back");
	if (!r && memcmp(got, want, bytes))
		r = complain("what came is not what was put");
	free(got);
	return r;
}

static int get_once(void *context, double *gbps)
{
	struct e2e *e = context;
	double took = 0;
	int r = get_all(e, &took);

	*gbps = (double)(e->count * e->value_bytes) / 1e9 / took;
	return r;
}

/* Gets beside the same copies by the library alone. */
static int compare_gets(struct e2e *e, struct bench_values *v)
{
	struct bench_way copies = {.b = e->b, .v = v, .to_device = true, .path = -1};
	struct bench_paired pairs;
	double best = 0;
	int r = bench_pairs(&best, bench_way_once, &copies, get_once, e, &pairs);

	if (!r)
		bench_print(&e->b->o, "e2e_get_ratio", pairs.ratio, "", 0,
			json_pack("{s:f, s:f, s:i}", "gbps", pairs.rate, "copy_gbps", pairs.reference, "disturbed", (int)pairs.disturbed));
	return r;
}

/* What a put takes beside the same copies; the first one, for which memory may still have to be granted. */
static int compare_put(struct e2e *e, struct bench_values *v)
{
	double copy[3], put = 0;
	int r = 0;

	for (int i = 0; i < 3 && !r; i++)
		r = bench_copy(e->b, v, false, -1, &copy[i]);
	bench_gpu_fill(e->b->host, e->count * e->value_bytes);
	if (!r && lab_write(e->b->lab, e->b->planes, e->b->host, e->count * e->value_bytes))
		r = bench_gpu_complain("writing what is put");
	if (!r)
		r = put_all(e, &put);
	if (!r)
		bench_print(&e->b->o, "e2e_put_ratio", bench_median(copy, 3) / put, "", 0,
			json_pack("{s:f, s:f}", "put_s", put, "copy_s", copy[1]));
	return r;
}

static int measure(struct e2e *e, double attach_s)
{
	struct bench_gpu *b = e->b;
	struct pfs_gpu_info info;
	struct bench_values v;
	int r = bench_values_make(b, E2E_PLANE, E2E_PLANES, 0, b->bytes, &v);

	if (r)
		return r;
	r = compare_put(e, &v);
	if (!r)
		r = check(e, b->host);
	if (!r)
		r = compare_gets(e, &v);
	bench_values_free(&v);
	if (r)
		return r;
	pfs_gpu_info(b->gpu, &info);
	bench_print(&b->o, "attach_s_per_gib", attach_s / ((double)(info.registered_bytes - 2 * b->bytes) / (1 << 30)), "s/GiB", 0,
		json_pack("{s:I, s:f}", "registrations", (json_int_t)info.registrations, "attach_s", attach_s));
	return 0;
}

static int with_namespace(struct bench_gpu *b, const struct bench_daemon *daemon)
{
	struct e2e e = {.b = b};
	double attach_s = 0;
	int r = make_lists(&e);

	if (!r)
		r = open_session(&e, daemon, &attach_s);
	if (!r)
		r = measure(&e, attach_s);
	if (e.session)
		pfs_gpu_detach(b->gpu, e.session);
	pfs_close(&e.session);
	free(e.keys);
	free(e.ids);
	return r;
}

int bench_gpu_daemon(struct bench_gpu *b)
{
	const struct bench_daemon_options d = {.memory = b->memory, .populate = true};
	struct bench_daemon daemon;
	int r;

	if (!bench_gpu_wants(b, "e2e_put_ratio") & !bench_gpu_wants(b, "e2e_get_ratio") & !bench_gpu_wants(b, "attach_s_per_gib"))
		return 0;
	if (b->o.mount ? bench_daemon_use(&daemon, b->o.mount) : bench_daemon_start(&daemon, &d, true)) {
		bench_skip(&b->o, "e2e_get_ratio", "no daemon can be started here", NULL);
		return 0;
	}
	r = bench_namespace(&daemon, "benchgpu", E2E_PLANE, E2E_PLANES, b->bytes + b->bytes / 8);
	if (!r) {
		r = with_namespace(b, &daemon);
		if (b->o.mount)
			bench_namespace_remove(&daemon, "benchgpu");
	}
	bench_daemon_stop(&daemon);
	return r;
}
