/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue: what is written is what is loaded; deaths, damage, and a disk that takes nothing.
 *
 *	test_catalogue [seed [kills]]
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "store/base/lock.h"
#include "tests/unit/catalogue_world.h"

static uint64_t seed;
static unsigned kills = 6;

static void test_round_trip(void **state)
{
	struct world *w = *state;
	struct catalogue_report report;

	world_open(w);
	assert_true(w->fresh);
	assert_false(w->behind);
	assert_int_equal(w->why.error, 0);
	assert_int_equal(world_load(w), 0);
	for (unsigned i = 1; i <= 300; i++) {
		assert_int_equal(catalogue_next_id(w->catalogue), i);
		assert_true(world_add(w, i));
	}
	world_flush(w);
	report = world_report(w);
	assert_int_equal(report.rows, 300);
	assert_int_equal(report.written, 300);
	assert_int_equal(report.queued, 0);
	assert_int_equal(report.dropped, 0);
	assert_false(report.behind);
	assert_false(report.failed);
	assert_string_equal(report.error, "");
	assert_true(report.memory_bytes > 10000);
	assert_true(report.wal_bytes > 100000);
	world_close(w);
	assert_false(world_has(w, "-wal"));

	world_open(w);
	assert_false(w->fresh);
	assert_false(w->behind);
	assert_int_equal(world_report(w).rows, 300);
	assert_int_equal(world_load(w), 300);
	assert_int_equal(catalogue_next_id(w->catalogue), 301);
	assert_int_equal(catalogue_next_id(w->catalogue), 302);
	world_close(w);
	assert_false(world_has(w, ".damaged"));
}

static void test_extremes(void **state)
{
	struct world *w = *state;
	static struct key keys[4096];
	static struct world_row want[1];
	struct catalogue_row *r = &want[0].row;
	struct world_loaded l = {.expected = want, .expected_rows = 1};

	for (unsigned i = 0; i < 4096; i++)
		world_key(&keys[i], 1, i);
	*r = (struct catalogue_row){
		.id = INT64_MAX - 1,
		.nonce = UINT64_MAX,
		.start = UINT64_MAX,
		.consumed = 1ull << 63,
		.generation = UINT64_MAX,
		.file_bytes = UINT64_MAX,
		.whole_id = UINT64_MAX,
		.whole_count = UINT32_MAX,
		.created_s = INT64_MIN,
		.written_s = INT64_MAX,
		.flags = UINT32_MAX,
		.pages = 4096,
		.file_pages = 4096,
		.keys = keys,
	};
	world_open(w);
	assert_true(catalogue_add(w->catalogue, r));
	world_close(w);
	world_open(w);
	assert_int_equal(catalogue_load(w->catalogue, world_take, &l, &w->why), 0);
	assert_int_equal(l.rows, 1);
	assert_false(l.wrong);
	assert_int_equal(catalogue_next_id(w->catalogue), INT64_MAX);
}

