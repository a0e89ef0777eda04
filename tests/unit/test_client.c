/* SPDX-License-Identifier: Apache-2.0
 *
 * libprefixfs without a daemon: the carving of the call buffer, ids of plans, pointer tables, what a layout's classes
 * are, and requests that are refused before they leave the process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/client.h"

/* ---- areas ------------------------------------------------------------------------------------------------------ */

static void areas_fill_and_merge(void **state)
{
	const uint64_t bytes = 3u << 20;
	struct areas a;
	uint64_t first, n = 0;

	assert_int_equal(areas_init(&a, bytes), 0);
	assert_int_equal(areas_largest(&a), 2u << 20);
	while (areas_take(&a, 1000) != AREA_NONE)
		n++;
	assert_int_equal(n, bytes / 1024);
	assert_int_equal(a.used, a.units);
	for (uint64_t i = 0; i < bytes; i += 2048)
		areas_give(&a, i);
	assert_int_equal(areas_take(&a, 1025), AREA_NONE); /* every other one is taken */
	for (uint64_t i = 1024; i < bytes; i += 2048)
		areas_give(&a, i);
	assert_int_equal(a.used, 0);
	first = areas_take(&a, 2u << 20);
	assert_int_equal(first, 0);
	assert_int_equal(areas_take(&a, 1u << 20), 2u << 20);
	areas_deinit(&a);
}

static void areas_random_never_overlap(void **state)
{
	enum {
		UNITS = 1000,
		AREAS = 300,
		TURNS = 20000
	};
	static uint8_t owner[UNITS];
	uint64_t offset[AREAS], bytes[AREAS];
	struct areas a;

	memset(owner, 0, sizeof(owner));
	memset(bytes, 0, sizeof(bytes));
	srand(7);
	assert_int_equal(areas_init(&a, UNITS * AREA_UNIT), 0);
	for (unsigned t = 0; t < TURNS; t++) {
		unsigned i = (unsigned)rand() % AREAS;

		if (bytes[i]) {
			for (uint64_t b = 0; b < bytes[i]; b += AREA_UNIT)
				owner[(offset[i] + b) / AREA_UNIT]--;
			areas_give(&a, offset[i]);
			bytes[i] = 0;
			continue;
		}
		bytes[i] = (uint64_t)rand() % 4000 + 1;
		offset[i] = areas_take(&a, bytes[i]);
		if (offset[i] == AREA_NONE) {
			bytes[i] = 0;
			continue;
		}
		assert_true(offset[i] + bytes[i] <= UNITS * AREA_UNIT);
		assert_true(areas_taken(&a, offset[i]));
		for (uint64_t b = 0; b < bytes[i]; b += AREA_UNIT)
			assert_int_equal(owner[(offset[i] + b) / AREA_UNIT]++, 0);
	}
	areas_deinit(&a);
}

static void areas_refuse(void **state)
{
	struct areas a;

	assert_int_equal(areas_init(&a, 100), -EINVAL);
	assert_int_equal(areas_init(&a, AREA_UNIT), 0);
	assert_int_equal(areas_take(&a, AREA_UNIT + 1), AREA_NONE);
	assert_int_equal(areas_taken(&a, 0), 0);
	areas_deinit(&a);
}

/* ---- plans and tables ------------------------------------------------------------------------------------------- */

#define BUFFER_BYTES (64u << 10)

/* A session whose connection has memory of ours behind it. */
static struct pfs_session *session_new(struct conn **ret)
{
	struct pfs_session *s = calloc(1, sizeof(*s));
	struct conn *conn = calloc(1, sizeof(*conn));

	assert_non_null(s);
	assert_non_null(conn);
	pfs_options_init(&s->options);
	s->options.deadline_ms = 50;
	s->tag = 5;
	s->poll_fd = s->retry_fd = -1;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	for (uint32_t i = 0; i < PLAN_SLOTS; i++)
		s->free_slots[s->free_count++] = PLAN_SLOTS - 1 - i;
	conn->refs = 1;
	conn->ctl = -1;
	conn->classes = 2;
	conn->state_mask = 2;
	conn->page_tokens = 64;
	conn->segment = (uint8_t *)0x100000;
	conn->buffer = aligned_alloc(4096, BUFFER_BYTES);
	conn->buffer_bytes = BUFFER_BYTES;
	assert_non_null(conn->buffer);
	assert_int_equal(areas_init(&conn->areas, BUFFER_BYTES), 0);
	s->current = s->conns = conn;
	*ret = conn;
	return s;
}

