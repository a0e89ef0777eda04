/* SPDX-License-Identifier: Apache-2.0
 *
 * Grants that change their size within a namespace, and go from one namespace to another.
 */
#include "store/manage.h"
#include "store/nodes.h"
#include "tests/unit/recut_world.h"

#define HYBRID CLASS_KV "," CLASS_STATE /* of 64 MiB: grants of 4 MiB, 1,024 pages or 341 rows */
#define PAGES 1024u
#define ROWS 341u

static void leave(struct session *s)
{
	session_release(s);
	host_process_gone(s->host, session_number(s));
	session_unref(&s);
}

/* ---- within a namespace ------------------------------------------------------------------------------------------ */

static struct {
	uint32_t grants, recuts;
	uint64_t pages;         /* of records, as the news add up */
	uint32_t by_hand;       /* losses that were not for room */
	struct host_event last; /* recut */
} noted;

static void note(void *context, struct space *space, const struct host_event *events, uint32_t count)
{
	(void)context;
	(void)space;
	for (const struct host_event *e = events; e < events + count; e++) {
		bool loss = e->kind == HOST_EVENT_EVICTED || e->kind == HOST_EVENT_TRIMMED || e->kind == HOST_EVENT_ROW_DROPPED;

		noted.grants += e->kind == HOST_EVENT_GRANT;
		noted.recuts += e->kind == HOST_EVENT_RECUT;
		noted.pages += e->kind == HOST_EVENT_STORED ? e->pages : 0;
		noted.pages -= loss ? e->pages : 0;
		noted.by_hand += loss && e->why != HOST_WHY_ROOM;
		if (e->kind == HOST_EVENT_RECUT)
			noted.last = *e;
	}
}

static void rows_get_a_grant_of_pages_that_nobody_uses(void **state)
{
	const struct host_events events = { .note = note };
	struct space_range before[64], after[64];
	struct session_ack old;
	struct why why = WHY_INIT;
	uint32_t total, accepted, row = 0, changed = 0;
	uint64_t version, was;
	struct fixture f;
	struct session *s, *other;

	(void)state;
	memset(&noted, 0, sizeof(noted));
	fixture_open(&f, HYBRID, 1, 64 * MIB, 64 * MIB, &events);
	s = fixture_session(&f, 0);
	other = fixture_session(&f, 0);
	assert_int_equal(usage_of(&f, 0).slots, 15 * PAGES);
	assert_int_equal(usage_of(&f, 1).slots, ROWS);
	for (uint64_t chain = 1; chain <= 15; chain++)
		assert_int_equal(store_pages(s, chain, 0, PAGES), PUT_OK);
	assert_int_equal(usage_of(&f, 0).free, 0);
	assert_int_equal(space_ranges(f.space, 0, before, 64, &total, &was), 16);

	/* Rows alone. Their own coldest is ROWS batches old, so the pages must be twice that. */
	while (fixture_report(&f).stats.grants_recut == 0) {
		assert_true(row < 3 * ROWS);
		if (store_row(s, 1000 + row, 1) == PUT_OK)
			row++;
		settle(f.host);
	}
	assert_true(row > 2 * ROWS - 64);
	assert_int_equal(noted.grants, 16);
	assert_int_equal(noted.recuts, 1);
	assert_int_equal(noted.by_hand, 0);
	assert_int_equal(noted.pages, fixture_report(&f).pages + fixture_report(&f).hollow_pages);
	assert_int_equal(noted.last.bytes, 4 * MIB);
	assert_int_equal(noted.last.class_index, 1);
	assert_int_equal(noted.last.share, 0);
	assert_int_equal(usage_of(&f, 0).slots, 14 * PAGES);
	assert_int_equal(usage_of(&f, 1).slots, 2 * ROWS);
	check_all(&f);
	assert_rebuilt(&f);

	/* The same range, another generation; the version rose. */
	assert_int_equal(space_ranges(f.space, 0, after, 64, &total, &version), 16);
	assert_true(version > was);
	for (uint32_t i = 0; i < 16; i++) {
		assert_int_equal(after[i].id, before[i].id);
		assert_int_equal(after[i].offset, before[i].offset);
		assert_int_equal(after[i].length, before[i].length);
		if (after[i].generation == before[i].generation)
			continue;
		changed++;
		assert_int_equal(after[i].generation, before[i].generation + 1);
		assert_int_equal(before[i].class_index, 0);
		assert_int_equal(after[i].class_index, 1);
		assert_int_equal(after[i].slot_bytes, 12288);
		old = (struct session_ack){ before[i].id, before[i].generation };
		/* nobody has it acknowledged, and the old acknowledgement comes too late */
		assert_int_equal(s->acknowledged[0] >> old.id & 1, 0);
		assert_int_equal(other->acknowledged[0] >> old.id & 1, 0);
		assert_int_equal(session_ack_ranges(s, &old, 1, &accepted, &why), -ESTALE);
		assert_int_equal(accepted, 0);
	}
	assert_int_equal(changed, 1);
	assert_int_equal(store_row(s, 999, 1), PUT_NOROOM);
	assert_int_equal(acknowledge(s), 16);
	assert_int_equal(store_row(s, 999, 1), PUT_OK);
	assert_true(load_row(s, 999, 1));

	/* The oldest chain went, leaf first; the others are whole. */
	assert_int_equal(load_pages(s, 1, PAGES), 0);
	for (uint64_t chain = 2; chain <= 15; chain++)
		assert_int_equal(load_pages(s, chain, PAGES), PAGES);
	assert_int_equal(fixture_report(&f).hollow_pages, 0);
	assert_int_equal(fixture_report(&f).granted_bytes, 64 * MIB);
	assert_at_base(&f, 2);
	leave(s);
	leave(other);
	fixture_close(&f);
}

