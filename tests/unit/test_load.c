/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that come back from disk: reads joined, cancelled and failed; transfers in windows; what a transfer holds; the mount's
 * reads.
 */
#include "tests/unit/tier_world.h"

#include <errno.h>

#include "store/get_private.h"
#include "store/viewed.h"

#define KV_ROW WORLD_KV "," CLASS_STATE
#define KV_LONG "{\"name\":\"kv\",\"kind\":\"dense\",\"every\":128,\"planes\":[{\"name\":\"k\",\"bytes\":16384}]}"
#define KV_WINDOW WORLD_KV ",{\"name\":\"sw\",\"kind\":\"window\",\"last\":2,\"sink\":0,\"planes\":[{\"name\":\"k\",\"bytes\":10000}]}"
#define MEMORY (16ull << 20)
#define PAGES 100u

static struct tier_world world; /* static: cmocka leaves a failed test by longjmp */
static uint64_t offsets[8192], others[8192];

/* One chain, with its row, on disk alone. */
static struct session *begin(struct tier_world *w, bool row)
{
	world_open(w, row ? KV_ROW : WORLD_KV, MEMORY);
	struct session *s = fixture_session(&w->f, 0);

	world_put(w, s, 1, 1, 0, PAGES, row);
	world_to_disk(w);
	assert_int_equal(w->f.space->tiering->places_used, PAGES + row);
	return s;
}

static void end(struct tier_world *w, struct session *s, struct session *t)
{
	world_at_base(w, t ? 2 : 1);
	session_release(s);
	session_unref(&s);
	if (t) {
		session_release(t);
		session_unref(&t);
	}
	world_close(w);
}

static void check_pages(struct tier_world *w, const uint64_t *at, uint64_t chain, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		world_check(w, at[i - from], WORLD_VALUE, chain, i);
}

static void release(struct session *s, uint64_t plan)
{
	struct why why = WHY_INIT;

	if (get_release(s, plan, &why))
		fail_msg("release: %s", why.text);
}

/* Nothing was delivered: there is no plan. */
static void no_plan(struct session *s, uint64_t plan)
{
	struct why why = WHY_INIT;

	assert_int_equal(get_release(s, plan, &why), -ENOENT);
}

static void comes_back(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	world_get(s, 1, 1, PAGES, &start);
	assert_int_equal(start.transferable_len, PAGES * FIXTURE_PAGE);
	assert_int_equal(start.bytes, 0);
	assert_int_equal(start.disk_bytes, PAGES * WORLD_VALUE + 10000);
	assert_int_equal(start.disk_us, start.disk_bytes * 1000000 / 3000000000 + 1);
	assert_int_equal(start.missing_count, 0);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, 200);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, PAGES * FIXTURE_PAGE);
	assert_int_equal(call.values, PAGES + 1);
	assert_int_equal(call.bytes, PAGES * WORLD_VALUE + 10000);
	assert_true(call.handle_ended);
	check_pages(w, offsets, 1, 0, PAGES);
	world_check(w, offsets[PAGES], 10000, 1, WORLD_ROW);
	assert_int_equal(world_holds(w), PAGES + 1);
	struct space_report r = fixture_report(&w->f);

	assert_int_equal(r.stats.values_promoted, PAGES + 1);
	assert_int_equal(r.stats.bytes_promoted, PAGES * WORLD_VALUE + 10000);
	assert_int_equal(r.stats.keys_led, PAGES);
	assert_int_equal(r.stats.keys_local, 0);
	assert_int_equal(w->f.space->tiering->places_used, 0);
	release(s, 2);
	/* once more, from memory */
	world_get(s, 3, 1, PAGES, &start);
	assert_int_equal(start.bytes, PAGES * WORLD_VALUE + 10000);
	assert_int_equal(start.disk_bytes, 0);
	assert_int_equal(start.disk_us, 0);
	transfer_of(&call, s, 3, 4, PAGES, 0, PAGES, offsets, 200);
	assert_int_equal(transfer_start(&call, &why), 0);
	check_pages(w, offsets, 1, 0, PAGES);
	release(s, 4);
	assert_int_equal(fixture_report(&w->f).stats.values_promoted, PAGES + 1);
	end(w, s, NULL);
}

