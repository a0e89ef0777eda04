/* SPDX-License-Identifier: Apache-2.0
 *
 * Records with real bytes, moved through libprefixfs: into memory, down to disk, back, and compared.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench_disk.h"
#include "tools/host.h"
#include "tools/value_bytes.h"

#define TRIES 600u
#define WAIT_MS 100u
#define SAMPLE_NS 50000000L

/* ---- into memory ------------------------------------------------------------------------------------------------- */

static int put_record(struct bench_chains *chains, const struct bench_shape *shape, uint64_t number)
{
	struct pfs_key keys[BENCH_BATCH];
	struct pfs_put_result put;

	bench_chain_keys(number, 0, shape->record_pages, keys);
	for (unsigned turn = 0; turn < TRIES; turn++) {
		if (bench_put_start(chains, keys, NULL, 0, shape->record_pages, &put))
			return complain_client("put_start");
		for (uint32_t i = 0; i < shape->record_pages && put.groups_ok; i++)
			if (put.answers[0][i] < PFS_ANSWER_MIN)
				value_bytes_fill(&keys[i], 0, 0, put.segment + put.answers[0][i], shape->page_bytes);
		bool there = put.groups_ok == 1;

		if (pfs_put_commit(chains->session, put.plan, 0, 0, NULL, NULL))
			return complain_client("put_commit");
		if (there)
			return 0;
		pfs_news(chains->session, WAIT_MS);
	}
	return complain("record %llu got no room in memory", (unsigned long long)number);
}

int bench_move_put(struct bench_chains *chains, const struct bench_shape *shape, uint64_t first)
{
	struct progress progress;
	int r = 0;

	progress_start(&progress, "putting", shape->records);
	for (uint64_t i = 0; i < shape->records && !r; i++) {
		r = put_record(chains, shape, first + i);
		progress_show(&progress, i);
	}
	progress_end(&progress);
	return r;
}

/* ---- measuring while others work ---------------------------------------------------------------------------------- */

struct work {
	_Atomic unsigned running; /* threads */
	_Atomic int failed;
	_Atomic uint64_t end_ns; /* the last one's */
};

static void work_ends(struct work *work, int r)
{
	if (r)
		atomic_store(&work->failed, 1);
	atomic_store(&work->end_ns, clock_ns()); /* of several: about the last one's */
	atomic_fetch_sub(&work->running, 1);
}

/* Until all have ended: shows how much the counter @word has risen, and keeps the most memory that the disk tier says it has. */
static void watch(struct work *work, const struct bench_daemon *daemon, const char *word, const char *what,
	uint64_t goal, struct bench_moved *ret)
{
	const struct timespec step = {.tv_nsec = SAMPLE_NS};
	int64_t begin = bench_disk_word(daemon, word), memory;
	struct progress progress;

	progress_start(&progress, what, goal);
	while (atomic_load(&work->running)) {
		nanosleep(&step, NULL);
		memory = bench_disk_word(daemon, "memory");
		if (memory > (int64_t)ret->memory)
			ret->memory = (uint64_t)memory;
		progress_show(&progress, (uint64_t)(bench_disk_word(daemon, word) - begin));
	}
	progress_end(&progress);
}

/* ---- down to disk -------------------------------------------------------------------------------------------------- */

struct draining {
	struct work work;
	struct pfs_session *session;
};

static void *drain_main(void *context)
{
	struct draining *d = context;
	int r;

	do
		r = pfs_drain(d->session, NULL);
	while (r == -ETIMEDOUT);
	if (r)
		complain_client("drain");
	work_ends(&d->work, r);
	return NULL;
}

int bench_move_drain(const struct bench_daemon *daemon, struct bench_chains *chains, const struct bench_shape *shape,
	struct bench_moved *ret)
{
	struct draining d = {.session = chains->session, .work.running = 1};
	uint64_t goal = bench_shape_bytes(shape), cpu_ns = bench_cpu_ns(daemon->serving), begin_ns;
	int64_t written = bench_disk_word(daemon, "written"), files = bench_disk_word(daemon, "writes");
	pthread_t thread;
	int r;