/* Rows until a grant would have moved. */
static void push_rows(struct fixture *f, struct session *s, uint32_t rows)
{
	for (uint32_t row = 0; row < rows; row++) {
		store_row(s, 1000 + row, 1);
		settle(f->host);
	}
}

static void what_is_in_use_is_not_cut(void **state)
{
	struct get_start get[15];
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s, *holder;

	(void)state;
	fixture_open(&f, HYBRID, 1, 64 * MIB, 64 * MIB, NULL);
	s = fixture_session(&f, 0);
	holder = fixture_session(&f, 0);
	for (uint64_t chain = 1; chain <= 13; chain++)
		assert_int_equal(store_pages(s, chain, 0, PAGES), PUT_OK);
	assert_int_equal(put_chain(s, 5000, 14, 0, PAGES, KV, 0, &put_result), 0);      /* prepared */
	assert_int_equal(put_chain(holder, 5000, 15, 0, PAGES, KV, 0, &put_result), 0); /* to be quarantined */
	session_release(holder);
	assert_int_equal(fixture_report(&f).stats.slots_quarantined, PAGES);
	for (uint64_t chain = 1; chain <= 13; chain++) {
		get[chain] = (struct get_start){ .class_mask = KV };
		assert_int_equal(get_chain(s, 6000 + chain, chain, PAGES, 0, &get[chain], &why), 0); /* pinned */
	}
	push_rows(&f, s, 4 * ROWS);
	assert_int_equal(fixture_report(&f).stats.grants_recut, 0);
	assert_int_equal(usage_of(&f, 0).slots, 15 * PAGES);
	assert_int_equal(usage_of(&f, 1).slots, ROWS);
	check_all(&f);

	/* The process is gone: its grant is empty, and the first to move. */
	host_process_gone(f.host, session_number(holder));
	session_unref(&holder);
	assert_int_equal(usage_of(&f, 0).free, PAGES);
	lock_take(&f.space->lock); /* no pause */
	f.space->recut_side[1][0].until = index_clock(f.space->index);
	lock_drop(&f.space->lock);
	push_rows(&f, s, 8);
	assert_int_equal(fixture_report(&f).stats.grants_recut, 1);
	for (uint64_t chain = 1; chain <= 13; chain++)
		assert_int_equal(get_cancel(s, 6000 + chain, &why), 0);
	commit_all(s, 5000, 1);
	for (uint64_t chain = 1; chain <= 13; chain++)
		assert_int_equal(load_pages(s, chain, PAGES), PAGES);
	assert_at_base(&f, 1);
	assert_rebuilt(&f);
	leave(s);
	fixture_close(&f);
}

