/* SPDX-License-Identifier: Apache-2.0
 *
 * A record directory, a segment and records with random bytes, for tests of the disk engine.
 */
#ifndef PREFIXFS_TESTS_UNIT_DISK_WORLD_H
#define PREFIXFS_TESTS_UNIT_DISK_WORLD_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/disk.h"

#define MIB (1ull << 20)
#define SEGMENT_BYTES (256 * MIB)
#define MINUTE_NS (60ull * 1000000000u)
#define MAX_VALUES 512u

#define IDENTITY "\"identity\":{\"model\":\"m\"}"
#define LAYOUT(classes) "{\"version\":1," IDENTITY ",\"world\":2,\"page_tokens\":64,\"classes\":[" classes "]}"
#define ONE "\"share_of_rank\":[0,0],"

/* one value a page; many of several sizes, some not on each page, and a row; a row alone */
static const char *const layouts[] = {
	LAYOUT("{\"name\":\"kv\",\"kind\":\"dense\"," ONE "\"planes\":[{\"name\":\"k\",\"bytes\":100000}]}"),
	LAYOUT("{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":5000}]},"
	       "{\"name\":\"idx\",\"kind\":\"dense\"," ONE "\"every\":128,\"planes\":[{\"name\":\"k\",\"bytes\":100}]},"
	       "{\"name\":\"st\",\"kind\":\"state\",\"planes\":[{\"name\":\"s\",\"bytes\":300001}]}"),
	LAYOUT("{\"name\":\"st\",\"kind\":\"state\"," ONE "\"planes\":[{\"name\":\"s\",\"bytes\":9000000}]}"),
};

struct world {
	char folder[64];
	struct layout *layout;
	struct segment *segment;
	char *memory; /* the segment, as a client has it */
	uint64_t used; /* of it */
	struct disk *disk;
	struct disk_dir *dir;
	struct disk_ops *ops; /* the fault one, or NULL */
	bool uring;
	enum disk_durability durability;
};

static uint64_t seed;

static inline uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static inline void fill(char *at, size_t bytes)
{
	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t r = next_random();

		memcpy(at + i, &r, 8);
	}
}

/* ---- the directory --------------------------------------------------------------------------------------------- */

static inline struct layout *parse(const char *text)
{
	struct layout *l = NULL;
	struct why why = WHY_INIT;

	if (layout_parse(text, strlen(text), &l, &why))
		fail_msg("%s", why.text);
	return l;
}

/* @spec: faults, or NULL for none and no wrapper. */
static inline int world_start(struct world *w, unsigned workers, const char *spec)
{
	struct disk_config config = {.path = w->folder, .workers = workers, .durability = w->durability, .uring = w->uring};
	struct why why = WHY_INIT;

	w->ops = NULL;
	if (spec) {
		struct disk_ops *under = NULL;

		if (w->uring)
			assert_int_equal(disk_ops_uring_new(&under, &why), 0);
		else
			under = disk_ops_plain_new();
		assert_int_equal(disk_ops_fault_new(under, spec, false, &w->ops, &why), 0);
		config.ops = w->ops;
	}
	if (disk_new(&config, &w->disk, &why))
		fail_msg("%s", why.text);
	int r = disk_dir_open(w->disk, w->layout, w->segment, &w->dir, &why);

	if (r)
		disk_free(&w->disk, MINUTE_NS);
	return r;
}

static inline void world_stop(struct world *w)
{
	disk_dir_close(&w->dir, false);
	disk_free(&w->disk, MINUTE_NS);
}

static inline void world_make(struct world *w, const char *layout, bool uring)
{
	struct segment_config config = {.name = "test", .bytes = SEGMENT_BYTES, .wish = SEGMENT_WISH_SMALL};
	struct why why = WHY_INIT;

	memset(w, 0, sizeof(*w));
	w->uring = uring;
	strcpy(w->folder, "/tmp/prefixfs-test-disk-XXXXXX");
	assert_non_null(mkdtemp(w->folder));
	w->layout = parse(layout);
	if (segment_new(&config, &w->segment, &why))
		fail_msg("%s", why.text);
	w->memory = mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd(w->segment), 0);
	assert_ptr_not_equal(w->memory, MAP_FAILED);
}

static inline void world_end(struct world *w)
{
	char path[192];

	if (w->disk) {
		disk_dir_close(&w->dir, true);
		disk_free(&w->disk, MINUTE_NS);
	}
	munmap(w->memory, SEGMENT_BYTES);
	segment_free(&w->segment);
	layout_free(&w->layout);
	snprintf(path, sizeof(path), "%s/lock", w->folder);
	unlink(path);
	assert_int_equal(rmdir(w->folder), 0); /* nothing is left */
}

