/* SPDX-License-Identifier: Apache-2.0
 *
 * Random work on a namespace over a disk, against a model of what must be there: puts of chains, rows and WHOLE groups, removals,
 * evictions by hand, resets, holds, disks that hold up or are full, limits. Accounts are compared with the tables again and again,
 * files with the accounts when nothing is under way, and at the end every value that a file is said to have is read and compared.
 */
#include "tests/unit/tiering_world.h"

#define CHAINS 24u
#define PAGES 96u
#define HELD 8u

static struct world world;
static struct world *const w = &world;
static uint64_t seed;
static bool there[CHAINS][PAGES]; /* committed, and nothing has let it go */
static uint32_t version[CHAINS][PAGES];
static uint32_t held[HELD];       /* slots, INDEX_NONE = none */
static bool exact;                /* the limit lets nothing go */

static uint32_t pick(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 16) % below);
}

static void fill(uint8_t *to, size_t bytes, uint32_t chain, uint32_t page, uint32_t of)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = (uint64_t)chain << 48 | (uint64_t)page << 32 | of << 12 | i / 8;

		memcpy(to + i, &word, 8);
	}
}

static bool is_whole(uint32_t chain)
{
	return chain % 6 == 5;
}

/* ---- what is done --------------------------------------------------------------------------------------------------------- */

static void write_new(uint32_t chain, uint32_t from, uint32_t n)
{
	uint8_t bytes[4096];

	for (uint32_t i = 0; i < n; i++) {
		if (w->r.answers[i] >= PUT_ANSWER_DUPLICATE)
			continue;
		fill(bytes, sizeof(bytes), chain, from + i, ++version[chain][from + i]);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[i], bytes, sizeof(bytes)), 0);
	}
}

static void do_put(void)
{
	uint32_t chain = pick(CHAINS), from = 0, n, flags = is_whole(chain) ? PUT_WHOLE : 0;
	bool commit = pick(8) != 0;

	while (from < PAGES && there[chain][from])
		from++;
	from = pick(4) ? from : pick(from + 1);
	if (from == PAGES)
		return;
	n = 1 + pick(PAGES - from < 40 ? PAGES - from : 40);
	assert_int_equal(put_chain(w->s, ++w->plan, chain, from, n, 1, flags, &w->r), 0);
	if (w->r.groups_ok && commit) {
		write_new(chain, from, n);
		commit_all(w->s, w->plan, 1);
		for (uint32_t i = 0; i < n; i++)
			there[chain][from + i] = true;
	} else {
		end_run(w->s, w->plan, false, 0, 1, w->r.status, NULL, &w->r.why);
	}
}

static void do_row(void)
{
	uint32_t chain = pick(CHAINS);

	if (!is_whole(chain))
		world_put_row(w, chain, pick(PAGES));
}

static void do_remove(void)
{
	struct index_sink sink = space_sink(w->f.space);
	uint32_t chain = pick(CHAINS), from = pick(PAGES), n = 1 + pick(6), values;

	if (is_whole(chain))
		return;
	world_lock(w);
	for (uint32_t page = from; page < from + n && page < PAGES; page++) {
		struct key key = fixture_key(chain, page);
		enum index_removal r;
		uint64_t hash;

		index_prefetch(w->f.space->index, &key, 1, &hash);
		r = index_remove(w->f.space->index, &key, hash, 1, &sink, &values);
		if (exact)
			assert_int_equal(r, there[chain][page] ? INDEX_REMOVED : INDEX_ABSENT);
		if (r == INDEX_REMOVED)
			there[chain][page] = false;
	}
	world_unlock(w);
}

static void do_hold(void)
{
	uint32_t i = pick(HELD), chain = pick(CHAINS), page = pick(PAGES), slot;
	struct key key = fixture_key(chain, page);
	struct index_hit hit;

	world_lock(w);
	if (held[i] != INDEX_NONE) {
		tiering_unhold(w->t, held[i]);
		held[i] = INDEX_NONE;
	} else {
		index_lookup(w->f.space->index, &key, 1, 1, &hit);
		slot = hit.record == INDEX_NONE ? INDEX_NONE : index_value(w->f.space->index, hit.record, hit.page, 0, NULL);
		if (slot != INDEX_NONE && !tiering_is_place(w->t, slot)) {
			tiering_hold(w->t, slot);
			held[i] = slot;
		}
	}
	world_unlock(w);
}