/* A warm page among cold ones goes alone: what hangs off it stays, and one put makes it whole. */
static void a_shared_prompt_in_a_cold_grant_costs_one_put(void **state)
{
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, HYBRID, 1, 64 * MIB, 64 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(store_pages(s, 1, 0, 64), PUT_OK); /* the prompt, in the first grant */
	assert_int_equal(store_pages(s, 2, 0, PAGES - 64), PUT_OK);
	assert_int_equal(store_pages(s, 1, 64, PAGES), PUT_OK); /* hangs off it, in the next one */
	for (uint64_t chain = 3; chain <= 15; chain++)
		assert_int_equal(store_pages(s, chain, 0, PAGES), PUT_OK);
	for (uint32_t row = 0; fixture_report(&f).stats.grants_recut == 0; row++) {
		assert_true(row < 8 * ROWS);
		store_row(s, 1000 + row, 1);
		settle(f.host);
		if (row % 8 == 0 && fixture_report(&f).stats.grants_recut == 0) {
			assert_int_equal(load_pages(s, 1, 64 + PAGES), 64 + PAGES);
			for (uint64_t chain = 3; chain <= 15; chain++)
				assert_int_equal(load_pages(s, chain, PAGES), PAGES);
		}
	}
	assert_int_equal(load_pages(s, 2, PAGES - 64), 0); /* the cold one is gone */
	assert_int_equal(load_pages(s, 1, 64 + PAGES), 0); /* it begins with hollow pages */
	assert_int_equal(fixture_report(&f).hollow_pages, 64);
	check_all(&f);
	assert_rebuilt(&f);
	acknowledge(s);
	assert_int_equal(store_pages(s, 1, 0, 64), PUT_OK);
	assert_int_equal(load_pages(s, 1, 64 + PAGES), PAGES); /* for the prompt 64 pages of its end went */
	assert_int_equal(fixture_report(&f).hollow_pages, 0);
	assert_at_base(&f, 1);
	leave(s);
	fixture_close(&f);
}

static void pin(struct session *s, uint64_t chain, uint32_t page, bool release)
{
	struct key key = fixture_key(chain, page);
	struct pinning call = { .session = s, .keys = &key, .key_count = 1, .flags = release ? PINNING_RELEASE : 0 };
	struct why why = WHY_INIT;
	int r = pinning_begin(&call, &why);

	while (r == STEP_MORE)
		r = pinning_step(&call, &why);
	assert_int_equal(r, 0);
	assert_int_equal(call.changed, 1);
}

/* An operator's pin keeps the record and what it descends from, though that lies in the coldest grant. */
static void what_an_operator_pinned_stays_with_all_that_it_needs(void **state)
{
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, HYBRID, 1, 64 * MIB, 64 * MIB, NULL);
	s = fixture_session(&f, 0);
	assert_int_equal(store_pages(s, 2, 0, PAGES - 64), PUT_OK);
	assert_int_equal(store_pages(s, 1, 0, 64), PUT_OK); /* in the first grant, behind the other one */
	assert_int_equal(store_pages(s, 1, 64, PAGES), PUT_OK);
	pin(s, 1, 64 + PAGES - 1, false);
	for (uint64_t chain = 3; chain <= 15; chain++)
		assert_int_equal(store_pages(s, chain, 0, PAGES), PUT_OK);
	for (uint32_t row = 0; fixture_report(&f).stats.grants_recut < 2; row++) {
		assert_true(row < 16 * ROWS);
		store_row(s, 1000 + row, 1);
		settle(f.host);
		acknowledge(s);
	}
	assert_int_equal(fixture_report(&f).hollow_pages, 0);
	assert_int_equal(load_pages(s, 3, PAGES), 0);
	assert_int_equal(load_pages(s, 2, PAGES - 64), PAGES - 64); /* nothing went before it was seen */
	assert_int_equal(load_pages(s, 1, 64 + PAGES), 64 + PAGES);
	check_all(&f);
	assert_rebuilt(&f);

	pin(s, 1, 64 + PAGES - 1, true);
	for (uint32_t row = 0; fixture_report(&f).stats.grants_recut < 14; row++) {
		assert_true(row < 64 * ROWS);
		store_row(s, 100000 + row, 1);
		settle(f.host);
		acknowledge(s);
	}
	assert_true(load_pages(s, 1, 64 + PAGES) == 0 || load_pages(s, 2, PAGES - 64) == 0);
	assert_at_base(&f, 1);
	leave(s);
	fixture_close(&f);
}