/* Every change, on rows of the batch under way and on those of an earlier one. */
static void test_changes(void **state)
{
	struct world *w = *state;
	static struct world_row want[40];
	struct world_loaded l = {.expected = want, .expected_rows = 38};
	unsigned n = 0;

	for (unsigned i = 1; i <= 40; i++) {
		world_make_row(&want[n], i);
		n += i != 7 && i != 33;
	}
	world_trim_row(&want[8], 4, true);   /* 10: fewer pages: its row is gone whatever is said */
	world_trim_row(&want[9], 11, false); /* 11: the row alone */
	world_trim_row(&want[11], 13, true); /* 13: another name alone */
	world_trim_row(&want[29], 0, false); /* 31 */
	want[10].row.flags |= CATALOGUE_PINNED;   /* 12 */
	want[24].row.flags &= ~CATALOGUE_PINNED;  /* 26 */
	want[32].row.flags |= CATALOGUE_PINNED;   /* 35, pinned twice */

	for (unsigned batch = 0; batch < 2; batch++) {
		world_open(w);
		assert_int_equal(w->fresh, batch == 0);
		assert_true(catalogue_clear(w->catalogue));
		for (unsigned i = 1; i <= 40; i++)
			assert_true(world_add(w, i));
		if (batch)
			world_flush(w);
		assert_true(catalogue_remove(w->catalogue, 7));
		assert_true(catalogue_remove(w->catalogue, 33));
		assert_true(catalogue_remove(w->catalogue, 33));
		assert_true(catalogue_remove(w->catalogue, 5000));
		assert_true(world_trim(w, 10, 4, true));
		assert_true(world_trim(w, 11, 11, false));
		assert_true(world_trim(w, 13, 13, true));
		assert_true(world_trim(w, 31, 20, false));
		assert_true(world_trim(w, 31, 0, false));
		assert_true(world_trim(w, 2, 3, false)); /* it has two: nobody trims upwards */
		assert_true(world_trim(w, 5000, 1, false));
		assert_true(catalogue_pin(w->catalogue, 12, true));
		assert_true(catalogue_pin(w->catalogue, 26, false));
		assert_true(catalogue_pin(w->catalogue, 35, true));
		assert_true(catalogue_pin(w->catalogue, 35, true));
		assert_true(catalogue_pin(w->catalogue, 5000, true));
		world_flush(w);
		assert_int_equal(world_report(w).rows, 38);
		world_close(w);
		world_open(w);
		assert_false(w->behind);
		l.rows = 0;
		assert_int_equal(catalogue_load(w->catalogue, world_take, &l, &w->why), 0);
		assert_int_equal(l.rows, 38);
		assert_false(l.wrong);
		world_close(w);
	}
	world_open(w);
	assert_true(world_add(w, 100));
	assert_true(catalogue_clear(w->catalogue));
	assert_true(world_add(w, 50));
	world_close(w);
	world_open(w);
	assert_int_equal(world_load(w), 1);
	assert_int_equal(world_report(w).rows, 1);
	assert_int_equal(catalogue_next_id(w->catalogue), 51);
}

static void test_load(void **state)
{
	struct world *w = *state;
	struct world_loaded l = {.stop_after = 10};

	world_open(w);
	for (unsigned i = 901; i <= 1000; i++)
		assert_true(world_add(w, i));
	world_flush(w);
	assert_int_equal(catalogue_load(w->catalogue, world_take, &l, &w->why), -EBUSY);
	assert_int_equal(w->why.error, EBUSY);
	assert_true(world_add(w, 900)); /* and is none the worse for it */
	world_flush(w);
	world_close(w);
	world_open(w);
	assert_int_equal(catalogue_load(w->catalogue, world_take, &l, &w->why), 0);
	assert_int_equal(l.rows, 10);
	assert_int_equal(l.newest, 1000);
	assert_int_equal(l.oldest, 991);
	assert_false(l.wrong);
	assert_true(world_add(w, 1001));
	world_close(w);
	world_open(w);
	assert_int_equal(world_load(w), 102);
}

struct ids {
	uint64_t id[128];
	unsigned count;
};

static bool ids_take(void *context, const struct catalogue_row *row)
{
	struct ids *ids = context;

	assert_in_range(ids->count, 0, 127);
	ids->id[ids->count++] = row->id;
	return true;
}

/* Newest first is by ids: neither when they were added counts, nor when they were replaced or trimmed. */
static void test_order(void **state)
{
	struct world *w = *state;
	struct ids ids = {0};

	world_open(w);
	for (unsigned i = 1; i <= 100; i++) /* each of 1 to 100 once */
		assert_true(world_add(w, i * 37 % 101));
	world_flush(w);
	assert_true(world_add(w, 3));
	assert_true(world_trim(w, 20, 1, false));
	assert_true(catalogue_remove(w->catalogue, 100));
	assert_true(catalogue_remove(w->catalogue, 50));
	assert_true(catalogue_remove(w->catalogue, 1));
	world_close(w);
	world_open(w);
	assert_int_equal(catalogue_load(w->catalogue, ids_take, &ids, &w->why), 0);
	assert_int_equal(ids.count, 97);
	for (unsigned i = 0, id = 99; id >= 2; id--)
		if (id != 50)
			assert_int_equal(ids.id[i++], id);
}

