/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs: storing, replacing, reading in pieces, eviction, limits, locks, resets; and beside pages in one budget.
 */
#include "tests/unit/blobs_world.h"

#include <errno.h>

#include "store/manage.h"
#include "tests/unit/store_fixture.h"

static void stores_and_replaces(void **state)
{
	struct blobs *b = blobs_open(64, 16, NULL, NULL);

	assert_int_equal(get(b, 1, 0), -ENOENT);
	for (uint64_t length = 0; length < 3 * BLOBS_UNIT; length += 1023) {
		assert_int_equal(put(b, 1, 1, length, length, 0), 0);
		assert_int_equal(get(b, 1, length), length);
		assert_int_equal(report_of(b).bytes, (length + BLOBS_UNIT - 1) / BLOBS_UNIT * BLOBS_UNIT);
	}
	assert_int_equal(put(b, 1, 1, 5, 5, BLOB_WRITE_EXCLUSIVE), -EEXIST);
	assert_int_equal(put(b, 1, 2, 5, 5, BLOB_WRITE_EXCLUSIVE), 0);
	struct blobs_report r = report_of(b);

	assert_int_equal(r.blobs, 2);
	assert_int_equal(r.blob_puts, 14);
	assert_int_equal(r.blobs_removed, 12);
	assert_int_equal(r.blob_hits, 13);
	assert_int_equal(r.blob_misses, 1);
	blobs_free(&b);
}

static void names_are_keys_too(void **state)
{
	struct blobs *b = blobs_open(64, 16, NULL, NULL);
	struct blob_write w = {.blobs = b, .session = 1, .from = "tensors", .bytes = 7, .length = 7, .kind = 2};
	struct blob_info info;
	struct blob_name other;
	struct why why = WHY_INIT;
	uint32_t cursor = 0;

	assert_int_equal(blob_name_set(&w.name, "", 0, &why), -EINVAL);
	assert_int_equal(blob_name_set(&w.name, "a\0b", 3, &why), -EINVAL);
	assert_string_equal(why.text, "name: byte 1 of its 3 is a NUL");
	assert_int_equal(blob_name_set(&w.name, "dir/image.bin", 13, &why), 0);
	assert_int_equal(write_run(&w, &why), 0);
	assert_int_equal(put(b, 1, 9, 100, 9, 0), 0);
	assert_int_equal(blobs_find(b, &w.name.key, &info), 0);
	assert_string_equal(info.name.text, "dir/image.bin");
	assert_int_equal(info.kind, 2);
	assert_int_equal(info.length, 7);
	assert_int_equal(blobs_next(b, &cursor, &info), 1);
	assert_int_equal(info.name.bytes, 13);
	assert_int_equal(blobs_next(b, &cursor, &info), 1);
	assert_int_equal(info.name.bytes, 0);
	assert_int_equal(blobs_next(b, &cursor, &info), 0);
	/* What is renamed takes the other's place. */
	assert_int_equal(blob_name_set(&other, "b", 1, &why), 0);
	struct key key = blob_key(9);

	assert_int_equal(blobs_rename(b, &key, &other, &why), 0);
	assert_int_equal(blobs_rename(b, &w.name.key, &other, &why), 0);
	assert_int_equal(blobs_rename(b, &other.key, &other, &why), 0);
	assert_int_equal(blobs_rename(b, &key, &other, &why), -ENOENT);
	assert_int_equal(blobs_find(b, &other.key, &info), 0);
	assert_int_equal(info.length, 7);
	assert_int_equal(report_of(b).blobs, 1);
	assert_int_equal(blobs_remove(b, &other.key, &why), 0);
	assert_int_equal(blobs_remove(b, &other.key, &why), -ENOENT);
	assert_int_equal(report_of(b).bytes, 0);
	blobs_free(&b);
}

