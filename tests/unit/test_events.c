/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of events and its lines: numbers without holes, exact gaps, nothing torn, whatever is read while it is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/event_text.h"
#include "fs/version.h"

#define BATCH 64u

static struct events *ring;

static int setup(void **state)
{
	ring = events_new();
	return ring ? 0 : -1;
}

static int teardown(void **state)
{
	events_free(&ring);
	return 0;
}

/* An event whose words all follow from @n, so that a torn one shows. */
static struct host_event event_of(uint64_t n)
{
	return (struct host_event){
		.kind = HOST_EVENT_STORED,
		.consumed = n,
		.endpoint = {.words = {n + 1, n + 2, n + 3, n + 4}},
		.number = n,
		.pages = (uint32_t)(n % 65536),
	};
}

static bool intact(const struct event *e)
{
	uint64_t n = e->number;

	return e->kind == HOST_EVENT_STORED && e->record.consumed == n && e->pages == n % 65536 &&
	       e->record.endpoint.words[0] == n + 1 && e->record.endpoint.words[1] == n + 2 &&
	       e->record.endpoint.words[2] == n + 3 && e->record.endpoint.words[3] == n + 4;
}

static void note(uint32_t serial, uint64_t first, uint32_t count)
{
	struct host_event batch[BATCH];

	assert_true(count <= BATCH);
	for (uint32_t i = 0; i < count; i++)
		batch[i] = event_of(first + i);
	events_note(ring, serial, batch, count);
}

static void test_empty(void **state)
{
	struct event e;
	uint64_t first;

	assert_int_equal(events_last(ring), 0);
	assert_int_equal(events_oldest(ring), 1);
	assert_int_equal(events_read(ring, 1, &e, 1, &first), 0);
	assert_int_equal(first, 1);
	assert_int_equal(events_read(ring, 77, &e, 1, &first), 0);
	assert_int_equal(first, 77);
}

static void test_order_and_capacity(void **state)
{
	struct event e[BATCH];
	uint64_t first;

	note(1, 100, 3);
	note(2, 200, 2);
	assert_int_equal(events_last(ring), 5);
	assert_int_equal(events_read(ring, 1, e, 4, &first), 4);
	assert_int_equal(first, 1);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(e[i].number, 100 + i);
		assert_int_equal(e[i].serial, 1);
		assert_true(intact(&e[i]));
		assert_int_equal(e[i].time_us, e[0].time_us);
	}
	assert_int_equal(e[3].number, 200);
	assert_true(e[3].time_us >= e[0].time_us);
	assert_int_equal(events_read(ring, 5, e, BATCH, &first), 1);
	assert_int_equal(first, 5);
	assert_int_equal(e[0].number, 201);
	assert_int_equal(events_read(ring, 6, e, BATCH, &first), 0);
	assert_int_equal(first, 6);
}

/* What is overwritten is counted to the last one, around every edge of the ring. */
static void test_gap_is_exact(void **state)
{
	struct event e[BATCH];
	uint64_t first, noted = 0;

	for (; noted < EVENTS_KEPT - 1; noted++)
		note(1, noted + 1, 1);
	for (unsigned i = 0; i < 300; i++, noted++) {
		assert_int_equal(events_oldest(ring), noted < EVENTS_KEPT ? 1 : noted - EVENTS_KEPT + 1);
		assert_int_equal(events_read(ring, 1, e, 1, &first), 1);
		assert_int_equal(first, events_oldest(ring));
		assert_int_equal(e[0].number, first);
		assert_int_equal(events_read(ring, noted, e, BATCH, &first), 1);
		assert_int_equal(e[0].number, noted);
		note(1, noted + 1, 1);
	}
	note(1, noted + 1, BATCH);
	noted += BATCH;
	assert_int_equal(events_read(ring, 100, e, BATCH, &first), BATCH);
	assert_int_equal(first - 100, noted - EVENTS_KEPT + 1 - 100);
	for (unsigned i = 0; i < BATCH; i++)
		assert_int_equal(e[i].number, first + i);
}

