/* SPDX-License-Identifier: Apache-2.0
 *
 * namespace.json: what is written is read again, and what is refused says why.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "index/space_json.h"

#define LAYOUT "{\"version\":1}"

static void test_what_is_written_is_read(void **state)
{
	char layout[] = LAYOUT;
	const struct space_json space = {.name = "a.b-c_9",
		.mode = 02770,
		.uid = 1000,
		.gid = UINT32_MAX - 1,
		.floor_bytes = 5ull << 40,
		.generation = 7,
		.layout = layout};
	char *text = space_json_make(&space);
	struct why why = WHY_INIT;
	struct space_json read;

	(void)state;
	assert_non_null(text);
	assert_int_equal(space_json_read(text, strlen(text), &read, &why), 0);
	assert_string_equal(read.name, "a.b-c_9");
	assert_int_equal(read.mode, 02770);
	assert_int_equal(read.uid, 1000);
	assert_int_equal(read.gid, UINT32_MAX - 1);
	assert_int_equal(read.floor_bytes, 5ull << 40);
	assert_int_equal(read.generation, 7);
	assert_string_equal(read.layout, LAYOUT);
	free(read.layout);
	free(text);
}

static void test_the_floor_may_be_missing(void **state)
{
	static const char text[] = "{\"version\":1,\"name\":\"x\",\"mode\":493,\"uid\":0,\"gid\":0,\"layout\":" LAYOUT "}";
	struct why why = WHY_INIT;
	struct space_json read;

	(void)state;
	assert_int_equal(space_json_read(text, strlen(text), &read, &why), 0);
	assert_int_equal(read.floor_bytes, 0);
	assert_int_equal(read.generation, 1);
	free(read.layout);
}

static void test_what_is_refused(void **state)
{
	static const struct {
		const char *text;
		int error;
		const char *sentence; /* its beginning */
	} bad[] = {
		{"", EINVAL, "namespace.json: line "},
		{"[]", EINVAL, "namespace.json: "},
		{"{\"version\":1,\"name\":\"x\",\"mode\":1,\"uid\":0,\"gid\":0}", EINVAL, "namespace.json: "},
		{"{\"version\":2,\"name\":\"x\",\"mode\":1,\"uid\":0,\"gid\":0,\"layout\":{}}", ENOTSUP,
			"namespace.json: version 2 is newer than 1"},
		{"{\"version\":1,\"name\":\"x\",\"mode\":1,\"uid\":-1,\"gid\":0,\"layout\":{}}", EINVAL,
			"namespace.json: version, mode, uid, gid, floor or generation is out of its limits"},
		{"{\"version\":1,\"name\":\"x\",\"mode\":1,\"uid\":0,\"gid\":0,\"floor\":-1,\"layout\":{}}", EINVAL,
			"namespace.json: version, mode, uid, gid, floor or generation is out of its limits"},
		{"{\"version\":1,\"name\":\"x\",\"mode\":1,\"uid\":0,\"gid\":0,\"floor\":\"1G\",\"layout\":{}}", EINVAL,
			"namespace.json: "},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct why why = WHY_INIT;
		struct space_json read;

		assert_int_equal(space_json_read(bad[i].text, strlen(bad[i].text), &read, &why), -bad[i].error);
		assert_null(read.layout);
		assert_int_equal(strncmp(why.text, bad[i].sentence, strlen(bad[i].sentence)), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_written_is_read),
		cmocka_unit_test(test_the_floor_may_be_missing),
		cmocka_unit_test(test_what_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