static void two_read_once(void **state)
{
	struct tier_world *w = &world;
	struct session *a = begin(w, false), *b = fixture_session(&w->f, 0);
	struct host_disk_report before, after;
	struct get_transfer one, two;
	struct get_start start;
	struct why why = WHY_INIT;
	int r, q;

	host_disk_report(w->f.host, &before);
	gate_set(w->gate, true);
	world_get(a, 1, 1, PAGES, &start);
	world_get(b, 1, 1, PAGES, &start);
	transfer_of(&one, a, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	transfer_of(&two, b, 1, 2, PAGES, 0, PAGES, others, PAGES);
	r = transfer_start(&one, &why);
	q = transfer_start(&two, &why);
	assert_int_equal(r, STEP_WAIT);
	assert_int_equal(q, STEP_WAIT);
	assert_int_equal(fixture_report(&w->f).stats.waiting, 2);
	assert_int_equal(fixture_report(&w->f).stats.loads, PAGES);
	gate_set(w->gate, false);
	assert_int_equal(transfer_end(&one, r, &why), 0);
	assert_int_equal(transfer_end(&two, q, &why), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(offsets[i], others[i]);
	check_pages(w, offsets, 1, 0, PAGES);
	host_disk_report(w->f.host, &after);
	assert_true(after.read_bytes - before.read_bytes < 2ull * PAGES * WORLD_VALUE);
	assert_int_equal(world_holds(w), 2 * PAGES);
	struct space_report report = fixture_report(&w->f);

	assert_int_equal(report.stats.values_promoted, PAGES);
	assert_int_equal(report.stats.keys_led, PAGES);
	assert_int_equal(report.stats.keys_joined, PAGES);
	assert_true(report.stats.reads_avoided >= PAGES);
	assert_int_equal(report.stats.loads, 0);
	release(a, 2);
	release(b, 2);
	end(w, a, b);
}

static void the_last_wanter_cancels(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct get_start start;
	struct why why = WHY_INIT;

	world_put(w, s, 2, 2, 0, 10, false);
	world_to_disk(w);
	gate_set(w->gate, true);
	world_get(s, 1, 1, 5, &start); /* stands at the gate */
	gate_await(w->gate);
	world_get(s, 2, 2, 10, &start); /* behind it */
	world_get(s, 3, 2, 10, &start);
	assert_int_equal(fixture_report(&w->f).stats.loads, 15);
	assert_int_equal(get_cancel(s, 2, &why), 0);
	assert_int_equal(get_cancel(s, 3, &why), 0);
	world_get(s, 4, 2, 3, &start); /* wanted again: begun again */
	gate_set(w->gate, false);
	world_await_loads(w);
	struct space_report r = fixture_report(&w->f);

	assert_int_equal(r.stats.loads_cancelled, 7);
	assert_int_equal(r.stats.values_promoted, 8);
	assert_int_equal(w->f.space->tiering->places_used, PAGES + 10 - 8);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	assert_int_equal(get_cancel(s, 4, &why), 0);
	end(w, s, NULL);
}

/* ---- failures ------------------------------------------------------------------------------------------------------------ */

struct damage {
	uint64_t chain;
	uint32_t page;
	bool done;
};
static struct damage damage;

static int damage_file(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	size_t bytes = damage.page == WORLD_ROW ? 10000 : WORLD_VALUE, length = strlen(path);
	uint64_t expected[WORLD_VALUE / 8];
	char *all;

	if (flag != FTW_F || length < 4 || strcmp(path + length - 4, ".rec") || damage.done)
		return 0;
	world_fill(expected, bytes, damage.chain, damage.page);
	int fd = open(path, O_RDWR);

	all = malloc((size_t)st->st_size);
	assert_int_equal(pread(fd, all, (size_t)st->st_size, 0), st->st_size);
	for (off_t i = 0; i + (off_t)bytes <= st->st_size && !damage.done; i += 512)
		if (!memcmp(all + i, expected, bytes)) {
			assert_int_equal(pwrite(fd, "damage", 6, i + 1000), 6);
			damage.done = true;
		}
	fdatasync(fd);
	close(fd);
	free(all);
	return 0;
}

/* The bytes of a value on disk change. */
static void spoil(struct tier_world *w, uint64_t chain, uint32_t page)
{
	damage = (struct damage){ chain, page, false };
	nftw(w->path, damage_file, 16, FTW_PHYS);
	assert_true(damage.done);
}

static void a_failure_is_one_miss(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;
	struct key keys[PAGES];
	struct probe probe = { .session = s, .keys = keys, .key_count = PAGES };

	for (uint32_t i = 0; i < PAGES; i++)
		keys[i] = fixture_key(1, i);
	spoil(w, 1, 37);
	world_get(s, 1, 1, PAGES, &start);
	assert_int_equal(start.transferable_len, PAGES * FIXTURE_PAGE);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 37 * FIXTURE_PAGE);
	assert_int_equal(call.values, 37);
	assert_false(call.handle_ended);
	check_pages(w, offsets, 1, 0, 37);
	for (uint32_t i = 37; i < PAGES; i++)
		assert_true(offsets[i] == PUT_ANSWER_NONE);
	transfer_of(&call, s, 1, 3, PAGES, 37, PAGES, offsets, PAGES); /* from there nothing, and that is the end */
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 37 * FIXTURE_PAGE);
	assert_int_equal(call.values, 0);
	assert_true(call.handle_ended);
	release(s, 2);
	no_plan(s, 3);
	world_await_loads(w);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, 1);
	assert_int_equal(atomic_load(&w->corrupt), 1);
	while (!probe_step(&probe, &why) && probe.key < PAGES)
		;
	assert_int_equal(probe.hit_count, PAGES - 1);
	assert_int_equal(probe.prefix, 37);
	world_get(s, 4, 1, PAGES, &start);
	assert_int_equal(start.raw_prefix_hit_len, 37 * FIXTURE_PAGE);
	assert_int_equal(get_cancel(s, 4, &why), 0);
	end(w, s, NULL);
}