static void forget(void)
{
	memset(there, 0, sizeof(there));
}

static void do_reset(void)
{
	struct reset reset = { .session = w->s };
	struct why why = WHY_INIT;
	int r = reset_begin(&reset, &why);

	while (r == STEP_MORE)
		r = reset_step(&reset, &why);
	assert_int_equal(r, 0);
	forget();
}

static void do_evict_record(void)
{
	struct index_sink sink = space_sink(w->f.space);
	uint32_t chain = pick(CHAINS), page = pick(PAGES), record;
	const struct record *r;

	world_lock(w);
	record = world_record(w, chain, page);
	r = record == INDEX_NONE ? NULL : index_record(w->f.space->index, record);
	if (r && r->state == RECORD_LIVE && !(r->flags & RECORD_FLAG_WHOLE)) {
		uint32_t pages = r->pages;

		if (!index_evict_record(w->f.space->index, record, &sink, NULL))
			for (uint32_t i = 0; i < pages; i++)
				there[chain][page - i] = false;
	}
	world_unlock(w);
}

static void do_demote(void)
{
	uint64_t values = 0;

	world_lock(w);
	demote_some(w->t, (1 + pick(64)) * 4096ull, &values);
	world_unlock(w);
}

static void do_use(void)
{
	struct key key = fixture_key(pick(CHAINS), pick(PAGES));
	struct index_hit hit;

	world_lock(w);
	index_lookup(w->f.space->index, &key, 1, 1, &hit);
	if (hit.record != INDEX_NONE)
		index_touch(w->f.space->index, hit.record, hit.page, index_tick(w->f.space->index));
	world_unlock(w);
}

static void do_drain(bool on)
{
	world_lock(w);
	if (on != (w->t->draining > 0))
		w->t->draining = on;
	world_unlock(w);
	mover_ask(w->f.host);
}

static void step(void)
{
	switch (pick(24)) {
	case 0: case 1: case 2: case 3: case 4: case 5: case 6: case 7:
		do_put();
		break;
	case 8:
		do_row();
		break;
	case 9: case 10:
		do_remove();
		break;
	case 11: case 12:
		do_hold();
		break;
	case 13: case 14:
		do_evict_record();
		break;
	case 15: case 16:
		do_demote();
		break;
	case 17:
		do_use();
		break;
	case 18:
		do_drain(true);
		break;
	case 19:
		do_drain(false);
		break;
	case 20:
		gate_set(pick(2), 0);
		break;
	case 21:
		gate_set(false, exact || pick(4) ? 0 : -ENOSPC); /* it lets files go */
		break;
	case 22:
		if (!pick(20))
			do_reset();
		break;
	default:
		mover_ask(w->f.host);
	}
}

/* ---- what must be so ------------------------------------------------------------------------------------------------------- */

static void check_there(void)
{
	world_lock(w);
	for (uint32_t chain = 0; chain < CHAINS; chain++)
		for (uint32_t page = 0; page < PAGES; page++) {
			struct key key = fixture_key(chain, page);
			struct index_hit hit;
			bool is;

			index_lookup(w->f.space->index, &key, 1, 1, &hit);
			is = hit.record != INDEX_NONE && hit.complete;
			if (is != there[chain][page] && (exact || is))
				fail_msg("chain %u page %u: %d, and should be %d", chain, page, is, there[chain][page]);
			there[chain][page] = is;
		}
	world_unlock(w);
}

struct waiting_read {
	struct disk_read read; /* first */
	struct world *w;
	_Atomic bool done;
};

static void read_done(struct disk_job *job)
{
	struct waiting_read *r = (struct waiting_read *)job;

	atomic_store(&r->done, true);
}

static uint32_t values_read;