	*ret = (struct bench_moved){0};
	begin_ns = clock_ns();
	r = pthread_create(&thread, NULL, drain_main, &d);
	if (r)
		return complain("a thread cannot be started: %s", strerror(r));
	watch(&d.work, daemon, "written", "writing", goal, ret);
	pthread_join(thread, NULL);
	ret->ns = atomic_load(&d.work.end_ns) - begin_ns;
	ret->cpu_ns = bench_cpu_ns(daemon->serving) - cpu_ns;
	written = bench_disk_word(daemon, "written") - written;
	files = bench_disk_word(daemon, "writes") - files;
	/* Headers and keys are not counted: what is left when as many whole records are taken. */
	ret->bytes = (uint64_t)files * shape->page_bytes * shape->record_pages;
	if (ret->bytes > (uint64_t)written)
		ret->bytes = (uint64_t)written;
	if (!atomic_load(&d.work.failed) && ret->bytes < goal / 2)
		return complain("%llu of %llu bytes were written before the drain: there was not enough memory",
			(unsigned long long)(goal - ret->bytes), (unsigned long long)goal);
	return atomic_load(&d.work.failed);
}

/* ---- back ---------------------------------------------------------------------------------------------------------- */

struct reading {
	struct work work;
	const struct bench_shape *shape;
	uint64_t first;
	_Atomic uint64_t next; /* record */
};

/* A record that was asked for. */
struct handle {
	struct pfs_key *keys; /* [record_pages] */
	uint64_t number, handle, boundary;
	bool open;
};

static int open_session(const char *path, struct pfs_session **ret)
{
	struct pfs_options options;

	pfs_options_init(&options);
	options.rank = 0;
	options.wait_prewarm = 1;
	return pfs_open(path, &options, ret) ? complain_client(path) : 0;
}

static int ask(struct pfs_session *session, const struct bench_shape *shape, struct handle *h)
{
	struct pfs_get_request q = {.keys = h->keys, .key_count = shape->record_pages, .flags = PFS_GET_NO_BITS};
	struct pfs_get_result found;

	bench_chain_keys(h->number, 0, shape->record_pages, h->keys);
	if (pfs_get_start(session, &q, &found))
		return complain_client("get_start");
	h->handle = found.handle;
	h->boundary = found.transferable_len;
	h->open = true;
	if (h->boundary != (uint64_t)shape->record_pages * BENCH_TOKENS)
		return complain("record %llu: %llu of %u tokens are there", (unsigned long long)h->number,
			(unsigned long long)h->boundary, shape->record_pages * BENCH_TOKENS);
	return 0;
}

/* Are the pages of one window what was put? */
static int compare(
	const struct bench_shape *shape, const struct handle *h, uint64_t from, const struct pfs_transfer_result *got)
{
	uint64_t first = from / BENCH_TOKENS, count = (got->delivered_len - from) / BENCH_TOKENS;

	for (uint64_t i = 0; i < count; i++)
		if (!value_bytes_match(&h->keys[first + i], 0, 0, got->segment + got->offsets[0][i], shape->page_bytes))
			return complain("record %llu, page %llu: the bytes are not those that were put",
				(unsigned long long)h->number, (unsigned long long)(first + i));
	return 0;
}

/* All of it, in as many windows as memory wants. */
static int transfer(struct pfs_session *session, const struct bench_shape *shape, struct handle *h, bool compared)
{
	uint64_t from = 0;

	h->open = false;
	for (unsigned turn = 0; from < h->boundary && turn < TRIES; turn++) {
		struct pfs_transfer_request q = {
			.handle = h->handle, .boundary = h->boundary, .from = from, .to = h->boundary};
		struct pfs_transfer_result got;
		int r = pfs_get_transfer(session, &q, &got);

		if (r == -EAGAIN)
			continue;
		if (r)
			return complain_client("get_transfer");
		r = compared ? compare(shape, h, from, &got) : 0;
		if (got.delivered_len == from)
			return complain("record %llu could not be read back", (unsigned long long)h->number);
		from = got.delivered_len;
		if (pfs_release(session, &got.plan, 1, NULL))
			return complain_client("release");
		if (r)
			return r;
	}
	return from < h->boundary ? complain("record %llu got no room", (unsigned long long)h->number) : 0;
}