static void test_other_fields(void **state)
{
	struct host_event noted[] = {
		{.kind = HOST_EVENT_GRANT, .bytes = 1ull << 40, .class_index = 3, .share = 63},
		{.kind = HOST_EVENT_SESSION_ENDED, .number = 1ull << 50, .pid = 1 << 22},
		{.kind = HOST_EVENT_TRIMMED, .why = HOST_WHY_LOST, .pages = 65535, .consumed = 1ull << 60},
	};
	struct event e[3];
	uint64_t first;

	events_note(ring, 0xfffffff0u, noted, 3);
	assert_int_equal(events_read(ring, 1, e, 3, &first), 3);
	assert_int_equal(e[0].other.bytes, 1ull << 40);
	assert_int_equal(e[0].other.class_index, 3);
	assert_int_equal(e[0].other.share, 63);
	assert_int_equal(e[1].number, 1ull << 50);
	assert_int_equal(e[1].other.pid, 1 << 22);
	assert_int_equal(e[2].why, HOST_WHY_LOST);
	assert_int_equal(e[2].pages, 65535);
	assert_int_equal(e[2].record.consumed, 1ull << 60);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(e[i].serial, 0xfffffff0u);
}

/* ---- at the same time ------------------------------------------------------------------------------------------ */

#define WRITERS 3u
#define READERS 3u
#define EACH 150000u

static _Atomic bool over;

struct reading {
	bool lazy; /* stops now and then, to be passed */
	uint64_t seen, lost;
	uint64_t last_of[WRITERS + 1];
};

static void *writer(void *argument)
{
	uint32_t serial = (uint32_t)(uintptr_t)argument;
	uint64_t n = 1;

	while (n <= EACH) {
		uint32_t count = 1 + (uint32_t)(n * 7 + serial) % BATCH;

		count = count > EACH - n + 1 ? (uint32_t)(EACH - n + 1) : count;
		note(serial, n, count);
		n += count;
	}
	return NULL;
}

/* Every event is whole and each writer's come in its order; what is missing is what was said to be lost. */
static void *reader(void *argument)
{
	struct reading *r = argument;
	struct event e[BATCH];
	uint64_t next = 1, first;
	bool last_look = false;

	for (;;) {
		uint32_t n = events_read(ring, next, e, BATCH, &first);

		if (first < next)
			abort();
		r->lost += first - next;
		next = first + n;
		r->seen += n;
		for (uint32_t i = 0; i < n; i++) {
			uint32_t w = e[i].serial;

			if (!intact(&e[i]) || w < 1 || w > WRITERS || e[i].number <= r->last_of[w])
				abort();
			r->last_of[w] = e[i].number;
		}
		if (r->lazy && next % 1000 < BATCH)
			for (volatile unsigned i = 0; i < 200000; i++)
				;
		if (!n && last_look)
			break;
		last_look = atomic_load(&over);
	}
	return NULL;
}