/* What a reset hid is no obstacle, but for what somebody still reads. */
static void after_a_reset_grants_move_and_what_is_read_stays(void **state)
{
	struct get_transfer transfer = { .class_mask = KV };
	struct get_start get = { .class_mask = KV };
	static uint64_t offsets[PAGES];
	struct reset reset = { 0 };
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, HYBRID, 1, 64 * MIB, 64 * MIB, NULL);
	s = fixture_session(&f, 0);
	for (uint64_t chain = 1; chain <= 15; chain++)
		assert_int_equal(store_pages(s, chain, 0, PAGES), PUT_OK);
	assert_int_equal(get_chain(s, 7000, 3, PAGES, 0, &get, &why), 0);
	assert_int_equal(transfer_run(s, 7000, 7001, get.transferable_len, 0, get.transferable_len, offsets, PAGES, &transfer,
				      &why), 0);
	reset.session = s;
	assert_int_equal(reset_begin(&reset, &why), STEP_MORE); /* and no step of it: hiding is all that it does */
	for (uint32_t row = 0; fixture_report(&f).stats.grants_recut < 13; row++) {
		assert_true(row < 64 * ROWS);
		store_row(s, 1000 + row, 1);
		settle(f.host);
		acknowledge(s);
	}
	assert_int_equal(usage_of(&f, 0).grants, 2); /* one is kept for a request, one is read */
	assert_int_equal(fixture_report(&f).hidden_records, 1);
	for (uint32_t i = 0; i < PAGES; i++) {
		struct key key = fixture_key(3, i);

		expect(f.space, offsets[i], f.space->layout->class[0].share[0].payload_bytes, &key, 0);
	}
	check_all(&f);
	assert_int_equal(get_release(s, 7001, &why), 0);
	host_maintain(f.host);
	assert_int_equal(fixture_report(&f).hidden_records, 0);
	assert_int_equal(usage_of(&f, 0).free, usage_of(&f, 0).slots);
	assert_at_base(&f, 1);
	assert_rebuilt(&f);
	leave(s);
	fixture_close(&f);
}

static void a_size_keeps_what_one_request_needs(void **state)
{
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, HYBRID, 1, 16 * MIB, 16 * MIB, NULL); /* grants of 2 MiB: 512 pages or 170 rows */
	s = fixture_session(&f, 0);
	assert_int_equal(usage_of(&f, 0).grants, 7);
	for (uint64_t chain = 1; chain <= 7; chain++)
		assert_int_equal(store_pages(s, chain, 0, 512), PUT_OK);
	for (uint32_t row = 0; row < 8000; row++) {
		assert_true(keep_row(s, 1000 + row, 1));
		settle(f.host);
	}
	assert_int_equal(usage_of(&f, 0).grants, 1);
	assert_int_equal(usage_of(&f, 1).grants, 7);
	assert_int_equal(fixture_report(&f).stats.grants_recut, 6);
	assert_true(keep_pages(s, 77, 0, 512));
	assert_int_equal(load_pages(s, 77, 512), 512);
	assert_at_base(&f, 1);
	assert_rebuilt(&f);
	leave(s);
	fixture_close(&f);
}

/* Two sizes that are used in turns, each more than fits: content of neither is ever twice as old as the other's. */
static void sizes_in_turns_do_not_steal(void **state)
{
	uint64_t after_one = 0;
	uint32_t row = 0;
	uint64_t chain = 1;
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, HYBRID, 1, 16 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	for (uint32_t turn = 0; turn < 40; turn++) {
		for (uint32_t i = 0; i < 600; i++) {
			assert_true(keep_pages(s, chain++, 0, 8));
			settle(f.host);
		}
		for (uint32_t i = 0; i < 600; i++) {
			assert_true(keep_row(s, 100000 + row++, 1));
			settle(f.host);
		}
		if (turn == 3)
			after_one = fixture_report(&f).stats.grants_recut;
	}
	uint64_t moved = fixture_report(&f).stats.grants_recut - after_one;

	printf("%llu grants moved in the first turns, %llu in 36 more\n", (unsigned long long)after_one,
	       (unsigned long long)moved);
	assert_true(moved <= 16);
	assert_at_base(&f, 1);
	leave(s);
	fixture_close(&f);
}

