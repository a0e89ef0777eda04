/* SPDX-License-Identifier: Apache-2.0
 *
 * Others at the catalogue's database while it is written: operators' questions, long readers, writers, by the sqlite3 program.
 * Without that program it is skipped.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>

#include "store/base/guard.h"
#include "tests/unit/catalogue_world.h"

/* One sqlite3 program with its pipes. */
struct shell {
	pid_t pid;
	int in, out;
};

static void shell_start(struct shell *s, const struct world *w, const char *option)
{
	int in[2], out[2];

	assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
	s->pid = fork();
	assert_true(s->pid >= 0);
	if (!s->pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		execlp("sqlite3", "sqlite3", "-batch", "-init", "/dev/null", option, w->path, (char *)NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	s->in = in[1];
	s->out = out[0];
}

/* What it prints for @sql, until the word that is asked for last. */
static const char *shell_ask(struct shell *s, const char *sql)
{
	static char answer[65536];
	static const char end[] = "the end\n";
	size_t used = 0;

	assert_int_equal(write(s->in, sql, strlen(sql)), strlen(sql));
	assert_int_equal(write(s->in, "\nSELECT 'the end';\n", 19), 19);
	do {
		struct pollfd p = {.fd = s->out, .events = POLLIN};

		assert_int_equal(poll(&p, 1, 20000), 1);
		ssize_t n = read(s->out, answer + used, sizeof(answer) - 1 - used);

		assert_true(n > 0);
		used += (size_t)n;
		answer[used] = 0;
	} while (used < sizeof(end) - 1 || strcmp(answer + used - (sizeof(end) - 1), end) != 0);
	answer[used - (sizeof(end) - 1)] = 0;
	return answer;
}

static void shell_end(struct shell *s)
{
	int status;

	close(s->in);
	close(s->out);
	assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
}

static const char *ask_once(struct world *w, const char *option, const char *sql)
{
	struct shell s;

	shell_start(&s, w, option);
	const char *answer = shell_ask(&s, sql);

	shell_end(&s);
	return answer;
}

/* ---- operators' questions ------------------------------------------------------------------------------------------ */

static void hex_of(char to[65], const struct key *key)
{
	for (unsigned i = 0; i < 32; i++)
		sprintf(to + 2 * i, "%02x", key->bytes[i]);
}

static void test_questions(void **state)
{
	struct world *w = *state;
	struct world_row row;
	struct shell s;
	char want[512], endpoint[65], parent[65], sql[512], key[65];

	world_open(w);
	for (unsigned i = 1; i <= 100; i++)
		assert_true(world_add(w, i));
	world_flush(w);
	shell_start(&s, w, "-readonly");
	assert_string_equal(shell_ask(&s, "SELECT count(*), sum(pages) FROM records;"), "100|1498\n");
	world_make_row(&row, 26);
	hex_of(endpoint, &row.row.endpoint);
	hex_of(parent, &row.row.parent);
	snprintf(want, sizeof(want),
		 "26|%s|%s|64|1728|26|28|%" PRIu64 "|0|0|0|1|1|1700000026|1700000036|%016" PRIx64 "|0000000000000000|0|%.2s/00000000000006c0-%s.rec\n",
		 endpoint, parent, row.row.file_bytes, row.row.nonce, endpoint, endpoint);
	assert_string_equal(shell_ask(&s, "SELECT * FROM records_hex WHERE id = 26;"), want);
	assert_string_equal(shell_ask(&s, "SELECT parent IS NULL, root, whole, has_row FROM records_hex WHERE id = 33;"), "1|1|1|1\n");

	/* Which record has this page? */
	hex_of(key, &row.keys[20]);
	snprintf(sql, sizeof(sql), "SELECT id, (instr(keys, x'%s') - 1) / 32 FROM records WHERE instr(keys, x'%s');", key, key);
	assert_string_equal(shell_ask(&s, sql), "26|20\n");

	/* A chain begins without a parent: no key of zeros. A trim leaves the pages that the file was written with. */
	assert_string_equal(shell_ask(&s, "SELECT parent IS NULL, root FROM records_hex WHERE id = 27;"), "1|1\n");
	assert_string_equal(shell_ask(&s, "SELECT count(*) FROM records WHERE parent IS NULL;"), "33\n");
	assert_string_equal(shell_ask(&s, "SELECT count(*) FROM records WHERE parent = zeroblob(32);"), "0\n");
	assert_string_equal(shell_ask(&s, "SELECT pages, file_pages FROM records WHERE id = 29;"), "29|31\n");
	assert_true(world_trim(w, 29, 4, false));
	world_flush(w);
	assert_string_equal(shell_ask(&s, "SELECT pages, file_pages, consumed, length(keys) FROM records WHERE id = 29;"),
			    "4|31|512|128\n");

	/* The same program sees what is committed later, and the marks. */
	assert_string_equal(shell_ask(&s, "SELECT name, value FROM meta WHERE name IN ('open', 'behind', 'rows');"),
			    "behind|0\nopen|1\nrows|100\n");
	assert_true(catalogue_remove(w->catalogue, 26));
	assert_true(catalogue_pin(w->catalogue, 27, true));
	world_flush(w);
	assert_string_equal(shell_ask(&s, "SELECT count(*) FROM records;"), "99\n");
	assert_string_equal(shell_ask(&s, "SELECT group_concat(id) FROM records_hex WHERE pinned;"), "13,27,39,52,65,78,91\n");
	shell_end(&s);
	world_close(w);
	assert_string_equal(ask_once(w, "-readonly", "SELECT value FROM meta WHERE name = 'open';"), "0\n");
	assert_string_equal(ask_once(w, "-readonly", "PRAGMA integrity_check;"), "ok\n");
	world_open(w);
	assert_false(w->behind);
	assert_int_equal(world_report(w).rows, 99);
}

/* What the catalogue was never told of: the mark comes with the next transaction, and goes with a clear. */
static void test_told_behind(void **state)
{
	static const char ask[] = "SELECT value FROM meta WHERE name = 'behind';";
	struct world *w = *state;
	struct shell s;

	world_open(w);
	assert_true(world_add(w, 1));
	world_flush(w);
	shell_start(&s, w, "-readonly");
	assert_string_equal(shell_ask(&s, ask), "0\n");
	catalogue_behind(w->catalogue);
	assert_true(world_add(w, 2));
	world_flush(w);
	assert_string_equal(shell_ask(&s, ask), "1\n");
	assert_string_equal(shell_ask(&s, "SELECT count(*) FROM records;"), "2\n");
	assert_true(catalogue_clear(w->catalogue));
	world_flush(w);
	assert_string_equal(shell_ask(&s, ask), "0\n");
	catalogue_behind(w->catalogue);
	world_close(w);
	assert_string_equal(shell_ask(&s, "SELECT name, value FROM meta WHERE name IN ('open', 'behind', 'rows');"),
			    "behind|1\nopen|0\nrows|0\n");
	shell_end(&s);
}

static bool is_idle(const struct catalogue_report *r)
{
	return r->queued == 0;
}

/* Questions all the time, each with a whole answer: batches are seen whole or not at all. */
static void test_while_writing(void **state)
{
	struct world *w = *state;
	struct shell s;
	unsigned added = 0;
	uint64_t before = 0;

	world_open(w);
	shell_start(&s, w, "-readonly");
	for (unsigned turn = 0; turn < 40; turn++) {
		uint64_t rows, largest, marked;

		for (unsigned i = 0; i < 300; i++)
			assert_true(world_add(w, ++added));
		if (turn % 4 == 3)
			world_flush(w);
		assert_int_equal(sscanf(shell_ask(&s, "SELECT count(*), ifnull(max(id), 0), (SELECT value FROM meta WHERE name = 'rows')"
						      " FROM records;"),
					"%" SCNu64 "|%" SCNu64 "|%" SCNu64, &rows, &largest, &marked),
				 3);
		assert_int_equal(rows, largest);
		assert_int_equal(rows, marked);
		assert_true(rows >= before && rows <= added);
		if (turn % 4 == 3)
			assert_int_equal(rows, added);
		before = rows;
	}
	shell_end(&s);
	world_await(w, is_idle);
	assert_false(world_report(w).behind);
	assert_string_equal(world_report(w).error, "");
}

/* ---- long readers -------------------------------------------------------------------------------------------------- */

#define WAL_MOST (512u << 10)

static bool has_dropped(const struct catalogue_report *r)
{
	return r->dropped && r->behind && !r->queued;
}

static bool journal_is_short(const struct catalogue_report *r)
{
	return r->wal_bytes <= WAL_MOST;
}

static void test_long_reader(void **state)
{
	struct world *w = *state;
	struct shell reader;
	unsigned added = 0;
	uint64_t written;

	world_open(w);
	catalogue_limit(w->catalogue, CATALOGUE_QUEUE, WAL_MOST);
	for (added = 1; added <= 10; added++)
		assert_true(world_add(w, added));
	world_flush(w);
	shell_start(&reader, w, "-readonly");
	assert_string_equal(shell_ask(&reader, "BEGIN; SELECT count(*) FROM records;"), "10\n");

	/* It grows to its limit and a batch over it; from there on changes are dropped. */
	while (added < 100000 && world_add(w, added))
		if (added++ % 200 == 0)
			catalogue_flush(w->catalogue, 20 * SECOND);
	assert_in_range(added, 500, 20000);
	world_await(w, has_dropped);
	assert_in_range(world_report(w).wal_bytes, WAL_MOST, 2 * WAL_MOST);
	assert_false(world_report(w).failed);
	assert_non_null(strstr(world_report(w).error, "somebody reads it for long"));
	assert_false(world_add(w, added));
	written = world_report(w).written;
	assert_string_equal(shell_ask(&reader, "SELECT count(*) FROM records;"), "10\n");
	assert_string_equal(ask_once(w, "-readonly", "SELECT value FROM meta WHERE name = 'behind';"), "1\n");

	/* The reader leaves: it begins anew, and goes on. What was dropped stays dropped. */
	shell_end(&reader);
	world_await(w, journal_is_short);
	const struct timespec nap = {.tv_nsec = 1000000};

	while (!world_add(w, 200000))
		nanosleep(&nap, NULL);
	world_flush(w);
	assert_int_equal(world_report(w).written, written + 1);
	assert_true(world_report(w).behind);
	world_close(w);
	world_open(w);
	assert_true(w->behind);
	assert_int_equal(world_load(w), written + 1);
}

/* Somebody who writes holds it up; nothing is lost. */
static void test_writer(void **state)
{
	struct world *w = *state;
	struct shell writer;

	world_open(w);
	shell_start(&writer, w, "-noheader");
	assert_string_equal(shell_ask(&writer, "BEGIN IMMEDIATE; SELECT 1;"), "1\n");
	for (unsigned i = 1; i <= 100; i++)
		assert_true(world_add(w, i));
	assert_false(catalogue_flush(w->catalogue, SECOND / 2));
	assert_int_equal(world_report(w).queued, 100);
	assert_int_equal(world_report(w).written, 0);
	assert_false(world_report(w).behind);
	assert_non_null(strstr(world_report(w).error, "database is locked"));
	assert_string_equal(shell_ask(&writer, "COMMIT;"), "");
	world_flush(w);
	assert_int_equal(world_report(w).written, 100);

	/* Patience ends before the lock does. */
	assert_string_equal(shell_ask(&writer, "BEGIN IMMEDIATE; SELECT 1;"), "1\n");
	assert_true(world_add(w, 101));
	catalogue_close(&w->catalogue, SECOND / 4);
	shell_end(&writer);
	world_open(w);
	assert_true(w->behind);
	assert_int_equal(world_load(w), 100);
}

/* ---- what others did to it ----------------------------------------------------------------------------------------- */

static void change(struct world *w, const char *sql)
{
	const char *answer = ask_once(w, "-noheader", sql);

	if (*answer)
		fail_msg("%s: %s", sql, answer);
}

static void fill(struct world *w)
{
	world_open(w);
	for (unsigned i = 1; i <= 20; i++)
		assert_true(world_add(w, i));
	world_close(w);
}

static void test_other_schemas(void **state)
{
	static const char *const changes[] = {
		"ALTER TABLE records RENAME COLUMN keys TO names;",
		"DROP TABLE meta;",
		"DELETE FROM meta WHERE name = 'behind';",
		"DELETE FROM meta WHERE name = 'identity';",
		"UPDATE meta SET value = 7 WHERE name = 'fingerprint';",
		"INSERT INTO records SELECT 9223372036854775807, nonce, endpoint, parent, start, consumed, pages, file_pages,"
		" file_bytes, flags, generation, created, written, whole_id, whole_count, alias, absent, keys FROM records WHERE id = 3;",
	};
	struct world *w = *state;

	for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		fill(w);
		change(w, changes[i]);
		world_open(w);
		if (!w->fresh || w->why.error != EINVAL)
			fail_msg("taken: %s", changes[i]);
		world_close(w);
	}
}

static void test_impossible_rows(void **state)
{
	static const char *const changes[] = {
		"UPDATE records SET pages = pages + 1 WHERE id = 9;",
		"UPDATE records SET pages = -1 WHERE id = 9;",
		"UPDATE records SET endpoint = x'00' WHERE id = 9;",
		"UPDATE records SET parent = 'me' WHERE id = 9;",
		"UPDATE records SET alias = x'00' WHERE id = 9;",
		"UPDATE records SET file_pages = pages - 1 WHERE id = 9;",
		"UPDATE records SET file_pages = 4294967296 WHERE id = 9;",
		"UPDATE records SET id = 0 WHERE id = 9;",
	};
	struct world *w = *state;

	for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct world_loaded l = {0};

		fill(w);
		change(w, changes[i]);
		world_open(w);
		assert_false(w->fresh);
		if (catalogue_load(w->catalogue, world_take, &l, &w->why) != -EBADMSG)
			fail_msg("taken: %s", changes[i]);
		assert_non_null(strstr(w->why.text, strstr(changes[i], "id = 0") ? "row 0 has" : "row 9 has"));
		world_close(w);
		world_open(w);
		assert_false(w->fresh);
		assert_false(w->behind);
		world_close(w);
	}
}

