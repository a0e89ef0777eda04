/* SPDX-License-Identifier: Apache-2.0
 *
 * A host with one namespace and attached sessions, without a mount: for tests of store/.
 *
 * Calls that run in steps are stepped to their end here, as the mount's threads would.
 */
#ifndef PREFIXFS_TESTS_UNIT_STORE_FIXTURE_H
#define PREFIXFS_TESTS_UNIT_STORE_FIXTURE_H

#include <assert.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/get.h"
#include "store/session_private.h"
#include "store/space.h"

#define FIXTURE_PAGE 64u

struct fixture {
	struct host *host;
	struct space *space;
};

static inline struct layout *fixture_layout(const char *classes, uint32_t world, uint64_t floor)
{
	struct why why = WHY_INIT;
	struct layout *layout;
	char text[4096];
	int n = snprintf(text, sizeof(text),
			 "{\"version\":1,\"identity\":{\"model\":\"test\"},\"world\":%u,\"page_tokens\":%u,"
			 "\"memory\":{\"floor\":%llu},\"classes\":[%s]}",
			 world, FIXTURE_PAGE, (unsigned long long)floor, classes);

	if (layout_parse(text, (size_t)n, &layout, &why))
		fail_msg("layout: %s", why.text);
	return layout;
}

#define CLASS_KV "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":4096}]}"
#define CLASS_IX "{\"name\":\"ix\",\"kind\":\"dense\",\"planes\":[{\"name\":\"i\",\"bytes\":1000}]}"
#define CLASS_STATE "{\"name\":\"gdn\",\"kind\":\"state\",\"planes\":[{\"name\":\"s\",\"bytes\":10000}]}"

/* The floor's grants become ready in the background. */
static inline void fixture_await_prewarm(struct fixture *f)
{
	uint64_t deadline_ns = clock_now_ns() + 60000000000ull;

	while (atomic_load(&f->space->prewarm_done) < f->space->prewarm_goal) {
		if (clock_now_ns() > deadline_ns)
			fail_msg("the floor is not ready after a minute");
		sched_yield();
	}
}

static inline void fixture_open(struct fixture *f, const char *classes, uint32_t world, uint64_t memory, uint64_t floor,
				const struct host_events *events)
{
	struct host_config config = {
		.memory_bytes = memory,
		.wish = SEGMENT_WISH_SMALL,
		.populate = false,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 10000,
	};
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	if (events)
		config.events = *events;
	if (host_new(&config, &f->host, &why) ||
	    host_space_create(f->host, "test", fixture_layout(classes, world, floor), &access, &f->space, &why))
		fail_msg("fixture: %s", why.text);
	fixture_await_prewarm(f);
}

static inline void fixture_close(struct fixture *f)
{
	space_unref(&f->space);
	host_free(&f->host);
}

static inline struct session *fixture_session(struct fixture *f, uint32_t rank)
{
	struct session_attach attach = { .rank = rank, .node = 0, .call_buffer_bytes = 1 << 20 };
	struct session *s, *welcome;
	struct why why = WHY_INIT;
	struct space_range ranges[256];
	struct session_ack acks[256];
	uint32_t total, accepted, n;
	uint64_t version;
	int segment, buffer;

	attach.client_id[0] = (uint8_t)(rank + 1);
	if (session_new(f->host, f->space, 1, 0, 0, false, &s, &why) || session_attach(s, &attach, &why) ||
	    session_welcome(f->host, attach.token, 1, 1, 0, 0, NULL, 0, &welcome, &segment, &buffer, &why))
		fail_msg("session: %s", why.text);
	session_unref(&welcome);
	n = space_ranges(f->space, 0, ranges, 256, &total, &version);
	for (uint32_t i = 0; i < n; i++)
		acks[i] = (struct session_ack){ ranges[i].id, ranges[i].generation };
	assert_int_equal(session_ack_ranges(s, acks, n, &accepted, &why), 0);
	assert_int_equal(accepted, total);
	return s;
}

static inline struct key fixture_key(uint64_t chain, uint64_t page)
{
	struct key key = { .words = { chain * 0x9e3779b97f4a7c15ull + page, chain, page, ~page } };

	return key;
}

struct put_result {
	int error;
	struct why why;
	uint32_t new_values, groups_ok;
	uint64_t answers[3 * 8192];
	uint32_t status[8192];
};

/* Steps a PUT_START to its end. */
static inline int put_run(struct session *s, uint64_t plan, const struct put_group *groups, uint32_t group_count,
			  const struct key *keys, uint32_t key_count, uint32_t class_mask, struct put_result *r)
{
	struct put_start call = {
		.session = s,
		.plan = plan,
		.groups = groups,
		.group_count = group_count,
		.keys = keys,
		.key_count = key_count,
		.class_mask = class_mask,
		.answers = r->answers,
		.status = r->status,
	};
	struct why why = WHY_INIT;

	r->why = why;
	r->error = session_enter(s, 0, &r->why);
	if (r->error)
		return r->error;
	r->error = put_start_begin(&call, &r->why);
	while (!r->error && (r->error = put_start_step(&call, &r->why)) == STEP_MORE)
		r->error = 0;
	r->new_values = call.new_values;
	r->groups_ok = call.groups_ok;
	session_leave(s);
	return r->error;
}