/* ---- pages that a file was written with ---------------------------------------------------------------------------- */

struct three {
	struct {
		uint64_t id;
		uint32_t pages, file_pages, flags, absent_bytes;
		uint8_t absent[16];
	} row[3];
	unsigned count;
};

static bool three_take(void *context, const struct catalogue_row *row)
{
	struct three *t = context;

	assert_in_range(t->count, 0, 2);
	t->row[t->count].id = row->id;
	t->row[t->count].pages = row->pages;
	t->row[t->count].file_pages = row->file_pages;
	t->row[t->count].flags = row->flags;
	t->row[t->count].absent_bytes = row->absent_bytes;
	if (row->absent_bytes == 16)
		memcpy(t->row[t->count].absent, row->absent, 16);
	t->count++;
	return true;
}

static void expect_row(const struct three *t, unsigned i, uint64_t id, uint32_t pages, uint32_t file_pages, uint32_t flags)
{
	uint8_t absent[16];

	memset(absent, (int)id, sizeof(absent));
	assert_int_equal(t->row[i].id, id);
	assert_int_equal(t->row[i].pages, pages);
	assert_int_equal(t->row[i].file_pages, file_pages);
	assert_int_equal(t->row[i].flags, flags);
	assert_int_equal(t->row[i].absent_bytes, 16);
	assert_memory_equal(t->row[i].absent, absent, sizeof(absent));
}

static void file_pages_add(struct world *w, uint64_t id, uint32_t pages, uint32_t file_pages)
{
	struct world_row row;

	world_make_row(&row, id);
	row.row.pages = pages;
	row.row.file_pages = file_pages;
	row.row.flags = CATALOGUE_ROW;
	row.row.absent = row.absent;
	row.row.absent_bytes = sizeof(row.absent);
	memset(row.absent, (int)id, sizeof(row.absent));
	assert_true(catalogue_add(w->catalogue, &row.row));
}

static void file_pages_load(struct world *w, struct three *ret)
{
	memset(ret, 0, sizeof(*ret));
	world_close(w);
	world_open(w);
	assert_int_equal(catalogue_load(w->catalogue, three_take, ret, &w->why), 0);
	assert_int_equal(ret->count, 3);
}

/* No trim changes them, nor the bitmap that they explain, in whatever batch; a file that is written anew has its own. */
static void test_file_pages(void **state)
{
	struct world *w = *state;
	struct three t;

	world_open(w);
	for (unsigned id = 1; id <= 3; id++)
		file_pages_add(w, id, 20, 20);
	assert_true(world_trim(w, 1, 20, false)); /* the row alone */
	assert_true(world_trim(w, 2, 12, false));
	assert_true(world_trim(w, 3, 20, true));
	file_pages_load(w, &t);
	expect_row(&t, 0, 3, 20, 20, CATALOGUE_ROW);
	expect_row(&t, 1, 2, 12, 20, 0);
	expect_row(&t, 2, 1, 20, 20, 0);

	assert_true(world_trim(w, 1, 0, false));
	assert_true(world_trim(w, 2, 11, false));
	world_flush(w);
	assert_true(world_trim(w, 2, 5, false));
	assert_true(world_trim(w, 2, 15, false)); /* upwards: no */
	file_pages_add(w, 3, 7, 9);
	file_pages_load(w, &t);
	expect_row(&t, 0, 3, 7, 9, CATALOGUE_ROW);
	expect_row(&t, 1, 2, 5, 20, 0);
	expect_row(&t, 2, 1, 0, 20, 0);

	/* After a clear nothing of the old ones is left. */
	assert_true(catalogue_clear(w->catalogue));
	for (unsigned id = 1; id <= 3; id++)
		file_pages_add(w, id, id, 4 + id);
	file_pages_load(w, &t);
	for (unsigned i = 0; i < 3; i++)
		expect_row(&t, i, 3 - i, 3 - i, 7 - i, CATALOGUE_ROW);
}

/* ---- behind -------------------------------------------------------------------------------------------------------- */

