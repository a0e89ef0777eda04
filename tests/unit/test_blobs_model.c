/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs against a plain model of them: random stores, replacements, removals, reads in pieces, locks, ends of sessions, resets.
 * After each step what is there, who left, and every number agree.
 *
 * The seed is printed; PREFIXFS_SEED names one.
 */
#include "tests/unit/blobs_world.h"

#include <errno.h>

#define KEYS 24u
#define SESSIONS 4u
#define UNITS 40u
#define COUNT 12u
#define STEPS 40000u

struct model_blob {
	uint64_t key, length, content, used; /* used: order of the last use */
	uint32_t units, readers;
	bool there, alive; /* alive: it takes units, perhaps for readers only */
};

struct model_transfer { /* one of each kind a session */
	bool open;
	uint32_t blob; /* of a read */
	uint64_t key, length, content, at;
	uint32_t units;
	uint64_t reset;
};

struct model {
	struct blobs *b;
	struct model_blob blob[1024];
	struct model_transfer writes[SESSIONS], reads[SESSIONS];
	uint32_t holder[KEYS]; /* session + 1 */
	uint64_t clock, content, resets;
	uint64_t evicted;
};

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 33) % n;
}

static uint32_t units_of(uint64_t length)
{
	return (uint32_t)((length + BLOBS_UNIT - 1) / BLOBS_UNIT);
}

static struct model_blob *look(struct model *m, uint64_t key)
{
	for (unsigned i = 0; i < 1024; i++)
		if (m->blob[i].there && m->blob[i].key == key)
			return &m->blob[i];
	return NULL;
}

static void leave(struct model_blob *blob)
{
	blob->there = false;
	blob->alive = blob->readers > 0;
}

static void unread(struct model *m, struct model_blob *blob)
{
	if (--blob->readers == 0) {
		blob->alive = blob->there;
		blob->used = ++m->clock;
	}
}

static void usage(const struct model *m, uint32_t *units, uint32_t *count, uint32_t *filling)
{
	*units = *count = *filling = 0;
	for (unsigned i = 0; i < 1024; i++)
		if (m->blob[i].alive) {
			*units += m->blob[i].units;
			++*count;
		}
	for (unsigned s = 0; s < SESSIONS; s++)
		if (m->writes[s].open) {
			*filling += m->writes[s].units;
			++*count;
		}
	*units += *filling;
}

static struct model_blob *coldest(struct model *m)
{
	struct model_blob *cold = NULL;

	for (unsigned i = 0; i < 1024; i++)
		if (m->blob[i].there && !m->blob[i].readers && (!cold || m->blob[i].used < cold->used))
			cold = &m->blob[i];
	return cold;
}

/* Room for @wanted units and one blob, as the rules say. 0 or -ENOSPC, which lets nobody go. */
static int room(struct model *m, uint32_t wanted)
{
	uint32_t units, count, filling, idle = 0, idle_count = 0;

	usage(m, &units, &count, &filling);
	for (unsigned i = 0; i < 1024; i++)
		if (m->blob[i].there && !m->blob[i].readers) {
			idle += m->blob[i].units;
			idle_count++;
		}
	if (filling + wanted > UNITS / BLOBS_LARGEST_PART || units - idle + wanted > UNITS || count - idle_count == COUNT)
		return -ENOSPC;
	while (units + wanted > UNITS || count == COUNT) {
		struct model_blob *cold = coldest(m);

		units -= cold->units;
		count--;
		m->evicted++;
		leave(cold);
	}
	return 0;
}

static void enter(struct model *m, uint64_t key, uint64_t length, uint64_t content)
{
	struct model_blob *old = look(m, key);
	unsigned i = 0;

	if (old)
		leave(old);
	while (m->blob[i].alive)
		i++;
	m->blob[i] = (struct model_blob){.key = key, .length = length, .content = content, .used = ++m->clock,
		.units = units_of(length), .there = true, .alive = true};
}

static void unlock(struct model *m, uint64_t key, uint32_t s)
{
	if (m->holder[key] == s + 1)
		m->holder[key] = 0;
}