/* The table goes while it is used: nothing is written any more, and the next one makes it anew or knows that it is behind. */
static void test_table_goes(void **state)
{
	struct world *w = *state;

	world_open(w);
	assert_true(world_add(w, 1));
	world_flush(w);
	change(w, "DROP TABLE records;");
	assert_true(world_add(w, 2));
	assert_false(catalogue_flush(w->catalogue, 20 * SECOND));
	assert_true(world_report(w).failed);
	assert_true(world_report(w).behind);
	assert_non_null(strstr(world_report(w).error, "no such table: records"));
	world_close(w);
	world_open(w);
	assert_true(w->fresh);
}

/* What the guard does with SIGBUS: cmocka takes the signal for itself at the beginning of each test. */
static struct sigaction of_guard;

static void nothing(void *context)
{
}

/* The file's flags as lsattr has them; false: this file system or this user cannot. */
static bool immutable(const struct world *w, bool on)
{
	static const char *const parts[] = {"", "-wal", "-shm"};
	bool done = true;

	for (unsigned i = 0; i < 3; i++) {
		char path[128];
		int flags = 0;

		snprintf(path, sizeof(path), "%s%s", w->path, parts[i]);
		int fd = open(path, O_RDONLY | O_CLOEXEC);

		done &= fd >= 0 && !ioctl(fd, FS_IOC_GETFLAGS, &flags);
		flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
		done &= fd >= 0 && !ioctl(fd, FS_IOC_SETFLAGS, &flags);
		if (fd >= 0)
			close(fd);
	}
	return done;
}

/* sqlite's index of the journal is mapped: what cannot be written there any more is an error of the catalogue, not a signal. */
static void test_index_cannot_be_written(void **state)
{
	struct world *w = *state;

	world_open(w);
	assert_true(world_add(w, 1));
	world_flush(w);
	if (!immutable(w, true)) {
		immutable(w, false);
		skip();
	}
	sigaction(SIGBUS, &of_guard, NULL);
	assert_true(world_add(w, 2));
	bool flushed = catalogue_flush(w->catalogue, 20 * SECOND);
	struct catalogue_report report = world_report(w);

	world_close(w);
	assert_true(immutable(w, false));
	assert_false(flushed);
	assert_true(report.failed);
	assert_true(report.behind);
	assert_non_null(strstr(report.error, w->path));
}

int main(void)
{
	guard_run(nothing, NULL, NULL, 0);
	sigaction(SIGBUS, NULL, &of_guard);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_questions, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_told_behind, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_while_writing, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_long_reader, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_writer, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_other_schemas, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_impossible_rows, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_table_goes, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(test_index_cannot_be_written, world_setup, world_teardown),
	};

	if (system("sqlite3 -version >/dev/null 2>&1") != 0)
		return 77;
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
