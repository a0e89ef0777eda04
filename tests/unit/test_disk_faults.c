/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiers over a disk whose n-th operation fails, for every n until none does: once, or from then on. Who puts and gets sees misses and
 * NOROOM and no other error, what never left memory stays, nothing is held, owed or under way at the end, and a disk that fails for good
 * is closed and says why.
 */
#include "tests/unit/tiering_world.h"

#define CHAINS 12u
#define PAGES 8u
#define ROW_BYTES 10000u
#define CLASSES CLASS_KV "," CLASS_STATE
#define TEST_NS 12000000000ull /* for one kind of fault; what it does not come to is left out, and said */
#define FAILED_LONG_NS 11000000000ull

static struct world world;
static struct world *const w = &world;
static struct disk_ops *faults;
static bool there[CHAINS]; /* put, and not evicted */
static uint64_t handles;

/* ---- contents ----------------------------------------------------------------------------------------------------------------- */

static void fill(uint8_t *to, size_t bytes, uint64_t chain, uint64_t page, uint32_t class_index)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = chain << 48 | page << 32 | (uint64_t)class_index << 24 | i / 8;

		memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

static void put(uint64_t chain, bool row)
{
	uint8_t bytes[ROW_BYTES];

	assert_int_equal(put_chain(w->s, ++w->plan, chain, 0, PAGES, row ? 3 : 1, 0, &w->r), 0);
	assert_int_equal(w->r.groups_ok, 1);
	for (uint32_t i = 0; i < PAGES + row; i++) {
		size_t n = i < PAGES ? 4096 : ROW_BYTES;

		if (w->r.answers[i] >= PUT_ANSWER_DUPLICATE)
			continue;
		fill(bytes, n, chain, i < PAGES ? i : PAGES - 1, i == PAGES);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[i], bytes, n), 0);
	}
	commit_all(w->s, w->plan, 1);
	there[chain] = true;
}

static void put_row(uint64_t chain)
{
	struct key key = fixture_key(chain, PAGES - 1);
	struct put_group group = { .parent = fixture_key(chain, PAGES - 2), .consumed = (uint64_t)PAGES * FIXTURE_PAGE, .keys = 1,
				   .class_mask = 2, .flags = PUT_ROW_ONLY };
	uint8_t bytes[ROW_BYTES];

	assert_int_equal(put_run(w->s, ++w->plan, &group, 1, &key, 1, 2, &w->r), 0);
	if (w->r.status[0] == PUT_NOPAGES) /* they could not be kept */
		return;
	assert_int_equal(w->r.groups_ok, 1);
	fill(bytes, ROW_BYTES, chain, PAGES - 1, 1);
	assert_int_equal(segment_write(w->f.space->segment, w->r.answers[0], bytes, ROW_BYTES), 0);
	commit_all(w->s, w->plan, 1);
}

/* All of a chain through a plan: true; less of it, or nothing: false. Never another error, never other bytes. */
static bool get(uint64_t chain)
{
	struct get_start start = { 0 };
	struct get_transfer call = { .deadline_ns = clock_now_ns() + WORLD_WAIT_NS };
	struct why why = WHY_INIT;
	uint64_t offsets[PAGES + 1], handle = ++handles, plan = ++handles;
	uint8_t got[ROW_BYTES], want[ROW_BYTES];
	int e = get_chain(w->s, handle, chain, PAGES, 0, &start, &why);

	if (e)
		fail_msg("chain %llu: get: %s", (unsigned long long)chain, why.text);
	if (!start.transferable_len)
		return false;
	e = transfer_run(w->s, handle, plan, start.transferable_len, 0, start.transferable_len, offsets, PAGES + 1, &call, &why);
	while (e == STEP_WAIT) {
		sched_yield();
		e = session_enter(w->s, 0, &why);
		while (!e && (e = get_transfer_step(&call, &why)) == STEP_MORE)
			e = 0;
		session_leave(w->s);
	}
	if (e)
		fail_msg("chain %llu: transfer: %s", (unsigned long long)chain, why.text);
	for (uint32_t i = 0; i < call.values; i++) {
		bool row = i == call.delivered_len / FIXTURE_PAGE;

		assert_int_equal(segment_read(w->f.space->segment, offsets[i], got, row ? ROW_BYTES : 4096), 0);
		fill(want, row ? ROW_BYTES : 4096, chain, row ? PAGES - 1 : i, row);
		if (memcmp(got, want, row ? ROW_BYTES : 4096))
			fail_msg("chain %llu, value %u: other bytes", (unsigned long long)chain, i);
	}
	if (call.values && get_release(w->s, plan, &why))
		fail_msg("chain %llu: release: %s", (unsigned long long)chain, why.text);
	return call.values == PAGES + 1;
}

/* ---- the world ------------------------------------------------------------------------------------------------------------------ */