static void store(struct model *m, uint32_t s)
{
	uint64_t key = random_below(KEYS), length = random_below(8) ? random_below(6 * BLOBS_UNIT) : random_below(UNITS / 2 * BLOBS_UNIT + 1);
	uint32_t flags = random_below(4) ? 0 : BLOB_WRITE_EXCLUSIVE;
	int expected = flags && look(m, key) ? -EEXIST : room(m, units_of(length));

	/* What is replaced may be the coldest and go before: then it is a new one. */
	assert_int_equal(put(m->b, s + 1, key, length, ++m->content, flags), expected);
	if (expected)
		return;
	enter(m, key, length, m->content);
	unlock(m, key, s);
}

static void write_piece(struct model *m, uint32_t s)
{
	struct model_transfer *t = &m->writes[s];
	bool stored;

	if (!t->open) {
		uint64_t key = random_below(KEYS), length = 2 + random_below(8 * BLOBS_UNIT);
		uint32_t bytes = 1 + random_below((uint32_t)length - 1);
		int expected = room(m, units_of(length));

		assert_int_equal(piece(m->b, s + 1, 1, key, 0, bytes, length, ++m->content, &stored, 0), expected);
		assert_false(stored);
		if (!expected)
			*t = (struct model_transfer){.open = true, .key = key, .length = length, .content = m->content,
				.at = bytes, .units = units_of(length), .reset = m->resets};
		return;
	}
	if (random_below(6) == 0) {
		assert_int_equal(piece(m->b, s + 1, 1, 0, 0, 0, 0, 0, &stored, BLOB_WRITE_ABORT), 0);
		t->open = false;
		return;
	}
	uint32_t bytes = 1 + random_below((uint32_t)(t->length - t->at));
	bool last = t->at + bytes == t->length;
	int expected = last && t->reset != m->resets ? -ESTALE : 0;

	assert_int_equal(piece(m->b, s + 1, 1, t->key, t->at, bytes, t->length, t->content, &stored, 0), expected);
	assert_int_equal(stored, last && !expected);
	t->at += bytes;
	if (!last)
		return;
	t->open = false;
	if (stored) {
		enter(m, t->key, t->length, t->content);
		unlock(m, t->key, s);
	}
}

static void read_some(struct model *m, uint32_t s)
{
	struct model_transfer *t = &m->reads[s];
	bool ended;

	if (!t->open) {
		uint64_t key = random_below(KEYS);
		struct model_blob *blob = look(m, key);

		if (random_below(2)) { /* whole */
			assert_int_equal(get(m->b, key, blob ? blob->content : 0), blob ? (int64_t)blob->length : -ENOENT);
			if (blob && !blob->readers)
				blob->used = ++m->clock;
			return;
		}
		uint32_t bytes = random_below(5000);
		int64_t expected = !blob ? -ENOENT : blob->length < bytes ? (int64_t)blob->length : bytes;

		assert_int_equal(read_piece(m->b, s + 1, 2, key, 0, bytes, blob ? blob->content : 0, &ended, 0), expected);
		if (!blob)
			return;
		assert_int_equal(ended, expected == (int64_t)blob->length);
		blob->readers++;
		if (ended)
			unread(m, blob);
		else
			*t = (struct model_transfer){.open = true, .blob = (uint32_t)(blob - m->blob), .key = key};
		return;
	}
	struct model_blob *blob = &m->blob[t->blob];
	uint64_t at = random_below((uint32_t)blob->length + 1);
	uint32_t bytes = random_below(9000), flags = random_below(4) ? 0 : BLOB_READ_END;
	uint64_t expected = blob->length - at < bytes ? blob->length - at : bytes;

	assert_int_equal(read_piece(m->b, s + 1, 2, t->key, at, bytes, blob->content, &ended, flags), expected);
	assert_int_equal(ended, flags || at + expected == blob->length);
	if (ended) {
		t->open = false;
		unread(m, blob);
	}
}

