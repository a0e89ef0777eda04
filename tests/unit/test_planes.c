/* SPDX-License-Identifier: Apache-2.0
 *
 * Gather and scatter in plain C: a value is its planes in order, packed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tools/planes.h"

static void there_and_back(void **state)
{
	srand(3);
	for (unsigned turn = 0; turn < 200; turn++) {
		uint64_t bytes[40];
		void *from[40], *to[40];
		struct planes_shape shape = {bytes, (uint32_t)rand() % 40};
		uint64_t length, at = 0;
		uint8_t *value;

		for (uint32_t i = 0; i < shape.count; i++) {
			bytes[i] = (uint64_t)rand() % 700;
			from[i] = malloc(bytes[i] + 1);
			to[i] = calloc(1, bytes[i] + 1);
			assert_true(from[i] && to[i]);
			for (uint64_t k = 0; k < bytes[i]; k++)
				((uint8_t *)from[i])[k] = (uint8_t)rand();
		}
		length = planes_value_bytes(&shape);
		value = malloc(length + 1);
		assert_non_null(value);
		value[length] = 0x5a;
		planes_gather(&shape, (const void *const *)from, value);
		assert_int_equal(value[length], 0x5a);
		planes_scatter(&shape, value, to);
		for (uint32_t i = 0; i < shape.count; i++) {
			assert_memory_equal(value + at, from[i], bytes[i]);
			assert_memory_equal(to[i], from[i], bytes[i]);
			assert_int_equal(((uint8_t *)to[i])[bytes[i]], 0);
			at += bytes[i];
			free(from[i]);
			free(to[i]);
		}
		free(value);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