static void begin(void)
{
	struct host_config config = {
		.memory_bytes = 16 * MIB, .wish = SEGMENT_WISH_SMALL, .populate_threads = 1, .handle_ttl_ms = 60000, .fill_ttl_ms = 60000,
		.token_ttl_ms = 10000, .disk_path = w->path, .disk_bytes = 256 * MIB, .disk_workers = 1,
	};
	struct space_access mode = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	memset(w, 0, sizeof(*w));
	memset(there, 0, sizeof(there));
	snprintf(w->path, sizeof(w->path), "%s/prefixfs-faults-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	assert_non_null(mkdtemp(w->path));
	if (disk_ops_fault_new(disk_ops_plain_new(), "", false, &faults, &why))
		fail_msg("faults: %s", why.text);
	config.disk_ops = faults;
	if (host_new(&config, &w->f.host, &why) ||
	    host_space_create(w->f.host, "test", fixture_layout(CLASSES, 1, 16 * MIB), &mode, &w->f.space, &why))
		fail_msg("world: %s", why.text);
	fixture_await_prewarm(&w->f);
	w->t = w->f.space->tiering;
	w->s = fixture_session(&w->f, 0);
	handles = 1ull << 32; /* puts count from 1 */
}

static void set(const char *spec)
{
	struct why why = WHY_INIT;

	if (disk_ops_fault_set(faults, spec, &why))
		fail_msg("%s", why.text);
}

/* Has everything written, whatever pause a failure asked for; until it is, or has failed so often, or the tier is closed. */
static void write_all(uint32_t failures)
{
	uint32_t errors;

	world_lock(w);
	w->t->draining++;
	errors = (uint32_t)w->f.space->stats.write_errors;
	world_unlock(w);
	world_await(w, (w->t->retry_ns = 0, mover_ask(w->f.host), !w->t->dirty_bytes) || w->t->closed ||
			       w->f.space->stats.write_errors - errors >= failures);
	world_lock(w);
	w->t->draining--;
	world_unlock(w);
	world_await(w, !w->t->writes);
}

static void demote_all(void)
{
	uint64_t values = 0;

	world_lock(w);
	while (demote_some(w->t, UINT64_MAX, &values))
		;
	world_unlock(w);
}

static void evict(uint64_t chain)
{
	struct index_sink sink = space_sink(w->f.space);
	uint32_t record;

	world_lock(w);
	record = world_record(w, chain, PAGES - 1);
	if (record != INDEX_NONE)
		index_evict_record(w->f.space->index, record, &sink, NULL);
	world_unlock(w);
	there[chain] = false;
	mover_ask(w->f.host);
}

static void trim(void)
{
	struct index_sink sink = space_sink(w->f.space);

	world_lock(w);
	for (uint32_t i = 0; i < 3; i++)
		index_evict_page(w->f.space->index, NULL, NULL, &sink);
	world_unlock(w);
	mover_ask(w->f.host);
	for (uint32_t chain = 0; chain < CHAINS; chain++) { /* it was the coldest one's */
		world_lock(w);
		there[chain] &= world_record(w, chain, PAGES - 1) != INDEX_NONE;
		world_unlock(w);
	}
}

/* ---- what is done under faults ------------------------------------------------------------------------------------------------------ */

enum promise {
	KEEPS_ALL,    /* what fails once is done again */
	KEEPS_MEMORY, /* what is on disk alone may be lost */
	KEEPS_NOTHING, /* a full disk lets things go */
};

/* @but: has no row yet, and nothing to resume from. */
static void check_readable(bool must, uint32_t but)
{
	for (uint32_t chain = 0; chain < CHAINS; chain++) {
		if (chain == but)
			continue;

		bool is = there[chain] && get(chain);

		if (must && is != there[chain])
			fail_msg("chain %u is not there any more", chain);
	}
}

static void work(enum promise promise)
{
	uint32_t failures = promise == KEEPS_ALL ? 1000 : 3;

	for (uint64_t chain = 0; chain < CHAINS / 2; chain++)
		put(chain, chain != 1);
	write_all(failures);
	check_readable(promise != KEEPS_NOTHING, 1);
	demote_all();
	put_row(1); /* its file is written anew, from the old one */
	write_all(failures);
	check_readable(promise == KEEPS_ALL, CHAINS);
	demote_all();
	evict(0);
	trim();
	for (uint64_t chain = CHAINS / 2; chain < CHAINS; chain++)
		put(chain, true);
	write_all(failures);
	evict(CHAINS - 1);
	for (uint64_t chain = CHAINS / 2; chain < CHAINS - 1 && promise == KEEPS_MEMORY; chain++)
		assert_true(get(chain)); /* were never demoted */
	demote_all();
	check_readable(promise == KEEPS_ALL, CHAINS);
}

/* (lock) */
static uint64_t holds(void)
{
	uint64_t sum = 0;

	for (uint32_t slot = 0; slot < w->t->place_first; slot++)
		sum += w->t->holds[slot];
	return sum;
}

/* Nothing is left of what was under way. */
static void settle(void)
{
	set("");
	/* A write lets its slots go after it has ended as such. Wishes of a closed tier stay. */
	world_await(w, !atomic_load(&w->t->jobs) && (w->t->closed || !world_busy(w)) && !w->f.space->stats.loads);
	session_release(w->s);
	session_unref(&w->s);
	w->s = NULL;
	world_await(w, holds() == 0); /* a write that is tried again when its pause is over has slots for a moment */
	world_lock(w);
	world_check_accounts(w);
	world_unlock(w);
	assert_at_base(&w->f, 0);
	assert_int_equal(fixture_report(&w->f).stats.slots_owed, 0);
	assert_int_equal(fixture_report(&w->f).stats.loads, 0);
}

static void end(void)
{
	char command[96];

	fixture_close(&w->f);
	snprintf(command, sizeof(command), "rm -rf %s", w->path);
	assert_int_equal(system(command), 0);
}

/* True: the rule was never followed, there are no @n operations. */
static bool round_of(const char *what, uint32_t n, bool once, enum promise promise)
{
	char spec[64];
	uint64_t before, done;

	begin();
	snprintf(spec, sizeof(spec), "any:%s:%s%u", what, once ? "=" : "", n);
	print_message("%s\n", spec);
	set(spec);
	before = disk_ops_fault_count(faults, DISK_OPS);
	work(promise);
	done = disk_ops_fault_count(faults, DISK_OPS) - before;
	settle();
	end();
	return done < n;
}

static void every_n(const char *what, bool once, enum promise promise, uint32_t step)
{
	uint64_t until_ns = clock_now_ns() + TEST_NS;
	const char *text = getenv("PREFIXFS_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : clock_now_ns();
	uint32_t n = 1 + (uint32_t)(seed % step);

	print_message("PREFIXFS_TEST_SEED=%llu\n", (unsigned long long)seed);
	while (!round_of(what, n, once, promise)) {
		n += step;
		if (clock_now_ns() > until_ns) {
			print_message("%s: the time is over at the %uth operation\n", what, n);
			break;
		}
	}
	print_message("%s: %u operations\n", what, n);
}

static void test_eio_once(void **state)
{
	(void)state;
	every_n("EIO", true, KEEPS_ALL, 1);
}

static void test_eio_from_then_on(void **state)
{
	(void)state;
	every_n("EIO", false, KEEPS_MEMORY, 3);
}

static void test_short(void **state)
{
	(void)state;
	every_n("short", true, KEEPS_ALL, 3);
}

static void test_full(void **state)
{
	(void)state;
	every_n("ENOSPC", true, KEEPS_NOTHING, 3);
	every_n("EDQUOT", false, KEEPS_NOTHING, 5);
	every_n("ENOSPC", false, KEEPS_NOTHING, 5);
}

/* A disk that fails for good is closed, and everybody is told why. Memory goes on. */
static void test_closed(void **state)
{
	struct host_disk_report report;

	(void)state;
	for (unsigned written = 0; written < 2; written++) {
		begin();
		for (uint64_t chain = 0; chain < 3; chain++)
			put(chain, true);
		if (written) {
			write_all(1);
			demote_all();
		}
		set("any:EIO");
		put(3, true);
		world_lock(w);
		w->t->draining++;
		world_unlock(w);
		world_await(w, (w->t->retry_ns = 0, mover_ask(w->f.host), w->t->failures >= 8));
		world_lock(w);
		w->t->failing_since_ns -= FAILED_LONG_NS;
		world_unlock(w);
		world_await(w, (w->t->retry_ns = 0, mover_ask(w->f.host), w->t->closed && !w->t->places_used));
		world_lock(w);
		w->t->draining--;
		world_unlock(w);
		host_disk_report(w->f.host, &report);
		assert_int_equal(report.state, HOST_DISK_CLOSED);
		assert_non_null(strstr(report.text, "closed"));
		assert_non_null(strstr(report.text, strerror(EIO)));
		for (uint32_t chain = 0; chain < 4; chain++)
			assert_int_equal(get(chain), !written || chain == 3);
		for (uint64_t chain = 4; chain < CHAINS; chain++)
			put(chain, true);
		check_readable(false, CHAINS);
		settle();
		end();
	}
}

/* Reading goes on, but nothing can be written: that closes it as well, or memory would be full of what can neither go nor be written. */
static void test_writes_alone_fail(void **state)
{
	uint64_t end_ns = clock_now_ns() + WORLD_WAIT_NS;
	bool closed = false;

	(void)state;
	begin();
	for (uint64_t chain = 0; chain < 3; chain++)
		put(chain, true);
	write_all(1);
	set("create:EIO");
	put(3, true);
	world_lock(w);
	w->t->draining++;
	world_unlock(w);
	while (!closed) {
		assert_true(clock_now_ns() < end_ns);
		demote_all();
		for (uint64_t chain = 0; chain < 3; chain++)
			get(chain);
		mover_ask(w->f.host);
		world_lock(w);
		w->t->retry_ns = 0;
		if (w->t->failures >= 8)
			w->t->failing_since_ns -= FAILED_LONG_NS;
		closed = w->t->closed;
		world_unlock(w);
	}
	world_lock(w);
	w->t->draining--;
	world_unlock(w);
	world_await(w, !w->t->places_used);
	assert_true(get(3));
	settle();
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_eio_once),
		cmocka_unit_test(test_eio_from_then_on),
		cmocka_unit_test(test_short),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_closed),
		cmocka_unit_test(test_writes_alone_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
