/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sees which namespace.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/viewer.h"

static const struct viewer root = {.uid = 0, .gid = 0};
static const struct viewer user = {.uid = 1000, .gid = 1000, .group_count = 2, .groups = {5, 7}};

static bool sees(const struct viewer *v, uid_t uid, gid_t gid, mode_t mode)
{
	return viewer_sees(v, &(struct space_access){.uid = uid, .gid = gid, .mode = mode});
}

static void test_root_sees_all(void **state)
{
	assert_true(sees(&root, 1, 1, 0));
	assert_true(sees(&root, 0, 0, 0));
}

static void test_owner_then_group_then_others(void **state)
{
	assert_true(sees(&user, 1000, 1, 0400));
	assert_false(sees(&user, 1000, 1000, 0044)); /* the owner's bit decides, whatever the others are */
	assert_true(sees(&user, 1, 1000, 0040));
	assert_false(sees(&user, 1, 1000, 0404));
	assert_true(sees(&user, 1, 2, 0004));
	assert_false(sees(&user, 1, 2, 0773));
}

static void test_further_groups(void **state)
{
	assert_true(sees(&user, 1, 7, 0040));
	assert_true(sees(&user, 1, 5, 0740));
	assert_false(sees(&user, 1, 7, 0704));
	assert_false(sees(&user, 1, 6, 0740));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_root_sees_all),
		cmocka_unit_test(test_owner_then_group_then_others),
		cmocka_unit_test(test_further_groups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