static void session_free(struct pfs_session *s, struct conn *conn)
{
	plans_free(s);
	assert_int_equal(conn->refs, 1);
	free(conn->buffer);
	areas_deinit(&conn->areas);
	free(conn);
	free(s);
}

static struct plan *put_plan(struct pfs_session *s, struct conn *conn)
{
	static const uint64_t answers[5] = {4096, PFS_ANSWER_EXISTS, 8192, 12288, PFS_ANSWER_NONE};
	static const uint64_t rows[2] = {65536, PFS_ANSWER_NONE};
	static const uint32_t status[2] = {PFS_GROUP_OK, PFS_GROUP_OK};
	struct plan *p;

	assert_int_equal(plan_new(s, PLAN_PUT, conn, &p), 0);
	assert_int_equal(area_take(s, conn, 1024, &p->area), 0);
	p->group_keys = calloc(2, sizeof(*p->group_keys));
	assert_non_null(p->group_keys);
	p->group_capacity = p->groups = 2;
	p->group_keys[0] = 3;
	p->group_keys[1] = 2;
	p->keys = 5;
	p->class_mask = 3;
	p->values[0] = (const uint64_t *)(conn->buffer + p->area);
	p->values[1] = p->values[0] + 5;
	p->status_offset = p->area + 7 * sizeof(uint64_t);
	memcpy(conn->buffer + p->area, answers, sizeof(answers));
	memcpy(conn->buffer + p->area + sizeof(answers), rows, sizeof(rows));
	memcpy(conn->buffer + p->status_offset, status, sizeof(status));
	return p;
}

static void blob_of_a_put_plan(void **state)
{
	struct conn *conn;
	struct pfs_session *s = session_new(&conn);
	struct plan *p = put_plan(s, conn);
	struct pfs_blob b, again;

	assert_int_equal(pfs_blob(s, p->id, PFS_BLOB_WRITE, 0, &b), 0);
	assert_int_equal(b.count, 3);
	assert_int_equal(b.bytes, 5 * 8);
	assert_true(b.words[0] == PFS_BLOB_MAGIC && b.words[1] == 3);
	assert_true(b.words[2] == 0x100000 + 4096 && b.words[3] == 0x100000 + 8192 && b.words[4] == 0x100000 + 12288);
	assert_true(b.index[0] == 0 && b.index[1] == 2 && b.index[2] == 3);
	assert_int_equal(pfs_blob(s, p->id, PFS_BLOB_WRITE, 0, &again), 0);
	assert_ptr_equal(b.words, again.words);
	assert_int_equal(pfs_blob(s, p->id, PFS_BLOB_WRITE, 1, &b), 0);
	assert_true(b.count == 1 && b.words[2] == 0x100000 + 65536 && b.index[0] == 0);
	plan_leave(s, p, true);
	session_free(s, conn);
}

static void blob_leaves_ended_groups_out(void **state)
{
	struct conn *conn;
	struct pfs_session *s = session_new(&conn);
	struct plan *p = put_plan(s, conn);
	struct pfs_blob b;

	((uint32_t *)(conn->buffer + p->status_offset))[0] = PFS_GROUP_COMMITTED;
	assert_int_equal(pfs_blob(s, p->id, PFS_BLOB_WRITE, 0, &b), 0);
	assert_true(b.count == 1 && b.index[0] == 3);
	plan_leave(s, p, true);
	session_free(s, conn);
}