/* Files of the namespace whose name ends in @suffix. */
static inline unsigned files_with(struct world *w, const char *suffix)
{
	unsigned n = 0;

	for (unsigned i = 0; i < 256; i++) {
		char folder[256];
		struct dirent *e;

		snprintf(folder, sizeof(folder), "%s/%02x", disk_dir_path(w->dir), i);
		DIR *d = opendir(folder);

		while (d && (e = readdir(d))) {
			size_t length = strlen(e->d_name), wanted = strlen(suffix);

			n += length >= wanted && e->d_name[0] != '.' && !strcmp(e->d_name + length - wanted, suffix);
		}
		if (d)
			closedir(d);
	}
	return n;
}

/* ---- waiting ------------------------------------------------------------------------------------------------------ */

static inline void job_done(struct disk_job *job)
{
	lock_assert_none_held();
	atomic_store((_Atomic int *)job->context, 1);
}

static inline void await(_Atomic int *done)
{
	uint64_t until = clock_now_ns() + MINUTE_NS;

	while (!atomic_load(done)) {
		assert_true(clock_now_ns() < until);
		usleep(50);
	}
}

static inline int run(struct world *w, struct disk_job *job)
{
	_Atomic int done = 0;

	job->done = job_done;
	job->context = (void *)&done;
	disk_give(w->disk, job);
	await(&done);
	return job->result;
}

/* ---- records -------------------------------------------------------------------------------------------------------- */

struct record {
	struct record_file_id id;
	uint64_t consumed;
	struct key keys[256];
	uint32_t of_pages, count;
	uint64_t values[MAX_VALUES]; /* in the segment */
	char *bytes[MAX_VALUES];     /* what they are, slot with zeros behind the payload */
};

static inline const struct share *share_at(const struct layout *l, bool row, uint32_t column)
{
	for (uint32_t c = 0; c < l->classes; c++)
		if (layout_is_row(l, c) == row && column - l->class[c].first_column < l->class[c].shares)
			return &l->class[c].share[column - l->class[c].first_column];
	fail();
	return NULL;
}

static inline const struct share *share_of(const struct world *w, const struct record *r, uint32_t v)
{
	return v < r->of_pages ? share_at(w->layout, false, v % w->layout->page_columns)
			       : share_at(w->layout, true, v - r->of_pages);
}

static inline bool has_value(const struct world *w, uint32_t page, uint32_t column)
{
	for (uint32_t c = 0; c < w->layout->classes; c++)
		if (!layout_is_row(w->layout, c) && column - w->layout->class[c].first_column < w->layout->class[c].shares)
			return layout_has_value(w->layout, c, (page + 1ull) * w->layout->page_tokens);
	return false;
}

static inline uint64_t take_slot(struct world *w, uint64_t bytes, uint64_t gap)
{
	uint64_t at = w->used;

	w->used += bytes + gap;
	assert_true(w->used <= SEGMENT_BYTES);
	return at;
}

/* @gap: bytes between slots. */
static inline struct record *record_make(struct world *w, uint32_t pages, bool row, uint64_t gap)
{
	struct record *r = calloc(1, sizeof(*r));
	uint32_t columns = w->layout->page_columns;

	r->id = (struct record_file_id){.start = 0, .generation = 1, .pages = pages, .flags = RECORD_FILE_ROOT};
	if (row)
		r->id.flags |= RECORD_FILE_ROW;
	fill((char *)r->keys, sizeof(r->keys));
	r->id.endpoint = r->keys[pages ? pages - 1 : 0];
	if (!pages)
		r->id.start = 64; /* at its endpoint */
	r->consumed = pages ? pages * 64ull : 64;
	r->of_pages = pages * columns;
	r->count = r->of_pages + (row ? w->layout->row_columns : 0);
	assert_true(r->count <= MAX_VALUES);
	for (uint32_t v = 0; v < r->count; v++) {
		const struct share *s = share_of(w, r, v);

		if (v < r->of_pages && !has_value(w, v / columns, v % columns)) {
			r->values[v] = DISK_ABSENT;
			continue;
		}
		r->values[v] = take_slot(w, s->slot_bytes, gap);
		fill(w->memory + r->values[v], s->slot_bytes); /* behind the payload too */
		r->bytes[v] = calloc(1, s->slot_bytes);
		memcpy(r->bytes[v], w->memory + r->values[v], s->payload_bytes);
	}
	return r;
}

