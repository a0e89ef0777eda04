/* SPDX-License-Identifier: Apache-2.0
 *
 * A record directory without a daemon, its files by the engine, for tests of the offline check.
 */
#ifndef PREFIXFS_TESTS_UNIT_CHECK_WORLD_H
#define PREFIXFS_TESTS_UNIT_CHECK_WORLD_H

#include <ftw.h>

#include "index/catalogue.h"
#include "index/space_json.h"
#include "store/base/hash.h"
#include "store/host.h"
#include "tests/unit/disk_world.h"

struct put { /* a file that was written */
	uint64_t consumed;
	struct key endpoint;
	struct record_file_plan plan; /* by its header */
	struct key keys[8];
	uint32_t pages;
	char path[512];
};

static struct world world; /* static: cmocka leaves a failed test by longjmp */
static char space_path[256];
static struct disk_check_report report;
static char told[65536]; /* findings, a line each */
static unsigned findings;

/* ---- made and removed --------------------------------------------------------------------------------------------- */

static inline void write_whole(const char *path, const void *from, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, from, bytes), bytes);
	close(fd);
}

static inline void in_space(char path[512], const char *name)
{
	snprintf(path, 512, "%s/%s", space_path, name);
}

static inline void write_json(void)
{
	struct space_json json = {.name = "one", .mode = 0755, .generation = 1, .layout = world.layout->json};
	char path[512], *text = space_json_make(&json);

	in_space(path, "namespace.json");
	write_whole(path, text, strlen(text));
	free(text);
}

/* A directory with one namespace, which the engine has. */
static inline void check_begin(void)
{
	world_make(&world, layouts[1], false);
	assert_int_equal(world_start(&world, 1, NULL), 0);
	snprintf(space_path, sizeof(space_path), "%s", disk_dir_path(world.dir));
	write_json();
}

