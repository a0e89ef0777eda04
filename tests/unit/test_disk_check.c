/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check: every kind of damage is found, said and put right, once, and nothing else is touched.
 */
#include "tests/unit/check_world.h"

/* ---- nothing is wrong ------------------------------------------------------------------------------------------------ */

/* The file gets shorter, by the engine. */
static void lose(const struct put *put, uint32_t pages)
{
	struct disk_trim trim = {
		.job = {.kind = DISK_JOB_TRIM, .dir = world.dir, .consumed = put->consumed, .endpoint = put->endpoint},
		.pages = pages,
		.file_pages = put->pages,
		.new_consumed = pages * 64ull,
		.new_endpoint = put->keys[pages - 1],
	};

	assert_int_equal(run(&world, &trim.job), 0);
}

static void test_clean(void **state)
{
	uint64_t before, bytes = 0;
	struct put put[5];
	char path[512];

	(void)state;
	check_begin();
	put[0] = put_file((struct put_how){.pages = 4, .row = true});
	put[1] = put_file((struct put_how){.pages = 3, .alike = true});
	put[2] = put_file((struct put_how){.row = true});
	put[3] = put_file((struct put_how){.pages = 5, .row = true});
	put[4] = put_file((struct put_how){.pages = 2, .row = true});
	assert_true(put[1].plan.page_stride < put[0].plan.page_stride); /* stored once */
	/* One has lost pages, and one its row, as the daemon has them lose these. */
	cut_path(&put[3], 2, path);
	lose(&put[3], 2);
	lose(&put[4], 2);
	strcpy(put[3].path, path);
	for (unsigned i = 0; i < 5; i++)
		bytes += length_of(put[i].path);
	before = tree_hash();
	check(VALUES);
	assert_int_equal(report.files_without_row, 5);
	assert_int_equal(findings, 2); /* there is no catalogue, and how many have no row */
	assert_non_null(strstr(told, "5 files have no row in it: --rebuild"));
	assert_true(tree_hash() == before);
	catalogue_all(5);
	assert_int_equal(report.namespaces, 1);
	assert_int_equal(report.bytes, bytes);
	check(VALUES | REPAIR);
	assert_int_equal(findings, 0);
	assert_int_equal(report.rows, 5);
	assert_true(tree_hash() == before);
	check_end();
}

static void test_empty(void **state)
{
	char path[512];

	(void)state;
	check_begin();
	check(VALUES | REPAIR);
	assert_int_equal(report.namespaces, 1);
	assert_int_equal(report.files, 0);
	check_clean(0);
	snprintf(path, sizeof(path), "%s/not one of ours", world.folder);
	assert_int_equal(mkdir(path, 0700), 0);
	check_clean(0);
	check_end();
}

/* ---- damage to one file ----------------------------------------------------------------------------------------------- */

struct damage {
	const char *name;
	void (*make)(const struct put *put);
	size_t counter;     /* in the report */
	uint64_t count;
	uint32_t left;      /* pages after the repair */
	bool row, removed;  /* the row is left; nothing is */
	bool elsewhere;     /* its row in the catalogue has another name than it */
};

static void flip_header(const struct put *put)
{
	flip(put->path, 200);
}

static void flip_keys(const struct put *put)
{
	flip(put->path, put->plan.header_bytes + 40);
}

static void zero_head(const struct put *put)
{
	char zeros[4096] = {0};
	int fd = open(put->path, O_WRONLY);

	assert_int_equal(pwrite(fd, zeros, sizeof(zeros), 0), sizeof(zeros));
	close(fd);
}

static void cut_to(const struct put *put, uint64_t bytes)
{
	assert_int_equal(truncate(put->path, (off_t)bytes), 0);
}

static void cut_header(const struct put *put)
{
	cut_to(put, 1000);
}

static void cut_keys(const struct put *put)
{
	cut_to(put, put->plan.page_offset - 4096);
}

