/* SPDX-License-Identifier: Apache-2.0
 *
 * Random work in several namespaces of one budget, with sizes that shift, sessions that come and go and plans that stay
 * open, while the grower moves grants. Judged by what a client can see: every address is in a range of the right kind
 * that the session has acknowledged in its present generation, no address is handed out while somebody may write or read
 * there, and what is read under a plan is what was written under the key, also at the plan's end. Meanwhile namespaces are
 * reset, keys removed and records pinned, and what is told of records adds up to those that are there.
 */
#include "store/manage.h"
#include "tests/unit/recut_world.h"

#define SPACES 3u
#define SESSIONS 2u
#define BUDGET (28 * MIB)
#define CHAINS 60u
#define PAGES_MAX 96u
#define HELD 6u

struct held_put {
	bool is, row;
	uint64_t plan, chain, generation;
	uint32_t from, n;            /* pages in one group, or rows in a group each */
	uint64_t offsets[PAGES_MAX]; /* UINT64_MAX: not new */
};

struct held_get {
	bool is;
	uint64_t plan, chain;
	uint32_t n;
	uint64_t offsets[PAGES_MAX];
};

struct client {
	struct session *s;
	struct held_put put[HELD];
	struct held_get get[HELD];
	uint32_t generation[256]; /* 1 + acknowledged one, by range */
};

struct place {
	struct fixture f;
	bool hybrid;
	uint8_t *writers, *readers; /* [4 KiB of the segment] */
	struct client client[SESSIONS];
	struct session *ghost; /* ended, its process is not */
};

static struct place place[SPACES];
static struct host *host;
static uint32_t rows_of_ten; /* puts */
static uint64_t seed, started, noroom, hits, attached_again, resets, removed, pinned, stale;
static uint64_t told[SPACES + 1]; /* (space lock) pages of records, by serial, as the news add up */

static uint32_t pick(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 16) % below);
}

/* ---- news ------------------------------------------------------------------------------------------------------- */

static void note(void *context, struct space *space, const struct host_event *events, uint32_t count)
{
	uint64_t *pages = &told[space_serial(space)];

	(void)context;
	for (const struct host_event *e = events; e < events + count; e++) {
		if (e->kind == HOST_EVENT_STORED) {
			*pages += e->pages;
		} else if (e->kind == HOST_EVENT_EVICTED || e->kind == HOST_EVENT_TRIMMED) {
			assert_true(e->pages <= *pages);
			*pages -= e->pages;
		} else if (e->kind == HOST_EVENT_RESET) {
			*pages = 0;
		}
	}
}

static void check_told(const struct place *p)
{
	struct space *space = p->f.space;
	uint64_t pages = 0;

	lock_take(&space->lock);
	for (uint32_t n = 0; n < index_record_limit(space->index); n++)
		if (index_record(space->index, n)->state == RECORD_LIVE && index_record_current(space->index, n))
			pages += index_record(space->index, n)->pages;
	assert_int_equal(pages, told[space_serial(space)]);
	lock_drop(&space->lock);
}

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static void mark(uint8_t *map, uint64_t offset, uint64_t slot, int by)
{
	for (uint64_t at = offset / 4096; at < (offset + slot) / 4096; at++)
		map[at] = (uint8_t)(map[at] + by);
}

static uint64_t slot_of(const struct place *p, uint32_t c)
{
	return p->f.space->layout->class[c].share[0].slot_bytes;
}

/* A fresh address: nobody writes or reads there, and the session knows the range as it is. */
static void judge_new(struct place *p, struct client *c, uint32_t class_index, uint64_t offset)
{
	uint64_t slot = slot_of(p, class_index);
	struct space_range ranges[256];
	uint64_t version;
	uint32_t total;
	uint32_t n = space_ranges(p->f.space, 0, ranges, 256, &total, &version);
	bool found = false;

	for (uint32_t i = 0; i < n && !found; i++) {
		const struct space_range *r = &ranges[i];

		if (offset < r->offset || offset >= r->offset + r->length)
			continue;
		found = true;
		assert_int_equal(r->class_index, class_index);
		assert_int_equal(r->slot_bytes, slot);
		assert_int_equal((offset - r->offset) % slot, 0);
		assert_true(offset + slot <= r->offset + r->length);
		assert_int_equal(c->generation[r->id], r->generation + 1);
	}
	assert_true(found);
	for (uint64_t at = offset / 4096; at < (offset + slot) / 4096; at++) {
		assert_int_equal(p->writers[at], 0);
		assert_int_equal(p->readers[at], 0);
	}
	mark(p->writers, offset, slot, 1);
}