/* Values of two pages: a boundary is the end of one, and the page that a failure leaves half a value with is none. */
static void a_failure_within_a_long_value(void **state)
{
	struct tier_world *w = &world;
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	world_open(w, KV_LONG, MEMORY);
	struct session *s = fixture_session(&w->f, 0);

	world_put(w, s, 1, 1, 0, PAGES, false);
	world_to_disk(w);
	spoil(w, 1, 37); /* the one of pages 36 and 37 */
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 36 * FIXTURE_PAGE);
	assert_int_equal(call.values, 18);
	assert_false(call.handle_ended);
	transfer_of(&call, s, 1, 3, PAGES, 36, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 36 * FIXTURE_PAGE);
	assert_true(call.handle_ended);
	no_plan(s, 3);
	release(s, 2);
	end(w, s, NULL);
}

/* With a window what came before the failure is part of a shorter boundary's needs: that boundary is asked for again, from its window on. */
static void a_failure_before_a_window(void **state)
{
	struct tier_world *w = &world;
	static struct put_result r;
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	world_open(w, KV_WINDOW, MEMORY);
	struct session *s = fixture_session(&w->f, 0);

	assert_int_equal(put_chain(s, 1, 1, 0, PAGES, 3, 0, &r), 0);
	for (uint32_t i = 0; i < PAGES; i++) {
		world_write(w, r.answers[i], WORLD_VALUE, 1, i);
		world_write(w, r.answers[PAGES + i], 10000, 2, i);
	}
	commit_all(s, 1, 1);
	world_to_disk(w);
	spoil(w, 1, 37);
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, 2 * PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 37 * FIXTURE_PAGE);
	assert_int_equal(call.values, 37);
	check_pages(w, offsets, 1, 0, 37);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_true(offsets[PAGES + i] == PUT_ANSWER_NONE);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	world_get(s, 3, 1, PAGES, &start);
	assert_int_equal(start.transferable_len, 37 * FIXTURE_PAGE);
	transfer_of(&call, s, 3, 4, 37, 35, 37, others, 4);
	call.class_mask = 2;
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 37 * FIXTURE_PAGE);
	assert_true(call.handle_ended);
	for (uint32_t i = 0; i < 2; i++)
		world_check(w, others[i], 10000, 2, 35 + i);
	release(s, 2);
	release(s, 4);
	end(w, s, NULL);
}

