/* SPDX-License-Identifier: Apache-2.0
 *
 * A host with a disk tier in a temporary folder, for tests of what leaves memory and comes back.
 *
 * Values have contents that follow from (chain, page, class). A gate in front of the engine's opening of files keeps reads under way
 * for as long as a test wants.
 */
#ifndef PREFIXFS_TESTS_UNIT_TIER_WORLD_H
#define PREFIXFS_TESTS_UNIT_TIER_WORLD_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <unistd.h>

#include "store/disk_ops.h"
#include "store/host_private.h"
#include "store/manage.h"
#include "store/tiering.h"
#include "tests/unit/store_fixture.h"

#define WORLD_NS 60000000000ull /* no test waits for longer */
#define WORLD_KV "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":16384}]}"
#define WORLD_VALUE 16384u
#define WORLD_ROW 0xffffffffu   /* page of a row's contents */

/* ---- the gate --------------------------------------------------------------------------------------------------------- */

struct gate {
	struct disk_ops ops; /* first */
	struct disk_ops *under;
	struct disk_ops_table table;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	bool closed;
	unsigned waiting; /* opens that wait */
	_Atomic unsigned opens; /* to read */
};

#define UNDER(ops) (((struct gate *)(ops))->under)

static inline void gate_free(struct disk_ops **ops)
{
	struct gate *g = (struct gate *)*ops;

	g->under->table->free(&g->under);
	free(g);
	*ops = NULL;
}

static inline bool gate_direct(const struct disk_ops *ops)
{
	return UNDER(ops)->table->direct(UNDER(ops));
}

static inline int gate_create(struct disk_ops *ops, int dir, const char *name)
{
	return UNDER(ops)->table->create(UNDER(ops), dir, name);
}

static inline int gate_open(struct disk_ops *ops, int dir, const char *name, bool write)
{
	struct gate *g = (struct gate *)ops;

	pthread_mutex_lock(&g->mutex);
	g->waiting++;
	pthread_cond_broadcast(&g->cond);
	while (g->closed && !write)
		pthread_cond_wait(&g->cond, &g->mutex);
	g->waiting--;
	pthread_mutex_unlock(&g->mutex);
	atomic_fetch_add(&g->opens, !write);
	return UNDER(ops)->table->open(UNDER(ops), dir, name, write);
}

static inline void gate_close_fd(struct disk_ops *ops, int fd)
{
	UNDER(ops)->table->close(UNDER(ops), fd);
}

static inline int gate_allocate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	return UNDER(ops)->table->allocate(UNDER(ops), fd, bytes);
}

static inline int gate_truncate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	return UNDER(ops)->table->truncate(UNDER(ops), fd, bytes);
}

static inline int gate_sync(struct disk_ops *ops, int fd)
{
	return UNDER(ops)->table->sync(UNDER(ops), fd);
}

static inline int gate_sync_dir(struct disk_ops *ops, int dir)
{
	return UNDER(ops)->table->sync_dir(UNDER(ops), dir);
}

static inline int gate_rename(struct disk_ops *ops, int from_dir, const char *from, int to_dir, const char *to)
{
	return UNDER(ops)->table->rename(UNDER(ops), from_dir, from, to_dir, to);
}

static inline int gate_unlink(struct disk_ops *ops, int dir, const char *name)
{
	return UNDER(ops)->table->unlink(UNDER(ops), dir, name);
}

static inline int gate_queue_new(struct disk_ops *ops, struct disk_ops_queue **ret, struct why *why)
{
	return UNDER(ops)->table->queue_new(UNDER(ops), ret, why);
}

static inline struct gate *gate_new(struct disk_ops **ret_faults)
{
	struct gate *g = calloc(1, sizeof(*g));
	struct why why = WHY_INIT;

	if (disk_ops_fault_new(disk_ops_plain_new(), "", false, &g->under, &why))
		fail_msg("faults: %s", why.text);
	*ret_faults = g->under;
	g->table = *g->under->table; /* what takes queues alone stays */
	g->table.free = gate_free;
	g->table.direct = gate_direct;
	g->table.create = gate_create;
	g->table.open = gate_open;
	g->table.close = gate_close_fd;
	g->table.allocate = gate_allocate;
	g->table.truncate = gate_truncate;
	g->table.sync = gate_sync;
	g->table.sync_dir = gate_sync_dir;
	g->table.rename = gate_rename;
	g->table.unlink = gate_unlink;
	g->table.queue_new = gate_queue_new;
	g->ops.table = &g->table;
	pthread_mutex_init(&g->mutex, NULL);
	pthread_cond_init(&g->cond, NULL);
	return g;
}