static void cut_to_nothing(const struct put *put)
{
	cut_to(put, put->plan.page_offset);
}

static void cut_half_page(const struct put *put)
{
	cut_to(put, record_file_length(&put->plan, 2) + 4096);
}

static void cut_half_row(const struct put *put)
{
	cut_to(put, put->plan.file_bytes - 4096);
}

static void lengthen(const struct put *put)
{
	cut_to(put, put->plan.file_bytes + 12345);
}

static void flip_first_value(const struct put *put)
{
	flip(put->path, put->plan.page_offset + 17);
}

static void flip_third_page(const struct put *put)
{
	flip(put->path, record_file_length(&put->plan, 2) + 4096);
	flip(put->path, record_file_length(&put->plan, 3) + 4096);
}

static void flip_row(const struct put *put)
{
	flip(put->path, put->plan.row_offset + 8000);
}

static void move(const struct put *put, const char *to)
{
	char folder[512];

	strcpy(folder, to);
	*strrchr(folder, '/') = 0;
	assert_true(!mkdir(folder, 0700) || errno == EEXIST);
	assert_int_equal(rename(put->path, to), 0);
}

static void name_wrong_tokens(const struct put *put)
{
	char path[512];

	file_path(put->consumed + 64, &put->endpoint, path);
	move(put, path);
}

static void name_wrong_key(const struct put *put)
{
	struct key key = put->endpoint;
	char path[512];

	key.bytes[31] ^= 1;
	file_path(put->consumed, &key, path);
	move(put, path);
}

static void name_wrong_folder(const struct put *put)
{
	char path[512], folder[8];

	snprintf(folder, sizeof(folder), "%02x", put->endpoint.bytes[0] ^ 1);
	snprintf(path, sizeof(path), "%s/%s%s", space_path, folder, strrchr(put->path, '/'));
	move(put, path);
}

#define COUNTER(name) offsetof(struct disk_check_report, name)

/* Of a file of four pages with a row. */
static const struct damage damages[] = {
	{"header", flip_header, COUNTER(bad_headers), 1, 0, .removed = true},
	{"zeros", zero_head, COUNTER(bad_headers), 1, 0, .removed = true},
	{"short header", cut_header, COUNTER(bad_headers), 1, 0, .removed = true},
	{"keys", flip_keys, COUNTER(bad_keys), 1, 0, .removed = true},
	{"short keys", cut_keys, COUNTER(bad_keys), 1, 0, .removed = true},
	{"no pages", cut_to_nothing, COUNTER(wrong_lengths), 1, 0, .removed = true},
	{"half a page", cut_half_page, COUNTER(wrong_lengths), 1, 2},
	{"half a row", cut_half_row, COUNTER(wrong_lengths), 1, 4},
	{"too long", lengthen, COUNTER(wrong_lengths), 1, 4, .row = true},
	{"first value", flip_first_value, COUNTER(bad_values), 1, 0, .removed = true},
	{"third page", flip_third_page, COUNTER(bad_values), 2, 2},
	{"row", flip_row, COUNTER(bad_values), 1, 4},
	{"tokens in the name", name_wrong_tokens, COUNTER(wrong_names), 1, 4, .row = true, .elsewhere = true},
	{"key in the name", name_wrong_key, COUNTER(wrong_names), 1, 4, .row = true, .elsewhere = true},
	{"folder", name_wrong_folder, COUNTER(wrong_names), 1, 4, .row = true, .elsewhere = true},
};

static uint64_t counted(size_t counter)
{
	return *(const uint64_t *)(const void *)((const char *)&report + counter);
}

static uint64_t all_bad(void)
{
	return report.bad_headers + report.bad_keys + report.bad_values + report.wrong_names + report.wrong_lengths;
}