static void a_mix_that_shifts_finds_its_hits_again(void **state)
{
	struct fixture f;
	struct session *s;
	uint32_t hits, rounds = 0;

	(void)state;
	fixture_open(&f, HYBRID, 1, 32 * MIB, 32 * MIB, NULL); /* 16 grants of 2 MiB: 512 pages, 170 rows */
	s = fixture_session(&f, 0);
	assert_int_equal(usage_of(&f, 0).slots + 3 * usage_of(&f, 1).slots, 15 * 512 + 3 * 170);
	for (uint32_t phase = 0; phase < 4; phase++) {
		bool rows = phase % 2 == 0;

		/* A working set of 1,000 rows, 6 grants, or 4,800 pages, 10 grants: from what was there it does not fit. */
		for (rounds = 0, hits = 0; hits < 950; rounds++) {
			assert_true(rounds < 30);
			hits = 0;
			for (uint32_t i = 0; i < 1000; i++) {
				if (rows) {
					if (load_row(s, 5000 + i, 1))
						hits++;
					else
						assert_true(keep_row(s, 5000 + i, 1));
				} else {
					if (load_pages(s, 1 + i, 6) == 6)
						hits++;
					else
						assert_true(keep_pages(s, 1 + i, 0, 6));
				}
				settle(f.host); /* how many batches pass before a grant is cut is the scheduler's affair */
			}
		}
		printf("phase %u: %u of 1000 hits after %u rounds, %llu pages, %llu rows\n", phase, hits, rounds,
		       (unsigned long long)usage_of(&f, 0).slots, (unsigned long long)usage_of(&f, 1).slots);
		check_all(&f);
	}
	assert_at_base(&f, 1);
	assert_rebuilt(&f);
	leave(s);
	fixture_close(&f);
}

/* ---- nodes -------------------------------------------------------------------------------------------------------- */

static void a_node_is_in_the_kernels_list_or_refused(void **state)
{
	struct session_attach attach = { .rank = 0, .call_buffer_bytes = 1 << 20 };
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s;

	(void)state;
	assert_true(nodes_in_list("0", 0));
	assert_false(nodes_in_list("0", 1));
	assert_true(nodes_in_list("0-3,8,10-11", 3));
	assert_true(nodes_in_list("0-3,8,10-11", 8));
	assert_true(nodes_in_list("0-3,8,10-11", 11));
	assert_false(nodes_in_list("0-3,8,10-11", 4));
	assert_false(nodes_in_list("0-3,8,10-11", 12));
	assert_false(nodes_in_list("", 0));
	fixture_open(&f, CLASS_KV, 1, 16 * MIB, 16 * MIB, NULL);
	assert_int_equal(session_new(f.host, f.space, 1, 0, 0, false, &s, &why), 0);
	attach.node = 1023;
	assert_int_equal(session_attach(s, &attach, &why), -EINVAL);
	assert_non_null(strstr(why.text, "node: 1023 is none of the host's nodes with memory"));
	attach.node = SEGMENT_ANY_NODE;
	assert_int_equal(session_attach(s, &attach, &why), 0);
	leave(s);
	fixture_close(&f);
}

/* ---- between namespaces ------------------------------------------------------------------------------------------ */

static void the_default_floor_never_refuses_the_next_namespace(void **state)
{
	struct fixture f, g[5];
	struct why why = WHY_INIT;
	const uint64_t floors[] = { 32, 16, 8, 4 };

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 128 * MIB, 32 * MIB, NULL);
	g[0] = another_space(&f, "a", CLASS_KV, 0, &why);
	assert_int_equal(space_floor_bytes(g[0].space), floors[0] * MIB);
	for (uint32_t i = 1; i < 4; i++) {
		char name[2] = { (char)('a' + i), 0 };

		g[i] = another_space(&f, name, CLASS_KV, 0, &why);
		assert_non_null(g[i].space);
	}
	assert_int_equal(space_floor_bytes(g[1].space), 32 * MIB);
	assert_int_equal(space_floor_bytes(g[2].space), 16 * MIB);
	assert_int_equal(space_floor_bytes(g[3].space), 8 * MIB);
	g[4] = another_space(&f, "e", CLASS_KV, 16 * MIB, &why);
	assert_null(g[4].space);
	assert_int_equal(why.error, ENOSPC);
	assert_string_equal(why.text, "namespace e: its floor of 16777216 bytes and the 125829120 of other floors exceed the budget "
				      "of 134217728");
	struct host_report report;

	host_report(f.host, &report);
	assert_int_equal(report.floors_bytes, 120 * MIB);
	assert_int_equal(report.granted_bytes, 120 * MIB);
	assert_int_equal(report.free_bytes, 8 * MIB);
	assert_int_equal(report.owed_bytes, 0);
	for (uint32_t i = 0; i < 4; i++)
		space_unref(&g[i].space);
	fixture_close(&f);
}