static inline void record_free(struct record *r)
{
	for (uint32_t v = 0; v < r->count; v++)
		free(r->bytes[v]);
	free(r);
}

static inline struct disk_write write_of(struct world *w, struct record *r)
{
	return (struct disk_write){
		.job = {.kind = DISK_JOB_WRITE, .dir = w->dir, .consumed = r->consumed, .endpoint = r->id.endpoint},
		.id = r->id,
		.keys = r->keys,
		.values = r->values,
	};
}

static inline int write_record(struct world *w, struct record *r)
{
	struct disk_write write = write_of(w, r);

	return run(w, &write.job);
}

static inline const struct key *key_of(const struct world *w, const struct record *r, uint32_t v)
{
	return v < r->of_pages ? &r->keys[v / w->layout->page_columns] : &r->id.endpoint;
}

/* A read of all values of the first @pages pages, and the row when @row, to places of its own. */
struct reading {
	struct disk_read read;
	struct disk_read_value values[MAX_VALUES];
	struct key keys[MAX_VALUES];
	uint32_t numbers[MAX_VALUES]; /* in the record */
	uint64_t used;
	_Atomic int done;
};

static inline struct reading *reading_of(struct world *w, struct record *r, uint32_t pages, bool row)
{
	struct reading *g = calloc(1, sizeof(*g));
	uint32_t columns = w->layout->page_columns, n = 0;

	for (uint32_t v = 0; v < r->count; v++) {
		bool in_row = v >= r->of_pages;

		if (in_row ? !row : v / columns >= pages)
			continue;
		g->numbers[n] = v;
		g->keys[n] = *key_of(w, r, v);
		g->values[n] = (struct disk_read_value){
			.page = in_row ? TABLES_PAGE_ROW : v / columns,
			.column = in_row ? v - r->of_pages : v % columns,
			.to = take_slot(w, share_of(w, r, v)->slot_bytes, 0),
		};
		g->used += share_of(w, r, v)->slot_bytes;
		n++;
	}
	g->read = (struct disk_read){
		.job = {.kind = DISK_JOB_READ, .dir = w->dir, .consumed = r->consumed, .endpoint = r->id.endpoint},
		.pages = pages,
		.file_pages = r->id.pages,
		.keys = g->keys,
		.values = g->values,
		.count = n,
	};
	return g;
}

static inline void reading_free(struct world *w, struct reading *g)
{
	w->used -= g->used;
	free(g);
}

/* What was read is what was written. */
static inline void check_value(struct world *w, struct record *r, const struct reading *g, uint32_t i)
{
	uint32_t v = g->numbers[i];

	if (!r->bytes[v]) {
		assert_int_equal(g->values[i].result, -ENODATA);
		return;
	}
	assert_int_equal(g->values[i].result, 0);
	assert_memory_equal(w->memory + g->values[i].to, r->bytes[v], share_of(w, r, v)->slot_bytes);
}

static inline void check_read(struct world *w, struct record *r, uint32_t pages, bool row)
{
	struct reading *g = reading_of(w, r, pages, row);

	assert_int_equal(run(w, &g->read.job), 0);
	for (uint32_t i = 0; i < g->read.count; i++)
		check_value(w, r, g, i);
	reading_free(w, g);
}

static inline int trim_record(struct world *w, struct record *r, uint32_t pages, bool row)
{
	struct disk_trim trim = {
		.job = {.kind = DISK_JOB_TRIM, .dir = w->dir, .consumed = r->consumed, .endpoint = r->id.endpoint},
		.pages = pages,
		.file_pages = r->id.pages,
		.row = row,
		.new_consumed = pages ? pages * 64ull : r->consumed,
		.new_endpoint = pages ? r->keys[pages - 1] : r->id.endpoint,
	};

	return run(w, &trim.job);
}

static inline int remove_record(struct world *w, uint64_t consumed, const struct key *endpoint)
{
	struct disk_remove remove = {
		.job = {.kind = DISK_JOB_REMOVE, .dir = w->dir, .consumed = consumed, .endpoint = *endpoint}};

	return run(w, &remove.job);
}

static inline void path_of(struct world *w, uint64_t consumed, const struct key *endpoint, char *path, size_t bytes)
{
	char name[RECORD_FILE_NAME_BYTES];

	record_file_name(name, consumed, endpoint);
	snprintf(path, bytes, "%s/%02x/%s", disk_dir_path(w->dir), record_file_folder(endpoint), name);
}

#endif