static void one_damage(const struct damage *d)
{
	struct put good, bad;
	char path[512];
	uint64_t good_hash, before;

	print_message("%s\n", d->name);
	check_begin();
	good = put_file((struct put_how){.pages = 3, .row = true});
	bad = put_file((struct put_how){.pages = 4, .row = true});
	catalogue_all(2);
	d->make(&bad);
	good_hash = file_hash(good.path);
	before = tree_hash();
	check(VALUES);
	assert_int_equal(counted(d->counter), d->count);
	assert_int_equal(all_bad(), d->count);
	assert_int_equal(report.repaired + report.removed + report.unrepaired + report.foreign + report.unreadable, 0);
	assert_true(findings >= 1);
	assert_true(tree_hash() == before);

	check(VALUES | REPAIR);
	assert_int_equal(counted(d->counter), d->count);
	assert_int_equal(all_bad(), d->count);
	assert_int_equal(report.removed, d->removed);
	assert_int_equal(report.repaired, !d->removed);
	assert_int_equal(report.unrepaired, 0);
	assert_int_equal(report.wrong_rows, 0);
	assert_true(file_hash(good.path) == good_hash);
	if (!d->removed) {
		uint64_t want = d->row ? bad.plan.file_bytes : record_file_length(&bad.plan, d->left);

		cut_path(&bad, d->left, path);
		assert_int_equal(length_of(path), want);
	}
	check_clean(d->removed ? 1 : 2);
	check_end();
}

static void test_damages(void **state)
{
	(void)state;
	for (unsigned i = 0; i < sizeof(damages) / sizeof(*damages); i++)
		one_damage(&damages[i]);
}

/* Without reading values a wrong one is not found, and everything else is. */
static void test_without_values(void **state)
{
	struct put bad[2];

	(void)state;
	check_begin();
	bad[0] = put_file((struct put_how){.pages = 4, .row = true});
	bad[1] = put_file((struct put_how){.pages = 4, .row = true});
	flip_third_page(&bad[0]);
	lengthen(&bad[1]);
	check(REPAIR);
	assert_int_equal(report.bad_values, 0);
	assert_int_equal(report.wrong_lengths, 1);
	assert_int_equal(report.repaired, 1);
	check(VALUES | REPAIR);
	assert_int_equal(report.bad_values, 2);
	assert_int_equal(report.repaired, 1);
	check_clean(2);
	check_end();
}

/* A value whose bytes another column has too is wrong in both. */
static void test_alias(void **state)
{
	struct put bad;
	char path[512];

	(void)state;
	check_begin();
	bad = put_file((struct put_how){.pages = 4, .row = true, .alike = true});
	flip(bad.path, record_file_length(&bad.plan, 3) + 100);
	check(VALUES | REPAIR);
	assert_int_equal(report.bad_values, 1);
	assert_int_equal(report.repaired, 1);
	cut_path(&bad, 3, path);
	assert_int_equal(length_of(path), record_file_length(&bad.plan, 3));
	check_clean(1);
	check_end();
}

/* What is cut would get the name of another file: that one stays, this one goes. And a name that is given up is free. */
static void test_name_taken(void **state)
{
	struct put bad;
	char shorter[512];
	uint64_t hash;
	size_t bytes;
	char *text;

	(void)state;
	check_begin();
	bad = put_file((struct put_how){.pages = 4});
	text = read_all(bad.path, &bytes);
	cut_path(&bad, 2, shorter);
	*strrchr(shorter, '/') = 0;
	assert_true(!mkdir(shorter, 0700) || errno == EEXIST);
	cut_path(&bad, 2, shorter);
	write_whole(shorter, text, record_file_length(&bad.plan, 2));
	hash = file_hash(shorter);
	flip_third_page(&bad);
	check(VALUES | REPAIR);
	assert_int_equal(report.removed, 1);
	assert_int_equal(report.repaired, 0);
	assert_true(file_hash(shorter) == hash);
	check_clean(1);

	/* The shorter one becomes shorter still, the longer one gets its name. */
	flip(shorter, record_file_length(&bad.plan, 1));
	write_whole(bad.path, text, bytes);
	flip_third_page(&bad);
	check(VALUES | REPAIR);
	assert_int_equal(report.removed, 0);
	assert_int_equal(report.repaired, 2);
	assert_true(file_hash(shorter) == hash);
	check_clean(2);
	free(text);
	check_end();
}

