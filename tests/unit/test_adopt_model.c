/* SPDX-License-Identifier: Apache-2.0
 *
 * Adoption after SIGKILL: a child adopts a namespace, works on it and is killed anywhere, also while it adopts; the next child adopts what
 * it left. What must then be there is kept in a journal in shared memory, as in test_index_kill.
 *
 * Pages are nodes of a tree; each has one value. A value is written before its commit, so that whatever is found must have its bytes. Slots
 * whose address was told and not given back are noted before they are used: nobody is given one of them before its session is settled.
 *
 *	test_adopt_model [seed [kills]]
 */
#include "tests/unit/adopt_world.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "store/manage.h"

#define MIB (1ull << 20)
#define MEMORY (16 * MIB)
#define CHAINS 24u
#define PAGES 64u
#define SLOTS (MEMORY / WORLD_SLOT)
#define SESSIONS 3u
#define KV 1u

enum fate { NOTHING, PREPARED, COMMITTING, COMMITTED, LEAVING };

struct journal {
	_Atomic uint32_t fate[CHAINS][PAGES];
	_Atomic uint64_t session, serial;      /* last numbers, as in the will */
	_Atomic uint64_t told[SLOTS];          /* session that has the slot's address and has not said that it is done; 0 = none */
	_Atomic uint64_t commits, adoptions, steps;
	_Atomic uint64_t left[64];             /* sessions of before that are not settled */
	_Atomic bool failed;
};

struct work {
	struct journal *journal;
	int segment, tables; /* the parent's */
	uint64_t seed;
	struct fixture f;
	struct session *session[SESSIONS];
	struct open { /* a plan of it, if any */
		uint64_t plan;
		uint32_t chain, from, pages;
		bool put;
		uint64_t offsets[PAGES];
	} open[SESSIONS];
	uint64_t plans;
};

static uint32_t roll(struct work *w, uint32_t below)
{
	w->seed = w->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(w->seed >> 33) % below;
}

#define MUST(condition)                                                                              \
	do {                                                                                         \
		if (!(condition)) {                                                                  \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);              \
			atomic_store(&w->journal->failed, true);                                     \
			_exit(1);                                                                    \
		}                                                                                    \
	} while (0)

/* ---- the world of one life --------------------------------------------------------------------------------------------- */

static struct host *host_of(struct work *w)
{
	struct host_config config = {
		.memory_bytes = MEMORY,
		.wish = SEGMENT_WISH_SMALL,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 10000,
		.last_session = &w->journal->session,
		.last_serial = &w->journal->serial,
	};
	struct host *host = NULL;
	struct why why = WHY_INIT;

	if (host_new(&config, &host, &why))
		fprintf(stderr, "%s\n", why.text);
	return host;
}

static void adopt(struct work *w)
{
	static const struct space_access access = { 0, 0, 0700 };
	struct adoption a = {
		.name = "test", .serial = 1, .layout = fixture_layout(CLASS_KV, 1, MEMORY), .access = &access,
		.segment_fd = dup(w->segment), .tables_fd = dup(w->tables),
	};
	struct adopt_report report;
	struct why why = WHY_INIT;

	w->f.host = host_of(w);
	MUST(w->f.host);
	int r = host_space_adopt(w->f.host, &a, &w->f.space, &report, &why);

	if (r)
		fprintf(stderr, "adoption: %s\n", why.text);
	MUST(!r);
	MUST(!report.torn_grants && !report.torn_seats); /* what is torn was being made: no seat, no grant is here */
	host_adopted(w->f.host);
	w->journal->adoptions++;
}

static bool committed(struct work *w, struct session *s, uint32_t chain, uint32_t page, uint64_t *offset)
{
	struct key key = fixture_key(chain, page);
	struct space *space = w->f.space;
	struct index_hit hit;
	bool is = false;
	uint32_t entry;

	(void)s;
	lock_take(&space->lock);
	index_lookup(space->index, &key, 1, ~0u, &hit);
	entry = hit.record == INDEX_NONE ? INDEX_NONE : index_value(space->index, hit.record, hit.page, 0, &is);
	is = entry != INDEX_NONE && is;
	if (is)
		*offset = slots_offset(space->slots, entry);
	lock_drop(&space->lock);
	return is;
}