static void growth_stops_at_others_floors_and_comes_back(void **state)
{
	struct fixture f, g;
	struct why why = WHY_INIT;
	struct host_report host;
	struct session *s, *t;
	uint64_t chain = 1;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	/* alone it takes all: 64 MiB */
	while (fixture_report(&f).granted_bytes < 64 * MIB)
		assert_true(keep_pages(s, chain++, 0, 256));
	host_report(f.host, &host);
	assert_int_equal(host.free_bytes, 0);

	/* A second one is not refused. It is owed its floor, and has nothing while the first one is attached. */
	g = another_space(&f, "second", CLASS_IX, 24 * MIB, &why);
	assert_non_null(g.space);
	host_report(f.host, &host);
	assert_int_equal(host.owed_bytes, 24 * MIB);
	assert_int_equal(host.granted_bytes, 64 * MIB);
	t = fixture_session(&g, 0);
	assert_int_equal(usage_of(&g, 0).slots, 0);
	assert_int_equal(store_pages(t, 1, 0, 16), PUT_NOROOM);
	settle(f.host);
	assert_int_equal(fixture_report(&f).granted_bytes, 64 * MIB);
	assert_true(keep_pages(s, chain++, 0, 256)); /* the first one goes on in what it has */

	/* Its session ends: what is above its floor is emptied, oldest first, as the second one asks. */
	uint64_t newest = chain - 1;

	leave(s);
	uint64_t last = 1;

	for (; fixture_report(&g).granted_bytes < 24 * MIB; last++) {
		assert_true(last < 40);
		assert_true(keep_pages(t, last, 0, 512));
		settle(f.host);
		acknowledge(t);
	}
	assert_int_equal(fixture_report(&g).granted_bytes, 24 * MIB);
	assert_int_equal(fixture_report(&f).granted_bytes, 40 * MIB);
	assert_int_equal(fixture_report(&f).stats.grants_returned, 24 * MIB / (2 * MIB));
	host_report(f.host, &host);
	assert_int_equal(host.granted_bytes, 64 * MIB);
	assert_int_equal(host.owed_bytes, 0);
	for (int i = 0; i < 30; i++) /* at its floor: it evicts its own */
		assert_true(keep_pages(t, ++last, 0, 512));
	for (int i = 0; i < 12; i++)
		assert_int_equal(load_pages(t, last - (uint64_t)i, 512), 512);
	settle(f.host);
	assert_int_equal(fixture_report(&f).granted_bytes, 40 * MIB); /* beyond its floor it gets empty ones only */
	s = fixture_session(&f, 0);
	assert_int_equal(load_pages(s, newest, 256), 256);
	check_all(&f);
	check_all(&g);
	assert_rebuilt(&f);
	assert_rebuilt(&g);
	leave(s);
	leave(t);
	space_unref(&g.space);
	fixture_close(&f);
}

/* What nobody finds any more keeps nobody waiting, though nothing has let it go yet. */
static void after_a_reset_grants_go_to_who_is_owed_them(void **state)
{
	struct reset reset = { 0 };
	struct why why = WHY_INIT;
	struct fixture f, g;
	struct session *s, *t;
	uint64_t chain = 1;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	while (fixture_report(&f).granted_bytes < 64 * MIB)
		assert_true(keep_pages(s, chain++, 0, 256));
	g = another_space(&f, "second", CLASS_IX, 24 * MIB, &why);
	assert_non_null(g.space);
	t = fixture_session(&g, 0);
	reset.session = s;
	assert_int_equal(reset_begin(&reset, &why), STEP_MORE);
	leave(s);
	assert_true(keep_pages(t, 1, 0, 512));
	settle(f.host);
	assert_int_equal(fixture_report(&f).hidden_records, 0);
	assert_true(fixture_report(&f).stats.grants_returned > 0);
	assert_int_equal(fixture_report(&f).stats.values_evicted, 0);
	check_all(&f);
	check_all(&g);
	leave(t);
	space_unref(&g.space);
	fixture_close(&f);
}