/* Each has the name of the next one, in a ring: all get their own back, with their bytes and rows. */
static void test_names_in_a_ring(void **state)
{
	(void)state;
	for (unsigned count = 2; count <= 4; count++) {
		uint64_t hash[4];
		struct put put[4];
		char aside[520];

		check_begin();
		for (unsigned i = 0; i < count; i++) {
			put[i] = put_file((struct put_how){.pages = 1 + i % 2, .row = true});
			hash[i] = file_hash(put[i].path);
		}
		catalogue_all(count);
		snprintf(aside, sizeof(aside), "%s.aside", put[0].path);
		assert_int_equal(rename(put[0].path, aside), 0);
		for (unsigned i = 1; i < count; i++)
			assert_int_equal(rename(put[i].path, put[i - 1].path), 0);
		assert_int_equal(rename(aside, put[count - 1].path), 0);
		check(VALUES);
		assert_int_equal(report.wrong_names, count);
		assert_int_equal(report.wrong_rows, count);
		assert_non_null(strstr(told, "does not fit this file: it is of another writing of it"));
		check(VALUES | REPAIR);
		assert_int_equal(report.repaired, count);
		assert_int_equal(report.removed + report.unrepaired, 0);
		for (unsigned i = 0; i < count; i++)
			assert_true(file_hash(put[i].path) == hash[i]);
		check_clean(count);
		check_end();
	}
}

/* ---- left-overs ------------------------------------------------------------------------------------------------------------ */

static void test_left_over(void **state)
{
	struct put good;
	char path[600], old[600];
	uint64_t before;

	(void)state;
	check_begin();
	good = put_file((struct put_how){.pages = 2});
	catalogue_all(1);
	snprintf(path, sizeof(path), "%s.7.tmp", good.path);
	write_whole(path, "x", 1);
	in_space(old, "namespace.json.tmp");
	write_whole(old, "{", 1);
	in_space(old, "a0.12.old");
	assert_int_equal(mkdir(old, 0700), 0);
	strcat(old, strrchr(path, '/'));
	write_whole(old, "y", 1);
	/* Nobody's business. */
	snprintf(old, sizeof(old), "%.*s/notes.tmp", (int)(strrchr(good.path, '/') - good.path), good.path);
	write_whole(old, "z", 1);
	before = tree_hash();
	check(0);
	assert_int_equal(report.left_over, 3);
	assert_int_equal(findings, 3);
	assert_true(tree_hash() == before);
	check(REPAIR);
	assert_int_equal(report.left_over, 3);
	assert_int_equal(report.removed, 3);
	assert_int_equal(length_of(path), UINT64_MAX);
	assert_int_equal(length_of(old), 1);
	in_space(old, "a0.12.old");
	assert_int_equal(length_of(old), UINT64_MAX);
	check_clean(1);
	check_end();
}

/* A death between the making of the folder and that of namespace.json. */
static void test_left_over_of_a_creation(void **state)
{
	char json[512], path[512], file[600];
	uint64_t before;

	(void)state;
	check_begin();
	in_space(json, "namespace.json");
	assert_int_equal(unlink(json), 0);
	in_space(path, "namespace.json.tmp");
	write_whole(path, "{", 1);
	in_space(path, "catalogue.sqlite");
	write_whole(path, "", 0);
	in_space(path, "a0");
	assert_int_equal(mkdir(path, 0700), 0);
	before = tree_hash();
	check(VALUES | REBUILD);
	assert_int_equal(report.left_over, 1);
	assert_int_equal(report.unreadable + report.namespaces, 0);
	assert_int_equal(findings, 1);
	assert_true(tree_hash() == before);
	/* Anything that lies where records do is not ours to judge. */
	snprintf(file, sizeof(file), "%s/notes", path);
	write_whole(file, "z", 1);
	check(REPAIR);
	assert_int_equal(report.unreadable, 1);
	assert_int_equal(report.left_over, 0);
	assert_int_equal(unlink(file), 0);
	assert_true(tree_hash() == before);
	check(REPAIR);
	assert_int_equal(report.left_over, 1);
	assert_int_equal(report.removed, 1);
	assert_int_equal(report.unrepaired + report.unreadable, 0);
	assert_int_equal(length_of(space_path), UINT64_MAX);
	check(VALUES);
	assert_int_equal(findings, 0);
	check_end();
}