/* Every page value of a record whose file is said to have it. */
static void check_file(uint32_t record)
{
	struct record_file f;
	struct waiting_read r = { .w = w };
	struct disk_read_value values[PAGES];
	struct key keys[PAGES];
	uint32_t n = 0;
	uint8_t *memory = aligned_alloc(4096, PAGES * 4096), want[4096];

	world_lock(w);
	f = w->t->files[record];
	for (uint32_t page = 0; f.id && page < f.pages; page++) {
		uint32_t entry = index_value(w->f.space->index, record, (uint16_t)page, 0, NULL);

		if (entry == INDEX_NONE || (!tiering_is_place(w->t, entry) && !tiering_is_clean(w->t, entry)))
			continue;
		keys[n] = w->f.space->tables.entries[entry].key;
		values[n] = (struct disk_read_value){ .page = page, .to = (uintptr_t)memory + n * 4096ull };
		n++;
	}
	r.read.job = (struct disk_job){
		.kind = DISK_JOB_READ, .dir = w->t->dir, .endpoint = f.endpoint, .done = read_done, .consumed =
			w->f.space->tables.records[record].start + (uint64_t)f.pages * FIXTURE_PAGE,
	};
	world_unlock(w);
	r.read.memory = true;
	r.read.pages = f.pages;
	r.read.file_pages = f.file_pages;
	r.read.keys = keys;
	r.read.values = values;
	r.read.count = n;
	if (n) {
		disk_give(w->f.host->disk, &r.read.job);
		world_await(w, atomic_load(&r.done));
		assert_int_equal(r.read.job.result, 0);
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t chain = (uint32_t)keys[i].words[1], page = (uint32_t)keys[i].words[2];

		assert_int_equal(values[i].result, 0);
		fill(want, sizeof(want), chain, page, version[chain][page]);
		assert_memory_equal(memory + i * 4096, want, sizeof(want));
		values_read++;
	}
	free(memory);
}

static void run(const struct world_options *o, uint64_t with, uint32_t steps, bool no_limit)
{
	seed = with;
	print_message("seed %llu\n", (unsigned long long)seed);
	exact = no_limit;
	forget();
	memset(version, 0, sizeof(version));
	world_open(w, o);
	for (uint32_t i = 0; i < HELD; i++)
		held[i] = INDEX_NONE;
	for (uint32_t i = 0; i < steps; i++) {
		step();
		if (i % 128 == 0)
			world_check(w);
		if (i % 512 == 0 && exact)
			check_there();
	}
	gate_set(false, 0);
	for (uint32_t i = 0; i < HELD; i++) {
		world_lock(w);
		if (held[i] != INDEX_NONE)
			tiering_unhold(w->t, held[i]);
		world_unlock(w);
	}
	do_drain(false);
	world_lock(w);
	w->t->retry_ns = 0; /* it may be half a minute by now */
	world_unlock(w);
	world_drain(w);
	world_await(w, !world_busy(w));
	space_retire(w->f.space);
	world_check_idle(w);
	world_lock(w);
	assert_int_equal(w->f.space->stats.slots_owed, 0);
	assert_int_equal(w->t->held_clean_bytes, 0);
	assert_int_equal(w->t->dirty_bytes, 0);
	for (uint32_t e = 0; e < w->t->place_first; e++)
		assert_int_equal(w->t->holds[e], 0);
	world_unlock(w);
	check_there();
	uint32_t left = 0;

	for (uint32_t i = 0; i < CHAINS * PAGES; i++)
		left += there[i / PAGES][i % PAGES];
	values_read = 0;
	for (uint32_t record = 0; record < index_record_limit(w->f.space->index); record++)
		check_file(record);
	print_message("%u values read, %llu demoted, %llu written, %llu files\n", values_read,
		      (unsigned long long)fixture_report(&w->f).stats.values_demoted,
		      (unsigned long long)fixture_report(&w->f).stats.values_spilled,
		      (unsigned long long)fixture_report(&w->f).stats.files_written);
	assert_true(values_read >= left);
	world_close(w);
}

static uint64_t seed_from_outside(void)
{
	const char *text = getenv("PREFIXFS_TEST_SEED");

	return text ? strtoull(text, NULL, 0) : clock_now_ns() | 1;
}

static void test_all_stays(void **state)
{
	static const struct world_options o = {
		.classes = CLASS_KV "," CLASS_STATE, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 1024 * MIB,
	};

	(void)state;
	run(&o, seed_from_outside(), 3000, true);
}

static void test_under_a_limit(void **state)
{
	static const struct world_options o = {
		.classes = CLASS_KV "," CLASS_STATE, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 4 * MIB,
	};

	(void)state;
	run(&o, seed_from_outside(), 3000, false);
}

static void test_disk_only(void **state)
{
	static const struct world_options o = {
		.classes = CLASS_KV "," CLASS_STATE, .memory = 16 * MIB, .floor = 16 * MIB, .disk = 1024 * MIB, .only = true,
	};

	(void)state;
	run(&o, seed_from_outside(), 2000, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_stays),
		cmocka_unit_test(test_under_a_limit),
		cmocka_unit_test(test_disk_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