static void lock_or_release(struct model *m, uint32_t s)
{
	uint64_t key = random_below(KEYS);
	struct why why = WHY_INIT;

	if (random_below(3) == 0) {
		assert_int_equal(lock_release(m->b, s + 1, key), m->holder[key] == s + 1 ? 0 : -ENOENT);
		unlock(m, key, s);
		return;
	}
	int expected = look(m, key) ? BLOB_LOCK_FOUND : !m->holder[key] || m->holder[key] == s + 1 ? BLOB_LOCK_HELD : 0;

	assert_int_equal(lock_try(m->b, s + 1, key, 3600 * SECOND_NS, &why), expected);
	if (expected == BLOB_LOCK_HELD)
		m->holder[key] = s + 1;
	else if (expected == BLOB_LOCK_FOUND)
		unlock(m, key, s);
}

static void end_session(struct model *m, uint32_t s)
{
	blobs_session_end(m->b, s + 1);
	m->writes[s].open = false;
	if (m->reads[s].open)
		unread(m, &m->blob[m->reads[s].blob]);
	m->reads[s].open = false;
	for (unsigned k = 0; k < KEYS; k++)
		unlock(m, k, s);
}

static void reset(struct model *m)
{
	blobs_reset(m->b);
	m->resets++;
	for (unsigned i = 0; i < 1024; i++)
		if (m->blob[i].there)
			leave(&m->blob[i]);
	memset(m->holder, 0, sizeof(m->holder));
}

static void compare(struct model *m)
{
	struct blobs_report r = report_of(m->b);
	uint32_t units, count, filling, there = 0, locks = 0, transfers = 0, cursor = 0;
	struct blob_info info;

	usage(m, &units, &count, &filling);
	for (unsigned i = 0; i < 1024; i++)
		there += m->blob[i].there;
	for (unsigned k = 0; k < KEYS; k++)
		locks += m->holder[k] != 0;
	for (unsigned s = 0; s < SESSIONS; s++)
		transfers += (unsigned)m->writes[s].open + m->reads[s].open;
	assert_int_equal(r.bytes, (uint64_t)units * BLOBS_UNIT);
	assert_int_equal(r.locks, locks);
	assert_int_equal(r.transfers, transfers);
	assert_int_equal(r.blobs_evicted, m->evicted);
	while (blobs_next(m->b, &cursor, &info)) {
		const struct model_blob *blob = look(m, info.name.key.words[0]);

		assert_non_null(blob);
		assert_int_equal(info.length, blob->length);
		there--;
	}
	assert_int_equal(there, 0);
}

static void agrees_with_the_model(void **state)
{
	const char *given = getenv("PREFIXFS_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : clock_now_ns();
	struct model *m = calloc(1, sizeof(*m));

	print_message("seed %llu\n", (unsigned long long)seed);
	random_state = seed * 2 + 1;
	m->b = blobs_open(UNITS, COUNT, NULL, NULL);
	for (unsigned n = 0; n < STEPS; n++) {
		uint32_t s = random_below(SESSIONS), what = random_below(200);

		if (what < 60) {
			store(m, s);
		} else if (what < 100) {
			write_piece(m, s);
		} else if (what < 150) {
			read_some(m, s);
		} else if (what < 180) {
			lock_or_release(m, s);
		} else if (what < 196) {
			uint64_t k = random_below(KEYS);
			struct key key = blob_key(k);
			struct model_blob *blob = look(m, k);
			struct why why = WHY_INIT;

			assert_int_equal(blobs_remove(m->b, &key, &why), blob ? 0 : -ENOENT);
			if (blob)
				leave(blob);
		} else if (what < 199) {
			end_session(m, s);
		} else {
			reset(m);
		}
		compare(m);
	}
	for (uint32_t s = 0; s < SESSIONS; s++)
		end_session(m, s);
	reset(m);
	assert_int_equal(report_of(m->b).bytes, 0);
	assert_int_equal(report_of(m->b).locks, 0);
	blobs_free(&m->b);
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_the_model)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