/* ---- catalogues -------------------------------------------------------------------------------------------------------------- */

static struct catalogue_row seen_rows[8];
static unsigned seen_count;

static bool see_row(void *context, const struct catalogue_row *row)
{
	(void)context;
	assert_true(seen_count < 8);
	seen_rows[seen_count++] = *row;
	return true;
}

static void see_rows(void)
{
	char path[512];
	struct why why = WHY_INIT;

	in_space(path, "catalogue.sqlite");
	seen_count = 0;
	if (catalogue_look(path, world.layout->identity, world.layout->fingerprint, UINT64_MAX, see_row, NULL, &why))
		fail_msg("%s", why.text);
}

static struct catalogue *open_catalogue(void)
{
	struct catalogue *c = NULL;
	bool fresh, behind;
	char path[512];

	in_space(path, "catalogue.sqlite");
	assert_int_equal(catalogue_open(path, world.layout->identity, world.layout->fingerprint, &c, &fresh, &behind, NULL), 0);
	assert_false(fresh);
	return c;
}

static void test_rows(void **state)
{
	struct put put[4];
	struct catalogue *c;

	(void)state;
	check_begin();
	for (unsigned i = 0; i < 3; i++)
		put[i] = put_file((struct put_how){.pages = 4, .row = true});
	catalogue_all(3);
	see_rows();
	assert_int_equal(seen_count, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(seen_rows[i].pages, 4);
		assert_int_equal(seen_rows[i].file_pages, 4);
		assert_int_equal(seen_rows[i].flags, CATALOGUE_ROOT | CATALOGUE_ROW);
	}
	/* One file goes, one comes, one is said to be shorter. */
	assert_int_equal(unlink(put[0].path), 0);
	assert_int_equal(world_start(&world, 1, NULL), 0);
	put[3] = put_file((struct put_how){.pages = 2});
	world_stop(&world);
	c = open_catalogue();
	for (unsigned i = 0; i < 3; i++)
		if (!memcmp(&seen_rows[i].endpoint, &put[1].endpoint, sizeof(struct key))) {
			catalogue_trim(c, seen_rows[i].id, 4, put[1].consumed, &put[1].endpoint, false, record_file_length(&put[1].plan, 4));
			catalogue_pin(c, seen_rows[i].id, true);
		}
	catalogue_close(&c, MINUTE_NS);
	check(VALUES);
	assert_int_equal(report.rows, 3);
	assert_int_equal(report.rows_without_file, 1);
	assert_int_equal(report.files_without_row, 1);
	assert_int_equal(report.wrong_rows, 1);
	assert_int_equal(findings, 3);
	check(VALUES | REPAIR);
	assert_int_equal(report.rows_without_file, 1);
	assert_int_equal(report.files_without_row, 1);
	assert_int_equal(report.wrong_rows, 1);
	assert_int_equal(report.repaired + report.removed, 0);
	check_clean(3);
	/* Pins are nowhere else: they outlive both. */
	for (unsigned again = 0; again < 2; again++) {
		unsigned pinned = 0;

		see_rows();
		assert_int_equal(seen_count, 3);
		for (unsigned i = 0; i < 3; i++) {
			bool is = seen_rows[i].flags & CATALOGUE_PINNED;

			pinned += is;
			assert_true(!is || !memcmp(&seen_rows[i].endpoint, &put[1].endpoint, sizeof(struct key)));
		}
		assert_int_equal(pinned, 1);
		catalogue_all(3);
	}
	check_end();
}