static void work_add_two(struct world *w)
{
	if (!world_add(w, 1) || !world_add(w, 2) || !catalogue_flush(w->catalogue, 20 * SECOND))
		_exit(4);
}

static void work_nothing(struct world *w)
{
	(void)w;
}

static void child_ends(struct world *w, void (*work)(struct world *w))
{
	int status = 0;

	assert_int_equal(waitpid(world_fork(w, work), &status, 0) > 0, 1);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_behind(void **state)
{
	struct world *w = *state;

	child_ends(w, work_add_two);
	world_open(w);
	assert_false(w->fresh);
	assert_true(w->behind);
	assert_int_equal(world_load(w), 2);
	assert_true(world_report(w).behind);
	world_close(w);

	/* It stays so until somebody has mended it. */
	world_open(w);
	assert_true(w->behind);
	catalogue_mended(w->catalogue);
	assert_false(world_report(w).behind);
	world_close(w);
	world_open(w);
	assert_false(w->behind);
	world_close(w);

	/* A death without a single change: files may have changed all the same. */
	child_ends(w, work_nothing);
	world_open(w);
	assert_true(w->behind);
	assert_true(catalogue_clear(w->catalogue));
	assert_false(world_report(w).behind);
	world_close(w);
	world_open(w);
	assert_false(w->behind);
	assert_int_equal(world_load(w), 0);
}

/* Said before anything was queued: the rows are loaded all the same, and nothing was lost but what was never told. */
static void test_behind_before_load(void **state)
{
	struct world *w = *state;

	world_open(w);
	for (unsigned i = 1; i <= 5000; i++)
		assert_true(world_add(w, i));
	world_close(w);
	world_open(w);
	assert_false(w->behind);
	catalogue_behind(w->catalogue);
	for (unsigned i = 0; i < 5; i++) /* the database is the loader's still: the mark has to wait */
		assert_int_equal(world_load(w), 5000);
	assert_true(world_report(w).behind);
	assert_int_equal(world_report(w).dropped, 0);
	world_close(w);

	world_open(w);
	assert_true(w->behind);
	assert_int_equal(world_load(w), 5000);
	catalogue_mended(w->catalogue);
	assert_false(world_report(w).behind);
	catalogue_behind(w->catalogue);
	catalogue_mended(w->catalogue); /* of what was there when it was opened, not of this */
	assert_true(world_report(w).behind);
	assert_true(catalogue_clear(w->catalogue)); /* of all */
	assert_false(world_report(w).behind);
	world_close(w);
	world_open(w);
	assert_false(w->behind);
	assert_int_equal(world_load(w), 0);
}

static void test_overflow(void **state)
{
	struct world *w = *state;
	unsigned taken = 0;

	world_open(w);
	catalogue_limit(w->catalogue, 50, CATALOGUE_WAL_MOST);
	while (taken < 1000000 && world_add(w, taken + 1)) /* without letting the thread keep up */
		taken++;
	assert_in_range(taken, 50, 999999);
	assert_true(world_report(w).behind);
	assert_int_equal(world_report(w).dropped, 1);
	world_flush(w);
	assert_int_equal(world_report(w).written, taken);
	assert_false(world_report(w).failed);
	catalogue_mended(w->catalogue); /* what it was opened with; a change is missing all the same */
	assert_true(world_report(w).behind);
	world_close(w);

	world_open(w);
	assert_true(w->behind);
	assert_int_equal(world_load(w), taken);
	catalogue_limit(w->catalogue, 0, CATALOGUE_WAL_MOST);
	assert_false(world_add(w, 5000000));
	assert_false(catalogue_clear(w->catalogue));
	assert_true(world_report(w).behind);
}

static void test_close_without_patience(void **state)
{
	struct world *w = *state;
	uint64_t queued = 0;

	world_open(w);
	while (queued < 16000 && world_add(w, queued + 1))
		queued++;
	uint64_t begin = clock_now_ns();

	catalogue_close(&w->catalogue, 0);
	assert_true(clock_now_ns() - begin < 5 * SECOND);
	world_open(w);
	assert_true(w->behind);
	assert_true(world_load(w) < queued);
}

/* ---- damage -------------------------------------------------------------------------------------------------------- */

static void make_some(struct world *w, unsigned rows)
{
	world_open(w);
	for (unsigned i = 1; i <= rows; i++)
		assert_true(world_add(w, i));
	world_close(w);
}

static void patch(struct world *w, off_t offset, const void *bytes, size_t length)
{
	int fd = open(w->path, O_WRONLY | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, length, offset), length);
	close(fd);
}