static void pieces_are_one_blob(void **state)
{
	struct blobs *b = blobs_open(1024, 16, NULL, NULL);
	uint64_t length = 3 * BLOBS_STEP_BYTES / 2 + 77;
	bool stored, ended;

	assert_int_equal(piece(b, 1, 0, 1, 0, 10, 20, 1, &stored, 0), -EINVAL);
	assert_int_equal(piece(b, 1, 5, 1, 10, 10, 20, 1, &stored, 0), -ENOENT);
	for (uint64_t at = 0; at < length; at += 100001) {
		uint32_t bytes = length - at < 100001 ? (uint32_t)(length - at) : 100001;

		assert_int_equal(get(b, 1, 1), -ENOENT);
		assert_int_equal(piece(b, 1, 5, 1, at, bytes, length, 1, &stored, 0), 0);
		assert_int_equal(stored, at + bytes == length);
		if (!stored) { /* what does not follow leaves it as it is */
			assert_int_equal(piece(b, 1, 5, 1, at, bytes, length, 1, &stored, 0), -EINVAL);
			assert_int_equal(piece(b, 1, 5, 2, at + bytes, 1, length, 1, &stored, 0), -EINVAL);
			assert_int_equal(report_of(b).transfers, 1);
		}
	}
	assert_int_equal(report_of(b).transfers, 0);
	assert_int_equal(get(b, 1, 1), length);
	/* A reader goes on with what it began with. */
	assert_int_equal(read_piece(b, 1, 8, 1, 0, 5000, 1, &ended, 0), 5000);
	assert_int_equal(put(b, 1, 1, 10, 2, 0), 0);
	assert_int_equal(read_piece(b, 1, 8, 1, length - 10000, 5000, 1, &ended, 0), 5000);
	assert_int_equal(read_piece(b, 1, 8, 1, 4090, 5000, 1, &ended, 0), 5000);
	assert_int_equal(read_piece(b, 1, 8, 1, length + 1, 5000, 1, &ended, 0), -EINVAL);
	assert_int_equal(get(b, 1, 2), 10);
	assert_int_equal(report_of(b).blobs, 1);
	assert_true(report_of(b).bytes > length);
	assert_int_equal(read_piece(b, 1, 8, 1, length - 5000, 8000, 1, &ended, 0), 5000);
	assert_true(ended);
	assert_int_equal(report_of(b).bytes, BLOBS_UNIT);
	/* Given up by their numbers, and by the end of the session. */
	assert_int_equal(piece(b, 1, 5, 3, 0, 10, 20, 3, &stored, 0), 0);
	assert_int_equal(piece(b, 1, 5, 3, 0, 0, 0, 3, &stored, BLOB_WRITE_ABORT), 0);
	assert_int_equal(piece(b, 1, 5, 3, 0, 0, 0, 3, &stored, BLOB_WRITE_ABORT), -ENOENT);
	assert_int_equal(read_piece(b, 1, 8, 1, 0, 5, 2, &ended, BLOB_READ_END), 5);
	assert_int_equal(read_piece(b, 1, 8, 1, 0, 5, 2, &ended, 0), 5);
	assert_int_equal(piece(b, 1, 5, 3, 0, 10, 20, 3, &stored, 0), 0);
	assert_int_equal(report_of(b).transfers, 2);
	blobs_session_end(b, 1);
	assert_int_equal(report_of(b).transfers, 0);
	assert_int_equal(report_of(b).bytes, BLOBS_UNIT);
	blobs_free(&b);
}

static void the_coldest_go_first(void **state)
{
	struct blobs *b = blobs_open(8, 100, NULL, NULL);

	for (uint64_t k = 0; k < 8; k++)
		assert_int_equal(put(b, 1, k, BLOBS_UNIT, k, 0), 0);
	assert_int_equal(get(b, 0, 0), BLOBS_UNIT);
	assert_int_equal(report_of(b).bytes, report_of(b).limit_bytes);
	assert_int_equal(put(b, 1, 8, 3 * BLOBS_UNIT, 8, 0), 0);
	assert_int_equal(report_of(b).blobs_evicted, 3);
	assert_int_equal(get(b, 0, 0), BLOBS_UNIT);
	for (uint64_t k = 1; k < 4; k++)
		assert_int_equal(get(b, k, k), -ENOENT);
	for (uint64_t k = 4; k < 8; k++)
		assert_int_equal(get(b, k, k), BLOBS_UNIT);
	assert_int_equal(put(b, 1, 9, 4 * BLOBS_UNIT, 9, 0), 0);
	assert_int_equal(put(b, 1, 9, 4 * BLOBS_UNIT + 1, 9, 0), -EFBIG);
	blobs_free(&b);
}

