/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs by themselves, and calls on them stepped to their end: for tests.
 */
#ifndef PREFIXFS_TESTS_UNIT_BLOBS_WORLD_H
#define PREFIXFS_TESTS_UNIT_BLOBS_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/blobs.h"
#include "store/put.h"

#define SECOND_NS 1000000000ull

static inline struct blobs *blobs_open(uint32_t units, uint32_t count, void (*changed)(void *), void *context)
{
	struct blobs_config config = {
		.space = "test",
		.bytes = (uint64_t)units * BLOBS_UNIT,
		.count = count,
		.transfer_ttl_ns = 60 * SECOND_NS,
		.changed = changed,
		.context = context,
	};
	struct why why = WHY_INIT;
	struct blobs *b;

	if (blobs_new(&config, &b, &why))
		fail_msg("blobs: %s", why.text);
	return b;
}

static inline struct key blob_key(uint64_t n)
{
	return (struct key){.words = {n, n * 0x9e3779b97f4a7c15ull, 7, ~n}};
}

/* Bytes that differ by content and place. */
static inline void blob_fill(unsigned char *to, uint64_t offset, uint64_t bytes, uint64_t content)
{
	for (uint64_t i = 0; i < bytes; i++) {
		uint64_t at = offset + i;

		to[i] = (unsigned char)((content * 131 + at / 7 + at) * 0x9e3779b97f4a7c15ull >> 56);
	}
}

static inline bool blob_matches(const unsigned char *bytes, uint64_t offset, uint64_t count, uint64_t content)
{
	for (uint64_t i = 0; i < count; i++) {
		unsigned char byte;

		blob_fill(&byte, offset + i, 1, content);
		if (bytes[i] != byte)
			return false;
	}
	return true;
}

static inline int write_run(struct blob_write *w, struct why *why)
{
	int r = blob_write_begin(w, why);

	while (r == STEP_MORE)
		r = blob_write_step(w, why);
	return r;
}

static inline int read_run(struct blob_read *c, struct why *why)
{
	int r = blob_read_begin(c, why);

	while (r == STEP_MORE)
		r = blob_read_step(c, why);
	return r;
}

/* A blob of @length in one piece, or as one of @flags. Negative errno. */
static inline int put(struct blobs *b, uint64_t session, uint64_t key, uint64_t length, uint64_t content, uint32_t flags)
{
	unsigned char *bytes = malloc(length + 1);
	struct blob_write w = {.blobs = b, .session = session, .name.key = blob_key(key), .from = bytes, .length = length,
		.bytes = (uint32_t)length, .flags = flags};
	struct why why = WHY_INIT;
	int r;

	blob_fill(bytes, 0, length, content);
	r = write_run(&w, &why);
	if (r)
		assert_int_equal(why.error, -r);
	else
		assert_true(w.stored && w.version);
	free(bytes);
	return r;
}

/* Reads all of it: the length, or a negative errno; the content is checked. */
static inline int64_t get(struct blobs *b, uint64_t key, uint64_t content)
{
	struct blob_read c = {.blobs = b, .session = 1, .key = blob_key(key), .capacity = 8 << 20};
	struct why why = WHY_INIT;
	unsigned char *bytes = malloc(c.capacity);

	c.to = bytes;
	int r = read_run(&c, &why);

	if (!r) {
		assert_int_equal(c.bytes, c.info.length);
		assert_true(blob_matches(bytes, 0, c.bytes, content));
	}
	free(bytes);
	return r ? r : (int64_t)c.info.length;
}

static inline int piece(struct blobs *b, uint64_t session, uint64_t id, uint64_t key, uint64_t offset, uint32_t bytes,
	uint64_t length, uint64_t content, bool *stored, uint32_t flags)
{
	unsigned char *from = malloc(bytes + 1);
	struct blob_write w = {.blobs = b, .session = session, .id = id, .name.key = blob_key(key), .from = from,
		.offset = offset, .length = length, .bytes = bytes, .flags = flags};
	struct why why = WHY_INIT;

	blob_fill(from, offset, bytes, content);
	int r = write_run(&w, &why);

	*stored = w.stored;
	free(from);
	return r;
}

/* One piece of a read, checked; bytes or a negative errno. */
static inline int64_t read_piece(struct blobs *b, uint64_t session, uint64_t id, uint64_t key, uint64_t offset,
	uint32_t capacity, uint64_t content, bool *ended, uint32_t flags)
{
	unsigned char *to = malloc(capacity + 1);
	struct blob_read c = {.blobs = b, .session = session, .id = id, .key = blob_key(key), .to = to, .offset = offset,
		.capacity = capacity, .flags = flags};
	struct why why = WHY_INIT;
	int r = read_run(&c, &why);

	if (!r)
		assert_true(blob_matches(to, offset, c.bytes, content));
	*ended = c.ended;
	free(to);
	return r ? (int64_t)r : (int64_t)c.bytes;
}

/* One look at the lock: its answer, STEP_WAIT as 0, or a negative errno. */
static inline int lock_try(struct blobs *b, uint64_t session, uint64_t key, uint64_t hold_ns, struct why *why)
{
	struct blob_lock c = {.blobs = b, .session = session, .key = blob_key(key), .hold_ns = hold_ns,
		.deadline_ns = UINT64_MAX};
	int r = blob_lock_begin(&c, false, why);

	assert_int_equal(r, STEP_MORE);
	r = blob_lock_step(&c, why);
	blob_lock_end(&c);
	return r == STEP_WAIT ? 0 : r < 0 ? r : (int)c.answer;
}

static inline int lock_release(struct blobs *b, uint64_t session, uint64_t key)
{
	struct blob_lock c = {.blobs = b, .session = session, .key = blob_key(key)};
	struct why why = WHY_INIT;

	return blob_lock_begin(&c, true, &why);
}

static inline struct blobs_report report_of(struct blobs *b)
{
	struct blobs_report r;

	blobs_check(b);
	blobs_report(b, &r);
	return r;
}

#endif
