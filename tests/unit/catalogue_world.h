/* SPDX-License-Identifier: Apache-2.0
 *
 * A catalogue in a folder of its own, and rows that follow from their ids.
 */
#ifndef PREFIXFS_TESTS_UNIT_CATALOGUE_WORLD_H
#define PREFIXFS_TESTS_UNIT_CATALOGUE_WORLD_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "index/catalogue.h"
#include "index/mix.h"
#include "store/base/clock.h"

#define SECOND 1000000000ull
#define WORLD_PAGES_MOST 32u

static const uint8_t world_identity[32] = "identity of the namespace", world_fingerprint[16] = "fingerprint";

struct world {
	char folder[64], path[96];
	struct catalogue *catalogue;
	bool fresh, behind;
	struct why why;
};

static inline void world_key(struct key *ret, uint64_t id, uint64_t page)
{
	for (unsigned i = 0; i < 4; i++)
		ret->words[i] = mix_64(id * 0x9e3779b97f4a7c15ull + page, 0xd6e8feb86659fd93ull + i);
}

/* A row and what it points to. */
struct world_row {
	struct catalogue_row row;
	struct key keys[WORLD_PAGES_MOST];
	uint8_t absent[16];
	uint16_t alias[5];
};

static inline void world_make_row(struct world_row *w, uint64_t id)
{
	uint64_t roll = mix_64(id ^ 0xa0761d6478bd642full, 0xe7037ed1a0b428dbull);

	memset(w, 0, sizeof(*w));
	w->row = (struct catalogue_row){
		.id = id,
		.nonce = roll,
		.start = id % 5 * 64,
		.pages = (uint32_t)(id % WORLD_PAGES_MOST),
		.file_pages = (uint32_t)(id % WORLD_PAGES_MOST + id % 3),
		.generation = 1 + id / 1000,
		.file_bytes = roll >> 20,
		.whole_id = id % 11 ? 0 : UINT64_MAX - id,
		.whole_count = id % 11 ? 0 : 3,
		.created_s = 1700000000 + (int64_t)id,
		.written_s = 1700000010 + (int64_t)id,
		.flags = (id % 3 ? 0 : CATALOGUE_ROOT) | (id % 11 ? 0 : CATALOGUE_WHOLE) | (id % 2 ? CATALOGUE_ROW : 0) |
			 (id % 13 ? 0 : CATALOGUE_PINNED),
		.keys = w->keys,
	};
	w->row.consumed = w->row.start + w->row.pages * 64;
	for (uint32_t i = 0; i < w->row.pages; i++)
		world_key(&w->keys[i], id, i);
	world_key(&w->row.endpoint, id, w->row.pages ? w->row.pages - 1 : 99);
	if (id % 3)
		world_key(&w->row.parent, id, 100);
	if (id % 4 == 0) {
		memset(w->absent, (int)id, sizeof(w->absent));
		w->row.absent = w->absent;
		w->row.absent_bytes = sizeof(w->absent);
	}
	if (id % 5 == 0) {
		for (unsigned i = 0; i < 5; i++)
			w->alias[i] = (uint16_t)(id + i * 1000);
		w->row.alias = w->alias;
		w->row.alias_count = 5;
	}
}

/* As catalogue_trim has it. */
static inline void world_trim_row(struct world_row *w, uint32_t pages, bool row)
{
	w->row.flags &= row && pages == w->row.pages ? ~0u : ~CATALOGUE_ROW;
	w->row.pages = pages;
	w->row.consumed = w->row.start + pages * 64;
	w->row.file_bytes = pages * 1000;
	world_key(&w->row.endpoint, w->row.id, 7777);
}

static inline bool world_trim(struct world *world, uint64_t id, uint32_t pages, bool row)
{
	struct world_row w;

	world_make_row(&w, id);
	world_trim_row(&w, pages, row);
	return catalogue_trim(world->catalogue, id, pages, w.row.consumed, &w.row.endpoint, row, w.row.file_bytes);
}

static inline bool world_add(struct world *world, uint64_t id)
{
	struct world_row w;

	world_make_row(&w, id);
	return catalogue_add(world->catalogue, &w.row);
}