static inline void gate_set(struct gate *g, bool closed)
{
	pthread_mutex_lock(&g->mutex);
	g->closed = closed;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->mutex);
}

/* Until an open stands at the gate. */
static inline void gate_await(struct gate *g)
{
	pthread_mutex_lock(&g->mutex);
	while (!g->waiting)
		pthread_cond_wait(&g->cond, &g->mutex);
	pthread_mutex_unlock(&g->mutex);
}

/* ---- the world -------------------------------------------------------------------------------------------------------- */

struct tier_world {
	struct fixture f;
	char path[64];
	struct gate *gate;
	struct disk_ops *faults;
	_Atomic unsigned corrupt; /* events */
	uint64_t next_plan;
};

static inline void world_note(void *context, struct space *space, const struct host_event *events, uint32_t count)
{
	struct tier_world *w = context;

	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_add(&w->corrupt, events[i].kind == HOST_EVENT_CORRUPT);
}

/* A host on the folder, which may have files, for @ranks ranks. */
static inline void world_start(struct tier_world *w, const char *classes, uint32_t ranks, uint64_t memory)
{
	struct host_config config = {
		.memory_bytes = memory,
		.wish = SEGMENT_WISH_SMALL,
		.populate = false,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 10000,
		.disk_path = w->path,
		.disk_bytes = 1ull << 30,
		.disk_workers = 2,
		.events = { .context = w, .note = world_note },
	};
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	w->gate = gate_new(&w->faults);
	config.disk_ops = &w->gate->ops;
	w->next_plan = 1;
	if (host_new(&config, &w->f.host, &why) ||
	    host_space_create(w->f.host, "test", fixture_layout(classes, ranks, memory), &access, &w->f.space, &why))
		fail_msg("world: %s", why.text);
	assert_non_null(w->f.space->tiering);
	fixture_await_prewarm(&w->f);
}

static inline void world_folder(struct tier_world *w)
{
	memset(w, 0, sizeof(*w));
	snprintf(w->path, sizeof(w->path), "/tmp/prefixfs-tier-XXXXXX");
	assert_non_null(mkdtemp(w->path));
}

static inline void world_open(struct tier_world *w, const char *classes, uint64_t memory)
{
	world_folder(w);
	world_start(w, classes, 1, memory);
}

static inline int world_unlink(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	return remove(path);
}