/* The next one is asked for before the one before it is waited for. */
static int read_some(struct reading *reading, struct pfs_session *session, struct handle h[2], bool compared)
{
	const struct bench_shape *shape = reading->shape;
	unsigned at = 0;
	int r = 0;

	while (!r) {
		uint64_t n = atomic_fetch_add(&reading->next, 1);

		if (n < shape->records) {
			h[at].number = reading->first + n;
			r = ask(session, shape, &h[at]);
		}
		if (!r && h[!at].open)
			r = transfer(session, shape, &h[!at], compared);
		else if (n >= shape->records)
			break;
		at = !at;
	}
	return r;
}

static int read_with(struct reading *reading, struct pfs_session *session, bool compared)
{
	struct handle h[2] = {{0}};
	int r;

	for (unsigned i = 0; i < 2; i++)
		h[i].keys = calloc(reading->shape->record_pages, sizeof(*h[i].keys));
	r = h[0].keys && h[1].keys ? read_some(reading, session, h, compared) : complain("no memory");
	free(h[0].keys);
	free(h[1].keys);
	return r;
}

struct reader {
	struct reading *reading;
	struct pfs_session *session;
	pthread_t thread;
	bool started;
};

static void *read_main(void *context)
{
	struct reader *reader = context;

	work_ends(&reader->reading->work, read_with(reader->reading, reader->session, false));
	return NULL;
}

static void start_all(struct reader *readers, unsigned count)
{
	struct work *work = &readers[0].reading->work;

	for (unsigned i = 0; i < count && !atomic_load(&work->failed); i++) {
		atomic_fetch_add(&work->running, 1);
		if (pthread_create(&readers[i].thread, NULL, read_main, &readers[i]))
			work_ends(work, complain("a thread cannot be started"));
		else
			readers[i].started = true;
	}
}

int bench_move_read(const struct bench_daemon *daemon, const struct bench_shape *shape, uint64_t first,
	unsigned threads, struct bench_moved *ret)
{
	uint64_t goal = bench_shape_bytes(shape), cpu_ns, begin_ns;
	int64_t read = bench_disk_word(daemon, "read");
	struct reading reading = {.shape = shape, .first = first};
	struct reader readers[BENCH_SESSIONS_MOST] = {{0}};
	char path[PATH_MAX];
	int r = host_path(path, "%s/ns/bench", daemon->mount) ? 1 : 0;

	*ret = (struct bench_moved){.bytes = goal};
	for (unsigned i = 0; i < threads && !r; i++) {
		readers[i].reading = &reading;
		r = open_session(path, &readers[i].session);
	}
	cpu_ns = bench_cpu_ns(daemon->serving);
	begin_ns = clock_ns();
	if (!r) {
		start_all(readers, threads);
		watch(&reading.work, daemon, "read", "reading", goal, ret);
	}
	for (unsigned i = 0; i < threads; i++)
		if (readers[i].started)
			pthread_join(readers[i].thread, NULL);
	ret->ns = atomic_load(&reading.work.end_ns) - begin_ns;
	ret->cpu_ns = bench_cpu_ns(daemon->serving) - cpu_ns;
	for (unsigned i = 0; i < threads; i++)
		if (readers[i].session)
			pfs_close(&readers[i].session);
	read = bench_disk_word(daemon, "read") - read;
	if (!r && !atomic_load(&reading.work.failed) && (uint64_t)read < goal)
		return complain("%lld of %llu bytes came from disk", (long long)read, (unsigned long long)goal);
	return r || atomic_load(&reading.work.failed);
}

int bench_move_verify(const struct bench_daemon *daemon, const struct bench_shape *shape, uint64_t first)
{
	struct reading reading = {.shape = shape, .first = first};
	struct pfs_session *session;
	char path[PATH_MAX];
	int r;

	if (host_path(path, "%s/ns/bench", daemon->mount) || open_session(path, &session))
		return 1;
	r = read_with(&reading, session, true);
	pfs_close(&session);
	return r;
}