static void test_catalogue_damaged(void **state)
{
	char path[512], set_aside[540];

	(void)state;
	check_begin();
	put_file((struct put_how){.pages = 4, .row = true});
	put_file((struct put_how){.pages = 4, .row = true});
	catalogue_all(2);
	in_space(path, "catalogue.sqlite");
	for (unsigned i = 0; i < 2; i++) {
		write_whole(path, "this is no database, and long enough to be looked at", 53);
		check(0);
		assert_int_equal(findings, 2);
		assert_non_null(strstr(told, "2 files have no row in it: --rebuild"));
		assert_int_equal(report.rows, 0);
		assert_int_equal(report.files_without_row, 2);
		assert_int_equal(length_of(path), 53);
		check(i ? REPAIR : REBUILD);
		assert_int_equal(report.files_without_row, 2);
		check_clean(2);
		snprintf(set_aside, sizeof(set_aside), "%s.damaged", path);
		assert_int_equal(length_of(set_aside), 53);
	}
	check_end();
}

/* A file whose row is gone with it. */
static void test_rewritten(void **state)
{
	struct put a;
	struct record *r;

	(void)state;
	check_begin();
	r = record_make(&world, 3, false, 0);
	assert_int_equal(write_record(&world, r), 0);
	catalogue_all(1);
	assert_int_equal(world_start(&world, 1, NULL), 0);
	assert_int_equal(write_record(&world, r), 0); /* the same name, another nonce */
	record_free(r);
	a = put_file((struct put_how){.pages = 1});
	(void)a;
	check(VALUES | REPAIR);
	assert_int_equal(report.wrong_rows, 1);
	assert_int_equal(report.files_without_row, 1);
	check_clean(2);
	check_end();
}

/* ---- groups -------------------------------------------------------------------------------------------------------------------- */

static void test_groups(void **state)
{
	struct put put[7];

	(void)state;
	check_begin();
	for (unsigned i = 0; i < 3; i++) /* one that is whole, one that lacks a file */
		put[i] = put_file((struct put_how){.pages = 2, .whole_id = 5, .whole_count = 3});
	for (unsigned i = 3; i < 5; i++)
		put[i] = put_file((struct put_how){.pages = 2, .whole_id = 6, .whole_count = 3});
	for (unsigned i = 5; i < 7; i++)
		put[i] = put_file((struct put_how){.pages = 2, .whole_id = 7, .whole_count = 2});
	flip(put[6].path, record_file_length(&put[6].plan, 1)); /* and one with a bad value */
	check(VALUES);
	assert_int_equal(report.broken_groups, 2);
	check(VALUES | REPAIR);
	assert_int_equal(report.broken_groups, 2);
	assert_int_equal(report.bad_values, 1);
	assert_int_equal(report.removed, 4);
	assert_int_equal(report.repaired, 0);
	for (unsigned i = 0; i < 7; i++)
		assert_int_equal(length_of(put[i].path) != UINT64_MAX, i < 3);
	check_clean(3);
	check_end();
}

/* ---- others' files --------------------------------------------------------------------------------------------------------------- */

