/* SPDX-License-Identifier: Apache-2.0
 *
 * Namespaces whose values have bytes: what was put under a key is derived from it, and is compared when it is got.
 */
#ifndef PREFIXFS_TESTS_UNIT_RECUT_WORLD_H
#define PREFIXFS_TESTS_UNIT_RECUT_WORLD_H

#include <errno.h>
#include <sys/mman.h>

#include "index/internal.h"
#include "store/host_private.h"
#include "store/slots_private.h"
#include "tests/unit/store_fixture.h"

#define MIB (1ull << 20)
#define KV 1u
#define ROW 2u

static _Thread_local struct put_result put_result;
static _Atomic uint64_t next_plan = 1;

/* Whatever goes on in the background has ended. */
static inline void settle(struct host *host)
{
	while (!grower_idle(host->grower))
		sched_yield();
}

/* The same, but no longer than some milliseconds: others may keep it busy. */
static inline void settle_a_little(struct host *host)
{
	uint64_t until_ns = clock_now_ns() + 5000000;

	while (!grower_idle(host->grower) && clock_now_ns() < until_ns)
		sched_yield();
}

static inline struct fixture another_space(struct fixture *f, const char *name, const char *classes, uint64_t floor, struct why *why)
{
	struct fixture g = { .host = f->host };
	struct space_access access = { 0, 0, 0700 };

	if (host_space_create(f->host, name, fixture_layout(classes, 1, floor), &access, &g.space, why) == 0)
		fixture_await_prewarm(&g);
	return g;
}

/* Acknowledges all there is; returns how many ranges. */
static inline uint32_t acknowledge(struct session *s)
{
	struct space_range ranges[256];
	struct session_ack acks[256];
	uint32_t total, accepted;
	struct why why = WHY_INIT;
	uint64_t version;
	uint32_t n = space_ranges(s->space, 0, ranges, 256, &total, &version);

	assert_int_equal(n, total);
	for (uint32_t i = 0; i < n; i++)
		acks[i] = (struct session_ack){ ranges[i].id, ranges[i].generation };
	session_ack_ranges(s, acks, n, &accepted, &why); /* ESTALE: one has changed since it was listed */
	return accepted;
}

static inline struct slots_usage usage_of(struct fixture *f, uint32_t class_index)
{
	struct slots_usage usage;

	lock_take(&f->space->lock);
	slots_usage(f->space->slots, class_index, 0, &usage);
	lock_drop(&f->space->lock);
	return usage;
}

static inline void check_all(struct fixture *f)
{
	lock_take(&f->space->lock);
	index_check(f->space->index);
	slots_check(f->space->slots);
	lock_drop(&f->space->lock);
}

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

/* The first and the last word of a value. */
static inline uint64_t word_of(const struct key *key, uint32_t class_index)
{
	return key->words[0] * 31 + key->words[1] * 7 + key->words[3] + class_index + 1;
}

static inline void fill(struct space *space, uint64_t offset, uint64_t payload, const struct key *key, uint32_t class_index)
{
	uint64_t word = word_of(key, class_index);

	assert_int_equal(segment_write(space->segment, offset, &word, sizeof(word)), 0);
	assert_int_equal(segment_write(space->segment, offset + payload - sizeof(word), &word, sizeof(word)), 0);
}

static inline void expect(struct space *space, uint64_t offset, uint64_t payload, const struct key *key, uint32_t class_index)
{
	uint64_t first = 0, last = 0, word = word_of(key, class_index);

	assert_int_equal(segment_read(space->segment, offset, &first, sizeof(first)), 0);
	assert_int_equal(segment_read(space->segment, offset + payload - sizeof(last), &last, sizeof(last)), 0);
	if (first != word || last != word)
		fail_msg("bytes at %llu are not the key's", (unsigned long long)offset);
}

/* ---- puts that are filled and committed -------------------------------------------------------------------------- */

/* A chain of pages. PUT_OK or PUT_NOROOM. */
static inline uint32_t store_pages(struct session *s, uint64_t chain, uint32_t from, uint32_t pages)
{
	uint64_t plan = next_plan++, payload = s->space->layout->class[0].share[0].payload_bytes;

	assert_int_equal(put_chain(s, plan, chain, from, pages, KV, 0, &put_result), 0);
	if (put_result.status[0] != PUT_OK)
		return put_result.status[0];
	for (uint32_t i = 0; i < pages; i++)
		if (put_result.answers[i] < PUT_ANSWER_DUPLICATE) {
			struct key key = fixture_key(chain, from + i);

			fill(s->space, put_result.answers[i], payload, &key, 0);
		}
	commit_all(s, plan, 1);
	return PUT_OK;
}

/* A row of its own, of chain @chain at page @page. */
static inline uint32_t store_row(struct session *s, uint64_t chain, uint32_t page)
{
	uint64_t plan = next_plan++, payload = s->space->layout->class[1].share[0].payload_bytes;
	struct key key = fixture_key(chain, page);
	struct put_group group = {
		.consumed = (uint64_t)(page + 1) * FIXTURE_PAGE - 1, /* within a page: it needs none */
		.keys = 1,
		.class_mask = ROW,
		.flags = PUT_ROW_ONLY | PUT_ROOT,
	};

	assert_int_equal(put_run(s, plan, &group, 1, &key, 1, ROW, &put_result), 0);
	if (put_result.status[0] != PUT_OK)
		return put_result.status[0];
	if (put_result.answers[0] < PUT_ANSWER_DUPLICATE)
		fill(s->space, put_result.answers[0], payload, &key, 1);
	commit_all(s, plan, 1);
	return PUT_OK;
}