static inline void world_close(struct tier_world *w)
{
	fixture_close(&w->f);
	nftw(w->path, world_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- contents ---------------------------------------------------------------------------------------------------------- */

static inline void world_fill(uint64_t *words, uint64_t bytes, uint64_t chain, uint32_t page)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		words[i] = (chain << 40) ^ ((uint64_t)page << 20) ^ i * 0x9e3779b97f4a7c15ull;
}

static inline bool world_is(const void *bytes, uint64_t n, uint64_t chain, uint32_t page)
{
	uint64_t expected[2048];

	assert_true(n <= sizeof(expected));
	world_fill(expected, n, chain, page);
	return !memcmp(bytes, expected, n);
}

static inline void world_check(struct tier_world *w, uint64_t offset, uint64_t n, uint64_t chain, uint32_t page)
{
	uint64_t bytes[2048];

	assert_true(offset != PUT_ANSWER_NONE);
	assert_int_equal(segment_read(w->f.space->segment, offset, bytes, n), 0);
	if (!world_is(bytes, n, chain, page))
		fail_msg("chain %llu, page %u: other bytes", (unsigned long long)chain, page);
}

static inline void world_write(struct tier_world *w, uint64_t offset, uint64_t n, uint64_t chain, uint32_t page)
{
	uint64_t bytes[2048];

	world_fill(bytes, n, chain, page);
	assert_int_equal(segment_write(w->f.space->segment, offset, bytes, n), 0);
}

/* Puts pages [from, from + pages) of a chain (class 0, kv) and, with @row, class 1 (gdn) behind them. Waits for room. */
static inline void world_put(struct tier_world *w, struct session *s, uint64_t plan, uint64_t chain, uint32_t from, uint32_t pages,
			     bool row)
{
	static _Thread_local struct put_result r;
	uint64_t deadline_ns = clock_now_ns() + WORLD_NS;

	for (;; plan += 1000000) {
		int error = put_chain(s, plan, chain, from, pages, row ? 3 : 1, 0, &r);

		if (error)
			fail_msg("put: %s", r.why.text);
		if (r.status[0] == PUT_OK)
			break;
		assert_int_equal(r.status[0], PUT_NOROOM);
		assert_true(clock_now_ns() < deadline_ns);
		mover_ask(w->f.host);
		sched_yield();
	}
	for (uint32_t i = 0; i < pages; i++)
		if (r.answers[i] < PUT_ANSWER_DUPLICATE)
			world_write(w, r.answers[i], WORLD_VALUE, chain, from + i);
	if (row && r.answers[pages] < PUT_ANSWER_DUPLICATE)
		world_write(w, r.answers[pages], 10000, chain, WORLD_ROW);
	commit_all(s, plan, 1);
}

/* Everything is on disk and nowhere else. */
static inline void world_to_disk(struct tier_world *w)
{
	struct tiering *t = w->f.space->tiering;
	uint64_t left, values = 0, bytes;
	struct why why = WHY_INIT;

	if (host_drain(w->f.host, w->f.space, HOST_DRAIN_FULL, clock_now_ns() + WORLD_NS, NULL, NULL, &left, &why))
		fail_msg("drain: %s", why.text);
	do {
		lock_take(&w->f.space->lock);
		bytes = demote_some(t, UINT64_MAX, &values);
		lock_drop(&w->f.space->lock);
	} while (bytes);
}

/* Sum of holds. */
static inline uint64_t world_holds(struct tier_world *w)
{
	const struct tiering *t = w->f.space->tiering;
	uint64_t holds = 0;

	lock_take(&w->f.space->lock);
	for (uint32_t slot = 0; slot < t->place_first; slot++)
		holds += t->holds[slot];
	lock_drop(&w->f.space->lock);
	return holds;
}

static inline void world_await_loads(struct tier_world *w)
{
	uint64_t deadline_ns = clock_now_ns() + WORLD_NS;

	while (fixture_report(&w->f).stats.loads) {
		assert_true(clock_now_ns() < deadline_ns);
		sched_yield();
	}
}

static inline void world_at_base(struct tier_world *w, uint32_t sessions)
{
	world_await_loads(w);
	while (disk_jobs(w->f.host->disk)) /* a write holds its slots */
		sched_yield();
	assert_at_base(&w->f, sessions);
	assert_int_equal(world_holds(w), 0);
	assert_int_equal(fixture_report(&w->f).stats.slots_owed, 0);
}

static inline int world_get(struct session *s, uint64_t handle, uint64_t chain, uint32_t pages, struct get_start *call)
{
	struct why why = WHY_INIT;

	*call = (struct get_start){ 0 };
	int r = get_chain(s, handle, chain, pages, 0, call, &why);

	if (r)
		fail_msg("get: %s", why.text);
	return r;
}

/* ---- transfers ---------------------------------------------------------------------------------------------------------- */

static inline void transfer_of(struct get_transfer *call, struct session *s, uint64_t handle, uint64_t plan, uint32_t boundary,
			       uint32_t from, uint32_t to, uint64_t *offsets, uint32_t capacity)
{
	*call = (struct get_transfer){
		.session = s,
		.handle = handle,
		.plan = plan,
		.boundary = (uint64_t)boundary * FIXTURE_PAGE,
		.from = (uint64_t)from * FIXTURE_PAGE,
		.to = (uint64_t)to * FIXTURE_PAGE,
		.deadline_ns = clock_now_ns() + WORLD_NS,
		.offsets = offsets,
		.offsets_capacity = capacity,
	};
}

/* Begins it and steps until it has to wait (STEP_WAIT) or is over. */
static inline int transfer_start(struct get_transfer *call, struct why *why)
{
	int r = session_enter(call->session, 0, why);

	r = r ? r : get_transfer_begin(call, why);
	r = r ? r : STEP_MORE;
	while (r == STEP_MORE)
		r = get_transfer_step(call, why);
	session_leave(call->session);
	return r;
}

static inline int transfer_again(struct get_transfer *call, struct why *why)
{
	int r = session_enter(call->session, 0, why);

	if (r)
		return r;
	do
		r = get_transfer_step(call, why);
	while (r == STEP_MORE);
	session_leave(call->session);
	return r;
}

static inline int transfer_end(struct get_transfer *call, int r, struct why *why)
{
	while (r == STEP_WAIT) {
		sched_yield();
		r = transfer_again(call, why);
	}
	return r;
}

static inline int transfer_all(struct get_transfer *call, struct why *why)
{
	return transfer_end(call, transfer_start(call, why), why);
}

#endif