/* Rows stand at 20 and at the end: pages behind 20 are of no use without the last one, at 100. */
static void a_failure_between_rows(void **state)
{
	struct tier_world *w = &world;
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	world_open(w, KV_ROW, MEMORY);
	struct session *s = fixture_session(&w->f, 0);

	world_put(w, s, 1, 1, 0, 20, true);
	world_get(s, 9, 1, 20, &start); /* somebody resumes there: it stays when the next one is put */
	assert_int_equal(get_cancel(s, 9, &why), 0);
	world_put(w, s, 2, 1, 20, PAGES - 20, true);
	world_to_disk(w);
	spoil(w, 1, 37);
	world_get(s, 10, 1, PAGES, &start);
	assert_int_equal(start.transferable_len, PAGES * FIXTURE_PAGE);
	transfer_of(&call, s, 10, 11, PAGES, 0, 10, offsets, 2 * PAGES); /* all of it is there */
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 10 * FIXTURE_PAGE);
	transfer_of(&call, s, 10, 12, PAGES, 10, PAGES, others, 2 * PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 20 * FIXTURE_PAGE);
	assert_int_equal(call.values, 10);
	check_pages(w, others, 1, 10, 20);
	assert_true(others[PAGES - 10] == PUT_ANSWER_NONE); /* the row */
	transfer_of(&call, s, 10, 13, PAGES, 20, PAGES, offsets, 2 * PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 20 * FIXTURE_PAGE);
	assert_true(call.handle_ended);
	no_plan(s, 13);
	release(s, 11);
	release(s, 12);
	end(w, s, NULL);
}

static int cut_file(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	size_t length = strlen(path);

	if (flag == FTW_F && length > 4 && !strcmp(path + length - 4, ".rec"))
		assert_int_equal(truncate(path, 0), 0);
	return 0;
}

/* A file without a header: nothing of it counts any more, whatever was wanted; what is in memory stays and is written. */
static void a_file_is_damaged(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	world_get(s, 1, 1, 20, &start);
	transfer_of(&call, s, 1, 2, 20, 0, 20, others, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	nftw(w->path, cut_file, 16, FTW_PHYS);
	world_get(s, 3, 1, PAGES, &start);
	transfer_of(&call, s, 3, 4, PAGES, 0, 30, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 20 * FIXTURE_PAGE);
	release(s, 4);
	get_cancel(s, 3, NULL);
	while (atomic_load(&w->f.space->tiering->jobs))
		sched_yield();
	assert_int_equal(w->f.space->tiering->places_used, 0);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, PAGES - 20);
	release(s, 2);
	world_to_disk(w);
	assert_int_equal(w->f.space->tiering->places_used, 20);
	world_get(s, 5, 1, PAGES, &start);
	assert_int_equal(start.transferable_len, 20 * FIXTURE_PAGE);
	transfer_of(&call, s, 5, 6, 20, 0, 20, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	check_pages(w, offsets, 1, 0, 20);
	release(s, 6);
	end(w, s, NULL);
}

static void without_the_row_nothing(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	spoil(w, 1, WORLD_ROW);
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, 10, offsets, PAGES); /* the row is wanted with the first range */
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 0);
	assert_true(call.handle_ended);
	no_plan(s, 2);
	assert_int_equal(world_holds(w), 0);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, 1);
	world_get(s, 3, 1, PAGES, &start);
	assert_int_equal(start.raw_prefix_hit_len, PAGES * FIXTURE_PAGE);
	assert_false(start.handle_live); /* of the pages alone nothing can be restored */
	end(w, s, NULL);
}

