/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole requests of libprefixfs-gpu when the daemon fails or goes amid them: what they say, and that no plan and no handle stays.
 */
#include "tests/unit/client_world.h"

#include "kernels/prefixfs_gpu.h"

#define BYTES (VALUE - 96u) /* of a value, as that daemon says */

static struct pfs_session *s;
static struct pfs_gpu *gpu;
static uint8_t *pages;
static struct pfs_gpu_plane plane;
static const struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = 4};
static const uint32_t ids[4] = {3, 1, 2, 0};
static const struct pfs_gpu_pages classes = {&pool, ids};

static int begin_with(void **state, bool old)
{
	struct pfs_gpu_options o;

	if (daemon_start(state))
		return -1;
	d.first_attach = old;
	s = session_open(true);
	pfs_gpu_options_init(&o);
	o.kernels = "ref";
	assert_int_equal(pfs_gpu_open(&o, &gpu), 0);
	assert_int_equal(pfs_gpu_register(gpu, info_of(s).segment, SEGMENT_BYTES, 1), 0);
	pages = aligned_alloc(64, 4 * VALUE);
	memset(pages, 0x5a, 4 * VALUE);
	plane = (struct pfs_gpu_plane){.base = (uintptr_t)pages, .stride = VALUE, .bytes = BYTES};
	return 0;
}

static int begin(void **state)
{
	return begin_with(state, false);
}

static int begin_old(void **state)
{
	return begin_with(state, true);
}

static int end(void **state)
{
	pfs_gpu_close(&gpu);
	pfs_close(&s);
	free(pages);
	return daemon_end(state);
}

static int get(struct pfs_gpu_get_result *ret)
{
	const struct pfs_get_request look = {.keys = KEYS, .key_count = 4};
	const struct pfs_gpu_get_request q = {.get = &look, .classes = &classes, .class_count = 1};

	return pfs_gpu_get(gpu, s, &q, ret);
}

static int store(void)
{
	const struct pfs_put_group group = {.keys = 4, .class_mask = 1};
	const struct pfs_put_request request = {.groups = &group, .keys = KEYS, .group_count = 1, .key_count = 4, .class_mask = 1};
	const struct pfs_gpu_put_request q = {.put = &request, .classes = &classes};

	return pfs_gpu_put(gpu, s, &q, NULL, NULL);
}

static void assert_said(const char *part)
{
	char why[512];

	pfs_gpu_last_error(why, sizeof(why));
	if (!strstr(why, part))
		fail_msg("'%s' was said", why);
}

static uint32_t plans_open(void)
{
	return PLAN_SLOTS - s->free_count;
}

static void an_older_daemon_does_not_tell_bytes(void **state)
{
	struct pfs_gpu_get_result got;
	uint64_t bytes = 9;

	assert_int_equal(pfs_value_bytes(s, 0, &bytes), 0);
	assert_int_equal(bytes, 0);
	plane.bytes = VALUE; /* not judged */
	assert_int_equal(store(), 0);
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.restored_len, 4 * TOKENS);
	assert_int_equal(plans_open(), 0);
}

static void bytes_that_were_another_s_are_an_error(void **state)
{
	struct pfs_gpu_get_result got = {.values = 9};

	d.deadly = PFS_IOC_RELEASE;
	d.deaths = 1;
	d.keep = true;
	d.error = ESHUTDOWN; /* it lives, and has given this session's plans up */
	assert_int_equal(get(&got), -ESTALE);
	assert_said("releasing what was fetched: the daemon took this process for dead");
	assert_int_equal(got.values, 9);
	assert_int_equal(plans_open(), 0);
}

static void a_death_before_the_release_is_none(void **state)
{
	struct pfs_gpu_get_result got;

	d.deadly = PFS_IOC_RELEASE;
	d.deaths = 1;
	d.keep = true;
	d.error = ENOTCONN;
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.values, 4);
	assert_int_equal(plans_open(), 0);
}

static void a_death_before_the_transfer_is_a_miss(void **state)
{
	struct pfs_gpu_get_result got;

	d.deadly = PFS_IOC_GET_TRANSFER;
	d.deaths = 1;
	d.error = ENOTCONN;
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.restored_len, 0);
	assert_int_equal(got.values, 0);
	assert_int_equal(plans_open(), 0);
}

static void what_fails_leaves_nothing_open(void **state)
{
	static const struct {
		unsigned long op;
		bool put;
		const char *says;
	} cases[] = {
		{PFS_IOC_PUT_START, true, "starting a put"},
		{PFS_IOC_PUT_COMMIT, true, "committing"},
		{PFS_IOC_GET_START, false, "looking up"},
		{PFS_IOC_GET_TRANSFER, false, "making a get plan"},
		{PFS_IOC_RELEASE, false, "releasing what was fetched"},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		d.failing = cases[i].op;
		d.error = ENOMEM;
		assert_int_equal(cases[i].put ? store() : get(NULL), -ENOMEM);
		assert_said(cases[i].says);
		assert_int_equal(plans_open(), 0);
	}
}

/* Nothing came of a boundary, for its row could not be read: the one below is looked for, not for ever. */
static void a_boundary_that_cannot_be_read_is_not_the_last_word(void **state)
{
	struct pfs_gpu_get_result got;

	d.unread = 2;
	d.cost = 1;
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.restored_len, 2 * TOKENS);
	assert_int_equal(got.values, 2);
	assert_int_equal(d.looks, 3);
	assert_int_equal(plans_open(), 0);
	d.gone = d.looks = 0;
	d.unread = 9;
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.restored_len, 0);
	assert_int_equal(d.looks, 3);
	d.gone = d.looks = d.cost = 0; /* the same boundary is found again */
	d.unread = 1;
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.restored_len, 0);
	assert_int_equal(d.looks, 2);
	assert_int_equal(plans_open(), 0);
}

/* Memory gets short amid a request: what has come is not thrown away. */
static void what_came_before_memory_was_short_counts(void **state)
{
	struct pfs_gpu_get_result got;

	d.at_most = 3;
	assert_int_equal(get(&got), 0);
	assert_int_equal(got.restored_len, 3 * TOKENS);
	assert_int_equal(got.values, 3);
	assert_int_equal(plans_open(), 0);
}

/* Memory that was acknowledged without the device: the plan is there by then, and goes. */
static void what_is_not_registered_is_not_copied(void **state)
{
	assert_int_equal(pfs_gpu_unregister(gpu, info_of(s).segment, SEGMENT_BYTES, 1), 0);
	assert_int_equal(store(), -EFAULT);
	assert_said("value 0: the memory at 0x");
	assert_int_equal(get(NULL), -EFAULT);
	assert_said(" is not registered");
	assert_int_equal(plans_open(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_older_daemon_does_not_tell_bytes, begin_old, end),
		cmocka_unit_test_setup_teardown(bytes_that_were_another_s_are_an_error, begin, end),
		cmocka_unit_test_setup_teardown(a_death_before_the_release_is_none, begin, end),
		cmocka_unit_test_setup_teardown(a_death_before_the_transfer_is_a_miss, begin, end),
		cmocka_unit_test_setup_teardown(what_fails_leaves_nothing_open, begin, end),
		cmocka_unit_test_setup_teardown(a_boundary_that_cannot_be_read_is_not_the_last_word, begin, end),
		cmocka_unit_test_setup_teardown(what_came_before_memory_was_short_counts, begin, end),
		cmocka_unit_test_setup_teardown(what_is_not_registered_is_not_copied, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