static inline int unlink_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static inline void check_end(void)
{
	if (world.disk)
		world_stop(&world);
	munmap(world.memory, SEGMENT_BYTES);
	segment_free(&world.segment);
	layout_free(&world.layout);
	assert_int_equal(nftw(world.folder, unlink_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static inline void file_path(uint64_t consumed, const struct key *endpoint, char path[512])
{
	char name[RECORD_FILE_NAME_BYTES];

	record_file_name(name, consumed, endpoint);
	snprintf(path, 512, "%s/%02x/%s", space_path, record_file_folder(endpoint), name);
}

struct put_how {
	uint32_t pages;
	bool row, alike;        /* alike: both shares have the same bytes */
	uint64_t whole_id;
	uint32_t whole_count;
};

static inline uint64_t length_of(const char *path) /* UINT64_MAX: there is none */
{
	struct stat st;

	return stat(path, &st) ? UINT64_MAX : (uint64_t)st.st_size;
}

static inline char *read_all(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY);
	char *text;

	*bytes = 0;
	if (fd < 0)
		return NULL;
	*bytes = length_of(path);
	text = malloc(*bytes + 1);
	assert_int_equal(read(fd, text, *bytes), *bytes);
	close(fd);
	return text;
}

/* The same file with the second share's values stored as those of the first. */
static inline void store_once(struct put *put, struct disk_file_info *info)
{
	const struct layout *l = world.layout;
	uint16_t alias[] = {0, 0, 2, 3, 4};
	struct record_file_plan plan;
	size_t bytes;
	char *from, *to;

	assert_int_equal(l->page_columns + l->row_columns, 5);
	if (info->alias[1] == 0) { /* it was written so */
		put->plan = info->plan;
		return;
	}
	from = read_all(put->path, &bytes);
	record_file_plan(l, info->id.pages, info->row, alias, &plan);
	to = aligned_alloc(4096, plan.file_bytes);
	record_file_make_header(to, l, &plan, &info->id, alias);
	memcpy(to + plan.header_bytes, info->segment, plan.keys_bytes);
	for (uint32_t page = 0; page < plan.pages; page++)
		for (uint32_t c = 0; c < 3; c++)
			memcpy(to + record_file_offset(l, &plan, alias, page, c), from + record_file_offset(l, &info->plan, NULL, page, c),
				share_at(l, false, c)->slot_bytes);
	memcpy(to + plan.row_offset, from + info->plan.row_offset, plan.row_bytes);
	write_whole(put->path, to, plan.file_bytes);
	put->plan = plan;
	free(from);
	free(to);
}

static inline struct put put_file(struct put_how how)
{
	struct record *r = record_make(&world, how.pages, how.row, 0);
	struct put put = {.consumed = r->consumed, .endpoint = r->id.endpoint, .pages = how.pages};
	struct disk_file_info info;

	for (uint32_t v = 1; how.alike && v < r->of_pages; v++)
		if (v % world.layout->page_columns == 1)
			memcpy(world.memory + r->values[v], world.memory + r->values[v - 1], 8192);
	if (how.whole_count) {
		r->id.flags |= RECORD_FILE_WHOLE;
		r->id.whole_id = how.whole_id;
		r->id.whole_count = how.whole_count;
	}
	assert_int_equal(write_record(&world, r), 0);
	assert_int_equal(disk_file_look(world.dir, put.consumed, &put.endpoint, &info, NULL), 0);
	put.plan = info.plan;
	memcpy(put.keys, r->keys, sizeof(put.keys));
	file_path(put.consumed, &put.endpoint, put.path);
	if (how.alike)
		store_once(&put, &info);
	free(info.segment);
	record_free(r);
	world.used = 0;
	return put;
}

/* Where it lies with so many pages. */
static inline void cut_path(const struct put *put, uint32_t pages, char path[512])
{
	file_path(pages * 64ull, &put->keys[pages - 1], path);
}

static inline void flip(const char *path, uint64_t at)
{
	int fd = open(path, O_RDWR);
	char c;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
	c ^= 0x10;
	assert_int_equal(pwrite(fd, &c, 1, (off_t)at), 1);
	close(fd);
}

static inline uint64_t file_hash(const char *path) /* 0: there is none */
{
	size_t bytes;
	char *text = read_all(path, &bytes);
	uint64_t hash = text ? hash_64(text, bytes, 7) | 1 : 0;

	free(text);
	return hash;
}

static uint64_t tree_sum;

static inline int hash_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if (!strstr(path, "catalogue.sqlite") && !strstr(path, "/lock"))
		tree_sum += hash_64(path, strlen(path), flag == FTW_F ? file_hash(path) : 1);
	return 0;
}

/* Of all names and bytes but the catalogue's. */
static inline uint64_t tree_hash(void)
{
	tree_sum = 0;
	assert_int_equal(nftw(world.folder, hash_one, 16, FTW_PHYS), 0);
	return tree_sum;
}

/* ---- checking ---------------------------------------------------------------------------------------------------------- */

static inline void on_finding(void *context, const char *file, const char *what)
{
	size_t at = strlen(told);

	(void)context;
	assert_true(*file && *what);
	assert_null(strchr(what, '\n'));
	findings++;
	snprintf(told + at, sizeof(told) - at, "%s: %s\n", file, what);
}

enum { VALUES = 1, REPAIR = 2, REBUILD = 4 };

static inline int check_with(unsigned what, struct disk_ops *ops, bool (*progress)(void *, uint64_t, uint64_t), struct why *why)
{
	struct disk_check_options options = {.values = what & VALUES, .repair = what & REPAIR, .rebuild = what & REBUILD, .ops = ops};

	if (world.disk)
		world_stop(&world);
	findings = 0;
	told[0] = 0;
	return disk_check(world.folder, &options, progress, on_finding, NULL, &report, why);
}

static inline void check(unsigned what)
{
	struct why why = WHY_INIT;

	if (check_with(what, NULL, NULL, &why))
		fail_msg("%s", why.text);
}

/* Nothing is wrong, and there are so many files. */
static inline void check_clean(uint64_t files)
{
	check(VALUES);
	if (findings)
		fail_msg("%s", told);
	assert_int_equal(report.files, files);
	assert_int_equal(report.rows, files);
	assert_int_equal(report.bad_headers + report.bad_keys + report.bad_values + report.wrong_names + report.wrong_lengths, 0);
	assert_int_equal(report.left_over + report.repaired + report.removed + report.foreign + report.unreadable + report.unrepaired, 0);
	assert_int_equal(report.rows_without_file + report.files_without_row + report.wrong_rows + report.broken_groups, 0);
}

/* The catalogue is made of what is there. */
static inline void catalogue_all(uint64_t files)
{
	check(REBUILD);
	check_clean(files);
}

#endif