static void the_disk_errs_once(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	gate_set(w->gate, true);
	world_get(s, 1, 1, PAGES, &start);
	assert_int_equal(disk_ops_fault_set(w->faults, "read:EIO:=1", &why), 0);
	gate_set(w->gate, false);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, PAGES * FIXTURE_PAGE);
	check_pages(w, offsets, 1, 0, PAGES);
	release(s, 2);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, 0);
	end(w, s, NULL);
}

static void the_disk_errs_always(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	assert_int_equal(disk_ops_fault_set(w->faults, "read:EIO", &why), 0);
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, 0);
	assert_true(call.handle_ended);
	no_plan(s, 2);
	world_await_loads(w);
	struct space_report r = fixture_report(&w->f);

	assert_true(r.stats.loads_failed > 0);
	assert_int_equal(r.stats.loads_failed + r.stats.loads_cancelled, PAGES); /* the handle's end cancels what is not read yet */
	world_get(s, 3, 1, PAGES, &start);
	assert_int_equal(start.raw_prefix_hit_len, 0);
	end(w, s, NULL);
}

/* Nothing is known about the values then: they stay. */
static void no_descriptor_is_no_loss(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	assert_int_equal(disk_ops_fault_set(w->faults, "open:EMFILE", &why), 0);
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), -EAGAIN);
	assert_int_equal(world_holds(w), 0);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, 0);
	world_await_loads(w); /* who joined one that fails would be cut short */
	assert_int_equal(disk_ops_fault_set(w->faults, "", &why), 0);
	transfer_of(&call, s, 1, 3, PAGES, 0, PAGES, offsets, PAGES);
	assert_int_equal(transfer_all(&call, &why), 0);
	assert_int_equal(call.delivered_len, PAGES * FIXTURE_PAGE);
	check_pages(w, offsets, 1, 0, PAGES);
	release(s, 3);
	end(w, s, NULL);
}

/* ---- windows -------------------------------------------------------------------------------------------------------------- */

#define SMALL (16ull << 20) /* eight grants of 128 pages */
#define LONG 4096u

struct stream {
	struct session *s;
	uint64_t handle, chain, plan;
	struct get_transfer call;
	uint64_t *offsets;
	uint32_t at;
	unsigned windows;
	int r;
};

static void stream_next(struct stream *x)
{
	struct why why = WHY_INIT;

	transfer_of(&x->call, x->s, x->handle, ++x->plan, LONG, x->at, LONG, x->offsets, LONG);
	x->r = transfer_start(&x->call, &why);
}

/* Goes on with it. True: it is at its end. */
static bool stream_step(struct tier_world *w, struct stream *x)
{
	struct why why = WHY_INIT;
	uint32_t to;

	if (x->at == LONG)
		return true;
	if (x->r == STEP_WAIT)
		x->r = transfer_again(&x->call, &why);
	if (x->r == STEP_WAIT)
		return false;
	if (x->r)
		fail_msg("transfer from page %u: %s", x->at, why.text);
	to = (uint32_t)(x->call.delivered_len / FIXTURE_PAGE);
	assert_true(to > x->at);
	check_pages(w, x->offsets, x->chain, x->at, to);
	release(x->s, x->plan);
	x->at = to;
	x->windows++;
	if (x->at < LONG)
		stream_next(x);
	return x->at == LONG;
}

static void put_long(struct tier_world *w, struct session *s, uint64_t chain)
{
	for (uint32_t i = 0; i < LONG; i += 128)
		world_put(w, s, chain * 10000 + i + 1, chain, i, 128, false);
}