static void their_number_is_bounded(void **state)
{
	struct blobs *b = blobs_open(1000, 300, NULL, NULL);
	bool ended;

	for (uint64_t k = 0; k < 1000; k++)
		assert_int_equal(put(b, 1, k, k % 3, k, 0), 0);
	assert_int_equal(report_of(b).blobs, 300);
	assert_int_equal(report_of(b).blobs_evicted, 700);
	assert_int_equal(get(b, 699, 699), -ENOENT);
	assert_int_equal(get(b, 700, 700), 700 % 3);
	blobs_free(&b);
	/* What is read cannot go. */
	b = blobs_open(1000, 2, NULL, NULL);
	for (uint64_t k = 0; k < 2; k++) {
		assert_int_equal(put(b, 1, k, 100, k, 0), 0);
		assert_int_equal(read_piece(b, 1, k + 1, k, 0, 10, k, &ended, 0), 10);
	}
	assert_int_equal(put(b, 1, 2, 100, 2, 0), -ENOSPC);
	assert_int_equal(read_piece(b, 1, 2, 1, 0, 10, 1, &ended, BLOB_READ_END), 10);
	assert_int_equal(put(b, 1, 2, 100, 2, 0), 0);
	assert_int_equal(get(b, 1, 1), -ENOENT);
	blobs_free(&b);
}

static void transfers_are_bounded(void **state)
{
	struct blobs *b = blobs_open(2000, 2000, NULL, NULL);
	bool stored, ended;

	assert_int_equal(put(b, 1, 1, 100, 1, 0), 0);
	for (uint64_t id = 1; id <= BLOBS_TRANSFERS; id++) {
		uint64_t session = 1 + (id - 1) / BLOBS_SESSION_TRANSFERS;

		assert_int_equal(id % 2 ? piece(b, session, id, id, 0, 1, 2, 1, &stored, 0) :
					  read_piece(b, session, id, 1, 0, 0, 1, &ended, 0), 0);
	}
	assert_int_equal(piece(b, 1, 9999, 5, 0, 1, 2, 1, &stored, 0), -EDQUOT);
	assert_int_equal(piece(b, 999, 9999, 5, 0, 1, 2, 1, &stored, 0), -EDQUOT);
	assert_int_equal(put(b, 999, 2, 100, 2, 0), 0);
	assert_int_equal(piece(b, 1, 2, 1, 0, 1, 2, 1, &stored, 0), -EINVAL);
	assert_int_equal(read_piece(b, 1, 1, 1, 0, 0, 1, &ended, 0), -EINVAL);
	/* What is left alone is given up. */
	blobs_maintain(b, clock_now_ns() + 59 * SECOND_NS);
	assert_int_equal(report_of(b).transfers, BLOBS_TRANSFERS);
	blobs_maintain(b, clock_now_ns() + 61 * SECOND_NS);
	assert_int_equal(report_of(b).transfers, 0);
	assert_int_equal(report_of(b).bytes, 2 * BLOBS_UNIT);
	assert_int_equal(piece(b, 1, 1, 1, 1, 1, 2, 1, &stored, 0), -ENOENT);
	blobs_free(&b);
}

static void writes_take_half_at_most(void **state)
{
	struct blobs *b = blobs_open(8, 100, NULL, NULL);
	bool stored;

	for (uint64_t k = 0; k < 8; k++)
		assert_int_equal(put(b, 1, k, BLOBS_UNIT, k, 0), 0);
	assert_int_equal(piece(b, 1, 1, 20, 0, 1, 3 * BLOBS_UNIT, 1, &stored, 0), 0);
	assert_int_equal(piece(b, 1, 2, 21, 0, 1, 2 * BLOBS_UNIT, 1, &stored, 0), -ENOSPC);
	assert_int_equal(report_of(b).transfers, 1);
	assert_int_equal(piece(b, 1, 2, 21, 0, 1, BLOBS_UNIT, 1, &stored, 0), 0);
	assert_int_equal(report_of(b).blobs, 4);
	blobs_free(&b);
}