static void check_bytes(struct work *w, uint64_t offset, uint32_t chain, uint32_t page)
{
	uint8_t bytes[WORLD_SLOT], wanted[WORLD_SLOT];

	value_bytes(chain, page, wanted);
	MUST(segment_read(w->f.space->segment, offset, bytes, sizeof(bytes)) == 0);
	MUST(!memcmp(bytes, wanted, sizeof(bytes)));
}

/* All that is promised of a life that was taken over. */
static void judge(struct work *w)
{
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t p = 0; p < PAGES; p++) {
			uint32_t fate = w->journal->fate[c][p];
			uint64_t offset;
			bool there = committed(w, NULL, c, p, &offset);

			MUST(!there || fate == COMMITTED || fate == COMMITTING || fate == LEAVING);
			MUST(there || fate != COMMITTED);
			if (there)
				check_bytes(w, offset, c, p);
			w->journal->fate[c][p] = there ? COMMITTED : NOTHING;
		}
	lock_take(&w->f.space->lock);
	index_check(w->f.space->index);
	slots_check(w->f.space->slots);
	lock_drop(&w->f.space->lock);
}

/* Before a slot is used: it is nobody's but those of the same session's, and of values that are read. */
static void note_told(struct work *w, uint64_t session, uint64_t offset, bool written)
{
	_Atomic uint64_t *told = &w->journal->told[offset / WORLD_SLOT];

	if (written)
		MUST(*told == 0);
	*told = written ? session : *told; /* readers share; the words are what is tested through them */
}

static void settle_some(struct work *w, bool all)
{
	for (uint32_t i = 0; i < 64; i++) {
		uint64_t number = w->journal->left[i];

		for (uint32_t k = 0; k < SESSIONS; k++)
			number = w->session[k] && number == session_number(w->session[k]) ? 0 : number;
		if (!number || (!all && roll(w, 2)))
			continue;
		for (uint32_t n = 0; n < SLOTS; n++) /* it touches them no more */
			if (w->journal->told[n] == number)
				w->journal->told[n] = 0;
		host_process_gone(w->f.host, number);
		w->journal->left[i] = 0;
	}
}

static void open_sessions(struct work *w)
{
	for (uint32_t i = 0; i < SESSIONS; i++) {
		for (uint32_t k = 0; k < 64; k++)
			if (!w->journal->left[k]) { /* it is one of before for the next life */
				w->journal->left[k] = (w->journal->session + 1) * HOST_MAX_SESSIONS + i;
				break;
			}
		w->session[i] = world_session(&w->f, (uint8_t)(i + 1), 10 + i, 20 + i);
		bool noted = false;

		for (uint32_t k = 0; k < 64; k++)
			noted |= w->journal->left[k] == session_number(w->session[i]);
		MUST(noted);
	}
}

/* ---- what it does ------------------------------------------------------------------------------------------------------ */

static void leaving(struct work *w)
{
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t p = 0; p < PAGES; p++)
			if (w->journal->fate[c][p] == COMMITTED)
				w->journal->fate[c][p] = LEAVING;
}

/* What is still there is to be kept again. */
static void stayed(struct work *w)
{
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t p = 0; p < PAGES; p++) {
			uint64_t offset;

			if (w->journal->fate[c][p] == LEAVING)
				w->journal->fate[c][p] = committed(w, NULL, c, p, &offset) ? COMMITTED : NOTHING;
		}
}

static struct put_result result;