/* Programs that come for one put each, and leave: what they were refused must be there for the next one. */
static void a_namespace_grows_for_sessions_of_one_put(void **state)
{
	struct fixture f;
	struct session *s;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 16 * MIB, NULL);
	for (uint64_t chain = 1; fixture_report(&f).granted_bytes < 24 * MIB; chain++) {
		assert_true(chain < 200);
		s = fixture_session(&f, 0);
		store_pages(s, chain, 0, 256);
		settle(f.host); /* what it asked for is there, too late for it */
		leave(s);
		settle(f.host);
	}
	/* Not more than one grant's slots are kept free for the next one. */
	assert_true(usage_of(&f, 0).free <= usage_of(&f, 0).slots / usage_of(&f, 0).grants);
	check_all(&f);
	fixture_close(&f);
}

static void empty_grants_go_back_when_the_last_session_goes(void **state)
{
	struct why why = WHY_INIT;
	struct fixture f;
	struct session *s, *t;
	uint32_t cursor = 0, record;
	uint64_t chain = 1;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 64 * MIB, 16 * MIB, NULL);
	s = fixture_session(&f, 0);
	t = fixture_session(&f, 0);
	while (fixture_report(&f).granted_bytes < 40 * MIB)
		assert_true(keep_pages(s, chain++, 0, 256));
	uint64_t resident = segment_resident_bytes(f.space->segment);

	lock_take(&f.space->lock);
	struct index_sink sink = space_sink(f.space);

	while (cursor < index_record_limit(f.space->index))
		if ((record = index_next_record(f.space->index, &cursor)) != INDEX_NONE)
			assert_int_equal(index_evict_record(f.space->index, record, &sink, &why), 0);
	lock_drop(&f.space->lock);
	leave(s);
	settle(f.host);
	assert_int_equal(fixture_report(&f).granted_bytes, 40 * MIB); /* t is attached: nothing is punched */
	assert_int_equal(segment_resident_bytes(f.space->segment), resident);
	uint32_t before = 0, total;
	uint64_t version, was;

	before = space_ranges(f.space, 0, NULL, 0, &total, &was);
	assert_int_equal(before, 0);
	assert_int_equal(total, 20);
	leave(t);
	settle(f.host);
	assert_int_equal(fixture_report(&f).granted_bytes, 16 * MIB);
	assert_int_equal(fixture_report(&f).stats.grants_returned, 12);
	assert_true(segment_resident_bytes(f.space->segment) < resident);
	space_ranges(f.space, 0, NULL, 0, &total, &version);
	assert_int_equal(total, 8);
	assert_true(version > was);
	assert_at_base(&f, 0);
	assert_rebuilt(&f);

	/* and come again */
	s = fixture_session(&f, 0);
	while (fixture_report(&f).granted_bytes < 40 * MIB)
		assert_true(keep_pages(s, chain++, 0, 256));
	assert_int_equal(load_pages(s, chain - 1, 256), 256);
	leave(s);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_get_a_grant_of_pages_that_nobody_uses),
		cmocka_unit_test(what_is_in_use_is_not_cut),
		cmocka_unit_test(a_shared_prompt_in_a_cold_grant_costs_one_put),
		cmocka_unit_test(what_an_operator_pinned_stays_with_all_that_it_needs),
		cmocka_unit_test(after_a_reset_grants_move_and_what_is_read_stays),
		cmocka_unit_test(a_size_keeps_what_one_request_needs),
		cmocka_unit_test(sizes_in_turns_do_not_steal),
		cmocka_unit_test(a_mix_that_shifts_finds_its_hits_again),
		cmocka_unit_test(a_node_is_in_the_kernels_list_or_refused),
		cmocka_unit_test(the_default_floor_never_refuses_the_next_namespace),
		cmocka_unit_test(growth_stops_at_others_floors_and_comes_back),
		cmocka_unit_test(after_a_reset_grants_go_to_who_is_owed_them),
		cmocka_unit_test(a_namespace_grows_for_sessions_of_one_put),
		cmocka_unit_test(empty_grants_go_back_when_the_last_session_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