static inline bool world_same(const struct catalogue_row *a, const struct catalogue_row *b)
{
	return a->id == b->id && a->nonce == b->nonce && a->start == b->start && a->consumed == b->consumed &&
	       a->generation == b->generation && a->file_bytes == b->file_bytes && a->whole_id == b->whole_id &&
	       a->created_s == b->created_s && a->written_s == b->written_s && a->pages == b->pages && a->file_pages == b->file_pages && a->flags == b->flags &&
	       a->whole_count == b->whole_count && a->alias_count == b->alias_count && a->absent_bytes == b->absent_bytes &&
	       !memcmp(&a->endpoint, &b->endpoint, sizeof(a->endpoint)) && !memcmp(&a->parent, &b->parent, sizeof(a->parent)) &&
	       (!a->pages || !memcmp(a->keys, b->keys, a->pages * sizeof(*a->keys))) &&
	       (!a->alias_count || !memcmp(a->alias, b->alias, a->alias_count * sizeof(*a->alias))) &&
	       (!a->absent_bytes || !memcmp(a->absent, b->absent, a->absent_bytes)) && !a->alias == !b->alias && !a->absent == !b->absent;
}

/* ---- the folder ---------------------------------------------------------------------------------------------------- */

static inline int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	if (!w)
		return -1;
	strcpy(w->folder, "/tmp/prefixfs-catalogue-XXXXXX");
	if (!mkdtemp(w->folder))
		return -1;
	snprintf(w->path, sizeof(w->path), "%s/catalogue.sqlite", w->folder);
	*state = w;
	return 0;
}

static inline int world_teardown(void **state)
{
	static const char *const parts[] = {"", "-wal", "-shm", ".damaged", ".damaged-wal"};
	struct world *w = *state;
	char path[128];

	catalogue_close(&w->catalogue, SECOND);
	for (unsigned i = 0; i < 5; i++) {
		snprintf(path, sizeof(path), "%s%s", w->path, parts[i]);
		unlink(path);
	}
	int r = rmdir(w->folder);

	free(w);
	return r;
}

static inline bool world_has(const struct world *w, const char *part)
{
	char path[128];

	snprintf(path, sizeof(path), "%s%s", w->path, part);
	return access(path, F_OK) == 0;
}

static inline void world_open(struct world *w)
{
	assert_null(w->catalogue);
	w->why = (struct why)WHY_INIT;
	if (catalogue_open(w->path, world_identity, world_fingerprint, &w->catalogue, &w->fresh, &w->behind, &w->why))
		fail_msg("%s", w->why.text);
}

static inline void world_close(struct world *w)
{
	catalogue_close(&w->catalogue, 20 * SECOND);
	assert_null(w->catalogue);
}

static inline void world_flush(struct world *w)
{
	assert_true(catalogue_flush(w->catalogue, 20 * SECOND));
}

static inline struct catalogue_report world_report(const struct world *w)
{
	struct catalogue_report report;

	catalogue_report(w->catalogue, &report);
	return report;
}

/* Until @what() of the report or 20 s are over. */
static inline void world_await(const struct world *w, bool (*what)(const struct catalogue_report *report))
{
	const struct timespec nap = {.tv_nsec = 2000000};
	uint64_t deadline = clock_now_ns() + 20 * SECOND;
	struct catalogue_report report = world_report(w);

	while (!what(&report)) {
		if (clock_now_ns() > deadline)
			fail_msg("still: queued %lu dropped %lu written %lu behind %d failed %d error '%s'", report.queued, report.dropped,
				 report.written, report.behind, report.failed, report.error);
		nanosleep(&nap, NULL);
		report = world_report(w);
	}
}

/* ---- loading ------------------------------------------------------------------------------------------------------- */

struct world_loaded {
	uint64_t rows, largest;
	const struct world_row *expected; /* in order; NULL: as world_make_row has them */
	uint64_t expected_rows;
	uint64_t stop_after;
	bool wrong;
};

static inline bool world_take(void *context, const struct catalogue_row *row)
{
	struct world_loaded *l = context;
	struct world_row made;
	const struct world_row *want = &made;

	if (l->expected && l->rows < l->expected_rows)
		want = &l->expected[l->rows];
	else
		world_make_row(&made, row->id);
	l->wrong |= row->id <= l->largest || (l->expected && l->rows >= l->expected_rows) || !world_same(row, &want->row) ||
		    (uintptr_t)row->keys % _Alignof(struct key);
	l->largest = row->id;
	l->rows++;
	return l->rows != l->stop_after;
}

/* All rows are as they are made, their number is what it returns. */
static inline uint64_t world_load(struct world *w)
{
	struct world_loaded l = {0};

	if (catalogue_load(w->catalogue, world_take, &l, &w->why))
		fail_msg("%s", w->why.text);
	assert_false(l.wrong);
	return l.rows;
}

/* ---- a process that ends without closing --------------------------------------------------------------------------- */

static inline pid_t world_fork(struct world *w, void (*work)(struct world *w))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid)
		return pid;
	w->why = (struct why)WHY_INIT;
	if (catalogue_open(w->path, world_identity, world_fingerprint, &w->catalogue, &w->fresh, &w->behind, &w->why))
		_exit(3);
	work(w);
	_exit(0);
}

#endif