static void acknowledge_known(struct place *p, struct client *c)
{
	struct space_range ranges[256];
	struct session_ack acks[256];
	uint32_t total, accepted;
	struct why why = WHY_INIT;
	uint64_t version;
	uint32_t n = space_ranges(p->f.space, 0, ranges, 256, &total, &version);

	for (uint32_t i = 0; i < n; i++)
		acks[i] = (struct session_ack){ ranges[i].id, ranges[i].generation };
	session_ack_ranges(c->s, acks, n, &accepted, &why);
	for (uint32_t i = 0; i < n; i++)
		c->generation[ranges[i].id] = ranges[i].generation + 1; /* of a stale one nothing may be given out */
}

/* ---- started ------------------------------------------------------------------------------------------------------- */

static void end_put(struct place *p, struct client *c, struct held_put *h, bool commit)
{
	struct why why = WHY_INIT;
	uint32_t status[PAGES_MAX];

	for (uint32_t i = 0; i < h->n; i++)
		if (h->offsets[i] != UINT64_MAX)
			mark(p->writers, h->offsets[i], slot_of(p, h->row), -1);
	if (end_run(c->s, h->plan, commit, 0, h->row ? h->n : 1, status, NULL, &why)) {
		assert_int_equal(why.error, ESTALE);
		assert_true(h->generation < space_generation(p->f.space));
		stale++;
	}
	h->is = false;
}

static void begin_put(struct place *p, struct client *c, struct held_put *h)
{
	uint64_t payload;

	*h = (struct held_put){ .plan = next_plan++, .chain = pick(CHAINS), .row = p->hybrid && pick(10) < rows_of_ten,
				.generation = space_generation(p->f.space) };
	payload = p->f.space->layout->class[h->row].share[0].payload_bytes;
	started++;
	if (h->row) {
		struct put_group groups[PAGES_MAX];
		struct key keys[PAGES_MAX];

		h->from = 1 + pick(PAGES_MAX / 2);
		h->n = 1 + pick(32);
		for (uint32_t i = 0; i < h->n; i++) {
			keys[i] = fixture_key(h->chain, h->from + i);
			groups[i] = (struct put_group){
				.parent = fixture_key(h->chain, h->from + i - 1),
				.consumed = (uint64_t)(h->from + i + 1) * FIXTURE_PAGE - 1, /* within a page: it needs none */
				.keys = 1,
				.class_mask = ROW,
				.flags = PUT_ROW_ONLY,
			};
		}
		assert_int_equal(put_run(c->s, h->plan, groups, h->n, keys, h->n, ROW, &put_result), 0);
	} else {
		h->from = pick(3) ? 0 : pick(PAGES_MAX / 2);
		h->n = 1 + pick(PAGES_MAX - h->from);
		assert_int_equal(put_chain(c->s, h->plan, h->chain, h->from, h->n, KV, pick(6) ? 0 : PUT_WHOLE, &put_result), 0);
	}
	for (uint32_t i = 0; i < (h->row ? h->n : 1); i++)
		if (put_result.status[i] != PUT_OK) {
			noroom++;
			acknowledge_known(p, c);
			break;
		}
	if (!put_result.groups_ok)
		return;
	h->is = true;
	for (uint32_t i = 0; i < h->n; i++) {
		struct key key = fixture_key(h->chain, h->from + i);

		h->offsets[i] = put_result.answers[i] < PUT_ANSWER_DUPLICATE ? put_result.answers[i] : UINT64_MAX;
		if (h->offsets[i] == UINT64_MAX)
			continue;
		judge_new(p, c, h->row, h->offsets[i]);
		fill(p->f.space, h->offsets[i], payload, &key, h->row);
	}
	if (pick(3))
		end_put(p, c, h, pick(8) > 0);
}

/* ---- gets -------------------------------------------------------------------------------------------------------- */

static void compare(const struct place *p, const struct held_get *h)
{
	uint64_t payload = p->f.space->layout->class[0].share[0].payload_bytes;

	for (uint32_t i = 0; i < h->n; i++) {
		struct key key = fixture_key(h->chain, i);

		expect(p->f.space, h->offsets[i], payload, &key, 0);
	}
}

static void end_get(struct place *p, struct client *c, struct held_get *h)
{
	struct why why = WHY_INIT;

	compare(p, h);
	for (uint32_t i = 0; i < h->n; i++)
		mark(p->readers, h->offsets[i], slot_of(p, 0), -1);
	assert_int_equal(get_release(c->s, h->plan, &why), 0);
	h->is = false;
}