static void count_change(void *context)
{
	++*(int *)context;
}

static void one_makes_it_the_others_wait(void **state)
{
	int changes = 0;
	struct blobs *b = blobs_open(64, 16, count_change, &changes);
	struct why why = WHY_INIT;
	struct blob_lock waits = {.blobs = b, .session = 2, .key = blob_key(1), .hold_ns = SECOND_NS, .deadline_ns = UINT64_MAX};

	assert_int_equal(lock_try(b, 1, 1, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(blob_lock_begin(&waits, false, &why), STEP_MORE);
	assert_int_equal(blob_lock_step(&waits, &why), STEP_WAIT);
	assert_int_equal(report_of(b).waiting, 1);
	assert_true(waits.look_ns > clock_now_ns() + 50 * SECOND_NS);
	assert_int_equal(changes, 0);
	/* Another key is another lock; the holder renews. */
	assert_int_equal(lock_try(b, 3, 2, SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(lock_try(b, 1, 1, 30 * SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(blob_lock_step(&waits, &why), STEP_WAIT);
	assert_int_equal(put(b, 1, 1, 100, 1, 0), 0);
	assert_int_equal(changes, 1);
	assert_int_equal(blob_lock_step(&waits, &why), 0);
	assert_int_equal(waits.answer, BLOB_LOCK_FOUND);
	assert_int_equal(waits.info.length, 100);
	blob_lock_end(&waits);
	assert_int_equal(report_of(b).waiting, 0);
	assert_int_equal(report_of(b).locks, 1);
	assert_int_equal(lock_release(b, 3, 2), 0);
	assert_int_equal(lock_release(b, 3, 2), -ENOENT);
	assert_int_equal(lock_release(b, 1, 1), -ENOENT);
	assert_int_equal(report_of(b).locks, 0);
	assert_int_equal(report_of(b).blob_locks_lost, 0);
	blobs_free(&b);
}

static void a_lock_passes_on(void **state)
{
	int changes = 0;
	struct blobs *b = blobs_open(64, 16, count_change, &changes);
	struct why why = WHY_INIT;
	struct blob_lock waits = {.blobs = b, .session = 2, .key = blob_key(1), .hold_ns = 60 * SECOND_NS};

	/* The holder ends. */
	assert_int_equal(lock_try(b, 1, 1, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(lock_try(b, 2, 1, 60 * SECOND_NS, &why), 0);
	blobs_session_end(b, 1);
	assert_int_equal(changes, 1); /* it asked, and may be polling */
	assert_int_equal(lock_try(b, 2, 1, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(report_of(b).blob_locks_lost, 1);
	/* Its time is over. */
	assert_int_equal(lock_try(b, 2, 1, 0, &why), BLOB_LOCK_HELD);
	assert_int_equal(lock_try(b, 3, 1, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(lock_release(b, 2, 1), -ENOENT);
	assert_int_equal(report_of(b).blob_locks_lost, 2);
	/* The deadline of who waits. */
	waits.deadline_ns = clock_now_ns();
	blob_lock_begin(&waits, false, &why);
	assert_int_equal(blob_lock_step(&waits, &why), -ETIMEDOUT);
	blob_lock_end(&waits);
	blobs_maintain(b, clock_now_ns() + 59 * SECOND_NS);
	assert_int_equal(report_of(b).locks, 1);
	blobs_maintain(b, clock_now_ns() + 61 * SECOND_NS);
	assert_int_equal(report_of(b).locks, 0);
	/* The namespace is reset. */
	assert_int_equal(lock_try(b, 3, 1, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	blobs_reset(b);
	assert_int_equal(lock_try(b, 2, 1, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	blobs_free(&b);
}

static void locks_are_bounded(void **state)
{
	struct blobs *b = blobs_open(64, 16, NULL, NULL);
	struct why why = WHY_INIT;

	for (uint64_t k = 0; k < BLOBS_LOCKS; k++)
		assert_int_equal(lock_try(b, 1 + k / BLOBS_SESSION_LOCKS, k, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	assert_int_equal(lock_try(b, 1, 100000, 60 * SECOND_NS, &why), -EDQUOT);
	assert_int_equal(lock_try(b, 1000, 100000, 60 * SECOND_NS, &why), -EDQUOT);
	assert_int_equal(lock_try(b, 1, 0, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	blobs_session_end(b, 2);
	assert_int_equal(report_of(b).locks, BLOBS_LOCKS - BLOBS_SESSION_LOCKS);
	assert_int_equal(lock_try(b, 1000, 100000, 60 * SECOND_NS, &why), BLOB_LOCK_HELD);
	blobs_free(&b);
}

static void a_reset_hides_all(void **state)
{
	struct blobs *b = blobs_open(1000, 500, NULL, NULL);
	struct blob_info info;
	uint32_t cursor = 0;
	bool stored, ended;

	for (uint64_t k = 0; k < 400; k++)
		assert_int_equal(put(b, 1, k, BLOBS_UNIT, k, 0), 0);
	assert_int_equal(piece(b, 1, 1, 900, 0, 10, 20, 900, &stored, 0), 0);
	assert_int_equal(read_piece(b, 1, 2, 7, 0, 10, 7, &ended, 0), 10);
	blobs_reset(b);
	assert_int_equal(blobs_next(b, &cursor, &info), 0);
	assert_int_equal(get(b, 8, 8), -ENOENT);
	assert_int_equal(put(b, 1, 8, 50, 88, 0), 0);
	assert_int_equal(piece(b, 1, 1, 900, 10, 10, 20, 900, &stored, 0), -ESTALE);
	assert_int_equal(report_of(b).bytes, 2 * BLOBS_UNIT); /* the new one, and the one that is read */
	assert_int_equal(read_piece(b, 1, 2, 7, 10, BLOBS_UNIT, 7, &ended, 0), BLOBS_UNIT - 10);
	assert_true(ended);
	assert_int_equal(get(b, 7, 7), -ENOENT);
	assert_int_equal(get(b, 8, 88), 50);
	assert_int_equal(report_of(b).bytes, BLOBS_UNIT);
	assert_int_equal(report_of(b).blobs_evicted, 0);
	blobs_free(&b);
}

/* ---- beside pages ---------------------------------------------------------------------------------------------- */

static struct space *space_with_blobs(struct host *host, uint64_t floor, uint64_t bytes, int *error)
{
	char text[512];
	int n = snprintf(text, sizeof(text),
		"{\"version\":1,\"identity\":{\"model\":\"test\"},\"world\":1,\"page_tokens\":64,\"memory\":{\"floor\":%llu,"
		"\"blobs\":{\"bytes\":%llu,\"count\":100}},\"classes\":[" CLASS_KV "]}",
		(unsigned long long)floor, (unsigned long long)bytes);
	struct space_access access = {0, 0, 0700};
	struct layout *layout;
	struct space *space = NULL;
	struct why why = WHY_INIT;

	if (layout_parse(text, (size_t)n, &layout, &why))
		fail_msg("%s", why.text);
	*error = host_space_create(host, "both", layout, &access, &space, &why);
	return *error ? NULL : space;
}

/* A namespace goes when the last thread that works for it is done. */
static void await_floors(struct host *host, uint64_t bytes)
{
	uint64_t deadline_ns = clock_now_ns() + 60 * SECOND_NS;
	struct host_report report;

	for (host_report(host, &report); report.floors_bytes != bytes; host_report(host, &report)) {
		if (clock_now_ns() > deadline_ns)
			fail_msg("floors of %llu bytes after a minute", (unsigned long long)report.floors_bytes);
		sched_yield();
	}
}

static void the_budget_is_shared_exactly(void **state)
{
	struct fixture f;
	struct host_report report;
	struct space *space;
	uint64_t mib = 1 << 20;
	int error;

	fixture_open(&f, CLASS_KV, 1, 64 * mib, 16 * mib, NULL);
	space = space_with_blobs(f.host, 32 * mib, 16 * mib + 1, &error); /* one unit less is used: it fits */
	assert_int_equal(error, 0);
	host_report(f.host, &report);
	assert_int_equal(report.floors_bytes, 64 * mib);
	assert_int_equal(host_space_remove(f.host, "both", NULL), 0);
	space_unref(&space);
	await_floors(f.host, 16 * mib);
	space_with_blobs(f.host, 32 * mib, 17 * mib, &error);
	assert_int_equal(error, -ENOSPC);
	await_floors(f.host, 16 * mib);
	fixture_close(&f);
}

static void pressure_stays_on_its_side(void **state)
{
	struct fixture f;
	uint64_t mib = 1 << 20;
	struct put_result *r = calloc(1, sizeof(*r));
	struct space_report before, after;
	struct session *s;
	int error;

	fixture_open(&f, CLASS_KV, 1, 64 * mib, 8 * mib, NULL);
	struct fixture g = {f.host, space_with_blobs(f.host, 40 * mib, 16 * mib, &error)};

	fixture_await_prewarm(&g);
	s = fixture_session(&g, 0);
	assert_int_equal(put_chain(s, 1, 1, 0, 100, 1, 0, r), 0);
	commit_all(s, 1, 1);
	before = fixture_report(&g);
	for (uint64_t k = 0; k < 200; k++)
		assert_int_equal(put(g.space->blobs, 1, k, mib, k, 0), 0);
	after = fixture_report(&g);
	assert_int_equal(after.blobs, 16);
	assert_int_equal(after.blob_bytes, 16 * mib);
	assert_int_equal(after.blob_granted_bytes, 16 * mib);
	assert_int_equal(after.stats.blobs_evicted, 184);
	assert_int_equal(after.stats.values_evicted, 0);
	assert_int_equal(after.pages, before.pages);
	assert_int_equal(after.granted_bytes, before.granted_bytes);
	/* And pages without end leave blobs alone. */
	for (uint64_t chain = 2; chain < 60; chain++)
		if (put_chain(s, chain, chain, 0, 500, 1, 0, r) == 0 && r->groups_ok)
			commit_all(s, chain, 1);
	after = fixture_report(&g);
	assert_true(after.stats.values_evicted > 0);
	assert_int_equal(after.blobs, 16);
	for (uint64_t k = 184; k < 200; k++)
		assert_int_equal(get(g.space->blobs, k, k), mib);
	/* A reset takes both; a session's end its transfers and locks. */
	struct why why = WHY_INIT;
	bool stored;

	assert_int_equal(piece(g.space->blobs, session_number(s), 1, 1, 0, 1, 2, 1, &stored, 0), 0);
	assert_int_equal(lock_try(g.space->blobs, session_number(s), 1000, SECOND_NS * 60, &why), BLOB_LOCK_HELD);
	struct reset reset = {.session = s};

	assert_int_equal(reset_begin(&reset, &why), STEP_MORE);
	while (reset_step(&reset, &why) == STEP_MORE)
		;
	after = fixture_report(&g);
	assert_int_equal(after.blobs, 0);
	assert_int_equal(after.stats.blob_locks, 0);
	assert_int_equal(lock_try(g.space->blobs, session_number(s), 1000, SECOND_NS * 60, &why), BLOB_LOCK_HELD);
	session_release(s);
	session_unref(&s);
	after = fixture_report(&g);
	assert_int_equal(after.stats.blob_transfers, 0);
	assert_int_equal(after.stats.blob_locks, 0);
	assert_int_equal(after.blob_bytes, 0);
	free(r);
	space_unref(&g.space);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stores_and_replaces),
		cmocka_unit_test(names_are_keys_too),
		cmocka_unit_test(pieces_are_one_blob),
		cmocka_unit_test(the_coldest_go_first),
		cmocka_unit_test(their_number_is_bounded),
		cmocka_unit_test(transfers_are_bounded),
		cmocka_unit_test(writes_take_half_at_most),
		cmocka_unit_test(one_makes_it_the_others_wait),
		cmocka_unit_test(a_lock_passes_on),
		cmocka_unit_test(locks_are_bounded),
		cmocka_unit_test(a_reset_hides_all),
		cmocka_unit_test(the_budget_is_shared_exactly),
		cmocka_unit_test(pressure_stays_on_its_side),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