static void longer_than_memory(void **state)
{
	struct tier_world *w = &world;
	uint64_t deadline_ns = clock_now_ns() + WORLD_NS;
	struct get_transfer hot;
	struct get_start start;
	struct why why = WHY_INIT;

	world_open(w, WORLD_KV, SMALL);
	struct session *s = fixture_session(&w->f, 0);
	struct stream x = { .s = s, .handle = 1, .chain = 1, .plan = 100, .offsets = others };

	put_long(w, s, 1);
	world_put(w, s, 2, 2, 0, 50, false);
	world_get(s, 2, 2, 50, &start);
	transfer_of(&hot, s, 2, 90, 50, 0, 50, offsets, 50); /* held all the while */
	assert_int_equal(transfer_all(&hot, &why), 0);
	world_get(s, 1, 1, LONG, &start);
	assert_int_equal(start.transferable_len, LONG * FIXTURE_PAGE);
	stream_next(&x);
	while (!stream_step(w, &x)) {
		assert_true(clock_now_ns() < deadline_ns);
		sched_yield();
	}
	assert_true(x.windows >= 4);
	assert_true(x.call.handle_ended);
	check_pages(w, offsets, 2, 0, 50);
	assert_int_equal(world_holds(w), 50);
	assert_int_equal(fixture_report(&w->f).stats.values_evicted, 0);
	release(s, 90);
	end(w, s, NULL);
}

static void two_at_once(void **state)
{
	struct tier_world *w = &world;
	uint64_t deadline_ns = clock_now_ns() + WORLD_NS;
	struct get_start start;

	world_open(w, WORLD_KV, SMALL);
	struct session *s = fixture_session(&w->f, 0), *t = fixture_session(&w->f, 0);
	struct stream x = { .s = s, .handle = 1, .chain = 1, .plan = 100, .offsets = offsets };
	struct stream y = { .s = t, .handle = 1, .chain = 2, .plan = 100, .offsets = others };

	put_long(w, s, 1);
	put_long(w, s, 2);
	world_get(s, 1, 1, LONG, &start);
	world_get(t, 1, 2, LONG, &start);
	stream_next(&x);
	stream_next(&y);
	for (bool over = false; !over;) {
		over = stream_step(w, &x);
		over &= stream_step(w, &y);
		assert_true(clock_now_ns() < deadline_ns);
		sched_yield();
	}
	end(w, s, t);
}

static void no_room_until_the_deadline(void **state)
{
	struct tier_world *w = &world;
	struct get_transfer call, all;
	struct get_start start;
	struct why why = WHY_INIT;
	int r;

	world_open(w, WORLD_KV, SMALL);
	struct session *s = fixture_session(&w->f, 0);

	put_long(w, s, 1);
	world_put(w, s, 2, 2, 0, 50, false);
	world_to_disk(w);
	world_get(s, 1, 1, LONG, &start);
	transfer_of(&all, s, 1, 100, LONG, 0, LONG, offsets, LONG);
	assert_int_equal(transfer_all(&all, &why), 0); /* has all slots */
	assert_int_equal(all.delivered_len, 1024 * FIXTURE_PAGE);
	world_get(s, 2, 2, 50, &start);
	transfer_of(&call, s, 2, 101, 50, 0, 50, others, 50);
	r = transfer_start(&call, &why);
	assert_int_equal(r, STEP_WAIT);
	assert_int_equal(world_holds(w), 1024); /* nothing is held while it waits */
	call.deadline_ns = 1;
	assert_int_equal(transfer_again(&call, &why), -EAGAIN);
	assert_int_equal(fixture_report(&w->f).stats.waiting, 0);
	transfer_of(&call, s, 2, 102, 50, 0, 50, others, 50); /* the handle is as it was */
	r = transfer_start(&call, &why);
	assert_int_equal(r, STEP_WAIT);
	get_transfer_undo(&call);
	transfer_of(&call, s, 2, 103, 50, 0, 50, others, 50);
	r = transfer_start(&call, &why);
	assert_int_equal(r, STEP_WAIT);
	release(s, 100);
	assert_int_equal(transfer_end(&call, r, &why), 0);
	assert_int_equal(call.delivered_len, 50 * FIXTURE_PAGE);
	check_pages(w, others, 2, 0, 50);
	release(s, 103);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	end(w, s, NULL);
}

/* ---- others come in between ----------------------------------------------------------------------------------------------- */

static void reset_run(struct session *s)
{
	struct reset call = { .session = s };
	struct why why = WHY_INIT;
	int r = reset_begin(&call, &why);

	while (r == STEP_MORE)
		r = reset_step(&call, &why);
	assert_int_equal(r, 0);
}