static void blob_refusals(void **state)
{
	struct conn *conn, *other_conn;
	struct pfs_session *s = session_new(&conn), *other = session_new(&other_conn);
	struct plan *p = put_plan(s, conn);
	uint64_t id = p->id;
	struct pfs_blob b;
	char text[200];

	other->tag = 6;
	assert_int_equal(pfs_blob(s, id, PFS_BLOB_READ, 0, &b), -EINVAL);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "is a put plan, not a get plan"));
	assert_int_equal(pfs_blob(s, id, 3, 0, &b), -EINVAL);
	assert_int_equal(pfs_blob(s, id, PFS_BLOB_WRITE, 2, &b), -EINVAL);
	assert_int_equal(pfs_blob(s, id, PFS_BLOB_WRITE, 99, &b), -EINVAL);
	assert_int_equal(pfs_blob(other, id, PFS_BLOB_WRITE, 0, &b), -ENOENT);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "is not of this session"));
	plan_leave(s, p, true);
	assert_int_equal(pfs_blob(s, id, PFS_BLOB_WRITE, 0, &b), -ENOENT);
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "has ended"));
	session_free(other, other_conn);
	session_free(s, conn);
}

static void plan_ids_are_never_used_again(void **state)
{
	struct conn *conn;
	struct pfs_session *s = session_new(&conn);
	struct plan *p, *again, *found;
	uint64_t id;

	assert_int_equal(plan_new(s, PLAN_GET, conn, &p), 0);
	id = p->id;
	assert_int_equal(plan_find(s, id, PLAN_GET, &found), 0);
	plan_leave(s, found, true); /* ended, while its first user is at it */
	assert_int_equal(plan_find(s, id, PLAN_GET, &found), -ENOENT);
	plan_leave(s, p, false);
	assert_int_equal(plan_new(s, PLAN_GET, conn, &again), 0);
	assert_ptr_equal(p, again); /* the memory is, the id is not */
	assert_int_not_equal(again->id, id);
	assert_int_equal(plan_find(s, id, PLAN_GET, &found), -ENOENT);
	plan_leave(s, again, true);
	session_free(s, conn);
}

static void plans_have_a_limit(void **state)
{
	static struct plan *plans[PLAN_SLOTS];
	struct conn *conn;
	struct pfs_session *s = session_new(&conn);
	struct plan *p;

	for (uint32_t i = 0; i < PLAN_SLOTS; i++)
		assert_int_equal(plan_new(s, PLAN_GET, conn, &plans[i]), 0);
	assert_int_equal(plan_new(s, PLAN_GET, conn, &p), -EDQUOT);
	for (uint32_t i = 0; i < PLAN_SLOTS; i++)
		plan_leave(s, plans[i], true);
	session_free(s, conn);
}

/* ---- the call buffer -------------------------------------------------------------------------------------------- */

static void keys_in_place(void **state)
{
	struct conn *conn;
	struct pfs_session *s = session_new(&conn);
	struct pfs_key *keys, other[2] = {0};
	__u64 offset, area;

	assert_int_equal(pfs_keys_area(s, 10, &keys), 0);
	assert_int_equal(call_place_keys(s, conn, keys + 2, 8, &offset, &area), 0);
	assert_true(area == AREA_NONE && conn->buffer + offset == (uint8_t *)(keys + 2));
	assert_int_equal(call_place_keys(s, conn, other, 2, &offset, &area), 0);
	assert_true(area == offset);
	area_give(s, conn, area);
	assert_int_equal(pfs_keys_free(s, keys + 1), -EINVAL);
	assert_int_equal(pfs_keys_free(s, other), -EINVAL);
	assert_int_equal(pfs_keys_free(s, keys), 0);
	assert_int_equal(pfs_keys_free(s, keys), -EINVAL);
	assert_int_equal(pfs_keys_free(s, NULL), 0);
	assert_int_equal(pfs_keys_area(s, 0, &keys), -EINVAL);
	assert_int_equal(pfs_keys_area(s, PFS_MAX_KEYS + 1, &keys), -E2BIG);
	session_free(s, conn);
}