static void expect_anew(struct world *w, const char *sentence)
{
	world_open(w);
	assert_true(w->fresh);
	assert_false(w->behind);
	assert_int_equal(w->why.error, EINVAL);
	assert_non_null(strstr(w->why.text, w->path));
	if (!strstr(w->why.text, sentence))
		fail_msg("'%s' does not say '%s'", w->why.text, sentence);
	assert_true(world_has(w, ".damaged"));
	assert_int_equal(world_load(w), 0);
	assert_int_equal(catalogue_next_id(w->catalogue), 1);
	assert_true(world_add(w, 1));
	world_close(w);
	world_open(w);
	assert_false(w->fresh);
	assert_int_equal(world_load(w), 1);
	world_close(w);
}

static void test_damaged(void **state)
{
	struct world *w = *state;
	char garbage[8192];
	struct stat st;

	memset(garbage, 'x', sizeof(garbage));
	patch(w, 0, garbage, sizeof(garbage));
	expect_anew(w, "not a database");
	make_some(w, 500);
	assert_int_equal(stat(w->path, &st), 0);
	assert_true(st.st_size > 100000);
	assert_int_equal(truncate(w->path, st.st_size / 2), 0);
	expect_anew(w, "malformed");
	make_some(w, 500);
	assert_int_equal(truncate(w->path, 1000), 0);
	expect_anew(w, "");
	make_some(w, 500);
	patch(w, 60, "\0\0\0\2", 4); /* user_version */
	expect_anew(w, "has version 2; this is version 1");
	make_some(w, 500);
	patch(w, 68, "\0\0\1\1", 4); /* application_id */
	expect_anew(w, "something else (application id 257)");
	make_some(w, 3);
	assert_int_equal(truncate(w->path, 0), 0); /* is what a death while it was made leaves */
	world_open(w);
	assert_true(w->fresh);
	assert_int_equal(w->why.error, 0);
}

static void test_other_namespace(void **state)
{
	struct world *w = *state;
	uint8_t other[32] = "somebody else";

	make_some(w, 3);
	assert_int_equal(catalogue_open(w->path, other, world_fingerprint, &w->catalogue, &w->fresh, &w->behind, &w->why), 0);
	assert_true(w->fresh);
	assert_non_null(strstr(w->why.text, "is of another namespace"));
	world_close(w);
	expect_anew(w, "is of another namespace");
	assert_int_equal(catalogue_open(w->path, world_identity, other, &w->catalogue, &w->fresh, &w->behind, &w->why), 0);
	assert_true(w->fresh);
}

/* Found only when the rows are read: pages in the middle are garbage. */
static void test_damaged_rows(void **state)
{
	struct world *w = *state;
	static char garbage[65536];
	struct world_loaded l = {0};

	make_some(w, 2000);
	memset(garbage, 0xa5, sizeof(garbage));
	patch(w, 40 * 8192, garbage, sizeof(garbage));
	world_open(w);
	assert_false(w->fresh);
	assert_int_equal(catalogue_load(w->catalogue, world_take, &l, &w->why), -EBADMSG);
	assert_int_equal(w->why.error, EBADMSG);
	assert_non_null(strstr(w->why.text, w->path));
	assert_in_range(l.rows, 1, 1999);
	assert_true(world_has(w, ".damaged"));
	assert_int_equal(catalogue_next_id(w->catalogue), 1);
	assert_false(world_report(w).behind);
	assert_true(world_add(w, 1));
	world_close(w);
	world_open(w);
	assert_false(w->behind);
	assert_int_equal(world_load(w), 1);
}