static void a_reset_in_between(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;
	int r;

	gate_set(w->gate, true);
	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, 200);
	r = transfer_start(&call, &why);
	assert_int_equal(r, STEP_WAIT);
	reset_run(s);
	gate_set(w->gate, false);
	assert_int_equal(transfer_end(&call, r, &why), 0);
	if (call.delivered_len) /* its file was open when it went */
		check_pages(w, offsets, 1, 0, (uint32_t)(call.delivered_len / FIXTURE_PAGE));
	release(s, 2);
	get_cancel(s, 1, NULL);
	world_get(s, 3, 1, PAGES, &start);
	assert_int_equal(start.raw_prefix_hit_len, 0);
	space_retire(w->f.space);
	world_await_loads(w);
	assert_int_equal(w->f.space->tiering->places_used, 0);
	end(w, s, NULL);
}

static void gone_while_it_is_read(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false);
	struct eviction call = { .session = s, .goal_bytes = EVICTION_ALL };
	struct get_start start;
	struct why why = WHY_INIT;
	int r;

	gate_set(w->gate, true);
	world_get(s, 1, 1, PAGES, &start);
	gate_await(w->gate);
	r = eviction_begin(&call, &why);
	while (r == STEP_MORE)
		r = eviction_step(&call, &why);
	assert_int_equal(call.records, 0); /* it is pinned */
	assert_int_equal(get_cancel(s, 1, &why), 0);
	r = eviction_begin(&call, &why);
	while (r == STEP_MORE)
		r = eviction_step(&call, &why);
	assert_int_equal(call.records, 1);
	assert_int_equal(w->f.space->tiering->places_used, 0);
	assert_int_equal(fixture_report(&w->f).stats.loads, PAGES); /* orphans: their slots are not given back yet */
	gate_set(w->gate, false);
	world_await_loads(w);
	assert_int_equal(fixture_report(&w->f).stats.values_promoted, 0);
	end(w, s, NULL);
}

static void a_session_ends_waiting(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true), *t = fixture_session(&w->f, 0);
	struct get_transfer call;
	struct get_start start;
	struct why why = WHY_INIT;

	gate_set(w->gate, true);
	world_get(t, 1, 1, PAGES, &start);
	transfer_of(&call, t, 1, 2, PAGES, 0, PAGES, offsets, 200);
	assert_int_equal(session_enter(t, 0, &why), 0);
	assert_int_equal(get_transfer_begin(&call, &why), 0);
	int r = STEP_MORE;

	while (r == STEP_MORE)
		r = get_transfer_step(&call, &why);
	assert_int_equal(r, STEP_WAIT);
	session_release(t); /* its end waits for the request */
	assert_int_equal(get_transfer_step(&call, &why), -ESHUTDOWN);
	session_leave(t);
	session_unref(&t);
	gate_set(w->gate, false);
	end(w, s, NULL);
}

static void a_range_is_not_acknowledged(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true), *t = fixture_session(&w->f, 0);
	uint64_t acknowledged[SLOTS_MAX_GRANTS / 64];
	struct get_transfer call;
	struct get_start start;
	struct holding *holding;
	struct why why = WHY_INIT;

	world_get(s, 1, 1, PAGES, &start);
	transfer_of(&call, s, 1, 2, PAGES, 0, PAGES, offsets, 200);
	assert_int_equal(transfer_all(&call, &why), 0);
	release(s, 2);
	lock_take(&w->f.space->lock);
	memcpy(acknowledged, t->acknowledged, sizeof(acknowledged));
	memset(t->acknowledged, 0, sizeof(acknowledged));
	lock_drop(&w->f.space->lock);
	world_get(t, 1, 1, PAGES, &start);
	transfer_of(&call, t, 1, 2, PAGES, 0, PAGES, offsets, 200);
	assert_int_equal(transfer_all(&call, &why), -ENXIO);
	assert_int_equal(world_holds(w), PAGES + 1); /* kept for the next call, the row too */
	assert_int_equal(fixture_report(&w->f).stats.get_plans, 0);
	lock_take(&w->f.space->lock);
	memcpy(t->acknowledged, acknowledged, sizeof(acknowledged));
	lock_drop(&w->f.space->lock);
	/* their time is over */
	assert_int_equal(session_claim(t, HOLDING_HANDLE, 1, &holding, NULL, &why), 0);
	((struct handle *)holding)->kept_until_ns = 1;
	session_unclaim(t, holding);
	host_maintain(w->f.host);
	assert_int_equal(world_holds(w), 1);
	transfer_of(&call, t, 1, 2, PAGES, 0, PAGES, offsets, 200);
	assert_int_equal(transfer_all(&call, &why), 0);
	check_pages(w, offsets, 1, 0, PAGES);
	world_check(w, offsets[PAGES], 10000, 1, WORLD_ROW);
	release(t, 2);
	end(w, s, t);
}