static void begin_put(struct work *w, uint32_t i)
{
	struct open *o = &w->open[i];
	struct session *s = w->session[i];
	uint64_t offset;

	o->chain = roll(w, CHAINS);
	for (o->from = 0; o->from < PAGES && committed(w, s, o->chain, o->from, &offset); o->from++)
		;
	o->pages = 1 + roll(w, 16);
	if (o->from + o->pages > PAGES)
		return;
	o->plan = ++w->plans;
	o->put = true;
	leaving(w); /* room may be made */
	if (put_chain(s, o->plan, o->chain, o->from, o->pages, KV, roll(w, 4) ? 0 : PUT_WHOLE, &result))
		fprintf(stderr, "put: %s\n", result.why.text);
	MUST(!result.error);
	for (uint32_t k = 0; k < o->pages; k++) {
		o->offsets[k] = result.answers[k];
		if (o->offsets[k] < PUT_ANSWER_DUPLICATE) {
			note_told(w, session_number(s), o->offsets[k], true);
			write_value(&w->f, o->offsets[k], o->chain, o->from + k);
			w->journal->fate[o->chain][o->from + k] = PREPARED;
		}
	}
	stayed(w);
	if (result.status[0] != PUT_OK)
		o->plan = 0;
}

static void end_put(struct work *w, uint32_t i)
{
	struct open *o = &w->open[i];
	bool commit = roll(w, 5);
	uint32_t status, outcome;
	struct why why = WHY_INIT;

	for (uint32_t k = 0; k < o->pages; k++) {
		if (o->offsets[k] >= PUT_ANSWER_DUPLICATE)
			continue;
		w->journal->told[o->offsets[k] / WORLD_SLOT] = 0; /* who asks for the end writes no more */
		if (commit)
			w->journal->fate[o->chain][o->from + k] = COMMITTING;
	}
	int r = end_run(w->session[i], o->plan, commit, 0, 1, &status, &outcome, &why);

	MUST(r == 0 || r == -ESTALE);
	if (status == PUT_PENDING) {
		MUST(end_run(w->session[i], o->plan, false, 0, 1, &status, &outcome, &why) == 0);
	}
	for (uint32_t k = 0; k < o->pages; k++) {
		if (o->offsets[k] >= PUT_ANSWER_DUPLICATE)
			continue;
		uint64_t offset;
		bool there = committed(w, w->session[i], o->chain, o->from + k, &offset);

		w->journal->fate[o->chain][o->from + k] = there ? COMMITTED : NOTHING;
	}
	w->journal->commits += status == PUT_COMMITTED;
	o->plan = 0;
}

static void begin_get(struct work *w, uint32_t i)
{
	struct open *o = &w->open[i];
	struct get_start get = { 0 };
	struct get_transfer transfer = { 0 };
	struct why why = WHY_INIT;
	uint64_t handle = ++w->plans, plan = ++w->plans;

	o->chain = roll(w, CHAINS);
	MUST(get_chain(w->session[i], handle, o->chain, PAGES, 0, &get, &why) == 0);
	if (!get.handle_live)
		return;
	o->pages = (uint32_t)(get.transferable_len / FIXTURE_PAGE);
	MUST(transfer_run(w->session[i], handle, plan, get.transferable_len, 0, get.transferable_len, o->offsets, PAGES, &transfer,
			  &why) == 0);
	for (uint32_t k = 0; k < o->pages; k++)
		check_bytes(w, o->offsets[k], o->chain, k);
	o->from = 0;
	o->plan = plan;
	o->put = false;
}

static void end_get(struct work *w, uint32_t i)
{
	struct open *o = &w->open[i];
	struct why why = WHY_INIT;

	for (uint32_t k = 0; k < o->pages; k++)
		check_bytes(w, o->offsets[k], o->chain, k); /* whatever became of the values meanwhile */
	MUST(get_release(w->session[i], o->plan, &why) == 0);
	o->plan = 0;
}

static void evict(struct work *w, uint32_t i)
{
	struct eviction call = { .session = w->session[i], .goal_bytes = roll(w, 8) ? MIB : EVICTION_ALL };
	struct why why = WHY_INIT;

	leaving(w);
	MUST(eviction_begin(&call, &why) == STEP_MORE);
	while (eviction_step(&call, &why) == STEP_MORE)
		;
	stayed(w);
}

static void reset(struct work *w, uint32_t i)
{
	struct reset call = { .session = w->session[i] };
	struct why why = WHY_INIT;

	leaving(w);
	MUST(reset_begin(&call, &why) == STEP_MORE);
	while (roll(w, 4) && reset_step(&call, &why) == STEP_MORE)
		;
	stayed(w);
}