static void expect_refused(const char *path, int error)
{
	struct catalogue *c = NULL;
	bool fresh, behind;
	struct why why = WHY_INIT;
	int r = catalogue_open(path, world_identity, world_fingerprint, &c, &fresh, &behind, &why);

	if (r != -error)
		fail_msg("%s: %d, not %d: %s", path, r, -error, why.text);
	assert_int_equal(why.error, error);
	assert_non_null(strstr(why.text, path));
	assert_null(c);
}

static void test_refused(void **state)
{
	struct world *w = *state;
	char path[160];

	snprintf(path, sizeof(path), "%s/none/catalogue.sqlite", w->folder);
	expect_refused(path, ENOENT);
	make_some(w, 1);
	snprintf(path, sizeof(path), "%s/x", w->path);
	expect_refused(path, ENOTDIR);
	expect_refused("/proc/self/catalogue.sqlite", ENOENT);
	if (geteuid() == 0)
		return; /* whom no mode keeps out */
	assert_int_equal(chmod(w->path, 0400), 0);
	expect_refused(w->path, EROFS);
	assert_int_equal(chmod(w->path, 0600) | chmod(w->folder, 0500), 0);
	expect_refused(w->path, EACCES);
	assert_int_equal(chmod(w->folder, 0700), 0);
}

static bool has_failed(const struct catalogue_report *r)
{
	return r->failed && r->queued == 0;
}

static bool has_recovered(const struct catalogue_report *r)
{
	return !r->failed;
}

/* A limit on files' lengths stands for a full disk. */
static void test_full(void **state)
{
	struct world *w = *state;
	struct rlimit before, less;

	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	world_open(w);
	for (unsigned i = 1; i <= 10; i++)
		assert_true(world_add(w, i));
	world_flush(w);
	less = before;
	less.rlim_cur = 20000; /* its journal is longer already */
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
	for (unsigned i = 11; i <= 60; i++)
		assert_true(world_add(w, i));
	assert_false(catalogue_flush(w->catalogue, 20 * SECOND));
	world_await(w, has_failed);
	assert_true(world_report(w).behind);
	assert_int_equal(world_report(w).written, 10);
	assert_int_equal(world_report(w).rows, 10);
	assert_int_equal(world_report(w).dropped, 50);
	assert_non_null(strstr(world_report(w).error, w->path));
	assert_false(world_add(w, 61));
	assert_int_equal(world_report(w).dropped, 51);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	world_await(w, has_recovered);
	assert_true(world_add(w, 70));
	world_flush(w);
	assert_true(world_report(w).behind);
	world_close(w);
	world_open(w);
	assert_true(w->behind);
	assert_int_equal(world_load(w), 11);
	world_close(w);

	/* Not even the marks of an open one can be written. */
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
	assert_true(catalogue_open(w->path, world_identity, world_fingerprint, &w->catalogue, &w->fresh, &w->behind, &w->why) < 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_non_null(strstr(w->why.text, w->path));
	world_open(w);
	assert_int_equal(world_load(w), 11);
	signal(SIGXFSZ, SIG_DFL);
}

/* ---- threads ------------------------------------------------------------------------------------------------------- */

#define THREADS 4u
#define TURNS 2500u

struct worker {
	struct world *w;
	uint64_t left[TURNS];
	unsigned count;
	bool wrong;
};

/* Adds all; trims some twice, removes every third, all of its own. */
static void *worker_main(void *context)
{
	struct worker *k = context;

	for (unsigned i = 0; i < TURNS; i++) {
		uint64_t id = catalogue_next_id(k->w->catalogue);

		k->wrong |= !world_add(k->w, id);
		if (i % 3 == 0)
			k->wrong |= !world_trim(k->w, id, (uint32_t)(id % WORLD_PAGES_MOST) / 2, false);
		if (i % 3 == 0)
			k->wrong |= !catalogue_remove(k->w->catalogue, id);
		else
			k->left[k->count++] = id;
		if (i % 500 == 0)
			k->wrong |= !catalogue_flush(k->w->catalogue, 20 * SECOND);
		if (i % 100 == 0)
			k->wrong |= world_report(k->w).behind;
	}
	return NULL;
}

static void test_threads(void **state)
{
	static struct worker workers[THREADS];
	struct world *w = *state;
	pthread_t threads[THREADS];
	uint64_t left = 0, written = 0;

	memset(workers, 0, sizeof(workers));
	world_open(w);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].w = w;
		assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_string_equal(world_report(w).error, "");
	for (unsigned i = 0; i < THREADS; i++) {
		assert_false(workers[i].wrong);
		left += workers[i].count;
		written += TURNS + (TURNS + 2) / 3 * 2;
	}
	world_flush(w);
	assert_int_equal(world_report(w).written, written);
	assert_int_equal(world_report(w).rows, left);
	world_close(w);
	world_open(w);
	assert_false(w->behind);
	assert_int_equal(world_load(w), left);
	assert_in_range(catalogue_next_id(w->catalogue), left + 1, THREADS * TURNS + 1);
}