/* One chain of @pages pages from its root (@from = 0) or after page @from - 1, as one group. */
static inline int put_chain(struct session *s, uint64_t plan, uint64_t chain, uint32_t from, uint32_t pages,
			    uint32_t class_mask, uint32_t flags, struct put_result *r)
{
	struct key *keys = calloc(pages, sizeof(*keys));
	struct put_group group = {
		.consumed = (uint64_t)(from + pages) * FIXTURE_PAGE,
		.keys = pages,
		.class_mask = class_mask,
		.flags = flags | (from ? 0 : PUT_ROOT),
	};
	int error;

	if (from)
		group.parent = fixture_key(chain, from - 1);
	for (uint32_t i = 0; i < pages; i++)
		keys[i] = fixture_key(chain, from + i);
	error = put_run(s, plan, &group, 1, keys, pages, class_mask, r);
	free(keys);
	return error;
}

static inline int end_run(struct session *s, uint64_t plan, bool commit, uint32_t first, uint32_t groups, uint32_t *status,
			  uint32_t *outcome, struct why *why)
{
	struct put_end call = {
		.session = s,
		.plan = plan,
		.seq = 0, /* acknowledged at once */
		.commit = commit,
		.first_group = first,
		.group_count = groups,
		.status = status,
	};
	int error = session_enter(s, 0, why);

	if (error)
		return error;
	error = put_end_begin(&call, why);
	while (!error && (error = put_end_step(&call, why)) == STEP_MORE)
		error = 0;
	if (outcome)
		*outcome = call.outcome;
	session_leave(s);
	return error;
}

static inline void commit_all(struct session *s, uint64_t plan, uint32_t groups)
{
	uint32_t *status = calloc(groups, sizeof(*status));
	struct why why = WHY_INIT;

	if (end_run(s, plan, true, 0, groups, status, NULL, &why))
		fail_msg("commit: %s", why.text);
	for (uint32_t i = 0; i < groups; i++)
		assert_int_equal(status[i], PUT_COMMITTED);
	free(status);
}

/* A GET_START over pages [0, pages) of a chain. */
static inline int get_chain(struct session *s, uint64_t handle, uint64_t chain, uint32_t pages, uint64_t have,
			    struct get_start *call, struct why *why)
{
	static _Thread_local struct key keys[8192];
	int error;

	for (uint32_t i = 0; i < pages; i++)
		keys[i] = fixture_key(chain, i);
	call->session = s;
	call->handle = handle;
	call->keys = keys;
	call->key_count = pages;
	call->have = have;
	error = session_enter(s, 0, why);
	if (error)
		return error;
	error = get_start_begin(call, why);
	while (!error && (error = get_start_step(call, why)) == STEP_MORE)
		error = 0;
	session_leave(s);
	return error;
}

static inline int transfer_run(struct session *s, uint64_t handle, uint64_t plan, uint64_t boundary, uint64_t from,
			       uint64_t to, uint64_t *offsets, uint32_t capacity, struct get_transfer *call, struct why *why)
{
	int error = session_enter(s, 0, why);

	if (error)
		return error;
	call->session = s;
	call->handle = handle;
	call->plan = plan;
	call->boundary = boundary;
	call->from = from;
	call->to = to;
	call->offsets = offsets;
	call->offsets_capacity = capacity;
	error = get_transfer_begin(call, why);
	while (!error && (error = get_transfer_step(call, why)) == STEP_MORE)
		error = 0;
	session_leave(s);
	return error;
}

static inline struct space_report fixture_report(struct fixture *f)
{
	struct space_report report;

	space_report(f->space, &report);
	return report;
}

/* Everything that is under way has ended: the transient counters are at their base. */
static inline void assert_at_base(struct fixture *f, uint32_t sessions)
{
	struct space_report r = fixture_report(f);

	assert_int_equal(r.stats.sessions, sessions);
	assert_int_equal(r.stats.put_plans, 0);
	assert_int_equal(r.stats.get_plans, 0);
	assert_int_equal(r.stats.handles, 0);
	assert_int_equal(r.stats.pins, 0);
	assert_int_equal(r.stats.slots_prepared, 0);
	assert_int_equal(r.stats.slots_quarantined, 0);
	assert_int_equal(r.stats.waiting, 0);
	assert_int_equal(r.victims_pending, 0);
	assert_int_equal(r.victims_selected, r.victims_freed + r.victims_restored + r.victims_obsolete);
	lock_take(&f->space->lock);
	index_check(f->space->index);
	slots_check(f->space->slots);
	lock_drop(&f->space->lock);
}

#endif