static void test_foreign(void **state)
{
	struct put good, newer, other, namespace;
	uint64_t hash[3];
	char json[512];

	(void)state;
	check_begin();
	good = put_file((struct put_how){.pages = 2});
	newer = put_file((struct put_how){.pages = 2});
	other = put_file((struct put_how){.pages = 2});
	namespace = put_file((struct put_how){.pages = 2});
	catalogue_all(4);
	flip(newer.path, 8);
	flip(other.path, 0);
	/* Another namespace's: a header that is whole. */
	char head[8192];
	int fd = open(namespace.path, O_RDWR);
	uint64_t bytes = namespace.plan.header_bytes;

	assert_int_equal(pread(fd, head, bytes, 0), bytes);
	head[20] ^= 1;
	uint64_t sum = record_file_sum(head, bytes - 8);

	memcpy(head + bytes - 8, &sum, 8);
	assert_int_equal(pwrite(fd, head, bytes, 0), bytes);
	close(fd);
	hash[0] = file_hash(newer.path);
	hash[1] = file_hash(other.path);
	hash[2] = file_hash(namespace.path);
	for (unsigned i = 0; i < 3; i++) {
		check(i == 0 ? VALUES : i == 1 ? VALUES | REPAIR : VALUES | REPAIR | REBUILD);
		assert_int_equal(report.foreign, 3);
		assert_non_null(strstr(told, "left alone, and may be deleted by hand"));
		assert_int_equal(report.files, 4);
		assert_int_equal(report.rows_without_file, i < 2 ? 3 : 0);
		assert_int_equal(report.removed + report.repaired, 0);
		assert_true(file_hash(newer.path) == hash[0]);
		assert_true(file_hash(other.path) == hash[1]);
		assert_true(file_hash(namespace.path) == hash[2]);
		assert_int_not_equal(length_of(good.path), UINT64_MAX);
	}
	/* A folder whose namespace.json nobody understands. */
	static const char *const texts[] = {"{", "{\"version\":2,\"name\":\"a\",\"mode\":0,\"uid\":0,\"gid\":0,\"layout\":{}}", "", NULL};

	in_space(json, "namespace.json");
	for (unsigned i = 0; i < 4; i++) {
		if (texts[i])
			write_whole(json, texts[i], strlen(texts[i]));
		else
			assert_int_equal(unlink(json), 0);
		uint64_t before = tree_hash();

		check(VALUES | REPAIR | REBUILD);
		assert_int_equal(findings, 1);
		assert_non_null(strstr(told, "left alone"));
		assert_int_equal(report.namespaces + report.files, 0);
		assert_int_equal(report.unreadable, 1);
		assert_true(tree_hash() == before);
	}
	check_end();
}

static void test_two_owners(void **state)
{
	struct disk_check_options options = {.repair = true};
	struct why why = WHY_INIT;

	(void)state;
	check_begin();
	put_file((struct put_how){.pages = 2});
	assert_int_equal(disk_check(world.folder, &options, NULL, on_finding, NULL, &report, &why), -EWOULDBLOCK);
	assert_int_equal(why.error, EWOULDBLOCK);
	assert_int_equal(report.files, 0);
	world_stop(&world);
	assert_int_equal(disk_check("/nonexistent", &options, NULL, on_finding, NULL, &report, &why), -ENOENT);
	check_end();
}

/* ---- progress ---------------------------------------------------------------------------------------------------------------------- */

static unsigned calls;
static uint64_t last_done, last_goal;

static bool go_on(void *context, uint64_t done, uint64_t goal)
{
	(void)context;
	assert_true(done <= goal && done >= last_done && (!calls || goal == last_goal));
	calls++;
	last_done = done;
	last_goal = goal;
	return true;
}

static bool stop(void *context, uint64_t done, uint64_t goal)
{
	(void)context;
	(void)done;
	(void)goal;
	return false;
}

static void test_progress(void **state)
{
	struct why why = WHY_INIT;
	struct put put;
	uint64_t before;

	(void)state;
	check_begin();
	put = put_file((struct put_how){.pages = 4, .row = true});
	put_file((struct put_how){.pages = 4, .row = true});
	flip_third_page(&put);
	before = tree_hash();
	assert_int_equal(check_with(VALUES | REPAIR, NULL, stop, &why), -EINTR);
	assert_int_equal(why.error, EINTR);
	assert_true(tree_hash() == before);
	for (unsigned values = 0; values < 2; values++) {
		calls = 0;
		last_done = last_goal = 0;
		assert_int_equal(check_with(values, NULL, go_on, &why), 0);
		assert_true(calls > 0);
		assert_int_equal(last_done, last_goal);
		assert_int_equal(last_goal, values ? report.bytes : report.files);
	}
	check_end();
}