struct teller {
	struct world *w;
	struct lock space;
	bool wrong;
};

/* As a namespace does: its lock is held while the catalogue is told. */
static void *teller_main(void *context)
{
	struct teller *t = context;

	for (unsigned i = 0; i < TURNS; i++) {
		uint64_t id = catalogue_next_id(t->w->catalogue);

		lock_take(&t->space);
		t->wrong |= !world_add(t->w, id);
		if (i % 16 == 7) {
			catalogue_behind(t->w->catalogue);
			t->wrong |= !world_report(t->w).behind; /* at once */
		}
		t->wrong |= !lock_held(&t->space);
		lock_drop(&t->space);
		if (i % 500 == 0)
			t->wrong |= !catalogue_flush(t->w->catalogue, 20 * SECOND);
	}
	return NULL;
}

static void test_behind_under_a_lock(void **state)
{
	static struct teller tellers[THREADS];
	struct world *w = *state;
	pthread_t threads[THREADS];

	memset(tellers, 0, sizeof(tellers));
	world_open(w);
	assert_false(world_report(w).behind);
	for (unsigned i = 0; i < THREADS; i++) {
		tellers[i].w = w;
		lock_init(&tellers[i].space, LOCK_SPACE);
		assert_int_equal(pthread_create(&threads[i], NULL, teller_main, &tellers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		lock_destroy(&tellers[i].space);
		assert_false(tellers[i].wrong);
	}
	/* It is a mark and no change: nothing was dropped for it, and all that was told is there. */
	world_flush(w);
	assert_int_equal(world_report(w).written, THREADS * TURNS);
	assert_int_equal(world_report(w).rows, THREADS * TURNS);
	assert_int_equal(world_report(w).dropped, 0);
	assert_int_equal(world_report(w).queued, 0);
	assert_false(world_report(w).failed);
	assert_true(world_report(w).behind);
	world_close(w);
	world_open(w);
	assert_true(w->behind);
	assert_int_equal(world_load(w), THREADS * TURNS);
}

/* ---- deaths -------------------------------------------------------------------------------------------------------- */

/* Step i adds row i; every third is trimmed when the next comes, every seventh goes five steps later. */
static void steps_expected(uint64_t steps, uint64_t id, struct world_row *row, bool *there)
{
	world_make_row(row, id);
	*there = id <= steps && !(id % 7 == 0 && id + 5 <= steps);
	if (id % 3 == 0 && id + 1 <= steps)
		world_trim_row(row, row->row.pages / 2, false);
}

static _Atomic uint64_t *steps_done;

static void work_steps(struct world *w)
{
	for (uint64_t i = 1; i < 10000000; i++) {
		bool good = world_add(w, i);

		if (i % 3 == 1 && i > 3)
			good &= world_trim(w, i - 1, (uint32_t)((i - 1) % WORLD_PAGES_MOST) / 2, false);
		if (i % 7 == 5 && i > 5)
			good &= catalogue_remove(w->catalogue, i - 5);
		if (i % 5000 == 0)
			good &= catalogue_flush(w->catalogue, 20 * SECOND);
		if (!good)
			_exit(5);
		*steps_done = i;
	}
}

struct prefix {
	uint64_t ids, room;
	struct world_row *rows;
};

static bool prefix_take(void *context, const struct catalogue_row *row)
{
	struct prefix *p = context;

	if (p->ids == p->room) {
		p->room = p->room ? p->room * 2 : 1024;
		p->rows = realloc(p->rows, p->room * sizeof(*p->rows));
		assert_non_null(p->rows);
	}
	struct world_row *to = &p->rows[p->ids++];

	to->row = *row;
	if (row->pages) /* a row that was trimmed to nothing may come without keys */
		memcpy(to->keys, row->keys, row->pages * sizeof(*row->keys));
	if (row->alias)
		memcpy(to->alias, row->alias, row->alias_count * sizeof(*row->alias));
	if (row->absent)
		memcpy(to->absent, row->absent, row->absent_bytes);
	return true;
}

/* Is what was loaded what there was after @steps, all of it? Its last step may be half done: not trimmed, not removed. */
static bool is_after(const struct prefix *p, uint64_t steps, bool trimmed, bool removed)
{
	uint64_t at = 0;

	for (uint64_t id = 1; id <= steps; id++) {
		struct world_row want, got;
		bool there;

		steps_expected(steps, id, &want, &there);
		if (!trimmed && steps % 3 == 1 && id + 1 == steps)
			world_make_row(&want, id);
		if (!removed && id + 5 == steps && id % 7 == 0)
			there = true;
		if (!there)
			continue;
		if (at == p->ids)
			return false;
		got = p->rows[at++];
		got.row.keys = got.keys;
		got.row.alias = got.row.alias ? got.alias : NULL;
		got.row.absent = got.row.absent ? got.absent : NULL;
		if (!world_same(&got.row, &want.row))
			return false;
	}
	return at == p->ids;
}

static void test_kill(void **state)
{
	struct world *w = *state;
	uint64_t roll = seed | 1;

	steps_done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(steps_done != MAP_FAILED);
	for (unsigned i = 0; i < kills; i++) {
		struct prefix p = {0};
		int status;

		roll = mix_64(roll, 0x9e3779b97f4a7c15ull) | 1;
		*steps_done = 0;
		pid_t pid = world_fork(w, work_steps);
		struct timespec nap = {.tv_nsec = (long)(roll >> 8) % 500000000l};

		nanosleep(&nap, NULL); /* any moment will do */
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		world_open(w);
		assert_false(world_has(w, ".damaged"));
		assert_int_equal(catalogue_load(w->catalogue, prefix_take, &p, &w->why), 0);
		for (uint64_t a = 0, b = p.ids; a + 1 < b; a++) { /* newest first */
			struct world_row other = p.rows[--b];

			p.rows[b] = p.rows[a];
			p.rows[a] = other;
		}
		assert_true(w->behind || w->fresh || !*steps_done); /* it may have died before it had opened it */
		uint64_t steps = p.ids ? p.rows[p.ids - 1].row.id : 0;

		assert_true(steps <= *steps_done + 1);
		if (!is_after(&p, steps, true, true) && !is_after(&p, steps, true, false) && !is_after(&p, steps, false, false))
			fail_msg("seed %" PRIu64 ", kill %u: %" PRIu64 " rows are no prefix of %" PRIu64 " steps", seed, i, p.ids,
				 (uint64_t)*steps_done);
		print_message("kill %u: %" PRIu64 " of %" PRIu64 " steps\n", i, steps, (uint64_t)*steps_done);
		free(p.rows);
		assert_true(catalogue_clear(w->catalogue));
		world_close(w);
	}
	munmap((void *)steps_done, 4096);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_extremes, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_changes, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_load, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_order, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_file_pages, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_behind, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_behind_before_load, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_overflow, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_close_without_patience, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_damaged, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_other_namespace, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_damaged_rows, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_refused, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_full, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_threads, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_behind_under_a_lock, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_kill, world_setup, world_teardown),
	};

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns();
	kills = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : kills;
	print_message("seed %" PRIu64 "\n", seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