static void full_call_buffer_has_a_deadline(void **state)
{
	struct conn *conn;
	struct pfs_session *s = session_new(&conn);
	struct pfs_key *all, *more;
	char text[300];

	assert_int_equal(pfs_keys_area(s, PFS_MAX_KEYS, &all), -ENOBUFS); /* never */
	assert_int_equal(pfs_keys_area(s, BUFFER_BYTES / sizeof(*all), &all), 0);
	assert_int_equal(pfs_keys_area(s, 1, &more), -ENOBUFS); /* after 50 ms */
	pfs_last_error(text, sizeof(text));
	assert_non_null(strstr(text, "65536 of its 65536 bytes"));
	assert_int_equal(pfs_keys_free(s, all), 0);
	session_free(s, conn);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static void requests_refused_at_once(void **state)
{
	struct conn *conn;
	struct pfs_session *s = session_new(&conn), *none;
	struct pfs_key keys[2] = {0};
	struct pfs_put_group group = {.keys = 3, .class_mask = 1};
	struct pfs_put_request put = {
		.groups = &group, .keys = keys, .group_count = 1, .key_count = 2, .class_mask = 1};
	struct pfs_get_request get = {.keys = keys, .key_count = 0};
	struct pfs_put_result put_ret;
	struct pfs_get_result get_ret;
	struct pfs_options o;
	uint64_t id = 1;

	assert_int_equal(pfs_put_start(s, &put, &put_ret), -EINVAL); /* 3 keys are not 2 */
	group.keys = 2;
	put.class_mask = 0;
	assert_int_equal(pfs_put_start(s, &put, &put_ret), -EINVAL);
	put.class_mask = 1;
	put.reserved[0] = 1;
	assert_int_equal(pfs_put_start(s, &put, &put_ret), -EINVAL);
	put.key_count = PFS_MAX_KEYS + 1;
	assert_int_equal(pfs_put_start(s, &put, &put_ret), -E2BIG);
	assert_int_equal(pfs_get_start(s, &get, &get_ret), -EINVAL);
	get.key_count = 2;
	get.group_count = 1;
	assert_int_equal(pfs_get_start(s, &get, &get_ret), -EINVAL);
	assert_int_equal(pfs_probe(s, keys, 0, NULL, NULL), -EINVAL);
	assert_int_equal(pfs_release(s, &id, 0, NULL), -EINVAL);
	assert_int_equal(pfs_release(s, &id, 1, NULL), -ENOENT);
	assert_int_equal(pfs_put_commit(s, 1, 0, 0, NULL, NULL), -ENOENT);
	assert_int_equal(pfs_get_cancel(s, 1), -ENOENT);
	pfs_options_init(&o);
	o.call_buffer_bytes = 1;
	assert_int_equal(pfs_open("/nowhere/ctl", &o, &none), -EINVAL);
	pfs_options_init(&o);
	o.reserved[0] = 1;
	assert_int_equal(pfs_open("/nowhere/ctl", &o, &none), -EINVAL);
	assert_int_equal(pfs_open("/nowhere/ctl", NULL, &none), -ENOENT);
	session_free(s, conn);
}

static void keys_from_names(void **state)
{
	/* BLAKE2b-256 of "abc". */
	static const uint8_t abc[32] = {
		0xbd,
		0xdd,
		0x81,
		0x3c,
		0x63,
		0x42,
		0x39,
		0x72,
		0x31,
		0x71,
		0xef,
		0x3f,
		0xee,
		0x98,
		0x57,
		0x9b,
		0x94,
		0x96,
		0x4e,
		0x3b,
		0xb1,
		0xcb,
		0x3e,
		0x42,
		0x72,
		0x62,
		0xc8,
		0xc0,
		0x68,
		0xd5,
		0x23,
		0x19,
	};
	struct pfs_key key;

	assert_int_equal(pfs_key_from_bytes("abc", 3, &key), 0);
	assert_memory_equal(key.bytes, abc, sizeof(abc));
	assert_int_equal(pfs_key_from_bytes(NULL, 0, &key), 0);
	assert_int_equal(pfs_key_from_bytes(NULL, 1, &key), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(areas_fill_and_merge),
		cmocka_unit_test(areas_random_never_overlap),
		cmocka_unit_test(areas_refuse),
		cmocka_unit_test(blob_of_a_put_plan),
		cmocka_unit_test(blob_leaves_ended_groups_out),
		cmocka_unit_test(blob_refusals),
		cmocka_unit_test(plan_ids_are_never_used_again),
		cmocka_unit_test(plans_have_a_limit),
		cmocka_unit_test(keys_in_place),
		cmocka_unit_test(full_call_buffer_has_a_deadline),
		cmocka_unit_test(requests_refused_at_once),
		cmocka_unit_test(keys_from_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