static void begin_get(struct place *p, struct client *c, struct held_get *h)
{
	struct get_transfer transfer = { .class_mask = KV };
	struct get_start get = { .class_mask = KV };
	uint64_t handle = next_plan++;
	struct why why = WHY_INIT;

	*h = (struct held_get){ .plan = next_plan++, .chain = pick(CHAINS) };
	assert_int_equal(get_chain(c->s, handle, h->chain, PAGES_MAX, 0, &get, &why), 0);
	if (!get.handle_live)
		return;
	h->n = (uint32_t)(get.transferable_len / FIXTURE_PAGE);
	acknowledge_known(p, c);
	if (transfer_run(c->s, handle, h->plan, get.transferable_len, 0, get.transferable_len, h->offsets, h->n, &transfer, &why))
		fail_msg("transfer: %s", why.text);
	h->is = true;
	hits += h->n;
	for (uint32_t i = 0; i < h->n; i++)
		mark(p->readers, h->offsets[i], slot_of(p, 0), 1);
	compare(p, h);
	if (pick(2))
		end_get(p, c, h);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static void attach(struct place *p, struct client *c)
{
	memset(c, 0, sizeof(*c));
	c->s = fixture_session(&p->f, 0);
	acknowledge_known(p, c);
	attached_again++;
}

/* Whoever wrote there has gone. */
static void unmark_puts(struct place *p, struct client *c)
{
	for (uint32_t i = 0; i < HELD; i++)
		for (uint32_t k = 0; c->put[i].is && k < c->put[i].n; k++)
			if (c->put[i].offsets[k] != UINT64_MAX)
				mark(p->writers, c->put[i].offsets[k], slot_of(p, c->put[i].row), -1);
}

static void process_goes(struct place *p, struct client *c)
{
	unmark_puts(p, c);
	host_process_gone(host, session_number(c->s));
	session_unref(&c->s);
	memset(c, 0, sizeof(*c));
}

/* As a ghost its process stays for a while, and still writes to the values of its open puts. */
static void detach(struct place *p, struct client *c, bool ghost)
{
	for (uint32_t i = 0; i < HELD; i++)
		if (c->get[i].is)
			end_get(p, c, &c->get[i]);
	session_release(c->s);
	if (ghost && !p->ghost)
		p->ghost = c->s;
	else
		process_goes(p, c);
}

static void haunt(struct place *p, struct client *c)
{
	for (uint32_t i = 0; i < HELD; i++)
		for (uint32_t k = 0; c->put[i].is && k < c->put[i].n; k++)
			if (c->put[i].offsets[k] != UINT64_MAX) {
				struct key key = fixture_key(~c->put[i].chain, k); /* of nobody */

				fill(p->f.space, c->put[i].offsets[k],
				     p->f.space->layout->class[c->put[i].row].share[0].payload_bytes, &key, c->put[i].row);
			}
}

static void exorcise(struct place *p, struct client *c)
{
	p->ghost = NULL;
	process_goes(p, c);
}

/* ---- by hand ------------------------------------------------------------------------------------------------------ */

static void reset_space(struct client *c)
{
	struct reset call = { .session = c->s };
	struct why why = WHY_INIT;
	int r = reset_begin(&call, &why);

	while (r == STEP_MORE && pick(4)) /* the rest goes when room is made, or when a grant is looked for */
		r = reset_step(&call, &why);
	resets++;
}

static void remove_some(struct client *c)
{
	uint64_t chain = pick(CHAINS);
	uint32_t from = pick(PAGES_MAX), n = 1 + pick(8);
	struct key keys[8];
	struct removal call = { .session = c->s, .keys = keys, .key_count = n };
	struct why why = WHY_INIT;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = fixture_key(chain, from + i);
	for (int r = removal_begin(&call, &why); r == STEP_MORE;)
		r = removal_step(&call, &why);
	removed += call.removed;
}

static void pin_some(struct client *c)
{
	struct key keys[4];
	struct pinning call = { .session = c->s, .keys = keys, .key_count = 4, .flags = pick(3) ? PINNING_RELEASE : 0 };
	struct why why = WHY_INIT;

	for (uint32_t i = 0; i < 4; i++)
		keys[i] = fixture_key(pick(CHAINS), pick(PAGES_MAX));
	for (int r = pinning_begin(&call, &why); r == STEP_MORE;)
		r = pinning_step(&call, &why);
	pinned += call.flags ? 0 : call.changed;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void check_budget(void)
{
	struct budget_report b;
	uint64_t granted = 0, reserved = 0;

	settle(host);
	budget_report(&host->budget, &b);
	for (uint32_t i = 0; i < SPACES; i++) {
		struct space_report r = fixture_report(&place[i].f);
		struct budget_report now;

		granted += r.granted_bytes;
		reserved += r.granted_bytes > r.floor_bytes ? r.granted_bytes : r.floor_bytes;
		lock_take(&place[i].f.space->lock);
		assert_int_equal(slots_granted_bytes(place[i].f.space->slots), r.granted_bytes);
		lock_drop(&place[i].f.space->lock);
		check_all(&place[i].f);
		check_told(&place[i]);
		budget_report(&host->budget, &now);
		assert_int_equal(now.granted, b.granted); /* nothing moves meanwhile */
	}
	assert_int_equal(b.granted, granted);
	assert_true(granted <= BUDGET);
	assert_int_equal(b.owed, 0); /* all floors were promised before anybody grew: nobody reaches into them */
	assert_int_equal(b.free, reserved > BUDGET ? 0 : BUDGET - reserved);
	assert_int_equal(b.owed, reserved > BUDGET ? reserved - BUDGET : 0);
}

static void step(void)
{
	struct place *p = &place[pick(SPACES)];
	struct client *c = &p->client[pick(SESSIONS)];

	if (!c->s) {
		if (pick(10) == 0)
			attach(p, c);
		return;
	}
	if (p->ghost == c->s) {
		if (pick(20))
			haunt(p, c);
		else
			exorcise(p, c);
		return;
	}
	uint32_t what = pick(100), i = pick(HELD);

	if (what < 50) {
		if (c->put[i].is)
			end_put(p, c, &c->put[i], pick(8) > 0);
		else
			begin_put(p, c, &c->put[i]);
	} else if (what < 96) {
		if (c->get[i].is)
			end_get(p, c, &c->get[i]);
		else
			begin_get(p, c, &c->get[i]);
	} else if (what < 98) {
		acknowledge_known(p, c);
	} else if (pick(2)) {
		detach(p, c, pick(2));
	} else if (pick(12) == 0) {
		reset_space(c);
	} else if (pick(2)) {
		remove_some(c);
	} else {
		pin_some(c);
	}
}

static void random_run(uint64_t with)
{
	static const uint64_t floors[SPACES] = { 10 * MIB, 6 * MIB, 4 * MIB };
	static const struct host_events events = { .note = note };
	struct why why = WHY_INIT;
	uint64_t recut = 0, returned = 0;

	seed = with;
	started = noroom = hits = attached_again = resets = removed = pinned = stale = 0;
	memset(place, 0, sizeof(place));
	memset(told, 0, sizeof(told));
	fixture_open(&place[0].f, CLASS_KV "," CLASS_STATE, 1, BUDGET, floors[0], &events);
	host = place[0].f.host;
	place[1].f = another_space(&place[0].f, "one", CLASS_IX "," CLASS_STATE, floors[1], &why);
	place[2].f = another_space(&place[0].f, "two", CLASS_KV, floors[2], &why);
	for (uint32_t i = 0; i < SPACES; i++) {
		assert_non_null(place[i].f.space);
		place[i].hybrid = i < 2;
		place[i].writers = calloc(BUDGET / 4096, 1);
		place[i].readers = calloc(BUDGET / 4096, 1);
	}
	for (uint32_t n = 0; n < 9000; n++) {
		if (n % 1500 == 0)
			rows_of_ten = n % 3000 ? 1 : 9;
		step();
		if (n % 64 == 0)
			sched_yield();
		if (n % 500 == 499)
			check_budget();
	}
	for (uint32_t i = 0; i < SPACES; i++)
		for (uint32_t k = 0; k < SESSIONS; k++) {
			struct client *c = &place[i].client[k];

			if (c->s && place[i].ghost == c->s)
				exorcise(&place[i], c);
			else if (c->s)
				detach(&place[i], c, false);
		}
	check_budget();
	for (uint32_t i = 0; i < SPACES; i++) {
		struct space_report r = fixture_report(&place[i].f);

		recut += r.stats.grants_recut;
		returned += r.stats.grants_returned;
		assert_at_base(&place[i].f, 0);
		assert_rebuilt(&place[i].f);
		for (uint64_t at = 0; at < BUDGET / 4096; at++)
			assert_int_equal(place[i].writers[at] | place[i].readers[at], 0);
		free(place[i].writers);
		free(place[i].readers);
	}
	printf("  %llu started, %llu without room, %llu pages read, %llu sessions, %llu grants recut, %llu returned\n",
	       (unsigned long long)started, (unsigned long long)noroom, (unsigned long long)hits, (unsigned long long)attached_again,
	       (unsigned long long)recut, (unsigned long long)returned);
	printf("  %llu resets, %llu plans stale, %llu keys removed, %llu records pinned\n", (unsigned long long)resets,
	       (unsigned long long)stale, (unsigned long long)removed, (unsigned long long)pinned);
	for (uint32_t i = 1; i < SPACES; i++)
		space_unref(&place[i].f.space);
	fixture_close(&place[0].f);
}

static void random_work(void **state)
{
	const char *wanted = getenv("PREFIXFS_TEST_SEED");
	uint64_t from = wanted ? strtoull(wanted, NULL, 0) : clock_now_ns();

	(void)state;
	printf("PREFIXFS_TEST_SEED=%llu\n", (unsigned long long)from);
	fflush(stdout);
	for (uint64_t i = 0; i < 3; i++)
		random_run((from + i) * 2 + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(random_work) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