/* ---- faults -------------------------------------------------------------------------------------------------------------------------- */

struct fault_world {
	struct put good[3], long_one, bad, header, misnamed;
	char moved[512];
	uint64_t hash[3];
};

static void fault_world_make(struct fault_world *f)
{
	check_begin();
	f->good[0] = put_file((struct put_how){.pages = 4, .row = true});
	f->good[1] = put_file((struct put_how){.row = true});
	f->good[2] = put_file((struct put_how){.pages = 1, .whole_id = 9, .whole_count = 1});
	f->long_one = put_file((struct put_how){.pages = 2});
	f->bad = put_file((struct put_how){.pages = 4, .row = true});
	f->header = put_file((struct put_how){.pages = 1});
	f->misnamed = put_file((struct put_how){.pages = 1});
	catalogue_all(7);
	lengthen(&f->long_one);
	flip_third_page(&f->bad);
	flip_header(&f->header);
	name_wrong_key(&f->misnamed);
	for (unsigned i = 0; i < 3; i++)
		f->hash[i] = file_hash(f->good[i].path);
}

static void good_ones_are_there(const struct fault_world *f)
{
	for (unsigned i = 0; i < 3; i++)
		assert_true(file_hash(f->good[i].path) == f->hash[i]);
}

/* Operations that a check of this has. */
static uint64_t with_faults(struct fault_world *f, const char *spec)
{
	struct disk_ops *under = disk_ops_plain_new(), *ops;
	struct why why = WHY_INIT;

	assert_int_equal(disk_ops_fault_new(under, spec, false, &ops, &why), 0);
	assert_int_equal(check_with(VALUES | REPAIR, ops, NULL, &why), 0);
	good_ones_are_there(f);
	return report.unreadable + report.unrepaired;
}

/* One operation after another fails: no good file is harmed, and what was left is put right the next time. */
static void test_faults(void **state)
{
	static const char *const kinds[] = {"open:EIO", "read:EIO", "read:short", "read:flip", "rename:EIO", "truncate:EIO", "unlink:EIO",
		"sync:EIO", "sync_dir:EIO"};
	unsigned rounds = 0;

	(void)state;
	for (unsigned k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
		for (unsigned n = 1; n <= (k < 4 ? 21 : 3); n = n < 3 ? n + 2 : 2 * n + 2) {
			struct fault_world f;
			char spec[64];

			snprintf(spec, sizeof(spec), "%s:=%u", kinds[k], n);
			fault_world_make(&f);
			with_faults(&f, spec);
			check(VALUES | REPAIR);
			good_ones_are_there(&f);
			assert_int_equal(report.unreadable + report.unrepaired, 0);
			check_clean(6);
			check_end();
			rounds++;
		}
	print_message("%u rounds\n", rounds);
}

/* A disk that answers nothing has nothing that is damaged. */
static void test_dead_disk(void **state)
{
	static const char *const specs[] = {"open:EIO", "read:EIO", "read:EIO:1/2"};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct fault_world f;
		uint64_t before;

		fault_world_make(&f);
		before = tree_hash();
		assert_true(with_faults(&f, specs[i]) > 0);
		if (i == 0)
			assert_true(tree_hash() == before);
		check(VALUES | REPAIR);
		check_clean(6);
		check_end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_damages),
		cmocka_unit_test(test_without_values),
		cmocka_unit_test(test_alias),
		cmocka_unit_test(test_name_taken),
		cmocka_unit_test(test_names_in_a_ring),
		cmocka_unit_test(test_left_over),
		cmocka_unit_test(test_left_over_of_a_creation),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_catalogue_damaged),
		cmocka_unit_test(test_rewritten),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_two_owners),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_dead_disk),
	};

	seed = clock_now_ns() | 1;
	print_message("seed %llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