/* Acknowledges and tries again, as an engine does. */
static inline bool keep_pages(struct session *s, uint64_t chain, uint32_t from, uint32_t pages)
{
	for (int i = 0; i < 200; i++) {
		if (store_pages(s, chain, from, pages) == PUT_OK)
			return true;
		settle_a_little(s->host);
		acknowledge(s);
	}
	return false;
}

static inline bool keep_row(struct session *s, uint64_t chain, uint32_t page)
{
	for (int i = 0; i < 200; i++) {
		if (store_row(s, chain, page) == PUT_OK)
			return true;
		settle_a_little(s->host);
		acknowledge(s);
	}
	return false;
}

/* Pages of the chain that hit; their bytes are compared. */
static inline uint32_t load_pages(struct session *s, uint64_t chain, uint32_t pages)
{
	uint64_t payload = s->space->layout->class[0].share[0].payload_bytes;
	uint64_t handle = next_plan++, plan = next_plan++;
	struct get_transfer transfer = { .class_mask = KV };
	struct get_start get = { .class_mask = KV };
	struct why why = WHY_INIT;
	static _Thread_local uint64_t offsets[8192];
	uint32_t hits;

	assert_int_equal(get_chain(s, handle, chain, pages, 0, &get, &why), 0);
	hits = (uint32_t)(get.transferable_len / FIXTURE_PAGE);
	if (!get.handle_live)
		return 0;
	acknowledge(s);
	if (transfer_run(s, handle, plan, get.transferable_len, 0, get.transferable_len, offsets, hits, &transfer, &why))
		fail_msg("transfer: %s", why.text);
	for (uint32_t i = 0; i < hits; i++) {
		struct key key = fixture_key(chain, i);

		expect(s->space, offsets[i], payload, &key, 0);
	}
	assert_int_equal(get_release(s, plan, &why), 0);
	return hits;
}

/* Is the row there? Its bytes are compared. */
static inline bool load_row(struct session *s, uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct space *space = s->space;
	uint64_t offset = 0, payload = space->layout->class[1].share[0].payload_bytes;
	struct index_sink sink = space_sink(space);
	uint32_t record;

	lock_take(&space->lock);
	record = index_find_row(space->index, &key, ROW);
	if (record != INDEX_NONE) {
		uint32_t entry = index_value(space->index, record, INDEX_PAGE_ROW, 0, NULL);

		offset = slots_offset(space->slots, entry);
		index_pin(space->index, record);
		index_touch(space->index, record, INDEX_PAGE_ROW, index_tick(space->index));
	}
	lock_drop(&space->lock);
	if (record == INDEX_NONE)
		return false;
	expect(space, offset, payload, &key, 1);
	lock_take(&space->lock);
	index_unpin(space->index, record, &sink);
	lock_drop(&space->lock);
	return true;
}

/* ---- built again from the tables --------------------------------------------------------------------------------- */

/* What a successor makes of a copy of the tables is what lives. Nothing is under way; what a reset hid and nobody holds is
 * let go first, for a successor does not take it over. */
static inline void assert_rebuilt(struct fixture *f)
{
	struct space *space = f->space;
	struct tables tables;
	struct lock guard;
	struct index *index;
	struct slots *slots;
	struct why why = WHY_INIT;
	char *ours = NULL, *theirs = NULL;
	size_t n, bytes = space->tables.bytes;
	FILE *to;

	while (atomic_load(&space->hidden))
		space_maintain(space);
	lock_take(&space->lock);
	void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, space->tables_fd, 0);

	assert_ptr_not_equal(copy, MAP_FAILED);
	assert_int_equal(tables_open(&tables, copy, bytes, &why), 0);
	struct index_config ic = {
		.layout = space->layout, .tables = &tables, .guard = &guard, .max_pages = tables.record_capacity,
		.hollow_first = space->index->hollow_first, .hollow_count = space->index->hollow_count,
	};
	struct slots_config sc = space->slots->config;

	lock_init(&guard, LOCK_QUEUE);
	lock_take(&guard);
	sc.tables = &tables;
	sc.guard = &guard;
	if (index_new(&ic, &index, &why) || index_rebuild(index, &why) || slots_new(&sc, &slots, &why) ||
	    slots_rebuild(slots, &why))
		fail_msg("rebuild: %s", why.text);
	index_check(index);
	slots_check(slots);
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++) {
		struct slots_grant a, b;
		bool is = slots_grant_get(space->slots, id, &a);

		assert_int_equal(slots_grant_get(slots, id, &b), is);
		if (!is)
			continue;
		assert_int_equal(a.offset, b.offset);
		assert_int_equal(a.length, b.length);
		assert_int_equal(a.slot_bytes, b.slot_bytes);
		assert_int_equal(a.generation, b.generation);
		assert_int_equal(a.class_index, b.class_index);
		assert_int_equal(a.slots, b.slots);
		assert_int_equal(a.free, b.free);
	}
	to = open_memstream(&theirs, &n);
	index_describe(index, to);
	fclose(to);
	to = open_memstream(&ours, &n);
	index_describe(space->index, to);
	fclose(to);
	assert_string_equal(ours, theirs);
	free(ours);
	free(theirs);
	slots_free(&slots);
	index_free(&index);
	lock_drop(&guard);
	lock_destroy(&guard);
	munmap(copy, bytes);
	lock_drop(&space->lock);
}

#endif