static void live(struct work *w)
{
	adopt(w);
	judge(w);
	settle_some(w, false);
	open_sessions(w);
	for (;; w->journal->steps++) {
		uint32_t i = roll(w, SESSIONS);
		struct open *o = &w->open[i];

		if (o->plan && roll(w, 3))
			o->put ? end_put(w, i) : end_get(w, i);
		else if (!o->plan && roll(w, 3))
			roll(w, 3) ? begin_put(w, i) : begin_get(w, i);
		else if (!roll(w, 40))
			evict(w, i);
		else if (!roll(w, 80))
			reset(w, i);
		else if (!roll(w, 100))
			settle_some(w, false);
		if (w->journal->steps % 512 == 0) {
			lock_take(&w->f.space->lock);
			index_check(w->f.space->index);
			slots_check(w->f.space->slots);
			lock_drop(&w->f.space->lock);
		}
	}
}

/* ---- the parent ------------------------------------------------------------------------------------------------------------ */

static uint64_t given_seed;
static uint32_t given_kills = 60;

static void setup(struct work *w, uint64_t seed)
{
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;
	struct space *space;

	*w = (struct work){ .seed = seed };
	w->journal = mmap(NULL, sizeof(*w->journal), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(w->journal, MAP_FAILED);
	struct host *host = host_of(w);

	if (host_space_create(host, "test", fixture_layout(CLASS_KV, 1, MEMORY), &access, &space, &why))
		fail_msg("%s", why.text);
	w->f = (struct fixture){ host, space };
	fixture_await_prewarm(&w->f);
	w->segment = dup(segment_fd(space->segment));
	w->tables = copy_file(space->tables_fd);
	fixture_close(&w->f);
}

/* Some steps of work and a moment, or a moment that mostly ends in its adoption. */
static void let_live(struct work *w)
{
	uint64_t steps = w->journal->steps + roll(w, 400), deadline_ns = clock_now_ns() + 2000000000ull;
	struct timespec nap = { .tv_nsec = 100000 + roll(w, 10000000) };

	bool works = roll(w, 4);

	while (works && w->journal->steps < steps && clock_now_ns() < deadline_ns)
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	nanosleep(&nap, NULL);
}

static void killed_anywhere_and_adopted_again(void **state)
{
	static struct work w;

	(void)state;
	fprintf(stderr, "seed %llu\n", (unsigned long long)given_seed);
	setup(&w, given_seed);
	for (uint32_t kills = 0; kills < given_kills; kills++) {
		pid_t pid;
		int status;

		w.seed = given_seed * 7919 + kills;
		w.plans = (uint64_t)(kills + 1) << 32;
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			live(&w);
		let_live(&w);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (w.journal->failed || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			fail_msg("life %u of seed %llu: status %x", kills, (unsigned long long)given_seed, (unsigned)status);
	}
	/* the last one: everything of before is settled, and everything is at its base */
	struct work *last = &w;

	adopt(last);
	judge(last);
	settle_some(last, true);
	fixture_await_prewarm(&last->f);
	assert_false(remnants_any(last->f.space));
	assert_null(last->f.space->outcomes);
	assert_at_base(&last->f, 0);
	assert_int_equal(fixture_report(&last->f).stats.slots_owed, 0);
	assert_int_equal(fixture_report(&last->f).stats.groups_open, 0);
	for (uint32_t n = 0; n < last->f.space->tables.slot_capacity; n++)
		assert_int_equal(last->f.space->tables.users[n], 0);
	fprintf(stderr, "%u kills, %llu adoptions, %llu commits, %llu steps\n", given_kills,
		(unsigned long long)w.journal->adoptions, (unsigned long long)w.journal->commits,
		(unsigned long long)w.journal->steps);
	fixture_close(&last->f);
	close(w.segment);
	close(w.tables);
	munmap(w.journal, sizeof(*w.journal));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_anywhere_and_adopted_again),
	};

	given_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : clock_now_ns() % 1000000007u;
	if (argc > 2)
		given_kills = (uint32_t)strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