/* ---- the mount's reads ------------------------------------------------------------------------------------------------------ */

static void the_mount_reads(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true);
	struct key endpoint = fixture_key(1, PAGES - 1), key = fixture_key(1, 7);
	size_t bytes = PAGES * WORLD_VALUE;
	char *all = malloc(bytes), row[12288];
	struct record_info info;

	assert_int_equal(space_record_find(w->f.space, &endpoint, false, &info), 0);
	assert_int_equal(info.pages, PAGES);
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, 0, all, bytes), bytes);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_true(world_is(all + i * WORLD_VALUE, WORLD_VALUE, 1, i));
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, WORLD_VALUE * 9 + 1000, all, 5000), 5000);
	assert_int_equal(space_page_read(w->f.space, &key, 0, all, WORLD_VALUE), WORLD_VALUE);
	assert_true(world_is(all, WORLD_VALUE, 1, 7));
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, true, 0, row, sizeof(row)), sizeof(row));
	assert_true(world_is(row, 10000, 1, WORLD_ROW));
	for (uint32_t i = 10000; i < sizeof(row); i++)
		assert_int_equal(row[i], 0);
	assert_int_equal(w->f.space->tiering->places_used, PAGES + 1);
	assert_int_equal(fixture_report(&w->f).stats.values_promoted, 0);
	spoil(w, 1, 20);
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, WORLD_VALUE * 20, all, WORLD_VALUE), WORLD_VALUE);
	assert_true(world_is(all, WORLD_VALUE, 1, 20)); /* as it was when it was read */
	viewed_trim(w->f.space->tiering, UINT64_MAX);
	assert_int_equal(atomic_load(&w->f.host->viewed_bytes), 0);
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, WORLD_VALUE * 20, all, WORLD_VALUE), -EIO);
	assert_int_equal(atomic_load(&w->corrupt), 1);
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, WORLD_VALUE * 20, all, WORLD_VALUE), -ENODATA);
	assert_int_equal(space_record_read(w->f.space, info.number, info.generation, false, WORLD_VALUE * 21, all, WORLD_VALUE), WORLD_VALUE);
	assert_true(world_is(all, WORLD_VALUE, 1, 21));
	free(all);
	end(w, s, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(comes_back),
		cmocka_unit_test(two_read_once),
		cmocka_unit_test(the_last_wanter_cancels),
		cmocka_unit_test(a_failure_is_one_miss),
		cmocka_unit_test(a_failure_within_a_long_value),
		cmocka_unit_test(a_failure_before_a_window),
		cmocka_unit_test(a_failure_between_rows),
		cmocka_unit_test(a_file_is_damaged),
		cmocka_unit_test(without_the_row_nothing),
		cmocka_unit_test(the_disk_errs_once),
		cmocka_unit_test(the_disk_errs_always),
		cmocka_unit_test(no_descriptor_is_no_loss),
		cmocka_unit_test(longer_than_memory),
		cmocka_unit_test(two_at_once),
		cmocka_unit_test(no_room_until_the_deadline),
		cmocka_unit_test(a_reset_in_between),
		cmocka_unit_test(gone_while_it_is_read),
		cmocka_unit_test(a_session_ends_waiting),
		cmocka_unit_test(a_range_is_not_acknowledged),
		cmocka_unit_test(the_mount_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