static void test_writers_and_readers(void **state)
{
	pthread_t writers[WRITERS], readers[READERS];
	static struct reading reading[READERS];

	memset(reading, 0, sizeof(reading));
	atomic_store(&over, false);
	for (unsigned i = 0; i < READERS; i++) {
		reading[i].lazy = i == 0;
		assert_int_equal(pthread_create(&readers[i], NULL, reader, &reading[i]), 0);
	}
	for (uintptr_t i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&writers[i], NULL, writer, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	atomic_store(&over, true);
	assert_int_equal(events_last(ring), WRITERS * EACH); /* numbered without holes */
	for (unsigned i = 0; i < READERS; i++) {
		pthread_join(readers[i], NULL);
		assert_int_equal(reading[i].seen + reading[i].lost, WRITERS * EACH);
		assert_true(reading[i].seen >= EVENTS_KEPT / 2);
	}
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static json_t *parse(const char *line, size_t bytes)
{
	json_error_t error;
	json_t *json;

	assert_true(bytes > 2 && bytes <= EVENT_LINE_BYTES && line[bytes - 1] == '\n');
	assert_null(memchr(line, '\n', bytes - 1));
	json = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
	assert_non_null(json);
	return json;
}

static const char *text_of(json_t *json, const char *name)
{
	return json_string_value(json_object_get(json, name));
}

static void test_every_kind_is_a_line(void **state)
{
	char line[EVENT_LINE_BYTES];

	for (unsigned kind = 0; kind < EVENT_KINDS; kind++) {
		struct event e = {.kind = (uint8_t)kind, .serial = 1, .time_us = 1700000000000042, .pages = 7};
		json_t *json = parse(line, event_line(&e, 12, "name", "words", line));

		assert_int_equal(json_integer_value(json_object_get(json, "seq")), 12);
		assert_true(json_is_real(json_object_get(json, "time")));
		assert_string_equal(text_of(json, "ns"), "name");
		assert_true(strlen(text_of(json, "event")) > 3);
		json_decref(json);
	}
	assert_non_null(strstr(line, "1700000000.000042"));
}

/* A record's way to the disk, out of memory and off the disk. */
static void test_lines_of_the_disk_tier(void **state)
{
	static const char *const reasons[] = {"room", "hand", "lost", "disk", "age"};
	struct event e = {.kind = HOST_EVENT_SPILLED, .pages = 16, .number = 143360};
	char line[EVENT_LINE_BYTES];
	json_t *json = parse(line, event_line(&e, 1, "x", NULL, line));

	assert_string_equal(text_of(json, "event"), "spilled");
	assert_int_equal(json_integer_value(json_object_get(json, "pages")), 16);
	assert_int_equal(json_integer_value(json_object_get(json, "bytes")), 143360);
	assert_int_equal(json_string_length(json_object_get(json, "record")), 16 + 1 + 64);
	json_decref(json);
	e.kind = HOST_EVENT_DEMOTED;
	json = parse(line, event_line(&e, 2, "x", NULL, line));
	assert_string_equal(text_of(json, "event"), "demoted");
	assert_int_equal(json_integer_value(json_object_get(json, "values")), 16);
	assert_int_equal(json_integer_value(json_object_get(json, "bytes")), 143360);
	json_decref(json);
	e.kind = HOST_EVENT_EVICTED;
	for (e.why = HOST_WHY_ROOM; e.why <= HOST_WHY_AGE; e.why++) {
		json = parse(line, event_line(&e, 3, "x", NULL, line));
		assert_string_equal(text_of(json, "why"), reasons[e.why]);
		json_decref(json);
	}
	e = (struct event){.kind = EVENT_DEGRADED};
	json = parse(line, event_line(&e, 4, NULL, "the disk tier is closed: EIO", line));
	assert_null(json_object_get(json, "ns"));
	json_decref(json);
	e = (struct event){.kind = EVENT_RESUMED, .number = 3, .other.bytes = 2};
	json = parse(line, event_line(&e, 1, NULL, NULL, line));
	assert_string_equal(text_of(json, "event"), "resumed");
	assert_int_equal(json_integer_value(json_object_get(json, "restarts")), 3);
	assert_int_equal(json_integer_value(json_object_get(json, "upgrades")), 2);
	assert_string_equal(text_of(json, "version"), version_text);
	json_decref(json);
}

static void test_longest_line_fits(void **state)
{
	struct event e = {.kind = EVENT_DEGRADED, .time_us = UINT64_MAX};
	char line[EVENT_LINE_BYTES], text[EVENT_TEXT_BYTES], name[HOST_MAX_NAME + 1];
	json_t *json;

	memset(text, 0xff, sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	text[1] = '"';
	text[2] = '\\';
	text[3] = '\n';
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	json = parse(line, event_line(&e, UINT64_MAX >> 1, name, text, line));
	assert_int_equal(json_string_length(json_object_get(json, "text")), 2 * (EVENT_TEXT_BYTES - 1 - 3) + 3);
	json_decref(json);
	json = parse(line, event_gap_line(9, 12345, 5, line));
	assert_string_equal(text_of(json, "event"), "gap");
	assert_int_equal(json_integer_value(json_object_get(json, "lost")), 12345);
	assert_int_equal(json_integer_value(json_object_get(json, "seq")), 9);
	json_decref(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_empty, setup, teardown),
		cmocka_unit_test_setup_teardown(test_order_and_capacity, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gap_is_exact, setup, teardown),
		cmocka_unit_test_setup_teardown(test_other_fields, setup, teardown),
		cmocka_unit_test_setup_teardown(test_writers_and_readers, setup, teardown),
		cmocka_unit_test(test_every_kind_is_a_line),
		cmocka_unit_test(test_lines_of_the_disk_tier),
		cmocka_unit_test(test_longest_line_fits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
